"""Regularised logistic and softmax regression. Lecture 000, (15)-(18)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Unpack, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, DTypeLike

from fedpoint.core.arguments import checked
from fedpoint.core.arrays import array_of, numbers, told_apart
from fedpoint.core.compiling import quickly
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import NonNegative, shown
from fedpoint.core.operations import products, softmax
from fedpoint.core.precision import double
from fedpoint.core.types import Data, Model, Number
from fedpoint.problems.base import Constants, by_agent, check_agents, check_finite, check_held_out, check_weights
from fedpoint.problems.models import at_model, at_models
from fedpoint.problems.oracle import newton
from fedpoint.problems.rows import RowOptions, RowsOracle, RowsProblem, row_noise, row_options


@dataclass(frozen=True)
class LogisticOracle(RowsOracle):
    """A row is (h, gamma) with gamma = +-1, or (h, indicator of its class) when there are more than two classes."""

    classes: int = 2

    def weighted_loss(self, w: Model, rows: Data, weight: Array, extra: Data) -> Array:
        h, y = rows
        if self.classes == 2:
            return weight @ jax.nn.softplus(-y[:, 0] * (h @ w))
        logits = h @ w.T
        return weight @ (jax.nn.logsumexp(logits, axis=1) - (logits * y).sum(1))

    def weighted_gradient(self, w: Model, rows: Data, weight: Array, extra: Data) -> Model:
        h, y = rows
        if self.classes == 2:
            gamma = y[:, 0]
            return (-weight * gamma * jax.nn.sigmoid(-gamma * (h @ w))) @ h
        return ((softmax(products(w, h)) - y.T) * weight) @ h

    def penalty(self, w: Model, extra: Data) -> Array:
        return 0.5 * extra * jnp.sum(w * w)

    def weighted_hessian(self, w: Model, rows: Data, weight: Array, extra: Data) -> Array:
        h, _ = rows
        if self.classes == 2:
            s = jax.nn.sigmoid(h @ w)
            return (h * (weight * s * (1 - s))[:, None]).T @ h
        return _over_classes(h, weight[:, None, None] * _class_hessians(w, h))

    def sandwich(self, w: Model, v: Model, rows: Data, weight: Array, P: Array, extra: Data) -> Array:
        h, _ = rows
        if self.classes == 2:
            s, t = jax.nn.sigmoid(h @ w), jax.nn.sigmoid(h @ v)
            return (h * (weight * s * (1 - s) * t * (1 - t) * ((h @ P) * h).sum(1))[:, None]).T @ h
        C, d = w.shape
        half = jnp.einsum("ni,bicj->nbcj", h, P.reshape(C, d, C, d))
        inner = _class_hessians(w, h) @ jnp.einsum("nbcj,nj->nbc", half, h) @ _class_hessians(v, h)
        return _over_classes(h, weight[:, None, None] * inner)


def _class_hessians(w: Model, h: Array) -> Array:
    """(n, C, C): a row's Hessian is M over classes times h h' over columns, M = diag(p) - p p'."""
    p = jax.nn.softmax(h @ w.T, axis=1)
    return p[:, :, None] * jnp.eye(w.shape[0]) - p[:, :, None] * p[:, None, :]


def _over_classes(h: Array, inner: Array) -> Array:
    """(C d, C d): sum over rows n of inner_n over classes times h_n h_n' over columns."""
    size = inner.shape[1] * h.shape[1]
    return jnp.einsum("ni,nbc,nj->bicj", h, inner, h, optimize="optimal").reshape(size, size)


@checked
class Logistic(RowsProblem):
    """J_k(w) = ridge/2 |w|^2 + mean of ln(1 + exp(-gamma h'w)); softmax when there are more than two classes.

    Args:
        X: (n, d) rows of all agents.
        y: labels +-1 or 0/1, or any classes.
        groups: whose row it is (n,). Without it there is one agent.
        ridge: rho, on every coefficient, the intercept too: then every agent alone has a minimum.
        intercept: append a column of ones.
        dtype: of the rows and the model: "float64" by default; "float32" halves their memory.
        classes: all there are, sorted; by default those that occur in y.
        options: weights, p_k, default n_k/n; batch and sampling, rows a step ("iid", "shuffle", "importance"), where
            None is the full gradient.

    A model is (d,), or (classes, d) for softmax.
    """

    classes: np.ndarray
    predicts = "class"

    def __init__(
        self,
        X: ArrayLike,
        y: ArrayLike,
        groups: ArrayLike | None = None,
        ridge: NonNegative = 0.01,
        intercept: bool = False,
        dtype: DTypeLike = np.float64,
        classes: ArrayLike | None = None,
        **options: Unpack[RowOptions],
    ):
        weights, batch, sampling = row_options(**options)
        X, y = X if isinstance(X, np.ndarray) else numbers("X", X), array_of("y", y)
        if X.ndim != 2 or y.shape != (len(X),):
            raise FedpointError(f"X of shape {X.shape} and y of shape {y.shape}; give (rows, columns) and (rows,)")
        check_agents(len(X))
        check_finite("X", X)
        if np.issubdtype(y.dtype, np.number):
            check_finite("y", y)
        dtype = _precision(dtype)
        given = ("y", y) if classes is None else ("classes", array_of("classes", classes))
        self.classes = told_apart(*given)[0]
        if len(self.classes) < 2:
            only = f"one class only ({self.classes.tolist()[0]!r})" if len(self.classes) else "no class"
            raise FedpointError(f"{given[0]} holds {only}: a classifier needs at least two")
        if classes is not None and not np.isin(y, self.classes).all():
            raise FedpointError("y holds labels that are not among the classes")
        order, counts, self.names = by_agent(np.zeros(len(X), int) if groups is None else groups, len(X))
        h = X[order].astype(dtype)
        if intercept:
            h = np.column_stack([h, np.ones(len(h), dtype)])
        label = np.searchsorted(self.classes, y[order])
        two = len(self.classes) == 2
        target = (2.0 * label - 1.0)[:, None] if two else np.eye(len(self.classes))[label]
        self.label, self.intercept, self.ridge = label, intercept, float(ridge)
        self.weights = check_weights(weights, len(counts), default=counts.astype(float))
        self.batch = batch
        oracle = LogisticOracle(batch, sampling, classes=len(self.classes))
        self.set_rows((h, target.astype(dtype)), counts, np.asarray(ridge, dtype), oracle)
        self._solution: np.ndarray | str | None = "unknown"
        if sampling == "importance":
            w = self.solution()
            w = self.start() if w is None else w
            rows = self.row_gradients(w)
            self.set_chances(np.sqrt((rows.reshape(len(rows), -1) ** 2).sum(1)))

    @property
    def X(self) -> np.ndarray:
        """(n, d): a view of the table: rows are held once."""
        return self.all_rows()[0]

    @property
    def convex(self) -> bool:
        return True

    def restricted(self, chosen: Sequence[np.ndarray]) -> Logistic:
        part = cast(Logistic, super().restricted(chosen))
        index = self.row_numbers(chosen)
        part.label, part._solution = self.label[index], "unknown"
        return part

    def flipped(self, liars: np.ndarray) -> RowsProblem:
        return self.relabelled(liars, lambda y: -y if len(self.classes) == 2 else y[:, ::-1])

    def start(self) -> np.ndarray:
        d = self.X.shape[1]
        return np.zeros(d if len(self.classes) == 2 else (len(self.classes), d), self.X.dtype)

    def row_weights(self) -> np.ndarray:
        """(n,): each row's weight p_k / n_k in the aggregate."""
        return np.repeat(self.weights / self.counts, self.counts)

    @at_models
    @double
    def objective(self, models: Model) -> np.ndarray:
        """In one pass over the rows of all agents: no agent is padded."""
        return np.asarray(_objective(self.oracle, self.all_rows(), self.row_weights(), self.ridge, models))

    @at_model
    def row_metrics(self, w: Model, X: ArrayLike, y: ArrayLike) -> dict[str, np.ndarray]:
        """Accuracy and log loss (without the ridge)."""
        X, y = check_held_out(X, y, self.X.shape[1] - self.intercept)
        unknown = set(np.unique(y)) - set(self.classes)
        if unknown:
            raise FedpointError(f"held-out labels {sorted(unknown)} do not occur in the training data")
        X = np.column_stack([X, np.ones(len(X))]) if self.intercept else X
        logits = X @ np.asarray(w, dtype=float).T
        logits = np.stack([np.zeros(len(X)), logits], axis=1) if len(self.classes) == 2 else logits
        label = np.searchsorted(self.classes, y)
        top = logits.max(1)
        log_loss = top + np.log(np.exp(logits - top[:, None]).sum(1)) - logits[np.arange(len(X)), label]
        return {"accuracy": (logits.argmax(1) == label).astype(float), "log_loss": log_loss}

    @double
    def solution(self) -> np.ndarray | None:
        """w* by Newton's method, or None where the minimum is not attained (separable classes without ridge)."""
        if isinstance(self._solution, str):
            rows = jax.tree.map(lambda a: a.astype(float), self.all_rows())
            at = (self.oracle, rows, self.row_weights(), self.ridge)
            w, size = (np.asarray(a) for a in _minimise(*at, self.start().astype(float)))
            # Without a ridge, loss and gradient may vanish only at infinity: w then grows with the accuracy.
            rough = w if self.ridge else np.asarray(_minimise(*at, self.start().astype(float), 1e-6)[0])
            self._solution = w if size < 1e-9 and np.linalg.norm(w - rough) <= 0.1 * np.linalg.norm(w) else None
        return self._solution

    def why_no_solution(self) -> str:
        return "there is no w*: the classes can be separated, and without a ridge the minimum is at infinity"

    @property
    def solved(self) -> bool:
        return not isinstance(self._solution, str)

    @double
    def local_solutions(self) -> np.ndarray | None:
        """w_k* of each agent; None without a ridge, where an agent with one class has none."""
        if self.ridge == 0:
            return None
        found = []
        h, y = (a.astype(float) for a in self.all_rows())
        for offset, count in zip(self.own.offset, self.counts, strict=True):
            # Padded to one shape, so that all agents share one compilation.
            rows = tuple(np.zeros((self.oracle.largest, a.shape[1])) for a in (h, y))
            for part, a in zip(rows, (h, y), strict=True):
                part[:count] = a[offset : offset + count]
            weight = np.where(np.arange(self.oracle.largest) < count, 1.0 / count, 0.0)
            start = self.start().astype(float)
            found.append(np.asarray(_minimise(self.oracle, rows, weight, self.ridge, start)[0]))
        return np.stack(found)

    @at_model
    def row_gradients(self, w: np.ndarray) -> np.ndarray:
        """(n, ...): the gradient of every row's loss, without the penalty, which is not sampled."""
        h = self.X
        if len(self.classes) == 2:
            gamma = 2.0 * self.label - 1.0
            return (-0.5 * gamma * (1 - np.tanh(0.5 * gamma * (h @ w))))[:, None] * h  # no overflow
        logits = h @ w.T
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(h)), self.label] -= 1.0
        return p[:, :, None] * h[:, None, :]

    @at_model
    def noise(self, w: Model) -> np.ndarray:
        return np.array([self._noise_of(k, g) for k, g in enumerate(self._by_agent(self.row_gradients(np.asarray(w))))])

    def _by_agent(self, rows: np.ndarray) -> list[np.ndarray]:
        return self.split_rows(rows.reshape(len(rows), -1))

    def constants(self) -> Constants:
        """Smoothness from |h|^2/4 (two classes) or |h|^2/2 (softmax), strong convexity from the ridge.

        sigma2_k is twice the noise at w_k*; beta2_k twice the mean squared smoothness of a sampled row, over the batch.
        """
        curvature = 0.25 if len(self.classes) == 2 else 0.5
        parts = self.split_rows(self.X)
        top = np.array([_largest_square(x) / len(x) for x in parts])
        delta_k = curvature * top + self.ridge
        w, local = self.solution(), self.local_solutions()
        beta2: np.ndarray = np.zeros(self.agents)
        sigma2: np.ndarray | None = np.zeros(self.agents)
        spread = gamma = None
        if local is not None and w is not None:
            flat = local.reshape(self.agents, -1)
            spread = float(self.weights @ ((flat - w.ravel()) ** 2).sum(1))
            at_own = np.array([self._loss_of(k, v) for k, v in enumerate(local)])
            gamma = float(self.weights @ (self.losses(w) - at_own))
        if self.batch is not None:
            squares = [(curvature * (x * x).sum(1)) ** 2 for x in parts]
            rough = [(s / (len(s) ** 2 * self._chances(k))).sum() for k, s in enumerate(squares)]
            beta2 = 2 * np.array(rough) / self.smallest_batches()
            if local is None:
                sigma2 = None
            else:
                own = [
                    row_noise(self._by_agent(self.row_gradients(v))[k], self._chances(k)) for k, v in enumerate(local)
                ]
                sigma2 = 2 * np.array(own) / self.smallest_batches()
        return Constants(
            nu=self.ridge or None,
            delta=curvature * _largest_square(self.X * np.sqrt(self.row_weights())[:, None]) + self.ridge,
            nu_k=np.full(self.agents, self.ridge),
            delta_k=delta_k,
            beta2_k=beta2,
            sigma2_k=sigma2,
            heterogeneity=spread,
            gamma=gamma,
        )

    def _loss_of(self, k: int, w: np.ndarray) -> float:
        return float(self.losses(w)[k])


def _largest_square(x: np.ndarray) -> float:
    """The largest eigenvalue of x'x, from the smaller of x'x and x x': there may be a million columns."""
    small = x @ x.T if len(x) < x.shape[1] else x.T @ x
    return float(np.linalg.norm(small, 2))


def _precision(dtype: DTypeLike) -> np.dtype:
    try:
        found = np.dtype(dtype)
    except (TypeError, ValueError):
        found = np.dtype(object)
    if found.kind != "f":
        raise FedpointError(f"dtype must be a type of real numbers, such as np.float32; got {shown(dtype)}")
    return found


def _penalised(oracle: LogisticOracle, w: Model, rows: Data, weight: Array, ridge: Number) -> Array:
    return oracle.weighted_loss(w, rows, weight, ridge) + oracle.penalty(w, ridge)


@partial(quickly, static_argnums=0)
def _objective(oracle: LogisticOracle, rows: Data, weight: Array, ridge: Number, models: Model) -> Array:
    return jax.lax.map(lambda w: _penalised(oracle, w, rows, weight.astype(w.dtype), ridge), models)


@partial(quickly, static_argnums=0)
def _minimise(
    oracle: LogisticOracle, rows: Data, weight: Array, ridge: Number, start: Array, tolerance: float = 1e-13
) -> tuple[Array, Array]:
    gradient = jax.grad(lambda w: _penalised(oracle, w, rows, weight, ridge))
    w = newton(gradient, start, 0.0, tolerance)
    return w, jnp.linalg.norm(gradient(w))
