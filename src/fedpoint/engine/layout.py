"""How is a run executed? Agents batched or one after the other, what is drawn ahead, threads: from sizes alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedpoint.core.algorithm import Algorithm, samples_per_round
from fedpoint.core.numbers import counted
from fedpoint.core.random import NO_LUCK, Row, Stream
from fedpoint.core.steps import most_steps
from fedpoint.core.types import Data, Function, Tree
from fedpoint.core.vector import wrap
from fedpoint.engine.cpu.tuning import PLAIN, Tuning
from fedpoint.experiment.metric import Metrics
from fedpoint.graphs.topology import Topology
from fedpoint.problems.base import Problem
from fedpoint.problems.oracle import Mine, Oracle

if TYPE_CHECKING:
    from fedpoint.engine.cluster.blocks import Blocks
    from fedpoint.experiment.bound import Bound

CHUNK_BYTES = 1 << 21  # what is drawn ahead should stay in the processor's cache
ROUND_BYTES = 1 << 26  # more than this in one round is drawn on the spot
CHUNK_ROUNDS = 64
FETCH_BYTES = 512  # of an agent's own arrays: rows far apart in memory are fetched together, not round by round
SEGMENT_BYTES = 1 << 22  # recorded models of one call
SEGMENT_RECORDS = 4096
RAGGED = 1.5  # largest over mean work of an agent, from which padding costs more than mapping
LARGE_MODEL = 4096  # floats, from which one agent's work fills the vector units by itself


@dataclass(frozen=True)
class Layout:
    """How the engine executes a run: structure, compiled in."""

    oracle: Oracle
    agents: int
    slots: int
    exact: bool
    samples: int | None  # drawn ahead for each agent and round; None: on the spot
    chunk: int  # rounds drawn ahead
    mapped: bool  # agents (and repeats) one after the other, else batched
    fetch: bool  # agents' own arrays are fetched ahead too
    capacity: int  # records of a segment
    topology: Topology
    tuning: Tuning = PLAIN  # how the compiler is helped
    blocks: Blocks | None = None  # of agents, where they are shared out between processes (engine/cluster/session.py)
    metrics: Metrics = ()  # recorded beside the model
    rows: int | None = None  # of agents' memories that are at hand, where the others' are on disk; None: everybody's

    @property
    def held(self) -> int:
        """How many agents' memories the state holds."""
        return self.agents if self.rows is None else self.rows

    @property
    def whole(self) -> bool:
        """A chunk's rounds are one kernel, not only the agents of a round."""
        plain = not (self.topology.depth or self.topology.nested or self.metrics)
        return self.tuning.kernel and self.tuning.light and plain

    def explain(self) -> str:
        agents = "one after the other (no padding)" if self.mapped else "batched"
        if self.oracle.buckets:
            agents += f", rows ordered in size buckets of {', '.join(map(str, self.oracle.buckets))} and more"
        if self.exact:
            draws = "exact fields, no samples"
        elif self.samples is None:
            draws = (
                "samples drawn on the spot"
                if self.oracle.predraw
                else f"plans drawn ahead for {counted(self.chunk, 'round')}"
            )
        else:
            draws = f"samples drawn ahead for {counted(self.chunk, 'round')}"
        shared = "" if self.blocks is None else f"; {self.blocks.explain()}"
        kept = "" if self.rows is None else f"; memories on disk, {counted(self.rows, 'agent')} at hand"
        ways = f"; {self.oracle.ways}" if self.oracle.ways else ""
        return f"agents {agents}; {draws}{ways}{shared}{kept}"


def choose(bound: Bound, lanes: int) -> Layout:
    """The layout for a run of `lanes` repeats or sweep points, from what is known of sizes."""
    oracle, algorithm, exact = bound.oracle, bound.algorithm, bound.exact
    problem, topology = bound.problem, bound.topology
    agents, model = problem.agents, topology.one(bound.start)
    slots = bound.timing.slots(agents)
    held = topology.models(agents)  # models of a record
    floats = sum(np.size(a) for a in jax.tree.leaves(model))
    bytes_ = bytes_of(model)
    ragged = agents > 1 and _raggedness(oracle, algorithm, problem, exact) > RAGGED
    mapped = ragged or (agents > 1 and floats > LARGE_MODEL)
    own = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a)[1:], np.asarray(a).dtype), problem.own)
    stream = Stream(NO_LUCK, np.zeros((), np.int32), np.zeros((), np.int32))
    # Ahead, every agent would draw as many samples as the one that needs the most.
    samples = None if exact or ragged or not oracle.predraw else samples_per_round(algorithm)

    own_bytes = bytes_of(own)
    fetch = bound.timing.drawn and own_bytes <= FETCH_BYTES
    per_agent = own_bytes if fetch else 0
    if not exact:
        plan = oracle.plan_shape(Mine(own, problem.common), stream)
        per_agent += bytes_of(plan)
        if samples is not None:
            per_agent += bytes_of(_drawn_ahead.eval_shape(oracle, samples, own, problem.common, stream, plan))
    lanes_ahead = 1 if mapped else lanes
    per_round = max(1, per_agent * slots * lanes_ahead * topology.exchanges)
    if per_round > ROUND_BYTES:
        samples = None
    capacity = int(np.clip(SEGMENT_BYTES // max(1, bytes_ * lanes * held), 1, SEGMENT_RECORDS))
    # A segment of few rounds, as large models have, would throw away what is drawn for more.
    chunk = int(np.clip(CHUNK_BYTES // per_round, 1, min(CHUNK_ROUNDS, capacity)))
    at_once = bytes_ if mapped else slots * lanes * (bytes_ + own_bytes)
    if exact or problem.batch is None:
        at_once += bytes_of(jax.tree.map(np.asarray, problem.common))
    drawn = per_agent if mapped else per_round * chunk
    if topology.by_node:
        at_once = max(at_once, bytes_ * agents * lanes)

    def remembered() -> int:
        return agents * bytes_of(jax.eval_shape(lambda w: algorithm.init(wrap(w))[1], model))

    return Layout(
        oracle=oracle,
        agents=agents,
        slots=slots,
        exact=exact,
        samples=samples,
        chunk=chunk,
        mapped=mapped,
        fetch=fetch,
        capacity=capacity,
        topology=topology,
        tuning=Tuning.choose(mapped and floats <= LARGE_MODEL, max(at_once, drawn), remembered),
    )


def enough_samples(layout: Layout, algorithm: Algorithm, samples: int | None) -> Layout:
    """The layout, drawing on the spot where a user's own method may ask for more samples than are drawn ahead.

    How many are is told by `local_steps` or `samples`; a method that counts its steps otherwise would get some twice.
    """
    if layout.samples is None:
        return layout
    told = algorithm.counts_samples()
    if (samples is None and not told) or (samples is not None and samples > layout.samples):
        return replace(layout, samples=None)
    return layout


@partial(jax.jit, static_argnames=("oracle", "samples"))  # traced once for all runs of its kind
def _drawn_ahead(oracle: Oracle, samples: int, own: Data, common: Data, stream: Stream, plan: Tree) -> Data:
    return draw_samples(oracle, Mine(own, common), plan, jax.vmap(stream.row)(jnp.arange(samples)))


def draw_samples(oracle: Oracle, mine: Mine, plan: Tree, rows: Row) -> Data:
    """The samples of a round, (samples, ...), each from its row."""
    return jax.vmap(lambda row, e: oracle.draw(mine, plan, row, e))(rows, jnp.arange(rows.at.shape[0]))


def bytes_of(shapes: Tree) -> int:
    """Of all arrays, or their shapes."""
    return sum(int(np.prod(s.shape)) * np.dtype(s.dtype).itemsize for s in jax.tree.leaves(shapes))


def _raggedness(oracle: Oracle, algorithm: Algorithm, problem: Problem, exact: bool) -> float:
    """Largest over mean work of an agent in a round."""
    work = np.broadcast_to(most_steps(algorithm.local_steps).astype(float), problem.weights.shape)
    rows = problem.local_rows()
    if rows is not None and (exact or problem.batch is None) and not oracle.gram:
        work = work * rows
    return float(work.max() / work.mean())


def over_agents(layout: Layout, function: Function, *arguments: Tree) -> Tree:
    """function over the agents of a round."""
    if layout.mapped:
        return lax.map(lambda a: function(*a), arguments)
    return jax.vmap(function)(*arguments)
