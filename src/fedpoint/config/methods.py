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

from fedpoint import algorithms
from fedpoint.algorithms.stochastic_approximation import REFERENCES
from fedpoint.config.lines import Path
from fedpoint.config.mistakes import Mistake
from fedpoint.config.values import Unreadable, plain, value_of
from fedpoint.core.algorithm import CATALOGUE, Card, check_fields
from fedpoint.errors import FedpointError, nearest

MOST = 200  # runs of one comparison


def makers() -> dict[str, Callable]:
    """What builds an algorithm, by name: the catalogue's classes, and functions such as FedAdam that preset one."""
    presets = {n.lower(): getattr(algorithms, n) for n in algorithms.__all__}
    presets = {n: make for n, make in presets.items() if not isinstance(make, type)}
    return {card.name: card.cls for card in CATALOGUE.values() if card.cls is not None} | presets


def find_maker(name: Any) -> tuple[str, Callable]:
    """By name, forgiving case, dashes and spaces; an unknown one suggests the nearest."""
    known = makers()
    if isinstance(name, str):
        for key, make in known.items():
            if _bare(name) in (_bare(key), _bare(make.__name__), _bare(_class_of(make).card.title)):
                return key, make
    raise FedpointError(f"unknown algorithm {name!r}: {nearest(str(name), known)}")


def card_of(name: str) -> Card:
    """The card of what builds it; a preset's publications come first."""
    make = find_maker(name)[1]
    card = _class_of(make).card
    own = REFERENCES.get(make.__name__, ())
    return dataclasses.replace(card, references=(*own, *(r for r in card.references if r not in own)))


def title_of(name: str) -> str:
    """The method's short name for people."""
    make = find_maker(name)[1]
    title = _class_of(make).card.title
    return title if isinstance(make, type) and "(" not in title else make.__name__


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _class_of(make: Callable) -> Any:
    return make if isinstance(make, type) else inspect.signature(make, eval_str=True).return_annotation


def parameters(make: Callable) -> dict[str, dataclasses.Field]:
    """The hyper-parameters of an algorithm, by name. What a preset fixes is not among them."""
    fields = {f.name: f for f in dataclasses.fields(_class_of(make))}
    if isinstance(make, type):
        return fields
    named = inspect.signature(make).parameters
    if not any(p.kind == p.VAR_KEYWORD for p in named.values()):
        return {name: f for name, f in fields.items() if name in named}
    fixed = {"server"}  # presets that take the rest are FedOpt with a server of their own
    return {name: f for name, f in fields.items() if name not in fixed}


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
    """What is wrong with a value by itself, asked of the class: its types, and its `check_fields`."""
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
        # All other fields None, which the rules pass over: what fails is this one.
        probe = object.__new__(_class_of(make))
        for other in dataclasses.fields(_class_of(make)):
            object.__setattr__(probe, other.name, value if other.name == field.name else None)
        check_fields(probe)
    except ValidationError as error:
        return "; or ".join(dict.fromkeys(must(e["msg"]) for e in error.errors()))
    except FedpointError as error:
        message = str(error).removeprefix(f"{_class_of(make).__name__}: {field.name} ")
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


def describe(algorithm: Any) -> dict[str, Any]:
    """The table of an algorithm; `build` reads it back, unless it holds what is only named."""
    cls = type(algorithm)
    own = CATALOGUE.get(cls.card.name)
    name = cls.card.name if own is not None and own.cls is cls else f"{cls.__module__}.{cls.__qualname__}"
    fields = dataclasses.fields(algorithm)
    texts = {f.name: plain(getattr(algorithm, f.name), f.metadata.get("per_agent", False)) for f in fields}
    return {"name": name, **{key: text for key, text in texts.items() if text is not None}}


def rebuild(table: Mapping) -> Any:
    """The algorithm that a folder describes; `Unreadable` where it only names it."""
    if table["name"] not in makers():
        raise Unreadable(f"the algorithm {table['name']} is not in the catalogue")
    return build(table)
