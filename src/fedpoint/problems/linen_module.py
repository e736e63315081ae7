"""A module of flax.linen with its variables: the loss gets it bound, ready to be called."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np
from flax import linen
from jax import Array

from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Data, Model, Tree
from fedpoint.problems.forms import PARAMS, Asked, Called, Form, as_floats, as_given, kinds_of


class LinenModule(Form):
    """(module, variables): `params` are learnt, other collections are a state.

    loss(model, batch) calls the bound module as it would any; where there is a state, or `random=True`, it is
    loss(model, batch, key), and the key, from which streams of random numbers are made, is None in evaluation mode.
    """

    def __init__(self, module: linen.Module, variables: Mapping[str, Tree], asked: Asked):
        if asked.state is not None:
            raise FedpointError("a linen module has its state in its variables: leave state= out")
        if PARAMS not in variables:
            raise FedpointError(f"the variables hold no {PARAMS!r}: give what module.init returns")
        self.module, self.random = module, asked.random
        others = {name: variables[name] for name in sorted(variables) if name != PARAMS}
        self._kinds = kinds_of(others)
        params = jax.tree.map(np.asarray, variables[PARAMS])
        self.start = {PARAMS: params, **as_floats(others, params)}
        self._others = list(others)

    @property
    def learnt(self) -> tuple[bool, ...]:
        found = [name == PARAMS for name in sorted(self.start) for _ in jax.tree.leaves(self.start[name])]
        return tuple(found)

    def _variables(self, model: Model) -> Tree:
        others = as_given({name: model[name] for name in self._others}, self._kinds)
        return {PARAMS: model[PARAMS], **others}

    def call(self, loss: Called, model: Model, batch: Data, key: Array | None) -> tuple[Tree, Model]:
        rngs = None if key is None else {"dropout": key}
        bound = self.module.bind(self._variables(model), rngs=rngs, mutable=self._others if key is not None else False)
        value = loss(bound, batch, key) if self.lucky else loss(bound, batch)
        if key is None or not self._others:
            return value, model
        after = {name: bound.variables[name] for name in self._others}
        return value, {PARAMS: model[PARAMS], **as_floats(after, {name: model[name] for name in self._others})}

    def split(self, given: Tree) -> Model:
        if isinstance(given, tuple) and len(given) == 2:
            given = given[1]
        others = {name: given[name] for name in self._others}
        return {PARAMS: given[PARAMS], **as_floats(others, given[PARAMS])}

    def whole(self, model: Model) -> Tree:
        return self._variables(model)

    def predict(self, function: Called, model: Model, inputs: Data) -> Tree:
        return function(self.module.bind(self._variables(model)), inputs)


def form(params: Tree, asked: Asked) -> Form | None:
    """The form of a pair (module, variables); None of anything else."""
    if isinstance(params, linen.Module):
        raise FedpointError("a linen module has no parameters of its own: give (module, module.init(key, inputs))")
    if not isinstance(params, tuple) or len(params) != 2 or not isinstance(params[0], linen.Module):
        return None
    return LinenModule(*params, asked)
