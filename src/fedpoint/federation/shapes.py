"""Which arrays does a round move? Known before it begins, from the method and the model's shape alone."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.core.precision import double
from fedpoint.core.record import one_agent
from fedpoint.core.types import Tree
from fedpoint.core.vector import wrap
from fedpoint.engine.layout import Layout
from fedpoint.engine.round import encoded
from fedpoint.engine.session import cast
from fedpoint.engine.state import Inputs, trial
from fedpoint.experiment.bound import Bound
from fedpoint.federation.wire import Arrays
from fedpoint.timing.base import Timing


class Shapes(NamedTuple):
    """What a hub sends, what comes back, the message in it, and what a site keeps (the method's, the channel's): trees
    of shapes."""

    heard: Tree
    code: Tree
    message: Tree
    kept: tuple[Tree, Tree]


def elsewhere(bound: Bound) -> tuple[Layout, Inputs]:
    """A round whose agents work at their sites. Who answers is seen, not known."""
    dtype = np.result_type(*jax.tree.leaves(bound.start))
    layout = Layout(
        oracle=bound.problem.oracle,
        agents=bound.problem.agents,
        slots=bound.timing.slots(bound.problem.agents),
        exact=True,
        samples=None,
        chunk=1,
        mapped=False,
        fetch=False,
        capacity=1,
        topology=bound.topology,
    )
    algorithm, channel, gather = (cast(tree, dtype) for tree in (bound.algorithm, bound.channel, bound.gather))
    return layout, Inputs(algorithm, Timing(), (), (), jnp.asarray(bound.problem.weights), channel, gather, bound.wires)


@double
def shapes_of(bound: Bound) -> Shapes:
    """From shapes alone: nothing is computed."""
    layout, inputs = elsewhere(bound)
    return jax.eval_shape(partial(_shapes, layout), inputs, wrap(bound.topology.one(bound.start)))


def _shapes(layout: Layout, inputs: Inputs, model: Tree) -> Shapes:
    topology, algorithm, channel = layout.topology, one_agent(inputs.algorithm, 0), inputs.channel
    said, message, agent = trial(layout, inputs, model)
    said = jax.tree.map(jnp.asarray, said)
    last = message if topology.by_node and not channel.lossless else None
    kept = topology.first_words(algorithm, model)[1], channel.init(message)
    code, kept = encoded(algorithm, channel, message, kept, agent, None, last)
    return Shapes(said if last is None else (said, last), code, message, kept)


def named(tree: Tree) -> dict[str, Tree]:
    """Leaves by their path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path) or "model": leaf for path, leaf in leaves}


def tree_of(like: Tree, arrays: Arrays) -> Tree:
    """The tree again, of arrays that are known to fit."""
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in named(like)])


def blank(like: Tree) -> Tree:
    """Zeros of these shapes."""
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)


def misfit(like: Tree, arrays: Arrays) -> str | None:
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
