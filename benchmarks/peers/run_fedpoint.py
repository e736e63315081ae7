"""The jobs on fedpoint: cold (one run of the job's rounds in this new process), then warm in blocks of rounds."""

import sys
import time
from pathlib import Path

import numpy as np
from common import Clock, flatten, report

BLOCK = 0.5  # seconds


def main(folder: str, only: str = "") -> None:
    import jobs

    import fedpoint as fp

    job = jobs.read(Path(folder))
    rounds, clock = job.rounds, Clock()
    done = job.run(rounds, record_every=1)
    clock.lap(rounds)
    if only == "cold":
        return report(clock, rounds, np.zeros(0), version=fp.__version__)
    # A warm block is a run of so many rounds that it takes a while. It keeps its last model, as the others do.
    size, took = rounds, 0.0
    while took < BLOCK:
        size = size if took == 0.0 else size * 4
        begun = time.perf_counter()
        job.run(size, record_every=size)
        took = time.perf_counter() - begun
    while len(clock.blocks) < 4 or not clock.enough(job):
        clock.start()
        job.run(size, record_every=size)
        clock.lap(size)
    import jax

    models = done.history
    each = [jax.tree.map(lambda a, r=r: a[0, r], models) for r in range(rounds + 1)]
    history = np.stack([flatten(job.parameters(m)) for m in each])
    np.save(Path(folder) / "history.npy", history)
    counted = (done.cost.bytes_down + done.cost.bytes_up) / rounds
    report(clock, rounds, history[-1], version=fp.__version__, engine=str(done.engine), counted=counted)


if __name__ == "__main__":
    main(*sys.argv[1:])
