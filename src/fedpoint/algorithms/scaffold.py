"""SCAFFOLD: control variates correct the drift of local steps. Lectures 000 and 001 point to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.algorithms.references import KARIMIREDDY
from fedpoint.closed import linear
from fedpoint.core.agent import Agent, descend
from fedpoint.core.algorithm import Algorithm, Card
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.settings import counts, positive
from fedpoint.core.steps import LocalSteps
from fedpoint.core.types import Form, Model, Number, State
from fedpoint.core.vector import zeros
from fedpoint.problems.base import Problem
from fedpoint.timing.participation import Who


class Controlled(NamedTuple):
    """A model and the control variate beside it; as a message, the changes of both."""

    w: Model
    c: Model


class Scaffold(Algorithm):
    r"""SCAFFOLD.

    $$y \leftarrow y - \eta_l (\hat g_k(y) - c_k + c), \qquad
      c_k^+ = \hat g_k(x) \ \text{(option 1)} \quad\text{or}\quad
      c_k - c + \frac{x - y}{E_k \eta_l} \ \text{(option 2)},$$
    $$x^+ = x + \eta_g \sum_k v_k (y_k - x), \qquad c^+ = c + \sum_{k \in S} p_k (c_k^+ - c_k).$$

    c takes the shares $p_k$ without any $K/|S|$, so that $c = \sum_k p_k c_k$ is conserved whoever answers. All start
    at zero, otherwise the limit is wrong.

    Args:
        step: $\eta_l$, the local step itself, one or one per agent.
        local_steps: $E_k$, local steps per round: a number, one per agent, `fp.steps.Epochs` or `fp.steps.Stragglers`.
        server_step: $\eta_g$, by which the mean change is multiplied; 1 by default.
        option: 1 (one more field evaluation) or 2.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> bool(fp.run(fp.Scaffold(step=0.1, local_steps=5), quad, rounds=200).error[0, -1] < 1e-20)
    True

    References: Karimireddy et al. (2020).
    """

    card = Card(
        name="scaffold",
        title="SCAFFOLD",
        summary="control variates at hub and agents remove the drift of local steps",
        lecture="000 (81), 001",
        references=(KARIMIREDDY,),
        limit="w*",
        fails="many agents that seldom participate: their control variates are old and noisy; every agent needs a "
        "memory",
    )
    exact_moments = True
    merges = True

    step: Number = positive(per_agent=True)
    local_steps: LocalSteps = counts()
    server_step: float = positive(default=1.0)
    option: int = 2

    def check(self) -> None:
        if self.option not in (1, 2):
            raise FedpointError(f"Scaffold: option must be 1 or 2, got {self.option}")

    def samples(self, steps: int) -> int:
        return steps + 1 if self.option == 1 else steps

    def alike(self) -> bool:
        return True

    def corrects_descent(self) -> bool:
        return self.option == 2 and self.server_step == 1.0

    def init(self, w: Model) -> tuple[State, State]:
        return Controlled(w, zeros(w)), zeros(w)

    def local(self, heard: Controlled, c_k: Model, agent: Agent) -> tuple[Controlled, Model]:
        x, c = heard
        steps = agent.steps(self.local_steps)
        y = descend(agent, x, steps, lambda y, e: y - self.step * (agent.field(y, e) - c_k + c))
        new = agent.field(x, steps) if self.option == 1 else c_k - c + (x - y) / (steps * self.step)
        return Controlled(y - x, new - c_k), new

    def acknowledge(self, c_k: Model, sent: Controlled, credited: Controlled) -> Model:
        return c_k + (credited.c - sent.c)

    def remembered(self, heard: Controlled, c_k: Model, arrived: Controlled) -> Model:
        return c_k + arrived.c

    def combine(self, hub: Controlled, inbox: Inbox) -> Controlled:
        return Controlled(hub.w + self.server_step * inbox.mean.w, hub.c + inbox.total.c)

    def read(self, hub: Controlled, memory: Model) -> Model:
        return hub.w

    def invariants(self, hub: State, memory: State, p: np.ndarray) -> dict[str, State]:
        return {
            "c = sum p_k c_k": jax.tree.map(lambda c, all_: c - jnp.einsum("k,rk...->r...", p, all_), hub.c, memory)
        }

    def forms(self) -> Mapping[str, Form]:
        return {"fixed_point": fixed_point, "bias": bias, "rate": rate}


# What theory says, in closed form.


def fixed_point(algorithm: Scaffold, problem: Problem) -> np.ndarray | None:
    """w*, on every problem and for every unbiased participation, from its usual start c_k = c = 0."""
    return linear.solution(problem)


def bias(algorithm: Scaffold, problem: Problem) -> np.ndarray | None:
    """None to speak of: the fixed point is w*."""
    return linear.away(fixed_point(algorithm, problem), problem)


def rate(algorithm: Scaffold, problem: Problem, participation: Who = None) -> float | None:
    r"""For one local step, one step for all and everyone: the spectral radius of $I - \eta_g \eta_l \sum_k p_k H_k$.

    The control variates then cancel in the mean, and the model follows gradient descent.
    """
    setting = linear.local(algorithm, problem)
    if not linear.everyone(participation) or setting is None or setting.counts is None:
        return None
    if not (setting.counts == 1).all() or linear.common(setting.step) is None:
        return None
    if (fields := problem.linear_fields()) is None:
        return None
    one = linear.LocalWork(setting.step * algorithm.server_step, setting.draws)
    return linear.averaged(problem, linear.descent(fields[0], one)).rate()
