"""Rounds for hours, and runs by the hundred, at constant memory.

pytest tests/soak -m "" --soak 3600      # an hour, as `make test-all` has it
"""

import gc
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import fedpoint as fp
from fedpoint.report import store

GROWTH = 24  # MB beyond the warm-up that are put down to the allocator; a leak of 1 kB a segment shows in an hour
PROBLEM = fp.problems.Quadratic(1.0, [[0.0, 1.0], [2.0, 4.0]], noise=0.01)


def resident():
    """MB in memory now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def soak(seconds, folder):
    """Run rounds for so long, recording few; (MB after a quarter of the time, MB at the end, rounds)."""
    seen = []  # from the first segment's end on, which compiles

    def look(progress):
        seen.append((time.monotonic(), resident()))

    def enough(round, model, error):
        return bool(seen) and time.monotonic() - seen[0][0] > seconds

    algorithm, rounds = fp.Scaffold(step=0.02), 2**31 - 1
    run = fp.run(algorithm, PROBLEM, rounds=rounds, record_every=1_000, folder=folder, stop=enough, callbacks=look)
    warm = next(size for at, size in seen if at > seen[0][0] + seconds / 4)
    return warm, seen[-1][1], int(run.rounds[-1])


def test_rounds_at_constant_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "PERIOD", 0.1)  # many saves too
    warm, end, rounds = soak(4, tmp_path / "run")
    assert rounds > 1_000
    assert end - warm < GROWTH, f"{warm:.0f} MB became {end:.0f} MB in {rounds} rounds"


@pytest.mark.slow
def test_an_hour_of_rounds(tmp_path, request):
    seconds = request.config.getoption("--soak")
    warm, end, rounds = soak(seconds, tmp_path / "run")
    # What is recorded is kept: 8 bytes for each number of a record, twice while it is put together.
    kept = 3 * (rounds / 1_000) * (2 + 1 + 1 + 3) * 8 / 1e6
    assert end - warm < GROWTH + kept, f"{warm:.0f} MB became {end:.0f} MB in {rounds} rounds"


def test_many_runs_in_one_process():
    """A step is traced: another one is no other program. What a run held is given back."""

    def some(count):
        for i in range(count):
            fp.run(fp.Scaffold(step=0.001 * (1 + i)), PROBLEM, rounds=100, seed=i)

    some(10)
    programs, before = _programs(), resident()
    some(40)
    assert _programs() == programs
    assert resident() - before < GROWTH


def _programs():
    from fedpoint.runtimes.simulation import PROGRAMS

    return sum(program._cache_size() for program in PROGRAMS.values())


def test_a_leak_is_convicted():
    """The measure sees what a run of this length would leak at 1 kB a segment in an hour."""
    before = resident()
    held = [np.ones(1 << 17) for _ in range(40)]  # 42 MB
    assert resident() - before > GROWTH and len(held) == 40
    assert jax.local_device_count() >= 1
