"""`fedpoint plan`: what to choose for a target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from fedpoint.cli import options
from fedpoint.cli.progress import watch
from fedpoint.core.numbers import counted

if TYPE_CHECKING:
    from fedpoint.config.plans import Overrides
    from fedpoint.results.plan import PlanProgress

MINIMISE = ("communication", "bytes", "computation", "time")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--target", type=float, metavar="X", help="Expected error (or loss) to reach, instead of the file's.")
@click.option("--budget", type=float, metavar="X", help="Upper limit of the cost that is minimised.")
@click.option("--minimise", type=click.Choice(MINIMISE), help="Cost to minimise, instead of the file's.")
@click.option("--measure", type=click.Choice(["error", "loss"]), help="Quantity that has to reach the target.")
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 1, max_open=True),
    metavar="P",
    help="Share of single runs that must reach the target, such as 0.95; default: the mean of runs.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    metavar="S",
    help="Stop the search after S seconds and return the best so far.",
)
@click.option("--verify", is_flag=True, help="Run the best choices and compare them with their forecasts.")
@click.option(
    "--top", type=click.IntRange(min=1), default=3, show_default=True, help="Number of choices that --verify runs."
)
@click.option(
    "--repeats", type=click.IntRange(min=2), default=50, show_default=True, help="Repeats of each run of --verify."
)
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Seed, instead of the file's.")
@options.figure("Write the picture here; default: NAME-plan.png.")
@options.no_figure
@options.as_json
@options.quiet
def plan(
    file: Path,
    verify: bool,
    top: int,
    repeats: int,
    figure: Path | None,
    no_figure: bool,
    as_json: bool,
    quiet: bool,
    **instead: Unpack[Overrides],
) -> None:
    """Choose the method and settings that reach a target at the least cost.

    FILE has a [problem], and a [plan] with the target. Method, step, local steps, participation and rounds are chosen
    from forecasts alone. The picture shows cost against accuracy, one line for each method.
    """
    from fedpoint.config.plans import read_plan
    from fedpoint.verbs.plan import plan as make

    asked = read_plan(file, **instead)
    with watch(quiet).counting("planning", 1.0) as tell:
        made = make(asked.problem, **asked.arguments, progress=lambda p: tell(p.part, described(p)))
    if verify and made.choices:
        made.verify(top, repeats)
    drawn = None
    if not no_figure and made.frontiers:
        drawn = figure or Path(f"{asked.name}-plan.png")
        made.plot(drawn)
    if as_json:
        document = {"name": asked.name, "figure": None if drawn is None else str(drawn), **made.to_dict()}
        click.echo(json.dumps(document, indent=2))
        return
    click.echo(made.table())
    if drawn is not None:
        click.echo(f"Picture: {drawn}")


def described(progress: PlanProgress) -> str:
    """The method that is looked at, how many settings are done, and the least cost so far."""
    from fedpoint.results.plan_table import amount

    best = "" if progress.best is None else f", least cost so far {amount(progress.best)}"
    return f"{progress.method}, {progress.done} of {counted(progress.total, 'setting')}{best}"
