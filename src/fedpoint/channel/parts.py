"""How is a message treated array by array, with the agent's own luck, and packed into bytes?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.channel.base import real
from fedpoint.core.agent import Agent
from fedpoint.core.random import Key, Row
from fedpoint.core.types import Message, Tree


def each(function: Callable[..., Tree], message: Message, *others: Message) -> list[Tree]:
    """function(i, array, ...) of every array of real numbers, the i-th of the message; others stay as they are."""
    rest = [jax.tree.leaves(other) for other in others]
    return [function(i, a, *(r[i] for r in rest)) if real(a) else a for i, a in enumerate(jax.tree.leaves(message))]


def built(leaves: Sequence[Array], like: Message) -> Message:
    """A message of these arrays, built as `like`."""
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def size_of(a: Array) -> int:
    return int(np.prod(a.shape))


def seed_of(agent: Agent) -> Array:
    """64 bits of an agent's own luck, as they are sent: from them a hub draws what the agent drew."""
    return lax.bitcast_convert_type(jax.random.key_data(agent.key()), jnp.int32)


def row_of(seed: Array, i: int) -> Row:
    """The randomness that is for the i-th array of a message."""
    low, high = lax.bitcast_convert_type(seed, jnp.uint32)
    return Key(low, high).row(i)


def uniform(row: Row, a: Array) -> Array:
    """Uniform on (0, 1) in 32 bits, one hash for two numbers."""
    size = size_of(a)
    words = jnp.concatenate(row.words(((size + 1) // 2,)))[:size]
    # The upper 24 bits: a float of 32 bits rounds none of them to 1.
    return ((words >> jnp.uint32(8)).astype(a.dtype) + jnp.asarray(0.5, a.dtype)) * jnp.asarray(2.0**-24, a.dtype)


def packed(whole: Array, bits: int) -> Array:
    """Whole numbers below 2^bits, one behind the other in bytes."""
    flat = whole.ravel().astype(jnp.uint32)
    table = (flat[:, None] >> jnp.arange(bits, dtype=jnp.uint32)) & jnp.uint32(1)
    return jnp.packbits(table.ravel().astype(bool))


def unpacked(code: Array, bits: int, count: int) -> Array:
    """The whole numbers again, as int32."""
    table = jnp.unpackbits(code)[: count * bits].reshape(count, bits).astype(jnp.int32)
    return (table << jnp.arange(bits, dtype=jnp.int32)).sum(axis=1, dtype=jnp.int32)
