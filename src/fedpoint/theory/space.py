"""How does a state become a vector? The floats of hub and memories, one after the other; the rest is structure."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


class Space(NamedTuple):
    """How hub, memory and message are flattened: structure, compiled in."""

    kept: tuple[int, ...]  # leaves of a settled memory that are not a function of the hub
    most: int  # at least as many local steps as any agent takes
    alike: bool  # every local step is the same map
    settled: bool  # memories are completed by the merged model


def floats(tree: Any) -> list[Any]:
    return [a for a in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(a), jnp.floating)]


def flat(tree: Any) -> Array:
    """The floats of a tree as one vector."""
    parts = [jnp.ravel(a) for a in floats(tree)]
    return jnp.concatenate(parts).astype(float) if parts else jnp.zeros(0)


def fill(like: Any, vector: Array) -> Any:
    """The tree again; what is not a float is taken from `like`."""
    leaves, tree = jax.tree.flatten(like)
    filled, at = [], 0
    for a in leaves:
        if jnp.issubdtype(jnp.result_type(a), jnp.floating):
            size = int(np.prod(np.shape(a)))
            filled.append(vector[at : at + size].reshape(np.shape(a)))
            at += size
        else:
            filled.append(a)
    return jax.tree.unflatten(tree, filled)


def kept_leaves(algorithm: Any, model: Any) -> tuple[int, ...]:
    """Leaves of a settled memory that depend on the memory: the others the hub tells."""
    hub, memory = algorithm.init(model)
    leaves, tree = jax.tree.flatten(memory)
    where = [i for i, a in enumerate(leaves) if jnp.issubdtype(jnp.result_type(a), jnp.floating)]

    def settled(values):
        full = list(leaves)
        for i, v in zip(where, values, strict=True):
            full[i] = v
        return [jax.tree.leaves(algorithm.settle(hub, jax.tree.unflatten(tree, full)))[i] for i in where]

    if not where:
        return ()
    rng = np.random.default_rng(0)  # directions in which nothing cancels by chance
    tangents = [jnp.asarray(rng.normal(size=np.shape(leaves[i])), jnp.result_type(leaves[i])) for i in where]
    moved = jax.jvp(settled, ([leaves[i] for i in where],), (tangents,))[1]
    return tuple(i for i, a in zip(where, moved, strict=True) if np.any(np.asarray(a) != 0))


def take_leaves(memory: Any, kept: tuple[int, ...]) -> list[Any]:
    leaves = jax.tree.leaves(memory)
    return [leaves[i] for i in kept]


def memory_of(space: Space, algorithm: Any, hub: Any, model: Any, m: Array) -> Any:
    """An agent's settled memory from its kept floats."""
    blank = algorithm.settle(hub, algorithm.init(model)[1])
    leaves, tree = jax.tree.flatten(blank)
    at = 0
    for i in space.kept:
        size = int(np.prod(np.shape(leaves[i])))
        leaves[i] = m[at : at + size].reshape(np.shape(leaves[i]))
        at += size
    return jax.tree.unflatten(tree, leaves)
