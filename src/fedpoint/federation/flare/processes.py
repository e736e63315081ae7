"""How do a server and a site run? As processes of the engine, which end with whoever started them. No JAX is loaded."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import fedpoint
from fedpoint.core.errors import FedpointError
from fedpoint.federation.flare.names import KIT
from fedpoint.federation.flare.presence import BEAT
from fedpoint.federation.flare.rules import lock_down

GRACE = 5.0  # seconds for a process to end by itself


class Party(Protocol):
    """Whose processes: a kit, or as much of it as its processes need."""

    @property
    def folder(self) -> Path: ...

    @property
    def party(self) -> str: ...


def needs_flare() -> None:
    try:
        import nvflare  # noqa: F401
    except ImportError:
        raise FedpointError("this needs NVIDIA FLARE: pip install 'fedpoint[federation]'") from None


def command_of(kit: Party) -> list[str]:
    server = kit.party == "server"
    module = f"nvflare.private.fed.app.{'server.server_train' if server else 'client.client_train'}"
    config = "fed_server.json" if server else "fed_client.json"
    own = ["secure_train=true", "org=fedpoint", "config_folder=config"] + (
        [] if server else [f"uid={kit.party}", f"heart_beat_interval={BEAT:.0f}"]
    )
    return [sys.executable, "-u", "-m", module, "-m", str(kit.folder), "-s", config, "--set", *own]


def start(kit: Party) -> subprocess.Popen:
    """The party's process, in a process group of its own."""
    lock_down(kit.folder, kit.party)
    (kit.folder / "transfer").mkdir(exist_ok=True)
    for name in ("shutdown.fl", "restart.fl"):
        (kit.folder / name).unlink(missing_ok=True)
    with (kit.folder / "process.log").open("ab") as log:
        process = subprocess.Popen(
            command_of(kit),
            cwd=kit.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment(kit),
        )
    (kit.folder / "party.pid").write_text(str(process.pid))
    return process


def environment(kit: Party) -> dict[str, str]:
    """Ours, in which the engine's processes find the same fedpoint, wherever they start, and the party's kit."""
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths = [Path(fedpoint.__file__).parents[1], *map(Path, given)]
    return {
        **os.environ,
        KIT: str(kit.folder),
        "MALLOC_ARENA_MAX": "4",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(str(path.absolute()) for path in paths)),
    }


def end(process: subprocess.Popen) -> None:
    """The process and all that it started: jobs are in sessions of their own, and would notice only later."""
    import psutil

    if process.poll() is not None:  # its number may be another's by now
        return
    party = psutil.Process(process.pid)
    party.suspend()  # what it started after a look at its children would be left
    tree = [party, *party.children(recursive=True)]
    for one in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.terminate()
    party.resume()
    for one in psutil.wait_procs(tree, GRACE)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


@contextlib.contextmanager
def running(kit: Party) -> Iterator[subprocess.Popen]:
    process = start(kit)
    try:
        yield process
    finally:
        end(process)


def heed_friendly_kills() -> None:
    """A SIGTERM or a closed terminal is a Ctrl-C: what was started is ended."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
