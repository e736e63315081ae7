"""FedRelax for any model with fit and predict: weighted fits to own rows and to the neighbours' predictions."""

import numpy as np
import pytest
from any_model_world import LINEAR, TINY, D, Least, local_solutions, relax
from sklearn.base import clone
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier, RandomForestRegressor, VotingRegressor
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import fedpoint as fp
from fedpoint.graphs.network import Network
from fedpoint.problems.any_model import AnyModel, copies_of, weights_name
from fedpoint.problems.neighbours import WeightedNeighborsClassifier, WeightedNeighborsRegressor


@pytest.fixture(scope="module")
def clustered():
    """Two clusters of three nodes with few rows each, points without labels, and held-out rows of every node."""
    rng = np.random.default_rng(3)
    truth = [lambda x: np.sin(2 * x[:, 0]) + x[:, 1], lambda x: np.sin(2 * x[:, 0]) - x[:, 1]]
    X = rng.uniform(-2, 2, (6 * 25, 2))
    groups = np.repeat(np.arange(6), 25)
    y = np.where(groups < 3, truth[0](X), truth[1](X)) + 0.4 * rng.normal(size=len(X))
    new = rng.uniform(-2, 2, (6 * 100, 2))
    owner = np.repeat(np.arange(6), 100)
    held_out = new, np.where(owner < 3, truth[0](new), truth[1](new)), owner
    net = Network.from_edges([(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5), (2, 3)], weights=[1] * 6 + [0.02])
    return X, y, groups, rng.uniform(-2, 2, (80, 2)), net, held_out


KINDS = {
    "tree": DecisionTreeRegressor(max_depth=5),
    "forest": RandomForestRegressor(8),
    "boosting": GradientBoostingRegressor(n_estimators=15, learning_rate=0.3),
    "neighbours": KNeighborsRegressor(3),
    "pipeline": make_pipeline(StandardScaler(), KNeighborsRegressor(3, weights="distance")),
}
KINDS["mixture"] = [*KINDS.values(), Ridge()]


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_help(clustered, kind):
    X, y, groups, points, net, held_out = clustered
    task = AnyModel(X, y, groups, models=KINDS[kind], shared=points)
    run = relax(task, net, rounds=3, evaluate=held_out)
    mse = run.evaluation["mse"][0]
    assert mse[-1] < 0.85 * mse[0], mse
    assert run.evaluate(*held_out)["mse"] == mse[-1]
    assert run.loss[0, -1] < run.loss[0, 0]
    assert len(run.models) == 6 and np.isfinite(run.history).all()


@pytest.mark.parametrize("kind", KINDS)
def test_without_coupling_nodes_fit_alone(clustered, kind):
    X, y, groups, points, net, _ = clustered
    models = KINDS[kind] if isinstance(KINDS[kind], list) else [KINDS[kind]] * 6
    run = relax(AnyModel(X, y, groups, models=KINDS[kind], shared=points), net, TINY, rounds=1)
    for i, (mine, model) in enumerate(zip(run.models, models, strict=True)):
        alone = clone(model)
        if hasattr(model, "random_state"):
            assert model.random_state is None  # the user's own is never touched
            alone.set_params(random_state=mine.random_state)
        alone.fit(X[groups == i], y[groups == i])
        assert (alone.predict(points) == mine.predict(points)).all()


def test_runs_repeat_to_the_bit(clustered):
    X, y, groups, points, net, _ = clustered
    task = AnyModel(X, y, groups, models=DecisionTreeRegressor(max_features=1), shared=points)
    a, b, c = (relax(task, net, rounds=2, seed=seed, repeats=r) for seed, r in ((4, 2), (4, 1), (5, 1)))
    assert (a.history[0] == b.history[0]).all()
    assert (a.history[0] != a.history[1]).any() and (a.history[0] != c.history[0]).any()
    states = [m.random_state for run in (a, c) for models in run.repeat_models for m in models]
    assert len(set(states)) == len(states)
    # Models are not arrays: they are fitted again, from the labels they heard and their random states.
    models = a.models
    a.session.restore(a.session.save(), a.session.round)
    assert (a.session.said == a.history[:, -1].reshape(2, -1)).all()
    assert all((m.predict(points) == n.predict(points)).all() for m, n in zip(models, a.session.models[0], strict=True))
    longer, whole = b.extend(4), relax(task, net, rounds=4, seed=4)
    assert (longer.history == whole.history).all() and (longer.rounds == [0, 1, 2, 3, 4]).all()
    assert {m.random_state for m in b.models}.isdisjoint(m.random_state for m in longer.models)  # new in every round
    given = AnyModel(X, y, groups, models=DecisionTreeRegressor(random_state=7), shared=points)
    assert {m.random_state for m in relax(given, net, rounds=1).models} == {7}


def test_records_progress_and_stopping(rows, points, net):
    task = AnyModel(*rows, models=Least(), shared=points)
    seen = []
    run = relax(task, net, rounds=7, record_every=3, callbacks=[seen.append])
    assert run.rounds.tolist() == [0, 3, 6, 7] and len(run.history[0]) == 4
    assert [p.round for p in seen] == list(range(1, 8)) and seen[-1].model.shape == (1, 5, 8)
    assert run.extend(10).rounds.tolist() == [0, 3, 6, 9, 10]
    with pytest.raises(fp.FedpointError, match="extend"):
        run.extend(11)
    asked = relax(task, net, rounds=7, stop=lambda round, said, error: round == 4)
    assert asked.rounds[-1] == 4
    assert relax(task, net, rounds=0).rounds.tolist() == [0]
    assert (run.time == [[0, 3, 6, 7]]).all() and len(run.fairness) == 1 and run.speed > 0


def test_a_node_without_neighbours_fits_alone(rows, points):
    net = Network.from_edges([(0, 1), (1, 2)], nodes=5)
    for shared in (points, {(0, 1): points, (1, 2): points}):
        run = relax(AnyModel(*rows, models=LINEAR, shared=shared), net, rounds=3)
        assert np.abs(run.models[4].coef_ - local_solutions(*rows)[4]).max() < 1e-12


def test_nodes_go_by_name(rows, points, net):
    X, y = rows
    names = list("pqrst")
    groups = np.repeat(names, [len(t) for t in y])
    task = AnyModel(np.concatenate(X), np.concatenate(y), groups, models=dict.fromkeys(names, LINEAR), shared=points)
    order = [3, 1, 4, 0, 2]  # the network's nodes in another order
    place = np.argsort(order)
    other = Network(place[net.edges], net.weights, [names[k] for k in order])
    assert np.allclose(relax(task, other, rounds=3).history, relax(task, net, rounds=3).history, atol=1e-12)


def test_predictions_by_node(rows, points, net):
    X, y = rows
    groups = np.repeat(list("pqrst"), [len(t) for t in y])
    run = relax(AnyModel(np.concatenate(X), np.concatenate(y), groups, models=LINEAR, shared=points), net, rounds=2)
    new = np.random.default_rng(0).normal(size=(4, D))
    each = np.stack([m.predict(new) for m in run.models])
    assert np.allclose(run.predict(new, groups=list("tpqt")), each[[4, 0, 1, 4], range(4)])
    assert np.allclose(run.predict(new, groups=[4, 0, 1, 4]), each[[4, 0, 1, 4], range(4)])
    with pytest.warns(UserWarning, match="mean over all nodes"):
        assert np.allclose(run.predict(new), each.mean(0))
    with pytest.raises(fp.FedpointError, match="no node u"):
        run.predict(new, groups=list("tpqu"))
    with pytest.raises(fp.FedpointError, match="regressors"):
        run.predict_proba(new)


def test_plot(rows, points, net, tmp_path):
    run = relax(AnyModel(*rows, models=LINEAR, shared=points), net, rounds=3)
    run.plot(tmp_path / "loss.png", x="floats")
    assert (tmp_path / "loss.png").stat().st_size > 1000
    assert "3 rounds" in repr(run) and "5 nodes" in repr(run.problem)


# Classifiers


@pytest.fixture(scope="module")
def labelled():
    """Three nodes with three classes; the last has one class only, the second lacks one."""
    rng = np.random.default_rng(5)
    X = rng.uniform(-1, 1, (90, 2))
    y = np.array(["a", "b", "c"])[(X[:, 0] > 0).astype(int) + ((X[:, 0] > 0) & (X[:, 1] > 0))]
    groups = rng.integers(0, 2, 90)
    groups[(y == "b") & (rng.random(90) < 0.5)] = 2
    keep = ~((groups == 1) & (y == "c"))
    return X[keep], y[keep], groups[keep], rng.uniform(-1, 1, (60, 2))


CLASSIFIERS = {
    "tree": DecisionTreeClassifier(max_depth=4),
    "forest": RandomForestClassifier(10),
    "logistic": LogisticRegression(),
    "neighbours": KNeighborsClassifier(3),
    "ridge": RidgeClassifier(),  # without probabilities
}
CLASSIFIERS["mixture"] = [CLASSIFIERS[kind] for kind in ("tree", "neighbours", "logistic")]


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_classes_that_a_node_has_not_seen(labelled, kind):
    X, y, groups, points = labelled
    run = relax(AnyModel(X, y, groups, models=CLASSIFIERS[kind], shared=points), Network.complete(3), rounds=3)
    assert run.history.shape == (1, 4, 3, 60, 3)
    assert np.allclose(run.history.sum(-1), 1)
    assert (run.history[0, 0, 2, :, 1] == 1).all()  # alone, the last node knows b only
    assert set(run.predict(points, groups=np.full(60, 2))) > {"b"}
    truth = np.array(["a", "b", "c"])[(points[:, 0] > 0).astype(int) + ((points[:, 0] > 0) & (points[:, 1] > 0))]
    alone = (truth == "b").mean()
    scores = run.evaluate(points, truth, np.full(60, 2))
    assert scores["accuracy"] > alone + 0.2 and scores["brier"] < 2 * (1 - alone)
    proba = run.predict_proba(points, groups=np.full(60, 0))
    assert np.allclose(proba, run.history[0, -1, 0])
    assert run.loss[0, -1] < run.loss[0, 0]


def test_a_point_is_a_row_for_each_class(labelled):
    X, y, groups, points = labelled
    run = relax(AnyModel(X, y, groups, models=LogisticRegression(), shared=points), Network.complete(3), 0.7, rounds=1)
    mine = groups == 0
    m, mean = mine.sum(), run.history[0, 0, 1:].mean(0)  # the two neighbours' mean, of weight 2
    all_X = np.concatenate([X[mine], *[points] * 3])
    all_y = np.concatenate([y[mine], *np.repeat([["a"], ["b"], ["c"]], 60, axis=1)])
    weight = np.concatenate([np.ones(m), (0.7 * 2 * m / 60 * mean).T.ravel()])
    by_hand = LogisticRegression().fit(all_X, all_y, sample_weight=weight)
    assert np.abs(by_hand.predict_proba(points) - run.models[0].predict_proba(points)).max() < 1e-3


# Models whose fit takes no weights


class Plain:
    """Least squares without sample weights, and without anything of scikit-learn's."""

    def fit(self, X, y):
        self.w = np.linalg.lstsq(X, y, rcond=None)[0]

    def predict(self, X):
        return X @ self.w


def test_rows_are_repeated_where_weights_are_not_taken(points):
    """m' = 8 and m = (16, 8, 24), coupling 1: weights 1 : 2 and so on, which copies meet exactly."""
    rng = np.random.default_rng(6)
    X = [rng.normal(size=(m, D)) for m in (16, 8, 24)]
    y = [rng.normal(size=len(x)) for x in X]
    runs = [relax(AnyModel(X, y, models=m, shared=points), Network.ring(3), rounds=3) for m in (Plain(), LINEAR)]
    assert np.abs(runs[0].history - runs[1].history).max() < 1e-10
    near = relax(AnyModel(X, y, models=Plain(), shared=points, copies=200), Network.ring(3), 0.77, rounds=3)
    exact = relax(AnyModel(X, y, models=LINEAR, shared=points), Network.ring(3), 0.77, rounds=3)
    coarse = relax(AnyModel(X, y, models=Plain(), shared=points, copies=2), Network.ring(3), 0.77, rounds=3)
    gaps = [np.abs(run.history - exact.history).max() for run in (near, coarse)]
    assert gaps[0] < 0.01 and gaps[0] < 0.2 * gaps[1]


def test_copies():
    rng = np.random.default_rng(0)
    weights = np.concatenate([np.ones(40), rng.uniform(0, 0.2, 300)])
    counts = copies_of(weights, 10)
    assert counts.max() == 10 and abs(counts.sum() - 10 * weights.sum()) <= 1
    assert np.abs(counts - 10 * weights).max() < 1
    assert (copies_of(np.array([3.0, 3.0]), 10) == 1).all()


def test_where_weights_go():
    assert weights_name(Ridge()) == "sample_weight"
    assert weights_name(make_pipeline(StandardScaler(), Ridge())) == "ridge__sample_weight"
    assert weights_name(GridSearchCV(Ridge(), {"alpha": [1.0, 2.0]})) == "sample_weight"
    assert weights_name(VotingRegressor([("a", Ridge()), ("b", LINEAR)])) == "sample_weight"
    assert weights_name(VotingRegressor([("a", Ridge()), ("b", KNeighborsRegressor())])) is None
    assert weights_name(KNeighborsRegressor()) is None and weights_name(Plain()) is None


@pytest.mark.parametrize("weights", ["uniform", "distance"])
def test_neighbours_with_weights_are_repeated_rows_and_k_with_them(weights):
    """Rows of weight 2 twice, and all of them four times, with 4k neighbours; with k it would be another model."""
    rng = np.random.default_rng(7)
    X, y, w = rng.normal(size=(40, 2)), rng.normal(size=40), rng.choice([0.25, 0.5, 1.0, 2.0], size=40)
    new, often = rng.normal(size=(50, 2)), np.repeat(np.arange(40), (4 * w).astype(int))
    mine = WeightedNeighborsRegressor(KNeighborsRegressor(3, weights=weights)).fit(X, y, sample_weight=w)
    same = KNeighborsRegressor(12, weights=weights).fit(X[often], y[often])
    distorted = KNeighborsRegressor(3, weights=weights).fit(X[often], y[often])
    assert np.abs(mine.predict(new) - same.predict(new)).max() < 1e-12
    assert np.abs(mine.predict(new) - distorted.predict(new)).max() > 0.1
    label = (y > 0).astype(int)
    mine = WeightedNeighborsClassifier(KNeighborsClassifier(3, weights=weights)).fit(X, label, sample_weight=w)
    same = KNeighborsClassifier(12, weights=weights).fit(X[often], label[often])
    assert np.abs(mine.predict_proba(new) - same.predict_proba(new)).max() < 1e-12


def test_neighbours_change_little_with_little_coupling(clustered):
    X, y, groups, points, net, _ = clustered
    task = AnyModel(X, y, groups, models=KNeighborsRegressor(3), shared=points)
    alone, little, much = (relax(task, net, c, rounds=1).history[0, -1] for c in (TINY, 1e-6, 1e6))
    assert np.abs(alone - little).max() < 1e-4
    labels = np.tensordot(net.adjacency.toarray() / net.degrees[:, None], alone, 1)
    assert np.abs(much - labels).max() < 1e-4  # the point itself outweighs the rest of its neighbourhood


# Mistakes


class NoPredict:
    def fit(self, X, y):
        return self


class SaysNaN(Plain):
    def predict(self, X):
        return np.full(len(X), np.nan)


class Fails(Plain):
    def fit(self, X, y):
        raise RuntimeError("no convergence")


X2 = [np.ones((3, 2)), np.ones((3, 2))]
Y2 = [np.arange(3.0), np.arange(3.0)]
P2 = np.zeros((4, 2))
HOLE = np.array([[0.0, np.nan]])
TREE = DecisionTreeRegressor()

MISTAKES = {
    "no shared points": ({"shared": None}, "no shared points"),
    "wrong columns": ({"shared": np.zeros((4, 3))}, r"shape \(4, 3\): give \(points, 2\)"),
    "no points": ({"shared": np.zeros((0, 2))}, "at least one"),
    "one point as a row": ({"shared": [0.0, 1.0]}, r"shape \(2,\)"),
    "words as points": ({"shared": [["a", "b"]]}, "array of numbers"),
    "NaN in points": ({"shared": HOLE}, "shared points is nan at row 0, column 1"),
    "NaN in an edge's points": ({"shared": {(0, 1): HOLE}}, "between 0 and 1 is nan"),
    "NaN in data": ({"X": [HOLE, P2], "y": [np.ones(1), np.ones(4)]}, "data of agent 0 is nan"),
    "NaN in targets": ({"y": [np.array([0.0, 1.0, np.nan]), np.ones(3)]}, "targets of agent 0 is nan"),
    "an edge of nobody": ({"shared": {(0, 7): P2}}, "no node 7"),
    "an edge that is none": ({"shared": {0: P2}}, "pair of nodes"),
    "an edge to itself": ({"shared": {(1, 1): P2}}, "itself"),
    "an edge twice": ({"shared": {(0, 1): P2, (1, 0): P2}}, "twice"),
    "no models": ({"models": None}, "no models"),
    "a class": ({"models": DecisionTreeRegressor}, "is a class"),
    "no predict": ({"models": NoPredict()}, "NoPredict has no predict"),
    "no fit": ({"models": 3.0}, "float has no fit"),
    "number of models": ({"models": [TREE] * 3}, "3 models for 2 nodes"),
    "names of models": ({"models": {"0": TREE, "x": TREE}}, "node 1 has none; there is no node x"),
    "kinds of models": ({"models": [TREE, DecisionTreeClassifier()]}, "classifiers at some nodes"),
    "hidden neighbours": (
        {"models": GridSearchCV(KNeighborsRegressor(), {"n_neighbors": [1, 2]})},
        "GridSearchCV takes no sample weights",
    ),
    "copies": ({"copies": 0}, "copies must be a whole number"),
    "one class": ({"models": DecisionTreeClassifier(), "y": [np.ones(3), np.ones(3)]}, "fewer than two classes"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_the_problem(name):
    changes, message = MISTAKES[name]
    with pytest.raises(fp.FedpointError, match=message):
        AnyModel(**{"X": X2, "y": Y2, "models": TREE, "shared": P2, **changes})


def test_mistakes_in_the_run():
    task = AnyModel(X2, Y2, models=TREE, shared=P2)
    pair = Network.complete(2)
    with pytest.raises(fp.FedpointError, match="FedAvg cannot run with models that only fit and predict"):
        fp.run(fp.FedAvg(0.1), task, network=pair)
    with pytest.raises(fp.FedpointError, match="needs a network"):
        relax(task, None)
    with pytest.raises(fp.FedpointError, match="3 nodes"):
        relax(task, Network.ring(3))
    with pytest.raises(fp.FedpointError, match="names"):
        relax(task, Network.from_edges([("a", "b")]))
    with pytest.raises(fp.FedpointError, match="start= is not for models"):
        relax(task, pair, start=np.zeros(2), exact=False, folder=None)
    with pytest.raises(fp.FedpointError, match="stop must be"):
        relax(task, pair, stop=-1.0)
    with pytest.raises(fp.FedpointError, match="AnyModel has no fields"):
        fp.forecast(fp.FedAvg(0.1), task)
    three = AnyModel([*X2, X2[0]], [*Y2, Y2[0]], models=TREE, shared={(0, 1): P2})
    with pytest.raises(fp.FedpointError, match="edge between 1 and 2 has no shared points"):
        relax(three, Network.from_edges([(0, 1), (1, 2)]))
    with pytest.raises(fp.FedpointError, match="0 and 1, which are not neighbours"):
        relax(three, Network.from_edges([(1, 2)]))
    for model, message in ((SaysNaN(), "node 0: SaysNaN predicts NaN"), (Fails(), "node 0: Fails could not be fitted")):
        with pytest.raises(fp.FedpointError, match=message):
            relax(AnyModel(X2, Y2, models=model, shared=P2), pair)
    with pytest.raises(fp.FedpointError, match="node 0: KNeighborsRegressor could not predict"):
        relax(AnyModel(X2, Y2, models=KNeighborsRegressor(9), shared=P2), pair)
    run = relax(AnyModel(X2, Y2, models=DummyRegressor(), shared=P2), pair, rounds=1)
    with pytest.raises(fp.FedpointError, match=r"shape \(1, 3\)"):
        run.predict(np.zeros((1, 3)), groups=[0])
    with pytest.raises(fp.FedpointError, match="one node's name a row"):
        run.predict(np.zeros((1, 2)), groups=[0, 1])


ASKED = {
    "memories": (lambda run: run.memories, "keep no memories"),
    "state": (lambda run: run.session.whole(), "no state in arrays"),
    "export": (lambda run: run.export("model.npz"), "no arrays: save run.models"),
    "check": (fp.check, "no forecast to check"),
    "folder": (lambda run: fp.run(run.session.experiment, folder="run"), "folder= is not for models"),
    "processes": (lambda run: fp.run(run.session.experiment, processes=2), "processes= is not for models"),
    "sweep": (lambda run: fp.sweep(run.session.experiment, over={"coupling": [0.1, 0.2]}), "no round in arrays"),
}


@pytest.mark.parametrize("what", ASKED)
def test_what_only_arrays_can_answer_is_refused(rows, points, net, what):
    ask, message = ASKED[what]
    run = relax(AnyModel(*rows, models=LINEAR, shared=points), net, rounds=1)
    with pytest.raises(fp.FedpointError, match=message):
        ask(run)
