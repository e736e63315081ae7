"""FedAvg, or local SGD: several local steps, then the mean. Lecture 000, (57)-(59), (72); lecture 004, (2)-(6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedpoint.algorithms.references import LI_CONVERGENCE, MCMAHAN
from fedpoint.closed import linear
from fedpoint.closed.lms import lms_floor, lms_floor_small_step, where_covered
from fedpoint.core.agent import Agent, descend
from fedpoint.core.algorithm import Algorithm, Card
from fedpoint.core.inbox import Inbox
from fedpoint.core.record import untouched
from fedpoint.core.settings import counts, positive
from fedpoint.core.steps import LocalSteps, Step, at, most_steps
from fedpoint.core.types import Form, Message, Model, Number, Optimiser, State
from fedpoint.core.vector import unwrap, wrap
from fedpoint.problems.base import Problem
from fedpoint.timing.participation import Who

if TYPE_CHECKING:
    from fedpoint.algorithms.fedopt import FedOpt


def local_descent(self: FedAvg | FedOpt, w: Model, agent: Agent, rate: Callable[[Number, Number], Number]) -> Model:
    """E_k steps y <- y - rate(e, E_k) g_k(y; z_e) from w; with an optax transformation of the gradients where given."""
    steps = agent.steps(self.local_steps)
    optimiser = self.optimiser
    if optimiser is None:
        return descend(agent, w, steps, lambda y, e: y - rate(e, steps) * agent.field(y, e))

    def advance(state: tuple[Model, State], e: Number) -> tuple[Model, State]:
        y, memory = state
        update, memory = optimiser.update(unwrap(agent.field(y, e)), memory, unwrap(y))
        return y - rate(e, steps) * wrap(update), memory

    return descend(agent, (w, optimiser.init(unwrap(w))), steps, advance)[0]


class FedAvg(Algorithm):
    r"""Federated averaging (local SGD).

    $$\phi_{k,0} = w, \qquad \phi_{k,e} = \phi_{k,e-1} - \mu_k\, \hat g_k(\phi_{k,e-1}; z_{k,e}), \qquad
      w^+ = w + \sum_k v_k (\phi_{k,E_k} - w)$$

    with a fresh sample at every step. `step` is the local step itself, as in every method here; `normalise=True` takes
    $\mu_k = \mu/E_k$ (lecture 000, (72)), so that one round is worth one step of length $\mu$, whatever $E_k$.

    Args:
        step: $\mu$, the local step: a number, one per agent, or a schedule over gradient steps t = round E + e
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

    card = Card(
        name="fedavg",
        title="FedAvg",
        summary="several local steps between rounds, then the mean; FedLSA on linear systems",
        lecture="000 (57)-(59), 001, 004 (2)-(6)",
        references=(MCMAHAN, LI_CONVERGENCE),
        limit="biased when agents differ and E > 1",
        fails="agents that differ, with several local steps: the limit is off w*, the more the longer the steps; "
        "unequal numbers of local steps weight agents by their work",
    )
    exact_moments = True
    merges = True

    step: Step = positive(per_agent=True, scheduled=True)
    local_steps: LocalSteps = counts()
    normalise: bool = False
    optimiser: Optimiser | None = None

    def adaptive(self) -> bool:
        return self.optimiser is not None

    def alike(self) -> bool:
        return self.optimiser is None

    def averages_descent(self) -> bool:
        return self.optimiser is None

    def work_of_a_step(self) -> float | np.ndarray:
        return most_steps(self.local_steps).astype(float) if self.normalise else 1.0

    def farther(self, factor: float) -> Algorithm | None:
        """Constant extrapolation: w + factor sum v_k (y_k - w)."""
        from fedpoint.algorithms.fedopt import FedOpt  # which is made of FedAvg's local steps

        if self.normalise or not untouched(type(self), "farther", Algorithm):  # another update than FedAvg's
            return None
        return FedOpt(self.step, self.local_steps, "sgd", factor, optimiser=self.optimiser)

    def init(self, w: Model) -> tuple[State, State]:
        return w, ()

    def base(self, w: Model) -> Model:
        return w

    def _rate(self, agent: Agent) -> Callable[[Number, Number], Number]:
        """The length of the e-th of so many local steps."""

        def rate(e: Number, steps: Number) -> Number:
            step = at(self.step, agent.round * steps + e)
            return step / steps if self.normalise else step

        return rate

    def local(self, w: Model, memory: State, agent: Agent) -> tuple[Message, State]:
        return local_descent(self, w, agent, self._rate(agent)) - w, memory

    def combine(self, w: Model, inbox: Inbox) -> Model:
        return w + inbox.mean

    def forms(self) -> Mapping[str, Form]:
        return FORMS


# What theory says, in closed form: on problems whose fields are affine, for constant steps and plain local descent.


def expected_round(algorithm: FedAvg, problem: Problem, normalise: bool) -> linear.AffineRound | None:
    """The expected round of local descent and averaging; None for other fields, schedules and local optimisers."""
    setting = linear.local(algorithm, problem)
    if setting is None or algorithm.optimiser is not None or (fields := problem.linear_fields()) is None:
        return None
    return linear.averaged(problem, linear.descent(fields[0], setting, normalise))


def one_gradient_step(algorithm: FedAvg, problem: Problem) -> bool:
    """Whether a round is a step of gradient descent on the aggregate: E = 1 and one step for all."""
    setting = linear.local(algorithm, problem)
    if setting is None or setting.counts is None or algorithm.optimiser is not None:
        return False
    return bool((setting.counts == 1).all()) and linear.common(setting.step) is not None


def fixed_point(algorithm: FedAvg, problem: Problem) -> np.ndarray | None:
    r"""Lecture 004, (6): $[\sum_k p_k P_k H_k]^{-1} \sum_k p_k P_k A_k^\top b_k$,
    $P_k = s_k \sum_{e<E_k} (I - s_k H_k)^e$, with $s_k = \mu/E_k$ when normalised.

    For any unbiased participation. Stragglers enter by the mean of their $P_k$. With E = 1 it is w* on every problem.
    """
    if one_gradient_step(algorithm, problem):
        return linear.solution(problem)
    round = expected_round(algorithm, problem, algorithm.normalise)
    return None if round is None else round.fixed_point()


def bias(algorithm: FedAvg, problem: Problem) -> np.ndarray | None:
    """The fixed point minus w*: what local steps of different agents cost, lecture 004 after (6)."""
    return linear.away(fixed_point(algorithm, problem), problem)


def bias_small_step(algorithm: FedAvg, problem: Problem) -> np.ndarray | None:
    r"""The bias to first order in the step: for a common s and E,
    $\frac{s(E-1)}{2} \bar H^{-1} \sum_k p_k (H_k - \bar H)\, g_k(w^\star)$ (lecture 001's, on least squares).

    Unequal $s_k E_k$ also move the zeroth order, to the solution with weights proportional to $p_k s_k E_k$.
    """
    setting = linear.local(algorithm, problem)
    if setting is None or expected_round(algorithm, problem, algorithm.normalise) is None:
        return None
    return linear.away(linear.first_order(problem, setting, algorithm.normalise), problem)


def rate(algorithm: FedAvg, problem: Problem) -> float | None:
    r"""The factor of the mean per round: the spectral radius of $\sum_k p_k (I - s_k H_k)^{E_k}$ (lecture 004's B)."""
    round = expected_round(algorithm, problem, algorithm.normalise)
    return None if round is None else round.rate()


def floor(algorithm: FedAvg, problem: Problem, participation: Who = None) -> float | None:
    """Where E|w - w*|^2 settles on streaming linear regression: `theory.lms_floor`, exact; inf when it grows.

    For p = 1/K, isotropic regressors of one variance, one step and E for all, and `Everyone`, `Uniform` or `ByWeight`.
    """
    return lms(lms_floor, algorithm, problem, participation)


def floor_small_step(algorithm: FedAvg, problem: Problem, participation: Who = None) -> float | None:
    """The floor to first order in the step: `theory.lms.lms_floor_small_step`."""
    return lms(lms_floor_small_step, algorithm, problem, participation)


def lms(form: Callable[..., float], algorithm: FedAvg, problem: Problem, participation: Who) -> float | None:
    """A form of the exact recursion of federated LMS, where it holds."""
    setting = linear.local(algorithm, problem)
    if setting is None or setting.counts is None or algorithm.optimiser is not None:
        return None
    step, steps = linear.common(setting.step), linear.common(setting.counts)
    if step is None or steps is None:
        return None
    return where_covered(form, problem, step, int(steps), participation, algorithm.normalise)


def stability(algorithm: FedAvg, problem: Problem) -> float | None:
    r"""The step below which exact fields converge: $\min_k 2/\lambda_{\max}(H_k)$, times $E_k$ when normalised.

    Sharp for E = 1, where it is $2/\lambda_{\max}(\sum_k p_k H_k)$, and for equal agents; otherwise sufficient: some
    agents may grow in their local steps while the mean still shrinks (`rate` decides).
    """
    if one_gradient_step(algorithm, problem):
        return linear.descent_limit(problem)
    each = stability_by_agent(algorithm, problem)
    return None if each is None else float(each.min())


def stability_by_agent(algorithm: FedAvg, problem: Problem) -> np.ndarray | None:
    r"""(K,): the step at which an agent's own steps begin to grow, $2/\lambda_{\max}(H_k)$, or $E_k$ times that."""
    setting = linear.local(algorithm, problem)
    if expected_round(algorithm, problem, algorithm.normalise) is None or not problem.convex or setting is None:
        return None
    if algorithm.normalise and setting.counts is None:
        return None  # a straggler's step is longer
    return linear.limits(problem) * (setting.counts if algorithm.normalise else 1.0)


FORMS: Mapping[str, Form] = {
    "fixed_point": fixed_point,
    "bias": bias,
    "bias_small_step": bias_small_step,
    "rate": rate,
    "floor": floor,
    "floor_small_step": floor_small_step,
    "stability": stability,
    "stability_by_agent": stability_by_agent,
}
