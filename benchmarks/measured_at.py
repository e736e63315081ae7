"""Of which commit a figure is, and how busy the machine was: for tables whose rows are measured one by one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def measured_at() -> str:
    """The last commit, + where files differ from it, and the load of the last minute."""
    git = ["git", "-C", str(Path(__file__).parent)]
    commit = subprocess.run([*git, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "../src"], check=False).returncode
    return f"{commit.stdout.strip()}{'+' if changed else ''}, {os.getloadavg()[0]:.0f}"
