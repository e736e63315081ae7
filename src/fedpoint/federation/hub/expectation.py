"""What would an honest site answer? The same work on the rows that are expected of it.

With the study's own draws that is one answer, which an honest site gives to rounding, and one memory. With other draws
it is a distribution: its mean and spread from some simulated answers, and more of them to rank what came among.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.precision import double
from fedpoint.core.random import Key
from fedpoint.core.types import Data, Message, State, Tree
from fedpoint.data.column import Column
from fedpoint.engine.round import decoded
from fedpoint.engine.session import flatten
from fedpoint.federation.holding import Holding, Kept, Own, Structure, local_work, sends_difference, worked
from fedpoint.federation.hub.reasons import LOST, Compared, Noise
from fedpoint.federation.shapes import Arrays, blank, tree_of
from fedpoint.federation.study import Study
from fedpoint.federation.wire import OwnSetup

REFERENCE, SIMULATED = 100, 199  # answers that mean and spread are of; answers to rank among
WATCHING = 0x57A7C4  # the purpose of random numbers that answers are simulated with
AT_ONCE = 1 << 20  # numbers of simulated answers in memory at a time
LARGEST = 1e60
RELATIVE = 1e-6  # the least spread of a number, of its mean: smaller differences are ranked all the same

Memories = tuple[State, State, Data]
Scores = tuple[Array, ...]


class Order(NamedTuple):
    """What a site was asked to do: in which round, after which merged one, having heard what."""

    round: int
    merged: int
    heard: Arrays


class Cloud(NamedTuple):
    """Expected answers: their mean and spread, number by number."""

    mean: Array
    spread: Array


class Simulated(NamedTuple):
    """An answer among simulated ones."""

    seen: Compared  # one
    among: Compared  # many
    noise: Noise
    candidates: list[str]  # what `others` are of
    deviation: np.ndarray  # (d,): of the answer, in units of the spread


class Vectors(NamedTuple):
    """An answer and what it is compared with."""

    answer: Array
    reproduced: Array
    others: Array  # (candidates, d): other answers with the study's draws
    shift: Array  # how answers deviated before


class Place(NamedTuple):
    """One site in one round: traced."""

    own: Own
    told: Tree
    round: Array
    like: Message


def as_vector(message: Message) -> np.ndarray:
    """All numbers of a message, one behind the other; those whose squares would be infinite are cut."""
    leaves = [np.asarray(leaf, float).ravel() for leaf in jax.tree.leaves(message)]
    return np.clip(np.concatenate([np.zeros(0), *leaves]), -LARGEST, LARGEST)


def tolerance(code: Arrays, heard: Arrays, answer: np.ndarray) -> float:
    """By how much two honest answers with the same draws may differ: rounding, in the precision that is sent."""
    kinds = [a.dtype for a in code.values() if jnp.issubdtype(a.dtype, jnp.inexact)]
    coarsest = max((float(jnp.finfo(kind).eps) for kind in kinds), default=0.0)
    largest = max(float(np.abs(a).max(initial=1 / LARGEST)) for a in (*heard.values(), answer))
    return coarsest ** (2 / 3) * largest


def _replies(structure: Structure, place: Place, memories: Memories, keys: Key) -> Array:
    """(n, d): what arrives of the answers with these draws."""

    def one(key: Key) -> Array:
        own = place.own._replace(key=key)
        code, _ = local_work(structure, own, place.told, memories, place.round)
        last = place.told[1] if sends_difference(structure.topology, own.channel) else None
        return ravel_pytree(decoded(own.channel, code, place.like, last))[0].astype(jnp.float64)

    return jax.vmap(one)(keys)


def _cloud(structure: Structure, place: Place, memories: Memories, keys: Key, around: Array, least: Array) -> Cloud:
    """Of the answers with these draws, some at a time. around: one such answer, from which differences are taken."""
    count = keys.low.size

    def some(sums: tuple[Array, Array], keys: Key) -> tuple[tuple[Array, Array], None]:
        off = _replies(structure, place, memories, keys) - around
        return (sums[0] + off.sum(0), sums[1] + (off**2).sum(0)), None

    (first, second), _ = lax.scan(some, (jnp.zeros_like(around), jnp.zeros_like(around)), keys)
    variance = jnp.maximum(second - first**2 / count, 0.0) / (count - 1)
    mean = around + first / count
    return Cloud(mean, jnp.maximum(jnp.sqrt(variance), RELATIVE * jnp.abs(mean)) + least)


def _compare(answers: Array, cloud: Cloud, forgot: Cloud, beside: Vectors, least: Array) -> Scores:
    """The numbers of `Compared`, of answers (n, d)."""
    off, without = ((answers - one.mean) / one.spread for one in (cloud, forgot))
    away, rho = (answers - beside.reproduced) / cloud.spread, beside.reproduced / cloud.spread
    others = lax.map(lambda other: (((answers - other) / cloud.spread) ** 2).sum(-1), beside.others)
    same = (jnp.abs(answers - beside.reproduced) <= least).all(-1)
    expected = (off**2).sum(-1), off @ (cloud.mean / cloud.spread), off @ beside.shift, (without**2).sum(-1)
    return *expected, jnp.sqrt((answers**2).sum(-1)), (away**2).sum(-1), away @ rho, same, others.T


@partial(jax.jit, static_argnames=("structure", "batches"))
def _simulate(
    structure: Structure,
    batches: tuple[int, int],
    place: Place,
    memories: tuple[Memories, Memories | None],
    vectors: Vectors,
    key: Key,
    least: Array,
) -> tuple[Scores, Scores, tuple[Array, Array, Array], Array]:
    """batches: answers at a time, of those for the mean and of those to rank among. memories: as they are, and at the
    start (None where nothing is remembered)."""
    keys = key.fold(jnp.arange(REFERENCE + SIMULATED))
    for_mean = jax.tree.map(lambda a: a[:REFERENCE].reshape(-1, batches[0]), keys)
    to_rank = jax.tree.map(lambda a: a[REFERENCE:].reshape(-1, batches[1]), keys)
    clouds = [_cloud(structure, place, one, for_mean, vectors.reproduced, least) for one in memories if one is not None]
    cloud, forgot = clouds[0], clouds[-1]
    compare = partial(_compare, cloud=cloud, forgot=forgot, beside=vectors, least=least)
    among = lax.map(lambda keys: compare(_replies(structure, place, memories[0], keys)), to_rank)
    length, reproduced = (((one / cloud.spread) ** 2).sum() for one in (cloud.mean, vectors.reproduced))
    noise = length, 2 * jnp.log(forgot.spread / cloud.spread).sum(), reproduced
    return compare(vectors.answer[None]), among, noise, (vectors.answer - cloud.mean) / cloud.spread


@jax.jit
def _shown(algorithm: Algorithm, said: State, memory: State, arrived: Message) -> State | None:
    return algorithm.remembered(said, memory, arrived)


class Chain:
    """A memory that is followed as a site keeps it (`site/memory.py`): what was merged, and what goes with the answer
    to the last order."""

    def __init__(self, start: Kept):
        self.start = start
        self.kept: Kept | None = start  # None: not known any more
        self.pending: Kept | None = None

    def settle(self, merged: int) -> bool:
        """Take over what was merged last; False where the memory of that is not known."""
        if self.pending is not None and self.pending.round == merged:
            self.kept = self.pending
        elif self.kept is not None and self.kept.round != merged:
            self.kept = None
        self.pending = None
        return self.kept is not None

    @property
    def _both(self) -> dict[str, Kept]:
        return {which: one for which, one in (("kept", self.kept), ("pending", self.pending)) if one is not None}

    def rounds(self) -> dict[str, int]:
        return {which: one.round for which, one in self._both.items()}

    def arrays(self) -> dict[str, np.ndarray]:
        return {f"{which}{name}": a for which, one in self._both.items() for name, a in one.arrays().items()}

    def restore(self, rounds: Mapping[str, int], arrays: Arrays) -> None:
        found = {which: self.start.again(round, arrays, which) for which, round in rounds.items()}
        self.kept, self.pending = found.get("kept"), found.get("pending")


class Expectation:
    """One site as the hub expects it.

    Its memory is followed twice: with the study's draws, as it is if the site draws so too; and by what its messages
    show of it, as it is with whatever draws, if the site is honest. Bets are on the second.
    """

    def __init__(self, study: Study, setup: OwnSetup, columns: Mapping[str, Column] | None):
        self.held = held = Holding(study, setup, columns)
        self.remembers = held.remembers
        self.chains = {"drawn": Chain(held.start), "shown": Chain(held.start)}

    @property
    @double
    def shows(self) -> bool:
        """Whether messages show all that is remembered: what a node of a network sends is only nearly its model, if its
        channel changes anything."""
        held, (memory, *rest) = self.held, self.held.start[1:]
        if jax.tree.leaves(rest) or (held.structure.topology.by_node and not held.own.channel.is_identity()):
            return False
        shown = jax.eval_shape(_shown, held.own.algorithm, held.shapes.heard, memory, held.shapes.message)
        return shown is not None

    def settle(self, merged: int) -> bool:
        """Take over what was merged last; False where the memory of that is not known."""
        known = [chain.settle(merged) for chain in self.chains.values()] if self.remembers else []
        return all(known)

    @double
    def replayed(self, order: Order, message: Message) -> Arrays:
        """What is sent with the study's draws. Memories that go with it, and with what was sent, wait to be merged."""
        drawn, shown = self.chains["drawn"], self.chains["shown"]
        assert drawn.kept is not None and shown.kept is not None  # settled before
        code, drawn.pending = self.held.work(order.heard, drawn.kept, order.round)
        if self.remembers:
            said = tree_of(self.held.shapes.heard, order.heard)
            memory = jax.tree.map(np.asarray, _shown(self.held.own.algorithm, said, shown.kept.memory, message))
            shown.pending = shown.kept._replace(round=order.round, memory=memory)
        return code

    @double
    def simulated(self, order: Order, vectors: Sequence[np.ndarray], candidates: list[str], least: float) -> Simulated:
        """vectors: those of `Vectors`. least: a spread below which there is only rounding."""
        held, many, shown = self.held, vectors[0].size, self.chains["shown"].kept
        assert shown is not None
        told = tree_of(held.shapes.heard, order.heard)
        place = Place(held.own, told, jnp.int32(order.round), blank(held.shapes.message))
        memories = tuple(shown[1:]), tuple(held.start[1:]) if self.remembers else None
        batches = (REFERENCE, SIMULATED) if many * SIMULATED <= AT_ONCE else (1, 1)
        found = _simulate(
            held.structure,
            batches,
            place,
            memories,
            Vectors(*map(jnp.asarray, vectors)),
            Key.of(held.seed, 0, WATCHING),
            jnp.asarray(least),
        )
        seen, among, noise, deviation = jax.tree.map(np.asarray, found)
        one, all_ = Compared(*(a[0] for a in seen)), Compared(*(a.reshape(-1, *a.shape[2:]) for a in among))
        return Simulated(one, all_, Noise(many, *map(float, noise)), candidates, deviation)

    @double
    def otherwise(self, order: Order, others: Mapping[str, Holding]) -> dict[str, Arrays]:
        """What is sent with the study's draws if something is wrong: without memory, or with the rows of others."""
        held, shown = self.held, self.chains["shown"].kept
        assert shown is not None
        told, round = tree_of(held.shapes.heard, order.heard), jnp.int32(order.round)
        found: dict[str, Arrays] = {}
        if self.remembers:
            found[LOST] = flatten(worked(held.structure, held.own, told, tuple(held.start[1:]), round)[0])
        for site, other in others.items():
            own = held.own._replace(mine=other.own.mine)
            found[site] = flatten(worked(other.structure, own, told, tuple(shown[1:]), round)[0])
        return found

    # What is written down between rounds.

    def rounds(self) -> dict[str, dict[str, int]]:
        return {name: chain.rounds() for name, chain in self.chains.items()} if self.remembers else {}

    def arrays(self) -> dict[str, np.ndarray]:
        if not self.remembers:
            return {}
        return {f"{which} {name}": a for which, chain in self.chains.items() for name, a in chain.arrays().items()}

    def restore(self, rounds: Mapping[str, Mapping[str, int]], arrays: Arrays) -> None:
        for which, chain in self.chains.items() if self.remembers else ():
            mark = f"{which} "
            own = {name.removeprefix(mark): a for name, a in arrays.items() if name.startswith(mark)}
            chain.restore(rounds.get(which, {}), own)
