"""What came of a run, on one page? `report.html`: one file that needs nothing else, to be looked at, printed and sent.

The same folder gives the same bytes: nothing of when or where the page was made is in it. A Content-Security-Policy
allows its own script and style, by their hashes, and nothing else: no address is ever asked for anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from fedpoint.errors import FedpointError
from fedpoint.report import disk, svg
from fedpoint.report.from_data import Part, all_of, ask
from fedpoint.report.labels import labels_of, short
from fedpoint.report.load import LoadedRun, load
from fedpoint.report.markup import Html, escape, join, number, size, table, tag, with_error
from fedpoint.report.plots import AXES, BAND, WHAT

NAME = "report.html"
MOST_RUNS = 40
POINTS = 6000  # of all curves of a chart together
LONGEST_CONFIG = 20_000  # characters that are shown
ONE_BY_ONE = 40  # agents up to which each has a row
WAYS = ("rounds", "floats", "evaluations")  # what a curve can be drawn over


@dataclass(frozen=True)
class Facts:
    """A run as a report knows it: what is in its folder, and what needed its data."""

    run: LoadedRun
    label: str
    colour: int
    parts: dict[str, Part] = field(default_factory=dict)

    @property
    def anchor(self) -> str:
        return f"run-{self.colour + 1}"

    @cached_property
    def across(self) -> dict[str, np.ndarray]:
        """Where the records lie: rounds, numbers sent, evaluations; means over repeats."""
        used, message = np.asarray(self.run.used, float).mean(0), self.run.stored.meta["message"]
        sent = used[:, 0] * message["down"] + used[:, 1] * message["up"]
        return {"rounds": np.asarray(self.run.rounds, float), "floats": sent, "evaluations": used[:, 2]}

    @property
    def forecast(self) -> Part:
        return self.parts["forecast"]

    def final(self, what: str) -> tuple[float | None, float | None]:
        """The mean over repeats of the last record, and its standard error."""
        values = self.measure(what)
        if values is None:
            return None, None
        last = values[:, -1]
        spread = float(last.std(ddof=1) / math.sqrt(len(last))) if len(last) > 1 else None
        return float(last.mean()), spread

    def measure(self, what: str) -> np.ndarray | None:
        if what == "error":
            return self.run.error
        return self.run.loss if self.run.has_loss else None


def write(runs: Sequence[Any], out: str | Path | None = None, title: str | None = None, patience: float = 60.0) -> Path:
    """Write the report of runs, several on one page.

    Args:
        runs: folders of runs or of comparisons; or runs read by `fp.load`, with their problem where the folder has no
            data (these are forecast in this process).
        out: the file; default: report.html in the folder, or in the current one for several.
        patience: seconds for the forecast of one run, after which the report does without.

    Returns the path of the file.
    """
    if not runs:
        raise FedpointError("nothing to report: give at least one run")
    path = Path(out) if out is not None else _default_place(runs)
    if path.suffix.lower() not in (".html", ".htm"):
        raise FedpointError(f"{path}: a report is an HTML file: give a name that ends in .html")
    if not path.parent.is_dir():
        raise FedpointError(f"the folder {path.parent} does not exist: create it, or save {path.name} elsewhere")
    loaded, name = _loaded(runs)
    if title is None:
        title = name
    disk.write_bytes(path, page(facts_of(loaded, patience), title).encode())
    return path


def _default_place(runs: Sequence[Any]) -> Path:
    if len(runs) > 1:
        return Path(NAME)
    return (runs[0].stored.path if isinstance(runs[0], LoadedRun) else Path(runs[0])) / NAME


def _loaded(runs: Sequence[Any]) -> tuple[list[LoadedRun], str]:
    """The runs, those of comparisons one by one, and what they are called together."""
    from fedpoint.cli.experiment import run_folders

    found: list[Any] = []
    for run in runs:
        found += [run] if isinstance(run, LoadedRun) else [_readable(path) for path in run_folders(Path(run))]
    if len(found) > MOST_RUNS:
        raise FedpointError(f"{len(found)} runs are too many for a page: at most {MOST_RUNS}")
    if not found:
        raise FedpointError(f"{runs[0]} holds no run yet: nothing to report")
    only = runs[0] if len(runs) == 1 else None
    name = "" if only is None else (only.stored.path if isinstance(only, LoadedRun) else Path(only).resolve()).name
    return found, name or f"{len(found)} runs"


def _readable(path: Path) -> Any:
    from fedpoint.report.folder import RunFolder

    # Not by load alone, which would commit the start of a run that was killed before: a report writes into no run.
    if RunFolder.open(path).latest() is None:
        raise FedpointError(f"{path} holds no rounds yet: nothing to report")
    return load(path)


def facts_of(runs: Sequence[LoadedRun], patience: float) -> list[Facts]:
    """What a page says of each run. Runs whose data are given are forecast here, the others in another process."""
    given = ["problem" in vars(run) for run in runs]
    asked = iter(ask([r.stored.path for r, here in zip(runs, given, strict=True) if not here], patience))
    parts = [all_of(run) if here else next(asked) for run, here in zip(runs, given, strict=True)]
    rows = zip(runs, _labels(runs), parts, strict=True)
    return [Facts(run, label, i, found) for i, (run, label, found) in enumerate(rows)]


def _labels(runs: Sequence[LoadedRun]) -> list[str]:
    try:
        return labels_of([run.algorithm for run in runs], [short(run.participation) for run in runs])
    except FedpointError:  # somebody's own class, which the folder can only name
        names = [run.config["algorithm"]["name"] for run in runs]
        return [name if names.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(names)]


# The page


def page(facts: Sequence[Facts], title: str) -> str:
    """The whole page as text."""
    style, script = asset("curves.css") + asset("page.css"), asset("curves.js") + asset("page.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content=f"fedpoint {_version()}"),
        tag("title", f"{title}: fedpoint report"),
        tag("style", Html(style)),
    ]
    several = len(facts) > 1
    body = [
        tag("a", "Skip to the report", href="#report", class_="skip"),
        tag(
            "header",
            tag("p", "fedpoint report", class_="brand"),
            tag("button", "Dark or light", type="button", id="theme", hidden=True),
            tag("h1", title if several else _headline(facts[0])),
            tag("p", _lead(facts), class_="lead"),
            _contents(facts) if several else None,
        ),
        tag(
            "main",
            _comparison(facts) if several else None,
            *(_run(f, several) for f in facts),
            _citation(facts),
            id="report",
        ),
        tag("footer", f"Made by fedpoint {_version()}. This file needs no network."),
        tag("script", Html(script)),
    ]
    return "<!doctype html>\n" + tag("html", tag("head", *head), tag("body", *body), lang="en") + "\n"


def asset(name: str) -> str:
    """The text of a file of the page: curves.js, curves.css, page.js, page.css."""
    return (files("fedpoint.report") / "page" / name).read_text("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _version() -> str:
    from fedpoint import __version__

    return __version__


def _headline(facts: Facts) -> str:
    return f"{facts.label} on {facts.run.config['problem']['class']}"


def _lead(facts: Sequence[Facts]) -> str:
    first = facts[0].run
    agents = first.config["problem"]["agents"]
    if len(facts) == 1:
        repeats = f", {first.repeats} repeats" if first.repeats > 1 else ""
        return f"{agents:,} agents, {int(first.rounds[-1]):,} rounds{repeats}, seed {first.seed}. {_status(first)}"
    if len({f.run.config["problem"]["sha256"] for f in facts}) > 1:
        return "These runs are on different problems: their curves stand beside each other and do not compare."
    return f"{len(facts)} runs on one problem: {first.config['problem']['class']}, {agents:,} agents."


def _status(run: LoadedRun) -> str:
    """How it ended, in a sentence."""
    events, last = run.stored.events(), int(run.rounds[-1])
    asked = next((e["rounds"] for e in reversed(events) if e["event"] == "started"), run.config["rounds"])
    if run.finished:
        return "Finished." if last >= asked else f"Stopped at its tolerance, before round {asked:,}."
    ends = [e for e in events if e["event"] in ("diverged", "failed", "interrupted", "started")]
    if ends and ends[-1]["event"] == "diverged":
        return f"Diverged by round {ends[-1]['round']:,}: the curves end at the last round on disk."
    if ends and ends[-1]["event"] == "failed":
        return f"Failed: {ends[-1].get('message', '')}"
    return f"Not finished: {last:,} of {asked:,} rounds are on disk."


def _contents(facts: Sequence[Facts]) -> Html:
    links = [
        tag("li", tag("a", tag("span", class_=f"dot c{f.colour % 7}"), f.label, href=f"#{f.anchor}")) for f in facts
    ]
    return tag("nav", tag("ul", *links), aria_label="Runs")


# Charts


def _chart(
    title: str, y: str, lines: list[dict[str, Any]], log: bool = True, note: str = "", ways: bool = True
) -> Html:
    """A figure: drawn by the script; without it, a picture and the numbers are there all the same."""
    names = [way for way in WAYS if all(way in line["xs"] for line in lines if "xs" in line)] if ways else ["rounds"]
    axes = [{"name": way.replace("floats", "numbers sent"), "label": AXES[way]} for way in names]
    for line in lines:
        if "xs" in line:
            line["xs"] = [line["xs"][way] for way in names]
    chart = {"title": title, "y": {"label": y, "log": log}, "note": note, "axes": axes, "lines": lines}
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
    text = json.dumps(chart, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
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


def _curve(facts: Facts, values: np.ndarray, rounds: np.ndarray, many: int, name: str) -> dict[str, Any]:
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


def _expected(facts: Facts, colour: int | str, quiet: bool = False) -> list[dict[str, Any]]:
    """The forecast's curve beside a run's error."""
    part = facts.forecast
    if "curve" not in part or facts.run.error is None:
        return []
    at = np.asarray(part["at"], float)
    xs = {way: _plain(np.interp(at, facts.run.rounds, facts.across[way])) for way in WAYS}
    name = f"{facts.label}, forecast" if quiet else "forecast"
    return [{"name": name, "xs": xs, "y": part["curve"], "colour": colour, "dash": "dashed", "quiet": quiet}]


def _levels(facts: Facts) -> list[dict[str, Any]]:
    """Where the error ends: floor and bias."""
    part, found = facts.forecast, []
    if facts.run.error is None or part.get("diverges"):
        return []
    for name, key, colour in (("floor", "floor", 1), ("bias²", "bias2", 2)):
        value = part.get(key)
        if value and math.isfinite(value):
            found.append({"name": f"{name} {number(value, 2)}", "level": value, "colour": colour})
    return found


def _repeats(facts: Sequence[Facts]) -> str:
    counts = sorted({f.run.repeats for f in facts})
    if counts[-1] == 1:
        return ""
    told = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"mean of {told} repeats; the band holds {BAND[1] - BAND[0]} % of them"


def _plain(values: Any) -> list[float | None]:
    """As many digits as can be seen; null for what is not finite."""
    rounded = [float(f"{v:.5g}") if math.isfinite(v) else None for v in np.asarray(values, float).tolist()]
    return [int(v) if v is not None and v.is_integer() and abs(v) < 1e15 else v for v in rounded]


def _loggable(facts: Sequence[Facts], what: str) -> bool:
    found = [values for f in facts if (values := f.measure(what)) is not None]
    return all((values[np.isfinite(values)] >= 0).all() and (values > 0).any() for values in found)


# Sections


def _comparison(facts: Sequence[Facts]) -> Html:
    charts = []
    for what in ("error", "loss"):
        some = [f for f in facts if f.measure(what) is not None]
        if len(some) < 2:
            continue
        lines = [_curve(f, f.measure(what), np.asarray(f.run.rounds), 2 * len(some), f.label) for f in some]  # type: ignore[arg-type]
        note = _repeats(some)
        if what == "error":
            forecasts = [line for f in some for line in _expected(f, f.colour % 7, quiet=True)]
            note = "; ".join(filter(None, ("dashed: forecast" if forecasts else "", note)))
            lines += forecasts
        charts.append(_chart(WHAT[what].capitalize(), WHAT[what], lines, _loggable(some, what), note))
    for name in dict.fromkeys(name for f in facts for name in f.run.evaluation):
        some = [f for f in facts if name in f.run.evaluation]
        if len(some) > 1:
            charts.append(_held_out(some, name))
    return tag("section", tag("h2", "Side by side"), _ranking(facts), *charts, id="comparison")


def _held_out(facts: Sequence[Facts], name: str) -> Html:
    lines = [_curve(f, np.asarray(f.run.evaluation[name]), f.run.evaluated_rounds, len(facts), f.label) for f in facts]
    title = f"Held-out {name.removeprefix('held-out ')}"
    return _chart(title, title.lower(), lines, log=name.endswith("loss"), note=_repeats(facts))


def _ranking(facts: Sequence[Facts]) -> Html:
    """One row a run; a column only where somebody has it."""
    columns: list[tuple[str, list[Any]]] = [("rounds", [number(int(f.run.rounds[-1])) for f in facts])]
    known = [what for what in ("error", "loss") if any(f.measure(what) is not None for f in facts)]
    columns += [(what, [with_error(*f.final(what)) for f in facts]) for what in known]
    if any(f.forecast.get("floor") is not None for f in facts):
        columns.append(("forecast floor", [number(f.forecast.get("floor")) for f in facts]))
    for name in dict.fromkeys(name for f in facts for name in f.run.evaluation):
        last = [f.run.evaluation[name][:, -1] if name in f.run.evaluation else None for f in facts]
        columns.append((f"held-out {name}", ["–" if v is None else number(float(v.mean())) for v in last]))
    if any("fairness" in f.parts["agents"] for f in facts):
        fair = [f.parts["agents"].get("fairness", {}) for f in facts]
        columns.append(("worst tenth's loss", [number(row.get("worst")) for row in fair]))
    costs = [f.run.cost for f in facts]
    columns.append(("sent", [size(c.bytes_down + c.bytes_up) for c in costs]))
    columns.append(("evaluations", [number(c.evaluations) for c in costs]))
    if any("verdict" in f.forecast for f in facts):
        columns.append(("check", [_mark(f) for f in facts]))
    names = [join([tag("span", class_=f"dot c{f.colour % 7}"), f.label]) for f in facts]
    rows = [[name, *(values[i] for _, values in columns)] for i, name in enumerate(names)]
    return tag("div", table(["method", *(heading for heading, _ in columns)], rows), class_="wide")


def _mark(facts: Facts) -> Html:
    verdict = facts.forecast.get("verdict")
    if verdict is None:
        return escape("–")
    word = "as forecast" if verdict["passed"] else "contradicts"
    return tag("span", "✓ " if verdict["passed"] else "✗ ", word, class_="good" if verdict["passed"] else "bad")


def _run(facts: Facts, several: bool) -> Html:
    parts = [
        tag("h2", tag("span", class_=f"dot c{facts.colour % 7}"), facts.label, id=facts.anchor) if several else None,
        tag("p", _status(facts.run)) if several else None,
        _verdict(facts),
        _tiles(facts),
        _missing(facts),
        *_charts(facts, several),
        _agents(facts),
        _network(facts),
        _cost(facts),
        _theory(facts),
        _configuration(facts),
    ]
    return tag("section", *parts, class_="run")


def _verdict(facts: Facts) -> Html | None:
    verdict = facts.forecast.get("verdict")
    if verdict is None:
        return None
    good = verdict["passed"]
    head = "✓ As forecast: " if good else "✗ Contradicts its forecast: "
    return tag("p", tag("strong", head), verdict["words"] + ".", class_="verdict good" if good else "verdict bad")


def _tiles(facts: Facts) -> Html:
    cost, part = facts.run.cost, facts.forecast
    tiles = []
    for what, words in (("error", "squared distance to the solution"), ("loss", "loss, all agents together")):
        mean, spread = facts.final(what)
        if mean is not None:
            tiles.append((what, with_error(mean, spread), words))
    if part.get("diverges"):
        tiles.append(("forecast", "diverges", part["reason"]))
    else:
        if part.get("floor") is not None:
            tiles.append(("forecast floor", number(part["floor"]), "where the error settles"))
        if part.get("bias") is not None:
            tiles.append(("bias", number(part["bias"]), "distance of the limit to the solution"))
        if part.get("rate") is not None:
            tiles.append(("rate", number(part["rate"], 4), "factor per round"))
    fair = facts.parts["agents"].get("fairness")
    if fair and fair["jain"] is not None:
        tiles.append(("Jain's index", number(fair["jain"]), "of the agents' losses; 1 is equal"))
    tiles.append(("sent", size(cost.bytes_down + cost.bytes_up), "down and up together"))
    cells = [tag("div", tag("dt", a), tag("dd", b, class_="value"), tag("dd", c)) for a, b, c in tiles]
    return tag("dl", *cells, class_="tiles")


def _missing(facts: Facts) -> Html | None:
    """What is not on the page, and why: parts with the same reason together."""
    whys: dict[str, list[str]] = {}
    words = {"network": "the network", "agents": "losses per agent and fairness", "forecast": "the forecast"}
    for name, what in words.items():
        why = facts.parts[name].get("missing")
        if why:
            whys.setdefault(why, []).append(what)
    if "no_curve" in facts.forecast:
        whys.setdefault(facts.forecast["no_curve"], []).append("the forecast's curve")
    rows = [tag("li", f"Not here: {', '.join(what)}: {why}") for why, what in whys.items()]
    return tag("ul", *rows, class_="missing") if rows else None


def _charts(facts: Facts, several: bool) -> list[Html]:
    """The curves of one run; beside others, only what the comparison has not shown."""
    run, charts = facts.run, []
    if run.error is not None:
        own = _curve(facts, run.error, run.rounds, 2, "run")
        lines = [own, *_expected(facts, "ink"), *_levels(facts)]
        charts.append(_chart("Error", WHAT["error"], lines, _loggable([facts], "error"), _repeats([facts])))
    if run.has_loss and not (several and run.error is not None):
        own = _curve(facts, run.loss, run.rounds, 2, "run")
        charts.append(_chart("Loss", WHAT["loss"], [own], _loggable([facts], "loss"), _repeats([facts])))
    charts += [] if several else [_held_out([facts], name) for name in run.evaluation]
    variation = facts.parts["network"].get("variation")
    if variation is not None and any(variation):
        values = np.array([[math.nan if v is None else v for v in variation]])
        own = _curve(facts, values, run.rounds, 2, "run")
        charts.append(_chart("Disagreement", "sum over edges of A_ij |w_i − w_j|²", [own]))
    return charts


def _agents(facts: Facts) -> Html | None:
    part = facts.parts["agents"]
    if "losses" not in part:
        return None
    losses = np.array([math.nan if v is None else v for v in part["losses"]])
    fair, count = part["fairness"], len(losses)
    rows = [
        ["mean loss", number(fair["mean"]), ""],
        ["variance", number(fair["variance"]), "lower is fairer"],
        ["worst tenth", number(fair["worst"]), "mean loss of the agents served worst"],
        ["best tenth", number(fair["best"]), "mean loss of the agents served best"],
    ]
    if fair["jain"] is not None:
        rows.append(["Jain's index", number(fair["jain"]), f"from {number(1 / count)} (one has all) to 1 (all equal)"])
    if fair["entropy"] is not None:
        rows.append(["entropy", number(fair["entropy"]), f"at most {number(math.log(count))}"])
    shown = list(range(count))
    if count > ONE_BY_ONE:
        order = np.argsort(-losses, kind="stable").tolist()
        shown = [*order[:5], *order[-5:]]
    top = max(float(np.nanmax(np.abs(losses))), 1e-300)
    each = [
        [part["names"][k], number(part["weights"][k]), number(losses[k]), svg.bar(abs(losses[k]) / top)] for k in shown
    ]
    caption = "The five worst and the five best served" if count > ONE_BY_ONE else None
    whole = tag("div", svg.columns(losses[np.isfinite(losses)], "loss"), class_="picture")
    return tag(
        "section",
        tag("h3", "Agents"),
        whole if count > ONE_BY_ONE else None,
        tag(
            "div",
            tag("div", table(["agent", "weight", "loss", ""], each, caption, class_="agents"), class_="wide"),
            tag("div", table(["fairness", "value", ""], rows, class_="words"), class_="wide"),
            class_="beside",
        ),
    )


def _network(facts: Facts) -> Html | None:
    part = facts.parts["network"]
    if "places" not in part:
        return None
    arrays = (part["places"], part["edges"], part["weights"], part["names"])
    values = [math.nan if v is None else v for v in part["values"]]
    told = f"{part['nodes']:,} nodes and {part['links']:,} edges; nodes are coloured by {part['label']} in the end"
    if part["links"] > svg.MOST_EDGES:
        told += f"; the {svg.MOST_EDGES:,} heaviest edges are drawn"
    return tag(
        "section",
        tag("h3", "Network"),
        tag("div", svg.network(*arrays, values, part["label"]), class_="picture"),
        tag("p", told + ".", class_="note"),
    )


def _cost(facts: Facts) -> Html:
    cost, run = facts.run.cost, facts.run
    rows = [
        ["messages", number(cost.messages_down), number(cost.messages_up)],
        ["numbers", number(cost.floats_down), number(cost.floats_up)],
        ["bytes", size(cost.bytes_down), size(cost.bytes_up)],
    ]
    seconds = float(run._point.state["seconds"])
    told = (
        f"{number(cost.evaluations)} evaluations of local fields, all agents together; {number(seconds)} seconds of "
        f"computing, {number(run.speed)} rounds a second."
    )
    sent = tag("div", table(["sent", "down", "up"], rows), class_="wide")
    return tag("section", tag("h3", "Cost"), sent, tag("p", told, class_="note"))


def _theory(facts: Facts) -> Html | None:
    part = facts.forecast
    if "text" not in part:
        return None
    checks = None
    if "verdict" in part:
        marks = {True: "✓", False: "✗", None: "–"}
        rows = [
            [join([marks[c["ok"]], " ", c["name"]]), c["words"], "" if c["z"] is None else f"{c['z']:+.1f}"]
            for c in part["verdict"]["checks"]
        ]
        heading = ["check", "what was found", "z"]
        checks = tag("div", table(heading, rows, class_="words"), class_="wide")
    return tag("section", tag("h3", "Forecast and check"), tag("pre", part["text"]), checks)


def _configuration(facts: Facts) -> Html:
    run, config = facts.run, facts.run.config
    stored, meta, problem = run.stored, run.stored.meta, run.config["problem"]
    events = stored.events()
    begun = next((e["time"] for e in events if e["event"] == "started"), None)
    versions = {name: [str(v)] for name, v in meta["versions"].items()}
    for event in events:
        for name, version in event.get("versions", {}).items():
            if version not in versions.setdefault(name, []):
                versions[name].append(version)  # a run may be gone on with by another version
    who = "schedule" if "network" in config else "participation"
    rows: list[list[Any]] = [
        ["algorithm", _table_of(config["algorithm"])],
        [who, _table_of(config["participation"])],
        ["problem", f"{problem['class']}, {problem['agents']:,} agents"],
        ["rounds", f"{int(run.rounds[-1]):,}"],
        ["repeats", str(run.repeats)],
        ["seed", str(run.seed)],
        ["fields", "exact" if config["exact"] else "sampled"],
        ["records", f"every {config['record_every']} rounds" if config["record_every"] > 1 else "every round"],
        ["begun", begun],
        ["engine", meta["engine"]],
        ["versions", "; ".join(f"{name} {', then '.join(seen)}" for name, seen in versions.items())],
        ["data, SHA-256", tag("code", problem["sha256"])],
        ["configuration, SHA-256", tag("code", stored.config_hash)],
    ]
    text = (stored.path / "config.toml").read_text("utf-8", "replace")
    cut = len(text) > LONGEST_CONFIG
    shown = text[:LONGEST_CONFIG] + ("\n# ... the rest is in config.toml of the run's folder" if cut else "")
    whole = tag("details", tag("summary", "config.toml"), tag("pre", shown))
    return tag(
        "section",
        tag("h3", "Configuration"),
        tag("div", table([], rows, class_="words"), class_="wide"),
        whole,
    )


def _table_of(values: Any) -> str:
    """A description in plain types as words: the name, then its fields."""
    if not isinstance(values, dict):
        return short(values) if not isinstance(values, list) else f"[{', '.join(map(_table_of, values[:6]))}]"
    name = values.get("name") or values.get("class") or ""
    rest = [f"{k} = {_table_of(v)}" for k, v in values.items() if k not in ("name", "class") and v is not None]
    inside = ", ".join(rest)
    return f"{name}({inside})" if name and inside else f"{name}{inside}"


def _citation(facts: Sequence[Facts]) -> Html:
    from fedpoint.cli.cite import bibtex

    text = bibtex([str(f.run.stored.path) for f in facts])
    return tag(
        "section",
        tag("h2", "How to cite"),
        tag("p", "BibTeX of the methods that were used, and of fedpoint."),
        tag("pre", text),
        id="citation",
    )
