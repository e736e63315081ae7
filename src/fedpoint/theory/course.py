r"""A run, round by round, as far as the sum of its models depends on it: what a theory tells of a running mean.

Write e_t for the state's deviation from where runs settle and Y for anything that is known before round t. A theory
whose rounds are linear (in the state, or beside the states of chains) knows how E[(1, e_t) Y'] follows from
E[(1, e_{t-1}) Y'].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

from fedpoint.theory.krylov import Krylov
from fedpoint.theory.operator import Setting
from fedpoint.theory.steady import Steady, grow, moving

DENSE = 1000  # numbers of a state whose round is written down as a matrix


class Turn(NamedTuple):
    """A round. seen: (..., 1 + n, r), E[(1, e) z'] after it, where z is what is measured of the model's deviation from
    its limit; leading axes are states of chains. carry: E[(1, e) Y'] before it to that after it. away: how far `seen`
    is from where it settles."""

    seen: np.ndarray
    carry: Callable[[np.ndarray], np.ndarray]
    away: float


class Course(ABC):
    """The rounds of a run. read: (r, 1 + n), what is measured of (1, e)."""

    read: np.ndarray
    begun: np.ndarray  # (r,): what is measured of the start's deviation

    @abstractmethod
    def turns(self, rounds: int) -> Iterator[Turn]:
        """Rounds 1, 2, ..., as many."""

    def total(self, moments: np.ndarray) -> np.ndarray:
        """(1 + n, r): over the states of all chains."""
        return moments


class AffineCourse(Course):
    """Affine rounds from the state `start`."""

    def __init__(self, steady: Steady, start: np.ndarray):
        self.steady, self.read = steady, reading(steady.R)
        self.start = np.concatenate([[1.0], start - steady.x])
        self.begun = self.read @ self.start

    def turns(self, rounds: int) -> Iterator[Turn]:
        n, read = self.steady.n, self.read
        rest = np.zeros((n, n))
        rest[0, 0], rest[1:, 1:] = 1.0, self.steady.covariance
        begun, end = np.outer(self.start, self.start) - rest, rest @ read.T
        carry = product(self.steady.setting, self.steady.x)
        for away in fading(self.steady.second, begun, read.T @ read, lambda S: S @ read.T, rounds):
            yield Turn(end + away, carry, float(np.abs(away).max(initial=0.0)))


class BesideChains(Protocol):
    """A round of second moments of (1, e) beside the states of chains, which are the leading axes."""

    def __call__(self, S: np.ndarray) -> np.ndarray: ...

    def mean(self, X: np.ndarray) -> np.ndarray:
        """The same of first moments."""

    def total(self, moments: np.ndarray) -> np.ndarray:
        """Over all states of the chains."""


class ChainsCourse(Course):
    """Rounds beside the states of chains, from second moments with which they begin to those that have settled."""

    def __init__(self, move: BesideChains, R: np.ndarray, begun: np.ndarray, settled: np.ndarray):
        self.move, self._begun, self.settled = move, begun, settled
        self.read = np.column_stack([-R @ move.total(settled)[0, 1:], R])
        self.begun = self.read @ move.total(begun)[:, 0]

    def total(self, moments: np.ndarray) -> np.ndarray:
        return self.move.total(moments)

    def turns(self, rounds: int) -> Iterator[Turn]:
        read, end = self.read, self.settled @ self.read.T
        weight = np.broadcast_to(read.T @ read, self.settled.shape)
        for away in fading(self.move, self._begun - self.settled, weight, lambda S: S @ read.T, rounds):
            yield Turn(end + away, self._carry, float(np.abs(away).max(initial=0.0)))

    def _carry(self, C: np.ndarray) -> np.ndarray:
        return np.stack([self.move.mean(column) for column in np.moveaxis(C, -1, 0)], axis=-1)


def reading(R: np.ndarray) -> np.ndarray:
    """Of (1, e), what is measured of e."""
    return np.column_stack([np.zeros(len(R)), R])


def product(setting: Setting, x: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Columns of (1, deviation) after the mean round, linearised at x; what is conserved left out."""
    if setting.size > DENSE:
        slope = setting.slope(x)
        return lambda C: np.concatenate([C[:1], np.stack([slope(c) for c in C[1:].T], axis=1)])
    M = setting.matrix(x)
    P = moving(M)
    M = M if P is None else M @ P
    return lambda C: np.concatenate([C[:1], M @ C[1:]])


def fading(
    apply: Callable[[np.ndarray], np.ndarray],
    S: np.ndarray,
    weight: np.ndarray,
    read: Callable[[np.ndarray], np.ndarray],
    rounds: int,
) -> Iterator[np.ndarray]:
    """What is read of A S, A^2 S, ...: by Krylov's approximation, grown until <weight, A^t S> no longer changes."""
    space = Krylov(apply, S)
    grow(space, weight, rounds)
    k = space.steps
    basis = np.stack([read(v.reshape(S.shape)) for v in space.basis[:k]]) if k else read(S)[None][:0]
    H, along = space.H[:k], space.size * np.eye(k, 1)[:, 0]
    for _ in range(rounds):
        along = H @ along
        yield np.tensordot(along, basis, 1)
