"""`fedpoint new`: a file to begin with."""

from __future__ import annotations

import shlex
from importlib import resources
from pathlib import Path

import click

from fedpoint.core.errors import FedpointError


@click.command()
@click.argument("name")
def new(name: str) -> None:
    """Write a commented TOML file to start from.

    NAME.toml holds a small experiment that runs as it is, with a comment on every key.

    \b
    fedpoint new mine
    fedpoint forecast mine.toml
    fedpoint run mine.toml
    """
    path = Path(name if name.endswith(".toml") else f"{name}.toml")
    text = resources.files("fedpoint.config").joinpath("new.toml").read_text(encoding="utf-8")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text.format(name=path.stem, file=path))
    except FileExistsError:
        raise FedpointError(f"{path} already exists: remove it, or choose another name") from None
    except OSError as error:
        raise FedpointError(f"cannot write {path}: {error.strerror}") from None
    click.echo(f"Wrote {path}. Next: fedpoint forecast {shlex.quote(str(path))}")
