r"""How do second moments travel through a round? The operator behind floors and curves, exact for affine fields.

Write x = (1, u - u*, m_1 - m_1*, ..., m_K - m_K*) for the state around a point. A round is x+ = J x with a random J:
participation draws (v_k, s_k), samples make fields noisy, stragglers stop early. Then S = E[x x'] goes to

$$ S^+ = E[J S J'] = \sum_j \lambda_j \mathcal L_j S \mathcal L_j' + \text{one block for every agent}, $$

where L_0 is the mean round, the other L_j carry the correlation of agents in the schedule (low rank), and the agents'
blocks carry their own luck: being drawn, and the noise of their local steps. Nothing here grows like the square of a
square: S is (1 + n) x (1 + n), every L_j is an arrow (a dense row for the hub, a block and a column for each agent).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.channel.base import Hub
from fedpoint.core.compiling import fairly_quickly, quickly
from fedpoint.core.inbox import Inbox
from fedpoint.core.precision import double
from fedpoint.core.random import NO_LUCK
from fedpoint.core.record import split_per_agent
from fedpoint.core.types import Message, Number, Tree
from fedpoint.core.vector import zeros
from fedpoint.problems.base import per_agent
from fedpoint.theory.expected_round import Cases, Numbers, decided, hub_at, template
from fedpoint.theory.noise import (
    LocalNoise,
    Luck,
    ProbePlace,
    Sent,
    SourceNoise,
    linearised,
    over_agents,
    source_noises,
    tabulated,
    through_probes,
)
from fedpoint.theory.operator import Setting
from fedpoint.theory.space import Space, fill, flat, over, row_of, size_of


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


class Spread(NamedTuple):
    """How (v, s) spread around their means; leads with the cases of whom a round may hear."""

    own: Array  # (3, K) covariance of (v_k, s_k) apart from factors
    raw: Array  # (3, K) second moments
    scale: Array  # (R,) of what agents have in common
    factor: Array  # (R, 2, K)
    largest: Array  # the mean square of the largest weight


class Merge(NamedTuple):
    """What the hub makes of what it hears, linearised; leads with the cases of whom a round may hear."""

    arrows: Arrow  # leads with the mean and the schedule's factors
    scale: Array  # (1 + R,)
    B: Array
    C: Array
    noise: Array  # (n_u, n_u), which the channel adds at the hub


class Linear(NamedTuple):
    """One linearised round, ready to move second moments; leads with the hub's outcomes."""

    merges: Merge
    locals: LocalNoise  # leads with agents (and stragglers' counts)
    mean: Array  # (K, n_out, 1 + n_z): the mean local map, memory as a change
    shear: Array  # (n_m, n_u): what a settled memory takes of the new hub


class Moving(NamedTuple):
    """All that the second-moment operator needs, as numbers."""

    numbers: Numbers
    spread: Spread
    linear: Linear  # leads with the hub's outcomes


def work_of(space: Space, numbers: Numbers, x: Array, round: Number) -> tuple[LocalNoise, Array]:
    """What every agent makes of what it hears and remembers, linearised around the state x, and (K, n_out, 1 + n_z)
    the mean of it over how many steps it takes, memory as a change."""
    hub_like = hub_at(numbers, round)
    n_u, K = size_of(hub_like), numbers.p.shape[0]
    u, m = x[:n_u], x[n_u:].reshape(K, -1)
    n_m = m.shape[1]
    tuned, put = split_per_agent(numbers.algorithm)

    def agent(k: Tree) -> LocalNoise:
        own, tuned, m, share = k
        algorithm, place = put(tuned), ProbePlace(own, share, hub_like, u, m)

        def late(count: Array) -> LocalNoise:
            chosen = decided(algorithm, count) if numbers.drawn.agent else algorithm
            return linearised(space, numbers, chosen, place, round)

        return over(late, numbers.late[1])

    locals_ = per_agent(agent, (numbers.inputs.own, tuned, m, numbers.p), space.ragged)
    late = numbers.late[0]
    value0 = jnp.einsum("c,kco->ko", late, locals_.value)
    slope = jnp.einsum("c,kcoz->koz", late, locals_.slope[..., : n_u + n_m])
    n_sent = value0.shape[1] - n_m
    value0 = value0.at[:, n_sent:].add(-m)  # memory as a change: new - m_k
    slope = slope.at[:, n_sent:, n_u:].add(-jnp.eye(n_m))
    return locals_, jnp.concatenate([value0[..., None], slope], axis=-1)


class HubMap(NamedTuple):
    """What the hub makes of itself, of the weighted mean of what it hears and of the total, linearised."""

    A: Array
    B: Array
    C: Array
    offset: Array


def hub_map(space: Space, numbers: Numbers, u: Array, heard: tuple[Array, Array], round: Number) -> HubMap:
    """Around what it has and hears; mean and total end with the weight and the mass heard."""
    hub_like, message = hub_at(numbers, round), template(space, numbers)[0]

    def combine(u: Array, mean: Array, total: Array) -> Array:
        inbox = released(numbers, message, mean, total)
        return flat(numbers.algorithm.combine(fill(hub_like, u), inbox))

    A, B, C = jax.jacfwd(combine, argnums=(0, 1, 2))(u, *heard)
    return HubMap(A, B, C, combine(u, *heard) - u - B @ heard[0] - C @ heard[1])


def released(numbers: Numbers, message: Message, mean: Array, total: Array) -> Inbox:
    """What the hub uses of what was gathered, without luck."""
    inbox = Inbox(fill(message, mean[:-1]), fill(message, total[:-1]), total[-1], mean[-1])
    return numbers.inputs.channel.release(inbox, Hub(NO_LUCK.row(), jnp.int32(0), jnp.ones(())))


def hub_noise(
    space: Space, numbers: Numbers, u: Array, heard: tuple[Array, Array], largest: Array, round: Number
) -> Array:
    """(n_u, n_u): what noise that the channel adds to what was gathered makes of the hub. largest: the mean square of
    the largest weight."""
    channel, message = numbers.inputs.channel, template(space, numbers)[0]
    added = None if channel.is_identity() else channel.scatter_hub(message, jnp.sqrt(largest))
    if added is None:
        return jnp.zeros((u.size, u.size))
    inbox = released(numbers, message, *heard)

    def combine(noise: Array) -> Array:
        mean, total = (fill(a, flat(a) + n) for a, n in zip(inbox[:2], jnp.split(noise, 2), strict=True))
        return flat(numbers.algorithm.combine(fill(hub_at(numbers, round), u), inbox._replace(mean=mean, total=total)))

    reach = jax.jacfwd(combine)(jnp.zeros(len(added)))
    return reach @ added @ reach.T


def settling(space: Space, numbers: Numbers, x: Array, round: Number) -> Array:
    """(n_m, n_u): what a settled memory takes of the new hub."""
    hub_like = hub_at(numbers, round)
    n_u, K = size_of(hub_like), numbers.p.shape[0]
    if x.size == n_u:
        return jnp.zeros((0, n_u))
    memory = template(space, numbers)[1]

    def settled(u: Array) -> Array:
        return row_of(space, numbers.algorithm, fill(hub_like, u), zeros(memory))

    return jax.jacfwd(settled)(x[:n_u]).reshape((x.size - n_u) // K, n_u)


def linearise(space: Space, numbers: Numbers, spread: Spread, x: Array, round: Number) -> Linear:
    """Around the state x, for every outcome of the hub's draws."""
    n_u, K = size_of(hub_at(numbers, round)), numbers.p.shape[0]
    n_m = (x.size - n_u) // K

    def outcome(value: Array) -> Linear:
        one = numbers.using(numbers.algorithm.given(value)) if numbers.drawn.hub else numbers
        locals_, mean = work_of(space, one, x, round)
        n_sent = mean.shape[1] - n_m
        value0 = mean[..., 0]

        def merge(case: tuple[Cases, Spread]) -> Merge:
            whom, spread = case
            share = numbers.p * whom.heard
            heard = (whom.weight @ value0[:, :n_sent], share @ value0[:, :n_sent])
            A, B, C, offset = hub_map(space, one, x[:n_u], heard, round)
            noise = hub_noise(space, one, x[:n_u], heard, spread.largest, round)

            def arrow(alpha: Array, beta: Array, base: Array) -> Arrow:
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

            alphas = jnp.concatenate([whom.weight[None], spread.factor[:, 0]])
            betas = jnp.concatenate([whom.heard[None], spread.factor[:, 1]])
            bases = jnp.zeros(alphas.shape[0]).at[0].set(1.0)
            return Merge(over(arrow, alphas, betas, bases), jnp.concatenate([jnp.ones(1), spread.scale]), B, C, noise)

        merges = over(merge, (numbers.cases, spread))
        return Linear(merges, locals_, mean, settling(space, one, x, round))

    return over(outcome, numbers.chances[1], in_turn=True)


class AgentsMoments(NamedTuple):
    """Of every agent, (K, out, out): the second moments of what it sends and remembers on average, and the covariance
    that its own luck adds: samples, numbers that it draws, and how many steps it takes; and that of each source."""

    mean: Array
    noise: Array
    sources: list[SourceNoise]  # (K, numbers of steps, ...) each


def move(space: Space, moving: Moving, S: Array) -> Array:
    """S -> E[J S J']."""
    return move_agents(space, moving, S)[0]


def move_agents(space: Space, moving: Moving, S: Array) -> tuple[Array, AgentsMoments]:
    """The same, and what agents did on the way, leading with the hub's outcomes."""
    numbers = moving.numbers
    K = numbers.p.shape[0]
    n_m, n_u = moving.linear.shear.shape[1:]

    def outcome(linear: Linear) -> tuple[Array, AgentsMoments]:
        agents = agents_moments(space, numbers, linear, S)

        def case(total: Array, part: tuple[Array, Spread, Merge]) -> tuple[Array, None]:
            chance, spread, merge = part
            return total + chance * merged(numbers, spread, merge, S, agents.mean, agents.noise), None

        new = lax.scan(case, jnp.zeros_like(S), (numbers.cases.chance, moving.spread, linear.merges))[0]
        if n_m and space.settled:
            top = new[: 1 + n_u]
            new = new.at[1 + n_u :].add(jnp.tile(linear.shear @ top[1:], (K, 1)))
            new = new.at[:, 1 + n_u :].add(jnp.tile(new[:, 1 : 1 + n_u] @ linear.shear.T, (1, K)))
        return new, agents

    def add(total: Array, part: tuple[Array, Linear]) -> tuple[Array, AgentsMoments]:
        new, agents = outcome(part[1])
        return total + part[0] * new, agents

    chances = numbers.chances[0]
    if chances.shape[0] == 1:
        moved, agents = outcome(jax.tree.map(lambda a: a[0], moving.linear))
        agents = jax.tree.map(lambda a: a[None], agents)
    else:
        moved, agents = lax.scan(add, jnp.zeros_like(S), (chances, moving.linear))
    return numbers.merge * moved + (1 - numbers.merge) * S, agents


def around_agent(S: Array, index: Array, n_u: int, n_m: int) -> Array:
    """The second moments of (1, u, m_k), out of all."""
    if not n_m:
        return S
    at = 1 + n_u + index * n_m
    beside = lax.dynamic_slice_in_dim(S, at, n_m)
    cross = beside[:, : 1 + n_u]
    inner = lax.dynamic_slice_in_dim(beside, at, n_m, 1)
    return jnp.block([[S[: 1 + n_u, : 1 + n_u], cross.T], [cross, inner]])


def agents_moments(space: Space, numbers: Numbers, linear: Linear, S: Array) -> AgentsMoments:
    n_m, n_u = linear.shear.shape
    random = space.sampled or any(isinstance(source, Luck | Sent) for source in linear.locals.sources)

    def own(local: LocalNoise, k: Tree) -> AgentsMoments:
        index, own, mean = k
        Z = around_agent(S, index, n_u, n_m)
        O = mean @ Z @ mean.T
        noise, sources = jnp.zeros_like(O), []
        if numbers.drawn.agent:  # stragglers: the spread of the maps themselves
            maps = jnp.concatenate([local.value[..., None], local.slope[..., : n_u + n_m]], axis=-1)
            maps = maps + (mean - jnp.einsum("c,coz->oz", numbers.late[0], maps))  # memory as a change
            noise = jnp.einsum("c,coz,zy,cpy->op", numbers.late[0], maps, Z, maps) - O
        if random:
            sources = over(lambda one: source_noises(space, numbers, own, one, Z), local)
            each = over(lambda one, sources: through_probes(one, sources, n_u + n_m), local, sources)
            noise = noise + jnp.einsum("c,cop->op", numbers.late[0], each)
        return AgentsMoments(O, noise, sources)

    each = (jnp.arange(numbers.p.shape[0]), numbers.inputs.own, linear.mean)
    return over_agents(own, linear.locals, each, space.ragged)


def merged(numbers: Numbers, spread: Spread, merge: Merge, S: Array, O: Array, noise: Array) -> Array:
    """E[J S J'] in one case of whom a round may hear, with what every agent's own luck adds (K, out, out): being drawn,
    and the noise of its local steps."""
    n_u, K, n_m = merge.B.shape[0], *merge.arrows.column.shape[1:3]

    def product(total: Array, part: tuple[Arrow, Array]) -> tuple[Array, None]:
        arrow, scale = part
        return total + scale * arrow.rows(arrow.rows(S).T), None

    new = lax.scan(product, jnp.zeros_like(S), (merge.arrows, merge.scale))[0]
    n_s = O.shape[1] - n_m
    vv, vs, ss = (spread.own[i][:, None, None] * O + spread.raw[i][:, None, None] * noise for i in range(3))
    p, B, C = numbers.p[:, None, None], merge.B, merge.C
    cross = B @ (p * vs)[:, :n_s, :n_s].sum(0) @ C.T
    hub = B @ vv[:, :n_s, :n_s].sum(0) @ B.T + cross + cross.T + C @ (p * p * ss)[:, :n_s, :n_s].sum(0) @ C.T
    new = new.at[1 : 1 + n_u, 1 : 1 + n_u].add(hub + S[0, 0] * merge.noise)
    if not n_m:
        return new
    beside = B @ vs[:, :n_s, n_s:] + C @ (p * ss)[:, :n_s, n_s:]  # (K, n_u, n_m)
    row = beside.transpose(1, 0, 2).reshape(n_u, K * n_m)
    new = new.at[1 : 1 + n_u, 1 + n_u :].add(row).at[1 + n_u :, 1 : 1 + n_u].add(row.T)
    k = jnp.arange(K)
    inner = new[1 + n_u :, 1 + n_u :].reshape(K, n_m, K, n_m)
    inner = inner.at[k, :, k, :].add(ss[:, n_s:, n_s:])
    return new.at[1 + n_u :, 1 + n_u :].set(inner.reshape(K * n_m, K * n_m))


_linearise = quickly(linearise, static_argnums=0)
_moved = quickly(move, static_argnums=0)


@partial(fairly_quickly, static_argnums=(0, 4))
def _walk(space: Space, moving: Moving, S: Array, W: Array, rounds: int) -> tuple[Array, Array]:
    def go(S: Array, _: None) -> tuple[Array, Array]:
        S = move(space, moving, S)
        return S, jnp.vdot(W, S)

    return lax.scan(go, S, None, length=rounds)


class Second:
    """The second-moment operator around a state, with a fusion center."""

    @double
    def __init__(self, setting: Setting, x: np.ndarray):
        self.setting = setting
        spread = spread_of(setting)
        linear = _linearise(setting.space, setting.numbers, spread, jnp.asarray(x), jnp.int32(0))
        locals_ = jax.device_put(tabulated(linear.locals))
        self.moving = Moving(setting.numbers, spread, linear._replace(locals=locals_))

    @double
    def __call__(self, S: np.ndarray) -> np.ndarray:
        S = (S + S.T) / 2  # an oracle's scatter is that of symmetric matrices: what rounding adds to them would grow
        return np.asarray(_moved(self.setting.space, self.moving, S))

    @double
    def walk(self, S: np.ndarray | Array, W: np.ndarray, rounds: int) -> tuple[Array, np.ndarray]:
        """S after so many rounds, and <W, S> after each of them."""
        moved, values = _walk(self.setting.space, self.moving, jnp.asarray(S), jnp.asarray(W), rounds)
        return moved, np.asarray(values)


def largest_weight(setting: Setting) -> float:
    """The mean square of the largest weight in a round."""
    found = setting.timing.lineups(setting.problem.weights)
    return float(found.chance @ found.weight.max(1) ** 2)


def spread_of(setting: Setting) -> Spread:
    """Of mean weights, that of the schedule's moments; of a lineup there is none."""
    m, cases = setting.moments, setting.numbers.cases
    if setting.lineups is None:
        largest = jnp.asarray(largest_weight(setting) if setting.lossy else 0.0)
        return Spread(*(jnp.asarray(a)[None] for a in (m.own, m.second(), m.scale, m.factor, largest)))
    n, K = cases.weight.shape
    raw = jnp.stack([cases.weight**2, cases.weight * cases.heard, cases.heard**2], axis=1)
    none = jnp.zeros((n, 0)), jnp.zeros((n, 0, 2, K))
    return Spread(jnp.zeros((n, 3, K)), raw, *none, cases.weight.max(1) ** 2)
