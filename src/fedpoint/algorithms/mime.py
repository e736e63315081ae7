"""Mime: local steps that mimic centralised momentum, with variance-reduced fields. Karimireddy et al. (2021)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedpoint.algorithms.references import MIME
from fedpoint.algorithms.surveyed import FieldSurvey, Mimicked
from fedpoint.closed import linear
from fedpoint.core.agent import Agent, descend
from fedpoint.core.algorithm import Algorithm, Card
from fedpoint.core.inbox import Inbox
from fedpoint.core.settings import counts, nonnegative, positive
from fedpoint.core.steps import LocalSteps
from fedpoint.core.types import Form, Message, Model, Number, State
from fedpoint.core.vector import zeros
from fedpoint.problems.base import Problem
from fedpoint.timing.participation import Who


class Mime(Algorithm):
    r"""Mime with momentum.

    A round has two exchanges. Agents send $\hat g_k(w)$, and the hub answers with $c = \sum_k v_k \hat g_k(w)$; then

    $$y \leftarrow y - \mu ((1 - \beta)(\hat g_k(y; z) - \hat g_k(w; z) + c) + \beta m) \quad
      (E_k \text{ times from } w),$$
    $$w^+ = w + \sum_k v_k (y_k - w), \qquad m^+ = (1 - \beta) c + \beta m.$$

    Both fields of a local step are of one sample z, so that its noise cancels as far as it does not depend on the
    model. The momentum m is the hub's, from gradients at its own models: agents apply it, and never change it. With
    exact fields, everyone and $\beta = 0$ it is FedLin.

    Args:
        step: $\mu$, the local step, one number for all agents.
        local_steps: $E_k$, local steps per round: a number, one per agent, `fp.steps.Epochs` or `fp.steps.Stragglers`.
        momentum: $\beta$, of the hub's momentum; 0 is none, below 1.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> bool(fp.run(fp.Mime(step=0.1, local_steps=5, momentum=0.5), quad, rounds=100).error[0, -1] < 1e-20)
    True

    References: Karimireddy et al. (2021).
    """

    card = Card(
        name="mime",
        title="Mime",
        summary="local steps with the hub's momentum and variance-reduced fields: as if all data were in one place",
        lecture="",
        references=(MIME,),
        limit="w*",
        fails="expensive messages, two in a round; few participants, whose gradient c then is",
    )

    step: Number = positive(per_agent=True)
    local_steps: LocalSteps = counts()
    momentum: float = nonnegative(default=0.9, below=1.0)

    def samples(self, steps: int) -> int:
        return steps + 1

    def survey(self) -> Algorithm:
        return FieldSurvey(self)

    def init(self, w: Model) -> tuple[State, State]:
        return Mimicked(w, zeros(w), zeros(w)), ()

    def local(self, heard: Mimicked, memory: State, agent: Agent) -> tuple[Message, State]:
        w, c, m = heard
        steps, beta = agent.steps(self.local_steps), self.momentum

        def advance(y: Model, e: Number) -> Model:
            field = agent.field(y, e) - agent.field(w, e) + c
            return y - self.step * ((1 - beta) * field + beta * m)

        y = descend(agent, w, steps, advance)
        agent.evaluations = agent.evaluations + steps  # a step takes two fields, and `descend` counts one
        return y - w, memory

    def combine(self, hub: Mimicked, inbox: Inbox) -> Mimicked:
        beta = self.momentum
        return Mimicked(hub.w + inbox.mean, hub.g, (1 - beta) * hub.g + beta * hub.m)

    def read(self, hub: Mimicked, memory: State) -> Model:
        return hub.w

    def forms(self) -> Mapping[str, Form]:
        return {"fixed_point": fixed_point, "bias": bias, "rate": rate}


# What theory says, in closed form, for everyone: c of few agents multiplies what these few do, which moves the limit.


def fixed_point(algorithm: Mime, problem: Problem, participation: Who = None) -> np.ndarray | None:
    """w*, on every problem, where everyone answers."""
    return linear.solution(problem) if linear.everyone(participation) else None


def bias(algorithm: Mime, problem: Problem, participation: Who = None) -> np.ndarray | None:
    """None to speak of: the fixed point is w*."""
    return linear.away(fixed_point(algorithm, problem, participation), problem)


def rate(algorithm: Mime, problem: Problem, participation: Who = None) -> float | None:
    r"""The factor of the mean per round for everyone on affine fields.

    $w^+ = w - P m^+$ with $m^+ = (1 - \beta) \bar H (w - w^\star) + \beta m$ and $P = \sum_k p_k \mu \sum_{e<E_k}
    (I - \mu (1 - \beta) H_k)^e$: the spectral radius of that map of (w, m).
    """
    setting = linear.local(algorithm, problem)
    fields = problem.linear_fields()
    if setting is None or fields is None or not linear.everyone(participation):
        return None
    H, p, beta = fields[0], problem.weights, algorithm.momentum
    shorter = linear.LocalWork(setting.step * (1 - beta), setting.draws)
    P = np.tensordot(p, linear.descent(H, shorter), 1) / (1 - beta)
    mean, one = np.tensordot(p, H, 1), np.eye(H.shape[-1])
    fresh = (1 - beta) * mean
    T = np.block([[one - P @ fresh, -beta * P], [fresh, beta * one]])
    return float(np.abs(np.linalg.eigvals(T)).max())
