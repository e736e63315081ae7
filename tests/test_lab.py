"""Does `fedpoint lab` show what the lecture says, with numbers that agree with the exact prediction?"""

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

import fedpoint as fp
from fedpoint.cli import progress
from fedpoint.cli.lab import lab as command
from fedpoint.lab import Lab, LabOutcome, find, names, perform
from fedpoint.lab.picture import picture
from fedpoint.lab.runner import PanelTable, sentence, steady_from
from fedpoint.theory import lms_floor, lms_msd


def call(*arguments):
    return CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False)


def numbers_of(setting):
    """What the closed forms of lecture 000 take."""
    e = setting.experiment
    return e.problem, e.algorithm.step, e.algorithm.local_steps, e.timing.slots(e.problem.agents)


def pretend(setting):
    """The outcome of a simulation without error."""
    numbers = numbers_of(setting)
    exact, floor = lms_msd(*numbers, setting.rounds, normalise=True), lms_floor(*numbers, normalise=True)
    return LabOutcome(setting, exact, exact, steady_from(exact, floor), floor, 0.01 * floor, floor, floor)


@pytest.fixture(scope="module")
def outcomes():
    return {s: pretend(s) for s in find().settings}


def test_the_settings_are_the_lectures():
    found = {(s.cells["K"], s.cells["L"], s.cells["E"], s.cells["spread"]) for s in find().settings}
    lecture = {(100, 100, 1, 0.0), (100, 100, 1, 0.1), (100, 10, 1, 0.0), (100, 10, 10, 0.0), (100, 10, 10, 0.1)}
    gain = {(1, 1, 1, 0.0), (10, 10, 1, 0.0)}
    assert found == lecture | gain | {(100, 10, 1, 0.1)}
    problems = [s.entry.content["problem"] for s in find().settings]
    assert {(p["noise"], p["dim"]) for p in problems} == {(0.01, 10)}
    assert all(s.experiment.algorithm.normalise for s in find().settings)  # lecture 000 (72)


def test_the_steady_state_is_reached_in_the_rounds_shown():
    for quick in (False, True):
        for s in find(quick=quick).settings:
            curve = lms_msd(*numbers_of(s), s.rounds, normalise=True)
            floor = lms_floor(*numbers_of(s), normalise=True)
            begin = steady_from(curve, floor)
            assert begin < s.rounds / 2
            np.testing.assert_allclose(curve[begin:], floor, rtol=0.01)


def test_the_titles_are_true(outcomes):
    """Exactly: 100, 10, 1 and 1.8 times, and 10 times per ten times the agents."""
    floors = {p.name: [outcomes[s].floor for _, s in p.curves] for p in find().panels}
    one, two, three, four, gain = floors.values()
    assert one[1] / one[0] > 100
    assert two[1] / two[0] == pytest.approx(10, rel=0.02)
    assert three[2] / three[0] == pytest.approx(1, rel=0.02)
    assert 1.5 < four[2] / four[0] < four[1] / four[0]
    assert gain[1] / gain[0] == pytest.approx(10, rel=0.02)
    assert gain[2] / gain[1] == pytest.approx(10, rel=0.13)


def test_sentences_fill_in_measured_and_predicted(outcomes):
    for panel in find().panels:
        text = sentence(panel, outcomes)
        assert "{" not in text and "predicted" in text
    assert "10.1 (predicted 10.1) times as high" in sentence(find().panels[1], outcomes)


def test_picture_of_all(outcomes):
    figure = picture(find(), outcomes)
    assert [len(ax.lines) for ax in figure.axes] == [4, 4, 6, 6, 6, 0]  # simulated and exact; then the key
    for ax, panel in zip(figure.axes, find().panels, strict=False):
        assert ax.get_title(loc="left") == panel.title and ax.get_yscale() == "log"
        ends = [t.get_text().split("\n")[0] for t in ax.texts]
        assert ends == [label for label, _ in panel.curves]


def test_simulation_agrees_with_the_prediction():
    small = find("observation-2").change(rounds=600, repeats=10)
    seen = []
    for outcome in perform(small, lambda setting, round: seen.append((setting.cells["L"], round))):
        scores = outcome.to_json()
        assert abs(scores["z"]) < 4 and outcome.uncertainty < 0.15 * outcome.floor
        assert outcome.mean.shape == outcome.exact.shape == (601,)
        assert outcome.mean[0] == pytest.approx(outcome.exact[0], rel=1e-12)
        assert outcome.ratio == outcome.steady / outcome.predicted
        assert scores["z"] == outcome.apart == (outcome.steady - outcome.predicted) / outcome.uncertainty
        assert np.abs(np.log(outcome.mean / outcome.exact)).max() < 1
    assert {(100, 0), (100, 600), (10, 0), (10, 600)} <= set(seen)


def test_command_for_people(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS", 0.0)  # between two lines on stderr
    result = call("observation-1", "--rounds", 40, "--repeats", 1, "--out", tmp_path / "new", "--format", "svg")
    assert result.exit_code == 0
    assert (tmp_path / "new" / "observation-1.svg").read_bytes().startswith(b"<?xml")
    assert f"Picture: {tmp_path / 'new' / 'observation-1.svg'}" in result.stdout
    assert "the floor is" in result.stdout and "The steady state is not reached after 40 rounds" in result.stdout
    assert re.search(r"ratio +apart", result.stdout) and "how many standard errors" in result.stdout
    lines = [re.fullmatch(r"observation-1: [01] of 2 settings done, now (.*)", x) for x in result.stderr.splitlines()]
    assert {line[1] for line in lines} == {"K = 100, L = 100, E = 1, spread 0", "K = 100, L = 100, E = 1, spread 0.1"}


def test_command_for_programs(tmp_path):
    result = call("observation-1", "--quick", "--rounds", 40, "--out", tmp_path, "--json")
    read = json.loads(result.stdout)
    assert read["lab"] == "observation-1" and read["picture"].endswith("observation-1.png")
    (panel,) = read["panels"]
    assert [c["spread"] for c in panel["curves"]] == [0.0, 0.1]
    for curve in panel["curves"]:
        assert curve["repeats"] == 10 and curve["rounds"] == 40
        assert curve["ratio"] == pytest.approx(curve["steady"] / curve["exact"])
        assert curve["standard_error"] > 0


def test_help_names_what_there_is():
    text = " ".join(call("--help").stdout.split())
    assert all(re.search(rf"\b{name}\b", text) for name in ("lecture000", "linear-gain", "observation-1"))
    assert names()[:6] == ["lecture000", *(f"observation-{i}" for i in range(1, 5)), "linear-gain"]
    assert {"scafflsa", "fedlsa-different", "td"} <= set(names())


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["observation-7"], "unknown lab 'observation-7': did you mean 'observation-"),
        (["linear-gain", "--rounds", "0"], "rounds must be a whole number, at least 1"),
        (["linear-gain", "--repeats", "-1"], "repeats must be"),
        (["linear-gain", "--out", "file/lab"], "--out file/lab: cannot make this folder"),
    ],
)
def test_mistakes(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(fp.FedpointError, match=message):
        call(*arguments)


def test_the_lab_of_lecture_001(tmp_path):
    """Short and with few agents: FedLSA is biased as predicted, SCAFFLSA is not."""
    lab = find("scafflsa", quick=True)
    experiments = {e["name"]: e for e in lab.content["experiment"]}
    biased, same = experiments["different, H = 100"], experiments["H = 100"]
    assert biased["problem"]["heterogeneity"] > 0 and "problem" not in same
    few = [
        {"name": "FedLSA", "problem": {"heterogeneity": 1.0}},
        {"name": "SCAFFLSA", "problem": {"heterogeneity": 1.0}, "algorithm": {"name": "scafflsa"}},
        {"name": "same"},
    ]
    common = {
        **lab.content,
        "rounds": 30,
        "problem": {**lab.content["problem"], "agents": 4, "dim": 3, "states": 8},
        "algorithm": {**lab.content["algorithm"], "local_steps": 50},
    }
    panel = PanelTable(name="small", title="small", says="{2/1}", curves={e["name"]: e["name"] for e in few})
    small = Lab("small", {**common, "experiment": few}, lab.table.model_copy(update={"panel": [panel]}))
    done = {o.setting: o for o in perform(small)}
    fedlsa, scafflsa, alike = (done[s] for s in small.settings)
    assert fedlsa.bias2 > 0 and scafflsa.bias2 == 0 and alike.bias2 == 0
    for outcome in done.values():  # five standard errors over six repeats
        assert abs(outcome.steady - outcome.predicted) <= 5 * outcome.uncertainty + 0.02 * outcome.predicted
    picture(small, done, tmp_path / "small.png")
    assert (tmp_path / "small.png").stat().st_size > 5000


def test_the_table_says_how_far_measured_and_exact_are_apart(tmp_path):
    """In standard errors, as the JSON does; a single run has none."""
    arguments = ["observation-1", "--rounds", 30, "--out", tmp_path]
    told = json.loads(call(*arguments, "--repeats", 3, "--json").stdout)["panels"][0]["curves"]
    rows = [line for line in call(*arguments, "--repeats", 3).stdout.splitlines() if re.search(r" 100 +100 +1 ", line)]
    assert [row.split()[-1] for row in rows] == [f"{curve['z']:+.1f}" for curve in told]
    single = [
        line for line in call(*arguments, "--repeats", 1).stdout.splitlines() if re.search(r" 100 +100 +1 ", line)
    ]
    assert [row.split()[-1] for row in single] == ["-", "-"]


def test_repeats_of_the_command_are_those_of_every_setting():
    assert len({s.experiment.repeats for s in find("scafflsa").settings}) > 1  # of cheap settings more
    assert {s.experiment.repeats for s in find("scafflsa").change(repeats=3).settings} == {3}
    assert len({s.experiment.repeats for s in find("scafflsa", quick=True).settings}) == 1
