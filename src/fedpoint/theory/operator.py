"""What does a round do on average? The expected round as a smooth map of the state, to be differentiated.

The state is (hub, memories) flattened: u, the hub's floats, and m, one row of floats for each agent, completed by
what the agent hears next (`settle`). With exact fields, weights replaced by their means and memories moving with the
probability of being heard, one round is a map F(u, m). It is the expectation of the random round where fields are
affine and the hub merges linearly; elsewhere it is the round without noise, and a forecast says so.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import split_per_agent
from fedpoint.core.inbox import Inbox
from fedpoint.core.participation import Everyone, Moments, as_participation
from fedpoint.core.random import Key
from fedpoint.core.record import with_leaves
from fedpoint.core.steps import Stragglers
from fedpoint.core.vector import unwrap, wrap
from fedpoint.errors import FedpointError
from fedpoint.problems.base import Mine, per_agent
from fedpoint.runtimes import cache
from fedpoint.runtimes.session import bind_algorithm, cast, check_valid

DENSE = 64  # numbers of a state, up to which products with F' are made from the whole matrix


class Space(NamedTuple):
    """How hub, memory and message are flattened: structure, compiled in."""

    kept: tuple[int, ...]  # leaves of a settled memory that are not a function of the hub
    most: int  # at least as many local steps as any agent takes
    alike: bool  # every local step is the same map
    settled: bool  # memories are completed by the merged model


class Numbers(NamedTuple):
    """The numbers of a setting: traced, so that other hyper-parameters do not compile again."""

    algorithm: Any
    own: Any
    common: Any
    p: Any
    mean: Any  # E v_k
    heard: Any  # P(agent k is heard)
    merge: Any  # P(a round is merged)
    model: Any
    chances: tuple[Array, Array]  # probabilities of the hub's draws, and what they set
    late: tuple[Array, Array]  # the same for an agent's own draws (stragglers)
    drawn: Any  # names of the fields these two set: structure


class Drawn(NamedTuple):
    hub: str | None
    agent: str | None


jax.tree_util.register_pytree_node(Drawn, lambda d: ((), (d.hub, d.agent)), lambda aux, _: Drawn(*aux))


def floats(tree: Any) -> list[Any]:
    return [a for a in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(a), jnp.floating)]


def flat(tree: Any) -> Array:
    """The floats of a tree as one vector."""
    parts = [jnp.ravel(a) for a in floats(tree)]
    return jnp.concatenate(parts).astype(float) if parts else jnp.zeros(0)


def fill(like: Any, vector: Array) -> Any:
    """The tree again; what is not a float is taken from `like`."""
    leaves, tree = jax.tree.flatten(like)
    filled, at = [], 0
    for a in leaves:
        if jnp.issubdtype(jnp.result_type(a), jnp.floating):
            size = int(np.prod(np.shape(a)))
            filled.append(vector[at : at + size].reshape(np.shape(a)))
            at += size
        else:
            filled.append(a)
    return jax.tree.unflatten(tree, filled)


class Setting:
    """An algorithm on a problem with a participation, ready for theory: everything in double precision.

    coarse: few programs for many numbers of local steps, each of which computes more than it needs.
    affine: the answer to `affine` where it is known from a setting of the same kind.
    """

    def __init__(
        self,
        algorithm: Any,
        problem: Any,
        participation: Any,
        start: Any,
        exact: bool,
        coarse: bool = False,
        affine: bool | None = None,
    ):
        cache.enable()
        participation = as_participation(participation)
        check_valid(algorithm, participation)
        self.problem, self.exact = problem, exact
        self._last: tuple[np.ndarray, np.ndarray] | None = None
        if affine is not None:
            self.affine = affine
        self.algorithm = bind_algorithm(algorithm, problem)
        participation.slots(problem.agents)
        self.participation = participation.bind(problem, self.algorithm, exact)
        self.own_kind = not type(algorithm).__module__.startswith("fedpoint.algorithms")  # a user's own
        with jax.enable_x64(True):
            self.oracle = problem.prepare(self.algorithm)
            self.start = jax.tree.map(lambda a: np.asarray(a, float), start)
            model = wrap(jax.tree.map(jnp.asarray, self.start))
            one, drawn, chances, late = unroll(self.algorithm, symmetric=problem.has_loss)
            if not self.own_kind:
                one = trace_steps(one)
            one = cast(one, float)
            self._check_say(one, model)
            self.space = Space(
                kept_leaves(one, model), most_steps(self.algorithm, chances, late, coarse), self._alike(), self.settles
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
                    chances,
                    late,
                    drawn,
                )
            )
            hub, memory = one.init(model)
            self.u0 = np.asarray(flat(hub))
            settled = take_leaves(one.settle(hub, memory), self.space.kept)
            self.m0 = np.tile(np.asarray(flat(settled)), (problem.agents, 1))
        if self.settles and not isinstance(self.participation, Everyone):
            raise FedpointError(
                f"{type(algorithm).card.title} completes memories with the merged model: a forecast needs everyone"
            )

    @cached_property
    def moments(self) -> Moments:
        return self.participation.moments(self.problem.weights)

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
        return type(self.algorithm).settle.__qualname__ != "Defaults.settle"

    def _alike(self) -> bool:
        return bool(self.problem.linear and not self.own_kind and not self.scheduled and self.algorithm.alike())

    @cached_property
    def scheduled(self) -> bool:
        """Steps change from round to round."""
        values = (getattr(self.algorithm, f.name) for f in dataclasses.fields(self.algorithm))
        if any(hasattr(v, "value") and hasattr(v, "_leaves") for v in values):
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
                    f"{type(algorithm).__name__}: its hub draws random numbers (say), and does not tell which: "
                    "give it a method `chances` as Scaffnew has"
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
        if isinstance(self.participation, Everyone):
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


def unroll(algorithm: Any, symmetric: bool):
    """An algorithm without randomness of its own: with the fields that its draws set, and their chances.

    symmetric: fields are gradients, whose slopes have real eigenvalues.
    """
    certain = (np.ones(1), np.zeros(1, np.int32))
    hub, agent, chances, late = None, None, certain, certain
    told = algorithm.chances() if symmetric else algorithm.every_chance()
    if told is not None:
        hub, values, probabilities = told
        chances = (np.asarray(probabilities, float), np.asarray(values))
        algorithm = with_leaves(algorithm, **{hub: chances[1][0]})
    steps = getattr(algorithm, "local_steps", None)
    if isinstance(steps, Stragglers):
        agent, E, f = "local_steps", int(steps.steps), float(steps.fraction)
        each = np.full(E, f / E)
        each[-1] += 1 - f
        some = each > 0
        late = (each[some], np.arange(1, E + 1, dtype=np.int32)[some])
        algorithm = with_leaves(algorithm, local_steps=late[1][0])
    return algorithm, Drawn(hub, agent), chances, late


def trace_steps(algorithm: Any) -> Any:
    """Whole numbers of local steps as numbers that are traced: another count does not compile again."""
    steps = getattr(algorithm, "local_steps", None)
    return with_leaves(algorithm, local_steps=np.int32(steps)) if isinstance(steps, int) else algorithm


def most_steps(algorithm: Any, chances: Any, late: Any, coarse: bool) -> int:
    """A bound on local steps, so that few programs are compiled: 1, 2, 4, ...; 8, 64, ... where coarse."""
    steps = getattr(algorithm, "local_steps", 1)
    steps = 1 if steps is None else getattr(steps, "steps", steps)
    top = max(int(np.max(np.asarray(steps))), int(np.max(chances[1])), int(np.max(late[1])))
    bound, factor = (8, 8) if coarse else (1, 2)
    while bound < top:
        bound *= factor
    return bound


def kept_leaves(algorithm: Any, model: Any) -> tuple[int, ...]:
    """Leaves of a settled memory that depend on the memory: the others the hub tells."""
    hub, memory = algorithm.init(model)
    leaves, tree = jax.tree.flatten(memory)
    where = [i for i, a in enumerate(leaves) if jnp.issubdtype(jnp.result_type(a), jnp.floating)]

    def settled(values):
        full = list(leaves)
        for i, v in zip(where, values, strict=True):
            full[i] = v
        return [jax.tree.leaves(algorithm.settle(hub, jax.tree.unflatten(tree, full)))[i] for i in where]

    if not where:
        return ()
    rng = np.random.default_rng(0)  # directions in which nothing cancels by chance
    tangents = [jnp.asarray(rng.normal(size=np.shape(leaves[i])), jnp.result_type(leaves[i])) for i in where]
    moved = jax.jvp(settled, ([leaves[i] for i in where],), (tangents,))[1]
    return tuple(i for i, a in zip(where, moved, strict=True) if np.any(np.asarray(a) != 0))


def take_leaves(memory: Any, kept: tuple[int, ...]) -> list[Any]:
    leaves = jax.tree.leaves(memory)
    return [leaves[i] for i in kept]


def memory_of(space: Space, algorithm: Any, hub: Any, model: Any, m: Array) -> Any:
    """An agent's settled memory from its kept floats."""
    blank = algorithm.settle(hub, algorithm.init(model)[1])
    leaves, tree = jax.tree.flatten(blank)
    at = 0
    for i in space.kept:
        size = int(np.prod(np.shape(leaves[i])))
        leaves[i] = m[at : at + size].reshape(np.shape(leaves[i]))
        at += size
    return jax.tree.unflatten(tree, leaves)


def over_outcomes(numbers: Numbers, function) -> Any:
    """sum of chance x function(numbers with the hub's draw decided)."""
    if numbers.drawn.hub is None:
        return function(numbers)
    probabilities, values = numbers.chances
    names = numbers.drawn.hub

    def one(total, chance):
        probability, value = chance
        out = function(numbers._replace(algorithm=with_leaves(numbers.algorithm, **{names: value})))
        return jax.tree.map(lambda t, a: t + probability * a, total, out), None

    shapes = jax.eval_shape(function, numbers)
    zero = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    return lax.scan(one, zero, (probabilities, values))[0]


def local_round(space: Space, numbers: Numbers, algorithm: Any, agent: Agent, hub: Any, m: Array) -> tuple[Any, Any]:
    """One agent's message and its memory, not yet settled."""
    heard = algorithm.say(hub, Key(jnp.uint32(0), jnp.uint32(0)).row())
    memory = memory_of(space, algorithm, hub, numbers.model, m)
    return algorithm.local(heard, memory, agent)


def over_late(numbers: Numbers, algorithm: Any, function) -> Any:
    """function(algorithm) averaged over an agent's own draws."""
    if numbers.drawn.agent is None:
        return function(algorithm)
    probabilities, values = numbers.late
    outs = jax.vmap(lambda v: function(with_leaves(algorithm, **{numbers.drawn.agent: v})))(values)
    return jnp.tensordot(probabilities, outs, axes=1)


def template(space: Space, oracle: Any, numbers: Numbers) -> tuple[Any, Any]:
    """Shapes of a message and of a memory."""

    def both(numbers):
        algorithm = one_agent(numbers, 0)
        hub, memory = numbers.algorithm.init(numbers.model)
        mine = Mine(jax.tree.map(lambda a: a[0], numbers.own), numbers.common)
        agent = Agent(oracle, mine, Key(jnp.uint32(0), jnp.uint32(0)), None, None, True, 0, numbers.p[0])
        heard = algorithm.say(hub, Key(jnp.uint32(0), jnp.uint32(0)).row())
        return algorithm.local(heard, memory, agent)

    return jax.eval_shape(both, numbers)


def one_agent(numbers: Numbers, index: Any) -> Any:
    """The algorithm with one agent's hyper-parameters."""
    tuned, put = split_per_agent(numbers.algorithm, numbers.p.shape[0])
    return put(jax.tree.map(lambda a: a[index], tuned))


def expected(oracle: Any, space: Space, numbers: Numbers, hub: Any, m: Array, round: Any) -> tuple[Any, Array]:
    """One expected round: the hub and every agent's floats."""
    u, new = over_outcomes(numbers, lambda one: _merged(oracle, space, one, hub, m, round))
    keep = 1 - numbers.merge
    hub = count_on(hub)
    return fill(hub, keep * flat(hub) + numbers.merge * u), keep * m + numbers.merge * new


def count_on(hub: Any) -> Any:
    """The hub with its counters of rounds gone on by one."""
    return jax.tree.map(lambda a: a if jnp.issubdtype(jnp.result_type(a), jnp.floating) else a + 1, hub)


def _merged(oracle, space, numbers, hub, m, round):
    message, memory = template(space, oracle, numbers)
    tuned, put = split_per_agent(numbers.algorithm, numbers.p.shape[0])
    size = sum(int(np.prod(a.shape)) for a in jax.tree.leaves(message))

    def work(k):
        own, tuned, m, share = k
        agent_algorithm = put(tuned)

        def run(algorithm):
            agent = Agent(oracle, Mine(own, numbers.common), ZERO, None, None, True, round, share)
            sent, new = local_round(space, numbers, algorithm, agent, hub, m)
            return jnp.concatenate([flat(sent), flat(new)])

        return over_late(numbers, agent_algorithm, run)

    out = per_agent(work, (numbers.own, tuned, m, numbers.p))
    sent, new = out[:, :size], out[:, size:]
    share = numbers.p * numbers.heard
    inbox = Inbox(fill(message, numbers.mean @ sent), fill(message, share @ sent), share.sum(), numbers.mean.sum())
    hub = numbers.algorithm.combine(hub, inbox)

    def settle(new):
        return flat(take_leaves(numbers.algorithm.settle(hub, fill(memory, new)), space.kept))

    return flat(hub), m + numbers.heard[:, None] * (jax.vmap(settle)(new) - m) if space.kept else m


ZERO = Key(np.uint32(0), np.uint32(0))  # type: ignore[arg-type]  # exact fields draw nothing


def hub_at(numbers: Numbers, round: Any) -> Any:
    """The hub before a round, for its structure: its counters have counted the rounds."""
    hub = numbers.algorithm.init(numbers.model)[0]
    return jax.tree.map(lambda a: a if jnp.issubdtype(jnp.result_type(a), jnp.floating) else a + round, hub)


def start_at(numbers: Numbers, x: Array, round: Any) -> tuple[Any, Array]:
    """Hub and memories from a flat state."""
    hub = hub_at(numbers, round)
    size = sum(int(np.prod(np.shape(a))) for a in floats(hub))
    return fill(hub, x[:size]), x[size:].reshape(numbers.p.shape[0], -1)


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


PATH = 256  # rounds of a path that are computed at a time


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
