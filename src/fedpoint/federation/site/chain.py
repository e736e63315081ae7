"""Was a record changed after it was written? Each line holds the hash of the line before; a small file holds the last.

audit.jsonl    one line for every order: `before` is the SHA-256 of the line before it
audit.head     how many lines there are, and the SHA-256 of the last one

A line is on disk before the head counts it, and the head before the answer leaves. So a crash leaves a record that is
one line ahead of its head, or ends in a torn line that the head does not count; nothing else is explained by one.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedpoint.core.errors import FedpointError
from fedpoint.core.files import open_file, read_file
from fedpoint.core.numbers import counted
from fedpoint.store.disk import append_line, canonical, cut, os_errors, overwrite, read_object, write_bytes

if TYPE_CHECKING:  # it loads JAX
    from fedpoint.core.types import Plain

LOG, HEAD = "audit.jsonl", "audit.head"
LONGEST = 1 << 26  # bytes of a line
SMALL = 128  # bytes of the head, whatever it counts: it is written in place
Entry = dict[str, "Plain"]
Hear = Callable[[Entry, str], None]  # of a line that is as it was written, and its hash


class Head(NamedTuple):
    """So many lines, and the SHA-256 of the last: of the study and the site, where there is none yet."""

    lines: int
    sha256: str


class Broken(FedpointError):
    """A record that is not as it was written. `line` is the first that is wrong, from 1."""

    def __init__(self, line: int, what: str):
        super().__init__(what)
        self.line = line


class Examined(NamedTuple):
    """A record that is as it was written. `ahead`: a crash kept its last line from the head; `torn`: bytes of a line
    that a crash cut short; `length`: bytes of the lines before it."""

    head: Head
    ahead: bool
    torn: int
    length: int


def origin(study: str, site: str) -> Head:
    """What the first line of a site's record follows."""
    return Head(0, hashlib.sha256(canonical({"study": study, "site": site})).hexdigest())


def examine(folder: Path, first: Head, hear: Hear = lambda entry, sha256: None) -> Examined:
    """Go through a record, line by line; `Broken` where it was changed. A record that was never begun is whole."""
    log, head = folder / LOG, _head(folder)
    found, length, torn, seal = first, 0, 0, first.sha256
    for line in _lines(log):
        if not line.endswith(b"\n"):
            torn = len(line)
            continue  # it is the last one, or the next is none
        if torn:
            raise Broken(found.lines + 1, f"line {found.lines + 1} was overwritten: its end is missing")
        found, length = _follow(found, line[:-1], hear), length + len(line)
        if head is not None and found.lines == head.lines:
            seal = found.sha256
    if head is None:
        if found.lines:
            raise Broken(found.lines, f"{HEAD} is missing: the last lines may be missing too, or changed")
        return Examined(first, False, torn, 0)
    return _against(head, seal, found, torn, length)


def _lines(log: Path) -> Iterator[bytes]:
    with os_errors(f"read {log}"), contextlib.suppress(FileNotFoundError), open_file(log, links=False) as file:
        while line := file.readline(LONGEST):
            yield line


def _head(folder: Path) -> Head | None:
    """What the small file says; None where there is none."""
    try:
        with os_errors(f"read {folder / HEAD}"), contextlib.suppress(FileNotFoundError):
            said = read_object(read_file(folder / HEAD, 1000, links=False))
            lines, sha256 = said["lines"], said["sha256"]
            if type(lines) is not int or lines < 0 or not isinstance(sha256, str):
                raise ValueError("no count and no hash")
            return Head(lines, sha256)
    except (ValueError, KeyError):
        raise Broken(0, f"{HEAD} is damaged: the last lines of the record may be missing, or changed") from None
    return None


def _follow(last: Head, line: bytes, hear: Hear) -> Head:
    """The next line, if it follows the last."""
    number = last.lines + 1
    try:
        entry = read_object(line)
    except ValueError:
        raise Broken(number, f"line {number} was overwritten: it is not a line of a record") from None
    if entry.get("before") != last.sha256:
        what = (
            f"line {number} does not follow line {last.lines}: line {last.lines} was changed, or a line was removed, "
            "added or moved here"
            if last.lines
            else "line 1 is not how this site's record of this study begins: the lines before it were removed, it was "
            "changed, or the record is another's"
        )
        raise Broken(number, what)
    found = Head(number, hashlib.sha256(line).hexdigest())
    hear(entry, found.sha256)
    return found


def _against(head: Head, seal: str, found: Head, torn: int, length: int) -> Examined:
    """What was found, held against what the head says."""
    missing, more = head.lines - found.lines, found.lines - head.lines
    if missing > 0:
        were = "were" if missing > 1 else "was"
        raise Broken(found.lines + 1, f"the last {counted(missing, 'line')} of {head.lines} {were} removed")
    if not head.lines and seal != head.sha256:
        raise Broken(0, f"{HEAD} is not that of this site's record of this study")
    if seal != head.sha256:
        raise Broken(head.lines, f"line {head.lines}, the last one that {HEAD} counts, was changed")
    if more > 1 or (more and torn):
        raise Broken(head.lines + 1, f"{counted(more, 'line')} stand at the end that {HEAD} does not count")
    return Examined(found, bool(more), torn, length)


def _small(head: Head) -> bytes:
    """What the small file holds; filled up at its beginning, so that an end that is missing is seen."""
    text = canonical(head._asdict())
    return text[:1] + text[1:].rjust(SMALL - 1)


def whole(folder: Path, first: Head) -> Examined:
    """A record to write on, or what to do about one that was changed."""
    try:
        return examine(folder, first)
    except Broken as error:
        raise FedpointError(
            f"{folder / LOG} was changed after it was written ({error}), so nothing more is written to it: put it and "
            f"{HEAD} aside, tell whoever leads the study, and start again"
        ) from error


class Chain:
    """A record that is written. Opened, it is examined once; a line costs nothing that depends on its length."""

    def __init__(self, folder: Path, first: Head):
        self.folder, self.first = folder, first
        self._last: Head | None = None
        self._open()

    def _open(self) -> Head:
        found, log = whole(self.folder, self.first), self.folder / LOG
        if not log.exists():
            log.touch()
        if found.torn:
            cut(log, found.length)
        write_bytes(self.folder / HEAD, _small(found.head))
        last = self._last = found.head
        if found.torn:
            last = self._append({"found": "torn", "bytes": found.torn})
        if found.ahead:
            last = self._append({"found": "ahead"})
        return last

    def append(self, entry: Entry) -> str:
        """Write a line; returns its hash once it is on disk, and counted."""
        if self._last is None:  # the last one failed: what is on disk decides
            self._open()
        return self._append(entry).sha256

    def _append(self, entry: Entry) -> Head:
        last, self._last = self._last, None
        assert last is not None
        when = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = canonical({**entry, "time": when, "before": last.sha256})
        append_line(self.folder / LOG, line)
        head = Head(last.lines + 1, hashlib.sha256(line).hexdigest())
        overwrite(self.folder / HEAD, _small(head))
        self._last = head
        return head
