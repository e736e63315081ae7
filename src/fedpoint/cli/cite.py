"""`fedpoint cite`: what to cite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fedpoint.core.reference import Reference


@click.command()
@click.argument("names", nargs=-1, required=True)
def cite(names: tuple[str, ...]) -> None:
    """Print BibTeX entries for algorithms, files or runs.

    NAMES are names of algorithms, TOML files or run folders. fedpoint itself is always included.
    """
    from fedpoint.results.citations import bibtex

    click.echo(bibtex(reference for name in names for reference in _references(name)))


def _references(name: str) -> list[Reference]:
    """The publications behind an algorithm, a file or a folder."""
    from fedpoint.config import read
    from fedpoint.core.describe import describe_record
    from fedpoint.results.citations import of_method, of_run, of_scheme, of_table
    from fedpoint.store.comparison import COMPARISON, is_comparison

    path = Path(name)
    if path.is_dir() and not is_comparison(path):
        return of_run(path)
    if not path.is_dir() and path.suffix != ".toml":
        return of_method(name)
    found: list[Reference] = []
    for entry in read(path / COMPARISON if path.is_dir() else path):
        found += of_table(entry.content["algorithm"])
        found += of_scheme(describe_record(entry.experiment.timing))
    return found
