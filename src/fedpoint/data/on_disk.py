"""Data sets larger than memory: Parquet files, folders of Hugging Face's `datasets`, and objects that give a row by its
number. Of them a round reads the rows that its agents use."""

from __future__ import annotations

import json
import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.files import read_file
from fedpoint.core.kinds import shown as value_shown
from fedpoint.core.memory_limits import in_bytes
from fedpoint.core.numbers import counted
from fedpoint.core.own_code import calling
from fedpoint.core.types import Data
from fedpoint.data.columns import is_parquet, open_parquet, shown
from fedpoint.data.pieces import Paths, files_of
from fedpoint.problems.stored import StoredRows

if TYPE_CHECKING:
    from pyarrow import Array, Schema, Table

KEPT = 1 << 28  # bytes of row groups that are held
LARGEST = 1 << 30  # bytes of a row group, at most


@runtime_checkable
class Items(Protocol):
    """Rows by number, such as a `Dataset` of torch."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int) -> Data: ...


def on_disk(
    source: Paths | Items,
    inputs: str | Sequence[str] | None = None,
    target: str | None = None,
    agent: str | None = None,
) -> StoredRows:
    """Rows that stay where they are, for `fp.problems.Loss` and `fp.problems.Torch`: a batch is read when it is used.

    Of a Parquet file whole row groups are read, and some of them held: sort it by agent, and write it with a
    `row_group_size` of some hundred rows. Arrays of `np.load(path, mmap_mode="r")` need none of this: give them to the
    problem.

    Args:
        source: Parquet files (a path, a pattern or a list), a folder that `save_to_disk` of Hugging Face's `datasets`
            wrote, or an object with a length that gives a row by its number, such as a torch `Dataset`.
        inputs: the column that the model sees, of numbers or of lists of one shape, or several columns of numbers,
            which become one array. Of an object whose rows are dicts: their key. Where rows are tuples leave it out.
        target: the column to predict; the loss then gets (inputs, target).
        agent: the column that says whose row it is, of files.

    >>> rows = on_disk([(np.zeros(2), 1), (np.ones(2), 0)])
    >>> rows.read(np.array([1, 0, 1]))[1].tolist()
    [0, 1, 0]
    """
    if isinstance(source, str | os.PathLike) and os.path.isdir(source):
        return ColumnRows([ArrowFile(path) for path in _arrow_files(Path(source))], inputs, target, agent)
    if isinstance(source, str | os.PathLike) or (
        isinstance(source, Sequence) and all(isinstance(one, str | os.PathLike) for one in source) and len(source)
    ):
        return ColumnRows([ParquetRows(_parquet_path(path)) for path in files_of(source)], inputs, target, agent)
    if not isinstance(source, Items):
        raise FedpointError(
            f"rows on disk: give files, a folder, or an object that gives rows; got {value_shown(source)}"
        )
    if agent is not None:
        raise FedpointError("agent= is for files: give groups= to the problem")
    return ItemRows(source, inputs, target)


def _parquet_path(path: Path) -> Path:
    if not is_parquet(path):
        raise FedpointError(f"{shown(path)} is not a Parquet file: its name should end in .parquet or .pq")
    return path


def _arrow_files(folder: Path) -> list[Path]:
    """The files of a data set of Hugging Face, in order."""
    if (splits := folder / "dataset_dict.json").exists():
        names = _json(splits).get("splits", [])
        raise FedpointError(
            f"{shown(folder)} holds the splits {', '.join(names)}: give one of them, {folder / names[0]}"
        )
    if not (state := folder / "state.json").exists():
        raise FedpointError(
            f"{shown(folder)} was not written by save_to_disk of datasets; of a folder of Parquet files give "
            f'"{folder}/*.parquet"'
        )
    files = [folder / one["filename"] for one in _json(state).get("_data_files", [])]
    if not files:
        raise FedpointError(f"{shown(folder)} holds no rows")
    return files


def _json(path: Path) -> dict:
    try:
        found = json.loads(read_file(path))
    except ValueError as error:
        raise FedpointError(f"{shown(path)} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise FedpointError(f"{shown(path)} should hold an object")
    return found


class File(ABC):
    """A file of columns in pieces, opened when it is asked for.

    Attributes:
        counts: how many rows each of its pieces has.
        held: a piece is worth holding, because it is copied to memory.
    """

    counts: list[int]
    path: Path
    held = True

    @abstractmethod
    def schema(self) -> Schema:
        """Its columns."""

    @abstractmethod
    def piece(self, number: int, names: Sequence[str]) -> Table:
        """These columns of a piece."""


class ParquetRows(File):
    """A Parquet file, by row groups."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_parquet(path) as file:
            self._about, self._schema = file.metadata, file.schema_arrow
        self.counts = [self._about.row_group(i).num_rows for i in range(self._about.num_row_groups)]

    def schema(self) -> Schema:
        return self._schema

    def piece(self, number: int, names: Sequence[str]) -> Table:
        import pyarrow
        from pyarrow.parquet import ParquetFile

        try:
            with ParquetFile(self.path, metadata=self._about) as file:
                return file.read_row_group(number, list(names), use_threads=False)
        except (pyarrow.ArrowException, OSError) as error:
            raise FedpointError(f"{shown(self.path)} cannot be read: {str(error).splitlines()[0]}") from None


class ArrowFile(File):
    """A file of Arrow's streams, mapped: one piece, of which rows are copied when they are asked for."""

    held = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts = [self._mapped().num_rows]

    def _mapped(self) -> Table:
        try:
            import pyarrow
        except ImportError:
            raise FedpointError(f"{shown(self.path)} needs the package pyarrow: pip install 'fedpoint[data]'") from None
        try:
            with pyarrow.memory_map(str(self.path)) as file:
                return pyarrow.ipc.open_stream(file).read_all()
        except (pyarrow.ArrowException, OSError) as error:
            raise FedpointError(f"{shown(self.path)} cannot be read: {str(error).splitlines()[0]}") from None

    def schema(self) -> Schema:
        return self._mapped().schema

    def piece(self, number: int, names: Sequence[str]) -> Table:
        return self._mapped().select(list(names))


class ColumnRows(StoredRows):
    """Rows of files of columns.

    Args:
        files: all with these columns.
        inputs, target, agent: see `on_disk`.
    """

    def __init__(
        self, files: Sequence[File], inputs: str | Sequence[str] | None, target: str | None, agent: str | None
    ) -> None:
        self.files, self.inputs, self.target = list(files), inputs, target
        if inputs is None or not len(inputs):
            raise FedpointError("say which columns the model sees: inputs=")
        self.names = [*([inputs] if isinstance(inputs, str) else inputs), *([target] if target is not None else [])]
        for file in self.files:
            known = file.schema().names
            for name in [*self.names, *([agent] if agent is not None else [])]:
                if name not in known:
                    raise FedpointError(f"{shown(file.path)} has no column {name!r}: {nearest(name, known)}")
        self.pieces = [(f, i) for f, file in enumerate(self.files) for i in range(len(file.counts))]
        self.ends = np.cumsum([self.files[f].counts[i] for f, i in self.pieces])
        self.count = int(self.ends[-1]) if len(self.ends) else 0
        if not self.count:
            raise FedpointError(f"{', '.join(shown(file.path) for file in self.files[:3])}: no rows")
        self._open()
        self.groups = None if agent is None else self._whose(agent)

    def _open(self) -> None:
        self._lock, self._kept = threading.Lock(), OrderedDict[int, "Table"]()

    def __getstate__(self) -> dict:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_kept")}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state)
        self._open()

    def _whose(self, agent: str) -> np.ndarray:
        parts = []
        for f, i in self.pieces:
            column = self.files[f].piece(i, [agent]).column(agent)
            if column.null_count:
                raise FedpointError(
                    f"{shown(self.files[f].path)}: column {agent!r} has missing values: say whose rows they are"
                )
            parts.append(np.asarray(column.to_numpy()))
        found = np.concatenate(parts)
        return found.astype(str) if found.dtype.kind == "O" else found

    def _piece(self, number: int) -> Table:
        """A piece, which is held for a while."""
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        f, i = self.pieces[number]
        found = self.files[f].piece(i, self.names)
        if not self.files[f].held:
            return found
        if found.nbytes > LARGEST:
            raise FedpointError(
                f"{shown(self.files[f].path)}: a row group of {counted(found.num_rows, 'row')} takes "
                f"{in_bytes(found.nbytes)}, and is read as a whole: write the file with row_group_size=1000"
            )
        self._kept[number] = found
        return found

    def read(self, at: np.ndarray) -> Data:
        import pyarrow

        of, order = np.searchsorted(self.ends, at, side="right"), np.argsort(at, kind="stable")
        with self._lock:
            tables = []
            for number in np.unique(of):
                mine, table = at[order[of[order] == number]], self._piece(int(number))
                tables.append(table.take(pyarrow.array(mine - (self.ends[number] - table.num_rows))))
            self._forget()
        places = np.argsort(order)
        table = pyarrow.concat_tables(tables)
        columns = [self._numbers(table, name)[places] for name in self.names]
        wanted = columns[: len(columns) - (self.target is not None)]
        if not isinstance(self.inputs, str) and any(column.ndim > 1 for column in wanted):
            raise FedpointError("several columns of inputs must hold one number a row each: name one column of lists")
        x = wanted[0] if isinstance(self.inputs, str) else np.stack(wanted, axis=1)
        return x if self.target is None else (x, columns[-1])

    def _forget(self) -> None:
        """Let go of the pieces that were used longest ago, but for the last."""
        while len(self._kept) > 1 and sum(table.nbytes for table in self._kept.values()) > KEPT:
            self._kept.popitem(last=False)

    def _numbers(self, table: Table, name: str) -> np.ndarray:
        column = table.column(name).combine_chunks()
        where = f"{shown(self.files[0].path)}: column {name!r}"
        if column.null_count:
            raise FedpointError(f"{where} has missing values: fill them in, or leave their rows out")
        return _array(column, where)


def _array(column: Array, where: str) -> np.ndarray:
    """A column of numbers, or of lists of one shape."""
    import pyarrow
    from pyarrow import types

    if isinstance(column, pyarrow.ChunkedArray):
        column = pyarrow.concat_arrays(column.chunks)
    kind = column.type
    if isinstance(kind, pyarrow.BaseExtensionType):
        return _array(column.storage, where)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = _array(column.flatten(), where)
        lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
        if len(lengths) > 1:
            raise FedpointError(
                f"{where} holds lists of {lengths[0]} and of {lengths[-1]} values: they must be of one length"
            )
        return inner.reshape(len(column), -1, *inner.shape[1:])
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        encoded = ". Are they encoded images? Decode them, or give the data set itself instead of its folder"
        raise FedpointError(f"{where} holds {kind}, not numbers{encoded if types.is_struct(kind) else ''}")
    if column.null_count:
        raise FedpointError(f"{where} has missing values: fill them in, or leave their rows out")
    return column.to_numpy(zero_copy_only=False)


class ItemRows(StoredRows):
    """Rows of an object that gives one by its number.

    Args:
        items: it gives arrays, tuples of them, or dicts.
        inputs, target: see `on_disk`.
    """

    def __init__(self, items: Items, inputs: str | Sequence[str] | None, target: str | None) -> None:
        with calling(f"the length of {type(items).__name__}"):
            self.count = len(items)
        if not self.count:
            raise FedpointError(f"the {type(items).__name__} holds no rows")
        self.items, self.inputs, self.target = items, inputs, target

    def _row(self, place: int) -> Data:
        item = self.items[place]
        if isinstance(item, Mapping):
            if not isinstance(self.inputs, str) or self.target is None:
                raise FedpointError(f"rows are dicts: say inputs= and target=. Known: {', '.join(map(str, item))}.")
            for name in (self.inputs, self.target):
                if name not in item:
                    raise FedpointError(f"rows have no {name!r}: {nearest(name, map(str, item))}")
            return np.asarray(item[self.inputs]), np.asarray(item[self.target])
        if self.inputs is not None or self.target is not None:
            raise FedpointError("inputs= and target= are names of columns, and these rows have none: leave them out")
        return tuple(np.asarray(part) for part in item) if isinstance(item, tuple | list) else np.asarray(item)

    def read(self, at: np.ndarray) -> Data:
        rows = [self._row(int(place)) for place in at]
        if not isinstance(rows[0], tuple):
            return _stacked(rows)
        return tuple(_stacked(parts) for parts in zip(*rows, strict=True))


def _stacked(parts: Sequence[np.ndarray]) -> np.ndarray:
    shapes = sorted({part.shape for part in parts})
    if len(shapes) > 1:
        raise FedpointError(f"rows have arrays of the shapes {shapes[0]} and {shapes[-1]}: they must be alike")
    return np.stack(parts)
