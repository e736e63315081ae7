"""Which pairs of nodes are joined? Neighbours of points, clusters, random graphs; never a dense K x K matrix."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.kinds import shown
from fedpoint.core.memory_limits import check_memory

if TYPE_CHECKING:  # a graph needs no JAX
    import scipy.sparse as sparse

    from fedpoint.core.types import Model
    from fedpoint.problems.base import Problem

TREE = 15  # dimensions up to which a kd-tree finds neighbours faster than a look at all pairs, block after block
DENSE = 256  # nodes up to which eigenvalues come from a dense matrix
FAINT = 1e-6  # the least Gaussian weight: an outlier keeps its edges
BY = ("gradients", "statistics", "models")


def nearest_pairs(points: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (E, 2) of which one is among the k nearest of the other, each once, and their distances (E,)."""
    nodes = len(points)
    if points.shape[1] <= TREE:
        from scipy.spatial import cKDTree

        found = cKDTree(points).query(points, k=k + 1)[1]
    else:
        from sklearn.neighbors import NearestNeighbors

        centred = points - points.mean(0)  # distances come from squares there: a large mean would cost digits
        found = NearestNeighbors(n_neighbors=k + 1).fit(centred).kneighbors(centred, return_distance=False)
    # A node is its own nearest, unless others lie on the same place: then one of those is left out.
    own = found == np.arange(nodes)[:, None]
    own[~own.any(1), -1] = True
    others = found[~own].reshape(nodes, k)
    pairs = np.stack([np.repeat(np.arange(nodes), k), others.ravel()], axis=1)
    pairs = np.unique(np.sort(pairs, axis=1), axis=0)
    return pairs, np.linalg.norm(points[pairs[:, 0]] - points[pairs[:, 1]], axis=1)


def weights_of(distances: np.ndarray, weight: str) -> np.ndarray:
    """ "equal": 1. "gaussian": exp(-d^2 / (2 s^2)), s the median distance of neighbours."""
    if weight not in ("equal", "gaussian"):
        raise FedpointError(f"network: unknown weight {weight!r}: {nearest(str(weight), ('equal', 'gaussian'))}")
    scale = float(np.median(distances)) if len(distances) else 0.0
    if weight == "equal" or scale == 0:
        return np.ones(len(distances))
    return np.maximum(np.exp(-0.5 * (distances / scale) ** 2), FAINT)


def ring_like(nodes: np.ndarray, degree: int, rng: np.random.Generator) -> np.ndarray:
    """Random circles through the nodes laid over each other, and a matching when `degree` is odd.

    So everyone has about `degree` neighbours (fewer where circles share an edge), and from degree 2 on it is connected.
    """
    count = len(nodes)
    check_memory(count * min(degree, count), "a network with so many edges", "take fewer neighbours")
    if degree >= count - 1:
        return nodes[np.stack(np.triu_indices(count, 1), axis=1)]
    layers = []
    for _ in range(degree // 2):
        order = rng.permutation(nodes)
        layers.append(np.stack([order, np.roll(order, -1)], axis=1))
    if degree % 2:
        order = rng.permutation(nodes)[: count - count % 2]
        layers.append(order.reshape(-1, 2))
    return _distinct(np.concatenate([*layers, np.empty((0, 2), np.int64)]))


def chosen_pairs(labels: np.ndarray, same: bool, chance: float, rng: np.random.Generator) -> np.ndarray:
    """Every pair of nodes with the same label (or of different ones), each with probability `chance`."""
    nodes, sizes = len(labels), np.bincount(labels)
    alike = int((sizes * (sizes - 1) // 2).sum())
    total = alike if same else nodes * (nodes - 1) // 2 - alike
    if chance == 0 or total == 0:
        return np.empty((0, 2), np.int64)
    if same and chance == 1:
        groups = np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])
        return np.concatenate([ring_like(group, len(group), rng) for group in groups])
    check_memory(int(2 * total * (1 if chance > 0.1 else chance)), "a network with so many edges", "lower its chances")
    if chance > 0.1:  # most of what would be drawn is kept, so go through all
        ends = np.stack(np.triu_indices(nodes, 1), axis=1)
        ends = ends[(labels[ends[:, 0]] == labels[ends[:, 1]]) == same]
        return ends[rng.random(len(ends)) < chance]
    wanted, found = rng.binomial(total, chance), np.empty((0, 2), np.int64)
    share = total / (nodes * (nodes - 1) / 2)
    while len(found) < wanted:
        more = rng.integers(nodes, size=(int(1.3 * (wanted - len(found)) / share) + 10, 2))
        more = more[(more[:, 0] != more[:, 1]) & ((labels[more[:, 0]] == labels[more[:, 1]]) == same)]
        found = _distinct(np.concatenate([found, more]))
    return found[np.sort(rng.permutation(len(found))[:wanted])]


def _distinct(pairs: np.ndarray) -> np.ndarray:
    return np.unique(np.sort(pairs, axis=1), axis=0)


def smallest_eigenvalues(laplacian: sparse.csr_matrix, count: int) -> np.ndarray:
    """The smallest eigenvalues of a connected graph's Laplacian, ascending; the first is 0."""
    nodes = laplacian.shape[0]
    count = min(count, nodes)
    if nodes <= DENSE or count >= nodes - 1:
        values = np.linalg.eigvalsh(laplacian.toarray())[:count]
    else:
        from scipy.sparse.linalg import ArpackNoConvergence, eigsh

        first = np.random.default_rng(0).normal(size=nodes)  # so that the same graph gives the same bits
        smallest = partial(eigsh, k=count, v0=first, return_eigenvectors=False)
        try:  # random graphs: a wide gap, and factors that would be dense
            values = np.sort(smallest(laplacian, which="SA", maxiter=100, ncv=min(nodes, max(2 * count + 1, 40))))
        except ArpackNoConvergence:  # rings and maps: a narrow gap, and sparse factors
            shift = -1e-6 * float(laplacian.diagonal().max())
            values = np.sort(smallest(laplacian.tocsc(), sigma=shift, which="LM"))
    return np.concatenate([[0.0], np.maximum(values[1:], 0.0)])


def features_of(problem: Problem, by: str, at: Model | None = None) -> np.ndarray:
    """(K, n): what is compared between agents."""
    from fedpoint.problems.base import Problem  # with JAX: only where there is a problem

    if not isinstance(problem, Problem):
        raise FedpointError(f"network: problem must be one of fp.problems, or your own; got {shown(problem)}")
    if by not in BY:
        raise FedpointError(f"network: unknown by {by!r}: {nearest(str(by), BY)}")
    if at is not None and by != "gradients":
        raise FedpointError('network: at= is the point of by="gradients"')
    if by == "gradients":
        return _gradients(problem, at)
    return _statistics(problem) if by == "statistics" else _models(problem)


def _gradients(problem: Problem, at: Model | None) -> np.ndarray:
    """g_k(w) at a common w; of sums over rows, the mean, so that large agents are not far from everyone."""
    from fedpoint.problems.rows import RowsProblem

    if at is None:
        at = problem.solution()
    fields = problem.fields(problem.start() if at is None else at)
    if isinstance(problem, RowsProblem) and not problem.oracle.mean:
        fields = fields / problem.counts[:, None]
    return fields


def _statistics(problem: Problem) -> np.ndarray:
    """Means over an agent's rows of (x, y) and of x y', each divided by the rows' standard deviation around them.

    So all have the same noise, and those in which agents differ count more.
    """
    from fedpoint.problems.rows import RowsProblem

    if not isinstance(problem, RowsProblem):
        raise FedpointError(
            f'network: by="statistics" needs agents that store rows; {type(problem).__name__} does not: '
            "give your own statistics to Network.knn(statistics, k)"
        )
    parts = problem.all_rows()
    if not (isinstance(parts, tuple | list) and len(parts) == 2):
        raise FedpointError(
            'network: by="statistics" needs rows (x, y); give your own statistics to Network.knn(statistics, k)'
        )
    x, y = (np.asarray(a, dtype=float).reshape(len(a), -1) for a in parts)
    both = np.concatenate([x, y, (x[:, :, None] * y[:, None, :]).reshape(len(x), -1)], axis=1)
    means = np.add.reduceat(both, problem.own.offset, axis=0) / problem.counts[:, None]
    spread = np.sqrt(((both - np.repeat(means, problem.counts, axis=0)) ** 2).mean(0))
    return means / np.where(spread > 0, spread, 1.0)


def _models(problem: Problem) -> np.ndarray:
    import jax

    found = problem.local_solutions()
    if found is None:
        raise FedpointError(
            f'network: the agents\' own solutions are not known for this {type(problem).__name__}: take by="gradients"'
        )
    return np.concatenate([np.asarray(a).reshape(problem.agents, -1) for a in jax.tree.leaves(found)], axis=1)
