r"""Does every round do what it must? The innovations of runs: what each record adds to what the earlier ones told.

On affine fields a round is x+ = M x + b + v, where v has mean zero given x, and the second-moment operator knows its
covariance. What the records before it tell of a record y_t leaves an innovation

$$ e_t = y_t - E[y_t \mid y_{t-1}, y_{t-2}, \ldots], \qquad \operatorname{Cov} e_t = C_t. $$

Were every local step 1 + delta times as long, e_t would have the mean delta d_t and the covariance C_t + delta C'_t.
So, with U and I the score and the information of delta at 0,

$$ U = \sum_t d_t' C_t^{-1} e_t + \tfrac12 (e_t' A_t e_t - \operatorname{tr} A_t C_t), \quad
   I = \sum_t d_t' C_t^{-1} d_t + \tfrac12 \operatorname{tr} A_t C'_t, \quad A_t = C_t^{-1} C'_t C_t^{-1}, $$

delta is estimated by U / I, and no estimate has a smaller standard error than 1 / sqrt I.

Where the model is the whole state, e_t and C_t follow from the record before (`observed`), exactly. Where there are
memories too, or the model is large, they are those of the best linear prediction (`filtered`: Kalman's filter, from a
start that is known), whose innovations are uncorrelated from record to record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fedpoint.theory.operator import Setting
from fedpoint.theory.steady import Steady

SMALL = 16  # numbers of a state whose covariance is tabulated as a function of where the round begins
SETTLED = 1e-9  # relative change of covariances from record to record, after which they stay as they are
SILENT = 1e-8  # of the largest variance: a direction with less has no noise of its own
NUDGE = 1e-3  # of the step, to differentiate by it
LEAST = 16  # records that are worth the covariances of a large state
WORK = 3e9  # multiplications in covariances of a filter, which then ends earlier than the run
AT_ONCE = 1 << 22  # numbers of covariances that are computed at a time


@dataclass(frozen=True)
class Rounds:
    """A random affine round around the state x: deviations move by M z + b, their second moments by `second`."""

    M: np.ndarray  # (n, n)
    b: np.ndarray  # (n,)
    second: Callable[[np.ndarray], np.ndarray]

    @classmethod
    def of(cls, setting: Setting, x: np.ndarray) -> Rounds:
        return cls(setting.matrix(x), setting.step(x) - x, Steady.of(setting, x, setting.reading).second)

    @property
    def whole(self) -> np.ndarray:
        """The mean round as a map of (1, z)."""
        return np.block([[np.ones((1, 1)), np.zeros((1, len(self.b)))], [self.b[:, None], self.M]])


class Watched(NamedTuple):
    """What is recorded of runs: models at some rounds, from a state that is known; deviations of both."""

    at: Sequence[int]
    start: np.ndarray  # (n,)
    reading: np.ndarray  # (d, n): models of states

    @property
    def whole(self) -> bool:
        """Whether a record tells the state, and that is small."""
        d, n = self.reading.shape
        return d == n <= SMALL and np.linalg.matrix_rank(self.reading) == n

    @property
    def affordable(self) -> int:
        """How many of the records are predicted."""
        rounds = np.inf if self.whole else WORK / len(self.start) ** 3
        records = int(np.searchsorted(self.at, rounds, side="right"))
        return records if records >= min(len(self.at), LEAST) else 0


class Predicted(NamedTuple):
    """Records as the earlier ones tell them."""

    mean: np.ndarray  # (repeats, records, d)
    C: np.ndarray  # (repeats or 1, records, d, d)


@dataclass(frozen=True)
class Observed:
    """Predicts a record from the one before, which tells the state: exact."""

    rounds: Rounds
    watched: Watched

    @cached_property
    def moves(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """By number of rounds between records: the mean map of (1, z), and the second moments after it of every
        product of two coordinates before it."""
        lengths = np.unique(np.diff(self.watched.at, prepend=0))
        return {int(k): (np.linalg.matrix_power(self.rounds.whole, k), _table(self.rounds, int(k))) for k in lengths}

    def predict(self, models: np.ndarray) -> Predicted:
        start, R = self.watched.start, self.watched.reading
        begun = np.broadcast_to(start, (len(models), 1, len(start)))
        states = np.concatenate([begun, models[:, :-1] @ np.linalg.inv(R).T], axis=1)
        z = np.concatenate([np.ones((*states.shape[:2], 1)), states], axis=2)
        n = z.shape[2]
        mean, C = np.empty_like(z), np.empty((*z.shape, n))
        lengths = np.diff(self.watched.at, prepend=0)
        for length, (whole, table) in self.moves.items():
            from_here = z[:, lengths == length]
            products = (from_here[..., :, None] * from_here[..., None, :]).reshape(-1, n * n)
            mean[:, lengths == length] = from_here @ whole.T
            C[:, lengths == length] = (products @ table).reshape(*from_here.shape, n)
        C -= mean[..., :, None] * mean[..., None, :]
        return Predicted(mean[..., 1:] @ R.T, R @ C[..., 1:, 1:] @ R.T)


def _table(rounds: Rounds, length: int) -> np.ndarray:
    """((1 + n)^2, (1 + n)^2)"""
    n = len(rounds.b) + 1
    table = np.empty((n, n, n, n))
    for a in range(n):
        for b in range(a, n):
            S = np.zeros((n, n))
            S[a, b] += 0.5
            S[b, a] += 0.5
            for _ in range(length):
                S = rounds.second(S)
            table[a, b] = table[b, a] = S
    return table.reshape(n * n, n * n)


class Gain(NamedTuple):
    """Of one record: the covariance of its innovation, and what a unit of that adds to the state."""

    C: np.ndarray  # (d, d)
    gain: np.ndarray  # (n, d)


@dataclass(frozen=True)
class Filtered:
    """The best linear prediction from all earlier records."""

    rounds: Rounds
    watched: Watched

    @cached_property
    def gains(self) -> list[Gain]:
        (at, start, R), whole, M = self.watched, self.rounds.whole, self.rounds.M
        z = np.concatenate([[1.0], start])
        S, P, last, before = np.outer(z, z), np.zeros((len(start), len(start))), 0, 0
        found: list[Gain] = []
        for round in at:
            if len(found) > 2 and round - last == last - before and _alike(found[-1], found[-2]):
                found.append(found[-1])
            else:
                for _ in range(round - last):
                    new = self.rounds.second(S)
                    S, P = new, M @ P @ M.T + (new - whole @ S @ whole.T)[1:, 1:]
                found.append(_gain(P, R))
                P = P - found[-1].gain @ R @ P
                P = (P + P.T) / 2
            before, last = last, round
        return found

    def predict(self, models: np.ndarray) -> Predicted:
        (at, start, R), last = self.watched, 0
        state = np.broadcast_to(start, (len(models), len(start)))
        mean = np.empty_like(models)
        for t, round in enumerate(at):
            for _ in range(round - last):
                state = state @ self.rounds.M.T + self.rounds.b
            last = round
            mean[:, t] = state @ R.T
            state = state + (models[:, t] - mean[:, t]) @ self.gains[t].gain.T
        return Predicted(mean, np.stack([one.C for one in self.gains])[None])


def _gain(P: np.ndarray, R: np.ndarray) -> Gain:
    C = R @ P @ R.T
    C = (C + C.T) / 2
    axes = _noisy(C)
    return Gain(C, P @ R.T @ axes @ np.linalg.inv(axes.T @ C @ axes) @ axes.T)


def _alike(one: Gain, other: Gain) -> bool:
    return all(np.abs(a - b).max() <= SETTLED * np.abs(a).max() for a, b in zip(one, other, strict=True))


def _noisy(C: np.ndarray) -> np.ndarray:
    """(d, m): an orthonormal basis of the directions in which a covariance has any."""
    values, axes = np.linalg.eigh(C)
    return axes[:, values > SILENT * max(values.max(initial=0.0), 0.0)]


class Innovations(NamedTuple):
    """Of the records of some runs. Leading with the repeats, so that parts of them can be put together."""

    excess: np.ndarray  # (repeats, records): e' C^-1 e less its expectation
    freedom: np.ndarray  # (repeats,): the expectation of e' C^-1 e, over all records
    score: np.ndarray  # (repeats, records): the parts of U; zero where there is no step
    information: np.ndarray  # (repeats,): I

    @property
    def noise(self) -> float:
        """The mean square of innovations over that which is forecast."""
        return 1 + float(self.excess.sum() / self.freedom.sum())

    @property
    def delta(self) -> float:
        """How much longer than forecast the step is, relative."""
        return float(self.score.sum() / self.information.sum())


def innovations(
    rounds: Rounds, nudged: tuple[Rounds, Rounds] | None, watched: Watched, models: np.ndarray
) -> Innovations | None:
    """Of models (repeats, records, d). nudged: rounds with steps shorter and longer by NUDGE. None without noise."""
    models, watched = models[:, : watched.affordable], watched._replace(at=watched.at[: watched.affordable])
    kind = Observed if watched.whole else Filtered
    predictors = [kind(each, watched) for each in (rounds, *(nudged or ()))]
    size = max(1, AT_ONCE // max(1, models.shape[1] * (len(watched.start) + 1) ** 2))
    parts = [_part(predictors, models[i : i + size]) for i in range(0, len(models), size)]
    return None if any(part is None for part in parts) else Innovations(*map(np.concatenate, zip(*parts, strict=True)))


def _part(predictors: Sequence[Observed | Filtered], models: np.ndarray) -> Innovations | None:
    told, *nudged = [each.predict(models) for each in predictors]
    axes = _noisy(told.C.mean((0, 1)))
    if not axes.shape[1]:
        return None
    sizes = np.trace(told.C, axis1=2, axis2=3).min(0)
    kept = sizes > SILENT * sizes.max()  # a first round may be certain: it counts for nothing
    C = np.where(kept[:, None, None], axes.T @ told.C @ axes, np.eye(axes.shape[1]))
    e = ((models - told.mean) @ axes) * kept[:, None]
    inverse = np.linalg.inv(C)
    excess = _form(inverse, e, e) - e.shape[2] * kept
    freedom = np.full(len(e), float(e.shape[2] * kept.sum()))
    if not nudged:
        return Innovations(excess, freedom, np.zeros_like(excess), np.zeros(len(e)))
    low, high = nudged
    d = ((high.mean - low.mean) @ axes) * kept[:, None] / (2 * NUDGE)
    bend = (axes.T @ (high.C - low.C) @ axes) * kept[:, None, None] / (2 * NUDGE)
    A = inverse @ bend @ inverse
    score = _form(inverse, d, e) + 0.5 * (_form(A, e, e) - np.trace(A @ C, axis1=2, axis2=3))
    information = _form(inverse, d, d) + 0.5 * np.trace(A @ bend, axis1=2, axis2=3)
    return Innovations(excess, freedom, score, information.sum(1))


def _form(A: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x' A y, record by record."""
    return (x * (A @ y[..., None])[..., 0]).sum(-1)
