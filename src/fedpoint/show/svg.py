"""Pictures without matplotlib: SVG text that needs no style sheet and reads on light and on dark paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.numbers import counted, evenly
from fedpoint.show import palette
from fedpoint.show.figures import spread
from fedpoint.show.lines import ChartLine
from fedpoint.show.markup import Html, join, number, tag

VIRIDIS = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")
Scale = Callable[[float], float]  # from a number of an axis to its place
POINTS = 150  # of a line: a small picture shows no more
NAMED = 50  # nodes up to which their names are written
TITLED = 300  # nodes up to which each says its value when pointed at
MOST_NODES, MOST_EDGES = 1500, 4000


@dataclass(frozen=True)
class Line:
    """A curve (x, y), or a level where `level` is given; colour: a number of the palette, or "ink"."""

    name: str
    x: Sequence[float] = ()
    y: Sequence[float | None] = ()
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    level: float | None = None
    colour: int | str = 0
    dash: str = "solid"
    width: str = ""  # "thin": behind the others; "thick"

    @classmethod
    def of(cls, line: ChartLine, band: bool = True) -> Line:
        """A line of a chart; band: with its band, where it has one."""
        return cls(
            "" if line.get("quiet") else line["name"],
            line["xs"][0] if "xs" in line else line.get("x", ()),
            line.get("y", ()),
            line.get("low") if band else None,
            line.get("high") if band else None,
            line.get("level"),
            line["colour"],
            line.get("dash", "dotted" if "level" in line else "solid"),
            line.get("width", ""),
        )


def curves(
    lines: Sequence[Line], xlabel: str, ylabel: str, log: bool = True, width: int = 640, height: int = 300
) -> Html:
    """The same picture as curves.js draws, without its read-out."""
    values = [v for line in lines for v in _heights(line)]
    log = log and any(_usable(v, True) for v in values)
    usable = [float(v) for v in values if _usable(v, log)] or [1.0]
    others = [float(v) for line in lines if line.width != "thin" for v in _heights(line) if _usable(v, log)]
    low, high = min(others or usable), max(usable)  # a single run may dip out of the picture
    if log:
        room = (high / low) ** 0.05 if high > low else 1.1
        low, high = low / room, high * room
    else:
        room = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
        low, high = low - room, high + room
    across = [x for line in lines for x in line.x] or [0.0, 1.0]
    left_end, right_end = min(across), max(max(across), min(across) + 1e-9)
    longest = max((len(line.name) for line in lines), default=0)
    left, right, top, bottom = 56.0, width - (26.0 + 7.8 * longest if longest else 12.0), 26.0, height - 42.0

    def sx(v: float) -> float:
        return left + (v - left_end) / (right_end - left_end) * (right - left)

    def sy(v: float) -> float:
        part = math.log(v / low) / math.log(high / low) if log else (v - low) / (high - low)
        return bottom - part * (bottom - top)

    grid = []
    for at, text in ticks(low, high, log, 6):
        y1 = f"{sy(at):.1f}"
        grid.append(tag("line", x1=left, x2=f"{right:.1f}", y1=y1, y2=y1, stroke="currentColor", stroke_opacity=0.15))
        grid.append(_text(text, left - 8, sy(at) + 4, "end"))
    for at, text in ticks(left_end, right_end, False, max(2, int((right - left) / 90))):
        grid.append(_text(text, sx(at), bottom + 18, "middle"))
    grid.append(_text(xlabel, (left + right) / 2, height - 6, "middle"))
    grid.append(_text(ylabel, 2, 12, "start"))
    drawn = [_band(line, sx, sy, log, bottom) for line in lines if line.low is not None]
    ordered = sorted(lines, key=lambda line: 0 if line.width == "thin" else 1 if line.level is not None else 2)
    drawn += [_path(line, sx, sy, log, left, right, bottom) for line in ordered]
    ends = []
    named = [line for line in lines if line.name]
    for line in named:
        last = next((v for v in reversed(_heights(line)) if _usable(v, log)), low)
        ends.append((bottom - sy(last)) / (bottom - top))
    places = spread(ends, [16 / (bottom - top)] * len(named)) if named else []
    for line, place in zip(named, places, strict=True):
        y = bottom - place * (bottom - top)
        sample, dash = f"M{right + 6:.1f} {y:.1f}h12", _dash(line.dash)
        drawn.append(tag("path", d=sample, stroke=_paint(line.colour), stroke_width=2, stroke_dasharray=dash))
        drawn.append(_text(line.name, right + 23, y + 4, "start", opacity=1.0))
    label = f"{ylabel} over {xlabel}: {', '.join(line.name for line in named)}"
    return _svg(width, height, label, [*grid, *drawn])


def ticks(low: float, high: float, log: bool, most: int) -> list[tuple[float, str]]:
    """Where an axis has its ticks, and what they say.

    >>> ticks(0, 100, False, 4)
    [(0.0, '0'), (50.0, '50'), (100.0, '100')]
    >>> ticks(2.1e-30, 3.9e-30, True, 2)
    [(3e-30, '3×10⁻³⁰')]
    >>> ticks(1e-3, 20, True, 6)
    [(0.001, '0.001'), (0.01, '0.01'), (0.1, '0.1'), (1.0, '1'), (10.0, '10')]
    """
    if log:
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        if last - first >= 2:
            every = max(1, math.ceil((last - first) / max(2, most - 1)))
            powers = range(math.ceil(first / every) * every, last + 1, every)
            return [(10.0**k, number(10.0**k).removeprefix("1×")) for k in powers]
        steps = [m * 10.0**k for k in range(first - 1, last + 2) for m in (1, 2, 5)]
        found = [(v, number(v)) for v in steps if low <= v <= high]
        if len(found) >= 3:
            return found
    rough = (high - low) / max(1, most)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(m for m in (1, 2, 5, 10) if m * unit >= rough * (1 - 1e-9))
    whole = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [(v, number(v)) for v in (float(f"{i * step:.12g}") for i in whole)]


def network(
    places: ArrayLike,
    edges: ArrayLike,
    weights: ArrayLike,
    names: Sequence[str],
    values: ArrayLike | None = None,
    label: str = "",
    width: int = 640,
) -> Html:
    """A network: edges as thick as their weights, nodes coloured by a number. Of very many edges the heaviest."""
    places, edges, weights = np.asarray(places, float), np.asarray(edges, int), np.asarray(weights, float)
    span = np.maximum(np.ptp(places, axis=0), 1e-9) if len(places) else np.ones(2)
    margin = 28.0
    height = float(np.clip((width - 2 * margin) * span[1] / span[0], 160, 460)) + 2 * margin
    scale = min((width - 2 * margin) / span[0], (height - 2 * margin) / span[1])
    shift = np.array([width, height]) / 2 - scale * np.array([1, -1]) * (places.min(0) + span / 2)
    at = places * scale * np.array([1, -1]) + shift  # up is up
    keep = np.sort(np.argsort(-weights, kind="stable")[:MOST_EDGES])
    drawn = _edges(at, edges[keep], weights[keep])
    radius = float(np.clip(0.28 * math.sqrt(width * height / max(len(places), 1)), 2.5, 11))
    numbers = None if values is None else np.asarray(values, float)
    finite = np.array([]) if numbers is None else numbers[np.isfinite(numbers)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    for i, (x, y) in enumerate(at):
        shade = palette.ON_BOTH[0]
        said = names[i]
        if numbers is not None and math.isfinite(numbers[i]):
            shade = VIRIDIS[min(8, int(9 * (numbers[i] - low) / (high - low)))] if high > low else VIRIDIS[4]
            said = f"{names[i]}: {number(numbers[i])}"
        elif numbers is not None:
            shade = "none"
        hint = tag("title", said) if len(places) <= TITLED else None
        at_x, at_y, r = f"{x:.1f}", f"{y:.1f}", f"{radius:.1f}"
        drawn.append(tag("circle", hint, cx=at_x, cy=at_y, r=r, fill=shade, stroke=palette.RULE, stroke_width=1))
    if len(places) <= NAMED:
        drawn += [_text(name, x, y + radius + 12, "middle", 11) for name, (x, y) in zip(names, at, strict=True)]
    told = f"Network of {counted(len(places), 'node')} and {counted(len(edges), 'edge')}"
    if len(finite):
        told += f", coloured by {label} from {number(low)} to {number(high)}"
        drawn += _scale(width, height, low, high, label)
        height += 34
    return _svg(width, round(height), told, drawn)


def _edges(at: np.ndarray, edges: np.ndarray, weights: np.ndarray) -> list[Html]:
    """Edges in five classes of thickness, a path each: few bytes for many edges."""
    if not len(edges):
        return []
    classes = np.minimum((5 * np.sqrt(weights / weights.max())).astype(int), 4)
    paths = []
    for k in range(5):
        d = "".join(
            f"M{at[i, 0]:.1f} {at[i, 1]:.1f}L{at[j, 0]:.1f} {at[j, 1]:.1f}" for i, j in edges[classes == k].tolist()
        )
        thick = round(0.5 + 0.5 * k, 1)
        if d:
            paths.append(tag("path", d=d, stroke="currentColor", stroke_opacity=0.35, stroke_width=thick, fill="none"))
    return paths


def _scale(width: int, height: float, low: float, high: float, label: str) -> list[Html]:
    """What the colours stand for."""
    step, y = 16, height + 4
    left = width / 2 - 4.5 * step
    shades = [
        tag("rect", x=f"{left + i * step:.1f}", y=f"{y:.1f}", width=step, height=8, fill=shade)
        for i, shade in enumerate(VIRIDIS)
    ]
    ends = [
        _text(number(low), left - 6, y + 8, "end", 11),
        _text(f"{number(high)}  {label}", left + 9 * step + 6, y + 8, "start", 11),
    ]
    return [*shades, *ends]


def columns(values: Sequence[float], label: str, width: int = 640, height: int = 130) -> Html:
    """Many values from the greatest to the least, as one area."""
    ordered = np.sort(np.asarray(values, float))[::-1]
    some = ordered[evenly(len(ordered), 400)]
    high, low = max(float(some.max()), 0.0), min(float(some.min()), 0.0)
    left, right, top, bottom = 56.0, width - 6.0, 22.0, height - 24.0

    def sy(v: float) -> float:
        return bottom - (v - low) / (high - low or 1.0) * (bottom - top)

    step = (right - left) / len(some)
    base = f"{sy(0):.1f}"
    d = (
        f"M{left} {base}"
        + "".join(f"V{sy(v):.1f}H{left + (i + 1) * step:.1f}" for i, v in enumerate(some))
        + f"V{base}Z"
    )
    parts = [tag("path", d=d, fill=palette.ON_BOTH[0], fill_opacity=0.75)]
    for at in dict.fromkeys((high, low)):
        y = f"{sy(at):.1f}"
        parts.append(tag("line", x1=left, x2=right, y1=y, y2=y, stroke="currentColor", stroke_opacity=0.25))
        parts.append(_text(number(at), left - 8, sy(at) + 4, "end"))
    parts.append(_text(label, 2, 11, "start"))
    parts.append(
        _text(f"{counted(len(ordered), 'agent')}, the worst served first", (left + right) / 2, height - 6, "middle")
    )
    return _svg(width, height, f"{label} of {counted(len(ordered), 'agent')}, the worst served first", parts)


def bar(part: float) -> Html:
    """A share of 1 as a bar, for a cell of a table; what it says stands beside it."""
    filled = f"{100 * min(max(part, 0.0), 1.0):.1f}"
    rect = tag("rect", width=filled, height=8, fill=palette.ON_BOTH[0])
    return tag(
        "svg",
        rect,
        class_="bar",
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        width=100,
        height=8,
        aria_hidden="true",
    )


def _svg(width: int, height: int, label: str, parts: Sequence[Html]) -> Html:
    return tag(
        "svg",
        join(parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
    )


def _text(text: str, x: float, y: float, anchor: str, size: int = 12, opacity: float = 0.8) -> Html:
    return tag(
        "text",
        text,
        x=f"{x:.1f}",
        y=f"{y:.1f}",
        text_anchor=anchor,
        font_size=size,
        font_family="system-ui, sans-serif",
        fill="currentColor",
        fill_opacity=None if opacity == 1 else opacity,
    )


def _paint(colour: int | str) -> str:
    return palette.of(palette.ON_BOTH, colour) if isinstance(colour, int) else "currentColor"


def _dash(name: str) -> str | None:
    return " ".join(f"{length:g}" for length in palette.DASHES[name]) or None


def _usable(value: float | None, log: bool) -> TypeGuard[float]:
    return value is not None and math.isfinite(value) and (value > 0 or not log)


def _heights(line: Line) -> list[float | None]:
    if line.level is not None:
        return [line.level]
    return [*(line.low or ()), *(line.high or ()), *line.y]


def _path(line: Line, sx: Scale, sy: Scale, log: bool, left: float, right: float, bottom: float) -> Html:
    pen, d = False, ""
    if line.level is not None:
        d = f"M{left:.1f} {sy(line.level):.1f}H{right:.1f}" if _usable(line.level, log) else ""
    for i in evenly(len(line.x), POINTS):
        y = line.y[i]
        if _usable(y, log):
            d += f"{'L' if pen else 'M'}{sx(line.x[i]):.1f} {min(sy(y), bottom):.1f}"
            pen = True
        else:
            pen = False
    return tag(
        "path",
        d=d,
        fill="none",
        stroke=_paint(line.colour),
        stroke_width=palette.WIDTHS[line.width],
        stroke_opacity=0.45 if line.width == "thin" else None,
        stroke_dasharray=_dash(line.dash),
    )


def _band(line: Line, sx: Scale, sy: Scale, log: bool, bottom: float) -> Html:
    over, under = [], []
    assert line.low is not None and line.high is not None
    for i in evenly(len(line.x), POINTS):
        low, high = line.low[i], line.high[i]
        if _usable(high, log):
            over.append(f"{sx(line.x[i]):.1f} {sy(high):.1f}")
            under.append(f"{sx(line.x[i]):.1f} {sy(low) if _usable(low, log) else bottom:.1f}")
    d = f"M{'L'.join(over)}L{'L'.join(reversed(under))}Z" if over else ""
    return tag("path", d=d, fill=_paint(line.colour), fill_opacity=0.16)
