"""What all problems of files share: the types of their keys, and what a kind of problem must do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, PositiveInt, SkipValidation
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from fedpoint.core.docstrings import meanings, parsed
from fedpoint.core.types import Data, Plain
from fedpoint.problems.base import Problem

Agents = Annotated[int, Field(ge=1, le=10_000_000)]
Count = PositiveInt
Variance = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Sampling = Literal["iid", "shuffle", "importance"]


def _row_counts(rows: int | list[int]) -> int | list[int]:
    numbers = rows if isinstance(rows, list) and len(rows) == 2 else [rows]
    if not all(type(n) is int and n >= 1 for n in numbers) or numbers[0] > numbers[-1]:  # type: ignore[operator]
        raise ValueError("must be a whole number, at least 1, or [least, most]")
    return rows


Rows = Annotated[SkipValidation[int | list[int]], AfterValidator(_row_counts)]


class Table(BaseModel):
    """A table of the file: unknown keys are mistakes, and so are texts in place of numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    owner: ClassVar[str] = ""  # the class that misses a key, where its name says more than the table's
    explained_by: ClassVar[tuple[object, ...]] = ()  # whose docstrings say what keys mean, beside the table's own

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """What docstrings say of the keys, for editors and for the documentation."""
        found = handler(core)
        whole = handler.resolve_ref_schema(found)
        said = {key: meaning for thing in (*cls.explained_by, cls) for key, meaning in meanings(thing).items()}
        whole["description"] = parsed(cls.__doc__).summary
        for name, key in whole.get("properties", {}).items():
            if said.get(name):
                key["description"] = said[name]
        return found


class Kind(Table, ABC):
    """A problem.

    Args:
        kind: which problem this is.
        total: the sum of |x| over the problem's numbers, by which a description is checked; runs write it.
        agents: how many.
        seed: of the draw.
        batch: rows per local step; left out: all rows, the full gradient.
        sampling: how a batch is drawn: "iid", "shuffle" (every row once per pass) or "importance".
        weights: p_k, one for each agent; they are divided by their sum.
    """

    total: float | None = None  # the sum of |x| over its numbers, by which a description checks them

    @abstractmethod
    def build(self) -> tuple[Problem, Data]:
        """The problem, and data (X, y) or (X, y, groups) that no agent has, for evaluation, or None."""

    def numbers(self) -> int:
        """How many numbers `build` draws; those of files are not counted."""
        return 0

    def content(self) -> dict[str, Plain]:
        """The table that makes this problem again, defaults written out."""
        return self.model_dump(exclude_none=True, exclude={"total"})
