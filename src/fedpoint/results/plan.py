"""What is a plan? Choices that reach a target, the cheapest first, with what they cost and what to expect."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedpoint.channel import Channel
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.arguments import checked_methods
from fedpoint.core.describe import describe_record
from fedpoint.core.errors import FedpointError, check_count, nearest
from fedpoint.core.numbers import finite
from fedpoint.core.types import Plain
from fedpoint.engine.base import Callback
from fedpoint.experiment import Experiment
from fedpoint.metrics import Cost
from fedpoint.privacy import Privacy
from fedpoint.results.forecast import Forecast
from fedpoint.results.labels import short
from fedpoint.results.plan_table import LOSS, MEASURES, MINIMISE, SINGLE, table
from fedpoint.results.probe import Probe
from fedpoint.theory.planning_cost import Prices, Use
from fedpoint.timing.schemes import Participation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Promise = Literal["exact", "verified", "not verified"]
MARGIN = 0.95  # of the target is aimed at where a forecast is not exact
REPEATS = 50
FEWEST = 8  # repeats of a run that verifies a choice
WORK = 2e7  # evaluations of fields that such a run may take
ATTEMPTS = 5  # choices that are run until one meets the target
MOST = 400  # repeats of a run that verifies a share of runs


@checked_methods
@dataclass(frozen=True)
class Choice:
    """One way to reach the target: what to run, what it costs, and what to expect.

    Attributes:
        algorithm: the method with its step and local steps.
        participation: who takes part in a round.
        rounds: how many reach the target.
        error: the expected error (or loss above its minimum) after `rounds` rounds; of a plan with a confidence, what a
            single run stays below with it.
        cost: what was minimised: numbers, bytes, evaluations or seconds.
        use: what one round uses, in expectation.
        seconds: that the run takes by the given prices; None without prices.
        forecast: of the run; None where there is none, and `error` comes from runs.
        curve: (rounds, errors) that the forecast expects.
        title: the method's title.
        local_steps: local steps per round.
        promise: "exact" where the forecast is; else "verified" where runs have met the target, or "not verified".
        settles: a function that computes the floor; None: the forecast's own.
        channel: over which messages are sent; None: the experiment's.
        runs: how many runs `error` is the mean of, where forecasts take longer than runs; 0: it is forecast.
    """

    algorithm: Algorithm
    participation: Participation
    rounds: int
    error: float
    cost: float
    use: Use = field(repr=False)
    seconds: float | None
    forecast: Forecast | None = field(repr=False, compare=False)
    curve: tuple[np.ndarray, np.ndarray] = field(repr=False, compare=False)
    title: str = ""
    local_steps: int = 1
    promise: Promise = "not verified"
    settles: Callable[[], float | None] | None = field(default=None, repr=False, compare=False)
    channel: Channel | None = None  # over which it sends; None: the experiment's
    runs: int = 0  # whose mean `error` is, where forecasts take longer than runs; 0: it is forecast

    @property
    def step(self) -> float | None:
        """The length of one local step, whatever `step` means in the method's own constructor; None: it has none."""
        if self.algorithm.step is None:
            return None
        assert isinstance(self.algorithm.step, float)  # it was chosen
        return self.algorithm.step / float(np.max(self.algorithm.work_of_a_step()))

    @property
    def floats_up(self) -> float:
        return self.rounds * self.use.floats_up

    @property
    def floats_down(self) -> float:
        return self.rounds * self.use.floats_down

    @property
    def floats(self) -> float:
        return self.floats_up + self.floats_down

    @property
    def bytes(self) -> float:
        return self.rounds * self.use.bytes

    @property
    def messages(self) -> float:
        return self.rounds * self.use.messages

    @property
    def evaluations(self) -> float:
        return self.rounds * self.use.evaluations

    @property
    def floor(self) -> float | None:
        """Where it would settle if it went on; None where `error` comes from runs (`forecast.floor` computes it)."""
        if self.runs or self.forecast is None:
            return None
        return self.forecast.floor if self.settles is None else self.settles()

    @property
    def bias(self) -> float | None:
        return None if self.runs or self.forecast is None else self.forecast.bias

    @property
    def label(self) -> str:
        step = "" if self.step is None else f"step {self.step:.3g}, "
        return f"{self.title}, {step}E = {self.local_steps}, {short(self.participation)}"

    def to_dict(self) -> dict[str, Plain]:
        return {
            "method": self.title,
            "algorithm": describe_record(self.algorithm),
            "participation": describe_record(self.participation),
            "channel": None if self.channel is None else describe_record(self.channel),
            "rounds": self.rounds,
            "error": self.error,
            "promise": self.promise,
            "cost": self.cost,
            "floats_up": self.floats_up,
            "floats_down": self.floats_down,
            "bytes": self.bytes,
            "messages": self.messages,
            "evaluations": self.evaluations,
            "seconds": self.seconds,
            "floor": finite(self.floor),
            "bias": finite(self.bias),
        }


@dataclass(frozen=True)
class Excluded:
    """A method that is not among the choices, and why."""

    method: str
    reason: str


@dataclass(frozen=True)
class Unseen:
    """A setting that was not looked at, for lack of time."""

    method: str
    local_steps: int
    participation: Participation


@dataclass(frozen=True)
class Measured:
    """A choice that was run: the mean over repeats after the planned rounds, beside the forecast; and the share of
    repeats that were at or below the target, where a plan promises one."""

    choice: Choice
    repeats: int
    mean: float
    standard_error: float
    target: float
    cost: Cost | None = None  # what the run used; None when it diverged
    share: float | None = None
    confidence: float | None = None  # the share that is promised; None: the mean is

    @property
    def z(self) -> float:
        """How many standard errors the mean lies above the forecast; where a share is promised, how many its own lies
        below that."""
        if self.confidence is not None:
            return (self.confidence - (self.share or 0.0)) / self._share_error(self.confidence)
        gap = self.mean - self.choice.error
        return gap / self.standard_error if self.standard_error > 0 else 0.0 if gap <= 1e-12 else math.inf

    def _share_error(self, share: float) -> float:
        """The standard error of a share of the repeats."""
        return math.sqrt(share * (1 - share) / self.repeats)

    @property
    def met(self) -> bool:
        """Whether the mean is at most the target, or the promised share of runs is, as far as their standard errors can
        tell (three of them)."""
        if self.confidence is not None:
            return self.z <= 3
        return bool(self.mean <= self.target + 3 * self.standard_error)

    def to_dict(self) -> dict[str, Plain]:
        return {
            "method": self.choice.title,
            "rounds": self.choice.rounds,
            "repeats": self.repeats,
            "forecast": self.choice.error,
            "mean": finite(self.mean),
            "standard_error": finite(self.standard_error),
            "share": self.share,
            "z": finite(self.z),
            "met": self.met,
        }


Measure = Callable[[Choice, int, int, Sequence[Callback]], Measured]  # by repeats, seed and callbacks of `fp.run`


@dataclass(frozen=True)
class PlanProgress:
    """What a `progress` function gets after each setting: how many are done, of which method, the best cost so far; the
    seconds since the search began, and those that it may take."""

    done: int
    total: int
    method: str
    best: float | None
    elapsed: float = 0.0
    seconds: float | None = None

    @property
    def part(self) -> float:
        """How much is done, or how much of the time has passed, between 0 and 1."""
        passed = 0.0 if self.seconds is None else self.elapsed / self.seconds
        return min(max(self.done / max(self.total, 1), passed), 1.0)


@dataclass(frozen=True)
class Goal:
    """What a plan is for; see `fp.plan`."""

    target: float
    budget: float | None = None
    rounds: int | None = None  # at most
    measure: str = "error"
    minimise: str = "communication"
    prices: Prices | None = None
    confidence: float | None = None
    seconds: float | None = None
    privacy: Privacy | None = None

    def __post_init__(self) -> None:
        _above_zero("target", self.target)
        if self.privacy is not None and not isinstance(self.privacy, Privacy):
            raise FedpointError(f"privacy must be fp.Privacy(epsilon=..., delta=...), got {self.privacy!r}")
        if self.budget is not None:
            _above_zero("budget", self.budget)
        if self.rounds is not None:
            check_count("rounds", self.rounds, 1)
        if self.seconds is not None:
            _above_zero("seconds", self.seconds)
        if self.confidence is not None:
            _above_zero("confidence", self.confidence)
            if not 0.5 <= self.confidence < 1:
                raise FedpointError(
                    f"confidence must be at least 0.5 and below 1, got {self.confidence!r}: the share of single runs "
                    "that reach the target"
                )
        if self.measure not in MEASURES:
            raise FedpointError(f"unknown measure {self.measure!r}: {nearest(str(self.measure), MEASURES)}")
        if self.minimise not in MINIMISE:
            raise FedpointError(f"unknown minimise {self.minimise!r}: {nearest(str(self.minimise), MINIMISE)}")
        if self.prices is not None and not isinstance(self.prices, Prices):
            raise FedpointError(f"prices must be fp.Prices(per_float=..., ...), got {self.prices!r}")
        if self.minimise == "time" and self.prices is None:
            raise FedpointError(
                'minimise="time" needs prices: fp.Prices(per_float=..., per_message=..., per_gradient=...)'
            )

    def cost(self, use: Use) -> float:
        """What is minimised, of one round."""
        if self.minimise == "time":
            assert self.prices is not None
            return self.prices.of(use)
        by = {"bytes": use.bytes, "computation": use.evaluations, "communication": use.floats_down + use.floats_up}
        return by[self.minimise]


def _above_zero(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < math.inf:
        raise FedpointError(f"{name} must be a number above 0, got {value!r}")


@checked_methods
class Plan:
    """Ways to reach a target, the cheapest first: one for each method. Printed, it is a table.

    best: the first, or None. choices: all, ranked. excluded: methods that are not among them, and why.
    tried: the best of each method at every (local steps, participation) that was looked at.
    missed: settings that were run because their forecasts are not exact, and did not meet the target.
    affordable: when nothing is within the budget, what the budget buys instead. measured: of `verify`.
    unseen: settings that were not looked at within `seconds`. probe: where there is no forecast, the `Probe` that chose
    which settings were run.

    What is promised is the **mean** over runs: E error <= target after the planned rounds. One run fluctuates about it,
    and how much is not promised; with a `confidence`, it is: error <= target in at least that share of runs.

    Args:
        experiment: all that was not to be chosen.
        goal: the target, what is minimised, and within which limits.
        measure: runs a choice, to verify it.
    """

    def __init__(self, experiment: Experiment, goal: Goal, measure: Measure):
        self.experiment, self.problem = experiment, experiment.problem  # all that was not to be chosen
        self.target, self.budget = float(goal.target), goal.budget
        self.measure, self.minimise = goal.measure, goal.minimise
        self.confidence, self.seconds, self.privacy = goal.confidence, goal.seconds, goal.privacy
        self._measure = measure  # runs a choice
        self.choices: list[Choice] = []
        self.excluded: list[Excluded] = []
        self.tried: list[Choice] = []
        self.affordable: Choice | None = None
        self.measured: list[Measured] = []
        self.missed: list[Measured] = []
        self.unseen: list[Unseen] = []
        self.frontiers: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.forecasts = 0
        self.advice = ""  # what to change, where nothing reaches the target
        self.probe: Probe | None = None  # where there is no forecast: what said in which order to look

    @property
    def best(self) -> Choice | None:
        return self.choices[0] if self.choices else None

    @property
    def what(self) -> str:
        """What is planned for."""
        known = self.measure == "error" or self.problem.solution() is not None
        return MEASURES[self.measure] if known else LOSS

    @cached_property
    def notes(self) -> list[str]:
        """What is promised, and how exact the forecasts are."""
        said = [f"in expectation: the mean of {self.what} over runs; a single run fluctuates about it"]
        if self.confidence is not None:
            share = f"{self.confidence:.3g} of runs"
            said = [f"of single runs: {SINGLE[self.measure]} is at most the target in at least {share}"]
            said.append("models are taken as normal around their mean, which a few large changes are not")
        if self.privacy is not None:
            said.append(f"clip and noise: the rounds of every choice spend at most epsilon {self.privacy.epsilon:g}")
            said.append("choosing them looked at this problem's data, which is not counted: plan on public data")
        if self.unseen:
            said.append(f"stopped after {self.seconds:g} s: more time may find a cheaper choice")
        if self.choices:
            forecasts = [c.forecast for c in self.choices if c.forecast is not None and not c.runs]
            rough = [f for f in forecasts if not f.exact]
            extra = [note for f in rough for note in f.notes if not note.startswith("exact")]
            if extra or (self.confidence is not None and not all(c.runs for c in self.choices)):
                said.append(f"forecasts are approximate: {MARGIN:.0%} of the target is aimed at")
            runs = next((c.runs for c in self.choices if c.runs), 0)
            if self.probe is not None:
                said.append(
                    "there is no forecast here: a probe said which settings to run, and errors expected are means of "
                    f"{runs} runs, others than those that chose the step"
                )
            elif runs:
                what = "are means of" if self.confidence is None else "are what single runs stay below, judged by"
                said.append(
                    f"forecasts of so large a model take longer than runs: errors expected {what} {runs} runs, and "
                    f"{MARGIN:.0%} of the target is aimed at"
                )
            if self.probe is not None:
                return said
            if self.choices[0].promise == "verified":
                said.append("a run of the first choice met the target; the others were not run")
            elif self.choices[0].promise == "not verified":
                said.append("no choice was verified by a run: run the first one with verify=True before you trust it")
            said += dict.fromkeys(extra)
        if self.measure == "loss" and not self.problem.linear and self.probe is None:
            said.append("the loss is taken to second order about its minimum")
        return said

    def verify(
        self, top: int = 3, repeats: int = REPEATS, seed: int | None = None, callbacks: Iterable[Callback] = ()
    ) -> list[Measured]:
        """Run the first choices, and show the mean over repeats beside the forecast. Also kept as `measured`.

        Args:
            top: how many of the first choices.
            repeats: of each.
            seed: of the runs; default: that of the plan.
            callbacks: called with a `Progress` after every segment of rounds.
        """
        check_count("top", top, 1)
        check_count("repeats", repeats, 2)
        seed = self.experiment.seed if seed is None else seed
        given = list(callbacks)
        self.measured = [self._measure(c, repeats, seed, given) for c in self.choices[:top]]
        return self.measured

    run = verify

    def confirm(self, late: Callable[[], bool] = lambda: False) -> None:
        """Where its forecast is not exact, run the first choice before it is called the best; one that misses the
        target gives way to its method's next setting, or to the next method. So does one that is not run, because that
        would take too long or it is late, if its forecast is known not to be accurate.

        Args:
            late: whether time is up.
        """
        most, fewest = REPEATS, FEWEST
        if self.confidence is not None:  # runs that miss must be seen: ten of them, two at least
            most, fewest = (int(min(max(n / (1 - self.confidence), REPEATS), MOST)) for n in (10, 2))
        attempts = 0
        while self.best is not None and self.best.promise == "not verified" and attempts < ATTEMPTS:
            best = self.best
            repeats = int(min(most, WORK / max(best.evaluations, 1.0)))
            if repeats < fewest or late():
                accuracy = None if best.runs or best.forecast is None else best.forecast.accuracy
                if accuracy is None or accuracy.good:
                    return
                why = "no time was left" if late() else "it would take too long"
                self.excluded.append(Excluded(best.title, f"{best.label}: {accuracy}; {why} to verify it by runs"))
                self._give_way(best)
                continue
            attempts += 1
            seen = self._measure(best, repeats, self.experiment.seed, [])
            if seen.met:
                self.choices[0] = dataclasses.replace(best, promise="verified")
                return
            self.missed.append(seen)
            self._give_way(best)

    def _give_way(self, best: Choice) -> None:
        """The first choice to its method's next setting, or to the next method."""
        dearest = math.inf if self.budget is None else self.budget
        others = [c for c in self.tried if c.title == best.title and best.cost < c.cost <= dearest]
        following = min(others, key=lambda c: c.cost, default=None)
        self.choices = sorted(
            [*self.choices[1:], *([following] if following else [])], key=lambda c: (c.cost, c.evaluations)
        )

    def table(self) -> str:
        """The ranked choices, those excluded with the reason, what was measured."""
        return table(self)

    def to_dict(self) -> dict[str, Plain]:
        """Plain types, for programs."""
        return {
            "target": self.target,
            "measure": self.measure,
            "minimise": self.minimise,
            "budget": self.budget,
            "promise": "mean over runs" if self.confidence is None else "share of runs",
            "confidence": self.confidence,
            "seconds": self.seconds,
            "privacy": None if self.privacy is None else describe_record(self.privacy),
            "advice": self.advice,
            "choices": [c.to_dict() for c in self.choices],
            "excluded": [dataclasses.asdict(e) for e in self.excluded],
            "affordable": None if self.affordable is None else self.affordable.to_dict(),
            "measured": [m.to_dict() for m in self.measured],
            "missed": [m.to_dict() for m in self.missed],
            "unseen": [{**dataclasses.asdict(u), "participation": short(u.participation)} for u in self.unseen],
            "notes": list(self.notes),
        }

    def plot(self, path: str | Path | None = None, title: str | None = None) -> Figure:
        """Cost against accuracy, one line a method: the least cost at which a setting that was tried gets there.

        Args:
            path: where to save it; png, svg or pdf by the ending.
            title: above it.
        """
        from fedpoint.show.plots import plan_picture

        return plan_picture(self, path=path, title=title)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        from fedpoint.show.html import plan_html

        return plan_html(self)

    def __repr__(self) -> str:
        first = "nothing reaches it" if self.best is None else self.best.label
        return f"<Plan for {self.target:g}: {first}>"
