"""FedGD and FedRelax on networks: step limits, spectral rates and contraction factors, against whole matrices.

The references are dense, built from networkx's Laplacian and the problems' Hessians. Eigenvalues agree to 1e-9: by
Lanczos' method with residuals of 1e-9, and systems solved to 1e-12 on the way.
"""

import networkx as nx
import numpy as np
import pytest
import scipy.linalg

import fedpoint as fp
from fedpoint import theory
from fedpoint.graphs import gtv
from fedpoint.graphs.network import Network
from fedpoint.theory import networks

NODES, DIM = 8, 3


def made(nodes=NODES, dim=DIM, seed=0, edges=14):
    """A weighted graph, and strongly convex quadratics."""
    draw = np.random.default_rng(seed)
    G = nx.gnm_random_graph(nodes, edges, seed=seed + 1)
    for a, b in G.edges:
        G.edges[a, b]["weight"] = float(draw.uniform(0.5, 2.0))
    root = draw.standard_normal((nodes, dim, dim + 2))
    H = root @ np.swapaxes(root, 1, 2) / dim + 0.2 * np.eye(dim)
    return G, H, fp.problems.Quadratic(H, draw.standard_normal((nodes, dim)))


def hessian(G, H, coupling):
    return scipy.linalg.block_diag(*H) + 2 * coupling * np.kron(nx.laplacian_matrix(G).toarray(), np.eye(H.shape[1]))


def relaxed(G, H, coupling):
    """FedRelax's iteration: (H_i + 2 a d_i)^-1 2 a A_ij."""
    d = np.array([v for _, v in G.degree(weight="weight")])
    A = nx.adjacency_matrix(G).toarray()
    inverse = np.linalg.inv(H + 2 * coupling * d[:, None, None] * np.eye(H.shape[1]))
    return scipy.linalg.block_diag(*inverse) @ np.kron(2 * coupling * A, np.eye(H.shape[1]))


def radius(T):
    return np.abs(np.linalg.eigvals(T)).max()


def block_maximum(x):
    return np.linalg.norm(x.reshape(-1, DIM), axis=1).max()


@pytest.mark.parametrize("coupling", [0.0, 0.3, 20.0])
@pytest.mark.parametrize("dense", [networks.DENSE, 0])  # 0: by Lanczos' method, however small
def test_step_limit_is_two_over_the_largest_eigenvalue(coupling, dense, monkeypatch):
    monkeypatch.setattr(networks, "DENSE", dense)
    G, H, task = made()
    expected = 2 / np.linalg.eigvalsh(hessian(G, H, coupling))[-1]
    np.testing.assert_allclose(theory.step_limit(task, Network.from_networkx(G), coupling), expected, rtol=1e-9)


def test_step_limit_in_the_lectures_notation():
    """1/lambda_max(Q), Q = blkdiag(X'X/m) + alpha Lap (x) I, for L_i = (1/m_i)|y - X w|^2."""
    G, _, _ = made()
    draw = np.random.default_rng(2)
    X = [draw.standard_normal((4 + k, DIM)) for k in range(NODES)]
    Q = scipy.linalg.block_diag(*(x.T @ x / len(x) for x in X))
    Q = Q + 0.7 * np.kron(nx.laplacian_matrix(G).toarray(), np.eye(DIM))
    task = fp.problems.LeastSquares(X, [x[:, 0] for x in X], mean=True, half=False)
    found = theory.step_limit(task, Network.from_networkx(G), 0.7)
    np.testing.assert_allclose(found, 1 / np.linalg.eigvalsh(Q)[-1], rtol=1e-9)


def test_fedgd_settles_below_the_limit_and_grows_above():
    G, H, task = made()
    net = Network.from_networkx(G)
    limit = theory.step_limit(task, net, 0.5)
    assert theory.spectral_rate("FedGD", task, net, 0.5, step=0.999 * limit) < 1
    assert theory.spectral_rate("FedGD", task, net, 0.5, step=1.001 * limit) > 1
    M, W, best = hessian(G, H, 0.5), np.zeros(NODES * DIM), gtv.solve(task, net, 0.5).ravel()
    b = task.linear_fields()[1].ravel()
    for _ in range(3000):
        W = W - 0.9 * limit * (M @ W - b)
    assert np.abs(W - best).max() < 1e-12


@pytest.mark.parametrize("coupling", [0.05, 1.0, 100.0])
@pytest.mark.parametrize("dense", [networks.DENSE, 0])
def test_spectral_rates_are_the_spectral_radii(coupling, dense, monkeypatch):
    monkeypatch.setattr(networks, "DENSE", dense)
    G, H, task = made()
    net = Network.from_networkx(G)
    step = np.linspace(0.5, 1.0, NODES) * theory.step_limit(task, net, coupling) / 2
    T = np.eye(NODES * DIM) - np.kron(np.diag(step), np.eye(DIM)) @ hessian(G, H, coupling)
    np.testing.assert_allclose(theory.spectral_rate("FedGD", task, net, coupling, step), radius(T), rtol=1e-9)
    np.testing.assert_allclose(theory.iteration_matrix("fedgd", task, net, coupling, step), T, atol=1e-12)
    T = relaxed(G, H, coupling)
    np.testing.assert_allclose(theory.spectral_rate("FedRelax", task, net, coupling), radius(T), rtol=1e-9)
    np.testing.assert_allclose(theory.iteration_matrix("fedrelax", task, net, coupling), T, atol=1e-12)


def test_rates_on_a_bipartite_graph_may_come_from_the_other_end():
    """On two nodes FedRelax swaps: eigenvalues +-2a/(h + 2a). A step near the limit makes FedGD oscillate."""
    task, net = fp.problems.Quadratic(1.0, [[0.0], [1.0]]), Network.complete(2)
    np.testing.assert_allclose(theory.spectral_rate("FedRelax", task, net, 2.0), 0.8, rtol=1e-14)
    np.testing.assert_allclose(theory.spectral_rate("FedGD", task, net, 2.0, 0.2), 0.8, rtol=1e-14)  # 1 - 0.2, 1 - 1.8


@pytest.mark.parametrize("restarts", [networks.RESTARTS, 1])
def test_long_rings_through_the_inverse(restarts, monkeypatch):
    """T = 2a A/(h + 4a) on a ring, where A has eigenvalues 2 cos(2 pi k/K), many of them nearly 2."""
    monkeypatch.setattr(networks, "RESTARTS", restarts)
    task, a = fp.problems.Quadratic(0.01, np.zeros((301, 1))), 5.0
    found = theory.spectral_rate("FedRelax", task, Network.ring(301), a)
    np.testing.assert_allclose(1 - found, 0.01 / (0.01 + 4 * a), rtol=1e-6)


def test_rate_near_the_solution_of_a_logistic_network():
    """The error of FedRelax and FedGD, run in NumPy on the exact fields, falls at the predicted rate in the end."""
    draw = np.random.default_rng(3)
    X, groups = draw.standard_normal((40, 2)), np.repeat(np.arange(4), 10)
    task = fp.problems.Logistic(X, X[:, 0] + draw.standard_normal(40) > 0, groups=groups, ridge=0.2)
    net, a = Network.ring(4), 0.3
    best = gtv.solve(task, net, a)
    gamma = 2.0 * task.label - 1.0
    h = X.reshape(4, 10, 2) * gamma.reshape(4, 10, 1)

    def slope(W):
        s = 1 / (1 + np.exp(np.einsum("kmi,ki->km", h, W)))
        return 0.2 * W - np.einsum("km,kmi->ki", s, h) / 10 + 2 * a * (net.laplacian @ W)

    limit = theory.step_limit(task, net, a)
    step = 0.9 * limit
    rate = theory.spectral_rate("FedGD", task, net, a, step, models=best)
    W, errors = np.zeros((4, 2)), []
    for _ in range(60):
        W = W - step * slope(W)
        errors.append(np.linalg.norm(W - best))
    assert rate < 1
    np.testing.assert_allclose((errors[59] / errors[39]) ** (1 / 20), rate, rtol=2e-3)  # slower modes still fade
    # The limit that holds everywhere lies below the one at the solution.
    assert limit <= theory.step_limit(task, net, a, models=best)


def test_many_nodes():
    """More than are computed from the whole matrix, which is the reference here."""
    K, d, a = 110, 2, 0.5
    G, H, task = made(K, d, edges=5 * K)
    net = Network.from_networkx(G)
    assert K * d > networks.DENSE
    np.testing.assert_allclose(theory.spectral_rate("FedRelax", task, net, a), radius(relaxed(G, H, a)), rtol=1e-9)
    values = np.linalg.eigvalsh(hessian(G, H, a))
    step = 1.5 / values[-1]
    np.testing.assert_allclose(theory.spectral_rate("FedGD", task, net, a, step), 1 - step * values[0], rtol=1e-9)


# Contraction in the block-maximum norm


@pytest.mark.parametrize("coupling", [0.1, 1.0, 30.0])
def test_contraction_factors_are_the_block_norms(coupling):
    G, H, task = made()
    net = Network.from_networkx(G)
    each = np.linalg.eigvalsh(H)
    s, l, d = each[:, 0], each[:, -1], net.degrees
    found = theory.contraction("FedRelax", task, net, coupling)
    np.testing.assert_allclose(found.kappa, (1 / (1 + s / (2 * coupling * d))).max(), rtol=1e-12)
    T = theory.iteration_matrix("FedRelax", task, net, coupling)
    np.testing.assert_allclose(found.kappa, theory.block_norm(T, NODES), rtol=1e-9)

    step = 1 / (l + 2 * coupling * d).max()
    found = theory.contraction("FedGD", task, net, coupling, step)
    np.testing.assert_allclose(found.kappa, 1 - step * s.min(), rtol=1e-12)
    T = theory.iteration_matrix("FedGD", task, net, coupling, step)
    np.testing.assert_allclose(found.kappa, theory.block_norm(T, NODES), rtol=1e-9)
    assert radius(T) <= found.kappa + 1e-12


@pytest.mark.parametrize("method", ["FedGD", "FedRelax"])
def test_the_norm_is_attained(method):
    """All nodes along the worst node's flattest direction: the norm shrinks by kappa exactly, and never by less."""
    G, H, task = made()
    net, a = Network.from_networkx(G), 0.8
    step = 1 / (np.linalg.eigvalsh(H)[:, -1] + 2 * a * net.degrees).max()
    found = theory.contraction(method, task, net, a, step)
    T = theory.iteration_matrix(method, task, net, a, step)
    worst = int(found.nodes.argmax())
    flat = np.linalg.eigh(H[worst])[1][:, 0]
    np.testing.assert_allclose(block_maximum(T @ np.tile(flat, NODES)), found.kappa, rtol=1e-9)
    draw = np.random.default_rng(0)
    for _ in range(50):
        x = draw.standard_normal((NODES, DIM))
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        assert block_maximum(T @ x.ravel()) <= found.kappa + 1e-12


def test_longer_steps_contract_less_until_they_do_not():
    G, H, task = made()
    net, a = Network.from_networkx(G), 0.5
    each = np.linalg.eigvalsh(H)
    longest = (2 / (each[:, -1] + 4 * a * net.degrees)).min()
    long = theory.contraction("FedGD", task, net, a, 0.99 * longest)
    T = theory.iteration_matrix("FedGD", task, net, a, 0.99 * longest)
    np.testing.assert_allclose(long.kappa, theory.block_norm(T, NODES), rtol=1e-9)
    assert "l_i" in long.formula
    none = theory.contraction("FedGD", task, net, a, 1.01 * longest)
    assert none.kappa is None and "too long for node" in none.reason and none.nodes.max() > 1


def test_where_there_is_no_contraction():
    X = [np.eye(2), np.eye(2)[:1]]
    task = fp.problems.LeastSquares(X, [[1.0, 2.0], [3.0]])
    found = theory.contraction("FedRelax", task, Network.complete(2), 1.0)
    assert found.kappa is None and found.reason == "the loss of node 1 is not strongly convex"
    assert "no contraction" in repr(found)
    with pytest.raises(fp.FedpointError, match="no contraction: the loss of node 1"):
        theory.asynchronous(found, 2, 10)
    unknown = fp.problems.Loss(lambda w, z: (z @ w) ** 2, np.zeros(2), np.ones((4, 2)), groups=[0, 0, 1, 1])
    found = theory.contraction("FedRelax", unknown, Network.complete(2), 1.0)
    assert found.kappa is None and "not known" in found.reason


def test_a_node_without_neighbours_forgets_at_once():
    task, net = fp.problems.Quadratic([1.0, 2.0, 3.0], np.eye(3)), Network.from_edges([(0, 1)], nodes=3)
    found = theory.contraction("FedRelax", task, net, 1.0)
    np.testing.assert_allclose(found.nodes, [2 / 3, 0.5, 0.0])


def test_algorithms_know_their_coupling_and_step():
    G, _, task = made()
    net = Network.from_networkx(G)
    named = theory.contraction("FedGD", task, net, 0.5, 0.01)
    assert theory.contraction(fp.FedGD(step=0.01, coupling=0.5), task, net).kappa == named.kappa
    rate = theory.spectral_rate("FedRelax", task, net, 0.5)
    assert theory.spectral_rate(fp.FedRelax(coupling=0.5), task, net) == rate


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t, n: theory.spectral_rate("FedAvg", t, n, 1.0), "not for FedAvg"),
        (lambda t, n: theory.spectral_rate("FedGD", t, n, 1.0), "give step="),
        (lambda t, n: theory.spectral_rate("FedRelax", t, n), "give coupling="),
        (lambda t, n: theory.contraction("FedGD", t, n, 1.0, -1.0), "step must be above 0"),
        (lambda t, n: theory.contraction("FedGD", t, n, 1.0, "long"), "a number or one per node"),
        (lambda t, n: theory.step_limit(t, n, -1.0), "coupling must be"),
        (lambda t, n: theory.block_norm(np.eye(3), 2), "not made of square blocks"),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(fp.FedpointError, match=message):
        call(fp.problems.Quadratic(1.0, [[0.0], [1.0]]), Network.complete(2))


def test_rates_where_the_solution_is_not_unique_are_refused():
    task = fp.problems.LeastSquares([np.eye(2)[:1]] * 2, [[1.0], [2.0]])
    with pytest.raises(fp.FedpointError, match="not unique"):
        theory.spectral_rate("FedGD", task, Network.complete(2), 1.0, 0.1)
