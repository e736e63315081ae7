"""Who looks after the processes of a job? Starts them, starts them again from the last checkpoint when one is lost,
ends them when one is stuck, and never leaves any behind.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TypeAlias

import numpy as np

from fedpoint.core.errors import Diverged, FedpointError, Recovered
from fedpoint.core.numbers import counted
from fedpoint.core.record import Record
from fedpoint.verbs.processes.job import JOINING, Job, Seat, UnnamedFile, Word, pack, unpack, work

Tell: TypeAlias = Callable[[Word, dict[str, np.ndarray]], None]  # progress: numbers, and arrays by name
SILENCE = 30.0  # seconds without a sign of life, after which a process counts as stuck
START = 180.0  # the same until the first sign: Python has to load everything
GRACE = 3.0  # seconds for the others to say what they have to, when one has ended
RESTARTS = 3  # without a new checkpoint in between
CLOSING = 30.0  # seconds for an interrupted job to put its last rounds on disk


class Processes(Record):
    """The processes that a run is split over.

    Args:
        count: how many.
        fast_reduce: sums are all-reduces: faster, and the same bits only with the same number of processes.
        coordinator: HOST:PORT of process 0, where processes are on several hosts; default: all are on this machine.
        process: this host's process, 0 to count - 1.
        bind: the address the coordinator listens on, process 0's; default: this machine only.
        watchdog: seconds without progress after which a job is ended.
        patience: seconds to wait for the processes of other hosts.
    """

    count: int
    fast_reduce: bool = False
    coordinator: str | None = None
    process: int | None = None
    bind: str = "127.0.0.1"
    watchdog: float = 600.0
    patience: float = 120.0

    def check(self) -> None:
        if self.count < 1:
            raise FedpointError(f"processes must be a whole number, at least 1; got {self.count!r}")
        if (self.coordinator is None) != (self.process is None):
            raise FedpointError("processes on several hosts need both the coordinator's address and their own number")
        if self.process is not None and not 0 <= self.process < self.count:
            raise FedpointError(f"process {self.process} of {self.count}: processes are numbered from 0 on")
        if self.coordinator is not None:
            host, _, port = self.coordinator.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise FedpointError(f"the coordinator's address must be HOST:PORT, got {self.coordinator!r}")
        if not (self.watchdog > 0 and self.patience > 0):
            raise FedpointError("watchdog and patience are seconds above 0")

    def summing(self, fast: bool) -> Processes:
        """The same with sums as a run was begun with.

        Args:
            fast: as `Processes` says.
        """
        return self.replace(fast_reduce=fast)

    @property
    def here(self) -> list[int]:
        """The processes that this machine starts."""
        return list(range(self.count)) if self.process is None else [self.process]

    @property
    def driver(self) -> bool:
        return 0 in self.here


def as_processes(value: int | Processes) -> Processes:
    return value if isinstance(value, Processes) else Processes(value)


def check_processes(given: Processes, agents: int) -> None:
    if given.count > agents:
        raise FedpointError(
            f"{counted(given.count, 'process')} for {counted(agents, 'agent')}: take at most one process for each agent"
        )
    if given.count > 64 and not given.fast_reduce:
        raise FedpointError(f"sums are made in 64 blocks, too few for {given.count} processes: use fast_reduce")


class Ended(FedpointError):
    """A job that was ended, with a checkpoint to go on from."""


class Lost(Exception):
    """A process ended that should not have."""


@dataclass
class Child:
    number: int
    process: BaseProcess
    line: Connection
    log: UnnamedFile
    doing: str = "starting"
    steps: int = -1
    heard: float = field(default_factory=time.monotonic)  # the last sign of life
    moved: float = field(default_factory=time.monotonic)  # the last thing it began
    end: Word | None = None

    def __str__(self) -> str:
        return f"process {self.number} (pid {self.process.pid})"


def supervise(job: Job, given: Processes, resume: str, tell: Tell = lambda word, arrays: None) -> None:
    """The job to its end. `resume` is the command that goes on with it, `tell` gets progress."""
    arrays = UnnamedFile()
    packed = pack(job, arrays)
    if job.given_up:  # from here on mapped
        vars(job.experiment.problem).update(vars(unpack(packed, arrays).experiment.problem))
    lost, before = 0, _checkpoint(job)
    while True:
        with _children(packed, arrays, given) as children:
            try:
                return _watch(children, job, given, resume, tell)
            except Lost as error:
                now = _checkpoint(job)
                lost, before = (0, now) if now != before else (lost + 1, before)
                if lost >= RESTARTS:
                    raise Ended(
                        f"{error}; {RESTARTS} times in a row without a new checkpoint. Go on from round "
                        f"{max(now, 0)} with: {resume}"
                    ) from None
                warnings.warn(f"{error}; going on from round {max(now, 0)}", Recovered, stacklevel=2)


def _checkpoint(job: Job) -> int:
    """The round of the last checkpoint, -1 before the first."""
    names = (job.place.path / "checkpoints").glob("*.npz")
    return max((int(path.stem) for path in names if path.stem.isdigit()), default=-1)


@contextlib.contextmanager
def _children(packed: bytes, arrays: UnnamedFile, given: Processes) -> Iterator[list[Child]]:
    """The processes of this machine; none is left afterwards."""
    address = given.coordinator or f"127.0.0.1:{_free_port()}"
    spawn = multiprocessing.get_context("spawn")
    children: list[Child] = []
    try:
        for number in given.here:
            seat = Seat(number, given.count, address, given.bind, given.patience)
            ours, theirs = spawn.Pipe(duplex=False)
            said = UnnamedFile()
            process = spawn.Process(target=work, args=(packed, arrays, seat, theirs, os.getpid(), said))
            process.start()
            theirs.close()
            children.append(Child(number, process, ours, said))
        yield children
    finally:
        for child in children:
            if child.end is not None:  # it leaves by itself, and tells process 0 first
                child.process.join(GRACE)
            if child.process.is_alive():
                child.process.kill()
        for child in children:
            child.process.join()
            child.line.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _watch(children: list[Child], job: Job, given: Processes, resume: str, tell: Tell) -> None:
    """Until the job has ended, well or not."""
    interrupted = ended = None
    silence = min(SILENCE, given.watchdog)
    while True:
        try:
            _listen(children, tell)
        except KeyboardInterrupt:
            if interrupted is not None or not given.driver:
                raise
            interrupted, driver = time.monotonic(), children[0].process.pid
            assert driver is not None  # it was started
            os.kill(driver, signal.SIGINT)
        now = time.monotonic()
        over = [child for child in children if child.end is not None or child.process.exitcode is not None]
        if len(over) == len(children) or (ended is not None and now - ended > GRACE):
            return _conclude(children, given)
        if over and ended is None:
            ended = now
        if interrupted is not None and now - interrupted > CLOSING:
            raise KeyboardInterrupt
        if ended is None:
            for child in children:
                if now - child.heard > (silence if child.steps >= 0 else START):
                    raise _stuck(child, now - child.heard, "has not answered", job, given, resume)
            if all(child.steps > 0 and now - child.moved > given.watchdog for child in children):
                last = min(children, key=lambda c: c.steps)
                raise _stuck(last, now - last.moved, "has made no progress", job, given, resume)


def _listen(children: list[Child], tell: Tell) -> None:
    """What processes say, for a moment."""
    said = multiprocessing.connection.wait([child.line for child in children if child.end is None], timeout=0.2)
    for child in [child for child in children if child.line in said]:
        try:
            word = json.loads(child.line.recv_bytes())
            arrays = _arrays(child.line.recv_bytes()) if word["is"] == "progress" else {}
        except (EOFError, OSError):
            child.process.join(GRACE)
            child.end = {"is": "gone"}
            continue
        child.heard = time.monotonic()
        if word["is"] == "beat":
            if word["steps"] != child.steps:
                child.moved = child.heard
            child.doing, child.steps = word["doing"], word["steps"]
        elif word["is"] == "progress":
            tell(word, arrays)
        else:
            child.end = word


def _arrays(packed: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
        return dict(arrays)


def _conclude(children: list[Child], given: Processes) -> None:
    """What the processes' ends say about the job."""
    for kind in ("diverged", "refused", "interrupted", "failed"):
        for child in children:
            end = child.end or {}
            if end.get("is") != kind:
                continue
            if kind == "diverged":
                raise Diverged(str(end["message"]), int(end["round"]))
            if kind == "refused":
                raise FedpointError(end["message"])
            if kind == "interrupted":
                raise KeyboardInterrupt
            raise RuntimeError(f"{child} failed:\n{end.get('message', '')}")
    if all((child.end or {}).get("is") == "finished" for child in children):
        return
    gone = [child for child in children if (child.end or {}).get("is") in (None, "gone")]
    for child in gone:
        if child.process.exitcode == 1 and child.doing == "starting" and child.steps < 0:
            said = child.log.bytes().tobytes().decode(errors="replace")
            raise FedpointError(
                "a process of the job ended before it began: in a script, call fp.run(processes=...) below "
                f'if __name__ == "__main__". {said[-2000:]}'
            )
    if given.process is not None and all(child.doing == JOINING for child in children):  # jax ends a process that waits
        raise FedpointError(
            f"not all of the {given.count} processes reached {given.coordinator} within {given.patience:g} s: "
            "start the others, each with its own number, and check the address"
        )
    culprit = min(gone or children, key=lambda c: 0 if (c.process.exitcode or 0) == -signal.SIGKILL else 1)
    code = culprit.process.exitcode
    how = f"was ended by signal {-code}" if code is not None and code < 0 else "lost the others"
    raise Lost(f"{culprit} of {given.count} {how} ({culprit.doing})")


def _stuck(child: Child, seconds: float, what: str, job: Job, given: Processes, resume: str) -> Ended:
    """The round, the process, and the command that goes on."""
    return Ended(
        f"stuck: {child} of {given.count} {what} for {seconds:.0f} s ({child.doing}). The job was ended; go on from "
        f"round {max(_checkpoint(job), 0)} with: {resume}"
    )
