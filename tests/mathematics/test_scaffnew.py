"""Scaffnew's Lyapunov function, told by rounds.

Per local step (Mishchenko et al.): Psi = sum p_k |x_k - w*|^2 + (gamma/p)^2 sum p_k |h_k - g_k(w*)|^2 has
E[Psi_{t+1} | t] <= (1 - zeta) Psi_t, zeta = min(gamma mu, p^2), for gamma <= 1/L. A round is H ~ Geometric(p) steps: it
ends at a stopping time N_j = H_1 + ... + H_j. So Psi_t (1-zeta)^-t is a supermartingale that may be read at N_j:
E[Psi after j rounds / (1-zeta)^N_j] <= Psi_0, and, H being at least 1, E[Psi after j rounds] <= (1-zeta)^j Psi_0.
"""

import laws
import numpy as np
import plain
import pytest

import fedpoint as fp

WORLD = plain.bowls(seed=0)  # eigenvalues within [0.5, 2]
STAR = WORLD.star()
FIELDS = np.array([WORLD.g(k, STAR) for k in range(5)])
L = max(np.linalg.eigvalsh(H)[-1] for H in WORLD.H)
STRONG = min(np.linalg.eigvalsh(H)[0] for H in WORLD.H)
GAMMA = 1 / L
START = np.array([2.0, -1.0, 3.0])
REPEATS = 400


def psi(x, h, p):
    """Psi at models x (..., d), the same for all agents, and corrections h (..., K, d)."""
    models = ((x - STAR) ** 2).sum(-1)
    return models + (GAMMA / p) ** 2 * np.einsum("k,...kd->...", WORLD.p, (h - FIELDS) ** 2)


def rate(p):
    return min(GAMMA * STRONG, p**2)


def test_the_number_of_local_steps_is_geometric():
    """H ~ Geometric(p), the same for all agents; `run.cost` counts the mean over repeats of K sum H."""
    run = laws.scaffnew_lengths(fp.Scaffnew)
    assert run.cost.evaluations == 5 * laws.lengths_of(run).sum(1).mean()


def test_certain_communication_is_one_step_a_round():
    run = fp.run(fp.Scaffnew(GAMMA, 1.0), WORLD.problem(), rounds=30, repeats=2, exact=True)
    assert (laws.lengths_of(run) == 1).all()


@pytest.mark.parametrize("p", [0.3, 0.6])
def test_the_lyapunov_function_contracts(p):
    """By rounds, over 400 repeats with exact fields: 3.5 standard errors above the bound would refute it."""
    run = fp.run(fp.Scaffnew(GAMMA, p), WORLD.problem(), rounds=1, repeats=REPEATS, exact=True, start=START, seed=1)
    first, zeta = psi(START, np.zeros((5, 3)), p), rate(p)
    for rounds in (1, 2, 4, 8, 16):
        run = run if rounds == 1 else run.extend(rounds)
        now = psi(run.model, run.memories.h, p)
        steps = laws.lengths_of(run).sum(1)
        for value, bound in ((now / (1 - zeta) ** steps, first), (now, (1 - zeta) ** rounds * first)):
            assert value.mean() - 3.5 * value.std(ddof=1) / np.sqrt(REPEATS) <= bound
        assert now.mean() < first


@pytest.mark.parametrize("p", [0.3, 0.6])
def test_psi_after_one_round_has_the_mean_of_its_law(p):
    """E Psi = sum_h p (1-p)^(h-1) Psi(h), Psi(h) from a NumPy loop of h steps; the sum is cut where 1e-16 is left."""
    run = fp.run(fp.Scaffnew(GAMMA, p), WORLD.problem(), rounds=1, repeats=REPEATS, exact=True, start=START, seed=1)
    lengths = np.arange(1, int(np.ceil(37 / -np.log1p(-p))))
    ends = [plain.scaffnew(WORLD, START, [h], GAMMA, p) for h in lengths]
    values = np.array([psi(x[-1], h[-1], p) for x, h in ends])
    chance = p * (1 - p) ** (lengths - 1)
    zeta = rate(p)
    now = psi(run.model, run.memories.h, p)
    # Given H there is nothing random: each repeat has the value of its own H, to rounding.
    H = laws.lengths_of(run)[:, 0]
    np.testing.assert_allclose(now, values[H - 1], rtol=1e-11)
    deviation = np.sqrt(chance @ values**2 - (chance @ values) ** 2)
    assert abs(now.mean() - chance @ values) < 4 * deviation / np.sqrt(REPEATS)
    # The supermartingale at its first stopping time, exactly.
    assert chance @ (values / (1 - zeta) ** lengths) <= psi(START, np.zeros((5, 3)), p) * (1 + 1e-12)


def coin_version(p, rounds, rng):
    """ProxSkip as published: a coin after every step. Returns Psi at each communication and the steps taken."""
    x, h = np.repeat(START[None], 5, axis=0), np.zeros((5, 3))
    found, steps = [], []
    t = 0
    while len(found) < rounds:
        moved = x - GAMMA * (np.einsum("kij,kj->ki", WORLD.H, x - WORLD.c) - h)
        t += 1
        communicate = rng.random() < p
        x = np.repeat((WORLD.p @ moved)[None], 5, axis=0) if communicate else moved
        h = h + p / GAMMA * (x - moved)
        if communicate:
            found.append(psi(x[0], h, p))
            steps.append(t)
    return found, steps


def test_rounds_and_coins_are_the_same_method():
    """log Psi and the steps taken at the j-th communication have the same means and variances (z-scores below 4.5)."""
    p, rounds = 0.4, 6
    run = fp.run(fp.Scaffnew(GAMMA, p), WORLD.problem(), rounds=1, repeats=REPEATS, exact=True, start=START, seed=2)
    ours = {}
    for j in range(1, rounds + 1):
        run = run if j == 1 else run.extend(j)
        ours[j] = np.log(psi(run.model, run.memories.h, p)), laws.lengths_of(run).sum(1)
    rng = np.random.default_rng(3)
    theirs = [coin_version(p, rounds, rng) for _ in range(REPEATS)]
    for j in (1, 3, 6):
        logs = np.log([found[j - 1] for found, _ in theirs])
        steps = np.array([steps[j - 1] for _, steps in theirs])
        for a, b in ((ours[j][0], logs), (ours[j][1], steps)):
            for moment in (1, 2):
                u, v = (a - b.mean()) ** moment, (b - b.mean()) ** moment
                error = np.sqrt(u.var(ddof=1) / len(u) + v.var(ddof=1) / len(v))
                assert abs(u.mean() - v.mean()) < 4.5 * error


def test_communication_is_accelerated():
    """kappa = 400: p = 1/sqrt(kappa) needs about sqrt(kappa) log(1/eps) rounds, gradient descent kappa log(1/eps).

    To bring Psi down to 1e-6 of its start takes, by the bound, log(1e6) / -log(1 - p^2) steps, of which p are rounds:
    20 * 14 = 280. Descent contracts by 1 - 1/kappa a round at gamma = 1/L: 400 * 14 / 2 = 2800 for |x - w*|^2.
    """
    rng = np.random.default_rng(5)
    axis = np.linspace(1 / 400, 1.0, 3)
    H = np.array([np.diag(rng.permutation(axis)) for _ in range(5)])
    H[:, 0, 0] = 1 / 400  # a direction that is flat for everybody
    c = rng.standard_normal((5, 3))
    problem = fp.problems.Quadratic(H, c)
    start = 3 * np.ones(3)
    run = fp.run(fp.Scaffnew(1.0, 1 / 20), problem, rounds=420, exact=True, repeats=20, start=start, seed=1)
    assert np.median(run.error[:, -1]) < 1e-6 * run.error[0, 0]
    descent = fp.run(fp.GradientExchange(1.0), problem, rounds=420, exact=True, start=start)
    assert descent.error[0, -1] > 1e-2 * descent.error[0, 0]
