"""How is a run followed? From its records, segment by segment: `fp.run` calls this for the trackers it was given."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fedpoint.trackers.base import FINISHED, Tracker

POINTS = 100  # that are logged of a segment of rounds, at most


class Following:
    """The trackers of a run in progress."""

    def __init__(self, given: Sequence[Tracker], session: Any):
        self.given, self.session = given, session
        self.trackers: list[Tracker] = []  # those that were started and not yet told the end

    def start(self, begun: Any, rounds: int) -> None:
        if not self.given:
            return
        from fedpoint.report.statement import statement, versions  # loads the configuration: not without trackers

        said = statement(self.session, begun.algorithm, begun.participation)
        for tracker in self.given:
            tracker.start({"rounds": rounds, **said, "versions": versions()})
            self.trackers.append(tracker)
        if len(begun.rounds) == 1:  # a run that is gone on with was logged so far already
            self.keep(begun.rounds, begun.history, begun.used)

    def keep(self, rounds: np.ndarray, models: Any, used: np.ndarray) -> None:
        """Log records: at most `POINTS` of them, the last one among them."""
        if not self.trackers or not len(rounds):
            return
        some = np.unique(np.linspace(0, len(rounds) - 1, min(len(rounds), POINTS)).round().astype(int))
        shown = jax.tree.map(lambda a: a[:, some], models)
        errors, message = self.session.errors(shown), self.session.message
        spent = np.asarray(used, float)[:, some].mean(0)
        for i, at in enumerate(rounds[some]):
            down, up, evaluations = spent[i]
            measured = {
                "messages": down + up,
                "numbers sent": down * message.down + up * message.up,
                "evaluations": evaluations,
            }
            if errors is not None:
                measured["error"] = errors[:, i].mean()
            elif i == len(some) - 1 and self.session.problem.has_loss:  # a pass over all data: once a segment
                measured["loss"] = self._loss(shown)
            self._log(int(at), measured)

    def _loss(self, shown: Any) -> float:
        from fedpoint.verbs.run import objective_of

        last = jax.tree.map(lambda a: np.asarray(a)[:, -1], shown)
        return float(np.mean(objective_of(self.session.problem, self.session.network, last)))

    def _log(self, round: int, measured: dict[str, Any]) -> None:
        plain = {name: float(value) for name, value in measured.items()}
        for tracker in self.trackers:
            tracker.log(round, plain)

    def finish(self, run: Any) -> None:
        """Held-out metrics, which are there only now, and the end."""
        if not self.trackers:
            return
        if int(run.rounds[-1]) % self.session.every:  # the end is always recorded, also off the grid
            self.keep(run.rounds[-1:], jax.tree.map(lambda a: a[:, -1:], run.history), run.used[:, -1:])
        for i, at in enumerate(run.evaluated_rounds):
            held_out = {f"held-out {k.removeprefix('held-out ')}": v[:, i].mean() for k, v in run.evaluation.items()}
            self._log(int(at), held_out)
        final = {} if run.error is None else {"error": float(run.error[:, -1].mean())}
        summary = {"status": FINISHED, "rounds": int(run.rounds[-1]), **final, "cost": dataclasses.asdict(run.cost)}
        self._end(summary)

    def fail(self, error: BaseException) -> None:
        word = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
        self._end({"status": word, "rounds": int(self.session.round)})

    def _end(self, summary: dict[str, Any]) -> None:
        trackers, self.trackers = self.trackers, []  # told once
        for tracker in trackers:
            tracker.finish(summary)


@contextlib.contextmanager
def following(begun: Any, rounds: int, callbacks: Sequence[Any]) -> Iterator[Following]:
    """Follow a run to its end, whatever that is."""
    follow = Following([c for c in callbacks if isinstance(c, Tracker)], begun.session)
    try:
        follow.start(begun, rounds)
        yield follow
    except BaseException as error:
        follow.fail(error)
        raise
