"""What does a round do on average? Exact fields, weights replaced by their means, draws by their chances.

Memories move with the probability of being heard. It is the expectation of the random round where fields are affine and
the hub merges linearly; elsewhere it is the round without noise, and a forecast says so.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import NO_LUCK, Stream
from fedpoint.core.record import one_agent, split_per_agent, with_leaves
from fedpoint.core.steps import Stragglers, chances_of_steps
from fedpoint.core.steps import most_steps as most_of
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
    drawn: Drawn


class Drawn(NamedTuple):
    """Whether the hub draws something, and an agent its number of steps: structure."""

    hub: bool
    agent: bool


jax.tree_util.register_pytree_node(Drawn, lambda d: ((), (d.hub, d.agent)), lambda aux, _: Drawn(*aux))


class Draws(NamedTuple):
    """What a method draws beside its samples: values and probabilities, one certain value where it draws nothing."""

    drawn: Drawn
    chances: tuple[np.ndarray, np.ndarray]
    late: tuple[np.ndarray, np.ndarray]


def draws_of(algorithm: Algorithm, symmetric: bool) -> Draws:
    """symmetric: fields are gradients, whose slopes have real eigenvalues."""
    certain = (np.ones(1), np.zeros(1, np.int32))
    told = algorithm.gradient_outcomes() if symmetric else algorithm.outcomes()
    chances = certain if told is None else (np.asarray(told.probabilities, float), np.asarray(told.values))
    straggles = isinstance(algorithm.local_steps, Stragglers)
    late = certain
    if straggles:
        each, counts = zip(*chances_of_steps(algorithm.local_steps, 1), strict=True)
        late = (np.array(each), np.concatenate(counts).astype(np.int32))
    return Draws(Drawn(told is not None, straggles), chances, late)


def decided(algorithm: Algorithm, count: Any) -> Algorithm:
    """The method, at any depth, of an agent that takes so many steps where it might straggle."""

    def straggles(value: Any) -> bool:
        return isinstance(value, Stragglers)

    return jax.tree.map(lambda a: count if straggles(a) else a, algorithm, is_leaf=straggles)


def trace_steps(algorithm: Algorithm) -> Algorithm:
    """Whole numbers of local steps as numbers that are traced: another count does not compile again."""
    steps = algorithm.local_steps
    own = any(f.name == "local_steps" for f in dataclasses.fields(algorithm))
    return with_leaves(algorithm, {"local_steps": np.int32(steps)}) if own and isinstance(steps, int) else algorithm


def most_steps(algorithm: Algorithm, draws: Draws, coarse: bool) -> int:
    """A bound on local steps, so that few programs are compiled: 1, 2, 4, ...; 8, 64, ... where coarse."""
    top = max(int(np.max(counts)) for counts in (most_of(algorithm.local_steps), draws.chances[1], draws.late[1]))
    bound, factor = (8, 8) if coarse else (1, 2)
    while bound < top:
        bound *= factor
    return bound


def over_outcomes(numbers: Numbers, function) -> Any:
    """sum of chance x function(numbers with the hub's draw decided)."""
    if not numbers.drawn.hub:
        return function(numbers)
    probabilities, values = numbers.chances

    def one(total, chance):
        probability, value = chance
        out = function(numbers._replace(algorithm=numbers.algorithm.given(value)))
        return jax.tree.map(lambda t, a: t + probability * a, total, out), None

    return lax.scan(one, zeros(jax.eval_shape(function, numbers)), (probabilities, values))[0]


def local_round(space: Space, numbers: Numbers, algorithm: Any, agent: Agent, hub: Any, m: Array) -> tuple[Any, Any]:
    """One agent's message and its memory, not yet settled."""
    heard = algorithm.say(hub, NO_LUCK.row())
    memory = memory_of(space, algorithm, hub, numbers.model, m)
    return algorithm.local(heard, memory, agent)


def over_late(numbers: Numbers, algorithm: Any, function) -> Any:
    """function(algorithm) averaged over an agent's own draws."""
    if not numbers.drawn.agent:
        return function(algorithm)
    probabilities, values = numbers.late
    outs = jax.vmap(lambda v: function(decided(algorithm, v)))(values)
    return jnp.tensordot(probabilities, outs, axes=1)


def template(space: Space, oracle: Any, numbers: Numbers) -> tuple[Any, Any]:
    """Shapes of a message and of a memory."""

    def both(numbers):
        algorithm = one_agent(numbers.algorithm, 0)
        hub, memory = numbers.algorithm.init(numbers.model)
        mine = Mine(jax.tree.map(lambda a: a[0], numbers.own), numbers.common)
        agent = Agent(oracle, mine, Stream(NO_LUCK, 0, 0), None, None, True, numbers.p[0])
        heard = algorithm.say(hub, NO_LUCK.row())
        return algorithm.local(heard, memory, agent)

    return jax.eval_shape(both, numbers)


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
    tuned, put = split_per_agent(numbers.algorithm)
    size = sum(int(np.prod(a.shape)) for a in jax.tree.leaves(message))

    def work(k):
        own, tuned, m, share = k
        agent_algorithm = put(tuned)

        def run(algorithm):
            stream = Stream(NO_LUCK, round, 0)
            agent = Agent(oracle, Mine(own, numbers.common), stream, None, None, True, share)
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
