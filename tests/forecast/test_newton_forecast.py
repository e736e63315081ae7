"""Newton's method ends at w*, quadratically, as forecast; with noise at the floor that its own round implies."""

import os
import subprocess
import sys

import numpy as np
import pytest

import fedpoint as fp

RNG = np.random.default_rng(0)
X = np.column_stack([RNG.normal(size=(80, 2)), np.ones(80)])
COUNTS = fp.problems.GLM(X, RNG.poisson(np.exp(X @ [0.3, 0.2, 2.0])), np.arange(80) % 4, "poisson")


def test_it_ends_at_the_solution_quadratically_in_the_rounds_that_are_forecast():
    run, f = fp.run(fp.FedNewton(), COUNTS, rounds=12), fp.forecast(fp.FedNewton(), COUNTS)
    assert f.bias == 0 and f.rate < 1e-8 and "quadratic: errors are squared" in str(f)
    rounds = int(f.rounds_to(1e-16))
    assert run.error[0, rounds] <= 1e-16 < run.error[0, rounds - 1]
    np.testing.assert_allclose(run.error[0, : rounds - 1], f.curve(12)[: rounds - 1], rtol=1e-6)
    assert bool(fp.check(run))
    late = np.sqrt(run.error[0, 3:rounds])
    assert (late[1:] < 5 * late[:-1] ** 2).all()  # |e+| <= |H^-1| |g''|/2 |e|^2, here below 5


def test_few_participants_are_refused_with_the_reason():
    with pytest.raises(fp.FedpointError, match=r"their own minimum, not to that of all\. Use Everyone"):
        fp.run(fp.FedNewton(), COUNTS, rounds=1, participation=2)


def test_noise_leaves_the_floor_of_its_covariance():
    """w+ = w - H^-1 (g + n) to first order, with n of variance s^2 a number: E|w - w*|^2 = s^2 |H^-1|_F^2."""
    weights = np.full(4, 0.25)
    problem = fp.problems.GLM(X, COUNTS.y, np.arange(80) % 4, "poisson", weights=weights)
    clip, multiplier = 1e3, 1e-6
    channel = [fp.channel.Clip(clip), fp.channel.Gaussian(multiplier)]
    H = np.tensordot(problem.weights, problem.hessians(problem.solution()), 1)
    expected = (clip * multiplier * weights.max()) ** 2 * (np.linalg.inv(H) ** 2).sum()
    run = fp.run(fp.FedNewton(halvings=0), problem, rounds=30, repeats=200, channel=channel)
    late = run.error[:, 20:].mean()  # rounds are independent: 2,000 of them, each with a relative deviation below 1.5
    assert late == pytest.approx(expected, rel=5 * 1.5 / np.sqrt(2000))
    assert fp.forecast(fp.FedNewton(halvings=0), problem, channel=channel).floor == pytest.approx(expected, rel=0.01)


ENDS = """
import numpy as np
import fedpoint as fp

rng = np.random.default_rng(0)
X, y = rng.normal(size=(120, 3)), rng.integers(3, size=120)
problem = fp.problems.Logistic(X, y, np.repeat(np.arange(6), 20), ridge=0.2, batch=4)
f = fp.forecast(fp.FedNewton(), problem, channel=fp.channel.Erase(0.2))
print(f.floor > 0)
"""


def test_a_forecast_of_noisy_newton_rounds_ends():
    """Decompositions of two batches at once waited for each other without end, compiled as users do, on two cores."""
    own = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, "-c", ENDS], env=own, capture_output=True, text=True, timeout=400)
    assert done.stdout.strip() == "True", done.stderr
