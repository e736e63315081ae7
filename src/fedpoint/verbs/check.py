"""Did it happen? `fp.check` compares a run with its forecast, and says in plain words what it finds."""

from __future__ import annotations

import dataclasses
import math
from functools import cached_property

import jax
import numpy as np

from fedpoint.algorithms import FedAvg
from fedpoint.core.algorithm import Algorithm, find
from fedpoint.core.errors import FedpointError
from fedpoint.core.precision import double
from fedpoint.core.record import values_of
from fedpoint.engine.session import Session
from fedpoint.experiment.experiment import Experiment
from fedpoint.results.run import Run
from fedpoint.results.verdict import EXACT, THRESHOLD, Check, Verdict
from fedpoint.theory.tails import relative_variance, settled_variance
from fedpoint.timing.participation import Participation, Uniform
from fedpoint.verbs.forecast import prepare

LINEARISED = 0.15  # of the floor, and of its root: what a linearised forecast may be off without being wrong
SETTLED = 0.02  # the tail begins where the expected error is this close to the floor
LOOSE = 4.0  # how far the forecast spread of a high error may be off, in which factors of a round count as normal
INVARIANT = 1e-8  # of the size of what is conserved
TINY = 1e-140  # a number whose square is still one, also divided by some
STATISTICS = ("limit", "floor", "path", "rate", "unbiasedness", "bound")  # checks of what is forecast, not conserved


def check(run: Run, claims: Algorithm | str | None = None) -> Verdict:
    """Compare a run with its forecast: limit, path, rate, floor, invariants, and on a network what is certain.

    Args:
        run: a result of `fp.run`, or of `fp.load`.
        claims: what the algorithm claims to be: a name of the catalogue, whose forecast is then made with the run's own
            hyper-parameters, or an algorithm. Default: the run's own algorithm, so that a user's own one is compared
            with what its code says.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]], noise=0.1)
    >>> bool(fp.check(fp.run(fp.Scaffold(step=0.1, local_steps=3), quad, rounds=300, repeats=8)))
    True
    """
    if not isinstance(run, Run):
        raise FedpointError(f"check needs a run (fp.run or fp.load), got {type(run).__name__}")
    if int(run.rounds[-1]) < 1:
        raise FedpointError("the run has no rounds yet: there is nothing to check")
    if run.repeat_models:
        raise FedpointError("models that only fit and predict have no forecast to check the run against")
    experiment = run.session.experiment
    start = jax.tree.map(lambda a: a[0, 0], run.history)
    algorithm = experiment.algorithm if claims is None else claimed(claims, experiment.algorithm)
    experiment = experiment.replace(algorithm=algorithm, start=start, repeats=1)
    if experiment.timing.on_clock:
        raise FedpointError(
            f"{type(experiment.timing).__name__} is worked out on a clock, event by event: there is no forecast to "
            "check the run against"
        )
    return _Examination(run, experiment).verdict()


def claimed(claims: Algorithm | str, algorithm: Algorithm) -> Algorithm:
    """The catalogue's algorithm of that name with the hyper-parameters of another."""
    if not isinstance(claims, str):
        return claims
    cls = find(claims).cls
    assert cls is not None
    names = {f.name: f for f in dataclasses.fields(cls)}
    given = {name: value for name, value in values_of(algorithm).items() if name in names}
    missing = [n for n, f in names.items() if n not in given and f.default is dataclasses.MISSING]
    if missing:
        raise FedpointError(
            f"claims={claims!r}: the run's algorithm does not say {', '.join(missing)}: "
            f"give claims=fp.{cls.__name__}(...)"
        )
    return cls(**given)


class _Examination:
    """A run beside its forecast."""

    def __init__(self, run: Run, experiment: Experiment):
        self.run, self.problem, self.method = run, experiment.problem, experiment.algorithm
        leaves = [np.asarray(a, float) for a in jax.tree.leaves(run.history)]
        self.models = np.concatenate([a.reshape(*a.shape[:2], -1) for a in leaves], axis=2)
        self.rounds = np.asarray(run.rounds)
        self.repeats = len(self.models)
        around = None
        if self.problem.convex is None:
            around = jax.tree.map(lambda a: a[:, -1].mean(0), run.history)
        self.f = prepare(experiment, around)
        self.title = self.method.card.title
        self.goal = "GTVMin's solution" if self.method.at_agents else "w*"

    @cached_property
    def affine(self) -> bool:
        return bool(self.problem.linear and self.f.setting.affine)

    @cached_property
    def slack(self) -> float:
        """What approximations allow, relative."""
        sampled = self.f.standard_error
        loose = 0.0 if self.affine else LINEARISED
        if sampled and self.f.variance:
            loose += 3 * sampled / self.f.variance
        return loose + (0.03 if self.f.setting.moments.sampled else 0.0)

    def verdict(self) -> Verdict:
        top = float(self.run.error.max()) if self.run.has_error and not self.f.noiseless else 0.0
        if top and not TINY < top < 1 / TINY:
            raise FedpointError(
                f"the squared errors go up to {top:.0e} and their variance is beyond the floats: run it in other units"
            )
        if self.f.setting.scheduled:
            checks = [*self._path(), *self._invariants()]
            words = f"follows the forecast of {self.title}, whose rounds change"
            return self._conclude(checks, words)
        if self.f.state is None and not self.f.setting.adaptive:
            raise FedpointError(f"the forecast has no limit to check against: {self.f.reason}")
        checks = [*self._path(), *self._certain(), *self._unbiased(), *self._limit(), *self._floor(), *self._rate()]
        checks += self._invariants()
        if self.f.diverges:
            return self._divergence(checks)
        return self._conclude(checks, self._where(self.f.bias))

    def _divergence(self, checks: list[Check]) -> Verdict:
        """A mean that must grow has to; a mean square grows by rare events, which few repeats may not have met."""
        last, first = (float(self.run.error[:, i].mean()) if self.run.has_error else 0.0 for i in (-1, 0))
        grew = not last <= 10 * first
        failed = {c.name for c in checks if c.ok is False}
        if self.f.rate is not None and self.f.rate >= 1 and "path" in failed and not grew:
            words = f"was to diverge ({self.f.reason}), but its error is {last:.3g} after {self.rounds[-1]} rounds"
            return Verdict(False, words, checks, self.f)
        lost = [c for c in checks if c.ok is False and c.name not in STATISTICS]
        if lost:
            return Verdict(False, self._diagnosis(lost), checks, self.f)
        words = f"was to diverge ({self.f.reason}) and {'did' if grew else 'has not yet'}"
        return Verdict(True, words, checks, self.f)

    def _where(self, bias: float | None) -> str:
        if bias is None:
            return f"ends where {self.title} should, as fast and as noisy"
        place = self.goal if bias == 0 else f"{self.title}'s fixed point, {bias:.3g} from {self.goal}"
        return f"ends at {place}, as forecast"

    def _conclude(self, checks: list[Check], good: str) -> Verdict:
        failed = [c for c in checks if c.ok is False]
        if not failed:
            settled = any(c.ok for c in checks if c.name == "limit")
            if not settled and any(c.ok for c in checks if c.name == "bound"):
                good = f"stays within what is certain under {type(self.f.timing).__name__}"
            elif not settled and any(c.ok for c in checks if c.name == "path"):
                if self.f.noiseless and any(c.ok for c in checks if c.name == "rate"):  # both to rounding
                    good = f"{self.title} does what its forecast says"
                elif not self.f.setting.scheduled:
                    good = f"follows the forecast of {self.title} so far: {self.rounds[-1]} rounds do not show its end"
            elif not settled:
                left_out = next((c.words for c in checks if c.ok is None), "nothing to compare")
                good = f"nothing contradicts the forecast, but its limit could not be compared: {left_out}"
            return Verdict(True, good, checks, self.f)
        return Verdict(False, self._diagnosis(failed), checks, self.f)

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

    def _effective(self, factor: float, count: int) -> float:
        """How many independent records a tail is worth when deviations decay by `factor` a round."""
        spacing = float(np.median(np.diff(self.rounds))) if len(self.rounds) > 1 else 1.0
        c = min(max(factor, 0.0), 1 - 1e-12) ** spacing
        return max(1.0, count * (1 - c) / (1 + c))

    # The comparisons

    def _limit(self) -> list[Check]:
        f, tail = self.f, self.tail
        if tail is None:
            return [Check("limit", None, None, None, None, "the run has not settled (or no floor is forecast)")]
        gap = float(np.linalg.norm(f.measured(self.models[:, tail].mean((0, 1)) - self.target)))
        if f.noiseless:
            near = 2 * math.sqrt(max(self.curve[-1] - f.floor, 0.0))  # type: ignore[index]
            allowed = EXACT * (1 + float(np.linalg.norm(self.target))) + near
            return [Check("limit", gap <= allowed, gap, 0.0, None, f"{gap:.3g} from the forecast limit")]
        count = tail.stop - tail.start
        worth = self._effective(f.rate or 0.0, count) * self.repeats
        sigma = self._spread()
        # |mean - limit|^2 over a sum of chi-squares with weights sigma / worth
        expected, spread = sigma.sum() / worth, math.sqrt(2 * (sigma**2).sum()) / worth
        drift = (0.0 if self.affine else LINEARISED * math.sqrt(sigma.sum())) + 0.1 * math.sqrt(expected)
        z = (max(gap - drift, 0.0) ** 2 - expected) / max(spread, 1e-300)
        # A chi-square has a longer tail than a normal: twice the threshold.
        return [Check("limit", z <= 2 * THRESHOLD, gap, 0.0, z, f"the mean model is {gap:.3g} from the forecast limit")]

    @cached_property
    def target(self) -> np.ndarray:
        """The forecast limit, flattened."""
        return self.f.setting.read(self.f.state)  # type: ignore[arg-type]

    def _spread(self) -> np.ndarray:
        """Eigenvalues of the model's stationary covariance: forecast, or measured where it was only sampled."""
        f = self.f
        if f.steady is not None and f.steady.covariance is not None:
            return np.maximum(np.linalg.eigvalsh(f.reading @ f.steady.covariance @ f.reading.T), 0.0)
        return np.array([f.variance or 0.0])

    def _floor(self) -> list[Check]:
        f, tail = self.f, self.tail
        if f.noiseless:
            return []
        if tail is None or not self.run.has_error or f.floor is None:
            return [Check("floor", None, None, f.floor, None, "the run has not settled, or no floor is forecast")]
        per_repeat = self.run.error[:, tail].mean(1)
        measured, expected = float(per_repeat.mean()), float(self.curve[tail].mean())  # type: ignore[index]
        worth = self._effective(f.rate_ms or 0.0, tail.stop - tail.start) * self.repeats
        sigma, b2 = self._spread(), (f.bias or 0.0) ** 2
        theory = math.sqrt((2 * (sigma**2).sum() + 4 * b2 * sigma.max(initial=0.0)) / worth)
        seen = float(per_repeat.std(ddof=1) / math.sqrt(self.repeats)) if self.repeats >= 8 else 0.0
        heavy = settled_variance(f.rate or 0.0, f.rate_ms or 0.0, self.directions)
        tail_se = expected * math.sqrt(heavy / worth)  # runs that are far too noisy have a large one of their own
        se = max(theory, seen, tail_se) if measured < expected else max(theory, min(seen, LOOSE * tail_se))
        se = max(se, 1e-300)
        off = max(abs(measured - expected) - self.slack * expected, 0.0)
        z = math.copysign(off / se, measured - expected)
        words = f"settles at {measured:.4g}, forecast {expected:.4g}"
        if math.isinf(heavy):
            words += "; the mean is made of rare large errors, so that it being low says nothing"
        return [Check("floor", abs(z) <= THRESHOLD, measured, expected, z, words)]

    @cached_property
    def directions(self) -> float:
        """In how many directions the model fluctuates: the participation ratio of its covariance."""
        sigma = self._spread()
        return float(sigma.sum() ** 2 / (sigma**2).sum()) if (sigma > 0).any() else 1.0

    @cached_property
    def tails(self) -> np.ndarray:
        """Var e / (E e)^2 of the squared error at the recorded rounds, as forecast: low means are judged by it.

        Few runs of which none was unlucky have a low mean and a low standard error of their own.
        """
        f = self.f
        if f.rate is None or f.rate_ms is None or f.variance is None or not math.isfinite(f.variance):
            return np.full(len(self.rounds), 2.0)  # of a normal deviation in one direction
        start, last = float(self.curve[0]), int(self.rounds[-1])  # type: ignore[index]
        return relative_variance(f.rate, f.rate_ms, self.directions, start, f.variance, last)[self.rounds]

    def _path(self) -> list[Check]:
        """The expected error on the way, at a few rounds."""
        if self.curve is None or not self.run.has_error:
            return [Check("path", None, None, None, None, self.f.proviso or "no expected error to compare with")]
        error = self.run.error
        n = len(self.rounds)
        at = np.unique(np.geomspace(1, n - 1, 8).round().astype(int)) if n > 1 else np.array([], int)
        if self.f.noiseless:
            expected, seen = self.curve[at], error[0, at]
            off = np.abs(np.sqrt(seen) - np.sqrt(expected)) / (1e-9 + math.sqrt(self.curve[0]))
            worst = int(off.argmax())
            words = f"error {seen[worst]:.4g} at round {self.rounds[at[worst]]}, forecast {expected[worst]:.4g}"
            return [Check("path", bool(off.max() <= EXACT), float(seen[worst]), float(expected[worst]), None, words)]
        if self.repeats < 8:
            return [Check("path", None, None, None, None, f"{self.repeats} repeats are too few: 8 or more")]
        mean, se = error[:, at].mean(0), error[:, at].std(0, ddof=1) / math.sqrt(self.repeats)
        tail_se = (self.curve * np.sqrt(self.tails / self.repeats))[at]
        se = np.where(mean < self.curve[at], np.maximum(se, tail_se), se)
        slack = self.slack if self.affine else max(self.slack, 0.5)  # far from the limit nothing is linear
        off = np.maximum(np.abs(mean - self.curve[at]) - slack * self.curve[at], 0.0)
        z = np.sign(mean - self.curve[at]) * off / np.maximum(se, 1e-12 * self.curve[at] + 1e-300)
        worst = int(np.abs(z).argmax())
        # A mean of few repeats has longer tails than a normal one, errors have longer tails than normal ones.
        allowed = THRESHOLD * (1 + 8 / self.repeats)
        words = f"error {mean[worst]:.4g} at round {self.rounds[at[worst]]}, forecast {self.curve[at][worst]:.4g}"
        ok = bool(np.abs(z).max() <= allowed)
        return [Check("path", ok, float(mean[worst]), float(self.curve[at][worst]), float(z[worst]), words)]

    def _certain(self) -> list[Check]:
        """On a network without noise: how far the worst node is, under the schedule's bound on delays."""
        f = self.f
        if f.contraction is None:
            return []
        if not f.noiseless or f.timing.bound() is None or f.contraction.kappa is None:
            return [Check("bound", None, None, None, None, "no bound holds here")]
        pairs = zip(jax.tree.leaves(self.run.history), jax.tree.leaves(f.limit), strict=True)
        squares = sum(((a - b) ** 2).reshape(*a.shape[:3], -1).sum(-1) for a, b in pairs)
        far = np.sqrt(squares).max(axis=2)
        safe = f.bound(int(self.rounds[-1])).safe[self.rounds]
        over = float((far / np.maximum(safe * far[:, :1] + 1e-12, 1e-300)).max())
        return [Check("bound", over <= 1 + 1e-9, over, 1.0, None, f"at most {over:.3g} of what the contraction allows")]

    def _unbiased(self) -> list[Check]:
        """The mean model of early rounds against the expected path: weights and samples must average out."""
        if self.f.noiseless or self.f.proviso or not self.affine or self.repeats < 8 or self.f.setting.adaptive:
            return []
        at = np.flatnonzero((self.rounds > 0) & (self.rounds <= 10))[:5]
        if not len(at):
            return []
        path = self.f.setting.path(self.f.origin, int(self.rounds[at[-1]]))[self.rounds[at]]
        models = self.models[:, at]
        se = models.std(0, ddof=1) / math.sqrt(self.repeats)
        gap = models.mean(0) - path
        z = gap / np.maximum(se, 1e-12 * (1 + np.abs(path)))
        allowed = (THRESHOLD + math.log10(z.size)) * (1 + 8 / self.repeats)  # many coordinates, few repeats
        worst = np.unravel_index(int(np.abs(z).argmax()), z.shape)
        words = (
            f"the mean model of round {self.rounds[at[worst[0]]]} is {np.linalg.norm(gap[worst[0]]):.3g} off its path"
        )
        size = float(np.linalg.norm(gap[worst[0]]))
        return [Check("unbiasedness", bool(np.abs(z).max() <= allowed), size, 0.0, float(z[worst]), words)]

    def _rate(self) -> list[Check]:
        """The slope of log |w - limit| where nothing is random; else the path tells it."""
        f = self.f
        if not f.noiseless or f.proviso or f.rate is None or f.rate < 1e-3 or f.diverges:
            return []
        target = self.target
        gap = np.linalg.norm(self.models[0] - target, axis=1)
        good = np.flatnonzero(gap > 1e-9 * gap.max())
        good = good[len(good) // 2 :]
        if len(good) < 3 or self.rounds[good[-1]] - self.rounds[good[0]] < 2:
            return []
        # A short run is not yet as slow as in the end: beside the slope of the expected path over the same rounds.
        path = f.setting.path(f.origin, int(self.rounds[-1]))[self.rounds]
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
        algorithm, session = self.run.algorithm, self.run.session
        if not isinstance(session, Session):  # nobody has all memories
            return []
        found = []
        hubs, memories = session.state.hub, session.settled()
        for name, left in algorithm.invariants(hubs, memories, self.problem.weights).items():
            size = max((float(np.abs(a).max(initial=0.0)) for a in jax.tree.leaves((hubs, memories))), default=0.0)
            gap = max(float(np.abs(np.asarray(a)).max(initial=0.0)) for a in jax.tree.leaves(left))
            ok = gap <= INVARIANT * (1 + size)
            words = f"holds to {gap:.1g}" if ok else f"is violated by {gap:.3g}"
            found.append(Check(name, ok, gap, 0.0, None, words))
        return found

    # What it is instead

    def _diagnosis(self, failed: list[Check]) -> str:
        names = {c.name for c in failed}
        broken = [c for c in failed if c.name not in STATISTICS]
        if broken:
            return f"{broken[0].name} {broken[0].words}: the conserved quantity is lost, and the limit with it"
        if "limit" in names:
            place = self._nearest()
            if place:
                return place
        if "floor" in names:
            c = next(c for c in failed if c.name == "floor")
            more = (c.measured or 0) > (c.expected or 0)
            why = "noisier than its samples allow: samples or participants are not independent" if more else "quieter"
            return f"{c.words}: {why}"
        if "unbiasedness" in names:
            c = next(c for c in failed if c.name == "unbiasedness")
            return f"{c.words}: weights or samples do not average out"
        if "rate" in names:
            c = next(c for c in failed if c.name == "rate")
            return f"contracts by {c.words}"
        c = failed[0]
        return f"leaves the forecast: {c.words}"

    def _nearest(self) -> str:
        """Which known point the run ends at."""
        tail = self.tail or slice(len(self.rounds) // 2, len(self.rounds))
        mean = self.models[:, tail].mean((0, 1))
        w = self.f.optimum
        if w is None:
            return ""
        spread = math.sqrt(max(self.models[:, tail].var((0, 1)).sum(), 0.0) / max(1, self.repeats)) + 1e-9
        known = [(self.goal, w), *([] if self.f.by_node else self._other_points())]
        distances = [float(np.linalg.norm(mean - point)) for _, point in known]
        best = int(np.argmin(distances))
        own = float(np.linalg.norm(mean - self.target))
        if own <= distances[best] or distances[best] > max(3 * spread, 0.2 * float(np.linalg.norm(mean - w))):
            return (
                f"does not end where {self.title} does: {np.linalg.norm(mean - w):.3g} from {self.goal}, at no point "
                "known here"
            )
        name = known[best][0]
        away = float(np.linalg.norm(mean - w))
        if name == self.goal:
            return f"ends at {name}, where {self.title} would end {self.f.bias:.3g} from it"
        why = (
            "the control variates have no effect" if name.startswith("FedAvg") and self.f.bias == 0 else "not forecast"
        )
        return f"ends at {name}, {away:.2g} from w*: {why}"

    def _other_points(self) -> list[tuple[str, np.ndarray]]:
        """Where runs with usual mistakes end."""
        a, K = self.method, self.problem.agents
        found: list[tuple[str, Algorithm, Participation | None]] = []
        if a.step is not None and a.local_steps is not None and not a.scheduled():
            biased = FedAvg(a.step, a.local_steps, bool(values_of(a).get("normalise", False)))
            found.append(("FedAvg's biased point", biased, None))
        if not np.allclose(self.problem.weights, 1 / K):
            found.append(("the solution with equal weights", FedAvg(1e-3), Uniform(K, plain=True)))
        points = [(name, self._limit_of(method, who)) for name, method, who in found]
        return [(name, point) for name, point in points if point is not None]

    def _limit_of(self, algorithm: Algorithm, participation: Participation | None) -> np.ndarray | None:
        """A point to compare with, where there is one."""
        try:
            f = prepare(Experiment(algorithm, self.problem, participation=participation, exact=True))
        except FedpointError:
            return None
        return None if f.state is None else f.setting.read(f.state)
