"""Methods on networks again, as NumPy loops with dense matrices that keep every version of every model.

Nothing here comes from the library except problem and network objects that are handed to it, and (`plan`) who works in
a tick and how old is what is heard, which are data to both sides.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedpoint as fp
from fedpoint.engine.state import SCHEDULE
from fedpoint.timing.base import Context

# Node 0 has five neighbours, the others one or two: three groups of the engine's wiring.
EDGES = ((0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 2), (5, 6))
WEIGHTS = (1.0, 0.5, 2.0, 1.5, 0.7, 0.3, 1.1)


class World(NamedTuple):
    """Nodes with L_i(w) = 1/2 (w - c_i)'H_i(w - c_i), and the dense matrix of weights A."""

    H: np.ndarray
    c: np.ndarray
    A: np.ndarray

    @property
    def d(self):
        return self.A.sum(1)

    def problem(self, noise=0.0):
        return fp.problems.Quadratic(self.H, self.c, noise=noise)

    def network(self):
        return fp.Network.from_matrix(self.A)

    def gradient(self, i, w):
        return self.H[i] @ (w - self.c[i])

    def gtvmin(self, coupling):
        """The solution of H_i (w_i - c_i) + 2 alpha sum_j A_ij (w_i - w_j) = 0, dense."""
        K, n = self.c.shape
        Q = np.kron(2 * coupling * (np.diag(self.d) - self.A), np.eye(n))
        for i in range(K):
            Q[i * n : (i + 1) * n, i * n : (i + 1) * n] += self.H[i]
        return np.linalg.solve(Q, np.einsum("kij,kj->ki", self.H, self.c).ravel()).reshape(K, n)

    def safe_step(self, coupling):
        """1/max_i(l_i + 2 alpha d_i): FedGD then contracts in the block-maximum norm."""
        return 1.0 / (np.linalg.eigvalsh(self.H)[:, -1] + 2 * coupling * self.d).max()

    def factor(self, method, coupling):
        """The block-maximum norm's contraction factor of FedGD (at the safe step) and of FedRelax."""
        s = np.linalg.eigvalsh(self.H)[:, 0]
        if method == "fedgd":
            return 1 - self.safe_step(coupling) * s.min()
        return (1 / (1 + s / (2 * coupling * self.d))).max()


def matrix(edges, weights, nodes):
    A = np.zeros((nodes, nodes))
    for (i, j), w in zip(edges, weights, strict=True):
        A[i, j] = A[j, i] = w
    return A


@functools.cache
def world(nodes=7, d=2, seed=0, low=1.0, high=1.5):
    """Unequal Hessians with eigenvalues in [low, high], on the irregular graph above."""
    rng = np.random.default_rng(seed)
    axes = [np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(nodes)]
    H = np.stack([q @ np.diag(rng.uniform(low, high, d)) @ q.T for q in axes])
    H = (H + np.swapaxes(H, 1, 2)) / 2
    return World(H, rng.standard_normal((nodes, d)), matrix(EDGES, WEIGHTS, nodes))


def fedgd(world, coupling, step):
    """w_i - eta [grad L_i(w_i) + 2 alpha sum_j A_ij (w_i - w_j)]; eta a number, one a node, or a function of ticks."""

    def update(i, k, own, heard):
        eta = step(k) if callable(step) else np.broadcast_to(step, len(world.A))[i]
        pull = sum(world.A[i, j] * (own - heard[j]) for j in np.flatnonzero(world.A[i]))
        return own - eta * (world.gradient(i, own) + 2 * coupling * pull)

    return update


def fedrelax(world, coupling):
    """argmin_w L_i(w) + alpha sum_j A_ij |w - w_j|^2, by its normal equations."""

    def update(i, k, own, heard):
        right = world.H[i] @ world.c[i] + 2 * coupling * world.A[i] @ heard
        return np.linalg.solve(world.H[i] + 2 * coupling * world.d[i] * np.eye(len(own)), right)

    return update


class Tick(NamedTuple):
    """Who works, and how old is what i hears of j."""

    who: np.ndarray
    age: np.ndarray  # (K, K)


def in_step(nodes, ticks):
    return [Tick(np.arange(nodes), np.zeros((nodes, nodes), int))] * ticks


def simulate(update, start, plan):
    """All versions (ticks + 1, K, ...): w_i <- F_i(w(s_ij(k))) for those who work, their own value never stale."""
    versions = [np.asarray(start)]
    for k, (who, age) in enumerate(plan):
        now, new = versions[-1], versions[-1].copy()
        for i in who:
            heard = np.array([versions[k - age[i, j]][j] for j in range(len(now))])
            new[i] = update(i, k, now[i], heard)
        versions.append(new)
    return np.array(versions)


@functools.partial(jax.jit, static_argnames=("nodes",))
def _ticks(schedule, key, arc, says, at, nodes):
    def one(k):
        return schedule.tick(key, jnp.ones(nodes), k), schedule.age(key, k, arc, says)

    return jax.vmap(one)(at)


def plan(schedule, network, ticks, seed=0, repeat=0):
    """The ticks of `fp.run(..., schedule=schedule, seed=seed)`."""
    arcs, K = network.arcs, network.nodes
    bound = schedule.bind(Context(network=network, seed=seed, repeats=repeat + 1, rounds=ticks))
    if bound.per_repeat:  # a timetable: ages go by place, in the order of a node's arcs
        made = []
        for k in range(ticks):
            age = np.zeros((K, K), int)
            heard = np.flatnonzero(bound.heard[repeat, k])
            who = bound.agents[repeat, k][heard]
            for place, i in zip(heard, who, strict=True):
                mine = arcs.says[arcs.first[i] : arcs.first[i + 1]]
                age[i, mine] = bound.ages[repeat, k, place, : len(mine)]
            made.append(Tick(who, age))
        return made
    with jax.enable_x64(True):
        numbers = (jnp.arange(len(arcs.says)), jnp.asarray(arcs.says), jnp.arange(ticks))
        turn, ages = _ticks(jax.device_put(bound), fp.Key.of(seed, repeat, SCHEDULE), *numbers, K)
    made = []
    for k in range(ticks):
        heard = np.asarray(turn.heard[k])
        who = np.flatnonzero(heard) if turn.agents is None else np.asarray(turn.agents[k])[heard]
        age = np.zeros((K, K), int)
        if ages is not None:
            age[arcs.hears, arcs.says] = np.asarray(ages[k])
        made.append(Tick(who, age))
    return made
