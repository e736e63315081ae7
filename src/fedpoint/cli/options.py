"""Options that several commands have, each with its one meaning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for programs.")
quiet = click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
no_figure = click.option("--no-figure", is_flag=True, help="Draw no picture.")


def figure(what: str = "Where the picture goes: png, svg or pdf by its ending.") -> Callable:
    """--figure FILE; an ending that cannot be drawn is said before the work begins, not after it."""
    return click.option("--figure", type=click.Path(path_type=Path), callback=_drawable, help=what)


def _drawable(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    from fedpoint.show.plots import check_path

    if path is not None:
        check_path(path)
    return path
