"""What does a command's exit status mean? One table for all of them."""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Status(enum.IntEnum):
    """Exit statuses; `meaning` is what help and documentation say of each."""

    FINE = 0
    CONTRADICTED = 1
    BAD_INPUT = 2
    UNDECIDED = 3
    DIVERGES = 4
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        return MEANINGS[self]

    @classmethod
    def worst(cls, statuses: Iterable[Status]) -> Status:
        """Of several results: the one that a reader must hear of first."""
        return min(statuses, key=URGENCY.index, default=cls.FINE)


MEANINGS = {
    Status.FINE: "success",
    Status.CONTRADICTED: "contradicted or convicted",
    Status.BAD_INPUT: "bad input",
    Status.UNDECIDED: "undecided",
    Status.DIVERGES: "diverged",
    Status.INTERRUPTED: "interrupted",
}
URGENCY = [
    Status.INTERRUPTED,
    Status.BAD_INPUT,
    Status.CONTRADICTED,
    Status.DIVERGES,
    Status.UNDECIDED,
    Status.FINE,
]


def table() -> str:
    """`0 fine, 1 contradicted or convicted, ...`, as `fedpoint --help` ends."""
    return ", ".join(f"{int(status)} {status.meaning}" for status in Status)
