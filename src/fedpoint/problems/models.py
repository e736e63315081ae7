"""Is this a model of a problem, or several of them? One message where it is not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import jax
import numpy as np

from fedpoint.core.arrays import numbers
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Model, Tree

P = ParamSpec("P")
Result = TypeVar("Result")


class Starting(Protocol):
    """A problem, which knows how a model is built."""

    def start(self) -> Model: ...

    def learnt(self, model: Tree) -> Model: ...


Owner = TypeVar("Owner", bound=Starting)


def arrays_of(name: str, own: Model, given: Model) -> Model:
    """A model, or several, as arrays: built as a problem's own, whatever the shapes. One array may be a list."""
    if isinstance(own, np.ndarray | jax.Array):
        return _array(name, given)
    built: list[Tree] = [jax.tree.structure(tree) for tree in (given, own)]
    if built[0] != built[1]:
        raise FedpointError(f"{name} is built as {built[0]}, but a model of this problem as {built[1]}")
    return jax.tree.map(lambda a: _array(name, a), given)


def _array(name: str, given: Tree) -> np.ndarray | jax.Array:
    if isinstance(given, np.ndarray | jax.Array) and given.dtype.kind == "f":
        return given  # in its own precision
    return numbers(name, given)


def shapes_of(model: Model) -> list[tuple[int, ...]]:
    return [np.shape(leaf) for leaf in jax.tree.leaves(model)]


def check_one(name: str, own: Model, given: Model) -> Model:
    """One model, as arrays."""
    found = arrays_of(name, own, given)
    if shapes_of(found) != shapes_of(own):
        raise FedpointError(f"{name} has {_told(found)}, but a model of this problem has {_told(own)}")
    return found


def check_each(name: str, own: Model, given: Model, agents: int) -> Model:
    """(n, K, ...): n times a model for each agent, as arrays."""
    found = arrays_of(name, own, given)
    lead = {shape[:1] for shape in shapes_of(found)}
    if len(lead) != 1 or [s[1:] for s in shapes_of(found)] != [(agents, *s) for s in shapes_of(own)]:
        raise FedpointError(
            f"{name} have {_told(found)}, but a model of this problem has {_told(own)}: give (n, {agents}, ...), "
            "n times one for each agent"
        )
    return found


def _told(model: Model) -> str:
    shapes = shapes_of(model)
    return f"shape {shapes[0]}" if len(shapes) == 1 else f"shapes {shapes}"


def at_model(method: Callable[Concatenate[Owner, Model, P], Result]) -> Callable[Concatenate[Owner, Model, P], Result]:
    """A method of a problem that is asked at one model `w`, checked."""

    @functools.wraps(method)
    def call(self: Owner, w: Model, *rest: P.args, **named: P.kwargs) -> Result:
        return method(self, check_one("w", self.start(), self.learnt(w)), *rest, **named)

    return call


def at_models(method: Callable[[Owner, Model], np.ndarray]) -> Callable[[Owner, Model], np.ndarray]:
    """A method of a problem that is asked at n models (leading axis), which then may be asked at one too."""

    @functools.wraps(method)
    def call(self: Owner, models: Model) -> np.ndarray:
        own = self.start()
        found = arrays_of("models", own, self.learnt(models))
        shapes, one = shapes_of(found), shapes_of(own)
        if shapes == one:
            return method(self, jax.tree.map(lambda a: a[None], found))[0]
        if len({shape[:1] for shape in shapes}) > 1 or [shape[1:] for shape in shapes] != one:
            raise FedpointError(
                f"models have {_told(found)}, but a model of this problem has {_told(own)}: give one, or n of them "
                "with an axis before"
            )
        return method(self, found)

    return call
