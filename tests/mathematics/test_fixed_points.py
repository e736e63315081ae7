"""Where biased methods end: closed forms against the iterated limit.

Runs are long enough for the transient to fall below 1e-13 (contraction at least 0.1 a round, 400 rounds or more), so
the limit is the fixed point up to rounding; `LIMIT` = 1e-10 leaves room for the conditioning of the closed forms, which
divide by matrices of order 0.1.
"""

import jax
import jax.numpy as jnp
import numpy as np
import plain
import pytest
from numpy.linalg import matrix_power

import fedpoint as fp
from fedpoint.algorithms.general_rule import accumulate, custom

LIMIT = 1e-10
EYE = np.eye(3)
RAGGED = (1, 1, 2, 6, 2)  # compiled for the other files too
TAU = np.array(RAGGED)


def limit(algorithm, problem, rounds=1500):
    return fp.run(algorithm, problem, rounds=rounds, exact=True).model[0]


# Federated least squares, lecture 004 (6).


class Regressions:
    """Agents with rows of different counts, weights and numbers of steps."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self.A = [rng.standard_normal((m, 3)) for m in (4, 6, 8, 12, 20)]
        self.b = [rng.standard_normal(len(a)) + a @ rng.standard_normal(3) for a in self.A]
        self.p = np.array([0.3, 0.1, 0.25, 0.2, 0.15])
        self.H = np.array([a.T @ a for a in self.A])
        self.g = np.array([a.T @ y for a, y in zip(self.A, self.b, strict=True)])
        self.top = np.linalg.eigvalsh(self.H)[:, -1].max()

    def problem(self):
        return fp.problems.LeastSquares(self.A, self.b, weights=self.p)

    def parts(self, s, E):
        """P_k = s_k sum_{e < E_k} (I - s_k H_k)^e: E_k steps from x move it by -P_k (H_k x - A_k'b_k)."""
        return np.array(
            [s[k] * sum(matrix_power(EYE - s[k] * self.H[k], e) for e in range(E[k])) for k in range(len(self.p))]
        )

    def fixed_point(self, s, E):
        """L4 (6): [sum p_k P_k H_k]^-1 sum p_k P_k A_k'b_k; a common step cancels, different ones stay inside P_k."""
        P = self.parts(s, E)
        left = np.einsum("k,kij,kjl->il", self.p, P, self.H)
        return np.linalg.solve(left, np.einsum("k,kij,kj->i", self.p, P, self.g))


LS = Regressions()


@pytest.mark.parametrize("E", [(5,) * 5, RAGGED], ids=["equal", "ragged"])
def test_least_squares_ends_at_lecture_004s_fixed_point(E):
    s = 0.5 / LS.top
    model = limit(fp.FedAvg(s, E, normalise=False), LS.problem(), rounds=3000)
    expected = LS.fixed_point(np.full(5, s), E)
    np.testing.assert_allclose(model, expected, rtol=0, atol=LIMIT)
    assert np.abs(expected - LS.problem().solution()).max() > 1e-3  # it is a bias, not the solution


def test_least_squares_with_normalised_and_with_own_steps():
    """L0 (72): mu_k = mu / E_k; and a step of its own for each agent."""
    mu = 1.0 / LS.top
    model = limit(fp.FedAvg(mu, RAGGED, normalise=True), LS.problem(), rounds=3000)
    np.testing.assert_allclose(model, LS.fixed_point(mu / TAU, RAGGED), rtol=0, atol=LIMIT)
    own = np.array([0.2, 0.5, 0.3, 0.9, 0.7]) / LS.top
    model = limit(fp.FedAvg(own, RAGGED, normalise=False), LS.problem(), rounds=3000)
    np.testing.assert_allclose(model, LS.fixed_point(own, RAGGED), rtol=0, atol=LIMIT)


def test_the_fixed_point_is_the_solution_plus_lecture_001s_bias():
    """th* + (I - G)^-1 sum p_k (I - (I - s H_k)^E)(th_k* - th*), G = sum p_k (I - s H_k)^E."""
    s, E = 0.5 / LS.top, 5
    star = np.linalg.solve(np.tensordot(LS.p, LS.H, 1), LS.p @ LS.g)
    own = np.linalg.solve(LS.H, LS.g[..., None])[..., 0]
    powers = np.array([matrix_power(EYE - s * H, E) for H in LS.H])
    G = np.tensordot(LS.p, powers, 1)
    pulled = np.einsum("k,kij,kj->i", LS.p, EYE - powers, own - star)
    expected = star + np.linalg.solve(EYE - G, pulled)
    np.testing.assert_allclose(expected, LS.fixed_point(np.full(5, s), (E,) * 5), rtol=0, atol=LIMIT)
    model = limit(fp.FedAvg(s, (E,) * 5, normalise=False), LS.problem(), rounds=3000)
    np.testing.assert_allclose(model, expected, rtol=0, atol=LIMIT)


def test_the_transient_of_least_squares():
    """x^t = B^t x0 + (I - B)^-1 (I - B^t) C at every t, B = I - sum p_k P_k H_k, C = sum p_k P_k A_k'b_k."""
    s, start = 0.5 / LS.top, np.array([3.0, -2.0, 1.0])
    P = LS.parts(np.full(5, s), RAGGED)
    B = EYE - np.einsum("k,kij,kjl->il", LS.p, P, LS.H)
    C = np.einsum("k,kij,kj->i", LS.p, P, LS.g)
    run = fp.run(fp.FedAvg(s, RAGGED, normalise=False), LS.problem(), rounds=60, start=start, exact=True)
    for t in (0, 1, 2, 5, 17, 60):
        power = matrix_power(B, t)
        expected = power @ start + np.linalg.solve(EYE - B, (EYE - power) @ C)
        # One more division than the loop, by I - B of order 0.1: ten times the rounding of the other laws.
        np.testing.assert_allclose(run.history[0, t], expected, rtol=0, atol=1e-11)


# Quadratics F_i = |x - e_i|^2 / 2 (lecture 002): the fixed point is sum p_i om_i e_i / sum p_i om_i.

CENTERS = np.random.default_rng(1).standard_normal((5, 3))
P = np.array([0.3, 0.1, 0.25, 0.2, 0.15])
ETA = 0.1


def weighted_mean(om):
    return (P * om) @ CENTERS / (P @ om)


def momentum_left(tau, eta, rho):
    """What is left of x - e after tau steps with momentum: m <- rho m + z, z <- z - eta m, as a matrix power."""
    return np.array([matrix_power(np.array([[1 - eta, -eta * rho], [1.0, rho]]), t)[0, 0] for t in tau])


def decay_left(tau, eta, d):
    return np.array([np.prod(1 - eta * d ** np.arange(t)) for t in tau])


def momentum_length(tau, rho):
    """L2: |a|_1 = (tau - rho (1 - rho^tau)/(1 - rho)) / (1 - rho)."""
    return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)


def pull_length(tau, eta, mu):
    """L2: |a|_1 = (1 - (1 - eta mu)^tau) / (eta mu)."""
    return (1 - (1 - eta * mu) ** tau) / (eta * mu)


def decay_length(tau, d):
    """a_j = d^j."""
    return (1 - d**tau) / (1 - d)


def pulled(tau, eta, mu):
    """tau GD steps on |y - e|^2/2 + (mu/2)|y - x|^2 move x by this times e - x."""
    return (1 - (1 - eta * (1 + mu)) ** tau) / (1 + mu)


# FedNova moves by tau_eff sum p_i (x - y_i) / |a_i|_1 with y_i - e_i = left_i (x - e_i): om_i = (1 - left_i) / |a_i|_1.
ROUND_BOWLS = {
    "fedavg": (fp.FedAvg(ETA, RAGGED, normalise=False), 1 - (1 - ETA) ** TAU),
    "fedavg, normalised": (fp.FedAvg(0.6, RAGGED, normalise=True), 1 - (1 - 0.6 / TAU) ** TAU),
    "fedprox by steps": (fp.FedProx(ETA, RAGGED, pull=0.8), pulled(TAU, ETA, 0.8)),
    "fedprox exact": (fp.FedProx(pull=0.8, exact=True), np.ones(5)),
    "fednova": (fp.FedNova(ETA, RAGGED), (1 - (1 - ETA) ** TAU) / TAU),
    "fednova, momentum": (
        fp.FedNova(ETA, RAGGED, momentum=0.6),
        (1 - momentum_left(TAU, ETA, 0.6)) / momentum_length(TAU, 0.6),
    ),
    "fednova, proximal": (fp.FedNova(ETA, RAGGED, pull=0.8), pulled(TAU, ETA, 0.8) / pull_length(TAU, ETA, 0.8)),
    "fednova, decaying": (
        fp.FedNova(ETA, RAGGED, decay=0.7),
        (1 - decay_left(TAU, ETA, 0.7)) / decay_length(TAU, 0.7),
    ),
    "fednova, another tau_eff": (fp.FedNova(ETA, RAGGED, effective=1.5), (1 - (1 - ETA) ** TAU) / TAU),
}


@pytest.mark.parametrize("name", ROUND_BOWLS)
def test_round_quadratics(name):
    algorithm, om = ROUND_BOWLS[name]
    model = limit(algorithm, fp.problems.Quadratic(1.0, CENTERS, weights=P), rounds=400)
    np.testing.assert_allclose(model, weighted_mean(om), rtol=0, atol=LIMIT)


def test_fednova_is_consistent_to_first_order_and_fedavg_is_not():
    """L2: with unequal tau FedNova misses w* = sum p e by O(eta), FedAvg by O(1): ten times eta, ten times the miss."""
    problem, star = fp.problems.Quadratic(1.0, CENTERS, weights=P), P @ CENTERS
    miss = {}
    for eta, rounds in ((0.01, 3000), (0.001, 30000)):
        nova = limit(fp.FedNova(eta, RAGGED), problem, rounds)
        avg = limit(fp.FedAvg(eta, RAGGED, normalise=False), problem, rounds)
        miss[eta] = np.linalg.norm(nova - star), np.linalg.norm(avg - star)
    # om = (1 - (1-eta)^tau)/tau = 1 - eta (tau-1)/2 + O((eta tau)^2): the ratio is 10 up to eta tau = 4 %.
    assert miss[0.01][0] / miss[0.001][0] == pytest.approx(10, rel=0.04)
    assert miss[0.01][1] / miss[0.001][1] == pytest.approx(1, rel=0.04)


# The same with Hessians H_k of their own, by linear algebra: x - y_k = S_k (x - c_k).

WORLD = plain.bowls(seed=0)


def moved(k, tau, eta, rho=0.0, mu=0.0, d=1.0):
    """S_k: the matrix of tau local steps with momentum rho, pull mu and decay d, built column by column.

    State (y - x, m) with z = x - c fixed: m <- rho m + H (y - x) + H z + mu (y - x), y <- y - eta d^e m.
    """
    H, S = WORLD.H[k], np.zeros((3, 3))
    for j in range(3):
        away, m = np.zeros(3), np.zeros(3)
        for e in range(tau):
            m = rho * m + H @ (away + EYE[j]) + mu * away
            away = away - eta * d**e * m
        S[:, j] = -away
    return S


def ending(S):
    """The x with sum p_k S_k (x - c_k) = 0."""
    left = np.tensordot(WORLD.p, S, 1)
    return np.linalg.solve(left, np.einsum("k,kij,kj->i", WORLD.p, S, WORLD.c))


@pytest.mark.parametrize(
    "solver",
    [{}, {"momentum": 0.6}, {"pull": 0.8}, {"decay": 0.7}, {"momentum": 0.6, "pull": 0.8, "decay": 0.7}],
    ids=["plain", "momentum", "proximal", "decaying", "all three"],
)
def test_fednova_on_unequal_hessians(solver):
    named = solver.get("momentum", 0.0), solver.get("pull", 0.0), solver.get("decay", 1.0)
    S = np.array(
        [moved(k, t, ETA, *named) / plain.impulse_response(t, ETA, *named).sum() for k, t in enumerate(RAGGED)]
    )
    model = limit(fp.FedNova(ETA, RAGGED, **solver), WORLD.problem())
    np.testing.assert_allclose(model, ending(S), rtol=0, atol=LIMIT)


def test_fedprox_on_unequal_hessians():
    by_steps = np.array([moved(k, t, ETA, mu=0.8) for k, t in enumerate(RAGGED)])
    model = limit(fp.FedProx(ETA, RAGGED, pull=0.8), WORLD.problem())
    np.testing.assert_allclose(model, ending(by_steps), rtol=0, atol=LIMIT)
    # Exactly: x - y = (H + mu)^-1 H (x - c).
    exact = np.array([np.linalg.solve(H + 0.8 * EYE, H) for H in WORLD.H])
    model = limit(fp.FedProx(pull=0.8, exact=True), WORLD.problem())
    np.testing.assert_allclose(model, ending(exact), rtol=0, atol=LIMIT)


def test_qfedavg_ends_where_its_objective_is_stationary():
    """min sum p_k F_k^(q+1)/(q+1): with one local step D_k is the gradient, so the limit has sum p_k F_k^q g_k = 0."""
    model = limit(fp.QFedAvg(2.0, 0.1, 1), WORLD.problem(), rounds=20000)
    gradient = sum(p * WORLD.loss(k, model) ** 2 * WORLD.g(k, model) for k, p in enumerate(WORLD.p))
    np.testing.assert_allclose(gradient, 0, atol=LIMIT)


# |a|_1 and a itself, as the library finds them by a recursion of its own.


class Scripted:
    """An agent whose fields are given beforehand, whatever the model."""

    def __init__(self, gradients):
        self.gradients, self.round, self.evaluations = jnp.asarray(gradients), 0, 0

    def steps(self, local_steps):
        return local_steps

    def field(self, w, e=0):
        return self.gradients[e]

    loop, _step = fp.Agent.loop, 0


@pytest.mark.parametrize("tau", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("solver", "length"),
    [
        ({}, lambda tau: float(tau)),
        ({"momentum": 0.6}, lambda tau: momentum_length(tau, 0.6)),
        ({"momentum": 0.99}, lambda tau: momentum_length(tau, 0.99)),
        ({"pull": 0.8}, lambda tau: pull_length(tau, ETA, 0.8)),
        ({"decay": 0.7}, lambda tau: decay_length(tau, 0.7)),
        (
            {"momentum": 0.6, "pull": 0.8, "decay": 0.7},
            lambda tau: plain.impulse_response(tau, ETA, 0.6, 0.8, 0.7).sum(),
        ),
    ],
    ids=["plain", "momentum", "much momentum", "proximal", "decaying", "all three"],
)
def test_the_length_of_a_local_solver(solver, length, tau):
    """The closed forms of L2; and d = sum a_j g_j / |a|_1 for arbitrary gradients, so that a is right one by one."""
    gradients = np.random.default_rng(tau).standard_normal((tau, 2))
    with jax.enable_x64(True):
        d, found = accumulate(fp.FedNova(ETA, tau, **solver), jnp.ones(2), Scripted(gradients))
        d, found = np.asarray(d), float(found)
    # (1 - rho^tau)/(1 - rho) loses two digits at rho = 0.99, and so does the sum of the closed form: 1e-12.
    assert found == pytest.approx(length(tau), rel=1e-12)
    a = plain.impulse_response(tau, ETA, solver.get("momentum", 0.0), solver.get("pull", 0.0), solver.get("decay", 1.0))
    np.testing.assert_allclose(d, a @ gradients / a.sum(), rtol=0, atol=1e-13 / min(a.sum(), 1.0) * 10)


def test_lecture_002s_coefficients_are_impulse_responses():
    """a = [1-rho^tau, ..., 1-rho]/(1-rho) for momentum, [(1-eta mu)^(tau-1), ..., 1] for a pull."""
    left = np.arange(7, 0, -1)
    np.testing.assert_allclose(plain.impulse_response(7, ETA, 0.6), (1 - 0.6**left) / 0.4, rtol=1e-13)
    np.testing.assert_allclose(plain.impulse_response(7, ETA, 0.0, 0.8), (1 - ETA * 0.8) ** (left - 1), rtol=1e-13)


OWN = [[1.0], [0.5, 2.0, 0.0], [0.0, 1.0]]  # a_k of three agents, of lengths of their own


@pytest.mark.parametrize("weights", ["fedavg", "fednova", [0.2, 0.3, 0.5]])
def test_every_agent_its_own_accumulation(weights):
    """On |x - e_k|^2/2 the k-th agent accumulates om_k (x - e_k), om_k = sum_j a_kj (1 - eta)^j: the fixed point is
    sum c_k e_k / sum c_k with c_k = w_k om_k / |a_k|_1; the run and the closed form end there."""
    e, p = np.array([[0.0, 1.0], [2.0, -1.0], [5.0, 3.0]]), np.array([0.5, 0.3, 0.2])
    problem = fp.problems.Quadratic(1.0, e, weights=p)
    rule = fp.GeneralRule(ETA, [1, 3, 2], weights=weights, coefficients=OWN)
    om = np.array([a @ (1 - ETA) ** np.arange(len(a)) for a in map(np.array, OWN)])
    length = np.array([sum(a) for a in OWN])
    w = {"fedavg": p * length / (p @ length), "fednova": p}[weights] if isinstance(weights, str) else np.array(weights)

    def weighed(c):
        return c @ e / c.sum()

    expected = weighed(w * om / length)
    assert fp.run(rule, problem, rounds=400).model[0] == pytest.approx(expected, abs=1e-12)
    assert fp.forecast(rule, problem).closed["fixed_point"] == pytest.approx(expected, abs=1e-12)
    for wrong in (w * om[[1, 2, 0]] / length[[1, 2, 0]], w * om[0] / length[0]):  # another's, or the first one's
        assert np.abs(weighed(wrong) - expected).max() > 1e-3


def test_ones_of_every_agent_s_length_are_fedavg_and_fednova():
    """a_k = (1, ..., 1) with tau_k ones: FedAvg's and FedNova's own numbers, also with few participants."""
    world, steps = plain.bowls(seed=0), [1, 4, 2, 6, 3]
    ones, problem, start = [[1.0] * n for n in steps], world.problem(0.3), np.array([1.5, -2.0, 1.0])
    pairs = [("fedavg", fp.FedAvg(0.1, steps, normalise=False)), ("fednova", fp.FedNova(0.1, steps))]
    for weights, method in pairs:
        for who in (None, 2):
            rule = fp.GeneralRule(0.1, steps, weights=weights, coefficients=ones)
            a, b = (fp.run(m, problem, rounds=20, start=start, participation=who).history for m in (rule, method))
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def test_one_accumulation_for_all_is_the_same_for_each():
    a, problem = [0.5, 2.0, 1.0], plain.bowls(seed=0).problem()
    steps = [1, 3, 2, 2, 3]
    one, each = (fp.GeneralRule(ETA, steps, coefficients=c) for c in (a, [a] * 5))
    np.testing.assert_array_equal(fp.run(one, problem, rounds=9).history, fp.run(each, problem, rounds=9).history)


@pytest.mark.parametrize(
    ("steps", "a", "words"),
    [
        ([1, 2], [[1.0], [1.0]], "agent 1 has 1 coefficient for 2 local steps: give one a step"),
        (2, [[1.0, 1.0], [1.0]], "agent 1 has 1 coefficient for 2 local steps"),
        ([1, 2], [[1.0], [0.0, 0.0]], "agent 1 has coefficients that are all zero"),
        ([1, 2], [0.0, 1.0], "agent 0 has coefficients that are all zero"),
        ([1, 2], [[1.0], [-1.0, 1.0]], "none negative"),
        ([1, 2], [[1.0], []], "one list for each agent"),
        ([1, 1, 1], [[1.0], [2.0], [3.0]], "3 values, but there are 2 agents"),
    ],
)
def test_accumulations_that_do_not_fit(steps, a, words):
    with pytest.raises(fp.FedpointError, match=words):
        fp.run(fp.GeneralRule(ETA, steps, coefficients=a), fp.problems.Quadratic(1.0, [[0.0], [1.0]]), rounds=1)


def test_given_coefficients_are_used_as_given():
    a = np.array([1.0, 0.5, 2.0, 0.25])
    gradients = np.random.default_rng(0).standard_normal((4, 2))
    with jax.enable_x64(True):
        d, length = custom(fp.GeneralRule(ETA, 4, coefficients=a), jnp.ones(2), Scripted(gradients))
        np.testing.assert_allclose(np.asarray(d), a @ gradients / a.sum(), rtol=0, atol=1e-14)
        assert float(length) == a.sum()
