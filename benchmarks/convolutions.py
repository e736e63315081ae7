"""How fast are convolutional networks, beside a loop in PyTorch written by hand? Processor time, one thread.

    python benchmarks/convolutions.py [--turns 5]

McMahan's CNN (1.66 million parameters) on images of FEMNIST's shape, synthetic: 60 writers of 20 to 400 rows, 5 a
round, 10 local steps on batches of 20. Both start from the same model and are timed in turn, after a warm-up; the
median of the ratios of neighbouring measurements is told. Above 1, fedpoint takes less. With PyTorch missing, fedpoint
alone is timed; --as-written leaves convolutions to XLA.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import time
from collections.abc import Callable

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["OMP_NUM_THREADS"] = "1"

import jax
import jax.numpy as jnp
import numpy as np

import fedpoint as fp

WRITERS, A_ROUND, STEPS, BATCH, CLASSES, STEP = 60, 5, 10, 20, 62, 0.05


def start(rng: np.random.Generator) -> dict[str, np.ndarray]:
    def drawn(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))).astype("f")

    kernels = {"c1": drawn(5, 5, 1, 32), "c2": drawn(5, 5, 32, 64), "d1": drawn(3136, 512), "d2": drawn(512, CLASSES)}
    return kernels | {f"b{name}": np.zeros(k.shape[-1], "f") for name, k in kernels.items()}


def loss(w: dict, batch: tuple) -> jax.Array:
    x, y = batch
    for name in ("c1", "c2"):
        x = jax.lax.conv_general_dilated(x, w[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + w[f"b{name}"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = jax.nn.relu(x.reshape(len(x), -1) @ w["d1"] + w["bd1"]) @ w["d2"] + w["bd2"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1))


def data(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    sizes = np.clip(rng.lognormal(4.6, 0.7, WRITERS), 20, 400).astype(int)
    y = rng.integers(0, CLASSES, sizes.sum())
    means = rng.normal(size=(CLASSES, 28, 28, 1))
    X = (means[y] + rng.normal(size=(len(y), 28, 28, 1))).astype("f")
    return X, y, np.repeat(np.arange(WRITERS), sizes)


def by_hand(X: np.ndarray, y: np.ndarray, who: np.ndarray, w: dict) -> Callable[[], None]:
    """The same number of steps of the same model in PyTorch."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    layers = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5, padding=2), nn.ReLU()]
    layers += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, CLASSES)]
    hub, local = nn.Sequential(*layers), nn.Sequential(*layers)
    images, labels, entropy = (
        torch.from_numpy(X.transpose(0, 3, 1, 2).copy()),
        torch.from_numpy(y),
        nn.CrossEntropyLoss(),
    )
    state = {name: p.clone() for name, p in hub.state_dict().items()}
    rng = np.random.default_rng(1)

    def round() -> None:
        total = {name: torch.zeros_like(p) for name, p in state.items()}
        for writer in rng.choice(WRITERS, A_ROUND, replace=False):
            rows = np.flatnonzero(who == writer)
            local.load_state_dict(state)
            for _ in range(STEPS):
                batch = rng.choice(rows, BATCH)
                local.zero_grad()
                entropy(local(images[batch]), labels[batch]).backward()
                with torch.no_grad():
                    for p in local.parameters():
                        p -= STEP * p.grad
            for name, p in local.state_dict().items():
                total[name] += (p - state[name]) / A_ROUND
        for name in state:
            state[name] = state[name] + total[name]

    return round


def seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--as-written", action="store_true")
    asked = parser.parse_args()
    if asked.as_written:
        import fedpoint.problems.loss

        fedpoint.problems.loss.as_products = lambda function, *_: function
    rng = np.random.default_rng(0)
    (X, y, who), w = data(rng), start(rng)
    problem = fp.problems.Loss(loss, w, (X, y), who, batch=BATCH)
    run = fp.run(fp.FedAvg(step=STEP, local_steps=STEPS), problem, 2, participation=A_ROUND, record_every=10**6)
    print(run.engine)
    found: list[tuple[float, float]] = []
    hand = by_hand(X, y, who, w) if importlib.util.find_spec("torch") else None
    if hand:
        hand()
    for _ in range(asked.turns):
        longer = int(run.session.round) + 1
        ours = seconds(lambda: run.session.advance(longer))  # noqa: B023
        found.append((ours, seconds(hand) if hand else float("nan")))
    per_step = [tuple(1e3 * s / (A_ROUND * STEPS) for s in pair) for pair in found]
    print("ms a step: fedpoint {:.1f}, PyTorch {:.1f}".format(*map(statistics.median, zip(*per_step, strict=True))))
    print(f"ratio {statistics.median(theirs / ours for ours, theirs in found):.2f}")


if __name__ == "__main__":
    main()
