"""How does a run survive? What `fp.run(..., folder=)` writes, and `fp.load` reads back.

The folder states what the run is (algorithm, participation, problem, seed, ...), so that it is never continued with
something else. Data stay out of it: a problem is stated by its shapes and a fingerprint, or, for a run from a TOML
file, by that file's content, from which everything is built again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedpoint.config import methods, schemes
from fedpoint.config.values import Unreadable, fingerprint, plain
from fedpoint.core.vector import unwrap_all, wrap
from fedpoint.errors import Diverged, FedpointError
from fedpoint.metrics import Cost
from fedpoint.problems.base import Oracle
from fedpoint.report.folder import Checkpoint, RunFolder, export_model
from fedpoint.runtimes.session import Session, flatten, unflatten
from fedpoint.runtimes.simulation import Records, start_state
from fedpoint.verbs.run import Run, begin, check_start, drive, stopper, take_repeat

PERIOD = 2.0  # seconds from one commit to the next, at least
MODEL = "model.npz"  # in the folder of a finished run: the first repeat's model, for `fedpoint predict`
BLOCK = 64  # records whose loss is evaluated at once


# What a run is.


def statement(session: Session, algorithm: Any, participation: Any) -> dict[str, Any]:
    """What the folder of a run states about it, in plain types; algorithm and participation as they were given."""
    problem = session.problem
    oracle = problem.oracle
    arrays = {n: a for part in ("own", "common", "weights") for n, a in _named(part, getattr(problem, part)).items()}
    return {
        "seed": session.seed,
        "repeats": session.repeats,
        "record_every": session.every,
        "exact": session.exact,
        "algorithm": methods.describe(algorithm),
        "participation": schemes.describe(participation),
        "problem": {
            "class": type(problem).__name__,
            "agents": problem.agents,
            "oracle": {f.name: plain(getattr(oracle, f.name)) for f in _fields(oracle)},
            "shapes": {name: list(np.shape(array)) for name, array in arrays.items()},
            "sha256": fingerprint(arrays),
            "start_sha256": fingerprint(_named("start", session.start)),
        },
    }


def _fields(oracle: Any) -> tuple:
    return dataclasses.fields(oracle) if dataclasses.is_dataclass(oracle) else ()


def _named(prefix: str, tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a tree, by path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def check_same(stored: Mapping[str, Any], now: Mapping[str, Any], where: Path) -> None:
    """Refuse to continue a run with anything but what it was begun with."""
    differ = list(_differences(stored, now))
    if not differ:
        return
    shown = "; ".join(f"{key} was {_brief(then)} and is now {_brief(given)}" for key, then, given in differ[:4])
    if "problem.sha256" in [key for key, _, _ in differ]:
        shown = f"the problem has other data ({shown})"
    raise FedpointError(f"{where} holds another run: {shown}. Give what it was begun with, or start a new run.")


def _differences(stored: Any, now: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(stored, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys([*stored, *now]):
            yield from _differences(stored.get(name), now.get(name), f"{key}.{name}" if key else name)
    elif stored != now:
        yield key, stored, now


def _brief(value: Any) -> str:
    text = "not given" if value is None else str(value)
    return text if len(text) <= 32 else text[:12] + "..."


def _plain(tree: Any) -> Any:
    """Without None, as the folder's TOML has none."""
    if isinstance(tree, Mapping):
        return {key: _plain(item) for key, item in tree.items() if item is not None}
    return [_plain(item) for item in tree] if isinstance(tree, list | tuple) else tree


def versions() -> dict[str, str]:
    import fedpoint

    return {"fedpoint": fedpoint.__version__, "jax": jax.__version__, "numpy": np.__version__}


# Writing.


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
    down, up, width, _ = session.message
    meta = {
        "versions": versions(),
        "engine": session.layout.explain(),
        "message": {"down": down, "up": up, "width": width},
        "model": _layout(take_repeat(run.model, 0)),
        "use": _use(session.problem, take_repeat(run.model, 0)),
    }
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
        self._last = time.monotonic()

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
        if self._interrupt.asked or time.monotonic() - self._last >= PERIOD:
            self.commit(session)
            self._event("progress", session.round, seconds=round(session.seconds, 3))
        if self._interrupt.asked:
            raise KeyboardInterrupt

    def _note(self, session: Session, rounds: np.ndarray, records: Records) -> None:
        if not len(rounds):
            return
        values = {"used": records.used, "error": session.errors(records.model)}
        values["loss"] = losses(session.problem, records.model, int(rounds[0]) // session.every)
        if values["loss"] is not None:
            self._losses.append(values["loss"])
        values = {name: value for name, value in values.items() if value is not None}
        arrays = _named("model", records.model) | values
        # A row of the folder is a record: the round leads, then the repeat.
        self._rows.append({"round": rounds} | {name: np.moveaxis(a, 0, 1) for name, a in arrays.items()})

    def commit(self, session: Session) -> None:
        """Put records and state on disk, both or neither."""
        if self.round == session.round:
            return
        names = self._rows[0] if self._rows else {}
        rows = {name: np.concatenate([part[name] for part in self._rows]) for name in names}
        self._open_handle.commit(session.round, _state(session), rows)
        self._rows, self.round, self._last = [], session.round, time.monotonic()

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
        arrays |= _named("last.model", model)
        arrays["last.used"] = session.used(np.array([session.round]), used)[:, 0]
        error, loss = session.errors(jax.tree.map(lambda a: a[:, None], model)), _last_loss(session)
        arrays |= {} if error is None else {"last.error": error[:, 0]}
        arrays |= {} if loss is None else {"last.loss": loss[:, 0]}
    return arrays


def _last_loss(session: Session) -> np.ndarray | None:
    return losses(session.problem, jax.tree.map(lambda a: a[:, None], session.model()), 0)


def losses(problem: Any, models: Any, first: int) -> np.ndarray | None:
    """(repeats, n): the objective at recorded models, of which `first` is the number of the first.

    In blocks of one size, each record at its own place in its block: one compilation, and the same bits however the
    records were cut into segments. None where the field is not a gradient.
    """
    if type(problem.oracle).loss is Oracle.loss:
        return None
    repeats, n = jax.tree.leaves(models)[0].shape[:2]
    before = first % BLOCK
    after = -(before + n) % BLOCK
    padded = jax.tree.map(lambda a: np.concatenate([a[:, :1]] * before + [a] + [a[:, -1:]] * after, axis=1), models)
    parts = []
    for start in range(0, before + n + after, BLOCK):
        block = jax.tree.map(lambda a, s=start: a[:, s : s + BLOCK].reshape(-1, *a.shape[2:]), padded)
        parts.append(np.asarray(problem.objective(block)).reshape(repeats, BLOCK))
    return np.concatenate(parts, axis=1)[:, before : before + n]


def _summary(run: Run, has_loss: bool) -> dict[str, Any]:
    final = {"error": run.error, "loss": run.loss if has_loss else None}
    means = {name: None if value is None else float(value[:, -1].mean()) for name, value in final.items()}
    evaluation = {name: values.tolist() for name, values in run.evaluation.items()}
    return {
        "rounds": int(run.rounds[-1]),
        **means,
        "cost": dataclasses.asdict(run.cost),
        "seconds": run.session.seconds,
        "rounds_per_second": run.speed,
        "evaluated_rounds": np.asarray(run.evaluated_rounds).tolist(),
        "evaluation": evaluation,
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


# Reading.


def load(folder: str | Path, problem: Any = None, algorithm: Any = None, participation: Any = None) -> Run:
    """A run read back from its folder.

    Rounds, errors, losses, models, memories, costs and evaluation come from the disk. To go on (`extend`), a run from
    a TOML file builds its problem again; otherwise give the problem, which must be the one the run was begun with.
    Give the algorithm or the participation too where the folder can only name them (your own class, an optax object).
    """
    return LoadedRun(RunFolder.open(folder), problem, algorithm, participation)


class LoadedRun(Run):
    """A run on disk. Its session, which needs the data, is made when something asks for it."""

    def __init__(self, folder: RunFolder, problem: Any = None, algorithm: Any = None, participation: Any = None):
        self.stored, self.config = folder, folder.config
        self.seed, self.repeats = self.config["seed"], self.config["repeats"]
        given = {"problem": problem, "algorithm": algorithm, "participation": participation}
        vars(self).update({name: value for name, value in given.items() if value is not None})
        point = folder.latest()
        self._point = point or self._restart()
        self._read(self._point)
        summary = folder.summary or {}
        self.finished = bool(summary)
        self.evaluation = {name: np.asarray(v) for name, v in summary.get("evaluation", {}).items()}
        self.evaluated_rounds = np.asarray(summary.get("evaluated_rounds", []), int)
        self.folder = Store(folder.path, self._point.round, self._loss_on_grid())
        if problem is not None:
            self.session  # noqa: B018 - other data are refused here, not later

    def _restart(self) -> Checkpoint:
        """A run that was killed before its first commit: commit the start now."""
        run = begin(self._new_session())
        with RunFolder.open(self.stored.path, write=True) as handle:
            Store(handle.path, handle=handle).start(run)
        point = self.stored.latest()
        if point is None:
            raise FedpointError(f"{self.stored.path} holds nothing yet: start the run again in another folder")
        return point

    def _read(self, point: Checkpoint) -> None:
        records, state = point.records, point.state
        names = [entry["name"] for entry in self.stored.meta["model"]]
        self.rounds = records["round"]
        arrays = {name: np.moveaxis(records[name], 0, 1) for name in (*names, "used")}
        arrays |= {name: np.moveaxis(records[name], 0, 1) for name in ("error", "loss") if name in records}
        if point.round % self.config["record_every"]:  # the end is always recorded
            self.rounds = np.append(self.rounds, point.round)
            for name, array in arrays.items():
                arrays[name] = np.concatenate([array, state[f"last.{name}"][:, None]], axis=1)
        self._leaves = [arrays[name] for name in names]
        self.history = _nested(self.stored.meta["model"], self._leaves)
        self.used = arrays["used"]
        self._error, self._loss = arrays.get("error"), arrays.get("loss")

    def _loss_on_grid(self) -> np.ndarray | None:
        count = len(self._point.records["round"])
        return None if self._loss is None else self._loss[:, :count]

    # What needs no data.

    @property
    def error(self) -> np.ndarray | None:
        return self._error

    @property
    def loss(self) -> np.ndarray:
        if self._loss is None:
            raise FedpointError(f"the run in {self.stored.path} has no loss: its field is not a gradient")
        return self._loss

    @property
    def model(self) -> Any:
        return jax.tree.map(lambda a: a[:, -1], self.history)

    @property
    def models(self) -> Any:
        K = self.config["problem"]["agents"]
        return jax.tree.map(lambda a: np.broadcast_to(a[:, None], (len(a), K, *a.shape[1:])), self.model)

    @property
    def memories(self) -> Any:
        algorithm, model = self.algorithm, wrap(take_repeat(self.model, 0))
        arrays = {name.removeprefix("state"): a for name, a in self._point.state.items()}
        with jax.enable_x64(True):
            one = start_state(algorithm, model, self.config["problem"]["agents"], ".used" in arrays)
            like = jax.tree.map(lambda a: np.broadcast_to(a, (self.repeats, *np.shape(a))), one)
            state = unflatten(like, arrays)
            settled = jax.vmap(lambda hub, memory: jax.vmap(lambda m: algorithm.settle(hub, m))(memory))
            return jax.tree.map(np.asarray, unwrap_all(settled(state.hub, state.memory)))

    @property
    def cost(self) -> Cost:
        sizes = self.stored.meta["message"]
        return Cost.of(int(self.rounds[-1]), self.used[:, -1].mean(0), sizes["down"], sizes["up"], sizes["width"])

    @property
    def speed(self) -> float:
        whole = int(self.rounds[-1]) / max(float(self._point.state["seconds"]), 1e-9)
        return (self.stored.summary or {}).get("rounds_per_second", whole)

    @property
    def engine(self) -> str:
        return self.stored.meta["engine"]

    # What is built again, or was given.

    @cached_property
    def algorithm(self) -> Any:
        table = self.config.get("experiment", self.config)["algorithm"]
        with self._hint("algorithm"):
            return methods.rebuild(table)

    @cached_property
    def participation(self) -> Any:
        if "experiment" in self.config:
            return schemes.scheme_of(self.config["experiment"].get("participation"))
        with self._hint("participation"):
            return schemes.rebuild(self.config["participation"])

    @cached_property
    def problem(self) -> Any:
        if "experiment" not in self.config:
            raise FedpointError(
                f"the data of the run in {self.stored.path} are not in its folder: give fp.load(folder, problem=...)"
            )
        from fedpoint.config import parse

        return parse(self.config["experiment"], self.stored.path.name, source=str(self.stored.path)).problem

    @cached_property
    def session(self) -> Session:  # type: ignore[override]
        """The run, ready to go on from the last commit."""
        names = [entry["name"] for entry in self.stored.meta["model"]]
        leaves = [self._point.records[name][0, 0] for name in names]
        session = self._new_session(jax.tree.unflatten(jax.tree.structure(self.problem.start()), leaves))
        session.restore({n.removeprefix("state"): a for n, a in self._point.state.items()}, self._point.round)
        session.seconds = float(self._point.state["seconds"])
        self.history = jax.tree.unflatten(jax.tree.structure(session.start), self._leaves)
        return session

    def _new_session(self, start: Any = None) -> Session:
        """Not advanced, and checked to be the stored run's."""
        config, algorithm, participation = self.config, self.algorithm, self.participation
        numbers = (config[key] for key in ("exact", "seed", "repeats", "record_every"))
        session = Session(algorithm, self.problem, participation, check_start(self.problem, start), *numbers)
        now = _plain(statement(session, algorithm, participation))
        check_same({key: config.get(key) for key in now}, now, self.stored.path)
        return session

    def extend(self, rounds: int, **options: Any) -> Run:
        """Go on in the same folder to `rounds` rounds in all: the bits of a run that never stopped."""
        if self.finished:
            return super().extend(rounds, **options)
        if self._stopped(options.get("stop")):
            rounds = self._point.round
        return drive(self, max(rounds, self._point.round), **options)

    def _stopped(self, stop: Any) -> bool:
        """Whether the last record already met `stop`, so that an uninterrupted run would not have gone on."""
        if stop is None or len(self._point.records["round"]) != len(self.rounds) or len(self.rounds) < 2:
            return False
        before = jax.tree.map(lambda a: a[:, :-1], self.history)
        error = None if self.error is None else self.error[:, -1]
        return bool(stopper(stop, before)(int(self.rounds[-1]), self.model, error))

    @contextlib.contextmanager
    def _hint(self, name: str) -> Iterator[None]:
        try:
            yield
        except Unreadable as error:
            raise FedpointError(f"{self.stored.path}: {error}; give fp.load(folder, {name}=...)") from None

    def __repr__(self) -> str:
        name = self.config["algorithm"]["name"]
        state = "finished" if self.finished else "not finished"
        return f"<Run {name} in {self.stored.path}: {self.rounds[-1]} rounds, {self.repeats} repeats, {state}>"


def _layout(model: Any) -> list[dict[str, Any]]:
    """Names and paths of a model's arrays, for a reader who does not have the problem."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(model)
    return [{"name": "model" + jax.tree_util.keystr(path), "path": [_step(key) for key in path]} for path, _ in leaves]


def _step(key: Any) -> str | int:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            value = getattr(key, attribute)
            return value if isinstance(value, int) else str(value)
    return str(key)


def _nested(layout: list[dict[str, Any]], leaves: list[np.ndarray]) -> Any:
    """The arrays as a tree of dictionaries and lists."""
    if [entry["path"] for entry in layout] == [[]]:
        return leaves[0]
    inside: dict[str | int, list[tuple[dict[str, Any], np.ndarray]]] = {}
    for entry, leaf in zip(layout, leaves, strict=True):
        first, *rest = entry["path"]
        inside.setdefault(first, []).append(({**entry, "path": rest}, leaf))
    made = {key: _nested([e for e, _ in part], [a for _, a in part]) for key, part in inside.items()}
    return list(made.values()) if list(made) == list(range(len(made))) else made


# Models on their own.


def export(run: Run, path: str | Path, repeat: int = 0) -> None:
    """Write one repeat's model as npz with a manifest, for `fedpoint predict` and other programs."""
    model = run.model
    if not 0 <= repeat < len(jax.tree.leaves(model)[0]):
        raise FedpointError(f"there is no repeat {repeat}: the run has {len(jax.tree.leaves(model)[0])}, from 0 on")
    export_model(path, flatten(take_repeat(model, repeat)), {**model_manifest(run), "repeat": repeat})


def model_manifest(run: Run) -> dict[str, Any]:
    """What a program must know to use the model."""
    use = run.stored.meta["use"] if isinstance(run, LoadedRun) else _use(run.problem, take_repeat(run.model, 0))
    return {
        "algorithm": run.config["algorithm"] if isinstance(run, LoadedRun) else methods.describe(run.algorithm),
        **use,
        "rounds": int(run.rounds[-1]),
        "seed": int(run.seed),
        "versions": versions(),
    }


def _use(problem: Any, model: Any) -> dict[str, Any]:
    """How rows of data become predictions."""
    classes, intercept = getattr(problem, "classes", None), bool(getattr(problem, "intercept", False))
    width = np.shape(model)[0] if hasattr(model, "shape") and np.ndim(model) else None
    return {
        "problem": type(problem).__name__,
        "classes": None if classes is None else np.asarray(classes).tolist(),
        "intercept": intercept,
        "features": None if width is None else int(width) - intercept,
    }
