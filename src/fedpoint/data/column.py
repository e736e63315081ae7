"""Is it a column of numbers or of words? Cells as they are read, and the column that they make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedpoint.core.numbers import counted

MISSING = frozenset({"", "NA", "N/A", "nan", "NaN", "null", "NULL", "?"})  # cells without a value


@dataclass
class Column:
    """Numbers, NaN where missing; or the codes of words, -1 where missing."""

    values: np.ndarray
    words: list[str] | None = None  # what codes stand for; None: numbers

    @property
    def missing(self) -> np.ndarray:
        """(n,): which rows have no value."""
        return np.isnan(self.values) if self.words is None else self.values < 0

    def take(self, rows: np.ndarray) -> Column:
        return Column(self.values[rows], self.words)

    def text(self, row: int) -> str:
        """A cell, as one would write it."""
        value = self.values[row]
        return f"{value:g}" if self.words is None else self.words[value]


@dataclass
class Growing:
    """A column while its file is read: parts of numbers, and parts of words."""

    name: str
    only_words: bool = False  # never numbers, whatever stands there
    blank: frozenset[str] = MISSING
    parts: list[np.ndarray] = field(default_factory=list)  # floats, or int32 codes
    codes: dict[str, int] = field(default_factory=dict)
    expected: bool | None = None  # words next, by what was seen; None: nothing yet

    @property
    def words_next(self) -> bool:
        return self.only_words or bool(self.expected)

    def add_numbers(self, values: np.ndarray) -> None:
        self.parts.append(np.ascontiguousarray(values, float))

    def add_words(self, codes: np.ndarray | None, words: Iterable[str]) -> None:
        """Codes into a list of words; without codes, one word a row."""
        known = self.codes
        own = np.fromiter(
            (-1 if (word := w.strip()) in self.blank else known.setdefault(word, len(known)) for w in words), np.int32
        )
        self.parts.append(own if codes is None else np.append(own, np.int32(-1))[codes])  # code -1: the last

    def add_cells(self, cells: Sequence[str]) -> None:
        """Cells as they stand, stripped: numbers if all that are there are, else words."""
        numbers = None if self.only_words else _numbers(cells)
        if self.expected is None and (numbers is None or not np.isnan(numbers).all()):
            self.expected = numbers is None
        if numbers is None:
            self.add_words(None, cells)
        else:
            self.add_numbers(numbers)

    def finish(self) -> Column | str:
        """The whole column, or what is wrong with it."""
        parts, self.parts = self.parts, []
        if self.only_words or (all(part.dtype == np.int32 for part in parts) and not self._numeric().any()):
            return self._words(parts)
        if not self.codes:
            parts = [np.full(len(p), np.nan) if p.dtype == np.int32 else p for p in parts]
            return Column(np.concatenate(parts or [np.zeros(0)]))
        return self._sorted_out(parts)

    def _words(self, parts: list[np.ndarray]) -> Column:
        """Sorted words: however the file was read, codes are the same."""
        words = sorted(self.codes)
        place = np.full(len(words) + 1, -1, np.int32)
        place[[self.codes[word] for word in words]] = np.arange(len(words))
        return Column(place[np.concatenate(parts or [np.zeros(0, np.int32)])], words)

    def _numeric(self) -> np.ndarray:
        """Which of the words are numbers."""
        return np.array([_number(word) is not None for word in self.codes], bool)

    def _sorted_out(self, parts: list[np.ndarray]) -> Column | str:
        """A column with parts of words: all numbers in fact, or all words; else where the first odd one stands."""
        numeric = np.append(self._numeric(), False)
        written = [part.dtype == np.int32 for part in parts]
        number = np.concatenate([numeric[p] if w else ~np.isnan(p) for p, w in zip(parts, written, strict=True)])
        word = np.concatenate(
            [(p >= 0) & ~numeric[p] if w else np.zeros(len(p), bool) for p, w in zip(parts, written, strict=True)]
        )
        if not word.any():
            table = np.array([*map(float, self.codes), np.nan])
            return Column(np.concatenate([table[p] if w else p for p, w in zip(parts, written, strict=True)]))
        if not number.any():  # numbers beside words are missing ones
            parts = [p if w else np.full(len(p), -1, np.int32) for p, w in zip(parts, written, strict=True)]
            return self._words(parts)
        odd = word if word.sum() <= number.sum() else number
        row = int(np.flatnonzero(odd)[0])
        more, cell = and_more(int(odd.sum()) - 1), self._cell(parts, row)
        if odd is word:
            return f"row {row + 1}, column {self.name!r} is {cell!r}, not a number{more}"
        return f"row {row + 1}, column {self.name!r} is {cell}, a number among words{more}: name it in categorical"

    def _cell(self, parts: list[np.ndarray], row: int) -> str:
        for part in parts:
            if row < len(part):
                return list(self.codes)[part[row]] if part.dtype == np.int32 else f"{part[row]:g}"
            row -= len(part)
        return ""


def and_more(cells: int) -> str:
    return f" (and {counted(cells, 'more cell')})" if cells else ""


def _number(cell: str) -> float | None:
    """A cell as a number, NaN when it is missing; None when it is a word."""
    if cell in MISSING:
        return np.nan
    try:
        return None if "_" in cell else float(cell)  # Python reads 1_000, nobody else does
    except ValueError:
        return None


def _numbers(cells: Sequence[str]) -> np.ndarray | None:
    """Cells as numbers; None when one is a word."""
    try:
        if "_" not in "".join(cells):
            return np.array([float(cell or "nan") for cell in cells])
    except ValueError:
        pass
    numbers = [_number(cell) for cell in cells]
    return None if None in numbers else np.array(numbers, float)
