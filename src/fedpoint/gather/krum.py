"""Which messages have the nearest neighbours?"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from fedpoint.core.errors import check_count
from fedpoint.core.types import Message
from fedpoint.core.vector import weighted_sum
from fedpoint.gather.base import Gather
from fedpoint.gather.distances import ranks, squared_distances


class Krum(Gather):
    """The message whose n - liars - 2 nearest others are nearest, of n heard (Blanchard et al., 2017).

    It takes one agent's message whatever the weights, so that its noise is that of one agent. It needs at least
    2 liars + 3 messages.

    Args:
        liars: how many of the messages in a round may be false.

    >>> import fedpoint as fp
    >>> import numpy as np
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [1.0], [1.5], [3.0], [1e6]])
    >>> run = fp.run(fp.FedAvg(step=0.5), quad, rounds=60, gather=fp.gather.Krum(1))
    >>> np.round(run.model, 6)
    array([[1.]])
    """

    liars: int

    def check(self) -> None:
        check_count(f"{type(self).__name__}: liars", self.liars, 0)

    def too_few(self, heard: int) -> str | None:
        if heard >= 2 * self.liars + 3:
            return None
        return (
            f"{type(self).__name__}(liars={self.liars}) needs {2 * self.liars + 3} messages, and a round hears at most "
            f"{heard}: let more answer, or expect fewer liars"
        )

    def middle(self, messages: Message, weights: Array) -> Message:
        chosen = jnp.arange(len(weights)) == jnp.argmin(scores(messages, weights, self.liars))
        return weighted_sum(chosen.astype(weights.dtype), messages)


class MultiKrum(Krum):
    """The weighted mean of the `keep` messages with the best scores of Krum.

    Args:
        keep: how many messages are averaged: at most n - liars - 2 of n heard, so that no liar is far.
    """

    keep: int

    def check(self) -> None:
        check_count("MultiKrum: keep", self.keep, 1)

    def too_few(self, heard: int) -> str | None:
        if heard - self.liars - 2 >= self.keep:
            return super().too_few(heard)
        return (
            f"MultiKrum(liars={self.liars}, keep={self.keep}) needs liars + keep + 2 = {self.liars + self.keep + 2} "
            f"messages, and a round hears at most {heard}: keep fewer"
        )

    def middle(self, messages: Message, weights: Array) -> Message:
        best = jnp.where(ranks(scores(messages, weights, self.liars)) < self.keep, weights, 0.0)
        return weighted_sum(best / jnp.where(best.sum() > 0, best.sum(), 1.0), messages)


def scores(messages: Message, weights: Array, liars: int) -> Array:
    """(L,): the sum of squared distances to the n - liars - 2 nearest others, at least one; infinite: not heard."""
    distances = squared_distances(messages, weights)
    heard = weights > 0
    neighbours = jnp.maximum(heard.sum() - liars - 2, 1)
    near = ranks(distances) <= neighbours  # itself first, at distance zero
    near = near & (heard[None, :])
    return jnp.where(heard, jnp.where(near, distances, 0.0).sum(axis=1), jnp.inf)
