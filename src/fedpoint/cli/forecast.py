"""`fedpoint forecast`: what must happen, before anything is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedpoint.cli import options
from fedpoint.cli.progress import watch
from fedpoint.cli.status import Status
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted, finite

if TYPE_CHECKING:
    from fedpoint.core.types import Plain
    from fedpoint.results.forecast import Forecast


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--target", type=float, metavar="X", help="Also print the round in which the expected error falls to X.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    metavar="N",
    help="Also print the expected error after N rounds and the range of 80 % of single runs; draw N rounds.",
)
@click.option("--bounds", "with_bounds", is_flag=True, help="Also print the lectures' bounds.")
@options.figure("Draw the curve; the suffix chooses png, svg or pdf.")
@options.as_json
@click.pass_context
def forecast(
    ctx: click.Context,
    file: Path,
    target: float | None,
    rounds: int | None,
    with_bounds: bool,
    figure: Path | None,
    as_json: bool,
) -> None:
    """Predict where the runs of a TOML file converge, how fast and how noisily, without running them.

    Exit status: 0 if every run converges, 3 if no limit was found for one, 4 if one diverges.
    """
    from fedpoint.config import read
    from fedpoint.verbs.forecast import forecast as make

    experiment = read(file)
    documents: list[dict[str, Plain]] = []
    statuses = []
    for number, entry in enumerate(experiment, 1):
        with watch(False).waiting(f"forecasting {entry.name} ({number} of {len(experiment)})"):
            f = make(entry.experiment)
            text = f.text()
            statuses.append(Status.DIVERGES if f.diverges else Status.UNDECIDED if f.reason else Status.FINE)
            needed = None if target is None else f.rounds_to(target)
            after = None if rounds is None else after_rounds(f, rounds)
        drawn = None
        if figure is not None:
            drawn = figure if not experiment.comparison else figure.with_stem(f"{figure.stem}-{number}")
            f.plot(str(drawn), rounds=rounds, title=entry.name)
        if as_json:
            reached = {} if needed is None else {"rounds_to_target": str(needed) if needed.reason else int(needed)}
            later = {} if after is None else {"after": after}
            documents.append({"method": entry.name, **f.to_dict(), **reached, **later})
            continue
        click.echo(text)
        if after is not None:
            click.echo(after_text(after))
        if needed is not None:
            click.echo(f"  to {target:g}".ljust(14) + (str(needed) if needed.reason else counted(needed, "round")))
        if with_bounds and entry.experiment.network is None:
            click.echo(bounds_text(f))
        if drawn is not None:
            click.echo(f"  picture     {drawn}")
        click.echo()
    if as_json:
        click.echo(json.dumps({"name": experiment.name, "forecasts": documents}, indent=2))
    ctx.exit(Status.worst(statuses))


def after_rounds(f: Forecast, rounds: int) -> dict[str, Plain]:
    """The expected error after so many rounds, and the quantiles of a single run's; or why they are not known."""
    found: dict[str, Plain] = {"rounds": rounds}
    try:
        found["error"] = finite(float(f.curve(rounds)[-1]))
        for percent in (10, 50, 90):
            found[f"quantile_{percent}"] = finite(f.quantile(percent / 100, rounds))
    except FedpointError as error:
        found["missing"] = str(error)
    return found


def after_text(after: dict[str, Plain]) -> str:
    """The same as a line, or two where something is missing."""
    lines = []
    if after.get("error") is not None:
        lines.append(f"  at {after['rounds']}".ljust(14) + f"expected error {after['error']:.4g}")
    if "quantile_90" in after and after["quantile_90"] is not None:
        lines[-1] += f"; 80 % of single runs between {after['quantile_10']:.4g} and {after['quantile_90']:.4g}"
    if "missing" in after:
        lines.append(f"  note        {after['missing']}")
    return "\n".join(lines)


def bounds_text(f: Forecast) -> str:
    """Each bound beside what the forecast says of the same quantity; a void one with its reason."""
    from fedpoint.core.lectures import by_authors
    from fedpoint.theory.bounds.bound import DEVIATION, FACTOR, FLOOR

    exact = {FACTOR: f.rate_ms, FLOOR: f.floor, DEVIATION: f.variance}
    sources = [by_authors(b.lecture) for b in f.bounds]
    width = max(map(len, sources), default=0)
    lines = []
    for b, source in zip(f.bounds, sources, strict=True):
        what = f"  {source:<{width}}  {b.quantity}"
        if b.void:
            lines.append(f"{what}: void, {b.void}")
            continue
        beside = exact.get(b.quantity)
        kind = f", {b.kind}" if b.kind else ""
        lines.append(f"{what}: {b.value:.4g}{kind}" + ("" if beside is None else f"; forecast {beside:.4g}"))
    return "\n".join(lines)
