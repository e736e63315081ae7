"""No single answer ruins a study: what a round makes is looked at before it is saved, and abandoned if it must be."""

import json
import math

import numpy as np
import pytest
from attacks_by_sites import FINITE, MAX
from studies import AVERAGE, BOWLS, CONTROL, FULL, content, every_method, gap
from test_equality import FAST, SLOW, SPEEDS, invariant

import fedpoint as fp
from fedpoint.core.errors import Diverged
from fedpoint.federation.hub import examine
from fedpoint.federation.hub.norms import norm
from fedpoint.federation.inprocess import Fault
from fedpoint.federation.result import StudyResult

FIRST = 2  # orders before the rounds: columns, ready


HUGE = {name: FINITE[name].change for name in ("1.79e308", "1e150", "1e12 times")}
WAYS = {
    "a mean": content(CONTROL, BOWLS, rounds=5, quorum=2),
    "an optimiser": content({"name": "fedadam", "step": 0.05}, BOWLS, rounds=5, quorum=2),
    "a momentum": content({"name": "fedavgm", "step": 0.05, "local_steps": 2}, BOWLS, rounds=5, quorum=2),
    "a network": content({"name": "fedrelax", "coupling": 0.5}, FULL, rounds=5, quorum=2, network="ring"),
}


class Ended(Exception):
    pass


def garbage(number):
    """Two sites whose answers are refused: too few for a round."""
    return [Fault(site, number, lambda data: b"") for site in "ab"]


@pytest.mark.parametrize("huge", HUGE)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("round", [0, 2])
def test_one_answer_costs_one_round(huge, way, round, tmp_path):
    """Afterwards the study goes on to the bits of one that abandoned that round for another reason."""
    study = WAYS[way]
    made = fp.federate(study, folder=tmp_path / "attacked", faults=[Fault("b", FIRST + round, HUGE[huge])])
    control = fp.federate(study, folder=tmp_path / "control", faults=garbage(FIRST + round))
    assert [event["merged"] for event in made.events] == [number != round for number in range(5)]
    assert np.array_equal(made.history, control.history)
    event = made.events[round]
    assert event["abandoned"].startswith("the answer of b is over ten thousand times as long as usual (norms: a ")
    assert event["norms"]["b"] > examine.BOUND * max(event["norms"]["a"], event["norms"]["c"])
    assert all(math.isfinite(length) for length in event["norms"].values())
    assert gap(made) <= 1e-10


@pytest.mark.parametrize("near", [0.0, 1e-16, 1e-9])
def test_sites_that_begin_at_their_solution_are_no_measure(near, tmp_path):
    """Two have next to nothing to say, the third says what it must: all is merged, and the mean is reached."""
    bowls = {"kind": "quadratic", "H": [1.0, 1.0, 1.0], "centers": [[near], [near], [1.0]]}
    made = fp.federate(content({"name": "fedavg", "step": 0.5}, bowls, rounds=60), folder=tmp_path)
    assert all(event["merged"] for event in made.events)
    assert made.model == pytest.approx((1 + 2 * near) / 3, abs=1e-12)


@pytest.mark.parametrize("huge", HUGE)
def test_one_late_answer_is_not_merged(huge, tmp_path):
    study = content(CONTROL, BOWLS, rounds=24, asynchronous={})
    made = fp.federate(study, folder=tmp_path, seconds=SPEEDS, faults=[Fault("b", FIRST + 1, HUGE[huge])])
    (at,) = (event["round"] for event in made.events if not event["merged"])
    assert made.events[at]["answered"] == ["b"] and "the answer of b" in made.events[at]["abandoned"]
    assert np.array_equal(made.history[at], made.history[at + 1])
    assert [site for event in made.events[at + 1 :] for site in event["answered"]].count("b") >= 1
    assert invariant(made, tmp_path) <= 1e-14  # the site has dropped what goes with that answer
    with pytest.raises(fp.FedpointError, match="cannot be replayed"):
        made.replay(made.study.generated())


def test_a_median_is_not_moved_and_the_round_stands(tmp_path):
    study = content(AVERAGE, BOWLS, rounds=4, gather="median")
    made = fp.federate(study, folder=tmp_path, faults=[Fault("b", FIRST + 1, HUGE["1.79e308"])])
    assert all(event["merged"] for event in made.events)
    assert "b" in made.events[1]["marks"]
    assert np.abs(made.model).max() < 10


def test_a_site_that_goes_on_is_named_and_the_study_can_go_on_without_it(tmp_path):
    study = content(CONTROL, BOWLS, rounds=7, quorum=2)
    always = [Fault("c", FIRST + number, HUGE["1e150"]) for number in range(2, 9)]
    with pytest.raises(Diverged, match=r"3 rounds in a row were abandoned, .*the answer of c .*c 2e\+150.* is kept"):
        fp.federate(study, folder=tmp_path, faults=always)
    assert StudyResult(tmp_path / "hub").round == 5
    made = fp.federate(study, folder=tmp_path)
    assert [event["merged"] for event in made.events] == [True, True, False, False, False, True, True]
    assert np.isfinite(made.loss)


def test_what_is_usual_is_known_after_a_stop(tmp_path):
    """One site a round: only the rounds before say what is usual, also to a hub that begins anew."""
    study = content(AVERAGE, BOWLS, rounds=6, participation=1)

    def stop(event):
        if event.get("round") == 3:
            raise Ended

    with pytest.raises(Ended):
        fp.federate(study, folder=tmp_path, tell=stop)
    attack = [Fault(site, 1, HUGE["1e12 times"]) for site in "abc"]  # the first after "ready"
    made = fp.federate(study, folder=tmp_path, faults=attack)
    assert [event["merged"] for event in made.events][:4] == [True] * 4
    assert not made.events[4]["merged"]
    assert "over ten thousand times" in made.events[4]["abandoned"]


@pytest.mark.parametrize("huge", HUGE)
def test_without_the_bound_the_study_is_ruined(huge, tmp_path, monkeypatch):
    """The tests above can fail."""
    monkeypatch.setattr(examine, "BOUND", math.inf)

    def stop(event):
        if event.get("round") == 0:
            raise Ended

    study = content(CONTROL, BOWLS, rounds=2, quorum=2)
    with pytest.raises(Ended):
        fp.federate(study, folder=tmp_path, faults=[Fault("b", FIRST, HUGE[huge])], tell=stop)
    assert not np.abs(StudyResult(tmp_path / "hub").history[1]).max() < 1e6


def test_a_move_that_no_answer_explains(tmp_path, monkeypatch):
    """A method that made much of little: the model stays where it was."""
    from fedpoint.federation.hub.center import Center

    whole = Center.merge

    def far(self, round, tick, answers):
        whole(self, round, tick, answers)
        if round == 2:
            self.state = self.state._replace(hub=np.asarray(self.state.hub) * 0 + 1e9)

    monkeypatch.setattr(Center, "merge", far)
    made = fp.federate(content(AVERAGE, BOWLS, rounds=4), folder=tmp_path)
    assert [event["merged"] for event in made.events] == [True, True, False, True]
    assert "it would have moved the model by 1.4e+09, and no answer stands out" in made.events[2]["abandoned"]


# Honest studies.


@pytest.mark.parametrize("name", FAST)
def test_an_honest_study_is_left_alone(name, tmp_path):
    made = fp.federate({**FAST[name], "rounds": 9}, folder=tmp_path, seconds=SPEEDS)
    assert not any("abandoned" in event or event["marks"] for event in made.events)
    lines = [json.loads(line) for line in (tmp_path / "hub" / "rounds.jsonl").read_text().splitlines()]
    assert all(set(line["norms"]) == set(line["answered"]) for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_honest_studies_of_every_method_are_left_alone(seed):
    """Not one round abandoned, and at most one answer in a thousand marked."""
    answers, marked = 0, []
    for name, study in SLOW.items():
        made = fp.federate({**study, "rounds": 40, "seed": seed}, seconds=SPEEDS)
        assert not any("abandoned" in event for event in made.events), name
        answers += sum(len(event["norms"]) for event in made.events)
        marked += [(name, event["round"], event["marks"]) for event in made.events if event["marks"]]
    assert set(every_method()) <= set(SLOW)
    assert answers > 4000
    assert len(marked) <= answers / 1000, marked


DIFFERENT = {"kind": "quadratic", "H": [1.0, 2.0, 4.0], "centers": [[0.0, 0.0], [1.0, 2.0], [3.0, -1.0]]}


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ({"name": "fedavg", "step": 30.0, "local_steps": 2}, "left the finite numbers|not finite"),  # all sites
        (
            {"name": "fedavg", "step": 1.0, "local_steps": 10},
            "the answer of c .* take a smaller one",
        ),  # one, and all follow it
        ({"name": "fedavg", "step": 0.6, "local_steps": 50}, "the answer of c .* take a smaller one"),  # at once
        ({"name": "fedavg", "step": 1e200, "local_steps": 9}, "not finite .* Take a smaller step"),  # before any round
    ],
)
def test_an_honest_divergence_says_so(algorithm, said, tmp_path):
    with pytest.raises(Diverged, match=said):
        fp.federate(content(algorithm, DIFFERENT, rounds=150), folder=tmp_path)


@pytest.mark.parametrize("scale", [1e-140, 1e-9, 1e9, 1e140])
@pytest.mark.parametrize("more", [{}, {"participation": 1}, {"asynchronous": {}}])
def test_any_unit_will_do(scale, more, tmp_path):
    centers = [[scale, 0.0], [scale, 2 * scale], [0.0, 0.0]]
    problem = {"kind": "quadratic", "H": [1.0, 1.0, 1.0], "centers": centers}
    made = fp.federate(content(AVERAGE, problem, rounds=6, **more), folder=tmp_path)
    assert all(event["merged"] for event in made.events)


# The norm itself.


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1.0, 1e200, 1e307])
def test_norms_neither_overflow_nor_vanish(scale):
    assert norm({"x": np.array([3.0, 0.0]) * scale, "y": np.array([[-4.0]]) * scale}) == pytest.approx(
        5 * scale, rel=1e-3 if scale < 1e-300 else 1e-14
    )


def test_norms_that_are_no_number():
    assert norm({"x": np.array([MAX, MAX])}) == MAX
    assert norm({"x": np.array([np.nan])}) == norm({"x": np.array([-np.inf])}) == MAX
    assert norm({"x": np.zeros(3), "y": np.zeros(0)}) == norm({}) == 0.0
