"""Federated scaling and encoding equal their pooled counterparts."""

import numpy as np
import pytest
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import fedpoint as fp
from fedpoint.data.preprocess import ColumnMoments, federated_moments, merge
from fedpoint.estimators import FederatedEncoder, FederatedScaler

GROUPS = np.repeat([2, 0, 1, 3], [50, 3, 30, 1])  # one agent has a single row


@pytest.fixture
def X(rng):
    return rng.normal(size=(len(GROUPS), 4)) * [1.0, 1e-3, 1e4, 2.0] + [0.0, 5.0, -1e3, 1e6]


def test_scaler_equals_the_pooled_one(X):
    ours, theirs = FederatedScaler().fit(X, groups=GROUPS), StandardScaler().fit(X)
    for name in ("mean_", "var_", "scale_"):
        assert np.allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-12, atol=0)
    rounding = 1e-12 + 4e-16 * np.abs(X).max(0) / ours.scale_  # 1e6/2 is known to 1e-10 only
    assert (np.abs(ours.transform(X) - theirs.transform(X)) <= rounding).all()
    assert np.allclose(ours.inverse_transform(ours.transform(X)), X, rtol=1e-12)
    assert ours.n_samples_seen_ == len(X)


def test_scaler_does_not_depend_on_who_has_the_rows(X, rng):
    whole = FederatedScaler().fit(X)
    for agents in (2, 10, len(X)):
        split = FederatedScaler().fit(X, groups=rng.integers(0, agents, len(X)))
        assert np.allclose(split.mean_, whole.mean_, rtol=1e-14, atol=1e-14)
        assert np.allclose(split.var_, whole.var_, rtol=1e-13, atol=0)


def test_variance_survives_a_large_offset(rng):
    """Where a difference of sums of squares has no digit left: 1e8 + noise, against exact integers."""
    noise = rng.integers(-3, 4, 1000)
    X = 1e8 + noise[:, None].astype(float)
    found = federated_moments(X, rng.integers(0, 40, 1000))
    exact = (1000 * int((noise**2).sum()) - int(noise.sum()) ** 2) / 1000**2
    assert found.variance[0] == pytest.approx(exact, rel=1e-12)
    naive = (X**2).mean() - X.mean() ** 2
    assert abs(naive - exact) > 0.01 * exact  # the test would catch it


def test_merging_is_chans_formula():
    a, b = ColumnMoments.of([[1.0], [2.0], [3.0]]), ColumnMoments.of([[10.0], [20.0]])
    both = a + b
    assert (both.count, both.mean[0]) == (5, pytest.approx(7.2))
    assert both.square[0] == pytest.approx(sum((x - 7.2) ** 2 for x in (1, 2, 3, 10, 20)))
    assert merge([a, b, a]).count == 8


def test_constant_columns_stay(rng):
    X = np.column_stack([np.full(30, 0.1), np.zeros(30), rng.normal(size=30)])
    ours = FederatedScaler().fit(X, groups=np.arange(30) % 4)
    theirs = StandardScaler().fit(X)
    assert np.array_equal(ours.scale_[:2], [1.0, 1.0]) and np.array_equal(theirs.scale_[:2], [1.0, 1.0])
    assert np.abs(ours.transform(X)[:, :2]).max() < 1e-15


def test_a_column_constant_at_each_agent_is_not_constant():
    X = np.repeat([[1.0], [3.0]], 5, axis=0)
    assert (
        FederatedScaler().fit(X, groups=np.repeat(["a", "b"], 5)).scale_[0] == 1.0 == StandardScaler().fit(X).scale_[0]
    )
    assert FederatedScaler().fit(2 * X, groups=np.repeat(["a", "b"], 5)).scale_[0] == 2.0


def test_scaler_options(X):
    for options in ({"with_mean": False}, {"with_std": False}):
        ours, theirs = FederatedScaler(**options).fit(X, groups=GROUPS), StandardScaler(**options).fit(X)
        assert np.allclose(ours.transform(X), theirs.transform(X), rtol=1e-9, atol=1e-9)


def test_encoder_equals_the_pooled_one(rng):
    X = np.column_stack([rng.choice(["red", "green", "blue"], 60), rng.choice(["x", "y"], 60)]).astype(object)
    X[7, 0] = "only here"
    groups = np.arange(60) % 6
    ours, theirs = FederatedEncoder().fit(X, groups=groups), OneHotEncoder(sparse_output=False).fit(X)
    assert all(np.array_equal(a, b) for a, b in zip(ours.categories_, theirs.categories_, strict=True))
    assert "only here" in ours.categories_[0]
    assert np.array_equal(ours.transform(X), theirs.transform(X))
    assert list(ours.get_feature_names_out()) == list(theirs.get_feature_names_out())
    first = OneHotEncoder(sparse_output=False, drop="first").fit(X)
    assert np.array_equal(FederatedEncoder(drop="first").fit(X, groups=groups).transform(X), first.transform(X))


def test_encoder_and_categories_that_nobody_had():
    encoder = FederatedEncoder().fit([["a"], ["b"]], groups=[0, 1])
    with pytest.raises(fp.FedpointError, match=r"column x0, row 1: 'c' is not a category"):
        encoder.transform([["a"], ["c"]])
    quiet = FederatedEncoder(handle_unknown="ignore").fit([["a"], ["b"]])
    assert np.array_equal(quiet.transform([["c"], ["b"]]), [[0.0, 0.0], [0.0, 1.0]])


def test_encoder_says_where_a_value_is_missing_or_of_another_kind():
    with pytest.raises(fp.FedpointError, match="column x1 has no value at row 1"):
        FederatedEncoder().fit([["a", "u"], ["b", None]])
    with pytest.raises(fp.FedpointError, match="different kinds"):
        FederatedEncoder().fit([["a"], [1]])
    with pytest.raises(fp.FedpointError, match="handle_unknown"):
        FederatedEncoder(handle_unknown="maybe").fit([["a"]])
    with pytest.raises(fp.FedpointError, match="drop"):
        FederatedEncoder(drop="last").fit([["a"]])


def test_groups_are_checked():
    X = np.ones((3, 1))
    with pytest.raises(fp.FedpointError, match=r"shape \(2,\), but there are 3 rows"):
        FederatedScaler().fit(X, groups=[0, 1])
    with pytest.raises(fp.FedpointError, match="groups is missing at row 1"):
        FederatedScaler().fit(X, groups=["a", None, "b"])
    with pytest.raises(fp.FedpointError, match="groups is missing at row 2"):
        FederatedScaler().fit(X, groups=[0.0, 1.0, np.nan])


def test_pandas_in_and_out(X):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcd"))
    scaler = FederatedScaler().set_output(transform="pandas").fit(frame, groups=GROUPS)
    out = scaler.transform(frame)
    assert list(out.columns) == list("abcd") and np.allclose(out, StandardScaler().fit_transform(X), atol=1e-9)
    words = pandas.DataFrame({"colour": ["red", "blue", "red"], "size": ["s", "s", "l"]})
    hot = FederatedEncoder().set_output(transform="pandas").fit(words, groups=[0, 0, 1]).transform(words)
    assert list(hot.columns) == ["colour_blue", "colour_red", "size_l", "size_s"]
    with pytest.raises(ValueError, match="feature names"):
        scaler.transform(frame.rename(columns={"a": "z"}))
