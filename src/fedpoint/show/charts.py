"""How do curves come onto a page? As a picture, as a table, and as numbers for the read-out of curves.js."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.numbers import evenly, rounded
from fedpoint.show import palette, svg
from fedpoint.show.drawing import Side, panel
from fedpoint.show.expected import forecast_name, levels, note, run_lines
from fedpoint.show.facts import Facts
from fedpoint.show.lines import ChartLine, Numbers
from fedpoint.show.markup import Html, number, scrolling, table, tag
from fedpoint.show.plots import AXES, BAND, WHAT
from fedpoint.show.web import charted

POINTS = 1000  # of all runs of a page together, and at most
MOST_POINTS = 320  # of one
SINGLES = 8  # repeats that are drawn one by one
BANDS = 6  # runs up to which pictures have their bands
WAYS = {
    "rounds": "rounds",
    "floats": "numbers sent",
    "evaluations": "evaluations",
    "time": "virtual time",
}  # the x axes


def chart(title: str, y: str, lines: list[ChartLine], log: bool = True, note: str = "") -> Html:
    """A figure: its picture, its numbers in a table, and what a script needs for a read-out and the other axes."""
    # Virtual time, the last way, only where all runs are on a clock: beside others it would compare nothing.
    common = min((len(line["xs"]) for line in lines if "xs" in line), default=1)
    names = list(WAYS.items())[:common]
    bands = sum("low" in line for line in lines) <= BANDS
    panels = [
        panel([_over(line, i, bands) for line in lines], Side(AXES[way]), Side(y, log), title, note)
        for i, (way, _) in enumerate(names)
    ]
    data = charted(panels, [name for _, name in names], first=False)
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return tag(
        "figure",
        tag("figcaption", tag("h3", title), tag("div", class_="ways")),
        tag("div", svg.picture(panels[0]), tag("p", note, class_="note") if note else None, class_="picture"),
        tag("script", Html(text), type="application/json"),
        _numbers(lines),
        class_="chart",
    )


def _over(line: ChartLine, way: int, band: bool) -> ChartLine:
    """A line over one of the axes; of very many runs without its band."""
    made = line.copy()
    xs = made.pop("xs", None)
    if xs is not None:
        made["x"] = xs[way]
    if not band and "low" in made:
        del made["low"], made["high"]
    return made


def _numbers(lines: list[ChartLine]) -> Html | None:
    """A few rows of what is drawn, for who cannot see it."""
    curves = [line for line in lines if "xs" in line and line.get("width") != "thin"]
    longest = max(curves, key=lambda line: len(line["y"]), default=None)
    if longest is None:
        return None
    x = longest["xs"][0]
    rows = []
    for i in evenly(len(x), 12).tolist():
        near = [int(np.abs(np.asarray(line["xs"][0]) - x[i]).argmin()) for line in curves]
        rows.append([number(x[i]), *(number(line["y"][j]) for line, j in zip(curves, near, strict=True))])
    shown = table(["round", *(line["name"] for line in curves)], rows)
    return tag("details", tag("summary", "Numbers"), scrolling(shown, "Numbers"))


def curve(facts: Facts, values: np.ndarray, rounds: np.ndarray, name: str) -> ChartLine:
    """The mean over repeats and its band, thinned to what can be seen."""
    some = _thinned(facts, rounds)
    shown = values[:, some]
    line: ChartLine = {
        "name": name,
        "xs": _places(facts, rounds[some]),
        "y": _short(shown.mean(0)),
        "colour": facts.colour % 7,
        "dash": palette.dash_of(facts.colour),
    }
    if len(values) > 1:
        low, high = np.percentile(shown, BAND, axis=0)
        line["low"], line["high"] = _short(low), _short(high)
    return line


def _thinned(facts: Facts, rounds: np.ndarray) -> np.ndarray:
    return evenly(len(rounds), min(MOST_POINTS, POINTS // facts.among))


def _places(facts: Facts, rounds: np.ndarray) -> list[list[float]]:
    """Where these recorded rounds lie, by every way of looking at them."""
    at = np.searchsorted(facts.run.rounds, rounds)
    found = [_short(facts.across[way][at]) for way in WAYS if way in facts.across]
    return [[x for x in places if x is not None] for places in found]  # all are finite


def forecast_line(facts: Facts, colour: int | str, quiet: bool = False) -> list[ChartLine]:
    """The forecast's curve beside a run's error, at the same rounds; with its band unless it is one of many."""
    part = facts.forecast
    if "curve" not in part or not facts.run.has_error:
        return []
    rounds = facts.run.rounds[_thinned(facts, facts.run.rounds)]
    name = f"{facts.label}, {forecast_name(part)}" if quiet else forecast_name(part)
    line: ChartLine = {"name": name, "xs": _places(facts, rounds), "colour": colour, "dash": "dashed"}
    line["y"] = _between(part["at"], part["curve"], rounds)
    if quiet:
        return [{**line, "quiet": True}]
    if "low" in part:
        line["low"], line["high"] = (_between(part["at"], part[side], rounds) for side in ("low", "high"))
    return [line]


def _between(at: list[float], values: Numbers, rounds: np.ndarray) -> Numbers:
    """A forecast's curve at other rounds: between its points it is straight on the axis that it is drawn on."""
    known = np.array([[t, v] for t, v in zip(at, values, strict=True) if v is not None])
    between = np.exp(np.interp(rounds, known[:, 0], np.log(np.maximum(known[:, 1], 1e-300))))
    return _short(np.where(rounds <= known[-1, 0], between, np.nan))  # one that diverges ends where it has done so


def error_chart(facts: Facts) -> Html:
    """Forecast and run in one picture."""
    run = facts.run
    points = min(MOST_POINTS, POINTS // facts.among)
    mean, *singles = (_by_ways(facts, line) for line in run_lines(run.rounds, run.error, points, SINGLES))
    lines = [mean, *forecast_line(facts, "ink"), *levels(facts.forecast), *singles]
    return chart("Error", WHAT["error"], lines, loggable([facts], "error"), note(facts.forecast, run.repeats))


def _by_ways(facts: Facts, line: ChartLine) -> ChartLine:
    """A line over rounds, in the colour of its run and over everything that it may be drawn over."""
    made: ChartLine = {**line, "colour": facts.colour % 7, "xs": _places(facts, np.array(line["x"]))}
    made["y"] = _short(np.array(line["y"], float))
    del made["x"]
    return made


def held_out(facts: Sequence[Facts], name: str) -> Html:
    lines = [curve(f, np.asarray(f.run.evaluation[name]), f.run.evaluated_rounds, f.label) for f in facts]
    title = f"Held-out {name.removeprefix('held-out ')}"
    return chart(title, title.lower(), lines, log=name.endswith("loss"), note=repeats(facts))


def repeats(facts: Sequence[Facts]) -> str:
    counts = sorted({f.run.repeats for f in facts})
    if counts[-1] == 1:
        return ""
    told = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"mean of {told} repeats; the band holds {BAND[1] - BAND[0]} % of them"


def _short(values: ArrayLike) -> Numbers:
    """As short as it can be written."""
    return [int(v) if v is not None and v.is_integer() and abs(v) < 1e15 else v for v in rounded(values)]


def loggable(facts: Sequence[Facts], what: str) -> bool:
    found = [values for f in facts if (values := f.measure(what)) is not None]
    return all((values[np.isfinite(values)] >= 0).all() and (values > 0).any() for values in found)
