"""Who takes part, as a file says it: a number, a name, or a table.

    participation = 10                                        Uniform(10)
    participation = "everyone"
    participation = {scheme = "by_weight", count = 10}
    participation = {scheme = "importance", count = 10, probabilities = [0.1, 0.2, 0.7]}
    participation = {count = 20, probability = 0.8, keep = 10, minimum = 5}
    participation = {scheme = "everyone", trace = "who-was-there.csv"}

The keys are the fields of the scheme's class, and beside them those of `Answering`, which goes around it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpoint.config.lines import Path as Where
from fedpoint.config.mistakes import Mistake, of_table
from fedpoint.config.values import value_of
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.timing.participation import SCHEMES, Answering, Uniform, as_participation, read_trace

INNER = {name: cls for name, cls in SCHEMES.items() if cls is not Answering}
AROUND = [f.name for f in dataclasses.fields(Answering) if f.name != "scheme"]


def _names(cls: type) -> list[str]:
    return [f.name for f in dataclasses.fields(cls)]


def find_scheme(name: Any) -> Any:
    found = INNER.get(str(name).lower().replace("_", "").replace("-", ""))
    if found is None:
        raise FedpointError(f"unknown scheme {name!r}; {nearest(str(name), INNER)}")
    return found


def mistakes(text: Any, where: Where, base: Path | None) -> list[Mistake]:
    """What is wrong with a participation by itself: every unknown key, and what its class says of the rest."""
    return of_table(
        text, where, lambda table: ["scheme", *_names(_class_of(table)), *AROUND], lambda table: scheme_of(table, base)
    )


def _class_of(table: Mapping) -> Any:
    if "scheme" in table:
        return find_scheme(table["scheme"])
    return Uniform if "count" in table else INNER["everyone"]


def scheme_of(text: Any, base: Path | None = None) -> Any:
    """The participation that a file's text stands for; a trace is read relative to `base`."""
    if isinstance(text, str):
        return _make(find_scheme(text), {})
    if not isinstance(text, Mapping):
        if text is not None and (isinstance(text, bool) or not isinstance(text, int)):
            raise FedpointError("must be a number of agents, the name of a scheme, or a table")
        return as_participation(text)
    cls = _class_of(text)
    inside = _make(cls, {key: text[key] for key in _names(cls) if key in text})
    around = {key: text[key] for key in AROUND if key in text}
    if "trace" in around:
        around["trace"] = _trace(around["trace"], base)
    if isinstance(around.get("probability"), list):
        around["probability"] = value_of({"per_agent": around["probability"]})
    return _make(Answering, {"scheme": inside, **around}) if around else inside


def _trace(text: Any, base: Path | None) -> Any:
    if not isinstance(text, str):
        raise FedpointError(f"trace must be the path of a file, got {text!r}")
    return read_trace(str((base or Path()) / text))


def _make(cls: Any, arguments: Mapping) -> Any:
    """The scheme, with wrong types told apart from wrong numbers."""
    for f in dataclasses.fields(cls):
        if f.name not in arguments:
            if f.default is dataclasses.MISSING:
                raise FedpointError(f"{cls.__name__} needs {f.name} = ...")
            continue
        value, whole = arguments[f.name], f.name in ("count", "keep", "minimum")
        if whole and (isinstance(value, bool) or not isinstance(value, int)):
            raise FedpointError(f"{cls.__name__}: {f.name} must be a whole number, got {value!r}")
        if f.name == "plain" and not isinstance(value, bool):
            raise FedpointError(f"{cls.__name__}: plain must be true or false, got {value!r}")
        if f.name in ("probability", "probabilities") and isinstance(value, str | bool | Mapping):
            raise FedpointError(f"{cls.__name__}: {f.name} must be numbers, got {value!r}")
    values = {key: value_of({"values": item}) if key == "probabilities" else item for key, item in arguments.items()}
    return cls(**values)
