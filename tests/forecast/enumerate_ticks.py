"""Every outcome of a few ticks of a network, one by one, in plain NumPy: who works, how long each message takes, and
which get lost. d = 1, and every version of every model is kept.

The ages are those of the schedule's own words: a node hears the newest message that has arrived, and what is B ticks
old in any case. Nothing here comes from the library.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np


class Luck(NamedTuple):
    """What may happen in all ticks together, as arrays over outcomes (N, ...)."""

    chance: np.ndarray  # (N,)
    works: np.ndarray  # (N, T, K)
    age: np.ndarray  # (N, T, K, K): of what i hears of j


class Mutant(NamedTuple):
    """A deliberately wrong reading of the schedule."""

    age: int = 0  # added to every age of what neighbours said
    own_stale: bool = False  # a node starts from its own model of a tick before
    lost_is_fresh: bool = False


RIGHT = Mutant()


def subsets(nodes: int, count: int, ticks: int) -> Luck:
    each = [np.isin(np.arange(nodes), who) for who in itertools.combinations(range(nodes), count)]
    works = np.array(list(itertools.product(each, repeat=ticks)))
    return Luck(np.full(len(works), 1 / len(works)), works, np.zeros((len(works), ticks, nodes, nodes), int))


def _outcomes(size: int, chances: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """(N,), (N, size): all that `size` independent draws may be."""
    values = np.array(list(itertools.product(range(len(chances)), repeat=size)), int).reshape(
        len(chances) ** size, size
    )
    return np.asarray(chances)[values].prod(1), values


def partially(
    edges: list[tuple[int, int]],
    nodes: int,
    ticks: int,
    B: int,
    activity: float,
    delay: int,
    loss: float,
    mutant: Mutant = RIGHT,
) -> Iterator[Luck]:
    """For every way in which nodes have their places in B ticks: equally likely, together the whole."""
    arcs = [*edges, *((j, i) for i, j in edges)]
    late, working = ticks - 1, activity < 1
    mails = late * len(arcs)  # versions 1 to ticks - 1 of each arc's sender
    chances = [loss] + [(1 - loss) / (delay + 1)] * (delay + 1) if loss else [1 / (delay + 1)] * (delay + 1)
    took_chance, took = _outcomes(mails, chances)
    took = took - (1 if loss else 0)  # -1: lost
    work_chance, work = _outcomes(ticks * nodes if working else 0, [1 - activity, activity])
    chance = np.multiply.outer(work_chance, took_chance).ravel()
    N = len(chance)
    work = np.repeat(work, len(took), axis=0).reshape(N, ticks, nodes) if working else np.ones((N, ticks, nodes), int)
    took = np.tile(took, (N // len(took), 1)).reshape(N, late, len(arcs))
    for places in itertools.product(range(B), repeat=nodes) if working else [(0,) * nodes]:
        works = work.astype(bool) | (np.arange(ticks)[:, None] % B == np.array(places))
        age = np.zeros((N, ticks, nodes, nodes), int)
        for k, (a, (hears, says)) in itertools.product(range(ticks), enumerate(arcs)):
            old = np.full(N, B)
            for back in range(B - 1, -1, -1):
                version = k - back
                if version <= 0:
                    arrived = np.ones(N, bool)
                else:
                    t = took[:, version - 1, a]
                    there = (t <= back) if mutant.lost_is_fresh else (t >= 0) & (t <= back)
                    arrived = works[:, version - 1, says] & there
                old = np.where(arrived, back, old)
            age[:, k, hears, says] = np.minimum(old + mutant.age, k)
        yield Luck(chance, works, age)


Update = Callable[[int, np.ndarray, np.ndarray], np.ndarray]  # node, own (N,), heard (N, K) -> (N,)


def paths(update: Update, start: np.ndarray, luck: Luck, mutant: Mutant = RIGHT) -> np.ndarray:
    """(N, ticks + 1, K): models in every outcome."""
    N, T, K = luck.works.shape
    w = np.empty((N, T + 1, K))
    w[:, 0] = start
    rows = np.arange(N)
    for k in range(T):
        w[:, k + 1] = w[:, k]
        for i in range(K):
            heard = np.stack([w[rows, k - luck.age[:, k, i, j], j] for j in range(K)], axis=1)
            own = w[:, max(k - 1, 0) if mutant.own_stale else k, i]
            w[:, k + 1, i] = np.where(luck.works[:, k, i], update(i, own, heard), w[:, k, i])
    return w


def curve(update: Update, start: np.ndarray, lucks: list[Luck], target: np.ndarray, mutant: Mutant = RIGHT) -> tuple:
    """(ticks + 1,) and (ticks + 1, K): E mean_i |w_i - target_i|^2 and E w."""
    square, mean = 0.0, 0.0
    for luck in lucks:
        w = paths(update, start, luck, mutant)
        square = square + luck.chance @ ((w - target) ** 2).mean(2) / len(lucks)
        mean = mean + np.tensordot(luck.chance, w, 1) / len(lucks)
    return square, mean


def gossip(update: Callable, weights: np.ndarray, start: np.ndarray, luck: Luck) -> np.ndarray:
    """(N, ticks, K): models of a method with a hub at every node. Who works next mixes y_i = update(i, x_i) of its
    neighbours and itself before; the last tick is only listened for."""
    N, T, K = luck.works.shape
    x, rows = np.broadcast_to(start, (N, K)).copy(), np.arange(N)
    y = np.empty((N, T, K))
    y[:, 0] = start
    found = [x.copy()]
    for k in range(T - 1):
        y[:, k + 1] = np.where(luck.works[:, k], np.stack([update(i, x[:, i]) for i in range(K)], axis=1), y[:, k])
        for i in range(K):
            heard = np.stack([y[rows, k + 1 - luck.age[:, k + 1, i, j], j] for j in range(K)], axis=1)
            mixed = heard @ weights[i] + (1 - weights[i].sum()) * y[:, k + 1, i]
            x[:, i] = np.where(luck.works[:, k + 1, i], mixed, x[:, i])
        found.append(x.copy())
    return np.stack(found, axis=1)
