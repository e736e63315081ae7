"""Which numbers does a model see of a table? The numeric columns of a data frame, and its others encoded.

One reader for the estimators and for `fp.baselines`: what one takes, the other takes, as the same columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_array

from fedpoint.core.errors import FedpointError, nearest
from fedpoint.data.dates import forms_of
from fedpoint.data.preprocess import FederatedEncoder, check_cells, check_groups
from fedpoint.data.recipe import Feature


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
    """How rows become numbers: made of the rows that are fitted, used for others."""

    encoder: FederatedEncoder | None
    categorical: tuple[str, ...]  # columns of a data frame that are encoded
    names: np.ndarray | None  # of the columns that come out: numeric ones first, then a column for each category
    truths: tuple[str, ...] = ()  # columns of True and False, which are numbers here

    @classmethod
    def encoding(cls, X: Frame, encoded: tuple[str, ...], groups: ArrayLike | None, rows: np.ndarray) -> Columns:
        """With the categories of these rows, from the set that each agent sends."""
        agents = None if groups is None else check_groups(groups, len(X))[rows]
        encoder = FederatedEncoder(handle_unknown="ignore").fit(X[list(encoded)].iloc[rows], groups=agents)
        numeric = [name for name in X.columns if name not in encoded]
        names = np.array([*numeric, *encoder.get_feature_names_out()], dtype=object)
        return cls(encoder, encoded, names, truths_of(X))

    def first_levels(self) -> np.ndarray:
        """Where the column of each factor's first category is."""
        counts = [] if self.encoder is None else [len(some) for some in self.encoder.categories_]
        numeric = 0 if self.names is None else len(self.names) - sum(counts)
        return numeric + np.cumsum([0, *counts[:-1]], dtype=int)[: len(counts)]

    def recipe(self) -> list[Feature]:
        """How the columns of a file become these; empty where columns had no names."""
        if self.names is None:
            return []
        encoded = [] if self.encoder is None else [some.tolist() for some in self.encoder.categories_]
        numeric = self.names[: len(self.names) - sum(map(len, encoded))]
        truth: list[bool] = [False, True]
        found = [Feature(str(name), categories=truth if name in self.truths else None) for name in numeric]
        pairs = zip(self.categorical, encoded, strict=True)
        return found + [Feature(str(name), categories=some, every=True) for name, some in pairs]

    def numbers(self, X: Cells) -> np.ndarray:
        """(n, d): zeros for a category that no fitted row had."""
        if not isinstance(X, Frame) or self.encoder is None:
            return plain_numbers(X)
        numeric = [name for name in X.columns if name not in self.categorical]
        left = plain_numbers(X[numeric]) if numeric else np.zeros((len(X), 0))
        return np.concatenate([left, self.encoder.transform(X[list(self.categorical)])], axis=1)


def table_numbers(X: Cells, groups: ArrayLike) -> np.ndarray:
    """(n, d): all rows of a table, its columns that are no numbers encoded; an array as it is."""
    check_unique(X)
    encoded = categorical_columns(X, "auto") if isinstance(X, Frame) else ()
    if isinstance(X, Frame) and encoded:
        return Columns.encoding(X, encoded, groups, np.arange(len(X))).numbers(X)
    try:
        return plain_numbers(X)
    except FedpointError:
        raise
    except ValueError as error:
        why = str(error).splitlines()[0].rstrip(".: ")
        raise FedpointError(
            f"X is not a table of numbers ({why}): give (rows, columns), or a data frame, whose words are encoded"
        ) from None


def truths_of(X: Cells) -> tuple[str, ...]:
    """The columns of a data frame that hold True and False."""
    return tuple(name for name, dtype in X.dtypes.items() if dtype.kind == "b") if isinstance(X, Frame) else ()


def check_unique(X: Cells) -> None:
    if isinstance(X, Frame) and not X.columns.is_unique:
        raise FedpointError(f"the table has two columns {X.columns[X.columns.duplicated()][0]!r}: rename one")


def categorical_columns(X: Frame, asked: str | Sequence[str] | None) -> tuple[str, ...]:
    """Columns of a data frame to encode: those asked for, or all that are not numbers."""
    if asked is not None and not (isinstance(asked, str) and asked == "auto"):
        chosen = [asked] if isinstance(asked, str) else list(asked)
        unknown = [name for name in chosen if name not in set(X.columns)]
        if unknown:
            known = nearest(str(unknown[0]), [str(name) for name in X.columns])
            raise FedpointError(f"categorical: the table has no column {unknown[0]!r}: {known}")
        return tuple(chosen)
    if asked is None:
        return ()
    found = []
    for name, dtype in X.dtypes.items():
        values = X[name].tolist() if dtype.kind == "O" else []
        if dtype.kind in "mM" or forms_of(sorted({value for value in values if isinstance(value, str)})):
            raise FedpointError(
                f"column {name} holds dates or times: convert them to numbers, such as days, or to categories"
            )
        own = not isinstance(dtype, np.dtype)  # pandas' categories and strings
        if dtype.kind == "O" and (own or any(isinstance(value, str) for value in values)):
            found.append(name)
    return tuple(found)


def plain_frame(X: Cells) -> Cells:
    """A frame whose nullable numbers are floats, with NaN where there is none; anything else as it is."""
    if not isinstance(X, Frame) or not any(not isinstance(dtype, np.dtype) for dtype in X.dtypes):
        return X
    try:
        return X.astype(dict.fromkeys(X.columns, float))
    except (TypeError, ValueError) as error:
        raise FedpointError(f"the table holds something that is not a number: {error}") from None


def plain_numbers(X: Cells) -> np.ndarray:
    names = list(X.columns) if isinstance(X, Frame) else None
    numbers = check_array(plain_frame(X), dtype=np.float64, ensure_all_finite=False)
    check_cells(numbers, names)
    return numbers
