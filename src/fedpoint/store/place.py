"""A folder that is worked in: through its descriptor where the system has such, else by its name."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedpoint.core.system import FOLDERS, NO_LINK, flags


@dataclass(frozen=True)
class WorkFolder:
    """What is done in it is done there, whatever its name leads to by then.

    number: its descriptor; None where the system has none for folders, and what is done is done by its name.
    """

    path: Path
    number: int | None = None

    def _at(self, name: str) -> str:
        return name if self.number is not None else str(self.path / name)

    def stat(self, name: str, links: bool = True) -> os.stat_result:
        return os.stat(self._at(name), dir_fd=self.number, follow_symlinks=links)

    def open(self, name: str, wanted: int, mode: int = 0o666) -> int:
        """The number of a file of the folder, opened; not through a link."""
        if not NO_LINK:
            refuse_link(self.path / name)
        wanted |= NO_LINK | flags("O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
        return os.open(self._at(name), wanted, mode, dir_fd=self.number)

    def replace(self, old: str, new: str) -> None:
        os.replace(self._at(old), self._at(new), src_dir_fd=self.number, dst_dir_fd=self.number)

    def unlink(self, name: str) -> None:
        os.unlink(self._at(name), dir_fd=self.number)

    def names(self) -> list[str]:
        return os.listdir(self.path if self.number is None else self.number)

    def sync(self) -> None:
        """What was created, renamed or removed in it is on disk, where the system can be asked for that."""
        if self.number is not None:
            os.fsync(self.number)


@contextlib.contextmanager
def held(folder: Path, links: bool = True) -> Iterator[WorkFolder]:
    """A folder to work in.

    links: the name may be one, as where a user gives it. Inside a run folder, which may come from anybody, none is.
    """
    if not FOLDERS:
        if not links:
            refuse_link(folder)
        yield WorkFolder(folder)
        return
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if links else NO_LINK))
    try:
        yield WorkFolder(folder, number)
    finally:
        os.close(number)


def refuse_link(path: Path) -> None:
    """What O_NOFOLLOW does, where there is no such flag."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
