"""What rows count: a weight is so many copies of a row, a class weight is a weight, and scikit-learn agrees."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedpoint as fp
from fedpoint.data.preprocess import federated_moments
from fedpoint.estimators import FederatedClassifier, FederatedRegressor, NetworkClassifier, NetworkRegressor
from fedpoint.problems.base import Problem
from fedpoint.problems.logistic_task import LogisticTask
from fedpoint.problems.ridge_task import RidgeTask

TIGHT = {"rounds": 2000, "tol": 1e-12}


@pytest.fixture
def rows(rng):
    """Four agents; weights 0 to 3, and how often that repeats each row."""
    X = rng.normal(size=(90, 3)) * [1.0, 5.0, 1.0] + [0.0, 20.0, 0.0]
    who = np.array(["ann", "bob", "cat", "dan"])[rng.choice(4, 90, p=[0.1, 0.2, 0.3, 0.4])]
    y = X @ [1.0, 0.2, -1.0] - 4.0 + rng.normal(size=90)
    weight = rng.integers(0, 4, 90)
    return X, y, who, weight, np.repeat(np.arange(90), weight)


def classes(y, count):
    return np.array(["low", "mid", "top"])[np.digitize(y, np.quantile(y, np.linspace(0, 1, count + 1)[1:-1]))]


def logistic(**options):
    return LogisticRegression(tol=1e-12, max_iter=10000, solver="newton-cholesky", **options)


RING = fp.Network.from_edges([("ann", "bob"), ("bob", "cat"), ("cat", "dan"), ("dan", "ann")])
ESTIMATORS = {
    "regressor": (FederatedRegressor(**TIGHT), 0),
    "scaled": (FederatedRegressor(scale=True, **TIGHT), 0),
    "plain": (FederatedRegressor(precondition=False, scale=True, fit_intercept=False, **TIGHT), 0),
    "fedavg": (FederatedRegressor("fedavg", **TIGHT), 0),
    "two classes": (FederatedClassifier(**TIGHT), 2),
    "three classes": (FederatedClassifier(scale=True, **TIGHT), 3),
    "network": (NetworkRegressor(RING, coupling=0.3), 0),
    "network of classes": (NetworkClassifier(RING, coupling=0.3), 3),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # of FedAvg, which is elsewhere
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_weight_is_so_many_copies_of_a_row(rows, name):
    """And none, where it is zero: the fit, the path to it, and what is told of the agents."""
    model, count = ESTIMATORS[name]
    X, y, who, weight, copies = rows
    target = classes(y, count) if count else y
    model.fit(X, target, groups=who, sample_weight=weight)
    found = model.coef_.copy(), np.copy(model.intercept_), model.agent_losses_
    unweighted = model.fit(X, target, groups=who).coef_
    assert np.abs(unweighted - found[0]).max() > 1e-3  # they matter
    model.fit(X[copies], target[copies], groups=who[copies])
    assert np.allclose(found[0], model.coef_, atol=1e-9) and np.allclose(found[1], model.intercept_, atol=1e-8)
    assert found[2] == pytest.approx(model.agent_losses_)


@pytest.mark.parametrize("alpha", [0.0, 5.0])
def test_weighted_regression_is_scikit_learns(rows, alpha, rng):
    X, y, who, _, _ = rows
    weight = rng.exponential(size=90)
    model = FederatedRegressor(alpha=alpha, **TIGHT).fit(X, y, groups=who, sample_weight=weight)
    pooled = Ridge(alpha=alpha, solver="svd").fit(X, y, sample_weight=weight)
    assert np.allclose(model.coef_, pooled.coef_, atol=1e-6) and model.intercept_ == pytest.approx(pooled.intercept_)
    assert model.score(X, y, sample_weight=weight) == pytest.approx(pooled.score(X, y, sample_weight=weight))
    own = weight[who == "cat"]
    errors = (model.predict(X) - y)[who == "cat"] ** 2
    assert model.agent_losses_["cat"] == pytest.approx(own @ errors / own.sum())


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("class_weight", [None, "balanced", {"low": 3.0, "top": 0.2}])
def test_weighted_classes_are_scikit_learns(rows, count, class_weight, rng):
    """Over all rows pooled, with weights of rows too: "balanced" counts these."""
    X, y, who, _, _ = rows
    weight, label = rng.exponential(size=90), classes(y + 4.0 * (who == "dan"), count)
    label[:20] = label[np.argmax(label == "low")]  # unbalanced
    given = dict(class_weight) if isinstance(class_weight, dict) else class_weight
    if count == 2 and isinstance(given, dict):
        given["mid"] = given.pop("top")
    model = FederatedClassifier(C=0.5, class_weight=given, **TIGHT).fit(X, label, groups=who, sample_weight=weight)
    pooled = logistic(C=0.5, class_weight=given).fit(X, label, sample_weight=weight)
    assert np.allclose(model.coef_, pooled.coef_, atol=1e-6)
    assert np.allclose(model.intercept_, pooled.intercept_, atol=1e-5)
    if given is not None:
        plain = logistic(C=0.5).fit(X, label, sample_weight=weight)
        assert np.abs(plain.intercept_ - pooled.intercept_).max() > 0.05  # it matters


def test_scaling_knows_weights_of_rows_and_not_of_classes(rows):
    """As a StandardScaler before the model that gets the rows so often as they count, and knows of no classes."""
    X, y, who, weight, copies = rows
    label = classes(y, 2)
    model = FederatedClassifier(scale=True, class_weight="balanced", **TIGHT)
    model.fit(X, label, groups=who, sample_weight=weight)
    pooled = make_pipeline(StandardScaler(), logistic(class_weight="balanced")).fit(X[copies], label[copies])
    assert np.allclose(model.coef_, pooled[-1].coef_, atol=1e-6)
    assert np.allclose(model.predict_proba(X), pooled.predict_proba(X), atol=1e-6)


def test_rows_and_agents_without_weight_are_not_there(rows):
    pandas = pytest.importorskip("pandas")
    X, y, who, _, _ = rows
    frame = pandas.DataFrame(X, columns=list("abc")).assign(colour=np.where(who == "bob", "blue", "red"))
    weight = (who != "bob").astype(float)
    model = FederatedRegressor().fit(frame, y, groups=who, sample_weight=weight)
    assert model.agents_.tolist() == ["ann", "cat", "dan"] == list(model.agent_losses_)
    assert model.feature_names_out_.tolist() == ["a", "b", "c", "colour_red"]
    label = classes(y, 3)
    lost = FederatedClassifier().fit(X, label, groups=who, sample_weight=label != "mid")
    assert lost.classes_.tolist() == ["low", "top"]


@pytest.mark.parametrize(
    ("count", "batches"),
    [
        (0, (None, 4)),
        pytest.param(2, (None, 4), marks=pytest.mark.slow),
        (3, (4,)),
        pytest.param(3, (None,), marks=pytest.mark.slow),
    ],
)
def test_tasks_with_weights_are_tasks_with_copies(rows, count, batches, rng):
    """Everything that is asked of them, NumPy's side and the compiled one, full fields and sampled ones: noise too,
    because rows are drawn as often as they count."""
    X, y, who, weight, copies = rows
    X = np.column_stack([(X - X.mean(0)) / X.std(0), np.ones(90)])
    some, ridge = weight > 0, [0.1, 0.2, 0.3, 0.0]

    def task(at, weight, batch):
        if not count:
            return RidgeTask(X[at], y[at], ridge, groups=who[at], batch=batch, sample_weight=weight)
        return LogisticTask(X[at], classes(y, count)[at], ridge, who[at], batch, sample_weight=weight)

    for batch in batches:
        one, two = task(some, weight[some], batch), task(copies, None, batch)
        w = rng.normal(size=one.start().shape)
        W = np.stack([w + k for k in range(4)])
        pairs = {name: [getattr(t, name) for t in (one, two)] for name in ("fields", "losses", "noise")}
        told = [[f(w) for f in pair] for pair in pairs.values()]
        told += [[t.fields_at(W), t.slopes_at(W), t.hessians_at(W), t.products_at(W, W[::-1])] for t in (one, two)]
        told = told[:-2] + [list(pair) for pair in zip(*told[-2:], strict=True)]
        told += [[t.solution() for t in (one, two)], [t.objective(w[None]) for t in (one, two)]]
        told += [[t.smoothness()[1] for t in (one, two)], [t.constants().beta2_k for t in (one, two)]]
        told += [[Problem.fields(one, w), two.fields(w)], [Problem.objective(one, w[None]), two.objective(w[None])]]
        for a, b in told:
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
        if batch:
            floors = [fp.forecast(fp.FedAvg(step=0.05, local_steps=2), t).floor for t in (one, two)]
            assert floors[0] == pytest.approx(floors[1], rel=1e-8)
        w = w - w.mean(0) if count == 3 else w  # what all classes share is held at zero, by another number of rows
        part = one.restricted([np.arange(0, n, 2) for n in one.counts])
        kept = np.concatenate([np.flatnonzero(some & (who == name))[::2] for name in np.unique(who)])
        again = task(kept, weight[kept], None)
        np.testing.assert_allclose(part.losses(w), again.losses(w), rtol=1e-9)


def test_batches_with_weights(rows):
    """Compiled runs end around the weighted solution, not around the other: 3 standard errors away at most."""
    X, y, who, _, _ = rows
    Z, weight = (X - X.mean(0)) / X.std(0), np.where(who == "dan", 9.0, 1.0)
    model = FederatedRegressor(batch=8, rounds=1000, tol=None, random_state=0, precondition=False, step=0.01)
    with pytest.warns(UserWarning, match="Rounds are random"):
        model.fit(Z, y + 3.0 * (who == "dan"), groups=who, sample_weight=weight)
    late = model.history_.models[300:, -1]  # intercepts
    spread = late.std() / np.sqrt(len(late) / 100)
    ends = [Ridge().fit(Z, y + 3.0 * (who == "dan"), sample_weight=w).intercept_ for w in (weight, np.ones(90))]
    assert abs(late.mean() - ends[0]) < 3 * spread < abs(late.mean() - ends[1])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_neural_networks_with_weights(rows):
    """In single precision, a few rounds: as with copies."""
    X, y, who, weight, copies = rows
    for make, target in ((FederatedRegressor, y), (FederatedClassifier, classes(y, 3))):
        model = make(hidden=(3,), rounds=5, random_state=0, scale=True)
        found = model.fit(X, target, groups=who, sample_weight=weight).model_
        losses = model.agent_losses_
        model.fit(X[copies], target[copies], groups=who[copies])
        for (W, b), (V, c) in zip(found, model.model_, strict=True):
            assert np.allclose(W, V, atol=1e-3) and np.allclose(b, c, atol=1e-3)
        assert losses == pytest.approx(model.agent_losses_, rel=1e-3)


def test_moments_with_weights(rng):
    """As of copies, also far from zero; and whatever the weights' unit."""
    X, who, weight = rng.normal(size=(50, 2)) + 1e8, rng.integers(0, 3, 50), rng.integers(1, 4, 50)
    copies = np.repeat(np.arange(50), weight)
    two = federated_moments(X[copies], who[copies])
    for unit in (1.0, 1e-6, 1e6):
        one = federated_moments(X, who, weight * unit)
        assert np.allclose(one.mean, two.mean, rtol=1e-15) and np.allclose(one.variance, two.variance, rtol=1e-7)
        assert not one.constant.any() and federated_moments(np.full((50, 1), 7.1), who, weight * unit).constant.all()


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (np.ones(89), r"sample_weight has shape \(89,\), but y has 90 rows"),
        (np.ones((90, 2)), r"sample_weight has shape \(90, 2\)"),
        (np.r_[np.ones(5), -1.0, np.ones(84)], "sample_weight is -1 at row 5: weights must be finite, and at least 0"),
        (np.r_[np.ones(5), np.nan, np.ones(84)], "sample_weight is nan at row 5"),
        (np.r_[np.ones(5), np.inf, np.ones(84)], "sample_weight is inf at row 5"),
        (np.zeros(90), "sample_weight is zero everywhere"),
        (["heavy"] * 90, "sample_weight must be numbers"),
    ],
)
def test_mistakes_in_weights(rows, weight, words):
    X, y, who, _, _ = rows
    for model in (FederatedRegressor(), NetworkRegressor()):
        with pytest.raises(fp.FedpointError, match=words):
            model.fit(X, y, groups=who, sample_weight=weight)


@pytest.mark.parametrize(
    ("class_weight", "words"),
    [
        ("balance", 'must be a dictionary, "balanced" or None'),
        ([1.0, 2.0], "must be a dictionary"),
        ({"lov": 2.0}, "y has no class 'lov'; its classes are 'low', 'mid'"),
        ({"low": -2.0}, r"class_weight of 'low' must be a number above 0 \(or leave out its rows\); got -2"),
        ({"low": "much"}, "class_weight must be a dictionary"),
        ({"low": 0}, "above 0"),
    ],
)
def test_mistakes_in_class_weights(rows, class_weight, words):
    X, y, who, _, _ = rows
    for make in (FederatedClassifier, NetworkClassifier):
        with pytest.raises(fp.FedpointError, match=words):
            make(class_weight=class_weight).fit(X, classes(y, 2), groups=who)
