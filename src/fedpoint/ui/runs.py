"""Which runs are there, how far are they, and what do their curves look like? Read from their folders, never written.

A run in progress is followed by its commits: a checkpoint names the record files on disk, which never change, so that
each is read once however often the page looks.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import evenly, rounded
from fedpoint.show.from_data import Numbers
from fedpoint.store import disk
from fedpoint.store.folder import RunFolder

DEPTH = 3  # folders below the given one in which runs are looked for
MOST = 500  # runs that are listed
POINTS = 600  # of a curve on the page
KEPT = 4096  # record files whose curves are kept in memory


class UnreadableRun(TypedDict):
    """A run whose folder says nothing that can be read."""

    name: str
    title: str
    state: str
    message: str


class Brief(TypedDict):
    """What a run is, how far it is and how it stands."""

    name: str
    title: str
    algorithm: str
    problem: str
    agents: int | None
    rounds: int | None
    repeats: int | None
    seed: int | None
    network: bool
    reached: int | None
    state: str


class Spread(TypedDict):
    """Over repeats, at the recorded rounds."""

    mean: Numbers
    low: Numbers
    high: Numbers


class Curves(Brief):
    """The same with its curves."""

    x: list[int]
    error: NotRequired[Spread]
    loss: NotRequired[Spread]


class RecordFile(TypedDict):
    """A file of records, as a checkpoint names it."""

    file: str
    sha256: str


class Runs:
    """The runs under a folder."""

    def __init__(self, root: Path):
        self.root = Path(os.path.abspath(root))
        self._files: OrderedDict[tuple[str, str], dict[str, np.ndarray]] = OrderedDict()
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Folders of runs, newest first, relative to the root. Links are not followed: they may lead elsewhere."""
        found: list[tuple[float, str]] = []
        layer = [self.root]
        for _ in range(DEPTH + 1):
            below: list[Path] = []
            for folder in layer:
                if len(found) >= MOST:
                    break
                try:
                    if (folder / "run.json").is_file():
                        name = folder.relative_to(self.root).as_posix()
                        found.append(((folder / "run.json").stat().st_mtime, name))
                    else:
                        with os.scandir(folder) as entries:
                            below += [
                                Path(e.path)
                                for e in entries
                                if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")
                            ]
                except OSError:
                    continue  # gone, or not ours to read
            layer = below
        return [name for _, name in sorted(found, reverse=True)]

    def folder(self, name: str) -> Path:
        """The folder of a run that `names` lists; nothing else is opened."""
        if name not in self.names():
            raise FedpointError(f"there is no run {name[:80]!r} here")
        return self.root / name

    def list(self) -> list[Brief | UnreadableRun]:
        """Every run in a line."""
        found: list[Brief | UnreadableRun] = []
        for name in self.names():
            try:
                found.append(self.brief(name))
            except FedpointError as error:
                found.append({"name": name, "title": name, "state": "unreadable", "message": str(error)})
        return found

    def brief(self, name: str) -> Brief:
        """What is known of a run without its records."""
        path = self.root / name
        try:
            config = disk.read_toml((path / "config.toml").read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise FedpointError(f"config.toml of {name} cannot be read: {error}") from None
        problem = config.get("problem", {})
        return {
            "name": name,
            "title": name if name != "." else path.name,
            "algorithm": str(config.get("algorithm", {}).get("name", "?")),
            "problem": str(problem.get("class", "?")),
            "agents": problem.get("agents"),
            "rounds": config.get("rounds"),
            "repeats": config.get("repeats"),
            "seed": config.get("seed"),
            "network": "network" in config,
            "reached": self.reached(path),
            "state": self.state(path),
        }

    @staticmethod
    def reached(path: Path) -> int | None:
        """The round of the newest commit."""
        try:
            names = sorted(n for n in os.listdir(path / "checkpoints") if n.endswith(".npz") and n[:-4].isdigit())
        except OSError:
            return None
        return int(names[-1][:-4]) if names else None

    @staticmethod
    def state(path: Path) -> str:
        """finished, running, diverged, failed or stopped."""
        if (path / "summary.json").exists():
            return "finished"
        try:
            lines = (path / "events.jsonl").read_bytes()[-4096:].splitlines()
            last = json.loads(lines[-1])["event"] if lines else "created"
        except (OSError, ValueError, KeyError, TypeError):
            last = "started"
        if last in ("diverged", "failed"):
            return last
        return "running" if last in ("created", "started", "progress") and _alive(path) else "stopped"

    def curves(self, name: str) -> Curves:
        """Brief, with the means and ranges over repeats of error and loss at (at most 600 of) the recorded rounds."""
        path = self.folder(name)
        brief, records = self.brief(name), self._records(path)
        some = evenly(len(records["round"]), POINTS)
        found: Curves = {**brief, "x": records["round"][some].tolist()}
        if "error" in records:
            found["error"] = _spread(records["error"][some])
        if "loss" in records:
            found["loss"] = _spread(records["loss"][some])
        return found

    def _records(self, path: Path) -> dict[str, np.ndarray]:
        """Rounds (n,), and mean, least and greatest over repeats (n, 3) of what was measured."""
        folder = RunFolder.open(path)
        for name in reversed(folder._checkpoints()):
            try:
                _, body = disk.read_npz(path / "checkpoints" / name, "checkpoint")
                parts = [self._part(path, entry) for entry in body["files"]]
            except disk.Damaged:
                continue  # a writer has moved on, or the file is hurt: an older commit will do
            names = parts[0] if parts else {}
            return {key: np.concatenate([part[key] for part in parts]) for key in names} or {"round": np.zeros(0, int)}
        return {"round": np.zeros(0, int)}

    def _part(self, path: Path, entry: RecordFile) -> dict[str, np.ndarray]:
        key = (str(path), entry["sha256"])
        with self._lock:
            if key in self._files:
                self._files.move_to_end(key)
                return self._files[key]
        arrays, _ = disk.read_npz(path / "records" / entry["file"], "records")
        part = {"round": arrays["round"]}
        for measure in ("error", "loss"):
            if measure in arrays:
                a = arrays[measure]
                part[measure] = np.stack([a.mean(1), a.min(1), a.max(1)], axis=1)
        with self._lock:
            self._files[key] = part
            while len(self._files) > KEPT:
                self._files.popitem(last=False)
        return part


def _spread(values: np.ndarray) -> Spread:
    mean, low, high = (rounded(column, 6) for column in values.T)
    return {"mean": mean, "low": low, "high": high}


def _alive(path: Path) -> bool:
    """Whether the process that last wrote into a folder is there. Asking for the lock would keep a writer out."""
    try:
        os.kill(int((path / "lock").read_text()), 0)
    except PermissionError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return True
