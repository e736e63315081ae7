"""What should I choose? `fp.plan` picks algorithm, step, local steps, participation and rounds for a target."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypedDict, Unpack

import jax
import numpy as np

from fedpoint.algorithms import FedAvg
from fedpoint.channel import Cast, Channel, Quantise, RandK
from fedpoint.channel.chain import as_channel
from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError, check_count, nearest
from fedpoint.core.selection import Only
from fedpoint.core.types import Model
from fedpoint.experiment import Experiment
from fedpoint.gather import Gather
from fedpoint.privacy import Privacy
from fedpoint.problems.base import Problem
from fedpoint.results.labels import short
from fedpoint.results.plan import REPEATS, Choice, Excluded, Goal, Plan, PlanProgress
from fedpoint.results.plan_table import MINIMISE, amount
from fedpoint.theory.planning import frontier
from fedpoint.theory.planning_cost import Prices
from fedpoint.timing.participation import as_participation
from fedpoint.timing.schemes import Everyone, Participation, Poisson
from fedpoint.verbs.plan.measure import least_loss, measure_on, start_loss
from fedpoint.verbs.plan.private import PrivateSearch
from fedpoint.verbs.plan.probed import ProbedSearch, unknown
from fedpoint.verbs.plan.search import Given, Method, Search, method_of

PARTS = (0.3, 0.1, 0.03)  # of agents, that take part in a private round
COMPRESSED = (Cast("bfloat16"), RandK(0.25), RandK(0.1), Quantise(4))
SEARCHING = 0.8  # of the seconds, where runs verify what was found


Way: TypeAlias = Channel | Sequence[Channel] | None  # how messages are sent; None: as they are


class GoalOptions(TypedDict, total=False):
    """What is asked for beside the target: the fields of `Goal`."""

    budget: float | None
    rounds: int | None
    measure: str
    minimise: str
    prices: Prices | None
    confidence: float | None
    seconds: float | None
    privacy: Privacy | None


class FixedOptions(TypedDict, total=False):
    """The arguments of an experiment that a plan does not choose."""

    start: Model
    exact: bool
    seed: int
    channel: Channel
    gather: Gather
    share: Only | str | Sequence[str] | None


class PlanOptions(GoalOptions, FixedOptions, total=False):
    """The other arguments of `fp.plan`."""

    channels: Iterable[Way] | None
    server_steps: Iterable[float] | None
    top: int
    repeats: int


@checked
def plan(
    problem: Problem | Experiment,
    target: float,
    methods: Iterable[Given] | None = None,
    local_steps: Iterable[int] | None = None,
    participation: Iterable[Participation | int | None] | None = None,
    verify: bool = False,
    progress: Callable[[PlanProgress], object] | None = None,
    **options: Unpack[PlanOptions],
) -> Plan:
    """Choose algorithm, step, local steps, participation and rounds that reach a target at the least cost.

    The choice is made from forecasts. Where they are exact nothing is run; where they are not, the first choice is run
    before it is called the best, and gives way to the next one if it misses the target. The promise is about the mean
    over runs or, with a confidence, about a share of single runs. Where there are no forecasts, as for neural networks,
    a probe (`fp.probe`) says which settings of FedAvg and SCAFFOLD to run, and the target is a value of the loss itself
    (measure="loss").

    Args:
        problem: or an experiment, which fixes everything but method, step, local steps and participants.
        target: of E|w - w*|^2 (measure="error") or of the loss above its minimum (measure="loss"; the loss itself
            where its minimum is not known).
        methods: names, classes or objects, whose step and local steps are chosen. Default: gradient exchange, FedAvg,
            FedProx, FedNova, SCAFFOLD, Scaffnew; and FedNewton where agents hold rows, or `exact` (beside batches only
            if messages are minimised). With a probe FedAvg and SCAFFOLD.
        local_steps: numbers of local steps to choose from; default 1, 4, 16, 64; with a probe 1, 2, 5, 10, 20, 50.
        participation: numbers of participants or schemes to choose from; default: all, a third, a tenth, one.
        verify: run the first `top` choices `repeats` times, and show their mean beside the forecast.
        progress: called with a `PlanProgress` after every setting.
        options: the arguments below, by name.
        budget: at most so much of what is minimised; where nothing is within it, the plan says what it buys.
        rounds: at most so many; what takes more is left out.
        minimise: "communication" (numbers sent, both ways), "bytes" (as they are sent, compression among the choices),
            "computation" (evaluations of local fields) or "time".
        prices: `fp.Prices`, for "time".
        confidence: promise that so large a share of single runs reaches the target, such as 0.95, instead of the mean.
        seconds: for the search: the best so far is returned, and `plan.unseen` says what was not looked at. What has
            begun is finished, and one setting is looked at whatever the time.
        channels: ways to send messages, to choose from: channels, or lists of them; None among them: as they are.
            Default: `channel`; of the fewest bytes, where none is given, a few compressors too.
        server_steps: factors of the hub's step to choose from beside 1, for methods that have one (SCAFFOLD, FedOpt;
            FedAvg through `FedOpt(server="sgd")`), with the local steps and participants that are best without.
            Default: none.
        privacy: `fp.Privacy(epsilon, delta)` that a run may spend: clip, noise at the hub, participants and rounds are
            chosen together, among FedAvg and gradient exchange unless methods are named.
        start, exact, seed, channel, gather, share: as in `fp.Experiment`.
        top: how many of the first choices `verify` runs.
        repeats: runs of each of them.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [1.0]], noise=0.01)
    >>> made = fp.plan(quad, target=1e-2, methods=["gradient_exchange"])
    >>> made.best.rounds, made.best.error <= 1e-2
    (1, True)
    """
    _check_known(options)
    top, repeats = options.pop("top", 3), options.pop("repeats", REPEATS)
    ways, factors = options.pop("channels", None), _server_steps(options.pop("server_steps", None))
    if verify:
        check_count("top", top, 1)
        check_count("repeats", repeats, 2)
    goal = Goal(target, **{name: options.pop(name) for name in GOAL if name in options})  # type: ignore[misc]
    experiment = _fixed(problem, options)
    private = goal.privacy is not None
    if private:
        _check_private(experiment, ways)
    kind = PrivateSearch if private else ProbedSearch if unknown(experiment) else Search
    kind.check(experiment, goal)
    chosen, twins = _without_twins(_methods(kind.default(experiment, goal) if methods is None else methods))
    chosen = [*chosen, *_farther(chosen, factors)]
    ways = _channels(ways, experiment, goal)
    grid = _local_steps(kind.local_steps if local_steps is None else local_steps)
    schemes = _schemes(participation, experiment.problem.agents, private)
    _check_start_error(experiment, goal)
    made = Plan(experiment, goal, measure_on(experiment, goal))
    made.excluded += twins
    clock = Clock(goal.seconds)
    search = kind(experiment, goal, max(grid))
    _fill(made, search, _over(chosen, ways), grid, schemes, clock, progress)
    made.probe = search.evidence()
    if not made.choices:
        made.advice = search.advice()
    if goal.budget is not None:
        _within(made, goal.budget)
    made.confirm(clock.late)
    if verify:
        made.verify(top, repeats)
    return made


class Clock:
    """The time that a plan may take."""

    def __init__(self, seconds: float | None):
        self.seconds, self.began = seconds, time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def late(self) -> bool:
        return self.seconds is not None and self.elapsed >= self.seconds

    def share(self, part: float, among: int) -> float:
        """Until when one of so many may go on, if all of them have a part of the time: what is left of it, in equal
        shares."""
        if self.seconds is None:
            return math.inf
        left = max(part * self.seconds - self.elapsed, 0.0)
        return time.monotonic() + left / among


def _fill(
    made: Plan,
    search: Search,
    methods: list[Method],
    grid: list[int],
    schemes: list[Participation],
    clock: Clock,
    progress: Callable[[PlanProgress], object] | None,
) -> None:
    """Search the settings of every method."""
    total, done = len(schemes) * sum(len(grid) if m.local else 1 for m in methods), 0
    part = 1.0 if made.problem.linear and made.confidence is None else SEARCHING
    for i, method in enumerate(methods):

        def tick(count: int, method: Method = method) -> None:
            nonlocal done
            done += count
            if progress is not None:
                least = min((c.cost for c in made.choices), default=None)
                progress(PlanProgress(done, total, method.title, least, clock.elapsed, clock.seconds))

        least = _least_cost(made, search, method)
        cheapest = min(made.choices, key=lambda c: c.cost, default=None)
        if least is not None and cheapest is not None and least >= cheapest.cost:
            unit = MINIMISE[made.minimise]
            why = f"would cost {amount(least)} {unit} even if nothing were lost on the way: {cheapest.title} costs less"
            made.excluded.append(Excluded(method.title, why))
            tick(len(schemes) * (len(grid) if method.local else 1))
            continue
        search.until = clock.share(part, len(methods) - i)
        found = search.method(method, *_around_plain(made, method, grid, schemes), tick)
        made.tried += found.good
        if found.best is not None:
            made.choices.append(found.best)
        elif found.failures:
            made.excluded.append(Excluded(method.title, search.telling(method, found.failures)))
    made.unseen = search.unseen
    made.choices.sort(key=lambda c: (c.cost, c.evaluations))
    made.forecasts = search.forecasts
    made.frontiers = {title: frontier(curves) for title, curves in search.curves.items()}


def _least_cost(made: Plan, search: Search, method: Method) -> float | None:
    """What a compressor costs at least: what is lost on the way takes no rounds away from those of its method without.
    None: not known."""
    best = next((c for c in made.choices if c.title == method.plain), None)
    if method.channel is None or best is None or best.step is None:
        return None
    try:
        use = search.use(method, method(best.step, best.local_steps), best.participation, best.local_steps)
    except FedpointError:
        return None  # a method that is refused over this channel: the search says why
    return search.goal.cost(use) * best.rounds


def _around_plain(
    made: Plan, method: Method, grid: list[int], schemes: list[Participation]
) -> tuple[list[int], list[Participation]]:
    """What of local steps and participants is looked at: of a compressor, where its method is best without."""
    best = next((c for c in made.choices if c.title == method.plain), None)
    return (grid, schemes) if best is None else ([best.local_steps], [best.participation])


def _within(made: Plan, budget: float) -> None:
    """Leave out what costs more than the budget; with nothing left, say what it buys."""
    unit = MINIMISE[made.minimise]
    over = [c for c in made.choices if c.cost > budget]
    made.choices = [c for c in made.choices if c.cost <= budget]
    for c in over:
        made.excluded.append(Excluded(c.title, f"costs {amount(c.cost)} {unit}, over the budget: {c.label}"))
    if not made.choices:
        bought = [cut for cut in (_cut(c, budget) for c in made.tried) if cut.rounds > 0]
        made.affordable = min(bought, key=lambda c: (c.error, c.cost), default=None)


def _cut(choice: Choice, budget: float) -> Choice:
    """As far as the budget goes."""
    each = choice.cost / choice.rounds
    times, values = choice.curve
    at = np.flatnonzero(times <= int(budget / each))[-1]
    rounds = int(times[at])
    return dataclasses.replace(
        choice,
        rounds=rounds,
        error=float(values[at]),
        cost=rounds * each,
        seconds=None if choice.seconds is None else choice.seconds / choice.rounds * rounds,
        curve=(times[: at + 1], values[: at + 1]),
    )


# What a user may have got wrong.

GOAL = tuple(f.name for f in dataclasses.fields(Goal) if f.name != "target")


def _check_known(options: PlanOptions) -> None:
    known = (*PlanOptions.__annotations__, "methods", "local_steps", "participation", "verify", "progress")
    for name in options:
        if name not in known:
            raise FedpointError(f"plan has no argument {name!r}: {nearest(name, known)}")


def _fixed(problem: Problem | Experiment, options: FixedOptions) -> Experiment:
    """What every choice has in common: all but the method and who takes part."""
    if not isinstance(problem, Experiment):
        return Experiment(FedAvg(step=1.0), problem, **options)
    if problem.timing.on_network:
        raise FedpointError("a plan is for a fusion center: on a network compare forecasts, fp.forecast(experiment)")
    if problem.timing.on_clock:
        raise FedpointError(
            f"{type(problem.timing).__name__} is worked out on a clock, and a plan chooses who takes part: "
            "leave out schedule="
        )
    return problem.replace(participation=None, **options)


def _methods(given: Iterable[Given]) -> list[Method]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = [given]
    found = [method_of(m) for m in given]
    if not found:
        raise FedpointError("methods is empty: name at least one, such as 'fedavg'")
    titles = [m.title for m in found]
    for i, m in enumerate(found):
        if titles.count(m.title) > 1:
            found[i] = dataclasses.replace(m, title=f"{m.title} ({titles[: i + 1].count(m.title)})")
    return found


def _without_twins(methods: list[Method]) -> tuple[list[Method], list[Excluded]]:
    """Those that differ here, and those that do not."""
    if not any(m.title == "FedAvg" for m in methods):
        return methods, []
    why = "with the same number of local steps for all it is FedAvg"
    twins = [m for m in methods if m.title == "FedNova"]
    return [m for m in methods if m not in twins], [Excluded(m.title, why) for m in twins]


def _channels(given: Iterable[Way] | None, experiment: Experiment, goal: Goal) -> list[Channel | None]:
    """Ways to send messages; None: as the experiment says."""
    if given is None:
        plain = experiment.channel.is_identity()
        return [None, *COMPRESSED] if goal.minimise == "bytes" and plain else [None]
    found = [None if one is None else as_channel(one) for one in given]
    if not found:
        raise FedpointError("channels is empty: give at least one, or None for messages as they are")
    return found


def _server_steps(given: Iterable[float] | None) -> list[float]:
    """Factors of the hub's step, beside 1."""
    try:
        found = [] if given is None else [float(one) for one in given]
    except (TypeError, ValueError):
        found = [math.nan]
    if not all(0 < one < math.inf for one in found):
        raise FedpointError(f"server_steps must be a list of numbers above 0, such as [2, 4]; got {given!r}")
    return sorted({one for one in found if one != 1.0})


def _farther(methods: list[Method], factors: list[float]) -> list[Method]:
    """Methods whose hub goes so many times as far."""
    found = [method.farther(factor) for factor in factors for method in methods]
    longer = [method for method in found if method is not None]
    if factors and not longer:
        raise FedpointError(
            "server_steps: none of these methods has a step of the hub: name fedavg, fedopt or scaffold"
        )
    return longer


def _over(methods: list[Method], ways: list[Channel | None]) -> list[Method]:
    """Every method over every way."""
    return [
        m if way is None else dataclasses.replace(m, title=f"{m.title}, {short(way)}", channel=way, plain=m.title)
        for way in ways  # methods as they are come first: what they cost bounds what a compressor may cost
        for m in methods
    ]


def _local_steps(given: Iterable[int] | int) -> list[int]:
    steps = [given] if isinstance(given, int) else list(given)
    if not steps:
        raise FedpointError("local_steps is empty: give at least one number of local steps")
    for E in steps:
        check_count("local_steps", E, 1)
    return sorted({int(E) for E in steps})


def _check_private(experiment: Experiment, ways: Iterable[Way] | None) -> None:
    if ways is not None or not experiment.channel.is_identity():
        raise FedpointError("privacy= chooses clip and noise itself: leave out channel= and channels=")


def _schemes(
    given: Iterable[Participation | int | None] | None, agents: int, private: bool = False
) -> list[Participation]:
    if given is None and private:
        return [Everyone(), *(Poisson(q) for q in PARTS if q * agents >= 2)]
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


def _check_start_error(experiment: Experiment, goal: Goal) -> None:
    problem, start = experiment.problem, experiment.start_model
    if goal.measure == "error":
        pairs = zip(jax.tree.leaves(start), jax.tree.leaves(problem.solution()), strict=True)
        now = sum(float(((np.asarray(a) - np.asarray(b)) ** 2).sum()) for a, b in pairs)
    else:
        now = start_loss(experiment) - least_loss(problem)
    if now <= goal.target:
        raise FedpointError(
            f"the start is at {now:.3g} already, not above the target {goal.target:g}: there is nothing to plan"
        )
