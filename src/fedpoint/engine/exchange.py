"""Who says what to whom, where models only fit and predict? Predictions on shared points."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.graphs.network import Network
from fedpoint.problems.any_model import AnyModel


class Exchange:
    """Who says what to whom: predictions of all nodes in one flat array, each node's one after the other.

    With one set of shared points a node predicts all of them; with sets by edge, those of its edges, in the order of
    the arcs by which it hears. So a node hears as many labels as it has points, either way. On an arc's points its
    speaker's predictions begin at `start`, its hearer's at `place`, and there are `sizes` of them.
    """

    def __init__(self, problem: AnyModel, network: Network, coupling: float):
        self.problem, self.network, self.coupling = problem, network, coupling
        arcs, K = network.arcs, network.nodes
        self.common, self.says = problem.points is not None, arcs.says
        if problem.points is not None:
            self.sizes = np.full(len(arcs.says), len(problem.points))
            self.first = np.arange(K + 1) * len(problem.points)
            self.start, self.place = self.first[arcs.says], self.first[arcs.hears]
            self.points = [problem.points] * K
        else:
            sets = self._sets()
            self.sizes = np.array([len(s) for s in sets], dtype=int)
            ends = np.concatenate([[0], np.cumsum(self.sizes)])
            self.first = ends[arcs.first]
            number = {(int(i), int(j)): a for a, (i, j) in enumerate(zip(arcs.hears, arcs.says, strict=True))}
            back = [number[int(j), int(i)] for i, j in zip(arcs.hears, arcs.says, strict=True)]
            self.start, self.place = ends[np.array(back, dtype=int)], ends[:-1]
            none = np.zeros((0, problem.columns))
            self.points = [np.concatenate([none, *sets[a:b]]) for a, b in zip(arcs.first, arcs.first[1:], strict=False)]
        classes = () if problem.classes is None else (len(problem.classes),)
        self.shape = (int(self.first[-1]), *classes)
        self.width = math.prod(classes)  # numbers for each point
        self.neighbours = np.diff(arcs.first)
        self.numbers = self.width * np.bincount(arcs.says, self.sizes, minlength=K).astype(np.int64)

    def _sets(self) -> list[np.ndarray]:
        """The points of each arc's edge."""
        edges = {(int(i), int(j)) for i, j in self.network.edges}
        names = self.problem.names
        for i, j in sorted(set(self.problem.edge_points) - edges):
            raise FedpointError(f"there are shared points for {names[i]} and {names[j]}, which are not neighbours")
        for i, j in sorted(edges - set(self.problem.edge_points)):
            raise FedpointError(f"the edge between {names[i]} and {names[j]} has no shared points")
        pairs = zip(self.network.arcs.hears, self.network.arcs.says, strict=True)
        return [self.problem.edge_points[min(i, j), max(i, j)] for i, j in ((int(i), int(j)) for i, j in pairs)]

    def own(self, i: int) -> slice:
        """Node i's place in the flat array."""
        return slice(int(self.first[i]), int(self.first[i + 1]))

    def arcs_of(self, i: int) -> range:
        return range(int(self.network.arcs.first[i]), int(self.network.arcs.first[i + 1]))

    def labels(self, i: int, known: Sequence[np.ndarray]) -> np.ndarray:
        """What node i's points are labelled with: the neighbours' weighted mean sum_j A_ij h_j(x)/d_i on common points,
        on an edge's points what the neighbour says. `known`: for each of its arcs, all that the neighbour has said."""
        arcs = self.arcs_of(i)
        begin = self.start[arcs] - self.first[self.says[arcs]]
        heard = [said[b : b + size] for said, b, size in zip(known, begin, self.sizes[arcs], strict=True)]
        if not self.common:
            return np.concatenate([np.zeros((0, *self.shape[1:])), *heard])
        weight = self.network.arcs.weight[self.arcs_of(i)]
        return np.tensordot(weight / weight.sum(), np.stack(heard), 1)

    def weights(self, i: int) -> np.ndarray:
        """The weights of node i's points where an own row weighs 1: alpha d_i m_i/m', or alpha A_ij m_i/m'_ij."""
        arcs = self.arcs_of(i)
        scale = self.coupling * len(self.problem.y[i])
        if self.common:
            size = len(self.points[i])
            return np.full(size, scale * self.network.degrees[i] / size)
        sizes = self.sizes[arcs]
        return scale * np.repeat(self.network.arcs.weight[arcs] / sizes, sizes)

    def variation(self, said: np.ndarray) -> np.ndarray:
        """sum over edges of A_ij (1/m') sum_x |h_i(x) - h_j(x)|^2, of (..., flat array)."""
        flat = said.reshape(-1, *self.shape)
        total = np.zeros(len(flat))
        arcs = self.network.arcs
        for a in np.flatnonzero(arcs.hears < arcs.says):
            n, here, there = self.sizes[a], self.place[a], self.start[a]
            gap = flat[:, here : here + n] - flat[:, there : there + n]
            total += arcs.weight[a] / n * (gap**2).reshape(len(flat), -1).sum(1)
        return total.reshape(said.shape[: said.ndim - len(self.shape)])

    def shaped(self, said: np.ndarray) -> np.ndarray:
        """(..., K, m') where all nodes predict the same points, else flat."""
        lead = said.shape[: said.ndim - len(self.shape)]
        return said.reshape(*lead, self.network.nodes, -1, *self.shape[1:]) if self.common else said
