"""Who is a neighbour of whom, and how closely? An undirected graph with weights A_ij > 0 on its edges. Lecture 003."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sparse
from numpy.typing import ArrayLike
from scipy.sparse.csgraph import connected_components

from fedpoint.core.errors import FedpointError
from fedpoint.core.memory_limits import check_memory
from fedpoint.graphs import generators as graphs

if TYPE_CHECKING:  # a graph needs no JAX
    from matplotlib.figure import Figure
    from networkx import Graph

    from fedpoint.core.types import Model
    from fedpoint.problems.base import Problem

Names: TypeAlias = Sequence[Hashable]
Edges: TypeAlias = np.ndarray | Iterable[Sequence[Hashable]]  # pairs of nodes, by number or name
NAMED = 8  # nodes, components or mistakes that a message spells out


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

    positions: np.ndarray | None = None  # (K, 2): where nodes lie in a picture, if they lie somewhere

    def __init__(self, edges: Edges, weights: ArrayLike, names: Names):
        self.names = [str(name) for name in names]
        self.edges = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
        self.weights = _as_weights(weights)
        self._check()

    def _check(self) -> None:
        wrong = []
        if len(set(self.names)) != len(self.names):
            seen: set[str] = set()
            twice = next(n for n in self.names if n in seen or seen.add(n))  # type: ignore[func-returns-value]
            wrong.append(f"two nodes are called {twice}")
        if self.weights.shape != (len(self.edges),):
            raise FedpointError(f"network: {self.weights.size} weights for {len(self.edges)} edges")
        outside = (self.edges < 0) | (self.edges >= self.nodes)
        if outside.any():
            i, j = self.edges[outside.any(1)][0]
            raise FedpointError(
                f"network: edge ({i}, {j}) names a node that is not there; nodes are 0 to {self.nodes - 1}"
            )
        loops = self.edges[:, 0] == self.edges[:, 1]
        wrong += [f"node {self._name(i)} has an edge to itself" for i in self.edges[loops, 0]]
        bad = ~(np.isfinite(self.weights) & (self.weights > 0))
        for (i, j), w in zip(self.edges[bad], self.weights[bad], strict=True):
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

    def _name(self, i: int | np.integer) -> str:
        return self.names[int(i)]

    @classmethod
    def from_edges(
        cls, edges: Edges, weights: ArrayLike | None = None, nodes: int | None = None, names: Names | None = None
    ) -> Network:
        """From pairs of nodes: numbers, or names. `weights` default to 1; `nodes` is how many there are, where the last
        ones may have no edge. An edge may be given in both directions, with the same weight."""
        ends, names = _numbered(edges, nodes, names)
        try:
            weights = np.asarray(1.0 if weights is None else weights, dtype=float)
        except (TypeError, ValueError):
            raise FedpointError("network: weights must be numbers: one for each edge, or one for all") from None
        if weights.shape not in ((), (len(ends),)):
            raise FedpointError(f"network: {weights.size} weights for {len(ends)} edges: give one each, or one for all")
        weights = np.broadcast_to(weights, len(ends))
        return cls(*_once(ends, weights, [str(n) for n in names]), names)

    @classmethod
    def from_matrix(cls, A: ArrayLike | sparse.spmatrix, names: Names | None = None) -> Network:
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
    def from_networkx(cls, graph: Graph, weight: str = "weight") -> Network:
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
        _count("nodes", nodes)
        return cls([(0, j) for j in range(1, nodes)], np.full(max(nodes - 1, 0), weight), range(nodes))

    @classmethod
    def complete(cls, nodes: int, weight: float = 1.0) -> Network:
        """Everyone is everyone's neighbour."""
        _count("nodes", nodes)
        check_memory(nodes**2, "a complete network of so many nodes", "take one with fewer edges")
        ends = np.stack(np.triu_indices(nodes, 1), axis=1)
        return cls(ends, np.full(len(ends), weight), range(nodes))

    @classmethod
    def ring(cls, nodes: int, weight: float = 1.0) -> Network:
        """A circle; two nodes are joined by one edge."""
        _count("nodes", nodes)
        ends = [(i, (i + 1) % nodes) for i in range(nodes if nodes > 2 else max(nodes - 1, 0))]
        return cls(ends, np.full(len(ends), weight), range(nodes))

    @classmethod
    def grid(cls, rows: int, columns: int, weight: float = 1.0) -> Network:
        """A rectangle: neighbours above, below, left and right. Nodes are numbered row after row."""
        _count("rows", rows)
        _count("columns", columns)
        number = np.arange(rows * columns).reshape(rows, columns)
        across = np.stack([number[:, :-1].ravel(), number[:, 1:].ravel()], axis=1)
        down = np.stack([number[:-1].ravel(), number[1:].ravel()], axis=1)
        ends = np.concatenate([across, down])
        net = cls(ends, np.full(len(ends), weight), range(rows * columns))
        net.positions = np.stack([number.ravel() % columns, -(number.ravel() // columns)], axis=1).astype(float)
        return net

    @classmethod
    def random(cls, nodes: int, degree: int, weight: float = 1.0, seed: int = 0) -> Network:
        """Everyone has about `degree` neighbours, at random; connected from degree 2 on.

        Random circles through all nodes, laid over each other: two of them may share an edge.
        """
        _count("nodes", nodes)
        _count("degree", degree, 0)
        ends = graphs.ring_like(np.arange(nodes), degree, np.random.default_rng(seed))
        return cls(ends, np.full(len(ends), weight), range(nodes))

    @classmethod
    def clusters(
        cls, labels: ArrayLike, inside: float = 1.0, between: float = 0.0, degree: int | None = None, seed: int = 0
    ) -> Network:
        """Nodes with the same label are joined, one label a node. Edges weigh 1.

        Args:
            labels: (K,) numbers or words.
            inside: the probability of an edge between nodes of one label; 1 joins all of them.
            between: the probability of an edge between nodes of different labels.
            degree: instead of `inside`: about so many random neighbours of the same label, as in `random`.
        """
        labels = np.asarray(labels)
        if labels.ndim != 1 or len(labels) == 0:
            raise FedpointError(f"network: labels have shape {labels.shape}: give one label a node")
        for name, chance in (("inside", inside), ("between", between)):
            if not 0 <= chance <= 1:
                raise FedpointError(f"network: {name} is a probability, from 0 to 1; got {chance:g}")
        rng, group = np.random.default_rng(seed), np.unique(labels, return_inverse=True)[1].ravel()
        if degree is None:
            own = graphs.chosen_pairs(group, True, inside, rng)
        else:
            _count("degree", degree, 0)
            parts = [np.flatnonzero(group == label) for label in range(int(group.max()) + 1)]
            own = np.concatenate([graphs.ring_like(part, degree, rng) for part in parts])
        ends = np.concatenate([own, graphs.chosen_pairs(group, False, between, rng)])
        return cls(ends, np.ones(len(ends)), range(len(labels)))

    @classmethod
    def knn(cls, points: ArrayLike, k: int, names: Names | None = None, weight: str = "equal") -> Network:
        """Nodes are joined when one is among the k nearest of the other.

        Args:
            points: (K, n): coordinates, or local statistics of the agents' data (scale them yourself).
            weight: "equal" (1), or "gaussian": exp(-d^2 / (2 s^2)), s the median distance of neighbours.
        """
        points = _points(points)
        names = range(len(points)) if names is None else names
        if len(names) != len(points):
            raise FedpointError(f"network: {len(names)} names for {len(points)} nodes")
        _count("k", k)
        if k >= len(points):
            raise FedpointError(
                f"network: k = {k} neighbours, but there are only {len(points)} nodes: take k below that"
            )
        ends, distances = graphs.nearest_pairs(points, k)
        net = cls(ends, graphs.weights_of(distances, weight), names)
        net.positions = points if points.shape[1] == 2 else None
        return net

    @classmethod
    def similarity(
        cls, problem: Problem, k: int = 5, by: str = "gradients", weight: str = "equal", at: Model = None
    ) -> Network:
        """Graph learning: agents are joined to the k whose data look most like their own. Nodes have the agents' names.

        Args:
            by: what is compared: "gradients" at a common model, "statistics" (means of x, y and x y' over an agent's
                rows, each scaled to the same noise), or "models" (each agent's own solution).
            at: the common model of "gradients"; default: the pooled solution, or where a run starts if that is unknown.
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
        return np.bincount(self.arcs.hears, self.arcs.weight, minlength=self.nodes).astype(float)

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

    def component_names(self) -> list[list[str]]:
        """The nodes of each connected component, largest first."""
        order = np.argsort(self.components, kind="stable")
        cuts = np.cumsum(np.bincount(self.components))[:-1]
        found = [[self.names[i] for i in part] for part in np.split(order, cuts)] if self.nodes else []
        return sorted(found, key=len, reverse=True)

    def eigenvalues(self, count: int = 6) -> np.ndarray:
        """The smallest eigenvalues of the Laplacian, ascending: one 0 for every component, then the slow modes."""
        _count("count", count)
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
        lines = [
            f"{self.nodes} nodes, {len(self.edges)} edges, {counts.mean() if self.nodes else 0:.3g} neighbours a node"
        ]
        if len(self.edges):
            lines[0] += f" ({counts.min()} to {counts.max()})"
            low, high = self.weights.min(), self.weights.max()
            lines.append(f"weights {low:g}" if low == high else f"weights {low:.3g} to {high:.3g}")
        if self.isolated:
            lines.append(f"without any edge: {_list(self.isolated)}")
        if self.connected:
            lines.append(f"connected; algebraic connectivity {self.connectivity:.4g}")
        else:
            lines.append(f"not connected: {self._pieces()}")
        return "\n".join(lines)

    def _pieces(self) -> str:
        """How many components there are, and who is in them."""
        parts = self.component_names()
        shown = "; ".join(_list(part) for part in parts[:NAMED] if len(part) > 1 or len(parts) <= NAMED)
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
        return f"the network is not connected, and its parts learn apart: {self._pieces()}"

    def total_variation(self, models: Model) -> float:
        """sum over edges of A_ij |w_i - w_j|^2, models (K, ...)."""
        flat = np.asarray(models, dtype=float).reshape(self.nodes, -1)
        gaps = flat[self.edges[:, 0]] - flat[self.edges[:, 1]]
        return float(self.weights @ (gaps**2).sum(1))

    def variations(self, leaves: Iterable[np.ndarray]) -> np.ndarray:
        """(repeats, n): the same of recorded models, whose arrays lead with (repeats, n, K)."""
        i, j = self.edges.T
        gaps = [((a[:, :, i] - a[:, :, j]) ** 2).sum(axis=tuple(range(3, a.ndim))) for a in leaves]
        return np.asarray(sum(gap @ self.weights for gap in gaps))

    def aligned(self, names: Names) -> Network:
        """The same graph with its nodes in the order of `names`, which are the agents' names in a problem.

        A network whose names are only numbers 0 to K-1 goes by position.
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
            raise FedpointError(f"network: {self.nodes} nodes, but the problem has {len(agents)} agents: one node each")
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
        net = Network(place[self.edges], self.weights, names)
        if self.positions is not None:
            net.positions = np.empty_like(self.positions)
            net.positions[place] = self.positions
        return net

    def metropolis(self) -> Network:
        """The same edges with weights 1/(1 + max(n_i, n_j)), n_i the number of neighbours: for diffusion.

        A node's own weight is then 1 - sum_j A_ij > 0; rows and columns sum to one.
        """
        counts = np.diff(self.arcs.first)
        most = np.maximum(counts[self.edges[:, 0]], counts[self.edges[:, 1]])
        net = Network(self.edges, 1.0 / (1.0 + most), self.names)
        net.positions = self.positions
        return net

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
        """A picture: nodes coloured by `color`, (K,) numbers (a parameter, an error) or words (clusters); edges as
        thick as their weights. Returns the matplotlib figure.

        Args:
            path: where to save it; png, svg or pdf by the ending.
            label: what the colours are, beside the colour bar.
            positions: (K, 2); default: the network's own, or a spring layout, the same every time.
        """
        from fedpoint.show.network import picture

        return picture(self, path, color, label, positions, title)

    def __repr__(self) -> str:
        pieces = "" if self.connected else f", {int(self.components.max(initial=-1)) + 1} components"
        return f"<Network: {self.nodes} nodes, {len(self.edges)} edges{pieces}>"


def _numbered(edges: Edges, nodes: int | None, names: Names | None) -> tuple[np.ndarray, Names]:
    """Pairs of node numbers, and the nodes' names."""
    if isinstance(edges, np.ndarray) and edges.dtype.kind in "iu" and edges.ndim == 2 and edges.shape[1] == 2:
        pairs: Sequence[Sequence[Hashable]] | np.ndarray = edges
        whole = True
    else:
        try:
            pairs = [tuple(e) for e in edges]
        except TypeError:
            raise FedpointError("network: edges must be pairs of nodes") from None
        if any(len(e) != 2 for e in pairs):
            raise FedpointError("network: an edge is a pair of nodes")
        whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) for e in pairs for n in e)
    if names is None and whole:
        ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return ends, range(1 + int(ends.max(initial=-1)) if nodes is None else nodes)
    if names is None:
        names = sorted({str(n) for e in pairs for n in e})
        if nodes is not None and nodes != len(names):
            raise FedpointError(f"network: nodes = {nodes}, but edges name {len(names)}: give names= of all")
    number = {str(name): i for i, name in enumerate(names)}
    unknown = sorted({str(n) for e in pairs for n in e} - set(number))
    if unknown and whole:  # numbers that are no names count the nodes
        return np.array(pairs, dtype=np.int64).reshape(-1, 2), names
    if unknown:
        raise FedpointError(f"network: edges name nodes that are not there: {_list(unknown)}")
    return np.array([[number[str(n)] for n in e] for e in pairs], dtype=np.int64).reshape(-1, 2), names


def _points(points: ArrayLike) -> np.ndarray:
    try:
        points = np.asarray(points, dtype=float)
    except (TypeError, ValueError) as error:
        raise FedpointError(f"network: points must be numbers: {error}") from None
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2 or points.size == 0:
        raise FedpointError(f"network: points have shape {points.shape}: give one row of numbers a node")
    bad = ~np.isfinite(points).all(1)
    if bad.any():
        raise FedpointError(f"network: the point of node {int(np.argmax(bad))} is not finite: {points[bad][0]}")
    return points


def _count(name: str, value: int, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise FedpointError(f"network: {name} must be a whole number, at least {least}; got {value!r}")


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _as_weights(weights: ArrayLike) -> np.ndarray:
    try:
        found = np.asarray(weights)
        if found.dtype.kind not in "biuf":
            raise ValueError
    except ValueError:
        raise FedpointError(f"network: weights must be numbers, got {weights!r}") from None
    found = found.astype(float)
    if np.isinf(found).any():  # a difference of two is none
        raise FedpointError("network: weights must be finite")
    return found


def _once(ends: np.ndarray, weights: np.ndarray, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Edges that may come in both directions, each once. What is there twice in one direction stays, and is refused."""
    weights = _as_weights(weights)
    _, first, group = np.unique(np.sort(ends, axis=1), axis=0, return_index=True, return_inverse=True)
    before = first[group.ravel()]  # where the same edge came first
    forward = ends[:, 0] < ends[:, 1]
    back = (forward != forward[before]) & (ends[:, 0] != ends[:, 1])
    for n in np.flatnonzero(back & ~(np.abs(weights - weights[before]) <= 1e-12 * np.abs(weights[before])))[:1]:
        (i, j), other = ends[before[n]], before[n]
        raise FedpointError(
            f"network: the weights between {names[i]} and {names[j]} differ by direction "
            f"({weights[other]:g} and {weights[n]:g}): a network is undirected"
        )
    return ends[~back], weights[~back]
