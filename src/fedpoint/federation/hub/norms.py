"""How long are the answers, and whose stands out? By what is recorded of every round: one norm a site.

A site stands out in a round if all of this holds, with d the logarithm of its norm over the median of the others' last:

1. d differs from its mean over this site's past by more than a t-test at 1 in 1,000 allows;
2. d is outside of all that this site's past has seen, by a factor of 3 (100 where it is shorter: an honest answer may
   come near zero by chance);
3. the site's own norm has changed by as much, the same way.

Before it has a past of `PAST` rounds it stands out if it is a thousand times as long as the others' median. If
d is normal from round to round, at most 1 honest answer in 1,000 is marked, by (1) alone. Norms do not
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

FALSE = 1e-3  # honest answers that are marked, at most
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

    def unlike(self, norm: float, low: float, high: float) -> float:
        """How far d is from its mean, if the three conditions hold, or 0. low, high: what d is at least and at most."""
        from scipy.special import stdtrit  # loads in a third of a second

        n, own = self.count, math.log(norm) - math.log(self.norm)
        spread = math.sqrt(self.squares / (n - 1) * (1 + 1 / n))
        far = float(stdtrit(n - 1, 1 - FALSE / 2)) * spread
        if low > max(self.high + LONGER, self.mean + far) and own > LONGER:
            return low - self.mean
        if high < min(self.low - SHORTER, self.mean - far) and own < -SHORTER:
            return high - self.mean
        return 0.0


@dataclass
class Outliers:
    """Whose answers stand out, round by round."""

    past: dict[str, _Past] = field(default_factory=dict)

    def marks(self, norms: Mapping[str, float]) -> dict[str, str]:
        """Who stands out in a round, in words."""
        found = {site: self._mark(site, length, self._others(site, norms)) for site, length in norms.items()}
        return {site: said for site, said in found.items() if said}

    def _others(self, site: str, norms: Mapping[str, float]) -> tuple[float, float]:
        """The logarithm of the median of what the others sent last; of two in the middle both, so that one who stands
        out does not make another seem to. Nothing where nothing is known."""
        last = {name: one.norm for name, one in self.past.items()} | dict(norms)
        others = sorted(math.log(length) for name, length in last.items() if name != site and length >= NOTHING)
        return (others[(len(others) - 1) // 2], others[len(others) // 2]) if others else (math.nan, math.nan)

    def _mark(self, site: str, length: float, others: tuple[float, float]) -> str:
        past, (short, long) = self.past.get(site), others
        if math.isnan(short):
            return ""
        beside = f"(norm {length:.2g}; the others' median {math.exp((short + long) / 2):.2g})"
        if past is None or past.count < PAST:
            first = length >= NOTHING and math.log(length) - long > FIRST
            return f"its answer is over a thousand times as long as the others' {beside}" if first else ""
        if length < NOTHING:
            return f"its answer is zero {beside}"
        off = past.unlike(length, math.log(length) - long, math.log(length) - short)
        times = f"{math.exp(min(abs(off), 700.0)):.2g}"
        how = f"{times} times as long as" if off > 0 else f"1/{times} as long as"
        return f"its answer is {how} usual {beside}" if off else ""

    def note(self, event: Event) -> None:
        """A round that is over. What was not merged, or was unlike a site's past, is no part of it."""
        norms, marked = event.get("norms", {}), event.get("marks", {})
        if not event["merged"]:
            return
        beside = {site: self._others(site, norms) for site in norms}
        for site, length in norms.items():
            known = site in self.past and self.past[site].count >= PAST
            if length >= NOTHING and not (known and site in marked):
                d = math.log(length) - sum(beside[site]) / 2
                self.past.setdefault(site, _Past(length)).add(length, None if math.isnan(d) else d)
