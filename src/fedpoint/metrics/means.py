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


def mean_text(mean: float | None, spread: float | None) -> str:
    """The mean with as many digits as its standard error allows, at most four; a dash where there is none.

    >>> mean_text(0.123456, None), mean_text(0.123456, 0.0123), mean_text(None, None)
    ('0.1235', '0.123 ± 0.01', '-')
    """
    if mean is None:
        return "-"
    return f"{mean:.4g}" if spread is None else f"{mean:.3g} ± {spread:.1g}"
