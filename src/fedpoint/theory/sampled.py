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
from jax import lax

from fedpoint.core.random import Key
from fedpoint.engine.cpu.tuning import PLAIN
from fedpoint.engine.layout import choose
from fedpoint.engine.precompute import Ahead
from fedpoint.engine.round import one_round
from fedpoint.engine.session import cast
from fedpoint.engine.state import AGENTS, HUB, SCHEDULE, Inputs, RunState, start_worlds
from fedpoint.theory.expected_round import start_at
from fedpoint.theory.krylov import Krylov, solve
from fedpoint.theory.operator import Setting
from fedpoint.theory.space import flat, memory_of, take_leaves

FOUND = 0x57A7  # of where worlds are found
LARGEST = 200  # numbers of a state whose Jacobian is taken for every round
GROUPS = 8


class Sampled(NamedTuple):
    variance: float
    error: float  # its standard error
    rate: float  # spectral radius of the second-moment operator


def sampled_floor(setting: Setting, x: np.ndarray, R: np.ndarray, rounds: int = 1024, seed: int = 0) -> Sampled:
    J, q = _rounds(setting, x, rounds, seed)
    q = q - q.mean(0)
    groups = np.arange(rounds) % GROUPS
    whole, rate = _floor(R, J, q)
    if not math.isfinite(whole):
        return Sampled(whole, math.nan, rate)
    left = np.array([_floor(R, J[groups != g], q[groups != g])[0] for g in range(GROUPS)])
    error = math.sqrt((GROUPS - 1) / GROUPS * ((left - left.mean()) ** 2).sum())
    return Sampled(whole, error, rate)


def _floor(R: np.ndarray, J: np.ndarray, q: np.ndarray) -> tuple[float, float]:
    def apply(S):
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
    k = R.shape[1]
    return float(np.trace(R @ sigma[:k, :k] @ R.T)), rate


def _rounds(setting: Setting, x: np.ndarray, rounds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Jacobians and steps of drawn rounds at x."""
    with jax.enable_x64(True):
        layout = choose(setting.bound, 1)
        layout = dataclasses.replace(layout, samples=None, mapped=False, fetch=False, tuning=PLAIN)
        keys = tuple(Key.of(seed, 0, purpose) for purpose in (AGENTS, SCHEDULE, HUB))
        algorithm, b = cast(setting.algorithm, float), setting.bound
        inputs = Inputs(
            algorithm,
            setting.timing,
            setting.numbers.own,
            setting.numbers.common,
            setting.numbers.p,
            cast(b.channel, float),
            cast(b.gather, float),
        )
        J, q = _drawn(
            layout,
            setting.space,
            setting.numbers._replace(algorithm=algorithm),
            jax.device_put(inputs),
            jnp.asarray(x),
            keys,
            jnp.arange(rounds),
        )
        return np.asarray(J), np.asarray(q)


@partial(jax.jit, static_argnums=(0, 1))
def _drawn(layout, space, numbers, inputs, x, keys, rounds):
    agents, schedule, _ = keys
    algorithm = numbers.algorithm

    def one(round):
        tick = inputs.timing.at(schedule, numbers.p, round)
        # A world that goes on is found somewhere: rounds are drawn as if far apart.
        found = agents.fold(round, FOUND)
        worlds = jax.tree.map(lambda a: a[0], start_worlds(layout, inputs, ((found.low[None], found.high[None]),)))

        def move(x):
            hub, m = start_at(numbers, x, 0)
            memory = jax.vmap(lambda m: memory_of(space, algorithm, hub, numbers.model, m))(m)
            # The draws are the round's; the algorithm's clock stands still.
            begun = RunState(hub, memory, (), (), worlds)
            state = one_round(layout, inputs, begun, (tick, tick), Ahead(), keys, round)
            settled = jax.vmap(
                lambda k: flat(take_leaves(algorithm.settle(state.hub, k), space.kept)), axis_size=m.shape[0]
            )(state.memory)
            return jnp.concatenate([flat(state.hub), settled.ravel()])

        return jax.jacfwd(move)(x), move(x) - x

    return lax.map(one, rounds, batch_size=16)
