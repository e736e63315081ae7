"""What does a fit read of a table, and in which coordinates does it run? Numbers, targets, scaled columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data

from fedpoint.core.arrays import array_of
from fedpoint.core.errors import FedpointError
from fedpoint.data.encoding import Cells, Columns, Frame, categorical_columns, check_unique, plain_frame, truths_of
from fedpoint.data.preprocess import ColumnMoments, check_cells, federated_moments, is_missing


def read_fit(
    estimator: BaseEstimator,
    X: Cells,
    y: ArrayLike,
    groups: ArrayLike | None,
    labels: bool,
    categorical: str | Sequence[str] | None,
    weight: np.ndarray | None,
) -> tuple[Columns, np.ndarray, np.ndarray]:
    """The table, its numbers (n, d), and y; names and numbers of columns are noted on the estimator.

    Rows of weight 0 are checked like the others, but their categories do not count.
    """
    check_unique(X)
    given = array_of("y", y)
    if given.dtype.kind == "f" and given.ndim:
        check_cells(given, what="y")
    encoded = categorical_columns(X, categorical) if isinstance(X, Frame) else ()
    if isinstance(X, Frame) and encoded:
        validate_data(estimator, X, y, skip_check_array=True)
        target = column_or_1d(y, warn=True)
        check_consistent_length(X, target)
        table = Columns.encoding(X, encoded, groups, np.arange(len(X)) if weight is None else np.flatnonzero(weight))
        numbers = table.numbers(X)
    else:
        numbers, given = validate_data(
            estimator, plain_frame(X), y, dtype=np.float64, ensure_all_finite=False, y_numeric=not labels
        )
        check_cells(numbers, columns_of(estimator))
        table = Columns(None, (), columns_of(estimator), truths_of(X))
        target = column_or_1d(given, warn=True)
    return table, numbers, _labels(target) if labels else _target(target)


def _labels(y: np.ndarray) -> np.ndarray:
    if y.dtype == object and any(missing := [is_missing(label) for label in y.tolist()]):
        raise FedpointError(f"Input y contains no label at row {missing.index(True)}: remove the row")
    check_classification_targets(y)
    return y


def _target(y: np.ndarray) -> np.ndarray:
    try:
        numbers = np.asarray(y, dtype=float)
    except (TypeError, ValueError):
        raise FedpointError("y must be numbers; for words take a classifier") from None
    check_cells(numbers, what="y")
    return numbers


def read_rows(estimator: BaseEstimator, table: Columns, X: Cells) -> np.ndarray:
    """(n, d) numbers of the rows to predict."""
    if table.encoder is not None:
        if not isinstance(X, Frame):
            raise FedpointError("the model was fitted to a data frame with categories: give one with the same columns")
        validate_data(estimator, X, reset=False, skip_check_array=True)
        return table.numbers(X)
    numbers = validate_data(estimator, plain_frame(X), reset=False, dtype=np.float64, ensure_all_finite=False)
    check_cells(numbers, columns_of(estimator))
    return numbers


def columns_of(estimator: BaseEstimator) -> np.ndarray | None:
    """The names of the columns that scikit-learn noted in fit; None where they have none."""
    return vars(estimator).get("feature_names_in_")


@dataclass(frozen=True)
class Coordinates:
    """z = (x - shift) / width: where rounds are run, and where the model lives.

    With `own`, coefficients belong to z, as those behind a `StandardScaler` do. Otherwise they belong to x: the penalty
    is carried over, so that the minimum is the same, and z only makes the way to it shorter.
    """

    shift: np.ndarray
    width: np.ndarray
    own: bool

    @classmethod
    def of(
        cls,
        X: np.ndarray,
        groups: ArrayLike,
        weight: np.ndarray | None,
        scale: bool,
        shorten: bool,
        intercept: bool,
        ridge: float = 0.0,
    ) -> Coordinates:
        """weight: what rows count, None where all count alike. ridge: a coefficient's penalty in units of the loss's
        curvature. Where z is only a way, each of its numbers then has curvature 1, data and penalty together: a narrow
        column does not shorten everyone's steps."""
        d = X.shape[1]
        if not (scale or shorten):
            return cls(np.zeros(d), np.ones(d), False)
        found: ColumnMoments = federated_moments(X, groups, weight)
        if scale:
            return cls(found.mean, found.scale, True)
        # Without an intercept a shift would change the model.
        shift, square = (found.mean, np.zeros(d)) if intercept else (np.zeros(d), found.mean**2)
        spread = np.where(found.constant, 0.0, found.variance)
        width = np.sqrt(spread + square + ridge)
        return cls(shift, np.where(width > 0, width, 1.0), False)

    def __call__(self, X: np.ndarray) -> np.ndarray:
        return (X - self.shift) / self.width

    def ridge(self, each: float, intercept: bool) -> np.ndarray:
        """The penalty of every number of the model: `each` on a coefficient, none on the intercept, the last one."""
        own = np.full(len(self.width), each) if self.own else each / self.width**2
        return np.append(own, 0.0) if intercept else own

    def design(self, X: np.ndarray, intercept: bool) -> np.ndarray:
        Z = self(X)
        return np.column_stack([Z, np.ones(len(Z))]) if intercept else Z

    def coefficients(self, w: np.ndarray, intercept: bool) -> tuple[np.ndarray, np.ndarray]:
        """(..., d) and (...): of z where they are its own, else of x. w is (..., d or d + 1), the intercept last."""
        coef, constant = (w[..., :-1], w[..., -1]) if intercept else (w, np.zeros(w.shape[:-1]))
        if self.own:
            return coef, constant
        coef = coef / self.width
        return coef, constant - coef @ self.shift
