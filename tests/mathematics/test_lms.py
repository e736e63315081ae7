"""Is the exact mean-square deviation of federated LMS exact? Against quadrature, and against simulation."""

import itertools
import math

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.theory import lms_floor, lms_msd

REPEATS = 400
ROUNDS = 240


def sample(agents=8, dim=4, spread=0.5, noise=0.3, variance=1.0):
    return fp.problems.LinearStream.sample(agents, dim, spread, noise, seed=3, variance=variance)


# agents, participants, local steps, spread, step, with replacement
CASES = {
    "one agent": (1, 1, 1, 0.0, 0.2, False),
    "everyone, same": (8, 8, 1, 0.0, 0.4, False),
    "everyone, different": (8, 8, 1, 0.5, 0.4, False),
    "few, different": (8, 3, 1, 0.5, 0.3, False),
    "few, local steps, same": (8, 3, 4, 0.0, 0.8, False),
    "few, local steps, different": (8, 3, 4, 0.5, 0.8, False),
    "one of many, local steps": (8, 1, 5, 0.5, 0.6, False),
    "replacement": (8, 3, 4, 0.5, 0.8, True),
}


def simulate(case):
    agents, participants, local_steps, spread, step, replacement = case
    problem = sample(agents, spread=spread)
    scheme = fp.ByWeight(participants) if replacement else fp.Uniform(participants)
    run = fp.run(
        fp.FedAvg(step=step, local_steps=local_steps, normalise=True),
        problem,
        rounds=ROUNDS,
        participation=None if agents == participants else scheme,
        repeats=REPEATS,
        seed=5,
    )
    return problem, run.error


def z_score(measured, exact):
    """Standard errors between the mean over repeats and what it should be."""
    return (measured.mean(0) - exact) / (measured.std(0, ddof=1) / math.sqrt(len(measured)))


QUICK = ("everyone, different", "few, local steps, different", "one of many, local steps", "replacement")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_recursion_against_simulation(name):
    _, participants, local_steps, _, step, replacement = case = CASES[name]
    problem, error = simulate(case)
    setting = {"step": step, "local_steps": local_steps, "participants": participants, "normalise": True}
    exact = lms_msd(problem, rounds=ROUNDS, replacement=replacement, **setting)
    floor = lms_floor(problem, replacement=replacement, **setting)
    assert exact[0] == pytest.approx(error[0, 0], rel=1e-12)
    assert exact[ROUNDS // 2] == pytest.approx(floor, rel=1e-3)  # so the second half is the steady state
    at = [1, 2, 4, 8, 16, 32, ROUNDS]
    assert np.abs(z_score(error[:, at], exact[at])).max() < 4
    steady = error[:, ROUNDS // 2 :].mean(1)
    assert abs(z_score(steady, floor)) < 4
    assert steady.std(ddof=1) / math.sqrt(REPEATS) < 0.03 * floor  # or the test would say nothing


def test_simulation_convicts_a_wrong_formula():
    """Drawing with and without replacement have different floors: the simulation tells them apart."""
    _, participants, local_steps, _, step, _ = case = CASES["few, local steps, different"]
    problem, error = simulate(case)
    wrong = lms_floor(problem, step, local_steps, participants, replacement=True, normalise=True)
    assert abs(z_score(error[:, ROUNDS // 2 :].mean(1), wrong)) > 6


def outcomes(problem, agent, w, step, local_steps):
    """Every end of one agent's local steps from w, with its probability: Gauss-Hermite quadrature over h and v.

    Second moments are polynomials of degree 4 in h and 2 in v of every step, so few nodes give them exactly.
    """
    d = problem.own.model.shape[1]
    (h1, p1), (v, pv) = (np.polynomial.hermite_e.hermegauss(n) for n in (3, 2))
    h = np.array(list(itertools.product(h1, repeat=d))) * problem.own.root[agent]
    ph = np.prod(list(itertools.product(p1, repeat=d)), axis=1)
    ends, mass = np.atleast_2d(w), np.ones(1)
    for _ in range(local_steps):
        gap = (ends - problem.own.model[agent]) @ h.T
        residual = gap[:, :, None] - problem.own.deviation[agent] * v
        ends = (ends[:, None, None] - step * residual[..., None] * h[:, None]).reshape(-1, d)
        mass = (mass[:, None, None] * ph[:, None] * pv).reshape(-1)
    return ends, mass / mass.sum()


def expected_round(problem, w, step, local_steps, participants, replacement):
    """E (w+ - w*) and E |w+ - w*|^2 after one round from w, by enumerating participants and outcomes."""
    K, d = problem.own.model.shape
    draw = (
        itertools.product(range(K), repeat=participants)
        if replacement
        else itertools.permutations(range(K), participants)
    )
    found = []
    for agents in draw:
        distinct = sorted(set(agents))
        total, mass = np.zeros((1, d)), np.ones(1)
        for k in distinct:
            ends, p = outcomes(problem, k, w, step, local_steps)
            weight = agents.count(k) / participants
            total = (total[:, None] + weight * ends).reshape(-1, d)
            mass = np.multiply.outer(mass, p).reshape(-1)
        error = total - problem.solution()
        found.append([*(mass @ error), mass @ (error**2).sum(1)])
    return np.mean(found, axis=0)


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("K, L, E, d", [(1, 1, 1, 1), (1, 1, 3, 1), (3, 2, 2, 1), (3, 3, 1, 1), (2, 1, 2, 2)])
def test_one_round_against_quadrature(K, L, E, d, replacement):
    problem = sample(K, d, spread=0.7, noise=0.4, variance=1.3)
    step, start = 0.35, np.arange(1.0, d + 1)
    # m = step / E, as FedAvg normalises.
    brute = expected_round(problem, start, step / E, E, L, replacement)
    exact = lms_msd(problem, step, E, L, rounds=1, start=start, replacement=replacement, normalise=True)
    assert exact[1] == pytest.approx(brute[-1], rel=1e-12)


def test_many_rounds_against_quadrature():
    """One dimension: E x^2 after a round is a quadratic in x, so three evaluations carry both moments on exactly."""
    problem = sample(3, 1, spread=0.7, noise=0.4)
    points = np.array([-1.0, 0.0, 1.0])
    rows = np.array([expected_round(problem, problem.solution() + x, 0.2, 2, 2, False) for x in points])
    first, second = (np.polynomial.polynomial.polyfit(points, rows[:, i], 2) for i in (0, 1))
    start = problem.solution() + 2.0
    moments, brute = np.array([1.0, 2.0, 4.0]), [4.0]
    for _ in range(20):
        moments = np.array([1.0, first @ moments, second @ moments])
        brute.append(moments[2])
    exact = lms_msd(problem, 0.2, 2, 2, rounds=20, start=start, normalise=False)
    np.testing.assert_allclose(exact, brute, rtol=1e-11)


def test_one_agent_one_dimension_by_hand():
    """E x+^2 = (1 - 2 m + 3 m^2) x^2 + m^2 noise."""
    problem = fp.problems.LinearStream([[2.0]], noise=0.5)
    by_hand = [4.0]
    for _ in range(5):
        by_hand.append((1 - 0.6 + 3 * 0.09) * by_hand[-1] + 0.09 * 0.5)
    np.testing.assert_allclose(lms_msd(problem, 0.3, rounds=5), by_hand, rtol=1e-13)


def test_floor_of_one_local_step():
    problem = sample(variance=0.8)
    K, M = problem.own.model.shape
    D = ((problem.own.model - problem.own.model.mean(0)) ** 2).sum(1).mean()
    for L in (1, 3, 8):
        c = (K - L) / (K - 1)
        top = (0.2 / L) * (M * 0.3 + 0.8 * D * (M + 1 + c))
        floor = top / (2 - 0.2 * 0.8 * (1 + (M + 1) / L))
        assert lms_floor(problem, 0.2, 1, L) == pytest.approx(floor, rel=1e-12)


def test_noise_of_unequal_agents_enters_by_its_mean():
    models = np.ones((2, 3))
    unequal = fp.problems.LinearStream(models, noise=[0.1, 0.5])
    equal = fp.problems.LinearStream(models, noise=0.3)
    assert lms_floor(unequal, 0.1, 2, 1, normalise=True) == pytest.approx(
        lms_floor(equal, 0.1, 2, 1, normalise=True), rel=1e-12
    )
    brute = expected_round(unequal, np.zeros(3), 0.1, 1, 1, False)[-1]
    assert lms_msd(unequal, 0.1, 1, 1, rounds=1)[1] == pytest.approx(brute, rel=1e-12)


def test_linear_gain_and_gain_of_local_steps():
    """Small steps: the floor of equal agents goes as 1/(L E)."""
    problem = sample(100, 10, spread=0.0)
    small = 1e-4
    base = lms_floor(problem, small, 1, 1)
    for L, E in [(10, 1), (100, 1), (1, 10), (10, 10)]:
        assert base / lms_floor(problem, small, E, L, normalise=True) == pytest.approx(L * E, rel=2e-3)


def test_steps_too_long_give_infinity():
    problem = sample(1)
    assert lms_floor(problem, 0.5) == math.inf  # 2 / (M + 2) is the limit for one agent
    assert lms_msd(problem, 0.5, rounds=10**5)[-1] == math.inf
    assert lms_msd(problem, 50.0, 5000, rounds=2, normalise=False)[1:].tolist() == [math.inf, math.inf]
    still = fp.problems.LinearStream([[0.0]], noise=0.0)
    assert lms_msd(still, 5.0, rounds=10**5)[-1] == 0
    assert lms_floor(still, 2 / 3) in (0.0, math.inf)


@pytest.mark.parametrize(
    "problem, options, message",
    [
        (fp.problems.Quadratic([1.0], [[0.0]]), {}, "problem must be a LinearStream; got <Quadratic"),
        (fp.problems.LinearStream(np.ones((2, 2)), covariance=[1.0, 2.0]), {}, "one variance for all"),
        (fp.problems.LinearStream(np.ones((2, 2)), covariance=np.eye(2)), {}, "one variance for all"),
        (fp.problems.LinearStream(np.ones((2, 2)), weights=[1.0, 2.0]), {}, "equal weights"),
        (sample(), {"participants": 9}, "9 participants of 8 agents"),
        (sample(), {"participants": 0}, "participants as one whole number"),
        (sample(), {"local_steps": [1, 2]}, "local_steps must be a whole number"),
        (sample(), {"step": -0.1}, "step above 0"),
        (sample(), {"step": [0.1] * 8}, "step must be a number"),
        (sample(), {"rounds": -1}, "rounds must be"),
        (sample(), {"start": [1.0]}, r"shape \(1,\)"),
    ],
)
def test_refuses_what_it_does_not_cover(problem, options, message):
    with pytest.raises(fp.FedpointError, match=message):
        lms_msd(problem, **{"step": 0.1, **options})
