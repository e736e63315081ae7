"""Is bias correction worth it on this graph? Steady-state error against the spectral gap: forecasts, with dots of runs.

python benchmarks/consensus.py            # writes docs/consensus.png and prints its table
python benchmarks/consensus.py --scale    # processor time of a tick beside FedGD's: 100,000 nodes of degree 8, d = 10
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np

import fedpoint as fp
from fedpoint.show.drawing import Side, panel
from fedpoint.show.lines import ChartLine, known
from fedpoint.show.plots import drawn

K, STEP, REPEATS, ROUNDS = 20, 0.05, 40, 2000
METHODS = {"diffusion": fp.Diffusion, "exact diffusion": fp.ExactDiffusion, "gradient tracking": fp.GradientTracking}


def problem() -> fp.problems.Quadratic:
    """Scalar quadratics whose curvatures and centers differ, with noisy gradients."""
    rng = np.random.default_rng(1)
    return fp.problems.Quadratic(np.linspace(0.5, 2.0, K)[:, None, None], rng.normal(size=(K, 1)), noise=0.3)


def networks() -> list[fp.Network]:
    """From a ring to everybody, by ever more edges."""
    degrees = [2, 3, 4, 6, 8, 11, 15, K - 1]
    return [fp.Network.random(K, degree, seed=3).mixing() for degree in degrees]


def measured(method: fp.Algorithm, network: fp.Network) -> tuple[float, float]:
    """The mean over the second half of long runs, and its standard error over the runs."""
    run = fp.run(method, problem(), network=network, rounds=ROUNDS, repeats=REPEATS, seed=1, record_every=10)
    late = run.error[:, len(run.rounds) // 2 :].mean(axis=1)
    return float(late.mean()), float(late.std(ddof=1) / np.sqrt(REPEATS))


def tick_time(method: fp.Algorithm, task: fp.problems.Quadratic, network: fp.Network, ticks: int = 40) -> float:
    """Processor seconds of a tick: a longer run minus a shorter one, both compiled before."""
    spent = []
    for rounds in (5, 5 + ticks):
        begun = time.process_time()
        fp.run(method, task, rounds=rounds, network=network, record_every=rounds)
        spent.append(time.process_time() - begun)
    return (spent[1] - spent[0]) / ticks


def scale(nodes: int = 100_000, degree: int = 8, dim: int = 10, repeats: int = 3) -> None:
    """A tick of every method beside FedGD's, in turns; the least of a few, since others use the machine too."""
    rng = np.random.default_rng(0)
    task = fp.problems.Quadratic(rng.uniform(0.5, 2.0, nodes), rng.normal(size=(nodes, dim)))
    network = fp.Network.random(nodes, degree, seed=0)
    mixing = network.mixing()
    asked: list[tuple[fp.Algorithm, fp.Network]] = [(fp.FedGD(step=0.02, coupling=0.05), network)]
    asked += [(make(STEP), mixing) for make in (*METHODS.values(), fp.Extra)]
    for method, where in asked:  # compiled
        fp.run(method, task, rounds=1, network=where, record_every=1)
    times = [[tick_time(method, task, where) for method, where in asked] for _ in range(repeats)]
    least = np.min(times, axis=0)
    for (method, _), seconds in zip(asked, least, strict=True):
        print(f"{method.card.title:18} {1e3 * seconds:7.1f} ms a tick, {seconds / least[0]:.2f} times FedGD's")
    print(f"memory at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "consensus.png")
    given = parser.parse_args()
    if given.scale:
        scale()
        return
    out = given.out
    lines: list[ChartLine] = []
    print(f"{'spectral gap':>12}  " + "  ".join(f"{name + ': forecast':>28} {'runs':>22}" for name in METHODS))
    nets = networks()
    gaps = [net.spectral_gap for net in nets]
    rows = [[f"{gap:12.4f}"] for gap in gaps]
    for i, (name, make) in enumerate(METHODS.items()):
        floors = [fp.forecast(make(STEP), problem(), network=net).floor for net in nets]
        dots = [measured(make(STEP), net) for net in nets]
        look: ChartLine = {"name": name, "colour": i, "x": gaps}
        low, high = ([mean + sign * 2 * error for mean, error in dots] for sign in (-1, 1))
        lines.append({**look, "y": known(floors)})
        lines.append({**look, "y": known(m for m, _ in dots), "low": known(low), "high": known(high), "dots": True})
        for row, floor, (mean, error) in zip(rows, floors, dots, strict=True):
            row.append(f"{floor:28.5f} {f'{mean:.5f} ± {error:.5f}':>22}")
    print("\n".join("  ".join(row) for row in rows))
    across, up = Side("spectral gap of the mixing matrix", log=True), Side("steady-state error per node", log=True)
    drawn(panel(lines, across, up, note="lines: forecast; dots: mean of runs, with two standard errors"), out)
    print(out)


if __name__ == "__main__":
    main()
