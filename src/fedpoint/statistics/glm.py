"""Generalised linear models over sites that keep their rows: the pooled fit, from sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.arrays import numbers
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import Positive
from fedpoint.core.numbers import counted
from fedpoint.core.precision import double
from fedpoint.data.floor import Floor
from fedpoint.problems.families import FAMILIES, LINKS, Response, response
from fedpoint.statistics import glm_sums
from fedpoint.statistics.formula import INTERCEPT, Designs, designs
from fedpoint.statistics.glm_fit import GLMFit, GLMSite
from fedpoint.statistics.glm_sums import First, Rows, Slopes
from fedpoint.statistics.newton import Optimum, Point, dependent, newton, solve
from fedpoint.statistics.sites import Sites, TableLike, above_floor, column, listed, sites_of, table_of
from fedpoint.statistics.sums import collect

OFFSET, WEIGHT = "offset=", "weights="  # names of columns that are given as arrays


class Model(NamedTuple):
    """What is fitted: columns, the law of y, and what the ridge puts on every coefficient."""

    made: Designs
    response: Response
    ridge: np.ndarray  # (d,)
    rows: dict[str, Rows]
    elsewhere: tuple[str, ...] = ()  # sites whose rows are not here

    @property
    def sites(self) -> tuple[str, ...]:
        return (*self.rows, *self.elsewhere)


@checked
def glm(
    formula: str,
    data: TableLike,
    *,
    groups: str | ArrayLike,
    family: str = "gaussian",
    link: str | None = None,
    offset: str | ArrayLike | None = None,
    weights: str | ArrayLike | None = None,
    ridge: float | Mapping[str, float] = 0.0,
    dispersion: Positive = 1.0,
    floor: Floor | None = None,
    small: str = "refuse",
) -> GLMFit:
    """A generalised linear model over sites that keep their rows: coefficients, standard errors, tests.

    It equals the fit of all rows together, however they are shared out. Each round a site sends its log-likelihood,
    its score and its information: 1 + d + d^2 sums over its rows, twice the last where the link is not canonical.

    Args:
        formula: for instance "died ~ age + C(type)".
        data: a data frame, or columns by name.
        groups: the column of the sites' names, or one name a row.
        family: "gaussian", "binomial", "poisson", "gamma" or "negative_binomial".
        link: of gaussian "identity", "log", "inverse"; of binomial "logit", "probit", "cloglog", "loglog", "cauchit",
            "log", "identity"; of poisson and negative_binomial "log", "identity", "sqrt"; of gamma "log", "inverse",
            "identity". The first of each is the default.
        offset: a column, or one number a row, that is added to x'w: for instance the log of the time at risk.
        weights: a column, or one number a row: how many rows it stands for.
        ridge: adds ridge/2 |w|^2 to the mean negative log-likelihood of a row; not for the intercept. By column: of
            these alone.
        dispersion: of "negative_binomial": variance = mean + dispersion mean^2.
        floor: refuse sites and levels with fewer rows, as real sites would. Default: none.
        small: what is done about sites below the floor: "refuse" or "leave out".

    >>> import fedpoint as fp
    >>> rows = {"deaths": [1, 3, 2, 6], "ward": ["x", "y", "x", "y"], "site": ["a", "a", "b", "b"]}
    >>> fp.glm("deaths ~ ward", rows, groups="site", family="poisson").params.round(4).tolist()  # log 1.5, log 4.5/1.5
    [0.4055, 1.0986]
    """
    model, left_out = model_of(formula, data, groups, family, link, offset, weights, ridge, dispersion, floor, small)
    return fit_of(model, left_out)


def fit_of(model: Model, left_out: Mapping[str, int]) -> GLMFit:
    """Newton's method on sums over sites, and what inference needs of its end."""
    begun = collect(glm_sums.first, model.rows).total
    check_columns(model, begun)
    end = newton(
        lambda w: point_of(model, collect(glm_sums.slopes, model.rows, at=w).total, begun, w), start_of(model, begun)
    )
    check_end(model, begun, end)
    closing = collect(glm_sums.last, model.rows, at=end.w, own=glm_sums.of_site)
    notes = [*model.made.notes, *_quiet(model.response, closing.sites)]
    if left_out:
        notes.append(f"{counted(len(left_out), 'site')} below the floor left out: {listed(left_out)}")
    sites = {
        name: GLMSite(len(model.rows[name]), float(own.y), float(own.deviance)) for name, own in closing.sites.items()
    }
    return GLMFit.of(model.made, model.response, model.ridge, end, closing.total, sites, model.rows, notes)


def model_of(
    formula: str,
    data: TableLike,
    groups: str | ArrayLike,
    family: str,
    link: str | None,
    offset: str | ArrayLike | None,
    weights: str | ArrayLike | None,
    ridge: float | Mapping[str, float],
    dispersion: float,
    floor: Floor | None,
    small: str,
) -> tuple[Model, dict[str, int]]:
    """The model on the rows of the sites that take part, and the rows of those that do not."""
    kind = response(family, link)
    table, also = _with_columns(table_of(data), offset, weights)
    sites = sites_of(table, groups)
    kept, left_out = above_floor(sites.rows, floor, small)
    made = designs(formula, Sites(table, kept), also=[*{n for n in also.values() if n}], floor=floor)
    if not len(next(iter(made.sites.values())).y):
        raise FedpointError(f'formula {formula!r} has no response: write for instance "died ~ age"')
    rows = rows_of(made, also, kind, float(dispersion))
    check_rows(f"the response of {formula!r}", rows)
    return Model(made, kind, _ridge(ridge, made.names), rows), left_out


def rows_of(made: Designs, also: Mapping[str, str], kind: Response, dispersion: float) -> dict[str, Rows]:
    """What every site fits. also: the names of the columns of "offset" and "weights"."""
    return {
        name: Rows(own.X, own.y, own.also.get(also["offset"]), own.also.get(also["weights"]), kind, dispersion)
        for name, own in made.sites.items()
    }


def _with_columns(
    table: pd.DataFrame, offset: str | ArrayLike | None, weights: str | ArrayLike | None
) -> tuple[pd.DataFrame, dict[str, str]]:
    """The table with offset and weights as columns, and their names, empty for what is not given."""
    names = {"offset": "", "weights": ""}
    for argument, given, name in (("offset", offset, OFFSET), ("weights", weights, WEIGHT)):
        if given is None:
            continue
        if isinstance(given, str):
            column(table, given, argument)
            names[argument] = given
            continue
        values = numbers(argument, given)
        if values.shape != (len(table),):
            raise FedpointError(f"{argument} has shape {values.shape}: one number for each of {len(table):,} rows")
        table, names[argument] = table.assign(**{name: values}), name
    return table, names


def _ridge(ridge: float | Mapping[str, float], names: tuple[str, ...]) -> np.ndarray:
    if isinstance(ridge, Mapping):
        unknown = [name for name in ridge if name not in names]
        if unknown:
            raise FedpointError(f"ridge: no column {unknown[0]!r} in the model; it has {listed(names)}")
        found = np.array([float(ridge.get(name, 0.0)) for name in names])
    else:
        found = np.where(np.array(names) == INTERCEPT, 0.0, float(ridge))
    if not (np.isfinite(found).all() and (found >= 0).all()):
        raise FedpointError("ridge must be finite and at least 0")
    return found


def check_rows(what: str, rows: Mapping[str, Rows]) -> None:
    """Refuse what is no response of the family, and weights below 0."""
    some = next(iter(rows.values()))
    family = FAMILIES[some.response.family]
    ends = (np.less_equal, np.greater_equal) if not family.closed else (np.less, np.greater)
    wrong = {name: int((ends[0](own.y, family.low) | ends[1](own.y, family.high)).sum()) for name, own in rows.items()}
    bad = [name for name, count in wrong.items() if count]
    if bad:
        said = "between 0 and 1" if family.high == 1 else f"{'at least' if family.closed else 'above'} 0"
        raise FedpointError(
            f"{what} must be {said} in family {some.response.family!r}; in "
            f"{counted(sum(wrong.values()), 'row')} of {listed(bad)} it is not"
        )
    negative = [name for name, own in rows.items() if own.weight is not None and (own.weight < 0).any()]
    if negative:
        raise FedpointError(f"weights must not be negative; some are at {listed(negative)}")


def _quiet(kind: Response, sites: Mapping[str, glm_sums.SiteSums]) -> list[str]:
    """Sites at which y never varies: their rows alone would have no fit."""
    if kind.family not in ("binomial", "poisson", "negative_binomial"):
        return []
    none = [name for name, own in sites.items() if float(own.y) == 0]
    every = [name for name, own in sites.items() if kind.family == "binomial" and float(own.y) == float(own.weight)]
    said = [f"no events at {listed(none)}: these rows count, but have no fit of their own"] if none else []
    return said + ([f"nothing but events at {listed(every)}"] if every else [])


# The fit.


@double
def start_of(model: Model, begun: First) -> np.ndarray:
    """The model whose x'w + offset is nearest to the same for all rows, namely that of the mean of y."""
    mean = float(begun.y / begun.weight)
    eta = float(LINKS[model.response.link].eta(jnp.asarray(mean)))
    return solve(begun.gram, eta * begun.ones - begun.offset)


def point_of(model: Model, sums: Slopes, begun: First, w: np.ndarray) -> Point:
    """Sums over rows with the ridge; the expected curvature where the observed one is not definite."""
    weight = float(begun.weight) * model.ridge
    penalty = 0.5 * float(weight @ w**2)
    bend = sums.hessian + np.diag(weight)
    if model.response.link not in FAMILIES[model.response.family].convex and not _definite(bend):
        bend = sums.information + np.diag(weight)
    return Point(float(sums.value) - penalty, sums.score - weight * w, bend)


def _definite(A: np.ndarray) -> bool:
    if not np.isfinite(A).all():
        return False
    size = np.sqrt(np.maximum(np.abs(np.diag(A)), 1e-300))
    return bool(np.linalg.eigvalsh(A / np.outer(size, size))[0] > 1e-12)


# What cannot be estimated.


def check_columns(model: Model, begun: First) -> None:
    """Refuse columns that are combinations of others, and levels at which y does not vary."""
    names, mean = model.made.names, float(begun.y / begun.weight)
    weight = float(begun.weight) * model.ridge
    if begun.rows <= len(names) and not model.ridge.any():
        raise FedpointError(f"{counted(begun.rows, 'row')} for {counted(len(names), 'coefficient')}: use fewer terms")
    if among := dependent(begun.gram + np.diag(weight), names):
        raise FedpointError(
            f"{' and '.join(among)} are collinear at all sites together ({listed(model.sites)}): leave one of them out"
        )
    family = model.response.family
    counts = family in ("poisson", "negative_binomial")
    if (mean == 0 and (counts or family == "binomial")) or (mean == 1 and family == "binomial"):
        raise FedpointError(
            f"the response is {mean:g} in every row of {listed(model.sites)}: there is nothing to estimate"
        )
    if not counts and family != "binomial":
        return
    for j in np.flatnonzero((begun.zero_one == 0) & (model.ridge == 0)):
        inside, events = float(begun.high[j]), float(begun.y_high[j])
        outside, others = float(begun.weight) - inside, float(begun.y) - events
        full = family == "binomial"
        if inside and (events == 0 or (full and events == inside)):
            _separated(model, int(j), "its rows", events, inside)
        if outside and _is_level(model, int(j)) and (others == 0 or (full and others == outside)):
            _separated(model, int(j), "all rows but its own", others, outside)


def _is_level(model: Model, j: int) -> bool:
    """Whether a column stands alone against the rest: with further levels the reference may still be estimated."""
    return INTERCEPT in model.made.names and any(
        place.start == j and place.stop == j + 1 for place in model.made.terms.values()
    )


def _separated(model: Model, j: int, which: str, events: float, weight: float) -> None:
    name = model.made.names[j]
    where = [site for site, own in model.rows.items() if (own.X[:, j] != 0).any()] or model.sites
    said = "no event" if not events else "nothing but events"
    raise FedpointError(
        f"{name} separates the response: {said} in {which} ({weight:g} of {listed(where)}), so its coefficient is "
        "infinite. Join the level with another, leave it out, or give a ridge"
    )


def check_end(model: Model, begun: First, end: Optimum) -> None:
    """Refuse where the likelihood rises without end: its curvature has vanished in some direction."""
    if end.reached and not end.vanished:
        return
    size = np.sqrt(np.diag(begun.gram) / float(begun.weight))
    steep = np.nan_to_num(np.abs(end.w) * size, nan=np.inf)
    order = [*end.vanished, *np.argsort(-steep)]
    worst = next((model.made.names[j] for j in order if model.made.names[j] != INTERCEPT), INTERCEPT)
    raise FedpointError(
        f"no maximum of the likelihood was found: {worst}, perhaps with other columns, separates the "
        f"response at {listed(model.sites)}, and coefficients grow without end. Leave a column out, or give a ridge"
    )
