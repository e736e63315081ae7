"""The expected round as maps of the state: compiled programs of its structure and its numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.compiling import fairly_quickly, quickly
from fedpoint.core.inbox import Inbox
from fedpoint.core.types import Model, Number, State
from fedpoint.core.vector import unwrap
from fedpoint.graphs.topology import Begun, Topology
from fedpoint.graphs.wiring import Wires
from fedpoint.problems.base import per_agent
from fedpoint.problems.oracle import Mine
from fedpoint.theory.expected_round import Cases, Numbers, expected, memories, read_models, rows, start_at, template
from fedpoint.theory.space import Space, fill, flat, size_of


@partial(jax.jit, static_argnums=(0, 4))
def _compiled_begin(topology: Topology, algorithm: Algorithm, models: Model, wires: Wires, agents: int) -> Begun:
    return topology.begin(algorithm, models, wires, agents)


def begin(topology: Topology, algorithm: Algorithm, models: Model, wires: Wires, agents: int) -> Begun:
    """What hubs and agents start from; compiled where every node has to hear its neighbours for that."""
    if topology.by_node:
        return _compiled_begin(topology, algorithm, models, wires, agents)
    return topology.begin(algorithm, models, wires, agents)


_compiled_rows = quickly(rows, static_argnums=(0, 4))


def own_rows(space: Space, algorithm: Algorithm, hub: State, memory: State, agents: int) -> np.ndarray:
    """(K, ...): the floats of all agents' memories, as a state has them."""
    if space.settled:
        return np.asarray(_compiled_rows(space, algorithm, hub, memory, agents))
    leaves = jax.tree.leaves(memory)
    kept = [np.asarray(leaves[i], float).reshape(agents, -1) for i in space.kept]
    return np.concatenate([np.zeros((agents, 0)), *kept], axis=1)


def cases(chance: np.ndarray, weight: np.ndarray, heard: np.ndarray) -> Cases:
    return Cases(*jax.device_put((chance, weight, heard)))


def expected_state(space: Space, numbers: Numbers, x: Array, round: Number = 0) -> Array:
    """F(x)."""
    x = jnp.asarray(x).astype(numbers.p.dtype)
    hub, m = expected(space, numbers, *start_at(numbers, x, round), round)
    return jnp.concatenate([flat(hub), m.ravel()])


step = quickly(expected_state, static_argnums=0)
step_with_care = jax.jit(expected_state, static_argnums=0)


@partial(quickly, static_argnums=0)
def by_case(space: Space, numbers: Numbers, x: Array) -> Array:
    def one(case: Cases) -> Array:
        return expected_state(space, numbers._replace(cases=jax.tree.map(lambda a: a[None], case)), x)

    return jax.vmap(one)(numbers.cases)


def expected_slope(space: Space, numbers: Numbers, x: Array, v: Array) -> Array:
    """F'(x) v."""
    x, v = (jnp.asarray(a).astype(numbers.p.dtype) for a in (x, v))  # tangents have the type of what they move
    return jax.jvp(lambda x: expected_state(space, numbers, x), (x,), (v,))[1]


slope = quickly(expected_slope, static_argnums=0)
slope_with_care = jax.jit(expected_slope, static_argnums=0)


@partial(quickly, static_argnums=0)
def matrix(space: Space, numbers: Numbers, x: Array) -> Array:
    return jax.jacfwd(lambda x: expected_state(space, numbers, x))(x)


@partial(fairly_quickly, static_argnums=0)
def travel(space: Space, numbers: Numbers, x: Array, first: Array, rounds: Array) -> Array:
    def go(i: Array, state: tuple[State, Array]) -> tuple[State, Array]:
        return expected(space, numbers, state[0], state[1], first + i)

    hub, m = lax.fori_loop(0, rounds, go, start_at(numbers, x, first))
    return jnp.concatenate([flat(hub), m.ravel()])


@partial(fairly_quickly, static_argnums=(0, 4))
def path(space: Space, numbers: Numbers, x: Array, first: Array, rounds: int) -> tuple[Array, Array]:
    def go(state: tuple[State, Array], round: Array) -> tuple[tuple[State, Array], Array]:
        hub, m = expected(space, numbers, state[0], state[1], round)
        memory = memories(space, numbers, hub, m)
        return (hub, m), read_models(space, numbers.algorithm, hub, memory)

    (hub, m), models = lax.scan(go, start_at(numbers, x, first), first + jnp.arange(rounds))
    return models, jnp.concatenate([flat(hub), m.ravel()])


def models_at(space: Space, numbers: Numbers, x: Array) -> Array:
    """The models in a state, flattened."""
    hub, m = start_at(numbers, x, 0)
    return read_models(space, numbers.algorithm, hub, memories(space, numbers, hub, m))


read = quickly(models_at, static_argnums=0)


@partial(quickly, static_argnums=0)
def reading(space: Space, numbers: Numbers, x: Array) -> Array:
    return jax.jacrev(lambda x: models_at(space, numbers, x))(x)


@partial(quickly, static_argnums=0)
def reads(space: Space, numbers: Numbers, states: Array) -> Array:
    return jax.vmap(lambda x: models_at(space, numbers, x))(states)


@partial(quickly, static_argnums=0)
def merges(space: Space, numbers: Numbers, points: Array) -> Array:
    """The hub's merge of what it hears: mean and total of a message, mass and weight."""
    message, _ = template(space, numbers)
    size = size_of(message)

    def merge(v: Array) -> Array:
        mean, total = fill(message, v[:size]), fill(message, v[size : 2 * size])
        return flat(numbers.algorithm.combine(numbers.hub, Inbox(mean, total, 1 + 0.1 * v[-2], 1 + 0.1 * v[-1])))

    return jax.vmap(merge)(points)


def _aggregate(space: Space, numbers: Numbers) -> Callable[[Array], Array]:
    """sum_k p_k g_k, of flattened models."""

    def field(w: Array) -> Array:
        model, common = unwrap(fill(numbers.model, w)), numbers.inputs.common

        def one(own: Model) -> Array:
            return flat(space.oracle.mean_field(Mine(own, common), model))

        return numbers.p @ per_agent(one, numbers.inputs.own)

    return field


@partial(quickly, static_argnums=0)
def curvature(space: Space, numbers: Numbers, w: Array) -> Array:
    return jax.jacfwd(_aggregate(space, numbers))(w)


@partial(quickly, static_argnums=0)
def curved(space: Space, numbers: Numbers, w: Array, rows: Array) -> Array:
    return lax.map(lambda v: jax.jvp(_aggregate(space, numbers), (w,), (v,))[1], rows)
