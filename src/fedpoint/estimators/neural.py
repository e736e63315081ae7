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

from fedpoint.core.errors import FedpointError
from fedpoint.core.memory_limits import check_memory
from fedpoint.core.types import Data, Model
from fedpoint.estimators.base import FitRows
from fedpoint.problems import Loss
from fedpoint.problems.penalised import masses
from fedpoint.problems.rows import RowsOracle, RowsProblem


@dataclass(frozen=True)
class NetworkLoss:
    """The loss of each row times what it counts: squared error, or the log loss of so many classes.

    Equal ones share compiled programs.
    """

    classes: int = 0

    def __call__(self, params: Model, rows: Data) -> Array:
        x, y, ridge, mass = rows
        out = forward(params, x, jnp)
        penalty = 0.5 * ridge * sum(jnp.sum(W * W) for W, _ in params)
        if self.classes == 0:
            return 0.5 * mass * (out[:, 0] - y) ** 2 + penalty
        right = jnp.take_along_axis(out, y[:, None], axis=1)[:, 0]
        return mass * (jax.nn.logsumexp(out, axis=1) - right) + penalty


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
    check_memory(max(sizes) ** 2, f"a layer of width {max(sizes):,}", "take a smaller one")
    return tuple(int(h) for h in sizes)


def neural_task(rows: FitRows, classes: int, hidden: Sequence[int], ridge: float, batch: int | None, seed: int) -> Loss:
    """The problem; weights start as He et al. draw them, N(0, 2/inputs), biases at zero.

    Rows of a batch are drawn alike, and weighted by what they count.
    """
    rng = np.random.default_rng(seed)
    widths = [rows.X.shape[1], *hidden, max(classes, 1)]
    params = [
        ((rng.normal(size=(a, b)) * np.sqrt(2.0 / a)).astype(np.float32), np.zeros(b, np.float32))
        for a, b in itertools.pairwise(widths)
    ]
    n, weights = len(rows.X), None
    mass = np.ones(n)
    if rows.weight is not None:
        mass, weights = masses(rows.weight, rows.agents)
    target = rows.y.astype(np.int32 if classes else np.float32)
    data = (rows.X.astype(np.float32), target, np.full(n, ridge, np.float32), mass.astype(np.float32))
    return Loss(NetworkLoss(classes), params, data, groups=rows.agents, batch=batch, weights=weights)


def curvature_along(task: RowsProblem, direction: Model) -> Model:
    """The aggregate's Hessian at the start times a direction."""
    weight = np.repeat(task.weights / task.counts, task.counts)
    return jax.tree.map(np.asarray, _product(task.oracle, task.all_rows(), weight, task.start(), direction))


@partial(jax.jit, static_argnums=0)
def _product(oracle: RowsOracle, rows: Data, weight: Array, w: Model, direction: Model) -> Model:
    def slope(v: Model) -> Model:
        return jax.grad(lambda u: oracle.weighted_loss(u, rows, weight.astype(jnp.float32), ()))(v)

    return jax.jvp(slope, (w,), (direction,))[1]
