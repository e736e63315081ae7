"""Rows that do not fit into memory: in a file that is mapped, the same for everybody until somebody writes one.

What a row was when it was last kept is never written over, so that whoever is killed goes on from there: a row is
written to a place that nobody counts on, and an index says which place is whose.
"""

from __future__ import annotations

import errno
import os
import tempfile
import weakref
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.files import check_regular
from fedpoint.core.memory_limits import in_bytes
from fedpoint.core.system import NO_LINK

PAGE = 4096  # rows begin on pages
POINTS = 3  # in time, at which rows are kept: of the last two commits of a folder, and of the one being written


class Index(NamedTuple):
    """Where everybody's rows are, at some point in time.

    Attributes:
        place: (n,) the place of a row in the file; -1: it was never written.
        check: (n,) the CRC-32 of what stands there.
    """

    place: np.ndarray
    check: np.ndarray

    def copy(self) -> Index:
        return Index(self.place.copy(), self.check.copy())


class RowFile:
    """Rows of arrays, one for each of n.

    Args:
        first: what a row is before anybody writes it: its arrays.
        count: n.

    >>> rows = RowFile([np.zeros(2)], 1000)
    >>> rows.write(np.array([7]), [np.ones((1, 2))])
    >>> rows.read(np.array([6, 7]))[0].tolist(), rows.places
    ([[0.0, 0.0], [1.0, 1.0]], 1)
    """

    def __init__(self, first: Sequence[np.ndarray], count: int) -> None:
        self.first = [np.ascontiguousarray(a) for a in first]
        self.bytes = sum(a.nbytes for a in self.first)
        self.stride = -(-self.bytes // PAGE) * PAGE
        self.index = Index(np.full(count, -1, np.int64), np.zeros(count, np.uint32))
        self.places = 0  # how many the file has
        self._free: list[int] = []
        self._fresh = np.zeros(0, bool)  # places written since rows were kept last: they may be written over
        self._kept: list[Index] = []
        self._mark = self.index.copy()
        self._path: Path | None = None
        self._file: BinaryIO | None = None

    @property
    def where(self) -> str:
        return "a temporary file" if self._path is None else str(self._path)

    def place_at(self, path: Path) -> None:
        """Have the file there, before the first row is written. It may hold the rows of an index that is restored."""
        self._path = path

    def _open(self, writing: bool) -> BinaryIO:
        if self._file is None or (writing and not self._file.writable()):
            self.close()
            try:
                self._file = self._opened(writing)
                weakref.finalize(self, self._file.close)
            except OSError as error:
                raise FedpointError(f"cannot open {self.where}, which holds memories: {error.strerror}") from error
        return self._file

    def _opened(self, writing: bool) -> BinaryIO:
        if self._path is None:
            return cast(BinaryIO, tempfile.TemporaryFile(prefix="fedpoint-memories-"))  # gone with the process
        flags = (os.O_RDWR | os.O_CREAT if writing else os.O_RDONLY) | NO_LINK
        own = os.open(self._path, flags, 0o666)
        check_regular(self._path, os.fstat(own))
        return os.fdopen(own, "r+b" if writing else "rb")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def read(self, who: np.ndarray) -> list[np.ndarray]:
        """The rows of these, each array (len(who), ...)."""
        found = [np.empty((len(who), *a.shape), a.dtype) for a in self.first]
        written = self.index.place[who] >= 0
        for out, a in zip(found, self.first, strict=True):
            out[~written] = a
        if not written.any() or not self.bytes:
            return found
        file, places = self._open(writing=False), self.index.place[who]
        if os.fstat(file.fileno()).st_size < (int(places.max()) + 1) * self.stride:
            raise FedpointError(self._damaged(int(who[places.argmax()])))
        table = np.memmap(file, np.uint8, "r", shape=(int(places.max()) + 1, self.stride))  # unmapped when it is left
        for i in np.flatnonzero(written):
            row = table[places[i], : self.bytes]
            if zlib.crc32(row.data) != self.index.check[who[i]]:
                raise FedpointError(self._damaged(int(who[i])))
            begin = 0
            for out, a in zip(found, self.first, strict=True):
                out[i] = row[begin : begin + a.nbytes].view(a.dtype).reshape(a.shape)
                begin += a.nbytes
        return found

    def _damaged(self, agent: int) -> str:
        return (
            f"what agent {agent} remembers is damaged or missing in {self.where}: restore it from a copy, or start the "
            "run again; if another process is writing it, wait for that"
        )

    def write(self, who: np.ndarray, rows: Sequence[np.ndarray]) -> None:
        """Write the rows of these, all different."""
        if not self.bytes:
            return
        file = self._open(writing=True)
        try:  # not into the map: a full disk would end the process there
            for i, k in enumerate(who):
                row = np.concatenate([np.ascontiguousarray(a[i]).reshape(-1).view(np.uint8) for a in rows])
                place = self._place_for(int(k))
                file.seek(place * self.stride)
                file.write(row.data)
                file.write(bytes(self.stride - self.bytes))
                self.index.place[k], self.index.check[k] = place, zlib.crc32(row.data)
            file.flush()
        except OSError as error:
            hint = f"; a run needs up to {in_bytes(self.most)} there" if error.errno == errno.ENOSPC else ""
            raise FedpointError(f"cannot write memories to {self.where}: {error.strerror}{hint}") from error

    @property
    def most(self) -> int:
        """Bytes of a file in which all have written, and those that were kept are others."""
        return 2 * len(self.index.place) * self.stride

    def _place_for(self, k: int) -> int:
        """Where a row is written: over the last one if nobody counts on that, else where nobody does."""
        place = int(self.index.place[k])
        if place >= 0 and self._fresh[place]:
            return place
        if self._free:
            place = self._free.pop()
        else:
            place, self.places = self.places, self.places + 1
            if self.places > len(self._fresh):
                self._fresh = np.pad(self._fresh, (0, len(self._fresh) + 64))
        self._fresh[place] = True
        return place

    def keep(self) -> Index:
        """Rows as they are now, on disk: they can be returned to until rows were kept three times more."""
        if self._file is not None and self._file.writable():
            self._file.flush()
            os.fsync(self._file.fileno())
        self._kept = [*self._kept, self.index.copy()][-POINTS:]
        self._count()
        return self._kept[-1]

    def mark(self) -> Index:
        """Rows as they are now, until there is another mark: not on disk for good."""
        self._mark = self.index.copy()
        self._count()
        return self._mark

    def restore(self, index: Index) -> None:
        """Rows as an earlier process kept them."""
        self._kept = [index.copy()]
        self.back(index)

    def back(self, index: Index) -> None:
        """Rows as they were when they were kept or marked."""
        if len(index.place) != len(self.index.place):
            raise FedpointError("the saved index of memories belongs to another number of agents")
        self.places = max(self.places, int(index.place.max(initial=-1)) + 1)
        self._fresh = np.pad(self._fresh, (0, max(0, self.places - len(self._fresh))))
        self.index, self._mark = index.copy(), index.copy()
        self._count()

    def _count(self) -> None:
        """Which places nobody counts on."""
        taken = np.zeros(self.places, bool)
        for one in (self.index, self._mark, *self._kept):
            taken[one.place[one.place >= 0]] = True
        self._free = np.flatnonzero(~taken)[::-1].tolist()
        self._fresh[:] = False
