"""Any differentiable loss(params, batch) of any pytree of parameters: a neural network too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, Unpack, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import shown
from fedpoint.core.learnt import OfWhole, fixed_of
from fedpoint.core.numbers import counted
from fedpoint.core.own_code import calling, is_array
from fedpoint.core.precision import double
from fedpoint.core.types import Data, Function, Model, Tree
from fedpoint.problems.base import by_agent, check_agents, check_finite, check_weights
from fedpoint.problems.models import at_model, at_models
from fedpoint.problems.rows import RowOptions, RowsOracle, RowsProblem, row_options


@dataclass(frozen=True)
class LossOracle(RowsOracle):
    function: Callable = lambda params, batch: 0.0
    by_row: bool = False  # the function returns one loss a row, else their mean

    def weighted_loss(self, w: Model, rows: Data, weight: Array, extra: Data) -> Array:
        if self.by_row:
            return weight @ self.function(w, rows)
        # A mean over rows is taken apart by giving it one row at a time; XLA batches it again.
        single = jax.vmap(lambda row: self.function(w, jax.tree.map(lambda a: a[None], row)))(rows)
        return weight @ single

    def weighted_gradient(self, w: Model, rows: Data, weight: Array, extra: Data) -> Model:
        if self.sampling == "iid" and self.batch is not None and not self.by_row and weight.shape == (self.batch,):
            # Full batches of equal weights: the loss as it is.
            scale = weight.sum()
            return jax.tree.map(lambda g: scale * g, jax.grad(self.function)(w, rows))
        return super().weighted_gradient(w, rows, weight, extra)


NO_TORCH = (
    "JAX cannot differentiate it. fp.problems.Torch(module, loss, (X, y), groups=...) runs it as it is, with gradients "
    "computed by PyTorch"
)


@runtime_checkable
class TorchModule(Protocol):
    """What a module of PyTorch offers, which need not be installed to be recognised."""

    def forward(self, *inputs: Data) -> Data: ...

    def parameters(self) -> Iterable[Data]: ...

    def state_dict(self) -> Mapping[str, Data]: ...


@checked
class Loss(RowsProblem):
    """f_k(params) = the mean over agent k's rows of `loss`.

    Args:
        loss: loss(params, batch) -> the mean over the batch's rows (a number), or one loss a row. It must be a mean
            over rows: agents' batches differ in size, so rows are weighted. A sum is refused.
        params: any pytree of arrays: where a run starts. An object that is a pytree, such as a module of Equinox, may
            hold functions and settings too: its arrays of real numbers are learnt, the rest stays as it is.
        data: a pytree of arrays with one row per sample.
        groups: whose row it is. Without it there is one agent.
        solution: w*, where it is known.
        convex: your word that the loss is convex in the parameters; None where you cannot say.
        options: weights, p_k, default n_k/n; batch and sampling, rows a step ("iid", "shuffle"), where None is the full
            gradient.
    """

    def __init__(
        self,
        loss: Callable,
        params: Model,
        data: Data,
        groups: ArrayLike | None = None,
        solution: Model | None = None,
        convex: bool | None = None,
        **options: Unpack[RowOptions],
    ):
        for name, given in (("loss", loss), ("params", params)):
            if isinstance(given, TorchModule):
                raise FedpointError(f"{name} is a {type(given).__name__}, a module of PyTorch: {NO_TORCH}")
        weights, batch, sampling = row_options(**options)
        if sampling == "importance":
            raise FedpointError('sampling="importance" needs gradients of rows: use it with LeastSquares or Logistic')
        leaves = jax.tree.leaves(data)
        if not leaves:
            raise FedpointError("data holds no array")
        for i, leaf in enumerate(leaves):
            if not is_array(leaf) or not np.ndim(leaf):
                raise FedpointError(f"data must be arrays with one row a sample; array {i} is {shown(leaf)}")
        rows = len(leaves[0])
        for i, leaf in enumerate(leaves):
            if len(leaf) != rows:
                raise FedpointError(
                    f"data: array {i} has shape {np.shape(leaf)}, but array 0 has {counted(rows, 'row')}"
                )
            check_finite(f"data (array {i})", leaf)
        check_agents(rows)
        self._fixed = fixed_of("params", params)
        params = self._fixed.split(params)
        for i, leaf in enumerate(jax.tree.leaves(params)):
            if not is_array(leaf):
                raise FedpointError(f"params must be a tree of arrays; leaf {i} is {shown(leaf)}")
            check_finite(f"params (array {i})", leaf)
        order, counts, self.names = by_agent(np.zeros(rows, int) if groups is None else groups, rows)
        data = jax.tree.map(lambda a: np.asarray(a)[order], data)
        self.params = jax.tree.map(np.asarray, params)
        self.weights = check_weights(weights, len(counts), default=counts.astype(float))
        self._given = None if solution is None else self.learnt(solution)
        self.batch, self._convex = batch, convex
        loss = OfWhole(loss, self._fixed) if self._fixed else loss
        two = jax.tree.map(lambda a: a[:1].repeat(2, 0), data)
        with calling("loss(params, batch) fails on two rows of the data: it"):
            said = double(jax.eval_shape)(loss, self.params, two)
        shape = said.shape
        if shape not in ((), (2,)):
            raise FedpointError(f"loss(params, batch) must return a number or one number a row, got shape {shape}")
        if not jnp.issubdtype(said.dtype, jnp.floating):
            raise FedpointError(
                f"loss(params, batch) must return real numbers, got type {said.dtype}: nothing to descend"
            )
        if shape == ():
            some = jax.tree.map(lambda a: a[[0, -1]], data)
            check_mean(loss, self.params, some)
        oracle = LossOracle(batch, sampling, function=loss, by_row=shape == (2,))
        self.set_rows(data, counts, (), oracle)

    @property
    def convex(self) -> bool | None:
        return self._convex

    def start(self) -> Model:
        return self.params

    def learnt(self, model: Tree) -> Model:
        return self._fixed.split(model)

    def whole(self, learnt: Model) -> Tree:
        return self._fixed.whole(learnt)

    def solution(self) -> Model | None:
        return self._given

    def why_no_solution(self) -> str:
        return "w* is not known: give it as solution= of the problem"

    @at_model
    @double
    def noise(self, w: Model) -> np.ndarray:
        if self.batch is None:
            return np.zeros(self.agents)
        rows = np.asarray(_row_gradients(self.oracle, self.all_rows(), w))
        return np.array([self._noise_of(k, g) for k, g in enumerate(np.split(rows, np.cumsum(self.counts)[:-1]))])

    @at_models
    @double
    def objective(self, models: Model) -> np.ndarray:
        weight = np.repeat(self.weights / self.counts, self.counts)
        return np.asarray(_objective(self.oracle, self.all_rows(), weight, models))


@double
def check_mean(loss: Function, params: Model, rows: Data) -> None:
    """Refuse a loss that is a sum over the rows of a batch: of m copies of the same rows it is m S + r, with S not 0.

    At two points, the second one generic: at the start a loss may be zero.
    """
    for point in (_generic(params), params):
        with calling("loss(params, batch) fails on some rows of the data: it"):
            once, twice = np.asarray(_of_copies(loss, (1, 2), point, rows))
        rounding, grown = np.sqrt(np.finfo(once.dtype).eps), float(twice) - float(once)
        if not np.isfinite(grown) or abs(grown) <= rounding * max(abs(once), abs(twice)):
            continue
        thrice = float(_of_copies(loss, (3,), point, rows)[0])
        if abs(thrice - twice - grown) <= 10 * rounding * max(abs(once), abs(thrice)):
            raise FedpointError(
                f"loss(params, batch) is a sum over the rows of the batch: the same rows twice give {twice:.6g} "
                f"instead of {once:.6g}. It must be a mean, because agents have different numbers of rows: write "
                "jnp.mean(...) instead of jnp.sum(...), or return one loss a row"
            )


def _generic(params: Model) -> Model:
    """A point nearby at which nothing is zero by symmetry."""
    return jax.tree.map(lambda a: a + 0.1 * np.cos(1.0 + np.arange(a.size)).reshape(a.shape).astype(a.dtype), params)


@partial(jax.jit, static_argnums=(0, 1))
def _of_copies(loss: Function, copies: tuple[int, ...], params: Model, rows: Data) -> Array:
    return jnp.stack([loss(params, jax.tree.map(lambda a: jnp.concatenate([a] * m), rows)) for m in copies])  # noqa: B023


@partial(jax.jit, static_argnums=0)
def _row_gradients(oracle: LossOracle, rows: Data, w: Model) -> Array:
    """(n, d): the gradient of every row's loss, flattened."""

    def one(row: Data) -> Array:
        def loss(v: Model) -> Array:
            value = oracle.function(v, jax.tree.map(lambda a: a[None], row))
            return value[0] if oracle.by_row else value

        return ravel_pytree(jax.grad(loss)(w))[0]

    return jax.lax.map(one, rows, batch_size=256)


@partial(jax.jit, static_argnums=0)
def _objective(oracle: LossOracle, rows: Data, weight: Array, models: Model) -> Array:
    dtype = jnp.result_type(*jax.tree.leaves(models))
    return jax.lax.map(lambda w: oracle.weighted_loss(w, rows, weight.astype(dtype), ()), models)
