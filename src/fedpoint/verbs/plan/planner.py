"""What should I choose? `fp.plan` picks algorithm, step, local steps, participation and rounds for a target."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from fedpoint.algorithms import FedAvg
from fedpoint.core.errors import FedpointError, check_count, nearest
from fedpoint.experiment.checks import check_start
from fedpoint.problems.base import Problem
from fedpoint.results.plan import REPEATS, Choice, Excluded, Options, Plan, Progress
from fedpoint.results.plan_table import MEASURES, MINIMISE, amount
from fedpoint.theory.planning import frontier
from fedpoint.theory.planning_cost import Prices
from fedpoint.timing.participation import Everyone, Participation, as_participation
from fedpoint.verbs.plan.measure import lead, measure_on
from fedpoint.verbs.plan.search import Method, Search, method_of
from fedpoint.verbs.run import check_inputs

METHODS = ("gradient_exchange", "fedavg", "fedprox", "fednova", "scaffold", "scaffnew")
LOCAL_STEPS = (1, 4, 16, 64)


def plan(
    problem: Problem,
    target: float,
    budget: float | None = None,
    rounds: int | None = None,
    measure: str = "error",
    minimise: str = "communication",
    prices: Prices | None = None,
    methods: Iterable[Any] | None = None,
    local_steps: Iterable[int] | None = None,
    participation: Iterable[Participation | int] | None = None,
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
        rounds: at most so many; what takes more is left out.
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
    options = _check(problem, target, budget, measure, minimise, prices, start, exact, seed, rounds)
    chosen = _methods(methods)
    grid = _local_steps(local_steps)
    schemes = _schemes(participation, problem.agents)
    if verify:
        check_count("top", top, 1)
        check_count("repeats", repeats, 2)
    _check_start_error(problem, target, options)

    made = Plan(problem, float(target), budget, options, measure_on(problem, float(target), options))
    search = Search(problem, float(target), options)
    total, done = len(schemes) * sum(len(grid) if m.local else 1 for m in chosen), 0
    for method in chosen:
        if method.title == "FedNova" and any(m.title == "FedAvg" for m in chosen):
            made.excluded.append(Excluded(method.title, "with the same number of local steps for all it is FedAvg"))
            done += len(schemes) * len(grid)
            continue

        def tick(count: int, method: Method = method) -> None:
            nonlocal done
            done += count
            if progress is not None:
                costs = [c.cost for c in made.choices]
                progress(Progress(done, total, method.title, min(costs) if costs else None))

        good, failures = search.method(method, grid, schemes, tick)
        made.tried += good
        if good:
            made.choices.append(min(good, key=lambda c: c.cost))
        else:
            made.excluded.append(Excluded(method.title, search.telling(method, failures)))
    made.choices.sort(key=lambda c: (c.cost, c.evaluations))
    made.forecasts = search.forecasts
    made.frontiers = {title: frontier(curves) for title, curves in search.curves.items()}
    if budget is not None:
        _within(made, budget)
    if verify:
        made.verify(top, repeats)
    return made


def _within(made: Plan, budget: float) -> None:
    """Leave out what costs more than the budget; with nothing left, say what it buys."""
    unit = MINIMISE[made.minimise]
    over = [c for c in made.choices if c.cost > budget]
    made.choices = [c for c in made.choices if c.cost <= budget]
    for c in over:
        made.excluded.append(Excluded(c.title, f"costs {amount(c.cost)} {unit}, over the budget: {c.label}"))
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


# What a user may have got wrong.


def _check(
    problem: Problem,
    target: float,
    budget: float | None,
    measure: str,
    minimise: str,
    prices: Prices | None,
    start: Any,
    exact: bool,
    seed: int,
    rounds: int | None,
) -> Options:
    check_inputs(FedAvg(step=1.0), problem, seed)
    _above_zero("target", target)
    if budget is not None:
        _above_zero("budget", budget)
    if rounds is not None:
        check_count("rounds", rounds, 1)
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
    return Options(measure, minimise, prices, start, exact, int(seed), None if rounds is None else int(rounds))


def _above_zero(name: str, value: float) -> None:
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


def _schemes(given: Iterable[Participation | int] | None, agents: int) -> list[Participation]:
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


def _check_start_error(problem: Problem, target: float, options: Options) -> None:
    start = check_start(problem, options.start)
    if options.measure == "error":
        pairs = zip(jax.tree.leaves(start), jax.tree.leaves(problem.solution()), strict=True)
        now = sum(float(((np.asarray(a) - np.asarray(b)) ** 2).sum()) for a, b in pairs)
    else:
        first, last = (problem.objective(lead(w))[0] for w in (start, problem.solution()))
        now = float(first - last)
    if now <= target:
        raise FedpointError(
            f"the start is at {now:.3g} already, not above the target {target:g}: there is nothing to plan"
        )
