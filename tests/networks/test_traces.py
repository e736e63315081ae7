"""Traces of who worked and what was heard, repeated by `Replay`: from tuples and files, and what is wrong with them."""

import numpy as np
import pytest
from schedule_world import NET, SCHEDULES, TRACE, WORLD, K, plan

import fedpoint as fp


def test_a_replay_repeats_its_trace():
    made = plan("replay")
    period = 5
    assert SCHEDULES["replay"].period == period
    for k in range(2 * period, 4 * period):
        events = [e for e in TRACE if e[0] == k % period]
        assert sorted(made[k].who) == sorted({int(e[1]) for e in events})
        age = np.zeros((K, K), int)
        for _, i, j, a in events:
            if j is not None:
                age[int(i), int(j)] = a
        np.testing.assert_array_equal(made[k].age, age)
    assert not made[0].age.any() and made[4].age.max() == 4  # nothing is older than the start


def test_a_replay_is_read_from_a_file(tmp_path):
    file = tmp_path / "trace.csv"
    rows = ["node,tick,age,neighbour", *(f"{i},{t},{a or ''},{j or ''}" for t, i, j, a in TRACE)]
    file.write_text("\n".join(rows) + "\n")
    assert fp.Replay.read(file) == SCHEDULES["replay"]


def test_what_has_no_age_was_fresh(tmp_path):
    whole = fp.Replay(((0, "1", "0", 0), (1, "0", None, 0), (2, "1", "0", 2), (3, "2", "1", 0)))
    short = fp.Replay(((0, "1", "0"), (1, "0"), (2, "1", "0", 2), (3, "2", "1", None)))
    assert short == whole
    file = tmp_path / "trace.csv"
    for ages in (("", "", "2", " "), ("", "", "2.0", "")):  # the second as a table with gaps writes whole numbers
        rows = zip("0123", "1012", ("0", "", "0", "1"), ages, strict=True)
        file.write_text("\n".join(["tick,node,neighbour,age", *map(",".join, rows)]) + "\n")
        assert fp.Replay.read(file) == whole


def test_every_mistake_of_a_trace_is_told_at_once(tmp_path):
    file = tmp_path / "trace.csv"
    lines = [
        "tick,node,neighbour,age",
        "0,1,0,0",
        "x,1,0,0",
        "1,1,0,1.5",
        "-1,1,0,0",
        "2,1,0,-2",
        "3,,0,1",
        "4,1,,2",
        ",1,0,1",
    ]
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(fp.FedpointError) as caught:
        fp.Replay.read(file)
    text = str(caught.value)
    for number, words in (
        (3, "whole numbers"),
        (4, "whole numbers"),
        (5, "at least 0"),
        (6, "at least 0"),
        (7, "no name of a node"),
        (8, "an age needs the neighbour"),
        (9, "whole numbers"),
    ):
        assert any(f"line {number}:" in part and words in part for part in text.split(";")), number
    assert "line 2:" not in text and str(file) in text
    many = tmp_path / "many.csv"
    many.write_text("tick,node\n" + "x,1\n" * 25)
    with pytest.raises(fp.FedpointError, match=r"line 11: .*\(and 15 more\)$"):
        fp.Replay.read(many)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "needs columns tick and node"),
        ("tick,node\n", "at least one row"),
        ("time,node\n1,2\n", "needs columns tick"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, text, words):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(fp.FedpointError, match=words):
        fp.Replay.read(tmp_path / "t.csv")


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(fp.FedpointError, match="No such file"):
        fp.Replay.read(tmp_path / "none.csv")
    (tmp_path / "picture.csv").write_bytes(b"\xff\xfe\x00\x89PNG")
    with pytest.raises(fp.FedpointError, match=r"trace .*picture.csv"):
        fp.Replay.read(tmp_path / "picture.csv")


def test_a_trace_that_does_not_fit_the_network_lists_all_that_is_wrong():
    trace = fp.Replay(((0, "9", None, 0), (1, "3", "6", 1), (2, "1", "nobody", 1), (3, "1", "0", 1)))
    with pytest.raises(fp.FedpointError) as caught:
        fp.run(fp.FedRelax(), WORLD.problem(), network=NET, schedule=trace, rounds=1)
    for words in ("no node 9", "6 is not a neighbour of 3", "nobody is not a neighbour of 1"):
        assert words in str(caught.value)
    assert "tick 3" not in str(caught.value)
