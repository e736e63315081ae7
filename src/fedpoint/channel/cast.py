"""Messages in another precision: 32 or 16 bits a number."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.channel.base import Channel, numbers_of, real
from fedpoint.core.agent import Agent
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.types import Message, Number, State, Tree

TYPES = ("float32", "float16", "bfloat16")


class Cast(Channel):
    """Numbers travel as "float32", "float16" (11 bits of mantissa, up to 65,504) or "bfloat16" (8 bits of mantissa);
    whole numbers as they are, and so does what is no longer than that already.

    Args:
        dtype: "float32", "float16" or "bfloat16".

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> run = fp.run(fp.Scaffold(step=0.1), quad, rounds=200, channel=fp.channel.Cast("float16"))
    >>> bool(run.error[0, -1] < 1e-12), run.cost.bytes_up   # messages are changes: they vanish, and their rounding too
    (True, 1600.0)
    """

    dtype: str = "float16"

    def check(self) -> None:
        if self.dtype not in TYPES:
            raise FedpointError(f"Cast: unknown dtype {self.dtype!r}: {nearest(str(self.dtype), TYPES)}")

    def encode(self, message: Message, memory: State, agent: Agent) -> tuple[Tree, State]:
        narrow = jnp.dtype(self.dtype)
        narrower = jax.tree.map(lambda a: real(a) and a.dtype.itemsize > narrow.itemsize, message)
        return jax.tree.map(lambda a, yes: a.astype(narrow) if yes else a, message, narrower), memory

    def largest_number(self) -> float:
        return float(jnp.finfo(self.dtype).max)

    def longest_after(self, length: Number, message: Message) -> Number:
        """Rounding makes a number longer by half a unit in its last place, or of the smallest that there is."""
        of = jnp.finfo(self.dtype)
        return length * (1 + float(of.eps) / 2) + np.sqrt(numbers_of(message)) * float(of.smallest_subnormal) / 2

    def decode(self, code: Tree, like: Message) -> Message:
        return jax.tree.map(lambda c, a: c.astype(a.dtype), code, like)
