"""The floor of large models, from columns of a round's noise: against closed forms, enumerations, and the exact theory
on models that are small enough for it; and broken variants of it, which must be found out."""

import itertools
import math

import numpy as np
import pytest
from sklearn.datasets import load_digits

import fedpoint as fp
from fedpoint.theory import bundles as by_columns
from fedpoint.theory.columns import Columns
from fedpoint.theory.noise_columns import Noise
from fedpoint.theory.outlook import Gauge, Law
from fedpoint.theory.powers import Powers, lyapunov, summed_directly
from fedpoint.theory.quadratic_forms import quantile
from fedpoint.verbs.forecast import prepare
from fedpoint.verbs.run import as_experiment

K, D = 6, 12


def least_squares(batch=4, seed=0):
    """Agents of different curvature, and different optima."""
    rng = np.random.default_rng(seed)
    A = [rng.normal(size=(10, D)) * (1 + 0.3 * k) for k in range(K)]
    b = [a @ (1 + rng.normal(size=D)) + rng.normal(size=10) for a in A]
    return fp.problems.LeastSquares(A, b, mean=True, batch=batch)


def forecast(method, **options):
    problem = options.pop("problem", None) or least_squares()
    return prepare(as_experiment(method, problem, options))


def columns_of(f, seed=0, kind=Columns):
    return kind(f.setting, f.state, f.origin, Gauge(f.optimum), f.rate, seed)


# Sums over powers


def seen_by(R):
    """Inner products of rows v as R v."""
    return lambda rows: rows @ R.T @ R @ rows.T


def sums_over_powers(A, R, columns, steps):
    powers = Powers(lambda rows: rows @ A.T, columns)
    powers.extend(steps)
    return powers, powers.sums(powers.gram(seen_by(R)))


def exact_sums(A, R, columns):
    W = R.T @ R
    for _ in range(40):  # W = sum_t A'^t R'R A^t, doubled
        W, A = W + A.T @ W @ A, A @ A
    return np.einsum("bi,ij,bj->b", columns, W, columns)


def test_sums_over_powers_are_those_of_the_lyapunov_equation():
    rng = np.random.default_rng(1)
    H = rng.normal(size=(20, 20))
    H = H @ H.T / 20 + 0.1 * np.eye(20)
    A, R, q = np.eye(20) - 0.4 * H, rng.normal(size=(5, 20)), rng.normal(size=(3, 20))
    exact = exact_sums(A, R, q)
    np.testing.assert_allclose(sums_over_powers(A, R, q, 20)[1], exact, rtol=1e-8)  # all that q reaches
    np.testing.assert_allclose(sums_over_powers(A, R, q, 12)[1], exact, rtol=1e-2)
    np.testing.assert_allclose(summed_directly(lambda v: v @ A.T, q, seen_by(R), 1e-12), exact, rtol=1e-8)


def test_squares_of_single_powers_are_exact_below_the_dimension():
    rng = np.random.default_rng(2)
    A, R, q = rng.normal(size=(30, 30)) / 6, rng.normal(size=(4, 30)), rng.normal(size=(2, 30))
    powers, _ = sums_over_powers(A, R, q, 10)
    squares = powers.squares(powers.gram(seen_by(R)), 10)
    for t in range(10):
        np.testing.assert_allclose(squares[:, t], ((q @ np.linalg.matrix_power(A.T, t) @ R.T) ** 2).sum(1), rtol=1e-9)


def delay_line(n, gain=1.05):
    """A line of n places with a loop behind it, seen at its end only: all eigenvalues have one modulus, below 1."""
    A = np.diag(np.full(n - 1, gain), -1)
    A[0, -1] = 0.9**n / gain ** (n - 1)
    return A, np.eye(n)[-1:]


def test_a_basis_that_is_shorter_than_a_delay_line_is_not_believed():
    """It sees nothing of what comes, and agrees with shorter ones: what leaks out of it tells."""
    A, R = delay_line(40)
    q = np.eye(40)[:1]
    powers, sums = sums_over_powers(A, R, q, 12)
    assert sums[0] == 0.0 and powers.leak() > by_columns.LEAK
    _, _, sums = by_columns.follow(lambda v: v @ A.T, q, seen_by(R))
    np.testing.assert_allclose(sums, exact_sums(A, R, q), rtol=1e-8)


def test_far_from_normal_the_sum_is_a_direct_one():
    """A short basis has eigenvalues beyond 1, and a long one does not fit."""
    n = by_columns.LONGEST + 20
    A, R = delay_line(n, gain=1.2)
    q = np.eye(n)[:1] + np.eye(n)[1:2]
    powers, sums = sums_over_powers(A, R, q, 12)
    assert powers.radius()[0] > 1 and np.isinf(sums[0])
    _, _, sums = by_columns.follow(lambda v: v @ A.T, q, seen_by(R))
    np.testing.assert_allclose(sums, exact_sums(A, R, q), rtol=1e-2)


def test_a_sum_that_grows_is_infinite():
    assert np.isinf(lyapunov(np.array([[[1.01]]]))).all() and np.isfinite(lyapunov(np.array([[[0.99]]]))).all()


# Columns of a round


def enumerated(f, count):
    """(n, n): the covariance of a noiseless round from the limit, over all subsets of so many agents, from the engine's
    own rounds of every agent alone."""
    s, x = f.setting, f.state
    alone = []
    for k in range(K):
        weights = np.zeros(K)
        weights[k] = s.problem.weights[k]
        numbers = s.numbers._replace(cases=s.numbers.cases._replace(weight=weights[None], heard=np.eye(K)[k][None]))
        alone.append(one_round(s, numbers, x) - x)
    rounds = [sum(alone[k] for k in who) * K / count for who in itertools.combinations(range(K), count)]
    return np.cov(np.array(rounds).T, bias=True)


def one_round(setting, numbers, x):
    from fedpoint.core.precision import double
    from fedpoint.theory.round_maps import step

    return np.asarray(double(step)(setting.space, numbers, x, np.int32(0)))


def test_columns_of_participation_are_those_of_all_subsets():
    f = forecast(fp.FedAvg(0.02, 3), participation=2, exact=True)
    noise = Noise(f.setting, f.state)
    expected = enumerated(f, 2)
    np.testing.assert_allclose(noise.within(np.eye(D)), expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    taken, samples = noise.draw(64)
    assert np.abs(samples).max() <= 1e-12 * np.abs(taken).max()  # exact fields: nothing else is random
    formula = np.sqrt((K - 2) / (2 * K * (K - 1))) * (a := np.asarray(noise.answers.by_weight))
    formula = np.sqrt((K - 2) / (2 * K * (K - 1))) * (a - a.mean(0))  # a_k = K p_k times a change, p_k = 1/K
    np.testing.assert_allclose(formula.T @ formula, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


# The floor, against the exact theory


def within(found, exact, width=4.0):
    return abs(found.variance - exact) <= width * found.error and found.error <= 0.1 * exact


METHODS = {
    "fedavg, few": (fp.FedAvg(0.02, 3), {"participation": 2}),
    "scaffold, few": (fp.Scaffold(0.02, 3), {"participation": 3}),
    "scaffnew": (fp.Scaffnew(0.02, local_steps=3), {}),
}
MORE = {
    "fedavg, everyone": (fp.FedAvg(0.02, 3), {}),
    "fedprox, few": (fp.FedProx(0.02, 3, pull=0.5), {"participation": 2}),
    "fedavg, by weight": (fp.FedAvg(0.02, 3), {"participation": fp.ByWeight(2)}),
    "fedavg, answering": (fp.FedAvg(0.02, 3), {"participation": fp.Answering(fp.Uniform(3), 0.7)}),
    "scaffold, everyone": (fp.Scaffold(0.02, 3), {}),
    "fedavg, ragged": (fp.FedAvg(0.02, (1, 2, 4, 3, 2, 1)), {"participation": 2}),
}


ROUNDS = [1, 2, 4, 8, 16, 32, 64, 128]


def agrees(method, options):
    """The floor within four standard errors, and the curve within them or 15 % of the variance (64 draws at every node:
    a column of samples differs from the next by up to its own square)."""
    f = forecast(method, **options)
    found = columns_of(f)
    assert within(found, f.variance), (found.variance, found.error, f.variance)
    expected, path = f.outlook.path(max(ROUNDS)), found.path(max(ROUNDS))
    slack = np.maximum(0.15, 4 * found.error / f.variance) * expected.variance[ROUNDS] + 0.01 * expected.total[ROUNDS]
    off = np.abs(path.total - expected.total)[ROUNDS]
    assert (off <= slack).all(), (path.total / expected.total)[ROUNDS]
    short = columns_of(f)
    short.bundles = found.bundles
    np.testing.assert_allclose(short.path(4).total, path.total[:5], rtol=1e-3)  # however far it is asked for
    for round in (None, 1, 10, 40):
        assert alike(found.law(round), f.outlook.law(round)), round


def alike(found, exact):
    """Quantiles of single runs within 12 %: 8 columns, and 64 draws of samples, tell covariances to about 15 %."""
    ratios = np.array([quantile(found, p) / quantile(exact, p) for p in (0.1, 0.5, 0.9)])
    return bool((np.abs(ratios - 1) <= 0.12).all())


def test_laws_of_the_wrong_shape_are_found_out():
    """All in one direction, or in so many that nothing is left to chance: the mean is right, quantiles are not."""
    f = forecast(fp.FedAvg(0.02, 3), participation=2)
    exact = f.outlook.law(None)
    gap = float((exact.gap**2).sum()) + exact.rest
    one = Law(np.array([f.variance]), np.zeros(1), gap)
    many = Law(np.full(1000, f.variance / 1000), np.zeros(1000), gap)
    assert alike(exact, exact) and not alike(one, exact) and not alike(many, exact)


@pytest.mark.slow
def test_single_runs_of_a_large_model_stay_below_their_quantiles():
    """Softmax on digits, 640 numbers: of 120 runs the shares below forecast quantiles, settled and on the way, within
    four standard errors of a share and 5 % more, as the forecast is of second order."""
    X, y = load_digits(return_X_y=True)
    who = np.argsort(np.argsort(y, kind="stable")) * 20 // len(y)
    problem = fp.problems.Logistic(X / 16, y, groups=who, ridge=0.1, batch=4)
    method, repeats = fp.FedAvg(0.2, 5), 120
    f = fp.forecast(method, problem, participation=5)
    assert f.noise_by == "columns" and f.accuracy.good
    run = fp.run(method, problem, 150, participation=5, repeats=repeats, seed=7)
    for round, asked in ((5, 5), (20, 20), (150, None)):
        for p in (0.1, 0.5, 0.9):
            below = float((run.error[:, round] <= f.quantile(p, asked)).mean())
            assert abs(below - p) <= 4 * math.sqrt(p * (1 - p) / repeats) + 0.05, (round, p, below)


@pytest.mark.parametrize(
    "name", ["fedavg, few", *(pytest.param(n, marks=pytest.mark.slow) for n in METHODS if n != "fedavg, few")]
)
def test_the_floor_is_that_of_the_exact_theory(name):
    agrees(*METHODS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_the_floor_of_more_methods_is_that_of_the_exact_theory(name):
    agrees(*MORE[name])


# Broken variants


class ParticipantsOfItsOwn(Noise):
    """Samples are held against the expected round: who takes part is counted twice."""

    def draw(self, count):
        taken, sampled = super().draw(count)
        return taken, taken + sampled


class WrongScale(Noise):
    """Columns half as long again."""

    def draw(self, count):
        taken, sampled = super().draw(count)
        return 1.5 * taken, 1.5 * sampled


class NothingOfDeviations(Noise):
    """As if all rounds had the slope of the expected one."""

    multiplies = False


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (ParticipantsOfItsOwn, "fedavg, few"),
        (WrongScale, "scaffnew"),
        pytest.param(NothingOfDeviations, "scaffold, few", marks=pytest.mark.slow),
    ],
)
def test_broken_columns_are_found_out(broken, name, monkeypatch):
    monkeypatch.setattr(by_columns, "Noise", broken)
    method, options = METHODS[name]
    f = forecast(method, **options)
    found = columns_of(f)
    assert not within(found, f.variance), (found.variance, found.error, f.variance)


def test_the_loss_is_measured_without_a_matrix():
    """Half the curvature by products is L'L of its root; models are moved to where a forecast is asked for."""
    f = fp.forecast(fp.FedAvg(0.02, 3), least_squares(), measure="loss")
    s, rows = f.setting, np.random.default_rng(3).normal(size=(4, D))
    by_products = Gauge(f.optimum, weight=lambda v: s.curved(f.optimum, v) / 2)
    np.testing.assert_allclose(by_products.gram(rows), f.gauge.gram(rows), rtol=1e-9)
    np.testing.assert_allclose(by_products.squares(rows), f.gauge.squares(rows), rtol=1e-9)
    np.testing.assert_array_equal(s.read(s.moved_to(s.origin, rows[0])), rows[0])
