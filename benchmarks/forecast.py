"""How long does a forecast take, and how long would it take to measure the same by running?

    python benchmarks/forecast.py [--only forecasts | sizes | fits] [--row NAME] [--write]

For K = 100 agents in d = 20: the first forecast (it compiles), another one of the same method (it does not), and runs
that find the same floor to a standard error of 1 %. Of five sizes of models: a forecast with floor and curve beside 8
runs until they settle, in processor time, and the floor that these find; `--row` measures one of them and keeps the
others. And of the estimators: `forecast_` beside the fit, in processor time. `--write` puts the figures into
benchmarks/FORECAST.md, those that were measured.
"""

from __future__ import annotations

import os

os.environ["FEDPOINT_CACHE"] = "off"  # compile times are those of a first start

import argparse
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from measured_at import measured_at
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning

import fedpoint as fp
from fedpoint.estimators import FederatedClassifier, FederatedRegressor

LAB = fp.problems.LinearStream.sample(agents=100, dim=20, spread=0.1, noise=0.01, seed=0)
JOBS = {
    "FedAvg, everyone": (lambda s: fp.FedAvg(step=s, local_steps=10), None),
    "FedAvg, 10 of 100": (lambda s: fp.FedAvg(step=s, local_steps=10), 10),
    "SCAFFOLD, 10 of 100": (lambda s: fp.Scaffold(step=s, local_steps=10), 10),
    "Scaffnew, H = 10": (lambda s: fp.Scaffnew(step=s, local_steps=10), None),
}


def once(make, step: float, participation) -> tuple[float, fp.Forecast]:
    begun = time.perf_counter()
    f = fp.forecast(make(step), LAB, participation=participation)
    _ = f.limit, f.rate, f.rate_ms, f.floor
    return time.perf_counter() - begun, f


def measured(make, step: float, participation, f: fp.Forecast) -> tuple[float, float, float]:
    """Seconds until runs have found the floor to 1 %, the floor they find, and its standard error."""
    away = f.curve(1)[0] / f.floor
    settled = int(np.ceil(np.log(1000 * away) / -np.log(f.rate_ms)))  # the start has faded to 0.1 %
    rounds = 2 * max(settled, 25)
    begun, floors = time.perf_counter(), []
    while True:
        run = fp.run(make(step), LAB, rounds=rounds, participation=participation, repeats=64, seed=len(floors))
        floors.append(run.error[:, rounds // 2 :].mean(1))
        values = np.concatenate(floors)
        error = values.std(ddof=1) / np.sqrt(len(values))
        if error <= 0.01 * values.mean() or len(floors) >= 20:
            return time.perf_counter() - begun, float(values.mean()), float(error)


def large() -> float:
    """Seconds for limit and rate of a model of 2,000 numbers, a second forecast."""
    rng = np.random.default_rng(0)
    A = [rng.normal(size=(300, 2000)) / 40 for _ in range(10)]
    ls = fp.problems.LeastSquares(A, [a.sum(1) + rng.normal(size=300) for a in A], mean=True)
    for step in (0.5, 0.4):
        begun = time.perf_counter()
        f = fp.forecast(fp.FedAvg(step=step, local_steps=5, normalise=True), ls, exact=True)
        _ = f.limit, f.rate
    return time.perf_counter() - begun


# Estimators

METHODS = ("scaffold", "scaffnew", "fedavg", "fedprox", "gradient_exchange")
TABLES = {  # agents hold rows of similar targets: they differ
    "diabetes, d = 10": (FederatedRegressor, datasets.load_diabetes),
    "iris, 3 classes, d = 4": (FederatedClassifier, datasets.load_iris),
    "breast_cancer, 2 classes, d = 30": (FederatedClassifier, datasets.load_breast_cancer),
    "digits, 10 classes, d = 64": (FederatedClassifier, datasets.load_digits),
}


def beside_fit(model: FederatedRegressor | FederatedClassifier, load: Callable, tries: int) -> tuple[float, float]:
    """Processor seconds of a fit, and of what its forecast tells: the least of several."""
    X, y = load(return_X_y=True)
    who = np.argsort(np.argsort(y, kind="stable")) * 5 // len(y)
    fits, told = [], []
    for _ in range(tries):
        begun = time.process_time()
        model.fit(X, y, groups=who)
        between = time.process_time()
        str(model.forecast_)
        fits.append(between - begun)
        told.append(time.process_time() - between)
    return min(fits), min(told)


def fits() -> str:
    lines = [
        "| `forecast_`, 5 agents | method | fit, s | forecast, s | ratio | left out |",
        "|---|---|---:|---:|---:|---|",
    ]
    for table, (kind, load) in TABLES.items():
        for method in METHODS:
            model = kind(method)
            fit, told = beside_fit(model, load, tries=1 if load is datasets.load_digits else 3)
            missing = ", ".join(model.forecast_.left_out)
            lines.append(f"| {table} | {method} | {fit:.4f} | {told:.4f} | {told / fit:.2f} | {missing} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


# Sizes


class Sized(NamedTuple):
    """A problem, its method by step, the step, and who takes part."""

    problem: fp.problems.Problem
    method: Callable
    step: float
    participation: int


def lab(dim: int) -> Sized:
    problem = fp.problems.LinearStream.sample(agents=100, dim=dim, spread=0.1, noise=0.01, seed=0)
    return Sized(problem, lambda s: fp.FedAvg(step=s, local_steps=10), 0.2 / dim, 10)


def softmax() -> Sized:
    X, y = datasets.load_digits(return_X_y=True)
    who = np.argsort(np.argsort(y, kind="stable")) * 50 // len(y)
    problem = fp.problems.Logistic(X / 16, y, groups=who, ridge=0.01, batch=4)
    return Sized(problem, lambda s: fp.FedAvg(step=s, local_steps=10), 0.2, 10)


def features(dim: int = 10_000, agents: int = 200, rows: int = 10, batch: int = 5) -> fp.problems.Problem:
    rng = np.random.default_rng(0)
    X = 3 * rng.normal(size=(agents * rows, dim)) / np.sqrt(dim)
    y = X @ rng.normal(size=dim) + rng.normal(size=agents * rows) > 0
    groups = np.repeat(np.arange(agents), rows)
    return fp.problems.Logistic(X, y.astype(int), groups=groups, ridge=0.05, batch=batch)


def many_features() -> Sized:
    return Sized(features(), lambda s: fp.FedAvg(step=s, local_steps=5), 0.1, 20)


def million() -> Sized:
    """Few rows: of 1,000,000 features each takes 8 MB. It needs about 6 GB."""
    problem = features(1_000_000, agents=20, rows=2, batch=1)
    return Sized(problem, lambda s: fp.FedAvg(step=s, local_steps=2), 0.25, 4)


def network(hidden: int = 660, agents: int = 20) -> Sized:
    """One hidden layer, 49,510 numbers, with a ridge around where it begins, as in fine-tuning: forecast around where
    exact gradients lead. With a ridge around 0 hidden units trade places almost for nothing: runs wander through a
    valley for many thousands of rounds, and a forecast says that it found no fixed point."""
    X, y = datasets.load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    params = {
        "a": rng.normal(size=(64, hidden)) / 8,
        "b": np.zeros(hidden),
        "c": rng.normal(size=(hidden, 10)) / np.sqrt(hidden),
        "d": np.zeros(10),
    }

    def loss(p: dict, batch: tuple) -> jax.Array:
        x, y = batch
        z = jnp.tanh(x @ p["a"] + p["b"]) @ p["c"] + p["d"]
        ridge = 0.02 * sum(((p[name] - params[name]) ** 2).sum() for name in params)
        return jax.nn.logsumexp(z, 1) - jnp.take_along_axis(z, y[:, None], 1)[:, 0] + ridge

    problem = fp.problems.Loss(loss, params, (X / 16, y), groups=np.arange(len(y)) % agents, batch=10)
    return Sized(problem, lambda s: fp.FedAvg(step=s, local_steps=5), 0.2, 5)


SIZES = {
    "lab, d = 10": lambda: lab(10),
    "lab, d = 200": lambda: lab(200),
    "softmax on digits, 640": softmax,
    "logistic, 10,000 features, 200 agents": many_features,
    "MLP, 49,510": network,
    "logistic, 1,000,000 features, 20 agents": million,
}
LONGEST = 2000  # rounds until runs have settled


def told(one: Sized, step: float, options: dict) -> tuple[float, fp.Forecast]:
    """Processor seconds of limit, rate, floor and curve."""
    begun = time.process_time()
    f = fp.forecast(one.method(step), one.problem, participation=one.participation, **options)
    _ = f.limit, f.rate, f.rate_ms, f.floor, f.curve(100)
    return time.process_time() - begun, f


def found(one: Sized, step: float, f: fp.Forecast, rounds: int, options: dict) -> tuple[float, np.ndarray, str]:
    """Processor seconds of 8 runs of so many rounds, and the mean squared distances that each has to w*, over as many
    rounds again; where w* is not known, to the mean of all, and how far that is from the limit."""
    run = {"participation": one.participation, "repeats": 8, **options}
    fp.run(one.method(step), one.problem, 2, **run)  # compiles
    begun = time.process_time()
    fp.run(one.method(step), one.problem, rounds, record_every=rounds, **run)
    spent = time.process_time() - begun
    r = fp.run(one.method(step), one.problem, 2 * rounds, record_every=max(rounds // 10, 1), seed=1, **run)
    leaves = [np.asarray(a, float) for a in jax.tree.leaves(r.history)]
    models = np.concatenate([a.reshape(*a.shape[:2], -1) for a in leaves], axis=2)[:, np.asarray(r.rounds) >= rounds]
    if f.optimum is not None:
        return spent, ((models - f.optimum) ** 2).sum(2).mean(1), ""
    middle, runs = models.mean((0, 1)), len(models)  # the floor is around the limit, which is known to a standard error
    off = float(np.linalg.norm(middle - f.setting.flatten(f.limit)))
    said = f"; their mean is {off:.2g} from the limit, which is known to {f.limit_error:.2g}"
    return spent, ((models - middle) ** 2).sum(2).mean(1) * runs / (runs - 1), said


def size(name: str) -> str:
    one = SIZES[name]()
    options, around = {}, {}
    if one.problem.convex is None:
        near = jax.tree.map(lambda a: a[0], fp.run(one.method(one.step), one.problem, 150, exact=True).model)
        options, around = {"start": near}, {"around": near}
    first, _ = told(one, 0.9 * one.step, {**options, **around})
    seconds, f = told(one, one.step, {**options, **around})
    near_floor = np.flatnonzero(f.curve(LONGEST) <= 1.02 * f.floor)
    rounds = int(near_floor[0]) if len(near_floor) else LONGEST
    if one.problem.convex is None:  # it starts close by: from nothing, the noise takes as long
        rounds = max(rounds, int(np.ceil(np.log(0.02) / np.log(f.rate_ms))))
    spent, floors, said = found(one, one.step, f, max(rounds, 10), options)
    error = floors.std(ddof=1) / np.sqrt(len(floors))
    own = f.standard_error or 0.0
    off = floors.mean() - f.floor
    return (
        f"| {name} | {first:.1f} | {seconds:.2f} | {rounds} | {spent:.2f} | {seconds / spent:.2f} | {f.floor:.4g} ± "
        f"{own:.1g} | {floors.mean():.4g} ± {error:.1g} | {off / f.floor:+.1%}, "
        f"{abs(off) / np.hypot(own, error):.1f}{said} | {measured_at()} |"
    )


def sizes(row: str | None, before: str) -> str:
    head = (
        "| model | first forecast, s | another, s | rounds to settle | 8 runs of these, s | ratio | floor | floor they "
        "find | off, in standard errors | commit, load |"
    )
    lines = [head, "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|"]
    known = {line.split("|")[1].strip(): line for line in before.split("\n") if line.startswith("|")}
    for name in SIZES:
        line = size(name) if row in (None, name) else known.get(name)
        if line is not None:
            lines.append(line)
            print(line, flush=True)
    return "\n".join(lines)


def forecasts() -> str:
    head = "| K = 100, d = 20 | first forecast, s | another, s | floor | runs to 1 %, s | floor they find | ratio |"
    lines = [head, "|---|---:|---:|---:|---:|---:|---:|"]
    for name, (make, participation) in JOBS.items():
        first, _ = once(make, 0.002, participation)
        seconds, f = min((once(make, 0.003, participation) for _ in range(2)), key=lambda pair: pair[0])
        spent, floor, error = measured(make, 0.003, participation, f)
        lines.append(
            f"| {name} | {first:.1f} | {seconds:.2f} | {f.floor:.4g} | {spent:.1f} | {floor:.4g} ± {error:.1g} | "
            f"{spent / seconds:.1f} |"
        )
        print(lines[-1], flush=True)
    tail = f"Limit and rate for d = 2,000, K = 10 (matrix-free, after compilation): {large():.1f} s."
    print(tail)
    return "\n".join(lines) + "\n\n" + tail


PARTS = {
    "forecasts": "# What a forecast costs",
    "sizes": "# What it costs beside the run, by size",
    "fits": "# What it costs beside a fit",
}


MEASURES = {"forecasts": forecasts, "fits": fits}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, help="measure one part")
    parser.add_argument("--row", choices=SIZES, help="of sizes, measure this one and keep the others")
    parser.add_argument("--write", action="store_true", help="write benchmarks/FORECAST.md")
    options = parser.parse_args()
    path = Path(__file__).parent / "FORECAST.md"
    before = {part.split("\n")[0]: part for part in re.split(r"\n(?=# )", path.read_text())}
    text = []
    for name, title in PARTS.items():
        if options.only in (None, name):
            how = f"python benchmarks/forecast.py --only {name} --write` (jax {jax.__version__}, 2 cores, shared)."
            measured = sizes(options.row, before.get(title, "")) if name == "sizes" else MEASURES[name]()
            text.append(f"{title}\n\nWritten by `{how}\n\n{measured}\n")
        elif title in before:
            text.append(before[title].rstrip() + "\n")
    if options.write:
        path.write_text("\n".join(text))


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)
    main()
