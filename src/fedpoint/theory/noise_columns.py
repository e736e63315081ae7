"""What is random in a round? Its noise as columns: drawn rounds minus the expected one, in two parts.

Of who takes part, everything is known from what every agent would answer, and from the moments of its weight. Of
samples, a column is the drawn round minus the noiseless one **with the same participants**, so that the two parts are
uncorrelated. The mean of q q' over columns q is the covariance of the round.
"""

from __future__ import annotations

import math
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.compiling import fairly_quickly
from fedpoint.core.inbox import Inbox
from fedpoint.core.precision import double
from fedpoint.core.random import NO_LUCK, Stream
from fedpoint.core.record import split_per_agent
from fedpoint.core.types import Tree
from fedpoint.problems.oracle import Mine
from fedpoint.theory.drawn_rounds import After, DrawnRounds, after
from fedpoint.theory.expected_round import Calm, Numbers, start_at
from fedpoint.theory.noise import local_round
from fedpoint.theory.operator import ROUGH, Setting
from fedpoint.theory.space import Space, flat, row_of

SEVERAL, DRAWS = 16, 64  # columns of samples, at a time and at most
MANY = 128  # the same at the limit
NEAR = 0.05  # of their mean square, to which it is known where they are enough
NUDGE = 0.25  # of a deviation, over which slopes of drawn rounds are taken


class Answers(NamedTuple):
    """What every agent's noiseless answer moves: the hub, by its weight v_k and by its being heard, and its memory."""

    by_weight: Array  # (K, n_u)
    by_share: Array  # (K, n_u)
    memory: Array  # (K, n_m)


@partial(fairly_quickly, static_argnums=0)
def _answers(space: Space, numbers: Numbers, x: Array) -> Answers:
    hub, m = start_at(numbers, x.astype(numbers.p.dtype), 0)
    tuned, put = split_per_agent(numbers.algorithm)

    def answer(k: Tree) -> tuple[Tree, Array]:
        own, tuned, row, share = k
        algorithm, mine = put(tuned), Mine(own, numbers.inputs.common)
        agent = Calm(space.oracle, mine, Stream(NO_LUCK, 0, 0), None, None, True, share)
        sent, new = local_round(space, numbers, algorithm, agent, hub, row)
        return sent, row_of(space, algorithm, hub, new) - row

    messages, memory = lax.map(answer, (numbers.inputs.own, tuned, m, numbers.p))
    shares = numbers.p * numbers.heard

    def weighted(weights: Array) -> Tree:
        return jax.tree.map(lambda a: jnp.tensordot(weights, a, axes=1), messages)

    def combine(inbox: Inbox) -> Array:
        return flat(numbers.algorithm.combine(hub, inbox))

    heard = Inbox(weighted(numbers.mean), weighted(shares), shares.sum(), numbers.mean.sum())

    def moved(k: tuple[Tree, Array]) -> tuple[Array, Array]:
        message, p = k
        nothing = jax.tree.map(jnp.zeros_like, message)
        said = jax.tree.map(lambda a: p * a, message)
        zero, one = jnp.zeros_like(p), jnp.ones_like(p)
        by_weight = jax.jvp(combine, (heard,), (Inbox(message, nothing, zero, one),))[1]
        return by_weight, jax.jvp(combine, (heard,), (Inbox(nothing, said, p, zero),))[1]

    by_weight, by_share = lax.map(moved, (messages, numbers.p))
    return Answers(by_weight, by_share, memory)


class Noise:
    """The noise of a round started at x, column by column."""

    def __init__(self, setting: Setting, x: np.ndarray, seed: int = 0):
        self.setting, self.x, self.seed = setting, np.asarray(x), seed
        self.drawn = DrawnRounds.of(setting, seed, rough=True)
        self.drawn_so_far = 0
        self.after = np.asarray(setting.step(x, rough=True))

    @cached_property
    def by_moments(self) -> bool:
        """Who takes part moves the round linearly, and nothing else but samples is random."""
        s = self.setting
        plain = not (any(s.numbers.drawn) or s.settles or s.lossy or s.topology.by_node)
        return plain and s.merges_linearly and float(s.moments.merge) == 1.0

    @property
    def sampled(self) -> bool:
        """Beyond participation there is noise."""
        s = self.setting
        full = s.problem.batch is None and s.problem.local_rows() is not None
        silent = s.exact or full or not s.oracle.noisy
        return not (silent and self.by_moments and not s.lucky)

    @property
    def multiplies(self) -> bool:
        """Drawn rounds have other slopes than the expected one."""
        return self.sampled or not self.setting.timing.everyone

    @cached_property
    @double
    def answers(self) -> Answers:
        return _answers(self.setting.space, self.setting.rough, jnp.asarray(self.x))

    def _after(self, rounds: np.ndarray, states: np.ndarray) -> After:
        """What drawn rounds make of states."""
        return self.setting.budget.spend(lambda: after(self.drawn, rounds, states))

    def _next(self, count: int) -> np.ndarray:
        """Numbers of rounds that were not drawn yet."""
        self.drawn_so_far += count
        return np.arange(self.drawn_so_far - count, self.drawn_so_far)

    def draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(count, n) twice: columns of participation and of samples."""
        states, weight, heard = self._after(self._next(count), np.repeat(self.x[None], count, axis=0))
        column = states - self.after
        if not self.by_moments:
            return np.zeros_like(column), column
        taken = self.participation(weight - np.asarray(self.setting.moments.mean), heard - self.setting.moments.heard)
        return taken, column - taken

    @cached_property
    def samples(self) -> np.ndarray:
        """(draws, n): columns of samples, as many as tell how large they are."""
        # Of models that are not very large these tell the law of single runs, too.
        found = self.draw(DRAWS if self.setting.size <= ROUGH else SEVERAL)[1]
        while len(found) < DRAWS:
            sizes = (self.setting.readings(found) ** 2).sum(1)
            if sizes.std(ddof=1) <= NEAR * math.sqrt(len(sizes)) * sizes.mean():
                break
            found = np.concatenate([found, self.draw(SEVERAL)[1]])
        return found

    def more_samples(self) -> bool:
        """Draw more of them, where models are very large, unless they are many."""
        if self.setting.size <= ROUGH or len(self.samples) >= MANY:
            return False
        self.samples = np.concatenate([self.samples, self.draw(len(self.samples))[1]])
        return True

    def size(self, scale: np.ndarray) -> float:
        """The trace of the covariance of participation, in scaled numbers."""
        by_weight, by_share, memory = (np.asarray(a) for a in self.answers)
        m, (K, n_u) = self.setting.moments, by_weight.shape
        a, b = by_weight * scale[:n_u], by_share * scale[:n_u]
        own = memory * scale[n_u:].reshape(K, -1)
        vv, vs, ss = m.own
        total = vv @ dots(a, a) + 2 * vs @ dots(a, b) + ss @ (dots(b, b) + dots(own, own))
        common = m.factor[:, 0] @ a + m.factor[:, 1] @ b
        apart = (m.factor[:, 1] ** 2) @ dots(own, own)
        return float(total + m.scale @ ((common**2).sum(1) + apart))

    def participation(self, weight: np.ndarray, heard: np.ndarray) -> np.ndarray:
        """(count, n): what weights and presences beyond their means (count, K) make of a round."""
        by_weight, by_share, memory = (np.asarray(a) for a in self.answers)
        hub = weight @ by_weight + heard @ by_share
        return np.concatenate([hub, (heard[:, :, None] * memory).reshape(len(heard), -1)], axis=1)

    def within(self, V: np.ndarray) -> np.ndarray:
        """(r, r): V Q V' of participation, for rows V: exact by the moments of weights."""
        by_weight, by_share, memory = (np.asarray(a) for a in self.answers)
        K, n_u = by_weight.shape
        hub, rest = V[:, :n_u], V[:, n_u:].reshape(len(V), K, -1)
        a, b = by_weight @ hub.T, by_share @ hub.T + np.einsum("rkm,km->kr", rest, memory)
        m = self.setting.moments
        vv, vs, ss = m.own
        cross = np.einsum("k,ki,kj->ij", vs, a, b)
        Q = np.einsum("k,ki,kj->ij", vv, a, a) + cross + cross.T + np.einsum("k,ki,kj->ij", ss, b, b)
        c = m.factor[:, 0] @ a + m.factor[:, 1] @ b
        return Q + np.einsum("r,ri,rj->ij", m.scale, c, c)

    def scattered(self, rows: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """(count, n): (J_xi - J) v for rows v, with slope = J v, and drawn rounds xi, one for each."""
        rounds, way = self._next(len(rows)), NUDGE * rows
        states = self._after(np.tile(rounds, 2), np.concatenate([self.x + way, self.x - way])).states
        return (states[: len(rows)] - states[len(rows) :]) / (2 * NUDGE) - slope


def dots(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Inner products of rows with rows."""
    return np.einsum("ki,ki->k", a, b)
