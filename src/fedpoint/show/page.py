"""What came of a run, on one page? `report.html`: one file that needs nothing else, to be looked at, printed and sent.

The same folder gives the same bytes: nothing of when or where the page was made is in it. A Content-Security-Policy
allows its own script and style, by their hashes, and nothing else: no address is ever asked for anything.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from fedpoint import __version__
from fedpoint.core.errors import FedpointError
from fedpoint.core.files import as_text
from fedpoint.core.numbers import counted
from fedpoint.results.citations import bibtex, of_run
from fedpoint.show.charts import chart, curve, forecast_line, held_out, loggable, repeats
from fedpoint.show.facts import Facts, Source, facts_of, loaded, parts_of, status
from fedpoint.show.from_data import Parts
from fedpoint.show.markup import Cell, Html, escape, join, number, scrolling, size, table, tag, with_error
from fedpoint.show.plots import WHAT
from fedpoint.show.sections import run_section
from fedpoint.store import disk
from fedpoint.verbs.load import LoadedRun

NAME = "report.html"


def write(
    runs: Sequence[Source], out: str | Path | None = None, title: str | None = None, patience: float = 60.0
) -> Path:
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
    found, name = loaded(runs)
    path = Path(out) if out is not None else _default_place(runs)
    if path.suffix.lower() not in (".html", ".htm"):
        raise FedpointError(f"{path}: a report is an HTML file: give a name that ends in .html")
    if out is not None and not path.parent.is_dir():
        raise FedpointError(f"the folder {path.parent} does not exist: create it, or save {path.name} elsewhere")
    disk.write_bytes(path, compose(found, parts_of(found, patience), title, name).encode())
    return path


def compose(
    runs: Sequence[LoadedRun], parts: Sequence[Parts], title: str | None = None, name: str | None = None
) -> str:
    """The page of runs and of what needed their data; name: of several together."""
    facts = facts_of(runs, parts)
    if title is None:
        title = _headline(facts[0]) if len(facts) == 1 else name or counted(len(facts), "run")
    return as_text(page(facts, title))


def _default_place(runs: Sequence[Source]) -> Path:
    if len(runs) > 1:
        return Path(NAME)
    return (runs[0].stored.path if isinstance(runs[0], LoadedRun) else Path(runs[0])) / NAME


def page(facts: Sequence[Facts], title: str) -> str:
    """The whole page as text."""
    several = facts[0].several
    main = [_comparison(facts) if several else None, *(run_section(f) for f in facts), _citation(facts)]
    return document("report", title, _lead(facts), main, _contents(facts) if several else None)


def document(kind: str, title: str, lead: str, main: Sequence[Html | None], contents: Html | None = None) -> str:
    """A page of its own that needs nothing else. kind: "report", say."""
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy()),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content=f"fedpoint {__version__}"),
        tag("title", f"{title}: fedpoint {kind}"),
        tag("style", Html(_style())),
    ]
    body = [
        tag("a", f"Skip to the {kind}", href=f"#{kind}", class_="skip"),
        tag(
            "header",
            tag("p", f"fedpoint {kind}", class_="brand"),
            tag("button", "Dark or light", type="button", id="theme", hidden=True),
            tag("h1", title),
            tag("p", lead, class_="lead"),
            contents,
        ),
        tag("main", *main, id=kind),
        tag("footer", f"Made by fedpoint {__version__}. This file needs no network."),
        tag("script", Html(_script())),
    ]
    return "<!doctype html>\n" + tag("html", tag("head", *head), tag("body", *body), lang="en") + "\n"


def policy() -> str:
    """What a browser may do with a report: run its script and use its style, by their hashes."""
    return (
        f"default-src 'none'; style-src '{_hash(_style())}'; script-src '{_hash(_script())}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _style() -> str:
    return asset("curves.css") + asset("page.css")


def _script() -> str:
    return asset("curves.js") + asset("page.js")


def asset(name: str) -> str:
    """The text of a file of the page: curves.js, curves.css, page.js, page.css."""
    return (files("fedpoint.show") / "assets" / name).read_text("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _headline(facts: Facts) -> str:
    return f"{facts.label} on {facts.run.config['problem']['class']}"


def _lead(facts: Sequence[Facts]) -> str:
    first = facts[0].run
    agents = first.config["problem"]["agents"]
    if len(facts) == 1:
        often = f", {counted(first.repeats, 'repeat')}" if first.repeats > 1 else ""
        size = f"{counted(agents, 'agent')}, {counted(first.rounds[-1], 'round')}"
        return f"{size}{often}, seed {first.seed}. {status(first)}"
    if len({f.run.config["problem"]["sha256"] for f in facts}) > 1:
        return "These runs are on different problems: their curves stand beside each other and do not compare."
    return (
        f"{counted(len(facts), 'run')} on one problem: {first.config['problem']['class']}, {counted(agents, 'agent')}."
    )


def _contents(facts: Sequence[Facts]) -> Html:
    links = [
        tag("li", tag("a", tag("span", class_=f"dot c{f.colour % 7}"), f.label, href=f"#{f.anchor}")) for f in facts
    ]
    return tag("nav", tag("ul", *links), aria_label="Runs")


def _comparison(facts: Sequence[Facts]) -> Html:
    charts = []
    for what in ("error", "loss"):
        some = [f for f in facts if f.measure(what) is not None]
        if len(some) < 2:
            continue
        lines = [curve(f, f.measure(what), np.asarray(f.run.rounds), f.label) for f in some]  # type: ignore[arg-type]
        note = repeats(some)
        if what == "error":
            forecasts = [line for f in some for line in forecast_line(f, f.colour % 7, quiet=True)]
            note = "; ".join(filter(None, ("dashed: forecast" if forecasts else "", note)))
            lines += forecasts
        charts.append(chart(WHAT[what].capitalize(), WHAT[what], lines, loggable(some, what), note))
    for name in dict.fromkeys(name for f in facts for name in f.run.evaluation):
        some = [f for f in facts if name in f.run.evaluation]
        if len(some) > 1:
            charts.append(held_out(some, name))
    return tag("section", tag("h2", "Side by side"), _ranking(facts), *charts, id="comparison")


def _ranking(facts: Sequence[Facts]) -> Html:
    """One row a run; a column only where somebody has it."""
    columns: list[tuple[str, Sequence[Cell]]] = [("rounds", [number(int(f.run.rounds[-1])) for f in facts])]
    if any("verdict" in f.forecast for f in facts):
        columns.append(("as forecast", [_mark(f) for f in facts]))
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
    names = [join([tag("span", class_=f"dot c{f.colour % 7}"), f.label]) for f in facts]
    rows = [[name, *(values[i] for _, values in columns)] for i, name in enumerate(names)]
    return scrolling(table(["method", *(heading for heading, _ in columns)], rows), "Runs side by side")


def _mark(facts: Facts) -> Html:
    verdict = facts.forecast.get("verdict")
    good = None if verdict is None else verdict["good"]
    if good is None:
        return escape("–")
    return tag("span", "✓ yes" if good else "✗ no", class_="good" if good else "bad")


def _citation(facts: Sequence[Facts]) -> Html:
    text = bibtex(reference for f in facts for reference in of_run(f.run.stored.path))
    return tag(
        "section",
        tag("h2", "How to cite"),
        tag("p", "BibTeX of the methods that were used, and of fedpoint."),
        tag("pre", text),
        id="citation",
    )
