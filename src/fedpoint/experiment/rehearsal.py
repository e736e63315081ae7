"""Does what a user brought fit the round? One round is traced on shapes: nothing is computed or compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.attack import Attack, Heard
from fedpoint.channel.base import Channel, Hub
from fedpoint.core.agent import Advance, Agent
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.numbers import counted
from fedpoint.core.own_code import calling, check_arrays, check_like, layout, several, whole
from fedpoint.core.precision import double
from fedpoint.core.random import NO_LUCK, Key, Row, Stream
from fedpoint.core.record import Record, one_agent, values_of
from fedpoint.core.types import Data, Message, Model, Number, State, Tree
from fedpoint.core.vector import take, wrap
from fedpoint.experiment.metric import Metrics, measure
from fedpoint.gather import Gather
from fedpoint.problems.oracle import Mine, Oracle
from fedpoint.timing.base import Tick, Timing
from fedpoint.timing.schemes import Participation

if TYPE_CHECKING:
    from fedpoint.experiment.bound import Bound

DRAWN = 64  # rounds of which the agents are looked at, where a scheme's moments are not known
Kind = TypeVar("Kind", bound=Record)


class Cast(NamedTuple):
    """Who takes part in a rehearsal: records with numbers."""

    algorithm: Algorithm
    timing: Timing
    channel: Channel
    gather: Gather
    attack: Attack | None


@double
def rehearse(bound: Bound) -> None:
    """One `FedpointError` where code that a user brought does not fit the round."""
    e, problem = bound.experiment, bound.problem
    for timing in nested(bound.timing, Timing):
        whole(f"{type(timing).__name__}.slots", "how many work in a round", timing.slots, problem.agents)
    model = wrap(bound.topology.one(bound.start))
    dtype = jnp.result_type(*jax.tree.leaves(model))
    cast = _in_precision(Cast(bound.algorithm, bound.timing, bound.channel, bound.gather, bound.attack), dtype)
    metrics = tuple(sorted(e.metrics.items()))
    at = Stream(NO_LUCK, np.int32(0), np.int32(0))
    _round.eval_shape(bound.oracle, metrics, cast, problem.own, problem.common, problem.weights, model, at)
    for timing in nested(bound.timing, Timing):
        _look(timing, problem.weights)


def nested(record: Kind, kind: type[Kind]) -> Iterator[Kind]:
    """The records of a kind that one is made of, the innermost first."""
    for value in values_of(record).values():
        if isinstance(value, kind):
            yield from nested(value, kind)
    yield record


def _in_precision(cast: Cast, dtype: np.dtype) -> Cast:
    """Shapes, with real numbers in the model's precision as the engine has them."""

    def shape(a: Number) -> jax.ShapeDtypeStruct:
        own = np.asarray(a).dtype
        return jax.ShapeDtypeStruct(np.shape(a), dtype if np.issubdtype(own, np.floating) else own)

    return cast._replace(**{name: jax.tree.map(shape, getattr(cast, name)) for name in cast._fields})


@partial(jax.jit, static_argnums=(0, 1))  # traced once for all experiments of its kind
def _round(
    oracle: Oracle, metrics: Metrics, cast: Cast, own: Data, common: Data, p: Array, model: Model, at: Stream
) -> None:
    mine = Mine(take(own, 0), common)
    for method in nested(cast.algorithm, Algorithm):
        agent = Rehearsing(oracle, mine, at, None, None, True, p[0])
        for asked, _ in method.exchanges()[:-1]:
            _method(one_agent(asked, 0), model, Rehearsing(oracle, mine, at, None, None, True, p[0]), at.row())
        said = _method(one_agent(method, 0), model, agent, at.row())
    if not cast.timing.per_repeat:
        for timing in nested(cast.timing, Timing):
            _tick(timing, p, at)
    _channel(cast.channel, cast.algorithm, said)
    for gather in nested(cast.gather, Gather):
        _gather(gather, said.message)
    if cast.attack is not None:
        _attack(cast.attack, said.message, at.row())
    memory = jax.tree.map(lambda a: jnp.broadcast_to(a, (len(p), *jnp.shape(a))), said.memory)
    measure(metrics, cast.algorithm.read(said.hub, said.memory), said.hub, memory, at.round)


class Rehearsing(Agent):
    """An agent that notes which samples it is asked for, where these are plain numbers."""

    asked: tuple[int, ...] = ()

    def field(self, w: Model, e: Number = 0) -> Model:
        if isinstance(e, int):
            self.asked = (*self.asked, e)
        return super().field(w, e)

    def loop(self, start: Tree, steps: Number, advance: Advance) -> Tree:
        if isinstance(steps, int) and steps > 2:  # the last one, beside the loop in which it is no plain number
            advance(start, steps - 1)
        return super().loop(start, steps, advance)

    def _join(self, forks: Sequence[Self]) -> None:
        self.asked = sum((fork.asked for fork in forks), self.asked)
        super()._join(forks)


def _check_samples(method: Algorithm, agent: Rehearsing) -> None:
    """Refuse samples beyond those that are drawn: as many as it takes, or as the method says."""
    steps, last, first = method.local_steps, max(agent.asked, default=0), min(agent.asked, default=0)
    if first < 0:
        raise FedpointError(
            f"{type(method).__name__}.local asks for sample {first} (agent.field(w, {first})): samples are numbered "
            "from 0, and the last one of a round is samples(steps) - 1"
        )
    if not (method.counts_samples() and isinstance(steps, int) and isinstance(agent.sampled, int)):
        return
    drawn = max(method.samples(steps), agent.sampled)
    if last >= drawn:
        name = type(method).__name__
        raise FedpointError(
            f"{name}.local asks for sample {last} (agent.field(w, {last})), but a round of {counted(steps, 'step')} "
            f"draws {counted(drawn, 'sample')}, numbered from 0. Number them without gaps, and say how many there are: "
            f"def samples(self, steps): return {-(-(last + 1) // steps)} * steps"
        )


class Rehearsed(NamedTuple):
    """What a round has shown of a method, and who said it."""

    hub: State
    memory: State
    message: Message
    agent: Agent


def caller(owner: Record) -> Callable[..., Tree]:
    """Calls an object's methods, so that what goes wrong in one names it."""

    def call(function: Callable[..., Tree], *arguments: Tree) -> Tree:
        with calling(f"{type(owner).__name__}.{function.__name__}"):
            return function(*arguments)

    return call


def _method(method: Algorithm, model: Model, agent: Rehearsing, luck: Row) -> Rehearsed:
    """init, say, local, combine, settle and read of a method, each checked."""
    name, call = type(method).__name__, caller(method)
    parts = "the hub's state", "an agent's memory"
    hub, memory = begun = several(f"{name}.init", call(method.init, model), parts)
    for part, value in zip(parts, begun, strict=True):
        check_arrays(f"{name}.init", part, value)
    if method.at_agents:  # hubs hold what they hear of the neighbours
        hello = call(method.hello, model)
        check_arrays(f"{name}.hello", "what neighbours know at first", hello)
        hub = call(method.combine, hub, inbox_like(hello))
    answer = call(method.local, call(method.say, hub, luck), memory, agent)
    message, kept = several(f"{name}.local", answer, ("a message", "the agent's memory"))
    check_arrays(f"{name}.local", "a message", message)
    _check_samples(method, agent)
    if not jax.tree.leaves(message):
        raise FedpointError(f"{name}.local must return a message that holds an array; got {layout(message)}")
    check_like(f"{name}.local", "the agent's memory as init made it", kept, memory)
    combined = call(method.combine, hub, inbox_like(message))
    check_like(f"{name}.combine", "the hub's state as it was", combined, hub)
    check_like(f"{name}.settle", "the agent's memory as init made it", call(method.settle, hub, kept), memory)
    check_like(f"{name}.read", "a model", call(method.read, hub, kept), model)
    return Rehearsed(hub, memory, message, agent)


def inbox_like(message: Message) -> Inbox:
    """An inbox of such messages."""
    one = jnp.ones((), jnp.result_type(*jax.tree.leaves(message)))
    return Inbox(message, message, one, one)


FIELDS = {  # of a tick: kinds of numbers, in words, and whether there is one for every place
    "agents": ("iu", "whole numbers", True),
    "heard": ("b", "truth values", True),
    "weight": ("f", "numbers", True),
    "share": ("f", "numbers", True),
    "asked": ("iu", "one whole number", False),
    "merge": ("b", "one truth value", False),
    "age": ("iu", "whole numbers", True),
}


def _tick(timing: Timing, p: Array, at: Stream) -> None:
    """Who works in a round, and on a network how old is what is heard, as arrays of the right shapes."""
    name, agents, round = type(timing).__name__, len(p), jnp.asarray(at.round)
    key = timing.key_of(at.key, round)
    call = caller(timing)
    tick = call(timing.tick, key, p, round)
    if not isinstance(tick, Tick):
        raise FedpointError(
            f"{name}.tick must return an fp.Tick, such as fp.Tick.of(agents, weight); got {layout(tick)}"
        )
    count = agents if tick.agents is None else timing.slots(agents)
    needed = ("heard",) if timing.on_network else ("heard", "weight")
    for field, value in tick._asdict().items():
        kinds, words, each = FIELDS[field]
        right = value is None or (np.shape(value) == (count,) * each and jnp.result_type(value).kind in kinds)
        if not right or (value is None and field in needed):
            many = f" for the {counted(count, 'place')} that slots() promises" if each else ""
            raise FedpointError(f"{name}.tick: {field} must be {words}{many}; got {layout(value)}")
    if timing.on_network:
        arcs = jnp.zeros(agents, jnp.int32)
        age = call(timing.age, key, round, arcs, arcs)
        check_like(f"{name}.age", "how many rounds old is what is heard over each arc", age, arcs)


@jax.jit  # compiled once for all schemes of its kind
def _some_ticks(timing: Timing, p: Array) -> Tick:
    return jax.vmap(lambda round: timing.at(Key.of(0), p, round))(jnp.arange(DRAWN))


def _look(timing: Timing, p: np.ndarray) -> None:
    """Refuse a scheme of unknown moments that names agents who do not exist, or one of them twice."""
    if not isinstance(timing, Participation) or timing.per_repeat or timing.knows_moments():
        return
    where, ticks = f"{type(timing).__name__}.tick", _some_ticks(timing, p)
    if ticks.agents is None:
        return
    for round, (agents, heard) in enumerate(zip(np.asarray(ticks.agents), np.asarray(ticks.heard), strict=True)):
        named = agents[heard]
        if ((agents < 0) | (agents >= len(p))).any():
            raise FedpointError(
                f"{where}: agents must be numbers from 0 to {len(p) - 1}; got {agents} in round {round}"
            )
        if len(set(named.tolist())) < len(named):
            raise FedpointError(
                f"{where}: agents that are heard must all be different; got {named} in round {round}. Give one of them "
                "the whole weight, and heard=False to the others"
            )


def _channel(channel: Channel, method: Algorithm, said: Rehearsed) -> None:
    """init, encode, decode, owed and release of a channel, each checked."""
    if channel.is_identity():
        return
    name, call, message = type(channel).__name__, caller(channel), said.message
    memory = call(channel.init, message)
    check_arrays(f"{name}.init", "what the channel keeps at an agent", memory)
    sent = call(channel.encode, message, memory, said.agent)
    code, kept = several(f"{name}.encode", sent, ("what is sent", "what the channel keeps"))
    check_like(f"{name}.encode", "what the channel keeps as init made it", kept, memory)
    check_like(f"{name}.decode", "a message", call(channel.decode, code, message), message)
    owed = call(channel.owed, memory, message)
    if owed is not None:
        check_like(f"{name}.owed", "a message", owed, message)
    inbox = inbox_like(message)
    released = call(channel.release, inbox, Hub(NO_LUCK.row(), jnp.int32(0), jnp.float64(1)))
    check_like(f"{name}.release", "an inbox", released, inbox)
    for function in (channel.bits, channel.omega):
        number = call(function, message)
        if isinstance(number, bool) or not isinstance(number, int | float | np.number):
            raise FedpointError(f"{name}.{function.__name__} must return a number; got {layout(number)}")
    known = caller(method)(one_agent(method, 0).acknowledge, said.memory, message, message)
    check_like(f"{type(method).__name__}.acknowledge", "the agent's memory as init made it", known, said.memory)


def _gather(gather: Gather, message: Message) -> None:
    """location, middle and inbox of a gather, each checked."""
    if gather.conserves:
        return
    name, call, heard = type(gather).__name__, caller(gather), jnp.ones(2)
    messages = jax.tree.map(lambda a: jnp.broadcast_to(a, (2, *jnp.shape(a))), message)
    for leaf, one in zip(jax.tree.leaves(messages), jax.tree.leaves(message), strict=True):
        check_like(f"{name}.location", "the middle of messages", call(gather.location, leaf, heard / 2), one)
    check_like(f"{name}.middle", "the middle of messages", call(gather.middle, messages, heard / 2), message)
    inbox = call(gather.inbox, messages, heard, heard)
    check_like(f"{name}.inbox", "an inbox", inbox, inbox_like(message))


def _attack(attack: Attack, message: Message, luck: Row) -> None:
    """What liars send: built as messages are."""
    reason = attack.nothing_to_do(message)
    if reason:
        raise FedpointError(reason)
    messages = jax.tree.map(lambda a: jnp.broadcast_to(a, (2, *jnp.shape(a))), message)
    told = caller(attack)(attack.sent, messages, Heard(jnp.arange(2) == 0, jnp.arange(2) == 1), luck)
    check_like(f"{type(attack).__name__}.sent", "messages", told, messages)
