"""What is a method's round, as sums of vectors? The engine's own, traced, and run on coefficients."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import FedpointError
from fedpoint.core.precision import double
from fedpoint.core.random import NO_LUCK
from fedpoint.core.steps import Stragglers
from fedpoint.core.types import Tree
from fedpoint.core.vector import unwrap, wrap
from fedpoint.engine.layout import Layout
from fedpoint.engine.precompute import NOTHING_PRECOMPUTED
from fedpoint.engine.round import one_round
from fedpoint.engine.session import cast
from fedpoint.engine.state import Inputs, RunState, start_state
from fedpoint.experiment.bound import Bound
from fedpoint.experiment.experiment import Experiment
from fedpoint.graphs.network import Network
from fedpoint.proofs.agents import KNOWN, AnyAgents
from fedpoint.proofs.symbols import WIDTH, Answer, Interpreter, Value, Vectors, place
from fedpoint.timing.base import Tick

CALLS = 24  # of an agent's field, that a programme has room for
ROUND_OFF = 1e-11

Rows: TypeAlias = np.ndarray  # (n, s + m): vectors as sums of the state's s and of m gradients


class Asked(NamedTuple):
    """An oracle's answer: whose, where (a row), and which of the gradients it is."""

    agent: int
    point: np.ndarray


@dataclass(frozen=True)
class LinearRound:
    """z+ = A z + B g: the state's vectors after a round, of those before it and of the gradients on the way.

    asked: whose gradients they are, and where: at rows (m, s + m) of state and gradients, of which a proximal step's
    own is one. models: (n, s + m) rows of the models after the round, from the state after it.
    """

    after: Rows
    asked: tuple[Asked, ...]
    size: int  # s

    def same(self, other: LinearRound) -> bool:
        return (
            self.after.shape == other.after.shape
            and np.allclose(self.after, other.after, atol=ROUND_OFF, rtol=0)
            and all(
                a.agent == b.agent and np.allclose(a.point, b.point, atol=ROUND_OFF, rtol=0)
                for a, b in zip(self.asked, other.asked, strict=True)
            )
        )


class Notebook:
    """Notes who was asked what; the same agent at the same point answers the same."""

    def __init__(self, size: int, room: int, owner: str) -> None:
        self.size, self.room, self.owner = size, room, owner
        self.asked: list[Asked] = []

    def field(self, given: Sequence[Value], eqn: JaxprEqn) -> Value:
        return self._all(given, None, eqn)

    def prox(self, given: Sequence[Value], eqn: JaxprEqn) -> Value:
        """argmin f(v) + a |v - c|^2 is at v = c - g(v) / (2 a)."""
        if isinstance(given[2], Vectors):
            raise FedpointError(f"{KNOWN}: the weight of a proximal point must be a number{place(eqn)}")
        return self._all(given[:2], np.asarray(given[2]), eqn)

    def loss(self, given: Sequence[Value], eqn: JaxprEqn) -> Value:
        raise FedpointError(f"{KNOWN}, and {self.owner} asks for losses{place(eqn)}")

    def _all(self, given: Sequence[Value], weight: np.ndarray | None, eqn: JaxprEqn) -> Value:
        agents, w = given
        assert not isinstance(agents, Vectors)
        points = w.array if isinstance(w, Vectors) else np.asarray(w)
        flat, who = points.reshape(-1, WIDTH), np.broadcast_to(agents, points.shape[:-1]).ravel()
        weights = None if weight is None else np.broadcast_to(weight, points.shape[:-1]).ravel()
        rows = [
            self._one(int(k), row, None if weights is None else float(weights[i]), eqn)
            for i, (k, row) in enumerate(zip(who, flat, strict=True))
        ]
        return Vectors(np.stack(rows).reshape(points.shape))

    def _one(self, agent: int, point: np.ndarray, weight: float | None, eqn: JaxprEqn) -> np.ndarray:
        """The gradient there; of a proximal step, where it leads."""
        new = len(self.asked)
        if weight is not None:
            point = point.copy()
            point[self.size + new] = -1 / (2 * weight)
        else:
            for i, known in enumerate(self.asked):
                if known.agent == agent and np.allclose(known.point, point, atol=ROUND_OFF, rtol=0):
                    return np.eye(WIDTH)[self.size + i]
        if new >= min(self.room, WIDTH - self.size):
            raise FedpointError(
                f"fp.prove: a round of {self.owner} asks for more than {self.room} gradients, and the programme would "
                "take too long: fewer local steps, or fewer agents"
            )
        self.asked.append(Asked(agent, point))
        return point if weight is not None else np.eye(WIDTH)[self.size + new]


@dataclass
class Traced:
    """A method among agents of whom nothing is known: its start and its rounds, to be run on vectors."""

    experiment: Experiment
    owner: str = field(init=False)

    @double
    def __post_init__(self) -> None:
        bound = self.experiment.bind()
        _check(bound)
        self.owner = type(bound.algorithm.innermost()).__name__
        self.agents = bound.problem.agents
        self.layout = Layout(bound.oracle, self.agents, self.agents, True, None, 1, False, False, 1, bound.topology)
        self.inputs = Inputs(
            cast(bound.algorithm, float),
            bound.timing,
            bound.problem.own,
            (),
            bound.problem.weights,  # type: ignore[arg-type]
            bound.channel,
            bound.gather,
            bound.wires,
        )
        self._begin()
        self._program = self._trace()
        self._read = self._trace_read()

    @property
    def by_node(self) -> bool:
        return self.layout.topology.by_node

    def longer(self, factor: float) -> Traced | None:
        """The method with a step so many times as long, in the same program; None where it has none."""
        method = self.experiment.bind().algorithm.longer(factor)
        if method is None:
            return None
        other = copy.copy(self)
        other.inputs = self.inputs._replace(algorithm=cast(method, float))
        return other

    def _given(self) -> list[np.ndarray]:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.inputs)]

    def _interpreter(self, notes: Notebook | None = None) -> Interpreter:
        answers: dict[str, Answer] = {}
        if notes is not None:
            answers = {"agent.field": notes.field, "agent.prox": notes.prox, "agent.loss": notes.loss}
        return Interpreter(self.owner, answers)

    def _begin(self) -> None:
        """The state before the first round: its shapes, its numbers, and how much of the start each vector holds."""
        start = self.layout.topology.spread(np.zeros(WIDTH), self.agents)

        def begin(inputs: Inputs, w: Tree) -> RunState:
            return start_state(self.layout, inputs, wrap(w), False)

        program, shapes = jax.make_jaxpr(begin, return_shape=True)(self.inputs, start)
        model = Vectors(np.broadcast_to(np.eye(WIDTH)[0], start.shape))
        values = self._interpreter().run(program, [*self._given(), model])
        self.shapes, self.structure = jax.tree.leaves(shapes), jax.tree.structure(shapes)
        self.places: list[range | None] = []  # of each leaf's vectors in the state; None: it holds numbers
        self.numbers: list[np.ndarray | None] = []
        held: list[np.ndarray] = []
        for value in values:
            array = value.array if isinstance(value, Vectors) else np.asarray(value)
            vectors = WIDTH in array.shape
            first = sum(map(len, held))
            held += [array.reshape(-1, WIDTH)[:, 0]] if vectors else []
            self.places.append(range(first, first + array.size // WIDTH) if vectors else None)
            self.numbers.append(None if vectors else array)
            if vectors and (array.shape[-1] != WIDTH or (not isinstance(value, Vectors) and array.any())):
                raise FedpointError(f"fp.prove: {self.owner} starts from vectors that are no multiples of its start")
        self.start = np.concatenate(held) if held else np.zeros(0)
        self.size = len(self.start)

    def _trace(self) -> ClosedJaxpr:
        p = self.inputs.p

        def advance(inputs: Inputs, leaves: list[Tree], round: Tree) -> list[Tree]:
            state = jax.tree.unflatten(self.structure, leaves)
            tick = Tick(None, jnp.ones(self.agents, bool), jnp.asarray(p), jnp.asarray(p), jnp.int32(self.agents))
            keys = (NO_LUCK, NO_LUCK, NO_LUCK)
            after = one_round(self.layout, inputs, state, (tick, tick), NOTHING_PRECOMPUTED, keys, round)
            return jax.tree.leaves(after)

        return jax.make_jaxpr(advance)(self.inputs, self.shapes, np.int32(0))

    def _trace_read(self) -> ClosedJaxpr:
        def read(inputs: Inputs, leaves: list[Tree]) -> Tree:
            state = jax.tree.unflatten(self.structure, leaves)
            return unwrap(self.layout.topology.per_hub(inputs.algorithm.read)(state.hub, state.memory))

        return jax.make_jaxpr(read)(self.inputs, self.shapes)

    def _state(self, numbers: Sequence[np.ndarray | None]) -> list[Value]:
        """The state whose vectors are the first of the basis."""
        basis = np.eye(WIDTH)
        return [
            np.asarray(number) if at is None else Vectors(basis[at].reshape(shape.shape))
            for at, number, shape in zip(self.places, numbers, self.shapes, strict=True)
        ]

    @double
    def round(
        self, number: int, numbers: Sequence[np.ndarray | None], room: int = CALLS
    ) -> tuple[LinearRound, list[np.ndarray | None]]:
        """A round, and the numbers in the state after it."""
        notes = Notebook(self.size, room * self.agents, self.owner)
        given: list[Value] = [*self._given(), *self._state(numbers), np.asarray(number, np.int32)]
        came = self._interpreter(notes).run(self._program, given)
        after, left = [], []
        for value, at in zip(came, self.places, strict=True):
            array = value.array if isinstance(value, Vectors) else np.asarray(value)
            left.append(array if at is None else None)
            if at is not None:
                if not isinstance(value, Vectors) and array.any():
                    raise FedpointError(f"fp.prove: {self.owner} puts numbers where a vector was")
                after.append(array.reshape(-1, WIDTH))
        width = self.size + len(notes.asked)
        asked = tuple(Asked(a.agent, a.point[:width]) for a in notes.asked)
        found = LinearRound(np.concatenate(after)[:, :width], asked, self.size)
        self._check_origin(found)
        return found, left

    @double
    def models(self, numbers: Sequence[np.ndarray | None]) -> np.ndarray:
        """(n, s): the models, of the state's vectors."""
        given = [*self._given(), *self._state(numbers)]
        (value,) = self._interpreter().run(self._read, given)
        if not isinstance(value, Vectors):
            raise FedpointError(f"fp.prove: {self.owner} has a model that does not depend on its state")
        return value.array.reshape(-1, WIDTH)[:, : self.size]

    def _check_origin(self, found: LinearRound) -> None:
        """Refuse a method that acts differently where everything, w* included, is moved."""
        moved = found.after[:, : self.size] @ self.start
        asks = np.array([a.point[: self.size] @ self.start for a in found.asked])
        if not (np.allclose(moved, self.start, atol=1e-9) and np.allclose(asks, 1.0, atol=1e-9)):
            raise FedpointError(
                f"fp.prove: {self.owner} is drawn to the origin, or away from it (weight decay?): where w* is decides "
                "how far it ends from it, and there is no worst case. Put such a term into the agents' losses"
            )


def trace(algorithm: Algorithm, agents: int, network: Network | None = None) -> Traced:
    """The method among so many agents, to be run on vectors."""
    return Traced(Experiment(algorithm, AnyAgents(agents), network=network, exact=True))


def _check(bound: Bound) -> None:
    method = bound.algorithm
    title = method.card.title
    if method.outcomes() is not None or method.unbounded:
        raise FedpointError(
            f"fp.prove: {title} draws its number of local steps, and a worst case is over rounds that are known: give "
            "a fixed one, local_steps="
        )
    if isinstance(method.local_steps, Stragglers):
        raise FedpointError("fp.prove: stragglers draw their number of local steps: give one that is fixed")
