"""Proportional hazards, stratified by agent: each agent's loss is the partial likelihood of its own risk sets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.arrays import array_of, numbers
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.precision import double
from fedpoint.core.types import Model
from fedpoint.problems.base import Problem, by_agent, check_agents, check_finite
from fedpoint.problems.oracle import Mine, Numbers, Oracle, newton

Ties = Literal["efron", "breslow"]


class Stratum(NamedTuple):
    """Rows of one agent, the latest time first, perhaps with rows of others after them; or of all agents, in a row.

    At a row's time those are at risk that stand before `last`, and `first` is where the rows of the same time begin:
    both counted from the agent's first row. fraction: by Efron (j - 1)/d for the j-th of d events at one time, by
    Breslow 0.
    """

    X: Numbers  # (n, d)
    event: Numbers  # (n,): 1 or 0
    first: Numbers
    last: Numbers
    fraction: Numbers


class Place(NamedTuple):
    """Where one agent's rows are."""

    offset: Numbers
    rows: Numbers


class RiskSums(NamedTuple):
    """Of every row: x'w, exp(x'w - shift), and what the event there is divided by, without exp(shift)."""

    score: Array
    risk: Array
    at_risk: Array
    shift: Array


def risk_sums(own: Stratum, w: Array, inside: Array) -> RiskSums:
    score = jnp.asarray(own.X) @ w
    shift = lax.stop_gradient(jnp.max(jnp.where(inside, score, -jnp.inf)))
    risk = jnp.where(inside, jnp.exp(jnp.where(inside, score - shift, 0.0)), 0.0)
    at_risk = jnp.cumsum(risk)[own.last]
    failing = jnp.concatenate([jnp.zeros(1, risk.dtype), jnp.cumsum(own.event * risk)])
    tied = failing[own.last + 1] - failing[own.first]
    return RiskSums(score, risk, at_risk - own.fraction * tied, shift)


def log_likelihood(own: Stratum, w: Array, inside: Array) -> Array:
    """The log partial likelihood of one agent's rows."""
    score, _, at_risk, shift = risk_sums(own, w, inside)
    happened = inside & (own.event > 0)
    return jnp.sum(jnp.where(happened, score - shift - jnp.log(jnp.where(happened, at_risk, 1.0)), 0.0))


@dataclass(frozen=True)
class CoxOracle(Oracle):
    largest: int  # most rows of an agent
    noisy = False
    known_noise = True

    def field(self, mine: Mine, w: Model, z: tuple) -> Model:
        return self.mean_field(mine, w)

    def stratum(self, mine: Mine) -> tuple[Stratum, Array]:
        """The agent's rows, as many as the largest agent has, and which of them are its own."""
        place: Place = mine.own
        rows = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, place.offset, self.largest), mine.common)
        inside = jnp.arange(self.largest) < place.rows
        last = jnp.where(inside, rows.last, 0)
        return rows._replace(first=jnp.where(inside, rows.first, 0), last=last), inside

    def loss(self, mine: Mine, w: Model) -> Array:
        rows, inside = self.stratum(mine)
        own = jax.tree.map(lambda a: a.astype(w.dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a, rows)
        own = own._replace(event=jnp.where(inside, own.event, 0.0).astype(w.dtype))
        return -log_likelihood(own, w, inside) / mine.own.rows


@checked
class Cox(Problem):
    """Cox's proportional hazards with a baseline hazard of its own for every agent.

    f_k(w) = -log(partial likelihood of agent k's rows) / n_k and p_k = n_k/n: partial likelihoods of strata multiply,
    so the minimum is exactly that of a fit that is stratified by agent on all rows together.

    Args:
        X: (n, d), covariates without an intercept, which the baseline hazards are.
        time: (n,), how long a row was observed, above 0.
        event: (n,), 1 or True where that ended with the event, 0 where it was censored.
        groups: whose row it is. Without it there is one agent.
        ties: of events at the same time, "efron" or "breslow".
    """

    def __init__(
        self,
        X: ArrayLike,
        time: ArrayLike,
        event: ArrayLike,
        groups: ArrayLike | None = None,
        ties: Ties = "efron",
    ):
        X, time, event = numbers("X", X), numbers("time", time), array_of("event", event)
        check_agents(len(X))
        if X.ndim != 2 or not X.shape[1] or time.shape != (len(X),) or event.shape != (len(X),):
            raise FedpointError(
                f"X must be (n, d), time and event (n,); got shapes {X.shape}, {time.shape} and {event.shape}"
            )
        for name, values in (("X", X), ("time", time), ("event", event)):
            check_finite(name, values)
        if not (time > 0).all():
            raise FedpointError(f"time must be above 0; {counted((time <= 0).sum(), 'row')} are not")
        if not np.isin(event, (0, 1)).all():
            raise FedpointError("event must be 1 where the event was seen and 0 where the row was censored")
        if not event.any():
            raise FedpointError("no agent has an event: there is nothing to estimate hazards from")
        order, counts, self.names = by_agent(np.zeros(len(X), int) if groups is None else groups, len(X))
        agent = np.repeat(np.arange(len(counts)), counts)
        order = order[np.lexsort((-np.asarray(event, float)[order], -time[order], agent))]
        self.time, self.counts, self.ties = time[order], counts, ties
        self.weights = counts / counts.sum()
        strata = [_stratum(t, e, ties) for t, e in _split(counts, self.time, np.asarray(event, float)[order])]
        places = (np.concatenate(part) for part in zip(*strata, strict=True))
        self.rows = Stratum(X[order], np.asarray(event, float)[order], *places)
        largest = int(counts.max())
        self.common = jax.tree.map(lambda a: np.concatenate([a, np.zeros((largest, *a.shape[1:]), a.dtype)]), self.rows)
        self.own = Place(np.cumsum(counts) - counts, counts.copy())
        self.oracle = CoxOracle(largest)
        self._solution: np.ndarray | str | None = "unknown"

    @property
    def convex(self) -> bool:
        return True

    def local_rows(self) -> np.ndarray:
        return self.counts

    def start(self) -> np.ndarray:
        return np.zeros(self.rows.X.shape[1])

    @property
    def events(self) -> np.ndarray:
        """(K,): events of every agent."""
        return np.add.reduceat(self.rows.event, self.own.offset).astype(int)

    @double
    def solution(self) -> np.ndarray | None:
        """w* by Newton's method, or None where the likelihood has no maximum."""
        if isinstance(self._solution, str):
            at = (self.oracle, self.own, self.common, self.weights)
            w, left = (np.asarray(a) for a in _minimise(*at, self.start(), 1e-13))
            rough = np.asarray(_minimise(*at, self.start(), 1e-6)[0])  # at infinity, w grows with the accuracy
            near = np.linalg.norm(w - rough) <= 1e-2 * (1 + np.linalg.norm(w))
            self._solution = w if left < 1e-9 and near else None
        return self._solution

    def why_no_solution(self) -> str:
        return "there is no w*: some combination of covariates separates the events, or is constant in every agent"

    @property
    def solved(self) -> bool:
        return not isinstance(self._solution, str)


def _split(counts: np.ndarray, *columns: np.ndarray) -> zip:
    ends = np.cumsum(counts)[:-1]
    return zip(*(np.split(column, ends) for column in columns), strict=True)


def stratum(X: np.ndarray, time: np.ndarray, event: np.ndarray, ties: Ties) -> Stratum:
    """The rows of one agent, which need not have an event."""
    order = np.lexsort((-event, -time))
    return Stratum(X[order], event[order], *_stratum(time[order], event[order], ties))


def _stratum(time: np.ndarray, event: np.ndarray, ties: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """first, last and fraction of one agent's rows, by falling time and events first."""
    _, first, group, size = np.unique(-time, return_index=True, return_inverse=True, return_counts=True)
    failing = np.bincount(group, weights=event)
    nth = np.arange(len(time)) - first[group]  # events stand first among the rows of their time
    fraction = np.where(event > 0, nth / np.maximum(failing[group], 1), 0.0)
    return first[group], (first + size - 1)[group], fraction if ties == "efron" else np.zeros(len(time))


@partial(jax.jit, static_argnums=0)
def _minimise(
    oracle: CoxOracle, own: Place, rows: Stratum, weights: Array, start: Array, tolerance: float
) -> tuple[Array, Array]:
    def gradient(w: Array) -> Array:
        return weights @ lax.map(lambda place: oracle.mean_field(Mine(place, rows), w), own)

    w = newton(gradient, start, 0.0, tolerance)
    return w, jnp.linalg.norm(gradient(w))
