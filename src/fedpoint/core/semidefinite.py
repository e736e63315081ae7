"""How is a semidefinite programme solved? By clarabel, an interior-point method, which is loaded when it is asked.

A symmetric matrix is the vector of its upper triangle, column by column, whose entries off the diagonal are multiplied
by sqrt(2): the inner product of two matrices is then that of their vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedpoint.core.errors import FedpointError

Kind = Literal["zero", "nonnegative", "semidefinite"]


class Block(NamedTuple):
    """right - left x lies in a cone: zero, nonnegative numbers, or vectors of semidefinite matrices."""

    kind: Kind
    left: np.ndarray  # (m, n)
    right: np.ndarray  # (m,)


class Solved(NamedTuple):
    """outcome: "solved": x is optimal; "nearly": to a few digits; "unbounded"; "infeasible"; else the solver's word."""

    outcome: str
    x: np.ndarray
    value: float


OUTCOMES = {
    "Solved": "solved",
    "AlmostSolved": "nearly",
    "DualInfeasible": "unbounded",
    "PrimalInfeasible": "infeasible",
}


def require(what: str) -> None:
    """Refuse what needs the solver, where it is not installed."""
    try:
        import clarabel  # noqa: F401
    except ImportError:
        raise FedpointError(
            f"{what} solves semidefinite programmes with clarabel, which is not installed: pip install clarabel, or "
            'pip install "fedpoint[proofs]"'
        ) from None


ACCURACIES = (1e-9, 1e-8, 1e-7, 1e-6)  # tried in turn: where matrices are singular by necessity, rounding is felt
SHARE = 0.9  # of the way to the boundary that a step goes: longer ones end in rounding sooner


def minimise(cost: np.ndarray, blocks: Sequence[Block], seconds: float = 120.0) -> Solved:
    """min cost x, such that every block holds, as accurately as rounding allows.

    >>> x = Block("semidefinite", -np.eye(3), vector(np.array([[0.0, 1.0], [1.0, 0.0]])))   # [[a, 1], [1, c]] >= 0
    >>> minimise(np.array([1.0, 0.0, 1.0]), [x._replace(left=-np.diag([1.0, 0.0, 1.0]))]).value.__round__(6)
    2.0
    """
    require("this")
    import clarabel
    from scipy import sparse

    cones = {
        "zero": clarabel.ZeroConeT,
        "nonnegative": clarabel.NonnegativeConeT,
        "semidefinite": lambda m: clarabel.PSDTriangleConeT(order(m)),
    }
    used = [block for block in blocks if len(block.right)]
    left = sparse.csc_matrix(np.concatenate([block.left for block in used]))
    right = np.concatenate([block.right for block in used])
    quadratic = sparse.csc_matrix((len(cost), len(cost)))
    for accuracy in ACCURACIES:
        settings = clarabel.DefaultSettings()
        settings.verbose, settings.max_iter, settings.time_limit, settings.max_threads = False, 200, seconds, 1
        settings.max_step_fraction = SHARE
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = accuracy
        shapes = [cones[block.kind](len(block.right)) for block in used]
        found = clarabel.DefaultSolver(quadratic, np.asarray(cost, float), left, right, shapes, settings).solve()
        outcome = OUTCOMES.get(str(found.status), str(found.status))
        if outcome in OUTCOMES.values() and outcome != "nearly":
            break
    return Solved(outcome, np.asarray(found.x), float(found.obj_val))


def order(length: int) -> int:
    """Of the matrices whose vectors are so long."""
    return round((np.sqrt(8 * length + 1) - 1) / 2)


def vector(matrix: np.ndarray) -> np.ndarray:
    """(..., n, n) symmetric as (..., n (n + 1) / 2)."""
    columns, rows = np.tril_indices(matrix.shape[-1])
    return matrix[..., rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2))


def matrix(vector: np.ndarray) -> np.ndarray:
    """A vector as the symmetric matrix."""
    n = order(len(vector))
    columns, rows = np.tril_indices(n)
    found = np.zeros((n, n))
    found[rows, columns] = vector / np.where(rows == columns, 1.0, np.sqrt(2))
    return found + np.triu(found, 1).T
