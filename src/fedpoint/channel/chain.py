"""Several channels, one behind the other: what the first one sends is the message of the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.channel.base import Channel, ChannelContext, Clips, Hub, Noise, nobody, scattered
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.inbox import Inbox
from fedpoint.core.types import Message, Number, State, Tree


class Chain(Channel):
    """Channels that a message passes from left to right; `channel=[...]` makes one.

    Args:
        links: the channels, in the order in which a message passes them.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [2.0]])
    >>> channel = [fp.channel.Clip(0.1), fp.channel.Cast("float32")]
    >>> run = fp.run(fp.FedAvg(step=0.5), quad, rounds=3, channel=channel)
    >>> float(run.cost.bytes_up)
    24.0
    """

    links: tuple[Channel, ...]

    def stages(self) -> tuple[Channel, ...]:
        return tuple(stage for link in self.links for stage in link.stages())

    @property
    def lossless(self) -> bool:  # type: ignore[override]
        return all(link.lossless for link in self.links)

    @property
    def embeds(self) -> bool:  # type: ignore[override]
        return all(link.embeds for link in self.links)

    def bind(self, context: ChannelContext) -> Channel:
        stages = [stage if stage.noises() else stage.bind(context) for stage in self.stages()]
        for i, stage in enumerate(stages):
            if stage.noises():
                stages[i] = stage.bind(_around(context, stages, i))
        return Chain(tuple(stages))

    def around(self, algorithm: Algorithm) -> Algorithm:
        return reduce(lambda method, link: link.around(method), self.links, algorithm)

    def init(self, message: Message) -> State:
        return tuple(link.init(m) for link, m in zip(self.links, self._forms(message), strict=False))

    def encode(self, message: Message, memory: State, agent: Agent) -> tuple[Tree, State]:
        kept = []
        for link, own in zip(self.links, memory, strict=True):
            message, new = link.encode(message, own, agent)
            kept.append(new)
        return message, tuple(kept)

    def transfer(self, message: Message, memory: State, agent: Agent) -> tuple[Message, State]:
        first = 0  # links whose message is what arrives of the one before
        while first < len(self.links) - 1 and self.links[first].in_place:
            first += 1
        kept = []
        for link, own in zip(self.links[:first], memory, strict=False):
            message, new = link.transfer(message, own, agent)
            kept.append(new)
        rest = self.links[first:]
        if len(rest) == 1:
            message, new = rest[0].transfer(message, memory[first], agent)
            return message, (*kept, new)
        message, last = Channel.transfer(Chain(rest), message, tuple(memory[first:]), agent)
        return message, (*kept, *last)

    def decode(self, code: Tree, like: Message) -> Message:
        forms = self._forms(like)
        for link, form in zip(reversed(self.links), reversed(forms[:-1]), strict=True):
            code = link.decode(code, form)
        return code

    def owed(self, memory: State, like: Message) -> Message | None:
        owed = [link.owed(own, like) for link, own in zip(self.links, memory, strict=True)]
        some = [one for one in owed if one is not None]
        return reduce(lambda a, b: jax.tree.map(jnp.add, a, b), some) if some else None

    def omega(self, message: Message) -> float:
        factor = 1.0
        for link, form in zip(self.links, self._forms(message), strict=False):
            factor *= 1.0 + link.omega(form)
        return factor - 1.0

    def longest_after(self, length: Number, message: Message) -> Number | None:
        longest: Number | None = length
        for link in self.links:
            longest = None if longest is None else link.longest_after(longest, message)
        return longest

    def overflows(self) -> str:
        return next((said for link in self.links if (said := link.overflows())), "")

    def gain(self) -> float:
        return math.prod(link.gain() for link in self.links)

    def release(self, inbox: Inbox, hub: Hub) -> Inbox:
        for i, link in enumerate(self.links):
            inbox = link.release(inbox, hub._replace(luck=hub.luck._replace(at=hub.luck.at + jnp.uint32(i))))
        return inbox

    def scatter(self, second: Array, like: Message, share: Number) -> Array | None:
        coded = next((i for i, link in enumerate(self.links) if not link.in_place), len(self.links))
        plain = all(link.lossless for link in self.links[coded + 1 :])  # what acts on a code has no moments of numbers
        return scattered(self.links, second, like, share) if plain else None

    def scatter_hub(self, like: Message, largest: Array) -> Array | None:
        added = [link.scatter_hub(like, largest) for link in self.links]
        known = [one for one in added if one is not None]
        return sum(known[1:], known[0]) if len(known) == len(added) else None

    def noise_coefficients(self) -> np.ndarray:
        noise = [link.noise_coefficients() for link in self.links]
        return next((one for one in noise if len(one) > 1), np.ones(1))

    def expected(self, message: Message) -> Message:
        return reduce(lambda m, link: link.expected(m), self.links, message)

    def noises(self) -> tuple[Noise, ...]:
        return tuple(noise for link in self.links for noise in link.noises())

    def is_identity(self) -> bool:
        return all(link.is_identity() for link in self.links)

    def _forms(self, message: Message) -> list[Message]:
        """The message of each link, and what is sent in the end: zeros of their shapes."""
        return [message, *forms_sent(self.links, message)]


def _around(context: ChannelContext, stages: Sequence[Channel], i: int) -> ChannelContext:
    """What stands around the i-th stage: the last clip before it, and all that a message passes behind that."""
    after = tuple(stages[i + 1 :])
    for j in reversed(range(i)):
        clip = stages[j]
        if isinstance(clip, Clips):
            return context._replace(clip=clip, between=tuple(stages[j + 1 : i]), after=after)
    return context._replace(after=after)


def forms_sent(links: Sequence[Channel], message: Message) -> list[Tree]:
    """What each of these channels sends, one behind the other, for a message of these shapes: zeros."""

    def sent(message: Message) -> list[Tree]:
        codes = []
        for link in links:
            message, _ = link.encode(message, link.init(message), nobody())
            codes.append(message)
        return codes

    shapes = jax.eval_shape(sent, message)
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def as_channel(value: Channel | Sequence[Channel] | None) -> Channel:
    """One channel of what a user gives: none, one, or several in a list."""
    if value is None:
        return Channel()
    if isinstance(value, Channel):
        return value
    return value[0] if len(value) == 1 else Chain(tuple(value)) if value else Channel()
