"""Is a network what was said: its numbers against closed forms, its mistakes in clear words?"""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sparse

import fedpoint as fp
from fedpoint import Network


def test_numbers_of_a_small_network():
    net = Network.from_edges([("b", "a"), ("b", "c")], weights=[2.0, 3.0])
    assert net.names == ["a", "b", "c"] and net.edges.tolist() == [[0, 1], [1, 2]]
    dense = np.array([[0.0, 2, 0], [2, 0, 3], [0, 3, 0]])
    assert (net.adjacency.toarray() == dense).all()
    assert (net.laplacian.toarray() == np.diag(dense.sum(1)) - dense).all()
    assert net.degrees.tolist() == [2, 5, 3] and net.connected and net.isolated == []
    models = np.array([[0.0, 1], [1, 1], [3, 0]])
    assert net.total_variation(models) == 2 * 1 + 3 * (4 + 1)
    assert net.total_variation(models) == pytest.approx(np.trace(models.T @ net.laplacian.toarray() @ models))


def test_the_same_network_from_edges_matrix_and_networkx():
    graph = nx.Graph()
    graph.add_nodes_from("xyzu")  # u has no edge
    graph.add_edge("x", "y", weight=2.0)
    graph.add_edge("z", "y")
    one = Network.from_networkx(graph)
    dense = np.array([[0.0, 2, 0, 0], [2, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
    others = [
        Network.from_matrix(dense, names="xyzu"),
        Network.from_matrix(sparse.csr_matrix(dense), names="xyzu"),
        Network.from_edges([("x", "y"), ("y", "z"), ("y", "x")], [2.0, 1.0, 2.0], names="xyzu"),
        Network.from_edges([(1, 0), (1, 2)], [2.0, 1.0], names="xyzu"),
        Network.from_edges(np.array([[0, 1], [2, 1], [1, 2]]), [2.0, 1.0, 1.0], nodes=4).aligned("xyzu"),
    ]
    for net in others:
        assert net.names == one.names and (net.edges == one.edges).all() and (net.weights == one.weights).all()
    assert one.isolated == ["u"] and one.component_names() == [["x", "y", "z"], ["u"]]


# Eigenvalues of the Laplacian in closed form.


def lines(n):
    return [4 * np.sin(np.pi * k / (2 * n)) ** 2 for k in range(n)]


@pytest.mark.parametrize(
    "net, exact",
    [
        (Network.ring(9), [4 * np.sin(np.pi * k / 9) ** 2 for k in range(9)]),
        (Network.ring(600), [4 * np.sin(np.pi * k / 600) ** 2 for k in range(600)]),  # Lanczos
        (Network.complete(7), [0] + 6 * [7]),
        (Network.star(8), [0] + 6 * [1] + [8]),
        (Network.grid(3, 5), [a + b for a in lines(3) for b in lines(5)]),
        (Network.grid(20, 30), [a + b for a in lines(20) for b in lines(30)]),
        (Network.ring(2), [0, 2]),
        (Network.clusters([0, 0, 0, 1, 1, 2]), [0, 0, 0, 2, 3, 3]),
    ],
    ids=["ring", "ring-600", "complete", "star", "grid", "grid-600", "pair", "clusters"],
)
def test_eigenvalues(net, exact):
    exact = np.sort(exact)
    assert net.eigenvalues(6) == pytest.approx(exact[:6], abs=1e-11)  # rounding of a Laplacian of norm up to 8
    assert net.connectivity == pytest.approx(exact[1], abs=1e-11)


def test_eigenvalues_of_weights_are_those_of_numpy(rng):
    A = np.triu(rng.random((40, 40)) * (rng.random((40, 40)) < 0.2), 1)
    net = Network.from_matrix(A + A.T)
    assert net.eigenvalues(40) == pytest.approx(np.linalg.eigvalsh(net.laplacian.toarray()), abs=1e-12)


def test_description():
    assert Network.grid(2, 3).describe().splitlines() == [
        "6 nodes, 7 edges, 2.33 neighbours a node (2 to 3)",
        "weights 1",
        "connected; algebraic connectivity 1",
    ]
    said = Network.from_edges([("a", "b"), ("c", "d")], [1.0, 0.5], names="abcde").describe()
    assert "weights 0.5 to 1" in said and "without any edge: e" in said
    assert "not connected: 3 components: a, b; c, d; e" in said
    many = Network.clusters(np.arange(40) // 2)
    assert "20 components" in many.describe() and "and 12 more" in many.describe()
    assert repr(many) == "<Network: 40 nodes, 20 edges, 20 components>"


def test_nodes_in_the_order_of_agents():
    net = Network.from_edges([("a", "b"), ("b", "c")], [1.0, 2.0])
    net.positions = np.array([[0.0, 0], [1, 0], [2, 0]])
    turned = net.aligned(["c", "a", "b"])
    assert turned.names == ["c", "a", "b"] and turned.adjacency[0, 2] == 2 and turned.adjacency[1, 2] == 1
    assert turned.positions[:, 0].tolist() == [2, 0, 1]
    assert Network.ring(3).aligned("xyz").names == ["x", "y", "z"]


# Mistakes.


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Network.from_edges([(0, 1), (2, 2)]), "node 2 has an edge to itself"),
        (lambda: Network.from_edges([("a", "b")], [-1.0]), "the weight between a and b is -1: it must be above 0"),
        (lambda: Network.from_edges([(0, 1)], [np.nan]), "is nan: it must be above 0"),
        (lambda: Network.from_edges([(0, 1), (1, 2)], [1.0]), "1 weight for 2 edges"),
        (lambda: Network.from_edges([(0, 1)], "x"), "weights must be an array of numbers"),
        (lambda: Network.from_edges([(0, 1), (1, 0)], [1.0, 2.0]), "0 and 1 differ by direction \\(1 and 2\\)"),
        (lambda: Network.from_edges([(0, 1), (0, 1)]), "the edge between 0 and 1 occurs more than once"),
        (lambda: Network.from_edges([(0, 5)], nodes=3), r"edge \(0, 5\) names a node that does not exist"),
        (lambda: Network.from_edges([("a", "b")], names=["a", "c"]), "edges name nodes that do not exist: b"),
        (lambda: Network.from_edges([(0, 1, 2)]), "an edge is a pair of nodes"),
        (lambda: Network.from_edges([0, 1]), "edges must be pairs"),
        (lambda: Network.from_edges([(0, 1)], names=["a", "a"]), "two nodes are called a"),
        (lambda: Network.from_matrix([[0, 1], [2, 0]], names="ab"), "between . and . differ by direction"),
        (lambda: Network.from_matrix([[0, -1], [-1, 0]]), "is -1: it must be above 0"),
        (lambda: Network.from_matrix([[1, 0], [0, 0]]), "node 0 has an edge to itself"),
        (lambda: Network.from_matrix(np.ones((2, 3))), "it must be square"),
        (lambda: Network.from_matrix(np.zeros((2, 2)), names="abc"), "3 names for 2 nodes"),
        (lambda: Network.from_networkx(nx.DiGraph([(0, 1)])), "the graph is directed"),
        (lambda: Network.from_networkx(nx.MultiGraph([(0, 1)])), "parallel edges"),
        (lambda: Network.ring(0), "nodes must be a whole number, at least 1; got 0"),
        (lambda: Network.grid(2, 1.5), "columns must be a whole number"),
        (lambda: Network.random(5, -1), "degree must be a whole number, at least 0"),
        (lambda: Network.clusters([[0, 1]]), "one label a node"),
        (lambda: Network.clusters([0, 1], between=2.0), "between must be a number between 0 and 1; got 2.0"),
        (lambda: Network.knn([[0.0], [1.0]], k=2), "there are 2 nodes: take k below that"),
        (lambda: Network.knn([[0.0], [np.inf]], k=1), "the point of node 1 is not finite"),
        (lambda: Network.knn([["x"]], k=1), "points must be an array of numbers"),
        (lambda: Network.knn([[0.0], [1.0]], k=1, names="abc"), "3 names for 2 nodes"),
        (lambda: Network.knn([[0.0], [1.0]], k=1, weight="gauss"), "did you mean 'gaussian'"),
        (lambda: Network.star(3).aligned("ab"), "3 nodes, but the problem has 2 agents"),
        (
            lambda: Network.from_edges([("a", "b")]).aligned("bc"),
            "nodes without data: a; agents that are no node: c",
        ),
        (
            lambda: Network.from_edges([("a", "b")], names="abc").require_connected(),
            "the network is not connected: 2 components: a, b; c",
        ),
    ],
)
def test_mistakes(make, message):
    with pytest.raises(fp.FedpointError, match=message):
        make()


def test_all_mistakes_of_edges_are_said_at_once():
    with pytest.raises(fp.FedpointError, match=r"node 1 has an edge to itself; .* is 0: .* \(and 3 more\)"):
        Network.from_edges([(1, 1), *[(0, j) for j in range(2, 9)]], [1.0] + 7 * [0.0])
