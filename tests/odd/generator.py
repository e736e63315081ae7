"""Odd calls of everything public, and the law that each of them obeys.

An odd call is a good one with one thing wrong: an argument of another kind, a missing one, a name that does not exist,
one argument too many. It returns, or raises a `FedpointError`: no other exception, no NaN that nobody asked for, and
within its time.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import random
import signal
import traceback
import typing
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import networkx
import numpy as np
import pandas

from fedpoint.core.errors import FedpointError

SECONDS = 60.0  # for one call; the slowest good one takes a few, with compilation, on a machine with nothing else to do


class Anything:
    """A class that can be made of anything."""

    def __init__(self, *values: object, **named: object) -> None:
        pass


ODD: dict[str, Callable[[], object]] = {  # made anew for every call: a generator serves once
    "None": lambda: None,
    "True": lambda: True,
    "3": lambda: 3,
    "-1": lambda: -1,
    "0": lambda: 0,
    "1.5": lambda: 1.5,
    "1e400": lambda: 1e400,
    "nan": lambda: float("nan"),
    "10**30": lambda: 10**30,
    "2j": lambda: 2j,
    "'x'": lambda: "x",
    "''": lambda: "",
    "'3'": lambda: "3",
    "b''": lambda: b"",
    "[]": list,
    "()": lambda: (),
    "{}": dict,
    "[1, 'a']": lambda: [1, "a"],
    "['a', 'b']": lambda: ["a", "b"],
    "[None]": lambda: [None],
    "ragged": lambda: [[1.0], [2.0, 3.0]],
    "{'x': 1}": lambda: {"x": 1},
    "{3}": lambda: {3},
    "object()": object,
    "a function": lambda: lambda *values, **named: 3,
    "a class": lambda: Anything,
    "a module": lambda: np,
    "a generator": lambda: (n for n in (1, 2)),
    "range(2)": lambda: range(2),
    "a path": lambda: Path("nowhere"),
    "a graph": lambda: networkx.path_graph(3),
    "a frame": lambda: pandas.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}),
    "zeros (0,)": lambda: np.zeros(0),
    "zeros (3, 0)": lambda: np.zeros((3, 0)),
    "ones (5, 7)": lambda: np.ones((5, 7)),
    "ones (2, 2, 2, 2)": lambda: np.ones((2, 2, 2, 2)),
    "array of nan": lambda: np.full(2, np.nan),
    "array of inf": lambda: np.full((2, 2), np.inf),
    "complex array": lambda: np.array([1j, 2.0]),
    "array of objects": lambda: np.array([object(), None]),
    "array of words": lambda: np.array(["a", "b"]),
    "array of dates": lambda: np.array(["2020-01-01"], "datetime64[D]"),
    "a scalar of numpy": lambda: np.float32(0.5),
    "a scalar of jax": lambda: jax.numpy.float32(0.5),
}

NOT_FINITE = ("array of nan", "array of inf")  # a model of these has no finite loss; single numbers are refused
UNKNOWN = ("lr", "learning_rate", "local_step", "n_rounds", "num_agents", "verbose", "x")  # names that nothing has


@dataclass(frozen=True)
class Case:
    """One odd call: of which good one, and what is wrong with it."""

    name: str
    wrong: str
    good: Callable[[], tuple[Callable[..., Any], dict[str, Any]]] = field(repr=False, compare=False)
    change: Callable[[dict[str, Any]], dict[str, Any]] = field(repr=False, compare=False)
    extra: int = 0  # arguments by place before the others
    finite: bool = True  # False: it is given NaN or inf, and may return them

    def call(self) -> object:
        function, given = self.good()
        return function(*([object()] * self.extra), **self.change(given))

    def __str__(self) -> str:
        return f"{self.name}: {self.wrong}"


def cases(table: dict[str, Callable[[], tuple[Callable[..., Any], dict[str, Any]]]]) -> list[Case]:
    """All odd calls of a table of good ones."""
    return [case for name, good in table.items() for case in _of(name, good)]


def sample(found: list[Case], each: int, seed: int = 0) -> list[Case]:
    """So many of each good call, the same every time."""
    luck = random.Random(seed)
    by_name: dict[str, list[Case]] = {}
    for case in found:
        by_name.setdefault(case.name, []).append(case)
    return [case for own in by_name.values() for case in luck.sample(own, min(each, len(own)))]


def _of(name: str, good: Callable[[], tuple[Callable[..., Any], dict[str, Any]]]) -> Iterator[Case]:
    function, given = good()
    known = parameters(function)
    for argument in known:
        for label, make in ODD.items():
            change = lambda g, a=argument, m=make: {**g, a: m()}  # noqa: E731
            yield Case(name, f"{argument}={label}", good, change, finite=label not in NOT_FINITE)
    for argument in given:
        yield Case(name, f"without {argument}", good, lambda g, a=argument: {k: v for k, v in g.items() if k != a})
        yield Case(name, f"{misspelt(argument)}=", good, lambda g, a=argument: _renamed(g, a, misspelt(a)))
    for argument in UNKNOWN:
        if argument not in known:
            yield Case(name, f"{argument}=0.1 too", good, lambda g, a=argument: {**g, a: 0.1})
    yield Case(name, "one argument too many", good, lambda g: {}, extra=len(known) + 1)
    yield Case(name, "an argument twice", good, lambda g: g, extra=1)


def misspelt(name: str) -> str:
    return name[:-1] if len(name) > 3 else f"{name}_"


def _renamed(given: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return {new if name == old else name: value for name, value in given.items()}


def parameters(function: Callable[..., Any]) -> list[str]:
    """The names of the arguments of a function, those of `**options: Unpack[Options]` among them."""
    found: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            found += _unpacked(function, parameter.annotation)
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            found.append(name)
    return found


def _unpacked(function: Callable[..., Any], annotation: Any) -> list[str]:
    plain = inspect.unwrap(function if not isinstance(function, type) else function.__init__)
    space = {**vars(typing), **getattr(plain, "__func__", plain).__globals__}
    if isinstance(annotation, str):
        annotation = eval(annotation, space)
    inside = typing.get_args(annotation)
    return list(inside[0].__annotations__) if inside and typing.is_typeddict(inside[0]) else []


class TooLong(BaseException):
    """No `Exception`: nothing on the way may take it for one of its own."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    def late(number: int, frame: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again, where it was lost in a callback of the collector
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def verdict(case: Case, seconds: float = SECONDS) -> str:
    """What is against the law in an odd call; empty where nothing is."""
    try:
        with within(seconds), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("error" if case.finite else "ignore", RuntimeWarning)  # NumPy's of invalid values
            warnings.simplefilter("ignore", UserWarning)  # notices
            made = case.call()
    except FedpointError as error:
        return _of_message(case, str(error))
    except TooLong:
        return f"no answer within {seconds:g} s"
    except Exception as error:
        if _said_by_scikit_learn(error):
            return ""
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return "a silent NaN" if case.finite and _holds_nan(made) else ""


VALIDATING = ("sklearn.utils.validation", "sklearn.utils._param_validation")


def _said_by_scikit_learn(error: Exception) -> bool:
    """Estimators leave their data to scikit-learn's validation, whose errors their users know."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    validated = any(frame.f_globals.get("__name__") in VALIDATING for frame in frames)
    return validated and isinstance(error, ValueError | TypeError)


def _of_message(case: Case, message: str) -> str:
    if len(message) < 15:
        return f"a message that says nothing: {message!r}"
    if len(message) > 900:
        return f"a message of {len(message)} characters: {message[:100]!r}"
    if "object at 0x" in message and message.count("object at 0x") > 2:
        return f"a message full of addresses: {message!r}"
    return ""


def _holds_nan(made: object) -> bool:
    leaves = jax.tree.leaves(made) if isinstance(made, np.ndarray | float | tuple | list | dict) else []
    return any(isinstance(a, np.ndarray | float | np.floating) and _nan(a) for a in leaves)


def _nan(a: Any) -> bool:
    a = np.asarray(a)
    return bool(a.dtype.kind in "fc" and np.isnan(a).any())
