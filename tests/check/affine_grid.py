"""Settings with affine fields, over which the power of `fp.check` is measured."""

import numpy as np

import fedpoint as fp

RNG = np.random.default_rng(7)
AGENTS, SIZE = 10, 3
CENTERS = RNG.normal(size=(AGENTS, SIZE))
ROWS = RNG.normal(size=(AGENTS * 30, SIZE))
OWNER = np.repeat(np.arange(AGENTS), 30)
TARGETS = (ROWS * CENTERS[OWNER]).sum(1) + 0.3 * RNG.normal(size=len(ROWS))


def quadratic():
    H = RNG.uniform(0.5, 1.5, (AGENTS, SIZE))
    return fp.problems.Quadratic(np.stack([np.diag(h) for h in H]), CENTERS, noise=0.2)


QUADRATIC = quadratic()
ROWS_OF_AGENTS = fp.problems.LeastSquares(ROWS, TARGETS, groups=OWNER, batch=8)
STREAM = fp.problems.LinearStream(CENTERS, noise=0.3)
SETTINGS = {
    "quadratic, fedavg": (fp.FedAvg(0.1, 4), QUADRATIC, None),
    "quadratic, fedavg, three": (fp.FedAvg(0.1, 4), QUADRATIC, 3),
    "quadratic, momentum, three": (fp.FedAvgM(0.1, 2, server_step=0.5, momentum=0.5), QUADRATIC, 3),
    "quadratic, scaffold": (fp.Scaffold(0.1, 4), QUADRATIC, None),
    "quadratic, scaffold, three": (fp.Scaffold(0.1, 4), QUADRATIC, 3),
    "rows, fedavg": (fp.FedAvg(0.01, 4), ROWS_OF_AGENTS, None),
    "rows, scaffold, three": (fp.Scaffold(0.01, 4), ROWS_OF_AGENTS, 3),
    "stream, fedavg": (fp.FedAvg(0.1, 4), STREAM, None),
    "stream, fedavg, three": (fp.FedAvg(0.1, 4), STREAM, 3),
    "stream, gradient exchange": (fp.GradientExchange(0.2), STREAM, None),
}


def verdict(name, seed, factor=1.0, rounds=200, repeats=200):
    """Of a run whose step is so many times as long as it claims."""
    method, problem, who = SETTINGS[name]
    taken = method.replace(step=factor * method.step)
    return fp.check(fp.run(taken, problem, rounds, participation=who, seed=seed, repeats=repeats), claims=method)
