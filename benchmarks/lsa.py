"""How fast is FedLSA on TD? Against the loop over agents and steps that a paper's author would write.

    python benchmarks/lsa.py [--repeats 5] [--write]

N = 100 agents, H = 1,000 local steps, TD(0) on Garnet problems with d = 8. Rounds per second, medians of interleaved
repeats, compilation apart; and the memory of a run with H = 10,000. `--write` puts the figures into benchmarks/LSA.md.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads do not pay at these sizes, and idle ones spin
os.environ["FEDPOINT_CACHE"] = "off"  # compile times are those of a first start

import argparse
import resource
import statistics
import time
from pathlib import Path

import baselines as b
import jax
import numpy as np

import fedpoint as fp

N, H, STEP, ROUNDS = 100, 1000, 0.1, 5
TARGET = 30.0


def loop(problem: fp.problems.TD, rounds: int, seed: int = 0) -> np.ndarray:
    """FedLSA as one writes it: for every round, agent and step, draw a transition and step."""
    rng = np.random.default_rng(seed)
    tables = []
    for chain in problem.chains:
        joint = chain.stationary[:, None] * chain.moves
        tables.append((np.cumsum(joint.ravel()), chain.reward))
    phi, S = problem.features, problem.features.shape[0]
    th = np.zeros(phi.shape[1])
    for _ in range(rounds):
        ends = []
        for edges, reward in tables:
            w = th.copy()
            for _ in range(H):
                s, after = divmod(int(np.searchsorted(edges, rng.random() * edges[-1])), S)
                delta = reward[s] + problem.gamma * (phi[after] @ w) - phi[s] @ w
                w += STEP * delta * phi[s]
            ends.append(w)
        th = np.mean(ends, axis=0)
    return th


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write benchmarks/LSA.md")
    options = parser.parse_args()
    td = fp.problems.garnet(agents=N, heterogeneity=0.5)
    many = 40

    def ours(local_steps: int = H, rounds: int = many):
        return fp.run(fp.FedLSA(step=STEP, local_steps=local_steps), td, rounds=rounds)

    begun = time.perf_counter()
    ours()
    cold = time.perf_counter() - begun
    jobs = {"fedpoint": ours, "NumPy, loop over agents and steps": lambda: loop(td, 1)}
    seconds = {name: statistics.median(times) for name, times in b.interleaved(jobs, options.repeats).items()}
    rates = {"fedpoint": many / seconds["fedpoint"], "NumPy, loop over agents and steps": 1 / seconds[list(jobs)[1]]}
    ratio = rates["fedpoint"] / rates["NumPy, loop over agents and steps"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ours(10_000, 3)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    found, plain = ours(H, 10).model[0], loop(td, 3)
    away = float(np.linalg.norm(found - plain) / np.linalg.norm(plain))
    lines = ["| N = 100, H = 1,000, TD with d = 8 | rounds/s |", "|---|---:|"]
    lines += [f"| {name} | {rate:.2f} |" for name, rate in rates.items()]
    verdict = "met" if ratio >= TARGET else "missed"
    tail = (
        f"fedpoint is {ratio:.0f} times faster (target {TARGET:g}: {verdict}); compiled in "
        f"{cold - seconds['fedpoint']:.1f} s. H = 10,000 took {grown:.0f} MB more memory. Both end within "
        f"{100 * away:.0f} % of each other (noise of one run each)."
    )
    text = "\n".join([*lines, "", tail])
    print(text)
    if options.write:
        head = f"# TD with many local steps\n\nWritten by `python benchmarks/lsa.py --write` (jax {jax.__version__}, "
        (Path(__file__).parent / "LSA.md").write_text(f"{head}2 cores, shared).\n\n{text}\n")


if __name__ == "__main__":
    main()
