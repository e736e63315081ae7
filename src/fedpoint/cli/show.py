"""What came out? A table for people, one JSON document for programs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click
import numpy as np

from fedpoint.config import File
from fedpoint.config.runner import RunOutcome
from fedpoint.core.errors import Diverged
from fedpoint.core.numbers import finite, with_error
from fedpoint.core.types import Plain
from fedpoint.metrics.means import mean_and_error
from fedpoint.results.run import Run
from fedpoint.show.markup import size


def picture(outcomes: list[RunOutcome], path: Path | None, folder: Path) -> Path | None:
    """Draw the curves of what did not diverge: the error where it is known, else the loss; None without either."""
    from fedpoint.show.plots import curves, known_measures

    done = {o.label: o.run for o in outcomes if o.run is not None}
    measures = known_measures(list(done.values())) if done else []
    if not measures:
        return None
    path = path or folder / f"{measures[0]}.png"
    curves(list(done.values()), path=path, what=measures[0], labels=list(done))
    return path


def report(experiment: File, outcomes: list[RunOutcome], folder: Path, figure: Path | None, as_json: bool) -> None:
    """Print what came out. Where a run diverged its message is the end, as an error."""
    if as_json:
        document = {
            "name": experiment.name,
            "folder": str(folder),
            "figure": None if figure is None else str(figure),
            "runs": [_plain(o) for o in outcomes],
        }
        click.echo(json.dumps(document, indent=2))
    else:
        if any(o.run is not None for o in outcomes):
            _table(outcomes)
        # Not through rich, which would break a long path.
        if figure is not None:
            click.echo(f"Picture: {figure}")
        click.echo(f"Folder:  {folder}")
    wrong = [o for o in outcomes if o.diverged is not None]
    if wrong:
        texts = [f"{o.label}: {o.diverged}" if len(outcomes) > 1 else str(o.diverged) for o in wrong]
        raise Diverged("\n".join(texts), wrong[0].diverged.round)  # type: ignore[union-attr]


def _curves(run: Run) -> dict[str, np.ndarray | None]:
    return {"error": run.error if run.has_error else None, "loss": run.loss if run.has_loss else None}


def _final(run: Run) -> dict[str, np.ndarray | None]:
    """(repeats,) of every final measure."""
    final = {name: None if curve is None else curve[:, -1] for name, curve in _curves(run).items()}
    return final | {name: values[:, -1] for name, values in run.evaluation.items()}


def _plain(outcome: RunOutcome) -> dict[str, Plain]:
    run, row = outcome.run, {"method": outcome.label, "folder": str(outcome.folder)}
    if run is None:
        assert outcome.diverged is not None
        return {**row, "diverged": {"round": outcome.diverged.round, "message": str(outcome.diverged)}}
    measures = {name: mean_and_error(values) for name, values in _final(run).items()}
    return {
        **row,
        "rounds": int(run.rounds[-1]),
        **{name: {"mean": finite(mean), "standard_error": finite(se)} for name, (mean, se) in measures.items()},
        "cost": dataclasses.asdict(run.cost),
        **({"privacy": run.privacy_line} if run.is_private else {}),
        "rounds_per_second": run.speed,
        "engine": run.engine,
    }


def _table(outcomes: list[RunOutcome]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    measured = dict.fromkeys(name for o in outcomes if o.run for name in _final(o.run))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", overflow="fold", min_width=12)
    for heading in ("rounds", *measured, "sent", "evaluations"):
        table.add_column(heading.replace("_", " "), justify="right", no_wrap=True)
    for outcome in outcomes:
        run = outcome.run
        if run is None:
            assert outcome.diverged is not None
            table.add_row(outcome.label, f"diverged by {outcome.diverged.round:,}")
            continue
        cost, final = run.cost, _final(run)
        cells = [with_error(*mean_and_error(final.get(name))) for name in measured]
        sent = size(cost.bytes_down + cost.bytes_up)
        table.add_row(outcome.label, f"{cost.rounds:,}", *cells, sent, f"{cost.evaluations:,.0f}")
    console = Console(highlight=False)
    # A file or a pipe has no width: nothing to wrap for.
    (console if console.is_terminal else Console(highlight=False, width=200)).print(table)
    for outcome in outcomes:
        if outcome.run is not None and outcome.run.privacy_line:
            click.echo(f"Privacy of agents, {outcome.label}: {outcome.run.privacy_line}")
