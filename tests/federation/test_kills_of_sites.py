"""kill -9 at any moment, also while hub and sites write: the study goes on to the very same models."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from studies import BOWLS, CONTROL, content, invariant

import fedpoint as fp
from fedpoint.federation.result import StudyResult

pytestmark = pytest.mark.slow

STUDY = content(CONTROL, BOWLS, rounds=120, participation=2)
PROGRAM = "import json, sys; import fedpoint as fp; fp.federate(json.loads(sys.argv[1]), folder=sys.argv[2])"


def wait_until(condition, process, seconds=300):
    """False when the process has ended before."""
    end = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            return False
        assert time.monotonic() < end
        time.sleep(0.001)
    return True


@pytest.mark.parametrize("seed", [1, 2])
def test_hub_and_sites_at_once_at_random_moments(seed, tmp_path):
    """A round takes milliseconds, nearly all of them in files that are written: most kills are in the middle of one."""
    whole = fp.federate(STUDY, folder=tmp_path / "whole")
    rng, root, kills = np.random.default_rng(seed), tmp_path / "killed", 0
    notes = root / "hub" / "rounds.jsonl"

    def begun():
        return notes.exists()

    def some_rounds_later(before, more):
        return lambda: notes.exists() and notes.read_bytes().count(b"\n") >= before + more

    while True:
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, json.dumps(STUDY), str(root)])
        before = notes.read_bytes().count(b"\n") if notes.exists() else 0
        # First while everything is made, once at the start of a segment, then after some rounds and any moment more.
        until = begun if kills < 2 else some_rounds_later(before, int(rng.integers(1, 40)))
        if not wait_until(until, process):
            assert process.wait() == 0
            break
        time.sleep(float(rng.uniform(0, 0.01)))
        os.kill(process.pid, signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
    made = StudyResult(root / "hub")
    assert kills >= 4
    assert np.array_equal(made.history, whole.history)
    assert [event["round"] for event in made.events] == list(range(120))
    assert made.measures == whole.measures
    assert invariant(made, root) <= 1e-14
