"""Asynchrony on one slide: error over time, messages and bytes; a network; the worst schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpoint.core.numbers import evenly
from fedpoint.show.figures import COLOURS, DASHED, DOTTED, INK, PALE, Line, draw, new_figure, style
from fedpoint.show.plots import AXES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedpoint.lab.asynchrony import Asynchrony, Course, Worst

POINTS = 600
LEAST = 1e-20  # of the squared error: what is below is rounding, and left out


def async_picture(study: Asynchrony, hub: list[Course], nets: list[Course], worst: Worst) -> Figure:
    figure = new_figure(14.5, 8.4, pad=0.12)
    figure.suptitle(study.title, x=0.008, ha="left", fontsize=17, fontweight="bold", color=INK)
    axes = figure.subplots(2, 3)
    titles = ("1. Fusion center: time", "2. The same: messages", "3. The same: bytes")
    for ax, used, title in zip(axes[0], ("time", "messages", "bytes"), titles, strict=True):
        _curves(ax, hub, used, title)
    _curves(axes[1, 0], nets, "time", "4. Network: time")
    _curves(axes[1, 1], nets, "messages", "5. The same: messages")
    _worst(axes[1, 2], study, worst)
    text = (
        f"{study.agents} agents whose mean times differ (standard deviation of the logarithm: {study.spread:g}); least "
        f"squares, {study.rows} rows each, exact fields. Fusion center: SCAFFOLD unless it says FedAvg, "
        f"{study.local_steps} local steps. Network: FedRelax, about {study.degree} neighbours, coupling "
        f"{study.coupling:g}."
    )
    figure.supxlabel(text, x=0.008, ha="left", fontsize=9, color=PALE, wrap=True)
    return figure


def _curves(ax: Axes, paths: list[Course], used: str, title: str) -> None:
    last = min(p.used(used)[-1] for p in paths)
    lines = []
    for i, p in enumerate(paths):
        inside = p.used(used) <= last
        x, y = p.used(used)[inside], p.error[inside]
        some = evenly(len(x), POINTS)
        lines.append(Line(x[some], y[some], p.label.replace(", ", ",\n"), COLOURS[i]))
    draw(ax, lines)
    style(ax, AXES[used], "squared error, mean over agents", title)
    ax.set_ylim(bottom=max(LEAST, ax.get_ylim()[0]))


def _worst(ax: Axes, study: Asynchrony, worst: Worst) -> None:
    k = worst.bounds.ticks
    lines = [
        Line(k, worst.measured, "worst\nschedule", COLOURS[0]),
        Line(k, worst.bounds.safe, "safe bound", INK, DASHED),
        Line(k, worst.bounds.printed, "the lecture's\nexponent", COLOURS[1], DOTTED),
    ]
    draw(ax, lines)
    style(ax, "ticks", "largest distance of a node", f"6. The worst schedule, B = {study.bounded}")
