r"""How do second moments travel through a tick of a network whose nodes are all in step? Exact for affine fields.

Write x for the state around a point. A tick is x+ = M x + (what the noise of nodes makes of memories and messages).
Where links fail, node i hears on top of its mean

$$ \xi_i = \sum_j A_{ij} (U_{ij} - u) (y_j - y_i), $$

U_ij = 1 where the link is there, with probability u, and y_j what node j says. It is linear in what is said, has mean
zero, and links are independent: so the covariance of xi is u (1 - u) sum over links of A_ij^2 E[(y_i - y_j)(y_i -
y_j)'], with one sign at i and the other at j.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.agent import Agent
from fedpoint.core.compiling import quickly
from fedpoint.core.inbox import Inbox
from fedpoint.core.precision import double
from fedpoint.core.random import NO_LUCK
from fedpoint.core.record import PerAgent, split_per_agent, with_leaves
from fedpoint.core.types import Message, State, Tree
from fedpoint.core.wrapped import Wrapped
from fedpoint.graphs.wiring import inbox_of
from fedpoint.problems.base import per_agent
from fedpoint.theory.expected_round import Numbers, expected, start_at, template
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
from fedpoint.theory.space import Space, fill, flat, size_of


class Nudged(Wrapped):
    """A method whose agents send something more."""

    nudge: Tree  # per agent

    def local(self, heard: State, memory: State, agent: Agent) -> tuple[Message, State]:
        message, memory = self.inner.local(heard, memory, agent)
        return fill(message, flat(message) + self.nudge), memory


class Links(NamedTuple):
    """Of a network whose links fail: what is said over them, linearised, and what nodes make of what they hear."""

    ends: Array  # (A, 2) who hears and who says, of every arc
    spread: Array  # (A,) the variance of its weight
    told: Array  # (K, n_s, 1 + n_z): what a node says, of (1, what it hears, what it remembers)
    hears: Array  # (K, n_u, n_s): its hub, of the sum that it hears


NO_LINKS: Links = ()  # type: ignore[assignment] # they do not fail


class Nodes(NamedTuple):
    """A linearised round of all nodes: the mean one, how the state moves with what each sends and remembers, and its
    work."""

    M: Array  # (1 + n, 1 + n)
    reach: Array  # (n, K, message and memory)
    locals: LocalNoise
    links: Links = NO_LINKS


class OverNetwork:
    """The second-moment operator of a network's nodes: M S M' for the mean round, every node's own noise, which goes
    into its memory and with its message to its neighbours, and what links do that fail."""

    @double
    def __init__(self, setting: Setting, x: np.ndarray):
        self.setting = setting
        nodes = _nodes(setting.space, setting.numbers, jnp.asarray(x))
        self.nodes = nodes._replace(locals=jax.device_put(tabulated(nodes.locals)))

    @double
    def __call__(self, S: np.ndarray) -> np.ndarray:
        return np.asarray(_moved_nodes(self.setting.space, self.setting.numbers, self.nodes, (S + S.T) / 2)[0])


def move_nodes(space: Space, numbers: Numbers, nodes: Nodes, S: Array) -> tuple[Array, list[SourceNoise]]:
    """S -> E[J S J'] of all nodes, and the noise of every node's sources."""
    noise, sources = _node_noise(space, numbers, nodes.locals, S)
    spread = jnp.einsum("xko,kop->xkp", nodes.reach, noise).reshape(len(nodes.reach), -1)
    moved = (nodes.M @ S @ nodes.M.T).at[1:, 1:].add(spread @ nodes.reach.reshape(len(nodes.reach), -1).T)
    if numbers.inputs.timing.links_fail:
        moved = moved + _of_links(numbers, nodes.links, S, noise)
    return moved, sources


def _of_links(numbers: Numbers, links: Links, S: Array, noise: Array) -> Array:
    """(1 + n, 1 + n): what failing links add to the second moments; noise: of what nodes send and remember."""
    K, sent, _ = links.told.shape
    places = places_of_nodes(numbers, S.shape[0] - 1)
    rows = jnp.einsum("ksz,kzx->ksx", links.told, S[places])  # E[y (1, x)']

    def gap(hears: Array, says: Array) -> Array:
        """E[(y_i - y_j)(y_i - y_j)'] of an arc."""

        def both(i: Array, j: Array) -> Array:
            return rows[i][:, places[j]] @ links.told[j].T

        own = noise[hears, :sent, :sent] + noise[says, :sent, :sent]
        cross = both(hears, says)
        return both(hears, hears) + both(says, says) - cross - cross.T + own

    hears, says = links.ends.T
    each = links.spread[:, None, None] * jax.vmap(gap)(hears, says)
    xi = jnp.zeros((K, K, sent, sent)).at[hears, hears].add(each).at[hears, says].add(-each)
    n_u = links.hears.shape[1]
    heard = jnp.einsum("ius,ijst,jvt->iujv", links.hears, xi, links.hears).reshape(K * n_u, K * n_u)
    hub = places[:, 1 : 1 + n_u].ravel()
    return jnp.zeros_like(S).at[hub[:, None], hub[None]].add(heard)


def linearise_nodes(space: Space, numbers: Numbers, x: Array) -> Nodes:
    """Around the state x: how the state moves on average and with what nodes send and remember, and their work."""

    def whole(x: Array) -> Array:
        hub, m = expected(space, numbers, *start_at(numbers, x, 0), 0)
        return jnp.concatenate([flat(hub), m.ravel()])

    step, matrix = whole(x) - x, jax.jacfwd(whole)(x)
    M = jnp.eye(1 + x.size).at[1:, 1:].set(matrix).at[1:, 0].set(step)
    hub, m = start_at(numbers, x, 0)
    K, sent = numbers.p.shape[0], size_of(template(space, numbers)[0])

    def nudged(nudge: Array) -> Array:
        method = with_leaves(Nudged(numbers.algorithm, nudge=0.0), {"nudge": PerAgent(nudge)})
        hub, m = expected(space, numbers.using(method), *start_at(numbers, x, 0), 0)
        return jnp.concatenate([flat(hub), m.ravel()])

    by_message = jax.jacfwd(nudged)(jnp.zeros((K, sent)))  # (n, K, sent)
    by_memory = jnp.eye(x.size)[:, x.size - m.size :].reshape(x.size, K, -1)
    tuned, put = split_per_agent(numbers.algorithm)

    def node(k: Tree) -> LocalNoise:
        own, tuned, hub, m, share = k
        return linearised(space, numbers, put(tuned), ProbePlace(own, share, hub, flat(hub), m), 0)

    locals_ = per_agent(node, (numbers.inputs.own, tuned, hub, m, numbers.p), space.ragged)
    reach = jnp.concatenate([by_message, by_memory], axis=2)
    fail = numbers.inputs.timing.links_fail
    return Nodes(M, reach, locals_, _links(space, numbers, locals_, x) if fail else NO_LINKS)


def _links(space: Space, numbers: Numbers, locals_: LocalNoise, x: Array) -> Links:
    """Around the state x."""
    wires, algorithm, like = numbers.inputs.wires, numbers.algorithm, template(space, numbers)[0]
    hub, _ = start_at(numbers, x, 0)
    sent, n_z = size_of(like), places_of_nodes(numbers, x.size).shape[1] - 1
    up = numbers.inputs.timing.up(NO_LUCK, jnp.int32(0), wires.link)
    says = wires.says
    hears = jnp.searchsorted(wires.first, jnp.arange(says.shape[0], dtype=says.dtype), side="right") - 1

    def base(u: Array, hub: State) -> Array:
        """What a message is a change of; nothing where messages are models."""
        return flat(algorithm.base(algorithm.say(fill(hub, u), NO_LUCK.row())))

    def told(value: Array, slope: Array, hub: State) -> Array:
        u = flat(hub)
        value, slope = value[:sent], slope[:sent, :n_z]
        if not algorithm.at_agents:
            value = value + base(u, hub)
            slope = slope.at[:, : u.size].add(jax.jacfwd(base)(u, hub))
        return jnp.concatenate([value[:, None], slope], axis=1)

    def hearing(hub: State, mass: Array) -> Array:
        def heard(total: Array) -> Array:
            said = fill(like, total)
            if not algorithm.at_agents:
                return flat(algorithm.combine(hub, Inbox(said, said, jnp.ones(()), jnp.ones(()))))
            inbox = inbox_of(jax.tree.map(lambda a: a[None], said), mass[None])
            return flat(algorithm.combine(hub, jax.tree.map(lambda a: a[0], inbox)))

        return jax.jacfwd(heard)(jnp.zeros(sent))

    return Links(
        jnp.stack([hears, says], axis=1),
        wires.weight**2 * up * (1 - up),
        jax.vmap(told)(locals_.value, locals_.slope, hub),
        jax.vmap(hearing)(hub, wires.mass),
    )


_nodes = quickly(linearise_nodes, static_argnums=0)
_moved_nodes = quickly(move_nodes, static_argnums=0)


def _node_noise(space: Space, numbers: Numbers, locals_: LocalNoise, S: Array) -> tuple[Array, list[SourceNoise]]:
    """(K, out, out): the covariance of what each node sends and remembers; and of its sources."""
    if not (space.sampled or any(isinstance(source, Luck | Sent) for source in locals_.sources)):
        out = locals_.value.shape[1] - 1
        return jnp.zeros((len(locals_.value), out, out)), []

    def node(local: LocalNoise, k: Tree) -> tuple[Array, list[SourceNoise]]:
        own, at = k
        sources = source_noises(space, numbers, own, local, S[at][:, at])
        noise = through_probes(local, sources, at.size - 1)
        out = without_mass(space, numbers, noise.shape[0])
        return noise[out][:, out], sources

    each = (numbers.inputs.own, places_of_nodes(numbers, S.shape[0] - 1))
    return over_agents(node, locals_, each, space.ragged)


def places_of_nodes(numbers: Numbers, size: int) -> Array:
    """(K, 1 + n_z): where 1, what each node hears and what it remembers stand in (1, state)."""
    hub, m = start_at(numbers, jnp.arange(1.0, 1 + size), 0)
    K = numbers.p.shape[0]
    heard = jax.vmap(flat)(hub)
    return jnp.concatenate([jnp.zeros((K, 1)), heard, m.reshape(K, -1)], axis=1).astype(int)


def without_mass(space: Space, numbers: Numbers, size: int) -> np.ndarray:
    """Where message and memory stand in what an agent puts out, without the 1 between them."""
    return np.delete(np.arange(size), size_of(template(space, numbers)[0]))
