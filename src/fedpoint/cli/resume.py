"""`fedpoint resume`: go on where a run stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedpoint.cli import options
from fedpoint.cli.processes import process_options

if TYPE_CHECKING:
    from fedpoint.verbs.processes.supervisor import Processes


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--rounds", type=click.IntRange(min=0), metavar="N", help="Continue to N rounds in total.")
@options.figure()
@options.no_figure
@options.as_json
@options.quiet
@process_options
def resume(
    folder: Path,
    rounds: int | None,
    figure: Path | None,
    no_figure: bool,
    as_json: bool,
    quiet: bool,
    processes: Processes | None = None,
) -> None:
    """Continue an interrupted run, or extend a finished one.

    RUN is the folder of a run or a comparison. The results are the same bit for bit as those of a run that was never
    interrupted, also with another number of processes. --rounds extends a finished run.
    """
    from fedpoint.cli.progress import watch
    from fedpoint.cli.show import picture, report
    from fedpoint.config.runner import perform, reopen, state
    from fedpoint.store.comparison import is_comparison
    from fedpoint.verbs.load import LoadedRun

    experiment = reopen(folder)
    if rounds is not None and is_comparison(folder):
        experiment = experiment.with_rounds(rounds)
        state(experiment, folder)  # also for runs of the comparison that have not begun
    outcomes = perform(experiment, folder, watch(quiet), rounds, processes)
    if all(isinstance(o.run, LoadedRun) for o in outcomes):  # as read: none went on
        click.echo("It has already finished: continue to more rounds with --rounds N.", err=True)
    drawn = None if no_figure else picture(outcomes, figure, folder)
    report(experiment, outcomes, folder, drawn, as_json)
