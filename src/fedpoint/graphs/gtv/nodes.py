"""All agents' losses at once, each at its own model; and what GTVMin refuses of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, partial

import jax
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from fedpoint.core.arrays import numbers
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted
from fedpoint.core.precision import double
from fedpoint.core.types import Data, Model, Tree
from fedpoint.graphs.network import Network
from fedpoint.problems.base import Problem, per_agent
from fedpoint.problems.oracle import Mine, Oracle
from fedpoint.problems.rows import RowsOracle, RowsProblem

BLOCKS = 1 << 25  # numbers of all nodes' Hessians, up to which they are kept
BLOCK_WORK = 1e11  # operations to invert them


def check(task: Problem, network: Network, coupling: float) -> tuple[Network, float]:
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


def check_convex(task: Problem, start: Model | None) -> None:
    if task.linear or start is not None or task.convex is True:
        return
    why = "it is not known whether the losses are convex" if task.convex is None else "the losses are not convex"
    word = " (if they are, say so: Loss(..., convex=True))" if task.convex is None else ""
    raise FedpointError(f"{why}{word}: give start=, and what is found is a stationary point")


class Losses(ABC):
    """All agents' losses at once, each at its own model: what `minimise` asks of them. Models are (K, d), flattened."""

    affine: bool  # gradients are affine
    convex: bool
    size: int  # d

    @property
    @abstractmethod
    def small(self) -> bool:
        """Whether the Hessians of all nodes are worth writing down."""

    @abstractmethod
    def field(self, W: np.ndarray) -> np.ndarray:
        """(K, d): the gradient of every L_i at w_i."""

    @abstractmethod
    def losses(self, W: np.ndarray) -> np.ndarray:
        """(K,): L_i(w_i)."""

    @abstractmethod
    def hessians(self, W: np.ndarray) -> np.ndarray:
        """(K, d, d)."""

    @abstractmethod
    def product(self, W: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """x -> (K, d): each node's Hessian at w_i times x_i."""

    @abstractmethod
    def curvature(self, W: np.ndarray) -> np.ndarray:
        """(K,): the mean eigenvalue of each node's Hessian."""


class NodeLosses(Losses):
    """The losses of a problem's agents."""

    def __init__(self, task: Problem):
        self.task = task
        start = task.start()
        self.convex = task.convex is True
        self.tree = not isinstance(start, np.ndarray | np.generic | jax.Array)
        self.like = like = jax.tree.map(lambda a: np.asarray(a, dtype=float), start)
        self.size = sum(np.size(a) for a in jax.tree.leaves(like))
        self.shape = (task.agents, self.size)
        found = task.linear_fields() if task.linear else None
        self.affine = found is not None
        if found is not None:
            self.A, self.b = (np.asarray(a, dtype=float) for a in found)

    @cached_property
    @double
    def _data(self) -> tuple[Data, Data]:
        return jax.device_put((self.task.own, self.task.common))

    def flat(self, models: Model, name: str, one: bool = True) -> np.ndarray:
        """(K, d) of models with a leading axis of nodes, or (where allowed) of one model for all."""
        if not self.tree:
            models = numbers(name, models)
        built: list[Tree] = [jax.tree.structure(tree) for tree in (models, self.like)]
        if built[0] != built[1]:
            raise FedpointError(f"{name}: built as {built[0]}, but a model of this problem as {built[1]}")
        given = [np.asarray(a, dtype=float) for a in jax.tree.leaves(models)]
        shapes = [np.shape(a) for a in jax.tree.leaves(self.like)]
        K = self.task.agents
        if one and [a.shape for a in given] == shapes:
            given = [np.broadcast_to(a, (K, *a.shape)) for a in given]
        if [a.shape for a in given] != [(K, *s) for s in shapes]:
            raise FedpointError(
                f"{name}: shapes {[a.shape for a in given]}; for {counted(K, 'node')} give {[(K, *s) for s in shapes]}"
                + (f", or one model of {shapes} for all" if one else "")
            )
        W = np.concatenate([a.reshape(K, -1) for a in given], axis=1)
        if not np.isfinite(W).all():
            raise FedpointError(f"{name}: holds NaN or inf")
        return W

    def begin(self, start: Model | None) -> np.ndarray:
        return np.array(self.flat(self.like if start is None else start, "start"))

    def models(self, W: np.ndarray) -> Model:
        """(K, d) as the problem's models, with a leading axis of nodes."""
        leaves, built = jax.tree.flatten(self.like)
        cuts = np.cumsum([np.size(a) for a in leaves])[:-1]
        parts = np.split(W, cuts, axis=1)
        return jax.tree.unflatten(
            built, [np.array(p.reshape(-1, *np.shape(a))) for p, a in zip(parts, leaves, strict=True)]
        )

    @double
    def field(self, W: np.ndarray) -> np.ndarray:
        """(K, d): the gradient of every L_i at w_i."""
        if self.affine:
            return np.einsum("kij,kj->ki", self.A, W) - self.b
        return np.asarray(_fields(self.task.oracle, self.like, *self._data, W))

    @double
    def losses(self, W: np.ndarray) -> np.ndarray:
        return np.asarray(_losses(self.task.oracle, self.like, *self._data, W))

    @double
    def row_errors(self, W: np.ndarray) -> np.ndarray:
        """(K,): the mean loss of a row of each agent, without the penalty."""
        assert isinstance(self.task, RowsProblem)
        whole = np.asarray(_row_losses(self.task.oracle, self.like, *self._data, W))
        return whole if self.task.oracle.mean else whole / self.task.local_rows()

    @property
    def small(self) -> bool:
        """Whether the Hessians of all nodes are worth writing down."""
        K, d = self.shape
        return K * d * d <= BLOCKS and K * float(d) ** 3 <= BLOCK_WORK

    @double
    def hessians(self, W: np.ndarray) -> np.ndarray:
        """(K, d, d)."""
        if self.affine:
            return self.A
        return np.asarray(_hessians(self.task.oracle, self.like, *self._data, W))

    def product(self, W: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        @double
        def times(x: np.ndarray) -> np.ndarray:
            return np.asarray(_products(self.task.oracle, self.like, *self._data, W, x))

        return times

    def curvature(self, W: np.ndarray) -> np.ndarray:
        """(K,): the mean eigenvalue of each node's Hessian; by a random vector where Hessians are large."""
        if self.affine or self.small:
            return np.trace(self.hessians(W), axis1=1, axis2=2) / self.size
        signs = np.random.default_rng(0).choice([-1.0, 1.0], self.shape)
        return np.abs((signs * self.product(W)(signs)).mean(1))


def _each(function: Callable[..., Array], like: Model, own: Data, common: Data, W: Array, *more: Array) -> Array:
    """function(one agent's data, its model, ...) over agents; the model as the problem has it."""
    unravel = ravel_pytree(like)[1]
    return per_agent(lambda a: function(Mine(a[0], common), unravel, *a[1:]), (own, W, *more))


@partial(jax.jit, static_argnums=0)
def _fields(oracle: Oracle, like: Model, own: Data, common: Data, W: Array) -> Array:
    return _each(lambda mine, make, w: ravel_pytree(oracle.mean_field(mine, make(w)))[0], like, own, common, W)


@partial(jax.jit, static_argnums=0)
def _losses(oracle: Oracle, like: Model, own: Data, common: Data, W: Array) -> Array:
    return _each(lambda mine, make, w: oracle.loss(mine, make(w)), like, own, common, W)


@partial(jax.jit, static_argnums=0)
def _row_losses(oracle: RowsOracle, like: Model, own: Data, common: Data, W: Array) -> Array:
    def one(mine: Mine, make: Callable[[Array], Model], w: Array) -> Array:
        penalty = oracle.penalty(make(w), mine.common.extra)
        return oracle.loss(mine, make(w)) - (0.0 if penalty is None else penalty)

    return _each(one, like, own, common, W)


@partial(jax.jit, static_argnums=0)
def _hessians(oracle: Oracle, like: Model, own: Data, common: Data, W: Array) -> Array:
    def one(mine: Mine, make: Callable[[Array], Model], w: Array) -> Array:
        return jax.jacfwd(lambda v: ravel_pytree(oracle.mean_field(mine, make(v)))[0])(w)

    return _each(one, like, own, common, W)


@partial(jax.jit, static_argnums=0)
def _products(oracle: Oracle, like: Model, own: Data, common: Data, W: Array, x: Array) -> Array:
    def one(mine: Mine, make: Callable[[Array], Model], w: Array, u: Array) -> Array:
        return jax.jvp(lambda v: ravel_pytree(oracle.mean_field(mine, make(v)))[0], (w,), (u,))[1]

    return _each(one, like, own, common, W, x)
