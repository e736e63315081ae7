"""Counts agree with their nouns: one round, two rounds."""

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.core.numbers import counted, there_are

ONE = fp.problems.Quadratic([1.0], [[0.0]])
TWO = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
METHOD = fp.FedAvg(step=0.1)


@pytest.mark.parametrize("noun, many", [("class", "classes"), ("category", "categories"), ("process", "processes")])
def test_nouns(noun, many):
    assert [counted(n, noun) for n in (0, 1, 2, 12345)] == [f"0 {many}", f"1 {noun}", f"2 {many}", f"12,345 {many}"]
    assert counted(np.int64(1), noun) == f"1 {noun}" and there_are(1, noun) == f"there is 1 {noun}"


def test_of_one(tmp_path):
    run = fp.run(METHOD, ONE, rounds=1, folder=tmp_path / "run")
    loaded = fp.load(tmp_path / "run")
    assert repr(run).startswith("<Run FedAvg: 1 round, 1 repeat, error") and run.title.endswith("1 agent")
    assert repr(loaded).endswith("run: 1 round, 1 repeat, finished>")
    assert str(fp.forecast(METHOD, ONE)).splitlines()[0].startswith("FedAvg on Quadratic: 1 agent, 1 parameter")
    assert repr(fp.Network.ring(2)) == "<Network: 2 nodes, 1 edge>"
    table = fp.data.read_table({"x": [1.0, 2.0, 4.0], "y": [1.0, 2.0, 5.0], "k": ["a"] * 3}, "y", "k")
    assert repr(table) == "<3 rows of 1 agent: y (a number) by x>"


def test_of_several():
    run = fp.run(METHOD, TWO, rounds=2, repeats=3)
    assert repr(run).startswith("<Run FedAvg: 2 rounds, 3 repeats, error") and run.title.endswith("2 agents")


@pytest.mark.parametrize(
    "mistake, said",
    [
        (lambda: fp.run(METHOD, ONE, rounds=1, participation=2), "2 participants of 1 agent: choose at most 1"),
        (lambda: fp.run(METHOD, ONE, rounds=1).extend(1), "the run has 1 round already"),
        (lambda: fp.compare([METHOD], ONE, labels=["a", "b"]), "2 labels for 1 algorithm"),
        (
            lambda: fp.problems.Quadratic([1.0], [[0.0]], weights=[1.0, 1.0]),
            "weights have shape .*, but there is 1 agent",
        ),
        (lambda: fp.data.partition([0], "iid", 2), "2 agents for 1 row"),
    ],
)
def test_mistakes_of_one(mistake, said):
    with pytest.raises(fp.FedpointError, match=said):
        mistake()
