"""What does a round cost? What it uses in expectation, and prices in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import NonNegative


@dataclass(frozen=True)
class Use:
    """What a round uses, in expectation over who takes part."""

    agents: float
    messages: float  # both ways
    floats_down: float
    floats_up: float
    bytes: float
    evaluations: float


@checked
@dataclass(frozen=True)
class Prices:
    """What sending and computing cost, in seconds.

    Args:
        per_float: seconds for a number sent.
        per_message: seconds for a message, whatever its length: the latency.
        per_gradient: seconds for an evaluation of a local field.
        parallel: agents work and send at the same time, so that a round takes as long as one agent takes; False: one
            after the other, as in a simulation, or when the hub's link is what limits.
    """

    per_float: NonNegative = 0.0
    per_message: NonNegative = 0.0
    per_gradient: NonNegative = 0.0
    parallel: bool = False

    def __post_init__(self) -> None:
        values = (self.per_float, self.per_message, self.per_gradient)
        if not any(values):
            raise FedpointError("Prices: at least one of per_float, per_message and per_gradient must be above 0")

    def of(self, use: Use) -> float:
        """Seconds of one round.

        Args:
            use: what a round uses.
        """
        busy = max(use.agents, 1.0) if self.parallel else 1.0
        return (
            self.per_float * (use.floats_down + use.floats_up)
            + self.per_message * use.messages
            + self.per_gradient * use.evaluations
        ) / busy
