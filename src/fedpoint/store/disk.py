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
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np
import tomli_w
from filelock import FileLock, Timeout
from numpy.typing import ArrayLike

from fedpoint.core.errors import FedpointError
from fedpoint.core.files import NotAFile, as_text, check_regular, open_file, read_file
from fedpoint.core.memory_limits import in_bytes, memory
from fedpoint.core.system import FOLDERS
from fedpoint.store.place import WorkFolder, held

if TYPE_CHECKING:  # it loads JAX
    from fedpoint.core.types import Plain

Arrays: TypeAlias = dict[str, np.ndarray]
Table: TypeAlias = dict[str, Any]  # what a file holds, before anybody has checked it

VERSION = 1
SECTOR = 512  # bytes that a disk writes at once
_MANIFEST = "__manifest__"
SEAL = "sha256"  # in a JSON file: the hash of the rest of it
DEEPEST = 50  # tables and lists in each other, of a TOML file
LONGEST = 1000  # bits of a whole number in it, which is then within the floats too
_HINTS = {
    errno.ELOOP: "nothing in a run folder may be a link, remove it",
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


class Busy(FedpointError):
    """Another process is writing into a folder."""


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
    with held(path) as folder:
        folder.sync()


def temporary(path: Path) -> Path:
    if not path.name:
        raise FedpointError(f"cannot write {path}: it is a folder; give the name of a file")
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


@contextlib.contextmanager
def atomic(path: Path, links: bool = True, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file that takes its name once it is complete and on disk; what had the name before is never written to.

    links: its folder may be one. mode: who may read and write it, from its first byte on.
    """
    temp, name = temporary(path).name, path.name
    with os_errors(f"write {path} (what was there before is untouched)"), held(path.parent, links) as folder:
        with contextlib.suppress(FileNotFoundError):
            check_regular(path, folder.stat(name))
        try:
            with open(temp, "xb", opener=partial(folder.open, mode=mode)) as file:
                yield file
                sync(file)
            folder.replace(temp, name)
            folder.sync()
        except BaseException:
            with contextlib.suppress(OSError):
                folder.unlink(temp)
            raise


def _open_own(folder: WorkFolder, path: Path, flags: int) -> int:
    """A file that is written to in place, in its folder. It must have no other name: what is written is ours alone."""
    own = folder.open(path.name, flags)
    try:
        check_own(path, os.fstat(own))
    except BaseException:
        os.close(own)
        raise
    return own


def check_own(path: Path, status: os.stat_result) -> None:
    """Refuse what is not a file, or a file that has another name too."""
    check_regular(path, status)
    if status.st_nlink > 1:
        raise NotAFile(
            f"{path} has another name too (a hard link), under which it would change: put a copy in its place"
        )


def write_bytes(path: Path, data: bytes) -> None:
    with atomic(path) as file:
        file.write(data)


def write_secret(path: Path, data: bytes) -> None:
    """A file that nobody but its owner can ever read."""
    with atomic(path, mode=0o600) as file:
        file.write(data)


def write_aside(folder: Path, files: Mapping[str, bytes]) -> None:
    """Files of a folder that nobody sees yet: on disk, without the detour of `atomic`."""
    for name, data in files.items():
        with os_errors(f"write {folder / name}"), open(folder / name, "wb") as file:
            file.write(data)
            if data:
                sync(file)
    sync_folder(folder)


def write_new(path: Path, data: bytes) -> None:
    """A file of which whoever reads it knows whether it is whole, by a hash: it needs no detour, and waits once."""
    with os_errors(f"write {path}"), held(path.parent) as folder, open(path.name, "wb", opener=folder.open) as file:
        file.write(data)
        sync(file)


def append_line(path: Path, line: bytes) -> None:
    with os_errors(f"write {path}"), held(path.parent) as folder:
        size = folder.stat(path.name, links=False).st_size
        try:
            with open(path.name, "ab", opener=lambda _, flags: _open_own(folder, path, flags & ~os.O_CREAT)) as file:
                file.write(line + b"\n")
                sync(file)
        except BaseException:  # a second Ctrl-C too
            with contextlib.suppress(OSError):
                cut(path, size)  # half a line would spoil the next one
            raise


def overwrite(path: Path, data: bytes) -> None:
    """Write a small file anew in place, which waits for the disk once and not twice. It must be there, and as long: one
    sector, of which a crash leaves what was there or what was to come."""
    if len(data) > SECTOR:
        raise ValueError(f"{len(data)} bytes are more than a sector")
    with os_errors(f"write {path}"), held(path.parent) as folder:
        own = _open_own(folder, path, os.O_WRONLY)
        try:
            os.write(own, data)
            os.fsync(own)
        finally:
            os.close(own)


def cut(path: Path, size: int) -> None:
    """Leave the first bytes of a file, in place."""
    with held(path.parent) as folder:
        own = _open_own(folder, path, os.O_WRONLY)
        try:
            os.ftruncate(own, size)
        finally:
            os.close(own)


def remove(folder: Path, unwanted: Callable[[str], bool], links: bool = False) -> None:
    """Remove the files of a folder with such names. links: the folder may be one."""
    with held(folder, links) as place:
        for name in filter(unwanted, place.names()):
            place.unlink(name)


def check_contents(folder: Path, *inside: str) -> None:
    """Refuse a folder from elsewhere that leads elsewhere: it holds files and folders, and nothing else."""
    for place in (folder, *(folder / name for name in inside)):
        if place is not folder and not place.exists():
            continue
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.is_symlink():
                    raise NotAFile(
                        f"{entry.path} is a symbolic link: a run folder is read and written only where none of its "
                        "files leads elsewhere; put what it leads to in its place, or remove it"
                    )
                if not entry.is_file(follow_symlinks=False) and not entry.is_dir(follow_symlinks=False):
                    check_regular(entry.path, entry.stat(follow_symlinks=False))


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


def read_end(path: Path, count: int) -> bytes:
    """The last bytes of a file inside a run folder."""
    with open_file(path, links=False) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - count))
        return file.read(count)


def read_lines(path: Path) -> tuple[list[Table], int]:
    """The objects of a JSON Lines file, and its length; both without a last line that a crash cut short."""
    with os_errors(f"read {path}"):
        lines = read_file(path, memory() // 4, links=False).splitlines(keepends=True)
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
        door, note = folder / "writing.lock", folder / "lock"  # the second says who holds it, to people and the page
        for path in (door, note):
            with contextlib.suppress(FileNotFoundError):
                check_own(path, path.lstat())
        self._lock = FileLock(door, thread_local=False)
        try:
            self._lock.acquire(blocking=False)
        except Timeout as err:
            raise Busy(
                f"process {holder(folder) or '?'} is writing {folder}; wait for it, or choose another name"
            ) from err
        try:
            self._sign(note)
        except BaseException:
            self.close()
            raise

    def _sign(self, note: Path) -> None:
        with held(note.parent) as folder:
            own = _open_own(folder, note, os.O_WRONLY | os.O_CREAT)
            try:
                os.ftruncate(own, 0)
                os.write(own, str(os.getpid()).encode())
            finally:
                os.close(own)

    def close(self) -> None:
        self._lock.release()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def claim(aside: Path, path: Path, lock: Lock) -> Lock:
    """Give a folder its name, and go on holding its lock. An empty folder may have the name."""
    if FOLDERS:
        os.rename(aside, path)
        return lock
    lock.close()  # Windows renames no folder with an open file in it, and none over another
    with contextlib.suppress(FileNotFoundError):
        path.rmdir()
    os.rename(aside, path)
    return take_lock(path)


def holder(folder: Path) -> int | None:
    """The process that last held the lock of a folder."""
    try:
        return int(read_file(folder / "lock", 100, links=False))
    except (OSError, ValueError):
        return None


def take_lock(folder: Path) -> Lock:
    """The lock of a folder, or one clear message about who holds it."""
    return Lock(folder)


def write_npz(path: Path, kind: str, arrays: Arrays, body: Mapping[str, object], links: bool = True) -> str:
    """Write arrays with their manifest; returns the SHA-256 of both. Same content, same bytes.

    links: the folder may be one.
    """
    manifest = {"format": f"fedpoint-{kind}", "version": VERSION, **body}
    digest = array_digest(arrays, manifest)
    packed = np.frombuffer(canonical({**manifest, "sha256": digest}), np.uint8)
    # Not np.savez: it cannot store an array called "file", and it writes the time into the file.
    with atomic(path, links) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in {_MANIFEST: packed, **arrays}.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
    return digest


def read_npz(path: Path, kind: str, links: bool = True) -> tuple[Arrays, Table]:
    """The arrays and the manifest of a file. links: the name may be one."""
    with _archive(path, kind, links) as (archive, length):
        arrays = {info.filename.removesuffix(".npy"): _array(archive, info, length) for info in archive.infolist()}
        manifest = read_object(arrays.pop(_MANIFEST).tobytes())
        found, version, digest = manifest["format"], manifest["version"], manifest.pop("sha256")
    check_version(path, kind, found, version)
    if array_digest(arrays, manifest) != digest:
        raise Damaged(f"{path} is damaged (its SHA-256 differs); restore it")
    return arrays, {**manifest, "sha256": digest}


def read_manifest(path: Path, kind: str) -> Table:
    """The manifest of a file inside a run folder, at a glance: the arrays are not looked at."""
    with _archive(path, kind, links=False) as (archive, length):
        manifest = read_object(_array(archive, archive.getinfo(f"{_MANIFEST}.npy"), length).tobytes())
        found, version, _ = manifest["format"], manifest["version"], manifest["sha256"]
    check_version(path, kind, found, version)
    return manifest


@contextlib.contextmanager
def _archive(path: Path, kind: str, links: bool) -> Iterator[tuple[zipfile.ZipFile, int]]:
    """An npz file and its length; whatever goes wrong with its content is damage."""
    try:
        with open_file(path, links) as file, zipfile.ZipFile(file) as archive:
            length = os.fstat(file.fileno()).st_size
            if length > memory():
                raise NotAFile(
                    f"{path} is {in_bytes(length)} long, and only {in_bytes(memory())} of memory are available"
                )
            yield archive, length
    except (MemoryError, NotAFile):
        raise
    except FileNotFoundError as err:
        raise Damaged(f"{path} is missing; check the path or restore the file") from err
    except Exception as err:  # numpy and zipfile raise many kinds on damaged input
        # Refused by the system is not damaged: no reason to go back to an older file.
        if isinstance(err, OSError) and err.errno not in (None, errno.EIO):
            with os_errors(f"read {path}"):
                raise
        raise Damaged(f"{path} is damaged or not a fedpoint {kind} file ({err}); restore it") from err


def seal(content: Table) -> Table:
    """The object with the SHA-256 of the rest of it."""
    return {**content, SEAL: hashlib.sha256(canonical(content)).hexdigest()}


def check_seal(path: Path, content: Table) -> None:
    """Refuse an object that is not as it was written."""
    if content.get(SEAL) != seal({name: value for name, value in content.items() if name != SEAL})[SEAL]:
        raise Damaged(f"{path} is damaged or was changed (its SHA-256 differs)")


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
        problem = "it reads back differently; simplify it"
    except UnicodeEncodeError as err:
        name = as_text(err.object[max(0, err.start - 60) : err.end])
        problem = f"a name in it is not UTF-8 text ({name}); rename that file or folder"
    except ValueError as err:
        problem = f"{err}; simplify it"
    raise FedpointError(f"the config cannot be written as TOML: {problem}")


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def array_digest(arrays: Mapping[str, np.ndarray], manifest: Mapping[str, object]) -> str:
    """SHA-256 of arrays, their names, types and shapes, and what is said of them."""
    sha = hashlib.sha256(canonical(manifest))
    for name, array in sorted(arrays.items()):
        sha.update(canonical([name, array.dtype.str, array.shape]))
        sha.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return sha.hexdigest()
