"""Who has what, as a picture: each agent's shares of the classes beside its rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedpoint.show.figures import new_figure, save, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedpoint.data.spread import Spread

NAMED = 40  # agents or classes, at most, whose names are written


def spread_figure(spread: Spread, path: str | Path | None = None) -> Figure:
    """Agents from top to bottom; the darker, the more of an agent's rows are of a class."""
    K, C = spread.counts.shape
    figure = new_figure(6.5, min(max(2.5, 0.18 * K), 9.0))
    shares, sizes = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
    shares.imshow(spread.counts / spread.rows[:, None], cmap="Blues", vmin=0, vmax=1, aspect="auto")
    sizes.barh(range(K), spread.rows, height=1.0, color="0.6")
    style(shares, "class", "agent", "Shares of the classes")
    style(sizes, "rows", "", "Rows")
    shares.grid(False)
    if C <= NAMED:
        shares.set_xticks(range(C), spread.classes, rotation=90 if max(map(len, spread.classes)) > 3 else 0)
    if K <= NAMED:
        shares.set_yticks(range(K), spread.agents)
    if path is not None:
        save(figure, path)
    return figure
