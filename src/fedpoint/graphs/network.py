"""Who is a neighbour of whom, and how closely? An undirected graph with weights A_ij > 0 on its edges. Lecture 003."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.arrays import array_of, numbers, told_apart
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import Count, Positive, Probability, Seed, Whole, shown
from fedpoint.core.memory_limits import check_memory
from fedpoint.core.numbers import counted, there_are
from fedpoint.graphs import generators as graphs
from fedpoint.graphs import mixing
from fedpoint.graphs.edges import (
    NAMED,
    Edges,
    Names,
    as_weights,
    is_graph,
    listed,
    numbered,
    of_graph,
    once,
    pairs_of,
    points_of,
)

if TYPE_CHECKING:  # a graph needs no JAX, and what has no graph no SciPy
    import scipy.sparse as sparse
    from matplotlib.figure import Figure
    from networkx import Graph

    from fedpoint.core.types import Model
    from fedpoint.problems.base import Problem


class Arcs(NamedTuple):
    """Every edge in both directions, ordered by who hears: arcs `first[i]` to `first[i + 1]` are heard by node i."""

    hears: np.ndarray  # (2E,)
    says: np.ndarray  # (2E,)
    weight: np.ndarray  # (2E,)
    first: np.ndarray  # (K + 1,)


@checked
class Network:
    """A graph of agents, undirected, with weighted edges.

    Args:
        edges: (E, 2) pairs of node numbers, or of names where `names` is left out, each edge once; or a networkx graph.
        weights: (E,) A_ij, above zero; default: each edge weighs 1.
        names: of the nodes; default: those that the edges name, else their numbers.

    Attributes:
        positions: (K, 2) where nodes lie in a picture; None: they have no place.

    Arguments of methods:
        nodes: how many there are.
        edges: pairs of nodes.
        weight: of every edge.
        weights: one for each edge; default: 1.
        names: of the nodes; default: their numbers.
        seed: of what is drawn.
        problem: what agents hold.
        coupling: what the total variation counts in the objective.

    >>> net = Network([(0, 1), (1, 2)], weights=[1.0, 2.0])
    >>> net.nodes, net.connected, net.degrees
    (3, True, array([1., 3., 2.]))
    """

    one_way = False  # edges are heard in one direction only
    positions: np.ndarray | None = None  # (K, 2): where nodes lie in a picture, if they lie somewhere

    def __init__(self, edges: Edges, weights: ArrayLike | None = None, names: Names | None = None):
        if is_graph(edges):
            if weights is not None or names is not None:
                raise FedpointError("network: a networkx graph has weights and names: leave out weights= and names=")
            edges, weights, names = of_graph(edges, "weight")
        elif names is None:
            edges, names = numbered(edges, None, None)
        self.names = [str(name) for name in names]
        self.edges = pairs_of(edges)
        self.weights = as_weights(np.ones(len(self.edges)) if weights is None else weights)
        self._check()

    def _check(self) -> None:
        wrong = []
        if len(set(self.names)) != len(self.names):
            seen: set[str] = set()
            twice = next(n for n in self.names if n in seen or seen.add(n))  # type: ignore[func-returns-value]
            wrong.append(f"two nodes are called {twice}")
        if self.weights.shape != (len(self.edges),):
            raise FedpointError(
                f"network: {counted(self.weights.size, 'weight')} for {counted(len(self.edges), 'edge')}"
            )
        outside = (self.edges < 0) | (self.edges >= self.nodes)
        if outside.any():
            i, j = self.edges[outside.any(1)][0]
            raise FedpointError(
                f"network: edge ({i}, {j}) names a node that does not exist; nodes are 0 to {self.nodes - 1}"
            )
        loops = self.edges[:, 0] == self.edges[:, 1]
        wrong += [f"node {self._name(i)} has an edge to itself" for i in self.edges[loops, 0]]
        bad = ~(np.isfinite(self.weights) & (self.weights > 0))
        for (i, j), w in zip(self.edges[bad], self.weights[bad], strict=True):
            wrong.append(f"the weight between {self._name(i)} and {self._name(j)} is {w:g}: it must be above 0")
        pair = self._pairs(self.edges)
        unique, times = np.unique(pair, axis=0, return_counts=True)
        for i, j in unique[(times > 1) & (unique[:, 0] != unique[:, 1])]:
            wrong.append(f"the edge between {self._name(i)} and {self._name(j)} occurs more than once")
        if wrong:
            more = f" (and {len(wrong) - 5} more)" if len(wrong) > 5 else ""
            raise FedpointError("network: " + "; ".join(wrong[:5]) + more)
        order = np.lexsort((pair[:, 1], pair[:, 0]))
        self.edges, self.weights = pair[order], self.weights[order]

    @staticmethod
    def _pairs(edges: np.ndarray) -> np.ndarray:
        """Edges as they are told apart: here without a direction."""
        return np.sort(edges, axis=1)

    def _name(self, i: int | np.integer) -> str:
        return self.names[int(i)]

    @classmethod
    def from_edges(
        cls, edges: Edges, weights: ArrayLike | None = None, nodes: Whole | None = None, names: Names | None = None
    ) -> Network:
        """From pairs of nodes. An edge may be given in both directions, with the same weight.

        Args:
            edges: pairs of numbers or names.
            nodes: how many there are, where the last ones have no edge.
        """
        ends, names = numbered(edges, nodes, names)
        weights = numbers("network: weights", 1.0 if weights is None else weights)
        if weights.shape not in ((), (len(ends),)):
            raise FedpointError(
                f"network: {counted(weights.size, 'weight')} for {counted(len(ends), 'edge')}: give one each, or one "
                "for all"
            )
        weights = np.broadcast_to(weights, len(ends))
        return cls(*once(ends, weights, [str(n) for n in names]), names)

    @classmethod
    def directed(
        cls, edges: Edges, weights: ArrayLike | None = None, nodes: Whole | None = None, names: Names | None = None
    ) -> Network:
        """From pairs (i, j): j hears i, and i need not hear j. For `PushSum`, with `mixing()`.

        Args:
            edges: pairs (i, j): j hears i.
        """
        from fedpoint.graphs.directed import DirectedNetwork  # which is one of these

        ends, names = numbered(edges, nodes, names)
        weights = numbers("network: weights", 1.0 if weights is None else weights)
        if weights.shape not in ((), (len(ends),)):
            raise FedpointError(f"network: {counted(weights.size, 'weight')} for {counted(len(ends), 'edge')}")
        return DirectedNetwork(ends, np.broadcast_to(weights, len(ends)), [str(n) for n in names])

    @classmethod
    def from_matrix(cls, A: ArrayLike | sparse.spmatrix, names: Names | None = None) -> Network:
        """From a symmetric matrix of weights (dense or sparse), zero where there is no edge.

        Args:
            A: (K, K).
        """
        import scipy.sparse as sparse

        given = A if sparse.issparse(A) else numbers("network: the matrix of weights", A)
        if len(np.shape(given)) != 2 or np.shape(given)[0] != np.shape(given)[1]:
            raise FedpointError(f"network: the matrix of weights has shape {np.shape(given)}: it must be square")
        A = sparse.coo_matrix(given)
        names = range(A.shape[0]) if names is None else names
        if len(names) != A.shape[0]:
            raise FedpointError(f"network: {counted(len(names), 'name')} for {counted(A.shape[0], 'node')}")
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
        return cls(*once(pairs, A.data[some], [str(n) for n in names]), names)

    @classmethod
    def from_networkx(cls, graph: Graph, weight: str = "weight") -> Network:
        """From a networkx graph; edges without the attribute `weight` weigh 1. Nodes keep their order and names.

        Args:
            graph: the graph.
            weight: the attribute that is an edge's weight.
        """
        if not is_graph(graph):
            raise FedpointError(f"network: graph must be a graph of networkx; got {shown(graph)}")
        return cls(*of_graph(graph, weight))

    @classmethod
    def star(cls, nodes: Count, weight: Positive = 1.0) -> Network:
        """Node 0 in the middle, an edge to each of the others."""
        return cls([(0, j) for j in range(1, nodes)], np.full(max(nodes - 1, 0), weight), range(nodes))

    @classmethod
    def complete(cls, nodes: Count, weight: Positive = 1.0) -> Network:
        """Everyone is everyone's neighbour."""
        check_memory(nodes**2, "a complete network of so many nodes", "take one with fewer edges")
        ends = np.stack(np.triu_indices(nodes, 1), axis=1)
        return cls(ends, np.full(len(ends), weight), range(nodes))

    @classmethod
    def ring(cls, nodes: Count, weight: Positive = 1.0) -> Network:
        """A circle; two nodes are joined by one edge."""
        ends = [(i, (i + 1) % nodes) for i in range(nodes if nodes > 2 else max(nodes - 1, 0))]
        return cls(ends, np.full(len(ends), weight), range(nodes))

    @classmethod
    def grid(cls, rows: Count, columns: Count, weight: Positive = 1.0) -> Network:
        """A rectangle: neighbours above, below, left and right. Nodes are numbered row after row.

        Args:
            rows: how many.
            columns: how many.
        """
        number = np.arange(rows * columns).reshape(rows, columns)
        across = np.stack([number[:, :-1].ravel(), number[:, 1:].ravel()], axis=1)
        down = np.stack([number[:-1].ravel(), number[1:].ravel()], axis=1)
        ends = np.concatenate([across, down])
        net = cls(ends, np.full(len(ends), weight), range(rows * columns))
        net.positions = np.stack([number.ravel() % columns, -(number.ravel() // columns)], axis=1).astype(float)
        return net

    @classmethod
    def random(cls, nodes: Count, degree: Whole, weight: Positive = 1.0, seed: Seed = 0) -> Network:
        """Everyone has about `degree` neighbours, at random; connected from degree 2 on.

        Random circles through all nodes, laid over each other: two of them may share an edge.

        Args:
            degree: how many neighbours each node has, about.
        """
        ends = graphs.ring_like(np.arange(nodes), degree, np.random.default_rng(seed))
        return cls(ends, np.full(len(ends), weight), range(nodes))

    @classmethod
    def clusters(
        cls,
        labels: ArrayLike,
        inside: Probability = 1.0,
        between: Probability = 0.0,
        degree: Whole | None = None,
        seed: Seed = 0,
    ) -> Network:
        """Nodes with the same label are joined, one label a node. Edges weigh 1.

        Args:
            labels: (K,) numbers or words.
            inside: the probability of an edge between nodes of one label; 1 joins all of them.
            between: the probability of an edge between nodes of different labels.
            degree: instead of `inside`: about so many random neighbours of the same label, as in `random`.
        """
        labels = array_of("network: labels", labels)
        if labels.ndim != 1 or len(labels) == 0:
            raise FedpointError(f"network: labels have shape {labels.shape}: give one label a node")
        rng, group = np.random.default_rng(seed), told_apart("network: labels", labels)[1]
        if degree is None:
            own = graphs.chosen_pairs(group, True, inside, rng)
        else:
            parts = [np.flatnonzero(group == label) for label in range(int(group.max()) + 1)]
            own = np.concatenate([graphs.ring_like(part, degree, rng) for part in parts])
        ends = np.concatenate([own, graphs.chosen_pairs(group, False, between, rng)])
        return cls(ends, np.ones(len(ends)), range(len(labels)))

    @classmethod
    def knn(cls, points: ArrayLike, k: Count, names: Names | None = None, weight: str = "equal") -> Network:
        """Nodes are joined when one is among the k nearest of the other.

        Args:
            points: (K, n): coordinates, or local statistics of the agents' data (scale them yourself).
            weight: "equal" (1), or "gaussian": exp(-d^2 / (2 s^2)), s the median distance of neighbours.
            k: how many neighbours.
        """
        points = points_of(points)
        names = range(len(points)) if names is None else names
        if len(names) != len(points):
            raise FedpointError(f"network: {counted(len(names), 'name')} for {counted(len(points), 'node')}")
        if k >= len(points):
            raise FedpointError(
                f"network: k = {counted(k, 'neighbour')}, but {there_are(len(points), 'node')}: take k below that"
            )
        ends, distances = graphs.nearest_pairs(points, k)
        net = cls(ends, graphs.weights_of(distances, weight), names)
        net.positions = points if points.shape[1] == 2 else None
        return net

    @classmethod
    def similarity(
        cls, problem: Problem, k: Count = 5, by: str = "gradients", weight: str = "equal", at: Model = None
    ) -> Network:
        """Graph learning: agents are joined to the k whose data look most like their own. Nodes have the agents' names.

        Args:
            by: what is compared: "gradients" at a common model, "statistics" (means of x, y and x y' over an agent's
                rows, each scaled to the same noise), or "models" (each agent's own solution).
            at: the common model of "gradients"; default: the pooled solution, or where a run starts if that is unknown.
            k: how many neighbours.
            weight: "equal" or "gaussian", as in `knn`.
        """
        net = cls.knn(graphs.features_of(problem, by, at), k, problem.names, weight)
        net.positions = None  # features are no places
        return net

    # What it is

    @property
    def nodes(self) -> int:
        return len(self.names)

    @cached_property
    def adjacency(self) -> sparse.csr_matrix:
        """(K, K), sparse: A_ij."""
        arcs = self.arcs
        from scipy.sparse import csr_matrix

        return csr_matrix((arcs.weight, arcs.says, arcs.first), shape=(self.nodes, self.nodes))

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
    def links(self) -> np.ndarray:
        """The number of each arc's edge."""
        pairs = np.sort(np.stack([self.arcs.hears, self.arcs.says], axis=1), axis=1)
        return np.unique(pairs, axis=0, return_inverse=True)[1].ravel().astype(np.int32)

    @cached_property
    def degrees(self) -> np.ndarray:
        """(K,): sum_j A_ij."""
        return np.bincount(self.arcs.hears, self.arcs.weight, minlength=self.nodes).astype(float)

    @cached_property
    def laplacian(self) -> sparse.csr_matrix:
        """(K, K), sparse: diag(degrees) - A."""
        from scipy.sparse import diags

        return (diags(self.degrees) - self.adjacency).tocsr()

    @cached_property
    def components(self) -> np.ndarray:
        """(K,): the number of each node's connected component."""
        from scipy.sparse.csgraph import connected_components

        return connected_components(self.adjacency, directed=False)[1]

    @property
    def connected(self) -> bool:
        return self.nodes > 0 and int(self.components.max()) == 0

    @cached_property
    def isolated(self) -> list[str]:
        """Nodes without any edge."""
        return [self.names[i] for i in np.flatnonzero(self.degrees == 0)]

    def component_names(self) -> list[list[str]]:
        """The nodes of each connected component, largest first."""
        order = np.argsort(self.components, kind="stable")
        cuts = np.cumsum(np.bincount(self.components))[:-1]
        found = [[self.names[i] for i in part] for part in np.split(order, cuts)] if self.nodes else []
        return sorted(found, key=len, reverse=True)

    def eigenvalues(self, count: Count = 6) -> np.ndarray:
        """The smallest eigenvalues of the Laplacian, ascending: one 0 for every component, then the slow modes.

        Args:
            count: how many.
        """
        found = []
        for label in range(int(self.components.max(initial=-1)) + 1):
            inside = np.flatnonzero(self.components == label)
            whole = len(inside) == self.nodes
            found.append(
                graphs.smallest_eigenvalues(self.laplacian if whole else self.laplacian[inside][:, inside], count)
            )
        return np.sort(np.concatenate([*found, np.empty(0)]))[:count]

    @cached_property
    def connectivity(self) -> float:
        """Algebraic connectivity: the second smallest eigenvalue of the Laplacian; 0 when it is not connected."""
        return float(self.eigenvalues(2)[1]) if self.connected and self.nodes > 1 else 0.0

    def describe(self) -> str:
        """A few lines: nodes, edges, degrees, components, algebraic connectivity."""
        counts = np.diff(self.arcs.first)
        size, mean = (
            f"{counted(self.nodes, 'node')}, {counted(len(self.edges), 'edge')}",
            counts.mean() if self.nodes else 0,
        )
        lines = [f"{size}, {mean:.3g} neighbours a node"]
        if len(self.edges):
            lines[0] += f" ({counts.min()} to {counts.max()})"
            low, high = self.weights.min(), self.weights.max()
            lines.append(f"weights {low:g}" if low == high else f"weights {low:.3g} to {high:.3g}")
        if self.isolated:
            lines.append(f"without any edge: {listed(self.isolated)}")
        if self.connected:
            lines.append(f"connected; algebraic connectivity {self.connectivity:.4g}")
        else:
            lines.append(f"not connected: {self._pieces()}")
        return "\n".join(lines)

    def _pieces(self) -> str:
        """How many components there are, and who is in them."""
        parts = self.component_names()
        shown = "; ".join(listed(part) for part in parts[:NAMED] if len(part) > 1 or len(parts) <= NAMED)
        more = f"; and {len(parts) - NAMED} more" if len(parts) > NAMED else ""
        return f"{len(parts)} components: {shown}{more}"

    def require_connected(self) -> None:
        """Refuse a network of several components, saying which."""
        if not self.connected:
            raise FedpointError(f"the network is not connected: {self._pieces()}")

    def caution(self) -> str:
        """What a user should know before a run: components that never hear of each other; empty where there is one."""
        if self.connected:
            return ""
        return f"the network is not connected, and its parts learn separately: {self._pieces()}"

    def total_variation(self, models: Model) -> float:
        """sum over edges of A_ij |w_i - w_j|^2, models (K, ...).

        Args:
            models: of all nodes: arrays (K, ...).
        """
        flat = numbers("models", models)
        if flat.shape[:1] != (self.nodes,):
            raise FedpointError(
                f"models have shape {flat.shape}: give one for each of the {counted(self.nodes, 'node')}"
            )
        flat = flat.reshape(self.nodes, -1)
        gaps = flat[self.edges[:, 0]] - flat[self.edges[:, 1]]
        return float(self.weights @ (gaps**2).sum(1))

    def variations(self, leaves: Iterable[np.ndarray]) -> np.ndarray:
        """(repeats, n): the same of recorded models, whose arrays lead with (repeats, n, K).

        Args:
            leaves: the arrays of the models.
        """
        i, j = self.edges.T
        gaps = [((a[:, :, i] - a[:, :, j]) ** 2).sum(axis=tuple(range(3, a.ndim))) for a in leaves]
        return np.asarray(sum(gap @ self.weights for gap in gaps))

    def aligned(self, names: Names) -> Network:
        """The same graph with its nodes in the order of `names`, which are the agents' names in a problem.

        A network whose names are only numbers 0 to K-1 goes by position.

        Args:
            names: of the agents, in the problem's order.
        """
        agents = [str(name) for name in names]
        if agents == self.names:
            return self
        number = {name: i for i, name in enumerate(agents)}
        if set(number) == set(self.names) and len(agents) == self.nodes:
            place = np.array([number[name] for name in self.names], dtype=np.int64)
            return self._renamed(agents, place)
        if self.names == [str(i) for i in range(self.nodes)]:
            if len(agents) == self.nodes:
                return self._renamed(agents, np.arange(self.nodes))
            raise FedpointError(
                f"network: {counted(self.nodes, 'node')}, but the problem has {counted(len(agents), 'agent')}: one "
                "node each"
            )
        wrong = [
            f"{what}: {', '.join(found[:5])}" + (f" and {len(found) - 5} more" if len(found) > 5 else "")
            for what, found in (
                ("nodes without data", [n for n in self.names if n not in number]),
                ("agents that are no node", [n for n in agents if n not in set(self.names)]),
            )
            if found
        ]
        raise FedpointError("network: its names do not match the problem's: " + "; ".join(wrong))

    def _renamed(self, names: list[str], place: np.ndarray) -> Network:
        net = type(self)(place[self.edges], self.weights, names)
        if self.positions is not None:
            net.positions = np.empty_like(self.positions)
            net.positions[place] = self.positions
        return net

    def mixing(self, kind: str = "metropolis", lazy: bool = False) -> Network:
        """The same edges with weights by which nodes average: they sum to at most one at every node, which keeps what
        is left for itself. For `Diffusion` and its kin, and for `FedAvg` on a network.

        Args:
            kind: "metropolis": 1/(1 + max(n_i, n_j)), n_i the number of neighbours. "laplacian": one factor on the
                weights as they are, the one that mixes fastest. "fastest": the weights with the largest spectral gap,
                by semidefinite programming (cvxpy).
            lazy: halve them, so that no eigenvalue of the mixing matrix is negative.

        >>> round(Network.ring(4).mixing().spectral_gap, 6)     # eigenvalues 1, 1/3, 1/3, -1/3
        0.666667
        """
        weights = mixing.weights(self, kind) * (0.5 if lazy else 1.0)
        net = Network(self.edges, weights, self.names)
        net.positions = self.positions
        return net

    @cached_property
    def spectral_gap(self) -> float:
        """1 - max(|lambda_2|, |lambda_K|) of W = I - Laplacian, the matrix by which nodes average; 0 or less: they do
        not come to agree."""
        if not self.connected:
            return 0.0
        return 1.0 - max(abs(1.0 - self.connectivity), abs(1.0 - mixing.extreme(self))) if self.nodes > 1 else 1.0

    def minimum(self, problem: Problem, coupling: float) -> Model:
        """The models of all nodes that minimise sum_i L_i(w_i) + coupling sum over edges of A_ij |w_i - w_j|^2."""
        from fedpoint.graphs import gtv  # which solves on networks: it imports this module

        return gtv.solve(problem, self, coupling)

    def step_limit(self, problem: Problem, coupling: float) -> float:
        """The step below which FedGD settles on that objective."""
        from fedpoint.graphs.gtv.curvature import step_limit

        return step_limit(problem, self, coupling)

    def plot(
        self,
        path: str | Path | None = None,
        color: ArrayLike | None = None,
        label: str = "",
        positions: ArrayLike | None = None,
        title: str | None = None,
    ) -> Figure:
        """A picture: coloured nodes, and edges as thick as their weights. Returns the matplotlib figure.

        Args:
            path: where to save it; png, svg or pdf by the ending.
            color: (K,) numbers (a parameter, an error) or words (clusters).
            label: what the colours are, beside the colour bar.
            positions: (K, 2); default: the network's own, or a spring layout, the same every time.
            title: above it.
        """
        from fedpoint.show.network import picture

        return picture(self, path, color, label, positions, title)

    def __repr__(self) -> str:
        pieces = "" if self.connected else f", {counted(int(self.components.max(initial=-1)) + 1, 'component')}"
        return f"<Network: {counted(self.nodes, 'node')}, {counted(len(self.edges), 'edge')}{pieces}>"


def as_network(given: Network | Graph) -> Network:
    """A network, as it is or from a networkx graph."""
    if isinstance(given, Network):
        return given
    if not is_graph(given):
        raise FedpointError(f"network must be an fp.Network or a networkx graph; got {shown(given)}")
    return Network.from_networkx(given)
