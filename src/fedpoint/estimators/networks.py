"""A model for each agent, alike between neighbours, in scikit-learn's way: `NetworkRegressor`, `NetworkClassifier`."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.validation import check_is_fitted

from fedpoint.core.arguments import check_names, check_parameters
from fedpoint.core.errors import FedpointError, check_count, notify
from fedpoint.core.types import Plain
from fedpoint.data.encoding import Cells
from fedpoint.data.preprocess import check_groups
from fedpoint.estimators.base import (
    RandomState,
    TableClassifier,
    TableEstimator,
    check_penalty,
    inverse_penalty,
    joined,
    probabilities,
    seed_of,
)
from fedpoint.estimators.table import read_rows
from fedpoint.estimators.weights import ClassWeight
from fedpoint.graphs import gtv
from fedpoint.graphs.gtv.minimum import AT_INFINITY
from fedpoint.graphs.network import Network, as_network
from fedpoint.problems.logistic_task import LogisticTask
from fedpoint.problems.ridge_task import RidgeTask

NAMED = 5  # groups that a message spells out


class MeanModelWarning(UserWarning):
    """Rows were predicted by the mean of the agents' models, because it is not known whose they are."""


class Networked(TableEstimator):
    """What both estimators do: couple the agents, choose how strongly, find each row its model."""

    network: Network | nx.Graph | None
    coupling: float | str
    neighbours: int
    folds: int
    random_state: RandomState

    def _couple(self, task: RidgeTask | LogisticTask) -> np.ndarray:
        """(K, ...): GTVMin's models."""
        self.problem_ = task
        self.network_ = net = self._network_of(task)
        self.choice_ = None
        if not len(net.edges):
            self.coupling_ = 0.0
            if task.agents == 1 and isinstance(task, LogisticTask):
                w = task.solution()
                if w is None:
                    raise FedpointError(f"{AT_INFINITY}: take a smaller C")
                return w[None]
        elif isinstance(self.coupling, str):
            if self.coupling != "auto":
                raise FedpointError(f'coupling must be a number, at least 0, or "auto"; got {self.coupling!r}')
            self.choice_ = gtv.choose(task, net, folds=self.folds, seed=seed_of(self.random_state))
            self.coupling_ = self.choice_.coupling
            return self.choice_.models
        else:
            self.coupling_ = float(self.coupling)
        return gtv.solve(task, net, self.coupling_)

    def _network_of(self, task: RidgeTask | LogisticTask) -> Network:
        given = self.network
        if given is None:
            check_count("neighbours", self.neighbours, 1)
            k = min(self.neighbours, task.agents - 1)
            return Network([], [], task.names) if k == 0 else Network.similarity(task, k=k)
        return as_network(given).aligned(task.names)

    def _keep(self, models: np.ndarray) -> None:
        """Coefficients of each agent and of the mean model, sum_k p_k w_k."""
        task, intercept = self.problem_, bool(self.fit_intercept)
        self.models_ = models
        self.mean_model_ = np.tensordot(task.weights, models, axes=1)
        both = [*models, self.mean_model_]
        found = [self._coordinates.coefficients(w, intercept) for w in both]
        self._slopes = np.stack([slope for slope, _ in found])  # (K + 1, d, ...), the mean model last
        self._constants = np.stack([np.asarray(constant) for _, constant in found])
        offset = np.concatenate([[0], np.cumsum(task.counts)])
        ends = zip(models, offset[:-1], offset[1:], strict=True)
        self._tell(np.array([task.row_losses(w)[a:b].mean() for w, a, b in ends]))

    def _score_agent(self, X: Cells, y: ArrayLike, groups: np.ndarray, sample_weight: np.ndarray | None) -> float:
        return self.score(X, y, groups=groups, sample_weight=sample_weight)

    def _described(self) -> tuple[dict[str, np.ndarray], dict[str, Plain]]:
        at, intercept = self._coordinates, bool(self.fit_intercept)
        *models, mean = joined(self._slopes, self._constants, intercept)
        arrays = {"model": mean, "models": np.stack(models)} | (
            {"shift": at.shift, "width": at.width} if at.own else {}
        )
        return arrays, {"intercept": intercept, "agents": [str(name) for name in self.agents_], **self._target()}

    def _which(self, groups: ArrayLike | None, rows: int) -> np.ndarray:
        """(n,): the number of the model for each row; the last one is the mean model."""
        K = len(self.agents_)
        if groups is None:
            if K > 1:
                _say(f"no groups are given: the mean of the {K} agents' models predicts")
            return np.full(rows, K if K > 1 else 0)
        number = {str(name): k for k, name in enumerate(self.agents_.tolist())}
        names = [str(name) for name in check_groups(groups, rows).tolist()]
        place = np.array([number.get(name, K) for name in names], dtype=int)
        new = sorted({name for name, k in zip(names, place, strict=True) if k == K})
        if new:
            shown = ", ".join(new[:NAMED]) + (f" and {len(new) - NAMED} more" if len(new) > NAMED else "")
            _say(f"groups that were not in fit: {shown}: for their rows the mean of the agents' models predicts")
        return place

    def _output(self, X: Cells, groups: ArrayLike | None) -> np.ndarray:
        check_is_fitted(self)
        Z = read_rows(self, self._columns, X)
        which = self._which(groups, len(Z))
        Z = self._coordinates(Z) if self._coordinates.own else Z
        out = np.empty((len(Z), *self._constants.shape[1:]))
        for k in np.unique(which):
            rows = which == k
            out[rows] = Z[rows] @ self._slopes[k].T + self._constants[k]
        return out


def _say(text: str) -> None:
    notify(text, MeanModelWarning)


@check_names
class NetworkRegressor(RegressorMixin, Networked):
    r"""Linear regression with a model for each agent, neighbours of a network having similar ones: GTVMin.

    $$\min_{w_1, \dots, w_K} \sum_k \Big(\frac{1}{n_k} |y_k - X_k w_k|^2 + \frac{\alpha}{n} |w_k|^2\Big)
      + \text{coupling} \sum_{\text{edges}} A_{ij} |w_i - w_j|^2$$

    A small coupling fits each agent alone (as Ridge with its share $\alpha n_k/n$), a large one makes the agents of a
    connected component share a model (agents of equal size: Ridge on their pooled rows). The intercept is a part of w:
    coupled, but not penalised.

    Args:
        network: an `fp.Network` or networkx graph whose nodes are the agents; None joins each agent to the `neighbours`
            whose gradients are most like its own (`fp.Network.similarity`).
        coupling: a number, or "auto": the one with the least held-out error, by cross-validation over `folds` within
            agents (`fp.gtv.choose`).
        alpha: Ridge's, shared out by rows.
        neighbours: how many agents each one is joined to, where `network` is None.
        scale: standardise columns, from sums that agents send: one coupling holds all parameters together, so they
            should be of one size. Coefficients then belong to the scaled columns.
        fit_intercept, categorical: as in `FederatedRegressor`.
        folds: of the cross-validation, where `coupling` is "auto".
        random_state: of the folds.

    Attributes: coef_ (K, d), intercept_ (K,), agents_, network_, coupling_, choice_ (`fp.gtv.Choice`, or None),
    models_, mean_model_, agent_losses_, fairness_.

    >>> from fedpoint import Network
    >>> X, y, who = np.array([[0.0], [1.0], [0.0], [1.0]]), [0.0, 1.0, 0.0, 3.0], ["a", "a", "b", "b"]
    >>> net = Network.from_edges([("a", "b")])
    >>> alone = NetworkRegressor(net, coupling=1e-9, alpha=0.0, scale=False).fit(X, y, groups=who)
    >>> alone.predict([[2.0], [2.0]], groups=["a", "b"]).round(3)
    array([2., 6.])
    >>> together = NetworkRegressor(net, coupling=1e9, alpha=0.0, scale=False).fit(X, y, groups=who)
    >>> together.predict([[2.0], [2.0]], groups=["a", "b"]).round(3)
    array([4., 4.])
    """

    def __init__(
        self,
        network: Network | nx.Graph | None = None,
        coupling: float | str = "auto",
        *,
        alpha: float = 1.0,
        neighbours: int = 5,
        fit_intercept: bool = True,
        scale: bool = True,
        folds: int = 5,
        categorical: str | Sequence[str] | None = "auto",
        random_state: RandomState = 0,
    ):
        self.network = network
        self.coupling = coupling
        self.alpha = alpha
        self.neighbours = neighbours
        self.fit_intercept = fit_intercept
        self.scale = scale
        self.folds = folds
        self.categorical = categorical
        self.random_state = random_state

    def fit(
        self, X: Cells, y: ArrayLike, groups: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> NetworkRegressor:
        """Fit the models of all nodes.

        Args:
            groups: whose row it is; without it there is one agent, and a `OneAgentWarning`.
            sample_weight: what each row counts.
        """
        check_parameters(self)
        alpha, intercept = check_penalty("alpha", self.alpha), bool(self.fit_intercept)
        rows = self._read(X, y, groups, sample_weight, labels=False)
        self._place(rows, shorten=False, intercept=intercept)
        design = self._coordinates.design(rows.X, intercept)
        ridge = self._coordinates.ridge(2 * alpha / rows.total, intercept)
        task = RidgeTask(design, rows.y, ridge, groups=rows.agents, half=False, sample_weight=rows.weight)
        self._keep(self._couple(task))
        self.coef_, self.intercept_ = self._slopes[:-1], self._constants[:-1]
        return self

    def predict(self, X: Cells, groups: ArrayLike | None = None) -> np.ndarray:
        """(n,): each row by its agent's model; where that is not known by the mean model, with a `MeanModelWarning`."""
        return self._output(X, groups)

    def score(
        self, X: Cells, y: ArrayLike, groups: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """R^2 of `predict(X, groups)`."""
        return r2_score(y, self.predict(X, groups), sample_weight=sample_weight)


@check_names
class NetworkClassifier(TableClassifier, Networked):
    r"""Logistic or softmax regression with a model for each agent, neighbours of a network having similar ones: GTVMin.

    $$\min_{w_1, \dots, w_K} \sum_k \Big(\frac{1}{n_k} \sum_{i \in k} \ell(y_i, x_i^\top w_k)
      + \frac{1}{2 C n} |w_k|^2\Big) + \text{coupling} \sum_{\text{edges}} A_{ij} |w_i - w_j|^2$$

    An agent may have one class only: its neighbours say what it cannot know. In a connected component there must be
    every class that its models are to tell apart.

    Args:
        C: LogisticRegression's inverse penalty, shared out by rows.
        class_weight: as in `FederatedClassifier`.
        network, coupling, neighbours, fit_intercept, scale, folds, categorical, random_state: as in `NetworkRegressor`.

    Attributes: classes_, coef_ (K, d), or (K, C, d) for more than two classes, intercept_, and those of
    `NetworkRegressor`.

    >>> from fedpoint import Network
    >>> X, y, who = np.array([[0.0], [1.0], [0.5], [2.0]]), [0, 1, 0, 1], ["a", "a", "b", "b"]
    >>> model = NetworkClassifier(Network.from_edges([("a", "b")]), coupling=1.0).fit(X, y, groups=who)
    >>> model.predict([[0.0], [2.0]], groups=["a", "b"])
    array([0, 1])
    """

    def __init__(
        self,
        network: Network | nx.Graph | None = None,
        coupling: float | str = "auto",
        *,
        C: float = 1.0,
        class_weight: ClassWeight = None,
        neighbours: int = 5,
        fit_intercept: bool = True,
        scale: bool = True,
        folds: int = 5,
        categorical: str | Sequence[str] | None = "auto",
        random_state: RandomState = 0,
    ):
        self.network = network
        self.coupling = coupling
        self.C = C
        self.class_weight = class_weight
        self.neighbours = neighbours
        self.fit_intercept = fit_intercept
        self.scale = scale
        self.folds = folds
        self.categorical = categorical
        self.random_state = random_state

    def fit(
        self, X: Cells, y: ArrayLike, groups: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> NetworkClassifier:
        """Fit the models of all nodes.

        Args:
            groups: whose row it is; without it there is one agent, and a `OneAgentWarning`.
            sample_weight: what each row counts.
        """
        check_parameters(self)
        penalty, intercept = inverse_penalty(self.C), bool(self.fit_intercept)
        rows = self._read(X, y, groups, sample_weight, labels=True)
        self._place(rows, shorten=False, intercept=intercept)
        rows = self._by_class(rows)
        design = self._coordinates.design(rows.X, intercept)
        ridge = self._coordinates.ridge(penalty / rows.total, intercept)
        task = LogisticTask(design, rows.y, ridge, rows.agents, sample_weight=rows.weight)
        self._keep(self._couple(task))
        self.coef_, self.intercept_ = self._slopes[:-1], self._constants[:-1]
        return self

    def decision_function(self, X: Cells, groups: ArrayLike | None = None) -> np.ndarray:
        """(n,) for two classes, else (n, C): logits."""
        return self._output(X, groups)

    def predict_proba(self, X: Cells, groups: ArrayLike | None = None) -> np.ndarray:
        """(n, C)."""
        return probabilities(self._output(X, groups))

    def predict(self, X: Cells, groups: ArrayLike | None = None) -> np.ndarray:
        """(n,): each row by its agent's model; where that is not known by the mean model, with a `MeanModelWarning`."""
        out = self._output(X, groups)
        return self.classes_[(out > 0).astype(int) if out.ndim == 1 else out.argmax(1)]

    def score(
        self, X: Cells, y: ArrayLike, groups: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Accuracy of `predict(X, groups)`."""
        return accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight)
