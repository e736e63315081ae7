"""Averaged iterates (Polyak and Ruppert): a method runs as it is, and what is read is the mean of its models."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.algorithms.references import POLYAK
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm, Averaging, Card, Composition
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import Row
from fedpoint.core.record import untouched
from fedpoint.core.settings import counts
from fedpoint.core.types import Message, Model, State
from fedpoint.core.vector import where
from fedpoint.core.wrapped import Wrapped


class Mean(NamedTuple):
    """The inner method's state where its model is (at the hub, or a node's memory), the mean of its models so far, and
    how many rounds there were."""

    inner: State
    mean: Model
    rounds: np.int32 | Array


class Averaged(Wrapped):
    r"""The mean of the models of all rounds after `burn_in`, in place of the last one.

    $$\bar w_t = \bar w_{t-1} + \frac{1}{t - B} (w_t - \bar w_{t-1}), \qquad t > B$$

    with $w_t$ the inner method's model: where it ends does not change, its noise falls like 1/t. On a network every
    node has the mean of its own models, counted by its own turns.

    Args:
        inner: the method, for instance `fp.Scaffold(step=0.1)`.
        burn_in: $B$, rounds whose models are not counted.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]], noise=1.0)
    >>> last = fp.run(fp.Scaffold(step=0.1), quad, rounds=4000, repeats=20).error[:, -1].mean()
    >>> mean = fp.run(fp.Averaged(fp.Scaffold(step=0.1), burn_in=50), quad, rounds=4000, repeats=20).error[:, -1].mean()
    >>> bool(mean < last / 50)
    True

    References: Polyak and Juditsky (1992).
    """

    card = Card(
        name="averaged",
        title="Averaged",
        summary="wraps another method; the model is the mean of its models after a burn-in",
        lecture="",
        references=(POLYAK,),
        limit="the inner method's",
        fails="short runs: the mean still remembers the start",
    )

    exact_moments = True

    burn_in: int = counts(default=0, per_agent=False, least=0)

    def check(self) -> None:
        self.check_one_exchange()

    def composition(self) -> Composition:
        def read(models: np.ndarray) -> np.ndarray:
            first = self.burn_in + 1
            count = np.arange(1, len(models[first:]) + 1)[:, None]
            return np.concatenate([models[:first], np.cumsum(models[first:], axis=0) / count])

        since = f" after round {self.burn_in}" if self.burn_in else ""
        return Composition((self.inner,), read, f"the mean of the models{since}")

    def averaging(self) -> Averaging | None:
        if self.inner.scheduled() or not untouched(type(self), "averaging", Algorithm):  # or a mean itself
            return None
        return Averaging(self.inner, self.burn_in)

    def scheduled(self) -> bool:
        return True  # the mean moves less from round to round

    def _next(self, before: Mean, inner: State, model: Model) -> Mean:
        rounds = before.rounds + 1
        mean = before.mean + (model - before.mean) * (1.0 / jnp.maximum(rounds - self.burn_in, 1))
        return Mean(inner, where(rounds <= self.burn_in, model, mean), rounds)

    def _hub(self, hub: State) -> State:
        """The inner method's."""
        return hub if self.at_agents else hub.inner

    def _memory(self, memory: State) -> State:
        return memory.inner if self.at_agents else memory

    def _kept(self, memory: State, inner: State) -> State:
        """A memory with another one of the inner method."""
        return memory._replace(inner=inner) if self.at_agents else inner

    def init(self, w: Model) -> tuple[State, State]:
        hub, memory = self.inner.init(w)
        begun = Mean(memory if self.at_agents else hub, self.inner.read(hub, memory), np.int32(0))
        return (hub, begun) if self.at_agents else (begun, memory)

    def say(self, hub: State, row: Row) -> State:
        return self.inner.say(self._hub(hub), row)

    def begun_from(self, heard: State, memory: State) -> Model:
        return self.inner.begun_from(heard, self._memory(memory))

    def local(self, heard: State, memory: State, agent: Agent) -> tuple[Message, State]:
        message, inner = self.inner.local(heard, self._memory(memory), agent)
        return message, self._next(memory, inner, self.inner.read(heard, inner)) if self.at_agents else inner

    def combine(self, hub: State, inbox: Inbox) -> State:
        inner = self.inner.combine(self._hub(hub), inbox)
        return inner if self.at_agents else self._next(hub, inner, self.inner.read(inner, ()))

    def settle(self, hub: State, memory: State) -> State:
        return self._kept(memory, self.inner.settle(self._hub(hub), self._memory(memory)))

    def acknowledge(self, memory: State, sent: Message, credited: Message) -> State:
        return self._kept(memory, self.inner.acknowledge(self._memory(memory), sent, credited))

    def remembered(self, heard: State, memory: State, arrived: Message) -> State | None:
        inner = self.inner.remembered(heard, self._memory(memory), arrived)
        if inner is None or not self.at_agents:
            return inner
        return self._next(memory, inner, self.inner.read(heard, inner))

    def read(self, hub: State, memory: State) -> Model:
        return memory.mean if self.at_agents else hub.mean

    def invariants(self, hub: State, memory: State, p: np.ndarray) -> dict[str, State]:
        return self.inner.invariants(self._hub(hub), self._memory(memory), p)


__all__ = ["Averaged"]
