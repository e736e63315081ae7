"""A run read back from its folder: everything that was recorded, without the data; with them, it goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Unpack

import jax
import numpy as np

from fedpoint.algorithms.personal import sharing
from fedpoint.channel.chain import as_channel
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.arguments import checked, checked_methods
from fedpoint.core.describe import Table, Unreadable
from fedpoint.core.errors import FedpointError, Recovered, notify
from fedpoint.core.kinds import Whole
from fedpoint.core.numbers import counted
from fedpoint.core.own_code import calling
from fedpoint.core.precision import double
from fedpoint.core.types import Data, Model, Plain, State, Tree
from fedpoint.core.vector import unwrap_all, wrap
from fedpoint.engine.base import Engine, Stop
from fedpoint.engine.cluster.session import ClusterSession, ProcessGroup
from fedpoint.engine.pace import Pace
from fedpoint.engine.session import Session, cast, flatten, unflatten
from fedpoint.engine.state import RunState
from fedpoint.experiment.describe import rebuild_part
from fedpoint.experiment.experiment import Experiment, Others
from fedpoint.graphs.regions import Regions
from fedpoint.problems.base import Problem
from fedpoint.results.drive import Recorder, drive
from fedpoint.results.follow import Callbacks
from fedpoint.results.info import RunInfo
from fedpoint.results.run import Run
from fedpoint.store.checks import check_records, check_run
from fedpoint.store.export import nested
from fedpoint.store.folder import Checkpoint, RunFolder
from fedpoint.store.records import Measures, Place, RoundRecords
from fedpoint.store.statement import check_same, statement, without_none
from fedpoint.store.writer import Store
from fedpoint.timing.base import Timing

if TYPE_CHECKING:
    from fedpoint.graphs.network import Network
    from fedpoint.verbs.processes.supervisor import Processes

NO_LOSS = "its field is not a gradient"
NO_SOLUTION = "the solution was not known while the run went on, and the data are not here"
TIMING = ("participation", "schedule")

Reader: TypeAlias = Callable[[Table, Problem | None], Experiment]  # of the table of a file, with its problem if known


@dataclass(frozen=True)
class RunOrigin:
    """From what the parts of a run are built: what is given, what its folder describes, the file it comes from."""

    given: Mapping[str, Tree] = field(default_factory=dict)  # arguments of an experiment
    allow: Sequence[str] = ()  # modules that may be imported
    reader: Reader | None = None


@checked
def load(
    folder: str | Path,
    problem: Problem | None = None,
    *,
    allow: Sequence[str] = (),
    reader: Reader | None = None,
    **given: Unpack[Others],
) -> LoadedRun:
    """A run read back from its folder.

    Rounds, models, metrics, memories, costs and evaluation come from the disk, and errors and losses where they were
    evaluated while it ran; otherwise they are computed when asked for, from the problem. A run from a TOML file builds
    its problem again; otherwise give the problem, which must be the one the run was begun with. The same to go on
    (`extend`). Give algorithm, participation, schedule, network, metrics, channel or gather too where the folder can
    only name them: an optax object, a large graph, your own class or function, unless its module is in `allow`.
    """
    parts = {name: part for name, part in {"problem": problem, **given}.items() if part is not None}
    run = LoadedRun(RunFolder.open(folder), RunOrigin(parts, allow, reader))
    if run.wrong:
        advice = f"{run.unfinished}; continue it with {run.stored.resume}"
        notify(f"{' | '.join(run.wrong)}; {advice}", Recovered)
    if problem is not None:
        run.session  # noqa: B018 - other data are refused here, not later
    return run


def _compared(config: Table) -> dict[str, Tree]:
    """What must be the same for a run to go on. The start is told by its fingerprint."""
    return {key: item for key, item in config.items() if key not in ("start", "not_rebuildable")}


def _stacked(tree: State, *axes: int) -> State:
    """The same for each of so many."""
    return jax.tree.map(lambda a: np.broadcast_to(a, (*axes, *np.shape(a))), tree)


@checked_methods
class LoadedRun(Run):
    """A run on disk. Its session, which needs the data, is made when something asks for it."""

    def __init__(self, folder: RunFolder, origin: RunOrigin, make: Callable[[Experiment], Engine] | None = None):
        standing = folder.standing()
        summary = standing.summary
        check_run(folder.path, folder.config, folder.meta, summary)
        self.stored, self.config, self.origin, self._make = folder, folder.config, origin, make
        self._point = standing.point or self._restart()
        self.wrong = standing.wrong  # what is damaged or missing, so that the run is not as far as it was
        measures = Measures.of(folder.meta)
        store = Store(folder.path, self._point.round)
        super().__init__(self._read(self._point), self._info(), None, store, measures)
        self.finished, summary = summary is not None, summary or {}
        self._privacy_line = str(summary.get("privacy", ""))
        if not self.records.evaluation:
            self.evaluation = {name: np.asarray(v) for name, v in summary.get("evaluation", {}).items()}
            self.evaluated_rounds = np.asarray(summary.get("evaluated_rounds", []), int)
        self.best_rounds = np.array(summary["best_rounds"]) if "best_rounds" in summary else None
        own = {name: v for name, v in summary.get("held_out", {}).items() if name != "agents"}
        self.held_out = {name: np.array(v, dtype=float) for name, v in own.items()}  # null: nan
        if len(final := summary.get("final", {}).get("loss", [])) == self.repeats:
            self.final_loss = np.asarray(final)

    @property
    def is_private(self) -> bool:
        channel = self._part("channel")
        return channel is not None and bool(channel.noises())

    @property
    def privacy_line(self) -> str:
        """As it was said when the run finished: its session would need the data."""
        return self._privacy_line

    # How it is read.

    def _restart(self) -> Checkpoint:
        """A run that was killed before its first commit: commit the start now."""
        session = self._new_session(None)
        recorder = Recorder(session, Measures.of(self.stored.meta))
        with RunFolder.open(self.stored.path, write=True) as handle:
            Store(handle.path, handle=handle).start(session, recorder.now())
        point = self.stored.latest()
        if point is None:
            raise FedpointError(f"{self.stored.path} holds nothing yet: start the run again in another folder")
        return point

    def _read(self, point: Checkpoint) -> RoundRecords:
        records, state, layout = point.records, point.state, self.stored.meta["model"]
        names = [entry["name"] for entry in layout]
        check_records(self.stored.path, self.config, names, point.round, records, state)
        rounds = records["round"]
        arrays = {name: np.moveaxis(array, 0, 1) for name, array in records.items() if name != "round"}
        if point.round % self.config["record_every"]:  # the end is always recorded
            rounds = np.append(rounds, point.round)
            arrays = {name: np.concatenate([a, state[f"last.{name}"][:, None]], axis=1) for name, a in arrays.items()}
        metrics = {name.removeprefix("metric."): a for name, a in arrays.items() if name.startswith("metric.")}
        self._leaves = [arrays[name] for name in names]
        model = nested(layout, self._leaves)
        told = {n.removeprefix("evaluation."): a for n, a in arrays.items() if n.startswith("evaluation.")}
        return RoundRecords(rounds, model, arrays["used"], metrics, arrays.get("error"), arrays.get("loss"), told)

    @property
    def pace(self) -> Pace:
        """How long its rounds took."""
        return Pace.of(self._point.state["pace"])

    @property
    def regions(self) -> Regions | None:
        return self._part("regions")

    def _info(self) -> RunInfo:
        config, meta = self.config, self.stored.meta
        sizes = meta["message"]
        return RunInfo(
            config["seed"],
            config["repeats"],
            config["record_every"],
            config["problem"]["agents"],
            (sizes["down"], sizes["up"], sizes["width"], sizes.get("up_bytes") or sizes["up"] * sizes["width"]),
            np.array(meta["weights"]) if "weights" in meta else None,
            meta["engine"],
            self.pace.speed,
            sizes.get("hub") or 0,
        )

    def shaped_as(self, start: Model) -> None:
        """Give the models the structure of this one, which the folder can only tell as dictionaries and lists."""
        model = jax.tree.unflatten(jax.tree.structure(start), self._leaves)
        self.records = dataclasses.replace(self.records, model=model)

    # What needs data, and can do without where it was evaluated while the run went on.

    @property
    def has_data(self) -> bool:
        """Whether the problem was given, or can be built again."""
        return "problem" in self.origin.given or self._from_file

    def _whole(self, learnt: Model) -> Tree:
        """Without the problem a model is what the folder tells: arrays in dictionaries and lists."""
        return super()._whole(learnt) if self.has_data else learnt

    @cached_property
    def _error(self) -> np.ndarray | None:
        if self.records.error is not None or self.measures.errors or not self.has_data:
            return self.records.error
        return self.session.errors(self.history)

    def _why_no_error(self) -> str:
        return super()._why_no_error() if self.has_data else f"{NO_SOLUTION}: give fp.load(folder, problem=...)"

    @cached_property
    def variation(self) -> np.ndarray | None:
        return None if self.network is None else self.network.variations(jax.tree.leaves(self.history))

    @property
    def has_loss(self) -> bool:
        """Whether there are losses to be had here."""
        told = self.stored.meta.get("has_loss")
        if told is None:  # a folder of before
            return self.records.loss is not None or (self.has_data and self.problem.has_loss)
        return told and (self.records.loss is not None or self.has_data)

    @property
    def loss(self) -> np.ndarray:
        """As any run's; without the data what was evaluated while it ran, nan elsewhere."""
        if self.has_data and self.has_loss:
            return super().loss
        if self.records.loss is not None:
            return self.records.loss
        why = NO_LOSS
        if self.stored.meta.get("has_loss"):
            why = "none was evaluated while it ran (losses_every=): give fp.load(folder, problem=...)"
        raise FedpointError(f"the run in {self.stored.path} has no loss: {why}")

    @property
    def goal(self) -> int:
        """The rounds that were asked for last."""
        asked = [event.get("rounds") for event in self.stored.events() if event.get("event") == "started"]
        return next((rounds for rounds in reversed(asked) if isinstance(rounds, int)), self.config["rounds"])

    @property
    def unfinished(self) -> str:
        if self.finished or (self.stored.last_event() == "diverged" and not self.wrong):
            return ""
        return f"the run is not finished (round {int(self.rounds[-1]):,} of {self.goal:,})"

    @property
    def title(self) -> str:
        name, problem = self.config["algorithm"]["name"], self.config["problem"]["class"]
        return f"{name} on {problem}, {self.stored.path.name}" + ("" if self.finished else " (not finished)")

    def absent(self) -> dict[str, str]:
        """What cannot be shown without the data, and why."""
        found = {}
        if not self.has_loss and self.stored.meta.get("has_loss"):
            found["the loss"] = "it was not evaluated while the run went on (losses_every=), and the data are not here"
        if not self.has_error and not self.measures.errors:
            found["the error"] = NO_SOLUTION
        return found

    @property
    def memories(self) -> State:
        return self.session.memories() if self.has_data else self._stored_memories()

    @double
    def _stored_memories(self) -> State:
        """From the disk alone: the method tells in which form."""
        by_node, repeats, agents = "network" in self.config, self.repeats, self.info.agents
        own = self.info.weights is not None
        if "memories" in self.config:
            raise FedpointError(f"what agents remember is on disk: give fp.load({str(self.stored.path)!r}, problem)")
        node = jax.tree.map(lambda a: a[(0, 0) if own else 0], self.last)
        stored = {name.removeprefix("state"): a for name, a in self._point.state.items()}
        whole = as_channel(self._part("channel")).around(sharing(self.algorithm, self._part("share"), wrap(node)))
        method = cast(whole, np.result_type(*jax.tree.leaves(node)))
        with calling(type(method).__name__):
            hub, memory = method.init(wrap(node))
            like = RunState(_stacked(hub, repeats, *[agents] * by_node), _stacked(memory, repeats, agents), (), ())
            if flatten(like).keys() != {name for name in stored if name.startswith((".hub", ".memory"))}:
                raise FedpointError(
                    f"what the agents in {self.stored.path} remember does not fit {type(method).__name__}: give "
                    "fp.load(folder, problem, algorithm=...) what the run was begun with"
                )
            state = unflatten(like, stored)
            settle = jax.vmap(method.settle, in_axes=(0 if by_node else None, 0), axis_size=agents)
            return jax.tree.map(np.asarray, unwrap_all(jax.vmap(settle)(state.hub, state.memory)))

    def description(self) -> tuple[dict[str, Plain], dict[str, Plain]]:
        return self.config["algorithm"], self.stored.meta["use"]

    # What is built again, or was given.

    def _part(self, *names: str) -> Tree:
        """An argument of the experiment, by the first of its names that the run has; None where it has none."""
        for name in (name for name in names if name in self.origin.given):
            return self.origin.given[name]
        for name in (name for name in names if name in self.config):
            try:
                return rebuild_part(name, self.config[name], self.origin.allow)
            except Unreadable as error:
                if self._from_file:
                    return self._file.arguments()[name]
                raise FedpointError(f"{self.stored.path}: {error}; give fp.load(folder, {name}=...)") from None
        return None

    @property
    def _from_file(self) -> bool:
        return self.origin.reader is not None and "experiment" in self.config

    @cached_property
    def _file(self) -> Experiment:
        """What the file says that the run comes from."""
        if self.origin.reader is None:
            raise FedpointError(
                f"nothing here reads the file that the run in {self.stored.path} comes from: use fp.load"
            )
        return self.origin.reader(self.config["experiment"], self.origin.given.get("problem"))

    @cached_property
    def algorithm(self) -> Algorithm:
        return self._part("algorithm")

    @cached_property
    def participation(self) -> Timing:
        return self._part(*TIMING)

    @cached_property
    def network(self) -> Network | None:
        return self._part("network")

    @cached_property
    def problem(self) -> Problem:
        if "problem" in self.origin.given:
            return self.origin.given["problem"]
        if self._from_file:
            return self._file.problem
        raise FedpointError(
            f"the data of the run in {self.stored.path} are not in its folder: give fp.load(folder, problem=...)"
        )

    # How it goes on.

    def _make_session(self) -> Engine:
        """The run, ready to go on from the last commit."""
        session = self._new_session(self._start())
        session.keep_in(self.stored.path)
        session.restore({n.removeprefix("state"): a for n, a in self._point.state.items()}, self._point.round)
        session.pace = Pace.of(self._point.state["pace"])
        self.shaped_as(session.start)
        return session

    def _start(self) -> Model:
        """The model that the run was begun with."""
        own = self.info.weights is not None and "network" not in self.config  # all agents begin with the hub's
        at = (0, 0, 0) if own else (0, 0)
        leaves = [self._point.records[entry["name"]][at] for entry in self.stored.meta["model"]]
        return jax.tree.unflatten(jax.tree.structure(self.problem.start()), leaves)

    def experiment(self, start: Model | None) -> Experiment:
        """What the run was begun with, as far as it is stored or given."""
        config = self.config
        start = self._part("start") if start is None else start
        if self._from_file:
            return self._file.replace(**self.origin.given, start=start, record_every=config["record_every"])
        parts: dict[str, Tree] = {
            name: self._part(name) for name in ("network", "regions", "channel", "gather", "attack", "share")
        }
        parts |= {name: config[name] for name in ("exact", "seed", "repeats", "record_every")}
        parts["memories"] = config.get("memories", "memory")
        parts[next((name for name in TIMING if name in config), TIMING[0])] = self.participation
        return Experiment(self.algorithm, self.problem, **parts, start=start, metrics=self._metrics())

    def _metrics(self) -> Mapping[str, Tree]:
        asked, given = self.config.get("metrics", {}), self.origin.given.get("metrics", {})
        missing = sorted(name for name in asked if name not in given)
        if not missing:
            return given
        try:
            return rebuild_part("metrics", asked, self.origin.allow)
        except Unreadable:
            raise FedpointError(
                f"the functions of the metrics {', '.join(missing)} are not in {self.stored.path}: give "
                "fp.load(folder, metrics={...}) too, or allow=[...] with their modules"
            ) from None

    def _new_session(self, start: Model | None) -> Engine:
        """Not advanced, and checked to be the stored run's."""
        session = (self._make or self._same_sums)(self.experiment(start))
        now = _compared(without_none(statement(session)))
        check_same({key: _compared(self.config).get(key) for key in now}, now, self.stored.path)
        return session

    def _same_sums(self, experiment: Experiment) -> Engine:
        """A session in this process that adds messages as the stored run does."""
        bound, every = experiment.bind(), self.config["record_every"]
        if "sums" not in self.config:
            return Session(bound, every)
        return ClusterSession(bound, every, ProcessGroup(), self.config["sums"] == "all-reduce")

    def extend(
        self,
        rounds: Whole,
        stop: Stop | None = None,
        callbacks: Callbacks = (),
        evaluate: Data = None,
        processes: int | Processes | None = None,
    ) -> Run:
        """Go on in the same folder to `rounds` rounds in all: the bits of a run that never stopped."""
        if processes is not None:
            return self._extend_on(processes, rounds, stop, callbacks, evaluate)
        if self.finished:
            return super().extend(rounds, stop, callbacks, evaluate)
        if self._stopped(stop) or self._out_of_patience(evaluate):
            rounds = self._point.round
        return drive(self, max(rounds, self._point.round), stop, callbacks, evaluate)

    def _extend_on(
        self,
        processes: int | Processes,
        rounds: Whole,
        stop: Stop | None,
        callbacks: Callbacks,
        evaluate: Data,
    ) -> Run:
        from fedpoint.verbs.processes.run_on import RunGoal, run_on
        from fedpoint.verbs.processes.supervisor import as_processes

        if "sums" not in self.config:
            raise FedpointError(
                f"the run in {self.stored.path} was begun in one process, which adds in another order: go on without "
                "processes, or start a new run with them"
            )
        given = as_processes(processes).summing(self.config["sums"] == "all-reduce")
        place = Place(self.stored.path, self.config.get("experiment", {}))
        done = run_on(given, self.experiment(self._start()), RunGoal(rounds, stop, evaluate), place, callbacks)
        if done is None:
            raise FedpointError("process 0 resumes a run, because it keeps its folder: start the others with run")
        return done

    def _stopped(self, stop: Stop | None) -> bool:
        """Whether the last record already met `stop`, so that an uninterrupted run would not have gone on."""
        if stop is None or len(self._point.records["round"]) != len(self.rounds) or len(self.rounds) < 2:
            return False
        before = jax.tree.map(lambda a: a[:, :-1], self.history)
        error = self.error[:, -1] if self.has_error else None
        return bool(self.session.stopper(stop, before)(int(self.rounds[-1]), self.learnt, error))

    def __repr__(self) -> str:
        name = self.config["algorithm"]["name"]
        state = "finished" if self.finished else "not finished"
        counts = f"{counted(self.rounds[-1], 'round')}, {counted(self.repeats, 'repeat')}"
        return f"<Run {name} in {self.stored.path}: {counts}, {state}>"
