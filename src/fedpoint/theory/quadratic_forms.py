r"""How likely is it that one run's error is at most x? The law of |gap + z|^2 with z normal, by inversion.

Along the axes of z's covariance the error is a weighted sum of non-central chi-squares. Its cumulant function

$$ K(s) = \sum_i -\tfrac12 \log(1 - 2 w_i s) + \frac{s\, g_i^2}{1 - 2 w_i s} $$

is analytic but for a cut along s >= 1/(2 max w), and P(error > x) is the integral of exp(K(s) - s x) / (2 pi i s) along
any path that passes between 0 and the cut; left of 0 it is -P(error <= x). The path taken here goes through the saddle
point of the integrand on the side of the smaller tail and bends towards the cut, slower than a right angle. Nothing
oscillates and everything decays exponentially, so that the trapezoidal rule converges geometrically, relative to the
tail itself: some fifty values give 12 digits of a probability of 1/2 and of 1e-200 alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedpoint.theory.outlook import Law

ACCURACY = 1e-11  # relative, of a tail
BEND = 0.7  # of the path, far out: below 1, so that wide axes, which act like a normal law there, decay too
HALVINGS = 8
ROUNDING = 1e-31  # of the largest variance over the squared gap
UNDERFLOW = -745.0  # log of the least float
GROWTH = 1.15  # of the rounds looked at, one to the next


class Form:
    """A law in units of its largest weight, without what does not spread."""

    def __init__(self, law: Law):
        weights, squares = np.asarray(law.weights, float), np.asarray(law.gap, float) ** 2
        self.unit = float(weights.max(initial=0.0))
        if self.unit <= ROUNDING * float(squares.sum()):  # the spread of the error is below its rounding
            self.unit, weights = 0.0, np.zeros_like(weights)
        spreads = weights > 0
        self.rest = law.rest + float(squares[~spreads].sum())
        unit = self.unit or 1.0
        self.w, self.g2 = weights[spreads] / unit, squares[spreads] / unit
        self.fixed = float(self.g2.sum())

    @property
    def mean(self) -> float:
        """Of what spreads, in these units."""
        return float(self.w.sum()) + self.fixed

    @property
    def deviation(self) -> float:
        return math.sqrt(float((2 * self.w**2 + 4 * self.w * self.g2).sum()))

    def exponent(self, s: np.ndarray, x: float) -> np.ndarray:
        """K(s) - s x."""
        z = 1 - 2 * np.multiply.outer(s, self.w)
        logs = -0.5 * np.log(z).sum(-1)
        if x < self.fixed / 2:
            return logs + s * ((self.g2 / z).sum(-1) - x)
        return (
            logs + 2 * s * s * (self.w * self.g2 / z).sum(-1) - s * (x - self.fixed)
        )  # near large gaps nothing is lost

    def slope(self, s: float, x: float) -> float:
        """Of K(s) - s x - log|s|, which has one least value on either side of 0."""
        z = 1 - 2 * self.w * s
        return float((self.w / z + self.g2 / z**2).sum()) - x - 1 / s

    def saddle(self, x: float, upper: bool) -> float:
        """Where the integrand is least on the real axis: right of 0 for the upper tail, else left of it."""
        from scipy.optimize import brentq

        outer = 0.25 if upper else -1.0
        while (self.slope(outer, x) < 0) if upper else (self.slope(outer, x) > 0):
            outer = 0.5 * (outer + 0.5) if upper else 2 * outer
        inner = outer / 2
        while (self.slope(inner, x) > 0) if upper else (self.slope(inner, x) < 0):
            inner /= 2
        return float(brentq(lambda s: self.slope(s, x), inner, outer, xtol=1e-300, rtol=1e-9))

    def tail(self, x: float, upper: bool) -> float:
        """P(form > x), else P(form <= x), for x > 0."""
        c = self.saddle(x, upper)
        height = float(self.exponent(np.array(c), x))
        if height < UNDERFLOW:
            return 0.0
        z = 1 - 2 * self.w * c
        second = float((2 * self.w**2 / z**2 + 4 * self.w * self.g2 / z**3).sum())
        third = float((8 * self.w**3 / z**3 + 24 * self.w**2 * self.g2 / z**4).sum())
        width = 1 / math.sqrt(second + 1 / c**2)
        start = max(3 * BEND * second / third, 2 * width)  # the path of steepest descent bends by third / (6 second)

        def values(v: np.ndarray) -> np.ndarray:
            y = width * np.sinh(v)
            r = np.sqrt(y * y + start * start)
            s = c + BEND * y * y / (r + start) + 1j * y
            return (np.exp(self.exponent(s, x) - height) / s * (BEND * y / r + 1j)).imag * width * np.cosh(v)

        return min(max(abs(_trapezoidal(values)) * math.exp(height) / math.pi, 0.0), 1.0)


def _trapezoidal(values: Callable[[np.ndarray], np.ndarray]) -> float:
    """The integral over v > 0 of what is even and decays: with half the spacing until it no longer changes."""
    spacing, found = 0.5, values(np.array([0.0, 0.5]))
    least = 1e-17 * abs(found[0])
    while abs(found[-1]) > least:
        more = values(spacing * np.arange(len(found), len(found) + 8))
        found = np.concatenate([found, more])
    total = found.sum() - found[0] / 2
    count = len(found)
    for _ in range(HALVINGS):
        between = values(spacing * (np.arange(count) + 0.5)).sum()
        if abs(between - total) <= ACCURACY * abs(total):
            return float(spacing * (total + between) / 2)
        total, spacing, count = total + between, spacing / 2, 2 * count
    return float(spacing * total)


def tails(law: Law, x: float) -> tuple[float, float]:
    """P(error <= x) and P(error > x), the smaller of them to a relative 1e-10."""
    form = Form(law)
    if not form.unit:
        return (1.0, 0.0) if x >= form.rest else (0.0, 1.0)
    above = (x - form.rest) / form.unit
    if above <= 0:
        return 0.0, 1.0
    if math.isinf(above):
        return 1.0, 0.0
    upper = above > form.mean
    part = form.tail(above, upper)
    return (1 - part, part) if upper else (part, 1 - part)


def distribution(law: Law, x: float) -> float:
    """P(error <= x).

    >>> round(distribution(Law(np.ones(2), np.zeros(2)), 2.0), 6)  # 1 - exp(-1)
    0.632121
    """
    return tails(law, x)[0]


def quantile(law: Law, p: float, accuracy: float = 1e-15) -> float:
    """The x with P(error <= x) = p, for p in [0, 1], to a relative accuracy.

    >>> round(quantile(Law(np.ones(1), np.zeros(1)), 0.95), 6)  # 1.959964^2
    3.841459
    """
    from scipy.optimize import brentq
    from scipy.special import ndtri

    form = Form(law)
    if not form.unit or p <= 0:
        return form.rest
    if p >= 1:
        return math.inf
    upper = p > 0.5
    wanted = math.log1p(-p) if upper else math.log(p)

    def off(x: float) -> float:
        """Increasing in x, on the scale of the smaller tail's logarithm."""
        is_upper = x > form.mean
        part = form.tail(x, is_upper)
        size = part if is_upper == upper else 1 - part
        found = math.log(max(size, 1e-320))
        return wanted - found if upper else found - wanted

    step = form.deviation
    low = high = max(form.mean + step * float(ndtri(p)), form.mean * 1e-3)
    while off(low) > 0:
        low, step = (low - step, 2 * step) if low > 2 * step else (low / 2, step)
    step = form.deviation
    while off(high) < 0:
        high, step = high + step, 2 * step
    x = low if low == high else float(brentq(off, low, high, xtol=1e-300, rtol=accuracy))
    return form.rest + form.unit * x


def first_round(law: Callable[[int], Law], target: float, confidence: float, rounds: int) -> int | None:
    """The first round after which an error of at most `target` has probability `confidence`; None: not within `rounds`.

    Rounds are looked at ever further apart, and the first stretch at whose end it holds is halved: a spell that begins
    and ends within one stretch (15 % of the rounds so far) is not seen.
    """

    def reached(t: int) -> bool:
        return distribution(law(t), target) >= confidence

    before, t = -1, 0
    while not reached(t):
        if t >= rounds:
            return None
        before, t = t, min(max(t + 1, int(t * GROWTH)), rounds)
    while t - before > 1:
        middle = (before + t) // 2
        before, t = (before, middle) if reached(middle) else (middle, t)
    return t
