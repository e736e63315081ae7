"""What came of a regression at sites that only answered rounds? The fit, from the last sums that the hub has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Model, Tree
from fedpoint.data.floor import Floor
from fedpoint.problems.families import Response
from fedpoint.statistics.cox import CoxFit, CoxSite, Likelihood, check_order, check_separation
from fedpoint.statistics.formula import Coding, Designs
from fedpoint.statistics.glm import Model as GLMModel
from fedpoint.statistics.glm import check_columns, check_end
from fedpoint.statistics.glm_fit import GLMFit, GLMSite
from fedpoint.statistics.inference import Coefficients
from fedpoint.statistics.newton import Optimum, Point, dependent, inverse, solve
from fedpoint.statistics.table_one import Counted, Measured, TableOne, counted_column, measured_column

ENOUGH = 1e-2  # standard errors from the maximum: masked sums are rounded
SHORT = 1e-3  # of all rows, that may be missing of a sum for rounding


def _totals(part: Tree, n: int) -> Tree:
    return jax.tree.map(lambda a: n * np.asarray(a, float), part)


def _whole(sums: np.ndarray) -> np.ndarray:
    """Counts as they were before masks rounded them."""
    near = np.rint(sums)
    return np.where(np.abs(sums - near) < SHORT, near, sums)


def _square(above: np.ndarray) -> np.ndarray:
    d = int((np.sqrt(8 * len(above) + 1) - 1) / 2)
    full = np.zeros((d, d))
    full[np.triu_indices(d)] = above
    return full + np.triu(full, 1).T


def _ended(model: Model, n: int, rounds: int) -> Optimum:
    now, then = (
        _totals({k: model[which][k] for k in ("value", "score", "curvature")}, n) for which in ("sums", "begun")
    )
    here, first = (Point(float(p["value"]), p["score"], _square(p["curvature"])) for p in (now, then))
    step = solve(here.curvature, here.score)
    return Optimum(
        np.asarray(model["at"]), here, first, rounds, float(np.sqrt(max(float(here.score @ step), 0.0))), ENOUGH
    )


def _check_rows(found: float, n: int) -> None:
    if abs(found - n) > SHORT * n:
        raise FedpointError(
            f"the sums are over {found:.6g} rows, and sites have {n:,}: some answers were shortened by the study's "
            "clip. Raise it"
        )


def glm_fit(
    coding: Coding,
    response: Response,
    ridge: np.ndarray,
    model: Model,
    rows: Mapping[str, int],
    notes: Sequence[str],
    rounds: int,
) -> GLMFit:
    """Of the last model of a study: what `fp.glm` finds of the same rows, without what needs a site's rows."""
    n = sum(rows.values())
    begun = type(model["begun"]["first"])(*_totals(model["begun"]["first"], n))
    _check_rows(float(begun.rows), n)
    counts = {name: _whole(getattr(begun, name)) for name in ("weight", "y", "zero_one", "high", "y_high")}
    begun = begun._replace(rows=n, **counts)
    made = Designs(coding.formula, {}, coding.names, coding.terms, coding.levels, {}, {})
    about = GLMModel(made, response, ridge, {}, tuple(rows))
    check_columns(about, begun)
    end = _ended(model, n, rounds - 2)
    end = end._replace(first=end.first._replace(curvature=begun.gram + np.diag(n * ridge)))
    check_end(about, begun, end)
    sums = type(model["sums"]["last"])(*_totals(model["sums"]["last"], n))
    sites = {name: GLMSite(count) for name, count in rows.items()}
    return GLMFit.of(made, response, ridge, end, sums, sites, {}, list(notes))


def cox_fit(
    coding: Coding, ties: str, model: Model, rows: Mapping[str, int], notes: Sequence[str], rounds: int
) -> CoxFit:
    """Of the last model of a study: what `fp.cox` finds of the same rows, without the sites' baseline hazards."""
    n = sum(rows.values())
    end, sums = _ended(model, n, rounds), _totals({k: model["sums"][k] for k in ("order", "events")}, n)
    events = round(float(sums["events"]))
    if not events:
        raise FedpointError("no site has an event: there is nothing to estimate hazards from")
    found = {name: np.rint(counts) for name, counts in sums["order"].items()}
    check_order(coding.names, found, events, list(rows))
    if among := dependent(end.first.curvature, coding.names):
        raise FedpointError(f"within every site, {' and '.join(among)} are collinear: leave one of them out")
    check_separation(coding.names, end)
    return CoxFit(
        formula=coding.formula,
        ties=ties,
        coefficients=Coefficients(coding.names, end.w, inverse(end.point.curvature), coding.terms),
        log_likelihood=end.point.value,
        null=Likelihood(np.asarray(end.first.value), end.first.score, end.first.curvature),
        sites={name: CoxSite(count) for name, count in rows.items()},
        rounds=rounds,
        decrement=end.decrement,
        events=events,
        notes=list(notes),
    )


def table_fit(
    model: Model,
    groups: list[str],
    columns: Sequence[str],
    measured: Sequence[str],
    levels: Mapping[str, list[str]],
    rows: Mapping[str, int],
    notes: Sequence[str],
    floor: Floor | None = None,
) -> TableOne:
    """Of the last model of a study: what `fp.statistics.table_one` finds of the same rows."""
    n = sum(rows.values())
    sums = _totals({k: model["sums"][k] for k in ("rows", "there", "squares", "levels")}, n)
    counts = {k: jax.tree.map(lambda a: np.rint(a).astype(int), sums[k]) for k in ("rows", "there", "levels")}
    _check_rows(float(counts["rows"].sum()), n)
    means = np.asarray(model["at"]).reshape(len(measured), len(groups))
    found: dict[str, Measured | Counted] = {}
    for name in columns:
        if name in levels:
            found[name] = counted_column(levels[name], counts["levels"][name], counts["rows"], floor)
        elif name in measured:
            k = list(measured).index(name)
            mean = np.where(counts["there"][k] > 0, means[k], np.nan)
            found[name] = measured_column(counts["there"][k], mean, sums["squares"][k], counts["rows"], floor)
    return TableOne(groups, counts["rows"], found, len(rows), floor, list(notes))
