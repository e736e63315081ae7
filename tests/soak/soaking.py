"""A process of its own that runs rounds, and says how its memory grows: `python soaking.py SECONDS FOLDER`, JSON."""

import gc
import json
import sys
import time
from pathlib import Path

import numpy as np

import fedpoint as fp
from fedpoint.engine.program import PROGRAMS
from fedpoint.store import writer as store

PROBLEM = fp.problems.Quadratic(1.0, [[0.0, 1.0], [2.0, 4.0]], noise=0.01)


def resident():
    """MB in memory now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def soak(seconds, folder):
    """Rounds for so long, recording few: growth in MB after a quarter of the time, rounds."""
    seen = []  # from the first segment's end on, which compiles

    def look(progress):
        seen.append((time.monotonic(), resident()))

    def enough(round, model, error):
        return bool(seen) and time.monotonic() - seen[0][0] > seconds

    algorithm, rounds = fp.Scaffold(step=0.02), 2**31 - 1
    run = fp.run(algorithm, PROBLEM, rounds=rounds, record_every=1_000, folder=folder, stop=enough, callbacks=look)
    warm = next(size for at, size in seen if at > seen[0][0] + seconds / 4)
    return seen[-1][1] - warm, int(run.rounds[-1])


def many_runs():
    """Growth over 40 runs with other steps, and how many programs they compiled."""

    def some(count):
        for i in range(count):
            fp.run(fp.Scaffold(step=0.001 * (1 + i)), PROBLEM, rounds=100, seed=i)

    def programs():
        return sum(program._cache_size() for program in PROGRAMS.values())

    some(10)
    compiled, before = programs(), resident()
    some(40)
    return resident() - before, programs() - compiled


def leak():
    """Growth by 42 MB that are held."""
    before = resident()
    held = [np.ones(1 << 17) for _ in range(40)]
    return resident() - before, len(held)


if __name__ == "__main__":
    seconds, folder = float(sys.argv[1]), sys.argv[2]
    if seconds < 60:
        store.PERIOD = 0.1  # many saves too
    print(json.dumps({"leak": leak(), "many": many_runs(), "soak": soak(seconds, folder)}))
