"""What does a site hold, and what does it do in a round? Its part of the problem; `agent_round` of the simulation.

A hub that knows what rows to expect does the same with those (`hub/expectation.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.channel import Channel
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.precision import double
from fedpoint.core.random import Key, Stream
from fedpoint.core.record import one_agent
from fedpoint.core.types import Data, Model, State, Tree
from fedpoint.core.vector import wrap
from fedpoint.data.column import Column
from fedpoint.engine.round import Workplace, agent_round, encoded
from fedpoint.engine.session import flatten
from fedpoint.engine.state import AGENTS
from fedpoint.federation import preparation
from fedpoint.federation.shapes import blank, elsewhere, named, shapes_of, tree_of
from fedpoint.federation.study import Study
from fedpoint.federation.wire import NEVER, Arrays, OwnSetup
from fedpoint.graphs.topology import Topology
from fedpoint.problems.base import Mine, Oracle
from fedpoint.problems.logistic import Logistic


class Kept(NamedTuple):
    """What an agent remembers, and the round in which it came about."""

    round: int
    memory: State  # the method's
    wire: State  # the channel's
    world: Data  # where its world is, where that goes on between rounds

    def arrays(self) -> dict[str, np.ndarray]:
        return flatten(tuple(self[1:]))

    def again(self, round: int, arrays: Arrays, mark: str) -> Kept:
        """Another one, of arrays whose names begin with a mark."""
        like = tuple(self[1:])
        return Kept(round, *tree_of(like, {name: arrays[f"{mark}{name}"] for name in named(like)}))


class Own(NamedTuple):
    """The numbers of one agent: traced."""

    algorithm: Algorithm
    channel: Channel
    mine: Mine
    share: float
    key: Key
    agent: np.ndarray  # its number


class Structure(NamedTuple):
    """What is compiled in."""

    oracle: Oracle
    exact: bool
    topology: Topology


def sends_difference(topology: Topology, channel: Channel) -> bool:
    """Whether a site hears what neighbours know of it already, and sends the difference to that."""
    return topology.by_node and not channel.lossless


def local_work(
    structure: Structure, own: Own, heard: Tree, memories: tuple[State, State, Data], round: Array
) -> tuple[Tree, tuple[State, State, Data]]:
    """What is sent, and what is kept."""
    oracle, exact, topology = structure
    memory, wire, world = memories
    said, last = heard if sends_difference(topology, own.channel) else (heard, None)
    place = Workplace(own.mine, Stream(own.key, round, own.agent), own.share, world)
    message, memory, agent, world = agent_round(oracle, exact, own.algorithm, place, said, memory)
    base = own.algorithm.base(said) if topology.by_node and not own.algorithm.at_agents else None
    code, (memory, wire) = encoded(own.algorithm, own.channel, message, (memory, wire), agent, base, last)
    return code, (memory, wire, world)


worked = jax.jit(local_work, static_argnames="structure")


@partial(jax.jit, static_argnames="oracle")
def _begin(oracle: Oracle, own: Own) -> Data:
    return oracle.begin(own.mine, Stream(own.key, jnp.int32(-1), own.agent))


@partial(jax.jit, static_argnames="oracle")
def _loss(oracle: Oracle, mine: Mine, w: Model) -> Array:
    return oracle.loss(mine, w)


class Holding:
    """One site's part of the problem, ready to work."""

    @double
    def __init__(self, study: Study, setup: OwnSetup, columns: Mapping[str, Column] | None):
        index, table = int(setup["index"]), study.table
        if table is None:
            self.problem, at = study.generated(), index
        else:
            recipe = preparation.features(setup["recipe"])
            self.problem, at = preparation.problem_of(table, [columns or {}], recipe, setup["classes"]), 0
        rows = self.problem.local_rows()
        bound = study.experiment(
            study.outline(self.problem.start(), rows=None if rows is None else int(rows[at]))
        ).bind()
        inputs = elsewhere(bound)[1]
        algorithm = one_agent(inputs.algorithm, index)
        model = wrap(jax.tree.map(jnp.asarray, bound.topology.at(index, bound.start)))
        own = jax.tree.map(lambda a: np.asarray(a)[at], self.problem.own_for(algorithm))
        key, share = Key.of(bound.experiment.seed, 0, AGENTS), float(setup["share"])
        mine = Mine(*jax.device_put((own, self.problem.common)))
        self.structure = Structure(self.problem.prepare(algorithm), bound.exact, bound.topology)
        self.own = Own(algorithm, inputs.channel, mine, share, key, np.asarray(index, np.int32))
        self.shapes, self.seed = shapes_of(bound), bound.experiment.seed
        wire = inputs.channel.init(jax.tree.map(jnp.asarray, blank(self.shapes.message)))
        moves = self.structure.oracle.moves and not bound.exact
        world = _begin(self.structure.oracle, self.own) if moves else ()
        self.start = Kept(NEVER, *jax.tree.map(jnp.asarray, (algorithm.init(model)[1], wire, world)))
        self.remembers = bool(jax.tree.leaves(self.start[1:]))

    @double
    def work(self, heard: Arrays, kept: Kept, round: int) -> tuple[dict[str, np.ndarray], Kept]:
        told = tree_of(self.shapes.heard, heard)
        code, memories = worked(self.structure, self.own, told, kept[1:], jnp.int32(round))
        return flatten(code), Kept(round, *jax.tree.map(np.asarray, memories))

    def silence(self) -> dict[str, np.ndarray]:
        """Something to hear that says nothing."""
        return flatten(blank(self.shapes.heard))

    @double
    def measure(self, model: Model) -> dict[str, float]:
        """The loss of a model here, if it is finite, and for classes the share of rows that it gets right."""
        found = {}
        if self.problem.has_loss:
            found["loss"] = float(_loss(self.structure.oracle, self.own.mine, jax.tree.map(jnp.asarray, model)))
        if isinstance(self.problem, Logistic) and self.problem.agents == 1:
            with np.errstate(over="ignore", invalid="ignore"):  # any finite model may be asked about
                label, scores = self.problem.label, self.problem.X @ np.asarray(model).T
            right = (scores > 0) == (label == 1) if scores.ndim == 1 else scores.argmax(1) == label
            found["accuracy"] = float(right.mean())
        return {name: value for name, value in found.items() if np.isfinite(value)}
