"""What do all estimators do? Read a table and whose rows they are, and tell of each agent by its name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.validation import check_is_fitted

from fedpoint.core.arguments import check_names, checked
from fedpoint.core.arrays import array_of
from fedpoint.core.errors import FedpointError, notify
from fedpoint.core.numbers import counted
from fedpoint.core.types import Plain
from fedpoint.data.encoding import Cells, Columns
from fedpoint.data.preprocess import check_groups
from fedpoint.estimators.table import Coordinates, read_fit
from fedpoint.estimators.weights import ClassWeight, Label, check_sample_weight, class_weights
from fedpoint.metrics import Fairness, fairness
from fedpoint.results.predictor import Predictor

RandomState: TypeAlias = int | np.random.RandomState | None


class OneAgentWarning(UserWarning):
    """fit was called without `groups`: all rows belong to one agent, and nothing is federated."""


ONE_AGENT = (
    "fit got no groups: all {} rows belong to one agent, so this is an ordinary pooled fit, not a federated one. Say "
    "whose row it is with fit(X, y, groups=...). cross_validate(..., groups=...) hands them to the splitter alone: "
    'give params={{"groups": ...}} as well. Searches and pipelines hand them to fit with '
    "sklearn.set_config(enable_metadata_routing=True) and the estimator's .set_fit_request(groups=True)"
)


class FitRows(NamedTuple):
    """Numbers (n, d), targets (n,), whose rows they are (n,), and what each counts; None where all count once."""

    X: np.ndarray
    y: np.ndarray
    agents: np.ndarray
    weight: np.ndarray | None

    @property
    def total(self) -> float:
        """What all rows count together: n, where each counts once."""
        return float(len(self.X) if self.weight is None else self.weight.sum())

    def by_class(self, class_weight: ClassWeight, classes: np.ndarray) -> FitRows:
        """Rows with labels 0, 1, ... as y, weighted by their class as well."""
        if class_weight is None:
            return self
        own = np.ones(len(self.y)) if self.weight is None else self.weight
        return self._replace(weight=own * class_weights(class_weight, classes, self.y, own)[self.y])


def _rows_of(name: str, values: Cells | ArrayLike) -> int:
    found = array_of(name, cast(ArrayLike, values))  # a frame is one, too
    if found.ndim == 0:
        raise FedpointError(f"{name} must have a row for each sample, got {type(values).__name__}")
    return len(found)


@check_names
class TableEstimator(BaseEstimator):
    """An estimator of rows that belong to agents.

    Arguments of methods:
        X: (n, features) rows: an array or a data frame.
        y: (n,) their targets.
        groups: whose row it is: n names or numbers.
        sample_weight: (n,) what each row counts; default: 1.
    """

    fit_intercept: bool
    scale: bool
    categorical: str | Sequence[str] | None

    def _read(
        self, X: Cells, y: ArrayLike, groups: ArrayLike | None, sample_weight: ArrayLike | None, labels: bool
    ) -> FitRows:
        """The rows that count."""
        weight = None if sample_weight is None else check_sample_weight(sample_weight, y)
        self._columns: Columns
        self._columns, numbers, target = read_fit(self, X, y, groups, labels, self.categorical, weight)
        if groups is None:
            notify(ONE_AGENT.format(len(numbers)), OneAgentWarning)
        names = np.zeros(len(numbers), int) if groups is None else check_groups(groups, len(numbers))
        rows = FitRows(numbers, target, names, weight)
        if weight is not None:
            rows = FitRows(*(part[weight > 0] for part in rows))  # type: ignore[index]
        self.agents_ = np.unique(rows.agents)
        self.feature_names_out_ = self._columns.names
        return rows

    def _place(self, rows: FitRows, shorten: bool, intercept: bool, ridge: float = 0.0) -> None:
        """Choose the coordinates in which the model is fitted: see `Coordinates`."""
        own = rows.X, rows.agents, rows.weight
        self._coordinates = Coordinates.of(*own, bool(self.scale), shorten, intercept, ridge)

    def _tell(self, losses: np.ndarray) -> None:
        """Note the losses of the agents, in the order of `agents_`."""
        self.agent_losses_: dict[Label, float] = dict(zip(self.agents_.tolist(), losses.tolist(), strict=True))

    @property
    def fairness_(self) -> Fairness:
        """Of the agents' losses, `agent_losses_`: variance, entropy, Jain's index, worst and best tenth."""
        check_is_fitted(self)
        return fairness(list(self.agent_losses_.values()))

    @abstractmethod
    def _described(self) -> tuple[dict[str, np.ndarray], dict[str, Plain]]:
        """The arrays of the model, and what a file says of it beside its columns; see `Predictor`."""

    def predictor(self) -> Predictor:
        """The model with how rows become predictions, as `fp.load` reads it from a file."""
        from fedpoint.store.statement import versions

        check_is_fitted(self)
        arrays, own = self._described()
        about = {
            "problem": type(self).__name__,
            "features": len(self._coordinates.width),
            "columns": [feature.plain() for feature in self._columns.recipe()],
            "versions": versions(),
            **own,
        }
        return Predictor(arrays, about, f"the {type(self).__name__}")

    @checked
    def export(self, path: str | Path) -> None:
        """Write the model as npz with a manifest, for `fedpoint predict` and `fp.load`: no rows, nothing pickled.

        Args:
            path: of the file.
        """
        from fedpoint.store.folder import export_model  # loads pydantic

        predictor = self.predictor()
        export_model(path, predictor.arrays, predictor.about)

    def _target(self) -> dict[str, Plain]:
        """What is predicted, for a file."""
        return {"predicts": "number", "classes": None}

    @abstractmethod
    def _score_agent(self, X: Cells, y: ArrayLike, groups: np.ndarray, sample_weight: np.ndarray | None) -> float:
        """The score of rows that all belong to one agent."""

    def agent_scores(
        self, X: Cells, y: ArrayLike, groups: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> dict[Label, float]:
        """`score` of every agent's rows, by the agents' names."""
        check_is_fitted(self)
        there, count = _rows_of("X", X), _rows_of("y", y)
        if there != count:
            raise FedpointError(f"X has {counted(there, 'row')}, y has {count}")
        weight = None if sample_weight is None else check_sample_weight(sample_weight, y)
        names = check_groups(groups, count)
        found = {}
        for name in np.unique(names).tolist():
            rows = np.flatnonzero(names == name)
            own = None if weight is None else weight[rows]
            found[name] = float(self._score_agent(_safe_indexing(X, rows), _safe_indexing(y, rows), names[rows], own))
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Without the rows: a saved model holds no data."""
        state = super().__getstate__().copy()
        return state | {"problem_": None} if "problem_" in state else state


class TableClassifier(ClassifierMixin, TableEstimator):
    """An estimator of classes."""

    class_weight: ClassWeight

    classes_: np.ndarray

    def _by_class(self, rows: FitRows) -> FitRows:
        """Note the classes; the rows with the numbers of theirs as y, weighted by them."""
        self.classes_, label = check_classes(rows.y)
        return rows._replace(y=label).by_class(self.class_weight, self.classes_)

    def _target(self) -> dict[str, Plain]:
        return {"predicts": "class", "classes": self.classes_.tolist()}


def joined(slopes: np.ndarray, constants: np.ndarray | float, intercept: bool) -> np.ndarray:
    """(..., d), or (..., d + 1) with the intercept last: a model as a file has it."""
    return np.concatenate([slopes, np.asarray(constants)[..., None]], axis=-1) if intercept else slopes


def seed_of(random_state: RandomState) -> int:
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


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
        raise FedpointError(f"y holds one class only ({classes.tolist()[0]!r}): a classifier needs at least two")
    return classes, label.ravel()


def check_penalty(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 <= value < np.inf:
        raise FedpointError(f"{name} must be a number, at least 0; got {value!r}")
    return float(value)


def inverse_penalty(C: float) -> float:
    if isinstance(C, bool) or not isinstance(C, int | float | np.number) or not C > 0:
        raise FedpointError(f"C must be a number above 0, or np.inf for no penalty; got {C!r}")
    return 1.0 / float(C)
