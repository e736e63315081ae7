r"""How far does noise move the mean of a large model? Its second-order shift, from drawn rounds and no covariance.

The mean of a round from a state that spreads by S, with noise inside the round, is not where the expected round goes:

$$ b = \tfrac12 F''[S] + b_{in}, \qquad \delta = (I - J)^{-1} b. $$

The first part is the mean over deviations z of covariance S (`bundles`) of [R(x + z) + R(x - z)] / 2 - R(x), three
rounds R with the same luck. The second is that of a round from x whose luck is turned from none to all, without what is
linear in it (`dialled`). Groups of columns that share nothing tell the standard error. Rounds from x + z say too how
far they are from linear ones at the distance of the spread: how well a theory of second order knows the floor.
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
from fedpoint.core.precision import double
from fedpoint.theory.accuracy import SMALL
from fedpoint.theory.bundles import GROUPS, Bundle, error_of
from fedpoint.theory.dialled import moved_inside
from fedpoint.theory.drawn_rounds import DrawnRounds, drawn_round, wire_of
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Accuracy, Gauge
from fedpoint.theory.powers import Powers
from fedpoint.theory.space import Space

PAIRS = (32, 4096)  # of deviations, at least and at most
INSIDE = (4, 4096)  # draws of the noise inside a round
WORK = 1 << 26  # numbers that they may handle, beyond the least
STEPS, LONGER, LONGEST = 4, 3, 120  # products with J
AGREE, NOISE = 0.01, 0.1  # of the shift, and of what its groups differ by: more products may change it so much
FAR = 1 << 20  # rounds that nothing else draws


class Pairs(NamedTuple):
    """What drawn rounds from x + z and x - z make, for deviations z."""

    bent: Array  # (pairs, n): their mean, from the round from x
    near: Array  # (pairs, n): the same by second differences at half the distance
    seen: Array  # (pairs, 4, r): in a space, the noise of the round from x, bent, its slope times z, and what is odd


@partial(fairly_quickly, static_argnums=0)
def _pairs(space: Space, parts: tuple, x: Array, first: Array, rows: Array, V: Array) -> Pairs:
    drawn = DrawnRounds(space, *parts)
    wire = wire_of(drawn)

    def one(k: tuple[Array, Array]) -> Pairs:
        round, z = k
        move = drawn_round(drawn, round)

        def step(at: Array) -> Array:
            return move(at, wire)[0]

        here, slope = jax.jvp(step, (x,), (z,))
        up, down = step(x + z), step(x - z)
        bent = (up + down) / 2 - here
        near = 2 * (step(x + z / 2) + step(x - z / 2)) - 4 * here
        return Pairs(bent, near, jnp.stack([here - x, bent, slope, (up - down) / 2 - slope]) @ V.T)

    each = (first + jnp.arange(rows.shape[0]), rows)
    return lax.map(one, each) if space.layout.mapped else jax.vmap(one)(each)


class MovedMean:
    """The shift of the settled mean, around x, of the noise that bundles of columns follow."""

    def __init__(self, setting: Setting, x: np.ndarray, gauge: Gauge, bundles: list[Bundle], seed: int = 0):
        self.setting, self.x, self.gauge, self.bundles, self.seed = setting, np.asarray(x), gauge, bundles, seed
        self.groups = GROUPS * len(bundles)

    def _each(self, bounds: tuple[int, int], everyone: bool) -> int:
        """How many draws a group has, of rounds in which everyone works with exact fields, or of drawn ones."""
        s = self.setting
        work = s.work(everyone or s.exact) * (s.agents // s.timing.slots(s.agents) if everyone else 1)
        return max(int(np.clip(WORK // work, *bounds)) // self.groups, 1)

    @cached_property
    @double
    def _drawn(self) -> list[Pairs]:
        """Of every bundle."""
        count, found = self._each(PAIRS, False), []
        for i, bundle in enumerate(self.bundles):
            space, *parts = DrawnRounds.of(self.setting, self.seed)
            rows = bundle.spread(count, self.seed, GROUPS).reshape(GROUPS * count, -1)
            first, V = jnp.int32(FAR * (1 + i)), jnp.asarray(bundle.scale * bundle.spaces[0].V)
            found.append(_pairs(space, tuple(parts), jnp.asarray(self.x), first, jnp.asarray(rows), V))
        return found

    @cached_property
    def between(self) -> np.ndarray:
        """(groups, n): how far the spread between rounds moves the mean of one."""
        return np.concatenate([np.asarray(p.bent).reshape(GROUPS, -1, len(self.x)).mean(1) for p in self._drawn])

    @cached_property
    @double
    def inside(self) -> np.ndarray:
        """(groups, n): how far noise inside a round moves its mean."""
        s, each = self.setting, self._each(INSIDE, True)
        if s.silent and not s.lucky:
            return np.zeros((self.groups, len(self.x)))
        drawn = DrawnRounds.of(s, self.seed)
        found = np.asarray(moved_inside(*drawn, jnp.asarray(self.x), jnp.int32(FAR // 2), self.groups * each, True))
        return float(s.numbers.merge) * found.reshape(self.groups, each, -1).mean(1)

    @cached_property
    def _solved(self) -> np.ndarray:
        """(3 + groups, n): (I - J)^{-1} of the means of both parts, of what is not of second order, of groups' sums."""
        bundle = self.bundles[0]
        groups = self.between + self.inside
        if len(self.bundles) > 4:
            groups = groups.reshape(len(self.bundles), GROUPS, -1).mean(1)  # a bundle shares nothing with another one
        more = np.mean([np.asarray(pairs.bent - pairs.near).mean(0) for pairs in self._drawn], axis=0) * 4 / 3
        columns = np.concatenate([[self.between.mean(0), self.inside.mean(0), more], groups])
        powers, steps, before = Powers(bundle.slope, bundle.scale * columns), STEPS, None
        while True:
            powers.extend(steps)
            found = powers.inverse() / bundle.scale
            seen = self.setting.readings(found)
            if before is not None:
                apart = seen[3:] - seen[3:].mean(0)
                change, size, noise = (np.linalg.norm(a, axis=1).max() for a in (seen - before, seen, apart))
                if change <= max(AGREE * size, NOISE * noise) or powers.closed or steps >= LONGEST:
                    return found
            steps, before = steps + LONGER, seen

    @cached_property
    def shift(self) -> np.ndarray:
        """(n,): of the settled mean of the state."""
        return self._solved[:2].sum(0)

    @cached_property
    def parts(self) -> np.ndarray:
        """(2, d): shifts of the model by the spread between rounds, and by noise inside them."""
        return self.setting.readings(self._solved[:2])

    def growth(self, spread: np.ndarray) -> np.ndarray:
        """(rounds + 1, 2): how much of either part there is after each round; spread: (rounds + 1,) of the settled one.

        In a round, y + b - (I - J) y as y's own mean factor tells it.
        """
        away, made = self._solved[:2], (self.between.mean(0), self.inside.mean(0))
        faded = np.array([1 - float(y @ b) / max(float(y @ y), 1e-300) for y, b in zip(away, made, strict=True)])
        faded = np.clip(faded, 0.0, 1.0)
        out, drive = np.zeros((len(spread), 2)), np.stack([spread, np.ones_like(spread)], axis=1)
        for t in range(1, len(out)):
            out[t] = faded * out[t - 1] + (1 - faded) * drive[t - 1]
        return out

    @cached_property
    def _groups(self) -> np.ndarray:
        """(groups, d): shifts of the model that share nothing."""
        return self.setting.readings(self._solved[3:])

    @cached_property
    def error(self) -> float:
        """The standard error of the shift: the root of the mean square, as it is measured."""
        away = self._groups - self._groups.mean(0)
        return math.sqrt(float(self.gauge.squares(away).sum()) / (len(away) - 1) / len(away))

    def error_from(self, gap: np.ndarray) -> float:
        """The standard error of what is measured of gap + shift; gap: from a target to x, of models."""
        return error_of(self.gauge.squares(gap + self._groups))

    def accuracy(self, gap: np.ndarray, variance: float) -> Accuracy:
        """How rounds at the distance of the spread differ from those of second order; gap: as before."""
        levels = np.concatenate([self._excess(*pair) for pair in zip(self.bundles, self._drawn, strict=True)])
        bias2 = float(self.gauge.squares((gap + self.parts.sum(0))[None])[0])
        share, floor = variance / (variance + bias2), variance + bias2
        moved, beyond = self.gauge.squares(self.setting.readings(np.stack([self.shift, self._solved[2]])))
        shift = math.sqrt(beyond / max(moved, SMALL**2 * floor, 1e-300))
        return Accuracy(share * float(levels.mean()), share * error_of(levels), shift)

    def _excess(self, bundle: Bundle, pairs: Pairs) -> np.ndarray:
        """(pairs,): by how much more variance they make than linear rounds, relative, within a space of a bundle."""
        noise, bent, slope, odd = np.moveaxis(np.asarray(pairs.seen), 1, 0)
        bent, W = bent - bent.mean(0), bundle.spaces[0].W
        level = np.einsum("pi,ij,pj->p", 2 * slope + odd, W, odd) + np.einsum("pi,ij,pj->p", 2 * noise + bent, W, bent)
        whole = bundle.spaces[0].trace(bundle.kernel.inside[0]) * bundle.floor.variance
        return level * bundle.additive.variance / max(whole, 1e-300)
