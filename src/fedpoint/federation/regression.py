"""Which regressions may a study run? A generalised linear model, proportional hazards, or the first table of a paper.

    [problem]
    kind = "glm"
    formula = "died ~ age80 + los + C(type)"
    family = "binomial"        # and link, offset, weights, ridge, dispersion, as in `fp.glm`

    [problem]
    kind = "cox"               # stratified by site
    formula = "age + C(sex)"
    time = "days"
    event = "died"

    [problem]
    kind = "table_one"
    columns = ["age", "sex"]
    by = "treatment"           # left out: one column, of all rows

Sites agree on levels as they do for any table. A study names no algorithm: sites send sums over their rows, and the hub
takes Newton's steps (`statistics/scoring.py`). What comes of it is `StudyResult.fit`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, model_validator

from fedpoint.config.kinds import Positive, Variance
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Model, Plain
from fedpoint.data.column import Column
from fedpoint.data.recipe import Feature
from fedpoint.federation.site_table import ModelTable, SiteTable, distinct
from fedpoint.federation.wire import Classes, Recipe
from fedpoint.problems.base import Problem

if TYPE_CHECKING:  # loads pandas and formulaic, which waiting commands do without
    import pandas as pd

    from fedpoint.statistics.cox import CoxFit
    from fedpoint.statistics.formula import Coding, Level
    from fedpoint.statistics.glm_fit import GLMFit
    from fedpoint.statistics.table_one import TableOne

SCORING = "fedpoint.statistics.scoring.Scoring"
ROUNDS = 12  # that any fit takes, where a study does not say how many


class SiteRegression(SiteTable):
    """What regressions share: no model of the catalogue, and columns that a formula names."""

    scale: Literal[False] = False
    missing: Literal["refuse", "drop"] = "refuse"
    batch: None = None  # all rows are in every round
    held_out: None = None

    @model_validator(mode="before")
    @classmethod
    def _derived(cls, given: Plain) -> Any:
        if not isinstance(given, Mapping) or not isinstance(given.get("kind"), str):
            return given
        return {**given, "model": given["kind"], **cls.columns_of(given)}

    @classmethod
    @abstractmethod
    def columns_of(cls, given: Mapping[str, Plain]) -> dict[str, Plain]:
        """target, features and categorical, as they follow from the other keys."""

    @property
    def link_of_start(self) -> str:
        return ""

    @property
    def placeholder(self) -> Model:
        return self.blank(1)

    @abstractmethod
    def blank(self, width: int) -> Model:
        """The model before the first round."""

    @abstractmethod
    def site(self, columns: Mapping[str, Column], recipe: Sequence[Feature], classes: Classes) -> Problem:
        """The problem of one site's rows."""

    def problem(
        self, sites: Sequence[Mapping[str, Column]], recipe: Sequence[Feature], classes: Classes, held_out: bool
    ) -> Problem:
        if len(sites) != 1 or held_out:
            raise FedpointError(f"a study of kind {self.kind!r} is not replayed: its result is `made.fit`")
        return self.site(sites[0], recipe, classes)

    @abstractmethod
    def fit(self, model: Model, setup: Recipe, rows: dict[str, int], notes: list[str], rounds: int) -> Any:
        """What the last model says."""


class _OfFormula(SiteRegression):
    target: str
    formula: str

    def coding(self, recipe: Sequence[Feature], intercept: bool) -> Coding:
        """How columns are made, by the levels that sites agreed on."""
        from fedpoint.statistics.expressions import parsed
        from fedpoint.statistics.formula import Coding

        there = {feature.column for feature in recipe} | {self.target}
        for name in parsed(self.formula).columns:
            if name not in there:
                raise FedpointError(f"column {name!r} is constant at all sites together: leave it out of the formula")
        levels: dict[str, list[Level]] = {f.column: [*f.categories] for f in recipe if f.categories is not None}
        return Coding.of(self.formula, levels, intercept)

    def design_of(self, columns: Mapping[str, Column], recipe: Sequence[Feature]) -> dict[str, np.ndarray]:
        coding = self.coding(recipe, intercept=True)
        return dict(zip(coding.names, coding.design(_frame(columns, recipe)).X.T, strict=True))


class SiteGLM(_OfFormula):
    """A generalised linear model."""

    kind: Literal["glm"]
    family: str = "gaussian"
    link: str | None = None
    offset: str | None = None
    weights: str | None = None
    ridge: Variance | None = None
    dispersion: Positive = 1.0

    @classmethod
    def columns_of(cls, given: Mapping[str, Plain]) -> dict[str, Plain]:
        from fedpoint.problems.families import response
        from fedpoint.statistics.expressions import parsed

        text = _text(given, "formula")
        found = parsed(text)
        target = text.partition("~")[0].strip() if found.has_response else ""
        if target not in found.columns:
            raise ValueError(f'formula {text!r} must begin with a column and ~, as in "died ~ age"')
        response(str(given.get("family", "gaussian")), _text(given, "link") if "link" in given else None)
        also = [given[key] for key in ("offset", "weights") if isinstance(given.get(key), str)]
        features = dict.fromkeys([*(name for name in found.columns if name != target), *also])
        return {"target": target, "features": [*features], "categorical": _factors(given, found.factors)}

    @property
    def link_of_start(self) -> str:
        from fedpoint.problems.families import response

        return response(self.family, self.link).link

    def row_weights(self, columns: Mapping[str, Column]) -> np.ndarray | None:
        return None if self.weights is None else columns[self.weights].values

    def count_of(self, columns: Mapping[str, Column]) -> np.ndarray | None:
        y = columns[self.target].values
        return y.astype(int) if self.family == "binomial" and np.isin(y, (0, 1)).all() else None

    def blank(self, width: int) -> Model:
        from fedpoint.statistics.scoring import glm_start

        return glm_start(width)

    def start(self, recipe: Sequence[Feature], classes: Classes) -> Model:
        return self.blank(len(self.coding(recipe, intercept=True).names))

    def _ridge(self, names: Sequence[str]) -> np.ndarray:
        from fedpoint.statistics.formula import INTERCEPT

        return np.where(np.array(names) == INTERCEPT, 0.0, self.ridge or 0.0)

    def site(self, columns: Mapping[str, Column], recipe: Sequence[Feature], classes: Classes) -> Problem:
        from fedpoint.problems.families import response
        from fedpoint.statistics.glm import check_rows
        from fedpoint.statistics.glm_sums import Rows
        from fedpoint.statistics.scoring import glm_site

        coding = self.coding(recipe, intercept=True)
        also = [name for name in (self.offset, self.weights) if name is not None]
        made = coding.design(_frame(columns, recipe), also)
        kind = response(self.family, self.link)
        offset, weights = (None if name is None else made.also[name] for name in (self.offset, self.weights))
        rows = Rows(made.X, made.y, offset, weights, kind, self.dispersion)
        check_rows(f"the response of {self.formula!r}", {"this site": rows})
        return glm_site(rows, self._ridge(coding.names))

    def fit(self, model: Model, setup: Recipe, rows: dict[str, int], notes: list[str], rounds: int) -> GLMFit:
        from fedpoint.federation.preparation import features
        from fedpoint.problems.families import response
        from fedpoint.statistics.studied import glm_fit

        coding = self.coding(features(setup["recipe"]), intercept=True)
        kind = response(self.family, self.link)
        return glm_fit(coding, kind, self._ridge(coding.names), model, rows, notes, rounds)


class SiteCox(_OfFormula):
    """Cox's proportional hazards, with a baseline hazard of its own for every site."""

    kind: Literal["cox"]
    time: str
    event: str
    ties: Literal["efron", "breslow"] = "efron"

    @classmethod
    def columns_of(cls, given: Mapping[str, Plain]) -> dict[str, Plain]:
        from fedpoint.statistics.expressions import parsed

        text, time, event = (_text(given, key) for key in ("formula", "time", "event"))
        found = parsed(text)
        if found.has_response:
            raise ValueError(f"formula {text!r} has a response: name the covariates only, and time and event beside it")
        features = [*dict.fromkeys([*found.columns, time])]
        return {"target": event, "features": features, "categorical": _factors(given, found.factors)}

    def count_of(self, columns: Mapping[str, Column]) -> np.ndarray | None:
        return columns[self.event].values.astype(int)

    def blank(self, width: int) -> Model:
        from fedpoint.statistics.scoring import cox_start

        return cox_start(width)

    def start(self, recipe: Sequence[Feature], classes: Classes) -> Model:
        return self.blank(len(self.coding(recipe, intercept=False).names))

    def site(self, columns: Mapping[str, Column], recipe: Sequence[Feature], classes: Classes) -> Problem:
        from fedpoint.problems.cox import stratum
        from fedpoint.statistics.cox import order_of_events
        from fedpoint.statistics.scoring import cox_site

        time, event = columns[self.time].values, columns[self.event].values
        if not ((time > 0).all() and np.isin(event, (0, 1)).all()):
            raise FedpointError(f"{self.time!r} must be above 0, and {self.event!r} 0 or 1")
        made = self.coding(recipe, intercept=False).design(_frame(columns, recipe))
        rows = stratum(made.X, time, event, self.ties)
        return cox_site(rows, order_of_events(rows))

    def fit(self, model: Model, setup: Recipe, rows: dict[str, int], notes: list[str], rounds: int) -> CoxFit:
        from fedpoint.federation.preparation import features
        from fedpoint.statistics.studied import cox_fit

        return cox_fit(self.coding(features(setup["recipe"]), False), self.ties, model, rows, notes, rounds)


class SiteTableOne(SiteRegression):
    """The first table of a paper, by the levels of a column or of all rows."""

    kind: Literal["table_one"]
    columns: Annotated[list[str], AfterValidator(distinct)]
    by: str | None = None

    @classmethod
    def columns_of(cls, given: Mapping[str, Plain]) -> dict[str, Plain]:
        columns = given.get("columns")
        by = _text(given, "by") if "by" in given else None
        return {"target": by, "features": list(columns) if isinstance(columns, list) else columns}

    @property
    def of_classes(self) -> bool:
        return self.by is not None

    def _parts(self, classes: Classes) -> list[str]:
        """The table's columns: classes of `by`, or all rows."""
        from fedpoint.statistics.table_one import ALL

        return [ALL] if self.by is None else [str(one) for one in classes or []]

    def count_of(self, columns: Mapping[str, Column]) -> np.ndarray | None:
        from fedpoint.federation.site_table import labels_of

        return None if self.by is None else labels_of(columns[self.by])

    def cells_of(self, columns: Mapping[str, Column]) -> dict[str, int]:
        parts = self.count_of(columns)
        if parts is None:
            return {}
        found: dict[str, int] = {}
        for name in self.features:
            column = columns[name]
            for code, word in enumerate(column.words or ()):
                own = parts[(column.values == code) & ~column.missing]
                labels, counts = np.unique(own, return_counts=True)
                found |= {
                    f"{name} {word!r} of {self.by} {label}": int(n) for label, n in zip(labels, counts, strict=True)
                }
        return found

    def blank(self, width: int) -> Model:
        from fedpoint.statistics.scoring import table_start

        return table_start(width, 1, {})

    def start(self, recipe: Sequence[Feature], classes: Classes) -> Model:
        from fedpoint.statistics.scoring import table_start

        levels, measured = _sorted_out(recipe)
        parts = self._parts(classes)
        return table_start(len(measured), len(parts), {name: len(own) for name, own in levels.items()})

    def site(self, columns: Mapping[str, Column], recipe: Sequence[Feature], classes: Classes) -> Problem:
        from fedpoint.federation.site_table import labels_of
        from fedpoint.statistics.scoring import table_site

        levels, measured = _sorted_out(recipe)
        rows, parts = self.rows_of(columns), self._parts(classes)
        place = np.zeros(rows, int)
        if self.by is not None:
            place = np.searchsorted(np.array(classes), labels_of(columns[self.by]))
        X = np.array([columns[name].values for name in measured]).reshape(len(measured), rows).T
        table = _frame(columns, recipe)
        codes = {name: table[name].map({level: i for i, level in enumerate(own)}) for name, own in levels.items()}
        return table_site(X, place, len(parts), {n: (c.to_numpy(int), len(levels[n])) for n, c in codes.items()})

    def fit(self, model: Model, setup: Recipe, rows: dict[str, int], notes: list[str], rounds: int) -> TableOne:
        from fedpoint.federation.preparation import features
        from fedpoint.statistics.studied import table_fit

        levels, measured = _sorted_out(features(setup["recipe"]))
        return table_fit(model, self._parts(setup["classes"]), [*self.columns], measured, levels, rows, notes)


def _sorted_out(recipe: Sequence[Feature]) -> tuple[dict[str, list[str]], list[str]]:
    """Columns of levels, and of numbers."""
    levels = {f.column: [str(level) for level in f.categories] for f in recipe if f.categories is not None}
    return levels, [f.column for f in recipe if f.categories is None]


def _text(given: Mapping[str, Plain], key: str) -> str:
    text = given.get(key)
    if not isinstance(text, str):
        raise ValueError(f"{key} is missing" if key not in given else f"{key} must be a text")
    return text


def _factors(given: Mapping[str, Plain], found: Sequence[str]) -> list[str]:
    asked = given.get("categorical")
    return [*dict.fromkeys([*found, *(asked if isinstance(asked, list) else [])])]


def _frame(columns: Mapping[str, Column], recipe: Sequence[Feature]) -> pd.DataFrame:
    """A site's rows as a formula reads them, if sites agreed on their levels."""
    from fedpoint.statistics.sites import frame_of

    for feature in recipe:
        own = columns[feature.column]
        if own.words is None or feature.categories is None:
            continue
        used = {own.words[code] for code in np.unique(own.values[~own.missing])}
        if unknown := sorted(used - {str(level) for level in feature.categories}):
            raise FedpointError(f"column {feature.column!r}: no site had {unknown[0]!r} when the study was prepared")
    return frame_of(columns)


KINDS: dict[str, type[SiteTable]] = {
    "table": ModelTable,
    "glm": SiteGLM,
    "cox": SiteCox,
    "table_one": SiteTableOne,
}


def table_kind(problem: Plain) -> type[SiteTable] | None:
    """What reads the problem of a study of the sites' own files; None of others."""
    kind = problem.get("kind") if isinstance(problem, Mapping) else None
    return KINDS.get(kind) if isinstance(kind, str) else None


def with_method(own: Mapping[str, Plain]) -> dict[str, Plain]:
    """A study's experiment, with the one method that a regression has."""
    kind = table_kind(own.get("problem"))
    if kind is None or not issubclass(kind, SiteRegression):
        return dict(own)
    try:
        link = kind.model_validate(own["problem"]).link_of_start
    except ValueError:  # a mistake of its own, which is said where the problem is read
        link = ""
    made: dict[str, Plain] = {"name": SCORING, "link": link}
    if own.get("algorithm") not in (None, made):
        raise FedpointError(f"a study of kind {kind.model_fields['kind'].annotation} takes no algorithm: leave it out")
    return {**own, "algorithm": made}


__all__ = ["KINDS", "SiteRegression", "table_kind", "with_method"]
