"""What does a coupling do? GTVMin's solutions, and their held-out error, over couplings."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import TYPE_CHECKING

import jax
import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.graphs.gtv.couplings import Choice, Path
from fedpoint.show.drawing import Side, panel
from fedpoint.show.figures import COLOURS, check_path
from fedpoint.show.lines import ChartLine, known, positive
from fedpoint.show.plots import drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COUPLING = Side("coupling", log=True)
NAMED = 12  # nodes up to which each has a label of its own


def path_picture(found: Path, path: str | FilePath | None, parameter: int | None, title: str | None) -> Figure:
    """See `Path.plot`."""
    if path is not None:
        check_path(path)
    lines = _parts(found) if parameter is None else _nodes(found, parameter)
    up = Side(
        "" if parameter is None else f"parameter {parameter} of every node", log=parameter is None and positive(lines)
    )
    return drawn(panel(lines, COUPLING, up, title or ""), path)


def _above_zero(found: Path) -> np.ndarray:
    """Places of the couplings above 0, in their order."""
    order = np.argsort(found.couplings)
    some = order[found.couplings[order] > 0]
    if len(some) < 2:
        raise FedpointError("a picture of a path needs at least two couplings above 0")
    return some


def _parts(found: Path) -> list[ChartLine]:
    some = _above_zero(found)
    parts = (("sum of losses", found.losses.sum(1)), ("total variation", found.variation))
    return [_line(found.couplings[some], y[some], label, i) for i, (label, y) in enumerate(parts)]


def _line(x: np.ndarray, y: np.ndarray, name: str, colour: int) -> ChartLine:
    return {"name": name, "x": x.tolist(), "y": known(y), "colour": colour % len(COLOURS)}


def _nodes(found: Path, parameter: int) -> list[ChartLine]:
    """A line for every node: named where there are few."""
    some = _above_zero(found)
    flat = np.concatenate([a.reshape(*a.shape[:2], -1) for a in jax.tree.leaves(found.models)], axis=2)
    if not 0 <= parameter < flat.shape[2]:
        raise FedpointError(
            f"parameter {parameter} is not there: a model has {counted(flat.shape[2], 'number')}, from 0"
        )
    x, values = found.couplings[some], flat[some][:, :, parameter].T
    if len(values) > NAMED:
        return [{**_line(x, y, "one line a node", 0), "width": "thin"} for y in values]
    return [_line(x, y, name, i) for i, (name, y) in enumerate(zip(found.names, values, strict=True))]


def choice_picture(choice: Choice, path: str | FilePath | None, title: str | None) -> Figure:
    """See `Choice.plot`."""
    if path is not None:
        check_path(path)
    order = np.argsort(choice.couplings)
    order = order[choice.couplings[order] > 0]
    x, y, e = choice.couplings[order], choice.errors[order], choice.standard_errors[order]
    lines: list[ChartLine] = [{**_line(x, y, "held-out error", 0), "low": known(y - e), "high": known(y + e)}]
    if choice.coupling > 0:
        best = np.array([choice.errors[choice.best]])
        lines.append({**_line(np.array([choice.coupling]), best, "chosen", 1), "dots": True})
    note = "band: one standard error either way; dot: the coupling chosen"
    return drawn(panel(lines, COUPLING, Side(f"held-out error ({choice.how})"), title or "", note), path)
