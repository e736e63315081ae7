"""Which algorithm does a table of a file name, and with which numbers? The catalogue's classes decide."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedpoint.algorithms.catalogue import class_of, find_maker, makers, parameters
from fedpoint.config.lines import Path
from fedpoint.config.mistakes import Mistake
from fedpoint.config.values import value_of
from fedpoint.core.algorithm import check_value
from fedpoint.core.errors import FedpointError, nearest

MOST = 200  # runs of one comparison


def variants(table: Any, path: Path) -> tuple[list[dict[str, Any]], list[Mistake]]:
    """The tables that one table with lists of values stands for, or its mistakes."""
    if not isinstance(table, Mapping) or "name" not in table:
        return [], [Mistake(path, f'must be a table with a name, for instance name = "fedavg"; {_known()}', table)]
    try:
        name, make = find_maker(table["name"])
    except FedpointError as error:
        return [], [Mistake((*path, "name"), str(error), table["name"])]
    given = {key: text for key, text in table.items() if key != "name"}
    mistakes = [m for key, text in given.items() for m in _check_key(make, key, text, (*path, key))]
    if mistakes:
        return [], mistakes
    choices = [text if isinstance(text, list) else [text] for text in given.values()]
    count = math.prod(map(len, choices))
    if count > MOST:
        return [], [Mistake(path, f"its lists make {count} runs; compare at most {MOST}")]
    tables = [{"name": name, **dict(zip(given, chosen, strict=True))} for chosen in itertools.product(*choices)]
    failed = dict.fromkeys(message for t in tables if (message := _fails(t)))
    return tables, [Mistake(path, message) for message in failed]


def _known() -> str:
    return f"known: {', '.join(sorted(makers()))}"


def _check_key(make: Callable, key: str, text: Any, path: Path) -> list[Mistake]:
    """The mistakes of one key, each of the values it lists looked at by itself."""
    known = parameters(make)
    if key not in known:
        return [Mistake(path, f"unknown key; {nearest(key, ['name', *known])}", text)]
    if text == []:
        return [Mistake(path, "an empty list; give a value, or several to compare", text)]
    choices = text if isinstance(text, list) else [text]
    return [Mistake(path, wrong, one) for one in choices if (wrong := _wrong(make, known[key], one))]


def _wrong(make: Callable, field: dataclasses.Field, text: Any) -> str | None:
    """What is wrong with a value by itself, asked of the class: its types, and its rules."""
    try:
        value = value_of(text)
        if isinstance(text, list):
            raise FedpointError("write an array as {values = [...]}, and one number per agent as {per_agent = [...]}")
        if isinstance(text, Mapping) and "per_agent" in text and not field.metadata.get("per_agent"):
            raise FedpointError("is one for all agents: give one number")
        if field.type is not Any and not isinstance(text, Mapping):
            _adapter(field.type).validate_python(value, strict=True)
        elif field.metadata.get("low") is not None and isinstance(value, str | bool):
            raise FedpointError(f"must be a number, got {value!r}")
        if "low" in field.metadata and value is not None:
            check_value(class_of(make).__name__, field.name, value, field.metadata)
    except ValidationError as error:
        return "; or ".join(dict.fromkeys(must(e["msg"]) for e in error.errors()))
    except FedpointError as error:
        message = str(error).removeprefix(f"{class_of(make).__name__}: {field.name} ")
        return re.sub(r", got [^,]*$", "", message)  # the value is shown already
    return None


def _adapter(type_: Any) -> TypeAdapter:
    return TypeAdapter(type_, config=ConfigDict(allow_inf_nan=False))


def must(message: str) -> str:
    """Pydantic's "Input should be ..." in our words."""
    words = {
        "Input should": "must",
        "Value error, ": "",
        "a valid integer": "a whole number",
        "a valid ": "a ",
        "greater than or equal to": "at least",
        "less than or equal to": "at most",
        "greater than": "above",
        "less than": "below",
        "boolean": "true or false",
    }
    for theirs, ours in words.items():
        message = message.replace(theirs, ours)
    return message.replace("be a true or false", "be true or false")


def _fails(table: Mapping) -> str | None:
    try:
        build(table)
    except FedpointError as error:
        return str(error)
    return None


def build(table: Mapping) -> Any:
    """The algorithm of a table that holds one value a key."""
    make = find_maker(table["name"])[1]
    fields = parameters(make)
    arguments = {key: _typed(fields[key], value_of(text)) for key, text in table.items() if key != "name"}
    missing = [
        n
        for n, p in inspect.signature(make).parameters.items()
        if p.default is p.empty and n not in arguments and p.kind != p.VAR_KEYWORD
    ]
    if missing:
        raise FedpointError(f"{make.__name__} needs {', '.join(missing)}")
    return make(**arguments)


def _typed(field: dataclasses.Field, value: Any) -> Any:
    """step = 1 means 1.0: a whole number is structure to the engine, a new value of which is a new program."""
    real = (field.metadata.get("low") is not None and not field.metadata.get("whole")) or field.type in (
        float,
        float | None,
    )
    return float(value) if real and isinstance(value, int) else value
