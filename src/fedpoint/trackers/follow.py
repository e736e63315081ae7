"""How is a run followed? From its records, segment by segment."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import numpy as np

from fedpoint.core.numbers import evenly
from fedpoint.engine.base import Engine
from fedpoint.engine.state import Records
from fedpoint.results.follow import Follower
from fedpoint.results.run import Run
from fedpoint.store.records import RoundRecords
from fedpoint.store.statement import statement, versions

if TYPE_CHECKING:
    from fedpoint.trackers.base import Description, Tracker

FINISHED = "finished"
POINTS = 100  # that are logged of a segment of rounds, at most


class TrackerFollower(Follower):
    """A run in progress, told to a tracker."""

    def __init__(self, tracker: Tracker):
        self.tracker = tracker
        self.session: Engine | None = None  # of a run that was started, and whose end was not yet told

    def start(self, begun: Run, rounds: int) -> None:
        self.tracker.start({"rounds": rounds, **statement(begun.session), "versions": {**versions()}})
        self.session = begun.session

    def keep(self, records: RoundRecords) -> None:
        """Log records: at most `POINTS` of them, the last one among them."""
        if self.session is None or not len(records):
            return
        rounds, session = records.rounds, self.session
        some = evenly(len(rounds), POINTS)
        shown = jax.tree.map(lambda a: a[:, some], records.model)
        errors, message = session.errors(shown), session.message
        spent = np.asarray(records.used, float)[:, some].mean(0)
        for i, at in enumerate(rounds[some]):
            down, up, evaluations = spent[i]
            measured = {
                "messages": down + up,
                "numbers sent": down * message.down + up * message.up,
                "evaluations": evaluations,
            }
            if errors is not None:
                measured["error"] = errors[:, i].mean()
            elif i == len(some) - 1 and session.problem.has_loss:  # a pass over all data: once a segment
                last, metrics = jax.tree.map(lambda a: np.asarray(a)[:, -1:], (shown, records.metrics))
                measured["loss"] = session.losses(Records(last, (), metrics)).mean()
            for name, values in records.metrics.items():
                if values.ndim == 2:
                    measured[name] = values[:, some[i]].mean()
            told = {name: values[:, some[i]] for name, values in records.evaluation.items()}
            measured |= {_held_out(name): v.mean() for name, v in told.items() if not np.isnan(v).all()}
            self._log(int(at), measured)

    def _log(self, round: int, measured: dict[str, float]) -> None:
        self.tracker.log(round, {name: float(value) for name, value in measured.items()})

    def finish(self, run: Run) -> None:
        """Held-out metrics, where they are there only now, and the end."""
        if int(run.rounds[-1]) % run.info.every:  # the end is always recorded, also off the grid
            self.keep(run.records.last_only())
        for i, at in enumerate(() if run.records.evaluation else run.evaluated_rounds):
            self._log(int(at), {_held_out(name): values[:, i].mean() for name, values in run.evaluation.items()})
        final = {"error": float(run.error[:, -1].mean())} if run.has_error else {}
        self._end({"status": FINISHED, "rounds": int(run.rounds[-1]), **final, "cost": dataclasses.asdict(run.cost)})

    def fail(self, error: BaseException) -> None:
        if self.session is None:
            return
        word = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
        self._end({"status": word, "rounds": int(self.session.round)})

    def _end(self, summary: Description) -> None:
        self.session = None  # told once
        self.tracker.finish(summary)


def _held_out(name: str) -> str:
    return f"held-out {name.removeprefix('held-out ')}"
