"""A lab on one slide: a panel per observation, simulation as lines, prediction dashed over them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.core.numbers import counted
from fedpoint.lab.runner import Lab, LabOutcome, LabSetting, Panel
from fedpoint.show.plots import COLOURS, INK, PALE, Line, draw, end_labels, new_figure, save, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3
DASHES = (0, (4, 2.5))
DOTS = (0, (1, 1.5))


def picture(lab: Lab, outcomes: dict[LabSetting, LabOutcome], path: str | Path | None = None) -> Figure:
    """All panels on common axes; the cell that is left over says how to read them."""
    if len(lab.panels) == 1:
        figure = _alone(lab.panels[0], outcomes)
    else:
        figure = _together(lab, outcomes)
    if path is not None:
        save(figure, path)
    return figure


def _together(lab: Lab, outcomes: dict[LabSetting, LabOutcome]) -> Figure:
    count = len(lab.panels)
    rows = -(-(count + 1) // COLUMNS)
    figure = new_figure(4.45 * COLUMNS, 3.75 * rows, pad=0.1)
    figure.suptitle(lab.title, x=0.008, ha="left", fontsize=17, fontweight="bold", color=INK)
    axes = figure.subplots(rows, COLUMNS, sharex=True, sharey=True).ravel()
    for i, (ax, panel) in enumerate(zip(axes, lab.panels, strict=False)):
        below = i + COLUMNS >= count  # nothing but explanation: this one names the rounds
        _panel(ax, panel, outcomes, left=i % COLUMNS == 0, bottom=below)
    axes[0].set_ylim(bottom=_lowest(lab.panels, outcomes) / 10)  # a decade of room for labels, on all
    for ax, panel in zip(axes, lab.panels, strict=False):
        end_labels(ax, _lines(panel, outcomes))
    for ax in axes[count:]:
        ax.set_axis_off()
    _explain(axes[count], lab, outcomes)
    return figure


def _alone(panel: Panel, outcomes: dict[LabSetting, LabOutcome]) -> Figure:
    figure = new_figure(8, 4.5)
    ax = figure.add_subplot()
    _panel(ax, panel, outcomes, left=True, bottom=True)
    ax.set_ylim(bottom=_lowest((panel,), outcomes) / 10)
    end_labels(ax, _lines(panel, outcomes), size=11)
    ax.set_title(panel.title.replace("\n", " "), color=INK, fontsize=14, loc="left", fontweight="bold", pad=12)
    setting = panel.curves[0][1]
    note = f"lines: mean of {counted(setting.experiment.repeats, 'run')}; dashed: exact prediction"
    box = {"facecolor": "white", "edgecolor": "none"}
    ax.text(0.99, 0.97, note, transform=ax.transAxes, ha="right", va="top", fontsize=9, color=PALE, bbox=box)
    return figure


def _panel(ax: Axes, panel: Panel, outcomes: dict[LabSetting, LabOutcome], left: bool, bottom: bool) -> None:
    lines = _lines(panel, outcomes)
    draw(ax, lines, width=1.8)
    for i, (_, setting) in enumerate(panel.curves):
        exact, bias2 = outcomes[setting].exact, outcomes[setting].bias2
        ax.plot(np.arange(len(exact)), exact, color=INK, linestyle=DASHES, linewidth=0.9)
        if bias2 > 0:
            ax.axhline(bias2, color=COLOURS[i % len(COLOURS)], linestyle=DOTS, linewidth=1.2)
    ylabel = "squared distance to the solution" if left else ""
    style(ax, "rounds" if bottom else "", ylabel, panel.title)
    ax.tick_params(labelbottom=bottom, labelleft=left)


def _lowest(panels: Sequence[Panel], outcomes: dict[LabSetting, LabOutcome]) -> float:
    return min(float(outcomes[setting].mean.min()) for panel in panels for _, setting in panel.curves)


def _lines(panel: Panel, outcomes: dict[LabSetting, LabOutcome]) -> list[Line]:
    found = []
    for i, (label, setting) in enumerate(panel.curves):
        outcome = outcomes[setting]
        text = f"{label}\n{_power(outcome.steady)}"
        found.append(Line(np.arange(len(outcome.mean)), outcome.mean, text, COLOURS[i % len(COLOURS)]))
    return found


def _power(value: float) -> str:
    """2.6e-05 as people write it."""
    digits, exponent = f"{value:.1e}".split("e")
    return f"${digits} \\cdot 10^{{{int(exponent)}}}$"


def _explain(ax: Axes, lab: Lab, outcomes: dict[LabSetting, LabOutcome]) -> None:
    repeats, text = lab.settings[0].experiment.repeats, lab.explain()
    ax.text(0.0, 1.0, text, transform=ax.transAxes, va="top", fontsize=10, color=INK, linespacing=1.5)
    keys = [
        ("-", COLOURS[0], 1.8, f"simulation, mean of {counted(repeats, 'run')}; with its steady state"),
        (DASHES, INK, 0.9, "exact prediction, no fit"),
    ]
    if any(outcome.bias2 > 0 for outcome in outcomes.values()):
        keys.append((DOTS, COLOURS[0], 1.2, "its bias squared: what stays without noise"))
    for y, (stroke, colour, width, name) in zip((0.2, 0.1, 0.0), keys, strict=False):
        ax.plot([0.0, 0.1], [y, y], linestyle=stroke, color=colour, linewidth=width, transform=ax.transAxes)
        ax.text(0.13, y, name, transform=ax.transAxes, va="center", fontsize=10, color=INK)
