"""What of a run can be put beside its forecast? Each comparison by itself, with its standard error."""

from __future__ import annotations

import math
from functools import cached_property

import jax
import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.precision import double
from fedpoint.engine.session import Session
from fedpoint.experiment.experiment import Experiment
from fedpoint.results.run import Run
from fedpoint.results.verdict import EXACT, POWER, Check
from fedpoint.theory.innovations import NUDGE, Innovations, Rounds, Watched, innovations
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Outlook
from fedpoint.theory.tails import FEW, relative_variance, settled_variance, square_score, student_score, sum_score
from fedpoint.verbs.forecast import prepare

CLOSED = 0.05  # of the floor, and of its root: what a second-order forecast may be off without being wrong
ON_THE_WAY = 0.10  # the same of the path
DRAWN = 0.5  # and of one whose noise was drawn at its end only
SETTLED = 0.02  # the tail begins where the expected error is this close to the floor
LOOSE = 4.0  # how far the forecast spread of a high error may be off, in which factors of a round count as normal
HEAVY = 20.0  # times the variance of a normal error's square, up to which covariances tell what a single run does
SURE = 3.0  # standard errors of a limit that is known from drawn rounds
RARE = 30.0  # times the root of the mean square: exceeded once in 900 runs at most
INVARIANT = 1e-8  # of the size of what is conserved
TINY = 1e-140  # a number whose square is still one, also divided by some
OF_FORECAST = ("limit", "floor", "path", "rate", "unbiasedness", "step", "noise", "bound")  # and not conserved


class Comparisons:
    """A run beside its forecast."""

    def __init__(self, run: Run, experiment: Experiment):
        self.run, self.experiment = run, experiment
        self.problem, self.method = experiment.problem, experiment.algorithm
        leaves = [np.asarray(a, float) for a in jax.tree.leaves(run.history)]
        self.models = np.concatenate([a.reshape(*a.shape[:2], -1) for a in leaves], axis=2)
        self.rounds = np.asarray(run.rounds)
        self.repeats = len(self.models)
        around = None
        if self.problem.convex is None:
            around = jax.tree.map(lambda a: a[:, -1].mean(0), run.history)
        self.f = prepare(experiment, around)
        self.title = self.method.card.title
        self.goal = self.method.goal

    @cached_property
    def affine(self) -> bool:
        return bool(self.problem.linear and self.f.setting.affine)

    @cached_property
    def slack(self) -> float:
        """What approximations allow, relative."""
        sampled = self.f.standard_error
        loose = 0.0 if self.affine else CLOSED + self._known_gap
        if sampled and self.f.floor:
            loose += 3 * sampled / self.f.floor
        return loose + (0.03 if self.f.setting.moments.sampled else 0.0)

    @property
    def _known_gap(self) -> float:
        """By how much a Gaussian theory differs from the second-order one, relative."""
        accuracy = self.f.accuracy
        return 0.0 if accuracy is None else abs(accuracy.floor) + 2 * accuracy.error

    @property
    def _inaccurate(self) -> str:
        """Why a forecast is not to be held against a run; empty where it is."""
        accuracy = self.f.accuracy
        return "" if accuracy is None or accuracy.good else f"the forecast is {accuracy}"

    def allowance(self, share: float) -> str:
        """What is allowed beyond standard errors, in words."""
        return "" if self.affine else f"; the forecast is of second order, so that {share:.0%} more or less is allowed"

    def checks(self) -> list[Check]:
        """All comparisons; one that cannot be made says why."""
        f = self.f
        top = float(self.run.error.max()) if self.run.has_error and not f.certain else 0.0
        if top and not TINY < top < 1 / TINY:
            raise FedpointError(
                f"the squared errors go up to {top:.0e} and their variance is beyond the floats: run it in other units"
            )
        if self._inaccurate:
            names = ("path",) if f.changes else ("path", "limit", "floor")
            return [*(Check.void(name, self._inaccurate) for name in names), *self._invariants()]
        if f.changes:
            return [*self._path(), *self._invariants()]
        if f.state is None and not f.setting.adaptive:
            return [Check.void("limit", f"the forecast has no limit: {f.reason}"), *self._invariants()]
        found = [*self._path(), *self._certain(), *self._unbiased(), *self._rounds()]
        return [*found, *self._limit(), *self._floor(), *self._rate(), *self._invariants()]

    # The tail: records from which on the expected error has settled.

    @cached_property
    def curve(self) -> np.ndarray | None:
        """The expected error at the recorded rounds; None where it is not that of the run."""
        if self.f.proviso:
            return None
        try:
            return self.f.curve(int(self.rounds[-1]))[self.rounds]
        except FedpointError:
            return None

    @cached_property
    def tail(self) -> slice | None:
        """At least the last tenth, at most the last half, of the records; None where the run has not settled."""
        if self.curve is None or self.f.diverges or self.f.floor is None:
            return None
        n = len(self.rounds)
        first = n // 2
        floor = max(self.f.floor, 1e-300)
        if self.f.noiseless:
            return slice(n - 1, n) if self.curve[-1] <= 1.01 * floor + 1e-12 * self.curve[0] else None
        while first < n - max(1, n // 10) and self.curve[first] > (1 + SETTLED) * floor:
            first += max(1, n // 20)
        return slice(first, n) if self.curve[min(first, n - 1)] <= (1 + SETTLED) * floor else None

    @property
    def _memory(self) -> float:
        """Factor per round by which the noise itself is remembered."""
        return self.f.outlook.memory if isinstance(self.f.outlook, Outlook) else 0.0

    def _effective(self, factor: float, count: int) -> float:
        """How many independent records a tail is worth when deviations decay by `factor` a round."""
        spacing = float(np.median(np.diff(self.rounds))) if len(self.rounds) > 1 else 1.0
        c = min(max(factor, 0.0), 1 - 1e-12) ** spacing
        return max(1.0, count * (1 - c) / (1 + c))

    # The comparisons

    def _limit(self) -> list[Check]:
        f, tail = self.f, self.tail
        if tail is None:
            return [Check.void("limit", self._unsettled)]
        gap = float(np.linalg.norm(f.measured(self.models[:, tail].mean((0, 1)) - self.target)))
        if f.noiseless:
            factor = (
                2.0 if f.certain else RARE
            )  # by random turns a single run may be farther off than all are on average
            near = factor * math.sqrt(max(self.curve[-1] - f.floor, 0.0))  # type: ignore[index]
            allowed = EXACT * (1 + float(np.linalg.norm(self.target))) + near
            return [Check("limit", gap <= allowed, gap, 0.0, None, f"{gap:.3g} from the forecast limit")]
        count = tail.stop - tail.start
        worth = self._effective(max(f.rate or 0.0, self._memory), count) * self.repeats
        sigma = self._spread() * max(1.0, self._seen_spread(tail) / max(self._spread().sum() / worth, 1e-300))
        drift = (0.0 if self.affine else math.sqrt(CLOSED) * 0.5 * math.sqrt(sigma.sum())) + 0.1 * math.sqrt(
            sigma.sum() / worth
        )
        drift += SURE * f.limit_error
        z = square_score(max(gap - drift, 0.0) ** 2, sigma / worth)
        words = f"the mean model is {gap:.3g} from the forecast limit"
        if not self.affine:
            words += "; the forecast is of second order, so that a part of the spread more is allowed"
        return [Check.by_score("limit", gap, 0.0, z, words)]

    def _seen_spread(self, tail: slice) -> float:
        """The squared standard error of the mean model, by the repeats: a rare large error moves one of them far."""
        if self.repeats < FEW:
            return 0.0
        means = self.f.measured(self.models[:, tail].mean(1))
        return float(means.var(0, ddof=1).sum()) / self.repeats

    @property
    def _unsettled(self) -> str:
        """Why nothing is known of a settled part."""
        f = self.f
        if f.proviso:
            return f"the forecast is not of this run ({f.proviso})"
        if self.f.floor is None:
            return f"no floor is forecast: {f.noise_by}"
        return "the run has not settled"

    @cached_property
    def target(self) -> np.ndarray:
        """The forecast limit, flattened."""
        return self.f.setting.flatten(self.f.limit)

    def _spread(self) -> np.ndarray:
        """Eigenvalues of the model's stationary covariance: forecast, or measured where it was only sampled."""
        law = self.f.outlook.law(None) if isinstance(self.f.outlook, Outlook) else None
        return np.array([self.f.variance or 0.0]) if law is None else law.weights

    def _floor(self) -> list[Check]:
        f, tail = self.f, self.tail
        if f.noiseless:
            return []
        if tail is None or not self.run.has_error or f.floor is None:
            return [Check.void("floor", self._unsettled if tail is None else self._unmeasured)]
        per_repeat = self.run.error[:, tail].mean(1)
        measured, expected = float(per_repeat.mean()), float(self.curve[tail].mean())  # type: ignore[index]
        worth = self._effective(max(f.rate_ms or 0.0, self._memory), tail.stop - tail.start) * self.repeats
        sigma, b2 = self._spread(), (f.bias or 0.0) ** 2
        theory = math.sqrt((2 * (sigma**2).sum() + 4 * b2 * sigma.max(initial=0.0)) / worth)
        seen = float(per_repeat.std(ddof=1) / math.sqrt(self.repeats)) if self.repeats >= FEW else 0.0
        heavy = settled_variance(f.rate or 0.0, f.rate_ms or 0.0, self.directions)
        tail_se = (f.variance or 0.0) * math.sqrt(
            heavy / worth
        )  # runs that are far too noisy have a large one of their own
        se = max(theory, seen, tail_se) if measured < expected else max(theory, min(seen, LOOSE * tail_se))
        se = max(se, 1e-300)
        off = max(abs(measured - expected) - self.slack * expected, 0.0)
        z = math.copysign(off / se, measured - expected)
        words = f"settles at {measured:.4g}, forecast {expected:.4g}{self.allowance(self.slack)}"
        if math.isinf(heavy):
            words += "; the mean is made of rare large errors, so that it being low says nothing"
        return [Check.by_score("floor", measured, expected, z, words, POWER * se + self.slack * expected)]

    @property
    def _unmeasured(self) -> str:
        return f"{self.goal} is not known: there is no error to compare"

    @cached_property
    def directions(self) -> float:
        """In how many directions the model fluctuates: the participation ratio of its covariance."""
        sigma = self._spread()
        return float(sigma.sum() ** 2 / (sigma**2).sum()) if (sigma > 0).any() else 1.0

    @cached_property
    def low_error(self) -> np.ndarray:
        """The forecast standard error of a mean of squared errors at the recorded rounds, by which low ones are judged.

        Few runs of which none was unlucky have a low mean and a low standard error of their own. The square of a
        deviation from the limit spreads as rates tell, and what the bias multiplies it by, like the deviation.
        """
        f, curve = self.f, self.curve
        assert curve is not None
        if f.rate is None or f.rate_ms is None or f.variance is None or not math.isfinite(f.variance):
            return np.asarray(curve * math.sqrt(2 / self.repeats))  # of a normal deviation in one direction
        start = float((f.measured(self.models[0, 0] - self.target) ** 2).sum())
        relative = relative_variance(f.rate, f.rate_ms, self.directions, start, f.variance, int(self.rounds[-1]))
        left = f.rate_ms ** self.rounds.astype(float)
        square = left * start + (1 - left) * f.variance
        beside = 2 * np.sqrt(f.bias2 * square / self.directions)
        with np.errstate(invalid="ignore"):  # nothing spreads where nothing is left of it
            spread = np.where(square > 0, square * np.sqrt(relative[self.rounds]), 0.0)
        return np.hypot(spread, beside) / math.sqrt(self.repeats)

    def _path(self) -> list[Check]:
        """The expected error on the way, at a few rounds."""
        if self.curve is None or not self.run.has_error:
            return [Check.void("path", self._no_path)]
        error = self.run.error
        n = len(self.rounds)
        at = np.unique(np.geomspace(1, n - 1, 8).round().astype(int)) if n > 1 else np.array([], int)
        if self.f.certain:
            expected, seen = self.curve[at], error[0, at]
            off = np.abs(np.sqrt(seen) - np.sqrt(expected)) / (1e-9 + math.sqrt(self.curve[0]))
            worst = int(off.argmax())
            words = f"error {seen[worst]:.4g} at round {self.rounds[at[worst]]}, forecast {expected[worst]:.4g}"
            return [Check("path", bool(off.max() <= EXACT), float(seen[worst]), float(expected[worst]), None, words)]
        if self.repeats < FEW:
            return [Check.void("path", f"a mean over {counted(self.repeats, 'repeat')} says little: {FEW} are needed")]
        mean, se = error[:, at].mean(0), error[:, at].std(0, ddof=1) / math.sqrt(self.repeats)
        se = np.where(mean < self.curve[at], np.maximum(se, self.low_error[at]), se)
        se = np.hypot(se, self.f.curve_error(int(self.rounds[-1]))[self.rounds[at]])
        slack = self.slack if self.affine else max(self.slack, DRAWN if self.f.noise_by == "sampled" else ON_THE_WAY)
        off = np.maximum(np.abs(mean - self.curve[at]) - slack * self.curve[at], 0.0)
        t = np.sign(mean - self.curve[at]) * off / np.maximum(se, 1e-12 * self.curve[at] + 1e-300)
        worst = int(np.abs(t).argmax())
        words = f"error {mean[worst]:.4g} at round {self.rounds[at[worst]]}, forecast {self.curve[at][worst]:.4g}"
        z = student_score(t[worst], self.repeats)
        return [Check.by_score("path", mean[worst], self.curve[at][worst], z, words + self.allowance(slack))]

    @property
    def _no_path(self) -> str:
        if self.f.proviso:
            return f"the forecast is not of this run ({self.f.proviso})"
        return f"no expected error is forecast: {self.f.noise_by}" if self.curve is None else self._unmeasured

    def _certain(self) -> list[Check]:
        """On a network without noise: how far the worst node is, under the schedule's bound on delays."""
        f = self.f
        if f.contraction is None:
            return []
        if not f.noiseless or f.timing.bound() is None or f.contraction.kappa is None:
            return [Check.void("bound", "no bound holds here")]
        pairs = zip(jax.tree.leaves(self.run.history), jax.tree.leaves(f.limit), strict=True)
        squares = sum(((a - b) ** 2).reshape(*a.shape[:3], -1).sum(-1) for a, b in pairs)
        far = np.sqrt(squares).max(axis=2)
        safe = f.bound(int(self.rounds[-1])).safe[self.rounds]
        over = float((far / np.maximum(safe * far[:, :1] + 1e-12, 1e-300)).max())
        return [Check("bound", over <= 1 + 1e-9, over, 1.0, None, f"at most {over:.3g} of what the contraction allows")]

    def _unbiased(self) -> list[Check]:
        """The mean model of early rounds against the expected path: weights and samples must average out."""
        f = self.f
        if f.certain or f.proviso or not self.affine or self.repeats < FEW or f.setting.adaptive:
            return []
        if f.jumps is not None and f.jumps.drawn:  # the mean is a sample's
            return []
        if self._memory:  # the mean path is another than that of expected rounds
            return []
        at = np.flatnonzero((self.rounds > 0) & (self.rounds <= 10))[:5]
        if not len(at):
            return []
        path = f.mean_path(int(self.rounds[at[-1]]))[self.rounds[at]]
        models = self.models[:, at]
        se = models.std(0, ddof=1) / math.sqrt(self.repeats)
        gap = models.mean(0) - path
        t = gap / np.maximum(se, 1e-12 * (1 + np.abs(path)))
        worst = np.unravel_index(int(np.abs(t).argmax()), t.shape)
        size = float(np.linalg.norm(gap[worst[0]]))
        words = f"the mean model of round {self.rounds[at[worst[0]]]} is {size:.3g} off its path"
        return [Check.by_score("unbiasedness", size, 0.0, student_score(t[worst], self.repeats, t.size), words)]

    # Round by round

    def _rounds(self) -> list[Check]:
        """All innovations against the forecast's own slope and covariance."""
        if self.f.noiseless:  # the path is compared to rounding, or to what turns make of it
            return []
        found = self.innovations
        if isinstance(found, str):
            return [Check.void("step", found), Check.void("noise", found)]
        noise = found.noise
        words = f"what a round adds to its expectation has {noise:.4g} times the forecast variance"
        checks = [Check.by_score("noise", noise, 1.0, sum_score(found.excess), words)]
        return [*self._step(found), *checks]

    def _step(self, found: Innovations) -> list[Check]:
        if not found.information.sum():
            return [Check.void("step", f"{self.title} has no step that could be longer or shorter")]
        error = max(math.sqrt((found.score**2).sum()), math.sqrt(found.information.sum())) / found.information.sum()
        least, z = POWER * error, sum_score(found.score)
        off, way = 100 * abs(found.delta), "longer" if found.delta > 0 else "shorter"
        words = f"{off:.2g} % {way} than forecast (standard error {100 * error:.2g} %)"
        words += f"; a step {100 * least:.2g} % off would have shown"
        return [Check.by_score("step", found.delta, 0.0, z, words, least)]

    @cached_property
    def innovations(self) -> Innovations | str:
        """Of the records, or why they are not looked at one by one."""
        f, s = self.f, self.f.setting
        if f.proviso:
            return f"the forecast is not of this run ({f.proviso})"
        if f.jumps is not None:
            return "who works is drawn in every round: rounds are not compared one by one"
        if not self.affine:
            return "the forecast is linearised: rounds are not compared one by one"
        if self._memory:
            return "samples go on along trajectories: rounds are not compared one by one"
        if f.steady is None or f.diverges or f.state is None:
            return f"rounds cannot be compared one by one: {f.reason or f.noise_by}"
        if s.moments.sampled:
            return "the schedule's moments are estimates: rounds cannot be compared one by one"
        watched = Watched([int(t) for t in self.rounds[1:]], f.origin - f.state, s.reading_at(f.state))
        heavy = settled_variance(f.rate or 0.0, f.rate_ms or 0.0, self.directions)
        if not watched.whole and heavy * self.directions > 2 * HEAVY:
            return "the forecast variance is made of rare large errors: single rounds say little of it"
        if not watched.affordable:
            return f"the state has {s.size} numbers: too many to compare rounds one by one"
        nudged = [self.method.longer(1 + sign * NUDGE) for sign in (-1, 1)]
        rounds = [Rounds.of(Setting(self.experiment.replace(algorithm=a).bind()), f.state) for a in nudged if a]
        found = innovations(
            Rounds.of(s, f.state),
            (rounds[0], rounds[1]) if rounds else None,
            watched,
            self.models[:, 1:] - self.target,
        )
        return "no round has any noise" if found is None else found

    def _rate(self) -> list[Check]:
        """The slope of log |w - limit| where nothing is random; else the path tells it."""
        f = self.f
        if not f.certain or f.proviso or f.rate is None or f.rate < 1e-3 or f.diverges:
            return []
        target = self.target
        gap = np.linalg.norm(self.models[0] - target, axis=1)
        good = np.flatnonzero(gap > 1e-9 * gap.max())
        good = good[len(good) // 2 :]
        if len(good) < 3 or self.rounds[good[-1]] - self.rounds[good[0]] < 2:
            return []
        # A short run is not yet as slow as in the end: beside the slope of the expected path over the same rounds.
        path = f.mean_path(int(self.rounds[-1]))[self.rounds]
        ahead = np.linalg.norm(path - target, axis=1)
        good = good[ahead[good] > 1e-12 * ahead.max()]
        if len(good) < 3:
            return []
        measured, expected = (
            float(np.exp(np.polyfit(self.rounds[good], np.log(far[good]), 1)[0])) for far in (gap, ahead)
        )
        ok = abs(math.log(measured / expected)) <= 0.1 * abs(math.log(expected)) + 0.01 if f.rate < 1 else None
        words = f"{measured:.5g} per round, forecast {expected:.5g}"
        if abs(expected - f.rate) > 0.01 * (1 - f.rate):
            words += f" (in the end {f.rate:.5g})"
        return [Check("rate", ok, measured, expected, None, words)]

    @double
    def _invariants(self) -> list[Check]:
        session = self.run.session
        if not isinstance(session, Session) or session.bound.merged_by:  # nobody has all memories; no sums are heard
            return []
        found = []
        hubs, memories = session.state.hub, session.settled()
        for name, left in session.algorithm.invariants(hubs, memories, self.problem.weights).items():
            size = max((float(np.abs(a).max(initial=0.0)) for a in jax.tree.leaves((hubs, memories))), default=0.0)
            gap = max(float(np.abs(np.asarray(a)).max(initial=0.0)) for a in jax.tree.leaves(left))
            ok = gap <= INVARIANT * (1 + size)
            words = f"holds to {gap:.1g}" if ok else f"is violated by {gap:.3g}"
            found.append(Check(name, ok, gap, 0.0, None, words))
        return found
