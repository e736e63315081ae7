"""A module of PyTorch and a loss, as they are: their gradients are computed by PyTorch, all else by the engine."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError
from fedpoint.core.random import Row
from fedpoint.core.selection import Only
from fedpoint.core.types import Data, Function, Model, Number, Tree
from fedpoint.problems.base import by_agent, check_agents, check_weights
from fedpoint.problems.callbacks import call_back
from fedpoint.problems.luck import LuckyBatch, lucky
from fedpoint.problems.models import at_model
from fedpoint.problems.oracle import Mine, Oracle
from fedpoint.problems.rows import Batch, RowOptions, RowsOracle, RowsProblem, row_options
from fedpoint.problems.stored import whose

if TYPE_CHECKING:
    from fedpoint.problems.torch_work import Work


@dataclass(frozen=True)
class TorchOracle(RowsOracle):
    work: Work | None = None

    known_noise = False
    fetches = False
    derivatives = "gradients are computed by PyTorch, outside of the compiled round, which cannot be differentiated"

    def draw(self, mine: Mine, plan: Data, row: Row, e: Number) -> LuckyBatch:
        return lucky(super().draw(mine, plan, row, e), row)

    @property
    def predraw(self) -> bool:  # type: ignore[override]
        return self.sampling != "shuffle"

    def field(self, mine: Mine, w: Model, z: LuckyBatch) -> Model:
        if self.batch is None:
            return self._over_all(mine, w, z.luck)
        assert isinstance(z.rows, Batch)
        weight = jnp.full(self.batch, 1.0 / self.batch) if self.sampling == "iid" else z.rows.weight
        return self._called(self._work.gradient, w, mine.common.rows[z.rows.at], weight, z.luck)

    def _over_all(self, mine: Mine, w: Model, luck: Array) -> Model:
        """All rows of an agent in one batch."""
        place = jnp.arange(self.largest)
        rows = lax.dynamic_slice_in_dim(mine.common.rows, mine.own.offset, self.largest)
        weight = jnp.where(place < mine.own.count, 1.0 / mine.own.count, 0.0)
        return self._called(self._work.gradient, w, rows, weight, luck)

    def mean_field(self, mine: Mine, w: Model) -> Model:
        @jax.custom_jvp
        def field(w: Model) -> Model:
            return self._over_agent(mine, partial(self._called, self._work.exact_gradient, w))

        @field.defjvp
        def _(point: tuple[Model], along: tuple[Model]) -> tuple[Model, Model]:
            return field(*point), self.hessian_times(mine, point[0], along[0])

        return field(w)

    def hessian_times(self, mine: Mine, w: Model, v: Model) -> Model:
        return self._over_agent(mine, partial(self._called, self._work.hessian_times, w, v))

    def hessian(self, mine: Mine, w: Model) -> Array:
        return Oracle.hessian(self, mine, w)  # column by column

    def loss(self, mine: Mine, w: Model) -> Array:
        kind = jax.ShapeDtypeStruct((), jnp.result_type(*jax.tree.leaves(w)))
        return self._over_agent(mine, partial(call_back, self._work.exact_loss, kind, w))

    def _over_agent(self, mine: Mine, function: Function) -> Tree:
        """function(all rows of an agent, weights): PyTorch takes them apart into blocks itself."""
        rows = lax.dynamic_slice_in_dim(mine.common.rows, mine.own.offset, self.largest)
        return function(rows, jnp.where(jnp.arange(self.largest) < mine.own.count, 1.0 / mine.own.count, 0.0))

    @property
    def _work(self) -> Work:
        assert self.work is not None
        return self.work

    def _called(self, function: Function, w: Model, *arguments: Tree) -> Model:
        like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), w)
        return call_back(function, like, w, *arguments)


@checked
class Torch(RowsProblem):
    """A module of PyTorch, as it is: f_k = the mean of `loss(module(*inputs), target)` over agent k's rows.

    Its parameters that require a gradient are learnt, by name; buffers that a step changes (statistics of batch
    normalisation) are averaged beside them, or stay at the agents with `share=`. Batches of a run see the module in the
    modes in which it was given, exact fields and losses in evaluation mode. Dropout draws from the run's coordinates:
    the same numbers after a resume, and on any number of processes. `run.model` is a `state_dict`, for
    `module.load_state_dict`.

    What takes derivatives of the round itself (`fp.forecast`, `fp.prove`) is not for such a problem; `fp.probe` is, and
    `fp.plan`, which then probes and runs.

    Args:
        module: an `nn.Module`, which stays as it is: a copy is used. Its state is where a run starts.
        loss: loss(outputs, targets) -> the mean over the rows of a batch, such as `torch.nn.CrossEntropyLoss()`. It
            must be a mean, because batches differ in size.
        data: a torch `Dataset` of (inputs..., target), read as rows are used, or arrays or tensors (inputs..., targets)
            with one row a sample. Arrays that are mapped from files stay there, as do `fp.data.on_disk`'s rows.
        groups: whose row it is. Without it there is one agent, or those that the rows' source names.
        options: weights, p_k, default n_k/n; batch and sampling, rows a step ("iid", "shuffle"), where None is the full
            gradient, of all rows at once.

    >>> import fedpoint as fp, numpy as np
    >>> import torch                                                                          # doctest: +SKIP
    >>> X, y = np.random.default_rng(0).normal(size=(60, 4)).astype("f"), np.arange(60) % 3
    >>> module, loss = torch.nn.Linear(4, 3), torch.nn.CrossEntropyLoss()                     # doctest: +SKIP
    >>> problem = fp.problems.Torch(module, loss, (X, y), groups=y, batch=10)                 # doctest: +SKIP
    >>> module.load_state_dict(fp.run(fp.Scaffold(step=0.1), problem, rounds=5).model)        # doctest: +SKIP
    <All keys matched successfully>
    """

    oracle: TorchOracle

    def __init__(
        self,
        module: Data,
        loss: Callable,
        data: Data,
        groups: ArrayLike | None = None,
        **options: Unpack[RowOptions],
    ):
        work = _torch_work()
        weights, batch, sampling = row_options(**options)
        if sampling == "importance":
            raise FedpointError('sampling="importance" needs gradients of rows: use it with LeastSquares or Logistic')
        rows = work.Rows(data)
        check_agents(rows.count)
        self._work = work.Work(work.checked_module(module), loss, rows)
        order, counts, self.names = by_agent(whose(rows.source, rows.count) if groups is None else groups, rows.count)
        self.weights = check_weights(weights, len(counts), default=counts.astype(float))
        self.batch, buffers = batch, self._work.buffers
        if buffers:
            self.carried = Only(predicate=lambda name, _: name not in buffers).split("buffers:", self.start())
        self.set_rows(order.astype(np.int32), counts, (), TorchOracle(batch, sampling, work=self._work))

    def start(self) -> Model:
        return self._work.start()

    def content(self) -> Data:
        digest = np.frombuffer(bytes.fromhex(self._work.rows.fingerprint()), np.uint8)
        return {**super().content(), "data": digest}

    def learnt(self, model: Tree) -> Model:
        return self._work.arrays(model) if isinstance(model, Mapping) else model

    def whole(self, learnt: Model) -> Tree:
        """A state_dict, of one repeat; of several with their axis before."""
        one, start = next(iter(learnt)), self.start()
        alone = np.ndim(learnt[one]) == np.ndim(start[one]) + 1 and len(learnt[one]) == 1
        return self._work.state_dict({n: np.asarray(a)[0] if alone else np.asarray(a) for n, a in learnt.items()})

    @at_model
    def row_metrics(self, w: Model, X: ArrayLike, y: ArrayLike) -> dict[str, np.ndarray]:
        """Of every row: whether its class is found, where it has one, and its loss."""
        work = _torch_work()
        inputs, target = work.rows_of([X, y])
        said = self._work.outputs(w, [inputs])
        found = work.hits(said, target)
        losses = {"loss": work.row_losses(self._work.loss, said, target)}
        return losses if found is None else {"accuracy": found, **losses}

    @at_model
    def noise(self, w: Model) -> np.ndarray:
        """(K,): the trace of the covariance of one sampled field at w, in evaluation mode."""
        if self.batch is None:
            return np.zeros(self.agents)
        order, one = self.all_rows(), np.ones(1)

        def gradient(row: int) -> np.ndarray:
            found = self._work.exact_gradient(w, np.array([row]), one)
            return np.concatenate([np.ravel(found[name]) for name in found])

        return np.array(
            [
                self._noise_of(k, np.stack([gradient(row) for row in own]))
                for k, own in enumerate(self.split_rows(np.asarray(order)))
            ]
        )


def _torch_work() -> Tree:
    """The module that imports PyTorch, which takes a second."""
    try:
        return importlib.import_module("fedpoint.problems.torch_work")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise FedpointError("fp.problems.Torch needs PyTorch: pip install 'fedpoint[torch]'") from None
