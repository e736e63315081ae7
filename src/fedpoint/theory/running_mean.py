r"""What does the mean of a run's models do? Its bias stays, its variance falls like one over the rounds.

Write e_t for the state's deviation from the limit, and R e_t for what is measured of it. Where rounds are linear,
E[e_t | e_{t-1}] = M e_{t-1}, so that the sum A_t = sum_s R e_s over the rounds s that count has

$$ C_t = E[e_t A_t'] = M C_{t-1} + S_t R', \qquad
   E[A_t A_t'] = E[A_{t-1} A_{t-1}'] + R M C_{t-1} + (R M C_{t-1})' + R S_t R', $$

with S_t = E[e_t e_t']. Along trajectories C and S are those beside every state of the chains, which M moves too; of
curved fields M is the slope at the present mean. Once S_t and C_t have settled, every round adds the same to the
covariance of the sum: that of the mean over n rounds is then what a round adds, over n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from fedpoint.theory.course import Course
from fedpoint.theory.outlook import Accuracy, Gauge, Law, Outlook, Path

SETTLED = 1e-11  # of their largest number, by which moments that have settled may still change
LONGEST = 1 << 17  # rounds that are followed until then
KEPT = 10_000_000  # numbers of covariances that are kept of the way

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


def sums(course: Course, burn_in: int, rounds: int) -> Iterator[Sum]:
    """After rounds 1, 2, ...: until `rounds`, or until it has settled."""
    read = course.read
    C: np.ndarray | None = None
    square = np.zeros((len(read), len(read)))
    for t, turn in enumerate(course.turns(rounds), 1):
        if t <= burn_in:
            seen = course.total(turn.seen)
            yield Sum(t, 1, read @ seen - np.outer(seen[0], seen[0]), seen[0])
            continue
        before = np.zeros_like(turn.seen) if C is None else C
        carried = turn.carry(before)
        C = turn.seen + carried
        beside = read @ course.total(carried)
        added = beside + beside.T + read @ course.total(turn.seen)
        square = square + added
        mean, size = course.total(C)[0], SETTLED * max(float(np.abs(C).max()), 1e-300)
        done = np.abs(C - before).max() <= size and turn.away <= size
        yield Sum(t, t - burn_in, square - np.outer(mean, mean), mean, added if done else None)
        if done:
            return


def averaged(models: np.ndarray, burn_in: int) -> np.ndarray:
    """(rounds + 1, d): after each round the mean of those behind the burn-in; the last one before."""
    first = burn_in + 1
    count = np.arange(1, len(models[first:]) + 1)[:, None]
    return np.concatenate([models[:first], np.cumsum(models[first:], axis=0) / count])


class RunningMean(Outlook):
    """The mean of the models after `burn_in` rounds, of runs that another theory knows.

    course: the rounds of these runs; None where nothing is random. means: what is measured of the mean of runs, where
    there is no course.
    """

    def __init__(
        self, inner: Outlook, gauge: Gauge, burn_in: int, course: Course | None, means: Means | None = None
    ) -> None:
        self.how, self.inner, self.gauge, self.burn_in = inner.how, inner, gauge, burn_in
        self._course, self._means = course, means
        self._way: list[Sum] = []

    @property
    def limit(self) -> np.ndarray:
        return self.inner.limit

    @property
    def rate(self) -> float:
        return 1.0  # slower than any factor

    @property
    def variance(self) -> float:
        return 0.0

    @property
    def accuracy(self) -> Accuracy | None:
        return self.inner.accuracy

    @cached_property
    def long_run(self) -> float:
        """The variance times the rounds that count, once there are many."""
        if self._course is None:
            return 0.0
        *_, last = sums(self._course, 0, LONGEST)
        return float(np.trace(last.covariance / last.models if last.added is None else last.added))

    def _sums(self, rounds: int) -> Iterable[Sum]:
        """After round 1, 2, ..., at least until `rounds`, or until it has settled."""
        assert self._course is not None
        found = sums(self._course, self.burn_in, rounds)
        if rounds * len(self._course.read) ** 2 > KEPT:
            return found
        if len(self._way) < rounds and not (self._way and self._way[-1].added is not None):
            self._way = list(found)
        return self._way[:rounds]

    @property
    def _gap(self) -> np.ndarray:
        return self.gauge(self.limit - self.gauge.target)

    def path(self, rounds: int) -> Path:
        variance, deviation = np.zeros(rounds + 1), np.zeros((rounds + 1, len(self._gap)))
        if self._course is not None:
            deviation[0] = self._course.begun
            now: Sum | None = None
            for now in self._sums(rounds):
                variance[now.round] = np.trace(now.covariance) / now.models**2
                deviation[now.round] = now.mean / now.models
            if now is not None and rounds > now.round:
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
        if self._course is None or round == 0:
            return Law(np.zeros(0), np.zeros(0), float(self.path(round).mean[-1]))
        *_, now = self._sums(round)
        now = now if now.round == round else now.later(round)
        return Law.of(self._gap + now.mean / now.models, now.covariance / now.models**2)
