"""Every step that a save makes on disk, with a look at it: what would be there if the process died now?"""

import contextlib
import io
import os
from pathlib import Path
from unittest import mock

from fedpoint.store import disk

CALLS = ("fsync", "replace", "rename", "unlink", "ftruncate")


class _Halting(io.BufferedWriter):
    """A file of which half of every write is on disk when `look` is called."""

    def __init__(self, path, mode, look, opener=None):
        super().__init__(io.FileIO(path, mode, opener=opener))
        self._look = look

    def write(self, data):
        data = memoryview(data).cast("B")
        done = super().write(data[: len(data) // 2])
        self.flush()
        self._look()
        return done + super().write(data[done:])


@contextlib.contextmanager
def every_step(look, synced=lambda fd: None):
    """Call `look()` before each step of `store/disk` and in the middle of each write, `synced(fd)` after a sync."""

    def before(real):
        def call(*args, **kwargs):
            look()
            result = real(*args, **kwargs)
            if real is fsync:
                synced(*args)
            return result

        return call

    fsync = os.fsync

    def opening(path, mode="r", *args, **kwargs):
        writes = mode in ("wb", "ab", "xb")
        return _Halting(path, mode, look, **kwargs) if writes else open(path, mode, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        for name in CALLS:
            stack.enter_context(mock.patch.object(os, name, before(getattr(os, name))))
        stack.enter_context(mock.patch.object(disk, "open", opening, create=True))
        yield


class Photographer:
    """Copies of a folder as a death would leave it; one for each way it looks to whoever opens it again.

    power: as a power cut would leave it, which also takes what was written and not yet synced.
    """

    def __init__(self, folder, album, power=False):
        self.folder, self.album, self.power = Path(folder), Path(album), power
        self.seen, self.steps, self._busy = set(), 0, False
        self._synced = {}  # inode -> bytes on disk

    def look(self):
        if self._busy:  # to write a photograph is a step too
            return
        self._busy, self.steps = True, self.steps + 1
        found = {
            path.relative_to(self.folder): self._content(path) for path in self.folder.rglob("*") if path.is_file()
        }
        visible = frozenset((path, data) for path, data in found.items() if path.suffix != ".tmp")
        if found and visible not in self.seen:
            self.seen.add(visible)
            for name in ("checkpoints", "records"):
                (self.album / str(self.steps) / name).mkdir(parents=True)
            for path, data in found.items():
                (self.album / str(self.steps) / path).write_bytes(data)
        self._busy = False

    def synced(self, fd):
        status = os.fstat(fd)
        self._synced[status.st_ino] = status.st_size

    def _content(self, path):
        data = path.read_bytes()
        return data[: self._synced.get(path.stat().st_ino, 0)] if self.power and path.name != "lock" else data

    def photographs(self):
        return sorted(self.album.iterdir(), key=lambda path: int(path.name))
