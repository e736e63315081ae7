"""First and second moments of who is heard in a round: formulas of the schemes, and estimates from drawn rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.errors import FedpointError
from fedpoint.core.random import Key
from fedpoint.timing.base import Moments

if TYPE_CHECKING:
    from fedpoint.timing.schemes import Participation

SAMPLED_TICKS = 1 << 15
LAGS = 32


def subset_moments(p: np.ndarray, sizes: dict[int, float], plain: bool) -> Moments:
    """A uniform subset whose size R has these probabilities, weights p_k K/R (plain: 1/R)."""
    K, merge = len(p), sum(sizes.values())
    unit = np.full(K, 1.0 / K) if plain else p
    own, spread = np.zeros((3, K)), np.zeros((2, 2))
    mean_size = sum(w * r for r, w in sizes.items()) / merge
    for r, w in sizes.items():
        # Cov(s_k, s_l) = pair (K [k = l] - 1), v_k = unit_k (K/R) s_k
        pair = r * (K - r) / (K * K * (K - 1)) if K > 1 else 0.0
        c = np.array([K / r, 1.0])
        own += (w / merge) * pair * K * np.stack([(c[0] * unit) ** 2, c[0] * unit, np.ones(K)])
        spread -= (w / merge) * pair * np.outer(c, c)
        spread[1, 1] += (w / merge) * ((r - mean_size) / K) ** 2
    scale, axes = np.linalg.eigh(spread)
    factor = np.stack([np.outer(axes[0], unit), np.outer(axes[1], np.ones(K))], axis=1)
    some = np.abs(scale) > 1e-15
    return Moments(merge, unit.copy(), np.full(K, mean_size / K), own, scale[some], factor[some])


def replacement_moments(p: np.ndarray, q: np.ndarray, count: int) -> Moments:
    """`count` draws with probabilities q, weights m_k p_k / (L q_k)."""
    q = q / q.sum()
    never, fewer = (1 - q) ** count, (1 - q) ** (count - 1)
    both = (1 - q[:, None] - q) ** count - np.outer(never, never)  # Cov(s_k, s_l), k != l
    value, axes = np.linalg.eigh(both)
    some = np.abs(value) > 1e-14
    value, axes = value[some], axes[:, some]
    zero, cross = np.zeros(len(p)), q * fewer  # Cov(v_k, s_l) = -p_k cross_l, k != l
    scale = np.array([-1.0 / count, -0.5, 0.5, *value])
    factor = np.array([(p, zero), (p, cross), (p, -cross), *((zero, a) for a in axes.T)])
    own = np.stack([p**2 / (count * q), p * fewer, never * (1 - never) - (axes**2) @ value])
    return Moments(1.0, p.copy(), 1 - never, own, scale, factor)


def drawn_rounds(scheme: Participation, p: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(n, K) weights v, (n, K) who is heard, (n,) whether it merges."""
    K = len(p)

    def one(scheme: Participation, round: Array) -> tuple[Array, Array, Array | None]:
        tick = scheme.at(Key.of(0x5EED), jnp.asarray(p), round)
        agents = jnp.arange(K) if tick.agents is None else tick.agents
        v = jnp.zeros(K).at[agents].add(jnp.where(tick.heard, cast(Array, tick.weight), 0.0))
        return v, jnp.zeros(K).at[agents].add(tick.heard * 1.0), tick.merge

    with jax.enable_x64(True):
        many = jax.jit(lambda scheme, rounds: lax.map(lambda r: one(scheme, r), rounds, batch_size=1024))
        v, s, merge = (np.asarray(a) for a in many(scheme, np.arange(count)))
    return v, s, merge


def sampled_moments(scheme: Participation, p: np.ndarray, keep: int = 8) -> Moments:
    """From many drawn rounds; only the largest correlations between agents are kept."""
    K = len(p)
    v, s, merge = drawn_rounds(scheme, p, SAMPLED_TICKS)
    independent = _independent(v)
    v, s = v[merge], s[merge]
    if not len(v):
        raise FedpointError(f"{type(scheme).__name__}: no round of {SAMPLED_TICKS} drawn ones was merged")
    mean, error = v.mean(0), v.std(0) / np.sqrt(len(v))
    if (np.abs(mean - p) <= 5 * error + 1e-12).all():  # unbiased, as it should be
        mean = p.copy()
    x = np.concatenate([v - v.mean(0), s - s.mean(0)], axis=1)
    cov = x.T @ x / len(x)
    k = np.arange(K)
    own = np.stack([cov[k, k], cov[k, K + k], cov[K + k, K + k]])
    for i, (a, b) in enumerate(((k, k), (k, K + k), (K + k, K + k))):
        cov[a, b] -= own[i]
        if i == 1:
            cov[b, a] -= own[i]
    value, axes = np.linalg.eigh(cov)
    top = np.argsort(-np.abs(value))[:keep]
    factor = axes[:, top].T.reshape(-1, 2, K)
    value = value[top]
    own = own + np.stack(
        [-(value @ (a * b)) for a, b in ((factor[:, 0],) * 2, (factor[:, 0], factor[:, 1]), (factor[:, 1],) * 2)]
    )
    return Moments(float(merge.mean()), mean, s.mean(0), own, value, factor, True, independent)


def _independent(v: np.ndarray) -> bool:
    """Whether weights (rounds, K) are uncorrelated between rounds, to five standard errors, up to LAGS rounds apart."""
    x = v - v.mean(0)
    error = np.linalg.norm(x.T @ x / len(x)) / np.sqrt(len(x))
    apart = [abs(np.einsum("tk,tk->", x[lag:], x[:-lag])) / len(x) for lag in range(1, LAGS + 1)]
    return max(apart) <= 5 * error + 1e-12
