"""Who takes part in a round, and with which weight is an answer merged?

Every scheme names its participants by index, so a round costs O(L), and gives weights v with E sum_k v_k m_k =
sum_k p_k m_k: weights for *changes*. They need not sum to one, and are never renormalised over the sample.
"""

from __future__ import annotations

import bisect
import io
import math
from pathlib import Path
from typing import TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.arrays import floats
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.files import read_file
from fedpoint.core.memory_limits import memory
from fedpoint.core.numbers import counted
from fedpoint.core.random import Key
from fedpoint.core.record import untouched
from fedpoint.core.types import Number
from fedpoint.core.vector import take
from fedpoint.timing import lineups
from fedpoint.timing.base import Context, Moments, Tick, Timing
from fedpoint.timing.lineups import Lineups
from fedpoint.timing.moments import drawn_rounds, replacement_moments, sampled_moments, subset_moments

__all__ = ["Answering", "ByWeight", "Everyone", "Importance", "Participation", "Poisson", "Uniform", "read_trace"]

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
    """Each agent by itself with the same probability q, v_k = p_k / q: rounds in which nobody takes part included.

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
            raise FedpointError(f"Poisson: the probability must lie above 0 and at most at 1, got {self.probability}")
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


class Answering(Participation):
    """Agents that do not always answer, around any scheme.

    Weights stay unbiased: with one probability (or a trace, read as such) the answers stand for all who were
    asked, v (asked / merged); with different probabilities, v_k over the chance that agent k answers and enough
    others do for the `minimum`.

    Args:
        scheme: who is asked; for over-selection ask more agents than you need, and set `keep`.
        probability: that an agent answers: one for all, or one per agent.
        trace: in the place of `probability`: a table (rounds, agents) of who is there, repeated when it ends.
        keep: merge at most so many answers, the first to arrive (in a uniformly random order); None: all.
        minimum: with fewer answers the round is abandoned, and model and memories stay.
    """

    abandons = True

    scheme: Participation
    probability: Number | None = None
    trace: ArrayLike | None = None
    keep: int | None = None
    minimum: int = 1

    def check(self) -> None:
        if isinstance(self.scheme, Answering):
            raise FedpointError("Answering: the scheme is itself Answering: give one, with the product of the chances")
        if (self.probability is None) == (self.trace is None):
            raise FedpointError("Answering: give either a probability or a trace")
        a = self.probability
        if a is not None and not ((floats(a) > 0) & (floats(a) <= 1)).all():
            raise FedpointError("Answering: probabilities must lie above 0 and at most at 1")
        if self.keep is not None and a is not None and np.ndim(a):
            raise FedpointError(
                "Answering: keeping only the first answers favours agents that answer often, and their chances "
                "then have no simple correction: give one probability for all, or leave out keep"
            )
        if self.trace is not None and (np.ndim(self.trace) != 2 or not np.isin(self.trace, (0, 1)).all()):
            raise FedpointError("Answering: the trace must be a table of 0 and 1, one row a round, one column an agent")
        if self.keep is not None and self.keep < 1:
            raise FedpointError(f"Answering: keep must be at least 1, got {self.keep}")
        if self.minimum < 1 or (self.keep is not None and self.minimum > self.keep):
            raise FedpointError(f"Answering: minimum must be at least 1 and at most keep, got {self.minimum}")

    @property
    def everyone(self) -> bool:  # type: ignore[override]
        """A trace of rounds in which everybody answers, and of others that are abandoned."""
        if self.trace is None or self.keep is not None or not self.scheme.everyone:
            return False
        rows = np.asarray(self.trace)
        return bool((rows == rows[:, :1]).all())

    def names(self) -> tuple[str, ...]:
        inner = self.scheme.names()
        return inner if self.everyone else (type(self).__name__, *inner)

    def slots(self, agents: int) -> int:
        count = self.scheme.slots(agents)
        if self.minimum > count:
            raise FedpointError(
                f"Answering: a minimum of {counted(self.minimum, 'answer')}, but only {counted(count, 'agent')} asked"
            )
        for name, table in (("probabilities", self.probability), ("columns in the trace", self.trace)):
            if table is not None and np.ndim(table) and np.shape(table)[-1] != agents:
                raise FedpointError(f"Answering: {np.shape(table)[-1]} {name} for {counted(agents, 'agent')}")
        return count

    def bind(self, context: Context) -> Answering:
        scheme = self.scheme.bind(context)
        trace = None if self.trace is None else np.asarray(self.trace, dtype=np.uint8)
        return Answering(scheme, self.probability, trace, self.keep, self.minimum)

    def least_heard(self, agents: int) -> int:
        return min(self.minimum, self.scheme.least_heard(agents))

    def _chance(self, agents: Array) -> Array:
        """That these agents answer: (L,), or one number for all."""
        chance = jnp.asarray(self.probability)
        return chance[agents] if chance.ndim else chance

    def tick(self, key: Key, p: Array, round: Array) -> Tick:
        asked = _completed(self.scheme.tick(key, p, round), p)
        agents = jnp.arange(p.shape[0]) if asked.agents is None else asked.agents
        if self.trace is not None:
            there = jnp.asarray(self.trace)
            answers = there[round % there.shape[0], agents] > 0
        else:
            answers = key.fold(1).row().uniform_at(agents) < self._chance(agents)
        answers = answers & asked.heard
        if self.keep is not None:
            arrival = jnp.where(answers, key.fold(2).row().uniform_at(agents), 2.0)
            answers = answers & (jnp.argsort(jnp.argsort(arrival)) < self.keep)
        # The answers stand for all that were asked.
        merged = jnp.sum(answers)
        if self.trace is None and jnp.ndim(jnp.asarray(self.probability)):
            scale = 1.0 / self._chance(agents)
            if self.minimum > 1:
                scale = scale / _others_answer(jnp.where(asked.heard, self._chance(agents), 0.0), self.minimum - 1)
        else:
            scale = jnp.sum(asked.heard) / jnp.maximum(merged, 1)
        weight, share = cast(Array, asked.weight), cast(Array, asked.share)  # a completed tick has both
        zero = jnp.zeros_like(weight)
        return Tick(
            asked.agents,
            answers,
            jnp.where(answers, weight * scale, zero),
            jnp.where(answers, share, zero),
            asked.asked,
            merged >= self.minimum,
        )

    def known_moments(self, p: np.ndarray) -> Moments | None:
        """Where those who answer are a uniform subset of a random size: it is as if so many were asked."""
        uniform = isinstance(self.scheme, Everyone | Uniform) and self.scheme.knows_moments()
        if self.probability is None or np.ndim(self.probability) or not uniform:
            return None
        asked, a = self.scheme.slots(len(p)), float(self.probability)
        chance = np.array([math.comb(asked, r) * a**r * (1 - a) ** (asked - r) for r in range(asked + 1)])
        merged: dict[int, float] = {}
        for r in range(self.minimum, asked + 1):
            size = r if self.keep is None else min(r, self.keep)
            merged[size] = merged.get(size, 0.0) + chance[r]
        return subset_moments(p, merged, isinstance(self.scheme, Uniform) and self.scheme.plain)

    def known_lineups(self, p: np.ndarray, most: int) -> Lineups | None:
        if self.probability is None:
            return None
        equal = not np.ndim(self.probability)
        if self.minimum > 1 and not equal:
            return None
        slots = min(self.scheme.slots(len(p)), len(p))
        kept = 1 if self.keep is None else math.comb(slots, min(self.keep, slots // 2))  # of one set of answers
        few = AGAIN * most // (2**slots * kept)
        asked = self.scheme.known_lineups(p, few) if self.scheme.knows_moments() else None
        if asked is None:
            return None
        chance = np.broadcast_to(floats(self.probability), len(p))
        found = lineups.listed(lineups.answers(asked, chance, self.keep, self.minimum, equal))
        return found if found is not None and len(found.chance) <= most else None


def _draws(p: np.ndarray, q: np.ndarray, count: int, most: int) -> Lineups | None:
    few = math.comb(len(p) + count - 1, count) <= most
    return lineups.listed(lineups.draws(p, q, count)) if few else None


def _others_answer(chance: Array, least: int) -> Array:
    """(L,): the probability that at least `least` of the other slots answer, slot j with chance[j]."""
    slots = jnp.arange(chance.shape[0])

    def without(slot: Array) -> Array:
        def add(
            few: Array, one: tuple[Array, Array]
        ) -> tuple[Array, None]:  # few[i]: the probability of i answers so far, i < least
            index, a = one
            a = jnp.where(index == slot, 0.0, a)
            return few * (1 - a) + a * jnp.concatenate([jnp.zeros(1), few[:-1]]), None

        none = jnp.zeros(least).at[0].set(1.0)
        return 1.0 - lax.scan(add, none, (slots, chance))[0].sum()

    return jnp.maximum(jax.vmap(without)(slots), 1e-12)


SCHEMES = {c.__name__.lower(): c for c in (Everyone, Uniform, Poisson, ByWeight, Importance, Answering)}


Who: TypeAlias = Participation | int | str | None  # as users say it


def as_participation(value: Who) -> Participation:
    """None is everyone, a number L is Uniform(L), other schemes are objects."""
    if value is None:
        return Everyone()
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return Uniform(int(value))
    if isinstance(value, str):
        if value.lower() not in SCHEMES:
            raise FedpointError(f"unknown participation {value!r}: {nearest(value, SCHEMES)}")
        if value.lower() != "everyone":
            name = SCHEMES[value.lower()].__name__
            raise FedpointError(
                f"participation {value!r} needs its numbers: give an object such as fp.participation.{name}(...)"
            )
        return Everyone()
    if isinstance(value, Participation):
        return value
    raise FedpointError(f"participation must be a number of agents or a scheme such as fp.Uniform(10), got {value!r}")


@checked
def read_trace(path: str | Path) -> np.ndarray:
    """Read a table of who was there: comma-separated 0 and 1, one row per round, one column per agent.

    Args:
        path: the CSV file.
    """
    try:
        table = np.loadtxt(io.BytesIO(read_file(path, memory() // 4)), delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise FedpointError(f"availability trace {path}: {error}") from None
    if not np.isin(table, (0, 1)).all():
        row, column = np.argwhere(~np.isin(table, (0, 1)))[0]
        raise FedpointError(
            f"availability trace {path}: row {row + 1}, column {column + 1} is {table[row, column]:g}; "
            "a cell is 1 (there) or 0 (away)"
        )
    return table.astype(np.uint8)
