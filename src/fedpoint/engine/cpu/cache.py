"""Where compiled programs are kept, so that the second start does not compile again."""

import os
from functools import cache
from pathlib import Path

import jax


@cache
def folder() -> Path | None:
    """fedpoint's own folder for them; None if FEDPOINT_CACHE is "off", nothing can be written there, or others can."""
    choice = os.environ.get("FEDPOINT_CACHE", "")
    if choice == "off":
        return None
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    found = Path(choice) if choice else base / "fedpoint" / "jax"
    try:
        found.mkdir(parents=True, exist_ok=True, mode=0o700)
        return found if os.access(found, os.W_OK) and _ours(found) else None
    except OSError:
        return None  # a read-only home: compile every time


def _ours(folder: Path) -> bool:
    """Whether nobody else can put a program there for us to run: it is ours, and only we may write."""
    if not hasattr(os, "getuid"):  # Windows: a profile is its user's own
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def enable() -> None:
    """Use JAX's persistent compilation cache, in that folder unless the user has chosen one."""
    if jax.config.values.get("jax_compilation_cache_dir") is None and folder() is not None:
        jax.config.update("jax_compilation_cache_dir", str(folder()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
