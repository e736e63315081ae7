"""What is a line of a chart? Plain types, which pages, notebooks and files draw alike."""

from __future__ import annotations

from typing import NotRequired, TypeAlias, TypedDict

Numbers: TypeAlias = list[float | None]  # of a page: null where there is none
ONE_RUN = "one run"  # the name of thin lines


class ChartLine(TypedDict):
    """A line of a chart: a curve with or without a band, or a level."""

    name: str
    colour: int | str  # a number of the palette, "ink" or "pale"
    xs: NotRequired[list[list[float]]]  # the places of its points, by every way of looking at them (`charts.WAYS`)
    x: NotRequired[list[float]]  # or by one way alone
    y: NotRequired[Numbers]
    low: NotRequired[Numbers]
    high: NotRequired[Numbers]
    level: NotRequired[float]
    dash: NotRequired[str]
    width: NotRequired[str]  # "thin": one run of several, without a label and behind the others; "thick": their mean
    quiet: NotRequired[bool]  # without a label
