"""Which algorithm has this name? The catalogue's classes, and the functions that preset one."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from typing import TypeAlias, TypedDict

from fedpoint.algorithms import FedAdagrad, FedAdam, FedAvgM, FedLSA, FedYogi, ScaffLSA
from fedpoint.algorithms.general_rule import Coefficients
from fedpoint.algorithms.stochastic_approximation import REFERENCES
from fedpoint.core.algorithm import CATALOGUE, Algorithm, Card
from fedpoint.core.arguments import unknown
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.steps import LocalSteps, Step
from fedpoint.core.types import Number, Optimiser, Setting

Maker: TypeAlias = Callable[..., Algorithm]


class Hyperparameters(TypedDict, total=False):
    """What the methods of the catalogue can be given, beside the arguments of an experiment (`exact` is one)."""

    step: Step
    local_steps: LocalSteps
    adaptivity: float
    coefficients: Coefficients | None
    coupling: float
    decay: float
    effective: float | None
    halvings: int
    mix: float
    momentum: float
    normalise: bool
    optimiser: Optimiser | None
    order: str
    option: int
    own_steps: int
    probability: float | None
    products: int | None
    pull: float
    q: float
    second: float
    server: str | Optimiser
    server_step: float
    weights: str | Number


PRESETS: tuple[Maker, ...] = (FedAdagrad, FedAdam, FedAvgM, FedLSA, FedYogi, ScaffLSA)  # classes with fields fixed


def makers() -> dict[str, Maker]:
    """What builds an algorithm, by name: the catalogue's classes, and functions such as FedAdam that preset one."""
    classes: dict[str, Maker] = {card.name: card.cls for card in CATALOGUE.values() if card.cls is not None}
    return classes | {make.__name__.lower(): make for make in PRESETS}


def find_maker(name: str) -> tuple[str, Maker]:
    """By name, forgiving case, dashes and spaces; an unknown one suggests the nearest."""
    known = makers()
    if isinstance(name, str):
        for key, make in known.items():
            if _bare(name) in (_bare(key), _bare(make.__name__), _bare(class_of(make).card.title)):
                return key, make
    raise FedpointError(f"unknown algorithm {name!r}: {nearest(str(name), known)}")


def make_method(name: str, given: Mapping[str, Setting]) -> Algorithm:
    """The method of a name with these hyper-parameters, of which one that it does not have is refused.

    >>> make_method("FedAvg", {"step": 0.1})
    FedAvg(step=0.1, local_steps=1, normalise=False, optimiser=None)
    """
    make = find_maker(name)[1]
    known = parameters(make)
    for key in given:
        if key not in known:
            raise unknown(make.__name__, key, known)
    return make(**given)


def card_of(name: str) -> Card:
    """The card of what builds it; a preset's publications come first."""
    make = find_maker(name)[1]
    card = class_of(make).card
    own = REFERENCES.get(make.__name__, ())
    return dataclasses.replace(card, references=(*own, *(r for r in card.references if r not in own)))


def title_of(name: str) -> str:
    """The method's short name for people."""
    make = find_maker(name)[1]
    title = class_of(make).card.title
    return title if isinstance(make, type) and "(" not in title else make.__name__


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def class_of(make: Maker) -> type[Algorithm]:
    """The class of what it makes."""
    return make if isinstance(make, type) else inspect.signature(make, eval_str=True).return_annotation


def parameters(make: Maker) -> dict[str, dataclasses.Field]:
    """The hyper-parameters of an algorithm, by name. What a preset fixes is not among them."""
    fields = {f.name: f for f in dataclasses.fields(class_of(make))}
    if isinstance(make, type):
        return fields
    named = inspect.signature(make).parameters
    if not any(p.kind == p.VAR_KEYWORD for p in named.values()):
        return {name: f for name, f in fields.items() if name in named}
    fixed = {"server"}  # presets that take the rest are FedOpt with a server of their own
    return {name: f for name, f in fields.items() if name not in fixed}
