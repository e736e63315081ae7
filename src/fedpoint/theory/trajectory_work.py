"""What an agent carries through a round along a trajectory: the affine map of each step, and of what it sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from fedpoint.core.agent import Advance, Agent
from fedpoint.core.compiling import fairly_quickly
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import NO_LUCK, Stream
from fedpoint.core.record import one_agent, split_per_agent
from fedpoint.core.types import Model, Number, Tree
from fedpoint.core.vector import take, unwrap, wrap
from fedpoint.problems.oracle import Mine
from fedpoint.theory.expected_round import Numbers, hub_at, template
from fedpoint.theory.noise import local_round
from fedpoint.theory.operator import Setting
from fedpoint.theory.space import Space, fill, flat, row_of, size_of

DENSE = 44  # numbers of a state, up to which noise of all agents together is one array
OUT_OF_ORDER = "fields are not asked for in the order of their samples, one a step"


Numeric: TypeAlias = np.ndarray | Array  # JAX's while derivatives are taken


class NotJoint(FedpointError):
    """Why the joint states of an experiment's chains are not followed."""


class Stage(NamedTuple):
    """A loop of local steps, or one field outside of it. What is carried begins as an affine map of z = (1, u, m_k,
    what was carried before), and each step makes an affine map of (z, carried) of it, by what the step brought."""

    start: Numeric  # (carried, z)
    maps: Numeric  # (steps, outcomes, carried, z + carried)


class Work(NamedTuple):
    """One agent's round: message and memory are an affine map of (1, u, m_k, all that was carried)."""

    stages: list[Stage]
    out: Numeric

    @property
    def carried(self) -> int:
        return sum(len(stage.start) for stage in self.stages)


class Request(NamedTuple):
    """What a method asks its agent for: so many steps, from a start."""

    start: Array
    steps: Number


class Step(NamedTuple):
    """One step to be taken: from what is carried, with this sample, the e-th."""

    carried: Array
    sample: Array
    e: Array


class Replayed(Agent):
    """An agent whose loops and fields end where it is told; in the stage after these it takes one step, if there is
    one to be taken."""

    def __init__(self, space: Space, mine: Mine, share: Number, ends: Sequence[Array], step: Step | None = None):
        super().__init__(space.oracle, mine, Stream(NO_LUCK, 0, 0), None, None, True, share)
        self.ends, self.step = ends, step
        self.requests: list[Request] = []
        self.moved: Array | None = None
        self.in_order = True
        self._inside: list[Number] | None = None  # the samples of fields asked for in the step

    def _next(self, start: Tree, steps: Number) -> tuple[Step | None, Tree, Callable[[Array], Tree]]:
        """The step to be taken in this stage, where it ends, and how what is carried is read."""
        at, back = ravel_pytree(start)
        n = len(self.requests)
        self.requests.append(Request(at, steps))
        return self.step if n == len(self.ends) else None, back(self.ends[n]) if n < len(self.ends) else start, back

    def _sampled(self, w: Model, sample: Array) -> Model:
        return wrap(self._oracle.field(self._mine, unwrap(w), sample))

    def field(self, w: Model, e: Number = 0) -> Model:
        if self._inside is not None:
            self._inside.append(e)
            assert self.step is not None
            return self._sampled(w, self.step.sample)
        self.evaluations = self.evaluations + 1
        step, end, _ = self._next(wrap(self._oracle.mean_field(self._mine, unwrap(w))), 1)
        if step is not None:
            self.moved = ravel_pytree(self._sampled(w, step.sample))[0]
        return end

    def loop(self, start: Tree, steps: Number, advance: Advance) -> Tree:
        step, end, back = self._next(start, steps)
        if step is not None:
            self._inside = []
            self.moved = ravel_pytree(advance(back(step.carried), step.e))[0]
            self.in_order = len(self._inside) == 1 and self._inside[0] is step.e
            self._inside = None
        return end

    def _fork(self, chain: int, chains: int) -> Self:
        raise NotJoint("models that run side by side share their samples")

    def normal(self, like: Tree) -> Tree:
        raise NotJoint("agents draw numbers of their own")

    uniform = normal


class Ordered(Replayed):
    """One that refuses what is not asked for in the order of the samples."""

    def field(self, w: Model, e: Number = 0) -> Model:
        if self._inside is None and int(e) != sum(int(asked.steps) for asked in self.requests):
            raise NotJoint(OUT_OF_ORDER)
        return super().field(w, e)

    def loop(self, start: Tree, steps: Number, advance: Advance) -> Tree:
        if self.requests:
            raise NotJoint(OUT_OF_ORDER)
        end = super().loop(start, steps, advance)
        if not self.in_order:
            raise NotJoint(OUT_OF_ORDER)
        return end


class Local(NamedTuple):
    """One agent's round as a function of what it hears and remembers, (u, m_k)."""

    space: Space
    numbers: Numbers
    k: int | Array

    def agent(self, kind: type[Replayed], ends: Sequence[Array], step: Step | None = None) -> Replayed:
        inputs = self.numbers.inputs
        mine = Mine(take(inputs.own, self.k), inputs.common)
        return kind(self.space, mine, self.numbers.p[self.k], ends, step)

    def out(self, agent: Replayed, ext: Array) -> Array:
        """Message and memory."""
        algorithm, hub = one_agent(self.numbers.algorithm, self.k), hub_at(self.numbers, 0)
        n_u = size_of(hub)
        sent, memory = local_round(self.space, self.numbers, algorithm, agent, fill(hub, ext[:n_u]), ext[n_u:])
        return jnp.concatenate([flat(sent), flat(memory)])


def stages_of(local: Local, ext: Array) -> list[tuple[int, int]]:
    """Steps and carried numbers of every stage of an agent's round, whose fields are asked for in the order of their
    samples."""
    algorithm = one_agent(local.numbers.algorithm, local.k)  # whose numbers of steps are known
    sure = local._replace(numbers=local.numbers.using(algorithm))
    found: list[tuple[int, int]] = []

    def trace(ext: Array) -> Array:
        first = sure.agent(Ordered, [])
        out = sure.out(first, ext)
        starts = [asked.start for asked in first.requests]
        for n, start in enumerate(starts):
            sure.out(sure.agent(Ordered, starts[:n], Step(start, jnp.int32(0), jnp.int32(0))), ext)
        found.extend((int(asked.steps), asked.start.size) for asked in first.requests)
        return out

    jax.eval_shape(trace, ext)
    return found


@partial(fairly_quickly, static_argnums=(0, 1))
def _worked(space: Space, counts: tuple[int, ...], numbers: Numbers, k: Array, at: Array, samples: Array) -> Work:
    """Agent k's round around (u, m_k). Carried numbers are deviations from where they begin there."""
    local = Local(space, numbers, k)
    ends: list[Array] = []

    def run(ext: Array, ends: Sequence[Array], step: Step | None = None) -> tuple[Array, Replayed]:
        agent = local.agent(Replayed, ends, step)
        return local.out(agent, ext), agent

    def stage(n: int, count: int) -> Stage:
        def begun(ext: Array, *before: Array) -> Array:
            return run(ext, before)[1].requests[n].start

        start = begun(at, *ends)

        def map_of(e: Array, sample: Array) -> Array:
            def moved(ext: Array, *values: Array) -> Array:
                moved = run(ext, values[:-1], Step(values[-1], sample, e))[1].moved
                assert moved is not None
                return moved

            return _affine(moved, start, at, *ends, start)

        maps = jax.vmap(lambda e: jax.vmap(lambda sample: map_of(e, sample))(samples))(jnp.arange(count))
        begin = _affine(begun, start, at, *ends)
        ends.append(start)
        return Stage(begin, maps)

    stages = [stage(n, count) for n, count in enumerate(counts)]
    return Work(stages, _affine(lambda ext, *ends: run(ext, ends)[0], jnp.zeros(()), at, *ends))


def _affine(function: Callable[..., Array], base: Array, *points: Array) -> Array:
    """(out, 1 + all): value above a base, and slopes, at the points."""
    slopes = jax.jacfwd(function, argnums=tuple(range(len(points))))(*points)
    return jnp.concatenate([(function(*points) - base)[:, None], *slopes], axis=1)


def known_by(setting: Setting, x: np.ndarray, k: int) -> Array:
    """(u, m_k): what agent k hears and remembers in the state x."""
    n_u = setting.u0.size
    return jnp.asarray(np.concatenate([x[:n_u], x[n_u:].reshape(setting.agents, -1)[k]]))


def work_of(setting: Setting, x: np.ndarray, k: int, samples: np.ndarray) -> Work:
    """Agent k's round around the state x, with what each sample makes of a step."""
    space, numbers, at = setting.space, setting.numbers, known_by(setting, x, k)
    steps = tuple(count for count, _ in stages_of(Local(space, numbers, k), at))
    counts = (1,) * len(steps) if space.alike else steps
    found = _worked(space, counts, numbers, jnp.int32(k), at, jnp.asarray(samples))
    stages = [
        Stage(np.asarray(stage.start), np.broadcast_to(stage.maps, (count, *stage.maps.shape[1:])))
        for stage, count in zip(found.stages, steps, strict=True)
    ]
    return Work(stages, np.asarray(found.out))


@partial(fairly_quickly, static_argnums=0)
def _merged(
    space: Space, numbers: Numbers, x: Array, outs: Array, weight: Array, heard: Array
) -> tuple[Array, tuple[Array, Array]]:
    """The state after a round in which agents' outs are heard with these weights: its value and slopes."""
    hub, (message, memory) = hub_at(numbers, 0), template(space, numbers)
    n_u, n_s = size_of(hub), size_of(message)
    tuned, put = split_per_agent(numbers.algorithm)

    def merged(x: Array, outs: Array) -> Array:
        share, sent = numbers.p * heard, outs[:, :n_s]
        inbox = Inbox(fill(message, weight @ sent), fill(message, share @ sent), share.sum(), weight.sum())
        new = numbers.algorithm.combine(fill(hub, x[:n_u]), inbox)

        def row(tuned: Sequence[Number], out: Array) -> Array:
            return row_of(space, put(tuned), new, fill(memory, out))

        rows = x[n_u:].reshape(len(outs), -1)
        rows = jnp.where(heard[:, None] > 0, jax.vmap(row)(tuned, outs[:, n_s:]), rows)
        return jnp.concatenate([flat(new), rows.ravel()])

    return merged(x, outs), jax.jacfwd(merged, argnums=(0, 1))(x, outs)


def merge_of(setting: Setting, x: np.ndarray, works: list[Work], weight: np.ndarray, heard: np.ndarray) -> np.ndarray:
    """(1 + n, 1 + n + what is carried by those heard): a round's end as a map of X and what was carried."""
    outs = jnp.asarray(np.stack([work.out[:, 0] for work in works]))
    found = _merged(setting.space, setting.numbers, jnp.asarray(x), outs, jnp.asarray(weight), jnp.asarray(heard))
    value, (by_state, by_outs) = jax.tree.map(np.asarray, found)
    n, n_u, n_m, who = len(x), setting.u0.size, setting.m0.shape[1], np.flatnonzero(heard)
    whole = np.zeros((1 + n, 1 + n + sum(works[k].carried for k in who)))
    whole[0, 0], whole[1:, 0], whole[1:, 1 : 1 + n] = 1.0, value - x, by_state
    at = 1 + n
    for k in who:
        slope, own, carried = by_outs[:, k] @ works[k].out[:, 1:], 1 + n_u + k * n_m, works[k].carried
        whole[1:, 1 : 1 + n_u] += slope[:, :n_u]
        whole[1:, own : own + n_m] += slope[:, n_u : n_u + n_m]
        whole[1:, at : at + carried] = slope[:, n_u + n_m :]
        at += carried
    return whole
