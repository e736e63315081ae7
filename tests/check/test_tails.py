"""The closure behind "a mean over few runs may be low": exact for normal factors, as simulated here in plain NumPy."""

import math

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.theory.tails import fourth_rate, relative_variance, settled_variance


@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_against_a_simulated_recursion(rng, spread):
    """x+ = (a + b xi) x + q with normal xi and q: the relative variance of x^2, within five standard errors."""
    a, Q, rounds, runs = 0.7, 0.5, 6, 400_000
    x = np.full(runs, 2.0)
    r2 = a**2 + spread**2
    told = relative_variance(a, r2, 1, 4.0, Q / (1 - r2), rounds)
    for t in range(rounds + 1):
        if t:
            x = (a + spread * rng.normal(size=runs)) * x + math.sqrt(Q) * rng.normal(size=runs)
        e = x**2
        relative = e.var() / e.mean() ** 2
        # Var e and E e by the delta method.
        influence = ((e - e.mean()) ** 2 - e.var()) / e.mean() ** 2 - 2 * relative * (e - e.mean()) / e.mean()
        assert abs(told[t] - relative) <= 5 * influence.std() / math.sqrt(runs) + 1e-12


def test_where_it_settles():
    """Additive noise in n directions: 2 / n. The recursion ends at the closed form, or nowhere."""
    assert settled_variance(0.6, 0.36, 4) == pytest.approx(2 / 4)
    told = relative_variance(0.6, 0.5, 3, 7.0, 2.0, 400)[-1]
    assert told == pytest.approx(settled_variance(0.6, 0.5, 3), rel=1e-9)
    assert fourth_rate(0.8, 0.9) > 1 and settled_variance(0.8, 0.9, 3) == math.inf
    assert relative_variance(0.8, 0.9, 3, 7.0, 2.0, 4000)[-1] > 1e6


def test_a_low_mean_of_heavy_tails_is_no_contradiction():
    """One of three agents a round, with a long step: the mean square is made of rare large errors.

    20 seeds, of which most settle far below the floor: none is convicted, and the words say why. A claim of which the
    run is far too noisy is still refused.
    """
    covariance = np.array([[[1.5, 0.3], [0.3, 0.6]], [[0.7, -0.2], [-0.2, 1.8]], [[1.0, 0.0], [0.0, 0.5]]])
    centers = np.array([[1.0, 0.0], [-1.5, 1.0], [0.5, -2.0]])
    problem = fp.problems.LinearStream(centers, 0.1, covariance, weights=[0.5, 0.2, 0.3])
    low = 0
    for seed in range(20):
        run = fp.run(fp.GradientExchange(0.3), problem, 200, participation=1, seed=seed, repeats=8)
        verdict = fp.check(run)
        (floor,) = (c for c in verdict.checks if c.name == "floor")
        assert verdict and "rare large errors" in floor.words, verdict
        low += floor.measured < 0.75 * floor.expected
    assert low >= 10
    assert not fp.check(run, claims=fp.GradientExchange(0.03))


def test_a_rare_large_error_of_one_repeat_does_not_move_the_limit():
    """One of 16 repeats is far out, so that the mean model is too; the repeats themselves say how far it may be."""
    covariance = np.array([[[1.5, 0.3], [0.3, 0.6]], [[0.7, -0.2], [-0.2, 1.8]], [[1.0, 0.0], [0.0, 0.5]]])
    centers = np.array([[1.0, 0.0], [-1.5, 1.0], [0.5, -2.0]])
    problem = fp.problems.LinearStream(centers, [0.1, 0.3, 0.2], covariance, weights=[0.5, 0.2, 0.3])
    run = fp.run(fp.GradientExchange(0.3), problem, 120, participation=1, seed=1041, repeats=16)
    far = run.error[:, 60:].mean(1)
    assert far.max() > 10 * np.median(far)
    assert fp.check(run), fp.check(run)
