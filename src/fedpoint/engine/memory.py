"""Does a run fit into memory? Counted from shapes alone, before anything is made; what would fit is said."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.memory_limits import check_bytes, in_bytes, memory
from fedpoint.core.numbers import counted
from fedpoint.core.types import Model, State
from fedpoint.core.vector import wrap
from fedpoint.engine.layout import Layout, bytes_of
from fedpoint.engine.state import Inputs, RunState, seeds_of, start_state, start_worlds
from fedpoint.experiment.experiment import Experiment

COPIES = 2  # of a state, while the first one is made
MAPPED = 3  # of those of several repeats that are worked on one after the other
WORK = 3  # models' sizes that an agent at work takes: its model, its message, what it drew
PLENTY = 64  # models' sizes that nobody keeps for an agent: where they fit, there is nothing to count


@dataclass(frozen=True)
class Needs:
    """Bytes that a run takes: of one agent's state, of all else of one repeat, and how many of them there are."""

    agent: int
    rest: int
    agents: int
    lanes: int
    copies: int

    @property
    def lane(self) -> int:
        return self.copies * self.agents * self.agent + self.rest

    @property
    def total(self) -> int:
        return self.lanes * self.lane


def check_fits(layout: Layout, inputs: Inputs, start: Model, lanes: int, uses: bool) -> None:
    """Refuse a run of so many repeats, or points of a sweep, whose state and work do not fit into memory.

    uses: what is used is counted as the run goes on.
    """
    model = bytes_of(layout.topology.one(start))
    if PLENTY * lanes * (layout.agents + 1) * model * max(1, layout.topology.depth) <= memory():
        return
    found = needs(layout, inputs, start, lanes, uses)
    if found.total > memory():
        raise FedpointError(_message(layout, inputs, start, found))


def needs(layout: Layout, inputs: Inputs, start: Model, lanes: int, uses: bool) -> Needs:
    """What a run takes, from its shapes."""
    state = _state(layout, inputs, start, uses)
    model, held = bytes_of(layout.topology.one(start)), layout.topology.models(layout.agents)
    by_agent = [state.memory, state.wire, state.world, *([state.hub, state.mail] if layout.topology.by_node else [])]
    agent = sum(map(bytes_of, by_agent)) // layout.held
    copies = MAPPED if layout.mapped and lanes > 1 else COPIES
    work = WORK * model * (1 if layout.mapped else layout.slots)
    records = layout.capacity * held * model
    return Needs(agent, copies * (bytes_of(state) - agent * layout.held) + work + records, layout.held, lanes, copies)


def _state(layout: Layout, inputs: Inputs, start: Model, uses: bool) -> RunState:
    """The shapes of one repeat's state."""
    state = jax.eval_shape(lambda models: start_state(layout, inputs, wrap(models), uses), start)
    return state._replace(world=jax.eval_shape(lambda seeds: start_worlds(layout, inputs, seeds), seeds_of(0, 1)))


def _message(layout: Layout, inputs: Inputs, start: Model, found: Needs) -> str:
    """How much it needs, how much there is, and what would fit."""
    there = memory()
    over = f"of memory, and only {in_bytes(there)} are available"
    if found.lane <= there:
        fit = there // found.lane
        return (
            f"{found.lanes:,} repeats at once need about {in_bytes(found.total)} {over}: about {fit:,} would fit; run "
            "the others with other seeds"
        )
    leaves = jax.tree.leaves(layout.topology.one(start))
    size, title = sum(np.size(a) for a in leaves), inputs.algorithm.card.title
    what = f"{title} with {found.agents:,} agents and a model of {size:,} numbers needs about {in_bytes(found.lane)}"
    kept = found.copies * found.agent
    fits = f"a model of about {max(1, size * there // found.lane):,} numbers"
    if kept * found.agents > found.rest and there > found.rest + kept:
        fits = f"about {(there - found.rest) // kept:,} agents, or {fits}"
    if max(np.asarray(a).dtype.itemsize for a in leaves) > 4:
        fits += "; in single precision, with start= a model in float32, twice as much"
    each = f"every agent keeps {in_bytes(found.agent)}. " if found.agent else ""
    if layout.rows is None and found.agent and not layout.topology.own_models:
        disk = 2 * found.agents * found.agent
        fits += f'; or memories="disk" with few participants, for up to {in_bytes(disk)} of a disk'
    return f"{what} {over}: {each}What would fit: {fits}"


def check_records(experiment: Experiment, rounds: int, lanes: int) -> None:
    """Refuse records that do not fit into memory, where it was asked for how many; where not, they are made to fit."""
    if experiment.record_every is None:
        return
    one, every = COPIES * lanes * bytes_of(experiment.start_model), int(experiment.record_every)
    advice = f"give record_every={math.ceil(rounds * one / memory()):,} or more"
    check_bytes(one * (rounds // every), f"a record every {counted(every, 'round')} of {rounds:,}", advice)


def check_mail(mail: State, before: int, depth: int) -> None:
    """Refuse room for so many messages of each sender, where there was some for so many before, that does not fit."""
    needed = COPIES * bytes_of(mail) * depth // max(1, before)
    check_bytes(needed, f"room for {depth:,} messages of each sender", "bound the delays, or run fewer rounds")


@contextlib.contextmanager
def exhausted() -> Iterator[None]:
    """What XLA says when the memory is used up all the same, as Python says it."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise MemoryError(str(error).splitlines()[0]) from error
