"""Run a command in its own world: a time limit, the memory of all its processes, and nothing left behind (Linux)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLE = 0.2  # seconds between two looks at the memory
MARK = "PEER_MARK"


@dataclass
class Ended:
    seconds: float
    memory: int  # bytes: the largest sum seen of its processes' proportional shares
    error: str  # "" when it ended well


ALONE = [sys.executable, str(Path(__file__).resolve().parent / "alone.py")]


def run(command: list[str], log: Path, limit: float, environment: dict[str, str], online: bool = False) -> Ended:
    """Everything that the command starts inherits a mark, by which it is found, measured and, at the end, stopped.

    online: with the machine's network; else it has loopback only.
    """
    command = command if online else [*ALONE, *command]
    mark = uuid.uuid4().hex
    env = {**os.environ, **environment, MARK: mark}
    begun = time.monotonic()
    memory, done = [0], threading.Event()
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env, start_new_session=True
        )

        def watch() -> None:
            while not done.wait(SAMPLE):
                memory[0] = max(memory[0], sum(_share(pid) for pid in marked(mark)))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        error = ""
        try:
            code = process.wait(limit)
            if code:
                error = last_words(log) or f"exit status {code}"
        except subprocess.TimeoutExpired:
            error = f"not done after {limit:.0f} s"
        finally:
            done.set()
            watcher.join()
            stop(mark)
            process.wait()
    return Ended(time.monotonic() - begun, memory[0], error)


def marked(mark: str) -> list[int]:
    """The processes that carry the mark."""
    found, wanted = [], f"{MARK}={mark}".encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry.name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _share(pid: int) -> int:
    """Pss: its own memory, and its part of what it shares."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def stop(mark: str) -> None:
    """End what is left of it."""
    for _ in range(20):
        left = marked(mark)
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def last_words(log: Path) -> str:
    """The line that says what went wrong: the last one that names an error, else the last."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    named: Any = [line for line in lines if "Error" in line.split(":")[0] and ":" in line]
    return (named or lines or [""])[-1][:400]
