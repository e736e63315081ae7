"""What are the best models of all nodes together? GTVMin: each node's own loss, and neighbours that should agree.

    min over w_1, ..., w_K of  sum_i L_i(w_i) + coupling sum_edges A_ij |w_i - w_j|^2

L_i is agent i's loss as the problem defines it, not weighted by p_i. Lecture 003. With coupling 0 every node is fitted
alone; as it grows, the nodes of each connected component come to share one model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import scipy.linalg
import scipy.sparse as sparse
from jax.flatten_util import ravel_pytree
from scipy.sparse.csgraph import reverse_cuthill_mckee

from fedpoint.core.network import Network
from fedpoint.errors import FedpointError
from fedpoint.problems.base import Mine, Problem, numbers, per_agent
from fedpoint.problems.rows import RowsProblem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TINY = 1e-12  # of the largest eigenvalue: below it a direction is not determined
BLOCKS = 1 << 25  # numbers of all nodes' Hessians, up to which they are kept
BLOCK_WORK = 1e11  # operations to invert them
NARROW = 64  # width of a band (a path or a ring of nodes), up to which it is factorised at once
DIRECT_WORK = 1e11  # operations and bytes of a banded factorisation where conjugate gradients are slow
DIRECT_BYTES = 1 << 31
SLOW, ITERATIONS = 300, 20_000  # of conjugate gradients
NEWTON = 80  # steps; without convexity ten times as many


def solve(task: Problem, network: Network, coupling: float, start: Any = None, tolerance: float = 1e-13) -> Any:
    """The models of all nodes that minimise sum_i L_i(w_i) + coupling sum_edges A_ij |w_i - w_j|^2.

    Affine gradients A_i w - b_i: the sparse system (blkdiag(A_i) + 2 coupling Lap (x) I) w = b, by a banded
    factorisation where that is cheap, else by conjugate gradients. Other losses: Newton's method over all nodes
    together, to rounding.

    Args:
        task: a problem whose fields are gradients; nodes of the network are its agents.
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
    local = Local(task)
    begin = local.begin(start)
    _check_convex(task, start)
    return local.models(_minimise(local, network, coupling, begin, tolerance))


@dataclass(frozen=True)
class Objective:
    """GTVMin's objective at some models: value = sum of the losses + coupling * variation."""

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


def objective(task: Problem, network: Network, coupling: float, models: Any) -> Objective:
    """sum_i L_i(w_i) + coupling sum_edges A_ij |w_i - w_j|^2 at models with a leading axis of nodes, in its parts.

    >>> import fedpoint as fp
    >>> two = fp.problems.Quadratic(2.0, [[0.0], [3.0]])
    >>> objective(two, Network.from_edges([(0, 1)]), 1.0, [[1.0], [2.0]])
    <GTVMin objective 3: losses 2 + 1 * variation 1>
    """
    network, coupling = check(task, network, coupling)
    local = Local(task)
    flat = local.flat(models, "models", one=False)
    return Objective(local.losses(flat), network.total_variation(flat), coupling)


@dataclass(frozen=True)
class Path:
    """GTVMin's solutions over couplings, in the order they were given. Print it for a table."""

    couplings: np.ndarray  # (n,)
    models: Any  # (n, K, ...)
    losses: np.ndarray  # (n, K): L_i(w_i)
    variation: np.ndarray  # (n,): sum over edges of A_ij |w_i - w_j|^2
    names: list[str] = field(repr=False)

    def __repr__(self) -> str:
        low, high = self.couplings.min(), self.couplings.max()
        return f"<GTVMin path: {len(self.couplings)} couplings from {low:g} to {high:g}, {len(self.names)} nodes>"

    def __str__(self) -> str:
        rows = [("coupling", "sum of losses", "total variation", "objective")]
        for a, own, tv in zip(self.couplings, self.losses.sum(1), self.variation, strict=True):
            rows.append((f"{a:g}", f"{own:.6g}", f"{tv:.6g}", f"{own + a * tv:.6g}"))
        return _table(rows)

    def plot(
        self, path: str | FilePath | None = None, parameter: int | None = None, title: str | None = None
    ) -> Figure:
        """Losses and total variation against the coupling; with `parameter`, that number of every node's model."""
        from fedpoint.report.plots import COLOURS, Line, check_path, draw, end_labels, one_axes, save, style

        if path is not None:
            check_path(path)
        order = np.argsort(self.couplings)
        x = self.couplings[order]
        some = x > 0
        if some.sum() < 2:
            raise FedpointError("a picture of a path needs at least two couplings above 0")
        x = x[some]
        figure, ax = one_axes(width=7.6)
        if parameter is None:
            parts = (("sum of losses", self.losses.sum(1)), ("total variation", self.variation))
            lines = [Line(x, y[order][some], label, COLOURS[i]) for i, (label, y) in enumerate(parts)]
            draw(ax, lines, log=all((line.y > 0).all() for line in lines))
        else:
            flat = np.concatenate([a.reshape(*a.shape[:2], -1) for a in jax.tree.leaves(self.models)], axis=2)
            if not 0 <= parameter < flat.shape[2]:
                raise FedpointError(f"parameter {parameter} is not there: a model has {flat.shape[2]} numbers, from 0")
            values = flat[order][some][:, :, parameter]
            few = values.shape[1] <= 12
            lines = [
                Line(x, y, name, COLOURS[i % len(COLOURS)] if few else COLOURS[0])
                for i, (name, y) in enumerate(zip(self.names, values.T, strict=True))
            ]
            draw(ax, lines, log=False, width=1.6 if few else 0.7)
        style(ax, "coupling", "" if parameter is None else f"parameter {parameter} of every node", title)
        _log_axis(ax)
        if len(lines) <= 12:
            end_labels(ax, lines)
        if path is not None:
            save(figure, path)
        return figure


def path(task: Problem, network: Network, couplings: Sequence[float] | np.ndarray, tolerance: float = 1e-13) -> Path:
    """GTVMin's solutions over couplings, each started from the one before it in size.

    >>> import fedpoint as fp
    >>> two = fp.problems.Quadratic(2.0, [[0.0], [3.0]])
    >>> print(path(two, Network.from_edges([(0, 1)]), [0.0, 1.0]))
    coupling  sum of losses  total variation  objective
           0              0                9          0
           1              2                1          3
    """
    network, _ = check(task, network, 0.0)
    values = _check_couplings(couplings)
    local = Local(task)
    _check_convex(task, None)
    solutions = _along(local, network, values, tolerance)
    losses = np.stack([local.losses(W) for W in solutions])
    variation = np.array([network.total_variation(W) for W in solutions])
    models = jax.tree.map(lambda *a: np.stack(a), *(local.models(W) for W in solutions))
    return Path(values, models, losses, variation, list(task.names))


@dataclass(frozen=True)
class Choice:
    """The coupling with the least held-out error, and the models refitted with it to all rows.

    errors: (n,) the mean over nodes of their held-out error, the mean loss of a held-out row without penalties.
    standard_errors: (n,) of that mean, over nodes. node_errors: (n, K), nan for nodes of which nothing was held out.
    """

    coupling: float
    models: Any
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
            f"<coupling {self.coupling:.4g}{edge}: held-out error {self.errors[self.best]:.6g} "
            f"+- {self.standard_errors[self.best]:.2g} ({self.how})>"
        )

    def __str__(self) -> str:
        rows = [("coupling", "held-out error", "standard error", "")]
        for i in np.argsort(self.couplings):
            mark = "chosen" if i == self.best else ""
            rows.append((f"{self.couplings[i]:.4g}", f"{self.errors[i]:.6g}", f"{self.standard_errors[i]:.2g}", mark))
        return _table(rows)

    def plot(self, path: str | FilePath | None = None, title: str | None = None) -> Figure:
        """Held-out error against the coupling, with a band of one standard error; a dot at the choice."""
        from fedpoint.report.plots import COLOURS, Line, check_path, draw, one_axes, save, style

        if path is not None:
            check_path(path)
        order = np.argsort(self.couplings)
        order = order[self.couplings[order] > 0]
        x, y, e = self.couplings[order], self.errors[order], self.standard_errors[order]
        figure, ax = one_axes()
        draw(ax, [Line(x, y, "", COLOURS[0])], log=False)
        ax.fill_between(x, y - e, y + e, color=COLOURS[0], alpha=0.15, linewidth=0)
        if self.coupling > 0:
            ax.plot([self.coupling], [self.errors[self.best]], "o", color=COLOURS[1], zorder=5)
        style(ax, "coupling", f"held-out error ({self.how})", title)
        _log_axis(ax)
        if path is not None:
            save(figure, path)
        return figure


def choose(
    task: Problem,
    network: Network,
    couplings: Sequence[float] | np.ndarray | None = None,
    held_out: float | RowsProblem | None = None,
    folds: int = 5,
    seed: int = 0,
    tolerance: float = 1e-10,
) -> Choice:
    """The coupling by validation: rows of each node are held out, the rest is fitted, the error is that of each node's
    model on its own held-out rows.

    Args:
        couplings: to try; default: 13 over six decades around the one where coupling and local curvature balance.
        held_out: a share of each node's rows, held out once; or a problem of the same agents with the rows to test on.
            Default: cross-validation over `folds`.
        seed: of the split. A node keeps at least one row; one with a single row is only fitted.
        tolerance: of the fits on the way; the last one, to all rows, is to rounding.
    """
    network, _ = check(task, network, 0.0)
    if not isinstance(task, RowsProblem):
        raise FedpointError(f"{type(task).__name__} stores no rows that could be held out: give path() the couplings")
    _check_convex(task, None)
    values = balanced(task, network) if couplings is None else _check_couplings(couplings)
    splits, how = _splits(task, held_out, folds, seed)
    total, times = np.zeros((len(values), task.agents)), np.zeros(task.agents)
    for train, test, tested in splits:
        fitted = _along(Local(train), network, values, tolerance)
        local = Local(test)
        for n, W in enumerate(fitted):
            total[n] += np.where(tested, local.row_errors(W), 0.0)
        times += tested
    each = np.where(times > 0, total / np.maximum(times, 1), np.nan)
    errors = np.nanmean(each, axis=1)
    some = int((times > 0).sum())
    spread = np.nanstd(each, axis=1, ddof=1) / np.sqrt(some) if some > 1 else np.full(len(values), np.nan)
    best = float(values[int(np.argmin(errors))])
    return Choice(best, solve(task, network, best), values, errors, spread, each, how)


def balanced(task: Problem, network: Network, count: int = 13, decades: float = 6.0) -> np.ndarray:
    """Couplings around s/(2 d), s the nodes' typical curvature (the mean eigenvalue of a Hessian), d their degree:
    there a node's own rows and its neighbours pull alike."""
    network, _ = check(task, network, 0.0)
    if not len(network.edges):
        raise FedpointError("the network has no edge: there is nothing to couple")
    local = Local(task)
    curvature = np.median(local.curvature(local.begin(None)))
    degree = np.median(network.degrees[network.degrees > 0])
    if not (np.isfinite(curvature) and curvature > 0):
        raise FedpointError("the losses have no curvature at the start, so there is no scale: give couplings=")
    return curvature / (2 * degree) * np.logspace(-decades / 2, decades / 2, count)


# What a task is to the solver


class Local:
    """All agents' losses at once, each at its own model, (K, d) flattened."""

    def __init__(self, task: Problem):
        self.task = task
        start = task.start()
        self.tree = not hasattr(start, "dtype")
        self.like = like = jax.tree.map(lambda a: np.asarray(a, dtype=float), start)
        self.size = sum(np.size(a) for a in jax.tree.leaves(like))
        self.shape = (task.agents, self.size)
        found = task.linear_fields() if task.linear else None
        self.affine = found is not None
        if found is not None:
            self.A, self.b = (np.asarray(a, dtype=float) for a in found)

    @cached_property
    def convex(self) -> bool:
        return self.task.convex is True

    @cached_property
    def _data(self) -> Any:
        with jax.enable_x64(True):
            return jax.device_put((self.task.own, self.task.common))

    def flat(self, models: Any, name: str, one: bool = True) -> np.ndarray:
        """(K, d) of models with a leading axis of nodes, or (where allowed) of one model for all."""
        if not self.tree:
            models = numbers(name, models)
        built: list[Any] = [jax.tree.structure(tree) for tree in (models, self.like)]
        if built[0] != built[1]:
            raise FedpointError(f"{name}: built as {built[0]}, but a model of this problem as {built[1]}")
        given = [np.asarray(a, dtype=float) for a in jax.tree.leaves(models)]
        shapes = [np.shape(a) for a in jax.tree.leaves(self.like)]
        K = self.task.agents
        if one and [a.shape for a in given] == shapes:
            given = [np.broadcast_to(a, (K, *a.shape)) for a in given]
        if [a.shape for a in given] != [(K, *s) for s in shapes]:
            raise FedpointError(
                f"{name}: shapes {[a.shape for a in given]}; for {K} nodes give {[(K, *s) for s in shapes]}"
                + (f", or one model of {shapes} for all" if one else "")
            )
        W = np.concatenate([a.reshape(K, -1) for a in given], axis=1)
        if not np.isfinite(W).all():
            raise FedpointError(f"{name}: holds NaN or inf")
        return W

    def begin(self, start: Any) -> np.ndarray:
        return np.array(self.flat(self.like if start is None else start, "start"))

    def models(self, W: np.ndarray) -> Any:
        """(K, d) as the problem's models, with a leading axis of nodes."""
        leaves, built = jax.tree.flatten(self.like)
        cuts = np.cumsum([np.size(a) for a in leaves])[:-1]
        parts = np.split(W, cuts, axis=1)
        return jax.tree.unflatten(
            built, [np.array(p.reshape(-1, *np.shape(a))) for p, a in zip(parts, leaves, strict=True)]
        )

    def field(self, W: np.ndarray) -> np.ndarray:
        """(K, d): the gradient of every L_i at w_i."""
        if self.affine:
            return np.einsum("kij,kj->ki", self.A, W) - self.b
        with jax.enable_x64(True):
            return np.asarray(_fields(self.task.oracle, self.like, *self._data, W))

    def losses(self, W: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(_losses(self.task.oracle, self.like, *self._data, W))

    def row_errors(self, W: np.ndarray) -> np.ndarray:
        """(K,): the mean loss of a row of each agent, without the penalty."""
        assert isinstance(self.task, RowsProblem)
        with jax.enable_x64(True):
            whole = np.asarray(_row_losses(self.task.oracle, self.like, *self._data, W))
        return whole if self.task.oracle.mean else whole / self.task.local_rows()

    @property
    def small(self) -> bool:
        """Whether the Hessians of all nodes are worth writing down."""
        K, d = self.shape
        return K * d * d <= BLOCKS and K * float(d) ** 3 <= BLOCK_WORK

    def hessians(self, W: np.ndarray) -> np.ndarray:
        """(K, d, d)."""
        if self.affine:
            return self.A
        with jax.enable_x64(True):
            return np.asarray(_hessians(self.task.oracle, self.like, *self._data, W))

    def product(self, W: np.ndarray, x: np.ndarray) -> np.ndarray:
        """(K, d): each node's Hessian times x_i."""
        with jax.enable_x64(True):
            return np.asarray(_products(self.task.oracle, self.like, *self._data, W, x))

    def curvature(self, W: np.ndarray) -> np.ndarray:
        """(K,): the mean eigenvalue of each node's Hessian; by a random vector where Hessians are large."""
        if self.affine or self.small:
            return np.trace(self.hessians(W), axis1=1, axis2=2) / self.size
        signs = np.random.default_rng(0).choice([-1.0, 1.0], self.shape)
        return np.abs((signs * self.product(W, signs)).mean(1))


def _each(function, like, own, common, W, *more):
    """function(one agent's data, its model, ...) over agents; the model as the problem has it."""
    unravel = ravel_pytree(like)[1]
    return per_agent(lambda a: function(Mine(a[0], common), unravel, *a[1:]), (own, W, *more))


@partial(jax.jit, static_argnums=0)
def _fields(oracle, like, own, common, W):
    return _each(lambda mine, make, w: ravel_pytree(oracle.mean_field(mine, make(w)))[0], like, own, common, W)


@partial(jax.jit, static_argnums=0)
def _losses(oracle, like, own, common, W):
    return _each(lambda mine, make, w: oracle.loss(mine, make(w)), like, own, common, W)


@partial(jax.jit, static_argnums=0)
def _row_losses(oracle, like, own, common, W):
    def one(mine, make, w):
        penalty = oracle.penalty(make(w), mine.common.extra)
        return oracle.loss(mine, make(w)) - (0.0 if penalty is None else penalty)

    return _each(one, like, own, common, W)


@partial(jax.jit, static_argnums=0)
def _hessians(oracle, like, own, common, W):
    def one(mine, make, w):
        return jax.jacfwd(lambda v: ravel_pytree(oracle.mean_field(mine, make(v)))[0])(w)

    return _each(one, like, own, common, W)


@partial(jax.jit, static_argnums=0)
def _products(oracle, like, own, common, W, x):
    def one(mine, make, w, u):
        return jax.jvp(lambda v: ravel_pytree(oracle.mean_field(mine, make(v)))[0], (w,), (u,))[1]

    return _each(one, like, own, common, W, x)


# Nodes that are coupled


class Coupled:
    """M = blkdiag(H_i) + 2 coupling Lap (x) I: products with it, and its inverse.

    Conjugate gradients are preconditioned by the diagonal blocks H_i + 2 coupling d_i and, since Lap does not see
    what the nodes of a component have in common, by the sum of a component's H_i for that: without the second part
    they would take ever longer as the coupling grows.

    Args:
        H: (K, d, d); or (K,) curvatures that stand for them where only `product` knows them.
        product: x -> (H_i x_i), default: with H; of `size` numbers each.
        definite: M is positive semidefinite; otherwise the preconditioner takes absolute values of eigenvalues.
    """

    def __init__(
        self,
        H: np.ndarray,
        network: Network,
        coupling: float,
        product: Callable[[np.ndarray], np.ndarray] | None = None,
        definite: bool = True,
        size: int | None = None,
    ):
        self.H, self.network, self.coupling, self.definite = H, network, coupling, definite
        self.blocks = H.ndim == 3
        self.shape = network.nodes, int(H.shape[-1] if size is None else size)
        self._product = product
        self.parts = Parts(network, coupling)
        self.degrees = 2 * coupling * network.degrees
        self.laplacian = pull(network, coupling)
        self._factor: tuple | None = None

    def require_unique(self) -> None:
        """Refuse where M is singular, for H_i without negative eigenvalues; not checked where they are not known."""
        words = _flat(self.H, self.network, self.parts, self.coupling) if self.blocks else ""
        if words:
            raise FedpointError(words)

    def times(self, x: np.ndarray) -> np.ndarray:
        """M x, (K, d)."""
        return self.local(x) + self.laplacian @ x

    def local(self, x: np.ndarray) -> np.ndarray:
        if self._product is not None:
            return self._product(x)
        return np.einsum("kij,kj->ki", self.H, x)

    def diagonal_blocks(self) -> np.ndarray:
        """(K, d, d): H_i + 2 coupling d_i."""
        return self.H + self.degrees[:, None, None] * np.eye(self.H.shape[1])

    @cached_property
    def _inverses(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the preconditioner's two parts: each node's, and each component's of more than one node."""
        sums = self.parts.total(self.H)[self.parts.many]
        if self.blocks:
            return _inverses(self.diagonal_blocks(), self.definite), _inverses(sums, self.definite)
        floor = TINY * max(float(np.abs(self.H).max(initial=0.0)), 1e-300)
        own = np.maximum(np.abs(self.H) + self.degrees, floor)
        return 1 / own[:, None], 1 / np.maximum(np.abs(sums), floor)[:, None]

    def precondition(self, r: np.ndarray) -> np.ndarray:
        own, coarse = self._inverses
        if not self.blocks:
            z, several = own * r, coarse * self.parts.total(r)[self.parts.many]
        else:
            z = np.einsum("kij,kj->ki", own, r)
            several = np.einsum("kij,kj->ki", coarse, self.parts.total(r)[self.parts.many])
        if not len(several):
            return z
        common = np.zeros((self.parts.count, r.shape[1]))
        common[self.parts.many] = several
        return z + common[self.parts.of]

    def solve(self, b: np.ndarray, accuracy: float) -> tuple[np.ndarray, bool]:
        """x with M x = b up to an accuracy, and whether M proved positive definite on the way.

        A banded factorisation for paths, rings and where conjugate gradients are slow; these for all else.
        """
        if not b.any():
            return np.zeros_like(b), True
        width, work, size = self._band[1:] if self.blocks else (np.inf, np.inf, np.inf)
        direct = work <= DIRECT_WORK and size <= DIRECT_BYTES
        if direct and (width <= NARROW or self._factor is not None):
            exact = self._direct(b)
            if exact is None:
                return self._gradients(b, accuracy, ITERATIONS)[0], self.definite
            return exact, True
        x, good, settled = self._gradients(b, accuracy, SLOW if direct else ITERATIONS)
        if not settled and direct:
            exact = self._direct(b)
            return (x, self.definite) if exact is None else (exact, True)
        return x, good

    def _gradients(self, b: np.ndarray, accuracy: float, most: int) -> tuple[np.ndarray, bool, bool]:
        """Preconditioned conjugate gradients, to an accuracy of the residual in the preconditioner's norm."""
        x, r = np.zeros_like(b), b.copy()
        z = self.precondition(r)
        p, size = z.copy(), _dot(r, z)
        enough = accuracy**2 * size
        for _ in range(most):
            q = self.times(p)
            bend = _dot(p, q)
            if not bend > 0:  # M is not positive along p, or rounding is: what is found so far, or downhill
                return x if x.any() else p, self.definite, True
            s = size / bend
            x += s * p
            r -= s * q
            z = self.precondition(r)
            before, size = size, _dot(r, z)
            if size <= enough:
                return x, True, True
            p *= size / before
            p += z
        return x, True, False

    @cached_property
    def _band(self) -> tuple[np.ndarray, float, float, float]:
        """An order of the nodes in which neighbours are near; width, operations and bytes of the factor in it."""
        K, d = self.shape
        order = np.asarray(reverse_cuthill_mckee(self.network.adjacency, symmetric_mode=True), dtype=np.int64)
        place = np.empty(K, dtype=np.int64)
        place[order] = np.arange(K)
        reach = np.abs(np.diff(place[self.network.edges], axis=1)).max(initial=0)
        width = float((reach + 1) * d)
        return place, width, K * d * width**2, K * d * width * 8

    def _direct(self, b: np.ndarray) -> np.ndarray | None:
        """Banded Cholesky factorisation; None where M is not positive definite."""
        place = self._band[0]
        K, d = b.shape
        if self._factor is None:
            ends = place[self.network.edges]
            reach = int(np.abs(np.diff(ends, axis=1)).max(initial=0))
            band = np.zeros(((reach + 1) * d, K * d))  # band[i - j, j] = M[i, j], i >= j
            rows, columns = np.tril_indices(d)
            at = place[:, None] * d
            band[rows - columns, at + columns] = self.diagonal_blocks()[:, rows, columns]
            low, gap = ends.min(1), np.abs(np.diff(ends, axis=1)[:, 0])
            for j in range(d):
                band[gap * d, low * d + j] = -2 * self.coupling * self.network.weights
            try:
                self._factor = (scipy.linalg.cholesky_banded(band, lower=True, overwrite_ab=True), True)
            except np.linalg.LinAlgError:
                return None
        right = np.empty_like(b)
        right[place] = b
        x = scipy.linalg.cho_solve_banded(self._factor, right.ravel(), check_finite=False)
        return x.reshape(K, d)[place]


def pull(network: Network, coupling: float) -> sparse.csr_matrix:
    """(K, K), sparse: 2 coupling Lap."""
    if not len(network.edges):
        return sparse.csr_matrix((network.nodes, network.nodes))
    return 2 * coupling * network.laplacian


class Parts:
    """The connected components of a network; without coupling every node is its own."""

    def __init__(self, network: Network, coupling: float):
        K = network.nodes
        self.of = network.components if coupling > 0 else np.arange(K)
        self.count = int(self.of.max(initial=-1)) + 1
        self.sizes = np.bincount(self.of, minlength=self.count)
        self.many = self.sizes > 1
        self._member = sparse.csr_matrix((np.ones(K), (self.of, np.arange(K))), shape=(self.count, K))

    def total(self, x: np.ndarray) -> np.ndarray:
        """(count, ...): sums over the nodes of each."""
        flat = x.reshape(len(x), -1)
        sums = flat.sum(0)[None] if self.count == 1 else self._member @ flat
        return sums.reshape(self.count, *x.shape[1:])

    def mean(self, x: np.ndarray) -> np.ndarray:
        return self.total(x) / self.sizes[:, None]


def _dot(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.einsum("ki,ki->", x, y))  # no threads, which take longer to wake than this


def _inverses(D: np.ndarray, definite: bool) -> np.ndarray:
    """Of symmetric matrices; of those that are not positive definite, with the moduli of their eigenvalues."""
    if definite:
        try:
            np.linalg.cholesky(D)
            return np.linalg.inv(D)
        except np.linalg.LinAlgError:
            pass
    values, U = np.linalg.eigh(D)
    floor = max(TINY * float(np.abs(values).max(initial=0.0)), 1e-300)
    return (U / np.maximum(np.abs(values), floor)[:, None, :]) @ np.swapaxes(U, 1, 2)


def _moduli(H: np.ndarray) -> np.ndarray:
    """|H_i|, with a floor: positive definite."""
    values, U = np.linalg.eigh(H)
    floor = 1e-8 * np.abs(values).max(initial=1e-300)
    return (U * np.maximum(np.abs(values), floor)[:, None, :]) @ np.swapaxes(U, 1, 2)


# The minimum

AT_INFINITY = "the minimum may lie at infinity, as for classes that can be separated without a ridge"


def _minimise(local: Local, network: Network, coupling: float, start: np.ndarray, tolerance: float) -> np.ndarray:
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
        if _flat(last, network, parts, coupling, scale=first):  # everywhere, or because it went far away?
            words = _flat(first, network, parts, coupling)
            raise FedpointError(words or f"GTVMin's models grow without bound: {AT_INFINITY}")
    return W


def coupled(local: Local, network: Network, coupling: float, W: np.ndarray) -> Coupled:
    """The Hessian of the objective at models (K, d)."""
    if local.affine or local.small:
        return Coupled(local.hessians(W), network, coupling, definite=local.convex)
    return Coupled(local.curvature(W), network, coupling, lambda x: local.product(W, x), local.convex, local.size)


def _shorten(local, network, coupling, W, apart, slope, delta, mean) -> tuple[float, bool]:
    """How much of a step to take: halved until the objective falls as its slope promises. And whether the step is
    only made of rounding errors, which a relative change does not show where the models are zero."""

    def value(s):
        own = local.losses(W + s * delta)
        tv = coupling * network.total_variation(apart + s * (delta - mean))
        return float(own.sum() + tv), float(np.abs(own).sum() + tv)

    now, scale = value(0.0)
    promised = _dot(slope, delta)
    slack = 1e-13 * scale
    if promised >= -slack and np.linalg.norm(delta) <= 1e-4 * np.linalg.norm(W):  # the last steps: below rounding
        return 1.0, False
    if abs(promised) <= 1e-30 * scale:
        return 1.0, True
    s = 1.0
    while s > 1e-12 and not value(s)[0] <= now + 1e-4 * s * promised + slack:
        s /= 2
    return s, False


# What is refused


def check(task: Any, network: Any, coupling: Any) -> tuple[Network, float]:
    """The network in the order of the task's agents, and the coupling as a number."""
    if not isinstance(task, Problem):
        raise FedpointError(f"task must be a problem such as fp.problems.LeastSquares, got {type(task).__name__}")
    if not isinstance(network, Network):
        raise FedpointError(f"network must be an fp.Network, got {type(network).__name__}")
    try:
        number = float(coupling)
    except (TypeError, ValueError):
        raise FedpointError(f"coupling must be a number, got {coupling!r}") from None
    if not (np.isfinite(number) and number >= 0):
        raise FedpointError(f"coupling must be a number, at least 0; got {coupling}")
    if not task.has_loss:
        raise FedpointError(
            f"GTVMin is a minimum, but the fields of {type(task).__name__} are not gradients: there is no loss"
        )
    return network.aligned(task.names), number


def _check_convex(task: Problem, start: Any) -> None:
    if task.linear or start is not None or task.convex is True:
        return
    why = "it is not known whether the losses are convex" if task.convex is None else "the losses are not convex"
    word = " (Loss takes your word: convex=True)" if task.convex is None else ""
    raise FedpointError(f"{why}{word}: give start=, and what is found is a stationary point")


def _check_couplings(couplings: Any) -> np.ndarray:
    values = numbers("couplings", couplings)
    if values.ndim != 1 or not len(values) or not (np.isfinite(values) & (values >= 0)).all():
        raise FedpointError(f"couplings must be a list of numbers, at least 0; got {couplings!r}")
    return values


def _flat(H: np.ndarray, network: Network, parts: Parts, coupling: float, scale: np.ndarray | None = None) -> str:
    """Why the solution is not unique, or nothing: it is (for convex losses) iff, on each connected component, the sum
    of H_i is positive definite. scale: Hessians elsewhere, which say what counts as zero."""
    values = np.linalg.eigvalsh(parts.total(H))
    largest = np.abs(values).max(axis=1)
    if scale is not None:
        largest = np.maximum(largest, np.trace(parts.total(scale), axis1=1, axis2=2))
    flat = values[:, 0] <= TINY * largest
    if not flat.any():
        return ""
    part = int(np.flatnonzero(flat)[0])
    names = [network.names[i] for i in np.flatnonzero(parts.of == part)]
    rank, more = int((values[part] > TINY * largest[part]).sum()), int(flat.sum()) - 1
    if len(names) == 1:
        who = f"node {names[0]}" + (" has no neighbour and" if coupling > 0 else "")
        remedy = "give it rows or neighbours" if coupling > 0 else "give it rows, or a coupling above 0"
    else:
        who = f"the component of {len(names)} nodes {', '.join(names[:5])}" + (", ..." if len(names) > 5 else "")
        remedy = "give it rows, or an edge to other nodes"
    others = f" (and {more} more such {'nodes' if coupling == 0 else 'components'})" if more else ""
    return f"GTVMin's solution is not unique: {who} determines {rank} of {values.shape[1]} parameters{others}; {remedy}"


# Paths and validation


def _along(local: Local, network: Network, couplings: np.ndarray, tolerance: float) -> list[np.ndarray]:
    """(K, d) for every coupling, each started from the next smaller one's."""
    found: dict[int, np.ndarray] = {}
    W = local.begin(None)
    for i in np.argsort(couplings):
        W = found[int(i)] = _minimise(local, network, float(couplings[i]), W, tolerance)
    return [found[i] for i in range(len(couplings))]


def _splits(task: RowsProblem, held_out: Any, folds: int, seed: int) -> tuple[list, str]:
    """(what is fitted, what is tested, whose rows were held out) of every split, and how that is called."""
    if isinstance(held_out, RowsProblem):
        if held_out.names != task.names:
            raise FedpointError("held_out: a problem with the same agents, in the same order, as the task")
        if type(held_out.oracle) is not type(task.oracle):
            raise FedpointError(f"held_out: rows of {type(held_out).__name__} for a task of {type(task).__name__}")
        return [(task, held_out, np.ones(task.agents, bool))], "given rows"
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
        how = f"{folds} folds"
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
        splits.append((task.restricted(train), task.restricted(some), tested))
    return splits, how


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _log_axis(ax: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator())
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
