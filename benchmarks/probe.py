"""Is the advice of `fp.probe` any good? Local steps, and SCAFFOLD or not, against brute force on three small networks.

    python benchmarks/probe.py [--write]

Each network: 20 agents, step 0.1, the loss of all data after 60 rounds, mean of four runs. Advice comes from ten rounds
of FedAvg with five local steps. Brute force runs every number of local steps with both methods. `--write` puts the
table into benchmarks/PROBE.md.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import fedpoint as fp
from fedpoint.theory.probing import LOCAL

AGENTS, ROWS, FEATURES, HIDDEN, CLASSES, ROUNDS, RUNS = 20, 40, 12, 16, 5, 60, 4
NETWORKS = {  # agents' labels skewed or not, rows of a batch, participants, step
    "alike, noisy batches": (False, 2, 5, 0.1),
    "labels skewed, all rows": (True, None, 20, 0.1),
    "labels skewed, few participants": (True, 10, 4, 0.1),
}


def network(skewed: bool, batch: int | None) -> fp.problems.Problem:
    draw = np.random.default_rng(0)
    count = AGENTS * ROWS
    y = draw.integers(0, CLASSES, count)
    X = 0.8 * draw.normal(size=(CLASSES, FEATURES))[y] + draw.normal(size=(count, FEATURES))
    order = np.argsort(y, kind="stable") if skewed else np.arange(count)
    params = {
        "W": draw.normal(size=(FEATURES, HIDDEN)) / np.sqrt(FEATURES),
        "b": np.zeros(HIDDEN),
        "V": draw.normal(size=(HIDDEN, CLASSES)) / np.sqrt(HIDDEN),
    }

    def loss(params: dict, rows: tuple) -> jax.Array:
        scores = jnp.tanh(rows[0] @ params["W"] + params["b"]) @ params["V"]
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), rows[1][:, None], axis=1).mean()

    return fp.problems.Loss(loss, params, (X[order], y[order]), groups=np.arange(count) // ROWS, batch=batch)


def left(method: fp.Algorithm, problem: fp.problems.Problem, heard: int) -> float:
    """The loss after all rounds, mean over runs; infinite where one diverges."""
    try:
        run = fp.run(method, problem, ROUNDS, participation=heard, repeats=RUNS, record_every=ROUNDS)
    except fp.Diverged:
        return float("inf")
    return float(run.loss[:, -1].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    rows = []
    for name, (skewed, batch, heard, step) in NETWORKS.items():
        problem = network(skewed, batch)
        made = fp.probe(fp.FedAvg(step=step, local_steps=5), problem, participation=heard)
        found = {
            (kind, E): left((fp.Scaffold if kind else fp.FedAvg)(step=step, local_steps=E), problem, heard)
            for kind in (False, True)
            for E in LOCAL
        }
        best = min(found, key=lambda key: found[key])
        advised = made.scaffold, made.local_steps
        words = {key: f"{'SCAFFOLD' if key[0] else 'FedAvg'}, E = {key[1]}: {found[key]:.4f}" for key in found}
        rows.append([name, words[best], words[advised], f"{found[False, 5]:.4f}"])
        print(name, made, *words.values(), f"load {os.getloadavg()[0]:.1f}", sep="\n", flush=True)
    table = ["| network | best of all | as advised | FedAvg, E = 5 |", "|---|---|---|---|"]
    table += ["| " + " | ".join(row) + " |" for row in rows]
    print(*table, sep="\n")
    if given.write:
        text = [
            "# Is the advice of a probe any good?",
            "",
            f"`python benchmarks/probe.py --write`: {' '.join(SAID)}",
            "",
        ]
        Path(__file__).with_name("PROBE.md").write_text("\n".join([*text, *table]) + "\n")


SAID = (
    f"loss of all data after {ROUNDS} rounds, mean of {RUNS} runs, on three",
    f"networks with one hidden layer, {AGENTS} agents and step 0.1. Less is better.",
)

if __name__ == "__main__":
    main()
