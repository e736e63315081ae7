"""Rounds a second mean the same everywhere: all repeats make one round, and compiling does not count."""

import itertools
import json
from types import SimpleNamespace

import pytest

import fedpoint as fp
from fedpoint.cli.progress import Details
from fedpoint.engine import session
from fedpoint.trackers.base import Tracker

QUAD = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
METHOD = fp.FedAvg(step=0.1)


@pytest.fixture
def clock(monkeypatch):
    """A clock on which every segment takes a second: segments are then 1 round, which compiles, and 8 each."""
    seconds = itertools.count()
    monkeypatch.setattr(session, "time", SimpleNamespace(perf_counter=lambda: float(next(seconds))))


class Log(Tracker):
    def __init__(self):
        self.rates = []

    def start(self, description):
        pass

    def log(self, round, values):
        self.rates += [values["rounds per second"]] if "rounds per second" in values else []

    def finish(self, summary):
        pass


@pytest.mark.parametrize("repeats", [1, 5])
def test_one_definition(clock, tmp_path, repeats):
    """25 rounds are a segment that compiles and three of 8 rounds, a second each: 8 rounds a second."""
    seen, log = [], Log()
    callbacks = [seen.append, log.__call__]
    run = fp.run(METHOD, QUAD, rounds=25, repeats=repeats, folder=tmp_path / "run", callbacks=callbacks)
    assert [p.round for p in seen] == [1, 9, 17, 25]
    loaded = fp.load(tmp_path / "run")
    said = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [run.speed, seen[-1].rate, log.rates[-1], loaded.speed, said["rounds_per_second"]] == [8.0] * 5
    assert said["seconds"] == loaded.pace.seconds == 4.0
    assert [p.rate for p in seen] == [1.0, 8.0, 8.0, 8.0]  # compiling counts as long as there is nothing else
    details = Details()
    assert [details.of(p).split(",")[1].strip()[:10] for p in seen][1:] == ["8 rounds/s"] * 3


def test_a_comparison_says_the_same(clock, tmp_path):
    both = fp.compare({"a": METHOD, "b": fp.Scaffold(step=0.1)}, QUAD, rounds=25, repeats=2, folder=tmp_path)
    assert [row["speed"] for row in both.table()] == [8.0, 8.0]
    assert str(both).splitlines()[0].split()[-1] == "rounds/s"


def test_going_on_in_another_process_compiles_again(clock, tmp_path):
    fp.run(METHOD, QUAD, rounds=25, folder=tmp_path / "run")
    more = fp.load(tmp_path / "run", QUAD).extend(50)
    assert more.speed == 8.0 and fp.load(tmp_path / "run").pace.seconds == 8.0


def test_rounds_that_are_made_again_count_twice(clock):
    """A run that stops within a segment goes there again: two segments' time, and both their rounds."""
    run = fp.run(METHOD, QUAD, rounds=25, stop=lambda round, model, error: round == 13)
    assert int(run.rounds[-1]) == 13
    assert run.speed == (8 + 8 + 4) / 3  # rounds 2 to 9, 10 to 17, and 10 to 13 again


def test_one_round_alone(clock):
    assert fp.run(METHOD, QUAD, rounds=1).speed == 1.0 and fp.run(METHOD, QUAD, rounds=0).speed == 0.0
