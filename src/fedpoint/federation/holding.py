"""What does a site hold, and what does it do in a round? Its part of the problem; `agent_round` of the simulation.

A hub that knows what rows to expect does the same with those (`hub/expectation.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.channel import Channel
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import FedpointError
from fedpoint.core.precision import double
from fedpoint.core.random import Key, Stream
from fedpoint.core.record import one_agent
from fedpoint.core.types import Data, Model, State, Tree
from fedpoint.core.vector import wrap
from fedpoint.data.column import Column
from fedpoint.engine.round import Workplace, agent_round, encoded
from fedpoint.engine.session import flatten
from fedpoint.engine.state import AGENTS
from fedpoint.federation import measurement, preparation
from fedpoint.federation.protection import longest
from fedpoint.federation.secure.encoding import Encoding
from fedpoint.federation.shapes import blank, elsewhere, named, shapes_of, tree_of
from fedpoint.federation.study import Study
from fedpoint.federation.wire import NEVER, Arrays, OwnSetup
from fedpoint.graphs.topology import Topology
from fedpoint.problems.base import Problem
from fedpoint.problems.logistic import Logistic
from fedpoint.problems.oracle import Mine, Oracle


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


class Noisy(Agent):
    """An agent before its channel, whose normal numbers nobody else can work out."""

    def __init__(self, agent: Agent, noise: Tree):
        self.__dict__.update(agent.__dict__)
        self._noise = noise

    def normal(self, like: Tree) -> Tree:
        return self._noise


def secret_normals(like: Tree) -> Tree:
    """Standard normal numbers in these shapes, of the operating system's randomness: no seed gives them again."""
    from scipy.special import ndtri

    def one(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        bits = np.frombuffer(os.urandom(8 * int(np.prod(leaf.shape))), "<u8") >> np.uint64(11)
        return ndtri((bits + 0.5) * 2.0**-53).reshape(leaf.shape)

    return jax.tree.map(one, like)


def sends_difference(topology: Topology, channel: Channel) -> bool:
    """Whether a site hears what neighbours know of it already, and sends the difference to that."""
    return topology.by_node and not channel.lossless


def local_work(
    structure: Structure, own: Own, heard: Tree, memories: tuple[State, State, Data], round: Array, noise: Tree = None
) -> tuple[Tree, tuple[State, State, Data]]:
    """What is sent, and what is kept. noise: standard normal numbers for the channel, of the site's own luck; None: of
    the study's."""
    oracle, exact, topology = structure
    memory, wire, world = memories
    said, last = heard if sends_difference(topology, own.channel) else (heard, None)
    place = Workplace(own.mine, Stream(own.key, round, own.agent), own.share, world)
    message, memory, agent, world = agent_round(oracle, exact, own.algorithm, place, said, memory)
    base = own.algorithm.base(said) if topology.by_node and not own.algorithm.at_agents else None
    if noise is not None:
        agent = Noisy(agent, noise)
    code, (memory, wire) = encoded(own.algorithm, own.channel, message, (memory, wire), agent, base, last)
    return code, (memory, wire, world)


worked = jax.jit(local_work, static_argnames="structure")


@partial(jax.jit, static_argnames="oracle")
def _begin(oracle: Oracle, own: Own) -> Data:
    return oracle.begin(own.mine, Stream(own.key, jnp.int32(-1), own.agent))


@partial(jax.jit, static_argnames="oracle")
def _loss(oracle: Oracle, mine: Mine, w: Model) -> Array:
    return oracle.loss(mine, w)


class Measured(NamedTuple):
    """What a site finds of a model on its rows, not rounded yet."""

    numbers: dict[str, float]
    tables: dict[str, np.ndarray]


class Holding:
    """One site's part of the problem, ready to work. held: the columns of rows that are held out, to measure on.
    problem: of a model that is installed here, where the study has no table."""

    @double
    def __init__(
        self,
        study: Study,
        setup: OwnSetup,
        columns: Mapping[str, Column] | None,
        held: Mapping[str, Column] | None = None,
        problem: Problem | None = None,
    ):
        index, table = int(setup["index"]), study.table
        if problem is not None:
            if problem.carried is not None:
                raise FedpointError(
                    "the model carries a state along, such as statistics of batch normalisation, which a study does "
                    "not average: use layers without one, such as group normalisation"
                )
            self.problem, at = problem, 0
        elif table is None:
            self.problem, at = study.generated(), index
        else:
            recipe = preparation.features(setup["recipe"])
            self.problem, at = preparation.problem_of(table, [columns or {}], recipe, setup["classes"]), 0
        self.held_out: Problem | None = None
        self.rows_held_out = 0
        if table is not None and held is not None:
            self.held_out = preparation.problem_of(table, [held], recipe, setup["classes"], held_out=True)
            self.rows_held_out = table.rows_of(held)
        rows = self.problem.local_rows()
        bound = study.experiment(
            study.outline(self.problem.start(), rows=None if rows is None else int(rows[at])),
            heaviest=setup["heaviest"],
        ).bind()
        self.heaviest, self.sites = setup["heaviest"], len(study.sites)
        self.private = study.terms.privacy is not None
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
        noise = secret_normals(self.shapes.message) if self.private else None
        code, memories = worked(self.structure, self.own, told, kept[1:], jnp.int32(round), noise)
        return flatten(code), Kept(round, *jax.tree.map(np.asarray, memories))

    @cached_property
    def encoding(self) -> Encoding:
        """How its messages become whole numbers, in secure sums."""
        return Encoding(longest(self.own.channel, blank(self.shapes.message)), self.heaviest, self.sites)

    def silence(self) -> dict[str, np.ndarray]:
        """Something to hear that says nothing."""
        return flatten(blank(self.shapes.heard))

    @double
    def measure(self, model: Model, asked: Sequence[str], rows: int = 1, per_class: int = 1) -> Measured:
        """What was asked for of a model on the rows that are held out, else on all: what is finite, and of classes what
        rests on rows enough."""
        problem, found, tables = self.held_out or self.problem, dict[str, float](), dict[str, np.ndarray]()
        if self.problem.has_loss and "loss" in asked:
            found["loss"] = float(_loss(self._oracle, self._mine, jax.tree.map(jnp.asarray, model)))
        if isinstance(problem, Logistic) and problem.agents == 1:
            more, tables = _of_classes(problem, np.asarray(model), asked, rows, per_class)
            found |= more
        return Measured({name: value for name, value in found.items() if np.isfinite(value)}, tables)

    @property
    def _oracle(self) -> Oracle:
        return self.structure.oracle if self.held_out is None else self.held_out.prepare(self.own.algorithm)

    @property
    def _mine(self) -> Mine:
        if self.held_out is None:
            return self.own.mine
        own = jax.tree.map(lambda a: np.asarray(a)[0], self.held_out.own_for(self.own.algorithm))
        return Mine(own, self.held_out.common)


def _of_classes(
    problem: Logistic, model: np.ndarray, asked: Sequence[str], rows: int, per_class: int
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Accuracy and AUC; calibration and confusion."""
    with np.errstate(over="ignore", invalid="ignore"):  # any finite model may be asked about
        scores, label = problem.X @ model.T, np.asarray(problem.label).astype(int)
        scores = np.stack([np.zeros(len(scores)), scores], 1) if scores.ndim == 1 else scores
        predicted = scores.argmax(1)
        found, tables = {"accuracy": float((predicted == label).mean())}, dict[str, np.ndarray]()
        if not np.isfinite(scores).all():
            return {name: found[name] for name in found if name in asked}, tables
        chances = np.exp(scores - scores.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
    area = measurement.auc(chances, label, per_class) if "auc" in asked else None
    if area is not None:
        found["auc"] = area
    if "calibration" in asked:  # of two classes the chance of the second, else of the one that is predicted
        two = chances.shape[1] == 2
        chance, came = (chances[:, 1], label == 1) if two else (chances.max(1), predicted == label)
        tables["calibration"] = measurement.calibration(chance, came, rows, per_class)
    if "confusion" in asked:
        tables["confusion"] = measurement.confusion(predicted, label, chances.shape[1], per_class)
    return {name: found[name] for name in found if name in asked}, tables
