r"""How much do all powers of A make of a column? Sums of |R A^t q|^2 over t, from products with A alone.

For every column q on its own, Arnoldi's process makes an orthonormal basis V of q, A q, A^2 q, ... and H = V'AV. Then

$$ \sum_t |R A^t q|^2 = |q|^2 \operatorname{tr} (RV)'(RV) P, \qquad P = H P H' + e_1 e_1', $$

exact up to t below the dimension, or where the basis spans all that q reaches. Columns go side by side, because a
product with many of them costs little more than with one. Where A is far from normal, H may have eigenvalues of modulus
1 or more though A has none: such columns are summed directly.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Apply = Callable[[np.ndarray], np.ndarray]  # rows times A'
Measure = Callable[[np.ndarray], np.ndarray]  # rows V to their inner products V R'R V'

CLOSED = 1e-10  # of a product, what is left of it outside the basis where the basis is all that a column reaches
SAME = 1e-6  # of the largest, inner products at which vectors tell nothing that others do not
DOUBLINGS = 60
DIRECT = 1 << 14  # products with a column, after which a direct sum is given up


class Powers:
    """Krylov's spaces of several columns, side by side."""

    def __init__(self, apply: Apply, columns: np.ndarray):
        self.apply, (self.count, n) = apply, columns.shape
        self.sizes = np.linalg.norm(columns, axis=1)
        self.basis = np.empty((1, self.count, n))
        self.basis[0] = columns / np.where(self.sizes > 0, self.sizes, 1.0)[:, None]
        self.H = np.zeros((self.count, 1, 0))

    @property
    def steps(self) -> int:
        return self.H.shape[2]

    @property
    def closed(self) -> bool:
        """All bases span what their columns reach."""
        return self.steps > 0 and bool((self.H[:, -1, -1] == 0).all())

    def extend(self, steps: int) -> None:
        """Go on to so many products with every column."""
        if steps <= self.steps:
            return
        done, n = self.steps, self.basis.shape[2]
        basis = np.empty((steps + 1, self.count, n))
        basis[: done + 1] = self.basis
        H = np.zeros((self.count, steps + 1, steps))
        H[:, : done + 1, :done] = self.H
        for k in range(done, steps):
            v = self.apply(basis[k])
            before = np.linalg.norm(v, axis=1)
            for _ in range(2):  # twice is enough
                c = np.einsum("kbn,bn->bk", basis[: k + 1], v, optimize=True)
                v = v - np.einsum("bk,kbn->bn", c, basis[: k + 1], optimize=True)
                H[:, : k + 1, k] += c
            left = np.linalg.norm(v, axis=1)
            left = np.where(left <= CLOSED * np.maximum(before, 1e-300), 0.0, left)
            H[:, k + 1, k] = left
            basis[k + 1] = np.where(left[:, None] > 0, v / np.where(left > 0, left, 1.0)[:, None], 0.0)
        self.basis, self.H = basis, H

    def first(self, count: int) -> Powers:
        """Of the first so many columns."""
        part = Powers(self.apply, self.basis[0, :count])
        part.sizes, part.basis, part.H = self.sizes[:count], self.basis[:, :count], self.H[:count]
        return part

    def ritz(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """(r,) and (r, n): approximate eigenvalues in the span of all bases up to so many dimensions, and vectors."""
        rows = self.basis[: steps + 1].reshape((steps + 1) * self.count, -1)
        inner = (rows @ rows.T).reshape(steps + 1, self.count, -1)
        moved = np.einsum("bjk,jbi->kbi", self.H[:, : steps + 1, :steps], inner).reshape(steps * self.count, -1)
        held = steps * self.count
        values, axes = np.linalg.eigh(inner.reshape(len(rows), -1)[:held, :held])
        kept = values > SAME * max(float(values.max(initial=0.0)), 1e-300)
        mix = axes[:, kept] / np.sqrt(values[kept])
        found, vectors = np.linalg.eig(mix.T @ moved[:, :held].T @ mix)
        return found, (mix @ vectors).real.T @ rows[:held]

    def gram(self, measure: Measure) -> np.ndarray:
        """(columns, steps, steps): inner products of the bases as they are measured."""
        return np.stack([measure(self.basis[: self.steps, j]) for j in range(self.count)])

    def radius(self) -> np.ndarray:
        """(columns,): the spectral radius of every H."""
        m = self.steps
        return np.abs(np.linalg.eigvals(self.H[:, :m, :m])).max(axis=1, initial=0.0)

    def sums(self, gram: np.ndarray, steps: int | None = None) -> np.ndarray:
        """(columns,): sum_t |R A^t q|^2 as the first so many dimensions tell it; inf where they would let it grow."""
        m = self.steps if steps is None else steps
        P = lyapunov(self.H[:, :m, :m])
        found = np.isfinite(P).all(axis=(1, 2))
        sums = np.einsum("bij,bij->b", gram[:, :m, :m], np.where(found[:, None, None], P, 0.0))
        return np.where(found, self.sizes**2 * sums, np.inf)

    def inverse(self, steps: int | None = None) -> np.ndarray:
        """(columns, n): y with (I - A) y = q, as well as the bases tell it. What is conserved is left alone."""
        m, out = self.steps if steps is None else steps, np.zeros(self.basis.shape[1:])
        for b in range(self.count):
            system, right = np.eye(m + 1, m) - self.H[b, : m + 1, :m], self.sizes[b] * np.eye(m + 1, 1)[:, 0]
            out[b] = np.linalg.lstsq(system, right, rcond=1e-11)[0] @ self.basis[:m, b]
        return out

    def leak(self) -> float:
        """What the powers of columns lose out of their bases, over what they hold: 0 where bases are long enough."""
        m, squares = self.steps, self.sizes**2
        P = lyapunov(self.H[:, :m, :m])
        if not np.isfinite(P).all():
            return np.inf
        held = squares @ np.trace(P, axis1=1, axis2=2)
        return float(squares @ (self.H[:, m, m - 1] ** 2 * P[:, -1, -1]) / max(held, 1e-300))

    def squares(self, gram: np.ndarray, rounds: int) -> np.ndarray:
        """(columns, rounds): |R A^t q|^2 for t = 0, 1, ..."""
        m = self.steps
        H, out = self.H[:, :m, :m], np.empty((self.count, rounds))
        y = np.zeros((self.count, m))
        y[:, 0] = self.sizes
        for t in range(rounds):
            out[:, t] = (np.matmul(gram, y[:, :, None])[:, :, 0] * y).sum(1)
            y = np.matmul(H, y[:, :, None])[:, :, 0]
        return out

    def spread(self, rng: np.random.Generator, count: int, groups: int) -> tuple[np.ndarray, np.ndarray]:
        """(groups, count, n): random vectors of covariance sum_t A^t q q' A'^t, a mean over the columns of a group (one
        after the other), and A times each."""
        m, each = self.steps, self.count // groups
        y = np.einsum("bij,cbj->cbi", self._roots(), rng.normal(size=(count, self.count, m)))
        y = (y * self.sizes[:, None] / np.sqrt(each)).reshape(count, groups, each, m)
        moved = np.einsum("bji,cbi->cbj", self.H, y.reshape(count, self.count, m)).reshape(count, groups, each, m + 1)
        basis = self.basis.reshape(m + 1, groups, each, -1)
        return tuple(np.einsum("cgbk,kgbn->gcn", a, basis[: a.shape[-1]], optimize=True) for a in (y, moved))

    def reached(self, which: slice) -> tuple[np.ndarray, np.ndarray]:
        """(columns x (steps - 1), n): vectors of covariance sum_t A^t q q' A'^t, summed over the chosen columns, and A
        times each."""
        m, n = self.steps, self.basis.shape[2]
        size = self.sizes[which, None, None]
        roots = size * self._roots()[which]
        rows = np.einsum("bki,kbn->bin", roots, self.basis[:m, which], optimize=True)
        moved = np.einsum("bki,bjk,jbn->bin", roots, self.H[which], self.basis[:, which], optimize=True)
        return rows.reshape(-1, n), moved.reshape(-1, n)

    def _roots(self) -> np.ndarray:
        """(columns, steps, steps): C with C C' = sum_t H^t e_1 e_1' H'^t."""
        values, axes = np.linalg.eigh(lyapunov(self.H[:, : self.steps, : self.steps]))
        return axes * np.sqrt(np.maximum(values, 0.0))[:, None, :]


def lyapunov(H: np.ndarray) -> np.ndarray:
    """(b, m, m): P = H P H' + e_1 e_1' for each of several H, by doubling; inf where the sum behind it grows."""
    P = np.zeros_like(H)
    if H.shape[1] == 0:
        return P
    P[:, 0, 0] = 1.0
    return doubled(H, P)


def doubled(A: np.ndarray, P: np.ndarray) -> np.ndarray:
    """(b, m, m): sum_t A^t P A'^t for each of several A and P, by doubling; inf where it grows."""
    P = P.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(DOUBLINGS):
            more = A @ P @ A.transpose(0, 2, 1)
            P += more
            grows = ~(np.abs(more).max(axis=(1, 2)) <= 1e-14 * np.abs(P).max(axis=(1, 2)))
            if not grows.any() or not np.isfinite(P[grows]).any():
                break
            A = A @ A
    P[grows] = np.inf
    return P


class Squarings:
    """A^t v at any t, from A, A^2, A^4, ... that are kept."""

    def __init__(self, A: np.ndarray):
        self.powers = [A]

    def __call__(self, t: int, v: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            for j in range(int(t).bit_length()):
                if j == len(self.powers):
                    self.powers.append(self.powers[-1] @ self.powers[-1])
                if t >> j & 1:
                    v = self.powers[j] @ v
        return v


def summed_directly(apply: Apply, columns: np.ndarray, measure: Measure, tolerance: float) -> np.ndarray:
    """(columns,): sum_t |R A^t q|^2, power by power, until the powers themselves have died out; nan where that takes
    too long."""
    total, largest, v = np.zeros(len(columns)), 0.0, columns
    for _ in range(DIRECT):
        added, size = np.diagonal(measure(v)), float((v * v).sum())
        total, largest = total + added, max(largest, size)
        if not np.isfinite(size):
            return np.full(len(columns), np.inf)
        if size <= tolerance * largest and (added <= tolerance * total).all():  # a delay line is silent for a while
            return total
        v = apply(v)
    return np.full(len(columns), np.nan)
