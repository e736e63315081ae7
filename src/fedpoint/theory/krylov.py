"""Solving (I - A) y = b, the largest eigenvalues of A and A^t b, from products with A alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

BYTES = 1 << 31  # of basis vectors kept at a time


def norm(v: np.ndarray) -> float:
    """|v|, also where the squares of its numbers leave the floats."""
    with np.errstate(over="ignore", under="ignore"):
        size = float(np.linalg.norm(v))
    if 1e-150 < size < 1e150:
        return size
    top = float(np.abs(v).max(initial=0.0))
    return top if top == 0 or not np.isfinite(top) else top * float(np.linalg.norm(v / top))


class Krylov:
    """Arnoldi's process from b: an orthonormal basis of b, A b, A^2 b, ... and A in that basis.

    Everything stays in the subspace that b reaches. That is what is wanted where A has eigenvalues 1 from conserved
    quantities: b in the range of I - A has none of them.
    """

    def __init__(self, apply: Callable[[np.ndarray], np.ndarray], b: np.ndarray, rounding: float = 1e-12):
        self.apply, self.shape, self.rounding = apply, b.shape, rounding
        self.size = norm(b)
        self.most = int(max(2, min(b.size, BYTES // (8 * b.size))))
        self.basis = np.zeros((0, b.size)) if self.size == 0 else (b.ravel() / self.size)[None].copy()
        self.H = np.zeros((1, 0))
        self.closed = self.size == 0  # the basis spans all that b reaches

    @property
    def steps(self) -> int:
        return self.H.shape[1]

    def extend(self, steps: int, tolerance: float = 0.0) -> None:
        """Go on to so many steps, or until the basis is closed, or the residual of (I - A) y = b is that small.

        What comes after is made of rounding errors, which know nothing of conserved quantities.
        """
        steps = min(steps, self.most)
        if len(self.basis) < steps + 1 and not self.closed:
            grown = np.empty((steps + 1, self.basis.shape[1]))
            grown[: self.steps + 1] = self.basis[: self.steps + 1]
            self.basis = grown
        while self.steps < steps and not self.closed:
            k = self.steps
            v = self.apply(self.basis[k].reshape(self.shape)).ravel()
            before = norm(v)
            h = np.zeros(k + 2)
            for _ in range(2):  # twice is enough
                c = self.basis[: k + 1] @ v
                v = v - c @ self.basis[: k + 1]
                h[: k + 1] += c
            h[k + 1] = norm(v)
            H = np.zeros((k + 2, k + 1))
            H[: k + 1, :k] = self.H
            H[:, k] = h
            self.H = H
            if h[k + 1] <= self.rounding * max(before, 1e-300) or k + 1 >= self.basis.shape[1]:
                self.closed = True
            else:
                self.basis[k + 1] = v / h[k + 1]
            if tolerance and self.residual() <= tolerance:
                return

    def residual(self) -> float:
        """Of `solution`, over |b|."""
        return self._least()[1]

    def _least(self) -> tuple[np.ndarray, float]:
        k = self.steps
        system = np.eye(k + 1, k) - self.H
        right = np.zeros(k + 1)
        right[0] = 1.0
        y = np.linalg.lstsq(system, right, rcond=1e-11)[0]  # a conserved direction that crept in is left alone
        return y, float(np.linalg.norm(right - system @ y))

    def solution(self) -> tuple[np.ndarray, float]:
        """y with least |b - (I - A) y| in the basis, and that residual over |b|."""
        if self.size == 0:
            return np.zeros(self.shape), 0.0
        y, left = self._least()
        return self.size * (y @ self.basis[: self.steps]).reshape(self.shape), left

    def ritz(self) -> np.ndarray:
        """Approximate eigenvalues, largest modulus first."""
        if self.steps == 0:
            return np.zeros(1, complex)
        values = np.linalg.eigvals(self.H[: self.steps])
        return values[np.argsort(-np.abs(values))]

    def power(self, count: int, tolerance: float = 1e-12) -> np.ndarray:
        """A^count b, from as many products as matter."""
        if self.size == 0:
            return np.zeros(self.shape)
        while not self.closed and self.steps < min(count + 1, self.most):
            self.extend(min(self.steps + 20, count + 1))
            if np.abs(np.linalg.matrix_power(self.H[: self.steps], count)[-1, 0]) <= tolerance:
                break
        k = self.steps
        far = np.linalg.matrix_power(self.H[:k], count)[:, 0] if k else np.ones(1)
        return self.size * (far @ self.basis[: len(far)]).reshape(self.shape)

    def powers(self, weight: np.ndarray, count: int) -> np.ndarray:
        """(count,): weight . A^t b for t = 0, 1, ..."""
        if self.size == 0:
            return np.zeros(count)
        k = self.steps
        reach = self.size * (self.basis[:k] @ weight.ravel())
        width = max(64, math.isqrt(count))  # at a time, by the power of H that goes so far
        out, H, block = np.empty(count), self.H[:k], np.zeros((k, width))
        block[0, 0] = 1.0
        with np.errstate(over="ignore", invalid="ignore"):
            for t in range(1, min(width, count)):
                block[:, t] = H @ block[:, t - 1]
            far = np.linalg.matrix_power(H, width) if count > width else H
            for t in range(0, count, width):
                out[t : t + width] = (reach @ block)[: count - t]
                block = far @ block
        return np.where(np.isnan(out), np.inf, out)  # beyond the finite numbers


def solve(
    apply: Callable[[np.ndarray], np.ndarray], b: np.ndarray, tolerance: float, steps: int = 20, most: int = 400
) -> tuple[np.ndarray, float, Krylov]:
    """y with (I - A) y = b, restarted where the basis grows too large."""
    space = Krylov(apply, b)
    first = space
    if space.closed:  # b = 0
        return np.zeros(b.shape), 0.0, first
    y, scale = np.zeros(b.shape), max(norm(b), 1e-300)
    done = 0
    while True:
        space.extend(space.steps + steps, tolerance * scale / space.size)
        part, left = space.solution()
        if left * space.size <= tolerance * scale or space.closed:
            return y + part, left * space.size / scale, first
        if space.steps >= min(space.most, most):
            y = y + part
            done += space.steps
            if done >= most:
                return y, left * space.size / scale, first
            space = Krylov(apply, b - (y - apply(y)))
