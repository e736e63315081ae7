"""Orders of magnitude, measured: least-squares slopes on logarithms, with standard errors from independent samples."""

import numpy as np
import plain
import pytest
from numpy.linalg import matrix_power

import fedpoint as fp

WORLD = plain.bowls(seed=0)
EYE = np.eye(3)


def slope(x, y):
    """Least-squares slope of log y on log x, along the last axis of y."""
    x = np.log(x) - np.log(x).mean()
    return np.log(y) @ x / (x @ x)


# The bias of FedAvg is linear in the step.


def test_the_bias_of_fedavg_is_linear_in_the_step():
    """b(s) = c1 s + c2 s^2 + ..., so the slope is 1 + O(E s lambda_max): at most 5 * 2^-7 * 2 = 0.08 here.

    The run must agree with the slope of the exact bias (I - G)^-1 sum p_k (I - (I - s H_k)^E)(c_k - w*) far more
    closely, and b(s)/s must tend to lecture 001's first order, ((E-1)/2) Hbar^-1 sum p_k (H_k - Hbar) H_k (w* - c_k).
    """
    E, steps, star = 5, 2.0 ** -np.arange(7, 12), WORLD.star()
    bias, exact = [], []
    for s in steps:
        # The slowest mode decays like exp(-0.5 E s) a round: down to 1e-15 of the start.
        run = fp.run(
            fp.FedAvg(s, E, normalise=False),
            WORLD.problem(),
            rounds=int(35 / (0.5 * E * s)),
            record_every=10000,
            exact=True,
        )
        bias.append(run.model[0] - star)
        powers = np.array([matrix_power(EYE - s * H, E) for H in WORLD.H])
        pulled = np.einsum("k,kij,kj->i", WORLD.p, EYE - powers, WORLD.c - star)
        exact.append(np.linalg.solve(EYE - np.tensordot(WORLD.p, powers, 1), pulled))
    bias, exact = np.array(bias), np.array(exact)
    # A bias of 1e-4 is known to rounding of the model, 1e-13 after 1e4 rounds: nine digits.
    np.testing.assert_allclose(bias, exact, rtol=0, atol=1e-12)
    assert slope(steps, np.linalg.norm(bias, axis=1)) == pytest.approx(1.0, abs=0.08)
    mean = np.tensordot(WORLD.p, WORLD.H, 1)
    drift = np.einsum("k,kij,kj->i", WORLD.p, WORLD.H - mean, [WORLD.g(k, star) for k in range(5)])
    first = (E - 1) / 2 * np.linalg.solve(mean, drift)
    # Richardson: 2 b(s/2)/(s/2) - b(s)/s removes c2; what is left is O((E s lambda)^2) = (0.005)^2 relatively.
    limit = 2 * bias[-1] / steps[-1] - bias[-2] / steps[-2]
    np.testing.assert_allclose(limit, first, rtol=0, atol=2e-4 * np.linalg.norm(first))


def test_without_local_steps_there_is_no_bias_at_any_step():
    for s in (0.05, 0.2, 0.8):
        run = fp.run(fp.FedAvg(s, 1), WORLD.problem(), rounds=int(70 / s), exact=True)
        np.testing.assert_allclose(run.model[0], WORLD.star(), rtol=0, atol=1e-12)


# Linear gain: the steady state of a homogeneous lab falls like 1/K and 1/(L E).

DIM, NOISE, MU = 2, 0.01, 0.02


def steady_state(K, L, E, blocks=80):
    """(blocks,): means of the squared error over 1000 rounds, 20 times the correlation time 1/mu, from w* on.

    The first block, in which the steady state is reached, is left out; the others are nearly independent.
    """
    lab = fp.problems.LinearStream.sample(agents=K, dim=DIM, spread=0.0, noise=NOISE, seed=0)
    star = np.ones(DIM)  # spread 0: everybody's model is the mean, one
    few = None if L == K else L
    run = fp.run(
        fp.FedAvg(MU, E, normalise=True), lab, rounds=1000 * (blocks + 1), participation=few, seed=K + E, start=star
    )
    return run.error[0, 1001:].reshape(blocks, 1000).mean(1)


def exact_msd(L, E):
    """The exact steady state for h ~ N(0, I), equal models, L participants with E steps of mu/E (lecture 000's model).

    a = 1 - m, r = 1 - 2m + m^2 (M+2), m = mu/E: MSD = kappa/(1 - lam), lam = a^2E + (r^E - a^2E)/L, kappa = s/L.
    """
    m = MU / E
    a, r = 1 - m, 1 - 2 * m + m**2 * (DIM + 2)
    s = m**2 * DIM * NOISE * (1 - r**E) / (1 - r)
    return s / L / (1 - a ** (2 * E) - (r**E - a ** (2 * E)) / L)


def regress(x, samples):
    """Slope of log mean on log x, and its standard error by the delta method from independent samples."""
    means = np.array([s.mean() for s in samples])
    relative = np.array([s.std(ddof=1) / np.sqrt(len(s)) / s.mean() for s in samples])
    centred = np.log(x) - np.log(x).mean()
    weights = centred / (centred @ centred)
    return slope(x, means), np.sqrt((weights**2) @ relative**2)


def check_gain(x, samples, exact):
    """The measured slope agrees with that of the exact formula (z below 4), which is -1 up to O(mu); so is ours."""
    measured, error = regress(x, samples)
    expected = slope(x, exact)
    # The denominator 2 - mu (1 + (M+1)/L) varies by at most mu (M+1) / 2 = 3 % over a range of log 8.
    assert expected == pytest.approx(-1.0, abs=0.01)
    assert error < 0.03
    assert abs(measured - expected) < 4 * error


@pytest.mark.slow
def test_the_steady_state_falls_like_one_over_the_number_of_agents():
    """L0, linear gain: K = L = 1, 8, 64, one step each."""
    agents = np.array([1, 8, 64])
    check_gain(agents, [steady_state(K, K, 1) for K in agents.tolist()], [exact_msd(K, 1) for K in agents])


@pytest.mark.slow
def test_the_steady_state_falls_like_one_over_participants_times_steps():
    """L0: L of 8 agents, E local steps of mu/E: MSD ~ mu M sv2 / (2 L E)."""
    pairs = [(8, 1), (2, 8), (8, 8)]
    products = np.array([L * E for L, E in pairs])
    check_gain(products, [steady_state(8, L, E) for L, E in pairs], [exact_msd(L, E) for L, E in pairs])


# Decaying steps.


def test_the_schedule_counts_gradient_steps():
    """L4: s_t = 2/(alpha (gamma + t)), gamma = max(8 beta/alpha, E), t = round E + e; E_k of its own for an agent."""
    steps, start = (1, 1, 2, 6, 2), np.array([2.0, -1.0, 3.0])
    alpha, beta, E = 0.5, 2.0, 4
    gamma = max(8 * beta / alpha, E)
    everyone = plain.everyone(WORLD.p, 30)

    def s(k, t):
        return 2 / (alpha * (gamma + t))

    schedule = fp.steps.InverseTime.lecture004(alpha, beta, E)
    for local in (steps, (2, 3, 4, 3, 3)):
        run = fp.run(fp.FedAvg(schedule, local, normalise=False), WORLD.problem(), rounds=30, start=start, exact=True)
        np.testing.assert_allclose(run.history[0], plain.fedavg(WORLD, everyone, start, local, s), rtol=0, atol=1e-12)
    prox = fp.run(fp.FedProx(schedule, steps, pull=0.5), WORLD.problem(), rounds=30, start=start, exact=True)
    expected = plain.fedavg(WORLD, everyone, start, steps, s, pull=0.5)
    np.testing.assert_allclose(prox.history[0], expected, rtol=0, atol=1e-12)
    assert fp.steps.InverseTime.lecture004(1.0, 0.1, 7) == fp.steps.InverseTime(2.0, 7.0)  # E above 8 beta/alpha


def exact_decay(world, noise, E, rounds, start, schedule):
    """(rounds + 1,): E|x - w*|^2 of FedAvg with additive noise: mean and covariance of a linear recursion."""
    star, d = world.star(), len(start)
    mean, cov, out = start - star, np.zeros((d, d)), [(start - star) @ (start - star)]
    for r in range(rounds):
        B, shift, added = np.zeros((d, d)), np.zeros(d), np.zeros((d, d))
        for k, p in enumerate(world.p):
            M, away, spread = np.eye(d), np.zeros(d), np.zeros((d, d))
            for e in range(E):
                s = schedule(r * E + e)
                J = np.eye(d) - s * world.H[k]
                M, away = J @ M, J @ away - s * world.g(k, star)
                spread = J @ spread @ J + s**2 * noise * np.eye(d)
            B, shift, added = B + p * M, shift + p * away, added + p**2 * spread
        mean, cov = B @ mean + shift, B @ cov @ B.T + added
        out.append(mean @ mean + np.trace(cov))
    return np.array(out)


def test_decaying_steps_reach_one_over_t():
    """L4, theorem 1: strongly convex, noisy fields, E = 4: E|x_t - w*|^2 = O(1/t).

    Regressed over t = 1,200 .. 20,000 gradient steps (gamma = 32); the exact curve of the same recursion has a slope
    within 0.05 of -1 there, and the mean of 200 repeats must have that slope, with a standard error from ten groups.
    """
    world, E, rounds = plain.bowls(seed=2, K=3, d=2), 4, 5000
    start, noise = np.array([3.0, -3.0]), 1.0
    schedule = fp.steps.InverseTime.lecture004(0.5, 2.0, E)
    run = fp.run(
        fp.FedAvg(schedule, E, normalise=False),
        world.problem(noise),
        rounds=rounds,
        repeats=200,
        start=start,
        seed=6,
        record_every=50,
    )
    # Evenly spaced in log t, so that all decades weigh the same; far apart, so that records are nearly independent.
    late = np.unique(np.geomspace(6, 100, 14).round().astype(int))  # records, of 50 rounds each
    t = 32.0 + run.rounds[late] * E
    exact = exact_decay(world, noise, E, rounds, start, lambda t: 2 / (0.5 * (32.0 + t)))[run.rounds]
    expected = slope(t, exact[late])
    assert expected == pytest.approx(-1.0, abs=0.05)
    groups = run.error.reshape(10, 20, -1).mean(1)[:, late]
    slopes = slope(t, groups)
    error = slopes.std(ddof=1) / np.sqrt(len(slopes))
    assert error < 0.04
    assert abs(slopes.mean() - expected) < 4 * error
    # And the level: at every tenth record the mean over repeats is the exact one, with its standard error.
    z = plain.z_scores(run.error[:, ::10], exact[::10])
    assert np.abs(z).max() < 4.5
