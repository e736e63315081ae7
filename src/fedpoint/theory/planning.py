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
from typing import TYPE_CHECKING

import jax
import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.theory.krylov import Krylov
from fedpoint.theory.moments import Second
from fedpoint.theory.operator import Setting
from fedpoint.theory.steady import NoLimit, Steady

if TYPE_CHECKING:
    from fedpoint.results.forecast import Forecast

LONGEST = 1 << 20  # rounds that are looked ahead
LONGEST_PATH = 1 << 14  # the same where every round of the mean path is computed
LONGEST_WALK = 1 << 10  # the same where second moments of a large state are moved round by round
LARGE = 60  # numbers of a state, above which they are
CHUNK = 16  # rounds of such a walk between two looks
POINTS = 48  # kept of a curve


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
    times: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    values: np.ndarray = field(default_factory=lambda: np.zeros(0))
    ahead: int = 0
    settled: bool = False


class Uncomputable(FedpointError):
    """No expected curve can be had here; the message says why."""


def exactly(forecast: Forecast) -> bool:
    """Second moments come from the operator; asked without looking for a limit."""
    return bool(forecast.noise_if_settled == "exact")


# Expected curves, at single rounds.


class Powers:
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
        self.doubled = [self.space.H[:k]] if k else []

    def at(self, t: int) -> float:
        if not self.doubled:
            return 0.0
        e = np.zeros(len(self.reach))
        e[0] = 1.0
        with np.errstate(all="ignore"):
            for j in range(int(t).bit_length()):
                if j == len(self.doubled):
                    self.doubled.append(self.doubled[-1] @ self.doubled[-1])
                if t >> j & 1:
                    e = self.doubled[j] @ e
        return float(self.reach @ e)


class MeanPath:
    """|E w_t - w*|^2 as it is measured, computed as far as asked for."""

    def __init__(self, forecast: Forecast):
        self.forecast, self.x, self.values = forecast, forecast.origin, np.zeros(0)

    def at(self, t: int) -> float:
        return float(self.upto(t)[t])

    def upto(self, t: int) -> np.ndarray:
        f, s = self.forecast, self.forecast.setting
        while len(self.values) <= t:
            rounds = max(255, len(self.values))
            with np.errstate(all="ignore"):
                path = s.path(self.x, rounds)
                new = (f.measured(path - f.optimum) ** 2).sum(1)
                self.x = s.travel(self.x, rounds + 1)
            self.values = np.concatenate([self.values, new])
        return self.values


@dataclass
class Curve:
    """An expected curve that can be asked at any round up to `longest`; floor: where it ends."""

    at: Callable[[int], float]
    floor: float
    longest: int


def affine_curve(forecast: Forecast, accuracy: float) -> Curve:
    """Where the round is affine: all from one basis, begun at the start; its powers end at the floor by themselves."""
    f, s = forecast, forecast.setting
    x = f.origin
    second = Second(s, x)
    W = Steady(s, x, second, f.reading).weight(f.measured(s.read(x) - f.optimum))
    S = np.zeros((len(x) + 1,) * 2)
    S[0, 0] = 1.0
    powers = Powers(second, S, W, accuracy)
    start, end = powers.at(1), powers.at(LONGEST)
    if powers.growth > 1 + 1e-7 or not end <= 100 * max(start, powers.at(0)):
        return Curve(powers.at, math.inf, 0)
    moving = end < 0.999 * powers.at(LONGEST // 2)
    return Curve(powers.at, 0.0 if moving else end, LONGEST)


def curve_of(forecast: Forecast, accuracy: float) -> Curve:
    """For settings whose floor is known; a `NoLimit` or an infinite floor where it diverges."""
    f = forecast
    s: Setting = f.setting
    if s.problem.linear and s.affine and not f.noiseless and exactly(f):
        return affine_curve(f, accuracy)
    if f.floor is None:
        raise Uncomputable(f"its floor is not computable: {f.noise_by}")
    if not math.isfinite(f.floor):
        return Curve(lambda t: math.inf, math.inf, 0)
    path = MeanPath(f)
    if f.noiseless:
        return Curve(path.at, f.floor, LONGEST_PATH)
    steady: Steady | None = f.steady
    if steady is not None:
        start = np.zeros((steady.n, steady.n))
        start[1:, 1:] = steady.covariance
        W = steady.weight(np.zeros(steady.R.shape[0]))
        powers, end = Powers(steady.second, start, W, accuracy), float((W * start).sum())
        return Curve(lambda t: path.at(t) + end - powers.at(t), f.floor, LONGEST_PATH)
    rate, variance = f.rate_ms, f.variance
    assert rate is not None and variance is not None  # the floor is known
    return Curve(lambda t: path.at(t) + variance * (1 - rate**t), f.floor, LONGEST_PATH)


def passage(at: Callable[[int], float], target: float, limit: int) -> float:
    """A round at which the curve is at most the target and before which it was above it; inf beyond the limit."""
    low, high = 0, 1
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


# Large states: round by round.


def walks(setting: Setting) -> bool:
    """Whether second moments are moved round by round: a basis amplifies the rounding of what memories conserve."""
    return bool(setting.m0.size or setting.size > LARGE)


def longest_walk(setting: Setting) -> int:
    return LONGEST_WALK if setting.size > LARGE else LONGEST_PATH


def walk(forecast: Forecast, target: float, limit: int) -> tuple[float, str, float | None, np.ndarray]:
    """(rounds, why, level, values): the expected curve by moving second moments, as far as it can matter."""
    f, s = forecast, forecast.setting
    path = MeanPath(f)
    limit = min(limit, longest_walk(s))
    ahead = min(limit, 255)
    mean = path.upto(ahead)
    while not (mean[: limit + 1] <= target).any():  # the mean alone is a lower bound, and costs little
        if not np.isfinite(mean).all() or mean[ahead] > 4 * mean[0]:
            return math.inf, "diverges", None, np.zeros(0)
        if ahead >= limit:
            return math.inf, "slow", None, np.zeros(0)
        ahead = min(2 * ahead + 1, limit)
        mean = path.upto(ahead)
    arrived = int(np.flatnonzero(mean <= target)[0])  # the mean; the variance comes on top
    limit, asked = min(limit, 3 * arrived + 2 * CHUNK), limit  # what takes much longer waits for its variance
    affine = s.problem.linear and s.affine
    x = f.origin if affine else f.state
    if x is None:
        return math.inf, "diverges", None, np.zeros(0)
    assert x is not None and f.optimum is not None
    second = Second(s, x)
    gap = s.read(x) - f.optimum if affine else np.zeros_like(f.optimum)
    W = Steady(s, x, second, f.reading).weight(f.measured(gap))
    S = np.zeros((len(x) + 1,) * 2)
    S[0, 0] = 1.0
    found = [float(mean[0])]
    moments: np.ndarray | jax.Array = S
    while len(found) <= limit:
        moments, new = second.walk(moments, W, CHUNK)
        t = len(found)
        new = new if affine else new + path.upto(t + CHUNK)[t : t + CHUNK]
        found.extend(map(float, new))
        below = np.flatnonzero(new <= target)
        if len(below):
            rounds = t + int(below[0])
            done = np.array(found[: rounds + 1])
            return (float(rounds), "", None, done) if rounds <= limit else (math.inf, "slow", None, done)
        now = found[-1]
        if not math.isfinite(now) or now > 100 * found[0]:
            return math.inf, "diverges", None, np.zeros(0)
        before = found[-1 - CHUNK // 2]
        if len(found) > arrived + CHUNK and now > 0.98 * before:  # the mean is there, the variance stands still
            return math.inf, "diverges" if now > 1.2 * before else "floor", now, np.array(found)
    return math.inf, "slow" if limit == asked else "floor", found[-1], np.array(found)


def unbiased(forecast: Forecast) -> bool:
    """Whether w* stays where it is: then no curve settles above it. Methods that remember are taken to be so."""
    s, w = forecast.setting, forecast.optimum
    assert w is not None
    if s.m0.size or s.u0.size != len(w):
        return True
    moved = np.abs(s.step(w) - w).max()
    return bool(moved <= 1e-9 * (1 + np.abs(w).max()))


def follow(forecast: Forecast, target: float, limit: int) -> tuple[float, str, float | None, np.ndarray]:
    """(rounds, why, level, values) where nothing is random: the path itself is the curve.

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
            return (float(rounds), "", None, new[: rounds + 1]) if rounds <= limit else (math.inf, "slow", None, new)
        if not np.isfinite(new).all() or new[-1] > 4 * new[0]:
            return math.inf, "diverges", None, np.zeros(0)
        early, middle, late = new[-1 - CHUNK], new[-1 - CHUNK // 2], new[-1]
        pace = math.log(late / middle) / (CHUNK // 2)
        if len(found) > limit or math.log(late / target) + pace * (limit + 1 - len(found)) > 0:
            if unbiased(f):
                return math.inf, "slow", None, new
            bend = (late - middle) - (middle - early)  # Aitken: where a curve with one decaying part ends
            end = late - (late - middle) ** 2 / bend if bend > 0 else late
            return math.inf, "floor" if end > target else "slow", float(max(end, 0.0)), new


# One step, and the best one.


def attempt(forecast: Forecast, step: float, target: float, limit: int) -> Trial:
    """Does this step reach the target within the limit, and when?"""
    f, s = forecast, forecast.setting
    if s.adaptive or s.scheduled:
        raise Uncomputable(f"its floor is not computable: {f.noise_by}")
    try:
        silent = f.noiseless and s.size > LARGE
        if silent or (walks(s) and not f.noiseless and exactly(f)):
            rounds, why, level, values = (follow if silent else walk)(f, target, limit)
            times = thinned(len(values) - 1) if len(values) else np.zeros(0, int)
            value = float(values[int(rounds)]) if math.isfinite(rounds) else math.nan
            ahead = min(limit, LONGEST_PATH if silent else longest_walk(s))
            return Trial(step, rounds, why, level, value, times, values[times], ahead)
        curve = curve_of(f, 1e-4 * target)
    except NoLimit:
        return Trial(step, math.inf, "diverges")
    if not math.isfinite(curve.floor):
        return Trial(step, math.inf, "diverges")
    if curve.floor >= target:
        return Trial(step, math.inf, "floor", curve.floor, settled=True)
    ahead = min(limit, curve.longest)
    rounds = passage(curve.at, target, ahead)
    if not math.isfinite(rounds):
        why = "diverges" if curve.at(ahead) > curve.at(0) else "slow"  # too slowly for its growth to be seen
        return Trial(step, rounds, why, curve.floor if why == "slow" else None, ahead=ahead)
    times = thinned(int(rounds))
    values = np.array([curve.at(int(t)) for t in times])
    return Trial(step, rounds, "", curve.floor, float(values[-1]), times, values)


def best_step(
    evaluate: Callable[[float], Trial], guess: float, target: float, most: int = 12
) -> tuple[Trial, list[Trial]]:
    """The step that reaches the target in the fewest rounds, and all trials on the way; of equals, the one that gets
    furthest. `guess` is where to look first.

    First some step that reaches it: shorter when it diverges or settles too high (its level is about proportional to
    the step), longer when it is slow. Then up or down while that helps, and a last look at both sides.
    """
    trials: list[Trial] = []

    def look(step: float) -> Trial:
        trials.append(evaluate(step))
        return trials[-1]

    low, high, step = 0.0, math.inf, guess
    best = look(step)
    while best.why and len(trials) < most:
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
    if best.why:
        return best, trials
    rises, factor = False, 1.6
    while len(trials) < most and best.step * factor < high:
        other = look(best.step * factor)
        if other.rounds < best.rounds:
            best, rises, factor = other, True, min(2 * factor, 16.0) if other.rounds < best.rounds / 1.5 else factor
            continue
        high = min(high, other.step)
        if factor <= 1.6:
            break
        factor = max(1.6, factor / 4)
    factor = 1.6
    while not rises and len(trials) < most and best.step / factor > low:
        other = look(best.step / factor)
        if not other.rounds < best.rounds:
            low = other.step
            break
        best, high = other, best.step
    for side in (1.25, 0.8):
        step = best.step * side
        if len(trials) < most and low < step < high and best.rounds > 1:
            other = look(step)
            if other.rounds < best.rounds:
                break
    reached = [trial for trial in trials if not trial.why]
    return min(reached, key=lambda t: (t.rounds, math.inf if math.isnan(t.value) else t.value)), trials


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
