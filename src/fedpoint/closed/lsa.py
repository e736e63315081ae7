"""Where is FedLSA on average after t rounds? Lecture 001's bias in closed form, at finite t and to first order."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.closed.linear import fields_of, geometric
from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import Count, Positive, Whole
from fedpoint.problems.base import Problem
from fedpoint.problems.models import check_one


@checked
def lsa_bias(problem: Problem, step: Positive, local_steps: Count) -> np.ndarray:
    r"""(d,): what local steps of different agents cost FedLSA in the limit,

    $$(I - G)^{-1} \sum_c p_c (I - (I - \eta A_c)^H)(\theta_c^\star - \theta^\star), \qquad
      G = \sum_c p_c (I - \eta A_c)^H.$$

    On average over samples that are independent. Written with $\eta \sum_{h<H} (I - \eta A_c)^h (b_c - A_c
    \theta^\star)$ for the terms of the sum, no A_c needs an inverse.

    Args:
        problem: with affine fields A_c w - b_c, gradients or not.
        step: $\eta$, common to all agents.
        local_steps: H.
    """
    return _parts(problem, step, local_steps)[1]


@checked
def lsa_path(
    problem: Problem, step: Positive, local_steps: Count, rounds: Whole, start: ArrayLike | None = None
) -> np.ndarray:
    r"""(rounds + 1, d): how far the mean model is from the solution after every round, the start being round 0,

    $$E\theta_t - \theta^\star = (I - G^t)\, \text{bias} + G^t (\theta_0 - \theta^\star).$$

    Args:
        problem: with affine fields A_c w - b_c, gradients or not.
        step: $\eta$, common to all agents.
        local_steps: H.
        rounds: t goes up to this number.
        start: $\theta_0$; default: the problem's start.

    >>> import fedpoint as fp
    >>> A, b = [[[1.0, 1.0], [-1.0, 1.0]], [[2.0, 0.0], [0.0, 1.0]]], [[1, 0], [0, 1]]
    >>> system = fp.problems.LinearSystem(A, b)
    >>> run = fp.run(fp.FedLSA(0.1, 10), system, rounds=5)
    >>> bool(np.allclose(run.history[0] - system.solution(), lsa_path(system, 0.1, 10, 5)))
    True
    """
    G, bias = _parts(problem, step, local_steps)
    origin = problem.start() if start is None else check_one("start", problem.start(), start)
    away = origin - problem.solution() - bias
    found = [bias + away]
    for _ in range(rounds):
        away = G @ away
        found.append(bias + away)
    return np.stack(found)


@checked
def lsa_bias_small_step(problem: Problem, step: Positive, local_steps: Count) -> np.ndarray:
    r"""(d,): the bias to first order in the step,

    $$\frac{\eta (H-1)}{2} \bar A^{-1} \sum_c p_c (A_c - \bar A)(A_c \theta^\star - b_c).$$

    Args:
        problem: with affine fields A_c w - b_c, gradients or not.
        step: $\eta$, common to all agents.
        local_steps: H.
    """
    A, b, p, optimum = _system(problem)
    mean = np.tensordot(p, A, 1)
    drift = np.einsum("c,cij,cj->i", p, A - mean, A @ optimum - b)
    return step * (local_steps - 1) / 2 * np.linalg.solve(mean, drift)


def _system(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    fields, optimum = fields_of(problem), problem.solution()
    if optimum is None:
        raise FedpointError("the systems' mean is singular: it has no unique solution to measure the distance to")
    return *fields, problem.weights, np.asarray(optimum)


def _parts(problem: Problem, step: float, local_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """G and the bias."""
    A, b, p, optimum = _system(problem)
    power, total = geometric(np.eye(A.shape[-1]) - step * A, np.full(len(A), local_steps))
    G = np.tensordot(p, power, 1)
    pull = step * np.einsum("c,cij,cj->i", p, total, b - A @ optimum)
    return G, np.linalg.solve(np.eye(len(G)) - G, pull)
