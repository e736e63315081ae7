"""Runs that are shared out between processes in the tests: every kind of round."""

import jax.numpy as jnp
import numpy as np

import fedpoint as fp

K, ROUNDS = 37, 12


def stream(agents=K):
    return fp.problems.LinearStream.sample(agents=agents, dim=4, seed=0)


def rows(batch=None, sampling="iid", ragged=False):
    rng = np.random.default_rng(1)
    counts = np.where(np.arange(K) == 5, 60, 6) if ragged else rng.integers(2, 9, K)
    X = [rng.normal(size=(m, 3)) for m in counts]
    y = [x @ np.ones(3) + rng.normal(size=len(x)) for x in X]
    return fp.problems.LeastSquares(X, y, mean=True, batch=batch, sampling=sampling, weights=rng.uniform(0.5, 2, K))


def softmax():
    rng = np.random.default_rng(2)
    X, groups = rng.normal(size=(6 * K, 3)), np.repeat(np.arange(K), 6)
    return fp.problems.Logistic(X, rng.integers(0, 3, len(X)), groups=groups, ridge=0.1, batch=2)


def tanh_loss(w, row):
    return (jnp.tanh(row["x"] @ w["V"]) @ w["u"] - row["y"]) ** 2


def single():
    """A small network in single precision."""
    rng = np.random.default_rng(3)
    start = {"V": rng.normal(size=(3, 4)).astype(np.float32), "u": np.zeros(4, np.float32)}
    data = {"x": rng.normal(size=(4 * K, 3)), "y": rng.normal(size=4 * K)}
    return fp.problems.Loss(tanh_loss, start, data, groups=np.repeat(np.arange(K), 4), batch=2)


def graph():
    return fp.Network.random(K, 4, seed=0)


def worlds():
    """name: (algorithm, problem, options of fp.run)."""
    clock = fp.Clock(np.linspace(0.2, 2.0, K), travel=0.3)
    steps = np.arange(K) % 4 + 1
    avg, scaffold = fp.FedAvg(step=0.05, local_steps=3, normalise=True), fp.Scaffold(step=0.05, local_steps=2)
    gd, sgd = fp.FedGD(step=0.02, coupling=0.5), fp.FedSGD(step=0.02, coupling=0.5)
    loosely = fp.PartiallyAsynchronous(3, activity=0.6, loss=0.1)
    some = fp.Answering(fp.Uniform(15), probability=0.6, keep=7, minimum=2)
    return {
        "everyone": (avg, stream(), {}),
        "one agent each": (avg, stream(5), {}),
        "exact": (avg, rows(), {"exact": True, "participation": 9}),
        "memories": (scaffold, stream(), {"participation": 9, "repeats": 2}),
        "by weight": (scaffold, rows(2), {"participation": fp.ByWeight(11)}),
        "importance": (avg, rows(2, "importance"), {"participation": fp.Importance(6)}),
        "answering": (scaffold, rows(2, "shuffle"), {"participation": some}),
        "ragged": (
            fp.FedAvg(step=0.02, local_steps=steps, normalise=True),
            rows(2, "shuffle", ragged=True),
            {"participation": 20},
        ),
        "softmax": (fp.FedAdam(step=0.1, server_step=0.05, local_steps=2), softmax(), {"participation": 8}),
        "stragglers": (
            fp.FedAvg(step=0.05, local_steps=fp.steps.Stragglers(4, 0.5), normalise=True),
            stream(),
            {"participation": 30},
        ),
        "scaffnew": (fp.Scaffnew(step=0.05, probability=0.4), stream(), {}),
        "single precision": (fp.FedAvg(step=0.02, local_steps=2, normalise=True), single(), {"participation": 12}),
        "late": (fp.FedAvg(step=0.05), stream(), {"schedule": fp.Arrivals(clock, buffer=3)}),
        "trajectory": (fp.FedLSA(step=0.1, local_steps=2), fp.problems.garnet(agents=K, sampling="trajectory"), {}),
        "network": (gd, rows(), {"network": graph()}),
        "prox": (fp.FedRelax(coupling=0.3), rows(), {"network": graph()}),
        "loosely": (gd, rows(), {"network": graph(), "schedule": loosely}),
        "turns": (sgd, rows(2), {"network": graph(), "schedule": fp.RandomActivation(6)}),
        "diffusion": (avg, rows(2), {"network": graph().mixing()}),
        "own pace": (gd, rows(), {"network": graph(), "schedule": fp.OwnPace(clock, loss=0.1), "repeats": 2}),
    }
