"""Which leaves of a model are learnt? Arrays of real numbers; functions, sizes and switches beside them are fixed.

A model may be an object that is a pytree, such as a module of a library for neural networks, whose leaves are not all
arrays. What travels is the same tree with nothing where a leaf is fixed, and the user's code sees it put together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, SequenceKey

from fedpoint.core.errors import FedpointError
from fedpoint.core.own_code import is_array
from fedpoint.core.types import Model, Tree

PLAIN = (DictKey, SequenceKey)  # steps into dictionaries, lists and tuples


@dataclass(frozen=True, eq=False)
class Fixed:
    """What of a model is not learnt, and how the whole is built."""

    built: jax.tree_util.PyTreeDef
    leaves: tuple[object, ...]  # of the whole
    learnt: tuple[bool, ...]  # which of them are arrays to learn

    def __bool__(self) -> bool:
        return not all(self.learnt)

    def split(self, model: Tree) -> Model:
        """What is learnt of a model, which may be the whole or that already."""
        if not self or jax.tree.structure(model) != self.built:
            return model
        pairs = zip(jax.tree.leaves(model), self.learnt, strict=True)
        return jax.tree.unflatten(self.built, [leaf if mine else None for leaf, mine in pairs])

    def whole(self, learnt: Model) -> Tree:
        """The model as its user wrote it, with these arrays."""
        if not self:
            return learnt
        arrays = iter(jax.tree.leaves(learnt))
        return jax.tree.unflatten(
            self.built, [next(arrays) if mine else leaf for leaf, mine in zip(self.leaves, self.learnt, strict=True)]
        )


def fixed_of(name: str, model: Tree) -> Fixed:
    """Which leaves of a model are fixed: of numbers in dictionaries, lists and tuples none, of anything else all that
    are no arrays of real numbers.

    >>> fixed_of("params", {"w": np.zeros(2), "activation": abs}).split({"w": np.ones(2), "activation": abs})
    {'activation': None, 'w': array([1., 1.])}
    """
    found, built = jax.tree_util.tree_flatten_with_path(model)
    leaves = tuple(leaf for _, leaf in found)
    learnt = tuple(_real_array(leaf) for leaf in leaves)
    if _numbers(model) or all(learnt):
        return Fixed(built, leaves, (True,) * len(leaves))
    module = not all(mine or isinstance(leaf, float) for mine, leaf in zip(learnt, leaves, strict=True))
    for path, leaf in found:
        # A module's own numbers are its settings, as long as it is one: it holds a function or a size as well.
        if isinstance(leaf, int | float) and not (module and any(not isinstance(key, PLAIN) for key in path)):
            raise FedpointError(
                f"{name}{jax.tree_util.keystr(path)} is the Python number {leaf!r}: to learn it, make it an array, "
                f"jnp.asarray({float(leaf)!r}); to leave it as it is, keep it out of {name}, or make it a static field"
            )
    if not any(learnt):
        raise FedpointError(f"{name} holds no array of real numbers: there is nothing to learn")
    return Fixed(built, leaves, learnt)


def _numbers(tree: Tree) -> bool:
    """Whether it is made of nothing but numbers and arrays, in dictionaries, lists and tuples."""
    if isinstance(tree, Mapping):
        return all(map(_numbers, tree.values()))
    if isinstance(tree, list | tuple):
        return all(map(_numbers, tree))
    return tree is None or is_array(tree)


def _real_array(leaf: object) -> bool:
    return isinstance(leaf, np.ndarray | np.generic | jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating)
