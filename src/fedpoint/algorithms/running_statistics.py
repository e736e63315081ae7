"""Parts of a model that are no parameters but statistics of what was seen, such as those of batch normalisation.

The field of a statistic s is s - s', where s' is its value after a step: nothing is left of it where it fits. A method's
step says nothing about it; at an agent it takes steps of length one, and the hub averages what agents have seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedpoint.algorithms.section import Section
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm, Card
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import Row
from fedpoint.core.record import with_leaves
from fedpoint.core.selection import Only, Split, which_of
from fedpoint.core.types import Message, Model, Number, State
from fedpoint.core.wrapped import Wrapped


class Beside(NamedTuple):
    """What belongs to the inner method, and the same of the statistics."""

    inner: State
    statistics: Model


def stepped(statistics: Model, field: Model, e: Number) -> Model:
    """Statistics after a step."""
    return statistics - field


class RunningStatistics(Wrapped):
    r"""A method that knows the parameters of a model only; running statistics s go beside them,
    $$s \leftarrow s - (s - s'(y; z)) \ \text{in every local step}, \qquad
      s^+ = s + \frac{\sum_k v_k (s_k - s)}{\sum_k v_k} \ \text{at the hub:}$$
    a mean of what the agents of a round have seen, so that a variance stays one.
    """

    split: Split  # parameters, and the rest: the statistics
    still: bool = False  # nothing moves: what a survey asks

    exact_moments = True

    @property
    def card(self) -> Card:  # type: ignore[override]
        return self.inner.card

    @property
    def merges(self) -> bool:  # type: ignore[override]
        return self.inner.merges

    def check(self) -> None:
        inner, title = self.inner, self.inner.card.title
        if inner.chains > 1 or inner.coupled or inner.proximal or inner.at_agents:
            raise FedpointError(
                f"{title} cannot average running statistics, which the model has: use a method with local steps and a "
                'hub, such as FedAvg, FedProx or Scaffold, or keep them at their agents: share=fp.all_but("bn*")'
            )

    def init(self, w: Model) -> tuple[State, State]:
        learnt, statistics = self.split.halves(w)
        hub, memory = self.inner.init(learnt)
        return Beside(hub, statistics), memory

    def say(self, hub: Beside, row: Row) -> State:
        return Beside(self.inner.say(hub.inner, row), hub.statistics)

    def begun_from(self, heard: Beside, memory: State) -> Model:
        return self.split.whole(self.inner.begun_from(heard.inner, memory), heard.statistics)

    def read(self, hub: Beside, memory: State) -> Model:
        return self.split.whole(self.inner.read(hub.inner, memory), hub.statistics)

    def base(self, heard: Beside) -> Model:
        raise FedpointError(f"{self.card.title}: running statistics are averaged by a fusion center, not on a network")

    def sends_changes(self) -> bool:
        return False

    def local(self, heard: Beside, memory: State, agent: Agent) -> tuple[Message, State]:
        motion = None if self.still else stepped
        section = Section(agent, self.split, heard.statistics, 0, motion, "running statistics")
        message, memory = self.inner.local(heard.inner, memory, section)  # type: ignore[arg-type]
        return Beside(message, section.finished() - heard.statistics), memory

    def combine(self, hub: Beside, inbox: Inbox) -> State:
        inner = self.inner.combine(hub.inner, inbox._replace(mean=inbox.mean.inner, total=inbox.total.inner))
        weight = jnp.where(inbox.weight == 0, 1, inbox.weight)  # nobody answered: nothing moves
        return Beside(inner, hub.statistics + inbox.mean.statistics / weight)

    def settle(self, hub: Beside, memory: State) -> State:
        return self.inner.settle(hub.inner, memory)

    def acknowledge(self, memory: State, sent: Beside, credited: Beside) -> State:
        return self.inner.acknowledge(memory, sent.inner, credited.inner)

    def remembered(self, heard: Beside, memory: State, arrived: Beside) -> State | None:
        return self.inner.remembered(heard.inner, memory, arrived.inner)

    def survey(self) -> Algorithm | None:
        asked = self.inner.survey()
        return None if asked is None else dataclasses.replace(with_leaves(self, {"inner": asked}), still=True)

    def invariants(self, hub: Beside, memory: State, p: np.ndarray) -> dict[str, State]:
        return self.inner.invariants(hub.inner, memory, p)

    def averages_descent(self) -> bool:
        return False  # not of the whole model


def running(algorithm: Algorithm, statistics: Sequence[str], model: Model) -> Algorithm:
    """The method with these parts of a model as running statistics beside it, as far as the model has them."""
    if not any(which_of(statistics, model)):
        return algorithm
    learnt = Only(predicate=lambda name, leaf: name not in statistics)
    return RunningStatistics(algorithm, split=learnt.split("running statistics:", model))
