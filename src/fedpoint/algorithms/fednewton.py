"""FedNewton: agents send gradient and curvature, or products with it; the hub solves for the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from fedpoint.algorithms.conjugate import Solving, nothing_solved, turned
from fedpoint.algorithms.references import NOCEDAL
from fedpoint.closed import linear
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm, Card
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import Row
from fedpoint.core.settings import counts
from fedpoint.core.types import Form, Message, Model, State
from fedpoint.core.vector import Vector
from fedpoint.core.wrapped import Wrapped
from fedpoint.problems.base import Problem

FEW = 300  # parameters up to which Hessians are sent
PRODUCTS = 30  # with the Hessian in a round, where there are more


class Tried(NamedTuple):
    """The last model that was found good, and the one that agents are asked about."""

    w: Model
    trial: Model


class FirstOrder(NamedTuple):
    """What an agent says of its loss f_k: its gradient at the trial, and its values on the way there."""

    gradient: Model
    losses: Array  # at w, at the trial, and at 1/2, 1/4, ... of the way from w to it


class SecondOrder(NamedTuple):
    """The same, and its Hessian at the trial."""

    gradient: Model
    hessian: Array  # (d (d + 1) / 2,): the upper triangle, row by row
    losses: Array


class Asked(NamedTuple):
    """What agents are asked for: the product of the Hessian at the trial with a direction."""

    trial: Model
    direction: Model


Hub = TypeVar("Hub", Tried, Solving)


class FedNewton(Algorithm):
    r"""Newton's method, damped, by sums over the agents' rows.

    $$g_k = \nabla f_k(v), \quad H_k = \nabla^2 f_k(v), \qquad
      v^+ = v - \Big(\sum_k p_k H_k\Big)^{-1} \sum_k p_k g_k$$

    where the trial $v$ is kept, $w^+ = v$: if it lowers $F = \sum_k p_k f_k$ by at least a quarter of what the best of
    the points $w + 2^{-j} (v - w)$, $j = 0 \ldots J$, does. Otherwise agents are asked about that best point next,
    $v^+ = w + 2^{-j} (v - w)$: one round more, however many halvings. An agent sends d + d(d+1)/2 + J + 2 numbers.
    A square loss takes one round. What is read is the trial.

    With `products` n no Hessian is sent: a round has n + 1 exchanges. In the first, agents send gradient and losses; in
    the others $H_k p$, for n directions p of conjugate gradients, which the hub makes of the sums. These are up
    (n + 1) d + J + 2 numbers of an agent. With n at least d, or the number of different eigenvalues, a round is
    Newton's; with fewer the step is inexact, and a round leaves a factor of at most
    $2 ((\sqrt\kappa - 1) / (\sqrt\kappa + 1))^n$ near w*, with $\kappa$ the condition of $\sum_k p_k H_k$, in its norm.

    Directions along which nobody's rows bend the loss are left alone, so collinear columns do no harm. Where the loss
    is not convex, curvature is taken without its sign, so that every step leads down.

    Args:
        halvings: J; 0 keeps every trial: Newton's method without damping, which sends no losses.
        products: n; 0 sends Hessians. None: 0 up to 300 parameters, beyond them 30.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> fp.run(fp.FedNewton(), quad, rounds=1).model[0].round(12)
    array([0.66666667])
    >>> run = fp.run(fp.FedNewton(products=1), quad, rounds=1)
    >>> run.model[0].round(12), run.cost.messages_up     # gradients, and one product, of each agent
    (array([0.66666667]), 4.0)

    References: Nocedal and Wright (2006).
    """

    card = Card(
        name="fednewton",
        title="FedNewton",
        summary="agents send gradients and Hessians, or products with them; the hub takes a damped Newton step",
        lecture="",
        references=(NOCEDAL,),
        limit="w*",
        fails="many parameters of very different scales, which need many products; agents that do not always answer",
        restriction="a Newton step on those who answer leads to their own minimum, not to that of all",
    )
    full = True

    halvings: int = counts(default=8, per_agent=False, least=0)
    products: int | None = counts(default=None, per_agent=False, least=0)

    def suited(self, problem: Problem) -> Self:
        if self.products is not None:
            return self
        d = sum(np.size(a) for a in jax.tree.leaves(problem.start()))
        return self.replace(products=0 if d <= FEW else PRODUCTS)

    def survey(self) -> Algorithm | None:
        if not self.products:
            return None
        return SlopeSurvey(self) if self.products == 1 else ProductSurvey(self)

    def init(self, w: Model) -> tuple[State, State]:
        return nothing_solved(w, w) if self.products else Tried(w, w), ()

    def say(self, hub: Tried | Solving, row: Row) -> Tried | Asked:
        return Asked(hub.trial, hub.direction) if isinstance(hub, Solving) else hub

    def begun_from(self, heard: Tried | Asked, memory: State) -> Model:
        return heard.trial

    def local(self, heard: Tried | Asked, memory: State, agent: Agent) -> tuple[Message, State]:
        if isinstance(heard, Asked):
            return agent.hessian_times(*heard), memory
        H = agent.hessian(heard.trial)
        row, column = np.triu_indices(H.shape[-1])
        upper = H[..., row, column]
        return SecondOrder(agent.field(heard.trial), upper, self.losses(heard, agent, upper)), memory

    def losses(self, heard: Tried, agent: Agent, like: Array) -> Array:
        """An agent's, on the way from w to the trial; none without damping.

        Args:
            like: an array of the kind in which losses are told.
        """
        return agent.losses_along(heard.w, heard.trial - heard.w, self._way(like)) if self.halvings else like[..., :0]

    def _way(self, like: Array) -> Array:
        """0, 1, 1/2, 1/4, ..."""
        return namespace(like).asarray([0.0, *0.5 ** np.arange(self.halvings + 1)], dtype=like.dtype)

    def combine(self, hub: Tried | Solving, inbox: Inbox) -> Tried | Solving:
        if isinstance(hub, Solving):
            solved = turned(hub, inbox.mean)
            return nothing_solved(hub.w, hub.trial + solved.step)
        heard: SecondOrder = inbox.mean
        g, unravel = ravel(heard.gradient)
        return self.judged(hub, Tried(hub.trial, hub.trial - unravel(newton_step(g, heard.hessian))), heard.losses)

    def judged(self, hub: Hub, ahead: Hub, losses: Array) -> Hub:
        """The hub's next state, if the trial is good; else with the best point on the way to it as the trial.

        Args:
            ahead: the hub's state after the whole step.
            losses: at w, and after the whole step, half of it, a quarter, ...
        """
        if not self.halvings:
            return ahead
        xp = namespace(losses)
        fallen = xp.nan_to_num(losses[0] - losses[1:], nan=-np.inf)  # by the whole step, by half of it, ...
        eps = np.finfo(losses.dtype).eps
        move, trial = ravel(hub.trial - hub.w)[0], ravel(hub.trial)[0]
        told = move @ move > 64 * eps * (trial @ trial)  # of shorter steps losses tell their rounding only
        good = ~told | (fallen[0] >= 0.25 * fallen.max() - 8 * eps * abs(losses[0]))
        shorter = self._way(losses)[2:][fallen[1:].argmax()]
        back = hub._replace(trial=hub.w + shorter * (hub.trial - hub.w))
        return jax.tree.map(lambda a, b: xp.where(good, a, b), ahead, back)

    def read(self, hub: Tried | Solving, memory: State) -> Model:
        return hub.trial

    def adaptive(self) -> bool:
        return bool(self.products)

    def forms(self) -> Mapping[str, Form]:
        return {"fixed_point": fixed_point, "bias": bias, "rate": rate}


class SlopeSurvey(Wrapped):
    """The first exchange of a round without Hessians: is the trial good, and where is it down from there?"""

    inner: FedNewton

    def survey(self) -> None:
        return None

    def say(self, hub: Solving, row: Row) -> Tried:
        return Tried(hub.w, hub.trial)

    def local(self, heard: Tried, memory: State, agent: Agent) -> tuple[FirstOrder, State]:
        gradient = agent.field(heard.trial)
        return FirstOrder(gradient, self.inner.losses(heard, agent, ravel(gradient)[0])), memory

    def combine(self, hub: Solving, inbox: Inbox) -> Solving:
        heard: FirstOrder = inbox.mean
        down = -heard.gradient
        return self.inner.judged(hub, hub._replace(w=hub.trial, residual=down, direction=down), heard.losses)


class ProductSurvey(Wrapped):
    """The exchanges between: products, each along a direction that the one before has told."""

    inner: FedNewton

    @property
    def times(self) -> int:  # type: ignore[override]
        assert self.inner.products is not None  # or it would not ask
        return self.inner.products - 1

    def survey(self) -> Algorithm:
        return SlopeSurvey(self.inner)

    def combine(self, hub: Solving, inbox: Inbox) -> Solving:
        return turned(hub, inbox.mean)


def newton_step(g: Array, packed: Array) -> Array:
    """H^+ g, in columns scaled to curvature 1 each; H by its upper triangle. Its derivative is that of a solution."""
    d, xp = len(g), namespace(g)
    place = np.zeros((d, d), int)
    place[np.triu_indices(d)] = np.arange(d * (d + 1) // 2)
    H = packed[place + np.triu(place, 1).T]
    at = fixed(H)
    scale = 1 / xp.sqrt(xp.where(xp.diag(at) == 0, 1.0, abs(xp.diag(at))))
    scaled = at * scale[:, None] * scale
    curvature, axes = one_by_one(scaled) if isinstance(scaled, jax.Array) else xp.linalg.eigh(scaled)
    bent = abs(curvature) > 10 * d * np.finfo(g.dtype).eps * abs(curvature).max()
    inverse = xp.where(bent, 1 / xp.where(bent, abs(curvature), 1.0), 0.0)

    def solve(right: Array) -> Array:
        return scale * (axes @ (inverse * (axes.T @ (scale * right))))

    return solve(g - (H - at) @ solve(fixed(g)))


@jax.custom_batching.custom_vmap
def one_by_one(symmetric: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors, of a batch in turn.

    On processors LAPACK shares a batch out among the threads of all programs and waits: on two cores two batches at
    once wait for each other without end.
    """
    return tuple(jnp.linalg.eigh(symmetric))


@one_by_one.def_vmap
def _batch(size: int, batched: list[bool], symmetric: Array) -> tuple[tuple[Array, Array], tuple[bool, bool]]:
    return lax.map(one_by_one, symmetric), (True, True)


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
    """0: one round solves a square loss, and near w* errors are squared in every round; None with few products."""
    return None if problem.solution() is None or algorithm.products else 0.0
