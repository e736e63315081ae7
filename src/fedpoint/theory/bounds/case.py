"""Which numbers are the bounds made of, and which of their assumptions hold here?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jax.flatten_util import ravel_pytree

from fedpoint.closed import linear
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.precision import double
from fedpoint.core.record import PerAgent, Record
from fedpoint.core.steps import Step, chances_of_steps
from fedpoint.core.types import Model
from fedpoint.problems.base import Constants, Problem
from fedpoint.timing.base import Timing
from fedpoint.timing.schemes import ByWeight, Everyone, Importance, Uniform

Assumption = tuple[str, bool | None, str]  # text, whether it holds (None: not known), detail


class Stated(NamedTuple):
    """What a caller says of where the iterates of local SGD are: a radius about w*, or sigma_k^2 (K,) and G^2."""

    radius: float | None
    sigma2: np.ndarray | None
    G2: float | None


@dataclass(frozen=True)
class Case:
    """A setting, and the numbers that bounds are made of; NaN where a number is not known."""

    algorithm: Algorithm
    problem: Problem
    scheme: Timing
    start: Model | None
    exact: bool
    rounds: int
    stated: Stated | None = None

    @cached_property
    def K(self) -> int:
        return self.problem.agents

    @cached_property
    def L(self) -> int:
        return self.scheme.slots(self.K)

    @cached_property
    def c(self) -> float:
        """(K - L)/(K - 1): what sampling without replacement adds; 0 for everyone."""
        return (self.K - self.L) / (self.K - 1) if self.K > 1 else 0.0

    @cached_property
    def constants(self) -> Constants:
        return self.problem.constants()

    @cached_property
    def nu(self) -> float:
        return _number(self.constants.nu)

    @cached_property
    def delta(self) -> float:
        return _number(self.constants.delta)

    @cached_property
    def gamma(self) -> float:
        return _number(self.constants.gamma)

    @cached_property
    def nu_k(self) -> np.ndarray:
        return arrays(self.constants.nu_k)[0]

    @cached_property
    def delta_k(self) -> np.ndarray:
        return arrays(self.constants.delta_k)[0]

    @cached_property
    def sampled(self) -> bool:
        """Whether fields are drawn: not where a run is exact, or agents use all their rows."""
        return not self.exact and (self.problem.batch is not None or self.problem.local_rows() is None)

    @cached_property
    def beta2(self) -> np.ndarray | None:
        return self.constants.beta2_k if self.sampled else np.zeros(self.K)

    @cached_property
    def sigma2(self) -> np.ndarray | None:
        return self.constants.sigma2_k if self.sampled else np.zeros(self.K)

    @cached_property
    def spread(self) -> np.ndarray | None:
        """(K,): |w_k - w*|^2."""
        optimum, own = linear.solution(self.problem), self.problem.local_solutions()
        if optimum is None or own is None:
            return None
        return ((np.asarray(own).reshape(self.K, -1) - optimum.ravel()) ** 2).sum(axis=1)

    @cached_property
    @double
    def origin(self) -> np.ndarray:
        """The start, flattened."""
        return np.asarray(ravel_pytree(self.problem.start() if self.start is None else self.start)[0])

    def from_solution(self, w: Model) -> float:
        """|w - w*|^2, where w* is known."""
        optimum = linear.solution(self.problem)
        assert optimum is not None  # `minimisers_known` has asked
        return float(((np.asarray(w).ravel() - optimum.ravel()) ** 2).sum())

    def from_minimisers(self, w: Model) -> np.ndarray:
        """(K,): |w - w_k|^2."""
        own = np.asarray(self.problem.local_solutions()).reshape(self.K, -1)
        return ((own - np.asarray(w).ravel()) ** 2).sum(axis=1)

    @cached_property
    def distance2(self) -> float | None:
        """|start - w*|^2."""
        return None if linear.solution(self.problem) is None else self.from_solution(self.origin)

    @cached_property
    def plain(self) -> bool:
        """Whether a round is gradient steps and a mean: FedAvg without a local optimiser, or an exchange."""
        return self.algorithm.averages_descent() and not self.algorithm.own_kind()

    @cached_property
    def local(self) -> linear.LocalWork | None:
        return linear.local(self.algorithm, self.problem) if self.plain else None

    @cached_property
    def step_counts(self) -> np.ndarray | None:
        """(K,): E_k of any method, where they are fixed; also under a schedule of steps."""
        if self.algorithm.unbounded:
            return None
        draws = chances_of_steps(self.algorithm.local_steps, self.K)
        return draws[0][1] if len(draws) == 1 else None

    @cached_property
    def counts(self) -> np.ndarray | None:
        """(K,): those of local descent."""
        return self.step_counts if self.plain else None

    @cached_property
    def mu(self) -> float:
        """The step of a round: E_k mu_k where that is one number for all agents, lecture 000 (72)."""
        if self.local is None or self.counts is None:
            return np.nan
        each = self.local.step * self.counts / self.algorithm.work_of_a_step()
        return float(each[0]) if np.allclose(each, each[0], rtol=1e-12, atol=0) else np.nan

    # Assumptions.

    def one_step(self) -> list[Assumption]:
        """A round is one gradient step, of one constant length, with equal weights."""
        name = type(self.algorithm).__name__
        single = self.plain and self.counts is not None and bool((self.counts == 1).all())
        constant = self.local is not None and not np.isnan(self.mu)
        return [
            ("one gradient step a round", single, name if not self.plain else f"E = {show(self.counts)}"),
            ("one constant step for all", constant, f"step = {show(self.algorithm.step)}"),
        ]

    def fedavg(self) -> list[Assumption]:
        """Lecture 000's federated averaging, (56)-(59) with (72)."""
        name = type(self.algorithm).__name__
        drawn = isinstance(self.scheme, Everyone | Uniform)
        return [
            ("federated averaging", self.plain, name),
            ("fixed numbers of local steps", self.counts is not None, show(self.counts)),
            ("constant steps with mu_k E_k = mu for all agents, (72)", not np.isnan(self.mu), named("mu", self.mu)),
            ("L agents uniformly without replacement, (56)", drawn, self.who()),
            self.equal_weights(),
            self.independent(),
        ]

    def equal_weights(self) -> Assumption:
        same = bool(np.allclose(self.problem.weights, 1 / self.K, rtol=1e-9, atol=0))
        return "weights p_k = 1/K", same, "" if same else f"from {min(self.problem.weights):.3g} up"

    def independent(self) -> Assumption:
        once = self.step_counts is not None and self.step_counts.max() == 1
        oracle = self.problem.oracle
        fresh = not self.sampled or (not oracle.moves and (oracle.independent or once))
        why = "they follow one trajectory" if oracle.moves else "rows are shuffled"
        return "samples are independent, given the model", bool(fresh), "" if fresh else why

    def strongly_convex(self) -> Assumption:
        nu = self.constants.nu
        return "the aggregate is strongly convex", None if nu is None else nu > 0, named("nu", nu)

    def smooth(self) -> Assumption:
        delta = self.constants.delta
        return "the aggregate is smooth", None if delta is None else True, named("delta", delta)

    def agents_smooth(self) -> Assumption:
        top = self.constants.delta_k
        return "every agent is smooth", None if top is None else True, named("max delta_k", largest(top))

    def agents_convex(self) -> Assumption:
        low = self.constants.nu_k
        value = None if low is None else float(np.min(low))
        return "every agent is strongly convex", None if value is None else value > 0, named("min nu_k", value)

    def noise_known(self) -> Assumption:
        known = self.beta2 is not None and self.sigma2 is not None
        return "the noise is bounded as in (25)", True if known else None, "" if known else "its constants are unknown"

    def minimisers_known(self) -> Assumption:
        known = self.spread is not None
        return "w* and the agents' minimisers w_k exist", True if known else None, "" if known else "unknown here"

    def homogeneous(self) -> list[Assumption]:
        if self.spread is None or self.sigma2 is None:
            return [("homogeneous agents", None, "their minimisers or noise are unknown")]
        away = float(self.spread.max())
        small = 1e-18 * (1 + float((np.asarray(self.problem.local_solutions()) ** 2).sum()))
        return [("homogeneous agents: w_k = w*", away <= small, f"max |w_k - w*|^2 = {away:.3g}")]

    def same_noise(self) -> Assumption:
        same = self.sigma2 is not None and bool(np.allclose(self.sigma2, self.sigma2[0], rtol=1e-9, atol=0))
        return "sigma_k^2 is the same for all", same, named("largest", largest(self.sigma2))

    def no_noise(self) -> Assumption:
        known = self.beta2 is not None and self.sigma2 is not None
        none = known and not np.any(self.beta2) and not np.any(self.sigma2)
        return "fields are exact", bool(none), "" if none else "they are sampled"

    def everyone(self) -> Assumption:
        everyone = isinstance(self.scheme, Everyone) or (isinstance(self.scheme, Uniform) and self.L == self.K)
        plain = isinstance(self.scheme, Uniform) and self.scheme.plain and not self.equal_weights()[1]
        return "everyone takes part", everyone and not plain, self.who()

    def who(self) -> str:
        counts = isinstance(self.scheme, Uniform | ByWeight | Importance)
        return type(self.scheme).__name__ + (f"({self.scheme.count})" if counts else "")  # type: ignore[attr-defined]

    def one_agent(self) -> Assumption:
        """Uniform(1), or with equal weights ByWeight(1); everyone when there is one agent."""
        one = isinstance(self.scheme, Everyone | Uniform | ByWeight) and self.L == 1
        return "one agent a round", one, self.who()

    def short_step(self, beta2: float) -> Assumption:
        """mu <= nu / (delta^2 + beta^2), which the lecture leaves out."""
        top = self.nu / (self.delta**2 + beta2)
        return "mu <= nu/(delta^2 + beta^2)", self.mu <= top * (1 + 1e-12), f"mu = {self.mu:.3g}, limit {top:.3g}"

    # Constants of the lecture.

    def mean(self, values: np.ndarray) -> float:
        return float(np.mean(values))

    @cached_property
    def all_noise(self) -> tuple[float, float]:
        """beta^2 and sigma^2 of the mean over everyone, (30)."""
        beta2, sigma2, h = arrays(self.beta2, self.sigma2, self.spread)
        return 2 * self.mean(beta2) / self.K, self.mean(2 * beta2 * h + sigma2) / self.K

    @cached_property
    def one_noise(self) -> tuple[float, float]:
        """beta^2 and sigma^2 of one sampled agent, (50)-(51)."""
        beta2, sigma2, h, delta = arrays(self.beta2, self.sigma2, self.spread, self.delta_k)
        slope = 2 * beta2 + 4 * delta**2 + 2 * self.delta**2
        return self.mean(slope), self.mean(2 * (beta2 + 2 * delta**2) * h + sigma2)

    @cached_property
    def fed_noise(self) -> tuple[float, float]:
        """beta_fed^2, which the lecture does not define (by analogy with (50)), and sigma_fed^2, (77)."""
        beta2, sigma2, h, delta = arrays(self.beta2, self.sigma2, self.spread, self.delta_k)
        E = self.counts
        slope = 2 * beta2 / E + self.c * (4 * delta**2 + 2 * self.delta**2)
        power = (2 * beta2 * h + sigma2) / E + self.c * 4 * delta**2 * h
        return self.mean(slope) / self.L, self.mean(power) / self.L


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def arrays(*values: np.ndarray | None) -> list[np.ndarray]:
    """As they are; NaN where there is none."""
    return [np.asarray(np.nan if v is None else v, dtype=float) for v in values]


def named(name: str, value: float | None) -> str:
    return f"{name} is not known" if value is None or np.isnan(value) else f"{name} = {value:.4g}"


def largest(values: np.ndarray | None) -> float | None:
    return None if values is None else float(np.max(values))


def show(value: Step | PerAgent | None) -> str:
    """A number, or the range of several."""
    if value is None or isinstance(value, Record):
        return "drawn anew each round" if value is None else str(value)
    value = value.values if isinstance(value, PerAgent) else value
    low, high = np.min(value), np.max(value)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
