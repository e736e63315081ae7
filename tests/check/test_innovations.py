"""Innovations: against the joint law of all records, and against the likelihood that they are the score of."""

import numpy as np
import pytest
from scipy import stats

from fedpoint.theory.innovations import NUDGE, Filtered, Observed, Rounds, Watched, innovations
from fedpoint.theory.tails import square_score, student_score, sum_score

READS = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])  # the third number is remembered and never recorded


def made(step=1.0, multiplicative=0.0, n=3):
    """x+ = M x + b + v: additive noise, and noise that grows with the state."""
    M = np.array([[0.7, 0.1, 0.2], [0.0, 0.6, -0.1], [0.1, 0.0, 0.8]])[:n, :n]
    M = np.eye(n) + step * (M - np.eye(n))
    b, root = (
        step * np.array([0.3, -0.2, 0.1])[:n],
        step * np.array([[0.5, 0.1, 0.2], [0.0, 0.4, 0.3], [0.0, 0.0, 0.3]]),
    )
    root = root[:n, :n]
    whole = np.block([[np.ones((1, 1)), np.zeros((1, n))], [b[:, None], M]])

    def second(S):
        new = whole @ S @ whole.T
        new[1:, 1:] += root @ root.T * S[0, 0] + (step * multiplicative) ** 2 * np.diag(np.diag(S)[1:])
        return new

    return Rounds(M, b, second), root


def simulated(rounds, root, start, at, rng, repeats=40, multiplicative=0.0):
    n = len(rounds.b)
    x, kept = np.tile(start, (repeats, 1)), []
    for t in range(1, max(at) + 1):
        noise = rng.normal(size=(repeats, n)) @ root.T + multiplicative * x * rng.normal(size=(repeats, n))
        x = x @ rounds.M.T + rounds.b + noise
        if t in at:
            kept.append(x)
    return np.stack(kept, axis=1)


def joint(rounds, root, start, R, at):
    """Mean and covariance of all records together, from the sums that they are."""
    last, n = max(at), len(start)
    means, x = {}, start
    for t in range(1, last + 1):
        x = rounds.M @ x + rounds.b
        means[t] = R @ x
    power = [np.linalg.matrix_power(rounds.M, k) for k in range(last + 1)]
    blocks = [
        [
            sum(
                (R @ power[s - r] @ root @ root.T @ power[t - r].T @ R.T for r in range(1, min(s, t) + 1)),
                np.zeros((len(R), len(R))),
            )
            for t in at
        ]
        for s in at
    ]
    assert n == len(root)
    return np.concatenate([means[t] for t in at]), np.block(blocks)


@pytest.mark.parametrize("at", [[1, 2, 3, 4, 5, 6], [2, 4, 6, 9]])
@pytest.mark.parametrize("kind", [Observed, Filtered])
def test_predictions_are_those_of_the_joint_law(rng, kind, at):
    """Conditional means and covariances of a normal vector, by solving with its covariance."""
    n = 2 if kind is Observed else 3
    rounds, root = made(n=n)
    R, start = (np.array([[1.0, 0.5], [0.0, 2.0]]) if kind is Observed else READS), np.arange(1.0, n + 1)
    models = simulated(rounds, root, start, at, rng) @ R.T
    told = kind(rounds, Watched(at, start, R)).predict(models)
    mean, cov = joint(rounds, root, start, R, at)
    d = len(R)
    for t in range(len(at)):
        now, past = slice(t * d, (t + 1) * d), slice(0, t * d)
        weights = cov[now, past] @ np.linalg.inv(cov[past, past]) if t else np.zeros((d, 0))
        expected = mean[now] + (models[:, :t].reshape(len(models), -1) - mean[past]) @ weights.T
        np.testing.assert_allclose(told.mean[:, t], expected, atol=1e-9)
        np.testing.assert_allclose(told.C[0, t], cov[now, now] - weights @ cov[past, now], atol=1e-9)


def likelihood(kind, rounds, watched, models):
    """log of the normal density of the innovations."""
    told = kind(rounds, watched).predict(models)
    e, C = models - told.mean, np.broadcast_to(told.C, (len(models), *told.C.shape[1:]))
    return -0.5 * float((e * np.linalg.solve(C, e[..., None])[..., 0]).sum() + np.linalg.slogdet(C)[1].sum())


@pytest.mark.parametrize("kind", [Observed, Filtered])
def test_the_score_is_the_slope_of_the_likelihood(rng, kind):
    n, at = 2 if kind is Observed else 3, [1, 2, 3, 5, 7]
    R, start = (np.eye(2) if kind is Observed else READS), np.ones(n)
    rounds, root = made(multiplicative=0.3, n=n)
    models = simulated(rounds, root, start, at, rng, multiplicative=0.3) @ R.T
    watched = Watched(at, start, R)
    found = innovations(rounds, tuple(made(1 + s * NUDGE, 0.3, n)[0] for s in (-1, 1)), watched, models)
    h = 1e-4
    low, high = (likelihood(kind, made(1 + s * h, 0.3, n)[0], watched, models) for s in (-1, 1))
    assert found.score.sum() == pytest.approx((high - low) / (2 * h), rel=1e-4)


def test_the_information_is_the_variance_of_the_score(rng):
    """Normal noise: over 4,000 runs Var U = I within five standard errors, E U = 0, E of the excess 0."""
    at, start, repeats = list(range(1, 9)), np.ones(3), 4000
    rounds, root = made()
    models = simulated(rounds, root, start, at, rng, repeats) @ READS.T
    found = innovations(rounds, tuple(made(1 + s * NUDGE)[0] for s in (-1, 1)), Watched(at, start, READS), models)
    U = found.score.sum(1)
    assert abs(U.var() / found.information.mean() - 1) <= 5 * stats.kurtosis(U, fisher=False) ** 0.5 / repeats**0.5
    assert abs(U.mean()) <= 5 * U.std() / repeats**0.5
    assert abs(found.noise - 1) <= 5 * (2 / found.freedom.sum()) ** 0.5
    assert abs(sum_score(found.score)) < 5 and abs(sum_score(found.excess)) < 5
    longer, root = made(1.02)
    wrong = simulated(longer, root, start, at, rng, repeats) @ READS.T
    seen = innovations(rounds, tuple(made(1 + s * NUDGE)[0] for s in (-1, 1)), Watched(at, start, READS), wrong)
    assert abs(seen.delta - 0.02) <= 5 / found.information.sum() ** 0.5 and sum_score(seen.score) > 3


def test_scores_are_those_of_known_laws(rng):
    for repeats in (8, 50):
        z = student_score(5.8, repeats)
        assert stats.norm.sf(z) == pytest.approx(stats.t.sf(5.8, repeats - 1), rel=1e-6)
    assert student_score(5.8, 50) > 5 and student_score(-5.8, 50) < -5  # 5.8 standard errors do not pass
    for d in (1, 3, 10):  # equal weights are a plain chi-square
        for p in (1e-2, 1e-6):
            x = stats.chi2.isf(p, d)
            assert 2 * stats.norm.sf(square_score(2.5 * x, np.full(d, 2.5))) == pytest.approx(p, rel=1e-6)
    w = np.array([3.0, 1.0, 0.2])
    drawn = (w * rng.normal(size=(400_000, 3)) ** 2).sum(1)
    x = np.quantile(drawn, 0.999)
    assert 2 * stats.norm.sf(square_score(float(x), w)) == pytest.approx(1e-3, rel=0.25)  # 400 draws beyond: 5 %
    assert square_score(0.1, w) == 0.0
