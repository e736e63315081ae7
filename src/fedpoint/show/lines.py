"""What is a line of a chart? Plain types, which pages, notebooks and files draw alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NotRequired, TypeAlias, TypedDict, TypeGuard

Numbers: TypeAlias = list[float | None]  # of a page: null where there is none
ONE_RUN = "one run"  # the name of thin lines


class ChartLine(TypedDict):
    """A line of a chart: a curve with or without a band, dots, or a level."""

    name: str
    colour: int | str  # a number of the palette, "ink" or "pale"
    xs: NotRequired[list[list[float]]]  # the places of its points, by every way of looking at them (`charts.WAYS`)
    x: NotRequired[list[float]]  # or by one way alone
    y: NotRequired[Numbers]
    low: NotRequired[Numbers]
    high: NotRequired[Numbers]
    level: NotRequired[float]
    dash: NotRequired[str]  # a level is dotted, unless it says otherwise
    width: NotRequired[str]  # "thin": one run of several, without a label and behind the others; "thick": their mean
    quiet: NotRequired[bool]  # without a label
    dots: NotRequired[bool]  # its points alone, without a label; low and high: a bar through each


def dash(line: ChartLine) -> str:
    return line.get("dash", "dotted" if "level" in line else "solid")


def thin(line: ChartLine) -> bool:
    """Whether it is one run of several."""
    return line.get("width") == "thin"


def labelled(line: ChartLine) -> bool:
    return bool(line["name"]) and not (line.get("quiet") or line.get("dots") or thin(line))


def heights(line: ChartLine) -> Numbers:
    """Every number of a line that has a place on the y axis."""
    if "level" in line:
        return [line["level"]]
    return [*line.get("low", ()), *line.get("high", ()), *line.get("y", ())]


def drawable(value: float | None, log: bool) -> TypeGuard[float]:
    """Whether an axis has a place for this number."""
    return value is not None and math.isfinite(value) and (value > 0 or not log)


def banded(line: ChartLine) -> bool:
    """Whether there is a band around its curve."""
    return "low" in line and "dots" not in line


def on_top(lines: Iterable[ChartLine]) -> list[ChartLine]:
    """The lines in the order in which they are drawn: single runs, levels, curves, and dots above them."""
    return sorted(lines, key=lambda line: 3 if "dots" in line else 0 if thin(line) else 1 if "level" in line else 2)


def known(values: Iterable[float]) -> Numbers:
    """Numbers of a line: None for what is not finite."""
    return [float(v) if math.isfinite(v) else None for v in values]


def positive(lines: Sequence[ChartLine]) -> bool:
    """Whether the curves ask for a log axis: none is below zero, each is above it somewhere."""
    found = [[v for v in line.get("y", ()) if v is not None] for line in lines if "level" not in line]
    return all(all(v >= 0 for v in values) and any(v > 0 for v in values) for values in found)
