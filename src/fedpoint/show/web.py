"""What does a page's script know of a chart? Its picture as it is, and the numbers behind it, for the read-out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypedDict

from fedpoint.show import svg
from fedpoint.show.drawing import Axis, Panel
from fedpoint.show.lines import ChartLine, dash
from fedpoint.show.markup import Html


class WebAxis(TypedDict):
    """An axis for the script: where a number lies on it."""

    label: str
    log: bool
    low: float
    high: float


class Across(WebAxis):
    """A way of looking at the lines, with its picture, unless that is on the page already."""

    name: str
    picture: NotRequired[Html]


class WebLine(ChartLine):
    """A line whose places are among the chart's `xs`, where other lines may share them."""

    at: NotRequired[int]


class Chart(TypedDict):
    """curves.js shows it."""

    title: str
    note: str
    y: WebAxis
    axes: list[Across]
    xs: list[list[list[float]]]  # places of points, by every axis
    lines: list[WebLine]


def chart(panel: Panel) -> Chart:
    """A chart of the live page."""
    return charted([panel], [""])


def charted(panels: Sequence[Panel], names: Sequence[str], first: bool = True) -> Chart:
    """The same lines over several axes, one panel each; first: with the first one's picture."""
    axes: list[Across] = []
    for i, (panel, name) in enumerate(zip(panels, names, strict=True)):
        axes.append({**_axis(panel.x), "name": name})
        if i or first:
            axes[-1]["picture"] = svg.picture(panel)
    xs: list[list[list[float]]] = []  # lines often lie over the same places: these are written once
    lines = []
    for same in zip(*(panel.lines for panel in panels), strict=True):
        line: WebLine = {**same[0], "dash": dash(same[0])}  # type: ignore[typeddict-item]
        if "x" in line:
            places = [one["x"] for one in same]
            if places not in xs:
                xs.append(places)
            line["at"] = xs.index(places)
            del line["x"]
        lines.append(line)
    one = panels[0]
    return {"title": one.title, "note": one.note, "y": _axis(one.y), "axes": axes, "xs": xs, "lines": lines}


def _axis(axis: Axis) -> WebAxis:
    return {"label": axis.label, "log": axis.log, "low": axis.low, "high": axis.high}
