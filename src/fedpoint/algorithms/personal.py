"""Parts of a model that stay at their agent: what `share=` of an experiment makes of a method when it is bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedpoint.algorithms.carried import Carried
from fedpoint.algorithms.section import Advanced, Section
from fedpoint.core.agent import Agent, descend
from fedpoint.core.algorithm import Algorithm, Card
from fedpoint.core.errors import FedpointError
from fedpoint.core.record import with_leaves
from fedpoint.core.selection import Only, Split, selection
from fedpoint.core.steps import Step, StepSchedule, at
from fedpoint.core.types import Message, Model, Number, State
from fedpoint.core.wrapped import Wrapped

if TYPE_CHECKING:
    from fedpoint.graphs.network import Network
    from fedpoint.problems.base import Problem


class Own(NamedTuple):
    """What an agent remembers of the inner method, and its own parts of the model."""

    memory: State
    parts: Model


class Personal(Wrapped):
    r"""A method that knows the shared parts s of a model w = (s, o) only; o stays at its agent, a part of its memory.

    The inner method runs on fields of s, at the agent's own o_k. These move along with its local steps, by the same
    sampled field,
    $$o_k \leftarrow o_k - \mu\, \hat g^{o}_k(s, o_k; z),$$
    or take `own_steps` steps of their own first and rest while s moves.
    """

    split: Split
    own_steps: int | None = None
    own_step: Step | None = None
    carried: Split | None = None  # of the own parts: what is learnt, apart from a state that moves by itself
    still: bool = False  # nothing moves: what a survey asks

    personal = True
    exact_moments = True
    goal = "each agent's best own parts beside the best shared ones"

    @property
    def card(self) -> Card:  # type: ignore[override]
        return self.inner.card

    def check(self) -> None:
        inner, title = self.inner, self.inner.card.title
        if inner.chains > 1:
            raise FedpointError(
                f"share=: {title} runs models side by side, so its messages are not changes of one model"
            )
        if inner.coupled or inner.proximal:
            raise FedpointError(
                f"share=: {title} solves for a whole model, and cannot keep parts of it at its agents: use a method "
                "with local steps, such as FedAvg, FedProx or Scaffold"
            )
        if self.own_step is None and not self.still and (inner.step is None or np.any(inner.work_of_a_step() != 1.0)):
            raise FedpointError(
                f"share=: {title} has no step for what stays at the agents: give one, fp.only(..., own_step=0.1)"
            )

    # Where the model is.

    def init(self, w: Model) -> tuple[State, State]:
        shared, parts = self.split.halves(w)
        hub, memory = self.inner.init(shared)
        return hub, Own(memory, parts)

    def begun_from(self, heard: State, memory: Own) -> Model:
        return self.split.whole(self.inner.begun_from(heard, memory.memory), memory.parts)

    def read(self, hub: State, memory: Own) -> Model:
        return self.split.whole(self.inner.read(hub, memory.memory), memory.parts)

    def hello(self, w: Model) -> Message:
        return self.inner.hello(self.split.halves(w)[0])

    def settle(self, hub: State, memory: Own) -> Own:
        return Own(self.inner.settle(hub, memory.memory), memory.parts)

    def acknowledge(self, memory: Own, sent: Message, credited: Message) -> Own:
        return Own(self.inner.acknowledge(memory.memory, sent, credited), memory.parts)

    def remembered(self, heard: State, memory: Own, arrived: Message) -> None:
        return None  # nobody else hears of its parts

    def survey(self) -> Algorithm | None:
        asked = self.inner.survey()
        return None if asked is None else dataclasses.replace(with_leaves(self, {"inner": asked}), still=True)

    def invariants(self, hub: State, memory: Own, p: np.ndarray) -> dict[str, State]:
        return self.inner.invariants(hub, memory.memory, p)

    # A round of an agent.

    def local(self, heard: State, memory: Own, agent: Agent) -> tuple[Message, Own]:
        parts, first = memory.parts, self.own_steps or 0
        if first and not self.still:
            parts = self._alone(self.inner.begun_from(heard, memory.memory), parts, agent)
        moves = not self.still and not first
        section = Section(agent, self.split, parts, first, self._advance(agent) if moves else None)
        message, inner = self.inner.local(heard, memory.memory, section)  # type: ignore[arg-type]
        return message, Own(inner, section.finished())

    def _alone(self, shared: Model, parts: Model, agent: Agent) -> Model:
        """The agent's own parts after their own steps, where the hub's model is held."""
        assert self.own_steps is not None
        moved = self._advance(agent)

        def advance(o: Model, e: Number) -> Model:
            return moved(o, self.split.halves(agent.field(self.split.whole(shared, o), e))[1], e)

        return descend(agent, parts, self.own_steps, advance)

    def _advance(self, agent: Agent) -> Advanced:
        """The own parts after a step along their field."""
        rate = self._rate(agent)

        def moved(parts: Model, slope: Model, e: Number) -> Model:
            if self.carried is None:
                return parts - rate(e) * slope
            learnt, state = self.carried.halves(slope)
            return parts - self.carried.whole(rate(e) * learnt, state)

        return moved

    def _rate(self, agent: Agent) -> Callable[[Number], Number]:
        """The length of an own step, by its number."""
        own = self.inner.step if self.own_step is None else self.own_step
        assert own is not None  # checked
        count: Number = 1 if self.own_steps is None else self.own_steps
        if self.own_steps is None and self.inner.local_steps is not None:
            count = agent.steps(self.inner.local_steps)
        return lambda e: at(own, agent.round * count + e)

    # What it tells.

    def sends_changes(self) -> bool:
        return self.inner.sends_changes()

    def samples(self, steps: int) -> int:
        return self.inner.samples(steps) + (self.own_steps or 0)

    def alike(self) -> bool:
        return self.own_steps is None and self.inner.alike()

    def scheduled(self) -> bool:
        return self.inner.scheduled() or isinstance(self.own_step, StepSchedule)

    def averages_descent(self) -> bool:
        return False  # not of the whole model

    def aim(self, problem: Problem, network: Network | None) -> Model | None:
        """(K, ...): each agent's model where sum_k p_k f_k(s, o_k) is least: the aggregate of the shared parts' fields
        and each field of own parts vanish."""
        fields = problem.linear_fields()
        return None if fields is None else least(problem, self.split, *fields)

    def why_no_aim(self, problem: Problem, network: Network | None) -> str:
        if problem.linear:
            return "the agents' best own parts are not unique"
        return "the joint optimum of shared and own parts is known only for linear problems"


def least(problem: Problem, split: Split, A: np.ndarray, b: np.ndarray) -> Model | None:
    """(K, ...): models (s, o_k) with A_k^oo o_k + A_k^os s = b_k^o for every agent, sum_k p_k (A_k w_k - b_k)^s = 0.

    Own parts are eliminated: what is left for s is the Schur complement sum_k p_k (A^ss - A^so (A^oo)^-1 A^os)_k.
    """
    K, d = b.shape
    s = split.indices()
    o = np.setdiff1d(np.arange(d), s)
    try:
        inverse = np.linalg.inv(A[:, o[:, None], o])
        slope, offset = (
            -inverse @ A[:, o[:, None], s],
            np.einsum("kij,kj->ki", inverse, b[:, o]),
        )  # o = offset + slope s
        rest = A[:, s[:, None], s] + A[:, s[:, None], o] @ slope
        right = b[:, s] - np.einsum("kij,kj->ki", A[:, s[:, None], o], offset)
        shared = np.linalg.solve(np.tensordot(problem.weights, rest, 1), problem.weights @ right)
    except np.linalg.LinAlgError:
        return None
    found = np.empty((K, d))
    found[:, s], found[:, o] = shared, offset + slope @ shared
    return found.reshape(K, *np.shape(problem.start()))


def sharing(
    algorithm: Algorithm, share: Only | str | Sequence[str] | None, model: Model, carried: Split | None = None
) -> Algorithm:
    """The method that shares only these parts of a model; None: all. carried: what of the model is learnt, where there
    is a state besides: it is averaged where it is shared, and else stays with the agent's own parts."""
    if share is None:
        return algorithm if carried is None else Carried(algorithm, split=carried)
    which = selection(share)
    split = which.split("share=:", model)
    if not split.count:
        raise FedpointError("share=: nothing of the model is shared: agents would learn alone; name what they share")
    if split.count == split.size:
        return sharing(algorithm, None, model, carried)
    own_step, moved = which.own_step, None
    if carried is not None:
        shared, own = carried.within(split, model)
        algorithm = algorithm if shared.count == shared.size else Carried(algorithm, split=shared)
        moved = None if own.count == own.size else own
        own_step = 1.0 if not own.count and own_step is None else own_step
    return Personal(algorithm, split=split, own_steps=which.own_steps, own_step=own_step, carried=moved)


__all__ = ["Personal"]
