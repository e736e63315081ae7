"""Where does a round lead when fields are affine? The linear algebra that the algorithms' closed forms share.

An agent with g(w) = A w - b that works from w ends at w - M g(w), with M a polynomial of A. A round that merges
changes with weights is then w+ = w - sum_k push_k (A_k w - b_k): one linear map, with one fixed point and one rate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from fedpoint.core.algorithm import Algorithm, bind_algorithm
from fedpoint.core.errors import FedpointError
from fedpoint.core.record import PerAgent
from fedpoint.core.steps import chances_of_steps
from fedpoint.problems.base import Problem
from fedpoint.problems.linear_system import step_limits
from fedpoint.problems.quadratic import solve_or_none
from fedpoint.timing.participation import Who, as_participation


class AffineRound(NamedTuple):
    """The expected round w+ = w - sum_k push_k (A_k w - b_k); push_k = (weight of agent k) M_k."""

    push: np.ndarray  # (K, d, d)
    A: np.ndarray  # (K, d, d)
    b: np.ndarray  # (K, d)

    def progress(self) -> np.ndarray:
        """(d, d): G = sum_k push_k A_k; the round is w+ = (I - G) w + sum_k push_k b_k."""
        return np.einsum("kij,kjl->il", self.push, self.A)

    def fixed_point(self) -> np.ndarray | None:
        """[sum_k push_k A_k]^-1 sum_k push_k b_k; None where the round does not determine it."""
        G = self.progress()
        return solve_or_none(G, np.einsum("kij,kj->i", self.push, self.b)) if np.isfinite(G).all() else None

    def rate(self) -> float:
        """The spectral radius of I - G: the asymptotic factor of the mean per round."""
        G = self.progress()
        return spectral_radius(np.eye(len(G)) - G) if np.isfinite(G).all() else np.inf


def fields_of(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """A (K, d, d) and b (K, d) of affine fields A_k w - b_k."""
    fields = problem.linear_fields()
    if fields is None:
        raise FedpointError(f"{type(problem).__name__} has no linear field A w - b")
    return fields


class LocalWork(NamedTuple):
    """Constant steps (K,), and how many: pairs of a probability and counts (K,), one pair unless some straggle."""

    step: np.ndarray
    draws: list[tuple[float, np.ndarray]]

    @property
    def counts(self) -> np.ndarray | None:
        """(K,): the numbers of local steps, or None where they are drawn."""
        return self.draws[0][1] if len(self.draws) == 1 else None


def constant_step(algorithm: Algorithm) -> np.ndarray | None:
    """() or (K,): the step of a method, bound or not; None where it has none, or a schedule of steps."""
    step = algorithm.step
    if step is None or algorithm.scheduled():
        return None
    return np.asarray(step.values if isinstance(step, PerAgent) else step, dtype=float)


def local(algorithm: Algorithm, problem: Problem) -> LocalWork | None:
    """The local steps of an algorithm; None for a schedule of steps, whose rounds differ."""
    bound = bind_algorithm(algorithm, problem)
    if bound.scheduled():
        return None
    step = constant_step(bound)  # none where a proximal problem is solved exactly
    each = np.broadcast_to(np.nan if step is None else step, (problem.agents,))
    return LocalWork(each, chances_of_steps(bound.local_steps, problem.agents))


def geometric(B: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """B_k^n_k and sum_{e < n_k} B_k^e for matrices (K, d, d) and counts (K,), by repeated squaring.

    >>> power, total = geometric(np.array([[[0.5]]]), np.array([3]))
    >>> power.item(), total.item()
    (0.125, 1.75)
    """
    eye = np.broadcast_to(np.eye(B.shape[-1]), B.shape)
    power, total, base, base_total, left = eye, np.zeros_like(B), B, eye, np.array(counts)
    with np.errstate(over="ignore", invalid="ignore"):  # steps that are too long: infinity is the answer
        while left.any():
            odd = (left % 2 == 1)[:, None, None]
            total = np.where(odd, total + power @ base_total, total)
            power = np.where(odd, power @ base, power)
            base_total, base = base_total + base @ base_total, base @ base
            left = left // 2
    return power, total


def descent(A: np.ndarray, setting: LocalWork, normalise: bool = False, pull: float = 0.0) -> np.ndarray:
    """(K, d, d): M_k = s_k sum_{e < E_k} (I - s_k (A_k + pull I))^e, its mean where E_k is drawn.

    E_k gradient steps from w, with a proximal term (pull/2)|y - w|^2, end at w - M_k g_k(w). Normalised, s_k is the
    step over E_k.
    """
    eye = np.eye(A.shape[-1])
    found = np.zeros_like(A)
    for chance, counts in setting.draws:
        s = (setting.step / counts if normalise else setting.step)[:, None, None]
        found = found + chance * s * geometric(eye - s * (A + pull * eye), counts)[1]
    return found


def averaged(problem: Problem, M: np.ndarray) -> AffineRound:
    """The round that merges changes -M_k g_k(w) with the weights p_k."""
    A, b = fields_of(problem)
    return AffineRound(problem.weights[:, None, None] * M, A, b)


def first_order(problem: Problem, setting: LocalWork, normalise: bool = False) -> np.ndarray | None:
    r"""The fixed point of local descent to first order in the step.

    LocalWork steps weigh agents by q_k, proportional to p_k s_k E_k. With w_0 the solution for these weights and
    a_k = s_k (E_k - 1)/2 it is w_0 + [sum q_k A_k]^-1 sum q_k a_k A_k g_k(w_0). For a common s and E, w_0 = w* and the
    second term is lecture 001's first-order bias.
    """
    fields, counts = problem.linear_fields(), setting.counts
    if fields is None or counts is None:
        return None
    A, b = fields
    s = setting.step / counts if normalise else setting.step
    q = problem.weights * s * counts
    q = q / q.sum()
    mean = np.tensordot(q, A, 1)
    w = solve_or_none(mean, q @ b)
    if w is None:
        return None
    drift = np.einsum("k,kij,kj->i", q * s * (counts - 1) / 2, A, A @ w - b)
    return w + np.linalg.solve(mean, drift)


def limits(problem: Problem, pull: float = 0.0) -> np.ndarray:
    """(K,): the step below which the agent's own steps along A_k + pull I do not grow.

    2 / lambda_max where A_k is symmetric, else the least 2 Re(lambda)/|lambda|^2 over the eigenvalues.
    """
    A, _ = fields_of(problem)
    if not problem.has_loss:
        return step_limits(A + pull * np.eye(A.shape[-1]))
    top = np.linalg.eigvalsh(A)[:, -1] + pull
    return np.where(top > 0, 2.0 / np.where(top > 0, top, 1.0), np.inf)


def descent_limit(problem: Problem) -> float | None:
    """2 / lambda_max(sum_k p_k A_k): gradient descent on the aggregate is stable below it, and not above.

    Without symmetry the least 2 Re(lambda)/|lambda|^2 over the aggregate's eigenvalues.
    """
    if not (problem.linear and problem.convex):
        return None
    mean = np.tensordot(problem.weights, fields_of(problem)[0], 1)
    if not problem.has_loss:
        return float(step_limits(mean[None])[0])
    top = np.linalg.eigvalsh(mean)[-1]
    return float(2.0 / top) if top > 0 else np.inf


def spectral_radius(B: np.ndarray) -> float:
    return float(np.abs(np.linalg.eigvals(B)).max())


def common(values: ArrayLike) -> float | None:
    """The one value of an array, or None where there are several."""
    values = np.asarray(values)
    return values.flat[0].item() if (values == values.flat[0]).all() else None


def solution(problem: Problem) -> np.ndarray | None:
    """w* as an array; None where it is unknown, or a model is a tree of several."""
    w = problem.solution()
    return np.asarray(w, dtype=float) if isinstance(w, np.ndarray | np.generic | Array) else None


def away(point: np.ndarray | None, problem: Problem) -> np.ndarray | None:
    """point - w*, where both are known."""
    optimum = solution(problem)
    return None if point is None or optimum is None else point - optimum


def everyone(participation: Who) -> bool:
    scheme = as_participation(participation)
    return scheme.everyone and not scheme.abandons
