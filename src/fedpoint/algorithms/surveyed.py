"""What methods share whose agents are asked twice in a round: for their fields first, then for local steps."""

from __future__ import annotations

from typing import NamedTuple

from fedpoint.core.agent import Agent
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import Row
from fedpoint.core.types import Message, Model, State
from fedpoint.core.wrapped import Wrapped


class Surveyed(NamedTuple):
    """The model, and the mean of the agents' fields there."""

    w: Model
    g: Model


class Mimicked(NamedTuple):
    """The same, and a momentum of such means."""

    w: Model
    g: Model
    m: Model


class FieldSurvey(Wrapped):
    """The first exchange of a round: agents send their fields at the hub's model, the hub keeps the mean."""

    def survey(self) -> None:
        return None

    def say(self, hub: Surveyed | Mimicked, row: Row) -> Model:
        return hub.w

    def begun_from(self, w: Model, memory: State) -> Model:
        return w

    def local(self, w: Model, memory: State, agent: Agent) -> tuple[Message, State]:
        steps = self.inner.local_steps
        assert steps is not None
        return agent.field(w, agent.steps(steps)), memory  # a sample of its own, after those of the local steps

    def combine(self, hub: Surveyed | Mimicked, inbox: Inbox) -> Surveyed | Mimicked:
        return hub._replace(g=inbox.mean)
