"""What does the hub of a study hold, and what does an answer change? With a fusion center, and on a network.

The functions are those of the simulation (`gather`, `combine`, `say`, the network's wires); only the agents' work is
elsewhere. Answers that are missing count as in `fp.Answering`: those that came stand for all that were asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.core.inbox import gather
from fedpoint.core.random import Key
from fedpoint.core.vector import unwrap, where, wrap
from fedpoint.engine.session import bind_algorithm, cast
from fedpoint.engine.state import HUB, SCHEDULE, base_of, start_network
from fedpoint.federation.shapes import arrays_of, named, tree_of
from fedpoint.federation.study import Outline, Study
from fedpoint.graphs.wiring import hear, inbox_of, newest, rebased, wire
from fedpoint.timing.mail import Mail

Arrays = Mapping[str, np.ndarray]


@jax.jit
def _tick(scheme, p, low, high, round):
    return scheme.tick(Key(low, high).fold(round), p, round)


@jax.jit
def _say(algorithm, hub, low, high, round):
    return jax.tree.map(jnp.asarray, algorithm.say(hub, Key(low, high).fold(round).row()))


@jax.jit
def _combine(algorithm, hub, messages, weights, shares):
    return algorithm.combine(hub, gather(messages, weights, shares))


@jax.jit
def _rebase(algorithm, message, then, now):
    return jax.tree.map(lambda m, x, w: m + x - w, message, algorithm.base(then), algorithm.base(now))


class Asked(NamedTuple):
    """One round of a star: agents by place (a repeated one counts at its first), with weights and shares."""

    agents: np.ndarray
    weight: np.ndarray
    share: np.ndarray
    heard: np.ndarray


class Star:
    """A fusion center."""

    def __init__(self, study: Study, outline: Outline, start: Any):
        self.study, self.p = study, outline.weights
        dtype = np.result_type(*jax.tree.leaves(start))
        with jax.enable_x64(True):
            self.algorithm: Any = jax.device_put(cast(bind_algorithm(study.method(), outline), dtype))
            self.hub = jax.tree.map(jnp.asarray, self.algorithm.init(wrap(jax.tree.map(jnp.asarray, start)))[0])
            self.keys = {purpose: tuple(Key.of(study.seed, 0, purpose)) for purpose in (SCHEDULE, HUB)}
            self.scheme = study.scheme().bind(outline, self.algorithm, study.exact)

    def ask(self, round: int) -> Asked:
        with jax.enable_x64(True):
            tick = _tick(self.scheme, self.p, *self.keys[SCHEDULE], jnp.int32(round))
        agents = np.arange(len(self.p)) if tick.agents is None else np.asarray(tick.agents)
        return Asked(agents, *(np.asarray(a) for a in (tick.weight, tick.share, tick.heard)))

    def say(self, round: int) -> Any:
        with jax.enable_x64(True):
            return _say(self.algorithm, self.hub, *self.keys[HUB], jnp.int32(round))

    def merge(self, asked: Asked, like: Any, answers: Mapping[int, Arrays]) -> None:
        """The answers of a round, by agent."""
        came = asked.heard & np.isin(asked.agents, list(answers))
        scale = asked.heard.sum() / max(int(came.sum()), 1)
        weights, shares = (np.where(came, a, 0.0) for a in (asked.weight * scale, asked.share))
        rows = [answers[int(k)] if c else None for k, c in zip(asked.agents, came, strict=True)]
        self._update(like, rows, weights, shares)

    def merge_late(self, like: Any, answers: list[tuple[int, Arrays, Any]], weights: np.ndarray, now: Any) -> None:
        """Answers to older versions: (agent, message, what it had heard)."""
        rows: list[Arrays | None] = [message for _, message, _ in answers]
        late = self.study.late()
        if late is not None and late.models:
            with jax.enable_x64(True):
                moved = [_rebase(self.algorithm, tree_of(like, m), then, now) for _, m, then in answers]
            rows = [arrays_of(message) for message in moved]
        self._update(like, rows, weights, self.p[[agent for agent, _, _ in answers]])

    def _update(self, like: Any, rows: list[Arrays | None], weights: np.ndarray, shares: np.ndarray) -> None:
        blank = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in named(like).items()}
        stacked = {name: np.stack([(row or blank)[name] for row in rows]) for name in blank}
        with jax.enable_x64(True):
            self.hub = _combine(self.algorithm, self.hub, tree_of(like, stacked), weights, shares)

    def model(self) -> Any:
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, unwrap(self.algorithm.read(self.hub, ())))

    def arrays(self) -> dict[str, np.ndarray]:
        return arrays_of(self.hub)

    def restore(self, arrays: Arrays) -> None:
        with jax.enable_x64(True):
            self.hub = jax.tree.map(jnp.asarray, tree_of(self.hub, arrays))


@partial(jax.jit, static_argnames=("wiring",))
def _start_graph(algorithm, models, wiring, wires):
    return start_network(algorithm, models, wiring, wires, False)


@partial(jax.jit, static_argnames=("wiring",))
def _hear(algorithm, wiring, wires, hub, mail):
    """The hubs of all nodes, once they have heard what is in the mail."""
    total = hear(wiring, wires, mail, None, None, 0)
    if algorithm.hello is None:
        inbox = rebased(total, newest(mail, 0), wires.mass, base_of(algorithm, hub))
    else:
        inbox = inbox_of(total, wires.mass)
    return jax.vmap(algorithm.combine)(hub, inbox)


@jax.jit
def _say_all(algorithm, hub, low, high, round):
    rows = Key(low, high).fold(round)
    nodes = jnp.arange(jax.tree.leaves(hub)[0].shape[0], dtype=jnp.int32)
    return jax.vmap(lambda h, node: jax.tree.map(jnp.asarray, algorithm.say(h, rows.row(node))))(hub, nodes)


@jax.jit
def _post(algorithm, state, heard, said, messages, came):
    """The nodes that answered have worked: their hubs are what they had heard, and they said something new."""
    hub, mail = state
    if algorithm.hello is None:
        messages = jax.tree.map(lambda m, x: m + x, messages, jax.vmap(algorithm.base)(said))
    return jax.vmap(where)(came, heard, hub), Mail((), jax.vmap(where)(came, messages, mail.value))


@jax.jit
def _read_all(algorithm, hub, memory):
    return jax.vmap(algorithm.read)(hub, memory)


class Graph:
    """A hub for every node, all kept here: sites hear what their neighbours said, and nobody else."""

    def __init__(self, study: Study, outline: Outline, start: Any):
        self.study, self.p = study, outline.weights
        dtype = np.result_type(*jax.tree.leaves(start))
        with jax.enable_x64(True):
            self.algorithm: Any = jax.device_put(cast(bind_algorithm(study.method(), outline), dtype))
            self.wiring, self.wires = wire(study.graph(), 1)
            models = jax.tree.map(lambda a: jnp.broadcast_to(a, (outline.agents, *np.shape(a))), wrap(start))
            state = _start_graph(self.algorithm, models, self.wiring, self.wires)
            self.hub, self.mail = state.hub, state.mail
            self.key = tuple(Key.of(study.seed, 0, HUB))
        self.heard = self.hub  # what each node's hub will be when it works next

    def say(self, round: int) -> Any:
        """What every node hears, (nodes, ...)."""
        with jax.enable_x64(True):
            return _say_all(self.algorithm, self.heard, *self.key, jnp.int32(round))

    def merge(self, like: Any, answers: Mapping[int, Arrays], heard: Any, said: Any) -> None:
        """Messages by node, from what each had heard."""
        nodes = len(self.p)
        stacked = {}
        for name, leaf in named(like).items():
            blank = np.zeros(leaf.shape, leaf.dtype)
            stacked[name] = np.stack([answers[k][name] if k in answers else blank for k in range(nodes)])
        came = np.isin(np.arange(nodes), list(answers))
        with jax.enable_x64(True):
            self.hub, self.mail = _post(
                self.algorithm, (self.hub, self.mail), heard, said, tree_of(like, stacked), came
            )
            self.heard = _hear(self.algorithm, self.wiring, self.wires, self.hub, self.mail)

    def model(self) -> Any:
        """A model for each node. What nodes say is their model, where they have one of their own."""
        memory = self.mail.value
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, unwrap(_read_all(self.algorithm, self.heard, memory)))

    def arrays(self) -> dict[str, np.ndarray]:
        return arrays_of((self.hub, self.mail.value, self.heard))

    def restore(self, arrays: Arrays) -> None:
        with jax.enable_x64(True):
            found = jax.tree.map(jnp.asarray, tree_of((self.hub, self.mail.value, self.heard), arrays))
        self.hub, self.heard = found[0], found[2]
        self.mail = Mail((), found[1])
