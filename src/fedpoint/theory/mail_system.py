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
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

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

if TYPE_CHECKING:
    from scipy import sparse

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


@partial(jax.jit, static_argnums=0)
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


@partial(jax.jit, static_argnums=0)
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


@partial(jax.jit, static_argnums=0)
def _node_noise(space: Space, numbers: Numbers, locals_: LocalNoise, Z: Array) -> Array:
    """(K, out, out): the covariance of what each node sends and remembers, given the second moments of (1, hub,
    memory)."""
    sent = size_of(template(space, numbers)[0])

    def node(local: LocalNoise, k: Tree) -> Array:
        own, Z = k
        noise = covariance_of(space, numbers, own, local, Z)
        out = jnp.concatenate([jnp.arange(sent), jnp.arange(sent + 1, noise.shape[0])])  # without the 1 behind
        return noise[out][:, out]

    return over_agents(node, locals_, (numbers.inputs.own, Z))


class Tick(NamedTuple):
    """What a node that works makes of what it has, around the point; leads with the nodes."""

    one: np.ndarray  # (K, n_z)
    own: np.ndarray  # (K, n_z, n_z)
    heard: np.ndarray  # (K, n_z, n_s), of the weighted sum over its neighbours
    read: np.ndarray  # (K, d, 1 + n_z + n_s): its model once it has listened
    noisy: np.ndarray  # (K, n_u + n_m, 1 + n_z + n_s): hub and memory with which it works


class Nodes:
    """What nodes have, z = (hub, memory, last message), and what becomes of it, in as few numbers as tell it."""

    @double
    def __init__(self, setting: Setting, x: np.ndarray, start: np.ndarray):
        space, numbers, network = setting.space, setting.numbers, setting.bound.network
        assert network is not None
        self.space, self.numbers, self.arcs = space, numbers, network.arcs
        works: Works = _works(space, numbers, jnp.asarray(x))
        self.locals = tabulated(works.locals)
        self.random = not setting.exact or any(isinstance(s, Luck) for s in works.locals.sources)
        u, m, y = (np.asarray(a) for a in (works.u, works.m, works.y))
        self.sent = y.shape[1]
        A = self.arcs
        total = np.zeros_like(y)
        np.add.at(total, A.hears, A.weight[:, None] * y[A.says])
        listens = Listens(*map(np.asarray, _listens(space, numbers, jnp.asarray(x), works.y, jnp.asarray(total))))
        self.sizes = (u.shape[1], m.shape[1], self.sent)
        self.read = _padded(np.asarray(works.read), self.sent)
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
        t = self.later
        new = t.one + np.einsum("kij,kj->ki", t.own, z) + np.einsum("kij,kj->ki", t.heard, total)
        return new[:, :n_u]

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
        return Tick(new[:, :, 0], new[:, :, 1:-n_s], new[:, :, -n_s:], read, at)

    def _reduce(self) -> None:
        """Coordinates that are never reached are left out, and those that nothing depends on."""
        n_u, n_m, n_s = self.sizes
        n_z = n_u + n_m + n_s
        ticks = [self.later] if self.first is None else [self.later, self.first]
        send = np.eye(n_z)[n_u + n_m :]
        fresh = [np.pad(_wide(self._noise_reach), ((n_u, 0), (0, 0)))] if self.random else []
        maps = [tick.own for tick in ticks]
        seeds = [self.start.T, *(t.one.T for t in ticks), *(_wide(t.heard) for t in ticks), *fresh]
        reach = _closed(np.concatenate(seeds, axis=1), maps)
        seen = [send, self.read.reshape(-1, n_z), *(t.read[:, :, 1 : 1 + n_z].reshape(-1, n_z) for t in ticks)]
        if self.random:
            seen += [t.noisy[:, :, 1 : 1 + n_z].reshape(-1, n_z) for t in ticks]
        inside = [reach.T @ own @ reach for own in maps]
        rows = _closed((np.concatenate(seen) @ reach).T, [own.transpose(0, 2, 1) for own in inside])
        self._in(reach @ rows)

    @property
    def _noise_reach(self) -> np.ndarray:
        """(K, n_m + n_s, probes): how noise enters memory and message."""
        n_s, slope = self.sent, np.asarray(self.locals.slope)[:, :, sum(self.sizes[:2]) :]
        return np.concatenate([slope[:, n_s + 1 :], slope[:, :n_s]], axis=1)

    def _in(self, Q: np.ndarray) -> None:
        """Everything in coordinates of the columns of Q."""
        n_z = len(Q)

        def turned(a: np.ndarray) -> np.ndarray:
            return np.concatenate([a[..., :1], a[..., 1 : 1 + n_z] @ Q, a[..., 1 + n_z :]], axis=-1)

        def tick(t: Tick) -> Tick:
            return Tick(t.one @ Q, Q.T @ t.own @ Q, Q.T @ t.heard, turned(t.read), turned(t.noisy))

        self.later, self.first = tick(self.later), None if self.first is None else tick(self.first)
        self.start, self.read = self.start @ Q, self.read @ Q
        self.send, self.fresh = Q[-self.sent :], Q[self.sizes[0] :].T  # message of z; z of noise in (memory, message)

    @property
    def count(self) -> int:
        return len(self.start)

    @property
    def size(self) -> int:
        """Numbers that a node has."""
        return self.start.shape[1]

    @double
    def noise(self, Z: np.ndarray) -> np.ndarray:
        """(K, size, size): the covariance of what each node has after it worked, given the second moments of (1, hub,
        memory) with which it does."""
        found = np.asarray(_node_noise(self.space, self.numbers, self.locals, jnp.asarray(Z)))
        n_s = self.sent
        order = np.concatenate([np.arange(n_s, found.shape[1]), np.arange(n_s)])  # memory, message
        return self.fresh @ found[:, order][:, :, order] @ self.fresh.T


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


def _padded(read: np.ndarray, more: int) -> np.ndarray:
    return np.concatenate([read, np.zeros((*read.shape[:2], more))], axis=2)


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
    """First and second moments of a tick's masks, for every number of x."""

    one: np.ndarray  # (n,)
    two: np.ndarray  # (n, n)
    nodes: np.ndarray  # (K,)
    pairs: np.ndarray  # (K, K)


class MailSystem:
    """Ticks of a network whose messages take up to `lines` ticks. Everything is around the point."""

    def __init__(self, nodes: Nodes, lines: int):
        self.nodes, self.lines = nodes, lines
        K, r, A = nodes.count, nodes.size, nodes.arcs
        self.arcs = len(A.says)
        self.size = 1 + K * r + self.arcs * lines * nodes.sent
        self.at_node = 1 + r * np.arange(K)
        self.at_line = 1 + K * r + nodes.sent * np.arange(self.arcs * lines).reshape(self.arcs, lines)
        group = [np.zeros(1, int), 1 + np.repeat(np.arange(K), r)]
        group.append(1 + K + np.repeat(np.arange(self.arcs * lines), nodes.sent))
        self.group = np.concatenate(group)
        self.start = np.concatenate([[1.0], nodes.start.ravel(), self._said(nodes.start)])
        self.C = self._candidates(nodes.later)
        self.C_first = None if nodes.first is None else self._candidates(nodes.first)
        self.E, self.P = self._spread(), self._moved_on()

    def _said(self, z: np.ndarray) -> np.ndarray:
        """All delay lines full of what nodes say that have z."""
        said = (z @ self.nodes.send.T)[self.nodes.arcs.says]
        return np.repeat(said[:, None], self.lines, axis=1).ravel()

    def _blocks(
        self, parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]], shape: tuple[int, int]
    ) -> sparse.csr_matrix:
        """From blocks (N, a, b) at rows (N,) and columns (N,)."""
        from scipy import sparse

        rows, columns, values = [], [], []
        for row, column, block in parts:
            a, b = block.shape[1:]
            rows.append(np.broadcast_to(row[:, None, None] + np.arange(a)[:, None], block.shape).ravel())
            columns.append(np.broadcast_to(column[:, None, None] + np.arange(b), block.shape).ravel())
            values.append(block.ravel())
        each = (np.concatenate(a) if a else np.zeros(0) for a in (values, rows, columns))
        value, row, column = each
        return sparse.coo_matrix((value, (row.astype(int), column.astype(int))), shape=shape).tocsr()

    def _over(self, rows: np.ndarray, maps: np.ndarray, height: int) -> sparse.csr_matrix:
        """Maps (K, a, 1 + n_z + n_s) of what each node has and hears, at these rows, as one of x."""
        nodes, A = self.nodes, self.nodes.arcs
        heard = A.weight[:, None, None] * maps[A.hears][:, :, 1 + nodes.size :]
        if self.lines:
            hears = (rows[A.hears], self.at_line[:, 0], heard)
        else:
            hears = (rows[A.hears], self.at_node[A.says], heard @ nodes.send)
        own = (rows, self.at_node, maps[:, :, 1 : 1 + nodes.size])
        return self._blocks([(rows, np.zeros_like(rows), maps[:, :, :1]), own, hears], (height, self.size))

    def _candidates(self, tick: Tick) -> sparse.csr_matrix:
        """C: what each node has once it worked."""
        K, r = self.nodes.count, self.nodes.size
        return self._over(r * np.arange(K), np.concatenate([tick.one[:, :, None], tick.own, tick.heard], axis=2), K * r)

    def _spread(self) -> sparse.csr_matrix:
        """E: where that goes."""
        nodes = self.nodes
        K, r = nodes.count, nodes.size
        parts = [(self.at_node, r * np.arange(K), np.broadcast_to(np.eye(r), (K, r, r)))]
        for line in range(self.lines):
            sender = r * nodes.arcs.says.astype(int)
            parts.append((self.at_line[:, line], sender, np.broadcast_to(nodes.send, (self.arcs, *nodes.send.shape))))
        return self._blocks(parts, (self.size, K * r))

    def _moved_on(self) -> sparse.csr_matrix:
        """P: all stays as it is, and lines move on."""
        nodes = self.nodes
        K, r = nodes.count, nodes.size
        none = np.zeros(1, int)
        parts = [(none, none, np.ones((1, 1, 1))), (self.at_node, self.at_node, np.broadcast_to(np.eye(r), (K, r, r)))]
        for line in range(self.lines):
            if line + 1 < self.lines:
                same = np.broadcast_to(np.eye(nodes.sent), (self.arcs, nodes.sent, nodes.sent))
                parts.append((self.at_line[:, line], self.at_line[:, line + 1], same))
            else:
                said = np.broadcast_to(nodes.send, (self.arcs, *nodes.send.shape))
                parts.append((self.at_line[:, line], self.at_node[nodes.arcs.says], said))
        return self._blocks(parts, (self.size, self.size))

    # Ticks

    def masks(self, law: TickLaw, tick: int) -> Masks:
        """Of the tick of that number."""
        K, q, both = self.nodes.count, law.works[tick % law.period], law.pairs(tick)
        sender = np.concatenate([np.arange(K), np.repeat(self.nodes.arcs.says, self.lines)])
        arc = np.concatenate([-1 - np.arange(K), np.repeat(np.arange(self.arcs), self.lines)])
        there = np.concatenate([np.ones(K), np.tile(law.arrives, self.arcs)])
        # Of one arc's message: if it is there at a place, then also at all later ones.
        chance = np.where(arc[:, None] == arc, np.minimum(there[:, None], there), np.outer(there, there))
        two = np.pad(both[np.ix_(sender, sender)] * chance, (1, 0))
        one = np.concatenate([[0.0], q[sender] * there])
        return Masks(one[self.group], two[np.ix_(self.group, self.group)], q, both)

    def mean(self, x: np.ndarray, masks: Masks, first: bool = False) -> np.ndarray:
        """E x after a tick; columns where there are several."""
        C = self.C_first if first and self.C_first is not None else self.C
        on = self.P @ x
        change = self.E @ (C @ x) - on
        return on + (masks.one * change.T).T

    def second(self, S: np.ndarray, masks: Masks, first: bool = False) -> np.ndarray:
        """E[x x'] after a tick."""
        C = self.C_first if first and self.C_first is not None else self.C
        G = C @ S
        both = C @ G.T
        if self.nodes.random:
            both = self._add_noise(both, S, first)
        old = self.P @ (self.P @ S).T
        change = self.E @ (self.P @ G.T).T - old  # (new - old) old'
        new = self.E @ (self.E @ both).T
        moved = masks.one[:, None] * change
        square = new - change - change.T - old  # (new - old)(new - old)'
        S = old + moved + moved.T + masks.two * square
        return (S + S.T) / 2

    @cached_property
    def _working(self) -> tuple[sparse.csr_matrix, sparse.csr_matrix | None]:
        """(1, hub, memory) with which nodes work, of x; and in the first tick."""

        def over(tick: Tick) -> sparse.csr_matrix:
            n = tick.noisy.shape[1] + 1
            whole = np.zeros((self.nodes.count, n, tick.noisy.shape[2]))
            whole[:, 1:], whole[:, 0, 0] = tick.noisy, 1.0
            return self._over(n * np.arange(self.nodes.count), whole, n * self.nodes.count)

        first = self.nodes.first
        return over(self.nodes.later), None if first is None else over(first)

    def _add_noise(self, both: np.ndarray, S: np.ndarray, first: bool) -> np.ndarray:
        later, begun = self._working
        B = begun if first and begun is not None else later
        K, r = self.nodes.count, self.nodes.size
        n = B.shape[0] // K
        half = (B @ S).reshape(K, n, -1)
        Z = np.stack([(B[k * n : (k + 1) * n] @ half[k].T).T for k in range(K)])
        both = both.reshape(K, r, K, r)
        both[np.arange(K), :, np.arange(K), :] += self.nodes.noise((Z + Z.transpose(0, 2, 1)) / 2)
        return both.reshape(K * r, K * r)

    # What is read of it

    @cached_property
    def reading(self) -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
        """Models of x, node by node: of those that are idle, and of those that have listened for their turn."""
        K, d = self.nodes.count, self.nodes.read.shape[1]
        idle = self._blocks([(d * np.arange(K), self.at_node, self.nodes.read)], (K * d, self.size))
        return idle, self._over(d * np.arange(K), self.nodes.later.read, K * d)
