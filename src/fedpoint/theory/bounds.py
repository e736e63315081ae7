"""What do the lectures' bounds promise here, and do their assumptions hold?

Every bound comes with its assumptions, each checked against the problem and the algorithm. Where one fails the bound
is void: it has a reason and no value. Lecture 000 is about equal weights p_k = 1/K and writes mu for the step of a
round, nu and delta for strong convexity and smoothness of the aggregate, delta_k for an agent's smoothness, and
E|noise of agent k|^2 <= beta_k^2 |w - w_k|^2 + sigma_k^2, w_k the agent's own minimiser, as in `problem.constants()`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.closed import linear
from fedpoint.core.algorithm import Algorithm, bind_algorithm
from fedpoint.core.numbers import counted
from fedpoint.core.steps import InverseTime
from fedpoint.core.types import Model
from fedpoint.problems.base import Problem
from fedpoint.theory.case import Assumption, Case, arrays, named, show
from fedpoint.timing.base import Timing
from fedpoint.timing.participation import ByWeight, Everyone, Uniform, as_participation

FACTOR = "factor of E|w - w*|^2 per round"
FLOOR = "E|w - w*|^2 in the long run"
NOISE = "sigma_fed^2, the noise power of a round's gradient"
EXCESS = "E f(x_T) - f*"

Curve = Callable[[ArrayLike], np.ndarray]  # the bound after so many rounds
Need = Callable[[], Assumption | list[Assumption]]  # what a bound assumes, looked at when it is asked


@dataclass(frozen=True)
class Bound:
    """A bound of a lecture: what it bounds, its value here, and whether it applies."""

    name: str
    lecture: str  # for instance "000 (40)"
    formula: str
    quantity: str
    value: float | None  # None when void
    assumptions: list[Assumption]  # text, whether it holds (None: not known, or not checkable), detail
    void: str = ""  # why it does not apply; empty when it does
    curve: Curve | None = None  # the bound after so many rounds, where it is one per round
    strict: bool = True  # False: to first order in the step, or up to a constant


def bounds(
    algorithm: Algorithm,
    problem: Problem,
    participation: Timing | int | None = None,
    start: Model | None = None,
    exact: bool = False,
    rounds: int = 1000,
) -> list[Bound]:
    """The bounds of lecture 000 and of lecture 004's theorem 1, each with its assumptions checked.

    Args:
        start: where the run starts (default: the problem's own start), for what depends on it.
        exact: fields are exact, as in `fp.run(..., exact=True)`.
        rounds: for the value of theorem 1, which is about the model after so many rounds.

    >>> import fedpoint as fp
    >>> lab = fp.problems.LinearStream.sample(agents=100, dim=10, spread=0.1, noise=0.01)
    >>> found = {b.lecture: b for b in bounds(fp.FedAvg(0.02), lab)}
    >>> f"{found['000 (40)'].value:.2e}", f"{fp.theory.lms_floor(lab, 0.02):.2e}"
    ('4.15e-03', '1.06e-03')
    >>> found["000 (52)"].void
    'it assumes: one agent a round; here: Everyone'
    """
    scheme = participation if isinstance(participation, Timing) else as_participation(participation)
    case = Case(bind_algorithm(algorithm, problem), problem, scheme, start, exact, rounds)
    return [make(case) for make in MAKERS]


def _bound(
    name: str,
    lecture: str,
    formula: str,
    quantity: str,
    needs: list[Need],
    value: Callable[[], tuple[float, Curve | None]],
    strict: bool = True,
    notes: tuple[Assumption, ...] = (),
) -> Bound:
    """Check the assumptions in order, the later ones (which may need the earlier) only while all hold."""
    found: list[Assumption] = []
    void = ""
    for need in needs:
        checked = need()
        for text, holds, detail in checked if isinstance(checked, list) else [checked]:
            found.append((text, None if holds is None else bool(holds), detail))
            if not holds and not void:
                void = f"it assumes: {text}; here: {detail or 'no'}"
        if void:
            break
    number, curve = (None, None) if void else value()
    if number is not None and not math.isfinite(number):
        number, curve, void = None, None, "it is infinite here"
    return Bound(name, lecture, formula, quantity, number, [*found, *notes], void, curve, strict)


# Lecture 000: gradient descent, and its stochastic variants.


def descent(case: Case) -> Bound:
    def factor() -> float:
        return 1 - 2 * case.mu * case.nu + case.mu**2 * case.delta**2

    def shrinks() -> Assumption:
        return "mu < 2 nu/delta^2, or it says nothing", factor() < 1, f"lambda = {factor():.6g}"

    def value() -> tuple[float, Curve | None]:
        first = case.distance2
        return factor(), None if first is None else lambda rounds: first * factor() ** np.asarray(rounds)

    needs: list[Need] = [case.one_step, case.everyone, case.no_noise, case.strongly_convex, case.smooth, shrinks]
    return _bound("gradient descent", "000 (20)", "lambda = 1 - 2 mu nu + mu^2 delta^2", FACTOR, needs, value)


def _steady(case: Case, noise: tuple[float, float]) -> tuple[float, Curve | None]:
    """mu sigma^2 / nu, and lambda^i |w_0 - w*|^2 above it, lambda = 1 - 2 mu nu + mu^2 (delta^2 + beta^2)."""
    beta2, sigma2 = noise
    mu, nu, delta, first = case.mu, case.nu, case.delta, case.distance2
    limit, shrink = mu * sigma2 / nu, 1 - 2 * mu * nu + mu**2 * (delta**2 + beta2)
    if first is None:
        return limit, None
    return limit, lambda rounds: limit + first * shrink ** np.asarray(rounds)


def _everyone(case: Case, *more: Need) -> list[Need]:
    """What (30) and (40) assume; the longest step last, since it needs the constants."""
    known = [case.strongly_convex, case.smooth, case.noise_known, case.minimisers_known]
    return [
        case.one_step,
        case.everyone,
        case.equal_weights,
        *known,
        *more,
        lambda: case.short_step(case.all_noise[0]),
    ]


def _one_agent(case: Case, *more: Need) -> list[Need]:
    """What (49)-(52) assume."""
    known = [case.strongly_convex, case.smooth, case.noise_known, case.minimisers_known, case.agents_smooth]
    return [
        case.one_agent,
        case.one_step,
        case.equal_weights,
        *known,
        *more,
        lambda: case.short_step(case.one_noise[0]),
    ]


def centralised(case: Case) -> Bound:
    formula = "mu/(nu K^2) sum_k (2 beta_k^2 |w_k - w*|^2 + sigma_k^2)"
    needs = _everyone(case)
    return _bound(
        "stochastic gradient, everyone", "000 (40)", formula, FLOOR, needs, lambda: _steady(case, case.all_noise)
    )


def linear_gain(case: Case) -> Bound:
    needs = _everyone(case, case.homogeneous, case.same_noise)
    name, formula = "linear gain, homogeneous agents", "mu sigma_1^2 / (nu K)"
    return _bound(name, "000 (42)", formula, FLOOR, needs, lambda: _steady(case, case.all_noise))


def sampled_agent(case: Case) -> Bound:
    formula = "mu/(nu K) sum_k (2 (beta_k^2 + 2 delta_k^2) |w_k - w*|^2 + sigma_k^2)"
    needs = _one_agent(case)
    return _bound("one sampled agent", "000 (52)", formula, FLOOR, needs, lambda: _steady(case, case.one_noise))


def sampled_homogeneous(case: Case) -> Bound:
    needs = _one_agent(case, case.homogeneous, case.same_noise)
    name = "one sampled agent, homogeneous agents"
    return _bound(name, "000 (53)", "mu sigma_1^2 / nu", FLOOR, needs, lambda: _steady(case, case.one_noise))


def sampled_exact(case: Case) -> Bound:
    needs = _one_agent(case, case.no_noise)
    name, formula = "one sampled agent, exact fields", "mu/(nu K) sum_k 4 delta_k^2 |w_k - w*|^2"
    return _bound(name, "000 (54)", formula, FLOOR, needs, lambda: _steady(case, case.one_noise))


# Lecture 000: federated averaging.

FIRST_ORDER: tuple[Assumption, ...] = (
    ("the step is small: terms O(mu^2), O(mu^3) are left out", None, "first order, not strict"),
)
ORDER: tuple[Assumption, ...] = (("up to a constant and terms O(mu^2)", None, "an order of magnitude"),)


def _federated(case: Case) -> list[Need]:
    return [
        case.fedavg,
        case.strongly_convex,
        case.smooth,
        case.agents_convex,
        case.agents_smooth,
        case.noise_known,
        case.minimisers_known,
    ]


def _root(case: Case) -> float:
    """lambda of (74)."""
    mu, nu, delta = case.mu, case.nu, case.delta
    return 1 - 2 * mu * nu + mu**2 * (delta**2 + case.fed_noise[0])


def _contracts(case: Case) -> Callable[[], Assumption]:
    return lambda: ("lambda < 1: the step is small enough", 0 <= _root(case) < 1, f"lambda = {_root(case):.6g}")


def federated_factor(case: Case) -> Bound:
    return _bound(
        "federated averaging, transient",
        "000 (73)-(74)",
        "sqrt(lambda), lambda = 1 - 2 mu nu + mu^2 (delta^2 + beta_fed^2)",
        FACTOR,
        [*_federated(case), _contracts(case)],
        lambda: (math.sqrt(_root(case)), None),
        strict=False,
        notes=FIRST_ORDER,
    )


def federated(case: Case) -> Bound:
    def value() -> tuple[float, Curve | None]:
        limit, first = 4 * case.mu * case.fed_noise[1] / case.nu, case.distance2
        shrink = math.sqrt(_root(case))
        return limit, None if first is None else lambda rounds: limit + first * shrink ** np.asarray(rounds)

    return _bound(
        "federated averaging",
        "000 (75)",
        "4 mu sigma_fed^2 / nu",
        FLOOR,
        [*_federated(case), _contracts(case)],
        value,
        strict=False,
        notes=FIRST_ORDER,
    )


def federated_order(case: Case) -> Bound:
    return _bound(
        "federated averaging, order",
        "000 (76)",
        "O(mu sigma_fed^2 / nu)",
        FLOOR,
        _federated(case),
        lambda: (case.mu * case.fed_noise[1] / case.nu, None),
        strict=False,
        notes=ORDER,
    )


def federated_noise(case: Case) -> Bound:
    return _bound(
        "noise of federated averaging",
        "000 (77)",
        "1/(KL) sum_k [(2 beta_k^2 |w_k - w*|^2 + sigma_k^2)/E_k + (K-L)/(K-1) 4 delta_k^2 |w_k - w*|^2]",
        NOISE,
        _federated(case),
        lambda: (case.fed_noise[1], None),
    )


def homogeneous_noise(case: Case) -> Bound:
    return _bound(
        "noise, homogeneous agents",
        "000 (78)",
        "1/(KL) sum_k sigma_k^2 / E_k",
        NOISE,
        [*_federated(case), case.homogeneous],
        lambda: (case.fed_noise[1], None),
    )


def _equal_steps(case: Case) -> Assumption:
    E = case.counts
    return "E_k = E", E is not None and bool(linear.common(E) is not None), show(E)


def identical_noise(case: Case) -> Bound:
    return _bound(
        "noise, identical agents",
        "000 (79)",
        "sigma^2 / (L E)",
        NOISE,
        [*_federated(case), case.homogeneous, case.same_noise, lambda: _equal_steps(case)],
        lambda: (case.fed_noise[1], None),
    )


def identical_order(case: Case) -> Bound:
    return _bound(
        "federated averaging, identical agents, order",
        "000 (80)",
        "O(mu sigma^2 / (nu L E))",
        FLOOR,
        [*_federated(case), case.homogeneous, case.same_noise, lambda: _equal_steps(case)],
        lambda: (case.mu * case.fed_noise[1] / case.nu, None),
        strict=False,
        notes=ORDER,
    )


def exact_noise(case: Case) -> Bound:
    return _bound(
        "noise of sampling agents, exact fields",
        "000 (81)",
        "1/(KL) (K-L)/(K-1) sum_k 4 delta_k^2 |w_k - w*|^2",
        NOISE,
        [case.no_noise, *_federated(case)],
        lambda: (case.fed_noise[1], None),
    )


# Lecture 004, theorem 1.


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

    def value() -> tuple[float, Curve | None]:
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

        return float(curve(case.rounds)), curve

    return _bound(
        f"local SGD, after {counted(case.rounds, 'round')}",
        "004 theorem 1",
        "kappa/(gamma+T-1) (2(B+C)/alpha + alpha gamma/2 |x_0-x*|^2), B = sum p_k^2 sigma_k^2 + 6 beta Gamma + "
        "8 (E-1)^2 G^2, C = 4 E^2 G^2/L (scheme I), (K-L)/(K-1) times that (II), 0 (everyone)",
        EXCESS,
        [method, participation, constants, schedule_fits, bounded],
        value,
    )


MAKERS = (
    descent,
    centralised,
    linear_gain,
    sampled_agent,
    sampled_homogeneous,
    sampled_exact,
    federated_factor,
    federated,
    federated_order,
    federated_noise,
    homogeneous_noise,
    identical_noise,
    identical_order,
    exact_noise,
    local_sgd,
)
