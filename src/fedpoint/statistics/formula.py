"""Which numbers does a model see of a table? A formula, whose factors have the levels of all sites together.

No row leaves a site for that: sites name the levels that they have, everybody codes by the union. Only what can be
worked out row by row may stand in a formula, so that a site's columns do not depend on the rows of others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import formulaic
import numpy as np
import pandas as pd
from formulaic.errors import FormulaicError

from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.numbers import counted
from fedpoint.data.floor import Floor
from fedpoint.statistics import expressions
from fedpoint.statistics.expressions import Parsed
from fedpoint.statistics.sites import Sites

Level = str | int | float | bool
INTERCEPT = "Intercept"
LEVELS = 1000  # most levels of a factor


@dataclass(frozen=True)
class Design:
    """What one site's rows are to a model: X (n, d); y (n,), empty without a response; also: further columns (n,)."""

    X: np.ndarray
    y: np.ndarray
    also: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.X)


@dataclass(frozen=True)
class Designs:
    """A formula on all sites' rows.

    sites: by name. names: of X's columns. terms: where the columns of each term are. levels: of each factor, agreed
    between sites; the first is the reference. dropped: rows with missing values, of the sites that have some.
    lone: levels that one site alone has, "factor level" -> site.
    """

    formula: str
    sites: dict[str, Design]
    names: tuple[str, ...]
    terms: dict[str, slice]
    levels: dict[str, list[Level]]
    dropped: dict[str, int]
    lone: dict[str, str]

    @property
    def notes(self) -> list[str]:
        """What a reader should know of the rows."""
        rows = sum(self.dropped.values())
        said = [f"{counted(rows, 'row')} with missing values left out"] if rows else []
        return said + [f"only site {site} has {level}" for level, site in self.lone.items()]


def designs(
    formula: str,
    sites: Sites,
    *,
    intercept: bool = True,
    also: Sequence[str] = (),
    floor: Floor | None = None,
) -> Designs:
    """X and y of every site by a formula such as "died ~ age + C(type)", or without a response "age + C(type)".

    intercept: keep its column; without it factors are coded against their first level all the same. also: columns
    that must be there too, as numbers, such as weights. floor: refuses a level that a site has too few rows of.
    """
    parsed = expressions.parsed(formula)
    used = parsed.columns
    for name in (*used, *also):
        if name not in sites.table.columns:
            known = map(str, sites.table.columns)
            raise FedpointError(f"formula {formula!r}: no column {name!r}: {nearest(name, known)}")
    there = sites.complete([*used, *also])
    empty = [site for site, rows in there.rows.items() if not len(rows)]
    if empty:
        raise FedpointError(f"every row of site {empty[0]} has a missing value in one of {', '.join((*used, *also))}")
    levels, lone = agreed_levels(_factors(parsed, there), there, floor)
    coding = Coding.of(formula, levels, intercept)
    made = {site: coding.design(rows, also) for site, rows in there.items()}
    counts = {site: len(rows) - len(there.rows[site]) for site, rows in sites.rows.items()}
    dropped = {site: count for site, count in counts.items() if count}
    return Designs(formula, made, coding.names, coding.terms, levels, dropped, lone)


@dataclass(frozen=True)
class Coding:
    """How columns are made of a table: all that a site must know of the others.

    names: of X's columns. terms: where the columns of each term are. levels: of each factor.
    """

    formula: str
    names: tuple[str, ...]
    terms: dict[str, slice]
    levels: dict[str, list[Level]]
    intercept: bool
    spec: formulaic.ModelSpec

    @staticmethod
    def of(formula: str, levels: Mapping[str, list[Level]], intercept: bool = True) -> Coding:
        """By the levels that all sites have together; intercept: keep its column."""
        parsed = expressions.parsed(formula)
        spec = _coded(parsed, levels)
        own = spec.rhs if parsed.has_response else spec
        names, terms = tuple(own.column_names), {str(term): place for term, place in own.term_slices.items()}
        if not intercept:
            names, terms = _without_intercept(names, terms)
        if not names:
            raise FedpointError(f"{formula!r} has no term: name at least one column")
        return Coding(formula, names, terms, dict(levels), intercept, spec)

    def design(self, rows: pd.DataFrame, also: Sequence[str] = ()) -> Design:
        """X and y of some rows. also: columns that must be there too, as numbers."""
        return _design(self.formula, self.spec, rows, also, self.intercept)


def _factors(parsed: Parsed, sites: Sites) -> list[str]:
    """Columns with levels: words, truth values, and whatever stands in C(...)."""
    return [n for n in parsed.columns if n in parsed.factors or has_levels(sites.table[n])]


def has_levels(values: pd.Series) -> bool:
    """Whether a column holds words or truth values."""
    return not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values)


def agreed_levels(
    factors: Sequence[str], sites: Mapping[str, pd.DataFrame], floor: Floor | None, least: int = 2
) -> tuple[dict[str, list[Level]], dict[str, str]]:
    """The levels of every factor at all sites, at least so many, and those that one site alone has."""
    levels: dict[str, list[Level]] = {}
    lone: dict[str, str] = {}
    few: list[str] = []
    for name in factors:
        counts = {site: rows[name].value_counts() for site, rows in sites.items()}
        counts = {site: own[own > 0] for site, own in counts.items()}
        found = {level for own in counts.values() for level in own.index.tolist()}
        if len(found) > LEVELS:
            raise FedpointError(f"column {name!r} has {len(found):,} levels, too many for a factor")
        if len({isinstance(level, str) for level in found}) > 1:
            raise FedpointError(f"column {name!r} holds words at some sites and numbers at others")
        if len(found) < least:
            only = f"one level only, {next(iter(found))!r}" if found else "no values"
            raise FedpointError(f"column {name!r} has {only}: leave it out")
        levels[name] = sorted(found)
        for level in levels[name]:
            have = [site for site, own in counts.items() if level in own.index]
            if len(have) == 1 and len(sites) > 1:
                lone[f"{name} {level!r}"] = have[0]
            if floor is not None:
                few += [f"{name} {level!r} at {s}" for s in have if counts[s][level] < floor.per_category]
    if few and floor is not None:
        raise FedpointError(
            f"levels with fewer rows than the floor of {floor.per_category}: {', '.join(few[:8])}"
            f"{f' and {len(few) - 8} more' if len(few) > 8 else ''}; join them with others, or set a lower floor"
        )
    return levels, lone


def _coded(parsed: Parsed, levels: Mapping[str, list[Level]]) -> formulaic.ModelSpec:
    """How columns are made, from a table that has every level and no row of anybody."""
    length = max([2, *map(len, levels.values())])
    rows = {name: np.resize(np.array(levels.get(name, [1.0]), object), length) for name in parsed.columns}
    table = pd.DataFrame({name: pd.Series(values.tolist()) for name, values in rows.items()}, index=range(length))
    return _materialised(parsed.text, parsed.formula, table).model_spec


def _materialised(
    formula: str, how: formulaic.Formula | formulaic.ModelSpec, rows: pd.DataFrame
) -> formulaic.ModelMatrix:
    try:
        return how.get_model_matrix(rows, context={"np": np}, na_action="ignore")
    except FormulaicError as error:
        raise FedpointError(f"formula {formula!r}: {expressions.plain(error)}") from None


def _design(
    formula: str, spec: formulaic.ModelSpec, rows: pd.DataFrame, also: Sequence[str], intercept: bool
) -> Design:
    made = _materialised(formula, spec, rows)
    response = isinstance(made, formulaic.ModelMatrices)
    X = made.rhs if response else made
    numbers = X.to_numpy(float)
    if not intercept:
        numbers = numbers[:, [name != INTERCEPT for name in X.columns]]
    y = _response(formula, made.lhs) if response else np.zeros(0)
    bad = ~np.isfinite(numbers).all(axis=0)
    if bad.any():
        names = [name for name in X.columns if intercept or name != INTERCEPT]
        raise FedpointError(f"formula {formula!r}: {names[int(bad.argmax())]} is not finite in some rows")
    return Design(numbers, y, {name: _numbers(rows, name) for name in also})


def _response(formula: str, lhs: pd.DataFrame) -> np.ndarray:
    if lhs.shape[1] != 1:
        raise FedpointError(
            f"formula {formula!r}: the response must be one column of numbers, got {', '.join(map(str, lhs.columns))}"
        )
    return lhs.to_numpy(float)[:, 0]


def _numbers(rows: pd.DataFrame, name: str) -> np.ndarray:
    if not pd.api.types.is_numeric_dtype(rows[name]):
        raise FedpointError(f"column {name!r} must hold numbers, got {rows[name].dtype}")
    values = rows[name].to_numpy(float)
    if not np.isfinite(values).all():
        raise FedpointError(f"column {name!r} is not finite in some rows")
    return values


def _without_intercept(names: tuple[str, ...], terms: dict[str, slice]) -> tuple[tuple[str, ...], dict[str, slice]]:
    """It is the first column, where there is one."""
    if INTERCEPT not in names:
        return names, terms
    return names[1:], {t: slice(s.start - 1, s.stop - 1) for t, s in terms.items() if s.start > 0}
