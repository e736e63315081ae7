"""Pictures without matplotlib: SVG text that needs no style sheet and reads on light and on dark paper."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.numbers import counted, evenly
from fedpoint.show import palette
from fedpoint.show.drawing import Axis, Panel, spread
from fedpoint.show.lines import ChartLine, Numbers, banded, dash, drawable, on_top, thin
from fedpoint.show.markup import Html, join, number, tag

VIRIDIS = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")
POINTS = 150  # of a line of a notebook: a small picture shows no more
FINE = 1500  # units of a curve's box, across and up: whole numbers are short, and as fine as can be seen
TOP, BOTTOM = 26, 42  # pixels above and below the curves
LETTER = 6.6  # pixels of a letter, about: a page's script measures instead
SAMPLE = "M0 0h14"  # of a line, before its name
NAMED = 50  # nodes up to which their names are written
TITLED = 300  # nodes up to which each says its value when pointed at
MOST_NODES, MOST_EDGES = 1500, 4000


def picture(panel: Panel, width: int = 640, height: int = 300) -> Html:
    """Curves as a picture. Across, everything between the axis and the names is in parts of its box (`middle`), so that
    a page's script fits it to any width by three numbers: it draws nothing itself."""
    left = 14 + LETTER * max((len(tick.text) for tick in panel.y.ticks), default=0)
    names = max((len(line["name"]) for line in panel.named), default=0)
    right = 28 + LETTER * names if names else 16.0
    middle = tag(
        "svg",
        _grid(panel, height),
        _curves(panel, height),
        class_="middle",
        x=f"{left:.0f}",
        width=f"{width - left - right:.0f}",
        height=height,
        overflow="visible",
        aria_hidden="true",
    )
    ticks = [
        tag("text", tick.text, x=f"{left - 8:.0f}", y=f"{_level(panel.y, tick.at, height) + 4:.1f}", text_anchor="end")
        for tick in panel.y.ticks
    ]
    label = f"{panel.y.label} over {panel.x.label}: {', '.join(line['name'] for line in panel.named)}"
    return tag(
        "svg",
        tag("g", *ticks, tag("text", panel.y.label, x=2, y=12), opacity=0.8),
        middle,
        _names(panel, height, width - right),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label=f"{panel.title}: {label}" if panel.title else label,
        font_family="system-ui, sans-serif",
        font_size=12,
        fill="currentColor",
    )


def _level(axis: Axis, value: float, height: int) -> float:
    """How far below the upper edge, in pixels."""
    return height - BOTTOM - axis.place(value) * (height - BOTTOM - TOP)


def _grid(panel: Panel, height: int) -> Html:
    bottom = height - BOTTOM
    levels = [f"{_level(panel.y, tick.at, height):.1f}" for tick in panel.y.ticks]
    rules = [tag("line", x1=0, x2="100%", y1=y, y2=y, stroke_opacity=0.15) for y in levels]
    marks, words = [tag("line", x1=0, x2="100%", y1=bottom, y2=bottom, stroke_opacity=0.5)], []
    for i, tick in enumerate(panel.x.ticks):
        at = f"{100 * panel.x.place(tick.at):.2f}%"
        marks.append(tag("line", x1=at, x2=at, y1=bottom, y2=bottom + 5, stroke_opacity=0.5))
        words.append(tag("text", tick.text, x=at, y=bottom + 18, class_="odd" if i % 2 else None))
    words.append(tag("text", panel.x.label, x="50%", y=height - 6))
    return join([tag("g", *rules, *marks, stroke="currentColor"), tag("g", *words, text_anchor="middle", opacity=0.8)])


def _curves(panel: Panel, height: int) -> Html:
    """The lines, in a box that cuts off what leaves it; dots keep their form, whatever its width."""
    lines = [line for line in on_top(panel.lines) if "dots" not in line]
    box = tag(
        "svg",
        *(_band(line, panel) for line in panel.lines if banded(line)),
        *(_path(line, panel) for line in lines),
        class_="curves",
        y=TOP,
        width="100%",
        height=height - TOP - BOTTOM,
        viewBox=f"0 0 {FINE} {FINE}",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
    dots = [dot for line in panel.lines if "dots" in line for dot in _dots(line, panel, height)]
    return join([box, *dots])


def _dots(line: ChartLine, panel: Panel, height: int) -> list[Html]:
    """The points of a line, each with a bar from low to high where it has one."""
    found = []
    none = [None] * len(line["x"])
    for x, y, low, high in zip(line["x"], line["y"], line.get("low", none), line.get("high", none), strict=True):
        if not (drawable(x, panel.x.log) and drawable(y, panel.y.log)):
            continue
        at, look = f"{100 * panel.x.place(x):.2f}%", {"class_": f"dot {_class(line)}", "fill": _paint(line)}
        if drawable(high, panel.y.log):
            ends = [low if drawable(low, panel.y.log) else panel.y.low, high]
            y1, y2 = (f"{_level(panel.y, v, height):.1f}" for v in ends)
            found.append(tag("line", class_=f"line {_class(line)}", x1=at, x2=at, y1=y1, y2=y2, stroke=_paint(line)))
        found.append(tag("circle", cx=at, cy=f"{_level(panel.y, y, height):.1f}", r=4, **look))
    return found


def _names(panel: Panel, height: int, left: float) -> Html:
    """Names where the lines end, or as near as the others let them."""
    named, high = panel.named, height - TOP - BOTTOM
    places = spread([panel.end(line) for line in named], [16 / high] * len(named)) if named else []
    rows = []
    for line, place in zip(named, places, strict=True):
        sample = tag("path", d=SAMPLE, **_stroke(line))
        at = f"translate(6 {height - BOTTOM - place * high:.1f})"
        rows.append(tag("g", sample, tag("text", line["name"], x=20, y=4), class_="name", transform=at))
    return tag("svg", *rows, class_="names", x=f"{left:.0f}", overflow="visible", aria_hidden="true")


def _points(panel: Panel, x: Sequence[float], y: Numbers) -> list[tuple[int, int] | None]:
    """Places in the box; None where there is a gap."""
    found: list[tuple[int, int] | None] = []
    for across, value in zip(x, y, strict=True):
        if drawable(across, panel.x.log) and drawable(value, panel.y.log):
            up = min(max(panel.y.place(value), -1.0), 2.0)
            found.append((round(FINE * panel.x.place(across)), round(FINE * (1 - up))))
        else:
            found.append(None)
    return found


def _joined(points: Sequence[tuple[int, int] | None]) -> str:
    """A path through the points, in steps from one to the next: they are shorter to write.

    >>> _joined([(0, 5), (3, 4), None, (9, 9)])
    'M0 5l3-1M9 9h0'
    """
    d, before, after = "", None, ""
    for point in points:
        if point is not None and before is None:
            d += f"M{point[0]} {point[1]}"
            after = "h0"  # a point alone is a dot
        elif point is not None and before is not None:
            x, y = point[0] - before[0], point[1] - before[1]
            d += ("l" if after else "" if x < 0 else " ") + f"{x}{'' if y < 0 else ' '}{y}"
            after = ""
        else:
            d, after = d + after, ""
        before = point
    return d + after


def _path(line: ChartLine, panel: Panel) -> Html:
    if "level" in line:
        ends = [panel.x.low, panel.x.high] if drawable(line["level"], panel.y.log) else []
        d = _joined(_points(panel, ends, [line["level"]] * len(ends)))
    else:
        d = _joined(_points(panel, line["x"], line["y"]))
    return tag("path", d=d, **_stroke(line), vector_effect="non-scaling-stroke")


def _band(line: ChartLine, panel: Panel) -> Html:
    low = [panel.y.low if high is not None and not drawable(v, panel.y.log) else v
           for v, high in zip(line["low"], line["high"], strict=True)]  # fmt: skip
    over, under = (_points(panel, line["x"], values) for values in (line["high"], low))
    both = [(a, b) for a, b in zip(over, under, strict=True) if a and b]
    d = _joined([a for a, _ in both] + [b for _, b in reversed(both)])
    shade = palette.SHADE
    return tag("path", d=f"{d}Z" if d else "", class_=f"band {_class(line)}", fill=_paint(line), fill_opacity=shade)


def _stroke(line: ChartLine) -> dict[str, str | float | None]:
    """How a line looks. The class is for style sheets, which have colours for light and for dark."""
    width = line.get("width", "")
    return {
        "class_": f"line {_class(line)} {width}".rstrip(),
        "fill": "none",
        "stroke": _paint(line),
        "stroke_width": palette.WIDTHS[width],
        "stroke_opacity": palette.FAINT if thin(line) else None,
        "stroke_dasharray": " ".join(f"{length:g}" for length in palette.DASHES[dash(line)]) or None,
        "stroke_linejoin": "round",
    }


def _class(line: ChartLine) -> str:
    colour = line["colour"]
    return f"c{colour % len(palette.ON_BOTH)}" if isinstance(colour, int) else colour


def _paint(line: ChartLine) -> str:
    colour = line["colour"]
    return palette.of(palette.ON_BOTH, colour) if isinstance(colour, int) else "currentColor"


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
