"""Gradient exchange: agents send fields, the hub takes the step. Lecture 000, (13)-(14), (33)-(34)."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from fedpoint.algorithms.references import RIZK
from fedpoint.closed import linear
from fedpoint.closed.lms import lms_floor, lms_floor_small_step, where_covered
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm, Card
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import Row
from fedpoint.core.settings import positive
from fedpoint.core.steps import Step, at
from fedpoint.core.types import Form, Message, Model, State
from fedpoint.problems.base import Problem
from fedpoint.timing.participation import Who


class GradientExchange(Algorithm):
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

    card = Card(
        name="gradient_exchange",
        title="Gradient exchange",
        summary="agents send their fields, the hub takes one step with the mean",
        lecture="000 (13)-(14), (33)-(34)",
        references=(RIZK,),
        limit="w*",
        fails="expensive messages, one for every step; steps of 2/delta or more diverge",
    )
    exact_moments = True
    merges = True

    step: Step = positive(scheduled=True)

    def averages_descent(self) -> bool:
        return True

    def alike(self) -> bool:
        return True

    def init(self, w: Model) -> tuple[State, State]:
        return (w, jnp.int32(0)), ()

    def say(self, hub: State, row: Row) -> Model:
        return hub[0]

    def begun_from(self, w: Model, memory: State) -> Model:
        return w

    def local(self, w: Model, memory: State, agent: Agent) -> tuple[Message, State]:
        return agent.field(w), memory

    def combine(self, hub: State, inbox: Inbox) -> State:
        w, round = hub
        return w - at(self.step, round) * inbox.mean, round + 1

    def read(self, hub: State, memory: State) -> Model:
        return hub[0]

    def forms(self) -> Mapping[str, Form]:
        return FORMS


# What theory says, in closed form.


def fixed_point(algorithm: Algorithm, problem: Problem) -> np.ndarray | None:
    """w*, on every problem, for every step and unbiased participation: lecture 000, (19)."""
    return linear.solution(problem)


def bias(algorithm: Algorithm, problem: Problem) -> np.ndarray | None:
    """None to speak of: the fixed point is w*."""
    return linear.away(fixed_point(algorithm, problem), problem)


def rate(algorithm: Algorithm, problem: Problem) -> float | None:
    r"""The factor of the mean per round where fields are affine: the spectral radius of $I - \mu \sum_k p_k H_k$."""
    setting = linear.local(algorithm, problem)
    if setting is None or (fields := problem.linear_fields()) is None:
        return None
    return linear.averaged(problem, linear.descent(fields[0], setting)).rate()


def floor(algorithm: Algorithm, problem: Problem, participation: Who = None) -> float | None:
    r"""Where E|w - w*|^2 settles on streaming linear regression, exactly, for p = 1/K and isotropic regressors:
    $(\mu/L)[M\sigma_v^2 + \sigma_h^2 D(M+1+c)] / (2 - \mu\sigma_h^2(1 + (M+1)/L))$, c = (K - L)/(K - 1), for L of K
    agents; see `theory.lms_floor`, also for draws with replacement.
    """
    return where_covered(lms_floor, problem, algorithm.step, 1, participation, normalise=False)


def floor_small_step(algorithm: Algorithm, problem: Problem, participation: Who = None) -> float | None:
    r"""The floor to first order in the step: $(\mu/2L)\,[M\sigma_v^2 + \sigma_h^2 D (M + 1 + c)]$ for L of K agents."""
    return where_covered(lms_floor_small_step, problem, algorithm.step, 1, participation, normalise=False)


def stability(algorithm: Algorithm, problem: Problem) -> float | None:
    r"""$2/\lambda_{\max}(\sum_k p_k H_k)$: exact fields converge below this step and not above it."""
    return linear.descent_limit(problem)


FORMS: Mapping[str, Form] = {
    "fixed_point": fixed_point,
    "bias": bias,
    "rate": rate,
    "floor": floor,
    "floor_small_step": floor_small_step,
    "stability": stability,
}
