"""What do liars do to a model, by gather? Forecasts as lines, runs as dots; and the time of a round with each gather.

Writes benchmarks/ROBUST.md and docs/robust.png. `python benchmarks/robust.py`, about two minutes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import fedpoint as fp
from fedpoint.show.drawing import Side, panel
from fedpoint.show.lines import ChartLine, known
from fedpoint.show.plots import drawn

ROOT = Path(__file__).resolve().parents[1]
AGENTS, MOST, REPEATS = 11, 3, 60
GATHERS = {
    "weighted sums": None,
    "trimmed mean (3)": fp.gather.TrimmedMean(3),
    "geometric median": fp.gather.GeometricMedian(),
    "Krum (3)": fp.gather.Krum(3),
}
TIMED = {
    **{name: gather or fp.gather.WeightedSums() for name, gather in GATHERS.items()},
    "median": fp.gather.Median(),
    "centred clipping, 3 iterations": fp.gather.CentredClipping(1.0),
    "mixing, then the median": fp.gather.NearestNeighbourMixing(3, then=fp.gather.Median()),
}


def world() -> fp.problems.Quadratic:
    rng = np.random.default_rng(2)
    places = rng.exponential(1.0, (AGENTS, 3))  # skewed, so that a robust mean has its price
    return fp.problems.Quadratic(rng.uniform(0.5, 1.5, AGENTS), places, noise=0.5)


def points(problem: fp.problems.Quadratic) -> list[tuple[str, int, float, float, float]]:
    """Gather, liars, floor as forecast, of runs, and its standard error."""
    method, found = fp.FedAvg(step=0.1, local_steps=3), []
    for name, gather in GATHERS.items():
        for liars in range(MOST + 1):
            options = {"gather": gather, "attack": fp.attack.SignFlip(list(range(liars)), scale=2.0) if liars else None}
            run = fp.run(method, problem, 300, repeats=REPEATS, record_every=15, seed=1, **options)
            errors = run.error[:, -10:].mean(axis=1)
            floor = fp.forecast(method, problem, **options).floor
            found.append(
                (name, liars, np.nan if floor is None else floor, errors.mean(), errors.std(ddof=1) / np.sqrt(REPEATS))
            )
    return found


def draw(found: list[tuple[str, int, float, float, float]]) -> None:
    lines: list[ChartLine] = []
    for i, name in enumerate(GATHERS):
        rows = [row for row in found if row[0] == name]
        look: ChartLine = {"name": name, "colour": i, "x": [float(row[1]) for row in rows]}
        lines.append({**look, "y": known(row[2] for row in rows)})
        lines.append({**look, "y": known(row[3] for row in rows), "dots": True})
    across = Side(f"agents of {AGENTS} that send the opposite of their change, twice as long", whole=True)
    up = Side("expected squared distance to the solution, once settled", log=True)
    drawn(panel(lines, across, up, note="lines: forecast; dots: mean of runs"), ROOT / "docs" / "robust.png")


def seconds(gather: fp.Gather, size: int) -> float:
    """Processor time of one gather of 10 messages, the least of several."""
    messages, weights = jnp.asarray(np.random.default_rng(0).normal(size=(10, size)), jnp.float32), jnp.ones(10)
    go = jax.jit(lambda m: gather.inbox(m, weights, weights).mean)
    go(messages).block_until_ready()
    times = []
    for _ in range(7):
        begun = time.process_time()
        go(messages).block_until_ready()
        times.append(time.process_time() - begun)
    return min(times)


def main() -> None:
    found = points(world())
    draw(found)
    write(found)


def write(found: list[tuple[str, int, float, float, float]]) -> None:
    lines = [
        "# Robust gathers",
        "",
        "`python benchmarks/robust.py`",
        "",
        f"{AGENTS} agents, sign flips of twice the length, FedAvg; nan: no fixed point without noise.",
        "",
    ]
    lines += ["| gather | liars | floor, forecast | floor, runs | +- |", "|---|---|---|---|---|"]
    lines += [
        f"| {name} | {liars} | {floor:.4g} | {run:.4g} | {error:.1g} |" for name, liars, floor, run, error in found
    ]
    lines += [
        "",
        f"Milliseconds (processor) for one gather of 10 messages in single precision, load {os.getloadavg()[0]:.1f}.",
        "",
    ]
    lines += ["| gather | 10,000 numbers | 1,000,000 numbers |", "|---|---|---|"]
    for name, gather in TIMED.items():
        lines.append(f"| {name} | {1e3 * seconds(gather, 10_000):.2f} | {1e3 * seconds(gather, 1_000_000):.0f} |")
    (ROOT / "benchmarks" / "ROBUST.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
