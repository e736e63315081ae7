"""FedNewton: agents send gradient and curvature, the hub solves for the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from fedpoint.algorithms.references import NOCEDAL
from fedpoint.closed import linear
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm, Card, counts
from fedpoint.core.inbox import Inbox
from fedpoint.core.types import Form, Model, State
from fedpoint.core.vector import Vector
from fedpoint.problems.base import Problem


class Tried(NamedTuple):
    """The last model that was found good, and the one that agents are asked about."""

    w: Model
    trial: Model


class SecondOrder(NamedTuple):
    """What an agent says of its loss f_k: at the trial its gradient and Hessian, and its values on the way there."""

    gradient: Model
    hessian: Array  # (d (d + 1) / 2,): the upper triangle, row by row
    losses: Array  # at w, at the trial, and at 1/2, 1/4, ... of the way from w to it


class FedNewton(Algorithm):
    r"""Newton's method, damped, by sums over the agents' rows.

    $$g_k = \nabla f_k(v), \quad H_k = \nabla^2 f_k(v), \qquad
      v^+ = v - \Big(\sum_k p_k H_k\Big)^{-1} \sum_k p_k g_k$$

    where the trial $v$ is kept, $w^+ = v$: if it lowers $F = \sum_k p_k f_k$ by at least a quarter of what the best of
    the points $w + 2^{-j} (v - w)$, $j = 0 \ldots J$, does. Otherwise agents are asked about that best point next,
    $v^+ = w + 2^{-j} (v - w)$: one round more, however many halvings. An agent sends d + d(d+1)/2 + J + 2 numbers.
    A square loss takes one round. What is read is the trial.

    Directions along which nobody's rows bend the loss are left alone, so collinear columns do no harm. Where the loss
    is not convex, curvature is taken without its sign, so that every step leads down.

    Args:
        halvings: J; 0 keeps every trial: Newton's method without damping, which sends no losses.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> fp.run(fp.FedNewton(), quad, rounds=1).model[0].round(12)
    array([0.66666667])

    References: Nocedal and Wright (2006).
    """

    card = Card(
        name="fednewton",
        title="FedNewton",
        summary="agents send gradient and Hessian, the hub takes a damped Newton step",
        lecture="-",
        references=(NOCEDAL,),
        limit="w*",
        fails="many parameters: messages grow with the square of their number; agents that do not always answer",
        restriction="a Newton step on those who answer leads to their own minimum, not to that of all",
    )
    full = True

    halvings: int = counts(default=8, per_agent=False, least=0)

    def init(self, w: Model) -> tuple[State, State]:
        return Tried(w, w), ()

    def local(self, heard: Tried, memory: State, agent: Agent) -> tuple[SecondOrder, State]:
        w, trial = heard
        H = agent.hessian(trial)
        row, column = np.triu_indices(H.shape[-1])
        upper = H[..., row, column]
        losses = agent.losses_along(w, trial - w, self._way(H)) if self.halvings else upper[..., :0]
        return SecondOrder(agent.field(trial), upper, losses), memory

    def _way(self, like: Array) -> Array:
        """0, 1, 1/2, 1/4, ..."""
        return namespace(like).asarray([0.0, *0.5 ** np.arange(self.halvings + 1)], dtype=like.dtype)

    def combine(self, hub: Tried, inbox: Inbox) -> Tried:
        heard: SecondOrder = inbox.mean
        xp, losses = namespace(heard.hessian), heard.losses
        g, unravel = ravel(heard.gradient)
        ahead = Tried(hub.trial, hub.trial - unravel(newton_step(g, heard.hessian)))
        if not self.halvings:
            return ahead
        fallen = xp.nan_to_num(losses[0] - losses[1:], nan=-np.inf)  # by the whole step, by half of it, ...
        rounding = 8 * np.finfo(g.dtype).eps * abs(losses[0])
        good = fallen[0] >= 0.25 * fallen.max() - rounding
        shorter = self._way(g)[2:][fallen[1:].argmax()]
        back = Tried(hub.w, hub.w + shorter * (hub.trial - hub.w))
        return jax.tree.map(lambda a, b: xp.where(good, a, b), ahead, back)

    def read(self, hub: Tried, memory: State) -> Model:
        return hub.trial

    def forms(self) -> Mapping[str, Form]:
        return {"fixed_point": fixed_point, "bias": bias, "rate": rate}


def newton_step(g: Array, packed: Array) -> Array:
    """H^+ g, in columns scaled to curvature 1 each; H by its upper triangle. Its derivative is that of a solution."""
    d, xp = len(g), namespace(g)
    place = np.zeros((d, d), int)
    place[np.triu_indices(d)] = np.arange(d * (d + 1) // 2)
    H = packed[place + np.triu(place, 1).T]
    at = fixed(H)
    scale = 1 / xp.sqrt(xp.where(xp.diag(at) == 0, 1.0, abs(xp.diag(at))))
    curvature, axes = xp.linalg.eigh(at * scale[:, None] * scale)
    bent = abs(curvature) > 10 * d * np.finfo(g.dtype).eps * abs(curvature).max()
    inverse = xp.where(bent, 1 / xp.where(bent, abs(curvature), 1.0), 0.0)

    def solve(right: Array) -> Array:
        return scale * (axes @ (inverse * (axes.T @ (scale * right))))

    return solve(g - (H - at) @ solve(fixed(g)))


# The same code runs on JAX's arrays and, in small fits, on NumPy's.


def namespace(array: Array) -> Any:
    """The module of an array's functions."""
    return array.__array_namespace__()


def fixed(array: Array) -> Array:
    """Without a derivative, which NumPy has not anyway."""
    return array if isinstance(array, np.ndarray) else lax.stop_gradient(array)


def ravel(model: Model) -> tuple[Array, Callable[[Array], Model]]:
    """A model as one array, and the way back."""
    if isinstance(model, Vector):
        return ravel_pytree(model)
    return model.reshape(-1), lambda flat: flat.reshape(model.shape)


# What theory says, in closed form.


def fixed_point(algorithm: FedNewton, problem: Problem) -> np.ndarray | None:
    """w*, on every problem."""
    return linear.solution(problem)


def bias(algorithm: FedNewton, problem: Problem) -> np.ndarray | None:
    """None to speak of: the fixed point is w*."""
    return linear.away(fixed_point(algorithm, problem), problem)


def rate(algorithm: FedNewton, problem: Problem) -> float | None:
    """0: one round solves a square loss, and near w* errors are squared in every round."""
    return None if problem.solution() is None else 0.0
