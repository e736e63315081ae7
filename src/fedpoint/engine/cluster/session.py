"""A run whose agents are shared out between processes: one program on all of them, and who says what comes next.

Process 0 is the driver: it goes through the run as `fp.run` does, and before every step that takes all processes it
says so (`do`). The others follow: they wait for what is said, and do it. Words go through the coordinator of
`jax.distributed`, numbers through collectives inside compiled programs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import FedpointError
from fedpoint.core.precision import double
from fedpoint.core.random import NO_LUCK
from fedpoint.core.record import PerAgent, split_per_agent
from fedpoint.core.types import Model, Plain, Tree
from fedpoint.core.vector import unwrap, wrap
from fedpoint.engine.cluster.blocks import AXIS, Blocks, GraphInBlocks, StarInBlocks
from fedpoint.engine.cpu.tuning import programs
from fedpoint.engine.layout import CHUNK_BYTES, CHUNK_ROUNDS, Layout
from fedpoint.engine.program import all_lanes
from fedpoint.engine.round import Round
from fedpoint.engine.session import Session, flatten
from fedpoint.engine.state import Inputs, Records, RunState, Seeds, start_state, start_worlds
from fedpoint.experiment.bound import Bound
from fedpoint.graphs.topology import Graph, Star, Topology
from fedpoint.graphs.wiring import NOT_WIRED, Halo, share_out
from fedpoint.timing.base import Tick

SLOT_BYTES = 32  # of a tick that is drawn ahead
Word: TypeAlias = dict[str, str | int]  # what is to be done, with its numbers
WAIT = 10.0  # seconds between two looks at whether the driver is still there


class Known(NamedTuple):
    """What takes all data to find out: whoever has them says it, and no process reads the others' agents."""

    stated: Mapping[str, Plain]  # about the problem, in the run's folder
    solution: Model


class Coordinator(Protocol):
    """What is used of the client of `jax.distributed`."""

    def key_value_set(self, key: str, value: str) -> None: ...

    def key_value_delete(self, key: str) -> None: ...

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str: ...

    def wait_at_barrier(self, name: str, milliseconds: int) -> None: ...


class ProcessGroup:
    """The processes of a job: this one's number, how many there are, and how they talk."""

    def __init__(
        self,
        process: int = 0,
        processes: int = 1,
        client: Coordinator | None = None,
        beat: Callable[[str], None] = lambda doing: None,
    ) -> None:
        self.process, self.processes, self.client = process, processes, client
        self.beat = beat
        self.mesh = Mesh(np.array(jax.devices()[:processes] if client is None else jax.devices()), (AXIS,))
        self.said = 0

    def tell(self, word: Word) -> None:
        """The driver's next word to the others."""
        self.said += 1
        if self.client is not None and self.processes > 1:
            self.client.key_value_set(f"do/{self.said}", json.dumps(word))
            if self.said > 2:
                self.client.key_value_delete(f"do/{self.said - 2}")

    def hear(self) -> Word:
        """The driver's next word. A driver that is gone ends this process: the coordinator went with it."""
        self.said += 1
        assert self.client is not None
        while True:
            self.beat("waiting for process 0")
            try:
                return json.loads(self.client.blocking_key_value_get(f"do/{self.said}", int(WAIT * 1000)))
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise

    def put(self, tree: Tree) -> Tree:
        """This process's arrays as its share of global ones, which lead with the processes."""
        sharding = NamedSharding(self.mesh, PartitionSpec(AXIS))

        def one(a: Tree) -> jax.Array:
            a = np.asarray(a)
            return jax.make_array_from_process_local_data(sharding, a[None], (self.processes, *a.shape))

        return jax.tree.map(one, tree)

    def mine(self, tree: Tree) -> Tree:
        """This process's share, without the axis of the processes."""
        return jax.tree.map(lambda a: a.addressable_data(0)[0], tree)

    def all(self, tree: Tree) -> Tree:
        """Everybody's, (processes, ...), on the host."""
        everywhere = jax.jit(lambda t: t, out_shardings=NamedSharding(self.mesh, PartitionSpec()))
        return jax.tree.map(lambda a: np.asarray(a.addressable_data(0)), everywhere(tree))

    def from_driver(self, tree: Tree) -> Tree:
        """The driver's arrays; the others give arrays of the same shapes."""
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        first = jax.jit(lambda t: jax.tree.map(lambda a: a[0], t), out_shardings=everywhere)
        return jax.tree.map(lambda a: np.asarray(a.addressable_data(0)), first(self.put(tree)))


def _program(
    mesh: Mesh, layout: Layout, inputs: Inputs, state: RunState, seeds: Seeds, first: Array, rounds: Array, every: Array
) -> tuple[RunState, Records]:
    """The program of all processes: each goes through its own agents, and sums are made in between."""

    def here(inputs: Inputs, state: RunState, seeds: Seeds, first: Array, rounds: Array, every: Array) -> Tree:
        mine = jax.tree.map(lambda a: a[0], (inputs, state))
        done = all_lanes(layout, False, mine[0], mine[1], seeds, first, rounds, every)
        return jax.tree.map(lambda a: a[None], done)

    split, whole = PartitionSpec(AXIS), PartitionSpec()
    specs = (split, split, whole, whole, whole, whole)
    shared = jax.shard_map(here, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)
    return shared(inputs, state, seeds, first, rounds, every)


PROGRAMS = programs(_program, static=("mesh", "layout"), donated="state")


class ClusterSession(Session):
    """A session on a group of processes. The driver's is used as any other; the others `follow`."""

    def __init__(self, bound: Bound, every: int, group: ProcessGroup, fast: bool, known: Known | None = None):
        self.group, self.fast = group, fast
        self.sums = "all-reduce" if fast else "blocks"
        self.marked: RunState | None = None
        if known is not None:
            self.stated, self.solution = known.stated, known.solution
        super().__init__(bound, every)

    # What this process holds.

    def _begin(self, inputs: Inputs) -> None:
        layout, process = self.layout, self.group.process
        slots = layout.slots
        self.blocks = blocks = Blocks.choose(self.problem.agents, self.group.processes, slots, layout.mapped, self.fast)
        chunk = int(np.clip(CHUNK_BYTES // (SLOT_BYTES * slots), 1, CHUNK_ROUNDS))
        bytes_ = sum(a.nbytes for a in jax.tree.leaves(self.start)) // self.topology.models(self.problem.agents)
        at_once = blocks.chunk * bytes_ * max(layout.samples or 1, 2)
        samples = layout.samples if at_once <= CHUNK_BYTES else None
        layout = replace(layout, agents=blocks.room, chunk=chunk, blocks=blocks, fetch=False)
        layout = replace(layout, topology=in_blocks(layout.topology, blocks))
        self.layout = replace(layout, samples=samples, tuning=layout.tuning.without_kernel(at_once))
        self.begin, self.end = (int(b) for b in blocks.bounds[process : process + 2])
        own, common = self.problem.part(inputs.own, blocks.bounds, process)
        self.halo: Halo | None = None
        wires = NOT_WIRED
        if self.network is not None:
            self.halo = share_out(self.network, blocks.bounds, process)
            wires = self.halo.wires
        per_agent, put = split_per_agent(inputs.algorithm)
        numbers: list[Tree] = [PerAgent(self._rows(a)) for a in per_agent]
        local = inputs._replace(
            algorithm=put(numbers),
            own=jax.tree.map(self._padded, own),
            common=common,
            wires=wires,
            part=blocks.part(process, () if self.halo is None else self.halo.boundary),
        )
        self.inputs = self.group.put(local)
        one = _started(self.layout, self.group.mine(self.inputs), self._starting(), self.message.used is None)
        state = jax.tree.map(lambda a: np.repeat(np.asarray(a)[None], self.repeats, axis=0), one)
        world = start_worlds(self.layout, self.group.mine(self.inputs), self.seeds)
        self.state = self.group.put(state._replace(world=world))
        self.seeds = jax.tree.map(np.asarray, self.seeds)

    def _starting(self) -> Model:
        """The model of the start; on a network those of this process's nodes and of the ones it hears beyond."""
        if self.halo is None:
            return wrap(self.start)
        return wrap(jax.tree.map(lambda a: a[self._known], self.start))

    @property
    def _known(self) -> np.ndarray:
        """The nodes whose mail is kept here: the own ones, padded, and the boundary of all."""
        own = np.minimum(np.arange(self.begin, self.begin + self.blocks.room), self.problem.agents - 1)
        return own if self.halo is None or self.group.processes == 1 else np.concatenate([own, self.halo.beyond])

    def _padded(self, a: Tree) -> np.ndarray:
        """This process's rows, with as many more as the largest process has."""
        a = np.asarray(a)
        return np.concatenate([a, np.zeros((self.blocks.room - len(a), *a.shape[1:]), a.dtype)])

    def _rows(self, a: Tree) -> np.ndarray:
        return self._padded(np.asarray(a)[self.begin : self.end])

    # What takes all processes. `_all_...` is done on each; the driver says so first.

    def _together(self, what: str, **rest: int) -> Tree:
        self.group.tell({"do": what, **rest})
        return self._do(what, **rest)

    @double
    def _do(self, what: str, **rest: int) -> Tree:
        self.group.beat(f"{what} at round {self.round}")
        done = self._orders[what](**rest)
        self.group.beat(f"done with {what} at round {self.round}")
        return done

    @property
    def _orders(self) -> dict[str, Callable[..., Tree]]:
        """What a driver may ask for."""
        return {
            "go": self._all_go,
            "whole": self._all_whole,
            "mark": self._all_mark,
            "back": self._all_back,
            "prepare": self._all_prepare,
            "restore": self._all_restore,
        }

    def follow(self) -> Word:
        """Do what the driver says, to the end; how it ended."""
        while (word := self.group.hear())["do"] != "end":
            self._do(str(word.pop("do")), **{name: int(number) for name, number in word.items()})
        return word

    def _call(self, rounds: int) -> Records:
        return self._together("go", rounds=rounds)

    def _all_go(self, rounds: int) -> Records:
        first, last = self.round, self.round + rounds
        numbers = (np.int32(n) for n in (first, rounds, self.every))
        go = PROGRAMS[self.layout.tuning.compiled]
        self.state, records = go(self.group.mesh, self.layout, self.inputs, self.state, self.seeds, *numbers)
        count = last // self.every - first // self.every
        jax.block_until_ready(self.state)
        self.round = last
        used = records.used if isinstance(records.used, tuple) else self._all_used(self.group.all(records.used))
        if self.topology.own_models:
            model = self._joined(self.group.all(records.model), axis=2)
        else:
            model = jax.tree.map(np.asarray, self.group.mine(records.model))
        return jax.tree.map(lambda a: a[:, :count], Records(unwrap(model), used))

    def _all_used(self, used: np.ndarray) -> np.ndarray:
        """Field evaluations are counted where they are made; with a fusion center the rest is known to everybody."""
        total = used.sum(axis=0)
        if not self.topology.by_node:
            total[..., :2] = used[0, ..., :2]
        return total

    def _joined(self, tree: Tree, axis: int = 1) -> Tree:
        """(processes, ...) with padded agents on an axis, as one array over all agents."""
        sizes = np.diff(self.blocks.bounds)

        def join(a: np.ndarray) -> np.ndarray:
            return np.concatenate([np.take(a[i], range(n), axis=axis) for i, n in enumerate(sizes)], axis=axis)

        return jax.tree.map(join, tree)

    def whole(self) -> RunState:
        """The state as one process would have it."""
        return self._together("whole")

    def _all_whole(self) -> RunState:
        state = self.group.all(self.state)
        first = lambda tree: jax.tree.map(lambda a: a[0], tree)  # noqa: E731
        used = state.used if isinstance(state.used, tuple) else self._all_used(state.used)
        hub, mail = ((self._joined if self.topology.by_node else first)(tree) for tree in (state.hub, state.mail))
        memory, world, wire = (self._joined(tree) for tree in (state.memory, state.world, state.wire))
        return RunState(hub, memory, mail, used, world, wire)

    def mark(self) -> RunState | None:
        return self._together("mark")

    def _all_mark(self) -> None:
        self.marked = jax.tree.map(jnp.copy, self.state)

    def back(self, round: int, mark: RunState | None) -> None:
        self._together("back", round=round)

    def _all_back(self, round: int) -> None:
        assert self.marked is not None
        self.round, self.state = round, self.marked

    def prepare(self, rounds: int) -> None:
        if rounds > self.ready:
            self._together("prepare", rounds=rounds)

    def _all_prepare(self, rounds: int) -> None:
        super().prepare(rounds)

    def _retime(self) -> None:
        self.inputs = self.inputs._replace(timing=self.group.put(self._timetables()))

    def _deepen(self, depth: int) -> None:
        state = self.group.mine(self.state)
        self.state = state._replace(mail=jax.tree.map(np.asarray, state.mail))
        super()._deepen(depth)
        self.state = self.group.put(self.state)

    @double
    def model(self) -> Model:
        state = self.whole() if self.topology.own_models else self.group.mine(self.state)
        read = jax.vmap(partial(self.topology.read, self.algorithm))(state.hub, state.memory)
        return jax.tree.map(np.asarray, unwrap(read))

    def traced(self) -> Algorithm:
        return self.group.mine(self.inputs.algorithm)

    def save(self) -> dict[str, np.ndarray]:
        return flatten(self.whole())

    def restore(self, arrays: Mapping[str, np.ndarray], round: int) -> None:
        depth = arrays[".mail.stamp"].shape[-1] if ".mail.stamp" in arrays else 0
        self._given = arrays
        self._together("restore", round=round, depth=depth)

    def _all_restore(self, round: int, depth: int) -> None:
        """The driver's state, each process's share of it."""
        if depth:
            self._deepen(depth)
        arrays = self._given if self.group.process == 0 else None
        mine, by_node = self.group.mine(self.state), self.topology.by_node
        leaves, tree = jax.tree_util.tree_flatten_with_path(mine)
        found = []
        for path, leaf in leaves:
            name, field = jax.tree_util.keystr(path), path[0].name
            by_agent = field in ("memory", "world", "wire") or (by_node and field in ("hub", "mail"))
            shape = (self.repeats, self.problem.agents, *leaf.shape[2:]) if by_agent else leaf.shape
            if arrays is None:
                whole = np.zeros(shape, leaf.dtype)
            elif name in arrays and arrays[name].shape == shape:
                whole = arrays[name].astype(leaf.dtype)
            else:
                raise FedpointError(f"saved state does not fit this run: {name} is missing or has another shape")
            whole = self.group.from_driver(whole)
            if by_agent:
                whole = whole[:, self._known[: leaf.shape[1]]]
            elif field == "used" and self.group.process:
                whole = np.zeros_like(whole) if by_node else whole * np.array([1, 1, 0])
            found.append(whole)
        self.state = self.group.put(jax.tree.unflatten(tree, found))
        self.round = round


def in_blocks(topology: Topology, blocks: Blocks) -> Topology:
    """The same topology, its agents shared out."""
    if isinstance(topology, Graph):
        return GraphInBlocks(topology.wiring, blocks=blocks)
    assert isinstance(topology, Star)
    return StarInBlocks(topology.late, topology.rebase, topology.personal, blocks=blocks)


@partial(jax.jit, static_argnames=("layout", "counted"))
def _started(layout: Layout, inputs: Inputs, model: Model, counted: bool) -> RunState:
    """This process's state before the first round."""
    state, topology = start_state(layout, inputs, model, counted), layout.topology
    if not (inputs.algorithm.at_agents and isinstance(topology, Graph)):
        return state
    at = Round(layout, inputs, (NO_LUCK,) * 3, jnp.int32(0))
    everyone = Tick(None, jnp.ones(inputs.p.shape, bool))
    return topology.heard(at, state, everyone, lambda arc, says: jnp.zeros_like(arc), jnp.int32(0))
