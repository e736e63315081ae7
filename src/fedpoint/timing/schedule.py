"""When does a node of a network work, and how old is what it hears? Lecture 003's asynchronous execution.

Ticks are numbered from 0. Version k of a node's message is the one before tick k; a node that works in tick k hears
version k - age of each neighbour, and its own model is never stale. Synchronous: all work in every tick, and every age
is 0. Everything random is a function of (tick, node or arc), so that the same luck is found again when looking back.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.random import Key
from fedpoint.core.types import Number
from fedpoint.timing.base import Tick, Timing
from fedpoint.timing.tick_law import Laws, TickLaw, subset_law

WORKS, LOST, LATE, AWAY, PHASE, LINK = 1, 2, 3, 4, 5, 6  # purposes of a schedule's random numbers
PLACES = 0x91ACE  # of a forecast's sample of them


class Schedule(Timing):
    """How the nodes of a network take turns. Subclass it and write `tick`, `slots`, `age` and `depth` for your own; the
    key is that of all rounds, so that a tick can look back at the luck of earlier ones."""

    on_network = True

    def slots(self, agents: int) -> int:
        return agents


def check_chance(name: str, value: float, least_open: bool = False) -> None:
    if not 0 <= value <= 1 or (least_open and value == 0):
        low = "above 0" if least_open else "at least 0"
        raise FedpointError(f"{name} must be a probability, {low} and at most 1, got {value!r}")


def check_whole(name: str, value: int, least: int) -> None:
    if value < least:
        raise FedpointError(f"{name} must be a whole number, at least {least}, got {value!r}")


def _luck(key: Key, purpose: int, tick: Number, index: Array) -> Array:
    """Uniform on (0, 1), by (tick, index)."""
    return key.fold(tick, purpose).row().uniform_at(index)


class Together(Schedule):
    """All nodes work in every tick, and what they hear was said in the last one."""

    drawn = False
    all_heard = True
    in_step = True

    def tick(self, key: Key, p: Array, round: Array) -> Tick:
        return Tick(None, jnp.ones(len(p), bool))


class Synchronous(Together):
    """All nodes work in every tick and hear what the others said in the last one."""

    def known_laws(self, agents: int, most: int) -> Laws:
        return Laws((TickLaw(np.ones((1, agents)), np.zeros(0)),))

    def bound(self) -> int | None:
        return 1


class Links(Together):
    """All nodes work in every tick, over links of which a part is there: what links are on average.

    Args:
        share: that part.
    """

    links_fail = True

    share: float

    def up(self, key: Key, round: Array, link: Array) -> Array:
        return jnp.full(link.shape, self.share)

    def known_laws(self, agents: int, most: int) -> str:
        return "links fail"


class RandomLinks(Together):
    """All nodes work in every tick, and each link between two of them fails with probability `loss`, independently.

    Both ends know of it: a node uses its own message in place of one that did not arrive, so that no weight is lost
    and mixing matrices stay doubly stochastic. On a directed network the sender keeps what it could not pass on.

    Args:
        loss: the probability that a link fails in a tick, both ways.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [2.0]])
    >>> net = fp.Network.complete(2, weight=0.25)
    >>> f = fp.forecast(fp.Diffusion(step=0.5), quad, network=net, schedule=fp.RandomLinks(0.5), exact=True)
    >>> f.limit.ravel().round(6), round(f.variance, 6)       # 1 -+ 3/5, as with half the weight; (1/25) (32/27)
    (array([0.4, 1.6]), 0.047407)
    """

    links_fail = True

    loss: float

    def check(self) -> None:
        check_chance("RandomLinks: loss", self.loss)
        if self.loss >= 1:
            raise FedpointError("RandomLinks: with loss = 1 no message ever comes: take one below")

    def up(self, key: Key, round: Array, link: Array) -> Array:
        return (_luck(key, LINK, round, link) >= self.loss) * 1.0

    def on_average(self) -> Links:
        return Links(1.0 - self.loss)

    def known_laws(self, agents: int, most: int) -> str:
        return "links fail"


class RandomActivation(Schedule):
    """`count` nodes, uniformly drawn, work in a tick; what they hear is fresh.

    Args:
        count: how many nodes work in a tick.
    """

    all_heard = True

    count: int = 1

    def check(self) -> None:
        check_whole("RandomActivation: count", self.count, 1)

    def slots(self, agents: int) -> int:
        if self.count > agents:
            raise FedpointError(f"RandomActivation: {counted(self.count, 'node')} of {agents} cannot work in a tick")
        return self.count

    def tick(self, key: Key, p: Array, round: Array) -> Tick:
        return Tick(key.fold(round).row().subset(self.count, len(p)), jnp.ones(self.count, bool))

    def known_laws(self, agents: int, most: int) -> Laws:
        return Laws((subset_law(agents, self.count),))


class PartiallyAsynchronous(Schedule):
    """Partially asynchronous with bound B (lecture 003).

    Each node works with probability `activity`, and at its own fixed place in every B ticks in any case. What it sends
    takes 0 to `delay` ticks (uniformly, for each message; default B), and gets lost with probability `loss`: a node
    hears the newest message that has arrived, and what is B ticks old in any case.

    Args:
        bounded: B, in ticks.
        activity: the probability that a node works in a tick.
        delay: the longest that a message takes, in ticks, uniformly from 0 on; None: B.
        loss: the probability that a message gets lost.
        away: the probability that a node is away for a stretch, in which it works only where the bound demands it.
        stretch: the length of such a stretch, in ticks.
    """

    bounded: int
    activity: float = 0.5
    delay: int | None = None
    loss: float = 0.0
    away: float = 0.0
    stretch: int = 10

    def check(self) -> None:
        check_whole("PartiallyAsynchronous: bounded", self.bounded, 1)
        check_chance("PartiallyAsynchronous: activity", self.activity)
        check_chance("PartiallyAsynchronous: loss", self.loss)
        check_chance("PartiallyAsynchronous: away", self.away)
        check_whole("PartiallyAsynchronous: stretch", self.stretch, 1)
        if self.delay is not None:
            check_whole("PartiallyAsynchronous: delay", self.delay, 0)
            if self.delay > self.bounded:
                raise FedpointError(
                    f"PartiallyAsynchronous: a delay of {counted(self.delay, 'tick')} exceeds the bound of "
                    f"{self.bounded}"
                )

    def works(self, key: Key, tick: Number, node: Array) -> Array:
        """Whether these nodes work in a tick.

        Args:
            key: the key of all rounds.
            tick: its number.
            node: the numbers of the nodes.
        """
        here = _luck(key, AWAY, tick // self.stretch, node) >= self.away
        luck = here & (_luck(key, WORKS, tick, node) < self.activity)
        place = jnp.floor(_luck(key, PHASE, 0, node) * self.bounded).astype(jnp.int32)
        return luck | (tick % self.bounded == place)

    def tick(self, key: Key, p: Array, round: Array) -> Tick:
        return Tick(None, self.works(key, round, jnp.arange(len(p))))

    def age(self, key: Key, round: Array, arc: Array, says: Array) -> Array:
        most = self.bounded if self.delay is None else self.delay

        def newer(i: Array, age: Array) -> Array:
            a = self.bounded - 1 - i
            version = round - a  # sent in the round before
            sent = self.works(key, version - 1, says) | (version <= 0)
            late = jnp.floor(_luck(key, LATE, version, arc) * (most + 1)).astype(jnp.int32)
            arrived = sent & (late <= a) & (_luck(key, LOST, version, arc) >= self.loss)
            return jnp.where(arrived, a, age)

        age = lax.fori_loop(0, self.bounded, newer, jnp.full(arc.shape, self.bounded, jnp.int32))
        return jnp.minimum(age, round)

    def depth(self, rounds: int) -> int:
        return self.bounded + 1

    def known_laws(self, agents: int, most: int) -> Laws | str:
        if self.away > 0 and self.activity > 0:
            return "nodes are away for stretches of ticks, which are then not independent"
        B, late = self.bounded, self.bounded if self.delay is None else self.delay
        arrives = (1 - self.loss) * np.minimum((1 + np.arange(B)) / (late + 1), 1)
        arrives = arrives[: B if self.loss > 0 else late]  # where nothing gets lost, all is there after the delay
        places, drawn = _places(B, agents, most if self.activity < 1 else 1)

        def law(place: np.ndarray) -> TickLaw:
            return TickLaw(np.where(np.arange(B)[:, None] == place, 1.0, self.activity), arrives)

        if self.activity >= 1:
            return Laws((TickLaw(np.ones((1, agents)), arrives),))
        return Laws(tuple(law(place) for place in places), drawn)

    def bound(self) -> int | None:
        return self.bounded


def _places(bounded: int, nodes: int, most: int) -> tuple[np.ndarray, bool]:
    """(n, K): where in every `bounded` ticks each node works in any case, and whether that is a sample of all."""
    if bounded**nodes <= most:
        return np.indices((bounded,) * nodes).reshape(nodes, -1).T, False
    luck, rows = np.random.default_rng(PLACES), bounded * -(-most // bounded)  # every place of a node equally often
    return np.stack([luck.permutation(np.arange(rows) % bounded) for _ in range(nodes)], axis=1), True


class TotallyAsynchronous(Schedule):
    """Unbounded delays that advance: each arc's age is uniform on 0 to growth x tick; nodes work by chance.

    Totally asynchronous (lecture 003): every node works again and again, and what is heard is ever newer, but no bound
    holds. All messages of the last growth x ticks ticks are kept.

    Args:
        growth: the part of the time so far that a message may be old.
        activity: the probability that a node works in a tick.
    """

    growth: float = 0.5
    activity: float = 0.5

    def check(self) -> None:
        if not 0 <= self.growth < 1:
            raise FedpointError(f"TotallyAsynchronous: growth must be at least 0 and below 1, got {self.growth!r}")
        check_chance("TotallyAsynchronous: activity", self.activity, least_open=True)

    def tick(self, key: Key, p: Array, round: Array) -> Tick:
        return Tick(None, _luck(key, WORKS, round, jnp.arange(len(p))) < self.activity)

    def age(self, key: Key, round: Array, arc: Array, says: Array) -> Array:
        return jnp.floor(_luck(key, LATE, round, arc) * (1 + jnp.floor(self.growth * round))).astype(jnp.int32)

    def depth(self, rounds: int) -> int:
        return max(2, int(np.floor(float(self.growth) * rounds)) + 1)


class WorstCase(Schedule):
    """The slowest schedule with bound B: all work in the last of every B ticks, and hear what is B ticks old.

    It attains the bound V_k <= kappa^(1 + floor((k - B)/(2B))) V_0 of `fp.theory.asynchronous`.

    Args:
        bounded: B, in ticks.
    """

    bounded: int

    def check(self) -> None:
        check_whole("WorstCase: bounded", self.bounded, 1)

    def tick(self, key: Key, p: Array, round: Array) -> Tick:
        return Tick(None, jnp.full(len(p), round % self.bounded == self.bounded - 1))

    def age(self, key: Key, round: Array, arc: Array, says: Array) -> Array:
        return jnp.full(arc.shape, jnp.minimum(self.bounded, round), jnp.int32)

    def depth(self, rounds: int) -> int:
        return self.bounded + 1

    def known_laws(self, agents: int, most: int) -> Laws:
        last = (np.arange(self.bounded) == self.bounded - 1).astype(float)
        return Laws((TickLaw(np.repeat(last[:, None], agents, axis=1), np.zeros(self.bounded)),))

    def bound(self) -> int | None:
        return self.bounded
