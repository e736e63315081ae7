"""How far apart are whole messages? Over all their parts, control variates included."""

from __future__ import annotations

from functools import reduce

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedpoint.core.types import Message


def squared_distances(messages: Message, weights: Array) -> Array:
    """(L, L): |m_i - m_j|^2, and infinity to who was not heard."""

    def one(m: Array) -> Array:
        flat = m.reshape(m.shape[0], -1)
        return lax.map(lambda row: jnp.sum((flat - row) ** 2, axis=1), flat)

    total = reduce(jnp.add, [one(m) for m in jax.tree.leaves(messages)])
    return jnp.where((weights > 0)[None, :] & (weights > 0)[:, None], total, jnp.inf)


def squared_norms(messages: Message) -> Array:
    """(L,): |m_i|^2."""
    return reduce(jnp.add, [jnp.sum(m.reshape(m.shape[0], -1) ** 2, axis=1) for m in jax.tree.leaves(messages)])


def products(messages: Message) -> Array:
    """(L, L): m_i'm_j."""
    flat = [m.reshape(m.shape[0], -1) for m in jax.tree.leaves(messages)]
    return reduce(jnp.add, [m @ m.T for m in flat])


def ranks(a: Array) -> Array:
    """The place of each number along the last axis, 0 for the smallest; of equal ones the first comes first."""
    return jnp.argsort(jnp.argsort(a, axis=-1), axis=-1)


def minus(messages: Message, center: Message) -> Message:
    """Messages from a center."""
    return jax.tree.map(lambda m, c: m - c, messages, center)
