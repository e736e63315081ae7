"""One compiled program per run: rounds under a loop, agents batched or mapped, repeats and sweeps batched.

What is random does not depend on the state, so it is drawn ahead for a chunk of rounds at once, outside the inner
loop; the numbers are those that would be drawn on the spot. The number of rounds is not compiled in: a run that
is extended, resumed or stopped reuses the program.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import samples_per_round, split_per_agent
from fedpoint.core.inbox import Inbox, gather, hear_one, nothing_heard
from fedpoint.core.mail import look, open_mail, post
from fedpoint.core.random import Key, Row, Stream
from fedpoint.core.vector import take, where
from fedpoint.problems.base import Mine
from fedpoint.runtimes.wiring import Wiring, hear, inbox_of, newest, rebased

AGENTS, SCHEDULE, HUB = 0, 1, 2  # purposes of random numbers

CHUNK_BYTES = 1 << 21  # what is drawn ahead should stay in the processor's cache
ROUND_BYTES = 1 << 26  # more than this in one round is drawn on the spot
CHUNK_ROUNDS = 64
FETCH_BYTES = 512  # of an agent's own arrays: rows far apart in memory are fetched together, not round by round
SEGMENT_BYTES = 1 << 22  # recorded models of one call
SEGMENT_RECORDS = 4096
RAGGED = 1.5  # largest over mean work of an agent, from which padding costs more than mapping
THREAD_BYTES = 1 << 18  # of a round's arrays or a chunk's draws, from which threads gain more than waking them costs
LARGE_MODEL = 4096  # floats, from which one agent's work fills the vector units by itself


class State(NamedTuple):
    """All that the next round needs, and what was used so far (models sent, answers, field evaluations).

    `mail` is what was said and may still be heard: () with a fusion center that waits for its answers. `used` is ()
    when every round uses the same, known beforehand. On a network hubs lead with the nodes' axis. `world` is where the
    agents' worlds are, where these go on between rounds.
    """

    hub: Any
    memory: Any
    mail: Any
    used: Any
    world: Any = ()


class Records(NamedTuple):
    """What is kept of a round."""

    model: Any
    used: Any


@dataclass(frozen=True)
class Layout:
    """How the engine executes a run: structure, compiled in."""

    oracle: Any
    agents: int
    slots: int
    exact: bool
    samples: int | None  # drawn ahead for each agent and round; None: on the spot
    chunk: int  # rounds drawn ahead
    mapped: bool  # agents (and repeats) one after the other, else batched
    fetch: bool  # agents' own arrays are fetched ahead too
    capacity: int  # records of a segment
    threads: bool  # single operations are shared out between threads
    wiring: Wiring | None = None  # of a network
    late: int = 0  # versions of the hub that late answers may come from; 0: a round's answers come in the round
    rebase: bool = False  # a late answer is merged as a model, not as a change
    blocks: Any = None  # of agents, where they are shared out between processes (runtimes/cluster.py)

    def explain(self) -> str:
        agents = "one after the other (no padding)" if self.mapped else "batched"
        buckets = getattr(self.oracle, "buckets", ())
        if buckets:
            agents += f", rows ordered in size buckets of {', '.join(map(str, buckets))} and more"
        if self.exact:
            draws = "exact fields, no samples"
        elif self.samples is None:
            draws = "samples drawn on the spot" if self.oracle.predraw else f"plans drawn ahead for {self.chunk} rounds"
        else:
            draws = f"samples drawn ahead for {self.chunk} rounds"
        shared = "" if self.blocks is None else f"; {self.blocks.explain()}"
        return f"agents {agents}; {draws}{shared}"


def choose(
    oracle: Any,
    algorithm: Any,
    problem: Any,
    participation: Any,
    model: Any,
    exact: bool,
    lanes: int,
    wiring: Wiring | None = None,
) -> Layout:
    """The layout for a run of `lanes` repeats or sweep points, from what is known of sizes."""
    agents = problem.agents
    slots = participation.slots(agents)
    held = 1 if wiring is None else agents  # models of a record
    floats = sum(np.size(a) for a in jax.tree.leaves(model))
    bytes_ = _bytes(model)
    ragged = agents > 1 and _raggedness(oracle, algorithm, problem, exact) > RAGGED
    mapped = ragged or (agents > 1 and floats > LARGE_MODEL)
    own = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a)[1:], np.asarray(a).dtype), problem.own)
    stream = jax.eval_shape(lambda: Stream(Key.of(0), jnp.int32(0), jnp.int32(0)))
    # Ahead, every agent would draw as many samples as the one that needs the most.
    samples = None if exact or ragged or not oracle.predraw else samples_per_round(algorithm)

    def drawn_ahead(own, common, stream, plan):
        return _draw(oracle, Mine(own, common), plan, jax.vmap(stream.row)(jnp.arange(samples)))

    own_bytes = _bytes(own)
    fetch = participation.drawn and own_bytes <= FETCH_BYTES
    per_agent = own_bytes if fetch else 0
    if not exact:
        plan = oracle.plan_shape(Mine(own, problem.common), stream)
        per_agent += _bytes(plan)
        if samples is not None:
            per_agent += _bytes(jax.eval_shape(drawn_ahead, own, problem.common, stream, plan))
    lanes_ahead = 1 if mapped else lanes
    per_round = max(1, per_agent * slots * lanes_ahead)
    if per_round > ROUND_BYTES:
        samples = None
    chunk = int(np.clip(CHUNK_BYTES // per_round, 1, CHUNK_ROUNDS))
    capacity = int(np.clip(SEGMENT_BYTES // max(1, bytes_ * lanes * held), 1, SEGMENT_RECORDS))
    at_once = bytes_ if mapped else slots * lanes * (bytes_ + own_bytes)
    if exact or getattr(problem, "batch", None) is None:
        at_once += _bytes(jax.tree.map(np.asarray, problem.common))
    drawn = per_agent if mapped else per_round * chunk
    if wiring is not None:
        at_once = max(at_once, bytes_ * agents * lanes)
    threads = max(at_once, drawn) > THREAD_BYTES
    late, rebase = getattr(participation, "late", 0), getattr(participation, "rebase", False)
    return Layout(
        oracle, agents, slots, exact, samples, chunk, mapped, fetch, capacity, threads, wiring, late, bool(rebase)
    )


def _bytes(shapes: Any) -> int:
    return sum(int(np.prod(s.shape)) * np.dtype(s.dtype).itemsize for s in jax.tree.leaves(shapes))


def _raggedness(oracle: Any, algorithm: Any, problem: Any, exact: bool) -> float:
    """Largest over mean work of an agent in a round."""
    steps = getattr(algorithm, "local_steps", 1)
    steps = getattr(steps, "steps", 1 if steps is None else steps)
    work = np.broadcast_to(np.asarray(steps, dtype=float), problem.weights.shape)
    rows = problem.local_rows()
    if rows is not None and (exact or problem.batch is None) and not getattr(oracle, "gram", False):
        work = work * rows
    return float(work.max() / work.mean())


def _draw(oracle: Any, mine: Mine, plan: Any, rows: Row) -> Any:
    """The samples of a round, (samples, ...), each from its row."""
    return jax.vmap(lambda row, e: oracle.draw(mine, plan, row, e))(rows, jnp.arange(rows.at.shape[0]))


def start_state(algorithm: Any, model: Any, agents: int, counted: bool, late: int = 0) -> State:
    """With a fusion center. `late` versions of what the hub said are kept, where answers may come late."""
    hub, one = jax.tree.map(lambda a: a if hasattr(a, "dtype") else np.asarray(a), algorithm.init(model))
    memory = jax.tree.map(lambda a: a[None].repeat(agents, 0), one)  # by NumPy, where the model is NumPy's
    mail: Any = ()
    if late:
        said = algorithm.say(hub, Key(jnp.uint32(0), jnp.uint32(0)).row())
        mail = open_mail(jax.tree.map(lambda a: jnp.asarray(a)[None], said), max(late, 2))
    return State(hub, memory, mail, none_used(counted))


def start_network(algorithm: Any, models: Any, wiring: Wiring, wires: Any, counted: bool) -> State:
    """On a network: models lead with the nodes' axis. Everybody has heard what the neighbours start from."""
    hub, memory = jax.vmap(algorithm.init)(models)
    if algorithm.hello is None:
        return State(hub, memory, open_mail(base_of(algorithm, hub), wiring.depth), none_used(counted))
    mail = open_mail(jax.vmap(algorithm.hello)(models), wiring.depth)
    total = hear(wiring, wires, mail, None, lambda arc, says: jnp.zeros_like(arc), 0)
    hub = jax.vmap(algorithm.combine)(hub, inbox_of(total, wires.mass))
    return State(hub, memory, mail, none_used(counted))


def start_worlds(layout: Layout, inputs: Inputs, seeds: tuple) -> Any:
    """(repeats, agents, ...): where the agents' worlds begin; () where they do not go on between rounds."""
    if layout.exact or not layout.oracle.moves:
        return ()

    def begin(low, high):
        def one(own, agent):
            return layout.oracle.begin(Mine(own, inputs.common), Stream(Key(low, high), jnp.int32(-1), agent))

        return jax.vmap(one)(inputs.own, _names(inputs, jnp.arange(layout.agents, dtype=jnp.int32)))

    return jax.vmap(begin)(*seeds[AGENTS])


def none_used(counted: bool) -> Any:
    return np.zeros(3, np.int64) if counted else ()


def base_of(algorithm: Any, hub: Any) -> Any:
    """What the changes of nodes with these hubs are changes of."""
    row = Key(jnp.uint32(0), jnp.uint32(0)).row()
    return jax.vmap(lambda h: algorithm.base(algorithm.say(h, row)))(hub)


class Inputs(NamedTuple):
    """The numbers of a run: traced."""

    algorithm: Any
    participation: Any
    own: Any
    common: Any
    p: Array
    wires: Any = ()
    part: Any = ()  # which agents are this process's, where there are several


def _over_agents(layout: Layout, function, *arguments):
    """function over the agents of a round."""
    if layout.mapped:
        return lax.map(lambda a: function(*a), arguments)
    return jax.vmap(function)(*arguments)


def _one_by_one(function, arguments: tuple, weights: Array, shares: Array):
    """function over the agents, one after the other, and what is heard of its first results."""

    def one(inbox, given):
        arguments, weight, share = given
        message, *rest = function(*arguments)
        return hear_one(inbox, message, weight, share), tuple(rest)

    message = jax.eval_shape(lambda given: function(*take(given, 0))[0], arguments)
    inbox, rest = lax.scan(one, nothing_heard(message), (arguments, weights, shares))
    return (inbox, *rest)


class Ahead(NamedTuple):
    """What is fetched and drawn ahead for the agents of a round; None where it is done on the spot."""

    own: Any = None
    plan: Any = None
    samples: Any = None


NOTHING_AHEAD = Ahead()


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
    agents = _names(inputs, places)
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

        return _over_agents(layout, one, *arguments) if heard_as is None else _one_by_one(one, arguments, *heard_as)

    memory, world = pick(state.memory), pick(state.world)
    own = pick(inputs.own) if ahead.own is None else ahead.own
    share = inputs.p if everyone else take(inputs.p, agents)
    rest = _separate(layout, inputs, lambda: (own, memory, pick(tuned), share, heard.each, world))
    own, memory, tuned, share, each, world = rest
    if layout.blocks is not None:
        ahead = _drawn_here(layout, inputs, agents, own, key, round)
    arguments = (agents, own, memory, tuned, ahead, share, each, world, heard.when)
    messages, new, spent, world = _separate(layout, inputs, work, algorithm, heard.common, arguments)
    if moves and works is not None:  # who does not work stays where it is
        world = jax.vmap(where)(works, world, pick(state.world))
    if not everyone:
        world = jax.tree.map(lambda all_, n: all_.at[who].set(n), state.world, world)
    return messages, new, (known[0] if known else spent), world


def _names(inputs: Inputs, places: Array) -> Array:
    """The numbers of the agents at these places of this process's arrays."""
    return places if isinstance(inputs.part, tuple) and not inputs.part else places + inputs.part.first


class Said(NamedTuple):
    """What agents hear: all the same, or each its own (leading axis); in which round, where that was an earlier one."""

    common: Any = None
    each: Any = None
    when: Any = None


def _commit(layout: Layout, everybody: Any, who: Any, heard: Any, new: Any, sure: bool) -> Any:
    """What everybody holds, with what is new at the agents that were heard; sure: all of them were."""
    if who is None:
        return new if sure else jax.vmap(where)(heard, new, everybody)
    # An index out of range is dropped: agents not heard, and repeated draws of one agent.
    target = jnp.where(heard, who, layout.agents)
    return jax.tree.map(lambda all_, n: all_.at[target].set(n, mode="drop"), everybody, new)


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
    hub = _separate(layout, inputs, algorithm.combine, state.hub, inbox)
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
    inbox = messages if summed else _separate(layout, inputs, gather, messages, tick.weight, tick.share)
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
    said = jax.vmap(lambda hub, node: algorithm.say(hub, rows.row(node)))(pick(state.hub), _names(inputs, nodes))
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
    hub, mass = _separate(layout, inputs, lambda: (pick(state.hub), pick(wires.mass)))
    if algorithm.hello is None:
        own = newest(state.mail, version) if after.agents is None else look(state.mail, after.agents, version)
        inbox = _separate(layout, inputs, lambda t, y, m: rebased(t, y, m, base_of(algorithm, hub)), total, own, mass)
    else:
        inbox = _separate(layout, inputs, inbox_of, total, mass)
    new = _separate(layout, inputs, jax.vmap(algorithm.combine), hub, inbox)
    return state._replace(
        hub=_commit(layout, state.hub, after.agents, after.heard, new, inputs.participation.all_heard)
    )


def _used_of(down: Any, up: Any, evaluations: Any) -> Array:
    """Models sent, answers and field evaluations of a round."""
    return jnp.stack([jnp.asarray(n, jnp.int64) for n in (down, up, evaluations)])


def _apart(once: Array, function: Any, *arguments: Any) -> Any:
    """function(*arguments), computed once and kept.

    XLA fuses a cheap expression into every place that uses it: a key would be hashed again for each number drawn from
    it, an index for each number of its row. A loop whose length (1) the compiler does not know stands in between.
    """
    shapes = jax.eval_shape(function, *arguments)
    empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return lax.fori_loop(0, once, lambda *_: function(*arguments), empty)


def _separate(layout: Layout, inputs: Inputs, function: Any, *arguments: Any) -> Any:
    """function(*arguments), on several processes computed apart from what is around it.

    How XLA fuses decides where it contracts products and sums, so that the same expression among arrays of other sizes
    may end in other bits: what rounds is computed from arrays whose shapes do not depend on the number of processes. In
    the loop that stands in between, arguments depend on its counter, or XLA would move what it can in front of it.
    """
    if layout.blocks is None:
        return function(*arguments)
    shapes = jax.eval_shape(function, *arguments)
    empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def body(i, _):
        return function(*jax.tree.map(lambda a: jnp.where(i == 0, a, jnp.zeros_like(a)), arguments))

    return lax.fori_loop(0, jnp.minimum(inputs.part.count, 1), body, empty)


def _drawn_here(layout: Layout, inputs: Inputs, agents: Array, own: Any, key: Key, round: Any) -> Ahead:
    """What a chunk's agents draw in a round: at once, so that a key is hashed for a step and not for every number."""
    oracle = layout.oracle
    if layout.samples is None or layout.late or oracle.moves:
        return NOTHING_AHEAD
    once = jnp.minimum(inputs.part.count, 1)
    keys = _apart(once, jax.vmap(lambda e: key.fold(round, e)), jnp.arange(layout.samples))

    def draw(agents, own):
        def one(agent, own):
            mine = Mine(own, inputs.common)
            plan = oracle.plan(mine, Stream(key, round, agent))
            return plan, _draw(oracle, mine, plan, jax.vmap(lambda k: k.row(agent))(keys))

        return _over_agents(layout, one, agents, own)

    plans, drawn = _separate(layout, inputs, draw, agents, own)
    return Ahead(None, plans, oracle.fetch(inputs.common, drawn) if oracle.fetches else drawn)


def _ahead(layout: Layout, inputs: Inputs, ticks: Any, key: Key, rounds: Array, once: Array) -> Ahead:
    """For a chunk of rounds: (rounds, slots, ...)."""
    oracle, common = layout.oracle, inputs.common
    who, axis = (jnp.arange(layout.agents, dtype=jnp.int32), inputs.own), None
    if ticks.agents is not None:
        who, axis = (ticks.agents, take(inputs.own, ticks.agents)), 0
    fetched = who[1] if layout.fetch and axis == 0 else None  # everyone: nothing to fetch
    if layout.blocks is not None or layout.exact or oracle.moves or (layout.samples is None and oracle.predraw):
        return Ahead(fetched)

    def each(function, of_round, of_agent=()):
        """function(agent, own, of_round, of_agent) for every round and agent."""

        def one(who, of_round, of_agent):
            return _over_agents(layout, lambda w, a: function(*w, of_round, a), who, of_agent)

        if layout.mapped and axis == 0:
            return lax.map(lambda a: one(*a), (who, of_round, of_agent))
        if layout.mapped:
            return lax.map(lambda a: one(who, *a), (of_round, of_agent))
        return jax.vmap(one, in_axes=(axis, 0, 0))(who, of_round, of_agent)

    # A late answer was worked out in the round in which it was asked for.
    when = () if not layout.late else rounds[:, None] - ticks.age

    def plan(agent, own, round, when):
        return oracle.plan(Mine(own, common), Stream(key, when if layout.late else round, agent))

    plans = each(plan, rounds, when)
    if layout.samples is None:
        return Ahead(fetched, plans)
    steps = jnp.arange(layout.samples)
    if layout.late:

        def late(agent, own, _, planned):
            plan, when = planned
            return _draw(oracle, Mine(own, common), plan, jax.vmap(Stream(key, when, agent).row)(steps))

        drawn = each(late, rounds, (plans, when))
        return Ahead(fetched, plans, oracle.fetch(common, drawn) if oracle.fetches else drawn)

    def draw(plans, keys):
        def one(agent, own, keys, plan):
            return _draw(oracle, Mine(own, common), plan, jax.vmap(lambda k: k.row(agent))(keys))

        return each(one, keys, plans)

    keys = _apart(once, jax.vmap(lambda r: jax.vmap(lambda e: key.fold(r, e))(steps)), rounds)
    if oracle.fetches:
        return Ahead(fetched, plans, oracle.fetch(common, _apart(once, draw, plans, keys)))
    return Ahead(fetched, plans, draw(plans, keys))


def _segment(layout: Layout, inputs: Inputs, state: State, seeds: tuple, first: Array, rounds: Array, every: Array):
    """`rounds` rounds from round `first` on, of one repeat; a record at each multiple of `every`."""
    keys = tuple(Key(*s) for s in seeds)
    key, schedule, hub_key = keys
    participation, algorithm = inputs.participation, inputs.algorithm
    chunk, once = layout.chunk, jnp.minimum(rounds, 1)
    star = layout.wiring is None
    read = algorithm.read if star else jax.vmap(algorithm.read)
    model = read(state.hub, state.memory)
    empty = jax.tree.map(lambda a: jnp.zeros((layout.capacity, *a.shape), a.dtype), Records(model, state.used))

    def draw(rounds):
        """Who takes part in each of these rounds."""
        if not star:
            return jax.vmap(lambda r: participation.turn(schedule, r, inputs.p.shape[0]))(rounds)
        folded = _apart(once, jax.vmap(schedule.fold), rounds)
        return jax.vmap(lambda k, r: participation.tick(k, inputs.p, r))(folded, rounds)

    def run_chunk(c, carry):
        base = first + c * chunk
        in_chunk = base + jnp.arange(chunk)
        if not participation.drawn:
            ticks = (
                participation.tick(schedule.fold(base), inputs.p, base)
                if star
                else participation.turn(schedule, base, inputs.p.shape[0])
            )
        elif star:
            ticks = draw(in_chunk)
        else:  # a network's hubs hear for the tick after
            turns = draw(base + jnp.arange(chunk + 1))
            ticks = jax.tree.map(lambda a: a[:-1], turns)
        ahead = _ahead(layout, inputs, ticks, key, in_chunk, once)
        # Without axes of length one, which XLA would lay out in another order than the loop's, and copy.
        dense = jax.tree.map(lambda a: a.reshape(chunk, *(n for n in a.shape[1:] if n > 1)), ahead)

        def body(i, carry):
            state, records = carry
            round = base + i
            tick = jax.tree.map(lambda a: a[i], ticks) if participation.drawn else ticks
            now = jax.tree.map(lambda d, a: d[i].reshape(a.shape[1:]), dense, ahead)
            if star:
                state = one_round(layout, inputs, state, tick, now, key, hub_key.fold(round).row(), round)
            else:
                after = jax.tree.map(lambda a: a[i + 1], turns) if participation.drawn else ticks
                state = network_round(layout, inputs, state, tick, after, now, keys, round)
            # Every round writes into its window's place; the window's last round remains.
            place = lax.div(round, every) - lax.div(first, every)
            record = Records(read(state.hub, state.memory), state.used)
            records = jax.tree.map(lambda b, a: lax.dynamic_update_index_in_dim(b, a, place, 0), records, record)
            return state, records

        return lax.fori_loop(0, jnp.minimum(chunk, rounds - c * chunk), body, carry)

    return lax.fori_loop(0, (rounds + chunk - 1) // chunk, run_chunk, (state, empty))


def all_lanes(
    layout: Layout, inputs: Inputs, state: State, seeds: tuple, first: Array, rounds: Array, every: Array, swept: bool
):
    """All repeats (leading axis of state and seeds); swept: the algorithm's numbers lead with that axis too."""

    own_luck = inputs.participation.per_repeat  # a timetable of its own for each repeat

    def lane(algorithm, participation, state, seeds):
        mine = inputs._replace(algorithm=algorithm, participation=participation)
        return _segment(layout, mine, state, seeds, first, rounds, every)

    batched = (swept, own_luck, True, True)
    arguments = (inputs.algorithm, inputs.participation, state, seeds)
    if jax.tree.leaves(seeds)[0].shape[0] == 1 and not swept:  # no axis to batch: plainer, faster code
        single = [jax.tree.map(lambda a: a[0], a) if axis else a for a, axis in zip(arguments, batched, strict=True)]
        return jax.tree.map(lambda a: a[None], lane(*single))
    if layout.mapped or layout.blocks is not None:  # batched, loops over agents would last as the longest does
        some = tuple(a for a, axis in zip(arguments, batched, strict=True) if axis)

        def one(mapped):
            rest = iter(mapped)
            return lane(*(next(rest) if axis else a for a, axis in zip(arguments, batched, strict=True)))

        return lax.map(one, some)
    return jax.vmap(lane, in_axes=tuple(0 if axis else None for axis in batched))(*arguments)


# XLA's passes that are left out, by `layout.threads`. Sums of more than 32 terms would be made in two stages, which
# takes longer; one thread is not woken for work that is done before it comes; products of small matrices are faster of
# matrices that lie as they are read.
WITHOUT = {
    threads: {"xla_disable_hlo_passes": ",".join(("tree_reduction_rewriter", *more))}
    for threads, more in ((True, ()), (False, ("cpu-parallel-task-assigner", "transpose-folding")))
}
PROGRAMS = {
    threads: jax.jit(
        all_lanes, static_argnames=("layout", "swept"), donate_argnames=("state",), compiler_options=options
    )
    for threads, options in WITHOUT.items()
}


def seeds_of(seed: int, repeats: int) -> tuple:
    """Keys of every repeat, for agents, schedule and hub."""
    repeat = np.arange(repeats)
    return tuple(tuple(Key.of(seed, repeat, purpose)) for purpose in (AGENTS, SCHEDULE, HUB))


class Message(NamedTuple):
    """What a round moves: numbers in one message down and up, bytes of a number, and (models sent, answers, field
    evaluations) of a round where they are always the same, else None."""

    down: int
    up: int
    width: int
    used: tuple[int, int, int] | None
    evaluations: int | None  # of fields by one agent in a round, where tracing tells


def message_of(algorithm: Any, model: Any, layout: Layout, inputs: Inputs) -> Message:
    """From shapes alone: nothing is computed."""
    row = Key(np.uint32(0), np.uint32(0)).row()
    evaluations: list[Any] = []

    def both(model, inputs):
        algorithm = inputs.algorithm
        hub, memory = algorithm.init(model)
        if layout.wiring is not None and algorithm.hello is not None:  # hubs hold what they hear
            heard_at_first = Inbox(*(algorithm.hello(model),) * 2, jnp.ones(()), jnp.ones(()))
            hub = algorithm.combine(hub, heard_at_first)
        heard = algorithm.say(hub, row)
        tuned, put = split_per_agent(algorithm, layout.agents)
        mine = Mine(take(inputs.own, 0), inputs.common)
        agent = Agent(layout.oracle, mine, Key(row.low, row.high), None, None, True, 0, inputs.p[0])
        message = put(take(tuned, 0)).local(heard, memory, agent)[0]
        evaluations.append(agent.evaluations)
        return heard, message

    heard, message = jax.eval_shape(both, model, inputs._replace(algorithm=algorithm))
    down, up = (sum(int(np.prod(a.shape)) for a in jax.tree.leaves(tree)) for tree in (heard, message))
    width = max(a.dtype.itemsize for a in jax.tree.leaves(model))
    used = None
    if inputs.participation.all_heard and isinstance(evaluations[0], int):
        if layout.wiring is None:
            used = (layout.slots, layout.slots, layout.slots * evaluations[0])
        elif layout.slots == layout.agents:
            used = (0, layout.wiring.arcs, layout.slots * evaluations[0])
    return Message(down, up, width, used, evaluations[0] if isinstance(evaluations[0], int) else None)


def enough_samples(layout: Layout, algorithm: Any, evaluations: int | None) -> Layout:
    """The layout, drawing on the spot where a user's own method may ask for more samples than are drawn ahead.

    How many are is told by `local_steps` or `samples`; a method that counts its steps otherwise would get some twice.
    """
    if layout.samples is None:
        return layout
    told = hasattr(algorithm, "local_steps") or algorithm.samples is not None
    if (evaluations is None and not told) or (evaluations is not None and evaluations > layout.samples):
        return replace(layout, samples=None)
    return layout
