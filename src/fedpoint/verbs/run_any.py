"""`fp.run` for models that only fit and predict, and its result."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from fedpoint.errors import FedpointError
from fedpoint.metrics import Cost, Fairness, fairness
from fedpoint.problems.any_model import AnyModel
from fedpoint.runtimes.loop import Loop
from fedpoint.runtimes.session import HISTORY_BYTES


class LoopRun:
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

    def __init__(self, loop: Loop, every: int, rounds: list[int], parts: dict[str, list[np.ndarray]]):
        self.session, self.every, self._parts = loop, every, parts
        self.algorithm, self.problem, self.seed = loop.algorithm, loop.problem, loop.seed
        self.network, self.schedule = loop.network, loop.schedule
        self.rounds = np.array(rounds)
        said = np.stack(parts["said"], axis=1)
        self.history = loop.exchange.shaped(said)
        self.variation = loop.exchange.variation(said)
        self.local_losses = np.stack(parts["losses"], axis=1)
        counted = np.stack(parts["used"], axis=1)
        self.floats = counted[..., 1]  # (repeats, n): numbers sent
        self.used = np.stack([np.zeros_like(self.floats), counted[..., 0], counted[..., 2]], axis=-1)
        self.repeat_models = [list(models) for models in loop.models]
        self.evaluation: dict[str, np.ndarray] = {}
        self.evaluated_rounds = np.zeros(0, int)
        if parts["metrics"]:
            self.evaluated_rounds = self.rounds
            rows: list[Any] = parts["metrics"]
            self.evaluation = {name: np.array([[m[name] for m in row] for row in rows]).T for name in rows[0][0]}

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
        messages, fits, floats = (float(a[:, -1].mean()) for a in (self.used[..., 1], self.used[..., 2], self.floats))
        return Cost(int(self.rounds[-1]), 0.0, messages, 0.0, floats, 0.0, 8 * floats, fits)

    @property
    def fairness(self) -> list[Fairness]:
        """Fairness of each repeat's final local losses over the nodes."""
        return [fairness(losses) for losses in self.local_losses[:, -1]]

    @property
    def time(self) -> np.ndarray:
        """(repeats, n): virtual seconds at the recorded rounds; a round is a second where there is no clock."""
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

    def extend(self, rounds: int, stop: Any = None, callbacks: Any = (), evaluate: Any = None) -> LoopRun:
        """The same run, gone on to `rounds` rounds in all."""
        if rounds <= self.session.round:
            raise FedpointError(f"the run has {self.session.round} rounds already: extend it to more")
        if int(self.rounds[-1]) != self.session.round:
            raise FedpointError("this run was extended before: extend the longer one")
        return _go_on(self, rounds, stop, callbacks, evaluate)

    def plot(self, path: str | None = None, what: str = "loss", x: str = "rounds", title: str | None = None):
        """Draw the curves; saved when `path` is given (png, svg or pdf)."""
        from fedpoint.report.plots import curves

        return curves([self], path=path, what=what, x=x, title=title)

    def _repr_html_(self) -> str:
        from fedpoint.report.html import run_html

        return run_html(self)

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
        k, rows = problem.node(name.item() if hasattr(name, "item") else name), groups == name
        said[rows] = problem.say(k, models[k], X[rows])
    return said


def run_any(
    algorithm: Any,
    problem: AnyModel,
    network: Any = None,
    rounds: int = 100,
    schedule: Any = None,
    seed: int = 0,
    repeats: int = 1,
    record_every: int | None = None,
    evaluate: Any = None,
    stop: Any = None,
    callbacks: Any = (),
    **others: Any,
) -> LoopRun:
    """`fp.run` for `AnyModel`. What is there for models that are arrays only (`others`) is refused.

    evaluate: held-out data (X, y, groups), or a function of the list of models -> {name: number}, for every record.
    stop: a tolerance on the mean squared change of predictions, from one time that all nodes have answered to all that
        was said to the next (synchronously: from round to round), or a function (round, predictions, None) -> bool.
    """
    card = getattr(type(algorithm), "card", None)
    if getattr(card, "name", None) != "fedrelax":
        title = getattr(card, "title", type(algorithm).__name__)
        raise FedpointError(f"{title} cannot run with models that only fit and predict: use fp.FedRelax(coupling=...)")
    for name, value in others.items():
        if value is not None and value is not False:
            raise FedpointError(f"{name}= is not for models that only fit and predict: leave it out")
    if network is None:
        raise FedpointError("AnyModel needs a network of neighbours: give network=, for instance fp.Network.ring(K)")
    network = network.aligned(problem.names)
    loop = Loop(algorithm, problem, network, schedule, int(seed), repeats)
    every = record_every or max(1, math.ceil(loop.said.nbytes * (rounds + 1) / HISTORY_BYTES))
    parts: dict[str, list[Any]] = {"said": [], "losses": [], "used": [], "metrics": []}
    _record(loop, parts, evaluate)
    return _go_on(LoopRun(loop, every, [0], parts), rounds, stop, callbacks, evaluate)


def _go_on(begun: LoopRun, rounds: int, stop: Any, callbacks: Any, evaluate: Any) -> LoopRun:
    """Put the records of more rounds behind those of a run."""
    loop, every = begun.session, begun.every
    at, parts = begun.rounds.tolist(), {name: list(values) for name, values in begun._parts.items()}
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


def _record(loop: Loop, parts: dict[str, list[Any]], evaluate: Any) -> None:
    parts["said"].append(loop.said)
    parts["losses"].append(loop.losses.copy())
    parts["used"].append(loop.used.copy())
    if evaluate is None:
        return
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
    parts["metrics"].append(measured)
