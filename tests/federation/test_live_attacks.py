"""A malicious site on the real transport: the attacks by sites, each as its process sends it, with the same outcome."""

import json
import os
from pathlib import Path

import attacks_by_sites as attacks
import numpy as np
import pytest
from attacks_by_sites import COLUMNS, FINITE, MALFORMED, MOMENTS, SITE
from live import QUIET, Live, Running
from studies import AVERAGE, BOWLS, CONTROL, SITES, content
from test_attacks_by_sites import TABLE, write_tables

import fedpoint as fp
from fedpoint.core.errors import Diverged
from fedpoint.federation.hub import validate
from fedpoint.federation.inprocess import Fault

pytest.importorskip("nvflare")
pytestmark = [pytest.mark.slow, *QUIET]

FIRST = 2  # orders before the rounds, in process: columns, ready
MALICIOUS = """
import json, os, sys
if "fedpoint.federation.site.worker" in sys.orig_argv:
    import attacks_by_sites as attacks
    from fedpoint.federation import wire
    from fedpoint.federation.site.site import Site

    honest = Site.answer

    def answer(self, order):
        data, asked = honest(self, order), wire.decode(order).header
        plan = json.load(open(os.environ["FEDPOINT_ATTACKS"]))
        name = plan.get(f"{asked['kind']} {asked['round']}" if asked["kind"] == "work" else asked["kind"])
        return data if name is None else attacks.EVERY[name][1].change(data)

    Site.answer = answer
"""


class Attacked(Live):
    """One of its sites is malicious: what it sends, and when, a file says that the test rewrites."""

    def __init__(self, root: Path, study: dict, data: dict | None = None):
        super().__init__(root, study, data)
        self.plan = root / "plan.json"
        (root / "malicious").mkdir()
        (root / "malicious" / "sitecustomize.py").write_text(MALICIOUS)
        self.send({})

    def send(self, plan: dict[str, str]):
        """By order ("columns", "moments", "measure") or round ("work 7")."""
        self.plan.write_text(json.dumps(plan))

    def start_all(self, monkeypatch):
        self.start("server", *(site for site in SITES if site != SITE))
        paths = [self.root / "malicious", Path(attacks.__file__).parent, os.environ.get("PYTHONPATH", "")]
        with monkeypatch.context() as patched:
            patched.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
            patched.setenv("FEDPOINT_ATTACKS", str(self.plan))
            self.start(SITE)

    def run(self, name: str):
        going = Running(self, self.root / name)
        going.start()
        return going.result()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Whatever is started is ended."""
    started = []

    def make(study, data=None):
        started.append(Attacked(tmp_path_factory.mktemp("attacked"), study, data))
        return started[-1]

    yield make
    for live in started:
        live.close()


def test_every_attack_in_a_round(made, monkeypatch):
    """First all malformed answers, then all finite ones: as in process, round by round and number by number."""
    stale = [name for name, one in MALFORMED.items() if one.why in validate.STALE]
    sent = [name for name, one in MALFORMED.items() if one.live and name not in stale]
    study = content(CONTROL, BOWLS, rounds=len(sent) + len(stale), quorum=2, norm_cap=1e6, deadline=4.0)
    live = made(study)
    live.start_all(monkeypatch)
    live.send({f"work {number}": f"work {name}" for number, name in enumerate([*sent, *stale])})
    found = live.run("malformed")
    for number, name in enumerate(sent):
        event = found.events[number]
        assert event["refused"] == {SITE: MALFORMED[name].why}, name
    assert not any(SITE in event["answered"] for event in found.events)
    without = fp.federate(study, faults=[Fault(SITE, FIRST + number, "lost") for number in range(found.round)])
    assert np.abs(found.history - without.history).max() <= 1e-10

    quiet = [*FINITE]
    rounds = {8 + 2 * number: name for number, name in enumerate(quiet)}  # an honest round after each
    study = content(CONTROL, BOWLS, rounds=8 + 2 * len(quiet), quorum=2, patience=50, deadline=15.0)
    live.turn_to(study)
    live.send({f"work {number}": f"work {name}" for number, name in rounds.items()})
    found = live.run("finite")
    FINITE["an old answer, labelled anew"].change.first = None
    faults = [Fault(SITE, FIRST + number, FINITE[name].change) for number, name in rounds.items()]
    here = fp.federate(study, faults=faults)
    for number, name in rounds.items():
        event = found.events[number]
        assert event["merged"] == (FINITE[name].outcome != "abandoned"), name
        assert ("abandoned" in event) == (FINITE[name].outcome == "abandoned"), name
    assert [event["marks"].keys() for event in found.events] == [event["marks"].keys() for event in here.events]
    assert np.isfinite(found.history).all()
    assert np.allclose(found.history, here.history, rtol=1e-9, atol=1e-10)


def test_the_next_round_s_label_sixty_times(made, monkeypatch):
    """The site is silent at first, so that the hub goes on without it and hears its answers in the rounds they name."""
    live = made(content(CONTROL, BOWLS, rounds=60, quorum=2, deadline=4.0))
    live.start_all(monkeypatch)
    live.send({f"work {number}": f"work {'the next round' if number else 'run: text'}" for number in range(60)})
    found = live.run("labelled")
    assert not any(SITE in event["answered"] for event in found.events)
    assert found.refused[f"{SITE} round"] + found.refused[f"{SITE} late"] >= 50


def test_a_site_that_goes_on_ends_the_study_by_name(made, monkeypatch):
    """And a later run goes on from the model before it."""
    live = made(content(CONTROL, BOWLS, rounds=6, quorum=2, patience=2, deadline=15.0))
    live.start_all(monkeypatch)
    live.send({f"work {number}": "work 1.79e308" for number in range(2, 9)})
    said = f"2 rounds in a row were abandoned, the last because the answer of {SITE} "
    with pytest.raises(Diverged, match=said), live.lead() as lead:
        lead.run(live.root / "hub", lambda event: None, fresh=True, wait=240.0)
    live.send({})
    with live.lead() as lead:
        found = lead.run(live.root / "hub", lambda event: None, wait=240.0)
    assert [event["merged"] for event in found.events] == [True, True, False, False, True, True]
    faults = [Fault(SITE, FIRST + number, FINITE["1.79e308"].change) for number in (2, 3)]
    here = fp.federate({**live.study.content, "patience": 3}, faults=faults)
    assert np.abs(found.history - here.history).max() <= 1e-10


def test_some_statements_about_data(made, monkeypatch, tmp_path):
    """The study goes on without the site, and says why; what is only strange is noted."""
    some = {
        "columns": [
            "1e20 rows",
            "more rows than the study allows",
            "a mean of 1e300",
            "categories that add up to more",
        ],
        "moments": ["means of 1e300", "a rest of 1e300", "other units"],
    }
    data = write_tables(tmp_path)
    study = content(AVERAGE, TABLE, rounds=2, quorum=2, deadline=10.0, rows={SITE: [30, 3000]}, runs=20)
    live = made(study, data)
    live.start_all(monkeypatch)
    for kind, names in some.items():
        for name in names:
            live.send({kind: f"{kind} {name}"})
            found, attack = live.run(f"{kind} {name}"), {"columns": COLUMNS, "moments": MOMENTS}[kind][name]
            notes = "".join(found.setup["notes"])
            assert attack.why in notes and f"{SITE}" in notes, name
            taken = all(SITE in event["answered"] for event in found.events)
            assert taken == (attack.outcome == "noted"), name
            assert np.isfinite(found.history).all()
