"""A table and a column that says whose row it is: read, checked, encoded and scaled federatedly, as a problem."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked, checked_methods
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.numbers import counted
from fedpoint.data.column import Column
from fedpoint.data.columns import BadTable
from fedpoint.data.dates import as_days, form_of, note_of
from fedpoint.data.partitions import partition as spread
from fedpoint.data.pieces import Asked, Piece, Source, check_distinct, choose, gather, is_pattern, pieces_of
from fedpoint.data.recipe import Feature, encode

if TYPE_CHECKING:  # reading a table needs no JAX
    from fedpoint.problems.base import Problem
    from fedpoint.problems.least_squares import LeastSquares
    from fedpoint.problems.logistic import Logistic
    from fedpoint.problems.rows import RowOptions

MODELS = ("linear", "logistic", "softmax")
MISSINGS = ("refuse", "mean", "drop")
CLASSES = 1000  # most classes of a target
CATEGORIES = 1000  # most categories of a column


class Rows(NamedTuple):
    """Rows X (n, d), their targets y (n,) and whose they are, groups (n,)."""

    X: np.ndarray
    y: np.ndarray
    groups: np.ndarray


@checked_methods
@dataclass(frozen=True)
class Table:
    """A table as it was read; `fp.data.read_table` makes it.

    Attributes:
        X: (n, d) the features, encoded and scaled.
        y: (n,) numbers or classes.
        groups: (n,) the agents' names.
        features: the names of X's columns.
        target: the name of y.
        classes: those of y; None where y is a number.
        held_out: rows that no agent trains on, or None.
        notes: what was done to the data, for the reader.
        recipe: how a file's columns become X.
    """

    X: np.ndarray
    y: np.ndarray
    groups: np.ndarray
    features: list[str]
    target: str
    classes: np.ndarray | None = None
    held_out: Rows | None = None
    notes: list[str] = field(default_factory=list)
    recipe: list[Feature] = field(default_factory=list)

    def problem(
        self,
        model: str | None = None,
        ridge: float | None = None,
        batch: int | None = None,
        sampling: str = "iid",
        weights: ArrayLike | None = None,
        intercept: bool = True,
    ) -> Logistic | LeastSquares:
        """A linear model of a number (least squares), or a logistic one of classes (softmax for more than two).

        Args:
            model: "linear" or "logistic"; default: by the target.
            ridge: adds ridge/2 |w|^2 to every agent's loss; default: 0.01 for classes (with the intercept) and 0 for
                numbers (without it).
            batch: rows of a sample; default: all of an agent's rows, so that fields are exact.
            sampling: how rows are drawn, as in `fp.problems.Logistic`.
            weights: (K,) p_k; default: n_k/n.
            intercept: whether there is one.
        """
        from fedpoint.problems import Logistic  # only here: reading a table needs no JAX

        options: RowOptions = {"weights": weights, "batch": batch, "sampling": sampling}
        if check_model(model, self.classes) == "linear":
            made: Logistic | LeastSquares = self._linear(ridge or 0.0, intercept, options)
            made.intercept = intercept
        else:
            ridge = 0.01 if ridge is None else ridge
            made = Logistic(self.X, self.y, self.groups, ridge, intercept, classes=self.classes, **options)
        made.columns = [feature.plain() for feature in self.recipe]
        made.notes = self.notes
        return made

    def _linear(self, ridge: float, intercept: bool, options: RowOptions) -> LeastSquares:
        from fedpoint.problems.least_squares import LeastSquares
        from fedpoint.problems.ridge_task import RidgeTask

        A = with_ones(self.X) if intercept else self.X
        if not ridge:
            return LeastSquares(A, self.y, mean=True, groups=self.groups, **options)
        if options["sampling"] != "iid":
            raise FedpointError(f'least squares with a ridge cannot sample by "{options["sampling"]}": use "iid"')
        penalty = np.full(A.shape[1], float(ridge))
        penalty[len(self.features) :] = 0.0  # not the intercept
        return RidgeTask(A, self.y, penalty, options["weights"], self.groups, batch=options["batch"])

    def evaluation(self, problem: Problem) -> Rows | None:
        """The held-out rows as `fp.run(..., evaluate=)` takes them for a problem of this table.

        Args:
            problem: what `problem` returned.
        """
        if self.held_out is None:
            return None
        ones = self.classes is None and problem.intercept
        return self.held_out._replace(X=with_ones(self.held_out.X)) if ones else self.held_out

    def __repr__(self) -> str:
        kind = "a number" if self.classes is None else counted(len(self.classes), "class")
        out = "" if self.held_out is None else f", {len(self.held_out.y)} held out"
        agents = len(np.unique(self.groups))
        few = ", ".join(self.features[:4]) + (f" and {len(self.features) - 4} more" if len(self.features) > 4 else "")
        return f"<{counted(len(self.y), 'row')} of {counted(agents, 'agent')}{out}: {self.target} ({kind}) by {few}>"


def with_ones(X: np.ndarray) -> np.ndarray:
    return np.column_stack([X, np.ones(len(X))])


def check_model(model: str | None, classes: np.ndarray | None) -> str:
    if model is not None and model not in MODELS:
        raise FedpointError(f"unknown model {model!r}: {nearest(model, MODELS)}")
    if model is None:
        return "linear" if classes is None else "logistic"
    if (model == "linear") != (classes is None):
        kind = "a number" if classes is None else f"one of {counted(len(classes), 'class')}"
        raise FedpointError(f"the table was read with a target that is {kind}: read it with model={model!r}")
    return model


# Reading.


class ReadOptions(TypedDict):
    """The options of `read_table`, which says what they mean."""

    features: NotRequired[Sequence[str] | None]
    leave_out: NotRequired[Sequence[str]]
    categorical: NotRequired[Sequence[str]]
    missing: NotRequired[str]
    scale: NotRequired[bool]
    held_out: NotRequired[float]
    seed: NotRequired[int]
    separator: NotRequired[str]


@dataclass(frozen=True)
class _Reading:
    """Their defaults."""

    features: Sequence[str] | None = None
    leave_out: Sequence[str] = ()
    categorical: Sequence[str] = ()
    missing: str = "refuse"
    scale: bool = True
    held_out: float = 0.0
    seed: int = 0
    separator: str = ","


@checked
def read_table(
    source: Source,
    target: str,
    agent: str | None = None,
    *,
    model: str | None = None,
    partition: Mapping[str, Any] | None = None,
    **options: Unpack[ReadOptions],
) -> Table:
    """A table from a CSV or Parquet file, from several, or from columns in memory.

    Args:
        source: a path; a list of paths or a pattern ("sites/*.csv"): one file per agent, called by the file's name,
            unless `agent` is given; or a mapping from names to columns (a pandas DataFrame is one).
        target: the column to predict.
        agent: the column that says whose row it is.
        model: "linear" for a number, "logistic" (or "softmax") for classes. By default classes where the target holds
            words, or two whole numbers.
        partition: instead of `agent`, for experiments: {"kind": "dirichlet", "agents": 100, "alpha": 0.1}; see
            `fp.data.partition`.
        options: the arguments below, by name.
        features: the columns to use; default: all but those in `leave_out`.
        leave_out: columns that are not used.
        categorical: columns of numbers or dates that are names in fact. Columns of words are categorical by themselves,
            unless the words are dates: these become days since 1970-01-01, and a note says so.
        missing: "refuse" cells without a value, "drop" their rows, or fill in the "mean" of all agents (the most
            frequent category), computed federatedly. A missing target is never filled in.
        scale: columns of numbers to mean 0 and variance 1, from the agents' sums.
        held_out: the share of each agent's rows that nobody trains on.
        seed: of the draw of held-out rows.
        separator: of a CSV file's cells.

    Everything that is estimated (means, variances, categories) is estimated from training rows, federatedly. All
    mistakes of a file are reported at once, with row (below the header, from 1) and column.

    >>> table = read_table({"x": [1.0, 2.0, 3.0, 5.0], "y": [1.0, 2.0, 3.0, 5.5], "site": list("aabb")}, "y", "site")
    >>> table
    <4 rows of 2 agents: y (a number) by x>
    """
    how = _Reading(**options)
    _check_choices(model, how.missing, how.held_out)
    natural = partition is None or partition.get("kind") == "natural"
    pieces = pieces_of(source, how.separator)
    by_file = not isinstance(source, Mapping) and (not isinstance(source, str | os.PathLike) or is_pattern(source))
    if agent is not None and not natural:
        raise BadTable([("agent", "a partition assigns rows to agents: leave out either agent or the partition")])
    if natural and agent is None and not by_file:
        raise BadTable(
            [("agent", "which agent does a row belong to? Give agent=, the column that says so, or a partition")]
        )
    if natural and agent is None:
        check_distinct(pieces)
    chosen = choose(pieces, Asked(target, agent, how.features, how.leave_out, how.categorical))
    columns, whose, notes = gather(pieces, chosen, how.missing)
    y, classes = _target(columns.pop(target), target, model, notes)
    if natural:
        groups, code = _agents(whose)
    else:
        groups = code = _spread(y, partition or {})
    out = _held_out(code, y if classes is not None else None, how.held_out, how.seed)
    forms = {
        name: form for name in columns if name not in chosen.categorical and (form := form_of(name, columns[name]))
    }
    notes += [note_of(name, columns[name], form) for name, form in forms.items()]
    X, X_out, recipe = _encoded(columns, forms, ~out, code, how, notes)
    held = Rows(X_out, y[out], groups[out]) if out.any() else None
    names = [name for feature in recipe for name in feature.names]
    return Table(X, y[~out], groups[~out], names, target, classes, held, notes, recipe)


def read_own(
    path: str | os.PathLike,
    target: str | None,
    features: Sequence[str],
    categorical: Sequence[str] = (),
    missing: str = "refuse",
    separator: str = ",",
) -> dict[str, Column]:
    """The columns of one agent's own file, target included: checked, rows with gaps dropped where that was asked for,
    and not encoded yet: that takes what the others have."""
    pieces = [Piece(Path(path).stem, Path(path), separator=separator)]
    return gather(pieces, choose(pieces, Asked(target, None, features, (), categorical)), missing)[0]


def rows_without_gaps(
    path: str | os.PathLike, names: Sequence[str], categorical: Sequence[str] = (), separator: str = ","
) -> np.ndarray:
    """(n,): the rows of an agent's own file in which all these columns have a value."""
    columns, _ = Piece(Path(path).stem, Path(path), separator=separator).read(list(names), list(categorical), [])
    return ~np.any([column.missing for column in columns.values()], axis=0)


def _check_choices(model: str | None, missing: str, held_out: float) -> None:
    for name, value, known in (("model", model, MODELS), ("missing", missing, MISSINGS)):
        if value is not None and value not in known:
            raise BadTable([(name, f"unknown {name} {value!r}: {nearest(str(value), known)}")])
    if not 0 <= held_out < 1:
        raise BadTable([("held_out", f"held_out must be a share of the rows, from 0 to below 1; got {held_out}")])


# What is made of it.


def _target(column: Column, name: str, model: str | None, notes: list[str]) -> tuple[np.ndarray, np.ndarray | None]:
    """The target as numbers, or as classes and which there are."""
    if column.words is not None:
        if model == "linear":
            raise BadTable([("target", f"{name!r} holds words ({column.text(0)!r}): a linear model needs numbers")])
        y = np.array(column.words)[column.values]
        found = np.unique(y)
    else:
        y, found = column.values, np.unique(column.values)
        whole = bool((found == np.round(found)).all() and np.abs(found).max() < 2**53)
        if model == "linear" or (model is None and not (whole and len(found) == 2)):
            return y, None
        if whole:
            y, found = y.astype(np.int64), found.astype(np.int64)
        if model is None:
            notes.append(f"{name!r} holds two numbers, {found[0]} and {found[1]}: taken as classes")
    if len(found) < 2:
        raise BadTable([("target", f"{name!r} is always {found[0]}: a classifier needs at least two classes")])
    if len(found) > min(CLASSES, max(len(y) // 2, 2)):
        raise BadTable([("target", f"{name!r} has {len(found)} distinct values: too many for classes")])
    return y, found


def _agents(whose: Column) -> tuple[np.ndarray, np.ndarray]:
    """(n,): the agents' names, whole numbers where all are; and their numbers in sorted order."""
    names = np.array(whose.words)
    if all(name.isdecimal() and str(int(name)) == name and len(name) < 18 for name in whose.words or []):
        names = names.astype(np.int64)
    used = np.unique(whose.values)
    order = used[np.argsort(names[used])]
    rank = np.zeros(len(names), np.int64)
    rank[order] = np.arange(len(order))
    code = rank[whose.values]
    return names[order][code], code


def _spread(y: np.ndarray, partition: Mapping[str, Any]) -> np.ndarray:
    if not {"kind", "agents"} <= set(partition):
        raise BadTable([("partition", "a partition needs a kind and a number of agents")])
    try:
        return spread(y, **partition)
    except FedpointError as error:
        raise BadTable([("partition", str(error))]) from None


def _held_out(code: np.ndarray, labels: np.ndarray | None, share: float, seed: int) -> np.ndarray:
    """(n,): which rows are held out: a share of each agent's, rounded down, and of no class the only ones.

    Drawn in the order of agents, so that it does not matter how files are cut.
    """
    out = np.zeros(len(code), bool)
    if share == 0:
        return out
    order = np.argsort(code, kind="stable")
    chance = np.empty(len(code))
    chance[order] = np.random.default_rng([seed, 2]).random(len(code))
    order = np.lexsort((chance, code))
    counts = np.bincount(code)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    out[order] = np.arange(len(code)) - first < np.floor(share * counts + 1e-9)[code[order]]
    if labels is not None:
        for lost in np.setdiff1d(labels[out], labels[~out]):
            out[np.flatnonzero(labels == lost)[0]] = False
    return out


def _encoded(
    columns: dict[str, Column],
    forms: Mapping[str, str],
    train: np.ndarray,
    code: np.ndarray,
    how: _Reading,
    notes: list[str],
) -> tuple[np.ndarray, np.ndarray, list[Feature]]:
    """X of the training rows and of the others, and how they were made: everything estimated from training rows."""
    from fedpoint.data.preprocess import federated_moments  # only here: it loads scikit-learn

    own = code[train]
    every = bool(train.all())
    recipe, inside, outside = [], {}, {}
    for name in list(columns):
        column = columns.pop(name)
        inside[name] = column if every else column.take(train)
        outside[name] = column.take(~train)
        feature = _feature(name, inside[name], forms.get(name), own, how.missing, notes)
        recipe += [] if feature is None else [feature]
    recipe = [feature for feature in recipe if feature.names]
    if not recipe:
        raise BadTable([("features", "every feature is constant: there is nothing to learn from")])
    X, _ = encode(recipe, inside)
    inside.clear()
    moments = federated_moments(X, own)
    numeric = np.array([feature.categories is None for feature in recipe for _ in feature.names])
    names = [name for feature in recipe for name in feature.names]
    constant = moments.constant & numeric
    if constant.any():
        gone = [name for name, c in zip(names, constant, strict=True) if c]
        notes.append(f"constant, and left out: {', '.join(gone)}")
        if constant.all():
            raise BadTable([("features", "every feature is constant: there is nothing to learn from")])
        X = X[:, ~constant]
        recipe = [feature for feature in recipe if feature.categories is not None or feature.column not in gone]
    mean, width = (
        np.where(numeric & how.scale, a, b)[~constant] for a, b in ((moments.mean, 0.0), (moments.scale, 1.0))
    )
    X -= mean
    X /= width
    at = np.cumsum([0, *(len(feature.names) for feature in recipe)])
    recipe = [
        replace(f, mean=float(mean[i]), scale=float(width[i])) if f.categories is None else f
        for f, i in zip(recipe, at, strict=False)
    ]
    X_out, unknown = encode(recipe, outside)
    if unknown:
        notes.append(
            f"{counted(unknown, 'held-out cell')} of categories that no training row has: counted as the first"
        )
    return X, X_out, recipe


def _feature(
    name: str, column: Column, dates: str | None, own: np.ndarray, missing: str, notes: list[str]
) -> Feature | None:
    """How a column will be written, not yet scaled; None where no training row has a value."""
    from fedpoint.data.preprocess import FederatedEncoder, federated_moments

    there = ~column.missing
    gaps = int((~there).sum())
    if not there.any():
        notes.append(f"without any value, and left out: {name}")
        return None
    if gaps:
        notes.append(f"{counted(gaps, 'missing cell')} of {name!r} filled in")
    column = column if dates is None else as_days(column, dates)
    if column.words is None:
        fill = None
        if missing == "mean":
            fill = float(federated_moments(column.values[there, None], own[there]).mean[0])
        return Feature(name, fill=fill, dates=dates)
    # An agent sends the set of its categories: the encoder sees each once for each agent that has it.
    pairs = np.unique(own[there] * len(column.words) + column.values[there])
    words = np.array(column.words, object)
    sent = words[pairs % len(words)][:, None]
    categories = FederatedEncoder().fit(sent, groups=pairs // len(words)).categories_[0].tolist()
    if len(categories) > CATEGORIES:
        raise BadTable([("features", f"column {name!r} has {len(categories)} categories, too many: leave it out")])
    if len(categories) == 1:
        notes.append(f"constant, and left out: {name}")
    counts = np.bincount(column.values[there], minlength=len(words))
    most = words[int(counts.argmax())] if missing == "mean" else None
    return Feature(name, categories=categories, fill=most)
