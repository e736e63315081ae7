"""Nodes that are coupled: the linear system of GTVMin, and when its solution is unique."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import scipy.linalg
import scipy.sparse as sparse
from scipy.sparse.csgraph import reverse_cuthill_mckee

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.graphs.network import Network

TINY = 1e-12  # of the largest eigenvalue: below it a direction is not determined
NARROW = 64  # width of a band (a path or a ring of nodes), up to which it is factorised at once
DIRECT_WORK = 1e11  # operations and bytes of a banded factorisation where conjugate gradients are slow
DIRECT_BYTES = 1 << 31
SLOW, ITERATIONS = 300, 20_000  # of conjugate gradients


class Coupled:
    """M = blkdiag(H_i) + 2 coupling Lap (x) I: products with it, and its inverse.

    Conjugate gradients are preconditioned by the diagonal blocks H_i + 2 coupling d_i and, since Lap does not see
    what the nodes of a component have in common, by the sum of a component's H_i for that: without the second part
    they would take ever longer as the coupling grows.

    Args:
        H: (K, d, d); or (K,) curvatures that stand for them where only `product` knows them.
        product: x -> (H_i x_i), default: with H; of `size` numbers each.
        definite: M is positive semidefinite; otherwise the preconditioner takes absolute values of eigenvalues.
    """

    def __init__(
        self,
        H: np.ndarray,
        network: Network,
        coupling: float,
        product: Callable[[np.ndarray], np.ndarray] | None = None,
        definite: bool = True,
        size: int | None = None,
    ):
        self.H, self.network, self.coupling, self.definite = H, network, coupling, definite
        self.blocks = H.ndim == 3
        self.shape = network.nodes, int(H.shape[-1] if size is None else size)
        self._product = product
        self.parts = Parts(network, coupling)
        self.degrees = 2 * coupling * network.degrees
        self.laplacian = pull(network, coupling)
        self._factor: tuple | None = None

    def require_unique(self) -> None:
        """Refuse where M is singular, for H_i without negative eigenvalues; not checked where they are not known."""
        words = why_not_unique(self.H, self.network, self.parts, self.coupling) if self.blocks else ""
        if words:
            raise FedpointError(words)

    def times(self, x: np.ndarray) -> np.ndarray:
        """M x, (K, d)."""
        return self.local(x) + self.laplacian @ x

    def local(self, x: np.ndarray) -> np.ndarray:
        if self._product is not None:
            return self._product(x)
        return np.einsum("kij,kj->ki", self.H, x)

    def diagonal_blocks(self) -> np.ndarray:
        """(K, d, d): H_i + 2 coupling d_i."""
        return self.H + self.degrees[:, None, None] * np.eye(self.H.shape[1])

    @cached_property
    def _inverses(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the preconditioner's two parts: each node's, and each component's of more than one node."""
        sums = self.parts.total(self.H)[self.parts.many]
        if self.blocks:
            return _inverses(self.diagonal_blocks(), self.definite), _inverses(sums, self.definite)
        floor = TINY * max(float(np.abs(self.H).max(initial=0.0)), 1e-300)
        own = np.maximum(np.abs(self.H) + self.degrees, floor)
        return 1 / own[:, None], 1 / np.maximum(np.abs(sums), floor)[:, None]

    def precondition(self, r: np.ndarray) -> np.ndarray:
        own, coarse = self._inverses
        if not self.blocks:
            z, several = own * r, coarse * self.parts.total(r)[self.parts.many]
        else:
            z = np.einsum("kij,kj->ki", own, r)
            several = np.einsum("kij,kj->ki", coarse, self.parts.total(r)[self.parts.many])
        if not len(several):
            return z
        common = np.zeros((self.parts.count, r.shape[1]))
        common[self.parts.many] = several
        return z + common[self.parts.of]

    def solve(self, b: np.ndarray, accuracy: float) -> tuple[np.ndarray, bool]:
        """x with M x = b up to an accuracy, and whether M proved positive definite on the way.

        A banded factorisation for paths, rings and where conjugate gradients are slow; these for all else.
        """
        if not b.any():
            return np.zeros_like(b), True
        width, work, size = self._band[1:] if self.blocks else (np.inf, np.inf, np.inf)
        direct = work <= DIRECT_WORK and size <= DIRECT_BYTES
        if direct and (width <= NARROW or self._factor is not None):
            exact = self._direct(b)
            if exact is None:
                return self._gradients(b, accuracy, ITERATIONS)[0], self.definite
            return exact, True
        x, good, settled = self._gradients(b, accuracy, SLOW if direct else ITERATIONS)
        if not settled and direct:
            exact = self._direct(b)
            return (x, self.definite) if exact is None else (exact, True)
        return x, good

    def _gradients(self, b: np.ndarray, accuracy: float, most: int) -> tuple[np.ndarray, bool, bool]:
        """Preconditioned conjugate gradients, to an accuracy of the residual in the preconditioner's norm."""
        x, r = np.zeros_like(b), b.copy()
        z = self.precondition(r)
        p, size = z.copy(), dot(r, z)
        enough = accuracy**2 * size
        for _ in range(most):
            q = self.times(p)
            bend = dot(p, q)
            if not bend > 0:  # M is not positive along p, or rounding is: what is found so far, or downhill
                return x if x.any() else p, self.definite, True
            s = size / bend
            x += s * p
            r -= s * q
            z = self.precondition(r)
            before, size = size, dot(r, z)
            if size <= enough:
                return x, True, True
            p *= size / before
            p += z
        return x, True, False

    @cached_property
    def _band(self) -> tuple[np.ndarray, float, float, float]:
        """An order of the nodes in which neighbours are near; width, operations and bytes of the factor in it."""
        K, d = self.shape
        order = np.asarray(reverse_cuthill_mckee(self.network.adjacency, symmetric_mode=True), dtype=np.int64)
        place = np.empty(K, dtype=np.int64)
        place[order] = np.arange(K)
        reach = np.abs(np.diff(place[self.network.edges], axis=1)).max(initial=0)
        width = float((reach + 1) * d)
        return place, width, K * d * width**2, K * d * width * 8

    def _direct(self, b: np.ndarray) -> np.ndarray | None:
        """Banded Cholesky factorisation; None where M is not positive definite."""
        place = self._band[0]
        K, d = b.shape
        if self._factor is None:
            ends = place[self.network.edges]
            reach = int(np.abs(np.diff(ends, axis=1)).max(initial=0))
            band = np.zeros(((reach + 1) * d, K * d))  # band[i - j, j] = M[i, j], i >= j
            rows, columns = np.tril_indices(d)
            at = place[:, None] * d
            band[rows - columns, at + columns] = self.diagonal_blocks()[:, rows, columns]
            low, gap = ends.min(1), np.abs(np.diff(ends, axis=1)[:, 0])
            for j in range(d):
                band[gap * d, low * d + j] = -2 * self.coupling * self.network.weights
            try:
                self._factor = (scipy.linalg.cholesky_banded(band, lower=True, overwrite_ab=True), True)
            except np.linalg.LinAlgError:
                return None
        right = np.empty_like(b)
        right[place] = b
        x = scipy.linalg.cho_solve_banded(self._factor, right.ravel(), check_finite=False)
        return x.reshape(K, d)[place]


def pull(network: Network, coupling: float) -> sparse.csr_matrix:
    """(K, K), sparse: 2 coupling Lap."""
    if not len(network.edges):
        return sparse.csr_matrix((network.nodes, network.nodes))
    return 2 * coupling * network.laplacian


class Parts:
    """The connected components of a network; without coupling every node is its own."""

    def __init__(self, network: Network, coupling: float):
        K = network.nodes
        self.of = network.components if coupling > 0 else np.arange(K)
        self.count = int(self.of.max(initial=-1)) + 1
        self.sizes = np.bincount(self.of, minlength=self.count)
        self.many = self.sizes > 1
        self._member = sparse.csr_matrix((np.ones(K), (self.of, np.arange(K))), shape=(self.count, K))

    def total(self, x: np.ndarray) -> np.ndarray:
        """(count, ...): sums over the nodes of each."""
        flat = x.reshape(len(x), -1)
        sums = flat.sum(0)[None] if self.count == 1 else self._member @ flat
        return sums.reshape(self.count, *x.shape[1:])

    def mean(self, x: np.ndarray) -> np.ndarray:
        return self.total(x) / self.sizes[:, None]


def dot(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.einsum("ki,ki->", x, y))  # no threads, which take longer to wake than this


def _inverses(D: np.ndarray, definite: bool) -> np.ndarray:
    """Of symmetric matrices; of those that are not positive definite, with the moduli of their eigenvalues."""
    if definite:
        try:
            np.linalg.cholesky(D)
            return np.linalg.inv(D)
        except np.linalg.LinAlgError:
            pass
    values, U = np.linalg.eigh(D)
    floor = max(TINY * float(np.abs(values).max(initial=0.0)), 1e-300)
    return (U / np.maximum(np.abs(values), floor)[:, None, :]) @ np.swapaxes(U, 1, 2)


def why_not_unique(
    H: np.ndarray, network: Network, parts: Parts, coupling: float, scale: np.ndarray | None = None
) -> str:
    """Why the solution is not unique, or nothing: it is (for convex losses) iff, on each connected component, the sum
    of H_i is positive definite. scale: Hessians elsewhere, which say what counts as zero."""
    values = np.linalg.eigvalsh(parts.total(H))
    largest = np.abs(values).max(axis=1)
    if scale is not None:
        largest = np.maximum(largest, np.trace(parts.total(scale), axis1=1, axis2=2))
    flat = values[:, 0] <= TINY * largest
    if not flat.any():
        return ""
    part = int(np.flatnonzero(flat)[0])
    names = [network.names[i] for i in np.flatnonzero(parts.of == part)]
    rank, more = int((values[part] > TINY * largest[part]).sum()), int(flat.sum()) - 1
    if len(names) == 1:
        who = f"node {names[0]}" + (" has no neighbour and" if coupling > 0 else "")
        remedy = "give it rows or neighbours" if coupling > 0 else "give it rows, or a coupling above 0"
    else:
        who = f"the component of {counted(len(names), 'node')} {', '.join(names[:5])}" + (
            ", ..." if len(names) > 5 else ""
        )
        remedy = "give it rows, or an edge to other nodes"
    others = f" (and {counted(more, 'more such node' if coupling == 0 else 'more such component')})" if more else ""
    of = counted(values.shape[1], "parameter")
    return f"GTVMin's solution is not unique: {who} determines {rank} of {of}{others}; {remedy}"
