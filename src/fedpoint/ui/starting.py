"""How does the page start a run? As `fedpoint run` does: a file, a folder, and a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from fedpoint.core.errors import FedpointError
from fedpoint.store import disk
from fedpoint.ui.forms import content

MOST = 2  # runs at a time
PATIENCE = 60.0  # seconds until a run's folder is there


class Starter:
    """Runs that were started from the page, in the folder of runs."""

    def __init__(self, root: Path):
        self.root = root
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def running(self) -> list[str]:
        """The names of those that go on."""
        return [name for name, process in self._processes.items() if process.poll() is None]

    def start(self, given: Mapping[str, str]) -> str:
        """Start what a form describes; the name of the run, once its folder is there."""
        made = content(given)
        with self._lock:
            if self._closed:
                raise FedpointError("fedpoint ui is shutting down: start it again")
            if len(self.running()) >= MOST:
                raise FedpointError(f"{MOST} runs that were started here are running: stop one, or wait for one to end")
            self.root.mkdir(parents=True, exist_ok=True)
            name, file = self._written(disk.to_toml(made))
            said = tempfile.TemporaryFile()  # noqa: SIM115 - `_wait` closes it
            command = [sys.executable, "-m", "fedpoint", "run", str(file), "--folder", str(self.root / name)]
            process = subprocess.Popen([*command, "--no-figure", "--quiet"], stdout=subprocess.DEVNULL, stderr=said)
            self._processes[name] = process
        self._wait(name, process, said)
        return name

    def _written(self, text: bytes) -> tuple[str, Path]:
        """The first free name, and the file that now has it."""
        for number in range(1, 10_000):
            name = f"form-{number}"
            file = self.root / f"{name}.toml"
            if (self.root / name).exists():
                continue
            try:
                with file.open("xb") as out:
                    out.write(text)
            except FileExistsError:
                continue
            return name, file
        raise FedpointError(f"{self.root} has too many runs from forms: move some away")

    def _wait(self, name: str, process: subprocess.Popen[bytes], said: IO[bytes]) -> None:
        """Until the folder is there, or the process has ended without one."""
        end = time.monotonic() + PATIENCE
        with said:
            while not (self.root / name / "run.json").exists():
                if process.poll() is not None and not (self.root / name / "run.json").exists():
                    said.seek(0)
                    last = said.read().decode(errors="replace").strip().splitlines() or ["it ended without a message"]
                    (self.root / f"{name}.toml").unlink(missing_ok=True)
                    raise FedpointError(f"the run did not start: {last[-1]}")
                if time.monotonic() > end:
                    raise FedpointError(
                        f"the run {name} has not begun after {PATIENCE:.0f} s; it is in the list once it has"
                    )
                time.sleep(0.1)

    def stop(self, name: str) -> None:
        """End a run that was started here; `fedpoint resume` continues it."""
        if name not in self.running():
            raise FedpointError(f"no run {name[:60]!r} that was started here is running")
        self._processes[name].terminate()

    def close(self) -> None:
        """End all of them."""
        with self._lock:
            self._closed = True
            for name in self.running():
                self._processes[name].terminate()
        for process in self._processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
