"""Who hears whom, where that is not mutual? A network whose edges go one way."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.graphs.network import Arcs, Network

if TYPE_CHECKING:
    import scipy.sparse as sparse

DENSE = 2000  # nodes up to which all eigenvalues are computed


class DirectedNetwork(Network):
    """A network in which an edge (i, j) lets j hear i: see `Network.directed`."""

    one_way = True

    @staticmethod
    def _pairs(edges: np.ndarray) -> np.ndarray:
        return edges

    @cached_property
    def arcs(self) -> Arcs:
        says, hears = self.edges.T
        order = np.lexsort((says, hears))
        first = np.concatenate([[0], np.cumsum(np.bincount(hears, minlength=self.nodes))]).astype(np.int32)
        return Arcs(hears[order].astype(np.int32), says[order].astype(np.int32), self.weights[order], first)

    @cached_property
    def links(self) -> np.ndarray:
        """The number of each arc's edge."""
        says, hears = self.edges.T
        return np.lexsort((says, hears)).astype(np.int32)

    @cached_property
    def degrees(self) -> np.ndarray:
        """(K,): sum_i A_ij, what a node gives away."""
        return np.bincount(self.arcs.says, self.arcs.weight, minlength=self.nodes).astype(float)

    @cached_property
    def laplacian(self) -> sparse.csr_matrix:
        raise FedpointError(
            "a directed network has no Laplacian: give the edges as Network(edges) if they go both ways"
        )

    @cached_property
    def components(self) -> np.ndarray:
        """(K,): the number of each node's strongly connected component."""
        from scipy.sparse.csgraph import connected_components

        return connected_components(self.adjacency, directed=True, connection="strong")[1]

    @cached_property
    def isolated(self) -> list[str]:
        """Nodes without any edge."""
        return [self.names[i] for i in np.setdiff1d(np.arange(self.nodes), self.edges)]

    def mixing(self, kind: str = "metropolis", lazy: bool = False) -> Network:
        """The same edges with weights by which nodes divide what they have: every node keeps as much as each of those
        who hear it is given, 1/(1 + how many they are); lazy: half of the rest is kept too."""
        if kind != "metropolis":
            raise FedpointError(f"network: mixing({kind!r}) is for networks whose edges go both ways: use mixing()")
        heard_by = np.bincount(self.edges[:, 0], minlength=self.nodes)
        weights = (0.5 if lazy else 1.0) / (1.0 + heard_by[self.edges[:, 0]])
        net = type(self)(self.edges, weights, self.names)
        net.positions = self.positions
        return net

    @cached_property
    def spectral_gap(self) -> float:
        """1 - |lambda_2| of W, whose columns say how nodes divide what they have; 0: they do not come to agree."""
        if not self.connected or self.nodes > DENSE:
            return 0.0 if not self.connected else float("nan")
        from scipy.sparse import diags

        W = (self.adjacency + diags(1.0 - self.degrees)).toarray()
        return float(1.0 - np.sort(np.abs(np.linalg.eigvals(W)))[-2]) if self.nodes > 1 else 1.0

    def caution(self) -> str:
        """What a user should know before a run; empty where everybody hears of everybody."""
        return "" if self.connected else f"the network is not strongly connected: {self._pieces()}"

    def describe(self) -> str:
        """A few lines: nodes, edges, components."""
        whole = "strongly connected" if self.connected else f"not strongly connected: {self._pieces()}"
        return f"{self.nodes} nodes, {len(self.edges)} edges that go one way\n{whole}"
