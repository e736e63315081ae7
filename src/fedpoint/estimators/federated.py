"""One model for all agents, in scikit-learn's way: `FederatedRegressor` and `FederatedClassifier`."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.arguments import check_names, check_parameters
from fedpoint.core.steps import LocalSteps
from fedpoint.data.encoding import Cells
from fedpoint.data.preprocess import federated_moments
from fedpoint.estimators.base import (
    FitRows,
    RandomState,
    TableClassifier,
    check_penalty,
    inverse_penalty,
    probabilities,
    seed_of,
)
from fedpoint.estimators.fitting import Federated
from fedpoint.estimators.neural import forward, layers, neural_task
from fedpoint.estimators.weights import ClassWeight
from fedpoint.problems.logistic_task import LogisticTask
from fedpoint.problems.ridge_task import RidgeTask
from fedpoint.timing.schemes import Participation


@check_names
class FederatedRegressor(RegressorMixin, Federated):
    r"""Linear regression with a ridge over agents that keep their rows, or a small neural network.

    $$\min_{w, b} \sum_k |y_k - X_k w - b|^2 + \alpha |w|^2$$

    by rounds of a federated algorithm: `Ridge`'s objective on the pooled rows, shared out as
    $f_k = \frac{1}{2 n_k}|y_k - X_k w - b|^2 + \frac{\alpha}{2n}|w|^2$ with $p_k = n_k/n$.

    Args:
        algorithm: None is FedNewton, which reaches the pooled solution to rounding in about ten rounds, where agents
            can send Hessians: at most 300 parameters, full gradients, everyone in every round, no step given; SCAFFOLD
            elsewhere. Or a name of the catalogue ("scaffold", "fedavg", ...), an object such as `fp.FedAvg(...)`, or
            "auto": what `fp.plan` finds cheapest for `target`; where it refuses, SCAFFOLD and a `PlanNotice`.
        local_steps: between rounds, of methods that have them.
        rounds: at most so many.
        alpha: Ridge's, on the coefficients; the intercept is free.
        step: "auto" is 1/L, L the largest smoothness of an agent's loss, so that no local step overshoots (with one
            local step, of all agents' together; with a batch, twice what a batch is expected to have; neural networks:
            the largest curvature at the start), half of that where not everyone takes part; halved again where a run
            diverges. A number has the algorithm's own meaning.
        fit_intercept: free intercept.
        hidden: widths of layers, such as (64,): then the model is a neural network.
        scale: standardise columns as `StandardScaler` would, from sums that agents send. Coefficients and penalty then
            belong to the scaled columns.
        precondition: run the rounds in coordinates of equal curvature, the penalty carried along: the minimum is the
            same, the way to it shorter. It costs one exchange of sums.
        participation: None for everyone, a number of agents a round, or a scheme of `fp`.
        batch: rows a local step; None takes full gradients.
        tol: stop when a round changes the model by less than this times its size; None never.
        target: of algorithm="auto": E|w - w*|^2 relative to that of the start.
        categorical: "auto" encodes the columns of a data frame that are no numbers, or name them; None is none.
        random_state: of batches, participation and a neural network's start.

    Attributes: coef_, intercept_, agents_, agent_losses_ (the agents' mean squared errors, by name), fairness_ (over
    them), n_iter_ = n_rounds_, converged_ (the last round changed the model by less than tol), distance_ (from the
    solution: a `ConvergenceWarning` where it shows), history_ (rounds, loss, error), forecast_ (where more rounds would
    end, when asked), algorithm_, problem_, model_, plan_.

    >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), [1.0, 2.0, 4.0, 5.0]
    >>> model = FederatedRegressor(alpha=1.0).fit(X, y, groups=["a", "a", "b", "b"])
    >>> model.coef_.round(4), round(float(model.intercept_), 4)      # what Ridge finds
    (array([1.1667]), 1.25)
    """

    def __init__(
        self,
        algorithm: Algorithm | str | None = None,
        local_steps: LocalSteps = 10,
        rounds: int = 200,
        *,
        alpha: float = 1.0,
        step: float | str = "auto",
        fit_intercept: bool = True,
        hidden: Sequence[int] | int | None = None,
        scale: bool = False,
        precondition: bool = True,
        participation: Participation | int | None = None,
        batch: int | None = None,
        tol: float | None = 1e-8,
        target: float = 1e-4,
        categorical: str | Sequence[str] | None = "auto",
        random_state: RandomState = None,
    ):
        self.algorithm = algorithm
        self.local_steps = local_steps
        self.rounds = rounds
        self.alpha = alpha
        self.step = step
        self.fit_intercept = fit_intercept
        self.hidden = hidden
        self.scale = scale
        self.precondition = precondition
        self.participation = participation
        self.batch = batch
        self.tol = tol
        self.target = target
        self.categorical = categorical
        self.random_state = random_state

    def fit(
        self, X: Cells, y: ArrayLike, groups: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> FederatedRegressor:
        """Fit the model.

        Args:
            groups: whose row it is; without it there is one agent, and a `OneAgentWarning`.
            sample_weight: what each row counts, as if it were there so many times.
        """
        check_parameters(self)
        ridge = check_penalty("alpha", self.alpha)
        rows = self._read(X, y, groups, sample_weight, labels=False)
        self._prepare(rows, ridge, curvature=1.0)
        if self.hidden is not None:
            return self._fit_neural(rows, ridge / rows.total)
        at, intercept = self._coordinates, bool(self.fit_intercept)
        design, penalty = at.design(rows.X, intercept), at.ridge(ridge / rows.total, intercept)
        task = RidgeTask(design, rows.y, penalty, groups=rows.agents, batch=self.batch, sample_weight=rows.weight)
        w = self._train(task)
        self.coef_, constant = at.coefficients(w, intercept)
        self.intercept_ = float(constant)
        self._slopes, self._constants = self.coef_, self.intercept_
        self._tell_rows(task.row_losses(w), task.counts)
        spread = rows.y.std() or 1.0
        self._compare(task, lambda v: design @ v / spread, probabilities=False)
        return self

    def _fit_neural(self, rows: FitRows, ridge: float) -> FederatedRegressor:
        # Targets are scaled too, or steps would be of their size.
        found = federated_moments(rows.y[:, None], rows.agents, rows.weight)
        self._level, self._spread = float(found.mean[0]), float(found.scale[0])
        scaled = rows._replace(X=self._coordinates(rows.X), y=(rows.y - self._level) / self._spread)
        task = neural_task(scaled, 0, layers(self.hidden), ridge, self.batch, seed_of(self.random_state))
        self._train(task)
        x, target, _, mass = task.all_rows()
        errors = (forward(self.model_, x)[:, 0].astype(float) - target) ** 2 * self._spread**2
        self._tell_rows(errors * mass, task.counts)
        self._watch(self.history_.models)
        return self

    def predict(self, X: Cells) -> np.ndarray:
        """(n,)."""
        out = self._output(X)
        return out if self.hidden is None else out[:, 0] * self._spread + self._level

    def _layers(self) -> list[tuple[np.ndarray, np.ndarray]]:
        *rest, (W, b) = jax.tree.map(np.float64, self.model_)
        return [*rest, (W * self._spread, b * self._spread + self._level)]


@check_names
class FederatedClassifier(TableClassifier, Federated):
    r"""Logistic or softmax regression over agents that keep their rows, or a small neural network.

    $$\min_{w, b} C \sum_k \sum_{i \in k} \ell(y_i, x_i^\top w + b) + \tfrac12 |w|^2$$

    by rounds of a federated algorithm: `LogisticRegression`'s objective on the pooled rows, shared out as
    $f_k = \frac{1}{n_k} \sum_{i \in k} \ell_i + \frac{1}{2 C n}|w|^2$ with $p_k = n_k/n$. An agent may have one class
    only, and a class may be at one agent only.

    Args:
        algorithm, local_steps, rounds, step, fit_intercept, hidden, scale, precondition: as in `FederatedRegressor`.
        C: LogisticRegression's inverse penalty; `np.inf` is none. The intercept is free.
        class_weight: what rows of a class count, a dictionary; "balanced": n / (classes n_c), over all agents' rows.
        participation, batch, tol, target, categorical, random_state: as in `FederatedRegressor`.

    Attributes: classes_, coef_, intercept_ (shaped as scikit-learn's) and those of `FederatedRegressor`; losses of
    agents are mean log losses.

    >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), ["no", "no", "yes", "yes"]
    >>> model = FederatedClassifier().fit(X, y, groups=["a", "b", "a", "b"])
    >>> model.coef_.round(3), model.predict([[0.5], [2.5]])          # what LogisticRegression finds
    (array([[0.958]]), array(['no', 'yes'], dtype='<U3'))
    """

    def __init__(
        self,
        algorithm: Algorithm | str | None = None,
        local_steps: LocalSteps = 10,
        rounds: int = 200,
        *,
        C: float = 1.0,
        class_weight: ClassWeight = None,
        step: float | str = "auto",
        fit_intercept: bool = True,
        hidden: Sequence[int] | int | None = None,
        scale: bool = False,
        precondition: bool = True,
        participation: Participation | int | None = None,
        batch: int | None = None,
        tol: float | None = 1e-8,
        target: float = 1e-4,
        categorical: str | Sequence[str] | None = "auto",
        random_state: RandomState = None,
    ):
        self.algorithm = algorithm
        self.local_steps = local_steps
        self.rounds = rounds
        self.C = C
        self.class_weight = class_weight
        self.step = step
        self.fit_intercept = fit_intercept
        self.hidden = hidden
        self.scale = scale
        self.precondition = precondition
        self.participation = participation
        self.batch = batch
        self.tol = tol
        self.target = target
        self.categorical = categorical
        self.random_state = random_state

    def fit(
        self, X: Cells, y: ArrayLike, groups: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> FederatedClassifier:
        """Fit the model.

        Args:
            groups: whose row it is; without it there is one agent, and a `OneAgentWarning`.
            sample_weight: what each row counts, as if it were there so many times.
        """
        check_parameters(self)
        ridge = inverse_penalty(self.C)
        rows = self._read(X, y, groups, sample_weight, labels=True)
        self._prepare(rows, ridge, curvature=0.25)
        rows = self._by_class(rows)
        if self.hidden is not None:
            return self._fit_neural(rows, ridge / rows.total)
        at, intercept = self._coordinates, bool(self.fit_intercept)
        design, penalty = at.design(rows.X, intercept), at.ridge(ridge / rows.total, intercept)
        task = LogisticTask(design, rows.y, penalty, rows.agents, self.batch, sample_weight=rows.weight)
        w = self._train(task)
        slopes, constants = at.coefficients(w, intercept)
        self._slopes, self._constants = slopes, constants
        self.coef_, self.intercept_ = np.atleast_2d(slopes), np.atleast_1d(constants)
        self._tell_rows(task.row_losses(w), task.counts)
        self._compare(task, lambda v: probabilities(design @ v.T), probabilities=True)
        return self

    def _fit_neural(self, rows: FitRows, ridge: float) -> FederatedClassifier:
        scaled = rows._replace(X=self._coordinates(rows.X))
        seed = seed_of(self.random_state)
        task = neural_task(scaled, len(self.classes_), layers(self.hidden), ridge, self.batch, seed)
        self._train(task)
        x, own, _, mass = task.all_rows()
        logits = forward(self.model_, x).astype(float)
        losses = -np.log(np.maximum(probabilities(logits)[np.arange(len(own)), own], 1e-300))
        self._tell_rows(losses * mass, task.counts)
        self._watch(self.history_.models)
        return self

    def _layers(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return jax.tree.map(np.float64, self.model_)

    def decision_function(self, X: Cells) -> np.ndarray:
        """(n,) for two classes, else (n, C): logits."""
        out = self._output(X)
        return out[:, 1] - out[:, 0] if out.ndim == 2 and out.shape[1] == 2 else out

    def predict_proba(self, X: Cells) -> np.ndarray:
        """(n, C)."""
        return probabilities(self._output(X))

    def predict_log_proba(self, X: Cells) -> np.ndarray:
        """(n, C): the logarithms of the probabilities."""
        return np.log(self.predict_proba(X))

    def predict(self, X: Cells) -> np.ndarray:
        """(n,)."""
        out = self.decision_function(X)
        return self.classes_[(out > 0).astype(int) if out.ndim == 1 else out.argmax(1)]
