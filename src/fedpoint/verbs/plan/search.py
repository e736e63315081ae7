"""How is a plan found? Methods with an open step, the search over their settings, and why one is left out."""

from __future__ import annotations

import dataclasses
import inspect
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np

from fedpoint.algorithms.catalogue import find_maker, makers, title_of
from fedpoint.channel import Channel
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.numbers import counted
from fedpoint.core.wrapped import Wrapped
from fedpoint.engine.session import Session
from fedpoint.engine.state import Message
from fedpoint.experiment import Experiment
from fedpoint.results.plan import MARGIN, Choice, Goal, Promise, Unseen
from fedpoint.results.probe import Probe
from fedpoint.theory.affine_rounds import Work, affine, plain, suits, work_of_agents
from fedpoint.theory.operator import Setting
from fedpoint.theory.planning import LARGE, LONGEST, Known, Trial, attempt, attempt_affine, best_step, settled, walks
from fedpoint.theory.planning_cost import Use
from fedpoint.timing.answering import Answering
from fedpoint.timing.base import Moments
from fedpoint.timing.schemes import Participation
from fedpoint.verbs.forecast import Forecast, prepare
from fedpoint.verbs.plan.by_runs import AGAIN, Runs, counts_steps

METHODS = ("gradient_exchange", "fedavg", "fedprox", "fednova", "scaffold", "scaffnew")
SECOND_ORDER = "fednewton"  # beside them, where agents hold rows and all of them can be heard exactly
LOOKS = 24  # steps that are tried at most
KEPT = 16  # steps whose work is kept, for others who take part

Given: TypeAlias = str | type[Algorithm] | Algorithm | Callable[..., Algorithm]  # how a method may be named


@dataclass(frozen=True)
class Method:
    """An algorithm whose step and local steps are open."""

    title: str
    make: Callable[..., Algorithm]
    local: bool  # it has local steps
    per_round: bool = False  # its step is that of a whole round, divided by the local steps
    channel: Channel | None = None  # over which it sends; None: the experiment's
    plain: str = ""  # the title of the same over the experiment's channel
    stepless: bool = False  # it has no step to choose
    factor: float | None = None  # so many times as far goes its hub; None: as far as it says

    def __call__(self, step: float, local_steps: int) -> Algorithm:
        if self.stepless:
            return self.make()
        step = step * local_steps if self.per_round else step
        made = self.make(step=step, local_steps=local_steps) if self.local else self.make(step=step)
        if self.factor is None:
            return made
        farther = made.farther(self.factor)
        assert farther is not None  # it is asked for where there is one
        return farther

    def farther(self, factor: float) -> Method | None:
        """The same with a hub that goes so many times as far; None where its hub has no step."""
        if self.stepless or self(1e-3, 2).farther(factor) is None:
            return None
        return dataclasses.replace(
            self, title=f"{self.title}, {factor:g} x server_step", factor=factor, plain=self.title
        )


def method_of(given: Given) -> Method:
    """A method by name, by class, or by an object whose other hyper-parameters are kept."""
    taken: set[str] = set()
    if isinstance(given, Wrapped):
        return _around(given, method_of(given.inner))
    if isinstance(given, str):
        try:
            name, make = find_maker(given)
        except FedpointError:
            raise FedpointError(f"unknown method {given!r}: {nearest(given, makers())}") from None
        title = title_of(name)
    elif isinstance(given, type) and issubclass(given, Algorithm):
        make, title = given, given.card.title
    elif isinstance(given, Algorithm):
        make, title = given.replace, given.card.title
        taken = {f.name for f in dataclasses.fields(given)}
    elif not isinstance(given, type) and callable(given) and "step" in inspect.signature(given).parameters:
        make, title = given, given.__name__ if inspect.isroutine(given) else "your own"
    else:
        raise FedpointError(
            f"methods are names such as 'fedavg', classes such as fp.FedAvg, or objects such as fp.FedProx(step=1.0, "
            f"pull=2.0), whose step and local steps are chosen; got {given!r}"
        )
    taken = taken or set(inspect.signature(make).parameters)
    local = "local_steps" in taken
    named = [p for p in inspect.signature(make).parameters.values() if p.kind is not p.VAR_KEYWORD]
    others = [p.name for p in named if p.default is p.empty and p.name not in ("step", "local_steps")]
    if others:
        raise FedpointError(f"{title} also needs {', '.join(others)}: give an object that has them")
    if "step" not in taken:
        return Method(title, make, False, stepless=True)
    probe = make(step=1e-3, local_steps=2) if local else make(step=1e-3)
    return Method(title, make, local, per_round=bool(np.max(probe.work_of_a_step()) > 1))


def _around(wrapper: Wrapped, inner: Method) -> Method:
    """A wrapper around a method whose step and local steps are open."""

    def make(**chosen: float) -> Algorithm:
        return wrapper.replace(inner=inner.make(**chosen))

    return dataclasses.replace(inner, title=f"{wrapper.card.title} {inner.title}", make=make)


class Foreseen(NamedTuple):
    """What a choice rests on: a forecast, if there is one, what is promised, and how its floor is computed."""

    forecast: Forecast | None
    promise: Promise
    settles: Callable[[], float | None] | None


@dataclass(frozen=True)
class Failure:
    """Why a setting is no choice. kind: "floor", "slow", "diverges" or "refused", in the order of what says most."""

    kind: str
    text: str
    high: tuple[int, Participation, Trial] | None = None  # local steps, participation, step that settles too high


@dataclass
class Found:
    """What is known of a method's settings."""

    good: list[Choice] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def best(self) -> Choice | None:
        return min(self.good, key=lambda c: c.cost, default=None)

    @property
    def cost(self) -> float:
        return math.inf if self.best is None else self.best.cost


class Search:
    """The search for one plan."""

    local_steps: tuple[int, ...] = (1, 4, 16, 64)  # to choose from, where none are given

    @classmethod
    def check(cls, experiment: Experiment, goal: Goal) -> None:
        """Refuse what no forecast has a floor for."""
        problem = experiment.problem
        if problem.oracle.derivatives:
            raise FedpointError(f"a plan needs forecasts: {problem.oracle.derivatives}. fp.probe(experiment) does not")
        if problem.convex is None:
            raise FedpointError(
                "a plan needs forecasts, and this loss may have many minima: promise convexity (Loss(..., convex=True))"
            )
        if problem.solution() is None:
            raise FedpointError("the solution of this problem is not known, so there is no distance to plan for")
        known = problem.oracle.known_noise or (problem.batch is None and problem.local_rows() is not None)
        if not (experiment.exact or known):
            raise FedpointError(
                "the problem does not tell the covariance of its samples (oracle.known_noise), so floors are not "
                "known: plan with exact=True, or give the oracle `covariance` and `scatter`"
            )

    @classmethod
    def default(cls, experiment: Experiment, goal: Goal) -> Sequence[str]:
        """The methods of a plan that names none. Newton's, where nothing that agents draw is in the way of exact
        Hessians: they hold rows, or answer exactly anyway. Beside batches all rows are no fair work, so it is then for
        messages only.
        """
        problem = experiment.problem
        rows = problem.local_rows() is not None
        messages = goal.minimise in ("communication", "bytes")
        exact = experiment.exact or (rows and (problem.batch is None or messages))
        return (*METHODS, SECOND_ORDER) if exact else METHODS

    def evidence(self) -> Probe | None:
        """What was measured, where there is no forecast."""
        return None

    def __init__(self, experiment: Experiment, goal: Goal, most: int):
        self.experiment, self.goal, self.target = experiment, goal, float(goal.target)
        self.messages: dict[str, list[Message]] = {}  # with one local step, and with two
        self.dear: dict[str, bool] = {}  # methods whose forecasts take long: fewer settings are looked at
        self.linear: dict[tuple[str, type[Participation]], bool] = {}  # asked once for each method and kind of schedule
        self.forecasts = 0
        self.affine: dict[tuple[str, int], Known | None] = {}  # by method and scheme
        self.bases: dict[str, Setting | None] = {}  # of methods whose rounds are affine: one setting
        self.works: dict[tuple[str, int, float], Work] = {}
        self.uses: dict[tuple[str, int, int], Use] = {}  # by method, local steps and scheme: whatever the step
        self.chances: dict[tuple[str, int, int], Moments] = {}  # likewise
        self.most_steps = most
        self.most = most if experiment.problem.linear else 8  # local steps of one program
        self.curves: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        self.steps: dict[tuple[int, int], float] = {}  # the last good one by local steps and scheme, of any method
        self.until = math.inf  # the time at which no more is begun
        self.seen = 0  # settings that were looked at: one at least, whatever the time
        self.unseen: list[Unseen] = []
        constants = experiment.problem.constants()
        smooth = constants.delta if constants.delta_k is None else float(np.max(constants.delta_k))
        self.guess = 0.3 / smooth if smooth else 0.1

    def forecast(self, method: Method, step: float, E: int, scheme: Participation) -> Forecast:
        self.forecasts += 1
        known = self.linear.get((method.title, type(scheme)))
        asked = self.asked(method, step, E, participation=scheme)
        return prepare(asked, measure=self.goal.measure, coarse=self.most, merges_linearly=known)

    def asked(self, method: Method, step: float, E: int, participation: Participation | None = None) -> Experiment:
        """The experiment with this method, over its channel."""
        channel = self.experiment.channel if method.channel is None else method.channel
        return self.experiment.replace(algorithm=method(step, E), participation=participation, channel=channel)

    def known(self, method: Method, E: int, scheme: Participation) -> Known | None:
        """What is known of a method's rounds under a scheme where they are affine; None where they are not, or where
        their noise has no table."""
        key = method.title, id(scheme)
        if key not in self.affine:
            self.affine[key] = self._known(method, self.forecast(method, self.guess, E, scheme), E)
        found = self.affine[key]
        if found is None:
            return None
        of = method.title, E, id(scheme)  # of this number of local steps, on which chances may depend
        if of not in self.chances:
            timing = self.timing(method(self.guess, E), scheme)
            self.chances[of] = timing.moments(self.experiment.problem.weights)
        return found._replace(moments=self.chances[of])

    def timing(self, algorithm: Algorithm, scheme: Participation) -> Participation:
        """Who takes part, once bound."""
        timing = self.experiment.replace(algorithm=algorithm, participation=scheme).bind().timing
        assert isinstance(timing, Participation)
        return timing

    def _known(self, method: Method, f: Forecast, E: int) -> Known | None:
        s = f.setting
        if f.changes or not suits(s) or s.lineups is not None or s.moments.merge < 1:
            return None
        if method.title not in self.bases:
            fits = (
                plain(s, method(self.guess, E)) and affine(s) and work_of_agents(s, method(self.guess, E)) is not None
            )
            self.bases[method.title] = s if fits else None
        if self.bases[method.title] is None:
            return None
        s.straight = True
        return Known(s.moments, f.gauge, f.noiseless) if f.exact else None

    def work(self, method: Method, E: int, step: float) -> Work:
        """What agents do in an affine round, whoever takes part."""
        key = method.title, E, step
        if key not in self.works:
            while len(self.works) >= KEPT:
                self.works.pop(next(iter(self.works)))
            base = self.bases[method.title]
            assert base is not None
            found = work_of_agents(base, method(step, E))
            assert found is not None  # it was not for another step
            self.works[key] = found
        return self.works[key]

    def advice(self) -> str:
        """What else to change where nothing reaches the target; empty where nothing is known."""
        return ""

    def late(self) -> bool:
        """Whether time is up."""
        return time.monotonic() >= self.until

    def exactly(self, f: Forecast) -> bool:
        """Whether what is promised is known exactly: the law of single runs is where nothing is random."""
        return f.exact and (self.goal.confidence is None or f.noiseless)

    def aim(self, exact: bool) -> float:
        """The target, or a little less where the forecast is not exact."""
        return self.target if exact else MARGIN * self.target

    def use(self, method: Method, algorithm: Algorithm, scheme: Participation, E: int) -> Use:
        """Of one round, from the shapes of messages and the moments of the schedule."""
        key = method.title, E, id(scheme)
        if key not in self.uses:
            self.uses[key] = self._use(method, algorithm, scheme, E)
        return self.uses[key]

    def _use(self, method: Method, algorithm: Algorithm, scheme: Participation, E: int) -> Use:
        if method.title not in self.messages:
            self.messages[method.title] = [self.message(self.asked(method, self.guess, n)) for n in (1, 2)]
        once, twice = self.messages[method.title]
        first, second = (self.evaluations(m, n) for n, m in enumerate((once, twice), 1))
        weights = self.experiment.problem.weights
        timing = self.timing(algorithm, scheme)
        moments = timing.moments(weights)
        heard = moments.merge * float(moments.heard.sum())
        asked = heard
        if isinstance(timing, Answering):
            asked = float(timing.scheme.moments(weights).heard.sum())
        down, up = (n * once.exchanges for n in (asked, heard))  # messages
        sent = once.width * once.down * down + once.up_bytes * up
        fields = heard * (first + (E - 1) * (second - first))
        return Use(max(asked, heard), down + up, once.down * down, once.up * up, sent, fields)

    def telling(self, method: Method, failures: Sequence[Failure]) -> str:
        """The reason that says most; a floor with what it is made of."""
        order = ("floor", "slow", "diverges", "refused")
        most = min(reversed(failures), key=lambda failure: order.index(failure.kind), default=None)
        if most is None:
            return "there was nothing to try"
        if most.kind == "refused":
            return failures[0].text  # with the most participants: of fewer, another mistake may be told
        if most.high is None:
            return most.text
        E, scheme, trial = most.high
        f = self.forecast(method, trial.step, E, scheme)
        if walks(f.setting) or f.floor is None or not math.isfinite(f.floor):
            return most.text
        return f"{most.text}: bias^2 {f.bias2:.2g} + variance {f.variance:.2g}"

    def message(self, asked: Experiment) -> Message:
        """What a round of it moves, with everyone."""
        algorithm = asked.algorithm
        if algorithm.unbounded:
            raise FedpointError(
                f"{algorithm.card.title} with a random number of local steps is not planned: name it "
                f"{algorithm.card.name!r}, and a fixed number is chosen"
            )
        return Session(asked.bind(), 1).message

    def evaluations(self, message: Message, steps: int) -> float:
        """Of fields, by one participant."""
        return float(steps) if message.used is None else message.used[2] / self.experiment.problem.agents

    def setting(
        self, method: Method, E: int, scheme: Participation, guess: float, most: float
    ) -> tuple[Choice | None, list[Trial]]:
        """The best step of one setting, if it costs less than `most`, and the steps that were tried."""
        use = self.use(method, method(guess, E), scheme, E)
        cost = self.goal.cost(use)
        limit = self.rounds_within(most, cost, LONGEST)
        if limit < 1:
            return None, [Trial(guess, math.inf, "slow")]

        known = self.known(method, E, scheme)

        def evaluate(step: float) -> Trial:
            if known is None:
                f = self.forecast(method, step, E, scheme)
                trial = attempt(f, step, self.aim(self.exactly(f)), limit, self.goal.confidence)
                self.linear[method.title, type(scheme)] = f.setting.merges_linearly
            else:
                self.forecasts += 1
                aim = self.aim(self.goal.confidence is None or known.still)
                trial = attempt_affine(self.work(method, E, step), known, step, aim, limit, self.goal.confidence)
            if len(trial.times):
                self.curves.setdefault(method.title, []).append((cost * trial.times, trial.values))
            return trial

        looks, still = LOOKS, known is not None and known.still
        if known is None:
            f = self.forecast(method, guess, E, scheme)
            self.dear[method.title], looks, still = f.setting.size > LARGE, self.looks(f.setting), f.noiseless
            if self.runs_are_faster(f):
                return self._by_runs(method, E, scheme, guess, limit, use)
        dips = still and not (method.stepless or self.dear.get(method.title))
        trial, trials = best_step(evaluate, guess, self.target, 1 if method.stepless else looks, self.late, dips)
        return None if trial.why else self.choice(method, E, scheme, trial, use), trials

    def rounds_within(self, most: float, cost: float, longest: int) -> int:
        """How many rounds of this cost a choice may take that is to cost less than `most`."""
        limit = longest if math.isinf(most) else max(0, min(longest, math.ceil(most / cost) - 1))
        return min(limit, self.goal.rounds or longest)

    def runs_are_faster(self, f: Forecast) -> bool:
        """Models are so large that runs take less time than their forecast."""
        return f.noise_if_settled == "columns" and not f.noiseless

    def _first_place(self, method: Method, grid: Sequence[int], scheme: Participation) -> int:
        """Where in a grid of local steps to look first: in the middle; where settings are run, at the fewest, which
        take the least time and say how much more local steps may cost."""
        try:
            known = self.known(method, grid[0], scheme)
            run = known is None and self.runs_are_faster(self.forecast(method, self.guess, grid[0], scheme))
        except FedpointError:  # the first look says why
            run = False
        return 0 if run else len(grid) // 2

    def _by_runs(
        self, method: Method, E: int, scheme: Participation, guess: float, limit: int, use: Use
    ) -> tuple[Choice | None, list[Trial]]:
        """The same where models are so large that runs take less time than forecasts."""
        runs = self.runs(method, E, scheme, guess, self.aim(False))
        self.dear[method.title] = False
        close = self.steps.get((E, id(scheme)), guess)  # a good step, unless nothing is known yet
        trial, trials, repeats = runs.best_step(close, close != self.guess, limit, self.late_for_more)
        if trial.why:
            return None, trials
        self.steps[E, id(scheme)] = trial.step
        return self.choice_by_runs(method, E, scheme, trial, use, repeats), trials

    def runs(
        self, method: Method, E: int, scheme: Participation, guess: float, target: float, repeats: int = AGAIN
    ) -> Runs:
        """Those of one setting, whose step is open."""
        most = self.most_steps if counts_steps(method(guess, E)) else E
        asked = self.asked(method, guess, most, participation=scheme)
        return Runs(asked, lambda step: method(step, E), self.goal, target, repeats)

    def late_for_more(self) -> bool:
        """One setting is looked at whatever the time."""
        return self.seen > 1 and self.late()

    def choice_by_runs(
        self, method: Method, E: int, scheme: Participation, trial: Trial, use: Use, repeats: int
    ) -> Choice:
        self.curves.setdefault(method.title, []).append((self.goal.cost(use) * trial.times, trial.values))
        return dataclasses.replace(self.choice(method, E, scheme, trial, use), runs=repeats)

    def looks(self, setting: Setting) -> int:
        """How many steps are tried at most: the fewer, the longer a look takes."""
        return 6 if setting.size > 10 * LARGE else 12 if walks(setting) else LOOKS

    def choice(self, method: Method, E: int, scheme: Participation, trial: Trial, use: Use) -> Choice:
        rounds, prices = int(trial.rounds), self.goal.prices
        foreseen = self.foreseen(method, E, scheme, trial)
        return Choice(
            method(trial.step, E),
            scheme,
            rounds,
            trial.value,
            rounds * self.goal.cost(use),
            use,
            None if prices is None else rounds * prices.of(use),
            foreseen.forecast,
            (trial.times, trial.values),
            method.title,
            E if method.local else 1,
            foreseen.promise,
            foreseen.settles,
            method.channel,
        )

    def foreseen(self, method: Method, E: int, scheme: Participation, trial: Trial) -> Foreseen:
        """What stands behind a choice."""
        forecast, known = self.forecast(method, trial.step, E, scheme), self.known(method, E, scheme)
        forecast.setting.straight = forecast.setting.straight if known is None else True
        promise: Promise = "exact" if self.exactly(forecast) else "not verified"
        return Foreseen(forecast, promise, self._floor(method, E, trial, known))

    def _floor(self, method: Method, E: int, trial: Trial, known: Known | None) -> Callable[[], float | None] | None:
        """How to tell where a choice would settle, cheaper than by its forecast; None where that is not known."""
        if known is None:
            return None
        if trial.level is not None and self.goal.confidence is None:
            return lambda: trial.level
        return cache(lambda: settled(self.work(method, E, trial.step), known))

    def method(
        self, method: Method, steps: Sequence[int], schemes: Sequence[Participation], tick: Callable[[int], None]
    ) -> Found:
        """All settings of a method that were good, and why the others were not.

        Participations from many to few; in each, local steps from the best so far outwards, at first from
        `_first_place`, until twice in a row that does not help; where forecasts take long (large memories), until once,
        and with fewer participants only as long as that helps. What costs more than the best so far is given up as soon
        as that is known.
        """
        grid = list(steps) if method.local else [1]
        found = Found()
        for scheme in schemes:
            if self.late() and self.seen:
                self._leave(method, grid, scheme)
                tick(len(grid))
                continue
            before = found.cost
            if found.best is None:
                middle = self._first_place(method, grid, scheme)
            else:
                middle = grid.index(found.best.local_steps)
            outwards = grid[middle:], grid[:middle][::-1]
            seen = sum(self._along(method, some, scheme, found, tick) for some in outwards)
            tick(len(grid) - seen)
            if self.dear.get(method.title) and before == found.cost < math.inf:
                break
        return found

    def _along(
        self, method: Method, steps: Sequence[int], scheme: Participation, found: Found, tick: Callable[[int], None]
    ) -> int:
        """Add what these local steps give, as long as that helps. How many were looked at."""
        worse = seen = 0
        for i, E in enumerate(steps):
            if worse == (1 if self.dear.get(method.title) else 2):
                break
            if self.late() and self.seen:
                self._leave(method, steps[i:], scheme)
                break
            seen += 1
            self.seen += 1
            try:
                choice, trials = self.setting(method, E, scheme, self._first_step(method, E, found), found.cost)
            except FedpointError as error:
                found.failures.append(Failure("refused", str(error)))
                break
            tick(1)
            if choice is None and self.late():  # it was not looked at to the end
                self._leave(method, [E], scheme)
            elif choice is None:
                worse += 1
                found.failures.append(why_not(E, scheme, trials))
            else:
                worse = 0
                found.good.append(choice)
        return seen

    def _leave(self, method: Method, steps: Sequence[int], scheme: Participation) -> None:
        self.unseen += [Unseen(method.title, E, scheme) for E in steps]

    def _first_step(self, method: Method, E: int, found: Found) -> float:
        """Where to look first: the best step so far, shorter with more local steps."""
        best = found.best
        if best is None or best.step is None:
            return self.guess
        return best.step * min(1.0, best.local_steps / E)


def why_not(E: int, scheme: Participation, trials: Sequence[Trial]) -> Failure:
    """From the steps that were tried: too high a floor, too many rounds, or no stable step."""

    def said(trial: Trial) -> str:
        return f"{trial.step:.2g}"

    high = min((t for t in trials if t.why == "floor"), key=lambda t: t.step, default=None)
    slow = max((t for t in trials if t.why == "slow"), key=lambda t: t.step, default=None)
    wild = min((t for t in trials if t.why == "diverges"), key=lambda t: t.step, default=None)
    if slow is not None:
        late = f"with step {said(slow)} (E = {E}) it does not get there within {counted(slow.ahead, 'round')}"
        if high is not None:
            text = f"steps short enough for its floor need too many rounds: {late}, with {said(high)} it settles at "
            return Failure("slow", f"{text}{high.level:.2g}")
        more = f", with {said(wild)} it diverges" if wild is not None else ""
        return Failure("slow", f"it needs too many rounds: {late}{more}")
    if high is not None:
        text = f"it settles above the target: at {high.level:.2g} with step {said(high)} (E = {E})"
        return Failure("floor", text, (E, scheme, high))
    assert wild is not None
    return Failure("diverges", f"no step that was tried is stable: {said(wild)} (E = {E}) still diverges")
