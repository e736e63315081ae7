"""Where compiled programs are kept, so that the second start does not compile again."""

import os
from pathlib import Path

import jax


def enable() -> None:
    """Use JAX's persistent compilation cache, unless the user has chosen one or FEDPOINT_CACHE is "off"."""
    choice = os.environ.get("FEDPOINT_CACHE", "")
    if choice == "off" or jax.config.values.get("jax_compilation_cache_dir") is not None:
        return
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(choice) if choice else base / "fedpoint" / "jax"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a read-only home: compile every time
    if os.access(folder, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
