"""Which runs are there, how far are they, and what do their curves look like? Read from their folders, never written.

A run in progress is followed by its commits: a checkpoint names the record files on disk, which never change, so that
each is read once however often the page looks.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.files import as_text
from fedpoint.core.numbers import evenly, rounded
from fedpoint.core.system import is_running
from fedpoint.show.lines import Numbers
from fedpoint.store import disk
from fedpoint.store.checks import check_run, wrong_body
from fedpoint.store.folder import RunFolder

DEPTH = 3  # folders below the given one in which runs are looked for
MOST = 500  # runs that are listed
POINTS = 600  # of a curve on the page
SINGLES = 8  # repeats that are drawn one by one
KEPT = 4096  # record files whose curves are kept in memory
NOTHING = {"round": np.zeros(0, int)}  # recorded


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
    message: str


class Standing(TypedDict):
    """The round of the newest commit; finished, running, diverged, failed, stopped or damaged; and what is wrong."""

    reached: int | None
    state: str
    message: str


class Spread(TypedDict):
    """Over repeats, at the recorded rounds."""

    mean: Numbers
    low: Numbers
    high: Numbers
    runs: list[Numbers]  # the first few repeats, one by one; none where there is only one


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
        self._damaged: dict[
            Path, tuple[int | None, Standing]
        ] = {}  # found when records were read, with the newest commit then
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Names of runs, newest first: their folders relative to the root."""
        return list(self._folders())

    def _folders(self) -> dict[str, Path]:
        """Folders of runs by name, newest first. Links are not followed: they may lead elsewhere."""
        found: list[tuple[float, str, Path]] = []
        layer = [self.root]
        for _ in range(DEPTH + 1):
            below: list[Path] = []
            for folder in layer:
                if len(found) >= MOST:
                    break
                try:
                    about = folder / "run.json"
                    if os.path.lexists(about):
                        found.append(
                            (about.lstat().st_mtime, as_text(folder.relative_to(self.root).as_posix()), folder)
                        )
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
        return {name: folder for _, name, folder in sorted(found, reverse=True)}

    def folder(self, name: str) -> Path:
        """The folder of a run that `names` lists; nothing else is opened."""
        folders = self._folders()
        if name not in folders:
            raise FedpointError(f"there is no run {name[:80]!r} here")
        return folders[name]

    def list(self) -> list[Brief | UnreadableRun]:
        """Every run in a line."""
        found: list[Brief | UnreadableRun] = []
        for name, path in self._folders().items():
            try:
                found.append(self._brief(name, RunFolder.open(path)))
            except FedpointError as error:
                found.append({"name": name, "title": name, "state": "unreadable", "message": as_text(str(error))})
        return found

    def _brief(self, name: str, folder: RunFolder) -> Brief:
        """What is known of a run without its records."""
        config = folder.config
        check_run(folder.path, config, folder.meta, None)
        return {
            "name": name,
            "title": name if name != "." else as_text(folder.path.name),
            "algorithm": config["algorithm"]["name"],
            "problem": str(config["problem"].get("class", "?")),
            "agents": config["problem"]["agents"],
            "rounds": config["rounds"],
            "repeats": config["repeats"],
            "seed": config["seed"],
            "network": "network" in config,
            **self.standing(folder),
        }

    def standing(self, folder: RunFolder) -> Standing:
        """How far a run is, and how it stands."""
        newest = folder.newest()
        with self._lock:
            at, known = self._damaged.get(folder.path, (None, None))
        if known is not None and at == newest:
            return known
        try:
            if folder.finished():
                return {"reached": newest, "state": "finished", "message": ""}
        except disk.Damaged as error:
            return _damaged(folder, newest, str(error))
        last = folder.last_event()
        if last not in ("diverged", "failed"):
            last = "running" if last in ("", "started", "progress") and _alive(folder.path) else "stopped"
        return {"reached": newest, "state": last, "message": ""}

    def curves(self, name: str) -> Curves:
        """Brief, with the means and ranges over repeats of error and loss at (at most 600 of) the recorded rounds."""
        folder = RunFolder.open(self.folder(name))
        records = self._records(folder)
        some = evenly(len(records["round"]), POINTS)
        found: Curves = {**self._brief(name, folder), "x": records["round"][some].tolist()}
        if "error" in records:
            found["error"] = _spread(records["error"][some])
        if "loss" in records:
            found["loss"] = _spread(records["loss"][some])
        return found

    def _records(self, folder: RunFolder) -> dict[str, np.ndarray]:
        """Rounds (n,), and of what was measured (n, 3 + a few): mean, least and greatest over repeats, single ones."""
        names, wrong = folder.checkpoints(), []
        for name in reversed(names):
            try:
                body = disk.read_npz(folder.path / "checkpoints" / name, "checkpoint", links=False)[1]
                if wrong_body(body):
                    raise disk.Damaged(f"{name} is not what a run writes ({wrong_body(body)})")
                parts = [self._part(folder.path, entry) for entry in body["files"]]
            except disk.Damaged as error:
                wrong.append(str(error))  # a writer has moved on, or the file is damaged: an older commit will do
                continue
            self._note(folder, names, body["round"], wrong)
            kinds = set.intersection(*(set(part) for part in parts)) if parts else ()
            return {kind: np.concatenate([part[kind] for part in parts]) for kind in kinds} or NOTHING
        self._note(folder, names, None, wrong)
        return NOTHING

    def _note(self, folder: RunFolder, names: Sequence[str], reached: int | None, wrong: Sequence[str]) -> None:
        """Remember that newer commits than this one are damaged, unless a writer has only moved on."""
        if folder.checkpoints() != names:
            return
        with self._lock:
            self._damaged.pop(folder.path, None)
            if wrong:
                self._damaged[folder.path] = (folder.newest(), _damaged(folder, reached, wrong[0]))

    def _part(self, path: Path, entry: RecordFile) -> dict[str, np.ndarray]:
        key = (str(path), entry["sha256"])
        with self._lock:
            if key in self._files:
                self._files.move_to_end(key)
                return self._files[key]
        file = path / "records" / entry["file"]
        arrays, body = disk.read_npz(file, "records", links=False)
        if body["sha256"] != entry["sha256"]:
            raise disk.Damaged(f"{file} is not the file of this run (its SHA-256 differs); restore it")
        part = {"round": arrays.get("round", np.zeros(()))}
        measured = {name: arrays[name] for name in ("error", "loss") if name in arrays}
        fits = all(
            a.ndim == 2 and a.dtype.kind == "f" and a.size and len(a) == part["round"].size for a in measured.values()
        )
        if part["round"].ndim != 1 or part["round"].dtype.kind not in "iu" or not fits:
            raise disk.Damaged(f"{file} holds arrays that are not a run's; restore it")
        for name, a in measured.items():
            singles = a[:, : SINGLES if a.shape[1] > 1 else 0]
            part[name] = np.column_stack([a.mean(1), a.min(1), a.max(1), singles])
        with self._lock:
            self._files[key] = part
            while len(self._files) > KEPT:
                self._files.popitem(last=False)
        return part


def _spread(values: np.ndarray) -> Spread:
    mean, low, high, *runs = (rounded(column, 6) for column in values.T)
    return {"mean": mean, "low": low, "high": high, "runs": runs}


def _damaged(folder: RunFolder, reached: int | None, wrong: str) -> Standing:
    return {
        "reached": reached,
        "state": "damaged",
        "message": as_text(f"{wrong}; continue the run with {folder.resume}"),
    }


def _alive(path: Path) -> bool:
    """Whether the process that last wrote into a folder is there. Asking for the lock would keep a writer out."""
    process = disk.holder(path)
    return process is not None and is_running(process)
