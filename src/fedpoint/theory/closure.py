r"""Where does the mean of noisy, curved runs go? Mean and covariance followed together, both taken at the present mean.

$$ m^+ = F_0(m) + b(m, S), \qquad S^+ = E[J_\xi(m) S J_\xi(m)'] + \operatorname{Cov} R(m, \xi), $$

b the second-order shift (`shift.py`). Once settled both solve the same equations. On the way the round is linearised
anew whenever the mean has moved or the spread has changed; close to the end the deviation from the settled moments
decays by the round linearised there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.compiling import quickly
from fedpoint.core.precision import double
from fedpoint.core.types import Number, Tree
from fedpoint.theory import accuracy
from fedpoint.theory.course import Course, Turn, fading, product, reading
from fedpoint.theory.expected_round import Numbers
from fedpoint.theory.krylov import Krylov, solve
from fedpoint.theory.moments import (
    Linear,
    Moving,
    Spread,
    linearise,
    move_agents,
    spread_of,
)
from fedpoint.theory.network_moments import Nodes, linearise_nodes, move_nodes
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Accuracy, Gauge, Law, Outlook, Path
from fedpoint.theory.shift import Bending, nodes_shift, round_shift
from fedpoint.theory.space import Space
from fedpoint.theory.steady import NoLimit, Steady, Way, decay

STRETCH = 128  # rounds after which the round is linearised anew in any case
MOVED = 0.03  # of the way from start to end, that the mean may move until then
GROWN = 1.2  # factor by which the measured variance may change until then
ITERATIONS = 30  # until the settled moments solve their equations
SETTLED = 1e-6  # of the root of the floor, by which they may still move


class Frame(NamedTuple):
    """All numbers of a closure that do not change along the path."""

    numbers: Numbers
    spread: Spread | None  # of a fusion center's schedule
    bends: Bending

    def moving(self, linear: Linear) -> Moving:
        assert self.spread is not None
        return Moving(self.numbers, self.spread, linear)


class Moments(NamedTuple):
    """Mean and covariance of the state."""

    x: np.ndarray
    sigma: np.ndarray


class Around(NamedTuple):
    """The round linearised at a mean, and the shift that the covariance there makes of it."""

    linear: Linear | Nodes
    shift: np.ndarray


def linear_at(space: Space, frame: Frame, x: Array, round: Number) -> Linear | Nodes:
    if frame.spread is None:
        return linearise_nodes(space, frame.numbers, x)
    return linearise(space, frame.numbers, frame.spread, x, round)


def moved(space: Space, frame: Frame, linear: Linear | Nodes, S: Array) -> tuple[Array, Tree]:
    """The second moments of (1, deviation) after a round, and the noise that agents made on the way."""
    if isinstance(linear, Nodes):
        return move_nodes(space, frame.numbers, linear, S)
    return move_agents(space, frame.moving(linear), S)


def shift_at(space: Space, frame: Frame, linear: Linear | Nodes, noise: Tree, state: Moments, round: Number) -> Array:
    x, S = jnp.asarray(state.x), bordered(state.sigma)
    if isinstance(linear, Nodes):
        return nodes_shift(space, frame.numbers, linear, noise, x, S)
    return round_shift(space, frame.moving(linear), noise, x, S, round, frame.bends)


def bordered(sigma: Array | np.ndarray) -> Array:
    """The second moments of (1, deviation), whose mean is zero."""
    return jnp.zeros((1 + len(sigma),) * 2).at[0, 0].set(1.0).at[1:, 1:].set(sigma)


_linear = quickly(linear_at, static_argnums=0)
_shifted = quickly(shift_at, static_argnums=0)
_moved = quickly(moved, static_argnums=0)


class Settled(NamedTuple):
    """The moments that solve the closure's equations, the shift there, and second moments around them."""

    moments: Moments
    shift: np.ndarray
    steady: Steady


@dataclass
class Leg:
    """A part of the path along which one linearised round serves."""

    first: int
    begun: Moments
    around: Around
    means: list[np.ndarray]  # of the state, after each of its rounds
    variances: list[float]
    after: Moments


class Closure(Outlook):
    """Second-order moments of a round that is not affine. x: the fixed point of the expected round; origin: the state
    in which runs begin."""

    how = "closure"

    @double
    def __init__(self, setting: Setting, x: np.ndarray, origin: np.ndarray, gauge: Gauge):
        self.setting, self.x, self.origin, self.gauge = setting, x, origin, gauge
        self.space = setting.space._replace(alike=False)
        spread = None if setting.topology.by_node else spread_of(setting)
        self.R = gauge.of_state(setting.reading_at(x))
        self.frame = Frame(setting.numbers, spread, bending(setting))

    # Once settled

    def _steady(self, linear: Linear | Nodes, x: np.ndarray) -> Steady:
        @double
        def second(S: np.ndarray) -> np.ndarray:
            return np.asarray(_moved(self.space, self.frame, linear, (S + S.T) / 2)[0])

        return Steady.around(self.setting, x, self.R, second)

    @cached_property
    @double
    def settled(self) -> Settled | None:
        """None where the mean square grows without bound."""
        x = np.array(self.x)
        for _ in range(ITERATIONS):
            linear = self._linear(x)
            steady = self._steady(linear, x)
            if steady.covariance is None:
                return None
            here = Moments(x, steady.covariance)
            shift = self._shift(linear, here)
            with np.errstate(all="ignore"):
                correction = solve(self.setting.slope(x), self.setting.step(x) + shift - x, 1e-9)[0]
            size = float(np.linalg.norm(self.R @ correction))
            if not math.isfinite(size):
                break
            if size <= SETTLED * math.sqrt(steady.variance + 1e-300):
                return Settled(here, shift, steady)
            x = x + correction
        raise NoLimit("mean and covariance do not settle together: the noise is too large for a second-order theory")

    @double
    def _linear(self, x: np.ndarray) -> Linear | Nodes:
        return _linear(self.space, self.frame, x, jnp.int32(0))

    @double
    def _shift(self, linear: Linear | Nodes, state: Moments) -> np.ndarray:
        noise = _moved(self.space, self.frame, linear, bordered(state.sigma))[1]
        return np.asarray(_shifted(self.space, self.frame, linear, noise, state, jnp.int32(0)))

    @property
    def limit(self) -> np.ndarray:
        return self.setting.read(self.x if self.settled is None else self.settled.moments.x)

    @property
    def rate(self) -> float:
        if self.settled is not None:
            return self.settled.steady.rate
        return self._steady(self._linear(self.x), self.x).rate

    @property
    def variance(self) -> float:
        return math.inf if self.settled is None else self.settled.steady.variance

    @cached_property
    def accuracy(self) -> Accuracy | None:
        if self.settled is None:
            return None
        gap = self._end()
        x, sigma = self.settled.moments
        still = self._shift(self._linear(x), Moments(x, np.zeros_like(sigma)))  # by noise inside the round alone
        noise = self.settled.steady.source[1:, 1:]
        here = accuracy.Settled(x, sigma, noise, self.settled.shift - still, still, x - self.x)
        return accuracy.accuracy_of(self.setting, here, self.R, gap, self.variance + float(gap @ gap))

    @property
    def borne_out(self) -> bool:
        """Drawn rounds have its mean and covariance, where runs begin and once settled."""
        if self.accuracy is None or not self.accuracy.good:
            return False
        begun = Moments(self.origin, np.zeros((len(self.origin),) * 2))
        linear = self._linear(begun.x)
        after = self._advance(Around(linear, self._shift(linear, begun)), begun)
        return accuracy.drawn_alike(self.setting, begun.x, after.x, self.R, self._spread(after))

    # On the way

    @cached_property
    def _legs(self) -> list[Leg]:
        """Of the path so far."""
        begun = Moments(self.origin, np.zeros((len(self.origin),) * 2))
        return [self._leg(0, begun)]

    def _leg(self, first: int, begun: Moments) -> Leg:
        """On until the mean has moved, or the spread has changed, too much for one linearised round."""
        linear = self._linear(begun.x)
        leg = Leg(first, begun, Around(linear, self._shift(linear, begun)), [], [], begun)
        before = self._spread(begun)
        while len(leg.means) < STRETCH:
            leg.after = self._advance(leg.around, leg.after)
            spread = self._spread(leg.after)
            leg.means.append(leg.after.x)
            leg.variances.append(spread)
            far = float(np.linalg.norm(self.R @ (leg.after.x - begun.x))) > self._far
            if far or not before / GROWN <= spread <= before * GROWN:
                break
        return leg

    @double
    def _advance(self, around: Around, state: Moments) -> Moments:
        """One round: the mean by the expected round itself, the covariance by the linearised one."""
        new = np.asarray(_moved(self.space, self.frame, around.linear, bordered(state.sigma))[0])
        step = new[0, 1:]
        sigma = new[1:, 1:] - np.outer(step, step)
        return Moments(self.setting.step(state.x) + around.shift, (sigma + sigma.T) / 2)

    def _spread(self, state: Moments) -> float:
        return float(np.vdot(self.R @ state.sigma, self.R))

    def _walk(self, rounds: int) -> list[Leg]:
        """Legs until `rounds`, or until it is so close to where it settles that its tail is known."""
        while True:
            last = self._legs[-1]
            done = last.first + len(last.means)
            if done >= rounds or self._arrived(last.after) or not np.isfinite(last.variances[-1]):
                return self._legs
            self._legs.append(self._leg(done, last.after))

    @cached_property
    def _far(self) -> float:
        end, spread = self.x, 0.0
        if self.settled is not None:
            end, spread = self.settled.moments.x, math.sqrt(self.variance)
        return MOVED * max(float(np.linalg.norm(self.R @ (self.origin - end))), spread)

    def _arrived(self, state: Moments) -> bool:
        if self.settled is None:
            return False
        away, spread = float(np.linalg.norm(self.R @ (state.x - self.settled.moments.x))), self._spread(state)
        return away <= self._far and spread / GROWN <= self.variance <= spread * GROWN

    def path(self, rounds: int) -> Path:
        legs = self._walk(rounds)
        models = self.setting.reads(np.stack([self.origin, *(x for leg in legs for x in leg.means)]))
        spread = [0.0, *(v for leg in legs for v in leg.variances)]
        mean = [self.gauge(w - self.gauge.target) for w in models]
        if len(mean) <= rounds:
            end = self._end()
            more = self._tail(legs[-1].after, rounds + 1 - len(mean))
            mean += [end + a for a in more[0]]
            spread += list(more[1])
        return Path((np.array(mean[: rounds + 1]) ** 2).sum(1), np.array(spread[: rounds + 1]))

    def _end(self) -> np.ndarray:
        """From what is measured from to the limit."""
        return self.gauge(self.limit - self.gauge.target)

    def _tail(self, state: Moments, rounds: int) -> tuple[np.ndarray, np.ndarray]:
        """Of the next rounds, close to where it settles: what is measured of the mean's way to there, and variances."""
        if self.settled is None:  # it has left every bound
            return np.full((rounds, len(self.R)), np.inf), np.full(rounds, np.inf)
        end = self.settled
        W = end.steady.weight(np.zeros(len(self.R)))
        away = decay(end.steady.second, self._deviation(state), W, rounds)[1:]
        return self._approach(state, rounds) @ self.R.T, self.variance + away

    def _approach(self, state: Moments, rounds: int) -> np.ndarray:
        """(rounds, n): how the mean's deviation from where it settles dies out."""
        assert self.settled is not None
        J, v = self.setting.matrix(self.settled.moments.x), state.x - self.settled.moments.x
        found, least = np.zeros((rounds, len(v))), 1e-14 * float(np.abs(v).max(initial=0.0))
        for t in range(rounds):
            v = J @ v
            found[t] = v
            if np.abs(v).max(initial=0.0) <= least:
                break
        return found

    def _deviation(self, state: Moments) -> np.ndarray:
        """Of covariances from the settled ones, bordered by zeros."""
        assert self.settled is not None
        S = np.zeros((len(self.x) + 1,) * 2)
        S[1:, 1:] = state.sigma - self.settled.moments.sigma
        return S

    def moments_at(self, round: int) -> Moments:
        """Mean and covariance of the state after a round."""
        legs = self._walk(round)
        leg = next(leg for leg in reversed(legs) if leg.first <= round)
        if round >= leg.first + len(leg.means):
            return self._later(leg.after, round - leg.first - len(leg.means))
        state = leg.begun
        for _ in range(round - leg.first):
            state = self._advance(leg.around, state)
        return state

    def _later(self, state: Moments, rounds: int) -> Moments:
        """So many rounds after a state that is close to where it settles."""
        if not rounds:
            return state
        if self.settled is None:
            return Moments(np.full_like(state.x, np.inf), np.full_like(state.sigma, np.inf))
        end = self.settled
        away = Krylov(end.steady.second, self._deviation(state)).power(rounds)
        return Moments(end.moments.x + self._approach(state, rounds)[-1], end.moments.sigma + away[1:, 1:])

    def law(self, round: int | None) -> Law | None:
        end = self.settled
        if round is None:
            return None if end is None else self._law(*end.moments)
        last = self._walk(round)[-1]
        later = round - last.first - len(last.means)
        if end is None or later <= 0:
            return self._law(*self.moments_at(round))
        x = end.moments.x + self._approach(last.after, later)[-1]
        return self._law(x, end.moments.sigma, self._tail_spread.after(later))

    def course(self) -> Course | None:
        return None if self.settled is None else ClosureCourse(self, self.settled)

    @cached_property
    def _tail_spread(self) -> Way:
        """What is measured of covariances' deviation from the settled ones, behind the last leg."""
        assert self.settled is not None
        deviation = self._deviation(self._legs[-1].after)
        return Way(self.settled.steady.second, deviation, lambda S: self.R @ S[1:, 1:] @ self.R.T)

    def _law(self, x: np.ndarray, sigma: np.ndarray, more: Number = 0.0) -> Law | None:
        """Around a mean, of what is measured of a covariance and more."""
        gap, spread = self.gauge(self.setting.read(x) - self.gauge.target), self.R @ sigma @ self.R.T + more
        return Law.of(gap, spread) if np.isfinite(spread).all() else None


class ClosureCourse(Course):
    """Its rounds, linearised as it does; e is the deviation from where the mean of runs settles."""

    def __init__(self, theory: Closure, settled: Settled):
        self.theory, self.settled, self.read = theory, settled, reading(theory.R)
        self.begun = theory.R @ (theory.origin - settled.moments.x)

    def turns(self, rounds: int) -> Iterator[Turn]:
        theory, done, state = self.theory, 0, None
        for leg in theory._walk(rounds):
            J, state = theory.setting.matrix(leg.begun.x), leg.begun
            for _ in leg.means:
                if done == rounds:
                    return
                before, state, done = state, theory._advance(leg.around, state), done + 1
                yield self._turn(J, before.x, state)
        assert state is not None
        yield from self._tail(state, rounds - done)

    def _turn(self, J: np.ndarray, before: np.ndarray, after: Moments) -> Turn:
        """With the mean as it goes, and deviations from it as J makes them."""
        end = self.settled.moments.x
        moved = (after.x - end) - J @ (before - end)

        def carry(C: np.ndarray) -> np.ndarray:
            return np.concatenate([C[:1], J @ C[1:] + np.outer(moved, C[0])])

        return Turn(self._seen(after.x - end, after.sigma @ self.theory.R.T), carry, math.inf)

    def _seen(self, mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
        """E[(1, e) z'], from the mean of e and the columns Cov(e) R'."""
        z = self.theory.R @ mean
        return np.concatenate([z[None], spread + np.outer(mean, z)])

    def _tail(self, state: Moments, rounds: int) -> Iterator[Turn]:
        """Close to where it settles, by the round linearised there."""
        theory, (end, steady) = self.theory, (self.settled.moments, self.settled.steady)
        carry, R = product(theory.setting, end.x), theory.R
        mean, settled = np.concatenate([[0.0], state.x - end.x])[:, None], end.sigma @ R.T
        still = self._seen(np.zeros(len(end.x)), settled)
        weight = steady.weight(np.zeros(len(R)))
        for spread in fading(steady.second, theory._deviation(state), weight, lambda S: S[1:, 1:] @ R.T, rounds):
            mean = carry(mean)
            seen = self._seen(mean[1:, 0], settled + spread)
            yield Turn(seen, carry, float(np.abs(seen - still).max(initial=0.0)))


def bending(setting: Setting) -> Bending:
    """Which parts of a round are not affine."""
    return Bending(not (setting.problem.linear and setting.straight), not setting.combines_linearly)
