"""Does a value fit an annotation? What does the annotation say in words?"""

from __future__ import annotations

import itertools
import math
import numbers
import os
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.errors import MOST_ROUNDS

Kind: TypeAlias = Any  # what an annotation stands for: a class, a union, list[str], ...


class Within(NamedTuple):
    """The bounds of a number, beside its kind: `Annotated[int, Within(1, 10)]`."""

    least: float
    most: float = math.inf
    above: bool = False  # the least itself is not among them

    def holds(self, value: Any) -> bool:
        if not -math.inf < value < math.inf:
            return False
        return bool((value > self.least if self.above else value >= self.least) and value <= self.most)

    def __str__(self) -> str:
        if self.most not in (math.inf, MOST_ROUNDS):
            return f" between {self.least:g} and {self.most:g}"
        return f", {'above' if self.above else 'at least'} {self.least:g}"


Count: TypeAlias = Annotated[int, Within(1, MOST_ROUNDS)]  # of agents, nodes, rounds that there must be
Whole: TypeAlias = Annotated[int, Within(0, MOST_ROUNDS)]
Seed: TypeAlias = Annotated[int, Within(0)]  # of NumPy's generators
Positive: TypeAlias = Annotated[float, Within(0.0, above=True)]
NonNegative: TypeAlias = Annotated[float, Within(0.0)]
Probability: TypeAlias = Annotated[float, Within(0.0, 1.0)]

LOOKED_AT = 1000  # items of a long list whose kind is looked at
SHOWN = 100  # characters of a value that a message shows
UNIONS = (typing.Union, types.UnionType)
WRAPPERS = (typing.NotRequired, typing.Required)


@runtime_checkable
class SupportsArray(Protocol):
    """What NumPy makes an array of: arrays of JAX, columns and tables of pandas."""

    def __array__(self) -> np.ndarray: ...


def resolve(annotation: Kind, space: Mapping[str, object]) -> Kind:
    """What an annotation stands for in a module; anything where it names what only tools import."""
    if isinstance(annotation, typing.ForwardRef):  # of a TypedDict, which knows its module
        return resolve(annotation.__forward_arg__, vars(sys.modules[str(annotation.__forward_module__)]))
    if not isinstance(annotation, str):
        return annotation
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, dict(space), {}, include_extras=True)["it"]
    except NameError:
        return Any


def _parts(kind: Kind) -> tuple[Kind, tuple[Kind, ...]]:
    return typing.get_origin(kind) or kind, typing.get_args(kind)


def fits(value: object, kind: Kind) -> bool:
    """Whether a value is what an annotation says. A number that JAX traces is whatever is asked for.

    >>> fits(3, float), fits(True, int), fits(float("nan"), float), fits(["a"], Sequence[str] | None), fits(3, str)
    (True, False, False, True, False)
    """
    if _is_traced(value):
        return True
    origin, inside = _parts(kind)
    if origin in UNIONS:
        return any(fits(value, one) for one in inside)
    if origin in WRAPPERS:
        return fits(value, inside[0])
    if origin is Annotated:
        return fits(value, inside[0]) and all(not isinstance(one, Within) or one.holds(value) for one in inside[1:])
    if origin is typing.Literal:
        return any(type(value) is type(one) and value == one for one in inside)
    if origin in FITS:
        return FITS[origin](value, inside)
    if _is_jax_array(origin):
        return _array(value, inside)
    if typing.is_typeddict(origin):
        return isinstance(value, Mapping)
    return _is_instance(value, origin)


# JAX is not imported here: reading a table or drawing a graph does without. What it made has loaded it.


def _is_traced(value: object) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)


def _is_jax_array(origin: Kind) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and origin is jax.Array


def as_array(value: object) -> np.ndarray | None:
    """An array of NumPy or of JAX, as one of NumPy's; None where it is neither."""
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.Array):
        return np.asarray(value)
    return value if isinstance(value, np.ndarray) else None


def _is_instance(value: object, cls: Kind) -> bool:
    if not isinstance(cls, type) or cls is Any:
        return True
    try:
        return isinstance(value, cls)
    except TypeError:  # a protocol that cannot be asked
        return True


def _whole(value: object, inside: tuple) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _number(value: object, inside: tuple) -> bool:
    if (array := as_array(value)) is not None:
        return array.ndim == 0 and array.dtype.kind in "iuf" and not np.isnan(array)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return not math.isnan(float(value))
    except OverflowError:
        return False


def _scalar(value: object, inside: tuple) -> bool:
    """Of ArrayLike, which means every number."""
    return isinstance(value, numbers.Complex)


def _truth(value: object, inside: tuple) -> bool:
    return isinstance(value, bool | np.bool_)


def _array(value: object, inside: tuple) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind != "O"
    if not isinstance(value, SupportsArray | list | tuple | range):
        return False
    try:
        return np.asarray(value).dtype.kind != "O"
    except ValueError:  # rows of different lengths
        return False


def _path(value: object, inside: tuple) -> bool:
    return isinstance(value, str | os.PathLike)


def _function(value: object, inside: tuple) -> bool:
    return callable(value)


def _class(value: object, inside: tuple) -> bool:
    return isinstance(value, type) and all(_is_below(value, base) for base in inside)


def _is_below(cls: type, base: Kind) -> bool:
    return issubclass(cls, base) if isinstance(base, type) else True


def _several(value: object, inside: tuple) -> bool:
    """A list, a tuple or a one-dimensional array, whose items fit."""
    if (array := as_array(value)) is not None:
        return array.ndim >= 1 and _all_fit(array, inside)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return False
    return _all_fit(value, inside)


def _all_fit(values: Iterable, inside: tuple) -> bool:
    """Whether items are what they should be: things, not lists of things, of which their owner has more to say."""
    return not inside or _parts(inside[0])[0] in NESTED or all(fits(one, inside[0]) for one in _some(values))


def _some(values: Iterable) -> Iterable:
    return itertools.islice(values, LOOKED_AT)


def _tuple(value: object, inside: tuple) -> bool:
    if not isinstance(value, list | tuple):
        return False
    if not inside or inside[-1] is Ellipsis:
        return _all_fit(value, inside)
    return len(value) == len(inside) and all(fits(one, kind) for one, kind in zip(value, inside, strict=True))


def _iterable(value: object, inside: tuple) -> bool:
    if isinstance(value, Sequence) or as_array(value) is not None:
        return _several(value, inside)
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping | SupportsArray):
        return False
    return not isinstance(value, Collection) or _all_fit(value, inside)  # what is gone after a look is not looked at


def _mapping(value: object, inside: tuple) -> bool:
    if not isinstance(value, Mapping):
        return False
    return not inside or (_all_fit(value.keys(), inside) and _all_fit(value.values(), inside[1:]))


NESTED = (tuple, list, dict, Sequence, Iterable, Collection, Mapping)
Fits: TypeAlias = Callable[[object, tuple], bool]
FITS: dict[Kind, Fits] = {
    bool: _truth,
    int: _whole,
    np.integer: _whole,
    float: _number,
    np.floating: _number,
    complex: _scalar,
    np.ndarray: _array,
    Path: _path,
    type: _class,
    tuple: _tuple,
    list: _several,
    dict: _mapping,
    Callable: _function,
    Sequence: _several,
    Iterable: _iterable,
    Collection: _iterable,
    Mapping: _mapping,
}

WORDS: dict[Kind, str] = {
    types.NoneType: "None",
    bool: "True or False",
    int: "a whole number",
    np.integer: "a whole number",
    float: "a number",
    np.floating: "a number",
    np.ndarray: "an array",
    str: "a string",
    bytes: "bytes",
    Path: "a path",
    type: "a class",
    Callable: "a function",
    tuple: "a list",
    list: "a list",
    dict: "a dictionary",
    Sequence: "a list",
    Iterable: "a list",
    Collection: "a list",
    Mapping: "a dictionary",
}
ARRAYLIKE = {typing.get_origin(one) or one for one in typing.get_args(ArrayLike)} - {complex, str, bytes}
MANY: dict[Kind, str] = {str: "strings", int: "whole numbers", float: "numbers"}
HIDDEN = {  # words that others stand for
    "a number": ("a whole number",),
    "an array": ("a string", "bytes", "True or False"),
    "a path": ("a string",),
}


@cache
def words(kind: Kind) -> str:
    """An annotation for people.

    >>> words(int | None), words(Sequence[str]), words(str | Path)
    ('a whole number or None', 'a list of strings', 'a path')
    """
    found = list(dict.fromkeys(_words(kind)))
    for word in list(found):
        found = [other for other in found if other not in HIDDEN.get(word, ())]
    return " or ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def _words(kind: Kind) -> Iterable[str]:
    origin, inside = _parts(kind)
    if origin in UNIONS:
        ordered = sorted(inside, key=lambda one: one is types.NoneType)
        yield from itertools.chain.from_iterable(map(_words, ordered))
    elif origin in WRAPPERS:
        yield from _words(inside[0])
    elif origin is Annotated:
        bounds = "".join(str(one) for one in inside[1:] if isinstance(one, Within))
        yield from (word + bounds for word in _words(inside[0]))
    elif origin is typing.Literal:
        yield from map(repr, inside)
    elif origin in (Sequence, Iterable, Collection, list, tuple) and inside and inside[0] in MANY:
        yield f"a list of {MANY[inside[0]]}"
    elif origin in (Sequence, Iterable, Collection, list, Mapping, dict) and inside and list(_words(inside[-1])):
        parts = "values" if origin in (Mapping, dict) else "elements"
        yield f"{WORDS[origin]} whose {parts} are {words(inside[-1])}"
    elif origin in WORDS:
        yield WORDS[origin]
    elif _is_jax_array(origin) or origin in ARRAYLIKE:
        yield WORDS[np.ndarray]
    elif isinstance(origin, type) and origin is not complex:
        yield f"{'an' if origin.__name__[0] in 'AEIO' else 'a'} {origin.__name__}"


def shown(value: object) -> str:
    """A value, as far as a message shows it."""
    if (array := as_array(value)) is not None and array.ndim:
        return f"an array {array.dtype}[{','.join(map(str, array.shape))}]"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = repr(value)
    if "\n" in text or " at 0x" in text or len(text) > SHOWN:
        return f"a value of type {type(value).__name__}"
    return text
