"""How long may a forecast of a very large model take? So many seconds of its rounds, then it says what it has.

A second forecast of the same may be cut elsewhere: so only models have a budget that would take minutes without.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from fedpoint.core.errors import FedpointError

HUGE = 1 << 17  # numbers of a state, from which on there is a budget
SECONDS = 120.0  # that rounds of such a forecast may take

T = TypeVar("T")


class Late(FedpointError):
    """The budget is spent."""


class Budget:
    """The time that rounds of one forecast take: without end for a state of few numbers."""

    def __init__(self, numbers: int):
        self.seconds = SECONDS if numbers >= HUGE else float("inf")
        self.spent = 0.0
        self.left_out: list[str] = []  # what there was no time for, in words

    @property
    def over(self) -> bool:
        return self.spent > self.seconds

    @property
    def text(self) -> str:
        return f"at this size it takes longer than {self.seconds:g} s"

    def count(self, compute: Callable[[], T]) -> T:
        """What is computed, and counted."""
        begun = time.perf_counter()
        found = compute()
        self.spent += time.perf_counter() - begun
        return found

    def spend(self, compute: Callable[[], T]) -> T:
        """The same; raises Late where nothing is left."""
        if self.over:
            raise Late(self.text)
        return self.count(compute)

    def leave(self, what: str) -> None:
        """Say what is left out, once.

        Args:
            what: in words that follow "left out, which would take too long at this size: ".
        """
        if what not in self.left_out:
            self.left_out.append(what)
