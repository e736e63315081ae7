"""Any differentiable loss(params, batch) of any pytree of parameters: a neural network too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NotRequired, Protocol, Unpack, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.kinds import shown
from fedpoint.core.own_code import calling, is_array
from fedpoint.core.precision import double
from fedpoint.core.selection import Only, selection
from fedpoint.core.types import Data, Function, Model, Tree
from fedpoint.problems.base import by_agent, check_agents, check_finite, check_weights
from fedpoint.problems.forms import Asked, Exact, Form, OfNetwork, form_of
from fedpoint.problems.loss_oracle import LossOracle, NetworkOracle
from fedpoint.problems.models import at_model, at_models
from fedpoint.problems.partly import Partly
from fedpoint.problems.products import AS_PRODUCTS, AsProducts, as_products
from fedpoint.problems.rows import RowOptions, RowsProblem, row_options
from fedpoint.problems.stored import StoredRows, row_count, stored, whose

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


class LossOptions(RowOptions):
    """Arguments of a loss beside those of all problems with stored rows."""

    random: NotRequired[bool]
    state: NotRequired[Tree]
    compute: NotRequired[str | None]
    predict: NotRequired[Function | None]
    learn: NotRequired[Only | str | Sequence[str] | None]


PRECISIONS = ("bfloat16", "float16", "float32")


def _precision(compute: str | None) -> str | None:
    if compute is not None and compute not in PRECISIONS:
        raise FedpointError(f"unknown compute={compute!r}: {nearest(compute, PRECISIONS)}")
    return compute


@checked
class Loss(RowsProblem):
    """f_k(params) = the mean over agent k's rows of `loss`.

    A network may draw random numbers and change statistics while it learns (dropout, batch normalisation). Sampled
    fields are then those of training, exact fields and losses those of evaluation mode, in which the key is None. The
    keys are functions of the run's coordinates: the same numbers after a resume, and on any number of processes.
    Statistics are averaged beside the parameters, or stay at the agents: `share=fp.all_but("state")`.

    Args:
        loss: loss(params, batch) -> the mean over the batch's rows (a number), or one loss a row. It must be a mean
            over rows: agents' batches differ in size, so rows are weighted. A sum is refused.
        params: any pytree of arrays: where a run starts. An object that is a pytree, such as a module of Equinox, may
            hold functions and settings too: its arrays of real numbers are learnt, the rest stays as it is. Or a module
            of flax.nnx, or a pair (module, variables) of flax.linen: `loss` then gets the module itself, ready to be
            called; of a linen module with a state, or that draws, as loss(module, batch, key).
        data: a pytree of arrays with one row per sample. Arrays that are mapped from files (`np.load(path,
            mmap_mode="r")`) stay there, as do `fp.data.StoredRows`: rows are read when a round uses them.
        groups: whose row it is. Without it there is one agent, or those that the rows' source names.
        solution: w*, where it is known.
        convex: your word that the loss is convex in the parameters; None where you cannot say.
        options: weights, p_k, default n_k/n; batch and sampling, rows a step ("iid", "shuffle"), where None is the full
            gradient. random: the loss draws, and is called as loss(params, batch, key). state: arrays that a step
            changes beside the parameters; then it is loss(params, batch, key, state) -> (loss, state). compute:
            "bfloat16" or "float16", in which losses are computed of parameters that stay in theirs. predict:
            predict(params, inputs) -> (n, classes) scores or (n,) numbers, for the accuracy of held-out rows where
            data are (inputs, targets); with a state of its own predict(params, inputs, state). learn: the parts that
            are learnt, as `share=` names them ("adapter", `fp.only(...)`, `fp.all_but(...)`); the others are frozen,
            and nobody sends them.
    """

    oracle: LossOracle

    def __init__(
        self,
        loss: Callable,
        params: Model,
        data: Data,
        groups: ArrayLike | None = None,
        solution: Model | None = None,
        convex: bool | None = None,
        **options: Unpack[LossOptions],
    ):
        for name, given in (("loss", loss), ("params", params)):
            if isinstance(given, TorchModule):
                raise FedpointError(f"{name} is a {type(given).__name__}, a module of PyTorch: {NO_TORCH}")
        asked = Asked(options.get("random", False), options.get("state"), options.get("compute"))
        self._predict = options.get("predict")
        weights, batch, sampling = row_options(
            options.get("weights"), options.get("batch"), options.get("sampling", "iid")
        )
        if sampling == "importance":
            raise FedpointError('sampling="importance" needs gradients of rows: use it with LeastSquares or Logistic')
        source = stored(data)
        rows = row_count(data) if source is None else source.count
        for i, leaf in enumerate(jax.tree.leaves(data) if source is None else ()):
            check_finite(f"data (array {i})", leaf)
        check_agents(rows)
        self._form, learn = form_of(params, asked), options.get("learn")
        if learn is not None:
            self._form = Partly(self._form, selection(learn, "learn"))
        params = self._form.start
        for i, leaf in enumerate(jax.tree.leaves(params)):
            if not is_array(leaf):
                raise FedpointError(f"params must be a tree of arrays; leaf {i} is {shown(leaf)}")
            check_finite(f"params (array {i})", leaf)
        order, counts, self.names = by_agent(whose(source, rows) if groups is None else groups, rows)
        data = order.astype(np.int32) if source else jax.tree.map(lambda a: np.asarray(a)[order], data)
        self.params = jax.tree.map(np.asarray, params)
        self.weights = check_weights(weights, len(counts), default=counts.astype(float))
        self._given = None if solution is None else self.learnt(solution)
        self.batch, self._convex, self._sampling = batch, convex, sampling
        network = OfNetwork(loss, self._form, _precision(asked.compute))
        changes = self._form.changes or bool(asked.compute)
        loss = Exact(network) if changes else loss

        def some(at: list[int]) -> Data:
            return source.checked(data[at].astype(np.int64)) if source else jax.tree.map(lambda a: a[at], data)

        two = some([0, 0])
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
            check_mean(loss, self.params, some([0, -1]))
        fast = as_products(network if changes else loss, self.params, two)
        ways = [AS_PRODUCTS] if isinstance(fast, AsProducts) else []
        ways += ["rows read as they are used"] if source else []
        said_of = {"by_row": shape == (2,), "ways": "; ".join(ways), "stored": source}
        oracle = LossOracle(batch, sampling, function=Exact(fast) if changes else fast, **said_of)
        if self._form.lucky:
            self._check_batches(counts)
            learnt = self._form.learnt
            oracle = NetworkOracle(batch, sampling, function=fast, learnt=learnt, **said_of)
            mask = jax.tree.unflatten(jax.tree.structure(self.params), learnt)
            self.carried = None if all(learnt) else Only(mask=mask).split("state=:", self.params)
        self.set_rows(data, counts, (), oracle)

    @property
    def convex(self) -> bool | None:
        return self._convex

    def start(self) -> Model:
        return self.params

    def learnt(self, model: Tree) -> Model:
        return self._form.split(model)

    def whole(self, learnt: Model) -> Tree:
        return self._form.whole(learnt)

    def solution(self) -> Model | None:
        return self._given

    def why_no_solution(self) -> str:
        return "w* is not known: give it as solution= of the problem"

    @property
    def stored(self) -> StoredRows | None:
        """What rows are read from; None: they are in memory."""
        return self.oracle.stored

    def content(self) -> Data:
        more: dict[str, Data] = {} if self.stored is None else {"rows": self.stored.fingerprint()}
        frozen: dict[str, Data] = {"frozen": self._form.frozen} if self._form.frozen else {}
        return {**super().content(), **more, **frozen}

    def _check_batches(self, counts: np.ndarray) -> None:
        """Refuse statistics over batches that are filled up with rows that do not count."""
        if all(self._form.learnt):
            return
        if self.batch is None and len(set(counts)) > 1:
            raise FedpointError(
                "a state changes with every batch, and agents have different numbers of rows: give batch=, or as many "
                "rows to each"
            )
        if self._sampling == "shuffle" and (counts % (self.batch or 1)).any():
            raise FedpointError(
                f"a state changes with every batch, and the last one of an agent would have fewer than {self.batch} "
                'rows: use sampling="iid", or numbers of rows that batch= divides'
            )

    @at_model
    @double
    def row_metrics(self, w: Model, X: ArrayLike, y: ArrayLike) -> dict[str, np.ndarray]:
        """Of every row its loss, and, where `predict` says what it is taken for, whether that is right."""
        rows = (np.asarray(X), np.asarray(y))
        like = self.all_rows() if self.stored is None else self.stored.checked(np.zeros(1, np.int64))
        oracle = replace(self.oracle, stored=None)
        built: list[Tree] = [jax.tree.structure(tree) for tree in (like, rows)]
        if built[0] != built[1]:
            raise FedpointError(
                "held-out data are (X, y), but the data of this problem are not (inputs, targets): give evaluate= a "
                "function of the model"
            )
        found: dict[str, np.ndarray] = {}
        if self._predict is not None:
            with calling("predict(params, inputs)"):
                said = np.asarray(_outputs(self._form, self._predict, w, rows[0]))
            if said.ndim == 2 and said.shape[1] > 1 and rows[1].dtype.kind in "iu":
                found["accuracy"] = (said.argmax(1) == rows[1]).astype(float)
        with calling("loss(params, batch)"):
            found["loss"] = np.asarray(_row_losses(oracle, w, rows), float)
        return found

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
    return jax.lax.map(
        lambda row: ravel_pytree(jax.grad(lambda v: _row_loss(oracle, v, row))(w))[0], rows, batch_size=256
    )


def _row_loss(oracle: LossOracle, w: Model, row: Data) -> Array:
    one = jax.tree.map(lambda a: a[None], row)
    return oracle.weighted_loss(w, one, jnp.ones(1, jnp.result_type(*jax.tree.leaves(w))), ())


@partial(jax.jit, static_argnums=0)
def _row_losses(oracle: LossOracle, w: Model, rows: Data) -> Array:
    """(n,)"""
    return jax.lax.map(lambda row: _row_loss(oracle, w, row), rows, batch_size=256)


@partial(jax.jit, static_argnums=(0, 1))
def _outputs(form: Form, predict: Function, w: Model, inputs: Data) -> Array:
    """What is said of the inputs, in blocks."""
    return jax.lax.map(lambda x: form.predict(predict, w, x[None])[0], inputs, batch_size=256)


AT_ONCE = 4096  # rows whose losses are computed in one go, where all rows are asked for


@partial(jax.jit, static_argnums=0)
def _objective(oracle: LossOracle, rows: Data, weight: Array, models: Model) -> Array:
    weight = weight.astype(jnp.result_type(*jax.tree.leaves(models)))
    if len(weight) <= AT_ONCE:
        return jax.lax.map(lambda w: oracle.weighted_loss(w, rows, weight, ()), models)
    blocks = -(-len(weight) // AT_ONCE)

    def cut(a: Array) -> Array:
        more = blocks * AT_ONCE - len(a)
        return jnp.concatenate([a, jnp.repeat(a[-1:], more, 0)]).reshape(blocks, AT_ONCE, *a.shape[1:])

    cuts = jax.tree.map(cut, rows), cut(weight) * (jnp.arange(blocks * AT_ONCE) < len(weight)).reshape(blocks, -1)
    return jax.lax.map(
        lambda w: jax.lax.map(lambda part: oracle.weighted_loss(w, part[0], part[1], ()), cuts).sum(), models
    )
