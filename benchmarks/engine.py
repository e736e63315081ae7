"""How fast is the engine? Ratios to loops in NumPy, C and PyTorch, measured in turn in one run.

    python benchmarks/engine.py [--repeats 5] [--json FILE] [--write]

`--write` puts the figures into benchmarks/ENGINE.md.

Machines are shared and noisy, so only ratios of medians of interleaved repeats count. Compilation and import are
measured apart. "plain" is what one writes first, "tuned" what one writes when it has to be fast.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads do not pay at these sizes, and idle ones spin
os.environ["FEDPOINT_CACHE"] = "off"  # compile times are those of a first start

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import baselines as b
import jax
import jax.numpy as jnp
import numpy as np

import fedpoint as fp

STEP, NOISE = 0.02, 0.01


class Bench:
    """Rounds per second of several ways to do one job."""

    def __init__(self, title: str, ours: Callable[[int], object], rounds: int):
        self.title = title
        self.jobs: dict[str, tuple[int, Callable[[int], object]]] = {"fedpoint": (rounds, ours)}
        self.rates: dict[str, float] = {}
        self.compile = 0.0

    def against(self, name: str, function: Callable[[int], object], rounds: int) -> Bench:
        self.jobs[name] = (rounds, function)
        return self

    def measure(self, repeats: int) -> Bench:
        rounds, ours = self.jobs["fedpoint"]
        cold, warm = _seconds(lambda: ours(rounds)), _seconds(lambda: ours(rounds))
        self.compile = cold - warm
        for n, function in list(self.jobs.values())[1:]:
            function(min(n, 2))  # compiles C, imports torch
        bound = {name: (lambda n=n, f=f: f(n)) for name, (n, f) in self.jobs.items()}
        for name, seconds in b.interleaved(bound, repeats).items():
            self.rates[name] = self.jobs[name][0] / statistics.median(seconds)
        return self

    def ratio(self, name: str) -> float:
        return self.rates["fedpoint"] / self.rates[name]

    def show(self) -> None:
        print(f"\n{self.title}   (compiled in {self.compile:.2f} s)")
        for name, rate in self.rates.items():
            ratio = "" if name == "fedpoint" else f"   fedpoint is {self.ratio(name):7.2f} times as fast"
            print(f"  {name:28s} {rate:12,.0f} rounds/s{ratio}", flush=True)


def _seconds(function: Callable[[], object]) -> float:
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def streamed() -> Bench:
    """The lab: 100 agents, d = 10, everyone, one step, fresh Gaussian samples."""
    lab = fp.problems.LinearStream.sample(agents=100, dim=10, spread=0.1, noise=NOISE, seed=0)
    wk, method = lab.own.model, fp.FedAvg(step=STEP)
    bench = Bench("lab, streamed samples", lambda n: fp.run(method, lab, rounds=n).model, 40_000)
    for name, function, rounds in (
        ("NumPy, loop over agents", b.lab_numpy_loop, 500),
        ("NumPy, batched", b.lab_numpy_batched, 10_000),
        ("NumPy, batched, tuned", b.lab_numpy_ahead, 10_000),
        ("C, plain", b.lab_c, 20_000),
        ("C, tuned", b.lab_c_tuned, 20_000),
    ):
        bench.against(name, lambda n, f=function: f(wk, n, STEP, NOISE, 0), rounds)
    return bench


def stored() -> Bench:
    """The same with 100 stored samples an agent, of which each step takes a random one."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((100, 100, 10))
    y = np.einsum("knd,kd->kn", A, 1 + 0.3 * rng.standard_normal((100, 10))) + 0.1 * rng.standard_normal((100, 100))
    problem, method = fp.problems.LeastSquares(list(A), list(y), mean=True, batch=1), fp.FedAvg(step=STEP)
    bench = Bench("lab, stored samples", lambda n: fp.run(method, problem, rounds=n).model, 200_000)
    for name, function, rounds in (
        ("NumPy, loop over agents", b.lab_stored_numpy_loop, 500),
        ("NumPy, batched", b.lab_stored_numpy_batched, 10_000),
        ("NumPy, batched, tuned", b.lab_stored_numpy_ahead, 20_000),
        ("C, plain", b.lab_stored_c, 100_000),
    ):
        bench.against(name, lambda n, f=function: f(A, y, n, STEP, 0), rounds)
    return bench


def softmax() -> Bench:
    """Minibatch softmax on digits: 100 agents, Dirichlet 0.1, 10 participants, 5 epochs, batch 10."""
    X, y, groups = b.digits_split()
    problem = fp.problems.Logistic(X, y, groups=groups, ridge=0.0, batch=10, sampling="shuffle")
    method = fp.FedAvg(step=0.1, local_steps=fp.steps.Epochs(5), normalise=False)

    def ours(n: int) -> object:
        return fp.run(method, problem, rounds=n, participation=10, record_every=n).model

    bench = Bench("softmax on digits", ours, 2000)
    for name, function, rounds in (
        ("NumPy, loop over agents", b.softmax_numpy_loop, 200),
        ("NumPy, batched, tuned", b.softmax_numpy_batched, 300),
        ("C, tuned", b.softmax_c, 1000),
    ):
        bench.against(name, lambda n, f=function: f(X, y, groups, n), rounds)
    return bench


def network() -> Bench:
    """A network 784-64-10 in single precision: 100 agents of 60 rows, 10 participants, one epoch, batch 10."""
    X, y, groups = b.network_data()
    rng = np.random.default_rng(0)
    shapes = {"w1": (784, 64), "b1": (64,), "w2": (64, 10), "b2": (10,)}
    params = {k: (rng.standard_normal(s) / np.sqrt(s[0]) * (len(s) > 1)).astype(np.float32) for k, s in shapes.items()}

    def loss(p, batch):
        x, label = batch
        z = jax.nn.relu(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
        return jax.nn.logsumexp(z, axis=1) - jnp.take_along_axis(z, label[:, None], axis=1)[:, 0]

    problem = fp.problems.Loss(loss, params, (X, y.astype(np.int32)), groups=groups, batch=10, sampling="shuffle")
    method = fp.FedAvg(step=0.05, local_steps=fp.steps.Epochs(1), normalise=False)
    bench = Bench(
        "network 784-64-10",
        lambda n: fp.run(method, problem, rounds=n, participation=10, record_every=n).model,
        60,
    )
    return bench.against("PyTorch, loop over agents", lambda n: b.network_torch(X, y, groups, n), 20)


def population(repeats: int) -> dict[str, float]:
    """Time per round at L = 10 of K = 100,000 over that at K = 1,000."""
    jobs = {}
    for name, method in (("FedAvg", fp.FedAvg(step=STEP)), ("SCAFFOLD", fp.Scaffold(step=STEP))):
        for agents in (1_000, 100_000):
            lab = fp.problems.LinearStream.sample(agents=agents, dim=10, seed=0)
            jobs[name, agents] = lambda m=method, p=lab: fp.run(m, p, rounds=40_000, participation=10).model
    for job in jobs.values():
        job()
    seconds = {k: statistics.median(s) for k, s in b.interleaved({str(k): f for k, f in jobs.items()}, repeats).items()}
    print("\nL = 10 participants, microseconds a round")
    ratios = {}
    for name in ("FedAvg", "SCAFFOLD"):
        few, many = (seconds[str((name, k))] / 40_000 * 1e6 for k in (1_000, 100_000))
        ratios[name] = many / few
        print(f"  {name:10s} K = 1,000: {few:6.2f}   K = 100,000: {many:6.2f}   ratio {many / few:.2f}")
    return ratios


def in_folder(repeats: int) -> float:
    """Time of a run with a folder over that of one without: logistic, 100,000 rows, 500 agents, 10 a round."""
    rng = np.random.default_rng(0)
    X, truth = rng.standard_normal((100_000, 20)), rng.standard_normal(20)
    y, groups = (X @ truth + rng.standard_normal(len(X)) > 0).astype(int), np.arange(len(X)) % 500
    problem, method = fp.problems.Logistic(X, y, groups=groups, ridge=1e-3, batch=20), fp.FedAvg(0.1, 5)

    def job(place: Path | None = None) -> None:
        fp.run(method, problem, rounds=3000, participation=10, folder=place)

    with tempfile.TemporaryDirectory() as above:
        places = (Path(above) / str(i) for i in itertools.count())
        jobs = {"without": job, "with": lambda: job(next(places))}
        for one in jobs.values():
            one()  # compiles
        seconds = b.interleaved(jobs, repeats)
    without, kept = (statistics.median(seconds[name]) for name in jobs)
    print(f"\n3,000 rounds without a folder: {without:.2f} s   with: {kept:.2f} s   ratio {kept / without:.2f}")
    return kept / without


def import_seconds(tries: int = 5) -> float:
    """What `import fedpoint` takes beyond `import jax`: the least of several tries, each in a new process."""
    # Names load when first used: run, a method and a problem bring in everything a run needs.
    names = "fedpoint.run, fedpoint.FedAvg, fedpoint.problems.Loss"
    code = f"import jax, time; t = time.perf_counter(); import fedpoint; {names}; print(time.perf_counter() - t)"
    runs = (subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(tries))
    return min(float(r.stdout) for r in runs)


def write(benches: dict[str, Bench], ratios: dict[str, float], checks: list[tuple[str, float, str, float]]) -> None:
    """The figures as a page."""
    lines = [
        "# The engine's speed",
        "",
        f"Written by `python benchmarks/engine.py --write` (jax {jax.__version__}, NumPy {np.__version__}, "
        f"{os.cpu_count()} cores, shared). Ratios of medians of interleaved repeats; compilation apart.",
        "",
    ]
    for bench in benches.values():
        lines += [f"## {bench.title}", "", f"Compiled in {bench.compile:.1f} s.", ""]
        lines += ["| | rounds/s | fedpoint is faster by |", "|---|---:|---:|"]
        for name, rate in bench.rates.items():
            ratio = "" if name == "fedpoint" else f"{bench.ratio(name):.2f}"
            lines.append(f"| {name} | {rate:,.0f} | {ratio} |")
        lines.append("")
    lines += ["## Time per round, L = 10: K = 100,000 over K = 1,000", ""]
    lines += [f"- {name}: {ratio:.2f}" for name, ratio in ratios.items()]
    lines += ["", "## Targets", "", "| | value | target | |", "|---|---:|---:|---|"]
    for name, value, sense, target in checks:
        met = value >= target if sense == ">=" else value <= target
        lines.append(f"| {name} | {value:.2f} | {sense} {target:g} | {'met' if met else 'missed'} |")
    (Path(__file__).parent / "ENGINE.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--write", action="store_true", help="write benchmarks/ENGINE.md")
    options = parser.parse_args()
    imported = import_seconds()
    print(f"import fedpoint, beyond import jax: {imported:.2f} s")
    benches = {}
    for make in (streamed, stored, softmax, network):
        try:
            bench = make().measure(options.repeats)
        except ModuleNotFoundError as error:
            print(f"\n{make.__name__}: left out, {error.name} is not installed (make bench installs it)")
            continue
        bench.show()
        benches[make.__name__] = bench
    ratios = population(options.repeats)
    checks = [("import beyond jax, s", imported, "<=", 0.2)]
    for job, name, target in (
        ("streamed", "NumPy, batched", 1.1),
        ("streamed", "C, plain", 0.65),
        ("stored", "NumPy, batched", 10.0),
        ("softmax", "NumPy, loop over agents", 3.5),
        ("network", "PyTorch, loop over agents", 1.0),
    ):
        if job in benches:
            checks.append((f"{job} / {name}", benches[job].ratio(name), ">=", target))
    checks.append(("streamed, compile time, s", benches["streamed"].compile, "<=", 2.0))
    checks.append(("run with a folder / without", in_folder(options.repeats), "<=", 1.3))
    checks += [(f"{name}, K = 100,000 / K = 1,000", r, "<=", 1.5) for name, r in ratios.items()]
    print("\ntargets")
    for name, value, sense, target in checks:
        met = value >= target if sense == ">=" else value <= target
        print(f"  {'met   ' if met else 'MISSED'} {name:40s} {value:8.2f}   ({sense} {target:g})")
    if options.write:
        write(benches, ratios, checks)
    if options.json:
        figures = {n: {"rates": x.rates, "compile": x.compile} for n, x in benches.items()}
        options.json.write_text(json.dumps({"import": imported, "population": ratios, **figures}, indent=2))


if __name__ == "__main__":
    main()
