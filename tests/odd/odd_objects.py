"""Small objects of every public kind, each made once: what good calls are made with (`good_calls.py`)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import fedpoint as fp


@cache
def quad():
    return fp.problems.Quadratic([1.0, 2.0], [[0.0, 1.0], [1.0, -1.0]], noise=0.01)


@cache
def rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(12, 2)), rng.normal(size=12), np.repeat([0, 1, 2], 4)


@cache
def labels():
    return np.tile([0, 1], 6)


@cache
def squares():
    X, y, groups = rows()
    return fp.problems.LeastSquares(X, y, groups=groups, mean=True, batch=2)


@cache
def logistic():
    X, _, groups = rows()
    return fp.problems.Logistic(X, labels(), groups)


@cache
def stream():
    return fp.problems.LinearStream([[1.0, 0.0], [0.0, 1.0]])


@cache
def system():
    return fp.problems.LinearSystem(np.stack([np.eye(2), 2 * np.eye(2)]), np.ones((2, 2)), noise=0.01)


@cache
def mdp():
    return fp.problems.MDP(np.full((3, 2, 3), 1 / 3), np.ones((3, 2, 3)))


@cache
def td():
    return fp.problems.TD([mdp(), mdp()], np.eye(3)[:, :2], gamma=0.5)


def row_loss(params, batch):
    x, y = batch
    return jnp.mean((x @ params - y) ** 2)


@cache
def loss():
    X, y, groups = rows()
    return fp.problems.Loss(row_loss, np.zeros(2), (X, y), groups, convex=True)


@cache
def cox():
    X, _, _ = rows()
    return fp.problems.Cox(X, 1.0 + np.arange(len(X)), labels() > 0)


@cache
def glm():
    X, _, groups = rows()
    return fp.problems.GLM(X, labels() > 0, groups, family="poisson")


class Halves(fp.problems.Oracle):
    """f(w) = |w|^2 / 2."""

    def loss(self, mine, w):
        return 0.5 * jnp.sum(w**2)


class Own(fp.problems.Problem):
    """A problem as its users write them."""

    def __init__(self):
        self.oracle, self.own, self.common = Halves(), (np.zeros(2),), ()
        self.weights, self.names = np.array([0.5, 0.5]), ["a", "b"]

    def start(self):
        return np.zeros(2)


@cache
def own_problem():
    return Own()


class Constantly:
    """A model that fits and predicts: the mean."""

    def fit(self, X, y, sample_weight=None):
        self.mean = float(np.mean(y))
        return self

    def predict(self, X):
        return np.full(len(X), self.mean)


@cache
def any_model():
    X, y, groups = rows()
    return fp.problems.AnyModel(X, y, groups, models=Constantly(), shared=X[:3])


class Usually(Constantly):
    """One that also tells how likely each class is."""

    def fit(self, X, y, sample_weight=None):
        self.classes_, times = np.unique(y, return_counts=True)
        self.often = times / len(y)
        return self

    def predict_proba(self, X):
        return np.tile(self.often, (len(X), 1))

    def predict(self, X):
        return np.full(len(X), self.classes_[self.often.argmax()])


@cache
def run_of_models():
    return fp.run(fp.FedRelax(), any_model(), network=ring(), rounds=1)


@cache
def run_of_classifiers():
    X, _, groups = rows()
    problem = fp.problems.AnyModel(X, labels(), groups, models=Usually(), shared=X[:3])
    return fp.run(fp.FedRelax(), problem, network=ring(), rounds=1)


@cache
def ring():
    return fp.Network.ring(3)


@cache
def pair():
    return fp.Network.ring(2)


@cache
def method():
    return fp.FedAvg(step=0.1, local_steps=2)


@cache
def experiment():
    return fp.Experiment(method(), quad())


def unprotected(update):
    return update


@cache
def private_experiment():
    return fp.Experiment(method(), quad(), channel=[fp.channel.Clip(1.0), fp.channel.Gaussian(1.0)])


@cache
def run():
    return fp.run(method(), quad(), rounds=3)


@cache
def run_on_rows():
    return fp.run(method(), squares(), rounds=2)


@cache
def run_of_classes():
    return fp.run(method(), logistic(), rounds=2)


@cache
def forecast():
    return fp.forecast(method(), quad())


@cache
def network_forecast():
    return fp.forecast(fp.FedGD(step=0.1), quad(), network=pair())


@cache
def plan():
    return fp.plan(quad(), target=1e-2, methods=["gradient_exchange"], local_steps=[1], participation=[None])


@cache
def proof():
    return fp.prove(fp.FedAvg(step=0.5), smooth=1.0, strong=0.1, claims=["contraction"])


@cache
def probe():
    return fp.probe(fp.FedAvg(step=0.05), squares(), rounds=1, samples=1)


@cache
def price():
    return fp.price(fp.FedAvg(step=0.5), quad(), channels=[None], rounds=2, runs=0)


@cache
def choice():
    return plan().best


@cache
def bounds():
    return fp.theory.asynchronous(0.5, 2, 5)


@cache
def expansion():
    return fp.theory.expansion(run())


@cache
def stability():
    return system().stability()


@cache
def baselines():
    X, y, groups = rows()
    return fp.baselines(X, y, groups, seeds=2, methods=["local", "pooled"])


@cache
def class_baselines():
    X, _, groups = rows()
    return fp.baselines(X, labels(), groups, seeds=2, methods=["local"])


@cache
def comparison():
    return fp.compare([method(), fp.FedAvg(step=0.2)], quad(), rounds=2)


@cache
def predictor():
    return run_on_rows().predictor()


def descent(w, agents):
    return w - 0.1 * sum(agent.weight * agent.field(w) for agent in agents)


@cache
def certificate():
    return fp.certify(descent, claims="gradient_exchange", step=0.1)


@cache
def verdict():
    return fp.check(run())


@cache
def constants():
    return fp.estimate_constants(quad(), draws=20)


@cache
def sweep():
    return fp.sweep(fp.FedAvg(step=0.1), quad(), over={"step": [0.1, 0.2]}, rounds=2)


@cache
def couplings():
    return fp.gtv.path(squares(), ring(), [0.1, 1.0])


@cache
def chosen_coupling():
    return fp.gtv.choose(squares(), ring(), [0.1, 1.0], folds=2)


@cache
def table():
    X, y, groups = rows()
    frame = {"a": X[:, 0], "b": X[:, 1], "y": y, "who": groups.astype(str)}
    return fp.data.read_table(frame, "y", "who")


@cache
def panel():
    return fp.data.produc()


@cache
def dataset():
    X, y, groups = rows()
    return fp.data.Dataset(X, y, groups, ["a", "b"], "y", "", "")


@cache
def fitted(name: str):
    X, y, groups = rows()
    return getattr(fp.estimators, name)(**FITTED[name]).fit(X, labels() if "Classifier" in name else y, groups)


FITTED: dict[str, dict[str, Any]] = {
    "FederatedClassifier": {"rounds": 2, "step": 0.1, "tol": None},
    "FederatedRegressor": {"rounds": 2, "step": 0.1, "tol": None},
    "NetworkClassifier": {"coupling": 1.0, "neighbours": 1},
    "NetworkRegressor": {"coupling": 1.0, "neighbours": 1},
    "FederatedGLM": {"family": "gaussian"},
    "FederatedScaler": {},
    "FederatedEncoder": {},
}


def written(folder: str) -> Path:
    """A run folder, made where the tests work."""
    if not Path(folder).exists():
        fp.run(method(), quad(), rounds=2, folder=folder)
    return Path(folder)


def file() -> Path:
    fp.write("experiment.toml", experiment(), rounds=2)
    return Path("experiment.toml")


def trace_file() -> Path:
    Path("trace.csv").write_text("1,0\n1,1\n")
    return Path("trace.csv")


def turns_file() -> Path:
    Path("turns.csv").write_text("tick,node\n0,0\n1,1\n")
    return Path("turns.csv")
