r"""How noisy is a large model? Floor and curve from columns of a round's noise, without any covariance.

The variance of the model is sum_t |R J^t q|^2, a mean over the columns q of a round's noise (`noise_columns`), with J
the slope of the expected round (`powers`). Rounds with other slopes than J make more noise of the deviations; columns
of that are followed likewise, and columns of what they make, until little is added.

A few columns are followed through all powers of J. What they reach most, V, is a space in which the mean over all
columns is cheap: exact for participation, over many draws for samples. So the few only have to tell what V leaves out.
The two halves of the columns make each other's V, and the differences tell the standard error.
"""

from __future__ import annotations

import math
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.precision import double
from fedpoint.theory.expected_round import Numbers
from fedpoint.theory.noise_columns import Noise
from fedpoint.theory.operator import Setting, expected_state
from fedpoint.theory.outlook import Gauge, Law, Outlook, Path
from fedpoint.theory.powers import Apply, Measure, Powers, doubled, summed_directly
from fedpoint.theory.space import Space

STORED = 1 << 28  # numbers of all bases together
COLUMNS = 16  # of a bundle, where they fit
GROUPS = 4  # of columns whose deviations are mixed
MIXED = 4  # draws of a round that make a column of the noise of deviations
BUNDLES = 4  # at most
ENOUGH = 0.02  # standard error over variance, at which a bundle is the last
SHORTEST, LONGER, LONGEST = 8, 4, 120  # powers of J
AGREE = 5e-3  # of the sum, by which the last of them may have changed it
LEAK = 1e-3  # what powers may lose out of their bases
KEPT = 48  # dimensions of the space that two halves share
DRAWS = 128  # columns of samples that are only looked at within it
SEVERAL = 32  # of them at a time
ITERATIONS = 24  # of noise that is made of deviations
SMALL = 0.02  # of the sum, at which the rest of them follows from their ratio


@partial(jax.jit, static_argnums=0)
def _products(space: Space, numbers: Numbers, x: Array, rows: Array) -> Array:
    def slope(v: Array) -> Array:
        return jax.jvp(lambda x: expected_state(space, numbers, x), (x,), (v,))[1]

    return jax.vmap(slope)(rows)


class Floor(NamedTuple):
    """A variance, and its standard error."""

    variance: float
    error: float


class Columns(Outlook):
    """Second moments around the fixed point x, of runs from the state `origin`.

    mean_rate: the factor per round of their mean's deviation from x.
    """

    how = "columns"

    def __init__(
        self, setting: Setting, x: np.ndarray, origin: np.ndarray, gauge: Gauge, mean_rate: float, seed: int = 0
    ):
        self.setting, self.x, self.origin, self.gauge = setting, np.asarray(x), origin, gauge
        self.mean_rate, self.seed = mean_rate, seed

    @cached_property
    def bundles(self) -> list[Bundle]:
        """As many as it takes for a small standard error."""
        found: list[Bundle] = []
        while len(found) < BUNDLES:
            found.append(Bundle(self.setting, self.x, self.gauge, self.seed + len(found)))
            mean = mean_of([b.floor for b in found])
            if not math.isfinite(mean.variance) or mean.error <= ENOUGH * mean.variance:
                break
        return found

    @cached_property
    def floor(self) -> Floor:
        return mean_of([b.floor for b in self.bundles])

    @property
    def limit(self) -> np.ndarray:
        return self.setting.read(self.x)

    @property
    def variance(self) -> float:
        return self.floor.variance

    @property
    def error(self) -> float:
        return self.floor.error

    @cached_property
    def rate(self) -> float:
        slow = self.mean_rate**2
        return slow + (1 - slow) * float(np.mean([b.ratio for b in self.bundles]))

    def path(self, rounds: int) -> Path:
        mean = (self.gauge(self.setting.path(self.origin, rounds) - self.gauge.target) ** 2).sum(1)
        grown = np.mean([b.growth(rounds) for b in self.bundles], axis=0)
        return Path(mean, self.variance * grown)

    def law(self, round: int | None) -> Law | None:
        return None


def mean_of(floors: list[Floor]) -> Floor:
    """Of independent ones."""
    each, errors = zip(*floors, strict=True)
    return Floor(float(np.mean(each)), float(np.linalg.norm(errors)) / len(each))


class Bundle:
    """Columns that are followed together, and what they tell of the variance."""

    def __init__(self, setting: Setting, x: np.ndarray, gauge: Gauge, seed: int = 0):
        self.setting, self.x, self.gauge = setting, np.asarray(x), gauge
        self.noise = Noise(setting, self.x, seed)
        fit = STORED // (setting.size * (SHORTEST + 2 * LONGER))
        self.count = GROUPS * int(np.clip(fit, GROUPS, COLUMNS) // GROUPS)

    @cached_property
    def _columns(self) -> np.ndarray:
        taken, sampled = self.noise.draw(self.count)
        return taken + sampled

    @cached_property
    def scale(self) -> np.ndarray:
        """(n,): numbers of one kind times this: by what a round makes of their noise in what is measured, so that
        controls, whose noise is large and does little, do not hide the model's."""
        blocks = self.setting.blocks()
        if len(blocks) == 1:
            return np.ones(self.setting.size)
        some = self._columns[: min(self.count, 4)]
        scale = np.zeros(self.setting.size)
        for block in blocks:
            part = np.zeros_like(some)
            part[:, block] = some[:, block]
            seen = math.hypot(np.linalg.norm(self._measured(part)), np.linalg.norm(self._measured(self._moved(part))))
            scale[block] = seen / max(float(np.linalg.norm(part)), 1e-300)
        return np.maximum(scale, 1e-6 * scale.max()) / scale.max()

    def slope(self, rows: np.ndarray) -> np.ndarray:
        """J v for rows v, in scaled numbers."""
        return self.scale * self._moved(rows / self.scale)

    def measure(self, rows: np.ndarray) -> np.ndarray:
        """What is measured of deviations of the state, rows of scaled numbers."""
        return self._measured(rows / self.scale)

    @double
    def _moved(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(_products(self.setting.space, self.setting.numbers, jnp.asarray(self.x), jnp.asarray(rows)))

    def _measured(self, rows: np.ndarray) -> np.ndarray:
        return self.gauge(self.setting.readings(rows))

    @cached_property
    def _followed(self) -> tuple[Powers, np.ndarray, np.ndarray]:
        """The columns' spaces, inner products, and sums over all powers."""
        return follow(self.slope, self.scale * self._columns, self.measure)

    @cached_property
    def _additive(self) -> Floor:
        """What the noise of a round started at x makes of the variance."""
        powers, _, sums = self._followed
        half, columns = self.count // 2, self.scale * self._columns
        spaces = [shared_space(powers, which, self.measure) for which in (slice(0, half), slice(half, None))]
        inside = np.concatenate([spaces[1].of(columns[:half]), spaces[0].of(columns[half:])])
        trust = fitting(inside, sums)
        known, rest = self._known(spaces), sums - trust * inside
        return Floor(trust * known.variance + float(rest.mean()), math.hypot(trust * known.error, error_of(rest)))

    @cached_property
    def _rounds_of_noise(self) -> list[np.ndarray]:
        """(columns,) each: the sums of the columns, then of the noise that rounds make of the deviations behind them,
        of the noise made of these, ..."""
        powers, _, sums = self._followed
        rng, parts, each = np.random.default_rng(self.noise.seed), [sums], self.count // GROUPS
        if not self.noise.multiplies:
            return parts
        for _ in range(ITERATIONS):
            deviations = zip(*powers.spread(rng, MIXED * each, GROUPS), strict=True)
            columns = np.concatenate([self._scattered(*group, rng) for group in deviations])
            powers, _, sums = follow(self.slope, self.scale * columns, self.measure, powers.steps)
            parts.append(sums)
            if not np.isfinite(sums).all() or sums.mean() <= SMALL * sum(part.mean() for part in parts):
                break
        return parts

    def _scattered(self, away: np.ndarray, moved: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Columns of the noise that rounds make of deviations, each of MIXED of them with random signs."""
        columns = self.noise.scattered(away / self.scale, moved / self.scale)
        signs = rng.choice([-1.0, 1.0], size=len(columns)) / math.sqrt(MIXED)
        return (signs[:, None] * columns).reshape(-1, MIXED, columns.shape[1]).sum(1)

    @cached_property
    def ratio(self) -> float:
        """By how much less noise is made of deviations than made them; 1 and more: their mean square grows."""
        parts = self._rounds_of_noise
        if len(parts) == 1 or parts[0].mean() == 0:
            return 0.0
        return float(parts[-1].mean() / parts[-2].mean())

    @cached_property
    def floor(self) -> Floor:
        """The variance of what is measured, once settled."""
        parts = self._rounds_of_noise
        if not np.isfinite(parts).all() or self.ratio >= 1:
            return Floor(math.inf, 0.0)
        if parts[0].mean() == 0:
            return Floor(0.0, 0.0)
        parts = [part.reshape(GROUPS, -1).mean(1) for part in parts]
        totals = sum(parts[:-1], parts[-1] / (1 - self.ratio))
        factor = float(totals.mean() / parts[0].mean())
        error = math.hypot(factor * self._additive.error, error_of(totals - factor * parts[0]))
        return Floor(factor * self._additive.variance, error)

    def growth(self, rounds: int) -> np.ndarray:
        """(rounds + 1,): how much of the variance there is after so many rounds from rest."""
        powers, gram, sums = self._followed
        squares = powers.squares(gram, rounds).mean(0)
        return np.minimum(np.concatenate([[0.0], np.cumsum(squares)]) / max(float(sums.mean()), 1e-300), 1.0)

    def _known(self, spaces: list[Shared]) -> Floor:
        """The mean over all columns of what they make within the spaces, a mean over these."""
        taken = 0.0
        if self.noise.by_moments:
            taken = sum(s.trace(self.noise.within(self.scale * s.V)) for s in spaces) / len(spaces)
        if not self.noise.sampled:
            return Floor(taken, 0.0)
        each: list[np.ndarray] = []
        for _ in range(DRAWS // SEVERAL):
            columns = self.scale * self.noise.draw(SEVERAL)[1]
            each.append(np.mean([s.of(columns) for s in spaces], axis=0))
        values = np.concatenate(each)
        return Floor(taken + float(values.mean()), error_of(values))


class Shared(NamedTuple):
    """A space, and what all powers of J make of a column within it: its square with the weight W."""

    V: np.ndarray  # (r, n), orthonormal
    W: np.ndarray  # (r, r)

    def of(self, columns: np.ndarray) -> np.ndarray:
        inside = columns @ self.V.T
        return np.einsum("bi,ij,bj->b", inside, self.W, inside)

    def trace(self, Q: np.ndarray) -> float:
        return float((self.W * Q).sum())


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
    seen = measure(V)
    W = doubled(H[None], (seen @ seen.T)[None])[0]  # of sum_t H'^t G H^t with H' in rows
    return Shared(V, W) if np.isfinite(W).all() else Shared(V, np.zeros_like(W))


def follow(
    slope: Apply, columns: np.ndarray, measure: Measure, steps: int = SHORTEST
) -> tuple[Powers, np.ndarray, np.ndarray]:
    """Powers until more of them change no sum, inner products, and the sums; direct ones where powers do not tell."""
    powers, most = Powers(slope, columns), int(np.clip(STORED // columns.size - 1, SHORTEST, LONGEST))
    last = None
    while True:
        powers.extend(min(steps, most))
        gram = powers.gram(measure)
        sums = powers.sums(gram)
        fewer = powers.sums(gram, powers.steps - LONGER) if last is None else last
        agree = np.isfinite(sums).all() and abs(sums.mean() - fewer.mean()) <= AGREE * sums.mean()
        if (agree and powers.leak() <= LEAK) or powers.closed:
            return powers, gram, sums
        if powers.steps >= most:
            return powers, gram, summed_directly(slope, columns, measure, AGREE / 100)
        steps, last = powers.steps + LONGER, sums
