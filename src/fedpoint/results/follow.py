"""Who follows a run from its start to its end? Callbacks that are told more than progress."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from fedpoint.core.arguments import check_kind
from fedpoint.core.kinds import WORDS
from fedpoint.engine.base import Callback
from fedpoint.store.records import RoundRecords

if TYPE_CHECKING:
    from fedpoint.results.run import Run


class Follower(ABC):
    """A follower of one run in progress. It is told the end once, whatever that is."""

    @abstractmethod
    def start(self, begun: Run, rounds: int) -> None:
        """A run is about to go on to `rounds` rounds in all."""

    @abstractmethod
    def keep(self, records: RoundRecords) -> None:
        """What a segment of rounds has recorded."""

    @abstractmethod
    def finish(self, run: Run) -> None:
        """It has come to its end."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """It ended otherwise; also when this follower's own `start` failed."""


class Following(ABC):
    """A callback of `fp.run` that follows runs; `fp.trackers.Tracker` is one."""

    @abstractmethod
    def follower(self) -> Follower:
        """Who follows the next run."""


WORDS[Following] = "a tracker"  # in messages
Callbacks: TypeAlias = Callback | Following | Iterable[Callback | Following]  # one, or several


def as_callbacks(given: Callbacks) -> list[Callback | Following]:
    found = [given] if callable(given) or isinstance(given, Following) else list(given)
    for one in found:
        check_kind("run", "a callback", one, Callback | Following)
    return found


@contextlib.contextmanager
def following(begun: Run, rounds: int, callbacks: Sequence[Callback | Following]) -> Iterator[list[Follower]]:
    """Follow a run to its end, whatever that is."""
    followers = [callback.follower() for callback in callbacks if isinstance(callback, Following)]
    try:
        for follower in followers:
            follower.start(begun, rounds)
        if len(begun.rounds) == 1:  # a run that is gone on with was followed so far already
            for follower in followers:
                follower.keep(begun.records)
        yield followers
    except BaseException as error:
        for follower in followers:
            follower.fail(error)
        raise
