"""One compiled program per run: rounds under a loop, agents batched or mapped, repeats and sweeps batched.

What is random does not depend on the state, so it is drawn ahead for a chunk of rounds at once, outside the inner
loop; the numbers are those that would be drawn on the spot. The number of rounds is not compiled in: a run that
is extended, resumed or stopped reuses the program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.random import Key
from fedpoint.core.types import Message, Model, State, Tree
from fedpoint.core.vector import take, write
from fedpoint.engine.cpu.kernel import in_one_kernel
from fedpoint.engine.cpu.tuning import like_rows, programs
from fedpoint.engine.layout import Layout
from fedpoint.engine.precompute import precompute
from fedpoint.engine.round import one_round
from fedpoint.engine.state import Inputs, Records, RunState, Seeds, Traffic, trial
from fedpoint.experiment.metric import measure
from fedpoint.timing.base import Tick, Timing

Carry: TypeAlias = tuple[RunState, Records]


def _segment(
    layout: Layout, inputs: Inputs, state: RunState, seeds: Seeds, first: Array, rounds: Array, every: Array
) -> tuple[RunState, Records]:
    """`rounds` rounds from round `first` on, of one repeat; a record at each multiple of `every`."""
    key, schedule, hub = (Key(*s) for s in seeds)
    timing, topology = inputs.timing, layout.topology
    chunk, once = layout.chunk, jnp.minimum(rounds, 1)

    def record(state: RunState, round: Array) -> Records:
        """What is kept of the state after a round."""
        model = topology.read(inputs.algorithm, state.hub, state.memory)
        metrics = measure(layout.metrics, model, state.hub, state.memory, round) if layout.metrics else ()
        return Records(model, state.used, metrics)

    empty = jax.tree.map(lambda a: jnp.zeros((layout.capacity, *a.shape), a.dtype), record(state, first))

    def draw(rounds: Array) -> Tick:
        """Who works in each of these rounds."""
        if inputs.at_hand is not None:  # drawn before, as their memories had to be fetched
            return take(inputs.at_hand.turns, rounds - inputs.at_hand.first)
        folded = layout.tuning.computed_once(once, jax.vmap(lambda r: timing.key_of(schedule, r)), rounds)
        return jax.vmap(lambda k, r: timing.completed(k, inputs.p, r))(folded, rounds)

    def run_chunk(c: Array, carry: Carry) -> Carry:
        base = first + c * chunk
        begun = base * topology.exchanges
        in_chunk = begun + jnp.arange(chunk * topology.exchanges)
        if timing.drawn:
            turns = draw(begun + jnp.arange(len(in_chunk) + topology.lookahead))
            ticks = jax.tree.map(lambda a: a[: len(in_chunk)], turns)
        else:
            turns = ticks = timing.at(schedule, inputs.p, base)
        ahead = precompute(layout, inputs, ticks, key, in_chunk, once)
        dense = layout.tuning.dense(ahead)

        def place(i: Array) -> Array:
            """Every round writes into its window's place; the window's last round remains."""
            return lax.div(base + i, every) - lax.div(first, every)

        def loop(count: Array, state: RunState, records: Records, place: Callable[[Array], Array]) -> Carry:
            def exchange(i: Array, hubs: State, state: RunState) -> tuple[State, RunState]:
                state, now = state._replace(hub=hubs), like_rows(take(dense, i), ahead)
                tick, after = (take(turns, i + n) if timing.drawn else turns for n in (0, topology.lookahead))
                state = one_round(layout, inputs, state, (tick, after), now, (key, schedule, hub), begun + i)
                return state.hub, state._replace(hub=())

            def body(i: Array, carry: Carry) -> Carry:
                state, records = carry
                hubs, state = topology.round(inputs.branches, state.hub, state._replace(hub=()), i, exchange)
                state = state._replace(hub=hubs)
                return state, write(records, record(state, base + i + 1), place(i))

            return lax.fori_loop(0, count, body, (state, records))

        count = jnp.minimum(chunk, rounds - c * chunk)
        state, records = carry
        if not layout.whole:
            return loop(count, state, records, place)
        # A kernel would copy all records at every call: it has room for its own rounds.
        own = jax.tree.map(lambda a: jnp.zeros((chunk, *a.shape[1:]), a.dtype), records)
        state, own = in_one_kernel(once, lambda n, state, own: loop(n, state, own, lambda i: i), count, state, own)
        return state, lax.fori_loop(0, count, lambda i, all_: write(all_, take(own, i), place(i)), records)

    return lax.fori_loop(0, (rounds + chunk - 1) // chunk, run_chunk, (state, empty))


def all_lanes(
    layout: Layout,
    swept: bool,
    inputs: Inputs,
    state: RunState,
    seeds: Seeds,
    first: Array,
    rounds: Array,
    every: Array,
) -> tuple[RunState, Records]:
    """All repeats (leading axis of state and seeds); swept: the algorithm's numbers lead with that axis too."""

    own_luck = inputs.timing.per_repeat  # a timetable of its own for each repeat

    def lane(algorithm: Algorithm, timing: Timing, state: RunState, seeds: Seeds) -> Carry:
        mine = inputs._replace(algorithm=algorithm, timing=timing)
        return _segment(layout, mine, state, seeds, first, rounds, every)

    batched = (swept, own_luck, True, True)
    arguments: tuple[Tree, ...] = (inputs.algorithm, inputs.timing, state, seeds)
    if jax.tree.leaves(seeds)[0].shape[0] == 1 and not swept:  # no axis to batch: plainer, faster code
        single = [jax.tree.map(lambda a: a[0], a) if axis else a for a, axis in zip(arguments, batched, strict=True)]
        return jax.tree.map(lambda a: a[None], lane(*single))
    if layout.mapped or layout.blocks is not None:  # batched, loops over agents would last as the longest does
        some = tuple(a for a, axis in zip(arguments, batched, strict=True) if axis)

        def one(mapped: Tree) -> Carry:
            rest = iter(mapped)
            return lane(*(next(rest) if axis else a for a, axis in zip(arguments, batched, strict=True)))

        return lax.map(one, some)
    return jax.vmap(lane, in_axes=tuple(0 if axis else None for axis in batched))(*arguments)


PROGRAMS = programs(all_lanes, static=("layout", "swept"), donated="state")


def go_on(
    layout: Layout, swept: bool, inputs: Inputs, state: RunState, seeds: Seeds, first: int, rounds: int, every: int
) -> tuple[RunState, Records]:
    """All repeats `rounds` rounds on from round `first`. The state is donated."""
    numbers = (np.int32(n) for n in (first, rounds, every))
    return PROGRAMS[layout.tuning.compiled](layout, swept, inputs, state, seeds, *numbers)


def message_of(model: Model, layout: Layout, inputs: Inputs) -> Traffic:
    """From shapes alone: nothing is computed. `model` is one, inputs those of one lane."""
    each_kind = [
        (_messages.eval_shape(layout, model, inputs._replace(algorithm=one)), times)
        for one, times in inputs.algorithm.exchanges()
    ]
    exchanges = [exchange for exchange, times in each_kind for _ in range(times)]
    down, up = (
        sum(int(np.prod(a.shape)) for exchange in exchanges for a in jax.tree.leaves(exchange[i])) / len(exchanges)
        for i in (0, 1)
    )
    width = max(a.dtype.itemsize for a in jax.tree.leaves(model))
    (_, message, told), counts = exchanges[-1], [told.evaluations for *_, told in exchanges]
    used = None
    if inputs.timing.all_heard and None not in counts:
        each = layout.topology.constant_use(layout.slots, layout.agents, sum(counts))
        used = None if each is None else each._replace(down=len(counts) * each.down, up=len(counts) * each.up)
    up_bytes = float(up * width) if inputs.channel.is_identity() else inputs.channel.bits(message) / 8
    hub = jax.eval_shape(lambda w: inputs.algorithm.init(w)[0], model)
    held = sum(int(np.prod(a.shape)) for a in jax.tree.leaves(hub) if jnp.issubdtype(a.dtype, jnp.floating))
    return Traffic(down, up, width, up_bytes, used, told.samples, held, len(exchanges))


@jax.tree_util.register_static
@dataclass(frozen=True)
class Evaluations:
    """What tracing tells, and no array holds."""

    evaluations: int | None
    samples: int | None


@partial(jax.jit, static_argnames="layout")  # traced once for all runs of its kind
def _messages(layout: Layout, model: Model, inputs: Inputs) -> tuple[State, Message, Evaluations]:
    """What an agent hears and what it answers."""
    heard, message, agent = trial(layout, inputs, model)
    known = (count if isinstance(count, int) else None for count in (agent.evaluations, agent.sampled))
    return heard, message, Evaluations(*known)
