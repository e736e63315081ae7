"""Who works now, with what weight, and how old is what is heard? One interface, with a hub and on a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.errors import FedpointError
from fedpoint.core.random import Key
from fedpoint.core.record import Record, untouched
from fedpoint.timing.lineups import Lineups
from fedpoint.timing.tick_law import Laws, MergeLaw

if TYPE_CHECKING:  # asked, not known: these lie above
    from fedpoint.core.algorithm import Algorithm
    from fedpoint.graphs.network import Network
    from fedpoint.problems.base import Problem


class Tick(NamedTuple):
    """One round of a timing.

    Attributes:
        agents: (L,) the agents that work, by number; None: everyone, in the agents' own order.
        heard: (L,) whether an agent works and is heard; False where the place is empty or repeats an agent.
        weight: (L,) v_k, zero where no answer came; None on a network, whose edges weigh.
        share: (L,) p_k, zero likewise.
        asked: how many agents were sent the model.
        merge: False abandons the round; None: every round is merged.
        age: (L,) how many versions of the hub's model ago an answer was asked for; None: now.
    """

    agents: Array | None  # (L,) indices
    heard: Array  # (L,) bool: works, and is heard; False: the place is empty, or repeats an agent
    weight: Array | None = None  # (L,) v_k, zero where no answer came; None on a network, whose edges weigh
    share: Array | None = None  # (L,) p_k, zero likewise
    asked: Array | None = None  # how many agents were sent the model
    merge: Array | None = None  # bool: False abandons the round
    age: Array | None = None  # (L,) how many versions of the hub's model ago an answer was asked for; None: now

    @classmethod
    def of(cls, agents: Array, weight: Array, heard: Array | None = None) -> Tick:
        """A round in which these agents, all different, are asked: their weights v, and who of them is heard.

        Args:
            agents: (L,) their numbers.
            weight: (L,) their weights v.
            heard: (L,) whether each is heard; None: all are.
        """
        agents = jnp.asarray(agents, jnp.int32)
        return cls(agents, jnp.ones(agents.shape, bool) if heard is None else heard, jnp.asarray(weight))


class Context(NamedTuple):
    """What a timing may want to know of the experiment before its first round."""

    problem: Problem | None = None
    algorithm: Algorithm | None = None
    network: Network | None = None
    exact: bool = False
    seed: int = 0
    repeats: int = 1
    rounds: int = 1  # it has to be good for so many

    @property
    def graph(self) -> Network:
        """The network, where a schedule is one for its nodes: it is refused without."""
        return cast("Network", self.network)

    @property
    def task(self) -> tuple[Problem, Algorithm]:
        """Problem and method, which are known with a fusion center."""
        return cast("Problem", self.problem), cast("Algorithm", self.algorithm)


class Moments(NamedTuple):
    """First and second moments of a round's weights v_k and of s_k = 1 where agent k is heard, given that it merges.

    Cov[(v, s)] = blockdiag_k [[vv, vs], [vs, ss]]_k + sum_r scale_r factor_r factor_r': agents are nearly independent.
    """

    merge: float  # the probability that a round is merged at all
    mean: np.ndarray  # (K,) E v_k: p_k where the scheme is unbiased
    heard: np.ndarray  # (K,) E s_k
    own: np.ndarray  # (3, K): vv, vs, ss
    scale: np.ndarray  # (R,)
    factor: np.ndarray  # (R, 2, K): of v, of s
    sampled: bool = False  # estimated from drawn rounds, not exact
    independent: bool = True  # False: who works in a round depends on who did in others

    def columns(self) -> tuple[np.ndarray, np.ndarray]:
        """(1 + R, K) of v and of s: their means, then the factors that agents share."""
        v, s = np.moveaxis(self.factor, 1, 0)
        return np.concatenate([self.mean[None], v]), np.concatenate([self.heard[None], s])

    def second(self) -> np.ndarray:
        """(3, K): E v_k^2, E v_k s_k, E s_k^2."""
        v, s = self.factor[:, 0], self.factor[:, 1]
        cov = self.own + np.stack([self.scale @ (v * v), self.scale @ (v * s), self.scale @ (s * s)])
        return cov + np.stack([self.mean**2, self.mean * self.heard, self.heard**2])


class Timing(Record):
    """When agents work. `Participation` and `Schedule` say it for a fusion center and for networks.

    Arguments of methods:
        key: the key of all rounds.
        p: (K,) the agents' weights.
        round: its number.
        agents: how many there are.
        most: how many possibilities may be listed.
    """

    drawn = True  # False: every round is the same, so there is nothing to draw ahead
    abandons = False  # a round may end without a merge
    all_heard = False  # every place is a different agent, and is heard
    everyone = False  # everyone is heard in every round that is merged
    per_repeat = False  # its arrays lead with the repeats: a timetable for each
    on_network = False  # for the nodes of a network
    in_step = False  # on a network: all nodes work in every tick, and what they hear was said in the last one
    links_fail = False  # on a network: what does not come is taken back by who sent it (`up`)
    on_clock = False  # worked out event by event, on a clock: it has no expected round
    late = False  # answers may come from older models
    rebase = False  # a late answer is merged as a model, not as a change

    def slots(self, agents: int) -> int:
        """How many places a round has, at most; the place to refuse what does not fit the number of agents."""
        raise FedpointError(f"{type(self).__name__} does not say how many work in a round: define slots(self, agents)")

    def bind(self, context: Context) -> Timing:
        """The same with what it needs of the experiment.

        Args:
            context: what a timing may know of the experiment.
        """
        return self

    def tick(self, key: Key, p: Array, round: Array) -> Tick:
        """Who works in a round. With a fusion center the key is the round's own."""
        raise FedpointError(f"{type(self).__name__} does not say who works: define tick(self, key, p, round)")

    def key_of(self, key: Key, round: Array) -> Key:
        """The key that `tick` gets for a round, from that of all rounds."""
        return key

    def completed(self, key: Key, p: Array, round: Array) -> Tick:
        """`tick` with what it need not say."""
        return self.tick(key, p, round)

    def at(self, key: Key, p: Array, round: Array) -> Tick:
        """The tick of a round, complete, from the key of all rounds."""
        return self.completed(self.key_of(key, round), p, round)

    def age(self, key: Key, round: Array, arc: Array, says: Array) -> Array:
        """How many rounds old is what is heard over each arc of a network, from the node `says`.

        Args:
            arc: the number of each arc.
            says: the node at its beginning.
        """
        return jnp.zeros_like(arc)

    def up(self, key: Key, round: Array, link: Array) -> Array:
        """The part of each of these links of a network that is there in a round: 0, 1, or between on average.

        Args:
            link: the number of each link.
        """
        return jnp.ones(link.shape)

    def on_average(self) -> Timing | None:
        """On a network in step: with links as they are on average, for expected rounds; None: they do not fail."""
        return None

    def weight_scale(self, p: np.ndarray) -> float | None:
        """v_k / p_k, where it is one number for all who are heard, in every round; None: weights vary. Noise that is to
        hide an agent is scaled by the largest weight, which must be fixed and public."""
        return None

    def least_heard(self, agents: int) -> int:
        """So many are heard in a round that merges, or more."""
        return self.slots(agents) if self.all_heard else 1

    def rounds_apart(self, agents: int) -> int | None:
        """An agent that is heard is heard again after so many rounds at the earliest, whatever is drawn; None: there is
        no such bound. Noise that is correlated between rounds hides whoever is bounded."""
        return None

    def depth(self, rounds: int) -> int:
        """How many of a sender's last messages are needed in a run of so many rounds.

        Args:
            rounds: of the run.
        """
        return 1

    def moments(self, p: np.ndarray) -> Moments:
        """Moments of a round's weights, for forecasts: here of everyone, as if the nodes of a network were in step."""
        K = len(p)
        return Moments(1.0, p, np.ones(K), np.zeros((3, K)), np.zeros(0), np.zeros((0, 2, K)))

    def lineups(self, p: np.ndarray) -> Lineups:
        """Who may be heard in a round, for forecasts of hubs that do not merge linearly: here everyone."""
        return Lineups(np.ones(1), p[None], np.ones((1, len(p))))

    def laws(self, agents: int, most: int) -> Laws | str:
        """What is known of the ticks of a network, for forecasts; at most so many where something is drawn for the
        whole run. Or why nothing is known."""
        known = self.known_laws(agents, most) if untouched(type(self), "known_laws", Timing) else None
        return f"{type(self).__name__} does not tell the law of its ticks" if known is None else known

    def known_laws(self, agents: int, most: int) -> Laws | str | None:
        """The same, where a schedule knows them."""
        return None

    def merge_law(self, p: np.ndarray, most: int) -> MergeLaw | str:
        """Of answers that are merged as they come, for forecasts: at most so many ways in which they may, or why merges
        are not independent of each other."""
        return "what happens next depends on what is under way"

    def in_rounds(self, agents: int) -> Timing | None:
        """The same without its clock, for forecasts; None where time decides what is merged, or there is no clock."""
        return None

    def bound(self) -> int | None:
        """B of partial asynchrony: every B rounds in a row contain one of each node's, ages are at most B; or None."""
        return None

    def times(self) -> np.ndarray | None:
        """(repeats, rounds): virtual seconds at the end of each round, where there is a clock."""
        return None

    def names(self) -> tuple[str, ...]:
        """The classes it is made of, outermost first."""
        return (type(self).__name__,)

    def tiled(self, times: int) -> Self:
        """The same for so many copies of its repeats.

        Args:
            times: how many copies.
        """
        if not self.per_repeat:
            return self
        return jax.tree.map(lambda a: np.tile(a, (times, *(1,) * (a.ndim - 1))), self)
