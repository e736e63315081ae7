"""Fairness over agents, against numbers worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedpoint as fp
from fedpoint.metrics import fairness


def test_by_hand():
    """Losses 1, 2, 3, 4: mean 2.5, variance 1.25, shares 0.1 .. 0.4, Jain 100 / (4 * 30)."""
    f = fairness([3.0, 1.0, 4.0, 2.0])
    assert f.mean == 2.5 and f.variance == 1.25
    assert f.jain == pytest.approx(100 / 120, rel=1e-15)
    shares = [0.1, 0.2, 0.3, 0.4]
    assert f.entropy == pytest.approx(-sum(s * math.log(s) for s in shares), rel=1e-14)
    assert f.worst == 4.0 and f.best == 1.0


def test_one_agent_bears_all():
    f = fairness([0.0, 0.0, 0.0, 8.0])
    assert f.variance == 12.0 and f.entropy == 0.0 and f.jain == 0.25
    assert f.worst == 8.0 and f.best == 0.0


def test_all_alike():
    f = fairness(np.full(7, 0.3))
    assert f.variance == pytest.approx(0, abs=1e-30)
    assert f.entropy == pytest.approx(math.log(7), rel=1e-14) and f.jain == pytest.approx(1, rel=1e-14)
    assert f.worst == f.best == pytest.approx(0.3)


def test_losses_of_zero_are_as_fair_as_can_be():
    f = fairness(np.zeros(5))
    assert (f.mean, f.variance, f.worst, f.best) == (0, 0, 0, 0)
    assert f.entropy == pytest.approx(math.log(5)) and f.jain == pytest.approx(1)


def test_negative_losses_have_no_shares():
    f = fairness([-1.0, 1.0, 3.0])
    assert f.entropy is None and f.jain is None
    assert f.mean == 1.0 and f.variance == pytest.approx(8 / 3) and f.worst == 3.0 and f.best == -1.0


def test_one_agent():
    f = fairness([2.0])
    assert (f.variance, f.entropy, f.jain, f.worst, f.best) == (0, 0, 1, 2, 2)


@pytest.mark.parametrize(("agents", "tenth"), [(1, 1), (9, 1), (10, 1), (19, 1), (20, 2), (57, 5), (100, 10)])
def test_the_worst_and_best_tenth(agents, tenth):
    losses = np.random.default_rng(0).permutation(agents) * 1.0
    f = fairness(losses)
    assert f.worst == pytest.approx(agents - 1 - (tenth - 1) / 2)
    assert f.best == pytest.approx((tenth - 1) / 2)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_bounds(losses):
    f, K = fairness(losses), len(losses)
    assert -1e-12 <= f.entropy <= math.log(K) + 1e-12
    assert 1 / K - 1e-12 <= f.jain <= 1 + 1e-12
    assert f.variance >= 0 and f.best <= f.mean * (1 + 1e-12) <= f.worst * (1 + 1e-9) + 1e-300


@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=20), st.floats(1e-3, 1e3))
def test_shares_do_not_depend_on_the_unit(losses, unit):
    one, two = fairness(losses), fairness(np.array(losses) * unit)
    assert two.entropy == pytest.approx(one.entropy, rel=1e-9, abs=1e-9)
    assert two.jain == pytest.approx(one.jain, rel=1e-9)
    assert two.variance == pytest.approx(one.variance * unit**2, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([], "one each; got shape"),
        ([[1.0]], "one each; got shape"),
        (3.0, "one each; got shape"),
        ([1.0, np.nan], "the loss of agent 1 is not finite"),
        ([np.inf], "the loss of agent 0 is not finite"),
    ],
)
def test_what_has_no_fairness_is_refused(losses, words):
    with pytest.raises(fp.FedpointError, match=words):
        fairness(losses)


def test_a_run_is_judged_at_its_final_models():
    quad = fp.problems.Quadratic([1.0, 4.0, 2.0], [[0.0], [1.0], [5.0]], noise=0.1)
    run = fp.run(fp.FedAvg(0.1), quad, rounds=3, repeats=2)
    assert len(run.fairness) == 2
    for r, f in enumerate(run.fairness):
        assert f == fairness(quad.losses(run.model[r]))
    assert run.fairness[0] != run.fairness[1]
