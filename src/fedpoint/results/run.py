"""What came of a run? `Run`: its records, and numbers that are made of them when they are asked for.

`begin` and `drive` make one: a session goes on segment by segment, and its records go to the folder and the followers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import finite
from fedpoint.engine.session import Callback, Session, flatten
from fedpoint.engine.state import Records
from fedpoint.metrics import Cost, Fairness, fairness
from fedpoint.metrics.held_out import HeldOut
from fedpoint.problems.base import Problem
from fedpoint.results.follow import Follower, Following, following
from fedpoint.store.records import Measures, RoundRecords, join
from fedpoint.timing.base import Timing

if TYPE_CHECKING:  # matplotlib, and scipy, which runs with a fusion center can do without
    from matplotlib.figure import Figure

    from fedpoint.graphs.network import Network
    from fedpoint.store.writer import Store  # pydantic, which runs without a folder can do without

EVALUATIONS = 200  # at most so many recorded rounds are evaluated on held-out data

Stop = float | Callable[[int, Any, np.ndarray | None], bool]


class RunBase(ABC):
    """What all runs have, whatever their models are. Everything leads with the repeat axis.

    rounds: (n,) the recorded rounds, from 0 on. used: (repeats, n, 3), models sent, answers and field evaluations.
    evaluation: held-out metrics by name, (repeats, m), at `evaluated_rounds`.
    """

    evaluation: dict[str, np.ndarray]
    evaluated_rounds: np.ndarray

    @property
    @abstractmethod
    def rounds(self) -> np.ndarray: ...

    @property
    @abstractmethod
    def used(self) -> np.ndarray: ...

    @property
    @abstractmethod
    def error(self) -> np.ndarray | None:
        """(repeats, n): squared distance to the solution, None where it is not known."""

    @property
    @abstractmethod
    def has_loss(self) -> bool: ...

    @property
    @abstractmethod
    def loss(self) -> np.ndarray:
        """(repeats, n): the objective."""

    @property
    @abstractmethod
    def time(self) -> np.ndarray:
        """(repeats, n): virtual seconds at the recorded rounds; a round is a second where there is no clock."""

    @property
    @abstractmethod
    def cost(self) -> Cost:
        """Messages, numbers, bytes and field evaluations; a mean over repeats."""

    @property
    @abstractmethod
    def fairness(self) -> list[Fairness]:
        """Fairness of each repeat's end over the agents."""

    def _check_longer(self, rounds: int, reached: int) -> None:
        if rounds <= reached:
            raise FedpointError(f"the run has {reached} rounds already: extend it to more")

    def plot(
        self, path: str | None = None, what: str | None = None, x: str = "rounds", title: str | None = None
    ) -> Figure:
        """Draw the curves (default: of the error, where it can be known); saved when `path` is given."""
        from fedpoint.show.plots import curves

        return curves([self], path=path, what=what or self._measure, x=x, title=title)

    @property
    def _measure(self) -> str:
        """What is drawn where nothing else is asked for."""
        return "error"

    def _repr_html_(self) -> str:
        from fedpoint.show.html import run_html

        return run_html(self)


@dataclass(frozen=True)
class RunInfo:
    """What is known of a run without its data."""

    seed: int
    repeats: int
    every: int  # rounds between records
    agents: int
    message: tuple[float, float, float, float]  # numbers in one down and up, bytes of a number down, of a message up
    weights: np.ndarray | None  # p_k, where agents are the nodes of a network
    engine: str  # what the engine chose
    speed: float  # rounds a second

    @classmethod
    def of(cls, session: Session) -> RunInfo:
        problem, message = session.problem, session.message
        return cls(
            session.seed,
            session.repeats,
            session.every,
            problem.agents,
            (message.down, message.up, message.width, message.up_bytes),
            None if session.network is None else problem.weights,
            session.layout.explain(),
            session.speed,
        )


class Run(RunBase):
    """The result of a run. Everything leads with the repeat axis.

    rounds: (n,) the recorded rounds, from 0 on. history: the global models at them, (repeats, n, ...).
    error: (repeats, n) squared distance to the solution, None where it is not known. loss: (repeats, n) the
    objective sum_k p_k f_k. Both are computed when first asked for. metrics: by name, (repeats, n, ...).
    """

    def __init__(
        self,
        records: RoundRecords,
        info: RunInfo,
        session: Session | None = None,
        folder: Store | None = None,
        measures: Measures = Measures(),  # noqa: B008 - frozen
    ):
        self.records, self.info, self.folder, self.measures = records, info, folder, measures
        self._session = session
        self.evaluation = {}
        self.evaluated_rounds = np.zeros(0, int)
        self.held_out: dict[str, np.ndarray] = {}  # of the final model: (repeats, agents), nan where there is no row
        self.final_loss: np.ndarray | None = None  # (repeats,), where it was evaluated
        self._loss: np.ndarray | None = None

    # What was run.

    @property
    def session(self) -> Session:
        """The engine's side of it, from which the run can go on."""
        if self._session is None:
            self._session = self._make_session()
        return self._session

    def _make_session(self) -> Session:
        raise FedpointError("this run cannot go on")

    @property
    def algorithm(self) -> Algorithm:
        return self.session.algorithm

    @property
    def problem(self) -> Problem:
        return self.session.problem

    @property
    def participation(self) -> Timing:
        """Who works when."""
        return self.session.timing

    @property
    def network(self) -> Network | None:
        return self.session.network

    @property
    def seed(self) -> int:
        return self.info.seed

    @property
    def repeats(self) -> int:
        return self.info.repeats

    @property
    def engine(self) -> str:
        """What the engine chose."""
        return self.info.engine

    @property
    def speed(self) -> float:
        """Rounds a second; compilation, which is in the first segment, counts only when there was no other."""
        return self.info.speed

    # What was recorded.

    @property
    def rounds(self) -> np.ndarray:
        return self.records.rounds

    @property
    def history(self) -> Any:
        return self.records.model

    @property
    def used(self) -> np.ndarray:
        return self.records.used

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        return self.records.metrics

    # What is made of it.

    @cached_property
    def error(self) -> np.ndarray | None:
        if self.records.error is not None:
            return self.records.error
        return self.session.errors(self.history)

    @property
    def has_loss(self) -> bool:
        return self.problem.has_loss

    @property
    def loss(self) -> np.ndarray:
        if self._loss is None:
            known = self.records.loss
            complete = known is not None and not np.isnan(known).any()
            # All at once where one is missing: the same bits, however many were evaluated while the run went on.
            if known is None or not complete:
                known = losses(self.problem, self.network, self.history)
            self._loss = known
        return self._loss

    def known_loss(self) -> tuple[np.ndarray, np.ndarray]:
        """The rounds whose loss was evaluated so far, (m,), and the losses, (repeats, m): nothing is computed."""
        found = np.full((self.repeats, len(self.rounds)), np.nan)
        for known in (self.records.loss, self._loss):
            found = found if known is None else known.copy()
        if self.final_loss is not None:
            found[:, -1] = self.final_loss
        there = ~np.isnan(found).all(axis=0)
        return self.rounds[there], found[:, there]

    @property
    def last(self) -> Any:
        """What was recorded last, of each repeat."""
        return self.records.last  # not the session's, which goes on when the run is extended

    @property
    def model(self) -> Any:
        """The final global model of each repeat; on a network the nodes' mean, weighted by p_k."""
        return self.last if self.info.weights is None else mean_model(self.last, self.info.weights)

    @property
    def models(self) -> Any:
        """The final model of each agent, (repeats, agents, ...): with a fusion center all hold the global one."""
        if self.info.weights is not None:
            return self.last
        K = self.info.agents
        return jax.tree.map(lambda a: np.broadcast_to(a[:, None], (len(a), K, *a.shape[1:])), self.last)

    @cached_property
    def variation(self) -> np.ndarray | None:
        """(repeats, n): sum over edges of A_ij |w_i - w_j|^2 at the recorded rounds; None without a network."""
        if self.network is None:
            return None
        i, j = self.network.edges.T
        leaves = jax.tree.leaves(self.history)
        gaps = [((a[:, :, i] - a[:, :, j]) ** 2).sum(axis=tuple(range(3, a.ndim))) for a in leaves]
        return np.asarray(sum(gap @ self.network.weights for gap in gaps))

    @property
    def time(self) -> np.ndarray:
        return self.session.times(self.rounds)

    @property
    def memories(self) -> Any:
        """What agents keep between rounds, (repeats, agents, ...)."""
        return self.session.memories()

    @property
    def cost(self) -> Cost:
        return Cost.of(int(self.rounds[-1]), self.used[:, -1].mean(0), self.info.message)

    @property
    def fairness(self) -> list[Fairness]:
        """Fairness of each repeat's final model over the agents."""
        if self.info.weights is not None:
            return [fairness(losses) for losses in self.problem.own_losses(self.models)]
        return [fairness(self.problem.losses(take_repeat(self.model, r))) for r in range(self.repeats)]

    # What can be done with it.

    def extend(
        self,
        rounds: int,
        stop: Stop | None = None,
        callbacks: Callback | Iterable[Callback | Following] = (),
        evaluate: Any = None,
    ) -> Run:
        """The same run, gone on to `rounds` rounds in all: the bits of a run that was that long from the start."""
        self._check_longer(rounds, self.session.round)
        return drive(self, rounds, stop, callbacks, evaluate)

    def evaluate(self, data: Any) -> None:
        """Held-out metrics at (at most 200 of) the recorded rounds, into `evaluation`."""
        n = len(self.rounds)
        chosen = np.unique(np.linspace(0, n - 1, min(n, EVALUATIONS)).round().astype(int))
        measure = data if callable(data) else HeldOut(self.problem, data, own=self.network is not None)
        rows = [
            [measure(jax.tree.map(lambda a, r=r, i=i: a[r, i], self.history)) for i in chosen]
            for r in range(self.repeats)
        ]
        if not isinstance(rows[0][0], dict):
            raise FedpointError(f"evaluate= must return a dictionary of numbers, got {rows[0][0]!r}")
        self.evaluated_rounds = self.rounds[chosen]
        self.evaluation = {name: np.array([[float(m[name]) for m in row] for row in rows]) for name in rows[0][0]}
        if isinstance(measure, HeldOut) and measure.agent is not None:
            each: list[Any] = [measure.agents(take_repeat(self.last, r)) for r in range(self.repeats)]
            self.held_out = {name: np.stack([found[name] for found in each]) for name in each[0]}

    def description(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The algorithm in plain types, and how rows of data become predictions."""
        from fedpoint.store.describe import describe_algorithm  # loads all methods
        from fedpoint.store.export import use_of

        return describe_algorithm(self.algorithm), use_of(self.problem, take_repeat(self.model, 0))

    def manifest(self, repeat: int = 0) -> dict[str, Any]:
        """What a program must know to use the model."""
        from fedpoint.store.statement import versions

        algorithm, use = self.description()
        about = {"rounds": int(self.rounds[-1]), "seed": int(self.seed), "versions": versions(), "repeat": repeat}
        return {"algorithm": algorithm, **use, **about}

    def export(self, path: str | Path, repeat: int = 0) -> None:
        """Write one repeat's model as npz with a manifest, for `fedpoint predict` and other programs."""
        if not 0 <= repeat < self.repeats:
            raise FedpointError(f"there is no repeat {repeat}: the run has {self.repeats}, from 0 on")
        from fedpoint.store.folder import export_model  # loads pydantic

        export_model(path, flatten(take_repeat(self.model, repeat)), self.manifest(repeat))

    @property
    def title(self) -> str:
        """What it is called where it is shown."""
        return f"{self.algorithm.card.title} on {type(self.problem).__name__}, {self.problem.agents:,} agents"

    def __repr__(self) -> str:
        card = self.algorithm.card
        last = ""
        if self.error is not None:
            last = f", error {self.error[:, -1].mean():.3g}"
        return f"<Run {card.title}: {int(self.rounds[-1])} rounds, {self.repeats} repeats{last}>"


def export(run: Run, path: str | Path, repeat: int = 0) -> None:
    """Write one repeat's model as npz with a manifest, for `fedpoint predict` and other programs."""
    run.export(path, repeat)


def objective_of(problem: Problem, network: Network | None, models: Any) -> np.ndarray:
    """(n,): sum_k p_k f_k at each of n models, on a network each agent's at its own."""
    return problem.objective(models) if network is None else problem.own_losses(models) @ problem.weights


def losses(problem: Problem, network: Network | None, models: Any) -> np.ndarray:
    """(repeats, n): the objective at recorded models. A pass over all data for each."""
    lead = jax.tree.leaves(models)[0].shape[:2]
    flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), models)
    return np.asarray(objective_of(problem, network, flat)).reshape(lead)


def mean_model(models: Any, weights: np.ndarray) -> Any:
    """sum_k p_k w_k over the second axis."""
    return jax.tree.map(lambda a: np.tensordot(a, weights.astype(a.dtype), axes=(1, 0)), models)


def take_repeat(model: Any, repeat: int) -> Any:
    return jax.tree.map(lambda a: a[repeat], model)


# How it is made.


@dataclass(frozen=True)
class Recorder:
    """Records of a session, with what is evaluated beside them."""

    session: Session
    measures: Measures

    def take(self, rounds: np.ndarray, records: Records) -> RoundRecords:
        """The records of a segment."""
        model, metrics = records.model, dict(records.metrics or {})
        error = self.session.errors(model) if self.measures.errors else None
        return RoundRecords(rounds, model, records.used, metrics, error, self._losses(rounds, model))

    def now(self) -> RoundRecords:
        """A record of the current state."""
        session = self.session
        model = jax.tree.map(lambda a: a[:, None], session.model())
        at = np.array([session.round])
        counted = session.message.used is None and session.round > 0
        used = np.zeros((session.repeats, 1, 3), np.int64)
        if session.round:
            used = session.used(at, np.asarray(session.whole().used)[:, None] if counted else ())
        metrics = {name: values[:, None] for name, values in session.metrics().items()}
        error = session.errors(model) if self.measures.errors else None
        loss = None if self.measures.losses_every is None else self._loss(model, 0)[:, None]
        return RoundRecords(at, model, used, metrics, error, loss)

    def off_grid(self) -> RoundRecords | None:
        """A record of the current state, where it would not be one."""
        return self.now() if self.session.round % self.session.every else None

    def _losses(self, rounds: np.ndarray, models: Any) -> np.ndarray | None:
        """(repeats, n), nan where passed over. One record at a time: the same bits however records are cut."""
        if self.measures.losses_every is None:
            return None
        found = np.full((self.session.repeats, len(rounds)), np.nan)
        for i in np.flatnonzero(rounds % self.measures.losses_every == 0):
            found[:, i] = self._loss(models, int(i))
        return found

    def _loss(self, models: Any, i: int) -> np.ndarray:
        problem, network = self.session.problem, self.session.network
        return losses(problem, network, jax.tree.map(lambda a: a[:, i : i + 1], models))[:, 0]


def begin(session: Session, measures: Measures = Measures()) -> Run:  # noqa: B008 - frozen
    """The run before its first round: it records the start."""
    return Run(Recorder(session, measures).now(), RunInfo.of(session), session, measures=measures)


def drive(
    begun: Run,
    rounds: int,
    stop: Stop | None = None,
    callbacks: Callback | Iterable[Callback | Following] = (),
    evaluate: Any = None,
) -> Run:
    """Go on with a run, in its folder where it has one, followed by those among the callbacks who do."""
    given = [callbacks] if callable(callbacks) else list(callbacks)
    with contextlib.ExitStack() as stack:
        if begun.folder is not None:
            stack.enter_context(begun.folder.writing(begun.session, rounds))
        followers = stack.enter_context(following(begun, rounds, given))
        others = [callback for callback in given if not isinstance(callback, Following)]
        records = _advance(begun, rounds, stop, others, followers)
        done = Run(records, RunInfo.of(begun.session), begun.session, begun.folder, begun.measures)
        if evaluate is not None:
            done.evaluate(evaluate)
        if done.folder is not None:
            summary = summarise(done)
            done.folder.finish(done.session, take_repeat(done.model, 0), done.manifest(), summary)
        for follower in followers:
            follower.finish(done)
        return done


def _advance(
    begun: Run, rounds: int, stop: Stop | None, callbacks: Sequence[Callback], followers: Sequence[Follower]
) -> RoundRecords:
    """The records of a run and those of more rounds behind them."""
    session, folder, recorder = begun.session, begun.folder, Recorder(begun.session, begun.measures)
    before = begun.records
    if before.rounds[-1] % session.every:  # a last record off the grid is replaced by the grid's own
        before = before.first(len(before) - 1)
    parts = [before]

    def keep(rounds: np.ndarray, records: Records) -> None:
        part = recorder.take(rounds, records)
        parts.append(part)
        if folder is not None:
            folder.keep(session, part, recorder.off_grid() if folder.due else None)
        for follower in followers:
            follower.keep(part)

    session.advance(rounds, None if stop is None else stopper(stop, before.model), callbacks, keep)
    last = recorder.off_grid()
    if folder is not None:
        folder.commit(session, last)
    return join(parts if last is None else [*parts, last])  # the end is always recorded


def summarise(run: Run) -> dict[str, Any]:
    """What a folder says of the end of a run: the final error where the solution is known, and the final loss."""
    session = run.session
    if session.problem.has_loss and session.sums is None:  # no process of several has all data
        last = jax.tree.map(lambda a: a[:, -1:], run.history)
        known = run.records.loss
        run.final_loss = losses(run.problem, run.network, last)[:, 0] if known is None else known[:, -1]
        if np.isnan(run.final_loss).any():
            run.final_loss = losses(run.problem, run.network, last)[:, 0]
    error = run.error if run.measures.errors else None
    final = {"error": None if error is None else error[:, -1], "loss": run.final_loss}
    agents = {  # None: nothing of this agent is held out
        name: [[finite(x) for x in row] for row in values.tolist()] for name, values in run.held_out.items()
    }
    return {
        "rounds": int(run.rounds[-1]),
        **{name: None if values is None else float(values.mean()) for name, values in final.items()},
        "final": {name: values.tolist() for name, values in final.items() if values is not None},
        "cost": dataclasses.asdict(run.cost),
        "seconds": session.seconds,
        "rounds_per_second": run.speed,
        "evaluated_rounds": np.asarray(run.evaluated_rounds).tolist(),
        "evaluation": {name: values.tolist() for name, values in run.evaluation.items()},
        **({"held_out": {"agents": [str(name) for name in run.problem.names], **agents}} if agents else {}),
    }


def stopper(stop: Stop, history: Any) -> Callable[[int, Any, np.ndarray | None], bool]:
    """stop= as a function of (round, model, error), for a run that has recorded `history`."""
    if callable(stop):
        return stop
    if isinstance(stop, bool) or not (isinstance(stop, int | float) and 0 < stop < math.inf):
        raise FedpointError(f"stop must be a tolerance above 0 or a function, got {stop!r}")
    last = [jax.tree.map(lambda a: a[:, -1], history)]

    def enough(round: int, model: Any, error: np.ndarray | None) -> bool:
        if error is not None:
            return bool(error.mean() <= stop)
        leaves = zip(jax.tree.leaves(model), jax.tree.leaves(last[0]), strict=True)
        change = sum(((a - b) ** 2).sum() / len(a) for a, b in leaves)
        last[0] = model
        return bool(change <= stop)

    return enough
