"""Sites that are not there at the start, come late, never come, or do not fit: the others go on, and the trajectory is
the simulation's of sites that did not answer."""

import json

import numpy as np
import pytest
from studies import AVERAGE, BOWLS, CONTROL, FULL, SITES, content, gap, invariant
from test_study import FEW, table, write

import fedpoint as fp
from fedpoint.cli.federate_show import show_result
from fedpoint.data.tables import read_table
from fedpoint.federation import wire
from fedpoint.federation.inprocess import Fault
from fedpoint.federation.result import StudyResult
from fedpoint.federation.transport import NoAnswerYet

TOLERANCE = 1e-10
SLOW = {"a": 20.0, "b": 20.0, "c": 1.0}  # virtual seconds: a question is asked again after 120
PATIENT = {"quorum": 2, "deadline": 30.0}


def lost(site, orders):
    return [Fault(site, number, "lost") for number in orders]


@pytest.fixture
def files(tmp_path, rng):
    """Of 20, 30 and 70 rows: the mean of the first two is 25."""
    found = {site: tmp_path / f"{site}.csv" for site in SITES}
    for path, rows in zip(found.values(), (20, 30, 70), strict=True):
        write(path, rng, rows, ["x", "z"])
    return found


def study(algorithm=CONTROL, rounds=8, **more):
    return content(algorithm, table(batch=2, **more), rounds=rounds, **PATIENT)


def orders(root, site):
    return [json.loads(line)["asked"] for line in (root / site / "audit.jsonl").read_text().splitlines()]


def kinds(root, site):
    return [order["kind"] for order in orders(root, site)]


# It never comes.


def test_a_study_begins_when_the_quorum_is_there_and_the_deadline_is_over(files, tmp_path):
    """Columns are encoded and scaled by those who are there; the missing site's share is that of a mean site."""
    made = fp.federate(study(rounds=4), files, floor=FEW, folder=tmp_path / "run", faults=lost("c", range(99)))
    assert [event["answered"] for event in made.events] == [["a", "b"]] * 4
    there = read_table([str(files[site]) for site in "ab"], "label", model="logistic",
                       features=["age", "dose", "kind", "flat"])  # fmt: skip
    assert [fp.federation.preparation.Feature(**f) for f in made.setup["recipe"]] == there.recipe
    assert made.weights == pytest.approx(np.array([20, 30, 25]) / 75)
    assert made.setup["absent"] == ["c"]
    note = "c was not there when the study was prepared: its share is 33.3 %, by the mean of the others' rows"
    assert note in made.setup["notes"]
    assert made.refused["c absent"] == 4
    assert gap(made, made.problem(files)) <= TOLERANCE


def test_shares_that_the_study_gives_are_those_of_a_missing_site_too(files, tmp_path):
    given = study(AVERAGE, rounds=2, weights=[1.0, 1.0, 2.0])
    made = fp.federate(given, files, floor=FEW, folder=tmp_path / "run", faults=lost("c", range(99)))
    assert made.weights.tolist() == [0.25, 0.25, 0.5]
    assert made.setup["notes"][-1].endswith("its share is 50 %, as the study says")
    assert gap(made, made.problem(files)) <= TOLERANCE


def test_rows_that_the_study_expects_are_those_of_a_missing_site(files, tmp_path):
    """The middle of its bounds. When it comes with more, it is told so and the others go on."""
    bounded = {**study(rounds=6), "rows": {"c": [40, 60]}}
    made = fp.federate(bounded, files, floor=FEW, folder=tmp_path / "never", faults=lost("c", range(99)))
    assert made.weights == pytest.approx(np.array([20, 30, 50]) / 100)
    note = "its share is 50 %, by the middle of the rows that the study allows it"
    assert f"c was not there when the study was prepared: {note}" in made.setup["notes"]
    assert gap(made, made.problem(files)) <= TOLERANCE
    root, told = tmp_path / "late", []
    made = fp.federate(bounded, files, floor=FEW, folder=root, faults=lost("c", [0]), seconds=SLOW, tell=told.append)
    assert [event["answered"] for event in made.events] == [["a", "b"]] * 6
    assert made.setup["notes"][-1].startswith(
        "c cannot take part (rows): it has more or fewer rows than the study allows"
    )
    (shares,) = [event for event in told if "shares" in event]
    assert shares["rows"] == {"a": 20, "b": 30}  # nobody has said how many c has


def test_without_a_quorum_everybody_is_needed(files, tmp_path):
    whole = {**study(), "quorum": None}
    with pytest.raises(NoAnswerYet, match=r"no answer to 'columns' from c in 360 seconds; 3 sites needed"):
        fp.federate(whole, files, floor=FEW, folder=tmp_path / "run", faults=lost("c", range(99)))
    needs_all = content({"name": "scaffnew", "step": 0.05, "probability": 0.4}, BOWLS)
    with pytest.raises(NoAnswerYet, match="from b in 360 seconds"):
        fp.federate(needs_all, folder=tmp_path / "all", faults=lost("b", range(99)))


def test_sampled_sites_do_not_make_a_quorum_of_the_preparation(tmp_path):
    """Two of three are asked in a round; but without a quorum all three are waited for before."""
    with pytest.raises(NoAnswerYet, match="no answer to 'columns' from c"):
        fp.federate(content(participation=2), folder=tmp_path, faults=lost("c", range(99)))


def test_a_site_that_is_lost_after_its_columns_keeps_the_share_of_its_rows(files, tmp_path):
    made = fp.federate(study(rounds=3), files, floor=FEW, folder=tmp_path / "run", faults=lost("c", range(1, 99)))
    assert made.weights == pytest.approx(np.array([20, 30, 70]) / 120)
    assert (made.setup["absent"], made.setup["rows"]) == (["c"], [20, 30, 70])
    assert not any("c was not there" in note for note in made.setup["notes"])
    assert gap(made, made.problem(files)) <= TOLERANCE


# It comes late.


def test_a_late_site_takes_part_from_the_next_round(files, tmp_path):
    """Asked columns, moments and ready, in this order; its share stays, and with it c = sum p_k c_k."""
    root = tmp_path / "run"
    made = fp.federate(study(), files, floor=FEW, folder=root, faults=lost("c", [0]), seconds=SLOW)
    there = ["c" in event["answered"] for event in made.events]
    first = there.index(True)
    assert there == [False] * first + [True] * (8 - first)
    assert 1 <= first <= 4
    assert [event["refused"] for event in made.events] == [{"c": "absent"}] * first + [{}] * (8 - first)
    assert kinds(root, "c") == ["columns", "moments", "ready", *["work"] * (8 - first), "measure", "end"]
    assert made.weights == pytest.approx(np.array([20, 30, 25]) / 75)
    assert (made.setup["absent"], made.setup["rows"]) == ([], [20, 30, 70])
    assert made.setup["notes"][-1] in [  # it may come while a round goes on
        f"c came after {n} round{'s' * (n != 1)} and takes part, with a share of 33.3 %; "
        "by its 70 rows it would have been 58.3 %"
        for n in (first - 1, first)
    ]
    assert gap(made, made.problem(files)) <= TOLERANCE
    assert invariant(made, root) <= 1e-14


def test_a_share_that_changed_would_not_be_the_simulation_s(files, tmp_path):
    """The equality above can fail: by the rows that c turned out to have, the models are others."""
    made = fp.federate(study(), files, floor=FEW, folder=tmp_path / "run", faults=lost("c", [0]), seconds=SLOW)
    made.setup["weights"] = [20 / 120, 30 / 120, 70 / 120]
    assert gap(made, made.problem(files)) > 1e-4


LATE = {
    "trial": content(CONTROL, BOWLS, rounds=8, **PATIENT),
    "two of three": content(CONTROL, BOWLS, rounds=12, participation=2, quorum=1, deadline=30.0),
    "merged as answers come": content(CONTROL, BOWLS, rounds=16, asynchronous={}, **PATIENT),
    "on a ring": content({"name": "fedgd", "step": 0.05, "coupling": 0.5}, FULL, rounds=8, network="ring", **PATIENT),
}


@pytest.mark.parametrize(
    "name", [name if name == "merged as answers come" else pytest.param(name, marks=pytest.mark.slow) for name in LATE]
)
def test_late_sites_are_as_in_the_simulation(name, tmp_path):
    made = fp.federate(LATE[name], folder=tmp_path, faults=lost("c", [0]), seconds=SLOW)
    first = ["c" in event["answered"] for event in made.events].index(True)
    assert first >= 1
    assert made.setup["absent"] == []
    assert gap(made) <= TOLERANCE


def test_a_hub_that_is_started_again_hears_a_late_site_at_once(tmp_path):
    """The study stood still without it; when it goes on, the site is asked before the first round."""
    two = content(CONTROL, BOWLS, rounds=6, quorum=2)
    gone = [*lost("c", range(99)), *lost("b", range(4, 99))]
    with pytest.raises(NoAnswerYet, match="rounds in a row"):
        fp.federate(two, folder=tmp_path, faults=gone)
    begun = StudyResult(tmp_path / "hub")
    assert begun.setup["absent"] == ["c"]
    made = fp.federate(two, folder=tmp_path)
    assert [event["answered"] for event in made.events[begun.round :]] == [SITES] * (6 - begun.round)
    assert kinds(tmp_path, "c")[:3] == ["columns", "ready", "work"]
    assert gap(made) <= TOLERANCE
    assert invariant(made, tmp_path) <= 1e-14


# It cannot take part.


def strange(path, change):
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *map(change, lines[1:])]) + "\n")


SOME = "no site had the class 'm'"
CANNOT = {
    SOME: lambda line: line.replace(",n,", ",m,"),
    "no site had the category 'q' of column 'kind'": lambda line: line.replace(",z,", ",q,"),
    "its column 'kind' holds numbers, that of the others words": lambda line: line.replace(",z,", ",1,").replace(
        ",x,", ",2,"
    ),
}


@pytest.mark.parametrize("why", [SOME, *(pytest.param(why, marks=pytest.mark.slow) for why in CANNOT if why != SOME)])
def test_a_late_site_that_does_not_fit_is_told_why_and_the_others_go_on(why, files, tmp_path, caplog):
    strange(files["c"], CANNOT[why])
    root = tmp_path / "run"
    made = fp.federate(study(rounds=6), files, floor=FEW, folder=root, faults=lost("c", [0]), seconds=SLOW)
    assert [event["answered"] for event in made.events] == [["a", "b"]] * 6
    assert any(note.startswith(f"c cannot take part (data): {why}") for note in made.setup["notes"])
    assert kinds(root, "c") == ["columns", "excluded"]
    assert orders(root, "c")[1]["why"].startswith(f"c cannot take part (data): {why}")
    assert f"the study goes on without this site: c cannot take part (data): {why}" in caplog.text


def test_who_cannot_take_part_stops_a_study_that_needs_it_and_no_other(files, tmp_path):
    """Its data do not fit at the start: left out if the quorum is there without it, an error if not."""
    files["c"].write_text(files["c"].read_text().replace("age,", "years,"))
    made = fp.federate(study(rounds=3), files, floor=FEW, folder=tmp_path / "run")
    assert [event["answered"] for event in made.events] == [["a", "b"]] * 3
    assert any(note.startswith("c cannot take part (data)") for note in made.setup["notes"])
    with pytest.raises(fp.FedpointError, match=r"c cannot take part \(data\)"):
        fp.federate({**study(), "quorum": 3}, files, floor=FEW, folder=tmp_path / "all")


def test_who_was_left_out_at_the_start_is_asked_from_the_start_again(files, tmp_path):
    """A hub that is started again does not take it for one that was there."""
    good = files["c"].read_text()
    files["c"].write_text(good.replace("age,", "years,"))
    wanted, root = study(rounds=6), tmp_path / "run"
    with pytest.raises(NoAnswerYet, match="rounds in a row"):
        fp.federate(wanted, files, folder=root, faults=lost("b", range(5, 99)), floor=FEW)
    begun = StudyResult(root / "hub")
    assert begun.setup["absent"] == ["c"]
    files["c"].write_text(good)
    made = fp.federate(wanted, files, folder=root, floor=FEW)
    assert made.events[-1]["answered"] == SITES
    assert [order["kind"] for order in orders(root, "c") if order["kind"] != "excluded"][:4] == [
        "columns",  # which it could not answer
        "columns",
        "moments",
        "ready",
    ]
    assert gap(made, made.problem(files)) <= TOLERANCE


def test_rows_that_a_site_only_claims_do_not_count(files, tmp_path):
    """Ten thousand million in one answer, seventy in the next: it is left out, and so is its claim."""

    def boast(data):
        packet = wire.decode(data)
        return wire.encode({**packet.header, "rows": 10**10}, packet.arrays)

    made = fp.federate(study(rounds=2), files, folder=tmp_path / "run", faults=[Fault("c", 0, boast)], floor=FEW)
    assert made.setup["notes"][-1].endswith("it speaks of 10,000,000,000 rows, and then of 70")
    assert made.weights == pytest.approx(np.array([20, 30, 25]) / 75)


# The hub is started again before the first round.


def test_what_was_said_before_the_first_round_is_not_asked_twice(files, tmp_path):
    """The same run, and the same recipe: of those who had answered then, though another has come meanwhile."""
    root, wanted = tmp_path / "run", {**study(rounds=3), "quorum": 2}
    with pytest.raises(NoAnswerYet, match="no answer to 'moments' from a, b"):
        fp.federate(
            wanted,
            files,
            floor=FEW,
            folder=root,
            faults=[*lost("c", range(99)), *lost("a", range(1, 99)), *lost("b", range(1, 99))],
        )
    assert not (root / "hub" / "hub.npz").exists()
    made = fp.federate(wanted, files, floor=FEW, folder=root)
    assert kinds(root, "a") == ["columns", "moments", "ready", *["work"] * 3, "measure", "end"]
    assert len({order["run"] for order in orders(root, "a")}) == 1
    assert made.events[-1]["answered"] == SITES
    assert gap(made, made.problem(files)) <= TOLERANCE
    assert not (root / "hub" / "first-answers").exists()


def test_sites_whose_data_do_not_go_together_may_mend_them(files, tmp_path):
    """What they said of the old data is not kept."""
    good = files["b"].read_text()
    strange(files["b"], CANNOT["its column 'kind' holds numbers, that of the others words"])
    with pytest.raises(fp.FedpointError, match="holds numbers at some sites and words at others"):
        fp.federate(study(rounds=2), files, floor=FEW, folder=tmp_path / "run")
    files["b"].write_text(good)
    assert fp.federate(study(rounds=2), files, floor=FEW, folder=tmp_path / "run").round == 2


def test_the_result_says_who_was_not_there(tmp_path, capsys):
    made = fp.federate(content(rounds=2, quorum=2), folder=tmp_path, faults=lost("c", range(99)))
    show_result(made, as_json=False)
    said = capsys.readouterr().out.splitlines()
    assert "  c: absent, 2 times" in said
    assert "  c was not there when the study was prepared: its share is 33.3 %" in said
    show_result(made, as_json=True)
    assert json.loads(capsys.readouterr().out)["notes"] == made.setup["notes"]


# Waiting.


def test_waiting_names_those_who_are_missing_now(tmp_path):
    said = []
    fp.federate(
        content(rounds=1),
        folder=tmp_path,
        seconds={"a": 1.0, "b": 5.0, "c": 9.0},
        tell=lambda event: said.append((event["waiting"], event["for"])) if "waiting" in event else None,
    )
    assert [names for what, names in said if what == "columns"] == [SITES, ["b", "c"], ["c"]]
    assert [names for what, names in said if what == "ready"] == [SITES, ["b", "c"], ["c"]]
    assert [names for what, names in said if what == "measure"] == [SITES, ["b", "c"], ["c"]]


def test_a_site_that_fails_at_first_is_asked_again(tmp_path):
    """Its worker was killed, say: the study does not begin without it because of that."""
    made = fp.federate(
        content(rounds=2, quorum=2), folder=tmp_path, faults=[Fault("c", 0, "dead"), Fault("c", 1, "dead")]
    )
    assert [event["answered"] for event in made.events] == [SITES] * 2
    assert made.refused == {"c lost": 2}
