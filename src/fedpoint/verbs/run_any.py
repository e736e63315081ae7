"""`fp.run` for models that only fit and predict, and its result."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.engine.any_model import Loop
from fedpoint.engine.session import Callback
from fedpoint.experiment.experiment import HISTORY_BYTES, Experiment
from fedpoint.metrics import Cost, Fairness, fairness
from fedpoint.problems.any_model import AnyModel
from fedpoint.results.run import Run, RunBase, Stop

Evaluate = tuple | Callable[[list[Any]], dict[str, float]]  # held-out data, or a function of the nodes' models


class LoopRun(RunBase):
    """The result of FedRelax with any models.

    rounds: (n,) the recorded rounds; in round 0 every node has fitted alone. history: what nodes predict on the shared
    points, (repeats, n, K, m'), with a last axis of classes for classifiers; with sets by edge (repeats, n, S), each
    node's points one after the other. models: a fitted model for each node (of the first repeat; `repeat_models` has
    all). local_losses: (repeats, n, K). variation: (repeats, n), sum over edges of A_ij (1/m') sum_x |h_i - h_j|^2.
    """

    error = None
    has_loss = True
    participation = None
    folder = None

    def __init__(self, loop: Loop, every: int, rounds: list[int], parts: dict[str, list[Any]]):
        self.session, self.every, self._parts, self._rounds = loop, every, parts, np.array(rounds)
        self.algorithm, self.problem, self.seed = loop.algorithm, loop.problem, loop.seed
        self.network, self.schedule = loop.network, loop.timing
        said = np.stack(parts["said"], axis=1)
        self.history = loop.exchange.shaped(said)
        self.variation = loop.exchange.variation(said)
        self.local_losses = np.stack(parts["losses"], axis=1)
        self._counted = np.stack(parts["used"], axis=1)  # (repeats, n, 3): messages, numbers in them, fits
        self.repeat_models = [list(models) for models in loop.models]
        rows = parts["metrics"]
        names = rows[0][0] if rows else ()
        self.evaluated_rounds = self.rounds if rows else np.zeros(0, int)
        self.evaluation = {name: np.array([[m[name] for m in row] for row in rows]).T for name in names}

    @property
    def rounds(self) -> np.ndarray:
        return self._rounds

    @property
    def floats(self) -> np.ndarray:
        """(repeats, n): numbers sent."""
        return self._counted[..., 1]

    @property
    def used(self) -> np.ndarray:
        return np.stack([np.zeros_like(self.floats), self._counted[..., 0], self._counted[..., 2]], axis=-1)

    @property
    def loss(self) -> np.ndarray:
        """(repeats, n): sum_i (1/m_i) sum_r |y_r - h_i(x_r)|^2 + alpha variation."""
        return self.local_losses.sum(-1) + self.session.exchange.coupling * self.variation

    @property
    def model(self) -> np.ndarray:
        """What nodes predict on the shared points in the end, one per repeat."""
        return self.history[:, -1]

    @property
    def models(self) -> list[Any]:
        return self.repeat_models[0]

    @property
    def cost(self) -> Cost:
        """Whoever has fitted sends its predictions to each neighbour; evaluations are fits. A mean over repeats."""
        messages, floats, fits = (float(a) for a in self._counted[:, -1].mean(0))
        return Cost(int(self.rounds[-1]), 0.0, messages, 0.0, floats, 0.0, 8 * floats, fits)

    @property
    def fairness(self) -> list[Fairness]:
        """Fairness of each repeat's final local losses over the nodes."""
        return [fairness(losses) for losses in self.local_losses[:, -1]]

    @property
    def time(self) -> np.ndarray:
        return self.session.times(self.rounds)

    @property
    def speed(self) -> float:
        return self.session.round / max(self.session.seconds, 1e-9)

    @property
    def engine(self) -> str:
        return "nodes one after the other in Python"

    def _said(self, X: Any, groups: Any, repeat: int = 0) -> np.ndarray:
        return said_by(self.problem, self.repeat_models[repeat], X, groups)

    def predict(self, X: Any, groups: Any = None, repeat: int = 0) -> np.ndarray:
        """Predictions by the model of each row's node, whose names (or numbers) `groups` has.

        Without groups it is not known whose rows these are, and all nodes are asked: the mean of their predictions, or
        the class of the highest mean probability. A warning says so.
        """
        if groups is None:
            warnings.warn("no groups are given: predictions are the mean over all nodes' models", stacklevel=2)
        return self.problem.labels(self._said(X, groups, repeat))

    def predict_proba(self, X: Any, groups: Any = None, repeat: int = 0) -> np.ndarray:
        """(n, classes): the same as probabilities, in the order of `problem.classes`."""
        if self.problem.classes is None:
            raise FedpointError("the models are regressors: they have no probabilities")
        return self._said(X, groups, repeat)

    def evaluate(self, X: Any, y: Any, groups: Any = None, repeat: int = 0) -> dict[str, float]:
        """Metrics of the final models on held-out rows: mse, or accuracy and Brier's score."""
        return self.problem.measure(self._said(X, groups, repeat), y)

    def extend(
        self,
        rounds: int,
        stop: Stop | None = None,
        callbacks: Callback | Iterable[Callback] = (),
        evaluate: Evaluate | None = None,
    ) -> LoopRun:
        """The same run, gone on to `rounds` rounds in all."""
        self._check_longer(rounds, self.session.round)
        if int(self.rounds[-1]) != self.session.round:
            raise FedpointError("this run was extended before: extend the longer one")
        return self.go_on(rounds, stop, callbacks, evaluate)

    def go_on(
        self,
        rounds: int,
        stop: Stop | None = None,
        callbacks: Callback | Iterable[Callback] = (),
        evaluate: Evaluate | None = None,
    ) -> LoopRun:
        """The records of more rounds behind those of this run."""
        loop, every = self.session, self.every
        at, parts = self.rounds.tolist(), {name: list(values) for name, values in self._parts.items()}
        if loop.round == 0 and evaluate is not None:
            parts["metrics"] = [_measured(loop, evaluate)]
        if at[-1] % every:  # a last record off the grid is replaced by the grid's own
            at, parts = at[:-1], {name: values[:-1] for name, values in parts.items()}

        def keep() -> None:
            if loop.round % every == 0:
                at.append(loop.round)
                _record(loop, parts, evaluate)

        loop.advance(rounds, stop, callbacks, keep)
        if at[-1] != loop.round:  # the end is always recorded
            at.append(loop.round)
            _record(loop, parts, evaluate)
        return LoopRun(loop, every, at, parts)

    @property
    def _measure(self) -> str:
        return "loss"

    title = Run.title

    def known_loss(self) -> tuple[np.ndarray, np.ndarray]:
        return self.rounds, self.loss

    def __repr__(self) -> str:
        loss = f"loss {self.loss[:, -1].mean():.3g}"
        return f"<LoopRun FedRelax: {int(self.rounds[-1])} rounds, {len(self.history)} repeats, {loss}>"


def said_by(problem: AnyModel, models: list[Any], X: Any, groups: Any) -> np.ndarray:
    """What each row's own node says of it; without groups the mean over nodes."""
    X = problem.check_rows(X)
    if groups is None:
        return np.mean([problem.say(k, model, X) for k, model in enumerate(models)], axis=0)
    groups = np.asarray(groups)
    if groups.shape != (len(X),):
        raise FedpointError(f"groups has shape {groups.shape}, but there are {len(X)} rows: one node's name a row")
    said = np.zeros((len(X),) if problem.classes is None else (len(X), len(problem.classes)))
    for name in np.unique(groups):
        k, rows = problem.node(name.item() if isinstance(name, np.generic) else name), groups == name
        said[rows] = problem.say(k, models[k], X[rows])
    return said


def run_any(experiment: Experiment, rounds: int) -> LoopRun:
    """A run of models that only fit and predict, before its first round; `go_on` makes `fp.run` of it.

    evaluate: held-out data (X, y, groups), or a function of the list of models -> {name: number}, for every record.
    stop: a tolerance on the mean squared change of predictions, from one time that all nodes have answered to all that
        was said to the next (synchronously: from round to round), or a function (round, predictions, None) -> bool.
    """
    loop = Loop(experiment)
    every = experiment.record_every or max(1, math.ceil(loop.said.nbytes * (rounds + 1) / HISTORY_BYTES))
    parts: dict[str, list[Any]] = {"said": [], "losses": [], "used": [], "metrics": []}
    _record(loop, parts, None)
    return LoopRun(loop, every, [0], parts)


def _record(loop: Loop, parts: dict[str, list[Any]], evaluate: Evaluate | None) -> None:
    parts["said"].append(loop.said)
    parts["losses"].append(loop.losses.copy())
    parts["used"].append(loop.used.copy())
    if evaluate is not None:
        parts["metrics"].append(_measured(loop, evaluate))


def _measured(loop: Loop, evaluate: Evaluate) -> list[dict[str, float]]:
    """Held-out metrics of each repeat."""
    measured = []
    for models in loop.models:
        if callable(evaluate):
            found = evaluate(models)
            if not isinstance(found, dict):
                raise FedpointError(f"evaluate= must return a dictionary of numbers, got {found!r}")
        else:
            X, y, *groups = evaluate
            found = loop.problem.measure(said_by(loop.problem, models, X, groups[0] if groups else None), y)
        measured.append({name: float(value) for name, value in found.items()})
    return measured
