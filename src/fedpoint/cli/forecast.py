"""`fedpoint forecast`: what must happen, before anything is run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedpoint.cli import options
from fedpoint.cli.status import Status
from fedpoint.core.numbers import counted

if TYPE_CHECKING:
    from fedpoint.core.types import Plain
    from fedpoint.results.forecast import Forecast


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--target", type=float, metavar="X", help="Also print the round in which the expected error falls to X.")
@click.option("--bounds", "with_bounds", is_flag=True, help="Also print the lectures' bounds.")
@options.figure("Draw the curve; the suffix chooses png, svg or pdf.")
@options.as_json
@click.pass_context
def forecast(
    ctx: click.Context, file: Path, target: float | None, with_bounds: bool, figure: Path | None, as_json: bool
) -> None:
    """Predict where the runs of FILE.toml converge, how far from the optimum, how fast and how noisily; run nothing.

    The exit status is 4 when one of them diverges, 3 when no limit was found for one.
    """
    from fedpoint.config import read
    from fedpoint.verbs.forecast import forecast as make

    experiment = read(file)
    documents: list[dict[str, Plain]] = []
    statuses = []
    for number, entry in enumerate(experiment, 1):
        with busy(f"{entry.name} ({number} of {len(experiment)})"):
            f = make(entry.experiment)
            text = f.text()
            statuses.append(Status.DIVERGES if f.diverges else Status.UNDECIDED if f.reason else Status.FINE)
            rounds = None if target is None else f.rounds_to(target)
        drawn = None
        if figure is not None:
            drawn = figure if not experiment.comparison else figure.with_stem(f"{figure.stem}-{number}")
            f.plot(str(drawn), title=entry.name)
        if as_json:
            reached = {} if rounds is None else {"rounds_to_target": str(rounds) if rounds.reason else int(rounds)}
            documents.append({"method": entry.name, **f.to_dict(), **reached})
            continue
        click.echo(text)
        if rounds is not None:
            click.echo(f"  to {target:g}".ljust(14) + (str(rounds) if rounds.reason else counted(rounds, "round")))
        if with_bounds and entry.experiment.network is None:
            click.echo(bounds_text(f))
        if drawn is not None:
            click.echo(f"  picture     {drawn}")
        click.echo()
    if as_json:
        click.echo(json.dumps({"name": experiment.name, "forecasts": documents}, indent=2))
    ctx.exit(Status.worst(statuses))


@contextlib.contextmanager
def busy(what: str) -> Iterator[None]:
    """A sign of life while a forecast is computed: a spinner on a terminal, a line elsewhere; on stderr."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(f"forecasting {what}"):
            yield
    else:
        click.echo(f"forecasting {what}", err=True)
        yield


def bounds_text(f: Forecast) -> str:
    """Each bound beside what the forecast says of the same quantity; a void one with its reason."""
    from fedpoint.theory.bounds.bound import DEVIATION, FACTOR, FLOOR

    exact = {FACTOR: f.rate_ms, FLOOR: f.floor, DEVIATION: f.variance}
    width = max((len(b.lecture) for b in f.bounds), default=0)
    lines = []
    for b in f.bounds:
        what = f"  {b.lecture:<{width}}  {b.quantity}"
        if b.void:
            lines.append(f"{what}: void, {b.void}")
            continue
        beside = exact.get(b.quantity)
        kind = f", {b.kind}" if b.kind else ""
        lines.append(f"{what}: {b.value:.4g}{kind}" + ("" if beside is None else f"; forecast {beside:.4g}"))
    return "\n".join(lines)
