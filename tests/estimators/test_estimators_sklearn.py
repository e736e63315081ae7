"""Federated fits equal scikit-learn's on the pooled rows; where they do not, by what the forecast says."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedpoint as fp
from fedpoint.estimators import FederatedClassifier, FederatedRegressor, small
from fedpoint.estimators.choose import stable_step
from fedpoint.estimators.fitting import Settled
from fedpoint.problems.logistic_task import LogisticTask
from fedpoint.problems.ridge_task import RidgeTask

TIGHT = {"rounds": 1500, "tol": 1e-12}
# Fits that are meant to end away from the solution: of methods with a bias, or few rounds.
AWAY = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture
def rows(rng):
    """Seven agents of different sizes and different rows; columns of different widths, far from zero."""
    who = rng.choice(7, 300, p=np.arange(1, 8) / 28)
    X = rng.normal(size=(300, 5)) * [1.0, 10.0, 0.1, 3.0, 1.0] + [0.0, 50.0, 1.0, -3.0, 0.0]
    X[who == 2] += 1.0
    score = X @ [1.0, 0.1, 3.0, -0.5, 0.0] - 8.5
    return X, score + rng.normal(size=300) + (who == 1), score + rng.normal(size=300), who


def classes(score, count):
    return np.digitize(score, np.quantile(score, np.linspace(0, 1, count + 1)[1:-1]))


def logistic(**options):
    return LogisticRegression(tol=1e-12, max_iter=10000, solver="newton-cholesky", **options)


@pytest.mark.parametrize("algorithm", ["scaffold", "scaffnew", "gradient_exchange"])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 100.0])
def test_regressor_equals_ridge(rows, algorithm, alpha):
    X, y, _, who = rows
    model = FederatedRegressor(algorithm, alpha=alpha, **TIGHT).fit(X, y, groups=who)
    pooled = Ridge(alpha=alpha, solver="svd").fit(X, y)
    assert np.allclose(model.coef_, pooled.coef_, atol=1e-6) and np.isclose(
        model.intercept_, pooled.intercept_, atol=1e-6
    )
    assert np.allclose(model.predict(X), pooled.predict(X), atol=1e-6)
    assert model.score(X, y) == pytest.approx(pooled.score(X, y), abs=1e-9)
    assert model.converged_ and model.n_iter_ < 1500


def test_regressor_without_intercept_or_in_plain_coordinates(rows):
    X, y, _, who = rows
    plain = X - [0.0, 50.0, 1.0, -3.0, 0.0]
    for options in ({"fit_intercept": False}, {"precondition": False}, {"fit_intercept": False, "precondition": False}):
        model = FederatedRegressor(**options, **TIGHT).fit(plain / [1, 10, 0.1, 3, 1], y, groups=who)
        pooled = Ridge(fit_intercept=options.get("fit_intercept", True)).fit(plain / [1, 10, 0.1, 3, 1], y)
        assert np.allclose(model.coef_, pooled.coef_, atol=1e-6), options


def test_a_narrow_column_does_not_slow_the_others_down(rows):
    """Its penalty is steep in standardised coordinates: 1/(n 1e-8) here, against curvatures of 1."""
    X, y, _, who = rows
    narrow = np.column_stack([X, 1e-4 * np.sin(np.arange(300)), np.full(300, 7.0)])
    model = FederatedRegressor(tol=1e-10).fit(narrow, y, groups=who)
    assert model.converged_ and np.allclose(model.coef_, Ridge(solver="svd").fit(narrow, y).coef_, atol=1e-6)


def test_enough_communication_is_enough_for_fedavg_too(rows):
    """With one local step FedAvg is gradient descent."""
    X, y, _, who = rows
    model = FederatedRegressor("fedavg", local_steps=1, **TIGHT).fit(X, y, groups=who)
    assert np.allclose(model.coef_, Ridge().fit(X, y).coef_, atol=1e-6)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("C", [0.1, 1.0])
def test_classifier_equals_logistic_regression(rows, count, C):
    X, _, score, who = rows
    y = np.array(["low", "mid", "top"])[classes(score, count)]
    model = FederatedClassifier(C=C, **TIGHT).fit(X, y, groups=who)
    pooled = logistic(C=C).fit(X, y)
    assert model.classes_.tolist() == pooled.classes_.tolist()
    assert model.coef_.shape == pooled.coef_.shape and model.intercept_.shape == pooled.intercept_.shape
    assert np.allclose(model.coef_, pooled.coef_, atol=1e-6)
    assert np.allclose(model.intercept_, pooled.intercept_, atol=1e-6)
    assert np.allclose(model.predict_proba(X), pooled.predict_proba(X), atol=1e-6)
    assert np.allclose(model.predict_log_proba(X), pooled.predict_log_proba(X), atol=1e-5)
    assert np.array_equal(model.predict(X), pooled.predict(X))


def test_scaling_is_a_standard_scaler_before_it(rows):
    X, y, score, who = rows
    model = FederatedRegressor(scale=True, alpha=10.0, **TIGHT).fit(X, y, groups=who)
    pooled = make_pipeline(StandardScaler(), Ridge(alpha=10.0)).fit(X, y)
    assert np.allclose(model.coef_, pooled[-1].coef_, atol=1e-6)
    assert np.allclose(model.predict(X), pooled.predict(X), atol=1e-6)
    label = classes(score, 2)
    model = FederatedClassifier(scale=True, **TIGHT).fit(X, label, groups=who)
    pooled = make_pipeline(StandardScaler(), logistic()).fit(X, label)
    assert np.allclose(model.coef_, pooled[-1].coef_, atol=1e-6)
    assert np.allclose(model.predict_proba(X), pooled.predict_proba(X), atol=1e-6)


def test_one_class_at_an_agent_and_a_class_at_one_agent(rows):
    X, _, score, who = rows
    y = classes(score, 3)
    X, y, who = (np.concatenate([a[y != 2], a[y == 2][:20]]) for a in (X, y, who))
    who[y == 2] = 6  # class 2 only here
    who[(who == 0) & (y == 0)] = 1  # agent 0 has class 1 only
    assert set(y[who == 0]) == {1}
    model = FederatedClassifier(**TIGHT).fit(X, y, groups=who)
    assert np.allclose(model.coef_, logistic().fit(X, y).coef_, atol=1e-6)


@AWAY
def test_fedavg_is_off_by_its_forecast_bias(rows):
    X, y, score, who = rows
    Z = (X - X.mean(0)) / X.std(0)
    model = FederatedRegressor("fedavg", precondition=False, **TIGHT).fit(Z, y, groups=who)
    pooled = Ridge(solver="svd").fit(Z, y)
    off = np.append(model.coef_ - pooled.coef_, model.intercept_ - pooled.intercept_)
    assert model.forecast_.bias > 0.01
    assert np.linalg.norm(off) == pytest.approx(model.forecast_.bias, rel=1e-6)
    assert model.history_.error[-1] == pytest.approx(model.forecast_.floor, rel=1e-6)
    label = classes(score, 2)
    model = FederatedClassifier("fedavg", precondition=False, **TIGHT).fit(Z, label, groups=who)
    pooled = logistic().fit(Z, label)
    off = np.append(model.coef_ - pooled.coef_, model.intercept_ - pooled.intercept_)
    assert model.forecast_.bias > 1e-3
    assert np.linalg.norm(off) == pytest.approx(model.forecast_.bias, rel=1e-4)


@AWAY
def test_history_and_forecast_tell_the_same_story(rows):
    X, y, _, who = rows
    model = FederatedRegressor("fedavg", rounds=40, tol=None).fit(X, y, groups=who)
    curve = fp.forecast(model.algorithm_, model.problem_).curve(40)
    assert np.allclose(model.history_.error, curve, rtol=1e-6, atol=1e-12)
    assert len(model.history_) == 41 and model.history_.rounds[-1] == model.n_iter_ == model.n_rounds_ == 40
    n, w = len(y), np.append(model.coef_, model.intercept_)
    loss = (((X @ w[:-1] + w[-1] - y) ** 2).sum() + w[:-1] @ w[:-1]) / (2 * n)  # alpha = 1
    assert model.history_.loss[-1] == pytest.approx(loss, rel=1e-9)
    assert "40 rounds" in repr(model.history_)


@pytest.mark.parametrize("agents", [1, 4])
def test_rows_may_change_hands(rows, agents, rng):
    """The minimum does not depend on who holds which row."""
    X, y, _, _ = rows
    model = FederatedRegressor(**TIGHT).fit(X, y, groups=rng.integers(0, agents, 300))
    assert np.allclose(model.coef_, Ridge(solver="svd").fit(X, y).coef_, atol=1e-6)


# What is taken instead of compiled programs, constants and Newton's method


ALGORITHMS = [
    fp.Scaffold(step=0.05, local_steps=4),
    fp.Scaffnew(step=0.05, local_steps=4),
    fp.FedAvg(step=0.2, local_steps=4, normalise=True),
    fp.FedProx(step=0.05, local_steps=4, pull=0.5),
    fp.GradientExchange(step=0.1),
]


def some_tasks(rng):
    X, who = np.column_stack([rng.normal(size=(40, 2)), np.ones(40)]), rng.choice(3, 40, p=[0.2, 0.3, 0.5])
    y, ridge = X[:, 0] + rng.normal(size=40), [0.1, 0.2, 0.0]
    return [
        RidgeTask(X, y, ridge, groups=who),
        LogisticTask(X, classes(y, 2), ridge, who),
        LogisticTask(X, classes(y, 3), ridge, who),
    ]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_small_fits_follow_the_compiled_run(algorithm, rng):
    for task in some_tasks(rng)[0 if isinstance(algorithm, fp.Scaffold) else 2 :]:
        assert small.suits(algorithm, task, 6, None)
        rounds, models = small.walk(algorithm, task, 6, lambda w: False)
        run = fp.run(algorithm, task, rounds=6)
        assert np.array_equal(rounds, run.rounds) and np.allclose(models, run.history[0], rtol=1e-12, atol=1e-14)


def test_compiled_fits_are_the_same_fits(rows, monkeypatch):
    X, y, _, who = rows
    quick = FederatedRegressor().fit(X, y, groups=who)
    monkeypatch.setattr(small, "PATIENCE", 0.0)
    compiled = FederatedRegressor().fit(X, y, groups=who)
    assert compiled.n_iter_ == quick.n_iter_ and compiled.converged_ == quick.converged_
    assert np.allclose(compiled.coef_, quick.coef_, rtol=1e-10)


def test_what_is_not_small(rng):
    task = some_tasks(rng)[0]
    assert not small.suits(fp.Scaffold(step=0.1), task, 10**6, None)
    assert not small.suits(fp.Scaffold(step=0.1), task, 10, 2)
    assert not small.suits(fp.FedAdam(step=0.1), task, 10, None)
    assert not small.suits(fp.FedAvg(step=0.1, local_steps=[1, 2, 3], normalise=True), task, 10, None)
    batched = RidgeTask(task._A, task._b, task.ridge, batch=2)
    assert not small.suits(fp.Scaffold(step=0.1), batched, 10, None)


def test_tasks_say_what_their_oracles_say(rng):
    """The NumPy side against the problem's own, which is compiled."""
    from fedpoint.problems.base import Problem

    for task in some_tasks(rng):
        w = rng.normal(size=task.start().shape)
        assert np.allclose(task.fields(w), Problem.fields(task, w), rtol=1e-12, atol=1e-13)
        assert np.allclose(task.losses(w), Problem.losses(task, w), rtol=1e-12)
        assert np.allclose(task.objective(w[None]), Problem.objective(task, w[None]), rtol=1e-12)
        own = np.stack([w + k for k in range(task.agents)])
        each = [task.fields(v)[k] for k, v in enumerate(own)]
        assert np.allclose(task.fields_at(own).reshape(task.agents, -1), each, rtol=1e-12, atol=1e-13)
        solved = task.solution()
        assert np.linalg.norm(task.weights @ task.fields(solved)) < 1e-10
        with task.unseen():
            assert task.solution() is None


@AWAY
def test_steps_are_one_over_the_smoothness(rng):
    task = some_tasks(rng)[0]
    whole, each = task.smoothness()
    hessians = task.linear_fields()[0]
    assert each == pytest.approx(np.linalg.eigvalsh(hessians)[:, -1])
    assert whole == pytest.approx(np.linalg.eigvalsh(np.tensordot(task.weights, hessians, 1))[-1])
    X, y, who = task.all_rows()[0][:, :2], task.all_rows()[1], np.repeat(np.arange(3), task.counts)
    options = {"precondition": False, "alpha": 0.0, "rounds": 3}
    plain = RidgeTask(np.column_stack([X, np.ones(40)]), y, np.zeros(3), groups=who)
    whole, each = plain.smoothness()

    def step(name, **more):
        return FederatedRegressor(name, **options, **more).fit(X, y, groups=who).algorithm_.step

    assert step("scaffold") == pytest.approx(1 / each.max())
    assert step("fedavg") == pytest.approx(1 / each.max())
    divided = fp.FedAvg(step=1.0, local_steps=10, normalise=True)
    assert stable_step(divided, plain) == pytest.approx(10 / each.max())  # its steps are divided by their number
    assert step("gradient_exchange") == step("scaffold", local_steps=1) == pytest.approx(1 / whole)
    assert step("fedprox") == pytest.approx(1 / (each.max() + 0.1))
    assert step("scaffold", step=0.01) == 0.01


def test_batches_are_expected_to_be_less_smooth(rng):
    plain = some_tasks(rng)[0]
    sampled = RidgeTask(plain._A, plain._b, plain.ridge, plain.weights, batch=4)
    rows = np.array([(a * a).sum(1).max() for a in plain._A]) + 0.2
    assert sampled.smoothness()[1] == pytest.approx(2 * (plain.smoothness()[1] * 3 + rows) / 4)


def test_settled_looks_at_the_change_relative_to_the_size():
    settled = Settled(0.1)
    assert [settled(np.array([w])) for w in (0.0, 1.0, 1.2, 1.3)] == [False, False, False, True]
    assert not Settled(None)(np.zeros(1))
    with pytest.raises(fp.FedpointError, match="tol"):
        Settled(-1.0)


@AWAY
def test_with_few_participants_steps_are_half_as_long(rows):
    X, y, _, who = rows
    whole = FederatedRegressor("scaffold", rounds=1).fit(X, y, groups=who).algorithm_.step
    assert FederatedRegressor(rounds=1, participation=2).fit(X, y, groups=who).algorithm_.step == whole / 2
