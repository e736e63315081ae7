"""How does a hub make one inbox of many messages? By weighted sums, or by a mean that a few liars cannot move."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from fedpoint.core.inbox import Inbox, gather
from fedpoint.core.record import Record
from fedpoint.core.types import Message


class Gather(Record):
    """Subclass it and write `location` for a robust mean of your own: it is granted the messages themselves."""

    conserves = False  # True: `total` is the sum over those heard, which conserved quantities need

    def location(self, messages: Array, weights: Array) -> Array:
        """A middle of messages (L, ...) with weights (L,) that sum to one where anybody is heard; zero: not heard."""
        return jnp.tensordot(weights.astype(messages.dtype), messages, 1)

    def inbox(self, messages: Message, weights: Array, shares: Array) -> Inbox:
        """What the hub hears: the middle, with the weight and the mass of all who were heard."""
        dtype = jnp.result_type(*jax.tree.leaves(messages))
        weight, mass = weights.sum().astype(dtype), shares.sum().astype(dtype)
        each = weights / jnp.where(weights.sum() > 0, weights.sum(), 1.0)
        middle = jax.tree.map(lambda m: self.location(m, each), messages)
        return Inbox(
            jax.tree.map(lambda m: weight.astype(m.dtype) * m, middle),
            jax.tree.map(lambda m: mass.astype(m.dtype) * m, middle),
            mass,
            weight,
        )


class WeightedSums(Gather):
    """sum_k v_k m_k, as every method of the catalogue is defined: messages are added as they come."""

    conserves = True

    def inbox(self, messages: Message, weights: Array, shares: Array) -> Inbox:
        return gather(messages, weights, shares)


class Median(Gather):
    """The weighted median of each coordinate: half of the weight may lie without moving it far.

    >>> import fedpoint as fp
    >>> import numpy as np
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [1.0], [1e6]])
    >>> run = fp.run(fp.FedAvg(step=0.5), quad, rounds=60, gather=fp.channel.Median())
    >>> np.round(run.model, 6)
    array([[1.]])
    """

    def location(self, messages: Array, weights: Array) -> Array:
        order = jnp.argsort(jnp.where(_column(weights > 0, messages), messages, jnp.inf), axis=0)
        values = jnp.take_along_axis(messages, order, axis=0)
        reached = jnp.cumsum(weights[order], axis=0)
        low = jnp.argmax(reached >= 0.5 - 1e-12, axis=0)
        high = jnp.argmax(reached > 0.5 + 1e-12, axis=0)
        ends = [jnp.take_along_axis(values, place[None], axis=0)[0] for place in (low, high)]
        return (ends[0] + ends[1]) / 2


def _column(a: Array, like: Array) -> Array:
    return a.reshape(-1, *(1,) * (like.ndim - 1))
