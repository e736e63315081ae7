"""The models that `fp.baselines` compares: linear ones with a ridge, fitted to rounding instead of run.

The pooled model is the solution that the problem itself knows, local and coupled ones are GTVMin's, and FedAvg's is a
root of its round. So what is compared are methods, not numbers of rounds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import root

from fedpoint.core.errors import FedpointError
from fedpoint.graphs.gtv.minimum import minimise
from fedpoint.graphs.gtv.nodes import Losses
from fedpoint.graphs.network import Network
from fedpoint.problems.penalised import Penalised
from fedpoint.problems.ridge_task import RidgeTask

DENSE = 150  # numbers of a model, up to which Hessians are written down
TOLERANCE = 1e-11  # of the models, relative
NONE = "no minimum was found with ridge {:g}: give larger ridges="


class Agents(Losses):
    """The losses of a task's agents, each at its own model, without a compiler."""

    convex = True

    def __init__(self, task: Penalised):
        self.task, self.affine = task, isinstance(task, RidgeTask)
        self.like = task.start().shape
        self.size = int(np.prod(self.like))

    @property
    def small(self) -> bool:
        return self.size <= DENSE

    def _models(self, W: np.ndarray) -> np.ndarray:
        return W.reshape(len(W), *self.like)

    def field(self, W: np.ndarray) -> np.ndarray:
        return self.task.slopes_at(self._models(W)).reshape(W.shape)

    def losses(self, W: np.ndarray) -> np.ndarray:
        return self.task.losses_at(self._models(W))

    def hessians(self, W: np.ndarray) -> np.ndarray:
        return self.task.hessians_at(self._models(W))

    def product(self, W: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        return lambda x: self.task.products_at(self._models(W), self._models(x)).reshape(W.shape)

    def curvature(self, W: np.ndarray) -> np.ndarray:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], W.shape)
        return (signs * self.product(W)(signs)).mean(1)


def pooled(task: Penalised) -> np.ndarray:
    """(D,): one model for all rows."""
    found = task.solution()
    if found is None:
        raise FedpointError(NONE.format(task.ridge.max()))
    return found.ravel()


def alone(agents: int) -> Network:
    """A network without edges."""
    return Network(np.empty((0, 2)), np.empty(0), range(agents))


def coupled(task: Penalised, network: Network, coupling: float, start: np.ndarray | None = None) -> np.ndarray:
    """(K, D): min sum_k L_k(w_k) + coupling sum_edges A_ij |w_i - w_j|^2."""
    agents = Agents(task)
    begin = np.zeros((task.agents, agents.size)) if start is None else start
    try:
        return minimise(agents, network, coupling, begin, TOLERANCE)
    except FedpointError as error:
        raise FedpointError(f"{NONE.format(task.ridge.max())} ({error})") from None


def fedavg(task: Penalised, step: float | None, local_steps: int, start: np.ndarray) -> np.ndarray:
    """(D,): where FedAvg with full gradients and everybody taking part ends: w = sum_k p_k (E local steps from w).

    step: default 1/L, L the largest smoothness of an agent. A round's derivative is the mean of the products of the
    local steps' derivatives.
    """
    agents, K, D = Agents(task), task.agents, len(start)
    size = 1 / float(task.smoothness()[1].max()) if step is None else step

    def change(w: np.ndarray) -> np.ndarray:
        """What a round adds to w."""
        W = np.repeat(w[None], K, axis=0)
        for _ in range(local_steps):
            W = W - size * agents.field(W)
        return task.weights @ W - w

    def derivative(w: np.ndarray) -> np.ndarray:
        W, J = np.repeat(w[None], K, axis=0), np.broadcast_to(np.eye(D), (K, D, D))
        for _ in range(local_steps):
            J = J - size * (agents.hessians(W) @ J)
            W = W - size * agents.field(W)
        return np.tensordot(task.weights, J, 1) - np.eye(D)

    with np.errstate(all="ignore"):
        found = root(change, start, jac=derivative, options={"xtol": 1e-14})
        inward = derivative(found.x) + np.eye(D)
    if not np.isfinite(inward).all() or np.abs(np.linalg.eigvals(inward)).max() >= 1:
        raise FedpointError(f"FedAvg does not settle with step {size:g}: take a smaller step=")
    if np.linalg.norm(found.fun) > 1e-9 * (1 + np.linalg.norm(found.x)):
        raise FedpointError(f"no fixed point of FedAvg was found with step {size:g}: take a smaller step=")
    return found.x
