r"""What does a channel that is not linear (clipping, top-k, signs) do to a run? Messages are taken as normal.

Around the present mean and covariance of the state, a message m_k is about N(mu_k, Sigma_k). What arrives of it is
replaced by its best affine approximation under that law, and noise for the rest:

$$ C(m) \approx \bar c_k + A_k (m - \mu_k) + n_k, \quad A_k = \operatorname{Cov}(C(m), m) \Sigma_k^{-1}, \quad
   \operatorname{Cov} n_k = \operatorname{Cov} C(m) - A_k \Sigma_k A_k' $$

drawn where a channel does not tell its moments, exact where it does. With it a round is like any other (`moments.py`);
means and covariances are followed from round to round, and settle together. How good that is, drawn rounds tell.
"""

from __future__ import annotations

import copy
import math
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.channel import Channel
from fedpoint.channel.base import Hub, affine_part
from fedpoint.core.agent import Agent
from fedpoint.core.compiling import fairly_quickly, quickly
from fedpoint.core.inbox import Inbox
from fedpoint.core.precision import double
from fedpoint.core.random import Key, Stream
from fedpoint.core.record import PerAgent, with_leaves
from fedpoint.core.types import Message, State, Tree
from fedpoint.core.wrapped import Wrapped
from fedpoint.engine.session import cast
from fedpoint.problems.oracle import Mine
from fedpoint.theory.coloured import Coloured, followed, move_coloured, past_numbers
from fedpoint.theory.expected_round import Arriving, Numbers, template
from fedpoint.theory.krylov import solve
from fedpoint.theory.moments import Linear, Moving, Spread, agents_moments, linearise, spread_of
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Accuracy, Gauge, Law, Outlook, Path
from fedpoint.theory.sampled import sampled_floor, too_long
from fedpoint.theory.shift import Bending, round_shift
from fedpoint.theory.space import Space, fill, flat, size_of
from fedpoint.theory.steady import NoLimit, Steady, rate_of

PAIRS = 2048  # of messages that are drawn of every agent, m + z and m - z
AHEAD = 32  # rounds of the path that are computed at a time
LONGEST = 4096  # rounds after which it is taken as settled
ITERATIONS = 60  # until mean and covariance solve their equations
SETTLED = 1e-3  # of the root of the floor, by which they may still move
ARRIVED = 1e-3  # of the floor: closer to it than that the path has ended
SMALL = 0.05  # of the root of the floor: a smaller shift than that does not matter
SURE = 4.0  # standard errors
OFTEN, CLOSE = 16, 0.015  # times that rounds are drawn, at most, until the standard error of the floor is so small
LUCK = 0x3E55A6E5


class Affinely(Wrapped):
    """A method whose messages arrive as an affine function of what was sent, and noise of the agent's own."""

    at: Tree  # (d,) of each agent, as all that follows: the mean of what is sent
    mean: Tree  # (d,) of what arrives
    slope: Tree  # (d, d)
    root: Tree  # (d, d) of the noise's covariance

    def local(self, heard: State, memory: State, agent: Agent) -> tuple[Message, State]:
        message, memory = self.inner.local(heard, memory, agent)
        noise = self.root @ agent.normal(self.mean)
        arrived = fill(message, self.mean + self.slope @ (flat(message) - self.at) + noise)
        return arrived, self.inner.acknowledge(memory, message, arrived)


class AtHub(Channel):
    """Of a channel what it does where messages were gathered."""

    inner: Channel

    def release(self, inbox: Inbox, hub: Hub) -> Inbox:
        return self.inner.release(inbox, hub)

    def scatter_hub(self, like: Message, largest: Array) -> Array | None:
        return self.inner.scatter_hub(like, largest)


class Affine(NamedTuple):
    """What arrives: mean + slope (m - at) + noise; of all agents it leads with them."""

    at: Array
    mean: Array
    slope: Array
    noise: Array


class Drawn(NamedTuple):
    """What the law of messages is asked with: the channel, standard normal numbers, and a key of its luck."""

    channel: Channel
    normal: Array  # (draws, d)
    key: Key


class Frame(NamedTuple):
    """All numbers that do not change along the path."""

    numbers: Numbers
    spread: Spread
    drawn: Drawn
    bends: Bending
    coefficients: Array  # of what a hub adds


class Moments(NamedTuple):
    """Mean and covariance of the state."""

    x: Array
    sigma: Array


@double
def suits(setting: Setting) -> bool:
    """Whether a channel's part at the hub is known, and the rest is a function of the message and of luck: nothing is
    kept at agents for later."""
    s = setting
    message = template(s.space, s.numbers)[0]
    channel = s.bound.channel
    kept = jax.tree.leaves(
        jax.eval_shape(lambda: channel.init(jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), message)))
    )
    one = s.numbers.chances[0].shape[0] == 1 and s.lineups is None
    return bool(
        one
        and not kept
        and not s.topology.by_node
        and followed(s)
        and channel.scatter_hub(message, jnp.ones(())) is not None
    )


# What arrives of normal messages.


def arrives(space: Space, frame: Frame, k: Array, mean: Array, sigma: Array) -> Affine:
    """Over all stages of the channel, of messages of agent k with this mean and covariance."""
    like, share = template(space, frame.numbers)[0], frame.numbers.p[k]
    d = mean.size
    here = Affine(mean, mean, jnp.eye(d), jnp.zeros((d, d)))
    for i, stage in enumerate(_stages(frame.drawn.channel)):
        C = here.slope @ sigma @ here.slope.T + here.noise
        second = jnp.zeros((1 + d, 1 + d)).at[0, 0].set(1.0).at[1:, 0].set(here.mean).at[0, 1:].set(here.mean)
        second = second.at[1:, 1:].set(C + jnp.outer(here.mean, here.mean))
        told = stage.scatter(second, like, share)
        if told is None:
            value, B, told = _drawn(space, frame, (stage, i, k), here.mean, C)
        else:
            whole = affine_part(stage, like)
            value, B = whole[1:, 0] + whole[1:, 1:] @ here.mean, whole[1:, 1:]
        here = Affine(mean, value, B @ here.slope, B @ here.noise @ B.T + told)
    return here


def _stages(channel: Channel) -> tuple[Channel, ...]:
    """Channels that numbers pass one after the other; what acts on something packed is no stage by itself."""
    stages = channel.stages()
    packed = next((i for i, stage in enumerate(stages) if not stage.in_place), len(stages))
    return stages if all(stage.lossless for stage in stages[packed + 1 :]) else (channel,)


def _drawn(
    space: Space, frame: Frame, stage: tuple[Channel, int, Array], mean: Array, C: Array
) -> tuple[Array, Array, Array]:
    """Mean, slope and noise of what arrives over one stage, by regression on drawn messages."""
    channel, place, k = stage
    like, numbers, drawn = template(space, frame.numbers)[0], frame.numbers, frame.drawn
    d, own = mean.size, jax.tree.map(lambda a: a[k], numbers.inputs.own)
    L = jnp.linalg.cholesky(C + least_spread(mean, C) ** 2 * jnp.eye(d))
    half = drawn.normal
    z = jnp.concatenate([half, -half])

    def arrived(i: Array, z: Array) -> tuple[Array, Array]:
        stream = Stream(drawn.key.fold(place), i, k)
        agent = Agent(space.oracle, Mine(own, numbers.inputs.common), stream, None, None, True, numbers.p[k])
        message = fill(like, mean + L @ z)
        code, _ = channel.encode(message, channel.init(message), agent)
        promised = flat(channel.expected(message))
        return promised, flat(channel.decode(code, message)) - promised

    promised, more = jax.vmap(arrived)(jnp.arange(len(z)), z)
    (value, G, rest), (moved, bent, luck) = _regressed(z, promised), _sure(z, *_regressed(z, more))
    G, rest = G + bent, rest + luck
    slope = jax.scipy.linalg.solve_triangular(L, G.T, trans=1, lower=True).T
    return value + moved, slope, rest.T @ rest / len(z)


def least_spread(mean: Array, C: Array) -> Array:
    """How far messages are drawn apart at least, so that there is a slope where nothing spreads: there C is
    rounding, of either sign."""
    scale = jnp.sqrt(jnp.maximum(jnp.trace(C), 0.0) / mean.size)
    return 1e-3 * scale + 1e-5 * jnp.linalg.norm(mean) + 1e-12


def _regressed(z: Array, found: Array) -> tuple[Array, Array, Array]:
    """Mean, slope and rest of what is found at z."""
    value = found.mean(0)
    G = jnp.linalg.solve(z.T @ z, z.T @ (found - value)).T
    return value, G, found - value - z @ G.T


def _sure(z: Array, value: Array, G: Array, rest: Array) -> tuple[Array, Array, Array]:
    """The same without what chance may have made of luck whose mean is zero."""
    error = SURE * jnp.sqrt((rest**2).mean(0) / len(z))
    return jnp.where(jnp.abs(value) > error, value, 0.0), jnp.where(jnp.abs(G) > error[:, None], G, 0.0), rest


def affine_channel(space: Space, frame: Frame, state: Moments) -> Affine:
    """What arrives of the messages of a state with this mean and covariance; leads with agents."""
    plain = frame.numbers._replace(inputs=frame.numbers.inputs._replace(channel=Channel()))
    linear = jax.tree.map(lambda a: a[0], linearise(space, plain, frame.spread, state.x, 0))
    size = state.x.size  # without what is past of a hub's noise
    found = agents_moments(space, plain, linear, _bordered(state.sigma[:size, :size]))
    d = size_of(template(space, plain)[0])
    mean = found.mean[:, :d, d]
    sigma = (found.mean + found.noise)[:, :d, :d] - mean[:, :, None] * mean[:, None, :]
    one = partial(arrives, space, frame)
    return lax.map(lambda k: one(*k), (jnp.arange(len(mean)), mean, sigma))


def _bordered(sigma: Array) -> Array:
    """The second moments of (1, deviation), whose mean is zero."""
    return jnp.zeros((1 + len(sigma),) * 2).at[0, 0].set(1.0).at[1:, 1:].set(sigma)


def replaced(numbers: Numbers, drawn: Drawn, found: Affine) -> Numbers:
    """The numbers of rounds in which messages arrive affinely."""
    values, axes = jnp.linalg.eigh((found.noise + jnp.swapaxes(found.noise, 1, 2)) / 2)
    root = axes * jnp.sqrt(jnp.maximum(values, 0.0))[:, None, :]
    leaves = {"at": found.at, "mean": found.mean, "slope": found.slope, "root": root}
    blank = Affinely(numbers.algorithm, **dict.fromkeys(leaves, 0.0))
    method = with_leaves(blank, {name: PerAgent(a) for name, a in leaves.items()})
    return numbers._replace(inputs=numbers.inputs._replace(algorithm=method, channel=Arriving(AtHub(drawn.channel))))


_affine_channel = quickly(affine_channel, static_argnums=0)


@partial(quickly, static_argnums=0)
def _linear(space: Space, frame: Frame, found: Affine, x: Array) -> tuple[Numbers, Linear]:
    numbers = replaced(frame.numbers, frame.drawn, found)
    return numbers, linearise(space, numbers, frame.spread, x, 0)


def _advance(space: Space, frame: Frame, numbers: Numbers, linear: Linear, state: Moments) -> tuple[Array, Array]:
    """Second moments of (1, deviation) after a round, and how far curved fields move its mean."""
    moving, S, n = Moving(numbers, frame.spread, linear), _bordered(state.sigma), state.x.size
    new, agents = move_coloured(space, moving, frame.coefficients, S, n)
    if not any(frame.bends):
        return new, jnp.zeros_like(state.x)
    return new, round_shift(space, moving, agents, state.x, S[: 1 + n, : 1 + n], 0, frame.bends)


_advanced = quickly(_advance, static_argnums=0)


@partial(quickly, static_argnums=(0, 4))
def _moved(space: Space, frame: Frame, numbers: Numbers, linear: Linear, size: int, S: Array) -> Array:
    return move_coloured(space, Moving(numbers, frame.spread, linear), frame.coefficients, S, size)[0]


@partial(fairly_quickly, static_argnums=0)
def _along(space: Space, frame: Frame, R: Array, state: Moments) -> tuple[Moments, tuple[Array, Array]]:
    """The next rounds: what is measured of means, and of covariances."""

    def go(state: Moments, _: None) -> tuple[Moments, tuple[Array, Array]]:
        numbers = replaced(frame.numbers, frame.drawn, affine_channel(space, frame, state))
        linear = linearise(space, numbers, frame.spread, state.x, 0)
        new, shift = _advance(space, frame, numbers, linear, state)
        step, n = new[0, 1:], state.x.size
        sigma = new[1:, 1:] - jnp.outer(step, step)
        after = Moments(state.x + step[:n] + shift, (sigma + sigma.T) / 2)
        return after, (R @ after.x, R @ after.sigma[:n, :n] @ R.T)

    return lax.scan(go, state, None, length=AHEAD)


class Settled(NamedTuple):
    """Mean and covariance that solve their equations, and second moments around them."""

    x: np.ndarray
    sigma: np.ndarray
    steady: Steady


class Messages(Outlook):
    """Messages of a normal law over a channel that is not linear. x: the fixed point of the expected round; origin: the
    state in which runs begin."""

    how = "messages"

    @double
    def __init__(self, setting: Setting, x: np.ndarray, origin: np.ndarray, gauge: Gauge, seed: int):
        self.setting, self.x, self.origin, self.gauge, self.seed = setting, x, origin, gauge, seed
        self.space, self.R = setting.space._replace(alike=False), gauge.of_state(setting.reading)
        d = size_of(template(setting.space, setting.numbers)[0])
        normal = jnp.asarray(np.random.default_rng(LUCK).normal(size=(PAIRS, d)))
        drawn = Drawn(jax.device_put(cast(setting.bound.channel, float)), normal, Key.of(LUCK))
        bends = Bending(not setting.problem.linear, not setting.combines_linearly)
        coefficients = jnp.asarray(setting.bound.channel.noise_coefficients())
        self.frame = Frame(setting.numbers, spread_of(setting), drawn, bends, coefficients)
        self.past = past_numbers(setting)
        self._seen: list[tuple[np.ndarray, np.ndarray]] = []  # of the path so far: R x, R sigma R'
        self._last = Moments(jnp.asarray(origin), jnp.zeros((len(origin) + self.past,) * 2))

    @cached_property
    @double
    def settled(self) -> Settled | None:
        """None where the mean square grows without bound."""
        x, sigma = np.array(self.x), np.zeros((len(self.x) + self.past,) * 2)
        n = len(x)
        for i in range(ITERATIONS):
            found = _affine_channel(self.space, self.frame, Moments(jnp.asarray(x), jnp.asarray(sigma)))
            numbers, linear = _linear(self.space, self.frame, found, jnp.asarray(x))
            like = copy.copy(self.setting)
            like.numbers, like._last = numbers, None
            steady = self._steady(like, linear, x)
            if steady.covariance is None:
                return None
            new = Moments(jnp.asarray(x), jnp.asarray(steady.covariance))
            shift = np.asarray(_advanced(self.space, self.frame, numbers, linear, new)[1])
            with np.errstate(all="ignore"):
                move = solve(like.slope(x), like.step(x) + shift - x, 1e-9)[0]
            size, root = float(np.linalg.norm(self.R @ move)), math.sqrt(steady.variance + 1e-300)
            if not math.isfinite(size):
                break
            before = float(np.vdot(self.R @ sigma[:n, :n], self.R))
            grown = abs(steady.variance - before) / (steady.variance + 1e-300)
            part = 1.0 if i < 10 else 0.5  # what overshoots is damped
            x, sigma = x + part * move, sigma + part * (steady.covariance - sigma)
            if size <= SETTLED * root and grown <= SETTLED:
                return Settled(x, sigma[:n, :n], steady)
        raise NoLimit("means and covariances of messages do not settle together")

    def _steady(self, like: Setting, linear: Linear, x: np.ndarray) -> Steady:
        second = Second(self.space, self.frame, like.numbers, linear, len(x))
        if not self.past:
            return Steady.around(like, x, self.R, second)
        nothing = np.zeros(self.past)
        return Coloured(like, np.concatenate([x, nothing]), second, np.pad(self.R, ((0, 0), (0, self.past))))

    @property
    def limit(self) -> np.ndarray:
        return self.setting.read(self.x if self.settled is None else self.settled.x)

    @property
    def rate(self) -> float:
        return math.inf if self.settled is None else self.settled.steady.rate

    @property
    def variance(self) -> float:
        return math.inf if self.settled is None else float(np.vdot(self.R @ self.settled.sigma, self.R))

    @cached_property
    def own_rate(self) -> float | None:
        """Of the mean, as what arrives follows what is sent once settled."""
        if self.settled is None:
            return None
        return rate_of(self.settled.steady.setting.matrix(self.settled.steady.x[: len(self.x)]))

    @cached_property
    def _gap(self) -> np.ndarray:
        return self.gauge(self.limit - self.gauge.target)

    @cached_property
    def accuracy(self) -> Accuracy | None:
        """Beside drawn rounds from where it settles; None where these would take too long."""
        if self.settled is None:
            return None
        s, end, gap = self.setting, self.settled, self._gap
        rate = math.sqrt(min(end.steady.rate, 1.0))
        if too_long(s, rate):
            return None
        floor, error = max(self.variance + float(gap @ gap), 1e-300), math.inf
        floors: list[float] = []
        ways: list[np.ndarray] = []
        while len(floors) < OFTEN and error > CLOSE:
            found = sampled_floor(s, end.x, self.R, gap, rate, seed=self.seed + len(floors))
            if isinstance(found, str) or not math.isfinite(found.variance):
                return None
            away = self.R @ found.away
            ways.append(away)
            floors.append(found.variance + float((gap + away) @ (gap + away)))
            error = found.error / floor / math.sqrt(len(floors))
        moved = max(float(np.linalg.norm(self.R @ (end.x - self.x))), SMALL * math.sqrt(floor))
        elsewhere = float(np.linalg.norm(np.mean(ways, axis=0))) / moved
        return Accuracy(float(np.mean(floors)) / floor - 1, error, elsewhere, "drawn rounds put")

    # On the way

    @double
    def _walk(self, rounds: int) -> None:
        """Rounds until so many, or until it has arrived."""
        while len(self._seen) < min(rounds, LONGEST) and not self._arrived():
            self._last, (means, spreads) = _along(self.space, self.frame, jnp.asarray(self.R), self._last)
            self._seen += list(zip(np.asarray(means), np.asarray(spreads), strict=True))

    def _arrived(self) -> bool:
        if not self._seen or self.settled is None:
            return False
        floor = self.variance + float(self._gap @ self._gap)
        mean, spread = self._seen[-1]
        away = self._measured(mean)
        return bool(
            abs(away @ away + np.trace(spread) - floor) <= ARRIVED * floor
            and np.linalg.norm(away - self._gap) ** 2 <= ARRIVED * floor
        )

    def _measured(self, mean: np.ndarray) -> np.ndarray:
        """From what is measured from to a mean R x of the state."""
        return self._begun + mean

    @cached_property
    def _begun(self) -> np.ndarray:
        return self.gauge(self.setting.read(self.origin) - self.gauge.target) - self.R @ self.origin

    def _at(self, round: int) -> tuple[np.ndarray, np.ndarray]:
        """The mean's part of the error, and the covariance of what is measured."""
        if round == 0:
            return self._measured(self.R @ self.origin), np.zeros((len(self.R),) * 2)
        self._walk(round)
        if round <= len(self._seen):
            mean, spread = self._seen[round - 1]
            return self._measured(mean), spread
        return self._end

    @cached_property
    def _end(self) -> tuple[np.ndarray, np.ndarray]:
        """The same once settled."""
        if self.settled is None:
            return np.full(len(self.R), np.inf), np.full((len(self.R),) * 2, np.inf)
        return self._gap, self.R @ self.settled.sigma @ self.R.T

    def path(self, rounds: int) -> Path:
        self._walk(rounds)
        each = [self._at(t) for t in range(min(rounds, len(self._seen)) + 1)]
        each += [self._end] * (rounds + 1 - len(each))
        return Path(np.array([float(a @ a) for a, _ in each]), np.array([float(np.trace(C)) for _, C in each]))

    def law(self, round: int | None) -> Law | None:
        if round is None:
            return None if self.settled is None else Law.of(self._gap, self.R @ self.settled.sigma @ self.R.T)
        return Law.of(*self._at(round))


class Second:
    """S -> E[J S J'] of rounds in which messages arrive affinely."""

    def __init__(self, space: Space, frame: Frame, numbers: Numbers, linear: Linear, size: int):
        self.space, self.frame, self.numbers, self.linear, self.size = space, frame, numbers, linear, size

    @double
    def __call__(self, S: np.ndarray) -> np.ndarray:
        return np.asarray(_moved(self.space, self.frame, self.numbers, self.linear, self.size, (S + S.T) / 2))
