"""Which problem does a fit solve? Least squares, logistic and softmax regression with scikit-learn's penalties.

    f_k(w) = mean over agent k's rows of the loss + 1/2 sum_j ridge_j w_j^2,   p_k = n_k / n

so that sum_k p_k f_k is the pooled objective over n: Ridge's with ridge = alpha/n, LogisticRegression's with 1/(C n). A
number per column, because intercepts are not penalised, and because a penalty can be carried to other coordinates.

What a fit needs of the agents is NumPy: nothing is compiled for tables of every new shape.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from fedpoint.core.precision import double
from fedpoint.core.types import Data, Model
from fedpoint.problems.base import Constants
from fedpoint.problems.least_squares import AgentArrays, LeastSquares, LeastSquaresOracle
from fedpoint.problems.logistic import Logistic, LogisticOracle, _minimise
from fedpoint.problems.quadratic import linear_constants
from fedpoint.problems.rows import RowsProblem, row_noise

NEWTON = 100  # steps
DENSE = 800  # numbers of a model whose Hessian is written down
CHUNK = 1 << 24  # numbers that a pass over rows and models holds


@dataclass(frozen=True)
class RidgeOracle(LeastSquaresOracle):
    """`extra` is the ridge of each column."""

    def penalty(self, w: Model, extra: Data) -> Array:
        return 0.5 * jnp.sum(extra * w * w)


@dataclass(frozen=True)
class PenalisedOracle(LogisticOracle):
    """`extra` is the ridge of each column, for softmax how strongly the sum over classes is held at zero, and the model
    that has no penalty.

    Adding one vector to the weights of all classes changes no probability, so without a ridge nothing decides it, and
    with a small one it settles slowly. Gradients leave the sum where it starts, at zero, and with a ridge it ends
    there: holding it changes no minimum and no path, but makes the first unique and forecasts of the second right.
    """

    def penalty(self, w: Model, extra: Data) -> Array:
        ridge, held, center = extra
        w = w - center
        if self.classes == 2:
            return 0.5 * jnp.sum(ridge * w * w)
        return 0.5 * jnp.sum(ridge * w * w) + 0.5 * jnp.sum(held * w.sum(0) ** 2)


class Penalised(RowsProblem):
    """What a fit asks of its problem. While a run goes on nobody needs w*, and a fit does not wait for it: `unseen`."""

    ridge: Data  # (d,), of each column: where the base class has one number
    blind = False

    @property
    @abstractmethod
    def work(self) -> int:
        """Multiplications of one pass over all agents."""

    @abstractmethod
    def fields_at(self, W: np.ndarray) -> np.ndarray:
        """(K, ...): each agent's field at its own model."""

    @abstractmethod
    def losses_at(self, W: np.ndarray) -> np.ndarray:
        """(K,): each agent's loss at its own model."""

    @abstractmethod
    def slopes_at(self, W: np.ndarray) -> np.ndarray:
        """The same as `fields_at`, for agents whose numbers of rows differ: nothing is padded."""

    @abstractmethod
    def hessians_at(self, W: np.ndarray) -> np.ndarray:
        """(K, D, D): the Hessian of each agent's loss, of the flattened model."""

    @abstractmethod
    def products_at(self, W: np.ndarray, U: np.ndarray) -> np.ndarray:
        """(K, ...): these Hessians times each agent's vector, without writing them down."""

    @abstractmethod
    def smoothness(self) -> tuple[float, np.ndarray]:
        """Of the aggregate and (K,) of the agents; with a batch, of what batches are expected to have."""

    @abstractmethod
    def row_losses(self, w: np.ndarray) -> np.ndarray:
        """(n,): the loss of every row, without the penalty."""

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        self.blind = True
        try:
            yield
        finally:
            self.blind = False


class RidgeTask(Penalised, LeastSquares):
    """f_k(w) = 1/(2 n_k) |y_k - X_k w|^2 + 1/2 sum_j ridge_j w_j^2; without the first half with half=False.

    >>> RidgeTask([[[1.0], [1.0]]], [[1.0, 3.0]], ridge=[1.0]).solution()
    array([1.])
    """

    def __init__(
        self,
        A: AgentArrays,
        b: AgentArrays,
        ridge: ArrayLike,
        weights: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        half: bool = True,
        batch: int | None = None,
    ):
        super().__init__(A, b, weights=weights, mean=True, groups=groups, half=half, batch=batch)
        self.ridge = np.asarray(ridge, dtype=float)
        self.oracle = RidgeOracle(**vars(self.oracle))  # the same fields
        self.common = self.common._replace(extra=self.ridge)
        if self.H is not None:
            self.H = self.H + np.diag(self.ridge)
            self.own = self.own._replace(H=self.H)

    def restricted(self, chosen: Sequence[np.ndarray]) -> RidgeTask:
        A, b = ([x[rows] for x, rows in zip(table, chosen, strict=True)] for table in (self._A, self._b))
        part = RidgeTask(A, b, self.ridge, self.weights, half=self.half)
        part.names = list(self.names)
        return part

    def _hessians(self) -> np.ndarray:
        return self.H if self.H is not None else super()._hessians() + np.diag(self.ridge)

    def _aggregate(self) -> tuple[np.ndarray, np.ndarray, float]:
        H, g, constant = super()._aggregate()
        return (H if self.H is not None else H + np.diag(self.ridge)), g, constant

    def solution(self) -> np.ndarray | None:
        return None if self.blind else super().solution()

    def local_solutions(self) -> np.ndarray:
        """The least-norm solution of each agent, with its share of the ridge."""
        return np.stack([np.linalg.lstsq(H, g, rcond=None)[0] for H, g in zip(self._hessians(), self.g, strict=True)])

    def fields_at(self, W: np.ndarray) -> np.ndarray:
        """(K, d): each agent's field at its own model."""
        return np.matmul(self._all_hessians, W[:, :, None])[:, :, 0] - self.g

    def slopes_at(self, W: np.ndarray) -> np.ndarray:
        return self.fields_at(W)

    def hessians_at(self, W: np.ndarray) -> np.ndarray:
        return self._all_hessians

    def products_at(self, W: np.ndarray, U: np.ndarray) -> np.ndarray:
        return np.matmul(self._all_hessians, U[:, :, None])[:, :, 0]

    @cached_property
    def _all_hessians(self) -> np.ndarray:
        return self._hessians()

    def fields(self, w: Model) -> np.ndarray:
        return self.fields_at(np.broadcast_to(w, self.g.shape))

    def row_losses(self, w: np.ndarray) -> np.ndarray:
        """(n,): squared errors, without halves and penalties."""
        return np.concatenate([(a @ w - y) ** 2 for a, y in zip(self._A, self._b, strict=True)])

    def losses(self, w: Model) -> np.ndarray:
        return self.losses_at(np.broadcast_to(w, self.g.shape))

    def losses_at(self, W: np.ndarray) -> np.ndarray:
        own = np.array([((a @ w - y) ** 2).mean() for a, y, w in zip(self._A, self._b, W, strict=True)])
        return (0.5 if self.half else 1.0) * own + 0.5 * (W * W) @ self.ridge

    @property
    def work(self) -> int:
        """Multiplications of one pass over all agents."""
        return int(self.g.size * self.g.shape[1])

    def constants(self) -> Constants:
        """As for least squares; the penalty is not sampled, and adds no noise."""
        local, H = self.local_solutions(), self._hessians()
        beta2, sigma2 = np.zeros(self.agents), np.zeros(self.agents)
        if self.batch is not None:
            batch = self.smallest_batches()
            for k, a in enumerate(self._A):
                scale, plain = (len(a) * self._factor[k]) ** 2, H[k] - np.diag(self.ridge)
                fourth = scale * (a * ((a * a).sum(1) / len(a))[:, None]).T @ a
                beta2[k] = 2 * max(np.linalg.eigvalsh(fourth - plain @ plain)[-1], 0.0) / batch[k]
                sigma2[k] = 2 * row_noise(self._row_gradients(k, local[k]), self._chances(k)) / batch[k]
        at_own = zip(local, self.g, strict=True)
        return linear_constants(
            self, H, local, beta2, sigma2, self.constant - np.array([0.5 * w @ g for w, g in at_own])
        )

    def smoothness(self) -> tuple[float, np.ndarray]:
        """Of the aggregate and (K,) of the agents; with a batch, of what batches are expected to have."""
        whole = float(np.linalg.eigvalsh(self._aggregate()[0])[-1])
        each = np.linalg.eigvalsh(self._all_hessians)[:, -1]
        if self.batch is None:
            return whole, each
        row = np.array([f * len(a) * (a * a).sum(1).max() for f, a in zip(self._factor, self._A, strict=True)])
        each = expected_smoothness(each, row + self.ridge.max(), self.counts, self.batch)
        return max(whole, float(self.weights @ each)), each


class LogisticTask(Penalised, Logistic):
    """Logistic regression, softmax for more than two classes, with a ridge for each column.

    classes: all there are; default: those that occur in y. center: the model that has no penalty; default 0.

    >>> task = LogisticTask(np.array([[0.0, 1.0], [1.0, 1.0]]), ["no", "yes"], ridge=[1.0, 0.0])
    >>> task.solution().round(6)
    array([ 0.23531 , -0.117655])
    """

    def __init__(
        self,
        X: ArrayLike,
        y: ArrayLike,
        ridge: ArrayLike,
        groups: ArrayLike | None = None,
        batch: int | None = None,
        classes: ArrayLike | None = None,
        center: ArrayLike = 0.0,
    ):
        super().__init__(X, y, groups, ridge=0.0, batch=batch, classes=classes)
        self.ridge = np.asarray(ridge, dtype=float)
        count = len(self.classes)  # an eigenvalue of `held` is at most the columns' own curvature: steps stay stable
        self.held = np.zeros(len(self.ridge)) if count == 2 else 0.5 * self.row_weights() @ self.X**2 / count
        self.center = np.broadcast_to(np.asarray(center, dtype=float), self.start().shape)
        self.oracle = PenalisedOracle(**vars(self.oracle))  # the same fields
        self.common = self.common._replace(extra=(self.ridge, self.held, self.center))

    @property
    def two(self) -> bool:
        return len(self.classes) == 2

    def restricted(self, chosen: Sequence[np.ndarray]) -> LogisticTask:
        part = cast(LogisticTask, super().restricted(chosen))
        part.__dict__.pop("_padded", None)
        return part

    def _penalties(self, w: np.ndarray) -> np.ndarray:
        """Of models (..., d) or (..., C, d)."""
        w = w - self.center
        if self.two:
            return 0.5 * (w * w) @ self.ridge
        return 0.5 * (w * w).sum(-2) @ self.ridge + 0.5 * w.sum(-2) ** 2 @ self.held

    def _penalty_slope(self, w: np.ndarray) -> np.ndarray:
        w = w - self.center
        if self.two:
            return self.ridge * w
        return self.ridge * w + (self.held * w.sum(-2))[..., None, :]

    def row_losses(self, w: np.ndarray) -> np.ndarray:
        """(n,): log losses, without the penalty."""
        return self._row_losses(np.asarray(w, dtype=float)[None])[:, 0]

    def _row_losses(self, models: np.ndarray) -> np.ndarray:
        """(n, m) of models with a leading axis."""
        scores = self.X @ models.T if self.two else np.tensordot(self.X, models, axes=(1, 2))  # (n, m) or (n, m, C)
        return self._losses_of(scores)

    def _losses_of(self, scores: np.ndarray) -> np.ndarray:
        label = self.label
        if self.two:
            return np.logaddexp(0.0, (1.0 - 2.0 * label)[:, None] * scores)
        top = scores.max(-1)
        own = np.take_along_axis(scores, label[:, None, None], axis=2)[:, :, 0]
        return top + np.log(np.exp(scores - top[..., None]).sum(-1)) - own

    def objective(self, models: Model) -> np.ndarray:
        models = np.asarray(models, dtype=float)
        some = max(1, CHUNK // (len(self.X) * (1 if self.two else len(self.classes))))
        parts = [self.row_weights() @ self._row_losses(models[i : i + some]) for i in range(0, len(models), some)]
        return np.concatenate(parts) + self._penalties(models)

    def losses_at(self, W: np.ndarray) -> np.ndarray:
        return self._own_means(self._losses_of(self._scores_at(W)[:, None])[:, 0]) + self._penalties(W)

    def losses(self, w: Model) -> np.ndarray:
        w = np.asarray(w, dtype=float)
        return self._own_means(self.row_losses(w)) + self._penalties(w)

    def _own_means(self, rows: np.ndarray) -> np.ndarray:
        return np.add.reduceat(rows, self.own.offset) / self.counts

    @cached_property
    def _padded(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Agents' rows side by side, (K, m, d), their targets and weights 1/n_k, zero where there is no row."""
        K, m = self.agents, int(self.counts.max())
        place = np.repeat(np.arange(K), self.counts), np.arange(len(self.X)) - np.repeat(self.own.offset, self.counts)
        X, weight = np.zeros((K, m, self.X.shape[1])), np.zeros((K, m))
        X[place], weight[place] = self.X, np.repeat(1.0 / self.counts, self.counts)
        target = np.zeros((K, m) if self.two else (K, m, len(self.classes)))
        target[place] = 2.0 * self.label - 1.0 if self.two else np.eye(len(self.classes))[self.label]
        return X, target, weight

    def fields_at(self, W: np.ndarray) -> np.ndarray:
        """(K, ...): each agent's field at its own model."""
        X, target, weight = self._padded
        if self.two:
            margin = target * np.matmul(X, W[:, :, None])[:, :, 0]
            pull = -0.5 * weight * target * (1 - np.tanh(0.5 * margin))  # a sigmoid that does not overflow
            return np.matmul(pull[:, None, :], X)[:, 0] + self._penalty_slope(W)
        gap = _softmax(np.matmul(X, W.transpose(0, 2, 1))) - target
        return np.matmul((gap * weight[:, :, None]).transpose(0, 2, 1), X) + self._penalty_slope(W)

    def fields(self, w: Model) -> np.ndarray:
        w = np.asarray(w, dtype=float)
        rows = self.row_gradients(w).reshape(len(self.X), -1)
        own = np.add.reduceat(rows, self.own.offset, axis=0) / self.counts[:, None]
        return own + self._penalty_slope(w).ravel()

    @property
    def work(self) -> int:
        """Multiplications of one pass over all agents."""
        return int(self.agents * self.counts.max() * self.start().size)

    def solution(self) -> np.ndarray | None:
        """w*, by Newton's method; None where it is not attained (classes that can be separated without a penalty)."""
        if self.blind:
            return None
        if isinstance(self._solution, str):
            self._solution = self._newton() if self.start().size <= DENSE else self._newton_krylov()
        return self._solution

    def local_solutions(self) -> None:
        """None: without a penalty on the intercept an agent with one class has none."""

    def _newton(self) -> np.ndarray | None:
        w = self.start().astype(float)
        value = float(self.objective(w[None])[0])
        for _ in range(NEWTON):
            slope, H = self._derivatives(w)
            try:
                step = np.linalg.solve(H, -slope).reshape(w.shape)
            except np.linalg.LinAlgError:
                return None
            promised = float(slope @ step.ravel())
            s = 1.0
            while s > 1e-10:
                there = float(self.objective((w + s * step)[None])[0])
                if there <= value + 1e-4 * s * promised + 1e-15 * abs(value):
                    break
                s /= 2
            w, value = w + s * step, there
            if np.linalg.norm(step) <= 1e-11 * (1 + np.linalg.norm(w)):
                return w
        return None

    def _derivatives(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The gradient and the Hessian of the objective, flattened."""
        scores, weight = self.X @ w.T, self.row_weights()
        slope = (self._gaps(scores).T * weight) @ self.X + self._penalty_slope(w)
        return slope.ravel(), self._curved(self.X, scores, weight) + self._penalty_hessian

    def _gaps(self, scores: np.ndarray) -> np.ndarray:
        """The derivative of every row's loss in its scores."""
        if self.two:
            return -0.5 * (2.0 * self.label - 1.0 - np.tanh(0.5 * scores))
        return _softmax(scores) - np.eye(len(self.classes))[self.label]

    def _curved(self, X: np.ndarray, scores: np.ndarray, weight: np.ndarray | float) -> np.ndarray:
        """(D, D): the Hessian of the weighted losses of rows with these scores."""
        if self.two:
            t = np.tanh(0.5 * scores)
            return (X * (0.25 * weight * (1 - t * t))[:, None]).T @ X
        p, (n, d), C = _softmax(scores), X.shape, len(self.classes)
        H = np.empty((C, d, C, d))
        for a in range(C):
            curve = (weight * p[:, a])[:, None] * (np.eye(C)[a] - p)
            H[a] = (X.T @ (curve[:, :, None] * X[:, None, :]).reshape(n, -1)).reshape(d, C, d)
        return H.reshape(C * d, C * d)

    @cached_property
    def _penalty_hessian(self) -> np.ndarray:
        C = 1 if self.two else len(self.classes)
        return np.kron(np.eye(C), np.diag(self.ridge)) + np.kron(np.ones((C, C)), np.diag(self.held))

    @cached_property
    def _agents_rows(self) -> list[np.ndarray]:
        return self.split_rows(self.X)

    def _scores_at(self, W: np.ndarray) -> np.ndarray:
        """(n,) or (n, C): of every row with its own agent's model."""
        return np.concatenate([X @ w.T for X, w in zip(self._agents_rows, W, strict=True)])

    def _means(self, values: np.ndarray) -> np.ndarray:
        """(K, ...): means over each agent's rows of a row's values times the row."""
        parts = zip(self.split_rows(values), self._agents_rows, strict=True)
        return np.stack([(v.T @ X) / len(X) for v, X in parts])

    def slopes_at(self, W: np.ndarray) -> np.ndarray:
        return self._means(self._gaps(self._scores_at(W))) + self._penalty_slope(W)

    def hessians_at(self, W: np.ndarray) -> np.ndarray:
        parts = zip(self._agents_rows, self.split_rows(self._scores_at(W)), strict=True)
        return np.stack([self._curved(X, scores, 1.0 / len(X)) for X, scores in parts]) + self._penalty_hessian

    def products_at(self, W: np.ndarray, U: np.ndarray) -> np.ndarray:
        scores, u = self._scores_at(W), self._scores_at(U)
        if self.two:
            t = np.tanh(0.5 * scores)
            return self._means(0.25 * (1 - t * t) * u) + self.ridge * U
        p = _softmax(scores)
        held = (self.held * U.sum(1))[:, None, :]
        return self._means(p * (u - (p * u).sum(1, keepdims=True))) + self.ridge * U + held

    @double
    def _newton_krylov(self) -> np.ndarray | None:
        """For models whose Hessian is too large, by products with it."""
        rows = jax.tree.map(lambda a: a.astype(float), self.all_rows())
        w, size = _minimise(self.oracle, rows, self.row_weights(), self.common.extra, self.start().astype(float))
        return np.asarray(w) if float(size) < 1e-9 else None

    def constants(self) -> Constants:
        """Smoothness from |h|^2/4 (two classes) or |h|^2/2 (softmax), strong convexity from the smallest ridge."""
        low = float(self.ridge.min())
        whole, each = self._curvatures()
        beta2, sigma2 = np.zeros(self.agents), np.zeros(self.agents)
        if self.batch is not None:
            bend = 0.25 if self.two else 0.5
            squares = [((bend * (x * x).sum(1)) ** 2).mean() for x in self.split_rows(self.X)]
            beta2 = 2 * np.array(squares) / self.smallest_batches()
            sigma2 = None  # type: ignore[assignment]
        return Constants(low or None, whole, np.full(self.agents, low), each, beta2, sigma2)

    def _curvatures(self) -> tuple[float, np.ndarray]:
        """Bounds of the Hessians' largest eigenvalues, of the aggregate and of every agent."""
        bend, ridge = (0.25 if self.two else 0.5), np.diag(self.ridge)
        whole = bend * (self.X * self.row_weights()[:, None]).T @ self.X + ridge
        each = [np.linalg.eigvalsh(bend * (x.T @ x) / len(x) + ridge)[-1] for x in self.split_rows(self.X)]
        return float(np.linalg.eigvalsh(whole)[-1]), np.array(each)

    def smoothness(self) -> tuple[float, np.ndarray]:
        """Of the aggregate and (K,) of the agents; with a batch, of what batches are expected to have."""
        whole, each = self._curvatures()
        if self.batch is None:
            return whole, each
        bend = 0.25 if self.two else 0.5
        row = np.array([bend * (x * x).sum(1).max() for x in self.split_rows(self.X)])
        each = expected_smoothness(each, row + self.ridge.max(), self.counts, self.batch)
        return max(whole, float(self.weights @ each)), each


def expected_smoothness(whole: np.ndarray, row: np.ndarray, rows: np.ndarray, batch: int) -> np.ndarray:
    """2 (L (b-1)/b + L_max/b): of a mean over b rows drawn independently, twice what a batch is expected to have.

    References: Gower et al., SGD: general analysis and improved rates (2019).
    """
    return 2 * (whole * (batch - 1) + row) / batch


def _softmax(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)
