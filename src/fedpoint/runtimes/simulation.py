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
from fedpoint.core.inbox import gather
from fedpoint.core.random import Key, Row, Stream
from fedpoint.core.vector import take, where
from fedpoint.problems.base import Mine

AGENTS, SCHEDULE, HUB = 0, 1, 2  # purposes of random numbers

CHUNK_BYTES = 1 << 21  # what is drawn ahead should stay in the processor's cache
ROUND_BYTES = 1 << 26  # more than this in one round is drawn on the spot
CHUNK_ROUNDS = 64
FETCH_BYTES = 512  # of an agent's own arrays: rows far apart in memory are fetched together, not round by round
SEGMENT_BYTES = 1 << 25  # recorded models of one call
SEGMENT_RECORDS = 4096
RAGGED = 1.5  # largest over mean work of an agent, from which padding costs more than mapping
THREAD_BYTES = 1 << 18  # of a round's arrays or a chunk's draws, from which threads gain more than waking them costs
LARGE_MODEL = 4096  # floats, from which one agent's work fills the vector units by itself


class State(NamedTuple):
    """All that the next round needs, and what was used so far (models sent, answers, field evaluations).

    `used` is () when every round uses the same, known beforehand.
    """

    hub: Any
    memory: Any
    used: Any


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
        return f"agents {agents}; {draws}"


def choose(
    oracle: Any,
    algorithm: Any,
    problem: Any,
    participation: Any,
    model: Any,
    exact: bool,
    lanes: int,
) -> Layout:
    """The layout for a run of `lanes` repeats or sweep points, from what is known of sizes."""
    agents = problem.agents
    slots = participation.slots(agents)
    floats = sum(np.size(a) for a in jax.tree.leaves(model))
    bytes_ = _bytes(model)
    ragged = agents > 1 and _raggedness(oracle, algorithm, problem, exact) > RAGGED
    mapped = ragged or (agents > 1 and floats > LARGE_MODEL)
    own = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a)[1:], np.asarray(a).dtype), problem.own)
    stream = jax.eval_shape(lambda: Stream(Key.of(0), jnp.int32(0), jnp.int32(0)))
    # Ahead, every agent would draw as many samples as the one that needs the most.
    samples = None if exact or ragged or not oracle.predraw else samples_per_round(algorithm)

    def ahead(own, common, stream):
        mine = Mine(own, common)
        plan = oracle.plan(mine, stream)
        drawn = () if samples is None else _draw(oracle, mine, plan, jax.vmap(stream.row)(jnp.arange(samples)))
        return plan, drawn

    own_bytes = _bytes(own)
    fetch = participation.drawn and own_bytes <= FETCH_BYTES
    per_agent = own_bytes if fetch else 0
    if not exact:
        per_agent += _bytes(jax.eval_shape(ahead, own, problem.common, stream))
    lanes_ahead = 1 if mapped else lanes
    per_round = max(1, per_agent * slots * lanes_ahead)
    if per_round > ROUND_BYTES:
        samples = None
    chunk = int(np.clip(CHUNK_BYTES // per_round, 1, CHUNK_ROUNDS))
    capacity = int(np.clip(SEGMENT_BYTES // max(1, bytes_ * lanes), 1, SEGMENT_RECORDS))
    at_once = bytes_ if mapped else slots * lanes * (bytes_ + own_bytes)
    if exact or getattr(problem, "batch", None) is None:
        at_once += _bytes(jax.tree.map(np.asarray, problem.common))
    drawn = per_agent if mapped else per_round * chunk
    threads = max(at_once, drawn) > THREAD_BYTES
    return Layout(oracle, agents, slots, exact, samples, chunk, mapped, fetch, capacity, threads)


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


def start_state(algorithm: Any, model: Any, agents: int, counted: bool) -> State:
    hub, one = algorithm.init(model)
    memory = jax.tree.map(lambda a: jnp.broadcast_to(a, (agents, *jnp.shape(a))), one)
    return State(jax.tree.map(jnp.asarray, hub), memory, jnp.zeros(3, jnp.int64) if counted else ())


class Inputs(NamedTuple):
    """The numbers of a run: traced."""

    algorithm: Any
    participation: Any
    own: Any
    common: Any
    p: Array


def _over_agents(layout: Layout, function, *arguments):
    """function over the agents of a round."""
    if layout.mapped:
        return lax.map(lambda a: function(*a), arguments)
    return jax.vmap(function)(*arguments)


class Ahead(NamedTuple):
    """What is fetched and drawn ahead for the agents of a round; None where it is done on the spot."""

    own: Any = None
    plan: Any = None
    samples: Any = None


def one_round(
    layout: Layout, inputs: Inputs, state: State, tick: Any, ahead: Ahead, key: Key, hub_row: Any, round: Any
) -> State:
    """T = combine o gather o local on (hub, memory): the operator that everything else is about."""
    algorithm, K = inputs.algorithm, layout.agents
    everyone = tick.agents is None
    agents = jnp.arange(K, dtype=jnp.int32) if everyone else tick.agents
    pick = (lambda tree: tree) if everyone else (lambda tree: take(tree, tick.agents))
    heard = algorithm.say(state.hub, hub_row)
    tuned, put = split_per_agent(algorithm, K)
    known: list[int] = []  # evaluations of an agent, where tracing already tells

    def work(index, own, memory, tuned, ahead, share):
        mine, stream = Mine(own, inputs.common), Stream(key, round, index)
        plan = ahead.plan
        if plan is None and not layout.exact:
            plan = layout.oracle.plan(mine, stream)
        agent = Agent(layout.oracle, mine, stream, plan, ahead.samples, layout.exact, round, share)
        message, memory = put(tuned).local(heard, memory, agent)
        if isinstance(agent.evaluations, int):
            known.append(agent.evaluations)
            return message, memory, ()
        return message, memory, jnp.asarray(agent.evaluations, jnp.int64)

    memory = pick(state.memory)
    own = pick(inputs.own) if ahead.own is None else ahead.own
    messages, new, spent = _over_agents(layout, work, agents, own, memory, pick(tuned), ahead, pick(inputs.p))
    hub = algorithm.combine(state.hub, gather(messages, tick.weight, tick.share))
    heard_from = tick.heard
    if inputs.participation.abandons:
        hub = where(tick.merge, hub, state.hub)
        heard_from = heard_from & tick.merge
    if everyone:
        if inputs.participation.abandons:
            new = jax.vmap(where)(heard_from, new, memory)
    else:
        # An index out of range is dropped: agents not heard, and repeated draws of one agent.
        target = jnp.where(heard_from, tick.agents, K)
        new = jax.tree.map(lambda all_, n: all_.at[target].set(n, mode="drop"), state.memory, new)
    used = state.used if isinstance(state.used, tuple) else state.used + _used(tick, spent, known)
    return State(hub, new, used)


def _used(tick: Any, spent: Any, known: list[int]) -> Array:
    """Models sent, answers and field evaluations of a round."""
    heard = jnp.sum(tick.heard, dtype=jnp.int64)
    evaluations = known[0] * heard if known else jnp.sum(spent * tick.heard)
    return jnp.stack([jnp.asarray(n, jnp.int64) for n in (tick.asked, heard, evaluations)])


def _apart(once: Array, function: Any, *arguments: Any) -> Any:
    """function(*arguments), computed once and kept.

    XLA fuses a cheap expression into every place that uses it: a key would be hashed again for each number drawn from
    it, an index for each number of its row. A loop whose length (1) the compiler does not know stands in between.
    """
    shapes = jax.eval_shape(function, *arguments)
    empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return lax.fori_loop(0, once, lambda *_: function(*arguments), empty)


def _ahead(layout: Layout, inputs: Inputs, ticks: Any, key: Key, rounds: Array, once: Array) -> Ahead:
    """For a chunk of rounds: (rounds, slots, ...)."""
    oracle, common = layout.oracle, inputs.common
    who, axis = (jnp.arange(layout.agents, dtype=jnp.int32), inputs.own), None
    if ticks.agents is not None:
        who, axis = (ticks.agents, take(inputs.own, ticks.agents)), 0
    fetched = who[1] if layout.fetch and axis == 0 else None  # everyone: nothing to fetch
    if layout.exact or (layout.samples is None and oracle.predraw):
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

    plans = each(lambda agent, own, round, _: oracle.plan(Mine(own, common), Stream(key, round, agent)), rounds)
    if layout.samples is None:
        return Ahead(fetched, plans)

    def draw(plans, keys):
        def one(agent, own, keys, plan):
            return _draw(oracle, Mine(own, common), plan, jax.vmap(lambda k: k.row(agent))(keys))

        return each(one, keys, plans)

    steps = jnp.arange(layout.samples)
    keys = _apart(once, jax.vmap(lambda r: jax.vmap(lambda e: key.fold(r, e))(steps)), rounds)
    if oracle.fetches:
        return Ahead(fetched, plans, oracle.fetch(common, _apart(once, draw, plans, keys)))
    return Ahead(fetched, plans, draw(plans, keys))


def _segment(layout: Layout, inputs: Inputs, state: State, seeds: tuple, first: Array, rounds: Array, every: Array):
    """`rounds` rounds from round `first` on, of one repeat; a record at each multiple of `every`."""
    key, schedule, hub_key = (Key(*s) for s in seeds)
    participation, algorithm = inputs.participation, inputs.algorithm
    chunk, once = layout.chunk, jnp.minimum(rounds, 1)
    model = algorithm.read(state.hub, state.memory)
    empty = jax.tree.map(lambda a: jnp.zeros((layout.capacity, *a.shape), a.dtype), Records(model, state.used))

    def run_chunk(c, carry):
        base = first + c * chunk
        in_chunk = base + jnp.arange(chunk)
        if participation.drawn:
            keys = _apart(once, jax.vmap(schedule.fold), in_chunk)
            ticks = jax.vmap(lambda k, r: participation.tick(k, inputs.p, r))(keys, in_chunk)
        else:
            ticks = participation.tick(schedule.fold(base), inputs.p, base)
        ahead = _ahead(layout, inputs, ticks, key, in_chunk, once)
        # Without axes of length one, which XLA would lay out in another order than the loop's, and copy.
        dense = jax.tree.map(lambda a: a.reshape(chunk, *(n for n in a.shape[1:] if n > 1)), ahead)

        def body(i, carry):
            state, records = carry
            round = base + i
            tick = jax.tree.map(lambda a: a[i], ticks) if participation.drawn else ticks
            now = jax.tree.map(lambda d, a: d[i].reshape(a.shape[1:]), dense, ahead)
            state = one_round(layout, inputs, state, tick, now, key, hub_key.fold(round).row(), round)
            # Every round writes into its window's place; the window's last round remains.
            place = lax.div(round, every) - lax.div(first, every)
            record = Records(algorithm.read(state.hub, state.memory), state.used)
            records = jax.tree.map(lambda b, a: lax.dynamic_update_index_in_dim(b, a, place, 0), records, record)
            return state, records

        return lax.fori_loop(0, jnp.minimum(chunk, rounds - c * chunk), body, carry)

    return lax.fori_loop(0, (rounds + chunk - 1) // chunk, run_chunk, (state, empty))


def _lanes(
    layout: Layout, inputs: Inputs, state: State, seeds: tuple, first: Array, rounds: Array, every: Array, swept: bool
):
    """All repeats (leading axis of state and seeds); swept: the algorithm's numbers lead with that axis too."""

    def lane(inputs, state, seeds):
        return _segment(layout, inputs, state, seeds, first, rounds, every)

    if jax.tree.leaves(seeds)[0].shape[0] == 1 and not swept:  # no axis to batch: plainer, faster code
        done = lane(inputs, *jax.tree.map(lambda a: a[0], (state, seeds)))
        return jax.tree.map(lambda a: a[None], done)
    if layout.mapped:
        if swept:
            return lax.map(
                lambda a: lane(inputs._replace(algorithm=a[0]), a[1], a[2]), (inputs.algorithm, state, seeds)
            )
        return lax.map(lambda a: lane(inputs, *a), (state, seeds))
    axes: Any = Inputs(0 if swept else None, None, None, None, None)  # type: ignore[arg-type]
    return jax.vmap(lane, in_axes=(axes, 0, 0))(inputs, state, seeds)


def _compiled(*without: str):
    """`_lanes`, compiled without some of XLA's passes."""
    options = {"xla_disable_hlo_passes": ",".join(without)}
    return jax.jit(_lanes, static_argnames=("layout", "swept"), donate_argnames=("state",), compiler_options=options)


# By `layout.threads`. Sums of more than 32 terms would be made in two stages, which takes longer; one thread is not
# woken for work that is done before it comes; products of small matrices are faster of matrices that lie as they are
# read.
PROGRAMS = {
    True: _compiled("tree_reduction_rewriter"),
    False: _compiled("tree_reduction_rewriter", "cpu-parallel-task-assigner", "transpose-folding"),
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
    row = Key(jnp.uint32(0), jnp.uint32(0)).row()
    evaluations: list[Any] = []

    def both(model, inputs):
        state = start_state(inputs.algorithm, model, layout.agents, False)
        heard = inputs.algorithm.say(state.hub, row)
        tuned, put = split_per_agent(inputs.algorithm, layout.agents)
        mine = Mine(take(inputs.own, 0), inputs.common)
        agent = Agent(layout.oracle, mine, Key(row.low, row.high), None, None, True, 0, inputs.p[0])
        message = put(take(tuned, 0)).local(heard, take(state.memory, 0), agent)[0]
        evaluations.append(agent.evaluations)
        return heard, message

    heard, message = jax.eval_shape(both, model, inputs._replace(algorithm=algorithm))
    down, up = (sum(int(np.prod(a.shape)) for a in jax.tree.leaves(tree)) for tree in (heard, message))
    width = max(a.dtype.itemsize for a in jax.tree.leaves(model))
    used = None
    if inputs.participation.all_heard and isinstance(evaluations[0], int):
        used = (layout.slots, layout.slots, layout.slots * evaluations[0])
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
