"""What came of a run? `Run`: its records, and numbers that are made of them when they are asked for.

`results/drive.py` makes one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.arguments import checked_methods
from fedpoint.core.errors import FedpointError, notify
from fedpoint.core.kinds import Whole
from fedpoint.core.numbers import counted
from fedpoint.core.types import Data, Model, State, Tree
from fedpoint.engine.base import Engine, Stop
from fedpoint.engine.session import flatten, objective
from fedpoint.graphs.regions import Regions
from fedpoint.metrics import Cost, Fairness, fairness
from fedpoint.metrics.cost import Level, levels_of
from fedpoint.metrics.held_out import agent_places
from fedpoint.problems.base import Problem
from fedpoint.results.evaluating import evaluated, evaluator_of
from fedpoint.results.follow import Callbacks
from fedpoint.store.records import Measures, RoundRecords
from fedpoint.timing.base import Timing

if TYPE_CHECKING:  # matplotlib, and scipy, which runs with a fusion center can do without
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from fedpoint.graphs.network import Network
    from fedpoint.privacy.spent import Spent
    from fedpoint.results.predictor import Predictor
    from fedpoint.store.writer import Store  # pydantic, which runs without a folder can do without
from fedpoint.results.info import RunInfo, mean_model, take_repeat


@checked_methods
class Run:
    """The result of a run, which `fp.run` and `fp.load` make. Every array leads with the repeats.

    Args:
        records: what was recorded, round by round.
        info: what is known of the run without its problem: seed, repeats, agents, sizes of messages.
        session: the engine's side of the run, from which it goes on; None: made when it is asked for.
        folder: the run folder; None: the run is in memory only.
        measures: what is evaluated while the run goes on.

    Attributes:
        rounds: (n,) the recorded rounds, from 0 on.
        history: (repeats, n, ...) the global models at these rounds; of models that are no arrays, what they predict on
            the shared points.
        used: (repeats, n, 3) models sent, answers and field evaluations so far.
        error: (repeats, n) squared distance to the solution, where `has_error`; computed when first asked for.
        loss: (repeats, n) the objective sum_k p_k f_k, where `has_loss`; computed when first asked for.
        metrics: by name, (repeats, n, ...).
        evaluation: held-out metrics by name, (repeats, m), at `evaluated_rounds`.
        evaluated_rounds: (m,) the rounds at which held-out data were evaluated.
        best_rounds: (repeats,) the rounds at which the metric that an `fp.Evaluation` watches was best; else None.
        held_out: the agents' own held-out metrics of the final model by name, (repeats, K); nan where an agent has no
            such row.

    Arguments of methods:
        X: rows: a table as the problem was read from (a data frame, a dictionary of columns, a file), or (n, features)
            where it was made of arrays.
        groups: whose row it is: the names of the agents.
        repeat: which repeat's model.
        encoded: whether the rows are as the model takes them, instead of as in the table.
    """

    def __init__(
        self,
        records: RoundRecords,
        info: RunInfo,
        session: Engine | None = None,
        folder: Store | None = None,
        measures: Measures = Measures(),  # noqa: B008 - frozen
    ):
        self.records, self.info, self.folder, self.measures = records, info, folder, measures
        self._session = session
        self.evaluation: dict[str, np.ndarray] = {}
        self.evaluated_rounds = np.zeros(0, int)
        self.best_rounds: np.ndarray | None = None  # (repeats,), where an `fp.Evaluation` watched the run
        if len(at := evaluated(records)):
            self.evaluated_rounds = records.rounds[at]
            self.evaluation = {name: values[:, at] for name, values in records.evaluation.items()}
        self.held_out: dict[str, np.ndarray] = {}  # of the final model: (repeats, agents), nan where there is no row
        self.final_loss: np.ndarray | None = None  # (repeats,), where it was evaluated
        self._loss: np.ndarray | None = None

    # What was run.

    @property
    def session(self) -> Engine:
        """The engine's side of it, from which the run can go on."""
        if self._session is None:
            self._session = self._make_session()
        return self._session

    def _make_session(self) -> Engine:
        raise FedpointError("this run cannot be continued")

    @property
    def algorithm(self) -> Algorithm:
        return self.session.experiment.algorithm

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
        """Rounds a second, as `fedpoint.engine.pace.Pace` defines them: all repeats make one round, and compiling does
        not count."""
        return self.info.speed

    # What was recorded.

    @property
    def rounds(self) -> np.ndarray:
        return self.records.rounds

    @property
    def history(self) -> Model:
        return self.records.model

    @property
    def used(self) -> np.ndarray:
        return self.records.used

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        return self.records.metrics

    @cached_property
    def _error(self) -> np.ndarray | None:
        if self.records.error is not None:
            return self.records.error
        return self.session.errors(self.history)

    def _why_no_error(self) -> str:
        return self.session.why_no_error()

    @property
    def has_error(self) -> bool:
        """Whether there is one solution, and it is known."""
        return self._error is not None

    @property
    def error(self) -> np.ndarray:
        if self._error is None:
            other = "run.loss has the objective" if self.has_loss else "run.history has the models"
            raise FedpointError(f"the run has no error: {self._why_no_error()}. {other}; run.has_error asks first")
        return self._error

    @property
    def has_loss(self) -> bool:
        return self.records.loss is not None or self.problem.has_loss

    @property
    def loss(self) -> np.ndarray:
        if self._loss is None:
            known = self.records.loss
            complete = known is not None and not np.isnan(known).any()
            # All at once where one is missing: the same bits, however many were evaluated while the run went on.
            if known is None or not complete:
                known = objective(self.problem, self.info.weights is not None, self.history)
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
    def unfinished(self) -> str:
        """That the run is not finished, and how far it is, in words; empty where it has ended."""
        return ""

    @property
    def last(self) -> Model:
        """What was recorded last, of each repeat."""
        return self.records.last  # not the session's, which goes on when the run is extended

    @property
    def model(self) -> Tree:
        """The final global model of each repeat; on a network the nodes' mean, weighted by p_k."""
        return self._whole(self.learnt)

    @property
    def learnt(self) -> Model:
        """The arrays of `model`, without what is fixed where a model is more than arrays."""
        return self.last if self.info.weights is None else mean_model(self.last, self.info.weights)

    def _whole(self, learnt: Model) -> Tree:
        return self.problem.whole(learnt)

    @property
    def best(self) -> Tree:
        """The global model of each repeat at its `best_rounds`; on a network the nodes' mean, weighted by p_k."""
        return self._whole(self._best)

    @property
    def _best(self) -> Model:
        if self.best_rounds is None:
            raise FedpointError("this run was not evaluated: pass evaluate=fp.Evaluation(...) to fp.run")
        at = np.searchsorted(self.rounds, self.best_rounds)
        found = jax.tree.map(lambda a: np.asarray(a)[np.arange(len(at)), at], self.history)
        return found if self.info.weights is None else mean_model(found, self.info.weights)

    @property
    def models(self) -> Tree:
        """The final model of each agent, (repeats, agents, ...): with a fusion center all hold the global one.

        Of models that are no arrays a list, those of the first repeat; `repeat_models` has all.
        """
        if self.info.fitted:
            return self.info.fitted[0]
        if self.info.weights is not None:
            return self.last
        K = self.info.agents
        return jax.tree.map(lambda a: np.broadcast_to(a[:, None], (len(a), K, *a.shape[1:])), self.last)

    @property
    def repeat_models(self) -> Sequence[list[Tree]]:
        """The final models of each repeat's nodes, where these are no arrays."""
        return self.info.fitted

    @cached_property
    def variation(self) -> np.ndarray | None:
        """(repeats, n): sum over edges of A_ij |w_i - w_j|^2 at the recorded rounds, or, of models that are no arrays,
        of A_ij (1/m') sum_x |h_i(x) - h_j(x)|^2 over shared points; None without a network."""
        return self.session.variation(self.history, self.metrics)

    @property
    def time(self) -> np.ndarray:
        """(repeats, n): virtual seconds at the recorded rounds; a round is a second where there is no clock."""
        return self.session.times(self.rounds)

    @property
    def memories(self) -> State:
        """What agents keep between rounds, (repeats, agents, ...)."""
        return self.session.memories()

    @property
    def cost(self) -> Cost:
        """Messages, numbers, bytes and field evaluations; a mean over repeats."""
        return Cost.of(int(self.rounds[-1]), self.used[:, -1].mean(0), self.info.message)

    @property
    def regions(self) -> Regions | None:
        """The regions of agents, where these have hubs of their own."""
        return self.session.experiment.regions

    @property
    def levels(self) -> tuple[Level, ...]:
        """Messages and bytes between levels: agents and the hubs they answer to, and hubs of regions and the hub."""
        count = 0 if self.regions is None else self.regions.count(self.info.agents)
        return levels_of(self.cost, count, self.info.hub * self.info.message[2])

    @property
    def is_private(self) -> bool:
        """Whether messages carry noise that hides agents; `privacy` tells how well."""
        return bool(self.session.experiment.channel.noises())

    @cached_property
    def privacy(self) -> Spent:
        """What the run tells of one agent: epsilon at delta 1e-5, of whom, against whom; see `fp.privacy.spent`."""
        from fedpoint.privacy.spent import spent

        return spent(self.session.experiment, int(self.rounds[-1]))

    @property
    def privacy_line(self) -> str:
        """`privacy` in one line, or why there is no account of it; empty where messages carry no noise."""
        if not self.is_private:
            return ""
        try:
            return self.privacy.short
        except FedpointError as error:
            return f"not accounted: {error}"

    @property
    def fairness(self) -> list[Fairness]:
        """Fairness of each repeat's final model over the agents."""
        last = {name: values[:, -1] for name, values in self.metrics.items()}
        return [fairness(losses) for losses in self.session.agent_losses(self.last, last)]

    # What can be done with it.

    def extend(
        self,
        rounds: Whole,
        stop: Stop | None = None,
        callbacks: Callbacks = (),
        evaluate: Data = None,
    ) -> Run:
        """The same run, continued to `rounds` rounds in total: the bits of a run that was that long from the start.

        Args:
            rounds: in total.
            stop: when to stop earlier.
            callbacks: called with a `Progress` after every segment of rounds.
            evaluate: held-out rows, as in `fp.run`.
        """
        reached = self.session.round
        if rounds <= reached:
            raise FedpointError(f"the run has {counted(reached, 'round')} already: extend it to more")
        if int(self.rounds[-1]) != reached:
            raise FedpointError("this run was extended before: extend the longer one")
        from fedpoint.results.drive import drive  # which makes runs

        if self._out_of_patience(evaluate):
            raise FedpointError(
                f"the patience of its evaluation ran out at round {reached}: give it more, or none, to go on"
            )
        return drive(self, rounds, stop, callbacks, evaluate)

    def _out_of_patience(self, evaluate: Data) -> bool:
        """Whether an evaluation would have ended the run where it is."""
        evaluator = evaluator_of(evaluate, self.session, self.records)
        return evaluator is not None and bool(evaluator.best()[1].all())

    def _check_repeat(self, repeat: int) -> None:
        if not 0 <= repeat < self.repeats:
            raise FedpointError(f"there is no repeat {repeat}: the run has {self.repeats}, from 0 on")

    def final(self, repeat: int = 0) -> Tree:
        """One repeat's final model: the global one, or those of all nodes."""
        self._check_repeat(repeat)
        return self.info.fitted[repeat] if self.info.fitted else self._whole(take_repeat(self.last, repeat))

    def evaluate(self, X: Data, y: Data, groups: Data = None, repeat: int = 0) -> dict[str, float]:
        """Metrics of the final model on held-out rows.

        Args:
            y: their targets.
        """
        return self.session.measure((X, y) if groups is None else (X, y, groups))(self.final(repeat))

    def predictor(self, repeat: int = 0) -> Predictor:
        """One repeat's final model, with how rows become predictions: what `export` writes."""
        from fedpoint.results.predictor import Predictor

        self._check_repeat(repeat)
        return Predictor(flatten(take_repeat(self.learnt, repeat)), self.manifest(repeat), "the run")

    def predict(self, X: Data, groups: Data = None, repeat: int = 0, encoded: bool = False) -> np.ndarray:
        """(n,): what the final model of a repeat says of rows: numbers, or the likeliest classes.

        On a network every row is predicted by its node's own model; without groups, by the nodes' mean model (the mean
        of what they say, where models are no arrays), and a warning says so. With a fusion center all have one model.
        """
        if self.info.fitted:
            said = self.session.predict(self.final(repeat), X, groups)
            self._warn_of_mean(groups)
            return said
        predictor = self.predictor(repeat)
        return predictor.decided(self._scores(predictor, X, groups, repeat, encoded))

    def predict_proba(self, X: Data, groups: Data = None, repeat: int = 0, encoded: bool = False) -> np.ndarray:
        """(n, classes): the same as probabilities, in the order of `problem.classes`."""
        if not self.info.fitted:
            predictor = self.predictor(repeat)
            return predictor.chances(self._scores(predictor, X, groups, repeat, encoded))
        said = self.session.say(self.final(repeat), X, groups)
        if said.ndim == 1:
            raise FedpointError("the models are regressors: they have no probabilities")
        return said

    def _scores(self, predictor: Predictor, X: Data, groups: Data, repeat: int, encoded: bool) -> np.ndarray:
        rows = predictor.rows(X, encoded)
        if self.info.weights is not None:
            self._warn_of_mean(groups)
        if groups is None or self.info.weights is None:
            return predictor.scores(rows)
        at, models = agent_places(self.problem.names, groups, len(rows)), take_repeat(self.last, repeat)
        found = predictor.scores(rows)  # their shape
        for k in np.unique(at):
            found[at == k] = predictor.scores(rows[at == k], models[k])
        return found

    def _warn_of_mean(self, groups: Data) -> None:
        if groups is None:
            notify("no groups are given: predictions are the mean over all nodes' models")

    def to_frame(self) -> DataFrame:
        """A data frame of pandas with a row for each recorded round of each repeat.

        Columns: round, repeat, error and loss where they are known, messages, floats, bytes and evaluations so far,
        metrics by their names, and held-out metrics, missing where they were not evaluated.
        """
        from fedpoint.results.frame import frame_of

        return frame_of(self)

    def plot(
        self, path: str | Path | None = None, what: str | None = None, x: str = "rounds", title: str | None = None
    ) -> Figure:
        """Draw the curves: see `fedpoint.show.plots.curves`.

        Args:
            path: where to save the picture; png, svg or pdf by the ending.
            what: "error", "loss" or a metric of `evaluate=`; default: the error where the solution is known, else the
                loss.
            x: "rounds", "messages", "floats", "bytes", "evaluations" or "time".
            title: above it.
        """
        from fedpoint.show.plots import curves

        return curves([self], path=path, what=what, x=x, title=title)

    def _repr_html_(self) -> str:
        from fedpoint.show.html import run_html

        return run_html(self)

    def description(self) -> tuple[Mapping[str, object], Mapping[str, object]]:
        """The algorithm in plain types, and how rows of data become predictions."""
        if self.info.fitted:
            raise FedpointError(
                "models that only fit and predict are no arrays: save run.models with their own library"
            )
        from fedpoint.core.describe import describe_record
        from fedpoint.store.export import use_of

        return describe_record(self.algorithm), use_of(self.problem, take_repeat(self.learnt, 0))

    def manifest(self, repeat: int = 0) -> dict[str, object]:
        """What a program must know to use the model."""
        from fedpoint.store.statement import versions

        algorithm, use = self.description()
        about = {"rounds": int(self.rounds[-1]), "seed": int(self.seed), "versions": versions(), "repeat": repeat}
        return {"algorithm": algorithm, **use, **about}

    def export(self, path: str | Path, repeat: int = 0, best: bool = False) -> None:
        """Write one repeat's model as npz with a manifest, for `fedpoint predict` and other programs.

        Args:
            path: of the file.
            best: the model of its best round, where an `fp.Evaluation` watched the run, not the last one.
        """
        self._check_repeat(repeat)
        from fedpoint.store.folder import export_model  # loads pydantic

        model, manifest = self._best if best else self.learnt, self.manifest(repeat)
        if best and self.best_rounds is not None:
            manifest["rounds"] = int(self.best_rounds[repeat])
        export_model(path, flatten(take_repeat(model, repeat)), manifest)

    @property
    def title(self) -> str:
        """What it is called where it is shown."""
        return f"{self.algorithm.card.title} on {type(self.problem).__name__}, {counted(self.problem.agents, 'agent')}"

    def __repr__(self) -> str:
        card = self.algorithm.card
        last = ""
        if self.has_error:
            last = f", error {self.error[:, -1].mean():.3g}"
        if self.privacy_line:
            last += f", {self.privacy_line.split(' (')[0].split(':')[0]}"
        counts = f"{counted(self.rounds[-1], 'round')}, {counted(self.repeats, 'repeat')}"
        return f"<Run {card.title}: {counts}{last}>"
