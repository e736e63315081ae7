"""Whose mistake was it, and where? A user's own code is called with one message for what it gets wrong."""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.core.errors import FedpointError, Misused
from fedpoint.core.numbers import counted
from fedpoint.core.types import Tree
from fedpoint.core.vector import unwrap_all

LIBRARIES = frozenset({"fedpoint", "jax", "jaxlib", "numpy", "scipy", "optax"}) | sys.stdlib_module_names
CONVERTED = (
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
)


@contextmanager
def calling(where: str) -> Iterator[None]:
    """What a user's code raises meanwhile becomes one `FedpointError` that says where; fedpoint's own errors pass.

    >>> with calling("Mine.local"):
    ...     [1.0][2]
    Traceback (most recent call last):
    fedpoint.core.errors.FedpointError: Mine.local raised IndexError: list index out of range
    """
    try:
        yield
    except Misused as error:
        raise FedpointError(f"{where}: {error}{line_of(error)}") from error
    except FedpointError:
        raise
    except jax.errors.TracerBoolConversionError as error:
        raise FedpointError(
            f"{where} uses a Python if, while, and, or, not on an array whose value is not known while it is traced: "
            f"use jnp.where(condition, a, b) or jax.lax.cond{line_of(error)}"
        ) from error
    except CONVERTED as error:
        raise FedpointError(
            f"{where} needs the value of an array, which is not known while it is traced, for float(), int(), an index "
            f"or a NumPy function: use jax.numpy, and keep it an array{line_of(error)}"
        ) from error
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        raise FedpointError(f"{where} raised {type(error).__name__}: {said}{line_of(error)}") from error


@contextmanager
def called_back() -> Iterator[None]:
    """A `FedpointError` of what a compiled program called back, out of the report that XLA makes of it."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        said = str(error).partition(f"{FedpointError.__name__}: ")[2]
        if not said:
            raise
        raise FedpointError(said.splitlines()[0]) from None


def line_of(error: BaseException) -> str:
    """The user's line that raised it, in brackets, where there is one."""
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_globals.get("__name__", "").split(".")[0] not in LIBRARIES:
            name = frame.f_code.co_filename
            source = linecache.getline(name, number).strip()
            return f" ({Path(name).name}, line {number}{f': {source}' if source else ''})"
    return ""


def several(where: str, came: Tree, names: Sequence[str]) -> Sequence[Tree]:
    """The results of a user's function, of which there must be so many."""
    if isinstance(came, tuple | list) and len(came) == len(names):
        return came
    count = f"{counted(len(came), 'result')}: " if isinstance(came, tuple | list) else ""
    raise FedpointError(
        f"{where} must return {counted(len(names), 'result')}, {' and '.join(names)}; got {count}{layout(came)}"
    )


def whole(where: str, what: str, function: Callable[[int], int], given: int) -> int:
    """The count that a user's function says, of at least one."""
    with calling(where):
        count = function(given)
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise FedpointError(f"{where} must return a whole number of at least 1, {what}; got {count!r}")
    return int(count)


def check_arrays(where: str, what: str, came: Tree) -> None:
    """Refuse a tree that holds anything but numbers and arrays."""
    for leaf in jax.tree.leaves(came):
        if not is_array(leaf):
            raise FedpointError(f"{where} must return {what} as a tree of arrays; got {layout(came)}")


def check_like(where: str, what: str, came: Tree, like: Tree) -> None:
    """Refuse a tree that is not built as another, with the same shapes and types of numbers."""
    check_arrays(where, what, came)
    built: list[Tree] = [jax.tree.structure(tree) for tree in (came, like)]
    if built[0] != built[1] or list(map(_kind, jax.tree.leaves(came))) != list(map(_kind, jax.tree.leaves(like))):
        raise FedpointError(f"{where} must return {what}, {layout(like)}; got {layout(came)}")


def is_array(leaf: object) -> bool:
    return isinstance(leaf, bool | int | float | complex | np.ndarray | np.generic | jax.Array)


def _kind(leaf: Tree) -> tuple[tuple[int, ...], np.dtype]:
    return np.shape(leaf), np.dtype(jnp.result_type(leaf))


class _Word(str):
    """Printed without quotation marks."""

    __repr__ = str.__str__


def layout(tree: Tree) -> str:
    """How a tree is built, in a line.

    >>> print(layout({"w": np.zeros((2, 3), np.float32), "rounds": np.int32(0)}), layout(((), len)))
    {'rounds': int32[], 'w': float32[2,3]} ((), builtin_function_or_method)
    """

    def word(leaf: object) -> _Word:
        if leaf is None or not is_array(leaf):
            return _Word("None" if leaf is None else type(leaf).__name__)
        shape, dtype = _kind(leaf)
        return _Word(f"{dtype}[{','.join(map(str, shape))}]")

    return repr(jax.tree.map(word, unwrap_all(tree), is_leaf=lambda a: a is None))
