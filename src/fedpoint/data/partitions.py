"""Whose row is it, in an experiment? One data set spread over agents that differ as one wishes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.arrays import array_of
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.kinds import Count, Seed
from fedpoint.core.numbers import counted

CLASSES = 1000  # more distinct targets than this are no classes


@checked
def partition(y: ArrayLike, kind: str, agents: Count, *, seed: Seed = 0, **options: float) -> np.ndarray:
    """(n,): the agent, 0 to agents - 1, of each row. Every row has one agent, every agent at least one row.

    Where a draw leaves an agent without a row, the largest agent gives it one.

    Args:
        y: (n,) the target of each row, whose classes some kinds look at.
        kind: "iid": rows at random, agents of equal size. "dirichlet": the shares of a class over agents are
            Dirichlet(alpha); a small alpha gives an agent few classes (Hsu, Qi and Brown, 2019). "shards": every class
            is cut into shards; an agent has one shard of each of `classes` classes, 2 by default (after McMahan et al.,
            2017; here always of different classes). "quantity": rows at random, the agents' shares of them
            Dirichlet(alpha): they differ in size only.
        agents: how many.
        seed: of the draw.
        options: `alpha` of the Dirichlet kinds, `classes` of shards.

    >>> partition(["a", "a", "b", "b"], "shards", agents=2, classes=1)
    array([0, 0, 1, 1])
    """
    if kind not in KINDS:
        hint = ": that is the agent column itself" if kind == "natural" else f": {nearest(str(kind), KINDS)}"
        raise FedpointError(f"unknown partition {kind!r}{hint}")
    make, known = KINDS[kind]
    for name, value in options.items():
        if name not in known:
            allowed = nearest(name, known) if known else f"{kind} has no options but agents and seed"
            raise FedpointError(f"partition {kind!r} has no {name!r}: {allowed}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0 or not np.isfinite(value):
            raise FedpointError(f"{name} must be a number above 0, got {value!r}")
    y = array_of("y", y)
    if y.ndim != 1:
        raise FedpointError(f"y has shape {y.shape}: give one target a row")
    if agents > len(y):
        raise FedpointError(f"{counted(agents, 'agent')} for {counted(len(y), 'row')}: each needs at least one")
    # A stream of its own: the seed may also have drawn the rows.
    return make(y, int(agents), np.random.default_rng([seed, 1]), **options)


def _iid(y: np.ndarray, agents: int, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(np.arange(len(y)) % agents)


def _quantity(y: np.ndarray, agents: int, rng: np.random.Generator, alpha: float = 0.5) -> np.ndarray:
    return _nobody_empty(_shared(rng.permutation(len(y)), _shares(rng, agents, alpha)), agents, rng)


def _dirichlet(y: np.ndarray, agents: int, rng: np.random.Generator, alpha: float = 0.5) -> np.ndarray:
    groups = np.empty(len(y), int)
    for c in _classes(y, "dirichlet"):
        rows = rng.permutation(np.flatnonzero(y == c))
        groups[rows] = _shared(np.arange(len(rows)), _shares(rng, agents, alpha))
    return _nobody_empty(groups, agents, rng)


def _shards(y: np.ndarray, agents: int, rng: np.random.Generator, classes: int = 2) -> np.ndarray:
    names, label, sizes = np.unique(y, return_inverse=True, return_counts=True)
    _classes(y, "shards")
    if classes != int(classes) or classes > len(names):
        raise FedpointError(f"{classes} classes for each agent, but there are {len(names)}: choose a whole number")
    cuts = _cuts(sizes, agents, int(classes))
    takers: list[list[int]] = [[] for _ in names]
    left = cuts.copy()
    for agent in rng.permutation(agents):
        # Always from the classes with most shards left: then nobody has to take a class twice.
        chosen = np.lexsort((rng.random(len(names)), -left))[: int(classes)]
        left[chosen] -= 1
        for c in chosen:
            takers[c].append(agent)
    groups = np.empty(len(y), int)
    for c, who in enumerate(takers):
        rows = rng.permutation(np.flatnonzero(label == c))
        groups[rows] = np.array(who)[np.arange(len(rows)) % len(who)]
    return groups


def _cuts(sizes: np.ndarray, agents: int, classes: int) -> np.ndarray:
    """Shards of each class: in proportion to its rows, at least one, at most one an agent and one a row."""
    total, most = agents * classes, np.minimum(sizes, agents)
    wanted = f"{counted(agents, 'agent')} with {counted(classes, 'class')} each"
    if total < len(sizes):
        raise FedpointError(f"{wanted} cannot hold all {counted(len(sizes), 'class')}")
    if total > most.sum():
        raise FedpointError(
            f"{wanted} would take {counted(total, 'shard')}, but the classes allow {most.sum()}: "
            "a class has at most one shard an agent, and one a row"
        )
    cuts = np.clip(np.floor(total * sizes / sizes.sum()).astype(int), 1, most)
    while cuts.sum() != total:  # one at a time, where shards are largest (or smallest)
        if cuts.sum() < total:
            cuts[np.argmax(np.where(cuts < most, sizes / cuts, -np.inf))] += 1
        else:
            cuts[np.argmin(np.where(cuts > 1, sizes / cuts, np.inf))] -= 1
    return cuts


def _classes(y: np.ndarray, kind: str) -> np.ndarray:
    names = np.unique(y)
    if len(names) > min(CLASSES, max(len(y) // 2, 2)):
        raise FedpointError(
            f"partition {kind!r} spreads classes, but the target has {counted(len(names), 'distinct value')}"
        )
    return names


def _shares(rng: np.random.Generator, agents: int, alpha: float) -> np.ndarray:
    return rng.dirichlet(np.full(agents, float(alpha)))


def _shared(place: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """The agent of each place 0 to n - 1, agents being intervals of the given shares."""
    cuts = (np.cumsum(shares)[:-1] * len(place)).astype(int)
    return np.searchsorted(cuts, place, side="right")


def _nobody_empty(groups: np.ndarray, agents: int, rng: np.random.Generator) -> np.ndarray:
    """Nobody is left without a row: the richest gives one."""
    counts = np.bincount(groups, minlength=agents)
    for empty in np.flatnonzero(counts == 0):
        richest = int(counts.argmax())
        groups[rng.choice(np.flatnonzero(groups == richest))] = empty
        counts[richest] -= 1
        counts[empty] += 1
    return groups


KINDS: dict[str, tuple[Callable[..., np.ndarray], tuple[str, ...]]] = {
    "iid": (_iid, ()),
    "dirichlet": (_dirichlet, ("alpha",)),
    "shards": (_shards, ("classes",)),
    "quantity": (_quantity, ("alpha",)),
}
