"""A fit that stops away from the solution says so, and how far; one that has reached it says nothing."""

import re
import warnings

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedpoint as fp
from fedpoint.estimators import Distance, FederatedClassifier, FederatedRegressor, fitting
from fedpoint.estimators.convergence import TOLERANCE
from fedpoint.problems import logistic_task, penalised
from fedpoint.problems.logistic_task import LogisticTask


def away(model, pooled):
    """The true relative distances of coef_, and of (coef_, intercept_), from scikit-learn's."""
    ours, theirs = ([np.ravel(m.coef_), np.ravel(m.intercept_)] for m in (model, pooled))
    size, all_size = np.linalg.norm(theirs[0]), np.linalg.norm(np.concatenate(theirs))
    return np.linalg.norm(ours[0] - theirs[0]) / size, np.linalg.norm(
        np.concatenate(ours) - np.concatenate(theirs)
    ) / all_size


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return X, y, LogisticRegression(solver="newton-cholesky", tol=1e-12, max_iter=1000).fit(X, y)


@pytest.mark.parametrize("agents", [1, 3, 10])
def test_the_distance_told_on_breast_cancer_is_the_true_one(cancer, agents):
    """Within a factor of 2, for coefficients and probabilities; in the words of the warning and as `distance_`."""
    X, y, pooled = cancer
    with pytest.warns(ConvergenceWarning) as caught:
        model = FederatedClassifier("scaffold").fit(X, y, groups=np.arange(len(y)) % agents)
    coefficients, with_intercept = away(model, pooled)
    probabilities = np.abs(model.predict_proba(X) - pooled.predict_proba(X)).max()
    assert coefficients > 0.5 and with_intercept > 0.15 and probabilities > 0.3  # far away indeed
    found = model.distance_
    for told, true in zip(found, (coefficients, with_intercept, probabilities), strict=False):
        assert true / 2 < told < 2 * true
    text = str(caught[0].message)
    assert "SCAFFOLD has not reached the pooled solution in 200 rounds" in text
    said = [float(number) / 100 for number in re.findall(r"([\d.]+) %", text)]
    assert said == pytest.approx([found.coefficients, found.with_intercept], rel=0.06)
    assert all(word in text for word in ("rounds=", "local_steps=", "scale=True"))


def test_a_warning_is_of_the_line_that_called_fit(rng):
    X = rng.normal(size=(60, 3)) * [1, 100, 1]
    with pytest.warns() as caught:
        FederatedRegressor("scaffold", rounds=1, local_steps=1).fit(X, X @ [1.0, 0.1, 2.0] + rng.normal(size=60))
    assert {warning.category.__name__ for warning in caught} == {"OneAgentWarning", "ConvergenceWarning"}
    assert {warning.filename for warning in caught} == {__file__}


def test_agents_not_heard_by_their_weights(rng):
    """The plain mean over agents of unequal size solves another problem, however many rounds."""
    groups = np.repeat([0, 1], [10, 90])
    X = rng.normal(size=(100, 2))
    y = X @ [1.0, -1.0] + np.where(groups == 0, 3.0 * X[:, 0], 0.0)
    model = FederatedRegressor("fedavg", participation=fp.Uniform(1, plain=True), rounds=300)
    with pytest.warns(
        ConvergenceWarning, match=r"not heard in proportion to their weights.* Use another participation="
    ):
        model.fit(X, y, groups=groups)


def test_the_advice_helps(cancer):
    """More local steps on standardised columns reach scikit-learn's solution for these, and nothing is warned of."""
    X, y, _ = cancer
    model = FederatedClassifier("scaffold", scale=True, local_steps=100).fit(X, y, groups=np.arange(len(y)) % 3)
    pooled = make_pipeline(StandardScaler(), LogisticRegression(solver="newton-cholesky", tol=1e-12)).fit(X, y)
    assert max(away(model, pooled[-1])) < TOLERANCE and not model.distance_.shows


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_it_warns_exactly_where_the_solution_is_not_reached(kind, rng):
    """Over numbers of rounds: by the true distance, which crosses the tolerance on the way."""
    X, who = rng.normal(size=(80, 3)) @ [[1.0, 0.9, 0.0], [0.0, 0.3, 0.0], [0.0, 0.0, 1.0]], np.arange(80) % 4
    y = X @ [1.0, 2.0, -1.0] + rng.normal(size=80)
    if kind == "numbers":
        pooled, make = Ridge(solver="svd").fit(X, y), FederatedRegressor
    else:
        y = (y > 0).astype(int)
        pooled, make = LogisticRegression(solver="newton-cholesky", tol=1e-12).fit(X, y), FederatedClassifier
    sides = set()
    for rounds in (1, 3, 10, 20, 30, 50, 80, 120):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = make("scaffold", rounds=rounds, tol=None).fit(X, y, groups=who)
        true = max(away(model, pooled))
        if true > 2 * TOLERANCE or true < TOLERANCE / 10:  # between, predictions may decide
            warned = any(w.category is ConvergenceWarning for w in caught)
            assert warned == (true > TOLERANCE), (rounds, true)
            sides.add(warned)
    assert sides == {True, False}


def test_rounds_that_hardly_move_are_not_the_solution(cancer):
    """tol is about a round's change. A slow fit passes it far from the end: `converged_`, and yet a warning."""
    X, y, pooled = cancer
    with pytest.warns(ConvergenceWarning, match="has not reached"):
        model = FederatedClassifier("scaffold", tol=1e-2).fit(X, y, groups=np.arange(len(y)) % 3)
    assert model.converged_ and model.n_iter_ < 200 and away(model, pooled)[1] > 0.1


def test_a_column_in_small_units_does_not_hide_the_others(rng):
    """Its coefficient is a million times that of the rest, and right: then predictions tell."""
    X, who = rng.normal(size=(60, 3)), np.arange(60) % 3
    X[:, 1] = X[:, 0] + 0.03 * X[:, 1]  # slow
    X[:, 2] *= 1e-6
    y = X @ [1.0, -1.0, 1e6]
    with pytest.warns(ConvergenceWarning):
        model = FederatedRegressor("scaffold", rounds=20, alpha=0.0).fit(X, y, groups=who)
    assert away(model, Ridge(alpha=0.0, solver="svd").fit(X, y))[0] < TOLERANCE < model.distance_.predictions


@pytest.mark.parametrize("rounds", [6, 3000])
def test_fedavg_is_told_apart_from_rounds_that_are_too_few(rng, rounds):
    """Its own limit is elsewhere: what is left to it and what stays are two numbers, and neither is promised away."""
    who = np.repeat([0, 1, 2], 40)
    X = rng.normal(size=(120, 2)) * np.array([1.0, 2.0, 4.0])[who, None]
    y = X @ [1.0, -1.0] + who + rng.normal(size=120)
    pooled = Ridge(solver="svd").fit(X, y)
    make = FederatedRegressor("fedavg", rounds=rounds, tol=1e-13, precondition=False, step=0.01)
    with pytest.warns(ConvergenceWarning) as caught:
        model = make.fit(X, y, groups=who)
    text = str(caught[0].message)
    assert "FedAvg is away from the pooled solution" in text and 'algorithm="scaffold"' in text
    assert "rounds=" not in text and "has not reached" not in text
    far, bias = (float(n) / 100 for n in re.findall(r"off by (?:about )?([\d.]+) %", text))
    assert far == pytest.approx(away(model, pooled)[0], rel=0.02)
    limit = fp.run(model.algorithm_, model.problem_, rounds=5000, record_every=5000).model[0]
    assert bias == pytest.approx(np.linalg.norm(limit[:2] - pooled.coef_) / np.linalg.norm(pooled.coef_), rel=0.02)
    assert (far > 2 * bias) == (rounds == 6)


def test_fedavg_of_agents_that_are_alike_has_no_bias_to_speak_of(rng):
    X, y = np.tile(rng.normal(size=(20, 2)), (3, 1)), np.tile(rng.normal(size=20), 3)
    told = (
        "FedAvg has not reached the pooled solution in 1 round: .*Take more rounds=, more local_steps=, a longer step"
    )
    with pytest.warns(ConvergenceWarning, match=told):
        FederatedRegressor("fedavg", rounds=1, step=0.05).fit(X, y, groups=np.repeat([0, 1, 2], 20))


def test_methods_whose_limit_is_not_computed(rng):
    X, who = rng.normal(size=(40, 2)) * (1 + np.arange(40) % 4)[:, None], np.arange(40) % 4
    y = X[:, 0] + who + rng.normal(size=40)
    nova = fp.FedNova(step=0.02, local_steps=[1, 5, 5, 9])
    with pytest.warns(ConvergenceWarning, match="may end elsewhere"):
        FederatedRegressor(nova, rounds=3).fit(X, y, groups=who)


def test_random_rounds(rng):
    X, who = rng.normal(size=(60, 2)), np.arange(60) % 3
    y = X @ [1.0, 2.0] + rng.normal(size=60)
    with pytest.warns(ConvergenceWarning, match=r"Rounds are random.*a shorter step= or a larger batch= helps"):
        FederatedRegressor("scaffold", batch=4, random_state=0).fit(X, y, groups=who)


def test_large_models_are_told_at_least_how_far(cancer, monkeypatch):
    """By conjugate gradients, cut short: never more than the whole step, and the same where they get to its end."""
    X, y, _ = cancer
    with pytest.warns(ConvergenceWarning, match="off by about"):
        whole = FederatedClassifier("scaffold").fit(X, y, groups=np.arange(len(y)) % 3)
    step = whole.problem_.newton_step(whole.model_)
    monkeypatch.setattr(penalised, "DENSE", 0)
    sizes = []
    for products in (1, 4, 16, 10_000):
        cut = whole.problem_.newton_step(whole.model_, products)
        sizes.append(np.linalg.norm(cut.change))
        assert cut.whole == (products == 10_000)
    assert sizes[0] > 0 and (np.diff(sizes) > 0).all() and sizes[-1] < 1.02 * np.linalg.norm(step.change)
    assert step.whole and np.allclose(cut.change, step.change, atol=0.02 * np.abs(step.change).max())
    monkeypatch.setattr(fitting, "FEW_PRODUCTS", 4)
    with pytest.warns(ConvergenceWarning, match="off by at least"):
        assert FederatedClassifier("scaffold", rounds=5).fit(X, y, groups=np.arange(len(y)) % 3).distance_.at_least


def test_a_few_rounds_on_many_columns_are_not_followed_by_a_hessian(rng, monkeypatch):
    """What is told of the distance must not take longer than the fit: Hessians of 300 columns are for longer ones."""
    X, y = rng.normal(size=(60, 300)), rng.integers(0, 2, 60)
    made = []
    derivatives = LogisticTask.derivatives
    monkeypatch.setattr(LogisticTask, "derivatives", lambda self, w: made.append(1) or derivatives(self, w))
    for rounds, expected in ((2, []), (200, [1])):
        made.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            FederatedClassifier("scaffold", rounds=rounds, tol=None).fit(X, y, groups=np.arange(60) % 3)
        assert made == expected


def test_hessians_are_made_in_pieces(rng, monkeypatch):
    for classes in (2, 3):
        task = LogisticTask(rng.normal(size=(50, 4)), np.arange(50) % classes, np.ones(4), np.arange(50) % 3)
        w = rng.normal(size=task.start().shape)
        whole = task.derivatives(w)[1]
        monkeypatch.setattr(logistic_task, "CHUNK", 70)
        np.testing.assert_allclose(task.derivatives(w)[1], whole, rtol=1e-12, atol=1e-14)
        monkeypatch.undo()


def test_a_minimum_that_is_not_unique_is_the_nearest(rng):
    """Two equal columns without a penalty: whatever they share of the slope, nothing is left to be done."""
    x, who = rng.normal(size=40), np.arange(40) % 2
    X, y = np.column_stack([x, x]), 3 * x + rng.normal(size=40)
    model = FederatedRegressor("scaffold", alpha=0.0).fit(X, y, groups=who)
    assert model.coef_.sum() == pytest.approx(np.polyfit(x, y, 1)[0]) and not model.distance_.shows


def test_no_penalty_and_a_minimum_all_the_same(rng):
    """Classes that overlap: there is a solution to be away from, and to reach."""
    X, who = rng.normal(size=(60, 2)), np.arange(60) % 3
    y = (X[:, 0] + rng.logistic(size=60) > 0).astype(int)
    pooled = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12).fit(X, y)
    with pytest.warns(ConvergenceWarning, match="has not reached the pooled solution in 2 rounds"):
        model = FederatedClassifier("scaffold", C=np.inf, rounds=2).fit(X, y, groups=who)
    assert model.distance_.coefficients == pytest.approx(away(model, pooled)[0], rel=0.5)
    assert max(away(FederatedClassifier("scaffold", C=np.inf).fit(X, y, groups=who), pooled)) < TOLERANCE


def test_neural_networks_warn_while_they_move(rng):
    X, who = rng.uniform(-1, 1, size=(40, 2)), np.repeat([0, 1], 20)
    with pytest.warns(ConvergenceWarning, match=r"SCAFFOLD has not converged in 2 rounds: the last one still changed"):
        model = FederatedClassifier(hidden=(4,), rounds=2, random_state=0).fit(X, X[:, 0] > 0, groups=who)
    assert model.distance_ is None


def test_what_shows():
    assert not Distance(TOLERANCE, TOLERANCE, TOLERANCE, False).shows
    for which in range(3):
        numbers = [0.0, 0.0, 0.0]
        numbers[which] = 1.01 * TOLERANCE
        assert Distance(*numbers, False).shows
