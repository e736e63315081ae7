"""How does a state become a vector? The floats of hub and memories, one after the other; the rest is structure."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.compiling import quickly
from fedpoint.core.types import Function, Model, Number, State, Tree
from fedpoint.engine.layout import Layout
from fedpoint.graphs.topology import Topology
from fedpoint.problems.oracle import Oracle


class Space(NamedTuple):
    """How hubs, memories and messages are flattened, and how a round is executed: structure, compiled in."""

    layout: Layout  # all agents work, with exact fields
    kept: tuple[int, ...]  # leaves of a settled memory that are not a function of the hub
    most: int  # at least as many local steps as any agent takes
    alike: bool  # every local step is the same map
    settled: bool  # memories are completed by the merged model
    sampled: bool  # fields are
    ragged: bool = False  # exact fields and their noise take some agents much longer: they work one after the other

    @property
    def oracle(self) -> Oracle:
        return self.layout.oracle

    @property
    def topology(self) -> Topology:
        return self.layout.topology


def over(function: Function, *leading: Tree, in_turn: bool = False) -> Tree:
    """function of every row, all at once or in turn; of a single row as it is, which is traced and compiled faster."""
    if jax.tree.leaves(leading)[0].shape[0] == 1:
        return jax.tree.map(lambda a: jnp.asarray(a)[None], function(*jax.tree.map(lambda a: a[0], leading)))
    return lax.map(lambda rows: function(*rows), leading) if in_turn else jax.vmap(function)(*leading)


def steps_until(step: Function, begin: Tree, xs: Tree, count: Number) -> tuple[Tree, Tree]:
    """lax.scan(step, begin, xs) that goes on for the first `count` of xs only; what it does not reach notes zeros.

    Agents that are batched together go on as long as the last of them.
    """
    length = jax.tree.leaves(xs)[0].shape[0]
    if isinstance(count, int) and count >= length:
        return lax.scan(step, begin, xs)

    def at(e: Number) -> Tree:
        return jax.tree.map(lambda a: a[e], xs)

    noted = jax.eval_shape(lambda carry: step(carry, at(0))[1], begin)
    blank = jax.tree.map(lambda a: jnp.zeros((length, *a.shape), a.dtype), noted)

    def on(state: tuple[Array, Tree, Tree]) -> tuple[Array, Tree, Tree]:
        e, carry, noted = state
        carry, more = step(carry, at(e))
        return e + 1, carry, jax.tree.map(lambda all, one: all.at[e].set(one), noted, more)

    return lax.while_loop(lambda state: state[0] < count, on, (jnp.int32(0), begin, blank))[1:]


def is_real(a: Tree) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(a), jnp.floating))


def size_of(tree: Tree) -> int:
    """How many floats a tree holds."""
    return sum(int(np.prod(np.shape(a))) for a in jax.tree.leaves(tree) if is_real(a))


def flat(tree: Tree) -> Array:
    """The floats of a tree as one vector."""
    parts = [jnp.ravel(a) for a in jax.tree.leaves(tree) if is_real(a)]
    return jnp.concatenate(parts).astype(float) if parts else jnp.zeros(0)


def flat_on_host(tree: Tree) -> np.ndarray:
    """The same by NumPy."""
    parts = [np.ravel(np.asarray(a)) for a in jax.tree.leaves(tree) if is_real(a)]
    return np.concatenate(parts).astype(float) if parts else np.zeros(0)


def fill(like: Tree, vector: Array) -> Tree:
    """The tree again; what is not a float is taken from `like`."""
    leaves, tree = jax.tree.flatten(like)
    filled, at = [], 0
    for a in leaves:
        if is_real(a):
            size = int(np.prod(np.shape(a)))
            filled.append(vector[at : at + size].reshape(np.shape(a)))
            at += size
        else:
            filled.append(a)
    return jax.tree.unflatten(tree, filled)


def kept_leaves(algorithm: Algorithm, model: Model, settles: bool) -> tuple[int, ...]:
    """Leaves of a settled memory that depend on the memory: the others the hub tells. settles: memories are settled."""
    leaves = jax.tree.leaves(algorithm.init(model)[1])
    where = [i for i, a in enumerate(leaves) if is_real(a) and np.size(a)]
    if not settles:
        return tuple(where)
    rng = np.random.default_rng(0)  # directions in which nothing cancels by chance
    directions = {i: rng.normal(size=np.shape(leaves[i])) for i in where}
    moved = _settled_slope(algorithm, model, directions)
    return tuple(i for i in where if np.any(np.asarray(moved[i]) != 0))


@quickly
def _settled_slope(algorithm: Algorithm, model: Model, directions: dict[int, Array]) -> dict[int, Array]:
    """How leaves of a memory, when it is settled, move with these directions of them."""
    hub, memory = algorithm.init(model)
    leaves, tree = jax.tree.flatten(memory)

    def settled(values: dict[int, Array]) -> dict[int, Array]:
        full = [values.get(i, a) for i, a in enumerate(leaves)]
        after = jax.tree.leaves(algorithm.settle(hub, jax.tree.unflatten(tree, full)))
        return {i: after[i] for i in values}

    begun = {i: jnp.asarray(leaves[i]) for i in directions}
    tangents = {i: jnp.asarray(a).astype(begun[i].dtype) for i, a in directions.items()}
    return jax.jvp(settled, (begun,), (tangents,))[1]


def row_of(space: Space, algorithm: Algorithm, hub: State, memory: State) -> Array:
    """The floats of an agent's memory that are kept, once it is settled."""
    leaves = jax.tree.leaves(algorithm.settle(hub, memory))
    return flat([leaves[i] for i in space.kept])


def memory_of(space: Space, algorithm: Algorithm, hub: State, model: Model, row: Array) -> State:
    """An agent's settled memory from its kept floats."""
    blank = algorithm.settle(hub, algorithm.init(model)[1])
    leaves, tree = jax.tree.flatten(blank)
    at = 0
    for i in space.kept:
        size = int(np.prod(np.shape(leaves[i])))
        leaves[i] = row[at : at + size].reshape(np.shape(leaves[i]))
        at += size
    return jax.tree.unflatten(tree, leaves)
