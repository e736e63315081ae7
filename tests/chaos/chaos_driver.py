"""A run that is killed again and again, and what must hold after each death."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import fedpoint as fp
from fedpoint.store.folder import RunFolder

ROUNDS = 40_000
TEXT = f"""\
rounds = {ROUNDS}
record_every = 20
repeats = 2
seed = 4
participation = 2
[problem]
kind = "quadratic"
agents = 4
dim = 2
noise = 0.01
[algorithm]
name = "scaffold"
step = 0.02
local_steps = 2
"""
ARRAYS = ("rounds", "error", "loss", "used", "history", "memories")
HERE = Path(__file__).resolve().parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE)])}


def start(*arguments, step=0):
    """The command line as a process of its own, and its group's leader; it dies at that step on disk."""
    command = [sys.executable, str(HERE / "worker.py"), str(step), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=ENVIRONMENT, start_new_session=True, **pipes)


def wait_for(happened, process, seconds=600):
    """Until something has happened, or the process has ended; a test does not wait for ever."""
    deadline = time.monotonic() + seconds
    while not happened() and process.poll() is None:
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.002)


def count_events(folder):
    path = Path(folder) / "events.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def kill(process):
    """SIGKILL to the process and its children, unless it came to its end. Whether it was killed."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    said = process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGKILL), said
    return process.returncode == -signal.SIGKILL


def look_at(folder, reached):
    """What is on disk after a death is readable, no older than what was there before, and nothing seems damaged: a
    summary is about the checkpoint that is there. The round."""
    standing = RunFolder.open(folder).standing()
    point = standing.point
    assert point is not None and not standing.wrong
    assert point.round >= reached
    assert standing.summary is None or standing.summary["rounds"] == point.round
    assert RunFolder.open(folder).finished() is (standing.summary is not None)
    assert all("event" in event for event in RunFolder.open(folder).events())
    return point.round


def same_bits(one, other):
    """Two folders hold the same run."""
    a, b = fp.load(one), fp.load(other)
    assert a.finished and b.finished
    for name in ARRAYS if a.has_loss else [name for name in ARRAYS if name != "loss"]:
        assert getattr(a, name).tobytes() == getattr(b, name).tobytes(), name
    states = [run._point.state for run in (a, b)]
    for name in states[0].keys() | states[1].keys():
        assert name == "pace" or states[0][name].tobytes() == states[1][name].tobytes(), name
    assert (Path(one) / "model.npz").read_bytes() == (Path(other) / "model.npz").read_bytes()


def torment(file, folder, kills, seed, options=()):
    """Kill a run so often, resuming it after each death; then let it end. What deaths there were.

    Half of them at a moment drawn by the clock, half at a drawn step of a save; with several processes, all by the
    clock, as who saves is not the one that is started.
    """
    chance, reached, deaths, created = random.Random(seed), -1, {"moment": 0, "save": 0}, False
    while sum(deaths.values()) < kills:
        begun = (Path(folder) / "run.json").exists()
        created |= begun
        arguments = ("resume", folder) if begun else ("run", file, "--folder", folder)
        in_save = chance.random() < 0.5 and not options
        step = chance.randrange(1, 400) if in_save else 0
        seen = count_events(folder)
        process = start(*arguments, "--no-figure", "--quiet", *options, step=step)
        if not in_save:
            wait_for(lambda seen=seen: count_events(folder) > seen, process)
            time.sleep(chance.uniform(0, 0.5))
            died = kill(process)
        else:
            wait_for(lambda: False, process)
            died = kill(process)
        if died:
            deaths["save" if in_save else "moment"] += 1
        if (Path(folder) / "run.json").exists():
            reached = look_at(folder, reached)
        else:
            assert not created  # what was there once is never gone
        if not died:
            break  # it came to its end
    finish("resume", folder, *options)
    return deaths


def finish(*arguments):
    """A command that is left alone."""
    process = start(*arguments, "--no-figure", "--quiet")
    said = process.communicate(timeout=600)
    assert process.returncode == 0, said
