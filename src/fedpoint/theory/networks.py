"""How fast do models on a network settle, and up to which step? FedGD and FedRelax on GTVMin. Lecture 003.

M = blkdiag(H_i) + 2 alpha Lap (x) I is the Hessian of GTVMin's objective, H_i that of L_i. One synchronous tick takes
the error e to

    FedGD     (I - eta M) e
    FedRelax  D^-1 (D - M) e,   D = blkdiag(H_i + 2 alpha d_i I)

exactly for affine gradients, near the solution for other losses. Nothing here is a dense matrix of all nodes but
`iteration_matrix`, which is for small networks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.closed.linear import constant_step
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.arguments import checked
from fedpoint.core.arrays import numbers
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import Count
from fedpoint.core.numbers import counted
from fedpoint.core.record import values_of
from fedpoint.core.types import Model
from fedpoint.graphs import gtv
from fedpoint.graphs.gtv.curvature import DENSE, dense_matrix, hessian, largest_eigenvalue, settled
from fedpoint.graphs.gtv.curvature import step_limit as step_limit  # offered as `fp.theory.step_limit`
from fedpoint.graphs.gtv.nodes import check
from fedpoint.graphs.gtv.system import Coupled
from fedpoint.graphs.network import Network
from fedpoint.problems.base import Problem
from fedpoint.theory.asynchronous import Contraction

LARGEST = 4000  # up to which the whole matrix is given
RESTARTS = 40  # of Lanczos' method, before another way is tried
ZERO = 1e-12  # of the smoothness: a strong convexity below it is none
METHODS = {"fedgd": "FedGD", "fedrelax": "FedRelax"}


@checked
def spectral_rate(
    algorithm: Algorithm | str,
    task: Problem,
    network: Network,
    coupling: float | None = None,
    step: ArrayLike | None = None,
    models: Model | None = None,
) -> float:
    """The factor by which a synchronous tick shrinks the error in the long run: the iteration's spectral radius.

    FedGD: max |1 - eta lambda(M)|. FedRelax: that of D^-1 (D - M). At GTVMin's solution (or the `models`, where you
    have it already), which matters where gradients are not affine.

    Args:
        algorithm: "FedGD" or "FedRelax", or an algorithm, which then knows its coupling and step.
        task: a problem whose fields are gradients; the nodes of the network are its agents.
        network: of the nodes.
        coupling: alpha, at least 0; None: the algorithm's own.
        step: of FedGD: a number, or one per node.
        models: models of the nodes at which curved fields are linearised; default: GTVMin's solution.

    >>> import fedpoint as fp
    >>> two = fp.problems.Quadratic(2.0, [[0.0], [3.0]])
    >>> spectral_rate("FedRelax", two, Network.complete(2), coupling=1.0)
    0.5
    """
    name, coupling, steps = _method(algorithm, coupling, step, task)
    network, coupling = check(task, network, coupling)
    if not task.linear and models is None:
        models = gtv.solve(task, network, coupling)
    M = hessian(task, network, coupling, models)
    M.require_unique()
    if name == "FedGD":
        each = np.sqrt(steps)[:, None]
        low, high = _ends(M, lambda x: each * x, lambda x: x / each)
    else:
        if not M.blocks:
            raise FedpointError("the rate of FedRelax needs the Hessians of all nodes, which are too large here")
        values, U = np.linalg.eigh(M.diagonal_blocks())
        if not (values[:, 0] > 0).all():
            raise FedpointError(f"node {network.names[int(values[:, 0].argmin())]}: its relaxation has no minimum")

        def power(p: float) -> Callable[[np.ndarray], np.ndarray]:
            R = (U * values[:, None, :] ** p) @ np.swapaxes(U, 1, 2)
            return lambda x: np.einsum("kij,kj->ki", R, x)

        root = power(-0.5)
        neighbours = 2 * coupling * network.adjacency
        found = largest_eigenvalue(lambda x: root(neighbours @ root(x)), M.shape, modulus=True, patience=RESTARTS)
        if found is not None:
            return found
        low, high = _ends(M, root, power(0.5))  # many are nearly equal, as on long rings: through the inverse
    return float(max(abs(1 - low), abs(1 - high)))


@checked
def contraction(
    algorithm: Algorithm | str,
    task: Problem,
    network: Network,
    coupling: float | None = None,
    step: ArrayLike | None = None,
) -> Contraction:
    """Whether one tick contracts in the block-maximum norm, which is what asynchronous execution needs.

    s_i and l_i are strong convexity and smoothness of L_i, d_i the weighted degree:

        FedRelax  kappa = max_i 1/(1 + s_i/(2 alpha d_i))
        FedGD     kappa = max_i 1 - eta_i s_i   for eta_i <= 2/(s_i + l_i + 4 alpha d_i),

    the latter for eta <= 1/max_i(l_i + 2 alpha d_i) in particular; beyond it l_i decides,
    eta_i (l_i + 4 alpha d_i) - 1. For affine gradients these are the iteration's norm itself.

    Args:
        algorithm: "FedGD" or "FedRelax", or an algorithm, which then knows its coupling and step.
        task: a problem whose fields are gradients; the nodes of the network are its agents.
        network: of the nodes.
        coupling: alpha, at least 0; None: the algorithm's own.
        step: of FedGD: a number, or one per node; None: the algorithm's own.

    >>> import fedpoint as fp
    >>> two = fp.problems.Quadratic([2.0, 4.0], [[0.0], [3.0]])
    >>> contraction("FedRelax", two, Network.complete(2), coupling=1.0).kappa
    0.5
    """
    name, coupling, steps = _method(algorithm, coupling, step, task)
    network, coupling = check(task, network, coupling)
    constants = task.constants()
    pull = 2 * coupling * network.degrees
    if name == "FedRelax":
        formula = "max_i 1/(1 + s_i/(2 alpha d_i))"
    else:
        formula = "max_i 1 - eta_i s_i"
    if constants.nu_k is None or (name == "FedGD" and constants.delta_k is None):
        return Contraction(None, None, formula, "strong convexity and smoothness of the nodes' losses are not known")
    s = np.asarray(constants.nu_k, dtype=float)
    l = s if constants.delta_k is None else np.asarray(constants.delta_k, dtype=float)
    s = np.where(s > ZERO * l, s, np.minimum(s, 0.0))
    if not (s > 0).all():
        worst = int(s.argmin())
        count = int((s <= 0).sum())
        more = f" (and {count - 1} more)" if count > 1 else ""
        return Contraction(None, None, formula, f"the loss of node {network.names[worst]}{more} is not strongly convex")
    if name == "FedRelax":
        nodes = pull / (pull + s)
        return Contraction(float(nodes.max(initial=0.0)), nodes, formula)
    nodes = np.maximum(np.abs(1 - steps * (s + pull)), np.abs(1 - steps * (l + pull))) + steps * pull
    worst = int(nodes.argmax())
    if nodes[worst] >= 1:
        limit = 2 / (l + 2 * pull)[worst]
        return Contraction(
            None,
            nodes,
            formula,
            f"the step {steps[worst]:.4g} is too long for node {network.names[worst]}: below {limit:.4g} it contracts",
        )
    if (steps > 2 / (s + l + 2 * pull)).any():
        formula = "max_i |1 - eta_i (l_i + 2 alpha d_i)| + 2 alpha eta_i d_i"
    return Contraction(float(nodes[worst]), nodes, formula)


@checked
def iteration_matrix(
    algorithm: Algorithm | str,
    task: Problem,
    network: Network,
    coupling: float | None = None,
    step: ArrayLike | None = None,
    models: Model | None = None,
) -> np.ndarray:
    """(K d, K d), dense: what one synchronous tick does to the error; for small networks.

    Args:
        algorithm: "FedGD" or "FedRelax", or an algorithm, which then knows its coupling and step.
        task: a problem whose fields are gradients; the nodes of the network are its agents.
        network: of the nodes.
        coupling: alpha, at least 0; None: the algorithm's own.
        step: of FedGD: a number, or one per node; None: the algorithm's own.
        models: models of the nodes at which curved fields are linearised; default: GTVMin's solution.
    """
    name, coupling, steps = _method(algorithm, coupling, step, task)
    network, coupling = check(task, network, coupling)
    if not task.linear and models is None:
        models = gtv.solve(task, network, coupling)
    M = hessian(task, network, coupling, models)
    shape = M.shape
    if shape[0] * shape[1] > LARGEST or not M.blocks:
        raise FedpointError(f"the whole matrix has {shape[0] * shape[1]} rows: it is given up to {LARGEST}")
    if name == "FedGD":
        return dense_matrix(lambda x: x - steps[:, None] * M.times(x), shape)
    D = M.diagonal_blocks()
    return dense_matrix(lambda x: x - np.linalg.solve(D, M.times(x)[:, :, None])[:, :, 0], shape)


@checked
def block_norm(T: ArrayLike, nodes: Count) -> float:
    """max_i sum_j |T_ij|, T_ij the (d, d) blocks in their spectral norm: a bound of T in the block-maximum norm.

    It is that norm itself where the blocks T_ij of a row all stretch one vector most, as in FedGD and FedRelax.

    Args:
        T: (K d, K d), in blocks of nodes.
        nodes: K.

    >>> block_norm([[0.0, 0.5], [0.25, 0.5]], nodes=2)
    0.75
    """
    T = numbers("T", T)
    if T.ndim != 2 or T.shape[0] != T.shape[1] or T.shape[0] % nodes:
        raise FedpointError(f"a matrix of shape {T.shape} is not made of square blocks for {counted(nodes, 'node')}")
    d = T.shape[0] // nodes
    blocks = T.reshape(nodes, d, nodes, d).transpose(0, 2, 1, 3)
    return float(np.linalg.norm(blocks, 2, axis=(2, 3)).sum(1).max())


def coupling_of(algorithm: Algorithm) -> float:
    """alpha: the hyper-parameter `coupling` of methods for networks."""
    return float(values_of(algorithm)["coupling"])


def _method(
    algorithm: Algorithm | str, coupling: float | None, step: ArrayLike | None, task: Problem
) -> tuple[str, float, np.ndarray]:
    """The method's name, its coupling, and its steps (K,)."""
    if isinstance(algorithm, str):
        name, title = METHODS.get(algorithm.lower()), algorithm
    else:
        title, alone = algorithm.card.title, algorithm.innermost() is algorithm
        known = algorithm.coupled and alone and not algorithm.own_kind()
        name = None if not known else "FedRelax" if algorithm.proximal else "FedGD"
        coupling = coupling_of(algorithm) if known and coupling is None else coupling
        step = constant_step(algorithm) if step is None else step
    if name is None:
        raise FedpointError(f"networks: rates and contraction are known for FedGD and FedRelax, not for {title}")
    if coupling is None:
        raise FedpointError(f"{name}: give coupling=")
    if name == "FedRelax":
        return name, float(coupling), np.ones(task.agents)
    if step is None:
        raise FedpointError("FedGD: give step=")
    try:
        steps = np.asarray(step, dtype=float)
    except (TypeError, ValueError):
        raise FedpointError(f"FedGD: the step must be a number or one per node here, got {step!r}") from None
    if steps.shape not in ((), (task.agents,)) or not (np.isfinite(steps) & (steps > 0)).all():
        raise FedpointError(f"FedGD: the step must be above 0, one number or one per node; got {step!r}")
    return name, float(coupling), np.broadcast_to(steps, (task.agents,))


def _ends(M: Coupled, scale: Callable, unscale: Callable) -> tuple[float, float]:
    """The smallest and the largest eigenvalue of S M S; S x = scale(x), S^-1 x = unscale(x), S symmetric.

    The smallest through the inverse, where it is far from the others.
    """
    shape = M.shape
    if shape[0] * shape[1] <= DENSE:
        whole = dense_matrix(lambda x: scale(M.times(scale(x))), shape)
        values = np.linalg.eigvalsh(0.5 * (whole + whole.T))
        return float(values[0]), float(values[-1])
    top = largest_eigenvalue(lambda x: scale(M.times(scale(x))), shape)
    low = largest_eigenvalue(lambda x: unscale(M.solve(unscale(x), 1e-11)[0]), shape)
    return 1 / settled(low), settled(top)
