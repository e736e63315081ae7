"""What does a round do with all its luck? The engine's own round, drawn, as a map of the state."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.compiling import fairly_quickly
from fedpoint.core.precision import double
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

AT_ONCE = 8  # drawn rounds
FOUND = 0x57A7  # of where worlds are found


class DrawnRounds(NamedTuple):
    """Rounds with all their luck: how they are executed, their numbers, and the keys of what they draw."""

    space: Space
    numbers: Numbers
    keys: Keys

    @classmethod
    def of(cls, setting: Setting, seed: int, rough: bool = False) -> DrawnRounds:
        """rough: in single precision where models are large, for `after`."""
        numbers = setting.rough if rough else setting.numbers
        channel = cast(setting.bound.channel, numbers.p.dtype)
        inputs = numbers.inputs._replace(timing=setting.bound.in_step().timing, channel=channel)
        layout = dataclasses.replace(setting.space.layout, exact=setting.exact)
        if rough:
            layout = dataclasses.replace(layout, mapped=setting.large(setting.exact))
        keys = (Key.of(seed, 0, AGENTS), Key.of(seed, 0, SCHEDULE), Key.of(seed, 0, HUB))
        return cls(setting.space._replace(layout=layout), numbers._replace(inputs=jax.device_put(inputs)), keys)


def wire_of(drawn: DrawnRounds) -> State:
    """What the channel keeps at all agents before the first round."""
    channel, agents = drawn.numbers.inputs.channel, drawn.numbers.p.shape[0]
    one = channel.init(zeros(template(drawn.space, drawn.numbers)[0]))
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (agents, *jnp.shape(a))), one)


@partial(fairly_quickly, static_argnums=0)
def _after(space: Space, parts: tuple, rounds: Array, states: Array) -> tuple[Array, Array, Array]:
    drawn, agents = DrawnRounds(space, *parts), parts[0].p.shape[0]
    wire = wire_of(drawn)

    def one(k: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        tick = tick_of(drawn, k[0])
        who = jnp.arange(agents) if tick.agents is None else tick.agents
        weight = jnp.zeros(agents).at[who].add(jnp.where(tick.heard, typing.cast(Array, tick.weight), 0.0))
        heard = jnp.zeros(agents).at[who].add(tick.heard * 1.0)
        return drawn_round(drawn, k[0])(k[1], wire)[0], weight, heard

    return lax.map(one, (rounds, states)) if space.layout.mapped else jax.vmap(one)((rounds, states))


class After(NamedTuple):
    """What drawn rounds make of states, and of each round the weights of all agents, and who is heard."""

    states: np.ndarray  # (m, n)
    weight: np.ndarray  # (m, K)
    heard: np.ndarray  # (m, K)


@double
def after(drawn: DrawnRounds, rounds: np.ndarray, states: np.ndarray) -> After:
    """Drawn rounds (m,), by their numbers, from states (m, n): one program for any number of them."""
    space, *parts = drawn
    extra = -len(rounds) % AT_ONCE
    rounds = np.concatenate([rounds, np.repeat(rounds[:1], extra)]).astype(np.int32)
    states = np.concatenate([states, np.repeat(states[:1], extra, axis=0)])
    found = [
        _after(space, tuple(parts), jnp.asarray(rounds[i : i + AT_ONCE]), jnp.asarray(states[i : i + AT_ONCE]))
        for i in range(0, len(rounds), AT_ONCE)
    ]
    whole = (np.concatenate([np.asarray(a) for a in column]) for column in zip(*found, strict=True))
    return After(*(a[: len(rounds) - extra] for a in whole))


def tick_of(drawn: DrawnRounds, round: Array) -> Tick:
    """Who works in a round, and with what weight."""
    inputs = drawn.numbers.inputs
    return inputs.timing.at(drawn.keys[1], inputs.p, round)


def drawn_round(drawn: DrawnRounds, round: Array) -> Callable[[Array, State], tuple[Array, State]]:
    """One drawn round as a map of the state and of what the channel keeps."""
    space, numbers, keys = drawn
    layout, inputs, agents = space.layout, numbers.inputs, numbers.p.shape[0]
    # A world that goes on is found somewhere: rounds are drawn as if far apart.
    found = keys[0].fold(round, FOUND)
    found = jax.tree.map(lambda a: jnp.asarray(a)[None], (tuple(found),))
    worlds = jax.tree.map(lambda a: a[0], start_worlds(layout, inputs, found))

    def exchange(number: Array, hub: State, state: RunState) -> tuple[State, RunState]:
        tick, begun = tick_of(drawn, number), state._replace(hub=hub)
        after = one_round(layout, inputs, begun, (tick, tick), NOTHING_PRECOMPUTED, keys, number)
        return after.hub, after._replace(hub=())

    def move(x: Array, wire: State) -> tuple[Array, State]:
        # The draws are the round's; the algorithm's clock stands still.
        hub, m = start_at(numbers, x.astype(numbers.p.dtype), 0)
        begun = RunState((), memories(space, numbers, hub, m), numbers.mail, (), worlds, wire)
        hub, state = layout.topology.round(inputs.branches, hub, begun, round, exchange)
        settled = rows(space, inputs.algorithm, hub, state.memory, agents)
        return jnp.concatenate([flat(hub), settled.ravel()]), state.wire

    return move
