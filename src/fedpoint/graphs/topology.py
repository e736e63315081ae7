"""Where do messages meet? At one hub, or at a hub of every node: two answers to the same questions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.channel.base import Hub
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import NO_LUCK
from fedpoint.core.types import Function, Message, Model, Number, State, Tree
from fedpoint.core.vector import take, where
from fedpoint.gather.distances import minus
from fedpoint.graphs.wiring import Wires, Wiring, hear, hear_each, hear_over, inbox_of, newest, rebased
from fedpoint.timing.base import Tick
from fedpoint.timing.mail import Mail, look, open_mail, post

if TYPE_CHECKING:  # who calls: it lies above
    from fedpoint.engine.precompute import Precomputed
    from fedpoint.engine.round import Round
    from fedpoint.engine.state import RunState

Age: TypeAlias = Callable[[Array, Array], Array]  # (arc, who says it) -> how many rounds old is what is heard


class Said(NamedTuple):
    """What agents hear: all the same, or each its own (leading axis); in which round, where that was an earlier one;
    and what each of them is known to have said last, where the channel sends differences."""

    common: State = None
    each: State = None
    when: Array | None = None
    last: Message = None


class Kept(NamedTuple):
    """Whose memories remain as these agents leave them: who counts; sure: all of them do."""

    counts: Array
    sure: bool


class Used(NamedTuple):
    """What a round took: models sent down, answers, field evaluations."""

    down: Number
    up: Number
    evaluations: Number


class Branches(NamedTuple):
    """Which agents answer to which hub below the hub: traced."""

    region: Array  # (K,)
    share: Array  # (G,) P_g


NO_BRANCHES: Branches = ()  # type: ignore[assignment] # there is one hub, or one of every node


class Begun(NamedTuple):
    """Hubs, memories and mail before the first round."""

    hub: State
    memory: State
    mail: Mail | tuple  # (): nothing is said that could be heard later


@dataclass(frozen=True)
class Topology(ABC):
    """Structure, compiled in; the numbers of its wires are traced."""

    late = 0  # versions of what a hub said that answers may come from; 0: a round's answers come in the round
    lookahead: ClassVar[int] = 0  # rounds beyond its own that a round must know who works in
    by_node: ClassVar[bool] = False  # every agent has a hub of its own
    nested: ClassVar[bool] = False  # there are hubs below the hub, which meet at the end of a round
    exchanges = 1  # how often agents are asked in a round, of nested hubs
    personal = False  # every agent has a model of its own though there is one hub

    # Plain numbers.

    @property
    @abstractmethod
    def depth(self) -> int:
        """How many messages of each sender are kept; 0: none."""

    @abstractmethod
    def deepened(self, depth: int) -> Topology:
        """With room for so many."""

    @abstractmethod
    def constant_use(self, slots: int, agents: int, evaluations: int) -> Used | None:
        """What every round takes, where all places are filled."""

    @property
    def own_models(self) -> bool:
        """Whether every agent has a model of its own."""
        return self.by_node or self.personal

    def models(self, agents: int) -> int:
        """How many models there are."""
        return agents if self.own_models else 1

    def one(self, models: Model) -> Model:
        """The first of those that hubs start from."""
        return jax.tree.map(lambda a: a[0], models) if self.by_node else models

    def at(self, agent: int, tree: Tree) -> Tree:
        """What an agent has of a tree of all hubs."""
        return jax.tree.map(lambda a: a[agent], tree) if self.by_node else tree

    def spread(self, model: Model, agents: int) -> Model:
        """One model as all that there are."""
        if not self.own_models:
            return model
        return jax.tree.map(lambda a: np.broadcast_to(a, (agents, *np.shape(a))).copy(), model)

    def aim(self, algorithm: Algorithm, aim: Model, agents: int) -> Model:
        """What the models are compared with."""
        own = algorithm.at_agents or algorithm.personal
        return aim if aim is None or own else self.spread(aim, agents)

    # Traced.

    def per_hub(self, function: Function) -> Function:
        """function for every hub."""
        return jax.vmap(function) if self.by_node else function

    def by_agent(self, function: Function, agents: int) -> Function:
        """function(hub, own) for every agent, with the hub that it hears."""
        return jax.vmap(function, in_axes=(0 if self.by_node else None, 0), axis_size=agents)

    def read(self, algorithm: Algorithm, hub: State, memory: State) -> Model:
        """The model, or all of them."""
        if self.by_node:
            return jax.vmap(algorithm.read)(hub, memory)
        if not self.personal:
            return algorithm.read(hub, memory)
        agents = jax.tree.leaves(memory)[0].shape[0]
        return self.by_agent(algorithm.read, agents)(hub, memory)

    def settled(self, algorithm: Algorithm, hub: State, memory: State, agents: int) -> State:
        """Memories of all agents, completed by what they would hear next."""
        return self.by_agent(algorithm.settle, agents)(hub, memory)

    @abstractmethod
    def begin(self, algorithm: Algorithm, models: Model, wires: Wires, agents: int) -> Begun:
        """Before the first round."""

    @abstractmethod
    def first_words(self, algorithm: Algorithm, model: Model) -> tuple[State, State]:
        """What one agent hears in the first round, and what it remembers."""

    @abstractmethod
    def say(self, at: Round, hub: State, agents: Array | None) -> State:
        """What these agents hear (None: all): the same, or each its own."""

    def round(
        self, branches: Branches, hub: State, rest: Tree, number: Number, exchange: Function
    ) -> tuple[State, Tree]:
        """A round, `number`, of exchanges: exchange(its number among all, hub, rest) -> (hub, rest)."""
        return exchange(number, hub, rest)

    @abstractmethod
    def speak(self, at: Round, state: RunState, tick: Tick, ahead: Precomputed) -> tuple[RunState, Inbox | None, Used]:
        """Agents hear, work and answer: the state after it, what is on its way to hubs, and what it took."""

    @abstractmethod
    def listen(self, at: Round, state: RunState, sent: Inbox | None, tick: Tick, after: Tick) -> RunState:
        """Hubs hear and combine."""


def _picked(tree: Tree, agents: Array | None) -> Tree:
    return tree if agents is None else take(tree, agents)


@dataclass(frozen=True)
class Star(Topology):
    """One hub, which everybody who is asked hears and answers."""

    late: int = 0
    rebase: bool = False  # a late answer is merged as a model, not as a change
    personal: bool = False

    @property
    def adds_up(self) -> bool:
        """Messages may be added up as they come."""
        return not self.rebase

    @property
    def depth(self) -> int:
        return self.late

    def deepened(self, depth: int) -> Star:
        return replace(self, late=max(self.late, depth) if self.late else 0)

    def constant_use(self, slots: int, agents: int, evaluations: int) -> Used | None:
        return Used(slots, slots, slots * evaluations)

    def begin(self, algorithm: Algorithm, models: Model, wires: Wires, agents: int) -> Begun:
        begun = algorithm.init(models)
        hub, one = jax.tree.map(lambda a: a if isinstance(a, np.ndarray | Array) else np.asarray(a), begun)
        memory = jax.tree.map(lambda a: a[None].repeat(agents, 0), one)  # by NumPy, where the model is NumPy's
        if not self.late:
            return Begun(hub, memory, ())
        said = algorithm.say(hub, NO_LUCK.row())
        return Begun(hub, memory, open_mail(jax.tree.map(lambda a: jnp.asarray(a)[None], said), max(self.late, 2)))

    def first_words(self, algorithm: Algorithm, model: Model) -> tuple[State, State]:
        hub, memory = algorithm.init(model)
        return algorithm.say(hub, NO_LUCK.row()), memory

    def say(self, at: Round, hub: State, agents: Array | None) -> State:
        return at.algorithm.say(hub, at.hub_luck())

    def speak(self, at: Round, state: RunState, tick: Tick, ahead: Precomputed) -> tuple[RunState, Inbox, Used]:
        said = self.say(at, state.hub, tick.agents)
        if self.late:  # answers to what the hub said some versions ago
            sender, value = jnp.zeros(1, jnp.int32), jax.tree.map(lambda a: a[None], said)
            state = state._replace(mail=post(state.mail, sender, jnp.ones(1, bool), value, at.number))
        inbox, state, spent = self.meet(at, state, tick, said, ahead)
        return (
            state,
            inbox,
            Used(tick.asked if tick.asked is not None else 0, jnp.sum(tick.heard, dtype=jnp.int64), spent),
        )

    def inbox(self, at: Round, messages: Message, tick: Tick) -> Inbox:
        """What is heard of the messages of a tick."""
        return at.fenced(at.inputs.gather.inbox, messages, tick.weight, tick.share)

    def words(self, at: Round, state: RunState, tick: Tick, said: State) -> Said:
        """What the agents of a tick have heard."""
        if not self.late:
            return Said(common=said)
        assert tick.age is not None
        when = at.number - tick.age
        return Said(each=look(state.mail, jnp.zeros(when.shape, jnp.int32), when), when=when)

    def meet(
        self, at: Round, state: RunState, tick: Tick, said: State, ahead: Precomputed
    ) -> tuple[Inbox, RunState, Number]:
        """The agents of a tick work: what is heard of them, the state after it, and their field evaluations."""
        heard = self.words(at, state, tick, said)
        abandons = at.inputs.timing.abandons
        counts = tick.heard if tick.merge is None or not abandons else tick.heard & tick.merge
        done = at.work(
            state, tick.agents, heard, ahead, Kept(counts, not abandons), summed=tick if self.adds_up else None
        )
        messages = done.messages
        if self.rebase:
            then, now = jax.vmap(at.algorithm.base)(heard.each), at.algorithm.base(said)
            messages = jax.tree.map(lambda m, x, w: m + x - w, messages, then, now)
        if not isinstance(messages, Inbox):
            answered = tick.heard if tick.weight is None else tick.heard & (tick.weight != 0)
            messages = at.attacked(messages, tick.agents, answered)
        if not isinstance(messages, Inbox):
            messages = self.inbox(at, messages, tick)
        state = state._replace(memory=done.kept[0], wire=done.kept[1], world=done.world)
        return messages, state, jnp.sum(tick.heard * done.spent, dtype=jnp.int64)

    def listen(self, at: Round, state: RunState, sent: Inbox | None, tick: Tick, after: Tick) -> RunState:
        channel = at.inputs.channel
        if sent is not None and tick.weight is not None and not channel.is_identity():
            sent = channel.release(sent, Hub(at.release_luck(), at.number, tick.weight.max(), at.keys[2]))
        hub = at.fenced(at.algorithm.combine, state.hub, sent)
        if at.inputs.timing.abandons and tick.merge is not None:
            hub = where(tick.merge, hub, state.hub)
        return state._replace(hub=hub)


@dataclass(frozen=True)
class Graph(Topology):
    """A hub at every node: those whose turn it is work and tell their neighbours, and those whose turn comes next hear
    what has reached them by then."""

    lookahead: ClassVar[int] = 1
    by_node: ClassVar[bool] = True

    wiring: Wiring

    @property
    def depth(self) -> int:
        return self.wiring.depth

    def deepened(self, depth: int) -> Graph:
        return replace(self, wiring=replace(self.wiring, depth=max(self.wiring.depth, depth)))

    def constant_use(self, slots: int, agents: int, evaluations: int) -> Used | None:
        return Used(0, self.wiring.arcs, slots * evaluations) if slots == agents else None

    def begin(self, algorithm: Algorithm, models: Model, wires: Wires, agents: int) -> Begun:
        """Models lead with the nodes. Everybody has heard what the neighbours start from."""
        hub, memory = jax.vmap(algorithm.init)(models)
        if not algorithm.at_agents:
            return Begun(hub, memory, open_mail(bases(algorithm, hub), self.depth))
        mail = open_mail(jax.vmap(algorithm.hello)(models), self.depth)
        total = hear(self.wiring, wires, mail, None, lambda arc, says: jnp.zeros_like(arc), 0)
        return Begun(jax.vmap(algorithm.combine)(hub, inbox_of(total, wires.mass)), memory, mail)

    def first_words(self, algorithm: Algorithm, model: Model) -> tuple[State, State]:
        hub, memory = algorithm.init(model)
        if algorithm.at_agents:  # hubs hold what they hear
            hub = algorithm.combine(hub, Inbox(*(algorithm.hello(model),) * 2, jnp.ones(()), jnp.ones(())))
        return algorithm.say(hub, NO_LUCK.row()), memory

    def nodes(self, at: Round, agents: Array | None) -> Array:
        return jnp.arange(at.layout.agents, dtype=jnp.int32) if agents is None else agents

    def say(self, at: Round, hub: State, agents: Array | None) -> State:
        names = at.names(self.nodes(at, agents))
        return jax.vmap(lambda one, node: at.algorithm.say(one, at.hub_luck(node)))(_picked(hub, agents), names)

    def speak(self, at: Round, state: RunState, tick: Tick, ahead: Precomputed) -> tuple[RunState, None, Used]:
        algorithm, wires = at.algorithm, at.inputs.wires
        nodes = self.nodes(at, tick.agents)
        said = self.say(at, state.hub, tick.agents)
        last = None
        if not at.inputs.channel.lossless:  # neighbours know what a node said last: the difference is sent
            last = look(state.mail, nodes, at.number)
        base = None if algorithm.at_agents else jax.vmap(algorithm.base)(said)
        sure = at.inputs.timing.all_heard
        keep = Kept(tick.heard, sure)
        done = at.work(state, tick.agents, Said(each=said, last=last), ahead, keep, works=tick.heard, base=base)
        messages = at.attacked(done.messages, tick.agents, tick.heard, base)
        memory, wire = done.kept
        if self.depth == 1 and tick.agents is None and sure:
            mail = state.mail._replace(value=messages)
        else:
            mail = post(state.mail, nodes, tick.heard, messages, at.number + 1)
        degree = wires.first[nodes + 1] - wires.first[nodes]
        sent = jnp.sum(jnp.where(tick.heard, degree, 0), dtype=jnp.int64)
        spent = jnp.sum(tick.heard * done.spent, dtype=jnp.int64)
        return state._replace(memory=memory, wire=wire, mail=mail, world=done.world), None, Used(0, sent, spent)

    def listen(self, at: Round, state: RunState, sent: Inbox | None, tick: Tick, after: Tick) -> RunState:
        def age(arc: Array, says: Array) -> Array:
            return at.inputs.timing.age(at.keys[1], at.number + 1, arc, says)

        return self.heard(at, state, after, age, at.number + 1)

    def heard(self, at: Round, state: RunState, after: Tick, age: Age, version: Array) -> RunState:
        """The hubs of the nodes whose turn it is `after` hear what has reached them by then, `age(arc, says)` old."""
        algorithm, wires = at.algorithm, at.inputs.wires
        if not at.inputs.gather.conserves:
            inbox = self._one_by_one(at, state, after, age, version)
            new = jax.vmap(algorithm.combine)(_picked(state.hub, after.agents), inbox)
            return state._replace(hub=at.commit(state.hub, after.agents, after.heard, new, at.inputs.timing.all_heard))
        if at.inputs.timing.links_fail:
            up = at.inputs.timing.up(at.keys[1], version, wires.link)
            total = hear_over(self.wiring, wires, state.mail, up, version)
        else:
            total = hear(self.wiring, wires, state.mail, after.agents, age, version)
        hub, mass = at.fenced(lambda: (_picked(state.hub, after.agents), _picked(wires.mass, after.agents)))
        if algorithm.at_agents:
            inbox = at.fenced(inbox_of, total, mass)
        else:
            own = newest(state.mail, version) if after.agents is None else look(state.mail, after.agents, version)
            inbox = at.fenced(lambda t, y, m: rebased(t, y, m, bases(algorithm, hub)), total, own, mass)
        new = at.fenced(jax.vmap(algorithm.combine), hub, inbox)
        return state._replace(hub=at.commit(state.hub, after.agents, after.heard, new, at.inputs.timing.all_heard))

    def _one_by_one(self, at: Round, state: RunState, after: Tick, age: Age, version: Array) -> Inbox:
        """What the same hubs hear where a gather is granted the messages themselves.

        A node takes them from its own: of changes its own is one more, with what is left of the weight.
        """
        algorithm, gather, wires, nodes = at.algorithm, at.inputs.gather, at.inputs.wires, self.nodes(at, after.agents)
        heard = hear_each(self.wiring, wires, state.mail, nodes, age, version)
        own, mass = look(state.mail, nodes, version), wires.mass[nodes]
        if algorithm.at_agents:

            def of_values(messages: Message, own: Message, weight: Array, mass: Array) -> Inbox:
                found = gather.inbox(minus(messages, own), weight, weight)
                safe = jnp.where(mass > 0, mass, 1.0)
                middle = jax.tree.map(lambda m, x: m / safe + jnp.where(mass > 0, x, 0.0), found.mean, own)
                return Inbox(middle, jax.tree.map(lambda m: mass * m, middle), found.mass, jnp.ones_like(found.weight))

            return jax.vmap(of_values)(heard.messages, own, heard.weight, mass)

        def of_changes(messages: Message, own: Message, base: Model, weight: Array, mass: Array) -> Inbox:
            every = jax.tree.map(lambda m, y: jnp.concatenate([m, y[None]]), messages, own)
            weights = jnp.append(weight, jnp.maximum(1.0 - mass, 0.0))
            return gather.inbox(minus(every, base), weights, weights)

        base = bases(algorithm, _picked(state.hub, after.agents))
        return jax.vmap(of_changes)(heard.messages, own, base, heard.weight, mass)


def bases(algorithm: Algorithm, hub: State) -> Model:
    """What the changes of nodes with these hubs are changes of."""
    row = NO_LUCK.row()
    return jax.vmap(lambda h: algorithm.base(algorithm.say(h, row)))(hub)
