"""FedProx: local steps held back by a proximal term, or the proximal problem solved exactly. Lecture 003."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedpoint.algorithms.references import LI_PROX
from fedpoint.closed import linear
from fedpoint.core.agent import Agent, descend
from fedpoint.core.algorithm import Algorithm, Card
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.settings import counts, nonnegative, positive
from fedpoint.core.steps import LocalSteps, Step, at
from fedpoint.core.types import Form, Message, Model, Number, State
from fedpoint.problems.base import Problem


class FedProx(Algorithm):
    r"""FedProx.

    $$\min_v f_k(v) + \frac{\text{pull}}{2} |v - w|^2, \qquad w^+ = w + \sum_k v_k (v_k^\star - w)$$

    by $E_k$ steps $y \leftarrow y - \mu (\hat g_k(y) + \text{pull}\,(y - w))$, or exactly. Lecture 003 writes
    $(1/\eta)|v - w|^2$: pull $= 2/\eta$. The term is squared, so its gradient is pull $(y - w)$.

    Args:
        step: $\mu$, the local step itself; not used when exact.
        pull: Li et al.'s $\mu$; 0 is FedAvg with `normalise=False`.
        local_steps: a number, one per agent, `Epochs`, or `Stragglers` that stop early.
        exact: solve the local problem exactly (closed form for quadratics, else Newton's method to rounding).

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 3.0], [[0.0], [1.0]])
    >>> fp.run(fp.FedProx(pull=1.0, exact=True), quad, rounds=60).model[0].round(4)   # mean of 1/2 and 3/4, weighted
    array([0.6])

    References: Li et al., Federated optimization in heterogeneous networks (2020).
    """

    card = Card(
        name="fedprox",
        title="FedProx",
        summary="local steps held near the received model by a proximal term; stragglers may stop early",
        lecture="003 (FedProx)",
        references=(LI_PROX,),
        limit="biased when agents differ; less so with a larger pull",
        fails="as a cure for drift: the pull slows convergence and moves the limit, but removes no bias by itself",
    )
    exact_moments = True
    merges = True

    step: Step | None = positive(default=None, per_agent=True, scheduled=True)
    local_steps: LocalSteps = counts()
    pull: float = nonnegative(default=0.1)
    exact: bool = False

    def check(self) -> None:
        if self.step is None and not self.exact:
            raise FedpointError("FedProx: give step=, or exact=True")
        if self.exact and self.pull == 0:
            raise FedpointError("FedProx: exact=True needs a pull above 0, or the local problem may have no solution")

    @property
    def proximal(self) -> bool:  # type: ignore[override]
        return self.exact

    def alike(self) -> bool:
        return True

    def init(self, w: Model) -> tuple[State, State]:
        return w, ()

    def base(self, w: Model) -> Model:
        return w

    def local(self, w: Model, memory: State, agent: Agent) -> tuple[Message, State]:
        step, steps = self.step, agent.steps(self.local_steps)
        if step is None or self.exact:
            return agent.prox(w, self.pull / 2) - w, memory

        def advance(y: Model, e: Number) -> Model:
            rate = at(step, agent.round * steps + e)
            return y - rate * (agent.field(y, e) + self.pull * (y - w))

        return descend(agent, w, steps, advance) - w, memory

    def combine(self, w: Model, inbox: Inbox) -> Model:
        return w + inbox.mean

    def forms(self) -> Mapping[str, Form]:
        return {
            "fixed_point": fixed_point,
            "bias": bias,
            "rate": rate,
            "stability": stability,
            "stability_by_agent": stability_by_agent,
        }


# What theory says, in closed form: on problems whose fields are affine, for constant steps.


def expected_round(algorithm: FedProx, problem: Problem) -> linear.AffineRound | None:
    """Agents end at w - M_k g_k(w): M_k = (H_k + pull I)^-1 exactly, else a sum over the local steps."""
    fields = problem.linear_fields()
    if fields is None:
        return None
    A = fields[0]
    if algorithm.exact:
        return linear.averaged(problem, np.linalg.inv(A + algorithm.pull * np.eye(A.shape[-1])))
    setting = linear.local(algorithm, problem)
    return None if setting is None else linear.averaged(problem, linear.descent(A, setting, pull=algorithm.pull))


def fixed_point(algorithm: FedProx, problem: Problem) -> np.ndarray | None:
    r"""$[\sum_k p_k M_k H_k]^{-1} \sum_k p_k M_k A_k^\top b_k$, with $M_k = (H_k + \text{pull}\,I)^{-1}$ when exact and
    $M_k = \mu \sum_{e<E_k} (I - \mu (H_k + \text{pull}\,I))^e$ by steps; any unbiased participation.

    On $|x - e_k|^2/2$ that weighs agents by $p_k (1 - (1 - \mu(1 + \text{pull}))^{E_k})/(1 + \text{pull})$, exactly by
    $p_k$.
    """
    round = expected_round(algorithm, problem)
    return None if round is None else round.fixed_point()


def bias(algorithm: FedProx, problem: Problem) -> np.ndarray | None:
    """The fixed point minus w*."""
    return linear.away(fixed_point(algorithm, problem), problem)


def rate(algorithm: FedProx, problem: Problem) -> float | None:
    r"""The factor of the mean per round: the spectral radius of $I - \sum_k p_k M_k H_k$."""
    round = expected_round(algorithm, problem)
    return None if round is None else round.rate()


def stability(algorithm: FedProx, problem: Problem) -> float | None:
    r"""$2/(\max_k \lambda_{\max}(H_k) + \text{pull})$: below it exact fields converge; no step is taken when exact."""
    each = stability_by_agent(algorithm, problem)
    return None if each is None else float(each.min())


def stability_by_agent(algorithm: FedProx, problem: Problem) -> np.ndarray | None:
    r"""(K,): the step at which an agent's own local steps begin to grow, $2/(\lambda_{\max}(H_k) + \text{pull})$."""
    if algorithm.exact or not (problem.linear and problem.convex) or linear.local(algorithm, problem) is None:
        return None
    return linear.limits(problem, algorithm.pull)
