r"""What does the mean of a run's models do? Its bias stays, its variance falls like one over the rounds.

Write e_t for the state's deviation from the limit, and R e_t for what is measured of it. In affine rounds
E[e_t | e_{t-1}] = M e_{t-1}, so that the sum A_t = sum_s R e_s over the rounds s that count has

$$ C_t = E[e_t A_t'] = M C_{t-1} + S_t R', \qquad
   E[A_t A_t'] = E[A_{t-1} A_{t-1}'] + R M C_{t-1} + (R M C_{t-1})' + R S_t R', $$

with S_t = E[e_t e_t']. Once S_t and C_t have settled, every round adds the same to the covariance of the sum: that of
the mean over n rounds is then what a round adds, over n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from fedpoint.theory.krylov import Krylov
from fedpoint.theory.outlook import Gauge, Law, Outlook, Path
from fedpoint.theory.steady import Steady, grow, moving

SETTLED = 1e-11  # of their largest number, by which moments that have settled may still change
LONGEST = 1 << 17  # rounds that are followed until then
DENSE = 1000  # numbers of a state whose round is written down as a matrix

Means: TypeAlias = Callable[[int], np.ndarray]  # rounds -> (rounds + 1, r): what is measured of the mean of runs


class Sum(NamedTuple):
    """After a round: of the sum of what is measured of the models that count; of the last model, before any does."""

    round: int
    models: int  # how many there are in the sum
    covariance: np.ndarray  # (r, r)
    mean: np.ndarray  # (r,): its deviation from where runs settle
    added: np.ndarray | None = None  # (r, r): what every further round adds to the covariance; None: not settled

    def later(self, round: int) -> Sum:
        """After more rounds, once it has settled."""
        assert self.added is not None
        more = round - self.round
        return self._replace(round=round, models=self.models + more, covariance=self.covariance + more * self.added)


def sums(steady: Steady, start: np.ndarray, burn_in: int, rounds: int) -> Iterator[Sum]:
    """After rounds 1, 2, ... of runs from the state `start`: until `rounds`, or until it has settled."""
    n, R, product = steady.n, steady.R, _product(steady)
    read = np.zeros((len(R), n))
    read[:, 1:] = R
    rest = np.zeros((n, n))
    rest[0, 0], rest[1:, 1:] = 1.0, steady.covariance
    x = np.concatenate([[1.0], start - steady.x])
    space = Krylov(steady.second, np.outer(x, x) - rest)
    grow(space, steady.weight(np.zeros(len(R))), rounds)
    k = space.steps
    basis = np.stack([v.reshape(n, n) @ read.T for v in space.basis[:k]]) if k else np.zeros((0, n, len(R)))
    H, along, settled = space.H[:k], space.size * np.eye(k, 1)[:, 0], rest @ read.T
    C, square = np.zeros_like(settled), np.zeros((len(R), len(R)))
    for t in range(1, rounds + 1):
        along = H @ along
        seen = settled + np.tensordot(along, basis, 1)  # E[(1, e_t) (R e_t)']
        if t <= burn_in:
            mean = seen[0]
            yield Sum(t, 1, R @ seen[1:] - np.outer(mean, mean), mean)
            continue
        C, before = seen + product(C), C
        beside = R @ (C - seen)[1:]
        added = beside + beside.T + R @ seen[1:]
        square = square + added
        mean, size = C[0], SETTLED * max(float(np.abs(C).max()), 1e-300)
        done = np.abs(C - before).max() <= size and np.abs(seen - settled).max() <= size
        yield Sum(t, t - burn_in, square - np.outer(mean, mean), mean, added if done else None)
        if done:
            return


def _product(steady: Steady) -> Callable[[np.ndarray], np.ndarray]:
    """C -> the mean round times C, columns of (1, deviation); what is conserved left out."""
    if steady.n > DENSE:
        slope = steady.setting.slope(steady.x)
        return lambda C: np.concatenate([C[:1], np.stack([slope(c) for c in C[1:].T], axis=1)])
    M = steady.setting.matrix(steady.x)
    P = moving(M)
    M = M if P is None else M @ P
    return lambda C: np.concatenate([C[:1], M @ C[1:]])


def averaged(models: np.ndarray, burn_in: int) -> np.ndarray:
    """(rounds + 1, d): after each round the mean of those behind the burn-in; the last one before."""
    first = burn_in + 1
    count = np.arange(1, len(models[first:]) + 1)[:, None]
    return np.concatenate([models[:first], np.cumsum(models[first:], axis=0) / count])


class RunningMean(Outlook):
    """The mean of the models after `burn_in` rounds, of runs that another theory knows.

    steady: second moments around where runs settle, from the state `start` on; None where nothing is random. means:
    what is measured of the mean of runs; None where rounds are affine, and the second moments tell it.
    """

    def __init__(
        self,
        inner: Outlook,
        gauge: Gauge,
        burn_in: int,
        steady: Steady | None,
        start: np.ndarray,
        means: Means | None = None,
    ):
        self.how, self.inner, self.gauge, self.burn_in = inner.how, inner, gauge, burn_in
        self.steady, self.start, self._means = steady, start, means

    @property
    def limit(self) -> np.ndarray:
        return self.inner.limit

    @property
    def rate(self) -> float:
        return 1.0  # slower than any factor

    @property
    def variance(self) -> float:
        return 0.0

    @cached_property
    def long_run(self) -> float:
        """The variance times the rounds that count, once there are many."""
        if self.steady is None:
            return 0.0
        *_, last = sums(self.steady, self.start, 0, LONGEST)
        return float(np.trace(last.covariance / last.models if last.added is None else last.added))

    @property
    def _gap(self) -> np.ndarray:
        return self.gauge(self.limit - self.gauge.target)

    def path(self, rounds: int) -> Path:
        variance, deviation = np.zeros(rounds + 1), np.zeros((rounds + 1, len(self._gap)))
        if self.steady is not None:
            deviation[0] = self.steady.R @ (self.start - self.steady.x)
            for now in sums(self.steady, self.start, self.burn_in, rounds):
                variance[now.round] = np.trace(now.covariance) / now.models**2
                deviation[now.round] = now.mean / now.models
            if rounds > now.round:
                later = np.arange(now.round + 1, rounds + 1)
                count = later - self.burn_in
                more = (later - now.round) * np.trace(now.later(now.round + 1).covariance - now.covariance)
                variance[later] = (np.trace(now.covariance) + more) / count**2
                deviation[later] = now.mean / count[:, None]
        mean = self._gap + deviation if self._means is None else averaged(self._means(rounds), self.burn_in)
        return Path((mean**2).sum(1), np.maximum(variance, 0.0))

    def law(self, round: int | None) -> Law | None:
        if round is None:
            return Law(np.zeros(0), np.zeros(0), float(self._gap @ self._gap))
        if self.steady is None or round == 0:
            return Law(np.zeros(0), np.zeros(0), float(self.path(round).mean[-1]))
        *_, now = sums(self.steady, self.start, self.burn_in, round)
        now = now if now.round == round else now.later(round)
        gap = self._gap + now.mean / now.models
        if self._means is not None:
            gap = averaged(self._means(round), self.burn_in)[-1]
        return Law.of(gap, now.covariance / now.models**2)
