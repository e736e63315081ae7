"""How does a fit run? Rounds of an algorithm until they settle, and what is told of them afterwards."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from fedpoint.core.algorithm import Algorithm, bind_algorithm
from fedpoint.core.describe import describe_record
from fedpoint.core.errors import Diverged, FedpointError, check_count
from fedpoint.core.steps import LocalSteps, most_steps
from fedpoint.core.types import Model, Plain
from fedpoint.data.encoding import Cells
from fedpoint.estimators import small
from fedpoint.estimators.base import FitRows, RandomState, TableEstimator, joined, seed_of
from fedpoint.estimators.choose import choose
from fedpoint.estimators.convergence import (
    Distance,
    Ending,
    Predicted,
    distance,
    has_no_minimum,
    warn_of_change,
    warn_of_distance,
    warn_of_no_minimum,
)
from fedpoint.estimators.forecast import (
    AT_SOLUTION,
    FitForecast,
    FitForecaster,
    ends_at_solution,
    forecast_fit,
    heard_by_weight,
)
from fedpoint.estimators.history import History
from fedpoint.estimators.neural import forward
from fedpoint.estimators.table import read_rows
from fedpoint.problems.penalised import Penalised
from fedpoint.problems.rows import RowsProblem
from fedpoint.timing.participation import as_participation
from fedpoint.timing.schemes import Participation
from fedpoint.verbs.run import run

HALVINGS = 20
FEW_PRODUCTS = 25  # with a Hessian, which any fit can afford
ELSEWHERE = "a forecast of {} takes longer than the fit: fp.forecast(model.algorithm_, model.problem_) computes it"


class Settled:
    """Whether a round changed the model by no more than `tol` times its size."""

    def __init__(self, tol: float | None):
        if tol is not None and not (isinstance(tol, int | float | np.number) and tol >= 0):
            raise FedpointError(f"tol must be a number, at least 0, or None; got {tol!r}")
        self.tol, self.said = tol, False
        self.before: np.ndarray | None = None

    def __call__(self, model: Model) -> bool:
        now = np.concatenate([np.ravel(a) for a in jax.tree.leaves(model)])
        before, self.before = self.before, now
        if not self.tol or before is None:
            return False
        self.said = bool(np.linalg.norm(now - before) <= self.tol * np.linalg.norm(now))
        return self.said


class Federated(TableEstimator):
    """What both estimators do: run the rounds, tell what happened."""

    algorithm: Algorithm | str | None
    local_steps: LocalSteps
    rounds: int
    step: float | str
    hidden: Sequence[int] | int | None
    precondition: bool
    participation: Participation | int | None
    batch: int | None
    tol: float | None
    target: float
    random_state: RandomState

    def _prepare(self, rows: FitRows, penalty: float, curvature: float) -> None:
        """Check the number of rounds, and choose coordinates; curvature: the most that a row's loss bends."""
        check_count("rounds", self.rounds, 1)
        deep = self.hidden is not None
        ridge = 0.0 if deep else penalty / rows.total / curvature
        self._place(rows, bool(self.precondition), bool(self.fit_intercept) or deep, ridge)

    def _train(self, task: RowsProblem) -> Model:
        """Run the rounds; the final model."""
        chosen = choose(self.algorithm, task, self.step, self.local_steps, self.rounds, self.target, self.participation)
        self.plan_ = chosen.plan
        algorithm, halved = chosen.algorithm, 0
        own = not isinstance(self.algorithm, Algorithm) and isinstance(self.step, str)  # the step is ours to shorten
        while True:
            settled = Settled(self.tol)
            try:
                rounds, models = self._go(algorithm, task, chosen.rounds, settled)
                break
            except Diverged:
                halved += 1
                if not own or halved > HALVINGS or not isinstance(algorithm.step, float):
                    raise
                algorithm = algorithm.replace(step=algorithm.step / 2)
        self.problem_, self.algorithm_ = task, algorithm
        self.history_ = History(task, rounds, models)
        self.n_iter_ = self.n_rounds_ = int(rounds[-1])
        self.converged_ = settled.said
        self.model_ = jax.tree.map(lambda a: a[-1], models)
        self.distance_: Distance | None = None
        self._forecast: FitForecast | str | None = "not asked"
        self.forecast_reason_ = ""
        return self.model_

    def _go(
        self, algorithm: Algorithm, task: RowsProblem, rounds: int, settled: Callable[[Model], bool]
    ) -> tuple[np.ndarray, Model]:
        settled(task.start())
        if isinstance(task, Penalised) and small.suits(algorithm, task, rounds, self.participation):
            return small.walk(algorithm, task, rounds, settled)

        def stop(round: int, model: Model, error: np.ndarray | None) -> bool:
            return settled(jax.tree.map(lambda a: a[0], model))

        with task.unseen() if isinstance(task, Penalised) else contextlib.nullcontext():
            done = run(
                algorithm,
                task,
                rounds,
                participation=self.participation,
                seed=seed_of(self.random_state),
                stop=stop if self.tol else None,
            )
        return done.rounds, jax.tree.map(lambda a: a[0], done.history)

    def _compare(self, task: Penalised, predicted: Predicted, probabilities: bool) -> None:
        """Note how far from the solution the rounds stopped, and warn where it shows."""
        w, products = self.model_, self._affordable_products(task)
        if has_no_minimum(task, w, products):
            warn_of_no_minimum(self.algorithm_.card.title)
            return
        step = task.newton_step(w, products)
        there = w + step.change
        self.distance_ = distance(w, there, self._shown, predicted, at_least=not step.whole)
        if self.plan_ is not None:  # as near as it was asked to be?
            enough = float((step.change**2).sum()) <= self.target * float(((there - task.start()) ** 2).sum())
        else:
            enough = not self.distance_.shows
        if enough:
            return
        corrects, bias = self.algorithm_.card.limit == AT_SOLUTION, None
        by_weight = corrects or heard_by_weight(self.algorithm_, task, self.participation)
        at_solution = by_weight and ends_at_solution(self.algorithm_, task.agents)
        if by_weight and not at_solution and small.calculates(self.algorithm_):
            limit = self._forecaster(task, share=0.25).limit()
            bias = None if isinstance(limit, str) else distance(limit, there, self._shown, predicted)
            at_solution = bias is not None and not bias.shows
        title, cures = self.algorithm_.card.title, (self._faster(probabilities), self._quieter())
        end = Ending(title, self.n_iter_, self.converged_, by_weight, at_solution, bias, *cures)
        warn_of_distance(self.distance_, end, probabilities)

    def _affordable_products(self, task: Penalised) -> int:
        """Products with the Hessian, each two passes over the rows, that take a quarter of the fit's own time."""
        steps = most_steps(bind_algorithm(self.algorithm_, task).local_steps).max()
        share = 1.0 if task.batch is None else min(1.0, task.batch * task.agents / task.counts.sum())
        return max(FEW_PRODUCTS, int(self.n_iter_ * (steps + 1) * share / 8))

    def _shown(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._coordinates.coefficients(w, bool(self.fit_intercept))

    def _faster(self, probabilities: bool) -> tuple[str, ...]:
        """What would bring the rounds nearer to the solution."""
        cures, given = ["more rounds="], isinstance(self.algorithm, Algorithm)
        if not given and by_local_steps(self.algorithm_):
            cures.append("more local_steps=")
        if given or not isinstance(self.step, str):
            cures.append("a longer step")
        if not self.scale:
            penalty = "C" if probabilities else "alpha"
            cures.append(f"scale=True (which standardises the columns; {penalty} then applies to the scaled ones)")
        return tuple(cures)

    def _quieter(self) -> tuple[str, ...]:
        """What would make random rounds less so."""
        batch = [] if self.batch is None else ["a larger batch="]
        few = [] if as_participation(self.participation).everyone else ["more participants"]
        return ("a shorter step=", *batch, *few) if batch or few else ()

    def _watch(self, models: Model) -> None:
        """Warn where a neural network still moves."""
        before, after = (jax.tree.map(lambda a, i=i: a[i], models) for i in (-2, -1))
        apart = int(self.history_.rounds[-1] - self.history_.rounds[-2])
        warn_of_change(before, after, apart, self.algorithm_.card.title, self.n_iter_)

    def _tell_rows(self, row_losses: np.ndarray, counts: np.ndarray) -> None:
        """Losses by agent, of rows ordered by agent."""
        first = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self._tell(np.add.reduceat(row_losses.astype(float), first) / counts)

    def _score_agent(self, X: Cells, y: ArrayLike, groups: np.ndarray, sample_weight: np.ndarray | None) -> float:
        return self.score(X, y, sample_weight=sample_weight)

    def _described(self) -> tuple[dict[str, np.ndarray], dict[str, Plain]]:
        at, deep = self._coordinates, self.hidden is not None
        arrays = {"shift": at.shift, "width": at.width} if at.own or deep else {}
        intercept = bool(self.fit_intercept) and not deep
        if deep:
            for i, (weights, biases) in enumerate(self._layers()):
                arrays |= {f"weights{i}": weights, f"biases{i}": biases}
        else:
            arrays["model"] = joined(self._slopes, self._constants, intercept)
        about = {"intercept": intercept, "layers": len(self.model_) if deep else 0, "rounds": self.n_iter_}
        return arrays, {"algorithm": describe_record(self.algorithm_), **about, **self._target()}

    @abstractmethod
    def _layers(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Weights and biases of a neural network, in double precision, up to what it predicts."""

    @property
    def forecast_(self) -> FitForecast | None:
        """Where more rounds of this fit would end; None where nothing is told, and `forecast_reason_` says why."""
        check_is_fitted(self)
        if isinstance(self._forecast, str):
            self._forecast = self._made()
        return self._forecast

    def _made(self) -> FitForecast | None:
        task = self.problem_
        if task is None:
            self.forecast_reason_ = "the model was saved, and a saved model holds no rows: fit it again"
        elif not isinstance(task, Penalised):
            self.forecast_reason_ = "a neural network may have many minima: a forecast would promise too much"
        elif not small.calculates(self.algorithm_):
            self.forecast_reason_ = ELSEWHERE.format(self.algorithm_.card.title)
        else:
            return self._forecaster(task).told()
        return None

    def _forecaster(self, task: Penalised, share: float = 1.0) -> FitForecaster:
        return forecast_fit(self.algorithm_, task, self.participation, self.n_iter_, self.model_, share)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return state | {"_forecast": "not asked", "plan_": None} if "problem_" in state else state

    def _output(self, X: Cells) -> np.ndarray:
        """(n,) or (n, C): what the model says of rows, before it is made a prediction."""
        check_is_fitted(self)
        Z = read_rows(self, self._columns, X)
        if self.hidden is not None:
            # In double precision: products of single ones depend on how many rows are asked for at once.
            return forward(jax.tree.map(np.float64, self.model_), self._coordinates(Z))
        Z = self._coordinates(Z) if self._coordinates.own else Z
        return Z @ self._slopes.T + self._constants


def by_local_steps(algorithm: Algorithm) -> bool:
    """Whether the method takes local steps, as many as it is told."""
    return any(f.name == "local_steps" for f in fields(algorithm))
