"""What does a subject see? A small world of quadratics, and rounds as plain Python: `round(w, agents) -> w`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.own_code import line_of
from fedpoint.graphs.network import Network

AGENTS, DIMENSION = 5, 3
HUGE = 1e30  # a model beyond it has diverged; its square is still finite
STILL = 40  # rounds without a change, after which a play is over: some methods merge only every ten rounds or so


class World(NamedTuple):
    """Agents with f_k(x) = 1/2 (x - c_k)'H_k(x - c_k) and weights p_k: everything unequal.

    groups: who takes part when only some do, in turn; two or three, because with a constant number a wrong factor on
    the control variates is harmless in the limit.
    """

    H: np.ndarray
    c: np.ndarray
    p: np.ndarray
    start: np.ndarray
    groups: list[list[int]]
    network: Network | None = None  # of nodes that average with its weights

    def optimum(self, p: np.ndarray | None = None) -> np.ndarray:
        """w*, or that of other weights."""
        p = self.p if p is None else p
        return np.linalg.solve(np.tensordot(p, self.H, 1), np.einsum("k,kij,kj->i", p, self.H, self.c))

    def stretched(self, factor: float) -> World:
        """The same world, all lengths times `factor`."""
        return self._replace(c=factor * self.c, start=factor * self.start)

    def moved(self, agents: Sequence[int], to: ArrayLike) -> World:
        """The same world, the minimisers of these agents somewhere else."""
        c = self.c.copy()
        c[list(agents)] = to
        return self._replace(c=c)


def build(seed: int, steepness: float = 2.0) -> World:
    """A world from a seed. Eigenvalues of the Hessians lie between a quarter of the `steepness` and all of it."""
    rng = np.random.default_rng([seed, 0xFED])
    axes = [np.linalg.qr(rng.standard_normal((DIMENSION, DIMENSION)))[0] for _ in range(AGENTS)]
    H = np.stack([q @ np.diag(rng.uniform(0.25, 1.0, DIMENSION) * steepness) @ q.T for q in axes])
    p = rng.permutation([1.0, 1.5, 2.2, 3.1, 4.2]) * rng.uniform(0.9, 1.1, AGENTS)
    centers = rng.standard_normal((AGENTS, DIMENSION))
    order = rng.permutation(AGENTS)
    groups = [sorted(order[group].tolist()) for group in ([0, 1], [2, 3, 4], [0, 2], [1, 3], [0, 1, 4], [2, 4])]
    start = centers.mean(0) + 2.0 * rng.choice([-1.0, 1.0], DIMENSION)
    return World((H + np.swapaxes(H, 1, 2)) / 2, centers, p / p.sum(), start, groups)


# Nodes of two to four neighbours each, so that a mean without weights, or without its own share, is another one.
EDGES = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (0, 3))
ONE_WAY = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (2, 0), (3, 1))


def build_network(seed: int, steepness: float, directed: bool) -> World:
    """A world whose agents, of equal weights, are the nodes of a network."""
    rng = np.random.default_rng([seed, 0xE06E])
    if directed:
        network = Network.directed(ONE_WAY).mixing()
    else:
        network = Network.from_edges(EDGES, rng.uniform(0.1, 0.22, len(EDGES)).tolist())
    return build(seed, steepness)._replace(p=np.full(AGENTS, 1 / AGENTS), network=network)


def mixing_matrix(network: Network) -> np.ndarray:
    """W: symmetric with rows that sum to one, or on a directed network with such columns."""
    A = np.asarray(network.adjacency.toarray(), dtype=float)
    return A + np.diag(1 - A.sum(0))


class Normal(Protocol):
    """What is asked of a random generator."""

    def standard_normal(self, size: int) -> np.ndarray: ...


class SampleUse(NamedTuple):
    """A sample at a point: both as bytes, since only whether they are the same is asked."""

    sample: bytes
    point: bytes


class Participant:
    """One agent in one round, as a plain function sees it."""

    def __init__(self, world: World, index: int, round: int, memory: dict, rng: Normal | None, noise: float):
        self._world, self._rng, self._noise = world, rng, noise
        self.index, self.round, self.memory = index, round, memory
        self.weight, self.population = float(world.p[index]), len(world.p)
        self.asked: list[np.ndarray] = []  # where its field was evaluated
        self.used: list[SampleUse] = []
        self.questions = 0  # of any kind

    def sample(self) -> np.ndarray:
        """Draw a sample, to be handed to `field`."""
        self.questions += 1
        if not self._noise:
            return np.zeros(len(self._world.start))
        assert self._rng is not None
        return np.sqrt(self._noise) * self._rng.standard_normal(len(self._world.start))

    def field(self, w: ArrayLike, sample: np.ndarray | None = None) -> np.ndarray:
        """The field at w: of a fresh sample, or of the one given; exact where the battery has no noise."""
        self.questions += 1
        w = np.array(w, dtype=float)
        self.asked.append(w)
        exact = self._world.H[self.index] @ (w - self._world.c[self.index])
        sample = self.sample() if sample is None else sample
        if self._noise:
            self.used.append(SampleUse(np.asarray(sample, dtype=float).tobytes(), w.tobytes()))
        return exact + sample

    def hessian(self, w: ArrayLike) -> np.ndarray:
        """The exact Hessian at w."""
        self.questions += 1
        return self._world.H[self.index].copy()

    def loss(self, w: ArrayLike) -> float:
        """The exact loss at w."""
        self.questions += 1
        x = np.asarray(w, dtype=float) - self._world.c[self.index]
        return float(0.5 * x @ self._world.H[self.index] @ x)

    def prox(self, center: ArrayLike, weight: float) -> np.ndarray:
        """argmin_v loss(v) + weight |v - center|^2."""
        self.questions += 1
        H, c = self._world.H[self.index], self._world.c[self.index]
        return np.linalg.solve(H + 2 * weight * np.eye(len(c)), H @ c + 2 * weight * np.asarray(center, dtype=float))


class Participants(list):
    """Those who take part in a round; `server` is a dictionary that the hub keeps between rounds. On a network `mixing`
    is the matrix W by which nodes average."""

    def __init__(self, agents: Sequence[Participant], server: dict, round: int, world: World):
        super().__init__(agents)
        self.server, self.round, self.population = server, round, len(world.p)
        self._network = world.network

    @property
    def mixing(self) -> np.ndarray:
        """W, rows for who hears: what neighbours give, and on the diagonal what is left."""
        if self._network is None:
            raise FedpointError("agents.mixing: there is no network; claim a method for networks")
        return mixing_matrix(self._network)


Rounds: TypeAlias = Callable[[np.ndarray, Participants], np.ndarray]  # one round of a subject
Reading: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]  # an agent's model, of the common w and its own v


class Play(NamedTuple):
    """What was seen: models (rounds + 1, d) as far as they are finite, and whether that is all of them. Where agents
    have models of their own, all of them in a row: (rounds + 1, agents d).

    counts: field evaluations of the first participant, by round. gap: |sum p_k c_k - c| at the end and control: the
    hub's c, where they are to be seen. asked: of the first round, the points at which each agent's field was evaluated.
    questions: how often each agent was asked for anything. used: by round and participant, samples and where.
    """

    models: np.ndarray
    diverged: bool
    counts: list[int]
    gap: float | None = None
    control: np.ndarray | None = None
    asked: list[list[np.ndarray]] | None = None
    questions: list[int] | None = None
    used: list[list[list[SampleUse]]] | None = None

    @property
    def last(self) -> np.ndarray:
        return self.models[-1]

    @property
    def settled(self) -> bool:
        """The last rounds moved nothing."""
        if self.diverged or len(self.models) < 3:
            return False
        return bool(np.ptp(self.models[-STILL:], axis=0).max() < STILL * 1e-9 * (1 + np.abs(self.last).max()))


def everyone(rounds: int) -> list[Sequence[int]]:
    return [range(AGENTS)] * rounds


def some(world: World, rounds: int) -> list[Sequence[int]]:
    return [world.groups[r % len(world.groups)] for r in range(rounds)]


def play(
    function: Rounds,
    world: World,
    ticks: Sequence[Sequence[int]],
    seed: int = 0,
    noise: float = 0.0,
    name: str = "",
    rng: Normal | None = None,
    kind: type[Participant] = Participant,
    read: Reading | None = None,
) -> Play:
    """Rounds of a plain function. With a name it is a user's, whose mistakes are reported under it.

    A play that stands still is not played on: its model is repeated. read: where agents have models of their own, which
    they keep in `memory["v"]`.
    """
    memories: list[dict] = [{} if read is None else {"v": world.start.copy()} for _ in range(AGENTS)]
    server: dict = {}

    def shown(w: np.ndarray) -> np.ndarray:
        return w if read is None else np.concatenate([read(w, _own(memory, w, name)) for memory in memories])

    if rng is None and noise:
        rng = np.random.default_rng([seed, 0x5A3])
    w, seen = world.start.copy(), Play(np.zeros(0), False, [], None, None, [], [0] * AGENTS, [])
    models = [shown(w)]
    with np.errstate(all="ignore"):
        for r, tick in enumerate(ticks):
            agents = [kind(world, k, r, memories[k], rng, noise) for k in tick]
            given = Participants(agents, server, r, world)
            w = _call(function, w.copy(), given, name, r) if name else function(w, given)
            _note(seen, agents)
            model = shown(w)
            if not np.isfinite(model).all() or np.abs(model).max() > HUGE or not np.isfinite(w).all():
                return seen._replace(models=np.array(models), diverged=True)
            models.append(model)
            if stands_still(models):
                models += [model] * (len(ticks) - r - 1)
                break
    gap, control = _controls(world, memories, server)
    return seen._replace(models=np.array(models), gap=gap, control=control)


def _own(memory: dict, w: np.ndarray, name: str) -> np.ndarray:
    """What an agent keeps of its own, as long as a model."""
    v = np.asarray(memory.get("v"))
    if v.shape != w.shape or v.dtype.kind not in "fiu":
        raise FedpointError(
            f"{name} must keep each agent's own model in agent.memory['v'], an array of {counted(len(w), 'number')}; "
            f"there is {'none' if memory.get('v') is None else f'one of shape {v.shape}'}"
        )
    return v.astype(float)


def _note(seen: Play, agents: Sequence[Participant]) -> None:
    """What was asked of the participants of a round."""
    assert seen.asked is not None and seen.questions is not None and seen.used is not None
    if not seen.counts:
        seen.asked.extend(agent.asked for agent in agents)
    seen.counts.append(len(agents[0].asked))
    seen.used.append([agent.used for agent in agents])
    for agent in agents:
        seen.questions[agent.index] += agent.questions


def stands_still(models: list[np.ndarray]) -> bool:
    """No change beyond rounding for long enough, whoever took part."""
    if len(models) <= STILL or not np.allclose(models[-1], models[-2], rtol=1e-15, atol=1e-15):
        return False
    return bool(np.ptp(models[-STILL:], axis=0).max() <= 1e-14 * (1 + np.abs(models[-1]).max()))


def _call(function: Rounds, w: np.ndarray, agents: Participants, name: str, r: int) -> np.ndarray:
    """One round of a user's function; what goes wrong in it is said in one message."""
    before = w.copy()
    try:
        with jax.enable_x64(True):  # for functions that compute with JAX
            found = function(w, agents)
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__} in round {r + 1}: {error}"
        raise FedpointError(f"{name} raised {said}{line_of(error)}") from None
    new = _model(found, name, len(before))
    if new.shape != before.shape:
        raise FedpointError(f"{name} returned a model of shape {new.shape}; the model it was given has {before.shape}")
    if r == 0 and not np.isfinite(new).all():
        raise FedpointError(
            f"{name} returned {'NaN' if np.isnan(new).any() else 'inf'} in its first round, from a finite model: "
            "look for a division by zero or a norm whose gradient is taken at zero"
        )
    return new


def _model(found: ArrayLike | None, name: str, size: int) -> np.ndarray:
    """What a user's function returned, as an array in double precision."""
    what = "nothing" if found is None else f"a {type(found).__name__}"
    try:
        came = np.array("nothing" if found is None else found)
        if came.dtype.kind == "c":
            what = "complex ones"
            raise TypeError
        new = came.astype(float)
    except (TypeError, ValueError):
        raise FedpointError(
            f"{name} must return the new model, an array of {counted(size, 'number')}; it returned {what}"
        ) from None
    if came.dtype.kind == "f" and came.dtype.itemsize < new.dtype.itemsize:
        raise FedpointError(
            f"{name} returned {came.dtype}: rounds are compared to 1e-8, which takes double precision. Compute in "
            "float64, in which the model and the fields come"
        )
    return new


def _controls(world: World, memories: list[dict], server: dict) -> tuple[float | None, np.ndarray | None]:
    """|sum p_k c_k - c| and c, where agents and server keep their controls under the name "c"."""
    try:
        c = np.asarray(server["c"], dtype=float)
        own = np.array([np.asarray(m.get("c", 0 * c), dtype=float) for m in memories])
        return float(np.linalg.norm(world.p @ own - c)), c
    except (KeyError, TypeError, ValueError):
        return None, None
