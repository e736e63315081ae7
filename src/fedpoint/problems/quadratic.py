"""Quadratics: f_k(x) = 1/2 (x - c_k)' H_k (x - c_k), with additive gradient noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.arrays import numbers
from fedpoint.core.errors import FedpointError, check_number
from fedpoint.core.numbers import counted
from fedpoint.core.random import Row
from fedpoint.core.types import Data, Model, Number
from fedpoint.problems.base import Constants, Problem, check_agents, check_finite, check_weights
from fedpoint.problems.models import at_model, at_models
from fedpoint.problems.oracle import Mine, Numbers, Oracle


class Bowl(NamedTuple):
    """One agent's quadratic."""

    H: Numbers
    center: Numbers


@dataclass(frozen=True)
class QuadraticOracle(Oracle):
    noisy: bool
    known_noise = True

    def draw(self, mine: Mine, plan: Data, row: Row, e: Number) -> Data:
        return jnp.sqrt(mine.common) * row.normal(mine.own.center.shape) if self.noisy else ()

    def field(self, mine: Mine, w: Model, z: Data) -> Model:
        exact = self.mean_field(mine, w)
        return exact + z.astype(w.dtype) if self.noisy else exact

    def mean_field(self, mine: Mine, w: Model) -> Model:
        return mine.own.H @ (w - mine.own.center)

    def loss(self, mine: Mine, w: Model) -> Array:
        x = w - mine.own.center
        return 0.5 * x @ (mine.own.H @ x)

    def prox(self, mine: Mine, center: Model, weight: Number) -> Model:
        H, c = mine.own
        eye = jnp.eye(H.shape[0], dtype=H.dtype)
        return jnp.linalg.solve(H + 2 * weight * eye, H @ c + 2 * weight * center)

    def cross_covariance(self, mine: Mine, w: Model, v: Model) -> Array:
        return mine.common * jnp.eye(mine.own.center.shape[0])


@checked
class Quadratic(Problem):
    """f_k(x) = 1/2 (x - c_k)' H_k (x - c_k). Field H_k (x - c_k) + N(0, noise I).

    Args:
        H: (K, d, d) symmetric, or (d, d) for all, or a number per agent (times I), or a number.
        centers: (K, d) the c_k, each agent's own minimum.
        noise: variance of each coordinate of the additive gradient noise.
        weights: p_k, default 1/K.

    >>> Quadratic(1.0, [[0.0], [1.0]], weights=[1, 3]).solution()
    array([0.75])
    """

    def __init__(self, H: ArrayLike, centers: ArrayLike, noise: float = 0.0, weights: ArrayLike | None = None):
        c = numbers("centers", centers)
        if c.ndim != 2:
            raise FedpointError(f"centers must be (agents, dimension), got shape {c.shape}")
        check_agents(len(c))
        check_finite("centers", c)
        given = numbers("H", H)
        check_finite("H", given)
        K, d = c.shape
        if given.ndim <= 1:
            given = np.asarray(np.multiply.outer(given, np.eye(d)))
        if given.shape not in ((d, d), (K, d, d)):
            raise FedpointError(
                f"H has shape {given.shape}; for {counted(K, 'agent')} in dimension {d} give {(K, d, d)} or {(d, d)}"
            )
        H = np.ascontiguousarray(np.broadcast_to(given, (K, d, d)))
        if not np.allclose(H, np.swapaxes(H, 1, 2), rtol=1e-10, atol=1e-12):
            raise FedpointError("H must be symmetric: a field that is no gradient is a linear system, not a quadratic")
        noise = check_number("noise is a variance and", noise)
        if not c.shape[1]:
            raise FedpointError("centers have no coordinates: give at least one")
        self.weights = check_weights(weights, K)
        self.names = [str(k) for k in range(K)]
        self.oracle = QuadraticOracle(noisy=noise > 0)
        self.own, self.common = Bowl(H, c), noise

    linear = True

    @property
    def convex(self) -> bool:
        each = np.linalg.eigvalsh(self.own.H)
        return bool((each[:, 0] >= -1e-12 * np.abs(each).max(axis=1)).all())

    def linear_fields(self) -> tuple[np.ndarray, np.ndarray]:
        H, c = self.own
        return H, np.einsum("kij,kj->ki", H, c)

    def start(self) -> np.ndarray:
        return np.zeros(self.own.center.shape[1])

    def solution(self) -> np.ndarray | None:
        H, c = self.own
        return solve_or_none(np.tensordot(self.weights, H, 1), np.einsum("k,kij,kj->i", self.weights, H, c))

    def local_solutions(self) -> np.ndarray:
        return self.own.center

    @at_model
    def noise(self, w: Model) -> np.ndarray:
        return np.full(self.agents, self.common * self.own.center.shape[1])

    def constants(self) -> Constants:
        return linear_constants(
            self,
            self.own.H,
            self.own.center,
            np.zeros(self.agents),
            self.noise(self.start()),
            f_local=np.zeros(self.agents),
        )

    @at_models
    def objective(self, models: Model) -> np.ndarray:
        H, c = self.own
        return quadratic_values(
            np.asarray(models),
            np.tensordot(self.weights, H, 1),
            np.einsum("k,kij,kj->i", self.weights, H, c),
            0.5 * np.einsum("k,ki,kij,kj->", self.weights, c, H, c),
        )


def solve_or_none(H: np.ndarray, g: np.ndarray) -> np.ndarray | None:
    """H^-1 g where the aggregate determines it."""
    scale = np.abs(H).max()
    if scale == 0 or np.linalg.cond(H) > 1e12:
        return None
    return np.linalg.solve(H, g)


def quadratic_values(models: np.ndarray, H: np.ndarray, g: np.ndarray, constant: float) -> np.ndarray:
    """1/2 w'Hw - g'w + constant at each model, evaluated about the minimiser where there is one: no cancellation."""
    w = solve_or_none(H, g)
    if w is None:
        return 0.5 * np.einsum("ni,ij,nj->n", models, H, models) - models @ g + constant
    x = models - w
    return 0.5 * np.einsum("ni,ni->n", x @ H, x) + (constant - 0.5 * g @ w)


def linear_constants(
    problem: Problem,
    H: np.ndarray,
    local: np.ndarray | None,
    beta2: np.ndarray,
    sigma2: np.ndarray,
    f_local: np.ndarray,
) -> Constants:
    """Constants of a problem whose agents have Hessians H_k (K, d, d) and minimisers `local` (K, d) or None."""
    total = np.linalg.eigvalsh(np.tensordot(problem.weights, H, 1))
    each = np.linalg.eigvalsh(H)
    w = problem.solution()
    spread = gamma = None
    if w is not None and local is not None:
        spread = float(problem.weights @ ((local - w) ** 2).sum(axis=1))
        gamma = float(problem.weights @ (problem.losses(w) - f_local))
    return Constants(
        nu=float(total[0]),
        delta=float(total[-1]),
        nu_k=each[:, 0],
        delta_k=each[:, -1],
        beta2_k=beta2,
        sigma2_k=sigma2,
        heterogeneity=spread,
        gamma=gamma,
    )
