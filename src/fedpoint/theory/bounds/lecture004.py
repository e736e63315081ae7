r"""What do lecture 004's theorem 1 and its lemmas promise: local SGD with decaying steps?

Steps s_t = 2/(alpha (gamma + t)), t counting gradient steps; the theorem needs sigma_k^2 and G^2 that bound the noise
and the square of every sampled gradient on the way (A3, A4). No strongly convex loss has them everywhere: they are
taken where the iterates are, E|x_k^t - w*|^2 <= radius^2. That region is found by induction (`region`), or its radius
is stated (`over_ball`), or the constants are given by hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.closed import linear
from fedpoint.core.algorithm import Algorithm, bind_algorithm
from fedpoint.core.arguments import checked
from fedpoint.core.arrays import one_per_agent
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import NonNegative, Positive, Whole
from fedpoint.core.numbers import counted
from fedpoint.core.steps import InverseTime
from fedpoint.core.types import Model
from fedpoint.problems.base import Problem
from fedpoint.theory.bounds.bound import DRIFT, EXCESS, STEP_NOISE, Bound, Need, Value, bound
from fedpoint.theory.bounds.case import Assumption, Case, Stated, arrays, named, show
from fedpoint.timing.base import Timing
from fedpoint.timing.participation import as_participation
from fedpoint.timing.schemes import ByWeight, Everyone, Uniform


@dataclass(frozen=True)
class Region:
    """E|x_k - w*|^2 <= radius^2 for every agent at every step (NaN: not said); what follows: (K,) noise, and G^2."""

    radius: float
    sigma2: np.ndarray
    G2: float
    how: str = "by induction"


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


def over_ball(case: Case, radius: float) -> Region | None:
    r"""The least constants for all models with |w - w*| <= radius, where fields are affine and their noise is known.

    With w = w* + x the noise of agent k is n + 2 c'x + x'S x and the square of its gradient n + |g|^2 + 2 (c + H g)'x +
    x'(S + H H)x, g the exact gradient at w*. Their maxima over a ball are also the maxima of their means over all
    random x with E|x|^2 <= radius^2 (one quadratic constraint: the Lagrangian dual is tight for both).
    """
    problem, fields, star = case.problem, case.problem.linear_fields(), linear.solution(case.problem)
    if fields is None or star is None:
        return None
    slope = problem.slope_noise() if case.sampled else np.zeros_like(fields[0])
    if slope is None:
        return None
    H, g = fields[0], problem.fields(star)
    n, c = np.zeros(case.K), np.zeros_like(g)
    if case.sampled:
        n = problem.noise(star)
        ends = [[problem.noise(star + sign * radius * unit) for sign in (1, -1)] for unit in np.eye(len(star))]
        c = np.stack([(up - down) / (4 * radius) for up, down in ends], axis=1)
    noise = [n_k + largest(S, c_k, radius) for n_k, S, c_k in zip(n, slope, c, strict=True)]
    both = [
        n_k + g_k @ g_k + largest(S + A @ A, c_k + A @ g_k, radius)
        for n_k, S, c_k, A, g_k in zip(n, slope, c, H, g, strict=True)
    ]
    return Region(radius, np.maximum(noise, 0.0), float(max(both)), "stated, not checked")


def largest(Q: np.ndarray, q: np.ndarray, radius: float) -> float:
    """max x'Qx + 2 q'x over |x| <= radius, Q >= 0: min over m >= lambda_max of m radius^2 + sum q_i^2/(m - lambda_i).

    Every m gives an upper bound, so that rounding errs on the safe side.

    >>> largest(np.diag([1.0, 2.0]), np.array([0.0, 1.0]), 3.0)
    24.0
    """
    values, axes = np.linalg.eigh(Q)
    along, top = (axes.T @ q) ** 2, float(values[-1])
    low, high = top, top + float(np.linalg.norm(q)) / radius  # at `high` no |x| is above radius
    for _ in range(60):
        middle = (low + high) / 2
        gap = middle - values
        blocked = bool((gap[along > 0] <= 0).any())
        if blocked or (along[gap > 0] / gap[gap > 0] ** 2).sum() > radius**2:
            low = middle
        else:
            high = middle
    gap = high - values
    return float(high * radius**2 + (along[gap > 0] / gap[gap > 0]).sum())


@dataclass(frozen=True)
class LocalSGD:
    """The theorem's numbers for a case: asked for once its assumptions hold."""

    case: Case

    @cached_property
    def schedule(self) -> InverseTime:
        step = self.case.algorithm.step
        return step if isinstance(step, InverseTime) else InverseTime(1.0, 1.0)  # all is void then

    @cached_property
    def E(self) -> int:
        return int(self.case.counts[0]) if self.case.counts is not None else 1

    @property
    def alpha(self) -> float:
        """The strong convexity that the schedule was made for."""
        return 2.0 / self.schedule.scale

    @property
    def beta(self) -> float:
        return float(np.max(self.case.delta_k))

    @cached_property
    def found(self) -> Region | None:
        """Where the iterates are, as stated or by induction."""
        stated = self.case.stated
        if stated is None:
            return region(self.case, self.alpha, float(self.schedule.value(0)))
        if stated.radius is not None:
            return over_ball(self.case, stated.radius)
        return Region(math.nan, np.asarray(stated.sigma2), float(stated.G2 or 0.0), "given")

    @property
    def region(self) -> Region:
        assert self.found is not None  # `bounded` has asked
        return self.found

    @cached_property
    def B(self) -> float:
        """sum p_k^2 sigma_k^2 + 6 beta Gamma + 8 (E-1)^2 G^2 + C, C what few participants add."""
        case, E, G2 = self.case, self.E, self.region.G2
        B = self.noise + 6 * self.beta * case.gamma + 8 * (E - 1) ** 2 * G2
        if isinstance(case.scheme, ByWeight):
            return B + 4 * E**2 * G2 / case.L
        return B + case.c * 4 * E**2 * G2 / case.L if isinstance(case.scheme, Uniform) else B

    @property
    def noise(self) -> float:
        """sum p_k^2 sigma_k^2."""
        return float(self.case.problem.weights**2 @ self.region.sigma2)

    # Assumptions.

    def method(self) -> list[Assumption]:
        case = self.case
        local = case.plain and bool(np.all(np.asarray(case.algorithm.work_of_a_step()) == 1))
        same = case.counts is not None and bool((case.counts == case.counts[0]).all())
        decays = isinstance(case.algorithm.step, InverseTime)
        return [
            ("local SGD, steps not normalised", local, type(case.algorithm).__name__),
            ("one number E of local steps", same, show(case.counts)),
            ("steps s_t = 2/(alpha (gamma + t)), t counting gradient steps", decays, f"step = {case.algorithm.step}"),
            case.independent(),
        ]

    def participation(self) -> list[Assumption]:
        case = self.case
        known = isinstance(case.scheme, Everyone | ByWeight | Uniform)
        found: list[Assumption] = [("everyone, scheme I or scheme II", known, case.who())]
        if isinstance(case.scheme, Uniform):
            text, same, detail = case.equal_weights()
            found.append(
                (f"{text} under scheme II: else weights do not sum to one, and G^2 has no bound", same, detail)
            )
        return found

    def constants(self) -> list[Assumption]:
        case = self.case
        text, strong, detail = case.agents_convex()
        found = [(f"{text} (A2)", strong, detail)]
        text, smooth, detail = case.agents_smooth()
        found += [(f"{text} (A1)", smooth, detail)]
        if case.stated is None:
            found.append(case.noise_known())
        found.append(case.minimisers_known())
        gamma = case.constants.gamma
        found.append(("Gamma = f* - sum p_k f_k* is known", True if gamma is not None else None, named("Gamma", gamma)))
        return found

    def schedule_fits(self) -> list[Assumption]:
        low, offset = float(np.min(self.case.nu_k)), self.schedule.offset
        need = max(8 * self.beta / self.alpha, self.E)
        tiny, gamma = 1 + 1e-12, f"gamma = {offset:.4g}, need {need:.4g}"
        strong = f"{self.alpha:.4g}"
        return [
            ("alpha = 2/scale is at most every agent's strong convexity", self.alpha <= low * tiny, strong),
            ("gamma = offset >= max(8 beta/alpha, E)", offset * tiny >= need, gamma),
        ]

    def bounded(self) -> list[Assumption]:
        text = "gradients are bounded in mean square where the iterates are (A3, A4)"
        stated, found = self.case.stated, self.found
        if stated is not None and stated.radius is not None:
            distance = math.sqrt(self.case.distance2 or 0.0)
            inside = distance <= stated.radius * (1 + 1e-12)
            start: Assumption = ("the start is in the stated ball", inside, f"it is {distance:.4g} from w*")
            if found is None:
                why = "over a ball they are known for affine fields with a known noise: give sigma2 and G2"
                return [start, (text, None, why)]
            return [start, (text, True, self._where(found))]
        if found is None:
            worst = float(arrays(self.case.beta2)[0].max())
            top = 2 * self.alpha / (self.alpha**2 + worst)
            return [(text, False, f"no region known: it needs a first step below {top:.3g}, a larger offset")]
        return [(text, True, self._where(found))]

    def _where(self, found: Region) -> str:
        if math.isnan(found.radius):
            return f"{found.how}: G^2 = {found.G2:.4g}"
        return f"E|x_k - w*|^2 <= {found.radius**2:.4g} at all steps, {found.how}; there G^2 = {found.G2:.4g}"

    def needs(self) -> list[Need]:
        return [self.method, self.participation, self.constants, self.schedule_fits, self.bounded]

    def length(self, rounds: ArrayLike) -> np.ndarray:
        """s_t of the last step of a round, before its merge."""
        return np.asarray(self.schedule.value(np.maximum(np.asarray(rounds) * self.E - 1, 0)))


def one_step(case: Case) -> Bound:
    s = LocalSGD(case)

    def value() -> Value:
        first, B = case.distance2, s.B
        assert first is not None  # `constants` has asked

        def curve(rounds: ArrayLike) -> np.ndarray:
            # 1 - s_t alpha = (gamma + t - 2)/(gamma + t): products telescope.
            t, gamma = np.asarray(rounds) * s.E, s.schedule.offset
            terms = 1 - 1 / (gamma + np.arange(t.max()))
            added = 4 * B / s.alpha**2 * np.concatenate([[0.0], np.cumsum(terms)])[t]
            return ((gamma - 2) * (gamma - 1) * first + added) / ((gamma + t - 2) * (gamma + t - 1))

        return Value(float(curve(case.rounds)), curve)

    return bound(
        f"local SGD step by step, after {counted(case.rounds, 'round')}",
        "004 lemma 1",
        "Delta_t+1 = (1 - s_t alpha) Delta_t + s_t^2 (B + C), with lemmas 2 and 3 for its last two terms",
        f"E|w - w*|^2 after {counted(case.rounds, 'round')}",
        s.needs(),
        value,
    )


def noise_of_a_step(case: Case) -> Bound:
    s = LocalSGD(case)
    name, formula = "local SGD, noise of a step", "sum_k p_k^2 sigma_k^2"
    return bound(name, "004 lemma 2", formula, STEP_NOISE, s.needs(), lambda: Value(s.noise))


def spread_of_a_round(case: Case) -> Bound:
    s = LocalSGD(case)

    def value() -> Value:
        def curve(rounds: ArrayLike) -> np.ndarray:
            return 4 * s.length(rounds) ** 2 * (s.E - 1) ** 2 * s.region.G2

        return Value(float(curve(case.rounds)), curve)

    name = f"local SGD, distance of the agents from their mean, at the end of round {case.rounds}"
    return bound(name, "004 lemma 3", "4 s_t^2 (E-1)^2 G^2", DRIFT, s.needs(), value)


def theorem(case: Case) -> Bound:
    s = LocalSGD(case)

    def value() -> Value:
        gamma, first = s.schedule.offset, case.distance2
        assert first is not None  # `constants` has asked
        top = s.beta / s.alpha * (2 * s.B / s.alpha + s.alpha * gamma / 2 * first)

        def curve(rounds: ArrayLike) -> np.ndarray:
            return top / np.maximum(gamma + np.asarray(rounds) * s.E - 1, 1e-300)

        return Value(float(curve(case.rounds)), curve)

    return bound(
        f"local SGD, after {counted(case.rounds, 'round')}",
        "004 theorem 1",
        "kappa/(gamma+T-1) (2(B+C)/alpha + alpha gamma/2 |x_0-x*|^2), B = sum p_k^2 sigma_k^2 + 6 beta Gamma + "
        "8 (E-1)^2 G^2, C = 4 E^2 G^2/L (scheme I), (K-L)/(K-1) times that (II), 0 (everyone)",
        EXCESS,
        s.needs(),
        value,
    )


MAKERS = (one_step, noise_of_a_step, spread_of_a_round, theorem)


@checked
def local_sgd_bounds(
    algorithm: Algorithm,
    problem: Problem,
    participation: Timing | int | None = None,
    start: Model | None = None,
    exact: bool = False,
    rounds: Whole = 1000,
    radius: Positive | None = None,
    sigma2: ArrayLike | None = None,
    G2: NonNegative | None = None,
) -> list[Bound]:
    r"""Lemmas 1 to 3 and theorem 1 of lecture 004, with the constants of A3 and A4 over a stated ball, or given.

    Where rows are few and noisy, `fp.forecast(...).bounds` finds no region that the iterates cannot leave, or a large
    one. State where they are instead: $E|x_k^t - w^\star|^2 \le \text{radius}^2$ at all steps of all agents. The least
    $\sigma_k^2$ and $G^2$ for it are computed from the rows; whether a run stays there is for its error to show.

    Args:
        algorithm: `fp.FedAvg` with a step schedule or a fixed step.
        problem: with losses.
        participation: who takes part; a number L is `fp.Uniform(L)`, None is everyone.
        start: the model at round 0; default: the problem's start.
        exact: exact fields: no sampling noise.
        rounds: the rounds after which the bounds hold.
        radius: of the ball about w*; for affine fields (least squares, streams, quadratics, full or in batches).
        sigma2, G2: the constants by hand instead: $E|\text{noise}|^2$, one or one per agent, and $E|g(x; z)|^2$.

    >>> import fedpoint as fp
    >>> A, b = [[[1.0], [2.0]], [[2.0], [1.0]]], [[1.0, 2.0], [4.0, 1.0]]
    >>> rows = fp.problems.LeastSquares(A, b, mean=True, batch=1)
    >>> steps = fp.steps.InverseTime.lecture004(strong=2.5, smooth=2.5, local_steps=2)
    >>> found = fp.theory.local_sgd_bounds(fp.FedAvg(steps, 2), rows, radius=2.0, rounds=100)
    >>> {b.lecture: round(b.value, 3) for b in found}["004 theorem 1"]
    1.849
    """
    by_hand = sigma2 is not None or G2 is not None
    if (radius is not None) and by_hand:
        raise FedpointError("give radius, or sigma2 and G2: over a ball the constants are computed")
    if by_hand and (sigma2 is None or G2 is None):
        raise FedpointError("give both sigma2 and G2")
    stated = None
    if radius is not None or sigma2 is not None:
        noise = None if sigma2 is None else one_per_agent("sigma2", sigma2, problem.agents)
        if noise is not None and not (noise >= 0).all():
            raise FedpointError("sigma2 must be at least 0")
        stated = Stated(radius, noise, G2)
    scheme = participation if isinstance(participation, Timing) else as_participation(participation)
    case = Case(bind_algorithm(algorithm, problem), problem, scheme, start, exact, rounds, stated)
    return [make(case) for make in MAKERS]
