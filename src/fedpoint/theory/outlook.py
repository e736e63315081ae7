"""What does the randomness of rounds do to a run? Where the mean of runs settles, how far single runs spread, and how
they get there: one set of answers, whichever theory gives them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from fedpoint.theory.course import Course


@dataclass(frozen=True)
class Gauge:
    """What is measured of models: |L (w - target)|^2, a mean over `models` of them.

    target: what the run is after, flattened; where that is not known, its limit. root: L; None is the plain distance.
    weight: instead of L, rows times L'L, of models that are too large for matrices.
    """

    target: np.ndarray
    root: np.ndarray | None = None
    models: int = 1
    weight: Callable[[np.ndarray], np.ndarray] | None = None

    def __call__(self, difference: np.ndarray) -> np.ndarray:
        """The part of a difference of models whose square is measured; rows where there are several."""
        difference = difference / math.sqrt(self.models)
        return difference if self.root is None else difference @ self.root.T

    def gram(self, rows: np.ndarray) -> np.ndarray:
        """Inner products of differences of models, rows, as they are measured."""
        if self.weight is not None:
            return rows @ self.weight(rows).T / self.models
        seen = self(rows)
        return np.asarray(seen @ seen.T)

    def squares(self, rows: np.ndarray) -> np.ndarray:
        """What is measured of differences of models, rows."""
        if self.weight is not None:
            return np.asarray((rows * self.weight(rows)).sum(1) / self.models)
        return np.asarray((self(rows) ** 2).sum(1))

    def of_state(self, reading: np.ndarray) -> np.ndarray:
        """R with |R x|^2 what is measured of a deviation x of the state, whose models are reading x."""
        R = reading / math.sqrt(self.models)
        return R if self.root is None else self.root @ R


GOOD = 0.05  # of the floor, by which two theories may differ


class Accuracy(NamedTuple):
    """How a better theory differs (a Gaussian one, or drawn rounds): by how much it puts the floor higher, relative,
    with its standard error; and by how much of the shift it puts the mean elsewhere."""

    floor: float
    error: float
    shift: float = 0.0
    beside: str = "a Gaussian theory puts"

    @property
    def good(self) -> bool:
        """The floors differ by less than 5 %, and the shifts by less than 10 %: the forecast can be relied on."""
        return abs(self.floor) <= GOOD and self.shift <= 2 * GOOD

    def __str__(self) -> str:
        side = "higher" if self.floor > 0 else "lower"
        said = f"{self.beside} the floor {abs(self.floor):.1%} {side} (standard error {self.error:.1%})"
        said += f" and the shift by noise {self.shift:.0%} elsewhere"
        return said if self.good else f"not accurate: {said}"


class Path(NamedTuple):
    """The expected error after rounds 0, 1, ..., in two parts: of the mean of runs, and of their spread around it."""

    mean: np.ndarray  # |L (E w_t - target)|^2
    variance: np.ndarray  # E|L (w_t - E w_t)|^2

    @property
    def total(self) -> np.ndarray:
        return self.mean + self.variance


class Law(NamedTuple):
    """The error of one run at one round, taken as |gap + z|^2 with z normal, along the axes of its covariance."""

    weights: np.ndarray  # variances of z along its axes
    gap: np.ndarray  # the mean's part along them
    rest: float = 0.0  # the square of the mean's part along which nothing spreads

    @classmethod
    def of(cls, gap: np.ndarray, covariance: np.ndarray) -> Law:
        if not (np.isfinite(gap).all() and np.isfinite(covariance).all()):
            return cls(np.zeros(0), np.zeros(0), math.inf)
        values, axes = np.linalg.eigh(covariance)
        kept = values > 1e-14 * max(values.max(initial=0.0), 1e-300)
        along = axes[:, kept].T @ gap
        return cls(values[kept], along, max(float(gap @ gap - along @ along), 0.0))

    @property
    def mean(self) -> float:
        return float(self.weights.sum() + (self.gap**2).sum()) + self.rest

    @property
    def deviation(self) -> float:
        """The standard deviation of the error."""
        return math.sqrt(float((2 * self.weights**2 + 4 * self.weights * self.gap**2).sum()))


class Outlook(ABC):
    """Answers of one theory about one experiment; None where it does not know."""

    on_the_way = True  # noise is told along the path too, not only once settled
    how: str  # "exact", "trajectory", "closure", "columns", "sampled", ...: the word for it in `Forecast.noise_by`

    @property
    @abstractmethod
    def limit(self) -> np.ndarray:
        """Where the mean of runs settles: models, flattened."""

    @property
    @abstractmethod
    def rate(self) -> float:
        """Factor per round of the second moment's deviation, asymptotically; 1 or more where it grows."""

    @property
    @abstractmethod
    def variance(self) -> float:
        """E|L (w - E w)|^2 once settled; inf where it grows."""

    @property
    def own_rate(self) -> float | None:
        """Factor per round of the mean's deviation; None where it is that of the expected round."""
        return None

    @property
    def memory(self) -> float:
        """Factor per round by which what is drawn in one is remembered in the next, beside the state itself."""
        return 0.0

    @property
    def error(self) -> float | None:
        """The standard error of the floor; None where nothing is sampled."""
        return None

    @property
    def limit_error(self) -> float:
        """The standard error of the limit; 0 where nothing of it is sampled."""
        return 0.0

    @property
    def accuracy(self) -> Accuracy | None:
        """How well it is known; None where nothing is approximated, or a standard error says it."""
        return None

    @abstractmethod
    def path(self, rounds: int) -> Path:
        """The expected error after rounds 0, 1, ..., `rounds`."""

    @abstractmethod
    def law(self, round: int | None) -> Law | None:
        """Of the error of single runs after a round; None: once settled."""

    def course(self) -> Course | None:
        """Its rounds one by one, for the sum of a run's models; None where it does not follow the state linearly."""
        return None
