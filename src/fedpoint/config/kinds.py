"""What all problems of files share: the types of their keys, and what a kind of problem must do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt, SkipValidation

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
    """A table of the file: unknown keys are mistakes, and so are texts in the place of numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    owner: ClassVar[str] = ""  # the class that misses a key, where its name says more than the table's


class Kind(Table, ABC):
    """A problem."""

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
