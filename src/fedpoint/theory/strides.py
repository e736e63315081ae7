r"""How does the expected round go from a state to where it ends? In strides of many rounds, by products with its slope.

From the state x, with r = F(x) - x and J = F'(x), the next rounds go to

$$ x_i = x + \sum_{j<i} J^j r \qquad (i = 1, 2, \ldots), $$

exactly where F is affine. In the span V of r, J r, J^2 r, ... a few products give them all. Elsewhere a stride is as
long as that lasts: at its end, D = F(x_i) - x_i - J^i r tells what curvature has made of it. It grew like the square of
the way, so that most of what it did is known, and is put right. Where a stride would be short, rounds are taken one by
one. The last stride goes on for ever: it is Newton's step. Strides begin where runs do, and every one is in the range
of I - J, so that what is conserved keeps its value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from fedpoint.core.threads import one_thread
from fedpoint.theory.known import keep_end, near_end
from fedpoint.theory.krylov import Krylov, norm, solve
from fedpoint.theory.operator import ROUGH, Setting

SINGLE = 8  # rounds that are taken one by one
OFF = 0.05  # of a stride, by which curvature may bend its end
LOST = 5e-3  # of a stride, that may leave its span
SHORT, LONGER, LONG = 8, 4, 80  # products in a span
MOST = 40  # strides
FADED = 0.02  # of a step, at which what comes after it is for ever
POLISH = 8  # Newton's steps at the end
EXACT = 1e-7  # of the way from start to end, to which the end is known
NOISY, COARSE = 1e-5, 1e-4  # the same where runs have noise, and of many forecasts of a problem
FAR = 1e8  # times as far as the first rounds went: it has left every bound
SILENT = 1 << 12  # numbers of a model, above which products are in single precision though runs have no noise
WORK, FEWEST = 1 << 35, 500  # numbers that products with the slope may handle, and how many these may be anyway


@dataclass(frozen=True)
class Stride:
    """The rounds after `first`, `rounds` of them: one by one, or within a span of the next steps, as models."""

    first: int
    rounds: float  # infinite for the last one
    x: np.ndarray  # (n,) the state in which it begins
    models: np.ndarray  # (m, d): of single rounds how far they are from x, or of the span's basis and what bends it
    H: np.ndarray | None = None  # the slope in the span; None: single rounds
    size: float = 0.0  # of the first step
    slow: float = 0.0  # what is left of the last stride's bend after a round

    def away(self, rounds: int) -> np.ndarray:
        """(rounds + 1, m): how far models are from those of x, after rounds 0, 1, ..., as combinations of `models`."""
        if self.H is None:
            return np.eye(len(self.models) + 1, len(self.models), -1)[: rounds + 1]
        i, m = np.arange(rounds + 1), len(self.H)
        out, step = np.zeros((rounds + 1, m + 1)), np.eye(m, 1)[:, 0] * self.size
        for t in range(rounds):
            out[t + 1, :m] = out[t, :m] + step
            step = self.H @ step
        out[:, m] = 1 - self.slow**i if math.isinf(self.rounds) else (i / self.rounds) ** 3
        return out


class Lost(Exception):
    """Strides do not find an end; products: with the slope, that were tried."""

    def __init__(self, products: int = 0):
        super().__init__()
        self.products = products


def most_products(setting: Setting) -> int:
    """With the slope of the expected round, until the search for its end is given up."""
    return max(WORK // setting.work(exact=True), FEWEST)


class Trail:
    """Strides from the state `origin` to the end of the expected round; raises Lost."""

    def __init__(self, setting: Setting, origin: np.ndarray):
        self.setting, self.strides = setting, list[Stride]()
        self.products = self.rounds = 0
        # Products in single precision are enough for steps whose ends are looked at, but not for what is conserved.
        self.exact = EXACT if setting.silent else (COARSE if setting.coarse else NOISY)
        large = SILENT if setting.silent else ROUGH
        self.rough = setting.size > large and setting.size == len(setting.read(origin))
        self.most = most_products(setting)
        self.bound, self.scale, self.near = math.inf, np.ones(setting.size), near_end(setting)
        x = self._one_by_one(np.asarray(origin, float), 0)
        self.bound = FAR * (1 + norm(x) + norm(x - origin))
        self.end = self._go(x)

    def _step(self, x: np.ndarray, rough: bool = False) -> np.ndarray:
        """F(x) - x, scaled."""
        self.rounds += 1
        with np.errstate(all="ignore"):
            return self.scale * (self.setting.step(x, rough=rough) - x)

    def _span(self, x: np.ndarray, r: np.ndarray) -> Krylov:
        product = self.setting.slope(x, self.rough)

        def scaled(v: np.ndarray) -> np.ndarray:
            self.products += 1
            if self.products > self.most or self.setting.budget.over:
                raise Lost(self.products)
            return self.scale * product(v / self.scale)

        return Krylov(scaled, r, 1e-6 if self.rough else 1e-12)

    def _one_by_one(self, x: np.ndarray, first: int) -> np.ndarray:
        """The next few rounds."""
        begun, start, models = x, self.setting.read(x), []
        for _ in range(SINGLE):
            x = x + self._step(x, self.rough) / self.scale
            models.append(self.setting.read(x) - start)
        if not norm(x) < self.bound:
            raise Lost(self.products)
        self.strides.append(Stride(first, SINGLE, begun, np.array(models)))
        return x

    def _go(self, x: np.ndarray) -> np.ndarray:
        origin, first, single = x, SINGLE, 1
        self.scale = self.setting.scales(x, self._step(x))
        r = self._step(x)
        while len(self.strides) < MOST:
            way = norm(self.scale * (x - origin))
            if norm(r) <= 1e-3 * self.exact * way or norm(r) == 0:
                return x
            span = self._span(x, r)
            rounds, y, after, D = self._longest(span, x)
            if rounds <= 2 * span.steps:  # products cost more than they save
                for _ in range(single):
                    x = self._one_by_one(x, first)
                    first += SINGLE
                single *= 2
                r = self._step(x)
                continue
            if math.isinf(rounds):
                end = self._polished(*self._nearer(x + y / self.scale, after), way + norm(y))
                keep_end(self.setting, end)
                self._note(first, rounds, x, span, end - x - y / self.scale)
                return end
            bent = self._bent(span, D, rounds)
            self._note(first, rounds, x, span, bent / self.scale)
            x, first, single = x + (y + bent) / self.scale, first + int(rounds), 1
            r = self._step(x)
        raise Lost(self.products)

    def _note(self, first: int, rounds: float, x: np.ndarray, span: Krylov, bend: np.ndarray) -> None:
        m = span.steps
        models = self.setting.readings(np.concatenate([span.basis[:m] / self.scale, bend[None]]))
        self.strides.append(Stride(first, rounds, x, models, span.H[:m].copy(), span.size, _radius(span)))

    def _longest(self, span: Krylov, x: np.ndarray) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
        """How many rounds the span tells, how far they go, the step from there, and what curvature made of it."""
        rounds = math.inf
        while True:
            rounds = _fitted(span, rounds)
            y, left = _reached(span, rounds)
            after = self._step(x + y / self.scale)
            D = after - left
            off = norm(D) * _held(span, rounds) / max(norm(y), 1e-300)
            if off <= OFF or rounds <= 2 * span.steps:
                return rounds, y, after, D
            shorter = min(rounds, _lasting(span)) * min(0.6, math.sqrt(OFF / off) if np.isfinite(off) else 0.01)
            rounds = max(1.0, math.floor(shorter))

    def _bent(self, span: Krylov, D: np.ndarray, rounds: float) -> np.ndarray:
        """How far curvature bends a stride: sum_i J^(rounds - 1 - i) D (i / rounds)^2, J as D's mean factor."""
        size = float(D @ D)
        if size == 0:
            return D
        factor = float(D @ span.apply(D)) / size
        i = np.arange(int(rounds))
        return D * float((factor ** (rounds - 1 - i) * (i / rounds) ** 2).sum())

    def _nearer(self, x: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """x, or what earlier forecasts of the problem tell of its end, with its step: where that is shorter."""
        if self.near is None:
            return x, r
        other = self._step(self.near)
        return (self.near, other) if norm(other) < norm(r) else (x, r)

    def _polished(self, x: np.ndarray, r: np.ndarray, way: float) -> np.ndarray:
        """Newton's method from close by."""
        for _ in range(POLISH):
            size = norm(r)
            if size <= 1e-3 * self.exact * way:
                return x
            span = self._span(x, r)
            y, _, _ = solve(
                span.apply, r, max(1e-5 if self.rough else 1e-9, min(0.01, self.exact * way / size)), most=200
            )
            if norm(y) <= self.exact * way:
                return x + y / self.scale
            better = x + y / self.scale
            after = self._step(better)
            if not norm(after) < size:
                return x
            x, r = better, after
        return x


def _radius(span: Krylov) -> float:
    return float(np.abs(span.ritz()[0]))


def _lasting(span: Krylov) -> float:
    """Rounds after which a step has faded."""
    slow = _radius(span)
    return math.inf if slow >= 1 else max(1.0, math.log(FADED) / math.log(max(slow, 1e-300)))


def _fitted(span: Krylov, rounds: float) -> float:
    """Grow a span until it holds so many rounds; for ever where that makes no difference."""
    span.extend(SHORT)
    while not span.closed and span.steps < min(LONG, span.most):
        if _lost(span, min(rounds, _lasting(span), 1 << 14)) <= LOST:
            break
        span.extend(span.steps + LONGER)
    lasting = _lasting(span)
    if math.isinf(rounds) and math.isinf(lasting):
        return 1024.0
    return math.inf if rounds >= lasting else rounds


def _sums(span: Krylov, rounds: int) -> tuple[np.ndarray, np.ndarray, float]:
    """sum_{j<rounds} H^j e_1, H^rounds e_1, and what the sum's steps lose out of the span."""
    m = span.steps
    total, step, H, lost = np.zeros(m), np.eye(m, 1)[:, 0], span.H[:m], 0.0
    with np.errstate(all="ignore"):
        for _ in range(rounds):
            total = total + step
            lost += abs(float(span.H[m, m - 1] * step[-1]))
            step = H @ step
    return total, step, lost


def _lost(span: Krylov, rounds: float) -> float:
    """What a stride loses out of its span, over its length."""
    total, _, lost = _sums(span, int(rounds))
    return lost * _held(span, rounds) / max(float(np.linalg.norm(total)), 1e-300)


def _held(span: Krylov, rounds: float) -> float:
    """For how many rounds an error counts that grows along a stride: it fades as all does."""
    return min(rounds / 3, 1 / max(1 - _radius(span), 1e-12))


def _reached(span: Krylov, rounds: float) -> tuple[np.ndarray, np.ndarray]:
    """How far a stride goes, and the step that is left then."""
    if math.isinf(rounds):
        return span.solution()[0], np.zeros(span.shape)
    total, step, _ = _sums(span, int(rounds))
    basis = span.basis[: span.steps]
    return span.size * (total @ basis), span.size * (step @ basis)


_TRAILS: WeakKeyDictionary[Setting, tuple[np.ndarray, Trail | Lost]] = WeakKeyDictionary()


@one_thread
def trail_of(setting: Setting, origin: np.ndarray) -> Trail:
    """The trail from a state; the last one of a setting is kept. Raises Lost."""
    known = _TRAILS.get(setting)
    if known is None or not np.array_equal(known[0], origin):
        try:
            found: Trail | Lost = Trail(setting, origin)
        except Lost as lost:
            found = Lost(lost.products)
        known = _TRAILS[setting] = np.array(origin), found
    if isinstance(known[1], Lost):
        raise known[1]
    return known[1]
