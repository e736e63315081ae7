"""`fedpoint run`: what a TOML file describes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedpoint.cli import options
from fedpoint.cli.processes import process_options

if TYPE_CHECKING:
    from fedpoint.verbs.processes.supervisor import Processes


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--folder", type=click.Path(path_type=Path), help="Folder of the run; default: runs/NAME-N.")
@click.option("--rounds", type=click.IntRange(min=0), metavar="N", help="Number of rounds, instead of the file's.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Seed, instead of the file's.")
@options.figure()
@options.no_figure
@options.as_json
@options.quiet
@process_options
def run(
    file: Path,
    folder: Path | None,
    rounds: int | None,
    seed: int | None,
    figure: Path | None,
    no_figure: bool,
    as_json: bool,
    quiet: bool,
    processes: Processes | None = None,
) -> None:
    """Run the experiments of a TOML file.

    Every run is a folder: interrupt it at any moment (with Ctrl-C, or by a power cut) and continue it with `fedpoint
    resume FOLDER`; the results are the same bit for bit. A list of algorithms or of values in FILE makes a comparison.

    With --processes the agents are split over processes, and a lost process is replaced. On several hosts, start the
    same command on each, with --coordinator, --process and --of; process 0 keeps the folder and prints the result.
    """
    from fedpoint.cli.progress import watch
    from fedpoint.cli.show import picture, report
    from fedpoint.config import read
    from fedpoint.config.runner import free_folder, perform, prepare

    experiment = read(file, rounds=rounds, seed=seed)
    for note in experiment.notes:
        click.echo(f"Note: {note.rstrip('.')}.", err=True)
    folder = folder or free_folder(experiment.name)
    if processes is not None and not processes.driver:
        perform(experiment, folder, watch(True), processes=processes)
        return
    prepare(experiment, folder)
    outcomes = perform(experiment, folder, watch(quiet), processes=processes)
    drawn = None if no_figure else picture(outcomes, figure, folder)
    report(experiment, outcomes, folder, drawn, as_json)
