"""A run read back from its folder: everything that was recorded, without the data; with them, it goes on."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedpoint.config import methods, networks, schedules, schemes
from fedpoint.config.values import Unreadable
from fedpoint.core.schedule import Synchronous
from fedpoint.core.vector import unwrap_all, wrap
from fedpoint.errors import FedpointError, Recovered
from fedpoint.metrics import Cost
from fedpoint.report.folder import Checkpoint, RunFolder
from fedpoint.report.stated import check_records, check_run
from fedpoint.report.statement import check_same, statement, without_none
from fedpoint.report.store import Store
from fedpoint.runtimes.session import Session, unflatten
from fedpoint.runtimes.state import start_state
from fedpoint.verbs.run import Run, begin, check_network, check_start, drive, mean_model, stopper, take_repeat


def load(
    folder: str | Path, problem: Any = None, algorithm: Any = None, participation: Any = None, network: Any = None
) -> Run:
    """A run read back from its folder.

    Rounds, errors, losses, models, memories, costs and evaluation come from the disk. To go on (`extend`), a run from
    a TOML file builds its problem again; otherwise give the problem, which must be the one the run was begun with.
    Give algorithm, participation (or schedule) or network too where the folder can only name them: your own class, an
    optax object, a large graph.
    """
    run = LoadedRun(RunFolder.open(folder), problem, algorithm, participation, network)
    if run.skipped:
        last = f"the one before it serves, of round {run._point.round}"
        warnings.warn(f"{' | '.join(run.skipped)}; {last}", Recovered, stacklevel=2)
    return run


class LoadedRun(Run):
    """A run on disk. Its session, which needs the data, is made when something asks for it."""

    def __init__(
        self,
        folder: RunFolder,
        problem: Any = None,
        algorithm: Any = None,
        participation: Any = None,
        network: Any = None,
        make: Any = None,
    ):
        summary = folder.summary
        check_run(folder.path, folder.config, folder.meta, summary)
        self.stored, self.config, self._make = folder, folder.config, make
        self.seed, self.repeats = self.config["seed"], self.config["repeats"]
        given = {"problem": problem, "algorithm": algorithm, "participation": participation, "network": network}
        vars(self).update({name: value for name, value in given.items() if value is not None})
        point = folder.latest()
        self._point = point or self._restart()
        self.skipped = self._point.skipped  # why newer checkpoints were passed over
        self._read(self._point)
        self.finished, summary = summary is not None, summary or {}
        self.evaluation = {name: np.asarray(v) for name, v in summary.get("evaluation", {}).items()}
        self.evaluated_rounds = np.asarray(summary.get("evaluated_rounds", []), int)
        own = {name: v for name, v in summary.get("held_out", {}).items() if name != "agents"}
        self.held_out = {name: np.array(v, dtype=float) for name, v in own.items()}  # null: nan
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
        check_records(self.stored.path, self.config, names, point.round, records, state)
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
    def has_loss(self) -> bool:
        if self._loss is None and "sums" in self.config and {"problem", "experiment"} & {*vars(self), *self.config}:
            return self.problem.has_loss
        return self._loss is not None

    @property
    def loss(self) -> np.ndarray:
        if self._loss is None and self.has_loss:  # several processes record none: it is a pass over all data
            return Run.loss.fget(self)  # type: ignore[attr-defined]
        if self._loss is None:
            raise FedpointError(f"the run in {self.stored.path} has no loss: its field is not a gradient")
        return self._loss

    @property
    def model(self) -> Any:
        return mean_model(self.last, np.array(self.stored.meta["weights"])) if self._on_network else self.last

    @property
    def models(self) -> Any:
        if self._on_network:
            return self.last
        K = self.config["problem"]["agents"]
        return jax.tree.map(lambda a: np.broadcast_to(a[:, None], (len(a), K, *a.shape[1:])), self.last)

    @property
    def _on_network(self) -> bool:
        return "network" in self.config

    @property
    def memories(self) -> Any:
        if self._on_network:
            return self.session.memories()
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

    def description(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.config["algorithm"], self.stored.meta["use"]

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
            content = self.config["experiment"]
            if "schedule" in content:
                return schedules.scheme_of(content["schedule"])
            return Synchronous() if self._on_network else schemes.scheme_of(content.get("participation"))
        with self._hint("participation"):
            return schemes.rebuild(self.config["participation"])

    @cached_property
    def network(self) -> Any:
        if not self._on_network:
            return None
        if "experiment" in self.config:
            return networks.network_of(self.config["experiment"]["network"], None, self.problem)
        with self._hint("network"):
            return networks.rebuild(self.config["network"])

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
        exact, seed, repeats, every = (config[key] for key in ("exact", "seed", "repeats", "record_every"))
        network = check_network(self.network, self.problem)
        model = check_start(self.problem, start, network)
        make = self._make or self._same_sums()
        session = make(algorithm, self.problem, participation, model, exact, seed, repeats, every, network=network)
        now = without_none(statement(session, algorithm, participation))
        check_same({key: config.get(key) for key in now}, now, self.stored.path)
        return session

    def _same_sums(self) -> Any:
        """What makes a session here that adds messages as the stored run does."""
        if "sums" not in self.config:
            return Session
        from fedpoint.runtimes.cluster import ClusterSession, Group

        return partial(ClusterSession, Group(), self.config["sums"] == "all-reduce")

    def extend(self, rounds: int, **options: Any) -> Run:
        """Go on in the same folder to `rounds` rounds in all: the bits of a run that never stopped."""
        if options.get("processes") is not None:
            return self._extend_on(rounds=rounds, **options)
        options.pop("processes", None)
        if self.finished:
            return super().extend(rounds, **options)
        if self._stopped(options.get("stop")):
            rounds = self._point.round
        return drive(self, max(rounds, self._point.round), **options)

    def _extend_on(
        self, processes: Any, rounds: int, stop: Any = None, callbacks: Any = (), evaluate: Any = None
    ) -> Run:
        from fedpoint.report.store import Place
        from fedpoint.runtimes.supervisor import as_processes
        from fedpoint.verbs.run_on import run_on

        config = self.config
        if "sums" not in config:
            raise FedpointError(
                f"the run in {self.stored.path} was begun in one process, which adds in another order: go on without "
                "processes, or start a new run with them"
            )
        given = as_processes(processes).summing(config["sums"] == "all-reduce")
        network = check_network(self.network, self.problem)
        names = [entry["name"] for entry in self.stored.meta["model"]]
        leaves = [self._point.records[name][0, 0] for name in names]
        start = jax.tree.unflatten(jax.tree.structure(self.problem.start()), leaves)
        model = check_start(self.problem, start, network)
        exact, seed, repeats, every = (config[key] for key in ("exact", "seed", "repeats", "record_every"))
        settings = (self.participation, network, model, exact, seed, repeats, every, rounds)
        place = Place(self.stored.path, config.get("experiment", {}))
        return run_on(given, self.algorithm, self.problem, *settings, stop, evaluate, place, callbacks)

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
