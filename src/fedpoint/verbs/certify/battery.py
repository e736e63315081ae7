"""What does the evidence say? Rounds, limits, weights and samples of a subject beside those of the references."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple, Protocol

import numpy as np

from fedpoint.verbs.certify import methods
from fedpoint.verbs.certify.methods import Recipe, Settings
from fedpoint.verbs.certify.mistakes import METHODS, WEIGHTS_DROPPED, Method, Mistake, effective
from fedpoint.verbs.certify.world import AGENTS, Play, Rounds, World, everyone, play, some

SHORT, FIRST = 8, 3  # rounds compared one by one; after the first of them most references are out
LONG, LONG_SOME = 1000, 1500  # rounds to a limit
# Eight rounds of at most some hundred operations on numbers of order one leave 1e3 to 1e4 roundings of 1e-16 of them;
# what the mistakes change is of order 1e-3. 1e-8 lies between, and forgives a norm that is kept off zero by 1e-10.
SAME = 1e-8
# Limits are compared after 1000 rounds, where a slow method may still move by 1e-9 a round.
SAME_LIMIT = 1e-6
# Standard errors by which a variance may be off: a correct subject is beyond 6 once in 5e8 (for normal errors). From
# 1000 rounds in three dimensions a variance has an error of about 3 %; two local steps with one sample double it, which
# is about 15 standard errors of the difference.
SCORE = 6.0
REPEATS = 1000
MOST_SAMPLES = 100  # with more in a round, drawing is cheaper than going through them


class Subject(Protocol):
    """What is examined: rounds of it in a world, with everyone or with some, and how noise spreads its first round."""

    name: str

    def everyone(self, world: World, rounds: int) -> Play: ...

    def some(self, world: World, rounds: int) -> Play | None: ...

    def noisy(self, world: World, noise: float, seed: int) -> Spread: ...


def reference(method: Method, recipe: Recipe) -> Rounds:
    return partial(method.round, recipe)


def deviation(seen: Play, expected: Play) -> float:
    """The largest distance between two paths, relative to the model where that is larger than one."""
    n = min(len(seen.models), len(expected.models))
    if n < 2:
        return np.inf
    a, b = seen.models[:n], expected.models[:n]
    return float((np.abs(a - b).max(1) / (1 + np.abs(b).max(1))).max())


def first_difference(seen: Play, expected: Play) -> int:
    """The first round after which two paths differ."""
    n = min(len(seen.models), len(expected.models))
    a, b = seen.models[:n], expected.models[:n]
    wrong = np.abs(a - b).max(1) > SAME * (1 + np.abs(b).max(1))
    return int(wrong.argmax()) if wrong.any() else n


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
            return Play(whole.models[: SHORT + 1], False, whole.counts[:SHORT], asked=whole.asked)
        return self.subject.everyone(self.world, SHORT) if whole.diverged and len(whole.models) < 3 else whole

    @cached_property
    def some(self) -> Play | None:
        return self.subject.some(self.world, SHORT)

    @cached_property
    def some_limit(self) -> Play | None:
        return self.subject.some(self.world, LONG_SOME)

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
        return play(reference(method, self.told(recipe, rounds)), self.world, everyone(rounds))

    def expect_some(self, method: Method, recipe: Recipe, rounds: int = SHORT) -> Play:
        return play(reference(method, recipe), self.world, some(self.world, rounds))

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


def candidates(settings: Settings, names: tuple[str, ...]) -> Iterator[Method]:
    """Methods whose settings are known."""
    return (METHODS[name] for name in names if not missing(METHODS[name], settings))


def find_correct(evidence: Evidence, settings: Settings, names: tuple[str, ...]) -> Match | None:
    for method in candidates(settings, names):
        for recipe in method.recipes(settings):
            if evidence.follows(method, recipe):
                return Match(method, recipe)
    return None


def find_mistake(evidence: Evidence, settings: Settings, names: tuple[str, ...], claimed: bool) -> Match | None:
    """The first known mistake whose rounds are the subject's."""
    for method in candidates(settings, names):
        for mistake, recipe, right in method.wrong(settings, claimed):
            if evidence.follows(method, recipe):
                return Match(method, recipe, mistake, right)
    return None


def identify(evidence: Evidence, claim: str | None, settings: Settings) -> Match | None:
    """What makes the subject's rounds: the claimed method or a mistake in it; without a claim, any."""
    if claim is not None:
        return find_correct(evidence, settings, (claim,)) or find_mistake(evidence, settings, (claim,), True)
    steps = settings.get("local_steps", 1)
    several = steps is None or np.max(steps) > 1  # with one step Scaffnew is gradient descent
    for names in (WHOLE, REST) if several else (WHOLE,):
        found = find_correct(evidence, settings, names) or find_mistake(evidence, settings, names, False)
        if found is not None:
            return found
    return None


def nearest(evidence: Evidence, claim: str, settings: Settings) -> Match:
    """The correct variant that comes closest: what the findings are measured against."""
    method = METHODS[claim]
    recipes = list(method.recipes(settings))
    return Match(method, min(recipes, key=lambda r: max(evidence.apart(method, r))))


class Landmark(NamedTuple):
    name: str
    title: str
    point: np.ndarray


def landmarks(evidence: Evidence, settings: Settings) -> Iterator[Landmark]:
    """Points where a method may end: the optimum first, then the known biased points."""
    world, equal = evidence.world, np.full(AGENTS, 1 / AGENTS)
    yield Landmark("optimum", "the optimum w*", world.optimum())
    yield Landmark("optimum_of_equal_weights", "the optimum of equal weights", world.optimum(equal))
    if settings.get("local_steps", 1) is None:
        return  # random lengths: no point of its own
    named = {"fedavg": "FedAvg's point", "fedprox": "FedProx's point", "fednova": "FedNova's point"}
    for method in candidates(settings, tuple(named)):
        for recipe in method.recipes(settings):
            for merge, words in (("scaled", ""), ("plain", " of equal weights")):
                point = fixed_point(reference(method, replace(recipe, merge=merge)), world)
                if point is not None:
                    name = f"{method.name}_point" + words.replace(" ", "_")
                    yield Landmark(name, named[method.name] + words, point)


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


def describe_limit(evidence: Evidence, settings: Settings) -> tuple[str, str]:
    """The end of the long run: (name, words)."""
    run = evidence.everyone
    if run.diverged:
        return "diverges", f"it diverges (within {len(run.models)} rounds)"
    away = float(np.linalg.norm(run.last - evidence.world.optimum()))
    if not run.settled:
        return "unknown", f"it does not settle in {LONG} rounds (then {away:.2g} from w*)"
    for mark in landmarks(evidence, settings):
        if same_point(run.last, mark.point):
            if mark.name == "optimum":
                return "optimum", "with everyone it ends at the optimum w*"
            return mark.name, f"it ends at {mark.title}, {away:.2g} from w*"
    return "unknown", f"it ends at no known point, {away:.2g} from w*"


class Spread(NamedTuple):
    """The variance of a round's result (trace), and its standard error."""

    variance: float
    error: float

    def score(self, other: Spread) -> float:
        return (self.variance - other.variance) / max(np.hypot(self.error, other.error), 1e-300)


def spread(models: np.ndarray) -> Spread:
    """Of independent results (n, d); the error from the fourth moments, so that no law is assumed."""
    squares = ((models - models.mean(0)) ** 2).sum(1)
    n = len(models)
    return Spread(float(squares.sum() / (n - 1)), float(squares.std(ddof=1) / np.sqrt(n)))


def noise_of(world: World) -> float:
    """A variance of the field's noise as large as its differences between agents."""
    return float(np.trace(world.H.mean(0)) / len(world.start)) ** 2


def first_rounds(function: Rounds, world: World, repeats: int, noise: float, seed: int, name: str = "") -> np.ndarray:
    """(repeats, d): the model after one round, again and again with other samples."""
    ticks = everyone(1)
    runs = [play(function, world, ticks, seed=seed * 100_003 + i, noise=noise, name=name) for i in range(repeats)]
    return np.array([run.last for run in runs])


class Scripted:
    """Noise as it is written: stands in for a random generator, and counts what is asked of it."""

    def __init__(self, rows: np.ndarray):
        self.rows, self.asked = rows, 0

    def standard_normal(self, size: int) -> np.ndarray:
        self.asked += 1
        return self.rows[self.asked - 1] if self.asked <= len(self.rows) else np.zeros(size)


def exact_spread(function: Rounds, world: World, noise: float, name: str = "") -> Spread | None:
    """The variance of a round that is linear in its samples, without drawing any: one round for each number in them.

    None where it is not linear (q-FedAvg, Adam), or draws random numbers of its own.
    """

    def result(rows: np.ndarray) -> tuple[np.ndarray, int]:
        script = Scripted(rows)
        return play(function, world, everyone(1), noise=noise, name=name, rng=script).last, script.asked

    d = len(world.start)
    base, count = result(np.zeros((0, d)))
    if count > MOST_SAMPLES:
        return None
    gains = np.array([result(row.reshape(count, d))[0] - base for row in np.eye(count * d)])
    trial = np.random.default_rng(0).standard_normal((count, d))
    if not np.allclose(result(trial)[0], base + trial.ravel() @ gains, rtol=1e-9, atol=1e-9):
        return None
    variance = float((gains**2).sum())
    return Spread(variance, 1e-6 * variance)  # roundings


def round_spread(
    function: Rounds, world: World, noise: float, seed: int, name: str = "", random: bool = False
) -> Spread:
    """Exactly where possible, else from many rounds."""
    found = None if random else exact_spread(function, world, noise, name)
    return found or spread(first_rounds(function, world, REPEATS, noise, seed, name))


class Samples(NamedTuple):
    """Variances of one round: the subject's, of fresh samples, and (where that differs) of one reused."""

    seen: Spread
    fresh: Spread
    reused: Spread | None

    @property
    def score(self) -> float:
        return self.seen.score(self.fresh)

    @property
    def ok(self) -> bool:
        """No more than fresh samples explain; less is what several samples a step give."""
        return self.score < SCORE

    @property
    def reuse(self) -> bool:
        """More than fresh samples explain, and nearer to what one reused sample gives."""
        if self.reused is None:
            return False
        return self.seen.variance > np.sqrt(self.fresh.variance * self.reused.variance)


def sample_test(evidence: Evidence, match: Match) -> Samples | None:
    """Variance of one round beside that of fresh samples and of one reused; None where there is one local step."""
    if not effective(match.recipe):
        return None
    world, noise = evidence.world, noise_of(evidence.world)

    def expected(reuse: bool) -> Spread:
        function = reference(match.method, replace(match.recipe, reuse=reuse))
        return round_spread(function, world, noise, evidence.seed + 7, random=match.recipe.local_steps is None)

    found = Samples(evidence.subject.noisy(world, noise, evidence.seed), expected(False), None)
    return found if found.ok else found._replace(reused=expected(True))


# Properties that need no reference: for mistakes that were made in a way not foreseen.


def ignores_weights(evidence: Evidence) -> bool:
    """Other weights, the same rounds, all the way (a sign of a mean forgives other weights for a while)."""
    other = evidence.subject.everyone(evidence.world._replace(p=np.roll(evidence.world.p, 1)), LONG)
    return deviation(evidence.everyone, other) <= SAME


def stretches(evidence: Evidence) -> bool:
    """All lengths doubled, all models doubled: true of every linear method on quadratics, not of a pull |v - w|."""
    double = evidence.subject.everyone(evidence.world.stretched(2.0), SHORT)
    return deviation(Play(double.models / 2, double.diverged, []), evidence.short) <= SAME


def starts_off(evidence: Evidence, settings: Settings) -> bool:
    """The first round is FedAvg's up to a shift that does not depend on the start: controls that are not zero."""
    world = evidence.world
    moved = world._replace(start=world.start + 1.0)
    recipe = Recipe.of(settings)
    own, other = evidence.short, evidence.subject.everyone(moved, 1)
    ref, ref_other = (play(partial(methods.average, recipe), w, everyone(1)) for w in (world, moved))
    factor = recipe.server_step

    def step(run: Play) -> np.ndarray:
        return run.models[1] - run.models[0]

    if min(len(own.models), len(other.models)) < 2:
        return False
    shift = step(own) - factor * step(ref)
    same = np.abs(shift - (step(other) - factor * step(ref_other))).max() < SAME * 10
    return bool(same and np.abs(shift).max() > 1e-6)


def right_control(evidence: Evidence) -> bool:
    """The hub's c is to be seen and points along the mean field, as it must after the first round."""
    c = evidence.subject.everyone(evidence.world, 1).control
    world = evidence.world
    mean = np.einsum("k,kij,kj->i", world.p, world.H, world.start - world.c)
    return c is not None and c.shape == mean.shape and bool(c @ mean > 0)


def convict(evidence: Evidence, claim: str | None, settings: Settings, place: str) -> tuple[str, str] | None:
    """A mistake by its properties: (name, reason).

    Without a claim, a method that has no weights by design (a median) is not to blame: only one that ends at a known
    method's point of equal weights is.
    """
    named = {} if claim is None else {mistake.name: mistake.reason for mistake in METHODS[claim].mistakes}
    if (claim is not None or place.endswith("of_equal_weights")) and ignores_weights(evidence):
        return "weights_dropped", WEIGHTS_DROPPED
    if claim == "fedprox" and not stretches(evidence):
        name = "pull_not_squared"
    elif claim in ("scaffold", "scaffnew") and place == "fedavg_point":
        return "control_never_stored", "the control variates have no effect"
    elif claim == "fednova" and place == "fedavg_point":
        name = "not_normalised"
    elif claim == "scaffold" and starts_off(evidence, settings):
        name = "controls_not_zero"
    else:
        return None
    return name, named[name]
