"""Frozen dataclasses that JAX can trace: numbers are traced, the rest is structure.

A field that holds a float, an array or another record is a leaf of the pytree: it can change, be swept under
`vmap` and be differentiated without compiling again. A field that holds an int, a string, a bool or None is
structure: a new value means a new program.
"""

from __future__ import annotations

import dataclasses
from typing import Any, dataclass_transform

import jax
import numpy as np


def floats(values: Any) -> np.ndarray:
    """As an array; NaN, which every check refuses, where these are no numbers.

    >>> floats([1, 2]), floats(["x"])
    (array([1., 2.]), array(nan))
    """
    try:
        return np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        return np.asarray(np.nan)


def _is_leaf(value: Any) -> bool:
    if isinstance(value, bool | int | str | bytes | np.bool_ | np.integer) or value is None:
        return False
    return isinstance(value, float | np.ndarray | np.floating | jax.Array) or hasattr(value, "_leaves")


def _setup(self) -> None:
    for field in dataclasses.fields(self):
        value = getattr(self, field.name)
        if isinstance(value, list | tuple) and value and all(isinstance(v, int | float) for v in value):
            object.__setattr__(self, field.name, np.asarray(value))
    find_leaves(self)


def find_leaves(self) -> None:
    """Note which fields hold numbers: once, so that a tree of placeholders keeps the structure."""
    leaves = tuple(f.name for f in dataclasses.fields(self) if _is_leaf(getattr(self, f.name)))
    object.__setattr__(self, "_leaves", leaves)


def _flatten(self):
    static = tuple((f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if f.name not in self._leaves)
    return tuple(getattr(self, name) for name in self._leaves), (self._leaves, static)


def _unflatten(cls, aux, children):
    self = object.__new__(cls)
    leaves, static = aux
    for name, value in (*zip(leaves, children, strict=True), *static, ("_leaves", leaves)):
        object.__setattr__(self, name, value)
    return self


def _equal(a: Any, b: Any) -> bool:
    """Equality that also holds for array fields."""
    if type(a) is not type(b):
        return False
    return all(np.array_equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))


@dataclass_transform(frozen_default=True)
def record(cls: type) -> type:
    """Make `cls` a frozen dataclass and a pytree. `check(self)` is called on construction, not when traced."""
    check = getattr(cls, "check", None)

    def __post_init__(self):
        _setup(self)
        if check is not None:
            check(self)

    cls.__post_init__ = __post_init__  # type: ignore[attr-defined]
    cls = dataclasses.dataclass(frozen=True, eq=False)(cls)
    cls.__eq__ = _equal  # type: ignore[assignment]
    cls.__hash__ = None  # type: ignore[assignment]
    jax.tree_util.register_pytree_node(cls, _flatten, lambda aux, children: _unflatten(cls, aux, children))
    return cls


def stack(records: list[Any], swept: tuple[str, ...]) -> Any:
    """Records of one structure as one whose numbers lead with their axis; `swept` fields too, even whole ones."""
    first = records[0]
    leaves = (*first._leaves, *(name for name in swept if name not in first._leaves))
    values = [jax.tree.map(lambda *a: np.stack(a), *(getattr(r, name) for r in records)) for name in leaves]
    static = tuple((f.name, getattr(first, f.name)) for f in dataclasses.fields(first) if f.name not in leaves)
    return _unflatten(type(first), (leaves, static), values)


def with_leaves(one: Any, **values: Any) -> Any:
    """A record with other values in these fields, which are then traced, whole numbers too."""
    leaves = (*one._leaves, *(name for name in values if name not in one._leaves))
    static = tuple((f.name, getattr(one, f.name)) for f in dataclasses.fields(one) if f.name not in leaves)
    return _unflatten(type(one), (leaves, static), [values.get(name, getattr(one, name)) for name in leaves])
