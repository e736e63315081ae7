"""GTVMin over couplings: the path of its solutions, and the coupling by validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Annotated, NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked, checked_methods
from fedpoint.core.arrays import numbers
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import Count, Positive, Seed, Within
from fedpoint.core.numbers import counted, with_error
from fedpoint.core.text_table import aligned
from fedpoint.core.types import Model
from fedpoint.graphs.gtv.minimum import minimise, solve
from fedpoint.graphs.gtv.nodes import NodeLosses, check, check_convex
from fedpoint.graphs.network import Network
from fedpoint.problems.base import Problem
from fedpoint.problems.rows import RowsProblem

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@checked_methods
@dataclass(frozen=True)
class Path:
    """GTVMin's solutions over couplings, in the order they were given. Print it for a table.

    Attributes:
        couplings: (n,) as they were given.
        models: (n, K, ...) the models of all nodes.
        losses: (n, K) L_i(w_i).
        variation: (n,) sum over edges of A_ij |w_i - w_j|^2.
        names: of the nodes.
    """

    couplings: np.ndarray  # (n,)
    models: Model  # (n, K, ...)
    losses: np.ndarray  # (n, K): L_i(w_i)
    variation: np.ndarray  # (n,): sum over edges of A_ij |w_i - w_j|^2
    names: list[str] = field(repr=False)

    def __repr__(self) -> str:
        low, high = self.couplings.min(), self.couplings.max()
        couplings, nodes = counted(len(self.couplings), "coupling"), counted(len(self.names), "node")
        return f"<GTVMin path: {couplings} from {low:g} to {high:g}, {nodes}>"

    def __str__(self) -> str:
        rows = [("coupling", "sum of losses", "total variation", "objective")]
        for a, own, tv in zip(self.couplings, self.losses.sum(1), self.variation, strict=True):
            rows.append((f"{a:g}", f"{own:.6g}", f"{tv:.6g}", f"{own + a * tv:.6g}"))
        return "\n".join(aligned(rows, left=0, ruled=False))

    def plot(
        self, path: str | FilePath | None = None, parameter: int | None = None, title: str | None = None
    ) -> Figure:
        """Losses and total variation against the coupling.

        Args:
            path: where to save it; png, svg or pdf by the ending.
            parameter: draw this number of every node's model instead.
            title: above it.
        """
        from fedpoint.show.coupling_plots import path_picture

        return path_picture(self, path, parameter, title)


@checked
def path(task: Problem, network: Network, couplings: Sequence[float] | np.ndarray, tolerance: Positive = 1e-13) -> Path:
    """GTVMin's solutions over couplings, each started from the one before it in size.

    Args:
        task: a problem whose fields are gradients; the nodes of the network are its agents.
        network: of the agents.
        couplings: (n,) each at least 0.
        tolerance: of the models, relative.

    >>> import fedpoint as fp
    >>> two = fp.problems.Quadratic(2.0, [[0.0], [3.0]])
    >>> print(path(two, Network.from_edges([(0, 1)]), [0.0, 1.0]))
    coupling  sum of losses  total variation  objective
           0              0                9          0
           1              2                1          3
    """
    network, _ = check(task, network, 0.0)
    values = _check_couplings(couplings)
    local = NodeLosses(task)
    check_convex(task, None)
    solutions = _along(local, network, values, tolerance)
    losses = np.stack([local.losses(W) for W in solutions])
    variation = np.array([network.total_variation(W) for W in solutions])
    models = jax.tree.map(lambda *a: np.stack(a), *(local.models(W) for W in solutions))
    return Path(values, models, losses, variation, list(task.names))


@checked_methods
@dataclass(frozen=True)
class Choice:
    """The coupling with the least held-out error, and the models refitted with it to all rows.

    Attributes:
        coupling: the best one.
        models: (K, ...) fitted with it to all rows.
        couplings: (n,) that were tried.
        errors: (n,) the mean over nodes of their held-out error, the mean loss of a held-out row without penalties.
        standard_errors: (n,) of that mean, over nodes.
        node_errors: (n, K), nan for nodes of which nothing was held out.
        how: how rows were held out, in words.
    """

    coupling: float
    models: Model
    couplings: np.ndarray
    errors: np.ndarray
    standard_errors: np.ndarray
    node_errors: np.ndarray
    how: str

    @property
    def best(self) -> int:
        """The place of the chosen coupling among those tried."""
        return int(np.argmin(self.errors))

    @property
    def at_edge(self) -> bool:
        """Whether the chosen coupling is the smallest or the largest tried: a wider range may hold a better one."""
        return len(self.couplings) > 1 and self.coupling in (self.couplings.min(), self.couplings.max())

    def __repr__(self) -> str:
        edge = "" if not self.at_edge else ", at the edge of the couplings tried"
        return (
            f"<coupling {self.coupling:.4g}{edge}: held-out error "
            f"{with_error(self.errors[self.best], self.standard_errors[self.best])} ({self.how})>"
        )

    def __str__(self) -> str:
        rows = [("coupling", "held-out error", "standard error", "")]
        for i in np.argsort(self.couplings):
            mark = "chosen" if i == self.best else ""
            rows.append((f"{self.couplings[i]:.4g}", f"{self.errors[i]:.6g}", f"{self.standard_errors[i]:.2g}", mark))
        return "\n".join(aligned(rows, left=0, ruled=False))

    def plot(self, path: str | FilePath | None = None, title: str | None = None) -> Figure:
        """Held-out error against the coupling, with a band of one standard error; a dot at the choice.

        Args:
            path: where to save it; png, svg or pdf by the ending.
            title: above it.
        """
        from fedpoint.show.coupling_plots import choice_picture

        return choice_picture(self, path, title)


@checked
def choose(
    task: Problem,
    network: Network,
    couplings: Sequence[float] | np.ndarray | None = None,
    held_out: float | RowsProblem | None = None,
    folds: Count = 5,
    seed: Seed = 0,
    tolerance: Positive = 1e-10,
) -> Choice:
    """The coupling by validation: rows of each node are held out, the rest is fitted, the error is that of each node's
    model on its own held-out rows.

    Args:
        task: a problem of rows, whose fields are gradients; the nodes of the network are its agents.
        network: of the agents.
        couplings: to try; default: 13 over six decades around the one where coupling and local curvature balance.
        held_out: a share of each node's rows, held out once; or a problem of the same agents with the rows to test on.
            Default: cross-validation over `folds`.
        folds: of the cross-validation.
        seed: of the split. A node keeps at least one row; one with a single row is only fitted.
        tolerance: of the fits on the way; the last one, to all rows, is to rounding.

    """
    network, _ = check(task, network, 0.0)
    if not isinstance(task, RowsProblem):
        raise FedpointError(f"{type(task).__name__} stores no rows that could be held out: give path() the couplings")
    check_convex(task, None)
    values = balanced(task, network) if couplings is None else _check_couplings(couplings)
    splits, how = splits_of_rows(task, held_out, folds, seed)
    total, times = np.zeros((len(values), task.agents)), np.zeros(task.agents)
    for train, test, tested in splits:
        fitted = _along(NodeLosses(train), network, values, tolerance)
        local = NodeLosses(test)
        for n, W in enumerate(fitted):
            total[n] += np.where(tested, local.row_errors(W), 0.0)
        times += tested
    each = np.where(times > 0, total / np.maximum(times, 1), np.nan)
    errors = np.nanmean(each, axis=1)
    some = int((times > 0).sum())
    spread = np.nanstd(each, axis=1, ddof=1) / np.sqrt(some) if some > 1 else np.full(len(values), np.nan)
    best = float(values[int(np.argmin(errors))])
    return Choice(best, solve(task, network, best), values, errors, spread, each, how)


@checked
def balanced(
    task: Problem, network: Network, count: Count = 13, decades: Annotated[float, Within(0.0, 100.0)] = 6.0
) -> np.ndarray:
    """Couplings around s/(2 d), s the nodes' typical curvature (the mean eigenvalue of a Hessian), d their degree:
    there a node's own rows and its neighbours pull alike.

    Args:
        task: a problem whose fields are gradients; the nodes of the network are its agents.
        network: of the agents.
        count: how many couplings.
        decades: how wide a range they cover, in powers of ten.
    """
    network, _ = check(task, network, 0.0)
    if not len(network.edges):
        raise FedpointError("the network has no edge: there is nothing to couple")
    local = NodeLosses(task)
    curvature = np.median(local.curvature(local.begin(None)))
    degree = np.median(network.degrees[network.degrees > 0])
    if not (np.isfinite(curvature) and curvature > 0):
        raise FedpointError("the losses have no curvature at the start, so there is no scale: give couplings=")
    return curvature / (2 * degree) * np.logspace(-decades / 2, decades / 2, count)


def _check_couplings(couplings: ArrayLike) -> np.ndarray:
    values = numbers("couplings", couplings)
    if values.ndim != 1 or not len(values) or not (np.isfinite(values) & (values >= 0)).all():
        raise FedpointError(f"couplings must be a list of numbers, at least 0; got {couplings!r}")
    return values


def _along(local: NodeLosses, network: Network, couplings: np.ndarray, tolerance: float) -> list[np.ndarray]:
    """(K, d) for every coupling, each started from the next smaller one's."""
    found: dict[int, np.ndarray] = {}
    W = local.begin(None)
    for i in np.argsort(couplings):
        W = found[int(i)] = minimise(local, network, float(couplings[i]), W, tolerance)
    return [found[i] for i in range(len(couplings))]


class Split(NamedTuple):
    train: RowsProblem
    test: RowsProblem
    tested: np.ndarray  # (K,): whose rows were held out


def splits_of_rows(
    task: RowsProblem, held_out: float | RowsProblem | None, folds: int, seed: int
) -> tuple[list[Split], str]:
    """What is fitted and what is tested, and how that is called."""
    if isinstance(held_out, RowsProblem):
        if held_out.names != task.names:
            raise FedpointError("held_out: a problem with the same agents, in the same order, as the task")
        if type(held_out.oracle) is not type(task.oracle):
            raise FedpointError(f"held_out: rows of {type(held_out).__name__} for a task of {type(task).__name__}")
        return [Split(task, held_out, np.ones(task.agents, bool))], "given rows"
    draw = np.random.default_rng(seed)
    counts = task.local_rows()
    orders = [draw.permutation(m) for m in counts]
    if held_out is not None:
        share = numbers("held_out", held_out)
        if share.ndim or not 0 < share < 1:
            raise FedpointError(f"held_out: a share of rows between 0 and 1, or a problem; got {held_out!r}")
        taken = [np.clip(round(float(share) * m), min(m - 1, 1), m - 1) for m in counts]
        tests = [[order[:n] for order, n in zip(orders, taken, strict=True)]]
        how = f"{float(share):g} of each node's rows"
    else:
        if isinstance(folds, bool) or not isinstance(folds, int | np.integer) or folds < 2:
            raise FedpointError(f"folds must be a whole number, at least 2; got {folds!r}")
        first = draw.integers(folds, size=len(counts))  # nodes of few rows are not all tested in the same folds
        tests = [
            [order[(np.arange(len(order)) + a) % folds == f] if len(order) > 1 else order[:0]
             for order, a in zip(orders, first, strict=True)]
            for f in range(folds)
        ]  # fmt: skip
        how = counted(folds, "fold")
    if max(counts) < 2:
        raise FedpointError("every node has a single row: none can be held out")
    splits = []
    for test in tests:
        tested = np.array([len(rows) > 0 for rows in test])
        if not tested.any():
            continue
        train = [np.setdiff1d(np.arange(m), rows) for m, rows in zip(counts, test, strict=True)]
        # A problem has no empty agents: a node of which nothing is tested lends one row, whose error is passed over.
        some = [np.sort(rows) if len(rows) else np.arange(1) for rows in test]
        splits.append(Split(task.restricted(train), task.restricted(some), tested))
    return splits, how
