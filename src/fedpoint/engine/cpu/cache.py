"""Where are compiled programs kept? On disk in a folder that is ours alone, so that the second start does not compile
again; in memory as long as there is room for them."""

from __future__ import annotations

import itertools
import os
import stat
import warnings
from functools import cache
from pathlib import Path

import jax

from fedpoint.core.system import FOLDERS

LOOK = 16  # uses of the engine from one look at the memory maps to the next: each takes some 50 to 700
_uses = itertools.count(1)


@cache
def folder() -> Path | None:
    """fedpoint's own folder for them; None if FEDPOINT_CACHE is "off", it cannot be written, or others can write it."""
    choice = os.environ.get("FEDPOINT_CACHE", "")
    if choice == "off":
        return None
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    found = Path(choice) if choice else base / "fedpoint" / "jax"
    try:
        found.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = found.resolve()
        why = _not_ours(found)
        writable = os.access(found, os.W_OK)
    except OSError:
        return None  # a read-only home: compile every time
    if why is not None:
        warnings.warn(
            f"compiled programs in {found} are not used, because {why} and could have planted programs there. Set "
            "FEDPOINT_CACHE to a folder of your own (mode 0700), or to off",
            stacklevel=2,
        )
        return None
    return found if writable else None


def _not_ours(folder: Path) -> str | None:
    """How somebody else could put a program there for us to run; None where nobody could."""
    if not FOLDERS:  # Windows: a profile is its user's own
        return None
    for path in (folder, *folder.parents):
        status = path.stat()
        own = status.st_uid == os.getuid()
        if not own and (path == folder or status.st_uid != 0):
            return f"{path} belongs to another user"
        shared = stat.S_IWGRP | stat.S_IWOTH if path == folder else stat.S_IWOTH
        # In a folder such as /tmp, with the sticky bit, nobody can rename what is not theirs.
        if status.st_mode & shared and (path == folder or not status.st_mode & stat.S_ISVTX):
            return f"others can write to {path}"
    return None


def enable() -> None:
    """Use JAX's persistent compilation cache, in that folder unless the user has chosen one; and keep the programs in
    memory within bounds."""
    if next(_uses) % LOOK == 0:
        make_room()
    if jax.config.values.get("jax_compilation_cache_dir") is None and folder() is not None:
        jax.config.update("jax_compilation_cache_dir", str(folder()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def make_room() -> None:
    """Forget the programs in memory when their maps near the system's limit, beyond which the compiler crashes.

    Linux gives a process 65,530 memory maps, and a program takes some ten to a hundred: a thousand shapes use them up.
    """
    limit = most_maps()
    if limit is not None and maps() > limit // 2:
        jax.clear_caches()


def most_maps() -> int | None:
    """The memory maps that a process may have; None where the system does not say."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_bytes())
    except (OSError, ValueError):
        return None


def maps() -> int:
    """The memory maps that this process has."""
    return Path("/proc/self/maps").read_bytes().count(b"\n")
