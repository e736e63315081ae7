"""What does a generalised linear model say of a row? Families and links, as functions of eta = x'w + offset.

Losses are negative log likelihoods for dispersion 1, without what does not depend on eta. In every family they are
linear in y: the expected curvature is the curvature at y = mean(eta).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import log_ndtr, ndtr, ndtri
from jax.typing import ArrayLike

from fedpoint.core.errors import FedpointError, nearest

INF = float("inf")
Elementwise = Callable[[Array], Array]


class Link(NamedTuple):
    """mean(eta), its logarithm, log(1 - mean), and eta of a mean; with eta's range for means above 0, and in (0, 1)."""

    mean: Elementwise
    log_mean: Elementwise
    log_rest: Elementwise
    eta: Elementwise
    positive: tuple[float, float]
    unit: tuple[float, float]


def log1mexp(x: Array) -> Array:
    """log(1 - exp(-x)) for x > 0, accurate at both ends."""
    small = x < 0.7
    near, far = jnp.where(small, x, 0.5), jnp.where(small, 1.0, x)  # no branch may have an infinite slope
    return jnp.where(small, jnp.log(-jnp.expm1(-near)), jnp.log1p(-jnp.exp(-far)))


EVERYWHERE, ABOVE = (-INF, INF), (0.0, INF)

LINKS = {
    "identity": Link(lambda e: e, jnp.log, lambda e: jnp.log1p(-e), lambda m: m, ABOVE, (0.0, 1.0)),
    "log": Link(jnp.exp, lambda e: e, lambda e: log1mexp(-e), jnp.log, EVERYWHERE, (-INF, 0.0)),
    "inverse": Link(
        lambda e: 1.0 / e, lambda e: -jnp.log(e), lambda e: jnp.log1p(-1 / e), lambda m: 1.0 / m, ABOVE, (1.0, INF)
    ),
    "sqrt": Link(lambda e: e * e, lambda e: 2 * jnp.log(e), lambda e: jnp.log1p(-e * e), jnp.sqrt, ABOVE, (0.0, 1.0)),
    "logit": Link(
        jax.nn.sigmoid, jax.nn.log_sigmoid, lambda e: jax.nn.log_sigmoid(-e), jax.scipy.special.logit, ABOVE, EVERYWHERE
    ),
    "probit": Link(ndtr, log_ndtr, lambda e: log_ndtr(-e), ndtri, ABOVE, EVERYWHERE),
    "cloglog": Link(
        lambda e: -jnp.expm1(-jnp.exp(e)),
        lambda e: log1mexp(jnp.exp(e)),
        lambda e: -jnp.exp(e),
        lambda m: jnp.log(-jnp.log1p(-m)),
        ABOVE,
        EVERYWHERE,
    ),
    "loglog": Link(
        lambda e: jnp.exp(-jnp.exp(-e)),
        lambda e: -jnp.exp(-e),
        lambda e: log1mexp(jnp.exp(-e)),
        lambda m: -jnp.log(-jnp.log(m)),
        ABOVE,
        EVERYWHERE,
    ),
    "cauchit": Link(
        lambda e: 0.5 + jnp.arctan(e) / np.pi,
        lambda e: jnp.log(jnp.arctan2(1.0, -e) / np.pi),
        lambda e: jnp.log(jnp.arctan2(1.0, e) / np.pi),
        lambda m: jnp.tan(np.pi * (m - 0.5)),
        ABOVE,
        EVERYWHERE,
    ),
}


class Family(NamedTuple):
    """links: that a mean can have here, the default first; convex: those of them with a convex loss.

    loss(link, eta, y, dispersion); saturated(y, dispersion): where the mean is y. variance(mean, dispersion), where phi
    is 1. low, high: what y may be, with the ends where `closed`.
    """

    links: tuple[str, ...]
    convex: tuple[str, ...]
    loss: Callable[[Link, Array, Array, Array], Array]
    saturated: Callable[[Array, Array], Array]
    variance: Callable[[Array, Array], Array]
    low: float
    high: float
    closed: bool
    scaled: bool  # phi is not 1, and is estimated
    means: str  # which means a model may have: "any", "positive", "unit"


def xlogx(y: Array) -> Array:
    return jax.scipy.special.xlogy(y, y)


def _poisson(link: Link, eta: Array, y: Array, dispersion: Array) -> Array:
    return link.mean(eta) - y * link.log_mean(eta)


def _binomial(link: Link, eta: Array, y: Array, dispersion: Array) -> Array:
    return -(y * link.log_mean(eta) + (1 - y) * link.log_rest(eta))


def _gamma(link: Link, eta: Array, y: Array, dispersion: Array) -> Array:
    return y / link.mean(eta) + link.log_mean(eta)


def _negative_binomial(link: Link, eta: Array, y: Array, dispersion: Array) -> Array:
    """Variance mean + dispersion mean^2."""
    log_mean = link.log_mean(eta)
    return (y + 1 / dispersion) * jnp.logaddexp(0.0, jnp.log(dispersion) + log_mean) - y * log_mean


FAMILIES = {
    "gaussian": Family(
        ("identity", "log", "inverse"),
        ("identity",),
        lambda link, eta, y, a: 0.5 * (y - link.mean(eta)) ** 2,
        lambda y, a: jnp.zeros_like(y),
        lambda m, a: jnp.ones_like(m),
        -INF,
        INF,
        False,
        True,
        "any",
    ),
    "binomial": Family(
        ("logit", "probit", "cloglog", "loglog", "cauchit", "log", "identity"),
        ("logit", "probit", "cloglog", "loglog", "log", "identity"),
        _binomial,
        lambda y, a: -xlogx(y) - xlogx(1 - y),
        lambda m, a: m * (1 - m),
        0.0,
        1.0,
        True,
        False,
        "unit",
    ),
    "poisson": Family(
        ("log", "identity", "sqrt"),
        ("log", "identity", "sqrt"),
        _poisson,
        lambda y, a: y - xlogx(y),
        lambda m, a: m,
        0.0,
        INF,
        True,
        False,
        "positive",
    ),
    "gamma": Family(
        ("log", "inverse", "identity"),
        ("log", "inverse"),
        _gamma,
        lambda y, a: 1 + jnp.log(y),
        lambda m, a: m**2,
        0.0,
        INF,
        False,
        True,
        "positive",
    ),
    "negative_binomial": Family(
        ("log", "identity", "sqrt"),
        ("log",),
        _negative_binomial,
        lambda y, a: (y + 1 / a) * jnp.log1p(a * y) - xlogx(y),
        lambda m, a: m + a * m**2,
        0.0,
        INF,
        True,
        False,
        "positive",
    ),
}


@dataclass(frozen=True)
class Response:
    """A family with a link, by their names: what a program is compiled for."""

    family: str
    link: str

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which numbers eta must be."""
        link = LINKS[self.link]
        everywhere = ABOVE if self.link == "inverse" else EVERYWHERE
        return {"any": everywhere, "positive": link.positive, "unit": link.unit}[FAMILIES[self.family].means]

    def inside(self, eta: ArrayLike) -> Array:
        """eta, and NaN where there is no such mean: a run that leaves the range is then seen to."""
        (low, high), eta = self.bounds, jnp.asarray(eta)
        return jnp.where((eta > low) & (eta < high), eta, jnp.nan)

    def mean(self, eta: ArrayLike) -> Array:
        return LINKS[self.link].mean(self.inside(eta))

    def _loss(self, eta: Array, y: Array, dispersion: Array) -> Array:
        return FAMILIES[self.family].loss(LINKS[self.link], eta, y, dispersion)

    def _slope(self, eta: Array, y: Array, dispersion: Array) -> Array:
        return jax.grad(lambda e: jnp.sum(self._loss(e, y, dispersion)))(eta)

    def loss(self, eta: ArrayLike, y: ArrayLike, dispersion: ArrayLike) -> Array:
        return self._loss(self.inside(eta), jnp.asarray(y), jnp.asarray(dispersion))

    def slope(self, eta: ArrayLike, y: ArrayLike, dispersion: ArrayLike) -> Array:
        """The derivative of every loss in its eta."""
        return self._slope(self.inside(eta), jnp.asarray(y), jnp.asarray(dispersion))

    def curvature(self, eta: ArrayLike, y: ArrayLike, dispersion: ArrayLike) -> Array:
        """The second derivative: the observed one."""
        at, fixed = self.inside(eta), (jnp.asarray(y), jnp.asarray(dispersion))
        return jax.jvp(lambda e: self._slope(e, *fixed), (at,), (jnp.ones_like(at),))[1]

    def information(self, eta: ArrayLike, dispersion: ArrayLike) -> Array:
        """Its expectation, mean'(eta)^2 / variance: Fisher's."""
        return self.curvature(eta, self.mean(eta), dispersion)

    def deviance(self, eta: ArrayLike, y: ArrayLike, dispersion: ArrayLike) -> Array:
        """Twice the loss above that of a model that predicts y."""
        return 2 * (
            self.loss(eta, y, dispersion) - FAMILIES[self.family].saturated(jnp.asarray(y), jnp.asarray(dispersion))
        )

    def variance(self, eta: ArrayLike, dispersion: ArrayLike) -> Array:
        return FAMILIES[self.family].variance(self.mean(eta), jnp.asarray(dispersion))


def response(family: str, link: str | None) -> Response:
    """By name, the family's usual link where none is given; an unknown one suggests the nearest."""
    if family not in FAMILIES:
        raise FedpointError(f"unknown family {family!r}: {nearest(str(family), FAMILIES)}")
    links = FAMILIES[family].links
    link = links[0] if link is None else link
    if link not in links:
        raise FedpointError(f"family {family!r} has no link {link!r}: {nearest(str(link), links)}")
    return Response(family, link)
