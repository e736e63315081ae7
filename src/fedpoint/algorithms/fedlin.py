"""FedLin: local steps along everybody's gradient, corrected as the own one changes. Mitra et al. (2021)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedpoint.algorithms.references import MITRA
from fedpoint.algorithms.surveyed import FieldSurvey, Surveyed
from fedpoint.closed import linear
from fedpoint.core.agent import Agent, descend
from fedpoint.core.algorithm import Algorithm, Card
from fedpoint.core.inbox import Inbox
from fedpoint.core.settings import counts, positive
from fedpoint.core.steps import LocalSteps
from fedpoint.core.types import Form, Message, Model, Number, State
from fedpoint.core.vector import zeros
from fedpoint.problems.base import Problem


class FedLin(Algorithm):
    r"""FedLin.

    A round has two exchanges. Agents send $\hat g_k(w)$, and the hub answers with $g = \sum_k p_k \hat g_k(w)$; then

    $$y \leftarrow y - \mu (\hat g_k(y) - \hat g_k(w) + g) \quad (E_k \text{ times from } w), \qquad
      w^+ = w + \sum_k p_k (y_k - w).$$

    At w* everybody's gradient g vanishes and the other two cancel, so that nobody moves. Unlike SCAFFOLD's controls,
    which are of the round before, g is fresh: agents remember nothing, and messages are twice as many.

    Args:
        step: $\mu$, the local step: a number, or one per agent.
        local_steps: $E_k$, local steps per round: a number, one per agent, `fp.steps.Epochs` or `fp.steps.Stragglers`.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> run = fp.run(fp.FedLin(step=0.1, local_steps=5), quad, rounds=100)
    >>> bool(run.error[0, -1] < 1e-20), run.cost.messages_up / run.cost.rounds     # two messages of each agent
    (True, 4.0)

    References: Mitra, Jaafar, Pappas and Hassani (2021).
    """

    card = Card(
        name="fedlin",
        title="FedLin",
        summary="local steps corrected by the gradient of all agents, which every round asks for first: no drift, no "
        "memories",
        lecture="",
        references=(MITRA,),
        limit="w*",
        fails="expensive messages, two in a round; few participants",
        restriction="local steps follow the mean gradient of all agents; that of some agents is off, and local steps "
        "multiply this noise, which moves the limit",
    )
    exact_moments = True

    step: Number = positive(per_agent=True)
    local_steps: LocalSteps = counts()

    def samples(self, steps: int) -> int:
        return steps + 1

    def survey(self) -> Algorithm:
        return FieldSurvey(self)

    def init(self, w: Model) -> tuple[State, State]:
        return Surveyed(w, zeros(w)), ()

    def local(self, heard: Surveyed, memory: State, agent: Agent) -> tuple[Message, State]:
        w, steps = heard.w, agent.steps(self.local_steps)
        shift = heard.g - agent.field(w, steps)  # the field that it sent, of the same sample
        return descend(agent, w, steps, lambda y, e: y - self.step * (agent.field(y, e) + shift)) - w, memory

    def combine(self, hub: Surveyed, inbox: Inbox) -> Surveyed:
        return hub._replace(w=hub.w + inbox.mean)

    def read(self, hub: Surveyed, memory: State) -> Model:
        return hub.w

    def forms(self) -> Mapping[str, Form]:
        return {"fixed_point": fixed_point, "bias": bias, "rate": rate}


# What theory says, in closed form.


def fixed_point(algorithm: FedLin, problem: Problem) -> np.ndarray | None:
    """w*, on every problem."""
    return linear.solution(problem)


def bias(algorithm: FedLin, problem: Problem) -> np.ndarray | None:
    """None to speak of: the fixed point is w*."""
    return linear.away(fixed_point(algorithm, problem), problem)


def rate(algorithm: FedLin, problem: Problem) -> float | None:
    r"""The factor of the mean per round on affine fields: the spectral radius of $I - (\sum_k p_k P_k) \sum_k p_k H_k$,
    $P_k = \mu \sum_{e<E_k} (I - \mu H_k)^e$: gradient descent, preconditioned by what local steps make of it."""
    setting = linear.local(algorithm, problem)
    if setting is None or (fields := problem.linear_fields()) is None:
        return None
    H, p = fields[0], problem.weights
    steps, mean = np.tensordot(p, linear.descent(H, setting), 1), np.tensordot(p, H, 1)
    return float(np.abs(np.linalg.eigvals(np.eye(len(mean)) - steps @ mean)).max())
