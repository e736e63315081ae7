"""Hubs of hubs: agents answer to the hub of their region, and the regions' hubs meet at one hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.numbers import counted, there_are
from fedpoint.core.record import Record
from fedpoint.core.types import Function, Message, Number, State, Tree
from fedpoint.core.vector import take, where
from fedpoint.graphs.topology import Branches, Said, Star, Used
from fedpoint.timing.base import Tick

if TYPE_CHECKING:  # who calls: it lies above
    from fedpoint.engine.round import Round
    from fedpoint.engine.state import RunState


class Regions(Record):
    r"""Agents in regions, each with a hub of its own, below one hub: an option of an experiment.

    In a round every region goes through `rounds` rounds of the method by itself, from the model that all have in
    common. Then the regions' hubs are averaged, a region weighing what its agents weigh together:

    $$h_g^{0} = h, \qquad h_g^{r+1} = T_g(h_g^r), \qquad h^+ = \sum_g P_g h_g^R, \qquad P_g = \sum_{k \in g} p_k$$

    With one regional round, exact fields and everyone this is the method without regions. Who takes part is drawn anew
    in every regional round.

    Args:
        of: how many regions, of agents that follow each other, or the region of each agent (numbers or names).
        rounds: R, the regional rounds in a round.

    Arguments of methods:
        agents: how many there are.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0, 3.0, 4.0], [[0.0], [1.0], [2.0], [3.0]])
    >>> run = fp.run(fp.GradientExchange(step=0.1), quad, regions=fp.Regions(2, rounds=5), rounds=200)
    >>> quad.solution(), run.model[0].round(3)      # regions drift apart between two rounds
    (array([2.]), array([1.836]))
    """

    of: int | Sequence[int] | Sequence[str]
    rounds: int = 1

    def check(self) -> None:
        if self.rounds < 1:
            raise FedpointError(f"Regions: rounds must be at least 1, got {self.rounds}")
        if not isinstance(self.of, int | np.integer):
            object.__setattr__(self, "of", tuple(name if isinstance(name, str) else int(name) for name in self.of))
        elif self.of < 1:
            raise FedpointError(f"Regions: the number of regions must be at least 1, got {self.of}")

    def labels(self, agents: int) -> np.ndarray:
        """(K,) the number of each agent's region."""
        if isinstance(self.of, int | np.integer):
            if self.of > agents:
                raise FedpointError(f"Regions: {counted(self.of, 'region')}, but {there_are(agents, 'agent')}")
            return (np.arange(agents) * self.of // agents).astype(np.int32)
        if len(self.of) != agents:
            raise FedpointError(
                f"Regions: a region is given for {counted(len(self.of), 'agent')}, but {there_are(agents, 'agent')}"
            )
        return np.unique([str(name) for name in self.of], return_inverse=True)[1].astype(np.int32)

    def count(self, agents: int) -> int:
        """How many regions there are."""
        return int(self.labels(agents).max()) + 1

    def text(self, agents: int) -> str:
        """In a few words."""
        return f"{counted(self.count(agents), 'region')} with {counted(self.rounds, 'round')} each"

    def branches(self, p: np.ndarray) -> Branches:
        """Where agents answer, and what regions weigh.

        Args:
            p: (K,) the agents' weights.
        """
        region = self.labels(len(p))
        return Branches(region, np.bincount(region, weights=p))  # type: ignore[arg-type]


@dataclass(frozen=True)
class HubOfHubs(Star):
    """A star whose hub is G hubs during a round, each with its own agents. Between rounds it is one."""

    nested: ClassVar[bool] = True

    regions: int = 1
    exchanges: int = 1

    @property
    def adds_up(self) -> bool:
        return False

    def constant_use(self, slots: int, agents: int, evaluations: int) -> Used | None:
        sent = self.exchanges * slots
        return Used(sent, sent, sent * evaluations)

    def round(
        self, branches: Branches, hub: State, rest: Tree, number: Number, exchange: Function
    ) -> tuple[State, Tree]:
        """Regional rounds, each with luck of its own, and the mean of what came of them."""

        def regional(r: Number, carry: tuple[State, Tree]) -> tuple[State, Tree]:
            return exchange(number * self.exchanges + r, *carry)

        hubs = jax.tree.map(lambda a: jnp.broadcast_to(a, (self.regions, *jnp.shape(a))), hub)
        hubs, rest = lax.fori_loop(0, self.exchanges, regional, (hubs, rest))

        def mean(a: Array) -> Array:
            if not jnp.issubdtype(a.dtype, jnp.floating):
                return a[0]  # a counter of rounds
            return jnp.tensordot(branches.share.astype(a.dtype), a, axes=1)

        return jax.tree.map(mean, hubs), rest

    def say(self, at: Round, hub: State, agents: Array | None) -> State:
        return jax.vmap(lambda one, g: at.algorithm.say(one, at.hub_luck(g)))(hub, jnp.arange(self.regions))

    def words(self, at: Round, state: RunState, tick: Tick, said: State) -> Said:
        return Said(each=take(said, self._region(at, tick)))

    def inbox(self, at: Round, messages: Message, tick: Tick) -> Inbox:
        """Of every region: weights of its own agents, which sum to one where all of them answer."""
        region, share = self._region(at, tick), at.inputs.branches.share
        own = (region == jnp.arange(self.regions)[:, None]) / share[:, None]  # (G, L)
        return jax.vmap(lambda part: at.inputs.gather.inbox(messages, tick.weight * part, tick.share * part))(own)

    def listen(self, at: Round, state: RunState, sent: Inbox | None, tick: Tick, after: Tick) -> RunState:
        assert sent is not None
        hub = jax.vmap(at.algorithm.combine)(state.hub, sent)
        if at.inputs.timing.abandons and tick.merge is not None:
            hub = where(tick.merge, hub, state.hub)
        return state._replace(hub=hub)

    def _region(self, at: Round, tick: Tick) -> Array:
        """Of the agents of a tick."""
        return at.inputs.branches.region if tick.agents is None else at.inputs.branches.region[tick.agents]
