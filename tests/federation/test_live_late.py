"""Real processes: sites that come late, come back, never come, or are killed before the first round. Minutes."""

import shutil
import time

import pytest
from live import QUIET, Live, Running, audit, memories
from studies import BOWLS, CONTROL, SITES, content, gap, invariant

pytest.importorskip("nvflare")
pytestmark = [pytest.mark.slow, *QUIET]

ROUNDS = 1000  # longer together than a site needs to come
STUDY = content(CONTROL, BOWLS, rounds=ROUNDS, quorum=2, deadline=15.0, runs=20)
HEARD = 60.0  # seconds from a site's connection to its first answer: a tenth of it on a machine with nothing else to do


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    made = Live(tmp_path_factory.mktemp("live"), STUDY)
    made.start("server", "a", "b")
    yield made
    made.close()


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def connected(live, site):
    """Wait until a site is there; the moment."""
    with live.lead() as lead:
        wait_for(lambda: site in lead.sites())
    return time.monotonic()


def settled(made, live, root):
    """What is promised whoever was there: the simulation's trajectory, and c = sum p_k c_k."""
    assert made.round == ROUNDS
    assert gap(made) <= 1e-10
    shutil.copytree(made.folder, root / "hub", dirs_exist_ok=True)
    assert invariant(made, memories(live, root)) <= 1e-13


def test_a_late_site_is_heard_within_seconds_and_takes_part(live, tmp_path):
    going = Running(live, tmp_path / "made")
    going.start()
    going.reach(5)
    before = len(audit(live, "c"))
    live.start("c")
    begun = connected(live, "c")
    wait_for(lambda: len(audit(live, "c")) > before)
    assert time.monotonic() - begun < HEARD
    made = going.result()
    there = ["c" in event["answered"] for event in made.events]
    assert there == sorted(there)  # never, then always
    assert there[-1] and not there[5]
    assert [line["asked"]["kind"] for line in audit(live, "c")[before:]][:3] == ["columns", "ready", "work"]
    assert {"note": "c was not there when the study was prepared: its share is 33.3 %"} in going.said
    settled(made, live, tmp_path)


def test_a_dead_site_is_known_within_five_seconds(live):
    """Also when all die at once; and nothing runs."""
    with live.lead() as lead:
        wait_for(lambda: lead.sites() == SITES)
        for gone in (["c"], ["a", "b"]):
            for site in gone:
                live.kill(site)
            killed = time.monotonic()
            wait_for(lambda gone=gone: not set(gone) & set(lead.status()["sites"]))
            assert time.monotonic() - killed < 5.0
        time.sleep(3.0)
        unheard = lead.status()["unheard"]
        assert sorted(unheard) == SITES
        assert all(3.0 <= seconds <= 15.0 for seconds in unheard.values()), unheard
    live.start("a", "b")


def test_a_site_that_never_comes(live, tmp_path):
    going = Running(live, tmp_path / "made")
    going.start()
    going.hear(lambda: {"waiting": "columns", "for": ["c"]} in going.said)
    made = going.result()
    assert made.setup["absent"] == ["c"]
    assert {tuple(event["answered"]) for event in made.events} == {("a", "b")}
    assert gap(made) <= 1e-10


def test_kills_before_the_first_round(live, tmp_path):
    """The worker of one site, the whole of another, the server: nobody is asked anew what it has said."""
    live.start("c")
    connected(live, "c")
    live.stop("b")
    begun, going = len(audit(live, "a")), Running(live, tmp_path / "made")
    going.start()
    going.hear(lambda: {"waiting": "columns", "for": ["b"]} in going.said)  # a and c have said theirs; 15 s are left
    live.kill_worker("a")
    live.kill("c")
    live.kill("server")
    live.start("server", "b", "c")
    made = going.result()
    asked = [line["asked"] for line in audit(live, "a")[begun:]]
    assert [order["kind"] for order in asked].count("columns") == 1
    assert len({order["run"] for order in asked}) == 1
    assert made.events[-1]["answered"] == SITES
    settled(made, live, tmp_path)
