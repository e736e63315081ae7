"""Studies for the tests of federations, and the simulation beside them."""

import numpy as np

import fedpoint as fp

SITES = ["a", "b", "c"]
ROWS = {"kind": "least_squares", "agents": 3, "rows": [4, 9], "dim": 3, "mean": True, "batch": 2}
BOWLS = {"kind": "quadratic", "agents": 3, "dim": 2, "noise": 0.1}
SYSTEM = {"kind": "linear_system", "agents": 3, "dim": 2, "noise": 0.1, "noise_A": 0.1}
AVERAGE = {"name": "fedavg", "step": 0.05, "local_steps": 3}
CONTROL = {"name": "scaffold", "step": 0.05, "local_steps": 3}


def content(algorithm=AVERAGE, problem=ROWS, rounds=5, **more):
    base = {"name": "trial", "sites": SITES, "server": "localhost:8102", "rounds": rounds, "deadline": 10.0}
    return {**base, "algorithm": algorithm, "problem": problem, **more}


def simulated(made, problem=None):
    """The run that a study is, by `fp.run`: its recorded models."""
    problem = made.study.generated() if problem is None else problem
    if made.study.network is not None:
        problem.names = made.study.sites
    run = fp.run(made.study.method(), problem, **made.replay(problem.names))
    return np.asarray(run.history)[0]


def gap(made, problem=None):
    """The largest distance between a study's models and the simulation's."""
    seen = simulated(made, problem)
    assert made.history.shape == seen.shape
    return np.abs(made.history - seen).max()
