r"""What does one tick do to the nodes of a network and to what is under way between them? A linear system with masks.

Around a point, x = (1, z_1, ..., z_K, f) holds what every node has (its hub, its memory, its last message) and the
delay lines of all arcs (`timing/tick_law.py`). A node that works listens, works and sends: c = C x + noise is what each
would have then. Everything else moves on by itself: P x. So a tick is

$$ x^+ = P x + s \circ (E c - P x), $$

s one mask of zeros and ones for each node (it works) and for each place of a delay line (the sender works, and what it
sends is there by then). Masks are independent of x. With mu = E s, Gamma = E[s s'] and new = E c, old = P x,

$$ E\,x^+ = E\,old + \mu \circ E[new - old], $$

$$ E[x^+ x^{+\prime}] = E[old\,old'] + \mu \circ E[(new - old)\,old'] + (\ldots)' +
   \Gamma \circ E[(new - old)(new - old)'], $$

which is exact, and no sum over all that may happen.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

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
from fedpoint.timing.tick_law import TickLaw

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
        self.locals = tabulated(works.locals)
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


# The whole of it


class Masks(NamedTuple):
    """First and second moments of the masks of a tick: of groups of numbers that have one in common."""

    one: Tree  # (G,)
    two: Tree  # (G, G)
    works: Tree  # (K,) the chance that a node does


class Places(NamedTuple):
    """Where everything is in x = (1, z_1, ..., z_K, lines), and what ticks make of it."""

    made: Tree  # (2, K, r, p): what each node has once it worked, in the first tick and in others
    noisy: Tree  # (2, K, q, p): (1, hub, memory) with which it works
    read: Tree  # (2, K, d, p): its model less the target, while it is idle and once it has listened
    own: Tree  # (K, r) where its z is
    near: Tree  # (K, most neighbours, n_y) where what they said is
    weight: Tree  # (K, most neighbours), 0 where there are no more
    old: Tree  # (n,) from where a number comes when nothing happens
    new: Tree  # (n,) from where among what nodes make
    group: Tree  # (n,) its mask
    fresh: Tree  # (r, n_m + n_s): z of noise in memory and message


def seen(at: Places, X: Array) -> Array:
    """(K, p, columns): (1, z, the weighted sum over neighbours' messages) of every node, for rows X (n, columns)."""
    K = at.own.shape[0]
    total = jnp.einsum("kc,kcyx->kyx", at.weight, X[at.near])
    return jnp.concatenate([jnp.broadcast_to(X[0], (K, 1, X.shape[1])), X[at.own], total], axis=1)


def own_blocks(at: Places, rows: Array) -> Array:
    """(K, p, p): second moments of what a node sees, of `seen(at, S)`."""

    def node(rows: Array, own: Array, near: Array, weight: Array) -> Array:
        total = jnp.einsum("c,pcy->py", weight, rows[:, near])
        return jnp.concatenate([rows[:, :1], rows[:, own], total], axis=1)

    return jax.vmap(node)(rows, at.own, at.near, at.weight)


def mean(at: Places, masks: Masks, X: Array, first: Array | int = 1) -> Array:
    """E x after a tick, for columns X."""
    made = (at.made[first] @ seen(at, X)).reshape(-1, X.shape[1])
    stays = X[at.old]
    return stays + masks.one[at.group][:, None] * (made[at.new] - stays)


class System(NamedTuple):
    """All that a program of ticks needs, as numbers. noisy: every node's work, where it has noise."""

    numbers: Numbers
    noisy: LocalNoise | None
    at: Places


def second(space: Space, system: System, masks: Masks, S: Array, first: Array | int = 1) -> Array:
    """E[x x'] after a tick; first: 0 for the run's first."""
    at = system.at
    made, n = at.made[first], S.shape[0]
    K, r, _ = made.shape
    rows = seen(at, S)
    G = (made @ rows).reshape(K * r, n)  # E[c x']
    both = (made @ seen(at, G.T)).reshape(K * r, K * r)  # E[c c']
    if system.noisy is not None:
        Z = at.noisy[first] @ own_blocks(at, rows) @ at.noisy[first].transpose(0, 2, 1)
        noise = at.fresh @ _node_noise(space, system.numbers, system.noisy, (Z + Z.transpose(0, 2, 1)) / 2) @ at.fresh.T
        k = jnp.arange(K)
        both = both.reshape(K, r, K, r).at[k, :, k, :].add(noise).reshape(K * r, K * r)
    one, two = masks.one[at.group], masks.two[at.group][:, at.group]
    old, cross, new = S[at.old][:, at.old], G[at.new][:, at.old], both[at.new][:, at.new]
    part = (one[:, None] - two) * cross
    return (1 - one[:, None] - one + two) * old + part + part.T + two * new


def read(at: Places, works: Array, S: Array) -> tuple[Array, Array]:
    """E|w - target|^2, a mean over nodes, and (K, d) E w - target; works: the chance to have listened for a turn."""
    blocks = own_blocks(at, seen(at, S))
    squares = jnp.einsum("ikdp,kpq,ikdq->ik", at.read, blocks, at.read)
    listened = jnp.stack([1 - works, works])
    return jnp.sum(listened * squares) / works.shape[0], _read_mean(at, works, blocks[:, 0])


def _read_mean(at: Places, works: Array, seen: Array) -> Array:
    """(K, d), of what nodes see on average (K, p)."""
    return jnp.einsum("ik,ikdp,kp->kd", jnp.stack([1 - works, works]), at.read, seen)


def _now(masks: Masks, tick: Array) -> Masks:
    return jax.tree.map(lambda a: a[tick % a.shape[0]], masks)


@partial(fairly_quickly, static_argnums=0)
def _period(space: Space, system: System, masks: Masks, S: Array, first: Array) -> Array:
    return lax.fori_loop(0, masks.one.shape[0], lambda i, S: second(space, system, _now(masks, first + i), S), S)


@fairly_quickly
def _mean_period(at: Places, masks: Masks, X: Array) -> Array:
    return lax.fori_loop(0, masks.one.shape[0], lambda i, X: mean(at, _now(masks, i), X), X)


@partial(fairly_quickly, static_argnums=4)
def _mean_walk(at: Places, masks: Masks, x: Array, first: Array, ticks: int) -> tuple[Array, Array]:
    def go(x: Array, tick: Array) -> tuple[Array, Array]:
        now = _now(masks, tick)
        return mean(at, now, x), _read_mean(at, now.works, seen(at, x)[:, :, 0])

    return lax.scan(go, x, first + jnp.arange(ticks))


@partial(fairly_quickly, static_argnums=(0, 5))
def _walk(space: Space, system: System, masks: Masks, S: Array, first: Array, ticks: int) -> tuple:
    def law(masks: Masks, S: Array) -> tuple[Array, tuple[Array, Array]]:
        def go(S: Array, tick: Array) -> tuple[Array, tuple[Array, Array]]:
            now, later = _now(masks, tick), jnp.minimum(tick, 1)
            found = read(system.at, now.works * later, S)  # before the first tick nobody has listened
            return second(space, system, now, S, later), found

        return lax.scan(go, S, first + jnp.arange(ticks))

    return jax.vmap(law)(masks, S)


class MailSystem:
    """Ticks of a network whose messages take up to `lines` ticks, around the point at which `nodes` are linearised.
    gap: (K, d) that point's models less what they are compared with."""

    @double
    def __init__(self, nodes: Nodes, lines: int, gap: np.ndarray):
        self.nodes, self.lines, self.space = nodes, lines, nodes.space
        K, r, y, A = nodes.count, nodes.size, nodes.said, nodes.arcs
        self.arcs = len(A.says)
        self.size = 1 + K * r + self.arcs * lines * y
        own = 1 + np.arange(K * r).reshape(K, r)
        line = 1 + K * r + np.arange(self.arcs * lines * y).reshape(self.arcs, lines, y)
        said = own[A.says, :y]
        near, weight = self._near(line[:, 0] if lines else said)
        moved = np.concatenate([line[:, 1:], said[:, None]], axis=1) if lines else line
        mask = 1 + np.arange(K + self.arcs * lines)
        under_way = np.repeat(nodes.start[A.says, None, :y], lines, axis=1)
        self.start = np.concatenate([[1.0], nodes.start.ravel(), under_way.ravel()])
        reads = np.stack([nodes.read, nodes.later.read])
        reads[:, :, :, 0] += gap
        both = (nodes.later if nodes.first is None else nodes.first, nodes.later)
        places = Places(
            made=np.stack([t.made for t in both]),
            noisy=np.stack([t.noisy for t in both]),
            read=reads,
            own=own,
            near=near,
            weight=weight,
            old=np.concatenate([[0], own.ravel(), moved.ravel()]),
            new=np.concatenate([[0], own.ravel() - 1, np.repeat(said[:, None] - 1, lines, axis=1).ravel()]),
            group=np.concatenate([[0], np.repeat(mask[:K], r), np.repeat(mask[K:], y)]),
            fresh=nodes.fresh,
        )
        noisy = nodes.locals if nodes.random else None
        self.system = jax.device_put(System(nodes.numbers, noisy, places))

    def _near(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where nodes find what neighbours said, padded to the largest number of neighbours, and with what weight."""
        A, K = self.nodes.arcs, self.nodes.count
        if not self.arcs:
            return np.zeros((K, 1, self.nodes.said), int), np.zeros((K, 1))
        arc = A.first[:-1, None] + np.arange(int(np.diff(A.first).max()))
        there = arc < A.first[1:, None]
        arc = np.where(there, arc, 0)
        return places[arc], np.where(there, A.weight[arc], 0.0)

    def masks(self, law: TickLaw) -> Masks:
        """Of all ticks of a period."""
        K = self.nodes.count
        sender = np.concatenate([np.arange(K), np.repeat(self.nodes.arcs.says, self.lines)])
        arc = np.concatenate([-1 - np.arange(K), np.repeat(np.arange(self.arcs), self.lines)])
        there = np.concatenate([np.ones(K), np.tile(law.arrives, self.arcs)])
        # Of one arc's message: if it is there at a place, then also at all later ones.
        chance = np.where(arc[:, None] == arc, np.minimum(there[:, None], there), np.outer(there, there))
        one = [np.concatenate([[0.0], q[sender] * there]) for q in law.works]
        two = [np.pad(law.pairs(t)[np.ix_(sender, sender)] * chance, (1, 0)) for t in range(law.period)]
        return Masks(np.stack(one), np.stack(two), law.works)

    @double
    def mean_period(self, masks: Masks, X: np.ndarray) -> np.ndarray:
        """Means after a period, for columns."""
        return np.asarray(_mean_period(self.system.at, masks, X))

    @double
    def mean_walk(self, masks: Masks, x: np.ndarray, first: int, ticks: int) -> tuple[np.ndarray, np.ndarray]:
        """E x after so many ticks from `first` on, and before each of them (ticks, K, d) E w - target."""
        x, found = _mean_walk(self.system.at, masks, x[:, None], jnp.int32(first), ticks)
        return np.asarray(x)[:, 0], np.asarray(found)

    @double
    def period(self, masks: Masks, S: np.ndarray, first: int = 0) -> np.ndarray:
        """Second moments after a period that begins with the tick `first`, not the run's first."""
        S = np.asarray(_period(self.space, self.system, masks, S, jnp.int32(first)))
        return (S + S.T) / 2

    @double
    def walk(self, masks: Masks, S: Array | np.ndarray, first: int, ticks: int) -> tuple[Array, np.ndarray, np.ndarray]:
        """For laws (leading axis): second moments after so many ticks from `first` on, and before each of them
        (ticks,) E|w - target|^2 and (ticks, K, d) E w - target."""
        after, (total, mean) = _walk(self.space, self.system, masks, S, jnp.int32(first), ticks)
        return after, np.asarray(total), np.asarray(mean)

    @cached_property
    def reading(self) -> np.ndarray:
        """(2, K, d, size): models less the target, of x: of nodes that are idle, and that have listened for a turn."""
        at = Places(*map(np.asarray, self.system.at))
        _, K, _, p = at.read.shape
        (r, y), k = (at.own.shape[1], at.near.shape[2]), np.arange(K)
        seen = np.zeros((K, p, self.size))
        seen[:, 0, 0] = 1.0
        seen[k[:, None], 1 + np.arange(r), at.own] = 1.0
        place = (k[:, None, None], 1 + r + np.arange(y), at.near)
        np.add.at(seen, place, np.broadcast_to(at.weight[:, :, None], at.near.shape))
        return at.read @ seen
