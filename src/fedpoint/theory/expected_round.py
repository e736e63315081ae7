"""What does a round do on average? The engine's own round with exact fields, weights replaced by their means, what
travels by what arrives of it on average, draws by their chances.

Memories move with the probability of being heard. It is the expectation of the random round where fields are affine and
the hub merges linearly. A hub that multiplies what it hears makes something else of the mean of what it may hear than
of each on average: there the mean is taken over all lineups. Elsewhere it is the round without noise, and a forecast
says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.channel import Channel
from fedpoint.channel.base import Hub
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm, owner_of
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.precision import double
from fedpoint.core.random import NO_LUCK, Key, Row, Stream
from fedpoint.core.record import one_agent, with_leaves
from fedpoint.core.steps import Stragglers, chances_of_steps
from fedpoint.core.steps import most_steps as most_of
from fedpoint.core.types import Message, Model, Number, State, Tree
from fedpoint.core.vector import zeros
from fedpoint.core.wrapped import Wrapped
from fedpoint.engine.precompute import NOTHING_PRECOMPUTED
from fedpoint.engine.round import one_round
from fedpoint.engine.state import Inputs, RunState
from fedpoint.problems.oracle import Mine
from fedpoint.theory.space import Space, fill, flat, is_real, memory_of, row_of, size_of
from fedpoint.timing.base import Tick

# What a method draws beside its samples.


class Drawn(NamedTuple):
    """Whether the hub draws something, and an agent its number of steps: structure."""

    hub: bool
    agent: bool


jax.tree_util.register_pytree_node(Drawn, lambda d: ((), (d.hub, d.agent)), lambda aux, _: Drawn(*aux))


class Chances(NamedTuple):
    """Of a draw; one certain value where nothing is drawn."""

    probability: Array
    value: Array


class Draws(NamedTuple):
    """What a method draws."""

    drawn: Drawn
    hub: Chances
    late: Chances  # numbers of steps of an agent that may straggle


def draws_of(algorithm: Algorithm, symmetric: bool) -> Draws:
    """symmetric: fields are gradients, whose slopes have real eigenvalues."""
    hub = late = Chances(*jax.device_put((np.ones(1), np.zeros(1, np.int32))))
    told = algorithm.gradient_outcomes() if symmetric else algorithm.outcomes()
    if told is not None:
        hub = Chances(*jax.device_put((np.asarray(told.probabilities, float), np.asarray(told.values))))
    straggles = isinstance(algorithm.local_steps, Stragglers)
    if straggles:
        each, counts = zip(*chances_of_steps(algorithm.local_steps, 1), strict=True)
        late = Chances(*jax.device_put((np.array(each), np.concatenate(counts).astype(np.int32))))
    return Draws(Drawn(told is not None, straggles), hub, late)


def check_say(algorithm: Algorithm, model: Model) -> None:
    """Refuse a hub that draws and does not tell what."""
    hub = algorithm.init(model)[0]
    drawn = [[np.asarray(a) for a in jax.tree.leaves(algorithm.say(hub, Key.of(seed).row()))] for seed in (1, 2, 3)]
    for other in drawn[1:]:
        if any((a != b).any() for a, b in zip(drawn[0], other, strict=True)):
            raise FedpointError(
                f"{type(algorithm).__name__}: its hub draws random numbers (say), and does not tell their chances: "
                "give it the methods `outcomes` and `given`, as Scaffnew has"
            )


def decided(algorithm: Algorithm, count: Number) -> Algorithm:
    """The method, at any depth, of an agent that takes so many steps where it might straggle."""

    def straggles(value: object) -> bool:
        return isinstance(value, Stragglers)

    return jax.tree.map(lambda a: count if straggles(a) else a, algorithm, is_leaf=straggles)


def trace_steps(algorithm: Algorithm) -> Algorithm:
    """Whole numbers of local steps, at any depth, as numbers that are traced: another count does not compile again."""
    if isinstance(algorithm, Wrapped):
        return with_leaves(algorithm, {"inner": trace_steps(algorithm.inner)})
    steps = algorithm.local_steps
    own = any(f.name == "local_steps" for f in dataclasses.fields(algorithm))
    return with_leaves(algorithm, {"local_steps": np.int32(steps)}) if own and isinstance(steps, int) else algorithm


def most_steps(algorithm: Algorithm, draws: Draws, coarse: int) -> int:
    """A bound on local steps, so that few programs are compiled: 1, 2, 4, ...; where coarse, that, 8 times that, ..."""
    top = max(int(np.max(counts)) for counts in (most_of(algorithm.local_steps), draws.hub[1], draws.late[1]))
    bound, factor = (coarse, 8) if coarse else (1, 2)
    while bound < top:
        bound *= factor
    return bound


class Cases(NamedTuple):
    """Whom a round that merges may hear: one case, of mean weights, or every lineup."""

    chance: Array  # (n,)
    weight: Array  # (n, K) v_k
    heard: Array  # (n, K)


class Numbers(NamedTuple):
    """The numbers of a setting: traced, so that other hyper-parameters do not compile again."""

    inputs: Inputs  # of the engine; the method as it is, the channel as it is on average
    mean: Array  # (K,) E v_k
    heard: Array  # (K,) P(agent k is heard)
    merge: Array  # P(a round is merged)
    cases: Cases
    model: Model  # one
    hub: State  # before the first round: one, or of every node
    mail: Tree  # likewise
    chances: Chances  # of the hub's draws
    late: Chances  # of an agent's own number of steps
    drawn: Drawn

    @property
    def algorithm(self) -> Algorithm:
        return self.inputs.algorithm

    @property
    def p(self) -> Array:
        return self.inputs.p

    def using(self, algorithm: Algorithm) -> Numbers:
        return self._replace(inputs=self.inputs._replace(algorithm=algorithm))


# The round without luck.


class Calm(Agent):
    """An agent whose own luck is its mean: 0 for normal numbers, 1/2 for uniform ones."""

    @classmethod
    def of(cls, agent: Agent) -> Calm:
        return cls(agent._oracle, agent._mine, agent._stream, None, None, True, agent.share)

    def normal(self, like: Tree) -> Tree:
        return zeros(like)

    def uniform(self, like: Tree) -> Tree:
        return jax.tree.map(lambda a: jnp.full_like(a, 0.5), like)

    def key(self) -> Array:
        raise FedpointError(
            "agent.key(): nothing is known of what is drawn with it. For a forecast draw with agent.normal(like) or "
            "agent.uniform(like)"
        )


class OnAverage(Wrapped):
    """A method whose agents have no luck, and take the mean over their numbers of steps."""

    probabilities: Tree
    counts: Tree
    straggles: bool

    def calmed(self, agent: Agent) -> Agent:
        return Calm.of(agent)

    def local(self, heard: State, memory: State, agent: Agent) -> tuple[Message, State]:
        if not self.straggles:
            return self.inner.local(heard, memory, self.calmed(agent))

        def late(count: Array) -> tuple[Message, State]:
            return decided(self.inner, count).local(heard, memory, self.calmed(agent))

        each = jax.vmap(late)(self.counts)
        return jax.tree.map(lambda a: jnp.tensordot(self.probabilities, a, axes=1) if is_real(a) else a[-1], each)


class CalmRow(Row):
    """Luck that is its mean: 0 for normal numbers, 1/2 for uniform ones."""

    __slots__ = ()

    def normal(self, shape: tuple[int, ...] = (), first: int = 0) -> Array:
        return jnp.zeros(shape)

    def uniform(self, shape: tuple[int, ...] = (), first: int = 0) -> Array:
        return jnp.full(shape, 0.5)


class CalmHub(Hub):
    """A hub whose luck is its mean, that of earlier rounds too."""

    __slots__ = ()

    def earlier(self, ago: int) -> Row:
        return self.luck


class Arriving(Channel):
    """What arrives over a channel on average, and its scatter; what a hub draws is its mean."""

    inner: Channel

    @property
    def lossless(self) -> bool:  # type: ignore[override]
        return self.inner.lossless

    def encode(self, message: Message, memory: State, agent: Agent) -> tuple[Message, State]:
        return self.inner.expected(message), memory

    def release(self, inbox: Inbox, hub: Hub) -> Inbox:
        return self.inner.release(inbox, CalmHub(CalmRow(*hub.luck), *hub[1:]))

    def scatter(self, second: Array, like: Message, share: Number) -> Array | None:
        return self.inner.scatter(second, like, share)

    def scatter_hub(self, like: Message, largest: Array) -> Array | None:
        return self.inner.scatter_hub(like, largest)


def arriving(channel: Channel) -> Channel:
    """The channel of an expected round: rounding is left out."""
    return Arriving(channel) if lossy(channel) else Channel()


def lossy(channel: Channel) -> bool:
    """What arrives over the channel is random, or a hub adds something random to it."""
    return not channel.lossless or owner_of(type(channel), "release") is not Channel


def over_outcomes(numbers: Numbers, function: Callable[[Numbers], Tree]) -> Tree:
    """sum of chance x function(numbers with the hub's draw decided)."""
    if not numbers.drawn.hub:
        return function(numbers)

    def one(total: Tree, chance: tuple[Array, Array]) -> tuple[Tree, None]:
        probability, value = chance
        out = function(numbers.using(numbers.algorithm.given(value)))
        return jax.tree.map(lambda t, a: t + probability * a, total, out), None

    return lax.scan(one, zeros(jax.eval_shape(function, numbers)), numbers.chances)[0]


def over_cases(numbers: Numbers, function: Callable[[Cases], Tree]) -> Tree:
    """sum of chance x function(case): what does not depend on who is heard is computed once."""
    cases = numbers.cases
    if cases.chance.shape[0] == 1:
        return function(jax.tree.map(lambda a: a[0], cases))
    return jax.tree.map(lambda a: jnp.tensordot(cases.chance, a, axes=1), jax.vmap(function)(cases))


def expected(space: Space, numbers: Numbers, hub: State, m: Array, round: Number) -> tuple[State, Array]:
    """One expected round: the hub and every agent's floats."""

    def exchange(number: Number, hub: State, m: Array) -> tuple[State, Array]:
        def merged(one: Numbers, case: Cases) -> tuple[Array, Array]:
            return _merged(space, one, case, hub, m, number)

        u, new = over_outcomes(numbers, lambda one: over_cases(one, lambda case: merged(one, case)))
        keep, after = 1 - numbers.merge, count_on(hub)
        return fill(after, keep * flat(after) + numbers.merge * u), keep * m + numbers.merge * new

    return space.topology.round(numbers.inputs.branches, hub, m, round, exchange)


def count_on(hub: State) -> State:
    """The hub with its counters of rounds gone on by one."""
    return jax.tree.map(lambda a: a if is_real(a) else a + 1, hub)


def _merged(space: Space, numbers: Numbers, case: Cases, hub: State, m: Array, round: Number) -> tuple[Array, Array]:
    inputs, agents = numbers.inputs, m.shape[0]
    calm = OnAverage(inputs.algorithm, numbers.late[0], numbers.late[1], numbers.drawn.agent)
    tick = Tick(None, jnp.ones(agents, bool), case.weight, inputs.p * case.heard, jnp.int32(agents))
    state = RunState(hub, memories(space, numbers, hub, m), numbers.mail, ())
    quiet, keys = inputs._replace(algorithm=calm), (NO_LUCK, NO_LUCK, NO_LUCK)
    state = one_round(space.layout, quiet, state, (tick, tick), NOTHING_PRECOMPUTED, keys, jnp.asarray(round))
    new = rows(space, inputs.algorithm, state.hub, state.memory, agents)
    return flat(state.hub), m + numbers.heard[:, None] * (new - m)


def memories(space: Space, numbers: Numbers, hub: State, m: Array) -> State:
    """Settled memories of all agents from their floats (K, ...)."""

    def one(hub: State, row: Array) -> State:
        return memory_of(space, numbers.algorithm, hub, numbers.model, row)

    return space.topology.by_agent(one, m.shape[0])(hub, m)


def rows(space: Space, algorithm: Algorithm, hub: State, memory: State, agents: int) -> Array:
    """(K, ...): the floats of all agents' memories, settled by what they hear next."""
    return space.topology.by_agent(lambda h, own: row_of(space, algorithm, h, own), agents)(hub, memory)


def hub_at(numbers: Numbers, round: Number) -> State:
    """The hub before a round, for its structure: its counters have counted the rounds."""
    return jax.tree.map(lambda a: a if is_real(a) else a + round, numbers.hub)


def start_at(numbers: Numbers, x: Array, round: Number) -> tuple[State, Array]:
    """Hub and memories from a flat state."""
    hub = hub_at(numbers, round)
    size = size_of(hub)
    return fill(hub, x[:size]), x[size:].reshape(numbers.p.shape[0], -1)


def read_models(space: Space, algorithm: Algorithm, hub: State, memory: State) -> Array:
    """The model, or those of all nodes one after the other, flattened."""
    return flat(space.topology.read(algorithm, hub, memory))


class Watched(Calm):
    """An agent that notes what luck of its own it is asked for; its forks write into the same list."""

    asked: list[Tree]

    def normal(self, like: Tree) -> Tree:
        self.asked.append(like)
        return super().normal(like)

    def uniform(self, like: Tree) -> Tree:
        self.asked.append(like)
        return super().uniform(like)


def trial(space: Space, numbers: Numbers) -> tuple[Message, State, Watched]:
    """What the first agent answers in the first round and remembers, and the agent as it was used."""
    algorithm = one_agent(numbers.algorithm, 0)
    heard, memory = space.topology.first_words(algorithm, numbers.model)
    mine = Mine(jax.tree.map(lambda a: a[0], numbers.inputs.own), numbers.inputs.common)
    agent = Watched(space.oracle, mine, Stream(NO_LUCK, 0, 0), None, None, True, numbers.p[0])
    agent.asked = []
    return *algorithm.local(heard, memory, agent), agent


@partial(jax.jit, static_argnums=0)  # never run: traced once for all numbers of the same shapes
def _tried(space: Space, numbers: Numbers) -> tuple[Message, State, Array]:
    """The same, and as many numbers as the agent was asked for luck of its own."""
    message, memory, agent = trial(space, numbers)
    return message, memory, jnp.zeros(len(agent.asked))


def template(space: Space, numbers: Numbers) -> tuple[Message, State]:
    """Shapes of a message and of a memory."""
    return _tried.eval_shape(space, numbers)[:2]


@double
def draws_own(space: Space, numbers: Numbers) -> bool:
    """Whether agents draw random numbers of their own."""
    return bool(_tried.eval_shape(space, numbers)[2].size)
