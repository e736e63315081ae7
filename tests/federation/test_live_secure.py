"""Secure sums over real processes: the simulation's model, and sites that are killed cost their round at most."""

import numpy as np
import pytest
from live import QUIET, Live, Running, audit
from studies import CONTROL, SITES, content, gap

from fedpoint.federation.secure.encoding import Encoding

pytest.importorskip("nvflare")
pytestmark = [pytest.mark.slow, *QUIET]

CLIP = {"kind": "clip", "norm": 5.0}
STEP = Encoding(CLIP["norm"], 1.0, len(SITES)).resolution


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    made = Live(
        tmp_path_factory.mktemp("secure"), content(CONTROL, secure=True, channel=CLIP, rounds=10, deadline=30.0)
    )
    made.start()
    yield made
    made.close()


def test_the_model_is_the_simulation_s(live, tmp_path):
    going = Running(live, tmp_path / "hub")
    going.start()
    made = going.result()
    assert all(event["merged"] and event["answered"] == SITES for event in made.events)
    assert gap(made) <= 10 * len(SITES) * STEP
    left = [line["left"] for line in audit(live, "a") if line["asked"]["kind"] in ("work", "mask")]
    assert all("weight" not in one["says"] for one in left)
    print(f"seconds a round: {np.median([e['seconds']['all'] for e in made.events[1:]]):.3f}")


def test_workers_that_are_killed_cost_their_round(live, tmp_path):
    """A worker's secrets are in its memory: kill -9 in the middle of a round costs that one, and the others go on
    without the site until its next worker is there."""
    live.turn_to(content(CONTROL, secure=True, channel=CLIP, rounds=60, deadline=5.0, quorum=2))
    going = Running(live, tmp_path / "hub")
    going.start()
    for at in (5, 20, 35):
        going.reach(at)
        live.kill_worker("b", at_work=True)
    made = going.result()
    assert sum(not event["merged"] for event in made.events) <= 3
    assert any(event["answered"] == ["a", "c"] for event in made.events)
    assert made.round == 60
    assert gap(made) <= 60 * len(SITES) * STEP


def test_a_private_study_ends_with_its_epsilon(live, tmp_path):
    """Shared noise under masks; a second run of the same study is refused by the sites, whatever the hub says."""
    privacy = {"epsilon": 3.0, "delta": 1e-5, "clip": 1.0, "noise": "shared"}
    live.turn_to(content(secure=True, privacy=privacy, rounds=4, deadline=10.0, patience=1))
    going = Running(live, tmp_path / "hub")
    going.start()
    made = going.result()
    assert made.round == 4 and all(event["merged"] for event in made.events)
    again = Running(live, tmp_path / "again")
    again.start()
    again.hear(lambda: any(line["left"]["says"].get("failure") == "privacy" for line in audit(live, "a")))
