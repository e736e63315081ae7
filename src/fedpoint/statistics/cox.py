"""Proportional hazards, stratified by site: the partial likelihoods of sites multiply, so sums over sites are exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked, checked_methods
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.precision import double
from fedpoint.core.text_table import aligned
from fedpoint.core.types import Plain
from fedpoint.data.floor import Floor
from fedpoint.problems.cox import Cox, CoxOracle, Place, Stratum, Ties, log_likelihood, risk_sums
from fedpoint.problems.oracle import Mine
from fedpoint.statistics.formula import Designs, designs
from fedpoint.statistics.inference import Coefficients, Test
from fedpoint.statistics.newton import Optimum, Point, dependent, inverse, newton
from fedpoint.statistics.sites import Sites, TableLike, above_floor, column, listed, sites_of, table_of
from fedpoint.statistics.sums import collect

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Share:
    """What one site works with: its place in the problem."""

    problem: Cox
    index: int

    def __len__(self) -> int:
        return int(self.problem.counts[self.index])


class Likelihood(NamedTuple):
    """A site's sums at one model."""

    value: np.ndarray  # the log partial likelihood
    score: np.ndarray  # (d,)
    information: np.ndarray  # (d, d)


@dataclass(frozen=True)
class CoxSite:
    """What is said of one site: rows, and where it is known events and its part of the log-likelihood."""

    rows: int
    events: int | None = None
    log_likelihood: float | None = None


@checked_methods
@dataclass(frozen=True, repr=False)
class CoxFit:
    """Hazard ratios of a Cox model with a baseline hazard of its own for every site.

    coefficients: with their covariance, the inverse of the summed information. log_likelihood, null: at the estimate
    and at zero. sites: by name. rounds: of sums over sites that were exchanged. decrement: what one more Newton step
    would have moved, in units of the standard errors.
    """

    formula: str
    ties: str
    coefficients: Coefficients
    log_likelihood: float
    null: Likelihood
    sites: dict[str, CoxSite]
    rounds: int
    decrement: float
    events: int
    notes: list[str]
    problem: Cox | None = None  # the rows, where they are here

    @property
    def params(self) -> pd.Series:
        return self.coefficients.params

    @property
    def bse(self) -> pd.Series:
        return self.coefficients.bse

    @property
    def zvalues(self) -> pd.Series:
        return self.coefficients.zvalues

    @property
    def pvalues(self) -> pd.Series:
        return self.coefficients.pvalues

    @property
    def hazard_ratios(self) -> pd.Series:
        return np.exp(self.params)

    def conf_int(self, level: float = 0.95) -> pd.DataFrame:
        return self.coefficients.conf_int(level)

    def cov_params(self) -> pd.DataFrame:
        return self.coefficients.cov_params()

    def wald_test(self, term: str | None = None) -> Test:
        """Whether the coefficients of a term are zero, or without a term all of them."""
        if term is not None:
            return self.coefficients.wald_test(term)
        b = self.coefficients.values
        return Test("Wald", float(b @ np.linalg.solve(self.coefficients.covariance, b)), len(b))

    def likelihood_ratio_test(self) -> Test:
        """Against the model without covariates."""
        return Test("likelihood ratio", 2 * (self.log_likelihood - float(self.null.value)), len(self.params))

    def score_test(self) -> Test:
        """The same by the score at zero: with one factor and no ties, the stratified log-rank test."""
        U = self.null.score
        return Test("score", float(U @ np.linalg.solve(self.null.information, U)), len(U))

    def compare(self, smaller: CoxFit) -> Test:
        """Likelihood ratio against a model of the same rows with fewer terms."""
        same = {name: (s.rows, s.events) for name, s in self.sites.items()}
        if same != {name: (s.rows, s.events) for name, s in smaller.sites.items()} or smaller.ties != self.ties:
            raise FedpointError("compare() needs fits of the same rows with the same ties: these have others")
        if not set(smaller.params.index) < set(self.params.index):
            raise FedpointError("compare() needs a smaller model, whose columns are among those of this one")
        df = len(self.params) - len(smaller.params)
        return Test("likelihood ratio", 2 * (self.log_likelihood - smaller.log_likelihood), df)

    def baseline(self, site: str) -> pd.DataFrame:
        """A site's cumulative baseline hazard and survival, at its own event times, all covariates zero.

        It has a step at each event of the site: a site would look at it, and not send it.
        """
        if self.problem is None:
            raise FedpointError("baseline hazards have a step at each event of a site: they are seen at the sites only")
        names = self.problem.names
        if site not in names:
            raise FedpointError(f"no site {site!r}; known are {listed(names)}")
        share = Share(self.problem, names.index(site))
        times, steps = _jumps(share, self.coefficients.values)
        steps = pd.Series(steps).groupby(times).sum()
        hazard = steps.cumsum().to_numpy()
        return pd.DataFrame({"time": steps.index.to_numpy(), "hazard": hazard, "survival": np.exp(-hazard)})

    def summary(self) -> str:
        """The coefficients, tests and sites, as text."""
        rows = sum(site.rows for site in self.sites.values())
        head = [
            f"Cox model, stratified by site: {self.formula}",
            f"{counted(rows, 'row')}, {counted(self.events, 'event')}, {counted(len(self.sites), 'site')}; "
            f"ties by {self.ties.capitalize()}; {counted(self.rounds, 'round')} of sums",
            "",
        ]
        tests = ["", *map(str, (self.likelihood_ratio_test(), self.wald_test(), self.score_test()))]
        said = [f"Note: {note}." for note in self.notes]
        cells = [["site", "rows", "events", "log-likelihood"]]
        for name, site in self.sites.items():
            known = site.events is not None and site.log_likelihood is not None
            cells.append([name, f"{site.rows:,}", *([str(site.events), f"{site.log_likelihood:.2f}"] if known else [])])
        cells[0] = cells[0][: len(cells[1])]
        return "\n".join([*head, *self.coefficients.lines("exp(coef)"), *tests, *said, "", *aligned(cells)])

    def to_dict(self) -> dict[str, Plain]:
        """The results in plain types, for JSON."""
        tests = (self.likelihood_ratio_test(), self.wald_test(), self.score_test())
        return {
            "formula": self.formula,
            "ties": self.ties,
            "coefficients": self.coefficients.plain(),
            "log_likelihood": self.log_likelihood,
            "tests": {test.name: {"chi2": test.statistic, "df": test.df, "p": test.pvalue} for test in tests},
            "rounds": self.rounds,
            "sites": {name: {"rows": s.rows, "events": s.events} for name, s in self.sites.items()},
            "notes": list(self.notes),
        }

    def plot(self, path: str | Path | None = None, title: str | None = None) -> Figure:
        """The hazard ratios with their intervals."""
        from fedpoint.show.intervals import coefficients

        return coefficients(self.coefficients.table(), path, title or self.formula, "hazard ratio")

    def __repr__(self) -> str:
        return f"<CoxFit {self.formula!r}: {counted(self.events, 'event')} at {counted(len(self.sites), 'site')}>"


@checked
def cox(
    formula: str,
    data: TableLike,
    *,
    time: str,
    event: str,
    groups: str | ArrayLike,
    ties: Ties = "efron",
    floor: Floor | None = None,
    small: str = "refuse",
) -> CoxFit:
    """Cox's proportional hazards over sites that keep their rows: coefficients, errors, tests, baseline hazards.

    Every site has a baseline hazard of its own, so the fit equals that of pooled rows stratified by site. Each round
    a site sends its log partial likelihood, its score and its information: 1 + d + d^2 sums over its rows.

    Args:
        formula: of the covariates, for instance "age + C(sex)".
        data: a data frame, or columns by name.
        time: the column that says how long a row was observed.
        event: the column that is 1 where that ended with the event, and 0 where it was censored.
        groups: the column of the sites' names, or one name a row.
        ties: "efron" or "breslow".
        floor: refuse sites and levels with fewer rows, as real sites would. Default: none.
        small: what is done about sites below the floor: "refuse" or "leave out".

    >>> rows = {"x": [0.0, 1.0] * 6, "days": [2, 1, 4, 3, 5, 8, 7, 6, 9, 1, 2, 3], "died": [1, 1, 0, 1, 1, 1] * 2}
    >>> import fedpoint as fp
    >>> fp.cox("x", rows | {"site": ["a"] * 6 + ["b"] * 6}, time="days", event="died", groups="site").params.round(3)
    x    0.706
    dtype: float64
    """
    table = table_of(data)
    for argument, name in (("time", time), ("event", event)):
        column(table, name, argument)
    kept, left_out = above_floor(sites_of(table, groups).rows, floor, small)
    made = designs(formula, Sites(table, kept), intercept=False, also=list(dict.fromkeys([time, event])), floor=floor)
    problem = _problem(made, time, event, ties)
    _check_columns(made, problem)
    fit = _fit(made, problem)
    if left_out:
        fit.notes.append(f"{counted(len(left_out), 'site')} below the floor left out: {listed(left_out)}")
    return fit


def _problem(made: Designs, time: str, event: str, ties: Ties) -> Cox:
    rows = list(made.sites.values())
    names = np.repeat(list(made.sites), [len(own) for own in rows])
    X = np.concatenate([own.X for own in rows])
    when, happened = (np.concatenate([own.also[name] for own in rows]) for name in (time, event))
    return Cox(X, when, happened, names, ties)


# What cannot be estimated.


def _check_columns(made: Designs, problem: Cox) -> None:
    """Refuse a column without information, or one whose coefficient would be infinite, by its name."""
    shares = {name: Share(problem, k) for k, name in enumerate(problem.names)}
    check_order(made.names, collect(_order_of_events, shares).total, int(problem.events.sum()), problem.names)


def check_order(names: Sequence[str], found: Mapping[str, np.ndarray], events: int, at: Sequence[str]) -> None:
    """The same from the sums of `order_of_events` over these sites."""
    sites = listed(at)
    for j, name in enumerate(names):
        if not found["varies"][j]:
            raise FedpointError(
                f"{name} is constant within every site ({sites}) while anybody fails: stratified by site, the partial "
                "likelihood says nothing of it. Leave it out"
            )
        for side, word in (("above", "largest"), ("below", "smallest")):
            if not found[side][j]:
                raise FedpointError(
                    f"{name} separates the events: at all {counted(events, 'event')} of {sites} whoever "
                    f"fails has the {word} value of those at risk, so its coefficient is infinite. Leave it out, or "
                    "join its level with another"
                )


def _order_of_events(share: Share, at: None) -> dict[str, np.ndarray]:
    return order_of_events(_own(share))


def order_of_events(rows: Stratum) -> dict[str, np.ndarray]:
    """(d,) each: events at which a covariate varies among those at risk, and at which somebody is above, below."""
    top, bottom = (f.accumulate(rows.X, axis=0)[rows.last] for f in (np.maximum, np.minimum))
    happened = rows.event > 0
    above, below = (top > rows.X)[happened], (bottom < rows.X)[happened]
    return {"varies": (above | below).sum(0), "above": above.sum(0), "below": below.sum(0)}


def _own(share: Share) -> Stratum:
    start, count = (int(part[share.index]) for part in share.problem.own)
    return jax.tree.map(lambda a: a[start : start + count], share.problem.rows)


# The fit.


@double
def _likelihood(share: Share, w: np.ndarray) -> Likelihood:
    problem = share.problem
    place = jax.tree.map(lambda a: a[share.index], problem.own)
    value, score, hessian = _derivatives(problem.oracle, place, problem.common, w)
    return Likelihood(np.asarray(value), np.asarray(score), -np.asarray(hessian))


@partial(jax.jit, static_argnums=0)
def _derivatives(oracle: CoxOracle, place: Place, rows: Stratum, w: Array) -> tuple[Array, Array, Array]:
    own, inside = oracle.stratum(Mine(place, rows))

    def value(v: Array) -> Array:
        return log_likelihood(own._replace(event=jnp.where(inside, own.event, 0.0)), v, inside)

    return value(w), jax.grad(value)(w), jax.hessian(value)(w)


@double
def _jumps(share: Share, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The times of a site's events, and by how much each raises the cumulative baseline hazard."""
    rows, start = _own(share), int(share.problem.own.offset[share.index])
    sums = risk_sums(jax.tree.map(jnp.asarray, rows), jnp.asarray(w), jnp.ones(len(share), bool))
    happened = rows.event > 0
    steps = np.exp(-float(sums.shift)) / np.asarray(sums.at_risk)[happened]
    return share.problem.time[start : start + len(share)][happened], steps


def _point(sums: Likelihood) -> Point:
    return Point(float(sums.value), sums.score, sums.information)


def _fit(made: Designs, problem: Cox) -> CoxFit:
    """Newton's method on sums over sites."""
    shares = {name: Share(problem, k) for k, name in enumerate(problem.names)}
    null = collect(_likelihood, shares, at=problem.start()).total
    if among := dependent(null.information, made.names):
        raise FedpointError(f"within every site, {' and '.join(among)} are collinear: leave one of them out")
    end = newton(lambda w: _point(collect(_likelihood, shares, at=w).total), problem.start())
    w, here = end.w, end.point
    check_separation(made.names, end)
    last = collect(_likelihood, shares, at=w, own=lambda sums: sums.value)
    quiet = [name for name, events in zip(problem.names, problem.events, strict=True) if not events]
    silent = f"no events at {listed(quiet)}: these rows say nothing"
    return CoxFit(
        formula=made.formula,
        ties=problem.ties,
        coefficients=Coefficients(made.names, w, inverse(here.curvature), made.terms),
        log_likelihood=float(here.value),
        null=null,
        sites={
            name: CoxSite(int(problem.counts[k]), int(problem.events[k]), float(last.sites[name]))
            for k, name in enumerate(problem.names)
        },
        rounds=end.rounds + 2,
        decrement=end.decrement,
        events=int(problem.events.sum()),
        notes=made.notes + ([silent] if quiet else []),
        problem=problem,
    )


def check_separation(names: Sequence[str], end: Optimum) -> None:
    """Refuse where the likelihood rises without end: its curvature has vanished in some direction."""
    if end.vanished or not end.reached:
        worst = names[next(iter(end.vanished), 0)]
        raise FedpointError(
            f"the likelihood has no maximum: {worst}, perhaps with other columns, separates the events, and its "
            "coefficient grows without end. Leave it out, or join its level with another"
        )
