"""How far noise moves the mean of large models, from drawn rounds: against the second-order closure of models that are
small enough for it; and broken variants, which must be found out."""

import functools

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.theory.bundles import Bundle
from fedpoint.theory.columns import Columns
from fedpoint.theory.moved_mean import MovedMean
from fedpoint.theory.outlook import Gauge
from fedpoint.theory.powers import Powers
from fedpoint.verbs.forecast import prepare
from fedpoint.verbs.run import as_experiment

K, D, ROWS = 6, 3, 20

CASES = {
    "samples": (fp.FedAvg(0.2, 8), {}, 1),  # mostly noise inside the round
    "participation": (fp.FedAvg(0.4, 4), {"participation": 2, "exact": True}, None),  # none inside
}
MORE = {
    "both": (fp.FedAvg(0.2, 8), {"participation": 2}, 1),
    "scaffold": (fp.Scaffold(0.2, 8), {"participation": 3}, 1),
    "fedprox": (fp.FedProx(0.2, 8, pull=0.5), {"participation": 3}, 1),
}


def logistic(batch):
    """Agents with labels of different models."""
    rng = np.random.default_rng(0)
    who, X = np.repeat(np.arange(K), ROWS), rng.normal(size=(K * ROWS, D))
    models = rng.normal(size=(K, D)) + 1
    y = rng.uniform(size=K * ROWS) < 1 / (1 + np.exp(-(X * models[who]).sum(1)))
    return fp.problems.Logistic(X, y.astype(int), groups=who, ridge=0.3, batch=batch)


@functools.cache
def moved(name):
    """The shift of models as the closure has it, and by drawn rounds."""
    method, options, batch = (CASES | MORE)[name]
    f = prepare(as_experiment(method, logistic(batch), dict(options)))
    assert f.noise_by == "closure"
    gauge = Gauge(f.optimum)
    bundles = [Bundle(f.setting, f.state, gauge, seed) for seed in range(4)]
    return f.outlook.limit - f.setting.read(f.state), MovedMean(f.setting, f.state, gauge, bundles)


def off(exact, found):
    """In standard errors: roots of mean squares over D = 3 directions, told by 8 groups."""
    return float(np.linalg.norm(found.parts.sum(0) - exact)) / found.error


def agrees(name):
    """Within three of its own standard errors, which are below a fifth of the shift: these say something."""
    exact, found = moved(name)
    assert found.error <= 0.2 * np.linalg.norm(exact)
    assert off(exact, found) <= 3.0
    assert found.accuracy(np.zeros(D), 1.0).shift <= 0.1


@pytest.mark.parametrize("name", CASES)
def test_the_shift_is_that_of_the_closure(name):
    agrees(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_the_shift_of_more_methods_is_that_of_the_closure(name):
    agrees(name)


# Broken variants


class NothingInside(MovedMean):
    """As if only the spread between rounds moved the mean."""

    @property
    def inside(self):
        return np.zeros_like(super().inside)


class NotHalved(MovedMean):
    """F''[S] instead of half of it."""

    @property
    def between(self):
        return 2 * super().between


class NothingBetween(MovedMean):
    """As if only noise inside a round moved the mean."""

    @property
    def between(self):
        return np.zeros_like(super().between)


@pytest.mark.parametrize(
    ("broken", "name"), [(NothingInside, "samples"), (NotHalved, "participation"), (NothingBetween, "participation")]
)
def test_broken_shifts_are_found_out(broken, name):
    exact, found = moved(name)
    again = broken(found.setting, found.x, found.gauge, found.bundles)
    again.__dict__["_drawn"] = found._drawn  # the same draws
    assert float(np.linalg.norm(again.parts.sum(0) - exact)) > 4 * found.error


def test_affine_rounds_move_no_mean():
    rng = np.random.default_rng(0)
    A = [rng.normal(size=(8, D)) for _ in range(3)]
    problem = fp.problems.LeastSquares(A, [a.sum(1) for a in A], mean=True, batch=2)
    f = prepare(as_experiment(fp.FedAvg(0.1, 2), problem, {}))
    assert Columns(f.setting, f.state, f.origin, Gauge(f.optimum), 0.5).moved is None


def test_inverses_side_by_side_leave_alone_what_is_conserved():
    """(I - A)^{-1} q on what q reaches; A keeps the last number."""
    rng = np.random.default_rng(1)
    A = rng.normal(size=(9, 9)) / 5
    A[-1] = np.eye(9)[-1]
    q = rng.normal(size=(3, 9))
    q[:, -1] = 0.0
    powers = Powers(lambda rows: rows @ A.T, q)
    powers.extend(8)
    expected = np.linalg.solve(np.eye(8) - A[:8, :8], q[:, :8].T).T
    np.testing.assert_allclose(powers.inverse()[:, :8], expected, rtol=1e-8)
    np.testing.assert_allclose(powers.inverse()[:, 8], 0.0, atol=1e-12)
