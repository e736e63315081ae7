"""A method around another: what it does not change, it forwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from fedpoint.core.algorithm import Algorithm, Outcomes
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import Row
from fedpoint.core.record import with_leaves
from fedpoint.core.steps import LocalSteps, Step
from fedpoint.core.types import Message, Model, Number, State

if TYPE_CHECKING:
    from fedpoint.core.agent import Agent
    from fedpoint.graphs.network import Network
    from fedpoint.problems.base import Problem
    from fedpoint.timing.base import Timing


class Wrapped(Algorithm):
    """Subclass it and replace what your wrapper changes, calling `self.inner` for the rest. Per-agent steps, epochs,
    validity, cost and what is known of the draws are those of the inner method, at any depth.

    Args:
        inner: the method that is wrapped.

    >>> import fedpoint as fp
    >>> class Halved(fp.Wrapped):
    ...     def combine(self, hub, inbox):
    ...         return self.inner.combine(hub, inbox._replace(mean=0.5 * inbox.mean))
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [2.0]])
    >>> fp.run(Halved(fp.FedAvg(step=1.0)), quad, rounds=2).model
    array([[0.75]])
    """

    catalogued = False

    inner: Algorithm

    # Hyper-parameters that the house asks for.

    @property
    def step(self) -> Step | None:  # type: ignore[override]
        return self.inner.step

    @property
    def local_steps(self) -> LocalSteps | None:  # type: ignore[override]
        return self.inner.local_steps

    # The update.

    def init(self, w: Model) -> tuple[State, State]:
        return self.inner.init(w)

    def say(self, hub: State, row: Row) -> State:
        return self.inner.say(hub, row)

    def local(self, heard: State, memory: State, agent: Agent) -> tuple[Message, State]:
        return self.inner.local(heard, memory, agent)

    def begun_from(self, heard: State, memory: State) -> Model:
        return self.inner.begun_from(heard, memory)

    def combine(self, hub: State, inbox: Inbox) -> State:
        return self.inner.combine(hub, inbox)

    def settle(self, hub: State, memory: State) -> State:
        return self.inner.settle(hub, memory)

    def read(self, hub: State, memory: State) -> Model:
        return self.inner.read(hub, memory)

    def hello(self, w: Model) -> Message:
        return self.inner.hello(w)

    def survey(self) -> Algorithm | None:
        """The inner method's, with the same around it."""
        asked = self.inner.survey()
        return None if asked is None else with_leaves(self, {"inner": asked})

    @property
    def times(self) -> int:  # type: ignore[override]
        return self.inner.times

    def check_one_exchange(self) -> None:
        """Refuse an inner method that asks agents more than once in a round, of wrappers that count exchanges."""
        if self.inner.survey() is not None:
            title = self.inner.card.title
            raise FedpointError(
                f"{self.card.title}: {title} asks agents more than once in a round, so it cannot be wrapped: use "
                "Scaffold"
            )

    def acknowledge(self, memory: State, sent: Message, credited: Message) -> State:
        return self.inner.acknowledge(memory, sent, credited)

    def remembered(self, heard: State, memory: State, arrived: Message) -> State | None:
        return self.inner.remembered(heard, memory, arrived)

    def base(self, heard: State) -> Model:
        return self.inner.base(heard)

    def sends_changes(self) -> bool:
        return self.inner.sends_changes()

    # What it tells.

    @property
    def unbounded(self) -> bool:  # type: ignore[override]
        return self.inner.unbounded

    @property
    def proximal(self) -> bool:  # type: ignore[override]
        return self.inner.proximal

    @property
    def full(self) -> bool:  # type: ignore[override]
        return self.inner.full

    @property
    def at_agents(self) -> bool:  # type: ignore[override]
        return self.inner.at_agents

    @property
    def personal(self) -> bool:  # type: ignore[override]
        return self.inner.personal

    @property
    def coupled(self) -> bool:  # type: ignore[override]
        return self.inner.coupled

    @property
    def mixes(self) -> bool:  # type: ignore[override]
        return self.inner.mixes

    @property
    def directed(self) -> bool:  # type: ignore[override]
        return self.inner.directed

    @property
    def goal(self) -> str:  # type: ignore[override]
        return self.inner.goal

    @property
    def chains(self) -> int:  # type: ignore[override]
        return self.inner.chains

    def samples(self, steps: int) -> int:
        return self.inner.samples(steps)

    def counts_samples(self) -> bool:
        return self.inner.counts_samples()

    def invalid_under(self, timing: Timing) -> str:
        return self.inner.invalid_under(timing)

    def outcomes(self) -> Outcomes | None:
        return self.inner.outcomes()

    def gradient_outcomes(self) -> Outcomes | None:
        return self.inner.gradient_outcomes()

    def given(self, value: Number) -> Self:
        return with_leaves(self, {"inner": self.inner.given(value)})

    def adaptive(self) -> bool:
        return self.inner.adaptive()

    def why_no_forecast(self) -> str:
        return self.inner.why_no_forecast()

    def alike(self) -> bool:
        return self.inner.alike()

    def scheduled(self) -> bool:
        return self.inner.scheduled()

    def aim(self, problem: Problem, network: Network | None) -> Model | None:
        return self.inner.aim(problem, network)

    def why_no_aim(self, problem: Problem, network: Network | None) -> str:
        return self.inner.why_no_aim(problem, network)

    def advice(self, problem: Problem, network: Network | None, exact: bool) -> str:
        return self.inner.advice(problem, network, exact)

    def longer(self, factor: float) -> Self | None:
        inner = self.inner.longer(factor)
        return None if inner is None else with_leaves(self, {"inner": inner})

    def farther(self, factor: float) -> Self | None:
        inner = self.inner.farther(factor)
        return None if inner is None else with_leaves(self, {"inner": inner})

    def work_of_a_step(self) -> float | np.ndarray:
        return self.inner.work_of_a_step()

    def invariants(self, hub: State, memory: State, p: np.ndarray) -> dict[str, State]:
        return self.inner.invariants(hub, memory, p)

    def conserves_a_sum(self) -> bool:
        return self.inner.conserves_a_sum()

    def divides(self) -> bool:
        return self.inner.divides()

    def innermost(self) -> Algorithm:
        return self.inner.innermost()

    def own_kind(self) -> bool:
        return super().own_kind() or self.inner.own_kind()
