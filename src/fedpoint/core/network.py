"""Who is a neighbour of whom, and how closely? An undirected graph with weights A_ij > 0 on its edges. Lecture 003."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.csgraph import connected_components

from fedpoint.errors import FedpointError


class Arcs(NamedTuple):
    """Every edge in both directions, ordered by who hears: arcs `first[i]` to `first[i + 1]` are heard by node i."""

    hears: np.ndarray  # (2E,)
    says: np.ndarray  # (2E,)
    weight: np.ndarray  # (2E,)
    first: np.ndarray  # (K + 1,)


class Network:
    """A graph of agents: `edges` (E, 2) pairs of node numbers, each once, `weights` (E,) above zero, `names` of nodes.

    >>> net = Network.from_edges([(0, 1), (1, 2)], weights=[1.0, 2.0])
    >>> net.nodes, net.connected, net.degrees
    (3, True, array([1., 3., 2.]))
    """

    def __init__(self, edges: Any, weights: Any, names: Sequence[Any]):
        self.names = [str(name) for name in names]
        self.edges = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
        self.weights = np.asarray(weights, dtype=float)
        self._check()

    def _check(self) -> None:
        wrong = []
        if len(set(self.names)) != len(self.names):
            twice = sorted({n for n in self.names if self.names.count(n) > 1})
            wrong.append(f"two nodes are called {twice[0]}")
        if self.weights.shape != (len(self.edges),):
            raise FedpointError(f"network: {self.weights.size} weights for {len(self.edges)} edges")
        outside = (self.edges < 0) | (self.edges >= self.nodes)
        if outside.any():
            i, j = self.edges[outside.any(1)][0]
            raise FedpointError(f"network: edge ({i}, {j}) names a node that is not there; nodes are 0 to {self.nodes - 1}")
        loops = self.edges[:, 0] == self.edges[:, 1]
        wrong += [f"node {self._name(i)} has an edge to itself" for i in self.edges[loops, 0]]
        for (i, j), w in zip(self.edges, self.weights, strict=True):
            if not (np.isfinite(w) and w > 0):
                wrong.append(f"the weight between {self._name(i)} and {self._name(j)} is {w:g}: it must be above 0")
        pair = np.sort(self.edges, axis=1)
        unique, times = np.unique(pair, axis=0, return_counts=True)
        for i, j in unique[(times > 1) & (unique[:, 0] != unique[:, 1])]:
            wrong.append(f"the edge between {self._name(i)} and {self._name(j)} is there more than once")
        if wrong:
            more = f" (and {len(wrong) - 5} more)" if len(wrong) > 5 else ""
            raise FedpointError("network: " + "; ".join(wrong[:5]) + more)
        order = np.lexsort((pair[:, 1], pair[:, 0]))
        self.edges, self.weights = pair[order], self.weights[order]

    def _name(self, i: Any) -> str:
        return self.names[int(i)]

    @classmethod
    def from_edges(
        cls, edges: Any, weights: Any = None, nodes: int | None = None, names: Sequence[Any] | None = None
    ) -> Network:
        """From pairs of nodes: numbers, or names. `weights` default to 1; `nodes` is how many there are, where the last
        ones may have no edge. An edge may be given in both directions, with the same weight."""
        pairs = [tuple(e) for e in edges]
        if any(len(e) != 2 for e in pairs):
            raise FedpointError("network: an edge is a pair of nodes")
        weights = np.ones(len(pairs)) if weights is None else np.broadcast_to(np.asarray(weights, float), len(pairs))
        if names is None and all(isinstance(n, int | np.integer) for e in pairs for n in e):
            count = 1 + max((int(n) for e in pairs for n in e), default=-1) if nodes is None else nodes
            names, ends = range(count), np.array(pairs, dtype=np.int64).reshape(-1, 2)
        else:
            if names is None:
                names = sorted({str(n) for e in pairs for n in e})
            number = {str(name): i for i, name in enumerate(names)}
            unknown = sorted({str(n) for e in pairs for n in e} - set(number))
            if unknown:
                raise FedpointError(f"network: edges name nodes that are not there: {', '.join(unknown[:5])}")
            ends = np.array([[number[str(n)] for n in e] for e in pairs], dtype=np.int64).reshape(-1, 2)
        return cls(*_once(ends, weights, [str(n) for n in names]), names)

    @classmethod
    def from_matrix(cls, A: Any, names: Sequence[Any] | None = None) -> Network:
        """From a symmetric matrix of weights (dense or sparse), zero where there is no edge."""
        A = sparse.coo_matrix(A)
        if A.shape[0] != A.shape[1]:
            raise FedpointError(f"network: the matrix of weights has shape {A.shape}: it must be square")
        names = range(A.shape[0]) if names is None else names
        if len(names) != A.shape[0]:
            raise FedpointError(f"network: {len(names)} names for {A.shape[0]} nodes")
        some = A.data != 0
        pairs = np.stack([A.row[some], A.col[some]], axis=1)
        gap = abs(sparse.csr_matrix(A) - sparse.csr_matrix(A).T).tocoo()
        if gap.nnz and gap.data.max() > 1e-12 * np.abs(A.data).max():
            worst = gap.data.argmax()
            i, j = gap.row[worst], gap.col[worst]
            raise FedpointError(
                f"network: the weights between {names[i]} and {names[j]} differ by direction: "
                "a network is undirected; give (A + A') / 2 if that is what you mean"
            )
        return cls(*_once(pairs, A.data[some], [str(n) for n in names]), names)

    @classmethod
    def from_networkx(cls, graph: Any, weight: str = "weight") -> Network:
        """From a networkx graph; edges without the attribute `weight` weigh 1. Nodes keep their order and names."""
        if graph.is_directed():
            raise FedpointError("network: the graph is directed; weights must be symmetric: use graph.to_undirected()")
        if graph.is_multigraph():
            raise FedpointError("network: the graph has parallel edges: use networkx.Graph(graph)")
        number = {node: i for i, node in enumerate(graph.nodes)}
        found = [(number[a], number[b], data.get(weight, 1.0)) for a, b, data in graph.edges(data=True)]
        ends = np.array([e[:2] for e in found], dtype=np.int64).reshape(-1, 2)
        return cls(ends, [e[2] for e in found], list(graph.nodes))

    @classmethod
    def star(cls, nodes: int, weight: float = 1.0) -> Network:
        """Node 0 in the middle, an edge to each of the others."""
        return cls([(0, j) for j in range(1, nodes)], np.full(max(nodes - 1, 0), weight), range(nodes))

    @classmethod
    def complete(cls, nodes: int, weight: float = 1.0) -> Network:
        """Everyone is everyone's neighbour."""
        ends = np.stack(np.triu_indices(nodes, 1), axis=1)
        return cls(ends, np.full(len(ends), weight), range(nodes))

    @classmethod
    def ring(cls, nodes: int, weight: float = 1.0) -> Network:
        """A circle; two nodes are joined by one edge."""
        ends = [(i, (i + 1) % nodes) for i in range(nodes if nodes > 2 else max(nodes - 1, 0))]
        return cls(ends, np.full(len(ends), weight), range(nodes))

    # What it is

    @property
    def nodes(self) -> int:
        return len(self.names)

    @cached_property
    def adjacency(self) -> sparse.csr_matrix:
        """(K, K), sparse: A_ij."""
        arcs = self.arcs
        return sparse.csr_matrix((arcs.weight, arcs.says, arcs.first), shape=(self.nodes, self.nodes))

    @cached_property
    def arcs(self) -> Arcs:
        hears = np.concatenate([self.edges[:, 0], self.edges[:, 1]])
        says = np.concatenate([self.edges[:, 1], self.edges[:, 0]])
        order = np.lexsort((says, hears))
        counts = np.bincount(hears, minlength=self.nodes)
        first = np.concatenate([[0], np.cumsum(counts)])
        weight = np.concatenate([self.weights, self.weights])[order]
        return Arcs(hears[order].astype(np.int32), says[order].astype(np.int32), weight, first.astype(np.int32))

    @cached_property
    def degrees(self) -> np.ndarray:
        """(K,): sum_j A_ij."""
        return np.bincount(self.arcs.hears, self.arcs.weight, minlength=self.nodes)

    @cached_property
    def laplacian(self) -> sparse.csr_matrix:
        """(K, K), sparse: diag(degrees) - A."""
        return (sparse.diags(self.degrees) - self.adjacency).tocsr()

    @cached_property
    def components(self) -> np.ndarray:
        """(K,): the number of each node's connected component."""
        return connected_components(self.adjacency, directed=False)[1]

    @property
    def connected(self) -> bool:
        return self.nodes > 0 and int(self.components.max()) == 0

    @cached_property
    def isolated(self) -> list[str]:
        """Nodes without any edge."""
        return [self.names[i] for i in np.flatnonzero(self.degrees == 0)]

    def total_variation(self, models: Any) -> float:
        """sum over edges of A_ij |w_i - w_j|^2, models (K, ...)."""
        flat = np.asarray(models, dtype=float).reshape(self.nodes, -1)
        gaps = flat[self.edges[:, 0]] - flat[self.edges[:, 1]]
        return float(self.weights @ (gaps**2).sum(1))

    def aligned(self, names: Sequence[Any]) -> Network:
        """The same graph with its nodes in the order of `names`, which are the agents' names in a problem.

        A network whose names are only numbers 0 to K-1 goes by position.
        """
        names = [str(name) for name in names]
        if names == self.names:
            return self
        number = {name: i for i, name in enumerate(names)}
        if set(number) == set(self.names) and len(names) == self.nodes:
            place = np.array([number[name] for name in self.names], dtype=np.int64)
            return Network(place[self.edges], self.weights, names)
        if self.names == [str(i) for i in range(self.nodes)]:
            if len(names) == self.nodes:
                return Network(self.edges, self.weights, names)
            raise FedpointError(f"network: {self.nodes} nodes, but the problem has {len(names)} agents: one node each")
        wrong = [
            f"{what}: {', '.join(found[:5])}" + (f" and {len(found) - 5} more" if len(found) > 5 else "")
            for what, found in (
                ("nodes without data", [n for n in self.names if n not in number]),
                ("agents that are no node", [n for n in names if n not in set(self.names)]),
            )
            if found
        ]
        raise FedpointError("network: its names do not match the problem's: " + "; ".join(wrong))

    def metropolis(self) -> Network:
        """The same edges with weights 1/(1 + max(n_i, n_j)), n_i the number of neighbours: for diffusion.

        A node's own weight is then 1 - sum_j A_ij > 0; rows and columns sum to one.
        """
        counts = np.diff(self.arcs.first)
        most = np.maximum(counts[self.edges[:, 0]], counts[self.edges[:, 1]])
        return Network(self.edges, 1.0 / (1.0 + most), self.names)

    def __repr__(self) -> str:
        pieces = "" if self.connected else f", {int(self.components.max(initial=-1)) + 1} components"
        return f"<Network: {self.nodes} nodes, {len(self.edges)} edges{pieces}>"


def _once(ends: np.ndarray, weights: np.ndarray, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Edges that may come in both directions, each once."""
    weights = np.asarray(weights, dtype=float)
    pair = np.sort(ends, axis=1)
    forward = ends[:, 0] <= ends[:, 1]
    key = {}
    keep = np.ones(len(ends), bool)
    for n, (i, j) in enumerate(pair):
        before = key.get((i, j))
        if before is None:
            key[(i, j)] = n
        elif forward[before] != forward[n] and i != j:  # the same edge, told from its other end
            if abs(weights[before] - weights[n]) > 1e-12 * abs(weights[before]):
                raise FedpointError(
                    f"network: the weights between {names[i]} and {names[j]} differ by direction "
                    f"({weights[before]:g} and {weights[n]:g}): a network is undirected"
                )
            keep[n] = False
    return ends[keep], weights[keep]
