"""Forecasts of robust means and of attacks: against long runs with stated standard errors, and in closed form."""

from functools import cache

import numpy as np
import pytest

import fedpoint as fp

RNG = np.random.default_rng(0)
PLACES = np.sign(NORMAL := RNG.normal(size=(10, 2))) * NORMAL**2 * 2  # skewed: a robust mean is elsewhere
NOISY = fp.problems.Quadratic(1.0 + RNG.uniform(0, 1, 10), PLACES, noise=0.5)
METHOD = fp.FedAvg(step=0.1, local_steps=3)

CASES = {
    "trimmed": {"gather": fp.gather.TrimmedMean(2)},
    "trimmed, few": {"gather": fp.gather.TrimmedMean(1), "participation": 5},
    "attacked sums": {"attack": fp.attack.SignFlip([3], scale=0.5)},
}
SLOW = {
    "attacked": {"gather": fp.gather.Median(), "attack": fp.attack.LittleIsEnough([0, 1]), "participation": 7},
    "geometric": {"gather": fp.gather.GeometricMedian()},
    "krum": {"gather": fp.gather.Krum(2)},
    "clipping, few": {"gather": fp.gather.CentredClipping(0.3), "participation": 4},
    "mixing": {"gather": fp.gather.NearestNeighbourMixing(2, then=fp.gather.TrimmedMean(2))},
}


@cache
def long_runs(name):
    """Means over the later records of every repeat: of the error, and of the model."""
    run = fp.run(METHOD, NOISY, 400, repeats=200, record_every=20, seed=5, **(CASES | SLOW)[name])
    return run.error[:, -15:].mean(axis=1), run.history[:, -15:].mean(axis=1)


def assert_agrees(f, name):
    """Floor and limit within four standard errors, those of the runs and of the forecast together."""
    errors, models = long_runs(name)
    error = np.hypot(errors.std(ddof=1) / np.sqrt(len(errors)), f.standard_error or 0.0)
    assert abs(f.floor - errors.mean()) < 4 * error
    error = np.hypot(np.sqrt(models.var(axis=0, ddof=1).sum() / len(models)), f.limit_error)
    assert np.linalg.norm(f.limit - models.mean(axis=0)) < 4 * error
    assert f.limit_error < 0.05


@pytest.mark.parametrize("name", CASES)
def test_floor_and_limit_are_those_of_long_runs(name):
    assert_agrees(fp.forecast(METHOD, NOISY, **CASES[name]), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_floor_and_limit_of_the_others(name):
    assert_agrees(fp.forecast(METHOD, NOISY, **SLOW[name]), name)


@pytest.mark.parametrize("wrong", ["weighted sums", "one more", "nobody lies"])
def test_forecasts_of_something_else_are_convicted(wrong):
    case, other = {
        "weighted sums": ("trimmed", {}),
        "one more": ("trimmed", {"gather": fp.gather.TrimmedMean(3)}),
        "nobody lies": ("attacked sums", {}),
    }[wrong]
    with pytest.raises(AssertionError):
        assert_agrees(fp.forecast(METHOD, NOISY, **other), case)


def test_the_price_of_trimming_in_closed_form():
    """Unit curvatures, one step, exact: the limit is the trimmed mean of the places, sums end at their mean."""
    places = np.array([0.0, 1.0, 2.0, 3.0, 100.0])[:, None]
    quad = fp.problems.Quadratic(1.0, places)
    f = fp.forecast(fp.FedAvg(step=0.5), quad, gather=fp.gather.TrimmedMean(1), exact=True)
    assert f.limit == pytest.approx([2.0], abs=1e-8)
    assert f.moved_by_gather == pytest.approx(places.mean() - 2.0, abs=1e-8)
    assert f.closed == {}
    assert "TrimmedMean moves the limit by 19" in f.text()
    assert fp.forecast(fp.FedAvg(step=0.5), quad).moved_by_gather is None


def test_with_few_participants_the_mean_over_all_lineups_by_enumeration():
    """Unit curvatures: w ends at the mean over all lineups of the trimmed means of three of the places."""
    from itertools import combinations

    places = np.array([0.0, 1.0, 5.0, 20.0, 100.0])
    middles = [np.sort(places[list(who)])[1] for who in combinations(range(5), 3)]
    quad = fp.problems.Quadratic(1.0, places[:, None])
    f = fp.forecast(fp.FedAvg(step=0.1), quad, gather=fp.gather.TrimmedMean(1), participation=3, exact=True)
    assert f.fixed_point == pytest.approx([np.mean(middles)], abs=1e-8)
    assert f.limit == pytest.approx([np.mean(middles)], abs=5 * f.limit_error)


def test_an_attack_in_closed_form():
    quad = fp.problems.Quadratic(1.0, np.arange(7.0)[:, None])
    f = fp.forecast(fp.FedAvg(step=0.2), quad, attack=fp.attack.SignFlip([6]), exact=True)
    assert f.limit == pytest.approx([(15 - 6) / (6 - 1)], abs=1e-8)


def test_scaffold_with_a_robust_total_is_biased_and_wanders():
    """Without noise it ends where its path leads it, and the forecast follows; with noise the error grows, and the
    forecast says that there is no limit."""
    options = {"gather": fp.gather.TrimmedMean(2)}
    method = fp.Scaffold(step=0.1, local_steps=3)
    f = fp.forecast(method, NOISY, exact=True, **options)
    with pytest.warns(UserWarning, match="SCAFFOLD conserves a sum over all agents, which TrimmedMean does not"):
        run = fp.run(method, NOISY, 400, exact=True, **options)
    np.testing.assert_allclose(f.limit, run.model[0], atol=1e-6)
    assert f.bias > 0.1
    assert any("biased even if nobody lies" in note for note in f.notes)
    with pytest.raises(fp.FedpointError, match="with noise the model drifts away: there is no limit to forecast"):
        fp.forecast(method, NOISY, **options)
    with pytest.warns(UserWarning, match="drifts away"):
        errors = fp.run(method, NOISY, 2000, repeats=32, record_every=500, **options).error.mean(axis=0)
    assert errors[4] > 2 * errors[1] and errors[2] > errors[1]


def test_what_is_not_known_is_said():
    with pytest.raises(fp.FedpointError, match="what it does to a round is not known beforehand"):
        fp.forecast(METHOD, NOISY, attack=fp.attack.FalseRows([1], 3.0))
    f = fp.forecast(METHOD, NOISY, gather=fp.gather.Median(), floor="exact")
    assert f.floor is None and any("does not merge linearly" in note for note in f.notes)
