"""What does a channel cost? The time of a round with it over that of the plain round, measured in turn in one run.

    python benchmarks/channels.py [--repeats 7] [--models linear mlp-100k mlp-1m] [--only top_k ...] [--write]

`--write` puts the figures into benchmarks/CHANNELS.md. Process time of all threads, medians of interleaved repeats;
models in single precision, batch 20, five local steps, ten of twenty agents a round.
"""

from __future__ import annotations

import os

os.environ["FEDPOINT_CACHE"] = "off"

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import fedpoint as fp
from fedpoint.channel import Cast, Clip, Erase, FixedPoint, Gaussian, Quantise, RandK, Sign, TopK

MOST = 10**6
AGENTS, ROWS, BATCH, STEPS, HEARD = 20, 60, 20, 5, 10
CHANNELS = {
    "plain": None,
    "cast": Cast("bfloat16"),
    "clip": Clip(1.0),
    "gaussian at the hub": [Clip(1.0), Gaussian(1.0)],
    "gaussian at agents": [Clip(1.0), Gaussian(1.0, at="agents")],
    "rand_k": RandK(0.05),
    "top_k": TopK(0.05),
    "sign": Sign(),
    "quantise": Quantise(8),
    "dithered": Quantise(8, dither=True),
    "erase": Erase(0.1),
    "fixed_point": [Clip(1.0), FixedPoint(32, range=1.0)],
}


def linear(d: int = 1000) -> tuple[fp.problems.Problem, int]:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(AGENTS * ROWS, d)).astype(np.float32) / np.sqrt(d)
    y = X.sum(1)
    return problem(lambda w, batch: ((batch[0] @ w - batch[1]) ** 2).mean(), np.zeros(d, np.float32), (X, y)), 300


def mlp(inputs: int, hidden: int, rounds: int) -> tuple[fp.problems.Problem, int]:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(AGENTS * ROWS, inputs)).astype(np.float32)
    y = draw.integers(0, 10, AGENTS * ROWS)
    params = {
        "W": (draw.normal(size=(inputs, hidden)) / np.sqrt(inputs)).astype(np.float32),
        "b": np.zeros(hidden, np.float32),
        "V": (draw.normal(size=(hidden, 10)) / np.sqrt(hidden)).astype(np.float32),
    }
    return problem(cross_entropy, params, (X, y)), rounds


def cross_entropy(params: dict, batch: tuple) -> jax.Array:
    scores = jnp.tanh(batch[0] @ params["W"] + params["b"]) @ params["V"]
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), batch[1][:, None], axis=1).mean()


def problem(loss, params, data) -> fp.problems.Problem:
    return fp.problems.Loss(loss, params, data, groups=np.arange(len(data[1])) % AGENTS, batch=BATCH, sampling="iid")


MODELS = {
    "linear": lambda: linear(),
    "mlp-100k": lambda: mlp(200, 476, 20),
    "mlp-1m": lambda: mlp(784, 1259, 4),
}


def measure(model: str, names: list[str], repeats: int) -> dict[str, float]:
    """Milliseconds of process time of a round, by channel."""
    made, rounds = MODELS[model]()
    method = fp.FedAvg(step=0.05, local_steps=STEPS)

    runs = {  # begun, and compiled
        name: fp.run(method, made, 1, participation=HEARD, channel=CHANNELS[name], record_every=MOST) for name in names
    }
    taken: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats):
        for name in names:
            begun = time.process_time()
            runs[name] = runs[name].extend(1 + (turn + 1) * rounds)
            taken[name].append((time.process_time() - begun) / rounds)
    return {name: 1000 * float(np.median(times)) for name, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--only", nargs="*", default=[name for name in CHANNELS if name != "plain"])
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    table: dict[str, dict[str, float]] = {}
    for model in given.models:
        table[model] = measure(model, ["plain", *given.only], given.repeats)
        plain = table[model]["plain"]
        print(f"{model}: plain {plain:.2f} ms a round; load {os.getloadavg()[0]:.1f}")
        for name, ms in table[model].items():
            print(f"  {name:22s} {ms:9.2f} ms  {ms / plain:5.2f}", flush=True)
    if given.write:
        write(table)


def write(table: dict[str, dict[str, float]]) -> None:
    lines = [
        "# What a channel costs",
        "",
        "`python benchmarks/channels.py --write`: process time of a round over that of the plain round, medians of",
        "interleaved repeats in one run, without what a run takes besides its rounds. FedAvg in single precision,",
        "batch 20, five local steps, 10 of 20 agents a round. The aim is 1.5 at most.",
        "",
        "| channel | " + " | ".join(table) + " |",
        "|---|" + "---|" * len(table),
        "| plain, ms a round | " + " | ".join(f"{of['plain']:.2f}" for of in table.values()) + " |",
    ]
    lines += [
        f"| {name} | " + " | ".join(f"{of[name] / of['plain']:.2f}" for of in table.values()) + " |"
        for name in next(iter(table.values()))
        if name != "plain"
    ]
    Path(__file__).with_name("CHANNELS.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
