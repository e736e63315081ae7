"""What is a figure? Lines on two axes whose ranges, ticks and words are decided here, whoever draws them.

Verbs, reports and the live page describe a `Panel`. `figures.draw_panel` draws it with matplotlib (files, windows), and
`svg.picture` as SVG text (notebooks, reports, and the live page, whose script adds nothing but a read-out).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedpoint.show.lines import ChartLine, drawable, heights, labelled, thin
from fedpoint.show.markup import number

UP, ACROSS = 6, 6  # ticks of an axis, about
DEEP = 1e-12  # of the greatest value: axes in whole decades end there
HIGH = 1e6  # above, they show nothing


class Tick(NamedTuple):
    """Where an axis has a tick, and what it says."""

    at: float
    text: str


@dataclass(frozen=True)
class Side:
    """What is asked of an axis. low, high: a range that does not depend on the lines.

    whole: only whole numbers have ticks. decades: a range in whole decades, which holds still while curves move.
    """

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    whole: bool = False
    decades: bool = False


@dataclass(frozen=True)
class Axis:
    """An axis as it is drawn."""

    label: str
    log: bool
    low: float
    high: float
    ticks: tuple[Tick, ...]
    whole: bool = False

    def place(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high end.

        >>> Axis("x", True, 1.0, 100.0, ()).place(10.0)
        0.5
        """
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Panel:
    """Lines on two axes; the note says what they do not say of themselves."""

    x: Axis
    y: Axis
    lines: tuple[ChartLine, ...]
    title: str = ""
    note: str = ""

    @property
    def named(self) -> list[ChartLine]:
        """The lines with a label of their own."""
        return [line for line in self.lines if labelled(line)]

    def end(self, line: ChartLine) -> float:
        """Where a line ends, as a part of the height: its label is to stand there."""
        last = next((v for v in reversed(heights(line)) if drawable(v, self.y.log)), self.y.low)
        return min(max(self.y.place(last), 0.0), 1.0)


def panel(lines: Iterable[ChartLine], x: Side, y: Side, title: str = "", note: str = "") -> Panel:
    """Decide on the axes. A log axis becomes a linear one where nothing can be drawn on it."""
    lines = tuple(lines)
    return Panel(_across(lines, x), _up(lines, y), lines, title, note)


def _across(lines: Sequence[ChartLine], side: Side) -> Axis:
    values = [v for line in lines for v in line.get("x", ()) if drawable(v, side.log)]
    low, high = (min(values), max(values)) if values else (1.0, 10.0) if side.log else (0.0, 1.0)
    return _axis(side, low, high, side.log, ACROSS)


def _up(lines: Sequence[ChartLine], side: Side) -> Axis:
    log = side.log and any(drawable(v, True) for line in lines for v in heights(line))
    values = [v for line in lines for v in heights(line) if drawable(v, log)] or [1.0]
    # A single run may dip out of the picture.
    lows = [v for line in lines if not thin(line) for v in heights(line) if drawable(v, log)]
    low, high = min(lows or values), max(values)
    if log and side.decades:
        high = min(high, HIGH)
        low = min(max(low, high * DEEP), high)
        low, high = 10.0 ** math.floor(math.log10(low) + 1e-9), 10.0 ** math.ceil(math.log10(high) - 1e-9)
    elif log:
        room = (high / low) ** 0.05 if high > low else 1.1
        low, high = low / room, high * room
    else:
        room = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
        low, high = low - room, high + room
    return _axis(side, low, high, log, UP)


def _axis(side: Side, low: float, high: float, log: bool, most: int) -> Axis:
    low = side.low if drawable(side.low, log) else low
    high = side.high if drawable(side.high, log) else high
    if not low < high:
        high = low * 10 if log else low + 1.0
    return Axis(side.label, log, low, high, tuple(ticks(low, high, log, most, side.whole)), side.whole)


def ticks(low: float, high: float, log: bool, most: int, whole: bool = False) -> list[Tick]:
    """Where an axis has its ticks, and what they say.

    >>> [tick.text for tick in ticks(0, 100, False, 4)]
    ['0', '50', '100']
    >>> ticks(2.1e-30, 3.9e-30, True, 2)
    [Tick(at=3e-30, text='3×10⁻³⁰')]
    >>> [tick.text for tick in ticks(1e-3, 20, True, 6)]
    ['0.001', '0.01', '0.1', '1', '10']
    >>> [tick.text for tick in ticks(0, 3, False, 6)], [tick.text for tick in ticks(0, 3, False, 6, whole=True)]
    (['0', '0.5', '1', '1.5', '2', '2.5', '3'], ['0', '1', '2', '3'])
    """
    if log:
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        if last - first >= 2:
            every = max(1, math.ceil((last - first) / max(2, most - 1)))
            powers = range(math.ceil(first / every) * every, last + 1, every)
            return [_tick(float(f"1e{k}")) for k in powers]
        steps = [float(f"{m}e{k}") for k in range(first - 1, last + 2) for m in (1, 2, 5)]
        found = [_tick(v) for v in steps if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]
        if len(found) >= 3:
            return found
    rough = (high - low) / max(1, most)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(m for m in (1, 2, 5, 10) if m * unit >= rough * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    span = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [_tick(float(f"{i * step:.12g}")) for i in span]


def _tick(value: float) -> Tick:
    return Tick(value, tick_text(value))


def tick_text(value: float) -> str:
    """
    >>> [tick_text(v) for v in (0.0, 1500, 12500, 2.5e6, 1e9, 1e-7, -0.5)]
    ['0', '1,500', '12.5k', '2.5M', '1G', '10⁻⁷', '−0.5']
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size and 1e4 <= abs(value) < 1e12:
            return f"{value / size:g}{unit}".replace("-", "−")
    return number(value, 4).removeprefix("1×")


def spread(places: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """The places, moved as little as can be (least squares) for labels of these sizes to lie apart and within [0, 1].

    >>> spread([0.5, 0.9, 0.5], [0.1, 0.1, 0.1])
    [0.45, 0.9, 0.55]
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    ordered = np.array([sizes[i] for i in order])
    centre = np.cumsum(ordered) - ordered / 2  # were they stacked from 0 on
    groups: list[list[float]] = []  # of labels that touch: the mean of what is left to move, and how many
    for i, stacked in zip(order, centre, strict=True):
        groups.append([places[i] - stacked, 1])
        while len(groups) > 1 and groups[-2][0] >= groups[-1][0]:
            (low, m), (high, n) = groups[-2:]
            groups[-2:] = [[(low * m + high * n) / (m + n), m + n]]
    move = np.repeat([g[0] for g in groups], [int(g[1]) for g in groups])
    moved = np.clip(move, 0, max(0.0, 1 - ordered.sum())) + centre
    return [round(float(moved[order.index(i)]), 12) for i in range(len(places))]
