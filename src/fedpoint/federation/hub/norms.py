"""How long are the answers, and whose stands out? By what is recorded of every round: one norm a site.

A site stands out in a round if all of this holds, with d the logarithm of its norm over the median of the others' last:

1. d differs from its mean over this site's past by more than a t-test at 1 in 10,000 allows;
2. d is outside of all that this site's past has seen, by a factor of 3 (100 where it is shorter: an honest answer may
   come near zero by chance);
3. the site's own norm has changed by as much, the same way.

Before it has a past of `PAST` rounds it stands out if it is a thousand times as long as the others' median. If
d is normal from round to round, at most 1 honest answer in 10,000 is marked, by (1) alone. Norms do not
show everything: an answer with its sign flipped is as long as it was.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import jax
import numpy as np

from fedpoint.core.types import Tree
from fedpoint.federation.transport import Event

FALSE = 1e-4  # honest answers that are marked
LONGER, SHORTER = math.log(3.0), math.log(100.0)
FIRST = math.log(1000.0)
PAST = 5
NOTHING = 1e-150  # whose square is no number any more: as good as zero
LARGEST = sys.float_info.max


def norm(message: Tree) -> float:
    """The Euclidean norm of all numbers of a message, at most the largest number there is."""
    leaves = [np.abs(np.asarray(leaf, float)) for leaf in jax.tree.leaves(message)]
    top = max((float(leaf.max(initial=0.0)) for leaf in leaves), default=0.0)
    if not math.isfinite(top):
        return LARGEST
    if top == 0.0:
        return 0.0
    length = math.sqrt(sum(float(((leaf / top) ** 2).sum()) for leaf in leaves))
    return top * length if top <= LARGEST / length else LARGEST


def usual(norms: Iterable[float]) -> float:
    """The median of the norms that are not zero, of two in the middle the shorter; 0 where all are."""
    some = sorted(length for length in norms if length >= NOTHING)
    return some[(len(some) - 1) // 2] if some else 0.0


@dataclass
class _Past:
    """What is known of one site: its last norm, and d over its rounds (Welford's sums)."""

    norm: float
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, norm: float, d: float | None) -> None:
        self.norm = norm
        if d is None:
            return
        self.count += 1
        step = d - self.mean
        self.mean += step / self.count
        self.squares += step * (d - self.mean)
        self.low, self.high = min(self.low, d), max(self.high, d)

    def unlike(self, norm: float, d: float) -> bool:
        """Whether the three conditions hold."""
        from scipy.special import stdtrit  # loads in a third of a second

        n, off = self.count, d - self.mean
        spread = math.sqrt(self.squares / (n - 1) * (1 + 1 / n))
        own = math.log(norm) - math.log(self.norm)
        longer = d > self.high + LONGER and own > LONGER
        shorter = d < self.low - SHORTER and own < -SHORTER
        return (longer or shorter) and abs(off) > stdtrit(n - 1, 1 - FALSE / 2) * spread


@dataclass
class Outliers:
    """Whose answers stand out, round by round."""

    past: dict[str, _Past] = field(default_factory=dict)

    def marks(self, norms: Mapping[str, float]) -> dict[str, str]:
        """Who stands out in a round, in words."""
        found = {site: self._mark(site, length, self._others(site, norms)) for site, length in norms.items()}
        return {site: said for site, said in found.items() if said}

    def _others(self, site: str, norms: Mapping[str, float]) -> float:
        """The median of what the others sent last; 0 where nothing is known."""
        last = {name: one.norm for name, one in self.past.items()} | dict(norms)
        others = [length for name, length in last.items() if name != site and length >= NOTHING]
        return float(np.exp(np.median(np.log(others)))) if others else 0.0

    def _mark(self, site: str, length: float, others: float) -> str:
        past = self.past.get(site)
        if not others:
            return ""
        beside = f"(norm {length:.2g}; the others' median {others:.2g})"
        if past is None or past.count < PAST:
            long = length >= NOTHING and math.log(length) - math.log(others) > FIRST
            return f"its answer is over a thousand times as long as the others' {beside}" if long else ""
        if length < NOTHING:
            return f"its answer is zero {beside}"
        d = math.log(length) - math.log(others)
        if not past.unlike(length, d):
            return ""
        times = math.exp(min(abs(d - past.mean), 700.0))
        how = f"{times:.2g} times as long as" if d > past.mean else f"1/{times:.2g} as long as"
        return f"its answer is {how} usual {beside}"

    def note(self, event: Event) -> None:
        """A round that is over. What was not merged, or stood out, is no part of a site's past."""
        norms, marked = event.get("norms", {}), event.get("marks", {})
        if not event["merged"]:
            return
        beside = {site: self._others(site, norms) for site in norms}
        for site, length in norms.items():
            if site not in marked and length >= NOTHING:
                d = math.log(length) - math.log(beside[site]) if beside[site] else None
                self.past.setdefault(site, _Past(length)).add(length, d)
