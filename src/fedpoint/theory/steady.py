"""Where does a run end, how fast and how noisy? Fixed point, rate, floor and curve, from the expected round."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.theory.known import keep_end, near_end
from fedpoint.theory.krylov import Krylov, solve
from fedpoint.theory.moments import Second
from fedpoint.theory.network_moments import OverNetwork
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Law
from fedpoint.theory.strides import Lost, most_products, trail_of

SURE = 3e-4  # of what a round leaves off a deviation, by which ten more products may change it
VERY_LARGE, FAIRLY_SURE = 1 << 12, 3e-3  # the same of states with more numbers than that
CONSERVED = 1e-9  # an eigenvalue this close to 1 belongs to a conserved quantity
LARGE = 500  # numbers of the state, up to which all eigenvalues are computed; from here on products take seconds
WANDER = 1 << 15  # expected rounds, after which an iteration that has not settled is given up
WORK = 1 << 35  # numbers that are handled until then, at most


class NoLimit(FedpointError):
    """The expected round has no fixed point that could be found; grows: because it leaves every bound."""

    def __init__(self, message: str, grows: bool = False):
        super().__init__(message)
        self.grows = grows


def fixed_point(setting: Setting, x: np.ndarray) -> np.ndarray:
    """F(x) = x, reached from x: what is conserved keeps its value there.

    Newton's method with Krylov steps. A step solves (I - F') y = F(x) - x within the span of the right side and its
    images, so it stays in the range of I - F': the group-inverse solution, not the least-norm one.
    """
    left = most_products(setting)
    if setting.size > LARGE:
        try:
            return trail_of(setting, x).end
        except Lost as lost:  # as below, which says why
            left -= lost.products
    travelled, chunk, most = 0, 64, min(WANDER, WORK // setting.work(exact=True))
    x = _nearer(setting, np.asarray(x, float))
    while True:
        size = first = _residual(setting, x)
        for _ in range(
            0 if setting.bound.loses_a_sum else 12
        ):  # where it ends depends on the path: followed to its end
            enough = 1e-14 * max(np.abs(x).max(), first)  # in the problem's own units, whatever they are
            if size <= 10 * enough:
                keep_end(setting, x)
                return x
            if left <= 0 or setting.budget.over:
                break
            with np.errstate(all="ignore"):
                r = setting.step(x) - x
                accuracy = max(1e-12, min(0.01, enough / size))  # not below rounding
                largest = max(200, min(2 * setting.size, 600))
                step, _, space = solve(setting.slope(x), r, accuracy, most=min(largest, left))
                left -= space.steps
                better = x + step
                after = _residual(setting, better)
            if not after < 0.5 * size:
                break
            x, size = better, after
        if size <= 1e-9 * (1 + np.abs(x).max()):  # as far as rounding allows
            keep_end(setting, x)
            return x
        if travelled >= most or (travelled and left <= 0) or setting.budget.over:
            nearer = (
                "" if setting.problem.convex else ". Begin nearer to one: give start= and around= a longer run's model"
            )
            if setting.budget.over:
                raise NoLimit(f"no fixed point was found: {setting.budget.text}")
            raise NoLimit(
                f"no fixed point was found: after {travelled:,} expected rounds one still moves the state by "
                f"{size:.1g}{nearer}"
            )
        new = setting.travel(x, chunk)
        if not np.isfinite(new).all() or np.abs(new).max() > 1e12 * (1 + np.abs(x).max()):
            raise NoLimit("the expected round leaves the finite numbers: the step is too large", grows=True)
        x, travelled, chunk = new, travelled + chunk, 2 * chunk


def _nearer(setting: Setting, x: np.ndarray) -> np.ndarray:
    """x, or what earlier forecasts of the problem tell of its end, where that is nearer to it."""
    near = near_end(setting)
    return x if near is None or not _residual(setting, near) < _residual(setting, x) else near


def _residual(setting: Setting, x: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        r = np.abs(setting.step(x) - x).max()
    return float(r) if np.isfinite(r) else math.inf


def mean_rate(setting: Setting, x: np.ndarray, start: np.ndarray | None = None, last: float = 0.0) -> float:
    """The largest modulus of an eigenvalue of F'(x), conserved directions left out.

    start, last: of large models, a deviation that fades slowly, and the rate it is thought to have.
    """
    if setting.size <= LARGE:
        return rate_of(setting.matrix(x))
    rough = start is not None and setting.m0.size == 0  # nothing is conserved
    product = setting.slope(x, rough)
    space = Krylov(product, any_deviation(setting, x) if start is None else start, rounding=1e-6 if rough else 1e-10)
    while True:
        space.extend(space.steps + 10)
        top = _largest(space.ritz(), 1e-7)  # the root of rounding, where an eigenvalue 1 lacks an eigenvector
        sure = SURE if setting.size <= VERY_LARGE and start is None else FAIRLY_SURE
        enough = space.closed or space.steps >= min(space.most, 400)
        if enough or abs(top - last) <= max(1e-9 * top, sure * (1 - top)):
            return top
        if setting.budget.over:
            setting.budget.leave("more products for the rate, which may be higher")
            return top
        last = top


def any_deviation(setting: Setting, x: np.ndarray) -> np.ndarray:
    """(n,): a random one, without what is conserved."""
    product, r = setting.slope(x), np.random.default_rng(0).normal(size=setting.size)
    for _ in range(2):  # twice: a conserved quantity may drive a direction that nothing else moves
        r = r - product(r)
    return r


def rate_of(M: np.ndarray) -> float:
    """The largest modulus of an eigenvalue of a round's matrix, conserved directions left out."""
    Q = _reach(M)
    return _largest(np.linalg.eigvals(Q.T @ M @ Q))


def limit_error(setting: Setting, x: np.ndarray, R: np.ndarray) -> float:
    """The standard error of |R x| at the fixed point x, where the lineups behind it are a sample; else 0."""
    noise = setting.lineup_noise(x)
    if noise is None:
        return 0.0
    moved = R @ np.linalg.pinv(np.eye(len(x)) - setting.matrix(x))
    return math.sqrt(float(np.trace(moved @ noise @ moved.T)))


def _largest(values: np.ndarray, conserved: float = CONSERVED) -> float:
    moving = np.abs(values[np.abs(values - 1) > conserved])
    return float(moving.max(initial=0.0))


def moving(M: np.ndarray) -> np.ndarray | None:
    """The projector on deviations without a conserved part, along what does not move; None where nothing is conserved.

    Rounding errors along conserved directions would never decay.
    """
    Q = _reach(M)
    if Q.shape[1] == len(M):
        return None
    L = _reach(M.T)
    return Q @ np.linalg.solve(L.T @ Q, L.T)


def _reach(M: np.ndarray) -> np.ndarray:
    """An orthonormal basis of what (I - M)^n reaches for every n: the span of all eigenvectors but those of 1.

    Step by step, so that an eigenvalue 1 without enough eigenvectors (a conserved quantity that drives a direction
    which nothing else moves) is found exactly; its computed eigenvalues would be off by the root of the rounding.
    """
    Q = np.eye(len(M))
    while True:
        A = Q.T @ M @ Q
        U, values, _ = np.linalg.svd(np.eye(len(A)) - A)
        still = values <= CONSERVED * max(1.0, values.max(initial=0.0))
        if not still.any():
            return Q
        Q = Q @ U[:, ~still]


@dataclass(frozen=True)
class Iterated:
    """A limit that was gone to; None where it does not settle, or even leaves every bound."""

    x: np.ndarray | None
    rate: float | None
    grows: bool = False


def iterate(setting: Setting, most: int = 1 << 16) -> Iterated:
    """The limit by going there, for methods without a linear map near it, and the rate of the last stretch."""
    x, done, chunk = setting.origin, 0, 32
    most = min(most, WORK // setting.work(exact=True))
    while done < most:
        new = setting.travel(x, chunk, done)
        after = setting.travel(new, 1, done + chunk)
        done += chunk
        gap = float(np.linalg.norm(setting.read(after) - setting.read(new)))
        if not np.isfinite(gap):
            return Iterated(None, None, grows=True)
        x = new
        if gap <= 1e-13 * (1 + float(np.linalg.norm(setting.read(x)))):
            break
        chunk = min(2 * chunk, 8192)
    else:
        return Iterated(None, None)
    return Iterated(x, _tail_rate(setting, min(done, 4096)))


def _tail_rate(setting: Setting, rounds: int) -> float | None:
    """From the changes of the model while they are above rounding; 0 where their ratios fall like squares."""
    path = setting.path(setting.origin, rounds)
    change = np.linalg.norm(np.diff(path, axis=0), axis=1)
    good = np.flatnonzero(change > 1e-11 * (1 + np.abs(path[-1]).max()))
    if len(good) < 8:
        ratios = change[good[1:]] / change[good[:-1]]
        squared = len(ratios) > 1 and ratios[-1] <= min(0.1, ratios[-2] ** 1.5)
        return 0.0 if squared or not len(ratios) else float(ratios[-1])
    last = good[-1]
    first = last - max(4, min(64, last // 4))
    return float((change[last] / change[first]) ** (1.0 / (last - first)))


@dataclass
class Steady:
    """Second moments around a fixed point x."""

    setting: Setting
    x: np.ndarray
    second: Callable[[np.ndarray], np.ndarray]  # S -> E[J S J']
    R: np.ndarray  # |R x|^2 is what is measured of a deviation x of the state
    _way: tuple[np.ndarray, Way] | None = None  # the start of the last one asked for, and itself

    @classmethod
    def of(cls, setting: Setting, x: np.ndarray, R: np.ndarray) -> Steady:
        return cls.around(setting, x, R, OverNetwork(setting, x) if setting.topology.by_node else Second(setting, x))

    @classmethod
    def around(
        cls, setting: Setting, x: np.ndarray, R: np.ndarray, second: Callable[[np.ndarray], np.ndarray]
    ) -> Steady:
        """With the second-moment operator around x, less what it would make of conserved quantities."""
        if setting.size > LARGE:  # there Krylov's process ends before rounding matters
            return cls(setting, x, second, R)
        P = moving(setting.matrix(x))
        if P is None:
            return cls(setting, x, second, R)
        whole = np.eye(len(x) + 1)
        whole[1:, 1:] = P
        return cls(setting, x, lambda S: whole @ second(S) @ whole.T, R)

    @property
    def n(self) -> int:
        return len(self.x) + 1

    @cached_property
    def source(self) -> np.ndarray:
        """The covariance of one round started at x, as a second moment: its first row and column are zero."""
        S = np.zeros((self.n, self.n))
        S[0, 0] = 1.0
        Q = np.array(self.second(S))
        Q -= np.outer(Q[0], Q[:, 0])  # where the mean goes, if x is not quite the fixed point
        Q[0], Q[:, 0] = 0.0, 0.0
        return (Q + Q.T) / 2

    @cached_property
    def _solved(self) -> tuple[np.ndarray, float, Krylov]:
        return solve(self.second, self.source, 1e-10 if self.n <= LARGE else 1e-8, steps=10, most=300)

    @cached_property
    def rate(self) -> float:
        """The spectral radius of the second-moment operator. It preserves the cone of covariances, so that the
        radius is itself an eigenvalue, real and positive (Krein and Rutman)."""
        space = self._solved[2]
        if self.n > LARGE and space.size > 0:
            return perron(space)
        if space.size == 0 or (space.steps < 8 and space.closed) or self.n <= 60:
            r = np.random.default_rng(1).normal(size=(self.n, min(self.n, 8)))
            r[0] = 0.0
            start = sum((np.outer(v, v) for v in self._moving(r).T), np.zeros((self.n, self.n)))
            space = Krylov(self.second, self.second(start) + self.source)
        last = -1.0
        for _ in range(12):
            space.extend(space.steps + (10 if not space.closed else 0), 1e-13)
            top = perron(space)
            if space.closed or abs(top - last) <= 1e-7 * top or space.steps >= space.most:
                break
            last = top
        return top

    def _moving(self, vectors: np.ndarray) -> np.ndarray:
        """Deviations without their conserved part."""
        product = self.setting.slope(self.x)
        moved = np.stack([v - product(v) for v in vectors[1:].T], axis=1)
        return np.concatenate([np.zeros((1, vectors.shape[1])), moved])

    @cached_property
    def covariance(self) -> np.ndarray | None:
        """The stationary covariance, None where there is none."""
        if self.rate >= 1:
            return None
        return self._solved[0][1:, 1:]

    @property
    def variance(self) -> float:
        """What is measured of the model's spread once it has settled: E|w - E w|^2 where R reads the model."""
        if self.covariance is None:
            return math.inf
        return float(np.trace(self.R @ self.covariance @ self.R.T))

    def weight(self, gap: np.ndarray) -> np.ndarray:
        """The matrix W with <W, S> = E|gap + R x|^2."""
        whole = np.column_stack([gap, self.R])
        return whole.T @ whole

    def curve(self, start: np.ndarray, gap: np.ndarray, rounds: int) -> np.ndarray:
        """E|w_t - w*|^2 for t = 0 .. rounds, of the linearised round from the state `start`."""
        x0 = np.concatenate([[1.0], start - self.x])
        S = np.outer(x0, x0)
        W = self.weight(gap)
        end = 0.0
        if self.rate < 1:  # the way to the stationary moments, which has no part that stays
            rest = np.zeros_like(S)
            rest[0, 0] = 1.0
            rest[1:, 1:] = self.covariance
            end, S = float((W * rest).sum()), S - rest
        return end + decay(self.second, S, W, rounds)

    def law(self, start: np.ndarray, gap: np.ndarray, round: int | None) -> Law | None:
        """Of |gap + R x|^2 after a round from the state `start`, or once settled: None where it does not settle.

        Mean and covariance of x are exact for affine rounds; that x is normal is not. See `Law`.
        """
        if round is None:
            return None if self.covariance is None else Law.of(gap, self.R @ self.covariance @ self.R.T)
        P = np.zeros((1 + len(self.R), self.n))
        P[0, 0], P[1:, 1:] = 1.0, self.R
        if self._way is None or not np.array_equal(self._way[0], start):
            x0 = np.concatenate([[1.0], start - self.x])
            way = Way(self.second, np.outer(x0, x0) - self._rest, lambda S: P @ S @ P.T)
            self._way = start, way
        S = P @ self._rest @ P.T + self._way[1].after(round)
        mean = S[0, 1:]
        return Law.of(gap + mean, S[1:, 1:] - np.outer(mean, mean)) if np.isfinite(S).all() else None

    @property
    def _rest(self) -> np.ndarray:
        """The stationary moments, to which the way has no part that stays; zeros where there are none."""
        rest = np.zeros((self.n, self.n))
        if self.covariance is not None:
            rest[0, 0], rest[1:, 1:] = 1.0, self.covariance
        return rest

    def growth(self, rounds: int) -> np.ndarray:
        """Variance of the model from a start at the limit: (rounds + 1,)."""
        W = self.weight(np.zeros(self.R.shape[0]))
        end = 0.0
        S = np.zeros((self.n, self.n))
        if self.rate < 1:
            S[1:, 1:] = self.covariance
            end = float((W * S).sum())
            return end - decay(self.second, S, W, rounds)
        S[0, 0] = 1.0
        return decay(self.second, S, W, rounds)


class Way:
    """What is read of A^t S, at any round t: `read` is linear and makes a symmetric matrix of it."""

    def __init__(
        self, apply: Callable[[np.ndarray], np.ndarray], S: np.ndarray, read: Callable[[np.ndarray], np.ndarray]
    ):
        self._space, self._read = Krylov(apply, S), read
        self._first = read(S)
        self._seen = np.zeros((0, *self._first.shape))  # what is read of every basis vector

    def after(self, round: int) -> np.ndarray:
        return np.asarray(self._grown(lambda steps: self._powers(steps, round), round))

    def path(self, rounds: int) -> tuple[np.ndarray, np.ndarray]:
        """(rounds + 1, q) and (rounds + 1,): the first row, and the trace without its first number."""

        def found(steps: int) -> np.ndarray:
            traces = np.trace(self._seen[:steps, 1:, 1:], axis1=1, axis2=2)
            functions = np.column_stack([self._seen[:steps, 0], traces])
            out, v, H = np.zeros((rounds + 1, functions.shape[1])), np.eye(steps, 1)[:, 0], self._matrix(steps)
            with np.errstate(over="ignore", invalid="ignore"):
                for t in range(rounds + 1):
                    out[t] = self._space.size * (v @ functions) if len(v) else 0.0
                    v = H @ v
            return out

        out = self._grown(found, rounds)
        return out[:, :-1], out[:, -1]

    def _grown(self, found: Callable[[int], np.ndarray], rounds: int) -> np.ndarray:
        """By Krylov's approximation, grown until its last steps change nothing; exact once it has as many as rounds."""
        space, scale = self._space, float(np.abs(self._first).max(initial=0.0))
        while True:
            now = found(space.steps)
            if space.closed or space.steps >= min(rounds + 1, space.most, 240):
                return now
            if space.steps:
                with np.errstate(invalid="ignore"):
                    change = np.abs(now - found(max(space.steps - 20, 0))).max()
                    if change <= 1e-10 * max(scale, float(np.abs(now).max())):
                        return now
            space.extend(min(space.steps + 20, max(rounds + 1, 20)))
            new = [self._read(v.reshape(space.shape)) for v in space.basis[len(self._seen) : space.steps]]
            self._seen = np.stack([*self._seen, *new])

    def _matrix(self, steps: int) -> np.ndarray:
        return self._space.H[:steps, :steps]

    def _powers(self, steps: int, round: int) -> np.ndarray:
        if not steps:
            return np.zeros(self._first.shape)
        with np.errstate(over="ignore", invalid="ignore"):
            along = np.linalg.matrix_power(self._matrix(steps), round)[:, 0]
        return np.asarray(self._space.size * np.tensordot(along, self._seen[:steps], axes=1))


def decay(apply: Callable[[np.ndarray], np.ndarray], S: np.ndarray, W: np.ndarray, rounds: int) -> np.ndarray:
    """<W, A^t S> for t = 0 .. rounds: Krylov's approximation, grown until it no longer changes."""
    return grow(Krylov(apply, S), W, rounds)


def grow(space: Krylov, W: np.ndarray, rounds: int) -> np.ndarray:
    """The same from a space, which is left grown."""
    last = None
    while True:
        space.extend(min(space.steps + 20, rounds + 2), 1e-14)
        values = space.powers(W, rounds + 1)
        if space.closed or space.steps >= min(space.most, 240, rounds + 1):
            return values
        if last is not None:
            scale = np.maximum(np.abs(values), 1e-12 * np.abs(values).max())
            if (np.abs(values - last) <= 1e-7 * scale + 1e-13 * np.abs(values).max()).all():
                return values
        elif space.residual() <= 1e-14:
            return values
        if last is not None and space.residual() <= 1e-14:
            return values
        last = values


def perron(space: Krylov) -> float:
    values = space.ritz()
    real = values[np.abs(values.imag) <= 1e-7 * np.maximum(np.abs(values), 1e-300)].real
    return float(real.max(initial=0.0))
