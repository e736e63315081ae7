"""How curved is GTVMin's objective? Its Hessian, its largest eigenvalue, and the step that FedGD may take."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Model
from fedpoint.graphs.gtv.minimum import coupled
from fedpoint.graphs.gtv.nodes import NodeLosses, check
from fedpoint.graphs.gtv.system import Coupled
from fedpoint.graphs.network import Network
from fedpoint.problems.base import Problem

DENSE = 200  # numbers in all models, up to which eigenvalues are computed from the whole matrix


@checked
def step_limit(task: Problem, network: Network, coupling: float, models: Model | None = None) -> float:
    """The step below which FedGD settles: 2/lambda_max(M).

    (For L_i = (1/m_i)|y - X w|^2 the same number is 1/lambda_max(Q), Q = blkdiag(X'X/m) + alpha Lap (x) I = M/2.)
    Sharp for affine gradients. For other losses M has their largest curvatures where the problem knows them, so that
    every shorter step settles from everywhere; with `models`, those at these models.

    Args:
        task: a problem whose fields are gradients; the nodes of the network are its agents.
        network: of the nodes.
        coupling: alpha, at least 0.
        models: models of the nodes at which curvatures are taken; None: the largest there are, where the problem knows
            them.

    >>> import fedpoint as fp
    >>> two = fp.problems.Quadratic(2.0, [[0.0], [3.0]])
    >>> step_limit(two, Network.complete(2), coupling=1.0)       # M = [[4, -2], [-2, 4]]
    0.3333333333333333
    """
    network, coupling = check(task, network, coupling)
    if task.linear or models is not None:
        M = hessian(task, network, coupling, models)
    else:
        smooth = task.constants().delta_k
        if smooth is None:
            raise FedpointError(
                f"the largest curvature of {type(task).__name__} is not known: give models=, for the limit near them"
            )
        M = Coupled(np.asarray(smooth, dtype=float)[:, None, None], network, coupling)
    top = settled(largest_eigenvalue(M.times, M.shape))
    return 2 / top if top > 0 else np.inf


def hessian(task: Problem, network: Network, coupling: float, models: Model | None) -> Coupled:
    local = NodeLosses(task)
    W = local.begin(None) if models is None else local.flat(models, "models")
    return coupled(local, network, coupling, W)


def dense_matrix(apply: Callable, shape: tuple[int, int]) -> np.ndarray:
    """The matrix of a linear map of (K, d)."""
    n = shape[0] * shape[1]
    return np.stack([apply(e.reshape(shape)).ravel() for e in np.eye(n)], axis=1)


def largest_eigenvalue(
    apply: Callable, shape: tuple[int, int], modulus: bool = False, patience: int = 1000
) -> float | None:
    """The largest eigenvalue (or modulus of one) of a symmetric map of (K, d), by Lanczos' method; None where it did
    not settle in so many restarts. A residual of 1e-7 is an error of about 1e-14 over the gap to the next one."""
    n = shape[0] * shape[1]
    if n <= DENSE:
        whole = dense_matrix(apply, shape)
        values = np.linalg.eigvalsh(0.5 * (whole + whole.T))
        return float(np.abs(values).max() if modulus else values[-1])
    operator = LinearOperator((n, n), matvec=lambda x: apply(x.reshape(shape)).ravel(), dtype=float)
    start = np.random.default_rng(0).standard_normal(n)
    which = "LM" if modulus else "LA"
    try:
        found = eigsh(operator, k=1, which=which, v0=start, tol=1e-7, return_eigenvectors=False, maxiter=patience)
    except ArpackNoConvergence:
        return None
    return float(abs(found[0]) if modulus else found[0])


def settled(value: float | None) -> float:
    if value is None:
        raise FedpointError("the largest eigenvalue did not settle: too many are nearly equal")
    return value
