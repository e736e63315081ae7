"""How is a value written in plain types, and read back?

Numbers, words and truth values stand for themselves. Everything else is a table:

    {per_agent = [1, 5, 2]}                          one number per agent
    {values = [1.0, 0.5], dtype = "float32"}         an array that is not per agent
    {epochs = 5}, {stragglers = 0.5, steps = 10}     local steps
    {inverse_time = {scale = 2.0, offset = 8.0}}     a schedule of steps; also {exponential = {...}}
    {lecture004 = {strong = ..., smooth = ..., local_steps = ...}}
    {optax = "trace", decay = 0.9}                   an optax transformation, by its name
    {name = "scaffold", step = 0.1}                  a method of fedpoint; the user's own by module and name
    {class = "Clock", work = 1.0}                    any other record, likewise
    {python = "my_metrics.drift"}                    a function, by module and name
    {list = [...]}, {tuple = [...]}, {dict = {...}}  trees of these; {} is None, a list of plain values itself

Two tables are only names, and cannot be read back: {shape = ..., sha256 = ...}, a large array, and {object = ...}.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeAlias

import jax
import numpy as np

from fedpoint.core.algorithm import Algorithm, Card
from fedpoint.core.arguments import expected
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.made import INLINE, Made
from fedpoint.core.record import Record, values_of
from fedpoint.core.steps import Epochs, Exponential, InverseTime, Stragglers
from fedpoint.core.types import Data, Function, Plain, Tree

FORMS = ("per_agent", "values", "epochs", "stragglers", "inverse_time", "exponential", "lecture004", "optax")
CODE = ("name", "class", "python")  # what is found by its name
NATIVE = (np.dtype(float), np.dtype(int), np.dtype(bool))  # what plain numbers become arrays of

Table: TypeAlias = Mapping[str, Tree]  # of plain values
Allow = Collection[str]  # modules that may be imported


class Unreadable(FedpointError):
    """A value that its description only names: it has to be given again."""


def fingerprint(arrays: Mapping[str, Data]) -> str:
    """SHA-256 of named arrays: names, types, shapes and bytes."""
    sha = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        array = np.ascontiguousarray(array)
        sha.update(f"{name} {array.dtype.str} {array.shape};".encode())
        sha.update(array.reshape(-1).view(np.uint8).data)
    return sha.hexdigest()


def named(prefix: str, tree: Tree) -> dict[str, np.ndarray]:
    """The arrays of a tree, by path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


# Values to text.


def describe(value: Tree, per_agent: bool = False) -> Plain:
    """A value in plain types; what has no such form is only named (see `unreadable`)."""
    match value:
        case None:
            return {}
        case np.generic() | np.ndarray() | jax.Array():
            return _describe_array(np.asarray(value), per_agent)
        case bool() | int() | float() | str():
            return value
        case Stragglers():
            return {"stragglers": value.fraction, "steps": value.steps}
        case Epochs():
            return {"epochs": value.count}
        case InverseTime() | Exponential():
            return {"inverse_time" if isinstance(value, InverseTime) else "exponential": _describe_fields(value)}
        case Record():
            return describe_record(value)
        case Made() if value.given is not None:
            return {"class": word_of(type(value)), **{key: describe(item) for key, item in value.given.items()}}
    return _describe_tree(value)


def describe_record(record: Record) -> dict[str, Plain]:
    """A record by its class and its fields."""
    key = "name" if isinstance(record, Algorithm) else "class"
    return {key: word_of(type(record)), **_describe_fields(record)}


def _describe_fields(record: Record) -> dict[str, Plain]:
    """Without those that are None as they would be anyway."""
    values = values_of(record)
    return {
        f.name: describe(values[f.name], f.metadata.get("per_agent", False))
        for f in dataclasses.fields(record)  # type: ignore[arg-type]
        if not (values[f.name] is None and f.default is None)
    }


def _describe_array(array: np.ndarray, per_agent: bool) -> Plain:
    if array.dtype.kind not in "biufU" or array.size > INLINE:
        return {"shape": list(array.shape), "dtype": array.dtype.str, "sha256": fingerprint({"": array})}
    if array.ndim == 0 and array.dtype in NATIVE:
        return array.item()
    more: dict[str, Plain] = {}
    if not array.size or not (array.dtype in NATIVE or array.dtype.kind == "U"):
        more = {"dtype": array.dtype.name} | ({} if array.size else {"shape": list(array.shape)})
    return {"per_agent" if per_agent and array.ndim == 1 else "values": array.tolist(), **more}


def _describe_tree(value: Tree) -> Plain:
    """Lists, dictionaries, structures of fedpoint's, and code."""
    word = _qualified(value)
    if type(value) in (list, tuple):
        items = [describe(item) for item in value]
        bare = type(value) is list and not any(isinstance(item, dict) for item in items)
        return items if bare else {type(value).__name__: items}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: describe(item) for key, item in value.items()}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and word.startswith("fedpoint."):
        return {"class": word, **{key: describe(item) for key, item in values_of(value).items()}}
    return {"python" if inspect.isroutine(value) else "object": word}


def word_of(cls: type) -> str:
    """The word for a class: its own name where it is a record of fedpoint's, else its module's too."""
    if not cls.__module__.startswith("fedpoint."):
        return f"{cls.__module__}.{cls.__qualname__}"
    if issubclass(cls, Algorithm) and cls is not Algorithm and isinstance(cls.card, Card):
        return cls.card.name
    return cls.__name__


def _qualified(value: Tree) -> str:
    """The name of a function, or of an object and the functions it is made of."""
    if isinstance(value, tuple) and value and all(map(callable, value)):
        return f"{type(value).__name__}({', '.join(map(_qualified, value))})"
    named = value if isinstance(value, type) or inspect.isroutine(value) else type(value)
    return f"{named.__module__}.{named.__qualname__}"


# What cannot be read back.


def _nowhere(word: str) -> str:
    """Why code is not found by this name; empty where it may be."""
    if "<" in word:
        return f"{word} is defined inside a function: define it at the top level of a module"
    return f"{word} is in the script that was run: define it in a module" if word.startswith("__main__.") else ""


def unreadable(text: Plain, path: str = "") -> Iterator[str]:
    """What a description only names: where, and why it cannot be built again."""
    if isinstance(text, list):
        for i, item in enumerate(text):
            yield from unreadable(item, f"{path}[{i}]")
    if not isinstance(text, dict):
        return
    if "object" in text:
        yield f"{path}: {text['object']} cannot be written as text"
    elif "sha256" in text and "shape" in text:
        yield f"{path}: an array of shape {text['shape']} is too large to be written down"
    words = [word for key in CODE if isinstance(word := text.get(key), str)]
    yield from (f"{path}: {why}" for word in words if (why := _nowhere(word)))
    for key, item in text.items():
        inner = path if key in ("list", "tuple", "dict") else f"{path}.{key}" if path else key
        yield from unreadable(item, inner)


# Text to values.


def rebuild(text: Plain, allow: Allow = ()) -> Tree:
    """The value that a description stands for; `Unreadable` where it is only named.

    Importing a module runs its code: only fedpoint's own and those in `allow` are imported. Classes may also be of
    modules that are imported already.
    """
    if not isinstance(text, Mapping):
        return text
    if not text:
        return None
    if "object" in text or ("sha256" in text and "shape" in text):
        raise Unreadable(f"{text.get('object', 'a large array')} is only named there")
    found = [name for name in text if name in _READERS]
    if len(found) != 1:
        raise FedpointError(_unknown(text))
    name, rest = found[0], {key: item for key, item in text.items() if key != found[0]}
    return _READERS[name](text[name], rest, allow)


def _unknown(text: Table) -> str:
    guess = nearest(next(iter(text), ""), FORMS)
    return f"{', '.join(text)} is not a form that a value can have: {guess}"


def construct(cls: type, values: Mapping[str, Tree]) -> Tree:
    """cls(**values), with a clear message for arguments that it does not have, or lacks."""
    expected(inspect.unwrap(cls.__init__)).check_names(cls.__name__, (), values)  # type: ignore[misc]
    return cls(**values)


def find_class(word: Plain, kinds: tuple[type, ...], allow: Allow = ()) -> type:
    """The class of a word: below one of `kinds`."""
    if not isinstance(word, str):
        raise FedpointError(f"the name of a class must be a word, got {word!r}")
    if "." not in word:
        for found in (cls for kind in kinds for cls in _below(kind)):
            if word == word_of(found):
                return found
        raise Unreadable(f"{word} is not one of fedpoint's classes")
    found = find_code(word, allow, imported=True)
    if not isinstance(found, type) or not (issubclass(found, kinds) or dataclasses.is_dataclass(found)):
        raise Unreadable(f"{word} is not a class that an experiment can hold")
    return found


def _below(kind: type) -> Iterator[type]:
    inner: list[type] = kind.__subclasses__()
    for cls in inner:
        yield cls
        yield from _below(cls)


def find_code(word: str, allow: Allow = (), imported: bool = False) -> Tree:
    """What has this name in a module that may be imported, or, where that is enough, is imported already."""
    if why := _nowhere(word):
        raise Unreadable(why)
    parts = word.split(".")
    for i in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:i])
        trusted = any(f"{module}.".startswith(f"{name}.") for name in ("fedpoint", *allow))
        if not trusted and not (imported and module in sys.modules):
            continue
        try:
            found: Tree = importlib.import_module(module)
        except ModuleNotFoundError:
            continue  # a class within a class
        for name in parts[i:]:
            found = None if found is None else vars(found).get(name)
        if found is None:
            raise Unreadable(f"{module} has no {'.'.join(parts[i:])}")
        return found
    raise Unreadable(f"{word} is not fedpoint's: name its module in allow=, which imports it")


Reader = Callable[[Plain, Table, Allow], Tree]


def _algorithm(word: Plain, rest: Table, allow: Allow) -> Tree:
    return construct(find_class(word, (Algorithm,), allow), _all(rest, allow))


def _instance(word: Plain, rest: Table, allow: Allow) -> Tree:
    return construct(find_class(word, (Record, Made), allow), _all(rest, allow))


def _all(texts: Table, allow: Allow) -> dict[str, Tree]:
    return {key: rebuild(text, allow) for key, text in texts.items()}


def _function(word: Plain, rest: Table, allow: Allow) -> Tree:
    _alone("python", rest)
    found = find_code(str(word), allow)
    if not callable(found):
        raise Unreadable(f"{word} is not a function")
    return found


def _call(function: Function, arguments: Table, where: str) -> Tree:
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


def _alone(name: str, rest: Table) -> None:
    if rest:
        raise FedpointError(f"{{{name} = ...}} cannot be combined with {', '.join(rest)}")


def _array(name: str) -> Reader:
    def read(numbers: Plain, rest: Table, allow: Allow) -> np.ndarray:
        _alone(name, {key: item for key, item in rest.items() if key not in ("dtype", "shape")})
        try:
            array = np.asarray(numbers)
            if rest:
                array = np.asarray(numbers, rest.get("dtype")).reshape(rest.get("shape", array.shape))
        except (ValueError, TypeError):  # rows of different lengths
            array = np.asarray(None)
        empty = isinstance(numbers, list) and not numbers and "shape" not in rest
        scalar = not isinstance(numbers, list) and not rest
        if empty or scalar or array.dtype.kind not in ("biuf" if name == "per_agent" else "biufU"):
            raise FedpointError(f"{name} must be a list of numbers, got {numbers!r}")
        return array

    return read


def _schedule(name: str, function: Function) -> Reader:
    def read(arguments: Plain, rest: Table, allow: Allow) -> Tree:
        _alone(name, rest)
        if not isinstance(arguments, Mapping):
            needs = ", ".join(f"{n} = ..." for n in inspect.signature(function).parameters)
            raise FedpointError(f"{name} must be a table {{{needs}}}, got {arguments!r}")
        return _call(function, arguments, name)

    return read


def _epochs(count: Plain, rest: Table, allow: Allow) -> Epochs:
    _alone("epochs", rest)
    if isinstance(count, bool) or not isinstance(count, int):
        raise FedpointError(f"epochs must be a whole number, got {count!r}")
    return Epochs(count)


def _stragglers(fraction: Plain, rest: Table, allow: Allow) -> Stragglers:
    made = _call(lambda stragglers, steps: (stragglers, steps), {"stragglers": fraction, **rest}, "stragglers")
    if not isinstance(made[1], int):
        raise FedpointError(f"steps must be a whole number, got {made[1]!r}")
    return Stragglers(steps=made[1], fraction=float(made[0]))


def _optax(name: Plain, arguments: Table, allow: Allow) -> Tree:
    import optax  # only here: it takes longer to import than fedpoint

    made = vars(optax).get(name) if isinstance(name, str) else None
    if not callable(made):
        known = [n for n, found in vars(optax).items() if n.islower() and not n.startswith("_") and callable(found)]
        raise FedpointError(f"optax has no transformation {name!r}: {nearest(str(name), known)}")
    try:
        result = made(**arguments)
    except (TypeError, ValueError) as error:
        raise FedpointError(f"optax.{name}: {error}") from None
    if not isinstance(result, optax.GradientTransformation):
        raise FedpointError(f"optax.{name} is not a transformation of gradients; take for instance 'trace'")
    return result


def _several(name: str, make: Callable[[list[Tree]], Tree]) -> Reader:
    def read(items: Plain, rest: Table, allow: Allow) -> Tree:
        _alone(name, rest)
        if not isinstance(items, list):
            raise FedpointError(f"{name} must be a list, got {items!r}")
        return make([rebuild(item, allow) for item in items])

    return read


def _dictionary(items: Plain, rest: Table, allow: Allow) -> dict[str, Tree]:
    _alone("dict", rest)
    if not isinstance(items, Mapping):
        raise FedpointError(f"dict must be a table, got {items!r}")
    return _all(items, allow)


_READERS: dict[str, Reader] = {
    "per_agent": _array("per_agent"),
    "values": _array("values"),
    "epochs": _epochs,
    "stragglers": _stragglers,
    "inverse_time": _schedule("inverse_time", InverseTime),
    "exponential": _schedule("exponential", Exponential),
    "lecture004": _schedule("lecture004", InverseTime.lecture004),
    "optax": _optax,
    "name": _algorithm,
    "class": _instance,
    "python": _function,
    "list": _several("list", list),
    "tuple": _several("tuple", tuple),
    "dict": _dictionary,
}
