"""How long from a file to a model? A CSV of a million rows against scikit-learn's SGDClassifier on the pooled rows.

    python benchmarks/tables.py [--rows 1000000] [--repeats 5] [--write]

20 columns and a bank for each row, 1,000 banks. Three figures:

- reading the file, by each parser, and as Parquet;
- peak memory of `fedpoint run` on it, 100 rounds of logistic regression from reading to the folder, in a process of
  its own;
- time to the same loss: FedAvg over the banks, and SGDClassifier over all rows, to 1 % above the least log loss.
  Compilation apart. Each with a plain choice of its step, and with the best of a few that were tried by hand. The
  machine is shared, so repeats are interleaved and what counts are ratios.

`--write` puts the figures into benchmarks/TABLES.md. It needs pandas and pyarrow, which `make setup` brings.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads do not pay at these sizes, and idle ones spin
os.environ["FEDPOINT_CACHE"] = "off"  # compile times are those of a first start

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from sklearn.linear_model import SGDClassifier

import fedpoint as fp
from fedpoint.data.columns import read_columns

BANKS, D, RIDGE, ROUNDS, LOCAL = 1000, 20, 1e-4, 100, 10
MEMORY = 2.0  # GB
ABOVE = 1.01  # times the least loss

# The first of each is plain: the file's above, scikit-learn's default. The second was the fastest, on 300,000 rows, of
# batches of 4, 8 and 32 with steps 0.3, 1 and 2; and of the default, averaging, constant steps 0.003, 0.01 and 0.03 and
# inverse scaling from 0.1.
FEDERATED = {"batch 32, step 1": (32, 1.0), "batch 4, step 2": (4, 2.0)}
POOLED = {
    "its own schedule": ({}, 20_000),  # and how many rows it takes between two looks at its loss
    'learning_rate="invscaling", eta0=0.1': ({"learning_rate": "invscaling", "eta0": 0.1}, 1_000),
}

TOML = """\
rounds = 100
record_every = 10
[problem]
kind = "table"
file = "loans.csv"
target = "default"
agent = "bank"
ridge = 1e-4
batch = 32
[algorithm]
name = "fedavg"
step = 1.0
local_steps = 10
"""


def make(folder: Path, rows: int) -> None:
    """Loans of banks that differ: classes drawn by each bank's own logistic model."""
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    X, bank = rng.standard_normal((rows, D)).round(6), rng.integers(0, BANKS, rows)
    models = rng.standard_normal(D) / 2 + 0.3 * rng.standard_normal((BANKS, D))
    chance = 1 / (1 + np.exp(-(X * models[bank]).sum(1) - 0.5))
    columns = {"bank": np.array([f"bank{k}" for k in range(BANKS)])[bank]}
    columns |= {f"x{j}": X[:, j] for j in range(D)}
    columns["default"] = (rng.random(rows) < chance).astype(int)
    table = pyarrow.table(columns)
    pyarrow.csv.write_csv(table, folder / "loans.csv", pyarrow.csv.WriteOptions(quoting_style="none"))
    pyarrow.parquet.write_table(table, folder / "loans.parquet")
    (folder / "loans.toml").write_text(TOML)


def reading(folder: Path, repeats: int) -> dict[str, float]:
    """Seconds to read all columns: medians of interleaved repeats."""
    from pandas import read_csv

    jobs = {
        "CSV": lambda: read_columns(folder / "loans.csv", names=["bank"], parser="pandas"),
        "CSV, by Python's csv": lambda: read_columns(folder / "loans.csv", names=["bank"], parser="csv"),
        "Parquet": lambda: read_columns(folder / "loans.parquet", names=["bank"]),
        "`pandas.read_csv` alone, unchecked": lambda: read_csv(folder / "loans.csv"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            seconds[name].append(timed(job)[0])
    return {name: statistics.median(some) for name, some in seconds.items()}


def timed(job):
    start = time.perf_counter()
    made = job()
    return time.perf_counter() - start, made


def memory(folder: Path) -> tuple[float, float]:
    """Gigabytes at the peak, and seconds, of a whole `fedpoint run` in a process of its own."""
    command = [sys.executable, "-m", "fedpoint", "run", "loans.toml", "--folder", "run", "--no-figure", "--quiet"]
    seconds, _ = timed(lambda: subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL))
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9, seconds


def federated(problem, step: float, goal: float) -> tuple[float, int]:
    """Seconds of the rounds that it takes, and how many; compilation, in the run before, apart."""
    algorithm = fp.FedAvg(step=step, local_steps=LOCAL, normalise=True)
    loss = fp.run(algorithm, problem, rounds=30).loss[0]
    needed = int(np.argmax(loss <= goal))
    if not loss[needed] <= goal:
        raise SystemExit(f"FedAvg stays above {goal:.4f}: {loss.min():.4f}")
    return timed(lambda: fp.run(algorithm, problem, rounds=needed))[0], needed


def pooled(problem, choice: dict, piece: int, goal: float, seed: int) -> tuple[float, int]:
    """Seconds within `partial_fit`, and rows; rows come in a random order, as SGD wants them."""
    model = SGDClassifier(loss="log_loss", alpha=RIDGE, random_state=seed, **choice)
    order = np.random.default_rng(seed).permutation(len(problem.X))
    X, y = problem.X[order, :-1], problem.label[order]
    seconds = 0.0
    for start in range(0, 20 * len(X), piece):
        at = start % len(X)
        some = slice(at, at + piece)
        seconds += timed(lambda s=some: model.partial_fit(X[s], y[s], classes=[0, 1]))[0]
        w = np.append(model.coef_[0], model.intercept_)
        if problem.objective(w[None])[0] <= goal:
            return seconds, start + piece
    raise SystemExit("SGDClassifier does not get there in 20 passes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write benchmarks/TABLES.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, options.rows)
        peak, whole = memory(folder)
        read = reading(folder, options.repeats)
        table = fp.data.read_table(folder / "loans.csv", "default", "bank")
    problems = {name: table.problem(ridge=RIDGE, batch=batch) for name, (batch, _) in FEDERATED.items()}
    del table
    first = next(iter(problems.values()))
    goal = ABOVE * float(first.objective(first.solution()[None])[0])
    ours: dict[str, list] = {name: [] for name in FEDERATED}
    theirs: dict[str, list] = {name: [] for name in POOLED}
    for seed in range(options.repeats):
        for name, (_, step) in FEDERATED.items():
            ours[name].append(federated(problems[name], step, goal))
        for name, (choice, piece) in POOLED.items():
            theirs[name].append(pooled(first, choice, piece, goal, seed))
    text = report(options.rows, peak, whole, read, ours, theirs, goal)
    print(text)
    if options.write:
        (Path(__file__).parent / "TABLES.md").write_text(text)


def report(rows, peak, whole, read, ours, theirs, goal) -> str:
    fitted = "met" if peak <= MEMORY else "missed"
    reads = "\n".join(f"| {name} | {seconds:.1f} | {rows / seconds / 1e6:.2f} |" for name, seconds in read.items())
    lines, rounds = [], []
    for name, found in ours.items():
        count, batch = found[0][1], FEDERATED[name][0]
        rounds.append(count)
        seen = f"{count} rounds, {count * BANKS * LOCAL * batch:,} rows"
        lines.append(f"| FedAvg, {LOCAL} local steps, {name} | {statistics.median(s for s, _ in found):.3f} | {seen} |")
    for name, found in theirs.items():
        seen = f"{statistics.median(n for _, n in found):,.0f} rows"
        lines.append(f"| SGDClassifier, {name} | {statistics.median(s for s, _ in found):.3f} | {seen} |")
    pairs = zip(ours.values(), theirs.values(), strict=True)
    ratios = [statistics.median(a[0] / b[0] for a, b in zip(x, y, strict=True)) for x, y in pairs]
    table = "\n".join(lines)
    return f"""\
# From a file to a model

Written by `python benchmarks/tables.py --write` (jax {jax.__version__}, {os.cpu_count()} cores, shared: read ratios, \
not seconds).

{rows:,} rows, {D} columns and the bank's name, {BANKS:,} banks.

| reading | s | million rows/s |
|---|---:|---:|
{reads}

`fedpoint run` on the CSV file, {ROUNDS} rounds of logistic regression with all {BANKS:,} banks, from reading to the \
folder: at most {peak:.2f} GB of memory (target {MEMORY:g} GB: {fitted}), {whole:.0f} s.

| to a loss of {goal:.4f}, {100 * (ABOVE - 1):.0f} % above the least | s | seen |
|---|---:|---:|
{table}

The plain choices: FedAvg takes {ratios[0]:.2f} times SGDClassifier's time. The best of the few that were tried: \
{ratios[1]:.2f} times. Medians of {len(next(iter(ours.values())))} interleaved repeats; compilation (once for each \
shape) and reading apart for both. \
A good step needs few rows to get this far, and FedAvg's rounds ask every bank: it pays for rows that stay where \
they are, {rounds[0]} or {rounds[1]} rounds of {D + 1} numbers down and up.
"""


if __name__ == "__main__":
    main()
