"""Averaged iterates (Polyak and Ruppert): a method runs as it is, and what is read is the mean of its models."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.algorithms.references import POLYAK
from fedpoint.core.algorithm import Card, counts
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import Row
from fedpoint.core.types import Model, State
from fedpoint.core.vector import where
from fedpoint.core.wrapped import Wrapped


class Mean(NamedTuple):
    """The inner method's hub, the mean of its models so far, and how many rounds there were."""

    hub: State
    mean: Model
    rounds: np.int32 | Array


class Averaged(Wrapped):
    r"""The mean of the models of all rounds after `burn_in`, in the place of the last one.

    $$\bar w_t = \bar w_{t-1} + \frac{1}{t - B} (w_t - \bar w_{t-1}), \qquad t > B$$

    with $w_t$ the inner method's model: where it ends does not change, its noise falls like 1/t.

    Args:
        inner: the method, for instance `fp.Scaffold(step=0.1)`. burn_in: $B$, rounds whose models are not counted.

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
        summary="around another method: what is read is the mean of its models after a burn-in",
        lecture="",
        references=(POLYAK,),
        limit="the inner method's",
        fails="short runs: the mean still knows of the start",
    )

    burn_in: int = counts(default=0, per_agent=False, least=0)

    def check(self) -> None:
        if self.inner.at_agents:
            raise FedpointError(f"Averaged: the models of {self.inner.card.title} live at the nodes, not at a hub")

    def scheduled(self) -> bool:
        return True  # the mean moves less from round to round

    def sends_changes(self) -> bool:
        return False  # a node of a network would mix means with models

    def init(self, w: Model) -> tuple[State, State]:
        hub, memory = self.inner.init(w)
        return Mean(hub, self.inner.read(hub, memory), np.int32(0)), memory

    def say(self, hub: Mean, row: Row) -> State:
        return self.inner.say(hub.hub, row)

    def combine(self, hub: Mean, inbox: Inbox) -> Mean:
        inner = self.inner.combine(hub.hub, inbox)
        rounds = hub.rounds + 1
        model = self.inner.read(inner, ())
        weight = 1.0 / jnp.maximum(rounds - self.burn_in, 1)
        mean = hub.mean + (model - hub.mean) * weight
        return Mean(inner, where(rounds <= self.burn_in, model, mean), rounds)

    def settle(self, hub: Mean, memory: State) -> State:
        return self.inner.settle(hub.hub, memory)

    def read(self, hub: Mean, memory: State) -> Model:
        return hub.mean

    def invariants(self, hub: Mean, memory: State, p: np.ndarray) -> dict[str, State]:
        return self.inner.invariants(hub.hub, memory, p)


__all__ = ["Averaged"]
