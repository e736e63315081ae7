"""Who takes part, as a file says it: a number, a name, or a table.

    participation = 10                                        Uniform(10)
    participation = "everyone"
    participation = {scheme = "by_weight", count = 10}
    participation = {scheme = "poisson", probability = 0.1}
    participation = {scheme = "importance", count = 10, probabilities = [0.1, 0.2, 0.7]}
    participation = {count = 20, probability = 0.8, keep = 10, minimum = 5}
    participation = {scheme = "everyone", trace = "who-was-there.csv"}

The keys are the fields of the scheme's class, and beside them those of `Answering`, which goes around it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, ValidationInfo

from fedpoint.config.lines import Path as Where
from fedpoint.config.mistakes import FileMistake, validated
from fedpoint.config.records import Family, Key, RecordTable, key_of, only, snake, table_of
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Plain
from fedpoint.timing.answering import Answering, read_trace
from fedpoint.timing.participation import SCHEMES, as_participation
from fedpoint.timing.schemes import Participation, Uniform


def _trace(text: str, info: ValidationInfo) -> np.ndarray:
    return read_trace(str(((info.context or {}).get("base") or Path()) / text))


INNER = {snake(cls.__name__): cls for cls in SCHEMES.values() if cls is not Answering}
FAMILY = Family("a scheme", INNER, "scheme")
AROUND: dict[str, Key] = {
    f.name: key_of("Answering", f) for f in dataclasses.fields(Answering) if f.name != "scheme"
} | {"trace": Annotated[str, AfterValidator(_trace)]}


def _around(cls: type[Participation]) -> dict[str, Key]:
    """The keys of `Answering` beside those of a scheme; a scheme's own come first."""
    own = {f.name for f in dataclasses.fields(cls)}
    return {name: key for name, key in AROUND.items() if name not in own}


TABLES: dict[type[Participation], type[RecordTable]] = {
    cls: table_of(cls, "scheme", _around(cls), beside=(Answering,)) for cls in INNER.values()
}


def mistakes(text: Plain, where: Where, base: Path | None) -> list[FileMistake]:
    """What is wrong with a participation by itself."""
    return read(text, where, base)[1]


def scheme_of(text: Plain, base: Path | None = None) -> Participation:
    """The participation that a file's text stands for; a trace is read relative to `base`."""
    return only(read(text, ("participation",), base))


def read(text: Plain, where: Where, base: Path | None = None) -> tuple[Participation | None, list[FileMistake]]:
    """The participation of a text, or what is wrong with it."""
    try:
        if isinstance(text, Mapping):
            return _read_table(text, where, base)
        if isinstance(text, str):
            return FAMILY.read(text, where, base)
        if text is not None and type(text) is not int:
            raise FedpointError("must be a number of agents, the name of a scheme, or a table")
        return as_participation(text), []
    except FedpointError as error:
        return None, [FileMistake(where, str(error), text)]


def _read_table(
    text: Mapping[str, Plain], where: Where, base: Path | None
) -> tuple[Participation | None, list[FileMistake]]:
    cls = FAMILY.class_of(text) if "scheme" in text else Uniform if "count" in text else INNER["everyone"]
    made, wrong = validated(TABLES[cls], text, where, base=base)
    if made is None:
        return None, wrong
    around = {name: value for name, value in made if name in _around(cls) and name in made.model_fields_set}
    inside = made.build(cls)
    return (Answering(inside, **around) if around else inside), []
