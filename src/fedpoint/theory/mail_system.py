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
from fedpoint.core.types import Tree
from fedpoint.theory.expected_round import Numbers
from fedpoint.theory.mail_nodes import Nodes, _node_noise
from fedpoint.theory.noise import LocalNoise
from fedpoint.theory.space import Space
from fedpoint.timing.tick_law import TickLaw

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
