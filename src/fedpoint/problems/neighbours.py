"""Nearest neighbours with weights on the rows, which scikit-learn's take no account of."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import Pipeline

from fedpoint.problems.any_model import Predictor, parameters_of


class _Weighted(BaseEstimator):
    """The nearest rows that weigh k together, each with its weight; of the last distance only the share that is left.

    k stays a number of rows of weight 1: rows of weight 0 might as well not be there, a row of weight 2 is the same row
    twice. So a heavier row takes more of the neighbourhood, as it would if rows were repeated and k with them; repeated
    rows with k as it was would make neighbourhoods smaller. With equal weights it is the model itself.
    """

    def __init__(self, model: KNeighborsRegressor | KNeighborsClassifier):
        self.model = model

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        X, y = np.asarray(X, dtype=float), np.asarray(y)
        weight = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
        some = weight > 0
        self.model_ = clone(self.model).fit(X[some], y[some])
        self.equal_, self.weight_ = bool((weight[some] == 1).all()), weight[some]
        self.rows_ = int(some.sum())
        self.values_ = self._values(y[some])
        return self

    def _values(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(y, dtype=float)[:, None]

    def _average(self, X: ArrayLike) -> np.ndarray:
        """(n, columns of the values): the weighted mean over each row's neighbourhood."""
        distance, index, share = self._neighbourhood(X)
        near = share * self.weight_[index] * self._kernel(distance, share)
        return np.einsum("qn,qnc->qc", near / near.sum(1, keepdims=True), self.values_[index])

    def _neighbourhood(self, X: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Distances and numbers of the rows nearby, and how much of each is in the neighbourhood."""
        k, count = float(self.model_.n_neighbors), min(2 * self.model_.n_neighbors, self.rows_)
        while True:
            distance, index = self.model_.kneighbors(X, n_neighbors=count)
            before, after = _mass(distance, self.weight_[index])
            if count == self.rows_ or (before[:, -1] >= k).all():  # all of the last distance is there too
                return distance, index, np.clip((k - before) / (after - before), 0.0, 1.0)
            count = min(2 * count, self.rows_)

    def _kernel(self, distance: np.ndarray, share: np.ndarray) -> np.ndarray:
        """The model's own `weights`, by distance."""
        kind = self.model_.weights
        if callable(kind):
            return kind(distance)
        if kind != "distance":
            return np.ones_like(distance)
        here = (distance == 0) & (share > 0)
        with np.errstate(divide="ignore"):
            return np.where(here.any(1, keepdims=True), here, 1.0 / distance)


def _mass(distance: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weight of all rows that are nearer than each row, and with those that are as near as it."""
    total = np.cumsum(weight, axis=1)
    farther = np.diff(distance, axis=1) > 0
    first = np.pad(farther, ((0, 0), (1, 0)), constant_values=True)
    last = np.pad(farther, ((0, 0), (0, 1)), constant_values=True)
    before = np.maximum.accumulate(np.where(first, total - weight, 0.0), axis=1)
    after = np.minimum.accumulate(np.where(last, total, np.inf)[:, ::-1], axis=1)[:, ::-1]
    return before, after


class WeightedNeighborsRegressor(RegressorMixin, _Weighted):
    """`KNeighborsRegressor` with sample weights.

    >>> near = WeightedNeighborsRegressor(KNeighborsRegressor(n_neighbors=2))
    >>> X, y = [[0.0], [1.0], [2.0]], [0.0, 3.0, 9.0]
    >>> near.fit(X, y).predict([[0.1]])  # the mean of 0 and 3
    array([1.5])
    >>> near.fit(X, y, sample_weight=[1.0, 0.5, 1.0]).predict([[0.1]])  # a half of 3 and a half of 9 are left
    array([3.])
    """

    def predict(self, X: ArrayLike) -> np.ndarray:
        return self.model_.predict(X) if self.equal_ else self._average(X)[:, 0]


class WeightedNeighborsClassifier(ClassifierMixin, _Weighted):
    """`KNeighborsClassifier` with sample weights."""

    def _values(self, y: np.ndarray) -> np.ndarray:
        self.classes_ = self.model_.classes_
        return (y[:, None] == self.classes_[None, :]).astype(float)

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        return self.model_.predict_proba(X) if self.equal_ else self._average(X)

    def predict(self, X: ArrayLike) -> np.ndarray:
        return self.classes_[self.predict_proba(X).argmax(1)]


def weighted(model: Predictor) -> Predictor:
    """Nearest neighbours with weights, also as the last step of a pipeline; every other model as it is."""
    if isinstance(model, KNeighborsRegressor):
        return WeightedNeighborsRegressor(model)
    if isinstance(model, KNeighborsClassifier):
        return WeightedNeighborsClassifier(model)
    steps = model.steps if isinstance(model, Pipeline) else None
    if steps and (last := weighted(steps[-1][1])) is not steps[-1][1]:
        return clone(model).set_params(**{steps[-1][0]: last})
    return model


def inside(model: Predictor) -> bool:
    """Whether there are plain nearest neighbours somewhere in a model of models."""
    parts = parameters_of(model, deep=True).values()
    return any(isinstance(p, KNeighborsRegressor | KNeighborsClassifier) for p in parts)
