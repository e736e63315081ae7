"""How noisy is what an agent does? Its round around a point, linear in what it hears, remembers and draws.

The noise inside an agent's round comes from the code itself: the agent runs with exact fields plus a probe where each
sample enters, or a number that it draws itself. Samples are fresh, so their noises are uncorrelated; the covariance of
each is the problem's at the point where the field was asked for, and the probes' derivatives carry it into message and
memory.

Chains that run side by side ask for the same samples, each at a point of its own. Their loops are one loop on (y_1,
y_2), whose fields have the joint covariance of one sample at both points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from fedpoint.channel import Channel
from fedpoint.core.agent import Agent
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import FedpointError
from fedpoint.core.random import NO_LUCK, Stream
from fedpoint.core.types import Data, Message, Model, Number, State, Tree
from fedpoint.core.vector import unwrap, wrap
from fedpoint.problems.base import per_agent
from fedpoint.problems.oracle import Mine, Oracle
from fedpoint.theory.alike import AlikeStep, Table, added_noise, packed, unpacked, worthwhile
from fedpoint.theory.expected_round import Numbers, template
from fedpoint.theory.space import Space, fill, flat, is_real, memory_of, row_of, size_of, steps_until


class Unprobed(FedpointError):
    """Noise enters an agent's round in a way that probes do not follow."""


class Loop(NamedTuple):
    """The noise of an inner loop: y+ = F y + T ext + N noise, noise at the point H y + V ext.

    Arrays lead with the steps, or with one where steps are alike. `points` are where fields are asked for on average.
    """

    points: Array  # (steps, d)
    start: Array  # (y, ext) derivative of the loop's start
    F: Array
    T: Array
    N: Array
    H: Array
    V: Array
    steps: Array
    drift: Array | None = None  # of the start in a step, on average
    noise: Array | None = None  # steps that are alike: of one, see `AlikeStep`
    table: Table | None = None  # and what all of them add


class Point(NamedTuple):
    """The noise of one sampled field outside a loop, asked for at a point with derivative V."""

    point: Array
    V: Array
    noise: Array | None = None  # of affine fields: its covariance by mass, shift and spread of where it is asked for


class Luck(NamedTuple):
    """Numbers that an agent draws itself, outside of a loop: independent, with these variances. Chains that run side by
    side draw the same ones."""

    variance: Array  # (chains, n)


class Sent(NamedTuple):
    """What the channel makes uncertain of a message with derivative V: a probe at what arrives of it."""

    message: Array
    V: Array
    share: Array


Source = Loop | Point | Luck | Sent


def _probes_of(source: Source) -> int:
    """How many probes a source has."""
    if isinstance(source, Loop):
        return source.start.size
    if isinstance(source, Sent):
        return source.message.size
    return source.point.size if isinstance(source, Point) else source.variance.size


def linearised_probes(source: Source) -> int:
    """The same of a linearised one, which may lead with agents."""
    if isinstance(source, Loop):
        return source.start.shape[-2]
    if isinstance(source, Sent):
        return source.message.shape[-1]
    return source.point.shape[-1] if isinstance(source, Point) else int(np.prod(source.variance.shape[-2:]))


def joined(parts: Sequence[Source]) -> Source:
    """One source of chains that ask for the same samples; their states, fields and probes one after the other."""
    first, *others = parts
    if isinstance(first, Sent) or any(type(other) is not type(first) for other in others):
        raise Unprobed(APART)
    if isinstance(first, Luck):
        return Luck(*(jnp.concatenate(columns) for columns in zip(*parts, strict=True)))
    if isinstance(first, Point):
        points = [part for part in parts if isinstance(part, Point)]
        return Point(jnp.concatenate([p.point for p in points]), jnp.concatenate([p.V for p in points]))
    rows = {name: [part._asdict()[name] for part in parts] for name in first._fields}
    asked, start, T, V = (jnp.concatenate(rows[name], axis=-1) for name in ("points", "start", "T", "V"))
    F, N, H = (_blocks(rows[name]) for name in ("F", "N", "H"))
    return first._replace(points=asked, start=start, T=T, V=V, F=F, N=N, H=H)


APART = "chains that do not ask for the same samples in the same order have no exact noise floor"


def _blocks(parts: Sequence[Array]) -> Array:
    """Matrices (steps, n, m) along a diagonal."""
    return jax.vmap(jax.scipy.linalg.block_diag)(*parts)


class Probe(Agent):
    """An agent with exact fields that adds a probe wherever a sample enters, and notes how it would spread."""

    def __init__(
        self, space: Space, mine: Mine, share: Array, size: int, round: Number, probes: list[Array] | None
    ) -> None:
        super().__init__(space.oracle, mine, Stream(NO_LUCK, round, 0), None, None, True, share)
        self.space, self.size, self.probes = space, size, probes
        self.sources: list[Source] = []  # values here; their derivatives are taken outside
        self._inside: Callable[[Model], Model] | None = None
        self._before, self._chain = 0, 0  # sources before it was forked, and which of the chains it is

    def _fork(self, chain: int, chains: int) -> Self:
        if self._inside is not None:
            raise Unprobed("chains inside of local steps have no exact noise floor")
        fork = super()._fork(chain, chains)
        fork.sources, fork._before, fork._chain = [], self._place, self._chain * chains + chain
        return fork

    def _join(self, forks: Sequence[Self]) -> None:
        super()._join(forks)
        if len({len(fork.sources) for fork in forks}) > 1:
            raise Unprobed(APART)
        self.sources += [joined(parts) for parts in zip(*(fork.sources for fork in forks), strict=True)]

    @property
    def _place(self) -> int:
        """Of the next source among all of them."""
        return self._before + len(self.sources)

    def _mean(self, w: Model) -> tuple[Array, Array, Callable[[Array], Model]]:
        model = unwrap(w)
        at, _ = ravel_pytree(model)
        g, unravel = ravel_pytree(self._oracle.mean_field(self._mine, model))
        return at, g, unravel

    def _probe(self, size: int) -> Array:
        if self.probes is None:
            return jnp.zeros(size)
        return self.probes[self._place][self._chain * size : (self._chain + 1) * size]

    def field(self, w: Model, e: Number = 0) -> Model:
        if self._inside is not None:
            return self._inside(w)
        self.evaluations = self.evaluations + 1
        at, g, unravel = self._mean(w)
        probe = self._probe(g.size)
        self.sources.append(Point(at, at))
        return wrap(unravel(g + probe))

    def _luck(self, like: Tree, mean: float, variance: float) -> Tree:
        if self._inside is not None:
            raise Unprobed("random numbers of an agent's own in its local steps have no exact noise floor")
        flat_like, unravel = ravel_pytree(jax.tree.map(lambda a: jnp.full(jnp.shape(a), mean), like))
        probe = self._probe(flat_like.size)
        self.sources.append(Luck(jnp.full((1, flat_like.size), variance)))
        return unravel(flat_like + probe)

    def normal(self, like: Tree) -> Tree:
        return self._luck(like, 0.0, 1.0)

    def uniform(self, like: Tree) -> Tree:
        return self._luck(like, 0.5, 1 / 12)

    def sent(self, channel: Channel, message: Message) -> Message:
        """What arrives of a message."""
        arrived, sent = channel.expected(message), flat(message)
        probe = self._probe(sent.size)
        self.sources.append(Sent(sent, sent, jnp.asarray(self.share)))
        return fill(arrived, flat(arrived) + probe)

    def stepper(
        self, unravel: Callable[[Array], Tree], advance: Callable[[Tree, Array], Tree]
    ) -> Callable[[Array, Array, Array], tuple[Array, Array]]:
        """One local step as a function of y, of the noise in its field, and of its number: the new y, and where the
        field was asked for."""

        def step(y: Array, noise: Array, e: Array) -> tuple[Array, Array]:
            seen: list[Array] = []

            def inside(w: Model) -> Model:
                at, g, back = self._mean(w)
                seen.append(at)
                return wrap(back(g + noise))

            self._inside = inside
            new = ravel_pytree(advance(unravel(y), e))[0]
            self._inside = None
            if len(seen) > 1:
                raise Unprobed("several fields in one local step have no exact noise floor")
            return new, seen[0] if seen else jnp.zeros(self.size)

        return step

    def loop(self, start: Tree, steps: Number, advance: Callable[[Tree, Array], Tree]) -> Tree:
        if not all(is_real(a) for a in jax.tree.leaves(start)):
            raise Unprobed("local optimisers with counters have no exact noise floor")
        y0, unravel = ravel_pytree(start)
        length = steps if isinstance(steps, int) else self.space.most
        partial_ = self.stepper(unravel, advance)
        quiet = jnp.zeros(self.size)

        def slices(y: Array, e: Array) -> tuple[Array, ...]:
            """What is stored of a step: its value with y held (its derivative is taken outside), and F, N, H."""
            y = lax.stop_gradient(y)
            value, point = partial_(y, quiet, e)
            (F, H), (N, _) = (jax.jacfwd(lambda y, n: partial_(y, n, e), argnums=i)(y, quiet) for i in (0, 1))
            return value, point, F, N, H

        def step(y: Array, e: Array) -> tuple[Array, tuple[Array, tuple[Array, ...]]]:
            new, point = partial_(y, quiet, e)
            return new, (lax.stop_gradient(point), () if self.space.alike else slices(y, e))

        last, (points, kept) = steps_until(step, y0, jnp.arange(length), steps)
        if self.space.alike:
            kept = jax.tree.map(lambda a: a[None], slices(y0, jnp.int32(0)))
        value, point, F, N, H = kept
        probe = self._probe(y0.size)
        self.sources.append(Loop(points, y0, F, value, N, H, point, jnp.asarray(steps)))
        return unravel(last + probe)


class LocalNoise(NamedTuple):
    """One agent's linearised round: out = value + slope ext, ext = (u, m_k, probes)."""

    value: Array
    slope: Array
    sources: tuple[Source, ...]


class ProbePlace(NamedTuple):
    """An agent around a state: what it holds, its weight, the hub that it hears (for its structure, and its floats) and
    its memory's floats."""

    own: Data
    share: Array
    hub: State
    u: Array
    m: Array


def linearised(space: Space, numbers: Numbers, algorithm: Algorithm, place: ProbePlace, round: Number) -> LocalNoise:
    """Message (with a 1 behind it) and memory of one agent, settled with the hub it has, around (u, m)."""
    mine = Mine(place.own, numbers.inputs.common)
    size = size_of(numbers.model)

    def run(u: Array, m: Array, probes: list[Array] | None) -> tuple[Array, list[Source]]:
        agent = Probe(space, mine, place.share, size, round, probes)
        sent, new = round_over_channel(space, numbers, algorithm, agent, fill(place.hub, u), m)
        settled = row_of(space, algorithm, fill(place.hub, place.u), new)
        return jnp.concatenate([flat(sent), jnp.ones(1), settled]), agent.sources

    sizes = [_probes_of(s) for s in jax.eval_shape(lambda u, m: run(u, m, None)[1], place.u, place.m)]
    cuts = np.cumsum([place.u.size, place.m.size, *sizes])[:-1]

    def moving(source: Source) -> tuple[Array, ...]:
        if isinstance(source, Loop):
            return source.start, source.T, source.V
        return () if isinstance(source, Luck) else (source.V,)

    def of_ext(ext: Array) -> tuple[tuple[Array, list], tuple[Array, list[Source]]]:
        u, m, *probes = jnp.split(ext, cuts)
        out, sources = run(u, m, probes)
        return (out, [moving(s) for s in sources]), (out, sources)

    ext = jnp.concatenate([place.u, place.m, jnp.zeros(sum(sizes))])
    (slope, moved), (value, sources) = jax.jacfwd(of_ext, has_aux=True)(ext)
    done: list[Source] = []
    for s, slopes in zip(sources, moved, strict=True):
        if isinstance(s, Loop):
            if space.alike and worthwhile(_copies(numbers), len(s.start), ext.size):
                s = s._replace(drift=s.T[0] - s.start, noise=_noise_of(space, numbers, mine, s.points[0]))
            s = s._replace(start=slopes[0], T=slopes[1], V=slopes[2])
        elif isinstance(s, Point):
            small = space.alike and worthwhile(_copies(numbers), s.point.size, ext.size)
            s = s._replace(V=slopes[0], noise=_noise_of(space, numbers, mine, s.point) if small else None)
        elif isinstance(s, Sent):
            s = s._replace(V=slopes[0])
        done.append(s)
    return LocalNoise(value, slope, tuple(done))


def _copies(numbers: Numbers) -> int:
    """How many linearised rounds there are: one for each agent, number of steps and outcome of the hub's draws."""
    return numbers.p.shape[0] * numbers.late[1].shape[0] * numbers.chances[1].shape[0]


def _noise_of(space: Space, numbers: Numbers, mine: Mine, point: Array) -> Array:
    """(q, 1 + d + q): the covariance of a field asked for around a point, by mass, shift and spread."""
    d = point.size
    q = d * (d + 1) // 2
    return _noise_table(space.oracle, numbers.model, mine, point) if space.sampled else jnp.zeros((q, 1 + d + q))


@partial(jax.jit, static_argnums=0)  # traced once for all methods
def _noise_table(oracle: Oracle, model: Model, mine: Mine, point: Array) -> Array:
    d = point.size

    def noise(part: Array) -> Array:
        return packed(sampled_noise(oracle, model, mine, point, part[0], part[1 : 1 + d], unpacked(part[1 + d :], d)))

    return jax.vmap(noise, out_axes=1)(jnp.eye(1 + d + d * (d + 1) // 2))


def tabulated(locals_: LocalNoise) -> LocalNoise:
    """With the tables of loops whose steps are alike; NumPy's arrays."""
    done: list[Source] = []
    locals_ = jax.device_get(locals_)
    probes = [linearised_probes(source) for source in locals_.sources]
    at = locals_.slope.shape[-1] - sum(probes)  # numbers of ext before a source
    for source, own in zip(locals_.sources, probes, strict=True):
        if isinstance(source, Loop) and source.noise is not None:
            F, T, N, H, V = (np.asarray(a)[..., 0, :, :] for a in (source.F, source.T, source.N, source.H, source.V))
            drift, noise = np.asarray(source.drift), np.asarray(source.noise)
            step = AlikeStep(drift, F, T[..., :at], N, H, V[..., :at], noise)  # later probes are not asked
            table = added_noise(step, np.asarray(source.start)[..., :at], np.asarray(source.steps))
            source = source._replace(table=table)
        at += own
        done.append(source)
    return locals_._replace(sources=tuple(done))


def over_agents(function: Callable[[LocalNoise, Tree], Tree], locals_: LocalNoise, others: Tree, in_turn: bool) -> Tree:
    """function(local_k, others_k) for every agent; a table that agents share is not copied for each."""
    agents = locals_.value.shape[0]
    shared: dict[int, Array] = {}
    for i, source in enumerate(locals_.sources):
        if isinstance(source, Loop) and source.table is not None and len(source.table.added) < agents:
            shared[i] = source.table.added[0]

    def with_tables(local: LocalNoise, tables: dict[int, Array | None]) -> LocalNoise:
        sources = list(local.sources)
        for i, added in tables.items():
            loop = sources[i]
            assert isinstance(loop, Loop) and loop.table is not None
            sources[i] = loop._replace(table=loop.table._replace(added=added))
        return local._replace(sources=tuple(sources))

    def one(k: tuple[LocalNoise, Tree]) -> Tree:
        return function(with_tables(k[0], {**shared}), k[1])

    return per_agent(one, (with_tables(locals_, dict.fromkeys(shared)), others), in_turn)


def field_noise(
    space: Space, numbers: Numbers, mine: Mine, point: Array, mass: Array, shift: Array, spread: Array
) -> Array:
    """The covariance of a sampled field asked for at point + x, with E 1 = mass, E x = shift, E x x' = spread; of
    several with the same sample, where point holds several."""
    if not space.sampled:
        return jnp.zeros((point.size, point.size))
    return sampled_noise(space.oracle, numbers.model, mine, point, mass, shift, spread)


def sampled_noise(
    oracle: Oracle, model: Model, mine: Mine, point: Array, mass: Array, shift: Array, spread: Array
) -> Array:
    """The same of an oracle that samples; model: for its structure."""
    flat_model, unravel = ravel_pytree(unwrap(model))
    if point.size == flat_model.size:
        value, tilt = jax.jvp(lambda v: oracle.covariance(mine, unravel(v)), (point,), (shift,))
        return mass * value + tilt + oracle.scatter(mine, unravel(point), spread)
    chains, d = point.size // flat_model.size, flat_model.size
    points, shifts, spreads = point.reshape(chains, d), shift.reshape(chains, d), spread.reshape(chains, d, chains, d)

    def cross(v: Array, w: Array) -> Array:
        return oracle.cross_covariance(mine, unravel(v), unravel(w))

    def pair(i: int, j: int) -> Array:
        value, tilt = jax.jvp(cross, (points[i], points[j]), (shifts[i], shifts[j]))
        scattered = oracle.cross_scatter(mine, unravel(points[i]), unravel(points[j]), spreads[i, :, j])
        return mass * value + tilt + scattered

    above = {(i, j): pair(i, j) for i in range(chains) for j in range(i, chains)}
    return jnp.block([[above[i, j] if i <= j else above[j, i].T for j in range(chains)] for i in range(chains)])


def local_round(
    space: Space, numbers: Numbers, algorithm: Algorithm, agent: Agent, hub: State, m: Array
) -> tuple[Message, State]:
    """One agent's message and its memory, not yet settled."""
    heard = algorithm.say(hub, NO_LUCK.row())
    return algorithm.local(heard, memory_of(space, algorithm, hub, numbers.model, m), agent)


def round_over_channel(
    space: Space, numbers: Numbers, algorithm: Algorithm, agent: Probe, hub: State, m: Array
) -> tuple[Message, State]:
    """What arrives of one agent's message, and its memory, not yet settled."""
    channel = numbers.inputs.channel
    message, memory = local_round(space, numbers, algorithm, agent, hub, m)
    if channel.is_identity():
        return message, memory
    arrived = agent.sent(channel, message)
    return arrived, algorithm.acknowledge(memory, message, arrived)


def scattered_message(space: Space, numbers: Numbers, sent: Sent, second: Array) -> Array:
    """The covariance of what arrives of a message, given the second moments of (1, ext)."""
    T = jnp.zeros((1 + sent.message.size, len(second))).at[0, 0].set(1.0).at[1:, 0].set(sent.message)
    T = T.at[1:, 1:].set(sent.V)
    found = numbers.inputs.channel.scatter(T @ second @ T.T, template(space, numbers)[0], sent.share)
    if found is None:
        raise Unprobed("the channel does not tell the covariance of what arrives")
    return found


class SourceNoise(NamedTuple):
    """What one source adds: the covariance of its probe, and of each field that was asked for on the way."""

    probe: Array
    fields: Array  # (steps, d, d) of a loop, (1, d, d) of one field; a zero where no field is asked, or none is kept


def covariance_of(space: Space, numbers: Numbers, own: Data, local: LocalNoise, Z: Array) -> Array:
    """Covariance of out that samples and the agent's own luck make, given Z = E[z z'] with z = (1, u, m_k)."""
    return through_probes(local, source_noises(space, numbers, own, local, Z), Z.shape[0] - 1)


def through_probes(local: LocalNoise, noises: list[SourceNoise], n_z: int) -> Array:
    """What the noise of all sources makes of out."""
    G, at = local.slope[:, n_z:], 0
    total = jnp.zeros((G.shape[0], G.shape[0]))
    for noise in noises:
        size = noise.probe.shape[0]
        total = total + G[:, at : at + size] @ noise.probe @ G[:, at : at + size].T
        at += size
    return total


def source_noises(space: Space, numbers: Numbers, own: Data, local: LocalNoise, Z: Array) -> list[SourceNoise]:
    """Of every source in turn, given Z = E[z z'] with z = (1, u, m_k): their probes are uncorrelated."""
    mine = Mine(own, numbers.inputs.common)
    n_ext, n_z = local.slope.shape[1], Z.shape[0] - 1
    second = jnp.zeros((1 + n_ext, 1 + n_ext)).at[: 1 + n_z, : 1 + n_z].set(Z)  # of (1, ext)

    def covariance(point: Array, E: Array, inside: Number = 0.0) -> Array:
        """Of a field asked for at point + E ext, and what noise has moved since, of covariance `inside`."""
        spread = E @ second[1:, 1:] @ E.T + inside
        return field_noise(space, numbers, mine, point, Z[0, 0], E @ second[1:, 0], spread)

    def through(loop: Loop) -> SourceNoise:
        if loop.table is not None:
            first, added = loop.table
            Z = first @ second[: first.shape[1], : first.shape[1]] @ first.T
            return SourceNoise(unpacked(added @ packed(Z), len(loop.start)), jnp.zeros((1, 1, 1)))

        def step(carry: tuple[Array, Array], at: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
            (Y, W), (e, point) = carry, at
            F, T, N, H, V = (a[0] if space.alike else a[e] for a in (loop.F, loop.T, loop.N, loop.H, loop.V))
            C = covariance(point, H @ Y + V, H @ W @ H.T)
            return (F @ Y + T, F @ W @ F.T + N @ C @ N.T), C

        n_y = loop.start.shape[0]
        begin = (loop.start, jnp.zeros((n_y, n_y)))
        (_, W), fields = steps_until(step, begin, (jnp.arange(loop.points.shape[0]), loop.points), loop.steps)
        return SourceNoise(W, fields)

    found, at = [], 1 + n_z
    for source in local.sources:
        if isinstance(source, Loop):
            noise = through(source)
        elif isinstance(source, Point):
            C = covariance(source.point, source.V)
            noise = SourceNoise(C, C[None])
        elif isinstance(source, Sent):
            noise = SourceNoise(scattered_message(space, numbers, source, second), jnp.zeros((1, 1, 1)))
        else:
            same = jnp.ones((len(source.variance),) * 2)
            noise = SourceNoise(Z[0, 0] * jnp.kron(same, jnp.diag(source.variance[0])), jnp.zeros((1, 1, 1)))
        size = noise.probe.shape[0]
        second = second.at[at : at + size, at : at + size].set(noise.probe)
        at += size
        found.append(noise)
    return found
