"""q-FedAvg: agents with a larger loss weigh more. Lecture 002's outlook on fairness."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.algorithms import fedavg
from fedpoint.algorithms.references import LI_FAIR
from fedpoint.core.agent import Agent, descend
from fedpoint.core.algorithm import Algorithm, Card
from fedpoint.core.inbox import Inbox
from fedpoint.core.settings import counts, nonnegative, positive
from fedpoint.core.steps import LocalSteps
from fedpoint.core.types import Form, Message, Model, State
from fedpoint.core.vector import square
from fedpoint.problems.base import Problem
from fedpoint.timing.participation import Who


class Fair(NamedTuple):
    """F^q D, and an upper bound of the curvature along it."""

    direction: Model
    curvature: Array


class QFedAvg(Algorithm):
    r"""q-FedAvg, for $\min_w \sum_k p_k F_k(w)^{q+1}/(q+1)$.

    $$D_k = \frac{w - w_k}{\eta}, \qquad h_k = q F_k^{q-1} |D_k|^2 + \frac{F_k^q}{\eta}, \qquad
      w^+ = w - \frac{\sum_k v_k F_k^q D_k}{\sum_k v_k h_k / \sum_k v_k}$$

    with $w_k$ after $E_k$ local steps and $F_k$ the loss at the received model, above zero. The curvature is a mean
    over those heard; the direction is not, because weights are not renormalised over a sample. q = 0 is FedAvg with
    `normalise=False`, whoever answers.

    Args:
        q: 0 is the plain average, larger is fairer.
        step: $\eta$, the local step itself.
        local_steps: $E_k$, local steps per round: a number, one per agent, `fp.steps.Epochs` or `fp.steps.Stragglers`.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 4.0], [[0.0], [1.0]])
    >>> plain = fp.run(fp.QFedAvg(q=0.0, step=0.1), quad, rounds=200).model[0]
    >>> fair = fp.run(fp.QFedAvg(q=2.0, step=0.1), quad, rounds=200).model[0]
    >>> a, b = fp.metrics.fairness(quad.losses(plain)), fp.metrics.fairness(quad.losses(fair))
    >>> bool(b.variance < a.variance)
    True

    References: Li et al., Fair resource allocation in federated learning (2020).
    """

    card = Card(
        name="qfedavg",
        title="q-FedAvg",
        summary="fairness: minimises sum p_k F_k^(q+1)/(q+1), so that agents with a larger loss weigh more",
        lecture="002 (outlook)",
        references=(LI_FAIR,),
        limit="q = 0: FedAvg's; q > 0: fairer than w*",
        fails="losses near 0 with q < 1; a large q makes short steps",
    )
    exact_moments = True

    q: float = nonnegative()
    step: float = positive()
    local_steps: LocalSteps = counts()

    def alike(self) -> bool:
        return True

    def divides(self) -> bool:
        return True

    def init(self, w: Model) -> tuple[State, State]:
        return w, ()

    def local(self, w: Model, memory: State, agent: Agent) -> tuple[Message, State]:
        loss = agent.loss(w)
        y = descend(agent, w, agent.steps(self.local_steps), lambda y, e: y - self.step * agent.field(y, e))
        direction = (w - y) / self.step
        power = jnp.power(loss, self.q)
        # q F^(q-1) written so that q = 0 gives 0 also where F = 0.
        slope = jnp.where(self.q > 0, self.q * power / jnp.where(loss > 0, loss, 1.0), 0.0)
        return Fair(power * direction, slope * square(direction) + power / self.step), memory

    def combine(self, w: Model, inbox: Inbox) -> Model:
        curvature = jnp.where(inbox.weight > 0, inbox.mean.curvature, 1.0)  # nobody is heard: nothing is done
        return w - inbox.mean.direction * (inbox.weight / curvature)

    def forms(self) -> Mapping[str, Form]:
        return {name: of_fedavg(form) for name, form in fedavg.FORMS.items()}


# What theory says, in closed form: only for q = 0, where it is FedAvg whose steps are not normalised.


def of_fedavg(form: Form) -> Form:
    """FedAvg's closed form for q = 0; None for q > 0, where none is known."""

    @functools.wraps(form)
    def same(algorithm: QFedAvg, problem: Problem, *rest: Who) -> np.ndarray | float | None:
        if algorithm.q != 0:
            return None
        return form(fedavg.FedAvg(algorithm.step, algorithm.local_steps, normalise=False), problem, *rest)

    return same


fixed_point = of_fedavg(fedavg.fixed_point)
bias = of_fedavg(fedavg.bias)
bias_small_step = of_fedavg(fedavg.bias_small_step)
rate = of_fedavg(fedavg.rate)
floor = of_fedavg(fedavg.floor)
floor_small_step = of_fedavg(fedavg.floor_small_step)
stability = of_fedavg(fedavg.stability)
stability_by_agent = of_fedavg(fedavg.stability_by_agent)
