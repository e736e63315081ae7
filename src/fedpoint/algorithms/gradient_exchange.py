"""Gradient exchange: agents send fields, the hub takes the step. Lecture 000, (13)-(14), (33)-(34)."""

from typing import Any

import jax.numpy as jnp

from fedpoint.algorithms.references import RIZK
from fedpoint.core.algorithm import Card, algorithm, positive
from fedpoint.core.steps import at


@algorithm(
    Card(
        name="gradient_exchange",
        title="Gradient exchange",
        summary="agents send their fields, the hub takes one step with the mean",
        lecture="000 (13)-(14), (33)-(34)",
        references=(RIZK,),
        limit="w*",
    )
)
class GradientExchange:
    r"""Centralised (stochastic) gradient descent by exchanging gradients.

    $$g_k = \hat g_k(w), \qquad w^+ = w - \mu \sum_k v_k g_k$$

    With participation=1 it is lecture 000's asynchronous variant, (43)-(47).

    Args:
        step: $\mu$, a number or a schedule of the round.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [2.0]])
    >>> fp.run(fp.GradientExchange(step=0.5), quad, rounds=2).model[0]
    array([0.75])

    References: Rizk, Vlaski and Sayed (2022).
    """

    step: Any = positive(scheduled=True)

    def init(self, w):
        return (w, jnp.int32(0)), ()

    def say(self, hub, row):
        return hub[0]

    def local(self, w, memory, agent):
        return agent.field(w), memory

    def combine(self, hub, inbox):
        w, round = hub
        return w - at(self.step, round) * inbox.mean, round + 1

    def read(self, hub, memory):
        return hub[0]
