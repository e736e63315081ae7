"""The largest numbers now, the others later: what is held back is remembered and sent when it has grown."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.channel.base import Channel, ChannelContext, real
from fedpoint.channel.parts import built, each, select, size_of
from fedpoint.channel.rand_k import check_fraction, count_of
from fedpoint.core.agent import Agent
from fedpoint.core.types import Message, Number, State, Tree
from fedpoint.core.vector import zeros

# Numbers whose order tells about where the threshold is: one of `PART`, but neither fewer than `FEW` nor more than
# `SAMPLE`.
FEW, PART, SAMPLE = 32, 16, 512


class Largest(NamedTuple):
    """What is sent of an array: its largest numbers, in the order of their places."""

    values: Array  # (k,)
    places: Array  # (k,) whole numbers, or a bit for each number of the array where that is shorter


class TopK(Channel):
    r"""The $k$ numbers of every array that are largest in absolute value.

    Args:
        fraction: $k/d$; at least one number of each array is sent.
        feedback: what is not sent is kept and added to the next message (error feedback), so that nothing is lost for
            good. On a network what neighbours know already does the same, and nothing is kept besides.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0, 4.0, 1.0, 3.0], [1.0, 2.0, 5.0, 1.0]])
    >>> run = fp.run(fp.Scaffold(step=0.05), quad, rounds=1500, channel=fp.channel.TopK(0.25))
    >>> bool(run.error[0, -1] < 1e-20), float(run.cost.bytes_up / (1500 * 2))      # a double and four bits, of w and c
    (True, 18.0)
    """

    lossless = False
    embeds = True
    reveals = True
    structural = ("fraction",)

    fraction: float
    feedback: bool = True

    def check(self) -> None:
        check_fraction(self, self.fraction)

    @property
    def feeds_back(self) -> bool:  # type: ignore[override]
        return self.feedback

    def bind(self, context: ChannelContext) -> Channel:
        return self.replace(feedback=False) if context.by_node and self.feedback else self

    def init(self, message: Message) -> State:
        return zeros(message) if self.feedback else ()

    def owed(self, memory: State, like: Message) -> Message | None:
        return memory if self.feedback else None

    def encode(self, message: Message, memory: State, agent: Agent) -> tuple[Tree, State]:
        whole = self._with_owed(message, memory)
        masks = each(lambda i, a: self._mask(a), whole)
        sent = each(lambda i, a: _sent(a, masks[i], count_of(self.fraction, a)), whole)
        return sent, self._kept(whole, masks)

    def decode(self, code: Tree, like: Message) -> Message:
        pairs = zip(jax.tree.leaves(like), code, strict=True)
        return built([_placed(a, c) if isinstance(c, Largest) else c for a, c in pairs], like)

    def transfer(self, message: Message, memory: State, agent: Agent) -> tuple[Message, State]:
        whole = self._with_owed(message, memory)
        masks = each(lambda i, a: self._mask(a), whole)
        arrived = each(lambda i, a: jnp.where(masks[i], a, 0), whole)
        return built(arrived, message), self._kept(whole, masks)

    def _with_owed(self, message: Message, memory: State) -> Message:
        return built(each(lambda i, a, e: a + e, message, memory), message) if self.feedback else message

    def _kept(self, whole: Message, masks: list[Array]) -> State:
        pairs = zip(jax.tree.leaves(whole), masks, strict=True)
        rest = [jnp.where(mask, 0, a) if real(a) else jnp.zeros_like(a) for a, mask in pairs]
        return built(rest, whole) if self.feedback else ()

    def _mask(self, a: Array) -> Array:
        return largest(a.ravel(), count_of(self.fraction, a)).reshape(a.shape)

    def longest_after(self, length: Number, message: Message) -> Number | None:
        return None if self.feedback else length  # what is owed has no bound

    def omega(self, message: Message) -> float:
        return 1.0 - min((count_of(self.fraction, a) / size_of(a) for a in jax.tree.leaves(message)), default=1.0)


def largest(a: Array, count: int) -> Array:
    """Which `count` numbers of (d,) are largest in absolute value, up to the rounding of 32 bits; of equal ones the
    first."""
    size = jnp.abs(a)
    if a.dtype != jnp.float32:  # rounded to 32 bits they must neither overflow nor vanish
        size = (size / jnp.maximum(size.max(), jnp.finfo(a.dtype).tiny)).astype(jnp.float32)
    order = lax.bitcast_convert_type(size, jnp.int32)  # whole numbers are ordered as the floats are
    sample = jnp.sort(order[:: max(1, min(PART, order.shape[0] // FEW), order.shape[0] // SAMPLE)])
    n, part = sample.shape[0], count / order.shape[0]
    margin = 2 * np.sqrt(n * part * (1 - part)) + 1
    low = sample[max(0, int(n * (1 - part) - margin))]
    return select(order, count, low, sample[min(n - 1, int(n * (1 - part) + margin))] + 1)


def _by_bits(k: int, d: int) -> bool:
    """Whether a bit for every number is shorter than the places of those that are sent."""
    return -(-d // 8) < 4 * k


def _sent(a: Array, mask: Array, k: int) -> Largest:
    places = jnp.nonzero(mask.ravel(), size=k)[0].astype(jnp.int32)
    return Largest(a.ravel()[places], jnp.packbits(mask.ravel()) if _by_bits(k, size_of(a)) else places)


def _placed(a: Array, code: Largest) -> Array:
    d, k = size_of(a), code.values.shape[0]
    places = code.places
    if _by_bits(k, d):
        places = jnp.nonzero(jnp.unpackbits(code.places)[:d], size=k)[0]
    return jnp.zeros(d, a.dtype).at[places].set(code.values.astype(a.dtype)).reshape(a.shape)
