"""`fedpoint cite`: what to cite."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("names", nargs=-1, required=True)
def cite(names: tuple[str, ...]) -> None:
    """Print BibTeX of what NAMES use: algorithms, TOML files, run folders. fedpoint itself is always among it."""
    click.echo(bibtex(names))


def bibtex(names: Iterable[str]) -> str:
    """BibTeX of what algorithms, files and folders use, each publication once, and of fedpoint."""
    references = {r.key: r.bibtex() for name in names for r in _references(name)}
    return "\n\n".join([*references.values(), _fedpoint()])


def _references(name: str) -> list[Any]:
    """The publications behind an algorithm, a file or a folder."""
    from fedpoint.cli.experiment import COMPARISON
    from fedpoint.config import read
    from fedpoint.config.methods import card_of, makers
    from fedpoint.config.schemes import describe
    from fedpoint.report.folder import RunFolder

    path = Path(name)
    if path.is_dir() and not (path / COMPARISON).exists():
        config = RunFolder.open(path).config
        name = (config.get("experiment") or config)["algorithm"]["name"]  # a file may say a preset
        own = card_of(name).references if name in makers() else ()  # none for the user's own algorithm
        return [*own, *_of_scheme(config["participation"])]
    if path.is_dir() or path.suffix == ".toml":
        found: list[Any] = []
        for member in read(path / COMPARISON if path.is_dir() else path).members:
            own = card_of(member.content["algorithm"]["name"]).references
            found += [*own, *_of_scheme(describe(member.participation or member.schedule))]
        return found
    return list(card_of(name).references)


def _of_scheme(description: dict[str, Any]) -> list[Any]:
    """The publications behind a participation, and behind one that it is around."""
    from fedpoint.algorithms.references import LI_CONVERGENCE, RIZK

    inner = _of_scheme(description["scheme"]) if "scheme" in description else []
    return [*{"ByWeight": [LI_CONVERGENCE], "Importance": [RIZK]}.get(description["class"], []), *inner]


def _fedpoint() -> str:
    from fedpoint import __version__

    return (
        "@software{fedpoint,\n  author = {The fedpoint authors},\n"
        "  title = {fedpoint: federated optimisation that knows where it will end},\n"
        f"  version = {{{__version__}}}\n}}"
    )
