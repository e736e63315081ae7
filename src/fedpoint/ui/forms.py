"""Which experiments can a form describe? The problems, methods and keys of TOML files that are plain values.

The form is made of the schema by which files are checked, and what it describes is the content of a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypedDict

from fedpoint.algorithms.catalogue import makers, title_of
from fedpoint.config.experiment import parse
from fedpoint.config.writing import schema
from fedpoint.core.algorithm import CATALOGUE
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.types import Plain
from fedpoint.ui.mathml import text

NOT_ASKED = ("kind", "name", "total", "optimiser", "server")  # the last two are objects of optax
RUN = ("rounds", "repeats", "participation", "seed", "exact")  # keys of an experiment, beside problem and method
START = {"rounds": 200, "repeats": 4}
MOST = {"rounds": 100_000, "repeats": 100, "agents": 1000}  # of a run that a form starts
SMALL = {"logistic": {"agents": 10, "batch": 5}}  # what suits a first look better than the defaults of files


class Field(TypedDict):
    """A value that the form asks for. kind: "number", "integer", "boolean" or "choice"."""

    name: str
    kind: str
    help: str  # as HTML, from the docstrings
    start: str  # "" leaves it to the default
    choices: list[str]


class Choice(TypedDict):
    """A problem or a method, with what it asks for."""

    name: str
    title: str
    about: str
    fields: list[Field]


class Form(TypedDict):
    """All that can be asked for."""

    problem: list[Choice]
    algorithm: list[Choice]
    run: list[Field]


@cache
def form() -> Form:
    """The form: problems that need no file, methods with a hub, and the settings of a run."""
    known = schema()
    tables = known["$defs"]
    problems = [tables[_end(one)] for one in known["properties"]["problem"]["anyOf"]]
    by_name = dict(zip(makers(), known["properties"]["algorithm"]["anyOf"], strict=False))
    methods = {name: tables[_end(one)] for name, one in by_name.items() if _has_hub(name)}
    return {
        "problem": [_problem(table) for table in problems if table.get("required") == ["kind"]],
        "algorithm": [
            {"name": name, "title": title_of(name), "about": text(table["description"]), "fields": _fields(table, {})}
            for name, table in methods.items()
        ],
        "run": _fields({"properties": {key: known["properties"][key] for key in RUN}}, START),
    }


def _end(reference: Mapping[str, str]) -> str:
    return reference["$ref"].rpartition("/")[2]


def _has_hub(name: str) -> bool:
    card = CATALOGUE.get(name)
    return card is not None and not card.network


def _problem(table: Mapping[str, Any]) -> Choice:
    name = table["properties"]["kind"]["const"]
    about = text(table["description"].split("\n\n")[0])
    return {
        "name": name,
        "title": name.replace("_", " "),
        "about": about,
        "fields": _fields(table, SMALL.get(name, {})),
    }


def _fields(table: Mapping[str, Any], start: Mapping[str, Plain]) -> list[Field]:
    return [
        field
        for name, said in table["properties"].items()
        if name not in NOT_ASKED and (field := _field(name, said, start.get(name, said.get("default")))) is not None
    ]


def _field(name: str, said: Mapping[str, Any], start: Plain) -> Field | None:
    """How a key is asked for; None where it is no plain value."""
    choices, types = list(said.get("enum", [])), set(_types(said))
    if choices:
        kind = "choice"
    elif types & {"integer", "number"}:
        kind = "number" if "number" in types else "integer"
    elif "boolean" in types:
        kind, choices = "boolean", ["false", "true"]
    else:
        return None
    shown = str(start).lower() if isinstance(start, str | int | float) else ""
    return {"name": name, "kind": kind, "help": text(said.get("description", "")), "start": shown, "choices": choices}


def _types(said: Mapping[str, Any]) -> Iterator[str]:
    for part in (said, *said.get("anyOf", ())):
        types = part.get("type", [])
        yield from [types] if isinstance(types, str) else types


def content(given: Mapping[str, str]) -> dict[str, Plain]:
    """The content of a file from the values of a form, checked as a file is: `problem`, `algorithm`, and what they ask
    for as `problem.agents`. Empty values are left to their defaults."""
    asked = form()
    problem = _chosen(asked["problem"], "problem", given.get("problem", ""))
    method = _chosen(asked["algorithm"], "algorithm", given.get("algorithm", ""))
    tables: dict[str, dict[str, Plain]] = {
        "": {},
        "problem": {"kind": problem["name"]},
        "algorithm": {"name": method["name"]},
    }
    fields = {"": asked["run"], "problem": problem["fields"], "algorithm": method["fields"]}
    for key, value in given.items():
        if key in ("problem", "algorithm") or not value.strip():
            continue
        table, _, name = key.rpartition(".")
        field = next((f for f in fields.get(table, ()) if f["name"] == name), None)
        if field is None:
            raise FedpointError(f"the form does not ask for {key[:60]!r}")
        tables[table][name] = _value(key, field, value.strip())
    for key, most in MOST.items():
        asked_for = tables["problem" if key == "agents" else ""].get(key)
        if isinstance(asked_for, int) and asked_for > most:
            raise FedpointError(
                f"{key} = {asked_for} is more than a form starts: take at most {most}, or use fedpoint run"
            )
    made = {"rounds": START["rounds"], **tables[""], "problem": tables["problem"], "algorithm": tables["algorithm"]}
    parse(made, "the form")
    return made


def _chosen(choices: list[Choice], what: str, name: str) -> Choice:
    for choice in choices:
        if choice["name"] == name:
            return choice
    raise FedpointError(f"unknown {what} {name[:60]!r}: {nearest(name[:60], [c['name'] for c in choices])}")


def _value(key: str, field: Field, value: str) -> Plain:
    if field["kind"] in ("choice", "boolean"):
        if value not in field["choices"]:
            raise FedpointError(f"{key} = {value[:60]!r}: choose one of {', '.join(field['choices'])}")
        return value if field["kind"] == "choice" else value == "true"
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        raise FedpointError(f"{key} = {value[:60]!r} is not a number") from None
