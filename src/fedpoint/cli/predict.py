"""`fedpoint predict`: a model that was exported, used on a table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from fedpoint.cli import options
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.data.column import Column
from fedpoint.data.columns import BadTable, cell_at, header_of, not_values, read_columns, shown
from fedpoint.data.tables import Feature, encode

if TYPE_CHECKING:
    from fedpoint.store.disk import Table

LINEAR = ("LeastSquares", "LinearStream", "RidgeTask")
CLASSIFIER = "Logistic"


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), help="CSV file for the predictions; default: print them.")
@click.option("--target", metavar="COLUMN", help="Column with the true values; the predictions are then scored.")
@options.as_json
def predict(model: Path, data: Path, output: Path | None, target: str | None, as_json: bool) -> None:
    """Predict with MODEL for every row of DATA, CSV or Parquet. MODEL is a finished run's folder, or from run.export.

    The table has a header. A model that was learnt from a table finds its columns by their names, and encodes and
    scales them as it learnt; else the columns are the model's features, in their order, and the target's where named.
    """
    weights, manifest = _model(model)
    header = header_of(data)
    if target is not None and target not in header:
        raise FedpointError(f"{data} has no column {target!r}: {nearest(target, header)}")
    rows, truth = _rows(manifest, header, model, data, target)
    columns, predictions = _predict(weights, manifest, rows)
    score = None if truth is None else _score(predictions, truth, manifest)
    if output is not None:
        _write(output, columns)
    if as_json:
        body = {} if output is not None else {"predictions": predictions}
        click.echo(json.dumps({"rows": len(rows), **body, **(score or {})}, indent=2))
        return
    click.echo(f"{len(rows)} predictions in {output}" if output is not None else _csv(columns), nl=output is not None)
    if score is not None:  # on stderr beside printed predictions, which may go into a file
        for name, value in score.items():
            click.echo(f"{name.replace('_', ' ')}: {value:.6g}", err=output is None)


def _model(path: Path) -> tuple[np.ndarray, Table]:
    from fedpoint.store.folder import load_model

    if path.is_dir():
        if not (path / "model.npz").exists():
            raise FedpointError(f"{path} holds no model.npz: give the folder of a finished run")
        path = path / "model.npz"
    arrays, manifest = load_model(path)
    if manifest.get("problem") not in (*LINEAR, CLASSIFIER) or list(arrays) != ["model"]:
        raise FedpointError(
            f"{path} holds a model of {manifest.get('problem')}: predict knows linear and logistic models"
        )
    return arrays["model"], manifest


def _rows(
    manifest: Table, header: list[str], model: Path, data: Path, target: str | None
) -> tuple[np.ndarray, Column | None]:
    """The model's rows, and the truth where it is named; all that is wrong with them in one error."""
    recipe = [Feature(**feature) for feature in manifest.get("columns") or []]
    if recipe:
        lost = [feature.column for feature in recipe if feature.column not in header]
        if lost:
            raise BadTable([("file", f"{data} has no column {name!r}: {nearest(name, header)}") for name in lost])
    else:
        names = [name for name in header if name != target]
        _check_width(manifest, names, model, data, target)
        recipe = [Feature(name) for name in names]
    words = [feature.column for feature in recipe if feature.categories is not None]
    if target is not None and manifest["classes"] is not None:
        words = [*words, target]
    wanted = list(dict.fromkeys([feature.column for feature in recipe] + ([] if target is None else [target])))
    columns, wrong = read_columns(data, wanted, words=words)
    numbers = [f.column for f in recipe if f.categories is None] + ([] if target in (None, *words) else [target])
    wrong += _not_numbers(data, {name: columns[name] for name in numbers if name in columns})
    fixed = {feature.column for feature in recipe if feature.fill is not None}
    must = {name: column for name, column in columns.items() if name not in fixed}
    wrong += [f"{said}: give a value, or leave the row out" for said in not_values(data, must, missing=True)]
    wrong += not_values(data, columns, missing=False)
    if wrong:
        raise BadTable([("file", f"{shown(data)}: {said}") for said in wrong])
    rows, unknown = encode(recipe, columns)
    if unknown:
        click.echo(f"{unknown} cells are of categories that the model does not know", err=True)
    return rows, None if target is None else columns[target]


def _not_numbers(path: Path, columns: Mapping[str, Column]) -> list[str]:
    """Columns of words, where numbers are needed."""
    wrong = []
    for name, column in columns.items():
        if column.words is not None:
            row = int((column.values >= 0).argmax())
            wrong.append(f"row {row + 1}, column {name!r} is {cell_at(path, row, name, column)!r}, not a number")
    return wrong


def _check_width(manifest: Table, names: list[str], model: Path, data: Path, target: str | None) -> None:
    wanted = manifest["features"]
    if len(names) == wanted:
        return
    hint = ""
    if len(names) == wanted + 1 and target is None:
        hint = "; if one of them is the truth, name it with --target"
    elif all(_is_number(name) for name in names):
        hint = "; the first line looks like data: a header must stand above it"
    besides = f" besides {target!r}" if target else ""
    raise FedpointError(f"{model} has {wanted} features, but {data} has {len(names)} columns{besides}{hint}")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _predict(w: np.ndarray, manifest: Table, rows: np.ndarray) -> tuple[dict[str, list], list]:
    """The columns of the output, and the predictions among them."""
    if manifest["intercept"]:
        rows = np.column_stack([rows, np.ones(len(rows))])
    scores = rows @ w.T
    if manifest["problem"] != CLASSIFIER:
        return {"prediction": scores.tolist()}, scores.tolist()
    if scores.ndim == 1:  # two classes: the log-odds of the second
        scores = np.column_stack([np.zeros(len(scores)), scores])
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    classes = manifest["classes"]
    predictions = [classes[i] for i in scores.argmax(axis=1)]
    shares = {f"probability of {name}": chances[:, i].tolist() for i, name in enumerate(classes)}
    return {"prediction": predictions, **shares}, predictions


def _score(predictions: list, truth: Column, manifest: Table) -> dict[str, float]:
    """Accuracy of a classifier, mean squared error of a regression."""
    classes = manifest["classes"]
    if classes is None:
        return {"mean_squared_error": float(((np.asarray(predictions) - truth.values) ** 2).mean())}
    # By value where classes are numbers: 1.0 in the file is the class 1.
    read = float if all(isinstance(name, int | float) for name in classes) else str
    known = [_as(read, word) for word in truth.words or []]
    return {"accuracy": float(np.mean([p == known[t] for p, t in zip(predictions, truth.values, strict=True)]))}


def _as(kind: type[float] | type[str], word: str) -> float | str | None:
    try:
        return kind(word)
    except ValueError:
        return None


def _csv(columns: dict[str, list]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return out.getvalue()


def _write(path: Path, columns: dict[str, list]) -> None:
    from fedpoint.store import disk

    disk.write_bytes(path, _csv(columns).encode())
