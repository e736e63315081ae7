"""Parts of a model that stay at their agent: what `share=` of an experiment makes of a method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import NO_LUCK
from fedpoint.core.types import Message, Model, State
from fedpoint.core.vector import Vector, zeros
from fedpoint.core.wrapped import Wrapped

if TYPE_CHECKING:
    from fedpoint.core.agent import Agent


class Own(NamedTuple):
    """What an agent remembers of the inner method, and its own parts of the model."""

    memory: State
    parts: Vector


class Personal(Wrapped):
    r"""A method whose messages are changes of one model, of which only the parts `shared` are sent.

    An agent works from the hub's shared parts and its own ones, keeps the change of its own, and sends the rest:
    $$w_k = (s, o_k), \qquad (\Delta s_k, \Delta o_k) = \text{local}(w_k), \qquad o_k^+ = o_k + \Delta o_k$$
    """

    shared: tuple[str, ...] = ()

    def check(self) -> None:
        if not self.inner.sends_changes() or self.inner.chains > 1:
            raise FedpointError(
                f"share=: {self.inner.card.title} cannot keep parts of a model at its agents: its messages are not "
                "changes of one model; use FedAvg or FedProx"
            )

    def _split(self, model: Model) -> tuple[Vector, Vector]:
        """The shared parts, and the others."""
        tree = model.tree if isinstance(model, Vector) else model
        if not isinstance(tree, Mapping):
            raise FedpointError("share= names parts of a model that is a dictionary; this one has no names")
        missing = [name for name in self.shared if name not in tree]
        if missing:
            raise FedpointError(f"share=: the model has no part {missing[0]!r}; it has {', '.join(tree)}")
        parts = [{n: a for n, a in tree.items() if (n in self.shared) is shared} for shared in (True, False)]
        return Vector(parts[0]), Vector(parts[1])

    def _joined(self, shared: Vector, own: Vector) -> Vector:
        return Vector({**shared.tree, **own.tree})

    def init(self, w: Model) -> tuple[State, State]:
        hub, memory = self.inner.init(w)
        return hub, Own(memory, self._split(w)[1])

    def local(self, heard: State, memory: Own, agent: Agent) -> tuple[Message, Own]:
        mine = self._joined(self._split(self.inner.base(heard))[0], memory.parts)
        change, inner = self.inner.local(mine, memory.memory, agent)
        sent, kept = self._split(change)
        return sent, Own(inner, memory.parts + kept)

    def combine(self, hub: State, inbox: Inbox) -> State:
        rest = zeros(self._split(self.inner.base(self.inner.say(hub, NO_LUCK.row())))[1])
        whole = inbox._replace(mean=self._joined(inbox.mean, rest), total=self._joined(inbox.total, rest))
        return self.inner.combine(hub, whole)

    def settle(self, hub: State, memory: Own) -> Own:
        return Own(self.inner.settle(hub, memory.memory), memory.parts)

    def acknowledge(self, memory: Own, sent: Message, credited: Message) -> Own:
        return Own(self.inner.acknowledge(memory.memory, sent, credited), memory.parts)

    def remembered(self, heard: State, memory: Own, arrived: Message) -> None:
        return None  # nobody else hears of its parts

    def sends_changes(self) -> bool:
        return False  # not of the whole model: neighbours of a network would need all of it


__all__ = ["Personal"]
