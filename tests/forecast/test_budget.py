"""A forecast of a very large model ends: what it had no time for it leaves out, and says so."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.theory import budget, steady


def large():
    """Larger than covariances go, on a clock that says when it is very large."""
    rng = np.random.default_rng(0)
    X = 3 * rng.normal(size=(40, 520)) / np.sqrt(520)
    y = (X @ rng.normal(size=520) + rng.normal(size=40) > 0).astype(int)
    problem = fp.problems.Logistic(X, y, groups=np.repeat(np.arange(4), 10), ridge=0.1, batch=2)
    return fp.forecast(fp.FedAvg(step=0.3, local_steps=2), problem, participation=2)


def told(monkeypatch, seconds):
    """A forecast of which every computation takes a second, and how many there were."""
    clock = itertools.count()
    monkeypatch.setattr(budget, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    monkeypatch.setattr(budget, "HUGE", 500)
    monkeypatch.setattr(budget, "SECONDS", float(seconds))
    f = large()
    text = str(f)
    if f.limit is not None and f.floor is not None:
        assert np.isfinite(f.curve(20)).all()
    return f, text, next(clock) // 2


@pytest.mark.slow
def test_what_there_is_no_time_for_is_left_out_and_named(monkeypatch):
    whole, text, needed = told(monkeypatch, 10**6)
    assert "left out" not in text
    assert whole.noise_bias > 0
    reached = set()
    for seconds in np.linspace(0, needed, 8).astype(int):
        f, text, spent = told(monkeypatch, seconds)
        assert spent <= seconds + 30  # what was begun is ended
        if f.limit is None:
            reached.add("no limit")
            assert "no limit: no fixed point was found: at this size it takes longer than" in text
        elif f.floor is None:
            reached.add("no floor")
            assert "longer than" in text
            assert np.linalg.norm(f.fixed_point[0] - whole.fixed_point[0]) < 1e-3
        else:
            assert f.variance == pytest.approx(whole.variance, rel=0.3)
            if f.setting.budget.left_out:
                reached.add("left out")
                assert f"left out, which would take too long at this size: {f.setting.budget.left_out[0]}" in text
    assert {"no floor", "left out"} <= reached


def test_a_rate_that_is_cut_short_says_so(monkeypatch):
    setting = large().setting
    whole = steady.mean_rate(setting, setting.origin)
    monkeypatch.setattr(steady, "LARGE", 100)  # no matrix
    assert steady.mean_rate(setting, setting.origin) == pytest.approx(whole, rel=1e-6)
    assert setting.budget.left_out == []
    setting.budget.seconds = 0.0
    for _ in range(2):
        assert 0 < steady.mean_rate(setting, setting.origin) < whole * (1 + 1e-9)
    assert setting.budget.left_out == ["more products for the rate, which may be higher"]


def test_small_models_have_no_budget():
    assert budget.Budget(budget.HUGE - 1).seconds == float("inf")
    assert budget.Budget(budget.HUGE).seconds == budget.SECONDS
