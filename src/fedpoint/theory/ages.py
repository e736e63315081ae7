"""How much does an old answer count? Written as a linear recursion over its age, so that linear maps can follow it.

s(t) = weight' b(t), with b(t + 1) = on b(t) and b(0) = fresh: the first ages one by one, then a sum of exponentials.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedpoint.timing.staleness import Staleness

OLDEST = 1e-6  # the chance of an answer that is older than all that are looked at
ACCURACY = 1e-6  # of the weights, of the largest
FIRST = 32  # ages that are told apart one by one, at most
TERMS = (0, 2, 4, 6, 8, 10, 12, 14)  # exponentials that are tried


class Ages(NamedTuple):
    """one: one' b(t) = 1 at every age."""

    on: np.ndarray
    fresh: np.ndarray
    weight: np.ndarray
    one: np.ndarray

    @property
    def copies(self) -> int:
        return len(self.fresh)


def recursion(staleness: Staleness, least: float) -> Ages:
    """Of the weights of all ages that occur; least: the chance to answer of the slowest agent."""
    last = math.ceil(math.log(OLDEST) / math.log1p(-least)) if least < 1 else 0
    s = np.asarray(staleness.weight(np.arange(last + 1)), dtype=float)
    if np.ptp(s) == 0:
        one = np.ones(1)
        return Ages(np.eye(1), one, s[:1], one)
    tries = [_recursion(s, first) for first in range(min(FIRST, len(s)))]
    found = [ages for ages in tries if ages is not None]
    return min(found, key=lambda ages: ages.copies) if found else _one_by_one(s)


def _recursion(s: np.ndarray, first: int) -> Ages | None:
    """The first ages one by one; None where a few exponentials do not tell the others."""
    rest = s[first:]
    t = np.unique(np.geomspace(1, len(rest), 400).round().astype(int)) - 1
    for terms in TERMS:
        rates = np.concatenate([[0.0], np.geomspace(0.5 / len(rest), 4.0, terms)])
        M = np.exp(-np.outer(t, rates))
        c = np.linalg.lstsq(M, rest[t], rcond=1e-12)[0]
        if np.abs(M @ c - rest[t]).max() <= ACCURACY * np.abs(s).max():
            return _joined(s[:first], np.exp(-rates), c)
    return None


def _joined(first: np.ndarray, factors: np.ndarray, c: np.ndarray) -> Ages:
    n, places = len(first), len(first) + len(factors)
    on = np.diag(np.concatenate([np.zeros(n), factors]))
    on[np.arange(1, n), np.arange(n - 1)] = 1.0
    fresh = np.zeros(places)
    if n:
        on[n:, n - 1] = 1.0
        fresh[0] = 1.0
    else:
        fresh[:] = 1.0
    one = np.concatenate([np.ones(n + 1), np.zeros(len(factors) - 1)])
    return Ages(on, fresh, np.concatenate([first, c]), one)


def _one_by_one(s: np.ndarray) -> Ages:
    """Older ones are taken to be as old as the last."""
    return _joined(s[:-1], np.ones(1), s[-1:])
