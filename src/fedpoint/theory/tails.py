r"""How far may a mean over few runs lie below its expectation? The fourth moment of a deviation, by a closure.

A deviation moves as x+ = J x + q with a random J. In a round its mean shrinks by a, its second moment by r2 = E J^2;
were J normal, the fourth would by r4 = a^4 + 6 a^2 b^2 + 3 b^4 with b^2 = r2 - a^2. Where r4 >= 1 the squared
error has no variance: it is mostly small and rarely huge, so that a mean over few runs is usually too low, and its
own standard error as well. With noise q of covariance Q in n directions,

$$ m_2^+ = r_2 m_2 + Q, \qquad m_4^+ = r_4 m_4 + (2 + 4/n) r_2 m_2 Q + (1 + 2/n) Q^2. $$
"""

from __future__ import annotations

import math

import numpy as np

from fedpoint.theory.outlook import Law
from fedpoint.theory.quadratic_forms import tails

FEW = 8  # repeats, below which their own spread says nothing


def fourth_rate(rate: float, rate_ms: float) -> float:
    """r4: the factor per round of the fourth moment."""
    a2 = rate**2
    b2 = max(rate_ms - a2, 0.0)
    return a2**2 + 6 * a2 * b2 + 3 * b2**2


def relative_variance(
    rate: float, rate_ms: float, directions: float, start: float, variance: float, rounds: int
) -> np.ndarray:
    """(rounds + 1,): Var e / (E e)^2 of the squared error e that begins at `start` and settles at `variance`."""
    r2, r4, n = rate_ms, fourth_rate(rate, rate_ms), max(directions, 1.0)
    unit = max(start, variance)  # squares of these may leave the floats, and only their ratio counts
    if unit > 0:
        start, variance = start / unit, variance / unit
    Q = max(1 - r2, 0.0) * variance
    m2, m4 = start, start**2
    found = np.zeros(rounds + 1)
    for t in range(1, rounds + 1):
        m2, m4 = r2 * m2 + Q, r4 * m4 + (2 + 4 / n) * r2 * m2 * Q + (1 + 2 / n) * Q**2
        if not m4 < 1e200 * max(m2, 1e-150) ** 2:
            found[t:] = math.inf
            break
        found[t] = max(m4 / m2**2 - 1, 0.0) if m2 > 0 else 0.0
    return found


def settled_variance(rate: float, rate_ms: float, directions: float) -> float:
    """The same once it has settled; inf where the fourth moment does not."""
    r4, n = fourth_rate(rate, rate_ms), max(directions, 1.0)
    if r4 >= 1 or rate_ms >= 1:
        return math.inf
    return (1 + 2 / n) * (1 - rate_ms**2) / (1 - r4) - 1


# Scores: how many standard errors a normal deviation would have that is as unlikely.


def normal_score(p: float) -> float:
    """Of a probability, of both sides together.

    >>> round(normal_score(0.0455), 2)
    2.0
    """
    from scipy.special import ndtri

    return float(-ndtri(min(max(p, 1e-300), 1.0) / 2))


def student_score(t: float, repeats: int, tried: int = 1) -> float:
    """Of a mean over few repeats, in standard errors of their own: such a mean is often far off by chance.

    tried: of how many such means it is the worst.
    """
    from scipy.special import stdtr

    return math.copysign(1, t) * normal_score(tried * 2 * float(stdtr(repeats - 1, -abs(t)))) + 0.0  # no -0.0


def square_score(square: float, weights: np.ndarray) -> float:
    """Of sum_i weights_i chi^2_i being at least `square`."""
    if square <= float(np.sum(weights)) * (1 + 1e-6):
        return 0.0
    return normal_score(tails(Law(weights, np.zeros(len(weights))), square)[1])


def sum_score(terms: np.ndarray) -> float:
    """Of the sum of (repeats, records) whose expectations are zero, given what was before: by the terms' own squares,
    or by the spread of the repeats where that is larger."""
    squares = float((terms**2).sum())
    z = float(terms.sum()) / math.sqrt(squares) if squares > 0 else 0.0
    if len(terms) < FEW or not squares:
        return z
    sums = terms.sum(1)
    t = float(sums.mean()) * math.sqrt(len(sums)) / max(float(sums.std(ddof=1)), 1e-300)
    by_repeats = student_score(t, len(sums))
    return by_repeats if abs(by_repeats) < abs(z) else z
