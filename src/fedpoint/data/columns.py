"""What stands in a file? CSV and Parquet as columns of numbers or of words, without a Python object per cell.

A CSV file is read in pieces of a few megabytes. A piece of a large file goes through pandas' parser in C where it is
plain. What that refuses, such as cells that are wrong, goes through Python's csv, which can tell why. Both read the
same numbers, to the bit.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.errors import FedpointError
from fedpoint.core.files import open_file
from fedpoint.core.memory_limits import in_bytes
from fedpoint.core.numbers import counted
from fedpoint.data.column import MISSING, Column, Growing, and_more

if TYPE_CHECKING:
    from pandas import DataFrame
    from pyarrow import Array
    from pyarrow.parquet import ParquetFile

    from fedpoint.core.types import Data

Cell: TypeAlias = str | float | bool | None
PIECE = 1 << 22  # characters read at once
LONGEST_ROW = 1 << 26  # characters: what has no end of a line for so long is no table
SMALL = 1 << 24  # bytes of a file, up to which importing pandas would take longer than reading
LARGE = 1e100  # a number whose square is still one, whatever it is added to
FAR = 100_000  # rows, beyond which a file is not read again to quote a cell
SHOWN = 6  # mistakes of a table that are listed


class BadTable(FedpointError):
    """Mistakes of a table. `mistakes` lists (key, message), the key being the argument that the message is about."""

    def __init__(self, mistakes: Sequence[tuple[str, str]]):
        self.mistakes = list(mistakes)
        super().__init__("\n".join(message for _, message in self.shown()))

    def shown(self) -> list[tuple[str, str]]:
        """The first of many, and how many more there are."""
        more = len(self.mistakes) - SHOWN
        return [*self.mistakes[:SHOWN], ("file", f"and {more} more mistakes")] if more > 1 else self.mistakes


def shown(path: str | os.PathLike) -> str:
    """A path as one would write it from here."""
    path = Path(path)
    return str(path.relative_to(Path.cwd()) if path.is_absolute() and path.is_relative_to(Path.cwd()) else path)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """A file's bytes, or one clear message why they cannot be read."""
    try:
        with open_file(path) as file:
            yield file
    except FileNotFoundError:
        raise FedpointError(f"there is no file {shown(path)}") from None
    except OSError as error:
        raise FedpointError(f"cannot read {shown(path)}: {error.strerror}") from None


def is_frame(table: Data) -> TypeGuard[DataFrame]:
    """Whether it is a data frame of pandas, which need not be installed."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(table, pandas.DataFrame)


# A file as a whole.


def is_parquet(path: Path) -> bool:
    return path.suffix.lower() in (".parquet", ".pq")


def header_of(path: Path, separator: str = ",") -> list[str]:
    """The names of a file's columns; refused when one is twice there, or none."""
    names = list(open_parquet(path).schema_arrow.names) if is_parquet(path) else _csv_header(path, separator)
    if not any(names):
        raise FedpointError(f"{shown(path)} is empty, it has no rows: give a header and at least one row below it")
    double = sorted(name for name, count in Counter(names).items() if count > 1)
    if double:
        some = ", ".join(repr(name) for name in double[:SHOWN])
        which = f"the column {some} occurs" if len(double) == 1 else f"the columns {some} occur"
        raise FedpointError(f"{shown(path)}: {which} twice in the header")
    if "" in names:
        raise FedpointError(f"{shown(path)}: column {names.index('') + 1} has no name in the header")
    return names


def read_columns(
    path: Path,
    wanted: Sequence[str] | None = None,
    words: Iterable[str] = (),
    names: Iterable[str] = (),
    separator: str = ",",
    parser: str | None = None,
) -> tuple[dict[str, Column], list[str]]:
    """The columns of a CSV or Parquet file, by name, and what is wrong with those that are not among them.

    wanted: only these. words: read as words though they may look like numbers; names: likewise, and only an empty cell
    is missing (NA is Namibia). parser: "pandas" or "csv"; default by size.
    """
    header = header_of(path, separator)
    growing = [
        Growing(name, name in words or name in names, frozenset({""}) if name in names else MISSING)
        for name in (header if wanted is None else wanted)
    ]
    wrong: list[str] = []
    if is_parquet(path):
        _read_parquet(path, growing, wrong)
    else:
        place = {name: i for i, name in enumerate(header)}
        places = [place[column.name] for column in growing]
        _read_csv(path, _Layout(len(header), places, separator), growing, parser, wrong)
        if wrong:  # where cells are missing or too many, none can be told
            raise BadTable([("file", f"{shown(path)}: {said}") for said in wrong])
    if not wrong and not any(len(part) for part in growing[0].parts):
        raise FedpointError(f"{shown(path)} has no rows: give at least one below the header")
    made: dict[str, Column] = {}
    for column in growing:
        done = column.finish()
        if isinstance(done, str):
            wrong.append(done)
        else:
            made[column.name] = done
    return made, wrong


def column_of(name: str, values: ArrayLike, only_words: bool = False) -> Column | str:
    """A column in memory, or what is wrong with it."""
    array = np.asarray(values)
    if array.ndim != 1:
        return f"column {name!r} has shape {array.shape}: give one value a row"
    if array.dtype.kind in "iuf" and not only_words:
        return Column(array.astype(float))
    growing = Growing(name, only_words)
    if array.dtype.kind == "M":
        growing.add_cells(["" if text == "NaT" else text for text in np.datetime_as_string(array).tolist()])
    else:
        growing.add_cells([_written(value).strip() for value in array.tolist()])
    return growing.finish()


def cell_at(path: Path | None, row: int, name: str, column: Column, separator: str = ",") -> str:
    """What stands in a cell that has no value, or none that is finite: `empty`, or the text itself."""
    text = "" if column.missing[row] else column.text(row)
    if path is not None and not is_parquet(path) and row < FAR:
        place = header_of(path, separator).index(name)
        rows = (cells for text in _lines(path) for cells in _rows(text, separator))
        text = next(itertools.islice(rows, row + 1, None))[place]
    return text or "empty"


def not_values(path: Path | None, columns: Mapping[str, Column], missing: bool, separator: str = ",") -> list[str]:
    """Where cells have no value (`missing`), or else a number that is not finite or too large to be scaled."""
    wrong = []
    for name, column in columns.items():
        if missing:
            bad, why = column.missing, ""
        elif column.words is None:
            bad, why = np.abs(column.values) > LARGE, f": only finite numbers, up to {LARGE:g}"
        else:
            continue
        if bad.any():
            row, more = int(bad.argmax()), int(bad.sum()) - 1
            cell = cell_at(path, row, name, column, separator)
            wrong.append(f"row {row + 1}, column {name!r} is {cell}{and_more(more)}{why}")
    return wrong


# CSV.


@dataclass(frozen=True)
class _Layout:
    """How many cells a line has, which of them are read, and what stands between them."""

    width: int
    places: list[int]
    separator: str


def _lines(path: Path) -> Iterator[str]:
    """The text in pieces of whole lines, no quoted cell cut."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    done, rest = 0, ""
    with opened(path) as file:
        block = b" "
        while block:
            block = file.read(PIECE)
            try:
                rest += decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                at = done - len(decoder.getstate()[0]) + error.start
                raise FedpointError(f"{shown(path)} is not UTF-8 text (byte {at}): save it as UTF-8") from None
            done += len(block)
            end = rest.rfind("\n") + 1 if block else len(rest)
            if end and (not block or not rest.count('"', 0, end) % 2):
                yield rest[:end]
                rest = rest[end:]
            elif len(rest) > LONGEST_ROW:
                raise FedpointError(
                    f"{shown(path)} is not a table: a row, or a cell in quotes, does not end within "
                    f"{in_bytes(LONGEST_ROW)}"
                )


def _rows(text: str, separator: str) -> Iterator[list[str]]:
    """Rows of stripped cells; blank lines are none."""
    for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
        if row:
            yield [cell.strip() for cell in row]


def _csv_header(path: Path, separator: str) -> list[str]:
    for text in _lines(path):
        for row in _rows(text, separator):
            return row
    return []


def _read_csv(path: Path, layout: _Layout, columns: list[Growing], parser: str | None, wrong: list[str]) -> None:
    if parser is None:
        parser = "pandas" if path.stat().st_size > SMALL else "csv"
    row, headed = 0, False
    try:
        for text in _lines(path):
            if not headed:
                text = text.lstrip("\r\n")
                if not text:
                    continue
                text, headed = _below_header(text, layout.separator), True
                sample, text = _first_lines(text, 100)  # tells numbers from words
                row += _by_csv(sample, layout, columns, row, wrong)
            found = _by_pandas(text, layout, columns) if parser == "pandas" and text else None
            row += _by_csv(text, layout, columns, row, wrong) if found is None else found
    except csv.Error as error:
        raise FedpointError(f"{shown(path)}: after row {row}: {error}") from None


def _below_header(text: str, separator: str) -> str:
    """The text without its first row."""
    buffer = io.StringIO(text, newline="")
    next(iter(csv.reader(buffer, delimiter=separator)))
    return text[buffer.tell() :]


def _first_lines(text: str, count: int) -> tuple[str, str]:
    """So many lines, and the rest; all of it where a quote might be cut."""
    head = "".join(itertools.islice(io.StringIO(text, newline="\n"), count))
    return (text, "") if head.count('"') % 2 else (head, text[len(head) :])


def _by_csv(text: str, layout: _Layout, columns: list[Growing], before: int, wrong: list[str]) -> int:
    """Python's csv: every piece of text, and what is wrong with it."""
    rows = []
    for number, cells in enumerate(_rows(text, layout.separator), before + 1):
        if len(cells) != layout.width:
            wide = counted(layout.width, "column")
            wrong.append(f"row {number} has {counted(len(cells), 'cell')}, but the header names {wide}")
            cells = (cells + [""] * layout.width)[: layout.width]
        rows.append(cells)
    if rows:
        across = list(zip(*rows, strict=True))
        for column, place in zip(columns, layout.places, strict=True):
            column.add_cells(across[place])
    return len(rows)


def _by_pandas(text: str, layout: _Layout, columns: list[Growing]) -> int | None:
    """The parser of pandas: None where a cell is wrong, or where it would not notice a row of another length."""
    import pandas

    raw = text.encode()
    if '"' in text or not _even(raw, layout):
        return None
    exact = {} if pandas_rounds_correctly(pandas.__version__) else {"float_precision": "round_trip"}
    kinds = {p: "category" if c.words_next else float for c, p in zip(columns, layout.places, strict=True)}
    blank = {p: sorted(c.blank) for c, p in zip(columns, layout.places, strict=True)}
    try:
        made = pandas.read_csv(
            io.BytesIO(raw),
            sep=layout.separator,
            header=None,
            names=list(range(layout.width)),
            usecols=layout.places,
            index_col=False,
            dtype=kinds,
            na_values=blank,
            keep_default_na=False,
            **exact,
        )
    except (ValueError, OverflowError):  # pandas' ParserError is a ValueError
        return None
    for column, place in zip(columns, layout.places, strict=True):
        values = made[place]
        if column.words_next:
            column.add_words(values.cat.codes.to_numpy().astype(np.int64), map(str, values.cat.categories))
        else:
            column.add_numbers(values.to_numpy())
    return len(made)


def pandas_rounds_correctly(version: str) -> bool:
    """Whether its parser gives every number to the bit, without being told to.

    >>> pandas_rounds_correctly("3.1.1"), pandas_rounds_correctly("2.2.2")
    (True, False)
    """
    return tuple(int(part) for part in version.split(".")[:2]) >= (3, 1)


def _even(raw: bytes, layout: _Layout) -> bool:
    """Whether every line has its cells: pandas fills up short ones and says nothing."""
    raw = raw if raw.endswith(b"\n") else raw + b"\n"
    bytes_ = np.frombuffer(raw, np.uint8)
    ends = np.flatnonzero(bytes_ == ord("\n"))
    between = np.flatnonzero(bytes_ == ord(layout.separator))
    return bool((np.diff(np.searchsorted(between, ends), prepend=0) == layout.width - 1).all())


# Parquet.


def open_parquet(path: Path) -> ParquetFile:
    with opened(path):  # refuses what is not a file
        pass
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise FedpointError(f"{shown(path)}: Parquet needs the package pyarrow: pip install 'fedpoint[data]'") from None
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise FedpointError(f"{shown(path)} is not a Parquet file: {str(error).splitlines()[0]}") from None


def _read_parquet(path: Path, columns: list[Growing], wrong: list[str]) -> None:
    import pyarrow
    import pyarrow.compute as compute

    file = open_parquet(path)
    readers: dict[str, Callable] = {}
    for column in columns:
        kind = file.schema_arrow.field(column.name).type
        inner = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        text = pyarrow.types.is_string(inner) or pyarrow.types.is_large_string(inner)
        number = pyarrow.types.is_integer(inner) or pyarrow.types.is_floating(inner) or pyarrow.types.is_decimal(inner)
        when = pyarrow.types.is_date(inner) or pyarrow.types.is_timestamp(inner)
        if text or when or pyarrow.types.is_boolean(inner) or (number and column.only_words):
            readers[column.name] = _add_texts
        elif number or pyarrow.types.is_null(inner):
            readers[column.name] = lambda c, a: c.add_numbers(compute.cast(a, "float64", safe=False).to_numpy(False))
        else:
            wrong.append(f"column {column.name!r} holds {kind}: numbers, words, dates and truth values can be read")
    try:
        for batch in file.iter_batches(1 << 17, columns=list(readers)):
            for column in columns:
                if column.name in readers:
                    readers[column.name](column, batch.column(column.name))
    except (pyarrow.ArrowException, OSError) as error:
        raise FedpointError(f"{shown(path)} is damaged: {str(error).splitlines()[0]}") from None


def _add_texts(column: Growing, array: Array) -> None:
    """Words of an Arrow array: those that differ become Python texts, once each."""
    import pyarrow

    coded = array if pyarrow.types.is_dictionary(array.type) else array.dictionary_encode()
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    column.add_words(codes, [_written(word) for word in coded.dictionary.to_pylist()])


def _written(value: Cell) -> str:
    """A value as a CSV file would have it: 3, not 3.0."""
    if value is None or value != value or type(value).__name__ == "NAType":
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
