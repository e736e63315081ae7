"""Who takes part in a round, and with which weight is an answer merged?

Every scheme names its participants by index, so a round costs O(L), and gives weights v with E sum_k v_k m_k =
sum_k p_k m_k: weights for *changes*. They need not sum to one, and are never renormalised over the sample.
"""

from __future__ import annotations

import bisect
import math

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.arrays import floats
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.random import Key
from fedpoint.core.record import untouched
from fedpoint.core.types import Number
from fedpoint.core.vector import take
from fedpoint.timing import lineups
from fedpoint.timing.base import Context, Moments, Tick, Timing
from fedpoint.timing.lineups import Lineups
from fedpoint.timing.moments import drawn_rounds, replacement_moments, sampled_moments, subset_moments

__all__ = ["ByWeight", "Everyone", "Importance", "Participation", "Poisson", "Uniform"]

LISTED = 256  # lineups, up to which all are looked at
AGAIN = 16  # how often the same lineup may come up while they are listed
OVERFLOW = 1e-16  # how often a round of Poisson participation may have too few places
DRAWN = 4096  # otherwise so many, and more where there are many agents


class Participation(Timing):
    """Who takes part in a round with a fusion center. Subclass it and write `slots` and `tick` for one of your own.

    >>> import fedpoint as fp
    >>> import jax.numpy as jnp
    >>> class RoundRobin(fp.Participation):
    ...     size: int
    ...     def slots(self, agents):
    ...         return self.size
    ...     def tick(self, key, p, round):
    ...         agents = (jnp.arange(self.size) + round * self.size) % len(p)
    ...         return fp.Tick.of(agents, weight=p[agents] * len(p) / self.size)
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [1.0], [2.0]])
    >>> fp.run(fp.FedAvg(step=1.0), quad, rounds=3, participation=RoundRobin(size=1)).history[0].ravel()
    array([0., 0., 1., 2.])
    """

    def bind(self, context: Context) -> Participation:
        return self

    def key_of(self, key: Key, round: Array) -> Key:
        return key.fold(round)

    def completed(self, key: Key, p: Array, round: Array) -> Tick:
        return _completed(self.tick(key, p, round), p)

    def moments(self, p: np.ndarray) -> Moments:
        """Moments of (v, s), for forecasts: estimated from drawn rounds where they are not known."""
        known = self.known_moments(p) if self.knows_moments() else None
        return sampled_moments(self, p) if known is None else known

    def known_moments(self, p: np.ndarray) -> Moments | None:
        """The exact ones, where a scheme has a formula for them."""
        return None

    def knows_moments(self) -> bool:
        """Whether that formula holds: no subclass has changed what it was derived from."""
        return untouched(type(self), "known_moments", Participation)

    def lineups(self, p: np.ndarray) -> Lineups:
        """Who may be heard in a round that merges: all that there are where they are few, else a sample."""
        known = self.known_lineups(p, LISTED) if untouched(type(self), "known_lineups", Participation) else None
        if known is not None:
            return known
        v, s, merge = drawn_rounds(self, p, max(DRAWN, 8 * len(p)))
        m = self.moments(p)
        return lineups.calibrated(v[merge], s[merge], m.mean, m.heard)

    def known_lineups(self, p: np.ndarray, most: int) -> Lineups | None:
        """All of them, where a scheme can list them and there are at most so many."""
        return None


def _completed(tick: Tick, p: Array) -> Tick:
    """What a tick need not say: shares are p_k, all places are asked, and the round is merged."""
    share = tick.share
    if share is None:
        share = p if tick.agents is None else jnp.where(tick.heard, take(p, tick.agents), 0.0)
    asked = jnp.int32(tick.heard.shape[0]) if tick.asked is None else tick.asked
    return tick._replace(share=share, asked=asked, merge=jnp.asarray(True) if tick.merge is None else tick.merge)


def _positive_count(self: Uniform | ByWeight | Importance) -> None:
    if self.count < 1:
        raise FedpointError(f"{type(self).__name__}: the number of participants must be at least 1, got {self.count}")


def _limit_count(self: Uniform, agents: int) -> None:
    if self.count > agents:
        raise FedpointError(
            f"{type(self).__name__}: {counted(self.count, 'participant')} of {counted(agents, 'agent')}: "
            f"choose at most {agents}"
        )


class Everyone(Participation):
    """All agents, v_k = p_k."""

    drawn = False
    all_heard = True
    everyone = True

    def slots(self, agents: int) -> int:
        return agents

    def tick(self, key: Key, p: Array, round: Array) -> Tick:
        return Tick(None, jnp.ones(p.shape, bool), p, p)

    def weight_scale(self, p: np.ndarray) -> float | None:
        return 1.0

    def rounds_apart(self, agents: int) -> int | None:
        return 1

    def known_moments(self, p: np.ndarray) -> Moments:
        return subset_moments(p, {len(p): 1.0}, False)

    def known_lineups(self, p: np.ndarray, most: int) -> Lineups | None:
        return lineups.listed(lineups.subsets(p, len(p), False)) if most else None


class Uniform(Participation):
    """`count` agents uniformly without replacement, v_k = p_k K / L (scheme II; lecture 000 (56)).

    With p = 1/K that is the plain mean.

    Args:
        count: L, how many agents work in a round.
        plain: take the plain mean of the answers whatever the weights; the run then solves the problem with p = 1/K.
    """

    all_heard = True

    count: int
    plain: bool = False

    check = _positive_count

    def slots(self, agents: int) -> int:
        _limit_count(self, agents)
        return self.count

    def tick(self, key: Key, p: Array, round: Array) -> Tick:
        agents = key.row().subset(self.count, p.shape[0])
        share = take(p, agents)
        weight = jnp.full(self.count, 1.0 / self.count) if self.plain else share * (p.shape[0] / self.count)
        return Tick(agents, jnp.ones(self.count, bool), weight, share)

    def weight_scale(self, p: np.ndarray) -> float | None:
        return None if self.plain and not np.allclose(p, p[0]) else len(p) / self.count

    def known_moments(self, p: np.ndarray) -> Moments:
        return subset_moments(p, {self.count: 1.0}, self.plain)

    def known_lineups(self, p: np.ndarray, most: int) -> Lineups | None:
        few = math.comb(len(p), self.count) <= most
        return lineups.listed(lineups.subsets(p, self.count, self.plain)) if few else None


class Poisson(Participation):
    """Each agent takes part independently with probability q, v_k = p_k / q; in some rounds nobody does.

    Who takes part does not depend on who else does, and weights are fixed numbers: what amplification of privacy by
    sampling is proved for. A round costs as much as its places.

    Args:
        probability: q, above 0 and at most 1.
        places: for how many agents a round has room; None: for all, or for so many that one round in 1e16 has more.
            Agents beyond it are left out, which `overflow` tells and accounts of privacy include.

    Arguments of methods:
        agents: how many there are.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [1.0], [2.0], [3.0]])
    >>> run = fp.run(fp.FedAvg(step=0.5), quad, rounds=40, participation=fp.participation.Poisson(0.5))
    >>> 60 < run.cost.messages_up < 100
    True
    """

    probability: float
    places: int | None = None

    def check(self) -> None:
        if not 0 < self.probability <= 1:
            raise FedpointError(f"Poisson: the probability must be above 0 and at most 1, got {self.probability}")
        if self.places is not None and self.places < 1:
            raise FedpointError(f"Poisson: places must be at least 1, got {self.places}")

    def slots(self, agents: int) -> int:
        return agents if self.places is None else min(self.places, agents)

    def bind(self, context: Context) -> Poisson:
        """With few empty places: their number is structure, which must not depend on what is traced."""
        if self.places is not None or context.problem is None:
            return self
        return Poisson(self.probability, enough_places(context.problem.agents, self.probability))

    def overflow(self, agents: int) -> float:
        """The probability that more agents of so many are drawn in a round than there are places."""
        return binomial_tail(self.slots(agents), agents, self.probability)

    def crowded(self, agents: int) -> float:
        """The probability that an agent finds all places of a round taken, or may: as many of the others are drawn."""
        return binomial_tail(self.slots(agents) - 1, agents - 1, self.probability)

    def tick(self, key: Key, p: Array, round: Array) -> Tick:
        K, slots = p.shape[0], self.slots(p.shape[0])
        # How many agents are passed over before the next: geometric, so that a round costs its places and not K.
        passed = jnp.floor(jnp.log(key.row().uniform((slots,))) / jnp.log1p(-self.probability))
        at = jnp.cumsum(jnp.minimum(passed, K) + 1) - 1
        heard = at < K
        agents = jnp.where(heard, at, K - 1).astype(jnp.int32)
        share = jnp.where(heard, take(p, agents), 0.0)
        return Tick(agents, heard, share / self.probability, share, jnp.sum(heard, dtype=jnp.int32))

    def weight_scale(self, p: np.ndarray) -> float | None:
        return 1.0 / self.probability

    def known_moments(self, p: np.ndarray) -> Moments:
        q, K = float(self.probability), len(p)
        own = np.stack([p**2 * (1 - q) / q, p * (1 - q), np.full(K, q * (1 - q))])
        return Moments(1.0, p.copy(), np.full(K, q), own, np.zeros(0), np.zeros((0, 2, K)))

    def known_lineups(self, p: np.ndarray, most: int) -> Lineups | None:
        few = len(p) < 30 and 2 ** len(p) <= most
        return lineups.listed(lineups.independent(p, float(self.probability))) if few else None


def binomial_tail(places: int, agents: int, probability: float) -> float:
    """The probability that more than `places` of so many agents are drawn, each with this probability."""
    from scipy.special import bdtrc  # most runs do without

    return 0.0 if places >= agents else float(bdtrc(places, agents, probability))


def enough_places(agents: int, probability: float) -> int:
    """The least number of places that are too few in at most one round of 1e16."""
    places = range(math.ceil(agents * probability), agents)
    return bisect.bisect_left(places, True, key=lambda n: binomial_tail(n, agents, probability) <= OVERFLOW) + (
        places.start
    )


class ByWeight(Participation):
    """`count` draws with replacement with probability p_k, each with weight 1/L (scheme I of Li et al., 2020).

    An agent drawn m times works once, with weight m/L.

    Args:
        count: L, how many draws a round has.
    """

    count: int

    check = _positive_count

    def slots(self, agents: int) -> int:
        return self.count

    def tick(self, key: Key, p: Array, round: Array) -> Tick:
        return _with_replacement(key, p, p, self.count)

    def known_moments(self, p: np.ndarray) -> Moments:
        return replacement_moments(p, p, self.count)

    def known_lineups(self, p: np.ndarray, most: int) -> Lineups | None:
        return _draws(p, p, self.count, most)


class Importance(Participation):
    """`count` draws with replacement with probability q_k, each with weight p_k / (L q_k).

    Args:
        count: L, how many draws a round has.
        probabilities: (K,) q_k, which sum to 1; None: the ones that minimise the variance, q_k proportional to p_k
            sqrt(noise_k + |g_k(w*)|^2), where noise_k is the variance of the agent's averaged local field (Rizk, Vlaski
            and Sayed, 2022).
    """

    count: int
    probabilities: Number | None = None

    def check(self) -> None:
        _positive_count(self)
        q = self.probabilities
        if q is not None and not ((floats(q) > 0).all() and np.isfinite(floats(q)).all()):
            raise FedpointError("Importance: every probability must be above 0, or its agent is never heard")

    def slots(self, agents: int) -> int:
        q = self.probabilities
        if q is not None and np.shape(q) != (agents,):
            raise FedpointError(f"Importance: {counted(np.size(q), 'probability')} for {counted(agents, 'agent')}")
        return self.count

    def bind(self, context: Context) -> Importance:
        given = self.probabilities
        if given is None:
            problem, algorithm = context.task
            given = problem.sampling_probabilities(algorithm, context.exact)
        q = np.asarray(given, dtype=float)
        return Importance(self.count, q / q.sum())

    def tick(self, key: Key, p: Array, round: Array) -> Tick:
        return _with_replacement(key, p, jnp.asarray(self.probabilities), self.count)

    def known_moments(self, p: np.ndarray) -> Moments:
        return replacement_moments(p, np.asarray(self.probabilities), self.count)

    def known_lineups(self, p: np.ndarray, most: int) -> Lineups | None:
        return _draws(p, np.asarray(self.probabilities), self.count, most)


def _with_replacement(key: Key, p: Array, q: Array, count: int) -> Tick:
    edges = jnp.cumsum(q)
    agents = jnp.searchsorted(edges, key.row().uniform((count,)) * edges[-1], side="right")
    agents = jnp.sort(jnp.minimum(agents, p.shape[0] - 1).astype(jnp.int32))
    first = jnp.concatenate([jnp.ones(1, bool), agents[1:] != agents[:-1]])
    times = jnp.searchsorted(agents, agents, side="right") - jnp.searchsorted(agents, agents, side="left")
    share = jnp.where(first, p[agents], 0.0)
    weight = times * share / (count * q[agents])
    return Tick(agents, first, weight, share, jnp.sum(first, dtype=jnp.int32))


def _draws(p: np.ndarray, q: np.ndarray, count: int, most: int) -> Lineups | None:
    few = math.comb(len(p) + count - 1, count) <= most
    return lineups.listed(lineups.draws(p, q, count)) if few else None
