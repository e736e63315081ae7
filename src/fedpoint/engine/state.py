"""What does the next round need? Numbers that are traced, where a run is, and where it begins."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.attack import Attack
from fedpoint.channel import Channel
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.random import NO_LUCK, Key, Stream
from fedpoint.core.record import one_agent
from fedpoint.core.types import Data, Message, Model, State, Tree
from fedpoint.core.vector import take
from fedpoint.engine.layout import Layout
from fedpoint.gather import Gather
from fedpoint.graphs.topology import NO_BRANCHES, Branches, Used
from fedpoint.graphs.wiring import NOT_WIRED, Wires
from fedpoint.problems.oracle import Mine
from fedpoint.timing.base import Tick, Timing

AGENTS, SCHEDULE, HUB = 0, 1, 2  # purposes of random numbers
Seeds: TypeAlias = tuple[Tree, ...]  # both words of every repeat's key, for each purpose


class Part(NamedTuple):
    """Which agents are a process's, where there are several."""

    first: Array  # the number of its first agent
    blocks: Array  # how many it has
    edges: Array  # (most + 1,): agents at which its blocks begin, and the last ends
    boundary: Tree = ()  # (H,): places of its nodes that others hear


class AtHand(NamedTuple):
    """Whose memories a state holds, where the others' are on disk, and who works in the rounds that they are for."""

    place: Array  # (K,) where an agent's are; of who does not work in these rounds: anywhere
    turns: Tick  # (rounds, ...)
    first: Array  # the first of these rounds


class Inputs(NamedTuple):
    """The numbers of a run: traced."""

    algorithm: Algorithm
    timing: Timing
    own: Data
    common: Data
    p: Array
    channel: Channel
    gather: Gather
    wires: Wires = NOT_WIRED
    part: Part | None = None
    attack: Attack | None = None
    branches: Branches = NO_BRANCHES
    at_hand: AtHand | None = None

    def rows_of(self, who: Array | None) -> Array | None:
        """Where these agents' memories are in the state's arrays; None: all, in the agents' own order."""
        return who if self.at_hand is None or who is None else take(self.at_hand.place, who)


def names_of(inputs: Inputs, places: Array) -> Array:
    """The numbers of the agents at these places of this process's arrays."""
    return places if inputs.part is None else places + inputs.part.first


def seeds_of(seed: int, repeats: int) -> Seeds:
    """Keys of every repeat, for agents, timing and hub."""
    repeat = np.arange(repeats)
    return tuple(tuple(Key.of(seed, repeat, purpose)) for purpose in (AGENTS, SCHEDULE, HUB))


class Traffic(NamedTuple):
    """What a round moves: numbers in one message down and up, bytes of a number down and of a message up, and (models
    sent, answers, field evaluations) of a round where they are always the same, else None. hub: numbers that a hub
    holds, which hubs of regions tell each other. exchanges: messages each way between the hub and an agent, a round."""

    down: float
    up: float
    width: int
    up_bytes: float
    used: Used | None = None
    samples: int | None = None  # of one agent in a round, where tracing tells
    hub: float = 0
    exchanges: int = 1


class RunState(NamedTuple):
    """All that the next round needs, and what was used so far (models sent, answers, field evaluations).

    `mail` is what was said and may still be heard: () with a fusion center that waits for its answers. `used` is ()
    when every round uses the same, known beforehand. On a network hubs lead with the nodes' axis. `world` is where the
    agents' worlds are, where these go on between rounds; `wire` what the channel keeps at the agents.
    """

    hub: State
    memory: State
    mail: State
    used: Tree
    world: State = ()
    wire: State = ()


class Records(NamedTuple):
    """What is kept of a round; `metrics` by name, () where none were asked for."""

    model: Model
    used: Tree
    metrics: Tree = ()


def start_state(layout: Layout, inputs: Inputs, models: Model, counted: bool) -> RunState:
    """Before the first round, of one repeat; models as the topology has them."""
    topology, algorithm = layout.topology, inputs.algorithm
    begun = topology.begin(algorithm, models, inputs.wires, layout.held)
    wire: State = ()
    if not inputs.channel.is_identity():
        one = inputs.channel.init(message_like(layout, inputs, topology.one(models)))
        wire = jax.tree.map(lambda a: jnp.broadcast_to(a, (layout.held, *jnp.shape(a))), one)
    return RunState(*begun, none_used(counted), wire=wire)


def trial(layout: Layout, inputs: Inputs, model: Model) -> tuple[State, Message, Agent]:
    """What an agent hears in the first round, what it answers, and the agent as it was used: for shapes."""
    algorithm = inputs.algorithm
    heard, memory = layout.topology.first_words(algorithm, model)
    mine = Mine(take(inputs.own, 0), inputs.common)
    agent = Agent(layout.oracle, mine, Stream(NO_LUCK, 0, 0), None, None, True, inputs.p[0])
    message = one_agent(algorithm, 0).local(heard, memory, agent)[0]
    return heard, message, agent


def message_like(layout: Layout, inputs: Inputs, model: Model) -> Message:
    """Zeros, in the shapes of what an agent sends; `model` is one."""
    shapes = jax.eval_shape(lambda w: trial(layout, inputs, w)[1], model)
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def start_worlds(layout: Layout, inputs: Inputs, seeds: Seeds) -> State:
    """(repeats, agents, ...): where the agents' worlds begin; () where they do not go on between rounds."""
    if layout.exact or not layout.oracle.moves:
        return ()

    def begin(low: Array, high: Array) -> State:
        def one(own: Data, agent: Array) -> State:
            return layout.oracle.begin(Mine(own, inputs.common), Stream(Key(low, high), jnp.int32(-1), agent))

        return jax.vmap(one)(inputs.own, names_of(inputs, jnp.arange(layout.agents, dtype=jnp.int32)))

    return jax.vmap(begin)(*seeds[AGENTS])


def none_used(counted: bool) -> np.ndarray | tuple:
    return np.zeros(3, np.int64) if counted else ()
