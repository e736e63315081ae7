"""With which step is a target reached soonest? Expected curves looked at only where needed, and a search over steps.

A round's step trades speed for noise: longer steps get there sooner and settle higher. The first round at which the
expected curve is below a target is found without drawing the curve: where the state is small, from powers of the
second-moment operator in a Krylov basis; where agents remember much, by moving the second moments round by round,
stopped as soon as the answer cannot matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.theory.affine_rounds import Powers, Rounds, Work
from fedpoint.theory.krylov import Krylov
from fedpoint.theory.moments import Second
from fedpoint.theory.operator import PATH, Setting
from fedpoint.theory.outlook import Gauge, Law
from fedpoint.theory.powers import Squarings
from fedpoint.theory.quadratic_forms import first_round, quantile
from fedpoint.theory.steady import NoLimit, Steady
from fedpoint.timing.base import Moments

if TYPE_CHECKING:
    from fedpoint.results.forecast import Forecast

LONGEST = 1 << 20  # rounds that are looked ahead
FOREVER = 1 << 30  # rounds after which slow growth shows
LONGEST_PATH = 1 << 14  # the same where every round of the mean path is computed
LONGEST_WALK = 1 << 10  # the same where second moments of a large state are moved round by round
CLOSELY = 64  # rounds that are looked at one by one: a curve may pass below the target before it settles above it
WORTH = 0.02  # of the rounds, that another step should save, or one round
NARROW, WIDE = 1.01, 1.25  # ratios of steps, below which the search for the best one ends: few rounds, and many
LOOKS = 12  # steps that are tried until one reaches the target at all
EARLY = 8  # rounds at which curves of different steps are compared
FEW = 20  # rounds, of which one is worth a closer look
DIPS = np.geomspace(1 / 3, 3, 16)  # times the best step, where curves without noise may have another dip
LARGE = 60  # numbers of a state, above which they are
SMALL = 200  # numbers of a covariance's rows, up to which a round of it takes little
CHUNK = 16  # rounds of such a walk between two looks
POINTS = 48  # kept of a curve
QUANTILE = 1e-4  # relative accuracy of quantiles, which are told as much higher


@dataclass(frozen=True)
class Trial:
    """What one step does: the first round at or below the target, or why there is none within the limit.

    why: "" when reached; "diverges", "floor" (settles above the target), "slow" (not within the limit).
    level: where it settles, as far as known. times, values: the expected curve up to there, thinned.
    ahead: how many rounds were looked ahead. settled: the level is the floor itself, not the last round looked at.
    """

    step: float
    rounds: float
    why: str = ""
    level: float | None = None
    value: float = math.nan
    before: float = math.nan  # the expected curve one round earlier
    times: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    values: np.ndarray = field(default_factory=lambda: np.zeros(0))
    ahead: int = 0
    settled: bool = False
    target: float = math.nan
    early: np.ndarray = field(default_factory=lambda: np.zeros(0))  # the expected curve from round 1 on, a few rounds
    last: float = math.inf  # of one that does not get there: how low it is at the last round that matters, about

    def value_at(self, round: int) -> float:
        """The expected curve at an early round; inf where it is not known."""
        return float(self.early[round - 1]) if round <= len(self.early) else math.inf

    @property
    def passed(self) -> float:
        """When the curve passes the target, between two rounds too: how far a step is from saving another round."""
        if not 0 < self.value <= self.target < self.before:
            return self.rounds
        return self.rounds - 1 + math.log(self.before / self.target) / math.log(self.before / self.value)


MEANS_ONLY = "how far single runs spread is not known: only their mean is forecast here"


class Uncomputable(FedpointError):
    """No expected curve can be had here; the message says why."""


class Assured(NamedTuple):
    """What is to be at most the target: not the expected error, but what a single run stays below with a confidence of
    at least a half, models taken as normal around their mean."""

    confidence: float
    target: float

    def __call__(self, law: Law) -> float:
        """That error; far above the target about that, as if it were normal: a median is within one standard deviation
        of its mean, so that it does lie above."""
        mean, deviation = law.mean, law.deviation
        if not mean - deviation <= 2 * self.target:
            return mean + NormalDist().inv_cdf(self.confidence) * deviation
        return (1 + QUANTILE) * quantile(law, self.confidence, QUANTILE)


def exactly(forecast: Forecast) -> bool:
    """Second moments come from the operator; asked without looking for a limit."""
    return bool(forecast.noise_if_settled == "exact")


# Expected curves, at single rounds.


class KrylovPowers:
    """<W, A^t S> at any t: a Krylov basis grown until the values at t = 1, 2, 4, ... stand still."""

    def __init__(self, apply: Callable[[np.ndarray], np.ndarray], S: np.ndarray, W: np.ndarray, accuracy: float):
        self.space, last, before = Krylov(apply, S), None, 0.0
        while True:
            self.space.extend(self.space.steps + 10)
            self._set(W)
            values = np.array([self.at(1 << j) for j in range(21)])
            self.growth = float(np.abs(self.space.ritz()).max())  # per round, 1 where it settles
            if self.space.closed or self.space.steps >= min(self.space.most, 240):
                return
            if last is not None and np.isfinite(values).all():
                with np.errstate(all="ignore"):
                    if (np.abs(values - last) <= accuracy + 1e-6 * np.abs(values)).all():
                        return
            if self.growth > 1.01 and abs(self.growth - before) < 1e-3:  # it diverges, whatever the rest says
                return
            last, before = values, self.growth

    def _set(self, W: np.ndarray) -> None:
        k = self.space.steps
        self.reach = self.space.size * (self.space.basis[:k] @ W.ravel()) if self.space.size else np.zeros(k)
        self.power = Squarings(self.space.H[:k])

    def at(self, t: int) -> float:
        return float(self.reach @ self.power(t, np.eye(1, len(self.reach))[0]))


class MeanPath:
    """|E w_t - w*|^2 as it is measured, computed as far as asked for."""

    def __init__(self, forecast: Forecast):
        self.forecast, self.x, self.values = forecast, forecast.origin, np.zeros(0)

    def at(self, t: int) -> float:
        return float(self.upto(t)[t])

    def upto(self, t: int) -> np.ndarray:
        f, s = self.forecast, self.forecast.setting
        while len(self.values) <= t:
            with np.errstate(all="ignore"):
                if not len(self.values):
                    models = s.read(self.x)[None]
                else:
                    models, self.x = s.stretch(self.x, len(self.values) - 1, PATH)
                new = (f.measured(models - f.optimum) ** 2).sum(1)
            self.values = np.concatenate([self.values, new])
        return self.values


class ExpectedPath:
    """The expected error after any round, by the forecast's own theory; computed as far as asked for."""

    def __init__(self, forecast: Forecast):
        self.forecast, self.values = forecast, np.zeros(0)

    def at(self, t: int) -> float:
        if t >= len(self.values):
            self.values = self.forecast.curve(max(256, 2 * t))
        return float(self.values[t])


@dataclass
class Curve:
    """An expected curve that can be asked at any round up to `longest`; floor: where it ends."""

    at: Callable[[int], float]
    floor: float
    longest: int
    law: Callable[[int], Law] | None = None  # of single runs, where these are asked for


def affine_curve(forecast: Forecast, accuracy: float) -> Curve:
    """Where the round is affine: all from one basis, begun at the start; its powers end at the floor by themselves."""
    f, s = forecast, forecast.setting
    x = f.origin
    second = Second(s, x)
    W = Steady(s, x, second, f.reading).weight(f.measured(s.read(x) - f.optimum))
    S = np.zeros((len(x) + 1,) * 2)
    S[0, 0] = 1.0
    powers = KrylovPowers(second, S, W, accuracy)
    start, end = powers.at(1), powers.at(LONGEST)
    if powers.growth > 1 + 1e-7 or not end <= 100 * max(start, powers.at(0)):
        return Curve(powers.at, math.inf, 0)
    moving = end < 0.999 * powers.at(LONGEST // 2)
    return Curve(powers.at, 0.0 if moving else end, LONGEST)


def single_curve(forecast: Forecast, assured: Assured) -> Curve:
    """Of single runs, by the forecast's own theory."""
    outlook = forecast.outlook
    if isinstance(outlook, str) or forecast.without_noise:
        raise Uncomputable(f"how far single runs spread is not known: {forecast.proviso or outlook}")

    def law(round: int | None) -> Law:
        found = outlook.law(round)
        if found is None:
            raise Uncomputable(MEANS_ONLY)
        return found

    return Curve(lambda t: assured(law(t)), assured(law(None)), LONGEST_PATH, law)


def curve_of(forecast: Forecast, accuracy: float, assured: Assured | None = None) -> Curve:
    """For settings whose floor is known; a `NoLimit` or an infinite floor where it diverges."""
    f = forecast
    s: Setting = f.setting
    last = f.burn_in is None  # the last model is read, not a running mean
    if assured is None and last and s.problem.linear and s.affine and not f.noiseless and exactly(f):
        return affine_curve(f, accuracy)
    if assured is not None and f.noise_if_settled == "sampled":
        raise Uncomputable(MEANS_ONLY)
    if f.floor is None:
        raise Uncomputable(f"its floor is not computable: {f.noise_by}")
    if not math.isfinite(f.floor):
        return Curve(lambda t: math.inf, math.inf, 0)
    if f.noiseless and last:
        return Curve(MeanPath(f).at, f.floor, LONGEST_PATH)
    if assured is not None and not f.noiseless:
        return single_curve(f, assured)
    return Curve(ExpectedPath(f).at, f.floor, LONGEST_PATH)


def passage(at: Callable[[int], float], target: float, limit: int) -> float:
    """The first round at which the curve is at most the target, as far as rounds are looked at one by one; beyond
    them one before which it was above it. inf beyond the limit."""
    first = next((t for t in range(1, min(limit, CLOSELY) + 1) if at(t) <= target), None)
    if first is not None:
        return float(first)
    low, high = min(limit, CLOSELY), min(limit, 2 * CLOSELY)
    while at(high) > target:
        if high >= limit:
            return math.inf
        low, high = high, min(2 * high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle) <= target else (middle, high)
    return float(high)


def thinned(last: int) -> np.ndarray:
    """Rounds from 0 to the last, close together at first."""
    return np.unique(np.r_[0, np.geomspace(1, max(last, 1), POINTS).round().astype(int)])


def powers_curve(powers: Powers, assured: Assured | None = None) -> Curve:
    """Where agents remember nothing: at any round."""
    high, half, end = 100 * max(powers.at(0), powers.at(1)), powers.at(LONGEST // 2), powers.at(LONGEST)
    grows = not end <= high or (end > 1.001 * half and not powers.at(FOREVER) <= high)
    if grows:
        return Curve(powers.at, math.inf, 0)
    moving = end < 0.999 * half
    if assured is not None:
        floor = 0.0 if moving else assured(powers.law(LONGEST))
        return Curve(lambda t: assured(powers.law(t)), floor, LONGEST, powers.law)
    return Curve(powers.at, 0.0 if moving else end, LONGEST)


# Large states: round by round.


def walks(setting: Setting) -> bool:
    """Whether second moments are moved round by round: a basis amplifies the rounding of what memories conserve."""
    return bool(setting.m0.size or setting.size > LARGE)


class ByOperator:
    """The expected curve from second moments of the whole state, moved by the compiled round."""

    def __init__(self, forecast: Forecast):
        self.forecast, self.path = forecast, MeanPath(forecast)
        self.longest = LONGEST_WALK if forecast.setting.size > LARGE else LONGEST_PATH
        self._moments: tuple[Second, np.ndarray, np.ndarray | jax.Array] | None = None

    def upto(self, t: int) -> np.ndarray:
        """The mean's part of the error after rounds 0 .. t, at least."""
        return self.path.upto(t)

    def more(self, rounds: int) -> np.ndarray:
        """The expected error after each of the next rounds."""
        second, W, S = self._moments or self._begin()
        S, values = second.walk(S, W, rounds)
        self._moments = second, W, S
        return values

    def _begin(self) -> tuple[Second, np.ndarray, np.ndarray]:
        f, s, x = self.forecast, self.forecast.setting, self.forecast.origin
        second = Second(s, x)
        W = Steady(s, x, second, f.reading).weight(f.measured(s.read(x) - f.optimum))
        S = np.zeros((len(x) + 1,) * 2)
        S[0, 0] = 1.0
        return second, W, S


class ByRounds:
    """The same from affine rounds whose agents' work is known."""

    def __init__(self, work: Work, known: Known, assured: Assured | None = None):
        self.still, self.assured, self._done = known.still, assured, 0
        self.rounds, self._ahead = (Rounds(work, known.moments, known.gauge) for _ in range(2))
        self._means = [self._ahead.mean_error]
        self.longest = LONGEST_PATH if len(self.rounds.spread.C) <= SMALL else LONGEST_WALK

    def upto(self, t: int) -> np.ndarray:
        with np.errstate(all="ignore"):
            while len(self._means) <= t:
                self._ahead.step_mean(self._ahead.outputs())
                self._means.append(self._ahead.mean_error)
        return np.array(self._means)

    def more(self, rounds: int) -> np.ndarray:
        if self.still:
            self._done += rounds
            return self.upto(self._done)[self._done - rounds + 1 : self._done + 1]
        with np.errstate(all="ignore"):
            return np.array([self._next() for _ in range(rounds)])

    def _next(self) -> float:
        expected = self.rounds.advance()
        return expected if self.assured is None else self.assured(self.rounds.law)


class Walked(NamedTuple):
    """A curve that was followed round by round: see `Trial`."""

    rounds: float
    why: str
    level: float | None = None
    values: np.ndarray = np.zeros(0)
    last: float = math.inf


def walk(by: ByOperator | ByRounds, target: float, limit: int) -> Walked:
    """The expected curve round by round, as far as it can matter."""
    limit = min(limit, by.longest)
    ahead = min(limit, 63)
    mean = by.upto(ahead)
    while not (mean[: limit + 1] <= target).any():  # the mean alone is a lower bound, and costs little
        if not np.isfinite(mean).all() or mean[ahead] > 4 * mean[0]:
            return Walked(math.inf, "diverges")
        end = _at_this_pace(mean[: ahead + 1], limit)
        if ahead >= limit or end > target:
            return Walked(math.inf, "slow", last=end)
        ahead = min(2 * ahead + 1, limit)
        mean = by.upto(ahead)
    arrived = int(np.flatnonzero(mean <= target)[0])  # the mean; the variance comes on top
    limit, asked = min(limit, 3 * arrived + 2 * CHUNK), limit  # what takes much longer waits for its variance
    found = [float(mean[0])]
    while len(found) <= limit:
        new = by.more(min(CHUNK, limit + 1 - len(found)))
        t = len(found)
        found.extend(map(float, new))
        below = np.flatnonzero(new <= target)
        if len(below):
            rounds = t + int(below[0])
            return Walked(float(rounds), "", None, np.array(found[: rounds + 1]))
        now = found[-1]
        if not math.isfinite(now) or now > 100 * found[0]:
            return Walked(math.inf, "diverges")
        before = found[-1 - min(CHUNK // 2, len(found) - 1)]
        if len(found) > arrived + CHUNK and now > 0.98 * before:  # the mean is there, the variance stands still
            why = "diverges" if now > 1.2 * before else "floor"
            return Walked(math.inf, why, now, np.array(found), now)
    return Walked(math.inf, "slow" if limit == asked else "floor", found[-1], np.array(found), found[-1])


def _at_this_pace(mean: np.ndarray, limit: int) -> float:
    """Where the mean's part of an error is at the limit, at its present pace, which only slackens."""
    stretch = max(len(mean) // 4, 1)
    if not 0 < mean[-1] <= mean[-1 - stretch] or len(mean) > limit:
        return float(mean[-1]) if len(mean) > limit else 0.0
    pace = math.log(mean[-1] / mean[-1 - stretch]) / stretch
    return float(mean[-1]) * math.exp(max(pace * (limit + 1 - len(mean)), -700.0))


def unbiased(forecast: Forecast) -> bool:
    """Whether w* stays where it is: then no curve settles above it. Methods that remember are taken to be so."""
    s, w = forecast.setting, forecast.optimum
    assert w is not None
    if s.m0.size or s.u0.size != len(w):
        return True
    moved = np.abs(s.step(w) - w).max()
    return bool(moved <= 1e-9 * (1 + np.abs(w).max()))


def follow(forecast: Forecast, target: float, limit: int) -> Walked:
    """Where nothing is random: the path itself is the curve.

    It is gone along until it is below the target, grows, or until its present pace does not bring it there within the
    limit: distances are sums of decaying parts, the slowest of which remain, so that the pace only slackens.
    """
    f, s = forecast, forecast.setting
    limit = min(limit, LONGEST_PATH)
    x, found = f.origin, [float((f.measured(s.read(f.origin) - f.optimum) ** 2).sum())]
    while True:
        with np.errstate(all="ignore"):
            models, x = s.stretch(x, len(found) - 1, CHUNK)
            found.extend(map(float, (f.measured(models - f.optimum) ** 2).sum(1)))
        new = np.array(found)
        below = np.flatnonzero(new <= target)
        if len(below):
            rounds = int(below[0])
            if rounds <= limit:
                return Walked(float(rounds), "", None, new[: rounds + 1])
            return Walked(math.inf, "slow", None, new, float(new[limit]))
        if not np.isfinite(new).all() or new[-1] > 4 * new[0]:
            return Walked(math.inf, "diverges")
        early, middle, late = new[-1 - CHUNK], new[-1 - CHUNK // 2], new[-1]
        pace = math.log(late / middle) / (CHUNK // 2)
        at_limit = float(late) * math.exp(max(pace * (limit + 1 - len(found)), -700.0))
        if len(found) > limit or at_limit > target:
            if unbiased(f):
                return Walked(math.inf, "slow", None, new, at_limit)
            bend = (late - middle) - (middle - early)  # Aitken: where a curve with one decaying part ends
            end = float(max(late - (late - middle) ** 2 / bend if bend > 0 else late, 0.0))
            return Walked(math.inf, "floor" if end > target else "slow", end, new, at_limit)


# One step, and the best one.


class Known(NamedTuple):
    """What is known of affine rounds beside the work of agents: who takes part, what is measured, and whether nothing
    is random."""

    moments: Moments
    gauge: Gauge
    still: bool


def attempt_affine(
    work: Work, known: Known, step: float, target: float, limit: int, confidence: float | None = None
) -> Trial:
    """Does this step reach the target within the limit, and when? Where rounds are affine."""
    assured = None if confidence is None or known.still else Assured(confidence, target)
    if work.remembers:
        by = ByRounds(work, known, assured)
        return _walked(step, target, min(limit, by.longest), walk(by, target, limit))
    return _passing(powers_curve(Powers(work, known.moments, known.gauge), assured), step, target, limit, assured)


def settled(work: Work, known: Known) -> float | None:
    """Where the expected error of affine rounds settles, to four digits; None where that takes too many rounds."""
    by, chunk, last = ByRounds(work, known), 4 * CHUNK, [math.inf, math.inf]
    for _ in range(0, by.longest, chunk):
        now = float(by.more(chunk)[-1])
        before, change = last[1] - last[0], now - last[1]
        last = [last[1], now]
        if not math.isfinite(now):
            return math.inf
        ratio = change / before if before and math.isfinite(before) else 1.0
        rest = change * ratio / (1 - ratio) if 0 <= ratio < 1 else 0.0 if abs(change) < 1e-9 * now else math.inf
        if abs(rest) < 1e-3 * now:
            return now + rest
    return None


def attempt(forecast: Forecast, step: float, target: float, limit: int, confidence: float | None = None) -> Trial:
    """Does this step reach the target within the limit, and when? With a confidence: does a single run?"""
    f, s = forecast, forecast.setting
    assured = None if confidence is None or f.noiseless else Assured(confidence, target)
    if s.scheduled or (s.adaptive and not f.noiseless):
        raise Uncomputable(f"its floor is not computable: {f.noise_by}")
    try:
        if f.noiseless and s.size > LARGE and f.burn_in is None:
            return _walked(step, target, min(limit, LONGEST_PATH), follow(f, target, limit))
        if walks(s) and not f.noiseless and exactly(f) and assured is None and f.burn_in is None:
            by = ByOperator(f)
            return _walked(step, target, min(limit, by.longest), walk(by, target, limit))
        return _passing(curve_of(f, 1e-4 * target, assured), step, target, limit, assured)
    except NoLimit:
        return Trial(step, math.inf, "diverges")


def _passing(curve: Curve, step: float, target: float, limit: int, assured: Assured | None = None) -> Trial:
    """The trial of a curve that may be asked anywhere."""
    if not math.isfinite(curve.floor):
        return Trial(step, math.inf, "diverges")
    above = curve.floor >= target
    ahead = min(limit, CLOSELY if above else curve.longest)
    rounds = passage(curve.at, target, ahead) if assured is None else _assured_round(curve, assured, ahead)
    early = np.array([curve.at(t) for t in range(1, EARLY + 1)])
    last = curve.at(ahead)
    if above and not math.isfinite(rounds):
        return Trial(
            step,
            math.inf,
            "floor",
            curve.floor,
            settled=True,
            early=early,
            last=min(last, curve.floor) if limit > ahead else last,
        )
    if not math.isfinite(rounds):
        why = "diverges" if curve.at(ahead) > curve.at(0) else "slow"  # too slowly for its growth to be seen
        slow = curve.floor if why == "slow" else None
        return Trial(step, rounds, why, slow, ahead=ahead, early=early, last=last)
    times = thinned(int(rounds))
    values = np.array([curve.at(int(t)) for t in times])
    before = curve.at(int(rounds) - 1)
    reached = float(values[-1])
    return Trial(step, rounds, "", curve.floor, reached, before, times, values, target=target, early=early)


def _assured_round(curve: Curve, assured: Assured, limit: int) -> float:
    """The first round after which a single run is at or below the target with the confidence; inf beyond the limit."""
    assert curve.law is not None
    found = first_round(curve.law, assured.target, assured.confidence, limit)
    return math.inf if found is None else float(max(found, 1))


def _walked(step: float, target: float, ahead: int, found: Walked) -> Trial:
    """The trial of a curve that was followed round by round."""
    rounds, why, level, values, last = found
    times = thinned(len(values) - 1) if len(values) else np.zeros(0, int)
    value = float(values[int(rounds)]) if math.isfinite(rounds) else math.nan
    before = float(values[int(rounds) - 1]) if 1 <= rounds < math.inf else math.nan
    early = values[1 : EARLY + 1]
    return Trial(step, rounds, why, level, value, before, times, values[times], ahead, False, target, early, last)


def best_step(
    evaluate: Callable[[float], Trial],
    guess: float,
    target: float,
    most: int = 12,
    late: Callable[[], bool] = lambda: False,
    dips: bool = False,
) -> tuple[Trial, list[Trial]]:
    """The step whose curve passes the target first, and all trials on the way. `guess` is where to look first; once it
    is late, no further step is tried. dips: nothing is random, so that curves may have several dips over steps.

    First some step that reaches it: shorter when it diverges or settles too high (its level is about proportional to
    the step), longer when it is slow. Then up or down while that helps. Then beside the step that is lowest one round
    before the best one gets there, or where that is many rounds, beside the best: until steps are close together.
    """
    trials: list[Trial] = []

    def more(most: int) -> bool:
        return len(trials) < most and not late()

    def look(step: float) -> Trial:
        trials.append(evaluate(step))
        return trials[-1]

    low, high, step = 0.0, math.inf, guess
    best = look(step)
    while best.why and more(min(most, LOOKS)):
        if best.why == "slow":
            low = max(low, step)
            step = 4 * step if math.isinf(high) else math.sqrt(low * high)
        else:
            high = min(high, step)
            shrink = 0.3 if best.level is None else min(max(0.7 * target / best.level, 0.02), 0.7)
            step = step * shrink if step * shrink > low else math.sqrt(low * high)
        if high < 1.2 * low or step > 1e9 * guess:
            return best, trials
        last, best = best, look(step)
        if best.why == last.why == "floor" and best.settled and last.settled and _at_zero(last, best) >= target:
            return best, trials
        if _above([t.step for t in trials], [t.last / target for t in trials]):
            return best, trials
    if best.why:
        return best, trials
    rises, factor = False, 1.6
    while more(most) and best.step * factor < high:
        other = look(best.step * factor)
        if other.passed < best.passed:
            best, rises, factor = other, True, min(2 * factor, 16.0) if other.passed < best.passed / 1.5 else factor
            continue
        high = min(high, other.step)
        if factor <= 1.6:
            break
        factor = max(1.6, factor / 4)
    factor = 1.6
    while not rises and more(most) and best.step / factor > low:
        other = look(best.step / factor)
        if not other.passed < best.passed:
            low = other.step
            break
        best, high = other, best.step
    if dips and 1 < best.rounds <= EARLY:  # where a round is a large part of the cost
        most += len(DIPS)
        for factor in DIPS:
            if not late():
                look(best.step * float(factor))
    while more(most):
        best = min((t for t in trials if not t.why), key=lambda t: t.passed)
        sooner = math.ceil(min(best.rounds - 1, best.passed * (1 - WORTH)))
        if not sooner:
            break
        steps = [t.step for t in trials]
        if sooner <= len(best.early):
            ratios = [t.value_at(sooner) / target for t in trials]
            heights, hopeless = [math.log(r) for r in ratios], _above(steps, ratios)
        else:
            heights = [t.passed for t in trials]
            hopeless = _out_of_reach(steps, heights, float(sooner))
        between = _between(steps, heights, NARROW if best.rounds <= FEW else WIDE)
        if between is None or hopeless:
            break
        look(between)
    reached = [trial for trial in trials if not trial.why]
    return min(reached, key=lambda t: (t.rounds, math.inf if math.isnan(t.value) else t.value)), trials


def _above(steps: list[float], ratios: list[float]) -> bool:
    """Whether no step brings an error, told as a ratio to the target, below it. After a few rounds errors are about
    parabolas of the step; after many their logarithms are, of its logarithm."""
    logs = [math.log(r) for r in ratios]
    return _out_of_reach(steps, logs, 0.0) and _out_of_reach(steps, ratios, 1.0, place=lambda step: step)


def _out_of_reach(
    steps: list[float], heights: list[float], wanted: float, place: Callable[[float], float] = math.log
) -> bool:
    """Whether no step between those that were tried is as low as wanted: not even with three times what a parabola
    through the lowest and those beside it gains."""
    tried = sorted(zip(steps, heights, strict=True))
    at = min(range(len(tried)), key=lambda i: tried[i][1])
    if not 0 < at < len(tried) - 1 or not all(math.isfinite(h) for _, h in tried[at - 1 : at + 2]):
        return False
    best, low = tried[at]
    if max(best / tried[at - 1][0], tried[at + 1][0] / best) > 4:
        return False
    (a, left), (_, _), (b, right) = (
        (place(step) - place(best), height - low) for step, height in tried[at - 1 : at + 2]
    )
    bend = (right / b - left / a) / (b - a)
    tilt = left / a - bend * a
    return bool(bend > 0 and low - 3 * tilt * tilt / (4 * bend) > wanted)


def _between(steps: list[float], heights: list[float], narrow: float) -> float | None:
    """Where to look for the least height: at the vertex of a parabola through the lowest step and those beside it, or
    in the wider gap, as in a golden section. None where they are close together."""
    places = sorted(zip(steps, heights, strict=True))
    at = min(range(len(places)), key=lambda i: places[i][1])
    best = places[at][0]
    down = best / places[at - 1][0] if at else 1.6
    up = places[at + 1][0] / best if at + 1 < len(places) else 1.6
    if max(down, up) < narrow:
        return None
    if 0 < at < len(places) - 1:
        vertex = _vertex([(math.log(step / best), height) for step, height in places[at - 1 : at + 2]])
        close = 0.05 * math.log(down * up)
        if vertex is not None and abs(vertex) > close:
            return best * math.exp(vertex)
        if vertex is not None:  # it is there already: the other side of it, so that both come closer
            return best * math.exp(close if up >= down else -close)
    return best * up**0.382 if up >= down else best / down**0.382


def _vertex(points: list[tuple[float, float]]) -> float | None:
    """The lowest place of a parabola through three points, of which the middle one is at 0 and lowest."""
    (a, high), (_, low), (b, other) = points
    left, right = (high - low) / a, (other - low) / b
    if not (math.isfinite(left) and math.isfinite(right)) or right <= left:
        return None
    return (a * right - b * left) / (2 * (right - left))


def _at_zero(one: Trial, other: Trial) -> float:
    """Where floors lead as the step goes to zero, on a line through two of them: no more than where they do lead."""
    assert one.level is not None and other.level is not None
    return (other.level * one.step - one.level * other.step) / (one.step - other.step)


def frontier(curves: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """(costs, errors): the lower envelope of curves, what a cost buys at best."""
    cost, error = (np.concatenate([c[i] for c in curves]) for i in (0, 1))
    cost = np.round(cost / cost.max(), 9) * cost.max()  # expected numbers of participants have rounding errors
    order = np.lexsort((error, cost))
    cost, error = cost[order], np.minimum.accumulate(error[order])
    new = np.r_[True, error[1:] < error[:-1] * (1 - 1e-9)]
    return cost[new], error[new]
