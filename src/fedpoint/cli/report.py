"""`fedpoint report`: what came of a run, on one page."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="File to write; default: report.html in the folder of the run."
)
@click.option("--title", metavar="TEXT", help="Heading; default: the method, or the folder's name.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit for the forecast of each run; the report is written without one that takes longer.",
)
def report(runs: tuple[Path, ...], out: Path | None, title: str | None, patience: float) -> None:
    """Write an HTML report of one or more runs.

    RUNS are folders of runs or comparisons. The report shows curves with forecast, bias and floor, the loss of every
    agent and fairness, cost, the network, the configuration, versions, seed, and what to cite. It is one file that
    needs no network.
    """
    from fedpoint.show.page import write

    path = write(runs, out, title, patience)
    click.echo(f"Report: {path} ({path.stat().st_size / 1000:,.0f} kB)")
