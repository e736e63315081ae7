"""Participation as it comes: agents that answer or do not, with chances of their own or from a trace."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked
from fedpoint.core.arrays import floats
from fedpoint.core.errors import FedpointError
from fedpoint.core.files import read_file
from fedpoint.core.memory_limits import memory
from fedpoint.core.numbers import counted
from fedpoint.core.random import Key
from fedpoint.core.types import Number
from fedpoint.timing import lineups
from fedpoint.timing.base import Context, Moments, Tick
from fedpoint.timing.lineups import Lineups
from fedpoint.timing.moments import subset_moments
from fedpoint.timing.schemes import AGAIN, Everyone, Participation, Uniform, _completed


class Answering(Participation):
    """Agents that do not always answer, around any scheme.

    Weights stay unbiased: with one probability (or a trace, read as such) the answers stand for all who were
    asked, v (asked / merged); with different probabilities, v_k over the chance that agent k answers and enough
    others do for the `minimum`.

    Args:
        scheme: who is asked; for over-selection ask more agents than you need, and set `keep`.
        probability: that an agent answers: one for all, or one per agent.
        trace: in place of `probability`: a table (rounds, agents) of who is there, repeated when it ends.
        keep: merge at most so many answers, the first to arrive (in a uniformly random order); None: all.
        minimum: with fewer answers the round is abandoned, and model and memories stay.
    """

    abandons = True

    scheme: Participation
    probability: Number | None = None
    trace: ArrayLike | None = None
    keep: int | None = None
    minimum: int = 1

    def check(self) -> None:
        if isinstance(self.scheme, Answering):
            raise FedpointError("Answering: the scheme is itself Answering: give one, with the product of the chances")
        if (self.probability is None) == (self.trace is None):
            raise FedpointError("Answering: give either a probability or a trace")
        a = self.probability
        if a is not None and not ((floats(a) > 0) & (floats(a) <= 1)).all():
            raise FedpointError("Answering: probabilities must be above 0 and at most 1")
        if self.keep is not None and a is not None and np.ndim(a):
            raise FedpointError(
                "Answering: keeping only the first answers favours agents that answer often, and their chances "
                "then have no simple correction: give one probability for all, or leave out keep"
            )
        if self.trace is not None and (np.ndim(self.trace) != 2 or not np.isin(self.trace, (0, 1)).all()):
            raise FedpointError("Answering: the trace must be a table of 0 and 1, one row a round, one column an agent")
        if self.keep is not None and self.keep < 1:
            raise FedpointError(f"Answering: keep must be at least 1, got {self.keep}")
        if self.minimum < 1 or (self.keep is not None and self.minimum > self.keep):
            raise FedpointError(f"Answering: minimum must be at least 1 and at most keep, got {self.minimum}")

    @property
    def everyone(self) -> bool:  # type: ignore[override]
        """A trace of rounds in which everybody answers, and of others that are abandoned."""
        if self.trace is None or self.keep is not None or not self.scheme.everyone:
            return False
        rows = np.asarray(self.trace)
        return bool((rows == rows[:, :1]).all())

    def names(self) -> tuple[str, ...]:
        inner = self.scheme.names()
        return inner if self.everyone else (type(self).__name__, *inner)

    def slots(self, agents: int) -> int:
        count = self.scheme.slots(agents)
        if self.minimum > count:
            raise FedpointError(
                f"Answering: a minimum of {counted(self.minimum, 'answer')}, but only {counted(count, 'agent')} asked"
            )
        for name, table in (("probabilities", self.probability), ("columns in the trace", self.trace)):
            if table is not None and np.ndim(table) and np.shape(table)[-1] != agents:
                raise FedpointError(f"Answering: {np.shape(table)[-1]} {name} for {counted(agents, 'agent')}")
        return count

    def bind(self, context: Context) -> Answering:
        scheme = self.scheme.bind(context)
        trace = None if self.trace is None else np.asarray(self.trace, dtype=np.uint8)
        return Answering(scheme, self.probability, trace, self.keep, self.minimum)

    def least_heard(self, agents: int) -> int:
        return min(self.minimum, self.scheme.least_heard(agents))

    def _chance(self, agents: Array) -> Array:
        """That these agents answer: (L,), or one number for all."""
        chance = jnp.asarray(self.probability)
        return chance[agents] if chance.ndim else chance

    def tick(self, key: Key, p: Array, round: Array) -> Tick:
        asked = _completed(self.scheme.tick(key, p, round), p)
        agents = jnp.arange(p.shape[0]) if asked.agents is None else asked.agents
        if self.trace is not None:
            there = jnp.asarray(self.trace)
            answers = there[round % there.shape[0], agents] > 0
        else:
            answers = key.fold(1).row().uniform_at(agents) < self._chance(agents)
        answers = answers & asked.heard
        if self.keep is not None:
            arrival = jnp.where(answers, key.fold(2).row().uniform_at(agents), 2.0)
            answers = answers & (jnp.argsort(jnp.argsort(arrival)) < self.keep)
        # The answers stand for all that were asked.
        merged = jnp.sum(answers)
        if self.trace is None and jnp.ndim(jnp.asarray(self.probability)):
            scale = 1.0 / self._chance(agents)
            if self.minimum > 1:
                scale = scale / _others_answer(jnp.where(asked.heard, self._chance(agents), 0.0), self.minimum - 1)
        else:
            scale = jnp.sum(asked.heard) / jnp.maximum(merged, 1)
        weight, share = cast(Array, asked.weight), cast(Array, asked.share)  # a completed tick has both
        zero = jnp.zeros_like(weight)
        return Tick(
            asked.agents,
            answers,
            jnp.where(answers, weight * scale, zero),
            jnp.where(answers, share, zero),
            asked.asked,
            merged >= self.minimum,
        )

    def known_moments(self, p: np.ndarray) -> Moments | None:
        """Where those who answer are a uniform subset of a random size: it is as if so many were asked."""
        uniform = isinstance(self.scheme, Everyone | Uniform) and self.scheme.knows_moments()
        if self.probability is None or np.ndim(self.probability) or not uniform:
            return None
        asked, a = self.scheme.slots(len(p)), float(self.probability)
        chance = np.array([math.comb(asked, r) * a**r * (1 - a) ** (asked - r) for r in range(asked + 1)])
        merged: dict[int, float] = {}
        for r in range(self.minimum, asked + 1):
            size = r if self.keep is None else min(r, self.keep)
            merged[size] = merged.get(size, 0.0) + chance[r]
        return subset_moments(p, merged, isinstance(self.scheme, Uniform) and self.scheme.plain)

    def known_lineups(self, p: np.ndarray, most: int) -> Lineups | None:
        if self.probability is None:
            return None
        equal = not np.ndim(self.probability)
        if self.minimum > 1 and not equal:
            return None
        slots = min(self.scheme.slots(len(p)), len(p))
        kept = 1 if self.keep is None else math.comb(slots, min(self.keep, slots // 2))  # of one set of answers
        few = AGAIN * most // (2**slots * kept)
        asked = self.scheme.known_lineups(p, few) if self.scheme.knows_moments() else None
        if asked is None:
            return None
        chance = np.broadcast_to(floats(self.probability), len(p))
        found = lineups.listed(lineups.answers(asked, chance, self.keep, self.minimum, equal))
        return found if found is not None and len(found.chance) <= most else None


def _others_answer(chance: Array, least: int) -> Array:
    """(L,): the probability that at least `least` of the other slots answer, slot j with chance[j]."""
    slots = jnp.arange(chance.shape[0])

    def without(slot: Array) -> Array:
        def add(
            few: Array, one: tuple[Array, Array]
        ) -> tuple[Array, None]:  # few[i]: the probability of i answers so far, i < least
            index, a = one
            a = jnp.where(index == slot, 0.0, a)
            return few * (1 - a) + a * jnp.concatenate([jnp.zeros(1), few[:-1]]), None

        none = jnp.zeros(least).at[0].set(1.0)
        return 1.0 - lax.scan(add, none, (slots, chance))[0].sum()

    return jnp.maximum(jax.vmap(without)(slots), 1e-12)


@checked
def read_trace(path: str | Path) -> np.ndarray:
    """Read a table of who was there: comma-separated 0 and 1, one row per round, one column per agent.

    Args:
        path: the CSV file.
    """
    try:
        table = np.loadtxt(io.BytesIO(read_file(path, memory() // 4)), delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise FedpointError(f"availability trace {path}: {error}") from None
    if not np.isin(table, (0, 1)).all():
        row, column = np.argwhere(~np.isin(table, (0, 1)))[0]
        raise FedpointError(
            f"availability trace {path}: row {row + 1}, column {column + 1} is {table[row, column]:g}; "
            "a cell is 1 (there) or 0 (away)"
        )
    return table.astype(np.uint8)
