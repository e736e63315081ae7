"""Where does the mean of a run's models end? Where the run does, with noise that falls like one over the rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.arguments import checked_methods
from fedpoint.core.errors import FedpointError, check_count, check_number
from fedpoint.core.numbers import counted
from fedpoint.results.forecast import Forecast
from fedpoint.results.rounds_to import LONGEST, LONGEST_DECAY, Rounds
from fedpoint.theory.bounds import Bound
from fedpoint.theory.outlook import Law, Outlook
from fedpoint.theory.running_mean import RunningMean, averaged


@checked_methods
class MeanForecast(Forecast):
    """The forecast of a method that reads the mean of another's models after `burn_in` rounds.

    run: the forecast of that other, whose limit and bias this has. rate: None, for it falls by no factor per round.
    variance, floor: in the long run, which are 0 and bias^2. long_run: the variance times the rounds that count, once
    there are many. curve, quantile, probability: of the mean itself.
    """

    burn_in: int

    def __init__(self, algorithm: Algorithm, run: Forecast, burn_in: int, followed: Callable[[], Forecast]):
        super().__init__(run.setting, run._how, run.around, run.measure)
        self.run, self.burn_in = run, burn_in
        self._algorithm, self._followed = algorithm, followed  # by linearising anew in every round

    @property
    def algorithm(self) -> Algorithm:
        return self._algorithm

    @property
    def rate(self) -> float | None:
        return None

    @property
    def rate_ms(self) -> float | None:
        return None

    @property
    def pace(self) -> float | None:
        return self.run.rate

    @property
    def diverges(self) -> bool:
        return self.run.diverges

    @property
    def reason(self) -> str:
        return self.run.reason

    @cached_property
    def outlook(self) -> Outlook | str:
        known = self.run.outlook
        if self.diverges or isinstance(known, str):
            return self.reason if self.diverges else known
        if self.run.noiseless:
            return RunningMean(known, self.gauge, self.burn_in, None, self._means)
        course, target = known.course(), known.limit if self.optimum is None else self.gauge.target
        if course is None:
            return "the spread of a running mean needs mean and covariance of the state, round by round"
        return RunningMean(known, replace(self.gauge, target=target), self.burn_in, course)

    @property
    def _end(self) -> np.ndarray | None:
        return self.run._end

    @property
    def noise_by(self) -> str:
        return self.run.noise_by

    def _means(self, rounds: int) -> np.ndarray:
        """Of runs in which nothing is random."""
        return self.measured(self.setting.path(self.origin, rounds) - self.gauge.target)

    @property
    def long_run(self) -> float | None:
        """The variance times the rounds that count, once these are many; None where it is not known."""
        return self.outlook.long_run if isinstance(self.outlook, RunningMean) else None

    @property
    def variance(self) -> float | None:
        known = self.run.variance
        return known if known is None or math.isinf(known) else 0.0

    def curve(self, rounds: int) -> np.ndarray:
        """(rounds + 1,): E|w_t - w*|^2 from the start on, w_t the mean after round t."""
        check_count("rounds", rounds, 0)
        if isinstance(self.outlook, RunningMean):
            return self.outlook.path(rounds).total
        if self.by_node:
            raise FedpointError(f"no curve of a running mean on this network: {self.outlook}")
        return self._followed().curve(rounds)

    def _law(self, rounds: int | None) -> Law:
        if isinstance(self.outlook, RunningMean) or self.by_node or self.diverges:
            return super()._law(rounds)
        if rounds is None:
            raise FedpointError(f"no quantiles in the long run: {self.outlook}. Say after how many rounds")
        return self._followed()._law(rounds)

    def mean_path(self, rounds: int) -> np.ndarray:
        """(rounds + 1, d): the mean over runs of what is read."""
        return averaged(self.run.mean_path(rounds), self.burn_in)

    @property
    def proviso(self) -> str:
        """A round that is abandoned does not count; the forecast counts its model again."""
        abandoned = "as if abandoned rounds counted" if self.setting.moments.merge < 1 else ""
        return ", ".join(words for words in (self.run.proviso, abandoned) if words)

    @property
    def exact(self) -> bool:
        return bool(self.run.exact and not self.proviso)

    def rounds_to(self, target: float) -> Rounds:
        target = check_number("target", target, strict=True)
        if self.diverges:
            return Rounds(math.inf, f"it diverges: {self.reason}")
        rounds, longest = 256, LONGEST if isinstance(self.outlook, RunningMean) else LONGEST_DECAY
        while rounds <= longest:
            below = np.flatnonzero(self.curve(rounds) <= target)
            if len(below):
                return Rounds(int(below[0]))
            if self.bias2 >= target:
                return Rounds(math.inf, f"its bias^2 {self.bias2:.3g} lies above {target:g}")
            rounds *= 8
        return Rounds(math.inf, f"not within {counted(longest, 'round')}: the variance falls like one over the rounds")

    @property
    def closed(self) -> dict[str, float | np.ndarray]:
        return {name: value for name, value in self.run.closed.items() if name in ("fixed_point", "bias")}

    def bounds_after(self, rounds: int) -> Sequence[Bound]:
        return []
