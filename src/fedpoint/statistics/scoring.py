"""How does a regression run over sites that only answer rounds? They send sums at a point, the hub steps as Newton.

A model is three things: the point, the sums over all rows there, and those where it began. So the last model of a study
holds all that inference needs, and no site's numbers by themselves where sums are masked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.algorithms.fednewton import newton_step
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.inbox import Inbox
from fedpoint.core.types import Message, Model, State, Tree
from fedpoint.core.vector import unwrap, wrap
from fedpoint.problems.base import Problem
from fedpoint.problems.cox import Stratum, log_likelihood
from fedpoint.problems.families import LINKS, Response
from fedpoint.problems.oracle import Mine, Numbers, Oracle
from fedpoint.statistics import glm_sums
from fedpoint.statistics.glm_sums import First, Last
from fedpoint.timing.base import Timing

DEFINITE = 1e-12  # least curvature in columns of curvature 1
FLAT = 1e-9  # relative: a fall of the log-likelihood that may be rounding


class Standing(NamedTuple):
    """What the hub knows: the best point so far with its sums, those where it began, and the point asked about next."""

    at: Array
    value: Array
    sums: Tree
    begun: Tree
    trial: Array
    started: Array


class Scoring(Algorithm):
    """Newton's method on sums over rows: a step is halved until the log-likelihood does not fall.

    Args:
        link: of a generalised linear model, which begins where x'w + offset is nearest to the same for all rows. Empty:
            it begins at the model's own start.
    """

    full = True

    link: str = ""

    def init(self, w: Model) -> tuple[State, State]:
        none, w = jnp.zeros(()), unwrap(w)
        return Standing(w["at"], none, w["sums"], w["begun"], w["at"], none), {**w, "at": 0.0 * w["at"]}

    def say(self, hub: Standing, row: object) -> Array:
        return hub.trial

    def local(self, heard: Array, memory: State, agent: Agent) -> tuple[Message, State]:
        return unwrap(agent.field(wrap({**memory, "at": heard})))["sums"], memory

    def combine(self, hub: Standing, inbox: Inbox) -> Standing:
        got = inbox.mean
        first = hub.started == 0
        lost = (got["inside"] < 0.5) | (got["value"] < hub.value - FLAT * abs(hub.value))
        lost = lost & (hub.started > (1 if self.link else 0))  # the first point that is chosen is kept
        step = newton_step(got["score"], _bend(got))
        begun = _either(first, got, hub.begun)
        ahead = Standing(hub.trial, got["value"], got, begun, hub.trial + step, hub.started + 1)
        back = hub._replace(trial=(hub.at + hub.trial) / 2)
        found = _either(lost, back, ahead)
        if not self.link:
            return found
        return _either(
            first, hub._replace(begun=got, trial=self._opening(got["first"]), started=hub.started + 1), found
        )

    def _opening(self, first: First) -> Array:
        eta = LINKS[self.link].eta(first.y / first.weight)
        return newton_step(eta * first.ones - first.offset, jnp.asarray(packed(first.gram)))

    def read(self, hub: Standing, memory: State) -> Model:
        return wrap({"at": hub.at, "begun": hub.begun, "sums": hub.sums})

    def invalid_under(self, timing: Timing) -> str:
        return "" if timing.everyone else "a regression needs the sums of all sites in every round: ask everyone"


def _bend(got: Mapping[str, Array]) -> Array:
    """The observed curvature; the expected one, of sums that have it, where that is not definite."""
    if "expected" not in got:
        return got["curvature"]
    d = len(got["score"])
    above = jnp.zeros((d, d)).at[np.triu_indices(d)].set(got["curvature"])
    size = jnp.sqrt(jnp.maximum(abs(jnp.diag(above)), 1e-300))
    least = jnp.linalg.eigvalsh((above + jnp.triu(above, 1).T) / jnp.outer(size, size))[0]
    return jnp.where(least > DEFINITE, got["curvature"], got["expected"])


def _either(yes: Array, a: Tree, b: Tree) -> Tree:
    return jax.tree.map(lambda x, y: jnp.where(yes, x, y), a, b)


def packed(A: Numbers) -> Numbers:
    """The upper triangle, row by row."""
    return A[np.triu_indices(A.shape[-1])]


class SiteProblem(Problem):
    """One site's rows, of which it sends sums."""

    def __init__(self, oracle: Oracle, own: Tree, rows: int, start: Model):
        self.names, self.weights, self.common = ["rows"], np.ones(1), ()
        self.own = jax.tree.map(lambda a: np.asarray(a, float if np.asarray(a).dtype.kind == "f" else None)[None], own)
        self.oracle, self._rows, self._start = oracle, rows, start

    def start(self) -> Model:
        return self._start

    def local_rows(self) -> np.ndarray:
        return np.array([self._rows])


@dataclass(frozen=True)
class SumsOfRows(Oracle):
    """A site's field is the mean of its rows' sums."""

    noisy = False
    known_noise = True

    def sums(self, own: Tree, w: Array) -> Tree:
        """value, score, packed curvature, and what the end needs; not finite where there is no likelihood."""
        raise NotImplementedError

    def rows(self, own: Tree) -> int:
        raise NotImplementedError

    def field(self, mine: Mine, w: Model, z: tuple) -> Model:
        return self.mean_field(mine, w)

    def mean_field(self, mine: Mine, w: Model) -> Model:
        found = jax.tree.map(lambda a: jnp.asarray(a, float) / self.rows(mine.own), self.sums(mine.own, w["at"]))
        inside = jnp.isfinite(found["value"])
        sums = jax.tree.map(lambda a: jnp.where(jnp.isfinite(a), a, 0.0), found)
        return {**w, "sums": {**sums, "inside": jnp.where(inside, 1.0, 0.0)}}


def start_of(sums: Tree, width: int) -> Model:
    """The model before the first round: zeros in these shapes."""
    zero = jax.tree.map(lambda a: np.zeros(np.shape(a)), {**sums, "inside": 0.0})
    return {"at": np.zeros(width), "begun": zero, "sums": zero}


# Generalised linear models.


class GLMOwn(NamedTuple):
    X: Numbers
    y: Numbers
    offset: Numbers
    weight: Numbers
    dispersion: Numbers
    ridge: Numbers
    first: First
    constant: Numbers


@dataclass(frozen=True)
class GLMSums(SumsOfRows):
    response: Response

    def rows(self, own: GLMOwn) -> int:
        return len(own.y)

    def sums(self, own: GLMOwn, w: Array) -> Tree:
        X, weight = jnp.asarray(own.X), own.weight
        eta = X @ w + own.offset
        loss, slope, bend = glm_sums.observed(self.response, eta, own.y, own.dispersion)
        expected = glm_sums.expected(self.response, eta, own.y, own.dispersion)[0]
        mean, variance, deviance = glm_sums.fitted(self.response, eta, own.y, own.dispersion)

        def gram(by: Array) -> Array:
            return X.T @ (X * by[:, None])

        score, hessian, information = -(weight * slope) @ X, gram(weight * bend), gram(weight * expected)
        off = (own.y - mean) ** 2
        pearson = weight @ jnp.where(off > 0, off / jnp.where(off > 0, variance, 1.0), 0.0)
        scores = gram(weight * slope**2), jnp.outer(score, score)
        known = own.first.weight, own.first.y
        last = Last._make((hessian, information, *scores, weight @ deviance, pearson, own.constant, score, *known))
        pull = own.first.weight * own.ridge
        value = -(weight @ loss) - 0.5 * pull @ (w * w)
        bends = {"curvature": packed(hessian + jnp.diag(pull)), "expected": packed(information + jnp.diag(pull))}
        return {"value": value, "score": score - pull * w, **bends, "first": own.first, "last": last}


def glm_site(rows: glm_sums.Rows, ridge: np.ndarray) -> SiteProblem:
    """What a site needs to answer a study of a generalised linear model."""
    first = jax.tree.map(lambda a: np.asarray(a, float), glm_sums.first(rows, None))
    own = GLMOwn(
        rows.X,
        rows.y,
        np.zeros(len(rows)) if rows.offset is None else rows.offset,
        np.ones(len(rows)) if rows.weight is None else rows.weight,
        np.asarray(rows.dispersion, float),
        ridge,
        first,
        np.asarray(glm_sums.constant(rows)),
    )
    return SiteProblem(GLMSums(rows.response), own, len(rows), glm_start(len(ridge)))


def glm_start(d: int) -> Model:
    zero, column, square = np.zeros(()), np.zeros(d), np.zeros((d, d))
    first = First._make((zero, zero, zero, square, *[column] * 5))
    last = Last._make((*[square] * 4, zero, zero, zero, column, zero, zero))
    bends = dict.fromkeys(("curvature", "expected"), packed(square))
    return start_of({"value": zero, "score": column, **bends, "first": first, "last": last}, d)


# Proportional hazards.


class CoxOwn(NamedTuple):
    stratum: Stratum
    order: Mapping[str, Numbers]


@dataclass(frozen=True)
class CoxSums(SumsOfRows):
    def rows(self, own: CoxOwn) -> int:
        return len(own.stratum.event)

    def sums(self, own: CoxOwn, w: Array) -> Tree:
        def value(v: Array) -> Array:
            return log_likelihood(own.stratum, v, jnp.ones(len(own.stratum.event), bool))

        found = {"value": value(w), "score": jax.grad(value)(w), "curvature": packed(-jax.hessian(value)(w))}
        return {**found, "order": own.order, "events": own.stratum.event.sum()}


def cox_site(rows: Stratum, order: Mapping[str, np.ndarray]) -> SiteProblem:
    """What a site needs to answer a study of proportional hazards. order: of `order_of_events`."""
    own = CoxOwn(rows, {name: np.asarray(sums, float) for name, sums in order.items()})
    return SiteProblem(CoxSums(), own, len(rows.event), cox_start(rows.X.shape[1]))


def cox_start(d: int) -> Model:
    zero, column = np.zeros(()), np.zeros(d)
    order = dict.fromkeys(("varies", "above", "below"), column)
    sums = {"value": zero, "score": column, "curvature": np.zeros(d * (d + 1) // 2), "order": order, "events": zero}
    return start_of(sums, d)


# The first table of a paper: its means maximise minus the squares around them.


class TableOwn(NamedTuple):
    X: Numbers  # (n, columns)
    place: Numbers  # (n, groups): 1 in a row's own
    levels: Mapping[str, Numbers]  # (levels, groups) counts


@dataclass(frozen=True)
class TableSums(SumsOfRows):
    def rows(self, own: TableOwn) -> int:
        return len(own.place)

    def sums(self, own: TableOwn, w: Array) -> Tree:
        X, place = jnp.asarray(own.X), jnp.asarray(own.place)
        off = X[:, :, None] - w.reshape(X.shape[1], place.shape[1])
        there, squares = jnp.ones(X.T.shape) @ place, jnp.einsum("npg,ng->pg", off**2, place)
        return {
            "value": -0.5 * squares.sum(),
            "score": jnp.einsum("npg,ng->pg", off, place).reshape(-1),
            "curvature": packed(jnp.diag(there.reshape(-1))),
            "rows": place.sum(0),
            "there": there,
            "squares": squares,
            "levels": own.levels,
        }


def table_site(
    X: np.ndarray, place: np.ndarray, groups: int, codes: Mapping[str, tuple[np.ndarray, int]]
) -> SiteProblem:
    """What a site needs to answer a study of a first table. codes: of each column the level of every row, and how many
    levels there are."""
    own = np.eye(groups)[place]
    levels = {name: np.eye(count)[code].T @ own for name, (code, count) in codes.items()}
    start = table_start(X.shape[1], groups, {name: count for name, (_, count) in codes.items()})
    return SiteProblem(TableSums(), TableOwn(X, own, levels), len(X), start)


def table_start(columns: int, groups: int, levels: Mapping[str, int]) -> Model:
    d, each = columns * groups, np.zeros((columns, groups))
    sums = {"value": np.zeros(()), "score": np.zeros(d), "curvature": np.zeros(d * (d + 1) // 2)}
    sums |= {"rows": np.zeros(groups), "there": each, "squares": each}
    return start_of(sums | {"levels": {name: np.zeros((count, groups)) for name, count in levels.items()}}, d)
