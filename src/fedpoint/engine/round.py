"""One round: T = combine o release o gather o channel o local, wherever messages meet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedpoint.channel.base import Channel, credited
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.inbox import hear_one, nothing_heard
from fedpoint.core.random import Key, Row, Stream
from fedpoint.core.record import split_per_agent
from fedpoint.core.vector import take, where, write
from fedpoint.engine.cluster.fence import separate
from fedpoint.engine.cpu.kernel import in_one_kernel, traced
from fedpoint.engine.layout import Layout, over_agents
from fedpoint.engine.precompute import NOTHING_AHEAD, Ahead, draw_here
from fedpoint.engine.state import Inputs, RunState, names_of
from fedpoint.graphs.topology import Said
from fedpoint.problems.base import Mine, Oracle
from fedpoint.timing.base import Tick

RELEASE = 0xFFFFFFF1  # the row of a hub's luck that is the channel's


def one_round(
    layout: Layout, inputs: Inputs, state: RunState, ticks: tuple[Tick, Tick], ahead: Ahead, keys: tuple, round: Any
) -> RunState:
    """The operator that everything else is about. ticks: of this round, and of the one after it."""
    at, (tick, after) = Round(layout, inputs, keys, round), ticks
    state, sent, used = layout.topology.speak(at, state, tick, ahead)
    state = layout.topology.listen(at, state, sent, tick, after)
    if isinstance(state.used, tuple):
        return state
    return state._replace(used=state.used + jnp.stack([jnp.asarray(n, jnp.int64) for n in used]))


class Done(NamedTuple):
    """What agents have done: messages (or the inbox of them), new memories (the method's, the channel's), field
    evaluations of each, and where everybody's world is."""

    messages: Any
    kept: tuple[Any, Any]
    spent: Any
    world: Any


class Round(NamedTuple):
    """A round as topologies see it: its number, its luck, and how agents work in it."""

    layout: Layout
    inputs: Inputs
    keys: tuple[Key, Key, Key]  # of agents, timing and hub
    number: Any

    @property
    def algorithm(self) -> Algorithm:
        return self.inputs.algorithm

    def hub_luck(self, node: Any = 0) -> Row:
        return self.keys[2].fold(self.number).row(node)

    def release_luck(self) -> Row:
        return self.keys[2].fold(self.number, RELEASE).row()

    def names(self, places: Array) -> Array:
        """The numbers of the agents at these places."""
        return names_of(self.inputs, places)

    def fenced(self, function: Callable, *arguments: Any) -> Any:
        return separate(self.layout, self.inputs, function, *arguments)

    def commit(self, everybody: Any, who: Array | None, heard: Array, new: Any, sure: bool) -> Any:
        """What everybody holds, with what is new at the agents that were heard; sure: all of them were."""
        if who is None:
            return new if sure else jax.vmap(where)(heard, new, everybody)
        if self.layout.whole:  # a kernel holds no scatter

            def commit(i, everybody):
                k, answered, mine = take((who, heard, new), i)
                return write(everybody, where(answered, mine, take(everybody, k)), k)

            return lax.fori_loop(0, len(who), commit, everybody)
        # An index out of range is dropped: agents not heard, and repeated draws of one agent.
        target = jnp.where(heard, who, self.layout.agents)
        return jax.tree.map(lambda all_, n: all_.at[target].set(n, mode="drop"), everybody, new)

    def work(
        self,
        state: RunState,
        who: Array | None,
        heard: Said,
        ahead: Ahead,
        works: Array | None = None,
        summed: Tick | None = None,
        base: Any = None,
    ) -> Done:
        """local and channel for the agents `who` (None: all, in their own order).

        works: which of them work at all (None: all). summed: the tick with whose weights messages may be summed as they
        come. base: what messages are changes of, where models are sent.
        """
        layout, inputs, (key, _, _), round = self
        channel, everyone = inputs.channel, who is None
        places = jnp.arange(layout.agents, dtype=jnp.int32) if everyone else who
        agents = self.names(places)
        pick = (lambda tree: tree) if everyone else (lambda tree: take(tree, who))
        tuned, _ = split_per_agent(inputs.algorithm)
        known: list[int] = []  # evaluations of an agent, where tracing already tells
        one_by_one = summed is not None and layout.mapped and layout.blocks is None and inputs.gather.conserves

        def work(algorithm, channel, common, arguments):
            _, put = split_per_agent(algorithm)

            def one(index, own, kept, tuned, ahead, share, said, world, when, last, base):
                mine, stream = Mine(own, inputs.common), Stream(key, round if when is None else when, index)
                said, method = common if said is None else said, put(tuned)
                message, memory, agent, world = agent_round(
                    layout.oracle, layout.exact, method, mine, stream, said, kept[0], share, world, ahead
                )
                message, kept = transmitted(method, channel, message, (memory, kept[1]), agent, base, last)
                if isinstance(agent.evaluations, int):
                    known.append(agent.evaluations)
                    return message, kept, (), world
                return message, kept, jnp.asarray(agent.evaluations, jnp.int64), world

            if one_by_one:
                return _one_by_one(one, arguments, summed.weight, summed.share)
            return over_agents(layout, one, *arguments)

        kept, world = pick((state.memory, state.wire)), pick(state.world)
        own = pick(inputs.own) if ahead.own is None else ahead.own
        share = inputs.p if everyone else take(inputs.p, agents)
        rest = self.fenced(lambda: (own, kept, pick(tuned), share, heard.each, world, heard.last, base))
        own, kept, tuned, share, each, world, last, base = rest
        if layout.blocks is not None:
            ahead = draw_here(layout, inputs, agents, own, key, round)
        arguments = (agents, own, kept, tuned, ahead, share, each, world, heard.when, last, base)
        run: Callable = work
        if layout.tuning.kernel and not layout.whole:
            run = partial(in_one_kernel, jnp.minimum(round + 1, 1), work)
        messages, new, spent, world = self.fenced(run, inputs.algorithm, channel, heard.common, arguments)
        if layout.oracle.moves and not layout.exact and works is not None:  # who does not work stays where it is
            world = jax.vmap(where)(works, world, pick(state.world))
        if not everyone:
            world = self.commit(state.world, who, jnp.ones(who.shape, bool), world, sure=True)
        return Done(messages, new, known[0] if known else spent, world)


def transmitted(
    method: Algorithm,
    channel: Channel,
    message: Any,
    kept: tuple[Any, Any],
    agent: Agent,
    base: Any = None,
    last: Any = None,
) -> tuple[Any, tuple[Any, Any]]:
    """What arrives of a message, and memories that know of it."""
    code, kept = encoded(method, channel, message, kept, agent, base, last)
    return decoded(channel, code, message, last), kept


def encoded(
    method: Algorithm,
    channel: Channel,
    message: Any,
    kept: tuple[Any, Any],
    agent: Agent,
    base: Any = None,
    last: Any = None,
) -> tuple[Any, tuple[Any, Any]]:
    """What is sent of a message, and memories that know what will arrive.

    base: neighbours are told a model, not a change of it. last: what they know already, from which the difference is
    sent.
    """
    if base is not None:
        message = jax.tree.map(lambda m, x: m + x, message, base)
    if channel.plain():
        return message, kept
    memory, wire = kept
    if last is not None:
        message = jax.tree.map(lambda m, x: m - x, message, last)
    code, new = channel.encode(message, wire, agent)
    if last is None and not channel.lossless:
        memory = method.acknowledge(memory, message, credited(channel, message, code, wire, new))
    return code, (memory, new)


def decoded(channel: Channel, code: Any, like: Any, last: Any = None) -> Any:
    """What arrives, built as `like`. Of a difference to `last` a part, so that what is lost does not grow."""
    if channel.plain():
        return code
    arrived = channel.decode(code, like)
    if last is None:
        return arrived
    length = 1.0 / (1.0 + channel.omega(like))
    return jax.tree.map(lambda x, a: x + length * a, last, arrived)


def _one_by_one(function: Callable, arguments: tuple, weights: Array, shares: Array) -> Any:
    """function over the agents, one after the other, and what is heard of its first results."""
    function, shapes = traced(function, *take(arguments, 0))

    def one(inbox, given):
        arguments, weight, share = given
        message, *rest = function(*arguments)
        return hear_one(inbox, message, weight, share), tuple(rest)

    inbox, rest = lax.scan(one, nothing_heard(shapes[0]), (arguments, weights, shares))
    return (inbox, *rest)


def agent_round(
    oracle: Oracle,
    exact: bool,
    algorithm: Algorithm,
    mine: Mine,
    stream: Stream,
    heard: Any,
    memory: Any,
    share: Any,
    world: Any = (),
    ahead: Ahead = NOTHING_AHEAD,
) -> tuple[Any, Any, Agent, Any]:
    """One agent's part of a round, wherever it is done: message, new memory, the agent as it was used, where its world
    is."""
    moves, plan = oracle.moves and not exact, ahead.plan
    if moves:
        plan = oracle.walk(mine, stream, world)
    elif plan is None and not exact:
        plan = oracle.plan(mine, stream)
    agent = Agent(oracle, mine, stream, plan, ahead.samples, exact, share)
    message, memory = algorithm.local(heard, memory, agent)
    return message, memory, agent, oracle.moved(plan, agent.evaluations) if moves else world
