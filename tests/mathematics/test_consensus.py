"""Methods whose nodes agree on one model: their recursions in dense matrices, where they end, how noisy they stay."""

import networkx as nx
import numpy as np
import pytest
import scipy.linalg
from consensus_laws import (
    BEST,
    GIVEN,
    NET,
    NOISE,
    PUSH,
    QUAD,
    STEP,
    C,
    D,
    H,
    K,
    W,
    adapt_then_combine,
    combine_then_adapt,
    exact_diffusion,
    extra,
    gradient_tracking,
    history,
    push_sum,
    pushed,
)

import fedpoint as fp

EXACT = [fp.ExactDiffusion(STEP), fp.Extra(STEP), fp.GradientTracking(STEP)]
LOCAL = fp.GradientTracking(STEP / 2, local_steps=3)  # several steps, and no drift


PATHS = {
    "adapt, combine": (fp.Diffusion(STEP), adapt_then_combine),
    "three steps, combine": (fp.Diffusion(STEP, local_steps=3), lambda n: adapt_then_combine(n, 3)),
    "combine, adapt": (fp.Diffusion(STEP, order="combine_then_adapt"), combine_then_adapt),
    "exact diffusion": (fp.ExactDiffusion(STEP), exact_diffusion),
    "EXTRA": (fp.Extra(STEP), extra),
    "gradient tracking": (fp.GradientTracking(STEP), gradient_tracking),
    "three steps, tracked": (fp.GradientTracking(STEP, local_steps=3), lambda n: gradient_tracking(n, 3)),
}


@pytest.mark.parametrize("name", PATHS)
def test_trajectories_are_those_of_dense_matrices(name):
    """In a tick a node sees its neighbours' last messages: what is read is the mean of all that was said."""
    method, path = PATHS[name]
    np.testing.assert_allclose(history(method), path(20), rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", [*EXACT, LOCAL], ids=lambda m: f"{m.card.title} {m.local_steps}")
def test_corrected_methods_end_at_the_solution_at_every_node(method):
    np.testing.assert_allclose(history(method, 1500)[-1], np.tile(BEST, (K, 1)), rtol=0, atol=1e-11)
    f = fp.forecast(method, QUAD, network=NET, exact=True)
    np.testing.assert_allclose(f.limit, np.tile(BEST, (K, 1)), rtol=0, atol=1e-10)
    assert f.bias == pytest.approx(0.0, abs=1e-10)


@pytest.mark.parametrize("order", ["adapt_then_combine", "combine_then_adapt"])
def test_diffusion_ends_where_its_linear_system_says(order):
    """psi = W~ psi - mu H (W~ psi - c): one system over all nodes. The model is psi or its mean."""
    mean = np.kron(W, np.eye(D))
    step = STEP * scipy.linalg.block_diag(*H)
    psi = np.linalg.solve(np.eye(K * D) - mean + step @ mean, step @ C.ravel())
    limit = (mean @ psi if order == "adapt_then_combine" else psi).reshape(K, D)
    f = fp.forecast(fp.Diffusion(STEP, order=order), QUAD, network=NET, exact=True)
    np.testing.assert_allclose(f.limit, limit, rtol=0, atol=1e-10)
    assert f.bias == pytest.approx(np.sqrt(((limit - BEST) ** 2).sum(1).mean()), rel=1e-9)


def steady_state(A, noise, read):
    """E of the mean over nodes of |error|^2 for x+ = A x + n, Cov n = noise noise', where the model is read x.

    Eigenvalues one belong to what is conserved: no noise comes that way."""
    values, vectors = np.linalg.eig(A)
    moving = abs(values) < 1 - 1e-9
    inverse = np.linalg.inv(vectors)
    V, U = vectors[:, moving], inverse[moving]
    P = scipy.linalg.solve_discrete_lyapunov(np.diag(values[moving]), U @ noise @ noise.T @ U.conj().T)
    S = (V @ P @ V.conj().T).real
    return np.trace(read @ S @ read.T) / K


def test_floors_are_those_of_a_lyapunov_equation():
    """Gradient tracking, in (w, y, g) of all nodes: y+ = W y + g(w+) + n+ - g, with fresh noise n+."""
    mean, hessian, zero, one = np.kron(W, np.eye(D)), scipy.linalg.block_diag(*H), np.zeros((K * D,) * 2), np.eye(K * D)
    w = np.hstack([mean, -STEP * mean, zero])
    g = hessian @ w
    A = np.vstack([w, np.hstack([zero, mean, -one]) + g, g])
    noise = np.sqrt(NOISE) * np.vstack([zero, one, one])
    found = fp.forecast(fp.GradientTracking(STEP), QUAD, network=NET).floor
    assert found == pytest.approx(steady_state(A, noise, np.hstack([one, zero, zero])), rel=1e-8)


def test_push_sum_over_a_directed_network():
    """Its path; where it ends, v = W (v - mu H (v / y - c)), y the eigenvector of W with a sum of K; and its floor,
    which is found to second order around a path: within half a percent."""
    np.testing.assert_allclose(pushed(fp.PushSum(STEP, local_steps=3), 8), push_sum(8, 3), rtol=0, atol=1e-12)
    values, vectors = np.linalg.eig(GIVEN)
    ones = vectors[:, np.argmax(values.real)].real
    scale = np.repeat(K * ones / ones.sum(), D)[:, None]
    mean, hessian = np.kron(GIVEN, np.eye(D)), STEP * scipy.linalg.block_diag(*H)
    A = mean @ (np.eye(K * D) - hessian / scale.T)
    v = np.linalg.solve(np.eye(K * D) - A, mean @ hessian @ C.ravel())
    limit = (v / scale[:, 0]).reshape(K, D)
    f = fp.forecast(fp.PushSum(STEP), QUAD, network=PUSH)
    np.testing.assert_allclose(f.limit, limit, rtol=0, atol=1e-9)
    assert f.bias == pytest.approx(np.sqrt(((limit - BEST) ** 2).sum(1).mean()), rel=1e-8) and f.bias > 0.05
    noise = STEP * np.sqrt(NOISE) * mean
    assert f.variance == pytest.approx(steady_state(A, noise, np.diag(1 / scale[:, 0])), rel=5e-3)
    quiet = fp.problems.Quadratic(H, C, noise=1e-14)  # far from where it ends the sums' shares are others
    curve, run = (
        fp.forecast(fp.PushSum(STEP), quiet, network=PUSH).curve(8),
        fp.run(fp.PushSum(STEP), QUAD, network=PUSH, rounds=8, exact=True),
    )
    np.testing.assert_allclose(curve, run.error[0], rtol=1e-9)


def test_directed_networks_are_for_push_sum():
    for method in (fp.Diffusion(STEP), fp.FedAvg(STEP), fp.FedGD(STEP, 0.1)):
        with pytest.raises(
            fp.FedpointError, match="needs a network whose edges go both ways, and this one is directed"
        ):
            fp.run(method, QUAD, network=PUSH, rounds=1)
    line = fp.Network.directed([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]).mixing()
    with pytest.raises(fp.FedpointError, match="the network is not strongly connected: 6 components"):
        fp.run(fp.PushSum(STEP), QUAD, network=line, rounds=1)
    with pytest.raises(fp.FedpointError, match="its sums are conserved only if"):
        fp.run(fp.PushSum(STEP), QUAD, network=PUSH, schedule=fp.RandomActivation(2), rounds=1)
    with pytest.raises(fp.FedpointError, match="a directed network has no Laplacian"):
        PUSH.minimum(QUAD, 0.1)
    with pytest.raises(fp.FedpointError, match="occurs more than once"):
        fp.Network.directed([(0, 1), (1, 0), (0, 1)])
    there = fp.Experiment.from_dict(fp.Experiment(fp.PushSum(STEP), QUAD, network=PUSH).describe()).network
    assert there.one_way and np.array_equal(there.adjacency.toarray(), PUSH.adjacency.toarray())
    assert PUSH.spectral_gap == pytest.approx(1 - np.sort(abs(np.linalg.eigvals(GIVEN)))[-2])


def test_the_published_order_on_dense_and_sparse_networks():
    """With a mean over everybody diffusion has no bias to correct, and its noise is averaged at once; on a long ring
    its bias is far above the noise (Yuan, Alghunaim, Ying and Sayed, 2020)."""
    centers = np.random.default_rng(1).normal(size=(20, 1))
    quad = fp.problems.Quadratic(np.linspace(0.5, 2.0, 20)[:, None, None], centers, noise=0.3)
    floors = {}
    for kind, net in (("dense", fp.Network.complete(20, weight=1 / 20)), ("sparse", fp.Network.ring(20).mixing())):
        for method in (fp.Diffusion(0.05), fp.ExactDiffusion(0.05)):
            floors[kind, type(method).__name__] = fp.forecast(method, quad, network=net).floor
    assert floors["sparse", "ExactDiffusion"] < 0.2 * floors["sparse", "Diffusion"]
    assert floors["dense", "Diffusion"] < 0.9 * floors["dense", "ExactDiffusion"]


# What is refused, and what is said.


@pytest.mark.parametrize("method", EXACT, ids=lambda m: m.card.title)
def test_corrections_need_nodes_in_step(method):
    with pytest.raises(fp.FedpointError, match=r"cannot run with RandomActivation.*Leave out schedule=, or use Diff"):
        fp.run(method, QUAD, network=NET, schedule=fp.RandomActivation(2), rounds=1)
    fp.Experiment(method, QUAD, network=NET, schedule=fp.InStep(fp.Clock()))


@pytest.mark.parametrize("method", EXACT, ids=lambda m: m.card.title)
def test_corrections_need_messages_as_they_are(method):
    with pytest.raises(fp.FedpointError, match="where RandK changes what neighbours hear"):
        fp.run(method, QUAD, network=NET, channel=fp.channel.RandK(0.5), rounds=1)
    rounded = fp.run(method, QUAD, network=NET, channel=fp.channel.Cast("float32"), rounds=1500, exact=True)
    np.testing.assert_allclose(rounded.models[0], np.tile(BEST, (K, 1)), rtol=0, atol=1e-4)


def test_weights_must_be_weights_of_a_mean():
    with pytest.raises(fp.FedpointError, match=r"at 0 they sum to 3: use network.mixing\(\)"):
        star = fp.Network.from_edges([(0, 1), (0, 2), (0, 3), (3, 4), (4, 5)])
        fp.run(fp.ExactDiffusion(STEP), QUAD, network=star, rounds=1)
    with pytest.raises(fp.FedpointError, match="order must be"):
        fp.Diffusion(STEP, order="combine")


def test_spectral_gaps():
    """Of W = I - Laplacian, against all of its eigenvalues; the best factor and the best weights do not do worse."""
    plain = fp.Network.from_edges([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (3, 4)])
    gaps = {}
    for kind in ("metropolis", "laplacian"):
        net = plain.mixing(kind)
        matrix = np.eye(5) - net.laplacian.toarray()
        assert (np.diag(matrix) >= -1e-12).all() and np.allclose(matrix.sum(1), 1)
        gaps[kind] = net.spectral_gap
        assert gaps[kind] == pytest.approx(1 - np.sort(abs(np.linalg.eigvalsh(matrix)))[-2], abs=1e-10)
    lazy = plain.mixing(lazy=True)
    assert np.linalg.eigvalsh(np.eye(5) - lazy.laplacian.toarray())[0] > 0
    with pytest.raises(fp.FedpointError, match="unknown mixing 'metropols'"):
        plain.mixing("metropols")
    with pytest.raises(fp.FedpointError, match="not connected"):
        fp.Network.from_edges([(0, 1), (2, 3)]).mixing("laplacian")


def test_the_fastest_weights_mix_fastest():
    pytest.importorskip("cvxpy")
    plain = fp.Network.from_edges([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (3, 4)])
    assert plain.mixing("fastest").spectral_gap > max(plain.mixing(k).spectral_gap for k in ("metropolis", "laplacian"))


ONE_WAY = np.array([[0.0, 0.3], [0.1, 0.0]])
BAD_NETWORKS = {
    "parts": (lambda: fp.Network.from_edges([(0, 1), (2, 3), (3, 4)], [0.3] * 3), "its parts learn separately"),
    "one-way": (lambda: fp.Network.from_matrix(ONE_WAY), "a network is undirected"),
    "negative": (lambda: fp.Network.from_matrix(-ONE_WAY - ONE_WAY.T), "must be above 0|negative|positive"),
    "directed": (lambda: nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]), "the graph is directed"),
    "too heavy": (lambda: fp.Network.ring(5), "must sum to at most 1 at every node"),
}


@pytest.mark.parametrize("case", BAD_NETWORKS)
def test_a_network_that_does_not_fit_is_refused_with_one_message(case):
    make, words = BAD_NETWORKS[case]
    quad = fp.problems.Quadratic(1.0, np.arange(5.0)[:, None])
    with pytest.raises(fp.FedpointError, match=words):
        fp.run(fp.Diffusion(0.1), quad, rounds=1, network=make())
