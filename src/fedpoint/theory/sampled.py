"""The floor of an algorithm about which nothing is known: from sampled rounds, differentiated at the limit.

Each drawn round i gives its Jacobian J_i at the limit x and its step q_i = round_i(x) - x. The stationary covariance
solves Sigma = mean_i (J_i Sigma J_i' + q_i q_i'); what the draws leave open is told by a jackknife over groups.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.precision import double
from fedpoint.core.random import Key
from fedpoint.engine.precompute import NOTHING_PRECOMPUTED
from fedpoint.engine.round import one_round
from fedpoint.engine.session import cast
from fedpoint.engine.state import AGENTS, HUB, SCHEDULE, RunState, start_worlds
from fedpoint.theory.expected_round import Numbers, memories, rows, start_at
from fedpoint.theory.krylov import Krylov, solve
from fedpoint.theory.operator import Setting
from fedpoint.theory.space import Space, flat

FOUND = 0x57A7  # of where worlds are found
LARGEST = 200  # numbers of a state whose Jacobian is taken for every round
GROUPS = 8


class Sampled(NamedTuple):
    variance: float
    error: float  # its standard error
    rate: float  # spectral radius of the second-moment operator


def sampled_floor(setting: Setting, x: np.ndarray, R: np.ndarray, rounds: int = 1024, seed: int = 0) -> Sampled:
    J, q = _rounds(setting, x, rounds, seed)
    if not setting.bound.channel.lossless:  # a channel that rounds has no slope; on average it has
        J = np.broadcast_to(setting.matrix(x), J.shape) if _flattened(J, setting.matrix(x)) else J
    q = q - q.mean(0)
    groups = np.arange(rounds) % GROUPS
    whole, rate = _floor(R, J, q)
    if not math.isfinite(whole):
        return Sampled(whole, math.nan, rate)
    left = np.array([_floor(R, J[groups != g], q[groups != g])[0] for g in range(GROUPS)])
    error = math.sqrt((GROUPS - 1) / GROUPS * ((left - left.mean()) ** 2).sum())
    return Sampled(whole, error, rate)


def _flattened(J: np.ndarray, mean: np.ndarray) -> bool:
    """Whether slopes of single rounds do not average to that of the expected one."""
    error = J.std(0) / math.sqrt(len(J))
    return bool((np.abs(J.mean(0) - mean) > 6 * error + 1e-6).any())


def _floor(R: np.ndarray, J: np.ndarray, q: np.ndarray) -> tuple[float, float]:
    def apply(S: np.ndarray) -> np.ndarray:
        return np.einsum("iab,bc,idc->ad", J, S, J, optimize=True) / len(J)

    source = q.T @ q / (len(q) - 1)
    sigma, _, space = solve(apply, source, 1e-9)
    if space.size == 0:
        start = np.eye(len(source)) - J.mean(0)
        space = Krylov(apply, start @ start.T)
        space.extend(20, 1e-12)
    values = space.ritz()
    rate = float(values[np.abs(values.imag) < 1e-7].real.max(initial=0.0))
    if rate >= 1:
        return math.inf, rate
    return float(np.trace(R @ sigma @ R.T)), rate


@double
def _rounds(setting: Setting, x: np.ndarray, rounds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Jacobians and steps of drawn rounds at x."""
    keys = tuple(Key.of(seed, 0, purpose) for purpose in (AGENTS, SCHEDULE, HUB))
    layout = dataclasses.replace(setting.space.layout, exact=setting.exact)
    inputs = setting.numbers.inputs._replace(
        algorithm=cast(setting.algorithm, float),
        timing=setting.bound.in_step().timing,
        channel=cast(setting.bound.channel, float),
    )
    numbers = setting.numbers._replace(inputs=jax.device_put(inputs))
    space = setting.space._replace(layout=layout)
    J, q = _drawn(space, numbers, jnp.asarray(x), keys, jnp.arange(rounds))
    return np.asarray(J), np.asarray(q)


@partial(jax.jit, static_argnums=0)
def _drawn(space: Space, numbers: Numbers, x: Array, keys: tuple[Key, Key, Key], rounds: Array) -> tuple[Array, Array]:
    layout, inputs, agents = space.layout, numbers.inputs, numbers.p.shape[0]

    def one(round: Array) -> tuple[Array, Array]:
        tick = inputs.timing.at(keys[1], inputs.p, round)
        # A world that goes on is found somewhere: rounds are drawn as if far apart.
        found = keys[0].fold(round, FOUND)
        found = jax.tree.map(lambda a: jnp.asarray(a)[None], (tuple(found),))
        worlds = jax.tree.map(lambda a: a[0], start_worlds(layout, inputs, found))

        def move(x: Array) -> Array:
            hub, m = start_at(numbers, x, 0)  # the draws are the round's; the algorithm's clock stands still
            begun = RunState(hub, memories(space, numbers, hub, m), numbers.mail, (), worlds)
            state = one_round(layout, inputs, begun, (tick, tick), NOTHING_PRECOMPUTED, keys, round)
            settled = rows(space, inputs.algorithm, state.hub, state.memory, agents)
            return jnp.concatenate([flat(state.hub), settled.ravel()])

        return jax.jacfwd(move)(x), move(x) - x

    return lax.map(one, rounds, batch_size=16)
