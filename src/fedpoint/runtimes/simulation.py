"""One compiled program per run: rounds under a loop, agents batched or mapped, repeats and sweeps batched.

What is random does not depend on the state, so it is drawn ahead for a chunk of rounds at once, outside the inner
loop; the numbers are those that would be drawn on the spot. The number of rounds is not compiled in: a run that
is extended, resumed or stopped reuses the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import split_per_agent
from fedpoint.core.inbox import Inbox
from fedpoint.core.kernel import apart, in_one_kernel
from fedpoint.core.random import NO_LUCK, Key
from fedpoint.core.vector import take, write
from fedpoint.problems.base import Mine
from fedpoint.runtimes import recall
from fedpoint.runtimes.ahead import draw_ahead
from fedpoint.runtimes.layout import Layout
from fedpoint.runtimes.round import network_round, one_round
from fedpoint.runtimes.state import Inputs, Records, State


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
        folded = apart(once, jax.vmap(schedule.fold), rounds)
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
        ahead = draw_ahead(layout, inputs, ticks, key, in_chunk, once)
        # Without axes of length one, which XLA would lay out in another order than the loop's, and copy.
        dense = jax.tree.map(lambda a: a.reshape(chunk, *(n for n in a.shape[1:] if n > 1)), ahead)

        def place(i):
            """Every round writes into its window's place; the window's last round remains."""
            return lax.div(base + i, every) - lax.div(first, every)

        def loop(count, state, records, place):
            def body(i, carry):
                state, records = carry
                round = base + i
                tick = take(ticks, i) if participation.drawn else ticks
                now = jax.tree.map(lambda d, a: d.reshape(a.shape[1:]), take(dense, i), ahead)
                if star:
                    state = one_round(layout, inputs, state, tick, now, key, hub_key.fold(round).row(), round)
                else:
                    after = take(turns, i + 1) if participation.drawn else ticks
                    state = network_round(layout, inputs, state, tick, after, now, keys, round)
                record = Records(read(state.hub, state.memory), state.used)
                return state, write(records, record, place(i))

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
    layout: Layout, swept: bool, inputs: Inputs, state: State, seeds: tuple, first: Array, rounds: Array, every: Array
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
# matrices that lie as they are read, and written out rather than given to a library.
SMALL = ("cpu-parallel-task-assigner", "transpose-folding", "dot-library-rewriter")
WITHOUT = {
    threads: {
        "xla_disable_hlo_passes": ",".join(("tree_reduction_rewriter", *(() if threads else SMALL))),
        "xla_cpu_multi_thread_eigen": threads,
    }
    for threads in (True, False)
}
PROGRAMS = {
    threads: jax.jit(
        all_lanes,
        static_argnames=("layout", "swept"),
        donate_argnames=("state",),
        keep_unused=True,  # a recalled program gets what the traced function gets
        compiler_options=options,
    )
    for threads, options in WITHOUT.items()
}


def go_on(
    layout: Layout,
    swept: bool,
    inputs: Inputs,
    state: State,
    seeds: tuple,
    first: int,
    rounds: int,
    every: int,
    model: Any,
) -> tuple[State, Records]:
    """All repeats `rounds` rounds on from round `first`. The state is donated; records are structured as `model` is."""
    numbers = (np.int32(n) for n in (first, rounds, every))
    like = (state, Records(model, state.used))
    return recall.call(PROGRAMS[layout.threads], (layout, swept), (inputs, state, seeds, *numbers), like)


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
    heard, message, told = _messages.eval_shape(layout, model, inputs._replace(algorithm=algorithm))
    down, up = (sum(int(np.prod(a.shape)) for a in jax.tree.leaves(tree)) for tree in (heard, message))
    width = max(a.dtype.itemsize for a in jax.tree.leaves(model))
    used, each = None, told.evaluations
    if inputs.participation.all_heard and each is not None:
        if layout.wiring is None:
            used = (layout.slots, layout.slots, layout.slots * each)
        elif layout.slots == layout.agents:
            used = (0, layout.wiring.arcs, layout.slots * each)
    return Message(down, up, width, used, each)


@jax.tree_util.register_static
@dataclass(frozen=True)
class Told:
    """What tracing tells, and no array holds."""

    evaluations: int | None


@partial(jax.jit, static_argnames="layout")  # traced once for all runs of its kind
def _messages(layout: Layout, model: Any, inputs: Inputs) -> tuple[Any, Any, Told]:
    """What an agent hears and what it answers."""
    algorithm, row = inputs.algorithm, NO_LUCK.row()
    hub, memory = algorithm.init(model)
    if layout.wiring is not None and algorithm.hello is not None:  # hubs hold what they hear
        heard_at_first = Inbox(*(algorithm.hello(model),) * 2, jnp.ones(()), jnp.ones(()))
        hub = algorithm.combine(hub, heard_at_first)
    heard = algorithm.say(hub, row)
    tuned, put = split_per_agent(algorithm, layout.agents)
    mine = Mine(take(inputs.own, 0), inputs.common)
    agent = Agent(layout.oracle, mine, NO_LUCK, None, None, True, 0, inputs.p[0])
    message = put(take(tuned, 0)).local(heard, memory, agent)[0]
    return heard, message, Told(agent.evaluations if isinstance(agent.evaluations, int) else None)
