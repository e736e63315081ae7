"""How much of a run tells of one agent, of whom, against whom, and what is not counted?"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedpoint.channel import Chain, Clip, Gaussian
from fedpoint.core.arguments import checked, checked_methods
from fedpoint.core.errors import FedpointError, notify
from fedpoint.core.kinds import Whole
from fedpoint.core.numbers import counted
from fedpoint.core.types import Plain
from fedpoint.experiment.experiment import Experiment
from fedpoint.privacy.accounting import ADD_OR_REMOVE, Account, account_of, uncovered
from fedpoint.privacy.target import Privacy
from fedpoint.timing.participation import as_participation
from fedpoint.timing.schemes import Everyone, Participation, Poisson

POINTS = 5  # rounds at which a curve is worked out
LEAST_DELTA = 1e-5
NOT_COUNTED = (
    "steps, clip, noise and numbers of rounds that were chosen by looking at the same data",
    "the weights p_k, the number of agents and the start, which are taken as public",
    "errors, losses, metrics and costs of the run, which are worked out from the data without noise",
    "other runs on the same data, further repeats among them",
    "the seed, from which everybody who knows it works out the noise: keep it secret, and the run's folder with it",
    "rounding: normal numbers are made of 64 bits",
)


@checked_methods
@dataclass(frozen=True, eq=False)
class Spent:
    """What `run.privacy` and `fp.privacy.spent` tell.

    Attributes:
        account: how privacy adds up over rounds.
        rounds: for which it is said.
        delta: for which it is said.
        epsilon: against whoever sees all models, and not who takes part.
        epsilon_seen: against whoever sees who takes part as well.
        epsilon_single: against a hub that sees every message by itself; infinite where noise is added by the hub, which
            then sees messages without it.
        by_round: (n, 2) epsilon at a few rounds on the way.
        accountant: how epsilon was found.
    """

    account: Account
    rounds: int
    delta: float

    @cached_property
    def _found(self) -> tuple[float, str]:
        return self.account.epsilon(self.rounds, self.delta)

    @property
    def epsilon(self) -> float:
        return self._found[0]

    @property
    def accountant(self) -> str:
        return self._found[1]

    @cached_property
    def epsilon_seen(self) -> float:
        return self.account.seen(self.rounds, self.delta)

    @cached_property
    def epsilon_single(self) -> float:
        found = self.account.single(self.rounds, self.delta)
        return math.inf if found is None else found

    @property
    def adjacency(self) -> str:
        return self.account.adjacency

    @property
    def not_counted(self) -> tuple[str, ...]:
        return NOT_COUNTED

    @cached_property
    def by_round(self) -> np.ndarray:
        at = np.unique(np.geomspace(1, self.rounds, min(POINTS, self.rounds)).round().astype(int))
        return np.array([(t, self._after(int(t))) for t in at])

    def _after(self, rounds: int) -> float:
        return self.epsilon if rounds == self.rounds else self.account.epsilon(rounds, self.delta)[0]

    def at(self, delta: float) -> Spent:
        """The same at another delta.

        Args:
            delta: the other one.
        """
        return Spent(self.account, self.rounds, check_delta(delta, self.account.agents))

    def rows(self) -> list[tuple[str, str]]:
        """What is told, and its value in words."""
        account, zero = self.account, "its messages are there, or zero" if self.adjacency == ADD_OR_REMOVE else ""
        adjacency = (
            f"{self.adjacency} ({zero}; weights are public)" if zero else f"{self.adjacency} (weights are public)"
        )
        found = [
            ("epsilon", f"{self.brief.removeprefix('epsilon ')} after {counted(self.rounds, 'round')}"),
            ("of whom", f"whole agents, not rows of their data: {adjacency}"),
            ("against whom", f"whoever sees {self._model()} of every round" + self._hidden()),
        ]
        if account.amplified:
            found.append(("if it is seen who takes part", f"epsilon {_number(self.epsilon_seen)}"))
        if account.at == "hub":
            found.append(("against the hub", "nothing: it sees messages before it adds the noise"))
        else:
            found.append(("against a hub that sees single messages", f"epsilon {_number(self.epsilon_single)}"))
        found.append(("noise", self._noise()))
        found.append(("on the way", ", ".join(f"{_number(e)} after {t:.0f}" for t, e in self.by_round)))
        return [*found, ("not counted", "; ".join(self.not_counted))]

    def _model(self) -> str:
        shared = ", ".join(self.account.shared)
        return (
            f"the shared parts of the model ({shared}), and not those that stay at their agents,"
            if shared
            else "the model"
        )

    def _hidden(self) -> str:
        return ", and not who takes part" if self.account.amplified else ""

    def _noise(self) -> str:
        correlated = f", correlated by {list(self.account.coefficients)}" if len(self.account.coefficients) > 1 else ""
        where = "at the hub" if self.account.at == "hub" else "at the agents, in shares"
        alone = "" if self.account.adds_up else "; other channels change messages, which are hidden one by one"
        return f"multiplier {self.account.multiplier:.4g} {where}{correlated}{alone}; accountant: {self.accountant}"

    def text(self) -> str:
        """In plain words."""
        lines = [f"Privacy: {self.rows()[0][0]} {self.rows()[0][1]}"]
        lines += [f"  {name}: {value}" for name, value in self.rows()[1:]]
        return "\n".join(textwrap.fill(line, 110, subsequent_indent="    ", break_on_hyphens=False) for line in lines)

    __str__ = __repr__ = text

    @property
    def brief(self) -> str:
        """Epsilon and delta."""
        return f"epsilon {_number(self.epsilon)} at delta {self.delta:g}"

    @property
    def short(self) -> str:
        """In one line."""
        seen = f", {_number(self.epsilon_seen)} if it is seen who takes part" if self.account.amplified else ""
        return f"{self.brief} ({self.adjacency}; against whoever sees the models{seen})"

    def to_dict(self) -> dict[str, Plain]:
        """Plain types, for JSON; None stands for infinity."""
        numbers = {
            "epsilon": self.epsilon,
            "epsilon_seen": self.epsilon_seen,
            "epsilon_single": self.epsilon_single,
            "multiplier": self.account.multiplier,
        }
        return {
            **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
            "delta": self.delta,
            "rounds": self.rounds,
            "adjacency": self.adjacency,
            "accountant": self.accountant,
            "noise_at": self.account.at,
            "by_round": [[int(t), float(e)] for t, e in self.by_round],
            "not_counted": list(self.not_counted),
        }


def _number(epsilon: float) -> str:
    return "no bound" if math.isinf(epsilon) else f"{epsilon:.3g}" if epsilon < 1000 else f"{epsilon:.2e}"


def check_delta(delta: float, agents: int) -> float:
    """Refuse what is no probability, and warn of one that lets an agent be published as it is."""
    if not 0 < delta < 1:
        raise FedpointError(f"delta must lie between 0 and 1, got {delta}")
    if delta >= 1 / agents:
        notify(
            f"delta {delta:g} is not below 1/K = {1 / agents:g}: publishing one agent of {agents} at random, whole, "
            "would satisfy it; take a much smaller one"
        )
    return delta


@checked
def spent(experiment: Experiment, rounds: Whole, delta: float | None = None) -> Spent:
    """What so many rounds of an experiment tell of one agent. An experiment whose participation has no account is
    refused with the reason.

    Args:
        experiment: with a channel that clips and adds noise.
        rounds: how many.
        delta: default: 1e-5, or a tenth of 1/K where that is less.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0]] * 50)
    >>> private = [fp.channel.Clip(1.0), fp.channel.Gaussian(multiplier=20.0)]
    >>> e = fp.Experiment(fp.FedAvg(step=0.1), quad, channel=private)
    >>> round(fp.privacy.spent(e, rounds=100, delta=1e-5).epsilon, 3)
    1.993
    """
    if rounds < 1:
        raise FedpointError(f"rounds must be at least 1, got {rounds}")
    account = account_of(experiment)
    least = min(LEAST_DELTA, 0.1 / account.agents)
    return Spent(account, int(rounds), least if delta is None else check_delta(delta, account.agents))


@checked
def multiplier(
    privacy: Privacy,
    participation: Participation | float | None,
    rounds: Whole,
    agents: Whole | None = None,
    largest: float = 1000.0,
) -> float:
    """The least noise multiplier, to a thousandth, with which so many rounds stay within a target.

    Args:
        privacy: the target.
        participation: a scheme; a number below 1 is q of `fp.participation.Poisson(q)`, a whole number L that of
            `fp.Uniform(L)`, which needs the number of agents; None is everyone.
        rounds: how many share the target.
        agents: K.
        largest: a target that would need more noise is refused with the nearest that can be reached.

    >>> import fedpoint as fp
    >>> 19.9 < fp.privacy.multiplier(fp.Privacy(epsilon=2.0, delta=1e-5), None, rounds=100) < 20.0
    True
    """
    if rounds < 1:
        raise FedpointError(f"rounds must be at least 1, got {rounds}")
    if largest <= 0:
        raise FedpointError(f"largest must be above 0, got {largest}")
    scheme = _scheme(participation)
    several = 2 if agents is None else int(agents)
    if agents is None and not isinstance(scheme, Everyone | Poisson):
        raise FedpointError(
            "give agents=, the number of agents: the privacy spent depends on how many of them take part"
        )
    reason = uncovered(Chain((Clip(1.0), Gaussian(1.0))), scheme, several)
    if reason:
        raise FedpointError(reason)
    scheme.slots(several)

    def spends(z: float) -> float:
        return Account(z, scheme, several).epsilon(int(rounds), privacy.delta)[0]

    nearest = spends(largest)
    if nearest > privacy.epsilon:
        raise FedpointError(
            f"epsilon {privacy.epsilon:g} at delta {privacy.delta:g} is not reached in {counted(rounds, 'round')} with "
            f"a noise multiplier of at most {largest:g}; the nearest is epsilon {_number(nearest)}. Take fewer rounds, "
            "fewer participants in a round, or allow more noise"
        )
    return least_noise(spends, privacy.epsilon, largest)


def _scheme(participation: Participation | float | None) -> Participation:
    if isinstance(participation, float) and not float(participation).is_integer():
        return Poisson(participation)
    if isinstance(participation, float):
        return Poisson(1.0) if participation == 1 else as_participation(int(participation))
    return as_participation(participation)


def least_noise(spends: Callable[[float], float], epsilon: float, largest: float) -> float:
    """The least z up to `largest` that spends at most epsilon, to a thousandth: what is spent falls with z."""
    low, high = largest, largest
    while low > 1e-6:  # down by factors, then by halving the interval's logarithm
        low = high / 4
        if spends(low) > epsilon:
            break
        high = low
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spends(middle) > epsilon else (low, middle)
    return high
