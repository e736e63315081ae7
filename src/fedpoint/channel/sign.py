"""One bit a number: its sign, with one length for all numbers of an array."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpoint.channel.base import Channel, ChannelContext, real
from fedpoint.channel.parts import built, each, size_of
from fedpoint.core.agent import Agent
from fedpoint.core.types import Message, Number, State, Tree
from fedpoint.core.vector import zeros


class Signs(NamedTuple):
    """What is sent of an array."""

    length: Array  # the mean of |x|
    positive: Array  # bits, in bytes


class Sign(Channel):
    r"""$\operatorname{sign}(x)$ times the mean of $|x|$, array by array: one bit a number, and one number.

    Args:
        feedback: what is lost is kept and added to the next message (error feedback). Without it a method ends where
            signs balance. On a network what neighbours know already does the same, and nothing is kept besides.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0, 4.0, 1.0, 3.0], [1.0, 2.0, 5.0, 1.0]])
    >>> run = fp.run(fp.FedAvg(step=0.05), quad, rounds=600, channel=fp.channel.Sign())
    >>> bool(run.error[0, -1] < 0.01), float(run.cost.bytes_up / (600 * 2))
    (True, 9.0)
    """

    lossless = False

    feedback: bool = True

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
        sent = each(lambda i, a: Signs(_length(a), jnp.packbits(a.ravel() >= 0)), whole)
        return sent, self._kept(whole)

    def decode(self, code: Tree, like: Message) -> Message:
        pairs = zip(jax.tree.leaves(like), code, strict=True)
        return built([_unpacked(a, c) if isinstance(c, Signs) else c for a, c in pairs], like)

    def transfer(self, message: Message, memory: State, agent: Agent) -> tuple[Message, State]:
        whole = self._with_owed(message, memory)
        return built(each(lambda i, a: _signed(a >= 0, _length(a)), whole), message), self._kept(whole)

    def _with_owed(self, message: Message, memory: State) -> Message:
        return built(each(lambda i, a, e: a + e, message, memory), message) if self.feedback else message

    def _kept(self, whole: Message) -> State:
        if not self.feedback:
            return ()
        rest = [a - _signed(a >= 0, _length(a)) if real(a) else jnp.zeros_like(a) for a in jax.tree.leaves(whole)]
        return built(rest, whole)

    def longest_after(self, length: Number, message: Message) -> Number | None:
        """The mean of |x| times the root of d is |x| at most; what is owed has no bound."""
        return None if self.feedback else length

    def omega(self, message: Message) -> float:
        return 1.0 - 1.0 / max((size_of(a) for a in jax.tree.leaves(message)), default=1)


def _length(a: Array) -> Array:
    return jnp.mean(jnp.abs(a))


def _signed(positive: Array, length: Array) -> Array:
    return jnp.where(positive, length, -length)


def _unpacked(a: Array, code: Signs) -> Array:
    positive = jnp.unpackbits(code.positive)[: size_of(a)].reshape(a.shape) > 0
    return _signed(positive, code.length.astype(a.dtype))
