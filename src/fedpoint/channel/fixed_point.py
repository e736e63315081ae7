"""Whole numbers whose sum is exact: the encoding of secure aggregation, without its masks."""

from __future__ import annotations

from dataclasses import field

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.channel.base import Channel, ChannelContext, numbers_of, real
from fedpoint.channel.parts import built, each, row_of, seed_of, uniform
from fedpoint.core.agent import Agent
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.settings import check_value
from fedpoint.core.types import Message, Number, State, Tree


class FixedPoint(Channel):
    r"""Numbers between -range and range as multiples of $\Delta$ = range$/M$, in $b$ bits.

    $M = \lfloor (2^{b-1} - 1)/n \rfloor$ leaves room for the sum of $n$ agents: added modulo $2^b$, as masked messages
    are, it never wraps around. Rounding is at random and unbiased. A number out of range does not arrive as another
    one: it becomes NaN, and the run stops there and says so.

    Args:
        width: $b$, the bits of a number, 4 to 32.
        range: the largest absolute value that a number may have, for instance the norm of the clip before.
        agents: $n$; default: all agents of the experiment.

    Arguments of methods:
        whole: sums of the integers that agents sent.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> channel = [fp.channel.Clip(1.0), fp.channel.FixedPoint(width=32, range=1.0)]
    >>> run = fp.run(fp.FedAvg(step=0.1), quad, rounds=300, channel=channel)
    >>> bool(run.error[0, -1] < 1e-12), float(run.cost.bytes_up / 600)
    (True, 4.0)
    """

    width: int
    range: float = field(kw_only=True)
    agents: int | None = None

    lossless = False
    keeps_scales = False

    def check(self) -> None:
        check_value("FixedPoint", "range", self.range, {"low": 0.0, "strict": True})
        if not 4 <= self.width <= 32:
            raise FedpointError(f"FixedPoint: width must lie between 4 and 32 bits, got {self.width}")
        if self.agents is not None:
            self._steps()

    def bind(self, context: ChannelContext) -> Channel:
        agents = len(context.weights) if self.agents is None else self.agents
        if agents < len(context.weights):
            raise FedpointError(
                f"FixedPoint: agents= leaves room for the sum of {counted(agents, 'agent')}, but there are "
                f"{len(context.weights)}: "
                "sums would wrap around; leave agents= out"
            )
        return self.replace(agents=agents)

    def _steps(self) -> int:
        """M: how many steps there are from 0 to the range."""
        steps = (2 ** (self.width - 1) - 1) // (self.agents or 1)
        if steps < 1:
            raise FedpointError(
                f"FixedPoint: {self.width} bits cannot hold the sum of {self.agents} agents: use a larger width"
            )
        return steps

    @property
    def _dtype(self) -> type:
        return jnp.int8 if self.width <= 8 else jnp.int16 if self.width <= 16 else jnp.int32

    def encode(self, message: Message, memory: State, agent: Agent) -> tuple[Tree, State]:
        seed = seed_of(agent)
        return each(lambda i, a: self._whole(a, uniform(row_of(seed, i), a)), message), memory

    def _whole(self, a: Array, luck: Array) -> Array:
        steps = self._steps()
        level = jnp.floor(a / self.range * steps + luck)
        fits = jnp.abs(a) <= self.range * (1 + 1e-6)
        level = jnp.clip(level, -steps, steps).astype(self._dtype)
        return jnp.where(fits, level, jnp.iinfo(self._dtype).min)

    def decode(self, code: Tree, like: Message) -> Message:
        return built(
            [self._number(c, a) if real(a) else c for a, c in zip(jax.tree.leaves(like), code, strict=True)], like
        )

    def _number(self, whole: Array, a: Array) -> Array:
        value = whole.astype(a.dtype) * (self.range / self._steps())
        return jnp.where(whole == jnp.iinfo(whole.dtype).min, jnp.nan, value).astype(a.dtype)

    def wrapped(self, whole: Array) -> Array:
        """Sums of what agents sent, modulo 2^b between -2^(b-1) and 2^(b-1) - 1."""
        half = 2 ** (self.width - 1)
        return (whole.astype(jnp.int64) + half) % (2 * half) - half

    def decode_sum(self, whole: Array) -> Array:
        """The sum of messages, from the sum of what was sent modulo 2^b."""
        return self.wrapped(whole) * (self.range / self._steps())

    def longest_after(self, length: Number, message: Message) -> Number:
        """Every number moves by a step at most."""
        return length + np.sqrt(numbers_of(message)) * self.range / self._steps()

    def largest_number(self) -> float:
        return self.range

    def overflows(self) -> str:
        return (
            f"FixedPoint carries numbers from {-self.range:g} to {self.range:g}, and a message held a larger one: take "
            f"a larger range, or put fp.channel.Clip({self.range:g}) before it"
        )

    def omega(self, message: Message) -> float:
        return 0.0
