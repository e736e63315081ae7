"""What does the next round need? Numbers that are traced, where a run is, and where it begins."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.mail import open_mail
from fedpoint.core.random import NO_LUCK, Key, Stream
from fedpoint.problems.base import Mine
from fedpoint.runtimes.layout import Layout
from fedpoint.runtimes.wiring import Wiring, hear, inbox_of

AGENTS, SCHEDULE, HUB = 0, 1, 2  # purposes of random numbers


class Inputs(NamedTuple):
    """The numbers of a run: traced."""

    algorithm: Any
    participation: Any
    own: Any
    common: Any
    p: Array
    wires: Any = ()
    part: Any = ()  # which agents are this process's, where there are several


def names_of(inputs: Inputs, places: Array) -> Array:
    """The numbers of the agents at these places of this process's arrays."""
    return places if isinstance(inputs.part, tuple) and not inputs.part else places + inputs.part.first


def seeds_of(seed: int, repeats: int) -> tuple:
    """Keys of every repeat, for agents, schedule and hub."""
    repeat = np.arange(repeats)
    return tuple(tuple(Key.of(seed, repeat, purpose)) for purpose in (AGENTS, SCHEDULE, HUB))


class State(NamedTuple):
    """All that the next round needs, and what was used so far (models sent, answers, field evaluations).

    `mail` is what was said and may still be heard: () with a fusion center that waits for its answers. `used` is ()
    when every round uses the same, known beforehand. On a network hubs lead with the nodes' axis. `world` is where the
    agents' worlds are, where these go on between rounds.
    """

    hub: Any
    memory: Any
    mail: Any
    used: Any
    world: Any = ()


class Records(NamedTuple):
    """What is kept of a round."""

    model: Any
    used: Any


def start_state(algorithm: Any, model: Any, agents: int, counted: bool, late: int = 0) -> State:
    """With a fusion center. `late` versions of what the hub said are kept, where answers may come late."""
    hub, one = jax.tree.map(lambda a: a if hasattr(a, "dtype") else np.asarray(a), algorithm.init(model))
    memory = jax.tree.map(lambda a: a[None].repeat(agents, 0), one)  # by NumPy, where the model is NumPy's
    mail: Any = ()
    if late:
        said = algorithm.say(hub, NO_LUCK.row())
        mail = open_mail(jax.tree.map(lambda a: jnp.asarray(a)[None], said), max(late, 2))
    return State(hub, memory, mail, none_used(counted))


def start_network(algorithm: Any, models: Any, wiring: Wiring, wires: Any, counted: bool) -> State:
    """On a network: models lead with the nodes' axis. Everybody has heard what the neighbours start from."""
    hub, memory = jax.vmap(algorithm.init)(models)
    if algorithm.hello is None:
        return State(hub, memory, open_mail(base_of(algorithm, hub), wiring.depth), none_used(counted))
    mail = open_mail(jax.vmap(algorithm.hello)(models), wiring.depth)
    total = hear(wiring, wires, mail, None, lambda arc, says: jnp.zeros_like(arc), 0)
    hub = jax.vmap(algorithm.combine)(hub, inbox_of(total, wires.mass))
    return State(hub, memory, mail, none_used(counted))


def start_worlds(layout: Layout, inputs: Inputs, seeds: tuple) -> Any:
    """(repeats, agents, ...): where the agents' worlds begin; () where they do not go on between rounds."""
    if layout.exact or not layout.oracle.moves:
        return ()

    def begin(low, high):
        def one(own, agent):
            return layout.oracle.begin(Mine(own, inputs.common), Stream(Key(low, high), jnp.int32(-1), agent))

        return jax.vmap(one)(inputs.own, names_of(inputs, jnp.arange(layout.agents, dtype=jnp.int32)))

    return jax.vmap(begin)(*seeds[AGENTS])


def none_used(counted: bool) -> Any:
    return np.zeros(3, np.int64) if counted else ()


def base_of(algorithm: Any, hub: Any) -> Any:
    """What the changes of nodes with these hubs are changes of."""
    row = NO_LUCK.row()
    return jax.vmap(lambda h: algorithm.base(algorithm.say(h, row)))(hub)
