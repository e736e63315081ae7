"""How fairly does a model serve the agents? Lecture 002."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.arrays import numbers
from fedpoint.core.errors import FedpointError


@dataclass(frozen=True)
class Fairness:
    """Fairness of losses F_1 .. F_K; lower variance, higher entropy and higher index are fairer.

    Attributes:
        mean: of the losses.
        variance: (1/K) sum (F_i - mean)^2.
        entropy: -sum pi_i log pi_i, pi_i = F_i / sum F; at most log K. None when a loss is negative.
        jain: (sum F)^2 / (K sum F^2), in [1/K, 1]. None when a loss is negative.
        worst: the mean loss of the worst tenth of the agents (at least one agent).
        best: the mean loss of the best tenth.
    """

    mean: float
    variance: float
    entropy: float | None
    jain: float | None
    worst: float
    best: float


@checked
def fairness(losses: ArrayLike) -> Fairness:
    """Measure the fairness of a model over agents.

    Args:
        losses: (K,) one for each agent.

    >>> fairness([1.0, 1.0, 1.0]).jain
    1.0
    >>> f = fairness([1.0, 3.0])
    >>> f.variance, f.worst, f.best, f.jain
    (1.0, 3.0, 1.0, 0.8)
    """
    F = numbers("losses", losses)
    if F.ndim != 1 or not len(F):
        raise FedpointError(f"fairness needs the losses of the agents, one each; got shape {F.shape}")
    if not np.isfinite(F).all():
        raise FedpointError(f"the loss of agent {np.flatnonzero(~np.isfinite(F))[0]} is not finite")
    ordered, tenth = np.sort(F), max(1, len(F) // 10)
    entropy = jain = None
    if (F >= 0).all():
        # All losses zero is as fair as can be.
        pi = F / F.sum() if F.sum() > 0 else np.full(len(F), 1 / len(F))
        entropy = float(-(pi[pi > 0] * np.log(pi[pi > 0])).sum())
        jain = float(1.0 / (len(F) * (pi**2).sum()))
    return Fairness(
        mean=float(F.mean()),
        variance=float(((F - F.mean()) ** 2).mean()),
        entropy=entropy,
        jain=jain,
        worst=float(ordered[-tenth:].mean()),
        best=float(ordered[:tenth].mean()),
    )
