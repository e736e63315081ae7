"""Ridge regression as a fit's problem: least squares with a penalty for each column. See `penalised.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from fedpoint.core.types import Data, Model
from fedpoint.problems.base import Constants
from fedpoint.problems.least_squares import AgentArrays, LeastSquares, LeastSquaresOracle
from fedpoint.problems.penalised import Penalised, expected_smoothness, masses
from fedpoint.problems.quadratic import linear_constants
from fedpoint.problems.rows import row_noise


@dataclass(frozen=True)
class RidgeOracle(LeastSquaresOracle):
    """`extra` is the ridge of each column."""

    def penalty(self, w: Model, extra: Data) -> Array:
        return 0.5 * jnp.sum(extra * w * w)


class RidgeTask(Penalised, LeastSquares):
    """f_k(w) = 1/(2 n_k) |y_k - X_k w|^2 + 1/2 sum_j ridge_j w_j^2; without the first half with half=False.

    sample_weight: with `groups`, what each row counts. It is carried by the rows, times the root of their mass; where
    rows are sampled, they are drawn as often as they count, as if each were there so many times.

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
        sample_weight: ArrayLike | None = None,
    ):
        if sample_weight is not None and groups is not None:
            mass, weights = masses(sample_weight, groups)
            root = np.sqrt(mass)
            A, b = np.asarray(A, dtype=float) * root[:, None], np.asarray(b, dtype=float) * root
        super().__init__(A, b, weights=weights, mean=True, groups=groups, half=half, batch=batch)
        self.ridge = np.asarray(ridge, dtype=float)
        self.oracle = RidgeOracle(**vars(self.oracle))  # the same fields
        self.common = self.common._replace(extra=self.ridge)
        if sample_weight is not None and groups is not None:
            self.mass = mass[np.argsort(groups, kind="stable")]
            if batch is not None:
                self.oracle = replace(self.oracle, sampling="importance")
                self.set_chances(self.mass)
        if self.H is not None:
            self.H = self.H + np.diag(self.ridge)
            self.own = self.own._replace(H=self.H)

    def restricted(self, chosen: Sequence[np.ndarray]) -> RidgeTask:
        A, b = ([x[rows] for x, rows in zip(table, chosen, strict=True)] for table in (self._A, self._b))
        if isinstance(self.mass, np.ndarray):  # the rows that are left count 1 on average
            size = [np.sqrt(m[rows].mean()) for m, rows in zip(self.split_rows(self.mass), chosen, strict=True)]
            A, b = ([x / s for x, s in zip(table, size, strict=True)] for table in (A, b))
        part = RidgeTask(A, b, self.ridge, self.weights, half=self.half)
        part.names = list(self.names)
        return part

    def derivatives(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        H, g, _ = self._aggregate()
        return H @ w - g, H

    def _hessians(self) -> np.ndarray:
        return self.H if self.H is not None else super()._hessians() + np.diag(self.ridge)

    def _aggregate(self) -> tuple[np.ndarray, np.ndarray, float]:
        H, g, constant = super()._aggregate()
        return (H if self.H is not None else H + np.diag(self.ridge)), g, constant

    def solution(self) -> np.ndarray | None:
        return None if self.blind else super().solution()

    def solution_near(self, w: np.ndarray, steps: int) -> np.ndarray | None:
        return self.solution()

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
        """(n,): squared errors times what rows count, without halves and penalties."""
        return np.concatenate([(a @ w - y) ** 2 for a, y in zip(self._A, self._b, strict=True)])

    def losses(self, w: Model) -> np.ndarray:
        return self.losses_at(np.broadcast_to(w, self.g.shape))

    def losses_at(self, W: np.ndarray) -> np.ndarray:
        own = np.array([((a @ w - y) ** 2).mean() for a, y, w in zip(self._A, self._b, W, strict=True)])
        return (0.5 if self.half else 1.0) * own + 0.5 * (W * W) @ self.ridge

    @property
    def work(self) -> int:
        return int(self.g.size * self.g.shape[1])

    @property
    def hessian_work(self) -> int:
        return self.work

    def constants(self) -> Constants:
        """As for least squares; the penalty is not sampled, and adds no noise."""
        local, H = self.local_solutions(), self._hessians()
        beta2, sigma2 = np.zeros(self.agents), np.zeros(self.agents)
        if self.batch is not None:
            batch = self.smallest_batches()
            for k, a in enumerate(self._A):
                scale, plain = (len(a) * self._factor[k]) ** 2, H[k] - np.diag(self.ridge)
                q = self._chances(k)
                fourth = scale * (a * ((a * a).sum(1) / (q * len(a) ** 2))[:, None]).T @ a
                beta2[k] = 2 * max(np.linalg.eigvalsh(fourth - plain @ plain)[-1], 0.0) / batch[k]
                sigma2[k] = 2 * row_noise(self._row_gradients(k, local[k]), q) / batch[k]
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
        square = [(a * a).sum(1) / self._chances(k) for k, a in enumerate(self._A)]  # of a row as it is drawn
        row = self._factor * np.array([each.max() for each in square])
        each = expected_smoothness(each, row + self.ridge.max(), self.counts, self.batch)
        return max(whole, float(self.weights @ each)), each
