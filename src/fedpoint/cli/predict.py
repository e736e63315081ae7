"""`fedpoint predict`: a model that was exported, used on a table."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import click
import numpy as np

from fedpoint.config.text import read_text
from fedpoint.errors import FedpointError, nearest

LINEAR = ("LeastSquares", "LinearStream")
CLASSIFIER = "Logistic"


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), help="A CSV file for the predictions; default: printed.")
@click.option("--target", metavar="COLUMN", help="A column with the truth: also tells how good the predictions are.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for programs.")
def predict(model: Path, data: Path, output: Path | None, target: str | None, as_json: bool) -> None:
    """Predict with MODEL for every row of DATA.csv. MODEL is a finished run's folder, or a file from run.export.

    The table has a header; its columns are the model's features, in their order, and the target's where named.
    """
    weights, manifest = _model(model)
    header, cells = _table(data)
    truth = None
    if target is not None:
        truth = [row[_column(header, target, data)] for row in cells]
    keep = [i for i, name in enumerate(header) if name != target]
    _check_width(manifest, [header[i] for i in keep], model, data, target)
    rows = _numbers([header[i] for i in keep], [[row[i] for i in keep] for row in cells], data)
    columns, predictions = _predict(weights, manifest, rows)
    score = None if truth is None else _score(predictions, truth, manifest, target, data)
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


def _model(path: Path) -> tuple[np.ndarray, dict[str, Any]]:
    from fedpoint.report.folder import load_model

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


def _table(path: Path) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a CSV file, all of the same length."""
    text = read_text(path, "utf-8-sig")
    header, *rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text)) if row] or [[]]
    if not rows:
        raise FedpointError(f"{path} has no rows: give a header and at least one row below it")
    if len(set(header)) < len(header):
        double = next(name for name in header if header.count(name) > 1)
        raise FedpointError(f"{path}: the column {double!r} occurs twice in the header")
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise FedpointError(
                f"{path}: row {number} has {len(row)} cells, but the header names {len(header)} columns"
            )
    return header, rows


def _column(header: list[str], name: str, path: Path) -> int:
    if name not in header:
        raise FedpointError(f"{path} has no column {name!r}: {nearest(name, header)}")
    return header.index(name)


def _check_width(manifest: dict[str, Any], names: list[str], model: Path, data: Path, target: str | None) -> None:
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


def _numbers(header: list[str], cells: list[list[str]], path: Path) -> np.ndarray:
    rows = np.empty((len(cells), len(header)))
    for r, row in enumerate(cells):
        for c, cell in enumerate(row):
            rows[r, c] = _number(cell, f"{path}: row {r + 1}, column {header[c]!r}")
    return rows


def _number(cell: str, where: str) -> float:
    if not cell:
        raise FedpointError(f"{where} is empty: give a number, or leave the row out")
    if not _is_number(cell):
        raise FedpointError(f"{where} is {cell!r}, not a number")
    if not math.isfinite(float(cell)):
        raise FedpointError(f"{where} is {cell}: only finite numbers")
    return float(cell)


def _predict(w: np.ndarray, manifest: dict[str, Any], rows: np.ndarray) -> tuple[dict[str, list], list]:
    """The columns of the output, and the predictions among them."""
    if manifest["intercept"]:
        rows = np.column_stack([rows, np.ones(len(rows))])
    scores = rows @ w
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


def _score(predictions: list, truth: list[str], manifest: dict[str, Any], target: Any, path: Path) -> dict[str, float]:
    """Accuracy of a classifier, mean squared error of a regression."""
    classes = manifest["classes"]
    if classes is not None and not all(isinstance(name, int | float) for name in classes):
        return {"accuracy": float(np.mean([p == t for p, t in zip(predictions, truth, strict=True)]))}
    values = np.array([_number(cell, f"{path}: row {r}, column {target!r}") for r, cell in enumerate(truth, 1)])
    if classes is not None:
        return {"accuracy": float((np.asarray(predictions, float) == values).mean())}
    return {"mean_squared_error": float(((np.asarray(predictions) - values) ** 2).mean())}


def _csv(columns: dict[str, list]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return out.getvalue()


def _write(path: Path, columns: dict[str, list]) -> None:
    from fedpoint.report import disk

    disk.write_bytes(path, _csv(columns).encode())
