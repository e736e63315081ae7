r"""How far may a single run of a large model be off? The law of its error, from columns of noise.

What columns followed through all rounds reach most is a space (`bundles`). Within it the covariance of what is measured
is known: exactly for participation, over many draws for samples. Of what it leaves out, three numbers are: its trace,
that of its square (from pairs of columns that share nothing), and how far it spreads along the mean's own distance to
what the run is after. It is taken as so many equal directions as have that trace and that square.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from fedpoint.theory.bundles import Bundle
from fedpoint.theory.outlook import Law
from fedpoint.theory.powers import doubled

MOST = 256  # equal directions: with more of them nothing is left to chance
NOTHING = 1e-3  # of a variance


class ColumnLaw:
    """Of the columns of one bundle; variance: of what is measured, once settled."""

    def __init__(self, bundle: Bundle, variance: float):
        self.bundle, self.variance, self.space = bundle, variance, bundle.spaces[0]

    @cached_property
    def settled(self) -> np.ndarray:
        """(r, r): the covariance within the space, of the noise of rounds from the limit, once settled."""
        return doubled(self.space.H.T[None], self.bundle.kernel.inside[0][None])[0]

    def moved(self, C: np.ndarray, Q: np.ndarray) -> np.ndarray:
        """A covariance within the space after a round whose noise has covariance Q."""
        return self.space.H.T @ C @ self.space.H + Q

    @cached_property
    def _grown(self) -> float:
        """By how much the columns' own sums are less than the variance."""
        return self.variance / max(float(self.bundle.sums.mean()), 1e-300)

    @cached_property
    def _inside(self) -> float:
        """The share of the variance within the space, as all columns tell it."""
        more = self.bundle.floor.variance / max(self.bundle.additive.variance, 1e-300)
        return min(more * float((self.space.gram * self.settled).sum()) / self.variance, 1.0)

    @cached_property
    def _reached(self) -> np.ndarray:
        """(columns x steps, d): models' parts of vectors whose outer products sum to the covariance, of every column
        one after the other."""
        rows, _ = self.bundle.powers.reached(slice(None))
        return math.sqrt(self._grown) * self.bundle.setting.readings(rows / self.bundle.scale)

    @cached_property
    def _square(self) -> float:
        """The trace of the covariance's square."""
        count = self.bundle.powers.count
        gram = self.bundle.gauge.gram(self._reached)
        m = len(gram) // count
        each = (gram.reshape(count, m, count, m) ** 2).sum((1, 3))
        return float(each.sum() - np.trace(each)) / (count * (count - 1))

    def law(self, gap: np.ndarray, within: np.ndarray | None = None, variance: float | None = None) -> Law:
        """Of |gap + z|^2, gap the models' distance to what is aimed at, z of this variance and of a covariance within
        the space that is proportional to the given one; by default as they are once settled."""
        variance = self.variance if variance is None else variance
        if variance <= 0:
            return Law(np.zeros(0), np.zeros(0), float(self.bundle.gauge.squares(gap[None])[0]))
        known, along, whole = self._known(gap, self.settled if within is None else within, self._inside * variance)
        left, part = variance - float(known.sum()), variance / self.variance
        outside = max(whole - float(along @ along), 0.0)
        if left <= NOTHING * variance:
            return Law(known * variance / known.sum(), along, outside)
        square = max(part**2 * self._square - float(known @ known), left**2 / MOST)
        count = max(round(left**2 / square), 1)
        spread = part * self._along(gap) - float(known @ along**2)  # of gap' S gap, what is outside
        there = float(np.clip(spread * count / left, 0.0, outside))
        rest = np.zeros(count)
        rest[0] = math.sqrt(there)
        return Law(
            np.concatenate([known, np.full(count, left / count)]), np.concatenate([along, rest]), outside - there
        )

    def _known(self, gap: np.ndarray, within: np.ndarray, variance: float) -> tuple[np.ndarray, np.ndarray, float]:
        """Variances along the axes within the space, the gap's parts along them, and its whole square."""
        V = self.bundle.setting.readings(self.space.V / self.bundle.scale)
        gram = self.bundle.gauge.gram(np.concatenate([gap[None], V]))
        values, axes = np.linalg.eigh(gram[1:, 1:])
        kept = values > 1e-10 * max(float(values.max(initial=0.0)), 1e-300)
        root = axes[:, kept] * np.sqrt(values[kept])  # V as measured, in orthonormal coordinates
        weights, turn = np.linalg.eigh(root.T @ within @ root)
        along = (gram[0, 1:] @ (axes[:, kept] / np.sqrt(values[kept]))) @ turn
        some = weights > 1e-12 * max(float(weights.max(initial=0.0)), 1e-300)
        known = weights[some]
        return known * variance / max(float(known.sum()), 1e-300), along[some], float(gram[0, 0])

    def _along(self, gap: np.ndarray) -> float:
        """gap' S gap as it is measured, once settled."""
        both = self.bundle.gauge.gram(np.concatenate([gap[None], self._reached]))
        return float((both[0, 1:] ** 2).sum()) / self.bundle.powers.count
