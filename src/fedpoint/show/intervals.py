"""Estimates with their intervals, as papers print them: coefficients and forest plots, survival curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedpoint.show.figures import COLOURS, DASHED, INK, PALE, Line, check_path, draw, new_figure, one_axes, save, style

if TYPE_CHECKING:  # matplotlib is loaded when something is drawn, not before
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINE = 0.27  # inches of height of an estimate
TITLE = 44  # characters of a line of the title
WIDE = 4.0  # the axis goes at most so many times as far as the estimates and the intervals of all together


class Estimate(NamedTuple):
    """A line of a forest plot: an estimate, its interval, and how large its mark is."""

    label: str
    value: float
    lower: float
    upper: float
    weight: float = np.nan  # from 0 to 1; NaN: no square of that size, but a dot
    summary: bool = False  # drawn as a diamond, from all others together


def forest(
    estimates: Sequence[Estimate],
    path: str | Path | None = None,
    title: str | None = None,
    xlabel: str = "coefficient",
    ratios: bool = False,
    note: str = "",
) -> Figure:
    """One line an estimate, from above to below; ratios: exp of the values, on a log axis, against 1."""
    if path is not None:
        check_path(path)
    longest = max(len(e.label) for e in estimates)
    title = None if title is None else fill(title, TITLE)  # a longer one would leave no room for the axes
    figure = new_figure(5.6 + 0.07 * longest, 1.4 + LINE * len(estimates) + 0.2 * (title or "").count("\n"))
    ax = figure.add_subplot()
    low, high = _limits(estimates)
    ax.axvline(0.0, color=PALE, linewidth=0.8, zorder=1)
    for place, e in enumerate(estimates):
        _one(ax, -place, e, low, high)
    ax.set_ylim(-len(estimates) + 0.4, 0.6)
    style(ax, xlabel, "", title, note, whole=False)
    ax.set_xlim(low, high)
    ax.grid(False, axis="y")
    ax.spines["left"].set_visible(False)
    ax.set_yticks(-np.arange(len(estimates)), [e.label for e in estimates])
    ax.tick_params(axis="y", length=0)
    _numbers(ax, estimates, ratios)
    _ticks(ax, low, high, ratios)
    if path is not None:
        save(figure, path)
    return figure


def coefficients(
    table: pd.DataFrame, path: str | Path | None = None, title: str | None = None, ratios: str = ""
) -> Figure:
    """Estimates with lower and upper bounds, by name, without the intercept; ratios: what exp of them is called."""
    shown = table.drop("Intercept", errors="ignore")
    shown = shown if len(shown) else table
    lines = [Estimate(str(name), row.estimate, row.lower, row.upper) for name, row in shown.iterrows()]
    return forest(lines, path, title, ratios or "coefficient", bool(ratios), "estimates with 95 % intervals")


def _limits(estimates: Sequence[Estimate]) -> tuple[float, float]:
    """Room for all estimates and for intervals that are not far longer than others; the rest end in arrows."""
    values = np.array([e.value for e in estimates])
    halves = np.array([(e.upper - e.lower) / 2 for e in estimates])
    reach = WIDE * np.median(halves)
    low = min(0.0, float((values - np.minimum(halves, reach)).min()))
    high = max(0.0, float((values + np.minimum(halves, reach)).max()))
    pad = 0.04 * (high - low)
    return low - pad, high + pad


def _one(ax: Axes, y: float, e: Estimate, low: float, high: float) -> None:
    if e.summary:
        corners = [(e.lower, y), (e.value, y + 0.3), (e.upper, y), (e.value, y - 0.3)]
        ax.fill(*zip(*corners, strict=True), color=COLOURS[1], zorder=3)
        return
    ax.plot([max(e.lower, low), min(e.upper, high)], [y, y], color=COLOURS[0], linewidth=1.3, zorder=2)
    for end, out, mark in ((low, e.lower < low, "<"), (high, e.upper > high, ">")):
        if out:
            ax.plot([end], [y], mark, color=COLOURS[0], markersize=5, clip_on=False)
    size = 5.0 if np.isnan(e.weight) else 3.0 + 8.0 * np.sqrt(e.weight)
    ax.plot([e.value], [y], "o" if np.isnan(e.weight) else "s", color=COLOURS[0], markersize=size, zorder=3)


def _numbers(ax: Axes, estimates: Sequence[Estimate], ratios: bool) -> None:
    """The numbers to the right of their lines."""
    for place, e in enumerate(estimates):
        value, lower, upper = np.exp([e.value, e.lower, e.upper]) if ratios else (e.value, e.lower, e.upper)
        text = f"{value:.3g} [{lower:.3g}, {upper:.3g}]"
        ax.annotate(
            text,
            (1.0, -place),
            (8, 0),
            ("axes fraction", "data"),
            "offset points",
            va="center",
            fontsize=8.5,
            color=INK,
            fontweight="bold" if e.summary else "normal",
            annotation_clip=False,
        )


def _ticks(ax: Axes, low: float, high: float, ratios: bool) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter

    if not ratios:
        return
    whole = np.arange(np.floor(low / np.log(10)), np.ceil(high / np.log(10)) + 1)
    for marks in ((1.0, 1.5, 2.0, 3.0, 4.0, 6.0), (1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)):
        places = np.sort(np.log(np.outer(10.0**whole, marks)).ravel())
        places = places[(places >= low) & (places <= high)]
        if len(places) <= 7:
            break
    if len(places) < 3:
        places = np.log(_round_numbers(np.exp(low), np.exp(high)))
    ax.xaxis.set_major_locator(FixedLocator(list(places)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{np.exp(value):.4g}"))


def _round_numbers(low: float, high: float) -> np.ndarray:
    from matplotlib.ticker import MaxNLocator

    found = np.asarray(MaxNLocator(nbins=5).tick_values(low, high))
    return found[(found >= low) & (found <= high) & (found > 0)]


def survival(curves: Mapping[str, pd.DataFrame], path: str | Path | None = None, title: str | None = None) -> Figure:
    """S(t) of each curve as steps with a band; below, how many rows were at risk."""
    if path is not None:
        check_path(path)
    figure, ax = one_axes(list(curves))
    lines = []
    for k, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[k % len(COLOURS)]
        x, (s, low, high) = _stairs(curve)
        ax.fill_between(x, low, high, color=colour, alpha=0.13, linewidth=0)
        lines.append(Line(x, s, name, colour, "-" if k < len(COLOURS) else DASHED))
    draw(ax, lines, log=False)
    ax.set_ylim(0.0, 1.02)
    ax.set_xlim(0.0, max(float(curve.time.max()) for curve in curves.values() if len(curve)))
    style(ax, "time", "share without the event", title, whole=False)
    _at_risk(ax, curves)
    if path is not None:
        save(figure, path)
    return figure


def _stairs(curve: pd.DataFrame) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    x = np.repeat(np.concatenate([[0.0], curve.time]), 2)[1:]
    s, low, high = (
        np.repeat(np.concatenate([[1.0], values]), 2)[:-1]
        for values in (curve.survival, curve.lower.fillna(0.0), curve.upper.fillna(1.0).where(curve.survival > 0, 0.0))
    )
    return x, (s, low, high)


def _at_risk(ax: Axes, curves: Mapping[str, pd.DataFrame]) -> None:
    """The numbers at risk below the axis, in the colours of the curves."""
    ticks = [t for t in ax.get_xticks() if ax.get_xlim()[0] <= t <= ax.get_xlim()[1]]
    ax.set_xlabel("time" + "\n" * (len(curves) + 1), color=INK, fontsize=10, linespacing=1.25)
    for k, curve in enumerate(curves.values()):
        for t in ticks:
            after = np.flatnonzero(curve.time >= t)
            n = curve.at_risk.iloc[after[0]] if len(after) else 0
            ax.annotate(
                f"{n:,}",
                (t, 0.0),
                (0, -38 - 12 * k),
                ("data", "axes fraction"),
                "offset points",
                annotation_clip=False,
                fontsize=8,
                color=COLOURS[k % len(COLOURS)],
                ha="center",
            )
    ax.annotate("at risk", (0.0, 0.0), (-42, -38), "axes fraction", "offset points", fontsize=8, color=PALE)
