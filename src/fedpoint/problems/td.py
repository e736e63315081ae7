"""Temporal differences, TD(0) with linear features: agents share a policy, each has its own MDP. Lecture 001."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, NotRequired, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike

from fedpoint.core.algorithm import samples_per_round
from fedpoint.core.arguments import checked
from fedpoint.core.arrays import numbers
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.kinds import Count, Probability, Seed
from fedpoint.core.memory_limits import check_memory
from fedpoint.core.numbers import counted
from fedpoint.core.random import Key, Row, Stream
from fedpoint.core.types import Data, Model, Number
from fedpoint.problems.base import check_agents, check_finite, check_weights
from fedpoint.problems.linear_system import LinearFields, resolvent
from fedpoint.problems.mdp import MDP, Chain, alias_table, as_policy, chain_of, garnet_mdp
from fedpoint.problems.oracle import Jumps, Mine, Numbers, Oracle

if TYPE_CHECKING:
    from fedpoint.core.algorithm import Algorithm

SAMPLING = ("iid", "trajectory")
START_ROW = 0xFFFFFFE0  # of the numbers that say where a trajectory starts


class World(NamedTuple):
    """One agent's outcomes (n,), with the probability of each, and its mean field."""

    A: Numbers
    b: Numbers
    state: Numbers
    after: Numbers  # the state, or S at the end of an episode
    reward: Numbers
    chance: Numbers  # joint, state and outcome
    cut: Numbers  # alias tables for draws of (state, outcome)
    other: Numbers
    steps: Steps | tuple[()]  # () or `Steps`, for trajectories


class Steps(NamedTuple):
    """How a chain moves: cumulative probabilities."""

    first: Numbers  # (S,) of the stationary distribution
    again: Numbers  # (S,) of the initial distribution
    edges: Numbers  # (S, m) of a state's outcomes
    index: Data  # (S, m) which those are


class Walked(NamedTuple):
    """A stretch of a trajectory."""

    outcomes: Numbers  # (steps,)
    states: Numbers  # (steps + 1,), the first one where it began


class Shared(NamedTuple):
    features: Numbers  # (S + 1, d), the last row zero: the end of an episode
    gamma: Number


@dataclass(frozen=True)
class TDOracle(Oracle):
    """g(w; s, r, s') = phi(s) ((phi(s) - gamma phi(s'))'w - r). A sample is the number of an outcome."""

    sampling: str
    steps: int = 1  # of a trajectory
    known_noise = True

    @property
    def independent(self) -> bool:  # type: ignore[override]
        return self.sampling == "iid"

    @property
    def predraw(self) -> bool:  # type: ignore[override]
        return self.sampling == "iid"

    @property
    def moves(self) -> bool:  # type: ignore[override]
        return self.sampling == "trajectory"

    def plan(self, mine: Mine, key: Key | Stream) -> Data:
        """A stretch of a trajectory by itself, from a stationary start."""
        return self.walk(mine, key, self.begin(mine, key)) if self.moves else ()

    def begin(self, mine: Mine, key: Key | Stream) -> Data:
        """A state drawn from the stationary distribution."""
        return _pick(mine.own.steps.first, key.row(START_ROW).uniform())

    def walk(self, mine: Mine, key: Key | Stream, world: Data) -> Data:
        """The agent's trajectory from the state it is in: (steps,) outcomes, and (steps + 1,) states."""
        steps = mine.own.steps
        S = steps.first.shape[0]

        def move(s: Array, e: Number) -> tuple[Array, tuple[Array, Array]]:
            row = key.row(e)
            outcome = steps.index[s, _pick(steps.edges[s], row.uniform())]
            after = mine.own.after[outcome]
            to = jnp.where(after == S, _pick(steps.again, row.uniform(first=1)), after)
            return to, (outcome, to)

        outcomes, states = lax.scan(move, world, jnp.arange(self.steps))[1]
        return Walked(outcomes, jnp.concatenate([world[None], states]))

    def moved(self, plan: Data, samples: Data) -> Data:
        return plan.states[samples]

    def jumps(self, mine: Mine) -> Jumps | None:
        if not self.moves:
            return None
        own = jax.tree.map(np.asarray, mine.own)
        S = len(own.steps.first)
        possible = np.flatnonzero(own.chance > 0)
        state, after, chance = own.state[possible], own.after[possible], own.chance[possible]
        inside = np.bincount(state, weights=chance, minlength=S)
        again = np.diff(np.minimum(own.steps.again, 1.0), prepend=0.0)
        there = np.where((after == S)[:, None], again, np.eye(S + 1)[after, :S])
        return Jumps(inside, state, chance / inside[state], there, possible)

    def draw(self, mine: Mine, plan: Data, row: Row, e: Number) -> Data:
        if self.sampling == "trajectory":
            return plan.outcomes[e]
        cut = mine.own.cut
        i = row.integers(cut.shape[0])
        return jnp.where(row.uniform(first=1) < cut[i], i, mine.own.other[i])

    def field(self, mine: Mine, w: Model, z: Data) -> Model:
        left, right = self._features(mine, z)
        return left * (right @ w - mine.own.reward[z])

    def mean_field(self, mine: Mine, w: Model) -> Model:
        return mine.own.A @ w - mine.own.b

    def prox(self, mine: Mine, center: Model, weight: Number) -> Model:
        return resolvent(mine, center, weight)

    def _features(self, mine: Mine, z: Data) -> tuple[Array, Array]:
        phi, gamma = mine.common
        left = phi[mine.own.state[z]]
        return left, left - gamma * phi[mine.own.after[z]]

    def cross_covariance(self, mine: Mine, w: Model, v: Model) -> Array:
        left, right = self._features(mine, jnp.arange(mine.own.state.shape[0]))

        def gaps(w: Model) -> Array:
            return left * (right @ w - mine.own.reward)[:, None] - self.mean_field(mine, w)

        return (gaps(w) * mine.own.chance[:, None]).T @ gaps(v)

    def cross_scatter(self, mine: Mine, w: Model, v: Model, P: Array) -> Array:
        left, right = self._features(mine, jnp.arange(mine.own.state.shape[0]))
        heights = mine.own.chance * ((right @ P) * right).sum(1)
        return (left * heights[:, None]).T @ left - mine.own.A @ P @ mine.own.A.T


def _pick(edges: Array, u: Array) -> Array:
    """The place of u among cumulative probabilities."""
    return jnp.minimum((edges <= u).sum(), edges.shape[0] - 1).astype(jnp.int32)


@checked
class TD(LinearFields):
    r"""Policy evaluation with a shared linear value function $V(s) \approx \phi(s)^\top w$.

    $$A_k = E[\phi(s) (\phi(s) - \gamma \phi(s'))^\top], \qquad b_k = E[r\, \phi(s)],$$

    exact from agent k's transitions and its stationary distribution. Where episodes end, $\phi(s') = 0$ and the chain
    starts again from the initial distribution.

    Args:
        mdps: one `MDP` per agent, all with the same states and actions.
        features: (S, d), the rows phi(s), shared by all.
        gamma: the discount, below 1, or 1 where episodes end.
        policy: (S, A) probabilities or one action per state, shared by all; default uniform.
        sampling: "iid": every step draws (s, a, s', r) afresh from the stationary distribution. "trajectory": each
            agent follows one trajectory, from a stationary start, which waits for it between rounds. Samples then
            depend on each other (a forecast is exact for few agents and states, else that of independent samples), and
            the number of local steps must be fixed or bounded.
        weights: p_k, default 1/K.
        names: of the agents; default: their numbers.

    Arguments of methods:
        w: a model (d,), or one for each agent (K, d).

    >>> walk = MDP([[[0.5, 0.5]], [[0.5, 0.5]]], [0.0, 1.0])
    >>> td = TD([walk], np.eye(2), gamma=0.5)
    >>> td.solution(), td.true_values()[0]
    (array([0.5, 1.5]), array([0.5, 1.5]))
    """

    oracle: TDOracle

    def __init__(
        self,
        mdps: MDP | Sequence[MDP],
        features: ArrayLike,
        gamma: Probability = 0.95,
        policy: ArrayLike | None = None,
        sampling: str = "iid",
        weights: ArrayLike | None = None,
        names: Sequence[str] | None = None,
    ):
        mdps = [mdps] if isinstance(mdps, MDP) else list(mdps)
        K = len(mdps)
        check_agents(K)
        if sampling not in SAMPLING:
            raise FedpointError(f"unknown sampling {sampling!r}: {nearest(str(sampling), SAMPLING)}")
        self.names = [str(k) for k in range(K)] if names is None else [str(n) for n in names]
        if len(self.names) != K:
            raise FedpointError(f"{counted(len(self.names), 'name')} for {counted(K, 'agent')}")
        size = (mdps[0].states, mdps[0].actions)
        for name, mdp in zip(self.names, mdps, strict=True):
            if (mdp.states, mdp.actions) != size:
                raise FedpointError(f"agent {name} has {mdp}, but agent {self.names[0]} has {mdps[0]}")
        phi = numbers("features", features)
        if phi.ndim != 2 or len(phi) != size[0]:
            raise FedpointError(
                f"features must be (states, dimension) for {counted(size[0], 'state')}, got shape {phi.shape}"
            )
        check_finite("features", phi)
        self.features, self.gamma = phi, float(gamma)
        self.policy = as_policy(policy, *size)
        self.weights = check_weights(weights, K)
        self.chains = [chain_of(m, self.policy, n) for m, n in zip(mdps, self.names, strict=True)]
        for name, chain in zip(self.names, self.chains, strict=True):
            inside = chain.stationary > 0
            if gamma == 1 and np.allclose(chain.moves[inside].sum(1), 1):
                raise FedpointError(f"agent {name}: gamma = 1 needs episodes that end, or values are infinite")
        self.stationary = np.stack([c.stationary for c in self.chains])
        self.A = np.stack([phi.T @ (c.stationary[:, None] * (phi - gamma * c.moves @ phi)) for c in self.chains])
        self.b = np.stack([phi.T @ (c.stationary * c.reward) for c in self.chains])
        self.oracle = TDOracle(sampling)
        self.own = self._worlds(trajectory=sampling == "trajectory")
        self.common = Shared(np.vstack([phi, np.zeros(phi.shape[1])]), self.gamma)

    def _worlds(self, trajectory: bool) -> World:
        """The agents' outcomes, with impossible ones behind where others have more."""
        n = max(len(c.outcomes.state) for c in self.chains)

        def rows(pick: Callable[[Chain], np.ndarray]) -> np.ndarray:
            found = [np.asarray(pick(c)) for c in self.chains]
            return np.stack([np.pad(a, (0, n - len(a))) for a in found])

        chance = rows(lambda c: c.stationary[c.outcomes.state] * c.outcomes.chance)
        tables = [alias_table(q) for q in chance]
        steps: Steps | tuple[()] = ()
        if trajectory:
            each = [_steps(c) for c in self.chains]
            m = max(s.edges.shape[1] for s in each)
            wide = [
                s._replace(
                    edges=np.pad(s.edges, ((0, 0), (0, m - s.edges.shape[1])), mode="edge"),
                    index=np.pad(s.index, ((0, 0), (0, m - s.index.shape[1])), mode="edge"),
                )
                for s in each
            ]
            steps = jax.tree.map(lambda *a: np.stack(a), *wide)
        return World(
            self.A,
            self.b,
            rows(lambda c: c.outcomes.state),
            rows(lambda c: c.outcomes.after),
            rows(lambda c: c.outcomes.reward),
            chance / chance.sum(axis=1, keepdims=True),
            np.stack([cut for cut, _ in tables]),
            np.stack([other for _, other in tables]),
            steps,
        )

    def prepare(self, algorithm: Algorithm) -> TDOracle:
        """The oracle for an algorithm: how long a trajectory a round may need."""
        oracle = self.oracle
        if oracle.sampling == "iid":
            return oracle
        steps = samples_per_round(algorithm)
        if steps is None:
            raise FedpointError(
                f"{type(algorithm).__name__} draws its number of local steps in the run, so a round's trajectory "
                'cannot be drawn ahead: use sampling="iid", or fixed local steps'
            )
        return dataclasses.replace(oracle, steps=steps)

    def slope_noise(self) -> np.ndarray:
        own, (phi, gamma) = self.own, self.common
        found = []
        for k, A in enumerate(self.A):
            left = phi[own.state[k]]
            right = left - gamma * phi[own.after[k]]
            heights = own.chance[k] * (left * left).sum(1)
            found.append((right * heights[:, None]).T @ right - A.T @ A)
        return np.stack(found)

    # Value functions.

    def values(self, w: Model) -> np.ndarray:
        """(S,): the value of every state by a model (d,); (K, S) by one model per agent (K, d)."""
        d = self.features.shape[1]
        w = numbers("w", w)
        if w.ndim not in (1, 2) or w.shape[-1] != d:
            raise FedpointError(f"w has shape {w.shape}: give a model {(d,)}, or several (n, {d})")
        return w @ self.features.T

    def local_values(self) -> np.ndarray:
        """(K, S): by each agent's own solution."""
        return self.values(self.local_solutions())

    def true_values(self) -> np.ndarray:
        """(K, S): V_k = (I - gamma P_k)^-1 r_k."""
        eye = np.eye(len(self.features))
        return np.stack([np.linalg.solve(eye - self.gamma * c.moves, c.reward) for c in self.chains])

    def value_error(self, w: Model) -> np.ndarray:
        """(K,): E (phi(s)'w - V_k(s))^2 under each agent's stationary distribution; w as in `values`."""
        said = self.values(w)
        if said.ndim == 2 and len(said) != self.agents:
            raise FedpointError(
                f"{counted(len(said), 'model')} for {counted(self.agents, 'agent')}: give one for all, or one for each"
            )
        return (self.stationary * (said - self.true_values()) ** 2).sum(axis=1)

    def value_metrics(self, w: Model) -> dict[str, float]:
        """The mean of `value_error` over agents and the worst, to be given as evaluate= of `fp.run`."""
        error = self.value_error(w)
        return {"value error": float(self.weights @ error), "worst value error": float(error.max())}


def _steps(chain: Chain) -> Steps:
    out, S = chain.outcomes, len(chain.stationary)
    counts = np.bincount(out.state, minlength=S)
    edges, index = np.ones((S, counts.max())), np.zeros((S, counts.max()), np.int32)
    for s in range(S):
        own = np.flatnonzero(out.state == s)
        edges[s, : len(own)] = np.cumsum(out.chance[own])
        index[s, : len(own)], index[s, len(own) :] = own, own[-1]
    # Above every number that is drawn, so that rounding leads nowhere else.
    edges[:, -1], first, again = 2.0, np.cumsum(chain.stationary), np.cumsum(chain.initial)
    return Steps(_closed(first), _closed(again), edges, index)


def _closed(edges: np.ndarray) -> np.ndarray:
    """The last state that is possible takes what rounding leaves."""
    return np.where(edges >= edges[-1], 2.0, edges)


class EvaluationOptions(TypedDict):
    """Arguments of `TD` that worlds made at random have too."""

    gamma: NotRequired[Probability]
    policy: NotRequired[ArrayLike | None]
    sampling: NotRequired[str]
    weights: NotRequired[ArrayLike | None]


@checked
def garnet(
    states: Count = 30,
    actions: Count = 2,
    branching: Count = 2,
    dim: Count = 8,
    agents: Count = 100,
    heterogeneity: Probability = 0.0,
    seed: Seed = 0,
    **options: Unpack[EvaluationOptions],
) -> TD:
    """TD on Garnet problems: random MDPs, alike up to `heterogeneity`.

    From every state and action `branching` states may follow, with probabilities cut at random; rewards are uniform in
    [0, 1]; features are random directions, phi(s) of length 1. Agent k has (1 - heterogeneity) times the common
    transitions and rewards, and heterogeneity times its own: at 0 all are the same, at 1 nothing is common.

    Args:
        states: how many.
        actions: in each state.
        branching: how many states may follow a state and an action; at most `states`.
        dim: numbers of a feature phi(s), which is the length of the model.
        agents: how many.
        heterogeneity: between 0 (all alike) and 1 (nothing in common).
        seed: of the draw.
        options: those of `fp.problems.TD`: gamma, policy, sampling, weights.
    """
    if branching > states:
        raise FedpointError(f"garnet: branching must be at most the number of states, {states}; got {branching}")
    check_memory(
        states * actions * states, f"{counted(states, 'state')} with {counted(actions, 'action')} each", "take fewer"
    )
    rng = np.random.default_rng(seed)
    P, R = garnet_mdp(states, actions, branching, rng)
    features = random_features(states, dim, rng)
    mdps = []
    for own in rng.spawn(agents):
        P_k, R_k = garnet_mdp(states, actions, branching, own) if heterogeneity > 0 else (P, R)
        mdps.append(MDP(P + heterogeneity * (P_k - P), R + heterogeneity * (R_k - R)))
    return TD(mdps, features, **options)


def random_features(states: int, dim: int, rng: np.random.Generator) -> np.ndarray:
    """(S, d): random directions of length 1."""
    phi = rng.standard_normal((states, dim))
    return phi / np.linalg.norm(phi, axis=1, keepdims=True)
