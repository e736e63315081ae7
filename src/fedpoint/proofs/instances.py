"""Which agents are the worst? Losses of the class that answer as a programme found: a problem to be run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.precision import double
from fedpoint.core.types import Model, Number
from fedpoint.problems.base import Constants, Problem, check_weights
from fedpoint.problems.oracle import Mine, Numbers, Oracle
from fedpoint.problems.quadratic import Quadratic
from fedpoint.proofs.scenes import Class

STEPS, TIGHT = 60, 1e-18  # of an interior-point method on a simplex
SMALL = 1e-9


class Data(NamedTuple):
    """What one agent is known by: gradients g_i (m, d), and b_i of the planes b_i + g_i'x, less the quadratic part."""

    gradients: Numbers
    planes: Numbers


class Curved(NamedTuple):
    smooth: Numbers
    strong: Numbers


@dataclass(frozen=True)
class InterpolatedOracle(Oracle):
    """f(x) = mu/2 |x|^2 + min_u max_i {b_i + g_i'u} + (L - mu)/2 |x - u|^2: a Moreau envelope, L-smooth."""

    noisy = False

    def _shares(self, mine: Mine, x: Model, stiff: Number) -> Array:
        """The shares l >= 0 of the planes, of sum 1, with the largest l'(b + G x) - |G'l|^2 / (2 stiff)."""
        G, b = mine.own
        return on_simplex(G @ G.T / stiff, b + G @ x)

    def mean_field(self, mine: Mine, w: Model) -> Model:
        L, mu = mine.common
        return mu * w + mine.own.gradients.T @ self._shares(mine, w, L - mu)

    def loss(self, mine: Mine, w: Model) -> Array:
        (L, mu), (G, b) = mine.common, mine.own
        shares = self._shares(mine, w, L - mu)
        push = G.T @ shares
        return 0.5 * mu * w @ w + shares @ (b + G @ w) - push @ push / (2 * (L - mu))

    def prox(self, mine: Mine, center: Model, weight: Number) -> Model:
        """Of the sum of a quadratic and an envelope: an envelope with another stiffness, elsewhere."""
        L, mu = mine.common
        total = mu + 2 * weight
        stiff = 1 / (1 / (L - mu) + 1 / total)
        at = 2 * weight * center / total
        return at - mine.own.gradients.T @ self._shares(mine, at, stiff) / total


def on_simplex(Q: Array, b: Array) -> Array:
    """argmax b'l - l'Ql/2 over l >= 0 with sum 1, by a primal-dual interior-point method (Mehrotra's)."""
    m = b.shape[0]
    scale = 1 + jnp.abs(Q).max() + jnp.abs(b - b.max()).max()
    Q, b = Q / scale, (b - b.max()) / scale
    ones = jnp.ones(m, b.dtype)

    def most(v: Array, move: Array) -> Array:
        return jnp.minimum(1.0, 0.995 * jnp.min(jnp.where(move < 0, -v / jnp.where(move < 0, move, -1.0), jnp.inf)))

    def step(now: Iterate) -> Iterate:
        l, s, y, gap, i = now

        def solve(target: Array) -> tuple[Array, Array, Array]:
            left = jnp.zeros((m + 1, m + 1), b.dtype).at[:m, :m].set(Q + jnp.diag(s / l))
            left = left.at[:m, m].set(ones).at[m, :m].set(ones)
            right = jnp.concatenate([b - Q @ l - y + target / l, jnp.array([1.0]) - l.sum()])
            found = jnp.linalg.solve(left, right)
            return found[:m], (target - s * found[:m]) / l - s, found[m]

        dl, ds, _ = solve(jnp.zeros(m, b.dtype))
        ahead = (l + most(l, dl) * dl) @ (s + most(s, ds) * ds) / m
        dl, ds, dy = solve(gap * (ahead / gap) ** 3 - dl * ds)
        a, c = most(l, dl), most(s, ds)
        new = Iterate(l + a * dl, s + c * ds, y + c * dy, gap, i + 1)
        new = new._replace(gap=new.shares @ new.slacks / m)
        failed = ~jnp.isfinite(new.shares).all() | ~jnp.isfinite(new.slacks).all()
        stopped = now._replace(gap=jnp.zeros_like(gap))
        return jax.tree.map(lambda old, one: jnp.where(failed, old, one), stopped, new)

    slacks = jnp.maximum(Q @ ones / m - b, 0) + 1.0
    start = Iterate(ones / m, slacks, jnp.zeros((), b.dtype), slacks.mean() / m, jnp.int32(0))
    return lax.while_loop(lambda now: (now.gap > TIGHT) & (now.steps < STEPS), step, start).shares


class Iterate(NamedTuple):
    """Shares l, slacks s = Q l - b + y, the multiplier y of their sum, l's/m, and how many steps there were."""

    shares: Array
    slacks: Array
    multiplier: Array
    gap: Array
    steps: Array


@checked
class Interpolated(Problem):
    r"""Agents whose losses take given gradients at given points, L-smooth and $\mu$-strongly convex.

    $$f_k(x) = \frac{\mu}{2} |x|^2 + \min_u \max_i \{b_i + g_i^\top u\} + \frac{L - \mu}{2} |x - u|^2$$

    is the largest such loss; it exists where the points, gradients and losses fit together. w* is the origin, where the
    gradients sum to zero.

    Args:
        points, gradients: (m, d) of each agent. losses: (m,) of each. smooth, strong: L and $\mu$.
    """

    def __init__(
        self,
        points: Sequence[ArrayLike],
        gradients: Sequence[ArrayLike],
        losses: Sequence[ArrayLike],
        smooth: float,
        strong: float,
    ) -> None:
        x, g, f = ([np.asarray(a, float) for a in each] for each in (points, gradients, losses))
        most, stiff = max(len(a) for a in x), smooth - strong
        own = []
        for at, gradient, loss in zip(x, g, f, strict=True):
            some = np.arange(most) % len(at)  # a plane more than once changes nothing
            push = (gradient - strong * at)[some]
            value = (loss - 0.5 * strong * (at**2).sum(axis=1))[some]
            own.append((push, value + (push**2).sum(axis=1) / (2 * stiff) - (push * at[some]).sum(axis=1)))
        self.own = Data(*(np.array(part) for part in zip(*own, strict=True)))
        self.common = Curved(np.asarray(smooth, float), np.asarray(strong, float))
        self.weights = check_weights(None, len(x))
        self.names = [str(k) for k in range(len(x))]
        self.oracle = InterpolatedOracle()

    @property
    def convex(self) -> bool:
        return True

    def start(self) -> np.ndarray:
        return np.zeros(self.own.gradients.shape[-1])

    def solution(self) -> np.ndarray:
        return self.start()

    @cached_property
    @double
    def _own(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The agents' own minimisers (K, d), their losses there and at w* (K,)."""
        found = _minimised(self.oracle, self.own, self.common)
        return tuple(np.asarray(part) for part in found)  # type: ignore[return-value]

    def local_solutions(self) -> np.ndarray | None:
        """The agents' own minimisers, by strong convexity."""
        return self._own[0] if self.common.strong > 0 else None

    def constants(self) -> Constants:
        mu, L, each = float(self.common.strong), float(self.common.smooth), np.ones(self.agents)
        found = Constants(nu=mu, delta=L, nu_k=mu * each, delta_k=L * each, beta2_k=0 * each, sigma2_k=0 * each)
        if not mu > 0:
            return found
        own, least, there = self._own
        spread = float(self.weights @ (own**2).sum(axis=1))
        return replace(found, heterogeneity=spread, gamma=float(self.weights @ (there - least)))


@partial(jax.jit, static_argnums=0)
def _minimised(oracle: InterpolatedOracle, own: Data, common: Curved) -> tuple[Array, Array, Array]:
    def one(data: Data) -> tuple[Array, Array, Array]:
        mine, origin = Mine(data, common), jnp.zeros_like(data.gradients[0])
        best = oracle.prox(mine, origin, 0.0)
        return best, oracle.loss(mine, best), oracle.loss(mine, origin)

    return jax.vmap(one)(own)


def instance(cls: Class, agents: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Problem:
    """Agents of the class that answer so."""
    points, gradients, losses = (list(part) for part in zip(*agents, strict=True))
    if not cls.quadratic:
        return Interpolated(points, gradients, losses, cls.smooth, cls.strong)
    H, centers = zip(*(quadratic(cls, x, g) for x, g in zip(points, gradients, strict=True)), strict=True)
    return Quadratic(np.array(H), np.array(centers))


def quadratic(cls: Class, points: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(d, d) and (d,): H with g_i - g_0 = H (x_i - x_0), between mu I and L I, and the minimiser; x_0 is w*."""
    X, Y = (points - points[0]).T, (gradients - gradients[0]).T
    d = len(X)
    low = Y - cls.strong * X
    inner = X.T @ low
    H = cls.strong * np.eye(d) + low @ np.linalg.pinv((inner + inner.T) / 2, rcond=SMALL, hermitian=True) @ low.T
    values, axes = np.linalg.eigh((H + H.T) / 2)
    H = (axes * np.clip(values, cls.strong, cls.smooth)) @ axes.T
    return H, points[0] - np.linalg.solve(H, gradients[0])
