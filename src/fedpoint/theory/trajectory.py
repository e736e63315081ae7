r"""What do runs along trajectories do? Mean and covariance of the state beside the joint state of all agents' chains.

Samples of one trajectory depend on each other, and on what the model has become by earlier ones. Model and chains
together are a Markov jump linear system: with X = (1, x - x*), x the state, and s = (s_1, ..., s_K) where chains are,

$$ S_s = E[X X' 1(s)], \qquad S_s^+ = \sum_{\omega: s' \to s} P(\omega)\, J_\omega S_{s'} J_\omega', $$

over the ways omega that the chains may go, is closed and exact for affine rounds; moments beside each agent's own chain
alone are not, unless there is one. Agents work one after the other here: what agent k carries through its round is
appended to X, and each of its steps moves chain k by one, and what is carried by the affine map of what the step
brought. The maps are derivatives of the method's own `local`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import pairwise
from operator import itemgetter
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
from fedpoint.core.precision import double
from fedpoint.core.random import NO_LUCK, Stream
from fedpoint.core.record import one_agent, split_per_agent
from fedpoint.core.types import Model, Number, Tree
from fedpoint.core.vector import take, unwrap, wrap
from fedpoint.problems.oracle import Jumps, Mine
from fedpoint.theory.expected_round import Numbers, hub_at, template
from fedpoint.theory.krylov import Krylov, solve
from fedpoint.theory.noise import local_round
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Gauge, Law, Outlook, Path
from fedpoint.theory.space import Space, fill, flat, row_of, size_of
from fedpoint.theory.steady import Way, moving, perron

JOINT = 1 << 20  # numbers of the moments of all joint states, at most
WORK = 1 << 26  # multiplications of one round of them, at most: it is gone through some hundred times
CLOSED = 0.5  # of what the chains' states tell, that a closure may be wrong by
DENSE = 44  # numbers of a state, up to which noise of all agents together is one array
OUT_OF_ORDER = "fields are not asked for in the order of their samples, one a step"


Numeric: TypeAlias = np.ndarray | Array  # JAX's while derivatives are taken


class NotJoint(FedpointError):
    """Why the joint states of an experiment's chains are not followed."""


# What one agent does along its trajectory.


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


# What the hub makes of it.


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


# A round of one agent beside its chain.


class Passage(NamedTuple):
    """What an agent's round makes of z = (1, u, m_k): the carried y, with where its chain begins (s) and ends (t)."""

    chance: np.ndarray  # (t, s): P(t | s)
    first: np.ndarray  # (t, y, s, z): E[y 1(t) | s] = first z
    second: np.ndarray  # (t, y, y, s, z, z): E[y y' 1(t) | s] of z z'

    @classmethod
    def of(cls, work: Work, chain: Jumps) -> Passage:
        S, z = len(chain.first), work.stages[0].start.shape[1] if work.stages else 1
        moves = chain.chance[:, None] * chain.after  # (outcome, t)
        made = cls(np.eye(S), np.zeros((S, 0, S, z)), np.zeros((S, 0, 0, S, z, z)))
        for stage in work.stages:
            y, start = made.first.shape[1], np.asarray(stage.start)
            A = np.concatenate([np.zeros((y, z)), start[:, :z]])
            B = np.concatenate([np.eye(y), start[:, z:]])
            made = cls(*(np.stack(part) for part in zip(*(made._moved(s, A, B) for s in range(S)), strict=True)))
            for maps in stage.maps:
                made = made._stepped(np.asarray(maps), chain.state, moves)
        return made

    def _stepped(self, maps: np.ndarray, state: np.ndarray, moves: np.ndarray) -> Passage:
        """A step more, of the stage that is the last so far."""
        z, y = self.first.shape[-1], self.first.shape[1]
        new, (A, B) = Passage(*(np.zeros_like(part) for part in self)), (np.zeros((y, z)), np.eye(y))
        for brought, s, chance in zip(maps, state, moves, strict=True):
            A[y - len(brought) :], B[y - len(brought) :] = brought[:, :z], brought[:, z:]
            moved = self._moved(s, A, B)
            for t in np.flatnonzero(chance):
                for total, part in zip(new, moved, strict=True):
                    total[t] += chance[t] * part
        return new

    def _moved(self, s: int, A: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, ...]:
        """y <- A z + B y where the chain is in s now."""
        chance, first, second = (part[s] for part in self)
        (y, z), from_ = A.shape, len(chance)
        went = np.tensordot(B, first, axes=1)
        stays = A[:, None, :] * chance[:, None]
        cross = A[:, None, None, :, None] * (went + stays / 2)[None, :, :, None, :]
        inner = np.tensordot(B, second, axes=1)
        inner = (B @ inner.reshape(y, second.shape[1], from_ * z * z)).reshape(y, y, from_, z, z)
        return chance, went + stays, inner + cross + cross.transpose(1, 0, 2, 4, 3)


# All joint states.


class Lineup(NamedTuple):
    chance: float
    who: np.ndarray  # agents that work
    merge: np.ndarray


class Chains:
    """What all agents do in a round, each beside its own chain."""

    @double
    def __init__(self, setting: Setting, x: np.ndarray):
        self.chains = chains_of(setting)
        self.works = [work_of(setting, x, k, c.sample) for k, c in enumerate(self.chains)]
        self.passages = [Passage.of(work, chain) for work, chain in zip(self.works, self.chains, strict=True)]
        self.lineups = [
            Lineup(float(chance), np.flatnonzero(heard), merge_of(setting, x, self.works, weight, heard))
            for chance, weight, heard in zip(*setting.timing.lineups(setting.problem.weights)[:3], strict=True)
        ]
        n_u, n_m = setting.u0.size, setting.m0.shape[1]
        self._known = [np.r_[: 1 + n_u, 1 + n_u + k * n_m : 1 + n_u + (k + 1) * n_m] for k in range(setting.agents)]
        P = moving(setting.matrix(x))
        self._moving = (
            None if P is None else np.block([[np.ones((1, 1)), np.zeros((1, len(P)))], [np.zeros((len(P), 1)), P]])
        )

    def _conserved(self, moments: np.ndarray) -> np.ndarray:
        """Second moments without what rounding adds along conserved quantities."""
        return moments if self._moving is None else self._moving @ moments @ self._moving.T

    def _through(self, V: np.ndarray, axis: int, k: int) -> np.ndarray:
        """With what agent k carries at the end of its round appended, and its chain, along an axis, moved on."""
        passage, known = self.passages[k], self._known[k]
        at = np.moveaxis(V, axis, 0)
        at = at.reshape(len(at), -1, *at.shape[-2:])  # (s, other chains, D, D)
        y, (s, n, D, _) = passage.first.shape[1], at.shape
        new = np.empty((s, n, D + y, D + y))
        new[..., :D, :D] = (passage.chance @ at.reshape(s, -1)).reshape(at.shape)
        rows = np.tensordot(passage.first, at[:, :, known], axes=((2, 3), (0, 2)))  # (t, y, other chains, D)
        new[..., D:, :D] = rows.transpose(0, 2, 1, 3)
        new[..., :D, D:] = rows.transpose(0, 2, 3, 1)
        inner = at[:, :, known][..., known]
        new[..., D:, D:] = np.tensordot(passage.second, inner, axes=((3, 4, 5), (0, 2, 3))).transpose(0, 3, 1, 2)
        shape = (s, *np.delete(V.shape[:-2], axis), D + y, D + y)
        return np.moveaxis(new.reshape(shape), 0, axis)


class Joint(Chains):
    """S -> the moments after a round, of every joint state: (S_1, ..., S_K, 1 + n, 1 + n)."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(c.first) for c in self.chains)

    def total(self, moments: np.ndarray) -> np.ndarray:
        """Over all joint states."""
        return np.asarray(moments.sum(axis=tuple(range(len(self.chains)))))

    @cached_property
    def first(self) -> np.ndarray:
        """The probability of every joint state: chains are independent, and stationary from the beginning on."""
        together = np.ones(())
        for chain in self.chains:
            together = np.multiply.outer(together, chain.first)
        return together

    def __call__(self, S: np.ndarray) -> np.ndarray:
        S = (S + np.swapaxes(S, -1, -2)) / 2  # what rounding adds to it would grow
        new = np.zeros_like(S)
        for lineup in self.lineups:
            V = S
            for k in lineup.who:
                V = self._through(V, k, k)
            new += lineup.chance * (lineup.merge @ V @ lineup.merge.T)
        return self._conserved(new)

    def mean(self, X: np.ndarray) -> np.ndarray:
        """The same of E[X 1(s)]: (S_1, ..., S_K, 1 + n)."""
        new = np.zeros_like(X)
        for lineup in self.lineups:
            V = X
            for k in lineup.who:
                chance, first, _ = self.passages[k]
                at = np.moveaxis(V, k, 0)
                carried = np.tensordot(first, at[..., self._known[k]], axes=((2, 3), (0, at.ndim - 1)))
                stays = np.tensordot(chance, at, axes=1)
                V = np.moveaxis(np.concatenate([stays, np.moveaxis(carried, 1, -1)], axis=-1), 0, k)
            new += lineup.chance * (V @ lineup.merge.T)
        return new if self._moving is None else new @ self._moving.T


# Many chains: a closure.


class Apart(Chains):
    """The same beside each agent's own chain, (all states of all agents, 1 + n, 1 + n), where everyone takes part.

    While agent k's chain is followed through a round, all others begin it anew; what they add to the moments on average
    because they did not is added for agent k's states alike.
    """

    def __init__(self, setting: Setting, x: np.ndarray):
        super().__init__(setting, x)
        merge, m = self.lineups[0].merge, 1 + len(x)
        sizes = [work.carried for work in self.works]
        ends = m + np.cumsum([0, *sizes])
        self._blocks = [merge[:, a:b] for a, b in pairwise(ends)]
        self._cuts = np.cumsum([len(chain.first) for chain in self.chains])[:-1]
        self._mean = merge[:, :m].copy()  # the round that is expected
        self._without = []  # the same without what agent k carries
        self._noise = np.zeros((m, m, m, m))  # what agents' own luck adds to second moments
        self._own_noise = []
        for block, known, passage, chain in zip(self._blocks, self._known, self.passages, self.chains, strict=True):
            first = np.einsum("tysz,s->yz", passage.first, chain.first)
            second = np.einsum("tyxsab,s->yxab", passage.second, chain.first)
            spread = second - np.einsum("ya,xb->yxab", first, first)
            noise = np.einsum("iy,jx,yxab->ijab", block, block, spread, optimize=True)
            self._mean[:, known] += block @ first
            self._noise[:, :, known[:, None], known] += noise
            self._without.append(-block @ first)
            self._own_noise.append(noise)

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(len(chain.first) for chain in self.chains),)

    @cached_property
    def first(self) -> np.ndarray:
        return np.concatenate([chain.first for chain in self.chains])

    def total(self, moments: np.ndarray) -> np.ndarray:
        """Over the states of any agent: they all have the same sum."""
        return np.asarray(moments.sum(0) / len(self.chains))

    def _together(self, followed: list[np.ndarray], anew: list[np.ndarray]) -> np.ndarray:
        """What is found beside each chain, and what the others add. anew: the same had each begun anew."""
        added = [own.sum(0) - plain for own, plain in zip(followed, anew, strict=True)]
        every = np.sum(added, axis=0)
        return np.concatenate(
            [
                own + np.multiply.outer(chain.first, every - mine)
                for own, chain, mine in zip(followed, self.chains, added, strict=True)
            ]
        )

    def __call__(self, S: np.ndarray) -> np.ndarray:
        S = (S + np.swapaxes(S, -1, -2)) / 2
        followed, anew = [], []
        for k, C in enumerate(np.split(S, self._cuts)):
            V, known = self._through(C, 0, k), self._known[k]
            W = V[:, : S.shape[-1], : S.shape[-1]]
            merge = np.concatenate([self._mean, self._blocks[k]], axis=1)
            merge[:, known] += self._without[k]
            noise = np.tensordot(W, self._noise, axes=((1, 2), (2, 3)))
            noise -= np.tensordot(W[:, known][..., known], self._own_noise[k], axes=((1, 2), (2, 3)))
            followed.append(merge @ V @ merge.T + noise)
            plain = C.sum(0)
            anew.append(self._mean @ plain @ self._mean.T + np.tensordot(self._noise, plain, axes=2))
        return self._conserved(self._together(followed, anew))

    def mean(self, X: np.ndarray) -> np.ndarray:
        followed, anew = [], []
        for k, C in enumerate(np.split(X, self._cuts)):
            chance, first, _ = self.passages[k]
            stays, known = chance @ C, self._known[k]
            carried = np.tensordot(first, C[:, known], axes=((2, 3), (0, 1)))
            new = stays @ self._mean.T + stays[:, known] @ self._without[k].T + carried @ self._blocks[k].T
            followed.append(new)
            anew.append(self._mean @ C.sum(0))
        new = self._together(followed, anew)
        return new if self._moving is None else new @ self._moving.T


def chains_of(setting: Setting) -> list[Jumps]:
    """The chain of every agent's world, of the states where it is ever found."""
    own, chains = jax.tree.map(np.asarray, setting.numbers.inputs.own), []
    for k in range(setting.agents):
        chain = setting.oracle.jumps(Mine(jax.tree.map(itemgetter(k), own), setting.numbers.inputs.common))
        if chain is None:
            raise NotJoint("the world that goes on is no finite chain")
        found = np.flatnonzero(chain.first > 0)
        place = np.full(len(chain.first), -1)
        place[found] = np.arange(len(found))
        kept = place[chain.state] >= 0
        chains.append(
            Jumps(
                chain.first[found],
                place[chain.state[kept]],
                chain.chance[kept],
                chain.after[kept][:, found],
                chain.sample[kept],
            )
        )
    return chains


@double
def unsuited(setting: Setting) -> str:
    """Why the joint states of all chains are not followed; empty where they are."""
    s = setting
    if why := _unaffine(s):
        return why
    if s.timing.lineups(s.problem.weights).drawn:
        return f"the lineups of {type(s.timing).__name__} are not few"
    try:
        chains = chains_of(s)
        joint = math.prod(len(chain.first) for chain in chains)
        few = joint * (1 + s.size) ** 2 <= JOINT and _work(s, chains) <= WORK
    except NotJoint as error:
        return str(error)
    return "" if few else f"the {s.agents} chains have too many joint states"


@double
def unclosed(setting: Setting) -> str:
    """Why not even each agent's own chain is followed; empty where it is."""
    s = setting
    if why := _unaffine(s):
        return why
    if not s.timing.everyone:
        return unsuited(s) or "not everyone takes part in a round"
    try:
        chains, stages = chains_of(s), _stages(s)
    except NotJoint as error:
        return str(error)
    z, cells = 1 + s.u0.size + s.m0.shape[1], sum(len(chain.first) for chain in chains)
    each = (
        len(chain.first) * len(chain.chance) * count * (size * z) ** 2
        for chain, own in zip(chains, stages, strict=True)
        for count, size in own
    )
    few = s.size <= DENSE and cells * (1 + s.size) ** 2 <= JOINT and sum(each) <= 4 * WORK
    return "" if few else f"the {s.agents} chains have too many states, {cells} together"


def _unaffine(setting: Setting) -> str:
    s = setting
    if not (s.problem.linear and s.straight) or s.scheduled or s.adaptive:
        return "rounds are not affine"
    if s.topology.by_node or s.topology.nested or s.lossy or s.bound.merged_by:
        return "there is no fusion center that adds up what is sent"
    if any(s.numbers.drawn) or s.lucky:
        return "the method draws numbers of its own"
    if s.moments.merge < 1 or not s.moments.independent:
        return f"rounds of {type(s.timing).__name__} are abandoned, or depend on each other"
    return ""


def _stages(setting: Setting) -> list[list[tuple[int, int]]]:
    s = setting
    return [stages_of(Local(s.space, s.numbers, k), known_by(s, s.origin, k)) for k in range(s.agents)]


def _work(setting: Setting, chains: list[Jumps]) -> float:
    """About how many multiplications a round of all joint states takes."""
    s, joint = setting, math.prod(len(chain.first) for chain in chains)
    carried = [sum(size for _, size in each) for each in _stages(s)]
    z, whole = 1 + s.u0.size + s.m0.shape[1], 1 + s.size + sum(carried)
    each = (
        len(chain.first) * (whole**2 + y * z * whole + (y * z) ** 2) for chain, y in zip(chains, carried, strict=True)
    )
    return joint * sum(each) * len(s.timing.lineups(s.problem.weights).chance)


class Trajectory(Outlook):
    """Affine rounds whose samples come from one trajectory per agent, exactly; runs begin in the state `origin`.

    x: any state with what is conserved as it is in `origin`; the fixed point of independent samples is close.
    """

    how = "trajectory"

    operator: type[Joint] | type[Apart] = Joint

    def __init__(self, setting: Setting, x: np.ndarray, origin: np.ndarray, gauge: Gauge):
        self.setting, self.x, self.origin, self.gauge = setting, x, origin, gauge
        self.R = gauge.of_state(setting.reading)
        self.move = self.operator(setting, x)

    @property
    def n(self) -> int:
        return 1 + len(self.x)

    @property
    def _still(self) -> np.ndarray:
        """The moments of runs at x."""
        S = np.zeros((*self.move.shape, self.n, self.n))
        S[..., 0, 0] = self.move.first
        return S

    @cached_property
    def _mean(self) -> np.ndarray:
        """(..., n): E[(x_t - x) 1(s)] once settled."""
        source = self.move.mean(self._still[..., 0])[..., 1:]
        return solve(self._rows, source, 1e-12, most=300)[0]

    def _rows(self, mean: np.ndarray) -> np.ndarray:
        return self.move.mean(np.concatenate([np.zeros((*mean.shape[:-1], 1)), mean], axis=-1))[..., 1:]

    @cached_property
    def memory(self) -> float:
        found = 0.0
        for chain, work in zip(self.move.chains, self.move.works, strict=True):
            moves = np.zeros((len(chain.first), len(chain.first)))
            np.add.at(moves, chain.state, chain.chance[:, None] * chain.after)
            second = np.sort(np.abs(np.linalg.eigvals(moves)))[:-1].max(initial=0.0)
            found = max(found, float(second) ** sum(len(stage.maps) for stage in work.stages))
        return found

    @cached_property
    def own_rate(self) -> float:
        start = np.random.default_rng(0).normal(size=(*self.move.shape, self.n - 1))
        return _radius(self._rows, self._rows(start), lambda space: float(np.abs(space.ritz()).max(initial=0.0)))

    @cached_property
    def rate(self) -> float:
        root = np.random.default_rng(1).normal(size=(*self.move.shape, self.n, min(self.n, 8)))
        root[..., 0, :] = 0.0
        return _radius(self.move, self.move(root @ np.swapaxes(root, -1, -2)), perron)

    @cached_property
    def _settled(self) -> np.ndarray | None:
        """(..., 1 + n, 1 + n): the moments once settled; None where they grow."""
        if self.rate >= 1 or self.own_rate >= 1:
            return None
        still = self._still
        source = self.move(still) - still
        source[..., 0, 0] = 0.0
        return still + solve(self.move, source, 1e-11, most=400)[0]

    @property
    def limit(self) -> np.ndarray:
        return self.setting.read(self.x + self.move.total(self._mean))

    def _read(self, S: np.ndarray) -> np.ndarray:
        """Second moments of (1, what is measured)."""
        P = np.zeros((1 + len(self.R), self.n))
        P[0, 0], P[1:, 1:] = 1.0, self.R
        return np.asarray(P @ self.move.total(S) @ P.T)

    @property
    def variance(self) -> float:
        if self._settled is None:
            return math.inf
        S = self._read(self._settled)
        return float(np.trace(S[1:, 1:]) - S[0, 1:] @ S[0, 1:])

    @property
    def begun(self) -> np.ndarray:
        """The moments before the first round."""
        x0 = np.concatenate([[1.0], self.origin - self.x])
        return np.multiply.outer(self.move.first, np.outer(x0, x0))

    @cached_property
    def _way(self) -> Way:
        """What is left to the settled moments; all where there are none."""
        return Way(self.move, self.begun if self._settled is None else self.begun - self._settled, self._read)

    @cached_property
    def _end(self) -> np.ndarray:
        return np.zeros((1 + len(self.R),) * 2) if self._settled is None else self._read(self._settled)

    @property
    def _gap(self) -> np.ndarray:
        return self.gauge(self.setting.read(self.x) - self.gauge.target)

    def path(self, rounds: int) -> Path:
        rows, traces = self._way.path(rounds)
        mean, square = rows[:, 1:] + self._end[0, 1:], traces + np.trace(self._end[1:, 1:])
        return Path(((self._gap + mean) ** 2).sum(1), np.maximum(square - (mean**2).sum(1), 0.0))

    def law(self, round: int | None) -> Law | None:
        if round is None and self._settled is None:
            return None
        S = self._end if round is None else self._end + self._way.after(round)
        if not np.isfinite(S).all():
            return None
        mean = S[0, 1:]
        return Law.of(self._gap + mean, S[1:, 1:] - np.outer(mean, mean))


class OwnChains(Trajectory):
    """The same of many chains, by a closure: what they do to each other through the model is left out."""

    how = "chains"
    operator = Apart

    @cached_property
    def doubt(self) -> float:
        """About how much of the floor may be wrong: a share of what the chains' states tell of the model's spread.

        Beside the exact moments of two to four chains it was off by less than that in all cases, mostly far less.
        """
        if self._settled is None:
            return math.inf
        means = self._settled[..., 0, 1:] @ self.R.T
        apart = means / self.move.first[:, None] - self.move.total(means)
        told = float(self.move.first @ (apart**2).sum(1))
        return CLOSED * told / max(self.variance, 1e-300)


def _radius(apply: Callable[[np.ndarray], np.ndarray], start: np.ndarray, top_of: Callable[[Krylov], float]) -> float:
    space, last = Krylov(apply, start), -1.0
    while True:
        space.extend(space.steps + 20)
        top = top_of(space)
        if space.closed or abs(top - last) <= 1e-8 * top or space.steps >= min(space.most, 200):
            return top
        last = top
