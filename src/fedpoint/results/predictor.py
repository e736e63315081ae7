"""What does a model say of new rows? One that was learnt, of a run or read from the file that it was exported to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.arguments import check_names, checked_methods
from fedpoint.core.errors import FedpointError, nearest, notify
from fedpoint.core.numbers import counted

if TYPE_CHECKING:  # reading tables, which runs can do without
    from fedpoint.data.pieces import Source
    from fedpoint.data.recipe import Feature, NewRows
    from fedpoint.store.disk import Table

Rows: TypeAlias = "ArrayLike | Source"


@checked_methods
@dataclass(frozen=True, repr=False)
class Predictor:
    """A model, and how rows become predictions: `fp.load("model.npz")`, `run.predictor()`, or an estimator's.

    arrays: the model's arrays by name: `model`, that of every agent in `models` where each has its own, `shift` and
    `width` where it sees (x - shift)/width; `weights0`, `biases0` and so on of a neural network's layers. about: its
    manifest: the problem, classes, the recipe of a table's columns, the method, the rounds. name: what it is called in
    messages.
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

    @property
    def agents(self) -> list[str]:
        """Who has a model of its own; empty where one serves all."""
        return self.about.get("agents") or []

    @cached_property
    def model(self) -> np.ndarray:
        """w: (d,), or (classes, d) with more than two of them."""
        wide = self._wide()
        if "model" not in self.arrays:
            raise self._without_predictions()
        shape = (*self._outputs(), wide + self.about["intercept"])
        self._fits("models", (len(self.agents), *shape) if self.agents else None)
        return self._fits("model", shape)

    @cached_property
    def layers(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Weights and biases of a neural network, each layer's; empty where the model is linear."""
        width, found = self._wide(), []
        for i in range(self.about.get("layers") or 0):
            biases = np.asarray(self.arrays.get(f"biases{i}", np.zeros(0)), float)
            found.append((self._fits(f"weights{i}", (width, biases.size)), self._fits(f"biases{i}", (biases.size,))))
            width = biases.size
        if found and width != (len(self.about["classes"] or ()) or 1):
            raise self._unfit(f"biases{len(found) - 1}", (width,))
        return found

    def _wide(self) -> int:
        """Numbers of a row."""
        if self.about["predicts"] is None or self.about["features"] is None:
            raise self._without_predictions()
        return self.about["features"]

    def _outputs(self) -> tuple[int, ...]:
        classes = len(self.about["classes"] or ())
        return (classes,) if classes > 2 else ()

    def _fits(self, name: str, shape: tuple[int, ...] | None) -> np.ndarray:
        """An array of the model, which must have this shape; None: must not be there."""
        found = self.arrays.get(name)
        if (found is None) != (shape is None) or (found is not None and found.shape != shape):
            raise self._unfit(name, None if found is None else found.shape)
        return np.asarray(found if found is not None else [], float)

    def _unfit(self, name: str, shape: tuple[int, ...] | None) -> FedpointError:
        what = "is missing" if shape is None else f"has shape {shape}"
        features = counted(self.about["features"], "feature")
        return FedpointError(f"{self.name}: {name} {what}, which does not fit a model of {features}")

    def _without_predictions(self) -> FedpointError:
        return FedpointError(
            f"{self.name} holds a model of {self.about['problem']}, which has no predictions: linear and logistic "
            "models have, and estimators"
        )

    def predict(self, X: Rows, encoded: bool = False, groups: ArrayLike | None = None) -> np.ndarray:
        """(n,): the numbers, or the likeliest classes, of rows.

        X: a table as it was learnt from, whose columns are found by their names, encoded and scaled: a data frame, a
        dictionary of columns, a CSV or Parquet file. Of a model that was learnt from arrays: (n, features), or a table
        whose columns are the features. encoded: X has the columns of the model already. groups: whose row it is, where
        agents have models of their own; without it, and for other agents, their mean model predicts.
        """
        return self.decided(self.scores(self.rows(X, encoded), groups=groups))

    def predict_proba(self, X: Rows, encoded: bool = False, groups: ArrayLike | None = None) -> np.ndarray:
        """(n, classes): the probabilities of the classes."""
        return self.chances(self.scores(self.rows(X, encoded), groups=groups))

    # How it is done.

    def rows(self, X: Rows, encoded: bool = False) -> np.ndarray:
        """(n, features): rows as the model sees them."""
        from fedpoint.data.recipe import is_table

        if is_table(X) and not encoded:
            found = self.read_rows(X)
            if found.unknown:
                notify(self.of_unknown(found.unknown))
            return found.X
        if self.recipe and not encoded:
            raise FedpointError(
                f"{self.name} was learnt from a table and finds its columns by their names: give a data frame, a "
                "dictionary of columns or a file; of rows that are encoded and scaled already say encoded=True"
            )
        return _numbers(X, self._wide())

    def of_unknown(self, cells: int) -> str:
        """What is done with cells of categories that the model does not know."""
        every = any(feature.every for feature in self.recipe)
        how = "counted as none of those that it knows" if every else "counted as their column's first category"
        return f"{counted(cells, 'cell')} of unknown categories: {how}"

    def read_rows(self, source: Source, target: str | None = None, besides: Sequence[str] = ()) -> NewRows:
        """A table's rows as the model sees them, with a column of true values where it is named.

        besides: columns that are no features, of a table whose features are found by their order.
        """
        from fedpoint.data.recipe import Feature, new_rows, one_table

        piece, recipe = one_table(source), self.recipe
        header = piece.header()
        if target is not None and target not in header:
            raise FedpointError(f"{piece.where} has no column {target!r}: {nearest(target, header)}")
        if not recipe:
            names = [name for name in header if name not in (target, *besides)]
            self._check_width(names, piece.where, target)
            recipe = [Feature(name) for name in names]
        return new_rows(piece, recipe, target, words=self.classes is not None)

    def _check_width(self, names: list[str], where: str, target: str | None) -> None:
        wanted = self._wide()
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

    def scores(self, rows: np.ndarray, model: np.ndarray | None = None, groups: ArrayLike | None = None) -> np.ndarray:
        """(n,) or (n, classes): what the model says of rows, before it is made a prediction.

        model: another one of its kind. groups: whose rows they are, where agents have their own.
        """
        rows = self._placed(rows)
        if self.layers:
            return self._through_layers(rows)
        rows = np.column_stack([rows, np.ones(len(rows))]) if self.about["intercept"] else rows
        found = rows @ (self.model if model is None else model).T
        if groups is not None and self.agents:
            models = self.arrays["models"]
            number = {name: k for k, name in enumerate(self.agents)}
            own = np.array([number.get(str(name), -1) for name in np.asarray(groups).tolist()])
            for k in np.unique(own[own >= 0]):
                found[own == k] = rows[own == k] @ models[k].T
        return found

    def _placed(self, rows: np.ndarray) -> np.ndarray:
        """Rows in the coordinates of the model."""
        if "shift" not in self.arrays:
            return rows
        shape = (self._wide(),)
        return (rows - self._fits("shift", shape)) / self._fits("width", shape)

    def _through_layers(self, rows: np.ndarray) -> np.ndarray:
        """max(0, x W + b) through the layers, the last one without the maximum."""
        for W, b in self.layers[:-1]:
            rows = np.maximum(rows @ W + b, 0)
        W, b = self.layers[-1]
        out = rows @ W + b
        return out if self.about["predicts"] == "class" else out[:, 0]

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
            return self._mean(scores)
        return classes[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]

    def _mean(self, scores: np.ndarray) -> np.ndarray:
        """Scores as they are, or of a generalised linear model the means that they stand for."""
        link = self.about.get("link")
        if link is None:
            return scores
        import jax.numpy as jnp

        from fedpoint.core.precision import double
        from fedpoint.problems.families import LINKS

        if link not in LINKS:
            raise FedpointError(f"{self.name} has the link {link!r}, which is not known here")
        return np.asarray(double(lambda: LINKS[link].mean(jnp.asarray(scores)))())

    def __repr__(self) -> str:
        about, classes = self.about, self.classes
        names = [feature.column for feature in self.recipe]
        inputs = counted(about["features"], "feature") if about["features"] is not None else "no features"
        if names:
            inputs = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        says = "a number" if classes is None else f"one of {counted(len(classes), 'class')}"
        what = f"{says} by {inputs}" if about["predicts"] is not None else "no predictions"
        method = about.get("algorithm", {}).get("name", "")
        made = f"; {method}, {counted(about.get('rounds', 0), 'round')}" if method else ""
        own = f", of {counted(len(self.agents), 'agent')} each" if self.agents else ""
        return f"<Model of {about['problem']}: {what}{own}{made}>"


@runtime_checkable
class Exportable(Protocol):
    """What has a model to export: a run, a fitted estimator, the result of a study."""

    def export(self, path: str | Path) -> None: ...


@check_names
def export(model: Exportable, path: str | Path) -> None:
    """Write a model as npz with a manifest, for `fedpoint predict`, `fp.load` and other programs. Nothing is pickled.

    Args:
        model: a run (its first repeat: `run.export` writes others), a fitted estimator, or the result of a study.
        path: of the file; it ends in .npz.
    """
    if not isinstance(model, Exportable) or isinstance(model, type):
        raise FedpointError(
            f"fp.export takes a run, a fitted estimator or the result of a study, got {type(model).__name__}"
        )
    model.export(path)


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
