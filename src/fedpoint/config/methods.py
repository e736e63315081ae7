"""Which algorithm does a table of a file name, and with which numbers? The catalogue's classes decide.

algorithm = {name = "fedavg", step = [0.1, 0.2], local_steps = {epochs = 5}}     a list is compared
algorithm = {name = "averaged", burn_in = 50, inner = {name = "scaffold", step = 0.1}}
algorithm = {name = "my_methods.Dithered", step = 0.1}                          of a module that is allowed
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated

from pydantic import AfterValidator, JsonValue, WithJsonSchema

from fedpoint.algorithms import Averaged, Extrapolated
from fedpoint.algorithms.catalogue import class_of, find_maker, makers, parameters
from fedpoint.config.lines import Path
from fedpoint.config.mistakes import FileMistake, must, validated
from fedpoint.config.records import RecordTable, table_of
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.describe import Allow, find_class
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Plain

__all__ = ["build", "must", "table", "variants"]

MOST = 200  # runs of one comparison
WRAPPERS: dict[str, Callable[..., Algorithm]] = {"averaged": Averaged, "extrapolated": Extrapolated}


def variants(given: Plain, path: Path, allow: Allow = ()) -> tuple[list[dict[str, Plain]], list[FileMistake]]:
    """The tables that one table with lists of values stands for, or its mistakes."""
    if not isinstance(given, Mapping) or "name" not in given:
        return [], [FileMistake(path, f'must be a table with a name, for instance name = "fedavg"; {_known()}', given)]
    try:
        name, make = _maker(given["name"], allow)
    except FedpointError as error:
        return [], [FileMistake((*path, "name"), str(error), given["name"])]
    keys = {key: text for key, text in given.items() if key != "name"}
    mistakes = [m for key, text in keys.items() for m in _check_key(make, key, text, path)]
    if mistakes:
        return [], mistakes
    choices = [text if isinstance(text, list) else [text] for text in keys.values()]
    count = math.prod(map(len, choices))
    if count > MOST:
        return [], [FileMistake(path, f"its lists make {count} runs; compare at most {MOST}")]
    tables = [{"name": name, **dict(zip(keys, chosen, strict=True))} for chosen in itertools.product(*choices)]
    failed = dict.fromkeys(message for one in tables if (message := _fails(one, allow)))
    return tables, [FileMistake(path, message) for message in failed]


def merged(common: Mapping[str, Plain], own: Mapping[str, Plain], allow: Allow = ()) -> dict[str, Plain]:
    """A table with what another one says too; of another method's, what this one knows."""
    try:
        known = table(_maker(own.get("name", common.get("name")), allow)[1]).model_fields
    except FedpointError:  # which is said where the table is read
        return dict(own)
    return {**{key: item for key, item in common.items() if key in known}, **own}


def _known() -> str:
    return f"known: {', '.join(sorted([*makers(), *WRAPPERS]))}"


def _maker(name: Plain, allow: Allow) -> tuple[str, Callable[..., Algorithm]]:
    """What builds the algorithm of a name, and the name as the catalogue has it."""
    if isinstance(name, str) and name in WRAPPERS:
        return name, WRAPPERS[name]
    if isinstance(name, str) and "." in name:
        return name, find_class(name, (Algorithm,), allow)
    return find_maker(name)  # type: ignore[arg-type] # what is no word is refused there


def _check_key(make: Callable[..., Algorithm], key: str, text: Plain, path: Path) -> list[FileMistake]:
    """The mistakes of one key, each of the values it lists looked at by itself."""
    if text == []:
        return [FileMistake((*path, key), "an empty list; give a value, or several to compare", text)]
    known = key in table(make).model_fields
    choices = text if isinstance(text, list) and known else [text]
    found = [m for one in choices for m in validated(table(make), {key: one}, path)[1]]
    return [FileMistake((*path, key), m.message, m.value) for m in found if m.path[: len(path) + 1] == (*path, key)]


@cache
def table(make: Callable[..., Algorithm]) -> type[RecordTable]:
    """The keys of a method's table: what the class, or the function that presets one, lets be chosen."""
    cls, own = class_of(make), parameters(make)
    inner = Annotated[JsonValue, AfterValidator(build), WithJsonSchema({"type": "object"})]
    return table_of(
        cls, "name", {"inner": inner} if "inner" in own else {}, lists=False, only=frozenset(own), name=make.__name__
    )


def _fails(given: Mapping[str, Plain], allow: Allow) -> str | None:
    try:
        build(given, allow)
    except FedpointError as error:
        return str(error)
    return None


def build(given: Plain, allow: Allow = ()) -> Algorithm:
    """The algorithm of a table that holds one value a key."""
    if not isinstance(given, Mapping) or "name" not in given:
        raise FedpointError(f"must be a table with a name; {_known()}")
    make = _maker(given["name"], allow)[1]
    known = inspect.signature(make).parameters.values()
    missing = [p.name for p in known if p.default is p.empty and p.kind != p.VAR_KEYWORD and p.name not in given]
    if missing:
        raise FedpointError(f"{make.__name__} needs {', '.join(missing)}")
    made, wrong = validated(table(make), {key: text for key, text in given.items() if key != "name"})
    if made is None:
        raise FedpointError("; ".join(m.text({}) for m in wrong))
    return make(**{name: value for name, value in made if name in made.model_fields_set})
