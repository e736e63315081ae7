"""What should I choose? `fp.plan` picks algorithm, step, local steps, participation and rounds for a target."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fedpoint.core.participation import Answering, Everyone, as_participation
from fedpoint.errors import Diverged, FedpointError, nearest
from fedpoint.metrics import Cost
from fedpoint.runtimes.session import Session, check_valid
from fedpoint.theory.planning import LARGE, LONGEST, Trial, Uncomputable, attempt, best_step, exactly, walks
from fedpoint.verbs.forecast import Forecast, forecast
from fedpoint.verbs.run import check_count, check_inputs, check_start, run

METHODS = ("gradient_exchange", "fedavg", "fedprox", "fednova", "scaffold", "scaffnew")
LOCAL_STEPS = (1, 4, 16, 64)
MINIMISE = {"communication": "numbers sent", "computation": "field evaluations", "time": "seconds"}
MEASURES = {"error": "E|w - w*|^2", "loss": "E f(w) - f*"}
MARGIN = 0.95  # of the target is aimed at where a forecast is not exact
REPEATS = 50


@dataclass(frozen=True)
class Prices:
    """What things cost, in seconds: a number sent, a message (its latency), an evaluation of a local field.

    parallel: agents work and send at the same time, so that a round takes as long as one agent takes; False: one after
    the other, as in a simulation, or when the hub's link is what limits.
    """

    per_float: float = 0.0
    per_message: float = 0.0
    per_gradient: float = 0.0
    parallel: bool = False

    def __post_init__(self) -> None:
        values = (self.per_float, self.per_message, self.per_gradient)
        for f, value in zip(("per_float", "per_message", "per_gradient"), values, strict=True):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise FedpointError(f"Prices: {f} is a number of seconds, at least 0; got {value!r}")
        if not any(values):
            raise FedpointError("Prices: at least one of per_float, per_message and per_gradient must be above 0")

    def of(self, use: Use) -> float:
        """Seconds of one round."""
        busy = max(use.asked, use.heard, 1.0) if self.parallel else 1.0
        return (
            self.per_float * (use.floats_down + use.floats_up)
            + self.per_message * (use.asked + use.heard)
            + self.per_gradient * use.evaluations
        ) / busy


@dataclass(frozen=True)
class Use:
    """What a round uses, in expectation over who takes part."""

    asked: float
    heard: float
    floats_down: float
    floats_up: float
    bytes: float
    evaluations: float


@dataclass(frozen=True)
class Choice:
    """One way to reach the target: what to run, what it costs, and what to expect.

    error: the expected error (or loss above its minimum) after `rounds` rounds. cost: what was minimised.
    """

    algorithm: Any
    participation: Any
    rounds: int
    error: float
    cost: float
    use: Use = field(repr=False)
    seconds: float | None
    forecast: Forecast = field(repr=False, compare=False)
    curve: tuple[np.ndarray, np.ndarray] = field(repr=False, compare=False)
    title: str = ""

    @property
    def step(self) -> float:
        return float(self.algorithm.step)

    @property
    def local_steps(self) -> int:
        return int(getattr(self.algorithm, "local_steps", 1) or 1)

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
        return self.rounds * (self.use.asked + self.use.heard)

    @property
    def evaluations(self) -> float:
        return self.rounds * self.use.evaluations

    @property
    def floor(self) -> float | None:
        """Where it would settle if it went on."""
        return self.forecast.floor

    @property
    def bias(self) -> float | None:
        return self.forecast.bias

    @property
    def label(self) -> str:
        from fedpoint.report.labels import short

        return f"{self.title}, step {self.step:.3g}, E = {self.local_steps}, {short(self.participation)}"

    def to_dict(self) -> dict[str, Any]:
        from fedpoint.config import methods, schemes

        return {
            "method": self.title,
            "algorithm": methods.describe(self.algorithm),
            "participation": schemes.describe(self.participation),
            "rounds": self.rounds,
            "error": self.error,
            "cost": self.cost,
            "floats_up": self.floats_up,
            "floats_down": self.floats_down,
            "bytes": self.bytes,
            "messages": self.messages,
            "evaluations": self.evaluations,
            "seconds": self.seconds,
            "floor": _finite(self.floor),
            "bias": _finite(self.bias),
        }


@dataclass(frozen=True)
class Excluded:
    """A method that is not among the choices, and why."""

    method: str
    reason: str


@dataclass(frozen=True)
class Measured:
    """A choice that was run: the mean over repeats after the planned rounds, beside the forecast."""

    choice: Choice
    repeats: int
    mean: float
    standard_error: float
    target: float
    cost: Cost | None = None  # what the run used; None when it diverged

    @property
    def z(self) -> float:
        """How many standard errors the mean lies above the forecast."""
        gap = self.mean - self.choice.error
        return gap / self.standard_error if self.standard_error > 0 else 0.0 if gap <= 1e-12 else math.inf

    @property
    def met(self) -> bool:
        """Whether the mean is at most the target, as far as its standard error can tell (three of them)."""
        return bool(self.mean <= self.target + 3 * self.standard_error)

    def to_dict(self) -> dict[str, Any]:
        return {
            "method": self.choice.title,
            "rounds": self.choice.rounds,
            "repeats": self.repeats,
            "forecast": self.choice.error,
            "mean": _finite(self.mean),
            "standard_error": _finite(self.standard_error),
            "z": _finite(self.z),
            "met": self.met,
        }


@dataclass(frozen=True)
class Progress:
    """What a `progress` function gets after each setting: how many are done, of which method, the best cost so far."""

    done: int
    total: int
    method: str
    best: float | None


class Plan:
    """Ways to reach a target, the cheapest first: one for each method. Printed, it is a table.

    best: the first, or None. choices: all, ranked. excluded: methods that are not among them, and why.
    tried: the best of each method at every (local steps, participation) that was looked at.
    affordable: when nothing is within the budget, what the budget buys instead. measured: of `verify`.

    What is promised is the **mean** over runs: E error <= target after the planned rounds. One run fluctuates about it,
    and how much is not promised.
    """

    def __init__(self, problem: Any, target: float, budget: float | None, options: _Options):
        self.problem, self.target, self.budget, self._options = problem, target, budget, options
        self.measure, self.minimise = options.measure, options.minimise
        self.choices: list[Choice] = []
        self.excluded: list[Excluded] = []
        self.tried: list[Choice] = []
        self.affordable: Choice | None = None
        self.measured: list[Measured] = []
        self.frontiers: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.forecasts = 0

    @property
    def best(self) -> Choice | None:
        return self.choices[0] if self.choices else None

    @cached_property
    def notes(self) -> list[str]:
        """What is promised, and how exact the forecasts are."""
        said = [f"in expectation: the mean of {MEASURES[self.measure]} over runs; a single run fluctuates about it"]
        if self.choices:
            extra = [n for c in self.choices for n in c.forecast.notes if not n.startswith("exact")]
            if extra:
                said.append(f"forecasts are approximate: {MARGIN:.0%} of the target is aimed at")
            said += dict.fromkeys(extra)
        if self.measure == "loss" and not self.problem.linear:
            said.append("the loss is taken to second order about its minimum")
        return said

    def verify(
        self, top: int = 3, repeats: int = REPEATS, seed: int | None = None, callbacks: Iterable = ()
    ) -> list[Measured]:
        """Run the first choices, and show the mean over repeats beside the forecast. Also kept as `measured`."""
        check_count("top", top, 1)
        check_count("repeats", repeats, 2)
        seed = self._options.seed if seed is None else seed
        self.measured = [self._measure(c, repeats, seed, list(callbacks)) for c in self.choices[:top]]
        return self.measured

    run = verify

    def _measure(self, choice: Choice, repeats: int, seed: int, callbacks: list) -> Measured:
        try:
            done = run(
                choice.algorithm,
                self.problem,
                rounds=choice.rounds,
                participation=choice.participation,
                start=self._options.start,
                exact=self._options.exact,
                seed=seed,
                repeats=repeats,
                record_every=max(choice.rounds, 1),
                callbacks=callbacks,
            )
        except Diverged:
            return Measured(choice, repeats, math.inf, 0.0, self.target)
        values = done.error
        if self.measure == "loss":
            values = done.loss - self.problem.objective(_lead(self.problem.solution()))[0]
        last = values[:, -1]  # type: ignore[index]
        error = float(last.std(ddof=1) / math.sqrt(repeats))
        return Measured(choice, repeats, float(last.mean()), error, self.target, done.cost)

    def table(self) -> str:
        """The ranked choices, those excluded with the reason, what was measured."""
        lines = [self._title()]
        if self.choices:
            lines += ["", *_aligned(self._heading(), [self._row(c) for c in self.choices])]
        elif self.affordable is not None:
            a = self.affordable
            lines += [
                "",
                f"Nothing reaches it within the budget of {_amount(self.budget)} {MINIMISE[self.minimise]}.",
                f"The budget buys {a.error:.2g}: {a.label}, {a.rounds:,} rounds.",
            ]
        else:
            lines += ["", "Nothing reaches it."]
        if self.excluded:
            width = max(len(e.method) for e in self.excluded)
            lines += ["", "Excluded", *(f"  {e.method.ljust(width)}  {e.reason}" for e in self.excluded)]
        if self.measured:
            rows = [
                [
                    m.choice.title,
                    f"{m.choice.error:.3g}",
                    f"{m.mean:.3g} ± {m.standard_error:.1g}",
                    f"{m.z:+.1f}",
                    "met" if m.met else "missed",
                ]
                for m in self.measured
            ]
            heading = ["method", "forecast", f"mean of {self.measured[0].repeats} runs", "z", "target"]
            lines += ["", "Run", *_aligned(heading, rows)]
        return "\n".join([*lines, "", *(f"Note: {note}" for note in self.notes)])

    def _title(self) -> str:
        K = self.problem.agents
        within = "" if self.budget is None else f", within {_amount(self.budget)} {MINIMISE[self.minimise]}"
        return (
            f"{MEASURES[self.measure]} <= {self.target:g} with the least {self.minimise}{within}: "
            f"{type(self.problem).__name__}, {K} agent{'s' if K != 1 else ''}"
        )

    def _heading(self) -> list[str]:
        extra = ["seconds"] if self.minimise == "time" else []
        return ["method", "step", "E", "participants", "rounds", "floats", "gradients", *extra, "expected", "floor"]

    def _row(self, c: Choice) -> list[str]:
        from fedpoint.report.labels import short

        who = {"Everyone": "all"}.get(type(c.participation).__name__) or (
            f"{c.participation.count}" if type(c.participation).__name__ == "Uniform" else short(c.participation)
        )
        extra = [_amount(c.seconds)] if self.minimise == "time" else []
        return [
            c.title,
            f"{c.step:.3g}",
            f"{c.local_steps}",
            who,
            f"{c.rounds:,}",
            _amount(c.floats),
            _amount(c.evaluations),
            *extra,
            f"{c.error:.3g}",
            "-" if c.floor is None else f"{c.floor:.3g}",
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for programs."""
        return {
            "target": self.target,
            "measure": self.measure,
            "minimise": self.minimise,
            "budget": self.budget,
            "promise": "mean over runs",
            "choices": [c.to_dict() for c in self.choices],
            "excluded": [dataclasses.asdict(e) for e in self.excluded],
            "affordable": None if self.affordable is None else self.affordable.to_dict(),
            "measured": [m.to_dict() for m in self.measured],
            "notes": list(self.notes),
        }

    def plot(self, path: Any = None, title: str | None = None):
        """Cost against accuracy, one line a method: the least cost at which a setting that was tried gets there."""
        from fedpoint.report.plots import plan_picture

        return plan_picture(self, path=path, title=title)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        first = "nothing reaches it" if self.best is None else self.best.label
        return f"<Plan for {self.target:g}: {first}>"


@dataclass(frozen=True)
class _Options:
    measure: str
    minimise: str
    prices: Prices | None
    start: Any
    exact: bool
    seed: int

    def cost(self, use: Use) -> float:
        """What is minimised, of one round."""
        if self.minimise == "time":
            assert self.prices is not None
            return self.prices.of(use)
        return use.evaluations if self.minimise == "computation" else use.floats_down + use.floats_up


@dataclass(frozen=True)
class Method:
    """An algorithm whose step and local steps are open."""

    title: str
    make: Callable[..., Any]
    local: bool  # it has local steps
    per_round: bool = False  # its step is that of a whole round, divided by the local steps

    def __call__(self, step: float, local_steps: int) -> Any:
        step = step * local_steps if self.per_round else step
        return self.make(step=step, local_steps=local_steps) if self.local else self.make(step=step)


def method_of(given: Any) -> Method:
    """A method by name, by class, or by an object whose other hyper-parameters are kept."""
    from fedpoint.config.methods import find_maker, makers, title_of

    if isinstance(given, str):
        try:
            name, make = find_maker(given)
        except FedpointError:
            raise FedpointError(f"unknown method {given!r}: {nearest(given, makers())}") from None
        title = title_of(name)
    elif isinstance(given, type) and hasattr(given, "card"):
        make, title = given, given.card.title
    elif hasattr(type(given), "card"):
        make, title = _same_but(given), type(given).card.title
    elif callable(given) and "step" in inspect.signature(given).parameters:
        make, title = given, getattr(given, "__name__", "your own")
    else:
        raise FedpointError(
            f"methods are names such as 'fedavg', classes such as fp.FedAvg, or objects such as fp.FedProx(step=1.0, "
            f"pull=2.0), whose step and local steps are chosen; got {given!r}"
        )
    taken = inspect.signature(make).parameters if not hasattr(make, "fields") else make.fields
    if "step" not in taken:
        raise FedpointError(f"{title} has no step to choose: a plan needs methods with one")
    local = "local_steps" in taken
    try:
        probe = make(step=1e-3, local_steps=2) if local else make(step=1e-3)
    except TypeError:
        others = [
            n
            for n, p in inspect.signature(make).parameters.items()
            if p.default is p.empty and n not in ("step", "local_steps") and p.kind is not p.VAR_KEYWORD
        ]
        raise FedpointError(f"{title} also needs {', '.join(others)}: give an object that has them") from None
    return Method(title, make, local, bool(getattr(probe, "normalise", False)))


def _same_but(algorithm: Any) -> Any:
    values = {f.name: getattr(algorithm, f.name) for f in dataclasses.fields(algorithm)}

    def make(**changes: Any) -> Any:
        return type(algorithm)(**{**values, **changes})

    make.fields = tuple(values)  # type: ignore[attr-defined]
    return make


class _Search:
    """The search for one plan."""

    def __init__(self, problem: Any, aim: Callable[[Forecast], float], target: float, options: _Options):
        self.problem, self.aim, self.target, self.options = problem, aim, target, options
        self.sizes: dict[str, list[tuple[int, int, int, float]]] = {}
        self.dear: dict[str, bool] = {}  # methods whose forecasts take long: fewer settings are looked at
        self.high: dict[str, tuple[int, Any, Trial]] = {}  # of each method: a setting that settles above the target
        self.affine: dict[Any, bool] = {}  # asked once for each method and kind of schedule
        self.forecasts = 0
        self.curves: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        constants = problem.constants()
        smooth = constants.delta if constants.delta_k is None else float(np.max(constants.delta_k))
        self.guess = 0.3 / smooth if smooth else 0.1

    def forecast(self, algorithm: Any, scheme: Any) -> Forecast:
        o = self.options
        self.forecasts += 1
        return forecast(algorithm, self.problem, scheme, o.start, o.exact, measure=o.measure, seed=o.seed)

    def use(self, method: Method, algorithm: Any, scheme: Any, E: int) -> Use:
        """Of one round, from the shapes of messages and the moments of the schedule."""
        if method.title not in self.sizes:
            self.sizes[method.title] = [self.message(method(self.guess, n)) for n in (1, 2)]
        (down, up, width, once), (_, _, _, twice) = self.sizes[method.title]
        each = once + (E - 1) * (twice - once)
        bound = scheme.bind(self.problem, algorithm, self.options.exact)
        moments = bound.moments(self.problem.weights)
        heard = moments.merge * float(moments.heard.sum())
        asked = heard
        if isinstance(bound, Answering):
            asked = float(bound.scheme.moments(self.problem.weights).heard.sum())
        floats = asked * down, heard * up
        return Use(asked, heard, *floats, width * sum(floats), heard * each)

    def telling(self, method: Method, reasons: list[str]) -> str:
        """The reason that says most; a floor with what it is made of."""
        reason = _telling(reasons)
        if not reason.startswith("it settles") or method.title not in self.high:
            return reason
        E, scheme, trial = self.high[method.title]
        f = self.forecast(method(trial.step, E), scheme)
        if walks(f._setting) or f.floor is None or not math.isfinite(f.floor):
            return reason
        parts = f"bias^2 {f._bias2:.2g} + variance {f.variance:.2g}"
        return f"{_why_not(method, E, trial)} (level {f.floor:.2g} = {parts})"

    def message(self, algorithm: Any) -> tuple[int, int, int, float]:
        """Numbers down and up, bytes of each, and evaluations of a participant."""
        if algorithm.unbounded:
            raise FedpointError(
                f"{type(algorithm).card.title} with a random number of local steps is not planned: name it "
                f"{type(algorithm).card.name!r}, and a fixed number is chosen"
            )
        start = check_start(self.problem, self.options.start)
        session = Session(algorithm, self.problem, Everyone(), start, self.options.exact, 0, 1, 1)
        m, steps = session.message, getattr(algorithm, "local_steps", 1)
        return m.down, m.up, m.width, float(steps) if m.used is None else m.used[2] / self.problem.agents

    def setting(self, method: Method, E: int, scheme: Any, guess: float, most: float) -> tuple[Choice | None, Trial]:
        """The best step of one setting, if it costs less than `most`."""
        use = self.use(method, method(guess, E), scheme, E)
        cost = self.options.cost(use)
        limit = LONGEST if math.isinf(most) else max(0, min(LONGEST, math.ceil(most / cost) - 1))
        if limit < 1:
            return None, Trial(guess, math.inf, "slow")

        def evaluate(step: float) -> Trial:
            f = self.forecast(method(step, E), scheme)
            kind = (method.title, type(scheme))
            if kind in self.affine:
                f._setting.__dict__["affine"] = self.affine[kind]
            trial = attempt(f, step, self.aim(f), limit)
            self.affine[kind] = f._setting.affine
            if len(trial.times):
                self.curves.setdefault(method.title, []).append((cost * trial.times, trial.values))
            return trial

        setting = self.forecast(method(guess, E), scheme)._setting
        self.dear[method.title] = setting.size > LARGE
        trial, _ = best_step(evaluate, guess, self.target, most=8 if walks(setting) else 12)
        if trial.why:
            return None, trial
        return self.choice(method, E, scheme, trial, use), trial

    def choice(self, method: Method, E: int, scheme: Any, trial: Trial, use: Use) -> Choice:
        algorithm, rounds = method(trial.step, E), int(trial.rounds)
        prices = self.options.prices
        return Choice(
            algorithm,
            scheme,
            rounds,
            trial.value,
            rounds * self.options.cost(use),
            use,
            None if prices is None else rounds * prices.of(use),
            self.forecast(algorithm, scheme),
            (trial.times, trial.values),
            method.title,
        )

    def method(self, method: Method, steps: Sequence[int], schemes: Sequence[Any], tick: Callable[[int], None]):
        """The best setting of a method, all that were good, and the reason when there is none.

        Participations from many to few; in each, local steps from the best so far outwards, until twice in a row
        that does not help; where forecasts take long (large memories), until once, and with fewer participants only as
        long as that helps. What costs more than the best so far is given up as soon as that is known.
        """
        grid = list(steps) if method.local else [1]
        good: list[Choice] = []
        reasons: list[str] = []
        best, centre, local = math.inf, len(grid) // 2, None
        for scheme in schemes:
            seen, before = 0, best
            for direction in (range(centre, len(grid)), range(centre - 1, -1, -1)):
                worse = 0
                for i in direction:
                    if worse == (1 if self.dear.get(method.title) else 2):
                        break
                    seen += 1
                    E = grid[i]
                    guess = self.guess if local is None else local[0] * min(1.0, local[1] / E)
                    try:
                        check_valid(method(guess, E), scheme)
                        found, trial = self.setting(method, E, scheme, guess, best)
                    except Uncomputable as error:
                        reasons.append(str(error))
                        break
                    except FedpointError as error:
                        reasons.append(str(error))
                        break
                    tick(1)
                    if found is None:
                        worse += 1
                        reasons.append(_why_not(method, E, trial))
                        if trial.why == "floor":
                            self.high[method.title] = E, scheme, trial
                        continue
                    worse = 0
                    good.append(found)
                    if found.cost < best:
                        best, centre, local = found.cost, i, (trial.step, E)
            tick(len(grid) - seen)
            if self.dear.get(method.title) and before == best < math.inf:
                break
        return good, reasons


def _why_not(method: Method, E: int, trial: Trial) -> str:
    step = trial.step * E if method.per_round else trial.step
    if trial.why == "diverges":
        return f"no step that was tried is stable: {step:.2g} (E = {E}) still diverges"
    if trial.why == "floor":
        return f"it settles above the target: at {trial.level:.2g} with step {step:.2g} (E = {E})"
    return f"steps short enough for its floor need too many rounds: step {step:.2g} (E = {E}) does not get there"


def plan(
    problem: Any,
    target: float,
    budget: float | None = None,
    measure: str = "error",
    minimise: str = "communication",
    prices: Prices | None = None,
    methods: Iterable[Any] | None = None,
    local_steps: Iterable[int] | None = None,
    participation: Iterable[Any] | None = None,
    start: Any = None,
    exact: bool = False,
    verify: bool = False,
    top: int = 3,
    repeats: int = REPEATS,
    seed: int = 0,
    progress: Callable[[Progress], Any] | None = None,
) -> Plan:
    """Choose algorithm, step, local steps, participation and rounds that reach a target at the least cost.

    From forecasts: nothing is run, unless `verify` is asked for. What is promised is the mean over runs.

    Args:
        target: of E|w - w*|^2 (measure="error") or of the loss above its minimum (measure="loss").
        budget: at most so much of what is minimised; where nothing is within it, the plan says what it buys.
        minimise: "communication" (numbers sent, both ways), "computation" (evaluations of local fields) or "time".
        prices: `fp.Prices`, for "time".
        methods: names, classes or objects, whose step and local steps are chosen. Default: those of the catalogue
            whose floor is known.
        local_steps: numbers of local steps to choose from; default 1, 4, 16, 64.
        participation: numbers of participants or schemes to choose from; default: all, a third, a tenth, one.
        start, exact: as in `fp.run`.
        verify: run the first `top` choices `repeats` times, and show their mean beside the forecast.
        progress: called with a `Progress` after every setting.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [1.0]], noise=0.01)
    >>> made = fp.plan(quad, target=1e-2, methods=["gradient_exchange"])
    >>> made.best.rounds, made.best.error <= 1e-2
    (1, True)
    """
    options = _check(problem, target, budget, measure, minimise, prices, start, exact, seed)
    chosen = _methods(methods)
    grid = _local_steps(local_steps)
    schemes = _schemes(participation, problem.agents)
    if verify:
        check_count("top", top, 1)
        check_count("repeats", repeats, 2)
    _check_start_error(problem, target, options)

    def aim(f: Forecast) -> float:
        s = f._setting
        return float(target) if f._noiseless or (s.problem.linear and s.affine and exactly(f)) else MARGIN * target

    made = Plan(problem, float(target), budget, options)
    search = _Search(problem, aim, float(target), options)
    total, done = len(schemes) * sum(len(grid) if m.local else 1 for m in chosen), 0
    for method in chosen:
        if method.title == "FedNova" and any(m.title == "FedAvg" for m in chosen):
            made.excluded.append(Excluded(method.title, "with the same number of local steps for all it is FedAvg"))
            done += len(schemes) * len(grid)
            continue

        def tick(count: int, method=method) -> None:
            nonlocal done
            done += count
            if progress is not None:
                costs = [c.cost for c in made.choices]
                progress(Progress(done, total, method.title, min(costs) if costs else None))

        good, reasons = search.method(method, grid, schemes, tick)
        made.tried += good
        if good:
            made.choices.append(min(good, key=lambda c: c.cost))
        else:
            made.excluded.append(Excluded(method.title, search.telling(method, reasons)))
    made.choices.sort(key=lambda c: (c.cost, c.evaluations))
    made.forecasts = search.forecasts
    made.frontiers = {title: _frontier(curves) for title, curves in search.curves.items()}
    if budget is not None:
        _within(made, budget)
    if verify:
        made.verify(top, repeats)
    return made


def _telling(reasons: list[str]) -> str:
    """The reason that says most: a floor before slowness, slowness before what was refused."""
    for start in ("it settles", "steps short", "no step", "its floor"):
        for reason in reversed(reasons):
            if reason.startswith(start):
                return reason
    return reasons[-1] if reasons else "there was nothing to try"


def _within(made: Plan, budget: float) -> None:
    """Leave out what costs more than the budget; with nothing left, say what it buys."""
    unit = MINIMISE[made.minimise]
    over = [c for c in made.choices if c.cost > budget]
    made.choices = [c for c in made.choices if c.cost <= budget]
    for c in over:
        made.excluded.append(Excluded(c.title, f"costs {_amount(c.cost)} {unit}, over the budget: {c.label}"))
    if made.choices:
        return
    bought: list[Choice] = []
    for c in made.tried:
        each = c.cost / c.rounds
        rounds = int(budget / each)
        if rounds < 1:
            continue
        times, values = c.curve
        at = np.flatnonzero(times <= rounds)[-1]
        bought.append(
            dataclasses.replace(
                c,
                rounds=int(times[at]),
                error=float(values[at]),
                cost=float(times[at] * each),
                seconds=None if c.seconds is None else c.seconds / c.rounds * float(times[at]),
                curve=(times[: at + 1], values[: at + 1]),
            )
        )
    bought = [c for c in bought if c.rounds > 0]
    if bought:
        made.affordable = min(bought, key=lambda c: (c.error, c.cost))


def _frontier(curves: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """(costs, errors): the lower envelope of all curves, what a cost buys at best."""
    cost, error = (np.concatenate([c[i] for c in curves]) for i in (0, 1))
    order = np.lexsort((error, cost))
    cost, error = cost[order], np.minimum.accumulate(error[order])
    new = np.r_[True, error[1:] < error[:-1] * (1 - 1e-9)]
    return cost[new], error[new]


# What a user may have got wrong.


def _check(problem, target, budget, measure, minimise, prices, start, exact, seed) -> _Options:
    from fedpoint.algorithms import FedAvg

    check_inputs(FedAvg(step=1.0), problem, seed)
    _above_zero("target", target)
    if budget is not None:
        _above_zero("budget", budget)
    if measure not in MEASURES:
        raise FedpointError(f"unknown measure {measure!r}: {nearest(str(measure), MEASURES)}")
    if minimise not in MINIMISE:
        raise FedpointError(f"unknown minimise {minimise!r}: {nearest(str(minimise), MINIMISE)}")
    if prices is not None and not isinstance(prices, Prices):
        raise FedpointError(f"prices must be fp.Prices(per_float=..., ...), got {prices!r}")
    if minimise == "time" and prices is None:
        raise FedpointError('minimise="time" needs prices: fp.Prices(per_float=..., per_message=..., per_gradient=...)')
    if problem.convex is None:
        raise FedpointError(
            "a plan needs forecasts, and this loss may have many minima: promise convexity (Loss(..., convex=True))"
        )
    if problem.solution() is None:
        raise FedpointError("the solution of this problem is not known, so there is no distance to it to plan for")
    if not (exact or problem.oracle.known_noise or (problem.batch is None and problem.local_rows() is not None)):
        raise FedpointError(
            "the problem does not tell the covariance of its samples (oracle.known_noise), so floors are not known: "
            "plan with exact=True, or give the oracle `covariance` and `scatter`"
        )
    return _Options(measure, minimise, prices, start, exact, int(seed))


def _above_zero(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < math.inf:
        raise FedpointError(f"{name} must be a number above 0, got {value!r}")


def _methods(given: Iterable[Any] | None) -> list[Method]:
    if given is not None and (isinstance(given, str) or not isinstance(given, Iterable)):
        given = [given]
    found = [method_of(m) for m in (METHODS if given is None else given)]
    if not found:
        raise FedpointError("methods is empty: name at least one, such as 'fedavg'")
    titles = [m.title for m in found]
    for i, m in enumerate(found):
        if titles.count(m.title) > 1:
            found[i] = dataclasses.replace(m, title=f"{m.title} ({titles[: i + 1].count(m.title)})")
    return found


def _local_steps(given: Iterable[int] | None) -> list[int]:
    steps = list(LOCAL_STEPS if given is None else [given] if isinstance(given, int) else given)
    if not steps:
        raise FedpointError("local_steps is empty: give at least one number of local steps")
    for E in steps:
        check_count("local_steps", E, 1)
    return sorted({int(E) for E in steps})


def _schemes(given: Any, agents: int) -> list[Any]:
    if given is None:
        counts = dict.fromkeys((round(agents / 3), round(agents / 10), 1))
        return [Everyone(), *(as_participation(L) for L in counts if 1 <= L < agents)]
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = [given]
    schemes = [as_participation(one) for one in given]
    if not schemes:
        raise FedpointError("participation is empty: give at least one number of participants or scheme")
    for scheme in schemes:
        scheme.slots(agents)
    return schemes


def _check_start_error(problem: Any, target: float, options: _Options) -> None:
    start = check_start(problem, options.start)
    if options.measure == "error":
        import jax

        pairs = zip(jax.tree.leaves(start), jax.tree.leaves(problem.solution()), strict=True)
        now = sum(float(((np.asarray(a) - np.asarray(b)) ** 2).sum()) for a, b in pairs)
    else:
        first, last = (problem.objective(_lead(w))[0] for w in (start, problem.solution()))
        now = float(first - last)
    if now <= target:
        raise FedpointError(
            f"the start is at {now:.3g} already, not above the target {target:g}: there is nothing to plan"
        )


def _lead(model: Any) -> Any:
    import jax

    return jax.tree.map(lambda a: np.asarray(a)[None], model)


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _amount(value: float | None) -> str:
    if value is None:
        return "-"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size:
            return f"{value / size:.3g}{unit}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _aligned(headings: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]

    def line(cells: list[str]) -> str:
        rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return "  ".join([cells[0].ljust(widths[0]), *rest])

    return [line(headings), "  ".join("-" * w for w in widths), *map(line, rows)]
