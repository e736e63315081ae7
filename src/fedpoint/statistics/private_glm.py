"""A generalised linear model under differential privacy of sites: noise of the channel enters the standard errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fedpoint.channel.base import Channel, Clips
from fedpoint.channel.chain import as_channel
from fedpoint.core.arguments import checked, checked_methods
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import Positive
from fedpoint.core.numbers import counted
from fedpoint.data.floor import Floor
from fedpoint.privacy.spent import Spent, spent
from fedpoint.statistics import glm_sums
from fedpoint.statistics.glm import Model, model_of
from fedpoint.statistics.glm_sums import Rows
from fedpoint.statistics.inference import Coefficients, Test
from fedpoint.statistics.newton import inverse, solve
from fedpoint.statistics.sites import TableLike
from fedpoint.statistics.sums import Collected, collect

FEW = 0.05  # clipped contributions above which the intervals are not to be trusted


class Released(NamedTuple):
    """All that a site sends in a round."""

    score: np.ndarray  # (d,)
    curvature: np.ndarray  # (d (d + 1) / 2,) the upper triangle
    pearson: np.ndarray  # (1,) where phi is estimated, else (0,)


@checked_methods
@dataclass(frozen=True, repr=False)
class PrivateGLMFit:
    """Coefficients of a generalised linear model, from noisy sums.

    The covariance is that of the estimate without noise, plus what the noise of the last round adds. noise_share: of
    each variance, what is noise. clipped: the share of contributions, over sites and rounds, that were longer than
    the clip: what they were shortened by is a bias that no interval here knows of. privacy: epsilon of all rounds.
    """

    formula: str
    family: str
    coefficients: Coefficients
    noise_share: pd.Series
    clipped: float
    rounds: int
    sites: dict[str, int]
    privacy: Spent
    notes: list[str] = field(default_factory=list)

    @property
    def params(self) -> pd.Series:
        return self.coefficients.params

    @property
    def bse(self) -> pd.Series:
        return self.coefficients.bse

    def conf_int(self, level: float = 0.95) -> pd.DataFrame:
        return self.coefficients.conf_int(level)

    def cov_params(self) -> pd.DataFrame:
        return self.coefficients.cov_params()

    def wald_test(self, term: str) -> Test:
        return self.coefficients.wald_test(term)

    def summary(self) -> str:
        """The coefficients, what of their errors is noise, and what was spent, as text."""
        rows, sites = counted(sum(self.sites.values()), "row"), counted(len(self.sites), "site")
        share = ", ".join(f"{name} {100 * part:.0f} %" for name, part in self.noise_share.items())
        lines = [
            f"Generalised linear model, {self.family}, under privacy of sites: {self.formula}",
            f"{rows}, {sites}; {counted(self.rounds, 'round')} of noisy sums",
            "",
            *self.coefficients.lines(),
            "",
            f"of the variances, noise is: {share}",
            f"privacy: epsilon {self.privacy.epsilon:.3g} at delta {self.privacy.delta:.1g}, of a site",
            self._said_of_clips(),
        ]
        return "\n".join([*lines, *(f"Note: {note}." for note in self.notes)])

    def _said_of_clips(self) -> str:
        said = f"clipped: {100 * self.clipped:.1f} % of the contributions"
        if self.clipped > FEW:
            return (
                said + ". These were shortened, which biases the estimate: do not trust its intervals, raise the clip"
            )
        return said + (", which biases the estimate a little" if self.clipped else "")

    def __repr__(self) -> str:
        return f"<PrivateGLMFit {self.formula!r}, {self.family}: {counted(len(self.sites), 'site')}>"


@checked
def private_glm(
    formula: str,
    data: TableLike,
    *,
    groups: str | ArrayLike,
    channel: Channel | Sequence[Channel],
    family: str = "binomial",
    link: str | None = None,
    offset: str | ArrayLike | None = None,
    weights: str | ArrayLike | None = None,
    ridge: float | Mapping[str, float] = 0.0,
    dispersion: Positive = 1.0,
    rounds: int = 5,
    floor: Floor | None = None,
    small: str = "refuse",
    seed: int = 0,
) -> PrivateGLMFit:
    """A generalised linear model whose sums are clipped and noisy, so that no site's presence shows.

    So many rounds of Newton's method from zero, without looking at likelihoods. The noise in the last score is carried
    into the covariance; intervals are honest where no contribution was clipped. Bring columns to similar sizes before:
    the clip bounds all sums of a site together.

    Args:
        channel: for instance [fp.channel.Clip(50.0), fp.channel.Gaussian(0.5)]. The noise on each sum over sites has
            the standard deviation clip times multiplier.
        rounds: of noisy sums, each of which spends budget.
        seed: of the noise.
        formula, data, groups, family, link, offset, weights, ridge, dispersion, floor, small: as of `fp.glm`.
    """
    if rounds < 1:
        raise FedpointError(f"rounds = {rounds} must be at least 1")
    way = as_channel(channel)
    if not any(way.noises()):
        raise FedpointError("channel adds no noise: end it with fp.channel.Gaussian(...), or use fp.glm")
    given = (family, link, offset, weights, ridge, dispersion, floor, small)
    model, _ = model_of(formula, data, groups, *given)
    low, high = model.response.bounds
    if not low < 0 < high:
        raise FedpointError(
            f"link {model.response.link!r} cannot start from zero, as private fits do: take another link"
        )
    first = next(iter(model.rows.values()))
    deviation = _noise(way, np.concatenate(_released(first, np.zeros(len(model.ridge)))))
    n, w, clipped = _weight(model), np.zeros(len(model.ridge)), []
    for r in range(rounds):
        got = collect(_released, model.rows, at=w, channel=way, seed=seed + 1_000_003 * r)
        bend = _square(got.total.curvature) + n * np.diag(model.ridge)
        _check_information(bend)
        clipped.append(_clipped(way, model, w))
        w = w + solve(bend, got.total.score - n * model.ridge * w)
    covariance, share = _covariance(model, got, bend, deviation, n)
    names = model.made.names
    return PrivateGLMFit(
        formula,
        model.response.family,
        Coefficients(names, w, covariance, model.made.terms),
        pd.Series(share, list(names)),
        float(np.mean(clipped)),
        rounds,
        {name: len(own) for name, own in model.rows.items()},
        spent(got.run.session.experiment, rounds),
        model.made.notes,
    )


def _weight(model: Model) -> float:
    """What all rows count; numbers of rows are public."""
    return float(sum(len(own) if own.weight is None else own.weight.sum() for own in model.rows.values()))


def _released(rows: Rows, w: np.ndarray) -> Released:
    found = glm_sums.slopes(rows, w)
    above = found.hessian[np.triu_indices(len(w))]
    scaled = glm_sums.scaled(rows.response)
    return Released(found.score, above, np.array([glm_sums.last(rows, w).pearson]) if scaled else np.zeros(0))


def _square(above: np.ndarray) -> np.ndarray:
    d = int((np.sqrt(8 * len(above) + 1) - 1) / 2)
    full = np.zeros((d, d))
    full[np.triu_indices(d)] = above
    return full + np.triu(full, 1).T


def _check_information(bend: np.ndarray) -> None:
    if np.linalg.eigvalsh(bend)[0] <= 0:
        raise FedpointError(
            "the noise is larger than what the rows say of some coefficient: use less noise, a smaller clip, more "
            "sites, fewer terms, or a ridge"
        )


def _clipped(way: Channel, model: Model, w: np.ndarray) -> float:
    """The share of sites whose contribution is longer than the clip."""
    clips = [stage for stage in way.stages() if isinstance(stage, Clips)]
    sent = [np.concatenate(_released(own, w)) for own in model.rows.values()]
    return float(np.mean([any(np.linalg.norm(m) > float(c.longest({"sums": m})) for c in clips) for m in sent]))


def _noise(way: Channel, like: np.ndarray) -> float:
    """The standard deviation that the channel adds to every sum over sites.

    Sites have equal weights, so it is multiplier times clip wherever it is added.
    """
    clips = [stage for stage in way.stages() if isinstance(stage, Clips)]
    noises = way.noises()
    plain = all(isinstance(stage, Clips) or stage.noises() for stage in way.stages())
    if len(clips) != 1 or clips[0].adapts or not plain or any(noise.coefficients != (1.0,) for noise in noises):
        raise FedpointError(
            "channel must be a clip and Gaussian noise alone: [fp.channel.Clip(...), fp.channel.Gaussian(...)]"
        )
    return float(np.sqrt(sum(noise.multiplier**2 for noise in noises)) * float(clips[0].longest({"sums": like})))


def _covariance(
    model: Model, got: Collected[Released], bend: np.ndarray, deviation: float, n: float
) -> tuple[np.ndarray, np.ndarray]:
    """Of the estimate; and of each variance, the share that is noise."""
    d = len(model.ridge)
    A = inverse(bend)
    noise = deviation**2 * A @ A
    phi = 1.0
    if glm_sums.scaled(model.response):
        phi = float(got.total.pearson[0]) / (n - d)
        if phi <= 0:
            raise FedpointError("the noise is larger than the dispersion: use less noise or a smaller clip")
    alone = phi * A @ (bend - n * np.diag(model.ridge)) @ A
    return alone + noise, np.diag(noise) / np.diag(alone + noise)
