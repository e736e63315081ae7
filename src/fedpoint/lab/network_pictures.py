"""The labs of lecture 003 on one slide each: errors over couplings, networks coloured by a parameter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.core.numbers import counted
from fedpoint.data import contiguity
from fedpoint.lab.picture import DASHES
from fedpoint.show.network import colour_bar, draw_network, layout
from fedpoint.show.plots import COLOURS, INK, PALE, Line, draw, end_labels, new_figure, save, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

    from fedpoint.graphs.network import Network
    from fedpoint.lab.gtvmin import Descent, Draw, GTVMin
    from fedpoint.lab.states import Curve, Stage, States


def gtvmin_picture(
    study: GTVMin, network: Network, truth: np.ndarray, draws: list[Draw], descents: list[Descent], path: Path
) -> None:
    figure = new_figure(13.2, 8.6, pad=0.1)
    figure.suptitle(study.title, x=0.008, ha="left", fontsize=17, fontweight="bold", color=INK)
    above, below = np.asarray(figure.subfigures(2, 1, height_ratios=[1.12, 1]))
    error, held_out, rounds = above.subplots(1, 3)
    errors = np.array([d.error for d in draws])
    chosen = np.array([d.choice.coupling for d in draws])
    fits = {
        "alone": [d.local for d in draws],
        "one for all": [d.pooled for d in draws],
        "one per cluster,\nwere they known": [d.known for d in draws],
    }
    _couplings(error, study.grid, [("", errors, COLOURS[0])], "error against the truth")
    for label, values in fits.items():
        _level(error, float(np.mean(values)), label)
    _title(error, "1. Between fits alone\nand one model for all")
    _couplings(held_out, study.grid, [("", np.array([d.choice.errors for d in draws]), COLOURS[2])], "held-out error")
    _title(held_out, "2. Validation finds the coupling")
    for ax in (error, held_out):
        _marks(ax, chosen)
    _rounds(rounds, descents)
    _title(rounds, f"3. Both methods get there, as predicted\n(coupling {draws[0].choice.coupling:.2g})")
    task, coupling = draws[0].task, draws[0].choice.coupling
    shown = [
        ("the truth", truth),
        ("alone", task.local_solutions()),
        (f"coupling {_short(coupling)}", draws[0].choice.models),
        (f"coupling {_short(study.grid[-1])}", draws[0].path.models[-1]),
    ]
    j = int(np.argmax(truth.std(0)))  # in which clusters differ most
    low, high = truth[:, j].min(), truth[:, j].max()
    room = 0.25 * (high - low)
    places, drawn, axes = layout(network), None, below.subplots(1, len(shown))
    for ax, (title, models) in zip(axes, shown, strict=True):
        drawn = draw_network(ax, network, models[:, j], places, title, (low - room, high + room), names=False, size=52)
    colour_bar(below, drawn, axes, f"parameter {j + 1} of {study.dim}", aspect=22, shrink=0.8, extend="both")
    _explain_gtvmin(study, network, below)
    save(figure, path)


def _explain_gtvmin(study: GTVMin, network: Network, figure: SubFigure) -> None:
    text = (
        f"{study.clusters} clusters of {study.size} nodes, {study.rows} rows a node for {study.dim} parameters, noise "
        f"variance {study.noise:g}; {len(network.edges)} edges. Mean of {counted(study.repeats, 'draw')} of the rows, "
        "bands: the middle 80 %, ticks: chosen couplings. Dashed in 3: exact prediction."
    )
    figure.supxlabel(text, x=0.008, ha="left", fontsize=9, color=PALE)


def states_picture(
    study: States, last: Stage, curve: Curve, shuffled: list[Curve], limits: tuple[list[float], list[float]], path: Path
) -> None:
    figure = new_figure(13.2, 6.6, pad=0.1)
    figure.suptitle(study.title, x=0.008, ha="left", fontsize=17, fontweight="bold", color=INK)
    left, right = np.asarray(figure.subfigures(1, 2, width_ratios=[1, 1.9]))
    choose, test = left.subplots(2, 1, sharex=True)
    local, pooled = limits
    for i, (ax, years) in enumerate(((choose, study.choose), (test, study.test))):
        own, *others = ((c.choose, c.test)[i] for c in (curve, *shuffled))
        lines = [("neighbours", own[None], COLOURS[0]), ("states exchanged", np.array(others), PALE)]
        _couplings(ax, study.grid, lines, "mean squared error", bottom=i == 1)
        _level(ax, local[i], "alone")
        _level(ax, pooled[i], "one for all")
        ax.plot(study.grid[curve.best], own[curve.best], "o", color=COLOURS[1], markersize=6, zorder=5)
        what = "choose the coupling" if i == 0 else "only tested"
        _title(ax, f"{years[0]} to {years[1]}: {what}")
    net = contiguity(codes=True)
    alone, coupled = last.task.local_solutions(), curve.models[curve.best]
    rows = right.subplots(2, 2)
    slope = [models[:, 3] for models in (alone, coupled)]
    low, high = np.quantile(slope[1], [0.02, 0.98])
    room = 0.5 * (high - low)
    size = np.sqrt([last.error(models) for models in (alone, coupled)])
    with_it = f"coupled ({_short(study.grid[curve.best])})"
    titles = (("alone", with_it), ("error alone", f"error {with_it}"))
    for ax, title, values in zip(rows[0], titles[0], slope, strict=True):
        drawn = draw_network(ax, net, values, None, title, (low - room, high + room), names=True, size=60)
    colour_bar(right, drawn, rows[0], "weight of employment", aspect=18, shrink=0.75, extend="both")
    for ax, title, values in zip(rows[1], titles[1], size, strict=True):
        drawn = draw_network(ax, net, values, None, title, (0.0, float(np.quantile(size[0], 0.9))), names=True, size=60)
    colour_bar(
        right,
        drawn,
        rows[1],
        f"root mean square, {study.test[0]} to {study.test[1]}",
        aspect=18,
        shrink=0.75,
        extend="max",
    )
    save(figure, path)


def _couplings(ax: Axes, x: np.ndarray, lines: list, ylabel: str, bottom: bool = True) -> None:
    """Means over rows of values (n, couplings), with a band of the middle 80 %."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    drawn = []
    for label, values, colour in lines:
        if len(values) > 1:
            low, high = np.percentile(values, (10, 90), axis=0)
            ax.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        drawn.append(Line(x, values.mean(0), label, colour))
    draw(ax, drawn, width=1.8)
    ax.set_xscale("log")
    style(ax, "coupling" if bottom else "", ylabel)
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(numticks=5))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlim(x[0], x[-1])
    ax.tick_params(labelbottom=bottom)
    for line in drawn:
        if line.label:
            ax.plot([], [], color=line.colour, linewidth=1.8, label=line.label)
    if any(line.label for line in drawn):
        ax.legend(frameon=False, fontsize=8.5, labelcolor=INK, loc="center left", bbox_to_anchor=(0.02, 0.66))


def _level(ax: Axes, value: float, label: str) -> None:
    """A line to compare with; what a coupling of 0 tends to is named at the left, below."""
    ax.axhline(value, color=INK, linewidth=0.9, linestyle=DASHES)
    x, ha, va = (0.015, "left", "top") if label == "alone" else (0.985, "right", "bottom")
    ax.text(x, value, label, transform=ax.get_yaxis_transform(), ha=ha, va=va, fontsize=8, color=INK)


def _marks(ax: Axes, chosen: np.ndarray) -> None:
    """Chosen couplings as ticks above the axis."""
    for value in chosen:
        ax.plot([value, value], [0, 0.035], transform=ax.get_xaxis_transform(), color=COLOURS[1], linewidth=1.2)


def _rounds(ax: Axes, descents: list) -> None:
    lines = [
        Line(np.arange(len(d.error)), d.error, f"{d.title}\n{d.rate:.3f} a round", COLOURS[i + 3])
        for i, d in enumerate(descents)
    ]
    draw(ax, lines, width=2.2)
    for d in descents:
        ax.plot(np.arange(len(d.exact)), d.exact, color=INK, linestyle=DASHES, linewidth=0.9)
    style(ax, "rounds", "squared distance to GTVMin's solution")
    ax.set_ylim(bottom=1e-26)
    end_labels(ax, lines)


def _short(value: float) -> str:
    """
    >>> [_short(v) for v in (1e-4, 0.31622, 1000.0)]
    ['0.0001', '0.32', '1000']
    """
    return f"{float(f'{value:.2g}'):g}"


def _title(ax: Axes, text: str) -> None:
    ax.set_title(text, color=INK, fontsize=11, loc="left", fontweight="bold")
