"""Real processes: trajectories, what is refused, and kill -9 of everything. Minutes; run by `make test-all`."""

import json
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from live import QUIET, Live, Running, audit
from studies import BOWLS, CONTROL, ROWS, SITES, SYSTEM, content, gap
from test_equality import invariant

pytest.importorskip("nvflare")
pytestmark = [pytest.mark.slow, *QUIET]

STUDY = content(CONTROL, BOWLS, rounds=150, quorum=2, deadline=15.0)


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


def memories(live, root):
    """The folders of hub and sites as `invariant` wants them."""
    for site in SITES:
        files = sorted((live.kits[site].folder / "records").glob("memory-*.npz"), key=lambda p: p.stat().st_mtime)
        (root / site).mkdir(parents=True)
        shutil.copy(files[-1], root / site)
    return root


def test_the_trajectory_is_the_simulation_s(live, whole, tmp_path):
    assert whole.round == 150
    assert gap(whole) <= 1e-10
    shutil.copytree(whole.folder, tmp_path / "hub")
    assert invariant(whole, memories(live, tmp_path)) <= 1e-13
    assert {line["kind"] for line in audit(live, "a")} >= {"columns", "ready", "work", "measure"}


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

    dry = fedpoint("site", live.kits["a"].folder, "--dry-run", "--json")
    assert [one["kind"] for one in json.loads(dry.stdout)["leaves"]] == ["columns", "ready", "work", "measure"]
    refused = fedpoint("site", live.kits["a"].folder)  # nobody there to consent
    assert refused.returncode != 0
    wrong = fedpoint("server", live.kits["a"].folder)
    assert (wrong.returncode, "is the kit of a" in wrong.stderr) == (2, True)
    taken = fedpoint("server", live.kits["server"].folder)
    assert (taken.returncode, "cannot be used" in taken.stderr) == (2, True)
    here = json.loads(fedpoint("status", live.kits["admin"].folder, "--json").stdout)
    assert (here["sites"], here["missing"], here["jobs"]) == (SITES, [], [])
    assert "nothing runs" in fedpoint("stop", live.kits["admin"].folder).stdout
    again = fedpoint("provision", live.kits["a"].folder / "study.toml", "--folder", live.root / "kits")
    assert (again.returncode, "is not empty" in again.stderr) == (2, True)


# kill -9.


def test_kill_a_worker(live, whole, tmp_path):
    """One order without an answer; the next one starts another worker, which remembers."""
    going = Running(live, tmp_path / "hub")
    going.start()
    going.reach(5)
    live.kill_worker("b")
    made = going.result()
    assert made.round == 150
    assert gap(made) <= 1e-10
    assert invariant(made, memories(live, tmp_path)) <= 1e-13
    assert made.events[-1]["answered"] == SITES


def test_kill_a_site(live, whole, tmp_path, monkeypatch):
    """The others go on in the next segment; the site comes back with its memory."""
    monkeypatch.setattr("fedpoint.federation.flare.lead.SILENT", 2.0)  # rounds are few: no time to lose
    going = Running(live, tmp_path / "hub")
    going.start()
    going.reach(5)
    live.kill("c")
    time.sleep(3)
    live.start("c")
    made = going.result()
    assert gap(made) <= 1e-10
    assert made.events[-1]["answered"] == SITES
    assert invariant(made, memories(live, tmp_path)) <= 1e-13


def test_kill_the_server(live, whole, tmp_path):
    going = Running(live, tmp_path / "hub")
    going.start()
    going.reach(5)
    live.kill("server")
    time.sleep(2)
    live.start("server")
    made = going.result()
    assert made.round == 150
    assert gap(made) <= 1e-10
    assert invariant(made, memories(live, tmp_path)) <= 1e-13


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


@pytest.mark.parametrize(
    "study",
    [
        content(CONTROL, BOWLS, rounds=30, asynchronous={"staleness": {"polynomial": 0.5}}),
        content({"name": "fedrelax", "coupling": 0.5}, {**ROWS, "batch": None}, rounds=20, network="ring"),
        content({"name": "fedgd", "step": 0.05}, {**ROWS, "batch": None}, rounds=30, network="ring", asynchronous={}),
        content({"name": "scafflsa", "step": 0.1, "local_steps": 4}, SYSTEM, rounds=20),
    ],
    ids=["late", "network", "late network", "ScaffLSA"],
)
def test_late_answers_networks_and_linear_systems(study, tmp_path):
    made = Live(tmp_path / "live", {**study, "deadline": 30.0})
    made.start()
    try:
        going = Running(made, tmp_path / "hub")
        going.start()
        result = going.result()
        assert result.round == study["rounds"]
        assert gap(result) <= 1e-10
    finally:
        made.close()


def test_the_demo_shows_the_same_numbers_and_cleans_up(tmp_path):
    """Credit scoring over three banks: columns are scaled and encoded over the wire too."""
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "fedpoint", "federate", "demo", "--rounds", "10", "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=own)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["same"]
    assert found["gap"] <= 1e-10
    assert list(tmp_path.glob("fedpoint-*")) == []
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(tmp_path) not in left
