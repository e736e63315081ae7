"""Rounds for hours, and runs by the hundred, at constant memory, in a process of their own.

pytest tests/soak -m "" --soak 3600      # an hour, as `make test-all` has it
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

GROWTH = 24  # MB beyond the warm-up that are put down to the allocator; a leak of 1 kB a segment shows in an hour


def measured(seconds, folder):
    command = [sys.executable, str(Path(__file__).with_name("soaking.py")), str(seconds), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds * 2 + 300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_memory_is_constant(tmp_path):
    found = measured(4, tmp_path / "run")
    assert found["leak"][0] > GROWTH  # the measure sees what a run would leak at 1 kB a segment in an hour
    growth, compiled = found["many"]
    assert compiled == 0  # a step is traced: another one is no other program
    assert growth < GROWTH
    growth, rounds = found["soak"]
    assert rounds > 1_000
    assert growth < GROWTH, f"{growth:.0f} MB in {rounds} rounds"


@pytest.mark.slow
def test_an_hour_of_rounds(tmp_path, request):
    growth, rounds = measured(request.config.getoption("--soak"), tmp_path / "run")["soak"]
    # What is recorded is kept: 8 bytes for each number of a record, twice while it is put together.
    kept = 3 * (rounds / 1_000) * (2 + 1 + 1 + 3) * 8 / 1e6
    assert growth < GROWTH + kept, f"{growth:.0f} MB in {rounds} rounds"
