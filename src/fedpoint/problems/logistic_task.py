"""Logistic and softmax regression as a fit's problem, with a penalty for each column. See `penalised.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from fedpoint.problems.logistic import Logistic, LogisticOracle, _minimise
from fedpoint.problems.penalised import DENSE, Penalised, expected_smoothness, masses

NEWTON = 100  # steps
CHUNK = 1 << 24  # numbers that a pass over rows and models holds


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


@dataclass(frozen=True)
class WeightedOracle(PenalisedOracle):
    """A row is (h, y, mass): its loss counts mass times."""

    def weighted_loss(self, w: Model, rows: Data, weight: Array, extra: Data) -> Array:
        h, y, mass = rows
        return super().weighted_loss(w, (h, y), weight * mass, extra)

    def weighted_gradient(self, w: Model, rows: Data, weight: Array, extra: Data) -> Model:
        h, y, mass = rows
        return super().weighted_gradient(w, (h, y), weight * mass, extra)

    def weighted_hessian(self, w: Model, rows: Data, weight: Array, extra: Data) -> Array:
        h, y, mass = rows
        return super().weighted_hessian(w, (h, y), weight * mass, extra)

    def sandwich(self, w: Model, v: Model, rows: Data, weight: Array, P: Array, extra: Data) -> Array:
        h, y, mass = rows
        return super().sandwich(w, v, (h, y), weight * mass**2, P, extra)


class LogisticTask(Penalised, Logistic):
    """Logistic regression, softmax for more than two classes, with a ridge for each column.

    classes: all there are; default: those that occur in y. center: the model that has no penalty; default 0.
    sample_weight: what each row counts; where rows are sampled, they are drawn as often as they count.

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
        sample_weight: ArrayLike | None = None,
    ):
        agents = np.zeros(len(np.asarray(y)), int) if groups is None else groups
        mass, weights = (None, None) if sample_weight is None else masses(sample_weight, agents)
        super().__init__(X, y, agents, ridge=0.0, batch=batch, classes=classes, weights=weights)
        self.ridge = np.asarray(ridge, dtype=float)
        self.oracle = PenalisedOracle(**vars(self.oracle))  # the same fields
        if mass is not None:
            self._weigh(mass[np.argsort(agents, kind="stable")])
        count = len(self.classes)  # an eigenvalue of `held` is at most the columns' own curvature: steps stay stable
        square = (self.row_weights() * self.mass) @ self.X**2
        self.held = np.zeros(len(self.ridge)) if count == 2 else 0.5 * square / count
        self.center = np.broadcast_to(np.asarray(center, dtype=float), self.start().shape)
        self.common = self.common._replace(extra=(self.ridge, self.held, self.center))

    def _weigh(self, mass: np.ndarray) -> None:
        """Give every row what it counts."""
        oracle = WeightedOracle(**vars(self.oracle))
        if self.batch is not None:
            oracle = replace(oracle, sampling="importance")
        self.set_rows((*self.all_rows()[:2], mass), self.counts, (), oracle)
        self.mass = mass
        if self.batch is not None:
            self.set_chances(mass)

    @property
    def two(self) -> bool:
        return len(self.classes) == 2

    def restricted(self, chosen: Sequence[np.ndarray]) -> LogisticTask:
        part = cast(LogisticTask, super().restricted(chosen))
        for name in ("_padded", "_agents_rows"):
            part.__dict__.pop(name, None)
        if isinstance(self.mass, np.ndarray):  # the rows that are left count 1 on average
            extra, left = part.common.extra, np.split(self.mass[self.row_numbers(chosen)], np.cumsum(part.counts)[:-1])
            part._weigh(np.concatenate([m / m.mean() for m in left]))
            part.common = part.common._replace(extra=extra)
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
        """(n,): log losses times what rows count, without the penalty."""
        return self._row_losses(np.asarray(w, dtype=float)[None])[:, 0]

    @property
    def _mass(self) -> np.ndarray | float:
        """What rows count, beside another axis."""
        return self.mass[:, None] if isinstance(self.mass, np.ndarray) else 1.0

    def _row_losses(self, models: np.ndarray) -> np.ndarray:
        """(n, m) of models with a leading axis."""
        scores = self.X @ models.T if self.two else np.tensordot(self.X, models, axes=(1, 2))  # (n, m) or (n, m, C)
        return self._losses_of(scores)

    def _losses_of(self, scores: np.ndarray) -> np.ndarray:
        label = self.label
        if self.two:
            return self._mass * np.logaddexp(0.0, (1.0 - 2.0 * label)[:, None] * scores)
        top = scores.max(-1)
        own = np.take_along_axis(scores, label[:, None, None], axis=2)[:, :, 0]
        return self._mass * (top + np.log(np.exp(scores - top[..., None]).sum(-1)) - own)

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
        """Agents' rows side by side, (K, m, d), their targets and weights in a mean, zero where there is no row."""
        K, m = self.agents, int(self.counts.max())
        place = np.repeat(np.arange(K), self.counts), np.arange(len(self.X)) - np.repeat(self.own.offset, self.counts)
        X, weight = np.zeros((K, m, self.X.shape[1])), np.zeros((K, m))
        X[place], weight[place] = self.X, self.mass * np.repeat(1.0 / self.counts, self.counts)
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

    def row_gradients(self, w: np.ndarray) -> np.ndarray:
        gradients = super().row_gradients(w)
        return gradients if isinstance(self.mass, float) else gradients * self.mass.reshape(-1, *[1] * w.ndim)

    def fields(self, w: Model) -> np.ndarray:
        w = np.asarray(w, dtype=float)
        rows = self.row_gradients(w).reshape(len(self.X), -1)
        own = np.add.reduceat(rows, self.own.offset, axis=0) / self.counts[:, None]
        return own + self._penalty_slope(w).ravel()

    @property
    def work(self) -> int:
        return int(self.agents * self.counts.max() * self.start().size)

    @property
    def hessian_work(self) -> int:
        return int(len(self.X) * self.start().size ** 2)

    def solution(self) -> np.ndarray | None:
        """w*, by Newton's method; None where it is not attained (classes that can be separated without a penalty)."""
        if self.blind:
            return None
        if isinstance(self._solution, str):
            small = self.start().size <= DENSE
            self._solution = self._newton(self.start().astype(float), NEWTON) if small else self._newton_krylov()
        return self._solution

    def solution_near(self, w: np.ndarray, steps: int) -> np.ndarray | None:
        if isinstance(self._solution, str):
            if w.size > DENSE or (found := self._newton(w, steps)) is None:
                return None
            self._solution = found
        return self._solution

    def local_solutions(self) -> None:
        """None: without a penalty on the intercept an agent with one class has none."""

    def _newton(self, w: np.ndarray, steps: int) -> np.ndarray | None:
        value = float(self.objective(w[None])[0])
        for _ in range(steps):
            slope, H = self.derivatives(w)
            try:
                step = np.linalg.solve(H, -slope).reshape(w.shape)
            except np.linalg.LinAlgError:
                return None
            promised = float(slope @ step.ravel())
            if -promised <= 1e-17 * abs(value):  # rounding: where rows count little, so does their curvature
                return w + step
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

    def derivatives(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scores, weight = self.X @ w.T, self.row_weights()
        slope = (self._gaps(scores).T * weight) @ self.X + self._penalty_slope(w)
        return slope.ravel(), self._curved(self.X, scores, weight * self.mass) + self._penalty_hessian

    def _gaps(self, scores: np.ndarray) -> np.ndarray:
        """The derivative of every row's loss in its scores, times what the row counts."""
        if self.two:
            return -0.5 * self.mass * (2.0 * self.label - 1.0 - np.tanh(0.5 * scores))
        return self._mass * (_softmax(scores) - np.eye(len(self.classes))[self.label])

    def _curved(self, X: np.ndarray, scores: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """(D, D): the Hessian of the weighted losses of rows with these scores; in pieces that fit into memory."""
        rows = max(1, CHUNK // self.start().size)
        total = self._piece(X[:rows], scores[:rows], weight[:rows])
        for at in range(rows, len(X), rows):
            total += self._piece(X[at : at + rows], scores[at : at + rows], weight[at : at + rows])
        return total

    def _piece(self, X: np.ndarray, scores: np.ndarray, weight: np.ndarray) -> np.ndarray:
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
        weights = self.split_rows(self.mass * np.repeat(1.0 / self.counts, self.counts))
        parts = zip(self._agents_rows, self.split_rows(self._scores_at(W)), weights, strict=True)
        return np.stack([self._curved(*part) for part in parts]) + self._penalty_hessian

    def products_at(self, W: np.ndarray, U: np.ndarray) -> np.ndarray:
        scores, u = self._scores_at(W), self._scores_at(U)
        if self.two:
            t = np.tanh(0.5 * scores)
            return self._means(0.25 * self.mass * (1 - t * t) * u) + self.ridge * U
        p = _softmax(scores)
        held = (self.held * U.sum(1))[:, None, :]
        return self._means(self._mass * p * (u - (p * u).sum(1, keepdims=True))) + self.ridge * U + held

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
            rough = [(s**2 * self._chances(k)).sum() for k, s in enumerate(self._bends_drawn())]
            beta2 = 2 * np.array(rough) / self.smallest_batches()
            sigma2 = None  # type: ignore[assignment]
        return Constants(low or None, whole, np.full(self.agents, low), each, beta2, sigma2)

    def _curvatures(self) -> tuple[float, np.ndarray]:
        """Bounds of the Hessians' largest eigenvalues, of the aggregate and of every agent."""
        bend, ridge = (0.25 if self.two else 0.5), np.diag(self.ridge)
        whole = bend * (self.X * (self.row_weights() * self.mass)[:, None]).T @ self.X + ridge
        scaled = self.split_rows(np.sqrt(self._mass) * self.X)
        each = [np.linalg.eigvalsh(bend * (x.T @ x) / len(x) + ridge)[-1] for x in scaled]
        return float(np.linalg.eigvalsh(whole)[-1]), np.array(each)

    def _bends_drawn(self) -> list[np.ndarray]:
        """The largest curvature of every row's loss as it is sampled, by agent: over its chance, as a mean has it."""
        bends = (0.25 if self.two else 0.5) * self.mass * (self.X**2).sum(1)
        return [b / (len(b) * self._chances(k)) for k, b in enumerate(self.split_rows(bends))]

    def smoothness(self) -> tuple[float, np.ndarray]:
        """Of the aggregate and (K,) of the agents; with a batch, of what batches are expected to have."""
        whole, each = self._curvatures()
        if self.batch is None:
            return whole, each
        row = np.array([bends.max() for bends in self._bends_drawn()])
        each = expected_smoothness(each, row + self.ridge.max(), self.counts, self.batch)
        return max(whole, float(self.weights @ each)), each


def _softmax(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)
