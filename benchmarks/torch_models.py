"""How fast are modules of PyTorch in `fp.problems.Torch`, beside a loop written by hand? Processor time, one thread.

    python benchmarks/torch_models.py [--rounds 3]

Both do the same federated averaging (the same writers and numbers of steps): images of FEMNIST's shape, synthetic.
Ratios above 1 mean that fedpoint takes less. Both are timed in turn, after a warm-up, and the median of the ratios of
neighbouring measurements is told.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import fedpoint as fp

WRITERS, A_ROUND, STEPS, CLASSES, TURNS = 60, 5, 10, 62, 5


class Setting(NamedTuple):
    """A model and what it learns of."""

    module: nn.Module
    X: Tensor
    y: Tensor
    writers: np.ndarray
    batch: int
    step: float


def cnn() -> nn.Module:
    """McMahan's, 1.66 million parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
        nn.Linear(512, CLASSES),
    )


def normalised() -> nn.Module:
    """A small one with batch normalisation and dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32 * 49, CLASSES),
    )


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, CLASSES))


MODELS: dict[str, Callable[[], nn.Module]] = {"CNN": cnn, "with batch normalisation": normalised, "MLP": perceptron}


def setting(make: Callable[[], nn.Module]) -> Setting:
    """Writers of 20 to 400 rows."""
    torch.manual_seed(0)
    draws = np.random.default_rng(0)
    writers = np.repeat(np.arange(WRITERS), np.clip(draws.lognormal(4.6, 0.7, WRITERS), 20, 400).astype(int))
    y = torch.from_numpy(draws.integers(0, CLASSES, len(writers)))
    X = torch.randn(CLASSES, 1, 28, 28)[y] + 0.5 * torch.randn(len(y), 1, 28, 28)
    return Setting(make(), X, y, writers, 20, 0.05)


def by_hand(given: Setting) -> Callable[[int], None]:
    """Rounds of federated averaging, as one writes them."""
    module, X, y, writers, batch, step = given
    loss, draws = nn.CrossEntropyLoss(), np.random.default_rng(1)
    rows = [np.flatnonzero(writers == k) for k in range(WRITERS)]
    shares = np.array([len(r) for r in rows]) / len(writers)

    def run(rounds: int) -> None:
        common = {n: p.detach().clone() for n, p in module.state_dict().items()}
        optimiser = torch.optim.SGD(module.parameters(), step)
        for _ in range(rounds):
            change = {n: torch.zeros_like(p, dtype=torch.float32) for n, p in common.items()}
            for k in draws.choice(WRITERS, A_ROUND, replace=False):
                module.load_state_dict(common)
                for _ in range(STEPS):
                    at = draws.choice(rows[k], batch)
                    optimiser.zero_grad()
                    loss(module(X[at]), y[at]).backward()
                    optimiser.step()
                for n, p in module.state_dict().items():
                    change[n] += shares[k] * WRITERS / A_ROUND * (p - common[n])
            for n, p in common.items():
                p += change[n].to(p.dtype)

    return run


def in_fedpoint(given: Setting) -> Callable[[int], None]:
    problem = fp.problems.Torch(
        given.module, nn.CrossEntropyLoss(), (given.X, given.y), groups=given.writers, batch=given.batch
    )
    method = fp.FedAvg(step=given.step, local_steps=STEPS)

    def run(rounds: int) -> None:
        fp.run(method, problem, rounds=rounds, participation=fp.Uniform(A_ROUND), record_every=rounds)

    return run


def seconds(run: Callable[[int], None], rounds: int) -> float:
    begun = time.process_time()
    run(rounds)
    return time.process_time() - begun


def measure(make: Callable[[], nn.Module], rounds: int) -> tuple[float, float, float]:
    """Milliseconds a local step by hand and in fedpoint, and the ratio of neighbours."""
    given = setting(make)
    ways = by_hand(given), in_fedpoint(given)
    for run in ways:  # compiled and warm
        run(1)
        run(rounds)
    taken = np.array([[seconds(run, rounds) for run in ways] for _ in range(TURNS)])
    hand, own = 1e3 * np.median(taken, axis=0) / (rounds * A_ROUND * STEPS)
    return float(hand), float(own), float(np.median(taken[:, 0] / taken[:, 1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=[name.split()[0] for name in MODELS], default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'':28}{'by hand':>12}{'fedpoint':>12}{'ratio':>8}")
    for name, make in MODELS.items():
        if options.only in (None, name.split()[0]):
            hand, own, ratio = measure(make, options.rounds)
            print(f"{name:28}{hand:9.2f} ms{own:9.2f} ms{ratio:8.2f}", flush=True)


if __name__ == "__main__":
    main()
