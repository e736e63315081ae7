"""Asynchrony on one slide: error over time, messages and bytes; a network; the worst schedule."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.show.plots import AXES, COLOURS, INK, PALE, Line, draw, end_labels, new_figure, save, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedpoint.lab.asynchrony import Asynchrony, Course, Worst

POINTS = 600


def async_picture(study: Asynchrony, hub: list[Course], nets: list[Course], worst: Worst, path: Path) -> None:
    figure = new_figure(14.5, 8.4, pad=0.12)
    figure.suptitle(study.title, x=0.008, ha="left", fontsize=17, fontweight="bold", color=INK)
    axes = figure.subplots(2, 3)
    titles = ("1. Fusion center: time", "2. the same: messages", "3. the same: bytes")
    for ax, used, title in zip(axes[0], ("time", "messages", "bytes"), titles, strict=True):
        _curves(ax, hub, used, title, labels=used == "time")
    _curves(axes[1, 0], nets, "time", "4. Network: time", labels=True)
    _curves(axes[1, 1], nets, "messages", "5. the same: messages", labels=False)
    _worst(axes[1, 2], study, worst)
    text = (
        f"{study.agents} agents whose mean times differ (logarithm's deviation {study.spread:g}); least squares, "
        f"{study.rows} rows each, exact fields. Fusion center: SCAFFOLD, {study.local_steps} local steps. Network: "
        f"FedRelax, about {study.degree} neighbours, coupling {study.coupling:g}."
    )
    figure.supxlabel(text, x=0.008, ha="left", fontsize=9, color=PALE)
    save(figure, path)


def _curves(ax: Axes, paths: list[Course], used: str, title: str, labels: bool) -> None:
    last = min(p.used(used)[-1] for p in paths) if used != "time" else None
    lines = []
    for i, p in enumerate(paths):
        x, y = p.used(used), np.maximum(p.error, 1e-20)
        if last is not None:
            inside = x <= last
            x, y = x[inside], y[inside]
        some = np.unique(np.linspace(0, len(x) - 1, min(len(x), POINTS)).round().astype(int))
        lines.append(Line(x[some], y[some], p.label, COLOURS[i]))
    draw(ax, lines)
    style(ax, AXES[used], "squared error, mean over agents", title)
    if labels:
        end_labels(ax, lines)


def _worst(ax: Axes, study: Asynchrony, worst: Worst) -> None:
    k = worst.bounds.ticks
    lines = [
        Line(k, worst.measured, "worst\nschedule", COLOURS[0]),
        Line(k, worst.bounds.safe, "safe bound", INK, (0, (4, 2.5))),
        Line(k, worst.bounds.printed, "lecture 003's\nexponent", COLOURS[1], (0, (1.5, 1))),
    ]
    draw(ax, lines)
    style(ax, "ticks", "largest distance of a node", f"6. The worst schedule, B = {study.bounded}")
    end_labels(ax, lines)
