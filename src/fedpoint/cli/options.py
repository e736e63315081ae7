"""Options that several commands have, each with its one meaning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
quiet = click.option("--quiet", "-q", is_flag=True, help="Do not show progress.")
no_figure = click.option("--no-figure", is_flag=True, help="Do not draw a picture.")


def figure(what: str = "Write the picture here; the suffix chooses png, svg or pdf.") -> Callable:
    """--figure FILE; a suffix that cannot be drawn is refused before the work begins, not after it."""
    return click.option("--figure", type=click.Path(path_type=Path), callback=_drawable, help=what)


def _drawable(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    if path is not None:
        from fedpoint.show.figures import check_path  # with JAX, which is slow to load

        check_path(path)
    return path
