"""Which constants does a problem have, judged from samples alone? Estimates with intervals, from agents' statistics.

Every agent draws samples of its own field at one point and sends only statistics of its own: the mean slope and field,
and the same of its resampled draws, never a sample. The hub combines what came. So it works where nothing is known
but how to draw: for data at sites as for streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.errors import MOST_ROUNDS, FedpointError
from fedpoint.core.kinds import Seed, Within
from fedpoint.core.memory_limits import check_memory
from fedpoint.core.numbers import counted
from fedpoint.core.precision import double
from fedpoint.core.random import Key
from fedpoint.core.types import Data, Model
from fedpoint.problems.base import Constants, Problem
from fedpoint.problems.linear_system import symmetric
from fedpoint.problems.models import check_one
from fedpoint.problems.oracle import Mine, Oracle

RESAMPLES = 200
LARGEST = 64  # numbers of a model whose slopes are sampled


class Estimate(NamedTuple):
    """A value, and an interval that holds the truth with the stated confidence. Arrays (K,) for constants of agents."""

    value: np.ndarray | float
    low: np.ndarray | float
    high: np.ndarray | float

    def holds(self, truth: ArrayLike) -> np.ndarray:
        return (self.low <= np.asarray(truth)) & (np.asarray(truth) <= self.high)


@checked
@dataclass(frozen=True)
class Estimates:
    """Constants of a problem with their intervals.

    Attributes:
        nu, delta, nu_k, delta_k: least and largest eigenvalue of the (symmetric part of the) mean slope; intervals by
            Weyl's inequality, the width a bootstrap quantile of the slope's error in the spectral norm: they hold for
            each constant with at least the stated confidence, however often eigenvalues repeat.
        beta2_k: the top eigenvalue of E[(A(z) - A)'(A(z) - A)], with an interval as that of nu. Where it is correlated
            with sigma2_k, lecture 000 (25) takes twice both.
        sigma2_k: E|noise|^2 at the agent's own solution; a normal interval of its logarithm.
        heterogeneity: sum_k p_k |w_k* - w*|^2; a basic bootstrap interval, which also takes out the bias of estimating
            w_k*. None where an agent's slope is not invertible.
        solution: w* as estimated; None where it is not known.
        draws: samples at each agent.
        confidence: of each interval.
        linear: whether fields are affine: then the constants are exact, else those of the fields linearised at the
            point.
    """

    nu: Estimate
    delta: Estimate
    nu_k: Estimate
    delta_k: Estimate
    beta2_k: Estimate
    sigma2_k: Estimate | None
    heterogeneity: Estimate | None
    solution: np.ndarray | None
    draws: int
    confidence: float
    linear: bool

    def constants(self) -> Constants:
        """The values, as `problem.constants()` gives them."""
        return Constants(
            nu=float(self.nu.value),
            delta=float(self.delta.value),
            nu_k=np.asarray(self.nu_k.value),
            delta_k=np.asarray(self.delta_k.value),
            beta2_k=np.asarray(self.beta2_k.value),
            sigma2_k=None if self.sigma2_k is None else np.asarray(self.sigma2_k.value),
            heterogeneity=None if self.heterogeneity is None else float(self.heterogeneity.value),
        )

    def __str__(self) -> str:
        lines = [f"{counted(self.draws, 'draw')} at each agent, {self.confidence:.0%} intervals"]
        for name in ("nu", "delta", "heterogeneity", "nu_k", "delta_k", "beta2_k", "sigma2_k"):
            e = vars(self)[name]
            if e is None:
                lines.append(f"  {name:<14}not determined")
            elif np.ndim(e.value) == 0:
                lines.append(f"  {name:<14}{e.value:.4g}  [{e.low:.4g}, {e.high:.4g}]")
            else:
                lines.append(
                    f"  {name:<14}{e.value.min():.4g} .. {e.value.max():.4g} over agents  "
                    f"[{e.low.min():.4g}, {e.high.max():.4g}]"
                )
        if not self.linear:
            lines.append("  fields are not affine: constants of the fields linearised at the point")
        return "\n".join(lines)


class Statistics(NamedTuple):
    """What one agent sends: nothing of a sample, only means over its draws and over resampled draws (leading B)."""

    slope: np.ndarray  # (d, d)
    offset: np.ndarray  # (d,): slope @ point - field
    slopes: np.ndarray  # (B, d, d)
    offsets: np.ndarray  # (B, d)
    beta2: np.ndarray  # value, low, high
    sigma2: np.ndarray | None


@checked
def estimate_constants(
    problem: Problem,
    draws: Annotated[int, Within(20, MOST_ROUNDS)] = 1000,
    seed: Seed = 0,
    at: Model = None,
    confidence: float = 0.95,
) -> Estimates:
    """Estimate the lectures' constants of a problem from sampled fields, drawn at the agents only.

    Args:
        problem: any with sampled fields.
        draws: samples at each agent.
        seed: of draws and resampling.
        at: the model at which fields are sampled; default: the problem's start. It matters only where fields are
            not affine.
        confidence: of each interval.

    >>> import fedpoint as fp
    >>> lab = fp.problems.LinearStream.sample(agents=5, dim=2, seed=0)
    >>> bool(fp.estimate_constants(lab, draws=500).delta.holds(lab.constants().delta))
    True
    """
    if not 0.5 <= confidence < 1:
        raise FedpointError(f"confidence must be at least 0.5 and below 1, got {confidence!r}")
    point = problem.start() if at is None else check_one("at", problem.start(), at)
    d = sum(np.size(a) for a in jax.tree.leaves(point))
    if d > LARGEST:
        raise FedpointError(f"the model has {d} numbers: slopes are sampled up to {LARGEST}")
    check_memory(draws * (RESAMPLES + d * d), counted(draws, "draw"), "take fewer")
    rng = np.random.default_rng(seed)
    sent = [_at_agent(problem, k, point, draws, seed, confidence, rng) for k in range(problem.agents)]
    return _combine(problem, sent, draws, confidence)


def _at_agent(
    problem: Problem, k: int, point: Model, draws: int, seed: int, confidence: float, rng: np.random.Generator
) -> Statistics:
    """The work of one agent: draws, and statistics of them."""
    own = jax.tree.map(lambda a: a[k], problem.own)
    drawn = double(_sampled)(problem.oracle, own, problem.common, point, Key.of(seed, 0, k), draws)
    fields, slopes = (np.asarray(a) for a in drawn)
    flat = np.concatenate([np.ravel(np.asarray(a, float)) for a in jax.tree.leaves(point)])
    offsets = slopes @ flat - fields
    d = len(flat)
    weights = rng.multinomial(draws, np.full(draws, 1 / draws), size=RESAMPLES) / draws
    A, b = slopes.mean(0), offsets.mean(0)
    As = (weights @ slopes.reshape(draws, -1)).reshape(-1, d, d)
    bs = weights @ offsets
    off = slopes - A
    squares = np.einsum("nij,nil->njl", off, off)
    moved = (weights @ squares.reshape(draws, -1)).reshape(-1, d, d)
    scatter = squares.mean(0)
    beta2 = _top(scatter) * draws / (draws - 1)
    width = _quantile(_norms(moved - scatter), confidence)
    own_solution = _solve(A, b)
    sigma2 = None
    if own_solution is not None:
        noise = ((slopes @ own_solution - offsets) ** 2).sum(1)
        sigma2 = _normal(float(noise.mean()), float(noise.std(ddof=1)) / np.sqrt(draws), confidence)
    return Statistics(A, b, As, bs, np.array([beta2, max(beta2 - width, 0.0), beta2 + width]), sigma2)


@partial(jax.jit, static_argnums=(0, 5))
def _sampled(oracle: Oracle, own: Data, common: Data, point: Model, key: Key, draws: int) -> tuple[Array, Array]:
    """(draws, d) fields and (draws, d, d) slopes at the point, one fresh sample each."""
    mine = Mine(own, common)
    flat, unravel = ravel_pytree(jax.tree.map(lambda a: jnp.asarray(a, float), point))

    def one(i: Array) -> tuple[Array, Array]:
        round_key = key.fold(i)
        z = oracle.draw(mine, oracle.plan(mine, round_key), round_key.row(0), 0)

        def field(v: Array) -> Array:
            return ravel_pytree(oracle.field(mine, unravel(v), z))[0]

        return field(flat), jax.jacfwd(field)(flat)

    return jax.lax.map(one, jnp.arange(draws), batch_size=256)


def _combine(problem: Problem, sent: list[Statistics], draws: int, confidence: float) -> Estimates:
    """The work of the hub."""
    p = problem.weights
    A, b = np.stack([s.slope for s in sent]), np.stack([s.offset for s in sent])
    As, bs = np.stack([s.slopes for s in sent], 1), np.stack([s.offsets for s in sent], 1)  # (B, K, ...)
    total, totals = np.tensordot(p, A, 1), np.einsum("k,bkij->bij", p, As)
    width = _quantile(_norms(totals - total), confidence)
    each = np.linalg.eigvalsh(symmetric(A))
    widths = np.array([_quantile(_norms(As[:, k] - A[k]), confidence) for k in range(len(p))])
    whole = np.linalg.eigvalsh(symmetric(total))
    beta2 = np.stack([s.beta2 for s in sent])
    noises = [s.sigma2 for s in sent if s.sigma2 is not None]
    sigma2 = Estimate(*np.stack(noises).T) if len(noises) == len(sent) else None
    return Estimates(
        nu=Estimate(float(whole[0]), float(whole[0] - width), float(whole[0] + width)),
        delta=Estimate(float(whole[-1]), float(whole[-1] - width), float(whole[-1] + width)),
        nu_k=Estimate(each[:, 0], each[:, 0] - widths, each[:, 0] + widths),
        delta_k=Estimate(each[:, -1], each[:, -1] - widths, each[:, -1] + widths),
        beta2_k=Estimate(*beta2.T),
        sigma2_k=sigma2,
        heterogeneity=_heterogeneity(p, A, b, As, bs, confidence),
        solution=_solve(total, p @ b),
        draws=int(draws),
        confidence=confidence,
        linear=bool(problem.linear),
    )


def _heterogeneity(
    p: np.ndarray, A: np.ndarray, b: np.ndarray, As: np.ndarray, bs: np.ndarray, confidence: float
) -> Estimate | None:
    def spread(A: np.ndarray, b: np.ndarray) -> float | None:
        w, own = _solve(np.tensordot(p, A, 1), p @ b), [_solve(*one) for one in zip(A, b, strict=True)]
        each = [v for v in own if v is not None]
        if w is None or len(each) < len(own):
            return None
        return float(p @ ((np.stack(each) - w) ** 2).sum(1))

    value = spread(A, b)
    again = [spread(*one) for one in zip(As, bs, strict=True)]
    if value is None or any(v is None for v in again):
        return None
    resampled = np.array(again, float)
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(
        max(2 * value - float(resampled.mean()), 0.0), max(2 * value - high, 0.0), max(2 * value - low, 0.0)
    )


def _normal(mean: float, error: float, confidence: float) -> np.ndarray:
    """A normal interval of the logarithm: means of squares are skew."""
    from statistics import NormalDist

    if not mean > 0:
        return np.array([mean, 0.0, 0.0])
    factor = np.exp(NormalDist().inv_cdf((1 + confidence) / 2) * error / mean)
    return np.array([mean, mean / factor, mean * factor])


def _top(S: np.ndarray) -> float:
    return float(np.linalg.eigvalsh(symmetric(S))[-1])


def _norms(S: np.ndarray) -> np.ndarray:
    """Spectral norms of the symmetric parts, which bound how far eigenvalues move (Weyl)."""
    return np.abs(np.linalg.eigvalsh(symmetric(S))).max(-1)


def _quantile(values: np.ndarray, confidence: float) -> float:
    return float(np.quantile(values, confidence))


def _solve(A: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    return None if np.linalg.cond(A) > 1e10 else np.linalg.solve(A, b)
