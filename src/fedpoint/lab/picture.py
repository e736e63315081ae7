"""A lab on one slide: a panel per observation, simulation as lines, prediction dashed over them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.lab.runner import Lab, LabOutcome, LabSetting, Panel, runs_of
from fedpoint.show.figures import (
    COLOURS,
    DASHED,
    DOTTED,
    INK,
    PALE,
    Line,
    draw,
    key,
    key_handles,
    new_figure,
    save,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3
EXACT = "exact prediction, no fit"
BIAS = "bias squared: what stays without noise"


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
        draw(ax, _lines(panel, outcomes))
        style(ax, "rounds" if below else "", "" if i % COLUMNS else "squared distance to the solution", panel.title)
        ax.tick_params(labelbottom=below, labelleft=i % COLUMNS == 0)
    for ax in axes[count:]:
        ax.set_axis_off()
    _explain(axes[count], lab, outcomes)
    return figure


def _alone(panel: Panel, outcomes: dict[LabSetting, LabOutcome]) -> Figure:
    figure = new_figure(8, 4.8)
    ax = figure.add_subplot()
    draw(ax, _lines(panel, outcomes), size=11)
    style(ax, "rounds", "squared distance to the solution", panel.title.replace("\n", " "))
    key(figure, _key(outcomes))
    return figure


def _lines(panel: Panel, outcomes: dict[LabSetting, LabOutcome]) -> list[Line]:
    """What was measured; dashed over it what was predicted, and dotted what a bias alone would leave."""
    found: list[Line] = []
    for i, (label, setting) in enumerate(panel.curves):
        outcome, colour = outcomes[setting], COLOURS[i % len(COLOURS)]
        rounds, ends = np.arange(len(outcome.mean)), np.array([0, len(outcome.mean) - 1])
        found.append(Line(rounds, outcome.mean, f"{label}\n{_power(outcome.steady)}", colour, width=1.8))
        found.append(Line(rounds, outcome.exact, EXACT, INK, DASHED, 0.9, keyed=True))
        if outcome.bias2 > 0:
            found.append(Line(ends, np.full(2, outcome.bias2), BIAS, colour, DOTTED, 1.2, keyed=True))
    return found


def _power(value: float) -> str:
    """2.6e-05 as people write it."""
    digits, exponent = f"{value:.1e}".split("e")
    return f"${digits} \\cdot 10^{{{int(exponent)}}}$"


def _explain(ax: Axes, lab: Lab, outcomes: dict[LabSetting, LabOutcome]) -> None:
    ax.text(0.0, 1.0, lab.explain(), transform=ax.transAxes, va="top", fontsize=10, color=INK, linespacing=1.5)
    handles = key_handles(_key(outcomes))
    ax.legend(handles=handles, loc="lower left", frameon=False, fontsize=10, labelcolor=INK, borderaxespad=0)


def _key(outcomes: dict[LabSetting, LabOutcome]) -> list[Line]:
    """What a curve, a dashed line and a dotted one are."""
    runs, nowhere = runs_of(outcomes), np.empty(0)
    found = [
        Line(nowhere, nowhere, f"simulation, mean of {runs}; with its steady state", COLOURS[0], width=1.8),
        Line(nowhere, nowhere, EXACT, INK, DASHED, 0.9),
    ]
    if any(outcome.bias2 > 0 for outcome in outcomes.values()):
        found.append(Line(nowhere, nowhere, BIAS, PALE, DOTTED, 1.2))
    return found
