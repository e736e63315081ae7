"""Who may be heard in a round? Every lineup with its chance where there are few: for hubs that merge not linearly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

Case = tuple[float, np.ndarray, np.ndarray]  # the chance of a lineup, v (K,), s (K,)


class Lineups(NamedTuple):
    """What a round that merges may hear: weights v, and s = 1 where an agent is heard.

    All lineups that there are, or a sample, in whose means v and s have their own means exactly.
    """

    chance: np.ndarray  # (n,), in all 1
    weight: np.ndarray  # (n, K)
    heard: np.ndarray  # (n, K)
    drawn: bool = False  # a sample


def listed(cases: Iterator[Case]) -> Lineups | None:
    """Cases given that one of them happens, equal ones together; None where there are none."""
    found: dict[bytes, list] = {}
    for chance, v, s in cases:
        found.setdefault(np.round([v, s], 12).tobytes(), [0.0, v, s])[0] += chance
    if not found:
        return None
    each, weight, heard = (np.array(part) for part in zip(*found.values(), strict=True))
    return Lineups(each / each.sum(), weight, heard)


def subsets(p: np.ndarray, count: int, plain: bool) -> Iterator[Case]:
    """`count` agents uniformly without replacement: weights p_k K/L (plain: 1/L)."""
    K = len(p)
    for who in itertools.combinations(range(K), count):
        s = np.isin(np.arange(K), who).astype(float)
        yield 1 / math.comb(K, count), s / count if plain else p * (K / count) * s, s


def independent(p: np.ndarray, q: float) -> Iterator[Case]:
    """Each agent by itself with probability q: weights p_k/q."""
    for there in itertools.product((0.0, 1.0), repeat=len(p)):
        s = np.array(there)
        yield float(np.prod(np.where(s > 0, q, 1 - q))), p * s / q, s


def draws(p: np.ndarray, q: np.ndarray, count: int) -> Iterator[Case]:
    """`count` draws with probabilities q: weights m_k p_k / (L q_k)."""
    K, q = len(p), q / q.sum()
    for who in itertools.combinations_with_replacement(range(K), count):
        times = np.bincount(who, minlength=K)
        orders = math.factorial(count) / math.prod(math.factorial(m) for m in times)
        yield orders * float(np.prod(q**times)), times * p / (count * q), (times > 0).astype(float)


def answers(asked: Lineups, chance: np.ndarray, keep: int | None, minimum: int, equal: bool) -> Iterator[Case]:
    """Those of the asked who answer, agent k with its own chance, `keep` of them; equal: chances are, and then answers
    stand for all who were asked; else each for itself."""
    K = asked.weight.shape[1]
    for luck, v, s in zip(asked.chance, asked.weight, asked.heard, strict=True):
        who = np.flatnonzero(s)
        for there in itertools.product((0, 1), repeat=len(who)):
            came = np.array(there, bool)
            likely = luck * float(np.prod(np.where(came, chance[who], 1 - chance[who])))
            if came.sum() < minimum:
                continue
            size = int(came.sum()) if keep is None else min(keep, int(came.sum()))
            scale = np.full(K, len(who) / size) if equal else 1 / chance
            kept = list(itertools.combinations(who[came], size))
            for few in kept:
                heard = np.isin(np.arange(K), few).astype(float)
                yield likely / len(kept), v * heard * scale, heard


def calibrated(weight: np.ndarray, heard: np.ndarray, mean: np.ndarray, share: np.ndarray) -> Lineups:
    """A sample, with chances that are moved from 1/n as little as makes the means of v and s what they are known to be:
    what a hub merges linearly is then exact, and only the rest is estimated."""
    z, n = np.concatenate([weight, heard], axis=1), len(weight)
    away = z - z.mean(0)
    tilt = np.linalg.pinv(away.T @ away / n, rcond=1e-9, hermitian=True) @ (np.concatenate([mean, share]) - z.mean(0))
    return Lineups((1 + away @ tilt) / n, weight, heard, drawn=True)
