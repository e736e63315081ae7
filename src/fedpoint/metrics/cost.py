"""What did a run cost?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Cost:
    """Totals of a run, a mean over its repeats: of agents, and of the hubs that they answer to.

    Attributes:
        rounds: how many were run.
        messages_down: models that the hub sent.
        messages_up: answers that agents sent.
        floats_down: numbers in the models sent.
        floats_up: numbers in the answers.
        bytes_down: of the models sent.
        bytes_up: of the answers, as the channel sends them.
        evaluations: of local fields.
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
        """What a run used.

        Args:
            rounds: how many.
            used: models sent, answers, evaluations.
            message: numbers in a message down and up, then bytes of a number down and of a message up.
        """
        asked, heard, evaluations = (float(u) for u in used)
        floats_down, floats_up, width, up_bytes = message
        down, up = asked * floats_down, heard * floats_up
        return cls(rounds, asked, heard, down, up, down * width, heard * up_bytes, evaluations)


class Level(NamedTuple):
    """What went between two levels of hubs, or between agents and the hubs that they answer to.

    Attributes:
        between: which two levels, in words.
        messages_down: sent from the upper level.
        messages_up: sent from the lower level.
        bytes_down: of what the upper level sent.
        bytes_up: of what the lower level sent.
    """

    between: str
    messages_down: float
    messages_up: float
    bytes_down: float
    bytes_up: float


def levels_of(cost: Cost, regions: int, size: float) -> tuple[Level, ...]:
    """What went between levels, the lowest first. Hubs of regions hear what the hub holds, so many bytes, and answer
    what they hold.

    Args:
        cost: of the run.
        regions: how many there are; 0: none, agents answer to the hub itself.
        size: bytes of what a hub holds.
    """
    sent = (cost.messages_down, cost.messages_up, cost.bytes_down, cost.bytes_up)
    if not regions:
        return (Level("agents and hub", *sent),)
    count = float(cost.rounds * regions)
    return Level("agents and regions", *sent), Level("regions and hub", count, count, count * size, count * size)
