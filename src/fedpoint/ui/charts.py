"""Which charts and tables does the live page show? Decided here: its scripts put them in their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from fedpoint.core.numbers import counted
from fedpoint.show import palette
from fedpoint.show.drawing import Side, panel
from fedpoint.show.lines import ONE_RUN, ChartLine, Numbers
from fedpoint.show.markup import number
from fedpoint.show.plots import WHAT
from fedpoint.show.web import Chart, chart
from fedpoint.ui.examples import REPEATS
from fedpoint.ui.lessons import Lesson
from fedpoint.ui.outlook import Expectation
from fedpoint.ui.playground import Picture, Playground
from fedpoint.ui.runs import Curves, Spread

COLOURS = len(palette.ON_BOTH)
ROUNDS = "rounds"


class Answer(TypedDict, total=False):
    """What a playground shows: what is there so far."""

    chart: Chart
    against: Chart


def of_playground(play: Playground, forecast: Picture, simulation: Picture | None) -> Answer:
    """The forecast, and over it (dashes on top) what happened; the forecast decides the second chart."""
    lines = [*(simulation["lines"] if simulation else ()), *forecast["lines"]]
    across, up = Side(ROUNDS, low=0, high=play.rounds, whole=True), Side(play.measures, log=True, decades=True)
    note = simulation.get("note", "") if simulation else ""
    made: Answer = {"chart": chart(panel(lines, across, up, f"{play.title}: error over rounds", note))}
    against = None if simulation else forecast.get("against")
    if against is not None:
        across, up = Side("coupling", log=True), Side("mean squared distance to the truth", log=True, decades=True)
        made["against"] = chart(panel(against, across, up, "Error of GTVMin's solution over couplings"))
    return made


class Stage(TypedDict):
    """Methods of a kind on one small problem."""

    title: str
    told: str
    chart: Chart


STAGES = (
    (
        False,
        "With a fusion center",
        "8 agents with quadratic losses of different curvature, noisy fields, all answer in every round.",
        "squared distance to w*",
    ),
    (
        True,
        "Over a network",
        "The same agents on a ring, each with a model of its own.",
        "nodes' mean squared distance to GTVMin's solution",
    ),
)


def of_lessons(lessons: Sequence[Lesson]) -> list[Stage]:
    """Solid what happened, dashed the forecast; each method in the colour of its place."""
    found: list[Stage] = []
    for network, title, told, measure in STAGES:
        lines: list[ChartLine] = []
        for i, lesson in enumerate(lessons):
            example = lesson.get("example")
            if example is None or lesson["network"] != network:
                continue
            x = [float(t) for t in range(len(example["run"]))]
            look: ChartLine = {"name": lesson["title"], "colour": i % COLOURS, "x": x}
            expected: ChartLine = {**look, "name": f"{lesson['title']}, forecast", "dash": "dashed", "quiet": True}
            lines += [{**look, "y": list(example["run"])}, {**expected, "y": list(example["forecast"])}]
        if lines:
            across, up = Side(ROUNDS, whole=True), Side(measure, log=True, decades=True)
            note = f"mean of {counted(REPEATS, 'run')}; dashed: forecast"
            drawn = panel(lines, across, up, f"{title}: error over rounds", note)
            found.append({"title": title, "told": told, "chart": chart(drawn)})
    return found


class Compared(TypedDict):
    """Runs beside each other: their errors, and where each of them is now."""

    chart: Chart | None
    table: list[list[str]]  # with its heading


HEADING = ["run", "algorithm", "round", "error", "least of the repeats", "greatest", "loss"]


def of_runs(runs: Sequence[Curves]) -> Compared:
    lines: list[ChartLine] = []
    for i, run in enumerate(runs):
        if "error" in run:
            look: ChartLine = {"name": run["title"], "colour": i % COLOURS, "dash": palette.dash_of(i)}
            lines.append({**look, "x": [float(t) for t in run["x"]], "y": run["error"]["mean"]})
    rows = [
        [run["title"], run["algorithm"], number(run["reached"]), *_last(run.get("error")), _last(run.get("loss"))[0]]
        for run in runs
    ]
    drawn = panel(lines, Side(ROUNDS, whole=True), Side(WHAT["error"], log=True), "Error of the runs over rounds")
    return {"chart": chart(drawn) if lines else None, "table": [HEADING, *rows]}


def _last(spread: Spread | None) -> list[str]:
    """Mean, least and greatest of the last record."""
    if spread is None:
        return [number(None)] * 3
    return [number(_newest(spread["mean"])), number(_newest(spread["low"])), number(_newest(spread["high"]))]


def _newest(values: Numbers) -> float | None:
    return next((v for v in reversed(values) if v is not None), None)


class Followed(Curves):
    """A run for its page."""

    stoppable: bool  # it was started from the page, and goes on
    charts: dict[str, Chart]  # by what they measure


def of_run(run: Curves, expected: Expectation | None) -> dict[str, Chart]:
    """Error and loss; the error beside what must happen, where that is known."""
    found = {}
    for measure, spread in (("error", run.get("error")), ("loss", run.get("loss"))):
        beside, words = expected["lines"] if expected and measure == "error" else [], WHAT[measure]
        if spread is None and not any("x" in line for line in beside):
            continue
        lines = [*(_own(run["x"], spread) if spread else ()), *beside]
        repeats = run["repeats"] or 1
        own = f"run: mean of {counted(repeats, 'repeat')}, thin: single ones" if spread and repeats > 1 else ""
        note = "; ".join(filter(None, (expected["note"] if expected and beside else "", own)))
        across = Side(ROUNDS, low=0, high=run["rounds"] or None, whole=True)
        up = Side(words, log=measure == "error")
        found[measure] = chart(panel(lines, across, up, f"{words} over rounds", note))
    return found


def _own(rounds: Sequence[int], spread: Spread) -> list[ChartLine]:
    """The mean of a run thick, its first repeats thin."""
    some = [i for i, value in enumerate(spread["mean"]) if value is not None]  # losses are not in every record

    def line(name: str, values: Numbers, width: str) -> ChartLine:
        x, y = [float(rounds[i]) for i in some], [values[i] for i in some]
        return {"name": name, "x": x, "y": y, "colour": 0, "width": width}

    return [line("run", spread["mean"], "thick"), *(line(ONE_RUN, values, "thin") for values in spread["runs"])]
