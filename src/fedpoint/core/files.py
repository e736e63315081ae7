"""Is it a file? A pipe, a device or a socket blocks whoever reads it, or never ends: refused before a byte is read."""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path

from fedpoint.core.errors import FedpointError
from fedpoint.core.memory_limits import in_bytes
from fedpoint.core.system import NO_LINK, READING

LONGEST = 1 << 28  # bytes of a file that is read as a whole
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link",
}


class NotAFile(FedpointError):
    """Something that is not a regular file stands where one is read or written."""


def check_regular(path: Path | str, status: os.stat_result) -> None:
    """Refuse what is not a regular file."""
    kind = KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is not None:
        raise NotAFile(f"{path} is {kind}, not a file: give a regular file")


def open_file(path: Path | str, links: bool = True) -> BufferedReader:
    """A regular file, opened for reading; an OSError where the system refuses. links: the name may be one."""
    if "\0" in os.fspath(path):
        raise NotAFile(f"{os.fspath(path)!r} holds a null character: no file has such a name")
    check_regular(path, os.stat(path, follow_symlinks=links))  # some devices act when they are opened
    file = os.fdopen(os.open(path, READING | (0 if links else NO_LINK)), "rb")
    try:
        status = os.fstat(file.fileno())
        check_regular(path, status)  # something else may have taken its name since
        if status.st_size == 0 and file.read(1):  # as those of /proc, some of which have no end
            raise NotAFile(f"{path} does not tell its length: copy it to a file on disk, and give that")
    except BaseException:
        file.close()
        raise
    return file


def read_file(path: Path | str, longest: int = LONGEST, links: bool = True) -> bytes:
    """The content of a regular file, as long as it was when it was opened."""
    with open_file(path, links) as file:
        length = os.fstat(file.fileno()).st_size
        if length > longest:
            raise FedpointError(f"{path} is {in_bytes(length)} long: at most {in_bytes(longest)} are read")
        return file.read(length)


def as_text(name: str) -> str:
    """A name, or a message with one, that can be written anywhere: bytes of it that are no UTF-8 are spelt out.

    >>> as_text(os.fsdecode(b"run-\\xff"))
    'run-\\\\udcff'
    """
    return name.encode("utf-8", "backslashreplace").decode()
