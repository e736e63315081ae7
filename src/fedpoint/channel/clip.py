"""How long may a message be? Not longer than a norm: what a single agent can do to a model is then bounded."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.channel.base import Clips, clipped, real
from fedpoint.core.agent import Agent
from fedpoint.core.settings import check_value
from fedpoint.core.types import Message, Number, State, Tree


class Clip(Clips):
    r"""A message longer than `norm` is made as short: $m \min(1, C/|m|)$. One that is not finite counts as zero.

    Args:
        norm: $C$, of the whole message, control variates and all else that an agent sends included.
        each: clip every array of the message by itself to `norm`; together they are then at most
            $C \sqrt{n}$ long for $n$ arrays.

    A method's memories count what was sent after the clip, so that what it conserves stays conserved.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [1.0], [100.0]])
    >>> fp.run(fp.FedAvg(step=0.5), quad, rounds=200, channel=fp.channel.Clip(0.1)).model.round(3)
    array([[1.]])
    """

    lossless = False
    keeps_scales = False
    embeds = True
    in_place = True

    norm: float
    each: bool = False

    def check(self) -> None:
        check_value(type(self).__name__, "norm", self.norm, {"low": 0.0, "strict": True})

    def encode(self, message: Message, memory: State, agent: Agent) -> tuple[Tree, State]:
        return self.expected(message), memory

    def expected(self, message: Message) -> Message:
        if self.each:
            return jax.tree.map(lambda a: self._clipped(a, _square(a)) if real(a) else a, message)
        square = sum(_square(a) for a in jax.tree.leaves(message) if real(a))
        return jax.tree.map(lambda a: self._clipped(a, square) if real(a) else a, message)

    def _clipped(self, a: Array, square: Number) -> Array:
        limit = jnp.asarray(self.norm, a.dtype)
        return clipped(a, limit / jnp.maximum(jnp.sqrt(square), limit), square)

    def omega(self, message: Message) -> float:
        return 1.0

    def longest_after(self, length: Number, message: Message) -> Number:
        return jnp.minimum(length, self.longest(message))

    def longest(self, message: Message) -> Number:
        arrays = sum(real(a) for a in jax.tree.leaves(message))
        return self.norm * np.sqrt(arrays) if self.each else self.norm


def _square(a: Array) -> Array:
    return jnp.sum(a * a)
