"""What do all figures share? Curves that are labelled by being drawn, light axes, a key below; PNG, SVG or PDF."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.show import palette
from fedpoint.show.drawing import ACROSS, UP, Panel, tick_text
from fedpoint.show.lines import ChartLine, banded, dash, labelled, on_top, thin
from fedpoint.store import disk

if TYPE_CHECKING:  # matplotlib is loaded when something is drawn, not before
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.lines import Line2D

FORMATS = ("png", "svg", "pdf")
COLOURS, INK, PALE, RULE = palette.ON_WHITE, palette.INK, palette.PALE, palette.RULE
Stroke: TypeAlias = str | tuple[float, tuple[float, ...]]  # as matplotlib's linestyle


def stroke(name: str) -> Stroke:
    """A dash of the palette in the units of matplotlib, which are widths of the line."""
    lengths = palette.DASHES[name]
    return (0, tuple(length / palette.WIDTHS[""] for length in lengths)) if lengths else "-"


DASHED, DOTTED = stroke("dashed"), stroke("dotted")
STROKES: tuple[Stroke, ...] = ("-", DASHED, DOTTED)  # when the colours are used up
SIZE = 9.0  # of labels, in points
LONGEST_LABEL = 40  # characters of a line of it


class Line(NamedTuple):
    """A curve. It cannot be without a label: at its end, or, where several curves mean the same, in the key."""

    x: np.ndarray
    y: np.ndarray
    label: str
    colour: str
    stroke: Stroke = "-"
    width: float = palette.WIDTHS[""] / palette.POINT
    keyed: bool = False
    alpha: float = 1.0


def new_figure(width: float, height: float, pad: float = 0.05) -> Figure:
    """An empty figure that belongs to nobody else: no pyplot, no global state. Sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=pad, h_pad=pad)
    figure = Figure(figsize=(width, height), layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def one_axes(labels: Sequence[str] = (), width: float = 6.5) -> tuple[Figure, Axes]:
    """A figure with one axes, and room for these labels beside it."""
    rows = [row for label in labels for row in broken(label).split("\n")]
    height = max(4.5, 1.6 + 1.75 * SIZE / 72 * len(rows))
    figure = new_figure(width + 0.075 * max(map(len, rows), default=0), height)
    return figure, figure.add_subplot()


def broken(label: str) -> str:
    """A label in lines that are not too long."""
    return "\n".join(textwrap.fill(row, LONGEST_LABEL, break_long_words=False) for row in label.split("\n"))


def draw(ax: Axes, lines: Sequence[Line], log: bool = True, size: float = SIZE) -> None:
    """The lines with their labels; on a log axis when they can be. Lines of the key need a `key` in the figure."""
    from fedpoint.show.placement import end_labels

    curves = []
    for line in lines:
        if not line.label:
            raise FedpointError("a curve has no label: give every curve one")
        y = np.where(line.y > 0, line.y, np.nan) if log else line.y  # exactly 0 has no place on a log axis
        label = line.label if line.keyed else broken(line.label)
        (curve,) = ax.plot(line.x, y, color=line.colour, linestyle=line.stroke, linewidth=line.width, label=label)
        curve.set_alpha(line.alpha)
        if not line.keyed:
            curves.append(curve)
    if log:
        ax.set_yscale("log")
    end_labels(ax, curves, size)


def draw_panel(ax: Axes, panel: Panel) -> list[Line]:
    """A panel as it is; what it says of lines without a label, for a `key`."""
    for line in panel.lines:
        if banded(line):
            low, high = (np.array(line[side], float) for side in ("low", "high"))
            ax.fill_between(line["x"], low, high, color=paint(line["colour"]), alpha=palette.SHADE, linewidth=0)
    drawn = [_as_line(line, panel) for line in on_top(panel.lines) if "dots" not in line]
    draw(ax, drawn, log=panel.y.log)
    for line in panel.lines:
        if "dots" in line:
            _dots(ax, line)
    style(ax, panel.x.label, panel.y.label, panel.title, panel.note, panel.x.whole)
    if panel.x.log:
        log_axis(ax)
    ax.set_xlim(panel.x.low, panel.x.high)
    ax.set_ylim(panel.y.low, panel.y.high)
    return [line for line in drawn if line.keyed]


def _dots(ax: Axes, line: ChartLine) -> None:
    x, y = np.array(line["x"], float), np.array(line["y"], float)
    ax.plot(x, y, "o", color=paint(line["colour"]), markersize=5, clip_on=False, zorder=5)
    if "low" in line:
        low, high = (np.array(line[side], float) for side in ("low", "high"))
        ax.vlines(x, low, high, color=paint(line["colour"]), linewidth=palette.WIDTHS[""] / palette.POINT, zorder=4)


def _as_line(line: ChartLine, panel: Panel) -> Line:
    level = line.get("level")
    across = [panel.x.low, panel.x.high] if level is not None else line["x"]
    up = np.full(2, level) if level is not None else np.array(line["y"], float)
    points = palette.WIDTHS[line.get("width", "")] / palette.POINT
    colour, alpha = paint(line["colour"]), palette.FAINT if thin(line) else 1.0
    return Line(
        np.array(across, float), up, line["name"], colour, stroke(dash(line)), points, not labelled(line), alpha
    )


def paint(colour: int | str) -> str:
    """A colour of a line, on white."""
    return palette.of(COLOURS, colour) if isinstance(colour, int) else {"ink": INK, "pale": PALE}[colour]


def stack(ax: Axes, lines: Sequence[Line], size: float = SIZE) -> None:
    """Areas as high as the lines, one on top of the other, each labelled where it ends."""
    from fedpoint.show.placement import end_labels

    below, middles = np.zeros(len(lines[0].x)), []
    for line in lines:
        above = below + line.y
        ax.fill_between(line.x, below, above, color=line.colour, alpha=0.7, linewidth=0)
        middles += ax.plot(line.x, (below + above) / 2, color=line.colour, linewidth=0, label=broken(line.label))
        below = above
    end_labels(ax, middles, size)


def key(figure: Figure | SubFigure, lines: Sequence[Line], text: str = "") -> None:
    """The key of lines, below the axes, with words above it."""
    row = int(72 / (0.58 * SIZE) * (figure.bbox.width / figure.dpi - 0.3))  # characters, about
    handles = key_handles(lines)
    one_row = sum(len(str(handle.get_label())) + 8 for handle in handles) <= row
    figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=len(handles) if one_row else 1,
        frameon=False,
        fontsize=SIZE,
        labelcolor=INK,
        title=textwrap.fill(text, row),
        title_fontproperties={"size": SIZE},
        alignment="left",
    ).get_title().set_color(PALE)


def key_handles(lines: Sequence[Line]) -> list[Line2D]:
    """A key's entries, one for each label."""
    from matplotlib.lines import Line2D

    different = {line.label: line for line in reversed(lines)}
    return [
        Line2D([], [], color=line.colour, linestyle=line.stroke, linewidth=line.width, label=label, alpha=line.alpha)
        for label, line in reversed(different.items())
    ]


def style(
    ax: Axes, xlabel: str = "", ylabel: str = "", title: str | None = None, note: str = "", whole: bool = True
) -> None:
    """What all axes share: a light grid, no frame, names; a note above the axes, the title above that.

    whole: across there are whole numbers only, as rounds are.
    """
    ax.grid(True, which="major", color=palette.GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(RULE)
    ax.tick_params(which="both", color=RULE, labelcolor=INK, labelsize=9)
    ax.tick_params(which="minor", length=0)
    ax.margins(x=0.0)
    set_ticks(ax.xaxis, ACROSS, whole)
    set_ticks(ax.yaxis, UP)
    ax.set_xlabel(xlabel, color=INK, fontsize=10)
    ax.set_ylabel(ylabel, color=INK, fontsize=10)
    if note:
        ax.annotate(note, (0, 1), (0, 3), "axes fraction", "offset points", va="bottom", fontsize=8, color=PALE)
    if title:
        set_title(ax, title, above=14.0 if note else 0.0)


def set_title(ax: Axes, title: str, above: float = 0.0) -> None:
    """A title, broken where the figure ends; above: points left free below it."""
    ax.set_title(title, color=INK, fontsize=11, loc="left", fontweight="bold", pad=6 + above, wrap=True)


def set_ticks(axis: Axis, most: int, whole: bool = False) -> None:
    """Ticks where `drawing.ticks` has them, whatever the range will be."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    from fedpoint.show.placement import Ticks

    axis.set_major_locator(Ticks(axis, most, whole))
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    axis.set_minor_locator(NullLocator())


def log_axis(ax: Axes, most: int = ACROSS) -> None:
    """Across by factors, not by differences; with about so many ticks."""
    ax.set_xscale("log")
    set_ticks(ax.xaxis, most)


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
