"""The words by which signatures speak of trees and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jax import Array

from fedpoint.core.kinds import WORDS

# jax has no type for a tree of arrays: these say which tree is meant.
Tree: TypeAlias = Any  # any pytree of arrays
Model: TypeAlias = Tree  # one array, or a `Vector` around the user's tree: it has the arithmetic of an array
State: TypeAlias = Tree  # what an algorithm keeps: at its hub, or at an agent
Message: TypeAlias = Tree  # what an agent sends
Data: TypeAlias = Tree  # rows, samples, or what is prepared of them

Setting: TypeAlias = Any  # the value of a hyper-parameter, or what a field declares of it

Number: TypeAlias = float | int | np.integer | np.floating | np.ndarray | Array  # one or several, perhaps traced
if TYPE_CHECKING:
    Plain: TypeAlias = (
        "bool | int | float | str | Sequence[Plain] | Mapping[str, Plain] | None"  # what TOML and JSON hold
    )
else:
    Plain = object  # tools follow a type into itself; whoever checks a value does not
Function: TypeAlias = Callable[..., Tree]
Form: TypeAlias = Callable[..., np.ndarray | float | None]  # of algorithm, problem and perhaps participation


@runtime_checkable
class Optimiser(Protocol):
    """What optax calls a gradient transformation."""

    @property
    def init(self) -> Callable[[Tree], State]: ...

    @property
    def update(self) -> Callable[..., tuple[Tree, State]]: ...


WORDS[Optimiser] = "an optimiser of optax"  # in messages
