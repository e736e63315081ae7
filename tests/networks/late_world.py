"""Five agents on a clock, a fusion center that waits or does not: what the tests of late answers share."""

import functools

import numpy as np

import fedpoint as fp

K, D, ROUNDS, SEED = 5, 2, 60, 4
P = np.array([0.3, 0.1, 0.25, 0.2, 0.15])
WORK = np.array([0.4, 1.0, 2.0, 0.7, 6.0])
CLOCK = fp.Clock(WORK, travel=0.1)
START = np.array([1.5, -2.0])
STEP, STEPS = 0.11, 2


@functools.cache
def hessians():
    rng = np.random.default_rng(6)
    axes = [np.linalg.qr(rng.standard_normal((D, D)))[0] for _ in range(K)]
    H = np.stack([q @ np.diag(rng.uniform(0.5, 2.0, D)) @ q.T for q in axes])
    return (H + np.swapaxes(H, 1, 2)) / 2, rng.standard_normal((K, D))


def problem(p=P, noise=0.0):
    return fp.problems.Quadratic(*hessians(), noise=noise, weights=p)


def solution(p=P):
    H, c = hessians()
    return np.linalg.solve(np.tensordot(p, H, 1), np.einsum("k,kij,kj->i", p, H, c))


def descent(k, x, shift=0.0, steps=STEPS, step=STEP):
    H, c = hessians()
    for _ in range(steps):
        x = x - step * (H[k] @ (x - c[k]) + shift)
    return x


WAITING = {
    "keep": fp.Waiting(CLOCK, keep=3),
    "deadline": fp.Waiting(CLOCK, deadline=1.3),
    "count": fp.Waiting(CLOCK, count=4, deadline=2.0, dropout=0.3, minimum=2),
}
ARRIVALS = {
    "one by one": fp.Arrivals(CLOCK, staleness=fp.staleness.Polynomial(0.5), mixing=0.6),
    "buffer": fp.Arrivals(
        CLOCK, working=4, buffer=2, staleness=fp.staleness.Hinge(2.0, 1.0), dropout=0.2, deadline=3.0
    ),
    "models": fp.Arrivals(CLOCK, staleness=fp.staleness.Polynomial(1.0), mixing=0.5, models=True),
}
EVERY = WAITING | ARRIVALS


@functools.cache
def run(name):
    method = fp.FedAvg(STEP, STEPS, normalise=False)
    return fp.run(method, problem(), rounds=ROUNDS, schedule=EVERY[name], start=START, seed=SEED)


def table(done, rounds=ROUNDS, repeat=0):
    """(agents, age, weight, heard, merge) of each round."""
    t = done.session.timing
    return [
        tuple(getattr(t.ticks, n)[repeat, r] for n in ("agents", "age", "weight", "heard", "merge"))
        for r in range(rounds)
    ]


def replay(rounds, models=False, step=STEP):
    """w+ = w + sum_l weight_l (y_l - x), y_l from the hub's version `age` rounds ago, x that version or (models) w."""
    versions = [START]
    for r, (agents, age, weight, heard, merge) in enumerate(rounds):
        w = new = versions[-1]
        for k, a, v, there in zip(agents, age, weight, heard, strict=True):
            if there and merge:
                then = versions[r - a]
                new = new + v * (descent(k, then, step=step) - (w if models else then))
        versions.append(new)
    return np.array(versions)
