"""What do liars send who know what the others sent?"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.stats import norm

from fedpoint.attack.base import Attack, Heard
from fedpoint.core.errors import check_number
from fedpoint.core.random import Row
from fedpoint.core.types import Message


class InnerProduct(Attack):
    """-scale times the mean of the honest messages, from every liar (Xie et al., 2020): small and in the crowd, but of
    the wrong sign.

    Args:
        scale: by which the mean is multiplied.
    """

    repeats_itself = True

    scale: float = 1.0

    def check(self) -> None:
        check_number("InnerProduct: scale", self.scale, 0.0, strict=True)

    def sent(self, messages: Message, heard: Heard, luck: Row) -> Message:
        mean = heard.mean(messages)
        return jax.tree.map(lambda m, c: jnp.broadcast_to(-self.scale * c, m.shape), messages, mean)


class LittleIsEnough(Attack):
    """The honest mean minus z standard deviations in every coordinate, from every liar (Baruch et al., 2019).

    Args:
        z: standard deviations from the honest mean. None: the most that hides in the crowd: with n heard, f of them
            liars, and s = n // 2 + 1 - f honest ones that must be farther out, the quantile (n - f - s) / (n - f) of a
            normal distribution.
    """

    repeats_itself = True

    z: float | None = None

    def check(self) -> None:
        if self.z is not None:
            check_number("LittleIsEnough: z", self.z, 0.0)

    def sent(self, messages: Message, heard: Heard, luck: Row) -> Message:
        mean = heard.mean(messages)
        z = _hidden(heard.liars.sum(), heard.honest.sum()) if self.z is None else self.z
        square = heard.mean(jax.tree.map(lambda m, c: (m - c) ** 2, messages, mean))
        return jax.tree.map(lambda m, c, v: jnp.broadcast_to(c - z * jnp.sqrt(v), m.shape), messages, mean, square)


def _hidden(liars: Array, honest: Array) -> Array:
    needed = (liars + honest) // 2 + 1 - liars
    return jnp.maximum(norm.ppf(jnp.clip((honest - needed) / jnp.maximum(honest, 1), 0.5, 1 - 1e-6)), 0.0)
