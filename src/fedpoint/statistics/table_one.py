"""Who are these rows? The first table of a paper: counts, means and shares, from sums over sites' rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from fedpoint.core.arguments import checked, checked_methods
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.text_table import aligned
from fedpoint.core.types import Plain
from fedpoint.data.floor import DEFAULT, Floor
from fedpoint.statistics.formula import Level, agreed_levels, has_levels
from fedpoint.statistics.inference import p_text
from fedpoint.statistics.sites import TableLike, above_floor, column, listed, sites_of, table_of
from fedpoint.statistics.sums import collect

ALL = "all"


@dataclass(frozen=True)
class Measured:
    """A column of numbers: of each group of rows how many values, their mean and standard deviation."""

    count: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    missing: np.ndarray
    pvalue: float | None  # of equal means, by the analysis of variance

    def lines(self, name: str) -> list[list[str]]:
        cells = [f"{m:.4g} ({s:.3g})" if n else "-" for n, m, s in zip(self.count, self.mean, self.std, strict=True)]
        return [[f"{name}, mean (sd)", *cells, _told(self.pvalue)], *_missing(self.missing)]

    def plain(self) -> dict[str, Plain]:
        parts = {"count": self.count, "mean": self.mean, "std": self.std, "missing": self.missing}
        return {k: [None if np.isnan(x) else x for x in v.tolist()] for k, v in parts.items()} | {"pvalue": self.pvalue}


@dataclass(frozen=True)
class Counted:
    """A column of levels: (levels, groups) rows; NaN where a count is below the floor or gives such a one away."""

    levels: list[str]
    counts: np.ndarray
    totals: np.ndarray  # of the groups, without missing values
    missing: np.ndarray
    pvalue: float | None  # of equal shares, by Pearson's chi-square

    def lines(self, name: str) -> list[list[str]]:
        found = [[f"{name}, n (%)", *[""] * len(self.totals), _told(self.pvalue)]]
        for level, row in zip(self.levels, self.counts, strict=True):
            cells = [_share(n, total) for n, total in zip(row, self.totals, strict=True)]
            found.append([f"  {level}", *cells, ""])
        return found + _missing(self.missing)

    def plain(self) -> dict[str, Plain]:
        counts = [[None if np.isnan(n) else int(n) for n in row] for row in self.counts]
        missing = [None if np.isnan(n) else int(n) for n in self.missing]
        return {"levels": list(self.levels), "counts": counts, "missing": missing, "pvalue": self.pvalue}


@checked_methods
@dataclass(frozen=True, repr=False)
class TableOne:
    """The first table: columns by name, each of numbers (`Measured`) or of levels (`Counted`), for every group."""

    groups: list[str]
    rows: np.ndarray  # (groups,)
    columns: dict[str, Measured | Counted]
    sites: int
    floor: Floor | None
    notes: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """The table as text."""
        cells = [["", *self.groups, "p"], ["rows", *(f"{n:,}" for n in self.rows), ""]]
        for name, one in self.columns.items():
            cells += one.lines(name)
        if not any(row[-1] for row in cells[1:]):
            cells = [row[:-1] for row in cells]
        hidden = any(np.isnan(one.counts).any() for one in self.columns.values() if isinstance(one, Counted))
        notes = [f"* below the floor of {self.floor.per_category}, or with it"] if hidden and self.floor else []
        said = [f"Note: {note}." for note in [*notes, *self.notes]]
        return "\n".join(
            [f"{counted(int(self.rows.sum()), 'row')} of {counted(self.sites, 'site')}", "", *aligned(cells), *said]
        )

    def to_dict(self) -> dict[str, Plain]:
        """The same in plain types, for JSON; what is hidden is null."""
        columns: dict[str, Plain] = {name: one.plain() for name, one in self.columns.items()}
        return {"groups": list(self.groups), "rows": self.rows.tolist(), "columns": columns, "notes": list(self.notes)}

    def __repr__(self) -> str:
        return f"<TableOne: {counted(len(self.columns), 'column')}, {counted(int(self.rows.sum()), 'row')}>"


@checked
def table_one(
    data: TableLike,
    *,
    groups: str | ArrayLike,
    columns: Sequence[str] | None = None,
    by: str | None = None,
    floor: Floor | None = DEFAULT,
    small: str = "refuse",
) -> TableOne:
    """The first table of a paper over sites that keep their rows: numbers as mean and deviation, levels as counts.

    Two rounds: sites send counts and sums, then sums of squares around the common means. A count below the floor is
    hidden, with the next smallest of its column, so that it does not follow from the total.

    Args:
        data: a data frame, or columns by name.
        groups: the column of the sites' names, or one name a row.
        columns: which columns. Default: all but the sites and `by`.
        by: a column with levels, for instance the treatment, or the sites themselves: one column of the table each,
            with tests of whether they differ.
        floor: of rows of a site, and of every count that is told. None: none.
        small: what is done about sites below the floor: "refuse" or "leave out".

    >>> rows = {"age": [40, 50, 60, 70], "sex": ["f", "m", "f", "f"], "site": ["a", "a", "b", "b"]}
    >>> print(table_one(rows, groups="site", floor=None).summary())
    4 rows of 2 sites
    <BLANKLINE>
                          all
    --------------  ---------
    rows                    4
    age, mean (sd)  55 (12.9)
    sex, n (%)
      f              3 (75.0)
      m              1 (25.0)
    """
    table = table_of(data)
    if by is not None:
        column(table, by, "by")
    chosen = _columns(table, columns, groups, by)
    sites, left_out = above_floor(sites_of(table, groups), floor, small)
    kept = {site: own if by is None else own[own[by].notna()] for site, own in sites.items()}
    kept = {site: own for site, own in kept.items() if len(own)}
    if not kept:
        raise FedpointError(f"by: every row has a missing value in {by!r}")
    names = [name for name in chosen if any(has_levels(own[name]) for own in kept.values())]
    levels, _ = agreed_levels(names, kept, None, least=1)
    parts: list[Level] = [ALL] if by is None else agreed_levels([by], kept, floor, least=1)[0][by]
    measured = [name for name in chosen if name not in levels]
    counts = collect(partial(_counts, by=by, parts=parts, levels=levels, measured=measured), kept).total
    means = counts["sums"] / np.where(counts["there"] > 0, counts["there"], np.nan)
    squares = collect(partial(_squares, by=by, parts=parts, measured=measured), kept, at=means).total
    found: dict[str, Measured | Counted] = {}
    for name in chosen:
        if name in levels:
            found[name] = counted_column(levels[name], counts["levels"][name], counts["rows"], floor)
        else:
            k = measured.index(name)
            found[name] = measured_column(counts["there"][k], means[k], squares[k], counts["rows"], floor)
    notes = [f"{counted(len(left_out), 'site')} below the floor left out: {listed(left_out)}"] if left_out else []
    return TableOne([str(p) for p in parts], counts["rows"], found, len(kept), floor, notes)


def _columns(table: pd.DataFrame, columns: Sequence[str] | None, groups: str | ArrayLike, by: str | None) -> list[str]:
    if columns is None:
        aside = {by} | ({groups} if isinstance(groups, str) else set())
        columns = [str(name) for name in table.columns if name not in aside]
    for name in columns:
        column(table, name, "columns")
    if not len(columns):
        raise FedpointError("columns: name at least one column")
    return list(columns)


# What a site sends.


def _places(rows: pd.DataFrame, by: str | None, parts: Sequence[Level]) -> np.ndarray:
    """To which group each row belongs."""
    if by is None:
        return np.zeros(len(rows), int)
    return pd.Categorical(rows[by], categories=list(parts)).codes.astype(int)


def _counts(
    rows: pd.DataFrame,
    at: None,
    by: str | None,
    parts: Sequence[Level],
    levels: Mapping[str, Sequence[Level]],
    measured: Sequence[str],
) -> dict:
    place, count = _places(rows, by, parts), len(parts)
    X = rows[list(measured)].to_numpy(float)
    there = ~np.isnan(X)

    def of_levels(name: str) -> np.ndarray:
        own = pd.Categorical(rows[name], categories=list(levels[name])).codes.astype(int)
        at = own[own >= 0] * count + place[own >= 0]
        return np.bincount(at, minlength=len(levels[name]) * count).reshape(-1, count)

    return {
        "rows": np.bincount(place, minlength=count),
        "there": np.stack([np.bincount(place[ok], minlength=count) for ok in there.T])
        if len(measured)
        else _none(count),
        "sums": _sums(np.where(there, X, 0.0), place, count),
        "levels": {name: of_levels(name) for name in levels},
    }


def _squares(
    rows: pd.DataFrame, means: np.ndarray, by: str | None, parts: Sequence[Level], measured: Sequence[str]
) -> np.ndarray:
    place = _places(rows, by, parts)
    X = rows[list(measured)].to_numpy(float)
    around = np.where(np.isnan(X), 0.0, X - means.T[place]) if len(measured) else X
    return _sums(around**2, place, len(parts))


def _sums(X: np.ndarray, place: np.ndarray, count: int) -> np.ndarray:
    """(columns, groups)."""
    return np.stack([np.bincount(place, weights=x, minlength=count) for x in X.T]) if X.shape[1] else _none(count) * 1.0


def _none(count: int) -> np.ndarray:
    return np.zeros((0, count), int)


# What is told of it.


def measured_column(
    there: np.ndarray, mean: np.ndarray, squares: np.ndarray, rows: np.ndarray, floor: Floor | None
) -> Measured:
    """What is told of a column of numbers, of the sums of every group."""
    least = 1 if floor is None else floor.per_category
    known = there >= least
    std = np.sqrt(np.where(there > 1, squares / np.maximum(there - 1, 1), np.nan))
    p = None
    if len(there) > 1 and known.all() and there.sum() > len(there) and squares.sum() > 0:
        df, rest = len(there) - 1, there.sum() - len(there)
        between = there @ (mean - there @ mean / there.sum()) ** 2
        p = float(stats.f.sf((between / df) / (squares.sum() / rest), df, rest))
    mean, std = (np.where(known, part, np.nan) for part in (mean, std))
    return Measured(there, mean, std, _told_missing(rows - there, floor), p)


def counted_column(levels: Sequence[Level], counts: np.ndarray, rows: np.ndarray, floor: Floor | None) -> Counted:
    """What is told of a column of levels, of the counts of every group."""
    totals = counts.sum(0)
    p = None
    if counts.shape[1] > 1 and totals.all():
        there = counts[counts.sum(1) > 0]
        expected = np.outer(there.sum(1), totals) / totals.sum()
        df = (len(there) - 1) * (len(totals) - 1)
        p = float(stats.chi2.sf(((there - expected) ** 2 / expected).sum(), df)) if df else None
    shown = counts.astype(float)
    if floor is not None:
        shown = np.stack([_hidden(own, floor.per_category) for own in shown.T], axis=1)
    return Counted([str(level) for level in levels], shown, totals, _told_missing(rows - totals, floor), p)


def _hidden(counts: np.ndarray, least: int) -> np.ndarray:
    """NaN for counts from 1 to least - 1; then for the next smallest, until those that are hidden add up to least."""
    hide = (counts > 0) & (counts < least)
    if not hide.any():
        return counts
    for k in np.argsort(counts, kind="stable"):
        if hide.sum() >= 2 and counts[hide].sum() >= least:
            break
        hide[k] |= counts[k] > 0
    return np.where(hide, np.nan, counts)


def _told_missing(missing: np.ndarray, floor: Floor | None) -> np.ndarray:
    few = np.zeros(len(missing), bool) if floor is None else (missing > 0) & (missing < floor.per_category)
    return np.where(few, np.nan, missing.astype(float))


def _share(n: float, total: int) -> str:
    return "*" if np.isnan(n) else f"{int(n):,} ({100 * n / total if total else 0:.1f})"


def _missing(missing: np.ndarray) -> list[list[str]]:
    if not np.nan_to_num(missing, nan=1.0).any():
        return []
    return [["  missing", *("*" if np.isnan(n) else f"{int(n):,}" for n in missing), ""]]


def _told(p: float | None) -> str:
    return "" if p is None else p_text(p).removeprefix("= ")
