r"""What does noise do that a hub takes back later? n_t = c_0 x_t + c_1 x_{t-1} + ... with fresh x_t: the last ones are
part of the state.

A round moves (1, state, x_{t-1}, ..., x_{t-B}) linearly: the state by its own round and by W n_t, W a root of what
fresh noise makes of the hub, and the past by one place. What is past is independent of this round's luck, so that its
second moments with the state move by the mean round.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.theory.moments import AgentsMoments, Moving, move_agents
from fedpoint.theory.operator import Setting
from fedpoint.theory.space import Space
from fedpoint.theory.steady import Steady


def followed(setting: Setting) -> bool:
    """Whether noise that a hub takes back later can be followed: every round merges, and nothing else completes it."""
    s = setting
    if len(s.bound.channel.noise_coefficients()) == 1:
        return True
    plain = s.numbers.chances[0].shape[0] == 1 and s.lineups is None and not s.settles
    return bool(plain and float(s.numbers.merge) == 1.0)


def past_numbers(setting: Setting) -> int:
    """How many numbers of past noise are part of the state."""
    return (len(setting.bound.channel.noise_coefficients()) - 1) * setting.u0.size


def move_coloured(
    space: Space, moving: Moving, coefficients: Array, S: Array, size: int
) -> tuple[Array, AgentsMoments]:
    """The second moments of (1, state, past noise) after a round, and what agents did; size: of the state."""
    n, B = 1 + size, coefficients.shape[0] - 1
    new, agents = move_agents(space, moving, S[:n, :n])
    if not B:
        return new, agents
    merge = jax.tree.map(lambda a: a[0, 0], moving.linear.merges)
    n_u = merge.noise.shape[0]
    values, axes = jnp.linalg.eigh(merge.noise)
    W = jnp.zeros((n, n_u)).at[1 : 1 + n_u].set(axes * jnp.sqrt(jnp.maximum(values, 0.0)))
    M = jax.tree.map(lambda a: a[0], merge.arrows).rows(jnp.eye(n))
    first, rest = coefficients[0], coefficients[1:]
    beside, past = S[:n, n:], S[n:, n:]
    echo = jnp.kron(rest[None], jnp.eye(n_u))  # (n_u, B n_u): what of the past is in this round's noise
    cross = M @ beside @ echo.T @ W.T
    more = cross + cross.T + W @ echo @ past @ echo.T @ W.T + (first**2 - 1) * S[0, 0] * W @ W.T
    kept = (B - 1) * n_u
    after = jnp.concatenate([first * S[0, 0] * W, (M @ beside + W @ echo @ past)[:, :kept]], axis=1)
    later = jax.scipy.linalg.block_diag(S[0, 0] * jnp.eye(n_u), past[:kept, :kept])
    return jnp.block([[new + more, after], [after.T, later]]), agents


class Coloured(Steady):
    """Second moments of the state and of past noise: x is followed by zeros."""

    def _moving(self, vectors: np.ndarray) -> np.ndarray:
        size = self.setting.size
        product = self.setting.slope(self.x[:size])
        moved = np.stack([np.concatenate([v[:size] - product(v[:size]), v[size:]]) for v in vectors[1:].T], axis=1)
        return np.concatenate([np.zeros((1, vectors.shape[1])), moved])
