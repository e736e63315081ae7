"""How are columns scaled and categories encoded when no one may see all rows? From sums and sets that agents send.

An agent sends the number of its rows and, of each column, the mean and the sum of squared deviations from it, or
the set of its categories. The hub merges them; what comes out equals scikit-learn's `StandardScaler` and
`OneHotEncoder` on the pooled rows. What is sent says something about the data: of a single row, everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from fedpoint.core.arguments import check_names, check_parameters
from fedpoint.core.arrays import array_of
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted, there_are
from fedpoint.data.columns import Cell, is_frame
from fedpoint.data.moments import ColumnMoments, merge

if TYPE_CHECKING:
    from pandas import DataFrame
    from sklearn.utils import Tags

# What agents send


def federated_moments(
    X: np.ndarray, groups: ArrayLike | None = None, weight: np.ndarray | None = None
) -> ColumnMoments:
    """What the hub knows once every agent has sent its own. weight: (n,) what each row counts, above 0."""
    if weight is not None:
        weight = weight * (len(weight) / weight.sum())  # rounding is told by the number of rows
    return merge(
        ColumnMoments.of(X[rows], None if weight is None else weight[rows]) for rows in agents_rows(groups, len(X))
    )


def agents_rows(groups: ArrayLike | None, rows: int) -> list[np.ndarray]:
    """The numbers of each agent's rows, agents in sorted order; without groups there is one agent."""
    if groups is None:
        return [np.arange(rows)]
    names = check_groups(groups, rows)
    order = np.argsort(names, kind="stable")
    return np.split(order, np.flatnonzero(names[order][1:] != names[order][:-1]) + 1)


def check_groups(groups: ArrayLike, rows: int) -> np.ndarray:
    """One agent a row, as an array that can be sorted."""
    given = array_of("groups", groups)
    if given.shape != (rows,):
        raise FedpointError(f"groups has shape {given.shape}, but {there_are(rows, 'row')}: one agent's name a row")
    missing = np.isnan(given) if given.dtype.kind == "f" else np.zeros(rows, bool)
    if given.dtype == object:
        missing = np.array([is_missing(g) for g in given.tolist()], bool)
    if missing.any():
        raise FedpointError(f"groups is missing at row {int(missing.argmax())}: every row needs an agent")
    if given.dtype == object:
        kinds = {type(g) for g in given.tolist()}
        if len(kinds) > 1 or kinds <= {str}:  # names, or numbers and names: told apart by what they print
            given = given.astype(str)
        elif kinds <= {int, float, bool}:
            given = np.array(given.tolist())
    return given


def is_missing(value: Cell) -> bool:
    return (
        value is None or (isinstance(value, float) and value != value) or type(value).__name__ in ("NAType", "NaTType")
    )


# As transformers


@check_names
class FederatedScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    r"""$(x - \bar x)/s$ for every column, from sums that agents send: `StandardScaler` without pooling.

    Args:
        with_mean: subtract the mean.
        with_std: divide by the standard deviation; constant columns are left as wide.

    mean_, var_, scale_, n_samples_seen_: as in `StandardScaler`, of the rows of all agents.

    Arguments of methods:
        X: (n, features) rows: an array or a data frame.

    >>> scaler = FederatedScaler().fit([[1.0], [2.0], [6.0]], groups=["a", "a", "b"])
    >>> scaler.mean_, scaler.transform([[3.0]])
    (array([3.]), array([[0.]]))

    References: Chan, Golub and LeVeque, Algorithms for computing the sample variance (1983).
    """

    def __init__(self, with_mean: bool = True, with_std: bool = True):
        self.with_mean = with_mean
        self.with_std = with_std

    def fit(
        self, X: ArrayLike | DataFrame, y: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> FederatedScaler:
        """Learn means and deviations from the agents' sums.

        Args:
            y: not used; there for scikit-learn.
            groups: whose row it is; without it there is one agent.
        """
        check_parameters(self)
        X = validate_data(self, X, dtype=np.float64, ensure_all_finite=False)
        check_cells(X, vars(self).get("feature_names_in_"))
        found = federated_moments(X, groups)
        self.n_samples_seen_ = found.count
        self.mean_ = found.mean
        self.var_ = found.variance if self.with_std else None
        self.scale_ = found.scale if self.with_std else None
        return self

    def transform(self, X: ArrayLike | DataFrame) -> np.ndarray:
        """The rows with each column scaled."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64, copy=True, ensure_all_finite=False)
        check_cells(X, vars(self).get("feature_names_in_"))
        if self.with_mean:
            X -= self.mean_
        if self.with_std:
            X /= self.scale_
        return X

    def inverse_transform(self, X: ArrayLike | DataFrame) -> np.ndarray:
        """Undo `transform`."""
        check_is_fitted(self)
        X = check_array(X, dtype=np.float64, copy=True, ensure_all_finite=False)
        if X.shape[1] != self.n_features_in_:
            raise FedpointError(f"X has {X.shape[1]} columns, but the scaler was fitted to {self.n_features_in_}")
        if self.with_std:
            X *= self.scale_
        return X + self.mean_ if self.with_mean else X


@check_names
class FederatedEncoder(TransformerMixin, BaseEstimator):
    """A column of zeros and ones for every category, from the sets of categories that agents send.

    `OneHotEncoder` without pooling: a category that only one agent has gets its column too. Rows without a value are
    refused with row and column: give them a category of their own.

    Args:
        handle_unknown: "error", or "ignore": zeros for a category that no agent had.
        drop: None, or "first": no column for the first category, which is then what the intercept stands for.

    categories_: an array for each column, sorted.

    Arguments of methods:
        X: (n, features) rows: an array or a data frame.

    >>> encoder = FederatedEncoder().fit([["red"], ["blue"], ["red"]], groups=[0, 0, 1])
    >>> encoder.categories_, encoder.transform([["red"]])
    ([array(['blue', 'red'], dtype=object)], array([[0., 1.]]))
    """

    def __init__(self, handle_unknown: str = "error", drop: str | None = None):
        self.handle_unknown = handle_unknown
        self.drop = drop

    def fit(
        self, X: ArrayLike | DataFrame, y: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> FederatedEncoder:
        """Learn the categories of each column from the agents' sets of them.

        Args:
            y: not used; there for scikit-learn.
            groups: whose row it is; without it there is one agent.
        """
        check_parameters(self)
        if self.handle_unknown not in ("error", "ignore"):
            raise FedpointError(f'handle_unknown must be "error" or "ignore", got {self.handle_unknown!r}')
        if self.drop not in (None, "first"):
            raise FedpointError(f'drop must be None or "first", got {self.drop!r}')
        X = _table(X)
        validate_data(self, X, skip_check_array=True)
        columns = self._columns(X)
        agents = agents_rows(groups, len(columns[0]))
        self.categories_ = []
        for name, column in zip(self._names(), columns, strict=True):
            sent = [set(column[rows].tolist()) for rows in agents]  # a set of each agent, and no more
            self.categories_.append(_sorted(set().union(*sent), name))
        return self

    def transform(self, X: ArrayLike | DataFrame) -> np.ndarray:
        """A column of zeros and ones for every category."""
        check_is_fitted(self)
        X = _table(X)
        validate_data(self, X, reset=False, skip_check_array=True)
        parts = []
        for name, column, categories in zip(self._names(), self._columns(X), self.categories_, strict=True):
            number = {value: i for i, value in enumerate(categories.tolist())}
            place = np.array([number.get(value, -1) for value in column.tolist()], dtype=int)
            if self.handle_unknown == "error" and (place < 0).any():
                row = int((place < 0).argmax())
                raise FedpointError(
                    f"column {name}, row {row}: {column[row]!r} is not a category that any agent had in fit; "
                    'handle_unknown="ignore" encodes it as zeros'
                )
            hot = (place[:, None] == np.arange(len(categories))).astype(float)
            parts.append(hot[:, 1:] if self.drop else hot)
        return np.concatenate(parts, axis=1)

    def get_feature_names_out(self, input_features: Sequence[str] | None = None) -> np.ndarray:
        """column_category, as scikit-learn names them.

        Args:
            input_features: the names of the columns; default: those seen in `fit`.
        """
        check_is_fitted(self)
        names = self._names() if input_features is None else array_of("input_features", input_features).astype(str)
        if np.shape(names) != (len(self.categories_),):
            raise FedpointError(f"input_features must name the {counted(len(self.categories_), 'column')}")
        pairs = zip(names, self.categories_, strict=True)
        return np.array([f"{n}_{c}" for n, some in pairs for c in (some[1:] if self.drop else some)], dtype=object)

    def _names(self) -> list[str]:
        return [str(n) for n in vars(self).get("feature_names_in_", [f"x{i}" for i in range(self.n_features_in_)])]

    def _columns(self, X: np.ndarray | DataFrame) -> list[np.ndarray]:
        """Each column as plain objects, none of them missing."""
        if is_frame(X):
            columns = [np.asarray(X.iloc[:, i], dtype=object) for i in range(X.shape[1])]
        else:
            columns = list(X.astype(object).T)
        for name, column in zip(self._names(), columns, strict=True):
            for row, value in enumerate(column.tolist()):
                if is_missing(value):
                    raise FedpointError(f"column {name} has no value at row {row}: give it a category of its own")
        return columns

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = tags.input_tags.string = True
        return tags


def _table(X: ArrayLike | DataFrame) -> np.ndarray | DataFrame:
    """A data frame, or an array of any kind that scikit-learn would take; lists may mix kinds."""
    if is_frame(X):
        if not len(X):
            raise FedpointError("the table has no rows")
        return X
    table = check_array(
        np.array(X, dtype=object) if isinstance(X, list | tuple) else X, dtype=None, ensure_all_finite=False
    )
    if table.dtype.kind == "f":
        check_cells(table)
    return table


def _sorted(values: set, name: str) -> np.ndarray:
    try:
        ordered = sorted(values)
    except TypeError:
        raise FedpointError(f"column {name} holds categories of different kinds: numbers or words, not both") from None
    found = np.empty(len(ordered), dtype=object)
    found[:] = ordered
    return found


def check_cells(X: np.ndarray, names: Sequence[str] | np.ndarray | None = None, what: str = "X") -> None:
    """Refuse NaN and infinity, saying where."""
    if np.isfinite(X).all():
        return
    row, *column = (int(i) for i in np.argwhere(~np.isfinite(X))[0])
    count = int((~np.isfinite(X)).sum())
    value = "NaN" if np.isnan(X[(row, *column)]) else "infinity"
    where = "" if not column else f", column {column[0]}" if names is None else f", column {names[column[0]]}"
    more = f" (and at {counted(count - 1, 'more place')})" if count > 1 else ""
    raise FedpointError(f"Input {what} contains {value} at row {row}{where}{more}: remove or impute it")


__all__ = ["ColumnMoments", "FederatedEncoder", "FederatedScaler", "federated_moments", "merge"]
