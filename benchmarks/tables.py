"""How long from a file to a model? A CSV of a million rows against scikit-learn's SGDClassifier on the pooled rows.

    python benchmarks/tables.py [--rows 1000000] [--repeats 5] [--write]

20 columns and a bank for each row, 1,000 banks. Three figures:

- reading the file, by each parser, and as Parquet;
- peak memory of `fedpoint run` on it, 100 rounds of logistic regression from reading to the folder, in a process of
  its own;
- time to the same loss: FedAvg over the banks, and SGDClassifier over all rows, to 1 % above the least log loss.
  Compilation apart. The machine is shared, so repeats are interleaved and what counts is the ratio.

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

BANKS, D, RIDGE, ROUNDS = 1000, 20, 1e-4, 100
MEMORY = 2.0  # GB
ABOVE = 1.01  # times the least loss
PIECE = 20_000  # rows that SGDClassifier takes between two looks at its loss

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
        "CSV, with pandas installed": lambda: read_columns(folder / "loans.csv", names=["bank"], parser="pandas"),
        "CSV, base install": lambda: read_columns(folder / "loans.csv", names=["bank"], parser="numpy"),
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


def federated(problem, goal: float) -> tuple[float, int]:
    """Seconds of the rounds that it takes, and how many; compilation, in the run before, apart."""
    algorithm = fp.FedAvg(step=1.0, local_steps=10)
    fp.run(algorithm, problem, rounds=1)
    loss = fp.run(algorithm, problem, rounds=20).loss[0]
    needed = int(np.argmax(loss <= goal))
    if not loss[needed] <= goal:
        raise SystemExit(f"FedAvg stays above {goal:.4f}: {loss.min():.4f}")
    return timed(lambda: fp.run(algorithm, problem, rounds=needed))[0], needed


def pooled(problem, goal: float, seed: int) -> tuple[float, int]:
    """Seconds within `partial_fit`, and rows; rows come in a random order, as SGD wants them."""
    model = SGDClassifier(loss="log_loss", alpha=RIDGE, random_state=seed)
    order = np.random.default_rng(seed).permutation(len(problem.X))
    X, y = problem.X[order, :-1], problem.label[order]
    seconds = 0.0
    for start in range(0, 20 * len(X), PIECE):
        at = start % len(X)
        piece = slice(at, at + PIECE)
        seconds += timed(lambda p=piece: model.partial_fit(X[p], y[p], classes=[0, 1]))[0]
        w = np.append(model.coef_[0], model.intercept_)
        if problem.objective(w[None])[0] <= goal:
            return seconds, start + PIECE
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
    problem = table.problem(ridge=RIDGE, batch=32)
    del table
    goal = ABOVE * float(problem.objective(problem.solution()[None])[0])
    pairs = [(federated(problem, goal), pooled(problem, goal, seed)) for seed in range(options.repeats)]
    ours, theirs = (statistics.median(p[i][0] for p in pairs) for i in (0, 1))
    ratio = statistics.median(a[0] / b[0] for a, b in pairs)
    text = report(options.rows, peak, whole, read, pairs, ours, theirs, ratio, goal)
    print(text)
    if options.write:
        (Path(__file__).parent / "TABLES.md").write_text(text)


def report(rows, peak, whole, read, pairs, ours, theirs, ratio, goal) -> str:
    fitted = "met" if peak <= MEMORY else "missed"
    reads = "\n".join(f"| {name} | {seconds:.1f} | {rows / seconds / 1e6:.2f} |" for name, seconds in read.items())
    rounds, some = pairs[0][0][1], statistics.median(p[1][1] for p in pairs)
    faster = f"{ratio:.2f} times SGDClassifier's"
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

| to a loss of {goal:.4f}, {100 * (ABOVE - 1):.0f} % above the least | s | work |
|---|---:|---:|
| FedAvg, 10 local steps of 32 rows, step 1 | {ours:.2f} | {rounds} rounds, {rounds * BANKS * 320:,} rows seen |
| SGDClassifier on the pooled rows, its own schedule | {theirs:.2f} | {some:,.0f} rows seen |

FedAvg's time is {faster}, a median of {len(pairs)} interleaved repeats; compilation (once for each shape) and reading \
apart for both. Nobody's rows leave their bank: {rounds} rounds of {D + 1} numbers down and up.
"""


if __name__ == "__main__":
    main()
