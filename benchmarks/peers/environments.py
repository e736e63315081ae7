"""An environment for each framework, made once from its packages."""

from __future__ import annotations

import venv
from pathlib import Path

import catalogue
import processes
from catalogue import PLACE

INSTALL = 1800.0  # seconds for one environment


def install(environment: str, packages: tuple[str, ...], needs: str = "") -> tuple[Path, str]:
    """The Python of an environment with these packages, and what went wrong. Made anew when they or `needs` change."""
    folder = PLACE / environment
    python, stamp = folder / "bin" / "python", folder / "packages.txt"
    wanted = "\n".join(packages) + needs
    if stamp.exists() and stamp.read_text() == wanted:
        return python, ""
    venv.create(folder, with_pip=True, clear=True)
    error = pip(python, *packages)
    if not error:
        stamp.write_text(wanted)
    return python, error


def pip(python: Path, *arguments: str) -> str:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    return processes.run(command, PLACE / f"{python.parents[1].name}-install.log", INSTALL, {}, online=True).error


def install_fedpoint() -> tuple[Path, str]:
    """From its package too: what others have to load, and what they do not, is the same for all."""
    root, needs = str(catalogue.ROOT), ("pyproject.toml", "constraints.txt")
    made_from = "\n".join((catalogue.ROOT / name).read_text() for name in needs)
    python, error = install(
        "fedpoint", ("-c", str(catalogue.ROOT / "constraints.txt"), f"{root}[federation]", "statsmodels"), made_from
    )
    return python, error or pip(python, "--no-deps", "--force-reinstall", root)  # its source may be another by now
