"""How does a run survive? What `fp.run(..., folder=)` writes; `verbs/load.py` reads it back."""

from __future__ import annotations

import contextlib
import datetime
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TypeAlias

import jax
import numpy as np

from fedpoint.core.errors import Diverged, FedpointError
from fedpoint.core.types import Model
from fedpoint.engine.base import Engine
from fedpoint.engine.session import flatten
from fedpoint.store.export import layout_of, use_of
from fedpoint.store.folder import MODEL, RunFolder, export_model
from fedpoint.store.records import Measures, Place, RoundRecords
from fedpoint.store.statement import statement, versions

PERIOD = 2.0  # seconds from one commit to the next, at least
SHARE = 0.1  # of the time that goes into commits, at most
Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None


def create(place: Place, session: Engine, records: RoundRecords, rounds: int, measures: Measures) -> Store:
    """Make the folder of a run that is about to begin, and put its start into it."""
    config = {"rounds": rounds, **statement(session)}
    if place.experiment:
        config["experiment"] = dict(place.experiment)
    first = jax.tree.map(lambda a: a[0], records.last)
    one = first if session.weights is None else jax.tree.map(lambda a: a[0], first)
    meta = {
        "versions": versions(),
        "engine": session.explain(),
        "message": {name: session.message._asdict()[name] for name in ("down", "up", "width", "up_bytes", "hub")},
        "model": layout_of(first),
        "use": use_of(session.problem, one),
        "has_loss": session.problem.has_loss,
        "measures": {"errors": measures.errors, "losses_every": measures.losses_every},
    }
    if session.weights is not None:
        meta["weights"] = session.weights.tolist()  # of the nodes, for their mean model
    handle = RunFolder.create(place.path, config, meta=meta)
    try:
        session.keep_in(handle.path)
        return Store(handle.path, handle=handle).start(session, records)
    except BaseException:
        handle.close()
        raise


class Store:
    """Where a run puts its records. The folder is locked while it is written, and only then."""

    def __init__(self, path: Path, round: int | None = None, handle: RunFolder | None = None):
        self.path, self.round, self._handle = path, round, handle  # the round of the last commit
        self._rows: list[dict[str, np.ndarray]] = []
        self._interrupt = _Interrupt()
        self._last, self._took = time.monotonic(), 0.0  # the last commit: when, and how long it took

    def start(self, session: Engine, records: RoundRecords) -> Store:
        """Commit the start, from which a run killed at once is resumed."""
        self._note(records)
        self.commit(session, None)
        return self

    @contextlib.contextmanager
    def writing(self, session: Engine, rounds: int) -> Iterator[None]:
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

    def _open(self, session: Engine) -> None:
        if self._handle is None:
            self._handle = RunFolder.open(self.path, write=True)
            standing = self._handle.standing()
            if standing.point is None or standing.point.round != session.round:
                self._close()
                raise FedpointError(f"{self.path} has been written by others since: load it again")
            if standing.wrong:
                self._event("recovered", standing.point.round, message=" | ".join(standing.wrong))
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

    def _event(self, event: str, round: int | None, **rest: object) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        self._open_handle.append_event({"time": now, "event": event, "round": round, **rest})

    @property
    def due(self) -> bool:
        """Whether it is time for a commit; an interrupt waits for one."""
        return self._interrupt.asked or time.monotonic() - self._last >= max(PERIOD, self._took / SHARE)

    def keep(self, session: Engine, records: RoundRecords, last: Callable[[], RoundRecords | None]) -> None:
        """Take the records of a segment; on disk now and then, and before an interrupt takes effect.

        last: makes what a record of the current round is, where that is off the grid of records. It is asked once a
        commit has been decided on: whether one is due depends on the clock, and on when somebody interrupts.
        """
        self._note(records)
        if self.due:
            self.commit(session, last())
            self._event("progress", session.round, seconds=round(session.pace.seconds, 3))
        if self._interrupt.asked:
            raise KeyboardInterrupt

    def _note(self, records: RoundRecords) -> None:
        if len(records):
            # A row of the folder is a record: the round leads, then the repeat.
            rows = {name: np.moveaxis(a, 0, 1) for name, a in records.arrays().items()}
            self._rows.append({"round": records.rounds} | rows)

    def commit(self, session: Engine, last: RoundRecords | None) -> None:
        """Put records and state on disk, both or neither."""
        if self.round == session.round:
            return
        begun = time.monotonic()
        names = self._rows[0] if self._rows else {}
        rows = {name: np.concatenate([part[name] for part in self._rows]) for name in names}
        state = {f"state{name}": array for name, array in session.save().items()}
        state["pace"] = session.pace.array()
        if last is not None:
            state |= {f"last.{name}": array[:, 0] for name, array in last.arrays().items()}
        self._open_handle.commit(session.round, state, rows)
        self._rows, self.round, self._last = [], session.round, time.monotonic()
        self._took = self._last - begun

    def finish(
        self, session: Engine, model: Model, manifest: Mapping[str, object], summary: Mapping[str, object]
    ) -> None:
        """The end: the first repeat's model, and the summary."""
        sha = export_model(self.path / MODEL, flatten(model), manifest)
        self._open_handle.finish(summary, sha)
        self._event("finished", session.round, seconds=round(session.pace.seconds, 3))


class _Interrupt:
    """Ctrl-C is noted, and takes effect between two segments, where nothing is lost; a second one at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Handler = None

    def __enter__(self) -> None:
        self.asked = False
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._note)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        self._before = None
        if self.asked and kind is None:  # asked for in the last segment: the end is on disk
            raise KeyboardInterrupt

    def _note(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
