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
    order: Array  # (d,), carried along: otherwise XLA computes it again for every comparison


BLOCK = 1023  # numbers whose counts fit into ten bits


def select(order: Array, count: int, low: Array, high: Array) -> Array:
    """Which `count` of these whole numbers (d,), none below 0, are largest; of equal ones the first. No sort: numbers
    are counted above three thresholds at a time, between bounds that narrow. low, high: where the last of them probably
    is."""

    def narrow(of: Bounds) -> Bounds:
        fences = jnp.where(of.step == 0, jnp.stack([low, low + (high - low) // 2, high]), _fences(of, count))
        fences = jnp.clip(fences, of.low + 1, of.high - 1)
        n = _at_least(of.order, fences)
        enough = n >= count
        return Bounds(
            jnp.maximum(of.low, jnp.where(enough, fences, of.low).max()),
            jnp.minimum(of.high, jnp.where(enough, of.high, fences).min()),
            jnp.minimum(of.at_low, jnp.where(enough, n, of.at_low).min()),
            jnp.maximum(of.at_high, jnp.where(enough, of.at_high, n).max()),
            of.step + 1,
            of.order,
        )

    most = jnp.int32(jnp.iinfo(jnp.int32).max)
    start = Bounds(jnp.int32(0), most, jnp.int32(order.shape[0]), jnp.int32(0), jnp.int32(0), order)
    found = lax.while_loop(lambda of: (of.at_low != count) & (of.high - of.low > 1), narrow, start)
    # In a branch, or XLA computes the numbers once more for the mask, as the loop does not change them.
    return lax.cond(found.step >= 0, lambda: _first_of_equals(found, count), lambda: jnp.zeros(order.shape, bool))


def _fences(of: Bounds, count: int) -> Array:
    """(3,): where the threshold is if numbers lie evenly between the bounds, and two standard errors to both sides; by
    quarters now and then, so that it ends on any numbers."""
    width = (of.high - of.low).astype(jnp.float32)
    between = (of.at_low - of.at_high).astype(jnp.float32)
    part = (of.at_low - count).astype(jnp.float32) / between
    error = jnp.sqrt((part * (1 - part) + 0.25 / between) / between)
    even = part + 2 * error * jnp.array([-1.0, 0.0, 1.0])
    even = jnp.where(of.step % 4 == 3, jnp.array([0.25, 0.5, 0.75]), even)
    return of.low + jnp.clip(even * width, 0.0, 0.999 * width).astype(jnp.int32)


def _at_least(order: Array, fences: Array) -> Array:
    """(3,): how many numbers of (d,) are at each fence or above: in one pass, ten bits of a sum each."""
    whole = order.shape[0] - order.shape[0] % BLOCK
    sums = jnp.append(_sums(order[:whole].reshape(-1, BLOCK), fences), _sums(order[whole:][None], fences))
    return jnp.stack([jnp.sum((sums >> (10 * i)) & 1023, dtype=jnp.int32) for i in range(3)])


def _sums(table: Array, fences: Array) -> Array:
    above = [(table >= fences[i]).astype(jnp.int32) << (10 * i) for i in range(3)]
    return jnp.sum(above[0] + above[1] + above[2], axis=1, dtype=jnp.int32)


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
