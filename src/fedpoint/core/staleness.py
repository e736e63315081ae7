"""How much does an old answer count?"""

from __future__ import annotations

import numpy as np

from fedpoint.core.record import record
from fedpoint.errors import FedpointError


@record
class Constant:
    """s(tau) = 1."""

    def weight(self, age: np.ndarray) -> np.ndarray:
        return np.ones(np.shape(age))


@record
class Polynomial:
    """s(tau) = (1 + tau)^-power."""

    power: float = 0.5

    def check(self):
        if not self.power >= 0:
            raise FedpointError(f"Polynomial: power must be at least 0, got {self.power}")

    def weight(self, age: np.ndarray) -> np.ndarray:
        return (1.0 + np.asarray(age)) ** -float(self.power)


@record
class Hinge:
    """s(tau) = 1 up to tau = after, then 1/(slope (tau - after) + 1)."""

    slope: float = 10.0
    after: float = 4.0

    def check(self):
        if not self.slope >= 0 or not self.after >= 0:
            raise FedpointError("Hinge: slope and after must be at least 0")

    def weight(self, age: np.ndarray) -> np.ndarray:
        late = np.maximum(np.asarray(age, dtype=float) - float(self.after), 0.0)
        return 1.0 / (float(self.slope) * late + 1.0)
