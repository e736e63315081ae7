"""How long does work take? Virtual time.

The order of events depends on durations alone, never on the model. So a timetable is made before the run, from the
seed: ticks with those whose answers count, how old what they started from is, and the time (`timing/timed.py` with a
fusion center, `timing/turns.py` on a network). It goes on where it ended when a run is extended.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np

from fedpoint.core.arguments import checked
from fedpoint.core.arrays import floats
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.kinds import Count, NonNegative, Seed
from fedpoint.core.numbers import counted
from fedpoint.core.record import Record

if TYPE_CHECKING:
    from fedpoint.timing.timed import Arrivals, Waiting

LAWS = ("constant", "exponential", "lognormal")
STREAM = 0x71C7  # of a timetable's random numbers


def luck_of(seed: int, repeat: int) -> np.random.Generator:
    return np.random.default_rng([STREAM, seed & (2**64 - 1), repeat])


class Times(TypedDict, total=False):
    """What a clock says of all agents."""

    law: str
    travel: float


class Clock(Record):
    """How long agents work and messages travel, in virtual seconds.

    Args:
        work: the mean time of an agent's work in virtual seconds: one number, or one per agent.
        law: how that time varies: "constant", "exponential" or "lognormal".
        travel: seconds that a message travels, one way.
        spread: the standard deviation of the logarithm of a lognormal time.
    """

    work: float | np.ndarray = 1.0
    law: str = "exponential"
    travel: float = 0.0
    spread: float = 0.5

    def check(self) -> None:
        work = floats(self.work)
        if work.ndim > 1 or not (np.isfinite(work).all() and (work > 0).all()):
            raise FedpointError(f"Clock: work must be seconds above 0, one number or one per agent, got {self.work!r}")
        if self.law not in LAWS:
            raise FedpointError(f"Clock: unknown law {self.law!r}: {nearest(str(self.law), LAWS)}")
        for name, value in (("travel", self.travel), ("spread", self.spread)):
            if not 0 <= value < math.inf:
                raise FedpointError(f"Clock: {name} must be a number, at least 0, got {value!r}")

    @classmethod
    @checked
    def sample(cls, agents: Count, spread: NonNegative = 1.0, seed: Seed = 0, **rest: Unpack[Times]) -> Clock:
        """Agents of different speed: mean times are lognormal around 1, `spread` their logarithm's deviation.

        Args:
            agents: how many.
            spread: the standard deviation of the logarithm of their mean times.
            seed: of the mean times.
            rest: other fields of the clock.
        """
        with np.errstate(over="ignore"):  # what is infinite is refused
            times = np.exp(spread * np.random.default_rng([STREAM, seed]).standard_normal(agents))
        return cls(work=times, **rest)

    def fits(self, agents: int) -> None:
        """Refuse times of another number of agents.

        Args:
            agents: how many there are.
        """
        if np.ndim(self.work) and np.size(self.work) != agents:
            raise FedpointError(f"Clock: {np.size(self.work)} times for {counted(agents, 'agent')}")

    def within(self, seconds: float) -> float:
        """The chance that an agent has done its work by then, where all are alike.

        Args:
            seconds: since it began.
        """
        mean = float(np.mean(np.asarray(self.work, dtype=float)))
        if seconds <= 0 or math.isinf(seconds):
            return float(seconds > 0)
        if self.law == "constant" or (self.law == "lognormal" and self.spread == 0):
            return float(mean <= seconds)
        if self.law == "exponential":
            return -math.expm1(-seconds / mean)
        z = (math.log(seconds / mean) + self.spread**2 / 2) / self.spread
        return 0.5 * math.erfc(-z / math.sqrt(2))

    def draw(self, luck: np.random.Generator, agents: int | np.ndarray) -> np.ndarray:
        """Seconds of work of these agents.

        Args:
            luck: NumPy's generator.
            agents: their numbers.
        """
        mean = np.asarray(self.work, dtype=float)
        mean = mean[agents] if mean.ndim else np.full(np.shape(agents), float(mean))
        if self.law == "constant":
            return mean
        if self.law == "exponential":
            return mean * luck.exponential(size=np.shape(agents))
        return mean * np.exp(self.spread * luck.standard_normal(np.shape(agents)) - self.spread**2 / 2)


def check_clock(self: Arrivals | Waiting) -> None:
    if self.deadline is not None and not self.deadline > 0:
        raise FedpointError(f"{type(self).__name__}: deadline must be above 0 seconds, got {self.deadline}")
