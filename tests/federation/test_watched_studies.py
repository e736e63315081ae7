"""A watched study from end to end: what is told, shown and kept of an alarm, whatever else happens to the study."""

import numpy as np
import pytest
from studies import AVERAGE, BOWLS, CONTROL, content
from watched import Forgetful, federated, scaled

import fedpoint as fp
from fedpoint.cli.federate_show import Show, show_result
from fedpoint.core.errors import FedpointError
from fedpoint.federation.inprocess import Fault
from fedpoint.federation.result import StudyResult
from fedpoint.federation.transport import Stopped
from fedpoint.store.disk import read_npz

STUDY = content(CONTROL, BOWLS, rounds=12)
FIRST = 2  # a site's orders before the rounds: columns, ready


class Broken(Exception):
    """Whatever may end a hub."""


def seen(made):
    """What the hub has written down of its sites' answers."""
    arrays, about = read_npz(made.folder / "hub.npz", "hub")
    return about["watch"], {name: values for name, values in arrays.items() if name.startswith("watch ")}


def test_an_alarm_is_told_shown_and_kept(monkeypatch, capsys):
    events = []
    made = federated(monkeypatch, STUDY, {1: scaled(2.0)}, tell=events.append)
    (alarm,) = made.alarms
    assert alarm["site"] == "b" and alarm["reason"] == "scaled" and alarm["factor"] == pytest.approx(2.0)
    told = [event for event in events if event.get("alarms")]
    assert [event["round"] for event in told] == [alarm["round"]] and told[0]["alarms"] == [alarm]
    odds = f"odds against chance {alarm['e_value']:,.0f} to 1, first seen in round 0"
    assert alarm["text"] == f"site b: its answers look scaled (about 2 times what its rows give); {odds}"
    with Show(made.study, quiet=False) as show:
        show(told[0])
    show_result(made, as_json=False)
    shown = capsys.readouterr()
    assert alarm["text"] in shown.err and alarm["text"] in shown.out
    assert made.round == 12  # it goes on


def test_nobody_is_watched_unless_asked_for(monkeypatch):
    made = fp.federate(STUDY, faults=[Fault("b", FIRST, lambda data: data)])
    assert made.alarms == [] and seen(made) == ({}, {})


def test_a_study_may_stop_at_an_alarm_and_go_on(monkeypatch, tmp_path):
    study = {**STUDY, "on_alarm": "stop"}
    with pytest.raises(Stopped, match="site b: its answers look sign-flipped"):
        federated(monkeypatch, study, {1: scaled(-1.0)}, folder=tmp_path)
    assert StudyResult(tmp_path / "hub").round < 12
    made = federated(monkeypatch, study, {1: scaled(-1.0)}, folder=tmp_path)
    assert made.round == 12 and len(made.alarms) == 1  # an alarm is raised once


def test_a_study_that_was_stopped_has_the_same_stakes(monkeypatch, tmp_path):
    kind = scaled(0.9)
    whole = federated(monkeypatch, STUDY, {1: kind})

    def stop(event):
        if event.get("round") in (1, 2, 6):
            raise Broken

    for _ in range(3):
        with pytest.raises(Broken):
            federated(monkeypatch, STUDY, {1: kind}, folder=tmp_path, tell=stop)
    parts = federated(monkeypatch, STUDY, {1: kind}, folder=tmp_path)
    (plain, arrays), (others, more) = seen(whole), seen(parts)
    assert plain == others and plain["b"]["tally"]["answers"] > 8
    assert arrays.keys() == more.keys() and all((arrays[name] == more[name]).all() for name in arrays)


@pytest.mark.parametrize("algorithm", [CONTROL, AVERAGE], ids=["with memory", "without"])
def test_a_watch_that_begins_late(monkeypatch, tmp_path, algorithm):
    """Without a memory it begins whenever it likes; a memory that nobody followed is not known."""
    study = content(algorithm, BOWLS, rounds=12)

    def stop(event):
        if event.get("round") == 3:
            raise Broken

    with pytest.raises(Broken):
        fp.federate(study, folder=tmp_path, tell=stop)
    if algorithm is CONTROL:
        with pytest.raises(FedpointError, match="a cannot be watched any more: rounds went by without a watch"):
            fp.federate(study, folder=tmp_path, expected=True)
        assert fp.federate(study, folder=tmp_path).round == 12
    else:
        (alarm,) = federated(monkeypatch, study, {1: scaled(2.0)}, folder=tmp_path).alarms
        assert alarm["site"] == "b" and alarm["since"] == 4


def test_lost_answers_and_abandoned_rounds(monkeypatch):
    """A memory that was not merged is not taken over: honest sites stay reproduced, the odd one is found."""
    faults = [
        Fault(site, FIRST + n, what) for site, n, what in (("a", 1, "unheard"), ("c", 3, "lost"), ("b", 5, "unheard"))
    ]
    made = federated(monkeypatch, {**STUDY, "rounds": 20}, {1: Forgetful}, faults=faults)
    assert [event["merged"] for event in made.events].count(False) == 3
    assert [(alarm["site"], alarm["reason"]) for alarm in made.alarms] == [("b", "lost control")]
    assert seen(made)[0]["a"]["since"] is None and seen(made)[0]["c"]["since"] is None


@pytest.mark.parametrize("models", [False, True])
def test_answers_that_are_merged_as_they_come(monkeypatch, models):
    study = content(AVERAGE, BOWLS, rounds=30, asynchronous={"models": models, "mixing": 0.5})
    made = federated(monkeypatch, study, {1: scaled(2.0)}, seconds={"a": 1.0, "b": 1.3, "c": 2.7})
    assert [(alarm["site"], alarm["reason"]) for alarm in made.alarms] == [("b", "scaled")]
    assert seen(made)[0]["c"]["since"] is None and max(max(event["ages"]) for event in made.events) > 0


# Tables, and what cannot be watched.


def files(folder, seed, sites="abc"):
    rng = np.random.default_rng(seed)
    for site in sites:
        x = rng.normal(size=(60, 2)) + "abc".index(site)
        y = x @ [1.0, -2.0] + rng.normal(size=60)
        rows = "\n".join(f"{u},{v},{w}" for (u, v), w in zip(x, y, strict=True))
        (folder / f"{site}{seed}.csv").write_text(f"u,v,w\n{rows}\n")
    return {site: folder / f"{site}{seed}.csv" for site in sites}


TABLE = {"kind": "table", "model": "linear", "target": "w", "features": ["u", "v"], "batch": 10}


def test_files_of_expected_rows(tmp_path):
    """The alarm is about these files: a site that has others is accused, one that has the same is not."""
    data, others = files(tmp_path, 1), files(tmp_path, 2)
    study = content(AVERAGE, TABLE, rounds=15)
    assert fp.federate(study, data, expected=data).alarms == []
    found = fp.federate(study, data, expected={**data, "c": others["c"]}).alarms
    assert [(alarm["site"], alarm["reason"]) for alarm in found] == [("c", "foreign rows")]


@pytest.mark.parametrize(
    ("study", "expected", "said"),
    [
        (content(AVERAGE, TABLE), True, "are at its sites: give expected= a file for each"),
        (content(AVERAGE, BOWLS), {"a": "a.csv"}, "are generated: give expected=True"),
        (content(AVERAGE, TABLE), {"a": "a.csv"}, "has none for b, c"),
        (content(AVERAGE, TABLE), dict.fromkeys("abcd", "a.csv"), "names d, not a site"),
        (
            content(
                {"name": "fedsgd", "step": 0.05, "coupling": 0.5},
                BOWLS,
                network="ring",
                channel={"kind": "cast", "dtype": "float16"},
            ),
            True,
            "^trial cannot be watched: what a site remembers does not show",
        ),
    ],
)
def test_what_cannot_be_watched_is_refused(tmp_path, study, expected, said):
    data = files(tmp_path, 1) if study["problem"] is TABLE else None
    with pytest.raises(FedpointError, match=said):
        fp.federate(study, data, expected=expected)


def test_expected_rows_that_do_not_fit_the_study_are_named(tmp_path):
    data = files(tmp_path, 1)
    (tmp_path / "odd.csv").write_text("u,v\n1,2\n")
    with pytest.raises(FedpointError, match="the expected rows of b: "):
        fp.federate(content(AVERAGE, TABLE), data, expected={**data, "b": tmp_path / "odd.csv"})
