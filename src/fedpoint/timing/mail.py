"""What have others said, and since when? The messages that are still of use, each with the version it is."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpoint.core.types import Message, Number


def power_of_two(count: int) -> int:
    """The next one: few different sizes are few programs."""
    return 1 << max(0, int(count) - 1).bit_length()


class Mail(NamedTuple):
    """The last messages of N senders: of each the last D, with the ticks from which they hold (-1: none yet).

    With D = 1 there is only the newest, and no stamp.
    """

    stamp: Array | tuple[()]  # (N, D), or () when D = 1
    value: Message  # (N, D, ...), or (N, ...)


def open_mail(messages: Message, depth: int) -> Mail:
    """What senders (leading axis) say before tick 0."""
    if depth == 1:
        return Mail((), messages)
    senders = jax.tree.leaves(messages)[0].shape[0]
    stamp = jnp.full((senders, depth), -1, jnp.int32).at[:, 0].set(0)
    value = jax.tree.map(lambda a: jnp.zeros((senders, depth, *a.shape[1:]), a.dtype).at[:, 0].set(a), messages)
    return Mail(stamp, value)


def post(mail: Mail, sender: Array, said: Array, messages: Message, version: Number) -> Mail:
    """The messages of these senders, where they said something, in place of each one's oldest."""
    senders = jax.tree.leaves(mail.value)[0].shape[0]
    target = jnp.where(said, sender, senders)  # an index out of range is dropped
    if isinstance(mail.stamp, tuple):
        return Mail((), jax.tree.map(lambda a, m: a.at[target].set(m, mode="drop"), mail.value, messages))
    oldest = jnp.argmin(mail.stamp[sender], axis=1)
    stamp = mail.stamp.at[target, oldest].set(jnp.int32(version), mode="drop")
    return Mail(stamp, jax.tree.map(lambda a, m: a.at[target, oldest].set(m, mode="drop"), mail.value, messages))


def look(mail: Mail, sender: Array, version: Number) -> Message:
    """What these senders had said at a version: one number, or one for each."""
    if isinstance(mail.stamp, tuple):
        return jax.tree.map(lambda a: a.at[sender].get(mode="promise_in_bounds"), mail.value)
    stamp = mail.stamp.at[sender].get(mode="promise_in_bounds")
    version = jnp.broadcast_to(jnp.asarray(version, jnp.int32), sender.shape)
    place = jnp.argmax(jnp.where(stamp <= version[..., None], stamp, -1), axis=-1)
    return jax.tree.map(lambda a: a.at[sender, place].get(mode="promise_in_bounds"), mail.value)


def deepen(mail: Mail | tuple, depth: int) -> Mail | tuple:
    """Room for more messages of each sender, nothing lost."""
    if not isinstance(mail, Mail) or isinstance(mail.stamp, tuple) or mail.stamp.shape[-1] >= depth:
        return mail
    more = depth - mail.stamp.shape[-1]
    lead = mail.stamp.ndim - 1

    def widen(a: Array, fill: int) -> Array:
        return jnp.pad(a, [(0, more if axis == lead else 0) for axis in range(a.ndim)], constant_values=fill)

    return Mail(widen(mail.stamp, -1), jax.tree.map(lambda a: widen(a, 0), mail.value))
