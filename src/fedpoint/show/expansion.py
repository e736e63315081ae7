"""What does the expansion of a run look like? Mean squares of its parts, and their shares as stacked areas."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.core.numbers import counted
from fedpoint.show.figures import COLOURS, DASHED, INK, Line, check_path, draw, new_figure, save, stack, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedpoint.theory.stochastic_expansion import Expansion

PARTS = ("heterogeneity", "noise", "transient")  # from below: what stays, and what goes
BELOW = 1e-2  # of the smallest error: parts that are smaller leave the axes


def expansion_figure(expansion: Expansion, path: str | Path | None, title: str | None) -> Figure:
    """The figure, saved where a path is given."""
    if path is not None:
        check_path(path)
    squares, x = expansion.mean_squares, expansion.rounds
    colours = dict(zip(PARTS, COLOURS, strict=False))
    figure = new_figure(7.5, 6.5)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    lines = [Line(x, squares[name], name, colours[name], DASHED) for name in PARTS]
    draw(above, [Line(x, squares["error"], "error", INK), *lines])
    seen = squares["error"][squares["error"] > 0]
    if seen.size:
        above.set_ylim(BELOW * seen.min(), 2 * max(values.max() for values in squares.values()))
    repeats = len(expansion.error)
    note = f"mean over {counted(repeats, 'repeat')}" if repeats > 1 else ""
    style(above, "", "mean square", title, note)
    total = np.maximum(sum(squares[name] for name in PARTS), 1e-300)
    stack(below, [Line(x, squares[name] / total, name, colours[name]) for name in PARTS])
    style(below, "communication rounds", "share of the parts' squares")
    below.set_ylim(0, 1)
    if path is not None:
        save(figure, path)
    return figure
