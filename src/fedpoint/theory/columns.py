"""How noisy is a large model, and on its way? Floor and curve without any covariance, from bundles of noise columns.

The mean goes in strides (`strides`), and noise moves it where rounds are curved (`moved_mean`). Rounds from the states
at which strides begin have noise of their own: it is drawn there, and what later rounds make of it follows from the
spaces of the bundles at the limit (`bundles`). Between two of these states noise is taken in between, by the mean's
distance to its end.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from fedpoint.core.threads import one_thread
from fedpoint.theory.budget import Late
from fedpoint.theory.bundles import MANY, Bundle, Floor, Kernel, mean_of
from fedpoint.theory.column_law import ColumnLaw
from fedpoint.theory.moved_mean import MovedMean
from fedpoint.theory.noise_columns import Noise
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Accuracy, Gauge, Law, Outlook, Path
from fedpoint.theory.strides import Lost, Stride, Trail, trail_of

BUNDLES, FEW = 16, 4  # at most, and of a model with so many numbers that columns differ little
ENOUGH, NEAR = 0.02, 0.05  # standard error over variance, at which a bundle is the last; of many forecasts of a problem
NODES, FEWER = 8, 3  # states on the way whose noise is drawn, at most; of many forecasts of a problem
FADED = 1e-9  # of a deviation, at which it is forgotten
ENOUGH_ROUNDS, LITTLE = (
    1 << 10,
    1e-4,
)  # over which the noise of one is followed at least: what comes then is known by its rate
FARTHEST = 1 << 13  # rounds over which noise of deviations is followed round by round


class Columns(Outlook):
    """Second moments around the fixed point x, of runs from the state `origin`.

    mean_rate: the factor per round of their mean's deviation from x; None: it is found beside the columns.
    """

    how = "columns"

    def __init__(
        self,
        setting: Setting,
        x: np.ndarray,
        origin: np.ndarray,
        gauge: Gauge,
        mean_rate: float | None = None,
        seed: int = 0,
    ):
        self.setting, self.x, self.origin, self.gauge = setting, np.asarray(x), origin, gauge
        self._known_rate, self.seed = mean_rate, seed
        self._followed = np.zeros(1)  # variances along the path, as far as they were asked for

    @cached_property
    def mean_rate(self) -> float:
        return self.bundles[0].mean_rate if self._known_rate is None else self._known_rate

    @property
    def own_rate(self) -> float:
        return self.mean_rate

    @cached_property
    @one_thread
    def bundles(self) -> list[Bundle]:
        """As many as it takes for a small standard error."""
        found: list[Bundle] = []
        few = self.setting.coarse or len(self.gauge.target) > MANY
        while len(found) < (FEW if few else BUNDLES):
            rated = self._known_rate is None and not found
            bundle = Bundle(self.setting, self.x, self.gauge, self.seed + len(found), rated)
            try:
                _ = bundle.floor
            except Late:
                if not found:
                    raise
                self.setting.budget.leave("more columns of noise, for a smaller standard error")
                break
            found.append(bundle)
            mean = mean_of([b.floor for b in found])
            near = NEAR if self.setting.coarse else ENOUGH
            if not math.isfinite(mean.variance) or mean.error <= near * mean.variance:
                break
        return found

    @cached_property
    def floor(self) -> Floor:
        return mean_of([b.floor for b in self.bundles])

    @cached_property
    def moved(self) -> MovedMean | None:
        """How far noise moves the mean; None where rounds are affine, nothing settles, or it is not asked for."""
        s = self.setting
        if s.coarse or (s.problem.linear and s.straight) or self.floor.variance in (0.0, math.inf):
            return None
        found = MovedMean(s, self.x, self.gauge, self.bundles, self.seed)
        try:
            _ = found.shift
        except Late:
            self.setting.budget.leave("how far noise moves the mean")
            return None
        return found

    @cached_property
    @one_thread
    def limit(self) -> np.ndarray:
        return self.setting.read(self.x if self.moved is None else self.x + self.moved.shift)

    @property
    def limit_error(self) -> float:
        return 0.0 if self.moved is None else self.moved.error

    @property
    def variance(self) -> float:
        return self.floor.variance

    @property
    @one_thread
    def error(self) -> float:
        if self.moved is None:
            return self.floor.error
        return math.hypot(self.floor.error, self.moved.error_from(self._gap))

    @cached_property
    @one_thread
    def accuracy(self) -> Accuracy | None:
        try:
            return None if self.moved is None else self.moved.accuracy(self._gap, self.variance)
        except Late:
            self.setting.budget.leave("how accurate it is")
            return None

    @property
    def _gap(self) -> np.ndarray:
        """From what is measured from to the fixed point, of models."""
        return self.setting.read(self.x) - self.gauge.target

    @cached_property
    def ratio(self) -> float:
        """By how much less noise is made of deviations than made them."""
        return float(np.mean([b.ratio for b in self.bundles]))

    @cached_property
    def rate(self) -> float:
        slow = self.mean_rate**2
        return slow + (1 - slow) * self.ratio

    @one_thread
    def path(self, rounds: int) -> Path:
        variance, target = self._variance(rounds), self.gauge.target
        if self.moved is None:
            return Path(self._mean(rounds, target), variance)
        return Path(self._mean(rounds, target, self.moved.growth(variance / self.variance)), variance)

    @one_thread
    def law(self, round: int | None) -> Law | None:
        if not math.isfinite(self.variance):
            return None
        if self.variance == 0.0:
            gap = self._gap if round is None else self._mean_at(round, np.zeros(2))
            return Law(np.zeros(0), np.zeros(0), float(self.gauge.squares(gap[None])[0]))
        if round is None:
            return self._settled_law.law(self.limit - self.gauge.target)
        variance = self._variance(round)
        moved = np.zeros(2) if self.moved is None else self.moved.growth(variance / self.variance)[-1]
        gap, lasting = self._mean_at(round, moved), self._varying(round)
        within = self._within(round) if lasting == round else None
        return self._settled_law.law(gap, within, float(variance[-1]))

    @cached_property
    def _settled_law(self) -> ColumnLaw:
        return ColumnLaw(self.bundles[0], self.variance)

    def _within(self, round: int) -> np.ndarray:
        """(r, r): the covariance after a round within what the columns reach, without what deviations make of it."""
        noise = np.stack([kernel.inside[0] for kernel in self._kernels])
        C = np.zeros_like(noise[0])
        for share in self._shares(round).T:
            C = self._settled_law.moved(C, np.tensordot(share, noise, 1))
        return C

    def _mean_at(self, round: int, moved: np.ndarray) -> np.ndarray:
        """(d,): the mean model after a round, from what is measured from; moved: how much of each part of its shift."""
        if self._trail is None:
            model = self.setting.path(self.origin, round)[-1]
        else:
            stride = [stride for stride in self._trail.strides if stride.first <= round][-1]
            away = stride.away(min(round - stride.first, self._lasting))[-1]
            model = self.setting.read(stride.x) + away @ stride.models
        return model + moved @ self._parts - self.gauge.target

    # On the way

    @cached_property
    def _trail(self) -> Trail | None:
        try:
            return trail_of(self.setting, self.origin)
        except Lost:
            return None

    def _mean(self, rounds: int, target: np.ndarray, moved: np.ndarray | None = None) -> np.ndarray:
        """(rounds + 1,): what is measured of the mean's distance to a target; moved: how much of each part of its shift
        by noise there is."""
        if self._trail is None:
            models = self.setting.path(self.origin, rounds) - target
            return self.gauge.squares(models if moved is None else models + moved @ self._parts)
        begun = [stride for stride in self._trail.strides if stride.first <= rounds]
        return np.concatenate([self._measured(stride, rounds, target, moved) for stride in begun])[: rounds + 1]

    def _measured(self, stride: Stride, rounds: int, target: np.ndarray, moved: np.ndarray | None) -> np.ndarray:
        """The same after the rounds of one stride, but the last of them, which begins the next."""
        last = rounds if math.isinf(stride.rounds) else min(rounds, stride.first + int(stride.rounds) - 1)
        begun = self.setting.read(stride.x) - target
        settled = min(last - stride.first, self._lasting)
        away = stride.away(settled)
        mix, models = np.concatenate([np.ones((len(away), 1)), away], axis=1), np.concatenate([[begun], stride.models])
        if moved is not None:
            mix = np.concatenate([mix, moved[stride.first : stride.first + len(mix)]], axis=1)
            models = np.concatenate([models, self._parts])
        values = np.maximum(((mix @ self.gauge.gram(models)) * mix).sum(1), 0.0)
        return np.concatenate([values, np.full(last - stride.first - settled, values[-1])])

    @property
    def _parts(self) -> np.ndarray:
        return np.zeros((2, len(self.gauge.target))) if self.moved is None else self.moved.parts

    @property
    def _lasting(self) -> int:
        """Rounds after which a deviation of the mean is forgotten."""
        return int(math.log(FADED) / math.log(min(max(self.mean_rate, 1e-6), 1 - 1e-7))) + 1

    @cached_property
    def _nodes(self) -> list[tuple[int, np.ndarray]]:
        """Rounds and states on the way whose noise is drawn: where strides begin."""
        if self._trail is None:
            return []
        begun = [(stride.first, stride.x) for stride in self._trail.strides]
        kept = np.unique(
            np.round(np.linspace(0, len(begun) - 1, min(FEWER if self.setting.coarse else NODES, len(begun)))).astype(
                int
            )
        )
        return [begun[i] for i in kept]

    @cached_property
    def _kernels(self) -> list[Kernel]:
        """Of the noise at every node, and at the limit."""
        bundle = self.bundles[0]
        try:
            return [*(bundle.kernel_of(Noise(self.setting, x, self.seed)) for _, x in self._nodes), bundle.kernel]
        except Late:
            self.setting.budget.leave("how noise differs on the way: it is taken as that of the end")
            self._nodes = []
            return [bundle.kernel]

    def _variance(self, rounds: int) -> np.ndarray:
        """(rounds + 1,): the variance of what is measured after every round."""
        settled = self._varying(rounds)
        if settled == 0 or self.variance in (0.0, math.inf):
            return np.concatenate([[0.0], np.full(rounds, self.variance)])
        if len(self._followed) <= settled:
            enough = int(math.log(LITTLE) / math.log(min(max(self.rate, 1e-6), 1 - 1e-7))) + 1
            self._followed = self._along(max(settled, self._varying(min(enough, ENOUGH_ROUNDS))))
        found = self._followed[: settled + 1]
        return np.concatenate([found, np.full(rounds - settled, self.variance if settled < rounds else 0.0)])

    def _varying(self, rounds: int) -> int:
        """Of so many rounds, those in which the variance still changes."""
        return min(rounds, int(math.log(FADED) / math.log(min(max(self.rate, 1e-6), 1 - 1e-7))) + 1, FARTHEST)

    def _along(self, rounds: int) -> np.ndarray:
        bundle, kernels = self.bundles[0], self._kernels
        squares = bundle.squares(kernels, rounds)
        more = 1 - bundle.additive.variance / bundle.floor.variance  # of the variance, made of deviations
        scale = self.variance * (1 - more) / self._whole(squares[-1])
        found, shares = np.zeros(rounds + 1), self._shares(rounds)
        for share, kernel in zip(shares, squares, strict=True):
            found[1:] += scale * convolved(share, kernel)
        return renewed(found, more * squares[-1] / self._whole(squares[-1]))

    def _whole(self, squares: np.ndarray) -> float:
        """The sum of a kernel over all rounds: what is beyond those known goes on by the rate."""
        slow = self.mean_rate**2
        return float(squares.sum() + squares[-1] * slow / max(1 - slow, 1e-12))

    def _shares(self, rounds: int) -> np.ndarray:
        """(nodes + 1, rounds): how much of every node's noise a round has; the last node is the limit."""
        at = [first for first, _ in self._nodes]
        away = self._mean(max(rounds, *at, 1), self.setting.read(self.x))
        t = np.arange(rounds)
        shares = np.zeros((len(at) + 1, rounds))
        for i, first in enumerate(at):
            last = at[i + 1] if i + 1 < len(at) else rounds
            inside = t[(t >= first) & (t < last)]
            begun, ended = away[first], away[last] if i + 1 < len(at) else 0.0
            part = np.clip((away[inside] - ended) / max(begun - ended, 1e-300), 0.0, 1.0)
            shares[i, inside], shares[i + 1, inside] = part, 1 - part
        if not at:
            shares[-1] = 1.0
        return shares


def convolved(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(n,): sum_{i <= t} a_i b_(t - i)."""
    size = 1 << (2 * len(a) - 1).bit_length()
    return np.fft.irfft(np.fft.rfft(a, size) * np.fft.rfft(b, size), size)[: len(a)]


def renewed(variance: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """v_t = variance_t + sum_{i < t} kernel_(t - 1 - i) v_i: noise that is made of deviations."""
    if not kernel.any():
        return np.maximum(variance, 0.0)
    v, backwards = np.maximum(variance, 0.0), kernel[::-1]
    for t in range(1, len(v)):
        v[t] += float(backwards[len(kernel) - t :] @ v[:t])
    return v
