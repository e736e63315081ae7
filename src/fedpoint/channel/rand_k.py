"""A random part of the numbers, which stands for all of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.channel.base import Channel, by_part
from fedpoint.channel.parts import built, each, row_of, seed_of, select, size_of
from fedpoint.core.agent import Agent
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Message, Number, State, Tree


class RandK(Channel):
    r"""$k$ of the $d$ numbers of every array, times $d/k$: what arrives is unbiased.

    $$E\,C(x) = x, \qquad E|C(x) - x|^2 = (d/k - 1)|x|^2$$

    Args:
        fraction: $k/d$; at least one number of each array is sent.

    The places are drawn from a seed of 64 bits that is sent along, each agent's own in every round: there are no
    indices on the wire.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0, 4.0, 1.0, 3.0], [1.0, 2.0, 5.0, 1.0]])
    >>> run = fp.run(fp.Scaffold(step=0.05), quad, rounds=1500, channel=fp.channel.RandK(0.75))
    >>> bool(run.error[0, -1] < 1e-20), float(run.cost.bytes_up / 3000)  # three doubles of w and of c, and the seed
    (True, 56.0)
    """

    lossless = False
    embeds = True
    structural = ("fraction",)

    fraction: float

    def check(self) -> None:
        check_fraction(self, self.fraction)

    def gain(self) -> float:
        return 1.0 / self.fraction

    def longest_after(self, length: Number, message: Message) -> Number:
        return length * (1.0 + self.omega(message))

    def encode(self, message: Message, memory: State, agent: Agent) -> tuple[Tree, State]:
        seed = seed_of(agent)
        return (seed, each(lambda i, a: self._longer(a).ravel()[self._places(seed, i, a)], message)), memory

    def decode(self, code: Tree, like: Message) -> Message:
        seed, values = code

        def one(i: int, a: Array, v: Array) -> Array:
            return jnp.zeros(size_of(a), a.dtype).at[self._places(seed, i, a)].set(v).reshape(a.shape)

        return built(each(one, like, values), like)

    def transfer(self, message: Message, memory: State, agent: Agent) -> tuple[Message, State]:
        seed = seed_of(agent)
        arrived = each(lambda i, a: jnp.where(self._mask(seed, i, a).reshape(a.shape), self._longer(a), 0), message)
        return built(arrived, message), memory

    def _mask(self, seed: Array, i: int, a: Array) -> Array:
        """The places of the largest of d random words of 31 bits: equal ones are too rare to matter."""
        d, k = size_of(a), count_of(self.fraction, a)
        if k == d:
            return jnp.ones(d, bool)
        words = (row_of(seed, i).words((d,))[0] >> jnp.uint32(1)).astype(jnp.int32)
        part, spread = 1 - k / d, 4 * np.sqrt(k * (d - k) / d**3)
        low, high = (np.int32(np.clip(part + s * spread, 0, 1) * (2**31 - 1)) for s in (-1, 1))
        return select(words, k, jnp.asarray(low), jnp.asarray(high))

    def _places(self, seed: Array, i: int, a: Array) -> Array:
        return jnp.nonzero(self._mask(seed, i, a), size=count_of(self.fraction, a))[0]

    def _longer(self, a: Array) -> Array:
        return a * jnp.asarray(size_of(a) / count_of(self.fraction, a), a.dtype)

    def scatter(self, second: Array, like: Message, share: Number) -> Array | None:
        return by_part(self._scattered, second[1:, 1:], like)

    def _scattered(self, second: Array) -> Array:
        d, k = len(second), count_of(self.fraction, second[:, 0])
        pairs = (k - 1) / (d - 1) if d > 1 else 1.0
        return (d / k) * (pairs * second + (1 - pairs) * jnp.diag(jnp.diag(second))) - second

    def omega(self, message: Message) -> float:
        return max((size_of(a) / count_of(self.fraction, a) for a in jax.tree.leaves(message)), default=1.0) - 1.0


def check_fraction(owner: Channel, fraction: float) -> None:
    """Refuse what is not a part of a message."""
    if not 0 < fraction <= 1:
        raise FedpointError(f"{type(owner).__name__}: fraction must be above 0 and at most 1, got {fraction}")


def count_of(fraction: float, a: Array) -> int:
    """How many numbers of an array are sent."""
    return max(1, round(fraction * size_of(a)))
