r"""What do columns of a round's noise make of the variance, once followed through all rounds?

The variance of the model is sum_t |R J^t q|^2, a mean over the columns q of a round's noise (`noise_columns`), with J
the slope of the expected round (`powers`). Rounds with other slopes than J make more noise of the deviations; columns
of that are followed likewise, and columns of what they make, until little is added.

A few columns are followed through all powers of J. What they reach most, V, is a space in which the mean over all
columns is cheap: exact for participation, over many draws for samples. So the few only have to tell what V leaves out.
The two halves of the columns make each other's V, and the differences tell the standard error.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.compiling import fairly_quickly
from fedpoint.core.precision import double
from fedpoint.theory.expected_round import Numbers
from fedpoint.theory.known import keep_slow, slow_deviation
from fedpoint.theory.noise_columns import Noise
from fedpoint.theory.operator import ROUGH, Setting
from fedpoint.theory.outlook import Gauge
from fedpoint.theory.powers import Apply, Measure, Powers, doubled, summed_directly
from fedpoint.theory.round_maps import expected_slope
from fedpoint.theory.space import Space
from fedpoint.theory.steady import any_deviation, mean_rate

STORED = 1 << 28  # numbers of all bases together
COLUMNS, FEW = 8, 4  # of a bundle, and of one of a model with so many numbers that columns differ little
MANY = 1 << 12
GROUPS = 4  # of columns whose deviations are mixed
MIXED = 4  # draws of a round that make a column of the noise of deviations
SHORTEST, LONGER, LONGEST = 8, 4, 120  # powers of J
AGREE = 5e-3  # of the sum, by which the last of them may have changed it
LEAK = 1e-3  # what powers may lose out of their bases
KEPT = 48  # dimensions of the space that two halves share
ITERATIONS = 24  # of noise that is made of deviations
SMALL = 0.02  # of the sum, at which the rest of them follows from their ratio
KNOWN = 0.01  # of the variance, to which drawn samples should tell it within the spaces
RATED = 0.01  # of what a round leaves off a deviation, by which the last powers may have changed it
NEAR_ONE = 1e-5  # of 1, at which an eigenvalue may be that of something conserved
SLIGHT = 0.05  # ratio of the noise of deviations to that of rounds, up to which the shared spaces tell it


def _slopes(space: Space, numbers: Numbers, x: Array, rows: Array) -> Array:
    return jax.vmap(lambda v: expected_slope(space, numbers, x, v))(rows)


_products = fairly_quickly(_slopes, static_argnums=0)
_products_with_care = jax.jit(_slopes, static_argnums=0)


@double
def products(setting: Setting, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """F'(x) v for rows v, in single precision where models are large."""
    program = _products_with_care if setting.size > ROUGH else _products
    return setting.budget.spend(
        lambda: np.asarray(program(setting.space, setting.rough, jnp.asarray(x), jnp.asarray(rows)))
    )


class Floor(NamedTuple):
    """A variance, and its standard error."""

    variance: float
    error: float


def mean_of(floors: list[Floor]) -> Floor:
    """Of independent ones."""
    each, errors = zip(*floors, strict=True)
    return Floor(float(np.mean(each)), float(np.linalg.norm(errors)) / len(each))


class Bundle:
    """Columns that are followed together, and what they tell of the variance."""

    def __init__(self, setting: Setting, x: np.ndarray, gauge: Gauge, seed: int = 0, rated: bool = False):
        """rated: beside them goes a random deviation, which tells the rate of the mean."""
        self.setting, self.x, self.gauge, self.rated = setting, np.asarray(x), gauge, rated
        self.noise = Noise(setting, self.x, seed)
        fit = STORED // (setting.size * (SHORTEST + 2 * LONGER))
        most = FEW if setting.coarse or len(gauge.target) > MANY else COLUMNS
        self.count = GROUPS * int(np.clip(fit, GROUPS, most) // GROUPS)

    @cached_property
    def _columns(self) -> np.ndarray:
        taken, sampled = self.noise.draw(self.count)
        return taken + sampled

    @cached_property
    def scale(self) -> np.ndarray:
        return self.setting.scales(self.x, self._columns[0])

    def slope(self, rows: np.ndarray) -> np.ndarray:
        """J v for rows v, in scaled numbers."""
        return self.scale * products(self.setting, self.x, rows / self.scale)

    def measure(self, rows: np.ndarray) -> np.ndarray:
        """Inner products of deviations of the state, rows of scaled numbers, as they are measured."""
        return self.gauge.gram(self.setting.readings(rows / self.scale))

    @cached_property
    def _followed(self) -> tuple[Powers, np.ndarray, np.ndarray]:
        """The columns' spaces, inner products, and sums over all powers."""
        columns = self.scale * self._columns
        if not self.rated:
            return follow(self.slope, columns, self.measure)
        slow = slow_deviation(self.setting)
        beside = self.scale * (any_deviation(self.setting, self.x) if slow is None else slow)
        self._all = Powers(self.slope, np.concatenate([columns, beside[None]]))
        self._all.extend(SHORTEST)
        if np.abs(self._all.ritz(SHORTEST)[0]).max() >= 1 and mean_rate(self.setting, self.x) >= 1:
            own = self._all.first(self.count)
            return own, own.gram(self.measure), np.full(self.count, math.inf)
        return follow(self.slope, columns, self.measure, begun=self._all)

    @cached_property
    def mean_rate(self) -> float:
        """The factor per round of the mean's deviation from x: that of the slowest deviation that columns, and the one
        beside them, reach; else as it is found without them."""
        if not (self.rated and np.isfinite(self._followed[2]).all()):
            return mean_rate(self.setting, self.x)
        steps = self._all.steps
        values, vectors = self._all.ritz(steps)
        moving = np.abs(values - 1) > NEAR_ONE
        slowest = np.argmax(np.where(moving, np.abs(values), 0.0))
        rate = float(np.abs(values[slowest]))
        keep_slow(self.setting, vectors[slowest] / self.scale)
        fewer = self._all.ritz(steps - LONGER)[0]
        before = float(np.abs(fewer[np.abs(fewer - 1) > NEAR_ONE]).max(initial=0.0))
        if moving.all() and rate < 1 and abs(rate - before) <= RATED * (1 - rate):
            return rate
        return mean_rate(self.setting, self.x, vectors[slowest] / self.scale if moving.all() else None, rate)

    @property
    def powers(self) -> Powers:
        """The columns' spaces."""
        return self._followed[0]

    @property
    def sums(self) -> np.ndarray:
        """(columns,): what each makes of the variance, over all powers."""
        return self._followed[2]

    @cached_property
    def spaces(self) -> list[Shared]:
        """What either half of the columns reaches most."""
        half = self.count // 2
        return [shared_space(self._followed[0], which, self.measure) for which in (slice(0, half), slice(half, None))]

    def _inside(self, columns: np.ndarray) -> np.ndarray:
        """(columns,): what they make within the space of the other half."""
        half = len(columns) // 2
        return np.concatenate([self.spaces[1].of(columns[:half]), self.spaces[0].of(columns[half:])])

    @cached_property
    def additive(self) -> Floor:
        """What the noise of a round started at x makes of the variance."""
        sums, inside = self._followed[2], self._inside(self.scale * self._columns)
        trust = fitting(inside, sums)
        known, rest = self._known(), sums - trust * inside
        plain = Floor(trust * known.variance + float(rest.mean()), math.hypot(trust * known.error, error_of(rest)))
        by_size = self._by_size(rest, trust * known.variance, trust * known.error)
        return min(plain, by_size, key=lambda floor: floor.error)

    def _by_size(self, rest: np.ndarray, variance: float, error: float) -> Floor:
        """The same, where what columns make outside of the spaces is in proportion to their squares there: the mean of
        these is known. variance, error: of what they make inside."""
        half = self.count // 2
        parts = zip(np.split(self.scale * self._columns, [half]), self.spaces[::-1], strict=True)
        outside = np.concatenate([s.outside(columns) for columns, s in parts])
        if outside.mean() <= 1e-9 * float(((self.scale * self._columns) ** 2).sum(1).mean()):
            return Floor(variance + float(rest.mean()), math.inf)
        ratio, doubt = float(rest.mean() / outside.mean()), 0.0
        if self.noise.sampled:
            columns = self.scale * self.noise.samples
            doubt = error_of(np.mean([s.outside(columns) for s in self.spaces], axis=0))
        return Floor(
            variance + ratio * self.kernel.rest, math.hypot(error, error_of(rest - ratio * outside), ratio * doubt)
        )

    def _known(self) -> Floor:
        """The mean over all columns of what they make within the spaces, a mean over these."""
        taken = 0.0
        if self.noise.by_moments:
            taken = sum(s.trace(self.noise.within(self.scale * s.V)) for s in self.spaces) / len(self.spaces)
        if not self.noise.sampled:
            return Floor(taken, 0.0)
        while True:
            columns = self.scale * self.noise.samples
            values = np.mean([s.of(columns) for s in self.spaces], axis=0)
            found = Floor(taken + float(values.mean()), error_of(values))
            if found.error <= KNOWN * found.variance or not self.noise.more_samples():
                return found

    @cached_property
    def _rounds_of_noise(self) -> list[np.ndarray]:
        """(columns,) each: the sums of the columns, then of the noise that rounds make of the deviations behind them,
        of the noise made of these, ..."""
        powers, _, sums = self._followed
        rng, parts = np.random.default_rng(self.noise.seed), [sums]
        if not self.noise.multiplies or sums.mean() == 0 or not np.isfinite(sums).all():
            return parts
        for _ in range(ITERATIONS):
            columns = self.scale * self._scattered(powers, rng)
            if len(parts) == 1:  # the spaces tell how much that is
                first = self._inside(self.scale * self._columns).mean()
                slight = self._inside(columns) * (sums.mean() / max(float(first), 1e-300))
                if slight.mean() <= SLIGHT * sums.mean():
                    return [*parts, slight]
            powers, _, sums = follow(self.slope, columns, self.measure, powers.steps)
            parts.append(sums)
            if not np.isfinite(sums).all() or sums.mean() <= SMALL * sum(part.mean() for part in parts):
                break
        return parts

    def _scattered(self, powers: Powers, rng: np.random.Generator) -> np.ndarray:
        """(count, n): columns of the noise that rounds make of the deviations behind others, of MIXED draws each."""
        away, moved = powers.spread(rng, MIXED * self.count // GROUPS, GROUPS)
        away, moved = (a.reshape(-1, a.shape[2]) / self.scale for a in (away, moved))
        columns = self.noise.scattered(away, moved)
        signs = rng.choice([-1.0, 1.0], size=len(columns)) / math.sqrt(MIXED)
        return (signs[:, None] * columns).reshape(self.count, MIXED, -1).sum(1)

    @cached_property
    def ratio(self) -> float:
        """By how much less noise is made of deviations than made them; 1 and more: their mean square grows."""
        parts = self._rounds_of_noise
        return 0.0 if len(parts) == 1 else float(parts[-1].mean() / parts[-2].mean())

    @cached_property
    def floor(self) -> Floor:
        """The variance of what is measured, once settled."""
        parts = self._rounds_of_noise
        if not np.isfinite(parts).all() or self.ratio >= 1:
            return Floor(math.inf, 0.0)
        if parts[0].mean() == 0:
            return Floor(0.0, 0.0)
        grouped = [part.reshape(GROUPS, -1).mean(1) for part in parts]
        totals = sum(grouped[:-1], grouped[-1] / (1 - self.ratio))
        factor = float(totals.mean() / grouped[0].mean())
        error = math.hypot(factor * self.additive.error, error_of(totals - factor * grouped[0]))
        return Floor(factor * self.additive.variance, error)

    def spread(self, count: int, seed: int = 0, groups: int = 1) -> np.ndarray:
        """(groups, count, n): deviations of the state, as they are once settled; groups share no column."""
        away, _ = self._followed[0].spread(np.random.default_rng(seed), count, groups)
        grown = self.floor.variance / max(float(self._followed[2].mean()), 1e-300)
        return math.sqrt(grown) * away / self.scale

    # On the way

    @cached_property
    def kernel(self) -> Kernel:
        """Of the noise of a round started at x."""
        return self.kernel_of(self.noise)

    def kernel_of(self, noise: Noise) -> Kernel:
        """Of the noise of rounds started elsewhere."""
        parts = []
        for space in self.spaces:
            V, size = self.scale * space.V, 0.0
            Q = np.zeros((len(V), len(V)))
            if noise.by_moments:
                Q, size = noise.within(V), noise.size(self.scale)
            if noise.sampled:
                columns = self.scale * noise.samples
                inside = columns @ space.V.T
                Q, size = Q + inside.T @ inside / len(columns), size + float((columns**2).sum()) / len(columns)
            parts.append((Q, max(size - float(np.trace(Q)), 0.0)))
        return Kernel([Q for Q, _ in parts], float(np.mean([rest for _, rest in parts])))

    def squares(self, kernels: list[Kernel], rounds: int) -> list[np.ndarray]:
        """(rounds,) for each kernel: E|R J^t q|^2 for t = 0, 1, ..."""
        powers, gram, _ = self._followed
        own = zip(self.spaces, self._other_halves(), range(len(self.spaces)), strict=True)
        found = [space.squares([Q, *(kernel.inside[i] for kernel in kernels)], rounds) for space, Q, i in own]
        seen, inside = np.mean([each[0] for each in found], axis=0), np.mean([each[1:] for each in found], axis=0)
        left = np.maximum(powers.squares(gram, rounds).mean(0) - seen, 0.0)
        rest = left / max(self.kernel.rest, 1e-300)
        return [each + kernel.rest * rest for each, kernel in zip(inside, kernels, strict=True)]

    def _other_halves(self) -> list[np.ndarray]:
        """(r, r) for each space: the covariance in it of the columns that did not make it."""
        columns, half = self.scale * self._columns, self.count // 2
        parts = (columns[half:], columns[:half])
        inside = [part @ space.V.T for part, space in zip(parts, self.spaces, strict=True)]
        return [y.T @ y / len(y) for y in inside]


class Kernel(NamedTuple):
    """The noise of a round: its covariance within the spaces of a bundle, and the square of what is outside."""

    inside: list[np.ndarray]
    rest: float


class Shared(NamedTuple):
    """A space, the slope in it, and what all powers of the slope make of a column within it: its square with W."""

    V: np.ndarray  # (r, n), orthonormal
    H: np.ndarray  # (r, r): rows are (J v)' V'
    gram: np.ndarray  # (r, r): inner products of V as it is measured
    W: np.ndarray  # (r, r)

    def of(self, columns: np.ndarray) -> np.ndarray:
        inside = columns @ self.V.T
        return np.einsum("bi,ij,bj->b", inside, self.W, inside)

    def outside(self, columns: np.ndarray) -> np.ndarray:
        """(columns,): the squares of what they have outside of the space."""
        return (columns**2).sum(1) - ((columns @ self.V.T) ** 2).sum(1)

    def trace(self, Q: np.ndarray) -> float:
        return float((self.W * Q).sum())

    def squares(self, covariances: list[np.ndarray], rounds: int) -> np.ndarray:
        """(covariances, rounds): tr R J^t V' Q V J'^t R' for t = 0, 1, ..., for each Q."""
        every, seen = np.stack(covariances).reshape(len(covariances), -1), self.gram
        out = np.empty((len(covariances), rounds))
        for t in range(rounds):
            out[:, t] = every @ seen.ravel()
            seen = self.H @ seen @ self.H.T
        return out


def error_of(values: np.ndarray) -> float:
    """The standard error of their mean."""
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def fitting(known: np.ndarray, values: np.ndarray) -> float:
    """How much of what is known of values to subtract, so that what is left varies least; between 0 and 1."""
    spread = known - known.mean()
    return float(np.clip(spread @ values / max(float(spread @ spread), 1e-300), 0.0, 1.0))


def shared_space(powers: Powers, which: slice, measure: Measure) -> Shared:
    """What the chosen columns reach most."""
    rows, moved = powers.reached(which)
    values, axes = np.linalg.eigh(rows @ rows.T)
    top = np.argsort(-values)[:KEPT]
    top = top[values[top] > 1e-10 * max(values.max(), 1e-300)]
    mix = (axes[:, top] / np.sqrt(values[top])).T
    V = mix @ rows
    H = (mix @ moved) @ V.T  # rows: (J v)' V
    gram = measure(V)
    W = doubled(H[None], gram[None])[0]
    if not np.isfinite(W).all():  # far from normal: it tells nothing
        H, W = np.zeros_like(H), np.zeros_like(W)
    return Shared(V, H, gram, W)


def follow(
    slope: Apply, columns: np.ndarray, measure: Measure, steps: int = SHORTEST, begun: Powers | None = None
) -> tuple[Powers, np.ndarray, np.ndarray]:
    """Powers until more of them change no sum, inner products, and the sums; direct ones where powers do not tell.

    begun: powers of these columns, and of others beside them that go as far.
    """
    every, most = begun or Powers(slope, columns), int(np.clip(STORED // columns.size - 1, SHORTEST, LONGEST))
    last = None
    while True:
        every.extend(min(steps, most))
        powers = every.first(len(columns))
        gram = powers.gram(measure)
        sums = powers.sums(gram)
        fewer = powers.sums(gram, powers.steps - LONGER) if last is None else last
        agree = np.isfinite(sums).all() and abs(sums.mean() - fewer.mean()) <= AGREE * sums.mean()
        if (agree and powers.leak() <= LEAK) or powers.closed:
            return powers, gram, sums
        if powers.steps >= most:
            return powers, gram, summed_directly(slope, columns, measure, AGREE / 100)
        steps, last = powers.steps + LONGER, sums
