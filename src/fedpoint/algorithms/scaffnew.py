"""Scaffnew (ProxSkip): a random number of corrected local steps, then the mean. Lecture 001's table."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedpoint.algorithms.references import MISHCHENKO
from fedpoint.core.agent import descend
from fedpoint.core.algorithm import Card, algorithm, counts, positive
from fedpoint.core.vector import zeros
from fedpoint.errors import FedpointError


class Corrected(NamedTuple):
    """An agent's correction h and where its last local steps ended: h is completed by the merged model."""

    h: Any
    x: Any


@algorithm(
    Card(
        name="scaffnew",
        title="Scaffnew",
        summary="a random number of corrected local steps, the same for all; accelerated communication",
        lecture="001 (table)",
        references=(MISHCHENKO,),
        limit="w*",
        participation=("Everyone",),
        restriction="its corrections stay balanced (sum p_k h_k = 0) only when everyone answers in every round",
    )
)
class Scaffnew:
    r"""Scaffnew, or ProxSkip for consensus, told by rounds.

    The hub draws $H \sim$ Geometric($p$) on 1, 2, ..., the same for all agents, and sends it with the model:

    $$x \leftarrow x - \gamma (\hat g_k(x) - h_k) \quad (H \text{ times}), \qquad w^+ = \sum_k p_k x_k, \qquad
      h_k \leftarrow h_k + \frac{p}{\gamma} (w^+ - x_k).$$

    $h_k$ is completed when the agent hears $w^+$; $\sum_k p_k h_k = 0$ always. With exact fields, $\gamma \le 1/L$:
    $\Psi = \sum_k |x_k - w^\star|^2 + (\gamma/p)^2 \sum_k |h_k - g_k(w^\star)|^2$ contracts by
    $1 - \min(\gamma\mu, p^2)$ per local step in expectation.

    Args:
        step: $\gamma$. probability: $p$ of communicating after a step; $1/\sqrt\kappa$ is the best order.
        local_steps: a fixed H instead of the random one ($p$ stays in the correction; 1/H if not given).

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> bool(fp.run(fp.Scaffnew(step=0.5, probability=0.5), quad, rounds=200).error[0, -1] < 1e-20)
    True

    References: Mishchenko et al. (2022).
    """

    step: float = positive()
    probability: float | None = positive(default=None)
    local_steps: int | None = counts(default=None, per_agent=False)

    @property
    def unbounded(self):
        return self.local_steps is None

    def check(self):
        if self.probability is None and self.local_steps is None:
            raise FedpointError("Scaffnew: give probability=, or a fixed local_steps=")
        if self.probability is not None and self.probability > 1:
            raise FedpointError(f"Scaffnew: probability must be at most 1, got {self.probability}")

    def _probability(self):
        return self.probability if self.local_steps is None or self.probability is not None else 1.0 / self.local_steps

    def init(self, w):
        return w, Corrected(zeros(w), w)

    def say(self, w, row):
        if self.local_steps is not None:
            return w, self.local_steps
        # Geometric on 1, 2, ... by inversion; log1p(-1) = -inf gives 1 for p = 1.
        skip = jnp.floor(jnp.log(row.uniform()) / jnp.log1p(-self._probability()))
        return w, 1 + skip.astype(jnp.int32)

    def settle(self, w, memory):
        h = memory.h + (self._probability() / self.step) * (w - memory.x)
        return Corrected(h, w)

    def local(self, heard, memory, agent):
        w, steps = heard
        h = self.settle(w, memory).h
        x = descend(agent, w, steps, lambda x, e: x - self.step * (agent.field(x, e) - h))
        return x - w, Corrected(h, x)

    def combine(self, w, inbox):
        return w + inbox.mean
