"""What is a tracker? Three methods; everything that is common to trackers is here."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Mapping
from types import ModuleType
from typing import TypeAlias, final

from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Plain
from fedpoint.engine.base import Progress
from fedpoint.results.follow import Following
from fedpoint.trackers.follow import FINISHED, TrackerFollower

Description: TypeAlias = Mapping[str, Plain]  # what a tracker is told: plain types by name


class Tracker(Following):
    """A follower of runs, given among the callbacks of `fp.run`. Several runs, one after the other, may share one.

    >>> class Printed(Tracker):
    ...     def start(self, statement):
    ...         print(statement["algorithm"]["name"], statement["rounds"])
    ...     def log(self, round, metrics):
    ...         print(round, sorted(metrics))
    ...     def finish(self, summary):
    ...         print(summary["status"])
    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> done = fp.run(fp.FedAvg(step=0.1), quad, rounds=1, callbacks=[Printed()])
    fedavg 1
    0 ['error', 'evaluations', 'messages', 'numbers sent']
    1 ['error', 'evaluations', 'messages', 'numbers sent']
    finished
    """

    _going = False  # whether a run that only calls back (models that fit and predict) has been started

    @abstractmethod
    def start(self, statement: Description) -> None:
        """What is about to be run, in plain types: rounds, seed, algorithm, participation, problem, versions, ..."""

    @abstractmethod
    def log(self, round: int, metrics: Mapping[str, float]) -> None:
        """Means over repeats at a recorded round."""

    @abstractmethod
    def finish(self, summary: Description) -> None:
        """How it ended: status ("finished", or what went wrong) and the final numbers."""

    @final
    def follower(self) -> TrackerFollower:
        return TrackerFollower(self)

    @final
    def __call__(self, progress: Progress) -> None:
        """For runs that tell their callbacks nothing but progress."""
        if not self._going:
            self._going = True
            self.start({"rounds": progress.rounds})
        measured = {"rounds per second": float(progress.rate)}
        if progress.error is not None:
            measured["error"] = float(progress.error.mean())
        self.log(progress.round, measured)
        if progress.round >= progress.rounds:
            self._going = False
            self.finish({"status": FINISHED, "rounds": progress.round})


def package(module: str, install: str, name: str) -> ModuleType:
    """The module, or one clear message."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name is not None and not module.startswith(error.name.split(".")[0]):
            raise  # it is there, and something that it needs is not
        raise FedpointError(f"{name} is not installed; install it with: pip install {install}") from None


def name_of(statement: Description) -> str:
    """What to call a run: its algorithm."""
    return str(flat(statement).get("algorithm.name", "run"))


def flat(tree: Plain | Description, key: str = "") -> dict[str, bool | int | float | str]:
    """Nested tables as one, with dotted names; lists as text; without None.

    >>> flat({"algorithm": {"name": "fedavg", "step": 0.1}, "network": None, "seed": 0})
    {'algorithm.name': 'fedavg', 'algorithm.step': 0.1, 'seed': 0}
    """
    if isinstance(tree, Mapping):
        return {k: v for name, item in tree.items() for k, v in flat(item, f"{key}.{name}" if key else name).items()}
    if tree is None:
        return {}
    return {key: tree if isinstance(tree, bool | int | float | str) else str(tree)}
