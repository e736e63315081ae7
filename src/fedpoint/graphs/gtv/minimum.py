"""The minimum of GTVMin at one coupling, and the objective."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import Positive
from fedpoint.core.types import Model
from fedpoint.graphs.gtv.nodes import Losses, NodeLosses, check, check_convex
from fedpoint.graphs.gtv.system import Coupled, Parts, dot, pull, why_not_unique
from fedpoint.graphs.network import Network
from fedpoint.problems.base import Problem

NEWTON = 80  # steps; without convexity ten times as many
AT_INFINITY = "the minimum may lie at infinity, as for classes that can be separated without a ridge"


@checked
def solve(
    task: Problem, network: Network, coupling: float, start: Model | None = None, tolerance: Positive = 1e-13
) -> Model:
    """The models of all nodes that minimise sum_i L_i(w_i) + coupling sum_edges A_ij |w_i - w_j|^2.

    Affine gradients A_i w - b_i: the sparse system (blkdiag(A_i) + 2 coupling Lap (x) I) w = b, by a banded
    factorisation where that is cheap, else by conjugate gradients. Other losses: Newton's method over all nodes
    together, to rounding.

    Args:
        task: a problem whose fields are gradients; nodes of the network are its agents.
        network: of the agents.
        coupling: at least 0.
        start: models to start from, one for all nodes or one per node. Needed where losses are not convex: what is
            found is then a stationary point.
        tolerance: of the models, relative.

    Returns:
        a model as the problem has it, with a leading axis of nodes: (K, d) where a model is (d,).

    >>> import fedpoint as fp
    >>> two = fp.problems.Quadratic(2.0, [[0.0], [3.0]])
    >>> solve(two, Network.from_edges([(0, 1)]), coupling=1.0)
    array([[1.],
           [2.]])
    """
    network, coupling = check(task, network, coupling)
    if not tolerance > 0:
        raise FedpointError(f"tolerance must be above 0, got {tolerance}")
    local = NodeLosses(task)
    begin = local.begin(start)
    check_convex(task, start)
    return local.models(minimise(local, network, coupling, begin, tolerance))


@dataclass(frozen=True)
class Objective:
    """GTVMin's objective at some models: value = sum of the losses + coupling * variation.

    Attributes:
        losses: (K,) L_i(w_i).
        variation: sum over edges of A_ij |w_i - w_j|^2.
        coupling: by which the variation is multiplied.
    """

    losses: np.ndarray  # (K,): L_i(w_i)
    variation: float  # sum over edges of A_ij |w_i - w_j|^2
    coupling: float

    @property
    def value(self) -> float:
        return float(self.losses.sum() + self.coupling * self.variation)

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return (
            f"<GTVMin objective {self.value:.8g}: losses {self.losses.sum():.8g} "
            f"+ {self.coupling:g} * variation {self.variation:.8g}>"
        )


@checked
def objective(task: Problem, network: Network, coupling: float, models: Model) -> Objective:
    """sum_i L_i(w_i) + coupling sum_edges A_ij |w_i - w_j|^2 at models with a leading axis of nodes, in its parts.

    Args:
        task: a problem whose fields are gradients; the nodes of the network are its agents.
        network: of the agents.
        coupling: at least 0.
        models: a model as the problem has it, with a leading axis of nodes: (K, d) where a model is (d,).

    >>> import fedpoint as fp
    >>> two = fp.problems.Quadratic(2.0, [[0.0], [3.0]])
    >>> objective(two, Network.from_edges([(0, 1)]), 1.0, [[1.0], [2.0]])
    <GTVMin objective 3: losses 2 + 1 * variation 1>
    """
    network, coupling = check(task, network, coupling)
    local = NodeLosses(task)
    flat = local.flat(models, "models", one=False)
    return Objective(local.losses(flat), network.total_variation(flat), coupling)


def minimise(local: Losses, network: Network, coupling: float, start: np.ndarray, tolerance: float) -> np.ndarray:
    """Newton's method over all nodes; one step and its refinement where gradients are affine.

    Models are kept as what a component has in common and each node's difference from it. With a strong coupling the
    differences are tiny, and 2 coupling Lap would amplify the rounding of the models themselves.
    """
    parts = Parts(network, coupling)
    laplacian = pull(network, coupling)
    convex = local.convex
    common = parts.mean(start)
    apart = start - common[parts.of]
    W = start
    M = None
    if local.affine:
        M = coupled(local, network, coupling, W)
        M.require_unique()
    near = min(1e5 * tolerance, 0.1 * tolerance**0.5)
    size = float(np.linalg.norm(W))
    for step in range(12 if local.affine else NEWTON if convex else 10 * NEWTON):
        slope = local.field(W) + laplacian @ apart
        if not local.affine:
            M = coupled(local, network, coupling, W)
        assert M is not None
        delta, good = M.solve(-slope, 1e-9 if local.affine and step == 0 else 1e-6)
        if local.affine and not good:
            raise FedpointError(
                "GTVMin has no minimum here: some losses are concave in directions that the coupling does not hold"
            )
        if not good and local.small:  # not convex here: downhill by the moduli of the curvatures
            delta = Coupled(_moduli(M.H), network, coupling).solve(-slope, 1e-6)[0]
        mean = parts.mean(delta)
        s, rounding = 1.0, False
        if not local.affine:
            s, rounding = _shorten(local, network, coupling, W, apart, slope, delta, mean[parts.of])
        common = common + s * mean
        apart = apart + s * (delta - mean[parts.of])
        W = common[parts.of] + apart
        size = max(size, float(np.linalg.norm(W)))
        if s == 1 and (rounding or np.linalg.norm(delta) <= near * size):
            break
    else:
        hint = "the objective is nearly flat there" if local.affine else AT_INFINITY
        raise FedpointError(f"GTVMin's models did not settle: {hint}")
    if not local.affine and convex and local.small:
        first, last = local.hessians(start), local.hessians(W)
        if why_not_unique(last, network, parts, coupling, scale=first):  # everywhere, or because it went far away?
            words = why_not_unique(first, network, parts, coupling)
            raise FedpointError(words or f"GTVMin's models grow without bound: {AT_INFINITY}")
    return W


def coupled(local: Losses, network: Network, coupling: float, W: np.ndarray) -> Coupled:
    """The Hessian of the objective at models (K, d)."""
    if local.affine or local.small:
        return Coupled(local.hessians(W), network, coupling, definite=local.convex)
    return Coupled(local.curvature(W), network, coupling, local.product(W), local.convex, local.size)


def _shorten(
    local: Losses,
    network: Network,
    coupling: float,
    W: np.ndarray,
    apart: np.ndarray,
    slope: np.ndarray,
    delta: np.ndarray,
    mean: np.ndarray,
) -> tuple[float, bool]:
    """How much of a step to take: halved until the objective falls as its slope promises. And whether the step is
    only made of rounding errors, which a relative change does not show where the models are zero."""

    def value(s: float) -> tuple[float, float]:
        own = local.losses(W + s * delta)
        tv = coupling * network.total_variation(apart + s * (delta - mean))
        return float(own.sum() + tv), float(np.abs(own).sum() + tv)

    now, scale = value(0.0)
    promised = dot(slope, delta)
    slack = 1e-13 * scale
    if promised >= -slack and np.linalg.norm(delta) <= 1e-4 * np.linalg.norm(W):  # the last steps: below rounding
        return 1.0, False
    if abs(promised) <= 1e-30 * scale:
        return 1.0, True
    s = 1.0
    while s > 1e-12 and not value(s)[0] <= now + 1e-4 * s * promised + slack:
        s /= 2
    return s, False


def _moduli(H: np.ndarray) -> np.ndarray:
    """|H_i|, with a floor: positive definite."""
    values, U = np.linalg.eigh(H)
    floor = 1e-8 * np.abs(values).max(initial=1e-300)
    return (U * np.maximum(np.abs(values), floor)[:, None, :]) @ np.swapaxes(U, 1, 2)
