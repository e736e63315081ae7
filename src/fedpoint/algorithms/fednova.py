"""FedNova: local changes normalised by the agent's own length before they are averaged. Lecture 002."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedpoint.algorithms.general_rule import Normalised, accumulate, expected_round, mean_length
from fedpoint.algorithms.references import WANG_NOVA
from fedpoint.closed import linear
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm, Card
from fedpoint.core.inbox import Inbox
from fedpoint.core.settings import counts, nonnegative, positive
from fedpoint.core.steps import LocalSteps, Step, at
from fedpoint.core.types import Form, Message, Model, State
from fedpoint.problems.base import Problem
from fedpoint.timing.participation import Who


class FedNova(Algorithm):
    r"""FedNova: the general update rule with $w_k = p_k$ and $\tau_{\text{eff}} = \sum_j p_j |a_j|_1$.

    $$w^+ = w - \tau_{\text{eff}} \sum_k v_k\, \frac{w - x_{k,\tau_k}}{|a_k|_1}$$

    $|a|_1$ is that of the local solver: $\tau$ for plain steps,
    $(\tau - \rho(1-\rho^\tau)/(1-\rho))/(1-\rho)$ for momentum $\rho$,
    $(1-(1-\eta\,\text{pull})^\tau)/(\eta\,\text{pull})$ for a proximal term.

    Args:
        step: $\eta$, the local step itself.
        local_steps: $\tau_k$, local steps per round: a number, one per agent, `fp.steps.Epochs` or
            `fp.steps.Stragglers`.
        momentum: local momentum, its buffer zeroed every round.
        pull: proximal term (pull/2)|y - w|^2.
        decay: factor on the step after each local step.
        effective: $\tau_{\text{eff}}$; None takes the mean length of those heard. With few participants of unequal
            lengths that gives agents more weight in rounds with long ones, and moves the limit; a number does not.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [1.0]])
    >>> nova = fp.FedNova(step=0.01, local_steps=[1, 20])
    >>> fp.run(nova, quad, rounds=2000).model[0].round(2)                    # w* = 0.5, up to O(step)
    array([0.48])
    >>> avg = fp.FedAvg(step=0.01, local_steps=[1, 20], normalise=False)
    >>> fp.run(avg, quad, rounds=2000).model[0].round(2)                     # drawn to the agent with more steps
    array([0.95])

    References: Wang et al. (2020).
    """

    card = Card(
        name="fednova",
        title="FedNova",
        summary="normalises each agent's change by its number of local steps",
        lecture="002 (FedNova)",
        references=(WANG_NOVA,),
        limit="w* up to O(step), also with unequal local steps",
        fails="long local steps, which leave a bias of the order of the step; few participants with unequal numbers "
        "of local steps",
    )
    exact_moments = True

    step: Step = positive(per_agent=True, scheduled=True)
    local_steps: LocalSteps = counts()
    momentum: float = nonnegative(default=0.0, below=1.0)
    pull: float = nonnegative(default=0.0)
    decay: float = positive(default=1.0)
    effective: float | None = positive(default=None)

    def alike(self) -> bool:
        return self.decay == 1.0

    def divides(self) -> bool:
        return True

    def init(self, w: Model) -> tuple[State, State]:
        return w, ()

    def local(self, w: Model, memory: State, agent: Agent) -> tuple[Message, State]:
        direction, length = accumulate(self, w, agent)
        step = at(self.step, agent.round * agent.steps(self.local_steps))
        return Normalised(direction * step, length), memory

    def combine(self, w: Model, inbox: Inbox) -> Model:
        effective = mean_length(inbox) if self.effective is None else self.effective
        return w - effective * inbox.mean.direction

    def forms(self) -> Mapping[str, Form]:
        return {"fixed_point": fixed_point, "bias": bias, "rate": rate}


# What theory says, in closed form: on problems whose fields are affine, for constant steps.


def fixed_point(algorithm: FedNova, problem: Problem, participation: Who = None) -> np.ndarray | None:
    r"""$[\sum_k p_k M_k H_k / |a_k|_1]^{-1} \sum_k p_k M_k A_k^\top b_k / |a_k|_1$, $M_k g_k(w)$ the local change; for
    plain steps $M_k = \eta \sum_{e<\tau_k} (I - \eta H_k)^e$ and $|a_k|_1 = \tau_k$.

    On $|x - e_k|^2/2$ that weighs agents by $p_k (1 - (1 - \eta)^{\tau_k})/\tau_k$: w* up to O(step). For everyone; for
    another unbiased participation where lengths are equal or `effective` is given.
    """
    round = expected_round(algorithm, problem, participation, "fednova")
    return None if round is None else round.fixed_point()


def bias(algorithm: FedNova, problem: Problem, participation: Who = None) -> np.ndarray | None:
    """The fixed point minus w*."""
    return linear.away(fixed_point(algorithm, problem, participation), problem)


def rate(algorithm: FedNova, problem: Problem, participation: Who = None) -> float | None:
    r"""The mean's factor per round: the spectral radius of $I - \tau_{\text{eff}} \sum_k p_k M_k H_k / |a_k|_1$."""
    round = expected_round(algorithm, problem, participation, "fednova")
    return None if round is None else round.rate()
