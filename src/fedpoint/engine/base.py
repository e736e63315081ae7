"""What drives a run? An `Engine`: agents in this process, on several, or models that are no arrays.

`Run`, the store and the verbs know this interface and none of those who implement it.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import jax
import numpy as np

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Data, Model, Plain, State, Tree
from fedpoint.engine.pace import Pace
from fedpoint.engine.state import Records, RunState, Traffic
from fedpoint.experiment.experiment import Experiment
from fedpoint.problems.base import Problem
from fedpoint.timing.base import Timing

if TYPE_CHECKING:
    from fedpoint.graphs.network import Network

PATIENCE = 0.25  # seconds of work between looks at stopping, progress and checkpoints


@dataclass(frozen=True)
class Progress:
    """What a callback gets after each segment. `model` and `error` lead with the repeat axis."""

    round: int
    rounds: int
    seconds: float
    rate: float  # rounds a second, as `Pace` defines them
    model: Model
    error: np.ndarray | None
    evaluation: Mapping[str, np.ndarray] = field(default_factory=dict)  # the last held-out metrics, (repeats,) each


Callback: TypeAlias = Callable[[Progress], object]
Enough: TypeAlias = Callable[[int, Model, np.ndarray | None], bool]  # (round, model, error) -> stop here
Stop: TypeAlias = float | Enough
Measure: TypeAlias = Callable[[Model], dict[str, float]]  # held-out metrics of one repeat's model


def keep_nothing(rounds: np.ndarray, records: Records) -> None:
    """For a run whose records nobody wants."""


class Engine(ABC):
    """A run in progress. `advance` goes on; everything is a function of the experiment and its seed.

    round: how far it is. pace: how long that took. every: rounds between records. sums: how messages are added,
    where that is not left to the compiler. stated: what a folder states about the problem, where somebody has read all
    of it. watched: held-out metrics of every repeat at recorded rounds, where models cannot be measured later.
    """

    sums: str | None = None
    stated: Mapping[str, Plain] | None = None
    solution: Model | None = None  # what models are compared with

    def __init__(self, experiment: Experiment, every: int) -> None:
        self.experiment, self.every = experiment, every
        self.round, self.pace = 0, Pace()
        self.compiled = False  # the last segment compiled the program
        self.watched: dict[int, list[dict[str, float]]] = {}

    # What it works on.

    @property
    def algorithm(self) -> Algorithm:
        return self.experiment.algorithm

    @property
    def problem(self) -> Problem:
        return self.experiment.problem

    @property
    def network(self) -> Network | None:
        return self.experiment.network

    @property
    def timing(self) -> Timing:
        return self.experiment.timing

    @property
    def start(self) -> Model:
        return self.experiment.start_model

    @property
    def seed(self) -> int:
        return self.experiment.seed

    @property
    def repeats(self) -> int:
        return self.experiment.repeats

    @property
    def exact(self) -> bool:
        return self.experiment.exact

    @property
    def weights(self) -> np.ndarray | None:
        """p_k, where agents have models of their own, whose mean is the global one."""
        return None

    @property
    @abstractmethod
    def message(self) -> Traffic:
        """What a round moves."""

    @abstractmethod
    def explain(self) -> str:
        """How the run is executed."""

    # How it goes on.

    @abstractmethod
    def prepare(self, rounds: int) -> None:
        """Timetables, and room for late messages, up to a round."""

    @abstractmethod
    def segment(self, rounds: int) -> tuple[np.ndarray, Records]:
        """Go on by at most so many rounds: the recorded rounds among them, and their records."""

    @abstractmethod
    def mark(self) -> RunState | None:
        """A place to return to."""

    @abstractmethod
    def back(self, round: int, mark: RunState | None) -> None:
        """Return there."""

    def next_size(self, size: int, took: float) -> int:
        """Rounds of the next segment: about the patience. The first one compiles and says nothing about the rounds."""
        if took < PATIENCE or self.compiled:
            return size * 8
        return max(1, size // 2) if took > 4 * PATIENCE else size

    def advance(
        self,
        rounds: int,
        stop: Enough | None = None,
        callbacks: Callback | Iterable[Callback] = (),
        keep: Callable[[np.ndarray, Records], None] = keep_nothing,
    ) -> int:
        """Go on to round `rounds`, handing records to `keep` segment by segment. Returns the round reached."""
        told = [callbacks] if callable(callbacks) else list(callbacks)
        self.prepare(rounds)
        begun, size, stopped = time.perf_counter(), 1, False
        while self.round < rounds and not stopped:
            first, busy = self.round, self.pace.seconds
            # The state is donated, so a copy to return to: only when stopping may have to.
            before = self.mark() if stop is not None else None
            at, records = self.segment(min(size, rounds - first))
            size = self.next_size(size, self.pace.seconds - busy)
            errors = self.errors(records.model) if stop is not None or told else None
            if stop is not None:
                enough = _first_enough(stop, at, records, errors)
                stopped = enough is not None
                if enough is not None and enough < self.round:  # go there again, to the same bits
                    self.back(first, before)
                    at, records = self.segment(enough - first)
                    errors = self.errors(records.model)
            keep(at, records)
            if told:
                spent = time.perf_counter() - begun
                progress = Progress(self.round, rounds, spent, self.speed, self.model(), _column(errors, -1))
                for callback in told:
                    callback(progress)
        return self.round

    def stopper(self, stop: Stop, models: Model) -> Enough:
        """stop= as a function of (round, model, error), for a run that has recorded `models`."""
        if callable(stop):
            return stop
        if isinstance(stop, bool) or not (isinstance(stop, int | float) and 0 < stop < math.inf):
            raise FedpointError(f"stop must be a tolerance above 0 or a function, got {stop!r}")
        return self._small_change(stop, jax.tree.map(lambda a: a[:, -1], models))

    def _small_change(self, tolerance: float, last: Model) -> Enough:
        """Whether the mean squared error is small; where it is not known, the squared change between records."""

        def enough(round: int, model: Model, error: np.ndarray | None) -> bool:
            nonlocal last
            if error is not None:
                return bool(error.mean() <= tolerance)
            leaves = zip(jax.tree.leaves(model), jax.tree.leaves(last), strict=True)
            change = sum(((a - b) ** 2).sum() / len(a) for a, b in leaves)
            last = model
            return bool(change <= tolerance)

        return enough

    @property
    def speed(self) -> float:
        """Rounds a second, as `Pace` defines them."""
        return self.pace.speed

    # What can be asked.

    @abstractmethod
    def model(self) -> Model:
        """The current model, one per repeat: the global one, or on a network one for each node."""

    @abstractmethod
    def now(self) -> Records:
        """A record of the current state."""

    @abstractmethod
    def memories(self) -> State:
        """What agents keep, (repeats, agents, ...), completed by what they would hear next."""

    @abstractmethod
    def whole(self) -> RunState:
        """The state, of all agents."""

    @property
    def knows_solution(self) -> bool:
        """Whether errors cost next to nothing."""
        return False

    def errors(self, models: Model) -> np.ndarray | None:
        """(repeats, n): squared distance to the solution; on a network a mean over the nodes; None where unknown."""
        return None

    def why_no_error(self) -> str:
        """Why `errors` is None."""
        return "models that only fit and predict have no parameters whose distance to w* could be measured"

    @abstractmethod
    def losses(self, records: Records) -> np.ndarray:
        """(repeats, n): the objective at recorded models."""

    @abstractmethod
    def agent_losses(self, models: Model, metrics: Mapping[str, np.ndarray]) -> np.ndarray:
        """(repeats, agents): every agent's own loss, at one record."""

    @abstractmethod
    def variation(self, models: Model, metrics: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """(repeats, n): how far neighbours' models are from each other; None without a network."""

    def times(self, rounds: np.ndarray) -> np.ndarray:
        """(repeats, n): virtual seconds at the end of these rounds; a round is one where there is no clock."""
        self.prepare(int(rounds.max(initial=0)))
        clock = self.timing.times()
        if clock is None:
            return np.broadcast_to(rounds.astype(float), (self.repeats, len(rounds)))
        table = np.concatenate([np.zeros((len(clock), 1)), clock], axis=1)
        return np.tile(table[:, rounds], (self.repeats // len(clock), 1))

    @abstractmethod
    def measure(self, data: Data, new: bool = False) -> Measure:
        """What measures a model on held-out data, which may be given as such a function; new: data of agents that do
        not take part."""

    def watch(self, measure: Measure) -> None:  # noqa: B027 - most can measure recorded models
        """Measure models at every record, where they cannot be measured later."""

    def fitted(self) -> list[list[Tree]]:
        """The current models of each repeat's nodes, where these are no arrays."""
        return []

    def say(self, models: list[Tree], X: Data, groups: Data) -> np.ndarray:
        """What fitted models predict of rows."""
        raise FedpointError(f"{type(self.problem).__name__} has models that are arrays, which a run predicts with")

    def predict(self, models: list[Tree], X: Data, groups: Data) -> np.ndarray:
        """The same as a user knows it: numbers, or the likeliest classes."""
        return self.say(models, X, groups)

    # Durable form: flat dictionaries of arrays.

    def keep_in(self, folder: Path) -> None:  # noqa: B027 - most keep nothing besides
        """The run's folder, for what is too large for its checkpoints. Before the first round, or a restore."""

    @abstractmethod
    def save(self) -> dict[str, np.ndarray]: ...

    @abstractmethod
    def restore(self, arrays: Mapping[str, np.ndarray], round: int) -> None: ...


def _first_enough(stop: Enough, at: np.ndarray, records: Records, errors: np.ndarray | None) -> int | None:
    """The first recorded round at which `stop` says so."""
    for i, r in enumerate(at):
        if stop(int(r), jax.tree.map(lambda a, i=i: a[:, i], records.model), _column(errors, i)):
            return int(r)
    return None


def _column(errors: np.ndarray | None, i: int) -> np.ndarray | None:
    return None if errors is None or not errors.shape[1] else errors[:, i]


def measured(measure: Measure, model: Model) -> dict[str, float]:
    """Held-out metrics of a model, checked to be numbers by name."""
    found = measure(model)
    if not isinstance(found, dict):
        raise FedpointError(f"evaluate= must return a dictionary of numbers, got {found!r}")
    return {name: float(value) for name, value in found.items()}
