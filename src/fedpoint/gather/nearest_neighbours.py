"""What is left of a liar when everyone is mixed with the nearest?"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from fedpoint.core.errors import FedpointError, check_count
from fedpoint.core.types import Message
from fedpoint.gather.base import Gather
from fedpoint.gather.distances import ranks, squared_distances


class NearestNeighbourMixing(Gather):
    """Each message becomes the mean of the n - liars nearest, itself included; then another gather (Allouah et al.,
    2023).

    It helps where honest agents differ: what is left to `then` lies closer together.

    Args:
        liars: how many of the messages in a round may be false.
        then: the gather that combines the mixed messages.

    >>> import fedpoint as fp
    >>> fp.gather.NearestNeighbourMixing(liars=2, then=fp.gather.TrimmedMean(2))
    NearestNeighbourMixing(liars=2, then=TrimmedMean(count=2))
    """

    liars: int
    then: Gather

    def check(self) -> None:
        check_count("NearestNeighbourMixing: liars", self.liars, 0)
        if self.then.conserves:
            raise FedpointError(
                "NearestNeighbourMixing: then must be a robust gather, such as fp.gather.TrimmedMean(2)"
            )

    def too_few(self, heard: int) -> str | None:
        if heard > 2 * self.liars:
            return self.then.too_few(heard)
        return (
            f"NearestNeighbourMixing(liars={self.liars}) needs {2 * self.liars + 1} messages, and a round hears at "
            f"most {heard}: let more answer, or expect fewer liars"
        )

    def middle(self, messages: Message, weights: Array) -> Message:
        heard = weights > 0
        near = (ranks(squared_distances(messages, weights)) < jnp.maximum(heard.sum() - self.liars, 1)) & heard[None, :]
        each = jnp.where(near, weights[None, :], 0.0)
        each = each / jnp.where(each.sum(axis=1, keepdims=True) > 0, each.sum(axis=1, keepdims=True), 1.0)

        def mix(m: Array) -> Array:
            return jnp.tensordot(each.astype(m.dtype), m, 1)

        return self.then.middle(jax.tree.map(mix, messages), weights)
