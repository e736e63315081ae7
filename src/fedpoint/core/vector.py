"""How does one write w - mu g when a model is a whole tree of arrays?

A model that is one array is used as it is. Any other pytree travels as a `Vector`, which has the arithmetic of
an array, so that an algorithm is written once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.types import Message, Model, Number, Tree

ARRAYS = (np.ndarray, np.generic, Array, jax.ShapeDtypeStruct)
Built = TypeVar("Built")  # a tree that comes back built as it was


@jax.tree_util.register_pytree_node_class
class Vector:
    """A pytree with the arithmetic of a vector space."""

    __slots__ = ("tree",)

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def tree_flatten(self) -> tuple[tuple[Tree], None]:
        return (self.tree,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Tree]) -> Vector:
        return cls(children[0])

    def _with(self, other: Vector | Number, op: Callable[..., Array]) -> Vector:
        if isinstance(other, Vector):
            return Vector(jax.tree.map(op, self.tree, other.tree))
        return Vector(jax.tree.map(lambda a: op(a, other), self.tree))

    def __add__(self, other: Vector | Number) -> Vector:
        return self._with(other, operator.add)

    def __sub__(self, other: Vector | Number) -> Vector:
        return self._with(other, operator.sub)

    def __mul__(self, other: Vector | Number) -> Vector:
        return self._with(other, operator.mul)

    def __truediv__(self, other: Vector | Number) -> Vector:
        return self._with(other, operator.truediv)

    def __pow__(self, power: Number) -> Vector:
        return self._with(power, operator.pow)

    def __rsub__(self, other: Number) -> Vector:
        return -self + other

    def __rtruediv__(self, other: Number) -> Vector:
        return Vector(jax.tree.map(lambda a: other / a, self.tree))

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Vector:
        return Vector(jax.tree.map(operator.neg, self.tree))

    def __repr__(self) -> str:
        return f"Vector({self.tree!r})"


def wrap(model: Tree) -> Model:
    """A model as an algorithm sees it."""
    return model if isinstance(model, (*ARRAYS, Vector)) else Vector(model)


def unwrap(model: Model) -> Tree:
    """A model as the user wrote it."""
    return model.tree if isinstance(model, Vector) else model


def unwrap_all(tree: Tree) -> Tree:
    """Models anywhere in a tree, as the user wrote them."""
    return jax.tree.map(unwrap, tree, is_leaf=lambda a: isinstance(a, Vector))


def zeros(model: Built) -> Built:
    return jax.tree.map(jnp.zeros_like, model)


def dot(a: Tree, b: Tree) -> Number:
    """Inner product over all leaves."""
    return sum(jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def square(a: Tree) -> Number:
    """Squared Euclidean norm over all leaves."""
    return sum(jnp.sum(x * x) for x in jax.tree.leaves(a))


def where(condition: Number | np.bool_, a: Built, b: Built) -> Built:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


def take(tree: Built, index: Number) -> Built:
    """Rows of every leaf. The index is known to be in range: checks would cost as much as the rows."""
    if jnp.ndim(index) == 0:
        return jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, index, 0, False, allow_negative_indices=False), tree)
    return jax.tree.map(lambda a: a.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False), tree)


def write(tree: Built, rows: Tree, index: Number) -> Built:
    """The tree with these rows at the index, one number, which is known to be in range."""

    def one(a: Array, row: Array) -> Array:
        return lax.dynamic_update_index_in_dim(a, row, index, 0, allow_negative_indices=False)

    return jax.tree.map(one, tree, rows)


def weighted_sum(weights: Array, messages: Message) -> Message:
    """sum_k weights_k messages_k over the leading axis; a plain sum, which XLA fuses with what makes the messages."""

    def total(m: Array) -> Array:
        return jnp.sum(weights.astype(m.dtype).reshape(-1, *(1,) * (m.ndim - 1)) * m, axis=0)

    return jax.tree.map(total, messages)
