"""What do repeats say? Their mean, and how far it may be off."""

from __future__ import annotations

import math

import numpy as np


def mean_and_error(values: np.ndarray | None) -> tuple[float | None, float | None]:
    """The mean over repeats and its standard error; None where there is none.

    >>> mean_and_error(np.array([1.0, 3.0])), mean_and_error(np.array([2.0])), mean_and_error(None)
    ((2.0, 1.0), (2.0, None), (None, None))
    """
    if values is None:
        return None, None
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
