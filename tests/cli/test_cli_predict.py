"""`fedpoint predict`: exported models on tables."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.store.folder import export_model

HEADER = "a,b\n"


def manifest(**rest):
    kind = {"problem": "LeastSquares", "predicts": "number"}
    return {**kind, "classes": None, "intercept": False, "features": 2, **rest}


@pytest.fixture
def linear(tmp_path):
    export_model(tmp_path / "linear.npz", {"model": np.array([2.0, -1.0])}, manifest())
    return "linear.npz"


@pytest.fixture
def classifier(tmp_path):
    """Three named classes, with an intercept."""
    weights = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.1], [-1.0, 0.0, 0.0]])  # a class a row
    about = manifest(problem="Logistic", predicts="class", classes=["cat", "dog", "owl"], intercept=True)
    export_model(tmp_path / "classifier.npz", {"model": weights}, about)
    return "classifier.npz"


def table(text, name="data.csv"):
    Path(name).write_text(text)
    return name


def rows(text):
    return list(csv.DictReader(text.splitlines()))


def test_linear(cli, linear):
    result = cli("predict", linear, table(HEADER + "1,2\n0.5,-1e1\n"))
    assert [float(row["prediction"]) for row in rows(result.stdout)] == [0.0, 11.0]


def test_the_truth_tells_the_error(cli, linear):
    data = table("a,truth,b\n1,1,2\n0.5,11,-10\n")
    result = cli("predict", linear, data, "--target", "truth")
    assert len(rows(result.stdout)) == 2 and "mean squared error: 0.5" in result.stderr
    result = cli("predict", linear, data, "--target", "truth", "--json")
    assert json.loads(result.stdout) == {"rows": 2, "predictions": [0.0, 11.0], "mean_squared_error": 0.5}


def test_classes(cli, classifier):
    data = table("a,b,kind\n3,0,cat\n0,3,dog\n-3,0,cat\n")
    result = cli("predict", classifier, data, "--target", "kind", "--output", "out.csv")
    assert "3 predictions in out.csv" in result.stdout and "accuracy: 0.666667" in result.stdout
    found = rows(Path("out.csv").read_text())
    assert [row["prediction"] for row in found] == ["cat", "dog", "owl"]
    for row in found:
        assert sum(float(row[f"probability of {name}"]) for name in ("cat", "dog", "owl")) == pytest.approx(1)
    expected = np.exp(3.0) / (np.exp(3.0) + np.exp(0.1) + np.exp(-3.0))
    assert float(found[0]["probability of cat"]) == pytest.approx(expected, rel=1e-12)


def test_a_model_that_was_learnt(cli, rng):
    X = rng.standard_normal((60, 2))
    y = np.where(X @ [2.0, -1.0] + 0.5 > 0, 1, -1)
    problem = fp.problems.Logistic(X, y, groups=np.arange(60) % 3, intercept=True)
    run = fp.run(fp.GradientExchange(step=1.0), problem, rounds=200)
    run.export("model.npz")
    lines = [f"{a!r},{b!r},{int(t)}" for (a, b), t in zip(X.tolist(), y, strict=True)]
    data = table("a,b,y\n" + "\n".join(lines) + "\n")
    result = cli("predict", "model.npz", data, "--target", "y", "--json")
    found = json.loads(result.stdout)
    assert set(found["predictions"]) == {-1, 1}
    assert found["accuracy"] == pytest.approx(problem.evaluate(run.model[0], X, y)["accuracy"])


@pytest.mark.parametrize(
    "text, options, message",
    [
        ("a,b\n1,x\n", [], "row 1, column 'b' is 'x', not a number"),
        ("a,b\n1,2\n1,\n", [], "row 2, column 'b' is empty"),
        ("a,b\n1,nan\n", [], "row 1, column 'b' is nan"),
        ("a,b\n1,2,3\n", [], "row 1 has 3 cells, but the header names 2 columns"),
        ("a\n1\n", [], "linear.npz has 2 features, but data.csv has 1 column"),
        ("a,b,c\n1,2,3\n", [], "--target names it"),
        ("1,2,3\n1,2,3\n", ["--target", "2"], None),
        ("1,2,3,4\n1,2,3,4\n", [], "a header must stand above it"),
        ("a,b,c\n1,2,3\n", ["--target", "cc"], "has no column 'cc': did you mean 'c'?"),
        ("a,b,c\n1,2,x\n", ["--target", "c"], "row 1, column 'c' is 'x', not a number"),
        ("a,a\n1,2\n", [], "the column 'a' occurs twice"),
        ("a,b\n", [], "has no rows"),
        ("", [], "has no rows"),
    ],
)
def test_tables_that_are_wrong(cli, linear, text, options, message):
    result = cli("predict", linear, table(text), *options, status=2 if message else 0)
    assert message is None or message in result.stderr


def test_the_folder_of_a_run(cli, toml):
    path = toml("""
        rounds = 300
        [problem]
        kind = "least_squares"
        agents = 3
        dim = 2
        heterogeneity = 0
        noise = 0
        mean = true
        [algorithm]
        name = "fedavg"
        step = 0.3
        """)
    cli("run", path, "--folder", "r", "--no-figure")
    data = table(HEADER + "1,0\n2,3\n")
    found = json.loads(cli("predict", "r", data, "--json").stdout)["predictions"]
    np.testing.assert_allclose(found, [1.0, 5.0], rtol=1e-6)
    Path("empty").mkdir()
    assert "is not a run folder" in cli("predict", "empty", data, status=2).stderr


def test_models_that_are_wrong(cli, linear, tmp_path):
    data = table(HEADER + "1,2\n")
    assert "is missing" in cli("predict", "none.npz", data, status=2).stderr
    Path("junk.npz").write_bytes(b"junk")
    assert "damaged or not a fedpoint model" in cli("predict", "junk.npz", data, status=2).stderr
    export_model(tmp_path / "bowl.npz", {"model": np.zeros(2)}, manifest(problem="Quadratic", predicts=None))
    assert "holds a model of Quadratic" in cli("predict", "bowl.npz", data, status=2).stderr
    export_model(tmp_path / "odd.npz", {"model": np.zeros(2)}, manifest(columns=[{"column": "a", "sale": 2.0}]))
    assert "odd.npz is not what an export writes (columns.0.sale" in cli("predict", "odd.npz", data, status=2).stderr
    export_model(tmp_path / "wide.npz", {"model": np.zeros(5)}, manifest())
    assert (
        "model has shape (5,), which does not fit a model of 2 features"
        in cli("predict", "wide.npz", data, status=2).stderr
    )
    assert "there is no file none.csv" in cli("predict", linear, "none.csv", status=2).stderr
