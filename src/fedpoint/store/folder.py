"""The durable folder of a run: what is on disk survives kill -9, and nothing in it is a pickle.

    config.toml, run.json   written when the run is created
    events.jsonl            one JSON object per line, appended
    records/FIRST-LAST.npz  what rounds FIRST..LAST recorded; never changed once a checkpoint names it
    checkpoints/ROUND.npz   the state, and a manifest that names the record files with their hashes
    summary.json            written when the run is finished

A checkpoint appears by one atomic rename, after the record files it names are on disk: it is the commit.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.errors import FedpointError
from fedpoint.store import disk
from fedpoint.store.checks import wrong_body

Arrays = disk.Arrays
Table = disk.Table

MAX_RECORD_FILES = 64


@dataclass(frozen=True)
class Checkpoint:
    round: int
    state: Arrays
    records: Arrays  # of all rounds up to this one, in order
    skipped: tuple[str, ...] = ()  # why newer checkpoints were passed over


@dataclass(frozen=True)
class _Head:
    """What the next commit must know of the last one."""

    round: int = -1
    files: list[Table] = field(default_factory=list)  # file, sha256, nbytes; in order
    spec: Table = field(default_factory=dict)  # name -> dtype and shape of one record


def _claim(aside: Path, path: Path) -> None:
    try:
        os.rename(aside, path)
    except OSError as err:
        if err.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise FedpointError(f"another process has begun a run in {path}; choose another name") from err
        raise


def _remove_litter(path: Path) -> None:
    """What creations of the same folder left aside when they were killed; the living hold a lock."""
    for aside in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(FedpointError, OSError):
            disk.take_lock(aside).close()
            shutil.rmtree(aside)


def config_hash(config: Mapping[str, object]) -> str:
    return hashlib.sha256(disk.canonical(disk.plain(config, "config", drop_none=True))).hexdigest()


def export_model(path: str | Path, arrays: Mapping[str, ArrayLike], manifest: Mapping[str, object]) -> None:
    body = {"manifest": disk.plain(manifest, "manifest")}
    disk.write_npz(Path(path), "model", disk.checked(arrays, "model"), body)


def load_model(path: str | Path) -> tuple[Arrays, Table]:
    arrays, body = disk.read_npz(Path(path), "model")
    return arrays, body["manifest"]


class RunFolder:
    """A handle on a run folder. `create` and `open(write=True)` hold the folder's lock until `close`."""

    def __init__(self, path: Path, config: Table, meta: Table, lock: disk.Lock | None):
        self.path, self.config, self.meta = path, config, meta
        self.config_hash = config_hash(config)
        self._lock = lock
        self._head: _Head | None = None

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, object], *, meta: Mapping[str, object]) -> RunFolder:
        path = Path(os.path.abspath(path))
        config, meta = disk.plain(config, "config", drop_none=True), disk.plain(meta, "meta")
        toml, sha = disk.to_toml(config), config_hash(config)
        run = {"format": "fedpoint-run", "version": disk.VERSION, "config_sha256": sha, "meta": meta}
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
                content = json.dumps(run, indent=2).encode()
                disk.write_aside(aside, {"events.jsonl": b"", "config.toml": toml, "run.json": content})
                _claim(aside, path)
                disk.sync_folder(path.parent)
            except BaseException as err:
                if lock:
                    lock.close()
                shutil.rmtree(aside, ignore_errors=True)
                if isinstance(err, disk.Refused):  # in the user's words: they never saw the folder aside
                    raise disk.Refused(f"create the run folder {path}", err.reason) from err
                raise
        return cls(path, dict(config), dict(meta), lock)

    @classmethod
    def open(cls, path: str | Path, write: bool = False) -> RunFolder:
        path = Path(os.path.abspath(path))
        with disk.os_errors(f"open the run folder {path}"):
            if not path.exists():
                raise FedpointError(f"there is no run folder {path}; check the name, or start a run there")
            if not (path / "run.json").is_file():
                raise FedpointError(f"{path} is not a run folder (it has no run.json); give the folder of a run")
            texts = [(path / name).read_text("utf-8", "replace") for name in ("run.json", "config.toml")]
        try:
            run, config = disk.read_object(texts[0]), disk.read_toml(texts[1])
            disk.check_version(path, "run", run["format"], run["version"])
            sha, meta = run["config_sha256"], dict(run["meta"])
        except FedpointError:
            raise
        except (ValueError, KeyError, TypeError) as err:
            raise FedpointError(f"run.json or config.toml in {path} is damaged ({err}); restore it") from err
        if config_hash(config) != sha:
            raise FedpointError(f"{path / 'config.toml'} was changed after the run began; undo that or start a new run")
        folder = cls(path, config, meta, None)
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

    def commit(self, round: int, state: Mapping[str, ArrayLike], records: Mapping[str, ArrayLike]) -> None:
        """Make durable, both or neither: the state, and the records (in rows) since the last commit."""
        self._check_writable()
        if self.summary is not None:
            raise FedpointError(f"{self.path} is finished; reopen it for more rounds")
        if self._head is None:
            self.latest()
        round, head = int(round), self._head or _Head()
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
        body = {"round": round, "config_sha256": self.config_hash, "files": files, "spec": spec}
        disk.write_npz(self.path / "checkpoints" / f"{round:012d}.npz", "checkpoint", arrays, body)
        self._head = _Head(round, files, spec)
        self._prune(head, self._head)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies, with all records up to it; None before the first commit."""
        while True:
            names = self._checkpoints()
            found, skipped = None, []
            for name in reversed(names):
                try:
                    found, self._head = self._read_checkpoint(self.path / "checkpoints" / name)
                    break
                except disk.Damaged as err:
                    skipped.append(str(err))
            if not skipped or self._checkpoints() == names:
                break  # else a writer has moved on while we were reading
        if names and not found:
            raise FedpointError(f"no checkpoint in {self.path} is usable: {' | '.join(skipped)}")
        return found and replace(found, skipped=tuple(skipped))

    def finish(self, summary: Mapping[str, object]) -> None:
        """Mark the run as complete: it takes no commits until it is reopened."""
        self._check_writable()
        text = json.dumps(disk.plain(summary, "summary"), indent=2)
        disk.write_bytes(self.path / "summary.json", text.encode())

    def reopen(self) -> None:
        """Let a finished run take more rounds."""
        self._check_writable()
        with disk.os_errors(f"reopen {self.path}"), contextlib.suppress(FileNotFoundError):
            (self.path / "summary.json").unlink()
            disk.sync_folder(self.path)  # or a power cut may bring back the end of a run that has gone on

    @property
    def summary(self) -> Table | None:
        """What `finish` was given, or None for a run that is not finished."""
        path = self.path / "summary.json"
        try:
            with disk.os_errors(f"read {path}"):
                text = path.read_bytes() if path.exists() else None
            return None if text is None else disk.read_object(text)
        except ValueError as err:
            raise FedpointError(f"{path} is damaged ({err}); remove it and resume the run") from err

    def _check_writable(self) -> None:
        if self._lock is None:
            raise FedpointError(f"{self.path} is open for reading only; open it with write=True")

    def _clean(self) -> None:
        """Remove what a crash left half-written. Under the lock only: a living writer has such files too."""
        for folder in (self.path, self.path / "checkpoints", self.path / "records"):
            for path in folder.glob(".*.tmp"):
                path.unlink()
        events = self.path / "events.jsonl"
        os.truncate(events, disk.read_lines(events)[1])

    def _checkpoints(self) -> list[str]:
        with disk.os_errors(f"list the checkpoints of {self.path}"):
            return sorted(name for name in os.listdir(self.path / "checkpoints") if name.endswith(".npz"))

    def _read_checkpoint(self, path: Path) -> tuple[Checkpoint, _Head]:
        state, body = disk.read_npz(path, "checkpoint")
        wrong = wrong_body(body)
        if wrong:
            raise disk.Damaged(f"{path} is not what a run writes ({wrong}); restore it")
        if body["config_sha256"] != self.config_hash or path.stem != f"{body['round']:012d}":
            raise disk.Damaged(f"{path} belongs to another run or round; remove it")
        head = _Head(body["round"], body["files"], body["spec"])
        return Checkpoint(head.round, state, self._read_records(head.files)), head

    def _read_records(self, files: list[Table]) -> Arrays:
        parts: dict[str, list[np.ndarray]] = {}
        for entry in files:
            path = self.path / "records" / entry["file"]
            arrays, body = disk.read_npz(path, "records")
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
        sha = disk.write_npz(self.path / "records" / name, "records", rows, {"first": first, "last": last})
        return {"file": name, "sha256": sha, "nbytes": nbytes}

    def _merge(self, files: list[Table]) -> list[Table]:
        """Merge a tail of files of like size: sizes then fall geometrically and no row is rewritten often."""
        start, nbytes = len(files) - 1, files[-1]["nbytes"]
        while start and (start >= MAX_RECORD_FILES or files[start - 1]["nbytes"] <= 2 * nbytes):
            start -= 1
            nbytes += files[start]["nbytes"]
        first, last = int(files[start]["file"][:12]), int(files[-1]["file"][13:25])
        return [*files[:start], self._write_records(first, last, self._read_records(files[start:]))]

    def _prune(self, *keep: _Head) -> None:
        wanted = {f"{head.round:012d}.npz" for head in keep}
        wanted |= {entry["file"] for head in keep for entry in head.files}
        for folder in ("checkpoints", "records"):
            for path in (self.path / folder).glob("*.npz"):
                if path.name not in wanted:
                    with contextlib.suppress(OSError):  # the next commit tries again
                        path.unlink()
