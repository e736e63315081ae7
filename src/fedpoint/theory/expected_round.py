"""What does a round do on average? Exact fields, weights replaced by their means, draws by their chances.

Memories move with the probability of being heard. It is the expectation of the random round where fields are affine and
the hub merges linearly; elsewhere it is the round without noise, and a forecast says so.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import split_per_agent
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import NO_LUCK
from fedpoint.core.record import with_leaves
from fedpoint.core.steps import Stragglers
from fedpoint.core.vector import zeros
from fedpoint.problems.base import Mine, per_agent
from fedpoint.theory.space import Space, fill, flat, floats, memory_of, take_leaves


class Numbers(NamedTuple):
    """The numbers of a setting: traced, so that other hyper-parameters do not compile again."""

    algorithm: Any
    own: Any
    common: Any
    p: Any
    mean: Any  # E v_k
    heard: Any  # P(agent k is heard)
    merge: Any  # P(a round is merged)
    model: Any
    chances: tuple[Array, Array]  # probabilities of the hub's draws, and what they set
    late: tuple[Array, Array]  # the same for an agent's own draws (stragglers)
    drawn: Any  # names of the fields these two set: structure


class Drawn(NamedTuple):
    hub: str | None
    agent: str | None


jax.tree_util.register_pytree_node(Drawn, lambda d: ((), (d.hub, d.agent)), lambda aux, _: Drawn(*aux))


def unroll(algorithm: Any, symmetric: bool):
    """An algorithm without randomness of its own: with the fields that its draws set, and their chances.

    symmetric: fields are gradients, whose slopes have real eigenvalues.
    """
    certain = (np.ones(1), np.zeros(1, np.int32))
    hub, agent, chances, late = None, None, certain, certain
    told = algorithm.chances() if symmetric else algorithm.every_chance()
    if told is not None:
        hub, values, probabilities = told
        chances = (np.asarray(probabilities, float), np.asarray(values))
        algorithm = with_leaves(algorithm, **{hub: chances[1][0]})
    steps = getattr(algorithm, "local_steps", None)
    if isinstance(steps, Stragglers):
        agent, E, f = "local_steps", int(steps.steps), float(steps.fraction)
        each = np.full(E, f / E)
        each[-1] += 1 - f
        some = each > 0
        late = (each[some], np.arange(1, E + 1, dtype=np.int32)[some])
        algorithm = with_leaves(algorithm, local_steps=late[1][0])
    return algorithm, Drawn(hub, agent), chances, late


def trace_steps(algorithm: Any) -> Any:
    """Whole numbers of local steps as numbers that are traced: another count does not compile again."""
    steps = getattr(algorithm, "local_steps", None)
    return with_leaves(algorithm, local_steps=np.int32(steps)) if isinstance(steps, int) else algorithm


def most_steps(algorithm: Any, chances: Any, late: Any, coarse: bool) -> int:
    """A bound on local steps, so that few programs are compiled: 1, 2, 4, ...; 8, 64, ... where coarse."""
    steps = getattr(algorithm, "local_steps", 1)
    steps = 1 if steps is None else getattr(steps, "steps", steps)
    top = max(int(np.max(np.asarray(steps))), int(np.max(chances[1])), int(np.max(late[1])))
    bound, factor = (8, 8) if coarse else (1, 2)
    while bound < top:
        bound *= factor
    return bound


def over_outcomes(numbers: Numbers, function) -> Any:
    """sum of chance x function(numbers with the hub's draw decided)."""
    if numbers.drawn.hub is None:
        return function(numbers)
    probabilities, values = numbers.chances
    names = numbers.drawn.hub

    def one(total, chance):
        probability, value = chance
        out = function(numbers._replace(algorithm=with_leaves(numbers.algorithm, **{names: value})))
        return jax.tree.map(lambda t, a: t + probability * a, total, out), None

    return lax.scan(one, zeros(jax.eval_shape(function, numbers)), (probabilities, values))[0]


def local_round(space: Space, numbers: Numbers, algorithm: Any, agent: Agent, hub: Any, m: Array) -> tuple[Any, Any]:
    """One agent's message and its memory, not yet settled."""
    heard = algorithm.say(hub, NO_LUCK.row())
    memory = memory_of(space, algorithm, hub, numbers.model, m)
    return algorithm.local(heard, memory, agent)


def over_late(numbers: Numbers, algorithm: Any, function) -> Any:
    """function(algorithm) averaged over an agent's own draws."""
    if numbers.drawn.agent is None:
        return function(algorithm)
    probabilities, values = numbers.late
    outs = jax.vmap(lambda v: function(with_leaves(algorithm, **{numbers.drawn.agent: v})))(values)
    return jnp.tensordot(probabilities, outs, axes=1)


def template(space: Space, oracle: Any, numbers: Numbers) -> tuple[Any, Any]:
    """Shapes of a message and of a memory."""

    def both(numbers):
        algorithm = one_agent(numbers, 0)
        hub, memory = numbers.algorithm.init(numbers.model)
        mine = Mine(jax.tree.map(lambda a: a[0], numbers.own), numbers.common)
        agent = Agent(oracle, mine, NO_LUCK, None, None, True, 0, numbers.p[0])
        heard = algorithm.say(hub, NO_LUCK.row())
        return algorithm.local(heard, memory, agent)

    return jax.eval_shape(both, numbers)


def one_agent(numbers: Numbers, index: Any) -> Any:
    """The algorithm with one agent's hyper-parameters."""
    tuned, put = split_per_agent(numbers.algorithm, numbers.p.shape[0])
    return put(jax.tree.map(lambda a: a[index], tuned))


def expected(oracle: Any, space: Space, numbers: Numbers, hub: Any, m: Array, round: Any) -> tuple[Any, Array]:
    """One expected round: the hub and every agent's floats."""
    u, new = over_outcomes(numbers, lambda one: _merged(oracle, space, one, hub, m, round))
    keep = 1 - numbers.merge
    hub = count_on(hub)
    return fill(hub, keep * flat(hub) + numbers.merge * u), keep * m + numbers.merge * new


def count_on(hub: Any) -> Any:
    """The hub with its counters of rounds gone on by one."""
    return jax.tree.map(lambda a: a if jnp.issubdtype(jnp.result_type(a), jnp.floating) else a + 1, hub)


def _merged(oracle, space, numbers, hub, m, round):
    message, memory = template(space, oracle, numbers)
    tuned, put = split_per_agent(numbers.algorithm, numbers.p.shape[0])
    size = sum(int(np.prod(a.shape)) for a in jax.tree.leaves(message))

    def work(k):
        own, tuned, m, share = k
        agent_algorithm = put(tuned)

        def run(algorithm):
            agent = Agent(oracle, Mine(own, numbers.common), NO_LUCK, None, None, True, round, share)
            sent, new = local_round(space, numbers, algorithm, agent, hub, m)
            return jnp.concatenate([flat(sent), flat(new)])

        return over_late(numbers, agent_algorithm, run)

    out = per_agent(work, (numbers.own, tuned, m, numbers.p))
    sent, new = out[:, :size], out[:, size:]
    share = numbers.p * numbers.heard
    inbox = Inbox(fill(message, numbers.mean @ sent), fill(message, share @ sent), share.sum(), numbers.mean.sum())
    hub = numbers.algorithm.combine(hub, inbox)

    def settle(new):
        return flat(take_leaves(numbers.algorithm.settle(hub, fill(memory, new)), space.kept))

    return flat(hub), m + numbers.heard[:, None] * (jax.vmap(settle)(new) - m) if space.kept else m


def hub_at(numbers: Numbers, round: Any) -> Any:
    """The hub before a round, for its structure: its counters have counted the rounds."""
    hub = numbers.algorithm.init(numbers.model)[0]
    return jax.tree.map(lambda a: a if jnp.issubdtype(jnp.result_type(a), jnp.floating) else a + round, hub)


def start_at(numbers: Numbers, x: Array, round: Any) -> tuple[Any, Array]:
    """Hub and memories from a flat state."""
    hub = hub_at(numbers, round)
    size = sum(int(np.prod(np.shape(a))) for a in floats(hub))
    return fill(hub, x[:size]), x[size:].reshape(numbers.p.shape[0], -1)
