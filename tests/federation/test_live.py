"""Real processes: commands, kill -9 of everything, the demo. Minutes; run by `make test-all`."""

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from live import QUIET, Live, Running, audit, memories
from studies import BOWLS, CONTROL, SITES, content, gap, invariant

pytest.importorskip("nvflare")
pytestmark = [pytest.mark.slow, *QUIET]

ROUNDS = 1000  # longer together than a process that was killed needs to be back
STUDY = content(CONTROL, BOWLS, rounds=ROUNDS, quorum=2, deadline=15.0, runs=20)  # every test begins anew


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    made = Live(tmp_path_factory.mktemp("live"), STUDY)
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole(live):
    """The study, with nothing in its way."""
    going = Running(live, live.root / "whole")
    going.start()
    return going.result()


def test_the_trajectory_is_the_simulation_s(live, whole, tmp_path):
    assert whole.round == ROUNDS
    assert gap(whole) <= 1e-10
    shutil.copytree(whole.folder, tmp_path / "hub")
    assert invariant(whole, memories(live, tmp_path)) <= 1e-13
    assert {line["asked"]["kind"] for line in audit(live, "a")} >= {"columns", "ready", "work", "measure"}


def test_less_than_half_a_second_a_round(whole):
    assert np.median([event["seconds"]["all"] for event in whole.events]) < 0.5


def test_the_command_line(live, whole, tmp_path):
    def fedpoint(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "fedpoint", "federate", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=240,
        )

    dry = fedpoint("approve", live.kits["a"].folder, "trial", "--dry-run", "--json")
    assert [one["kind"] for one in json.loads(dry.stdout)["leaves"]] == ["columns", "ready", "work", "measure", "end"]
    refused = fedpoint("approve", live.kits["a"].folder, "trial")  # nobody there to consent
    assert refused.returncode != 0
    wrong = fedpoint("server", live.kits["a"].folder)
    assert (wrong.returncode, "is the kit of a" in wrong.stderr) == (2, True)
    taken = fedpoint("server", live.kits["server"].folder)
    assert (taken.returncode, "cannot be used" in taken.stderr) == (2, True)
    project = ("--project", live.project.folder)
    here = json.loads(fedpoint("status", "trial", *project, "--json").stdout)
    assert (here["sites"], here["missing"], here["jobs"]) == (SITES, [], [])
    assert "nothing runs" in fedpoint("stop", "trial", *project).stdout
    again = fedpoint("init", "trial", "--server", "localhost:1", "--folder", live.project.folder)
    assert (again.returncode, "is not empty" in again.stderr) == (2, True)


# kill -9.


def settled(made, live, whole, root, after):
    """What is promised whatever was killed: the simulation's trajectory, the invariant, everybody back at the end; and
    as long as everybody answered, the very models of the study with nothing in its way."""
    assert made.round == ROUNDS
    assert gap(made) <= 1e-10
    assert invariant(made, memories(live, root)) <= 1e-13
    assert made.events[-1]["answered"] == SITES
    few = [event["round"] for event in made.events if event["answered"] != SITES]
    same = min(few, default=ROUNDS)
    assert same >= after
    assert np.array_equal(made.history[: same + 1], whole.history[: same + 1])
    return few


def test_kill_a_worker(live, whole, tmp_path):
    """One order without an answer; the next one starts another worker, which remembers."""
    going = Running(live, tmp_path / "hub")
    going.start()
    going.reach(5)
    live.kill_worker("b", at_work=True)
    assert settled(going.result(), live, whole, tmp_path, after=5)


def test_kill_a_site(live, whole, tmp_path):
    """The others go on in the next segment; the site comes back with its memory."""
    going = Running(live, tmp_path / "hub")
    going.start()
    going.reach(5)
    live.kill("c")
    time.sleep(3)
    live.start("c")
    settled(going.result(), live, whole, tmp_path, after=5)


def test_kill_the_server(live, whole, tmp_path):
    going = Running(live, tmp_path / "hub")
    going.start()
    going.reach(5)
    live.kill("server")
    time.sleep(2)
    live.start("server")
    settled(going.result(), live, whole, tmp_path, after=5)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_kill_anything_at_any_time(seed, live, whole, tmp_path):
    """Workers, halves of the job, whole parties: while the job starts, in rounds, and while the next segment begins."""
    rng, going = np.random.default_rng(seed), Running(live, tmp_path / "hub")
    going.start()

    def segments():
        return sum("segment" in event for event in going.said)

    for moment in rng.permutation(["start", "round", "segment"]):
        if moment == "round":
            going.reach(int(rng.integers(3, 30)), 480)
        elif moment == "segment":
            before = segments()
            live.kill_job("server")
            going.hear(lambda before=before: segments() > before or not going.is_alive(), 480)
        time.sleep(float(rng.uniform(0, 5)))
        if not going.is_alive():  # it was quicker
            break
        party = str(rng.choice(["server", *SITES]))
        what = str(rng.choice(["job", "all"] if party == "server" else ["worker", "job", "all"]))
        if what == "worker":
            live.kill_worker(party)
        elif what == "job":
            live.kill_job(party)
        else:
            live.kill(party)
            time.sleep(float(rng.uniform(0, 3)))
            live.start(party)
    settled(going.result(600), live, whole, tmp_path, after=0)


def test_two_studies_side_by_side(live, whole, tmp_path):
    """The same server and sites: each study ends as if it were alone."""
    other = copy.copy(live)
    other.turn_to({**STUDY, "name": "other", "seed": 5, "rounds": ROUNDS - 30})
    both = [Running(live, tmp_path / "hub"), Running(other, tmp_path / "other")]
    for going in both:
        going.start()
    for going in both:
        going.reach(5)
    assert all(going.is_alive() for going in both)
    first, second = (going.result() for going in both)
    assert np.array_equal(first.history, whole.history)
    assert second.round == ROUNDS - 30 and gap(second) <= 1e-10


def test_stop_and_go_on(live, whole, tmp_path):
    going = Running(live, tmp_path / "hub")
    going.start()
    going.reach(5)
    with live.lead() as lead:
        assert lead.status()["sites"] == SITES
        assert len(lead.stop()) == 1
    going.join(120)
    assert "stopped after round" in str(going.error)
    again = Running(live, tmp_path / "hub", fresh=False)
    again.start()
    made = again.result()
    assert np.array_equal(made.history, whole.history)


def demo(tmp_path):
    command = [sys.executable, "-m", "fedpoint", "federate", "demo", "--rounds", "10", "--json", "--quiet"]
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own)


def nothing_left(tmp_path):
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    return list(tmp_path.iterdir()) == [] and str(tmp_path) not in left


def test_the_demo_shows_the_same_numbers_and_cleans_up(tmp_path):
    """Credit scoring over three banks: columns are scaled and encoded over the wire too."""
    process = demo(tmp_path)
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    found = json.loads(out)
    assert found["same"]
    assert found["gap"] <= 1e-10
    assert nothing_left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_cleans_up_when_it_is_interrupted(number, tmp_path):
    process, end = demo(tmp_path), time.monotonic() + 240
    while not list(tmp_path.glob("*/project/west/studies/*/worker.pid")):  # in the middle of a job
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.2)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert nothing_left(tmp_path)
