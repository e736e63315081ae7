"""The round of a network as a map of its state, with exact fields: what forecasts on networks differentiate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedpoint.core.errors import FedpointError
from fedpoint.core.random import NO_LUCK
from fedpoint.core.vector import unwrap, wrap
from fedpoint.engine.precompute import Ahead
from fedpoint.engine.round import one_round
from fedpoint.engine.session import Session
from fedpoint.engine.state import start_state
from fedpoint.experiment.experiment import Experiment
from fedpoint.problems.base import Mine
from fedpoint.theory.krylov import solve
from fedpoint.theory.space import fill, flat

PATH = 256  # rounds of a path that are computed at a time
SETTLED = 1e-10  # what a path and its variance still move in a round, relative, when they are taken to stand still
LARGEST = 600  # numbers of all models together, up to which their covariance is computed


class NetworkSetting:
    """An algorithm on a problem over a network, in double precision, every node working in every round.

    A state is what hubs and nodes hold; `read` is the nodes' models, flattened.
    """

    def __init__(self, experiment: Experiment):
        in_step = experiment.replace(schedule=None, exact=True, repeats=1, metrics={}).bind()
        start = jax.tree.map(lambda a: np.asarray(a, float), in_step.start)
        self.session = Session(dataclasses.replace(in_step, start=start), 1)
        self.algorithm, self.problem, self.network = in_step.algorithm, in_step.problem, in_step.network
        self.layout, self.inputs = self.session.layout, self.session.inputs
        self._like = jax.tree.map(lambda a: a[0], self.session.state)
        self.origin = self._flatten(self._like)

    def _flatten(self, state: Any) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(flat((state.hub, state.memory)))

    @property
    def size(self) -> int:
        return self.origin.size

    def at(self, models: Any) -> np.ndarray:
        """The state in which everybody holds these models, and has heard the neighbours'."""
        with jax.enable_x64(True):
            start = wrap(jax.tree.map(lambda a: jnp.asarray(a, float), models))
            return self._flatten(start_state(self.layout, self.inputs, start, False))

    def step(self, x: np.ndarray, round: int = 0) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(_step(self.layout, self.inputs, self._like, x, jnp.int32(round)))

    def slope(self, x: np.ndarray) -> Any:
        def product(v: np.ndarray) -> np.ndarray:
            with jax.enable_x64(True):
                return np.asarray(_slope(self.layout, self.inputs, self._like, x, v))

        return product

    def matrix(self, x: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(_matrix(self.layout, self.inputs, self._like, x))

    def travel(self, x: np.ndarray, rounds: int, first: int = 0) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(_travel(self.layout, self.inputs, self._like, x, jnp.int32(first), jnp.int32(rounds)))

    def read(self, x: np.ndarray) -> np.ndarray:
        """(K d,): the nodes' models."""
        with jax.enable_x64(True):
            return np.asarray(_read(self.inputs.algorithm, self._like, x))

    def path(self, rounds: int) -> np.ndarray:
        """(rounds + 1, K d) from the start on."""
        parts, x, first = [self.read(self.origin)[None]], self.origin, 0
        while first < rounds:
            with jax.enable_x64(True):
                models, x = _path(self.layout, self.inputs, self._like, x, jnp.int32(first))
            parts.append(np.asarray(models)[: rounds - first])
            first += PATH
        return np.concatenate(parts)

    def models_of(self, vector: np.ndarray) -> Any:
        """Flattened models as the user wrote them, leading with the nodes."""
        with jax.enable_x64(True):
            return jax.tree.map(
                np.asarray, unwrap(fill(_models(self.inputs.algorithm, self._like), jnp.asarray(vector)))
            )

    @cached_property
    def scheduled(self) -> bool:
        x = self.origin + 1.0
        return not np.allclose(self.step(x, 0), self.step(x, 1000), rtol=1e-12, atol=1e-12)

    def covariance(self, models: np.ndarray, M: np.ndarray, steps: np.ndarray) -> np.ndarray:
        r"""(K d, K d): $\Sigma = M \Sigma M^\top + \mathrm{blkdiag}_i\, \eta_i^2 (C_i(w_i) + S_i(\Sigma_{ii}))$.

        C_i is the covariance of node i's sampled field at its limit, S_i what a deviation adds because slopes are
        sampled too: exact for affine fields and one step a tick.
        """
        noise, image = self._spreading(M, steps)
        found, left, _ = solve(lambda S: image(S, models), noise(models), 1e-12, most=2000)
        if not left <= 1e-6:
            raise FedpointError("the covariance of the models could not be computed: it may not settle")
        return found

    def variances(self, path: np.ndarray, M: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """(rounds + 1,): the trace of the covariance along the mean path (rounds + 1, K d), from nothing on."""
        noise, image = self._spreading(M, steps)
        found, S = np.zeros(len(path)), np.zeros((len(M), len(M)))
        for t, models in enumerate(path[:-1]):
            S = image(S, models) + noise(models)
            found[t + 1] = np.trace(S)
            still = np.abs(path[t + 1] - models).max() <= SETTLED * np.abs(path[t + 1]).max()
            if still and abs(found[t + 1] - found[t]) <= SETTLED * found[t + 1]:
                found[t + 2 :] = found[t + 1]
                break
        return found

    def _spreading(
        self, M: np.ndarray, steps: np.ndarray
    ) -> tuple[Callable[..., np.ndarray], Callable[..., np.ndarray]]:
        """What a round adds to the covariance by the samples' noise at given models, and what it makes of one."""
        K, d = self.problem.agents, len(M) // self.problem.agents
        oracle, own, common = self.layout.oracle, self.inputs.own, self.inputs.common
        covariance = jax.jit(jax.vmap(lambda o, w: oracle.covariance(Mine(o, common), w)))
        scatter = jax.jit(jax.vmap(lambda o, w, P: oracle.scatter(Mine(o, common), w, P)))
        i = np.arange(K)

        def spread(blocks: Any) -> np.ndarray:
            out = np.zeros((K, d, K, d))
            out[i, :, i, :] = (steps**2)[:, None, None] * np.asarray(blocks)
            return out.reshape(K * d, K * d)

        def noise(models: np.ndarray) -> np.ndarray:
            with jax.enable_x64(True):
                return spread(covariance(own, models.reshape(K, d)))

        def image(S: np.ndarray, models: np.ndarray) -> np.ndarray:
            blocks = S.reshape(K, d, K, d)[i, :, i, :]
            with jax.enable_x64(True):
                added = scatter(own, models.reshape(K, d), (blocks + np.swapaxes(blocks, 1, 2)) / 2)
            return M @ S @ M.T + spread(added)

        return noise, image


def _state(like: Any, x: Any) -> Any:
    hub, memory = fill((like.hub, like.memory), x)
    return like._replace(hub=hub, memory=memory)


def _round(layout: Any, inputs: Any, state: Any, round: Any) -> Any:
    tick = inputs.timing.at(NO_LUCK, inputs.p, round)
    return one_round(layout, inputs, state, (tick, tick), Ahead(), (NO_LUCK, NO_LUCK, NO_LUCK), round)


def _whole(layout, inputs, like, x, round=0):
    after = _round(layout, inputs, _state(like, x), round)
    return flat((after.hub, after.memory))


@partial(jax.jit, static_argnums=0)
def _step(layout, inputs, like, x, round):
    return _whole(layout, inputs, like, x, round)


@partial(jax.jit, static_argnums=0)
def _slope(layout, inputs, like, x, v):
    return jax.jvp(lambda x: _whole(layout, inputs, like, x), (x,), (v,))[1]


@partial(jax.jit, static_argnums=0)
def _matrix(layout, inputs, like, x):
    return jax.jacfwd(lambda x: _whole(layout, inputs, like, x))(x)


@partial(jax.jit, static_argnums=0)
def _travel(layout, inputs, like, x, first, rounds):
    return lax.fori_loop(0, rounds, lambda i, x: _whole(layout, inputs, like, x, first + i), jnp.asarray(x))


@partial(jax.jit, static_argnums=0)
def _path(layout, inputs, like, x, first):
    def go(x, round):
        x = _whole(layout, inputs, like, x, round)
        return x, flat(_models(inputs.algorithm, _state(like, x)))

    x, models = lax.scan(go, jnp.asarray(x), first + jnp.arange(PATH))
    return models, x


@jax.jit
def _read(algorithm, like, x):
    return flat(_models(algorithm, _state(like, x)))


def _models(algorithm, state):
    return jax.vmap(algorithm.read)(state.hub, state.memory)
