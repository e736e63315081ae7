"""Does a call fit what is called? One message where it does not: the nearest name, or the kind that is expected."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from fedpoint.core.errors import FedpointError, closest
from fedpoint.core.kinds import Kind, fits, resolve, shown, words

Thing = TypeVar("Thing", bound=Callable)

LISTED = 20  # arguments that a message lists beside the one that is meant

# What others call our arguments. Of several the first that is there is meant.
SYNONYMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("lr", "learning_rate", "eta", "gamma", "stepsize", "step_size", "local_lr"), ("step", "gamma")),
    **dict.fromkeys(("server_lr", "global_lr", "eta_g", "server_learning_rate"), ("server_step",)),
    **dict.fromkeys(("epochs", "local_epochs", "num_epochs", "n_epochs"), ("local_steps", "rounds")),
    **dict.fromkeys(("E", "num_steps", "n_steps", "local_updates", "inner_steps"), ("local_steps",)),
    **dict.fromkeys(("n_rounds", "num_rounds", "iterations", "n_iter", "max_iter", "T"), ("rounds",)),
    **dict.fromkeys(("num_agents", "n_agents", "num_clients", "n_clients", "clients"), ("agents", "participation")),
    **dict.fromkeys(("mu", "proximal_mu", "prox"), ("pull", "coupling")),
    **dict.fromkeys(("lam", "lambda_", "regularization", "reg", "l2"), ("coupling", "ridge", "pull")),
    **dict.fromkeys(("batch_size", "minibatch"), ("batch",)),
    **dict.fromkeys(("random_state", "rng", "key"), ("seed",)),
    **dict.fromkeys(("graph", "topology", "adjacency"), ("network",)),
    **dict.fromkeys(("compressor", "compression"), ("channel",)),
    **dict.fromkeys(("aggregator", "aggregation"), ("gather",)),
    **dict.fromkeys(("x0", "w0", "init", "initial"), ("start",)),
    **dict.fromkeys(("tol", "tolerance", "early_stopping"), ("stop", "tolerance", "target")),
    **dict.fromkeys(("directory", "dir", "output", "out"), ("folder", "path")),
    **dict.fromkeys(("method", "optimizer", "strategy"), ("algorithm", "methods")),
    "beta": ("momentum",),
    "p": ("probability",),
}


def unknown(owner: str, name: str, known: Iterable[str]) -> FedpointError:
    """The error for an argument that does not exist, with the one that is probably meant."""
    known = list(known)
    if not known:
        return FedpointError(f"{owner} takes no arguments, got {name!r}")
    meant = next((other for other in SYNONYMS.get(name, ()) if other in known), None)
    meant = meant or closest(name, known)
    hint = f": did you mean {meant!r}?" if meant else "."
    listed = "" if meant and len(known) > LISTED else f" Known: {', '.join(sorted(known))}."
    return FedpointError(f"{owner} has no argument {name!r}{hint}{listed}")


def check_kind(owner: str, name: str, value: object, kind: Kind) -> None:
    """Refuse a value that is not what its annotation says."""
    if not fits(value, kind):
        raise FedpointError(f"{owner}: {name} must be {words(kind)}; got {shown(value)}")


@dataclass(frozen=True)
class Expected:
    """What a function takes."""

    places: tuple[str, ...]  # by position, without self
    known: tuple[str, ...]  # by name
    required: tuple[str, ...]
    kinds: Mapping[str, Kind]
    defaults: Mapping[str, object]
    any_places: bool  # *values
    any_names: bool  # **options whose names are not known here
    of_object: bool  # the first argument is self

    def check(self, owner: str, values: tuple, named: Mapping[str, object]) -> None:
        """Refuse a call that does not fit."""
        self.check_names(owner, values, named)
        for name, value in (*zip(self.places, values, strict=False), *named.items()):
            if name in self.kinds and not (name in self.defaults and value is self.defaults[name]):
                check_kind(owner, name, value, self.kinds[name])

    def check_names(self, owner: str, values: tuple, named: Mapping[str, object]) -> None:
        """Refuse names that are not known, given twice or missing, and more values than there are places."""
        if not self.any_names:
            for name in named:
                if name not in self.known:
                    raise unknown(owner, name, self.known)
        if len(values) > len(self.places) and not self.any_places:
            most = f"at most {len(self.places)}" if self.places else "no"
            hint = " by position" if len(self.known) > len(self.places) else ""
            raise FedpointError(f"{owner} takes {most} arguments{hint}, got {len(values)}")
        by_place = self.places[: len(values)]
        for name in by_place:
            if name in named:
                raise FedpointError(f"{owner} got {name!r} twice: by position and by name")
        missing = [name for name in self.required if name not in named and name not in by_place]
        if missing:
            raise FedpointError(f"{owner} needs {' and '.join(missing)}: {owner}({missing[0]}=...)")


@functools.cache
def expected(function: Callable) -> Expected:
    """What a function takes, worked out when it is first called."""
    space: Mapping[str, object] = inspect.unwrap(function).__globals__
    parameters = list(inspect.signature(function).parameters.values())
    of_object = "." in function.__qualname__.rpartition("<locals>.")[2]
    parameters = parameters[of_object:]
    plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    rest = next((p for p in parameters if p.kind is p.VAR_KEYWORD), None)
    options = {} if rest is None else _options(rest.annotation, space)
    kinds = {p.name: resolve(p.annotation, space) for p in plain if p.annotation is not p.empty}
    return Expected(
        places=tuple(p.name for p in plain if p.kind is not p.KEYWORD_ONLY),
        known=(*(p.name for p in plain), *options),
        required=tuple(p.name for p in plain if p.default is p.empty),
        kinds={**options, **kinds},
        defaults={p.name: p.default for p in plain if p.default is not p.empty},
        any_places=any(p.kind is p.VAR_POSITIONAL for p in parameters),
        any_names=rest is not None and not options,
        of_object=of_object,
    )


def _options(annotation: Kind, space: Mapping[str, object]) -> dict[str, Kind]:
    """The names and kinds of `**options: Unpack[Options]`."""
    inside = typing.get_args(resolve(annotation, space))
    if not inside or not typing.is_typeddict(inside[0]):
        return {}
    return option_kinds(inside[0])


def checked(thing: Thing) -> Thing:
    """A function that refuses calls that do not fit its signature; a class whose constructor and public methods do.

    Args:
        thing: the function or class.
    """
    if isinstance(thing, type):
        return _with_members(thing, checked, checked)
    return _checking(thing, Expected.check)


def check_names(thing: Thing) -> Thing:
    """The same for names alone: values are looked at inside."""
    if isinstance(thing, type):
        return _with_members(thing, check_names, check_names)
    return _checking(thing, Expected.check_names)


def checked_methods(cls: Thing) -> Thing:
    """A class whose public methods refuse calls that do not fit; its constructor looks at values itself, if anybody."""
    return _with_members(cls, check_names, checked)


def _with_members(cls: Thing, made: Callable, asked: Callable) -> Thing:
    """A class whose constructor and public methods are decorated."""
    for name, member in list(vars(cls).items()):
        decorated = made if name == "__init__" else asked
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, classmethod):
            setattr(cls, name, classmethod(decorated(member.__func__)))
        elif isinstance(member, types.FunctionType):
            setattr(cls, name, decorated(member))
    return cls


def check_parameters(one: object) -> None:
    """Refuse an estimator's parameters, named as its constructor's arguments are, that are not of their kinds."""
    takes = expected(inspect.unwrap(type(one).__init__))
    for name, kind in takes.kinds.items():
        check_kind(type(one).__name__, name, vars(one)[name], kind)


def option_kinds(options: type) -> dict[str, Kind]:
    """What the arguments of a TypedDict are, by name."""
    return {name: resolve(one, {}) for name, one in options.__annotations__.items()}


def _checking(function: Thing, check: Callable[..., None]) -> Thing:
    @functools.wraps(function)
    def call(*values: object, **named: object) -> object:
        takes = expected(function)
        check(takes, _name(function, values), values[takes.of_object :], named)
        return function(*values, **named)

    return call  # type: ignore[return-value]


def _name(function: Callable, values: tuple) -> str:
    """What a message calls a function: a constructor by its class."""
    if function.__name__ == "__init__":
        return type(values[0]).__name__
    return function.__name__ if "<locals>" in function.__qualname__ else function.__qualname__
