r"""Why is an answer not the expected one? A few reasons, each with statistics to bet on, and which explains most.

An answer r is compared with rho, the one that the hub reproduces with the study's draws, and with simulated ones of
mean mu and standard deviation s, number by number. All is in units of s: |v|^2 = sum (v_i / s_i)^2 over d numbers.

| reason | if the site draws as the study says | if it draws for itself |
|---|---|---|
| scaled | r = a rho, a > 0 | r ~ N(a mu, a^2 s^2), deviance 2 d ln a + \|r - a mu\|^2 / a^2 |
| sign flipped | the same, a < 0 | the same, a < 0 |
| lost control | r is what a site answers whose memory is as at its start | r ~ N(mu', s'^2), of such a site |
| foreign rows | r is what the rows of another site give | r ~ N(mu + shift, s^2), any shift |
| nothing wrong | r = rho: no bet | r ~ N(mu, s^2) |

Statistics of the first column are how near r is to what the reason says, if it is not rho; of the second, how much
smaller the deviance of the reason is than that of nothing wrong. a and the shift are those of the answers before this
one. That noise is normal is assumed to choose what to bet on and to name a reason, and for nothing else: ranks hold for
any noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypedDict

import numpy as np

SCALED, FLIPPED, LOST, FOREIGN = "scaled", "sign flipped", "lost control", "foreign rows"
ROUNDING = 1e-6  # what a reason leaves unexplained to rounding, of all that was unexpected
FITS = 3.0  # what a reason leaves unexplained beside noise, in units of it, at most


class Compared(NamedTuple):
    """Answers beside the expected ones, in units of the noise: numbers, or arrays of several answers'."""

    distance: np.ndarray  # |r - mu|^2
    along: np.ndarray  # (r - mu)'mu
    drift: np.ndarray  # (r - mu)'shift, of the shift that was seen before
    forgot: np.ndarray  # |r - mu'|^2 in units of s'
    norm: np.ndarray  # of r itself, in its own units
    near: np.ndarray  # |r - rho|^2
    beside: np.ndarray  # (r - rho)'rho
    same: np.ndarray  # whether r is rho, to rounding
    others: np.ndarray  # |r - what a reason says|^2, for every candidate: (..., candidates)


class Noise(NamedTuple):
    """What the expected answers of one order are like."""

    numbers: int  # d
    length: float  # |mu|^2
    spread: float  # 2 sum ln(s' / s), by which deviances in units of s' and of s differ
    reproduced: float  # |rho|^2


class Tally(TypedDict):
    """Sums over the answers of a site that were compared."""

    answers: int
    numbers: int
    length: float
    distance: float
    along: float
    forgot: float
    spread: float
    reproduced: float
    near: float
    beside: float
    others: dict[str, float]  # by candidate: LOST, or the site whose rows they are


class Explanation(NamedTuple):
    reason: str
    factor: float | None = None  # a, where there is one
    rows: str | None = None  # the site whose rows they are


def nothing() -> Tally:
    return Tally(
        answers=0,
        numbers=0,
        length=0.0,
        distance=0.0,
        along=0.0,
        forgot=0.0,
        spread=0.0,
        reproduced=0.0,
        near=0.0,
        beside=0.0,
        others={},
    )


def left_by(a: float, distance: np.ndarray, along: np.ndarray, length: float) -> np.ndarray:
    """|r - a m|^2, from |r - m|^2, (r - m)'m and |m|^2: no large numbers cancel."""
    return distance + 2 * (1 - a) * along + (1 - a) ** 2 * length


def statistics(seen: Compared, noise: Noise, candidates: list[str], factor: float) -> dict[str, np.ndarray]:
    """How well each reason explains an answer, by name; larger is odder. factor: what answers were scaled by so far."""
    d, size = noise.numbers, float(np.clip(abs(factor), 1e-6, 1e6))
    found = {FOREIGN: seen.distance, f"{FOREIGN}, drift": seen.drift}
    drawn = {}
    for reason, a in ((SCALED, size), (FLIPPED, -size)):
        drawn[reason] = left_by(a, seen.near, seen.beside, noise.reproduced)
        left = left_by(a, seen.distance, seen.along, noise.length) / a**2
        found[reason] = seen.distance - left - 2 * d * math.log(size)
    rows = [place for place, name in enumerate(candidates) if name != LOST]
    if rows:
        drawn[FOREIGN] = seen.others[..., rows].min(-1)
    if LOST in candidates:
        drawn[LOST] = seen.others[..., candidates.index(LOST)]
        found[LOST] = seen.distance - seen.forgot - noise.spread
    return found | {f"{reason}, drawn": np.where(seen.same, -np.inf, -left) for reason, left in drawn.items()}


def tallied(tally: Tally, seen: Compared, noise: Noise, candidates: list[str]) -> Tally:
    others = {name: tally["others"].get(name, 0.0) + float(seen.others[i]) for i, name in enumerate(candidates)}
    return Tally(
        answers=tally["answers"] + 1,
        numbers=tally["numbers"] + noise.numbers,
        length=tally["length"] + noise.length,
        distance=tally["distance"] + float(seen.distance),
        along=tally["along"] + float(seen.along),
        forgot=tally["forgot"] + float(seen.forgot),
        spread=tally["spread"] + noise.spread,
        reproduced=tally["reproduced"] + noise.reproduced,
        near=tally["near"] + float(seen.near),
        beside=tally["beside"] + float(seen.beside),
        others=others,
    )


def factor(tally: Tally) -> float:
    """The a that makes the reproduced answers most like those that came, by least squares."""
    return 1 + tally["beside"] / tally["reproduced"] if tally["reproduced"] > 0 else 1.0


def explained(tally: Tally, shift: np.ndarray) -> Explanation:
    """The likeliest reason. shift: the sum of (r - mu) / s over these answers."""
    return _to_rounding(tally) or _beside_noise(tally, shift)


def _to_rounding(tally: Tally) -> Explanation | None:
    """What explains the answers of a site that draws as the study says; None where nothing does."""
    a, most = factor(tally), ROUNDING * tally["near"]
    if left_by(a, np.asarray(tally["near"]), np.asarray(tally["beside"]), tally["reproduced"]) <= most:
        return Explanation(SCALED if a > 0 else FLIPPED, a)
    others: Mapping[str, float] = tally["others"]
    best = min(others, key=others.__getitem__, default=LOST)
    if others.get(best, math.inf) > most:
        return None
    return Explanation(LOST) if best == LOST else Explanation(FOREIGN, rows=best)


def _beside_noise(tally: Tally, shift: np.ndarray) -> Explanation:
    """What fits best if it draws for itself: the smallest deviance, where fitted numbers cost 2 each (Akaike's
    criterion); foreign rows, with any draws, where nothing else fits."""
    d, distance, along = tally["numbers"], np.asarray(tally["distance"]), np.asarray(tally["along"])
    moved = float(shift @ shift) / tally["answers"]
    found = [(tally["distance"] - moved + 2 * shift.size, Explanation(FOREIGN))]
    for reason, a in zip((SCALED, FLIPPED), _factors(tally), strict=True):
        left = float(left_by(a, distance, along, tally["length"])) / a**2
        if left <= FITS * d:
            found.append((left + 2 * d * math.log(abs(a)) + 2, Explanation(reason, a)))
    if LOST in tally["others"] and tally["forgot"] <= FITS * d:
        found.append((tally["forgot"] + tally["spread"], Explanation(LOST)))
    return min(found, key=lambda one: one[0])[1]


def _factors(tally: Tally) -> tuple[float, float]:
    """The a above and below zero of the smallest deviances: roots of d a^2 + (r'mu) a - |r|^2, with the product
    -|r|^2 / d; the larger in size is computed, the other follows."""
    d, slope = tally["numbers"], tally["along"] + tally["length"]
    square = max(tally["distance"] + 2 * tally["along"] + tally["length"], 1e-300)
    larger = -math.copysign(abs(slope) + math.sqrt(slope**2 + 4 * d * square), slope) / (2 * d)
    other = -square / d / larger
    return max(larger, other), min(larger, other)
