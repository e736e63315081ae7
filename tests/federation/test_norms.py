"""Whose answers stand out, and who is told: the rule of `hub/norms.py`, `status`, the progress and the result."""

import json
import shutil

import numpy as np
import pytest
from attacks_by_sites import FINITE
from studies import AVERAGE, BOWLS, CONTROL, content

import fedpoint as fp
from fedpoint.cli.federate_show import Show, show_result, standing_out, status_lines
from fedpoint.federation.hub import norms
from fedpoint.federation.hub.norms import Outliers
from fedpoint.federation.inprocess import Fault
from fedpoint.federation.result import StudyResult
from fedpoint.federation.transport import Event, Status

FIRST, AT = 2, 12
SITES = ["a", "b", "c", "d"]


def marked(rows):
    """The marks of rounds with these norms, one row a round."""
    outliers, found = Outliers(), []
    for number, row in enumerate(rows):
        lengths = dict(zip(SITES, map(float, row), strict=False))
        event = Event(round=number, merged=True, norms=lengths, marks=outliers.marks(lengths))
        outliers.note(event)
        found.append(event["marks"])
    return found


def honest(rng, rounds, sites=4, spread=0.5):
    """Norms that fall as a run converges, of sites of different size, each with luck of its own."""
    size = np.exp(rng.normal(0, 1.5, sites))
    return size * np.exp(rng.normal(0, spread, (rounds, sites)) - 0.05 * np.arange(rounds)[:, None])


@pytest.mark.parametrize("sites", [2, 3, 4])
@pytest.mark.parametrize("spread", [0.01, 0.3, 1.0])
def test_false_marks_are_as_rare_as_stated(sites, spread):
    """At most 1 in 1,000 honest answers: of 16,000 at most 16, and what luck adds to that."""
    rng, answers, found = np.random.default_rng([1, sites]), 0, 0
    while answers < 16_000:
        rows = honest(rng, 100, sites, spread)
        answers += rows.size
        found += sum(map(len, marked(rows)))
    assert found <= norms.FALSE * answers + 3 * np.sqrt(norms.FALSE * answers)


@pytest.mark.parametrize("sites", [2, 3, 4])
@pytest.mark.parametrize("factor", [1e-4, 1e3, 1e6])
def test_whoever_is_scaled_is_marked_and_nobody_else(sites, factor):
    rng, hits, others = np.random.default_rng(2), 0, 0
    for _ in range(50):
        rows = honest(rng, 20, sites, 0.3)
        rows[AT, 1] *= factor
        names = set(marked(rows)[AT])
        hits, others = hits + ("b" in names), others + len(names - {"b"})
    assert hits == 50
    assert others <= (2 if sites == 2 else 0)  # of two, each is the other's only measure


def test_a_site_that_is_large_from_the_start_is_marked_until_that_is_its_past():
    rows = honest(np.random.default_rng(4), 40)
    rows[:, 1] = 5000 * rows[:, [0, 2, 3]].max(axis=1)
    assert [set(marks) for marks in marked(rows)] == [{"b"}] * norms.PAST + [set()] * 35


def test_a_site_that_goes_on_stays_marked():
    """What stands out is no part of its past."""
    rows = honest(np.random.default_rng(3), 40)
    rows[AT:, 1] *= 1e4
    assert all("b" in marks for marks in marked(rows)[AT:])


def test_a_loose_rule_is_convicted(monkeypatch):
    """The test of false marks can fail."""
    monkeypatch.setattr(norms, "LONGER", 0.0)
    monkeypatch.setattr(norms, "FALSE", 0.2)
    rows = honest(np.random.default_rng(1), 4000)
    assert sum(map(len, marked(rows))) > 16


# Who is told.


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A study in which b's answer is scaled once, and one is huge."""
    study = content(CONTROL, BOWLS, rounds=16, quorum=2)
    faults = [Fault("b", FIRST + AT, FINITE["1e3 times"].change), Fault("b", FIRST + 2, FINITE["1e150"].change)]
    return fp.federate(study, folder=tmp_path_factory.mktemp("told"), faults=faults)


def test_norms_are_recorded_for_every_round(made):
    lines = [json.loads(line) for line in (made.folder / "rounds.jsonl").read_text().splitlines()]
    assert [set(line["norms"]) for line in lines] == [{"a", "b", "c"}] * 16
    assert lines[AT]["norms"]["b"] > 100 * lines[AT]["norms"]["a"]


def test_status_marks_who_stands_out(made):
    found = Status(
        sites=["a", "b", "c"], unheard={}, jobs=["1"], round=16, events=made.events,
        shares=Event(shares={"a": 0.5, "b": 0.25, "c": 0.25}, rows={"a": 1200, "b": 600, "c": 600}),
    )  # fmt: skip
    lines = status_lines(made.study, found)
    assert "shares: a 50 % (1,200 rows), b 25 % (600 rows), c 25 % (600 rows)" in lines
    (said,) = (line for line in lines if "stands out" in line)
    assert said.startswith("b stands out, 2 times in 16 rounds; in round 12 its answer is ")
    lines = status_lines(made.study, {**found, "events": made.events[:3]})
    assert lines[-1].startswith(
        "it was abandoned: the answer of b is over ten thousand times as long as usual (norms: a "
    )


def test_the_progress_and_the_result_say_it(made, capsys):
    with Show(made.study, quiet=False) as show:
        show(Event(shares={"a": 1 / 3, "b": 2 / 3}, rows={}))
        for event in made.events:
            show(event)
    said = capsys.readouterr().err
    assert "shares: a 33.3 %, b 66.7 %" in said
    assert "round 2: the answer of b is over ten thousand times as long as usual" in said
    assert f"round {AT}: b stands out: its answer is " in said
    show_result(made, as_json=False)
    said = capsys.readouterr().out
    assert "  b stands out, 2 times in 16 rounds" in said
    assert "  abandoned: round 2: the answer of b is over ten thousand times" in said
    show_result(made, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["shares"] == dict.fromkeys("abc", pytest.approx(1 / 3))
    assert len(found["marks"]) == len(found["abandoned"]) == 1


def test_an_honest_study_has_nothing_to_say():
    assert standing_out(fp.federate(content(AVERAGE, BOWLS, rounds=9)).events) == []


# Before the first model.


def test_a_result_without_a_model_says_so(made, tmp_path):
    folder = tmp_path / "hub"
    shutil.copytree(made.folder, folder)
    shutil.rmtree(folder / "models")
    (folder / "rounds.jsonl").write_text("")
    found = StudyResult(folder)
    assert repr(found).startswith("<trial: SCAFFOLD, round 16 of 16")
    for ask in (lambda: found.model, lambda: found.history):
        with pytest.raises(fp.FedpointError, match=r"hub holds no model yet: run the study first"):
            ask()
    with pytest.raises(fp.FedpointError, match="tells of no round yet"):
        found.replay(made.study.generated())
    with pytest.raises(fp.FedpointError, match="does not hold a study that has begun"):
        StudyResult(tmp_path / "nowhere")
