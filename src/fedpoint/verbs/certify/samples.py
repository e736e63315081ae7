"""Are samples fresh? The variance of a noisy round beside that of fresh samples, and what was done where it is more."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from fedpoint.verbs.certify.method import Method, Mistake, Once
from fedpoint.verbs.certify.methods import Recipe
from fedpoint.verbs.certify.mistakes import (
    NOISE_AMPLIFIED,
    SAMPLE_KEPT,
    SAMPLE_REUSED,
    SAMPLES_NOT_USED,
    SAMPLES_SHARED,
)
from fedpoint.verbs.certify.world import Play, World

# Standard errors by which a variance may be off: a correct subject is beyond 6 once in 5e8 (for normal errors). From
# 1000 rounds in three dimensions a variance has an error of about 3 %; two local steps with one sample double it, which
# is about 15 standard errors of the difference.
SCORE = 6.0
REPEATS = 1000
MOST_SAMPLES = 100  # with more in a round, drawing is cheaper than going through them


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


def first_rounds(once: Once, repeats: int, seed: int) -> np.ndarray:
    """(repeats, d): the model after one round, again and again with other samples."""
    return np.array([once(seed * 100_003 + i).last for i in range(repeats)])


class Scripted:
    """Noise as it is written: stands in for a random generator, and counts what is asked of it."""

    def __init__(self, rows: np.ndarray):
        self.rows, self.asked = rows, 0

    def standard_normal(self, size: int) -> np.ndarray:
        self.asked += 1
        return self.rows[self.asked - 1] if self.asked <= len(self.rows) else np.zeros(size)


def exact_spread(once: Once, d: int) -> Spread | None:
    """The variance of a round that is linear in its samples of d numbers, without drawing any: one round for each
    number in them.

    None where it is not linear (q-FedAvg, Adam), or draws random numbers of its own.
    """

    def result(rows: np.ndarray) -> tuple[np.ndarray, int]:
        script = Scripted(rows)
        return once(0, script).last, script.asked

    base, count = result(np.zeros((0, d)))
    if count > MOST_SAMPLES:
        return None
    gains = np.array([result(row.reshape(count, d))[0] - base for row in np.eye(count * d)])
    trial = np.random.default_rng(0).standard_normal((count, d))
    if not np.allclose(result(trial)[0], base + trial.ravel() @ gains, rtol=1e-9, atol=1e-9):
        return None
    variance = float((gains**2).sum())
    return Spread(variance, 1e-6 * variance)  # roundings


def round_spread(once: Once, d: int, seed: int, random: bool = False) -> Spread:
    """Exactly where possible, else from many rounds."""
    found = None if random else exact_spread(once, d)
    return found or spread(first_rounds(once, REPEATS, seed))


class Repeats(NamedTuple):
    """Which samples were used again: at another point of the same agent's round, by another agent, in another round."""

    steps: bool
    agents: bool
    rounds: bool


def repeats(run: Play) -> Repeats:
    """Of a noisy play."""
    assert run.used is not None
    points = [
        {use.sample: {u.point for u in own if u.sample == use.sample} for use in own} for r in run.used for own in r
    ]
    rounds = [[{use.sample for use in own} for own in r] for r in run.used]
    return Repeats(
        steps=any(len(where) > 1 for own in points for where in own.values()),
        agents=any(_meet(agents) for agents in rounds),
        rounds=_meet([set().union(*agents) for agents in rounds]),
    )


def _meet(sets: list[set[bytes]]) -> bool:
    """Whether two of them have an element in common."""
    return sum(map(len, sets)) > len(set().union(*sets))


class Noisy(Protocol):
    """Whose samples are examined."""

    def noisy(self, world: World, noise: float, seed: int) -> Spread:
        """How noise spreads its first round."""
        ...

    def repeats(self, world: World, noise: float, seed: int) -> Repeats | None:
        """Which samples it uses again; None where that is not to be seen."""
        ...


class Samples(NamedTuple):
    """Variances of one round: the subject's, of fresh samples, and (where that differs) of one reused."""

    seen: Spread
    fresh: Spread
    reused: Spread | None
    repeats: Repeats | None

    @property
    def ratio(self) -> float:
        return self.seen.variance / self.fresh.variance

    @property
    def error(self) -> float:
        """The standard error of the ratio."""
        return float(np.hypot(self.seen.error, self.ratio * self.fresh.error)) / self.fresh.variance

    @property
    def noisier(self) -> bool:
        """More than fresh samples explain; less is what several samples a step give."""
        return self.seen.score(self.fresh) >= SCORE

    @property
    def mistake(self) -> Mistake | None:
        again = self.repeats
        if not self.ratio > 0:
            return SAMPLES_NOT_USED
        if not self.noisier:
            return SAMPLE_KEPT if again is not None and again.rounds else None
        if again is None:  # a class: what fits one sample for all local steps
            as_reused = self.reused is not None and abs(self.seen.score(self.reused)) < SCORE
            return SAMPLE_REUSED if as_reused else NOISE_AMPLIFIED
        if again.agents:
            return SAMPLES_SHARED
        return SAMPLE_REUSED if again.steps else NOISE_AMPLIFIED


def sample_test(subject: Noisy, world: World, seed: int, method: Method, recipe: Recipe) -> Samples | None:
    """Variance of one round beside that of fresh samples and of one reused; None where there are no samples."""
    if recipe.exact:
        return None
    noise = noise_of(world)

    def expected(reuse: bool) -> Spread:
        once = method.once(replace(recipe, reuse=reuse), world, noise)
        return round_spread(once, len(world.start), seed + 7, random=recipe.local_steps is None)

    seen, again = subject.noisy(world, noise, seed), subject.repeats(world, noise, seed)
    found = Samples(seen, expected(False), None, again)
    asks_for_more = found.noisier and (again is None or (again.steps and not again.agents))
    return found._replace(reused=expected(True)) if asks_for_more else found
