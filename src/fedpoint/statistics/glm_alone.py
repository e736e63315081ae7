"""What would others have found? A site alone, of its own rows; another algorithm, of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.problems.families import FAMILIES
from fedpoint.problems.glm import GLM
from fedpoint.statistics import glm_sums
from fedpoint.statistics.glm_sums import Rows
from fedpoint.statistics.inference import Coefficients
from fedpoint.statistics.newton import Point, dependent, inverse, newton

if TYPE_CHECKING:
    from fedpoint.statistics.glm_fit import GLMFit


def alone(fit: GLMFit, rows: Rows) -> Coefficients | str:
    """The coefficients of one site's rows, from the joint ones on, or in a few words why it has none."""
    begun = glm_sums.first(rows, None)
    d, weight = len(fit.names), float(begun.weight) * fit.ridge
    if len(rows) <= d and not fit.ridge.any():
        return "too few rows"
    if dependent(begun.gram + np.diag(weight), fit.names):
        return "collinear"
    mean = float(begun.y / begun.weight)
    if mean == FAMILIES[fit.response.family].low or mean == FAMILIES[fit.response.family].high:
        return "y is constant"

    def at(w: np.ndarray) -> Point:
        sums = glm_sums.slopes(rows, w)
        bend = sums.hessian if fit.response.link in FAMILIES[fit.response.family].convex else sums.information
        return Point(float(sums.value) - 0.5 * float(weight @ w**2), sums.score - weight * w, bend + np.diag(weight))

    end = newton(at, fit.values)
    if not end.reached or end.vanished:
        return "separated"
    last = glm_sums.last(rows, end.w)
    A = inverse(last.information + np.diag(weight))
    phi = float(last.pearson) / (float(last.weight) - d) if glm_sums.scaled(fit.response) else 1.0
    return Coefficients(fit.names, end.w, phi * A @ last.information @ A, fit.terms)


def problem_of(fit: GLMFit) -> tuple[GLM, np.ndarray]:
    """The fit's objective as a problem of any algorithm, and by what its columns were divided."""
    rows = list(fit.held.values())
    if not rows:
        raise FedpointError("the rows are not here: run the algorithm where they are")
    X, some = np.concatenate([own.X for own in rows]), rows[0]
    size = np.sqrt((X**2).mean(0))
    weight = None if some.weight is None else np.concatenate([_there(own.weight) for own in rows])
    offset = None if some.offset is None else np.concatenate([_there(own.offset) for own in rows])
    problem = GLM(
        X / size,
        np.concatenate([own.y for own in rows]),
        np.repeat(list(fit.held), [len(own) for own in rows]),
        fit.response.family,
        fit.response.link,
        offset,
        weight,
        fit.ridge / size**2,
        dispersion=some.dispersion,
    )
    return problem, size


def _there(values: np.ndarray | None) -> np.ndarray:
    assert values is not None  # of one site, and so of all
    return values
