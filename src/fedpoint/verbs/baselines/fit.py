"""The models that `fp.baselines` compares: linear ones with a ridge, fitted to rounding instead of run.

Every fit is a minimum (or, for FedAvg, a fixed point) that Newton's method finds to about 1e-12 in a few steps; for
squared errors it is one linear system. So what is compared are methods, not numbers of rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import expit, log_softmax, softmax

from fedpoint.core.errors import FedpointError
from fedpoint.graphs.gtv.minimum import minimise as gtv_minimise
from fedpoint.graphs.gtv.nodes import Losses
from fedpoint.graphs.network import Network

DENSE = 150  # numbers of a model, up to which Hessians are written down
STEPS = 100  # of Newton's method for the fixed point of FedAvg
TOLERANCE = 1e-11  # of the models, relative


@dataclass(frozen=True)
class Family:
    """What is predicted: a number ("regression"), one of two classes or one of several ("classes")."""

    kind: str  # "regression", "binary" or "softmax"
    outputs: int = 1  # numbers that a model predicts for a row

    def mean(self, scores: np.ndarray) -> np.ndarray:
        """The expected target."""
        if self.kind == "regression":
            return scores
        return expit(scores) if self.kind == "binary" else softmax(scores, axis=1)

    def losses(self, scores: np.ndarray, target: np.ndarray) -> np.ndarray:
        """(n,): half the squared error, or the log loss."""
        if self.kind == "regression":
            return 0.5 * ((scores - target) ** 2)[:, 0]
        if self.kind == "binary":
            return (np.logaddexp(0.0, scores) - target * scores)[:, 0]
        return -(target * log_softmax(scores, axis=1)).sum(1)

    def bend(self, mean: np.ndarray, u: np.ndarray) -> np.ndarray:
        """Second derivatives of the losses times u, (n, outputs)."""
        if self.kind == "regression":
            return u
        if self.kind == "binary":
            return mean * (1 - mean) * u
        return mean * (u - (mean * u).sum(1, keepdims=True))

    @property
    def steepest(self) -> float:
        """The largest second derivative."""
        return {"regression": 1.0, "binary": 0.25, "softmax": 0.5}[self.kind]


class Rows:
    """Rows of all agents, one agent after the other: L_k(w) = the mean loss of agent k's rows.

    Models are (K, D): each agent's (outputs, columns), flattened.

    offset: what every model predicts in addition, before the constant column is fitted.
    """

    def __init__(self, X: np.ndarray, target: np.ndarray, counts: np.ndarray, family: Family, offset: np.ndarray):
        self.X, self.target, self.counts, self.family, self.offset = X, target, counts, family, offset
        ends = np.cumsum(counts)
        self.cuts = [slice(a, b) for a, b in zip(ends - counts, ends, strict=True)]
        self.shape = len(counts), X.shape[1] * family.outputs
        self.weights = counts / counts.sum()

    def together(self) -> Rows:
        """The same rows, all of one agent."""
        return Rows(self.X, self.target, np.array([len(self.X)]), self.family, self.offset)

    @cached_property
    def alone(self) -> Network:
        """A network without edges."""
        return Network(np.empty((0, 2)), np.empty(0), range(len(self.counts)))

    def linear(self, W: np.ndarray) -> np.ndarray:
        """(n, outputs): x'w_k of every row with its own agent's model."""
        models = W.reshape(len(self.counts), -1, self.X.shape[1])
        return np.concatenate([self.X[cut] @ w.T for cut, w in zip(self.cuts, models, strict=True)])

    def back(self, R: np.ndarray) -> np.ndarray:
        """(K, D): sums of r x' over each agent's rows, divided by their number."""
        sums = [(R[cut].T @ self.X[cut]).ravel() / m for cut, m in zip(self.cuts, self.counts, strict=True)]
        return np.stack(sums)

    def mean(self, W: np.ndarray) -> np.ndarray:
        return self.family.mean(self.linear(W) + self.offset)

    def losses(self, W: np.ndarray) -> np.ndarray:
        """(K,)"""
        each = self.family.losses(self.linear(W) + self.offset, self.target)
        return np.add.reduceat(each, [cut.start for cut in self.cuts]) / self.counts

    @cached_property
    def grams(self) -> np.ndarray:
        """(K, p, p): the mean of x x'."""
        return np.stack([self.X[cut].T @ self.X[cut] / m for cut, m in zip(self.cuts, self.counts, strict=True)])

    @cached_property
    def _moments(self) -> np.ndarray:
        return self.back(self.target - self.offset)

    def gradients(self, W: np.ndarray) -> np.ndarray:
        """(K, D)"""
        if self.family.kind == "regression":
            return np.einsum("kij,kj->ki", self.grams, W) - self._moments
        return self.back(self.mean(W) - self.target)

    def hessians(self, W: np.ndarray) -> np.ndarray:
        """(K, D, D)"""
        if self.family.kind == "regression":
            return self.grams
        mean = self.mean(W)
        if self.family.kind == "binary":
            h = mean * (1 - mean)
            return np.stack(
                [(h[cut] * self.X[cut]).T @ self.X[cut] / m for cut, m in zip(self.cuts, self.counts, strict=True)]
            )
        C = self.family.outputs
        H = mean[:, :, None] * (np.eye(C) - mean[:, None, :])
        found = [
            np.einsum("ni,nj,ncd->cidj", self.X[cut], self.X[cut], H[cut], optimize=True) / m
            for cut, m in zip(self.cuts, self.counts, strict=True)
        ]
        return np.stack(found).reshape(len(found), *2 * self.shape[1:])

    def product(self, W: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """x -> (H_k x_k)."""
        mean = self.mean(W)
        return lambda x: self.back(self.family.bend(mean, self.linear(x)))

    @cached_property
    def smoothness(self) -> float:
        """The largest curvature of any agent, without the ridge."""
        return self.family.steepest * float(np.linalg.eigvalsh(self.grams)[:, -1].max())

    @property
    def curvature(self) -> np.ndarray:
        """(K,): the mean eigenvalue of each agent's Hessian at most."""
        return self.family.steepest * np.trace(self.grams, axis1=1, axis2=2) / self.X.shape[1]


class Ridged(Losses):
    """L_k(w) + ridge/2 |w|^2 of every agent."""

    convex = True

    def __init__(self, rows: Rows, ridge: float):
        self.rows, self.ridge = rows, ridge
        self.affine, self.size = rows.family.kind == "regression", rows.shape[1]

    @property
    def small(self) -> bool:
        return self.size <= DENSE

    def field(self, W: np.ndarray) -> np.ndarray:
        return self.rows.gradients(W) + self.ridge * W

    def losses(self, W: np.ndarray) -> np.ndarray:
        return self.rows.losses(W) + 0.5 * self.ridge * (W**2).sum(1)

    def hessians(self, W: np.ndarray) -> np.ndarray:
        return self.rows.hessians(W) + self.ridge * np.eye(self.size)

    def product(self, W: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        times = self.rows.product(W)
        return lambda x: times(x) + self.ridge * x

    def curvature(self, W: np.ndarray) -> np.ndarray:
        return self.rows.curvature + self.ridge


def minimise(
    rows: Rows, ridge: float, network: Network | None = None, coupling: float = 0.0, start: np.ndarray | None = None
) -> np.ndarray:
    """(K, D): min sum_k L_k(w_k) + ridge/2 |w_k|^2 + coupling sum_edges A_ij |w_i - w_j|^2, by GTVMin's Newton."""
    net = rows.alone if network is None else network
    begin = np.zeros(rows.shape) if start is None else start
    try:
        return gtv_minimise(Ridged(rows, ridge), net, 0.0 if network is None else coupling, begin, TOLERANCE)
    except FedpointError as error:
        raise FedpointError(f"no minimum was found with ridge {ridge:g}: give larger ridges= ({error})") from None


def fedavg(rows: Rows, ridge: float, step: float | None, local_steps: int, start: np.ndarray) -> np.ndarray:
    """(D,): where FedAvg with full gradients and everybody taking part ends: w = sum_k p_k (E local steps from w).

    step: default 1/L, L the largest smoothness of an agent. Newton's method: a round's derivative is the mean of the
    products of the local steps' derivatives.
    """
    K, D = rows.shape
    size = 1 / (rows.smoothness + ridge) if step is None else step
    w = start
    for _ in range(STEPS):
        W, J = np.repeat(w[None], K, axis=0), np.broadcast_to(np.eye(D), (K, D, D))
        for _ in range(local_steps):
            J = (1 - size * ridge) * J - size * (rows.hessians(W) @ J)
            W = W - size * (rows.gradients(W) + ridge * W)
        inward = np.tensordot(rows.weights, J, 1)
        if not np.isfinite(inward).all() or np.abs(np.linalg.eigvals(inward)).max() >= 1:
            raise FedpointError(f"FedAvg does not settle with step {size:g}: take a smaller step=")
        delta = np.linalg.solve(np.eye(D) - inward, rows.weights @ W - w)
        w = w + delta
        if np.linalg.norm(delta) <= 1e-7 * np.linalg.norm(w) + 1e-14:
            return w
    raise FedpointError(f"no fixed point of FedAvg was found with step {size:g}: take a smaller step=")
