"""The model of rounds across the internet (benchmarks/internet.py), against small cases by hand and a virtual clock."""

import importlib
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedpoint as fp

BENCHMARKS = str(Path(__file__).resolve().parents[1] / "benchmarks")
sys.path.insert(0, BENCHMARKS)
internet = importlib.import_module("internet")
sys.path.remove(BENCHMARKS)

FREE = internet.Link(0.0, math.inf, math.inf)


def test_the_last_of_two_draws_from_a_trace():
    """Of 1, 2, 3 with equal chances the later of two is (1 + 2 * 3 + 3 * 5) / 9 on average."""
    agents = internet.Agents(1.0, 0.0, FREE, trace=(1.0, 2.0, 3.0))
    assert agents.nth(2, 2) == pytest.approx(22 / 9, rel=5e-3)  # steps, integrated by 400 points
    assert agents.nth(1, 2) == pytest.approx(14 / 9, rel=5e-3)


def test_one_answer_of_one_takes_the_mean():
    assert internet.Agents(3.0, 0.7, FREE).nth(1, 1) == pytest.approx(3.0, rel=1e-2)


def test_bytes_and_seconds_of_links_by_hand():
    link = internet.Link(latency=0.5, up=10.0, down=20.0)
    agents = internet.Agents(2.0, 0.0, link)
    hub = internet.Hub(internet.Link(0.0, up=100.0, down=200.0), adds=400.0)
    flat = internet.Round(numbers=40.0, agents=agents, hub=hub, asked=10, kept=5)
    found = flat.seconds()
    assert found["agents"] == pytest.approx(2.0 + 2 * 0.5 + 40 / 20 + 40 / 10)
    assert found["round"] - found["agents"] == pytest.approx(10 * 40 / 200 + 5 * 40 / 100 + 5 * 40 / 400)
    assert found["bytes at the hub"] == found["bytes"] == 4 * 40 * (10 + 5) and found["bytes at an agent"] == 320
    shards = replace(flat, hub=replace(hub, shards=4)).seconds()
    assert shards["round"] - shards["agents"] == pytest.approx((found["round"] - found["agents"]) / 4)
    regions = replace(flat, regions=5, inner=3, region=hub).seconds()
    assert regions["agents"] == pytest.approx(3 * found["agents"])
    assert regions["regions"] == pytest.approx(3 * (2 * 40 / 200 + 40 / 100 + 40 / 400))
    assert regions["hub"] == pytest.approx(40 / 200 + 40 / 100 + 5 * 40 * (1 / 200 + 1 / 100 + 1 / 400))
    assert regions["bytes at the hub"] == 8 * 40 * 5 and regions["bytes"] == 3 * 4 * 40 * 15 + 8 * 40 * 5


@pytest.mark.parametrize("answers", [1.0, 0.8])
def test_the_first_answers_are_those_of_a_run_on_a_virtual_clock(answers):
    """4 standard errors of 1,500 rounds; rounds with too few answers are rare (40 of 60 are kept)."""
    clock = fp.Clock(work=1.0, law="lognormal", spread=0.5)
    waits = fp.Waiting(clock, count=60, keep=40, dropout=1 - answers, deadline=60.0)
    problem = fp.problems.Quadratic(1.0, np.arange(60.0)[:, None])
    run = fp.run(fp.FedAvg(step=0.1), problem, rounds=1500, schedule=waits)
    each = np.diff(np.asarray(run.time)[0])
    expected = internet.Agents(1.0, 0.5, FREE, answers=answers).nth(40, 60)
    assert abs(each.mean() - expected) < 4 * each.std(ddof=1) / math.sqrt(len(each))
    assert abs(each.mean() - internet.Agents(1.0, 0.5, FREE).nth(60, 60)) > 0.5  # not the last of all
