"""How much does a measurement say? Loss and accuracy are rounded where they are measured; the bits are counted."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

DIGITS = 3  # of a loss
PERCENTS = 100  # steps of an accuracy
DECADES = sys.float_info.max_10_exp - (sys.float_info.min_10_exp - sys.float_info.dig)  # that a loss may lie in


def rounded(measures: Mapping[str, float]) -> dict[str, float]:
    """What leaves of a measurement: 3 significant digits of the loss, whole percents of the accuracy.

    >>> rounded({"loss": 0.123456, "accuracy": 0.876})
    {'loss': 0.123, 'accuracy': 0.88}
    """
    how = {"loss": lambda loss: float(f"{loss:.{DIGITS}g}"), "accuracy": lambda a: round(a * PERCENTS) / PERCENTS}
    return {name: how[name](value) for name, value in measures.items()}


def bits(classes: bool, rows: int | None = None) -> int:
    """The most that one measurement tells of the rows, in bits: what is rounded to so many values.

    classes: an accuracy is among it, which a few rows make coarser than percents.

    >>> bits(classes=False), bits(classes=True), bits(classes=True, rows=20)
    (21, 27, 25)
    """
    losses = 2 * 9 * 10 ** (DIGITS - 1) * DECADES + 1  # of both signs, and 0
    shares = 1 if not classes else PERCENTS + 1 if rows is None else min(PERCENTS, rows) + 1
    return math.ceil(math.log2(losses * shares))
