"""How is a value written in plain types, and read back?

Numbers, words and truth values stand for themselves. Everything else is a table:

    {per_agent = [1, 5, 2]}                          one number per agent
    {values = [1.0, 0.5]}                            an array that is not per agent
    {epochs = 5}, {stragglers = 0.5, steps = 10}     local steps
    {inverse_time = {scale = 2.0, offset = 8.0}}     a schedule of steps; also {exponential = {...}}
    {lecture004 = {strong = ..., smooth = ..., local_steps = ...}}
    {optax = "trace", decay = 0.9}                   an optax transformation, by its name

A record is a table of its class and its fields. What has no plain form is named, and has to be given again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.steps import Epochs, Exponential, InverseTime, Stragglers

INLINE = 1000  # numbers of an array, up to which a file holds them and not their fingerprint
FORMS = ("per_agent", "values", "epochs", "stragglers", "inverse_time", "exponential", "lecture004", "optax")


def fingerprint(arrays: Mapping[str, Any]) -> str:
    """SHA-256 of named arrays: names, types, shapes and bytes."""
    sha = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        array = np.ascontiguousarray(array)
        sha.update(f"{name} {array.dtype.str} {array.shape};".encode())
        sha.update(array.reshape(-1).view(np.uint8).data)
    return sha.hexdigest()


# Values to text.


def plain(value: Any, per_agent: bool = False) -> Any:
    """A value in plain types. What has no such form is only named (see `Unreadable`)."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic) or (np.ndim(value) == 0 and hasattr(value, "dtype")):
        return np.asarray(value).item()
    if isinstance(value, Stragglers):
        return {"stragglers": plain(value.fraction), "steps": plain(value.steps)}
    if isinstance(value, Epochs):
        return {"epochs": plain(value.count)}
    if isinstance(value, InverseTime | Exponential):
        name = "inverse_time" if isinstance(value, InverseTime) else "exponential"
        return {name: {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}}
    if isinstance(value, np.ndarray | jax.Array | list):
        array = np.asarray(value)
        if array.size > INLINE or array.dtype.kind not in "biuf":
            return {"shape": list(array.shape), "sha256": fingerprint({"": array})}
        return {"per_agent" if per_agent and array.ndim == 1 else "values": array.tolist()}
    return {"python": _qualified(value)}


def _qualified(value: Any) -> str:
    """The name of a function, or of an object and the functions it is made of."""
    if isinstance(value, tuple) and value and all(map(callable, value)):
        return f"{type(value).__name__}({', '.join(map(_qualified, value))})"
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def describe(record: Any) -> dict[str, Any]:
    """A dataclass in plain types, by the name of its class: enough to tell it from another, not always to build it."""
    if not dataclasses.is_dataclass(record):
        return {"class": type(record).__qualname__}
    texts = {
        f.name: describe(value) if dataclasses.is_dataclass(value) else plain(value)
        for f in dataclasses.fields(record)
        if (value := getattr(record, f.name)) is not None
    }
    return {"class": type(record).__name__, **texts}


def rebuild(table: Mapping[str, Any], classes: Mapping[str, type]) -> Any:
    """The record that `describe` wrote, of one of these classes; `Unreadable` where it is only named."""
    if table["class"] not in classes:
        raise Unreadable(f"{table['class']} is not one of fedpoint's classes")
    values = {
        key: rebuild(text, classes) if isinstance(text, Mapping) and "class" in text else value_of(text)
        for key, text in table.items()
        if key != "class"
    }
    return construct(classes[table["class"]], values)


def construct(cls: type, values: Mapping[str, Any]) -> Any:
    """cls(**values), with a clear message for fields that it does not have, or lacks."""
    try:
        return cls(**values)
    except TypeError as error:
        raise FedpointError(f"{cls.__name__}: {error}") from None


# Text to values.


class Unreadable(FedpointError):
    """A value that its file only names: it has to be given again."""


def value_of(text: Any) -> Any:
    """The value that a file's text stands for."""
    if not isinstance(text, Mapping):
        return text
    if "python" in text or "sha256" in text:
        raise Unreadable(f"{text.get('python', 'a large array')} is not stored in the folder")
    forms = [name for name in text if name in FORMS]
    if len(forms) != 1:
        raise FedpointError(_unknown(text))
    name, rest = forms[0], {key: item for key, item in text.items() if key != forms[0]}
    return _READERS[name](text[name], rest)


def _unknown(text: Mapping) -> str:
    keys = ", ".join(text) or "an empty table"
    guess = nearest(next(iter(text), ""), FORMS)
    return f"{keys} is not a form that a value can have: {guess}"


def _call(function: Callable, arguments: Mapping, where: str) -> Any:
    """function(**arguments), with a clear message for arguments that it does not have, or lacks."""
    known = inspect.signature(function).parameters
    for key in arguments:
        if key not in known:
            raise FedpointError(f"{where} has no {key!r}: {nearest(key, known)}")
    missing = [n for n, p in known.items() if p.default is p.empty and n not in arguments and p.kind != p.VAR_KEYWORD]
    if missing:
        raise FedpointError(f"{where} also needs {', '.join(missing)}")
    for key, item in arguments.items():
        if isinstance(item, bool) or not isinstance(item, int | float):
            raise FedpointError(f"{where}: {key} must be a number, got {item!r}")
    return function(**arguments)


def _alone(name: str, rest: Mapping) -> None:
    if rest:
        raise FedpointError(f"{{{name} = ...}} stands alone, without {', '.join(rest)}")


def _array(name: str) -> Callable:
    def read(numbers: Any, rest: Mapping) -> np.ndarray:
        _alone(name, rest)
        try:
            array = np.asarray(numbers)
        except ValueError:  # rows of different lengths
            array = np.asarray("ragged")
        if not isinstance(numbers, list) or not numbers or array.dtype.kind not in "biuf":
            raise FedpointError(f"{name} must be a list of numbers, got {numbers!r}")
        return array

    return read


def _schedule(name: str, function: Callable) -> Callable:
    def read(arguments: Any, rest: Mapping) -> Any:
        _alone(name, rest)
        if not isinstance(arguments, Mapping):
            needs = ", ".join(f"{n} = ..." for n in inspect.signature(function).parameters)
            raise FedpointError(f"{name} must be a table {{{needs}}}, got {arguments!r}")
        return _call(function, arguments, name)

    return read


def _epochs(count: Any, rest: Mapping) -> Epochs:
    _alone("epochs", rest)
    if isinstance(count, bool) or not isinstance(count, int):
        raise FedpointError(f"epochs must be a whole number, got {count!r}")
    return Epochs(count)


def _stragglers(fraction: Any, rest: Mapping) -> Stragglers:
    made = _call(lambda stragglers, steps: (stragglers, steps), {"stragglers": fraction, **rest}, "stragglers")
    if not isinstance(made[1], int):
        raise FedpointError(f"steps must be a whole number, got {made[1]!r}")
    return Stragglers(steps=made[1], fraction=float(made[0]))


def _optax(name: Any, arguments: Mapping) -> Any:
    import optax  # only here: it takes longer to import than fedpoint

    made = getattr(optax, name, None) if isinstance(name, str) else None
    if not callable(made):
        known = [n for n in dir(optax) if n.islower() and not n.startswith("_") and callable(getattr(optax, n))]
        raise FedpointError(f"optax has no transformation {name!r}: {nearest(str(name), known)}")
    try:
        result = made(**arguments)
    except (TypeError, ValueError) as error:
        raise FedpointError(f"optax.{name}: {error}") from None
    if not isinstance(result, optax.GradientTransformation):
        raise FedpointError(f"optax.{name} is not a transformation of gradients; take for instance 'trace'")
    return result


_READERS: dict[str, Callable] = {
    "per_agent": _array("per_agent"),
    "values": _array("values"),
    "epochs": _epochs,
    "stragglers": _stragglers,
    "inverse_time": _schedule("inverse_time", InverseTime),
    "exponential": _schedule("exponential", Exponential),
    "lecture004": _schedule("lecture004", InverseTime.lecture004),
    "optax": _optax,
}
