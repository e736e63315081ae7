"""The bound of an asynchronous contraction: never violated, attained, and lecture 003's exponent violated.

The simulator is plain NumPy and knows nothing of the library's engine: w(k) is the value before tick k's updates, and
age a at tick k reads w(k - a), at the earliest the start.
"""

import itertools

import numpy as np
import pytest

import fedpoint as fp
from fedpoint import theory
from fedpoint.graphs import gtv
from fedpoint.graphs.network import Network

ROUNDING = 1 + 1e-12  # of a few hundred additions of numbers of order 1


def simulate(F, start, active, age):
    """(ticks + 1, K): |w_i(k)|, of w_i+ = F_i(w(k - age_ij)) where active; F(i, stack of K values) with limit 0."""
    history = [np.asarray(start, dtype=float)]
    for k, (who, how_old) in enumerate(zip(active, age, strict=True)):
        w = history[-1].copy()
        for i in np.flatnonzero(who):
            seen = np.stack([history[k - min(int(how_old[i, j]), k)][j] for j in range(len(w))])
            seen[i] = history[k][i]  # the own value is never stale
            w[i] = F(i, seen)
        history.append(w)
    return np.linalg.norm(np.stack(history).reshape(len(history), len(start), -1), axis=2)


def check_schedule(active, age, B):
    """Every B consecutive ticks contain an update of each node; ages are at most B."""
    windows = np.lib.stride_tricks.sliding_window_view(active, B, axis=0)
    assert windows.any(axis=2).all() and age.max() <= B


def random_schedule(draw, nodes, B, ticks):
    """Each node at random times, at most B ticks apart; ages random, often the oldest."""
    active = draw.random((ticks, nodes)) < draw.choice([0.1, 0.5])
    for i in range(nodes):
        idle = draw.integers(B)
        for k in range(ticks):
            idle = 0 if active[k, i] else idle + 1
            if idle >= B:
                active[k, i], idle = True, 0
    age = draw.integers(0, B + 1, (ticks, nodes, nodes))
    age[draw.random(age.shape) < 0.5] = B
    return active, age


def worst_schedule(nodes, B, ticks):
    """All nodes at ticks B - 1, 2B - 1, ... only, with values of age B."""
    active = np.zeros((ticks, nodes), bool)
    active[B - 1 :: B] = True
    return active, np.full((ticks, nodes, nodes), B)


def swap(kappa):
    """F_i = kappa w_{i+1}: every norm shrinks by kappa exactly, and nothing depends on the own value."""
    return lambda i, w: kappa * w[(i + 1) % len(w)]


def mixed(draw, nodes, kappa):
    """Random linear maps with sum_j |T_ij| = kappa in every row, the own value included."""
    T = draw.standard_normal((nodes, nodes))
    T *= kappa / np.abs(T).sum(1, keepdims=True)
    return lambda i, w: np.tensordot(T[i], w, 1)


def folded(draw, nodes, kappa):
    """A contraction that is not linear: |F_i(w)| <= kappa max |w_j|."""
    signs = draw.choice([-1.0, 1.0], (nodes, nodes))
    return lambda i, w: kappa * np.sin(np.abs(w).max(axis=0) * signs[i, 0]) * signs[i, 1]


@pytest.mark.parametrize("B", [1, 2, 3, 5])
def test_never_violated_over_random_schedules(B):
    draw = np.random.default_rng(B)
    ticks = 12 * B
    for nodes, kappa in itertools.product((2, 4), (0.3, 0.9)):
        bound = theory.asynchronous(kappa, B, ticks).safe
        for F in (swap(kappa), mixed(draw, nodes, kappa), folded(draw, nodes, kappa)):
            active, age = random_schedule(draw, nodes, B, ticks)
            check_schedule(active, age, B)
            V = simulate(F, draw.choice([-1.0, 1.0], (nodes, 1)), active, age).max(1)
            assert (bound * V[0] * ROUNDING >= V).all()


def test_never_violated_by_any_activation_of_two_nodes():
    """Every way to be active for B = 2 over 7 ticks, with values always of age 2, or at every other tick."""
    B, ticks, kappa = 2, 7, 0.5
    bound = theory.asynchronous(kappa, B, ticks).safe
    alone = [
        p for p in itertools.product((False, True), repeat=ticks) if all(p[k] or p[k + 1] for k in range(ticks - 1))
    ]
    worst = np.zeros(ticks + 1)
    for first, second in itertools.combinations_with_replacement(alone, 2):
        active = np.array([first, second]).T
        for oldest in (np.full(ticks, B), np.arange(ticks) % 2 * B, (1 + np.arange(ticks)) % 2 * B):
            age = np.broadcast_to(oldest[:, None, None], (ticks, 2, 2))
            worst = np.maximum(worst, simulate(swap(kappa), np.ones((2, 1)), active, age).max(1))
    np.testing.assert_array_equal(worst, bound)  # powers of 1/2: exact; and attained at every tick


@pytest.mark.parametrize("B", [1, 2, 3, 4, 7])
def test_attained(B):
    """At every tick, by one schedule; powers of 1/2 are exact."""
    ticks = 9 * B + 3
    active, age = worst_schedule(3, B, ticks)
    check_schedule(active, age, B)
    V = simulate(swap(0.5), np.ones((3, 1)), active, age).max(1)
    found = theory.asynchronous(0.5, B, ticks)
    np.testing.assert_array_equal(V, found.safe)
    # Lecture 003's exponent is violated there where B >= 2, and `fails` says at which ticks.
    violated = found.ticks[found.printed * ROUNDING < V]
    np.testing.assert_array_equal(violated, found.fails)
    assert (len(violated) > 0) == (B >= 2)


def test_attained_by_fedrelax_on_two_nodes():
    """w_i = argmin h/2 |w|^2 + a |w - w_j|^2 = 2a/(h + 2a) w_j: nothing of the own value."""
    task, net, a, B = fp.problems.Quadratic(1.0, [[0.0], [0.0]]), Network.complete(2), 2.0, 3
    found = theory.contraction("FedRelax", task, net, a)
    V = simulate(lambda i, w: 2 * a / (1 + 2 * a) * w[1 - i], np.ones((2, 1)), *worst_schedule(2, B, 40)).max(1)
    np.testing.assert_allclose(V, theory.asynchronous(found, B, 40).safe, rtol=1e-12)


@pytest.mark.parametrize("method", ["FedGD", "FedRelax"])
def test_holds_for_networks_of_models(method):
    """Errors about GTVMin's solution, with the contraction factor that `contraction` finds."""
    draw, K, d, a, B, ticks = np.random.default_rng(0), 5, 2, 0.4, 3, 60
    root = draw.standard_normal((K, d, d + 1))
    task = fp.problems.Quadratic(root @ np.swapaxes(root, 1, 2) + 0.5 * np.eye(d), draw.standard_normal((K, d)))
    net = Network.from_edges([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2)], [1.0, 2.0, 0.5, 1.0, 1.5, 0.3])
    (H, b), A, degree = task.linear_fields(), net.adjacency.toarray(), net.degrees
    step = 1 / (np.linalg.eigvalsh(H)[:, -1] + 2 * a * degree).max()
    best = gtv.solve(task, net, a)

    def gd(i, e):
        w = e + best
        return w[i] - step * (H[i] @ w[i] - b[i] + 2 * a * (degree[i] * w[i] - A[i] @ w)) - best[i]

    def relax(i, e):
        near = A[i] @ (e + best)
        return np.linalg.solve(H[i] + 2 * a * degree[i] * np.eye(d), b[i] + 2 * a * near) - best[i]

    bound = theory.asynchronous(theory.contraction(method, task, net, a, step), B, ticks).safe
    for schedule in (worst_schedule(K, B, ticks), *(random_schedule(draw, K, B, ticks) for _ in range(3))):
        check_schedule(*schedule, B)
        V = simulate(gd if method == "FedGD" else relax, -best, *schedule).max(1)
        assert (bound * V[0] * ROUNDING + 1e-14 >= V).all()


def test_the_numbers():
    found = theory.asynchronous(0.5, 2, 10)
    assert found.safe.tolist() == [0.5**n for n in (0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3)]
    np.testing.assert_allclose(found.printed, 0.5 ** (np.arange(11) / 5))
    assert found.fails.tolist() == [1]
    assert theory.asynchronous(0.5, 3, 30).fails.tolist() == [1, 2, 8]  # 8/7 > 1: before the second factor at 9
    np.testing.assert_allclose(found.rate, 0.5**0.25)
    assert theory.asynchronous(0.5, 2, [7, 3]).safe.tolist() == [0.25, 0.5]
    assert theory.asynchronous(0.0, 2, 3).safe.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert "1 ticks" not in repr(found) and "B = 2" in repr(found)


def test_ticks_to_a_factor():
    for kappa, B, factor in itertools.product((0.2, 0.5, 0.9), (1, 2, 5), (0.9, 0.5, 0.25, 1e-3)):
        found = theory.asynchronous(kappa, B, 1000)
        first = int(np.flatnonzero(found.safe <= factor * ROUNDING)[0])
        assert found.ticks_to(factor) == first
    assert found.ticks_to(2.0) == 0


def test_picture(tmp_path):
    found = theory.asynchronous(0.5, 3, 40)
    found.plot(tmp_path / "bound.png", errors=0.9 * found.safe)
    with pytest.raises(fp.FedpointError, match="41 ticks"):
        found.plot(errors=[1.0])


@pytest.mark.parametrize(
    ("kappa", "B", "ticks", "message"),
    [
        (1.0, 2, 10, "below 1"),
        (-0.1, 2, 10, "at least 0"),
        ("half", 2, 10, "kappa must be"),
        (0.5, 0, 10, "B must be"),
        (0.5, 1.5, 10, "B must be"),
        (0.5, 2, -1, "ticks must be"),
        (0.5, 2, [0.5], "ticks must be"),
    ],
)
def test_mistakes(kappa, B, ticks, message):
    with pytest.raises(fp.FedpointError, match=message):
        theory.asynchronous(kappa, B, ticks)
