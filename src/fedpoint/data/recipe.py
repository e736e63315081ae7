"""How do the columns of a table become those of a model? By a recipe that was made of the rows it learnt from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.errors import nearest
from fedpoint.data.column import Column, and_more
from fedpoint.data.columns import BadTable, cell_at, is_frame, not_values
from fedpoint.data.dates import EXAMPLES, as_days
from fedpoint.data.pieces import Piece, Source, pieces_of

if TYPE_CHECKING:
    from fedpoint.core.types import Plain


Category: TypeAlias = str | float | bool
TRUTHS = {"true": True, "1": True, "false": False, "0": False}  # as files write them


@dataclass(frozen=True)
class Feature:
    """How a column of a file becomes columns of X: (x - mean)/scale, or one of zeros and ones for each category.

    The first category has none: it is what the intercept stands for; unless `every` one has. Categories are words,
    numbers, or False and True. fill: what stands for a missing cell, a number or a category; None: it is refused.
    dates: how they are written, where x is their number of days since 1970-01-01.
    """

    column: str
    mean: float = 0.0
    scale: float = 1.0
    categories: list[str] | list[float] | list[bool] | None = None
    fill: float | str | None = None
    dates: str | None = None
    every: bool = False

    @property
    def names(self) -> list[str]:
        if self.categories is None:
            return [self.column]
        return [f"{self.column}_{c}" for c in self.categories[0 if self.every else 1 :]]

    def write(self, out: np.ndarray, column: Column) -> int:
        """Put a column into `out` (n, len(names)); how many of its cells are of no known category."""
        if self.categories is None:
            column = column if self.dates is None else as_days(column, self.dates)
            values = column.values if self.fill is None else np.where(column.missing, self.fill, column.values)
            np.subtract(values, self.mean, out=out[:, 0])
            out[:, 0] /= self.scale
            return 0
        known: list[Category] = [*self.categories]
        place: dict[Category | None, int] = {_meant(name): i for i, name in enumerate(known)}
        words = [*(column.words or []), self.fill]  # the last is that of the code -1
        at = np.array([place.get(read_as(known[0], word), -1) for word in words])[column.values]
        first = 0 if self.every else 1
        for i in range(first, len(known)):
            out[:, i - first] = at == i
        return int((at < 0).sum())

    def plain(self) -> dict[str, Plain]:
        """In the terms of a manifest."""
        about = {name: value for name, value in vars(self).items() if value is not None and value is not False}
        return about if self.categories is None else {k: v for k, v in about.items() if k not in ("mean", "scale")}


def _meant(category: Category) -> Category:
    """What a cell must stand for: words without spaces around them, as cells are read."""
    return category.strip() if isinstance(category, str) else category


def read_as(like: Category, word: Category | None) -> Category | None:
    """A cell as a category of the kind of another one; None where it is none."""
    if isinstance(like, str) or not isinstance(word, str):
        return word
    if isinstance(like, bool):
        return TRUTHS.get(word.lower())
    try:
        return float(word)
    except ValueError:
        return None


def encode(recipe: Sequence[Feature], columns: Mapping[str, Column]) -> tuple[np.ndarray, int]:
    """X (n, d) of these columns, and how many cells are of a category that training rows did not have."""
    rows = len(columns[recipe[0].column].values)
    X, at, unknown = np.empty((rows, sum(len(f.names) for f in recipe))), 0, 0
    for feature in recipe:
        unknown += feature.write(X[:, at : at + len(feature.names)], columns[feature.column])
        at += len(feature.names)
    return X, unknown


# New rows.


class NewRows(NamedTuple):
    """Rows X (n, d) as a model sees them, the target's column where it was asked for, and how many cells are of
    categories that the model does not know: they count as the first one, or as none where every one has a column."""

    X: np.ndarray
    target: Column | None
    unknown: int


def one_table(source: Source) -> Piece:
    """A file, or columns in memory."""
    pieces = pieces_of(source, ",")
    if len(pieces) != 1:
        raise BadTable([("file", f"give one table to predict for, not {len(pieces)}")])
    return pieces[0]


def new_rows(piece: Piece, recipe: Sequence[Feature], target: str | None = None, words: bool = False) -> NewRows:
    """Rows by a recipe, which finds columns by their names; all that is wrong with them in one error.

    target: a column to be read as well, as words where these are classes.
    """
    header = piece.header()
    asked = [feature.column for feature in recipe] + ([] if target is None else [target])
    lost = [name for name in dict.fromkeys(asked) if name not in header]
    if lost:
        raise BadTable([("file", f"{piece.where} has no column {name!r}: {nearest(name, header)}") for name in lost])
    texts = [f.column for f in recipe if f.categories is not None or f.dates is not None]
    texts += [target] if target is not None and words else []
    columns, wrong = piece.read(list(dict.fromkeys(asked)), words=texts)
    wrong += _not_numbers(piece.path, {name: column for name, column in columns.items() if name not in texts})
    dated = {f.column: f.dates for f in recipe if f.dates is not None}
    wrong += _not_dates(piece.path, {name: columns[name] for name in dated if name in columns}, dated)
    fixed = {feature.column for feature in recipe if feature.fill is not None}
    must = {name: column for name, column in columns.items() if name not in fixed}
    wrong += [f"{said}: give a value, or leave the row out" for said in not_values(piece.path, must, missing=True)]
    wrong += not_values(piece.path, columns, missing=False)
    if wrong:
        raise BadTable([("file", f"{piece.where}: {said}") for said in wrong])
    X, unknown = encode(recipe, columns)
    return NewRows(X, None if target is None else columns[target], unknown)


def _not_numbers(path: Path | None, columns: Mapping[str, Column]) -> list[str]:
    """Columns of words, where numbers are needed."""
    wrong = []
    for name, column in columns.items():
        if column.words is not None:
            row = int((column.values >= 0).argmax())
            wrong.append(f"row {row + 1}, column {name!r} is {cell_at(path, row, name, column)!r}, not a number")
    return wrong


def _not_dates(path: Path | None, columns: Mapping[str, Column], forms: Mapping[str, str]) -> list[str]:
    """Cells that hold no date, where one is needed."""
    wrong = []
    for name, column in columns.items():
        odd = np.isnan(as_days(column, forms[name]).values) & ~column.missing
        if odd.any():
            row, more = int(odd.argmax()), and_more(int(odd.sum()) - 1)
            cell = cell_at(path, row, name, column)
            wrong.append(
                f"row {row + 1}, column {name!r} is {cell!r}, not a date such as {EXAMPLES[forms[name]]}{more}"
            )
    return wrong


def is_table(source: ArrayLike | Source) -> TypeGuard[Source]:
    """Whether columns are found by their names: a file, or columns in memory."""
    return isinstance(source, str | os.PathLike | Mapping) or is_frame(source)
