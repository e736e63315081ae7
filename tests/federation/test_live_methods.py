"""Every method of the catalogue over real processes, in step and late: its trajectory is the simulation's.

One federation (a server and three sites) for all: a study is a job, and sites consent to one after the other.
"""

import pytest
from live import QUIET, Live, Running
from studies import every_method, gap

pytest.importorskip("nvflare")
pytestmark = [pytest.mark.slow, *QUIET]

STUDIES = every_method()


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    made = Live(tmp_path_factory.mktemp("methods"), STUDIES["fedavg"])
    made.start()
    yield made
    made.close()


@pytest.mark.parametrize("name", STUDIES)
def test_the_trajectory_is_the_simulation_s(name, live, tmp_path):
    live.turn_to({**STUDIES[name], "deadline": 30.0})
    going = Running(live, tmp_path / "hub")
    going.start()
    made = going.result()
    assert made.study.fingerprint == live.study.fingerprint
    assert made.study.algorithm["name"] == name.partition(",")[0]
    assert made.round == STUDIES[name]["rounds"]
    assert all(event["merged"] for event in made.events)
    late = {"late"} if "late" in name else set()  # who was at work when the last round ended answers too late
    assert {reason.split()[1] for reason in made.refused} <= late
    assert gap(made) <= 1e-10
