"""Stored rows, of very different counts per agent, and how a round samples them.

Rows lie one agent after the other in flat tables: nobody is padded to the largest. Full fields go over an
agent's rows in blocks, as many as it has.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, NotRequired, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.numbers import counted
from fedpoint.core.random import Key, Row, Stream
from fedpoint.core.steps import most_steps
from fedpoint.core.types import Data, Model, Number, Tree
from fedpoint.core.vector import take, zeros
from fedpoint.problems.base import Problem
from fedpoint.problems.oracle import Mine, Numbers, Oracle, no_noise

if TYPE_CHECKING:
    from fedpoint.core.algorithm import Algorithm

SAMPLINGS = ("iid", "shuffle", "importance")
NARROW = 64  # numbers of a batch, up to which its rows are drawn ahead themselves
BLOCK = 256  # rows a block: long enough to vectorise, short enough to waste little on the last one


class Span(NamedTuple):
    """Where one agent's rows are."""

    offset: Numbers
    count: Data  # named as a method of tuples, which no other type may be
    agent: Numbers


class RowTable(NamedTuple):
    """All agents' rows, followed by a block of padding so that no slice runs out; and what else is shared."""

    rows: Data
    chance: Numbers | tuple[()]  # cumulative probabilities for importance sampling, else ()
    extra: Data  # numbers that the loss needs, for instance the ridge


class Batch(NamedTuple):
    """Rows and their weights in a mean (or sum) over the agent's rows; no weights when all are the same."""

    at: Array
    weight: Array | tuple[()]


@dataclass(frozen=True)
class RowsOracle(Oracle):
    """Sampling of rows. Subclasses say what a row's loss is, by `weighted_loss` or also by its gradient."""

    batch: int | None
    sampling: str
    largest: int = 0  # most rows of an agent
    equal: bool = True  # all agents have that many
    mean: bool = True  # f_k is a mean over rows, else their sum
    epochs: int = 1  # orders of the rows that a round may need
    buckets: tuple[int, ...] = ()  # sizes below the largest, when agents' sizes differ much
    width: int = 0  # numbers of a row
    narrow: bool = False  # a batch is so small that its rows are drawn, not their indices

    # What a subclass provides.

    def weighted_loss(self, w: Model, rows: Data, weight: Array, extra: Data) -> Array:
        """sum_j weight_j loss(w; row_j), for rows of the table."""
        raise FedpointError(f"{type(self).__name__} does not say what a row's loss is")

    def weighted_gradient(self, w: Model, rows: Data, weight: Array, extra: Data) -> Model:
        return jax.grad(lambda v: self.weighted_loss(v, rows, weight, extra))(w)

    def weighted_hessian(self, w: Model, rows: Data, weight: Array, extra: Data) -> Array:
        """(d, d): sum_j weight_j H_j(w) with H_j the Hessian of row j."""
        flat, unravel = ravel_pytree(w)
        return jax.jacfwd(lambda v: ravel_pytree(self.weighted_gradient(unravel(v), rows, weight, extra))[0])(flat)

    def sandwich(self, w: Model, v: Model, rows: Data, weight: Array, P: Array, extra: Data) -> Array:
        """(d, d): sum_j weight_j H_j(w) P H_j(v) with H_j the Hessian of row j, row by row."""
        (flat, unravel), (other, _) = ravel_pytree(w), ravel_pytree(v)

        def gradient(v: Array, row: Data) -> Array:
            one = jax.tree.map(lambda a: a[None], row)
            return ravel_pytree(self.weighted_gradient(unravel(v), one, jnp.ones(1, flat.dtype), extra))[0]

        def add(total: Tree, row: tuple[Data, Array]) -> Tree:
            H = jax.jacfwd(gradient)(flat, row[0]).astype(P.dtype)
            G = H if v is w else jax.jacfwd(gradient)(other, row[0]).astype(P.dtype)
            return total + jnp.where(row[1] == 0, 0.0, row[1] * (H @ P @ G)), None  # padding may have no Hessian

        return lax.scan(add, jnp.zeros_like(P), (rows, weight))[0]

    def penalty(self, w: Model, extra: Data) -> Array | None:
        """The part of the loss that does not depend on rows; a function of w, or None."""
        return None

    # Sampling.

    @property
    def predraw(self) -> bool:  # type: ignore[override]
        return self.batch is not None and self.sampling != "shuffle"

    @property
    def _ordered(self) -> bool:
        return self.batch is not None and self.sampling == "shuffle" and self.largest > self.batch

    def plan(self, mine: Mine, key: Key | Stream) -> Data:
        """(epochs, places): the agent's rows in the order of their use; -1 where there are no more."""
        if not self._ordered:
            return ()
        whole, epochs = self._whole, jax.vmap(key.row)(jnp.arange(self.epochs))

        def orders(size: int) -> Array:
            order = jax.vmap(lambda row: row.permutation(mine.own.count, size))(epochs)
            return jnp.pad(order, ((0, 0), (0, whole - size)))

        if self.buckets:
            # Each agent sorts as many words as its size bucket has; mapped, not batched, only that branch is computed.
            bucket = jnp.sum(mine.own.count > np.array(self.buckets), dtype=jnp.int32)
            order = lax.switch(bucket, [partial(orders, size) for size in (*self.buckets, whole)])
        else:
            order = orders(whole)
        return jnp.where(jnp.arange(whole) < mine.own.count, order, -1)

    @property
    def _whole(self) -> int:
        """Places of the largest agent's epoch, in whole batches."""
        batch = self.batch or 1
        return -(-self.largest // batch) * batch

    def plan_shape(self, mine: Mine, key: Key | Stream) -> Data:
        return jax.ShapeDtypeStruct((self.epochs, self._whole), jnp.int32) if self._ordered else ()

    def draw(self, mine: Mine, plan: Data, row: Row, e: Number) -> Data:
        if self.batch is None:
            return ()
        offset, count = mine.own[:2]
        if self.sampling == "iid":
            index = offset + row.integers(count, (self.batch,))
            return Batch(index, ())
        elif self.sampling == "importance":
            # chance[j] = k + cumulative probability within agent k, so one search serves all agents.
            agent = mine.own[2].astype(jnp.float64)
            index = jnp.searchsorted(mine.common.chance, agent + row.uniform((self.batch,)), side="right")
            index = jnp.clip(index, offset, offset + count - 1).astype(jnp.int32)
            below = jnp.where(index == offset, agent, mine.common.chance[jnp.maximum(index - 1, 0)])
            chance = mine.common.chance[index] - below
            weight = 1.0 / (self.batch * count * chance)
        else:
            if self._ordered:
                e, count = (jnp.asarray(n, jnp.int32) for n in (e, count))
                batches = lax.div(count + jnp.int32(self.batch - 1), jnp.int32(self.batch))
                # Where one batch is all rows, any order will do: the last epoch's has to serve for more.
                epoch = jnp.minimum(lax.div(e, batches), self.epochs - 1)
                at = lax.dynamic_slice(plan, (epoch, lax.rem(e, batches) * self.batch), (1, self.batch))[0]
            else:
                at = jnp.where(jnp.arange(self.batch) < count, jnp.arange(self.batch, dtype=jnp.int32), -1)
            inside = (at >= 0).astype(jnp.float64)
            index, weight = offset + jnp.maximum(at, 0), inside / inside.sum()
        return Batch(index, weight if self.mean else weight * count)

    @property
    def fetches(self) -> bool:  # type: ignore[override]
        return self.narrow and self.sampling == "iid"

    def fetch(self, common: RowTable, z: Batch) -> Data:
        flat = take(common.rows, z.at.reshape(-1))  # one axis: XLA would lay out several in another order, and copy
        return jax.tree.map(lambda a: a.reshape(*z.at.shape, *a.shape[1:]), flat)

    # Fields.

    def field(self, mine: Mine, w: Model, z: Data) -> Model:
        if self.batch is None:
            return self.mean_field(mine, w)
        dtype = jax.tree.leaves(w)[0].dtype
        rows = take(mine.common.rows, z.at) if isinstance(z, Batch) else z
        if self.sampling == "iid":
            weight = jnp.full(self.batch, 1.0 / self.batch, dtype)
            weight = weight if self.mean else weight * mine.own.count
        else:
            weight = z.weight.astype(dtype)
        gradient = self.weighted_gradient(w, rows, weight, mine.common.extra)
        return self._with_penalty(gradient, w, mine.common.extra)

    def mean_field(self, mine: Mine, w: Model) -> Model:
        extra = mine.common.extra
        gradient = self._over_rows(mine, w, lambda rows, weight: self.weighted_gradient(w, rows, weight, extra))
        return self._with_penalty(gradient, w, extra)

    def hessian(self, mine: Mine, w: Model) -> Array:
        extra, (flat, unravel) = mine.common.extra, ravel_pytree(w)
        H = self._mean_slope(mine, w)
        if self.penalty(w, extra) is None:
            return H
        return H + jax.hessian(lambda v: self.penalty(unravel(v), extra))(flat)

    def loss(self, mine: Mine, w: Model) -> Array:
        extra = mine.common.extra
        value = self._over_rows(mine, w, lambda rows, weight: self.weighted_loss(w, rows, weight, extra))
        penalty = self.penalty(w, extra)
        return value if penalty is None else value + penalty

    # Noise: a batch is a mean of terms scale gradient_j / q_j, j drawn with probability q_j; scale is 1/m, for sums 1.

    known_noise = True

    @property
    def independent(self) -> bool:  # type: ignore[override]
        return not self._ordered

    def cross_covariance(self, mine: Mine, w: Model, v: Model) -> Array:
        if self.batch is None:
            return no_noise(w)
        of_w = self._row_gaps(mine, w)
        of_v = of_w if v is w else self._row_gaps(mine, v)

        def spread(rows: Data, at: Array, inside: Array) -> Array:
            chance, scale = self._chance(mine, at)
            gap = of_w(rows, scale / chance, inside)
            return (chance[:, None] * gap).T @ (gap if v is w else of_v(rows, scale / chance, inside))

        return self._kept(mine) * self._over_blocks(mine, spread)

    def _row_gaps(self, mine: Mine, w: Model) -> Callable[[Data, Array, Array], Array]:
        """(rows, scale, inside) -> (n, d): how far the terms of these rows are from their mean at w."""
        extra, one = mine.common.extra, jnp.ones(1, jax.tree.leaves(w)[0].dtype)
        mean = ravel_pytree(self._over_rows(mine, w, lambda rows, v: self.weighted_gradient(w, rows, v, extra)))[0]

        def gradient(row: Data) -> Array:
            single = jax.tree.map(lambda a: a[None], row)
            return ravel_pytree(self.weighted_gradient(w, single, one, extra))[0]

        def gaps(rows: Data, scale: Array, inside: Array) -> Array:
            return jnp.where(inside[:, None], scale[:, None] * jax.vmap(gradient)(rows) - mean, 0.0)

        return gaps

    def cross_scatter(self, mine: Mine, w: Model, v: Model, P: Array) -> Array:
        if self.batch is None:
            return no_noise(w)
        extra = mine.common.extra

        def second(rows: Data, at: Array, inside: Array) -> Array:
            chance, scale = self._chance(mine, at)
            return self.sandwich(w, v, rows, jnp.where(inside, scale**2 / chance, 0.0), P, extra)

        H = self._mean_slope(mine, w)
        G = H if v is w else self._mean_slope(mine, v)
        return self._kept(mine) * (self._over_blocks(mine, second) - H @ P @ G)

    def _mean_slope(self, mine: Mine, w: Model) -> Array:
        """(d, d): the Hessian of the rows' part of the loss."""
        extra = mine.common.extra
        return self._over_rows(mine, w, lambda rows, weight: self.weighted_hessian(w, rows, weight, extra))

    def _chance(self, mine: Mine, at: Array) -> tuple[Array, Array]:
        """The probability of the rows at these places of the table, and what a row counts in the field."""
        offset, count = mine.own[:2]
        count = count.astype(jnp.float64)
        scale = 1.0 / count if self.mean else jnp.ones(())
        if self.sampling != "importance":
            return jnp.full(at.shape, 1.0 / count), scale
        agent, table = mine.own[2].astype(jnp.float64), mine.common.chance
        before = jnp.where(at == offset, agent, table.at[jnp.maximum(at - 1, 0)].get(mode="clip"))
        chance = table.at[at].get(mode="clip") - before
        return jnp.where(at - offset < mine.own[1], chance, 1.0), scale

    def _kept(self, mine: Mine) -> Array:
        """What the mean over a batch keeps of the covariance of one row: less than 1/batch without replacement."""
        batch, m = self.batch or 1, mine.own[1].astype(jnp.float64)
        if self.sampling != "shuffle":
            return jnp.full((), 1.0 / batch)
        size = jnp.minimum(batch, m)  # the last batch of an epoch may be smaller, and noisier
        return (m - size) / (size * jnp.maximum(m - 1, 1))

    # Sums over an agent's rows.

    def _with_penalty(self, gradient: Model, w: Model, extra: Data) -> Model:
        if self.penalty(w, extra) is None:
            return gradient
        return jax.tree.map(jnp.add, gradient, jax.grad(lambda v: self.penalty(v, extra))(w))

    def _over_rows(self, mine: Mine, w: Model, function: Callable[[Data, Array], Tree]) -> Tree:
        """sum of function(block of rows, weights) over all rows of the agent."""
        dtype = jax.tree.leaves(w)[0].dtype
        each = 1.0 / mine.own[1] if self.mean else jnp.ones(())
        return self._over_blocks(mine, lambda rows, at, inside: function(rows, (inside * each).astype(dtype)))

    def _over_blocks(self, mine: Mine, function: Callable[[Data, Array, Array], Tree]) -> Tree:
        """sum of function(block of rows, their places in the table, whether they are the agent's) over all its rows."""
        offset, count = mine.own[:2]

        def block(start: Number, size: int) -> Tree:
            rows = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, offset + start, size), mine.common.rows)
            place = start + jnp.arange(size)
            return function(rows, offset + place, place < count)

        if self.equal or self.largest <= BLOCK:
            return block(0, self.largest)
        zero = zeros(jax.eval_shape(lambda: block(jnp.int32(0), BLOCK)))

        def add(i: Number, total: Tree) -> Tree:
            return jax.tree.map(jnp.add, total, block(i * BLOCK, BLOCK))

        return lax.fori_loop(0, (count + BLOCK - 1) // BLOCK, add, zero)


@checked
class RowsProblem(Problem):
    """A problem whose agents store rows.

    Arguments of methods:
        chosen: for each agent the numbers of its rows, from 0 on.
        rows: the rows of all agents, one agent after the other.
    """

    oracle: RowsOracle
    counts: np.ndarray

    def local_rows(self) -> np.ndarray:
        return self.counts

    def set_rows(self, rows: Data, counts: np.ndarray, extra: Data, oracle: RowsOracle) -> None:
        """Lay the rows (ordered by agent, as the loss wants them) into the table, with padding for the last block.

        Args:
            counts: (K,) how many rows each agent has.
            extra: arrays that fields need beside the rows.
            oracle: how an agent answers from its rows.
        """
        width = sum(int(np.prod(a.shape[1:])) for a in jax.tree.leaves(rows))
        narrow = oracle.batch is not None and oracle.batch * width <= NARROW
        self._set_counts(counts, replace(oracle, width=width, narrow=narrow))
        pad = self.oracle.largest
        padded = jax.tree.map(lambda a: np.concatenate([a, np.zeros((pad, *a.shape[1:]), a.dtype)]), rows)
        self.common = RowTable(padded, (), extra)

    def _set_counts(self, counts: np.ndarray, oracle: RowsOracle) -> None:
        """How many rows each agent has, and where they are."""
        self.counts, largest = counts, int(counts.max())
        self.oracle = replace(oracle, largest=largest, equal=bool((counts == largest).all()))
        offsets = np.cumsum(counts) - counts
        self.own = Span(offsets.astype(np.int32), counts.astype(np.int32), np.arange(len(counts), dtype=np.int32))

    def set_chances(self, norms: np.ndarray) -> None:
        """Probabilities of rows within their agents, proportional to `norms`, at least a thousandth of the mean.

        Args:
            norms: one for each row.
        """
        own = np.repeat(np.arange(len(self.counts)), self.counts)
        floor = 1e-3 * np.bincount(own, norms) / self.counts
        norms = np.maximum(norms, np.maximum(floor, 1e-300)[own])
        cumulative = np.cumsum(norms)
        before = np.concatenate([[0.0], cumulative])[self.own.offset]
        mass = np.bincount(own, norms)
        chance = own + (cumulative - before[own]) / mass[own]
        chance[self.own.offset + self.counts - 1] = np.arange(1, len(self.counts) + 1)
        self.common = self.common._replace(chance=chance)

    def part(self, own: Data, bounds: np.ndarray, process: int) -> tuple[Data, Data]:
        ends = np.concatenate([[0], np.cumsum(self.counts)])[bounds]
        size = int(np.diff(ends).max())
        begin, end = ends[process : process + 2]

        def cut(a: np.ndarray, fill: float, more: int) -> np.ndarray:
            return np.concatenate([a[begin:end], np.full((size + more - (end - begin), *a.shape[1:]), fill, a.dtype)])

        rows = jax.tree.map(lambda a: cut(a, 0, self.oracle.largest), self.common.rows)
        chance = jax.tree.map(lambda a: cut(a, np.inf, 0), self.common.chance)
        own, _ = super().part(own, bounds, process)
        return own._replace(offset=own.offset - np.int32(begin)), self.common._replace(rows=rows, chance=chance)

    def all_rows(self) -> Data:
        """The rows of all agents, without padding."""
        n = int(self.counts.sum())
        return jax.tree.map(lambda a: a[:n], self.common.rows)

    def split_rows(self, rows: np.ndarray) -> list[np.ndarray]:
        """Rows of all agents as views, one for each agent."""
        return np.split(rows, np.cumsum(self.counts)[:-1])

    def restricted(self, chosen: Sequence[np.ndarray]) -> RowsProblem:
        """The same problem with only these rows of each agent (numbers within the agent), and full fields."""
        chosen = self.check_chosen(chosen)
        counts = np.array([len(rows) for rows in chosen])
        index = self.row_numbers(chosen)
        part = copy.copy(self)
        part.batch = None
        part._set_counts(counts, replace(self.oracle, batch=None, sampling="iid"))
        padding = np.zeros(part.oracle.largest, index.dtype)  # any row: it counts nothing
        rows = jax.tree.map(lambda a: a[np.concatenate([index, padding])], self.common.rows)
        part.common = RowTable(rows, (), self.common.extra)
        return part

    def relabelled(self, liars: np.ndarray, flip: Callable[[np.ndarray], np.ndarray]) -> RowsProblem:
        """The same with other labels, the second part of a row, at these agents.

        Args:
            flip: from true labels to false ones.
        """
        rows, labels, *more = self.common.rows
        there = np.zeros(len(labels), bool)
        there[: self.counts.sum()] = np.repeat(liars, self.counts)
        other = labels.copy()
        other[there] = flip(labels[there])
        part = copy.copy(self)
        part.common = self.common._replace(rows=(rows, other, *more))
        return part

    def check_chosen(self, chosen: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Numbers of rows within each agent, checked."""
        if len(chosen) != self.agents:
            raise FedpointError(f"rows of {counted(len(chosen), 'agent')} are chosen, but there are {self.agents}")
        found = [np.asarray(rows) for rows in chosen]
        for name, rows, count in zip(self.names, found, self.counts, strict=True):
            if not rows.size:
                raise FedpointError(f"agent {name} would be left without rows")
            if rows.dtype.kind not in "iu" or rows.ndim != 1 or ((rows < 0) | (rows >= count)).any():
                raise FedpointError(f"the rows that are chosen of agent {name} must be numbers from 0 to {count - 1}")
        return found

    def row_numbers(self, chosen: Sequence[np.ndarray]) -> np.ndarray:
        """Numbers of rows within each agent, as numbers within the table."""
        return np.concatenate([o + np.asarray(rows, int) for o, rows in zip(self.own.offset, chosen, strict=True)])

    def _chances(self, k: int) -> np.ndarray:
        """(m_k,): the probability of each row of agent k."""
        if self.oracle.sampling != "importance":
            return np.full(self.counts[k], 1.0 / self.counts[k])
        start = self.own.offset[k]
        return np.diff(self.common.chance[start : start + self.counts[k]], prepend=float(k))

    def _noise_of(self, k: int, gradients: np.ndarray) -> float:
        """Variance of a sampled field of agent k, from the gradients of its rows, (m_k, d), whose mean is the field."""
        m = len(gradients)
        if self.batch is None:
            return 0.0
        if self.oracle.sampling != "shuffle":
            return row_noise(gradients, self._chances(k)) / self.batch
        size = min(self.batch, m)  # without replacement; the last batch of an epoch may be smaller, and noisier
        return row_noise(gradients, self._chances(k)) / size * ((m - size) / max(m - 1, 1))

    def smallest_batches(self) -> np.ndarray:
        """(K,): the fewest rows that a sampled field of an agent is a mean over."""
        batch = self.batch or 1
        if self.oracle.sampling != "shuffle":
            return np.full(self.agents, batch)
        return np.where(self.counts % batch > 0, self.counts % batch, np.minimum(batch, self.counts))

    def prepare(self, algorithm: Algorithm) -> RowsOracle:
        """The oracle for an algorithm: how many orders of the rows a round may need."""
        oracle = self.oracle
        if oracle.batch is None or oracle.sampling != "shuffle":
            return oracle
        if algorithm.unbounded:
            raise FedpointError(
                f"{type(algorithm).__name__} draws its number of local steps in the run, so rows cannot be shuffled "
                'ahead: use sampling="iid"'
            )
        each = np.broadcast_to(most_steps(algorithm.local_steps), self.counts.shape)
        steps = np.array([algorithm.samples(int(count)) for count in each])
        batches = -(-self.counts // oracle.batch)
        # An agent whose rows fit into one batch needs no order.
        need = -(-steps[batches > 1] // batches[batches > 1])
        largest = oracle.largest
        skewed = largest > 4 * np.median(self.counts)
        # A branch each: a size close to the largest would be compiled for little.
        buckets = tuple(size for size in (32 * 4**i for i in range(16)) if 2 * size < largest) if skewed else ()
        return replace(oracle, epochs=int(max(need, default=1)), buckets=buckets)


def row_noise(gradients: np.ndarray, chance: np.ndarray) -> float:
    """Trace of the covariance of gradient_j / (m q_j), j drawn with probability q_j."""
    m = len(gradients)
    return float(((gradients**2).sum(1) / (m * m * chance)).sum() - (gradients.mean(0) ** 2).sum())


class RowOptions(TypedDict):
    """Arguments that all problems with stored rows have."""

    weights: NotRequired[ArrayLike | None]
    batch: NotRequired[int | None]
    sampling: NotRequired[str]


def row_options(
    weights: ArrayLike | None = None, batch: int | None = None, sampling: str = "iid"
) -> tuple[ArrayLike | None, int | None, str]:
    """Their values, checked, and their defaults."""
    check_sampling(batch, sampling)
    return weights, batch, sampling


def check_sampling(batch: int | None, sampling: str) -> None:
    if sampling not in SAMPLINGS:
        raise FedpointError(f"unknown sampling {sampling!r}: {nearest(sampling, SAMPLINGS)}")
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int | np.integer) or batch < 1):
        raise FedpointError(f"batch must be a whole number of rows, at least 1, or None for full fields; got {batch}")
    if batch is None and sampling != "iid":
        raise FedpointError(f'sampling="{sampling}" needs batch=')
