"""Which runs does a folder hold? One of its own, or those of a comparison."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fedpoint.store.disk import check_contents, os_errors

COMPARISON = "comparison.toml"  # in the folder of a comparison: the whole experiment
NUMBERED = re.compile(r"(\d{1,9})-.*", re.DOTALL)  # the names of its runs' folders


def is_comparison(folder: Path) -> bool:
    """Whether it is the folder of a comparison; one that leads elsewhere is refused."""
    with os_errors(f"open the folder {folder}"):
        if not os.path.lexists(folder / COMPARISON) or not folder.is_dir():
            return False
        check_contents(folder)
    return True


def run_folders(folder: Path) -> list[Path]:
    """The folders of the runs in it: its own, or those of a comparison."""
    if not is_comparison(folder):
        return [folder]
    numbered = {path: found for path in folder.iterdir() if (found := NUMBERED.fullmatch(path.name))}
    begun = [path for path in numbered if (path / "run.json").is_file()]
    return sorted(begun, key=lambda path: int(numbered[path][1]))
