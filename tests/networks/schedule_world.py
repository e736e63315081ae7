"""Seven nodes under every schedule: what the tests of schedules share, each run once."""

import functools

import numpy as np
import plain_network as plain

import fedpoint as fp

WORLD = plain.world()
NET = WORLD.network()
K, TICKS, SEED = 7, 1000, 3
WORK = np.array([0.3, 1.0, 0.5, 1.2, 0.8, 0.9, 0.6])
MESSAGES = np.count_nonzero(WORLD.A, axis=1)  # of a node that works: one to each neighbour


def neighbours(i):
    return np.flatnonzero(WORLD.A[i])


# All seven work in tick 0 (more places than the padded graph has arcs), then some; ages up to 8, beyond the start.
TRACE = (
    *((0, str(i), str(neighbours(i)[0]), 3) for i in range(K)),
    *((1, str(i), None, 0) for i in (0, 3, 6)),
    *((2, str(i), str(j), int(i + j) % 9) for i in (0, 5, 2, 4) for j in neighbours(i)),
    *((4, str(i), str(neighbours(i)[-1]), 8) for i in (6, 1, 0)),
)
SCHEDULES = {
    "synchronous": fp.Synchronous(),
    "random": fp.RandomActivation(3),
    "partial": fp.PartiallyAsynchronous(3, activity=0.4, delay=2, loss=0.2, away=0.2, stretch=4),
    "total": fp.TotallyAsynchronous(growth=0.2),
    "worst": fp.WorstCase(3),
    "replay": fp.Replay(TRACE),
    "own pace": fp.OwnPace(fp.Clock(WORK, travel=0.2), loss=0.1),
}
COUPLINGS = dict.fromkeys(SCHEDULES, (0.02, 0.1, 0.3)) | {"total": (0.02, 0.1)}  # delays that grow take their time


def algorithm(method, coupling):
    return fp.FedGD(WORLD.safe_step(coupling), coupling) if method == "fedgd" else fp.FedRelax(coupling)


@functools.cache
def plan(name):
    if name == "synchronous":
        return plain.in_step(K, TICKS)
    if name == "worst":  # by hand: all in the last of three ticks, and what they hear is three old
        nobody, everyone = np.zeros(0, int), np.arange(K)
        old = [np.full((K, K), min(k, 3)) for k in range(TICKS)]
        return [plain.Tick(everyone if k % 3 == 2 else nobody, old[k]) for k in range(TICKS)]
    return plain.plan(SCHEDULES[name], NET, TICKS, SEED)


@functools.cache
def run(name, method, coupling):
    method = algorithm(method, coupling)
    return fp.run(method, WORLD.problem(), network=NET, schedule=SCHEDULES[name], rounds=TICKS, seed=SEED)


def within(samples, expected):
    """Four standard errors of a mean of independent numbers."""
    samples = np.asarray(samples, float).ravel()
    return abs(samples.mean() - expected) <= 4 * max(samples.std(), 1e-3) / np.sqrt(len(samples))
