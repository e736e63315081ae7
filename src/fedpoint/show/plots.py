"""What does a run look like? Curves over rounds, numbers sent or evaluations, as PNG, SVG or PDF."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.numbers import counted, evenly
from fedpoint.results.labels import labels_of, short
from fedpoint.show import palette
from fedpoint.show.drawing import Panel, Side, panel
from fedpoint.show.expected import SINGLE_RUNS, Expected, expected, lines, note, run_lines, settling_rounds
from fedpoint.show.figures import COLOURS, Line, check_path, draw_panel, key, one_axes, paint, save
from fedpoint.show.lines import ChartLine, banded, known, positive

if TYPE_CHECKING:  # matplotlib is loaded when something is drawn, not before
    from matplotlib.figure import Figure

    from fedpoint.results.forecast import Forecast
    from fedpoint.results.plan import Plan
    from fedpoint.results.run import Run
    from fedpoint.results.sweep import Sweep

POINTS = 1500  # of a line: more cannot be seen, and makes vector files large
FAR = 1e4  # times the start: a line that goes there diverges
BAND = (10, 90)  # percent of the repeats
SINGLES = 20  # repeats that are drawn one by one beside a forecast
NOWHERE = np.zeros(0)  # of what is in a key only

WHAT = {
    "error": "squared distance to the solution",
    "loss": "loss",
}
AXES = {
    "rounds": "communication rounds",
    "floats": "numbers sent, down and up together",
    "evaluations": "evaluations of local fields, all agents together",
    "messages": "messages, down and up together",
    "bytes": "bytes sent, down and up together",
    "time": "virtual seconds",
}


class Series(NamedTuple):
    """What one line is drawn of: where its points lie across, (n,), and their values, (repeats, n)."""

    x: np.ndarray
    values: np.ndarray
    label: str


def curves(
    runs: Sequence[Run],
    path: str | Path | None = None,
    what: str | None = None,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    x: str = "rounds",
) -> Figure:
    """The mean over repeats of each run, with a band that holds the middle 80 % of them.

    Args:
        runs: results of `fp.run`.
        path: where to save it; png, svg or pdf by the ending.
        what: "error", "loss", or a metric of `evaluate=` such as "accuracy" or "held-out loss"; default: the error
            where the solution is known, else the loss.
        labels: one per run; default: what differs between the runs.
        x: "rounds", "messages", "floats" (numbers sent, both ways), "bytes", "evaluations" (of local fields) or "time"
            (virtual seconds).
    """
    runs = list(runs)
    if not runs:
        raise FedpointError("nothing to plot: give at least one run")
    if path is not None:
        check_path(path)
    if labels is None:
        labels = labels_of([r.algorithm for r in runs], [short(r.participation) for r in runs])
    if len(labels) != len(runs):
        raise FedpointError(f"{counted(len(labels), 'label')} for {counted(len(runs), 'run')}: give one each")
    what = what or default_measure(runs)
    series = []
    for run, name in zip(runs, labels, strict=True):
        values, rounds = measured(run, what)
        series.append(Series(across(run, rounds, x), values, name))
    return draw_series(series, path, what, x, title)


def point_curves(
    sweep: Sweep, path: str | Path | None = None, what: str | None = None, x: str = "rounds", title: str | None = None
) -> Figure:
    """One line a point of a sweep, as `curves` draws runs."""
    if path is not None:
        check_path(path)
    what = what or sweep.judge()
    values = sweep.measured(what)
    series = []
    for i, (own, name) in enumerate(zip(values, sweep.labels, strict=True)):
        lanes = slice(i * sweep.repeats, (i + 1) * sweep.repeats)
        series.append(Series(across(sweep.run, sweep.rounds, x, lanes), own, name))
    return draw_series(series, path, what, x, title)


def draw_series(series: Sequence[Series], path: str | Path | None, what: str, x: str, title: str | None) -> Figure:
    return drawn(series_panel(series, what, x, title or ""), path)


def drawn(
    panel: Panel, path: str | Path | None = None, keyed: Sequence[Line] = (), words: str = "", width: float = 6.5
) -> Figure:
    """A panel as a figure, saved where a path is given; keyed, words: what else its key says."""
    figure, ax = one_axes([line["name"] for line in panel.named], width)
    entries = [*keyed, *draw_panel(ax, panel)]
    if entries:
        key(figure, entries, words)
    if path is not None:
        save(figure, path)
    return figure


def series_panel(
    series: Sequence[Series], what: str, x: str = "rounds", title: str = "", points: int = POINTS
) -> Panel:
    """One line each, with a band where there are repeats, of at most so many points."""
    lines = [_mean_and_band(one, i, points) for i, one in enumerate(_in_sight(series))]
    log = positive(lines) and (what in WHAT or what.endswith("loss"))
    up = WHAT.get(what, f"held-out {what.removeprefix('held-out ')}")
    across = Side(AXES[x], whole=x != "time")
    return panel(lines, across, Side(up, log), title, _said_of([len(one.values) for one in series]))


def _mean_and_band(one: Series, place: int, points: int) -> ChartLine:
    some = evenly(len(one.x), points)
    values = np.asarray(one.values, float)[:, some]
    line: ChartLine = {
        "name": one.label,
        "x": np.asarray(one.x, float)[some].tolist(),
        "y": known(values.mean(0)),
        "colour": place % len(COLOURS),
        "dash": palette.dash_of(place),
    }
    if len(values) > 1:
        low, high = np.percentile(values, BAND, axis=0)
        line["low"], line["high"] = known(low), known(high)
    return line


def _in_sight(series: Sequence[Series]) -> list[Series]:
    """The same, one that diverges ended a little above where all start: it would flatten the others."""
    start = max((one.values[:, 0].mean() for one in series), default=0.0)
    if not start > 0 or not any((one.values > FAR * start).any() for one in series):
        return list(series)
    made = []
    for one in series:
        gone = ~(one.values.mean(0) <= 100 * start)  # nan too
        end = int(gone.argmax()) + 1 if gone.any() else len(one.x)
        made.append(Series(one.x[:end], np.minimum(one.values[:, :end], 100 * start), one.label))
    return made


def known_measures(runs: Sequence[Run]) -> list[str]:
    """Which of "error" and "loss" all of the runs have."""
    known = {"error": all(run.has_error for run in runs), "loss": all(run.has_loss for run in runs)}
    return [what for what, there in known.items() if there]


def default_measure(runs: Sequence[Run]) -> str:
    """What is drawn of runs unless somebody asks: the error where the solution is known, else the loss."""
    measures = known_measures(runs)
    if measures:
        return measures[0]
    told = sorted({name for run in runs for name in run.evaluation})
    hint = f"name a held-out metric with what=: {', '.join(told)}" if told else "give fp.run an evaluate= to plot"
    raise FedpointError(f"nothing to plot: the solution is not known, and there is no loss; {hint}")


def forecast_curve(
    forecast: Forecast,
    path: str | Path | None = None,
    rounds: int | None = None,
    run: Run | None = None,
    title: str | None = None,
) -> Figure:
    """The expected error with the band of single runs, floor and bias; where given, a run that fills it in."""
    if path is not None:
        check_path(path)
    if rounds is None:
        rounds = int(run.rounds[-1]) if run is not None else settling_rounds(forecast)
    found = expected(forecast, rounds, POINTS)
    if "no_curve" in found:
        raise FedpointError(found["no_curve"])
    own = None if run is None else _beside(forecast, run, rounds)
    shown = lines(found) if own is None else [*run_lines(own.x, own.values, POINTS, SINGLES), *lines(found)]
    said = note(found, 1 if own is None else len(own.values), keyed=True)
    made = expected_panel(found, shown, title or forecast.algorithm.card.title, said, rounds)
    bands = [
        Line(NOWHERE, NOWHERE, SINGLE_RUNS, paint(line["colour"]), "-", 8.0, True, palette.SHADE)
        for line in shown
        if banded(line)
    ]
    return drawn(made, path, bands)


def expected_panel(
    found: Expected, shown: Sequence[ChartLine], title: str = "", said: str | None = None, rounds: int | None = None
) -> Panel:
    """Lines of a forecast and of what is beside it, from round 0 on; said: in place of its own note."""
    across = Side(AXES["rounds"], whole=True, low=0, high=rounds)
    return panel(shown, across, Side(found["measures"], log=True), title, note(found) if said is None else said)


def _beside(forecast: Forecast, run: Run, rounds: int) -> Series:
    """What a run measured of what is forecast."""
    values, at = measured(run, forecast.measure)
    values, at = values[:, at <= rounds], at[at <= rounds]
    if forecast.measure == "loss":
        values = values - float(run.problem.objective(np.asarray(run.problem.solution())[None])[0])
    return Series(at, values, "run")


def _said_of(repeats: list[int]) -> str:
    if max(repeats) == 1:
        return ""
    count = f"{min(repeats)}" if min(repeats) == max(repeats) else f"{min(repeats)} to {max(repeats)}"
    return f"mean of {count} repeats; the band holds {BAND[1] - BAND[0]} % of them"


def across(run: Run, rounds: np.ndarray, x: str, lanes: slice = slice(None)) -> np.ndarray:
    """Where recorded rounds lie on an axis, (n,): a mean over these of the run's repeats."""
    if x not in AXES:
        raise FedpointError(f"unknown x {x!r}: {nearest(str(x), AXES)}")
    if x == "rounds":
        return rounds
    places = np.searchsorted(run.rounds, rounds)
    if x == "time":
        return np.asarray(run.time)[lanes].mean(0)[places]
    asked, heard, evaluations = np.asarray(run.used, float)[lanes].mean(0)[places].T
    down, up, width, up_bytes = run.info.message
    sent = {
        "evaluations": evaluations,
        "messages": asked + heard,
        "floats": asked * down + heard * up,
        "bytes": asked * down * width + heard * up_bytes,
    }
    return sent[x]


def measured(run: Run, what: str) -> tuple[np.ndarray, np.ndarray]:
    """(repeats, n) and the rounds they belong to."""
    if what not in WHAT:
        held_out = {f"held-out {name}": values for name, values in run.evaluation.items()}
        name = what if what in held_out else f"held-out {what}"
        if name not in held_out:
            raise FedpointError(f"unknown what {what!r}: {nearest(str(what), [*WHAT, *held_out])}")
        return np.asarray(held_out[name]), np.asarray(run.evaluated_rounds)
    values = run.error if what == "error" else run.loss
    return np.asarray(values), np.asarray(run.rounds)


COSTS = {
    "communication": "numbers sent, down and up together",
    "bytes": "bytes sent, down and up together",
    "computation": "evaluations of local fields, all agents together",
    "time": "seconds, by the given prices",
}


DEEP = 1e-3  # of the target: errors below that are drawn there


def plan_picture(plan: Plan, path: str | Path | None = None, title: str | None = None) -> Figure:
    """Cost against accuracy, one line a method: what a cost buys at best, over all settings that were tried.

    A dot is where a method reaches the target. Errors far below it are drawn at its thousandth.
    """
    if path is not None:
        check_path(path)
    if not plan.frontiers:
        raise FedpointError("nothing to plot: no method was followed")
    what = "squared distance to the solution" if plan.measure == "error" else "loss above its minimum"
    what = f"expected {what}" if plan.confidence is None else f"{what}, of {plan.confidence:.3g} of runs"
    said = "a dot: where a method reaches the target"
    deep = any(choice.error < DEEP * plan.target for choice in plan.choices)
    said += f"; what is below {DEEP * plan.target:.0e} is drawn there" if deep else ""
    across = Side(COSTS[plan.minimise], log=True)
    return drawn(panel(_frontiers(plan), across, Side(what, log=True), title or "", said), path, width=7.0)


def _frontiers(plan: Plan) -> list[ChartLine]:
    """What each method reaches for its cost; the target, and the budget where there is one."""
    found: list[ChartLine] = []
    for i, (name, (cost, error)) in enumerate(plan.frontiers.items()):
        some, error = cost > 0, np.maximum(error, DEEP * plan.target)
        look: ChartLine = {"name": name, "colour": i % len(COLOURS), "dash": palette.dash_of(i)}
        if some.any():
            found.append({**look, "x": cost[some].tolist(), "y": known(error[some])})
        reached = [choice for choice in plan.choices if choice.title == name]
        heights = [max(choice.error, DEEP * plan.target) for choice in reached]
        if reached:
            found.append({**look, "x": [float(c.cost) for c in reached], "y": known(heights), "dots": True})
    found.append({"name": "target", "level": float(plan.target), "colour": "pale", "dash": "dashed"})
    if plan.budget is not None:
        drawn_at = [v for line in found for v in line.get("y", ()) if v is not None]
        ends = [float(plan.budget)] * 2, [min(drawn_at), max(drawn_at)]
        found.append({"name": "budget", "x": ends[0], "y": known(ends[1]), "colour": "pale", "quiet": True})
    return found
