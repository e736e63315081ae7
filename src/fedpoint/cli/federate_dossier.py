"""`fedpoint federate dossier`: a study on one page, for an ethics board or a data-protection officer."""

from __future__ import annotations

from pathlib import Path

import click

FOLDER = click.Path(path_type=Path)


@click.command()
@click.argument("folder", type=FOLDER)
@click.option("--kit", "kits", multiple=True, type=FOLDER, help="A site's kit, whose record is verified; repeatable.")
@click.option(
    "--expected", multiple=True, metavar="SITE=FILE", help="Expected rows of a site, for the forecast; repeatable."
)
@click.option("--output", type=click.Path(path_type=Path), help="The HTML file; default FOLDER/dossier.html.")
def dossier(folder: Path, kits: tuple[Path, ...], expected: tuple[str, ...], output: Path | None) -> None:
    """Write an offline HTML page about the study in FOLDER, the leader's result folder.

    It says who took part and why, which columns were read, what left each site in numbers and bytes, which controls
    applied with which parameters, how well the model serves each site, and how to verify and repeat all of it. The
    headings are those of a data-protection impact assessment.
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
