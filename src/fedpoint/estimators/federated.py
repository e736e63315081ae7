"""One model for all agents, in scikit-learn's way: `FederatedRegressor` and `FederatedClassifier`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import Diverged, FedpointError, check_count
from fedpoint.core.steps import LocalSteps
from fedpoint.core.types import Model
from fedpoint.data.preprocess import check_groups, federated_moments
from fedpoint.estimators import small
from fedpoint.estimators.choose import choose
from fedpoint.estimators.history import History
from fedpoint.estimators.neural import forward, layers, neural_task
from fedpoint.estimators.table import Columns, Coordinates, read_fit, read_rows
from fedpoint.metrics import Fairness, fairness
from fedpoint.problems.penalised import LogisticTask, Penalised, RidgeTask
from fedpoint.problems.rows import RowsProblem
from fedpoint.results.forecast import Forecast
from fedpoint.timing.participation import Participation
from fedpoint.verbs.forecast import forecast
from fedpoint.verbs.run import run

HALVINGS = 20

RandomState: TypeAlias = int | np.random.RandomState | None


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


def seed_of(random_state: RandomState) -> int:
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


class Federated(BaseEstimator):
    """What both estimators do: read the table, run the rounds, tell what happened."""

    algorithm: Algorithm | str
    local_steps: LocalSteps
    rounds: int
    step: float | str
    fit_intercept: bool
    hidden: Sequence[int] | int | None
    scale: bool
    precondition: bool
    participation: Participation | int | None
    batch: int | None
    tol: float | None
    target: float
    categorical: str | Sequence[str] | None
    random_state: RandomState

    def _prepare(
        self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None, labels: bool, penalty: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Numbers of the rows, targets, and whose row it is."""
        check_count("rounds", self.rounds, 1)
        self._columns: Columns
        self._columns, numbers, target = read_fit(self, X, y, groups, labels, self.categorical)
        names = np.zeros(len(numbers), int) if groups is None else check_groups(groups, len(numbers))
        self.agents_ = np.unique(names)
        self.feature_names_out_ = self._columns.names
        shorten, deep = bool(self.precondition), self.hidden is not None
        ridge = 0.0 if deep else penalty / len(numbers) * (4.0 if labels else 1.0)  # logistic losses bend a quarter
        intercept = bool(self.fit_intercept) or deep
        self._coordinates = Coordinates.of(numbers, names, bool(self.scale), shorten, intercept, ridge)
        return numbers, target, names

    def _train(self, task: RowsProblem) -> Model:
        """Run the rounds; the final model."""
        chosen = choose(self.algorithm, task, self.step, self.local_steps, self.rounds, self.target, self.participation)
        self.plan_ = chosen.plan
        algorithm, halved = chosen.algorithm, 0
        own = isinstance(self.algorithm, str) and isinstance(self.step, str)  # the step is ours to shorten
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
        self._forecast: Forecast | str | None = "not asked"
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

    def _told(self, row_losses: np.ndarray, counts: np.ndarray) -> None:
        """Losses by agent, of rows ordered by agent."""
        first = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self.agent_losses_ = np.add.reduceat(row_losses.astype(float), first) / counts

    @property
    def fairness_(self) -> Fairness:
        """Of the agents' losses, `agent_losses_`: variance, entropy, Jain's index, worst and best tenth."""
        check_is_fitted(self)
        return fairness(self.agent_losses_)

    @property
    def forecast_(self) -> Forecast | None:
        """What `fp.forecast` says of this fit; None where it is refused, and then `forecast_reason_` says why."""
        check_is_fitted(self)
        if isinstance(self._forecast, str):
            self._forecast = self._made()
        return self._forecast

    def _made(self) -> Forecast | None:
        if self.problem_ is None:
            self.forecast_reason_ = "the model was saved, and a saved model holds no rows: fit it again"
            return None
        try:
            return forecast(self.algorithm_, self.problem_, participation=self.participation)
        except FedpointError as error:
            self.forecast_reason_ = str(error)
            return None

    def __getstate__(self) -> dict[str, Any]:
        """Without the rows: a saved model holds no data."""
        state = super().__getstate__().copy()
        if "problem_" in state:
            state |= {"problem_": None, "_forecast": "not asked", "plan_": None}
        return state

    def _output(self, X: ArrayLike) -> np.ndarray:
        """(n,) or (n, C): what the model says of rows, before it is made a prediction."""
        check_is_fitted(self)
        Z = read_rows(self, self._columns, X)
        if self.hidden is not None:
            # In double precision: products of single ones depend on how many rows are asked for at once.
            return forward(jax.tree.map(np.float64, self.model_), self._coordinates(Z))
        Z = self._coordinates(Z) if self._coordinates.own else Z
        return Z @ self._slopes.T + self._constants


class FederatedRegressor(RegressorMixin, Federated):
    r"""Linear regression with a ridge over agents that keep their rows, or a small neural network.

    $$\min_{w, b} \sum_k |y_k - X_k w - b|^2 + \alpha |w|^2$$

    by rounds of a federated algorithm: `Ridge`'s objective on the pooled rows, shared out as
    $f_k = \frac{1}{2 n_k}|y_k - X_k w - b|^2 + \frac{\alpha}{2n}|w|^2$ with $p_k = n_k/n$.

    Args:
        algorithm: a name of the catalogue ("scaffold", "fedavg", ...), an object such as `fp.FedAvg(...)`, or "auto":
            what `fp.plan` finds cheapest for `target`; where it refuses, SCAFFOLD and a `PlanNotice`.
        local_steps: between rounds. rounds: at most so many.
        alpha: Ridge's, on the coefficients; the intercept is free.
        step: "auto" is 1/L, L the largest smoothness of an agent's loss, so that no local step overshoots (with one
            local step, of all agents' together; with a batch, twice what a batch is expected to have; neural networks:
            the largest curvature at the start), half of that where not everyone takes part; halved again where a run
            diverges. A number has the algorithm's own meaning.
        fit_intercept: free intercept. hidden: widths of layers, such as (64,): then the model is a neural network.
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

    Attributes: coef_, intercept_, agents_, history_ (rounds, loss, error), forecast_ (of this fit, when asked),
    fairness_ (over `agent_losses_`, each agent's mean squared error), n_iter_ = n_rounds_, converged_, algorithm_,
    problem_, model_, plan_.

    >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), [1.0, 2.0, 4.0, 5.0]
    >>> model = FederatedRegressor(alpha=1.0).fit(X, y, groups=["a", "a", "b", "b"])
    >>> model.coef_.round(4), round(float(model.intercept_), 4)      # what Ridge finds
    (array([1.1667]), 1.25)
    """

    def __init__(
        self,
        algorithm: Algorithm | str = "scaffold",
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

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> FederatedRegressor:
        """groups: whose row it is. Without it there is one agent."""
        ridge = check_penalty("alpha", self.alpha)
        numbers, y, names = self._prepare(X, y, groups, labels=False, penalty=ridge)
        n = len(numbers)
        if self.hidden is not None:
            return self._fit_neural(numbers, y, names, ridge / n)
        at, intercept = self._coordinates, bool(self.fit_intercept)
        design = at.design(numbers, intercept)
        task = RidgeTask(design, y, at.ridge(ridge / n, intercept), groups=names, batch=self.batch)
        w = self._train(task)
        self.coef_, constant = at.coefficients(w, intercept)
        self.intercept_ = float(constant)
        self._slopes, self._constants = self.coef_, self.intercept_
        self._told(task.row_losses(w), task.counts)
        return self

    def _fit_neural(self, X: np.ndarray, y: np.ndarray, names: np.ndarray, ridge: float) -> FederatedRegressor:
        found = federated_moments(y[:, None], names)  # targets are scaled too, or steps would be of their size
        self._level, self._spread = float(found.mean[0]), float(found.scale[0])
        scaled = (y - self._level) / self._spread
        seed, Z = seed_of(self.random_state), self._coordinates(X)
        task = neural_task(Z, scaled, names, 0, layers(self.hidden), ridge, self.batch, seed)
        self._train(task)
        x, target, _ = task.all_rows()
        errors = (forward(self.model_, x)[:, 0].astype(float) - target) ** 2 * self._spread**2
        self._told(errors, task.counts)
        return self

    def predict(self, X: ArrayLike) -> np.ndarray:
        """(n,)."""
        out = self._output(X)
        return out if self.hidden is None else out[:, 0] * self._spread + self._level


class FederatedClassifier(ClassifierMixin, Federated):
    r"""Logistic or softmax regression over agents that keep their rows, or a small neural network.

    $$\min_{w, b} C \sum_k \sum_{i \in k} \ell(y_i, x_i^\top w + b) + \tfrac12 |w|^2$$

    by rounds of a federated algorithm: `LogisticRegression`'s objective on the pooled rows, shared out as
    $f_k = \frac{1}{n_k} \sum_{i \in k} \ell_i + \frac{1}{2 C n}|w|^2$ with $p_k = n_k/n$. An agent may have one class
    only, and a class may be at one agent only.

    Args:
        C: LogisticRegression's inverse penalty; `np.inf` is none. The intercept is free.
        algorithm, local_steps, rounds, step, fit_intercept, hidden, scale, precondition, participation, batch, tol,
            target, categorical, random_state: as in `FederatedRegressor`.

    Attributes: classes_, coef_, intercept_ (shaped as scikit-learn's) and those of `FederatedRegressor`; losses of
    agents are mean log losses.

    >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), ["no", "no", "yes", "yes"]
    >>> model = FederatedClassifier().fit(X, y, groups=["a", "b", "a", "b"])
    >>> model.coef_.round(3), model.predict([[0.5], [2.5]])          # what LogisticRegression finds
    (array([[0.958]]), array(['no', 'yes'], dtype='<U3'))
    """

    def __init__(
        self,
        algorithm: Algorithm | str = "scaffold",
        local_steps: LocalSteps = 10,
        rounds: int = 200,
        *,
        C: float = 1.0,
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

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> FederatedClassifier:
        """groups: whose row it is. Without it there is one agent."""
        ridge = inverse_penalty(self.C)
        numbers, y, names = self._prepare(X, y, groups, labels=True, penalty=ridge)
        n = len(numbers)
        self.classes_, label = check_classes(y)
        if self.hidden is not None:
            return self._fit_neural(numbers, label, names, ridge / n)
        at, intercept = self._coordinates, bool(self.fit_intercept)
        task = LogisticTask(at.design(numbers, intercept), label, at.ridge(ridge / n, intercept), names, self.batch)
        w = self._train(task)
        slopes, constants = at.coefficients(w, intercept)
        self._slopes, self._constants = slopes, constants
        self.coef_, self.intercept_ = np.atleast_2d(slopes), np.atleast_1d(constants)
        self._told(task.row_losses(w), task.counts)
        return self

    def _fit_neural(self, X: np.ndarray, label: np.ndarray, names: np.ndarray, ridge: float) -> FederatedClassifier:
        seed, Z = seed_of(self.random_state), self._coordinates(X)
        task = neural_task(Z, label, names, len(self.classes_), layers(self.hidden), ridge, self.batch, seed)
        self._train(task)
        x, own, _ = task.all_rows()
        logits = forward(self.model_, x).astype(float)
        self._told(-np.log(np.maximum(probabilities(logits)[np.arange(len(own)), own], 1e-300)), task.counts)
        return self

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """(n,) for two classes, else (n, C): logits."""
        out = self._output(X)
        return out[:, 1] - out[:, 0] if out.ndim == 2 and out.shape[1] == 2 else out

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """(n, C)."""
        return probabilities(self._output(X))

    def predict_log_proba(self, X: ArrayLike) -> np.ndarray:
        return np.log(self.predict_proba(X))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """(n,)."""
        out = self.decision_function(X)
        return self.classes_[(out > 0).astype(int) if out.ndim == 1 else out.argmax(1)]


def probabilities(logits: np.ndarray) -> np.ndarray:
    """(n, C) of logits (n, C), or of (n,) for two classes."""
    if logits.ndim == 1:
        p = 0.5 * (1 + np.tanh(0.5 * logits))
        return np.stack([0.5 * (1 + np.tanh(-0.5 * logits)), p], axis=1)
    p = np.exp(logits - logits.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def check_classes(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classes, sorted, and each row's number among them."""
    classes, label = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise FedpointError(f"y holds one class only ({classes[0]!r}): a classifier needs at least two")
    return classes, label.ravel()


def check_penalty(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 <= value < np.inf:
        raise FedpointError(f"{name} must be a number, at least 0; got {value!r}")
    return float(value)


def inverse_penalty(C: float) -> float:
    if isinstance(C, bool) or not isinstance(C, int | float | np.number) or not C > 0:
        raise FedpointError(f"C must be a number above 0, or np.inf for no penalty; got {C!r}")
    return 1.0 / float(C)
