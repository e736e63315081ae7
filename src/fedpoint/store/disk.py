"""Files that appear whole or not at all, npz files with a manifest and a hash, JSON lines, and a lock."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import secrets
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import tomli_w
from filelock import FileLock, Timeout
from numpy.typing import ArrayLike

from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Plain

Arrays: TypeAlias = dict[str, np.ndarray]
Table: TypeAlias = dict[str, Any]  # what a file holds, before anybody has checked it

VERSION = 1
_MANIFEST = "__manifest__"
DEEPEST = 50  # tables and lists in each other, of a TOML file
LONGEST = 1000  # bits of a whole number in it, which is then within the floats too
_HINTS = {
    errno.ENOSPC: "free some space on the disk",
    errno.EDQUOT: "free some of your disk quota",
    errno.EROFS: "the disk is read-only, choose another folder",
    errno.EACCES: "check the permissions or choose another folder",
}


class Refused(FedpointError):
    """The system refused to read or write: no space, no permission. `reason` says which, and what to do."""

    def __init__(self, what: str, reason: str):
        super().__init__(f"cannot {what}: {reason}")
        self.reason = reason


class Damaged(FedpointError):
    """A file is missing or not what was written; an older one may still serve."""


@contextlib.contextmanager
def os_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as err:
        hint = _HINTS.get(err.errno or 0, "check the path and the disk")
        raise Refused(what, f"{err.strerror or err}; {hint}") from err


def sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its name once it is complete and on disk."""
    temp = temporary(path)
    with os_errors(f"write {path} (what was there before is untouched)"):
        try:
            with open(temp, "wb") as file:
                yield file
                sync(file)
            os.replace(temp, path)
            sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temp.unlink(missing_ok=True)
            raise


def write_bytes(path: Path, data: bytes) -> None:
    with atomic(path) as file:
        file.write(data)


def write_aside(folder: Path, files: Mapping[str, bytes]) -> None:
    """Files of a folder that nobody sees yet: on disk, without the detour of `atomic`."""
    for name, data in files.items():
        with os_errors(f"write {folder / name}"), open(folder / name, "wb") as file:
            file.write(data)
            if data:
                sync(file)
    sync_folder(folder)


def append_line(path: Path, line: bytes) -> None:
    with os_errors(f"write {path}"):
        size = path.stat().st_size
        try:
            with open(path, "ab") as file:
                file.write(line + b"\n")
                sync(file)
        except BaseException:  # a second Ctrl-C too
            with contextlib.suppress(OSError):
                os.truncate(path, size)  # half a line would spoil the next one
            raise


def read_json(text: bytes | str) -> Plain:
    """The value of a JSON text; a ValueError where it is none, also when it is nested beyond all reason."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_object(text: bytes | str) -> Table:
    value = read_json(text)
    if not isinstance(value, dict):
        raise ValueError("it is not an object")
    return value


def read_toml(text: str) -> Table:
    """The content of a TOML text; a ValueError where it is none, or none that anybody would write."""
    try:
        content = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level: list[Table] = [content]
    for _ in range(DEEPEST):
        level = [item for value in level for item in (value.values() if isinstance(value, dict) else value)]
        if any(isinstance(value, int) and value.bit_length() > LONGEST for value in level):
            raise ValueError("it holds a number of hundreds of digits")
        level = [value for value in level if isinstance(value, dict | list)]
    if level:
        raise ValueError("it is nested too deeply")
    return content


def read_lines(path: Path) -> tuple[list[Table], int]:
    """The objects of a JSON Lines file, and its length; both without a last line that a crash cut short."""
    with os_errors(f"read {path}"):
        lines = path.read_bytes().splitlines(keepends=True)
    values, good = [], 0
    for number, line in enumerate(lines, 1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("cut short")
            values.append(read_object(line))
            good += len(line)
        except ValueError as err:
            if number < len(lines):
                raise FedpointError(f"line {number} of {path} is damaged ({err}); remove that line") from err
    return values, good


class Lock:
    """The right to write into a folder, held by one process at a time. The system takes it back from a dead one."""

    def __init__(self, folder: Path):
        self._lock = FileLock(folder / "writing.lock", thread_local=False)
        note = folder / "lock"  # who holds it, for people and for the live page
        try:
            self._lock.acquire(blocking=False)
        except Timeout as err:
            holder = note.read_text("utf-8", "replace") if note.exists() else "?"
            raise FedpointError(f"process {holder} is writing {folder}; wait for it, or choose another name") from err
        note.write_text(str(os.getpid()))

    def close(self) -> None:
        self._lock.release()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def take_lock(folder: Path) -> Lock:
    """The lock of a folder, or one clear message about who holds it."""
    return Lock(folder)


def write_npz(path: Path, kind: str, arrays: Arrays, body: Mapping[str, object]) -> str:
    """Write arrays with their manifest; returns the SHA-256 of both. Same content, same bytes."""
    manifest = {"format": f"fedpoint-{kind}", "version": VERSION, **body}
    digest = _digest(arrays, manifest)
    packed = np.frombuffer(canonical({**manifest, "sha256": digest}), np.uint8)
    # Not np.savez: it cannot store an array called "file", and it writes the time into the file.
    with atomic(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in {_MANIFEST: packed, **arrays}.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
    return digest


def read_npz(path: Path, kind: str) -> tuple[Arrays, Table]:
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            length = os.fstat(file.fileno()).st_size
            arrays = {info.filename.removesuffix(".npy"): _array(archive, info, length) for info in archive.infolist()}
        manifest = read_object(arrays.pop(_MANIFEST).tobytes())
        found, version, digest = manifest["format"], manifest["version"], manifest.pop("sha256")
    except MemoryError:
        raise
    except FileNotFoundError as err:
        raise Damaged(f"{path} is missing; check the path or restore the file") from err
    except Exception as err:  # numpy and zipfile raise many kinds on damaged input
        # Refused by the system is not damaged: no reason to go back to an older file.
        if isinstance(err, OSError) and err.errno not in (None, errno.EIO):
            with os_errors(f"read {path}"):
                raise
        raise Damaged(f"{path} is damaged or not a fedpoint {kind} file ({err}); restore it") from err
    check_version(path, kind, found, version)
    if _digest(arrays, manifest) != digest:
        raise Damaged(f"{path} is damaged (its SHA-256 differs); restore it")
    return arrays, {**manifest, "sha256": digest}


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, length: int) -> np.ndarray:
    """One array of an npz file. What it says of its size is checked before memory is taken."""
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > length:
        raise ValueError(f"{info.filename} is packed, or larger than its file")
    with archive.open(info) as entry:
        version = np.lib.format.read_magic(entry)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(entry)
        if dtype.hasobject or math.prod(shape) * dtype.itemsize != info.file_size - entry.tell():
            raise ValueError(f"{info.filename} holds another number of bytes than its header says")
    with archive.open(info) as entry:
        return np.lib.format.read_array(entry, allow_pickle=False)


def check_version(path: Path, kind: str, found: object, version: object) -> None:
    if found != f"fedpoint-{kind}":
        raise Damaged(f"{path} is not a fedpoint {kind} but {found!r}; check the path")
    if version != VERSION:
        raise FedpointError(
            f"{path} has format version {version} and this fedpoint reads version {VERSION}; "
            "use the fedpoint that wrote it"
        )


def checked(arrays: Mapping[str, ArrayLike], where: str) -> Arrays:
    """The arrays as numpy arrays that an npz file keeps bit for bit."""
    result: Arrays = {}
    for name, value in arrays.items():
        array = np.asarray(value, order="C")
        if not isinstance(name, str) or name in ("", _MANIFEST) or name.endswith(".npy") or "\0" in name:
            raise FedpointError(f"{where} has an array called {name!r}; choose another name")
        # The second test is for extension types, such as bfloat16, that npy files do not know.
        if array.dtype.kind not in "biufc" or np.dtype(array.dtype.str) != array.dtype:
            raise FedpointError(f"{where}[{name!r}] has dtype {array.dtype}; convert it to numbers or booleans")
        result[name] = array
    return result


def plain(value: object, where: str, drop_none: bool = False) -> Any:
    """The value in plain JSON types; without None, which TOML does not have, if `drop_none`."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise FedpointError(f"{where} has keys that are not text; use text keys")
        kept = {key: item for key, item in value.items() if not (drop_none and item is None)}
        return {key: plain(item, f"{where}.{key}", drop_none) for key, item in kept.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{i}]", drop_none) for i, item in enumerate(value)]
    if isinstance(value, bool | int | float | str) or (value is None and not drop_none):
        return value
    raise FedpointError(f"{where} is a {type(value).__name__}; use text, numbers, booleans, lists and dicts")


def to_toml(config: Mapping[str, object]) -> bytes:
    try:
        data = tomli_w.dumps(config).encode()
        if canonical(tomllib.loads(data.decode())) == canonical(config):
            return data
        problem = "it reads back differently"
    except ValueError as err:
        problem = str(err)
    raise FedpointError(f"the config cannot be written as TOML: {problem}; simplify it")


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _digest(arrays: Arrays, manifest: Mapping[str, object]) -> str:
    sha = hashlib.sha256(canonical(manifest))
    for name, array in sorted(arrays.items()):
        sha.update(canonical([name, array.dtype.str, array.shape]))
        sha.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return sha.hexdigest()
