"""How is a run made? A session goes on segment by segment, and its records go to the folder and the followers."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from fedpoint.core.numbers import finite
from fedpoint.core.types import Data
from fedpoint.engine.base import Callback, Engine, Enough, Stop
from fedpoint.engine.state import Records
from fedpoint.results import held_out
from fedpoint.results.evaluating import Evaluator, check_continued, evaluator_of
from fedpoint.results.follow import Callbacks, Follower, Following, as_callbacks, following
from fedpoint.results.info import RunInfo, take_repeat
from fedpoint.results.run import Run
from fedpoint.store.records import Measures, RoundRecords, join


@dataclass(frozen=True)
class Recorder:
    """Records of a run, with what is evaluated beside them."""

    session: Engine
    measures: Measures
    evaluator: Evaluator | None = None

    def take(self, rounds: np.ndarray, records: Records) -> RoundRecords:
        """The records of a segment."""
        return self._with(rounds, records, self._losses(rounds, records))

    def now(self) -> RoundRecords:
        """A record of the current state, with its loss where some are evaluated."""
        records, at = self.session.now(), np.array([self.session.round])
        loss = None if self.measures.losses_every is None else self.session.losses(records)
        return self._with(at, records, loss)

    def _with(self, rounds: np.ndarray, records: Records, loss: np.ndarray | None) -> RoundRecords:
        error = self.session.errors(records.model) if self.measures.errors else None
        held_out = {} if self.evaluator is None else self.evaluator.take(rounds, records.model)
        return RoundRecords(rounds, records.model, records.used, dict(records.metrics or {}), error, loss, held_out)

    def off_grid(self) -> RoundRecords | None:
        """A record of the current state, where it would not be one."""
        return self.now() if self.session.round % self.session.every else None

    def _losses(self, rounds: np.ndarray, records: Records) -> np.ndarray | None:
        """(repeats, n), nan where passed over. One record at a time: the same bits however records are cut."""
        if self.measures.losses_every is None:
            return None
        found = np.full((self.session.repeats, len(rounds)), np.nan)
        for i in np.flatnonzero(rounds % self.measures.losses_every == 0):
            one = jax.tree.map(lambda a, i=i: a[:, i : i + 1], records)
            found[:, i] = self.session.losses(one)[:, 0]
        return found


def begin(session: Engine, measures: Measures = Measures(), evaluate: Data = None) -> Run:  # noqa: B008 - frozen
    """The run before its first round: it records the start."""
    recorder = Recorder(session, measures, evaluator_of(evaluate, session))
    return Run(recorder.now(), RunInfo.of(session), session, measures=measures)


def drive(
    begun: Run,
    rounds: int,
    stop: Stop | None = None,
    callbacks: Callbacks = (),
    evaluate: Data = None,
) -> Run:
    """Go on with a run, in its folder where it has one, followed by those among the callbacks who do."""
    given = as_callbacks(callbacks)
    evaluator = evaluator_of(evaluate, begun.session, begun.records)
    check_continued(begun.records, evaluator)
    with contextlib.ExitStack() as stack:
        if begun.folder is not None:
            stack.enter_context(begun.folder.writing(begun.session, rounds))
        if evaluate is not None and evaluator is None:
            begun.session.watch(begun.session.measure(evaluate))
        followers = stack.enter_context(following(begun, rounds, given))
        others = [callback for callback in given if not isinstance(callback, Following)]
        records = _advance(begun, rounds, stop, others, followers, evaluator)
        done = Run(records, RunInfo.of(begun.session), begun.session, begun.folder, begun.measures)
        if evaluator is not None:
            done.best_rounds = evaluator.best()[0]
            held_out.at_end(done, evaluator.evaluation.data)
        elif evaluate is not None:
            held_out.at_records(done, evaluate)
        if done.folder is not None:
            summary = summarise(done)
            done.folder.finish(done.session, take_repeat(done.learnt, 0), done.manifest(), summary)
        for follower in followers:
            follower.finish(done)
        return done


def _advance(
    begun: Run,
    rounds: int,
    stop: Stop | None,
    callbacks: Sequence[Callback],
    followers: Sequence[Follower],
    evaluator: Evaluator | None,
) -> RoundRecords:
    """The records of a run and those of more rounds behind them."""
    session, folder = begun.session, begun.folder
    recorder = Recorder(session, begun.measures, evaluator)
    before = begun.records
    if before.rounds[-1] % session.every:  # a last record off the grid is replaced by the grid's own
        before = before.first(len(before) - 1)
    parts = [before]

    def keep(rounds: np.ndarray, records: Records) -> None:
        part = recorder.take(rounds, records)
        parts.append(part)
        if folder is not None:
            folder.keep(session, part, recorder.off_grid)
        for follower in followers:
            follower.keep(part)

    stops = [] if stop is None else [session.stopper(stop, before.model)]
    if evaluator is not None:
        stops += [] if evaluator.evaluation.patience is None else [evaluator.enough]
        callbacks = [_told(callback, evaluator) for callback in callbacks]
    session.advance(rounds, _any(stops) if stops else None, callbacks, keep)
    last = recorder.off_grid()
    if folder is not None:
        folder.commit(session, last)
    return join(parts if last is None else [*parts, last])  # the end is always recorded


def _any(stops: Sequence[Enough]) -> Enough:
    """Whether one says so; all are asked, because they count."""
    return lambda round, model, error: sum(bool(stop(round, model, error)) for stop in stops) > 0


def _told(callback: Callback, evaluator: Evaluator) -> Callback:
    """The same, told the last held-out metrics too."""
    return lambda progress: callback(dataclasses.replace(progress, evaluation=evaluator.latest))


def summarise(run: Run) -> dict[str, object]:
    """What a folder says of the end of a run: the final error where the solution is known, and the final loss."""
    session = run.session
    if session.problem.has_loss and session.sums is None:  # no process of several has all data
        known = None if run.records.loss is None else run.records.loss[:, -1]
        if known is None or np.isnan(known).any():
            known = session.losses(Records(jax.tree.map(lambda a: a[:, -1:], run.history), ()))[:, 0]
        run.final_loss = known
    error = run.error if run.measures.errors and run.has_error else None
    final = {"error": None if error is None else error[:, -1], "loss": run.final_loss}
    agents = {  # None: nothing of this agent is held out
        name: [[finite(x) for x in row] for row in values.tolist()] for name, values in run.held_out.items()
    }
    return {
        "rounds": int(run.rounds[-1]),
        **{name: None if values is None else float(values.mean()) for name, values in final.items()},
        "final": {name: values.tolist() for name, values in final.items() if values is not None},
        "cost": dataclasses.asdict(run.cost),
        **({"privacy": run.privacy_line} if run.is_private else {}),
        "seconds": session.pace.seconds,
        "rounds_per_second": run.speed,
        "evaluated_rounds": np.asarray(run.evaluated_rounds).tolist(),
        "evaluation": {name: values.tolist() for name, values in run.evaluation.items()},
        **({} if run.best_rounds is None else {"best_rounds": run.best_rounds.tolist()}),
        **({"held_out": {"agents": [str(name) for name in run.problem.names], **agents}} if agents else {}),
    }
