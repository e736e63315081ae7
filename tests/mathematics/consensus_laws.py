"""The recursions of methods whose nodes agree on one model, in dense matrices: what the library's are held against."""

import numpy as np

import fedpoint as fp

K, D, STEP, NOISE = 6, 2, 0.1, 0.3
RNG = np.random.default_rng(4)
ROOT = RNG.normal(size=(K, D, D))
H = ROOT @ np.swapaxes(ROOT, 1, 2) / D + 0.5 * np.eye(D)
C = RNG.normal(size=(K, D))
QUAD = fp.problems.Quadratic(H, C, noise=NOISE)
NET = fp.Network.from_edges([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3)]).mixing()
W = np.eye(K) - NET.laplacian.toarray()
BEST = np.linalg.solve(H.sum(0), np.einsum("kij,kj->i", H, C))
START = np.tile(RNG.normal(size=D), (K, 1))  # all nodes begin at one model


def gradient(w):
    return np.einsum("kij,kj->ki", H, w - C)


def adapted(w, steps=1):
    for _ in range(steps):
        w = w - STEP * gradient(w)
    return w


def adapt_then_combine(rounds, steps=1):
    path = [START]
    for _ in range(rounds):
        path.append(W @ adapted(path[-1], steps))
    return path


def combine_then_adapt(rounds):
    path = [START]
    for _ in range(rounds):
        path.append(adapted(W @ path[-1]))
    return path


def exact_diffusion(rounds):
    path, before, half = [START], START, (np.eye(K) + W) / 2
    for _ in range(rounds):
        psi = adapted(path[-1])
        path.append(half @ (psi + path[-1] - before))
        before = psi
    return path


def extra(rounds):
    path, half = [START, W @ START - STEP * gradient(START)], (np.eye(K) + W) / 2
    while len(path) <= rounds:
        a, b = path[-2:]
        path.append(b + W @ b - half @ a - STEP * (gradient(b) - gradient(a)))
    return path


def gradient_tracking(rounds, steps=1):
    path, y = [START], gradient(START)
    for _ in range(rounds):
        w = path[-1]
        for _ in range(steps - 1):  # a node's own, between two means
            new = w - STEP * y
            w, y = new, y + gradient(new) - gradient(w)
        path.append(W @ (w - STEP * y))
        y = W @ y + gradient(path[-1]) - gradient(w)
    return path


PUSH = fp.Network.directed([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 2), (1, 4), (3, 0)]).mixing()
GIVEN = PUSH.adjacency.toarray() + np.diag(1 - PUSH.adjacency.toarray().sum(0))  # columns sum to one


def push_sum(rounds, steps=1):
    path, x, ones = [START], START, np.ones((K, 1))
    for _ in range(rounds):
        v, ones = GIVEN @ x, GIVEN @ ones
        x = v + adapted(v / ones, steps) - v / ones
        path.append(GIVEN @ x / (GIVEN @ ones))
    return path


def pushed(method, rounds):
    return fp.run(method, QUAD, network=PUSH, rounds=rounds, exact=True, start=START).history[0]


def follows_push_sum(make, run):
    np.testing.assert_allclose(pushed(make(STEP), 6), push_sum(6), rtol=0, atol=1e-12)


def history(method, rounds=20):
    return fp.run(method, QUAD, network=NET, rounds=rounds, exact=True, start=START).history[0]


def follows_path(path):
    """The law: from one model at all nodes a run is this path."""

    def law(make, run):
        np.testing.assert_allclose(history(make(STEP), 6), path(6), rtol=0, atol=1e-12)

    return law


CONSENSUS = {
    "diffusion": {"path": follows_path(adapt_then_combine)},
    "exact_diffusion": {"path": follows_path(exact_diffusion)},
    "extra": {"path": follows_path(extra)},
    "push_sum": {"path": follows_push_sum},
    "gradient_tracking": {"path": follows_path(gradient_tracking)},
}
