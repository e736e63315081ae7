"""FedProx: local steps held back by a proximal term, or the proximal problem solved exactly. Lecture 003."""

from typing import Any

from fedpoint.algorithms.references import LI_PROX
from fedpoint.core.agent import descend
from fedpoint.core.algorithm import Card, algorithm, counts, nonnegative, positive
from fedpoint.core.steps import at
from fedpoint.errors import FedpointError


@algorithm(
    Card(
        name="fedprox",
        title="FedProx",
        summary="local steps held near the received model by a proximal term; stragglers may stop early",
        lecture="003 (FedProx)",
        references=(LI_PROX,),
        limit="biased when agents differ; the less the larger the pull",
    )
)
class FedProx:
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

    step: Any = positive(default=None, per_agent=True, scheduled=True)
    local_steps: Any = counts()
    pull: float = nonnegative(default=0.1)
    exact: bool = False

    def check(self):
        if self.step is None and not self.exact:
            raise FedpointError("FedProx: give step=, or exact=True")
        if self.exact and self.pull == 0:
            raise FedpointError("FedProx: exact=True needs a pull above 0, or the local problem may have no solution")

    def init(self, w):
        return w, ()

    def local(self, w, memory, agent):
        if self.exact:
            return agent.prox(w, self.pull / 2) - w, memory
        steps = agent.steps(self.local_steps)

        def advance(y, e):
            rate = at(self.step, agent.round * steps + e)
            return y - rate * (agent.field(y, e) + self.pull * (y - w))

        return descend(agent, w, steps, advance) - w, memory

    def combine(self, w, inbox):
        return w + inbox.mean
