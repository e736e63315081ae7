"""A small neural network as a problem: layers of weights and biases in single precision, any number of agents."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Data, Model
from fedpoint.problems import Loss
from fedpoint.problems.rows import RowsOracle, RowsProblem


@dataclass(frozen=True)
class NetworkLoss:
    """The loss of each row: squared error, or the log loss of so many classes. Equal ones share compiled programs."""

    classes: int = 0

    def __call__(self, params: Model, rows: Data) -> Array:
        x, y, ridge = rows
        out = forward(params, x, jnp)
        penalty = 0.5 * ridge * sum(jnp.sum(W * W) for W, _ in params)
        if self.classes == 0:
            return 0.5 * (out[:, 0] - y) ** 2 + penalty
        return jax.nn.logsumexp(out, axis=1) - jnp.take_along_axis(out, y[:, None], axis=1)[:, 0] + penalty


def forward(params: Model, x: Data, np: ModuleType = np) -> Data:
    """max(0, x W + b) through the layers, the last one without the maximum."""
    for W, b in params[:-1]:
        x = np.maximum(x @ W + b, 0)
    W, b = params[-1]
    return x @ W + b


def layers(hidden: Sequence[int] | int | None) -> tuple[int, ...]:
    sizes: Sequence[int] = () if hidden is None else [hidden] if isinstance(hidden, int | np.integer) else list(hidden)
    if not sizes or any(isinstance(h, bool) or not isinstance(h, int | np.integer) or h < 1 for h in sizes):
        raise FedpointError(f"hidden must be widths of layers such as (64,), got {hidden!r}")
    return tuple(int(h) for h in sizes)


def neural_task(
    X: np.ndarray,
    y: np.ndarray,
    groups: ArrayLike,
    classes: int,
    hidden: Sequence[int],
    ridge: float,
    batch: int | None,
    seed: int,
) -> Loss:
    """The problem; weights start as He et al. draw them, N(0, 2/inputs), biases at zero."""
    rng = np.random.default_rng(seed)
    widths = [X.shape[1], *hidden, max(classes, 1)]
    params = [
        ((rng.normal(size=(a, b)) * np.sqrt(2.0 / a)).astype(np.float32), np.zeros(b, np.float32))
        for a, b in itertools.pairwise(widths)
    ]
    target = y.astype(np.int32) if classes else y.astype(np.float32)
    rows = (X.astype(np.float32), target, np.full(len(X), ridge, np.float32))
    return Loss(NetworkLoss(classes), params, rows, groups=groups, batch=batch)


def curvature_along(task: RowsProblem, direction: Model) -> Model:
    """The aggregate's Hessian at the start times a direction."""
    weight = np.repeat(task.weights / task.counts, task.counts)
    return jax.tree.map(np.asarray, _product(task.oracle, task.all_rows(), weight, task.start(), direction))


@partial(jax.jit, static_argnums=0)
def _product(oracle: RowsOracle, rows: Data, weight: Array, w: Model, direction: Model) -> Model:
    def slope(v: Model) -> Model:
        return jax.grad(lambda u: oracle.weighted_loss(u, rows, weight.astype(jnp.float32), ()))(v)

    return jax.jvp(slope, (w,), (direction,))[1]
