"""`fedpoint predict`: a model that was exported, used on a table."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from fedpoint.cli import options
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.numbers import counted
from fedpoint.data.column import Column
from fedpoint.data.columns import header_of, read_columns, shown
from fedpoint.data.recipe import read_as
from fedpoint.results.predictor import Predictor

if TYPE_CHECKING:
    from fedpoint.core.types import Plain


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), help="CSV file to write; default: print the predictions.")
@click.option("--target", metavar="COLUMN", help="Column with the true values, to score the predictions.")
@click.option(
    "--agent", metavar="COLUMN", help="Column that names each row's agent, if agents have models of their own."
)
@options.as_json
def predict(model: Path, data: Path, output: Path | None, target: str | None, agent: str | None, as_json: bool) -> None:
    """Apply a trained model to a table.

    MODEL is a file of fp.export, or the folder of a finished run. DATA is a CSV or Parquet file with a header. A model
    that was trained on a table finds its columns by name, and encodes and scales them as in training; for any other,
    the columns are the model's features, in their order.
    """
    predictor = Predictor.read(model)
    groups = _agents(predictor, data, agent)
    found = predictor.read_rows(data, target, [] if agent is None else [agent])
    if found.unknown:
        click.echo(predictor.of_unknown(found.unknown), err=True)
    columns = _columns(predictor, found.X, groups)
    predictions = columns["prediction"]
    score = None if found.target is None else _score(predictions, found.target, predictor)
    if output is not None:
        _write(output, columns)
    if as_json:
        body = {} if output is not None else {"predictions": predictions}
        click.echo(json.dumps({"rows": len(found.X), **body, **(score or {})}, indent=2))
        return
    said = f"{counted(len(found.X), 'prediction')} in {output}" if output is not None else _csv(columns)
    click.echo(said, nl=output is not None)
    if score is not None:  # on stderr beside printed predictions, which may go into a file
        for name, value in score.items():
            click.echo(f"{name.replace('_', ' ')}: {value:.6g}", err=output is None)


def _agents(predictor: Predictor, data: Path, agent: str | None) -> list[str] | None:
    """Whose rows they are; and what is said where the mean model has to serve."""
    if agent is None:
        if predictor.agents:
            said = counted(len(predictor.agents), "agent")
            click.echo(f"no --agent: predicting with the mean of the models of {said}", err=True)
        return None
    if not predictor.agents:
        raise FedpointError(f"--agent: {predictor.name} holds one model for all agents: leave the option out")
    header = header_of(data)
    if agent not in header:
        raise FedpointError(f"{shown(data)} has no column {agent!r}: {nearest(agent, header)}")
    columns, wrong = read_columns(data, [agent], names=[agent])
    if wrong or columns[agent].missing.any():
        lost = wrong or [f"row {int(columns[agent].missing.argmax()) + 1}, column {agent!r} is empty"]
        raise FedpointError(f"{shown(data)}: {lost[0]}: every row needs an agent")
    column = columns[agent]
    names = [column.text(row) for row in range(len(column.values))]
    new = sorted(set(names) - set(predictor.agents))
    if new:
        click.echo(f"{', '.join(new[:5])}: unknown agents, for which the mean model predicts", err=True)
    return names


def _columns(predictor: Predictor, rows: np.ndarray, groups: list[str] | None) -> dict[str, list[Plain]]:
    """The columns of the output: the predictions, and the probabilities of the classes."""
    scores = predictor.scores(rows, groups=groups)
    made = {"prediction": predictor.decided(scores).tolist()}
    if predictor.classes is None:
        return made
    chances = predictor.chances(scores)
    return made | {f"probability of {name}": chances[:, i].tolist() for i, name in enumerate(predictor.classes)}


def _score(predictions: list[Plain], truth: Column, predictor: Predictor) -> dict[str, float]:
    """Accuracy of a classifier, mean squared error of a regression."""
    if predictor.classes is None:
        return {"mean_squared_error": float(((np.asarray(predictions, float) - truth.values) ** 2).mean())}
    # By value where classes are numbers: 1.0 in the file is the class 1.
    like = predictor.classes.tolist()[0]
    known = [read_as(like, word) for word in truth.words or []]
    return {"accuracy": float(np.mean([p == known[t] for p, t in zip(predictions, truth.values, strict=True)]))}


def _csv(columns: dict[str, list[Plain]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return out.getvalue()


def _write(path: Path, columns: dict[str, list[Plain]]) -> None:
    from fedpoint.store import disk

    disk.write_bytes(path, _csv(columns).encode())
