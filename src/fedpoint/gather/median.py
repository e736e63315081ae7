"""What is the middle of each coordinate?"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from fedpoint.gather.base import Gather, column

PAIRS = 48  # messages up to which every pair is compared: above it sorting is faster


class Median(Gather):
    """The weighted median of each coordinate: liars with less than half of the weight do not take it out of the range
    of the others.

    >>> import fedpoint as fp
    >>> import numpy as np
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [1.0], [1e6]])
    >>> run = fp.run(fp.FedAvg(step=0.5), quad, rounds=60, gather=fp.gather.Median())
    >>> np.round(run.model, 6)
    array([[1.]])
    """

    def location(self, messages: Array, weights: Array) -> Array:
        return weighted_median(messages, weights)


def weighted_median(messages: Array, weights: Array) -> Array:
    """Where half of the weight is reached in each coordinate; the mean of two values where it is reached between."""
    reached = _compared(messages, weights) if len(weights) <= PAIRS else _sorted(messages, weights)
    slack = 4 * len(weights) * jnp.finfo(weights.dtype).eps
    heard = column(weights > 0, messages)

    def first(enough: Array) -> Array:
        return jnp.min(jnp.where(enough & heard, messages, jnp.inf), axis=0)

    middle = (first(reached >= 0.5 - slack) + first(reached > 0.5 + slack)) / 2
    return jnp.where(heard.any(), middle, 0.0).astype(messages.dtype)


def _compared(messages: Array, weights: Array) -> Array:
    """The weight of all messages up to each one, coordinate by coordinate."""
    total = jnp.zeros(messages.shape, weights.dtype)
    for j in range(len(weights)):  # one pass over the coordinates: XLA fuses the sum
        total = total + jnp.where(messages[j] <= messages, weights[j], 0.0)
    return total


def _sorted(messages: Array, weights: Array) -> Array:
    """The same by sorting; of equal values only the last has all of their weight."""
    order = jnp.argsort(messages, axis=0)
    reached = jnp.cumsum(weights[order], axis=0)
    return jnp.take_along_axis(reached, jnp.argsort(order, axis=0), axis=0)
