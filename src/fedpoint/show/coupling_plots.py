"""What does a coupling do? GTVMin's solutions, and their held-out error, over couplings."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import TYPE_CHECKING

import jax
import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.graphs.gtv.couplings import Choice, Path
from fedpoint.show.figures import COLOURS, Line, check_path, draw, key, log_axis, one_axes, save, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMED = 12  # nodes up to which each has a label of its own


def path_picture(found: Path, path: str | FilePath | None, parameter: int | None, title: str | None) -> Figure:
    """See `Path.plot`."""
    if path is not None:
        check_path(path)
    lines = _parts(found) if parameter is None else _nodes(found, parameter)
    keyed = [line for line in lines if line.keyed]
    figure, ax = one_axes([line.label for line in lines if not line.keyed])
    draw(ax, lines, log=parameter is None and all((line.y > 0).all() for line in lines))
    style(ax, "coupling", "" if parameter is None else f"parameter {parameter} of every node", title)
    log_axis(ax)
    if keyed:
        key(figure, keyed)
    if path is not None:
        save(figure, path)
    return figure


def _above_zero(found: Path) -> np.ndarray:
    """Places of the couplings above 0, in their order."""
    order = np.argsort(found.couplings)
    some = order[found.couplings[order] > 0]
    if len(some) < 2:
        raise FedpointError("a picture of a path needs at least two couplings above 0")
    return some


def _parts(found: Path) -> list[Line]:
    some = _above_zero(found)
    parts = (("sum of losses", found.losses.sum(1)), ("total variation", found.variation))
    return [Line(found.couplings[some], y[some], label, COLOURS[i]) for i, (label, y) in enumerate(parts)]


def _nodes(found: Path, parameter: int) -> list[Line]:
    """A line for every node: named where there are few."""
    some = _above_zero(found)
    flat = np.concatenate([a.reshape(*a.shape[:2], -1) for a in jax.tree.leaves(found.models)], axis=2)
    if not 0 <= parameter < flat.shape[2]:
        raise FedpointError(
            f"parameter {parameter} is not there: a model has {counted(flat.shape[2], 'number')}, from 0"
        )
    x, values = found.couplings[some], flat[some][:, :, parameter].T
    if len(values) > NAMED:
        return [Line(x, y, "one line a node", COLOURS[0], width=0.7, keyed=True) for y in values]
    named = enumerate(zip(found.names, values, strict=True))
    return [Line(x, y, name, COLOURS[i % len(COLOURS)]) for i, (name, y) in named]


def choice_picture(choice: Choice, path: str | FilePath | None, title: str | None) -> Figure:
    """See `Choice.plot`."""
    if path is not None:
        check_path(path)
    order = np.argsort(choice.couplings)
    order = order[choice.couplings[order] > 0]
    x, y, e = choice.couplings[order], choice.errors[order], choice.standard_errors[order]
    line = Line(x, y, "held-out error", COLOURS[0])
    figure, ax = one_axes([line.label])
    draw(ax, [line], log=False)
    ax.fill_between(x, y - e, y + e, color=COLOURS[0], alpha=0.15, linewidth=0)
    if choice.coupling > 0:
        ax.plot([choice.coupling], [choice.errors[choice.best]], "o", color=COLOURS[1], zorder=5)
    note = "band: one standard error either way; dot: the coupling chosen"
    style(ax, "coupling", f"held-out error ({choice.how})", title, note)
    log_axis(ax)
    if path is not None:
        save(figure, path)
    return figure
