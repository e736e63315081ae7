"""`fedpoint check`: did a run do what it must?"""

from __future__ import annotations

import json
from pathlib import Path

import click

from fedpoint.cli import options
from fedpoint.cli.status import Status

STATUSES = {"as forecast": Status.FINE, "contradicted": Status.CONTRADICTED, "undecided": Status.UNDECIDED}


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--claims", metavar="NAME", help="Method that the algorithm claims to be; default: the method it derives from."
)
@options.figure("Draw run and forecast; the suffix chooses png, svg or pdf.")
@options.as_json
@click.pass_context
def check(ctx: click.Context, folder: Path, claims: str | None, figure: Path | None, as_json: bool) -> None:
    """Compare a run with its forecast.

    FOLDER is the folder of a run, or of a comparison, which is checked run by run. Exit status: 0 if the run is as
    forecast, 1 if it contradicts its forecast, 3 if nothing could be compared or the run is not finished.
    """
    from fedpoint.config.load import load_run
    from fedpoint.store.comparison import run_folders
    from fedpoint.verbs.check import check as examine

    folders = run_folders(folder)
    verdicts = []
    for number, path in enumerate(folders, 1):
        run = load_run(path)
        verdict = examine(run, claims)
        verdicts.append((path, verdict))
        if figure is not None:
            drawn = figure if len(folders) == 1 else figure.with_stem(f"{figure.stem}-{number}")
            verdict.forecast.plot(str(drawn), run=run)
        if run.unfinished and not run.wrong:  # of which load has told
            click.echo(f"Note: {run.unfinished}; continue it with {run.stored.resume}", err=True)
        if not as_json:
            click.echo(f"{path}\n{verdict.text()}" if len(folders) > 1 else verdict.text())
    if as_json:
        document = [{"folder": str(path), **verdict.to_dict()} for path, verdict in verdicts]
        click.echo(json.dumps(document[0] if len(document) == 1 else document, indent=2))
    ctx.exit(Status.worst(STATUSES[verdict.outcome] for _, verdict in verdicts))
