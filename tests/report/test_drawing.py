"""One figure, whoever draws it: the same ranges, ticks, words, colours and places in a file, a notebook and a page."""

import dataclasses
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.colors import to_hex

from fedpoint.show import figures, palette, svg, web
from fedpoint.show.drawing import Side, panel, ticks
from fedpoint.show.lines import labelled

ROUNDS = [0.0, 3.0, 7.0, 40.0]
CURVE = {"name": "FedAvg", "colour": 0, "x": ROUNDS, "y": [2.0, 0.5, 0.02, 0.013]}
BAND = {"low": [2.0, 0.3, 0.01, 0.004], "high": [2.0, 0.9, 0.05, 0.03]}
THIN = {**CURVE, "name": "one run", "width": "thin", "y": [2.0, 1e-7, 0.3, 0.2]}
FORECAST = {**CURVE, **BAND, "name": "forecast", "colour": "ink", "dash": "dashed"}
LEVEL = {"name": "floor 0.012", "level": 0.012, "colour": 1}
GAP = {**CURVE, "name": "gap", "colour": 3, "dash": "dotted", "width": "thick", "y": [0.7, None, 0.0, 0.1]}
DOTS = {"name": "reached", "colour": 2, "x": [4.0, 30.0], "y": [0.1, 0.05], "dots": True}
PANELS = {
    "log": panel([THIN, CURVE, FORECAST, LEVEL, GAP], Side("rounds", whole=True), Side("error", log=True), "A", "note"),
    "linear": panel([CURVE, {**LEVEL, "level": -0.4}], Side("rounds", low=0, high=50), Side("accuracy")),
    "decades": panel([CURVE, FORECAST], Side("rounds"), Side("error", log=True, decades=True)),
    "both": panel(
        [{**CURVE, "x": [1.0, 30.0, 700.0, 2e6]}, {**DOTS, "x": [50.0, 9e5]}],
        Side("cost", log=True),
        Side("e", log=True),
    ),
    "narrow": panel([{**CURVE, "y": [3.0, 2.0, 1.9, 1.5]}], Side("s"), Side("error", log=True)),
    "nothing": panel([{**CURVE, "y": [None] * 4}], Side("rounds"), Side("error", log=True)),
}


def by_matplotlib(panel):
    """Of each axis: where its ticks are as parts of it, and what they say; of each line its look."""
    figure, ax = figures.one_axes()
    figures.draw_panel(ax, panel)
    figure.canvas.draw()
    parts = ax.transData + ax.transAxes.inverted()
    found = {"words": (ax.get_xlabel(), ax.get_ylabel())}
    for name, axis, column in (("x", ax.xaxis, 0), ("y", ax.yaxis, 1)):
        shown = [t for t in axis.get_major_ticks() if t.label1.get_text()]
        corner = [ax.get_xlim()[0], ax.get_ylim()[0]]
        places = [[t.get_loc() if i == column else corner[i] for i in (0, 1)] for t in shown]
        found[name] = [
            (round(parts.transform(p)[column], 3), t.label1.get_text()) for p, t in zip(places, shown, strict=True)
        ]
    found["lines"] = {
        (line.get_label(), round(line.get_linewidth() * palette.POINT, 3)): (
            to_hex(line.get_color()), len(line._dash_pattern[1] or ()), parts.transform(line.get_xydata()),
        )
        for line in ax.lines if len(line.get_xydata()) > 0 and line.get_marker() == "None"
    }  # fmt: skip
    found["dots"] = [parts.transform(line.get_xydata()) for line in ax.lines if line.get_marker() == "o"]
    return found


def by_svg(panel):
    """The same of the SVG, whose colours are named by their classes."""
    ns = "{http://www.w3.org/2000/svg}"
    root = ET.fromstring(svg.picture(panel))
    middle = root.find(f"{ns}svg[@class='middle']")
    box = middle.find(f"{ns}svg[@class='curves']")
    top, height = float(box.get("y")), float(box.get("height"))

    def part(percent):
        return round(float(percent.rstrip("%")) / 100, 3)

    def up(pixels):
        return round(1 - (float(pixels) - top) / height, 3)

    texts = middle.findall(f".//{ns}text")
    left = root.find(f"{ns}g").findall(f"{ns}text")
    found = {
        "words": (texts[-1].text or "", left[-1].text or ""),
        "x": [(part(t.get("x")), t.text) for t in texts[:-1]],
        "y": [(up(float(t.get("y")) - 4), t.text) for t in left[:-1]],
        "dots": [[part(c.get("cx")), up(c.get("cy"))] for c in middle.findall(f"{ns}circle")],
        "names": [t.text for t in root.findall(f".//{ns}g[@class='name']/{ns}text")],
    }
    found["lines"] = [
        (path.get("class").split()[1], float(path.get("stroke-width")), path.get("stroke-dasharray"),
         points(path.get("d")))
        for path in box.findall(f"{ns}path") if "line" in path.get("class").split()
    ]  # fmt: skip
    return found


def points(d):
    """Places of a path as parts of its box, (n, 2)."""
    found, here = [], np.zeros(2)
    for command, numbers in re.findall(r"([Mlh])([^Mlh]*)", d):
        values = [int(v) for v in re.findall(r"-?\d+", numbers)]
        if command == "h":
            continue
        for step in np.reshape(values, (-1, 2)):
            here = step if command == "M" else here + step
            found.append(here)
    return np.reshape(found, (-1, 2)) * [1, -1] / svg.FINE + [0, 1]


def compare(panel, other):
    """Both backends draw one thing: `panel` by matplotlib, `other` (the same, or a test fails) as SVG."""
    file, page = by_matplotlib(panel), by_svg(other)
    assert file["words"] == page["words"]
    for axis in ("x", "y"):
        assert [text for _, text in file[axis]] == [text for _, text in page[axis]]
        np.testing.assert_allclose([at for at, _ in file[axis]], [at for at, _ in page[axis]], atol=2e-3)
    np.testing.assert_allclose(np.reshape(file["dots"], (-1, 2)), np.reshape(page["dots"], (-1, 2)), atol=2e-3)
    drawn = [line for line in svg.on_top(other.lines) if "dots" not in line]
    assert sorted(page["names"]) == sorted(line["name"] for line in other.lines if labelled(line))
    assert len(file["lines"]) == len(page["lines"]) == len(drawn)
    for line, (colour, width, dash, places) in zip(drawn, page["lines"], strict=True):
        paint, dashes, seen = file["lines"][line["name"], width]
        number = line["colour"]
        assert colour == (f"c{number}" if isinstance(number, int) else number)
        assert paint == (palette.ON_WHITE[number] if isinstance(number, int) else palette.INK)
        assert dashes == len((dash or "").split())
        seen = seen[np.isfinite(seen).all(1)]
        np.testing.assert_allclose(places, np.clip(seen, [-9, -1], [9, 2]), atol=1.5 / svg.FINE)


@pytest.mark.parametrize("name", PANELS)
def test_a_file_and_a_page_show_one_figure(name):
    compare(PANELS[name], PANELS[name])


@pytest.mark.parametrize(
    "broken",
    [
        lambda p: dataclasses.replace(p, y=dataclasses.replace(p.y, low=p.y.low / 3)),
        lambda p: dataclasses.replace(p, x=dataclasses.replace(p.x, ticks=p.x.ticks[1:])),
        lambda p: dataclasses.replace(p, lines=({**p.lines[0], "colour": 5}, *p.lines[1:])),
        lambda p: dataclasses.replace(p, lines=({**p.lines[0], "dash": "dotted"}, *p.lines[1:])),
        lambda p: dataclasses.replace(p, lines=({**p.lines[0], "width": "thick"}, *p.lines[1:])),
        lambda p: dataclasses.replace(p, lines=p.lines[1:]),
    ],
)
def test_backends_that_differ_are_found(broken):
    """Another range, tick, colour, dash, width, or a line too few."""
    for name in ("linear", "decades"):
        with pytest.raises((AssertionError, KeyError)):
            compare(PANELS[name], broken(PANELS[name]))


def test_the_script_is_told_the_same_axes():
    for one in PANELS.values():
        made = web.chart(one)
        (across,) = made["axes"]
        assert (across["low"], across["high"], across["log"]) == (one.x.low, one.x.high, one.x.log)
        assert (made["y"]["low"], made["y"]["high"], made["y"]["log"]) == (one.y.low, one.y.high, one.y.log)
        assert across["picture"] == svg.picture(one)
        for told, line in zip(made["lines"], one.lines, strict=True):
            assert "x" not in told and ("x" not in line or made["xs"][told["at"]] == [line["x"]])
            assert told.get("y") == line.get("y")


def test_a_single_run_may_dip_out_and_a_log_axis_needs_something_above_zero():
    log = PANELS["log"]
    assert 1e-7 < log.y.low < 0.004 < 2.0 < log.y.high
    assert not PANELS["nothing"].y.log and PANELS["decades"].y.low == 0.001 and PANELS["decades"].y.high == 10.0
    deep = panel([{**CURVE, "y": [1e9, 1.0, 1e-40, 1e-41]}], Side("x"), Side("y", log=True, decades=True))
    assert (deep.y.low, deep.y.high) == (pytest.approx(1e-6), pytest.approx(1e6))


@pytest.mark.parametrize("log", [False, True])
def test_ticks_are_round_within_the_range_and_neither_few_nor_many(rng, log):
    for _ in range(300):
        low, span = 10 ** rng.uniform(-12, 9), 10 ** rng.uniform(0.02, 20)
        low, high = (low, low * span) if log else (low, low + low * span)
        found = ticks(low, high, log, 6)
        at = [tick.at for tick in found]
        assert 2 <= len(found) <= 14 and at == sorted(set(at))
        slack = 1e-9 * (low if log else high - low)
        assert low - slack <= at[0] and at[-1] <= high * (1 + 1e-9)
        assert len({tick.text for tick in found}) == len(found)  # each says something else
