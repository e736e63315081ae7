"""What is an algorithm? Four pure functions of hub, memory and messages; its fields are its hyper-parameters."""

from __future__ import annotations

import dataclasses
import importlib
import re
from dataclasses import dataclass, field
from typing import Any, dataclass_transform

import jax
import numpy as np

from fedpoint.core.record import find_leaves, record
from fedpoint.core.steps import Stragglers
from fedpoint.errors import FedpointError, nearest


@dataclass(frozen=True)
class Reference:
    """A publication, enough of it for BibTeX."""

    key: str
    authors: str
    title: str
    venue: str
    year: int
    kind: str = "inproceedings"  # or "article", "misc"

    def bibtex(self) -> str:
        where = {"inproceedings": "booktitle", "article": "journal", "misc": "howpublished"}[self.kind]
        return (
            f"@{self.kind}{{{self.key},\n  author = {{{self.authors}}},\n  title = {{{self.title}}},\n"
            f"  {where} = {{{self.venue}}},\n  year = {{{self.year}}}\n}}"
        )

    def text(self) -> str:
        authors = ", ".join(" ".join(reversed(name.split(", "))) for name in self.authors.split(" and "))
        return f"{authors}. {self.title}. {self.venue}, {self.year}."


@dataclass(frozen=True)
class Card:
    """What command line, documentation and conformance tests enumerate."""

    name: str
    title: str
    summary: str
    lecture: str
    references: tuple[Reference, ...] = ()
    limit: str = ""  # where it ends with exact fields and everyone
    fails: str = ""  # when not to use it
    participation: tuple[str, ...] | None = None  # names of valid schemes; None: all
    restriction: str = ""  # the reason, when not all are
    cls: type | None = field(default=None, compare=False)

    @property
    def network(self) -> bool:
        """It runs on networks only."""
        return self.cls is not None and self.cls.hello is not None  # type: ignore[attr-defined]


_CARDS: dict[str, Card] = {}


def __getattr__(name: str) -> Any:
    """CATALOGUE: the cards by name, complete: the methods of the library register when they are imported."""
    if name == "CATALOGUE":
        importlib.import_module("fedpoint.algorithms")
        return _CARDS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def positive(default: Any = dataclasses.MISSING, per_agent: bool = False, scheduled: bool = False) -> Any:
    """A hyper-parameter above zero: a number; where allowed a number per agent, or a schedule of steps."""
    rule = {"low": 0.0, "strict": True, "per_agent": per_agent, "scheduled": scheduled}
    return field(default=default, metadata=rule)


def nonnegative(default: Any = dataclasses.MISSING, below: float | None = None) -> Any:
    return field(default=default, metadata={"low": 0.0, "strict": False, "below": below, "scheduled": False})


def counts(default: Any = 1, per_agent: bool = True) -> Any:
    """A number of local steps: an int, or also one per agent, `Epochs` or `Stragglers`."""
    return field(default=default, metadata={"low": 1, "strict": False, "per_agent": per_agent, "whole": True})


def by_agent(default: Any = dataclasses.MISSING) -> Any:
    """A hyper-parameter that may be one number per agent."""
    return field(default=default, metadata={"per_agent": True})


def check_fields(self: Any) -> None:
    """One clear message for a hyper-parameter out of range."""
    for f in dataclasses.fields(self):
        value, rule = getattr(self, f.name), f.metadata
        where = f"{type(self).__name__}: {f.name}"
        if "low" not in rule or value is None:
            continue
        if hasattr(value, "_leaves"):
            if not rule.get("scheduled", True):
                raise FedpointError(f"{where} must be a number: this method has no schedule of steps, got {value}")
            continue
        try:
            array = np.asarray(None if isinstance(value, bool) else value, dtype=float)
        except (TypeError, ValueError):
            array = np.asarray(np.nan)
        if isinstance(value, bool | str) or np.isnan(array).any() or not array.size:
            raise FedpointError(f"{where} must be a number, got {value!r}")
        if array.ndim and not rule.get("per_agent"):
            raise FedpointError(f"{where} must be one number, got {array.size} (sweep over it with fp.sweep)")
        low = rule["low"]
        bad = ~(array > low) if rule["strict"] else ~(array >= low)
        if bad.any() or not np.isfinite(array).all():
            raise FedpointError(f"{where} must be {'above' if rule['strict'] else 'at least'} {low:g}, got {value}")
        if rule.get("below") is not None and (array >= rule["below"]).any():
            raise FedpointError(f"{where} must be below {rule['below']:g}, got {value}")
        if rule.get("whole"):
            if (array != np.round(array)).any():
                raise FedpointError(f"{where} must be whole numbers, got {value}")
            if array.ndim == 0:
                object.__setattr__(self, f.name, int(value))
        elif array.ndim == 0:
            object.__setattr__(self, f.name, float(value))  # a number, also when it was written without a point
    find_leaves(self)


def per_agent_fields(algorithm: Any) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(algorithm) if f.metadata.get("per_agent"))


def split_per_agent(algorithm: Any, agents: int):
    """Leaves of the algorithm that have one value per agent, and how to put one agent's back."""
    names = [n for n in per_agent_fields(algorithm) if getattr(getattr(algorithm, n), "shape", ()) == (agents,)]
    values = {n: getattr(algorithm, n) for n in names}

    def put(one):
        leaves, tree = jax.tree.flatten(algorithm)
        copy = jax.tree.unflatten(tree, leaves)
        for name, value in one.items():
            object.__setattr__(copy, name, value)
        return copy

    return values, put


def samples_per_round(algorithm: Any) -> int | None:
    """The most samples any agent draws in a round; None when only the run will tell."""
    if algorithm.unbounded:
        return None
    steps = getattr(algorithm, "local_steps", 1)
    steps = int(steps.steps) if isinstance(steps, Stragglers) else int(np.max(np.asarray(steps)))
    return algorithm.samples(steps) if algorithm.samples is not None else steps


class Defaults:
    """What an algorithm need not say."""

    samples = None  # how many samples a round of so many steps draws, when not one a step
    unbounded = False  # True: the number of local steps is drawn in the run, without a bound
    proximal = False  # True: it solves a proximal problem every round
    full = False  # True: it asks for exact fields only
    hello = None  # hello(w), of methods for networks: what neighbours know of a node that has not worked yet
    base = None  # base(heard): the model that messages are changes of; lets a method with a hub run on a network too

    def say(self, hub, row):
        """What the hub sends down; `row` is the hub's own randomness of this round."""
        return hub

    def chances(self):
        """What `say` draws, for forecasts: (name of the field it decides, values, probabilities), or None."""
        return None

    def every_chance(self):
        """The same, where `chances` gathers values in a way that is right for gradients only."""
        return self.chances()

    def adaptive(self) -> bool:
        """Changes are rescaled by their own history, as Adam does: a forecast then has no noise floor."""
        return False

    def alike(self) -> bool:
        """Every local step is the same map: forecasts of long rounds are then cheaper."""
        return False

    def settle(self, hub, memory):
        """An agent's memory once it has heard the merged model."""
        return memory

    def read(self, hub, memory):
        """The model."""
        return hub

    def aim(self, problem, network):
        """What a run is after: w*, or on a network a model for each node; None where it is not known."""
        return problem.solution()

    def invariants(self, hub, memory, p):
        """What a run conserves, by name: arrays that stay zero. Hub and memories lead with the repeats."""
        return {}


def register(card: Card) -> None:
    _CARDS[card.name] = card


@dataclass_transform(frozen_default=True)
def algorithm(card: Any) -> Any:
    """Make a class an algorithm: a frozen dataclass, a pytree, and (with a `Card`) an entry of the catalogue."""

    def make(cls: type, card: Card | None) -> type:
        for name in ("init", "local", "combine"):
            if not hasattr(cls, name):
                raise FedpointError(f"algorithm {cls.__name__} lacks the method {name!r}")
        for name, default in vars(Defaults).items():
            if not name.startswith("__") and not hasattr(cls, name):
                setattr(cls, name, default)
        own_check = getattr(cls, "check", None)

        def check(self):
            for f in dataclasses.fields(self):
                if "low" in f.metadata and f.default is not None and getattr(self, f.name) is None:
                    raise FedpointError(f"{type(self).__name__}: {f.name} must be a number, got None")
            check_fields(self)
            if own_check is not None:
                own_check(self)

        cls.check = check  # type: ignore[attr-defined]
        cls = record(cls)
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
        card = card or Card(snake, cls.__name__, (cls.__doc__ or "").split("\n")[0], lecture="")
        cls.card = dataclasses.replace(card, cls=cls)  # type: ignore[attr-defined]
        return cls

    if isinstance(card, type):
        return make(card, None)

    def decorate(cls: type) -> type:
        cls = make(cls, card)
        register(cls.card)  # type: ignore[attr-defined]
        return cls

    return decorate


def find(name: str) -> Card:
    """The card of a method by its name in the catalogue, forgiving case, dashes and spaces."""
    cards = __getattr__("CATALOGUE")
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    for card in cards.values():
        titles = (card.name, card.title, card.cls.__name__ if card.cls else "")
        if plain in [re.sub(r"[^a-z0-9]", "", t.lower()) for t in titles]:
            return card
    raise FedpointError(f"unknown algorithm {name!r}: {nearest(name, cards)}")
