"""How is a plan found? Methods with an open step, the search over their settings, and why one is left out."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpoint.core.participation import Answering, Everyone
from fedpoint.errors import FedpointError, nearest
from fedpoint.runtimes.session import Session, check_valid
from fedpoint.theory.planning import LARGE, LONGEST, Trial, attempt, best_step, exactly, walks
from fedpoint.theory.planning_cost import Use
from fedpoint.verbs.forecast import Forecast, prepare
from fedpoint.verbs.plan_made import MARGIN, Choice, Options
from fedpoint.verbs.run import check_start


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


class Search:
    """The search for one plan."""

    def __init__(self, problem: Any, target: float, options: Options):
        self.problem, self.target, self.options = problem, target, options
        self.sizes: dict[str, list[tuple[int, int, int, float]]] = {}
        self.dear: dict[str, bool] = {}  # methods whose forecasts take long: fewer settings are looked at
        self.high: dict[str, tuple[int, Any, Trial]] = {}  # of each method: a setting that settles above the target
        self.affine: dict[Any, bool] = {}  # asked once for each method and kind of schedule
        self.forecasts = 0
        self.curves: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        constants = problem.constants()
        smooth = constants.delta if constants.delta_k is None else float(np.max(constants.delta_k))
        self.guess = 0.3 / smooth if smooth else 0.1

    def forecast(self, method: Method, step: float, E: int, scheme: Any) -> Forecast:
        o = self.options
        self.forecasts += 1
        return prepare(
            method(step, E),
            self.problem,
            scheme,
            o.start,
            o.exact,
            measure=o.measure,
            seed=o.seed,
            coarse=True,
            affine=self.affine.get((method.title, type(scheme))),
        )

    def aim(self, f: Forecast) -> float:
        """The target, or a little less where the forecast is not exact."""
        s = f.setting
        exact = f.noiseless or (s.problem.linear and s.affine and exactly(f))
        return self.target if exact else MARGIN * self.target

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
        f = self.forecast(method, trial.step, E, scheme)
        if walks(f.setting) or f.floor is None or not math.isfinite(f.floor):
            return reason
        parts = f"bias^2 {f.bias2:.2g} + variance {f.variance:.2g}"
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
            f = self.forecast(method, step, E, scheme)
            trial = attempt(f, step, self.aim(f), limit)
            self.affine[method.title, type(scheme)] = f.setting.affine
            if len(trial.times):
                self.curves.setdefault(method.title, []).append((cost * trial.times, trial.values))
            return trial

        setting = self.forecast(method, guess, E, scheme).setting
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
            self.forecast(method, trial.step, E, scheme),
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


def _telling(reasons: list[str]) -> str:
    """The reason that says most: a floor before slowness, slowness before what was refused."""
    for start in ("it settles", "steps short", "no step", "its floor"):
        for reason in reversed(reasons):
            if reason.startswith(start):
                return reason
    return reasons[-1] if reasons else "there was nothing to try"
