"""What does the evidence say? Rounds and limits of a subject beside those of the references."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple, Protocol

import numpy as np

from fedpoint.core.numbers import counted
from fedpoint.results.certificate import Unexercised
from fedpoint.verbs.certify.method import Method, Mistake
from fedpoint.verbs.certify.methods import Recipe, Settings
from fedpoint.verbs.certify.mistakes import METHODS
from fedpoint.verbs.certify.samples import Noisy
from fedpoint.verbs.certify.world import AGENTS, Play, Rounds, World, everyone, play, some

SHORT, FIRST = 8, 3  # rounds compared one by one; after the first of them most references are out
LONG, LONG_SOME = 1000, 1500  # rounds to a limit
# Eight rounds of at most some hundred operations on numbers of order one leave 1e3 to 1e4 roundings of 1e-16 of them;
# what the mistakes change is of order 1e-3. 1e-8 lies between, and forgives a norm that is kept off zero by 1e-10.
SAME = 1e-8
# Limits are compared after 1000 rounds, where a slow method may still move by 1e-9 a round.
SAME_LIMIT = 1e-6


class Subject(Noisy, Protocol):
    """What is examined: rounds of it in a world, with everyone or with some, and its samples."""

    name: str

    def everyone(self, world: World, rounds: int) -> Play: ...

    def some(self, world: World, rounds: int) -> Play | None: ...

    def asks(self, world: World) -> list[bool]:
        """Which agents it asks for anything at all."""
        ...

    def unexercised(self, world: World, noise: float) -> list[Unexercised]:
        """Parts of its code that rounds with everyone, with some and with noise never put to use."""
        ...


def reference(method: Method, recipe: Recipe) -> Rounds:
    return partial(method.round, recipe)


def deviation(seen: Play, expected: Play) -> float:
    """The largest distance between two paths, relative to the model where that is larger than one."""
    n = min(len(seen.models), len(expected.models))
    if n < 2:
        return np.inf
    a, b = seen.models[1:n], expected.models[1:n]  # what is shown of the start may be a mean already
    return float((np.abs(a - b).max(1) / (1 + np.abs(b).max(1))).max())


def first_difference(seen: Play, expected: Play) -> int:
    """The first round after which two paths differ."""
    n = min(len(seen.models), len(expected.models))
    a, b = seen.models[1:n], expected.models[1:n]
    wrong = np.abs(a - b).max(1) > SAME * (1 + np.abs(b).max(1))
    return 1 + int(wrong.argmax()) if wrong.any() else n


@dataclass
class Evidence:
    """What a subject does in one world; long runs are made when asked for."""

    subject: Subject
    world: World
    seed: int

    @cached_property
    def everyone(self) -> Play:
        return self.subject.everyone(self.world, LONG)

    @cached_property
    def short(self) -> Play:
        """The first rounds of it."""
        whole = self.everyone
        if len(whole.models) > SHORT:
            return whole._replace(models=whole.models[: SHORT + 1], diverged=False, counts=whole.counts[:SHORT])
        return self.subject.everyone(self.world, SHORT) if whole.diverged and len(whole.models) < 3 else whole

    @cached_property
    def some(self) -> Play | None:
        return self.subject.some(self.world, SHORT)

    @cached_property
    def some_limit(self) -> Play | None:
        return self.subject.some(self.world, LONG_SOME)

    @property
    def copies(self) -> int:
        """How many models are seen: one, or one at each agent."""
        return self.everyone.models.shape[1] // len(self.world.start)

    def away(self, point: np.ndarray) -> float:
        """How far the long run ends from a point, or its models from one that is theirs in common: root mean square."""
        apart = self.everyone.last.reshape(-1, len(self.world.start)) - point.reshape(-1, len(self.world.start))
        return float(np.sqrt((apart**2).sum(1).mean()))

    @property
    def on_network(self) -> bool:
        return self.world.network is not None

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(self.everyone.counts)

    def told(self, recipe: Recipe, rounds: int) -> Recipe:
        """The recipe, with what a reference cannot know: Scaffnew's random lengths."""
        if recipe.local_steps is None:
            return replace(recipe, lengths=self.lengths[:rounds])
        return recipe

    def expect(self, method: Method, recipe: Recipe, rounds: int = SHORT) -> Play:
        rounds = min(rounds, len(self.lengths)) if recipe.local_steps is None else rounds
        return method.play(self.told(recipe, rounds), self.world, everyone(rounds))

    def expect_some(self, method: Method, recipe: Recipe, rounds: int = SHORT) -> Play:
        return method.play(recipe, self.world, some(self.world, rounds))

    def apart(self, method: Method, recipe: Recipe) -> tuple[float, float]:
        """How far the subject's rounds are from a reference's, with everyone and with some (0 where not valid)."""
        both = deviation(self.short, self.expect(method, recipe))
        few = 0.0
        if method.partial and self.some is not None:
            few = deviation(self.some, self.expect_some(method, recipe))
        return both, few

    def follows(self, method: Method, recipe: Recipe) -> bool:
        for rounds in (FIRST, SHORT):
            if deviation(self.short, self.expect(method, recipe, rounds)) > SAME:
                return False
        if not method.partial or self.some is None:
            return True
        return deviation(self.some, self.expect_some(method, recipe)) <= SAME


class Match(NamedTuple):
    """A method whose rounds are the subject's; or with a mistake, and then `right` is the recipe without it."""

    method: Method
    recipe: Recipe
    mistake: Mistake | None = None
    right: Recipe | None = None


def missing(method: Method, settings: Settings) -> list[str]:
    """Settings that the method needs and nobody knows."""
    needs = [n for n in method.needs if not (n == "step" and settings.get("exact"))]
    if method.name == "scaffnew" and settings.get("local_steps", 1) is None:
        needs.append("probability")
    return [n for n in needs if settings.get(n) is None]


# Methods told apart by all tests first: with everyone, SCAFFOLD with equal local steps makes Scaffnew's rounds.
WHOLE = tuple(name for name, method in METHODS.items() if method.partial)
REST = tuple(name for name in METHODS if name not in WHOLE)


def candidates(
    settings: Settings, names: tuple[str, ...], copies: int = 1, on_network: bool = False
) -> Iterator[Method]:
    """Methods whose settings are known, of so many models, with a hub or of a network's nodes."""
    known = (METHODS[name] for name in names if not missing(METHODS[name], settings))
    return (method for method in known if (method.copies, bool(method.network)) == (copies, on_network))


def find_correct(evidence: Evidence, settings: Settings, names: tuple[str, ...]) -> Match | None:
    for method in candidates(settings, names, evidence.copies, evidence.on_network):
        for recipe in method.recipes(settings):
            if evidence.follows(method, recipe):
                return Match(method, recipe)
    return None


def find_mistake(evidence: Evidence, settings: Settings, names: tuple[str, ...], claimed: bool) -> Match | None:
    """The first known mistake whose rounds are the subject's."""
    for method in candidates(settings, names, evidence.copies, evidence.on_network):
        for mistake, recipe, right in method.wrong(settings, claimed):
            if evidence.follows(method, recipe):
                return Match(method, recipe, mistake, right)
    return None


def nearest(evidence: Evidence, claim: str, settings: Settings) -> Match:
    """The correct variant that comes closest: what the findings are measured against."""
    method = METHODS[claim]
    recipes = list(method.recipes(settings))
    return Match(method, min(recipes, key=lambda r: max(evidence.apart(method, r))))


class End(NamedTuple):
    """Where a long run ends. known: a method without a mistake may end there."""

    name: str
    words: str
    known: bool = False


class Landmark(NamedTuple):
    name: str
    title: str
    point: np.ndarray
    known: bool = False


def landmarks(evidence: Evidence, settings: Settings) -> Iterator[Landmark]:
    """Points where a subject may end: the optimum first, then the known biased points and those of nobody's method."""
    world, equal = evidence.world, np.full(AGENTS, 1 / AGENTS)
    yield Landmark("optimum", "the optimum w*", world.optimum(), True)
    yield Landmark("optimum_of_equal_weights", "the optimum of equal weights", world.optimum(equal))
    if evidence.copies > 1:
        yield Landmark("own_minimisers", "every agent's own minimiser", world.c.ravel(), True)
    for k, own in enumerate(world.c):
        yield Landmark(f"minimiser_of_agent_{k}", f"the minimiser of agent {k} alone", own)
    if settings.get("local_steps", 1) is None:
        return  # random lengths: no point of its own
    named = {"fedavg": "FedAvg's point", "fedprox": "FedProx's point", "fednova": "FedNova's point"}
    for method in candidates(settings, tuple(named)):
        for recipe in method.recipes(settings):
            for merge, words in (("scaled", ""), ("plain", " of equal weights")):
                point = fixed_point(reference(method, replace(recipe, merge=merge)), world)
                if point is not None:
                    name = f"{method.name}_point" + words.replace(" ", "_")
                    yield Landmark(name, named[method.name] + words, point, not words)


def fixed_point(function: Rounds, world: World) -> np.ndarray | None:
    """Where a round without memory ends: on quadratics w -> A w + b, from as many rounds as there are unknowns."""

    def after(w: np.ndarray) -> np.ndarray:
        return play(function, world._replace(start=w), everyone(1)).last

    b = after(np.zeros_like(world.start))
    A = np.stack([after(e) - b for e in np.eye(len(b))], axis=1)
    if not np.abs(np.linalg.eigvals(A)).max() < 1 - 1e-9:
        return None
    return np.linalg.solve(np.eye(len(b)) - A, b)


def same_point(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a - b).max() <= SAME_LIMIT * (1 + np.abs(b).max()))


def describe_limit(evidence: Evidence, settings: Settings) -> End:
    """The end of the long run."""
    run = evidence.everyone
    if run.diverged:
        return End("diverges", f"it diverges (within {counted(len(run.models), 'round')})")
    away = evidence.away(evidence.world.optimum())
    if not np.ptp(run.models, axis=0).any():
        return End("start", f"the model never moves: it stays {away:.2g} from w*")
    if not run.settled:
        return End("unknown", f"it does not settle within {LONG:,} rounds (then {away:.2g} from w*)")
    for mark in landmarks(evidence, settings):
        if same_point(run.last, np.tile(mark.point, run.last.size // mark.point.size)):
            if mark.name == "optimum":
                return End("optimum", "with everyone it ends at the optimum w*", True)
            return End(mark.name, f"it ends at {mark.title}, {away:.2g} from w*", mark.known)
    if evidence.copies > 1:
        return End("unknown", f"the agents' models end {away:.2g} from w*, root mean square")
    return End("unknown", f"it ends at no known point, {away:.2g} from w*")
