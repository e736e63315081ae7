"""What does an agent send that lies? For simulation: something else than the method says, after everything honest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.errors import FedpointError
from fedpoint.core.random import Row
from fedpoint.core.record import Record
from fedpoint.core.types import Message
from fedpoint.core.vector import weighted_sum
from fedpoint.problems.base import Problem


class Heard(NamedTuple):
    """Who of the L that answer in a round lies, and who does not; who is not heard does neither.

    Attributes:
        liars: (L,) whether it lies.
        honest: (L,) whether it is heard and does not lie.
    """

    liars: Array  # (L,) bool
    honest: Array  # (L,) bool

    def mean(self, messages: Message) -> Message:
        """The plain mean of the honest messages; zero where there are none.

        Args:
            messages: of the L agents that answer, each array led by L.
        """
        return weighted_sum(self.honest / jnp.maximum(self.honest.sum(), 1), messages)


class Attack(Record):
    """What the agents with these numbers send instead of their messages. Subclass it and write `sent` for your own.

    An attacker works honestly, memory included, and sends something else: it does not honour what a channel asks of an
    agent, such as a clip. Attackers know each other and all honest messages of the round.

    Args:
        agents: the attackers, by number from 0 on.

    Arguments of methods:
        messages: of the L agents that answer, each array led by L.
        luck: the attackers' own randomness of this round.
    """

    repeats_itself = False  # True: the same messages are answered by the same lies; a forecast can follow it

    agents: Sequence[int]

    def check(self) -> None:
        found = tuple(sorted({_number(type(self).__name__, agent) for agent in np.ravel(np.asarray(self.agents))}))
        if not found:
            raise FedpointError(f"{type(self).__name__}: agents must name at least one agent, such as agents=[3, 7]")
        object.__setattr__(self, "agents", found)

    @property
    def honest(self) -> bool:
        """Whether messages are sent as the method says, of data that may be false."""
        return type(self).sent is Attack.sent

    def sent(self, messages: Message, heard: Heard, luck: Row) -> Message:
        """What the liars send in place of their messages; all lead with the L that answer.

        Args:
            heard: who lies, and who is heard and does not.
        """
        return messages

    def claimed(self, weights: np.ndarray) -> np.ndarray:
        """The agents' weights p as the hub is told them.

        Args:
            weights: (K,) the true ones.
        """
        return weights

    def data(self, problem: Problem) -> Problem:
        """The problem as the agents' data are.

        Args:
            problem: with the true data.
        """
        return problem

    def nothing_to_do(self, message: Message) -> str | None:
        """Why such messages cannot be attacked so; None: they can.

        Args:
            message: one agent's.
        """
        return None

    def on(self, messages: Message, agents: Array, heard: Array, luck: Row) -> Message:
        """What arrives of the messages of these agents.

        Args:
            agents: (L,) their numbers.
            heard: (L,) whether each is heard.
        """
        lies = jnp.isin(agents, jnp.asarray(self.agents, agents.dtype)) & heard
        told = self.sent(messages, Heard(lies, heard & ~lies), luck)

        def arrives(m: Array, t: Array) -> Array:
            return jnp.where(lies.reshape(-1, *(1,) * (m.ndim - 1)), t, m).astype(m.dtype)

        return jax.tree.map(arrives, messages, told)


def _number(name: str, agent: object) -> int:
    if isinstance(agent, bool | np.bool_) or not isinstance(agent, int | np.integer) or agent < 0:
        raise FedpointError(f"{name}: agents must be agent numbers, counted from 0; got {agent}")
    return int(agent)
