"""Which numbers does a model see of a table? Categories encoded, columns scaled, both from what agents send."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data

from fedpoint.core.errors import FedpointError
from fedpoint.data.preprocess import FederatedEncoder, Moments, check_cells, check_groups, federated_moments, is_missing


def is_frame(X: Any) -> bool:
    return hasattr(X, "iloc") and hasattr(X, "columns")


@dataclass(frozen=True)
class Table:
    """How rows become numbers: made in fit, used by predict."""

    encoder: FederatedEncoder | None
    categorical: tuple[str, ...]  # columns of a data frame that are encoded
    names: np.ndarray | None  # of the columns that come out

    def numbers(self, X: Any) -> np.ndarray:
        """(n, d): a table that `validate_data` has seen."""
        if not is_frame(X) or self.encoder is None:
            return plain_numbers(X)
        numeric = [name for name in X.columns if name not in self.categorical]
        left = plain_numbers(X[numeric]) if numeric else np.zeros((len(X), 0))
        return np.concatenate([left, self.encoder.transform(X[list(self.categorical)])], axis=1)


def read_fit(estimator: Any, X: Any, y: Any, groups: Any, labels: bool, categorical: Any) -> tuple:
    """The table, its numbers (n, d), and y; names and numbers of columns are noted on the estimator."""
    if is_frame(X) and not X.columns.is_unique:
        raise FedpointError(f"the table has two columns {X.columns[X.columns.duplicated()][0]!r}: rename one")
    categorical = categorical_columns(X, categorical) if is_frame(X) else ()
    if y is not None:
        given = np.asarray(y)
        if given.dtype.kind == "f":
            check_cells(given, what="y")
    if categorical:
        validate_data(estimator, X, y, skip_check_array=True)
        y = column_or_1d(y, warn=True)
        check_consistent_length(X, y)
        groups = None if groups is None else check_groups(groups, len(X))
        encoder = FederatedEncoder(handle_unknown="ignore").fit(X[list(categorical)], groups=groups)
        numeric = [name for name in X.columns if name not in categorical]
        names = np.array([*numeric, *encoder.get_feature_names_out()], dtype=object)
        table = Table(encoder, categorical, names)
        numbers = table.numbers(X)
    else:
        numbers, y = validate_data(
            estimator, plain_frame(X), y, dtype=np.float64, ensure_all_finite=False, y_numeric=not labels
        )
        check_cells(numbers, getattr(estimator, "feature_names_in_", None))
        table = Table(None, (), getattr(estimator, "feature_names_in_", None))
        y = column_or_1d(y, warn=True)
    if labels:
        if y.dtype == object and any(missing := [is_missing(label) for label in y.tolist()]):
            raise FedpointError(f"Input y contains no label at row {missing.index(True)}: remove the row")
        check_classification_targets(y)
    else:
        try:
            y = np.asarray(y, dtype=float)
        except (TypeError, ValueError):
            raise FedpointError("y must be numbers; for words take a classifier") from None
        check_cells(y, what="y")
    return table, numbers, y


def read_rows(estimator: Any, table: Table, X: Any) -> np.ndarray:
    """(n, d) numbers of the rows to predict."""
    if table.encoder is not None:
        if not is_frame(X):
            raise FedpointError("the model was fitted to a data frame with categories: give one with the same columns")
        validate_data(estimator, X, reset=False, skip_check_array=True)
        return table.numbers(X)
    X = validate_data(estimator, plain_frame(X), reset=False, dtype=np.float64, ensure_all_finite=False)
    check_cells(X, getattr(estimator, "feature_names_in_", None))
    return X


def categorical_columns(X: Any, asked: Any) -> tuple[str, ...]:
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
        kind = getattr(dtype, "kind", "O")
        if kind in "mM":
            raise FedpointError(f"column {name} holds times: make numbers or categories of them")
        own = not isinstance(dtype, np.dtype)  # pandas' categories and strings
        if kind == "O" and (own or any(isinstance(value, str) for value in X[name].tolist())):
            found.append(name)
    return tuple(found)


def plain_frame(X: Any) -> Any:
    """A frame whose nullable numbers are floats, with NaN where there is none; anything else as it is."""
    if not is_frame(X) or not any(not isinstance(dtype, np.dtype) for dtype in X.dtypes):
        return X
    return X.astype(dict.fromkeys(X.columns, float))


def plain_numbers(X: Any) -> np.ndarray:
    names = list(X.columns) if is_frame(X) else None
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
        cls, X: np.ndarray, groups: Any, scale: bool, shorten: bool, intercept: bool, ridge: float = 0.0
    ) -> Coordinates:
        """ridge: a coefficient's penalty in units of the loss's curvature. Where z is only a way, each of its numbers
        then has curvature 1, data and penalty together: a narrow column does not shorten everyone's steps."""
        d = X.shape[1]
        if not (scale or shorten):
            return cls(np.zeros(d), np.ones(d), False)
        found: Moments = federated_moments(X, groups)
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
