"""Where compiled programs are kept, so that the second start does not compile again."""

import os
from functools import cache
from pathlib import Path

import jax


@cache
def folder() -> Path | None:
    """fedpoint's own folder for them; None if FEDPOINT_CACHE is "off", or nothing can be written there."""
    choice = os.environ.get("FEDPOINT_CACHE", "")
    if choice == "off":
        return None
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    found = Path(choice) if choice else base / "fedpoint" / "jax"
    try:
        found.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None  # a read-only home: compile every time
    return found if os.access(found, os.W_OK) else None


def enable() -> None:
    """Use JAX's persistent compilation cache, in that folder unless the user has chosen one."""
    if jax.config.values.get("jax_compilation_cache_dir") is None and folder() is not None:
        jax.config.update("jax_compilation_cache_dir", str(folder()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
