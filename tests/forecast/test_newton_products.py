"""Newton's method by products with Hessians: the rounds of dense Newton, what they send, and what is forecast."""

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.core.algorithm import bind_algorithm

RNG = np.random.default_rng(0)
X = np.column_stack([RNG.normal(size=(80, 2)), np.ones(80)])
COUNTS = fp.problems.GLM(X, RNG.poisson(np.exp(X @ [0.3, 0.2, 2.0])), np.arange(80) % 4, "poisson")
CURVATURES = np.geomspace(1.0, 100.0, 12)
BOWL = fp.problems.Quadratic([np.diag(CURVATURES), np.diag(CURVATURES[::-1])], [np.ones(12), -np.arange(12.0)])
WIDE = fp.problems.Quadratic(1.0, [np.zeros(301), np.ones(301)])


def test_with_products_for_all_parameters_it_is_dense_newton_and_its_messages_are_counted():
    dense, run = (fp.run(fp.FedNewton(products=n), COUNTS, rounds=9) for n in (0, 3))
    np.testing.assert_allclose(run.history, dense.history, rtol=0, atol=1e-8)
    # A round: down model and trial, then three times trial and direction; up 3 + 10 numbers, then three times 3.
    assert run.cost.messages_up == run.cost.messages_down == 9 * 4 * 4
    assert run.cost.floats_down == 9 * 4 * (6 + 3 * 6) and run.cost.floats_up == 9 * 4 * (13 + 3 * 3)
    f = fp.forecast(fp.FedNewton(products=3), COUNTS)
    assert f.bias == 0 and "w* itself" in str(f) and "quadratic: errors are squared" in str(f)
    np.testing.assert_allclose(run.error[0, :6], f.curve(9)[:6], rtol=1e-6)


def test_few_products_end_at_the_solution_at_a_rate_within_the_bound():
    run, f = fp.run(fp.FedNewton(products=4), BOWL, rounds=8), fp.forecast(fp.FedNewton(products=4), BOWL)
    assert f.bias == 0 and bool(fp.check(run))
    H = np.tensordot(BOWL.weights, BOWL.linear_fields()[0], 1)
    gap = run.history[0] - BOWL.solution()
    left = np.einsum("ti,ij,tj->t", gap, H, gap)[:6]
    root = np.sqrt(np.linalg.cond(H))
    bound = 2 * ((root - 1) / (root + 1)) ** 4
    assert bound < 1 and (left[1:] <= bound**2 * left[:-1]).all() and f.rate <= bound * (1 + 1e-6)
    assert run.error[0, -1] < run.error[0, 0] * f.rate**8


def test_collinear_columns_do_no_harm():
    y = (X[:, 0] + RNG.logistic(size=80) > 0).astype(int)
    twice = fp.problems.Logistic(np.column_stack([X, X[:, 0] + X[:, 1]]), y, np.arange(80) % 4, ridge=0.0)
    plain = fp.problems.Logistic(X, y, np.arange(80) % 4, ridge=0.0)
    found, alone = (fp.run(fp.FedNewton(products=n), p, rounds=9).model[0] for n, p in ((4, twice), (0, plain)))
    np.testing.assert_allclose(np.column_stack([X, X[:, 0] + X[:, 1]]) @ found.ravel(), X @ alone.ravel(), atol=1e-8)


def test_beyond_some_hundred_parameters_it_asks_for_products_by_itself():
    assert bind_algorithm(fp.FedNewton(), COUNTS).products == 0
    assert bind_algorithm(fp.FedNewton(), WIDE).products == 30
    run = fp.run(fp.FedNewton(), WIDE, rounds=1)
    assert run.error[0, -1] < 1e-20 and run.cost.floats_up == 2 * (301 + 10 + 30 * 301)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda: fp.Experiment(fp.FedNewton(), WIDE, channel=fp.channel.TopK(0.5)),
            "FedNewton asks agents 31 times in a",
        ),
        (lambda: fp.run(fp.Averaged(fp.FedNewton()), WIDE, rounds=1), "asks agents more than once in a round"),
        (lambda: fp.FedNewton(products=-1), "products must be at least 0"),
    ],
)
def test_what_knows_of_one_exchange_is_refused_around_it(build, said):
    with pytest.raises(fp.FedpointError, match=said):
        build()
