"""What happens to a message on its way? Encoded at the agent, decoded at the hub, released where it was gathered."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from jax import Array

from fedpoint.core.inbox import Inbox
from fedpoint.core.random import Row
from fedpoint.core.record import Record
from fedpoint.core.types import Message, State, Tree

if TYPE_CHECKING:
    from fedpoint.core.agent import Agent


class Hub(NamedTuple):
    """What a channel may know where messages were gathered."""

    luck: Row  # the hub's own randomness of this round
    round: Array
    largest: Array  # the largest weight of a message in the inbox's mean


class Channel(Record):
    """A message's way. This one changes nothing; subclass it and write `encode` (and `decode`) for one of your own.

    It acts on all that an agent sends, control variates included, whatever the method; on a network on what a node
    tells its neighbours.
    """

    lossless = True  # False: what arrives differs from what was sent by more than rounding

    def init(self, message: Message) -> State:
        """What the channel keeps at an agent before the first round."""
        return ()

    def encode(self, message: Message, memory: State, agent: Agent) -> tuple[Tree, State]:
        """What is sent, and what is kept."""
        return message, memory

    def decode(self, code: Tree, like: Message) -> Message:
        """What arrives, built as `like`."""
        return code

    def owed(self, memory: State, like: Message) -> Message | None:
        """What was held back and will be sent later (error feedback); None: nothing ever is."""
        return None

    def omega(self, message: Message) -> float:
        """E|arrived - sent|^2 <= omega |sent|^2; 0 where nothing is lost."""
        return 0.0

    def release(self, inbox: Inbox, hub: Hub) -> Inbox:
        """What the hub uses of what was gathered."""
        return inbox

    def bits(self, message: Message) -> float:
        """How many bits are sent for a message of these shapes."""
        return float(sum(8 * np.dtype(a.dtype).itemsize * int(np.prod(a.shape)) for a in jax.tree.leaves(message)))

    def expected(self, message: Message) -> Message:
        """E of what arrives, for forecasts."""
        return message

    def is_identity(self) -> bool:
        """Whether nothing happens to a message at all."""
        return type(self) is Channel


def credited(channel: Channel, message: Message, code: Tree, before: State, after: State) -> Message:
    """What an agent may count as heard: what arrives, and what is owed more than before."""
    arrived = channel.decode(code, message)
    old, new = channel.owed(before, message), channel.owed(after, message)
    if old is None or new is None:
        return arrived
    return jax.tree.map(lambda a, n, o: a + n - o, arrived, new, old)
