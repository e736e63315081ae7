"""Which rows does `fp.baselines` fit, choose by and test on? A table sorted by agent, and its splits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax

from fedpoint.core.arrays import told_apart
from fedpoint.core.errors import FedpointError, check_count, nearest
from fedpoint.core.numbers import counted
from fedpoint.core.types import Setting
from fedpoint.problems.base import by_agent, check_finite
from fedpoint.problems.logistic_task import LogisticTask
from fedpoint.problems.penalised import Penalised
from fedpoint.problems.ridge_task import RidgeTask

if TYPE_CHECKING:
    from fedpoint.data.encoding import Cells

CLASSES = 20  # whole numbers of at most so many values are classes

Mask = ArrayLike | Callable[[int], ArrayLike]  # rows, or a function of the seed that returns them
Inner = list[tuple[np.ndarray, np.ndarray]]  # pairs (fit, check) of masks


class GroupedRows:
    """Rows, sorted by agent: whose is which."""

    def __init__(self, groups: ArrayLike, count: int):
        from fedpoint.data.preprocess import check_groups  # loads scikit-learn

        self.order, self.counts, self.names = by_agent(check_groups(_given(groups), count), count)
        if len(self.names) < 2:
            raise FedpointError(f"all rows belong to {self.names[0]}: there are no agents to compare")
        self.agent = np.repeat(np.arange(len(self.counts)), self.counts)

    def check_fitted(self, fit: np.ndarray) -> None:
        """Refuse a split, a mask in sorted order, that leaves an agent nothing to fit."""
        lacking = np.flatnonzero(np.bincount(self.agent[fit], minlength=len(self.names)) == 0)
        if len(lacking):
            more = f" and {counted(len(lacking) - 1, 'more agent')}" if len(lacking) > 1 else ""
            raise FedpointError(f"no rows are left to fit for agent {self.names[lacking[0]]}{more}: hold out fewer")


class GroupedTable(GroupedRows):
    """A table, and what is predicted: numbers, or labels 0, 1, ... of so many `classes`."""

    def __init__(self, X: Cells, y: ArrayLike, groups: ArrayLike, task: str | None):
        from fedpoint.data.encoding import table_numbers  # loads scikit-learn

        y = np.asarray(y)
        numbers = table_numbers(X, _given(groups))
        if y.shape != (len(numbers),):
            raise FedpointError(
                f"X of shape {numbers.shape} and y of shape {y.shape}: give (rows, columns) and (rows,)"
            )
        super().__init__(groups, len(y))
        self.X = numbers[self.order]
        self.classes, self.target = _target(y[self.order], task)

    @property
    def size(self) -> int:
        """Numbers of a model."""
        return (self.X.shape[1] + 1) * (self.classes if self.classes > 2 else 1)

    def case(self, fit: np.ndarray, check: np.ndarray) -> Holdout:
        """Rows to fit and to check, both as masks in sorted order."""
        self.check_fitted(fit)
        shift, spread = self.X[fit].mean(0), self.X[fit].std(0)
        spread[spread <= 1e-12 * np.abs(shift)] = 1.0  # a constant column: it becomes zero
        scaled = np.column_stack([np.ones(len(self.X)), (self.X - shift) / spread])
        target = self.target if self.classes else self.target - self.target[fit].mean()
        fitted, tested = (Rows(scaled[some], target[some], self.agent[some]) for some in (fit, check))
        return Holdout(fitted, tested, self.classes, len(self.names))


def _given(groups: ArrayLike) -> ArrayLike:
    if groups is None:
        raise FedpointError("groups: whose row is it? Give one agent's name a row")
    return groups


@dataclass(frozen=True)
class Rows:
    X: np.ndarray  # the first column is the constant
    target: np.ndarray
    agent: np.ndarray


@dataclass(frozen=True)
class Holdout:
    """Rows that are fitted, and others of the same agents to test the models on."""

    fitted: Rows
    tested: Rows
    classes: int  # 0 for numbers
    agents: int

    def task(self, ridge: float) -> Penalised:
        """Its loss has no ridge where everybody is predicted the mean, or the frequencies."""
        X, target, agent = self.fitted.X, self.fitted.target, self.fitted.agent
        each = np.full(X.shape[1], ridge)
        if not self.classes:
            return RidgeTask(X, target, each, groups=agent)
        return LogisticTask(X, target, each, agent, classes=range(self.classes), center=self._frequencies())

    def _frequencies(self) -> np.ndarray:
        n, C = len(self.fitted.target), self.classes
        often = np.bincount(self.fitted.target, minlength=C)
        share = np.log((often + 0.5) / (n + 0.5 * C))  # a class that is not among these rows is rare, not impossible
        constant = share[:, None] if C > 2 else share[1:] - share[:1]
        return np.concatenate([constant, np.zeros((*constant.shape[:-1], self.fitted.X.shape[1] - 1))], axis=-1)

    @property
    def curvature(self) -> np.ndarray:
        """(K,): the mean eigenvalue of each agent's Hessian at most, without the ridge."""
        steepest = {0: 1.0, 2: 0.25}.get(self.classes, 0.5)
        return steepest * _per_agent(self.fitted.agent, (self.fitted.X**2).mean(1), self.agents)

    def _scores(self, models: np.ndarray) -> np.ndarray:
        """(n, outputs): of the rows to test on, with their own agents' models (K, D)."""
        W = models.reshape(len(models), -1, self.tested.X.shape[1])
        scores = np.einsum("np,ncp->nc", self.tested.X, W[self.tested.agent])
        return np.column_stack([np.zeros(len(scores)), scores]) if self.classes == 2 else scores

    def errors(self, models: np.ndarray) -> np.ndarray:
        """(K,): the mean squared error or log loss of each agent's test rows; nan where it has none."""
        scores, target = self._scores(models), self.tested.target
        if not self.classes:
            return _per_agent(self.tested.agent, (scores[:, 0] - target) ** 2, self.agents)
        losses = -log_softmax(scores, axis=1)[np.arange(len(target)), target]
        return _per_agent(self.tested.agent, losses, self.agents)

    def accuracies(self, models: np.ndarray) -> np.ndarray:
        right = self._scores(models).argmax(1) == self.tested.target
        return _per_agent(self.tested.agent, right.astype(float), self.agents)


def _per_agent(agent: np.ndarray, values: np.ndarray, agents: int) -> np.ndarray:
    """(K,): means; nan where an agent has no row."""
    with np.errstate(invalid="ignore"):
        return np.bincount(agent, values, agents) / np.bincount(agent, minlength=agents)


@dataclass(frozen=True)
class Splits:
    """Which rows are tested on, which choose, and what an agent counts: see `fp.baselines`."""

    of_others: ClassVar[Mapping[str, str]] = {}  # options that are for other models, and for which

    seeds: int | Iterable[int] = 5
    held_out: float = 0.3
    split: Mask | None = None
    validation: Mask | None = None
    time: ArrayLike | None = None
    folds: int = 3
    weight: str = "agents"

    @classmethod
    def of_options(cls, options: Mapping[str, Setting]) -> Self:
        known = [f.name for f in fields(cls) if f.name not in cls.of_others]
        for name in options:
            if name in cls.of_others:
                raise FedpointError(f"{name}= is for {cls.of_others[name]}: leave it out")
            if name not in known:
                raise FedpointError(f"baselines has no {name!r}: {nearest(name, known)}")
        return cls(**options)

    def __post_init__(self) -> None:
        if self.weight not in ("agents", "rows"):
            raise FedpointError(f"unknown weight {self.weight!r}: {nearest(str(self.weight), ('agents', 'rows'))}")

    def weights(self, table: GroupedRows) -> np.ndarray:
        """(K,): what each agent counts in a mean."""
        return table.counts.astype(float) if self.weight == "rows" else np.ones(len(table.counts))

    def weighed(self, table: GroupedRows) -> str:
        """The same in words."""
        return counted(len(table.names), "agent") + (" by their rows" if self.weight == "rows" else "")

    def of(self, table: GroupedRows) -> list[tuple[np.ndarray, Inner]]:
        """For every seed the rows to test on, and pairs (fit, check) within the others; masks in sorted order."""
        check_count("folds", self.folds, 2)
        if self._by_time():
            return [_in_time(table, np.asarray(self.time), self.held_out)]
        return [self._one(table, seed) for seed in self._seeds()]

    def tests(self, table: GroupedRows) -> list[np.ndarray]:
        """The rows to test on alone."""
        if self._by_time():
            return [_in_time(table, np.asarray(self.time), self.held_out)[0]]
        return [self._test(table, seed, np.random.default_rng(seed)) for seed in self._seeds()]

    def _by_time(self) -> bool:
        if not 0 < self.held_out < 1:
            raise FedpointError(f"held_out: a share of rows between 0 and 1, got {self.held_out!r}")
        if self.time is not None and (self.split is not None or self.validation is not None):
            raise FedpointError("time says which rows are held out: give it, or split and validation")
        return self.time is not None

    def _seeds(self) -> list[int]:
        if isinstance(self.seeds, int | np.integer):
            check_count("seeds", self.seeds, 1)
            seeds = list(range(int(self.seeds)))
        else:
            seeds = list(self.seeds)
        if not seeds:
            raise FedpointError("seeds: give at least one")
        return seeds[:1] if self.split is not None and not callable(self.split) else seeds  # always the same rows

    def _one(self, table: GroupedRows, seed: int) -> tuple[np.ndarray, Inner]:
        rng = np.random.default_rng(seed)
        test = self._test(table, seed, rng)
        if self.validation is None:
            return test, _folds(table, ~test, self.folds, rng)
        check = _mask("validation", self.validation, seed, table)
        if (check & test).any():
            raise FedpointError("validation: rows that are tested on must not choose: the masks overlap")
        return test, [(~test & ~check, check)]

    def _test(self, table: GroupedRows, seed: int, rng: np.random.Generator) -> np.ndarray:
        return _drawn(table, rng, self.held_out) if self.split is None else _mask("split", self.split, seed, table)

    def describe(self, count: int) -> str:
        """How rows were held out, in `count` splits."""
        how = "given rows" if self.split is not None else f"{self.held_out:g} of each agent's rows"
        how = f"the last {how}" if self.time is not None else how
        return how + (f", {counted(count, 'split')}" if count > 1 else "")


def _in_time(table: GroupedRows, time: np.ndarray, share: float) -> tuple[np.ndarray, Inner]:
    """Each agent's last rows, and the last of those before them."""
    if time.shape != table.agent.shape:
        raise FedpointError(f"time: one for each of the {counted(len(table.agent), 'row')}; got shape {time.shape}")
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


def _drawn(table: GroupedRows, rng: np.random.Generator, share: float) -> np.ndarray:
    test = np.zeros(len(table.agent), bool)
    ends = np.cumsum(table.counts)
    for start, m in zip(ends - table.counts, table.counts, strict=True):
        if m > 1:
            test[start + rng.permutation(m)[: _some(m, share)]] = True
    if not test.any():
        raise FedpointError("every agent has a single row: none can be held out")
    return test


def _folds(table: GroupedRows, fit: np.ndarray, folds: int, rng: np.random.Generator) -> Inner:
    fold = np.full(len(table.agent), -1)
    for k in range(len(table.names)):
        rows = np.flatnonzero(fit & (table.agent == k))
        if len(rows) > 1:  # a single row is always fitted
            fold[rng.permutation(rows)] = (np.arange(len(rows)) + rng.integers(folds)) % folds
    pairs = [(fit & (fold != f), fold == f) for f in range(folds)]
    pairs = [pair for pair in pairs if pair[1].any()]
    if not pairs:
        raise FedpointError("every agent has a single training row: give validation=, or hold out fewer")
    return pairs


def _mask(name: str, given: Mask, seed: int, table: GroupedRows) -> np.ndarray:
    found = np.asarray(given(seed) if callable(given) else given)
    if found.dtype != bool or found.shape != table.agent.shape:
        raise FedpointError(
            f"{name}: a mask with True or False for each of the {counted(len(table.agent), 'row')}, or a function of "
            f"the seed that returns one; got {found.dtype} of shape {found.shape}"
        )
    if found.all() or not found.any():
        raise FedpointError(f"{name}: {'all' if found.all() else 'no'} rows are held out")
    return found[table.order]


def _target(y: np.ndarray, task: str | None) -> tuple[int, np.ndarray]:
    """How many classes (0: numbers), and the numbers or labels (n,)."""
    if task not in (None, "regression", "classification"):
        raise FedpointError(f"unknown task {task!r}: {nearest(str(task), ('regression', 'classification'))}")
    if y.dtype == object and all(isinstance(value, Real) for value in y):
        y = y.astype(float)
    number = y.dtype.kind in "iuf"
    if number:
        check_finite("y", y)
    classes, label, _ = told_apart("y", y)
    if task is None:
        few = len(classes) == 2 or (len(classes) <= CLASSES and number and (y == np.round(y)).all())
        task = "classification" if few or not number else "regression"
    if task == "regression":
        if not number and y.dtype != bool:
            raise FedpointError(f"y holds {y.dtype}, not numbers: regression needs numbers")
        return 0, y.astype(float)
    if len(classes) < 2:
        raise FedpointError(f"y holds one class only ({classes.tolist()[0]!r}): a classifier needs at least two")
    if len(classes) > len(y) / 2:
        raise FedpointError(f"y holds {len(classes)} classes in {len(y)} rows: are they names, not classes?")
    return len(classes), label
