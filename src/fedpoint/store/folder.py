"""The durable folder of a run: what is on disk survives kill -9, and nothing in it is a pickle.

    config.toml, run.json   written when the run is created; run.json has the hash of both
    events.jsonl            one JSON object per line, appended
    records/FIRST-LAST.npz  what rounds FIRST..LAST recorded; never changed once a checkpoint names it
    checkpoints/ROUND.npz   the state, and a manifest that names run.json and the record files by their hashes
    model.npz               the model at the end
    summary.json            written when the run is finished: its hash, and those of the last checkpoint and the model

A checkpoint appears by one atomic rename, after the record files it names are on disk: it is the commit. A run is
finished where its summary names the newest checkpoint that verifies. A folder may come from anybody: nothing in it is
reached through a link.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.errors import FedpointError
from fedpoint.store import disk
from fedpoint.store.checks import wrong_body, wrong_ending

Arrays = disk.Arrays
Table = disk.Table
Found = TypeVar("Found")

MAX_RECORD_FILES = 64
SUMMARY = "summary.json"
INSIDE = ("checkpoints", "records")  # its folders
MODEL = "model.npz"  # of a finished run: the first repeat's model, for `fedpoint predict`


@dataclass(frozen=True)
class Checkpoint:
    round: int
    state: Arrays
    records: Arrays  # of all rounds up to this one, in order
    sha256: str
    skipped: tuple[str, ...] = ()  # why newer checkpoints were passed over


@dataclass(frozen=True)
class Standing:
    """How far a run is: the newest checkpoint that verifies, and what is said of the end where that is the end.

    wrong: what is damaged or missing, so that the run is not as far as it was.
    """

    point: Checkpoint | None
    summary: Table | None
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Head:
    """What the next commit must know of the last one."""

    round: int = -1
    files: list[Table] = field(default_factory=list)  # file, sha256, nbytes; in order
    spec: Table = field(default_factory=dict)  # name -> dtype and shape of one record
    sha256: str = ""  # of the checkpoint


def _claim(aside: Path, path: Path, lock: disk.Lock) -> disk.Lock:
    try:
        return disk.claim(aside, path, lock)
    except OSError as err:
        if err.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FedpointError(f"another process has begun a run in {path}; choose another name") from err
        raise


def _remove_litter(path: Path) -> None:
    """What creations of the same folder left aside when they were killed; the living hold a lock."""
    for aside in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        if aside.is_symlink():
            continue
        with contextlib.suppress(FedpointError, OSError):
            disk.take_lock(aside).close()
            shutil.rmtree(aside)


def _stated(path: Path, about: bytes, toml: bytes) -> tuple[Table, Table, str]:
    """The configuration and the meta of a run, as they were written, and the hash of its run.json."""
    advice = "restore it from a copy, or start the run again in another folder"
    try:
        run = disk.read_object(about)
        disk.check_version(path, "run", run["format"], run["version"])
        sha, meta = run["config_sha256"], dict(run["meta"])
        disk.check_seal(path / "run.json", run)
    except disk.Damaged as err:
        raise FedpointError(f"{err}; {advice}") from err
    except FedpointError:
        raise
    except (ValueError, KeyError, TypeError) as err:
        raise FedpointError(f"{path / 'run.json'} is damaged ({err}); {advice}") from err
    try:
        config = disk.read_toml(toml.decode("utf-8", "replace"))
    except ValueError as err:
        raise FedpointError(f"{path / 'config.toml'} is damaged ({err}); {advice}") from err
    if config_hash(config) != sha:
        raise FedpointError(f"{path / 'config.toml'} was changed after the run began; undo that or start a new run")
    return config, meta, run[disk.SEAL]


def config_hash(config: Mapping[str, object]) -> str:
    return hashlib.sha256(disk.canonical(disk.plain(config, "config", drop_none=True))).hexdigest()


def export_model(path: str | Path, arrays: Mapping[str, ArrayLike], manifest: Mapping[str, object]) -> str:
    """Write a model with its manifest; returns the SHA-256 of both."""
    body = {"manifest": disk.plain(manifest, "manifest")}
    return disk.write_npz(Path(path), "model", disk.checked(arrays, "model"), body)


def load_model(path: str | Path) -> tuple[Arrays, Table]:
    """A model and its manifest: an exported file, or the model at the end of the run in a folder."""
    path = Path(path)
    if path.is_dir():
        return RunFolder.open(path).model()
    arrays, body = disk.read_npz(path, "model")
    return arrays, body["manifest"]


class RunFolder:
    """A handle on a run folder. `create` and `open(write=True)` hold the folder's lock until `close`."""

    def __init__(self, path: Path, config: Table, meta: Table, sha256: str, lock: disk.Lock | None):
        self.path, self.config, self.meta, self.sha256 = path, config, meta, sha256  # the last is that of run.json
        self.config_hash = config_hash(config)
        self._lock = lock
        self._head: _Head | None = None

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, object], *, meta: Mapping[str, object]) -> RunFolder:
        path = Path(os.path.abspath(path))
        config, meta = disk.plain(config, "config", drop_none=True), disk.plain(meta, "meta")
        toml, sha = disk.to_toml(config), config_hash(config)
        about = disk.seal({"format": "fedpoint-run", "version": disk.VERSION, "config_sha256": sha, "meta": meta})
        with disk.os_errors(f"create the run folder {path}"):
            if (path / "run.json").exists():
                raise FedpointError(f"{path} already holds a run; resume it or choose another name")
            if path.exists() and not (path.is_dir() and not any(path.iterdir())):
                raise FedpointError(f"{path} exists and is not an empty folder; choose another name")
            _remove_litter(path)
            # Made aside and renamed, so that a crash leaves no half of a run folder.
            aside, lock = disk.temporary(path), None
            try:
                (aside / "checkpoints").mkdir(parents=True)
                (aside / "records").mkdir()
                lock = disk.take_lock(aside)
                content = json.dumps(about, indent=2).encode()
                disk.write_aside(aside, {"events.jsonl": b"", "config.toml": toml, "run.json": content})
                lock = _claim(aside, path, lock)
                disk.sync_folder(path.parent)
            except BaseException as err:
                if lock:
                    lock.close()
                shutil.rmtree(aside, ignore_errors=True)
                if isinstance(err, disk.Refused):  # in the user's words: they never saw the folder aside
                    raise disk.Refused(f"create the run folder {path}", err.reason) from err
                raise
        return cls(path, dict(config), dict(meta), about[disk.SEAL], lock)

    @classmethod
    def open(cls, path: str | Path, write: bool = False) -> RunFolder:
        path = Path(os.path.abspath(path))
        with disk.os_errors(f"open the run folder {path}"):
            if not path.exists():
                raise FedpointError(f"there is no run folder {path}; check the name, or start a run there")
            if not os.path.lexists(path / "run.json"):
                raise FedpointError(f"{path} is not a run folder (it has no run.json); give the folder of a run")
            disk.check_contents(path, *INSIDE)
            about = disk.read_file(path / "run.json", links=False)
            toml = disk.read_file(path / "config.toml", links=False)
        folder = cls(path, *_stated(path, about, toml), None)
        if write:
            with disk.os_errors(f"open the run folder {path} for writing"):
                folder._lock = disk.take_lock(path)
                try:
                    folder._clean()
                except BaseException:
                    folder.close()
                    raise
        return folder

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock; the death of the process does so as well."""
        if self._lock:
            self._lock.close()
        self._lock = None

    def append_event(self, event: Mapping[str, object]) -> None:
        self._check_writable()
        disk.append_line(self.path / "events.jsonl", json.dumps(disk.plain(event, "event")).encode())

    def events(self) -> list[Table]:
        """All events, without a last line that a crash cut short."""
        return disk.read_lines(self.path / "events.jsonl")[0]

    def last_event(self) -> str:
        """The name of the last event, at a glance; empty before the first one."""
        with disk.os_errors(f"read {self.path / 'events.jsonl'}"):
            lines = disk.read_end(self.path / "events.jsonl", 4096).splitlines()
        try:
            return str(disk.read_object(lines[-1])["event"]) if lines else ""
        except (ValueError, KeyError):
            return "started"  # it is being written

    def commit(self, round: int, state: Mapping[str, ArrayLike], records: Mapping[str, ArrayLike]) -> None:
        """Make durable, both or neither: the state, and the records (in rows) since the last commit."""
        self._check_writable()
        if self._summary() is not None:
            raise FedpointError(f"{self.path} is finished; reopen it for more rounds")
        round, head = int(round), self._last
        if round <= head.round:
            raise FedpointError(f"{self.path} is already at round {head.round}; it cannot take round {round}")
        arrays, rows = disk.checked(state, "state"), disk.checked(records, "records")
        files, spec = head.files, head.spec
        if rows:
            spec = {name: [a.dtype.str, *a.shape[1:]] for name, a in rows.items()}
            if not all(a.ndim for a in rows.values()) or (head.spec and spec != head.spec):
                raise FedpointError(
                    f"records up to round {round} are {spec}; give rows, with the names, dtypes and shapes "
                    f"of the rows before: {head.spec or 'any'}"
                )
            files = [*files, self._write_records(head.round + 1, round, rows)]
        if len(files) > MAX_RECORD_FILES:
            files = self._merge(files)
        body = {"round": round, "run_sha256": self.sha256, "files": files, "spec": spec}
        path = self.path / "checkpoints" / f"{round:012d}.npz"
        sha = disk.write_npz(path, "checkpoint", arrays, body, links=False)
        self._head = _Head(round, files, spec, sha)
        self._prune(self._head, head, *self._without_last(head))

    @property
    def _last(self) -> _Head:
        """Of the last commit."""
        if self._head is None:
            self.latest()
        return self._head or _Head()

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies, with all records up to it; None before the first commit."""
        while True:
            names = self.checkpoints()
            found, skipped = None, []
            for name in reversed(names):
                try:
                    found, self._head = self._read_checkpoint(self.path / "checkpoints" / name)
                    break
                except disk.Damaged as err:
                    skipped.append(str(err))
            if not skipped or self.checkpoints() == names:
                break  # else a writer has moved on while we were reading
        if names and not found:
            raise FedpointError(f"no checkpoint in {self.path} is usable: {' | '.join(skipped)}")
        return found and replace(found, skipped=tuple(skipped))

    def standing(self) -> Standing:
        """How far the run is, and whether it is finished."""
        return self._undisturbed(self._standing)

    def _standing(self, text: bytes | None) -> Standing:
        point = self.latest()
        skipped = point.skipped if point else ()
        if text is None:
            return Standing(point, None, skipped)
        try:
            summary, ends = self._ending(text)
        except disk.Damaged as err:
            return Standing(point, None, (*skipped, str(err)))
        if point is not None and ends["checkpoint"] == point.sha256:
            return Standing(point, summary, skipped)
        return Standing(point, None, skipped or (self._lost,))

    def finished(self) -> bool:
        """Whether the run is finished, at a glance: only `standing` verifies its checkpoint and records."""
        return self._undisturbed(self._finished)

    def _finished(self, text: bytes | None) -> bool:
        if text is None:
            return False
        names = self.checkpoints()
        newest = names and disk.read_manifest(self.path / "checkpoints" / names[-1], "checkpoint")["sha256"]
        if newest != self._ending(text)[1]["checkpoint"]:
            raise disk.Damaged(self._lost)
        return True

    def _undisturbed(self, look: Callable[[bytes | None], Found]) -> Found:
        """What is found while nobody finishes the run or goes on with it; where somebody does, look again."""
        while True:
            text = self._summary()
            try:
                found = look(text)
            except disk.Damaged:
                if self._summary() == text:
                    raise
            else:
                if self._summary() == text:
                    return found

    @property
    def _lost(self) -> str:
        return f"{self.path / SUMMARY} is not about the newest checkpoint there: the last one is missing, or it is old"

    def finish(self, summary: Mapping[str, object], model: str = "") -> None:
        """Mark the run as complete: it takes no commits until it is reopened. model: the SHA-256 of its model."""
        self._check_writable()
        content = {**disk.plain(summary, "summary"), "ends": {"checkpoint": self._last.sha256, "model": model}}
        disk.write_bytes(self.path / SUMMARY, json.dumps(disk.seal(content), indent=2).encode())

    def model(self) -> tuple[Arrays, Table]:
        """The model at the end of a finished run, and its manifest."""
        text, again = self._summary(), f"finish the run with {self.resume}"
        if text is None:
            raise FedpointError(f"{self.path} holds no model: the run is not finished; {again}")
        try:
            arrays, body = disk.read_npz(self.path / MODEL, "model", links=False)
            if body["sha256"] != self._ending(text)[1]["model"]:
                raise disk.Damaged(f"{self.path / MODEL} is not the model of this run (its SHA-256 differs)")
        except disk.Damaged as err:
            raise FedpointError(f"{err}; {again}") from err
        return arrays, body["manifest"]

    def reopen(self) -> None:
        """Let a finished run take more rounds."""
        self._check_writable()
        with disk.os_errors(f"reopen {self.path}"), contextlib.suppress(FileNotFoundError):
            (self.path / SUMMARY).unlink()
            disk.sync_folder(self.path)  # or a power cut may bring back the end of a run that has gone on

    @property
    def resume(self) -> str:
        """What continues the run: a command where it comes from a file, else Python."""
        return f"fedpoint resume {self.path}" if "experiment" in self.config else "fp.load(folder, problem).extend(...)"

    def _summary(self) -> bytes | None:
        """What is in summary.json; None where there is none."""
        with disk.os_errors(f"read {self.path / SUMMARY}"):
            try:
                return disk.read_file(self.path / SUMMARY, links=False)
            except FileNotFoundError:
                return None

    def _ending(self, text: bytes) -> tuple[Table, Table]:
        """The summary that `finish` was given, and the hashes of what it is about."""
        try:
            content = disk.read_object(text)
        except ValueError as err:
            raise disk.Damaged(f"{self.path / SUMMARY} is damaged ({err})") from err
        disk.check_seal(self.path / SUMMARY, content)
        wrong = wrong_ending(content)
        if wrong:
            raise disk.Damaged(f"{self.path / SUMMARY} is not what a run writes ({wrong})")
        return {name: value for name, value in content.items() if name not in ("ends", disk.SEAL)}, content["ends"]

    def _check_writable(self) -> None:
        if self._lock is None:
            raise FedpointError(f"{self.path} is open for reading only; open it with write=True")

    def _clean(self) -> None:
        """Remove what a crash left half-written. Under the lock only: a living writer has such files too."""
        for name in INSIDE:
            (self.path / name).mkdir(exist_ok=True)
        for folder in (self.path, *(self.path / name for name in INSIDE)):
            half = partial(fnmatch.fnmatchcase, pat=".*.tmp")
            disk.remove(folder, half, links=folder == self.path)
        events = self.path / "events.jsonl"
        disk.cut(events, disk.read_lines(events)[1])

    def newest(self) -> int | None:
        """The round of the newest checkpoint, at a glance; None before the first one."""
        rounds = [int(name[:-4]) for name in self.checkpoints() if name[:-4].isdecimal()]
        return max(rounds, default=None)

    def checkpoints(self) -> list[str]:
        """The names of the checkpoints, the newest last."""
        with disk.os_errors(f"list the checkpoints of {self.path}"):
            return sorted(name for name in os.listdir(self.path / "checkpoints") if name.endswith(".npz"))

    def _read_checkpoint(self, path: Path) -> tuple[Checkpoint, _Head]:
        state, body = disk.read_npz(path, "checkpoint", links=False)
        wrong = wrong_body(body)
        if wrong:
            raise disk.Damaged(f"{path} is not what a run writes ({wrong}); restore it")
        if body["run_sha256"] != self.sha256 or path.stem != f"{body['round']:012d}":
            raise disk.Damaged(f"{path} belongs to another run or round; remove it")
        head = _Head(body["round"], body["files"], body["spec"], body["sha256"])
        return Checkpoint(head.round, state, self._read_records(head.files), head.sha256), head

    def _read_records(self, files: list[Table]) -> Arrays:
        parts: dict[str, list[np.ndarray]] = {}
        for entry in files:
            path = self.path / "records" / entry["file"]
            arrays, body = disk.read_npz(path, "records", links=False)
            if body["sha256"] != entry["sha256"]:
                raise disk.Damaged(f"{path} is not the file of this run (its SHA-256 differs); restore it")
            for name, array in arrays.items():
                parts.setdefault(name, []).append(array)
        # The dtype is named because concatenate would turn a foreign byte order into the native one.
        try:
            return {name: np.concatenate(rows, dtype=rows[0].dtype) for name, rows in parts.items()}
        except (ValueError, TypeError) as err:
            raise disk.Damaged(f"the records in {self.path} do not fit each other ({err}); restore them") from err

    def _write_records(self, first: int, last: int, rows: Arrays) -> Table:
        name, nbytes = f"{first:012d}-{last:012d}.npz", sum(a.nbytes for a in rows.values())
        path = self.path / "records" / name
        sha = disk.write_npz(path, "records", rows, {"first": first, "last": last}, links=False)
        return {"file": name, "sha256": sha, "nbytes": nbytes}

    def _merge(self, files: list[Table]) -> list[Table]:
        """Merge a tail of files of like size: sizes then fall geometrically and no row is rewritten often."""
        start, nbytes = len(files) - 1, files[-1]["nbytes"]
        while start and (start >= MAX_RECORD_FILES or files[start - 1]["nbytes"] <= 2 * nbytes):
            start -= 1
            nbytes += files[start]["nbytes"]
        first, last = int(files[start]["file"][:12]), int(files[-1]["file"][13:25])
        return [*files[:start], self._write_records(first, last, self._read_records(files[start:]))]

    def _without_last(self, head: _Head) -> list[_Head]:
        """The checkpoint that serves where the newest record file is damaged, if the last two both name it."""
        if head.files[-1:] != self._last.files[-1:]:
            return []
        for name in reversed(self.checkpoints()):
            with contextlib.suppress(disk.Damaged):
                body = disk.read_manifest(self.path / "checkpoints" / name, "checkpoint")
                if not wrong_body(body) and body["round"] < head.round and body["files"][-1:] != head.files[-1:]:
                    return [_Head(body["round"], body["files"])]
        return []

    def _prune(self, *keep: _Head) -> None:
        wanted = {f"{head.round:012d}.npz" for head in keep}
        wanted |= {entry["file"] for head in keep for entry in head.files}
        for name in INSIDE:
            with contextlib.suppress(OSError):  # the next commit tries again
                disk.remove(self.path / name, lambda name: name.endswith(".npz") and name not in wanted)
