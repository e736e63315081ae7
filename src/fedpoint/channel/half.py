"""Messages in half precision: 16 bits a number."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.channel.base import Channel
from fedpoint.core.agent import Agent
from fedpoint.core.types import Message, State, Tree


class HalfPrecision(Channel):
    """Floats travel as bfloat16 (8 bits of mantissa) or float16 (11 bits, up to 65,504); whole numbers as they are.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> run = fp.run(fp.Scaffold(step=0.1), quad, rounds=200, channel=fp.channel.HalfPrecision())
    >>> bool(run.error[0, -1] < 1e-12), run.cost.bytes_up   # messages are changes: they vanish, and their rounding too
    (True, 1600.0)
    """

    bits_of_mantissa: int = 11

    def _dtype(self) -> np.dtype:
        return jnp.dtype(jnp.float16 if self.bits_of_mantissa == 11 else jnp.bfloat16)

    def encode(self, message: Message, memory: State, agent: Agent) -> tuple[Tree, State]:
        return jax.tree.map(lambda a: a.astype(self._dtype()) if _real(a) else a, message), memory

    def decode(self, code: Tree, like: Message) -> Message:
        return jax.tree.map(lambda c, a: c.astype(a.dtype), code, like)

    def bits(self, message: Message) -> float:
        leaves = jax.tree.leaves(message)
        return float(sum((16 if _real(a) else 8 * np.dtype(a.dtype).itemsize) * int(np.prod(a.shape)) for a in leaves))


def _real(a: Array) -> bool:
    return jnp.issubdtype(a.dtype, jnp.floating)
