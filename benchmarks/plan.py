"""Does `fp.plan` choose as well as brute force would, and does it keep what it promises?

    python benchmarks/plan.py [--only NAME ... | --digits] [--write]

Twelve small problems, half of them with curved fields. For each: the plan; the mean of 400 runs of its first choice,
after the planned rounds; and brute force: every (method, step, local steps, participants) of a grid is run 100 times at
once, and costs what it has sent at the first round at which the mean of these runs is at most the target. The least
cost of a grid has luck on its side, so that the regret is told rather too high. `--write` puts the rows that were
measured into benchmarks/PLAN.md, beside those of other problems that it has. `--digits`: of softmax on digits, where
brute force takes too long, how long a plan of all default settings takes, and what comes of its promise.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from measured_at import measured_at
from sklearn.datasets import load_digits

import fedpoint as fp

METHODS: dict[str, Callable[[float, int], fp.Algorithm]] = {
    "gradient_exchange": lambda step, E: fp.GradientExchange(step),
    "fedavg": lambda step, E: fp.FedAvg(step, E),
    "scaffold": lambda step, E: fp.Scaffold(step, E),
}
LOCAL_STEPS = [1, 4, 16]
FEW = 2  # participants, beside everyone
STEPS = 24  # of the grid, from a thousandth of the stable one to three times that
GRID_RUNS, RUNS = 100, 400
FURTHER = 1.5  # times the plan's cost, up to which brute force looks
LONGEST = 3000  # rounds of a grid
REGRET = 0.1


def streams(agents: int, dim: int, spread: float, noise: float, seed: int) -> fp.Problem:
    """Regressors whose covariances differ."""
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(agents, dim, dim)) / math.sqrt(dim)
    R = roots @ np.swapaxes(roots, 1, 2) + 0.5 * np.eye(dim)
    return fp.problems.LinearStream(1 + spread * rng.normal(size=(agents, dim)), noise, R)


def tables(agents: int, batch: int | None, seed: int) -> fp.Problem:
    rng = np.random.default_rng(seed)
    A = [rng.normal(size=(12, 2)) for _ in range(agents)]
    b = [a @ (1 + 0.3 * rng.normal(size=2)) + 0.1 * rng.normal(size=12) for a in A]
    return fp.problems.LeastSquares(A, b, mean=True, batch=batch)


def classes(agents: int, batch: int | None, skewed: bool, kinds: int, seed: int) -> fp.Problem:
    """Logistic or softmax; skewed: agents hold rows of similar labels."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(15 * agents, 2))
    scores = X @ rng.normal(size=(2, kinds)) * 2 + 0.5 * rng.normal(size=(len(X), kinds))
    y = scores.argmax(1)
    order = np.argsort(y, kind="stable") if skewed else np.arange(len(X))
    groups = np.empty(len(X), int)
    groups[order] = np.arange(len(X)) * agents // len(X) if skewed else np.arange(len(X)) % agents
    return fp.problems.Logistic(X, y, groups=groups, ridge=0.1, batch=batch)


def counts(agents: int, batch: int, seed: int) -> fp.Problem:
    """Poisson regression with a ridge."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(12 * agents, 2))
    y = rng.poisson(np.exp(X @ [0.6, -0.4])).astype(float)

    def loss(w: jax.Array, rows: tuple[jax.Array, jax.Array]) -> jax.Array:
        scores = rows[0] @ w
        return jnp.exp(scores) - rows[1] * scores + 0.05 * w @ w

    w = np.zeros(2)
    for _ in range(50):  # Newton; agents hold equally many rows
        chance = np.exp(X @ w)
        curvature = (X.T * chance) @ X / len(X) + 0.1 * np.eye(2)
        w = w - np.linalg.solve(curvature, X.T @ (chance - y) / len(X) + 0.1 * w)
    groups = np.arange(len(X)) % agents
    return fp.problems.Loss(loss, np.zeros(2), (X, y), groups=groups, solution=w, convex=True, batch=batch)


@dataclass(frozen=True)
class Task:
    """target: of the squared distance, as a part of that at the start. stable: about the longest step."""

    make: Callable[[], fp.Problem]
    target: float
    stable: float
    curved: bool = False


TASKS = {
    "streams, K = 6, d = 3": Task(lambda: streams(6, 3, 0.3, 0.01, 0), 0.002, 1.0),
    "streams that agree, K = 6": Task(lambda: fp.problems.LinearStream(np.ones((6, 3)), 0.1), 0.0001, 1.0),
    "noisy streams, K = 10, d = 2": Task(lambda: streams(10, 2, 0.1, 0.5, 1), 0.01, 1.0),
    "least squares, batch 3": Task(lambda: tables(5, 3, 0), 0.0005, 1.0),
    "least squares, all rows": Task(lambda: tables(8, None, 2), 1e-6, 1.5),
    "quadratics": Task(lambda: fp.problems.Quadratic([0.5, 1.0, 3.0], [[0.0], [1.0], [2.5]], noise=0.02), 0.0005, 1.0),
    "logistic, batch 5": Task(lambda: classes(4, 5, False, 2, 0), 0.004, 6.0, True),
    "logistic, batch 1": Task(lambda: classes(4, 1, False, 2, 1), 0.02, 6.0, True),
    "logistic, skewed labels": Task(lambda: classes(4, 5, True, 2, 2), 0.01, 6.0, True),
    "logistic, all rows": Task(lambda: classes(6, None, True, 2, 3), 1e-5, 6.0, True),
    "softmax, 3 classes, batch 5": Task(lambda: classes(4, 5, False, 3, 4), 0.01, 6.0, True),
    "Poisson, batch 4": Task(lambda: counts(4, 4, 5), 0.003, 2.0, True),
}


def floats(method: str, problem: fp.Problem, heard: int) -> int:
    """Numbers that a round sends, both ways."""
    size = sum(np.size(leaf) for leaf in jax.tree.leaves(problem.solution()))
    return heard * size * (4 if method == "scaffold" else 2)


@dataclass(frozen=True)
class Found:
    """The cheapest of a grid."""

    cost: float
    label: str


def brute_force(problem: fp.Problem, target: float, stable: float, most: float) -> Found:
    """The least cost of the grid, up to `most`."""
    best = Found(math.inf, "nothing")
    steps = list(stable * np.geomspace(1e-3, 3, STEPS))
    for method, make in METHODS.items():
        grid = [1] if method == "gradient_exchange" else LOCAL_STEPS
        for who in (None, FEW):
            each = floats(method, problem, problem.agents if who is None else who)
            for E in grid:
                rounds = min(int(min(most, best.cost) / each), LONGEST)
                if rounds < 1:
                    continue
                done = fp.sweep(
                    make(0.1, E), problem, {"step": steps}, rounds, participation=who, repeats=GRID_RUNS, record_every=1
                )
                with np.errstate(all="ignore"):
                    below = done.error.mean(1) <= target  # (steps, rounds + 1); what diverged is not
                first = np.where(below.any(1), below.argmax(1), LONGEST + 1)
                at = int(first.argmin())
                if first[at] <= rounds and first[at] * each < best.cost:
                    label = f"{method}, step {steps[at]:.2g}, E = {E}, {'all' if who is None else who}"
                    best = Found(float(first[at] * each), label)
    return best


def measure(name: str, task: Task) -> str:
    """A row of the table."""
    problem = task.make()
    start = fp.run(fp.FedAvg(step=1e-9), problem, 0).error[0, 0]
    target = float(task.target * start)
    begun = time.process_time()
    made = fp.plan(problem, target, methods=list(METHODS), local_steps=LOCAL_STEPS, participation=[None, FEW])
    seconds = time.process_time() - begun
    best = made.best
    if best is None:
        return (
            f"| {name} | {kind(task)} | {target:.2g} | nothing | - | - | - | - | - | {seconds:.0f} | {measured_at()} |"
        )
    assert best.use.floats_up + best.use.floats_down == floats(
        {"Gradient exchange": "gradient_exchange", "FedAvg": "fedavg", "SCAFFOLD": "scaffold"}[best.title],
        problem,
        round(best.use.agents),
    )
    (m,) = made.verify(top=1, repeats=RUNS, seed=1)
    found = brute_force(problem, target, task.stable, FURTHER * best.cost)
    random = m.standard_error > 1e-9 * m.mean  # else all runs are one
    off = (m.mean - target) / m.standard_error if random else 0.0 if m.mean <= target else math.inf
    return (
        f"| {name} | {kind(task)} | {target:.2g} | {best.label.replace('Everyone()', 'all')}, {best.rounds} rounds "
        f"| {best.error:.3g} ({best.promise}) | {m.mean:.3g} ± {m.standard_error:.1g} ({off:+.1f}) | {best.cost:,.0f} "
        f"| {found.cost:,.0f}: {found.label} | {best.cost / found.cost - 1:+.0%} | {seconds:.0f} "
        f"| {measured_at()} |"
    )


DIGITS = "Softmax on digits"


CONFIDENCE = 0.95  # of the second plan of a large model


def digits(confidence: float | None = None) -> str:
    """A plan of all default settings, and the mean of 100 runs of its first choice; with a confidence the share of 400
    runs at or below the target."""
    X, y = load_digits(return_X_y=True)
    who = np.argsort(np.argsort(y, kind="stable")) * 50 // len(y)
    problem = fp.problems.Logistic(X / 16, y, groups=who, ridge=0.01, batch=4)
    target = 0.2 * float(fp.run(fp.FedAvg(step=1e-9), problem, 0).error[0, 0])
    begun = time.process_time()
    made = fp.plan(problem, target, confidence=confidence)
    seconds, best = time.process_time() - begun, made.best
    if best is None:
        return f"{DIGITS}: nothing in {seconds:.0f} s ({measured_at()})."
    (m,) = made.verify(top=1, repeats=GRID_RUNS if confidence is None else RUNS, seed=1)
    if confidence is not None:
        return (
            f"{DIGITS}, the same with confidence {confidence:g}: {seconds:.0f} s. {best.label}, {best.rounds} rounds; "
            f"single runs stay below {best.error:.3g} ({best.promise}); {m.share:.1%} of {RUNS} runs were at or below "
            f"the target ({measured_at()})."
        )
    return (
        f"{DIGITS} (640 numbers, 50 agents), all default settings, target {target:.3g}: {seconds:.0f} s of processor "
        f"time. {best.label}, {best.rounds} rounds; promise {best.error:.3g} ({best.promise}), outcome {m.mean:.3g} ± "
        f"{m.standard_error:.1g} ({measured_at()})."
    )


def kind(task: Task) -> str:
    return "curved" if task.curved else "affine"


HEAD = """# What a plan is worth

Written by `python benchmarks/plan.py --write` (jax {version}, 2 cores, shared), problem by problem.

Methods: gradient exchange, FedAvg, SCAFFOLD; local steps 1, 4, 16; everyone or {few}. Promise: the expected error
after the planned rounds. Outcome: the mean of {runs} runs after these, with its standard error, and in brackets how
many of these it lies above the target. Brute force: the least cost over {steps} steps for every method, number of local
steps and participants, each run {grid} times. Cost: numbers sent. Regret: how much more the plan sends. A plan may
send less, for its steps are not the grid's; and where few rounds suffice, costs come in large pieces. Seconds: of
processor time, for the plan. Load: of two cores, when the row was written; ? where it was not noted.

| problem | fields | target | plan | promise | outcome | cost | brute force | regret | seconds | commit, load |
|---|---|---:|---|---:|---:|---:|---|---:|---:|---|
"""


def summary(rows: list[str]) -> str:
    """In how many the regret is small, and whether promises are kept."""
    cells = [[cell.strip() for cell in row.strip("| \n").split(" | ")] for row in rows]
    found = [c for c in cells if c[3] != "nothing"]
    small = sum(float(c[8].rstrip("%").replace(",", "")) <= 100 * REGRET for c in found)
    broken = [c[0] for c in found if float(c[5].split("(")[1].rstrip(")")) > 3]
    kept = f"broken by more than 3 standard errors: {', '.join(broken)}" if broken else "none is broken by more than 3"
    more = "" if len(rows) == len(TASKS) else f" Not measured: {len(TASKS) - len(rows)} of {len(TASKS)} problems."
    return (
        f"Regret of at most {REGRET:.0%}: {small} of {len(rows)} problems. Promises: {kept}"
        f"{'' if broken else ' standard errors'}.{more}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=TASKS, help="measure these problems")
    parser.add_argument("--write", action="store_true", help="write benchmarks/PLAN.md")
    parser.add_argument("--digits", action="store_true", help="measure the plan of a large model")
    options = parser.parse_args()
    path = Path(__file__).parent / "PLAN.md"
    lines = path.read_text().splitlines() if path.exists() else []
    rows = {line.split(" | ")[0].lstrip("| "): line for line in lines if line.startswith("| ")}
    large = "\n\n".join(line for line in lines if line.startswith(DIGITS))
    for name in [DIGITS] if options.digits else options.only or TASKS:
        if name == DIGITS:
            large = f"{digits()}\n\n{digits(CONFIDENCE)}"
        else:
            rows[name] = measure(name, TASKS[name])
        print(large if name == DIGITS else rows[name], flush=True)
        if options.write:
            kept = [rows[name] for name in TASKS if name in rows]
            head = HEAD.format(version=jax.__version__, few=FEW, runs=RUNS, steps=STEPS, grid=GRID_RUNS)
            path.write_text(head + "\n".join(kept) + "\n\n" + summary(kept) + (f"\n{large}\n" if large else ""))


if __name__ == "__main__":
    main()
