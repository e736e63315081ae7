"""What did a run cost?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Cost:
    """Totals of a run, a mean over its repeats.

    down, up: messages from the hub and answers to it; floats and bytes of their arrays; evaluations of local fields.
    """

    rounds: int
    messages_down: float
    messages_up: float
    floats_down: float
    floats_up: float
    bytes_down: float
    bytes_up: float
    evaluations: float

    @classmethod
    def of(cls, rounds: int, used: np.ndarray, message: tuple[float, float, float, float]) -> Cost:
        """From (models sent, answers, evaluations), and the numbers in one message down and up, bytes of a number down
        and of a message up."""
        asked, heard, evaluations = (float(u) for u in used)
        floats_down, floats_up, width, up_bytes = message
        down, up = asked * floats_down, heard * floats_up
        return cls(rounds, asked, heard, down, up, down * width, heard * up_bytes, evaluations)
