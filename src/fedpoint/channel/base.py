"""What happens to a message on its way? Encoded at the agent, decoded at the hub, released where it was gathered."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import NO_LUCK, Key, Row, Stream
from fedpoint.core.record import Record
from fedpoint.core.types import Message, Number, State, Tree

RELEASE = 0xFFFFFFF1  # the row of a hub's luck that is the channel's


def release_row(key: Key, round: Array) -> Row:
    """The randomness that channels have at a hub in a round."""
    return key.fold(round, RELEASE).row()


class Hub(NamedTuple):
    """What a channel may know where messages were gathered.

    Attributes:
        luck: the hub's random numbers of this round.
        round: the number of the round.
        largest: the largest weight of a message in the inbox's mean.
        key: the hub's random numbers of all rounds.
    """

    luck: Row  # the hub's own randomness of this round
    round: Array
    largest: Array  # the largest weight of a message in the inbox's mean
    key: Key = NO_LUCK  # of the hub's randomness of all rounds

    def earlier(self, ago: int) -> Row:
        """The hub's own randomness of a round so long ago, for the same channel: nothing has to be kept of it.

        Args:
            ago: how many rounds.
        """
        return release_row(self.key, self.round - ago)._replace(at=self.luck.at)


class Noise(NamedTuple):
    """Normal noise that hides an agent, for accounts of privacy."""

    multiplier: float  # its standard deviation, over what one agent can change in a round
    at: str = "hub"  # or "agents": where it is added
    coefficients: tuple[float, ...] = (1.0,)  # n_t = c_0 x_t + c_1 x_{t-1} + ... of fresh x_t with that deviation


class ChannelContext(NamedTuple):
    """What a channel may know of the experiment before its first round."""

    weights: np.ndarray  # (K,) p_k
    scale: float | None = None  # v_k / p_k, where it is one number for all who are heard, in every round
    least: int = 1  # so many messages are gathered in a round that merges, or more
    by_node: bool = False  # on a network: messages are differences to what neighbours know
    clip: Clips | None = None  # the clip that stands before, in a chain
    between: tuple[Channel, ...] = ()  # what stands between that clip and this channel
    after: tuple[Channel, ...] = ()  # what stands behind this channel


class Channel(Record):
    """What happens to a message on its way: here nothing. Subclass it and write `encode` (and `decode`) for one of
    your own.

    It acts on all that an agent sends, control variates included, whatever the method; on a network on what a node
    tells its neighbours.

    Arguments of methods:
        message: one agent's message, or its shapes where only these matter.
        memory: what the channel keeps at this agent.
        agent: the agent that sends.
        like: a message in whose shapes arrays are built again.
    """

    lossless = True  # False: what arrives differs from what was sent by more than rounding
    embeds = False  # True: decode puts the numbers that were sent into their places, and changes none of them
    in_place = False  # True: what is sent is built as the message, and arrives as it is sent
    feeds_back = False  # True: what is held back is kept and sent later (`owed`)
    keeps_scales = True  # False: an array of one number may arrive changed
    reveals = False  # True: at which places numbers are sent depends on them
    adapts = False  # True: what it does to a message depends on messages of earlier rounds, through the hub

    def bind(self, context: ChannelContext) -> Channel:
        """The same with what it needs of the experiment.

        Args:
            context: weights, who is heard at least, and what else stands in the chain.
        """
        return self

    def around(self, algorithm: Algorithm) -> Algorithm:
        """The method with what the channel needs of its hub, which has nothing of the channel's to keep.

        Args:
            algorithm: the method whose messages go through this channel.
        """
        return algorithm

    def stages(self) -> tuple[Channel, ...]:
        """The channels it is made of, in the order in which a message passes them."""
        return (self,)

    def init(self, message: Message) -> State:
        """What the channel keeps at an agent before the first round."""
        return ()

    def encode(self, message: Message, memory: State, agent: Agent) -> tuple[Tree, State]:
        """What is sent, and what is kept."""
        return message, memory

    def decode(self, code: Tree, like: Message) -> Message:
        """What arrives, built as `like`.

        Args:
            code: what was sent.
        """
        return code

    def transfer(self, message: Message, memory: State, agent: Agent) -> tuple[Message, State]:
        """What arrives, and what is kept: encoded and decoded at once, where nothing has to be packed in between."""
        code, kept = self.encode(message, memory, agent)
        return self.decode(code, message), kept

    def owed(self, memory: State, like: Message) -> Message | None:
        """What was held back and will be sent later (error feedback); None: nothing ever is."""
        return None

    def omega(self, message: Message) -> float:
        """E|arrived - sent|^2 <= omega |sent|^2; 0 where nothing is lost."""
        return 0.0

    def longest_after(self, length: Number, message: Message) -> Number | None:
        """How long what arrives of a message of these shapes may be, whatever it holds, if it is at most `length` long
        itself; None: there is no bound. Noise behind a clip is scaled by it.

        Args:
            length: of the message, at most.
        """
        return length if self.is_identity() else None

    def largest_number(self) -> float:
        """The largest number that this channel carries: a larger one arrives as NaN or infinity."""
        return math.inf

    def overflows(self) -> str:
        """Which numbers this channel cannot carry, and what to do: they arrive as NaN. Empty: it carries all."""
        return ""

    def gain(self) -> float:
        """How many times as long numbers become that stand for others, which are not sent."""
        return 1.0

    def release(self, inbox: Inbox, hub: Hub) -> Inbox:
        """What the hub uses of what was gathered.

        Args:
            inbox: what was gathered.
            hub: the hub's own randomness, and what the channel keeps there.
        """
        return inbox

    def bits(self, message: Message) -> float:
        """How many bits are sent for a message of these shapes: those of what `encode` makes of it."""
        code = jax.eval_shape(lambda m: self.encode(m, self.init(m), nobody())[0], message)
        return float(sum(8 * np.dtype(a.dtype).itemsize * int(np.prod(a.shape)) for a in jax.tree.leaves(code)))

    # What forecasts ask. `second` are the second moments of (1, message), its floats in one row: (1 + d, 1 + d),
    # where the corner multiplies what does not depend on the message. What is not told is drawn, and said to be.

    def expected(self, message: Message) -> Message:
        """E of what arrives."""
        return message

    def scatter(self, second: Array, like: Message, share: Number) -> Array | None:
        """(d, d): the covariance of what arrives from an agent of this share around `expected(message)`: linear in
        `second`, and `expected` is affine where this is told. None: not known.

        Args:
            second: (d, d) E m m' of the message m.
            share: p_k, the agent's weight.
        """
        return jnp.zeros((len(second) - 1,) * 2) if self.lossless else None

    def scatter_hub(self, like: Message, largest: Array) -> Array | None:
        """(2 d, 2 d): the covariance of what `release` adds to (mean, total) where the largest weight is this: affine
        in its square. None: not known.

        Args:
            largest: the largest weight of an agent in the round.
        """
        return jnp.zeros((2 * numbers_of(like),) * 2) if type(self).release is Channel.release else None

    def noise_coefficients(self) -> np.ndarray:
        """Of the noise that `release` adds: n_t = c_0 x_t + c_1 x_{t-1} + ... with fresh x_t of covariance
        `scatter_hub`; nothing is left over from before the first round."""
        return np.ones(1)

    def noises(self) -> tuple[Noise, ...]:
        """What is added in every round to hide an agent in what is released: to messages, or to counts of them."""
        return ()

    def is_identity(self) -> bool:
        """Whether nothing happens to a message at all."""
        return type(self) is Channel


class Clips(Channel):
    """A channel that bounds the length of a message, whatever it holds: what noise behind it is scaled by."""

    def longest(self, message: Message) -> Number:
        """The norm that a message of these shapes has at most.

        Args:
            message: its shapes.
        """
        raise NotImplementedError


def nobody() -> Agent:
    """An agent for shapes: it has luck, and no data."""
    return Agent(None, None, Stream(NO_LUCK, 0, 0), None, None, True, 1.0)  # type: ignore[arg-type]


def real(a: Array) -> bool:
    """Whether an array holds real numbers: whole ones, such as indices, travel as they are."""
    return jnp.issubdtype(a.dtype, jnp.floating)


def clipped(a: Array, factor: Number, square: Number) -> Array:
    """An array of a message of this squared length, made shorter. No factor makes a message short that is not finite:
    it counts as zero, or a single agent could turn a sum into NaN, and be seen in it through any noise."""
    return jnp.where(jnp.isfinite(square), a * jnp.asarray(factor, a.dtype), jnp.zeros((), a.dtype))


def credited(channel: Channel, message: Message, arrived: Message, before: State, after: State) -> Message:
    """What an agent may count as heard: what arrives, and what is owed more than before."""
    old, new = channel.owed(before, message), channel.owed(after, message)
    if old is None or new is None:
        return arrived
    return jax.tree.map(lambda a, n, o: a + n - o, arrived, new, old)


# For channels that tell their moments.


def numbers_of(like: Message) -> int:
    """How many real numbers a message of these shapes holds."""
    return sum(_floats(a) for a in jax.tree.leaves(like))


def _floats(a: Array) -> int:
    return int(np.prod(np.shape(a))) if jnp.issubdtype(jnp.result_type(a), jnp.floating) else 0


def by_part(function: Callable[[Array], Array], moments: Array, like: Message) -> Array:
    """function(block) for every array of a message, whose numbers stand one after the other; zeros between arrays: a
    channel that treats each of them by itself."""
    blocks, at = [], 0
    for size in map(_floats, jax.tree.leaves(like)):
        blocks.append(function(moments[at : at + size, at : at + size]))
        at += size
    return jax.scipy.linalg.block_diag(*blocks)


def scattered(channels: Iterable[Channel], second: Array, like: Message, share: Number) -> Array | None:
    """`scatter` of channels one after the other: each scatters what the ones before it have made of the message."""
    total = jnp.zeros((len(second) - 1,) * 2)
    for channel in channels:
        added = channel.scatter(second, like, share)
        if added is None:
            return None
        A = affine_part(channel, like)
        total = A[1:, 1:] @ total @ A[1:, 1:].T + added
        second = (A @ second @ A.T).at[1:, 1:].add(added)
    return total


def affine_part(channel: Channel, like: Message) -> Array:
    """What `expected` makes of (1, message), where it is affine."""
    leaves, tree = jax.tree.flatten(like)
    cuts = np.cumsum([_floats(a) for a in leaves])[:-1]

    def arrives(vector: Array) -> Array:
        parts = jnp.split(vector, cuts)
        filled = [
            v.reshape(np.shape(a)) if _floats(a) else jnp.zeros(np.shape(a), a.dtype)
            for v, a in zip(parts, leaves, strict=True)
        ]
        arrived = jax.tree.leaves(channel.expected(jax.tree.unflatten(tree, filled)))
        return jnp.concatenate([jnp.ravel(a) for a in arrived if _floats(a)])

    zero = jnp.zeros(numbers_of(like))
    slope, value = jax.jacfwd(arrives)(zero), arrives(zero)
    return jnp.eye(1 + len(zero)).at[1:, 1:].set(slope).at[1:, 0].set(value)
