"""What a process of a job does: it joins the others, takes its agents, and drives the run or follows.

A job comes from the process that started this one: its numbers in a file that is mapped into memory, of which every
process reads the rows of its own agents, the rest through the pipe that started it. Nothing that is read here was
written by others, and the file has no name: it is gone with the last process that has it open.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import mmap
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeAlias

import numpy as np

from fedpoint.core.errors import Diverged, FedpointError
from fedpoint.store.disk import os_errors

if TYPE_CHECKING:  # a new process first sees to its place, and then loads JAX
    from fedpoint.core.types import Data
    from fedpoint.engine.base import Progress, Stop
    from fedpoint.engine.cluster.session import ClusterSession, Known, ProcessGroup
    from fedpoint.experiment.experiment import Experiment
    from fedpoint.store.records import Place

Word: TypeAlias = dict[str, str | int | float]  # what a process says
Slot: TypeAlias = tuple[int, str, tuple[int, ...]]  # where an array lies in the file, its kind and its shape
MAPPED = 1 << 12  # bytes of an array, from which it goes through the file
ALIGNED = 64  # bytes: where an array may begin
PULSE = 0.5  # seconds between two signs of life
JOINING = "waiting for the others"
LINK = 60  # seconds after which a process that the coordinator hears nothing of counts as lost
PARTING = 10.0  # seconds that process 0, with which the coordinator goes, waits until all know why it leaves


@dataclass(frozen=True)
class RunGoal:
    """How far a run goes, and what is evaluated at its end."""

    rounds: int
    stop: Stop | None = None
    evaluate: Data = None


@dataclass(frozen=True)
class Job:
    """A run, checked, as `fp.run` would begin it."""

    experiment: Experiment  # with `record_every` chosen
    goal: RunGoal
    place: Place
    fast: bool
    digest: str  # of what all processes must agree on
    known: Known | None = None  # the driver's
    given_up: bool = False  # nobody else holds the problem: its arrays need not stay in memory
    models: bool = False  # progress is told with the current model


@dataclass(frozen=True)
class Seat:
    """A process's place in its job."""

    process: int
    processes: int
    coordinator: str  # HOST:PORT
    bind: str  # where the coordinator listens
    patience: float  # seconds to wait for the others at the start


class Descriptor(Protocol):
    """A file's number on its way to another process."""

    def detach(self) -> int: ...


class UnnamedFile:
    """A file without a name, which goes to processes as it is open here."""

    def __init__(self, number: int | None = None):
        if number is None:
            with os_errors("make a file for temporary data"), tempfile.TemporaryFile() as file:
                number = os.dup(file.fileno())
        self.number = number
        weakref.finalize(self, os.close, number)

    def __reduce__(self) -> tuple[Callable[[Descriptor], UnnamedFile], tuple[Descriptor]]:
        from multiprocessing.reduction import DupFd  # of POSIX only

        return _reopened, (DupFd(self.number),)

    def bytes(self) -> np.ndarray:
        """What is in it, mapped."""
        if not os.fstat(self.number).st_size:
            return np.zeros(0, np.uint8)
        return np.frombuffer(mmap.mmap(self.number, 0, access=mmap.ACCESS_READ), np.uint8)


def _reopened(handle: Descriptor) -> UnnamedFile:
    return UnnamedFile(handle.detach())


class _Pack(pickle.Pickler):
    """Arrays go into one file, one after the other; the rest into the stream."""

    def __init__(self, stream: io.BytesIO, file: BinaryIO):
        super().__init__(stream, protocol=5)
        self.file = file
        self.kept: dict[int, tuple[Slot, np.ndarray]] = {}

    def persistent_id(self, value: object) -> Slot | None:
        if not isinstance(value, np.ndarray) or value.nbytes < MAPPED or value.dtype.hasobject:
            return None
        if id(value) not in self.kept:
            place = self.file.seek(-(-self.file.tell() // ALIGNED) * ALIGNED)
            np.ascontiguousarray(value).tofile(self.file)
            self.kept[id(value)] = (place, value.dtype.str, value.shape), value  # held, so that the id stays its own
        return self.kept[id(value)][0]


class _Unpack(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, arrays: UnnamedFile):
        super().__init__(stream)
        self.bytes = arrays.bytes()

    def persistent_load(self, name: Slot) -> np.ndarray:
        place, dtype, shape = name
        return np.ndarray(shape, dtype, self.bytes, place)


def pack(job: Job, arrays: UnnamedFile) -> bytes:
    """The job for processes of this machine."""
    stream = io.BytesIO()
    try:
        where = f"put the agents' data into a file of {tempfile.gettempdir()}"
        with os_errors(where), os.fdopen(os.dup(arrays.number), "wb") as file:
            _Pack(stream, file).dump(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise FedpointError(
            f"this run cannot be shared out between processes: {error}. Functions and classes of a problem, a method, "
            "stop= or evaluate= must be defined at the top level of a module, not inside a function or as a lambda"
        ) from None
    return stream.getvalue()


def unpack(packed: bytes, arrays: UnnamedFile) -> Job:
    """The job, its arrays mapped: of each, what is used is read."""
    return _Unpack(io.BytesIO(packed), arrays).load()


def digest(*facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


COMPUTED = (
    "every process reads your script, which computes something with JAX before the run begins, such as a problem of "
    'rows: move what it does below if __name__ == "__main__":, and leave functions and classes above'
)


class SupervisorLink:
    """To the supervisor: what this process does, and how it ends."""

    def __init__(self, connection: Connection):
        self.connection, self.doing = connection, "starting"
        self.steps = 0  # how many things it has begun
        self.ended = False
        self.lock = threading.Lock()

    def start(self) -> None:
        threading.Thread(target=self._pulse, daemon=True).start()

    def _pulse(self) -> None:
        while True:
            self.send({"is": "beat", "doing": self.doing, "steps": self.steps})
            time.sleep(PULSE)

    def beat(self, doing: str) -> None:
        self.doing, self.steps = doing, self.steps + 1

    def end(self, word: Word) -> None:
        """How this process ends; what comes after it is not heard."""
        if not self.ended:
            self.ended = True
            self.send(word)

    def send(self, word: Word, arrays: dict[str, np.ndarray] | None = None) -> None:
        try:
            with self.lock:
                self.connection.send_bytes(json.dumps(word).encode())
                if arrays is not None:
                    packed = io.BytesIO()
                    np.savez(packed, **arrays)  # type: ignore[arg-type]
                    self.connection.send_bytes(packed.getvalue())
        except OSError:  # nobody is left to hear it
            os._exit(1)


def work(packed: bytes, arrays: UnnamedFile, seat: Seat, connection: Connection, parent: int, log: UnnamedFile) -> None:
    """The whole life of a process."""
    _alone(parent, log, driver=seat.process == 0)
    line = SupervisorLink(connection)
    line.start()
    try:
        end = _work(packed, arrays, seat, line)
    except Diverged as error:
        end = {"is": "diverged", "message": str(error), "round": error.round}
    except FedpointError as error:
        end = {"is": "refused", "message": str(error)}
    except KeyboardInterrupt:
        end = {"is": "interrupted"}
    except BaseException as error:
        lost = type(error).__name__ == "JaxRuntimeError" or "Gloo" in str(error)
        end = {"is": "lost" if lost else "failed", "message": traceback.format_exc()}
    line.end(end)
    os._exit(0 if end["is"] == "finished" else 1)  # what waits for lost peers at the exit would wait in vain


def _alone(parent: int, log: UnnamedFile, driver: bool) -> None:
    """In a session of its own (Ctrl-C is for the supervisor, which tells the driver), dying with its parent."""
    with contextlib.suppress(OSError):
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler if driver else signal.SIG_IGN)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
    for stream in (1, 2):
        os.dup2(log.number, stream)


def _work(packed: bytes, arrays: UnnamedFile, seat: Seat, line: SupervisorLink) -> Word:
    group = _join(seat, line)
    job = unpack(packed, arrays)
    try:
        _agree(group, job.digest)
    except FedpointError as error:
        _part(group, line, {"is": "refused", "message": str(error)})
        raise
    line.beat("taking its agents")
    if seat.process:
        heard = _session(job, group, job.experiment).follow()
        word: Word = {"is": heard["as"], **{k: v for k, v in heard.items() if k in ("message", "round")}}
        if word["is"] == "finished":
            _leave(seat)
        else:
            _part(group, line, word)
        return word
    end: dict[str, str | int] = {"as": "failed", "message": "process 0 failed"}
    try:
        _drive(job, group, line)
        end = {"as": "finished"}
    except Diverged as error:
        end = {"as": "diverged", "message": str(error), "round": error.round}
        raise
    except FedpointError as error:
        end = {"as": "refused", "message": str(error)}
        raise
    except KeyboardInterrupt:
        end = {"as": "interrupted"}
        raise
    finally:
        group.tell({"do": "end", **end})
        if end["as"] in ("diverged", "refused", "interrupted"):
            _part(group, line, {**end})
    _leave(seat)
    return {"is": "finished"}


def _part(group: ProcessGroup, line: SupervisorLink, word: Word) -> None:
    """Leave for a reason that all have heard. The others say it to whoever started them and then tell process 0, which
    waits for that: without its coordinator they would be lost, start again, and wait for somebody who has left."""
    import jax

    if group.client is None:
        return
    lost = contextlib.suppress(jax.errors.JaxRuntimeError)
    if group.process:
        line.end(word)
        with lost:
            group.client.key_value_set(f"left/{group.process}", "")
        return
    until = time.monotonic() + PARTING
    for other in range(1, group.processes):
        with lost:
            group.client.blocking_key_value_get(f"left/{other}", max(int(1000 * (until - time.monotonic())), 1))


def _join(seat: Seat, line: SupervisorLink) -> ProcessGroup:
    import jax

    from fedpoint.engine.cluster.session import ProcessGroup

    if seat.processes == 1:
        return ProcessGroup(beat=line.beat)
    port = seat.coordinator.rsplit(":", 1)[1]
    if seat.process == 0:
        _check_port(seat.bind, int(port))
    line.beat(JOINING)
    try:
        jax.distributed.initialize(
            seat.coordinator,
            seat.processes,
            seat.process,
            coordinator_bind_address=f"{seat.bind}:{port}",
            initialization_timeout=int(seat.patience),
            heartbeat_timeout_seconds=LINK,
            shutdown_timeout_seconds=LINK,
        )
    except RuntimeError as error:
        if "must be called before" not in str(error):
            raise
        raise FedpointError(COMPUTED) from None
    from jax._src import distributed  # the client has no public name

    return ProcessGroup(seat.process, seat.processes, distributed.global_state.client, line.beat)


def _check_port(host: str, port: int) -> None:
    """Refuse a port that the coordinator cannot have: it would crash."""
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise FedpointError(
            f"the coordinator cannot listen on {host}:{port}: {error.strerror or error}; choose another port or --bind"
        ) from None


def _leave(seat: Seat) -> None:
    import jax

    if seat.processes > 1:
        jax.distributed.shutdown()


def _agree(group: ProcessGroup, digest: str) -> None:
    """Refuse processes of other versions than process 0's, or with another experiment: all with the same words."""
    if group.processes == 1:
        return
    from fedpoint.store.statement import versions

    assert group.client is not None
    group.beat("comparing versions and experiments")
    group.client.key_value_set(f"hello/{group.process}", json.dumps({**versions(), "experiment": digest}))
    said = [group.client.blocking_key_value_get(f"hello/{i}", LINK * 1000) for i in range(group.processes)]
    group.client.wait_at_barrier(
        "hello", LINK * 1000
    )  # whoever leaves takes the others along: not before all have read
    first, *others = (json.loads(word) for word in said)
    for number, other in enumerate(others, 1):
        differ = {
            name: f"{name} {other.get(name)}, not {first[name]}" for name in first if other.get(name) != first[name]
        }
        if list(differ) == ["experiment"]:
            raise FedpointError(
                f"process {number} has another experiment than process 0: start the same file with the same options"
            )
        if differ:
            differ.pop("experiment", None)
            raise FedpointError(f"process {number} has other versions than process 0: {'; '.join(differ.values())}")


def _session(job: Job, group: ProcessGroup, experiment: Experiment) -> ClusterSession:
    from fedpoint.engine.cluster.session import ClusterSession

    return ClusterSession(experiment.bind(), experiment.every(job.goal.rounds), group, job.fast, job.known)


def _drive(job: Job, group: ProcessGroup, line: SupervisorLink) -> None:
    """Process 0: the run as `fp.run` has it, begun or gone on with."""
    from fedpoint.engine.session import flatten
    from fedpoint.results.drive import begin, drive
    from fedpoint.store.folder import RunFolder
    from fedpoint.store.records import Measures
    from fedpoint.store.writer import create
    from fedpoint.verbs.load import LoadedRun, RunOrigin

    def tell(progress: Progress) -> None:
        arrays = {} if progress.error is None else {"error": progress.error}
        if job.models:
            arrays |= {f"model{name}": a for name, a in flatten(progress.model).items()}
        arrays |= {f"evaluation.{name}": values for name, values in progress.evaluation.items()}
        word: Word = {"is": "progress", "round": progress.round, "rounds": progress.rounds}
        line.send({**word, "seconds": progress.seconds, "rate": progress.rate}, arrays)

    asked, goal, path = job.experiment, job.goal, job.place.path
    if (path / "run.json").exists():
        loaded = LoadedRun(RunFolder.open(path), RunOrigin(asked.arguments()), partial(_session, job, group))
        if not loaded.finished or loaded.rounds[-1] < goal.rounds:
            loaded.extend(goal.rounds, goal.stop, [tell], goal.evaluate)
        return
    begun = begin(_session(job, group, asked), Measures(errors=True), goal.evaluate)  # the solution is known
    begun.folder = create(job.place, begun.session, begun.records, goal.rounds, begun.measures)
    drive(begun, goal.rounds, goal.stop, [tell], goal.evaluate)
