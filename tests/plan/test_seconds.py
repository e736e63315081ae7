"""`fp.plan(..., seconds=)`: the best so far, on time, and what was not looked at."""

import json
from types import SimpleNamespace

import pytest

import fedpoint as fp
from fedpoint.results.plan import PlanProgress
from fedpoint.theory.planning import Trial, best_step
from fedpoint.verbs.plan.planner import Clock

GRID = {"methods": ["gradient_exchange", "fedavg"], "local_steps": [1, 2, 4], "participation": [None, 2]}


def quadratic():
    return fp.problems.Quadratic([1.0, 2.0, 0.5], [[0.0], [1.0], [2.0]], noise=0.01)


@pytest.fixture
def clock(monkeypatch):
    """Time passes when a forecast is asked for, one second each, and not otherwise."""
    now = [0.0]
    from fedpoint.verbs.plan import planner, search

    # Of these modules alone: a server in another thread would wait for ever for a clock that stands still.
    for module in (planner, search):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    for name in ("attempt", "attempt_affine"):
        real = getattr(search, name)

        def slow(*args, real=real):
            now[0] += 1.0
            return real(*args)

        monkeypatch.setattr(search, name, slow)
    return now


def settings(made):
    return {(u.method, u.local_steps, str(u.participation)) for u in made.unseen}


def test_it_stops_in_time_and_says_what_it_left_out(clock):
    full = fp.plan(quadratic(), 0.02, **GRID)
    taken, clock[0] = clock[0], 0.0
    assert not full.unseen and taken > 20
    made = fp.plan(quadratic(), 0.02, seconds=10, **GRID)
    assert clock[0] <= 11  # what has begun is finished
    assert made.best is not None and made.best.cost >= full.best.cost
    assert made.best.error <= 0.02
    assert 0 < len(made.unseen) < 8 and settings(made) < {
        (title, E, str(who))
        for title in ("Gradient exchange", "FedAvg")
        for E in GRID["local_steps"]
        for who in (fp.Everyone(), fp.Uniform(2))
    }
    text = str(made)
    assert "Not looked at within 10 s" in text and "stopped after 10 s" in text
    document = json.loads(json.dumps(made.to_dict()))
    assert document["seconds"] == 10 and len(document["unseen"]) == len(made.unseen)


def test_enough_time_leaves_nothing_out(clock):
    assert (
        fp.plan(quadratic(), 0.02, seconds=1e6, **GRID).to_dict()["choices"]
        == (fp.plan(quadratic(), 0.02, **GRID).to_dict()["choices"])
    )


def test_without_time_there_is_one_look(clock):
    made = fp.plan(quadratic(), 1e-6, seconds=0.5, **GRID)
    assert clock[0] == 1 and made.best is None and len(made.unseen) == 8
    assert "Nothing that reaches it was found within 0.5 s" in str(made)


def test_a_choice_that_is_found_late_is_not_verified(clock):
    """Runs would go beyond the time."""
    made = fp.plan(quadratic(), 0.02, seconds=0.5, confidence=0.9, **GRID)
    assert made.best is None or made.best.promise == "not verified"


def test_progress_tells_time(clock):
    told = []
    fp.plan(quadratic(), 0.02, seconds=10, progress=told.append, **GRID)
    assert told[-1].part == 1.0 and [p.part for p in told] == sorted(p.part for p in told)
    assert told[0].seconds == 10 and told[-1].best is not None
    assert PlanProgress(1, 4, "x", None, 5.0, 10.0).part == 0.5
    assert PlanProgress(1, 4, "x", None).part == 0.25


def test_time_is_shared(clock):
    """A method that takes less leaves more to the others."""
    shared = Clock(12.0)
    assert shared.share(1.0, 3) == 4.0
    clock[0] = 2.0
    assert shared.share(1.0, 2) == 7.0 and shared.share(0.5, 2) == 4.0
    clock[0] = 20.0
    assert shared.share(1.0, 1) == 20.0 and shared.late()
    assert not Clock(None).late()


def test_the_search_over_steps_stops_when_it_is_late():
    trials = []

    def evaluate(step):
        trials.append(step)
        return Trial(step, 10 / step)

    best, seen = best_step(evaluate, 1.0, 0.1, 12, lambda: len(trials) >= 3)
    assert len(seen) == 3 and best.step == max(trials)


@pytest.mark.parametrize("seconds", [0, -1.0, "soon", True])
def test_mistakes(seconds):
    with pytest.raises(fp.FedpointError, match="seconds"):
        fp.plan(quadratic(), 0.05, seconds=seconds)
