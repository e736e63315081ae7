"""One round: T = combine o release o gather o channel o local, wherever messages meet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedpoint.channel.base import Channel, credited, release_row
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.inbox import Inbox, hear_one, nothing_heard
from fedpoint.core.random import Key, Row, Stream
from fedpoint.core.record import split_per_agent
from fedpoint.core.types import Data, Function, Message, Model, Number, State, Tree
from fedpoint.core.vector import take, where, write
from fedpoint.engine.cluster.fence import separate
from fedpoint.engine.cpu.kernel import in_one_kernel, traced
from fedpoint.engine.layout import Layout, over_agents
from fedpoint.engine.precompute import NOTHING_PRECOMPUTED, Precomputed, draw_in_round
from fedpoint.engine.state import Inputs, Part, RunState, names_of
from fedpoint.graphs.topology import Kept, Said
from fedpoint.problems.oracle import Mine, Oracle
from fedpoint.timing.base import Tick

ATTACK = 0xFFFFFFF2  # and that is the attackers'
Keys: TypeAlias = tuple[Key, Key, Key]  # of agents, timing and hub


def one_round(
    layout: Layout,
    inputs: Inputs,
    state: RunState,
    ticks: tuple[Tick, Tick],
    ahead: Precomputed,
    keys: Keys,
    round: Array,
) -> RunState:
    """The operator that everything else is about. ticks: of this round, and of the one after it."""
    for algorithm, times in inputs.algorithm.exchanges():  # the same agents are asked in all of them
        at = Round(layout, inputs._replace(algorithm=algorithm), keys, round)
        if times == 1:
            state = _exchange(at, state, ticks, ahead)
        else:
            state = lax.fori_loop(0, times, lambda i, s, at=at: _exchange(at, s, ticks, ahead), state)
    return state


def _exchange(at: Round, state: RunState, ticks: tuple[Tick, Tick], ahead: Precomputed) -> RunState:
    """Agents hear, work and answer; hubs combine."""
    (tick, after), topology = ticks, at.layout.topology
    state, sent, used = topology.speak(at, state, tick, ahead)
    state = topology.listen(at, state, sent, tick, after)
    if isinstance(state.used, tuple):
        return state
    return state._replace(used=state.used + jnp.stack([jnp.asarray(n, jnp.int64) for n in used]))


class Done(NamedTuple):
    """What agents have done: messages (or the inbox of them), everybody's memories after it (the method's, the
    channel's), field evaluations of each, and where everybody's world is."""

    messages: Message | Inbox
    kept: tuple[State, State]
    spent: Tree
    world: State


class Task(NamedTuple):
    """What one agent has for its part of a round. Of all agents it leads with them."""

    agent: Array  # its number
    own: Data
    kept: tuple[State, State]  # memories: the method's, the channel's
    tuned: list[Array]  # its own numbers of the method
    ahead: Precomputed
    share: Array
    said: State  # None: what everybody hears
    world: State
    when: Array | None  # the round that it answers to, where that is an earlier one
    last: Message  # what neighbours know of it, where the channel sends differences
    base: Model  # what its message is a change of, where models are sent


class Workplace(NamedTuple):
    """Where an agent works: its data, its luck, its share p_k, and where its world is."""

    mine: Mine
    stream: Stream
    share: Number
    world: State = ()


class Round(NamedTuple):
    """A round as topologies see it: its number, its luck, and how agents work in it."""

    layout: Layout
    inputs: Inputs
    keys: Keys
    number: Array

    @property
    def algorithm(self) -> Algorithm:
        return self.inputs.algorithm

    @property
    def part(self) -> Part:
        """Which agents are this process's."""
        assert self.inputs.part is not None
        return self.inputs.part

    @property
    def _summed(self) -> bool:
        """Whether messages may be added up as they come."""
        return self.inputs.gather.conserves and self.inputs.attack is None

    def hub_luck(self, node: Number = 0) -> Row:
        return self.keys[2].fold(self.number).row(node)

    def release_luck(self) -> Row:
        return release_row(self.keys[2], self.number)

    def names(self, places: Array) -> Array:
        """The numbers of the agents at these places."""
        return names_of(self.inputs, places)

    def fenced(self, function: Function, *arguments: Tree) -> Tree:
        return separate(self.layout, self.inputs, function, *arguments)

    def commit(self, everybody: State, who: Array | None, heard: Array, new: State, sure: bool) -> State:
        """What everybody holds, with what is new at the agents that were heard; sure: all of them were."""
        if who is None:
            return new if sure else jax.vmap(where)(heard, new, everybody)
        if self.layout.whole or self.layout.mapped:  # a kernel holds no scatter, which is slow for long rows too

            def commit(i: Array, everybody: State) -> State:
                k, answered, mine = take((who, heard, new), i)
                return write(everybody, where(answered, mine, take(everybody, k)), k)

            return lax.fori_loop(0, len(who), commit, everybody)
        # An index out of range is dropped: agents not heard, and repeated draws of one agent.

        def put(all_: Array, n: Array) -> Array:
            return all_.at[jnp.where(heard, who, all_.shape[0])].set(n, mode="drop")

        return jax.tree.map(put, everybody, new)

    def attacked(self, messages: Message, places: Array | None, heard: Array, base: Model = None) -> Message:
        """What arrives of these agents' messages (None: of all), liars among them. base: what is told are models."""
        attack = self.inputs.attack
        if attack is None:
            return messages
        agents = self.names(jnp.arange(self.layout.agents, dtype=jnp.int32) if places is None else places)
        if base is not None:
            messages = jax.tree.map(jnp.subtract, messages, base)
        told = attack.on(messages, agents, heard, self.keys[2].fold(self.number, ATTACK).row())
        return told if base is None else jax.tree.map(jnp.add, told, base)

    def work(
        self,
        state: RunState,
        who: Array | None,
        heard: Said,
        ahead: Precomputed,
        keep: Kept,
        works: Array | None = None,
        summed: Tick | None = None,
        base: Model = None,
    ) -> Done:
        """local and channel for the agents `who` (None: all, in their own order).

        keep: whose memories remain. works: which of them work at all (None: all). summed: the tick with whose weights
        messages may be summed as they come. base: what messages are changes of, where models are sent.
        """
        layout, inputs = self.layout, self.inputs
        known: list[int] = []  # evaluations of an agent, where tracing already tells
        rows = inputs.rows_of(who)
        one_by_one = summed is not None and layout.mapped and layout.blocks is None and self._summed
        kernel = layout.tuning.kernel and not layout.whole
        everybody = (state.memory, state.wire)
        # Agents one after the other fetch and write their own rows; a kernel would copy everybody's to do so.
        in_place = one_by_one and who is not None and not kernel
        mine = keep._replace(sure=keep.sure and inputs.timing.all_heard)  # an empty place has somebody's number
        tasks = self._tasks(state, who, heard, ahead, base, fetched=not in_place)

        def work(algorithm: Algorithm, channel: Channel, common: State, tasks: Task) -> tuple:
            _, put = split_per_agent(algorithm)

            def one(task: Task) -> tuple:
                message, kept, spent, world = self._at_agent(put(task.tuned), channel, common, task)
                if isinstance(spent, int):
                    known.append(spent)
                    return message, kept, (), world
                return message, kept, jnp.asarray(spent, jnp.int64), world

            if one_by_one and summed is not None:
                return _one_by_one(one, tasks, summed, (everybody, rows, mine) if in_place else None)
            return over_agents(layout, one, tasks)

        run: Function = partial(in_one_kernel, jnp.minimum(self.number + 1, 1), work) if kernel else work
        messages, new, spent, world = self.fenced(run, inputs.algorithm, inputs.channel, heard.common, tasks)
        kept = new if in_place else self.commit(everybody, rows, keep.counts, new, keep.sure)
        if layout.oracle.moves and not layout.exact and works is not None:  # who does not work stays where it is
            world = jax.vmap(where)(works, world, state.world if who is None else take(state.world, who))
        if who is not None:
            world = self.commit(state.world, who, jnp.ones(who.shape, bool), world, sure=True)
        return Done(messages, kept, known[0] if known else spent, world)

    def _tasks(
        self, state: RunState, who: Array | None, heard: Said, ahead: Precomputed, base: Model, fetched: bool
    ) -> Task:
        """What these agents (None: all) have for their parts; fetched: memories among it."""
        layout, inputs = self.layout, self.inputs
        agents = self.names(jnp.arange(layout.agents, dtype=jnp.int32) if who is None else who)
        tuned, _ = split_per_agent(inputs.algorithm)

        def pick(tree: Tree, places: Array | None = who) -> Tree:
            return tree if places is None else take(tree, places)

        kept = pick((state.memory, state.wire), inputs.rows_of(who)) if fetched else ((), ())
        world = pick(state.world)
        own = pick(inputs.own) if ahead.own is None else ahead.own
        share = inputs.p if who is None else take(inputs.p, agents)
        rest = self.fenced(lambda: (own, kept, pick(tuned), share, heard.each, world, heard.last, base))
        own, kept, tuned, share, each, world, last, base = rest
        if layout.blocks is not None:
            ahead = draw_in_round(layout, inputs, agents, own, self.keys[0], self.number)
        return Task(agents, own, kept, tuned, ahead, share, each, world, heard.when, last, base)

    def _at_agent(
        self, method: Algorithm, channel: Channel, common: State, task: Task
    ) -> tuple[Message, tuple[State, State], Number, State]:
        """What arrives of one agent's message, its memories, its field evaluations, and where its world is."""
        stream = Stream(self.keys[0], self.number if task.when is None else task.when, task.agent)
        place = Workplace(Mine(task.own, self.inputs.common), stream, task.share, task.world)
        said, how = common if task.said is None else task.said, (self.layout.oracle, self.layout.exact)
        message, memory, agent, world = agent_round(*how, method, place, said, task.kept[0], task.ahead)
        arrived, kept = passed(method, channel, message, (memory, task.kept[1]), agent, task.base, task.last)
        return arrived, kept, agent.evaluations, world


def encoded(
    method: Algorithm,
    channel: Channel,
    message: Message,
    kept: tuple[State, State],
    agent: Agent,
    base: Model = None,
    last: Message = None,
) -> tuple[Message, tuple[State, State]]:
    """What is sent of a message, and memories that know what will arrive.

    base: neighbours are told a model, not a change of it. last: what they know already, from which the difference is
    sent.
    """
    if base is not None:
        message = jax.tree.map(lambda m, x: m + x, message, base)
    if channel.is_identity():
        return message, kept
    memory, wire = kept
    if last is not None:
        message = jax.tree.map(lambda m, x: m - x, message, last)
    code, new = channel.encode(message, wire, agent)
    if last is None:  # of what was only rounded too: a sum that is conserved must be of what arrived
        known = credited(channel, message, channel.decode(code, message), wire, new)
        memory = method.acknowledge(memory, message, known)
    return code, (memory, new)


def passed(
    method: Algorithm,
    channel: Channel,
    message: Message,
    kept: tuple[State, State],
    agent: Agent,
    base: Model = None,
    last: Message = None,
) -> tuple[Message, tuple[State, State]]:
    """What arrives of a message, and memories that know it: `encoded` and `decoded` where both are in one program."""
    if base is not None:
        message = jax.tree.map(lambda m, x: m + x, message, base)
    if channel.is_identity():
        return message, kept
    memory, wire = kept
    if last is not None:
        message = jax.tree.map(lambda m, x: m - x, message, last)
    arrived, new = channel.transfer(message, wire, agent)
    if last is not None:
        return damped(channel, arrived, last), (memory, new)
    memory = method.acknowledge(memory, message, credited(channel, message, arrived, wire, new))
    return arrived, (memory, new)


def decoded(channel: Channel, code: Tree, like: Message, last: Message = None) -> Message:
    """What arrives, built as `like`. Of a difference to `last` a part, so that what is lost does not grow."""
    if channel.is_identity():
        return code
    arrived = channel.decode(code, like)
    return arrived if last is None else damped(channel, arrived, last)


def damped(channel: Channel, arrived: Message, last: Message) -> Message:
    """What neighbours know now, after they knew `last` and this has arrived of the difference."""
    length = 1.0 / (1.0 + channel.omega(arrived))
    return jax.tree.map(lambda x, a: x + length * a, last, arrived)


def _one_by_one(
    function: Callable[[Task], tuple], tasks: Task, tick: Tick, rows: tuple[Tree, Array | None, Kept] | None = None
) -> tuple:
    """function over the agents, one after the other, and what is heard of its first results.

    rows: everybody's memories, whose they are, and who keeps what comes of them: then each agent's row is fetched and
    written in its turn, and everybody's come back.
    """
    everybody, who, keep = rows or ((), None, None)
    who = jnp.zeros(tick.heard.shape, jnp.int32) if who is None else who

    def fetched(task: Task, everybody: tuple, k: Array) -> Task:
        return task if keep is None else task._replace(kept=take(everybody, k))

    again, shapes = traced(function, fetched(take(tasks, 0), everybody, who[0]))

    def one(carry: tuple[Inbox, tuple], given: tuple[Task, Array, Array, Array, Array]) -> tuple[tuple, tuple]:
        (inbox, everybody), (task, k, counts, weight, share) = carry, given
        task = fetched(task, everybody, k)
        message, new, *rest = again(task)
        if keep is not None:
            everybody = write(everybody, new if keep.sure else where(counts, new, task.kept), k)
            new = ()
        return (hear_one(inbox, message, weight, share), everybody), (new, *rest)

    counts = tick.heard if keep is None else keep.counts
    given: Tree = (tasks, who, counts, tick.weight, tick.share)
    (inbox, everybody), (new, *rest) = lax.scan(one, (nothing_heard(shapes[0]), everybody), given)
    return (inbox, new if keep is None else everybody, *rest)


def agent_round(
    oracle: Oracle,
    exact: bool,
    method: Algorithm,
    place: Workplace,
    heard: State,
    memory: State,
    ahead: Precomputed = NOTHING_PRECOMPUTED,
) -> tuple[Message, State, Agent, State]:
    """One agent's part of a round, wherever it is done: message, new memory, the agent as it was used, where its world
    is."""
    mine, stream, share, world = place
    moves, plan = oracle.moves and not exact, ahead.plan
    if moves:
        plan = oracle.walk(mine, stream, world)
    elif plan is None and not exact:
        plan = oracle.plan(mine, stream)
    agent = Agent(oracle, mine, stream, plan, ahead.samples, exact, share)
    message, memory = method.local(heard, memory, agent)
    return message, memory, agent, oracle.moved(plan, agent.sampled) if moves else world
