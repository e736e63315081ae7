r"""How do second moments travel through a round? The operator behind floors and curves, exact for affine fields.

Write x = (1, u - u*, m_1 - m_1*, ..., m_K - m_K*) for the state around a point. A round is x+ = J x with a random J:
participation draws (v_k, s_k), samples make fields noisy, stragglers stop early. Then S = E[x x'] goes to

$$ S^+ = E[J S J'] = \sum_j \lambda_j \mathcal L_j S \mathcal L_j' + \text{one block for every agent}, $$

where L_0 is the mean round, the other L_j carry the correlation of agents in the schedule (low rank), and the agents'
blocks carry their own luck: being drawn, and the noise of their local steps. Nothing here grows like the square of a
square: S is (1 + n) x (1 + n), every L_j is an arrow (a dense row for the hub, a block and a column for each agent).

The noise inside an agent's round comes from the code itself: the agent runs with exact fields plus a probe where each
sample enters. Samples are fresh, so their noises are uncorrelated; the covariance of each is the problem's at the
point where the field was asked for, and the probes' derivatives carry it into message and memory.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from fedpoint.core.agent import Agent
from fedpoint.core.errors import FedpointError
from fedpoint.core.inbox import Inbox
from fedpoint.core.random import NO_LUCK, Stream
from fedpoint.core.record import split_per_agent
from fedpoint.core.vector import unwrap, wrap, zeros
from fedpoint.problems.base import Mine, per_agent
from fedpoint.theory.expected_round import Numbers, decided, hub_at, local_round, start_at, template
from fedpoint.theory.operator import Setting
from fedpoint.theory.space import Space, fill, flat, floats, take_leaves


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


class Point(NamedTuple):
    """The noise of one sampled field outside a loop, asked for at a point with derivative V."""

    point: Array
    V: Array


class Probe(Agent):
    """An agent with exact fields that adds a probe wherever a sample enters, and notes how it would spread."""

    def __init__(self, oracle, mine, share, space: Space, size: int, round: Any, probes: list[Array] | None):
        super().__init__(oracle, mine, Stream(NO_LUCK, round, 0), None, None, True, share)
        self.space, self.size, self.probes = space, size, probes
        self.sources: list[Any] = []  # values here; their derivatives are taken outside
        self._inside: Any = None

    def _mean(self, w):
        model = unwrap(w)
        at, _ = ravel_pytree(model)
        g, unravel = ravel_pytree(self._oracle.mean_field(self._mine, model))
        return at, g, unravel

    def _probe(self, size: int) -> Array:
        return jnp.zeros(size) if self.probes is None else self.probes[len(self.sources)]

    def field(self, w, e=0):
        if self._inside is not None:
            return self._inside(w)
        self.evaluations = self.evaluations + 1
        at, g, unravel = self._mean(w)
        probe = self._probe(g.size)
        self.sources.append(Point(at, at))
        return wrap(unravel(g + probe))

    def loop(self, start, steps, advance):
        if any(not jnp.issubdtype(jnp.result_type(a), jnp.floating) for a in jax.tree.leaves(start)):
            raise FedpointError("local optimisers with counters have no exact noise floor")
        y0, unravel = ravel_pytree(start)
        length = steps if isinstance(steps, int) else self.space.most

        def partial_(y, noise, e):
            seen: list[Array] = []

            def inside(w):
                at, g, back = self._mean(w)
                seen.append(at)
                return wrap(back(g + noise))

            self._inside = inside
            new = ravel_pytree(advance(unravel(y), e))[0]
            self._inside = None
            if len(seen) > 1:
                raise FedpointError("several fields in one local step have no exact noise floor")
            return new, seen[0] if seen else jnp.zeros(self.size)

        quiet = jnp.zeros(self.size)

        def slices(y, e):
            """What is stored of a step: its value with y held (its derivative is taken outside), and F, N, H."""
            y = lax.stop_gradient(y)
            value, point = partial_(y, quiet, e)
            (F, H), (N, _) = (jax.jacfwd(lambda y, n: partial_(y, n, e), argnums=i)(y, quiet) for i in (0, 1))
            return value, point, F, N, H

        def step(y, e):
            new, point = partial_(y, quiet, e)
            live = e < steps
            noted = (lax.stop_gradient(point), () if self.space.alike else slices(y, e))
            return jnp.where(live, new, y), noted

        last, (points, kept) = lax.scan(step, y0, jnp.arange(length))
        if self.space.alike:
            kept = jax.tree.map(lambda a: a[None], slices(y0, 0))
        value, point, F, N, H = kept
        probe = self._probe(y0.size)
        self.sources.append(Loop(points, y0, F, value, N, H, point, jnp.asarray(steps)))
        return unravel(last + probe)


class Local(NamedTuple):
    """One agent's linearised round: out = value + slope ext, ext = (u, m_k, probes)."""

    value: Array
    slope: Array
    sources: Any


def _linearise_agent(oracle, space, numbers: Numbers, algorithm, own, share, u, m, round) -> Local:
    """Message (with a 1 behind it) and memory of one agent, settled with the hub it has, around (u, m)."""
    mine = Mine(own, numbers.common)
    hub_like = hub_at(numbers, round)
    n_u, n_m, fixed = u.size, m.size, u
    size = sum(np.size(a) for a in floats(numbers.model))

    def run(u, m, probes):
        agent = Probe(oracle, mine, share, space, size, round, probes)
        hub = fill(hub_like, u)
        sent, new = local_round(space, numbers, algorithm, agent, hub, m)
        settled = flat(take_leaves(algorithm.settle(fill(hub_like, fixed), new), space.kept))
        return jnp.concatenate([flat(sent), jnp.ones(1), settled]), agent.sources

    shapes = jax.eval_shape(lambda u, m: run(u, m, None)[1], u, m)
    sizes = [s.start.size if isinstance(s, Loop) else s.point.size for s in shapes]
    cuts = np.cumsum([n_u, n_m, *sizes])[:-1]

    def of_ext(ext):
        u_, m_, *probes = jnp.split(ext, cuts)
        out, sources = run(u_, m_, probes)
        moving = [(s.start, s.T, s.V) if isinstance(s, Loop) else s.V for s in sources]
        return (out, moving), (out, sources)

    ext = jnp.concatenate([u, m, jnp.zeros(sum(sizes))])
    (slope, moving), (value, sources) = jax.jacfwd(of_ext, has_aux=True)(ext)
    done = []
    for s, moved in zip(sources, moving, strict=True):
        if isinstance(s, Loop):
            start, T, V = moved
            done.append(s._replace(start=start, T=T, V=V))
        else:
            done.append(s._replace(V=moved))
    return Local(value, slope, tuple(done))


def _noise(oracle, space: Space, numbers: Numbers, own, local: Local, Z: Array, model: Any) -> Array:
    """Covariance of out that samples make, given Z = E[z z'] with z = (1, u, m_k)."""
    mine = Mine(own, numbers.common)
    _, unravel = ravel_pytree(unwrap(model))
    n_ext = local.slope.shape[1]
    n_z = Z.shape[0] - 1
    second = jnp.zeros((n_ext, n_ext)).at[:n_z, :n_z].set(Z[1:, 1:])
    mean = jnp.zeros(n_ext).at[:n_z].set(Z[0, 1:])

    def covariance(point, shift, spread):
        """Of a sampled field asked for around `point`: linear in Z."""
        w = unravel(point)
        value, tilt = jax.jvp(lambda v: oracle.covariance(mine, unravel(v)), (point,), (shift,))
        return Z[0, 0] * value + tilt + oracle.scatter(mine, w, spread)

    at = n_z
    for source in local.sources:
        if isinstance(source, Point):
            V = source.V
            C = covariance(source.point, V @ mean, V @ second @ V.T)
        else:
            loop: Loop = source

            def step(carry, e_point, loop=loop, second=second):
                Y, W = carry
                e, point = e_point
                F, T, N, H, V = (a[0] if space.alike else a[e] for a in (loop.F, loop.T, loop.N, loop.H, loop.V))
                E = H @ Y + V
                C = covariance(point, E @ mean, E @ second @ E.T + H @ W @ H.T)
                live = e < loop.steps
                Y_, W_ = F @ Y + T, F @ W @ F.T + N @ C @ N.T
                return (jnp.where(live, Y_, Y), jnp.where(live, W_, W)), None

            n_y = loop.start.shape[0]
            begin = (loop.start, jnp.zeros((n_y, n_y)))
            (_, C), _ = lax.scan(step, begin, (jnp.arange(loop.points.shape[0]), loop.points))
        size = C.shape[0]
        second = second.at[at : at + size, at : at + size].set(C)
        at += size
    G = local.slope[:, n_z:]
    return G @ second[n_z:, n_z:] @ G.T


class Arrow(NamedTuple):
    """A map of x: a dense row for the hub, a column and a block for each agent, 1 stays `one`."""

    one: Array
    hub: Array  # (n_u, 1 + n)
    column: Array  # (K, n_m, 1 + n_u)
    block: Array  # (K, n_m, n_m)

    def rows(self, S: Array) -> Array:
        """This times S."""
        n_u = self.hub.shape[0]
        K, n_m, _ = self.column.shape
        parts = [self.one * S[:1], self.hub @ S]
        if n_m:
            own = S[1 + n_u :].reshape(K, n_m, -1)
            parts.append((self.column @ S[: 1 + n_u] + self.block @ own).reshape(K * n_m, -1))
        return jnp.concatenate(parts)


class Linear(NamedTuple):
    """One linearised round, ready to move second moments; leads with the hub's outcomes."""

    arrows: Arrow  # leads with the mean and the schedule's factors
    scale: Array  # (1 + R,)
    locals: Local  # leads with agents (and stragglers' counts)
    mean: Array  # (K, n_out, 1 + n_z): the mean local map, memory as a change
    B: Array
    C: Array
    shear: Array  # (n_m, n_u): what a settled memory takes of the new hub


class Moving(NamedTuple):
    """All that the second-moment operator needs, as numbers."""

    numbers: Numbers
    own: Array  # (3, K) covariance of (v_k, s_k) apart from factors
    raw: Array  # (3, K) second moments
    linear: Linear  # leads with the hub's outcomes


def linearise(oracle, space: Space, numbers: Numbers, moments: Any, x: Array, round: Any) -> Linear:
    """Around the state x, for every outcome of the hub's draws."""
    hub_like = hub_at(numbers, round)
    n_u = sum(int(np.prod(np.shape(a))) for a in floats(hub_like))
    K = numbers.p.shape[0]
    u, m = x[:n_u], x[n_u:].reshape(K, -1)
    n_m = m.shape[1]

    def outcome(value):
        one = numbers
        if numbers.drawn.hub:
            one = numbers._replace(algorithm=numbers.algorithm.given(value))
        tuned, put = split_per_agent(one.algorithm)
        message, _ = template(space, oracle, one)

        def agent(k):
            own, tuned, m, share = k
            algorithm = put(tuned)

            def late(count):
                chosen = decided(algorithm, count) if numbers.drawn.agent else algorithm
                return _linearise_agent(oracle, space, one, chosen, own, share, u, m, round)

            return jax.vmap(late)(numbers.late[1])

        locals_ = per_agent(agent, (one.own, tuned, m, one.p))
        late = numbers.late[0]
        value0 = jnp.einsum("c,kco->ko", late, locals_.value)
        slope = jnp.einsum("c,kcoz->koz", late, locals_.slope[..., : n_u + n_m])
        n_out = value0.shape[1]
        n_sent = n_out - n_m
        # Memory as a change: new - m_k.
        value0 = value0.at[:, n_sent:].add(-m)
        slope = slope.at[:, n_sent:, n_u:].add(-jnp.eye(n_m))
        mean = jnp.concatenate([value0[..., None], slope], axis=-1)

        def combine(u, mean, total):
            inbox = Inbox(fill(message, mean[:-1]), fill(message, total[:-1]), total[-1], mean[-1])
            return flat(one.algorithm.combine(fill(hub_like, u), inbox))

        share = numbers.p * numbers.heard
        heard = (numbers.mean @ value0[:, :n_sent], share @ value0[:, :n_sent])
        A, B, C = jax.jacfwd(combine, argnums=(0, 1, 2))(u, *heard)
        offset = combine(u, *heard) - u - B @ heard[0] - C @ heard[1]

        def arrow(alpha, beta, base):
            weights = jnp.einsum("k,hs->khs", alpha, B) + jnp.einsum("k,hs->khs", beta * numbers.p, C)
            rows = jnp.einsum("khs,ksz->khz", weights, mean[:, :n_sent])
            left = rows[..., : 1 + n_u].sum(0)
            left = left.at[:, 0].add(base * offset).at[:, 1:].add(base * A)
            right = rows[..., 1 + n_u :].transpose(1, 0, 2).reshape(n_u, K * n_m)
            change = beta[:, None, None] * mean[:, n_sent:]
            return Arrow(
                base,
                jnp.concatenate([left, right], axis=1),
                change[..., : 1 + n_u],
                change[..., 1 + n_u :] + base * jnp.eye(n_m),
            )

        alphas = jnp.concatenate([numbers.mean[None], moments.factor[:, 0]])
        betas = jnp.concatenate([numbers.heard[None], moments.factor[:, 1]])
        bases = jnp.zeros(alphas.shape[0]).at[0].set(1.0)
        arrows = jax.vmap(arrow)(alphas, betas, bases)
        scale = jnp.concatenate([jnp.ones(1), moments.scale])
        _, memory = template(space, oracle, one)

        def settled(u):
            return flat(take_leaves(one.algorithm.settle(fill(hub_like, u), zeros(memory)), space.kept))

        shear = jax.jacfwd(settled)(u) if n_m else jnp.zeros((0, n_u))
        return Linear(arrows, scale, locals_, mean, B, C, shear)

    values = numbers.chances[1]
    return lax.map(outcome, values) if values.shape[0] > 1 else jax.tree.map(lambda a: a[None], outcome(values[0]))


def _move(oracle, space: Space, exact: bool, moving: Moving, S: Array) -> Array:
    """S -> E[J S J'], given that the round merges."""
    numbers = moving.numbers
    K = numbers.p.shape[0]
    n_u, n_m = moving.linear.B.shape[1], moving.linear.shear.shape[1]

    def outcome(linear: Linear) -> Array:
        def product(total, part):
            arrow, scale = part
            return total + scale * arrow.rows(arrow.rows(S).T), None

        new = lax.scan(product, jnp.zeros_like(S), (linear.arrows, linear.scale))[0]

        def own(k):
            index, own, local, mean = k
            if n_m:
                inside = S[1 + n_u :].reshape(K, n_m, -1)[index]
                Z = jnp.zeros((1 + n_u + n_m,) * 2).at[: 1 + n_u, : 1 + n_u].set(S[: 1 + n_u, : 1 + n_u])
                cross = inside[:, : 1 + n_u]
                Z = Z.at[1 + n_u :, : 1 + n_u].set(cross).at[: 1 + n_u, 1 + n_u :].set(cross.T)
                Z = Z.at[1 + n_u :, 1 + n_u :].set(lax.dynamic_slice_in_dim(inside[:, 1 + n_u :], index * n_m, n_m, 1))
            else:
                Z = S
            O = mean @ Z @ mean.T
            noise = jnp.zeros_like(O)
            if numbers.drawn.agent:  # stragglers: the spread of the maps themselves
                maps = jnp.concatenate([local.value[..., None], local.slope[..., : n_u + n_m]], axis=-1)
                maps = maps + (mean - jnp.einsum("c,coz->oz", numbers.late[0], maps))  # memory as a change
                noise = jnp.einsum("c,coz,zy,cpy->op", numbers.late[0], maps, Z, maps) - O
            if not exact:
                each = jax.vmap(lambda one: _noise(oracle, space, numbers, own, one, Z, numbers.model))(local)
                noise = noise + jnp.einsum("c,cop->op", numbers.late[0], each)
            return O, noise

        O, noise = per_agent(own, (jnp.arange(K), numbers.own, linear.locals, linear.mean))
        n_s = O.shape[1] - n_m
        vv, vs, ss = (moving.own[i][:, None, None] * O + moving.raw[i][:, None, None] * noise for i in range(3))
        p = numbers.p[:, None, None]
        B, C = linear.B, linear.C
        cross = B @ (p * vs)[:, :n_s, :n_s].sum(0) @ C.T
        hub = B @ vv[:, :n_s, :n_s].sum(0) @ B.T + cross + cross.T + C @ (p * p * ss)[:, :n_s, :n_s].sum(0) @ C.T
        new = new.at[1 : 1 + n_u, 1 : 1 + n_u].add(hub)
        if n_m:
            beside = B @ vs[:, :n_s, n_s:] + C @ (p * ss)[:, :n_s, n_s:]  # (K, n_u, n_m)
            row = beside.transpose(1, 0, 2).reshape(n_u, K * n_m)
            new = new.at[1 : 1 + n_u, 1 + n_u :].add(row).at[1 + n_u :, 1 : 1 + n_u].add(row.T)
            k = jnp.arange(K)
            inner = new[1 + n_u :, 1 + n_u :].reshape(K, n_m, K, n_m)
            inner = inner.at[k, :, k, :].add(ss[:, n_s:, n_s:])
            new = new.at[1 + n_u :, 1 + n_u :].set(inner.reshape(K * n_m, K * n_m))
            if not space.settled:
                return new
            top = new[: 1 + n_u]
            new = new.at[1 + n_u :].add(jnp.tile(linear.shear @ top[1:], (K, 1)))
            new = new.at[:, 1 + n_u :].add(jnp.tile(new[:, 1 : 1 + n_u] @ linear.shear.T, (1, K)))
        return new

    chances = numbers.chances[0]
    if chances.shape[0] == 1:
        moved = outcome(jax.tree.map(lambda a: a[0], moving.linear))
    else:
        moved = lax.scan(
            lambda total, part: (total + part[0] * outcome(part[1]), None), jnp.zeros_like(S), (chances, moving.linear)
        )[0]
    return numbers.merge * moved + (1 - numbers.merge) * S


_linearise = jax.jit(linearise, static_argnums=(0, 1))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _moved(oracle, space: Space, exact: bool, moving: Moving, S: Array) -> Array:
    return _move(oracle, space, exact, moving, S)


class Factors(NamedTuple):
    """What agents' luck has in common."""

    scale: Array
    factor: Array


class Second:
    """The second-moment operator around a state."""

    def __init__(self, setting: Setting, x: np.ndarray):
        self.setting = setting
        m = setting.moments
        with jax.enable_x64(True):
            common = Factors(jnp.asarray(m.scale), jnp.asarray(m.factor))
            linear = _linearise(setting.oracle, setting.space, setting.numbers, common, jnp.asarray(x), jnp.int32(0))
            self.moving = Moving(setting.numbers, jnp.asarray(m.own), jnp.asarray(m.second()), linear)

    def __call__(self, S: np.ndarray) -> np.ndarray:
        s = self.setting
        S = (S + S.T) / 2  # an oracle's scatter is that of symmetric matrices: what rounding adds to them would grow
        with jax.enable_x64(True):
            return np.asarray(_moved(s.oracle, s.space, s.exact, self.moving, S))


def along_path(setting: Setting, x: np.ndarray, R: np.ndarray, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """(rounds + 1, d) and (rounds + 1,): the model's mean, and tr R Sigma R', linearised anew around the mean."""
    m = setting.moments
    with jax.enable_x64(True):
        common = Factors(jnp.asarray(m.scale), jnp.asarray(m.factor))
        own, raw = jnp.asarray(m.own), jnp.asarray(m.second())
        state = (jnp.asarray(x), jnp.zeros((len(x), len(x))))
        means, variances, first = [setting.read(x)[None]], [np.zeros(1)], 0
        while first < rounds:
            state, (mean, variance) = _along(
                setting.oracle,
                setting.space,
                setting.exact,
                setting.numbers,
                common,
                own,
                raw,
                R,
                state,
                jnp.int32(first),
            )
            means.append(np.asarray(mean)[: rounds - first])
            variances.append(np.asarray(variance)[: rounds - first])
            first += ALONG
    return np.concatenate(means), np.concatenate(variances)


ALONG = 64


@partial(jax.jit, static_argnums=(0, 1, 2))
def _along(oracle, space, exact, numbers, common, own, raw, R, state, first):
    k = R.shape[1]

    def go(state, round):
        x, sigma = state
        linear = linearise(oracle, space, numbers, common, x, round)
        S = jnp.zeros((1 + x.size,) * 2).at[0, 0].set(1.0).at[1:, 1:].set(sigma)
        S = _move(oracle, space, exact, Moving(numbers, own, raw, linear), S)
        shift = S[0, 1:]
        x, sigma = x + shift, S[1:, 1:] - jnp.outer(shift, shift)
        return (x, sigma), (
            flat(numbers.algorithm.read(start_at(numbers, x, 0)[0], ())),
            jnp.trace(R @ sigma[:k, :k] @ R.T),
        )

    return lax.scan(go, state, first + jnp.arange(ALONG))
