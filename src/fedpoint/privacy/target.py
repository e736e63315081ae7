"""How much may a run tell of one agent? At most epsilon, but for a probability delta."""

from __future__ import annotations

from fedpoint.core.errors import FedpointError
from fedpoint.core.record import Record


class Privacy(Record):
    """A target of differential privacy: what is seen is at most exp(epsilon) times as likely with an agent as without
    it, but for a probability delta.

    Args:
        epsilon: above 0: the smaller, the more private.
        delta: between 0 and 1; well below 1/K.

    >>> import fedpoint as fp
    >>> fp.Privacy(epsilon=2.0, delta=1e-5)
    Privacy(epsilon=2.0, delta=1e-05)
    """

    epsilon: float
    delta: float

    def check(self) -> None:
        if not 0 < self.epsilon < float("inf"):
            raise FedpointError(f"Privacy: epsilon must be above 0 and finite, got {self.epsilon}")
        if not 0 < self.delta < 1:
            raise FedpointError(f"Privacy: delta must lie between 0 and 1, got {self.delta}")
