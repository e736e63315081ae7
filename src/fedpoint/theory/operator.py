"""The expected round as a smooth map of the state, to be differentiated.

The state is (hub, memories) flattened: u, the hub's floats, and m, one row of floats for each agent, completed by
what the agent hears next (`settle`). One expected round is a map F(u, m).
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedpoint.core.algorithm import Algorithm, owner_of
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import Key
from fedpoint.core.vector import unwrap, wrap
from fedpoint.engine.cpu import cache
from fedpoint.engine.session import cast
from fedpoint.experiment.bound import Bound
from fedpoint.problems.base import Mine, per_agent
from fedpoint.theory.expected_round import Numbers, draws_of, expected, most_steps, start_at, template, trace_steps
from fedpoint.theory.space import Space, fill, flat, kept_leaves, take_leaves
from fedpoint.timing.participation import Moments

DENSE = 64  # numbers of a state, up to which products with F' are made from the whole matrix
PATH = 256  # rounds of a path that are computed at a time


class Setting:
    """An algorithm on a problem with a participation, ready for theory: everything in double precision.

    coarse: few programs for many numbers of local steps, each of which computes more than it needs.
    affine: the answer to `affine` where it is known from a setting of the same kind.
    """

    def __init__(
        self,
        bound: Bound,
        coarse: bool = False,
        affine: bool | None = None,
    ):
        cache.enable()
        self.bound, self.problem, self.exact = bound, bound.problem, bound.exact
        self.algorithm, self.timing = bound.algorithm, bound.timing
        problem = bound.problem
        self._last: tuple[np.ndarray, np.ndarray] | None = None
        if affine is not None:
            self.affine = affine
        self.own_kind = self.algorithm.own_kind()
        with jax.enable_x64(True):
            self.oracle = bound.oracle
            self.start = jax.tree.map(lambda a: np.asarray(a, float), bound.start)
            model = wrap(jax.tree.map(jnp.asarray, self.start))
            draws = draws_of(self.algorithm, symmetric=problem.has_loss)
            one = cast(self.algorithm if self.own_kind else trace_steps(self.algorithm), float)
            self._check_say(one.given(draws.chances[1][0]) if draws.drawn.hub else one, model)
            self.space = Space(
                kept_leaves(one, model), most_steps(self.algorithm, draws, coarse), self._alike(), self.settles
            )
            m = self.moments
            self.numbers = jax.device_put(
                Numbers(
                    one,
                    cast(problem.own, float),
                    cast(problem.common, float),
                    problem.weights,
                    m.mean,
                    m.heard,
                    np.asarray(m.merge),
                    model,
                    draws.chances,
                    draws.late,
                    draws.drawn,
                )
            )
            hub, memory = one.init(model)
            self.u0 = np.asarray(flat(hub))
            settled = take_leaves(one.settle(hub, memory), self.space.kept)
            self.m0 = np.tile(np.asarray(flat(settled)), (problem.agents, 1))
        if self.settles and not self.timing.everyone:
            raise FedpointError(
                f"{self.algorithm.card.title} completes memories with the merged model: a forecast needs everyone"
            )

    @cached_property
    def moments(self) -> Moments:
        return self.timing.moments(self.problem.weights)

    @property
    def agents(self) -> int:
        return self.problem.agents

    @property
    def size(self) -> int:
        return self.u0.size + self.m0.size

    @property
    def origin(self) -> np.ndarray:
        return np.concatenate([self.u0, self.m0.ravel()])

    @cached_property
    def settles(self) -> bool:
        return owner_of(type(self.algorithm), "settle") is not Algorithm

    def _alike(self) -> bool:
        return bool(self.problem.linear and not self.own_kind and not self.scheduled and self.algorithm.alike())

    @cached_property
    def scheduled(self) -> bool:
        """Steps change from round to round."""
        if self.algorithm.scheduled():
            return True
        if not self.own_kind:
            return False
        x = self.origin + 1.0
        return not np.allclose(self.step(x, 0), self.step(x, 1000), rtol=1e-12, atol=1e-12)

    @property
    def adaptive(self) -> bool:
        """The hub or the agents rescale changes by their history: near the limit they have no linear map."""
        return bool(self.algorithm.adaptive())

    def _check_say(self, algorithm: Any, model: Any) -> None:
        hub = algorithm.init(model)[0]
        rows = [Key.of(seed).row() for seed in (1, 2, 3)]
        said = [[np.asarray(a) for a in jax.tree.leaves(algorithm.say(hub, row))] for row in rows]
        for other in said[1:]:
            if any((a != b).any() for a, b in zip(said[0], other, strict=True)):
                raise FedpointError(
                    f"{type(algorithm).__name__}: its hub draws random numbers (say), and does not tell their chances: "
                    "give it the methods `outcomes` and `given`, as Scaffnew has"
                )

    @cached_property
    def straight(self) -> bool:
        """The expected round is affine."""
        rng = np.random.default_rng(0)
        x, h = self.origin, rng.normal(size=self.size)
        with np.errstate(all="ignore"):
            there = self.step(x)
            bend = self.step(x + h) + self.step(x - h) - 2 * there
        return bool(np.abs(bend).max() <= 1e-9 * (1 + np.abs(x).max() + np.abs(there).max()))

    @cached_property
    def affine(self) -> bool:
        """The expected round is affine, and so is the hub's merge: then it is exactly the mean of the random round."""
        if not self.straight:
            return False
        if self.timing.everyone and not self.timing.abandons:
            return True
        with jax.enable_x64(True):
            message = template(self.space, self.oracle, self.numbers)[0]
            size = sum(int(np.prod(a.shape)) for a in jax.tree.leaves(message))
            centre, move = np.random.default_rng(0).normal(size=(2, 2 * size + 2))
            points = np.stack([centre - move, centre, centre + move])
            low, middle, high = np.asarray(_merges(self.oracle, self.space, self.numbers, points))
        return bool(np.abs(low + high - 2 * middle).max() <= 1e-9)

    def step(self, x: np.ndarray, round: int = 0) -> np.ndarray:
        """F(x)."""
        with jax.enable_x64(True):
            return np.asarray(_step(self.oracle, self.space, self.numbers, x, jnp.int32(round)))

    def slope(self, x: np.ndarray):
        """v -> F'(x) v."""
        if self.size <= DENSE:  # the rate needs the matrix anyway: one program less
            M = self.matrix(x)
            return lambda v: M @ v

        def product(v: np.ndarray) -> np.ndarray:
            with jax.enable_x64(True):
                return np.asarray(_slope(self.oracle, self.space, self.numbers, x, v))

        return product

    def matrix(self, x: np.ndarray) -> np.ndarray:
        """F'(x), dense; the last one is kept."""
        x = np.asarray(x)
        if self._last is None or not np.array_equal(self._last[0], x):
            with jax.enable_x64(True):
                self._last = x.copy(), np.asarray(_matrix(self.oracle, self.space, self.numbers, x))
        return self._last[1]

    def travel(self, x: np.ndarray, rounds: int, first: int = 0) -> np.ndarray:
        """The state after so many expected rounds."""
        with jax.enable_x64(True):
            return np.asarray(_travel(self.oracle, self.space, self.numbers, x, jnp.int32(first), jnp.int32(rounds)))

    def path(self, x: np.ndarray, rounds: int) -> np.ndarray:
        """(rounds + 1, d): the model along the expected path from x."""
        parts, first = [self.read(x)[None]], 0
        while first < rounds:
            with jax.enable_x64(True):
                models, x = _path(self.oracle, self.space, self.numbers, x, jnp.int32(first), PATH)
            parts.append(np.asarray(models)[: rounds - first])
            first += PATH
        return np.concatenate(parts)

    def stretch(self, x: np.ndarray, first: int, rounds: int) -> tuple[np.ndarray, np.ndarray]:
        """(rounds, d): the model after each of the next rounds, and the state after them; compiled for their number."""
        with jax.enable_x64(True):
            models, x = _path(self.oracle, self.space, self.numbers, x, jnp.int32(first), rounds)
        return np.asarray(models), np.asarray(x)

    def read(self, x: np.ndarray) -> np.ndarray:
        """The model in a state, flattened."""
        with jax.enable_x64(True):
            return np.asarray(_read(self.space, self.numbers, x))

    def curvature(self, w: np.ndarray) -> np.ndarray:
        """(d, d): the slope of the aggregate field sum_k p_k g_k at a flattened model."""
        with jax.enable_x64(True):
            return np.asarray(_curvature(self.oracle, self.numbers, w))

    @cached_property
    def reading(self) -> np.ndarray:
        """(d, hub): the model is this times the hub's floats."""
        with jax.enable_x64(True):
            return np.asarray(_reading(self.space, self.numbers, self.u0))

    def model_of(self, vector: np.ndarray) -> Any:
        """A flattened model as the user wrote it."""
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, unwrap(fill(self.numbers.model, jnp.asarray(vector))))

    def flatten(self, model: Any) -> np.ndarray:
        return np.concatenate([np.ravel(np.asarray(a, float)) for a in jax.tree.leaves(model)])


def _whole(oracle, space, numbers, x, round=0):
    hub, m = start_at(numbers, x, round)
    hub, m = expected(oracle, space, numbers, hub, m, round)
    return jnp.concatenate([flat(hub), m.ravel()])


@partial(jax.jit, static_argnums=(0, 1))
def _step(oracle, space, numbers, x, round):
    return _whole(oracle, space, numbers, x, round)


@partial(jax.jit, static_argnums=(0, 1))
def _slope(oracle, space, numbers, x, v):
    return jax.jvp(lambda x: _whole(oracle, space, numbers, x), (x,), (v,))[1]


@partial(jax.jit, static_argnums=(0, 1))
def _matrix(oracle, space, numbers, x):
    return jax.jacfwd(lambda x: _whole(oracle, space, numbers, x))(x)


@partial(jax.jit, static_argnums=(0, 1))
def _travel(oracle, space, numbers, x, first, rounds):
    def go(i, state):
        hub, m = state
        return expected(oracle, space, numbers, hub, m, first + i)

    hub, m = lax.fori_loop(0, rounds, go, start_at(numbers, x, first))
    return jnp.concatenate([flat(hub), m.ravel()])


@partial(jax.jit, static_argnums=(0, 1, 5))
def _path(oracle, space, numbers, x, first, rounds):
    def go(state, round):
        hub, m = state
        hub, m = expected(oracle, space, numbers, hub, m, round)
        return (hub, m), flat(numbers.algorithm.read(hub, ()))

    (hub, m), models = lax.scan(go, start_at(numbers, x, first), first + jnp.arange(rounds))
    return models, jnp.concatenate([flat(hub), m.ravel()])


@partial(jax.jit, static_argnums=0)
def _read(space, numbers, x):
    hub, _ = start_at(numbers, x, 0)
    return flat(numbers.algorithm.read(hub, ()))


@partial(jax.jit, static_argnums=0)
def _reading(space, numbers, u):
    hub = numbers.algorithm.init(numbers.model)[0]
    return jax.jacfwd(lambda u: flat(numbers.algorithm.read(fill(hub, u), ())))(u)


@partial(jax.jit, static_argnums=(0, 1))
def _merges(oracle, space, numbers, points):
    """The hub's merge of what it hears: mean and total of a message, mass and weight."""
    message, _ = template(space, oracle, numbers)
    hub = numbers.algorithm.init(numbers.model)[0]
    size = sum(int(np.prod(a.shape)) for a in jax.tree.leaves(message))

    def merge(v):
        mean, total = fill(message, v[:size]), fill(message, v[size : 2 * size])
        return flat(numbers.algorithm.combine(hub, Inbox(mean, total, 1 + 0.1 * v[-2], 1 + 0.1 * v[-1])))

    return jax.vmap(merge)(points)


@partial(jax.jit, static_argnums=0)
def _curvature(oracle, numbers, w):
    def field(w):
        model = unwrap(fill(numbers.model, w))
        return numbers.p @ per_agent(lambda own: flat(oracle.mean_field(Mine(own, numbers.common), model)), numbers.own)

    return jax.jacfwd(field)(w)
