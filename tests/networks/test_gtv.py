"""GTVMin: closed forms, limits of the coupling, stationarity, what is refused, paths and validation.

Tolerances: the solver stops where a Newton correction is 1e-8 of the models and the next would be 1e-13; systems here
have condition numbers below 1e4, so references solved in double precision agree to 1e-11 or so. 1e-9 is asked for.
"""

import tracemalloc

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sparse
import scipy.sparse.linalg

import fedpoint as fp
from fedpoint.graphs import gtv
from fedpoint.graphs.gtv import couplings, nodes, system
from fedpoint.graphs.network import Network

NODES, DIM = 9, 3


def relative(found, expected):
    return np.abs(np.asarray(found) - expected).max() / np.abs(expected).max()


@pytest.fixture(scope="module")
def graph():
    """Weighted and connected, with a triangle."""
    G = nx.cycle_graph(NODES)
    G.add_edges_from([(0, 2), (3, 7)])
    draw = np.random.default_rng(4)
    for a, b in G.edges:
        G.edges[a, b]["weight"] = float(draw.uniform(0.5, 2.0))
    return G


@pytest.fixture(scope="module")
def rows():
    """Different counts; node 4 has fewer rows than parameters."""
    draw = np.random.default_rng(5)
    counts = [6, 5, 8, 4, 2, 7, 5, 6, 4]
    X = [draw.standard_normal((m, DIM)) for m in counts]
    y = [x @ (np.arange(DIM) + 0.3 * k) + draw.standard_normal(len(x)) for k, x in enumerate(X)]
    return X, y


def lecture(rows, G, coupling):
    """(blkdiag(X'X/m) + coupling Lap (x) I) w = stack(X'y/m), dense, with networkx's Laplacian."""
    X, y = rows
    Q = scipy.linalg.block_diag(*(x.T @ x / len(x) for x in X))
    Q = Q + coupling * np.kron(nx.laplacian_matrix(G).toarray(), np.eye(DIM))
    return np.linalg.solve(Q, np.concatenate([x.T @ t / len(x) for x, t in zip(X, y, strict=True)])).reshape(-1, DIM)


def test_two_nodes_by_hand():
    """h1 (w1 - c1) = t = -h2 (w2 - c2) with t = p (w2 - w1), p = 2 a A_12: t = p (c2 - c1)/(1 + p/h1 + p/h2)."""
    h, c, weight, a = np.array([2.0, 5.0]), np.array([1.0, -3.0]), 1.5, 0.7
    pull = 2 * a * weight
    t = pull * (c[1] - c[0]) / (1 + pull * (1 / h).sum())
    task = fp.problems.Quadratic(h, c[:, None])
    found = gtv.solve(task, Network.from_edges([(0, 1)], [weight]), a)
    np.testing.assert_allclose(found[:, 0], [c[0] + t / h[0], c[1] - t / h[1]], rtol=1e-13)


@pytest.mark.parametrize("coupling", [1e-3, 0.1, 1.0, 50.0])
def test_least_squares_is_the_lectures_closed_form(graph, rows, coupling):
    task = fp.problems.LeastSquares(*rows, mean=True, half=False)
    found = gtv.solve(task, Network.from_networkx(graph), coupling)
    assert found.shape == (NODES, DIM)
    assert relative(found, lecture(rows, graph, coupling)) < 1e-9
    # The factor 1/2 of the loss is a factor 1/2 of the coupling, and weights p_k play no part.
    half = fp.problems.LeastSquares(*rows, mean=True, weights=np.arange(1, NODES + 1))
    assert relative(gtv.solve(half, Network.from_networkx(graph), coupling / 2), found) < 1e-9


def test_conjugate_gradients_and_the_factorisation_agree(graph, rows, monkeypatch):
    task, net = fp.problems.LeastSquares(*rows), Network.from_networkx(graph)
    by_factor = gtv.solve(task, net, 0.3)
    monkeypatch.setattr(system, "NARROW", 0)
    by_gradients = gtv.solve(task, net, 0.3)
    monkeypatch.setattr(system, "SLOW", 2)  # given up after two iterations: factorised after all
    assert relative(by_gradients, by_factor) < 1e-11
    assert relative(gtv.solve(task, net, 0.3), by_factor) < 1e-11


def test_no_coupling_is_everyone_alone(rows, graph):
    X, y = ([a for k, a in enumerate(part) if k != 4] for part in rows)
    net = Network.from_networkx(nx.convert_node_labels_to_integers(graph.subgraph([n for n in graph if n != 4])))
    task = fp.problems.LeastSquares(X, y)
    assert relative(gtv.solve(task, net, 0.0), task.local_solutions()) < 1e-11


@pytest.mark.parametrize("coupling", [1e5, 1e9])
def test_a_huge_coupling_is_one_model_per_component(rows, coupling):
    """w = c + u/coupling + O(1/coupling^2): c the pooled fit of the component, 2 Lap u = b - H c, sum H_i u_i = 0.

    Without keeping the differences apart from c, the rounding of c times 1e9 would spoil the models at 1e-7.
    """
    net = Network.from_edges([(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 6)], nodes=NODES)  # and 7, 8 alone
    task = fp.problems.LeastSquares(*rows)
    H, b = task.linear_fields()
    expected = np.empty((NODES, DIM))
    for part in range(net.components.max() + 1):
        at = np.flatnonzero(net.components == part)
        c = np.linalg.solve(H[at].sum(0), b[at].sum(0))
        u = np.linalg.pinv(2 * net.laplacian.toarray()[np.ix_(at, at)]) @ (b[at] - H[at] @ c)
        u = u - np.linalg.solve(H[at].sum(0), np.einsum("kij,kj->i", H[at], u))
        expected[at] = c + u / coupling
    assert relative(gtv.solve(task, net, coupling), expected) < max(1e-12, 1e3 / coupling**2)


def test_many_nodes_without_a_dense_matrix():
    """2,000 nodes of degree 10 against SciPy's conjugate gradients on the assembled system."""
    K, d, coupling = 2000, 4, 2.0
    net = Network.from_networkx(nx.gnm_random_graph(K, 5 * K, seed=1))
    draw = np.random.default_rng(0)
    root = draw.standard_normal((K, 2, d))  # each alone determines two directions of four
    task = fp.problems.Quadratic(np.swapaxes(root, 1, 2) @ root, draw.standard_normal((K, d)))
    H, b = task.linear_fields()
    blocks = sparse.bsr_matrix((H, np.arange(K), np.arange(K + 1)))
    M = (blocks + 2 * coupling * sparse.kron(net.laplacian, sparse.identity(d))).tocsr()
    expected, failed = scipy.sparse.linalg.cg(M, b.ravel(), rtol=1e-14, maxiter=5000)
    assert not failed
    tracemalloc.start()
    found = gtv.solve(task, net, coupling)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.25 * 8 * K * K
    assert relative(found.ravel(), expected) < 1e-10
    assert np.linalg.norm(M @ found.ravel() - b.ravel()) < 1e-13 * abs(M).max() * np.linalg.norm(found)


def test_a_long_ring_is_factorised():
    """Conjugate gradients would need thousands of iterations: information travels one edge each."""
    K, coupling = 3000, 1e6
    net, centers = Network.ring(K), np.random.default_rng(0).standard_normal((K, 1))
    M = (sparse.identity(K) + 2 * coupling * net.laplacian).tocsc()
    expected = scipy.sparse.linalg.spsolve(M, centers)
    found = gtv.solve(fp.problems.Quadratic(1.0, centers), net, coupling)
    assert relative(found[:, 0], expected) < 1e-8  # of the reference, whose condition number is 4e6


@pytest.mark.parametrize("net", [Network.complete(1), Network.from_edges([], nodes=1), Network.star(1)])
def test_one_node_alone(net):
    np.testing.assert_allclose(gtv.solve(fp.problems.Quadratic(2.0, [[3.0, 4.0]]), net, 1.0), [[3.0, 4.0]])


def test_streams_have_a_loss_too():
    """L_i = (w - w_i)'R (w - w_i)/2 + noise: two nodes with R = 2, as by hand."""
    found = gtv.solve(fp.problems.LinearStream([[0.0], [3.0]], covariance=2.0), Network.complete(2), 1.0)
    np.testing.assert_allclose(found, [[1.0], [2.0]], rtol=1e-12)


def test_the_solution_is_the_minimum(graph, rows):
    task, net, a = fp.problems.LeastSquares(*rows), Network.from_networkx(graph), 0.4
    best = gtv.solve(task, net, a)
    X, y = rows
    at = gtv.objective(task, net, a, best)
    own = [0.5 * ((x @ w - t) ** 2).sum() for x, t, w in zip(X, y, best, strict=True)]
    np.testing.assert_allclose(at.losses, own, rtol=1e-10)
    between = sum(e["weight"] * ((best[i] - best[j]) ** 2).sum() for i, j, e in graph.edges(data=True))
    np.testing.assert_allclose([at.variation, float(at)], [between, sum(own) + a * between], rtol=1e-12)
    draw = np.random.default_rng(1)
    for _ in range(5):
        assert gtv.objective(task, net, a, best + 1e-4 * draw.standard_normal(best.shape)).value > at.value


def test_a_concave_node_may_be_held_by_its_neighbours():
    """M = [[-1 + 2a, -2a], [-2a, 5 + 2a]] is positive definite iff a > 5/8."""
    task, net = fp.problems.Quadratic([-1.0, 5.0], [[1.0], [2.0]]), Network.complete(2)
    a = 1.0
    expected = np.linalg.solve([[-1 + 2 * a, -2 * a], [-2 * a, 5 + 2 * a]], [-1.0, 10.0])
    np.testing.assert_allclose(gtv.solve(task, net, a)[:, 0], expected, rtol=1e-12)
    with pytest.raises(fp.FedpointError, match="no minimum"):
        gtv.solve(task, net, 0.5)


# Losses that are not quadratic


@pytest.fixture(scope="module")
def classes():
    draw = np.random.default_rng(7)
    X = draw.standard_normal((12 * NODES, DIM))
    label = X @ [1.0, -1.0, 0.5] + draw.logistic(size=len(X)) > 0
    return X, label, np.repeat(np.arange(NODES), 12)


@pytest.fixture(scope="module")
def logistic(classes):
    X, label, groups = classes
    return fp.problems.Logistic(X, label, groups=groups, ridge=0.1, weights=np.ones(NODES))


def slope(task, net, coupling, models):
    """(K, d): the gradient of the objective, from the problem's own fields."""
    fields = np.stack([task.fields(w)[i] for i, w in enumerate(models)])
    flat = np.reshape(models, (len(models), -1))
    return fields + 2 * coupling * (net.laplacian @ flat)


def test_logistic_is_stationary_and_scipys_minimum(logistic, graph):
    net, a = Network.from_networkx(graph), 0.2
    found = gtv.solve(logistic, net, a)
    assert np.abs(slope(logistic, net, a, found)).max() < 1e-14  # terms of order 0.1
    X, gamma = logistic.X.reshape(NODES, -1, DIM), 2.0 * logistic.label.reshape(NODES, -1) - 1

    def value(w):
        W = w.reshape(NODES, DIM)
        own = np.log1p(np.exp(-gamma * np.einsum("kmi,ki->km", X, W))).mean(1).sum() + 0.05 * (W**2).sum()
        return own + a * np.trace(W.T @ nx.laplacian_matrix(graph).toarray() @ W)

    other = scipy.optimize.minimize(value, np.zeros(NODES * DIM), method="BFGS", options={"gtol": 1e-7})
    assert relative(found.ravel(), other.x) < 1e-4  # BFGS with differences: roots of rounding
    assert value(found.ravel()) <= other.fun + 1e-13


def test_logistic_limits_of_the_coupling(logistic, graph):
    net = Network.from_networkx(graph)
    assert relative(gtv.solve(logistic, net, 0.0), logistic.local_solutions()) < 1e-10
    far = gtv.solve(logistic, net, 1e10)
    assert relative(far, np.broadcast_to(logistic.solution(), far.shape)) < 1e-9  # of order 1/coupling


def test_models_that_are_zero(logistic, graph):
    """Every row with both labels: nothing but rounding is left of the gradient at the start."""
    X = np.repeat(logistic.X[::2], 2, axis=0)
    task = fp.problems.Logistic(X, np.arange(len(X)) % 2, groups=np.repeat(np.arange(NODES), 12), ridge=0.1)
    assert np.abs(gtv.solve(task, Network.from_networkx(graph), 0.2)).max() < 1e-15


def test_softmax_is_stationary(classes, graph):
    X, _, groups = classes
    label = np.random.default_rng(1).integers(0, 3, len(X))
    task, net = fp.problems.Logistic(X, label, groups=groups, ridge=0.05), Network.from_networkx(graph)
    found = gtv.solve(task, net, 0.3)
    assert found.shape == (NODES, DIM, 3)
    assert np.abs(slope(task, net, 0.3, found)).max() < 1e-14


def ridged(params, batch):
    """The same as `logistic`, as a tree."""
    x, gamma = batch
    return jnp.log1p(jnp.exp(-gamma * (x @ params["w"] + x[:, 0] * params["first"]))) + 0.05 * (
        params["w"] @ params["w"] + params["first"] ** 2
    )


def test_any_pytree_with_and_without_hessians(classes, logistic, graph, monkeypatch):
    X, label, groups = classes
    tree = {"first": np.float32(0.0), "w": np.zeros(DIM - 1, np.float32)}

    def loss(params, batch):
        return ridged({"first": params["first"], "w": jnp.append(0.0, params["w"])}, batch)

    task = fp.problems.Loss(loss, tree, (X, 2.0 * label - 1), groups=groups, convex=True)
    net = Network.from_networkx(graph)
    expected = gtv.solve(logistic, net, 0.2)
    for limit in (nodes.BLOCKS, 1):  # below one number no Hessian is written down
        monkeypatch.setattr(nodes, "BLOCKS", limit)
        found = gtv.solve(task, net, 0.2)
        assert jax.tree.map(np.shape, found) == {"first": (NODES,), "w": (NODES, DIM - 1)}
        assert relative(np.column_stack([found["first"], found["w"]]), expected) < 1e-11
    again = gtv.solve(task, net, 0.2, start=found)
    assert relative(again["w"], found["w"]) < 1e-12


def test_a_stationary_point_where_losses_are_not_convex(classes, graph):
    X, _, groups = classes

    def loss(w, batch):  # concave far out
        return 1 - jnp.exp(-0.5 * (batch[0] @ w - batch[1]) ** 2) + 0.05 * jnp.sum(w * w)

    task = fp.problems.Loss(loss, np.zeros(DIM), (X, X[:, 0] + 1), groups=groups, convex=False)
    net = Network.from_networkx(graph)
    with pytest.raises(fp.FedpointError, match=r"not convex: give start=.*stationary"):
        gtv.solve(task, net, 0.2)
    found = gtv.solve(task, net, 0.2, start=np.ones(DIM))
    assert np.abs(slope(task, net, 0.2, found)).max() < 1e-12
    unknown = fp.problems.Loss(loss, np.zeros(DIM), (X, X[:, 0] + 1), groups=groups)
    with pytest.raises(fp.FedpointError, match=r"not known whether.*convex=True"):
        gtv.solve(unknown, net, 0.2)


# What is refused


def test_what_is_not_unique_is_said_with_the_nodes():
    X, y = [np.eye(2)[:1], np.eye(2)[:1], np.eye(2), np.eye(2)[1:]], [[1.0], [2.0], [3.0, 4.0], [5.0]]
    task = fp.problems.LeastSquares(X, y)
    net = Network.from_edges([(0, 1), (2, 3)])
    with pytest.raises(fp.FedpointError, match="component of 2 nodes 0, 1 determines 1 of 2 parameters"):
        gtv.solve(task, net, 1.0)
    with pytest.raises(fp.FedpointError, match=r"node 0 determines 1 of 2 .*and 2 more such nodes.*coupling above 0"):
        gtv.solve(task, net, 0.0)
    with pytest.raises(fp.FedpointError, match="node 3 has no neighbour and determines 1 of 2"):
        gtv.solve(task, Network.from_edges([(0, 1), (1, 2)], nodes=4), 1.0)
    gtv.solve(task, Network.from_edges([(0, 3), (2, 3), (1, 2)]), 1.0)


def test_models_that_would_grow_without_bound(classes, graph):
    X, _, groups = classes
    net = Network.from_networkx(graph)
    with pytest.raises(fp.FedpointError, match="separated without a ridge"):
        gtv.solve(fp.problems.Logistic(X, X[:, 0] > 0, groups=groups, ridge=0.0), net, 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"coupling": -1.0}, "coupling must be a number, at least 0"),
        ({"coupling": np.nan}, "coupling must be"),
        ({"coupling": "strong"}, "coupling must be a number; got 'strong'"),
        ({"task": fp.problems.LinearSystem([[[1.0]], [[2.0]]], [[1.0], [1.0]])}, "not gradients"),
        ({"network": "ring"}, "network must be a Network"),
        ({"network": Network.ring(5)}, "5 nodes, but the problem has 2 agents"),
        ({"start": np.zeros(3)}, "start: shapes"),
        ({"start": [[np.nan], [0.0]]}, "start: holds NaN"),
        ({"tolerance": 0.0}, "tolerance must be a number, above 0"),
    ],
)
def test_mistakes(change, message):
    given = {"task": fp.problems.Quadratic(1.0, [[0.0], [1.0]]), "network": Network.complete(2), "coupling": 1.0}
    with pytest.raises(fp.FedpointError, match=message):
        gtv.solve(**{**given, **change})


def test_nodes_are_found_by_name():
    """The same graph with its nodes in another order; numbers alone go by position."""
    draw = np.random.default_rng(0)
    X, y = draw.standard_normal((12, 2)), draw.standard_normal(12)
    task = fp.problems.LeastSquares(X, y, groups=np.repeat(["anna", "bert", "cleo"], 4))
    by_name = Network.from_edges([("cleo", "anna"), ("anna", "bert")], [1.0, 2.0], names=["cleo", "bert", "anna"])
    by_place = Network.from_edges([(0, 2), (0, 1)], [1.0, 2.0])
    np.testing.assert_array_equal(gtv.solve(task, by_name, 1.0), gtv.solve(task, by_place, 1.0))
    assert by_name.aligned(["anna", "bert", "cleo"]).adjacency.toarray().tolist() == [[0, 2, 1], [2, 0, 0], [1, 0, 0]]
    other = Network.from_edges([("cleo", "dora"), ("cleo", "anna")])
    with pytest.raises(fp.FedpointError, match="nodes without data: dora; agents that are no node: bert"):
        gtv.solve(task, other, 1.0)


# Paths and validation


def test_a_path_is_its_solutions(graph, rows, tmp_path):
    task, net = fp.problems.LeastSquares(*rows), Network.from_networkx(graph)
    couplings = [1.0, 0.01, 30.0]
    found = gtv.path(task, net, couplings)
    assert found.models.shape == (3, NODES, DIM) and found.losses.shape == (3, NODES)
    for a, models, own, between in zip(couplings, found.models, found.losses, found.variation, strict=True):
        assert relative(models, gtv.solve(task, net, a)) < 1e-11
        at = gtv.objective(task, net, a, models)
        np.testing.assert_allclose(own, at.losses)
        np.testing.assert_allclose(between, at.variation)
    # As the coupling grows the losses can only grow and the variation only fall.
    order = np.argsort(couplings)
    assert (np.diff(found.losses.sum(1)[order]) > 0).all() and (np.diff(found.variation[order]) < 0).all()
    assert str(found).splitlines()[0].split("  ")[0] == "coupling" and len(str(found).splitlines()) == 4
    assert "3 couplings from 0.01 to 30, 9 nodes" in repr(found)
    found.plot(tmp_path / "path.svg")
    found.plot(parameter=1)
    with pytest.raises(fp.FedpointError, match="a model has 3 numbers"):
        found.plot(parameter=3)
    with pytest.raises(fp.FedpointError, match="list of numbers, at least 0"):
        gtv.path(task, net, [1.0, -1.0])


def test_a_problem_restricted_to_some_rows(rows, classes):
    X, y = rows
    chosen = [np.arange(len(x))[:: 2 if k % 2 else 1] for k, x in enumerate(X)]
    less = [x[i] for x, i in zip(X, chosen, strict=True)], [t[i] for t, i in zip(y, chosen, strict=True)]
    w = np.array([0.5, -1.0, 2.0])
    for kind in ({"mean": True, "half": False}, {"batch": 4}):
        part = fp.problems.LeastSquares(X, y, **kind).restricted(chosen)
        whole = fp.problems.LeastSquares(*less, mean=kind.get("mean", False), half=kind.get("half", True))
        for a, b in zip(part.linear_fields(), whole.linear_fields(), strict=True):
            np.testing.assert_array_equal(a, b)
    X, label, groups = classes
    chosen = [np.array([0, 3, 4 + k % 3]) for k in range(NODES)]
    index = np.concatenate([12 * k + rows for k, rows in enumerate(chosen)])
    whole = fp.problems.Logistic(X[index], label[index], groups=groups[index])
    for batch in (None, 4):  # with small batches the table is laid in another way
        part = fp.problems.Logistic(X, label, groups=groups, batch=batch).restricted(chosen)
        np.testing.assert_allclose(part.fields(w), whole.fields(w), rtol=1e-12, atol=1e-15)
        np.testing.assert_array_equal(part.X, whole.X)
    with pytest.raises(fp.FedpointError, match="agent 0 would be left without rows"):
        part.restricted([np.arange(0), *chosen[1:]])


def clusters(draw, rows):
    """Two cliques of five nodes, each with its own model and an edge between them that should not be there."""
    net = nx.disjoint_union(nx.complete_graph(5), nx.complete_graph(5))
    net.add_edge(0, 5, weight=0.01)
    true = np.repeat([[1.0, -1.0], [-2.0, 2.0]], 5, axis=0)
    X = [draw.standard_normal((rows, 2)) for _ in range(10)]
    y = [x @ w + 2 * draw.standard_normal(rows) for x, w in zip(X, true, strict=True)]
    return Network.from_networkx(net), X, y


def test_the_coupling_by_held_out_rows_that_are_given(tmp_path):
    """Errors by hand: the mean loss of each node's own test rows, at GTVMin's solution for the training rows."""
    draw = np.random.default_rng(0)
    net, X, y = clusters(draw, 4)
    _, X2, y2 = clusters(draw, 50)
    task, test = fp.problems.LeastSquares(X, y, mean=True), fp.problems.LeastSquares(X2, y2)
    couplings = [1e-3, 0.1, 1.0, 1e3]
    found = gtv.choose(task, net, couplings, held_out=test)
    each = np.array(
        [
            [0.5 * ((x @ w - t) ** 2).mean() for x, t, w in zip(X2, y2, gtv.solve(task, net, a), strict=True)]
            for a in couplings
        ]
    )
    np.testing.assert_allclose(found.node_errors, each, rtol=1e-8)
    np.testing.assert_allclose(found.errors, each.mean(1), rtol=1e-8)
    np.testing.assert_allclose(found.standard_errors, each.std(1, ddof=1) / np.sqrt(10), rtol=1e-8)
    assert found.coupling == couplings[int(each.mean(1).argmin())] and found.coupling in (0.1, 1.0)
    np.testing.assert_array_equal(found.models, gtv.solve(task, net, found.coupling))
    assert not found.at_edge and str(found).count("chosen") == 1 and "given rows" in repr(found)
    found.plot(tmp_path / "choice.png")


def test_the_coupling_by_cross_validation():
    """Friends help, strangers do not: neither alone nor all together is best."""
    net, X, y = clusters(np.random.default_rng(0), 6)
    task = fp.problems.LeastSquares(X, y, mean=True)
    found = gtv.choose(task, net, folds=3, seed=1)
    assert len(found.couplings) == 13 and not found.at_edge
    assert found.errors.min() < 0.9 * min(found.errors[0], found.errors[-1])
    again = gtv.choose(task, net, folds=3, seed=1)
    np.testing.assert_array_equal(found.errors, again.errors)
    assert (gtv.choose(task, net, [0.1, 1.0], held_out=0.3).errors > 0).all()
    # The default couplings lie about the balance 2 a d = the mean eigenvalue of a node's Hessian.
    H = task.linear_fields()[0]
    middle = np.median(np.trace(H, axis1=1, axis2=2) / 2) / (2 * np.median(net.degrees))
    np.testing.assert_allclose(np.sqrt(found.couplings[0] * found.couplings[-1]), middle)


def test_every_row_is_held_out_once_and_single_rows_never():
    counts = np.array([1, 2, 3, 7])
    task = fp.problems.LeastSquares([np.ones((m, 1)) for m in counts], [np.arange(m) + 1.0 for m in counts])
    splits, _ = couplings.splits_of_rows(task, None, 3, 0)
    seen = np.zeros(4)
    for train, test, tested in splits:
        assert (train.local_rows()[tested] + test.local_rows()[tested] == counts[tested]).all()
        assert (train.local_rows()[~tested] == counts[~tested]).all()
        seen += np.where(tested, test.local_rows(), 0)
    assert seen.tolist() == [0, 2, 3, 7]
    found = gtv.choose(task, Network.ring(4), [1.0], folds=3)
    assert np.isnan(found.node_errors[0]).tolist() == [True, False, False, False] and np.isfinite(found.errors).all()
    for wrong, message in (({"folds": 1}, "folds must be"), ({"held_out": 1.5}, "between 0 and 1")):
        with pytest.raises(fp.FedpointError, match=message):
            gtv.choose(task, Network.ring(4), [1.0], **wrong)
    with pytest.raises(fp.FedpointError, match="stores no rows"):
        gtv.choose(fp.problems.Quadratic(1.0, np.eye(4)), Network.ring(4))
