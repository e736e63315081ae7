"""pFedMe: agents agree on the minimum of their Moreau envelopes, and each takes its own proximal point of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.algorithms.beside import OwnModels, held
from fedpoint.algorithms.references import DINH
from fedpoint.closed import linear
from fedpoint.core.agent import Agent, descend
from fedpoint.core.algorithm import Card
from fedpoint.core.inbox import Inbox
from fedpoint.core.settings import counts, positive
from fedpoint.core.steps import LocalSteps
from fedpoint.core.types import Form, Message, Model, Number
from fedpoint.problems.base import Problem

if TYPE_CHECKING:
    from fedpoint.graphs.network import Network


class PFedMe(OwnModels):
    r"""pFedMe.

    $$\theta_k = \arg\min_\theta f_k(\theta) + \frac{\text{pull}}{2} |\theta - w_k|^2, \qquad
      w_k \leftarrow w_k - \eta\,\text{pull}\,(w_k - \theta_k), \qquad w^+ = w + \beta \sum_k v_k (w_k - w)$$

    from $w_k = w$: gradient steps on the Moreau envelope of f_k, whose gradient is pull $(w - \theta_k)$. The last
    $\theta_k$ is the agent's model and stays with it.

    Args:
        step: $\eta$, one or one per agent.
        pull: $\lambda$ of the paper. The proximal problem is solved exactly (closed form for quadratics, else Newton's
            method to rounding).
        local_steps: $E_k$.
        server_step: $\beta$.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 1.0], [[0.0], [2.0]])
    >>> fp.run(fp.PFedMe(step=0.5, pull=1.0), quad, rounds=100).models[0].round(4)
    array([[0.5],
           [1.5]])

    References: T. Dinh et al. (2020).
    """

    card = Card(
        name="pfedme",
        title="pFedMe",
        summary="gradient steps on the agents' Moreau envelopes; an agent's model is its own proximal point",
        lecture="",
        references=(DINH,),
        limit="with one local step the minimum of the envelopes, and its proximal points; with several biased, as "
        "FedAvg is",
        fails="several local steps, which drift; proximal problems of large networks, which are solved exactly here",
    )
    exact_moments = True
    proximal = True
    full = True  # a proximal point is of exact fields
    goal = "each agent's proximal point of the envelopes' minimum"

    step: Number = positive(per_agent=True)
    pull: float = positive(default=1.0)
    local_steps: LocalSteps = counts()
    server_step: float = positive(default=1.0)

    def alike(self) -> bool:
        return True

    def base(self, w: Model) -> Model:
        return w

    def local(self, w: Model, theta: Model, agent: Agent) -> tuple[Message, Model]:
        def advance(state: tuple[Model, Model], e: Number) -> tuple[Model, Model]:
            y, _ = state
            theta = agent.prox(y, self.pull / 2)
            return y - self.step * self.pull * (y - theta), theta

        y, theta = descend(agent, (w, theta), agent.steps(self.local_steps), advance)
        return y - w, theta

    def combine(self, w: Model, inbox: Inbox) -> Model:
        return w + self.server_step * inbox.mean

    def aim(self, problem: Problem, network: Network | None) -> Model | None:
        return held(problem, least_envelope(self, problem), self.pull)

    def why_no_aim(self, problem: Problem, network: Network | None) -> str:
        return "the envelopes' minimum is known only for linear problems, and only where it is unique"

    def forms(self) -> Mapping[str, Form]:
        return {"fixed_point": fixed_point, "rate": rate}


# What theory says, in closed form: on problems whose fields are affine, for constant steps.


def envelopes(algorithm: PFedMe, problem: Problem) -> tuple[np.ndarray, np.ndarray] | None:
    r"""$T_k = \text{pull}\,(A_k + \text{pull}\,I)^{-1}$ and $T_k A_k$: an envelope's gradient is
    $T_k (A_k w - b_k)$."""
    fields = problem.linear_fields()
    if fields is None:
        return None
    A, eye = fields[0], np.eye(fields[0].shape[-1])
    T = algorithm.pull * np.linalg.inv(A + algorithm.pull * eye)
    return T, T @ A


def least_envelope(algorithm: PFedMe, problem: Problem) -> np.ndarray | None:
    """Where the envelopes' mean gradient vanishes."""
    found = envelopes(algorithm, problem)
    return None if found is None else linear.averaged(problem, found[0]).fixed_point()


def expected_round(algorithm: PFedMe, problem: Problem) -> linear.AffineRound | None:
    r"""$w^+ = w - \beta \sum_k p_k P_k T_k (A_k w - b_k)$, $P_k = \eta \sum_{e<E_k} (I - \eta T_k A_k)^e$."""
    found, setting = envelopes(algorithm, problem), linear.local(algorithm, problem)
    if found is None or setting is None:
        return None
    return linear.averaged(problem, algorithm.server_step * linear.descent(found[1], setting) @ found[0])


def fixed_point(algorithm: PFedMe, problem: Problem) -> np.ndarray | None:
    r"""(K, d): $\theta_k$ of the last local step from the round's fixed point w,
    $(A_k + \text{pull}\,I)^{-1} (b_k + \text{pull}\,y_k)$ with $y_k$ after $E_k - 1$ steps."""
    found, setting = envelopes(algorithm, problem), linear.local(algorithm, problem)
    round = expected_round(algorithm, problem)
    if found is None or setting is None or setting.counts is None or round is None:
        return None
    w = round.fixed_point()
    if w is None:
        return None
    before = linear.LocalWork(setting.step, [(1.0, setting.counts - 1)])
    y = w - np.einsum("kij,kj->ki", linear.descent(found[1], before) @ found[0], round.A @ w - round.b)
    return held(problem, y, algorithm.pull)


def rate(algorithm: PFedMe, problem: Problem) -> float | None:
    r"""The spectral radius of $I - \beta \sum_k p_k P_k T_k A_k$."""
    round = expected_round(algorithm, problem)
    return None if round is None else round.rate()
