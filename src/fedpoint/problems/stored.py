"""Rows that are not held in memory: a round reads those that its agents use, from wherever they are."""

from __future__ import annotations

import hashlib
import mmap
from abc import ABC, abstractmethod
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import shown
from fedpoint.core.numbers import counted
from fedpoint.core.own_code import calling, is_array
from fedpoint.core.types import Data, Tree
from fedpoint.problems.base import check_finite
from fedpoint.problems.callbacks import call_back

SAMPLE = 256  # rows by which data are known again


class StoredRows(ABC):
    """Rows by number, read when a round uses them. Subclass it for a format of your own.

    `fp.data.on_disk` makes them of files and data sets; arrays of `np.load(..., mmap_mode="r")` are taken as they are.

    Attributes:
        count: how many there are.
        groups: (count,) whose row each is, where the source says it, else None.

    Arguments of methods:
        at: (n,) numbers of rows, from 0 on, in any order and more than once.
    """

    count: int
    groups: np.ndarray | None = None

    @abstractmethod
    def read(self, at: np.ndarray) -> Data:
        """These rows: a tree of arrays that lead with them, always built alike."""

    def __len__(self) -> int:
        return self.count

    def checked(self, at: np.ndarray) -> Data:
        """The same, without NaN and of one kind."""
        with calling(f"{type(self).__name__}.read"):
            rows = self.read(at)
        for i, leaf in enumerate(jax.tree.leaves(rows)):
            if not is_array(leaf) or np.shape(leaf)[:1] != at.shape:
                raise FedpointError(
                    f"{type(self).__name__}.read must return arrays that lead with {counted(len(at), 'row')}; array "
                    f"{i} is {shown(leaf)}"
                )
            if not np.issubdtype(leaf.dtype, np.number) and leaf.dtype != bool:
                raise FedpointError(f"array {i} of the rows holds {leaf.dtype}, not numbers")
            if not np.isfinite(leaf).all():
                bad = int(np.isfinite(leaf.reshape(len(leaf), -1)).all(1).argmin())
                check_finite(f"row {at[bad]} (array {i})", leaf[bad])
        return rows

    def in_program(self, numbers: Array) -> Data:
        """What a compiled program gets of these rows.

        Args:
            numbers: of the rows; with any axes.
        """
        one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), self.checked(np.zeros(1, np.int64)))
        like = jax.tree.map(lambda a: jax.ShapeDtypeStruct((*numbers.shape, *a.shape), a.dtype), one)

        def read(numbers: Array) -> Tree:
            places = np.asarray(numbers)
            rows = self.checked(places.reshape(-1).astype(np.int64))
            return jax.tree.map(lambda a, b: self._like(a, b).reshape(*places.shape, *b.shape), rows, one)

        return call_back(read, like, numbers, batched=True)

    def _like(self, found: np.ndarray, one: jax.ShapeDtypeStruct) -> np.ndarray:
        if found.shape[1:] != one.shape or found.dtype != one.dtype:
            raise FedpointError(
                f"{type(self).__name__}: rows must be alike; the first is {one.dtype}{list(one.shape)}, and another "
                f"{found.dtype}{list(found.shape[1:])}"
            )
        return found

    def fingerprint(self) -> np.ndarray:
        """SHA-256 of the number of rows and of some of them, from the first to the last."""
        some = np.unique(np.linspace(0, self.count - 1, SAMPLE).round().astype(np.int64))
        sha = hashlib.sha256(f"{self.count} rows;".encode())
        for leaf in jax.tree.leaves(self.checked(some)):
            sha.update(f"{leaf.dtype} {leaf.shape};".encode())
            sha.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
        return np.frombuffer(sha.digest(), np.uint8)


class Place(NamedTuple):
    """Where an array is in a file, which is mapped for each use: pages that stay mapped count as memory."""

    path: str
    dtype: np.dtype
    offset: int
    shape: tuple[int, ...]

    def take(self, at: np.ndarray) -> np.ndarray:
        try:
            table = np.memmap(self.path, self.dtype, "r", self.offset, self.shape)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise FedpointError(f"the rows in {self.path} can no longer be read: {reason}") from None
        return np.asarray(table[at])


def place_of(leaf: Data) -> Place | None:
    """Where an array that is mapped from a file is in it; None where it is not, or not one piece of it."""
    if not isinstance(leaf, np.memmap) or leaf.filename is None or not leaf.flags.c_contiguous:
        return None
    base: Tree = leaf
    while isinstance(base.base, np.ndarray):  # a view tells the offset of what it is a view of
        base = base.base
    if not isinstance(base, np.memmap) or not isinstance(base.base, mmap.mmap):
        return None
    begin = leaf.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return Place(str(Path(leaf.filename).resolve()), leaf.dtype, base.offset + begin, leaf.shape)


def row_count(arrays: Tree) -> int:
    """How many rows arrays hold that lead with them."""
    leaves = jax.tree.leaves(arrays)
    if not leaves:
        raise FedpointError("data holds no array")
    for i, leaf in enumerate(leaves):
        if not is_array(leaf) or not np.ndim(leaf):
            raise FedpointError(f"data must be arrays with one row a sample; array {i} is {shown(leaf)}")
    rows = len(leaves[0])
    for i, leaf in enumerate(leaves):
        if len(leaf) != rows:
            raise FedpointError(f"data: array {i} has shape {np.shape(leaf)}, but array 0 has {counted(rows, 'row')}")
    return rows


class MappedRows(StoredRows):
    """A tree of arrays, of which some are mapped from files.

    Args:
        arrays: they lead with the rows.
    """

    def __init__(self, arrays: Tree) -> None:
        self.count = row_count(arrays)
        leaves, self._tree = jax.tree.flatten(arrays)
        self._leaves = [place_of(leaf) or np.asarray(leaf) for leaf in leaves]

    def read(self, at: np.ndarray) -> Data:
        return jax.tree.unflatten(
            self._tree, [leaf.take(at) if isinstance(leaf, Place) else leaf[at] for leaf in self._leaves]
        )


def stored(data: Data) -> StoredRows | None:
    """What data are read from as they are used; None: they are in memory."""
    if isinstance(data, StoredRows):
        return data
    return MappedRows(data) if any(place_of(leaf) is not None for leaf in jax.tree.leaves(data)) else None


def whose(source: StoredRows | None, rows: int) -> np.ndarray:
    """The agents of rows, where nobody says another thing."""
    return np.zeros(rows, int) if source is None or source.groups is None else source.groups
