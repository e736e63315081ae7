"""Generalised linear models: counts, proportions, times and costs, by families and links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Unpack, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.arrays import numbers
from fedpoint.core.compiling import quickly
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import Positive
from fedpoint.core.numbers import counted
from fedpoint.core.precision import double
from fedpoint.core.types import Data, Model
from fedpoint.problems.base import Constants, by_agent, check_agents, check_finite, check_held_out, check_weights
from fedpoint.problems.families import FAMILIES, LINKS, Response, response
from fedpoint.problems.models import at_model, at_models
from fedpoint.problems.oracle import Mine, Numbers
from fedpoint.problems.penalised import masses
from fedpoint.problems.rows import RowOptions, RowsOracle, RowsProblem, row_noise, row_options

BENDS = {("gaussian", "identity"): 1.0, ("binomial", "logit"): 0.25, ("binomial", "probit"): 1.0}  # most curvature
FLAT = 1e-13  # curvature of scaled columns, over the largest, below which a direction has none
NEWTON = 100
LINE = Response("gaussian", "identity")
HALVES = 0.5 ** np.arange(34)


class GLMRows(NamedTuple):
    """Rows as the loss wants them; mass is what a row counts in its agent's mean, 1 on average."""

    X: Numbers  # (n, d)
    y: Numbers  # (n,)
    offset: Numbers
    mass: Numbers


class Seen(NamedTuple):
    """What a response is a function of."""

    eta: Array
    y: Array
    dispersion: Array


class GLMExtra(NamedTuple):
    ridge: Numbers  # (d,)
    dispersion: Numbers


@dataclass(frozen=True)
class GLMOracle(RowsOracle):
    response: Response = LINE

    def _seen(self, w: Model, rows: GLMRows, weight: Array, extra: GLMExtra) -> tuple[Array, Seen]:
        """What rows count, and what they say; those that count nothing say what does no harm."""
        counts = weight * rows.mass.astype(w.dtype)
        low, high = self.response.bounds
        harmless = float(np.clip(0.5, low + 0.25, high - 0.25))
        eta = jnp.where(counts == 0, harmless, rows.X.astype(w.dtype) @ w + rows.offset.astype(w.dtype))
        y = jnp.where(counts == 0, 0.5, rows.y).astype(w.dtype)
        return counts, Seen(eta, y, jnp.asarray(extra.dispersion, w.dtype))

    def weighted_loss(self, w: Model, rows: GLMRows, weight: Array, extra: GLMExtra) -> Array:
        counts, seen = self._seen(w, rows, weight, extra)
        return counts @ self.response.loss(*seen)

    def weighted_gradient(self, w: Model, rows: GLMRows, weight: Array, extra: GLMExtra) -> Model:
        counts, seen = self._seen(w, rows, weight, extra)
        return (counts * self.response.slope(*seen)) @ rows.X.astype(w.dtype)

    def weighted_hessian(self, w: Model, rows: GLMRows, weight: Array, extra: GLMExtra) -> Array:
        counts, seen = self._seen(w, rows, weight, extra)
        return _gram(rows.X.astype(w.dtype), counts * self.response.curvature(*seen))

    def weighted_information(self, w: Model, rows: GLMRows, weight: Array, extra: GLMExtra) -> Array:
        """Fisher's: the expected Hessian."""
        counts, (eta, _, dispersion) = self._seen(w, rows, weight, extra)
        return _gram(rows.X.astype(w.dtype), counts * self.response.information(eta, dispersion))

    def sandwich(self, w: Model, v: Model, rows: GLMRows, weight: Array, P: Array, extra: GLMExtra) -> Array:
        counts, seen = self._seen(w, rows, weight, extra)
        bends = self.response.curvature(*seen) * self.response.curvature(*self._seen(v, rows, weight, extra)[1])
        X = jnp.asarray(rows.X)
        return _gram(X, counts * rows.mass * bends * ((X @ P) * X).sum(1))

    def penalty(self, w: Model, extra: GLMExtra) -> Array:
        return 0.5 * jnp.sum(extra.ridge.astype(w.dtype) * w * w)

    def information(self, mine: Mine, w: Model) -> Array:
        """(d, d): Fisher's information of an agent's rows, a mean as the loss is, with the ridge."""
        extra = mine.common.extra
        found = self._over_rows(mine, w, lambda rows, weight: self.weighted_information(w, rows, weight, extra))
        return found + jnp.diag(extra.ridge)


def _gram(X: Numbers, weight: Array) -> Array:
    return (jnp.asarray(X) * weight[:, None]).T @ X


@checked
class GLM(RowsProblem):
    """A generalised linear model: E y = mean(x'w + offset), by maximum likelihood, with a ridge if one is given.

    f_k(w) = 1/2 sum_j ridge_j w_j^2 + the mean over agent k's rows of the negative log likelihood of y, for dispersion
    1 and without terms that do not depend on w; p_k = n_k/n. So sum_k p_k f_k is the mean over all rows: `total` times
    its gradient and Hessian are the sums over rows, however these are shared out.

    Args:
        X: (n, d) rows of all agents.
        y: (n,); of "binomial" between 0 and 1, of the others numbers as counts, costs.
        groups: whose row it is (n,). Without it there is one agent.
        family: "gaussian", "binomial", "poisson", "gamma" or "negative_binomial".
        link: of gaussian "identity", "log", "inverse"; of binomial "logit", "probit", "cloglog", "loglog", "cauchit",
            "log", "identity"; of poisson and negative_binomial "log", "identity", "sqrt"; of gamma "log", "inverse",
            "identity". The first of each is the default.
        offset: (n,), what is added to x'w, for instance the logarithm of a time at risk.
        sample_weight: (n,), what a row counts: 2 is that row twice. n_k and n are then sums of them.
        ridge: a number, on every coefficient, or (d,), one for each; with `intercept` the last is the intercept's.
        intercept: append a column of ones.
        dispersion: of "negative_binomial": variance = mean + dispersion mean^2.
        options: weights, p_k of agents; batch and sampling, rows a step ("iid", "shuffle", "importance"), where None is
            the full gradient.

    >>> problem = GLM([[1.0], [1.0], [1.0]], [1.0, 2.0, 6.0], groups=["a", "b", "b"], family="poisson")
    >>> bool(abs(problem.solution()[0] - np.log(3.0)) < 1e-14)
    True
    """

    oracle: GLMOracle

    def __init__(
        self,
        X: ArrayLike,
        y: ArrayLike,
        groups: ArrayLike | None = None,
        family: str = "gaussian",
        link: str | None = None,
        offset: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        ridge: float | ArrayLike = 0.0,
        intercept: bool = False,
        dispersion: Positive = 1.0,
        **options: Unpack[RowOptions],
    ):
        weights, self.batch, sampling = row_options(**options)
        self.response = response(family, link)
        X, y = _table(X, y)
        _check_targets(self.response, y)
        offset = one_per_row("offset", offset, len(X), 0.0)
        mass = one_per_row("sample_weight", sample_weight, len(X), 1.0)
        if (mass < 0).any():
            raise FedpointError(f"sample_weight must not be negative; {counted((mass < 0).sum(), 'row')} are")
        X = np.column_stack([X, np.ones(len(X))]) if intercept else X
        groups = np.zeros(len(X), int) if groups is None else groups
        order, counts, self.names = by_agent(groups, len(X))
        agent = np.repeat(np.arange(len(counts)), counts)
        for k in np.flatnonzero(np.bincount(agent, mass[order]) == 0):
            raise FedpointError(f"the rows of agent {self.names[k]} count nothing: every sample_weight is 0")
        mass, agents_mass = masses(mass[order], agent)
        self.agents_mass = agents_mass  # (K,): what the rows of every agent count: their number, without sample_weight
        self.intercept, self.dispersion = intercept, float(dispersion)
        self.ridge = _ridge(ridge, X.shape[1])
        self.weights = check_weights(weights, len(counts), default=agents_mass)
        self.linear = (self.response.family, self.response.link) == ("gaussian", "identity")
        self._has_offset = bool(offset.any())
        self._solution: np.ndarray | str | None = "unknown"
        extra = GLMExtra(self.ridge, np.asarray(self.dispersion))
        oracle = GLMOracle(self.batch, sampling, response=self.response)
        self.set_rows(GLMRows(X[order], y[order], offset[order], mass), counts, extra, oracle)
        self._start = self._first()
        if sampling == "importance":
            w = self.solution()
            self.set_chances(np.linalg.norm(self.row_gradients(self.start() if w is None else w), axis=1))

    @property
    def X(self) -> np.ndarray:
        """(n, d): the rows of all agents, one agent after the other."""
        return self.all_rows().X

    @property
    def total(self) -> float:
        """What all rows count: their number, without sample_weight."""
        return float(self.agents_mass.sum())

    @property
    def y(self) -> np.ndarray:
        return self.all_rows().y

    @property
    def convex(self) -> bool | None:
        return True if self.response.link in FAMILIES[self.response.family].convex else None

    def linear_fields(self) -> tuple[np.ndarray, np.ndarray] | None:
        if not self.linear:
            return None
        X, y, offset, mass = self.all_rows()
        each = mass / np.repeat(self.counts, self.counts)
        pairs = zip(self.split_rows(X * each[:, None]), self.split_rows(X), strict=True)
        A = np.stack([weighted.T @ own for weighted, own in pairs])
        b = np.add.reduceat(X * (each * (y - offset))[:, None], self.own.offset, axis=0)
        return A + np.diag(self.ridge), b

    def start(self) -> np.ndarray:
        """Zeros, where that is a model; else the same mean for all rows, as nearly as the columns allow."""
        return self._start

    @double
    def _first(self) -> np.ndarray:
        (low, high), used = self.response.bounds, self.all_rows().mass > 0
        for make in (lambda: np.zeros(self.X.shape[1]), self.constant)[0 if low < 0 < high else 1 :]:
            start = make()
            if np.isfinite(self.response.mean(self._eta(start)[used])).all():
                return start
        raise FedpointError(
            f"link {self.response.link!r} of family {self.response.family!r} has no model to start from here: add an "
            f"intercept, or take link={FAMILIES[self.response.family].links[0]!r}"
        )

    def constant(self) -> np.ndarray:
        """The model whose x'w + offset is nearest to the same for all rows, namely that of the mean of y."""
        X, y, offset, mass = self.all_rows()
        weight = self.row_weights() * mass
        eta = LINKS[self.response.link].eta(weight @ y)
        root = np.sqrt(weight)
        return np.linalg.lstsq(X * root[:, None], (eta - offset) * root, rcond=None)[0]

    def restricted(self, chosen: Sequence[np.ndarray]) -> GLM:
        part = cast(GLM, super().restricted(chosen))
        own = np.repeat(np.arange(part.agents), part.counts)
        rows, mass = part.common.rows, part.all_rows().mass
        mean = np.bincount(own, mass) / part.counts
        padded = np.concatenate([mass / mean[own], np.zeros(len(rows.mass) - len(mass))])
        part.common = part.common._replace(rows=rows._replace(mass=padded))
        part.agents_mass, part._solution = self.agents_mass * (mean * part.counts / self.counts), "unknown"
        return part

    def row_weights(self) -> np.ndarray:
        """(n,): p_k / n_k of each row's agent, times which and its mass it counts in the aggregate."""
        return np.repeat(self.weights / self.counts, self.counts)

    @at_models
    @double
    def objective(self, models: Model) -> np.ndarray:
        """In one pass over the rows of all agents: no agent is padded."""
        return np.asarray(_objective(self.oracle, self.all_rows(), self.row_weights(), self.common.extra, models))

    def _eta(self, w: np.ndarray) -> np.ndarray:
        return self.X @ w + self.all_rows().offset

    @at_model
    @double
    def means(self, w: Model) -> np.ndarray:
        """(n,): E y of every row under a model."""
        return np.asarray(self.response.mean(self._eta(w)))

    @at_model
    @double
    def row_gradients(self, w: Model) -> np.ndarray:
        """(n, d): the gradient of every row's loss times its mass, without the ridge: minus its score.

        Args:
            w: a model.
        """
        X, y, _, mass = self.all_rows()
        return (mass * np.asarray(self.response.slope(self._eta(w), y, self.dispersion)))[:, None] * X

    @at_model
    @double
    def row_deviances(self, w: Model) -> np.ndarray:
        """(n,): twice the log likelihood of a model that predicts each y, less that of w, for dispersion 1."""
        return np.asarray(self.response.deviance(self._eta(w), self.y, self.dispersion))

    @at_model
    @double
    def variances(self, w: Model) -> np.ndarray:
        """(n,): the variance of every y under a model, for dispersion phi = 1."""
        return np.asarray(self.response.variance(self._eta(w), self.dispersion))

    @at_model
    @double
    def hessians(self, w: Model) -> np.ndarray:
        """(K, d, d): of every agent's loss."""
        return np.asarray(_hessians(self.oracle, self.own, self.common, w))

    @at_model
    @double
    def informations(self, w: Model) -> np.ndarray:
        """(K, d, d): the same with Fisher's information in place of the observed curvature."""
        return np.asarray(_informations(self.oracle, self.own, self.common, w))

    @at_model
    @double
    def row_metrics(self, w: Model, X: ArrayLike, y: ArrayLike) -> dict[str, np.ndarray]:
        """Squared errors of the mean, and deviances."""
        if self._has_offset:
            raise FedpointError("held-out rows need an offset, as the rows had: give evaluate= a function of the model")
        X, y = check_held_out(X, y, self.X.shape[1] - self.intercept)
        X, y = np.column_stack([X, np.ones(len(X))]) if self.intercept else X, numbers("held-out y", y)
        _check_targets(self.response, y)
        eta = X @ np.asarray(w, float)
        gap = np.asarray(self.response.mean(eta)) - y
        return {"mse": gap**2, "deviance": np.asarray(self.response.deviance(eta, y, self.dispersion))}

    def solution(self) -> np.ndarray | None:
        """w* by Newton's method; None where it is not unique or not attained."""
        if isinstance(self._solution, str):
            self._solution = self._newton(self.all_rows(), self.row_weights(), self.start())
        return self._solution

    def why_no_solution(self) -> str:
        return (
            "there is no single w*: columns are collinear, or some combination of them separates the rows and the "
            "minimum is at infinity; a ridge helps against both"
        )

    @property
    def solved(self) -> bool:
        return not isinstance(self._solution, str)

    def local_solutions(self) -> np.ndarray | None:
        """w_k* of each agent; None where one of them has none."""
        found, places = [], np.arange(self.oracle.largest)
        for offset, count in zip(self.own.offset, self.counts, strict=True):
            rows = jax.tree.map(lambda a, o=offset: a[o : o + len(places)], self.common.rows)  # one shape for all
            own = self._newton(rows, np.where(places < count, 1.0 / count, 0.0), self.start())
            if own is None:
                return None
            found.append(own)
        return np.stack(found)

    @double
    def _newton(self, rows: GLMRows, weight: np.ndarray, w: np.ndarray) -> np.ndarray | None:
        """Damped, in columns of size one, of the weighted rows; None where it does not end."""
        at = (self.oracle, rows, weight, self.common.extra)
        size = np.sqrt((weight * rows.mass) @ rows.X**2 + self.ridge)
        if not (size > 0).all():
            return None
        still = 0  # steps that gain nothing which could be measured: quadratic convergence ends with a few of them
        for _ in range(NEWTON):
            value, slope, H = (np.asarray(a) for a in _derivatives(*at, w))
            step, sure = _newton_step(slope / size, H / np.outer(size, size), bool(self.convex))
            if step is None:
                return None
            far, promised = np.linalg.norm(step) / (np.linalg.norm(size * w) + 1e-3), float(slope / size @ step)
            step = step / size
            if far <= 1e-12 or still == 3:
                return w + step if sure else None
            if -promised <= 1e-15 * abs(value) and far < 1e-4:
                w, still = w + step, still + 1
                continue
            for t in HALVES:
                there = float(np.asarray(_objective(*at, (w + t * step)[None]))[0])
                if there <= value + 1e-4 * t * promised + 1e-15 * abs(value):
                    break
            w = w + t * step
        return None  # still far to go, though little is left to gain: the minimum is at infinity

    def _noise_gradients(self, w: np.ndarray) -> list[np.ndarray]:
        return self.split_rows(self.row_gradients(w))

    @at_model
    def noise(self, w: Model) -> np.ndarray:
        return np.array([self._noise_of(k, g) for k, g in enumerate(self._noise_gradients(np.asarray(w)))])

    def constants(self) -> Constants:
        """Smoothness where a row's loss bends by a bounded amount: gaussian with identity, binomial with logit, probit.

        Strong convexity is that of the ridge, for affine fields that of the rows too.
        """
        low, local = float(self.ridge.min()), self.local_solutions()
        bend = BENDS.get((self.response.family, self.response.link))
        if bend is None:
            convexity = {"nu": low or None, "nu_k": np.full(self.agents, low)} if self.convex else {}
            return Constants(**convexity, **self._spread(local))  # type: ignore[arg-type]
        X, _, _, mass = self.all_rows()
        each = bend * mass / np.repeat(self.counts, self.counts)
        pairs = zip(self.split_rows(X * each[:, None]), self.split_rows(X), strict=True)
        H = np.stack([weighted.T @ own for weighted, own in pairs]) + np.diag(self.ridge)
        values, whole = np.linalg.eigvalsh(H), np.linalg.eigvalsh(np.tensordot(self.weights, H, 1))
        nu, nu_k = (whole[0], values[:, 0]) if self.linear else (low, np.full(self.agents, low))
        beta2, sigma2 = self._noise_bounds(bend, local)
        return Constants(
            nu=float(nu) or None,
            delta=float(whole[-1]),
            nu_k=nu_k,
            delta_k=values[:, -1],
            beta2_k=beta2,
            sigma2_k=sigma2,
            **self._spread(local),
        )

    def _noise_bounds(self, bend: float, local: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        """Twice the mean squared smoothness of a sampled row, and twice the noise at w_k*, over the batch."""
        if self.batch is None:
            return np.zeros(self.agents), np.zeros(self.agents)
        X, _, _, mass = self.all_rows()
        squares = self.split_rows((bend * mass * (X * X).sum(1)) ** 2)
        rough = [(s / (len(s) ** 2 * self._chances(k))).sum() for k, s in enumerate(squares)]
        beta2 = 2 * np.array(rough) / self.smallest_batches()
        if local is None:
            return beta2, None
        own = [row_noise(self._noise_gradients(v)[k], self._chances(k)) for k, v in enumerate(local)]
        return beta2, 2 * np.array(own) / self.smallest_batches()

    def _spread(self, local: np.ndarray | None) -> dict[str, float]:
        w = self.solution()
        if w is None or local is None:
            return {}
        own = np.array([self.losses(v)[k] for k, v in enumerate(local)])
        return {
            "heterogeneity": float(self.weights @ ((local - w) ** 2).sum(1)),
            "gamma": float(self.weights @ (self.losses(w) - own)),
        }


def _newton_step(slope: np.ndarray, H: np.ndarray, convex: bool) -> tuple[np.ndarray | None, bool]:
    """Downwards, and whether H is definite; None where a convex loss has no unique minimum."""
    if not np.isfinite(H).all():
        return None, False
    curvature, axes = np.linalg.eigh(H)
    sure = bool(curvature[0] > FLAT * curvature[-1])
    if convex and not sure:
        return None, False
    bent = curvature if sure else np.maximum(np.abs(curvature), 1e-8 * np.abs(curvature).max())
    return -(axes @ ((axes.T @ slope) / bent)), sure


def _table(X: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    X, y = numbers("X", X), numbers("y", y)
    if X.ndim != 2 or y.shape != (len(X),):
        raise FedpointError(f"X of shape {X.shape} and y of shape {y.shape}; give (rows, columns) and (rows,)")
    check_agents(len(X))
    check_finite("X", X)
    check_finite("y", y)
    return X, y


def one_per_row(name: str, values: ArrayLike | None, rows: int, default: float) -> np.ndarray:
    """(rows,): what was given, or the default."""
    if values is None:
        return np.full(rows, default)
    found = numbers(name, values)
    if found.shape != (rows,):
        raise FedpointError(f"{name} has shape {found.shape}, but X has {counted(rows, 'row')}: one number a row")
    check_finite(name, found)
    return found


def _ridge(ridge: float | ArrayLike, columns: int) -> np.ndarray:
    found = numbers("ridge", ridge)
    if found.shape not in ((), (columns,)):
        raise FedpointError(
            f"ridge has shape {found.shape}: give one number, or one for each of the {counted(columns, 'coefficient')}"
        )
    if not ((found >= 0) & np.isfinite(found)).all():
        raise FedpointError("ridge must be at least 0")
    return np.broadcast_to(found, (columns,)).copy()


def _check_targets(kind: Response, y: np.ndarray) -> None:
    family = FAMILIES[kind.family]
    good = (y >= family.low) & (y <= family.high) if family.closed else (y > family.low) & (y < family.high)
    if good.all():
        return
    said = "between 0 and 1" if family.high == 1 else f"{'at least' if family.closed else 'above'} 0"
    bad = np.flatnonzero(~good)
    more = f", and in {counted(len(bad) - 1, 'more row')}" if len(bad) > 1 else ""
    raise FedpointError(f"y of family {kind.family!r} must be {said}; it is {y[bad[0]]:g} in row {bad[0]}{more}")


@partial(quickly, static_argnums=0)
def _objective(oracle: GLMOracle, rows: GLMRows, weight: Array, extra: Data, models: Model) -> Array:
    def value(w: Model) -> Array:
        return oracle.weighted_loss(w, rows, weight.astype(w.dtype), extra) + oracle.penalty(w, extra)

    return jax.lax.map(value, models)


@partial(quickly, static_argnums=0)
def _derivatives(
    oracle: GLMOracle, rows: GLMRows, weight: Array, extra: GLMExtra, w: Array
) -> tuple[Array, Array, Array]:
    at = (w, rows, weight, extra)
    value = oracle.weighted_loss(*at) + oracle.penalty(w, extra)
    return value, oracle.weighted_gradient(*at) + extra.ridge * w, oracle.weighted_hessian(*at) + jnp.diag(extra.ridge)


@partial(quickly, static_argnums=0)
def _hessians(oracle: GLMOracle, own: Data, common: Data, w: Array) -> Array:
    return jax.lax.map(lambda o: oracle.hessian(Mine(o, common), w), own)


@partial(quickly, static_argnums=0)
def _informations(oracle: GLMOracle, own: Data, common: Data, w: Array) -> Array:
    return jax.lax.map(lambda o: oracle.information(Mine(o, common), w), own)
