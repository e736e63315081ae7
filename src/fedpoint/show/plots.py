"""What does a run look like? Curves over rounds, numbers sent or evaluations, as PNG, SVG or PDF."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.numbers import counted, evenly
from fedpoint.results.labels import labels_of, short
from fedpoint.store import disk

if TYPE_CHECKING:  # matplotlib is loaded when something is drawn, not before
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedpoint.results.forecast import Forecast
    from fedpoint.results.plan import Plan
    from fedpoint.results.run import Run
    from fedpoint.results.sweep import Sweep

FORMATS = ("png", "svg", "pdf")
# Okabe and Ito's colours, told apart by colour-blind readers too, less the ones that are pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#B65A94", "#8A6D00", "#3A94C8", "#4D4D4D")
Stroke: TypeAlias = str | tuple[float, tuple[float, ...]]  # as matplotlib's linestyle
DASHED: Stroke = (0, (5, 1.5))
DOTTED: Stroke = (0, (1.5, 1))
STROKES: tuple[Stroke, ...] = ("-", DASHED, DOTTED)  # when the colours are used up
INK, PALE = "#222222", "#767676"
POINTS = 1500  # of a line: more cannot be seen, and makes vector files large
FAR = 1e4  # times the start: a line that goes there diverges
BAND = (10, 90)  # percent of the repeats

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


class Line(NamedTuple):
    """A curve and what its label needs to know."""

    x: np.ndarray
    y: np.ndarray
    label: str
    colour: str
    stroke: Stroke = "-"


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
    """One line each, with a band where there are repeats."""
    widest = max(len(one.label) for one in series) if len(series) > 1 else 0
    figure, ax = one_axes(width=6.5 + 0.075 * widest)
    lines, repeats = [], []
    for i, one in enumerate(_in_sight(series)):
        chosen = evenly(len(one.x), POINTS)
        at, values = one.x[chosen], one.values[:, chosen]
        colour, stroke = COLOURS[i % len(COLOURS)], STROKES[i // len(COLOURS) % len(STROKES)]
        lines.append(Line(at, values.mean(0), one.label, colour, stroke))
        repeats.append(len(values))
        if len(values) > 1:
            low, high = np.percentile(values, BAND, axis=0)
            ax.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
    positive = all(not (line.y < 0).any() and (line.y > 0).any() for line in lines)
    draw(ax, lines, log=positive and (what in WHAT or what.endswith("loss")))
    style(ax, AXES[x], WHAT.get(what, f"held-out {what.removeprefix('held-out ')}"), title)
    if len(lines) > 1:
        end_labels(ax, lines)
    _say_repeats(ax, repeats)
    if path is not None:
        save(figure, path)
    return figure


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
    """The expected error, with lines at the floor and at the bias, and a run on the same axis where given."""
    if path is not None:
        check_path(path)
    if rounds is None:
        rounds = int(run.rounds[-1]) if run is not None else settling_rounds(forecast)
    figure, ax = one_axes(width=7.6)
    lines = [] if run is None else [_run_line(ax, forecast, run, rounds)]
    name = f"forecast, {forecast.proviso}" if forecast.proviso else "forecast"
    lines.append(Line(*expected_curve(forecast, rounds, POINTS), name, INK, DASHED))
    ends = np.array([0, rounds])
    for level in levels(forecast.floor, forecast.bias2):
        text = f"{level.name} {level.value:.2g}"
        lines.append(Line(ends, np.full(2, level.value), text, COLOURS[level.colour], DOTTED))
    draw(ax, lines)
    what = WHAT["error"] if forecast.measure == "error" else "loss above its minimum"
    style(ax, AXES["rounds"], what, title or forecast.algorithm.card.title)
    end_labels(ax, lines)
    if path is not None:
        save(figure, path)
    return figure


def _run_line(ax: Axes, forecast: Forecast, run: Run, rounds: int) -> Line:
    """A run's curve of what is forecast, with its band drawn."""
    values, at = measured(run, forecast.measure)
    values, at = values[:, at <= rounds], at[at <= rounds]
    some = evenly(len(at), POINTS)
    values, at = values[:, some], at[some]
    if forecast.measure == "loss":
        values = values - float(run.problem.objective(np.asarray(run.problem.solution())[None])[0])
    if len(values) > 1:
        low, high = np.percentile(values, BAND, axis=0)
        ax.fill_between(at, low, high, color=COLOURS[0], alpha=0.15, linewidth=0)
        _say_repeats(ax, [len(values)])
    return Line(at, values.mean(0), "run", COLOURS[0])


def expected_curve(forecast: Forecast, rounds: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """At most so many rounds, and the expected curve at them; one that diverges ends where it has done so."""
    with np.errstate(all="ignore"):
        curve = np.asarray(forecast.curve(rounds))
        near = np.flatnonzero(curve <= 1e30 * (1 + curve[0]))
    at = evenly(int(near[-1]) + 1, most)
    return at, curve[at]


class Level(NamedTuple):
    """Where an error ends by its forecast; colour: a number of the palette."""

    name: str
    value: float
    colour: int


def levels(floor: float | None, bias2: float | None) -> list[Level]:
    """Floor and squared bias, those that a log axis has a place for."""
    known = (("floor", floor, 1), ("bias²", bias2, 2))
    return [Level(name, value, i) for name, value, i in known if value is not None and 0 < value < np.inf]


def settling_rounds(forecast: Forecast, most: int = 20_000) -> int:
    """Rounds after which the expected error has settled, or a few hundred."""
    rate = forecast.rate
    if rate is None or not 0 < rate < 1 or forecast.diverges:
        return 200
    return int(np.clip(np.ceil(8 / -np.log(max(rate, 1e-3))), 20, most))


def _say_repeats(ax: Axes, repeats: list[int]) -> None:
    if max(repeats) > 1:
        count = f"{min(repeats)}" if min(repeats) == max(repeats) else f"{min(repeats)} to {max(repeats)}"
        text = f"mean of {count} repeats; the band holds {BAND[1] - BAND[0]} % of them"
        ax.text(1, 1, text, transform=ax.transAxes, ha="right", va="bottom", fontsize=8, color=PALE)


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


def new_figure(width: float, height: float, pad: float = 0.05) -> Figure:
    """An empty figure that belongs to nobody else: no pyplot, no global state. Sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=pad, h_pad=pad)
    figure = Figure(figsize=(width, height), layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def one_axes(width: float = 6.5, height: float = 4.5) -> tuple[Figure, Axes]:
    figure = new_figure(width, height)
    return figure, figure.add_subplot()


def draw(ax: Axes, lines: Sequence[Line], log: bool = True, width: float = 1.6) -> None:
    """The lines, on a log axis when they can be."""
    for line in lines:
        y = np.where(line.y > 0, line.y, np.nan) if log else line.y  # exactly 0 has no place on a log axis
        ax.plot(line.x, y, color=line.colour, linestyle=line.stroke, linewidth=width)
    if log:
        ax.set_yscale("log")


def style(ax: Axes, xlabel: str = "", ylabel: str = "", title: str | None = None) -> None:
    """What all figures share: a light grid, no frame, names on the axes."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    ax.grid(True, which="major", color="#E4E4E4", linewidth=0.6)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color("#999999")
    ax.tick_params(which="both", color="#999999", labelcolor=INK, labelsize=9)
    ax.tick_params(which="minor", length=0)
    ax.margins(x=0.0)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _thousands(value)))
    low, high = ax.get_ylim()
    if ax.get_yscale() == "log" and high < 100 * low:  # powers of ten alone would be too few
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(xlabel, color=INK, fontsize=10)
    ax.set_ylabel(ylabel, color=INK, fontsize=10)
    if title:
        ax.set_title(title, color=INK, fontsize=11, loc="left", fontweight="bold")


def _thousands(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:,.0f}"


def end_labels(ax: Axes, lines: Sequence[Line], size: float = 9) -> None:
    """Each line's label at its right end, in its colour, moved apart where they would overlap."""
    ax.autoscale_view()
    to_axes = ax.transData + ax.transAxes.inverted()
    heights = []
    for line in lines:
        drawn = np.isfinite(line.y) & ((line.y > 0) | (ax.get_yscale() != "log"))
        last = line.y[drawn][-1] if drawn.any() else ax.get_ylim()[0]
        heights.append(float(to_axes.transform((line.x[-1], last))[1]))
    points = ax.get_window_extent().height * 72 / ax.figure.dpi
    rows = [line.label.count("\n") + 1 for line in lines]
    for line, y in zip(lines, spread(heights, [(1.2 * n + 0.5) * size / points for n in rows]), strict=True):
        ax.annotate(
            line.label,
            (1, y),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=size,
            color=line.colour,
            linespacing=1.1,
            annotation_clip=False,
        )


def spread(places: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """The places, moved as little as can be (least squares) for labels of these sizes to lie apart and within [0, 1].

    >>> spread([0.5, 0.9, 0.5], [0.1, 0.1, 0.1])
    [0.45, 0.9, 0.55]
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    ordered = np.array([sizes[i] for i in order])
    centre = np.cumsum(ordered) - ordered / 2  # were they stacked from 0 on
    groups: list[list[float]] = []  # of labels that touch: the mean of what is left to move, and how many
    for i, stacked in zip(order, centre, strict=True):
        groups.append([places[i] - stacked, 1])
        while len(groups) > 1 and groups[-2][0] >= groups[-1][0]:
            (low, m), (high, n) = groups[-2:]
            groups[-2:] = [[(low * m + high * n) / (m + n), m + n]]
    move = np.repeat([g[0] for g in groups], [int(g[1]) for g in groups])
    moved = np.clip(move, 0, max(0.0, 1 - ordered.sum())) + centre
    return [round(float(moved[order.index(i)]), 12) for i in range(len(places))]


def check_path(path: str | Path) -> str:
    """The format of a picture by its path; refused before any work is done."""
    path = Path(path)
    ending = path.suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        raise FedpointError(
            f"{path}: a picture is saved as {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, by the ending of its name"
        )
    if not path.parent.is_dir():
        raise FedpointError(f"the folder {path.parent} does not exist: create it, or save {path.name} elsewhere")
    return ending


def save(figure: Figure, path: str | Path, dpi: int = 160) -> None:
    """Write a figure whole or not at all; the same figure gives the same bytes."""
    import matplotlib

    ending = check_path(path)
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[ending]
    # Type 42: text stays text, as journals ask.
    steady = matplotlib.rc_context({"svg.hashsalt": "fedpoint", "pdf.fonttype": 42})
    with steady, disk.atomic(Path(path)) as file:
        figure.savefig(file, format=ending, dpi=dpi, metadata=metadata)


COSTS = {
    "communication": "numbers sent, down and up together",
    "computation": "evaluations of local fields, all agents together",
    "time": "seconds, by the given prices",
}


def plan_picture(plan: Plan, path: str | Path | None = None, title: str | None = None) -> Figure:
    """Cost against accuracy, one line a method: what a cost buys at best, over all settings that were tried.

    A dot is where a method reaches the target; the dashed line is the target.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if path is not None:
        check_path(path)
    if not plan.frontiers:
        raise FedpointError("nothing to plot: no method was followed")
    figure, ax = one_axes(width=8.0)
    lines = []
    for i, (name, (cost, error)) in enumerate(plan.frontiers.items()):
        some = cost > 0
        lines.append(Line(cost[some], error[some], name, COLOURS[i % len(COLOURS)], STROKES[i // len(COLOURS)]))
    lines = [line for line in lines if len(line.x)]
    draw(ax, lines)
    colours = {line.label: line.colour for line in lines}
    for choice in plan.choices:
        ax.plot([choice.cost], [choice.error], "o", color=colours[choice.title], markersize=5, clip_on=False, zorder=5)
    ax.axhline(plan.target, color=PALE, linewidth=0.8, linestyle=(0, (4, 3)))
    ax.text(0.01, plan.target, "target", transform=ax.get_yaxis_transform(), va="bottom", fontsize=8, color=PALE)
    what = "expected squared distance to the solution" if plan.measure == "error" else "expected loss above its minimum"
    style(ax, COSTS[plan.minimise], what, title)
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: _thousands(v) if v >= 1 else f"{v:g}"))
    if plan.budget is not None:
        ax.axvline(plan.budget, color=PALE, linewidth=0.8, linestyle=(0, (1, 2)))
    end_labels(ax, lines)
    if path is not None:
        save(figure, path)
    return figure
