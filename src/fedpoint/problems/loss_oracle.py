"""How do agents answer whose loss is any function of rows: one that stays as it is, or one of a network that draws
random numbers and changes statistics while it learns?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from fedpoint.core.random import Row
from fedpoint.core.types import Data, Model, Number
from fedpoint.problems.luck import LuckyBatch, lucky
from fedpoint.problems.oracle import Mine
from fedpoint.problems.rows import Batch, RowsOracle, take
from fedpoint.problems.stored import StoredRows


@dataclass(frozen=True)
class LossOracle(RowsOracle):
    function: Callable = lambda params, batch: 0.0
    ways: str = ""
    by_row: bool = False  # the function returns one loss a row, else their mean
    stored: StoredRows | None = None  # what rows are read from, where the table holds their numbers only

    def read(self, rows: Data) -> Data:
        """What the loss gets of rows of the table."""
        return rows if self.stored is None else self.stored.in_program(rows)

    def weighted_loss(self, w: Model, rows: Data, weight: Array, extra: Data) -> Array:
        rows = self.read(rows)
        if self.by_row:
            return weight @ self.function(w, rows)
        # A mean over rows is taken apart by giving it one row at a time; XLA batches it again.
        single = jax.vmap(lambda row: self.function(w, jax.tree.map(lambda a: a[None], row)))(rows)
        return weight @ single

    def weighted_gradient(self, w: Model, rows: Data, weight: Array, extra: Data) -> Model:
        if self.sampling == "iid" and self.batch is not None and not self.by_row and weight.shape == (self.batch,):
            # Full batches of equal weights: the loss as it is.
            scale = weight.sum()
            return jax.tree.map(lambda g: scale * g, jax.grad(self.function)(w, self.read(rows)))
        return super().weighted_gradient(w, rows, weight, extra)


@dataclass(frozen=True)
class NetworkOracle(LossOracle):
    """Sampled fields are those of training, with random numbers of the run's coordinates; exact ones of evaluation.

    function: (model, batch, key) -> (loss, model after it). learnt: for each array of the model; of a statistic s the
    field is s - s', so that a step of length one makes the change.
    """

    learnt: tuple[bool, ...] = ()

    known_noise = False
    fetches = False  # rows come with luck

    def draw(self, mine: Mine, plan: Data, row: Row, e: Number) -> LuckyBatch:
        return lucky(super().draw(mine, plan, row, e), row)

    @property
    def predraw(self) -> bool:  # type: ignore[override]
        return self.sampling != "shuffle"

    def _still(self, w: Model) -> Model:
        """The same, whose statistics are constants."""
        leaves, built = jax.tree.flatten(w)
        still = [a if mine else jax.lax.stop_gradient(a) for a, mine in zip(leaves, self.learnt, strict=True)]
        return jax.tree.unflatten(built, still)

    def weighted_loss(self, w: Model, rows: Data, weight: Array, extra: Data) -> Array:
        w, rows = self._still(w), self.read(rows)
        if self.by_row:
            return weight @ self.function(w, rows, None)[0]
        single = jax.vmap(lambda row: self.function(w, jax.tree.map(lambda a: a[None], row), None)[0])(rows)
        return weight @ single

    def weighted_gradient(self, w: Model, rows: Data, weight: Array, extra: Data) -> Model:
        return jax.grad(lambda v: self.weighted_loss(v, rows, weight, extra))(w)

    def field(self, mine: Mine, w: Model, z: LuckyBatch) -> Model:
        key = jax.random.wrap_key_data(z.luck, impl="threefry2x32")
        if self.batch is None:
            if all(self.learnt):
                return self._over_blocks(mine, partial(self._drawn, w, key, 1.0 / mine.own.count))
            rows = jax.tree.map(
                lambda a: jax.lax.dynamic_slice_in_dim(a, mine.own.offset, self.largest), mine.common.rows
            )
            return self._trained(w, rows, key)
        assert isinstance(z.rows, Batch)
        rows = take(mine.common.rows, z.rows.at)
        if self.sampling == "iid" or not all(self.learnt):
            return self._trained(w, rows, key)
        assert not isinstance(z.rows.weight, tuple)
        return self._drawn(w, key, z.rows.weight, rows, z.rows.at, z.rows.weight > 0)

    def _trained(self, w: Model, rows: Data, key: Array) -> Model:
        """Of a whole batch, whose rows count the same."""
        rows = self.read(rows)

        def loss(v: Model) -> tuple[Array, Model]:
            value, after = self.function(self._still(v), rows, key)
            return jnp.mean(value), after

        slope, after = jax.grad(loss, has_aux=True)(w)
        leaves, built = jax.tree.flatten(w)
        moved = zip(self.learnt, jax.tree.leaves(slope), leaves, jax.tree.leaves(after), strict=True)
        return jax.tree.unflatten(built, [g if mine else a - b for mine, g, a, b in moved])

    def _drawn(self, w: Model, key: Array, each: Array, rows: Data, at: Array, inside: Array) -> Model:
        """Of rows that count differently, one by one, each with a key of its own."""
        dtype, rows = jnp.result_type(*jax.tree.leaves(w)), self.read(rows)
        weight = jnp.where(inside, each, 0.0).astype(dtype)

        def loss(v: Model, row: Data, own: Array) -> Array:
            return jnp.mean(self.function(v, jax.tree.map(lambda a: a[None], row), own)[0])

        keys = jax.vmap(partial(jax.random.fold_in, key))(at)
        return jax.grad(lambda v: weight @ jax.vmap(partial(loss, v))(rows, keys))(w)
