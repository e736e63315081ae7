"""How fast does a run go? Rounds a second, by one definition for progress, results, folders, reports and trackers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Pace:
    """Rounds a second, of segments of rounds and the seconds that they took.

    A round of all repeats, or of all points of a sweep, is one round. Seconds are those of computing rounds, not of
    what is done between them: evaluating, saving, telling callbacks. The first segment of a process compiles its
    program, so it counts only as long as there is no other.

    >>> pace = Pace()
    >>> pace.add(1, 2.0, compiled=True)
    >>> pace.speed
    0.5
    >>> pace.add(100, 0.1)
    >>> pace.speed, pace.seconds
    (1000.0, 2.1)
    """

    warm: list[float] = field(default_factory=lambda: [0.0, 0.0])  # rounds and seconds of compiled segments
    cold: list[float] = field(default_factory=lambda: [0.0, 0.0])  # of those that compiled

    def add(self, rounds: int, seconds: float, compiled: bool = False) -> None:
        """Count a segment; compiled: it compiled the program as well."""
        own = self.cold if compiled else self.warm
        own[0] += rounds
        own[1] += seconds

    @property
    def seconds(self) -> float:
        """All of them."""
        return self.cold[1] + self.warm[1]

    @property
    def speed(self) -> float:
        rounds, seconds = self.warm if self.warm[1] > 0 else self.cold
        return rounds / max(seconds, 1e-9)

    def array(self) -> np.ndarray:
        """(4,): as a folder keeps it."""
        return np.array([*self.warm, *self.cold])

    @classmethod
    def of(cls, kept: np.ndarray) -> Pace:
        values = kept.tolist()
        return cls(values[:2], values[2:])
