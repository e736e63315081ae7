"""What does lecture 004's theorem 1 promise: local SGD with decaying steps?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.numbers import counted
from fedpoint.core.steps import InverseTime
from fedpoint.theory.bounds.bound import EXCESS, Bound, Value, bound
from fedpoint.theory.bounds.case import Assumption, Case, arrays, named, show
from fedpoint.timing.participation import ByWeight, Everyone, Uniform


@dataclass(frozen=True)
class Region:
    """E|x_k - w*|^2 <= radius^2 for every agent at every step, and what follows: (K,) noise, and G^2."""

    radius: float
    sigma2: np.ndarray
    G2: float


def region(case: Case, alpha: float, first_step: float) -> Region | None:
    r"""A `Region`: a ball in mean square that no local step and no mean leaves; None where steps are too long for one.

    With D^2 = E|x - w*|^2, an agent's step of length s <= 2/(alpha + beta) gives

        D+^2 <= ((1 - s alpha) D + s |g_k(w*)|)^2 + s^2 (beta_k^2 (D + |w_k - w*|)^2 + sigma_k^2).

    D+ <= D = R for all s up to the first one, s_0, if it holds at s_0: a quadratic inequality in R. A mean with weights
    that sum to one stays inside by convexity. In it E|noise|^2 <= beta_k^2 (R + |w_k - w*|)^2 + sigma_k^2, and
    E|g(x; z)|^2 is at most that plus (delta_k R + |g_k(w*)|)^2.
    """
    beta2, sigma2, spread, delta = arrays(case.beta2, case.sigma2, case.spread, case.delta_k)
    pull = np.linalg.norm(case.problem.fields(case.problem.solution()), axis=1)
    h, s = np.sqrt(spread), first_step
    a = 2 * alpha - s * (alpha**2 + beta2)
    if not (a > 0).all() or case.distance2 is None:
        return None
    b = 2 * pull * (1 - s * alpha) + 2 * s * beta2 * h
    c = s * (pull**2 + beta2 * spread + sigma2)
    root = (b + np.sqrt(b**2 + 4 * a * c)) / (2 * a)
    radius = max(math.sqrt(case.distance2), float(root.max()))
    noise = beta2 * (radius + h) ** 2 + sigma2
    return Region(radius, noise, float(((delta * radius + pull) ** 2 + noise).max()))


def local_sgd(case: Case) -> Bound:
    step = case.algorithm.step
    known = isinstance(step, InverseTime)
    schedule = step if isinstance(step, InverseTime) else InverseTime(1.0, 1.0)  # the bound is void then
    E = int(case.counts[0]) if case.counts is not None else 1

    def method() -> list[Assumption]:
        local = case.plain and bool(np.all(np.asarray(case.algorithm.work_of_a_step()) == 1))
        same = case.counts is not None and bool((case.counts == case.counts[0]).all())
        return [
            ("local SGD, steps not normalised", local, type(case.algorithm).__name__),
            ("one number E of local steps", same, show(case.counts)),
            ("steps s_t = 2/(alpha (gamma + t)), t counting gradient steps", known, f"step = {step}"),
            case.independent(),
        ]

    def participation() -> list[Assumption]:
        known = isinstance(case.scheme, Everyone | ByWeight | Uniform)
        found: list[Assumption] = [("everyone, scheme I or scheme II", known, case.who())]
        if isinstance(case.scheme, Uniform):
            text, same, detail = case.equal_weights()
            found.append(
                (f"{text} under scheme II: else weights do not sum to one, and G^2 has no bound", same, detail)
            )
        return found

    def constants() -> list[Assumption]:
        text, strong, detail = case.agents_convex()
        found = [(f"{text} (A2)", strong, detail)]
        text, smooth, detail = case.agents_smooth()
        found += [(f"{text} (A1)", smooth, detail), case.noise_known(), case.minimisers_known()]
        gamma = case.constants.gamma
        found.append(("Gamma = f* - sum p_k f_k* is known", True if gamma is not None else None, named("Gamma", gamma)))
        return found

    def alpha() -> float:
        """The strong convexity that the schedule was made for."""
        return 2.0 / schedule.scale

    def beta() -> float:
        return float(np.max(case.delta_k))

    def schedule_fits() -> list[Assumption]:
        low, offset = float(np.min(case.nu_k)), schedule.offset
        need = max(8 * beta() / alpha(), E)
        tiny = 1 + 1e-12
        return [
            ("alpha = 2/scale is at most every agent's strong convexity", alpha() <= low * tiny, f"{alpha():.4g}"),
            ("gamma = offset >= max(8 beta/alpha, E)", offset * tiny >= need, f"gamma = {offset:.4g}, need {need:.4g}"),
        ]

    def bounded() -> Assumption:
        found = region(case, alpha(), float(schedule.value(0)))
        text = "gradients are bounded in mean square where the iterates are (A3, A4)"
        if found is None:
            worst = float(arrays(case.beta2)[0].max())
            top = 2 * alpha() / (alpha() ** 2 + worst)
            return text, False, f"no region known: it needs a first step below {top:.3g}, a larger offset"
        detail = f"E|x_k - w*|^2 <= {found.radius**2:.4g} at all steps, by induction; there G^2 = {found.G2:.4g}"
        return text, True, detail

    def value() -> Value:
        gamma = schedule.offset
        found = region(case, alpha(), float(schedule.value(0)))
        assert found is not None and case.distance2 is not None  # `bounded` has asked
        B = case.problem.weights**2 @ found.sigma2 + 6 * beta() * case.gamma + 8 * (E - 1) ** 2 * found.G2
        if isinstance(case.scheme, ByWeight):
            B += 4 * E**2 * found.G2 / case.L
        elif isinstance(case.scheme, Uniform):
            B += case.c * 4 * E**2 * found.G2 / case.L
        kappa = beta() / alpha()
        top = kappa * (2 * B / alpha() + alpha() * gamma / 2 * case.distance2)

        def curve(rounds: ArrayLike) -> np.ndarray:
            T = np.asarray(rounds) * E
            return top / np.maximum(gamma + T - 1, 1e-300)

        return Value(float(curve(case.rounds)), curve)

    return bound(
        f"local SGD, after {counted(case.rounds, 'round')}",
        "004 theorem 1",
        "kappa/(gamma+T-1) (2(B+C)/alpha + alpha gamma/2 |x_0-x*|^2), B = sum p_k^2 sigma_k^2 + 6 beta Gamma + "
        "8 (E-1)^2 G^2, C = 4 E^2 G^2/L (scheme I), (K-L)/(K-1) times that (II), 0 (everyone)",
        EXCESS,
        [method, participation, constants, schedule_fits, bounded],
        value,
    )


MAKERS = (local_sgd,)
