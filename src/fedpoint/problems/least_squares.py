"""Federated least squares: f_k(x) = 1/2 |A_k x - b_k|^2 over the agent's rows. Lecture 004, example 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.arrays import array_of, numbers
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.types import Data, Model, Number
from fedpoint.problems.base import Constants, by_agent, check_agents, check_finite, check_weights, squared_error
from fedpoint.problems.models import at_model, at_models
from fedpoint.problems.oracle import Mine, Numbers
from fedpoint.problems.quadratic import linear_constants, quadratic_values, solve_or_none
from fedpoint.problems.rows import RowsOracle, RowsProblem, check_sampling, row_noise

if TYPE_CHECKING:
    from fedpoint.core.algorithm import Algorithm

AgentArrays: TypeAlias = Sequence[ArrayLike] | np.ndarray  # one array for each agent, or the rows of all
GRAM_BYTES = 1 << 28  # full fields use A_k'A_k while all of them fit here, else the rows


class Normal(NamedTuple):
    """Where one agent's rows are, and its normal equations."""

    offset: Numbers
    count: Data
    agent: Numbers
    H: Numbers | tuple[()]  # (d, d), or () when too large
    g: Numbers
    constant: Numbers
    spectrum: (
        tuple[Numbers, Numbers] | tuple[()]
    ) = ()  # eigenvalues and axes of H, where many proximal problems are to be solved


@dataclass(frozen=True)
class LeastSquaresOracle(RowsOracle):
    gram: bool = True
    half: bool = True

    def weighted_loss(self, w: Model, rows: Data, weight: Array, extra: Data) -> Array:
        A, b = rows
        return (0.5 if self.half else 1.0) * weight @ (A @ w - b) ** 2

    def weighted_gradient(self, w: Model, rows: Data, weight: Array, extra: Data) -> Model:
        A, b = rows
        factor = 1.0 if self.half else 2.0
        if len(b) == 1:  # one row: no product of matrices
            return (factor * weight[0] * (jnp.sum(A[0] * w) - b[0])) * A[0]
        return factor * ((weight * (A @ w - b)) @ A)

    def weighted_hessian(self, w: Model, rows: Data, weight: Array, extra: Data) -> Array:
        A, _ = rows
        return (1.0 if self.half else 2.0) * (A * weight[:, None]).T @ A

    def sandwich(self, w: Model, v: Model, rows: Data, weight: Array, P: Array, extra: Data) -> Array:
        A, _ = rows
        factor = 1.0 if self.half else 4.0
        return factor * (A * (weight * ((A @ P) * A).sum(1))[:, None]).T @ A

    def mean_field(self, mine: Mine, w: Model) -> Model:
        return mine.own.H @ w - mine.own.g if self.gram else super().mean_field(mine, w)

    def hessian(self, mine: Mine, w: Model) -> Array:
        return mine.own.H if self.gram else super().hessian(mine, w)

    def loss(self, mine: Mine, w: Model) -> Array:
        if not self.gram:
            return super().loss(mine, w)
        return 0.5 * w @ (mine.own.H @ w) - mine.own.g @ w + mine.own.constant

    def prox(self, mine: Mine, center: Model, weight: Number) -> Model:
        if not self.gram:
            return super().prox(mine, center, weight)
        right = mine.own.g + 2 * weight * center
        if mine.own.spectrum:
            values, axes = mine.own.spectrum
            return axes @ ((axes.T @ right) / (values + 2 * weight))
        eye = jnp.eye(center.shape[0], dtype=center.dtype)
        H = mine.own.H + 2 * weight * eye
        return jax.scipy.linalg.solve(H, right, assume_a="pos")  # a third faster than LU


@checked
class LeastSquares(RowsProblem):
    """f_k(x) = 1/2 |A_k x - b_k|^2, a sum over rows, or with `mean=True` their mean.

    A sum with p = 1/K and a mean with p_k = m_k/m have the same solution; a mean with p = 1/K has another one.

    Args:
        A, b: lists of per-agent arrays, (n_k, d) and (n_k,), of different row counts; or flat arrays with `groups`.
        weights: p_k. Default 1/K for lists, n_k/n with `groups`.
        mean: mean over rows instead of the sum.
        groups: (n,) whose row it is, where A and b are flat.
        half: the factor 1/2 (False: |A_k x - b_k|^2, as in lecture 003).
        batch, sampling: rows a step ("iid", "shuffle", "importance"); None is the full gradient.

    >>> LeastSquares([[[1.0]], [[2.0]]], [[1.0], [4.0]]).solution()
    array([1.8])
    """

    def __init__(
        self,
        A: AgentArrays,
        b: AgentArrays,
        weights: ArrayLike | None = None,
        mean: bool = False,
        groups: ArrayLike | None = None,
        half: bool = True,
        batch: int | None = None,
        sampling: str = "iid",
    ):
        check_sampling(batch, sampling)
        A_k, b_k, self.names = split_agents(A, b, groups)
        counts = np.array([len(a) for a in A_k])
        K, d = len(A_k), A_k[0].shape[1]
        self.weights = check_weights(weights, K, default=None if groups is None else counts.astype(float))
        self.batch, self.mean, self.half = batch, mean, half
        factor = (1.0 if half else 2.0) / (counts if mean else np.ones(K))
        gram = K * d * d * 8 <= GRAM_BYTES
        oracle = LeastSquaresOracle(batch, sampling, mean=mean, gram=gram, half=half)
        self.set_rows((np.concatenate(A_k), np.concatenate(b_k)), counts, (), oracle)
        self.g = np.stack([f * (a.T @ y) for f, a, y in zip(factor, A_k, b_k, strict=True)])
        self.constant = np.array([0.5 * f * (y @ y) for f, y in zip(factor, b_k, strict=True)])
        self.H = np.stack([f * (a.T @ a) for f, a in zip(factor, A_k, strict=True)]) if gram else None
        self._factor = factor
        span = self.own
        H = () if self.H is None else self.H
        self.own = Normal(span.offset, span.count, span.agent, H, self.g, self.constant)
        if sampling == "importance":
            w = self.solution()
            w = self.start() if w is None else w
            sizes = [np.abs(a @ w - y) * np.linalg.norm(a, axis=1) for a, y in zip(A_k, b_k, strict=True)]
            self.set_chances(np.concatenate(sizes))

    linear = True
    predicts = "number"

    def flipped(self, liars: np.ndarray) -> RowsProblem:
        part = self.relabelled(liars, lambda y: -y)
        part.own = self.own._replace(g=np.where(liars[:, None], -self.g, self.g))
        return part

    @property
    def _A(self) -> list[np.ndarray]:
        """Views of the table: rows are held once."""
        return self.split_rows(self.all_rows()[0])

    @property
    def _b(self) -> list[np.ndarray]:
        return self.split_rows(self.all_rows()[1])

    @cached_property
    def _spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        return tuple(np.linalg.eigh(self.H))  # type: ignore[arg-type, return-value]

    def own_for(self, algorithm: Algorithm) -> Data:
        """With the spectrum of every H, where the method solves a proximal problem every round."""
        if not algorithm.proximal or self.H is None:
            return self.own
        return self.own._replace(spectrum=self._spectrum)

    @property
    def convex(self) -> bool:
        return True

    def linear_fields(self) -> tuple[np.ndarray, np.ndarray]:
        return self._hessians(), self.g

    def _hessians(self) -> np.ndarray:
        if self.H is not None:
            return self.H
        return np.stack([f * (a.T @ a) for f, a in zip(self._factor, self._A, strict=True)])

    def restricted(self, chosen: Sequence[np.ndarray]) -> LeastSquares:
        chosen = self.check_chosen(chosen)
        A, b = ([x[rows] for x, rows in zip(table, chosen, strict=True)] for table in (self._A, self._b))
        part = LeastSquares(A, b, self.weights, self.mean, half=self.half)
        part.names = list(self.names)
        return part

    def start(self) -> np.ndarray:
        return np.zeros(self.g.shape[1])

    def _aggregate(self) -> tuple[np.ndarray, np.ndarray, float]:
        if self.H is not None:
            H = np.tensordot(self.weights, self.H, 1)
        else:
            H = sum(p * f * (a.T @ a) for p, f, a in zip(self.weights, self._factor, self._A, strict=True))
        return H, self.weights @ self.g, float(self.weights @ self.constant)

    def solution(self) -> np.ndarray | None:
        H, g, _ = self._aggregate()
        return solve_or_none(H, g)

    def local_solutions(self) -> np.ndarray:
        """The least-norm solution of each agent."""
        return np.stack([np.linalg.lstsq(a, y, rcond=None)[0] for a, y in zip(self._A, self._b, strict=True)])

    @at_model
    def row_metrics(self, w: Model, X: ArrayLike, y: ArrayLike) -> dict[str, np.ndarray]:
        return squared_error(w, X, y)

    @at_models
    def objective(self, models: Model) -> np.ndarray:
        return quadratic_values(np.asarray(models), *self._aggregate())

    def _row_gradients(self, k: int, w: np.ndarray) -> np.ndarray:
        """(m_k, d): gradients that one sampled row contributes; their mean is g_k."""
        a, y = (part[self.own.offset[k] :][: self.counts[k]] for part in self.all_rows())
        return len(a) * self._factor[k] * (a @ w - y)[:, None] * a

    @at_model
    def noise(self, w: Model) -> np.ndarray:
        return np.array([self._noise_of(k, self._row_gradients(k, w)) for k in range(self.agents)])

    def constants(self) -> Constants:
        """beta2_k and sigma2_k of sampled rows: |a + b|^2 <= 2|a|^2 + 2|b|^2 apart at w_k*; zero for full gradients."""
        local = self.local_solutions()
        K = len(self.g)
        H = self._hessians()
        beta2, sigma2 = np.zeros(K), np.zeros(K)
        if self.batch is not None:
            batch = self.smallest_batches()
            for k, a in enumerate(self._A):
                scale, q = (len(a) * self._factor[k]) ** 2, self._chances(k)
                fourth = scale * (a * ((a * a).sum(1) / (q * len(a) ** 2))[:, None]).T @ a
                beta2[k] = 2 * max(np.linalg.eigvalsh(fourth - H[k] @ H[k])[-1], 0.0) / batch[k]
                sigma2[k] = 2 * row_noise(self._row_gradients(k, local[k]), q) / batch[k]
        f_local = self.constant - np.array([0.5 * w @ g for w, g in zip(local, self.g, strict=True)])
        return linear_constants(self, H, local, beta2, sigma2, f_local)


def split_agents(
    X: AgentArrays, y: AgentArrays, groups: ArrayLike | None
) -> tuple[list[np.ndarray], list[np.ndarray], list[str]]:
    """Per-agent arrays, checked, from lists or from flat arrays with groups."""
    if groups is None:
        return _checked(_listed("data", X), _listed("targets", y))
    rows, targets = array_of("data", X), array_of("targets", y)  # type: ignore[arg-type] # also lists of arrays
    if rows.ndim != 2 or targets.shape != (len(rows),):
        raise FedpointError(f"data of shape {rows.shape} and targets of shape {targets.shape} do not go together")
    order, counts, names = by_agent(groups, len(rows))
    cuts = np.cumsum(counts)[:-1]
    return _checked(np.split(rows[order], cuts), np.split(targets[order], cuts), names)


def _listed(name: str, each: AgentArrays) -> list[ArrayLike]:
    if not isinstance(each, Sequence | np.ndarray | jax.Array) or (len(each) and not np.ndim(each[0])):
        raise FedpointError(f"{name} must be a list of arrays, one for each agent, or one array with groups=")
    return list(each)


def _checked(
    X: Sequence[ArrayLike], y: Sequence[ArrayLike], names: list[str] | None = None
) -> tuple[list[np.ndarray], list[np.ndarray], list[str]]:
    names = [str(k) for k in range(len(X))] if names is None else names
    if len(X) != len(y):
        raise FedpointError(f"data of {counted(len(X), 'agent')}, but targets of {len(y)}")
    check_agents(len(X))
    X_k: list[np.ndarray] = []
    y_k: list[np.ndarray] = []
    for name, a, t in zip(names, X, y, strict=True):
        a, t = numbers(f"data of agent {name}", a), numbers(f"targets of agent {name}", t)
        if a.ndim != 2 or t.shape != (len(a),):
            raise FedpointError(
                f"agent {name}: data of shape {a.shape} and targets of shape {t.shape}; give (rows, columns), (rows,)"
            )
        if len(a) == 0:
            raise FedpointError(f"agent {name} is empty: leave it out, or give it rows")
        if X_k and a.shape[1] != X_k[0].shape[1]:
            raise FedpointError(
                f"agent {name} has {counted(a.shape[1], 'column')}, agent {names[0]} has {X_k[0].shape[1]}"
            )
        check_finite("data", a, name)
        check_finite("targets", t, name)
        X_k.append(a)
        y_k.append(t)
    return X_k, y_k, names
