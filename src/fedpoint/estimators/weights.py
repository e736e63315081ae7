"""What does a row count in a fit? `sample_weight` and `class_weight`, as scikit-learn has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.errors import FedpointError

Label: TypeAlias = str | int | float | bool
ClassWeight: TypeAlias = Mapping[Label, float] | str | None


def check_sample_weight(sample_weight: ArrayLike, y: ArrayLike) -> np.ndarray:
    """(n,): one number a row, at least 0 and not all 0; one number for all is allowed."""
    rows = np.asarray(y).shape[:1]
    try:
        weight = np.asarray(sample_weight, dtype=float)
    except (TypeError, ValueError):
        raise FedpointError(f"sample_weight must be numbers, one a row; got {sample_weight!r}") from None
    weight = np.full(rows, float(weight)) if weight.ndim == 0 else weight
    if weight.shape != rows:
        raise FedpointError(f"sample_weight has shape {weight.shape}, but y has {' x '.join(map(str, rows))} rows")
    bad = ~(np.isfinite(weight) & (weight >= 0))
    if bad.any():
        row = int(bad.argmax())
        raise FedpointError(f"sample_weight is {weight[row]:g} at row {row}: weights must be finite, and at least 0")
    if not weight.any():
        raise FedpointError("sample_weight is zero everywhere: at least one row must count")
    return weight


def class_weights(class_weight: ClassWeight, classes: np.ndarray, label: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """(C,): what rows of each class count, times their own weight; label: (n,) each row's number among the classes.

    "balanced" is n / (C n_c), from the sums that agents send of their rows' weights: every class then counts alike.
    """
    if class_weight is None:
        return np.ones(len(classes))
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise FedpointError(f'class_weight must be a dictionary, "balanced" or None; got {class_weight!r}')
        return weight.sum() / (len(classes) * np.bincount(label, weight, len(classes)))
    if not isinstance(class_weight, Mapping):
        raise FedpointError(f'class_weight must be a dictionary, "balanced" or None; got {class_weight!r}')
    names = classes.tolist()
    unknown = [name for name in class_weight if name not in names]
    if unknown:
        shown = ", ".join(repr(name) for name in names[:10])
        raise FedpointError(f"class_weight: y has no class {unknown[0]!r}; its classes are {shown}")
    return np.array([_class_weight(name, class_weight.get(name, 1.0)) for name in names])


def _class_weight(name: Label, value: float) -> float:
    """Above 0: a class that does not count would be made ever less likely, without an end."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < np.inf:
        raise FedpointError(f"class_weight of {name!r} must be a number above 0 (or leave out its rows); got {value!r}")
    return float(value)
