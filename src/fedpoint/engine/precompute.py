"""What is random does not depend on the state: it is drawn ahead, for a chunk of rounds at once."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedpoint.core.random import Key, Stream
from fedpoint.core.types import Data, Function, Number, Tree
from fedpoint.core.vector import take
from fedpoint.engine.cluster.fence import separate
from fedpoint.engine.layout import Layout, draw_samples, over_agents
from fedpoint.engine.state import Inputs
from fedpoint.problems.oracle import Mine
from fedpoint.timing.base import Tick


class Precomputed(NamedTuple):
    """What is fetched and drawn ahead for the agents of a round; None where it is done on the spot."""

    own: Data = None
    plan: Tree = None
    samples: Data = None


NOTHING_PRECOMPUTED = Precomputed()


def precompute(layout: Layout, inputs: Inputs, ticks: Tick, key: Key, rounds: Array, once: Array) -> Precomputed:
    """For a chunk of rounds: (rounds, slots, ...)."""
    oracle, common = layout.oracle, inputs.common
    who, axis = (jnp.arange(layout.agents, dtype=jnp.int32), inputs.own), None
    if ticks.agents is not None:
        who, axis = (ticks.agents, take(inputs.own, ticks.agents)), 0
    fetched = who[1] if layout.fetch and axis == 0 else None  # everyone: nothing to fetch
    if layout.blocks is not None or layout.exact or oracle.moves or (layout.samples is None and oracle.predraw):
        return Precomputed(fetched)

    def each(function: Function, of_round: Tree, of_agent: Tree = ()) -> Tree:
        """function(agent, own, of_round, of_agent) for every round and agent."""

        def one(who: Tree, of_round: Tree, of_agent: Tree) -> Tree:
            return over_agents(layout, lambda w, a: function(*w, of_round, a), who, of_agent)

        if layout.mapped and axis == 0:
            return lax.map(lambda a: one(*a), (who, of_round, of_agent))
        if layout.mapped:
            return lax.map(lambda a: one(who, *a), (of_round, of_agent))
        return jax.vmap(one, in_axes=(axis, 0, 0))(who, of_round, of_agent)

    # A late answer was worked out in the round in which it was asked for.
    when = () if not layout.topology.late or ticks.age is None else rounds[:, None] - ticks.age

    def plan(agent: Array, own: Data, round: Array, when: Array) -> Tree:
        return oracle.plan(Mine(own, common), Stream(key, when if layout.topology.late else round, agent))

    plans = each(plan, rounds, when)
    if layout.samples is None:
        return Precomputed(fetched, plans)
    steps = jnp.arange(layout.samples)
    if layout.topology.late:

        def late(agent: Array, own: Data, _: Array, planned: tuple[Tree, Array]) -> Data:
            plan, when = planned
            return draw_samples(oracle, Mine(own, common), plan, jax.vmap(Stream(key, when, agent).row)(steps))

        drawn = each(late, rounds, (plans, when))
        return Precomputed(fetched, plans, oracle.fetch(common, drawn) if oracle.fetches else drawn)

    def draw(plans: Tree, keys: Key) -> Data:
        def one(agent: Array, own: Data, keys: Key, plan: Tree) -> Data:
            return draw_samples(oracle, Mine(own, common), plan, jax.vmap(lambda k: k.row(agent))(keys))

        return each(one, keys, plans)

    keys = layout.tuning.computed_once(once, jax.vmap(lambda r: jax.vmap(lambda e: key.fold(r, e))(steps)), rounds)
    if oracle.fetches:
        return Precomputed(fetched, plans, oracle.fetch(common, layout.tuning.computed_once(once, draw, plans, keys)))
    return Precomputed(fetched, plans, draw(plans, keys))


def draw_in_round(layout: Layout, inputs: Inputs, agents: Array, own: Data, key: Key, round: Number) -> Precomputed:
    """What a chunk's agents draw in a round: at once, so that a key is hashed for a step and not for every number."""
    oracle = layout.oracle
    if inputs.part is None or layout.samples is None or layout.topology.late or oracle.moves:
        return NOTHING_PRECOMPUTED
    once = jnp.minimum(inputs.part.blocks, 1)
    keys = layout.tuning.computed_once(once, jax.vmap(lambda e: key.fold(round, e)), jnp.arange(layout.samples))

    def draw(agents: Array, own: Data) -> tuple[Tree, Data]:
        def one(agent: Array, own: Data) -> tuple[Tree, Data]:
            mine = Mine(own, inputs.common)
            plan = oracle.plan(mine, Stream(key, round, agent))
            return plan, draw_samples(oracle, mine, plan, jax.vmap(lambda k: k.row(agent))(keys))

        return over_agents(layout, one, agents, own)

    plans, drawn = separate(layout, inputs, draw, agents, own)
    return Precomputed(None, plans, oracle.fetch(inputs.common, drawn) if oracle.fetches else drawn)
