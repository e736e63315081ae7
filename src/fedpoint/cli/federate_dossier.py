"""`fedpoint federate dossier`: a study on one page, for an ethics board or a data-protection officer."""

from __future__ import annotations

from pathlib import Path

import click

FOLDER = click.Path(path_type=Path)


@click.command()
@click.argument("folder", type=FOLDER)
@click.option("--kit", "kits", multiple=True, type=FOLDER, help="A site's kit, to verify its record; repeatable.")
@click.option(
    "--expected",
    multiple=True,
    metavar="SITE=FILE",
    help="Rows that a site is expected to have, for the forecast; repeatable.",
)
@click.option("--output", type=click.Path(path_type=Path), help="HTML file to write; default: FOLDER/dossier.html.")
def dossier(folder: Path, kits: tuple[Path, ...], expected: tuple[str, ...], output: Path | None) -> None:
    """Write a page that documents a study for a review.

    FOLDER is the leader's result folder. The page needs no network. It says who took part and why, which columns were
    read, what left each site in numbers and bytes, which controls applied with which parameters, how well the model
    serves each site, and how to verify and repeat all of it. The headings are those of a data-protection impact
    assessment.
    """
    from fedpoint.core.errors import FedpointError
    from fedpoint.federation.dossier import write

    files = {}
    for one in expected:
        site, equals, path = one.partition("=")
        if not (site and equals and path):
            raise FedpointError(f"--expected {one}: write SITE=FILE, such as north=north.csv")
        files[site] = path
    click.echo(write(folder, output or folder / "dossier.html", kits, files))
