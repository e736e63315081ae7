"""What do privacy and compression cost? Error against epsilon and against bytes, forecasts beside runs.

python benchmarks/price.py            # tables, and the pictures docs/private.png and docs/compressed.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import fedpoint as fp

DOCS = Path(__file__).parent.parent / "docs"


def private(runs: int) -> fp.Price:
    """1,000 agents, a tenth of them in a round, 60 rounds; more and more noise."""
    centers = 1.0 + 0.5 * np.random.default_rng(0).normal(size=(1000, 10))
    problem = fp.problems.Quadratic(1.0, centers, noise=0.1)
    noises = [[fp.channel.Clip(4.0), fp.channel.Gaussian(z)] for z in (0.6, 0.8, 1.2, 2.0, 4.0)]
    who = fp.participation.Poisson(0.1)
    method = fp.FedAvg(step=0.05, local_steps=2)
    return fp.price(method, problem, channels=[None, *noises], rounds=60, runs=runs, participation=who)


def compressed(runs: int) -> fp.Price:
    """50 agents, 100 numbers, 200 rounds; fewer and fewer bits a round."""
    rng = np.random.default_rng(1)
    problem = fp.problems.Quadratic(rng.uniform(0.5, 2.0, 100), 0.3 * rng.normal(size=(50, 100)) + 1.0, noise=0.01)
    ways: list[fp.Channel | None] = [None, fp.channel.Cast("float32"), fp.channel.Cast("bfloat16")]
    ways += [fp.channel.RandK(part) for part in (0.5, 0.25, 0.1)]
    ways += [fp.channel.TopK(part) for part in (0.25, 0.1, 0.05)]
    ways += [fp.channel.Quantise(bits) for bits in (8, 4, 2)]
    return fp.price(fp.FedAvg(step=0.05), problem, channels=ways, rounds=200, runs=runs, participation=25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    runs = parser.parse_args().runs
    for name, make in (("private", private), ("compressed", compressed)):
        made = make(runs)
        print(made, end="\n\n", flush=True)
        made.plot(DOCS / f"{name}.png")


if __name__ == "__main__":
    main()
