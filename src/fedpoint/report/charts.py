"""How do curves come onto a page? As numbers for curves.js, as a picture for who has no script, and as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpoint.report import svg
from fedpoint.report.facts import Facts
from fedpoint.report.markup import Html, number, table, tag
from fedpoint.report.plots import AXES, BAND

POINTS = 6000  # of all curves of a chart together
WAYS = ("rounds", "floats", "evaluations")  # what a curve can be drawn over


def chart(title: str, y: str, lines: list[dict[str, Any]], log: bool = True, note: str = "", ways: bool = True) -> Html:
    """A figure: drawn by the script; without it, a picture and the numbers are there all the same."""
    names = [way for way in WAYS if all(way in line["xs"] for line in lines if "xs" in line)] if ways else ["rounds"]
    axes = [{"name": way.replace("floats", "numbers sent"), "label": AXES[way]} for way in names]
    for line in lines:
        if "xs" in line:
            line["xs"] = [line["xs"][way] for way in names]
    data = {"title": title, "y": {"label": y, "log": log}, "note": note, "axes": axes, "lines": lines}
    drawn = [
        svg.Line(
            "" if line.get("quiet") else line["name"],
            line["xs"][0] if "xs" in line else (),
            line.get("y", ()),
            line.get("low"),
            line.get("high"),
            line.get("level"),
            line["colour"],
            line.get("dash", "dotted" if "level" in line else "solid"),
        )
        for line in lines
    ]
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return tag(
        "figure",
        tag("figcaption", tag("h3", title), tag("div", class_="ways")),
        tag("div", svg.curves(drawn, axes[0]["label"], y, log), class_="picture"),
        tag("script", Html(text), type="application/json"),
        _numbers(lines),
        class_="chart",
    )


def _numbers(lines: list[dict[str, Any]]) -> Html | None:
    """A few rows of what is drawn, for who cannot see it."""
    curves = [line for line in lines if "xs" in line]
    longest = max(curves, key=lambda line: len(line["y"]), default=None)
    if longest is None:
        return None
    x = longest["xs"][0]
    rows = []
    for i in np.unique(np.linspace(0, len(x) - 1, min(len(x), 12)).round().astype(int)).tolist():
        near = [int(np.abs(np.asarray(line["xs"][0]) - x[i]).argmin()) for line in curves]
        rows.append([number(x[i]), *(number(line["y"][j]) for line, j in zip(curves, near, strict=True))])
    shown = table(["round", *(line["name"] for line in curves)], rows)
    return tag("details", tag("summary", "Numbers"), tag("div", shown, class_="wide"))


def curve(facts: Facts, values: np.ndarray, rounds: np.ndarray, many: int, name: str) -> dict[str, Any]:
    """The mean over repeats and its band, thinned to what can be seen."""
    count = max(60, min(500, POINTS // many))
    some = np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), count)).round().astype(int))
    shown, places = values[:, some], np.searchsorted(facts.run.rounds, rounds[some])
    line: dict[str, Any] = {
        "name": name,
        "xs": {way: _plain(facts.across[way][places]) for way in WAYS},
        "y": _plain(shown.mean(0)),
        "colour": facts.colour % 7,
        "dash": "solid" if facts.colour < 7 else "dashed",
    }
    if len(values) > 1:
        low, high = np.percentile(shown, BAND, axis=0)
        line["low"], line["high"] = _plain(low), _plain(high)
    return line


def expected(facts: Facts, colour: int | str, quiet: bool = False) -> list[dict[str, Any]]:
    """The forecast's curve beside a run's error."""
    part = facts.forecast
    if "curve" not in part or facts.run.error is None:
        return []
    at = np.asarray(part["at"], float)
    xs = {way: _plain(np.interp(at, facts.run.rounds, facts.across[way])) for way in WAYS}
    name = f"{facts.label}, forecast" if quiet else "forecast"
    return [{"name": name, "xs": xs, "y": part["curve"], "colour": colour, "dash": "dashed", "quiet": quiet}]


def levels(facts: Facts) -> list[dict[str, Any]]:
    """Where the error ends: floor and bias."""
    part, found = facts.forecast, []
    if facts.run.error is None or part.get("diverges"):
        return []
    for name, key, colour in (("floor", "floor", 1), ("bias²", "bias2", 2)):
        value = part.get(key)
        if value and math.isfinite(value):
            found.append({"name": f"{name} {number(value, 2)}", "level": value, "colour": colour})
    return found


def held_out(facts: Sequence[Facts], name: str) -> Html:
    lines = [curve(f, np.asarray(f.run.evaluation[name]), f.run.evaluated_rounds, len(facts), f.label) for f in facts]
    title = f"Held-out {name.removeprefix('held-out ')}"
    return chart(title, title.lower(), lines, log=name.endswith("loss"), note=repeats(facts))


def repeats(facts: Sequence[Facts]) -> str:
    counts = sorted({f.run.repeats for f in facts})
    if counts[-1] == 1:
        return ""
    told = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"mean of {told} repeats; the band holds {BAND[1] - BAND[0]} % of them"


def _plain(values: Any) -> list[float | None]:
    """As many digits as can be seen; null for what is not finite."""
    rounded = [float(f"{v:.5g}") if math.isfinite(v) else None for v in np.asarray(values, float).tolist()]
    return [int(v) if v is not None and v.is_integer() and abs(v) < 1e15 else v for v in rounded]


def loggable(facts: Sequence[Facts], what: str) -> bool:
    found = [values for f in facts if (values := f.measure(what)) is not None]
    return all((values[np.isfinite(values)] >= 0).all() and (values > 0).any() for values in found)
