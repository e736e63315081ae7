"""What is the mean without the largest and the smallest of each coordinate?"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from fedpoint.core.errors import check_count
from fedpoint.gather.base import Gather, column


class TrimmedMean(Gather):
    """The weighted mean of what is left without the `count` largest and the `count` smallest of each coordinate.

    `count` liars do not take it out of the range of the others (Yin et al., 2018). Where fewer than 2 count + 1 are
    heard in a round, as many are trimmed as leaves one or two.

    Args:
        count: how many are left out at each end.

    >>> import fedpoint as fp
    >>> import numpy as np
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [1.0], [3.0], [1e6]])
    >>> run = fp.run(fp.FedAvg(step=0.5), quad, rounds=60, gather=fp.gather.TrimmedMean(1))
    >>> np.round(run.model, 6)
    array([[2.]])
    """

    count: int

    def check(self) -> None:
        check_count("TrimmedMean: count", self.count, 0)

    def too_few(self, heard: int) -> str | None:
        if heard > 2 * self.count:
            return None
        return (
            f"TrimmedMean({self.count}) trims {2 * self.count} messages of each coordinate, and a round hears at most "
            f"{heard}: trim fewer, or let more answer"
        )

    def location(self, messages: Array, weights: Array) -> Array:
        heard = weights > 0
        count = jnp.minimum(self.count, (heard.sum() - 1) // 2)
        above, below = (_beyond(side, heard, self.count, count) for side in (messages, -messages))
        each = column(weights.astype(messages.dtype), messages) * (1.0 - above - below)
        total = each.sum(axis=0)
        return (each * messages).sum(axis=0) / jnp.where(total > 0, total, 1.0)


def _beyond(messages: Array, heard: Array, most: int, count: Array) -> Array:
    """Which part of each message is among the `count` largest (at most `most`), coordinate by coordinate.

    Of equal messages each has the same part. By repeated maxima: sorting costs ten times as much.
    """
    place = column(jnp.arange(len(heard)), messages)

    def lower(i: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        kept, bound = state
        left = jnp.where(kept, messages, -jnp.inf)
        return kept & (place != jnp.argmax(left, axis=0)), jnp.where(i < count, left.max(axis=0), bound)

    kept = jnp.broadcast_to(column(heard, messages), messages.shape)
    none = jnp.full(messages.shape[1:], jnp.inf, messages.dtype)
    _, bound = lax.fori_loop(0, most, lower, (kept, none))
    larger, equal = kept & (messages > bound), kept & (messages == bound)
    part = (count - larger.sum(axis=0)) / jnp.maximum(equal.sum(axis=0), 1)
    return jnp.where(larger, 1.0, jnp.where(equal, part, 0.0)).astype(messages.dtype)
