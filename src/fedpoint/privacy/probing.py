"""What does a mechanism make of chosen updates? Samples of its releases, and what they say of clip and noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.channel.base import Channel, ChannelContext, Hub
from fedpoint.core.agent import Agent
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import gather
from fedpoint.core.precision import double
from fedpoint.core.random import Key, Stream
from fedpoint.core.types import Tree
from fedpoint.privacy.certificate import Law

Mechanism: TypeAlias = Callable[..., Tree]
FAR, FURTHER = 1e2, 1e4  # clips: how long the updates are that a clip must shorten
SURE = 5.0  # standard errors
SAME = 1e-9  # relative to what is compared: equal but for rounding


def of_channel(channel: Channel, seed: int) -> Mechanism:
    """A whole round of a channel with equal weights, a fresh one with every call: the mean that the hub may use, how
    the sum over agents differs from it (with these weights not at all), and how mass and weight differ from 1."""
    rounds = iter(range(1 << 30))

    @jax.jit
    def one(round: jax.Array, updates: jax.Array) -> jax.Array:
        n = len(updates)
        bound = channel.bind(ChannelContext(np.full(n, 1 / n), 1.0, n))
        key = Key.of(seed)

        def sent(k: jax.Array, update: jax.Array) -> jax.Array:
            agent = Agent(None, None, Stream(key, round, k), None, None, True, 1 / n)  # type: ignore[arg-type]
            return bound.decode(bound.encode(update, bound.init(update), agent)[0], update)

        inbox = gather(jax.vmap(sent)(jnp.arange(n), updates), jnp.full(n, 1 / n), jnp.full(n, 1 / n))
        hub = Hub(key.fold(round, 1 << 20).row(), round, jnp.asarray(1 / n))
        used = bound.release(inbox, hub)
        return jnp.concatenate([used.mean, used.total - used.mean, jnp.stack([used.mass - 1, used.weight - 1])])

    @double
    def mechanism(updates: Sequence[np.ndarray]) -> np.ndarray:
        return np.asarray(one(np.int32(next(rounds)), np.stack(updates)))

    return mechanism


@dataclass(frozen=True)
class Probe:
    """A mechanism under examination. like: an update of its shapes. agents: None where it takes one update."""

    mechanism: Mechanism
    like: Tree
    agents: int | None
    clip: float
    calls: int
    seed: int

    @cached_property
    def size(self) -> int:
        return sum(int(np.size(a)) for a in jax.tree.leaves(self.like))

    @cached_property
    def dense(self) -> np.ndarray:
        """A unit vector in which all numbers count the same."""
        return np.random.default_rng(self.seed).choice([-1.0, 1.0], self.size) / math.sqrt(self.size)

    @cached_property
    def sparse(self) -> np.ndarray:
        return np.eye(1, self.size)[0]

    def sample(self, update: np.ndarray, others: np.ndarray | None = None, agents: int | None = None) -> np.ndarray:
        """(calls, D): releases where one agent sends this update, and the others theirs (n - 1, d) or zeros."""
        n = self.agents if agents is None else agents
        if n is None:
            return np.stack([self._released(self._shaped(update)) for _ in range(self.calls)])
        rest = np.zeros((n - 1, self.size)) if others is None else others
        return np.stack(
            [self._released([self._shaped(u) for u in (update, *rest)]) for _ in range(self.calls)]  # made anew
        )

    def _shaped(self, update: np.ndarray) -> Tree:
        leaves, tree = jax.tree.flatten(self.like)
        parts = np.split(np.array(update, float), np.cumsum([np.size(a) for a in leaves])[:-1])
        return jax.tree.unflatten(tree, [p.reshape(np.shape(a)).copy() for p, a in zip(parts, leaves, strict=True)])

    def _released(self, given: Tree) -> np.ndarray:
        out = self.mechanism(given)
        try:
            flat = np.concatenate([np.ravel(np.asarray(a, float)) for a in jax.tree.leaves(out)])
        except (TypeError, ValueError):
            flat = np.zeros(0)
        if not flat.size or not np.isfinite(flat).all():
            raise FedpointError("the mechanism must return the released update: finite numbers, in arrays")
        return flat

    def shift(self, direction: np.ndarray, zero: np.ndarray, moved: np.ndarray) -> Shift:
        """How far releases move, in the direction of the update, or in that in which the first half of them has."""
        half = len(zero) // 2
        away = moved[:half].mean(0) - zero[:half].mean(0)
        found = Shift.between(zero[half:], moved[half:], away / max(float(np.linalg.norm(away)), 1e-300))
        if zero.shape[1] < self.size:
            return found
        along = np.pad(direction, (0, zero.shape[1] - self.size))  # what else is released comes after the update
        return max(found, Shift.between(zero, moved, along), key=Shift.least)


@dataclass(frozen=True)
class Shift:
    """How far releases moved, with its standard error."""

    value: float
    error: float

    @classmethod
    def between(cls, zero: np.ndarray, moved: np.ndarray, direction: np.ndarray) -> Shift:
        a, b = zero @ direction, moved @ direction
        return cls(abs(float(b.mean() - a.mean())), math.sqrt(a.var() / len(a) + b.var() / len(b)))

    def least(self, errors: float = SURE) -> float:
        return max(0.0, self.value - errors * self.error)

    def most(self, errors: float = SURE) -> float:
        return self.value + errors * self.error


def residuals(sample: np.ndarray) -> np.ndarray:
    """What is random in releases of one input."""
    n = len(sample)
    return (sample - sample.mean(0)) * math.sqrt(n / (n - 1))


def is_constant(sample: np.ndarray) -> bool:
    return bool(np.ptp(sample, axis=0).max() <= SAME * max(1e-300, float(np.abs(sample).max())))


def law_of(noise: np.ndarray) -> Law:
    """Which law do standardised residuals follow? By Kolmogorov's distance to the two that are known.

    n numbers of the right law are nearer than 2 / sqrt(n) but for one time in 1,500 (less often, as their scale is
    fitted); and of a normal law the largest of n lies beyond half of sqrt(2 log n) standard deviations.
    """
    from scipy.special import ndtr

    x = np.sort((noise / noise.std(0)).ravel())
    n = len(x)
    steps = np.arange(n + 1) / n

    def distance(law: np.ndarray) -> float:
        return float(max((steps[1:] - law).max(), (law - steps[:-1]).max()))

    laplace = np.where(
        x < 0, 0.5 * np.exp(math.sqrt(2) * np.minimum(x, 0)), 1 - 0.5 * np.exp(-math.sqrt(2) * np.abs(x))
    )
    if distance(ndtr(x)) < 2 / math.sqrt(n):
        return "normal"
    if distance(laplace) < 2 / math.sqrt(n):
        return "laplace"
    return "bounded" if np.abs(x).max() < 0.6 * math.sqrt(2 * math.log(n)) else "other"


def epsilon_at_least(moved: Shift, deviation: float, numbers: int, law: Law, delta: float, rounds: int) -> float:
    """What one agent's shift in noise of this law spends, at the least: the shift from below, the noise, estimated from
    so many numbers, from above."""
    from fedpoint.privacy.accounting import gaussian_epsilon

    shift = moved.least(3.5)
    if shift <= 0:
        return 0.0
    if law in ("none", "bounded"):
        return math.inf
    above = deviation * (1 + 3.5 / math.sqrt((2 if law == "normal" else 0.8) * numbers))
    if law == "normal":
        return gaussian_epsilon(above / (shift * math.sqrt(rounds)), delta)
    if law == "laplace":
        return max(0.0, shift / (above / math.sqrt(2)) + 2 * math.log(1 - delta))
    return 0.0


def told_apart(zero: np.ndarray, moved: np.ndarray, delta: float) -> float:
    """Epsilon at least, whatever the law: thresholds from one half of the releases, counted in the other (Clopper and
    Pearson). It cannot be more than the logarithm of their number."""
    from scipy.special import betaincinv

    half, best = len(zero) // 2, 0.0
    away = moved[:half].mean(0) - zero[:half].mean(0)
    zero, moved = zero @ away, moved @ away
    for level in (0.5, 0.9, 0.99, 1.0):
        threshold = np.quantile(zero[:half], level)
        wrong, right = ((a[half:] > threshold).sum() for a in (zero, moved))
        n, alpha = len(zero) - half, 1e-4
        high = float(betaincinv(wrong + 1, n - wrong, 1 - alpha)) if wrong < n else 1.0
        low = float(betaincinv(right, n - right + 1, alpha)) if right else 0.0
        best = max(best, math.log((low - delta) / high)) if low > delta else best
    return best
