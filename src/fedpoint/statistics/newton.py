"""Where is a likelihood largest? Newton's method at the hub, on sums over sites."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

MOST = 100  # rounds
CLOSE = 1e-10  # of the decrement, in units of the standard errors, where it ends
GONE = 1e-7  # of the curvature at the start
HALVES = 40  # of one step, before it is given up


class Point(NamedTuple):
    """A log-likelihood, its gradient and minus its Hessian, or something definite in place of that."""

    value: float
    score: np.ndarray  # (d,)
    curvature: np.ndarray  # (d, d)


class Optimum(NamedTuple):
    """Where it ended, after so many rounds of sums; decrement: sqrt(score' curvature^-1 score), by how many standard
    errors one more step would move any combination of coefficients at most."""

    w: np.ndarray
    point: Point
    first: Point  # at the start
    rounds: int
    decrement: float
    enough: float = 1e-6  # of the decrement, where sums are exact

    @property
    def reached(self) -> bool:
        return self.decrement < self.enough and bool(np.isfinite(self.w).all())

    @property
    def vanished(self) -> list[int]:
        """The coefficients of a combination whose curvature has all but gone since the start, the largest part first:
        the likelihood has no maximum, and they grow without end."""
        size = scale(self.first.curvature)
        now, then = (point.curvature / np.outer(size, size) for point in (self.point, self.first))
        if not np.isfinite(now).all():
            return list(range(len(size)))
        values, vectors = eigh(now, then + 1e-14 * np.eye(len(size)))
        part = np.abs(vectors[:, 0])
        return [int(j) for j in np.argsort(-part) if part[j] > 1e-2 * part.max()] if values[0] < GONE else []


def newton(at: Callable[[np.ndarray], Point], start: np.ndarray) -> Optimum:
    """Full steps, halved until the likelihood rises; every point that is looked at costs a round."""
    here = first = at(start)
    w, rounds, decrement = start, 1, np.inf
    while rounds < MOST:
        step = solve(here.curvature, here.score)
        decrement = float(np.sqrt(max(float(here.score @ step), 0.0)))
        if not decrement >= CLOSE:  # NaN too
            break
        for length in 0.5 ** np.arange(HALVES):
            there = at(w + length * step)
            rounds += 1
            if there.value >= here.value - 1e-12 * abs(here.value) or rounds >= MOST:
                break
        w, here = w + length * step, there
    return Optimum(w, here, first, rounds, decrement)


def solve(curvature: np.ndarray, right: np.ndarray) -> np.ndarray:
    """curvature^-1 right, in units in which the diagonal is one: columns may be of any size."""
    size = scale(curvature)
    scaled = np.linalg.lstsq(curvature / np.outer(size, size), (right.T / size).T, rcond=1e-15)[0]
    return (scaled.T / size).T


def inverse(curvature: np.ndarray) -> np.ndarray:
    """The inverse, symmetric to the bit."""
    found = solve(curvature, np.eye(len(curvature)))
    return (found + found.T) / 2


def scale(curvature: np.ndarray) -> np.ndarray:
    diagonal = np.diag(curvature)
    return np.sqrt(np.where(diagonal > 0, diagonal, 1.0))


def dependent(curvature: np.ndarray, names: tuple[str, ...], least: float = 1e-10) -> list[str]:
    """The columns of a combination that has no curvature; none where there is no such combination."""
    size = scale(curvature)
    values, vectors = np.linalg.eigh(curvature / np.outer(size, size))
    if values[0] > least * len(size):
        return []
    return [name for name, part in zip(names, np.abs(vectors[:, 0]), strict=True) if part > 1e-3]
