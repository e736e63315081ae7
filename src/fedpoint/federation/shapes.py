"""Which arrays does a round move? Known before it begins, from the algorithm and the model's shape alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.core.agent import Agent
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import NO_LUCK, Stream
from fedpoint.core.vector import wrap
from fedpoint.problems.base import Oracle


@dataclass(frozen=True)
class _Blank(Oracle):
    """An agent without data: all its answers are of the model's shape."""

    def mean_field(self, mine, w):
        return w

    def loss(self, mine, w):
        return jnp.zeros(())

    def prox(self, mine, center, weight):
        return center


class Shapes(NamedTuple):
    """What a hub sends, what comes back, and what a site keeps, as trees of shapes."""

    heard: Any
    message: Any
    memory: Any


def shapes_of(algorithm: Any, model: Any, network: bool) -> Shapes:
    """`algorithm` with one agent's numbers; nothing is computed."""

    def all_three(model, algorithm):
        hub, memory = algorithm.init(model)
        if network and algorithm.hello is not None:  # hubs hold what they hear
            one = jnp.ones(())
            hub = algorithm.combine(hub, Inbox(algorithm.hello(model), algorithm.hello(model), one, one))
        key = NO_LUCK
        heard = jax.tree.map(jnp.asarray, algorithm.say(hub, key.row()))
        agent = Agent(_Blank(), None, Stream(key, jnp.int32(0), jnp.int32(0)), None, None, True, 0, jnp.ones(()))
        message, memory = algorithm.local(heard, memory, agent)
        return Shapes(heard, message, memory)

    with jax.enable_x64(True):
        return jax.eval_shape(all_three, wrap(jax.tree.map(jnp.asarray, model)), algorithm)


def named(tree: Any) -> dict[str, Any]:
    """Leaves by their path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path) or "model": leaf for path, leaf in leaves}


def arrays_of(tree: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf) for name, leaf in named(tree).items()}


def tree_of(like: Any, arrays: Mapping[str, Any]) -> Any:
    """The tree again, of arrays that are known to fit."""
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in named(like)])


def misfit(like: Any, arrays: Mapping[str, np.ndarray]) -> str | None:
    """Why arrays are not those of a tree: "keys", "dtype" or "shape"; None where they are."""
    expected = named(like)
    if set(expected) != set(arrays):
        return "keys"
    for name, leaf in expected.items():
        if arrays[name].dtype != leaf.dtype:
            return "dtype"
        if arrays[name].shape != leaf.shape:
            return "shape"
    return None
