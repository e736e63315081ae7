"""FedNova: local changes normalised by the agent's own length before they are averaged. Lecture 002."""

from typing import Any

from fedpoint.algorithms.general_rule import Normalised, accumulate, mean_length
from fedpoint.algorithms.references import WANG_NOVA
from fedpoint.core.algorithm import Card, algorithm, counts, nonnegative, positive
from fedpoint.core.steps import at


@algorithm(
    Card(
        name="fednova",
        title="FedNova",
        summary="normalises each agent's change by its number of local steps",
        lecture="002 (FedNova)",
        references=(WANG_NOVA,),
        limit="w* up to O(step), also with unequal local steps",
    )
)
class FedNova:
    r"""FedNova: the general update rule with $w_k = p_k$ and $\tau_{\text{eff}} = \sum_j p_j |a_j|_1$.

    $$w^+ = w - \tau_{\text{eff}} \sum_k v_k\, \frac{w - x_{k,\tau_k}}{|a_k|_1}$$

    $|a|_1$ is that of the local solver: $\tau$ for plain steps,
    $(\tau - \rho(1-\rho^\tau)/(1-\rho))/(1-\rho)$ for momentum $\rho$,
    $(1-(1-\eta\,\text{pull})^\tau)/(\eta\,\text{pull})$ for a proximal term.

    Args:
        step: $\eta$, the local step itself. local_steps: $\tau_k$.
        momentum: local momentum, its buffer zeroed every round. pull: proximal term (pull/2)|y - w|^2.
        decay: factor on the step after each local step.
        effective: $\tau_{\text{eff}}$; None takes the mean length of those heard.

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

    step: Any = positive(per_agent=True, scheduled=True)
    local_steps: Any = counts()
    momentum: float = nonnegative(default=0.0, below=1.0)
    pull: float = nonnegative(default=0.0)
    decay: float = positive(default=1.0)
    effective: float | None = positive(default=None)

    def init(self, w):
        return w, ()

    def local(self, w, memory, agent):
        direction, length = accumulate(self, w, agent)
        step = at(self.step, agent.round * agent.steps(self.local_steps))
        return Normalised(direction * step, length), memory

    def combine(self, w, inbox):
        effective = mean_length(inbox) if self.effective is None else self.effective
        return w - effective * inbox.mean.direction
