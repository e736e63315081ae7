"""How does a hub make one inbox of many messages? By weighted sums, or by a mean that a few liars cannot move."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from fedpoint.core.inbox import Inbox, gather
from fedpoint.core.record import Record
from fedpoint.core.types import Message
from fedpoint.core.vector import weighted_sum


class Gather(Record):
    """How a hub merges messages. Subclass it for a robust mean of your own, which receives the messages themselves.

    Write `location` for one that goes coordinate by coordinate, `middle` for one that looks at whole messages.

    Arguments of methods:
        messages: of the L agents that answer, each array led by L.
        weights: (L,) the weight of each; 0: not heard.
    """

    conserves = False  # True: `total` is the sum over those heard, which conserved quantities need

    def location(self, messages: Array, weights: Array) -> Array:
        """A middle of one part of the messages, (L, ...), with weights (L,) that sum to one; zero: not heard."""
        return weighted_sum(weights, messages)

    def middle(self, messages: Message, weights: Array) -> Message:
        """A middle of whole messages, all their parts together; each part leads with the L messages."""
        return jax.tree.map(lambda m: self.location(m, weights), messages)

    def too_few(self, heard: int) -> str | None:
        """Why so many messages are not enough; None: they are.

        Args:
            heard: how many messages arrive.
        """
        return None

    def inbox(self, messages: Message, weights: Array, shares: Array) -> Inbox:
        """What the hub hears: the middle, with the weight and the mass of all who answered.

        A message that is not finite does not count, unless none is.

        Args:
            shares: (L,) p_k of each.
        """
        dtype = jnp.result_type(*jax.tree.leaves(messages))
        weight, mass = weights.sum().astype(dtype), shares.sum().astype(dtype)
        messages, counted = _finite(messages, weights)
        middle = self.middle(messages, counted / jnp.where(counted.sum() > 0, counted.sum(), 1.0))
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


def column(a: Array, like: Array) -> Array:
    """One number for each message, beside messages of this shape."""
    return a.reshape(-1, *(1,) * (like.ndim - 1))


def _finite(messages: Message, weights: Array) -> tuple[Message, Array]:
    """Zeros in place of messages that were not heard or are not finite, and weights of zero for them."""
    leaves = [jnp.isfinite(m).reshape(m.shape[0], -1).all(axis=1) for m in jax.tree.leaves(messages)]
    finite = jnp.stack(leaves).all(axis=0)
    counts = (weights > 0) & (finite | ~((weights > 0) & finite).any())
    kept = jax.tree.map(lambda m: jnp.where(column(counts, m), m, jnp.zeros((), m.dtype)), messages)
    return kept, jnp.where(counts, weights, 0.0)
