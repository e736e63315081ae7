r"""How far does randomness move the mean of a round? Its second-order shift, which affine rounds do not have.

With the state spread by S around m, and the field of step e noisy with covariance C_e, the mean of a round is

$$ E R(x, \xi) = F_0(m) + \tfrac12 F_0''[S] + \tfrac12 \sum_e \partial^2_{n_e} R [C_e] + \ldots $$

At an agent the second sum goes through its local steps together with the covariance W that noise has made so far,
shift+ = F shift + (1/2) y''[W] + (1/2) n''[C], W+ = F W F' + N C N', so that many steps cost no more than few. What
comes after a loop (a control variate made of where it ended, another loop) bends what arrives there. The hub, where it
multiplies what it hears, bends the covariance of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from fedpoint.channel import Channel
from fedpoint.core.algorithm import Algorithm
from fedpoint.core.record import split_per_agent
from fedpoint.core.types import Message, Number, State, Tree
from fedpoint.problems.base import per_agent
from fedpoint.problems.oracle import Mine
from fedpoint.theory.expected_round import Cases, Numbers, decided, hub_at, start_at, template
from fedpoint.theory.moments import (
    AgentsMoments,
    Linear,
    Merge,
    Moving,
    Spread,
    around_agent,
    released,
)
from fedpoint.theory.network_moments import Nodes, places_of_nodes, without_mass
from fedpoint.theory.noise import LocalNoise, Loop, Probe, ProbePlace, SourceNoise, round_over_channel
from fedpoint.theory.space import Space, fill, flat, over, row_of, size_of, steps_until

AT_ONCE = 64  # directions in which a function is differentiated twice at a time


def bend(function: Callable[[Array], Array], x: Array, M: Array) -> Array:
    """(1/2) function''(x)[M]: what a spread of covariance M around x adds to the mean of a function."""

    def along(direction: tuple[Array, Array]) -> Array:
        axis, column = direction
        return jax.jvp(lambda y: jax.jvp(function, (y,), (axis,))[1], (x,), (column,))[1]

    if x.size <= AT_ONCE:
        return 0.5 * jax.vmap(along)((jnp.eye(x.size), M)).sum(0)
    return 0.5 * lax.map(along, (jnp.eye(x.size), M), batch_size=AT_ONCE).sum(0)


class Counting(Probe):
    """An agent of whose sources only the number counts, also where it was forked."""

    def _join(self, forks: Sequence[Self]) -> None:
        super(Probe, self)._join(forks)
        self.sources += forks[0].sources


class Quiet(Counting):
    """An agent with exact fields and a probe behind every loop, whose derivatives are taken twice."""

    def loop(self, start: Tree, steps: Number, advance: Callable[[Tree, Array], Tree]) -> Tree:
        y0, unravel = ravel_pytree(start)
        step, quiet = self.stepper(unravel, advance), jnp.zeros(self.size)
        length = steps if isinstance(steps, int) else self.space.most

        def go(y: Array, e: Array) -> tuple[Array, None]:
            return step(y, quiet, e)[0], None

        last = steps_until(go, y0, jnp.arange(length), steps)[0]
        probe = self._probe(y0.size)
        self.sources.append(_ended(y0, steps))
        return unravel(last + probe)


def _ended(y: Array, steps: Number) -> Loop:
    """A loop of which only the place among the sources counts."""
    return Loop(y[:0], y, y, y, y, y, y, jnp.asarray(steps))


class Shifting(Counting):
    """An agent with exact fields that notes how far noise moves the mean at the end of every loop."""

    def __init__(self, space: Space, mine: Mine, share: Array, size: int, round: Number, fields: list[Array]) -> None:
        super().__init__(space, mine, share, size, round, None)
        self.fields = fields
        self.shifts: list[Array] = []

    def _noise(self) -> Array:
        """(steps, d, d): of the fields that this chain asks for in the next loop."""
        own = slice(self._chain * self.size, (self._chain + 1) * self.size)
        return self.fields[self._place][:, own, own]

    def _fork(self, chain: int, chains: int) -> Self:
        fork = super()._fork(chain, chains)
        fork.shifts = []
        return fork

    def _join(self, forks: Sequence[Self]) -> None:
        super()._join(forks)
        self.shifts += [jnp.concatenate(parts) for parts in zip(*(fork.shifts for fork in forks), strict=True)]

    def field(self, w: Tree, e: Number = 0) -> Tree:
        if self._inside is None:
            self.shifts.append(jnp.zeros(self.size))
        return super().field(w, e)

    def _luck(self, like: Tree, mean: float, variance: float) -> Tree:
        self.shifts.append(jnp.zeros(size_of(like)))
        return super()._luck(like, mean, variance)

    def sent(self, channel: Channel, message: Message) -> Message:
        self.shifts.append(jnp.zeros(size_of(message)))
        return super().sent(channel, message)

    def loop(self, start: Tree, steps: Number, advance: Callable[[Tree, Array], Tree]) -> Tree:
        y0, unravel = ravel_pytree(start)
        step, quiet, fields = self.stepper(unravel, advance), jnp.zeros(self.size), self._noise()

        def go(carry: tuple[Array, Array, Array], at: tuple[Array, Array]) -> tuple[tuple[Array, Array, Array], None]:
            (y, shift, W), (e, C) = carry, at
            F, N = jax.jacfwd(lambda y, n: step(y, n, e)[0], argnums=(0, 1))(y, quiet)
            bent = bend(lambda y: step(y, quiet, e)[0], y, W) + bend(lambda n: step(y, n, e)[0], quiet, C)
            return (step(y, quiet, e)[0], F @ shift + bent, F @ W @ F.T + N @ C @ N.T), None

        begin = y0, jnp.zeros_like(y0), jnp.zeros((y0.size, y0.size))
        (last, shift, _), _ = steps_until(go, begin, (jnp.arange(fields.shape[0]), fields), steps)
        self.shifts.append(shift)
        self.sources.append(_ended(y0, steps))
        return unravel(last)


class Spreading(NamedTuple):
    """An agent's linearised round, the second moments Z of (1, u, m_k) around its place, and the noise they make."""

    local: LocalNoise
    Z: Array
    noises: list[SourceNoise]


def agent_shift(
    space: Space, numbers: Numbers, algorithm: Algorithm, place: ProbePlace, spreading: Spreading, round: Number
) -> Array:
    """How far the mean of one agent's message (with a 1 behind it) and memory is from where exact fields lead."""
    mine, size = Mine(place.own, numbers.inputs.common), size_of(numbers.model)
    local, Z, noises = spreading
    sizes = [noise.probe.shape[0] for noise in noises]
    cuts = np.cumsum([place.u.size, place.m.size, *sizes])[:-1]

    def out(ext: Array) -> Array:
        u, m, *probes = jnp.split(ext, cuts)
        agent = Quiet(space, mine, place.share, size, round, probes or None)  # exact fields: nothing spreads inside
        sent, new = round_over_channel(space, numbers, algorithm, agent, fill(place.hub, u), m)
        settled = row_of(space, algorithm, fill(place.hub, place.u), new)
        return jnp.concatenate([flat(sent), jnp.ones(1), settled])

    spread = jax.scipy.linalg.block_diag(Z[1:, 1:], *(noise.probe for noise in noises))
    shift = bend(out, jnp.concatenate([place.u, place.m, jnp.zeros(sum(sizes))]), spread)
    if not sizes or not space.sampled:
        return shift
    agent = Shifting(space, mine, place.share, size, round, [noise.fields for noise in noises])
    round_over_channel(space, numbers, algorithm, agent, fill(place.hub, place.u), place.m)
    return shift + local.slope[:, place.u.size + place.m.size :] @ jnp.concatenate(agent.shifts)


class Bending(NamedTuple):
    """Which parts of a round are not affine: structure. None of them: there is no shift."""

    agents: bool
    hub: bool


jax.tree_util.register_pytree_node(Bending, lambda b: ((), (b.agents, b.hub)), lambda aux, _: Bending(*aux))


def round_shift(
    space: Space, moving: Moving, agents: AgentsMoments, x: Array, S: Array, round: Number, bends: Bending
) -> Array:
    """(n,): how far the mean of a round from x, spread by the second moments S of (1, deviation), is from the expected
    round; with a fusion center. agents: as S makes them."""
    numbers, spread = moving.numbers, moving.spread
    hub_like = hub_at(numbers, round)
    n_u, K = size_of(hub_like), numbers.p.shape[0]
    u, m = x[:n_u], x[n_u:].reshape(K, -1)
    n_m = m.shape[1]

    def outcome(value: Array, linear: Linear, moments: AgentsMoments) -> Array:
        one = numbers.using(numbers.algorithm.given(value)) if numbers.drawn.hub else numbers
        tuned, put = split_per_agent(one.algorithm)

        def agent(k: Tree) -> Array:
            index, own, tuned, m, share, locals_, sources = k
            Z, place = around_agent(S, index, n_u, n_m), ProbePlace(own, share, hub_like, u, m)

            def late(count: Array, local: LocalNoise, sources: list[SourceNoise]) -> Array:
                chosen = decided(put(tuned), count) if numbers.drawn.agent else put(tuned)
                return agent_shift(space, one, chosen, place, Spreading(local, Z, sources), round)

            return numbers.late[0] @ over(late, numbers.late[1], locals_, sources)

        n_out = linear.mean.shape[1]
        if bends.agents:
            each = (jnp.arange(K), one.inputs.own, tuned, m, one.p, linear.locals, moments.sources)
            shifts = per_agent(agent, each, space.ragged)
        else:
            shifts = jnp.zeros((K, n_out))

        def merge(case: tuple[Cases, Spread, Merge]) -> Array:
            whom, spread, merge = case
            sent = shifts[:, : n_out - n_m]
            hub = merge.B @ (whom.weight @ sent) + merge.C @ ((one.p * whom.heard) @ sent)
            if bends.hub:
                hub = hub + _hub_shift(space, one, hub_like, (whom, spread), linear, (u, S), moments)
            own = whom.heard[:, None] * shifts[:, n_out - n_m :]
            return jnp.concatenate([hub, own.ravel()])

        total = jnp.tensordot(numbers.cases.chance, over(merge, (numbers.cases, spread, linear.merges)), 1)
        if n_m and space.settled:
            total = total.at[n_u:].add(jnp.tile(linear.shear @ total[:n_u], K))
        return total

    chances, values = numbers.chances
    each = over(outcome, values, moving.linear, agents, in_turn=True)
    return numbers.merge * (chances @ each)


def _hub_shift(
    space: Space,
    numbers: Numbers,
    hub_like: State,
    case: tuple[Cases, Spread],
    linear: Linear,
    state: tuple[Array, Array],
    agents: AgentsMoments,
) -> Array:
    """(n_u,): what a hub that does not merge linearly makes of the spread of what it hears, in one case of whom."""
    (whom, spread), (u, S) = case, state
    message, _ = template(space, numbers)
    n_u, p, n_s = u.size, numbers.p, size_of(message) + 1
    mean = linear.mean[:, :n_s]  # (K, n_s, 1 + n_z)

    def combine(v: Array) -> Array:
        u, mean, total = jnp.split(v, [n_u, n_u + n_s])
        return flat(numbers.algorithm.combine(fill(hub_like, u), released(numbers, message, mean, total)))

    def heard(alpha: Array, beta: Array) -> Array:
        """(2 n_s, 1 + n): mean and total of what is heard with these weights, as a map of the state."""
        both = jnp.concatenate([alpha[:, None, None] * mean, (beta * p)[:, None, None] * mean], axis=1)
        right = both[..., 1 + n_u :].transpose(1, 0, 2).reshape(2 * n_s, -1)
        return jnp.concatenate([both[..., : 1 + n_u].sum(0), right], axis=1)

    there = heard(whom.weight, whom.heard)
    whole = jnp.concatenate([jnp.eye(n_u, S.shape[0], 1), there])
    cov = whole @ S.at[0, 0].set(0.0) @ whole.T
    vv, vs, ss = (
        (spread.own[i][:, None, None] * agents.mean + spread.raw[i][:, None, None] * agents.noise)[:, :n_s, :n_s]
        for i in range(3)
    )
    by_share = p[:, None, None]
    inside = jnp.block([[vv.sum(0), (by_share * vs).sum(0)], [(by_share * vs).sum(0).T, (by_share**2 * ss).sum(0)]])
    rows = jax.vmap(heard)(spread.factor[:, 0], spread.factor[:, 1])
    inside = inside + jnp.einsum("r,rix,xy,rjy->ij", spread.scale, rows, S, rows)
    return bend(combine, jnp.concatenate([u, there[:, 0]]), cov.at[n_u:, n_u:].add(inside))


def nodes_shift(space: Space, numbers: Numbers, nodes: Nodes, sources: list[SourceNoise], x: Array, S: Array) -> Array:
    """(n,): the same on a network whose nodes are all in step, and whose hubs merge linearly."""
    hub, m = start_at(numbers, x, 0)
    tuned, put = split_per_agent(numbers.algorithm)

    def node(k: Tree) -> Array:
        own, tuned, hub, m, share, local, sources, at = k
        place = ProbePlace(own, share, hub, flat(hub), m)
        shift = agent_shift(space, numbers, put(tuned), place, Spreading(local, S[at][:, at], sources), 0)
        return shift[without_mass(space, numbers, shift.size)]

    places = places_of_nodes(numbers, x.size)
    each = (numbers.inputs.own, tuned, hub, m, numbers.p, nodes.locals, sources, places)
    return jnp.einsum("xko,ko->x", nodes.reach, per_agent(node, each, space.ragged))
