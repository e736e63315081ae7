"""What does the hub of a study hold, and what does an answer change?

The round is the simulation's (`say`, `speak` and `listen` of its topology); only the agents' work is done elsewhere.
Answers that are missing count as in `fp.Answering`: those that came stand for all that were asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.channel import Channel
from fedpoint.core.inbox import Inbox
from fedpoint.core.precision import double
from fedpoint.core.random import Key
from fedpoint.core.types import Message, Model, State, Tree
from fedpoint.core.vector import unwrap, wrap
from fedpoint.engine.layout import Layout
from fedpoint.engine.precompute import NOTHING_PRECOMPUTED
from fedpoint.engine.round import Done, Round, decoded
from fedpoint.engine.session import flatten
from fedpoint.engine.state import AGENTS, HUB, SCHEDULE, Inputs, RunState
from fedpoint.experiment.bound import Bound
from fedpoint.federation.shapes import Arrays, blank, elsewhere, shapes_of, tree_of
from fedpoint.graphs.topology import Begun, Said, Star
from fedpoint.timing.base import Tick, Timing
from fedpoint.timing.mail import Mail

Keys = tuple[Key, Key, Key]


@dataclass(frozen=True)
class Remembered(Star):
    """A hub that remembers what each agent of a tick was told: answers come when they come."""

    def words(self, at: Round, state: RunState, tick: Tick, said: State) -> Said:
        return Said(each=state.mail)


class Answered(Round):
    """A round whose agents have worked already."""

    messages: Message

    def work(self, *_: object, **__: object) -> Done:
        return Done(self.messages, ((), ()), 0, ())


@partial(jax.jit, static_argnames="layout")
def _begin(layout: Layout, inputs: Inputs, models: Model) -> Begun:
    return layout.topology.begin(inputs.algorithm, models, inputs.wires, layout.agents)


@jax.jit
def _tick(timing: Timing, key: Key, p: Array, round: Array) -> Tick:
    return timing.at(key, p, round)


@partial(jax.jit, static_argnames="layout")
def _say(layout: Layout, inputs: Inputs, hub: State, keys: Keys, round: Array) -> State:
    return jax.tree.map(jnp.asarray, layout.topology.say(Round(layout, inputs, keys, round), hub, None))


@partial(jax.jit, static_argnames="layout")
def _merge(
    layout: Layout, inputs: Inputs, state: RunState, tick: Tick, messages: Message, keys: Keys, round: Array
) -> tuple[RunState, RunState]:
    """Before hubs have heard these messages, and after."""
    at, everyone = Answered(layout, inputs, keys, round), Tick(None, jnp.ones(layout.agents, bool))
    at.messages = messages
    state, sent, _ = layout.topology.speak(at, state, tick, NOTHING_PRECOMPUTED)
    return state, layout.topology.listen(at, state, sent, tick, everyone)


@partial(jax.jit, static_argnames="layout")
def _listen(
    layout: Layout, inputs: Inputs, state: RunState, inbox: Inbox, tick: Tick, keys: Keys, round: Array
) -> RunState:
    """After a hub has heard what others added up."""
    at, everyone = Round(layout, inputs, keys, round), Tick(None, jnp.ones(layout.agents, bool))
    return layout.topology.listen(at, state, inbox, tick, everyone)


@partial(jax.jit, static_argnames="layout")
def _read(layout: Layout, inputs: Inputs, state: RunState, newcomer: State) -> Model:
    """What nodes say is their model, where they have one of their own; of one hub what it can show of what agents have
    in common, as models and parts that stay at sites are not known here."""
    said = state.mail.value if isinstance(state.mail, Mail) else newcomer
    return layout.topology.per_hub(inputs.algorithm.shown)(state.hub, said)


@jax.jit
def _decode(channel: Channel, code: Tree, like: Message, last: Message | None) -> Message:
    return decoded(channel, code, like, last)


def _host(tree: Tree) -> Tree:
    return jax.tree.map(np.asarray, tree)


class Center:
    """All hubs of a study: one, or one for every node, which then hears what its neighbours said and nobody else.

    models: late answers are merged as models, not as changes.
    """

    @double
    def __init__(self, bound: Bound, models: bool = False):
        self.remembers = models
        self.p, self.timing = bound.problem.weights, jax.device_put(bound.timing)
        layout, inputs = elsewhere(bound)
        self.layout = replace(layout, topology=Remembered(rebase=True)) if models else layout
        self.inputs = jax.device_put(inputs)
        self.shapes, self.topology, self.agents = shapes_of(bound), self.layout.topology, bound.problem.agents
        seed = bound.experiment.seed
        self.keys: Keys = (Key.of(seed, 0, AGENTS), Key.of(seed, 0, SCHEDULE), Key.of(seed, 0, HUB))
        begun = _begin(self.layout, self.inputs, wrap(jax.tree.map(jnp.asarray, bound.start)))
        self.state = RunState(begun.hub, (), begun.mail, ())
        self.newcomer = () if self.topology.by_node else jax.tree.map(lambda a: a[0], begun.memory)
        self.found: State = begun.hub  # a node's hub as its last merged answer found it
        self.told: dict[int, Tree] = {}  # to each agent: a node's hub then, or what the one hub said
        self._said: tuple[int, State] = (-1, ())
        self._model: tuple[RunState, Model] | None = None  # of which state

    @double
    def ask(self, round: int) -> Tick:
        """Who is asked in a round."""
        return _host(_tick(self.timing, self.keys[1], self.p, jnp.int32(round)))

    def agents_of(self, tick: Tick) -> list[int]:
        """Those who are asked in a tick, each once."""
        return sorted({int(k) for k, asked in zip(self._places(tick), tick.heard, strict=True) if asked})

    @double
    def tell(self, agent: int, round: int) -> dict[str, np.ndarray]:
        """What an agent hears that is asked now."""
        if self._said[0] != round:
            said = _host(_say(self.layout, self.inputs, self.state.hub, self.keys, jnp.int32(round)))
            self._said = round, said
        said = self.topology.at(agent, self._said[1])
        self.told[agent] = self.topology.at(agent, _host(self.state.hub)) if self.topology.by_node else said
        last = self._last(agent)
        return flatten(said if last is None else (said, last))

    def _last(self, agent: int) -> Message | None:
        """What neighbours know of a node, where it sends the difference to that."""
        mail = self.state.mail
        if self.inputs.channel.lossless or not isinstance(mail, Mail):
            return None
        return self.topology.at(agent, _host(mail.value))

    @double
    def decoded(self, agent: int, arrays: Arrays) -> Message:
        """The message of an agent, from what it sent."""
        code = tree_of(self.shapes.code, arrays)
        if self.inputs.channel.is_identity():
            return code
        return _host(_decode(self.inputs.channel, code, blank(self.shapes.message), self._last(agent)))

    def merge(self, round: int, tick: Tick, answers: Mapping[int, Message]) -> None:
        """What came of those who were asked stands for all."""
        self._merge(round, self._came(tick, answers), answers)

    @double
    def merge_sum(self, round: int, tick: Tick, agents: Collection[int], total: Message) -> None:
        """The same, where only the sum of p_k m_k over those who came is known, and weights are multiples of shares."""
        came = self._came(tick, agents)
        mass, weight = (jnp.asarray(w).sum() for w in (came.share, came.weight))
        scale = weight / mass
        mean = jax.tree.map(lambda a: (scale * a).astype(a.dtype), total)
        inbox = Inbox(mean, jax.tree.map(jnp.asarray, total), mass, weight)
        self.state = _listen(self.layout, self.inputs, self.state, inbox, came, self.keys, jnp.int32(round))

    def _came(self, tick: Tick, agents: Collection[int]) -> Tick:
        """A tick of which these agents have come."""
        places = self._places(tick)
        came = tick.heard & np.isin(places, list(agents))
        scale = tick.heard.sum() / max(int(came.sum()), 1)
        # On a network there are no weights but those of the edges: None, a tree without leaves.
        weight, share = jax.tree.map(lambda a: np.where(came, a, 0.0), (tick.weight, tick.share))
        weight = jax.tree.map(lambda a: a * scale, weight)
        return tick._replace(heard=came, weight=weight, share=share)

    @double
    def merge_late(self, round: int, answers: Mapping[int, Message], weight: np.ndarray) -> None:
        """All that is there, with these weights."""
        agents = np.array(list(answers))
        heard, share = np.ones(len(agents), bool), self.p[agents]
        self._merge(round, Tick(*map(jnp.asarray, (agents, heard, weight, share))), answers)

    @double
    def _merge(self, round: int, tick: Tick, answers: Mapping[int, Message]) -> None:
        """The messages of all who are heard in a tick, by agent."""
        places, nothing = self._places(tick).tolist(), blank(self.shapes.message)
        heard = {k for k, came in zip(places, tick.heard, strict=True) if came}
        messages = _stacked([answers[k] if k in heard else nothing for k in places])
        began = self.state
        if self.topology.by_node:
            found = [self.topology.at(k, _host(self.found)) for k in range(self.agents)]
            began = began._replace(hub=_stacked([self.told[k] if k in heard else hub for k, hub in enumerate(found)]))
        elif self.remembers:
            began = began._replace(mail=_stacked([self.told[k] for k in places]))
        spoken, state = _merge(self.layout, self.inputs, began, tick, messages, self.keys, jnp.int32(round))
        self.found, self.state = spoken.hub, state._replace(mail=state.mail if self.topology.by_node else ())

    def _places(self, tick: Tick) -> np.ndarray:
        return np.arange(self.agents) if tick.agents is None else np.asarray(tick.agents)

    @double
    def model(self) -> Model:
        """The model; on a network one for each node."""
        if self._model is None or self._model[0] is not self.state:
            self._model = self.state, _host(unwrap(_read(self.layout, self.inputs, self.state, self.newcomer)))
        return self._model[1]

    def snapshot(self) -> tuple[RunState, State]:
        """What `put_back` makes the center again."""
        return self.state, self.found

    def put_back(self, before: tuple[RunState, State]) -> None:
        self.state, self.found = before

    def _durable(self) -> Tree:
        return (self.found, self.state.mail, self.state.hub) if self.topology.by_node else self.state.hub

    def arrays(self) -> dict[str, np.ndarray]:
        return flatten(self._durable())

    @double
    def restore(self, arrays: Arrays) -> None:
        found = jax.tree.map(jnp.asarray, tree_of(self._durable(), arrays))
        if self.topology.by_node:
            self.found, mail, hub = found
            self.state = self.state._replace(hub=hub, mail=mail)
        else:
            self.state = self.state._replace(hub=found)


def _stacked(rows: list[Tree]) -> Tree:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
