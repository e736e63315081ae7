"""Nodes with any model that has fit and predict: trees, forests, neighbours, boosting. Lecture 003, FedRelax for
non-parametric models.

What nodes exchange are predictions on shared points, so their models may be of different kinds.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.arrays import numbers, told_apart
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted, there_are
from fedpoint.problems.base import check_finite
from fedpoint.problems.least_squares import AgentArrays, split_agents


class Predictor(Protocol):
    """A model that is fitted to rows and predicts others, as scikit-learn's do."""

    def fit(self, X: np.ndarray, y: np.ndarray, **weights: np.ndarray) -> Self: ...

    def predict(self, X: np.ndarray) -> np.ndarray: ...


class Classifier(Predictor, Protocol):
    """One that also tells how likely each class is."""

    classes_: np.ndarray

    def predict_proba(self, X: np.ndarray) -> np.ndarray: ...


class Heard(NamedTuple):
    """What neighbours say: points (n, d), labels as numbers (n,) or probabilities (n, classes), and weights (n,)."""

    points: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


Models: TypeAlias = Predictor | list[Predictor] | tuple[Predictor, ...] | Mapping[str, Predictor]
Node: TypeAlias = str | int  # by name or number
Shared: TypeAlias = ArrayLike | Mapping[tuple[Node, Node], ArrayLike]

COPIES = 10  # of the heaviest row, where weights are imitated by repeating rows
NOTHING = 1e-12  # of an own row's weight: a row that weighs less is left out


@checked
class AnyModel:
    """Each node i fits a model h_i to its own rows and to what its neighbours predict on shared points.

        h_i = argmin_h (1/m_i) sum_r (y_r - h(x_r))^2 + alpha sum_j A_ij (1/m') sum_{shared x} (h(x) - h_j(x))^2

    which is a fit with sample weights: own rows weigh 1, and a shared point, labelled by the neighbours' mean
    sum_j A_ij h_j(x) / d_i, weighs alpha d_i m_i / m': m_i times the formula, so that without coupling it is
    `model.fit(X_i, y_i)`, and a penalty in the model means what it meant. With shared points per edge, each is labelled
    by the one neighbour, and weighs alpha A_ij m_i / m'_ij. A model with another loss than the square takes its own.

    Classifiers exchange the probabilities of all classes that some node has. A shared point is then a row for each
    class, with the neighbours' mean probability in its weight.

    Args:
        X, y: (n, d) and (n,), with `groups`; or lists with one array for each node.
        groups: whose row it is (n,).
        models: one model for all nodes, a list of one each, or a dictionary by name. They are copied, never changed.
        shared: (m', d) points at which all neighbours compare their predictions, or {(i, j): points} for each edge,
            with names or numbers of nodes. They need no labels; they should lie where agreement matters.
        copies: for models whose fit takes no sample weights, the heaviest rows are repeated up to so many times
            (default 10) and the others in proportion. Sums of weights are right to half a copy, single ones to one.

    Nearest neighbours are not repeated, since that would leave fewer different rows among the k: the neighbourhood is
    made of the nearest rows that weigh as much as k own ones.

    Arguments of methods:
        k: the number of a node.
        model: a fitted model.
        X: (n, features) rows to predict.
        said: what a model predicts: (n,) numbers, or (n, classes) probabilities.
    """

    def __init__(
        self,
        X: AgentArrays,
        y: AgentArrays,
        groups: ArrayLike | None = None,
        models: Models | None = None,
        shared: Shared | None = None,
        copies: int | None = None,
    ):
        self.classes = _classes(y, groups) if _classifies(_listed(models)) else None
        codes = y if self.classes is None else _coded(y, groups, self.classes)
        self.X, self.y, self.names = split_agents(X, codes, groups)
        self.models = self._checked_models(models)
        if copies is not None and (isinstance(copies, bool) or not isinstance(copies, int) or copies < 1):
            raise FedpointError(f"copies must be a whole number, at least 1, got {copies!r}")
        self.copies = COPIES if copies is None else copies
        self.points: np.ndarray | None = None  # one set for all, or
        self.edge_points: dict[tuple[int, int], np.ndarray] = {}  # one for each edge (i, j), i < j
        self._share(shared)

    @property
    def agents(self) -> int:
        return len(self.names)

    def local_rows(self) -> np.ndarray:
        return np.array([len(X) for X in self.X])

    @property
    def columns(self) -> int:
        return self.X[0].shape[1]

    def __repr__(self) -> str:
        kinds = sorted({type(m).__name__ for m in self.models})
        return f"<AnyModel: {counted(self.agents, 'node')}, {', '.join(kinds)}>"

    # What is given, checked

    def _checked_models(self, models: Models | None) -> list[Predictor]:
        from fedpoint.problems import neighbours

        if isinstance(models, Mapping):
            named = {str(name): model for name, model in models.items()}
            lost, strange = sorted(set(self.names) - set(named)), sorted(set(named) - set(self.names))
            if lost or strange:
                said = [f"node {n} has none" for n in lost[:1]] + [f"there is no node {n}" for n in strange[:1]]
                raise FedpointError(f"models do not match the nodes' names: {'; '.join(said)}")
            models = [named[name] for name in self.names]
        elif isinstance(models, list | tuple):
            if len(models) != self.agents:
                raise FedpointError(
                    f"{counted(len(models), 'model')} for {counted(self.agents, 'node')}: give one each, or one for all"
                )
        else:
            models = _listed(models) * self.agents
        kinds = {_classifies([model]) for model in models}
        if len(kinds) > 1:
            raise FedpointError("models are classifiers at some nodes and regressors at others: they cannot agree")
        self._kinds = [type(model).__name__ for model in models]
        ready = [neighbours.weighted(model) for model in models]
        for name, model in zip(self.names, ready, strict=True):
            if weights_name(model) is None and neighbours.inside(model):
                raise FedpointError(
                    f"node {name}: {type(model).__name__} takes no sample weights, and repeated rows would change the "
                    "k of the nearest neighbours in it: give these themselves, or as the last step of a pipeline"
                )
        return ready

    def node(self, name: Node) -> int:
        """The number of a node that is given by name or by number; where a number is a name too, it is the name.

        Args:
            name: a name or a number.
        """
        if str(name) in self.names:
            return self.names.index(str(name))
        if isinstance(name, int | np.integer) and not isinstance(name, bool) and 0 <= name < self.agents:
            return int(name)
        raise FedpointError(f"there is no node {name}: the nodes are {', '.join(self.names[:8])}")

    def _share(self, shared: Shared | None) -> None:
        if shared is None:
            raise FedpointError(
                "there are no shared points: give shared=points, at which neighbours compare predictions, or "
                "shared={(i, j): points} for each edge"
            )
        if not isinstance(shared, Mapping):
            self.points = self._checked_points("shared points", shared)
            return
        for pair, points in shared.items():
            if not (isinstance(pair, tuple) and len(pair) == 2):
                raise FedpointError(f"shared points of {pair!r}: an edge is a pair of nodes (i, j)")
            i, j = sorted(self.node(end) for end in pair)
            where = f"the edge between {self.names[i]} and {self.names[j]}"
            if i == j:
                raise FedpointError(f"shared points of ({pair[0]}, {pair[1]}): a node shares none with itself")
            if (i, j) in self.edge_points:
                raise FedpointError(f"{where} has shared points twice: give them once")
            self.edge_points[i, j] = self._checked_points(f"shared points of {where}", points)

    def _checked_points(self, what: str, points: ArrayLike) -> np.ndarray:
        points = numbers(what, points)
        if points.ndim != 2 or points.shape[1] != self.columns or not len(points):
            raise FedpointError(
                f"{what} have shape {points.shape}: give (points, {self.columns}), columns as in the data, at least one"
            )
        check_finite(what, points)
        return points

    def check_rows(self, X: ArrayLike) -> np.ndarray:
        """Rows to predict, checked."""
        X = numbers("X", X)
        if X.ndim != 2 or X.shape[1] != self.columns:
            raise FedpointError(f"X has shape {X.shape}: give (rows, {self.columns}), columns as in the data")
        check_finite("X", X)
        return X

    # Fitting and predicting

    @property
    def draws(self) -> bool:
        """Whether some model has a random state of its own to be set."""
        return any(_states(model) for model in self.models)

    def fit(self, k: int, state: int, heard: Heard | None = None) -> Predictor:
        """The model of node k, fitted to its own rows (weight 1 each) and to what it heard.

        Args:
            state: the random state, where the model has none.
            heard: points of its neighbours with what these predict there, and weights; None: nothing.
        """
        X, y, w = self.X[k], self.y[k], np.ones(len(self.y[k]))
        if heard is not None:
            points, labels, weights = heard
            if self.classes is not None:  # a row for each class
                C = len(self.classes)
                weights = (weights[:, None] * labels).ravel()
                points, labels = np.repeat(points, C, axis=0), np.tile(np.arange(float(C)), len(points))
            some = weights > NOTHING
            X, y = np.concatenate([X, points[some]]), np.concatenate([y, labels[some]])
            w = np.concatenate([w, weights[some]])
        target = y if self.classes is None else self.classes[y.astype(int)]
        try:
            if self.classes is not None and (y == y[0]).all():
                return _only_class(X, target)
            return _fit(_seeded(self.models[k], state), X, target, w, self.copies)
        except Exception as error:
            raise FedpointError(f"node {self.names[k]}: {self._kinds[k]} could not be fitted: {error}") from error

    def say(self, k: int, model: Predictor, X: np.ndarray) -> np.ndarray:
        """What node k's model predicts: numbers (n,), or probabilities of all classes (n, classes)."""
        try:
            said = np.asarray(model.predict(X), float) if self.classes is None else self._probabilities(model, X)
            said = said.reshape((len(X),) if self.classes is None else (len(X), len(self.classes)))
        except FedpointError:
            raise
        except Exception as error:
            raise FedpointError(f"node {self.names[k]}: {self._kinds[k]} could not predict: {error}") from error
        if not np.isfinite(said).all():
            raise FedpointError(f"node {self.names[k]}: {self._kinds[k]} predicts NaN or inf")
        return said

    def _probabilities(self, model: Predictor, X: np.ndarray) -> np.ndarray:
        """A model that has no probabilities is sure of its label."""
        assert self.classes is not None
        if not _gives_probabilities(model):
            return (np.asarray(model.predict(X))[:, None] == self.classes[None, :]).astype(float)
        all_ = np.zeros((len(X), len(self.classes)))
        all_[:, np.searchsorted(self.classes, model.classes_)] = model.predict_proba(X)
        return all_

    def targets(self, k: int) -> np.ndarray:
        """Node k's own targets as models predict them: (m_k,), or indicators (m_k, classes)."""
        if not 0 <= k < len(self.y):
            raise FedpointError(f"{there_are(len(self.y), 'node')}, numbered from 0, got k = {k}")
        return self.y[k] if self.classes is None else np.eye(len(self.classes))[self.y[k].astype(int)]

    def local_loss(self, k: int, model: Predictor) -> float:
        """(1/m_k) sum_r |y_r - h(x_r)|^2; of classifiers, that of the probabilities (Brier's score)."""
        return float(((self.targets(k) - self.say(k, model, self.X[k])) ** 2).sum() / len(self.y[k]))

    def labels(self, said: np.ndarray) -> np.ndarray:
        """Predictions as a user knows them: numbers, or the likeliest classes."""
        return said if self.classes is None else self.classes[said.argmax(1)]

    def measure(self, said: np.ndarray, y: ArrayLike) -> dict[str, float]:
        """Metrics of predictions on held-out rows: mse, or accuracy and Brier's score.

        Args:
            y: (n,) the true targets.
        """
        y = np.asarray(y)
        if y.shape != (len(said),):
            raise FedpointError(f"held-out targets have shape {y.shape}, but {there_are(len(said), 'row')}")
        if self.classes is None:
            check_finite("held-out targets", y)
            return {"mse": float(((said - y) ** 2).mean())}
        indicator = (y[:, None] == self.classes[None, :]).astype(float)
        return {
            "accuracy": float((self.labels(said) == y).mean()),
            "brier": float(((said - indicator) ** 2).sum(1).mean()),
        }


def _listed(models: Models | None) -> list[Predictor]:
    """One model for each node, or one for all."""
    if models is None:
        raise FedpointError("there are no models: give models=, for instance DecisionTreeRegressor(max_depth=4)")
    if isinstance(models, Mapping):
        return list(models.values())
    return list(models) if isinstance(models, list | tuple) else [models]


def _classifies(models: list[Predictor]) -> bool:
    """Whether one of these models is a classifier; each is checked to be a model."""
    from sklearn.base import BaseEstimator, is_classifier

    found = False
    for model in models:
        if isinstance(model, type):
            raise FedpointError(f"models: {model.__name__} is a class: give an object, {model.__name__}()")
        for method in ("fit", "predict"):  # in `dir` also where a model can predict only once it is fitted
            if method not in dir(model):
                raise FedpointError(f"models: {type(model).__name__} has no {method}: give models with fit and predict")
        found |= is_classifier(model) if isinstance(model, BaseEstimator) else _gives_probabilities(model)
    return found


def _gives_probabilities(model: Predictor) -> TypeGuard[Classifier]:
    """Models of one class may differ in it: scikit-learn's hide the method where their parameters forbid it."""
    return hasattr(model, "predict_proba")


def _flat(y: AgentArrays, groups: ArrayLike | None) -> np.ndarray:
    """Targets of all nodes, one after the other."""
    parts = [np.asarray(y)] if groups is not None else [np.asarray(part) for part in y]
    if any(part.ndim != 1 for part in parts) or not parts:
        raise FedpointError("y: give one label a row; without groups=, a list with one array for each node")
    return np.concatenate(parts)


def _classes(y: AgentArrays, groups: ArrayLike | None) -> np.ndarray:
    flat = _flat(y, groups)
    if np.issubdtype(flat.dtype, np.number):
        check_finite("y", flat)
    classes = told_apart("y", flat)[0]
    if len(classes) < 2:
        raise FedpointError(f"y holds fewer than two classes ({', '.join(map(str, classes))}): nothing to tell apart")
    return classes


def _coded(y: AgentArrays, groups: ArrayLike | None, classes: np.ndarray) -> AgentArrays:
    """Labels as the numbers of their classes."""
    if groups is not None:
        return np.searchsorted(classes, np.asarray(y)).astype(float)
    return [np.searchsorted(classes, np.asarray(part)).astype(float) for part in y]


def weights_name(model: Predictor) -> str | None:
    """How a model's fit calls the sample weights; None where it takes none. Pipelines hand them to their last step."""
    parameters = inspect.signature(model.fit).parameters
    if "sample_weight" in parameters:
        return "sample_weight"
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    inside = parameters_of(model, deep=False)
    if inside.get("steps"):
        step, last = inside["steps"][-1]
        inner = None if isinstance(last, str) else weights_name(last)
        return None if inner is None else f"{step}__{inner}"
    parts = [inside.get(name) for name in ("estimator", "regressor", "final_estimator")]
    parts += [part for _, part in inside.get("estimators", [])]  # of votes and stacks
    names = {weights_name(part) for part in parts if not (part is None or isinstance(part, str))}
    return "sample_weight" if names == {"sample_weight"} else None


def parameters_of(model: Predictor, deep: bool) -> dict[str, Any]:
    """A model's parameters by name, with those of the models in it; none where it does not tell."""
    return model.get_params(deep=deep) if hasattr(model, "get_params") else {}


def _states(model: Predictor) -> list[str]:
    """Names of the random states that are not given."""
    given = parameters_of(model, deep=True)
    return sorted(n for n, v in given.items() if (n == "random_state" or n.endswith("__random_state")) and v is None)


def _seeded(model: Predictor, state: int) -> Predictor:
    """A copy that is not fitted, with its open random states set."""
    from sklearn.base import clone

    fresh = clone(model, safe=False)
    names = _states(model)
    return fresh.set_params(**dict.fromkeys(names, state)) if names else fresh


def _fit(model: Predictor, X: np.ndarray, y: np.ndarray, weights: np.ndarray, copies: int) -> Predictor:
    """Fit with weights, or with as many copies of each row."""
    if (weights == 1).all():
        model.fit(X, y)
    elif (name := weights_name(model)) is not None:
        model.fit(X, y, **{name: weights})
    else:
        rows = np.repeat(np.arange(len(X)), copies_of(weights, copies))
        model.fit(X[rows], y[rows])
    return model


def copies_of(weights: np.ndarray, copies: int) -> np.ndarray:
    """How often each row is repeated: at most `copies` times the heaviest, others in proportion.

    As few copies as meet the weights exactly. Where none do, sums are rounded and not single counts, so that the total
    weight of many light rows is right.

    >>> copies_of(np.array([1.0, 1.0, 1.5, 1.5]), 10)
    array([2, 2, 3, 3])
    >>> copies_of(np.array([1.0, 0.25, 0.25, 0.25, 0.25]), 2)
    array([2, 0, 1, 0, 1])
    """
    share = weights / weights.max()
    for most in range(1, copies + 1):
        counts = np.round(most * share)
        if np.abs(counts - most * share).max() < 1e-9 * most:
            return counts.astype(int)
    total = np.concatenate([[0.0], np.cumsum(copies * share)])
    return np.diff(np.floor(total + 0.5 - 1e-9).astype(int))


def _only_class(X: np.ndarray, y: np.ndarray) -> Predictor:
    """A model that has seen one class only; many models refuse to be fitted to it."""
    from sklearn.dummy import DummyClassifier

    return DummyClassifier(strategy="prior").fit(X[:1], y[:1])
