"""The general update rule: any (tau_eff, w, a). Lecture 002."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from fedpoint.algorithms.references import WANG_NOVA
from fedpoint.closed import linear
from fedpoint.core.agent import Agent, descend
from fedpoint.core.algorithm import Algorithm, Card
from fedpoint.core.arrays import floats
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.inbox import Inbox
from fedpoint.core.numbers import counted
from fedpoint.core.record import PerAgent
from fedpoint.core.settings import by_agent, counts, nonnegative, positive
from fedpoint.core.steps import Epochs, LocalSteps, Step, at, most_steps
from fedpoint.core.types import Form, Message, Model, Number, State
from fedpoint.core.vector import zeros
from fedpoint.problems.base import Problem
from fedpoint.timing.participation import Who

if TYPE_CHECKING:
    from fedpoint.algorithms.fednova import FedNova

WEIGHTINGS = ("fedavg", "fednova")
Coefficients: TypeAlias = np.ndarray | Sequence[float] | Sequence[Sequence[float]]


class Normalised(NamedTuple):
    """An agent's message: its normalised direction d, scaled by w_k / p_k, and the length |a|_1 behind it."""

    direction: Model
    length: Number


def mean_length(inbox: Inbox) -> Number:
    """The mean length of those heard: equal lengths give that length, whoever answers; 1 where nobody does."""
    heard = inbox.weight > 0
    return jnp.where(heard, inbox.mean.length / jnp.where(heard, inbox.weight, 1.0), 1.0)


def accumulate(self: GeneralRule | FedNova, w: Model, agent: Agent) -> tuple[Model, Number]:
    """d = sum_j a_j g(x_j) / |a|_1 and |a|_1 for the local solver's own a, in units of the first step.

    The solver is linear in the gradients, so |a|_1 is how far it goes when every gradient is 1: one more scalar
    recursion, whatever momentum, pull and decay are combined.
    """
    steps = agent.steps(self.local_steps)
    start = agent.round * steps
    first = at(self.step, start)

    def advance(state: tuple, e: Number) -> tuple:
        y, buffer, reach, unit = state
        ratio = at(self.step, start + e) / first * jnp.power(self.decay, e)
        buffer = self.momentum * buffer + agent.field(y, e) + self.pull * (y - w)
        unit = self.momentum * unit + 1.0 - first * self.pull * reach
        return y - first * ratio * buffer, buffer, reach + ratio * unit, unit

    zero = jnp.zeros_like(jnp.asarray(first))
    y, _, length, _ = descend(agent, (w, zeros(w), zero, zero), steps, advance)
    return (w - y) / (first * length), length


def custom(self: GeneralRule, w: Model, agent: Agent) -> tuple[Model, Number]:
    """d and |a|_1 for given coefficients a, along plain local steps."""
    steps = agent.steps(self.local_steps)
    a = jnp.asarray(self.coefficients)  # the agent's own

    def advance(state: tuple, e: Number) -> tuple:
        y, total, length = state
        gradient = agent.field(y, e)
        rate = at(self.step, agent.round * steps + e)
        return y - rate * gradient, total + a[e] * gradient, length + a[e]

    _, total, length = descend(agent, (w, zeros(w), jnp.zeros((), a.dtype)), steps, advance)
    return total / length, length


def accumulations(given: ArrayLike | Sequence[ArrayLike]) -> list[np.ndarray]:
    """The vectors a: one for all agents, or one for each, of lengths of their own."""
    whole = floats(given)  # type: ignore[arg-type] # NaN where rows differ in length
    if whole.ndim == 0 and isinstance(given, list | tuple):
        rows = [floats(row) for row in given]
    else:
        rows = [whole] if whole.ndim < 2 else list(whole)
    if not rows or not all(a.ndim == 1 and a.size and (a >= 0).all() and a.sum() < np.inf for a in rows):
        raise FedpointError(
            "GeneralRule: coefficients must be a list of numbers, or one list for each agent; "
            "none negative, not all zero"
        )
    return rows


class GeneralRule(Algorithm):
    r"""The general update rule.

    $$w^+ = w - \tau_{\text{eff}}\, \eta \sum_k w_k d_k, \qquad d_k = \frac{\sum_j a_{kj}\, \hat g_k(x_{kj})}{|a_k|_1}$$

    Args:
        step: $\eta$, the local step itself.
        local_steps: $\tau_k$, local steps per round: a number, one per agent, `fp.steps.Epochs` or
            `fp.steps.Stragglers`.
        weights: $w_k$: "fedavg" ($p_k |a_k|_1 / \sum_j p_j |a_j|_1$), "fednova" ($p_k$), or one number per agent.
        effective: $\tau_{\text{eff}}$; None is $\sum_j p_j |a_j|_1$, the mean over those heard.
        coefficients: $a$, for plain local steps: one list for all agents, or one for each, $a_k$, of different lengths
            if their numbers of local steps differ; None takes the local solver's own a.
        momentum, pull, decay: the local solver: momentum (buffer zeroed every round), proximal term, factor on the
            step after each local step.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> a = fp.run(fp.GeneralRule(step=0.1, local_steps=[2, 5], weights="fedavg"), quad, rounds=9).model
    >>> b = fp.run(fp.FedAvg(step=0.1, local_steps=[2, 5], normalise=False), quad, rounds=9).model
    >>> bool(abs(a - b).max() < 1e-14)
    True

    Only the last gradients count, of the second agent two: w = 0.9216/(0.9 + 0.9216), 0.9216 = 0.8^3 + 0.8^4.

    >>> last = fp.GeneralRule(step=0.1, local_steps=[2, 5], coefficients=[[0, 1], [0, 0, 0, 1, 1]], weights="fednova")
    >>> fp.forecast(last, quad).closed["fixed_point"].round(3)
    array([0.506])

    References: Wang et al. (2020).
    """

    card = Card(
        name="general_rule",
        title="General update rule",
        summary="any accumulation a, agents' weights w and effective length tau_eff",
        lecture="002 (general update rule)",
        references=(WANG_NOVA,),
        limit="depends on (tau_eff, w, a)",
        fails="weights other than p_i: it then solves another problem",
    )
    exact_moments = True

    step: Step = positive(per_agent=True, scheduled=True)
    local_steps: LocalSteps = counts()
    weights: str | Number = by_agent(default="fedavg")
    effective: float | None = positive(default=None)
    coefficients: Coefficients | None = by_agent(default=None, axes=2)
    momentum: float = nonnegative(default=0.0, below=1.0)
    pull: float = nonnegative(default=0.0)
    decay: float = positive(default=1.0)

    def check(self) -> None:
        if isinstance(self.weights, str) and self.weights not in WEIGHTINGS:
            raise FedpointError(f"GeneralRule: unknown weights {self.weights!r}: {nearest(self.weights, WEIGHTINGS)}")
        if not isinstance(self.weights, str) and not (np.ndim(w := floats(self.weights)) <= 1 and np.isfinite(w).all()):
            raise FedpointError("GeneralRule: weights must be a name or a list of numbers, one for each agent")
        if self.coefficients is not None and (self.momentum or self.pull or self.decay != 1.0):
            raise FedpointError("GeneralRule: coefficients are for plain steps: leave out momentum, pull and decay")
        if self.coefficients is not None and not isinstance(self.coefficients, PerAgent):
            table = self._check_coefficients(accumulations(self.coefficients))
            shared = floats(self.coefficients).ndim == 1
            object.__setattr__(self, "coefficients", table[0] if shared else table)

    def _check_coefficients(self, rows: list[np.ndarray]) -> np.ndarray:
        """As many as steps, not all zero: as one array, in which short rows are filled with zeros."""
        steps = np.array(1) if isinstance(self.local_steps, Epochs) else most_steps(self.local_steps)
        own = rows * steps.size if len(rows) == 1 else rows
        if steps.ndim == 0 or len(steps) == len(own):  # else `bind_algorithm` says which of them is wrong
            for k, (a, count) in enumerate(zip(own, np.broadcast_to(steps, len(own)), strict=True)):
                who = f"agent {k} has " if len(own) > 1 else ""
                if count > len(a):
                    few = f"{counted(len(a), 'coefficient')} for {counted(count, 'local step')}"
                    raise FedpointError(f"GeneralRule: {who}{few}: give one a step")
                if not a[:count].any() and not isinstance(self.local_steps, Epochs):
                    raise FedpointError(f"GeneralRule: {who}coefficients that are all zero: nothing is accumulated")
        most = max(len(a) for a in rows)
        return np.stack([np.pad(a, (0, most - len(a))) for a in rows])

    def alike(self) -> bool:
        return self.decay == 1.0 and self.coefficients is None

    def divides(self) -> bool:
        return True

    def init(self, w: Model) -> tuple[State, State]:
        return w, ()

    def local(self, w: Model, memory: State, agent: Agent) -> tuple[Message, State]:
        solver = accumulate if self.coefficients is None else custom
        direction, length = solver(self, w, agent)
        step = at(self.step, agent.round * agent.steps(self.local_steps))
        if not isinstance(self.weights, str):
            direction = direction * jnp.asarray(self.weights / agent.share, jnp.result_type(length))
        elif self.weights == "fedavg":
            direction = direction * length
        return Normalised(direction * step, length), memory

    def combine(self, w: Model, inbox: Inbox) -> Model:
        length = mean_length(inbox)
        effective = length if self.effective is None else self.effective
        fedavg = isinstance(self.weights, str) and self.weights == "fedavg"
        scale = effective / length if fedavg else effective
        return w - scale * inbox.mean.direction

    def forms(self) -> Mapping[str, Form]:
        return {"fixed_point": fixed_point, "bias": bias, "rate": rate}


# What theory says, in closed form: on problems whose fields are affine, for constant steps.


class Solver(NamedTuple):
    """The local solver's numbers."""

    momentum: float
    pull: float
    decay: float
    coefficients: np.ndarray | None = None

    def moved(self, A: np.ndarray, step: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """M_k (K, d, d) and |a_k|_1 (K,): it accumulates sum_j a_kj g(x_kj) = M_k g_k(w) / step."""
        eye, s = np.eye(A.shape[-1]), step[:, None, None]
        moved, buffer, reach, unit = np.zeros_like(A), np.zeros_like(A), np.zeros(len(A)), np.zeros(len(A))
        power = np.broadcast_to(eye, A.shape)
        for e in range(counts.max()):
            works = counts > e
            if self.coefficients is not None:
                a = works * self.coefficients[..., e]
                moved, reach = moved + a[:, None, None] * s * power, reach + a
                power = power - s * A @ power
                continue
            ratio = self.decay**e
            buffer = self.momentum * buffer + eye - A @ moved - self.pull * moved
            unit = self.momentum * unit + 1.0 - step * self.pull * reach
            moved, reach = moved + (works * ratio)[:, None, None] * s * buffer, reach + works * ratio * unit
        return moved, reach


def expected_round(
    algorithm: GeneralRule | FedNova,
    problem: Problem,
    participation: Who,
    weights: str | Number,
    coefficients: np.ndarray | None = None,
) -> linear.AffineRound | None:
    """None also where the length tau_eff of a round depends on who answers: its mean is then not that of everyone."""
    setting = linear.local(algorithm, problem)
    if setting is None or setting.counts is None or (fields := problem.linear_fields()) is None:
        return None
    solver = Solver(algorithm.momentum, algorithm.pull, algorithm.decay, coefficients)
    M, length = solver.moved(fields[0], setting.step, setting.counts)
    mean = problem.weights @ length
    effective = mean if algorithm.effective is None else algorithm.effective
    fedavg = isinstance(weights, str) and weights == "fedavg"
    fixed = fedavg == (algorithm.effective is None)  # tau_eff cancels, or is given
    if not (fixed or linear.everyone(participation) or np.allclose(length, length[0], rtol=1e-12)):
        return None
    scale = np.full(problem.agents, effective / mean) if fedavg else effective / length
    if not isinstance(weights, str):
        scale = scale * np.asarray(weights) / problem.weights
    return linear.averaged(problem, scale[:, None, None] * M)


def _round(algorithm: GeneralRule, problem: Problem, participation: Who) -> linear.AffineRound | None:
    a = algorithm.coefficients
    a = a.values if isinstance(a, PerAgent) else a
    return expected_round(algorithm, problem, participation, algorithm.weights, None if a is None else np.asarray(a))


def fixed_point(algorithm: GeneralRule, problem: Problem, participation: Who = None) -> np.ndarray | None:
    r"""$[\sum_k w_k M_k H_k / |a_k|_1]^{-1} \sum_k w_k M_k A_k^\top b_k / |a_k|_1$, where the local solver accumulates
    $\eta \sum_j a_{kj} g_k(x_{kj}) = M_k g_k(w)$; it does not depend on $\tau_{\text{eff}}$.

    For everyone; for another unbiased participation where $\tau_{\text{eff}}$ does not depend on who answers.
    """
    round = _round(algorithm, problem, participation)
    return None if round is None else round.fixed_point()


def bias(algorithm: GeneralRule, problem: Problem, participation: Who = None) -> np.ndarray | None:
    """The fixed point minus w*."""
    return linear.away(fixed_point(algorithm, problem, participation), problem)


def rate(algorithm: GeneralRule, problem: Problem, participation: Who = None) -> float | None:
    r"""The mean's factor per round: the spectral radius of $I - \tau_{\text{eff}} \sum_k w_k M_k H_k / |a_k|_1$."""
    round = _round(algorithm, problem, participation)
    return None if round is None else round.rate()
