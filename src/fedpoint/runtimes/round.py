"""One round: T = combine o gather o local on (hub, memory), with a fusion center or with a hub at every node."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import split_per_agent
from fedpoint.core.inbox import Inbox, gather, hear_one, nothing_heard
from fedpoint.core.kernel import in_one_kernel, traced
from fedpoint.core.mail import look, post
from fedpoint.core.random import Key, Stream
from fedpoint.core.vector import take, where, write
from fedpoint.problems.base import Mine
from fedpoint.runtimes.ahead import NOTHING_AHEAD, Ahead, draw_here
from fedpoint.runtimes.fusing import separate
from fedpoint.runtimes.layout import Layout, over_agents
from fedpoint.runtimes.state import Inputs, State, base_of, names_of
from fedpoint.runtimes.wiring import hear, inbox_of, newest, rebased


def one_round(
    layout: Layout, inputs: Inputs, state: State, tick: Any, ahead: Ahead, key: Key, hub_row: Any, round: Any
) -> State:
    """T = combine o gather o local on (hub, memory): the operator that everything else is about."""
    algorithm = inputs.algorithm
    said = algorithm.say(state.hub, hub_row)
    if layout.late:  # answers to what the hub said some versions ago
        sender, value = jnp.zeros(1, jnp.int32), jax.tree.map(lambda a: a[None], said)
        state = state._replace(mail=post(state.mail, sender, jnp.ones(1, bool), value, round))
    together = meet if layout.blocks is None else layout.blocks.meet
    inbox, state, spent = together(layout, inputs, state, tick, said, ahead, key, round)
    hub = separate(layout, inputs, algorithm.combine, state.hub, inbox)
    if inputs.participation.abandons:
        hub = where(tick.merge, hub, state.hub)
    used = state.used
    if not isinstance(used, tuple):
        used = used + _used_of(tick.asked, jnp.sum(tick.heard, dtype=jnp.int64), spent)
    return state._replace(hub=hub, used=used)


def meet(
    layout: Layout, inputs: Inputs, state: State, tick: Any, said: Any, ahead: Ahead, key: Key, round: Any
) -> tuple[Inbox, State, Any]:
    """The agents of a tick work: what is heard of them, memories and worlds after it, and their field evaluations."""
    algorithm, heard = inputs.algorithm, Said(common=said)
    if layout.late:
        when = round - tick.age
        heard = Said(each=look(state.mail, jnp.zeros(when.shape, jnp.int32), when), when=when)
    summed = (tick.weight, tick.share) if layout.mapped and layout.blocks is None and not layout.rebase else None
    messages, new, spent, world = _work(layout, inputs, state, tick.agents, heard, ahead, key, round, heard_as=summed)
    if layout.rebase:
        then, now = jax.vmap(algorithm.base)(heard.each), algorithm.base(said)
        messages = jax.tree.map(lambda m, x, w: m + x - w, messages, then, now)
    heard_from = tick.heard & tick.merge if inputs.participation.abandons else tick.heard
    memory = _commit(layout, state.memory, tick.agents, heard_from, new, sure=not inputs.participation.abandons)
    inbox = messages if summed else separate(layout, inputs, gather, messages, tick.weight, tick.share)
    return inbox, state._replace(memory=memory, world=world), jnp.sum(tick.heard * spent, dtype=jnp.int64)


def network_round(
    layout: Layout, inputs: Inputs, state: State, turn: Any, after: Any, ahead: Ahead, keys: Any, round: Any
) -> State:
    """The same operator with a hub at every node: those whose turn it is work and say what they found, and those whose
    turn comes next hear what has reached them by then."""
    say, hear_ = (speak, listen) if layout.blocks is None else (layout.blocks.speak, layout.blocks.listen)
    state, sent, spent = say(layout, inputs, state, turn, ahead, keys, round)
    used = state.used if isinstance(state.used, tuple) else state.used + _used_of(0, sent, spent)

    def age(arc, says):
        return inputs.participation.age(keys[1], round + 1, arc, says)

    return hear_(layout, inputs, state, after, age, round + 1)._replace(used=used)


def speak(
    layout: Layout, inputs: Inputs, state: State, turn: Any, ahead: Ahead, keys: Any, round: Any
) -> tuple[State, Any, Any]:
    """The nodes of a turn work and say what they found: memories, mail and worlds after it, messages, evaluations."""
    algorithm, wires = inputs.algorithm, inputs.wires
    wiring: Any = layout.wiring
    key, _, hub_key = keys
    nodes = jnp.arange(layout.agents, dtype=jnp.int32) if turn.agents is None else turn.agents
    pick = (lambda tree: tree) if turn.agents is None else (lambda tree: take(tree, turn.agents))
    rows = hub_key.fold(round)
    said = jax.vmap(lambda hub, node: algorithm.say(hub, rows.row(node)))(pick(state.hub), names_of(inputs, nodes))
    messages, new, spent, world = _work(
        layout, inputs, state, turn.agents, Said(each=said), ahead, key, round, works=turn.heard
    )
    if algorithm.hello is None:
        messages = jax.tree.map(lambda m, x: m + x, messages, jax.vmap(algorithm.base)(said))
    sure = inputs.participation.all_heard
    memory = _commit(layout, state.memory, turn.agents, turn.heard, new, sure)
    if wiring.depth == 1 and turn.agents is None and sure:
        mail = state.mail._replace(value=messages)
    else:
        mail = post(state.mail, nodes, turn.heard, messages, round + 1)
    degree = wires.first[nodes + 1] - wires.first[nodes]
    sent = jnp.sum(jnp.where(turn.heard, degree, 0), dtype=jnp.int64)
    return state._replace(memory=memory, mail=mail, world=world), sent, jnp.sum(turn.heard * spent, dtype=jnp.int64)


def listen(layout: Layout, inputs: Inputs, state: State, after: Any, age: Any, version: Any) -> State:
    """The hubs of the nodes whose turn it is `after` hear what has reached them by then, `age(arc, says)` ticks old."""
    algorithm, wires = inputs.algorithm, inputs.wires
    wiring: Any = layout.wiring
    total = hear(wiring, wires, state.mail, after.agents, age, version)
    pick = (lambda tree: tree) if after.agents is None else (lambda tree: take(tree, after.agents))
    hub, mass = separate(layout, inputs, lambda: (pick(state.hub), pick(wires.mass)))
    if algorithm.hello is None:
        own = newest(state.mail, version) if after.agents is None else look(state.mail, after.agents, version)
        inbox = separate(layout, inputs, lambda t, y, m: rebased(t, y, m, base_of(algorithm, hub)), total, own, mass)
    else:
        inbox = separate(layout, inputs, inbox_of, total, mass)
    new = separate(layout, inputs, jax.vmap(algorithm.combine), hub, inbox)
    return state._replace(
        hub=_commit(layout, state.hub, after.agents, after.heard, new, inputs.participation.all_heard)
    )


class Said(NamedTuple):
    """What agents hear: all the same, or each its own (leading axis); in which round, where that was an earlier one."""

    common: Any = None
    each: Any = None
    when: Any = None


def _work(
    layout: Layout,
    inputs: Inputs,
    state: State,
    who: Any,
    heard: Said,
    ahead: Ahead,
    key: Key,
    round: Any,
    works: Any = None,
    heard_as: tuple | None = None,
):
    """local for the agents `who` (None: all, in their own order): messages, new memories, field evaluations, and
    where everybody's world is. `works` says which of them work at all (None: all). With `heard_as`, the messages'
    weights and shares, messages are summed as they come, and what is returned of them is the inbox."""
    algorithm = inputs.algorithm
    everyone = who is None
    places = jnp.arange(layout.agents, dtype=jnp.int32) if everyone else who
    agents = names_of(inputs, places)
    pick = (lambda tree: tree) if everyone else (lambda tree: take(tree, who))
    tuned, _ = split_per_agent(algorithm, layout.agents)
    known: list[int] = []  # evaluations of an agent, where tracing already tells

    moves = layout.oracle.moves and not layout.exact

    def work(algorithm, common, arguments):
        _, put = split_per_agent(algorithm, layout.agents)

        def one(index, own, memory, tuned, ahead, share, said, world, when):
            mine, stream = Mine(own, inputs.common), Stream(key, round if when is None else when, index)
            said = common if said is None else said
            message, memory, spent, world = agent_round(
                layout.oracle, layout.exact, put(tuned), mine, stream, said, memory, share, world, ahead
            )
            if isinstance(spent, int):
                known.append(spent)
                return message, memory, (), world
            return message, memory, jnp.asarray(spent, jnp.int64), world

        return over_agents(layout, one, *arguments) if heard_as is None else _one_by_one(one, arguments, *heard_as)

    memory, world = pick(state.memory), pick(state.world)
    own = pick(inputs.own) if ahead.own is None else ahead.own
    share = inputs.p if everyone else take(inputs.p, agents)
    rest = separate(layout, inputs, lambda: (own, memory, pick(tuned), share, heard.each, world))
    own, memory, tuned, share, each, world = rest
    if layout.blocks is not None:
        ahead = draw_here(layout, inputs, agents, own, key, round)
    arguments = (agents, own, memory, tuned, ahead, share, each, world, heard.when)
    if layout.kernel and not layout.whole:
        work = partial(in_one_kernel, jnp.minimum(round + 1, 1), work)
    messages, new, spent, world = separate(layout, inputs, work, algorithm, heard.common, arguments)
    if moves and works is not None:  # who does not work stays where it is
        world = jax.vmap(where)(works, world, pick(state.world))
    if not everyone:
        world = _commit(layout, state.world, who, jnp.ones(who.shape, bool), world, sure=True)
    return messages, new, (known[0] if known else spent), world


def _one_by_one(function, arguments: tuple, weights: Array, shares: Array):
    """function over the agents, one after the other, and what is heard of its first results."""

    function, shapes = traced(function, *take(arguments, 0))

    def one(inbox, given):
        arguments, weight, share = given
        message, *rest = function(*arguments)
        return hear_one(inbox, message, weight, share), tuple(rest)

    inbox, rest = lax.scan(one, nothing_heard(shapes[0]), (arguments, weights, shares))
    return (inbox, *rest)


def agent_round(
    oracle: Any,
    exact: bool,
    algorithm: Any,
    mine: Mine,
    stream: Stream,
    heard: Any,
    memory: Any,
    share: Any,
    world: Any,
    ahead: Ahead = NOTHING_AHEAD,
) -> tuple[Any, Any, Any, Any]:
    """One agent's part of a round, wherever it is done: message, new memory, field evaluations, where its world is."""
    moves, plan = oracle.moves and not exact, ahead.plan
    if moves:
        plan = oracle.walk(mine, stream, world)
    elif plan is None and not exact:
        plan = oracle.plan(mine, stream)
    agent = Agent(oracle, mine, stream, plan, ahead.samples, exact, stream.round, share)
    message, memory = algorithm.local(heard, memory, agent)
    return message, memory, agent.evaluations, oracle.moved(plan, agent.evaluations) if moves else world


def _commit(layout: Layout, everybody: Any, who: Any, heard: Any, new: Any, sure: bool) -> Any:
    """What everybody holds, with what is new at the agents that were heard; sure: all of them were."""
    if who is None:
        return new if sure else jax.vmap(where)(heard, new, everybody)
    if layout.whole:  # which holds no scatter

        def commit(i, everybody):
            k, answered, mine = take((who, heard, new), i)
            return write(everybody, where(answered, mine, take(everybody, k)), k)

        return lax.fori_loop(0, len(who), commit, everybody)
    # An index out of range is dropped: agents not heard, and repeated draws of one agent.
    target = jnp.where(heard, who, layout.agents)
    return jax.tree.map(lambda all_, n: all_.at[target].set(n, mode="drop"), everybody, new)


def _used_of(down: Any, up: Any, evaluations: Any) -> Array:
    """Models sent, answers and field evaluations of a round."""
    return jnp.stack([jnp.asarray(n, jnp.int64) for n in (down, up, evaluations)])
