"""FederatedGLM beside scikit-learn's GLMs, `fp.glm` and itself as a file."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import GammaRegressor, PoissonRegressor

import fedpoint as fp
from fedpoint.estimators import FederatedGLM


@pytest.fixture(scope="module")
def rows():
    rng, n = np.random.default_rng(3), 150
    x = rng.normal(size=(n, 2))
    mean = np.exp(0.5 + x @ [0.4, -0.3])
    return x, rng.poisson(mean) * 1.0, mean * rng.gamma(3.0, 1 / 3, n), rng.integers(0, 4, n), rng.integers(1, 4, n)


@pytest.mark.parametrize(
    ("family", "theirs", "which"), [("poisson", PoissonRegressor, 1), ("gamma", GammaRegressor, 2)]
)
def test_it_is_scikit_learns_pooled_fit(rows, family, theirs, which):
    X, y, site, weight = rows[0], rows[which], rows[3], rows[4]
    link = {"gamma": "log"}.get(family)
    ours = FederatedGLM(family, link, alpha=0.3).fit(X, y, groups=site, sample_weight=weight)
    pooled = theirs(alpha=0.3, solver="newton-cholesky", tol=1e-12).fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(ours.coef_, pooled.coef_, atol=1e-8)
    assert ours.intercept_ == pytest.approx(pooled.intercept_, abs=1e-8)
    np.testing.assert_allclose(ours.predict(X), pooled.predict(X), rtol=1e-8)
    assert ours.score(X, y, weight) == pytest.approx(pooled.score(X, y, weight), abs=1e-8)  # D^2
    other = FederatedGLM(family, link, alpha=0.31).fit(X, y, groups=site, sample_weight=weight)
    assert np.abs(other.coef_ - pooled.coef_).max() > 1e-4  # a wrong penalty would show


def test_it_is_fp_glm_of_the_same_columns(rows):
    X, y, _, site, weight = rows
    table = pd.DataFrame({"a": X[:, 0], "kind": np.array(["u", "v", "w"])[site % 3], "y": y, "site": site})
    ours = FederatedGLM("poisson", alpha=0.0).fit(table[["a", "kind"]], y, groups=site, offset=0.1 * weight)
    fit = fp.glm("y ~ a + kind", table, groups="site", family="poisson", offset=0.1 * weight)
    np.testing.assert_allclose(ours.result_.values, fit.values, atol=1e-9)
    np.testing.assert_allclose(ours.bse_, fit.bse, atol=1e-9)
    assert ours.coef_[1] == 0 and ours.coef_.shape == (4,) and list(ours.agents_) == [0, 1, 2, 3]
    assert ours.agent_losses_[2] == pytest.approx(fit.sites["2"].deviance / fit.sites["2"].rows)
    assert "odds ratio" not in ours.summary() and "4 sites" in ours.summary()
    free = FederatedGLM("poisson", alpha=0.0, fit_intercept=False).fit(table[["a", "kind"]], y, groups=site)
    assert (free.coef_ != 0).all() and free.intercept_ == 0.0


def test_what_is_saved_holds_no_rows(rows, tmp_path):
    X, y, _, site, _ = rows
    model = FederatedGLM("poisson", alpha=0.0).fit(X, y, groups=site)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    with pytest.raises(fp.FedpointError, match="takes the rows, which are not saved"):
        again.summary()
    fp.export(model, tmp_path / "model.npz")
    np.testing.assert_allclose(fp.load(tmp_path / "model.npz").predict(X), model.predict(X), rtol=1e-12)


def test_mistakes(rows):
    X, y, _, site, _ = rows
    with pytest.raises(fp.FedpointError, match="y must be at least 0 in family 'poisson'; in 1 row of 0"):
        FederatedGLM("poisson", alpha=0.0).fit(
            X, np.where(np.arange(len(y)) == np.flatnonzero(site == 0)[0], -1.0, y), groups=site
        )
    with pytest.raises(fp.FedpointError, match="unknown family 'poison'"):
        FederatedGLM("poison").fit(X, y, groups=site)
    with pytest.raises(fp.FedpointError, match="x0 and x2 are collinear"):
        FederatedGLM("poisson", alpha=0.0).fit(np.column_stack([X, 2 * X[:, 0]]), y, groups=site)
    with pytest.raises(fp.FedpointError, match="offset has shape"):
        FederatedGLM("poisson", alpha=0.0).fit(X, y, groups=site, offset=[1.0])
