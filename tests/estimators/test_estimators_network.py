"""Network estimators are GTVMin: between fits alone and one model for each component."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

import fedpoint as fp
from fedpoint.estimators import MeanModelWarning, NetworkClassifier, NetworkRegressor, OneAgentWarning
from fedpoint.problems.logistic_task import LogisticTask
from fedpoint.problems.ridge_task import RidgeTask

NAMES = np.array(["ann", "bob", "cat", "dan"])
PAIRS = fp.Network.from_edges([("ann", "bob"), ("cat", "dan")])  # two components


@pytest.fixture
def rows(rng):
    """Four agents with 15 rows each, two kinds of agents."""
    who = np.repeat(NAMES, 15)
    X = rng.normal(size=(60, 2)) * [1.0, 5.0] + [0.0, 2.0]
    slope = np.where(np.isin(who, ["ann", "bob"])[:, None], [1.0, 0.2], [-1.0, 0.1])
    y = (X * slope).sum(1) + 1.0 + 0.3 * rng.normal(size=60)
    return X, y, who


def test_it_is_gtv_solve(rows):
    X, y, who = rows
    model = NetworkRegressor(PAIRS, coupling=0.3, scale=False).fit(X, y, groups=who)
    task = RidgeTask(np.column_stack([X, np.ones(60)]), y, [2 / 60, 2 / 60, 0.0], groups=who, half=False)
    models = fp.gtv.solve(task, PAIRS, 0.3)
    assert np.allclose(model.coef_, models[:, :2], atol=1e-12) and np.allclose(
        model.intercept_, models[:, 2], atol=1e-12
    )
    plain = fp.problems.LeastSquares(np.column_stack([X, np.ones(60)]), y, groups=who, mean=True, half=False)
    free = NetworkRegressor(PAIRS, coupling=0.3, scale=False, alpha=0.0).fit(X, y, groups=who)
    assert np.allclose(free.models_, fp.gtv.solve(plain, PAIRS, 0.3), atol=1e-10)


@pytest.mark.parametrize("scale", [False, True])
def test_a_coupling_near_zero_is_a_fit_for_each(rows, scale):
    X, y, who = rows
    model = NetworkRegressor(PAIRS, coupling=1e-10, alpha=2.0, scale=scale).fit(X, y, groups=who)
    Z = (X - X.mean(0)) / X.std(0) if scale else X
    for k, name in enumerate(NAMES):
        own = Ridge(alpha=2.0 / 4).fit(Z[who == name], y[who == name])  # a quarter of the rows, of the penalty
        assert np.allclose(model.coef_[k], own.coef_, atol=1e-6) and np.isclose(model.intercept_[k], own.intercept_)
        assert np.allclose(model.predict(X[who == name], [name] * 15), own.predict(Z[who == name]), atol=1e-6)


def test_a_huge_coupling_is_one_model_for_each_component(rows):
    X, y, who = rows
    model = NetworkRegressor(PAIRS, coupling=1e9, alpha=2.0, scale=False).fit(X, y, groups=who)
    for first, second in ((0, 1), (2, 3)):
        both = np.isin(who, NAMES[[first, second]])
        pooled = Ridge(alpha=1.0).fit(X[both], y[both])
        for k in (first, second):
            assert np.allclose(model.coef_[k], pooled.coef_, atol=1e-6)
            assert np.isclose(model.intercept_[k], pooled.intercept_, atol=1e-6)
    everyone = NetworkRegressor(fp.Network.complete(4), coupling=1e9, alpha=2.0, scale=False).fit(X, y, groups=who)
    assert np.allclose(everyone.coef_, Ridge(alpha=2.0).fit(X, y).coef_, atol=1e-6)


def test_the_coupling_is_chosen_by_validation(rows):
    X, y, who = rows
    model = NetworkRegressor(PAIRS).fit(X, y, groups=who)
    Z = (X - X.mean(0)) / X.std(0)
    task = RidgeTask(np.column_stack([Z, np.ones(60)]), y, [2 / 60, 2 / 60, 0.0], groups=who, half=False)
    choice = fp.gtv.choose(task, PAIRS)
    assert model.coupling_ == pytest.approx(choice.coupling) and np.allclose(model.models_, choice.models)
    assert np.allclose(model.choice_.errors, choice.errors)


def test_a_graph_is_learnt_where_none_is_given(rows):
    X, y, who = rows
    model = NetworkRegressor(coupling=0.1, neighbours=1).fit(X, y, groups=who)
    assert {tuple(sorted((model.network_.names[i], model.network_.names[j]))) for i, j in model.network_.edges} == {
        ("ann", "bob"),
        ("cat", "dan"),
    }
    assert NetworkRegressor(coupling=0.1).fit(X, y, groups=who).network_.nodes == 4  # more neighbours than there are


def test_networkx_graphs_and_the_order_of_names(rows):
    import networkx

    X, y, who = rows
    graph = networkx.Graph([("dan", "cat"), ("bob", "ann")])
    model = NetworkRegressor(graph, coupling=0.3).fit(X, y, groups=who)
    assert model.agents_.tolist() == NAMES.tolist()
    assert np.allclose(model.coef_, NetworkRegressor(PAIRS, coupling=0.3).fit(X, y, groups=who).coef_)


def test_without_groups_the_mean_model_predicts_and_says_so(rows):
    X, y, who = rows
    model = NetworkRegressor(PAIRS, coupling=0.3, scale=False).fit(X, y, groups=who)
    with pytest.warns(MeanModelWarning, match="the mean of the 4 agents' models"):
        said = model.predict(X)
    assert np.allclose(said, X @ model.coef_.mean(0) + model.intercept_.mean())
    with pytest.warns(MeanModelWarning, match="not in fit: eve"):
        some = model.predict(X[:2], groups=["ann", "eve"])
    assert some[0] == pytest.approx(model.predict(X[:1], groups=["ann"])[0]) and some[1] == pytest.approx(said[1])
    assert model.score(X, y, groups=who) > 0.8


def test_the_mean_model_weighs_agents_by_their_rows(rng):
    X, who = rng.normal(size=(12, 1)), np.array(["a"] * 9 + ["b"] * 3)
    model = NetworkRegressor(coupling=1e-3, scale=False).fit(X, X[:, 0] * np.where(who == "a", 1, 5), groups=who)
    assert np.allclose(model.mean_model_, 0.75 * model.models_[0] + 0.25 * model.models_[1])


def test_one_agent_is_an_ordinary_fit(rows):
    X, y, _ = rows
    with pytest.warns(OneAgentWarning, match="all 60 rows belong to one agent"):
        model = NetworkRegressor(scale=False).fit(X, y)
    assert np.allclose(model.coef_[0], Ridge().fit(X, y).coef_, atol=1e-8) and model.coupling_ == 0
    assert np.allclose(model.predict(X), Ridge().fit(X, y).predict(X), atol=1e-8)  # and nothing to warn of
    label = (y > 0).astype(int)
    pooled = LogisticRegression(tol=1e-12, solver="newton-cholesky").fit(X, label)
    with pytest.warns(OneAgentWarning):
        assert np.allclose(NetworkClassifier(scale=False).fit(X, label).coef_, pooled.coef_, atol=1e-6)


@pytest.mark.parametrize("count", [2, 3])
def test_classifier_is_gtvmin_of_logistic_losses(rows, count):
    X, y, who = rows
    label = np.digitize(y, np.quantile(y, np.linspace(0, 1, count + 1)[1:-1]))
    net = fp.Network.complete(4)
    large = NetworkClassifier(net, coupling=1e7, scale=False).fit(X, label, groups=who)
    pooled = LogisticRegression(tol=1e-12, max_iter=1000, solver="newton-cholesky").fit(X, label)
    coef = large.coef_ if count == 3 else large.coef_[:, None]
    assert np.allclose(coef, pooled.coef_, atol=1e-5)
    assert np.allclose(large.predict_proba(X, groups=who), pooled.predict_proba(X), atol=1e-5)
    some = NetworkClassifier(net, coupling=0.1, scale=False).fit(X, label, groups=who)
    task = LogisticTask(np.column_stack([X, np.ones(60)]), label, [1 / 60, 1 / 60, 0.0], who)
    assert np.allclose(some.models_, fp.gtv.solve(task, net, 0.1), atol=1e-10)
    assert some.score(X, label, groups=who) >= large.score(X, label, groups=who)


def test_an_agent_with_one_class_hears_of_the_other(rows):
    X, y, who = rows
    label = np.where(y > np.median(y), "yes", "no")
    label[who == "ann"] = "yes"
    model = NetworkClassifier(PAIRS, coupling=0.1).fit(X, label, groups=who)
    assert np.isfinite(model.predict_proba(X, groups=who)).all()


def test_fairness_is_over_each_agents_own_model(rows):
    X, y, who = rows
    model = NetworkRegressor(PAIRS, coupling=0.3).fit(X, y, groups=who)
    errors = (model.predict(X, groups=who) - y) ** 2
    assert model.agent_losses_ == {name: pytest.approx(errors[who == name].mean()) for name in NAMES.tolist()}
    assert model.fairness_ == fp.metrics.fairness(list(model.agent_losses_.values()))
    scores = model.agent_scores(X, y, groups=who)
    assert list(scores) == NAMES.tolist()
    assert scores["bob"] == model.score(X[who == "bob"], y[who == "bob"], groups=who[who == "bob"])


def test_mistakes(rows):
    X, y, who = rows
    for options, words in (
        ({"coupling": "none"}, "coupling must be a number"),
        ({"coupling": -1.0}, "at least 0"),
        ({"network": "ring"}, "network must be a Network, a Graph or None; got 'ring'"),
        ({"network": fp.Network.ring(5)}, "5 nodes, but the problem has 4 agents"),
        ({"alpha": -1}, "alpha must be a number"),
        ({"network": None, "neighbours": 0}, "neighbours must be a whole number"),
    ):
        with pytest.raises(fp.FedpointError, match=words):
            NetworkRegressor(**{"network": PAIRS, **options}).fit(X, y, groups=who)
    with pytest.raises(fp.FedpointError, match="one agent's name a row"):
        NetworkRegressor(PAIRS, coupling=1.0).fit(X, y, groups=who).predict(X, groups=who[:3])
