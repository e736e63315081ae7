"""How long is a step, and how many does an agent take?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import Count, Positive
from fedpoint.core.random import Row
from fedpoint.core.record import PerAgent, Record
from fedpoint.core.types import Number


class StepSchedule(Record):
    """A step that changes. Subclass it and write `value` for one of your own.

    Arguments of methods:
        t: which gradient step, from 0 on, counted over all rounds; an array gives an array.
    """

    def value(self, t: Number) -> Number:
        """The length of gradient step t, counted over all rounds."""
        raise FedpointError(f"{type(self).__name__} does not say how long a step is: define value(self, t)")


def at(step: Step, t: Number) -> Number:
    """The step's length at gradient step t (round x E + e): a number, or a schedule's value.

    Args:
        step: a number, or a schedule of steps.
        t: the gradient step: round x local steps + local step, from 0 on.
    """
    return step.value(t) if isinstance(step, StepSchedule) else step


class InverseTime(StepSchedule):
    """The step schedule s_t = scale / (offset + t), t counting gradient steps.

    Args:
        scale: the numerator.
        offset: what is added to t; the step is scale/offset at first.

    >>> InverseTime(scale=2.0, offset=8.0).value(0)
    0.25
    """

    scale: float
    offset: float

    @classmethod
    @checked
    def lecture004(cls, strong: Positive, smooth: Positive, local_steps: Count) -> InverseTime:
        """s_t = 2 / (alpha (gamma + t)), gamma = max(8 beta / alpha, E): theorem 1 of lecture 004 (Li et al., 2020).

        Args:
            strong: alpha, the modulus of strong convexity.
            smooth: beta, the Lipschitz constant of gradients.
            local_steps: E.
        """
        return cls(scale=2.0 / strong, offset=max(8.0 * smooth / strong, float(local_steps)))

    def value(self, t: Number) -> Number:
        return self.scale / (self.offset + t)

    def check(self) -> None:
        if not (self.scale > 0 and self.offset > 0):
            raise FedpointError(f"InverseTime needs scale > 0 and offset > 0, got {self.scale} and {self.offset}")


class Exponential(StepSchedule):
    """The step schedule s_t = initial * factor^t, t counting gradient steps.

    Args:
        initial: the first step, s_0.
        factor: by which each step is multiplied, between 0 and 1 for a step that decays.
    """

    initial: float
    factor: float

    def value(self, t: Number) -> Number:
        return self.initial * jnp.power(self.factor, t)

    def check(self) -> None:
        if not (self.initial > 0 and 0 < self.factor <= 1):
            raise FedpointError(f"Exponential needs initial > 0 and 0 < factor <= 1, got {self.initial}, {self.factor}")


class Scheduled(StepSchedule):
    """Any function of the gradient step t that JAX can trace: optax's schedules, or the user's own.

    Args:
        function: t -> step, which JAX can trace.
    """

    function: Callable[[Number], Number]

    def value(self, t: Number) -> Number:
        return self.function(t)


class ByRound(StepSchedule):
    """A schedule of rounds: all local steps of a round are as long as `schedule` says for its number.

    Args:
        schedule: any schedule, whose t counts rounds then.
        local_steps: those of the method, the same for all agents.

    >>> import optax
    >>> cosine = Scheduled(optax.cosine_decay_schedule(0.1, decay_steps=100))
    >>> by_round = ByRound(cosine, local_steps=5)
    >>> bool(by_round.value(251) == cosine.value(50))
    True
    """

    schedule: StepSchedule
    local_steps: int

    def value(self, t: Number) -> Number:
        return self.schedule.value(t // self.local_steps)

    def check(self) -> None:
        if self.local_steps < 1:
            raise FedpointError(f"ByRound needs local_steps of at least 1, got {self.local_steps}")


class Scaled(StepSchedule):
    """`factor` times another schedule.

    Args:
        schedule: the schedule to scale.
        factor: by which its steps are multiplied.
    """

    schedule: StepSchedule
    factor: float

    def value(self, t: Number) -> Number:
        return self.factor * self.schedule.value(t)

    def check(self) -> None:
        if not 0 < self.factor < np.inf:
            raise FedpointError(f"Scaled needs a factor above 0, got {self.factor}")


def scaled(step: Step | PerAgent, factor: float) -> Step | PerAgent:
    """A step so many times as long: a number, one per agent, or a schedule.

    Args:
        step: a number, one per agent, or a schedule.
        factor: by which it is multiplied.

    >>> scaled(InverseTime(scale=2.0, offset=8.0), 0.5).value(0)
    0.125
    """
    if isinstance(step, StepSchedule):
        return Scaled(step, factor)
    if isinstance(step, PerAgent):
        return PerAgent(factor * step.values)
    return factor * (np.asarray(step, float) if isinstance(step, np.ndarray) else step)


class Epochs(Record):
    """As many local steps as `count` passes over the agent's own data take, in its batches.

    Args:
        count: passes over the agent's data in a round, at least 1.
    """

    count: int

    def check(self) -> None:
        if self.count < 1:
            raise FedpointError(f"Epochs needs a count of at least 1, got {self.count}")


class Stragglers(Record):
    """`steps` local steps, but each agent is a straggler with probability `fraction` in each round.

    A straggler stops after a uniform number of steps in 1 .. steps (Li et al., FedProx, 2020).

    Args:
        steps: local steps of an agent that does not straggle.
        fraction: the probability of straggling, between 0 and 1.
    """

    steps: int
    fraction: float

    def check(self) -> None:
        if self.steps < 1 or not 0 <= self.fraction <= 1:
            raise FedpointError(
                f"Stragglers needs steps >= 1 and 0 <= fraction <= 1, got {self.steps}, {self.fraction}"
            )

    def draw(self, row: Row) -> Array:
        """The local steps of one agent in one round.

        Args:
            row: its randomness.
        """
        late = row.uniform() < self.fraction
        return jnp.where(late, 1 + row.integers(self.steps, first=1), self.steps)


Step: TypeAlias = Number | StepSchedule  # one for all, or one per agent
LocalSteps: TypeAlias = Number | Epochs | Stragglers


def most_steps(local_steps: LocalSteps | PerAgent | None) -> np.ndarray:
    """() or (K,): the most local steps of a round, from the field of a method, bound or not; 1 where unknown.

    Args:
        local_steps: the `local_steps` of a method.
    """
    if isinstance(local_steps, Stragglers):
        local_steps = local_steps.steps
    elif isinstance(local_steps, PerAgent):
        local_steps = local_steps.values
    return np.asarray(1 if local_steps is None else local_steps)


def chances_of_steps(local_steps: LocalSteps | PerAgent | None, agents: int) -> list[tuple[float, np.ndarray]]:
    """Pairs of a probability and numbers of local steps (K,): one pair unless some agents straggle.

    Args:
        local_steps: the `local_steps` of a method, bound to a problem.
        agents: K.
    """
    if not isinstance(local_steps, Stragglers):
        return [(1.0, np.broadcast_to(most_steps(local_steps).astype(int), (agents,)))]
    late = local_steps.fraction / local_steps.steps
    chances = [
        (late + (1 - local_steps.fraction) * (n == local_steps.steps), n) for n in range(1, local_steps.steps + 1)
    ]
    return [(chance, np.full(agents, n)) for chance, n in chances if chance > 0]


__all__ = ["Epochs", "Exponential", "InverseTime", "PerAgent", "Scaled", "Scheduled", "StepSchedule", "Stragglers"]
