"""How is a message treated array by array, with the agent's own luck, and packed into bytes?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

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
    """Uniform on (0, 1) in 24 bits: a float of 32 bits rounds none of them to 1."""
    # A hash has two words: with both of them XLA would compute every hash twice, and not vectorised. Neither are floats
    # of unsigned words.
    whole = (row.words(a.shape)[0] >> jnp.uint32(8)).astype(jnp.int32)
    return (whole.astype(a.dtype) + jnp.asarray(0.5, a.dtype)) * jnp.asarray(2.0**-24, a.dtype)


class Bounds(NamedTuple):
    """`count` or more numbers are at `low` or above, fewer at `high` or above: so many."""

    low: Array
    high: Array
    at_low: Array
    at_high: Array
    step: Array
    order: Array  # carried along: otherwise XLA computes it again for every comparison


def select(order: Array, count: int, low: Array, high: Array) -> Array:
    """Which `count` of these whole numbers, none below 0, are largest; of equal ones the first. No sort: numbers are
    compared with a threshold between bounds that narrow. low, high: where the threshold probably is."""

    def narrow(of: Bounds) -> Bounds:
        width = (of.high - of.low).astype(jnp.float32)
        share = (of.at_low - count).astype(jnp.float32) / (of.at_low - of.at_high).astype(jnp.float32)
        share = jnp.where(of.step % 3 == 2, 0.5, share)  # by halves now and then: it ends on any numbers
        middle = of.low + jnp.clip(share * width, 0.0, 0.999 * width).astype(jnp.int32)
        middle = jnp.where(of.step == 0, low, jnp.where(of.step == 1, high, middle))
        middle = jnp.clip(middle, of.low + 1, of.high - 1)
        n = jnp.sum(of.order >= middle, dtype=jnp.int32)
        up = n >= count
        bounds = jnp.where(up, middle, of.low), jnp.where(up, of.high, middle)
        return Bounds(*bounds, jnp.where(up, n, of.at_low), jnp.where(up, of.at_high, n), of.step + 1, of.order)

    most = jnp.int32(jnp.iinfo(jnp.int32).max)
    start = Bounds(jnp.int32(0), most, jnp.int32(order.shape[0]), jnp.int32(0), jnp.int32(0), order)
    found = lax.while_loop(lambda of: (of.at_low != count) & (of.high - of.low > 1), narrow, start)
    return _first_of_equals(found, count)


def _first_of_equals(found: Bounds, count: int) -> Array:
    """All above the threshold that was found, and of those at it the first that are needed for the count."""
    order = found.order
    places = jnp.arange(order.shape[0], dtype=jnp.int32)
    exact, tied = found.at_low == count, order == found.low
    missing = count - found.at_high

    def earlier(of: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = of  # fewer than `missing` of them stand before `low`, as many or more before `high`
        middle = low + (high - low) // 2
        enough = jnp.sum(tied & (places < middle), dtype=jnp.int32) >= missing
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    end = jnp.int32(order.shape[0])
    _, bound = lax.while_loop(lambda of: of[1] - of[0] > 1, earlier, (jnp.where(exact, end - 1, 0), end))
    return (order > found.low) | (tied & (places < bound))


def packed(whole: Array, bits: int) -> Array:
    """Whole numbers below 2^bits, one behind the other in bytes."""
    flat = whole.ravel().astype(jnp.uint32)
    table = (flat[:, None] >> jnp.arange(bits, dtype=jnp.uint32)) & jnp.uint32(1)
    return jnp.packbits(table.ravel().astype(bool))


def unpacked(code: Array, bits: int, count: int) -> Array:
    """The whole numbers again, as int32."""
    table = jnp.unpackbits(code)[: count * bits].reshape(count, bits).astype(jnp.int32)
    return (table << jnp.arange(bits, dtype=jnp.int32)).sum(axis=1, dtype=jnp.int32)
