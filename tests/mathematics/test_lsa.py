"""Federated linear stochastic approximation, lecture 001: bias, trajectories, control variates, floors, speed-up.

References are plain NumPy, written from the formulas. Systems are not symmetric, and weights are unequal.
"""

import functools

import jax
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.theory.closed_forms import closed_forms

K, D, H, ETA = 4, 3, 6, 0.05
START = np.array([2.0, -1.0, 0.5])
NOISE_A, NOISE_B = 0.3, 0.5  # variances of the entries


@functools.cache
def arrays():
    rng = np.random.default_rng(0)
    A = 1.5 * np.eye(D) + 0.6 * rng.normal(size=(K, D, D))
    p = np.array([4.0, 1.0, 3.0, 2.0]) / 10
    return A, rng.normal(size=(K, D)), p


@functools.cache
def problem(noisy=False):
    A, b, p = arrays()
    return fp.problems.LinearSystem(A, b, fp.problems.Noise(b=NOISE_B, A=NOISE_A) if noisy else None, weights=p)


def star():
    A, b, p = arrays()
    return np.linalg.solve(np.tensordot(p, A, 1), p @ b)


def lecture_bias(eta, steps):
    """G = sum p_c (I - eta A_c)^H and (I - G)^-1 sum p_c (I - (I - eta A_c)^H)(th_c* - th*)."""
    A, b, p = arrays()
    powers = np.stack([np.linalg.matrix_power(np.eye(D) - eta * a, steps) for a in A])
    own = np.stack([np.linalg.solve(a, x) for a, x in zip(A, b, strict=True)])
    G = np.tensordot(p, powers, 1)
    pull = sum(w * (np.eye(D) - B) @ (x - star()) for w, B, x in zip(p, powers, own, strict=True))
    return G, np.linalg.solve(np.eye(D) - G, pull)


@pytest.mark.parametrize("steps", [1, 6])
def test_trajectory_and_bias_of_fedlsa_are_the_closed_form(steps):
    """E th_t - th* = (I - G^t) bias + G^t (th_0 - th*), at every t; without bias for H = 1."""
    G, bias = lecture_bias(ETA, steps)
    run = fp.run(fp.FedLSA(ETA, steps), problem(), rounds=40, start=START)
    power = np.eye(D)
    for t, th in enumerate(run.history[0]):
        np.testing.assert_allclose(
            th - star(), bias - power @ bias + power @ (START - star()), atol=1e-10, err_msg=str(t)
        )
        power = power @ G
    assert (np.linalg.norm(bias) < 1e-12) == (steps == 1)
    f = fp.forecast(fp.FedLSA(ETA, steps), problem(), start=START)
    np.testing.assert_allclose(f.limit, star() + bias, atol=1e-10)
    assert f.bias == pytest.approx(np.linalg.norm(bias), abs=1e-10)
    assert f.rate == pytest.approx(np.abs(np.linalg.eigvals(G)).max(), rel=1e-9)
    np.testing.assert_allclose(f.closed["bias"], bias, atol=1e-10)
    np.testing.assert_allclose(f.curve(40), run.error[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(fp.theory.lsa_bias(problem(), ETA, steps), bias, atol=1e-12)
    path = fp.theory.lsa_path(problem(), ETA, steps, 40, START)
    np.testing.assert_allclose(path, run.history[0] - star(), atol=1e-10)


def test_the_first_order_of_the_bias():
    """(eta (H-1)/2) Abar^-1 sum p_c (A_c - Abar)(A_c th* - b_c), and what is left is of second order."""
    A, b, p = arrays()
    mean = np.tensordot(p, A, 1)
    drift = sum(w * (a - mean) @ (a @ star() - x) for w, a, x in zip(p, A, b, strict=True))
    steps = ETA / 2.0 ** np.arange(8)
    left = []
    for eta in steps:
        first = eta * (H - 1) / 2 * np.linalg.solve(mean, drift)
        np.testing.assert_allclose(closed_forms(fp.FedLSA(eta, H), problem())["bias_small_step"], first, atol=1e-12)
        np.testing.assert_allclose(fp.theory.lsa_bias_small_step(problem(), eta, H), first, atol=1e-14)
        left.append(np.linalg.norm(lecture_bias(eta, H)[1] - first))
    slope = np.polyfit(np.log(steps[3:]), np.log(left[3:]), 1)[0]
    assert slope == pytest.approx(2, abs=0.1)


def scafflsa(eta, steps, rounds, sign=1.0):
    """Models (rounds + 1, d) and control variates (rounds + 1, K, d); sign = -1 as the lecture prints it."""
    A, b, p = arrays()
    th, xi = START.copy(), np.zeros((K, D))
    models, controls = [th], [xi]
    for _ in range(rounds):
        own = np.tile(th, (K, 1))
        for _ in range(steps):
            own = own - eta * (np.einsum("cij,cj->ci", A, own) - b - xi)
        th = p @ own
        xi = xi + sign * (th - own) / (eta * steps)
        models.append(th)
        controls.append(xi)
    return np.stack(models), np.stack(controls)


def controls_of(run):
    """xi: what agents keep, completed by the merged model."""
    algorithm = run.algorithm
    with jax.enable_x64(True):
        return np.asarray(algorithm.settle(run.model[:, None], run.memories).h)


def test_scafflsa_is_the_lectures_with_plus():
    models, controls = scafflsa(ETA, H, 12)
    run = fp.run(fp.ScaffLSA(ETA, H), problem(), rounds=0, start=START)
    for t in range(1, 13):
        run = run.extend(t)
        np.testing.assert_allclose(controls_of(run)[0], controls[t], atol=1e-12)
    np.testing.assert_allclose(run.history[0], models, atol=1e-12)
    assert np.abs(scafflsa(ETA, H, 200, sign=-1.0)[0][-1]).max() > 1e6


def test_control_variates_cancel_in_every_round_and_end_at_the_fields():
    """With noise: sum p_c xi_c = 0 to rounding, always. Without: xi_c -> A_c th* - b_c and th -> th*."""
    A, b, p = arrays()
    run = fp.run(fp.ScaffLSA(ETA, H), problem(noisy=True), rounds=1, repeats=3, start=START)
    for t in range(2, 10):
        xi = controls_of(run)
        assert np.abs(xi).max() > 0.1
        assert np.abs(np.einsum("c,rcd->rd", p, xi)).max() < 1e-12
        run = run.extend(t)
    run = fp.run(fp.ScaffLSA(ETA, H), problem(), rounds=400, start=START)
    np.testing.assert_allclose(run.model[0], star(), atol=1e-10)
    np.testing.assert_allclose(controls_of(run)[0], A @ star() - b, atol=1e-9)


@pytest.mark.parametrize("noisy", [False, True])
def test_scafflsa_is_scaffold_option_two_and_scaffnew_with_a_fixed_number(noisy):
    """With the same samples, step by step; xi_c = c_k - c."""
    options = {"rounds": 20, "start": START, "seed": 3, "repeats": 2}
    ours = fp.run(fp.ScaffLSA(ETA, H), problem(noisy), **options)
    scaffold = fp.run(fp.Scaffold(ETA, H, server_step=1.0, option=2), problem(noisy), **options)
    scaffnew = fp.run(fp.Scaffnew(ETA, probability=1 / H, local_steps=H), problem(noisy), **options)
    np.testing.assert_allclose(ours.history, scaffold.history, atol=1e-12)
    np.testing.assert_allclose(ours.history, scaffnew.history, atol=1e-12)
    c_k = np.asarray(scaffold.memories)
    c = np.einsum("c,rcd->rd", arrays()[2], c_k)
    np.testing.assert_allclose(controls_of(ours), c_k - c[:, None], atol=1e-11)


def second_moments(eta, steps, rounds):
    """(rounds + 1,): E|th_t - th*|^2 of FedLSA, by the second moments of (1, th) carried through every local step."""
    A, b, p = arrays()
    S = np.outer([1.0, *START], [1.0, *START])
    maps = np.stack([np.block([[np.ones((1, 1)), np.zeros((1, D))], [eta * x[:, None], np.eye(D) - eta * a]])
                     for a, x in zip(A, b, strict=True)])  # fmt: skip
    whole = np.stack([np.linalg.matrix_power(M, steps) for M in maps])
    mean = np.tensordot(p, whole, 1)

    def after(S, M):
        for _ in range(steps):
            noise = eta**2 * (NOISE_A * np.trace(S[1:, 1:]) + NOISE_B)
            S = M @ S @ M.T
            S[1:, 1:] += noise * np.eye(D)
        return S

    found = []
    look = np.concatenate([-star()[:, None], np.eye(D)], axis=1)
    for _ in range(rounds + 1):
        found.append(np.trace(look @ S @ look.T))
        own = sum(q**2 * (after(S, M) - F @ S @ F.T) for q, M, F in zip(p, maps, whole, strict=True))
        S = mean @ S @ mean.T + own
    return np.array(found)


def test_the_forecast_of_fedlsa_is_exact_with_noise_on_both_sides():
    f = fp.forecast(fp.FedLSA(ETA, H), problem(noisy=True), start=START)
    exact = second_moments(ETA, H, 200)
    np.testing.assert_allclose(f.curve(60), exact[:61], rtol=1e-9)
    assert f.floor == pytest.approx(exact[-1], rel=1e-8)
    assert "exact" in f.notes[0]


@pytest.mark.parametrize("method", [fp.FedLSA, fp.ScaffLSA])
def test_what_runs_settle_at_is_the_floor(method):
    """1,500 runs: the mean at the end, and on the way, within 4.5 standard errors (about 3 %) of the forecast."""
    algorithm = method(ETA, H)
    run = fp.run(algorithm, problem(noisy=True), rounds=40, repeats=1500, start=START, seed=1, record_every=10)
    curve = fp.forecast(algorithm, problem(noisy=True), start=START).curve(40)
    for i, t in enumerate(run.rounds):
        error = run.error[:, i].std() / np.sqrt(len(run.error)) + 1e-12
        assert abs(run.error[:, i].mean() - curve[t]) < 4.5 * error, t


def equal_agents(N):
    A, b, _ = arrays()
    noise = fp.problems.Noise(b=NOISE_B, A=0.02)
    return fp.problems.LinearSystem(np.tile(A[:1], (N, 1, 1)), np.tile(b[:1], (N, 1)), noise)


@pytest.mark.slow
@pytest.mark.parametrize("method", [fp.FedLSA, fp.ScaffLSA])
def test_linear_speed_up(method):
    """The error of N equal agents settles like 1/N: the slope of runs over N, each to about 2 %."""
    counts = [2, 32]
    runs = [
        fp.run(method(0.05, 5), equal_agents(N), rounds=150, repeats=64, start=equal_agents(N).solution(), seed=N)
        for N in counts
    ]
    settled = [run.error[:, 50:].mean() for run in runs]
    assert np.log(settled[1] / settled[0]) / np.log(counts[1] / counts[0]) == pytest.approx(-1, abs=0.04)


def test_linear_speed_up_of_forecasts():
    floors = [fp.forecast(fp.FedLSA(0.05, 5), equal_agents(N)).floor for N in (2, 32)]
    assert floors[0] / floors[1] == pytest.approx(16, rel=0.02)


def test_mean_square_divergence_is_told_from_that_of_the_mean():
    """With much noise on A the mean settles and the mean square does not: a forecast says which."""
    noisy = fp.problems.LinearSystem(np.eye(2)[None], np.ones((1, 2)), fp.problems.Noise(b=0.1, A=2.0))
    f = fp.forecast(fp.FedLSA(0.9, 1), noisy)
    assert f.rate == pytest.approx(0.1, abs=1e-6) and f.diverges and "noise is amplified" in f.reason
    assert not fp.forecast(fp.FedLSA(0.9 * noisy.stability().step, 1), noisy).diverges


def test_the_lectures_table():
    """Orders with the constants of the problem."""
    A, b, _ = arrays()
    noisy = fp.problems.LinearSystem(A + np.eye(D), b, noise=0.5)
    s = noisy.stability()
    target, start = 1e-3, np.full(D, 3.0)
    table = fp.complexity(noisy, target, start=start, search=False)
    log = np.log(np.linalg.norm(start - noisy.solution()) / np.sqrt(target))
    doan, fedlsa, scaffnew, scafflsa = (row.says for row in table.rows)
    assert doan.local_steps == 1 and doan.rounds == np.ceil(K**2 / (s.a**2 * target) * log)
    sigma2 = 0.5 * D  # of b alone
    drift = np.mean([np.linalg.norm(th - noisy.solution()) for th in noisy.local_solutions()])
    norm2 = max(np.linalg.norm(a, 2) for a in noisy.A) ** 2
    assert fedlsa.step == scafflsa.step == pytest.approx(K * s.a * target / sigma2)
    assert fedlsa.local_steps == np.ceil(sigma2 / (K * np.sqrt(target) * drift))
    assert fedlsa.rounds == pytest.approx(drift / (s.a**2 * np.sqrt(target)) * log, rel=0.1)
    assert scaffnew.local_steps == np.ceil(1 / (s.a * np.sqrt(target)))
    assert scafflsa.local_steps == np.ceil(sigma2 / (K * target * norm2))
    assert scafflsa.rounds == pytest.approx(norm2 / s.a**2 * log, rel=0.1)
    assert "SCAFFLSA" in str(table) and "orders" in str(table)
    with pytest.raises(fp.FedpointError, match="agent 0 is unstable"):
        fp.complexity(fp.problems.LinearSystem(-np.eye(2)[None], [[0.0, 1.0]]), 1e-3)
    with pytest.raises(fp.FedpointError, match="LinearSystem or TD"):
        fp.complexity(fp.problems.Quadratic(1.0, [[0.0]]), 1e-3)


@pytest.mark.slow
def test_what_forecasts_find_beside_the_lectures_table():
    """Every setting that is found reaches the target when it says."""
    small, start = fp.problems.LinearSystem([[[1.0]], [[2.0]]], [[1.0], [0.0]], noise=0.2), np.array([3.0])
    table = fp.complexity(small, 1e-2, start=start, local_steps=[4])
    makes = {"FedLSA": fp.FedLSA, "SCAFFLSA": fp.ScaffLSA, "FedLSA (Doan)": fp.FedLSA}
    makes["Scaffnew"] = lambda step, H: fp.Scaffnew(step, probability=1 / H)
    for row in table.rows:
        assert row.finds is not None, row.why
        f = fp.forecast(makes[row.method](row.finds.step, int(row.finds.local_steps)), small, start=start)
        assert f.rounds_to(1e-2) <= row.finds.rounds
    assert table["SCAFFLSA"].finds.rounds <= table["FedLSA (Doan)"].finds.rounds


def test_scaffnew_with_its_random_number_on_fields_that_rotate():
    """E|th_t - th*|^2 by summing over every H, with eigenvalues far from real: what gradients never have."""
    A = np.array([[[1.0, 4.0], [-4.0, 1.0]], [[1.2, 3.5], [-3.5, 1.2]]])
    b, q, p, eta = np.array([[1.0, 0.0], [0.5, -1.0]]), np.array([0.4, 0.6]), 0.1, 0.1
    turning = fp.problems.LinearSystem(A, b, weights=q)
    w = turning.solution()

    def after(state, steps):
        """One round with exact fields from (th - th*, xi - xi*), told by the deviations alone."""
        x, h = state[:2], state[2:].reshape(2, 2)
        own = []
        for k in range(2):
            y = x
            for _ in range(steps):
                y = y - eta * (A[k] @ y - h[k])
            own.append(y)
        new = q @ np.stack(own)
        return np.concatenate([new, (h + p / eta * (new - np.stack(own))).ravel()])

    maps = [np.stack([after(e, n) for e in np.eye(6)], axis=1) for n in range(1, 251)]
    chance = p * (1 - p) ** np.arange(250)
    state = np.concatenate([-w, -(A @ w - b).ravel()])
    S, exact = np.outer(state, state), []
    for _ in range(13):
        exact.append(np.trace(S[:2, :2]))
        S = sum(c * M @ S @ M.T for c, M in zip(chance, maps, strict=True))
    f = fp.forecast(fp.Scaffnew(eta, probability=p), turning, exact=True)
    np.testing.assert_allclose(f.curve(12), exact, rtol=1e-8)
    assert f.bias == 0 and f.rate < 1


@pytest.mark.parametrize("step", [0.1, 0.11])
def test_scafflsa_with_one_step_is_fedlsa_in_every_forecast(step):
    """The corrections cancel in the mean: rate, floor and the whole curve are FedLSA's, far out too.

    step = 0.1 with H = 20 makes p/step = 1/2, which once hid the corrections from the forecast.
    """
    world = fp.problems.garnet(agents=3, states=6, dim=2, heterogeneity=0.5)
    one, other = (fp.forecast(make(step=step, local_steps=1), world) for make in (fp.ScaffLSA, fp.FedLSA))
    assert one.rate == pytest.approx(other.rate, abs=1e-9) and one.floor == pytest.approx(other.floor, rel=1e-8)
    np.testing.assert_allclose(one.curve(400), other.curve(400), rtol=1e-6)
    long = fp.forecast(fp.ScaffLSA(step=step, local_steps=20), world)
    assert long.bias < 1e-9 and long.rate < 1 and np.isfinite(long.floor)
