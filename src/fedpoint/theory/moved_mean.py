r"""How far does noise move the mean of a large model? Its second-order shift, from drawn rounds and no covariance.

The mean of a round from a state that spreads by S, with noise inside the round, is not where the expected round goes:

$$ b = \tfrac12 F''[S] + b_{in}, \qquad \delta = (I - J)^{-1} b. $$

The first part is the mean over deviations z of covariance S (`bundles`) of [R(x + z) + R(x - z)] / 2 - R(x), three
rounds R with the same luck. The second is that of a round from x whose luck is turned from none to all, without what is
linear in it (`dialled`). Groups of columns that share nothing tell the standard error. Rounds from x + z say too how
far they are from linear ones at the distance of the spread: how well a theory of second order knows the floor.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cached_property
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedpoint.core.precision import double
from fedpoint.theory.accuracy import SMALL
from fedpoint.theory.bundles import GROUPS, Bundle, error_of
from fedpoint.theory.dialled import mirrored_inside
from fedpoint.theory.drawn_rounds import DrawnRounds, after
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Accuracy, Gauge
from fedpoint.theory.powers import Powers

PAIRS = (8, 4096)  # of deviations, at least and at most
INSIDE = (4, 4096)  # draws of the noise inside a round
WORK = 1 << 24  # numbers that they may handle, beyond the least
FEWER = 4  # groups whose shifts are told apart where products take long
STEPS, LONGER, LONGEST = 4, 2, 120  # products with J
AGREE, NOISE = 0.01, 0.1  # of the shift, and of what its groups differ by: more products may change it so much
FAR = 1 << 20  # rounds that nothing else draws


class Pairs(NamedTuple):
    """Drawn rounds from x, from x + z and from x - z, with the same luck, for deviations z."""

    rounds: np.ndarray  # (pairs,) their numbers
    z: np.ndarray  # (pairs, n)
    here: np.ndarray
    up: np.ndarray
    down: np.ndarray

    @property
    def bent(self) -> np.ndarray:
        """(pairs, n): the mean of the two, from the round from x."""
        return (self.up + self.down) / 2 - self.here


class MovedMean:
    """The shift of the settled mean, around x, of the noise that bundles of columns follow."""

    def __init__(self, setting: Setting, x: np.ndarray, gauge: Gauge, bundles: list[Bundle], seed: int = 0):
        self.setting, self.x, self.gauge, self.bundles, self.seed = setting, np.asarray(x), gauge, bundles, seed
        self.groups = GROUPS * len(bundles)
        self.program = DrawnRounds.of(setting, seed, rough=True)

    def _each(self, bounds: tuple[int, int], work: int) -> int:
        """How many draws a group has, of rounds that handle so many numbers."""
        return max(int(np.clip(WORK // work, *bounds)) // self.groups, 1)

    @cached_property
    def _drawn(self) -> list[Pairs]:
        """Of every bundle."""
        s, found = self.setting, []
        count = GROUPS * self._each(PAIRS, s.work(s.exact))
        for i, bundle in enumerate(self.bundles):
            z = bundle.spread(count // GROUPS, self.seed, GROUPS).reshape(count, -1)
            rounds = FAR * (1 + i) + np.arange(count)
            found.append(Pairs(rounds, z, *self._after(rounds, np.zeros_like(z), z, -z)))
        return found

    def _after(self, rounds: np.ndarray, *away: np.ndarray) -> list[np.ndarray]:
        """The states after the same rounds, from so far away from x."""
        states = np.concatenate([self.x + z for z in away])
        found = self.setting.budget.spend(lambda: after(self.program, np.tile(rounds, len(away)), states))
        return np.split(found.states, len(away))

    @cached_property
    def between(self) -> np.ndarray:
        """(groups, n): how far the spread between rounds moves the mean of one."""
        return np.concatenate([p.bent.reshape(GROUPS, -1, len(self.x)).mean(1) for p in self._drawn])

    @cached_property
    @double
    def inside(self) -> np.ndarray:
        """(groups, n): how far noise inside a round moves its mean."""
        s, slots = self.setting, self.setting.timing.slots(self.setting.agents)
        if s.silent and not s.lucky:
            return np.zeros((self.groups, len(self.x)))
        few = 2 * slots < s.agents
        each = self._each(INSIDE, s.work(exact=True) * (1 if few else s.agents // slots))
        space, numbers, keys = self.program
        layout = dataclasses.replace(space.layout, mapped=s.space.layout.mapped)  # exact fields take part
        rounds = jnp.asarray(FAR // 2 + np.arange(self.groups * each), jnp.int32)
        space, x = space._replace(layout=layout), jnp.asarray(self.x)
        found = s.budget.spend(lambda: np.asarray(mirrored_inside(space, numbers, keys, x, rounds, few)))
        merged = 1.0 if few else float(s.numbers.merge)
        return merged * found.reshape(self.groups, each, -1).mean(1)

    @cached_property
    def _solved(self) -> np.ndarray:
        """(2 + groups, n): (I - J)^{-1} of the means of both parts, and of groups' sums."""
        groups, inside = self.between + self.inside, self.inside.mean(0)
        fewer = FEWER if self.setting.dear else 4 * FEWER
        if len(groups) > fewer:  # none shares anything with another one
            groups = groups.reshape(fewer, -1, len(self.x)).mean(1)
        found = self._inverse(np.concatenate([[inside], groups]))
        return np.concatenate([[found[1:].mean(0) - found[0], found[0]], found[1:]])

    def _inverse(self, columns: np.ndarray) -> np.ndarray:
        """(I - J)^{-1} of columns, as well as they are known."""
        bundle = self.bundles[0]
        powers = Powers(bundle.slope, bundle.scale * columns)
        while True:
            powers.extend(powers.steps + LONGER if powers.steps else STEPS)
            found, fewer = (powers.inverse(powers.steps - less) / bundle.scale for less in (0, LONGER))
            seen, before = self.setting.readings(found), self.setting.readings(fewer)
            apart = seen[1:] - seen[1:].mean(0) if len(seen) > 1 else 0 * seen
            change, size, noise = (np.linalg.norm(a, axis=1).max() for a in (seen - before, seen, apart))
            if change <= max(AGREE * size, NOISE * noise) or powers.closed or powers.steps >= LONGEST:
                return found

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
        return self.setting.readings(self._solved[2:])

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
        levels, more = zip(*map(self._beyond, self.bundles, self._drawn), strict=True)
        every = np.concatenate(levels)
        bias2 = float(self.gauge.squares((gap + self.parts.sum(0))[None])[0])
        share, floor = variance / (variance + bias2), variance + bias2
        moved = self._inverse(np.mean(more, axis=0)[None])[0]
        shift, beyond = self.gauge.squares(self.setting.readings(np.stack([self.shift, moved])))
        off = math.sqrt(beyond / max(shift, SMALL**2 * floor, 1e-300))
        return Accuracy(share * float(every.mean()), share * error_of(every), off)

    def _beyond(self, bundle: Bundle, pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
        """(pairs,): by how much more variance they make than linear rounds, relative, within a space of a bundle; and
        (n,): what their mean is bent by beyond the second order. Both from rounds at half the distance."""
        up, down = self._after(pairs.rounds, pairs.z / 2, -pairs.z / 2)
        more = (pairs.bent - (2 * (up + down) - 4 * pairs.here)) * 4 / 3
        whole = (pairs.up - pairs.down) / 2
        odd = (whole - (up - down)) * 4 / 3  # of third order
        V, W = bundle.scale * bundle.spaces[0].V, bundle.spaces[0].W
        noise, bent, slope, odd = (a @ V.T for a in (pairs.here - self.x, pairs.bent, whole - odd, odd))
        bent = bent - bent.mean(0)
        level = np.einsum("pi,ij,pj->p", 2 * slope + odd, W, odd) + np.einsum("pi,ij,pj->p", 2 * noise + bent, W, bent)
        made = bundle.spaces[0].trace(bundle.kernel.inside[0]) * bundle.floor.variance
        return level * bundle.additive.variance / max(made, 1e-300), more.mean(0)
