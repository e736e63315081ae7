"""Parameter exchange: agents take the step, the hub averages. Lecture 000, (11)-(12), (31)-(32)."""

from __future__ import annotations

from collections.abc import Mapping

from fedpoint.algorithms import gradient_exchange
from fedpoint.algorithms.references import RIZK
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm, Card
from fedpoint.core.inbox import Inbox
from fedpoint.core.settings import positive
from fedpoint.core.steps import Step, at
from fedpoint.core.types import Form, Message, Model, State


class ParameterExchange(Algorithm):
    r"""Centralised (stochastic) gradient descent by exchanging models. The iterates are those of gradient exchange.

    $$\psi_k = w - \mu \hat g_k(w), \qquad w^+ = w + \sum_k v_k (\psi_k - w)$$

    Args:
        step: $\mu$, a number or a schedule of the round.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [2.0]])
    >>> fp.run(fp.ParameterExchange(step=0.5), quad, rounds=2).model[0]
    array([0.75])

    References: Rizk, Vlaski and Sayed (2022).
    """

    card = Card(
        name="parameter_exchange",
        title="Parameter exchange",
        summary="agents take one step and send their models, the hub averages",
        lecture="000 (11)-(12), (31)-(32)",
        references=(RIZK,),
        limit="w*",
        fails="expensive messages, one for every step, as with gradient exchange",
    )
    exact_moments = True

    step: Step = positive(scheduled=True)

    def averages_descent(self) -> bool:
        return True

    def init(self, w: Model) -> tuple[State, State]:
        return w, ()

    def local(self, w: Model, memory: State, agent: Agent) -> tuple[Message, State]:
        moved = w - at(self.step, agent.round) * agent.field(w)
        return moved - w, memory

    def combine(self, w: Model, inbox: Inbox) -> Model:
        return w + inbox.mean

    def forms(self) -> Mapping[str, Form]:
        return gradient_exchange.FORMS


# What theory says, in closed form: the iterates are those of gradient exchange, and so is the theory.

fixed_point = gradient_exchange.fixed_point
bias = gradient_exchange.bias
rate = gradient_exchange.rate
floor = gradient_exchange.floor
floor_small_step = gradient_exchange.floor_small_step
stability = gradient_exchange.stability
