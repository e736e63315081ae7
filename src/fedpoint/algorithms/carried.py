"""Statistics that a model carries along, such as those of BatchNorm: what `state=` of a problem makes of a method."""

from __future__ import annotations

import dataclasses

from fedpoint.algorithms.section import Section
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm, Card
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import Row
from fedpoint.core.record import with_leaves
from fedpoint.core.selection import Split
from fedpoint.core.types import Message, Model, State
from fedpoint.core.vector import where
from fedpoint.core.wrapped import Wrapped


class Carried(Wrapped):
    r"""A method that learns the parameters w of a model (w, s); its statistics s move by themselves and are averaged.

    The problem's field of s is minus the change of s, so that a step of length one makes it. The hub keeps a mean:
    $$s \leftarrow s + \frac{\sum_k v_k (s_k - s)}{\sum_k v_k},$$
    whatever the inner method does with w.
    """

    split: Split  # what is learnt is meant
    still: bool = False  # nothing moves: what a survey asks
    exact_moments = False

    @property
    def card(self) -> Card:  # type: ignore[override]
        return self.inner.card

    def check(self) -> None:
        inner, title = self.inner, self.inner.card.title
        if inner.chains > 1 or inner.coupled or inner.proximal or inner.mixes:
            raise FedpointError(
                f"{title} cannot train a network that has a state, such as batch statistics: use a method with local "
                "steps, such as FedAvg, FedProx or Scaffold"
            )

    def init(self, w: Model) -> tuple[State, State]:
        learnt, state = self.split.halves(w)
        hub, memory = self.inner.init(learnt)
        return (hub, state), memory

    def say(self, hub: State, row: Row) -> State:
        return self.inner.say(hub[0], row), hub[1]

    def begun_from(self, heard: State, memory: State) -> Model:
        return self.split.whole(self.inner.begun_from(heard[0], memory), heard[1])

    def local(self, heard: State, memory: State, agent: Agent) -> tuple[Message, State]:
        moved = None if self.still else lambda state, change, e: state - change
        section = Section(agent, self.split, heard[1], 0, moved)
        message, memory = self.inner.local(heard[0], memory, section)  # type: ignore[arg-type]
        return (message, section.finished() - heard[1]), memory

    def combine(self, hub: State, inbox: Inbox) -> State:
        (mean, change), (total, _) = inbox.mean, inbox.total
        moved = hub[1] + change / where(inbox.weight > 0, inbox.weight, 1.0)
        return self.inner.combine(hub[0], inbox._replace(mean=mean, total=total)), moved

    def settle(self, hub: State, memory: State) -> State:
        return self.inner.settle(hub[0], memory)

    def read(self, hub: State, memory: State) -> Model:
        return self.split.whole(self.inner.read(hub[0], memory), hub[1])

    def base(self, heard: State) -> Message:
        return self.inner.base(heard[0]), heard[1]

    def acknowledge(self, memory: State, sent: Message, credited: Message) -> State:
        return self.inner.acknowledge(memory, sent[0], credited[0])

    def remembered(self, heard: State, memory: State, arrived: Message) -> State | None:
        return self.inner.remembered(heard[0], memory, arrived[0])

    def survey(self) -> Algorithm | None:
        asked = self.inner.survey()
        return None if asked is None else dataclasses.replace(with_leaves(self, {"inner": asked}), still=True)

    def invariants(self, hub: State, memory: State, p: object) -> dict[str, State]:
        return self.inner.invariants(hub[0], memory, p)  # type: ignore[arg-type]

    def why_no_forecast(self) -> str:
        return "the network has a state, such as batch statistics, which follows no field and so cannot be forecast"

    def averages_descent(self) -> bool:
        return False
