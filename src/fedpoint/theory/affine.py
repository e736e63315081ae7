"""What do affine rounds do on average, and how far do they spread? Exactly; and where nothing is random."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from fedpoint.theory.course import AffineCourse, Course
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Gauge, Law, Outlook, Path
from fedpoint.theory.steady import Steady


class Affine(Outlook):
    """Rounds that are affine, or linearised at the fixed point x once and for all; runs begin in the state `origin`."""

    how = "exact"

    def __init__(self, setting: Setting, x: np.ndarray, origin: np.ndarray, gauge: Gauge):
        self.setting, self.x, self.origin, self.gauge = setting, x, origin, gauge

    @cached_property
    def steady(self) -> Steady:
        return Steady.of(self.setting, self.x, self.gauge.of_state(self.setting.reading))

    @property
    def limit(self) -> np.ndarray:
        return self.setting.read(self.x)

    @property
    def rate(self) -> float:
        return self.steady.rate

    @property
    def variance(self) -> float:
        return self.steady.variance

    @property
    def _gap(self) -> np.ndarray:
        return self.gauge(self.limit - self.gauge.target)

    def path(self, rounds: int) -> Path:
        total = self.steady.curve(self.origin, self._gap, rounds)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = (self.gauge(self.setting.path(self.origin, rounds) - self.gauge.target) ** 2).sum(1)
            mean = np.fmin(mean, total)
            return Path(mean, np.where(np.isfinite(total), total - mean, np.inf))

    def law(self, round: int | None) -> Law | None:
        return self.steady.law(self.origin, self._gap, round)

    def course(self) -> Course:
        return AffineCourse(self.steady, self.origin)


class Still(Outlook):
    """Nothing is random: the mean is the run."""

    how = "exact"

    def __init__(self, setting: Setting, x: np.ndarray | None, origin: np.ndarray, gauge: Gauge, rate: float | None):
        self.setting, self.x, self.origin, self.gauge = setting, x, origin, gauge
        self._rate = rate

    @property
    def limit(self) -> np.ndarray:
        assert self.x is not None
        return self.setting.read(self.x)

    @property
    def rate(self) -> float:
        return math.nan if self._rate is None else self._rate**2

    @property
    def variance(self) -> float:
        return 0.0

    def path(self, rounds: int) -> Path:
        away = self.setting.path(self.origin, rounds) - self.gauge.target
        return Path(self.gauge.squares(away), np.zeros(rounds + 1))

    def law(self, round: int | None) -> Law | None:
        at = self.limit if round is None else self.setting.path(self.origin, round)[-1]
        gap = self.gauge(at - self.gauge.target)
        return Law(np.zeros(0), np.zeros(0), float(gap @ gap))
