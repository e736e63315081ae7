"""How do numbers become whole ones that masks fit on? By `fp.channel.FixedPoint`, each site's already weighted.

A site's vector is p_k (m_k, C): what the sum of the last number is, all know beforehand, so that a sum that was opened
with wrong masks is known. |p_k m_k| <= p_max C for messages that sites have clipped to C; noise gets room beside it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.channel.fixed_point import FixedPoint
from fedpoint.core.agent import Agent
from fedpoint.core.precision import double
from fedpoint.core.random import Key, Stream

WIDTH = 32  # bits; primitives.WORD


class OutOfRange(ValueError):
    """A number that is longer than the study allows, or none."""


@jax.jit
def _rounded(grid: FixedPoint, numbers: Array, luck: Stream) -> Array:
    """Whole numbers of the grid, up or down by luck."""
    nobody = Agent(None, None, luck, None, None, True, 1.0)  # type: ignore[arg-type]
    return grid.encode(numbers, (), nobody)[0][0]


class Encoding:
    """longest: what any number of a message is at most. heaviest: the largest share. sites: room for so many."""

    def __init__(self, longest: float, heaviest: float, sites: int):
        self.longest, self.sites = longest, sites
        self.grid = FixedPoint(WIDTH, range=longest * heaviest, agents=sites)

    @property
    @double
    def resolution(self) -> float:
        """The distance of two numbers of a weighted message; a sum is off by less than it for each site."""
        return float(self.grid.decode_sum(jnp.ones((), jnp.int32)))

    @double
    def encode(self, message: Mapping[str, np.ndarray], share: float) -> np.ndarray:
        """p_k (m_k, C) modulo 2^32, rounded at random."""
        flat = np.concatenate([*(np.ravel(array).astype(float) for array in message.values()), [self.longest]])
        luck = Stream(Key.of(secrets.randbits(62), 0, 0), jnp.int32(0), jnp.int32(0))
        whole = np.asarray(_rounded(self.grid, jnp.asarray(share * flat), luck))
        if (whole == np.iinfo(np.int32).min).any():
            raise OutOfRange(f"a number of the message is not finite, or larger than {self.longest:g}")
        return whole.astype("<i4").view("<u4")

    @double
    def decode(self, words: np.ndarray, mass: float, like: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        """sum p_k m_k, of arrays as in `like`; None where the sum of p_k is not this, because masks were wrong."""
        numbers = np.asarray(self.grid.decode_sum(jnp.asarray(words.view("<i4"))))
        if not abs(numbers[-1] - mass * self.longest) <= self.sites * self.resolution * (1 + 1e-6):
            return None
        found, at = {}, 0
        for name, array in like.items():
            found[name] = numbers[at : at + array.size].reshape(array.shape).astype(array.dtype)
            at += array.size
        return found

    def count(self, like: Mapping[str, np.ndarray]) -> int:
        """How many words a vector has."""
        return sum(array.size for array in like.values()) + 1
