"""How long is a step, and how many does an agent take?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fedpoint.core.record import record
from fedpoint.errors import FedpointError


def at(step: Any, t: Any) -> Any:
    """The step's length at gradient step t (round x E + e): a number, or a schedule's value."""
    return step.value(t) if hasattr(step, "_leaves") else step


@record
class InverseTime:
    """s_t = scale / (offset + t), t counting gradient steps.

    >>> InverseTime(scale=2.0, offset=8.0).value(0)
    0.25
    """

    scale: float
    offset: float

    @classmethod
    def lecture004(cls, strong: float, smooth: float, local_steps: int) -> InverseTime:
        """s_t = 2 / (alpha (gamma + t)), gamma = max(8 beta / alpha, E): theorem 1 of lecture 004 (Li et al., 2020)."""
        return cls(scale=2.0 / strong, offset=max(8.0 * smooth / strong, float(local_steps)))

    def value(self, t):
        return self.scale / (self.offset + t)

    def check(self):
        if not (self.scale > 0 and self.offset > 0):
            raise FedpointError(f"InverseTime needs scale > 0 and offset > 0, got {self.scale} and {self.offset}")


@record
class Exponential:
    """s_t = initial * factor^t, t counting gradient steps."""

    initial: float
    factor: float

    def value(self, t):
        return self.initial * jnp.power(self.factor, t)

    def check(self):
        if not (self.initial > 0 and 0 < self.factor <= 1):
            raise FedpointError(f"Exponential needs initial > 0 and 0 < factor <= 1, got {self.initial}, {self.factor}")


@record
class Scheduled:
    """Any function of the gradient step t that JAX can trace: optax's schedules, or the user's own."""

    function: Callable

    def value(self, t):
        return self.function(t)


@record
class Epochs:
    """As many local steps as `count` passes over the agent's own data take, in its batches."""

    count: int

    def check(self):
        if self.count < 1:
            raise FedpointError(f"Epochs needs a count of at least 1, got {self.count}")


@record
class Stragglers:
    """`steps` local steps, but each agent is a straggler with probability `fraction` in each round.

    A straggler stops after a uniform number of steps in 1 .. steps (Li et al., FedProx, 2020).
    """

    steps: int
    fraction: float

    def check(self):
        if self.steps < 1 or not 0 <= self.fraction <= 1:
            raise FedpointError(
                f"Stragglers needs steps >= 1 and 0 <= fraction <= 1, got {self.steps}, {self.fraction}"
            )

    def draw(self, row):
        late = row.uniform() < self.fraction
        return jnp.where(late, 1 + row.integers(self.steps, first=1), self.steps)
