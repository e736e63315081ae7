"""How long until the event? Kaplan and Meier's curve and the log-rank test, from counts over sites' rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from fedpoint.core.arguments import checked, checked_methods
from fedpoint.core.arrays import numbers
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.text_table import aligned
from fedpoint.data.floor import DEFAULT, Floor
from fedpoint.statistics.formula import Level, agreed_levels
from fedpoint.statistics.inference import Test, check_level
from fedpoint.statistics.sites import TableLike, above_floor, column, listed, sites_of, table_of
from fedpoint.statistics.sums import collect

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL = "all"  # the one curve where nothing tells rows apart


@dataclass(frozen=True)
class Observed:
    """One site's rows: how long each was observed, whether that ended with the event, which curve it belongs to."""

    time: np.ndarray
    event: np.ndarray
    curve: np.ndarray  # a place among the levels

    def __len__(self) -> int:
        return len(self.time)


class Left(NamedTuple):
    """How many rows left the risk set at each time, (levels, times) each: by the event, or censored."""

    events: np.ndarray
    censored: np.ndarray


@checked_methods
@dataclass(frozen=True, repr=False)
class Survival:
    """Curves of Kaplan and Meier, by level.

    curves: one table a level, with a row for every time at which an event was counted: time, at_risk, events,
    survival, std_err (Greenwood), lower and upper (95 %, by log(-log S)). rows, sites: what they were made of.
    """

    curves: dict[str, pd.DataFrame]
    rows: dict[str, int]
    sites: int
    notes: list[str] = field(default_factory=list)

    def quantile(self, p: float, level: float = 0.95) -> pd.DataFrame:
        """The time by which a share p had the event, of each curve, with an interval; infinite if it was not seen."""
        check_level("p", p)
        found = {name: _quantile(curve, p, level) for name, curve in self.curves.items()}
        return pd.DataFrame(found, index=["time", "lower", "upper"]).T

    def median(self) -> pd.DataFrame:
        return self.quantile(0.5)

    def at(self, times: ArrayLike) -> pd.DataFrame:
        """S(t) of each curve at these times; after a curve's last event it stays where it was."""
        when = np.atleast_1d(numbers("times", times))
        return pd.DataFrame({name: _steps(curve, when) for name, curve in self.curves.items()}, index=when)

    def summary(self) -> str:
        """Rows, events and medians, as text."""
        cells = [["", "rows", "events", "median", "[0.025", "0.975]"]]
        medians = self.median()
        for name, curve in self.curves.items():
            told = [f"{v:.6g}" if np.isfinite(v) else "-" for v in medians.loc[name]]
            cells.append([name, f"{self.rows[name]:,}", f"{int(curve.events.sum()):,}", *told])
        head = [
            f"Survival by Kaplan and Meier: {counted(sum(self.rows.values()), 'row')}, {counted(self.sites, 'site')}"
        ]
        return "\n".join([*head, "", *aligned(cells), *(f"Note: {note}." for note in self.notes)])

    def plot(self, path: str | Path | None = None, title: str | None = None) -> Figure:
        """The curves with their intervals, and how many rows were at risk."""
        from fedpoint.show.intervals import survival

        return survival(self.curves, path, title)

    def __repr__(self) -> str:
        return f"<Survival: {counted(len(self.curves), 'curve')}, {counted(sum(self.rows.values()), 'row')}>"


@checked
def kaplan_meier(
    data: TableLike,
    *,
    time: str,
    event: str,
    groups: str | ArrayLike,
    by: str | None = None,
    times: ArrayLike | None = None,
    floor: Floor | None = DEFAULT,
    small: str = "refuse",
) -> Survival:
    """Kaplan and Meier's curves of all sites' rows together, from counts at agreed times.

    Sites name the times that they have, or round theirs up to `times`; then each sends how many rows had the event
    and how many were censored at each of them. Above a floor, neighbouring times are joined, as if these rows had
    been observed until the later one, until at least `floor.per_category` rows leave at each; the curve is that of
    all rows with these times, and without a floor that of the rows as they are.

    Args:
        data: a data frame, or columns by name.
        time: the column that says how long a row was observed.
        event: the column that is 1 where that ended with the event, and 0 where it was censored.
        groups: the column of the sites' names, or one name a row.
        by: a column with levels: a curve for each.
        times: that observations are rounded up to at the sites. Default: all times that there are.
        floor: of what leaves a site. None: none.
        small: what is done about sites below the floor: "refuse" or "leave out".

    >>> rows = {"days": [1, 2, 2, 3, 5, 8], "died": [1, 1, 0, 1, 0, 1], "site": ["a", "b"] * 3}
    >>> curve = kaplan_meier(rows, time="days", event="died", groups="site", floor=None).curves["all"]
    >>> curve[["time", "at_risk", "survival"]].round(3).to_numpy().tolist()
    [[1.0, 6.0, 0.833], [2.0, 5.0, 0.667], [3.0, 3.0, 0.444], [8.0, 1.0, 0.0]]
    """
    sites, levels, notes = _observed(data, time, event, groups, by, floor, small)
    grid = _grid(sites, times)
    left = collect(lambda own, at: _counts(own, at, len(levels)), sites, at=grid).total
    curves, rows = {}, {}
    for k, name in enumerate(levels):
        own = Left(left.events[k], left.censored[k])
        rows[name] = int((own.events + own.censored).sum())
        kept = grid if floor is None else _joined(own, floor.per_category, grid)
        curves[name] = _curve(_regrouped(own, grid, kept), kept)
        if len(kept) < len(grid) and floor is not None:
            notes.append(f"{name}: times joined so that at least {floor.per_category} rows leave at each")
    return Survival(curves, rows, len(sites), notes)


@checked
def logrank(
    data: TableLike,
    *,
    time: str,
    event: str,
    by: str,
    groups: str | ArrayLike,
    stratified: bool = True,
    floor: Floor | None = DEFAULT,
    small: str = "refuse",
) -> Test:
    """The log-rank test: do the hazards of the levels of a column differ?

    Args:
        data, time, event, groups, floor, small: as of `kaplan_meier`.
        by: the column whose levels are compared.
        stratified: by site: each level is compared with the others of its own site, and a site sends observed less
            expected events of each level with their covariance. False: as if all rows were of one site, from counts
            at every time.

    >>> rows = {"days": [1, 2, 2, 3, 5, 8], "died": [1, 1, 0, 1, 1, 1], "arm": ["x", "x", "y", "y", "x", "y"]}
    >>> print(logrank(rows | {"site": ["a"] * 6}, time="days", event="died", by="arm", groups="site", floor=None))
    log-rank, arm: chi2(1) = 1.667, p = 0.197
    """
    sites, levels, _ = _observed(data, time, event, groups, by, floor, small)
    count = len(levels)
    if stratified:
        excess, covariance = collect(lambda own, at: _excess(_own_counts(own, count)), sites).total
    else:
        excess, covariance = _excess(
            collect(lambda own, at: _counts(own, at, count), sites, at=_grid(sites, None)).total
        )
    if not covariance.any():
        raise FedpointError(f"at no event are rows of several levels of {by!r} at risk: there is nothing to compare")
    statistic = float(excess @ np.linalg.pinv(covariance, rcond=1e-12, hermitian=True) @ excess)
    return Test(
        f"log-rank{', stratified by site' if stratified and len(sites) > 1 else ''}, {by}", statistic, count - 1
    )


# What sites hold, and the times they agree on.


def _observed(
    data: TableLike,
    time: str,
    event: str,
    groups: str | ArrayLike,
    by: str | None,
    floor: Floor | None,
    small: str,
) -> tuple[dict[str, Observed], list[str], list[str]]:
    """The sites' rows without missing values, the names of the levels, and notes."""
    table = table_of(data)
    used = {"time": time, "event": event} | ({} if by is None else {"by": by})
    for argument, name in used.items():
        column(table, name, argument)
    rows, left_out = above_floor(sites_of(table, groups), floor, small)
    there = {site: own[own[list(used.values())].notna().all(axis=1)] for site, own in rows.items()}
    there = {site: own for site, own in there.items() if len(own)}
    if not there:
        raise FedpointError(f"every row has a missing value in one of {', '.join(used.values())}")
    levels: list[Level] = [ALL] if by is None else agreed_levels([by], there, floor)[0][by]
    held = {site: _held(own, time, event, by, levels) for site, own in there.items()}
    if not any(own.event.any() for own in held.values()):
        raise FedpointError(f"no row of any site has the event {event!r}: there is nothing to estimate")
    missing = sum(map(len, rows.values())) - sum(map(len, held.values()))
    notes = [f"{counted(missing, 'row')} with missing values left out"] if missing else []
    if left_out:
        notes.append(f"{counted(len(left_out), 'site')} below the floor left out: {listed(left_out)}")
    return held, [str(level) for level in levels], notes


def _held(rows: pd.DataFrame, time: str, event: str, by: str | None, levels: list[Level]) -> Observed:
    when, happened = numbers("time", rows[time]), numbers("event", rows[event])
    if not (np.isfinite(when).all() and (when > 0).all()):
        raise FedpointError(f"time: column {time!r} must be finite and above 0")
    if not np.isin(happened, (0, 1)).all():
        raise FedpointError(f"event: column {event!r} must be 1 where the event was seen and 0 where it was censored")
    place = {level: k for k, level in enumerate(levels)}
    curve = np.zeros(len(rows), int) if by is None else np.array([place[level] for level in rows[by].tolist()])
    return Observed(when, happened.astype(bool), curve)


def _grid(sites: Mapping[str, Observed], times: ArrayLike | None) -> np.ndarray:
    """The times at which sites count."""
    if times is None:
        return np.unique(np.concatenate([own.time for own in sites.values()]))
    grid = np.atleast_1d(numbers("times", times))
    if grid.ndim != 1 or not len(grid) or not (np.isfinite(grid).all() and (np.diff(grid) > 0).all()):
        raise FedpointError("times must be finite and rise")
    late = [site for site, own in sites.items() if own.time.max() > grid[-1]]
    if late:
        raise FedpointError(
            f"rows of {listed(late)} were observed beyond the last of times, {grid[-1]:g}: add later ones"
        )
    return grid


def _counts(own: Observed, grid: np.ndarray, levels: int) -> Left:
    at = np.searchsorted(grid, own.time) + own.curve * len(grid)

    def count(which: np.ndarray) -> np.ndarray:
        return np.bincount(at[which], minlength=levels * len(grid)).reshape(levels, len(grid))

    return Left(count(own.event), count(~own.event))


def _own_counts(own: Observed, levels: int) -> Left:
    return _counts(own, np.unique(own.time), levels)


def _joined(left: Left, least: int, grid: np.ndarray) -> np.ndarray:
    """The times at which at least so many rows have left since the one before; the last takes what remains."""
    kept, since = [], 0
    gone = left.events + left.censored
    for t, n in zip(grid, gone, strict=True):
        since += n
        if since >= least:
            kept.append(t)
            since = 0
    if since and kept:
        kept.pop()
    if since or not kept:
        kept.append(grid[np.flatnonzero(gone)[-1]] if gone.any() else grid[-1])
    return np.array(kept)


def _regrouped(left: Left, grid: np.ndarray, kept: np.ndarray) -> Left:
    """Counts at the times that were kept: rows count at the next one. After the last there are none."""
    at = np.minimum(np.searchsorted(kept, grid), len(kept) - 1)
    events, censored = (np.bincount(at, weights=part, minlength=len(kept)).astype(int) for part in left)
    return Left(events, censored)


# What counts say.


def _at_risk(left: Left) -> np.ndarray:
    """Rows that had not left before each time, along the last axis."""
    gone = left.events + left.censored
    return gone[..., ::-1].cumsum(-1)[..., ::-1]


def _curve(left: Left, times: np.ndarray) -> pd.DataFrame:
    risk = _at_risk(left)
    here = left.events > 0
    n, d, t = risk[here], left.events[here], times[here]
    survival = np.cumprod(1 - d / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.sqrt(np.cumsum(d / (n * (n - d.astype(float)))))
        error = np.where(survival > 0, survival * relative, np.nan)
    low, high = _interval(survival, error)
    columns = {
        "time": t,
        "at_risk": n,
        "events": d,
        "survival": survival,
        "std_err": error,
        "lower": low,
        "upper": high,
    }
    return pd.DataFrame(columns)


def _interval(survival: np.ndarray, error: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """By the normal law of log(-log S), which stays between 0 and 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = np.log(-np.log(survival))
        half = stats.norm.ppf(0.5 + level / 2) * np.abs(error / (survival * np.log(survival)))
        return np.exp(-np.exp(middle + half)), np.exp(-np.exp(middle - half))


def _quantile(curve: pd.DataFrame, p: float, level: float) -> tuple[float, float, float]:
    """The time where the curve falls to 1 - p, and where the bounds of its interval do."""
    check_level("level", level)
    low, high = _interval(curve.survival.to_numpy(), curve.std_err.to_numpy(), level)

    def first(values: np.ndarray) -> float:
        below = np.flatnonzero(values <= 1 - p)
        return float(curve.time.iloc[below[0]]) if len(below) else np.inf

    return first(curve.survival.to_numpy()), first(low), first(high)


def _steps(curve: pd.DataFrame, when: np.ndarray) -> np.ndarray:
    values = np.concatenate([[1.0], curve.survival])
    return values[np.searchsorted(curve.time, when, side="right")]


def _excess(left: Left) -> tuple[np.ndarray, np.ndarray]:
    """(levels,) events observed less expected, given who is at risk; (levels, levels) their covariance."""
    risk, d = _at_risk(left), left.events.sum(0)
    everybody = risk.sum(0)
    share = risk / np.maximum(everybody, 1)
    spread = d * (everybody - d) / np.maximum(everybody - 1, 1)  # hypergeometric
    others = np.eye(len(share))[:, :, None] - share  # exactly 0 where one level is all that is at risk
    covariance = np.einsum("jt,jkt->jk", share * spread, others)
    return (left.events - share * d).sum(1), covariance
