"""A module of flax.nnx: parameters, statistics and streams of random numbers are told apart by their kinds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Data, Model, Tree
from fedpoint.problems.forms import PARAMS, STATE, Asked, Called, Form, as_floats, as_given, kinds_of, learnt_of


class NnxModule(Form):
    """The loss gets the module: loss(model, batch). Its `Param`s are learnt, its streams of random numbers are those of
    the run, all else is a state. Batches of a run see it in the mode in which it was given, exact losses in evaluation
    mode (`model.eval()`)."""

    def __init__(self, module: nnx.Module, asked: Asked):
        if asked.state is not None or asked.random:
            raise FedpointError("an nnx module has its state and its streams in itself: leave state= and random= out")
        self._built, params, self._streams, state = nnx.split(module, nnx.Param, nnx.RngState, ...)
        self.random = bool(jax.tree.leaves(self._streams))
        self._params, self._state = params, state
        learnt = jax.tree.map(np.asarray, nnx.to_pure_dict(params))
        if not jax.tree.leaves(learnt):
            raise FedpointError("the module has no nnx.Param: there is nothing to learn")
        others = nnx.to_pure_dict(state)
        self._kinds, self._stateful = kinds_of(others), bool(jax.tree.leaves(others))
        self.start = {PARAMS: learnt, STATE: as_floats(others, learnt)} if self._stateful else learnt

    @property
    def learnt(self) -> tuple[bool, ...]:
        return learnt_of(self.start, self._stateful)

    def _module(self, model: Model, key: Array | None) -> nnx.Module:
        params, state, streams = (jax.tree.map(lambda a: a, s) for s in (self._params, self._state, self._streams))
        nnx.replace_by_pure_dict(params, model[PARAMS] if self._stateful else model)
        if self._stateful:
            nnx.replace_by_pure_dict(state, as_given(model[STATE], self._kinds))
        if key is not None:
            leaves, built = jax.tree.flatten(streams)
            streams = jax.tree.unflatten(built, [self._begun(a, key, i) for i, a in enumerate(leaves)])
        return nnx.merge(self._built, params, streams, state)

    @staticmethod
    def _begun(leaf: Array, key: Array, number: int) -> Array:
        """A stream at its beginning, with a key of its own; counts are zero."""
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.zeros_like(leaf)
        own = jax.random.fold_in(key, number)
        return own if leaf.shape == () else jax.random.split(own, leaf.shape)

    def call(self, loss: Called, model: Model, batch: Data, key: Array | None) -> tuple[Tree, Model]:
        module = self._module(model, key)
        if key is None:
            module.eval()
            return loss(module, batch), model
        value = loss(module, batch)
        if not self._stateful:
            return value, model
        after = nnx.to_pure_dict(nnx.split(module, nnx.Param, nnx.RngState, ...)[3])
        return value, {PARAMS: model[PARAMS], STATE: as_floats(after, model[STATE])}

    def split(self, given: Tree) -> Model:
        if not isinstance(given, nnx.Module):
            return given
        _, params, _, state = nnx.split(given, nnx.Param, nnx.RngState, ...)
        learnt = nnx.to_pure_dict(params)
        return {PARAMS: learnt, STATE: as_floats(nnx.to_pure_dict(state), learnt)} if self._stateful else learnt

    def whole(self, model: Model) -> Tree:
        return self._module(model, None)

    def predict(self, function: Called, model: Model, inputs: Data) -> Tree:
        module = self._module(model, None)
        module.eval()
        return function(module, inputs)


def form(params: Tree, asked: Asked) -> Form | None:
    """The form of a module; None of anything else."""
    return NnxModule(params, asked) if isinstance(params, nnx.Module) else None
