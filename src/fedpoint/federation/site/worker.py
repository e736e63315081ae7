"""Where is the work done at a site? In a process of its own, which holds data and compiled programs between orders.

Frames over two pipes: 8 bytes of length, then the message. A worker that dies, or takes longer than the deadline, is
one order without an answer; the next order starts another worker, which remembers from its files.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a worker that cannot start should not have loaded much
    from fedpoint.store.disk import Lock

FRAME = 1 << 33  # bytes of a message, at most
START = 300.0  # seconds for a worker to be there


class Worker:
    """The parent's end. `folder` is that of a study in a site's kit."""

    def __init__(self, folder: Path, deadline: float):
        self.folder, self.deadline = folder, deadline
        self.process: subprocess.Popen | None = None
        self.down = self.up = -1
        self.ready = False

    def start(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        self.close()
        theirs, self.down = os.pipe()
        self.up, back = os.pipe()
        with (self.folder / "site.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedpoint.federation.site.worker", str(self.folder), str(theirs), str(back)],
                pass_fds=(theirs, back),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        os.close(theirs)
        os.close(back)
        (self.folder / "worker.pid").write_text(str(self.process.pid))

    def ask(self, order: bytes) -> bytes:
        """The answer of the worker; OSError when it is gone or too slow, and it is ended then."""
        self.start()
        try:
            if not self.ready:  # starting does not count: a worker that is ended while it starts would never be there
                read_frame(self.up, time.monotonic() + START)
                self.ready = True
            end = time.monotonic() + self.deadline
            write_frame(self.down, order)
            return read_frame(self.up, end)
        except OSError:
            self.close()
            raise

    def give_up(self) -> None:
        """End an order at hand: whoever waits for its answer gets an OSError."""
        process = self.process
        if process is not None:
            process.kill()

    def close(self) -> None:
        for fd in (self.down, self.up):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self.down = self.up = -1
        self.ready = False
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def write_frame(fd: int, data: bytes) -> None:
    view = memoryview(struct.pack("<Q", len(data)) + data)
    while view:
        view = view[os.write(fd, view) :]


def read_frame(fd: int, end: float | None = None) -> bytes:
    (length,) = struct.unpack("<Q", _read(fd, 8, end))
    if length > FRAME:
        raise OSError("a frame that is too long")
    return _read(fd, length, end)


def _read(fd: int, count: int, end: float | None) -> bytes:
    parts: list[bytes] = []
    while count:
        if end is not None and not select.select([fd], [], [], max(0.0, end - time.monotonic()))[0]:
            raise TimeoutError("no answer within the deadline")
        part = os.read(fd, min(count, 1 << 20))
        if not part:
            raise BrokenPipeError("the other end is gone")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _alone(folder: Path) -> Lock:
    """The lock of a site's records; an older worker ends when its parent has."""
    from fedpoint.store.disk import Busy, take_lock

    end = time.monotonic() + START / 2
    while True:
        try:
            return take_lock(folder)
        except Busy:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def main(folder: str, down: str, up: str) -> None:
    """The worker's end: orders until the pipe is closed."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    part = Path(folder)
    consent = json.loads((part / "consent.json").read_text())
    from fedpoint.data.floor import Floor  # once there is something to do: they load JAX
    from fedpoint.federation.secure.identity import kit_identity
    from fedpoint.federation.site.site import Site
    from fedpoint.federation.study import read

    study = read(part / "study.toml")
    if consent["study"] != study.fingerprint:
        raise SystemExit("consent was given to another study")
    (part / "records").mkdir(exist_ok=True)
    lock = _alone(part / "records")  # two workers would write one memory, and what the other wrote last is read first
    identity = kit_identity(part.parents[1], consent["site"]) if study.terms.secure else None
    site = Site(study, consent["site"], part / "records", consent["data"], Floor(**consent["floor"]), identity)
    write_frame(int(up), b"ready")
    while True:
        try:
            order = read_frame(int(down))
        except BrokenPipeError:
            lock.close()
            return
        write_frame(int(up), site.answer(order))


if __name__ == "__main__":
    main(*sys.argv[1:])
