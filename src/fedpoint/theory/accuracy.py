r"""How good is a second-order theory? Beside it a Gaussian one, from drawn rounds that begin in the settled law.

States are drawn from N(m, S), in pairs m + z and m - z, and go through one random round r. Where the closure is right
they are again m on average, with covariance S. What they are instead is, up to the first order in the difference, a
change of the settled mean by (I - J)^{-1} e and of the variance by tr W D, W = J' W J + R' R, with

$$ e = E r(m + z) - m, \qquad D = \operatorname{Cov} r(m + z) - S. $$

e has two parts: of the spread between rounds, and of noise inside a round from m, whose luck is turned from none to
all. Of each draw what is linear in z or in the noise is subtracted, since its mean is zero. D is a small difference of
large matrices: of r(m + z) the round linearised at m with the same luck is subtracted, whose covariance the closure
knows but for the noise of a round from m itself.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.compiling import quickly
from fedpoint.core.precision import double
from fedpoint.core.types import State
from fedpoint.engine.round import Keys
from fedpoint.theory.dialled import moved_inside
from fedpoint.theory.drawn_rounds import DrawnRounds, drawn_round, wire_of
from fedpoint.theory.expected_round import Numbers
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import GOOD, Accuracy
from fedpoint.theory.powers import doubled
from fedpoint.theory.space import Space
from fedpoint.theory.steady import moving

PAIRS = 4096  # of drawn states
DRAWS = 2048  # of rounds from the mean
AT_ONCE = 1 << 22  # numbers of states that go through a round at a time
SMALL = 0.05  # of the root of the floor: a smaller shift than that does not matter
BATCHES = 16  # whose differences tell the standard error
SURE = 4.0  # standard errors


class Settled(NamedTuple):
    """What a closure says: mean and covariance of the state, the covariance of a round from the mean, how far the
    spread between rounds and noise inside one move that mean; shift: of the limit from the fixed point."""

    x: np.ndarray
    sigma: np.ndarray
    noise: np.ndarray  # of one round from x
    between: np.ndarray
    inside: np.ndarray
    shift: np.ndarray


@double
def accuracy_of(
    setting: Setting, settled: Settled, R: np.ndarray, gap: np.ndarray, floor: float, seed: int = 0
) -> Accuracy:
    """gap: from what the run is after to the limit, as measured; floor: as the closure has it."""
    x, sigma, noise, between, inside, shift = settled
    J = setting.matrix(x)
    P = moving(J)
    J = J if P is None else P @ J
    W, back = doubled(J.T[None], (R.T @ R)[None])[0], np.linalg.pinv(np.eye(len(x)) - J)
    drawn = DrawnRounds.of(setting, seed)
    means, floors, bends = _batches(drawn, W, x, _root(sigma), seed)
    away = R @ back @ means.T  # (measured, batches)
    level = floors - float(np.vdot(W, noise))
    moved = away.mean(1)
    mean2 = max(float(moved @ moved) - float(away.var(1, ddof=1).sum()) / len(means), 0.0)  # without its own noise
    floor = max(floor, 1e-300)
    excess = (level.mean() + 2 * float(gap @ moved) + mean2) / floor
    error = float((level + 2 * gap @ away).std(ddof=1)) / math.sqrt(len(means)) / floor
    off = bends.mean(0) - between
    if len(setting.numbers.cases.chance) == 1:
        off = off + np.asarray(moved_inside(*drawn, jnp.asarray(x), jnp.int32(PAIRS), DRAWS)).mean(0) - inside
    bent = float(np.linalg.norm(R @ back @ off))
    return Accuracy(float(excess), error, bent / max(float(np.linalg.norm(R @ shift)), SMALL * math.sqrt(floor)))


@double
def drawn_alike(setting: Setting, x: np.ndarray, after: np.ndarray, R: np.ndarray, spread: float) -> bool:
    """Whether drawn rounds from x have this mean and this measured variance: within 10 %, or four standard errors."""
    means, variances, _ = _batches(DrawnRounds.of(setting, 0), R.T @ R, x, np.zeros((len(x), 0)))
    away, count = R @ means.T, len(means)  # (measured, batches)
    step = R @ (after - x)
    off = float(np.linalg.norm(away.mean(1) - step))
    by_chance = SURE * math.sqrt(float(away.var(1, ddof=1).sum()) / count)
    right = off <= max(2 * GOOD * float(np.linalg.norm(step)), by_chance)
    return right and abs(variances.mean() - spread) <= max(
        2 * GOOD * spread, SURE * float(variances.std(ddof=1)) / math.sqrt(count)
    )


def _batches(
    drawn: DrawnRounds, W: np.ndarray, x: np.ndarray, root: np.ndarray, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What batches of pairs give (`_pairs`), one after the other; root: of the covariance around x."""
    size = int(np.clip(AT_ONCE // max(len(x), 1), 16, PAIRS // BATCHES))
    wire, found = wire_of(drawn), []
    for first in range(0, PAIRS, size):
        z = np.random.default_rng(seed + first).normal(size=(size, root.shape[1])) @ root.T
        parts = _pairs(*drawn, jnp.asarray(W), jnp.asarray(x), jnp.asarray(z), wire, jnp.int32(first))
        found.append([np.asarray(one) for one in parts])  # waited for: programs in a queue can wait for each other
    means, variances, bends = (np.array(parts) for parts in zip(*found, strict=True))
    return means, variances, bends


def _root(sigma: np.ndarray) -> np.ndarray:
    values, axes = np.linalg.eigh((sigma + sigma.T) / 2)
    kept = values > 1e-14 * max(values.max(initial=0.0), 0.0)
    return axes[:, kept] * np.sqrt(values[kept])


@partial(quickly, static_argnums=0)
def _pairs(
    space: Space, numbers: Numbers, keys: Keys, W: Array, x: Array, z: Array, wire: State, first: Array
) -> tuple[Array, Array, Array]:
    """e, tr W D with the noise of a round from x, and the part of e that the spread makes: estimated from pairs."""

    def one(pair: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        round, z = pair
        move = drawn_round(DrawnRounds(space, numbers, keys), round)

        def step(at: Array) -> Array:
            return move(at, wire)[0] - x

        here, slope = jax.jvp(step, (x,), (z,))
        up, down = step(x + z), step(x - z)
        even, odd = (up + down) / 2, (up - down) / 2 - slope
        return even, (2 * slope + odd) @ W @ odd, even - here  # |slope|^2 is known to the closure

    even, odd, bent = lax.map(one, (first + jnp.arange(len(z)), z), batch_size=64)
    mean = even.mean(0)
    spread = jnp.einsum("ix,xy,iy->", even - mean, W, even - mean) / (len(z) - 1)
    return mean, spread + odd.mean(), bent.mean(0)
