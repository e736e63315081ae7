"""A handful of runs of every shape that a program takes: python tricks.py OUT."""

import sys

import jax
import numpy as np

import fedpoint as fp


def ragged(sampling="shuffle"):
    """Agents of very different sizes, which work one after the other."""
    rng = np.random.default_rng(1)
    X, groups = rng.standard_normal((90, 4)), np.repeat(np.arange(8), [40, 20, 10, 8, 5, 4, 2, 1])
    return fp.problems.Logistic(X, rng.integers(0, 3, 90), groups=groups, batch=4, sampling=sampling)


def runs():
    """Small rounds, few of many, a chunk of rounds in a kernel, the agents of a round in one, late answers, networks,
    a large model, a sweep."""
    stream = fp.problems.LinearStream.sample(agents=20, dim=5, seed=0)
    large = fp.problems.LinearStream.sample(agents=3, dim=5000, seed=0)
    ring, epochs = fp.Network.ring(20), fp.steps.Epochs(2)
    late = fp.Arrivals(fp.Clock(work=1.0), 5)
    swept = fp.sweep(fp.FedAvg(step=0.1), stream, over={"step": [0.01, 0.02]}, rounds=20, repeats=2)
    return {
        "stream": fp.run(fp.FedAvg(step=0.02, local_steps=3), stream, rounds=70, repeats=3),
        "few": fp.run(fp.Scaffold(step=0.02, local_steps=3), stream, rounds=70, participation=4),
        "kernel": fp.run(fp.FedAvg(step=0.1, local_steps=epochs), ragged(), rounds=40, participation=3),
        "control": fp.run(fp.Scaffold(step=0.1, local_steps=epochs), ragged(), rounds=12),
        "exact": fp.run(fp.FedProx(step=0.1, pull=0.5), ragged(), rounds=12, exact=True),
        "late": fp.run(fp.FedAvg(step=0.02), stream, rounds=30, schedule=late),
        "network": fp.run(fp.FedGD(step=0.01, coupling=0.1), stream, rounds=30, network=ring),
        "large": fp.run(fp.FedAvg(step=1e-5), large, rounds=4),
        "sweep": swept.run,
    }


if __name__ == "__main__":
    found = {f"{name}/{i}": leaf for name, run in runs().items() for i, leaf in enumerate(jax.tree.leaves(run.history))}
    np.savez(sys.argv[1], **found)
