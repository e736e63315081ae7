"""Which models may a study name that fedpoint does not have? Those that each party has installed by itself.

A package offers one by an entry point of the group "fedpoint.models":

    [project.entry-points."fedpoint.models"]
    tumour = "hospital_models:Tumour"

A study names it (`[problem] kind = "installed"`, `name = "tumour"`), and no code travels: server and sites each load
what they have under that name. `allow` does the same for this process, in rehearsals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Literal, Protocol, TypeVar

import jax
import numpy as np
from pydantic import Field, JsonValue

from fedpoint.config.kinds import Count, Kind, Positive
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.types import Data, Model, Plain
from fedpoint.problems.base import Problem

GROUP = "fedpoint.models"
Made = TypeVar("Made")


class SiteModel(Protocol):
    """What a package offers: a class without arguments, or a module, that has these two functions."""

    def start(self, **options: Plain) -> Model:
        """The parameters before the first round, the same for everybody; no data are read."""

    def problem(self, files: Sequence[Path], *, batch: int | None, **options: Plain) -> Problem:
        """The problem of some sites' files, one agent each: of its own file, at a site. batch: rows a step."""


_allowed: dict[str, SiteModel] = {}


def allow(name: str, model: SiteModel) -> None:
    """Let studies in this process use a model under a name."""
    _allowed[name] = model


def _found(name: str) -> SiteModel | EntryPoint:
    if name in _allowed:
        return _allowed[name]
    known = entry_points(group=GROUP)
    found = {(point.value, point.dist and point.dist.name): point for point in known if point.name == name}
    if len(found) > 1:
        raise FedpointError(f"several packages offer a model {name!r}: {', '.join(value for value, _ in found)}")
    if not found:
        names = sorted({*_allowed, *(point.name for point in known)})
        rest = nearest(name, names) if names else "none is"
        raise FedpointError(f"no model {name!r} is installed here (entry points of {GROUP}): {rest}")
    return next(iter(found.values()))


def installed(name: str) -> SiteModel:
    """The model of a name, as it is installed here."""
    found = _found(name)
    if not isinstance(found, EntryPoint):
        return found
    try:
        made = found.load()
    except (ImportError, AttributeError) as error:
        raise FedpointError(f"the model {name!r} ({found.value}) cannot be loaded: {error}") from None
    return made() if isinstance(made, type) else made


def origin(name: str) -> str:
    """Where a model comes from, for people: what would run here."""
    found = _found(name)
    if not isinstance(found, EntryPoint):
        return f"{type(found).__module__}.{type(found).__qualname__}, allowed in this process"
    return f"{found.value}" + (f", of {found.dist.name} {found.dist.version}" if found.dist is not None else "")


def start_of(name: str, options: Mapping[str, Plain]) -> Model:
    """The parameters before the first round: finite arrays."""
    start = _called(name, "start", lambda: installed(name).start(**options))
    leaves = jax.tree.leaves(start)
    if not leaves or not all(np.isfinite(np.asarray(leaf, float)).all() for leaf in leaves):
        raise FedpointError(f"start of the model {name!r} holds no arrays, or some that are not finite")
    return jax.tree.map(np.asarray, start)


def problem_of(name: str, options: Mapping[str, Plain], files: Sequence[str | Path], batch: int | None) -> Problem:
    """The problem of some sites' files, one agent each."""
    paths = [Path(path) for path in files]
    made = _called(name, "problem", lambda: installed(name).problem(paths, batch=batch, **options))
    if not isinstance(made, Problem):
        raise FedpointError(f"problem of the model {name!r} returned a {type(made).__name__}: it must be an fp.Problem")
    if made.agents != len(paths) or made.local_rows() is None:
        raise FedpointError(f"problem of the model {name!r} must have rows, and one agent a file, in their order")
    if made.batch != batch:
        raise FedpointError(f"problem of the model {name!r} takes batch = {made.batch}, but the study says {batch}")
    expected, found = (
        jax.tree.map(lambda a: (np.shape(a), np.asarray(a).dtype), t) for t in (start_of(name, options), made.start())
    )
    if expected != found:
        raise FedpointError(f"problem of the model {name!r} starts from parameters of other shapes than start says")
    return made


def _called(name: str, what: str, function: Callable[[], Made]) -> Made:
    """The package's own function; a wrong option of the study is a mistake of its file."""
    try:
        return function()
    except TypeError as error:
        raise FedpointError(f"{what} of the model {name!r}: {error}") from error


class InstalledProblem(Kind):
    """What a study says of it: a model that every party has installed by itself, on each site's own file."""

    kind: Literal["installed"]
    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,62}$")]
    options: dict[str, JsonValue] = {}
    batch: Count | None = None
    weights: list[Positive] | None = None

    @property
    def site_weights(self) -> list[float] | None:
        """What sites count for; None: as many as they have rows."""
        return self.weights

    def build(self) -> tuple[Problem, Data]:
        raise FedpointError("the rows of this problem are at the sites")

    def start(self) -> Model:
        return start_of(self.name, self.options)

    def problem(self, files: Sequence[str | Path]) -> Problem:
        return problem_of(self.name, self.options, files, self.batch)
