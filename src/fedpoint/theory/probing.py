r"""How noisy, how different and how curved are the agents' losses at a model? Measured, without a fixed point.

With g = sum_k p_k g_k, H = sum_k p_k H_k, d_k = g_k - g, and z_k the noise of one sampled field:

$$ \sigma^2 = \sum_k p_k E|z_k|^2, \quad \zeta^2 = \sum_k p_k |d_k|^2, \quad D = \sum_k p_k H_k d_k. $$

Products with Hessians give the largest eigenvalue of H, the spectrum that g sees (Lanczos), and how much noise and
differences add to the loss, sum_k p_k E z_k' H z_k and sum_k p_k d_k' H d_k, from sums with random signs. How far
agents drift apart is seen on their paths: exact local steps, with and without control variates, give by how much the
loss falls with everybody, and sum_k p_k m_k' H m_k of what sets single agents' changes apart from their mean.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from fedpoint.core.precision import double
from fedpoint.core.random import Key, Stream
from fedpoint.core.types import Data, Model
from fedpoint.core.vector import take
from fedpoint.problems.oracle import Mine, Oracle

MOST_AGENTS = 64  # that are asked; of more, so many are drawn
STEPS = 8  # of Lanczos
SIGNS, FEW = 8, 2  # draws of random signs; for each number of local steps
LOCAL = (1, 2, 5, 10, 20, 50)  # local steps that are looked at
PROBE = 6  # the purpose of these random numbers


class Point(NamedTuple):
    """What was measured at a model.

    Attributes:
        square: |g|^2.
        noise: sigma^2, of one sampled field, mean over agents.
        heterogeneity: zeta^2.
        largest: the largest eigenvalue of H that was found.
        curvatures: (m,) of H, as g sees it.
        parts: (m,) of |g|^2 with these curvatures; they sum to 1.
        noise_curvature: sum_k p_k E z_k' H z_k.
        spread_curvature: sum_k p_k d_k' H d_k.
        drift: g' D.
        drift_square: |D|^2.
        falls: (local steps,) by how much the loss falls when all agents take so many exact ones.
        falls_with_controls: (local steps,) the same with g - g_k added to each.
        apart: (local steps,) sum_k p_k m_k' H m_k, m_k what sets an agent's change apart from the mean.
        loss: sum_k p_k f_k.
    """

    square: float
    noise: float
    heterogeneity: float
    largest: float
    curvatures: np.ndarray
    parts: np.ndarray
    noise_curvature: float
    spread_curvature: float
    drift: float
    drift_square: float
    falls: np.ndarray
    falls_with_controls: np.ndarray
    apart: np.ndarray
    loss: float


class Asked(NamedTuple):
    """Of whom it is measured."""

    own: Data
    common: Data
    share: np.ndarray  # their p_k, which sum to 1
    agents: np.ndarray  # their numbers


def asked(own: Data, common: Data, p: np.ndarray, seed: int) -> Asked:
    """All agents, or so many of them, drawn uniformly."""
    agents = np.arange(len(p), dtype=np.int32)
    if len(p) > MOST_AGENTS:
        agents = np.sort(np.random.default_rng(seed).permutation(agents)[:MOST_AGENTS])
    share = p[agents] / p[agents].sum()
    return Asked(jax.tree.map(lambda a: np.asarray(a)[agents], own), common, share, agents)


@double
def measure(oracle: Oracle, at: Asked, model: Model, step: float, samples: int, luck: tuple[int, int]) -> Point:
    """At one model, for local steps of this length, with so many samples of every agent; luck: the seed, and a number
    that tells models apart."""
    seed, number = luck
    found = _measured(oracle, at, model, step, jnp.int32(number), Key.of(seed, purpose=PROBE), samples)
    flat = {name: np.asarray(value, float) for name, value in found.items()}
    curvatures, parts = _spectrum(flat.pop("diagonal"), flat.pop("beside"))
    largest = _spectrum(flat.pop("top_diagonal"), flat.pop("top_beside"))[0].max()
    return Point(
        float(flat["square"]),
        float(flat["noise"]),
        float(flat["heterogeneity"]),
        float(max(largest, curvatures.max())),
        curvatures,
        parts,
        float(flat["noise_curvature"]),
        float(flat["spread_curvature"]),
        float(flat["drift"]),
        float(flat["drift_square"]),
        flat["falls"],
        flat["falls_with_controls"],
        flat["apart"],
        float(flat["loss"]),
    )


def _spectrum(diagonal: np.ndarray, beside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of Lanczos' matrix, and what part of the first vector each has; until nothing is left."""
    scale = np.abs(diagonal).max() + np.abs(beside).max()
    ends = np.flatnonzero(beside <= 1e-6 * scale)
    m = 1 + int(ends[0]) if len(ends) else len(diagonal)
    values, vectors = np.linalg.eigh(np.diag(diagonal[:m]) + np.diag(beside[: m - 1], 1) + np.diag(beside[: m - 1], -1))
    return values, vectors[0] ** 2


@partial(jax.jit, static_argnames=("oracle", "samples"))
def _measured(
    oracle: Oracle, at: Asked, model: Model, step: float, round: Array, key: Key, samples: int
) -> dict[str, Array]:
    w, unravel = ravel_pytree(model)
    share = jnp.asarray(at.share, w.dtype)
    everybody = (at.own, share, jnp.asarray(at.agents))

    def flat(tree: Model) -> Array:
        return ravel_pytree(tree)[0]

    def field(mine: Mine, w: Array) -> Array:
        return flat(oracle.mean_field(mine, unravel(w)))

    def times(mine: Mine, v: Array) -> Array:
        """H_k v."""
        if not oracle.derivatives:
            return flat(oracle.hessian_times(mine, unravel(w), unravel(v)))
        size = jnp.linalg.norm(v)
        away = jnp.finfo(w.dtype).eps ** (1 / 3) * (1 + jnp.linalg.norm(w)) / jnp.where(size > 0, size, 1)
        return (field(mine, w + away * v) - field(mine, w - away * v)) / (2 * away)

    def summed(function: Callable[[Mine, Array, Array], tuple[Array, ...]]) -> tuple[Array, ...]:
        """sum_k p_k of what agents answer, one after the other."""

        def one(total: tuple[Array, ...], given: tuple[Data, Array, Array]) -> tuple[tuple[Array, ...], None]:
            own, p, agent = given
            more = function(Mine(own, at.common), p, agent)
            return jax.tree.map(lambda t, m: t + p * m, total, more), None

        first = take(everybody, 0)
        shapes = jax.eval_shape(lambda f: function(Mine(f[0], at.common), f[1], f[2]), first)
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, w.dtype), shapes)
        return lax.scan(one, zero, everybody)[0]

    def curved(v: Array) -> Array:
        """H v."""
        return summed(lambda mine, p, agent: (times(mine, v),))[0]

    (g,) = summed(lambda mine, p, agent: (field(mine, w),))

    def signs(agent: Array, purpose: int, shape: tuple[int, ...]) -> Array:
        return jnp.sign(key.fold(round, purpose).row(agent).uniform(shape) - 0.5).astype(w.dtype)

    def differences(mine: Mine, p: Array, agent: Array) -> tuple[Array, ...]:
        d = field(mine, w) - g
        return d @ d, times(mine, d), signs(agent, 1, (SIGNS,))[:, None] * d / jnp.sqrt(p)

    zeta2, D, spread = summed(differences)

    def noises(mine: Mine, p: Array, agent: Array) -> tuple[Array, ...]:
        mean = field(mine, w)

        def one(i: Array) -> tuple[Array, Array]:
            stream = Stream(key, round * samples + i, agent)
            plan = oracle.plan(mine, stream)
            z = oracle.draw(mine, plan, stream.row(0), 0)
            z = oracle.fetch(at.common, z) if oracle.fetches else z
            n = flat(oracle.field(mine, unravel(w), z)) - mean
            return n @ n, n

        def add(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            square, total = carry
            s, n = one(i)
            return square + s / samples, total + signs(agent, 2, (samples, SIGNS))[i][:, None] * n / jnp.sqrt(samples)

        square, total = lax.fori_loop(0, samples, add, (jnp.zeros((), w.dtype), jnp.zeros((SIGNS, w.size), w.dtype)))
        return square, total / jnp.sqrt(p)

    sigma2, noisy = summed(noises) if oracle.noisy else (jnp.zeros(()), jnp.zeros((1, w.size), w.dtype))

    def walk(mine: Mine, control: Array) -> Array:
        """(local steps, d): how far exact steps lead, with a constant added to every field."""

        def one(_: Array, y: Array) -> Array:
            return y - jnp.asarray(step, w.dtype) * (field(mine, y) + control)

        found, y, taken = [], w, 0
        for E in LOCAL:
            y, taken = lax.fori_loop(0, E - taken, one, y), E
            found.append(y - w)
        return jnp.stack(found)

    def paths(mine: Mine, p: Array, agent: Array) -> tuple[Array, ...]:
        plain, sign = walk(mine, jnp.zeros_like(w)), signs(agent, 4, (FEW,)) / jnp.sqrt(p)
        return plain, walk(mine, g - field(mine, w)), sign[:, None, None] * plain, sign

    def loss(y: Array) -> Array:
        return summed(lambda mine, p, agent: (oracle.loss(mine, unravel(y)).astype(w.dtype),))[0]

    plain, controlled, signed, sign = summed(paths)
    now, ways = loss(w), (signed - sign[:, None, None] * plain).reshape(-1, w.size)
    apart = lax.map(lambda v: v @ curved(v), ways).reshape(FEW, len(LOCAL)).mean(0)
    along = _lanczos(curved, g)
    start = key.fold(round, 3).row().normal((w.size,)).astype(w.dtype)
    top = _lanczos(curved, start)
    return {
        "square": g @ g,
        "noise": sigma2,
        "heterogeneity": zeta2,
        "diagonal": along[0],
        "beside": along[1],
        "top_diagonal": top[0],
        "top_beside": top[1],
        "noise_curvature": jnp.mean(lax.map(lambda v: v @ curved(v), noisy)),
        "spread_curvature": jnp.mean(lax.map(lambda v: v @ curved(v), spread)),
        "falls": now - lax.map(lambda change: loss(w + change), plain),
        "falls_with_controls": now - lax.map(lambda change: loss(w + change), controlled),
        "apart": apart,
        "loss": now,
        "drift": g @ D,
        "drift_square": D @ D,
    }


def _lanczos(curved: Callable[[Array], Array], start: Array) -> tuple[Array, Array]:
    """(m,), (m,): the diagonal of the matrix that H is in the space of start, H start, ..., and what stands beside it;
    every vector is made orthogonal to all before it, twice."""
    size = jnp.linalg.norm(start)
    steps = min(STEPS, start.size)
    basis = jnp.zeros((steps, start.size), start.dtype).at[0].set(start / jnp.where(size > 0, size, 1))

    def step(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        basis, diagonal, beside = carry
        v = curved(basis[i])
        diagonal = diagonal.at[i].set(v @ basis[i])
        for _ in range(2):
            v = v - (basis @ v) @ basis
        length = jnp.linalg.norm(v)
        unit = jnp.where(length > 0, v / jnp.where(length > 0, length, 1), 0)
        basis = basis.at[i + 1].set(unit, mode="drop")
        return basis, diagonal, beside.at[i].set(length)

    zero = jnp.zeros(steps, start.dtype)
    _, diagonal, beside = lax.fori_loop(0, steps, step, (basis, zero, zero))
    return diagonal, beside
