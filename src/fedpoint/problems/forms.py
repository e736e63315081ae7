"""How is a network written down? As arrays and a function of them, or as a module of a library for JAX.

A `Form` makes one tree of arrays of it, which is what travels, and puts the network together again where the user's
loss is called. A module of a library has a form of its own, in a file of its own, which is read where the library is
in use already: nothing here needs one of them to be installed.
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import shown
from fedpoint.core.learnt import Fixed, fixed_of
from fedpoint.core.own_code import is_array
from fedpoint.core.types import Data, Model, Tree

Called: TypeAlias = Callable[..., Tree]
PARAMS, STATE = "params", "state"  # of a model that has both


@dataclass(frozen=True)
class Asked:
    """What a user says of a network beside its parameters. random: the loss draws, and takes a key. state: what a step
    changes beside the parameters; None: nothing. compute: the precision of what is computed; None: the parameters'."""

    random: bool = False
    state: Tree = None
    compute: str | None = None


class Form(ABC):
    """A network as arrays.

    start: where a run starts. learnt: for each array, whether it is learnt; the others are statistics, which a step
    changes. random: whether the loss draws random numbers.
    """

    start: Model
    random: bool
    changes = True  # the arrays are not the network as its user has it

    @property
    @abstractmethod
    def learnt(self) -> tuple[bool, ...]: ...

    @property
    def frozen(self) -> tuple[np.ndarray, ...]:
        """Arrays that nobody changes, by which the problem is known again."""
        return ()

    @property
    def lucky(self) -> bool:
        """Whether sampled losses differ from exact ones: they draw, or change a state."""
        return self.random or not all(self.learnt)

    @abstractmethod
    def call(self, loss: Called, model: Model, batch: Data, key: Array | None) -> tuple[Tree, Model]:
        """The loss of a batch, and the model with the state after it. No key: in evaluation mode."""

    @abstractmethod
    def split(self, given: Tree) -> Model:
        """The arrays of a network as its user has it, or of these arrays themselves."""

    @abstractmethod
    def whole(self, model: Model) -> Tree:
        """The network as its user has it, with these arrays."""

    @abstractmethod
    def predict(self, function: Called, model: Model, inputs: Data) -> Tree:
        """What a user's function says of inputs, in evaluation mode."""


class Plain(Form):
    """Parameters in any tree, and a loss of them: loss(params, batch), loss(params, batch, key) where it draws, and
    loss(params, batch, key, state) -> (loss, state) where there is a state."""

    def __init__(self, params: Model, asked: Asked):
        self._fixed: Fixed = fixed_of("params", params)
        learnt = self._fixed.split(params)
        self.random = asked.random
        self._state: Fixed | None = None
        self.start = learnt
        if asked.state is not None:
            self._kinds = kinds_of(asked.state)
            self.start = {PARAMS: learnt, STATE: as_floats(asked.state, learnt)}
        self._stateful = asked.state is not None

    @property
    def changes(self) -> bool:  # type: ignore[override]
        return bool(self._fixed) or self.lucky

    @property
    def learnt(self) -> tuple[bool, ...]:
        return learnt_of(self.start, self._stateful)

    def call(self, loss: Called, model: Model, batch: Data, key: Array | None) -> tuple[Tree, Model]:
        network = self._network(model, key)
        if not self._stateful:
            return (loss(network, batch, key) if self.random else loss(network, batch)), model
        came = loss(network, batch, key, as_given(model[STATE], self._kinds))
        if not isinstance(came, tuple) or len(came) != 2:
            raise FedpointError("loss(params, batch, key, state) must return two: the loss, and the state after it")
        value, state = came
        built: list[Tree] = [jax.tree.structure(tree) for tree in (state, model[STATE])]
        if built[0] != built[1]:
            raise FedpointError("loss(params, batch, key, state) must return the state built as it was given")
        return value, {PARAMS: model[PARAMS], STATE: as_floats(state, model[STATE])}

    def _network(self, model: Model, key: Array | None) -> Tree:
        """The parameters as their user has them, in training or evaluation mode."""
        return self._fixed.whole(model[PARAMS] if self._stateful else model)

    def split(self, given: Tree) -> Model:
        if not self._stateful:
            return self._fixed.split(given)
        if isinstance(given, tuple) and len(given) == 2:
            given = {PARAMS: given[0], STATE: given[1]}
        params = self._fixed.split(given[PARAMS])
        return {PARAMS: params, STATE: as_floats(given[STATE], params)}

    def whole(self, model: Model) -> Tree:
        if not self._stateful:
            return self._fixed.whole(model)
        return {PARAMS: self._fixed.whole(model[PARAMS]), STATE: as_given(model[STATE], self._kinds)}

    def predict(self, function: Called, model: Model, inputs: Data) -> Tree:
        network = self._network(model, None)
        return (
            function(network, inputs, as_given(model[STATE], self._kinds))
            if self._stateful
            else function(network, inputs)
        )


# Libraries whose modules have a form of their own: where it is.
LIBRARIES = {
    "equinox": "fedpoint.problems.equinox_module",
    "flax.linen": "fedpoint.problems.linen_module",
    "flax.nnx": "fedpoint.problems.nnx_module",
}


def form_of(params: Tree, asked: Asked) -> Form:
    """The form of a network: of a module where its library is in use, else plain."""
    for library, home in LIBRARIES.items():
        if library in sys.modules:
            form = importlib.import_module(home).form(params, asked)
            if form is not None:
                return form
    return Plain(params, asked)


@dataclass(frozen=True, eq=False)
class OfNetwork:
    """A user's loss as a function (model, batch, key) -> (loss, model after it)."""

    loss: Called
    form: Form
    compute: str | None = None

    def __call__(self, model: Model, batch: Data, key: Array | None = None) -> tuple[Tree, Model]:
        if self.compute is None:
            return self.form.call(self.loss, model, batch, key)
        dtype = jnp.result_type(*jax.tree.leaves(model))
        leaves, built = jax.tree.flatten(model)
        narrow = [a.astype(self.compute) if mine else a for a, mine in zip(leaves, self.form.learnt, strict=True)]
        value, after = self.form.call(self.loss, jax.tree.unflatten(built, narrow), in_kind(batch, self.compute), key)
        moved = [
            a if mine else b.astype(dtype)
            for a, b, mine in zip(leaves, jax.tree.leaves(after), self.form.learnt, strict=True)
        ]
        return value.astype(dtype), jax.tree.unflatten(built, moved)


@dataclass(frozen=True, eq=False)
class Exact:
    """The same in evaluation mode, as a function (model, batch) -> loss."""

    network: Called

    def __call__(self, model: Model, batch: Data) -> Tree:
        return self.network(model, batch, None)[0]


def in_kind(tree: Tree, kind: str) -> Tree:
    """Real numbers in this precision."""
    return jax.tree.map(lambda a: a.astype(kind) if jnp.issubdtype(a.dtype, jnp.floating) else a, tree)


def learnt_of(start: Model, stateful: bool) -> tuple[bool, ...]:
    """Which arrays are learnt: of a model with a state, not those of the state."""
    if not stateful:
        return (True,) * len(jax.tree.leaves(start))
    sizes = [len(jax.tree.leaves(start[name])) for name in (PARAMS, STATE)]
    return (True,) * sizes[0] + (False,) * sizes[1]


def kinds_of(state: Tree) -> tuple[np.dtype | None, ...]:
    """The kinds of the whole numbers and truth values of a state; None of real numbers, which stay as they are."""
    found: list[np.dtype | None] = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        kind = jnp.result_type(leaf) if is_array(leaf) else None
        if kind is None or not (jnp.issubdtype(kind, jnp.floating) or kind.kind in "biu"):
            said = shown(leaf) if kind is None else f"an array of {kind}"
            raise FedpointError(f"state{jax.tree_util.keystr(path)} is {said}: a state is made of arrays of numbers")
        found.append(None if jnp.issubdtype(kind, jnp.floating) else np.asarray(leaf).dtype)
    return tuple(found)


def as_floats(state: Tree, like: Model) -> Tree:
    """A state in the precision of the parameters: counts are numbers like any other where agents' are averaged."""
    dtype = np.result_type(*(a.dtype for a in jax.tree.leaves(like)))
    return jax.tree.map(lambda a: jnp.asarray(a).astype(dtype) if _traced(a) else np.asarray(a, dtype), state)


def as_given(state: Tree, kinds: Sequence[np.dtype | None]) -> Tree:
    """The state as its user has it: whole numbers and truth values are rounded."""
    leaves, built = jax.tree.flatten(state)

    def one(a: Tree, kind: np.dtype | None) -> Tree:
        a = a if _traced(a) else np.asarray(a)
        return a if kind is None else a.round().astype(kind)

    return jax.tree.unflatten(built, [one(a, kind) for a, kind in zip(leaves, kinds, strict=True)])


def _traced(a: Tree) -> bool:
    return isinstance(a, jax.core.Tracer)
