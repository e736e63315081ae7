r"""Is what is seen too odd to be chance? A bet against chance, answer after answer: a stake that has grown says so.

**A rank.** If chance is all there is, what is seen is exchangeable with M simulated values, given all that went before.
For a statistic T that is large where something is odd,

    rank = 1 + #{m : T_m >= T_0},        P(rank <= r | past) <= r / (M + 1),        r = 1 .. M + 1,

whatever the distribution of T. Ties, to rounding, count for chance; the 1 is what is seen itself.

**A wager** pays e(rank) for every unit staked. It is fair if e decreases and its mean over the ranks is 1: then
E[e | past] <= 1. Here e is the mixture of the calibrators k p^(k-1), 0 < k < 1, averaged over the cell of each rank,

    e(r) = (M + 1) (F(r / (M + 1)) - F((r - 1) / (M + 1))),        F(p) = int_0^1 p^k dk = (p - 1) / ln p,

whose mean is 1 exactly; at the cell's right end, as for a p-value, it would be below 1: for M = 199 and rank 1, 6.9
instead of 37.6.

**A stake** begins at 1 and is multiplied by what each wager pays: E[stake] <= 1 at every moment, also at one that was
chosen by looking (a test martingale), and P(the stake ever reaches c) <= 1 / c (Ville's inequality). The mean of
several stakes is a stake. Of K parties each may be accused when its stake reaches K / alpha: then the chance that
anybody is accused wrongly, ever, is at most alpha.

References: Ville, Etude critique de la notion de collectif, 1939. Vovk and Wang, E-values: calibration, combination and
applications, Annals of Statistics 49, 2021. Waudby-Smith and Ramdas, Estimating means of bounded random variables by
betting, Journal of the Royal Statistical Society B 86, 2024.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

ROUNDING = 1e-6  # statistics that differ by less are equal


def rank(seen: float, simulated: np.ndarray) -> int:
    """1: odder than all that was simulated. What cannot be compared (NaN) counts for chance."""
    slack = ROUNDING * max(1.0, abs(seen)) if math.isfinite(seen) else 0.0
    return 1 + int(np.count_nonzero(~(simulated < seen - slack)))


def payoffs(ranks: int) -> np.ndarray:
    """What a wager pays for the ranks 1, 2, ..., so many."""
    cells = np.arange(ranks + 1) / ranks
    inside = cells[1:-1]
    below = np.concatenate([[0.0], (inside - 1.0) / np.log(inside), [1.0]])  # F, with its limits at 0 and 1
    return ranks * np.diff(below)


def wagered(
    stakes: Mapping[str, float], seen: Mapping[str, float], simulated: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """The logarithms of stakes, one for every statistic, after one more answer."""
    made = dict(stakes)
    for name, value in seen.items():
        among = simulated[name]
        made[name] = made.get(name, 0.0) + math.log(payoffs(len(among) + 1)[rank(value, among) - 1])
    return made


def combined(logarithms: Iterable[float]) -> float:
    """The logarithm of the mean of stakes, in whatever order; before the first bet, of 1."""
    values = [*logarithms] or [0.0]
    largest = max(values)
    return largest + math.log(math.fsum(math.exp(value - largest) for value in values) / len(values))


def limit(parties: int, alpha: float) -> float:
    """The stake at which one of so many parties may be accused."""
    return parties / alpha
