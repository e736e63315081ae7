"""What does a run tell of one agent? Its rounds as events of `dp_accounting`, and the epsilon that they compose to.

Changes are clipped to norm C, summed with fixed public weights v_k <= v_max, and normal noise of standard deviation
z C v_max is added to the sum. Of one agent:

    Poisson(q)    added or removed    T times (sampled with q, Gaussian z)              privacy loss distribution
    Uniform(L)    replaced            T times (L of K without replacement, Gaussian z/2)    Rényi divergences
    Everyone      added or removed    one Gaussian of z / sqrt(T)                       exactly (Balle and Wang, 2018)
    correlated    added or removed    one Gaussian of z / sensitivity, where participations are bounded
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.channel.base import Channel, Clips
from fedpoint.channel.correlated import inverse_series
from fedpoint.core.errors import FedpointError
from fedpoint.core.record import owner_of, untouched
from fedpoint.timing.base import Timing
from fedpoint.timing.schemes import Everyone, Participation, Poisson, Uniform

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from fedpoint.core.selection import selection
from fedpoint.experiment.experiment import Experiment

ADD_OR_REMOVE, REPLACE = "add or remove one agent", "replace one agent by another"
ORDERS = (*range(2, 65), 128, 256, 512)  # whole ones: others may not converge
LARGE = 40.0  # an epsilon above which losses are not worked out as a distribution: it says nothing, and takes minutes


@dataclass(frozen=True)
class Account:
    """All that decides what T rounds tell of an agent."""

    multiplier: float  # z, of all noises of a round together
    scheme: Participation
    agents: int
    at: str = "hub"  # where noise is added
    coefficients: tuple[float, ...] = (1.0,)  # of noise that is correlated between rounds
    adds_up: bool = True  # False: messages are hidden one by one, and no more than that is known of their sum
    shared: tuple[str, ...] = ()  # parts of the model that are sent; (): all of it

    @property
    def adjacency(self) -> str:
        return REPLACE if isinstance(self.scheme, Uniform) else ADD_OR_REMOVE

    @property
    def amplified(self) -> bool:
        """Whether it counts that nobody sees who takes part."""
        return self.adds_up and isinstance(self.scheme, Poisson | Uniform)

    @property
    def effective(self) -> float:
        """The multiplier over what one agent can change under this adjacency: replacing moves a sum twice as far."""
        return self.multiplier / 2 if self.adjacency == REPLACE else self.multiplier

    def epsilon(self, rounds: int, delta: float) -> tuple[float, str]:
        """What so many rounds spend at this delta, against whoever sees the models alone; and how it was found."""
        plain = self.seen(rounds, delta), "analytic Gaussian"
        if not self.amplified:
            return plain
        sampled = self._poisson(rounds, delta) if isinstance(self.scheme, Poisson) else self._uniform(rounds, delta)
        return min(plain, sampled)  # who is never told apart from the others is told no more than who is

    def roughly(self, rounds: int, delta: float) -> float:
        """The same or a little more, in a fraction of the time."""
        if not isinstance(self.scheme, Poisson):
            return self.epsilon(rounds, delta)[0]
        q, lost = float(self.scheme.probability), rounds * self.scheme.crowded(self.agents)
        sampled = with_lost_rounds(lambda d: poisson_rdp(q, self.multiplier, rounds, d), lost, delta)
        return min(self.seen(rounds, delta), sampled)

    def seen(self, rounds: int, delta: float) -> float:
        """The same against whoever sees who takes part: for an agent that does in every round."""
        alone = None if self.adds_up else self.single(rounds, delta)
        if alone is not None:
            return alone
        return gaussian_epsilon(self.effective / self.sensitivity(rounds), delta)

    def single(self, rounds: int, delta: float) -> float | None:
        """Against a hub that sees single messages: of the heaviest agent, which adds the least noise; None: no bound,
        because messages come without noise."""
        if self.at != "agents":
            return None
        heard = self.scheme.least_heard(self.agents)
        return gaussian_epsilon(self.effective / math.sqrt(heard * rounds), delta)

    def sensitivity(self, rounds: int) -> float:
        """How far one agent can move all rounds together, in units of what it can move one."""
        if len(self.coefficients) == 1:
            return math.sqrt(rounds) / self.coefficients[0]
        apart = self.scheme.rounds_apart(self.agents)
        if apart is None:
            raise FedpointError(_unbounded(self.scheme))
        return sensitivity(self.coefficients, rounds, apart)

    def _poisson(self, rounds: int, delta: float) -> tuple[float, str]:
        scheme = self.scheme
        assert isinstance(scheme, Poisson)
        q, lost = float(scheme.probability), rounds * scheme.crowded(self.agents)
        rough = poisson_rdp(q, self.multiplier, rounds, delta / 2)
        if rough > LARGE:
            return with_lost_rounds(lambda d: poisson_rdp(q, self.multiplier, rounds, d), lost, delta), "RDP"
        return with_lost_rounds(lambda d: poisson_pld(q, self.multiplier, rounds, d), lost, delta), "PLD"

    def _uniform(self, rounds: int, delta: float) -> tuple[float, str]:
        scheme = self.scheme
        assert isinstance(scheme, Uniform)
        return uniform_rdp(self.agents, scheme.count, self.effective, rounds, delta), "RDP"


def account_of(experiment: Experiment) -> Account:
    """The account of an experiment, or a refusal with the reason."""
    reason = uncovered(experiment.channel, experiment.timing, experiment.problem.agents)
    if reason:
        raise FedpointError(reason)
    if experiment.attack is not None and not experiment.attack.honest:
        name = type(experiment.attack).__name__
        raise FedpointError(
            f"with {name} some agents neither clip nor add noise, and answer what the others sent: nothing is accounted"
        )
    if not experiment.gather.conserves:
        name = type(experiment.gather).__name__
        raise FedpointError(f"privacy is accounted for weighted sums: what one agent can move in {name} is not known")
    scheme, noises = experiment.bind().timing, experiment.channel.noises()
    assert isinstance(scheme, Participation)
    # Noisy sums of one and the same lineup are one Gaussian, whose multipliers add up as 1/z^2 do.
    multiplier = sum(float(n.multiplier) ** -2 for n in noises) ** -0.5
    agents, noise = experiment.problem.agents, noises[0]
    shared = () if experiment.share is None else selection(experiment.share).words()
    return Account(multiplier, scheme, agents, noise.at, noise.coefficients, adds_up(experiment.channel), shared)


def uncovered(channel: Channel, timing: Timing, agents: int) -> str:
    """Why an experiment has no account of privacy; empty where it has."""
    noises = channel.noises()
    if not noises:
        return (
            "the messages carry no noise, so that there is no differential privacy to account for: "
            "channel=[fp.channel.Clip(1.0), fp.channel.Gaussian(multiplier=...)]"
        )
    if broken := _broken_promise(channel):
        return broken
    if timing.on_network:
        return (
            "on a network every node keeps a model of its own data, which carries no noise: privacy is accounted with "
            "a fusion center"
        )
    if not any(isinstance(stage, Clips) for stage in channel.stages()):
        return "noise is accounted behind a clip, which bounds what one agent can change"
    names = ", ".join(timing.names())
    known = isinstance(timing, Everyone | Uniform | Poisson) and timing.knows_moments()
    if len({n.coefficients for n in noises}) > 1:
        return "noises with different correlations between rounds are not accounted together: give one of them"
    correlated = len(noises[0].coefficients) > 1
    if correlated:
        bounded = isinstance(timing, Participation) and timing.rounds_apart(agents) is not None
        return "" if bounded else _unbounded(timing)
    if timing.late or timing.on_clock:
        return f"with {names} it depends on the clock who is heard, and how often: that has no account of privacy"
    if not known:
        return (
            f"{names}: no account of privacy covers who takes part here. Use fp.participation.Poisson(q), "
            "Uniform(count) or Everyone, which are drawn without looking at anybody's data, weights or answers"
        )
    if isinstance(timing, Poisson) and any(n.at == "agents" for n in noises):
        return (
            "with Poisson participation a round may be empty, and then has no noise where agents add it: an agent's "
            'first message would stand alone. Add noise at="hub", or use Uniform(count)'
        )
    return ""


def _broken_promise(channel: Channel) -> str:
    """Which class changes a channel whose promises are accounted, and does not make them anew; empty: none."""
    for stage in channel.stages():
        promise = "noises" if stage.noises() else "longest" if isinstance(stage, Clips) else "longest_after"
        # A channel that says nothing of its length is refused where noise depends on it, when the experiment is made.
        if owner_of(type(stage), promise) is not Channel and not untouched(type(stage), promise, Channel):
            name = type(stage).__name__
            return (
                f"{name} has no {promise}() of its own, beside what it changes: privacy is accounted by what that says"
            )
    return ""


def adds_up(channel: Channel) -> bool:
    """Whether the noise of single messages is that of their sum: not where agents add it and other channels change
    messages before or after, which then are hidden one by one."""
    stages = channel.stages()
    noisy = [i for i, stage in enumerate(stages) if any(noise.at == "agents" for noise in stage.noises())]
    before, after = (stages[: noisy[0]], stages[noisy[-1] + 1 :]) if noisy else ((), ())
    return all(stage.in_place or stage.lossless for stage in before) and all(stage.lossless for stage in after)


def _unbounded(timing: Timing) -> str:
    return (
        f"correlated noise hides an agent only if its participations are bounded; with {', '.join(timing.names())} it "
        "may be drawn again after any number of rounds. Use Everyone, a scheme that defines rounds_apart, or "
        "fp.channel.Gaussian"
    )


# Epsilons. dp_accounting is imported where it is used: that takes seconds.


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """Of one Gaussian mechanism, exactly: the zero of Phi(1/2z - ez) - exp(e) Phi(-1/2z - ez) - delta."""
    from scipy.optimize import brentq
    from scipy.special import log_ndtr, ndtr

    z = multiplier

    def over(e: float) -> float:
        return float(ndtr(0.5 / z - e * z) - math.exp(min(700.0, e + log_ndtr(-0.5 / z - e * z)))) - delta

    if over(0.0) <= 0:
        return 0.0
    high = 0.5 / z**2 + 10 / z * math.sqrt(max(1.0, -math.log(delta))) + 1.0
    return float(brentq(over, 0.0, high, xtol=1e-12, rtol=1e-12))


@cache
def poisson_pld(q: float, multiplier: float, rounds: int, delta: float) -> float:
    from dp_accounting import pld

    accountant = pld.PLDAccountant()
    accountant.compose(poisson_event(q, multiplier, rounds))
    return float(accountant.get_epsilon(delta))


@cache
def poisson_rdp(q: float, multiplier: float, rounds: int, delta: float) -> float:
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(orders=ORDERS)
    accountant.compose(poisson_event(q, multiplier, rounds))
    return float(accountant.get_epsilon(delta))


@cache
def uniform_rdp(agents: int, count: int, multiplier: float, rounds: int, delta: float) -> float:
    import dp_accounting as dp
    from dp_accounting import rdp

    event = dp.SampledWithoutReplacementDpEvent(agents, count, dp.GaussianDpEvent(multiplier))
    accountant = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp.SelfComposedDpEvent(event, rounds))
    return float(accountant.get_epsilon(delta))


def poisson_event(q: float, multiplier: float, rounds: int) -> DpEvent:
    """T rounds, as dp_accounting says it."""
    import dp_accounting as dp

    return dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(multiplier)), rounds)


def with_lost_rounds(epsilon_at: Callable[[float], float], lost: float, delta: float) -> float:
    """Where with probability `lost` some round may have left agents out that should have taken part.

    Whether that happens is decided by the coins of the other agents alone, so that it is as likely with an agent as
    without it: two mixtures with the same weights, which (epsilon, delta - lost) tells apart at most by delta where it
    holds for the rest. Infinite where `lost` alone is delta.
    """
    return epsilon_at(delta - lost) if lost < delta else math.inf


def sensitivity(coefficients: tuple[float, ...], rounds: int, apart: int) -> float:
    """max |sum_{t in R} C e_t| over sets R of rounds at least `apart` from each other, C the inverse of the banded
    Toeplitz matrix of the coefficients: noise C^-1 x hides G as x hides C G.

    Its columns are h_0, h_1, ... with 1/c(x) = sum h_j x^j; where these fall and are not negative, the largest is the
    earliest set with the least distances (Choquette-Choo et al., 2023), and clipped changes are worst when equal.
    """
    h = inverse_series(np.asarray(coefficients), rounds)
    if (h < -1e-12).any() or (np.diff(h) > 1e-12).any():
        raise FedpointError(
            "correlated noise is accounted where 1/c(x) has falling coefficients that are not negative, as for "
            f"n_t = x_t - a x_(t-1) with 0 < a < 1; got {list(coefficients)}"
        )
    takes_part = (np.arange(rounds) % apart == 0).astype(float)
    return float(np.linalg.norm(np.convolve(h, takes_part)[:rounds]))
