"""What each node does in a tick, as affine maps of what it holds and hears, reduced to what is reached and seen."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.compiling import fairly_quickly
from fedpoint.core.precision import double
from fedpoint.core.random import NO_LUCK
from fedpoint.core.record import split_per_agent
from fedpoint.core.types import Tree
from fedpoint.graphs.wiring import inbox_of, rebased
from fedpoint.problems.base import per_agent
from fedpoint.theory.expected_round import Numbers, memories, start_at, template
from fedpoint.theory.noise import LocalNoise, Luck, ProbePlace, covariance_of, linearised, over_agents, tabulated
from fedpoint.theory.operator import Setting
from fedpoint.theory.space import Space, fill, flat, memory_of, size_of

FIXED = 1e-9  # relative, what a tick may move a fixed point
ROUNDING = 1e-10  # relative, below which a direction is not reached, or not seen


class Works(NamedTuple):
    """Every node's work around a state, linearised; leads with the nodes."""

    u: Array  # (K, n_u) hubs there
    m: Array  # (K, n_m) memories
    y: Array  # (K, n_s) messages that are sent there
    base: Array  # (K, n_s, n_u) slope of what a message is a change of
    locals: LocalNoise
    read: Array  # (K, d, n_u + n_m)


class Listens(NamedTuple):
    """What nodes make of what they hear, linearised; leads with the nodes."""

    value: Tree  # (K, n_u)
    hub: Tree  # (K, n_u, n_u)
    total: Tree  # (K, n_u, n_s)
    own: Tree  # (K, n_u, n_s)


@partial(fairly_quickly, static_argnums=0)
def _works(space: Space, numbers: Numbers, x: Array) -> Works:
    hub, m = start_at(numbers, x, 0)
    tuned, put = split_per_agent(numbers.algorithm)

    def base(hub: Tree) -> Array:
        """What a message is a change of; nothing where messages are models."""
        if numbers.algorithm.at_agents:
            return jnp.zeros(size_of(template(space, numbers)[0]))
        return flat(numbers.algorithm.base(numbers.algorithm.say(hub, NO_LUCK.row())))

    def node(k: Tree) -> Works:
        own, tuned, hub, m, share = k
        u = flat(hub)
        local = linearised(space, numbers, put(tuned), ProbePlace(own, share, hub, u, m), 0)
        slope = jax.jacfwd(lambda u: base(fill(hub, u)))(u)

        def read(v: Array) -> Array:
            at = fill(hub, v[: u.size])
            memory = memory_of(space, numbers.algorithm, at, numbers.model, v[u.size :])
            return flat(numbers.algorithm.read(at, memory))

        reading = jax.jacfwd(read)(jnp.concatenate([u, m]))
        return Works(u, m, local.value[: slope.shape[0]] + base(hub), slope, local, reading)

    return per_agent(node, (numbers.inputs.own, tuned, hub, m, numbers.p))


@partial(fairly_quickly, static_argnums=0)
def _listens(space: Space, numbers: Numbers, x: Array, y: Array, total: Array) -> Listens:
    hub, _ = start_at(numbers, x, 0)
    like, algorithm = template(space, numbers)[0], numbers.algorithm

    def node(k: Tree) -> Listens:
        hub, y, total, mass = k

        def heard(u: Array, total: Array, own: Array) -> Array:
            one = jax.tree.map(lambda a: a[None], (fill(hub, u), fill(like, total), fill(like, own)))
            if algorithm.at_agents:
                inbox = inbox_of(one[1], mass[None])
            else:
                base = jax.vmap(lambda h: algorithm.base(algorithm.say(h, NO_LUCK.row())))(one[0])
                inbox = rebased(one[1], one[2], mass[None], base)
            return flat(jax.tree.map(lambda a: a[0], jax.vmap(algorithm.combine)(one[0], inbox)))

        at = (flat(hub), total, y)
        return Listens(heard(*at), *jax.jacfwd(heard, argnums=(0, 1, 2))(*at))

    return per_agent(node, (hub, y, total, numbers.inputs.wires.mass))


def _node_noise(space: Space, numbers: Numbers, locals_: LocalNoise, Z: Array) -> Array:
    """(K, out, out): the covariance of what each node remembers and sends, given the second moments of (1, hub,
    memory)."""
    sent = size_of(template(space, numbers)[0])

    def node(local: LocalNoise, k: Tree) -> Array:
        own, Z = k
        noise = covariance_of(space, numbers, own, local, Z)
        out = jnp.concatenate([jnp.arange(sent + 1, noise.shape[0]), jnp.arange(sent)])  # without the 1 between
        return noise[out][:, out]

    return over_agents(node, locals_, (numbers.inputs.own, Z), space.ragged)


class Tick(NamedTuple):
    """What a node that works makes of what it has, around the point; leads with the nodes."""

    made: np.ndarray  # (K, n_z, 1 + n_z + n_s), of (1, z, the weighted sum over its neighbours' messages)
    read: np.ndarray  # (K, d, 1 + n_z + n_s): its model once it has listened
    noisy: np.ndarray  # (K, 1 + n_u + n_m, 1 + n_z + n_s): (1, hub, memory) with which it works


class Nodes:
    """What nodes have, z = (hub, memory, last message), and what becomes of it, in as few numbers as tell it."""

    @double
    def __init__(self, setting: Setting, x: np.ndarray, start: np.ndarray):
        space, numbers, network = setting.space, setting.numbers, setting.bound.network
        assert network is not None
        self.space, self.numbers, self.arcs = space, numbers, network.arcs
        works: Works = _works(space, numbers, jnp.asarray(x))
        self.locals = jax.device_put(tabulated(works.locals))
        self.random = not setting.silent or any(isinstance(s, Luck) for s in works.locals.sources)
        u, m, y = (np.asarray(a) for a in (works.u, works.m, works.y))
        self.sent = y.shape[1]
        A = self.arcs
        total = np.zeros_like(y)
        np.add.at(total, A.hears, A.weight[:, None] * y[A.says])
        listens = Listens(*map(np.asarray, _listens(space, numbers, jnp.asarray(x), works.y, jnp.asarray(total))))
        self.sizes = (u.shape[1], m.shape[1], self.sent)
        self.read = np.pad(np.asarray(works.read), ((0, 0), (0, 0), (1, 2 * self.sent)))
        self.later = self._tick(works, listens, u, m)
        still = Listens(u, np.broadcast_to(np.eye(u.shape[1]), listens.hub.shape), 0 * listens.total, 0 * listens.own)
        self.first: Tick | None = self._tick(works, still, u, m)
        self.start = self._deviation(setting, start, u, m, y)
        if np.abs(self._heard_at_start() - self.start[:, : u.shape[1]]).max(initial=0.0) <= ROUNDING * (
            1 + np.abs(self.start).max(initial=0.0)
        ):
            self.first = None  # nothing changes where nodes listen once more
        self._reduce()

    def _deviation(
        self, setting: Setting, start: np.ndarray, u: np.ndarray, m: np.ndarray, y: np.ndarray
    ) -> np.ndarray:
        """(K, n_z): from the point, before the first tick."""
        begun = _begun(setting, start)
        return np.concatenate([begun[0] - u, begun[1] - m, begun[2] - y], axis=1)

    def _heard_at_start(self) -> np.ndarray:
        """(K, n_u): hubs were nodes to listen before the first tick."""
        z, n_u = self.start, self.sizes[0]
        y, total = z[:, -self.sent :], np.zeros((len(z), self.sent))
        np.add.at(total, self.arcs.hears, self.arcs.weight[:, None] * y[self.arcs.says])
        whole = np.concatenate([np.ones((len(z), 1)), z, total], axis=1)
        return np.einsum("kij,kj->ki", self.later.made[:, :n_u], whole)

    def _tick(self, works: Works, listens: Listens, u: np.ndarray, m: np.ndarray) -> Tick:
        n_u, n_m, n_s = self.sizes
        slope, value = np.asarray(works.locals.slope), np.asarray(works.locals.value)
        K = len(u)
        sends, keeps = slope[:, :n_s, : n_u + n_m].copy(), slope[:, n_s + 1 :, : n_u + n_m]
        sends[:, :, :n_u] += np.asarray(works.base)
        # (1, z, total) -> hub with which it works, its memory
        at = np.zeros((K, n_u + n_m, 1 + n_u + n_m + n_s + n_s))
        at[:, :n_u, 0] = listens.value - u
        at[:, :n_u, 1 : 1 + n_u] = listens.hub
        at[:, :n_u, 1 + n_u + n_m : 1 + n_u + n_m + n_s] = listens.own
        at[:, :n_u, 1 + n_u + n_m + n_s :] = listens.total
        at[:, n_u:, 1 + n_u : 1 + n_u + n_m] = np.eye(n_m)
        new = np.concatenate([at[:, :n_u], keeps @ at, sends @ at], axis=1)
        new[:, n_u : n_u + n_m, 0] += value[:, n_s + 1 :] - m
        new[:, :, 0] = np.where(np.abs(new[:, :, 0]) <= FIXED * (1 + np.abs(u).max(initial=0.0)), 0.0, new[:, :, 0])
        read = np.asarray(works.read) @ at
        one = np.zeros((K, 1, at.shape[2]))
        one[:, :, 0] = 1.0
        return Tick(new, read, np.concatenate([one, at], axis=1))

    def _reduce(self) -> None:
        """Coordinates that are never reached are left out, and those that nothing depends on."""
        n_u, n_m, n_s = self.sizes
        n_z = n_u + n_m + n_s
        ticks = [self.later] if self.first is None else [self.later, self.first]
        send = np.eye(n_z)[n_u + n_m :]
        fresh = [np.pad(_wide(self._noise_reach), ((n_u, 0), (0, 0)))] if self.random else []
        maps = [t.made[:, :, 1 : 1 + n_z] for t in ticks]
        seeds = [self.start.T, *(_wide(np.delete(t.made, slice(1, 1 + n_z), axis=2)) for t in ticks), *fresh]
        reach = _closed(np.concatenate(seeds, axis=1), maps)
        looks = [self.read, *(t.read for t in ticks), *(t.noisy for t in ticks if self.random)]
        seen = [send, *(a[:, :, 1 : 1 + n_z].reshape(-1, n_z) for a in looks)]
        inside = [reach.T @ own @ reach for own in maps]
        rows = _closed((np.concatenate(seen) @ reach).T, [own.transpose(0, 2, 1) for own in inside])
        self._in(reach @ rows)

    @property
    def _noise_reach(self) -> np.ndarray:
        """(K, n_m + n_s, probes): how noise enters memory and message."""
        n_s, slope = self.sent, np.asarray(self.locals.slope)[:, :, sum(self.sizes[:2]) :]
        return np.concatenate([slope[:, n_s + 1 :], slope[:, :n_s]], axis=1)

    def _in(self, Q: np.ndarray) -> None:
        """Everything in coordinates of which the first are the message's, and messages in as few numbers as tell them.

        Q: columns that span what z may be."""
        n_z, send = len(Q), Q[-self.sent :]
        U, values, _ = np.linalg.svd(send, full_matrices=False)
        U = U[:, values > ROUNDING * values.max(initial=0.0)]  # messages are U y
        _, _, axes = np.linalg.svd(U.T @ send)
        Q = Q @ np.linalg.inv(np.concatenate([U.T @ send, axes[U.shape[1] :]]))  # z = Q (y, rest)
        into = np.linalg.pinv(Q)

        def turned(a: np.ndarray) -> np.ndarray:
            return np.concatenate([a[..., :1], a[..., 1 : 1 + n_z] @ Q, a[..., 1 + n_z :] @ U], axis=-1)

        def tick(t: Tick) -> Tick:
            return Tick(into @ turned(t.made), turned(t.read), turned(t.noisy))

        self.later, self.first = tick(self.later), None if self.first is None else tick(self.first)
        self.start, self.read = self.start @ into.T, turned(self.read)
        self.said, self.fresh = U.shape[1], into[:, self.sizes[0] :]  # z of noise in (memory, message)

    @property
    def count(self) -> int:
        return len(self.start)

    @property
    def size(self) -> int:
        """Numbers that a node has."""
        return self.start.shape[1]


def _begun(setting: Setting, start: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hubs, memories and what everybody has said before the first tick, at a state of the setting."""
    numbers, space = setting.numbers, setting.space
    hub, m = start_at(numbers, jnp.asarray(start), 0)
    algorithm = numbers.algorithm
    if algorithm.at_agents:
        models = jax.vmap(algorithm.read)(hub, memories(space, numbers, hub, m))
        said = jax.vmap(algorithm.hello)(models)
    else:
        said = jax.vmap(lambda h: algorithm.base(algorithm.say(h, NO_LUCK.row())))(hub)
    return tuple(np.asarray(a) for a in (jax.vmap(flat)(hub), m, jax.vmap(flat)(said)))  # type: ignore[return-value]


def _wide(blocks: np.ndarray) -> np.ndarray:
    """(K, a, b) as (a, K b)."""
    return blocks.transpose(1, 0, 2).reshape(blocks.shape[1], -1)


def _closed(seeds: np.ndarray, maps: list[np.ndarray]) -> np.ndarray:
    """An orthonormal basis of what these columns span, with their images under all maps (K, n, n), and theirs."""
    basis = _span(seeds)
    while True:
        grown = _span(np.concatenate([basis, *(_wide(each @ basis) for each in maps)], axis=1))
        if grown.shape[1] == basis.shape[1]:
            return basis
        basis = grown


def _span(columns: np.ndarray) -> np.ndarray:
    sizes = np.linalg.norm(columns, axis=0)
    columns = columns[:, sizes > ROUNDING * max(sizes.max(initial=0.0), 1e-300)]
    if not columns.size:
        return np.zeros((len(columns), 0))
    U, values, _ = np.linalg.svd(columns / np.linalg.norm(columns, axis=0), full_matrices=False)
    return U[:, values > ROUNDING * values[0]]
