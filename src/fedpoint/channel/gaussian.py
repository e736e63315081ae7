"""Gaussian noise, scaled by the clip before it: what differential privacy of agents needs."""

from __future__ import annotations

from dataclasses import field

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.channel.base import Channel, ChannelContext, Clips, Hub, Noise, real
from fedpoint.core.agent import Agent
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import Row, normal_like
from fedpoint.core.settings import check_value
from fedpoint.core.types import Message, Number, State, Tree

PLACES = ("hub", "agents")


class Gaussian(Channel):
    r"""Normal noise of standard deviation $z\, C\, v_{\max}$ on every number of the sum $\sum_k v_k m_k$.

    $C$ is the norm of the clip that stands before it (it has no sensitivity of its own), or how long a clipped message
    may become in the channels behind that clip; $v_{\max}$ is the largest weight that an agent may have.

    Args:
        multiplier: $z$, the noise multiplier.
        at: "hub": once, on what was gathered. The hub then uses nothing else of the messages: the sum over agents is
            this mean rescaled, and weights and masses are replaced by what they are on average. "agents": every agent
            adds its share, $z\, C\, p_{\max}/(p_k \sqrt n)$ for the least number $n$ of agents that are heard, so that
            the sum has at least the noise above; a hub that sees single messages sees less noise than that. Weights and
            masses are replaced as well: with weights that differ they would tell who was heard.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [2.0]])
    >>> private = [fp.channel.Clip(1.0), fp.channel.Gaussian(multiplier=0.8)]
    >>> run = fp.run(fp.FedAvg(step=0.5), quad, rounds=50, repeats=1000, channel=private)
    >>> round(float(run.error[:, -1].mean()), 2)        # near its floor (0.8 * 1.0 * 0.5)^2 / (1 - 0.5^2) = 0.21
    0.22
    """

    lossless = False
    keeps_scales = False
    embeds = True
    in_place = True

    multiplier: float
    at: str = "hub"

    def check(self) -> None:
        check_value(type(self).__name__, "multiplier", self.multiplier, {"low": 0.0, "strict": True})
        if self.at not in PLACES:
            raise FedpointError(f'{type(self).__name__}: at must be "hub" or "agents", got {self.at!r}')

    def noises(self) -> tuple[Noise, ...]:
        return (Noise(self.multiplier, self.at),)

    def longest_after(self, length: Number, message: Message) -> Number | None:
        return length if self.at == "hub" else None

    def bind(self, context: ChannelContext) -> Channel:
        if context.clip is None:
            raise FedpointError(
                "Gaussian needs a clip before it, which bounds what one agent can change: "
                "channel=[fp.channel.Clip(1.0), fp.channel.Gaussian(multiplier=...)]"
            )
        weights = np.asarray(context.weights, float)
        scale = 1.0 if context.scale is None else float(context.scale)
        heaviest = 0.0 if context.by_node else float(weights.max())
        behind = context.between + (
            context.after if self.at == "hub" else ()
        )  # messages pass all before they are added
        return ScaledGaussian(
            self.multiplier,
            self.at,
            clip=context.clip,
            behind=behind,
            heaviest=heaviest,
            scale=scale,
            least=float(context.least),
        )


class ScaledGaussian(Gaussian):
    """The same with what it is scaled by: what an experiment's bound form holds."""

    clip: Clips = field(kw_only=True)
    behind: tuple[Channel, ...] = field(kw_only=True)  # what clipped messages pass before they meet the noise
    heaviest: float = field(kw_only=True)  # the largest p_k; 0: every message is seen by itself
    scale: float = field(kw_only=True)  # v_k / p_k
    least: float = field(kw_only=True)  # messages in a sum, or more

    def bind(self, context: ChannelContext) -> Channel:
        return self

    def longest(self, message: Message) -> Number:
        """How long a message is at most where it meets the noise."""
        length = self.clip.longest(message)
        for stage in self.behind:
            after = stage.longest_after(length, message)
            assert after is not None  # an experiment refuses what has no bound
            length = after
        return length

    def deviation(self, message: Message, largest: Number) -> Number:
        """The standard deviation of every number of the sum, where this is the largest weight in it."""
        return self.multiplier * self.longest(message) * jnp.maximum(self.scale * self.heaviest, largest)

    def agent_deviation(self, message: Message, share: Number) -> Number:
        """That of what an agent with this share adds to its message."""
        alone = self.multiplier * self.longest(message)
        return alone * jnp.where(self.heaviest > 0, self.heaviest / (share * jnp.sqrt(self.least)), 1.0)

    def encode(self, message: Message, memory: State, agent: Agent) -> tuple[Tree, State]:
        if self.at == "hub":
            return message, memory
        deviation = self.agent_deviation(message, agent.share)
        return _plus(message, agent.normal(message), deviation), memory

    def release(self, inbox: Inbox, hub: Hub) -> Inbox:
        heard = inbox.weight > 0
        ratio = jnp.where(heard, inbox.mass / jnp.where(heard, inbox.weight, 1.0), 1.0 / self.scale)
        ratio = ratio.astype(inbox.mass.dtype)
        used = Inbox(inbox.mean, inbox.total, ratio, jnp.ones_like(inbox.weight))  # not who was heard
        if self.at == "agents":
            return used
        mean = _plus(inbox.mean, self.noise(inbox.mean, hub), self.deviation(inbox.mean, hub.largest))
        return used._replace(mean=mean, total=jax.tree.map(lambda a: ratio.astype(a.dtype) * a, mean))

    def noise(self, like: Message, hub: Hub) -> Message:
        """What is added at the hub, for a deviation of 1."""
        return normal(like, hub.luck)

    def scatter(self, second: Array, like: Message, share: Number) -> Array:
        at_agent = self.agent_deviation(like, share) if self.at == "agents" else 0.0
        return jnp.square(at_agent) * second[0, 0] * jnp.eye(len(second) - 1)

    def scatter_hub(self, like: Message, largest: Array) -> Array:
        d = sum(int(np.prod(a.shape)) for a in jax.tree.leaves(like) if real(a))
        one = self.deviation(like, largest) if self.at == "hub" else 0.0
        total = one / self.scale  # the same noise, rescaled
        return jnp.kron(jnp.array([[one * one, one * total], [one * total, total * total]]), jnp.eye(d))


def _plus(message: Message, noise: Message, deviation: Number) -> Message:
    return jax.tree.map(lambda a, n: a + jnp.asarray(deviation * n, a.dtype) if real(a) else a, message, noise)


def normal(like: Message, luck: Row) -> Message:
    """Standard normal numbers of a hub's own luck, each used once."""
    leaves, structure = jax.tree.flatten(like)
    first = np.cumsum([0, *(int(np.prod(a.shape)) for a in leaves)])
    draws = [normal_like(luck, a, int(i)) for a, i in zip(leaves, first, strict=False)]
    return jax.tree.unflatten(structure, draws)
