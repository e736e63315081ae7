"""FedAvg, or local SGD: several local steps, then the mean. Lecture 000, (57)-(59), (72); lecture 004, (2)-(6)."""

from typing import Any

from fedpoint.algorithms.references import LI_CONVERGENCE, MCMAHAN
from fedpoint.core.agent import descend
from fedpoint.core.algorithm import Card, algorithm, counts, positive
from fedpoint.core.steps import at
from fedpoint.core.vector import unwrap, wrap


def local_descent(self, w, agent, rate):
    """E_k steps y <- y - rate(e, E_k) g_k(y; z_e) from w; with an optax transformation of the gradients where given."""
    steps = agent.steps(self.local_steps)
    if self.optimiser is None:
        return descend(agent, w, steps, lambda y, e: y - rate(e, steps) * agent.field(y, e))

    def advance(state, e):
        y, memory = state
        update, memory = self.optimiser.update(unwrap(agent.field(y, e)), memory, unwrap(y))
        return y - rate(e, steps) * wrap(update), memory

    return descend(agent, (w, self.optimiser.init(unwrap(w))), steps, advance)[0]


@algorithm(
    Card(
        name="fedavg",
        title="FedAvg",
        summary="several local steps between rounds, then the mean",
        lecture="000 (57)-(59), 004 (2)-(6)",
        references=(MCMAHAN, LI_CONVERGENCE),
        limit="biased when agents differ and E > 1",
    )
)
class FedAvg:
    r"""Federated averaging (local SGD).

    $$\phi_{k,0} = w, \qquad \phi_{k,e} = \phi_{k,e-1} - \mu_k\, \hat g_k(\phi_{k,e-1}; z_{k,e}), \qquad
      w^+ = w + \sum_k v_k (\phi_{k,E_k} - w)$$

    with a fresh sample at every step. Normalised steps $\mu_k = \mu/E_k$ (lecture 000, (72)) make one round worth
    one step of length $\mu$, whatever $E_k$; with `normalise=False` the local step is `step` itself.

    Args:
        step: $\mu$: a number, one per agent, or a schedule over gradient steps t = round E + e
            (`InverseTime.lecture004` for lecture 004's theorem).
        local_steps: $E_k$: a number, one per agent, `Epochs` or `Stragglers`.
        normalise: divide the step by $E_k$.
        optimiser: an optax gradient transformation for the local steps, reset every round
            (`optax.trace(0.9)`, `optax.scale_by_adam()`).

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> bool(fp.run(fp.FedAvg(step=0.5, local_steps=5), quad, rounds=100).error[0, -1] > 1e-4)   # biased
    True
    >>> bool(fp.run(fp.FedAvg(step=0.5, local_steps=1), quad, rounds=100).error[0, -1] < 1e-20)  # not with E = 1
    True

    References: McMahan et al. (2017); Li et al. (2020).
    """

    step: Any = positive(per_agent=True, scheduled=True)
    local_steps: Any = counts()
    normalise: bool = True
    optimiser: Any = None

    def init(self, w):
        return w, ()

    def local(self, w, memory, agent):
        def rate(e, steps):
            step = at(self.step, agent.round * steps + e)
            return step / steps if self.normalise else step

        return local_descent(self, w, agent, rate) - w, memory

    def combine(self, w, inbox):
        return w + inbox.mean
