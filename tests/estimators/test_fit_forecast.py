"""What a fit tells of its further rounds: what `fp.forecast` says, for no more work than the fit took."""

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.estimators import FederatedClassifier, FederatedRegressor, small
from fedpoint.estimators.forecast import LONGER, RANDOM, FitForecaster

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # of methods with a bias

METHODS = ["scaffold", "scaffnew", "fedavg", "fedprox", "gradient_exchange"]


@pytest.fixture
def rows(rng):
    who = rng.choice(4, 120, p=[0.1, 0.2, 0.3, 0.4])
    X = rng.normal(size=(120, 3)) * (1.0 + who[:, None] * [0.0, 0.5, 1.0])
    y = X @ [1.0, -1.0, 0.5] + who + rng.normal(size=120)
    return X, y, np.digitize(y, [-0.5, 1.5]), who


def fitted(rows, method, classes, **options):
    X, y, label, who = rows
    if not classes:
        return FederatedRegressor(method, **options).fit(X, y, groups=who)
    return FederatedClassifier(method, **options).fit(X, label if classes == 3 else label > 0, groups=who)


@pytest.mark.parametrize(
    ("method", "classes"),
    [("scaffold", 0), ("scaffnew", 2), ("fedavg", 3), ("fedprox", 0), ("gradient_exchange", 2), ("fedavg", 0)],
)
def test_it_is_what_the_compiled_forecast_says(rows, method, classes):
    model = fitted(rows, method, classes, local_steps=5)
    told, full = model.forecast_, fp.forecast(model.algorithm_, model.problem_)
    assert told.left_out == {} and model.forecast_ is told
    assert np.allclose(told.limit, full.limit, atol=1e-7)
    assert told.bias == pytest.approx(full.bias, rel=1e-5, abs=1e-6)
    assert told.rate == pytest.approx(full.rate, rel=1e-7)
    assert told.floor == pytest.approx(full.floor, rel=1e-5, abs=1e-12)
    assert (told.bias > 1e-3) == (method in ("fedavg", "fedprox"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("classes", [0, 3])
def test_it_does_not_work_more_than_the_fit(rows, method, classes):
    """Counted in multiplications and calls, by one measure, from one round on; what is left out has its reason."""
    for rounds in (1, 5, 200):
        model = fitted(rows, method, classes, rounds=rounds, tol=None)
        told = model.forecast_
        assert 0 <= told.work <= told.fit_work
        assert told.fit_work == pytest.approx(small.work_of(model.algorithm_, model.problem_, rounds), abs=0.004)
        for name in ("limit", "bias", "rate", "floor"):
            assert (vars(told)[name] is None) == (name in told.left_out)
    assert told.left_out == {} and told.work > 0


def test_what_would_take_longer_is_left_out(rows):
    """Large models in few rounds: and it is not begun."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 120)), rng.integers(0, 2, 300)
    model = FederatedClassifier("scaffold", rounds=2).fit(X, y, groups=np.arange(300) % 5)
    told = model.forecast_
    assert set(told.left_out) == {"limit", "rate"} and told.bias == told.floor == 0.0  # SCAFFOLD has no bias anywhere
    assert "rate        not known" in str(told) and "fp.forecast(model.algorithm_" in str(told)
    average = FederatedClassifier("fedavg", rounds=2).fit(X, y, groups=np.arange(300) % 5).forecast_
    assert average.left_out == dict.fromkeys(("limit", "bias", "rate", "floor"), LONGER)


def test_noise_is_left_out(rows):
    model = fitted(rows, "scaffold", 0, batch=4, rounds=30, random_state=0)
    told = model.forecast_
    assert told.left_out == {"floor": RANDOM} and told.bias == 0 and 0 < told.rate < 1
    few = fitted(rows, "scaffold", 0, participation=2, rounds=30, random_state=0).forecast_
    assert set(few.left_out) == {"rate", "floor"} and np.allclose(few.limit, told.limit, atol=1e-9)


def test_who_is_heard_otherwise_than_by_weight_ends_elsewhere(rows):
    """A plain mean of unequal agents: nothing is promised of it."""
    model = fitted(rows, "fedavg", 0, participation=fp.Uniform(2, plain=True), rounds=30, random_state=0)
    assert set(model.forecast_.left_out) == {"limit", "bias", "rate", "floor"}
    assert model.forecast_.left_out["limit"] == "agents are not heard in proportion to their weights"


def test_other_methods_have_none_and_say_where_it_is(rows):
    model = fitted(rows, fp.FedNova(step=0.01, local_steps=2), 0, rounds=5)
    assert model.forecast_ is None
    assert "fp.forecast(model.algorithm_, model.problem_) computes it" in model.forecast_reason_


def test_it_is_made_when_asked_for_and_once(rows, monkeypatch):
    made = []
    told = FitForecaster.told
    monkeypatch.setattr(FitForecaster, "told", lambda self: made.append(1) or told(self))
    model = fitted(rows, "scaffold", 0)
    assert made == []
    assert model.forecast_.bias == 0 and "the pooled solution, w*" in str(model.forecast_) and made == [1]


def test_steps_that_grow_have_no_floor(rows):
    """A step that just diverges: the limit is there, and rounds lead away from it."""
    model = fitted(rows, "gradient_exchange", 0)
    whole = model.problem_.smoothness()[0]
    model.algorithm_ = fp.GradientExchange(step=2.1 / whole)
    assert model.forecast_.rate == pytest.approx(1.1) and model.forecast_.floor == np.inf
