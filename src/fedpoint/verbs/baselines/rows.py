"""Which rows does `fp.baselines` fit, choose by and test on? A table sorted by agent, and its splits."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from fedpoint.core.errors import FedpointError, nearest
from fedpoint.problems.base import by_agent, check_finite
from fedpoint.verbs.baselines.fit import Family, Rows

CLASSES = 20  # whole numbers of at most so many values are classes


class Table:
    """The rows, sorted by agent, and what is predicted."""

    def __init__(self, X: Any, y: Any, groups: Any, task: str | None):
        X, y = np.asarray(X), np.asarray(y)
        if X.ndim != 2 or y.shape != (len(X),):
            raise FedpointError(f"X of shape {X.shape} and y of shape {y.shape}: give (rows, columns) and (rows,)")
        if X.dtype == object:
            try:
                X = X.astype(float)
            except (TypeError, ValueError) as error:
                raise FedpointError(f"X holds what is no number ({error}): encode words first") from None
        check_finite("X", X)
        if groups is None:
            raise FedpointError("groups: whose row is it? Give one agent's name a row")
        try:
            self.order, self.counts, self.names = by_agent(groups, len(X))
        except TypeError:
            raise FedpointError("groups holds names of different kinds, or none: give one agent's name a row") from None
        if len(self.names) < 2:
            raise FedpointError(f"all rows belong to {self.names[0]}: there are no agents to compare")
        self.X = X[self.order].astype(float)
        self.agent = np.repeat(np.arange(len(self.counts)), self.counts)
        self.family, self.target = _target(y[self.order], task)

    def case(self, fit: np.ndarray, check: np.ndarray) -> Case:
        """Rows to fit and to check, both as masks in sorted order."""
        lacking = np.flatnonzero(np.bincount(self.agent[fit], minlength=len(self.names)) == 0)
        if len(lacking):
            more = f" and {len(lacking) - 1} more agents" if len(lacking) > 1 else ""
            raise FedpointError(f"no rows are left to fit for agent {self.names[lacking[0]]}{more}: hold out fewer")
        X, target = self.X[fit], self.target[fit]
        shift, spread = X.mean(0), X.std(0)
        spread[spread <= 1e-12 * np.abs(shift)] = 1.0  # a constant column: it becomes zero
        scaled = np.column_stack([np.ones(len(self.X)), (self.X - shift) / spread])
        rows = Rows(
            scaled[fit],
            target,
            np.bincount(self.agent[fit], minlength=len(self.names)),
            self.family,
            self._offset(target),
        )
        return Case(rows, scaled[check], self.target[check], self.agent[check])

    def _offset(self, target: np.ndarray) -> np.ndarray:
        mean = target.mean(0)
        if self.family.kind == "regression":
            return mean
        n, C = len(target), max(2, self.family.outputs)
        share = (n * mean + 0.5) / (n + 0.5 * C)  # a class that is not among these rows is rare, not impossible
        return np.log(share) if self.family.kind == "softmax" else np.log(share / (1 - share))


@dataclass(frozen=True)
class Case:
    """Rows that are fitted, and others of the same agents to test the models on."""

    rows: Rows
    X: np.ndarray
    target: np.ndarray
    agent: np.ndarray

    def _scores(self, models: np.ndarray) -> np.ndarray:
        W = models.reshape(len(models), -1, self.X.shape[1])
        return np.einsum("np,ncp->nc", self.X, W[self.agent]) + self.rows.offset

    def _per_agent(self, values: np.ndarray) -> np.ndarray:
        K = len(self.rows.counts)
        with np.errstate(invalid="ignore"):
            return np.bincount(self.agent, values, K) / np.bincount(self.agent, minlength=K)

    def errors(self, models: np.ndarray) -> np.ndarray:
        """(K,): the mean squared error or log loss of each agent's test rows; nan where it has none."""
        family = self.rows.family
        losses = family.losses(self._scores(models), self.target)
        return self._per_agent(2 * losses if family.kind == "regression" else losses)

    def accuracies(self, models: np.ndarray) -> np.ndarray:
        scores = self._scores(models)
        if self.rows.family.outputs > 1:
            right = scores.argmax(1) == self.target.argmax(1)
        else:
            right = (scores[:, 0] > 0) == (self.target[:, 0] > 0.5)
        return self._per_agent(right.astype(float))


def splits(
    table: Table, seeds: Any, held_out: Any, split: Any, validation: Any, time: Any, folds: int
) -> list[tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]]:
    """For every seed the rows to test on, and pairs (fit, check) within the others; masks in sorted order."""
    if isinstance(seeds, int | np.integer):
        check_whole("seeds", seeds, 1)
        seeds = range(int(seeds))
    seeds = list(seeds)
    if not seeds:
        raise FedpointError("seeds: give at least one")
    if not 0 < held_out < 1:
        raise FedpointError(f"held_out: a share of rows between 0 and 1, got {held_out!r}")
    if time is not None:
        if split is not None or validation is not None:
            raise FedpointError("time says which rows are held out: give it, or split and validation")
        return [_in_time(table, np.asarray(time), held_out)]
    if split is not None and not callable(split):
        seeds = seeds[:1]  # always the same rows
    plan = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        test = _drawn(table, rng, held_out) if split is None else _mask("split", split, seed, table)
        fit = ~test
        if validation is None:
            inner = _folds(table, fit, folds, rng)
        else:
            check = _mask("validation", validation, seed, table)
            if (check & test).any():
                raise FedpointError("validation: rows that are tested on must not choose: the masks overlap")
            inner = [(fit & ~check, check)]
        plan.append((test, inner))
    return plan


def _in_time(table: Table, time: np.ndarray, share: float) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """Each agent's last rows, and the last of those before them."""
    if time.shape != table.agent.shape:
        raise FedpointError(f"time: one for each of the {len(table.agent)} rows; got shape {time.shape}")
    if time.dtype.kind in "fc":
        check_finite("time", time)
    try:
        order = np.lexsort((time[table.order], table.agent))
    except TypeError:
        raise FedpointError("time holds what cannot be put in order") from None
    test, check = np.zeros(len(order), bool), np.zeros(len(order), bool)
    for end, m in zip(np.cumsum(table.counts), table.counts, strict=True):
        last = _some(m, share)
        test[order[end - last : end]] = True
        check[order[end - last - _some(m - last, share) : end - last]] = True
    if not check.any():
        raise FedpointError("no agent has a row to choose by before those that are held out: give split= instead")
    return test, [(~test & ~check, check)]


def _some(rows: int, share: float) -> int:
    """How many of an agent's rows are held out: at least one, and one is left."""
    return int(np.clip(round(share * rows), 1, rows - 1)) if rows > 1 else 0


def _drawn(table: Table, rng: np.random.Generator, share: float) -> np.ndarray:
    test = np.zeros(len(table.X), bool)
    ends = np.cumsum(table.counts)
    for start, m in zip(ends - table.counts, table.counts, strict=True):
        if m > 1:
            test[start + rng.permutation(m)[: _some(m, share)]] = True
    if not test.any():
        raise FedpointError("every agent has a single row: none can be held out")
    return test


def _folds(table: Table, fit: np.ndarray, folds: int, rng: np.random.Generator) -> list:
    fold = np.full(len(table.X), -1)
    for k in range(len(table.names)):
        rows = np.flatnonzero(fit & (table.agent == k))
        if len(rows) > 1:  # a single row is always fitted
            fold[rng.permutation(rows)] = (np.arange(len(rows)) + rng.integers(folds)) % folds
    pairs = [(fit & (fold != f), fold == f) for f in range(folds)]
    pairs = [pair for pair in pairs if pair[1].any()]
    if not pairs:
        raise FedpointError("every agent has a single training row: give validation=, or hold out fewer")
    return pairs


def _mask(name: str, given: Any, seed: int, table: Table) -> np.ndarray:
    found = np.asarray(given(seed) if callable(given) else given)
    if found.dtype != bool or found.shape != table.agent.shape:
        raise FedpointError(
            f"{name}: a mask with True or False for each of the {len(table.agent)} rows, or a function of the seed "
            f"that returns one; got {found.dtype} of shape {found.shape}"
        )
    if found.all() or not found.any():
        raise FedpointError(f"{name}: {'all' if found.all() else 'no'} rows are held out")
    return found[table.order]


def _target(y: np.ndarray, task: str | None) -> tuple[Family, np.ndarray]:
    """What is predicted, and the targets (n, outputs)."""
    if task not in (None, "regression", "classification"):
        raise FedpointError(f"unknown task {task!r}: {nearest(str(task), ('regression', 'classification'))}")
    if y.dtype == object and all(isinstance(value, Real) for value in y):
        y = y.astype(float)
    number = y.dtype.kind in "iuf"
    if number:
        check_finite("y", y)
    try:
        classes, label = np.unique(y, return_inverse=True)
    except TypeError:
        raise FedpointError("y holds labels of different kinds: use numbers or words, not both") from None
    if task is None:
        few = len(classes) == 2 or (len(classes) <= CLASSES and number and (y == np.round(y)).all())
        task = "classification" if few or not number else "regression"
    if task == "regression":
        if not number and y.dtype != bool:
            raise FedpointError(f"y holds {y.dtype}, not numbers: there is no regression")
        return Family("regression"), y.astype(float)[:, None]
    if len(classes) < 2:
        raise FedpointError(f"y holds one class only ({classes[0]!r}): there is nothing to tell apart")
    if len(classes) > len(y) / 2:
        raise FedpointError(f"y holds {len(classes)} classes in {len(y)} rows: are they names, not classes?")
    if len(classes) == 2:
        return Family("binary"), label.astype(float)[:, None]
    return Family("softmax", len(classes)), np.eye(len(classes))[label]


def check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise FedpointError(f"{name} must be a whole number, at least {least}; got {value!r}")
