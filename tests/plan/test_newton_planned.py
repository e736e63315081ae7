"""A method without a step is planned beside the others: what it sends is counted, and its rounds are forecast."""

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.results.plan import Goal
from fedpoint.verbs.plan.search import Search


def test_newton_is_planned_by_its_rounds_and_messages():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(60, 2)), np.ones(60)])
    problem = fp.problems.Logistic(X, (X[:, 0] + rng.logistic(size=60) > 0).astype(int), np.arange(60) % 3, ridge=0.1)
    made = fp.plan(problem, target=1e-12, methods=["fednewton"])
    best = made.best
    run = fp.run(best.algorithm, problem, rounds=int(best.rounds))
    assert run.error[0, -1] <= 1e-12 < run.error[0, -2]
    # Down w and the trial, up d + d (d + 1)/2 numbers and 10 losses, of each of three agents.
    assert run.cost.floats_down == 3 * best.rounds * 2 * 3 and run.cost.floats_up == 3 * best.rounds * (3 + 6 + 10)
    assert best.step is None and best.cost == run.cost.floats_down + run.cost.floats_up
    assert "FedNewton" in str(made)


def counts():
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.normal(size=(80, 2)), np.ones(80)])
    return fp.problems.GLM(X, rng.poisson(np.exp(X @ [0.3, 0.2, 1.0])), np.arange(80) % 4, "poisson")


@pytest.mark.slow
def test_few_parameters_of_different_scales_are_found_by_newton_without_being_told():
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.normal(size=(200, 2)) * [1.0, 10.0] + [0.0, 20.0], np.ones(200)])
    died = (X @ [0.5, -0.1, 2.0] + rng.logistic(size=200) > 0).astype(int)
    problem = fp.problems.Logistic(X, died, np.arange(200) % 4, ridge=0.01)
    made = fp.plan(problem, target=1e-6, local_steps=[1], participation=[None])
    assert type(made.best.algorithm) is fp.FedNewton and made.best.rounds < 15
    run = fp.run(made.best.algorithm, problem, rounds=made.best.rounds)
    assert run.error[0, -1] <= 1e-6 < run.error[0, -2]


def test_products_with_hessians_are_planned_with_every_exchange():
    """Down model and trial, then trial and direction; up gradient and 10 losses, then a product; of 4 agents."""
    made = fp.plan(counts(), target=1e-10, methods=[fp.FedNewton(products=2)])
    run = fp.run(made.best.algorithm, counts(), rounds=made.best.rounds)
    assert run.error[0, -1] <= 1e-10 < run.error[0, -2]
    assert run.cost.floats_down + run.cost.floats_up == made.best.cost == 4 * made.best.rounds * (3 * 6 + 13 + 2 * 3)
    assert run.cost.evaluations == made.best.evaluations == 4 * made.best.rounds * (1 + 2 * 2)
    assert made.best.use.messages == 2 * 4 * 3 and made.best.use.agents == 4


def test_a_hessian_counts_as_one_field_for_each_parameter():
    run = fp.run(fp.FedNewton(), counts(), rounds=2)
    assert run.cost.evaluations == 2 * 4 * (1 + 3)


def test_who_draws_samples_is_not_asked_for_hessians_unless_told():
    stream = fp.problems.Quadratic(1.0, [[0.0], [1.0]], noise=0.01)
    batches = fp.problems.Logistic([[1.0], [2.0], [0.5], [3.0]], [0, 1, 1, 0], [0, 0, 1, 1], ridge=0.1, batch=1)
    names = [
        Search.default(fp.Experiment(fp.FedAvg(step=1.0), p, exact=exact), Goal(0.1, minimise=minimise))
        for p, exact, minimise in [
            (stream, False, "communication"),
            (stream, True, "communication"),
            (batches, False, "communication"),
            (batches, False, "computation"),
        ]
    ]
    assert ["fednewton" in some for some in names] == [False, True, True, False]
