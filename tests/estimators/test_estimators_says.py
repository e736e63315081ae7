"""What fits say about themselves, what they take, and what they refuse."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import fedpoint as fp
from fedpoint.estimators import FederatedClassifier, FederatedRegressor, PlanNotice, choose

# Fits that are meant to end away from the solution: of methods with a bias, few rounds, or noise.
AWAY = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture
def rows(rng):
    X, who = rng.normal(size=(40, 2)), np.repeat(["a", "b", "c", "d"], 10)
    return X, X @ [1.0, 2.0] + 0.5 * rng.normal(size=40), who


def test_fairness_by_hand():
    """A constant between agents at 0 and 2: squared errors 1 and 1; 1/4 and 9/4 where one has three rows of four."""
    X, y = np.zeros((4, 1)), np.array([0.0, 0.0, 2.0, 2.0])
    even = FederatedRegressor().fit(X, y, groups=[0, 0, 1, 1])
    assert even.agent_losses_ == {0: pytest.approx(1.0), 1: pytest.approx(1.0)}
    assert even.fairness_.jain == pytest.approx(1.0)
    odd = FederatedRegressor().fit(X, [0.0, 0.0, 0.0, 2.0], groups=[0, 0, 0, 1])  # the mean is 1/2
    assert odd.agent_losses_ == {0: pytest.approx(0.25), 1: pytest.approx(2.25)}
    told = odd.fairness_
    assert (told.mean, told.variance) == (pytest.approx(1.25), pytest.approx(1.0))
    assert (told.worst, told.best) == (pytest.approx(2.25), pytest.approx(0.25))
    assert told.jain == pytest.approx(2.5**2 / (2 * (0.25**2 + 2.25**2)))
    assert told.entropy == pytest.approx(-(0.1 * np.log(0.1) + 0.9 * np.log(0.9)))


def test_fairness_of_a_classifier_is_in_log_losses(rows):
    X, y, who = rows
    label = (y > 0).astype(int)
    model = FederatedClassifier().fit(X, label, groups=who)
    losses = -np.log(model.predict_proba(X)[np.arange(40), label])
    assert model.agent_losses_ == {name: pytest.approx(losses[who == name].mean()) for name in "abcd"}
    assert model.fairness_.worst == pytest.approx(max(model.agent_losses_.values()))


def test_scores_of_agents_carry_their_names(rows):
    X, y, who = rows
    model = FederatedRegressor().fit(X, y, groups=who)
    scores = model.agent_scores(X[5:], y[5:], groups=who[5:])
    assert list(scores) == ["a", "b", "c", "d"]
    assert scores["a"] == model.score(X[5:10], y[5:10]) and scores["d"] == model.score(X[30:], y[30:])
    weighted = model.agent_scores(X, y, groups=who, sample_weight=np.arange(40.0))
    assert weighted["c"] == model.score(X[20:30], y[20:30], sample_weight=np.arange(20.0, 30.0)) != scores["c"]


@pytest.mark.parametrize(
    ("algorithm", "title"),
    [("FedAvg", "FedAvg"), ("fed-prox", "FedProx"), (fp.Scaffold(step=0.1, local_steps=2), "SCAFFOLD")],
)
@AWAY
def test_algorithms_by_name_and_as_objects(rows, algorithm, title):
    X, y, who = rows
    model = FederatedRegressor(algorithm).fit(X, y, groups=who)
    assert type(model.algorithm_).card.title == title and model.score(X, y) > 0.8
    if not isinstance(algorithm, str):
        assert model.algorithm_ == algorithm  # its own step and local steps


def check_planned(model):
    assert model.plan_.choices and model.n_iter_ <= model.plan_.best.rounds
    assert model.history_.error[-1] <= model.target * model.history_.error[0]


def test_a_planned_algorithm(rows, monkeypatch):
    X, y, who = rows
    monkeypatch.setattr(choose, "LARGE", {True: 0, False: 0})  # without SCAFFOLD, whose forecasts take longest
    check_planned(FederatedRegressor("auto", target=1e-3).fit(X, y, groups=who))


@AWAY
@pytest.mark.slow
def test_planned_algorithms(rows):
    X, y, who = rows
    check_planned(FederatedRegressor("auto").fit(X, y, groups=who))
    check_planned(FederatedClassifier("auto").fit(X, y > 0, groups=who))
    with pytest.warns(PlanNotice, match="no plan, SCAFFOLD .*: it needs too many rounds"):
        FederatedRegressor("auto", rounds=1, target=1e-12).fit(X, y, groups=who)


@AWAY
def test_where_the_planner_refuses_it_is_said():
    X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), [0, 0, 1, 1]
    with pytest.warns(PlanNotice, match="SCAFFOLD with local_steps=3 is taken: the solution of this problem is not"):
        model = FederatedClassifier("auto", C=np.inf, local_steps=3, rounds=9).fit(X, y, groups=[0, 1, 0, 1])
    assert isinstance(model.algorithm_, fp.Scaffold) and model.plan_ is None


@AWAY
def test_batches_and_participants(rows):
    """Compiled: the bits of fp.run with the same seed."""
    X, y, who = rows
    options = {"batch": 4, "participation": 2, "rounds": 30, "tol": None, "precondition": False}
    model = FederatedRegressor(fp.Scaffold(step=0.05, local_steps=3), random_state=5, **options).fit(X, y, groups=who)
    run = fp.run(model.algorithm_, model.problem_, rounds=30, participation=2, seed=5)
    assert np.array_equal(model.history_.models, run.history[0])
    assert model.score(X, y) > 0.8 and not model.converged_
    again = FederatedRegressor(fp.Scaffold(step=0.05, local_steps=3), random_state=5, **options).fit(X, y, groups=who)
    assert np.array_equal(model.coef_, again.coef_)


def test_a_neural_network(rng):
    X, who = rng.uniform(-1, 1, size=(80, 2)), np.repeat([0, 1], 40)
    ring = (np.linalg.norm(X, axis=1) > 0.75).astype(int)  # no line tells it
    y = np.where(ring, "out", "in")
    model = FederatedClassifier(hidden=(16,), C=1e4, random_state=0).fit(X, y, groups=who)
    assert model.score(X, y) > 0.9 > 0.1 + FederatedClassifier().fit(X, y, groups=who).score(X, y)
    assert [W.shape for W, _ in model.model_] == [(2, 16), (16, 2)]
    assert all(a.dtype == np.float32 for layer in model.model_ for a in layer)
    assert model.predict_proba(X).sum(1) == pytest.approx(1.0) and model.decision_function(X).shape == (80,)
    losses = -np.log(model.predict_proba(X)[np.arange(80), ring * 1])
    assert model.agent_losses_ == {k: pytest.approx(losses[who == k].mean(), rel=1e-4) for k in (0, 1)}
    assert model.history_.loss[-1] < 0.5 * model.history_.loss[0] and model.history_.error is None
    assert model.forecast_ is None and "many minima" in model.forecast_reason_


@AWAY
@pytest.mark.slow
def test_a_neural_network_of_numbers(rng):
    X, who = rng.uniform(-1, 1, size=(80, 2)), np.repeat([0, 1], 40)
    y = 100 + 10 * X[:, 0] ** 2
    model = FederatedRegressor(hidden=8, random_state=0).fit(X, y, groups=who)
    assert model.score(X, y) > 0.8
    errors = (model.predict(X) - y) ** 2
    assert model.agent_losses_ == {k: pytest.approx(errors[who == k].mean(), rel=1e-3) for k in (0, 1)}


def test_steps_that_were_too_long_are_halved(rows, monkeypatch):
    X, y, who = rows
    monkeypatch.setattr(choose, "stable_step", lambda algorithm, task: 30.0)
    model = FederatedRegressor("gradient_exchange").fit(X, y, groups=who)
    assert model.algorithm_.step < 2 and model.score(X, y) > 0.8
    with pytest.raises(fp.Diverged):
        FederatedRegressor("gradient_exchange", step=30.0).fit(X, y, groups=who)


def test_forecasts_are_made_when_asked_for(rows):
    X, y, who = rows
    model = FederatedRegressor("gradient_exchange").fit(X, y, groups=who)
    assert model._forecast == "not asked"
    assert model.forecast_.bias == 0 and model.forecast_ is model.forecast_ and model.forecast_reason_ == ""


def test_attributes_come_with_a_fit(rows):
    for name in ("forecast_", "fairness_", "history_", "coef_"):
        assert not hasattr(FederatedRegressor(), name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithm": "scafold"}, "did you mean 'scaffold'"),
        ({"algorithm": 3}, "algorithm must be an Algorithm, a string or None; got 3"),
        ({"algorithm": "fedgd"}, "runs on a network: use NetworkRegressor"),
        ({"algorithm": fp.FedGD(step=0.1, coupling=1.0)}, "runs on a network"),
        ({"algorithm": "qfedavg"}, "q-FedAvg also needs q"),
        ({"rounds": 0}, "rounds must be a whole number"),
        ({"step": "long"}, 'step must be a number or "auto"'),
        ({"step": -1.0}, "step must be above 0"),
        ({"algorithm": "auto", "target": -1.0}, "target must be a number above 0"),
        ({"alpha": -1.0}, "alpha must be a number, at least 0"),
        ({"tol": "none"}, "tol must be a number"),
        ({"batch": 0}, "batch must be a whole number"),
        ({"participation": 9}, "9 participants of 4 agents"),
        ({"hidden": (0,)}, "hidden must be widths"),
    ],
)
def test_mistakes_in_parameters(rows, options, words):
    X, y, who = rows
    with pytest.raises(fp.FedpointError, match=words):
        FederatedRegressor(**options).fit(X, y, groups=who)


def test_mistakes_in_data(rows):
    X, y, who = rows
    with pytest.raises(fp.FedpointError, match=r"groups has shape \(39,\), but there are 40 rows"):
        FederatedRegressor().fit(X, y, groups=who[1:])
    holes = X.copy()
    holes[3, 1] = np.nan
    holes[5, 0] = np.inf
    with pytest.raises(fp.FedpointError, match=r"NaN at row 3, column 1 \(and at 1 more place\)"):
        FederatedRegressor().fit(holes, y, groups=who)
    with pytest.raises(fp.FedpointError, match="infinity at row 0, column 0"):
        FederatedRegressor().fit(X, y, groups=who).predict(holes[5:6])
    late = y.copy()
    late[7] = np.nan
    with pytest.raises(fp.FedpointError, match="Input y contains NaN at row 7"):
        FederatedRegressor().fit(X, late, groups=who)
    with pytest.raises(ValueError, match=r"inconsistent|different"):
        FederatedRegressor().fit(X, y[1:], groups=who)
    with pytest.raises(fp.FedpointError, match="one class only"):
        FederatedClassifier().fit(X, np.zeros(40), groups=who)
    words = np.array(["yes", "no"] * 20, dtype=object)
    words[6] = None
    with pytest.raises(fp.FedpointError, match="no label at row 6"):
        FederatedClassifier().fit(X, words, groups=who)
    for C in (0.0, -1.0, "strong", True):
        with pytest.raises(fp.FedpointError, match="C must be"):
            FederatedClassifier(C=C).fit(X, y > 0, groups=who)


def test_categories_by_name(rows):
    pandas = pytest.importorskip("pandas")
    X, y, who = rows
    frame = pandas.DataFrame({"x": X[:, 0], "year": np.arange(40) % 3})
    model = FederatedRegressor(categorical=["year"]).fit(frame, y, groups=who)
    assert model.feature_names_out_.tolist() == ["x", "year_0", "year_1", "year_2"]
    with pytest.raises(fp.FedpointError, match="no column 'month'"):
        FederatedRegressor(categorical=["month"]).fit(frame, y)
    with pytest.raises(fp.FedpointError, match="two columns 'x'"):
        FederatedRegressor().fit(frame.set_axis(["x", "x"], axis=1), y)


def test_separable_classes_without_a_penalty_are_fitted_as_far_as_rounds_go():
    X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), [0, 0, 1, 1]
    with pytest.warns(ConvergenceWarning, match="FedNewton has no solution to converge to.*Take a smaller C"):
        model = FederatedClassifier(C=np.inf, rounds=50).fit(X, y, groups=[0, 1, 0, 1])
    assert model.score(X, y) == 1.0 and model.history_.error is None  # there is no minimum to be away from
    assert model.distance_ is None
