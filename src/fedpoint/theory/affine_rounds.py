r"""What do affine rounds do on average, and how far do they spread, whoever takes part? One program, then NumPy.

The work of agents is linearised by one compiled program, whatever the numbers of local steps and whoever takes part;
all that follows are products of small matrices. The mean is followed by itself, agent by agent. The covariance is that
of (u, m_1, ..., m_G), with a memory for every group of agents that are alike: their local maps have the same slopes and
the same noise, seen from where it is least, and who of them is heard is exchangeable. Then the mean memory of a group
and the mean covariance V of its members' memories are all that matters, and a round is

$$ C^+ = T_0 C T_0' + \sum_j \lambda_j (T_j C T_j' + t_j t_j') + \text{every agent's own luck}, $$

as in `moments.py`, t_j what T_j makes of the mean. All agents are one group, or everyone is one of its own.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.compiling import quickly
from fedpoint.core.precision import double
from fedpoint.engine.session import cast
from fedpoint.theory.alike import ROUNDING, Table, congruence, congruences
from fedpoint.theory.expected_round import Numbers, trace_steps
from fedpoint.theory.moments import HubMap, hub_map, settling, work_of
from fedpoint.theory.noise import LocalNoise, Loop, Luck, Point, linearised_probes, tabulated
from fedpoint.theory.operator import Setting
from fedpoint.theory.outlook import Gauge, Law
from fedpoint.theory.powers import Squarings
from fedpoint.theory.round_maps import models_at
from fedpoint.theory.space import Space
from fedpoint.timing.base import Moments

LARGEST_HUB = 24  # numbers of a hub's state, up to which the map of its second moments is small
LARGEST_STATE = 2500  # numbers of a state whose covariance is small enough


class Compiled(NamedTuple):
    """What the program gives."""

    locals: LocalNoise
    mean: Array
    hub: HubMap
    shear: Array
    reading: Array
    model: Array


@partial(quickly, static_argnums=0)
def _compiled(space: Space, numbers: Numbers, x: Array) -> Compiled:
    locals_, mean = work_of(space, numbers, x, 0)
    shear = settling(space, numbers, x, 0)
    sent = mean[:, : mean.shape[1] - shear.shape[0], 0]
    heard = (numbers.p @ sent, numbers.p @ sent)
    hub = hub_map(space, numbers, x[: shear.shape[1]], heard, 0)
    reading, model = jax.jacfwd(lambda x: (models_at(space, numbers, x),) * 2, has_aux=True)(x)
    return Compiled(locals_, mean, hub, shear, reading, model)


class SourceTable(NamedTuple):
    """What one source of noise adds to message and memory: G added(packed(first Z first')) G', by agent."""

    first: np.ndarray  # (K, x, 1 + n_z)
    added: np.ndarray  # (K or 1, q, x (x + 1) / 2)
    G: np.ndarray  # (K, n_out, y)


class Work(NamedTuple):
    """An affine round but for who takes part: what agents make of (1, u, m_k) and the hub of what it hears, all around
    the state x."""

    x: np.ndarray
    mean: np.ndarray  # (K, n_out, 1 + n_z): message (with a 1 behind it), and memory as a change
    sources: tuple[SourceTable, ...]
    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    offset: np.ndarray
    shear: np.ndarray  # (n_m, n_u)
    reading: np.ndarray  # (d, n_u)
    model: np.ndarray
    p: np.ndarray

    @property
    def agents(self) -> int:
        return len(self.mean)

    @property
    def remembers(self) -> bool:
        """Agents have memories that matter."""
        return bool(len(self.shear))


def suits(setting: Setting) -> bool:
    """Whether rounds may be affine, small, and with noise that follows from the update."""
    s, drawn = setting, setting.numbers.drawn
    known = s.exact or (s.oracle.known_noise and s.oracle.independent)
    lucky = drawn.hub or drawn.agent or s.lossy or s.lucky
    plain = not (s.own_kind or s.surveys or s.adaptive or s.scheduled or s.topology.by_node or s.topology.nested)
    small = s.size <= LARGEST_STATE and (bool(s.m0.size) or s.u0.size <= LARGEST_HUB)
    return bool(s.problem.linear and known and plain and small and not lucky)


@double
def plain(setting: Setting, algorithm: Algorithm) -> bool:
    """Whether the setting's method is the given one as it stands: then another step takes the place of its own."""
    mine, given = setting.numbers.algorithm, cast(trace_steps(algorithm), float)
    if str(jax.tree.structure(mine)) != str(jax.tree.structure(given)):
        return False
    pairs = zip(jax.tree.leaves(mine), jax.tree.leaves(given), strict=True)
    return all(np.shape(a) == np.shape(b) and np.array_equal(a, b) for a, b in pairs)


@double
def affine(setting: Setting) -> bool:
    """Whether rounds are: maps and slopes agree around two points."""
    s, x = setting, setting.origin
    other = x + np.random.default_rng(0).normal(size=x.shape)
    one, two = (jax.device_get(_compiled(s.space, s.numbers, at)) for at in (x, other))
    return _affine(one, two, other - x)


@double
def work_of_agents(setting: Setting, algorithm: Algorithm) -> Work | None:
    """The work of an affine setting, with other steps and numbers of local steps: `algorithm` is of the same kind. None
    where its noise is not tabulated."""
    s, x = setting, setting.origin
    numbers = s.numbers.using(cast(trace_steps(algorithm), float))
    found = jax.device_get(_compiled(s.space, numbers, x))
    n_u = found.shear.shape[1]
    sources = _sources(found, 1 + n_u + found.shear.shape[0]) if s.space.sampled else ()
    mean, reading, model = (np.asarray(a) for a in (found.mean, found.reading, found.model))
    if sources is None or np.abs(reading[:, n_u:]).max(initial=0.0) > 0:
        return None
    A, B, C, offset = (np.asarray(a) for a in found.hub)
    shear = np.asarray(found.shear) * (1.0 if s.space.settled else 0.0)
    p = np.asarray(numbers.p)
    return Work(x, mean, sources, A, B, C, offset, shear, reading[:, :n_u], model, p)


def _affine(one: Compiled, other: Compiled, h: np.ndarray) -> bool:
    """Whether the program found the same maps around two points, h apart."""
    n_m, n_u = one.shear.shape
    K = len(one.mean)
    z = np.concatenate([np.broadcast_to(h[:n_u], (K, n_u)), h[n_u:].reshape(K, n_m)], axis=1)
    slopes = [c.mean[..., 1:] for c in (one, other)]
    values = [c.mean[..., 0] for c in (one, other)]
    moved = values[0] + np.einsum("koz,kz->ko", slopes[0], z)
    moved[:, moved.shape[1] - n_m :] += one.shear @ h[:n_u]
    same = [(slopes[0], slopes[1]), (moved, values[1]), *zip(one.hub[:3], other.hub[:3], strict=True)]
    same.append((one.reading, other.reading))
    return all(_close(np.asarray(a), np.asarray(b)) for a, b in same)


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.isfinite(a).all() and np.abs(a - b).max(initial=0.0) <= 1e-9 * (1 + np.abs(a).max(initial=0.0)))


def _sources(found: Compiled, known: int) -> tuple[SourceTable, ...] | None:
    """None where a source has no table, or depends on the noise of another."""
    one = jax.tree.map(lambda a: a[:, 0], tabulated(found.locals))  # nobody straggles
    at, done = known - 1, []
    for source in one.sources:
        if isinstance(source, Luck):
            return None
        size = linearised_probes(source)
        table = source.table if isinstance(source, Loop) else _of_point(source)
        if table is None or np.abs(table.first[..., known:]).max(initial=0.0) > 0:
            return None
        first = np.zeros((*table.first.shape[:-1], known))
        first[..., : table.first.shape[-1]] = table.first[..., :known]
        done.append(SourceTable(first, table.added, one.slope[..., at : at + size]))
        at += size
    return tuple(done)


def _of_point(source: Point) -> Table | None:
    """The table of one field: by 1 and where it is asked for."""
    if source.noise is None:
        return None
    K, d, ext = source.V.shape
    first = np.zeros((K, 1 + d, 1 + ext))
    first[:, 0, 0] = 1.0
    first[:, 1:, 1:] = source.V
    return Table(first, np.asarray(source.noise))


# One round after the other.


class Groups(NamedTuple):
    """Agents that are alike, followed together; all arrays lead with the groups."""

    size: float  # agents in one
    slope: np.ndarray  # (G, n_out, n_z)
    sources: tuple[SourceTable, ...]  # without the 1: first is (G, x, n_z)
    p: np.ndarray  # (G,)
    weight: np.ndarray  # (J, G): alpha of T_0, T_1, ...
    heard: np.ndarray  # (J, G): beta
    own: np.ndarray  # (3, G)
    raw: np.ndarray  # (3, G)


def _grouped(work: Work, moments: Moments) -> Groups:
    """All in one group where they are alike, else everyone in one of its own."""
    weight, heard = moments.columns()
    own, raw = moments.own, moments.second()
    linear = tuple(SourceTable(s.first[..., 1:], s.added, s.G) for s in work.sources)
    by_agent = [work.mean[..., 1:], work.p, weight.T, heard.T, own.T, raw.T, *(a for s in linear for a in s)]
    if all(_alike(a) for a in by_agent):
        linear = tuple(SourceTable(*(a[:1] for a in s)) for s in linear)
        return Groups(
            float(work.agents),
            work.mean[:1, :, 1:],
            linear,
            work.p[:1],
            weight[:, :1],
            heard[:, :1],
            own[:, :1],
            raw[:, :1],
        )
    return Groups(1.0, work.mean[..., 1:], linear, work.p, weight, heard, own, raw)


def _alike(a: np.ndarray) -> bool:
    return bool(np.abs(a - a[:1]).max(initial=0.0) <= ROUNDING * (1e-3 + np.abs(a).max(initial=0.0)))


class Spread(NamedTuple):
    """The covariance of (u, m_1, ..., m_G), and the mean one of a member's memory in every group (G, n_m, n_m)."""

    C: np.ndarray
    V: np.ndarray


class Rounds:
    """Mean and covariance after one affine round after the other, beginning at the start of a run.

    gauge: what is measured.
    """

    def __init__(self, work: Work, moments: Moments, gauge: Gauge):
        self.work, self.scale = work, moments.scale
        self.groups = g = _grouped(work, moments)
        K, n_out, _ = work.mean.shape
        self.n_m, self.n_u = work.shear.shape
        self.n_s = n_out - self.n_m
        self.R = gauge.of_state(work.reading)
        self.u, self.m = np.zeros(self.n_u), np.zeros((K, self.n_m))
        self.gap = gauge(work.model - gauge.target)
        self.weights, self.heard = moments.columns()
        G = len(g.slope)
        self.spread = Spread(np.zeros((self.n_u + G * self.n_m,) * 2), np.zeros((G, self.n_m, self.n_m)))
        self.maps = [self._map(j) for j in range(len(self.weights))]
        self.packs = [(np.triu_indices(s.first.shape[-2]), _unpacking(s.G.shape[-1])) for s in g.sources]
        self.constants = [s.first[..., 0] for s in work.sources]

    @property
    def mean_error(self) -> float:
        """|L (E w - target)|^2 now."""
        away = self.gap + self.R @ self.u
        return float(away @ away)

    @property
    def variance(self) -> float:
        """E|L (w - E w)|^2 now."""
        C = self.spread.C[: self.n_u, : self.n_u]
        return float(np.einsum("ij,jk,ik->", self.R, C, self.R, optimize=False))

    @property
    def law(self) -> Law:
        """Of the error of a single run now."""
        C = self.spread.C[: self.n_u, : self.n_u]
        return Law.of(self.gap + self.R @ self.u, self.R @ C @ self.R.T)

    # The mean

    def outputs(self) -> np.ndarray:
        """(K, n_out): what agents send on average, and by how much they change their memories."""
        g, mean = self.groups, self.work.mean
        if len(g.slope) == 1:
            slope = g.slope[0]
            return mean[..., 0] + slope[:, : self.n_u] @ self.u + self.m @ slope[:, self.n_u :].T
        by_memory = (mean[..., 1 + self.n_u :] @ self.m[..., None])[..., 0] if self.n_m else 0.0
        return mean[..., 0] + mean[..., 1 : 1 + self.n_u] @ self.u + by_memory

    def step_mean(self, out: np.ndarray) -> None:
        w = self.work
        sent = out[:, : self.n_s]
        moved = w.offset + w.A @ self.u
        self.u = moved + w.B @ (self.weights[0] @ sent) + w.C @ ((self.heard[0] * w.p) @ sent)
        if self.n_m:
            self.m = self.m + self.heard[0][:, None] * out[:, self.n_s :] + w.shear @ self.u

    # The covariance

    def _map(self, j: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """T_j: rows for the hub; for every group's memory what it takes of u, and of itself."""
        w, g = self.work, self.groups
        base = 1.0 if j == 0 else 0.0
        slope, n_s, n_u = g.slope, self.n_s, self.n_u
        into = g.weight[j][:, None, None] * w.B + (g.heard[j] * g.p)[:, None, None] * w.C
        rows = g.size * (into @ slope[:, :n_s])  # (G, n_u, n_z): of all its members together
        left = rows[..., :n_u].sum(0) + base * w.A
        right = rows[..., n_u:].transpose(1, 0, 2).reshape(n_u, -1)
        change = g.heard[j][:, None, None] * slope[:, n_s:]
        return np.hstack([left, right]), change[..., :n_u], change[..., n_u:] + base * np.eye(self.n_m)

    def _rows(self, j: int, C: np.ndarray) -> np.ndarray:
        """T_j C."""
        hub, column, block = self.maps[j]
        if not self.n_m:
            return hub @ C
        G, n_m, n_u = len(column), self.n_m, self.n_u
        own = block @ C[n_u:].reshape(G, n_m, -1)
        own += (column.reshape(G * n_m, n_u) @ C[:n_u]).reshape(own.shape)
        return np.concatenate([hub @ C, own.reshape(G * n_m, -1)])

    def _of_members(self, j: int, Z: np.ndarray) -> np.ndarray:
        """What T_j makes of the covariance of a member's memory, from that of (u, m_k)."""
        _, column, block = self.maps[j]
        row = np.concatenate([column, block], axis=2)
        return row @ Z @ row.transpose(0, 2, 1)

    def step_spread(self, out: np.ndarray) -> None:
        """One round of the covariance; `out`: what agents do on average in it."""
        w, g, n_u, n_m, n_s = self.work, self.groups, self.n_u, self.n_m, self.n_s
        C, V = self.spread
        G = len(g.slope)
        Z = self._around(C, V)
        new = self._rows(0, self._rows(0, C).T)
        members = self._of_members(0, Z) if n_m else V
        for j, scale in enumerate(self.scale, 1):
            new += scale * self._rows(j, self._rows(j, C).T)
            change = self.heard[j][:, None] * out[:, n_s:]
            sent = out[:, :n_s]
            hub = w.B @ (self.weights[j] @ sent) + w.C @ ((self.heard[j] * w.p) @ sent)
            t = np.concatenate([hub, self._by_group(change).ravel()])
            new += scale * np.outer(t, t)
            if n_m:
                members = members + scale * (self._of_members(j, Z) + self._squares(change))
        O = g.slope @ Z @ g.slope.transpose(0, 2, 1) + self._squares(out)
        N = self._noise(Z)
        vv, vs, ss = (g.own[i][:, None, None] * O + g.raw[i][:, None, None] * N for i in range(3))
        p = g.p[:, None, None]
        cross = w.B @ (p * vs)[:, :n_s, :n_s].sum(0) @ w.C.T
        hub_part = w.B @ vv[:, :n_s, :n_s].sum(0) @ w.B.T + cross + cross.T
        hub_part += w.C @ (p * p * ss)[:, :n_s, :n_s].sum(0) @ w.C.T
        new[:n_u, :n_u] += g.size * hub_part
        if n_m:
            beside = w.B @ vs[:, :n_s, n_s:] + w.C @ (p * ss)[:, :n_s, n_s:]
            row = beside.transpose(1, 0, 2).reshape(n_u, G * n_m)
            new[:n_u, n_u:] += row
            new[n_u:, :n_u] += row.T
            k = np.arange(G)
            inner = new[n_u:, n_u:].reshape(G, n_m, G, n_m)
            inner[k, :, k, :] += ss[:, n_s:, n_s:] / g.size
            members = members + ss[:, n_s:, n_s:]
            new, members = self._settled(new, members)
        self.spread = Spread((new + new.T) / 2, members)

    def _settled(self, C: np.ndarray, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Once memories have taken what they take of the new hub."""
        shear, n_u, G = self.work.shear, self.n_u, len(V)
        if not shear.any():
            return C, V
        beside = shear @ C[:n_u, n_u:].reshape(n_u, G, self.n_m).transpose(1, 0, 2)
        V = V + beside + beside.transpose(0, 2, 1) + shear @ C[:n_u, :n_u] @ shear.T
        C[n_u:] += np.tile(shear @ C[:n_u], (G, 1))
        C[:, n_u:] += np.tile(C[:, :n_u] @ shear.T, (1, G))
        return C, V

    def _around(self, C: np.ndarray, V: np.ndarray) -> np.ndarray:
        """(G, n_z, n_z): the covariance of (u, m_k), on average over a group."""
        G, n_u = len(V), self.n_u
        Z = np.empty((G, n_u + self.n_m, n_u + self.n_m))
        Z[:, :n_u, :n_u] = C[:n_u, :n_u]
        beside = C[:n_u, n_u:].reshape(n_u, G, self.n_m).transpose(1, 0, 2)
        Z[:, :n_u, n_u:], Z[:, n_u:, :n_u], Z[:, n_u:, n_u:] = beside, beside.transpose(0, 2, 1), V
        return Z

    def _by_group(self, a: np.ndarray) -> np.ndarray:
        """The mean over a group's members."""
        return a.mean(0, keepdims=True) if len(self.groups.slope) == 1 else a

    def _squares(self, a: np.ndarray) -> np.ndarray:
        """(G, n, n): the mean of a_k a_k' over a group's members."""
        return (a.T @ a)[None] / len(a) if len(self.groups.slope) == 1 else a[:, :, None] * a[:, None, :]

    def _noise(self, Z: np.ndarray) -> np.ndarray:
        """(G, n_out, n_out): the covariance that samples add to what a member sends and remembers."""
        g = self.groups
        total = np.zeros((len(g.slope), *g.slope.shape[1:2] * 2))
        for source, whole, constant, (upper, unpacking) in zip(
            g.sources, self.work.sources, self.constants, self.packs, strict=True
        ):
            if len(g.slope) == 1:
                lin = source.first[0]
                at = constant + lin[:, : self.n_u] @ self.u + self.m @ lin[:, self.n_u :].T
            else:
                at = constant + whole.first[..., 1 : 1 + self.n_u] @ self.u
                if self.n_m:
                    at = at + (whole.first[..., 1 + self.n_u :] @ self.m[..., None])[..., 0]
            M = source.first @ Z @ source.first.transpose(0, 2, 1) + self._squares(at)
            packed = (source.added @ M[:, upper[0], upper[1]][..., None])[..., 0]
            total += source.G @ packed[:, unpacking] @ source.G.transpose(0, 2, 1)
        return total

    def advance(self) -> float:
        """One round of both: the expected error after it."""
        out = self.outputs()
        self.step_spread(out)
        self.step_mean(out)
        return self.mean_error + self.variance


class Powers:
    """The expected error after any number of rounds, where agents remember nothing: powers of the map of E[x x'],
    x = (1, u), whose upper triangle is a short vector."""

    def __init__(self, work: Work, moments: Moments, gauge: Gauge, noise: float | None = None):
        """noise: the hub adds some of variance 1 to every number of the mean that it hears, and as much, times this, to
        the total."""
        w, n_u = work, len(work.A)
        weight, heard = moments.columns()
        whole = np.zeros((1 + n_u, 1 + n_u))
        whole[0, 0], whole[1:, 0], whole[1:, 1:] = 1.0, w.offset, w.A
        upper = np.triu_indices(1 + n_u)
        M = np.zeros((len(upper[0]),) * 2)
        for j, scale in enumerate([1.0, *moments.scale]):
            whole[1:] += w.B @ np.tensordot(weight[j], w.mean, 1) + w.C @ np.tensordot(heard[j] * w.p, w.mean, 1)
            M += scale * congruence(whole)
            whole = np.zeros_like(whole)
        own, raw = (a * np.stack([np.ones_like(w.p), w.p, w.p**2]) for a in (moments.own, moments.second()))
        counts = 3 if w.C.any() else 1  # vv, and where totals matter vs and ss
        sent = np.stack([congruences(w.mean, each) for each in own[:counts]])  # summed over agents
        for s in w.sources:
            if len(s.added) == 1 and _alike(s.G):
                asked = np.stack([congruences(s.first, each) for each in raw[:counts]])
                sent = sent + congruence(s.G[0]) @ (s.added[0] @ asked)
            else:
                sent = sent + np.tensordot(raw[:counts], congruence(s.G) @ (s.added @ congruence(s.first)), 1)
        B = congruence(w.B)
        M[upper[0] > 0] += B @ sent[0]
        if counts > 1:
            C, both = congruence(w.C), congruence(w.B + w.C)
            M[upper[0] > 0] += (both - B - C) @ sent[1] + C @ sent[2]
        if noise is not None:
            into = (w.B + noise * w.C)[:, :-1]
            M[upper[0] > 0, 0] += (into @ into.T)[np.triu_indices(n_u)]
        self.power, self.map = Squarings(M), M
        self.measured = np.column_stack([gauge(w.model - gauge.target), gauge.of_state(w.reading)])
        W = self.measured.T @ self.measured
        self.weight = W[upper] * np.where(upper[0] == upper[1], 1.0, 2.0)

    def at(self, t: int) -> float:
        with np.errstate(all="ignore"):
            return float(self.weight @ self._moments(t))

    def path(self, rounds: int) -> np.ndarray:
        """The same after rounds 0, 1, ..., `rounds`."""
        v, found = np.eye(1, len(self.weight))[0], np.empty(rounds + 1)
        with np.errstate(all="ignore"):
            for t in range(rounds + 1):
                found[t] = self.weight @ v
                v = self.map @ v
        return found

    def law(self, t: int) -> Law:
        """Of the error of a single run after so many rounds."""
        with np.errstate(all="ignore"):
            S = self._moments(t)[_unpacking(self.measured.shape[1])]
            mean = S[0, 1:]
            R = self.measured[:, 1:]
            return Law.of(self.measured[:, 0] + R @ mean, R @ (S[1:, 1:] - np.outer(mean, mean)) @ R.T)

    def _moments(self, t: int) -> np.ndarray:
        """The upper triangle of E[x x'] after so many rounds."""
        return self.power(t, np.eye(1, len(self.weight))[0])


def _unpacking(size: int) -> np.ndarray:
    """(size, size): where the entries of a symmetric matrix stand in its upper triangle."""
    place = np.zeros((size, size), int)
    place[np.triu_indices(size)] = np.arange(size * (size + 1) // 2)
    return np.maximum(place, place.T)
