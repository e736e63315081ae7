"""Samples with luck: rows, and the words that a loss of them draws from, such as those of dropout."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedpoint.core.random import Row
from fedpoint.problems.rows import Batch

LUCK = 0x80000000  # of a row of random numbers: further on than any batch


class LuckyBatch(NamedTuple):
    """Rows, and two words from which is drawn what a network asks for: functions of the run's coordinates."""

    rows: Batch | tuple[()]
    luck: Array


def lucky(rows: Batch | tuple[()], row: Row) -> LuckyBatch:
    """Rows with the luck of a row of random numbers."""
    high, low = row.words((), LUCK)
    return LuckyBatch(rows, jnp.stack([high, low]))
