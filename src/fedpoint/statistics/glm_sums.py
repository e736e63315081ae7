"""What does a site send of its rows for a generalised linear model? Sums of likelihoods, scores and information."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from scipy import special

from fedpoint.core.precision import double
from fedpoint.problems.families import FAMILIES, Response

BLOCK = 8192  # rows at once: they stay in the cache, and programs of few sizes are compiled
OUTSIDE = -1e100  # in place of a likelihood that there is not: a message must be finite, and its square
SHORTEST = 1024  # rows of a program: a site with fewer costs microseconds, a program of its own a tenth of a second


@dataclass(frozen=True)
class Rows:
    """One site's rows: X (n, d), y, offset and weight (n,), with the model of y that is fitted."""

    X: np.ndarray
    y: np.ndarray
    offset: np.ndarray | None
    weight: np.ndarray | None  # a row of weight 2 is two rows
    response: Response
    dispersion: float  # of the negative binomial

    def __len__(self) -> int:
        return len(self.X)

    def blocks(self, w: np.ndarray) -> list[Block]:
        places = [slice(start, start + BLOCK) for start in range(0, len(self), BLOCK)]
        return [
            Block(
                self.X[own],
                self.X[own] @ w + (0.0 if self.offset is None else self.offset[own]),
                self.y[own],
                np.ones(len(self.y[own])) if self.weight is None else self.weight[own],
            )
            for own in places
        ]


class Block(NamedTuple):
    X: np.ndarray
    eta: np.ndarray
    y: np.ndarray
    weight: np.ndarray


class First(NamedTuple):
    """What is known before a model is: sums of weights, of y, and of products of columns."""

    rows: int
    weight: np.ndarray
    y: np.ndarray
    gram: np.ndarray  # X'WX
    ones: np.ndarray  # X'W1
    offset: np.ndarray  # X'W offset
    zero_one: np.ndarray  # (d,) rows in which a column is neither 0 nor 1
    high: np.ndarray  # (d,) weights of the rows in which it is not 0
    y_high: np.ndarray  # (d,) y of those rows


class Slopes(NamedTuple):
    """At a model: minus the loss, its gradient and curvature, observed and expected."""

    value: np.ndarray
    score: np.ndarray  # (d,)
    hessian: np.ndarray  # (d, d)
    information: np.ndarray


class Last(NamedTuple):
    """What inference needs at the estimate."""

    hessian: np.ndarray
    information: np.ndarray
    scores: np.ndarray  # sum of score score' over rows
    site_scores: np.ndarray  # the same of the sum over a site's rows
    deviance: np.ndarray
    pearson: np.ndarray
    constant: np.ndarray  # what the log-likelihood of a saturated model has to be added
    score: np.ndarray
    weight: np.ndarray
    y: np.ndarray


class SiteSums(NamedTuple):
    """What is known of a site by its name."""

    weight: np.ndarray
    y: np.ndarray
    deviance: np.ndarray


def first(rows: Rows, at: None) -> First:
    X, w, y = rows.X, _weights(rows), rows.y
    weighted = X if rows.weight is None else X * w[:, None]
    other = np.zeros(len(rows)) if rows.offset is None else rows.offset
    inside = X != 0
    return First(
        len(rows),
        w.sum(),
        w @ y,
        X.T @ weighted,
        weighted.sum(0),
        weighted.T @ other,
        (inside & (X != 1)).sum(0),
        w @ inside,
        (w * y) @ inside,
    )


@double
def slopes(rows: Rows, w: np.ndarray) -> Slopes:
    total = None
    for block in rows.blocks(w):
        loss, slope, bend, expected = _terms(rows, block)
        hessian = _gram(block.X, block.weight * bend)
        same = expected is bend
        found = Slopes(
            -(block.weight @ loss),
            -((block.weight * slope) @ block.X),
            hessian,
            hessian if same else _gram(block.X, block.weight * expected),
        )
        total = found if total is None else Slopes(*(a + b for a, b in zip(total, found, strict=True)))
    assert total is not None
    if np.isfinite(total.value):
        return total
    return Slopes(np.asarray(OUTSIDE), *(np.zeros_like(part) for part in total[1:]))


@double
def last(rows: Rows, w: np.ndarray) -> Last:
    found = slopes(rows, w)
    scores, deviance, pearson = np.zeros_like(found.hessian), 0.0, 0.0
    for block in rows.blocks(w):
        _, slope, _, _ = _terms(rows, block)
        scores += _gram(block.X, block.weight * slope**2)
        mean, variance, dev = _elementwise(fitted, rows, block)
        deviance += block.weight @ dev
        off = (block.y - mean) ** 2
        pearson += block.weight @ np.divide(off, variance, out=np.zeros_like(off), where=off > 0)
    weight = _weights(rows)
    return Last(
        found.hessian,
        found.information,
        scores,
        np.outer(found.score, found.score),
        np.asarray(deviance),
        np.asarray(pearson),
        np.asarray(constant(rows)),
        found.score,
        weight.sum(),
        weight @ rows.y,
    )


def of_site(sums: Last) -> SiteSums:
    return SiteSums(sums.weight, sums.y, sums.deviance)


def _weights(rows: Rows) -> np.ndarray:
    return np.ones(len(rows)) if rows.weight is None else rows.weight


def _gram(X: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return X.T @ (X * weight[:, None])


# Functions of single rows, compiled for few lengths.


def canonical(response: Response) -> bool:
    """Whether the observed curvature is the expected one."""
    return (response.family, response.link) in (("gaussian", "identity"), ("binomial", "logit"), ("poisson", "log"))


def _terms(rows: Rows, block: Block) -> tuple[np.ndarray, ...]:
    """Loss, slope, curvature and expected curvature of every row."""
    if canonical(rows.response):
        loss, slope, bend = _elementwise(observed, rows, block)
        return loss, slope, bend, bend
    return (*_elementwise(observed, rows, block), *_elementwise(expected, rows, block))


def _elementwise(function: Callable[..., tuple[Array, ...]], rows: Rows, block: Block) -> tuple[np.ndarray, ...]:
    """On rows repeated up to a power of two: programs of four lengths serve all sites."""
    n = len(block.y)
    size = max(SHORTEST, 1 << max(n - 1, 0).bit_length())
    padded = (np.concatenate([a, np.full(size - n, a[0])]) if size > n else a for a in (block.eta, block.y))
    return tuple(np.asarray(a)[:n] for a in function(rows.response, *padded, rows.dispersion))


@partial(jax.jit, static_argnums=0)
def observed(response: Response, eta: Array, y: Array, dispersion: Array) -> tuple[Array, ...]:
    at = (eta, y, dispersion)
    return response.loss(*at), response.slope(*at), response.curvature(*at)


@partial(jax.jit, static_argnums=0)
def expected(response: Response, eta: Array, y: Array, dispersion: Array) -> tuple[Array, ...]:
    return (response.information(eta, dispersion),)


@partial(jax.jit, static_argnums=0)
def fitted(response: Response, eta: Array, y: Array, dispersion: Array) -> tuple[Array, ...]:
    return response.mean(eta), response.variance(eta, dispersion), response.deviance(eta, y, dispersion)


# The log-likelihood: saturated - deviance / (2 phi).


def constant(rows: Rows) -> float:
    """What the log-likelihood of a saturated model has to be added."""
    return float(_weights(rows) @ _constants(rows))


def _constants(rows: Rows) -> np.ndarray:
    """(n,): of gamma log y; of families without phi the log-likelihood of a model that predicts y."""
    y, a = rows.y, rows.dispersion
    if rows.response.family == "poisson":
        return special.xlogy(y, y) - y - special.gammaln(y + 1)
    if rows.response.family == "binomial":
        return special.xlogy(y, y) + special.xlog1py(1 - y, -y)
    if rows.response.family == "negative_binomial":
        ways = special.gammaln(y + 1 / a) - special.gammaln(1 / a) - special.gammaln(y + 1)
        return ways + special.xlogy(y, a * y) - (y + 1 / a) * np.log1p(a * y)
    return np.log(y) if rows.response.family == "gamma" else np.zeros(len(y))


def log_likelihood(family: str, constant: float, deviance: float, weight: float, phi: float) -> float:
    """Of a fit, from its sums; of gaussian at the phi where it is largest, of gamma at the estimated one."""
    if family == "gaussian":
        return -0.5 * weight * (np.log(2 * np.pi * deviance / weight) + 1)
    if family == "gamma":
        saturated = weight * (-np.log(phi) / phi - special.gammaln(1 / phi) - 1 / phi) - constant
        return float(saturated - deviance / (2 * phi))
    return float(constant - deviance / 2)


def scaled(response: Response) -> bool:
    """Whether the family has a phi that is estimated."""
    return FAMILIES[response.family].scaled
