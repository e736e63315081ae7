"""An exported estimator says of a file's rows what the estimator says of them."""

import csv
import json
import warnings

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.estimators import FederatedClassifier, FederatedRegressor, NetworkClassifier, NetworkRegressor
from fedpoint.store.folder import export_model, load_model

pandas = pytest.importorskip("pandas")
click_testing = pytest.importorskip("click.testing")

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # a few rounds will do


def cli(*arguments, status=0):
    from fedpoint.cli import main

    result = click_testing.CliRunner().invoke(main, [str(a) for a in arguments], prog_name="fedpoint")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result


@pytest.fixture
def table():
    """Columns of every kind that is taken, in an order that is not the model's; and rows to predict for."""
    rng = np.random.default_rng(0)
    n = 90
    frame = pandas.DataFrame(
        {
            "colour": rng.choice(["red", "green", "blue"], n),
            "income": 1e6 + 30 * rng.normal(size=n),
            "grade": pandas.Categorical(rng.choice(["a", "b"], n)),
            "owner": rng.random(n) > 0.5,
            "year": rng.choice([2019, 2020, 2021], n),
            "rate": rng.choice([0.5, 1.25], n),
            "age": pandas.array(rng.integers(20, 60, n), dtype="Int64"),
        }
    )
    score = (frame["income"] - 1e6) / 30 + (frame["colour"] == "red") - 0.1 * frame["age"].astype(float) + 4
    score = score + rng.normal(size=n)
    who = np.array(["ann", "bob", "cat"])[np.arange(n) % 3]
    return frame, score.to_numpy(), who


LABELS = {
    "words": lambda score: np.where(score > 0, "yes", "no"),
    "numbers": lambda score: np.digitize(score, [-1.0, 1.0]) * 10,
    "truths": lambda score: score > 0,
    "floats": lambda score: np.where(score > 0, 1.0, -2.0),
}
CATEGORICAL = ["colour", "grade", "year", "rate"]
OPTIONS = {"rounds": 20, "categorical": CATEGORICAL, "random_state": 0}


def same_rows(model, frame, tmp_path, **at):
    """The predictor in memory and read back, on frames, dictionaries, CSV and Parquet: one answer, and its rows."""
    model.export(tmp_path / "model.npz")
    frame.to_csv(tmp_path / "new.csv", index=False)
    sources = [frame, {name: frame[name].to_numpy() for name in frame}, tmp_path / "new.csv"]
    found = []
    for predictor in (model.predictor(), fp.load(tmp_path / "model.npz")):
        found += [predictor.predict(source, **at) for source in sources]
    for one in found[1:]:
        np.testing.assert_array_equal(one, found[0])
    return fp.load(tmp_path / "model.npz"), found[0]


@pytest.mark.parametrize("options", [{}, {"scale": True}, {"fit_intercept": False}, {"hidden": (5,)}])
def test_numbers(table, options, tmp_path):
    frame, y, who = table
    model = FederatedRegressor(**OPTIONS, **options).fit(frame[:60], y[:60], groups=who[:60])
    fp.export(model, tmp_path / "other.npz")
    assert load_model(tmp_path / "other.npz")[1]["problem"] == "FederatedRegressor"
    _, found = same_rows(model, frame[60:], tmp_path)
    np.testing.assert_allclose(found, model.predict(frame[60:]), rtol=1e-9, atol=1e-9)
    told = cli("predict", tmp_path / "model.npz", tmp_path / "new.csv", "--json").stdout
    np.testing.assert_allclose(json.loads(told)["predictions"], model.predict(frame[60:]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("options", [{"scale": True}, {"hidden": 4}])
def test_classes(table, kind, options, tmp_path):
    """Predictions, labels as they were, and probabilities; by the command with its columns and its score."""
    frame, score, who = table
    label = LABELS[kind](score)
    model = FederatedClassifier(**OPTIONS, **options).fit(frame[:60], label[:60], groups=who[:60])
    new = frame[60:]
    predictor, found = same_rows(model, new, tmp_path)
    np.testing.assert_array_equal(found, model.predict(new))
    assert found.dtype.kind == model.predict(new).dtype.kind
    np.testing.assert_allclose(predictor.predict_proba(new), model.predict_proba(new), rtol=1e-9, atol=1e-12)
    new.assign(truth=label[60:]).to_csv(tmp_path / "scored.csv", index=False)
    done = cli("predict", tmp_path / "model.npz", tmp_path / "scored.csv", "--target", "truth")
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert [row["prediction"] for row in rows] == [str(name) for name in model.predict(new).tolist()]
    for i, name in enumerate(model.classes_.tolist()):
        told = [float(row[f"probability of {name}"]) for row in rows]
        np.testing.assert_allclose(told, model.predict_proba(new)[:, i], rtol=1e-9, atol=1e-12)
    assert f"accuracy: {model.score(new, label[60:]):.6g}" in done.stderr


def test_parquet(table, tmp_path):
    pytest.importorskip("pyarrow")
    frame, y, who = table
    model = FederatedRegressor(**OPTIONS, scale=True).fit(frame, y, groups=who)
    model.export(tmp_path / "model.npz")
    frame.to_parquet(tmp_path / "new.parquet")
    found = fp.load(tmp_path / "model.npz").predict(tmp_path / "new.parquet")
    np.testing.assert_allclose(found, model.predict(frame), rtol=1e-9)


def test_categories_that_no_agent_had_are_zeros(table, tmp_path):
    frame, y, who = table
    model = FederatedRegressor(**OPTIONS).fit(frame, y, groups=who)
    new = frame.head(3).assign(colour=["red", "mauve", "blue"])
    model.export(tmp_path / "model.npz")
    with pytest.warns(UserWarning, match="1 cell of unknown categories: counted as none of those that it knows"):
        found = fp.load(tmp_path / "model.npz").predict(new)
    np.testing.assert_allclose(found, model.predict(new), rtol=1e-12)
    new.to_csv(tmp_path / "new.csv", index=False)
    told = cli("predict", tmp_path / "model.npz", tmp_path / "new.csv", "--json")
    assert "1 cell of unknown categories" in told.stderr
    np.testing.assert_allclose(json.loads(told.stdout)["predictions"], found)


def test_arrays_have_no_names(tmp_path):
    """Their columns are found by their order, and scaled as they were: far from zero too."""
    rng = np.random.default_rng(0)
    X, who = rng.normal(size=(60, 3)) * [1, 1e-3, 1] + [0, 1e6, 0], np.arange(60) % 3
    y = X @ [1.0, 100.0, 0.0]
    model = FederatedRegressor(scale=True).fit(X, y, groups=who)
    model.export(tmp_path / "model.npz")
    predictor = fp.load(tmp_path / "model.npz")
    np.testing.assert_allclose(predictor.predict(X), model.predict(X), rtol=1e-13)
    pandas.DataFrame(X).to_csv(tmp_path / "new.csv", index=False, float_format="%.17g")
    np.testing.assert_allclose(predictor.predict(tmp_path / "new.csv"), model.predict(X), rtol=1e-13)
    told = f"<Model of FederatedRegressor: a number by 3 features; fednewton, {model.n_iter_} rounds>"
    assert repr(predictor) == told


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_a_model_for_each_agent(table, kind, tmp_path):
    """Rows by their agent's model; those of others, or of nobody, by the mean model, which is said."""
    frame, y, who = table
    make, target = (NetworkRegressor, y) if kind == "numbers" else (NetworkClassifier, np.digitize(y, [-1.0, 1.0]))
    ring = fp.Network.from_edges([("ann", "bob"), ("bob", "cat")])
    model = make(ring, coupling=0.2, categorical=CATEGORICAL).fit(frame, target, groups=who)
    rows = frame.assign(bank=np.where(np.arange(90) == 7, "dan", who))
    groups = rows.pop("bank").to_numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fp.estimators.MeanModelWarning)
        own, mean = model.predict(frame, groups=groups), model.predict(frame)
    assert not np.array_equal(own, mean)
    predictor, found = same_rows(model, frame, tmp_path, groups=groups)
    np.testing.assert_allclose(found, own, rtol=1e-9)
    np.testing.assert_allclose(predictor.predict(frame), mean, rtol=1e-9)
    assert predictor.agents == ["ann", "bob", "cat"] and "of 3 agents each" in repr(predictor)
    frame.assign(bank=groups).to_csv(tmp_path / "new.csv", index=False)
    told = cli("predict", tmp_path / "model.npz", tmp_path / "new.csv", "--agent", "bank", "--json")
    np.testing.assert_allclose(json.loads(told.stdout)["predictions"], own, rtol=1e-9)
    assert "dan: unknown agents, for which the mean model predicts" in told.stderr
    told = cli("predict", tmp_path / "model.npz", tmp_path / "new.csv", "--json")
    np.testing.assert_allclose(json.loads(told.stdout)["predictions"], mean, rtol=1e-9)
    assert "no --agent: predicting with the mean of the models of 3 agents" in told.stderr
    wrong = cli("predict", tmp_path / "model.npz", tmp_path / "new.csv", "--agent", "banc", status=2)
    assert "has no column 'banc': did you mean 'bank'?" in wrong.stderr


def test_an_agent_column_is_for_models_of_agents(table, tmp_path):
    frame, y, who = table
    FederatedRegressor(**OPTIONS).fit(frame, y, groups=who).export(tmp_path / "model.npz")
    frame.assign(bank=who).to_csv(tmp_path / "new.csv", index=False)
    assert (
        "holds one model for all agents: leave the option out"
        in cli("predict", tmp_path / "model.npz", tmp_path / "new.csv", "--agent", "bank", status=2).stderr
    )


def test_what_cannot_be_exported(table, tmp_path):
    from sklearn.exceptions import NotFittedError
    from sklearn.linear_model import Ridge

    with pytest.raises(NotFittedError):
        fp.export(FederatedRegressor(), tmp_path / "model.npz")
    for other in (Ridge(), FederatedRegressor, 3, None):
        with pytest.raises(fp.FedpointError, match=r"fp\.export takes a run, a fitted estimator"):
            fp.export(other, tmp_path / "model.npz")
    assert not (tmp_path / "model.npz").exists()


def test_files_that_are_wrong(table, tmp_path):
    """Damaged ones by their hash, and others that somebody wrote by what does not go together."""
    frame, y, who = table
    path = tmp_path / "model.npz"
    FederatedRegressor(**OPTIONS, scale=True).fit(frame, y, groups=who).export(path)
    frame.to_csv(tmp_path / "new.csv", index=False)
    whole = path.read_bytes()
    for at in (len(whole) // 2, len(whole) - 300):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert "damaged" in cli("predict", path, tmp_path / "new.csv", status=2).stderr
    path.write_bytes(whole)
    assert b"pickle" not in whole
    arrays, manifest = load_model(path)

    def refused(arrays, manifest):
        export_model(path, arrays, manifest)
        return cli("predict", path, tmp_path / "new.csv", status=2).stderr

    assert "model has shape (3,), which does not fit" in refused(arrays | {"model": np.zeros(3)}, manifest)
    assert "width has shape (2,), which does not fit" in refused(arrays | {"width": np.ones(2)}, manifest)
    assert "width is missing" in refused({k: v for k, v in arrays.items() if k != "width"}, manifest)
    assert "weights0 is missing" in refused(arrays, manifest | {"layers": 2})
    assert "models is missing" in refused(arrays, manifest | {"agents": ["a"]})
    assert "which has no predictions" in refused({k: v for k, v in arrays.items() if k != "model"}, manifest)
    odd = [{**feature, "every": "yes"} for feature in manifest["columns"]]
    assert "is not what an export writes" in refused(arrays, manifest | {"columns": odd})


def test_tables_that_are_wrong(table, tmp_path):
    frame, y, who = table
    FederatedRegressor(**OPTIONS).fit(frame, y, groups=who).export(tmp_path / "model.npz")

    def refused(frame):
        frame.to_csv(tmp_path / "new.csv", index=False)
        return cli("predict", tmp_path / "model.npz", tmp_path / "new.csv", status=2).stderr

    assert "has no column 'income': did you mean 'incme'?" in refused(frame.rename(columns={"income": "incme"}))
    assert "row 1, column 'income' is 'much', not a number" in refused(frame.assign(income="much"))
    assert "row 3, column 'age' is empty" in refused(frame.assign(age=frame["age"].where(frame.index != 2)))
    model = fp.load(tmp_path / "model.npz")
    with pytest.raises(fp.FedpointError, match="was learnt from a table and finds its columns by their names"):
        model.predict(np.zeros((2, 7)))
