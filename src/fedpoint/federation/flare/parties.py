"""How do a server and a site start? As processes of the engine, watched: one that ends is started again."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fedpoint
from fedpoint.core.errors import FedpointError
from fedpoint.federation.flare.kits import Kit, needs_flare
from fedpoint.federation.flare.names import KIT
from fedpoint.federation.site.disclosure import DEFAULT, Floor
from fedpoint.store.disk import write_bytes

GRACE = 5.0  # seconds for a process to end by itself
AGAIN = 2.0  # seconds before one that ended is started again
TRIES = 20  # times that it may end within a minute


def consent(kit: Kit, data: str | Path | None, floor: Floor = DEFAULT) -> None:
    """Note that this site takes part, with which file, and of how few rows it may speak."""
    if kit.study.table is not None:
        if data is None:
            raise FedpointError(f"{kit.party} needs its data: pass --data FILE")
        if not Path(data).is_file():
            raise FedpointError(f"{data} does not exist")
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    where = None if data is None else str(Path(data).absolute())
    said = {"site": kit.party, "study": kit.study.fingerprint, "time": when, "data": where, "floor": floor.plain()}
    write_bytes(kit.folder / "consent.json", json.dumps(said, indent=2).encode())


def command_of(kit: Kit) -> list[str]:
    server = kit.party == "server"
    module = f"nvflare.private.fed.app.{'server.server_train' if server else 'client.client_train'}"
    config = "fed_server.json" if server else "fed_client.json"
    own = ["secure_train=true", "org=fedpoint", "config_folder=config"] + (
        [] if server else [f"uid={kit.party}", "heart_beat_interval=5"]
    )
    return [sys.executable, "-u", "-m", module, "-m", str(kit.folder), "-s", config, "--set", *own]


def check_port(kit: Kit) -> None:
    """Refuse a port that is taken, before the engine waits for it without end."""
    port = int(kit.study.server.rpartition(":")[2])
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise FedpointError(
                f"port {port} cannot be used ({error.strerror}): is a server running already?"
            ) from None


def start(kit: Kit) -> subprocess.Popen:
    """The party's process, in a process group of its own."""
    needs_flare()
    kit.lock_down()
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
            env=_environment(kit),
        )
    (kit.folder / "party.pid").write_text(str(process.pid))
    return process


def _environment(kit: Kit) -> dict[str, str]:
    """Ours, in which the engine's processes find the same fedpoint, wherever they start, and the party's kit."""
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths = [Path(fedpoint.__file__).parents[1], *map(Path, given)]
    return {
        **os.environ,
        KIT: str(kit.folder),
        "MALLOC_ARENA_MAX": "4",
        "PYTHONPATH": os.pathsep.join(str(path.absolute()) for path in paths),
    }


def end(process: subprocess.Popen) -> None:
    """The process and all that it started: jobs are in sessions of their own, and would notice only later."""
    import psutil

    if process.poll() is not None:  # its number may be another's by now
        return
    party = psutil.Process(process.pid)
    tree = [party, *party.children(recursive=True)]
    for one in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.terminate()
    for one in psutil.wait_procs(tree, GRACE)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


@contextlib.contextmanager
def running(kit: Kit) -> Iterator[subprocess.Popen]:
    process = start(kit)
    try:
        yield process
    finally:
        end(process)


def heed_friendly_kills() -> None:
    """A SIGTERM or a closed terminal is a Ctrl-C: what was started is ended."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def keep_running(kit: Kit, say: Callable[[str], None]) -> None:
    """Until Ctrl-C (or a friendly kill): an engine's process that ends is started again."""
    heed_friendly_kills()
    ends: list[float] = []
    while True:
        with running(kit) as process:
            code = process.wait()
        ends = [*(t for t in ends if time.monotonic() - t < 60), time.monotonic()]
        if len(ends) >= TRIES:
            raise FedpointError(f"the engine's process ended {TRIES} times in a minute: see {kit.folder}/process.log")
        say(f"the engine's process ended (status {code}) and is started again; see {kit.folder}/process.log")
        time.sleep(AGAIN)
