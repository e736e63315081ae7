"""What is given anything at all: each target takes bytes, and raises nothing but a user's mistake, soon and in little
memory. Both the tests by hypothesis and the fuzzers by atheris call these."""

import contextlib
import json
import resource
import signal
import tempfile
import warnings
from pathlib import Path

import fedpoint as fp
from fedpoint.config import read
from fedpoint.core import memory_limits as room
from fedpoint.core.errors import FedpointError, Recovered
from fedpoint.data.tables import read_table
from fedpoint.federation import wire
from fedpoint.store import disk
from fedpoint.store.folder import RunFolder, load_model
from fedpoint.ui.runs import Runs

SECONDS = 20  # for one example
MEMORY = 2 << 30  # bytes beyond what the process has


class Slow(Exception):
    """An example took too long."""


def _late(*_):
    raise Slow


@contextlib.contextmanager
def bounds():
    """An end to the time and to the memory of an example."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before, room.LIMIT = signal.signal(signal.SIGALRM, _late), 1 << 26
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)
        room.LIMIT = None


def _file(data, name):
    folder = tempfile.TemporaryDirectory(prefix="fedpoint-fuzz-")
    path = Path(folder.name) / name
    path.write_bytes(data)
    return folder, path


def toml_file(data):
    """A TOML file: read, checked and built. What was built, or None."""
    folder, path = _file(data, "file.toml")
    with folder, bounds(), contextlib.suppress(FedpointError):
        return read(path)


def table(data):
    """A CSV file with a column for the agent and one for the target."""
    folder, path = _file(data, "data.csv")
    with folder, bounds(), contextlib.suppress(FedpointError):
        return read_table(path, "y", "a")


def arrays(data):
    """An npz file, as a checkpoint and as a model."""
    folder, path = _file(data, "model.npz")
    with folder, bounds():
        with contextlib.suppress(FedpointError):
            return disk.read_npz(path, "checkpoint")
        with contextlib.suppress(FedpointError):
            return load_model(path)


def run_folder(path):
    """A run folder with whatever in it: opened, loaded, and all that is shown of it asked for."""
    with bounds(), contextlib.suppress(FedpointError):
        json.dumps(Runs(path).list(), allow_nan=False)  # as the page has it
        json.dumps(Runs(path).curves("."), allow_nan=False)
    with bounds(), contextlib.suppress(FedpointError), warnings.catch_warnings():
        warnings.simplefilter("ignore", Recovered)
        RunFolder.open(path).events()
        run = fp.load(path)
        return run, run.error, run.model, run.cost, run.speed, run.engine, run.description(), repr(run)


def message(data):
    """What a site or a hub is sent."""
    with bounds(), contextlib.suppress(wire.Garbage):
        return wire.decode(data)
