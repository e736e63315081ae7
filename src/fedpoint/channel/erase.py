"""Messages that get lost: those that arrive stand for the others."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from fedpoint.channel.base import Channel, real
from fedpoint.core.agent import Agent
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Message, Number, State, Tree


class Erase(Channel):
    r"""A message is lost with this probability $1 - q$, each by its own coin; what arrives is divided by $q$.

    $$E\,C(x) = x, \qquad E[C(x) C(x)^\top] = x x^\top / q$$

    An agent knows whether its message arrived, and its memories count that. Bytes are those that were sent.

    Args:
        probability: that a message is lost: at least 0, below 1.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> run = fp.run(fp.Scaffold(step=0.1), quad, rounds=600, channel=fp.channel.Erase(0.3))
    >>> bool(run.error[0, -1] < 1e-20)
    True
    """

    lossless = False
    keeps_scales = False
    embeds = True
    in_place = True
    structural = ("probability",)

    probability: float

    def check(self) -> None:
        if not 0 <= self.probability < 1:
            raise FedpointError(f"Erase: probability must be at least 0 and below 1, got {self.probability}")

    def gain(self) -> float:
        return 1.0 / (1.0 - self.probability)

    def longest_after(self, length: Number, message: Message) -> Number:
        return length * self.gain()

    def encode(self, message: Message, memory: State, agent: Agent) -> tuple[Tree, State]:
        arrives = 1.0 - self.probability
        factor = jnp.where(agent.uniform(jnp.zeros(())) < arrives, 1.0 / arrives, 0.0)
        return jax.tree.map(lambda a: a * factor.astype(a.dtype) if real(a) else a, message), memory

    def scatter(self, second: Array, like: Message, share: Number) -> Array | None:
        return self.omega(like) * second[1:, 1:]

    def omega(self, message: Message) -> float:
        return self.probability / (1.0 - self.probability)
