"""Scaffnew (ProxSkip): a random number of corrected local steps, then the mean. Lecture 001's table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.algorithms.references import MISHCHENKO
from fedpoint.closed import linear
from fedpoint.core.agent import Agent, descend
from fedpoint.core.algorithm import Algorithm, Card, Outcomes
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import Row
from fedpoint.core.record import with_leaves
from fedpoint.core.settings import counts, positive
from fedpoint.core.types import Form, Message, Model, Number, State
from fedpoint.core.vector import zeros
from fedpoint.problems.base import Problem


def geometric_nodes(p: float, tolerance: float = 1e-11) -> Outcomes:
    """A few values of H and weights with sum w_i x^H_i = E x^H for -1 <= x <= 1: a quadrature for Geometric(p).

    A round is a polynomial in powers of H of the local steps' eigenvalues, so that few of the many values of H do:
    where these are real. Fields that are no gradients have complex ones, and need `geometric_values`.
    """
    from scipy.optimize import nnls

    longest = 1 if p >= 1 else max(2, int(np.ceil(np.log(tolerance * 1e-2) / np.log1p(-p))))
    spaced = np.geomspace(1, longest, 300).round().astype(int)
    values = np.unique(np.concatenate([np.arange(1, min(longest, 40) + 1), spaced]))
    x = np.concatenate([np.cos(np.linspace(0, np.pi, 400)), 1 - np.geomspace(1e-8, 1, 200)])
    exact = p * x / (1 - (1 - p) * x)
    weights, _ = nnls(x[:, None] ** values, exact, maxiter=20000)
    weights /= weights.sum()
    if np.abs(x[:, None] ** values @ weights - exact).max() > 1e-8:
        values = np.arange(1, longest + 1)
        weights = p * (1 - p) ** (values - 1.0)
        weights /= weights.sum()
    some = weights > 0
    return Outcomes(values[some].astype(np.int32), weights[some])


def geometric_values(p: float, tolerance: float = 1e-12) -> Outcomes:
    """All values of H but the rarest, of total probability `tolerance`, and their probabilities."""
    longest = 1 if p >= 1 else max(2, int(np.ceil(np.log(tolerance) / np.log1p(-p))))
    values = np.arange(1, longest + 1)
    weights = p * (1 - p) ** (values - 1.0) if p < 1 else np.ones(1)
    return Outcomes(values.astype(np.int32), weights / weights.sum())


class Corrected(NamedTuple):
    """An agent's correction h and where its last local steps ended: h is completed by the merged model."""

    h: Model
    x: Model


class Scaffnew(Algorithm):
    r"""Scaffnew, or ProxSkip for consensus, told by rounds.

    The hub draws $H \sim$ Geometric($p$) on 1, 2, ..., the same for all agents, and sends it with the model:

    $$x \leftarrow x - \gamma (\hat g_k(x) - h_k) \quad (H \text{ times}), \qquad w^+ = \sum_k p_k x_k, \qquad
      h_k \leftarrow h_k + \frac{p}{\gamma} (w^+ - x_k).$$

    $h_k$ is completed when the agent hears $w^+$; $\sum_k p_k h_k = 0$ always. With exact fields, $\gamma \le 1/L$:
    $\Psi = \sum_k |x_k - w^\star|^2 + (\gamma/p)^2 \sum_k |h_k - g_k(w^\star)|^2$ contracts by
    $1 - \min(\gamma\mu, p^2)$ per local step in expectation.

    Args:
        step: $\gamma$, the local step: one number for all agents.
        probability: $p$ of communicating after a step; $1/\sqrt\kappa$ is the best order.
        local_steps: a fixed H instead of the random one ($p$ stays in the correction; 1/H if not given).

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> bool(fp.run(fp.Scaffnew(step=0.5, probability=0.5), quad, rounds=200).error[0, -1] < 1e-20)
    True

    References: Mishchenko et al. (2022).
    """

    card = Card(
        name="scaffnew",
        title="Scaffnew",
        summary="a random number of corrected local steps, the same for all; accelerated communication; ScaffLSA",
        lecture="001 (table)",
        references=(MISHCHENKO,),
        limit="w*",
        fails="agents that do not answer: corrections lose their balance; steps above 1/L",
        restriction="its corrections stay balanced (sum p_k h_k = 0) only when everyone answers in every round",
    )
    exact_moments = True

    step: float = positive()
    probability: float | None = positive(default=None)
    local_steps: int | None = counts(default=None, per_agent=False)

    @property
    def unbounded(self) -> bool:  # type: ignore[override]
        return self.local_steps is None

    def check(self) -> None:
        if self.probability is None and self.local_steps is None:
            raise FedpointError("Scaffnew: give probability=, or a fixed local_steps=")
        if self.probability is not None and self.probability > 1:
            raise FedpointError(f"Scaffnew: probability must be at most 1, got {self.probability}")

    def chance(self) -> float:
        """p."""
        if self.probability is not None:
            return self.probability
        assert self.local_steps is not None  # checked: one of them is given
        return 1.0 / self.local_steps

    def alike(self) -> bool:
        return True

    def corrects_descent(self) -> bool:
        return self.local_steps is not None and bool(np.isclose(self.chance() * self.local_steps, 1.0, rtol=1e-12))

    def outcomes(self) -> Outcomes | None:
        return None if self.local_steps is not None else geometric_values(float(self.chance()))

    def gradient_outcomes(self) -> Outcomes | None:
        return None if self.local_steps is not None else geometric_nodes(float(self.chance()))

    def given(self, value: Number) -> Self:
        return with_leaves(self, {"local_steps": value, "probability": self.chance()})

    def init(self, w: Model) -> tuple[State, State]:
        return w, Corrected(zeros(w), w)

    def say(self, w: Model, row: Row) -> tuple[Model, Number]:
        if self.local_steps is not None:
            return w, self.local_steps
        # Geometric on 1, 2, ... by inversion; log1p(-1) = -inf gives 1 for p = 1.
        skip = jnp.floor(jnp.log(row.uniform()) / jnp.log1p(-self.chance()))
        return w, 1 + skip.astype(jnp.int32)

    def settle(self, w: Model, memory: Corrected) -> Corrected:
        h = memory.h + (self.chance() / self.step) * (w - memory.x)
        return Corrected(h, w)

    def begun_from(self, heard: tuple[Model, Number], memory: State) -> Model:
        return heard[0]

    def local(self, heard: tuple[Model, Number], memory: Corrected, agent: Agent) -> tuple[Message, Corrected]:
        w, steps = heard
        h = self.settle(w, memory).h
        x = descend(agent, w, steps, lambda x, e: x - self.step * (agent.field(x, e) - h))
        return x - w, Corrected(h, x)

    def acknowledge(self, memory: Corrected, sent: Message, credited: Message) -> Corrected:
        return Corrected(memory.h, memory.x + (credited - sent))

    def remembered(self, heard: tuple[Model, Number], memory: Corrected, arrived: Message) -> Corrected:
        return Corrected(self.settle(heard[0], memory).h, heard[0] + arrived)

    def combine(self, w: Model, inbox: Inbox) -> Model:
        return w + inbox.mean

    def invariants(self, hub: State, memory: State, p: np.ndarray) -> dict[str, State]:
        return {"sum p_k h_k = 0": jax.tree.map(lambda h: jnp.einsum("k,rk...->r...", p, h), memory.h)}

    def forms(self) -> Mapping[str, Form]:
        return {
            "fixed_point": fixed_point,
            "bias": bias,
            "rate_bound": rate_bound,
            "rate_bound_round": rate_bound_round,
        }


# What theory says, in closed form.


def fixed_point(algorithm: Scaffnew, problem: Problem) -> np.ndarray | None:
    """w*, on every problem, from its usual start h_k = 0."""
    return linear.solution(problem)


def bias(algorithm: Scaffnew, problem: Problem) -> np.ndarray | None:
    """None to speak of: the fixed point is w*."""
    return linear.away(fixed_point(algorithm, problem), problem)


def rate_bound(algorithm: Scaffnew, problem: Problem) -> float | None:
    r"""$1 - \min(\gamma\mu, p^2)$: a bound for the factor of $E\Psi$ per **local step**, the coin included.

    $\Psi = \sum_k p_k |x_k - w^\star|^2 + (\gamma/p)^2 \sum_k p_k |h_k - g_k(w^\star)|^2$ is squared: distances shrink
    by the root. For exact fields, the random number of local steps, $\mu$-strongly convex and L-smooth agents and
    $\gamma \le 1/L$; None otherwise (Mishchenko et al., 2022, theorem 3.6).
    """
    constants = problem.constants()
    if algorithm.local_steps is not None or constants.nu_k is None or constants.delta_k is None:
        return None
    strong, smooth = float(np.min(constants.nu_k)), float(np.max(constants.delta_k))
    if not strong > 0 or algorithm.step * smooth > 1 + 1e-12:
        return None
    return 1 - min(algorithm.step * strong, algorithm.chance() ** 2)


def rate_bound_round(algorithm: Scaffnew, problem: Problem) -> float | None:
    r"""`rate_bound` to the power 1/p: a bound for the factor of $\Psi$ **per round in the long run**, almost surely.

    With $\rho$ the factor per local step, $\Psi_t \rho^{-t}$ is a supermartingale, so that $\Psi_t$ is almost surely
    $O(\rho^t)$; n rounds are about n/p local steps. It is no bound for the mean over one round: rounds that happen to
    be short weigh more in a mean, and all that follows for it is $E\Psi_{\text{round}} \le \rho\,\Psi$.
    """
    step = rate_bound(algorithm, problem)
    return None if step is None else step ** (1 / algorithm.chance())
