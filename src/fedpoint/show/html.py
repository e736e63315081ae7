"""What does a notebook show? Runs, forecasts, verdicts and tables as a little HTML: no colour of their own for text,
no script, everything escaped; so that it reads on light and on dark, and after being exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.metrics.means import mean_and_error
from fedpoint.results.comparison import COLUMNS, Comparison
from fedpoint.show import svg
from fedpoint.show.drawing import Panel
from fedpoint.show.expected import expected, lines, settling_rounds
from fedpoint.show.markup import MARKS, Cell, Html, join, number, size, tag, with_error
from fedpoint.show.plots import Series, expected_panel, known_measures, measured, series_panel

if TYPE_CHECKING:
    from fedpoint.results.certificate import Certificate
    from fedpoint.results.forecast import Forecast
    from fedpoint.results.plan import Plan
    from fedpoint.results.price import Price
    from fedpoint.results.run import Run
    from fedpoint.results.verdict import Verdict

LEFT = "text-align:left"
ROUNDS = 400  # of a forecast's picture, at most: it is drawn whenever a cell shows it


def run_html(run: Run) -> str:
    """Final numbers, and the curve: of the error, or of a loss that has been computed already (it may cost a pass over
    all data per record)."""
    cost, (known, loss) = run.cost, run.known_loss()
    rows: list[tuple[str, Cell]] = [("rounds", f"{int(run.rounds[-1]):,}")]
    if len(run.used) > 1:
        rows.append(("repeats", len(run.used)))
    if run.has_error:
        rows.append(("error", _final(run.error)))
    if len(known) and known[-1] == run.rounds[-1]:
        rows.append(("loss", _final(loss)))
    rows += [(f"held-out {name.removeprefix('held-out ')}", _final(v)) for name, v in run.evaluation.items()]
    if run.privacy_line:
        rows.append(("privacy", run.privacy_line))
    rows.append(("sent", size(cost.bytes_down + cost.bytes_up)))
    rows.append(("evaluations", number(cost.evaluations)))
    picture = None
    if run.has_error:
        picture = _curves([Series(run.rounds, run.error, "")], "error")
    elif len(known) > 1:
        picture = _curves([Series(known, loss, "")], "loss")
    return _block(run.title, _pairs(rows), picture)


def forecast_html(forecast: Forecast) -> str:
    """Its text as a table, and the expected curve with floor and bias where there is one."""
    title, *lines = forecast.text().split("\n")
    return _block(title, _pairs([_parted(line) for line in lines]), _expected(forecast))


def verdict_html(verdict: Verdict) -> str:
    rows = [[MARKS[c.ok], c.name, c.words, "" if c.z is None else f"{c.z:+.1f}"] for c in verdict.checks]
    head = f"{MARKS[verdict.good]} {verdict.headline}"
    return _block(head, _table(["", "check", "what was found", "z"], rows))


def comparison_html(comparison: Comparison) -> str:
    """The table of `str(comparison)`, and the curves."""
    rows = [[_cell(row, key) for key, _ in COLUMNS] for row in comparison.table()]
    runs, picture = comparison.runs, None
    measures = known_measures(runs)
    if measures:
        named = zip(runs, comparison.labels, strict=True)
        series = [Series(run.rounds, measured(run, measures[0])[0], label) for run, label in named]
        picture = _curves(series, measures[0])
    return _block("", _table([heading for _, heading in COLUMNS], rows), picture)


def plan_html(plan: Plan) -> str:
    """The ranked choices, what is excluded and why, and the notes."""
    from fedpoint.results import plan_table

    parts: list[Html] = []
    if plan.choices:
        parts.append(_table(plan_table._heading(plan), [plan_table._row(plan, c) for c in plan.choices]))
    else:
        # The words of the text, which say what a budget buys.
        said = plan_table.table(plan).split("\n\n")
        parts.append(tag("p", said[1] if len(said) > 1 else "Nothing reaches it."))
    if plan.excluded:
        rows = [[e.method, e.reason] for e in plan.excluded]
        parts.append(tag("details", tag("summary", f"{len(rows)} excluded"), _table(["method", "why"], rows)))
    parts += [tag("p", note) for note in plan.notes]
    return _block(plan_table._title(plan), *parts)


def price_html(price: Price) -> str:
    """The table, and its notes."""
    heading, *rows = price.rows()
    return _block("", _table(heading, rows), *(tag("p", note) for note in price.notes))


def certificate_html(certificate: Certificate) -> str:
    """The headline, why it did not pass, the tests, and what they did not put to use."""
    rows = [[MARKS[f.ok], f.test, f.reason] for f in certificate.findings]
    head = f"{MARKS[certificate.good]} {certificate.headline}"
    reason = tag("p", certificate.reason) if certificate.reason else None
    like = None if certificate.title in certificate.reason else tag("p", f"Behaves like: {certificate.title}")
    parts = [[str(part.line or ""), part.code, part.reason] for part in certificate.unexercised]
    idle = [tag("p", "Never exercised:"), _table(["line", "code", "why"], parts)] if parts else []
    return _block(head, reason, like, _table(["", "test", "what was found"], rows), *idle)


# What they are made of


def _block(title: str, *parts: Html | None) -> str:
    return str(tag("div", tag("p", tag("strong", title)) if title else None, *parts, class_="fedpoint"))


def _table(heading: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Html:
    head = tag("tr", *(tag("th", cell, scope="col", style=LEFT) for cell in heading))
    body = [tag("tr", *(tag("td", cell, style=LEFT) for cell in row)) for row in rows]
    return tag("table", tag("thead", head), tag("tbody", *body))


def _pairs(rows: Sequence[tuple[str, Cell]]) -> Html:
    body = [tag("tr", tag("th", name, scope="row", style=LEFT), tag("td", value, style=LEFT)) for name, value in rows]
    return tag("table", tag("tbody", *body))


def _parted(line: str) -> tuple[str, str]:
    """A line of a forecast's text: its name and what it says.

    >>> _parted("  rate        0.5 per round"), _parted("  diverges: the step is too long")
    (('rate', '0.5 per round'), ('diverges', 'the step is too long'))
    """
    name, colon, rest = line.strip().partition(": ")
    if colon and name in ("diverges", "no limit", "no steady state"):
        return name, rest
    return line[2:14].strip(), line[14:].strip()


def _final(values: np.ndarray) -> str:
    return with_error(*mean_and_error(np.asarray(values, float)[:, -1]))


def _cell(row: Mapping[str, Cell], key: str) -> str:
    value, spread = row[key], row.get(f"{key}_se")
    if isinstance(value, str):
        return value
    if key in ("error", "loss"):
        return with_error(value, spread if isinstance(spread, float) else None)
    return number(value and round(value))


def _drawn(panel: Panel) -> Html:
    """A small picture, with what its lines do not say."""
    return join([svg.picture(panel, height=260), tag("p", tag("small", panel.note)) if panel.note else None])


def _curves(series: list[Series], what: str) -> Html:
    return _drawn(series_panel(series, what, points=svg.POINTS))


def _expected(forecast: Forecast) -> Html | None:
    drawn = expected(forecast, settling_rounds(forecast, ROUNDS), svg.POINTS)
    return None if "no_curve" in drawn else _drawn(expected_panel(drawn, lines(drawn)))  # the text's notes say why
