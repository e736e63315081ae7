"""Does the library still compute what it computed? Keep the results of some eighty experiments; compare them later.

    python benchmarks/guard.py --keep FILE        # on one commit
    python benchmarks/guard.py --compare FILE     # on another; exits with 1 where results differ
    python benchmarks/guard.py --keep FILE --only "FedAvg;sweep"

Every method, a fusion center and networks, many timings, exact and noisy fields, repeats, a sweep, processes, a resumed
run, every kind of problem, and what the theory says of some. Kept are the models and uses at all records. The
comparison prints a line for each experiment: the same bits, a relative difference that rounding explains (another order
of the same additions), or DIFFERENT. It runs on old commits too: `MOVED` has the modules whose place differs.
"""

from __future__ import annotations

import os

os.environ["FEDPOINT_CACHE"] = "off"  # what is compared is what this code compiles

import argparse
import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.tree import DecisionTreeRegressor

import fedpoint as fp

ROUNDING = 1e-12  # relative to the largest number of an array
MOVED = {  # module: where it is now, where it was
    "steps": ("fedpoint.core.steps", "fedpoint.core.steps"),
    "staleness": ("fedpoint.timing.staleness", "fedpoint.core.staleness"),
}
Arrays = dict[str, np.ndarray]


def moved(name: str) -> Any:
    for home in MOVED[name]:
        try:
            return importlib.import_module(home)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(f"{name} is in none of {MOVED[name]}: add its home to MOVED")


steps, staleness = moved("steps"), moved("staleness")


def fedavg(step: Any = 0.05, local_steps: Any = 3, **options: Any) -> fp.FedAvg:
    """Lecture 000's FedAvg, whose step is divided by the local steps: once the default."""
    return fp.FedAvg(step, local_steps, **{"normalise": True, **options})


# Problems: small, one of every kind.

SIZES = (2, 5, 9, 14, 4)
K = len(SIZES)


def table(classes: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    groups = np.repeat([f"site {k}" for k in range(K)], SIZES)
    return rng.normal(size=(len(groups), 3)), rng.integers(0, classes, len(groups)), groups


def positive(rng: np.random.Generator, dim: int) -> np.ndarray:
    root = rng.normal(size=(K, dim, dim))
    return root @ np.swapaxes(root, 1, 2) / dim + 0.3 * np.eye(dim)


@cache
def quadratic(noise: float = 0.0) -> Any:
    rng = np.random.default_rng(1)
    return fp.problems.Quadratic(positive(rng, 3), rng.normal(size=(K, 3)), noise=noise, weights=[1, 2, 3, 4, 5])


@cache
def least_squares(**options: Any) -> Any:
    X, _, groups = table()
    y = np.random.default_rng(2).normal(size=len(X))
    return fp.problems.LeastSquares(X, y, groups=groups, **{"mean": True, **options})


@cache
def logistic(classes: int = 2, **options: Any) -> Any:
    X, y, groups = table(classes)
    return fp.problems.Logistic(X, y, groups=groups, **{"ridge": 0.1, **options})


@cache
def stream() -> Any:
    return fp.problems.LinearStream(np.random.default_rng(3).normal(size=(K, 4)), noise=0.2, covariance=0.7)


def network_loss(params: Any, batch: Any) -> Any:
    hidden = jnp.tanh(batch["x"] @ params["V"] + params["b"])
    return 0.5 * (hidden @ params["u"] - batch["y"]) ** 2


@cache
def neural(**options: Any) -> Any:
    X, y, groups = table()
    rng = np.random.default_rng(4)
    params = {"V": rng.normal(size=(3, 2)), "b": rng.normal(size=2), "u": rng.normal(size=2)}
    return fp.problems.Loss(network_loss, params, {"x": X, "y": y.astype(float)}, groups=groups, **options)


@cache
def system() -> Any:
    rng = np.random.default_rng(5)
    skew = rng.normal(size=(K, 4, 4))
    A = positive(rng, 4) + skew - np.swapaxes(skew, 1, 2)
    return fp.problems.LinearSystem(A, rng.normal(size=(K, 4)), noise=fp.problems.Noise(b=0.3, A=0.05))


@cache
def td(sampling: str = "iid") -> Any:
    return fp.problems.garnet(agents=K, states=8, dim=3, seed=6, sampling=sampling)


@cache
def trees() -> Any:
    X, _, groups = table()
    models, shared = DecisionTreeRegressor(max_depth=2, random_state=0), np.random.default_rng(7).normal(size=(6, 3))
    return fp.problems.AnyModel(X, X[:, 0] - X[:, 1] ** 2, groups=groups, models=models, shared=shared)


RING = fp.Network.ring(K)
GOSSIP = RING.mixing()  # weights with which nodes can average
CLOCK = fp.Clock([1.0, 2.0, 0.5, 4.0, 1.5])
TRACE = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1], [1, 0, 0, 0, 1]], bool)


# What is kept.


def arrays(run: Any) -> Arrays:
    """Models and uses at all records."""
    leaves = jax.tree_util.tree_leaves_with_path(run.history)
    kept = {f"model{jax.tree_util.keystr(path)}": np.asarray(leaf) for path, leaf in leaves}
    return {**kept, "used": np.asarray(run.used)}


def run(algorithm: Any, problem: Any, rounds: int = 30, **options: Any) -> Callable[[], Arrays]:
    return lambda: arrays(fp.run(algorithm, problem, rounds=rounds, seed=7, **options))


def noisy(algorithm: Any, **options: Any) -> Callable[[], Arrays]:
    return lambda: arrays(fp.run(algorithm, least_squares(batch=2), rounds=30, **{"seed": 7, "repeats": 2, **options}))


def on_ring(algorithm: Any, network: Any = RING, **options: Any) -> Callable[[], Arrays]:
    return noisy(algorithm, network=network, **options)


def swept() -> Arrays:
    over = {"step": [0.01, 0.05], "local_steps": [1, 4]}
    found = fp.sweep(
        fedavg(), least_squares(batch=2), over=over, rounds=20, participation=2, seed=3, repeats=2, record_every=20
    )
    return {"error": np.asarray(found.error), "model": np.asarray(found.model), "used": np.asarray(found.used)}


def resumed(**options: Any) -> Callable[[], Arrays]:
    """A run of 40 rounds that was cut in two, by way of its folder."""

    def both() -> Arrays:
        problem = least_squares(batch=2)
        with tempfile.TemporaryDirectory() as folder:
            fp.run(fp.Scaffold(0.02, 3), problem, rounds=17, seed=5, repeats=2, folder=Path(folder, "run"), **options)
            return arrays(fp.load(Path(folder, "run"), problem).extend(40))

    return both


def extended() -> Arrays:
    return arrays(fp.run(fp.Scaffold(0.02, 3), least_squares(batch=2), rounds=17, seed=5, participation=2).extend(40))


def forecast(algorithm: Any, problem: Callable[[], Any], **options: Any) -> Callable[[], Arrays]:
    def numbers() -> Arrays:
        found = fp.forecast(algorithm, problem(), **options)
        limit = jax.tree.leaves(found.limit)
        floor = np.nan if found.floor is None else found.floor
        return {
            **{f"limit {i}": np.asarray(a) for i, a in enumerate(limit)},
            "rate, floor": np.array([found.rate, floor]),
        }

    return numbers


EXPERIMENTS: dict[str, Callable[[], Arrays]] = {
    # Methods with a fusion center.
    "GradientExchange": run(fp.GradientExchange(0.1), quadratic()),
    "ParameterExchange": run(fp.ParameterExchange(0.1), quadratic()),
    "FedAvg": run(fedavg(), quadratic()),
    "FedAvg, noisy, 2 of 5": noisy(fedavg(), participation=2),
    "FedAvg, step not divided": noisy(fedavg(normalise=False), participation=2),
    "FedAvg, exact fields": noisy(fedavg(), participation=2, exact=True),
    "FedAvg, per-agent steps": noisy(fedavg([0.1, 0.05, 0.2, 0.1, 0.3], [2, 4, 3, 1, 2], normalise=False)),
    "FedAvg, decaying step": noisy(fedavg(steps.InverseTime(0.5, 8.0))),
    "FedAvg, exponential step": noisy(fedavg(steps.Exponential(0.3, 0.9))),
    "FedAvg, epochs": noisy(fedavg(0.05, steps.Epochs(1))),
    "FedAvg, stragglers": noisy(fedavg(0.05, steps.Stragglers(4, 0.5))),
    "FedProx": noisy(fp.FedProx(0.05, 3, pull=0.4), participation=3),
    "FedProx, exact": run(fp.FedProx(pull=0.4, exact=True), quadratic()),
    "FedNova": noisy(fp.FedNova(0.05, [2, 4, 3, 1, 2], momentum=0.6)),
    "GeneralRule": noisy(fp.GeneralRule(0.05, 3, momentum=0.5, pull=0.3, decay=0.9), participation=3),
    "GeneralRule, coefficients": noisy(fp.GeneralRule(0.05, 3, effective=1.7, coefficients=[1.0, 2.0, 0.5])),
    "FedOpt": noisy(fp.FedOpt(0.05, 2, server="sgd"), participation=3),
    "FedAvgM": noisy(fp.FedAvgM(0.05, 2, server_step=0.9, momentum=0.7), participation=3),
    "FedAdam": noisy(fp.FedAdam(0.05, 2), participation=3),
    "FedYogi": noisy(fp.FedYogi(0.05, 2), participation=3),
    "FedAdagrad": noisy(fp.FedAdagrad(0.05, 2), participation=3),
    "SCAFFOLD": noisy(fp.Scaffold(0.05, 3, server_step=0.8), participation=2),
    "SCAFFOLD, option 1": noisy(fp.Scaffold(0.05, 3, option=1), participation=2),
    "Scaffnew": noisy(fp.Scaffnew(0.05, probability=0.4)),
    "Scaffnew, fixed": noisy(fp.Scaffnew(0.05, local_steps=3)),
    "q-FedAvg": noisy(fp.QFedAvg(1.5, 0.05, 2), participation=3),
    "FedLSA": run(fp.FedLSA(0.02, 3), system(), repeats=2),
    "Scafflsa": run(fp.ScaffLSA(0.02, 3), td(), repeats=2),
    # Who works when.
    "by weight": noisy(fedavg(), participation=fp.ByWeight(3)),
    "importance": noisy(fedavg(), participation=fp.Importance(3)),
    "answering": noisy(fedavg(), participation=fp.Answering(fp.Uniform(4), probability=0.7, keep=2)),
    "trace": noisy(fp.Scaffold(0.05, 3), participation=fp.Answering(fp.Everyone(), trace=TRACE)),
    "waiting": noisy(fedavg(), schedule=fp.Waiting(CLOCK, count=4, keep=2)),
    "late answers": noisy(fedavg(), schedule=fp.Arrivals(CLOCK, working=4, buffer=2)),
    "late answers, staleness": noisy(fedavg(), schedule=fp.Arrivals(CLOCK, staleness=staleness.Polynomial(0.5))),
    "late models": noisy(fedavg(), schedule=fp.Arrivals(CLOCK, working=3, models=True, mixing=0.6)),
    "SCAFFOLD, late answers": noisy(fp.Scaffold(0.02, 3), schedule=fp.Arrivals(CLOCK, working=4, buffer=2)),
    # Networks.
    "FedGD, ring": on_ring(fp.FedGD(0.05, coupling=0.5)),
    "FedSGD, ring": on_ring(fp.FedSGD(0.05, coupling=0.5, local_steps=2)),
    "FedRelax, ring": on_ring(fp.FedRelax(coupling=0.5)),
    "FedAvg, gossip": on_ring(fedavg(), GOSSIP),
    "FedProx, gossip": on_ring(fp.FedProx(0.05, 3, pull=0.4), GOSSIP),
    "FedSGD, random activation": on_ring(fp.FedSGD(0.05), schedule=fp.RandomActivation(2)),
    "FedSGD, partially asynchronous": on_ring(fp.FedSGD(0.05), schedule=fp.PartiallyAsynchronous(4, loss=0.2)),
    "FedAvg, partially asynchronous": on_ring(fedavg(), GOSSIP, schedule=fp.PartiallyAsynchronous(4)),
    "FedRelax, totally asynchronous": on_ring(fp.FedRelax(0.5), schedule=fp.TotallyAsynchronous()),
    "FedGD, worst case": on_ring(fp.FedGD(0.05), schedule=fp.WorstCase(3)),
    "FedSGD, own pace": on_ring(fp.FedSGD(0.05), schedule=fp.OwnPace(CLOCK)),
    "FedGD, in step": on_ring(fp.FedGD(0.05), schedule=fp.InStep(CLOCK)),
    # Problems.
    "quadratic, noisy": run(fedavg(), quadratic(0.3), participation=2, repeats=2),
    "stream": run(fp.Scaffold(0.02, 3), stream(), participation=2, repeats=2),
    "least squares, shuffled": run(fedavg(), least_squares(batch=3, sampling="shuffle"), repeats=2),
    "least squares, importance": run(fedavg(), least_squares(batch=2, sampling="importance", mean=False), repeats=2),
    "logistic": run(fedavg(), logistic(batch=3), participation=2, repeats=2),
    "logistic, full gradients": run(fedavg(), logistic()),
    "logistic, exact prox": run(fp.FedProx(pull=0.4, exact=True), logistic()),
    "softmax": run(fp.Scaffold(0.05, 3), logistic(classes=3, batch=2, intercept=True), participation=2),
    "any loss": run(fedavg(), neural(batch=2), participation=2, repeats=2),
    "any loss, shuffled": run(fp.FedAdam(0.05, 2), neural(batch=4, sampling="shuffle")),
    "system": run(fedavg(), system(), participation=2, repeats=2),
    "TD, trajectory": run(fp.FedLSA(0.02, 3), td("trajectory"), participation=2, repeats=2),
    "any model": run(fp.FedRelax(0.5), trees(), rounds=5, network=RING),
    # Ways to run.
    "many repeats": run(fedavg(), least_squares(batch=2), repeats=64, participation=2, record_every=10),
    "long, thinned records": run(fp.Scaffold(0.02, 3), stream(), rounds=2000, participation=2, record_every=100),
    "sweep": swept,
    "extended": extended,
    "resumed": resumed(participation=2),
    "resumed, late answers": resumed(schedule=fp.Arrivals(CLOCK, working=4, buffer=2)),
    "processes": noisy(fp.Scaffold(0.02, 3), participation=3, processes=2),
    "processes, network": on_ring(fp.FedSGD(0.05), processes=2),
    # What the theory says.
    "forecast, FedAvg": forecast(fedavg(), lambda: least_squares(batch=2), participation=2),
    "forecast, SCAFFOLD": forecast(fp.Scaffold(0.05, 3), lambda: quadratic(0.3), participation=2),
    "forecast, FedProx": forecast(fp.FedProx(0.05, 3), lambda: logistic(batch=3)),
    "forecast, FedLSA": forecast(fp.FedLSA(0.02, 3), td),
    "forecast, stragglers": forecast(fedavg(0.05, steps.Stragglers(4, 0.5)), lambda: quadratic(0.3)),
    "forecast, answering": forecast(
        fp.Scaffold(0.05, 3),
        lambda: least_squares(batch=2),
        participation=fp.Answering(fp.Uniform(4), probability=0.7, keep=2),
    ),
    "forecast, Scaffnew": forecast(fp.Scaffnew(0.05, probability=0.4), lambda: quadratic(0.3)),
    "forecast, FedAvgM": forecast(fp.FedAvgM(0.05, 2, momentum=0.5), lambda: least_squares(batch=2), participation=3),
    "forecast, FedGD on a ring": forecast(fp.FedGD(0.05, coupling=0.5), quadratic, network=RING),
    "forecast, FedRelax on a ring": forecast(fp.FedRelax(0.5), lambda: logistic(), network=RING),
    "forecast, FedAvg by gossip": forecast(fedavg(), quadratic, network=GOSSIP, exact=True),
    "forecast, delays": forecast(
        fp.FedGD(0.05), quadratic, network=RING, schedule=fp.PartiallyAsynchronous(4), exact=True
    ),
    "forecast, FedSGD on a ring": forecast(fp.FedSGD(0.05), lambda: least_squares(batch=2), network=RING),
}


# Keeping and comparing.


def results(names: list[str]) -> Iterator[tuple[str, Arrays]]:
    for name in names:
        yield name, EXPERIMENTS[name]()


def keep(file: Path, names: list[str]) -> None:
    found = {f"{name}/{part}": array for name, parts in results(names) for part, array in parts.items()}
    np.savez(file, **found)
    print(f"kept {len(names)} experiments in {file}")


def compare(file: Path, names: list[str]) -> int:
    """0 where everything agrees, 1 where not; an experiment that fails differs."""
    with np.load(file) as stored:
        kept = dict(stored)
    known = {key.split("/")[0] for key in kept}
    differ = 0
    for name in names:
        if name not in known:
            print(f"{name:34} not in {file}")
            continue
        verdict, same = judge(name, {key.split("/", 1)[1]: a for key, a in kept.items() if key.split("/")[0] == name})
        differ += not same
        print(f"{name:34} {verdict}", flush=True)
    return int(differ > 0)


def judge(name: str, before: Arrays) -> tuple[str, bool]:
    """What became of one experiment, and whether that is in order."""
    try:
        now = EXPERIMENTS[name]()
    except Exception as error:  # any failure is a difference, and the others are still to be compared
        return f"DIFFERENT: {type(error).__name__}: {error}".split("\n")[0], False
    if before.keys() != now.keys() or any(before[key].shape != now[key].shape for key in now):
        shapes = [{key: a.shape for key, a in parts.items()} for parts in (before, now)]
        return f"DIFFERENT: {shapes[0]} became {shapes[1]}", False
    if all(before[key].tobytes() == now[key].tobytes() for key in now):
        return "same bits", True
    worst, where = max((distance(before[key], now[key]), key) for key in now)
    same = worst <= ROUNDING
    return f"{'' if same else 'DIFFERENT: '}relative difference {worst:.1e} in {where}", same


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference, relative to the largest number; inf where one has a NaN that the other has not."""
    if (np.isfinite(a) != np.isfinite(b)).any():
        return float("inf")
    a, b = (np.where(np.isfinite(x), x, 0.0) for x in (a, b))
    return float(np.abs(a - b).max(initial=0.0) / max(np.abs(a).max(initial=0.0), np.finfo(float).tiny))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--keep", type=Path, metavar="FILE", help="run the experiments and keep their results")
    what.add_argument("--compare", type=Path, metavar="FILE", help="run them and compare with what was kept")
    parser.add_argument("--only", type=lambda text: text.split(";"), help="experiments, separated by ';'")
    options = parser.parse_args()
    names = options.only or list(EXPERIMENTS)
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        parser.error(f"no experiment {unknown[0]!r}; there are {'; '.join(EXPERIMENTS)}")
    if options.keep is None:
        return compare(options.compare, names)
    keep(options.keep, names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
