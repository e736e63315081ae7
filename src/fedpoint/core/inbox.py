"""What does a hub hear? Weighted sums of the agents' messages, never the messages."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from jax import Array

from fedpoint.core.errors import UnknownName
from fedpoint.core.types import Message
from fedpoint.core.vector import weighted_sum, zeros


class Inbox(NamedTuple):
    """What a hub hears in a round.

    Attributes:
        mean: sum_k v_k m_k with the schedule's weights v (p_k when everyone answers, p_k K/L for L uniform answers,
            ...): an unbiased estimate of sum_k p_k m_k.
        total: sum_k p_k m_k over the distinct agents that answered: what conserved quantities need.
        mass: sum_k p_k over the same agents.
        weight: sum_k v_k, which is 1 on average: mean / weight is a mean over those heard, for what is only a scale.
    """

    mean: Message
    total: Message
    mass: Array
    weight: Array

    def __getattr__(self, name: str) -> NoReturn:
        meant = {"messages": "mean", "sum": "total", "changes": "mean", "weights": "weight"}
        raise UnknownName("inbox", name, self._fields, meant)


def gather(messages: Message, weights: Array, shares: Array) -> Inbox:
    """Messages of shape (L, ...) with their weights v and shares p; an agent that did not answer has zeros."""
    dtype = jnp.result_type(*jax.tree.leaves(messages))
    mass, weight = (jnp.sum(w).astype(dtype) for w in (shares, weights))
    return Inbox(weighted_sum(weights, messages), weighted_sum(shares, messages), mass, weight)


def nothing_heard(message: Message) -> Inbox:
    """Before messages of this shape come one after the other."""
    zero = zeros(message)
    none = jnp.zeros((), jnp.result_type(*jax.tree.leaves(message)))
    return Inbox(zero, zero, none, none)


def hear_one(inbox: Inbox, message: Message, weight: Array, share: Array) -> Inbox:
    """One message more: no room is needed for all of them at once."""

    def add(total: Message, factor: Array) -> Message:
        return jax.tree.map(lambda t, m: t + factor.astype(t.dtype) * m, total, message)

    mass, total = inbox.mass + share.astype(inbox.mass.dtype), inbox.weight + weight.astype(inbox.weight.dtype)
    return Inbox(add(inbox.mean, weight), add(inbox.total, share), mass, total)
