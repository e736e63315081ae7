"""What will run on a site's data, and what leaves it? Said before consent: the arrays, their shapes and bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from fedpoint.algorithms.catalogue import makers, title_of
from fedpoint.core.numbers import counted
from fedpoint.core.types import Model, Plain
from fedpoint.data.column import Column
from fedpoint.data.recipe import Feature
from fedpoint.engine.session import flatten
from fedpoint.federation import measurement, preparation, wire
from fedpoint.federation.protocol import OWN
from fedpoint.federation.shapes import blank, named, shapes_of
from fedpoint.federation.site.consent import REPEATS
from fedpoint.federation.site.disclosure import DEFAULT, Floor, below
from fedpoint.federation.site.stop import LIFT, STRIKES
from fedpoint.federation.study import SiteTable, Study
from fedpoint.federation.wire import Arrays, Classes, ColumnSaid, Header

NOTHING = Header()


class Listed(TypedDict):
    """One array of a message."""

    name: str
    shape: list[int]
    type: str
    bytes: int


class Leaving(TypedDict):
    """One kind of message: its words and its arrays."""

    kind: str
    often: str
    says: Header
    arrays: list[Listed]
    bytes: int


class Enforced(TypedDict):
    """What a site holds a server to: how often it answers what, and how much a measurement says at most."""

    rounds: int
    runs: int
    measured_after: list[int]
    bits: int  # of one measurement
    repeats: int
    strikes: int


class Announced(TypedDict):
    """A study in plain types, and every kind of message that leaves a site."""

    study: str
    fingerprint: str
    server: str
    sites: list[str]
    algorithm: dict[str, Plain]
    problem: dict[str, Plain]
    rounds: int
    rows: int | None
    allowed: list[int] | None  # the fewest and the most rows that the study lets this site claim
    reads: str | None  # the columns; None: data are generated
    stays: list[str]
    leaves: list[Leaving]
    terms: Enforced
    floor: dict[str, int] | None  # None: data are generated
    refused: list[str]  # what would be said of too few rows


def _leaving(kind: str, often: str, says: Header = NOTHING, arrays: Arrays | None = None) -> Leaving:
    about = Header(**OWN.plain(), study="0" * 64, site="", run="0" * 16, order="0" * 16, kind=kind, round=0)
    about["chain"] = "0" * 64
    listed = [
        Listed(name=name, shape=list(a.shape), type=str(a.dtype), bytes=int(a.nbytes))
        for name, a in (arrays or {}).items()
    ]
    size = len(wire.encode({**about, **says}, arrays))
    return Leaving(kind=kind, often=often, says=says, arrays=listed, bytes=size)


def announce(
    study: Study, data: str | Path | None = None, floor: Floor = DEFAULT, site: str | None = None
) -> Announced:
    """What will run and what leaves. With the site's file, in its own numbers; categories that only other sites have
    may add columns. What is below the floor is said, and nothing else of such a file."""
    table, rows, refused, leaves = study.table, None, list[str](), list[Leaving]()
    if table is None:
        start, leaves = study.generated().start(), [_leaving("columns", "once a run", Header(rows=0))]
    else:
        start = preparation.start_of(table, [Feature(name) for name in table.features], _two_classes(table))
        if data is not None:
            columns = table.read(data)
            rows, refused = len(columns[table.target].values), below(study, site or study.sites[0], columns, floor)
            claim = "" if site is None else study.too_many_or_few(site, rows)
            refused += [claim] if claim else []
            start, leaves = (start, []) if refused else _prepared(table, columns)
    shapes = shapes_of(study.experiment(study.outline(start, rows=rows or 1)).bind())
    return Announced(
        study=study.name,
        fingerprint=study.fingerprint,
        server=study.server,
        sites=study.sites,
        algorithm={"title": _title(study), **study.algorithm},
        problem=study.problem,
        rounds=study.rounds,
        rows=rows,
        allowed=(study.terms.rows or {}).get(site or ""),
        reads=None if table is None else f"{table.target} (target), {', '.join(table.features)}; model: {table.model}",
        stays=sorted(["rows", *named(shapes.kept)]),
        leaves=[] if refused else [*leaves, *_after_preparation(study, flatten(blank(shapes.code)))],
        terms=_enforced(study, rows),
        floor=None if table is None else floor.plain(),
        refused=refused,
    )


def _after_preparation(study: Study, code: Arrays) -> list[Leaving]:
    """What leaves in rounds and measurements."""
    work, measures = Header(weight=0.1, seconds=0.1), Header(measures={"loss": 0.1, "accuracy": 0.1})
    found = [
        _leaving("ready", "at every start"),
        _leaving("work", f"in up to {counted(study.rounds, 'round')} a run", work, code),
    ]
    times = study.terms.measurements
    often = "once a run" if times == 1 else f"{times} times a run"
    return [*found, _leaving("measure", often, measures)] if times else found


def _enforced(study: Study, rows: int | None) -> Enforced:
    classes = study.table is None or study.table.model != "linear"
    return Enforced(
        rounds=study.rounds,
        runs=study.terms.runs,
        measured_after=study.measured_after,
        bits=measurement.bits(classes, rows),
        repeats=REPEATS,
        strikes=STRIKES,
    )


def _title(study: Study) -> str:
    """A preset has a name of its own, FedAdam say, where its class is FedOpt."""
    name = str(study.algorithm["name"])
    return title_of(name) if name in makers() else study.method().card.title


def _prepared(table: SiteTable, columns: dict[str, Column]) -> tuple[Model, list[Leaving]]:
    """The start as if this site were the only one, and what it says of its columns."""
    said, arrays = preparation.columns_of(table, columns)
    recipe, classes, _ = preparation.first_recipe(table, [wire.Packet(_one_form(_several_classes(said)), arrays)])
    count, moments = preparation.moments_of(columns, recipe)
    leaves = [
        _leaving("columns", "once a run", said, arrays),
        _leaving("moments", "once a run", Header(count=count), moments),
    ]
    return preparation.start_of(table, recipe, classes), leaves


def _two_classes(table: SiteTable) -> Classes:
    return None if table.model == "linear" else [0, 1]


def _several_classes(said: Header) -> Header:
    """A site may have rows of one class only, where others have more."""
    match said["classes"]:
        case [str(one)]:
            return {**said, "classes": [one, "another"]}
        case [int(one)]:
            return {**said, "classes": [one, one + 1]}
    return said


def _one_form(said: Header) -> Header:
    """The dates of a site may be read in two ways, where those of others tell which."""
    columns = {name: ColumnSaid(**column) for name, column in said["columns"].items()}
    for column in columns.values():
        if "forms" in column:
            column["forms"] = column["forms"][:1]
    return {**said, "columns": columns}


def lines(found: Announced) -> list[str]:
    """The same for people."""
    algorithm = found["algorithm"]
    numbers = ", ".join(f"{k} = {v}" for k, v in algorithm.items() if k not in ("title", "name"))
    text = [
        f"Study {found['study']} ({found['fingerprint'][:12]}), {counted(len(found['sites']), 'site')}, "
        f"server {found['server']}",
        f"Runs here: {algorithm['title']} ({numbers}), {counted(found['rounds'], 'round')}",
    ]
    if found["reads"] is None:
        made = found["problem"].get("kind", found["problem"].get("class"))
        text.append(f"Data: generated ({made}), for a trial")
    else:
        text.append(f"Reads: {found['reads']}")
    if found["rows"] is not None:
        text.append(f"Rows: {found['rows']}; they stay here, and so does what the method remembers")
    if found["allowed"] is not None:
        text.append(f"The study allows this site from {found['allowed'][0]:,} to {found['allowed'][1]:,} rows")
    text.append("Leaves this site:" if found["leaves"] else "Leaves this site: nothing, with these data")
    for one in found["leaves"]:
        words = _words(one["says"])
        text.append(f"  {one['kind']} ({one['often']}): {one['bytes']} bytes{words}")
        text += [f"    {a['name']}: {a['type']}{a['shape']}, {a['bytes']} bytes" for a in one["arrays"]]
    return [*text, *_terms(found), *(f"Refused: {why}" for why in found["refused"])]


def _terms(found: Announced) -> list[str]:
    """What the site holds the server to."""
    terms, floor = found["terms"], found["floor"]
    runs, after, bits = terms["runs"], terms["measured_after"], terms["bits"]
    measured = "no measurement of a model"
    if after:
        measured = (
            f"measurements after round {', '.join(map(str, after))} only: loss to {measurement.DIGITS} digits, "
            f"accuracy to whole percents; at most {bits} bits each, {bits * len(after) * runs} in all"
        )
    lines = [
        "Enforced by this site, whatever the server asks:",
        f"  at most {counted(runs, 'run')} of at most {counted(terms['rounds'], 'round')}, each once and in order",
        "  columns and moments once a run; recipe and shares follow from the study and never change in a run",
        f"  {measured}",
        f"  an answer that was lost is sent again unchanged, at most {terms['repeats']} times",
        f"  {terms['strikes']} orders in a row that break these terms stop the site, until it is started with {LIFT}",
    ]
    if floor is not None:
        lines.append(
            f"  nothing of fewer than {floor['rows']} rows, {floor['per_category']} rows of a category or "
            f"{floor['per_class']} of a class leaves (--floor-rows, --floor-per-category, --floor-per-class)"
        )
    return lines


def _words(said: Header) -> str:
    counts = {"rows": said.get("rows"), "count": said.get("count")}
    parts = [f"{key} = {value}" for key, value in counts.items() if value]
    for name, column in (said.get("columns") or {}).items():
        parts += [f"categories of {name}: {', '.join(column['words'])}"] if column["kind"] == "words" else []
        parts += [f"{name} holds dates ({' or '.join(column['forms'])})"] if column["kind"] == "dates" else []
    classes = said.get("classes")
    parts += [f"classes: {', '.join(map(str, classes))}"] if classes else []
    parts += [", ".join(said["measures"])] if "measures" in said else []
    return f"; {'; '.join(parts)}" if parts else ""


__all__ = ["announce", "lines"]
