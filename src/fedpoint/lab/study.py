"""Labs that are no set of curves over rounds: each has its own numbers in a TOML file, and its own picture."""

from __future__ import annotations

import dataclasses
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, resources
from typing import TYPE_CHECKING, ClassVar, Self

from fedpoint.core.errors import FedpointError, check_count
from fedpoint.core.types import Tree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STUDIES = {  # kind of a lab: its module
    "asynchrony": "fedpoint.lab.asynchrony",
    "gtvmin": "fedpoint.lab.gtvmin",
    "states": "fedpoint.lab.states",
}

Tell = Callable[[str], object]  # what is being done now


@dataclass(frozen=True)
class Findings:
    """What a study found: a table for people, sentences, and numbers for programs."""

    headings: list[str]
    rows: list[list[str]]
    says: list[tuple[str, str]]  # what, and a sentence about it
    numbers: Mapping[str, object]
    note: str  # what the table's numbers are
    picture: Callable[[], Figure] = field(repr=False)


@dataclass(frozen=True)
class LabStudy(ABC):
    """An experiment: subclasses add its numbers as fields, which the TOML file's [setting] names."""

    name: str
    title: str
    about: str
    changes: ClassVar[dict[str, str]] = {}  # options of the command line, and the fields they change

    def change(self, **changes: int | None) -> Self:
        """The same with other numbers, where they are not None."""
        given = {name: value for name, value in changes.items() if value is not None}
        for name, value in given.items():
            if name not in self.changes:
                raise FedpointError(f"the lab {self.name} has no {name}")
            check_count(name, value, 1)
        fields: dict[str, Tree] = {self.changes[name]: value for name, value in given.items()}
        return dataclasses.replace(self, **fields)

    @abstractmethod
    def perform(self, tell: Tell) -> Findings: ...


@cache
def studies(quick: bool = False) -> dict[str, LabStudy]:
    """Every study, by its name."""
    found: dict[str, LabStudy] = {}
    for file in sorted(resources.files("fedpoint.lab").iterdir(), key=lambda f: f.name):
        if not file.name.endswith(".toml"):
            continue
        data = tomllib.loads(file.read_text())
        if data.get("kind") in STUDIES:
            made = import_module(STUDIES[data["kind"]]).STUDY
            name = file.name.removesuffix(".toml")
            numbers = {**data["setting"], **(data["quick"] if quick else {})}
            found[name] = made(name=name, title=data["title"], about=data["about"], **numbers)
    return found
