"""What does a study say of the sites' own files? Which columns, and what is made of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from fedpoint.config.kinds import Count, Kind, Positive, Variance
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.types import Data, Model
from fedpoint.data.column import Column
from fedpoint.data.recipe import Feature, encode
from fedpoint.data.tables import Table, read_own, rows_without_gaps
from fedpoint.federation.wire import Classes
from fedpoint.problems.base import Problem


def distinct(names: list[str]) -> list[str]:
    """Names, if there are some and none is there twice."""
    if not names or len(set(names)) < len(names):
        raise ValueError("must name at least one, and none twice")
    return names


class SiteTable(Kind):
    """Rows that stay where they are: every site's own file, of the same columns."""

    kind: str
    target: str | None
    features: Annotated[list[str], AfterValidator(distinct)]
    model: str
    categorical: list[str] = []
    missing: Literal["refuse", "mean", "drop"] = "refuse"
    scale: bool = True
    separator: Annotated[str, Field(min_length=1, max_length=1)] = ","
    ridge: Variance | None = None
    intercept: bool = True
    batch: Count | None = None
    sampling: Literal["iid", "shuffle"] = "iid"
    held_out: Annotated[float, Field(gt=0, le=0.5)] | str | None = None  # a share of rows, or a column of 0 and 1

    @model_validator(mode="after")
    def _columns(self) -> Self:
        if self.target in self.features:
            raise ValueError(f"{self.target!r} is the target: leave it out of features")
        if self.held_out is not None and self.held_out in (self.target, *self.features):
            raise ValueError(f"{self.held_out!r} says which rows are held out: it cannot be a feature or the target")
        if self.sampling == "shuffle" and self.batch is None:
            raise ValueError('sampling = "shuffle" needs batch')
        if self.sampling == "shuffle" and self.model == "linear" and self.ridge:
            raise ValueError('least squares with a ridge samples by "iid" only')
        return self

    @property
    def reads(self) -> list[str]:
        """All columns that are read of a file: the target, features, and the one that says which rows are held out."""
        more = [self.held_out] if isinstance(self.held_out, str) else []
        return [*([] if self.target is None else [self.target]), *self.features, *more]

    def rows_of(self, columns: Mapping[str, Column]) -> int:
        """How many rows a site has."""
        return len(columns[self.features[0]].values)

    @property
    def site_weights(self) -> list[float] | None:
        """What sites count for; None: as many as they have rows."""
        return None

    @property
    def of_classes(self) -> bool:
        """Whether the target is a class, which sites agree on."""
        return False

    def row_weights(self, columns: Mapping[str, Column]) -> np.ndarray | None:
        """(n,): what a site's rows count for; None: all alike."""
        return None

    def count_of(self, columns: Mapping[str, Column]) -> np.ndarray | None:
        """(n,): what is counted of the target, each of which needs rows enough; None: nothing is."""
        return None

    def cells_of(self, columns: Mapping[str, Column]) -> dict[str, int]:
        """How many rows are counted together beside those of a class or a category, by what they have in common."""
        return {}

    def design_of(self, columns: Mapping[str, Column], recipe: Sequence[Feature]) -> dict[str, np.ndarray]:
        """(n,) each: the columns that a formula makes; empty where features go in as they are."""
        return {}

    @property
    def placeholder(self) -> Model:
        """A model, where columns are not known yet."""
        return np.zeros(1)

    @abstractmethod
    def start(self, recipe: Sequence[Feature], classes: Classes) -> Model:
        """The model before the first round."""

    @abstractmethod
    def problem(
        self, sites: Sequence[Mapping[str, Column]], recipe: Sequence[Feature], classes: Classes, held_out: bool
    ) -> Problem:
        """The problem of the columns of some sites, each an agent. held_out: categories may be new."""

    def build(self) -> tuple[Problem, Data]:
        raise FedpointError("the rows of this problem are at the sites")

    def read(self, path: str | Path) -> dict[str, Column]:
        """The columns of one site's file, where it is; the one that says which rows are held out among them."""
        features = [name for name in self.reads if name != self.target]
        return read_own(path, self.target, features, self.categorical, self.missing, self.separator)

    @property
    def keeps_all(self) -> bool:
        """Whether no row of a file is left out because of what is in it."""
        return self.missing != "drop" and not isinstance(self.held_out, str)

    def kept(self, path: str | Path) -> np.ndarray:
        """(n,): the rows of a site's file that are trained on, as far as its columns decide that, and not luck."""
        found = rows_without_gaps(path, self.reads, self.categorical, self.separator)
        if self.missing != "drop":
            found = np.ones(len(found), bool)
        if isinstance(self.held_out, str):
            marks = read_own(path, None, [self.held_out], separator=self.separator, missing="mean")[self.held_out]
            found &= marks.values != 1
        return found


class ModelTable(SiteTable):
    """A linear model of a number, or a logistic one of classes."""

    kind: Literal["table"]
    target: str
    model: Literal["linear", "logistic", "softmax"]
    weights: list[Positive] | None = None

    @property
    def site_weights(self) -> list[float] | None:
        return self.weights

    @property
    def of_classes(self) -> bool:
        return self.model != "linear"

    def count_of(self, columns: Mapping[str, Column]) -> np.ndarray | None:
        return labels_of(columns[self.target]) if self.of_classes else None

    def start(self, recipe: Sequence[Feature], classes: Classes) -> np.ndarray:
        width = sum(len(feature.names) for feature in recipe) + self.intercept
        return np.zeros((len(classes), width) if classes is not None and len(classes) > 2 else width)

    def problem(
        self, sites: Sequence[Mapping[str, Column]], recipe: Sequence[Feature], classes: Classes, held_out: bool
    ) -> Problem:
        encoded = [encode(recipe, columns) for columns in sites]
        unknown = sum(cells for _, cells in encoded)
        if unknown and not held_out:
            raise unknown_cells(unknown)
        targets = [columns[self.target] for columns in sites]
        y = [labels_of(target) if self.of_classes else target.values for target in targets]
        names = [name for feature in recipe for name in feature.names]
        known = None if classes is None else np.array(classes)
        agents = np.repeat(np.arange(len(y)), [len(values) for values in y])
        made = Table(np.concatenate([X for X, _ in encoded]), np.concatenate(y), agents, names, self.target, known)
        return made.problem(self.model, self.ridge, self.batch, self.sampling, None, self.intercept)


def unknown_cells(count: int) -> FedpointError:
    return FedpointError(f"{counted(count, 'cell')} of categories that no site had when the study was prepared")


def labels_of(target: Column) -> np.ndarray:
    """The classes of rows: words, or whole numbers."""
    if target.words is not None:
        return np.array(target.words)[target.values]
    if not (target.values == np.round(target.values)).all() or np.abs(target.values).max() >= 2**53:
        raise FedpointError('the target holds fractions, which cannot be classes: choose model = "linear"')
    return target.values.astype(np.int64)
