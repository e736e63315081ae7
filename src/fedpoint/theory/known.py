"""What do forecasts of one problem learn from one another? Where to look first, never what to answer.

Another step, number of local steps or of participants moves the end of a run by little, and what fades last is about
the same. So the ends that were found, and the deviation that faded last, are kept for each problem. Ends lie on about
a line from w*, along which the best of them is told by the residuals of F(x) = x: a search begins there where that is
nearer than where it would begin otherwise. What it finds is the same, to its own accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np

from fedpoint.problems.base import Problem
from fedpoint.theory.krylov import norm
from fedpoint.theory.operator import Setting
from fedpoint.theory.space import size_of

ENDS = 2  # that are kept
MIXED = 0.1  # of a deviation that faded last, that a random one is added: another step may slow down another one


@dataclass
class Earlier:
    """What forecasts of one problem have found: states that are nothing but a model."""

    ends: list[np.ndarray] = field(default_factory=list)
    slow: np.ndarray | None = None


_KNOWN: WeakKeyDictionary[Problem, Earlier] = WeakKeyDictionary()


def known_of(setting: Setting) -> Earlier | None:
    """What is known of its problem; None where ends depend on where a run began, or are found at once."""
    s = setting
    alone = s.m0.size == 0 and s.u0.size == size_of(s.numbers.model) and not s.topology.by_node
    if not (alone and s.problem.convex) or s.problem.linear or s.scheduled or s.adaptive or s.bound.loses_a_sum:
        return None
    return _KNOWN.setdefault(s.problem, Earlier())


def keep_end(setting: Setting, x: np.ndarray) -> None:
    """Keep a fixed point."""
    known = known_of(setting)
    if known is not None:
        known.ends = [np.array(x), *known.ends][:ENDS]


def keep_slow(setting: Setting, v: np.ndarray) -> None:
    """Keep the deviation that faded last."""
    known = known_of(setting)
    if known is not None and norm(v) > 0:
        known.slow = v / norm(v)


def near_end(setting: Setting) -> np.ndarray | None:
    """A state near the end, from those of earlier forecasts; None where there were none."""
    known = known_of(setting)
    if known is None or not known.ends:
        return None
    w, points = setting.bound.solution, list(known.ends)
    if w is not None:
        points.append(setting.moved_to(setting.origin, setting.flatten(w)))
    with np.errstate(all="ignore"):
        residuals = [setting.step(x) - x for x in points]
    if len(points) == 1 or not np.isfinite(residuals).all():
        return points[0]
    apart, ways = np.stack(residuals[1:]) - residuals[0], np.stack(points[1:]) - points[0]
    shares = np.linalg.lstsq(apart.T, -residuals[0], rcond=1e-6)[0]
    return points[0] + shares @ ways


def slow_deviation(setting: Setting) -> np.ndarray | None:
    """(n,): one that fades slowly, from earlier forecasts; None where there were none."""
    known = known_of(setting)
    if known is None or known.slow is None:
        return None
    other = np.random.default_rng(0).normal(size=setting.size)
    return known.slow + MIXED * other / norm(other)
