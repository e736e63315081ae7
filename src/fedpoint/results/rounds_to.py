"""After how many rounds is a target reached? The first round at which the expected error is low enough, or why none."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.core.errors import FedpointError, check_number
from fedpoint.core.numbers import counted

if TYPE_CHECKING:
    from fedpoint.results.forecast import Forecast

LONGEST = 1 << 22  # rounds that `rounds_to` looks ahead
LONGEST_DECAY = 1 << 14  # the same where steps decay


class Rounds(float):
    """A number of rounds; infinite when the target is never reached, and then `reason` says why."""

    reason: str

    def __new__(cls, value: float, reason: str = "") -> Rounds:
        self = super().__new__(cls, value)
        self.reason = reason
        return self

    def __repr__(self) -> str:
        return f"never: {self.reason}" if math.isinf(self) else f"{int(self)}"

    __str__ = __repr__


def rounds_to(f: Forecast, target: float) -> Rounds:
    """The first round at which the expected error is at most `target`; or never, and why."""
    target = check_number("target", target, strict=True)
    never = "" if f.setting.scheduled else _never(f, target)
    if never:  # unless the mean passes close to w* on its way to where it stays
        try:
            with np.errstate(all="ignore"):
                below = np.flatnonzero(f.curve(_transient(f)) <= target)
        except FedpointError:
            below = np.array([])
        return Rounds(int(below[0])) if len(below) else Rounds(math.inf, never)
    rounds = 256
    while rounds <= LONGEST:
        below = np.flatnonzero(f.curve(rounds) <= target)
        if len(below):
            return Rounds(int(below[0]))
        if f.setting.scheduled and rounds >= LONGEST_DECAY:
            return Rounds(math.inf, f"not within {counted(rounds, 'round')}, as far as rounds that change are followed")
        rounds *= 8
    return Rounds(math.inf, f"not within {LONGEST} rounds: the rate is {f.rate:.8g} per round")


def _never(f: Forecast, target: float) -> str:
    """Why the expected error does not stay below `target`; an empty text where it does."""
    if f.state is None or f.diverges:
        return f"it {'diverges' if f.diverges else 'has no limit'}: {f.reason}"
    if f.without_noise:
        return f"its bias^2 {f.bias2:.3g} lies above {target:g}" if f.bias2 >= target else ""
    if f.floor is None or f.floor <= target:
        return ""
    return f"the floor {f.floor:.3g} (bias^2 {f.bias2:.3g} + variance {f.variance:.3g}) lies above {target:g}"


def _transient(f: Forecast) -> int:
    """Rounds after which the expected error moves one way only: to its floor, or to infinity."""
    slow = max(f.rate or 0.0, 0.0 if f.rate_ms is None else math.sqrt(f.rate_ms))
    if not 0 < slow < 1:
        return 256
    return int(min(max(256, math.log(1e-6) / math.log(slow)), LONGEST_DECAY))
