"""Which runs does a folder hold? One of its own, or those of a comparison."""

from __future__ import annotations

from pathlib import Path

COMPARISON = "comparison.toml"  # in the folder of a comparison: the whole experiment


def run_folders(folder: Path) -> list[Path]:
    """The folders of the runs in it: its own, or those of a comparison."""
    if (folder / COMPARISON).is_file():
        return sorted((path.parent for path in folder.glob("*/run.json")), key=lambda p: int(p.name.split("-")[0]))
    return [folder]
