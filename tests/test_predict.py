"""Do runs, files and the command say the same of new rows?"""

import sys

import numpy as np
import pytest

import fedpoint as fp

rng = np.random.default_rng(3)
N = 60
X = rng.normal(size=(N, 2))
GROUPS = np.array(list("abc"))[np.arange(N) % 3]
LABELS = np.array(["cat", "dog", "owl"])[np.argmax(X @ [[1.0, 0, -1], [0, 2, 0]] + [0.0, 0.5, 0], axis=1)]
METHOD = fp.GradientExchange(step=0.3)
NEW = rng.normal(size=(7, 2))


def softmax(logits):
    shares = np.exp(logits - logits.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


@pytest.fixture(scope="module")
def linear():
    return fp.run(METHOD, fp.problems.LeastSquares(X, X @ [2.0, -1.0], mean=True, groups=GROUPS), rounds=20, repeats=2)


@pytest.fixture(scope="module")
def classes():
    return fp.run(METHOD, fp.problems.Logistic(X, LABELS, GROUPS, intercept=True), rounds=50)


def test_numbers_are_rows_times_the_model(linear):
    np.testing.assert_allclose(linear.predict(NEW), NEW @ linear.model[0])
    np.testing.assert_allclose(linear.predict(NEW.tolist(), repeat=1), NEW @ linear.model[1])
    np.testing.assert_allclose(linear.predict(NEW, groups=list("abcabca")), NEW @ linear.model[0])  # one model for all
    np.testing.assert_allclose(linear.predict({"first": NEW[:, 0], "second": NEW[:, 1]}), NEW @ linear.model[0])


def test_classes_are_the_likeliest(classes):
    expected = softmax(np.column_stack([NEW, np.ones(7)]) @ classes.model[0].T)
    np.testing.assert_allclose(classes.predict_proba(NEW), expected)
    np.testing.assert_array_equal(classes.predict(NEW), np.array(["cat", "dog", "owl"])[expected.argmax(1)])
    accuracy = (classes.predict(X) == LABELS).mean()
    assert accuracy == classes.evaluate(X, LABELS)["accuracy"] > 0.8


def test_two_classes():
    labels = np.where(X[:, 0] > 0, 5, 3)
    run = fp.run(METHOD, fp.problems.Logistic(X, labels, GROUPS), rounds=30)
    np.testing.assert_allclose(run.predict_proba(NEW)[:, 1], 1 / (1 + np.exp(-NEW @ run.model[0])))
    np.testing.assert_array_equal(run.predict(NEW), np.where(NEW @ run.model[0] > 0, 5, 3))


def test_a_file_says_what_the_run_says(linear, classes, tmp_path):
    for run in (linear, classes):
        fp.export(run, tmp_path / "model.npz")
        model = fp.load(tmp_path / "model.npz")
        np.testing.assert_array_equal(model.predict(NEW), run.predict(NEW))
    np.testing.assert_array_equal(model.predict_proba(NEW), classes.predict_proba(NEW))
    assert model.classes.tolist() == ["cat", "dog", "owl"]
    assert repr(model) == "<Model of Logistic: one of 3 classes by 2 features; gradient_exchange, 50 rounds>"
    linear.export(tmp_path / "second.npz", repeat=1)
    np.testing.assert_array_equal(fp.load(tmp_path / "second.npz").predict(NEW), linear.predict(NEW, repeat=1))


def test_a_folder_without_its_data_predicts(tmp_path):
    problem = fp.problems.LeastSquares(X, X @ [2.0, -1.0], mean=True, groups=GROUPS)
    run = fp.run(METHOD, problem, rounds=5, folder=tmp_path / "run")
    np.testing.assert_array_equal(fp.load(tmp_path / "run").predict(NEW), run.predict(NEW))
    np.testing.assert_array_equal(fp.load(tmp_path / "run" / "model.npz").predict(NEW), run.predict(NEW))


# Tables: the model takes them as they were read.

COLUMNS = {
    "income": np.round(np.abs(X[:, 0]) * 1000, 1),
    "housing": np.where(X[:, 1] > 0, "own", "rent"),
    "default": np.where(X[:, 0] + X[:, 1] > 0, "yes", "no"),
    "bank": GROUPS,
}
RAW = {"housing": ["rent", "own", "own"], "income": [100.0, 2500.5, 700.0], "other": ["x", "y", "z"]}


@pytest.fixture(scope="module")
def loans():
    table = fp.data.read_table(COLUMNS, "default", "bank", held_out=0.2)
    return table, fp.run(METHOD, table.problem(), rounds=50)


def by_hand(table, run):
    """Encoded and scaled as the training rows were."""
    income = table.recipe[0]
    assert income.column == "income" and table.recipe[1].categories == ["own", "rent"]
    rows = [
        [(v - income.mean) / income.scale, h == "rent", 1] for v, h in zip(RAW["income"], RAW["housing"], strict=True)
    ]
    return np.array(rows, float) @ run.model[0]


def test_a_table_is_encoded_as_it_learnt(loans, tmp_path):
    table, run = loans
    odds = by_hand(table, run)
    np.testing.assert_allclose(run.predict_proba(RAW)[:, 1], 1 / (1 + np.exp(-odds)))
    lines = ["housing,income,other", *(",".join(map(str, row)) for row in zip(*RAW.values(), strict=True))]
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    run.export(tmp_path / "model.npz")
    model = fp.load(tmp_path / "model.npz")
    for source in (RAW, tmp_path / "new.csv", str(tmp_path / "new.csv")):
        assert model.predict(source).tolist() == np.where(odds > 0, "yes", "no").tolist()
    assert repr(model) == "<Model of Logistic: one of 2 classes by income, housing; gradient_exchange, 50 rounds>"


def test_a_data_frame_is_a_table(loans):
    pandas = pytest.importorskip("pandas")
    np.testing.assert_array_equal(loans[1].predict(pandas.DataFrame(RAW)), loans[1].predict(RAW))


def test_rows_that_are_encoded_already(loans):
    table, run = loans
    rows = table.held_out
    with pytest.raises(fp.FedpointError, match=r"finds its columns by their names: .*encoded=True"):
        run.predict(rows.X)
    accuracy = (run.predict(rows.X, encoded=True) == rows.y).mean()
    assert accuracy == run.evaluate(*table.evaluation(run.problem)[:2])["accuracy"]


def test_categories_that_the_model_does_not_know(loans):
    with pytest.warns(UserWarning, match="1 cell of unknown categories: counted as their column's first category"):
        strange = loans[1].predict_proba({"income": [100.0], "housing": ["castle"]})
    np.testing.assert_array_equal(strange, loans[1].predict_proba({"income": [100.0], "housing": ["own"]}))


@pytest.mark.parametrize(
    "table, message",
    [
        ({"income": [1.0]}, "the table has no column 'housing'"),
        ({"incom": [1.0], "housing": ["own"]}, "no column 'income': did you mean 'incom'"),
        ({"income": ["much"], "housing": ["own"]}, "row 1, column 'income' is 'much', not a number"),
        ({"income": [1.0, np.nan], "housing": ["own", "own"]}, "row 2, column 'income' is empty: give a value"),
    ],
)
def test_tables_that_are_wrong(loans, table, message):
    with pytest.raises(fp.FedpointError, match=message):
        loans[1].predict(table)


# Networks: every node has a model of its own.


def test_on_a_network_rows_are_predicted_by_their_node():
    problem = fp.problems.LeastSquares(X, X @ [2.0, -1.0], mean=True, groups=GROUPS)
    run = fp.run(fp.FedGD(step=0.1, coupling=1.0), problem, rounds=3, network=fp.Network.ring(3))
    whose = list("cabbaca")
    own = [x @ run.models[0]["abc".index(name)] for x, name in zip(NEW, whose, strict=True)]
    np.testing.assert_allclose(run.predict(NEW, groups=whose), own)
    with pytest.warns(UserWarning, match="predictions are the mean over all nodes' models"):
        said = run.predict(NEW)
    np.testing.assert_allclose(said, NEW @ (run.models[0].T @ problem.weights))
    with pytest.raises(fp.FedpointError, match="rows of 'd', which is not an agent of the problem"):
        run.predict(NEW, groups=list("abcdabc"))
    with pytest.raises(fp.FedpointError, match=r"groups has shape \(2,\), but there are 7 rows"):
        run.predict(NEW, groups=["a", "b"])


# What cannot be predicted.


def test_mistakes(linear, tmp_path):
    with pytest.raises(fp.FedpointError, match=r"X has shape \(7, 3\): give \(rows, 2\)"):
        linear.predict(np.ones((7, 3)))
    with pytest.raises(fp.FedpointError, match="X is nan at row 1, column 0"):
        linear.predict([[1.0, 2.0], [np.nan, 1.0]])
    with pytest.raises(fp.FedpointError, match="X must be an array of numbers"):
        linear.predict([["a", "b"]])
    with pytest.raises(fp.FedpointError, match="there is no repeat 2: the run has 2"):
        linear.predict(NEW, repeat=2)
    with pytest.raises(fp.FedpointError, match="predicts numbers: there are no probabilities"):
        linear.predict_proba(NEW)
    with pytest.raises(fp.FedpointError, match="has 2 features, but the table has 1 column"):
        linear.predict({"a": [1.0]})
    bowl = fp.run(METHOD, fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]]), rounds=1)
    with pytest.raises(fp.FedpointError, match="the run holds a model of Quadratic, which has no predictions"):
        bowl.predict(NEW)
    bowl.export(tmp_path / "bowl.npz")
    model = fp.load(tmp_path / "bowl.npz")
    assert repr(model) == "<Model of Quadratic: no predictions; gradient_exchange, 1 round>"
    with pytest.raises(fp.FedpointError, match=r"bowl.npz holds a model of Quadratic"):
        model.predict(NEW)
    with pytest.raises(fp.FedpointError, match="is the file of a model, which needs nothing else"):
        fp.load(tmp_path / "bowl.npz", bowl.problem)


# A run as a data frame.


def test_a_run_as_a_frame(linear):
    pytest.importorskip("pandas")
    frame = linear.to_frame()
    assert list(frame.columns) == [
        "round", "repeat", "error", "loss", "messages", "floats", "bytes", "evaluations"
    ]  # fmt: skip
    assert len(frame) == 2 * 21 and frame["repeat"].tolist() == [0] * 21 + [1] * 21
    np.testing.assert_array_equal(frame["error"].to_numpy().reshape(2, 21), linear.error)
    np.testing.assert_array_equal(frame["loss"].to_numpy().reshape(2, 21), linear.loss)
    last, cost = frame.iloc[-1], linear.cost
    assert last["round"] == 20 and last["evaluations"] == cost.evaluations
    assert (
        last["bytes"] == cost.bytes_up + cost.bytes_down and last["messages"] == cost.messages_up + cost.messages_down
    )


def test_metrics_and_held_out_rows_are_columns():
    pytest.importorskip("pandas")
    problem = fp.problems.Logistic(X, LABELS, GROUPS)
    run = fp.run(
        METHOD,
        problem,
        rounds=4,
        evaluate=(X, LABELS),
        metrics={"size": lambda s: (s.model**2).sum(), "first": lambda s: s.model[:2, 0]},
    )
    frame = run.to_frame()
    np.testing.assert_array_equal(frame["size"], run.metrics["size"][0])
    np.testing.assert_array_equal(frame["first[1]"], run.metrics["first"][0, :, 1])
    np.testing.assert_array_equal(frame["held-out accuracy"], run.evaluation["accuracy"][0])


def test_what_is_not_known_is_no_column():
    pytest.importorskip("pandas")
    problem = fp.problems.Loss(lambda w, x: ((w - x) ** 2).mean() + w**4, np.zeros(()), np.array([1.0, 2.0, 3.0]))
    assert "error" not in fp.run(fp.FedAvg(step=0.01), problem, rounds=2).to_frame().columns


def test_without_pandas(linear, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fp.FedpointError, match="to_frame needs pandas, which is not installed: pip install pandas"):
        linear.to_frame()
