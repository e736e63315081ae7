"""FedExP: FedAvg with a server step that adapts to how far the agents' changes disagree. Jhunjhunwala et al. (2023)."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from fedpoint.algorithms.references import JHUNJHUNWALA
from fedpoint.core.agent import Agent, descend
from fedpoint.core.algorithm import Algorithm, Card
from fedpoint.core.inbox import Inbox
from fedpoint.core.settings import counts, positive
from fedpoint.core.steps import LocalSteps
from fedpoint.core.types import Message, Model, Number, State
from fedpoint.core.vector import square


class Measured(NamedTuple):
    """A change, and its squared length."""

    change: Model
    length: Number


class FedExP(Algorithm):
    r"""FedExP, federated averaging with an extrapolated server step.

    $$\Delta_k = y_k - w, \qquad \eta = \max(1,
      \frac{\sum_k v_k |\Delta_k|^2}{2 (|\sum_k v_k \Delta_k|^2 + e)}), \qquad
      w^+ = w + \eta \sum_k v_k \Delta_k$$

    with $y_k$ after $E_k$ local steps. Where one model suits all agents, changes vanish together and $\eta$ stays
    bounded: it is FedAvg with longer steps. Where agents differ, the mean change vanishes at FedAvg's point while
    single ones do not: $\eta$ grows up to $\sum_k v_k |\Delta_k|^2 / (2e)$ there, and the model is thrown off
    again. The update has no derivative to speak of at that point, so there is no forecast. `FedOpt(server="sgd",
    server_step=...)` extrapolates by a constant, which has one.

    Args:
        step: the local step: a number, or one per agent.
        local_steps: $E_k$, local steps per round: a number, one per agent, `fp.steps.Epochs` or `fp.steps.Stragglers`.
        adaptivity: $e$, which bounds the server step where changes vanish.

    >>> import numpy as np
    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([np.diag(part) for part in np.eye(4)], np.ones((4, 4)))  # each knows a quarter
    >>> plain, longer = (fp.run(m(step=0.5), quad, rounds=20).error[0, -1] for m in (fp.FedAvg, fp.FedExP))
    >>> bool(longer < plain)
    True

    References: Jhunjhunwala, Wang and Joshi (2023).
    """

    card = Card(
        name="fedexp",
        title="FedExP",
        summary="FedAvg with a server step that adapts to how far agents' changes disagree",
        lecture="",
        references=(JHUNJHUNWALA,),
        limit="FedAvg's where one model suits all agents; else it does not settle",
        fails="agents that differ: near FedAvg's point its server step grows without bound, and it never settles",
    )
    exact_moments = True

    step: Number = positive(per_agent=True)
    local_steps: LocalSteps = counts()
    adaptivity: float = positive(default=1e-3)

    def adaptive(self) -> bool:
        return True

    def divides(self) -> bool:
        return True

    def why_no_forecast(self) -> str:
        return (
            "FedExP has no forecast: near its fixed point the mean change vanishes and the changes of single agents do "
            "not, so that its server step grows without bound and the round has no derivative there. Forecast a "
            'constant extrapolation instead: FedOpt(server="sgd", server_step=...)'
        )

    def init(self, w: Model) -> tuple[State, State]:
        return w, ()

    def local(self, w: Model, memory: State, agent: Agent) -> tuple[Message, State]:
        y = descend(agent, w, agent.steps(self.local_steps), lambda y, e: y - self.step * agent.field(y, e))
        return Measured(y - w, square(y - w)), memory

    def combine(self, w: Model, inbox: Inbox) -> Model:
        change, length = inbox.mean
        return w + change * jnp.maximum(1.0, length / (2 * (square(change) + self.adaptivity)))
