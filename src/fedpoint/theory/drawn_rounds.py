"""What does a round do with all its luck? The engine's own round, drawn, as a map of the state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpoint.core.random import Key
from fedpoint.core.types import State
from fedpoint.core.vector import zeros
from fedpoint.engine.precompute import NOTHING_PRECOMPUTED
from fedpoint.engine.round import Keys, one_round
from fedpoint.engine.session import cast
from fedpoint.engine.state import AGENTS, HUB, SCHEDULE, RunState, start_worlds
from fedpoint.theory.expected_round import Numbers, memories, rows, start_at, template
from fedpoint.theory.operator import Setting
from fedpoint.theory.space import Space, flat
from fedpoint.timing.base import Tick

FOUND = 0x57A7  # of where worlds are found


class DrawnRounds(NamedTuple):
    """Rounds with all their luck: how they are executed, their numbers, and the keys of what they draw."""

    space: Space
    numbers: Numbers
    keys: Keys

    @classmethod
    def of(cls, setting: Setting, seed: int) -> DrawnRounds:
        inputs = setting.numbers.inputs._replace(
            timing=setting.bound.in_step().timing, channel=cast(setting.bound.channel, float)
        )
        layout = dataclasses.replace(setting.space.layout, exact=setting.exact)
        keys = (Key.of(seed, 0, AGENTS), Key.of(seed, 0, SCHEDULE), Key.of(seed, 0, HUB))
        return cls(setting.space._replace(layout=layout), setting.numbers._replace(inputs=jax.device_put(inputs)), keys)


def wire_of(drawn: DrawnRounds) -> State:
    """What the channel keeps at all agents before the first round."""
    channel, agents = drawn.numbers.inputs.channel, drawn.numbers.p.shape[0]
    one = channel.init(zeros(template(drawn.space, drawn.numbers)[0]))
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (agents, *jnp.shape(a))), one)


def tick_of(drawn: DrawnRounds, round: Array) -> Tick:
    """Who works in a round, and with what weight."""
    inputs = drawn.numbers.inputs
    return inputs.timing.at(drawn.keys[1], inputs.p, round)


def drawn_round(drawn: DrawnRounds, round: Array) -> Callable[[Array, State], tuple[Array, State]]:
    """One drawn round as a map of the state and of what the channel keeps."""
    space, numbers, keys = drawn
    layout, inputs, agents = space.layout, numbers.inputs, numbers.p.shape[0]
    tick = tick_of(drawn, round)
    # A world that goes on is found somewhere: rounds are drawn as if far apart.
    found = keys[0].fold(round, FOUND)
    found = jax.tree.map(lambda a: jnp.asarray(a)[None], (tuple(found),))
    worlds = jax.tree.map(lambda a: a[0], start_worlds(layout, inputs, found))

    def move(x: Array, wire: State) -> tuple[Array, State]:
        hub, m = start_at(numbers, x, 0)  # the draws are the round's; the algorithm's clock stands still
        begun = RunState(hub, memories(space, numbers, hub, m), numbers.mail, (), worlds, wire)
        state = one_round(layout, inputs, begun, (tick, tick), NOTHING_PRECOMPUTED, keys, round)
        settled = rows(space, inputs.algorithm, state.hub, state.memory, agents)
        return jnp.concatenate([flat(state.hub), settled.ravel()]), state.wire

    return move
