"""Linear systems: fields A_k w - b_k that need not be gradients, known through noisy samples. Lecture 001."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.arrays import numbers, one_per_agent
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.own_code import calling
from fedpoint.core.precision import double
from fedpoint.core.random import Key, Row
from fedpoint.core.types import Data, Model, Number
from fedpoint.problems.base import Constants, Problem, check_agents, check_finite, check_weights, per_agent
from fedpoint.problems.oracle import Mine, Numbers, Oracle
from fedpoint.problems.quadratic import solve_or_none

DRAWS = 4096  # of a user's sampler, from which its noise is estimated
Sampler: TypeAlias = Callable[[Data, Row], tuple[Array, Array]]
TINY = 1e-12  # of |A|: eigenvalues below it are zero


@checked
@dataclass(frozen=True)
class Noise:
    """Gaussian noise of a sampled system, fresh at every step and independent between A and b.

    Args:
        b: a variance of every entry, or a covariance (d, d), or one per agent (K, d, d).
        A: a variance of every entry, or a covariance (d^2, d^2) of A's entries row after row, or (K, d^2, d^2).
    """

    b: ArrayLike = 0.0
    A: ArrayLike = 0.0


class System(NamedTuple):
    """One agent's system, and what its samples are made of."""

    A: Numbers  # (d, d)
    b: Numbers  # (d,)
    root_A: Numbers  # (): a deviation of every entry; (d, d, m): a factor of the covariance; nothing for a sampler
    root_b: Numbers  # the same, () or (d, m)
    data: Data  # the sampler's own


@dataclass(frozen=True)
class SystemOracle(Oracle):
    noise_A: str  # "none", "entries", "factor" or "sampler"
    noise_b: str
    sampler: Sampler | None = None

    @property
    def known_noise(self) -> bool:  # type: ignore[override]
        return self.sampler is None

    def draw(self, mine: Mine, plan: Data, row: Row, e: Number) -> Data:
        own = mine.own
        if self.sampler is not None:
            A, b = self.sampler(own.data, row)
            return A.astype(own.A.dtype), b.astype(own.b.dtype)
        d = own.b.shape[0]
        return (
            _normal(self.noise_A, own.root_A, row, (d, d), 0, own.A.dtype),
            _normal(self.noise_b, own.root_b, row, (d,), d * d, own.b.dtype),
        )

    def field(self, mine: Mine, w: Model, z: Data) -> Model:
        A, b = z
        if self.sampler is not None:
            return A @ w - b
        exact = self.mean_field(mine, w)
        if self.noise_A != "none":
            exact = exact + A @ w
        return exact if self.noise_b == "none" else exact - b

    def mean_field(self, mine: Mine, w: Model) -> Model:
        return mine.own.A @ w - mine.own.b

    def prox(self, mine: Mine, center: Model, weight: Number) -> Model:
        return resolvent(mine, center, weight)

    def cross_covariance(self, mine: Mine, w: Model, v: Model) -> Array:
        """Cov(A(z) w, A(z) v) + Cov(b(z))."""
        root, C = mine.own.root_b, self.cross_scatter(mine, w, v, jnp.outer(w, v))
        if self.noise_b == "entries":
            return C + root**2 * jnp.eye(len(C))
        return C + root @ root.T if self.noise_b == "factor" else C

    def cross_scatter(self, mine: Mine, w: Model, v: Model, P: Array) -> Array:
        root, d = mine.own.root_A, mine.own.b.shape[0]
        if self.noise_A == "entries":
            return root**2 * jnp.trace(P) * jnp.eye(d)
        if self.noise_A == "factor":
            return jnp.einsum("ijm,jk,lkm->il", root, P, root)
        return jnp.zeros((d, d))


def _normal(kind: str, root: Array, row: Row, shape: tuple[int, ...], first: int, dtype: np.dtype) -> Data:
    if kind == "none":
        return ()
    if kind == "entries":
        return (root * row.normal(shape, first)).astype(dtype)
    return (root @ row.normal(root.shape[-1:], first)).astype(dtype)


def resolvent(mine: Mine, center: Model, weight: Number) -> Model:
    """v with A v - b + 2 weight (v - center) = 0: what a prox is to a field that is no gradient."""
    eye = jnp.eye(center.shape[0], dtype=center.dtype)
    return jnp.linalg.solve(mine.own.A + 2 * weight * eye, mine.own.b + 2 * weight * center)


@checked
@dataclass(frozen=True)
class Stability:
    """Do the agents' own iterations settle, how fast, and up to which step? Lecture 001's exponential stability.

    Attributes:
        names: of the agents.
        a_k: (K,) the smallest eigenvalue of (A_k + A_k')/2. For steps eta <= step_k, one sampled step contracts every
            u: E|(I - eta A(Z)) u|^2 <= (1 - eta a_k) |u|^2 (with A_k for A(Z) where the noise is not known).
        step_k: (K,) see `a_k`. Where a_k <= 0, a stable agent contracts in another norm than the Euclidean, and step_k
            is 0.
        stable: (K,) whether every eigenvalue of A_k has a positive real part; eigenvalues 0, along which an agent does
            not move (a state that it never visits), are passed over.
        limit: (K,) the step below which I - eta A_k is stable, min 2 Re(lambda)/|lambda|^2: sharp for exact fields; 0
            where no step is short enough.
        norm: (K,) |A_k|, the largest singular value.
        aggregate: the limit of I - eta sum_k p_k A_k.

    Arguments of methods:
        step: of the local steps, one for all or one for each agent; None: whether there is a step at all.
    """

    names: list[str]
    a_k: np.ndarray
    step_k: np.ndarray
    stable: np.ndarray
    limit: np.ndarray
    norm: np.ndarray
    aggregate: float  # the limit of I - eta sum_k p_k A_k

    @property
    def a(self) -> float:
        """The lecture's a: the smallest a_k."""
        return float(self.a_k.min())

    @property
    def step(self) -> float:
        """The longest step with which every agent contracts as a_k says."""
        return float(self.step_k.min())

    def problems(self, step: ArrayLike | None = None) -> list[str]:
        """What is in the way: agents that are not stable, or not with this step; each with its name and limit."""
        found = [f"agent {self.names[k]} is unstable for every step" for k in np.flatnonzero(~self.stable)]
        if step is not None:
            steps = one_per_agent("step", step, len(self.limit))
            found += [
                f"agent {self.names[k]} allows steps below {self.limit[k]:.4g}, not {steps[k]:.4g}"
                for k in np.flatnonzero(self.stable & (steps >= self.limit))
            ]
        return found

    def require(self, step: ArrayLike | None = None) -> None:
        """Refuse what `problems` finds."""
        found = self.problems(step)
        if found:
            more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
            raise FedpointError(f"not stable: {'; '.join(found[:3])}{more}")

    def __repr__(self) -> str:
        K = len(self.names)
        strict = int(self.limit.argmin())
        lines = [
            f"stability of {counted(K, 'agent')}: a = {self.a:.4g}, contraction for steps up to {self.step:.4g}",
            f"  exact fields settle for steps below {self.limit[strict]:.4g} (agent {self.names[strict]}), "
            f"their mean below {self.aggregate:.4g}",
        ]
        return "\n".join([*lines, *(f"  {text}" for text in self.problems()[:10])])


@checked
class LinearFields(Problem):
    """What problems with fields A_k w - b_k have in common, gradients or not. `A` and `b` are those of the means."""

    A: np.ndarray
    b: np.ndarray
    linear = True

    @property
    def convex(self) -> bool:
        """Whether every agent's field is monotone, which for a gradient is convexity: A_k + A_k' >= 0."""
        each = np.linalg.eigvalsh(symmetric(self.A))
        return bool((each[:, 0] >= -TINY * np.abs(each).max(axis=1)).all())

    def linear_fields(self) -> tuple[np.ndarray, np.ndarray]:
        return self.A, self.b

    def start(self) -> np.ndarray:
        return np.zeros(self.b.shape[1])

    def solution(self) -> np.ndarray | None:
        return solve_or_none(np.tensordot(self.weights, self.A, 1), self.weights @ self.b)

    def local_solutions(self) -> np.ndarray:
        """(K, d): A_k^-1 b_k; the least-norm solution where A_k is singular."""
        return np.stack([np.linalg.lstsq(A, b, rcond=None)[0] for A, b in zip(self.A, self.b, strict=True)])

    @double
    def noise(self, w: Model) -> np.ndarray:
        """(K,): the trace of the covariance of one sampled field at w, or at each agent's own w (K, d).

        Exact for covariances and chains; over 4,096 draws for a sampler.
        """
        at = numbers("w", w)
        if at.shape not in (self.b.shape, self.b.shape[1:]):
            one, each = self.b.shape[1:], self.b.shape
            raise FedpointError(f"w has shape {at.shape}, not {one} (one for all agents) or {each} (each its own)")
        at = np.broadcast_to(at, self.b.shape)
        return np.asarray(noise_traces(self.oracle, self.own, self.common, at))

    @abstractmethod
    def slope_noise(self) -> np.ndarray | None:
        """(K, d, d): E[(A(z) - A)'(A(z) - A)], or None where it is not known."""

    def sigma2(self) -> np.ndarray:
        """(K,): lecture 001's sigma^2 of each agent: the variance of (A(z) - A)th - (b(z) - b) at its own th_k*."""
        return self.noise(self.local_solutions())

    def stability(self) -> Stability:
        """Constants and limits of exponential stability, agent by agent."""
        return self._stability

    @cached_property
    def _stability(self) -> Stability:
        A, extra = self.A, self.slope_noise()
        a, step = contraction_of_steps(A, np.zeros_like(A) if extra is None else extra)
        limit = step_limits(A)
        return Stability(
            self.names,
            a,
            step,
            limit > 0,
            limit,
            np.linalg.norm(A, 2, axis=(1, 2)),
            float(step_limits(np.tensordot(self.weights, A, 1)[None])[0]),
        )

    def step_limits(self) -> np.ndarray:
        return self.stability().limit

    def constants(self) -> Constants:
        """Noise and heterogeneity. Convexity and smoothness are those of losses: `stability` says what fields have.

        E|noise|^2 <= beta2_k |w - w_k*|^2 + sigma2_k by |a + b|^2 <= 2|a|^2 + 2|b|^2 about w_k*, without the 2 where
        A is not noisy.
        """
        w, local, sigma2, extra = self.solution(), self.local_solutions(), self.sigma2(), self.slope_noise()
        beta2 = None if extra is None else 2 * np.linalg.eigvalsh(extra)[:, -1]
        return Constants(
            beta2_k=beta2,
            sigma2_k=None if beta2 is None else np.where(beta2 > 0, 2.0, 1.0) * sigma2,
            heterogeneity=None if w is None else float(self.weights @ ((local - w) ** 2).sum(axis=1)),
        )

    def objective(self, models: Model) -> np.ndarray:
        raise FedpointError(f"{type(self).__name__} has no loss: its field is not a gradient. Ask for the error")

    def losses(self, w: Model) -> np.ndarray:
        return self.objective(w)


def symmetric(A: np.ndarray) -> np.ndarray:
    return (A + np.swapaxes(A, -1, -2)) / 2


def contraction_of_steps(A: np.ndarray, slope_noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(K,) each: a_k, the smallest eigenvalue of (A_k + A_k')/2, and the longest step eta with which, for every u,
    E|(I - eta A(Z)) u|^2 <= (1 - eta a_k) |u|^2; 0 where a_k <= 0. `slope_noise` is E[(A(Z) - A)'(A(Z) - A)].
    """
    a = np.linalg.eigvalsh(symmetric(A))[:, 0]
    a = np.where(np.abs(a) <= TINY * np.linalg.norm(A, 2, axis=(1, 2)), 0.0, a)  # a state that is never visited
    second = np.swapaxes(A, 1, 2) @ A + slope_noise
    step = np.zeros(len(A))
    for k in np.flatnonzero(a > 0):
        # The largest eta with A + A' - eta E[A'A] >= a I, in coordinates in which A + A' - a I is I.
        root = np.linalg.cholesky(2 * symmetric(A[k]) - a[k] * np.eye(A.shape[-1]))
        inner = np.linalg.solve(root, np.linalg.solve(root, second[k]).T)
        step[k] = 1 / np.linalg.eigvalsh(symmetric(inner))[-1]
    return a, step


def step_limits(A: np.ndarray) -> np.ndarray:
    """(K,): the step below which I - eta A_k is stable: min over eigenvalues of 2 Re(lambda)/|lambda|^2.

    Eigenvalues 0 do not move and are passed over; 0 where one has no positive real part.

    >>> step_limits(np.array([[[1.0, 1.0], [-1.0, 1.0]], [[-1.0, 0.0], [0.0, 1.0]]]))
    array([1., 0.])
    """
    values = np.linalg.eigvals(A)
    size = np.abs(values)
    still = size <= TINY * np.maximum(np.abs(A).max(axis=(1, 2)), 1e-300)[:, None]
    each = 2 * values.real / np.where(still, 1.0, size**2)
    return np.maximum(np.where(still, np.inf, each).min(axis=1), 0.0)


@checked
class LinearSystem(LinearFields):
    r"""Field $A_k w - b_k$, sampled as $A(z) w - b(z)$ with a fresh z at every step: linear stochastic approximation.

    The solution is that of $\sum_k p_k A_k\, w = \sum_k p_k b_k$. The field need not be a gradient: A_k need not be
    symmetric, and there is no loss.

    Args:
        A, b: (K, d, d) and (K, d).
        noise: None; a variance of every entry of b; `Noise(b=..., A=...)` by variances or covariances; or a sampler,
            a function (own, row) -> (A, b) with means A_k and b_k: `own` is the agent's part of `data`, `row` offers
            `normal(shape)`, `uniform(shape)`, `integers(bound, shape)`, each the same when asked again with the same
            `first`, and `jax()`, a key of `jax.random`.
        data: what the sampler gets: an array of K rows, or a tree of them; default (A_k, b_k).
        weights: p_k, default 1/K.

    >>> system = LinearSystem([[[1.0, 1.0], [-1.0, 1.0]]], [[2.0, 0.0]], noise=0.1)
    >>> system.solution().round(12), system.stability().a, system.stability().limit
    (array([1., 1.]), 1.0, array([1.]))
    """

    def __init__(
        self,
        A: ArrayLike,
        b: ArrayLike,
        noise: ArrayLike | Noise | Sampler | None = None,
        weights: ArrayLike | None = None,
        data: Data = None,
    ):
        A, b = numbers("A", A), numbers("b", b)
        if b.ndim != 2 or A.ndim != 3 or A.shape != (*b.shape, b.shape[-1]):
            raise FedpointError(
                f"A must be (agents, dimension, dimension) and b (agents, dimension), got {A.shape} and {b.shape}"
            )
        check_agents(len(b))
        check_finite("A", A)
        check_finite("b", b)
        K, d = b.shape
        self.A, self.b = A, b
        self.weights = check_weights(weights, K)
        self.names = [str(k) for k in range(K)]
        self.common = ()
        nothing = np.zeros(K)
        if data is not None and not callable(noise):
            raise FedpointError("data is what a sampler gets: give noise= a function")
        if callable(noise):
            data = (A, b) if data is None else jax.tree.map(np.asarray, data)
            if any(np.shape(leaf)[:1] != (K,) for leaf in jax.tree.leaves(data)):
                raise FedpointError(f"data must lead with the {counted(K, 'agent')}")
            self.oracle = SystemOracle("sampler", "sampler", noise)
            self.own = System(A, b, nothing, nothing, data)
            self._check_sampler(noise)
            return
        noise = noise if isinstance(noise, Noise) else Noise(b=0.0 if noise is None else noise)
        kind_A, root_A = _roots("A", noise.A, K, d * d)
        kind_b, root_b = _roots("b", noise.b, K, d)
        if kind_A == "factor":
            root_A = root_A.reshape(K, d, d, -1)
        self.oracle = SystemOracle(kind_A, kind_b)
        self.own = System(A, b, root_A, root_b, ())

    @double
    def _check_sampler(self, sampler: Sampler) -> None:
        d = self.b.shape[1]
        one = jax.tree.map(lambda a: jnp.asarray(a[0]), self.own.data)
        with calling("the sampler"):
            found = jax.eval_shape(lambda: sampler(one, Key.of(0).row()))
        shapes = [tuple(np.shape(a)) for a in found] if isinstance(found, tuple) else found
        if shapes != [(d, d), (d,)]:
            raise FedpointError(f"the sampler must return (A, b) of shapes {(d, d)} and {(d,)}, got {shapes}")

    def slope_noise(self) -> np.ndarray | None:
        kind, root = self.oracle.noise_A, np.asarray(self.own.root_A)  # type: ignore[attr-defined]
        K, d = self.b.shape
        if kind == "sampler":
            return None
        if kind == "factor":
            return np.einsum("kijm,kilm->kjl", root, root)
        return np.multiply.outer(root**2 if kind == "entries" else np.zeros(K), d * np.eye(d))


@partial(jax.jit, static_argnums=0)
def noise_traces(oracle: Oracle, own: Data, common: Data, at: Array) -> Array:
    """(K,): the trace of the covariance of a sampled field of each agent, at its row of `at`."""

    def one(part: Data) -> Array:
        own, w, k = part
        mine = Mine(own, common)
        if oracle.known_noise:
            return jnp.trace(oracle.covariance(mine, w))
        key, mean = Key.of(0).fold(k), oracle.mean_field(mine, w)
        gaps = jax.vmap(lambda i: oracle.field(mine, w, oracle.draw(mine, (), key.row(i), 0)) - mean)(jnp.arange(DRAWS))
        return (gaps**2).sum(1).mean()

    return per_agent(one, (own, at, jnp.arange(len(at))))


def _roots(name: str, given: ArrayLike, K: int, size: int) -> tuple[str, np.ndarray]:
    """How a noise is drawn: by a deviation (K,), or by a factor (K, size, m) of its covariance."""
    C = numbers(f"noise of {name}", given)
    check_finite(f"noise of {name}", C)
    if C.ndim == 0:
        if C < 0:
            raise FedpointError(f"the noise of {name} is a variance and must be at least 0, got {C:g}")
        return ("entries" if C > 0 else "none"), np.full(K, np.sqrt(C))
    if C.shape not in ((size, size), (K, size, size)):
        raise FedpointError(
            f"the noise of {name} has shape {C.shape}; give a variance, a covariance {(size, size)}, or one per agent "
            f"{(K, size, size)}"
        )
    C = np.broadcast_to(C, (K, size, size))
    values, axes = np.linalg.eigh(C)
    top = np.abs(values).max()
    if not np.allclose(C, np.swapaxes(C, 1, 2), rtol=1e-10, atol=1e-12) or (values < -1e-10 * top).any():
        raise FedpointError(f"the noise of {name} must be a covariance: symmetric, without negative eigenvalues")
    if top == 0:
        return "none", np.zeros(K)
    some = (values > 1e-14 * top).any(axis=0)
    return "factor", axes[:, :, some] * np.sqrt(np.maximum(values[:, None, some], 0.0))
