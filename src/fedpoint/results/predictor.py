"""What does a model say of new rows? One that was learnt, of a run or read from the file that it was exported to."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.numbers import counted

if TYPE_CHECKING:  # reading tables, which runs can do without
    from fedpoint.data.pieces import Source
    from fedpoint.data.recipe import Feature, NewRows
    from fedpoint.store.disk import Table

Rows: TypeAlias = "ArrayLike | Source"


@dataclass(frozen=True, repr=False)
class Predictor:
    """A model, and how rows become predictions: `fp.load("model.npz")`, or `run.predictor()`.

    arrays: the model's arrays by name. about: its manifest: the problem, classes, the recipe of a table's columns, the
    method, the rounds. name: what it is called in messages.
    """

    arrays: Mapping[str, np.ndarray]
    about: Table
    name: str = "the model"

    @classmethod
    def read(cls, path: str | Path) -> Predictor:
        """What `fp.export` wrote, or the model of a finished run's folder."""
        from fedpoint.store.checks import check_model
        from fedpoint.store.folder import load_model

        path = Path(path)
        arrays, manifest = load_model(path)
        check_model(path, manifest)
        return cls(arrays, manifest, str(path))

    @property
    def classes(self) -> np.ndarray | None:
        """Those that are predicted, in the order of `predict_proba`; None where numbers are."""
        return None if self.about["classes"] is None else np.array(self.about["classes"])

    @cached_property
    def recipe(self) -> list[Feature]:
        """How a table's columns become those of the model; empty for one that was learnt from arrays."""
        from fedpoint.data.recipe import Feature

        return [Feature(**feature) for feature in self.about.get("columns") or []]

    @cached_property
    def model(self) -> np.ndarray:
        """w: (d,), or (classes, d) with more than two of them."""
        problem, wide = self.about["problem"], self.about["features"]
        if self.about["predicts"] is None or list(self.arrays) != ["model"] or wide is None:
            raise FedpointError(
                f"{self.name} holds a model of {problem}, which has no predictions: linear and logistic models have"
            )
        w, classes = np.asarray(self.arrays["model"], float), len(self.about["classes"] or ())
        if w.shape != ((classes,) if classes > 2 else ()) + (wide + self.about["intercept"],):
            raise FedpointError(f"{self.name}: a model of shape {w.shape} does not fit its {counted(wide, 'feature')}")
        return w

    def predict(self, X: Rows, encoded: bool = False) -> np.ndarray:
        """(n,): the numbers, or the likeliest classes, of rows.

        X: a table as it was learnt from, whose columns are found by their names, encoded and scaled: a data frame, a
        dictionary of columns, a CSV or Parquet file. Of a model that was learnt from arrays: (n, features), or a table
        whose columns are the features. encoded: X has the columns of the model already.
        """
        return self.decided(self.scores(self.rows(X, encoded)))

    def predict_proba(self, X: Rows, encoded: bool = False) -> np.ndarray:
        """(n, classes): the probabilities of the classes."""
        return self.chances(self.scores(self.rows(X, encoded)))

    # How it is done.

    def rows(self, X: Rows, encoded: bool = False) -> np.ndarray:
        """(n, features): rows as the model sees them."""
        from fedpoint.data.recipe import is_table

        wide = self.model.shape[-1] - self.about["intercept"]
        if is_table(X) and not encoded:
            found = self.read_rows(X)
            if found.unknown:
                said = (
                    f"{counted(found.unknown, 'cell')} of unknown categories: counted as their column's first category"
                )
                warnings.warn(said, stacklevel=3)
            return found.X
        if self.recipe and not encoded:
            raise FedpointError(
                f"{self.name} was learnt from a table and finds its columns by their names: give a data frame, a "
                "dictionary of columns or a file; of rows that are encoded and scaled already say encoded=True"
            )
        return _numbers(X, wide)

    def read_rows(self, source: Source, target: str | None = None) -> NewRows:
        """A table's rows as the model sees them, with a column of true values where it is named."""
        from fedpoint.data.recipe import Feature, new_rows, one_table

        piece, recipe = one_table(source), self.recipe
        header = piece.header()
        if target is not None and target not in header:
            raise FedpointError(f"{piece.where} has no column {target!r}: {nearest(target, header)}")
        if not recipe:
            names = [name for name in header if name != target]
            self._check_width(names, piece.where, target)
            recipe = [Feature(name) for name in names]
        return new_rows(piece, recipe, target, words=self.classes is not None)

    def _check_width(self, names: list[str], where: str, target: str | None) -> None:
        wanted = self.model.shape[-1] - self.about["intercept"]
        if len(names) == wanted:
            return
        hint = ""
        if len(names) == wanted + 1 and target is None:
            hint = "; if one of them is the truth, leave it out (--target names it)"
        elif all(map(_is_number, names)):
            hint = "; the first line looks like data: a header must stand above it"
        besides = f" besides {target!r}" if target else ""
        columns = counted(len(names), "column")
        raise FedpointError(f"{self.name} has {counted(wanted, 'feature')}, but {where} has {columns}{besides}{hint}")

    def scores(self, rows: np.ndarray, model: np.ndarray | None = None) -> np.ndarray:
        """(n,) or (n, classes): x'w of rows, by this model or another one of its kind."""
        rows = np.column_stack([rows, np.ones(len(rows))]) if self.about["intercept"] else rows
        return rows @ (self.model if model is None else model).T

    def chances(self, scores: np.ndarray) -> np.ndarray:
        """(n, classes): the softmax of scores."""
        if self.about["predicts"] != "class":
            raise FedpointError(f"{self.name} predicts numbers: there are no probabilities")
        if scores.ndim == 1:  # two classes: the log-odds of the second
            scores = np.column_stack([np.zeros(len(scores)), scores])
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)

    def decided(self, scores: np.ndarray) -> np.ndarray:
        """(n,): the prediction that scores stand for."""
        classes = self.classes
        if classes is None:
            return scores
        return classes[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]

    def __repr__(self) -> str:
        about, classes = self.about, self.classes
        names = [feature.column for feature in self.recipe]
        inputs = counted(about["features"], "feature") if about["features"] is not None else "no features"
        if names:
            inputs = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        says = "a number" if classes is None else f"one of {counted(len(classes), 'class')}"
        what = f"{says} by {inputs}" if about["predicts"] is not None else "no predictions"
        method = about.get("algorithm", {}).get("name", "")
        return f"<Model of {about['problem']}: {what}; {method}, {counted(about.get('rounds', 0), 'round')}>"


def _numbers(X: Rows, wide: int) -> np.ndarray:
    """(n, wide): an array of finite numbers."""
    try:
        rows = np.asarray(X, dtype=float)  # of what is no array NumPy says so
    except (TypeError, ValueError) as error:
        raise FedpointError(f"X must be an array of numbers: {error}") from None
    if rows.ndim != 2 or rows.shape[1] != wide:
        raise FedpointError(f"X has shape {rows.shape}: give (rows, {wide}), a column for each of the model's features")
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        raise FedpointError(f"X is {rows[row, column]} at row {row}, column {column}: give a number")
    return rows


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
