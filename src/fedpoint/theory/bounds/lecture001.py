r"""What do lecture 001's bounds promise: linear stochastic approximation by one agent, FedLSA, SCAFFLSA?

Fields A_c(Z) th - b_c(Z), H local steps of length eta, weights p_c (the lecture: 1/N). Exponential stability is
E|(I - eta A_c(Z)) u|^2 <= (1 - eta a)|u|^2 for every u and agent, so that with g = (1 - eta a)^H products of H such
matrices have E|Gamma u|^2 <= g |u|^2. The safe forms below follow from |x + y|^2 <= 2|x|^2 + 2|y|^2, x what is left of
the start and y the noise, whose parts of different steps are uncorrelated: each has mean zero and is independent of
the later products in front of it. The lecture drops the cross term, writes sigma for the noise at th_c*, where
agents do not stay if they differ, and leaves out constants.

One agent: 2 (1 - eta a)^T |th_0 - th*|^2 + 2 eta sigma^2 / a.

FedLSA, about its limit th* + bias: by convexity the mean of the agents' products contracts as they do. A round's noise
from the limit is sum_c p_c zeta_c, independent between agents, with E|zeta_c|^2 <= (eta/a)(1 - g) s_c, s_c the largest
noise of a field on the agent's way from the limit towards th_c*: sqrt(s_c) <= sigma_c + tau_c |th* + bias - th_c*|,
tau_c^2 the largest eigenvalue of E[(A(Z) - A)'(A(Z) - A)]. Hence 2 g^t |th_0 - th* - bias|^2 + 2 (eta/a) sum p_c^2 s_c.

SCAFFLSA: let u = th - th*, y_c = eta H (xi_c - xi_c*) and psi = |u|^2 + sum p_c |y_c|^2. An agent that ends at v_c has
z_c = v_c - th* - y_c = Gamma_c u - (I - S_c/H) y_c - noise, S_c the sum of its products over 0 .. H-1 steps, and
sum p_c y_c = 0 makes u+ the mean of the z_c and y_c+ = u+ - z_c: psi+ = sum p_c |z_c|^2. With B^2 the largest
eigenvalue of any E[A_c(Z)'A_c(Z)], E|(I - S_c/H) y|^2 <= q^2 |y|^2, q = eta B (H - 1)/2, so that psi contracts by
rho = g + q^2, which is below 1 for H <= a/(eta B^2) (and below 1 - eta a H/2 if moreover eta a H <= 1/2). The noise
of a round, taken at th*, where corrected agents stay, adds at most (eta/a)(1 - g) sum p_c sigma_c^2. That has no
linear speed-up; the lecture's order has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedpoint.closed import linear, lsa
from fedpoint.core.precision import double
from fedpoint.problems.linear_system import contraction_of_steps, noise_traces
from fedpoint.theory.bounds.bound import DEVIATION, FLOOR, ORDER, Bound, Need, Value, bound
from fedpoint.theory.bounds.case import Assumption, Case, show

LARGEST = 200  # numbers of a model whose second moments are looked at, a matrix for each agent


@dataclass(frozen=True)
class System:
    """The numbers of a case whose fields are affine: asked for once `affine` and `steps` hold."""

    case: Case

    @cached_property
    def A(self) -> np.ndarray:
        return linear.fields_of(self.case.problem)[0]

    @cached_property
    def p(self) -> np.ndarray:
        return self.case.problem.weights

    @cached_property
    def lengths(self) -> np.ndarray | None:
        """(K,): eta of every agent; None for a schedule."""
        step = linear.constant_step(self.case.algorithm)
        if step is None:
            return None
        return np.broadcast_to(step / self.case.algorithm.work_of_a_step(), (self.case.K,))

    @cached_property
    def eta(self) -> float:
        assert self.lengths is not None  # `steps` has asked
        return float(self.lengths[0])

    @cached_property
    def H(self) -> int:
        assert self.case.step_counts is not None
        return int(self.case.step_counts[0])

    @cached_property
    def slope_noise(self) -> np.ndarray | None:
        """(K, d, d): E[(A(Z) - A)'(A(Z) - A)]; None where it is not known."""
        return self.case.problem.slope_noise() if self.case.sampled else np.zeros_like(self.A)

    @double
    def noise(self, at: np.ndarray) -> np.ndarray:
        """(K,): E|g(th; Z) - g(th)|^2 of every agent at its row of `at`."""
        if not self.case.sampled:
            return np.zeros(self.case.K)
        problem = self.case.problem
        return np.asarray(
            noise_traces(problem.oracle, problem.own, problem.common, np.broadcast_to(at, self.own.shape))
        )

    @cached_property
    def own(self) -> np.ndarray:
        """(K, d): th_c*."""
        return np.asarray(self.case.problem.local_solutions())

    @cached_property
    def solution(self) -> np.ndarray:
        found = linear.solution(self.case.problem)
        assert found is not None  # `affine` has asked
        return found

    @cached_property
    def scatter(self) -> np.ndarray:
        assert self.slope_noise is not None  # `affine` has asked
        return self.slope_noise

    @cached_property
    def stability(self) -> tuple[float, float]:
        """a, and the longest step for it."""
        a, longest = contraction_of_steps(self.A, self.scatter)
        return float(a.min()), float(longest.min())

    @property
    def a(self) -> float:
        return self.stability[0]

    @cached_property
    def kept(self) -> float:
        """g = (1 - eta a)^H: what a round keeps of a square."""
        return (1 - self.eta * self.a) ** self.H

    @cached_property
    def B2(self) -> float:
        """The largest eigenvalue of any E[A_c(Z)'A_c(Z)]."""
        return float(np.linalg.eigvalsh(np.swapaxes(self.A, 1, 2) @ self.A + self.scatter)[:, -1].max())

    # Assumptions.

    def affine(self) -> list[Assumption]:
        problem = self.case.problem
        known = problem.linear and linear.solution(problem) is not None
        found: list[Assumption] = [("fields are affine, with one solution th*", known, type(problem).__name__)]
        if known:
            small = np.size(problem.start()) <= LARGEST
            noise = small and self.slope_noise is not None
            why = "" if noise else "a sampler's, or not described" if small else f"over {LARGEST} numbers: not computed"
            found.append(("the noise of A(Z) and b(Z) is known", True if noise else None, why))
        return found

    def steps(self) -> list[Assumption]:
        counts = self.case.step_counts
        one = self.lengths is not None and linear.common(self.lengths) is not None
        same = counts is not None and linear.common(counts) is not None
        return [
            ("one constant step eta for all", one, f"step = {show(self.case.algorithm.step)}"),
            ("one number H of local steps", same, show(counts)),
        ]

    def stable(self) -> list[Assumption]:
        a, longest = self.stability
        detail = f"eta = {self.eta:.3g}, limit {longest:.3g}"
        return [
            ("exponential stability: A_c + A_c' > 0 for every agent", a > 0, f"a = {a:.4g}"),
            ("steps are short enough for it", self.eta <= longest * (1 + 1e-12), detail),
        ]

    def descends(self) -> Assumption:
        return "FedLSA: local steps and their mean", self.case.plain, type(self.case.algorithm).__name__

    def corrects(self) -> Assumption:
        algorithm = self.case.algorithm
        right = algorithm.corrects_descent() and not algorithm.own_kind()
        return "SCAFFLSA: local steps with corrections, and their mean", right, type(algorithm).__name__

    def few_steps(self) -> Assumption:
        top = self.a / (self.eta * self.B2)
        text = "H <= a/(eta max E|A_c(Z)|^2)"
        return text, top * (1 + 1e-12) >= self.H, f"H = {self.H}, limit {top:.4g}"

    def alone(self) -> Assumption:
        return "one agent", self.case.K == 1, f"{self.case.K} agents"

    def needs(self, method: Need, *more: Need) -> list[Need]:
        return [method, self.case.everyone, self.case.independent, self.affine, self.steps, self.stable, *more]


def _decay(first: float, factor: float, floor: float) -> Value:
    return Value(floor, lambda rounds: first * factor ** np.asarray(rounds) + floor)


def single_agent(case: Case) -> Bound:
    s = System(case)

    def value() -> Value:
        first = 2 * case.from_solution(case.origin)
        return _decay(first, s.kept, 2 * s.eta * float(s.noise(s.own)[0]) / s.a)

    name, formula = "linear stochastic approximation, one agent", "2 (1 - eta a)^T |th_0 - th*|^2 + 2 eta sigma^2 / a"
    return bound(name, "001 single agent", formula, FLOOR, s.needs(s.descends, s.alone), value)


def fedlsa(case: Case) -> Bound:
    s = System(case)

    def value() -> Value:
        bias = lsa.lsa_bias(case.problem, s.eta, s.H)
        away = np.linalg.norm(s.solution + bias - s.own, axis=1)
        tau = np.sqrt(np.linalg.eigvalsh(s.scatter)[:, -1].clip(0))
        noise = (np.sqrt(s.noise(s.own)) + tau * away) ** 2
        first = 2 * float(((case.origin - s.solution - bias) ** 2).sum())
        return _decay(first, s.kept, 2 * s.eta / s.a * float(s.p**2 @ noise))

    return bound(
        "FedLSA, about its limit",
        "001 FedLSA",
        "2 (1 - eta a)^(H t) |th_0 - th* - bias|^2 + 2 (eta/a) sum_c p_c^2 (sigma_c + tau_c |th* + bias - th_c*|)^2",
        DEVIATION,
        s.needs(s.descends),
        value,
    )


def _psi(s: System) -> float:
    """psi_0 = |th_0 - th*|^2 + eta^2 H^2 sum_c p_c |A_c (th_c* - th*)|^2."""
    start = s.case.from_solution(s.case.origin)
    pull = (np.einsum("cij,cj->ci", s.A, s.own - s.solution) ** 2).sum(1)
    return start + (s.eta * s.H) ** 2 * float(s.p @ pull)


def scafflsa(case: Case) -> Bound:
    s = System(case)

    def value() -> Value:
        q2 = s.eta**2 * s.B2 * (s.H - 1) ** 2 / 4
        noise = s.eta / s.a * (1 - s.kept) * float(s.p @ s.noise(s.solution))
        rho = s.kept + q2
        return _decay(2 * _psi(s), rho, 2 * noise / (1 - rho))

    return bound(
        "SCAFFLSA",
        "001 SCAFFLSA",
        "2 rho^T psi_0 + 2 (eta/a) (1 - g)/(1 - rho) sum_c p_c sigma_c^2, g = (1 - eta a)^H, "
        "rho = g + (eta (H-1)/2)^2 max E|A_c(Z)|^2, psi_0 = |th_0 - th*|^2 + eta^2 H^2 sum_c p_c |A_c(th_c* - th*)|^2",
        FLOOR,
        s.needs(s.corrects, s.few_steps),
        value,
    )


def scafflsa_order(case: Case) -> Bound:
    s = System(case)

    def value() -> Value:
        floor = s.eta / s.a * float(s.p**2 @ s.noise(s.solution))
        return _decay(_psi(s), 1 - s.eta * s.a * s.H / 2, floor)

    return bound(
        "SCAFFLSA, linear speed-up, order",
        "001 SCAFFLSA, order",
        "O((1 - eta a H/2)^T psi_0 + (eta/a) sum_c p_c^2 sigma_c^2)",
        FLOOR,
        s.needs(s.corrects, s.few_steps),
        value,
        notes=ORDER,
    )


MAKERS = (single_agent, fedlsa, scafflsa, scafflsa_order)
