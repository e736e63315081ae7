"""What is true of a subject, whatever its formula? Properties for mistakes that were made in a way not foreseen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np

from fedpoint.verbs.certify.battery import LONG, SAME, SHORT, Evidence, Match, deviation
from fedpoint.verbs.certify.world import AGENTS, Play, World, everyone, some

FAR = 10.0  # where an agent's minimiser is put to see whether anybody notices; they are of order one
STRETCHED = 1e6  # lengths beside which a force of constant length is nothing
OneRound: TypeAlias = Callable[[World], np.ndarray | None]  # the model after the first round in a world


class Attention(NamedTuple):
    """Of each agent: is it asked for anything, and does what it holds have an effect on the model?"""

    asked: list[bool]
    heard: list[bool]


def attention(evidence: Evidence) -> Attention:
    """Its minimiser is put far away to both sides, and between all others, where a median would take it."""

    def matters(k: int) -> bool:
        world = evidence.world
        places = (world.c[k] + FAR, world.c[k] - FAR, np.delete(world.c, k, axis=0).mean(0))
        moved = (evidence.subject.everyone(world.moved([k], place), SHORT) for place in places)
        return any(deviation(run, evidence.short) > 1e-12 for run in moved)

    return Attention(evidence.subject.asks(evidence.world), [matters(k) for k in range(AGENTS)])


def ignores_weights(evidence: Evidence) -> bool:
    """Other weights, the same rounds, all the way (a sign of a mean forgives other weights for a while)."""
    other = evidence.subject.everyone(evidence.world._replace(p=np.roll(evidence.world.p, 1)), LONG)
    return deviation(evidence.everyone, other) <= SAME


def stretches(evidence: Evidence) -> bool:
    """All lengths doubled, all models doubled: true of every linear method on quadratics, not of a pull |v - w|."""
    return _stretched(evidence.subject.everyone, evidence.world, 2.0, evidence.short) <= SAME


def _stretched(rounds: Callable[[World, int], Play], world: World, factor: float, expected: Play) -> float:
    """How far rounds in a stretched world are from these, in their lengths."""
    run = rounds(world.stretched(factor), SHORT)
    return deviation(run._replace(models=run.models / factor), expected)


def reference_stretches(world: World, beside: Match) -> bool:
    def rounds(world: World, rounds: int) -> Play:
        return beside.method.play(beside.recipe, world, everyone(rounds))

    return _stretched(rounds, world, 2.0, rounds(world, SHORT)) <= SAME


def pull_is_bounded(evidence: Evidence, beside: Match) -> bool:
    """In a large enough world the pull does not count: its length does not grow with the distance."""
    world = evidence.world
    without = beside.method.play(beside.recipe.but({"pull": 0.0}), world, everyone(SHORT))
    return _stretched(evidence.subject.everyone, world, STRETCHED, without) <= 1e-4


def first_round(evidence: Evidence) -> OneRound:
    def after(world: World) -> np.ndarray | None:
        run = evidence.subject.everyone(world, 1)
        return run.last if len(run.models) > 1 else None

    return after


def additive(after: OneRound, world: World) -> bool:
    """What one agent adds to a round does not depend on what the others hold."""
    for pair, far in product(((0, 1), (2, 3), (1, 4)), (FAR, -FAR)):
        places = (world.moved(who, world.c.mean(0) + far) for who in ((), pair[:1], pair[1:], pair))
        none, first, second, both = map(after, places)
        if none is None or first is None or second is None or both is None:
            return False
        if np.abs(both - first - second + none).max() > SAME * (1 + np.abs(both - none).max()):
            return False
    return True


def reference_additive(world: World, beside: Match) -> bool:
    return additive(lambda world: beside.method.play(beside.recipe, world, everyone(1)).last, world)


class Shift(NamedTuple):
    """The first round is the reference's but for a vector that does not depend on the model: whose is it?"""

    of_hub: bool | None  # the same whoever takes part; else it comes with what agents send. None: all must take part


def constant_shift(evidence: Evidence, beside: Match) -> Shift | None:
    world, expected = evidence.world, partial(beside.method.play, beside.recipe)

    def shift(world: World) -> np.ndarray | None:
        seen = evidence.subject.everyone(world, 1)
        return _apart(seen, expected(world, everyone(1)))

    def shift_of_some(first: int) -> np.ndarray | None:
        turned = world._replace(groups=world.groups[first:])
        seen = evidence.subject.some(turned, 1) if beside.method.partial else None
        return None if seen is None else _apart(seen, expected(turned, some(turned, 1)))

    here, there = shift(world), shift(world._replace(start=world.start + 1.0))
    if here is None or there is None or not _same(here, there) or np.abs(here).max() < 1e-6:
        return None
    parts = [part for first in (0, 1) if (part := shift_of_some(first)) is not None]
    return Shift(all(_same(part, here) for part in parts) if parts else None)


def _apart(seen: Play, expected: Play) -> np.ndarray | None:
    return seen.last - expected.last if len(seen.models) > 1 else None


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a - b).max() < SAME * 10)


def right_control(evidence: Evidence) -> bool:
    """The hub's c is to be seen and points along the mean field, as it must after the first round."""
    c = evidence.subject.everyone(evidence.world, 1).control
    world = evidence.world
    mean = np.einsum("k,kij,kj->i", world.p, world.H, world.start - world.c)
    return c is not None and c.shape == mean.shape and bool(c @ mean > 0)
