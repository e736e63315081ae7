"""What will run on a site's data, and what leaves it? Said before consent: the arrays, their shapes and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from fedpoint.algorithms.catalogue import makers, title_of
from fedpoint.core.numbers import counted
from fedpoint.core.types import Model, Plain
from fedpoint.data.column import Column
from fedpoint.data.floor import DEFAULT, Floor
from fedpoint.data.recipe import Feature
from fedpoint.engine.session import flatten
from fedpoint.federation import measurement, preparation, wire
from fedpoint.federation.held_out import divide
from fedpoint.federation.installed import origin
from fedpoint.federation.protection import in_words
from fedpoint.federation.protocol import OWN
from fedpoint.federation.secure import letters
from fedpoint.federation.secure.letters import SEALED
from fedpoint.federation.secure.roster import PublicKeys
from fedpoint.federation.secure.shamir import SHARE
from fedpoint.federation.shapes import blank, named, shapes_of
from fedpoint.federation.site.consent import REPEATS
from fedpoint.federation.site.disclosure import below, below_rows
from fedpoint.federation.site.stop import LIFT, STRIKES
from fedpoint.federation.site_table import SiteTable
from fedpoint.federation.study import Study
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
    purpose: str | None
    sites: list[str]
    algorithm: dict[str, Plain]
    problem: dict[str, Plain]
    rounds: int
    rows: int | None
    allowed: list[int] | None  # the fewest and the most rows that the study lets this site claim
    reads: str | None  # the columns; None: data are generated
    held_out: int | None  # rows that are never trained on; None: the study holds out none, or the file is not known
    measures: list[str]  # what a measurement says
    gets_model: bool  # this site gets the model at the end
    stays: list[str]
    leaves: list[Leaving]
    terms: Enforced
    protection: list[str]  # secure sums and noise, in words
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
    study: Study,
    data: str | Path | None = None,
    floor: Floor = DEFAULT,
    site: str | None = None,
    luck: bytes | None = None,
) -> Announced:
    """What will run and what leaves. With the site's file, in its own numbers; categories that only other sites have
    may add columns. What is below the floor is said, and nothing else of such a file. luck: the site's own, by which it
    holds out rows, where that is drawn already."""
    table, rows, refused, leaves = study.table, None, list[str](), list[Leaving]()
    count, held_out = 2, None
    if table is None:
        start = study.start()
        if study.installed is not None and data is not None:
            counts = study.installed.problem([data]).local_rows()
            rows = 0 if counts is None else int(counts[0])
            refused = below_rows(study, site or study.sites[0], rows, floor)
        leaves = [_leaving("columns", "once a run", Header(rows=rows or 0))]
    else:
        start = preparation.start_of(table, [Feature(name) for name in table.features], _two_classes(table))
        if data is not None:
            columns, held = divide(table, table.read(data), luck or b"")
            rows, held_out = table.rows_of(columns), None if held is None else table.rows_of(held)
            refused = below(study, site or study.sites[0], columns, floor, held)
            start, leaves = (start, []) if refused else _prepared(table, columns)
            count = len(start) if start.ndim == 2 else 2
    claim = "" if site is None or rows is None else study.too_many_or_few(site, rows)
    refused += [claim] if claim else []
    shapes = shapes_of(study.experiment(study.outline(start, rows=rows or 1)).bind())
    return Announced(
        study=study.name,
        fingerprint=study.fingerprint,
        server=study.server,
        purpose=study.terms.purpose,
        sites=study.sites,
        algorithm={"title": _title(study), **study.algorithm},
        problem=study.problem,
        rounds=study.rounds,
        rows=rows,
        allowed=(study.terms.rows or {}).get(site or ""),
        reads=_reads(study),
        held_out=held_out,
        measures=[*study.terms.measures],
        gets_model=study.terms.share_model,
        stays=sorted(["rows", *named(shapes.kept)]),
        leaves=[] if refused else [*leaves, *_after_preparation(study, flatten(blank(shapes.code)), held_out, count)],
        terms=_enforced(study, held_out or rows, count),
        protection=in_words(study.terms, study.least),
        floor=floor.plain() if study.of_files else None,
        refused=refused,
    )


def _reads(study: Study) -> str | None:
    table, model = study.table, study.installed
    if model is not None:
        return f"what the installed model {model.name} reads; it is {origin(model.name)}"
    if table is None:
        return None
    held = f", {table.held_out} (1: held out)" if isinstance(table.held_out, str) else ""
    target = "" if table.target is None else f"{table.target} (target), "
    return f"{target}{', '.join(table.features)}{held}; model: {table.model}"


def _after_preparation(study: Study, code: Arrays, held_out: int | None, count: int) -> list[Leaving]:
    """What leaves in rounds, measurements and at the end; count: of classes."""
    work, measures = Header(weight=0.1, seconds=0.1), _measured(study.terms.measures, count)
    if held_out is not None:
        measures["count"] = held_out
    found = [
        _leaving("ready", "at every start"),
        *(_masked(study, code) if study.terms.secure else [_leaving("work", _each_round(study), work, code)]),
    ]
    times = study.terms.measurements
    often = "once a run" if times == 1 else f"{times} times a run"
    measured = [_leaving("measure", often, measures)] if times else []
    return [*found, *measured, _leaving("end", "once a run")]


def _each_round(study: Study) -> str:
    return f"in up to {counted(study.rounds, 'round')} a run"


def _masked(study: Study, code: Arrays) -> list[Leaving]:
    """What leaves in a round of secure sums: keys, encrypted shares, masked numbers, a signature, shares."""
    others, often, name = study.sites[1:], _each_round(study), study.sites[0]
    keys = PublicKeys(bytes(32), bytes(32), bytes(32), bytes(256), bytes(900))  # signature and certificate: about
    masked = np.zeros(sum(array.size for array in code.values()) + 1, "<u4")
    return [
        _leaving("work", often, Header(seconds=0.1), letters.packed_keys({name: keys})),
        _leaving("share", often, NOTHING, letters.packed(dict.fromkeys(others, bytes(SEALED)))),
        _leaving("mask", often, NOTHING, letters.packed_vector(masked)),
        _leaving("agree", often, NOTHING, letters.packed({letters.SIGNATURE: bytes(256)})),
        _leaving("reveal", often, NOTHING, letters.packed(dict.fromkeys(study.sites, bytes(SHARE)))),
    ]


def _measured(asked: Sequence[str], count: int) -> Header:
    """The largest measurement."""
    said = Header(measures={name: 0.11 for name in ("loss", "accuracy", "auc") if name in asked})
    sizes = {"calibration": (measurement.BINS, 3), "confusion": (count, count)}
    tables = {name: [[0.11] * wide] * high for name, (high, wide) in sizes.items() if name in asked}
    return {**said, "tables": tables} if tables else said


def _enforced(study: Study, rows: int | None, count: int) -> Enforced:
    classes = study.table is None or study.table.of_classes
    return Enforced(
        rounds=study.rounds,
        runs=study.terms.runs,
        measured_after=study.measured_after,
        bits=measurement.bits(classes, rows, study.terms.measures, count),
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
    return None if not table.of_classes else [0, 1]


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
    if found["purpose"]:
        text.append(f"Purpose: {found['purpose']}")
    if found["reads"] is None:
        made = found["problem"].get("kind", found["problem"].get("class"))
        text.append(f"Data: generated ({made}), for a trial")
    else:
        text.append(f"Reads: {found['reads']}")
    if found["rows"] is not None:
        text.append(f"Rows: {found['rows']}; they stay here, and so does what the method remembers")
    if found["held_out"] is not None:
        text.append(f"Held out: {counted(found['held_out'], 'row')} more, which are never trained on")
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
            f"measurements after round {', '.join(map(str, after))} only: {_said_by(found['measures'])}; "
            f"at most {bits} bits each, {bits * len(after) * runs} in all"
        )
    lines = [
        "Enforced by this site, whatever the server asks:",
        f"  at most {counted(runs, 'run')} of at most {counted(terms['rounds'], 'round')}, each once and in order",
        "  columns and moments once a run; recipe and shares follow from the study and never change in a run",
        f"  {measured}",
        f"  an answer that was lost is sent again unchanged, at most {terms['repeats']} times",
        f"  {terms['strikes']} orders in a row that break these terms stop the site, until it is started with {LIFT}",
    ]
    lines += [f"  {said}" for said in found["protection"]]
    shared = (
        "the study ends with its model, which is kept here" if found["gets_model"] else "no model is taken at the end"
    )
    lines.append(f"  {shared} (share_model = {str(found['gets_model']).lower()})")
    if floor is not None:
        lines.append(
            f"  nothing of fewer than {floor['rows']} rows, {floor['per_category']} rows of a category or "
            f"{floor['per_class']} of a class leaves (--floor-rows, --floor-per-category, --floor-per-class)"
        )
    return lines


def _said_by(measures: Sequence[str]) -> str:
    """How each measure is rounded."""
    how = {
        "loss": f"loss to {measurement.DIGITS} digits",
        "accuracy": "accuracy to whole percents",
        "auc": "AUC to whole percents",
        "calibration": "calibration in whole percents by bins above the floor",
        "confusion": "confusion in whole percents of each class above the floor",
    }
    return ", ".join(how[name] for name in measures)


def _words(said: Header) -> str:
    counts = {"rows": said.get("rows"), "count": said.get("count")}
    parts = [f"{key} = {value}" for key, value in counts.items() if value]
    for name, column in (said.get("columns") or {}).items():
        parts += [f"categories of {name}: {', '.join(column['words'])}"] if column["kind"] == "words" else []
        parts += [f"{name} holds dates ({' or '.join(column['forms'])})"] if column["kind"] == "dates" else []
    classes = said.get("classes")
    parts += [f"classes: {', '.join(map(str, classes))}"] if classes else []
    parts += [", ".join([*said["measures"], *said.get("tables", {})])] if "measures" in said else []
    return f"; {'; '.join(parts)}" if parts else ""


__all__ = ["announce", "lines"]
