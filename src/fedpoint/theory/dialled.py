"""How does a round change as its luck is turned up? Agents whose samples deviate from their mean by a dial: 0 is the
expected round, 1 the drawn one, -1 its mirror image."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedpoint.core.agent import Agent
from fedpoint.core.compiling import fairly_quickly
from fedpoint.core.record import with_leaves
from fedpoint.core.types import Model, Number, Tree
from fedpoint.core.vector import unwrap, wrap
from fedpoint.engine.precompute import NOTHING_PRECOMPUTED
from fedpoint.engine.round import Keys, one_round
from fedpoint.engine.state import RunState
from fedpoint.theory.drawn_rounds import DrawnRounds, tick_of
from fedpoint.theory.expected_round import Numbers, OnAverage, memories, over_outcomes, rows, start_at
from fedpoint.theory.space import Space, flat
from fedpoint.timing.base import Tick

AT_ONCE = 64  # draws


class Dialled(Agent):
    """An agent whose luck is turned by a dial: 0 is its mean, 1 as it is."""

    dial: Number = 1.0

    @classmethod
    def of(cls, agent: Agent, dial: Number) -> Dialled:
        made = cls(agent._oracle, agent._mine, agent._stream, agent._plan, agent._samples, agent._exact, agent.share)
        made.dial = dial
        return made

    def field(self, w: Model, e: Number = 0) -> Model:
        mean = wrap(self._oracle.mean_field(self._mine, unwrap(w)))
        sample = super().field(w, e)
        return jax.tree.map(lambda m, s: m + self.dial * (s - m), mean, sample)

    def normal(self, like: Tree) -> Tree:
        return jax.tree.map(lambda a: self.dial * a, super().normal(like))

    def uniform(self, like: Tree) -> Tree:
        return jax.tree.map(lambda a: 0.5 + self.dial * (a - 0.5), super().uniform(like))


class Turned(OnAverage):
    """A method whose agents' luck is turned by a dial; they take the mean over their numbers of steps."""

    dial: Tree

    def calmed(self, agent: Agent) -> Agent:
        return Dialled.of(agent, self.dial)


def turned_round(
    space: Space, numbers: Numbers, keys: Keys, round: Array, few: bool = False
) -> Callable[[Array, Array], Array]:
    """One round from x as a map of (x, dial). Everyone is heard with the mean weights; where the hub makes something
    else of these than of those of every lineup, or only a few shall work, a drawn lineup is."""
    agents, alike = numbers.p.shape[0], numbers.cases.chance.shape[0] == 1 and not few
    case = jax.tree.map(lambda a: a[0], numbers.cases)
    everyone = Tick(None, jnp.ones(agents, bool), case.weight, numbers.p * case.heard, jnp.int32(agents))
    tick = everyone if alike else tick_of(DrawnRounds(space, numbers, keys), round)

    def after(one: Numbers, x: Array, dial: Array) -> Array:
        hub, m = start_at(one, x.astype(one.p.dtype), 0)
        state = RunState(hub, memories(space, one, hub, m), one.mail, ())
        turned = Turned(one.algorithm, one.late[0], one.late[1], one.drawn.agent, dial=0.0)
        inputs = one.inputs._replace(algorithm=with_leaves(turned, {"dial": dial}))
        state = one_round(space.layout, inputs, state, (tick, tick), NOTHING_PRECOMPUTED, keys, round)
        new = rows(space, one.algorithm, state.hub, state.memory, agents)
        if alike:
            new = m + case.heard[:, None] * (new - m)
        return jnp.concatenate([flat(state.hub), new.ravel()])

    return lambda x, dial: over_outcomes(numbers, lambda one: after(one, x, dial))


@partial(fairly_quickly, static_argnums=(0, 5))
def mirrored_inside(space: Space, numbers: Numbers, keys: Keys, x: Array, rounds: Array, few: bool) -> Array:
    """(rounds, n): how far noise inside drawn rounds moves them from where exact fields lead, to even orders: the mean
    of each and its mirror image. few: a drawn lineup works, else everyone, which is cheaper for each of them."""
    alike = numbers.cases.chance.shape[0] == 1 and not few
    dials = jnp.array([1.0, -1.0]) if alike else jnp.array([1.0, -1.0, 0.0])

    def draw(round: Array, dials: Array) -> Array:
        turned = turned_round(space, numbers, keys, round, few)
        each = lax.map(lambda dial: turned(x, dial.astype(numbers.p.dtype)), dials)
        return each[:2].mean(0) - (0.0 if alike else each[2])

    found = lax.map(lambda round: draw(round, dials), rounds)
    return found - draw(rounds[0], jnp.zeros(2)) if alike else found


@partial(fairly_quickly, static_argnums=(0, 5))
def moved_inside(space: Space, numbers: Numbers, keys: Keys, x: Array, first: Array, count: int) -> Array:
    """(count, n): how far noise inside drawn rounds moves them from where exact fields lead. Of every draw its linear
    part, whose mean is zero, is subtracted."""
    none, all_ = jnp.zeros(()), jnp.ones(())

    def draw(round: Array) -> Array:
        turned = turned_round(space, numbers, keys, round)
        centre, moved = jax.jvp(lambda dial: turned(x, dial), (none,), (all_,))
        return turned(x, all_) - centre - moved

    return lax.map(draw, first + jnp.arange(count), batch_size=1 if space.layout.mapped else AT_ONCE)
