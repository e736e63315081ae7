"""SCAFFOLD with thousands of agents and a network of 1.66 million numbers: does it run below 3 GB?

    python benchmarks/memories_on_disk.py [--agents 3400] [--rounds 30]

Single precision, 10 agents a round, batch 20, two local steps, 20 rows an agent; memories on disk, in the folder of the
run. Prints the largest resident memory of the process, what the file takes, and the time of a round.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import fedpoint as fp

CLASSES, PIXELS, HIDDEN, ROWS = 62, 784, 1959, 20


def problem(agents: int) -> fp.problems.Problem:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(agents * ROWS, PIXELS)).astype(np.float32)
    y = draw.integers(0, CLASSES, agents * ROWS)
    params = {
        "W": (draw.normal(size=(PIXELS, HIDDEN)) / np.sqrt(PIXELS)).astype(np.float32),
        "b": np.zeros(HIDDEN, np.float32),
        "V": (draw.normal(size=(HIDDEN, CLASSES)) / np.sqrt(HIDDEN)).astype(np.float32),
    }

    def loss(params: dict, batch: tuple) -> jax.Array:
        scores = jnp.tanh(batch[0] @ params["W"] + params["b"]) @ params["V"]
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), batch[1][:, None], axis=1).mean()

    groups = np.arange(agents * ROWS) // ROWS
    return fp.problems.Loss(loss, params, (X, y), groups=groups, batch=20, sampling="iid")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=3400)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    made = problem(given.agents)
    size = sum(np.size(a) for a in jax.tree.leaves(made.start()))
    method = fp.Scaffold(step=0.01, local_steps=2)
    with tempfile.TemporaryDirectory() as place:
        begun = time.process_time()
        run = fp.run(
            method,
            made,
            given.rounds,
            participation=10,
            memories="disk",
            folder=Path(place) / "run",
            record_every=given.rounds,
        )
        taken = time.process_time() - begun
        file = next((Path(place) / "run").glob("memories*")).stat()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{given.agents:,} agents, {size:,} numbers, {given.rounds} rounds: {run.session.explain()}")
    print(f"peak {peak:.2f} GB of memory; the file {file.st_blocks * 512 / 1e9:.2f} GB")
    print(f"{taken / given.rounds:.2f} s of processor time a round, compilation and the start included")


if __name__ == "__main__":
    main()
