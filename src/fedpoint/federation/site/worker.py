"""Where is the work done at a site? In a process of its own, which holds data and compiled programs between orders.

Messages over a connection of multiprocessing. A worker that dies, or takes longer than the deadline, is one order
without an answer; the next order starts another worker, which remembers from its files.
"""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a worker that cannot start should not have loaded much
    from fedpoint.store.disk import Lock

LONGEST = 1 << 33  # bytes of a message, at most
START = 300.0  # seconds for a worker to be there


class Worker:
    """The parent's end. `folder` is that of a study in a site's kit."""

    def __init__(self, folder: Path, deadline: float):
        self.folder, self.deadline = folder, deadline
        self.process: subprocess.Popen | None = None
        self.line: Connection | None = None
        self.ready = False

    def start(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        self.close()
        self.line, theirs = Pipe()
        with theirs, (self.folder / "site.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedpoint.federation.site.worker", str(self.folder), str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        (self.folder / "worker.pid").write_text(str(self.process.pid))

    def ask(self, order: bytes) -> bytes:
        """The answer of the worker; OSError when it is gone or too slow, and it is ended then."""
        self.start()
        try:
            if not self.ready:  # starting does not count: a worker that is ended while it starts would never be there
                self._exchange(None, START)
                self.ready = True
            return self._exchange(order, self.deadline)
        except OSError:
            self.close()
            raise

    def _exchange(self, order: bytes | None, seconds: float) -> bytes:
        """Send an order, and hear what comes next. The worker is ended when time is up, also in the middle of a
        message, whose rest would be waited for without end."""
        assert self.line is not None and self.process is not None
        late = threading.Event()
        worker = self.process

        def end() -> None:
            late.set()
            worker.kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            if order is not None:
                self.line.send_bytes(order)
            return self.line.recv_bytes(LONGEST)
        except (EOFError, OSError) as error:
            if late.is_set():
                raise TimeoutError("no answer within the deadline") from None
            if isinstance(error, EOFError | ConnectionError):
                raise BrokenPipeError("the other end is gone") from None
            raise
        finally:
            timer.cancel()

    def give_up(self) -> None:
        """End an order at hand: whoever waits for its answer gets an OSError."""
        process = self.process
        if process is not None:
            process.kill()

    def close(self) -> None:
        if self.line is not None:
            with contextlib.suppress(OSError):
                self.line.close()
        self.line = None
        self.ready = False
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


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


def main(folder: str, end: str) -> None:
    """The worker's end: orders until the connection is closed."""
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
    line = Connection(int(end))
    line.send_bytes(b"ready")
    while True:
        try:
            order = line.recv_bytes(LONGEST)
        except (EOFError, ConnectionError):
            lock.close()
            return
        line.send_bytes(site.answer(order))


if __name__ == "__main__":
    main(*sys.argv[1:])
