"""How does a run survive? What `fp.run(..., folder=)` writes; `report/load.py` reads it back."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedpoint.core.plain import finite
from fedpoint.errors import Diverged, FedpointError
from fedpoint.report.folder import RunFolder
from fedpoint.report.model import export, layout_of, use_of
from fedpoint.report.statement import named, statement, versions
from fedpoint.runtimes.session import Session
from fedpoint.runtimes.state import Records
from fedpoint.verbs.run import Run, objective_of, take_repeat

PERIOD = 2.0  # seconds from one commit to the next, at least
SHARE = 0.1  # of the time that goes into commits, at most
MODEL = "model.npz"  # in the folder of a finished run: the first repeat's model, for `fedpoint predict`
BLOCK = 64  # records whose loss is evaluated at once


@dataclasses.dataclass(frozen=True)
class Place:
    """A folder to be made, with the content of the file that its run comes from."""

    path: str | Path
    experiment: Mapping[str, Any]


def create(folder: str | Path | Place, run: Run, rounds: int, algorithm: Any, participation: Any) -> Store:
    """Make the folder of a run that is about to begin, and put its start into it."""
    place = folder if isinstance(folder, Place) else Place(folder, {})
    session = run.session
    config = {"rounds": rounds, **statement(session, algorithm, participation)}
    if place.experiment:
        config["experiment"] = dict(place.experiment)
    down, up, width = session.message[:3]
    meta = {
        "versions": versions(),
        "engine": session.layout.explain(),
        "message": {"down": down, "up": up, "width": width},
        "model": layout_of(take_repeat(run.last, 0)),
        "use": use_of(session.problem, take_repeat(run.model, 0)),
    }
    if session.network is not None:
        meta["weights"] = session.problem.weights.tolist()  # of the nodes, for their mean model
    handle = RunFolder.create(place.path, config, meta=meta)
    try:
        return Store(handle.path, handle=handle).start(run)
    except BaseException:
        handle.close()
        raise


class Store:
    """Where a run puts its records. The folder is locked while it is written, and only then."""

    def __init__(
        self,
        path: Path,
        round: int | None = None,
        losses: np.ndarray | None = None,
        handle: RunFolder | None = None,
    ):
        self.path, self.round, self._handle = path, round, handle  # the round of the last commit
        self._losses = [] if losses is None else [losses]  # of the records so far, (repeats, n)
        self._rows: list[dict[str, np.ndarray]] = []
        self._interrupt = _Interrupt()
        self._last, self._took = time.monotonic(), 0.0  # the last commit: when, and how long it took

    def start(self, run: Run) -> Store:
        """Commit the start, from which a run killed at once is resumed."""
        self._note(run.session, run.rounds, Records(run.history, run.used))
        self.commit(run.session)
        return self

    @contextlib.contextmanager
    def writing(self, session: Session, rounds: int) -> Iterator[None]:
        """Hold the folder while a run goes on to `rounds`, and say in its events how that ended."""
        self._open(session)
        try:
            self._event("started", session.round, rounds=rounds, versions=versions())
            with self._interrupt:
                yield
        except KeyboardInterrupt:
            self._event("interrupted", self.round)
            raise
        except Diverged as error:
            self._event("diverged", error.round, message=str(error))
            raise
        except Exception as error:
            with contextlib.suppress(FedpointError):  # on a full disk there is no room for this either: `error` counts
                self._event("failed", self.round, message=f"{type(error).__name__}: {error}")
            raise
        finally:
            self._close()

    def _open(self, session: Session) -> None:
        if self._handle is None:
            self._handle = RunFolder.open(self.path, write=True)
            point = self._handle.latest()
            if point is None or point.round != session.round:
                self._close()
                raise FedpointError(f"{self.path} has been written by others since: load it again")
            if point.skipped:
                self._event("recovered", point.round, message=" | ".join(point.skipped))
        self._rows = []
        self._handle.reopen()
        self._last = time.monotonic()

    def _close(self) -> None:
        if self._handle is not None:
            self._handle.close()
        self._handle = None

    @property
    def _open_handle(self) -> RunFolder:
        if self._handle is None:
            raise FedpointError(f"{self.path} is not open for writing")
        return self._handle

    def _event(self, event: str, round: int | None, **rest: Any) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        self._open_handle.append_event({"time": now, "event": event, "round": round, **rest})

    def keep(self, session: Session, rounds: np.ndarray, records: Records) -> None:
        """Take the records of a segment; on disk now and then, and before an interrupt takes effect."""
        self._note(session, rounds, records)
        if self._interrupt.asked or time.monotonic() - self._last >= max(PERIOD, self._took / SHARE):
            self.commit(session)
            self._event("progress", session.round, seconds=round(session.seconds, 3))
        if self._interrupt.asked:
            raise KeyboardInterrupt

    def _note(self, session: Session, rounds: np.ndarray, records: Records) -> None:
        if not len(rounds):
            return
        values = {"used": records.used, "error": session.errors(records.model)}
        values["loss"] = losses(session, records.model, int(rounds[0]) // session.every)
        if values["loss"] is not None:
            self._losses.append(values["loss"])
        values = {name: value for name, value in values.items() if value is not None}
        arrays = named("model", records.model) | values
        # A row of the folder is a record: the round leads, then the repeat.
        self._rows.append({"round": rounds} | {name: np.moveaxis(a, 0, 1) for name, a in arrays.items()})

    def commit(self, session: Session) -> None:
        """Put records and state on disk, both or neither."""
        if self.round == session.round:
            return
        begun = time.monotonic()
        names = self._rows[0] if self._rows else {}
        rows = {name: np.concatenate([part[name] for part in self._rows]) for name in names}
        self._open_handle.commit(session.round, _state(session), rows)
        self._rows, self.round, self._last = [], session.round, time.monotonic()
        self._took = self._last - begun

    def finish(self, run: Run) -> None:
        """The end: model and summary, and the losses for the run, which need not be computed twice."""
        self.commit(run.session)
        if self._losses:
            on_grid = np.concatenate(self._losses, axis=1)
            run._loss = on_grid
            if on_grid.shape[1] < len(run.rounds):
                run._loss = np.concatenate([on_grid, _last_loss(run.session)], axis=1)
        export(run, self.path / MODEL)
        self._open_handle.finish(_summary(run, has_loss=bool(self._losses)))
        self._event("finished", run.session.round, seconds=round(run.session.seconds, 3))


def _state(session: Session) -> dict[str, np.ndarray]:
    """The session's state; off the grid of records also what a record of this round would be."""
    arrays = {f"state{name}": array for name, array in session.save().items()}
    arrays["seconds"] = np.asarray(session.seconds)
    if session.round % session.every:
        model = session.model()
        used = jax.tree.map(lambda a: np.asarray(a)[:, None], session.state.used)
        arrays |= named("last.model", model)
        arrays["last.used"] = session.used(np.array([session.round]), used)[:, 0]
        error, loss = session.errors(jax.tree.map(lambda a: a[:, None], model)), _last_loss(session)
        arrays |= {} if error is None else {"last.error": error[:, 0]}
        arrays |= {} if loss is None else {"last.loss": loss[:, 0]}
    return arrays


def _last_loss(session: Session) -> np.ndarray | None:
    return losses(session, jax.tree.map(lambda a: a[:, None], session.model()), 0)


def losses(session: Session, models: Any, first: int) -> np.ndarray | None:
    """(repeats, n): the objective at recorded models, of which `first` is the number of the first.

    In blocks of one size, each record at its own place in its block: one compilation, and the same bits however the
    records were cut into segments. None where the field is not a gradient, and on several processes: none has all data.
    """
    if not session.problem.has_loss or session.sums is not None:
        return None
    repeats, n = jax.tree.leaves(models)[0].shape[:2]
    before = first % BLOCK
    after = -(before + n) % BLOCK
    padded = jax.tree.map(lambda a: np.concatenate([a[:, :1]] * before + [a] + [a[:, -1:]] * after, axis=1), models)
    parts = []
    for start in range(0, before + n + after, BLOCK):
        block = jax.tree.map(lambda a, s=start: a[:, s : s + BLOCK].reshape(-1, *a.shape[2:]), padded)
        parts.append(np.asarray(objective_of(session.problem, session.network, block)).reshape(repeats, BLOCK))
    return np.concatenate(parts, axis=1)[:, before : before + n]


def _summary(run: Run, has_loss: bool) -> dict[str, Any]:
    final = {"error": run.error, "loss": run.loss if has_loss else None}
    means = {name: None if value is None else float(value[:, -1].mean()) for name, value in final.items()}
    evaluation = {name: values.tolist() for name, values in run.evaluation.items()}
    agents = {  # None: nothing of this agent is held out
        name: [[finite(x) for x in row] for row in values.tolist()] for name, values in run.held_out.items()
    }
    return {
        "rounds": int(run.rounds[-1]),
        **means,
        "cost": dataclasses.asdict(run.cost),
        "seconds": run.session.seconds,
        "rounds_per_second": run.speed,
        "evaluated_rounds": np.asarray(run.evaluated_rounds).tolist(),
        "evaluation": evaluation,
        **({"held_out": {"agents": [str(name) for name in run.problem.names], **agents}} if agents else {}),
    }


class _Interrupt:
    """Ctrl-C is noted, and takes effect between two segments, where nothing is lost; a second one at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> None:
        self.asked = False
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._note)

    def __exit__(self, kind: Any, *_: Any) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        self._before = None
        if self.asked and kind is None:  # asked for in the last segment: the end is on disk
            raise KeyboardInterrupt

    def _note(self, *_: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
