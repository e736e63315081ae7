"""Streaming linear regression (LMS): gamma = h'w_k + v, fresh at every step. Lecture 000, (35)-(39), (82)-(84)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.arrays import numbers, one_per_agent
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import Count, NonNegative, Seed
from fedpoint.core.numbers import counted
from fedpoint.core.random import Row
from fedpoint.core.types import Data, Model, Number
from fedpoint.problems.base import Constants, Problem, check_agents, check_finite, check_weights, squared_error
from fedpoint.problems.models import at_model, at_models
from fedpoint.problems.oracle import Mine, Numbers, Oracle
from fedpoint.problems.quadratic import linear_constants, quadratic_values, solve_or_none


class Source(NamedTuple):
    """One agent's data source: model, standard deviation of v, and a square root of the regressors' covariance."""

    model: Numbers
    deviation: Numbers
    root: Numbers  # a number for isotropic regressors, else (d, d)


@dataclass(frozen=True)
class StreamOracle(Oracle):
    known_noise = True

    def draw(self, mine: Mine, plan: Data, row: Row, e: Number) -> Data:
        model, deviation, root = mine.own
        d = model.shape[0]
        # h and v are drawn apart, at indices 0..d-1 and d: one array would be computed twice to be cut in two.
        h = row.normal((d,))
        h = root * h if root.ndim == 0 else root @ h
        return h.astype(model.dtype), (deviation * row.normal(first=d)).astype(model.dtype)

    def field(self, mine: Mine, w: Model, z: Data) -> Model:
        h, v = z
        return h * (h @ (w - mine.own.model) - v)

    def mean_field(self, mine: Mine, w: Model) -> Model:
        return self._times_covariance(mine, w - mine.own.model)

    def loss(self, mine: Mine, w: Model) -> Array:
        x = w - mine.own.model
        return 0.5 * (x @ self._times_covariance(mine, x) + mine.own.deviation**2)

    def prox(self, mine: Mine, center: Model, weight: Number) -> Model:
        model, _, root = mine.own
        if root.ndim == 0:
            return (root**2 * model + 2 * weight * center) / (root**2 + 2 * weight)
        R = root @ root.T
        return jnp.linalg.solve(R + 2 * weight * jnp.eye(R.shape[0]), R @ model + 2 * weight * center)

    def cross_covariance(self, mine: Mine, w: Model, v: Model) -> Array:
        """R y x'R + (x'R y) R + noise R, x = w - w_k, y = v - w_k: Gaussian fourth moments."""
        R = self._covariance(mine)
        Rx, Ry = R @ (w - mine.own.model), R @ (v - mine.own.model)
        return jnp.outer(Ry, Rx) + ((w - mine.own.model) @ Ry + mine.own.deviation**2) * R

    def cross_scatter(self, mine: Mine, w: Model, v: Model, P: Array) -> Array:
        """R P'R + tr(R P) R."""
        R = self._covariance(mine)
        return R @ P.T @ R + jnp.vdot(R, P) * R

    def _covariance(self, mine: Mine) -> Array:
        root = mine.own.root
        return root**2 * jnp.eye(mine.own.model.shape[0]) if root.ndim == 0 else root @ root.T

    def _times_covariance(self, mine: Mine, x: Array) -> Array:
        root = mine.own.root
        return root**2 * x if root.ndim == 0 else root @ (root.T @ x)


@checked
class LinearStream(Problem):
    """gamma = h'w_k + v with h ~ N(0, R_k) and v ~ N(0, noise_k); field -h (gamma - h'w), fresh at every step.

    Args:
        models: (K, d), the w_k.
        noise: variance of v, one or one per agent.
        covariance: R_k: a variance (R = variance I), one per agent, (d, d) or (K, d, d).
        weights: p_k, default 1/K.
    """

    def __init__(
        self, models: ArrayLike, noise: ArrayLike = 0.01, covariance: ArrayLike = 1.0, weights: ArrayLike | None = None
    ):
        w = numbers("models", models)
        if w.ndim != 2:
            raise FedpointError(f"models must be (agents, dimension), got shape {w.shape}")
        check_agents(len(w))
        K, d = w.shape
        R, variance = numbers("covariance", covariance), one_per_agent("noise", noise, K)
        for name, array in (("models", w), ("noise", variance), ("covariance", R)):
            check_finite(name, array)
        if (variance < 0).any():
            raise FedpointError("noise is a variance and must be at least 0")
        if R.ndim <= 1:
            if not (R > 0).all():
                raise FedpointError("covariance: the regressors' variance must be above 0")
            root = np.sqrt(one_per_agent("covariance", R, K))
        elif R.shape in ((d, d), (K, d, d)):
            try:
                root = np.linalg.cholesky(np.broadcast_to(R, (K, d, d)))
            except np.linalg.LinAlgError:
                raise FedpointError("covariance must be symmetric positive definite for every agent") from None
        else:
            raise FedpointError(
                f"covariance has shape {R.shape}; for {counted(K, 'agent')} in dimension {d} give {(K, d, d)}"
            )
        self.weights = check_weights(weights, K)
        self.names = [str(k) for k in range(K)]
        self.oracle = StreamOracle()
        self.own, self.common = Source(w, np.sqrt(variance), np.array(root)), ()

    @classmethod
    def sample(
        cls,
        agents: Count = 100,
        dim: Count = 10,
        spread: NonNegative = 0.1,
        noise: NonNegative = 0.01,
        seed: Seed = 0,
        variance: ArrayLike = 1.0,
    ) -> LinearStream:
        """Lecture 000, lab 1: w_k ~ N(1, spread I), h ~ N(0, variance I), v ~ N(0, noise); all three are variances.

        Args:
            agents: K.
            dim: the number of parameters.
            spread: the variance of the agents' true parameters around 1.
            noise: the variance of the noise in the targets.
            seed: of the true parameters.
            variance: of the features; one number, or one for each agent.
        """
        models = 1.0 + np.sqrt(float(spread)) * np.random.default_rng(seed).standard_normal((agents, dim))
        return cls(models, noise=noise, covariance=variance)

    def covariances(self) -> np.ndarray:
        """(K, d, d)."""
        root, d = self.own.root, self.own.model.shape[1]
        return np.multiply.outer(root**2, np.eye(d)) if root.ndim == 1 else root @ np.swapaxes(root, 1, 2)

    linear = True
    predicts = "number"

    @property
    def convex(self) -> bool:
        return True

    def linear_fields(self) -> tuple[np.ndarray, np.ndarray]:
        R = self.covariances()
        return R, np.einsum("kij,kj->ki", R, self.own.model)

    def start(self) -> np.ndarray:
        return np.zeros(self.own.model.shape[1])

    def solution(self) -> np.ndarray | None:
        if self.own.root.ndim == 1:  # isotropic: no matrices, however many agents
            share = self.weights * self.own.root**2
            return share @ self.own.model / share.sum()
        R = self.covariances()
        return solve_or_none(
            np.tensordot(self.weights, R, 1), np.einsum("k,kij,kj->i", self.weights, R, self.own.model)
        )

    def local_solutions(self) -> np.ndarray:
        return self.own.model

    @at_model
    def noise(self, w: Model) -> np.ndarray:
        """E|s|^2 = x'(tr(R) R + R^2)x + tr(R) noise, x = w - w_k: Gaussian fourth moments."""
        R, x = self.covariances(), np.asarray(w) - self.own.model
        trace = np.trace(R, axis1=1, axis2=2)
        Rx = np.einsum("kij,kj->ki", R, x)
        return trace * (Rx * x).sum(1) + (Rx * Rx).sum(1) + trace * self.own.deviation**2

    def constants(self) -> Constants:
        R = self.covariances()
        trace = np.trace(R, axis1=1, axis2=2)
        top = np.linalg.eigvalsh(R)[:, -1]
        noise = self.own.deviation**2
        return linear_constants(
            self, R, self.own.model, beta2=trace * top + top**2, sigma2=trace * noise, f_local=0.5 * noise
        )

    @at_model
    def row_metrics(self, w: Model, X: ArrayLike, y: ArrayLike) -> dict[str, np.ndarray]:
        return squared_error(w, X, y)

    @at_models
    def objective(self, models: Model) -> np.ndarray:
        models, (w, s, root) = np.asarray(models), self.own
        if root.ndim == 1:
            scale = self.weights * root**2
            d = w.shape[1]
            H, g = scale.sum() * np.eye(d), scale @ w
            constant = 0.5 * (scale @ (w * w).sum(1) + self.weights @ s**2)
        else:
            R = self.covariances()
            H, g = np.tensordot(self.weights, R, 1), np.einsum("k,kij,kj->i", self.weights, R, w)
            constant = 0.5 * (np.einsum("k,ki,kij,kj->", self.weights, w, R, w) + self.weights @ s**2)
        return quadratic_values(models, H, g, constant)
