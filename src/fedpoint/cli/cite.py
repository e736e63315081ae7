"""`fedpoint cite`: what to cite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("names", nargs=-1, required=True)
def cite(names: tuple[str, ...]) -> None:
    """Print BibTeX of what NAMES use: algorithms, TOML files, run folders. fedpoint itself is always among it."""
    from fedpoint.config.methods import card_of

    references = {}
    for name in names:
        algorithms, schemes = _used(name)
        for reference in [r for a in algorithms for r in card_of(a).references] + _of_schemes(schemes):
            references[reference.key] = reference.bibtex()
    click.echo("\n\n".join([*references.values(), _fedpoint()]))


def _used(name: str) -> tuple[list[str], list[Any]]:
    """Names of algorithms, and participation schemes, of an algorithm, a file or a folder."""
    from fedpoint.cli.experiment import COMPARISON
    from fedpoint.config import read
    from fedpoint.config.schemes import rebuild
    from fedpoint.report.folder import RunFolder

    path = Path(name)
    if path.is_dir() and not (path / COMPARISON).exists():
        config = RunFolder.open(path).config
        return [config["algorithm"]["name"]], [rebuild(config["participation"])]
    if path.is_dir() or path.suffix == ".toml":
        experiment = read(path / COMPARISON if path.is_dir() else path)
        return [m.content["algorithm"]["name"] for m in experiment.members], [
            m.participation for m in experiment.members
        ]
    return [name], []


def _of_schemes(schemes: list[Any]) -> list[Any]:
    from fedpoint.algorithms.references import LI_CONVERGENCE, RIZK
    from fedpoint.core.participation import scheme_names

    names = {name for scheme in schemes for name in scheme_names(scheme)}
    return [r for name, r in (("ByWeight", LI_CONVERGENCE), ("Importance", RIZK)) if name in names]


def _fedpoint() -> str:
    from fedpoint import __version__

    return (
        "@software{fedpoint,\n  author = {The fedpoint authors},\n"
        "  title = {fedpoint: federated optimisation that knows where it will end},\n"
        f"  version = {{{__version__}}}\n}}"
    )
