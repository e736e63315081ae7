"""Who works where? Agents in blocks, blocks shared out between processes, and sums that do not depend on how.

Agents lie in 64 blocks fixed by their number: agent k of K in block k 64 // K. A process holds a range of blocks. It
goes through its agents in chunks of one size, never across a block's end, so that every agent is worked on in a program
of the same shapes, at the same place of its chunk, however many processes there are. The blocks' sums are gathered and
added in the blocks' order: same bits at any number of processes. With `fast` every process is one block, and sums are
all-reduces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.inbox import Inbox
from fedpoint.core.numbers import counted
from fedpoint.core.types import Model, Number, State, Tree
from fedpoint.engine.precompute import NOTHING_PRECOMPUTED, Precomputed
from fedpoint.engine.round import Round
from fedpoint.engine.state import Part, RunState
from fedpoint.graphs.topology import Age, Begun, Graph, Star, Used, bases
from fedpoint.graphs.wiring import Wires
from fedpoint.timing.base import Tick
from fedpoint.timing.mail import Mail, look, open_mail, post, power_of_two

BLOCKS = 64
CHUNK = 256  # agents that work at once, at most
AXIS = "processes"
Kept: TypeAlias = dict[str, State]  # fields of a state, by name
Body: TypeAlias = Callable[[Array, Array, Array, Array, Tree], Tree]


@dataclass(frozen=True)
class Blocks:
    """How agents are shared out: compiled in."""

    agents: int
    processes: int
    count: int = BLOCKS
    chunk: int = 1
    fast: bool = False

    @classmethod
    def choose(cls, agents: int, processes: int, slots: int, mapped: bool, fast: bool) -> Blocks:
        """Chunks from what a block holds of a round's participants, on average: half of it, where they are drawn.

        Where agents are mapped one after the other, whoever pads a chunk costs as much as whoever works: one each.
        """
        count = processes if fast else BLOCKS
        share = -(-slots // count)
        chunk = share if slots == agents else power_of_two(-(-slots // (2 * count)))
        return cls(agents, processes, count, 1 if mapped else min(chunk, CHUNK), fast)

    def explain(self) -> str:
        sums = "sums are all-reduces" if self.fast else f"sums in {self.count} ordered blocks"
        return f"in chunks of {self.chunk} over {counted(self.processes, 'process')}, {sums}"

    # Where things are: plain numbers, the same on every process.

    @property
    def edges(self) -> np.ndarray:
        """(count + 1,): the agents at which blocks begin: block b has those with k count // K = b."""
        return -(-np.arange(self.count + 1) * self.agents // self.count)

    @property
    def begins(self) -> np.ndarray:
        """(processes + 1,): the blocks at which processes begin."""
        return np.arange(self.processes + 1) * self.count // self.processes

    @property
    def bounds(self) -> np.ndarray:
        """(processes + 1,): the agents at which processes begin."""
        return self.edges[self.begins]

    @property
    def most(self) -> int:
        """Blocks of a process, at most."""
        return int(np.diff(self.begins).max())

    @property
    def room(self) -> int:
        """Agents of a process, at most."""
        return int(np.diff(self.bounds).max())

    def part(self, process: int, boundary: np.ndarray | tuple = ()) -> Part:
        begin, end = self.begins[process : process + 2]
        edges = self.edges[np.minimum(np.arange(begin, begin + self.most + 1), end)].astype(np.int32)
        numbers: tuple[Tree, ...] = (edges[0], np.int32(end - begin), edges, boundary)
        return Part(*numbers)

    # A round.

    def over(self, part: Part, agents: Array | None, body: Body, carry: Tree) -> Tree:
        """carry <- body(block, slots, inside, places, carry) for every chunk of this process's agents, in their order.

        slots: which of a tick's slots; places: where these agents lie in this process's arrays.
        """
        if agents is None:
            order, edges = None, part.edges
        else:
            index = jnp.arange(agents.shape[0], dtype=jnp.uint64)
            packed = jnp.sort((agents.astype(jnp.uint64) << jnp.uint64(32)) | index)  # of one operand: a native sort
            order = (packed & jnp.uint64(0xFFFFFFFF)).astype(jnp.int32)
            edges = jnp.searchsorted((packed >> jnp.uint64(32)).astype(jnp.int32), part.edges).astype(jnp.int32)

        def chunk(j: Array, c: Array, carry: Tree) -> Tree:
            at = edges[j] + c * self.chunk + jnp.arange(self.chunk, dtype=jnp.int32)
            inside = at < edges[j + 1]
            at = jnp.where(inside, at, edges[j])
            slots = at if order is None else order[at]
            who = slots if agents is None else agents[slots]
            return body(j, slots, inside, who - part.first, carry)

        def block(j: Array, carry: Tree) -> Tree:
            chunks = (edges[j + 1] - edges[j] + self.chunk - 1) // self.chunk
            return lax.fori_loop(0, chunks, lambda c, carry: chunk(j, c, carry), carry)

        return lax.fori_loop(0, part.blocks, block, carry)

    def sum(self, blocks: Tree) -> Tree:
        """Over all blocks of all processes; (most, ...) of this one."""
        if self.fast:
            return jax.tree.map(lambda a: lax.psum(a[0], AXIS), blocks)
        begins = self.begins
        owner = np.searchsorted(begins, np.arange(self.count), side="right") - 1
        place = owner * self.most + np.arange(self.count) - begins[owner]
        every = jax.tree.map(lambda a: lax.all_gather(a, AXIS, tiled=True)[place], blocks)

        def add(b: Array, total: Tree) -> Tree:
            return jax.tree.map(lambda s, a: s + a[b], total, every)

        return lax.fori_loop(1, self.count, add, jax.tree.map(lambda a: a[0], every))

    def exchange(self, part: Part, mail: Mail, version: Number) -> Mail:
        """The mail with what others' boundary nodes said last, behind this process's own nodes."""
        if self.processes == 1:
            return mail
        said = look(mail, part.boundary, version)
        told = jax.tree.map(lambda a: lax.all_gather(a, AXIS, tiled=True), said)
        if isinstance(mail.stamp, tuple):
            return Mail((), jax.tree.map(lambda a, t: a.at[self.room :].set(t), mail.value, told))
        stamp = lax.all_gather(mail.stamp[part.boundary].max(axis=1), AXIS, tiled=True)
        senders = self.room + jnp.arange(stamp.shape[0], dtype=jnp.int32)
        return post(mail, senders, stamp == version, told, version)


def _some(tick: Tick, slots: Array, inside: Array, places: Array) -> Tick:
    """The part of a tick that a chunk of agents is."""

    def there(a: Array | None) -> Array | None:
        return None if a is None else jnp.where(inside, a[slots], 0.0)

    return tick._replace(
        agents=places,
        heard=inside & tick.heard[slots],
        weight=there(tick.weight),
        share=there(tick.share),
        age=None if tick.age is None else tick.age[slots],
    )


@dataclass(frozen=True)
class StarInBlocks(Star):
    """A hub whose agents are shared out: every process has the hub, and its own agents."""

    blocks: Blocks = Blocks(1, 1)

    def meet(
        self, at: Round, state: RunState, tick: Tick, said: State, ahead: Precomputed
    ) -> tuple[Inbox, RunState, Number]:
        """The agents of a tick, chunk by chunk, and the sum over all blocks."""
        blocks, meet = self.blocks, super().meet
        kept = ("memory", "wire", "world")

        def some(slots: Array, inside: Array, places: Array, here: Kept) -> tuple[Tree, Kept, Number]:
            one = _some(tick, slots, inside, places)
            inbox, after, spent = meet(at, state._replace(**here), one, said, NOTHING_PRECOMPUTED)
            return (inbox.mean, inbox.total), _fields(after, kept), spent

        def body(j: Array, slots: Array, inside: Array, places: Array, carry: Tree) -> Tree:
            sums, here, spent = carry
            more, here, evaluations = some(slots, inside, places, here)
            return jax.tree.map(lambda s, m: s.at[j].add(m), sums, more), here, spent + evaluations

        none, here = jnp.zeros(blocks.chunk, jnp.int32), _fields(state, kept)
        shapes = jax.eval_shape(some, none, none > 0, none, here)[0]
        zero = jax.tree.map(lambda s: jnp.zeros((blocks.most, *s.shape), s.dtype), shapes)
        sums, here, spent = blocks.over(at.part, tick.agents, body, (zero, here, jnp.int64(0)))
        mean, total = blocks.sum(sums)
        dtype = jnp.result_type(*jax.tree.leaves(mean))
        assert tick.share is not None and tick.weight is not None
        mass, weight = (jnp.sum(w).astype(dtype) for w in (tick.share, tick.weight))
        return Inbox(mean, total, mass, weight), state._replace(**here), spent


@dataclass(frozen=True)
class GraphInBlocks(Graph):
    """Nodes that are shared out: every process has its own, and the mail of those that its nodes hear."""

    blocks: Blocks = Blocks(1, 1)

    def speak(self, at: Round, state: RunState, tick: Tick, ahead: Precomputed) -> tuple[RunState, None, Used]:
        """Chunk by chunk; then processes tell each other what crosses."""
        speak, kept = super().speak, ("memory", "wire", "mail", "world")

        def body(j: Array, slots: Array, inside: Array, places: Array, carry: Tree) -> Tree:
            here, sent, spent = carry
            one = _some(tick, slots, inside, places)
            after, _, used = speak(at, state._replace(**here), one, NOTHING_PRECOMPUTED)
            return _fields(after, kept), sent + used.up, spent + used.evaluations

        carry = (_fields(state, kept), jnp.int64(0), jnp.int64(0))
        here, sent, spent = self.blocks.over(at.part, tick.agents, body, carry)
        state = state._replace(**here)
        mail = self.blocks.exchange(at.part, state.mail, at.number + 1)
        return state._replace(mail=mail), None, Used(0, sent, spent)

    def heard(self, at: Round, state: RunState, after: Tick, age: Age, version: Array) -> RunState:
        """Chunk by chunk."""
        heard = super().heard

        def body(j: Array, slots: Array, inside: Array, places: Array, hub: State) -> State:
            one = _some(after, slots, inside, places)
            return heard(at, state._replace(hub=hub), one, age, version).hub

        return state._replace(hub=self.blocks.over(at.part, after.agents, body, state.hub))

    def begin(self, algorithm: Algorithm, models: Model, wires: Wires, agents: int) -> Begun:
        """Models are those of this process's nodes, and behind them of the ones that it hears beyond."""
        own = jax.tree.map(lambda a: a[:agents], models)
        hub, memory = jax.vmap(algorithm.init)(own)
        if algorithm.at_agents:
            return Begun(hub, memory, open_mail(jax.vmap(algorithm.hello)(models), self.depth))
        everybody, _ = jax.vmap(algorithm.init)(models)
        return Begun(hub, memory, open_mail(bases(algorithm, everybody), self.depth))


def _fields(state: RunState, names: tuple[str, ...]) -> Kept:
    values = state._asdict()
    return {name: values[name] for name in names}
