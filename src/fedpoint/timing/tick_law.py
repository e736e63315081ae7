"""What is known of ticks before they are drawn? Who works, and when what was sent arrives.

What a node would hear of a neighbour r ticks from now, were nothing else sent, is a delay line f_0, f_1, ..., f_H: f_0
is heard now, f_H is the neighbour's last message. A tick moves it on by one place, f_r <- f_(r+1), and a message that
arrives after D ticks takes the places r >= D: it is newer than all that was sent before. So delays and losses that are
independent for each message make ticks independent, although how old a message is depends on how old the last one was.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpoint.timing.staleness import Staleness


class TickLaw(NamedTuple):
    """Ticks that are independent of each other, alike after every `period` of them."""

    works: np.ndarray  # (period, K) the chance that a node works
    arrives: np.ndarray  # (H,) the chance that a message is there r ticks after it was sent; after H it is in any case
    together: np.ndarray | None = None  # (K, K) the chance that two nodes work in one tick; None: independently

    @property
    def period(self) -> int:
        return len(self.works)

    @property
    def nodes(self) -> int:
        return self.works.shape[1]

    def pairs(self, tick: int) -> np.ndarray:
        """(K, K): the chance that both work."""
        if self.together is not None:
            return self.together
        q = self.works[tick % self.period]
        both = np.outer(q, q)
        np.fill_diagonal(both, q)
        return both

    @property
    def certain(self) -> bool:
        """Nothing is drawn: every tick of a period is known."""
        return all(bool(np.isin(a, (0.0, 1.0)).all()) for a in (self.works, self.arrives))


class Laws(NamedTuple):
    """What is drawn once, for the whole run: all that it may be, equally likely, or a sample."""

    each: tuple[TickLaw, ...]
    drawn: bool = False

    @property
    def certain(self) -> bool:
        return len(self.each) == 1 and self.each[0].certain


def subset_law(nodes: int, count: int) -> TickLaw:
    """`count` nodes, uniformly drawn, work, and all that was sent has arrived."""
    both = np.full((nodes, nodes), count * (count - 1) / max(nodes * (nodes - 1), 1))
    np.fill_diagonal(both, count / nodes)
    return TickLaw(np.full((1, nodes), count / nodes), np.zeros(0), both)


class MergeLaw(NamedTuple):
    """Whose answers a round merges, independently of who was merged before: all that it may be."""

    chance: np.ndarray  # (n,)
    who: np.ndarray  # (n, K) bool
    weight: np.ndarray  # (K,) of a fresh answer
    staleness: Staleness
    rebase: bool  # answers are merged as models
    lost: np.ndarray  # (K,) answers of an agent that get lost between two merges, on average; it then begins anew
