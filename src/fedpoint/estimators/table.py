"""Which numbers does a model see of a table? Categories encoded, columns scaled, both from what agents send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data

from fedpoint.core.errors import FedpointError
from fedpoint.data.preprocess import (
    ColumnMoments,
    FederatedEncoder,
    check_cells,
    check_groups,
    federated_moments,
    is_missing,
)


@runtime_checkable
class Frame(Protocol):
    """What is asked of a data frame, pandas' or one like it."""

    iloc: Any
    columns: Any
    dtypes: Any

    def __getitem__(self, key: Any) -> Any: ...

    def __len__(self) -> int: ...

    def astype(self, dtype: Any) -> Frame: ...


Cells: TypeAlias = ArrayLike | Frame


@dataclass(frozen=True)
class Columns:
    """How rows become numbers: made in fit, used by predict."""

    encoder: FederatedEncoder | None
    categorical: tuple[str, ...]  # columns of a data frame that are encoded
    names: np.ndarray | None  # of the columns that come out

    def numbers(self, X: Cells) -> np.ndarray:
        """(n, d): a table that `validate_data` has seen."""
        if not isinstance(X, Frame) or self.encoder is None:
            return plain_numbers(X)
        numeric = [name for name in X.columns if name not in self.categorical]
        left = plain_numbers(X[numeric]) if numeric else np.zeros((len(X), 0))
        return np.concatenate([left, self.encoder.transform(X[list(self.categorical)])], axis=1)


def read_fit(
    estimator: BaseEstimator,
    X: Cells,
    y: ArrayLike,
    groups: ArrayLike | None,
    labels: bool,
    categorical: str | Sequence[str] | None,
) -> tuple[Columns, np.ndarray, np.ndarray]:
    """The table, its numbers (n, d), and y; names and numbers of columns are noted on the estimator."""
    if isinstance(X, Frame) and not X.columns.is_unique:
        raise FedpointError(f"the table has two columns {X.columns[X.columns.duplicated()][0]!r}: rename one")
    if np.asarray(y).dtype.kind == "f":
        check_cells(np.asarray(y), what="y")
    encoded = categorical_columns(X, categorical) if isinstance(X, Frame) else ()
    if isinstance(X, Frame) and encoded:
        table, numbers, target = _with_categories(estimator, X, y, groups, encoded)
    else:
        numbers, given = validate_data(
            estimator, plain_frame(X), y, dtype=np.float64, ensure_all_finite=False, y_numeric=not labels
        )
        check_cells(numbers, columns_of(estimator))
        table, target = Columns(None, (), columns_of(estimator)), column_or_1d(given, warn=True)
    return table, numbers, _labels(target) if labels else _target(target)


def _with_categories(
    estimator: BaseEstimator, X: Frame, y: ArrayLike, groups: ArrayLike | None, encoded: tuple[str, ...]
) -> tuple[Columns, np.ndarray, np.ndarray]:
    validate_data(estimator, X, y, skip_check_array=True)
    target = column_or_1d(y, warn=True)
    check_consistent_length(X, target)
    agents = None if groups is None else check_groups(groups, len(X))
    encoder = FederatedEncoder(handle_unknown="ignore").fit(X[list(encoded)], groups=agents)
    numeric = [name for name in X.columns if name not in encoded]
    names = np.array([*numeric, *encoder.get_feature_names_out()], dtype=object)
    table = Columns(encoder, encoded, names)
    return table, table.numbers(X), target


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


def categorical_columns(X: Frame, asked: str | Sequence[str] | None) -> tuple[str, ...]:
    """Columns of a data frame to encode: those asked for, or all that are not numbers."""
    if asked is not None and not (isinstance(asked, str) and asked == "auto"):
        chosen = [asked] if isinstance(asked, str) else list(asked)
        unknown = [name for name in chosen if name not in set(X.columns)]
        if unknown:
            raise FedpointError(f"categorical: the table has no column {unknown[0]!r}")
        return tuple(chosen)
    if asked is None:
        return ()
    found = []
    for name, dtype in X.dtypes.items():
        if dtype.kind in "mM":
            raise FedpointError(f"column {name} holds times: make numbers or categories of them")
        own = not isinstance(dtype, np.dtype)  # pandas' categories and strings
        if dtype.kind == "O" and (own or any(isinstance(value, str) for value in X[name].tolist())):
            found.append(name)
    return tuple(found)


def plain_frame(X: Cells) -> Cells:
    """A frame whose nullable numbers are floats, with NaN where there is none; anything else as it is."""
    if not isinstance(X, Frame) or not any(not isinstance(dtype, np.dtype) for dtype in X.dtypes):
        return X
    return X.astype(dict.fromkeys(X.columns, float))


def plain_numbers(X: Cells) -> np.ndarray:
    names = list(X.columns) if isinstance(X, Frame) else None
    numbers = check_array(plain_frame(X), dtype=np.float64, ensure_all_finite=False)
    check_cells(numbers, names)
    return numbers


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
        cls, X: np.ndarray, groups: ArrayLike, scale: bool, shorten: bool, intercept: bool, ridge: float = 0.0
    ) -> Coordinates:
        """ridge: a coefficient's penalty in units of the loss's curvature. Where z is only a way, each of its numbers
        then has curvature 1, data and penalty together: a narrow column does not shorten everyone's steps."""
        d = X.shape[1]
        if not (scale or shorten):
            return cls(np.zeros(d), np.ones(d), False)
        found: ColumnMoments = federated_moments(X, groups)
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
