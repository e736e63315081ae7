"""Which numbers can stand in a JSON document? Finite ones; null stands for the others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def finite(value: Any) -> float | None:
    """The number, or None where there is none, or none that JSON has.

    >>> [finite(v) for v in (1, np.float32(0.5), float("nan"), float("inf"), None)]
    [1.0, 0.5, None, None, None]
    """
    return float(value) if value is not None and math.isfinite(value) else None


def rounded(values: Any, digits: int = 5) -> list[float | None]:
    """Numbers to as many digits as can be seen in a picture, one after the other.

    >>> rounded([[1 / 3, np.inf]])
    [0.33333, None]
    """
    return [finite(float(f"{v:.{digits}g}")) for v in np.asarray(values, float).ravel().tolist()]
