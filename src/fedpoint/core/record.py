"""Frozen dataclasses that JAX can trace: numbers are traced, the rest is structure.

A field that holds a float, an array or another record is a leaf of the pytree: it can change, be swept under
`vmap` and be differentiated without compiling again. A field that holds an int, a string, a bool or None is
structure: a new value means a new program.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self, TypeVar, dataclass_transform

import jax
import numpy as np

from fedpoint.core.arguments import check_kind, check_names
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import Kind, resolve
from fedpoint.core.types import Number, Setting, Tree

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

One = TypeVar("One", bound="Record")
Built = TypeVar("Built")  # a tree that comes back built as it was


class PerAgent(NamedTuple):
    """One number for each agent, in place of a hyper-parameter: what `experiment.bind()` makes of a list; or one
    vector for each.

    Args:
        values: (K,) a number for each agent, or (K, n) a vector for each.
    """

    values: np.ndarray | jax.Array  # (K,) or (K, n)


def _is_per_agent(value: Tree) -> bool:
    return isinstance(value, PerAgent)


def split_per_agent(tree: Built) -> tuple[list[np.ndarray | jax.Array], Callable[[Sequence[Number]], Built]]:
    """The numbers of a tree that each agent has its own of, at any depth; and how one agent's are put back."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=_is_per_agent)
    places = [i for i, leaf in enumerate(leaves) if _is_per_agent(leaf)]

    def put(own: Sequence[Number]) -> Built:
        filled = list(leaves)
        for place, value in zip(places, own, strict=True):
            filled[place] = value
        return jax.tree.unflatten(structure, filled)

    return [leaves[i].values for i in places], put


def one_agent(tree: Built, agent: int | jax.Array) -> Built:
    """A tree as one agent has it."""
    own, put = split_per_agent(tree)
    return put([values[agent] for values in own])


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class Record:
    """A frozen dataclass and a pytree, by being subclassed. `check(self)` is called on construction, not when traced;
    every class's own is, the base's first. Required fields of a subclass are keyword-only."""

    _leaves: ClassVar[tuple[str, ...]] = ()  # of an instance: which fields hold numbers
    structural: ClassVar[
        tuple[str, ...]
    ] = ()  # fields that are structure though they hold numbers: shapes depend on them

    def __init_subclass__(cls, **options: Setting) -> None:
        super().__init_subclass__(**options)
        if "__post_init__" in vars(cls):
            raise FedpointError(f"{cls.__name__}: write check(self) instead of __post_init__; every class's check runs")
        inherited = {} if "__dataclass_fields__" not in dir(cls) else dict(cls.__dataclass_fields__)  # type: ignore[attr-defined]
        late = any(_has_default(f) for f in inherited.values())
        for name, kind in vars(cls).get("__annotations__", {}).items():
            if name in vars(cls) or "ClassVar" in str(kind) or name in inherited:
                if isinstance(vars(cls).get(name), dataclasses.Field) and late and not _has_default(vars(cls)[name]):
                    vars(cls)[name].kw_only = True
                continue
            setattr(cls, name, dataclasses.field(kw_only=late))  # not what a base class has in its place
        dataclasses.dataclass(frozen=True, eq=False)(cls)
        cls.__init__ = check_names(cls.__init__)  # type: ignore[method-assign]
        jax.tree_util.register_pytree_node(cls, _flatten, lambda aux, children: _unflatten(cls, aux, children))

    def __post_init__(self) -> None:
        given = values_of(self)
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            _check_field(type(self), field, given[field.name])
            object.__setattr__(self, field.name, _as_declared(field, given[field.name]))
        _find_leaves(self)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(self)):
            return
        for cls in reversed(type(self).__mro__):
            own = vars(cls).get("check")
            if own is not None:
                own(self)
        _find_leaves(self)  # a check may have made a number of what was given

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record) or type(self) is not type(other):
            return False
        theirs = values_of(other)
        return all(np.array_equal(mine, theirs[name]) for name, mine in values_of(self).items())

    def __hash__(self) -> int:
        children, structure = _flatten(self)  # jax's own hash of a tree leaves out what its nodes hold
        return hash((type(self), structure, *(child for child in children if isinstance(child, Record))))

    @check_names
    def replace(self, **changes: Setting) -> Self:
        """The same with other values in these fields, checked as a new one is.

        Args:
            changes: the fields that change, by name.
        """
        return type(self)(**{**values_of(self), **changes})


def _has_default(field: dataclasses.Field) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _check_field(cls: type[Record], field: dataclasses.Field, value: Setting) -> None:
    """Refuse a value of another kind than annotated. What a rule is declared for is looked at by that rule."""
    if not field.metadata and value is not field.default:
        check_kind(cls.__name__, field.name, value, _kinds(cls)[field.name])  # type: ignore[arg-type]


@cache
def _kinds(cls: type[Record]) -> dict[str, Kind]:
    """What the annotations of a record's fields stand for, in the modules where they were written."""
    found: dict[str, Kind] = {}
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for owner in reversed(cls.__mro__):
        module, own = sys.modules.get(owner.__module__), vars(owner).get("__annotations__", {})
        space = {} if module is None else vars(module)
        found |= {name: resolve(kind, space) for name, kind in own.items() if name in names}
    return found


def _as_declared(field: dataclasses.Field, value: Setting) -> Setting:
    """A value as its annotation says: a static 1 and True would share a trace, and 1 and 1.0 would not."""
    kind = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    if kind.startswith("float") and isinstance(value, int | np.integer) and not isinstance(value, bool):
        return float(value)
    if kind == "bool" and isinstance(value, np.bool_):
        return bool(value)
    several = isinstance(value, list | tuple) and bool(value) and not kind.startswith("tuple")
    return np.asarray(value) if several and all(isinstance(v, int | float) for v in value) else value


def _is_leaf(value: Setting) -> bool:
    if isinstance(value, bool | int | str | bytes | np.bool_ | np.integer) or value is None:
        return False
    if isinstance(value, tuple) and not isinstance(value, PerAgent):
        inside = jax.tree.leaves(value)  # records, or arrays: numbers only
        return bool(inside) and all(isinstance(leaf, float | np.ndarray | np.floating | jax.Array) for leaf in inside)
    return isinstance(value, float | np.ndarray | np.floating | jax.Array | Record | PerAgent)


def _find_leaves(self: Record) -> None:
    """Note which fields hold numbers: once, so that a tree of placeholders keeps the structure."""
    numbers = (name for name, value in values_of(self).items() if _is_leaf(value) and name not in self.structural)
    object.__setattr__(self, "_leaves", tuple(numbers))


def _flatten(self: Record) -> tuple[tuple[Tree, ...], tuple]:
    values = values_of(self)
    static = tuple((name, value) for name, value in values.items() if name not in self._leaves)
    return tuple(values[name] for name in self._leaves), (self._leaves, static)


def _unflatten(cls: type[One], aux: tuple, children: Sequence[Tree]) -> One:
    self: One = object.__new__(cls)
    leaves, static = aux
    for name, value in (*zip(leaves, children, strict=True), *static, ("_leaves", leaves)):
        object.__setattr__(self, name, value)
    return self


def values_of(one: Record | DataclassInstance) -> dict[str, Setting]:
    """The values of the fields of a record, or of another dataclass, by name."""
    held = vars(one)
    return {name: held[name] for name in _names(type(one))}  # type: ignore[arg-type]


@cache
def _names(cls: type) -> tuple[str, ...]:
    """Of the fields."""
    return tuple(field.name for field in dataclasses.fields(cls))


def with_leaves(one: One, values: Mapping[str, Tree]) -> One:
    """A record with other values in these fields, which are then traced, whole numbers too; nothing is checked."""
    leaves = (*one._leaves, *(name for name in values if name not in one._leaves))
    held = {**values_of(one), **values}
    static = tuple((name, value) for name, value in held.items() if name not in leaves)
    return _unflatten(type(one), (leaves, static), [held[name] for name in leaves])


# What a subclass may replace without changing what its base does. Fields and new names it may have anyway.
NEUTRAL = frozenset({"card", "check", "replace", "forms", "exact_moments", "citation"})


def owner_of(cls: type, name: str) -> type | None:
    """The class that a class has an attribute from."""
    return next((c for c in cls.__mro__ if name in vars(c)), None)


def untouched(cls: type, trait: str, abstract: type) -> bool:
    """Whether a class below the abstract one declares a trait, and none below that replaces anything it has."""
    owner = owner_of(cls, trait)
    if owner is None or owner is abstract:
        return False
    fields = {f.name for f in dataclasses.fields(cls)}
    for below in cls.__mro__[: cls.__mro__.index(owner)]:
        own = {name for name in vars(below) if not name.startswith("__")} - fields - NEUTRAL - set(vars(Record))
        if any(owner_of(owner, name) is not None for name in own):
            return False
    return True
