"""`fedpoint examples`: the examples that come with the package, to look at, change and run."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from fedpoint.core.errors import FedpointError, nearest


@click.command()
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Copy all examples.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("examples"), show_default=True, help="Folder to copy to."
)
def examples(names: tuple[str, ...], everything: bool, out: Path) -> None:
    """List the examples, or copy them.

    Examples are copied with the data that they read.

    \b
    fedpoint examples              list them
    fedpoint examples lab table    copy two of them
    fedpoint run examples/lab.toml
    """
    known = _known()
    names = tuple(name.removesuffix(".toml").removesuffix(".py") for name in names)
    for name in names:
        if name not in known:
            raise FedpointError(f"there is no example {name!r}: {_advice(name, known)}")
    if not names and not everything:
        width = max(map(len, known))
        for name, files in known.items():
            click.echo(f"{name:{width}}  {_about(files[0])}")
        return
    wanted = [file for name in (known if everything else dict.fromkeys(names)) for file in known[name]]
    try:
        for path in _copied(wanted, out):
            click.echo(path)
    except OSError as error:
        raise FedpointError(f"--out {out}: cannot copy examples there: {error.strerror}") from None


def _advice(name: str, known: dict[str, list[Path]]) -> str:
    """A place to copy to is a mistake that everybody makes who knows cp."""
    if set(name) & set("./\\") or Path(name).is_dir():
        return f"to copy into another folder than examples, give --out {name}"
    return nearest(name, known)


def _home() -> Path:
    """In the package where it was installed; beside its source in a clone."""
    package = Path(__file__).parents[1]
    installed = package / "examples"
    return installed if installed.is_dir() else package.parents[1] / "examples"


def _known() -> dict[str, list[Path]]:
    """The files of every example, the one that says what it is first; those of data go with it."""
    found: dict[str, list[Path]] = {}
    files = sorted(path for path in _home().rglob("*") if path.is_file() and path.suffix not in (".pyc", ""))
    for path in sorted(files, key=lambda path: path.suffix == ".csv"):
        found.setdefault(path.stem, []).append(path)
    return dict(sorted(found.items()))


def _about(path: Path) -> str:
    """Its first sentence."""
    lines = path.read_text(encoding="utf-8").splitlines()
    text = next(line for line in lines if line.strip() and not line.startswith("#!")).lstrip('#" ')
    return text.split(". ")[0].rstrip(".")


def _copied(files: list[Path], out: Path) -> list[Path]:
    """Where they are now. Nothing is written over, and nothing copied when one of them is there."""
    targets = [out / file.relative_to(_home()) for file in files]
    for target in targets:
        if target.exists():
            raise FedpointError(f"{target} already exists: remove it, or choose another folder with --out")
    for file, target in zip(files, targets, strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    return targets
