"""A network of which only parts are learnt: the rest is frozen, as the base of an adapter, and nobody sends it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.errors import FedpointError
from fedpoint.core.selection import Only
from fedpoint.core.types import Data, Model, Tree
from fedpoint.problems.forms import Called, Form


class Partly(Form):
    """Parts of a network of any form; what is frozen is a constant of the loss, in the precision in which it is
    computed."""

    def __init__(self, form: Form, only: Only):
        self._form, self._split = form, only.split("learn=:", form.start)
        if any(leaf.bits for leaf in self._split.leaves):
            raise FedpointError("learn=: name whole arrays: a part of one cannot be frozen")
        if not self._split.count:
            raise FedpointError("learn=: nothing of the model is learnt; name what is")
        if only.own_steps is not None or only.own_step is not None:
            raise FedpointError("learn=: own_steps and own_step belong to share=")
        self.start, self._rest = self._split.halves(form.start)
        self.random = form.random

    @property
    def learnt(self) -> tuple[bool, ...]:
        return tuple(one for one, leaf in self._sides() if leaf)

    @property
    def frozen(self) -> tuple[np.ndarray, ...]:
        """The arrays that nobody changes."""
        return tuple(jax.tree.leaves(self._rest))

    def _sides(self) -> list[tuple[bool, int]]:
        """Of every array of the network whether it would be learnt, and how many of its numbers are."""
        return [(one, leaf.count) for one, leaf in zip(self._form.learnt, self._split.leaves, strict=True)]

    def _network(self, model: Model) -> Model:
        """The arrays of the whole network, repeated as often as the model's are."""
        first, own = jax.tree.leaves(model)[0], jax.tree.leaves(self.start)[0]
        lead, kind = np.shape(first)[: np.ndim(first) - np.ndim(own)], jnp.result_type(*jax.tree.leaves(model))
        leaves, built = jax.tree.flatten(self._rest)
        frozen = [one for one, count in self._sides() if not count]  # parameters, not statistics
        same = kind == jnp.result_type(*jax.tree.leaves(self.start))
        cast = [a.astype(kind) if mine and not same else a for a, mine in zip(leaves, frozen, strict=True)]
        rest = [np.broadcast_to(a, (*lead, *a.shape)) if lead else a for a in cast]
        return self._split.whole(model, jax.tree.unflatten(built, rest))

    def call(self, loss: Called, model: Model, batch: Data, key: Array | None) -> tuple[Tree, Model]:
        value, after = self._form.call(loss, self._network(model), batch, key)
        return value, self._split.halves(after)[0]

    def split(self, given: Tree) -> Model:
        own: list[Tree] = [jax.tree.structure(tree) for tree in (given, self.start)]
        return given if own[0] == own[1] else self._split.halves(self._form.split(given))[0]

    def whole(self, model: Model) -> Tree:
        return self._form.whole(self._network(model))

    def predict(self, function: Called, model: Model, inputs: Data) -> Tree:
        return self._form.predict(function, self._network(model), inputs)
