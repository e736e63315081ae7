"""How the hubs of a network hear: neighbours' messages, gathered node by node over the graph's arcs.

Nodes are put into groups by their number of neighbours, and padded to the largest of their group only: no table of
nodes by nodes, and at most twice the arcs, whatever the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.inbox import Inbox
from fedpoint.core.types import Function, Message, Model, Number, Tree
from fedpoint.core.vector import zeros
from fedpoint.timing.mail import Mail, look

if TYPE_CHECKING:  # it loads scipy, which runs with a fusion center can do without
    from fedpoint.graphs.network import Network

PADDING = 1.5  # of all nodes to the largest number of neighbours: up to this they stay one group
UNROLL = 16  # neighbours that are added up in one expression, each read once, in place


class Group(NamedTuple):
    """Nodes with similarly many neighbours (w at most), padded with weights of zero."""

    says: Array  # (n, w)
    weight: Array  # (n, w)
    arc: Array  # (n, w)


class Wires(NamedTuple):
    """The arcs of a network: traced."""

    says: Array  # (A,) ordered by who hears
    weight: Array  # (A,)
    first: Array  # (K + 1,)
    mass: Array  # (K,) sum_j A_ij
    groups: tuple[Group, ...]
    order: Array  # (K,) the place of a node in the groups, one behind the other
    link: Tree = ()  # (A,) the number of each arc's edge, where links may fail
    # Of one process of several: (A,) where the speaker's mail lies, and the number of the first arc.
    place: Tree = ()
    offset: Tree = ()


NOT_WIRED: Wires = ()  # type: ignore[assignment] # with a fusion center: no arrays


@dataclass(frozen=True)
class Wiring:
    """What is compiled in of a network and its schedule."""

    arcs: int
    most: int  # neighbours of a node
    depth: int  # messages kept of each node


def wire(network: Network, depth: int, links: bool = False) -> tuple[Wiring, Wires]:
    """links: they may fail."""
    arcs = network.arcs
    counts = np.diff(arcs.first)
    most = max(int(counts.max(initial=0)), 1)
    if network.nodes * most <= PADDING * max(len(arcs.says), network.nodes):
        members = [np.arange(network.nodes)]
    else:
        size = np.ceil(np.log2(np.maximum(counts, 1))).astype(int)
        members = [np.flatnonzero(size == s) for s in np.unique(size)]
    order = np.argsort(np.concatenate(members), kind="stable").astype(np.int32)
    if not len(arcs.says):  # nobody says anything: one arc of no weight, so that shapes hold
        arcs = arcs._replace(says=np.zeros(1, np.int32), weight=np.zeros(1))
    groups = []
    for nodes in members:
        arc = arcs.first[nodes][:, None] + np.arange(max(int(counts[nodes].max(initial=0)), 1))
        there = arc < arcs.first[nodes + 1][:, None]
        arc = np.where(there, arc, 0).astype(np.int32)
        groups.append(Group(arcs.says[arc], np.where(there, arcs.weight[arc], 0.0), arc))  # type: ignore[arg-type]
    link: Tree = () if not links else network.links if len(network.links) else np.zeros(1, np.int32)
    wires = Wires(arcs.says, arcs.weight, arcs.first, network.degrees, tuple(groups), order, link)  # type: ignore[arg-type]
    return Wiring(int(counts.sum()), most, depth), wires


class Halo(NamedTuple):
    """A process's share of a network, and what it knows of others' nodes."""

    wires: Wires
    boundary: np.ndarray  # (H,) places of its nodes that others hear
    beyond: np.ndarray  # (N H,) numbers of the nodes that are heard across processes, in the order they are told in


def share_out(network: Network, bounds: np.ndarray, process: int) -> Halo:
    """The arcs that the nodes bounds[process] to bounds[process + 1] hear over; arrays of one shape on all processes.

    A process keeps the mail of its own nodes, and behind it that of all boundary nodes.
    """
    arcs, processes = network.arcs, len(bounds) - 1
    room = int(np.diff(bounds).max())
    owner = np.searchsorted(bounds, np.arange(network.nodes), side="right") - 1
    crossing = owner[arcs.hears] != owner[arcs.says]
    border = np.unique(arcs.says[crossing]).astype(np.int64)
    of = [border[owner[border] == i] for i in range(processes)]
    width = max(1, *(len(nodes) for nodes in of))
    padded = [np.resize(nodes, width) if len(nodes) else np.full(width, bounds[i]) for i, nodes in enumerate(of)]
    lies = np.full(network.nodes, -1, np.int32)  # in the mail, of nodes of others
    for i, nodes in enumerate(of):
        lies[nodes] = room + i * width + np.arange(len(nodes))
    begin, end = bounds[process : process + 2]
    lies[begin:end] = np.arange(end - begin)
    heard = slice(arcs.first[begin], arcs.first[end])
    most = max(1, int(np.diff(arcs.first[bounds]).max()))

    def pad(a: np.ndarray, size: int, mode: Literal["constant", "edge"] = "constant") -> np.ndarray:
        return np.pad(a, (0, size - len(a)), mode=mode)

    first = pad((arcs.first[begin : end + 1] - arcs.first[begin]).astype(np.int32), room + 1, "edge")
    says = arcs.says[heard]
    numbers: tuple[Tree, ...] = (
        pad(says, most),
        pad(arcs.weight[heard], most),
        first,
        pad(network.degrees[begin:end], room),
        (),
        np.zeros(0, np.int32),
        (),
        pad(lies[says], most),
        np.int32(arcs.first[begin]),
    )
    return Halo(Wires(*numbers), (padded[process] - begin).astype(np.int32), np.concatenate(padded))


def hear(wiring: Wiring, wires: Wires, mail: Mail, nodes: Array | None, age: Function, version: Number) -> Message:
    """sum_j A_ij m_j for each of `nodes` (None: all), m_j neighbour j's message, `age(arc, says)` ticks older than
    `version`."""

    def some(group: Group, old: Array | None = None) -> Message:
        when = version
        if wiring.depth > 1:
            when = version - (age(group.arc, group.says) if old is None else old[group.arc])
        return _weigh(mail, group, when)

    def everyone() -> Message:
        # Ages of all arcs at once: one piece of program for all groups, and none for what is only padding.
        old = age(jnp.arange(wires.says.shape[0], dtype=jnp.int32), wires.says) if wiring.depth > 1 else None
        parts = [some(group, old) for group in wires.groups]
        return parts[0] if len(parts) == 1 else jax.tree.map(lambda *a: jnp.concatenate(a)[wires.order], *parts)

    if nodes is None:
        return everyone()
    if not isinstance(wires.place, tuple):
        return _hear_some(wiring, wires, mail, nodes, age, version)
    padded = sum(group.says.size for group in wires.groups)
    if wiring.depth == 1 and nodes.shape[0] * wiring.most > padded:  # ages may go by place, not by arc
        return jax.tree.map(lambda a: a[nodes], everyone())
    arc = wires.first[nodes][:, None] + jnp.arange(wiring.most, dtype=jnp.int32)
    there = arc < wires.first[nodes + 1][:, None]
    arc = jnp.where(there, arc, 0)
    return some(Group(wires.says[arc], jnp.where(there, wires.weight[arc], 0.0), arc))


def hear_over(wiring: Wiring, wires: Wires, mail: Mail, up: Array, version: Number) -> Message:
    """The same for all nodes over links of which a part `up` (A,) is there, with what nodes keep as it did not go out:
    sum_j A_ij up_ij m_j + sum_j A_ji (1 - up_ji) m_i."""
    groups = tuple(group._replace(weight=group.weight * up[group.arc]) for group in wires.groups)
    heard = hear(wiring, wires._replace(groups=groups), mail, None, lambda arc, says: jnp.zeros_like(arc), version)
    kept = jnp.zeros_like(wires.mass).at[wires.says].add(wires.weight * (1 - up))

    def whole(total: Array, own: Array) -> Array:
        return total + kept.astype(total.dtype).reshape(-1, *(1,) * (own.ndim - 1)) * own

    return jax.tree.map(whole, heard, newest(mail, version))


def _hear_some(wiring: Wiring, wires: Wires, mail: Mail, nodes: Array, age: Function, version: Number) -> Message:
    """The same where neighbours may be other processes'. Arrays have the same shapes whichever nodes these are, and
    columns go as far as the neighbours of the node that has the most."""
    begin, end = wires.first[nodes], wires.first[nodes + 1]
    width = min(wiring.most, UNROLL)

    def columns(b: Array) -> Message:
        arc = begin[:, None] + b * width + jnp.arange(width, dtype=jnp.int32)
        there = arc < end[:, None]
        arc = jnp.where(there, arc, 0)
        when = version if wiring.depth == 1 else version - age(wires.offset + arc, wires.says[arc])
        return _weigh(mail, Group(wires.place[arc], jnp.where(there, wires.weight[arc], 0.0), arc), when)

    empty = zeros(jax.eval_shape(columns, jnp.int32(0)))
    blocks = (jnp.max(end - begin) + width - 1) // width
    return lax.fori_loop(0, blocks, lambda b, total: jax.tree.map(jnp.add, total, columns(b)), empty)


def _weigh(mail: Mail, group: Group, version: Number) -> Message:
    """sum over a group's columns of weight times message; neighbour by neighbour, in one pass."""
    width = group.says.shape[1]
    when = None if jnp.ndim(version) == 0 else version

    def column(says: Array, weight: Array, when: Array | None) -> Message:
        def weighed(a: Array) -> Array:
            return weight.astype(a.dtype).reshape(-1, *(1,) * (a.ndim - 1)) * a

        return jax.tree.map(weighed, look(mail, says, version if when is None else when))

    def added(columns: list[Message]) -> Message:
        total = columns[0]
        for one in columns[1:]:
            total = jax.tree.map(jnp.add, total, one)
        return total

    def at(tree: Tree, c: int) -> Tree:
        return jax.tree.map(lambda a: a[:, c], tree)

    if width <= 2 * UNROLL:
        return added([column(*at((group.says, group.weight, when), c)) for c in range(width)])
    blocks = -(-width // UNROLL)
    pad = ((0, 0), (0, blocks * UNROLL - width))
    # A block's columns lead, so that a loop can step through them.
    table = jax.tree.map(
        lambda a: jnp.moveaxis(jnp.pad(a, pad).reshape(a.shape[0], blocks, UNROLL), 0, 2),
        (group.says, group.weight, when),
    )

    def add(b: Array, total: Message) -> Message:
        block = jax.tree.map(lambda a: a[b], table)
        columns = [column(*jax.tree.map(lambda a, c=c: a[c], block)) for c in range(UNROLL)]
        return jax.tree.map(jnp.add, total, added(columns))

    empty = zeros(jax.eval_shape(lambda: column(*at((group.says, group.weight, when), 0))))
    return lax.fori_loop(0, blocks, add, empty)


class Neighbours(NamedTuple):
    """What each of some nodes hears, message by message, padded with weights of zero."""

    messages: Message  # (n, w, ...)
    weight: Array  # (n, w)


def hear_each(wiring: Wiring, wires: Wires, mail: Mail, nodes: Array, age: Function, version: Number) -> Neighbours:
    """The messages behind `hear`: who takes them one by one needs room for as many as the busiest node hears."""
    arc = wires.first[nodes][:, None] + jnp.arange(wiring.most, dtype=jnp.int32)
    there = arc < wires.first[nodes + 1][:, None]
    arc = jnp.where(there, arc, 0)
    says = wires.says[arc]
    when = version if wiring.depth == 1 else version - age(arc, says)
    return Neighbours(look(mail, says, when), jnp.where(there, wires.weight[arc], 0.0))


def newest(mail: Mail, version: Number) -> Message:
    """The last message of every node."""
    senders = jax.tree.leaves(mail.value)[0].shape[0]
    return look(mail, jnp.arange(senders), version)


def inbox_of(total: Message, mass: Array) -> Inbox:
    """What hubs hear of values: the weighted mean over neighbours, the sum, and the sum of weights."""
    safe = jnp.where(mass > 0, mass, 1.0)

    def mean(a: Array) -> Array:
        return a / safe.astype(a.dtype).reshape(-1, *(1,) * (a.ndim - 1))

    dtype = jnp.result_type(*jax.tree.leaves(total))
    return Inbox(jax.tree.map(mean, total), total, mass.astype(dtype), jnp.ones_like(mass, dtype))


def rebased(total: Message, own: Message, mass: Array, base: Model) -> Inbox:
    """What hubs hear of changes: neighbours' results minus the hub's own base, and the node's own result with what is
    left of the weight: sum_j A_ij y_j + (1 - sum_j A_ij) y_i - x_i."""
    dtype = jnp.result_type(*jax.tree.leaves(total))

    def mix(t: Array, y: Array, x: Array) -> Array:
        left = (1.0 - mass).astype(t.dtype).reshape(-1, *(1,) * (t.ndim - 1))
        return t + left * y - x

    mean = jax.tree.map(mix, total, own, base)
    one = jnp.ones(mass.shape, dtype)
    return Inbox(mean, mean, one, one)
