"""How the hubs of a network hear: neighbours' messages, gathered node by node over the graph's arcs.

Nodes are put into groups by their number of neighbours, and padded to the largest of their group only: no table of
nodes by nodes, and at most twice the arcs, whatever the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.inbox import Inbox
from fedpoint.core.mail import Mail, look

if TYPE_CHECKING:  # it loads scipy, which runs with a fusion center can do without
    from fedpoint.core.network import Network

PADDING = 1.5  # of all nodes to the largest number of neighbours: up to this they stay one group


class Wires(NamedTuple):
    """The arcs of a network: traced."""

    says: Array  # (A,) ordered by who hears
    weight: Array  # (A,)
    first: Array  # (K + 1,)
    mass: Array  # (K,) sum_j A_ij
    groups: tuple[Array, ...]  # nodes with similarly many neighbours
    order: Array  # (K,) the place of a node in the groups, one behind the other


@dataclass(frozen=True)
class Wiring:
    """What is compiled in of a network and its schedule."""

    arcs: int
    widths: tuple[int, ...]  # most neighbours in each group
    depth: int  # messages kept of each node


def wire(network: Network, depth: int) -> tuple[Wiring, Wires]:
    arcs = network.arcs
    counts = np.diff(arcs.first)
    most = max(int(counts.max(initial=0)), 1)
    if network.nodes * most <= PADDING * max(len(arcs.says), network.nodes):
        groups = [np.arange(network.nodes, dtype=np.int32)]
    else:
        size = np.ceil(np.log2(np.maximum(counts, 1))).astype(int)
        groups = [np.flatnonzero(size == s).astype(np.int32) for s in np.unique(size)]
    order = np.argsort(np.concatenate(groups), kind="stable").astype(np.int32)
    widths = tuple(max(int(counts[g].max(initial=0)), 1) for g in groups)
    wires = Wires(arcs.says, arcs.weight, arcs.first, network.degrees, tuple(groups), order)  # type: ignore[arg-type]
    return Wiring(len(arcs.says), widths, depth), wires


def hear(wiring: Wiring, wires: Wires, mail: Mail, nodes: Array | None, age: Any, version: Any) -> Any:
    """sum_j A_ij m_j for each of `nodes` (None: all), m_j neighbour j's message, `age(arc, says)` ticks older than
    `version`."""

    everything = None  # ages of all arcs, where all are asked for
    if nodes is None and wiring.depth > 1 and wiring.arcs:
        everything = age(jnp.arange(wiring.arcs, dtype=jnp.int32), wires.says)

    def some(nodes, width):
        if not wiring.arcs:
            return jax.tree.map(lambda a: jnp.zeros((nodes.shape[0], *a.shape[1:]), a.dtype), newest(mail, version))
        first, past = wires.first[nodes], wires.first[nodes + 1]
        arc = first[:, None] + jnp.arange(width, dtype=jnp.int32)
        there = arc < past[:, None]
        arc = jnp.where(there, arc, 0)
        says = wires.says[arc]
        weight = jnp.where(there, wires.weight[arc], 0.0)
        old = None
        if wiring.depth > 1:
            old = age(arc, says) if everything is None else everything[arc]
        values = look(mail, says, version if old is None else version - old)

        def total(a):
            return jnp.sum(weight.astype(a.dtype).reshape(*weight.shape, *(1,) * (a.ndim - 2)) * a, axis=1)

        return jax.tree.map(total, values)

    def everyone():
        parts = [some(nodes, width) for nodes, width in zip(wires.groups, wiring.widths, strict=True)]
        if len(parts) == 1:
            return parts[0]
        return jax.tree.map(lambda *a: jnp.concatenate(a)[wires.order], *parts)

    if nodes is None:
        return everyone()
    padded = sum(width * group.shape[0] for width, group in zip(wiring.widths, wires.groups, strict=True))
    if wiring.depth == 1 and nodes.shape[0] * max(wiring.widths) > padded:  # ages may go by place, not by arc
        return jax.tree.map(lambda a: a[nodes], everyone())
    return some(nodes, max(wiring.widths))


def newest(mail: Mail, version: Any) -> Any:
    """The last message of every node."""
    senders = jax.tree.leaves(mail.value)[0].shape[0]
    return look(mail, jnp.arange(senders), version)


def inbox_of(total: Any, mass: Array) -> Inbox:
    """What hubs hear of values: the weighted mean over neighbours, the sum, and the sum of weights."""
    safe = jnp.where(mass > 0, mass, 1.0)

    def mean(a):
        return a / safe.astype(a.dtype).reshape(-1, *(1,) * (a.ndim - 1))

    dtype = jnp.result_type(*jax.tree.leaves(total))
    return Inbox(jax.tree.map(mean, total), total, mass.astype(dtype), jnp.ones_like(mass, dtype))


def rebased(total: Any, own: Any, mass: Array, base: Any) -> Inbox:
    """What hubs hear of changes: neighbours' results minus the hub's own base, and the node's own result with what is
    left of the weight: sum_j A_ij y_j + (1 - sum_j A_ij) y_i - x_i."""
    dtype = jnp.result_type(*jax.tree.leaves(total))

    def mix(t, y, x):
        left = (1.0 - mass).astype(t.dtype).reshape(-1, *(1,) * (t.ndim - 1))
        return t + left * y - x

    mean = jax.tree.map(mix, total, own, base)
    one = jnp.ones(mass.shape, dtype)
    return Inbox(mean, mean, one, one)
