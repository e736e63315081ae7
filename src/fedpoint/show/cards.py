"""A card for every site: what it can expect, in one small picture each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.show import palette
from fedpoint.show.figures import COLOURS, INK, PALE, check_path, log_axis, new_figure, save, set_title

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 3  # cards in a row
MOST = 24


class Card(NamedTuple):
    """A title, a table of ways with `expected`, `lower` and `upper`, and the way that is best."""

    title: str
    ways: pd.DataFrame
    best: str


def cards(made: Sequence[Card], path: str | Path | None = None, xlabel: str = "") -> Figure:
    """Cards on one log axis, so that sites can be compared; infinite errors are said in words."""
    if path is not None:
        check_path(path)
    if not 0 < len(made) <= MOST:
        raise FedpointError(f"{len(made)} cards: choose between 1 and {MOST} sites")
    columns = min(ACROSS, len(made))
    rows = -(-len(made) // columns)
    figure = new_figure(3.3 * columns + 0.6, 1.45 * rows + 0.6, pad=0.08)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
    finite = np.concatenate([card.ways.to_numpy().ravel() for card in made])
    finite = finite[np.isfinite(finite) & (finite > 0)]
    limits = (finite.min() / 1.6, finite.max() * 1.6)
    for place, ax in enumerate(grid.ravel()):
        if place >= len(made):
            ax.set_axis_off()
            continue
        _card(ax, made[place], limits)
        ax.tick_params(labelbottom=place + columns >= len(made))  # where no card stands below
    figure.supxlabel(xlabel, fontsize=9, color=INK)
    if path is not None:
        save(figure, path)
    return figure


def _card(ax: Axes, card: Card, limits: tuple[float, float]) -> None:
    log_axis(ax, 5)
    ax.set_xlim(*limits)
    names = [str(way) for way in card.ways.index]
    for place, (way, row) in enumerate(card.ways.iterrows()):
        colour = COLOURS[1] if way == card.best else COLOURS[0]
        if not np.isfinite(row.expected):
            ax.text(limits[0] * 1.2, -place, "not determined by its rows", va="center", fontsize=7.5, color=PALE)
            continue
        low, high = max(row.lower, limits[0]), min(row.upper, limits[1])
        ax.plot([low, high], [-place, -place], color=colour, linewidth=3.5, alpha=0.35, solid_capstyle="butt")
        ax.plot([row.expected], [-place], "o", color=colour, markersize=5)
    ax.set_ylim(-len(names) + 0.4, 0.6)
    ax.set_yticks(-np.arange(len(names)), names)
    for label, way in zip(ax.get_yticklabels(), names, strict=True):
        label.set_color(COLOURS[1] if way == card.best else INK)
        label.set_fontweight("bold" if way == card.best else "normal")
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color(palette.RULE)
    ax.tick_params(which="both", labelsize=8, length=0)
    ax.grid(True, axis="x", color=palette.GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    set_title(ax, card.title)
    ax.title.set_fontsize(9)
