"""What agents remember, where it does not fit into memory: on disk, but for those who work in the next rounds.

A segment is as many rounds as have room for the memories of all who work in them. These are fetched before it and
written after it; within it a round is the same, but for where an agent's memories lie (`Inputs.rows_of`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.memory_limits import check_bytes
from fedpoint.core.precision import double
from fedpoint.core.random import Key
from fedpoint.core.row_file import Index, RowFile
from fedpoint.core.types import Model, State, Tree
from fedpoint.core.vector import wrap
from fedpoint.engine.layout import Layout, bytes_of
from fedpoint.engine.state import SCHEDULE, AtHand, Inputs, RunState, Seeds, start_state
from fedpoint.timing.base import Tick, Timing

AT_HAND = 1 << 28  # bytes of memories that a segment has room for, or those of one round
WINDOW = 64  # rounds of a segment, at most
MEMORIES = "memories.rows"  # in a run's folder


class Kept(NamedTuple):
    """What the state holds of agents, each array leading with the repeat and the agents."""

    memory: State
    wire: State


@partial(jax.jit, static_argnames=("layout", "rounds"))
def _turns(layout: Layout, timing: Timing, seeds: Seeds, p: jax.Array, first: jax.Array, rounds: int) -> Tick:
    """Who works in so many rounds from the first on."""
    key = Key(*(a[0] for a in seeds[SCHEDULE]))
    one = jax.tree.map(lambda a: a[0], timing) if timing.per_repeat else timing
    return jax.vmap(lambda r: one.at(key, p, r))(first + jnp.arange(rounds))


def with_room(layout: Layout, inputs: Inputs, start: Model) -> Layout:
    """The layout with room for the memories of those who work in some rounds; as it is where nobody remembers a
    thing."""
    one = replace(layout, rows=1)
    each = bytes_of(_kept(jax.eval_shape(lambda w: start_state(one, inputs, wrap(w), False), start)))
    if not each:
        return layout
    least = layout.slots * layout.topology.exchanges
    return replace(layout, rows=min(layout.agents, max(least, AT_HAND // each)))


def _kept(state: RunState) -> Kept:
    return Kept(state.memory, state.wire)


class OnDisk:
    """Everybody's memories in a file, and some of them in the state of a run.

    Args:
        layout: of the run, with room for some rows.
        state: before the first round: all rows of it are the same.
    """

    def __init__(self, layout: Layout, state: RunState) -> None:
        self.layout = layout
        first, self._tree = jax.tree.flatten(jax.tree.map(lambda a: np.asarray(a[0, 0]), _kept(state)))
        self.rows = RowFile(first, layout.agents)
        self._who = np.zeros(0, np.int64)  # whose memories the state holds, in its first rows

    def keep_in(self, folder: Path) -> None:
        self.rows.place_at(folder / MEMORIES)

    @double
    def fetch(self, inputs: Inputs, state: RunState, seeds: Seeds, first: int, rounds: int) -> tuple[int, AtHand, Kept]:
        """For how many of these rounds there is room, whose memories are at hand in them, and the memories."""
        times, layout = self.layout.topology.exchanges, self.layout
        assert layout.rows is not None
        rounds = min(rounds, WINDOW)
        # The program may draw beyond its end: its chunks are whole, and hubs may look ahead.
        most = (WINDOW + layout.chunk) * times + layout.topology.lookahead
        turns = _turns(layout, inputs.timing, seeds, inputs.p, jnp.int32(first * times), most)
        assert turns.agents is not None  # an experiment refuses everybody
        agents = np.asarray(turns.agents)
        while len(who := np.unique(agents[: rounds * times])) > layout.rows:
            rounds -= 1
        place = np.zeros(layout.agents, np.int32)
        place[who] = np.arange(len(who))
        self._who = who
        kept = jax.tree.unflatten(self._tree, [self._padded(a) for a in self.rows.read(who)])
        return rounds, AtHand(jnp.asarray(place), turns, jnp.int32(first * times)), kept

    def _padded(self, rows: np.ndarray) -> jax.Array:
        room = self.layout.held - len(rows)
        return jnp.asarray(np.pad(rows, ((0, room), *((0, 0),) * (rows.ndim - 1)))[None])

    def store(self, state: RunState) -> None:
        """Write what a segment has left of the memories that were fetched for it."""
        leaves = jax.tree.leaves(_kept(state))
        self.rows.write(self._who, [np.asarray(a)[0, : len(self._who)] for a in leaves])

    def without(self, state: RunState, index: Index) -> RunState:
        """The state with an index in place of memories."""
        return state._replace(memory=index, wire=())

    def again(self, state: RunState, like: RunState, earlier: bool = False) -> RunState:
        """The state with room for memories, after those in the file are as its index says; earlier: an earlier process
        kept them."""
        index = Index(*(np.asarray(a) for a in state.memory))
        (self.rows.restore if earlier else self.rows.back)(index)
        return state._replace(memory=like.memory, wire=like.wire)

    def all(self, advice: str) -> Kept:
        """Everybody's, where they fit into memory."""
        agents = self.layout.agents
        check_bytes(3 * agents * self.rows.bytes, f"what all {agents:,} agents remember", advice)
        found: Tree = jax.tree.unflatten(self._tree, [a[None] for a in self.rows.read(np.arange(agents))])
        return found


def check_one_lane(lanes: int) -> None:
    """Refuse repeats and points of a sweep at once: each has participants of its own."""
    if lanes > 1:
        raise FedpointError(
            f'memories="disk" is for one run at a time, and these are {lanes:,}: run them one after the other, with '
            "other seeds"
        )
