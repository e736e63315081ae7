"""What do lecture 000's bounds promise: gradient descent, its stochastic variants, federated averaging?

The lecture is about equal weights p_k = 1/K and writes mu for the step of a round, nu and delta for strong convexity
and smoothness of the aggregate, delta_k for an agent's smoothness, and E|noise of agent k|^2 <= beta_k^2 |w - w_k|^2 +
sigma_k^2, w_k the agent's own minimiser, as in `problem.constants()`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedpoint.closed import linear
from fedpoint.core.types import Model
from fedpoint.theory.bounds.bound import (
    FACTOR,
    FIRST_ORDER,
    FLOOR,
    GRADIENT,
    NOISE,
    ORDER,
    POWER,
    SLOPE,
    Bound,
    Need,
    Value,
    bound,
)
from fedpoint.theory.bounds.case import Assumption, Case, arrays, show

# Lecture 000: gradient descent, and its stochastic variants.


def descent(case: Case) -> Bound:
    def factor() -> float:
        return 1 - 2 * case.mu * case.nu + case.mu**2 * case.delta**2

    def shrinks() -> Assumption:
        return "mu < 2 nu/delta^2, or it says nothing", factor() < 1, f"lambda = {factor():.6g}"

    def value() -> Value:
        first = case.distance2
        return Value(factor(), None if first is None else lambda rounds: first * factor() ** np.asarray(rounds))

    needs: list[Need] = [case.one_step, case.everyone, case.no_noise, case.strongly_convex, case.smooth, shrinks]
    return bound("gradient descent", "000 (20)", "lambda = 1 - 2 mu nu + mu^2 delta^2", FACTOR, needs, value)


# Lecture 000: the noise of a round's gradient, when everyone or one agent is asked.


def _of_everyone(case: Case) -> list[Need]:
    """What (28)-(30) assume."""
    known = [case.noise_known, case.minimisers_known]
    return [case.one_step, case.everyone, case.equal_weights, case.independent, *known]


def _of_one(case: Case) -> list[Need]:
    """What (49)-(51) assume."""
    known = [case.smooth, case.agents_smooth, case.noise_known, case.minimisers_known]
    return [case.one_agent, case.one_step, case.equal_weights, case.independent, *known]


def _everywhere(case: Case, at: Callable[[Model], float]) -> Value:
    """A bound for every model, with its value at the start."""
    return Value(at(case.origin), at=at)


def mean_noise(case: Case) -> Bound:
    def at(w: Model) -> float:
        beta2, sigma2 = arrays(case.beta2, case.sigma2)
        return case.mean(beta2 * case.from_minimisers(w) + sigma2) / case.K

    formula = "1/K^2 sum_k (beta_k^2 |w_k - w|^2 + sigma_k^2)"
    name = "noise of the mean gradient, by agents"
    return bound(name, "000 (28)", formula, GRADIENT, _of_everyone(case), lambda: _everywhere(case, at))


def mean_noise_about_solution(case: Case) -> Bound:
    def at(w: Model) -> float:
        beta2, sigma2 = case.all_noise
        return beta2 * case.from_solution(w) + sigma2

    formula, name = "beta^2 |w* - w|^2 + sigma^2", "noise of the mean gradient"
    return bound(name, "000 (29)", formula, GRADIENT, _of_everyone(case), lambda: _everywhere(case, at))


def mean_noise_slope(case: Case) -> Bound:
    name, formula = "noise of the mean gradient, its growth", "beta^2 = 1/K^2 sum_k 2 beta_k^2"
    return bound(name, "000 (30) beta^2", formula, SLOPE, _of_everyone(case), lambda: Value(case.all_noise[0]))


def mean_noise_power(case: Case) -> Bound:
    formula = "sigma^2 = 1/K^2 sum_k (2 beta_k^2 |w_k - w*|^2 + sigma_k^2)"
    name = "noise of the mean gradient, at w*"
    return bound(name, "000 (30) sigma^2", formula, POWER, _of_everyone(case), lambda: Value(case.all_noise[1]))


def sampled_noise(case: Case) -> Bound:
    def at(w: Model) -> float:
        beta2, sigma2 = case.one_noise
        return beta2 * case.from_solution(w) + sigma2

    formula, name = "beta^2 |w* - w|^2 + sigma^2", "noise of one sampled agent's gradient"
    return bound(name, "000 (49)", formula, GRADIENT, _of_one(case), lambda: _everywhere(case, at))


def sampled_noise_slope(case: Case) -> Bound:
    name = "noise of one sampled agent's gradient, its growth"
    formula = "beta^2 = 1/K sum_k (2 beta_k^2 + 4 delta_k^2 + 2 delta^2)"
    return bound(name, "000 (50)", formula, SLOPE, _of_one(case), lambda: Value(case.one_noise[0]))


def sampled_noise_power(case: Case) -> Bound:
    name = "noise of one sampled agent's gradient, at w*"
    formula = "sigma^2 = 1/K sum_k (2 (beta_k^2 + 2 delta_k^2) |w_k - w*|^2 + sigma_k^2)"
    return bound(name, "000 (51)", formula, POWER, _of_one(case), lambda: Value(case.one_noise[1]))


def _steady(case: Case, noise: tuple[float, float]) -> Value:
    """mu sigma^2 / nu, and lambda^i |w_0 - w*|^2 above it, lambda = 1 - 2 mu nu + mu^2 (delta^2 + beta^2)."""
    beta2, sigma2 = noise
    mu, nu, delta, first = case.mu, case.nu, case.delta, case.distance2
    limit, shrink = mu * sigma2 / nu, 1 - 2 * mu * nu + mu**2 * (delta**2 + beta2)
    if first is None:
        return Value(limit)
    return Value(limit, lambda rounds: limit + first * shrink ** np.asarray(rounds))


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
    return bound(
        "stochastic gradient, everyone", "000 (40)", formula, FLOOR, needs, lambda: _steady(case, case.all_noise)
    )


def linear_gain(case: Case) -> Bound:
    needs = _everyone(case, case.homogeneous, case.same_noise)
    name, formula = "linear gain, homogeneous agents", "mu sigma_1^2 / (nu K)"
    return bound(name, "000 (42)", formula, FLOOR, needs, lambda: _steady(case, case.all_noise))


def sampled_agent(case: Case) -> Bound:
    formula = "mu/(nu K) sum_k (2 (beta_k^2 + 2 delta_k^2) |w_k - w*|^2 + sigma_k^2)"
    needs = _one_agent(case)
    return bound("one sampled agent", "000 (52)", formula, FLOOR, needs, lambda: _steady(case, case.one_noise))


def sampled_homogeneous(case: Case) -> Bound:
    needs = _one_agent(case, case.homogeneous, case.same_noise)
    name = "one sampled agent, homogeneous agents"
    return bound(name, "000 (53)", "mu sigma_1^2 / nu", FLOOR, needs, lambda: _steady(case, case.one_noise))


def sampled_exact(case: Case) -> Bound:
    needs = _one_agent(case, case.no_noise)
    name, formula = "one sampled agent, exact fields", "mu/(nu K) sum_k 4 delta_k^2 |w_k - w*|^2"
    return bound(name, "000 (54)", formula, FLOOR, needs, lambda: _steady(case, case.one_noise))


# Lecture 000: federated averaging.


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
    return bound(
        "federated averaging, transient",
        "000 (73)-(74)",
        "sqrt(lambda), lambda = 1 - 2 mu nu + mu^2 (delta^2 + beta_fed^2)",
        FACTOR,
        [*_federated(case), _contracts(case)],
        lambda: Value(math.sqrt(_root(case))),
        notes=FIRST_ORDER,
    )


def federated(case: Case) -> Bound:
    def value() -> Value:
        limit, first = 4 * case.mu * case.fed_noise[1] / case.nu, case.distance2
        shrink = math.sqrt(_root(case))
        return Value(limit, None if first is None else lambda rounds: limit + first * shrink ** np.asarray(rounds))

    return bound(
        "federated averaging",
        "000 (75)",
        "4 mu sigma_fed^2 / nu",
        FLOOR,
        [*_federated(case), _contracts(case)],
        value,
        notes=FIRST_ORDER,
    )


def federated_order(case: Case) -> Bound:
    return bound(
        "federated averaging, order",
        "000 (76)",
        "O(mu sigma_fed^2 / nu)",
        FLOOR,
        _federated(case),
        lambda: Value(case.mu * case.fed_noise[1] / case.nu),
        notes=ORDER,
    )


def federated_noise(case: Case) -> Bound:
    return bound(
        "noise of federated averaging",
        "000 (77)",
        "1/(KL) sum_k [(2 beta_k^2 |w_k - w*|^2 + sigma_k^2)/E_k + (K-L)/(K-1) 4 delta_k^2 |w_k - w*|^2]",
        NOISE,
        _federated(case),
        lambda: Value(case.fed_noise[1]),
    )


def homogeneous_noise(case: Case) -> Bound:
    return bound(
        "noise, homogeneous agents",
        "000 (78)",
        "1/(KL) sum_k sigma_k^2 / E_k",
        NOISE,
        [*_federated(case), case.homogeneous],
        lambda: Value(case.fed_noise[1]),
    )


def _equal_steps(case: Case) -> Assumption:
    E = case.counts
    return "E_k = E", E is not None and bool(linear.common(E) is not None), show(E)


def identical_noise(case: Case) -> Bound:
    return bound(
        "noise, identical agents",
        "000 (79)",
        "sigma^2 / (L E)",
        NOISE,
        [*_federated(case), case.homogeneous, case.same_noise, lambda: _equal_steps(case)],
        lambda: Value(case.fed_noise[1]),
    )


def identical_order(case: Case) -> Bound:
    return bound(
        "federated averaging, identical agents, order",
        "000 (80)",
        "O(mu sigma^2 / (nu L E))",
        FLOOR,
        [*_federated(case), case.homogeneous, case.same_noise, lambda: _equal_steps(case)],
        lambda: Value(case.mu * case.fed_noise[1] / case.nu),
        notes=ORDER,
    )


def exact_noise(case: Case) -> Bound:
    return bound(
        "noise of sampling agents, exact fields",
        "000 (81)",
        "1/(KL) (K-L)/(K-1) sum_k 4 delta_k^2 |w_k - w*|^2",
        NOISE,
        [case.no_noise, *_federated(case)],
        lambda: Value(case.fed_noise[1]),
    )


MAKERS = (
    descent,
    mean_noise,
    mean_noise_about_solution,
    mean_noise_slope,
    mean_noise_power,
    centralised,
    linear_gain,
    sampled_noise,
    sampled_noise_slope,
    sampled_noise_power,
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
)
