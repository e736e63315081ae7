"""Floors of consensus methods whose nodes take several noisy steps between two means, against their recursions by hand.

Scalar quadratics f_i = h_i (x - c_i)^2 / 2 with noise of variance v in every field: a tick is a matrix M on the states
of all nodes, and adds noise of covariance Q; the variance settles at S = M S M' + Q.
"""

import numpy as np
import pytest

import fedpoint as fp

K, STEP, NOISE = 6, 0.1, 0.1
H = np.linspace(0.5, 2.0, K)
EYE, ZERO = np.eye(K), np.zeros((K, K))
NET = fp.Network.ring(K).mixing()
W = EYE - NET.laplacian.toarray()
QUAD = fp.problems.Quadratic(H[:, None, None], np.arange(K)[:, None] * 1.0, noise=NOISE)
UNEQUAL = np.array([1, 2, 3, 1, 2, 3])


def settled(M, Q):
    """Summed up: what a method conserves stays at zero, where M has an eigenvalue of one."""
    S = np.zeros_like(Q)
    for _ in range(4000):
        S = M @ S @ M.T + Q
    return np.trace(S[:K, :K]) / K


def work(steps):
    """What local steps make of a node's model, and the variance that they add."""
    a = 1 - STEP * H
    spread = [STEP**2 * NOISE * sum(a[i] ** (2 * e) for e in range(n)) for i, n in enumerate(steps)]
    return np.diag(a**steps), np.diag(spread)


def diffusion(steps):
    A, D = work(steps)
    return settled(W @ A, W @ D @ W)


def exact_diffusion(steps):
    """States (w, psi before): w+ = B (psi + w - before), B = (I + W)/2."""
    (A, D), B = work(steps), (EYE + W) / 2
    noise = np.vstack([B, EYE])
    return settled(np.block([[B @ (A + EYE), -B], [A, ZERO]]), noise @ D @ noise.T)


def tracking(steps):
    """States (w, y, own): y += g - own, w -= step y, own = g, so often; then w and y are averaged."""
    G = np.diag(H)
    one = np.block([[EYE - STEP * G, -STEP * EYE, STEP * EYE], [G, EYE, -EYE], [G, ZERO, ZERO]])
    noise = np.vstack([-STEP * EYE, EYE, EYE])
    mean = np.kron(np.diag([1.0, 1.0, 0.0]), W) + np.kron(np.diag([0.0, 0.0, 1.0]), EYE)
    each = [mean @ np.linalg.matrix_power(one, e) @ noise for e in range(steps)]
    return settled(mean @ np.linalg.matrix_power(one, steps), NOISE * sum(g @ g.T for g in each))


CASES = {
    "diffusion": (fp.Diffusion(STEP, UNEQUAL), lambda: diffusion(UNEQUAL)),
    "exact diffusion": (fp.ExactDiffusion(STEP, UNEQUAL), lambda: exact_diffusion(UNEQUAL)),
    "gradient tracking": (fp.GradientTracking(STEP, 3), lambda: tracking(3)),
    "FedAvg on a network": (fp.FedAvg(STEP, UNEQUAL), lambda: diffusion(UNEQUAL)),  # adapts, then combines
}


@pytest.mark.parametrize("name", CASES)
def test_the_variance_is_that_of_the_recursion(name):
    method, by_hand = CASES[name]
    f = fp.forecast(method, QUAD, network=NET)
    assert f.noise_by == "exact" and f.variance == pytest.approx(by_hand(), rel=1e-9)


@pytest.mark.slow
def test_batches_of_rows_settle_as_forecast():
    """Sampled rows multiply errors: the mean over the second half of forty runs, within four standard errors."""
    rng = np.random.default_rng(5)
    X, groups = rng.normal(size=(K * 8, 2)), np.repeat(np.arange(K), 8)
    y = X @ [1.0, -1.0] + 0.3 * groups + 0.3 * rng.normal(size=K * 8)
    problem = fp.problems.LeastSquares(X, y, groups=groups, batch=2, mean=True)
    method = fp.Diffusion(STEP, 2)
    f = fp.forecast(method, problem, network=NET)
    run = fp.run(method, problem, network=NET, rounds=600, repeats=40, seed=1, record_every=10)
    each = run.error[:, 30:].mean(1)
    assert f.noise_by == "exact"
    assert abs(each.mean() - f.floor) < 4 * each.std(ddof=1) / np.sqrt(40)
