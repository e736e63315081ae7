"""How long may a message be, if nobody knows how long they are? As long as a quantile of them, which is followed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.channel.base import Clips, clipped, real
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import Row
from fedpoint.core.settings import check_value
from fedpoint.core.types import Message, Model, Number, State, Tree
from fedpoint.core.wrapped import Wrapped

if TYPE_CHECKING:
    from fedpoint.core.agent import Agent


class Scaled(NamedTuple):
    """What is sent: a change over the norm of its round, and whether it was shorter than that."""

    change: Message
    shorter: Array  # half of `bit`, or minus that


class AdaptiveClip(Clips):
    r"""`Clip` to a norm that follows a quantile of the lengths of messages (Andrew et al., 2021).

    Agents send $m \min(1/C_t, 1/|m|)$ and one bit, whether $|m| \le C_t$. The hub multiplies by $C_t$ again, and from
    the mean $b_t$ of the bits takes

    $$ C_{t+1} = C_t \exp(-\eta (b_t - \gamma)) $$

    Args:
        norm: $C_0$, the clip of the first round.
        quantile: $\gamma$, the part of messages that are not to be clipped.
        rate: $\eta$, how fast the clip follows; larger is faster and noisier.
        bit: how long the bit is, beside a message of norm 1.

    The bit is a part of the message: noise after the clip is added to it as well, and is scaled by
    $\sqrt{1 + \text{bit}^2/4}$, the length of both together, so that an account of privacy counts both. What it spends
    is that factor: 0.5 % more noise for a bit of 0.2. Stands first in a channel, with a fusion center.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [1.0], [2.0], [3.0]], noise=0.5)
    >>> seen = {"clip": lambda state: state.hub.norm}
    >>> channel = fp.channel.AdaptiveClip(100.0, quantile=0.5)
    >>> run = fp.run(fp.FedAvg(step=0.1), quad, rounds=200, channel=channel, metrics=seen)
    >>> bool(0.05 < run.metrics["clip"][0, -1] < 0.3)
    True
    """

    lossless = False
    keeps_scales = False
    embeds = True
    in_place = True
    adapts = True

    norm: float
    quantile: float = 0.5
    rate: float = 0.2
    bit: float = 0.2

    def check(self) -> None:
        name = type(self).__name__
        check_value(name, "norm", self.norm, {"low": 0.0, "strict": True})
        check_value(name, "rate", self.rate, {"low": 0.0, "strict": True})
        check_value(name, "bit", self.bit, {"low": 0.0, "strict": True})
        if not 0 < self.quantile < 1:
            raise FedpointError(f"{name}: quantile must lie between 0 and 1, got {self.quantile}")

    def around(self, algorithm: Algorithm) -> Algorithm:
        return InNorms(algorithm, norm=self.norm, quantile=self.quantile, rate=self.rate, bit=self.bit)

    def encode(self, message: Message, memory: State, agent: Agent) -> tuple[Tree, State]:
        assert isinstance(message, Scaled)
        square = sum(jnp.sum(a * a) for a in jax.tree.leaves(message.change) if real(a))
        short = 1.0 / jnp.maximum(1.0, jnp.sqrt(square))
        change = jax.tree.map(lambda a: clipped(a, short, square) if real(a) else a, message.change)
        bit = jnp.where(square <= 1.0, 0.5 * self.bit, -0.5 * self.bit).astype(message.shorter.dtype)
        return Scaled(change, bit), memory

    def omega(self, message: Message) -> float:
        return 1.0

    def longest(self, message: Message) -> Number:
        return jnp.sqrt(1.0 + 0.25 * self.bit**2)


class Measured(NamedTuple):
    """A state of the method inside, and the norm: of this round at the hub, of the last one at an agent."""

    inner: State
    norm: Array


class InNorms(Wrapped):
    """A method whose messages are counted in norms that its hub keeps: what an adaptive clip makes of it."""

    norm: float
    quantile: float
    rate: float
    bit: float

    def init(self, w: Model) -> tuple[State, State]:
        hub, memory = self.inner.init(w)
        norm = jnp.asarray(self.norm, jnp.result_type(*jax.tree.leaves(w)))
        return Measured(hub, norm), Measured(memory, norm)

    def say(self, hub: State, row: Row) -> State:
        return Measured(self.inner.say(hub.inner, row), hub.norm)

    def begun_from(self, heard: State, memory: State) -> Model:
        return self.inner.begun_from(heard.inner, memory.inner)

    def local(self, heard: State, memory: State, agent: Agent) -> tuple[Message, State]:
        message, kept = self.inner.local(heard.inner, memory.inner, agent)
        return Scaled(_times(message, 1.0 / heard.norm), jnp.zeros_like(heard.norm)), Measured(kept, heard.norm)

    def acknowledge(self, memory: State, sent: Message, credited: Message) -> State:
        meant, arrived = (_times(m.change, memory.norm) for m in (sent, credited))
        return Measured(self.inner.acknowledge(memory.inner, meant, arrived), memory.norm)

    def combine(self, hub: State, inbox: Inbox) -> State:
        mean, total = (_times(m.change, hub.norm) for m in (inbox.mean, inbox.total))
        shorter = 0.5 + inbox.mean.shorter / self.bit  # with public weights, not over those that were heard
        norm = hub.norm * jnp.exp(-self.rate * (shorter - self.quantile))
        inner = self.inner.combine(hub.inner, inbox._replace(mean=mean, total=total))
        return Measured(inner, norm.astype(hub.norm.dtype))

    def settle(self, hub: State, memory: State) -> State:
        return Measured(self.inner.settle(hub.inner, memory.inner), memory.norm)

    def read(self, hub: State, memory: State) -> Model:
        return self.inner.read(hub.inner, memory.inner)

    def remembered(self, heard: State, memory: State, arrived: Message) -> State | None:
        return None

    def invariants(self, hub: State, memory: State, p: np.ndarray) -> dict[str, State]:
        return self.inner.invariants(hub.inner, memory.inner, p)


def _times(message: Message, factor: Array) -> Message:
    return jax.tree.map(lambda a: a * factor.astype(a.dtype) if real(a) else a, message)
