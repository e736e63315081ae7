"""Which step reaches a target soonest, where forecasts take longer than runs? Several steps at once, run a few times.

A forecast of a large model looks for where it settles before it says anything of the first rounds; runs begin with
these. All steps of a sweep see the same samples and participants, so that little but the step tells them apart. What is
promised comes from other runs than those that chose the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist

import jax
import numpy as np

from fedpoint.core.algorithm import Algorithm, bind_algorithm
from fedpoint.engine.session import Session
from fedpoint.engine.state import Records
from fedpoint.experiment import Experiment
from fedpoint.results.plan import Goal
from fedpoint.theory.planning import EARLY, LONGEST_PATH, Trial, thinned
from fedpoint.verbs.plan.measure import least_loss
from fedpoint.verbs.sweep import names_of, traced

STEPS, REPEATS = 8, 3  # of a sweep
AGAIN = STEPS * REPEATS  # other runs, from which a promise comes
FAR, NEAR = 3.0, 1.5  # ratios of its steps, where nothing is known and around one that was good elsewhere
FAR_OFF, OFF = 2.0, 1.1  # times the target, above which no step between those of such a sweep reaches it
STEEP = 0.85  # ratio of neighbours, below which a longer or shorter step than all is looked at
SWEEPS = 4  # of one setting, at most
ATTEMPTS, SHORTER = 3, 0.7  # to promise a step, and by how much it is shorter each time
FIRST, LAST = 8, 128  # rounds until curves are looked at
ROOM = 1 << 28  # bytes of models that are kept at once
PATIENCE = 32  # rounds, before which no curve is given up as flat


@dataclass(frozen=True)
class Seen:
    """Curves of a sweep: (steps, repeats, rounds + 1). doubt: standard errors that are added to their means, where a
    step is chosen: the lowest of several means of a few runs is so by luck too. confidence: what is to be at the target
    is not the mean over runs, but what so large a share of single runs stays below."""

    steps: np.ndarray
    curves: np.ndarray
    target: float
    doubt: float = 0.0
    confidence: float | None = None

    @cached_property
    def levels(self) -> np.ndarray:
        """(steps, rounds + 1): the mean, or what a further run stays below with the confidence, as if errors were
        normal."""
        repeats = self.curves.shape[1]
        with np.errstate(all="ignore"):
            means, deviations = self.curves.mean(1), self.curves.std(1)
            levels = means + self.doubt * deviations / math.sqrt(max(repeats - 1, 1))
            if self.confidence is not None:
                levels = levels + self._beyond(means, deviations)
        return np.where(np.isfinite(levels), levels, math.inf)

    def _beyond(self, means: np.ndarray, deviations: np.ndarray) -> np.ndarray:
        """How far above the mean; where several steps are run a few times, they have one relative deviation."""
        assert self.confidence is not None
        repeats, freedom = self.curves.shape[1], self.curves.shape[1] - 1
        if len(self.steps) > 1:
            usual = np.nanmedian(deviations / means, axis=0) / (1 - 2 / (9 * freedom)) ** 1.5  # Wilson and Hilferty
            deviations, freedom = means * usual, freedom * len(self.steps)
        z = NormalDist().inv_cdf(self.confidence)
        z += (z**3 + z) / (4 * freedom)  # Student's law, to first order
        return np.asarray(z * deviations * math.sqrt((repeats + 1) / (repeats - 1)))

    def first(self, rounds: int) -> Seen:
        return replace(self, curves=self.curves[:, :, : rounds + 1])

    @property
    def reached(self) -> bool:
        return bool((self.levels[:, -1] <= self.target).any())

    @property
    def best(self) -> int:
        """The step that is lowest at the end."""
        return int(self.levels[:, -1].argmin())

    @property
    def lowest(self) -> float:
        return float(self.levels[self.best, -1])

    @property
    def falls_at_edge(self) -> bool:
        """Whether the lowest is the first or the last step, and much lower than the one beside it."""
        beside = {0: 1, len(self.steps) - 1: -2}.get(self.best)
        return beside is not None and self.lowest < STEEP * float(self.levels[beside, -1])

    def hopeless(self, limit: int) -> bool:
        """Whether no curve gets to the target within the limit: each has grown, stands still, or is too slow even if it
        goes on at its present pace, which only slackens."""
        return all(self._given_up(i, limit) for i in range(len(self.steps)))

    def _given_up(self, i: int, limit: int) -> bool:
        mean, done = self.levels[i], self.levels.shape[1] - 1
        if not mean[-1] <= 4 * mean[0] or done >= limit:
            return True
        part = max(done // 4, 1)
        with np.errstate(all="ignore"):
            before, now = (self.curves[i, :, a:b].mean(1) for a, b in ((-2 * part, -part), (-part, None)))
        fall = before - now
        if done >= PATIENCE and fall.mean() <= 2 * fall.std() / math.sqrt(max(len(fall) - 1, 1)):
            return True
        pace = math.log(max(float(now.mean()), 1e-300) / max(float(before.mean()), 1e-300)) / part
        return bool(mean[-1] * math.exp(max(pace * (limit - done), -700.0)) > self.target)

    def trials(self) -> list[Trial]:
        return [self.trial(i) for i in range(len(self.steps))]

    def trial(self, i: int) -> Trial:
        """What is known of a step: whether it was the first at the target, or why not."""
        mean, step, done = self.levels[i], float(self.steps[i]), self.levels.shape[1] - 1
        last, early = float(mean[-1]), mean[1 : EARLY + 1]
        if not last <= 4 * mean[0]:
            return Trial(step, math.inf, "diverges", early=early)
        if last > self.target:
            stands = done >= PATIENCE and mean[-done // 4 :].mean() >= 0.98 * mean[-done // 2 : -done // 4].mean()
            why = "floor" if stands else "slow"
            return Trial(step, math.inf, why, last, ahead=done, early=early, last=last)
        times = thinned(done)
        before = float(mean[-2])
        return Trial(step, float(done), "", None, last, before, times, mean[times], target=self.target, early=early)


def counts_steps(algorithm: Algorithm) -> bool:
    """Whether a program may count its local steps; somebody's own method may need to know their number."""
    return not algorithm.own_kind() and "local_steps" in names_of(algorithm)


class Runs:
    """Runs of one setting, whose step is open. experiment: with the most local steps of any setting of the method where
    one program serves them all (`counts_steps`), else with its own. repeats: runs from which a promise comes."""

    def __init__(
        self,
        experiment: Experiment,
        make: Callable[[float], Algorithm],
        goal: Goal,
        target: float,
        repeats: int = AGAIN,
    ):
        self.experiment, self.make, self.goal, self.target, self.repeats = experiment, make, goal, target, repeats
        self.open = ["local_steps"] if counts_steps(experiment.algorithm) else []

    @cached_property
    def _least(self) -> float:
        return least_loss(self.experiment.problem)

    def watch(self, steps: np.ndarray, repeats: int, limit: int, late: Callable[[], bool]) -> Seen:
        """Until one of the steps is at the target, or none will be within the limit, or it is late. A single step has
        luck of its own: it is promised."""
        luck, doubt = (2, 0.0) if len(steps) == 1 else (1, 1.0)
        asked = self.experiment.replace(seed=(self.experiment.seed + luck) % (1 << 31), repeats=repeats)
        methods = [asked.channel.around(self.make(float(step))) for step in steps]
        bound = [traced(bind_algorithm(method, asked.problem), self.open) for method in methods]
        session = Session(asked.bind(), 1, swept=jax.tree.map(lambda *a: np.repeat(np.stack(a), repeats, 0), *bound))
        found, size = [self._measured(session, session.now())], FIRST
        model = sum(leaf.nbytes for leaf in jax.tree.leaves(asked.start_model))
        last = max(1, min(LAST, ROOM // (len(steps) * repeats * model)))  # rounds whose models are kept at once
        while True:
            size = min(size, last)
            session.prepare(session.round + size)
            _, records = session.segment(min(size, limit - session.round))
            found.append(self._measured(session, records))
            curves = np.concatenate(found, axis=1).reshape(len(steps), repeats, -1)
            seen = Seen(steps, curves, self.target, doubt, self.goal.confidence)
            below = np.flatnonzero((seen.levels <= self.target).any(0))
            if len(below):
                return seen.first(int(below[0]))
            if seen.hopeless(limit) or late():
                return seen
            size *= 2

    def _measured(self, session: Session, records: Records) -> np.ndarray:
        """(lanes, n): what the goal is about."""
        if self.goal.measure == "loss":
            with np.errstate(all="ignore"):
                return session.losses(records) - self._least
        errors = session.errors(records.model)
        assert errors is not None  # a plan is refused without a solution
        return errors

    def best_step(
        self, guess: float, known: bool, limit: int, late: Callable[[], bool]
    ) -> tuple[Trial, list[Trial], int]:
        """The step that is first at the target, all that were tried, and how many runs its promise comes from.

        known: the guess was good elsewhere. First around it, or over a wide range; then at the edge where the best is
        one, else between those beside it.
        """
        limit = most = min(limit, LONGEST_PATH)
        ratio = NEAR if known else FAR
        steps = guess * ratio ** (np.arange(STEPS) - (STEPS // 2 if known else 2))
        trials: list[Trial] = []
        best: Trial | None = None
        for _ in range(SWEEPS):
            seen = self.watch(steps, REPEATS, limit, late)
            trials += seen.trials()
            if seen.reached:
                best, limit = seen.trial(seen.best), min(limit, seen.levels.shape[1] - 1)
            edge = seen.falls_at_edge
            off = not (seen.reached or edge) and seen.lowest > (OFF if ratio <= NEAR else FAR_OFF) * self.target
            if late() or off or (not seen.reached and best is not None) or (not edge and ratio < NEAR):
                break
            steps, ratio = _closer(seen, ratio, edge)
        if best is None:
            return min(trials, key=lambda t: t.last), trials, 0
        return self.promised(best, trials, most)

    def promised(self, best: Trial, trials: list[Trial], most: int) -> tuple[Trial, list[Trial], int]:
        """The same by other runs; with a shorter step where they miss the target."""
        step, limit = best.step, int(best.rounds)
        for _ in range(ATTEMPTS):
            limit = min(limit + max(limit // 3, 2), most)
            again = self.watch(np.array([step]), self.repeats, limit, lambda: False).trial(0)
            trials.append(again)
            if not again.why:
                break
            step *= SHORTER
        return again, trials, self.repeats


def _closer(seen: Seen, ratio: float, edge: bool) -> tuple[np.ndarray, float]:
    """The steps of the next sweep, and their ratio."""
    best = float(seen.steps[seen.best])
    if edge:
        away = np.arange(STEPS) if seen.best else -np.arange(STEPS)[::-1]
        return best * ratio**away, ratio
    inside = np.linspace(-1, 1, STEPS + 2)[1:-1]
    return best * ratio**inside, ratio ** (2 / (STEPS + 1))
