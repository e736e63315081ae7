r"""Where does the mean of noisy, curved runs go? Mean and covariance followed together, both taken at the present mean.

$$ m^+ = F_0(m) + b(m, S), \qquad S^+ = E[J_\xi(m) S J_\xi(m)'] + \operatorname{Cov} R(m, \xi), $$

b the second-order shift (`shift.py`). Once settled both solve the same equations. On the way the round is linearised
anew whenever the mean has moved or the spread has changed; close to the end the deviation from the settled moments
decays by the round linearised there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.precision import double
from fedpoint.core.types import Number
from fedpoint.theory import accuracy
from fedpoint.theory.expected_round import Numbers, expected, start_at
from fedpoint.theory.krylov import Krylov, solve
from fedpoint.theory.moments import (
    Linear,
    Moving,
    Nodes,
    Spread,
    linearise,
    linearise_nodes,
    move,
    move_nodes,
    spread_of,
)
from fedpoint.theory.operator import Setting, models_at
from fedpoint.theory.outlook import Accuracy, Gauge, Law, Outlook, Path
from fedpoint.theory.shift import Bending, nodes_shift, round_shift
from fedpoint.theory.space import Space, flat
from fedpoint.theory.steady import NoLimit, Steady, decay

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
    R: Array  # |R x|^2 is what is measured of a deviation of the state


class Moments(NamedTuple):
    """Mean and covariance of the state."""

    x: Array
    sigma: Array


class Around(NamedTuple):
    """The round linearised at a mean, and the shift that the covariance there makes of it."""

    linear: Linear | Nodes
    shift: Array


def linear_at(space: Space, frame: Frame, x: Array, round: Number) -> Linear | Nodes:
    if frame.spread is None:
        return linearise_nodes(space, frame.numbers, x)
    return linearise(space, frame.numbers, frame.spread, x, round)


def moved(space: Space, frame: Frame, linear: Linear | Nodes, S: Array) -> Array:
    """The second moments of (1, deviation) after a round."""
    if isinstance(linear, Nodes):
        return move_nodes(space, frame.numbers, linear, S)
    assert frame.spread is not None
    return move(space, Moving(frame.numbers, frame.spread, linear), S)


def shift_at(space: Space, frame: Frame, linear: Linear | Nodes, x: Array, sigma: Array, round: Number) -> Array:
    if isinstance(linear, Nodes):
        return nodes_shift(space, frame.numbers, linear, x, bordered(sigma))
    assert frame.spread is not None
    return round_shift(space, frame.numbers, frame.spread, linear, x, bordered(sigma), round, frame.bends)


def bordered(sigma: Array) -> Array:
    """The second moments of (1, deviation), whose mean is zero."""
    return jnp.zeros((1 + len(sigma),) * 2).at[0, 0].set(1.0).at[1:, 1:].set(sigma)


def advance(space: Space, frame: Frame, around: Around, state: Moments, round: Number) -> Moments:
    """One round: the mean by the expected round itself, the covariance by the linearised one."""
    hub, m = expected(space, frame.numbers, *start_at(frame.numbers, state.x, round), round)
    new = moved(space, frame, around.linear, bordered(state.sigma))
    step = new[0, 1:]
    sigma = new[1:, 1:] - jnp.outer(step, step)
    return Moments(jnp.concatenate([flat(hub), m.ravel()]) + around.shift, (sigma + sigma.T) / 2)


_linear = jax.jit(linear_at, static_argnums=0)
_shifted = jax.jit(shift_at, static_argnums=0)
_second = jax.jit(moved, static_argnums=0)


@partial(jax.jit, static_argnums=0)
def _stretch(
    space: Space, frame: Frame, around: Around, far: Array, begun: Moments, first: Array, most: Array
) -> tuple[Array, Moments, Array, Array]:
    """(rounds, moments, models, variances): on until the mean has moved by `far`, or the spread has changed."""
    R = frame.R

    def variance(state: Moments) -> Array:
        return jnp.vdot(R @ state.sigma, R)

    before = variance(begun)

    def near(carry: tuple) -> Array:
        done, state, _, _ = carry
        size = variance(state)
        same = (size <= GROWN * before) & (before <= GROWN * size)
        return (done < most) & ((done == 0) | (same & (jnp.sum((R @ (state.x - begun.x)) ** 2) <= far**2)))

    def go(carry: tuple) -> tuple:
        done, state, models, variances = carry
        state = advance(space, frame, around, state, first + done)
        models = models.at[done].set(models_at(space, frame.numbers, state.x))
        return done + 1, state, models, variances.at[done].set(variance(state))

    like = models_at(space, frame.numbers, begun.x)
    carry = jnp.int32(0), begun, jnp.zeros((STRETCH, like.size)), jnp.zeros(STRETCH)
    return lax.while_loop(near, go, carry)


@partial(jax.jit, static_argnums=(0, 4))
def _drifting(space: Space, frame: Frame, shift: Array, x: Array, rounds: int) -> tuple[Array, Array]:
    """The mean with a shift that stays: the state after so many rounds, and the models after each."""

    def go(x: Array, _: None) -> tuple[Array, Array]:
        hub, m = expected(space, frame.numbers, *start_at(frame.numbers, x, 0), 0)
        x = jnp.concatenate([flat(hub), m.ravel()]) + shift
        return x, models_at(space, frame.numbers, x)

    return lax.scan(go, x, None, length=rounds)


class Settled(NamedTuple):
    """The moments that solve the closure's equations, the round linearised there, and second moments around it."""

    moments: Moments
    around: Around
    steady: Steady


class Leg(NamedTuple):
    """A part of the path: from a round on, models and variances after each of its rounds, and the moments behind it."""

    first: int
    models: np.ndarray
    variances: np.ndarray
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
        self.R = gauge.of_state(setting.reading)
        self.frame = Frame(setting.numbers, spread, bending(setting), jnp.asarray(self.R))

    # Once settled

    def _steady(self, linear: Linear | Nodes, x: np.ndarray) -> Steady:
        @double
        def second(S: np.ndarray) -> np.ndarray:
            return np.asarray(_second(self.space, self.frame, linear, (S + S.T) / 2))

        return Steady.around(self.setting, x, self.R, second)

    @cached_property
    @double
    def settled(self) -> Settled | None:
        """None where the mean square grows without bound."""
        x = jnp.asarray(self.x)
        for _ in range(ITERATIONS):
            linear = self._linear(x)
            steady = self._steady(linear, np.asarray(x))
            if steady.covariance is None:
                return None
            here = Moments(x, jnp.asarray(steady.covariance))
            around = Around(linear, _shifted(self.space, self.frame, linear, *here, jnp.int32(0)))
            with np.errstate(all="ignore"):
                left = self.setting.step(np.asarray(x)) + np.asarray(around.shift) - np.asarray(x)
                correction = solve(self.setting.slope(np.asarray(x)), left, 1e-9)[0]
            size = float(np.linalg.norm(self.R @ correction))
            if not math.isfinite(size):
                break
            if size <= SETTLED * math.sqrt(steady.variance + 1e-300):
                return Settled(here, around, steady)
            x = x + correction
        raise NoLimit("mean and covariance do not settle together: the noise is too large for a second-order theory")

    def _linear(self, x: Array | np.ndarray, round: int = 0) -> Linear | Nodes:
        return _linear(self.space, self.frame, jnp.asarray(x), jnp.int32(round))

    def _around(self, state: Moments, round: int = 0) -> Around:
        linear = self._linear(state.x, round)
        return Around(linear, _shifted(self.space, self.frame, linear, *state, jnp.int32(round)))

    @property
    def limit(self) -> np.ndarray:
        return self.setting.read(self.x if self.settled is None else np.asarray(self.settled.moments.x))

    @property
    @double
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
        x, sigma = (np.asarray(a) for a in self.settled.moments)
        gap = self.gauge(self.limit - self.gauge.target)
        here = accuracy.Settled(x, sigma, self.settled.steady.source[1:, 1:])
        return accuracy.accuracy_of(self.setting, here, self.R, gap, self.variance + float(gap @ gap))

    # On the way

    @cached_property
    @double
    def _legs(self) -> list[Leg]:
        """Of the path so far; the first is empty, and is where it begins."""
        d = len(self.gauge.target)
        begun = Moments(jnp.asarray(self.origin), jnp.zeros((len(self.origin),) * 2))
        return [Leg(0, np.zeros((0, d)), np.zeros(0), begun)]

    def _walk(self, rounds: int) -> Iterator[Leg]:
        """Parts of the path until `rounds`, or until it is so close to where it settles that its tail is known."""
        at = 0
        while True:
            if at == len(self._legs):
                self._legs.append(self._next(self._legs[-1]))
            leg = self._legs[at]
            yield leg
            if leg.first + len(leg.models) >= rounds or self._arrived(leg):
                return
            at += 1

    @double
    def _next(self, leg: Leg) -> Leg:
        first = leg.first + len(leg.models)
        around = self._around(leg.after, first)
        done, after, models, variances = _stretch(
            self.space, self.frame, around, self._far, leg.after, jnp.int32(first), jnp.int32(STRETCH)
        )
        count = int(done)
        return Leg(first, np.asarray(models)[:count], np.asarray(variances)[:count], after)

    @cached_property
    def _far(self) -> float:
        end = self.x if self.settled is None else self.settled.moments.x
        way = float(np.linalg.norm(self.R @ (self.origin - np.asarray(end))))
        return MOVED * max(way, math.sqrt(self.variance) if self.settled is not None else 0.0)

    def _arrived(self, leg: Leg) -> bool:
        if self.settled is None:
            return False
        away = float(np.linalg.norm(self.R @ (np.asarray(leg.after.x) - np.asarray(self.settled.moments.x))))
        spread = float(np.vdot(self.R @ np.asarray(leg.after.sigma), self.R))
        return away <= self._far and self.variance <= GROWN * spread and spread <= GROWN * self.variance

    def path(self, rounds: int) -> Path:
        models, variances = [self.setting.read(self.origin)[None]], [np.zeros(1)]
        for leg in self._walk(rounds):
            models.append(leg.models)
            variances.append(leg.variances)
        done = leg.first + len(leg.models)
        if done < rounds:
            more = self._tail(leg.after, rounds - done)
            models.append(more[0])
            variances.append(more[1])
        mean = self.gauge(np.concatenate(models)[: rounds + 1] - self.gauge.target)
        return Path((mean**2).sum(1), np.concatenate(variances)[: rounds + 1])

    @double
    def _tail(self, state: Moments, rounds: int) -> tuple[np.ndarray, np.ndarray]:
        """Models and variances of the next rounds, close to where it settles."""
        assert self.settled is not None
        end, models, x = self.settled, [], state.x
        for _ in range(0, rounds, STRETCH):
            x, part = _drifting(self.space, self.frame, end.around.shift, x, STRETCH)
            models.append(np.asarray(part))
        W = end.steady.weight(np.zeros(len(self.R)))
        away = decay(end.steady.second, self._deviation(state), W, rounds)[1:]
        return np.concatenate(models)[:rounds], self.variance + away

    def _deviation(self, state: Moments) -> np.ndarray:
        """Of covariances from the settled ones, bordered by zeros."""
        assert self.settled is not None
        S = np.zeros((len(self.x) + 1,) * 2)
        S[1:, 1:] = np.asarray(state.sigma) - np.asarray(self.settled.moments.sigma)
        return S

    @double
    def moments_at(self, round: int) -> Moments:
        """Mean and covariance of the state after a round."""
        *_, leg = self._walk(round)
        first = leg.first if leg.first + len(leg.models) > round else leg.first + len(leg.models)
        state = leg.after
        if first == leg.first and len(leg.models):  # in the middle of a leg: again from its beginning
            before = self._legs[self._legs.index(leg) - 1].after
            around, count = self._around(before, first), jnp.int32(round - first)
            state = _stretch(self.space, self.frame, around, jnp.inf, before, jnp.int32(first), count)[1]
            return state
        if first == round:
            return state
        end = self.settled
        assert end is not None
        left, x = round - first, state.x
        while left:
            count = min(left, STRETCH)
            x = _drifting(self.space, self.frame, end.around.shift, x, count)[0]
            left -= count
        away = Krylov(end.steady.second, self._deviation(state)).power(round - first)
        return Moments(x, np.asarray(end.moments.sigma) + away[1:, 1:])

    def law(self, round: int | None) -> Law | None:
        if round is None:
            if self.settled is None:
                return None
            state = self.settled.moments
        else:
            state = self.moments_at(round)
        gap = self.gauge(self.setting.read(np.asarray(state.x)) - self.gauge.target)
        return Law.of(gap, self.R @ np.asarray(state.sigma) @ self.R.T)


def bending(setting: Setting) -> Bending:
    """Which parts of a round are not affine."""
    return Bending(not (setting.problem.linear and setting.straight), not setting.combines_linearly)
