"""`fedpoint report`: what came of a run, on one page."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The file; default report.html in the folder of the run.")
@click.option("--title", metavar="TEXT", help="The heading; default: the method, or the folder's name.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit for the forecast of a run; without one the report is still written.",
)
def report(runs: tuple[Path, ...], out: Path | None, title: str | None, patience: float) -> None:
    """Write an HTML report of RUNS: folders of runs or of comparisons.

    Curves with forecast, bias and floor; losses per agent and fairness; cost; the network; configuration, versions,
    seed and what to cite. The file needs no network and no other file: read it, print it, send it.
    """
    from fedpoint.show.page import write

    path = write(runs, out, title, patience)
    click.echo(f"Report: {path} ({path.stat().st_size / 1000:,.0f} kB)")
