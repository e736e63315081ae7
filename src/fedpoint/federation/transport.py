"""What must carry messages between hub and sites? A few functions; another transport is another class with them.

Every order has a deadline, and every wait an end. A site answers one order at a time. Who an answer comes from is the
engine's word (a certificate's, say), never the answer's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypedDict

from fedpoint.core.errors import FedpointError


class Alarm(TypedDict):
    """A site whose answers are not those that its rows give."""

    site: str
    reason: str  # "scaled", "sign flipped", "foreign rows" or "lost control": the likeliest
    factor: float | None  # what its answers are scaled by
    e_value: float  # the stake of a bet against chance: E <= 1 if nothing is wrong
    round: int
    since: int  # the round of the first answer that could not be reproduced
    text: str


# What is told of a study: of shares, of a round that is over, of what is waited for, of a job that ended, or of a site
# that was not there at the start.
Event = TypedDict(
    "Event",
    {
        "round": int,
        "merged": bool,
        "answered": list[str],
        "ages": list[int],
        "refused": dict[str, str],
        "norms": dict[str, float],  # of the answers
        "marks": dict[str, str],  # whose norm stands out, and how
        "move": float,  # of the model, where the round was merged
        "abandoned": str,  # why what came was not merged, where there was enough
        "shares": dict[str, float],  # before the first round: how much each site counts,
        "rows": dict[str, int],  # and by how many rows
        "down": int,
        "up": int,
        "seconds": dict[str, float],
        "seals": dict[str, str],
        "waiting": str,
        "for": list[str],
        "segment": str,
        "note": str,
        "alarms": list[Alarm],
    },
    total=False,
)
Tell = Callable[[Event], None]


class Outcome(TypedDict, total=False):
    """How a segment ended ("done", "waiting", "stopped", "diverged" or "failed") and why; the files to fetch."""

    state: str
    message: str
    files: dict[str, int]  # bytes


class Status(TypedDict, total=False):
    """Where a study is: who is connected, and what the hub says while a job runs."""

    study: str
    server: str
    sites: list[str]  # that answer, and have approved the study
    approved: list[str]
    unheard: dict[str, float]  # sites that do not any more: seconds since they were heard of
    jobs: list[str]
    round: int
    rounds: int
    waiting: Event
    shares: Event
    silent: list[str]
    notes: list[str]
    events: list[Event]
    outcome: Outcome
    alarms: list[Alarm]


class Arrival(NamedTuple):
    """What came from a site: bytes that are not looked at yet, or the reason why none came."""

    site: str
    data: bytes | None
    failure: str = ""


class Transport(Protocol):
    """Carries orders to sites and answers back."""

    def send(self, site: str, order: bytes, deadline: float) -> None:
        """Hand over an order; do not wait. After `deadline` seconds its answer is of no use any more."""

    def receive(self, timeout: float) -> Arrival | None:
        """What arrives next, in the order of arrival; None when nothing came within `timeout` seconds."""

    def reaches(self, site: str) -> bool:
        """Whether a site is there now, as far as is known: an order to one that is not would only be lost."""

    def now(self) -> float:
        """Seconds, from some moment on."""

    def close(self) -> None:
        """Nothing more will be sent."""


class NoAnswerYet(FedpointError):
    """The study stands still: too few sites answer. It goes on when it is run again."""


class Stopped(FedpointError):
    """Somebody stopped the study."""
