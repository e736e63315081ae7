"""With which weights do the nodes of a network average? Symmetric, and never more than one in all at a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpoint.core.errors import FedpointError, nearest

if TYPE_CHECKING:
    from fedpoint.graphs.network import Network

KINDS = ("metropolis", "laplacian", "fastest")


def weights(network: Network, kind: str) -> np.ndarray:
    """(E,): the weight of every edge."""
    if kind not in KINDS:
        raise FedpointError(f"network: unknown mixing {kind!r}: {nearest(str(kind), KINDS)}")
    return {"metropolis": metropolis, "laplacian": laplacian, "fastest": fastest}[kind](network)


def metropolis(network: Network) -> np.ndarray:
    """1/(1 + max(n_i, n_j)), n_i the number of neighbours."""
    counts = np.diff(network.arcs.first)
    return 1.0 / (1.0 + counts[network.edges].max(axis=1, initial=0))


def laplacian(network: Network) -> np.ndarray:
    """W = I - e L with the e that makes it mix fastest, 2/(lambda_2 + lambda_max), or less where a node's own weight
    would be negative."""
    network.require_connected()
    if not len(network.edges):
        return np.zeros(0)
    top = extreme(network)
    scale = min(2.0 / (network.connectivity + top), 1.0 / network.degrees.max())
    return scale * network.weights


def extreme(network: Network) -> float:
    """The largest eigenvalue of the Laplacian."""
    from scipy.sparse.linalg import eigsh

    if network.nodes <= 256:
        return float(np.linalg.eigvalsh(network.laplacian.toarray())[-1])
    start = np.random.default_rng(0).normal(size=network.nodes)
    return float(eigsh(network.laplacian, 1, which="LA", v0=start, return_eigenvectors=False)[0])


def fastest(network: Network) -> np.ndarray:
    """The weights that make |W - 11'/K| least, by semidefinite programming (Xiao and Boyd, 2004); needs cvxpy."""
    try:
        import cvxpy as cp
    except ImportError:
        raise FedpointError(
            'network: mixing("fastest") solves a semidefinite programme with cvxpy, which is not installed: '
            'pip install cvxpy, or use mixing("metropolis")'
        ) from None
    network.require_connected()
    K, edges = network.nodes, network.edges
    a, s = cp.Variable(len(edges), nonneg=True), cp.Variable()
    incidence = np.zeros((K, len(edges)))
    incidence[edges[:, 0], np.arange(len(edges))] = 1.0
    incidence[edges[:, 1], np.arange(len(edges))] = -1.0
    gap = np.eye(K) - incidence @ cp.diag(a) @ incidence.T - np.full((K, K), 1.0 / K)
    bounds = [gap << s * np.eye(K), gap >> -s * np.eye(K), np.abs(incidence) @ a <= 1]
    cp.Problem(cp.Minimize(s), bounds).solve()
    if a.value is None:
        raise FedpointError('network: the solver found no mixing weights; use mixing("metropolis")')
    found = np.maximum(np.asarray(a.value), 1e-9)  # an edge that is not used stays an edge
    return found / max(1.0, float((np.abs(incidence) @ found).max()))
