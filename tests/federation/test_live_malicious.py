"""Real processes: a malicious server tries its orders on a site, over mutual TLS. Each is refused; three stop it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from attacks import ATTACKS
from live import QUIET, Live, Running, audit
from malicious import METHOD, TABLE, write_table
from studies import content

pytest.importorskip("nvflare")
pytestmark = [pytest.mark.slow, *QUIET]

SITES = ["north", "south"]
STUDY = content(METHOD, TABLE, rounds=3, sites=SITES, runs=30, deadline=30.0)
MALICIOUS = """
import sys

from fedpoint.core.errors import FedpointError
from fedpoint.federation.hub.hub import StudyHub


def run(self):
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    from malicious import over_the_wire
    over_the_wire(self, Path({data!r}), Path({found!r}))
    raise FedpointError("the attack is over")


StudyHub.run = run
"""


@pytest.fixture
def attacked(tmp_path, monkeypatch):
    """The server's processes hold another hub; the site's command runs as its person started it."""
    files = {site: write_table(tmp_path / f"{site}.csv", seed) for seed, site in enumerate(SITES)}
    live, found = Live(tmp_path / "live", STUDY, files), tmp_path / "found.json"
    code = MALICIOUS.format(tests=str(Path(__file__).parent), data=str(files["north"]), found=str(found))
    (tmp_path / "sitecustomize.py").write_text(code)
    with monkeypatch.context() as patched:
        patched.setenv("PYTHONPATH", str(tmp_path), prepend=":")
        live.start("server")
    live.start("south")
    command = [sys.executable, "-m", "fedpoint", "federate", "site", str(live.kits["north"].folder)]
    screen = (tmp_path / "screen.txt").open("wb")
    site = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=screen, stderr=screen)
    yield live, found, site, tmp_path / "screen.txt", command
    if site.poll() is None:
        site.terminate()
        site.wait(60)
    screen.close()
    live.close()


def test_every_order_that_the_study_forbids_is_refused_over_the_real_transport(attacked, tmp_path):
    live, path, site, screen, command = attacked
    going = Running(live, tmp_path / "result")
    going.start()
    assert site.wait(400) == 1  # its person sees it
    found = json.loads(path.read_text())
    tried = {name: attack for name, attack in ATTACKS.items() if name in found}
    assert len(tried) >= 60
    assert {name: found[name] for name in tried} == {name: attack[2] for name, attack in tried.items()}
    assert {found[name] for name in found if name.startswith("honest")} == {"answered"}
    assert found["three in a row"] == ["terms"] * 3
    records = live.parts["north"].records
    refused = [json.loads(line)["text"] for line in (records / "refusals.jsonl").read_text().splitlines()]
    assert len(refused) == len(tried) + 3
    lines = audit(live, "north")
    failed = [line["left"]["says"]["failure"] for line in lines if "failure" in line["left"]["says"]]
    assert failed.count("terms") + failed.count("order") == len(tried) + 3
    assert all(not line["left"]["arrays"] for line in lines if "failure" in line["left"]["says"])
    text = screen.read_text()
    assert "refused: round 999 was asked for, but the study has 3 rounds (rounds = 3)" in text
    assert "north has stopped itself in trial.1: 3 orders in a row were refused" in text
    again = subprocess.run(command, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL)
    assert again.returncode == 2
    assert "--lift-stop" in again.stderr
