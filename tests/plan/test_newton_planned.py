"""A method without a step is planned beside the others: what it sends is counted, and its rounds are forecast."""

import numpy as np

import fedpoint as fp


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
