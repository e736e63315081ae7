"""How much does an old answer count?"""

from __future__ import annotations

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.record import Record


class Staleness(Record):
    """Subclass it and write `weight` for one of your own."""

    def weight(self, age: np.ndarray) -> np.ndarray:
        """s(tau) for answers to a model so many versions old.

        Args:
            age: how many versions old each answer is.
        """
        raise FedpointError(
            f"{type(self).__name__} does not say how much an old answer counts: define weight(self, age)"
        )


class Constant(Staleness):
    """s(tau) = 1."""

    def weight(self, age: np.ndarray) -> np.ndarray:
        return np.ones(np.shape(age))


class Polynomial(Staleness):
    """s(tau) = (1 + tau)^-power.

    Args:
        power: how fast old answers lose weight; 0 counts all alike.
    """

    power: float = 0.5

    def check(self) -> None:
        if not self.power >= 0:
            raise FedpointError(f"Polynomial: power must be at least 0, got {self.power}")

    def weight(self, age: np.ndarray) -> np.ndarray:
        return (1.0 + np.asarray(age)) ** -float(self.power)


class Hinge(Staleness):
    """s(tau) = 1 up to tau = after, then 1/(slope (tau - after) + 1).

    Args:
        slope: how fast weights fall beyond `after`.
        after: up to which age, in versions of the model, an answer counts in full.
    """

    slope: float = 10.0
    after: float = 4.0

    def check(self) -> None:
        if not self.slope >= 0 or not self.after >= 0:
            raise FedpointError("Hinge: slope and after must be at least 0")

    def weight(self, age: np.ndarray) -> np.ndarray:
        late = np.maximum(np.asarray(age, dtype=float) - float(self.after), 0.0)
        return 1.0 / (float(self.slope) * late + 1.0)
