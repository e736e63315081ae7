"""Which lies are told about one's own message? Turned round, made longer, garbage in its controls."""

from __future__ import annotations

import jax
from jax import Array

from fedpoint.attack.base import Attack, Heard
from fedpoint.core.errors import check_number
from fedpoint.core.random import Row
from fedpoint.core.types import Message


class SignFlip(Attack):
    """-scale m in place of m: the agent climbs where it should descend.

    Args:
        scale: by which the turned message is multiplied.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [1.0], [2.0]])
    >>> fp.run(fp.FedAvg(step=0.1), quad, rounds=50, attack=fp.attack.SignFlip([2])).model.round(3)
    array([[-0.816]])
    """

    repeats_itself = True

    scale: float = 1.0

    def check(self) -> None:
        check_number("SignFlip: scale", self.scale, 0.0, strict=True)

    def sent(self, messages: Message, heard: Heard, luck: Row) -> Message:
        return jax.tree.map(lambda m: -self.scale * m, messages)


class Scaling(Attack):
    """factor m is sent in place of m.

    Args:
        factor: by which the message is multiplied.
    """

    repeats_itself = True

    factor: float

    def sent(self, messages: Message, heard: Heard, luck: Row) -> Message:
        return jax.tree.map(lambda m: self.factor * m, messages)


class GarbageControls(Attack):
    """Normal numbers of standard deviation `scale` in all parts of a message beyond the first, such as SCAFFOLD's
    control variates: whoever protects models alone does not see them.

    Args:
        scale: the standard deviation, in the units of the message.
    """

    scale: float = 1.0

    def check(self) -> None:
        check_number("GarbageControls: scale", self.scale, 0.0, strict=True)

    def nothing_to_do(self, message: Message) -> str | None:
        if isinstance(message, tuple) and len(message) > 1:
            return None
        return "GarbageControls needs messages of several parts, such as SCAFFOLD's; here a message has one"

    def sent(self, messages: Message, heard: Heard, luck: Row) -> Message:
        first, *others = messages
        leaves, structure = jax.tree.flatten(others)
        start, told = 0, []
        for a in leaves:
            told.append(self._garbage(a, luck, start))
            start += a.size
        others = jax.tree.unflatten(structure, told)
        return type(messages)(*(first, *others)) if type(messages) is not tuple else (first, *others)

    def _garbage(self, a: Array, luck: Row, first: int) -> Array:
        return self.scale * luck.normal(a.shape, first).astype(a.dtype)
