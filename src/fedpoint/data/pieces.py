"""Where do a table's rows come from? Files or columns in memory, and which columns of them are read."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.kinds import fits
from fedpoint.core.kinds import shown as value_shown
from fedpoint.core.numbers import counted
from fedpoint.data.column import Column
from fedpoint.data.columns import BadTable, column_of, header_of, is_frame, not_values, read_columns, shown

if TYPE_CHECKING:
    from pandas import DataFrame

Columns: TypeAlias = "Mapping[str, ArrayLike] | DataFrame"
Paths: TypeAlias = str | os.PathLike | Sequence[str | os.PathLike]
Source: TypeAlias = "Paths | Columns"


@dataclass(frozen=True)
class Piece:
    """A file, or columns in memory."""

    name: str
    path: Path | None
    columns: Columns = field(default_factory=dict)
    separator: str = ","

    @property
    def where(self) -> str:
        return "the table" if self.path is None else shown(self.path)

    def header(self) -> list[str]:
        return [str(name) for name in self.columns] if self.path is None else header_of(self.path, self.separator)

    def read(
        self, wanted: Sequence[str], words: Sequence[str] = (), names: Sequence[str] = ()
    ) -> tuple[dict[str, Column], list[str]]:
        """These columns, and what is wrong with those that are not among them; words and names: see `read_columns`."""
        if self.path is not None:
            return read_columns(self.path, wanted, words, names, self.separator)
        made: dict[str, Column] = {}
        wrong: list[str] = []
        for name in self.columns:
            if str(name) in wanted:
                column = column_of(str(name), self.columns[name], str(name) in (*words, *names))
                wrong += [column] if isinstance(column, str) else []
                made |= {} if isinstance(column, str) else {str(name): column}
        if len({len(column.values) for column in made.values()}) > 1:
            raise FedpointError("the columns have different lengths")
        return made, wrong


def is_pattern(source: Source) -> bool:
    return isinstance(source, str) and glob.has_magic(source) and not os.path.exists(source)


def pieces_of(source: Source, separator: str) -> list[Piece]:
    if isinstance(source, str | os.PathLike) and not is_pattern(source):
        return [Piece(Path(source).stem, Path(source), separator=separator)]
    if isinstance(source, Mapping) or is_frame(source):
        return [Piece("", None, source)]
    return [Piece(path.stem, path, separator=separator) for path in files_of(source)]


def files_of(source: Paths) -> list[Path]:
    """The files that a pattern or a list of paths and patterns names, sorted by their names."""
    given = [source] if isinstance(source, str | os.PathLike) else source
    if not fits(given, Sequence[str | os.PathLike]):
        raise FedpointError(f"a table must be files, columns by name or a data frame; got {value_shown(source)}")
    paths: list[Path] = []
    for one in given:
        found = sorted(glob.glob(str(one), recursive=True)) if is_pattern(one) else [str(one)]
        if not found:
            raise BadTable([("files", f"no file is called {shown(one)}")])
        paths += [Path(path) for path in found if not os.path.isdir(path) or not is_pattern(one)]
    if not paths:
        raise BadTable([("files", "no file is given")])
    return sorted(paths, key=lambda path: (path.stem, path))


def check_distinct(pieces: list[Piece]) -> None:
    """One file per agent: no two of one name."""
    for one, other in itertools.pairwise(pieces):
        if one.name == other.name:
            raise BadTable([("files", f"{one.where} and {other.where} would be the same agent, {one.name}")])


class Asked(NamedTuple):
    """Columns by their use, as they were named."""

    target: str | None
    agent: str | None
    features: Sequence[str] | None
    leave_out: Sequence[str]
    categorical: Sequence[str]


@dataclass(frozen=True)
class Chosen:
    """Columns by their use, all of them there."""

    target: str | None
    agent: str | None
    features: list[str]
    categorical: list[str]

    @property
    def names(self) -> list[str]:
        return [*self.features, *(name for name in (self.target, self.agent) if name is not None)]


def choose(pieces: list[Piece], asked: Asked) -> Chosen:
    """Which columns are read; all that is wrong with headers and names in one error."""
    wrong: list[tuple[str, str]] = []
    headers: list[tuple[Piece, list[str]]] = []
    for piece in pieces:
        try:
            headers.append((piece, piece.header()))
        except FedpointError as error:
            wrong.append(("file", str(error)))
    if not headers:
        raise BadTable(wrong)
    first, header = headers[0]
    for piece, other in headers[1:]:
        if differ := _difference(header, other):
            wrong.append(("file", f"{piece.where} has other columns than {first.where}: {differ}"))
    for key, names in asked._asdict().items():
        unknown = [name for name in ([names] if isinstance(names, str) else names or ()) if name not in header]
        wrong += [(key, f"{first.where} has no column {name!r}: {_guess(name, header)}") for name in unknown]
    reserved = [name for name in (asked.target, asked.agent) if name is not None]
    if asked.agent is not None and asked.target == asked.agent:
        wrong.append(("agent", f"{asked.agent!r} cannot be both the target and the agent"))
    features = [n for n in (header if asked.features is None else asked.features) if n not in reserved]
    features = [name for name in dict.fromkeys(features) if name not in asked.leave_out]
    if not features and not wrong:
        wrong.append(
            ("features", f"{first.where} has no column besides {' and '.join(map(repr, reserved))} to learn from")
        )
    if wrong:
        raise BadTable(wrong)
    return Chosen(asked.target, asked.agent, features, list(asked.categorical))


def _guess(name: str, header: list[str], most: int = 12) -> str:
    """`nearest`, for tables of hundreds of columns too."""
    text = nearest(name, header)
    other = next((s for s in ";\t|" if len(header) == 1 and s in header[0]), None)
    if other is not None:
        return f"its header is a single word, {header[0]!r}: set separator = {other!r}"
    if len(header) <= most:
        return text
    return f"{text.split('Known:')[0]}There are {len(header)}: {', '.join(header[:most])}, ..."


def _difference(header: list[str], other: list[str]) -> str:
    lacks = [repr(name) for name in header if name not in other]
    more = [repr(name) for name in other if name not in header]
    parts = [f"no {', '.join(lacks[:4])}"] if lacks else []
    return ", ".join(parts + ([f"also {', '.join(more[:4])}"] if more else []))


def gather(pieces: list[Piece], chosen: Chosen, missing: str) -> tuple[dict[str, Column], Column, list[str]]:
    """The columns of all pieces, the agents of their rows, and notes; every bad cell in one error."""
    wrong: list[tuple[str, str]] = []
    parts: list[dict[str, Column]] = []
    for piece in pieces:
        try:
            columns, bad = _checked(piece, chosen, missing)
        except BadTable as error:
            wrong += error.mistakes
        except FedpointError as error:
            wrong.append(("file", str(error)))
        else:
            parts.append(columns)
            wrong += [("file", f"{piece.where}: {said}") for said in bad]
    if wrong:
        raise BadTable(wrong)
    counts = [len(part[chosen.names[0]].values) for part in parts]
    columns = {name: joined([part.pop(name) for part in parts], name, pieces) for name in chosen.names}
    own = Column(np.repeat(np.arange(len(pieces), dtype=np.int32), counts), [piece.name for piece in pieces])
    whose = own if chosen.agent is None else columns[chosen.agent]
    notes: list[str] = []
    if missing == "drop":
        keep = ~np.any([column.missing for column in columns.values()], axis=0)
        if not keep.any():
            raise BadTable([("missing", "every row has a missing value: none is left")])
        if not keep.all():
            columns = {name: column.take(keep) for name, column in columns.items()}
            notes.append(f"{counted(int((~keep).sum()), 'row')} with missing values dropped")
            gone = np.setdiff1d(whose.values, np.append(whose.values[keep], -1))
            lost = [(whose.words or [])[code] for code in gone]
            notes += [f"agents without any row left: {', '.join(lost)}"] if lost else []
            whose = whose.take(keep)
    if chosen.agent is not None:
        columns.pop(chosen.agent)
    return columns, whose, notes


def _checked(piece: Piece, chosen: Chosen, missing: str) -> tuple[dict[str, Column], list[str]]:
    """The columns of a piece, and what is wrong with them."""
    columns, wrong = piece.read(chosen.names, chosen.categorical, [] if chosen.agent is None else [chosen.agent])
    never = (chosen.target, chosen.agent)  # not filled in
    for name, column in columns.items():
        if missing == "refuse" or (missing == "mean" and name in never):
            advice = "fill it in, or set missing = " + ('"drop"' if name in never else '"mean" or "drop"')
            gaps = not_values(piece.path, {name: column}, missing=True, separator=piece.separator)
            wrong += [f"{said}: {advice}" for said in gaps]
    return columns, wrong + not_values(piece.path, columns, missing=False, separator=piece.separator)


def joined(parts: list[Column], name: str, pieces: list[Piece]) -> Column:
    """Columns of several files as one."""
    if len(parts) == 1:
        return parts[0]
    texts = [p for p in parts if p.words is not None]
    if not texts:
        return Column(np.concatenate([p.values for p in parts]))
    words = sorted({word for part in texts for word in part.words or []})
    known = {word: i for i, word in enumerate(words)}
    codes = []
    for part, piece in zip(parts, pieces, strict=True):
        if part.words is None:
            if not part.missing.all():
                other = next(p.where for c, p in zip(parts, pieces, strict=True) if c.words)
                raise BadTable([("file", f"column {name!r} holds numbers in {piece.where}, but words in {other}")])
            codes.append(np.full(len(part.values), -1, np.int32))
        else:
            own = np.array([*(known[word] for word in part.words), -1], np.int32)
            codes.append(own[part.values])
    return Column(np.concatenate(codes), words)
