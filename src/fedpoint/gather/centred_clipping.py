"""Where do messages pull, if each may pull only so far?"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedpoint.core.errors import check_count, check_number
from fedpoint.core.types import Message
from fedpoint.core.vector import weighted_sum
from fedpoint.gather.base import Gather
from fedpoint.gather.distances import minus, squared_norms


class CentredClipping(Gather):
    """z <- z + sum_k v_k (m_k - z) min(1, radius / |m_k - z|), from z = 0 (Karimireddy et al., 2021).

    Messages are changes, so that z = 0 is the model that all have heard; on a network it is the node's own. A liar
    with weight v moves the result by at most v radius in every iteration.

    Args:
        radius: how far from z a message may pull; in the units of the messages.
        iterations: how often the clipped mean is taken again.

    >>> import fedpoint as fp
    >>> import numpy as np
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [1.0], [1e6]])
    >>> run = fp.run(fp.FedAvg(step=0.5), quad, rounds=200, gather=fp.gather.CentredClipping(radius=0.1))
    >>> bool(abs(run.model[0, 0] - 1.0) < 0.11)
    True
    """

    radius: float
    iterations: int = 3

    def check(self) -> None:
        check_number("CentredClipping: radius", self.radius, 0.0, strict=True)
        check_count("CentredClipping: iterations", self.iterations, 1)

    def middle(self, messages: Message, weights: Array) -> Message:
        def step(_: Array, center: Message) -> Message:
            apart = minus(messages, center)
            norm = jnp.sqrt(squared_norms(apart))
            part = jnp.where(norm > self.radius, self.radius / jnp.where(norm > 0, norm, 1.0), 1.0)
            return jax.tree.map(jnp.add, center, weighted_sum(weights * part, apart))

        start = jax.tree.map(lambda m: jnp.zeros(m.shape[1:], m.dtype), messages)
        return lax.fori_loop(0, self.iterations, step, start)
