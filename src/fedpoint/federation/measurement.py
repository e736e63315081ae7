"""How much does a measurement say? Numbers are rounded where they are measured, rest on rows enough; bits are counted.

| measure | what leaves of it |
|---|---|
| `loss` | 3 significant digits |
| `accuracy` | whole percents |
| `auc` | the site's own, in whole percents; where each class has rows enough |
| `calibration` | mean chance, share that came true and share of the rows, by bins with rows enough of both outcomes |
| `confusion` | of each true class with rows enough: the shares of its rows that are predicted as each class |
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

Measure = Literal["loss", "accuracy", "auc", "calibration", "confusion"]
BY_CLASS = ("auc", "calibration", "confusion")  # of classifiers on tables
Matrix = list[list[float]]
DIGITS = 3  # of a loss
PERCENTS = 100  # steps of a share
BINS = 10  # of predicted chances, at most
DECADES = sys.float_info.max_10_exp - (sys.float_info.min_10_exp - sys.float_info.dig)  # that a loss may lie in


def _percent(share: float) -> float:
    return round(share * PERCENTS) / PERCENTS


def rounded(measures: Mapping[str, float]) -> dict[str, float]:
    """What leaves of a measurement: 3 significant digits of the loss, whole percents of accuracy and AUC.

    >>> rounded({"loss": 0.123456, "accuracy": 0.876, "auc": 0.9149})
    {'loss': 0.123, 'accuracy': 0.88, 'auc': 0.91}
    """
    how: dict[str, Callable[[float], float]] = {"loss": lambda loss: float(f"{loss:.{DIGITS}g}")}
    return {name: how.get(name, _percent)(value) for name, value in measures.items()}


def rounded_tables(tables: Mapping[str, np.ndarray]) -> dict[str, Matrix]:
    """Calibration and confusion in whole percents.

    >>> rounded_tables({"confusion": np.array([[0.996, 0.004]])})
    {'confusion': [[1.0, 0.0]]}
    """
    return {name: [[_percent(share) for share in row] for row in table.tolist()] for name, table in tables.items()}


def bits(classes: bool, rows: int | None = None, measures: Sequence[str] = ("loss", "accuracy"), count: int = 2) -> int:
    """The most that one measurement tells of the rows, in bits: what is rounded to so many values.

    classes: the target is one of `count` classes. Few rows make an accuracy coarser than percents.

    >>> bits(classes=False), bits(classes=True), bits(classes=True, rows=20)
    (21, 27, 25)
    >>> bits(classes=True, measures=["auc"]), bits(classes=True, measures=["confusion"])
    (7, 14)
    """
    losses = 2 * 9 * 10 ** (DIGITS - 1) * DECADES + 1  # of both signs, and 0
    share = PERCENTS + 1
    coarse = share if rows is None else min(PERCENTS, rows) + 1
    of_classes = {
        "accuracy": math.log2(coarse),
        "auc": math.log2(share),
        "calibration": 3 * BINS * math.log2(share) + BINS - 1,  # and which bins are one
        "confusion": count * (count - 1) * math.log2(share + 1),  # or left out
    }
    values = {"loss": math.log2(losses), **(of_classes if classes else {})}
    return math.ceil(sum(values[name] for name in measures if name in values))


def auc(chances: np.ndarray, label: np.ndarray, least: int) -> float | None:
    """The chance that a row of a class is given a higher chance of it than a row of another, ties half: the mean over
    classes (of two, either); None where a class, or all others together, has fewer than `least` rows.

    chances: (n, classes).

    >>> auc(np.array([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4]]), np.array([0, 1, 1]), least=1)
    1.0
    """
    found = []
    for k in range(chances.shape[1]):
        mine = label == k
        if min(mine.sum(), (~mine).sum()) < least:
            return None
        values, place = np.unique(chances[:, k], return_inverse=True)
        own, others = (np.bincount(place[some], minlength=len(values)) for some in (mine, ~mine))
        below = np.cumsum(others) - others / 2
        found.append(float(own @ below / (own.sum() * others.sum())))
    return float(np.mean(found))


def calibration(chance: np.ndarray, came: np.ndarray, rows: int, each: int) -> np.ndarray:
    """(bins, 3): mean predicted chance, share that came true and share of the rows, by tenths of the chance that are
    joined until a bin has `rows` rows and `each` of both outcomes; no bin where not even all rows together have.

    >>> calibration(np.array([0.05, 0.15, 0.95]), np.array([0, 1, 1]), rows=2, each=1)
    array([[0.38333333, 0.66666667, 1.        ]])
    """
    tenth = np.minimum((chance * BINS).astype(int), BINS - 1)
    joined: list[np.ndarray] = []
    open_bin = np.zeros(len(chance), bool)
    for k in range(BINS):
        open_bin = open_bin | (tenth == k)
        if _enough(came[open_bin], rows, each):
            joined.append(open_bin)
            open_bin = np.zeros(len(chance), bool)
    if joined:
        joined[-1] = joined[-1] | open_bin
    return np.array([[chance[b].mean(), came[b].mean(), b.mean()] for b in joined]).reshape(-1, 3)


def _enough(came: np.ndarray, rows: int, each: int) -> bool:
    return len(came) >= rows and min(came.sum(), len(came) - came.sum()) >= each


def confusion(predicted: np.ndarray, label: np.ndarray, classes: int, least: int) -> np.ndarray:
    """(classes, classes): of the rows of each true class, the shares that are predicted as each; -1 for a class with
    fewer than `least` rows.

    >>> confusion(np.array([0, 1, 1, 1]), np.array([0, 0, 1, 1]), classes=2, least=2)
    array([[0.5, 0.5],
           [0. , 1. ]])
    """
    counts = np.zeros((classes, classes))
    np.add.at(counts, (label, predicted), 1)
    total = counts.sum(1, keepdims=True)
    return np.where(total < least, -1.0, counts / np.maximum(total, 1))
