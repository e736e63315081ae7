"""How wide is a column when no one may see all rows? From counts, means and squares that agents send, merged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class ColumnMoments:
    r"""Rows, means and squared deviations of each column: what one agent sends, or several together.

    Merging is Chan, Golub and LeVeque's: with $\delta = \bar x_b - \bar x_a$ and $n = n_a + n_b$,

    $$\bar x = \bar x_a + \delta\,\frac{n_b}{n}, \qquad M = M_a + M_b + \delta^2\,\frac{n_a n_b}{n}$$

    Nothing is subtracted from a sum of squares, and a mean is sent in two parts, rounded and what rounding left, so
    that columns far from zero keep their variance.

    >>> a, b = ColumnMoments.of([[1.0], [2.0]]), ColumnMoments.of([[6.0]])
    >>> (a + b).mean, (a + b).variance
    (array([3.]), array([4.66666667]))
    """

    count: float  # rows, or what they count together
    mean: np.ndarray  # (d,)
    rest: np.ndarray  # (d,): the mean minus `mean`, below its rounding
    square: np.ndarray  # (d,): sum of squared deviations from the mean

    @classmethod
    def of(cls, X: ArrayLike, weight: np.ndarray | None = None) -> ColumnMoments:
        """Of one agent's rows; weight: (n,) what each counts, above 0."""
        X = np.asarray(X, dtype=float)
        mean = np.average(X, axis=0, weights=weight)
        mean, rest = _two_parts(mean, np.average(X - mean, axis=0, weights=weight))
        square = ((X - mean) - rest) ** 2
        if weight is None:
            return cls(len(X), mean, rest, square.sum(axis=0))
        return cls(float(weight.sum()), mean, rest, weight @ square)

    def __add__(self, other: ColumnMoments) -> ColumnMoments:
        n = self.count + other.count
        gap = (other.mean - self.mean) + (other.rest - self.rest)
        square = self.square + other.square + gap**2 * (self.count * other.count / n)
        mean, rest = _two_parts(self.mean, gap * (other.count / n) + self.rest)
        return ColumnMoments(n, mean, rest, square)

    @property
    def variance(self) -> np.ndarray:
        return self.square / self.count

    @property
    def constant(self) -> np.ndarray:
        """(d,): columns whose variance is no more than rounding."""
        eps = np.finfo(float).eps
        return self.variance <= self.count * eps * self.variance + (self.count * self.mean * eps) ** 2

    @property
    def scale(self) -> np.ndarray:
        """(d,): standard deviations; 1 for constant columns."""
        return np.where(self.constant, 1.0, np.sqrt(self.variance))


def _two_parts(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a + b rounded, and what rounding left, exactly (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def merge(parts: Iterable[ColumnMoments]) -> ColumnMoments:
    """Of all agents, pairwise: the rounding of a long chain would add up."""
    parts = list(parts)
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        parts = [a + b for a, b in pairs] + parts[len(parts) // 2 * 2 :]
    return parts[0]
