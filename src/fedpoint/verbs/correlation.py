r"""Which noise that is taken back later costs least? Coefficients for this problem, from forecasts.

Noise $c * \xi$ hides T rounds as well as fresh noise hides one release if its multiplier is that release's, times the
sensitivity of $1/c(x)$ (`privacy/accounting.py`). The more is taken back, the more of it is needed, and the less of it
stays in directions in which the model forgets slowly: the spectrum of the round decides. What noise adds to the error
after T rounds is a quadratic form of the coefficients, $\sum_j |\sum_i c_i r_{j-i}|^2$ with $r_j$ what is left of a
round's noise j rounds later, so that a few forecasts tell it for all coefficients $c(x) = (1 - a x)(1 - b x)$.

Agents that take part in turn have no expected round; the spectrum is then that of rounds in which everyone does, with
the noise that turns need.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import reduce
from typing import Unpack

import numpy as np

from fedpoint.channel.base import Channel
from fedpoint.channel.chain import Chain
from fedpoint.channel.clip import Clip
from fedpoint.channel.correlated import Correlated
from fedpoint.channel.gaussian import Gaussian
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError, check_count, check_number
from fedpoint.core.kinds import Whole
from fedpoint.experiment import Experiment
from fedpoint.privacy import Privacy
from fedpoint.privacy.accounting import account_of, gaussian_epsilon, sensitivity, uncovered
from fedpoint.privacy.spent import check_delta, least_noise
from fedpoint.problems.base import Problem
from fedpoint.verbs.forecast import prepare
from fedpoint.verbs.plan.private import LOUDEST, Assumed
from fedpoint.verbs.run import MethodOptions, as_experiment

FORECAST: dict[int, list[tuple[float, ...]]] = {
    1: [(0.0,), (0.3,), (0.6,)],
    2: [(0.0, 0.0), (0.3, 0.0), (0.6, 0.0), (0.3, 0.3), (0.6, 0.3), (0.45, 0.1)],
}
GRID = np.linspace(0.0, 0.98, 50)  # of a and b


@checked
def correlated(
    algorithm: Algorithm | Experiment,
    problem: Problem | None = None,
    *,
    privacy: Privacy,
    rounds: Whole,
    clip: float = 1.0,
    terms: Whole = 2,
    **options: Unpack[MethodOptions],
) -> Channel:
    r"""Find the channel [Clip, noise] that meets a privacy target with the least forecast error after so many rounds.

    Args:
        algorithm: a method, for instance `fp.FedAvg(step=0.1)`, or an `fp.Experiment`, then without a problem.
        problem: from `fp.problems`, or your own.
        privacy: what all rounds together may spend.
        rounds: of the run that it is for.
        clip: norm to which messages are clipped. The forecast takes it that messages are not longer.
        terms: how many coefficients after the first the noise may have: 1 or 2.
        options: as in `fp.Experiment`. Participations must be bounded: everyone, or a scheme that tells `rounds_apart`.

    The forecast looks at the problem's data, which the account of privacy does not count: choose on public data of the
    same kind. Where fresh noise is best, the channel is `fp.channel.Gaussian`.

    >>> import fedpoint as fp
    >>> flat = fp.problems.Quadratic(0.1, [[0.0]] * 20)
    >>> channel = fp.correlated(fp.FedAvg(step=0.1), flat, privacy=fp.Privacy(2.0, 1e-5), rounds=20, terms=1)
    >>> type(channel.links[1]).__name__
    'Gaussian'
    """
    check_count("rounds", rounds, 1)
    check_number("clip", clip, strict=True)
    if terms not in FORECAST:
        raise FedpointError(f"terms must be 1 or 2, got {terms}")
    experiment = as_experiment(algorithm, problem, options)
    check_delta(privacy.delta, experiment.problem.agents)
    return Chain((Clip(clip), Search(experiment, privacy, int(rounds), clip, int(terms)).best()))


class Search:
    """Forecast errors of noises that all spend the same."""

    def __init__(self, experiment: Experiment, privacy: Privacy, rounds: int, clip: float, terms: int) -> None:
        self.experiment, self.rounds, self.clip, self.terms = experiment, rounds, clip, terms
        account_of(experiment.replace(channel=[Clip(clip), Correlated(1.0, coefficients=0.5)]))  # or it is refused
        timing, agents = experiment.bind().timing, experiment.problem.agents
        apart, scale = timing.rounds_apart(agents), timing.weight_scale(experiment.problem.weights)
        assert apart is not None and scale is not None  # accounted, with fixed weights
        self.apart, self.scale = apart, float(scale)
        # The multiplier with which one release spends the target.
        self.alone = least_noise(lambda z: gaussian_epsilon(z, privacy.delta), privacy.epsilon, LOUDEST)
        fresh = Chain((Clip(clip), Gaussian(1.0)))
        self.fresh = not uncovered(fresh, experiment.timing, agents)  # whether noise that is never taken back may do

    def multiplier(self, c: np.ndarray) -> float:
        """As much as the target asks for."""
        return self.alone * sensitivity(tuple(c), self.rounds, self.apart)

    def best(self) -> Gaussian:
        form, least, found = self.form(), math.inf, np.ones(1)
        for parts in itertools.product(GRID, repeat=self.terms):
            if sum(parts) > 1 or sorted(parts, reverse=True) != list(parts) or (max(parts) == 0 and not self.fresh):
                continue  # 1/c(x) would not fall, or this is seen in another order, or is not accounted
            c = coefficients(parts)
            error = self.multiplier(c) ** 2 * float(products(c) @ form)
            if error < least:
                least, found = error, c
        z, series = self.multiplier(found), tuple(float(x) for x in np.trim_zeros(found.round(12), "b"))
        return Correlated(z, coefficients=series) if len(series) > 1 else Gaussian(z)

    def form(self) -> np.ndarray:
        """What noise of multiplier 1 adds to the error after all rounds, over the products of its coefficients."""
        rows = [coefficients(parts) for parts in FORECAST[self.terms]]
        added = np.array([self._forecast(Correlated(self.scale, coefficients=tuple(map(float, c)))) for c in rows])
        base = self._forecast(None)
        return np.linalg.solve(np.stack([products(c) for c in rows]), added - base)

    def _forecast(self, noise: Correlated | None) -> float:
        links = (Assumed(self.clip),) if noise is None else (Assumed(self.clip), noise)
        return float(prepare(self.experiment.replace(participation=None, channel=links)).curve(self.rounds)[-1])


def coefficients(parts: Sequence[float]) -> np.ndarray:
    """Of the product of 1 - a x."""
    return reduce(lambda c, a: np.convolve(c, [1.0, -a]), parts, np.ones(1))


def products(c: np.ndarray) -> np.ndarray:
    """c_i c_j for all i <= j."""
    return np.array([c[i] * c[j] for i in range(len(c)) for j in range(i, len(c))])
