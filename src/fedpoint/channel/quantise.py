"""A few bits a number: rounded up or down at random, so that what arrives is right on average."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.channel.base import Channel
from fedpoint.channel.parts import built, each, packed, row_of, seed_of, size_of, uniform, unpacked
from fedpoint.core.agent import Agent
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Message, Number, State, Tree


class Rounded(NamedTuple):
    """What is sent of an array."""

    longest: Array  # the largest |x|
    levels: Array  # so many bits a number, in bytes


class Quantise(Channel):
    r"""Every number of an array as one of $2M + 1$ levels, $M = 2^{b-1} - 1$, between $-\max|x|$ and $\max|x|$.

    $$x \to \Delta \lfloor x/\Delta + u \rfloor, \quad \Delta = \max|x| / M, \quad u \text{ uniform on } (0, 1)$$

    is unbiased with a variance of $\Delta^2 f (1 - f)$, $f$ the fractional part of $x/\Delta$; numbers that are zero
    stay zero.

    Args:
        width: $b$, the bits of a number, 2 to 16.
        dither: take $u - 1/2$ away again at the hub, which draws it from a seed of 64 bits that is sent along: the
            error is then uniform on $\pm\Delta/2$ with variance $\Delta^2/12$, whatever $x$ is.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0, 4.0, 1.0, 3.0], [1.0, 2.0, 5.0, 1.0]])
    >>> run = fp.run(fp.Scaffold(step=0.1), quad, rounds=500, channel=fp.channel.Quantise(4))
    >>> bool(run.error[0, -1] < 1e-20), float(run.cost.bytes_up / (500 * 2))   # of w and c: 4 x 4 bits and a double
    (True, 20.0)
    """

    lossless = False

    width: int
    dither: bool = False

    def check(self) -> None:
        if not 2 <= self.width <= 16:
            raise FedpointError(f"Quantise: width must lie between 2 and 16 bits (for 1 take Sign), got {self.width}")

    @property
    def _most(self) -> int:
        return 2 ** (self.width - 1) - 1

    def encode(self, message: Message, memory: State, agent: Agent) -> tuple[Tree, State]:
        seed = seed_of(agent)

        def one(i: int, a: Array) -> Rounded:
            longest, level = self._levels(a, uniform(row_of(seed, i), a))
            return Rounded(longest, packed(level.astype(jnp.int32) + self._most, self.width))

        sent = each(one, message)
        return ((seed, sent) if self.dither else sent), memory

    def decode(self, code: Tree, like: Message) -> Message:
        seed, sent = code if self.dither else (None, code)
        found = []
        for i, (a, c) in enumerate(zip(jax.tree.leaves(like), sent, strict=True)):
            if not isinstance(c, Rounded):
                found.append(c)
                continue
            level = (unpacked(c.levels, self.width, size_of(a)) - self._most).astype(a.dtype).reshape(a.shape)
            luck = None if seed is None else uniform(row_of(seed, i), a)
            found.append(self._value(level, c.longest.astype(a.dtype), luck))
        return built(found, like)

    def transfer(self, message: Message, memory: State, agent: Agent) -> tuple[Message, State]:
        seed = seed_of(agent)

        def one(i: int, a: Array) -> Array:
            luck = uniform(row_of(seed, i), a)
            longest, level = self._levels(a, luck)
            return self._value(level, longest, luck if self.dither else None)

        return built(each(one, message), message), memory

    def _levels(self, a: Array, luck: Array) -> tuple[Array, Array]:
        longest = jnp.abs(a).max(initial=0.0)
        scale = jnp.where(longest > 0, self._most / jnp.where(longest > 0, longest, 1.0), 0.0).astype(a.dtype)
        level = jnp.floor(a * scale + luck)
        return longest, jnp.clip(level, -self._most, self._most)

    def _value(self, level: Array, longest: Array, luck: Array | None) -> Array:
        if luck is not None:
            level = level + jnp.asarray(0.5, level.dtype) - luck
        return level * (longest / self._most)

    def longest_after(self, length: Number, message: Message) -> Number:
        """Every number of an array moves by a step at most, with dither by half of one."""
        most = max((size_of(a) for a in jax.tree.leaves(message)), default=1)
        return length * (1.0 + np.sqrt(most) / self._most * (0.5 if self.dither else 1.0))

    def omega(self, message: Message) -> float:
        most = max((size_of(a) for a in jax.tree.leaves(message)), default=1)
        spread = most / (12.0 if self.dither else 4.0) / self._most**2
        return float(spread if self.dither else min(spread, np.sqrt(most) / self._most))
