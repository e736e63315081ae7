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
    """200 agents, a fifth of them in a round, 40 rounds; more and more noise."""
    centers = 1.0 + 0.3 * np.random.default_rng(0).normal(size=(200, 5))
    problem = fp.problems.Quadratic(1.0, centers, noise=0.05)
    noises = [[fp.channel.Clip(4.0), fp.channel.Gaussian(z)] for z in (0.7, 1.0, 1.5, 2.5)]
    who = fp.participation.Poisson(0.2)
    return fp.price(fp.FedAvg(step=0.1), problem, channels=[None, *noises], rounds=40, runs=runs, participation=who)


def compressed(runs: int) -> fp.Price:
    """20 agents, 40 numbers, 100 rounds; fewer and fewer bits a round."""
    rng = np.random.default_rng(1)
    problem = fp.problems.Quadratic(1.0, 0.3 * rng.normal(size=(20, 40)) + 1.0, noise=0.01)
    ways: list[fp.Channel | None] = [None, fp.channel.Cast("float32"), fp.channel.Cast("bfloat16")]
    ways += [fp.channel.RandK(part) for part in (0.5, 0.25, 0.1)]
    ways += [fp.channel.TopK(part) for part in (0.5, 0.25, 0.1)]
    ways += [fp.channel.Quantise(bits) for bits in (8, 4, 2)]
    return fp.price(fp.FedAvg(step=0.1), problem, channels=ways, rounds=100, runs=runs, participation=10)


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
