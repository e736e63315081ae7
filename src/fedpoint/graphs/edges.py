"""From what is a network made? Pairs of nodes, weights, names, graphs of networkx: each checked."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.arrays import array_of, numbers
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import shown

if TYPE_CHECKING:
    from networkx import Graph

Names: TypeAlias = Sequence[Hashable] | str  # "abc" names three nodes
Edges: TypeAlias = np.ndarray | Iterable[Sequence[Hashable]]  # pairs of nodes, by number or name; networkx graphs too
NAMED = 8  # nodes, components or mistakes that a message spells out


def is_graph(given: object) -> TypeGuard[Graph]:
    """Whether it is a graph of networkx, which has been imported then."""
    networkx = sys.modules.get("networkx")
    return networkx is not None and isinstance(given, networkx.Graph)


def of_graph(graph: Graph, weight: str) -> tuple[np.ndarray, list[float], list[Hashable]]:
    """Edges, weights and names of a networkx graph."""
    if graph.is_directed():
        raise FedpointError("network: the graph is directed; weights must be symmetric: use graph.to_undirected()")
    if graph.is_multigraph():
        raise FedpointError("network: the graph has parallel edges: use networkx.Graph(graph)")
    if not graph.nodes:
        raise FedpointError("network: the graph has no nodes")
    number = {node: i for i, node in enumerate(graph.nodes)}
    found = [(number[a], number[b], data.get(weight, 1.0)) for a, b, data in graph.edges(data=True)]
    ends = np.array([e[:2] for e in found], dtype=np.int64).reshape(-1, 2)
    return ends, [e[2] for e in found], list(graph.nodes)


def pairs_of(edges: Edges) -> np.ndarray:
    """(E, 2) numbers of nodes."""
    found = array_of("network: edges", edges)  # type: ignore[arg-type]
    if found.size and (found.dtype.kind not in "iu" or found.ndim != 2 or found.shape[1] != 2):
        raise FedpointError(f"network: edges must be pairs of node numbers, (E, 2); got {shown(edges)}")
    return found.astype(np.int64).reshape(-1, 2)


def numbered(edges: Edges, nodes: int | None, names: Names | None) -> tuple[np.ndarray, Names]:
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
        raise FedpointError(f"network: edges name nodes that do not exist: {listed(unknown)}")
    return np.array([[number[str(n)] for n in e] for e in pairs], dtype=np.int64).reshape(-1, 2), names


def points_of(points: ArrayLike) -> np.ndarray:
    points = numbers("network: points", points)
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2 or points.size == 0:
        raise FedpointError(f"network: points have shape {points.shape}: give one row of numbers a node")
    bad = ~np.isfinite(points).all(1)
    if bad.any():
        raise FedpointError(f"network: the point of node {int(np.argmax(bad))} is not finite: {points[bad][0]}")
    return points


def listed(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def as_weights(weights: ArrayLike) -> np.ndarray:
    found = numbers("network: weights", weights)
    if np.isinf(found).any():  # a difference of two is none
        raise FedpointError("network: weights must be finite")
    return found


def once(ends: np.ndarray, weights: np.ndarray, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Edges that may come in both directions, each once. What is there twice in one direction stays, and is refused."""
    weights = as_weights(weights)
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
