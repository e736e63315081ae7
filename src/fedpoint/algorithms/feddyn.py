"""FedDyn: a linear term at every agent, learnt from its own changes, removes the drift. Acar et al. (2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.algorithms.references import ACAR
from fedpoint.closed import linear
from fedpoint.core.agent import Agent, descend
from fedpoint.core.algorithm import Algorithm, Card
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import Row
from fedpoint.core.settings import counts, positive
from fedpoint.core.steps import LocalSteps
from fedpoint.core.types import Form, Message, Model, Number, State
from fedpoint.core.vector import zeros
from fedpoint.problems.base import Problem
from fedpoint.timing.participation import Who


class Dynamic(NamedTuple):
    """The model, and h = sum p_k h_k."""

    w: Model
    h: Model


class FedDyn(Algorithm):
    r"""FedDyn, federated learning with dynamic regularisation.

    $$y_k = \arg\min_y f_k(y) - h_k^\top y + \frac{a}{2} |y - w|^2, \qquad h_k^+ = h_k - a (y_k - w),$$
    $$h^+ = h - a \sum_{k \in S} p_k (y_k - w), \qquad w^+ = w + \sum_k v_k (y_k - w) - h^+ / a.$$

    The local problem is solved by $E_k$ steps $y \leftarrow y - \mu (\hat g_k(y) - h_k + a (y - w))$, or exactly. In
    the end $h_k = g_k(w^\star)$, so that an agent's problem is solved by $w^\star$ already, however it is solved. h
    takes the shares $p_k$ without any $K/|S|$, as SCAFFOLD's c does: $h = \sum_k p_k h_k$ is conserved. All start at
    zero.

    Args:
        step: $\mu$, the local step; not used when exact.
        local_steps: $E_k$, local steps per round: a number, one per agent, `fp.steps.Epochs` or `fp.steps.Stragglers`.
        pull: $a$, Acar et al.'s alpha. Small pulls trust the agents more: faster with everyone, noisier with few.
        exact: solve the local problem exactly (closed form for quadratics, else Newton's method to rounding).

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> bool(fp.run(fp.FedDyn(pull=1.0, exact=True), quad, rounds=100).error[0, -1] < 1e-20)
    True

    References: Acar et al. (2021).
    """

    card = Card(
        name="feddyn",
        title="FedDyn",
        summary="a linear term at every agent, learnt from its own changes, removes the drift of local work",
        lecture="",
        references=(ACAR,),
        limit="w*, however the local problems are solved",
        fails="noisy fields or few participants with a small pull, by which the hub's correction is divided",
    )
    exact_moments = True
    merges = True

    step: Number | None = positive(default=None, per_agent=True)
    local_steps: LocalSteps = counts()
    pull: float = positive(default=1.0)
    exact: bool = False

    def check(self) -> None:
        if self.step is None and not self.exact:
            raise FedpointError("FedDyn: give step=, or exact=True")

    @property
    def proximal(self) -> bool:  # type: ignore[override]
        return self.exact

    def alike(self) -> bool:
        return True

    def init(self, w: Model) -> tuple[State, State]:
        return Dynamic(w, zeros(w)), zeros(w)

    def say(self, hub: Dynamic, row: Row) -> Model:
        return hub.w

    def begun_from(self, w: Model, memory: State) -> Model:
        return w

    def local(self, w: Model, h_k: Model, agent: Agent) -> tuple[Message, Model]:
        step = self.step
        if step is None or self.exact:  # -h'y + (a/2)|y - w|^2 = (a/2)|y - (w + h/a)|^2 + const
            change = agent.prox(w + h_k / self.pull, self.pull / 2) - w
        else:

            def advance(y: Model, e: Number) -> Model:
                return y - step * (agent.field(y, e) - h_k + self.pull * (y - w))

            change = descend(agent, w, agent.steps(self.local_steps), advance) - w
        return change, h_k - self.pull * change

    def acknowledge(self, h_k: Model, sent: Message, credited: Message) -> Model:
        return h_k - self.pull * (credited - sent)

    def remembered(self, heard: State, h_k: Model, arrived: Message) -> Model:
        return h_k - self.pull * arrived

    def combine(self, hub: Dynamic, inbox: Inbox) -> Dynamic:
        h = hub.h - self.pull * inbox.total
        return Dynamic(hub.w + inbox.mean - h / self.pull, h)

    def read(self, hub: Dynamic, memory: Model) -> Model:
        return hub.w

    def invariants(self, hub: State, memory: State, p: np.ndarray) -> dict[str, State]:
        return {
            "h = sum p_k h_k": jax.tree.map(lambda h, all_: h - jnp.einsum("k,rk...->r...", p, all_), hub.h, memory)
        }

    def forms(self) -> Mapping[str, Form]:
        return {"fixed_point": fixed_point, "bias": bias, "rate": rate}


# What theory says, in closed form.


def fixed_point(algorithm: FedDyn, problem: Problem) -> np.ndarray | None:
    """w*, on every problem and for every participation, from its usual start h_k = h = 0."""
    return linear.solution(problem)


def bias(algorithm: FedDyn, problem: Problem) -> np.ndarray | None:
    """None to speak of: the fixed point is w*."""
    return linear.away(fixed_point(algorithm, problem), problem)


def rate(algorithm: FedDyn, problem: Problem, participation: Who = None) -> float | None:
    r"""The factor of the mean per round for everyone on affine fields.

    Agents move by $M_k (h_k - g_k(w))$, with $M_k = (H_k + aI)^{-1}$ exactly, else a sum over the local steps. So
    $h_k^+ = (I - a M_k) h_k + a M_k g_k(w)$ and $w^+ = w + 2 \sum_k p_k M_k (h_k - g_k(w)) - \frac{1}{a} \sum_k p_k
    h_k$: the spectral radius of that map of $(w, h_1, \dots, h_K)$.
    """
    if not linear.everyone(participation) or (moves := _moves(algorithm, problem)) is None:
        return None
    fields = problem.linear_fields()
    assert fields is not None  # or there were no moves
    H, p, a = fields[0], problem.weights, algorithm.pull
    K, d = len(p), H.shape[-1]
    T = np.zeros(((K + 1) * d, (K + 1) * d))
    T[:d, :d] = np.eye(d) - 2 * np.einsum("k,kij,kjl->il", p, moves, H)
    for k in range(K):
        own = slice((k + 1) * d, (k + 2) * d)
        T[:d, own] = p[k] * (2 * moves[k] - np.eye(d) / a)
        T[own, :d], T[own, own] = a * moves[k] @ H[k], np.eye(d) - a * moves[k]
    return float(np.abs(np.linalg.eigvals(T)).max())


def _moves(algorithm: FedDyn, problem: Problem) -> np.ndarray | None:
    """(K, d, d): M_k."""
    fields = problem.linear_fields()
    if fields is None:
        return None
    if algorithm.exact:
        return np.linalg.inv(fields[0] + algorithm.pull * np.eye(fields[0].shape[-1]))
    setting = linear.local(algorithm, problem)
    return None if setting is None else linear.descent(fields[0], setting, pull=algorithm.pull)
