"""scikit-learn's contract: its own checks, clone, pipelines, searches with groups, data frames."""

import pickle

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedpoint as fp
from fedpoint.estimators import (
    FederatedClassifier,
    FederatedEncoder,
    FederatedGLM,
    FederatedRegressor,
    FederatedScaler,
    MeanModelWarning,
    NetworkClassifier,
    NetworkRegressor,
    OneAgentWarning,
)

# All checks of all estimators, none left out: small fits do not compile. The one that scikit-learn skips by itself
# waits for SCIPY_ARRAY_API=1 in the environment, and passes with it.
ALL = [FederatedRegressor(), FederatedClassifier(), NetworkRegressor(), NetworkClassifier()]
ALL += [FederatedScaler(), FederatedEncoder(), FederatedGLM()]


# The checks fit without groups, and some on data that default rounds do not settle.
EXPECTED = pytest.mark.filterwarnings(
    "ignore::fedpoint.estimators.OneAgentWarning", "ignore::sklearn.exceptions.ConvergenceWarning"
)


@EXPECTED
@parametrize_with_checks(ALL)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@EXPECTED
@pytest.mark.slow
@parametrize_with_checks([FederatedGLM("poisson")])
def test_scikit_learns_checks_of_counts(estimator, check):
    check(estimator)


@EXPECTED
@pytest.mark.slow
@parametrize_with_checks(
    [FederatedRegressor(hidden=(8,)), FederatedClassifier(hidden=(8,))],
    expected_failed_checks=lambda estimator: {
        "check_sample_weight_equivalence_on_dense_data": "to 1e-7, which single precision does not have"
    },
)
def test_scikit_learns_checks_of_neural_networks(estimator, check):
    check(estimator)


@pytest.fixture
def banks(rng):
    """Rows of eight agents, a number and two classes to tell."""
    X, who = rng.normal(size=(160, 3)), np.repeat(np.arange(8), 20)
    y = X @ [1.0, -2.0, 0.5] + 0.3 * rng.normal(size=160)
    return X, y, (y > 0).astype(int), who


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_clone_keeps_parameters_and_forgets_fits(banks):
    X, y, _, who = banks
    model = FederatedRegressor(fp.FedAvg(step=0.1, local_steps=2, normalise=True), alpha=3.0, random_state=7).fit(
        X, y, groups=who
    )
    copy = clone(model)
    assert copy.alpha == 3.0 and copy.algorithm == model.algorithm and not hasattr(copy, "coef_")
    assert set(copy.get_params()) == set(model.get_params())


def test_groups_go_through_a_pipeline(banks, routing):
    X, y, _, who = banks
    pipe = make_pipeline(
        FederatedScaler().set_fit_request(groups=True), FederatedRegressor().set_fit_request(groups=True)
    ).fit(X, y, groups=who)
    assert len(pipe[-1].agents_) == 8 and pipe.score(X, y) > 0.9
    direct = FederatedRegressor(scale=True).fit(X, y, groups=who)
    assert np.allclose(pipe[-1].coef_, direct.coef_, atol=1e-7)


def agents_of(found):
    """How many agents each of the fits of a cross-validation had."""
    return [len(model.agents_) for model in found["estimator"]]


def test_groups_are_not_lost_silently(banks):
    """groups= of cross_validate goes to the splitter alone: the fits are pooled, and say so. As the warning advises,
    params or routing make them federated; routing without a request is refused."""
    X, y, _, who = banks
    options = {"cv": GroupKFold(4), "return_estimator": True}
    with pytest.warns(OneAgentWarning, match="hands them to the splitter alone"):
        assert agents_of(cross_validate(FederatedRegressor(), X, y, groups=who, **options)) == [1] * 4
    given = {"groups": who, "params": {"groups": who}}
    assert agents_of(cross_validate(FederatedRegressor(), X, y, **given, **options)) == [6] * 4
    with pytest.warns(OneAgentWarning, match="Searches and pipelines"):
        search = GridSearchCV(FederatedRegressor(), {"alpha": [1.0]}, cv=GroupKFold(4)).fit(X, y, groups=who)
    assert len(search.best_estimator_.agents_) == 1
    with sklearn.config_context(enable_metadata_routing=True):
        with pytest.raises(sklearn.exceptions.UnsetMetadataPassedError):
            cross_validate(FederatedRegressor(), X, y, params={"groups": who}, **options)
        asked = FederatedRegressor().set_fit_request(groups=True)
        assert agents_of(cross_validate(asked, X, y, params={"groups": who}, **options)) == [6] * 4
        folds = {**options, "cv": KFold(4, shuffle=True, random_state=0)}
        assert agents_of(cross_validate(asked, X, y, params={"groups": who}, **folds)) == [8] * 4


def test_weights_are_routed_beside_groups(banks, routing):
    X, _, label, who = banks
    model = FederatedClassifier().set_fit_request(groups=True, sample_weight=True).set_score_request(sample_weight=True)
    given = {"groups": who, "sample_weight": 1.0 + (who == 3)}
    found = cross_validate(
        model, X, label, params=given, cv=KFold(3, shuffle=True, random_state=0), return_estimator=True
    )
    assert agents_of(found) == [8] * 3 and found["estimator"][0].problem_.weights[3] > 1.5 / 8


def test_cross_validation_by_groups(banks, routing):
    X, y, label, who = banks
    for model, target in ((FederatedRegressor(), y), (FederatedClassifier(), label)):
        asked = model.set_fit_request(groups=True)
        scores = cross_val_score(asked, X, target, params={"groups": who}, cv=GroupKFold(4))
        assert len(scores) == 4 and scores.min() > 0.8


def test_grid_search_by_groups(banks, routing):
    X, y, _, who = banks
    model = FederatedRegressor(rounds=100).set_fit_request(groups=True)
    search = GridSearchCV(model, {"alpha": [0.1, 1e4]}, cv=GroupKFold(4)).fit(X, y, groups=who)
    assert search.best_params_ == {"alpha": 0.1} and len(search.best_estimator_.agents_) == 8


def test_grid_search_of_a_network_asks_for_groups_in_score(banks, routing):
    """Folds within agents: then every agent of the test rows is known, and no mean model is needed (or warned of)."""
    X, y, _, who = banks
    net = fp.Network.ring(8)
    model = NetworkRegressor(net).set_fit_request(groups=True).set_score_request(groups=True)
    folds = KFold(3, shuffle=True, random_state=0)
    search = GridSearchCV(model, {"coupling": [1e-3, 1e3]}, cv=folds).fit(X, y, groups=who)
    assert set(search.cv_results_["param_coupling"]) == {1e-3, 1e3}


def test_without_routing_groups_are_an_argument_of_fit(banks):
    X, y, _, who = banks
    assert len(FederatedRegressor().fit(X, y, groups=who).agents_) == 8
    with pytest.warns(OneAgentWarning, match=r"all 160 rows belong to one agent.*set_fit_request\(groups=True\)"):
        assert FederatedRegressor().fit(X, y).agents_.tolist() == [0]


def test_data_frames(banks):
    pandas = pytest.importorskip("pandas")
    X, _, label, who = banks
    frame = pandas.DataFrame(X, columns=["income", "debt", "age"])
    model = FederatedClassifier().fit(frame, pandas.Series(label), groups=pandas.Series(who).map("bank {}".format))
    assert model.feature_names_in_.tolist() == ["income", "debt", "age"] and model.n_features_in_ == 3
    assert model.agents_[0] == "bank 0" and model.classes_.tolist() == [0, 1]
    assert np.array_equal(model.predict(frame), model.predict(frame[["income", "debt", "age"]]))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["debt", "income", "age"]])
    with pytest.warns(UserWarning, match="valid feature names"):
        assert np.array_equal(model.predict(X), model.predict(frame))


def test_categories_of_a_data_frame_are_encoded(banks, rng):
    pandas = pytest.importorskip("pandas")
    X, y, _, who = banks
    colour = np.array(["red", "green", "blue"])[rng.integers(0, 3, 160)]
    colour[who == 3] = "violet"  # at one agent only
    frame = pandas.DataFrame({"a": X[:, 0], "colour": pandas.Categorical(colour), "b": X[:, 1], "word": colour})
    y = y + 2.0 * (colour == "red")
    model = FederatedRegressor(rounds=1500, tol=1e-11).fit(frame, y, groups=who)
    hot = OneHotEncoder(sparse_output=False).fit_transform(frame[["colour", "word"]])
    pooled = sklearn.linear_model.Ridge(tol=1e-12).fit(np.column_stack([frame[["a", "b"]], hot]), y)
    assert np.allclose(model.coef_, pooled.coef_, atol=1e-6)
    assert model.feature_names_out_.tolist()[:4] == ["a", "b", "colour_blue", "colour_green"]
    new = frame.head(2).assign(word=["unheard", "red"])
    assert np.isfinite(model.predict(new)).all()  # zeros for what no agent had
    with pytest.raises(fp.FedpointError, match="data frame with categories"):
        model.predict(np.zeros((2, 4)))


def test_nullable_numbers_and_times(banks):
    pandas = pytest.importorskip("pandas")
    whole = pandas.DataFrame({"n": pandas.array([1, 2, 3, 4], dtype="Int64"), "flag": [True, False, True, True]})
    y, who = [1.0, 2.0, 3.0, 4.0], ["a", "a", "b", "b"]
    assert FederatedRegressor().fit(whole, y, groups=who).n_features_in_ == 2
    whole.loc[2, "n"] = pandas.NA
    with pytest.raises(fp.FedpointError, match="NaN at row 2, column n"):
        FederatedRegressor().fit(whole, y, groups=who)
    times = pandas.DataFrame({"when": pandas.to_datetime(["2020-01-01"] * 4)})
    written = pandas.DataFrame({"when": ["2020-01-01", "2020-02-01", None, "2020-03-01"], "n": [1.0, 2.0, 3.0, 4.0]})
    for table in (times, written):  # not a dummy for each day
        with pytest.raises(fp.FedpointError, match="column when holds dates or times"):
            FederatedRegressor().fit(table, y, groups=who)
    named = FederatedRegressor(categorical=["when"]).fit(written.fillna({"when": "never"}), y, groups=who)
    assert list(named.feature_names_out_) == [
        "n",
        *(f"when_{day}" for day in sorted({*written["when"][[0, 1, 3]], "never"})),
    ]


def test_a_saved_model_predicts_and_holds_no_rows(banks):
    X, y, label, who = banks
    for model, target in ((FederatedClassifier(), label), (NetworkRegressor(coupling=0.1, neighbours=2), y)):
        model.fit(X, target, groups=who)
        again = pickle.loads(pickle.dumps(model))
        assert again.problem_ is None
        if isinstance(model, FederatedClassifier):
            assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
            assert np.array_equal(again.history_.loss, model.history_.loss)
            assert again.forecast_ is None and "saved" in again.forecast_reason_
        else:
            assert np.array_equal(again.predict(X, who), model.predict(X, who))
        assert again.fairness_ == model.fairness_


def test_the_library_knows_where_they_are():
    assert fp.estimators.FederatedRegressor is FederatedRegressor


def test_warnings_of_their_own():
    assert issubclass(MeanModelWarning, UserWarning) and issubclass(OneAgentWarning, UserWarning)
