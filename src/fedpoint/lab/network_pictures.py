"""The labs of lecture 003 on one slide each: errors over couplings, networks coloured by a parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedpoint.core.numbers import counted
from fedpoint.data import contiguity
from fedpoint.lab.picture import EXACT
from fedpoint.show.figures import (
    COLOURS,
    DASHED,
    DOTTED,
    INK,
    PALE,
    Line,
    draw,
    key,
    log_axis,
    new_figure,
    set_title,
    style,
)
from fedpoint.show.network import colour_bar, draw_network, layout

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from fedpoint.graphs.network import Network
    from fedpoint.lab.gtvmin import Descent, Draw, GTVMin
    from fedpoint.lab.states import Curve, Stage, States


def gtvmin_picture(
    study: GTVMin, network: Network, truth: np.ndarray, draws: list[Draw], descents: list[Descent]
) -> Figure:
    figure = new_figure(13.2, 8.9, pad=0.1)
    figure.suptitle(study.title, x=0.008, ha="left", fontsize=17, fontweight="bold", color=INK)
    above, below = np.asarray(figure.subfigures(2, 1, height_ratios=[1.12, 1]))
    error, held_out, rounds = above.subplots(1, 3)
    _errors(error, study, draws)
    values = np.array([d.choice.errors for d in draws])
    _couplings(held_out, study.grid, [_mean_line(held_out, study.grid, values, "GTVMin", COLOURS[2])], "held-out error")
    set_title(held_out, "2. Validation finds the coupling")
    for ax in (error, held_out):
        _marks(ax, np.array([d.choice.coupling for d in draws]))
    _rounds(rounds, descents)
    set_title(rounds, f"3. Both methods get there, as predicted\n(coupling {draws[0].choice.coupling:.2g})")
    _maps(below, study, network, truth, draws[0])
    text = (
        f"{study.clusters} clusters of {study.size} nodes, {study.rows} rows a node for {study.dim} parameters, noise "
        f"variance {study.noise:g}; {len(network.edges)} edges. Mean of {counted(study.repeats, 'draw')} of the rows; "
        "bands hold the middle 80 % of them, red ticks are the couplings that they chose. Maps: of the first draw."
    )
    key(below, [_exact_line(np.empty(0))], text)
    return figure


def _errors(ax: Axes, study: GTVMin, draws: list[Draw]) -> None:
    levels = {
        "alone": [d.local for d in draws],
        "one for all": [d.pooled for d in draws],
        "one per cluster,\nif clusters\nwere known": [d.known for d in draws],
    }
    own = _mean_line(ax, study.grid, np.array([d.error for d in draws]), "GTVMin", COLOURS[0])
    lines = [own, *(_level(study.grid, float(np.mean(values)), label) for label, values in levels.items())]
    _couplings(ax, study.grid, lines, "error against the truth")
    set_title(ax, "1. Between fits alone\nand one model for all")


def _maps(figure: SubFigure, study: GTVMin, network: Network, truth: np.ndarray, draw: Draw) -> None:
    """The network, coloured by the parameter in which clusters differ most."""
    shown = [
        ("the truth", truth),
        ("alone", draw.task.local_solutions()),
        (f"coupling {_short(draw.choice.coupling)}", draw.choice.models),
        (f"coupling {_short(study.grid[-1])}", draw.path.models[-1]),
    ]
    j = int(np.argmax(truth.std(0)))
    low, high = truth[:, j].min(), truth[:, j].max()
    room = 0.25 * (high - low)
    places, drawn, axes = layout(network), None, figure.subplots(1, len(shown))
    for ax, (title, models) in zip(axes, shown, strict=True):
        drawn = draw_network(ax, network, models[:, j], places, title, (low - room, high + room), names=False, size=52)
    colour_bar(figure, drawn, axes, f"parameter {j + 1} of {study.dim}", aspect=22, shrink=0.8, extend="both")


def states_picture(
    study: States, last: Stage, curve: Curve, shuffled: list[Curve], limits: tuple[list[float], list[float]]
) -> Figure:
    figure = new_figure(13.2, 7.4, pad=0.1)
    figure.suptitle(study.title, x=0.008, ha="left", fontsize=17, fontweight="bold", color=INK)
    left, right = np.asarray(figure.subfigures(1, 2, width_ratios=[1, 1.9]))
    choose, test = left.subplots(2, 1, sharex=True)
    local, pooled = limits
    for i, (ax, years) in enumerate(((choose, study.choose), (test, study.test))):
        own, *others = ((c.choose, c.test)[i] for c in (curve, *shuffled))
        lines = [
            Line(study.grid, own, "neighbours", COLOURS[0], width=1.8),
            _mean_line(ax, study.grid, np.array(others), "states\nexchanged", PALE),
            _level(study.grid, local[i], "alone"),
            _level(study.grid, pooled[i], "one for all"),
        ]
        _couplings(ax, study.grid, lines, "mean squared error", bottom=i == 1)
        ax.plot(study.grid[curve.best], own[curve.best], "o", color=COLOURS[1], markersize=6, zorder=5)
        what = "choose the coupling (dot)" if i == 0 else "only tested"
        set_title(ax, f"{years[0]} to {years[1]}: {what}")
    _state_maps(right, study, last, curve)
    return figure


class Maps(NamedTuple):
    """Two maps side by side on one scale."""

    titles: tuple[str, str]
    values: Sequence[np.ndarray]
    limits: tuple[float, float]
    label: str
    extend: str


def _state_maps(figure: SubFigure, study: States, last: Stage, curve: Curve) -> None:
    """A coefficient and the error of every state, alone and coupled."""
    net = contiguity(codes=True)
    alone, coupled = last.task.local_solutions(), curve.models[curve.best]
    slopes = [models[:, 3] for models in (alone, coupled)]
    low, high = np.quantile(slopes[1], [0.02, 0.98])
    room = 0.5 * (high - low)
    errors = [np.sqrt(last.error(models)) for models in (alone, coupled)]
    years, with_it = f"{study.test[0]} to {study.test[1]}", f"coupled ({_short(study.grid[curve.best])})"
    most = float(np.quantile(errors[0], 0.9))
    shown = (
        Maps(("alone", with_it), slopes, (low - room, high + room), "weight of employment", "both"),
        Maps(("error alone", f"error {with_it}"), errors, (0.0, most), f"root mean square, {years}", "max"),
    )
    for axes, maps in zip(figure.subplots(2, 2), shown, strict=True):
        for ax, title, values in zip(axes, maps.titles, maps.values, strict=True):
            drawn = draw_network(ax, net, values, None, title, maps.limits, names=True, size=30)
        colour_bar(figure, drawn, axes, maps.label, aspect=18, shrink=0.75, extend=maps.extend)


def _mean_line(ax: Axes, x: np.ndarray, values: np.ndarray, label: str, colour: str) -> Line:
    """The mean over rows of values (n, couplings), with a band of the middle 80 %."""
    if len(values) > 1:
        low, high = np.percentile(values, (10, 90), axis=0)
        ax.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    return Line(x, values.mean(0), label, colour, width=1.8)


def _level(x: np.ndarray, value: float, label: str) -> Line:
    """To compare with: what does not depend on the coupling."""
    return Line(x[[0, -1]], np.full(2, value), label, INK, DOTTED, 0.9)


def _exact_line(exact: np.ndarray) -> Line:
    return Line(np.arange(len(exact)), exact, EXACT, INK, DASHED, 0.9, keyed=True)


def _couplings(ax: Axes, x: np.ndarray, lines: list[Line], ylabel: str, bottom: bool = True) -> None:
    draw(ax, lines)
    style(ax, "coupling" if bottom else "", ylabel)
    log_axis(ax)
    ax.set_xlim(x[0], x[-1])
    ax.tick_params(labelbottom=bottom)


def _marks(ax: Axes, chosen: np.ndarray) -> None:
    """Chosen couplings as ticks above the axis."""
    ax.vlines(chosen, 0, 0.035, transform=ax.get_xaxis_transform(), color=COLOURS[1], linewidth=1.2)


def _rounds(ax: Axes, descents: list[Descent]) -> None:
    lines = [
        Line(np.arange(len(d.error)), d.error, f"{d.title}\n{d.rate:.3f} a round", COLOURS[i + 3], width=2.2)
        for i, d in enumerate(descents)
    ]
    draw(ax, [*lines, *(_exact_line(d.exact) for d in descents)])
    style(ax, "rounds", "squared distance to GTVMin's solution")
    ax.set_ylim(bottom=1e-26)


def _short(value: float) -> str:
    """
    >>> [_short(v) for v in (1e-4, 0.31622, 1000.0)]
    ['0.0001', '0.32', '1000']
    """
    return f"{float(f'{value:.2g}'):g}"
