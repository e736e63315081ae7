"""How are all agents simulated in one process? Segments of rounds, records, divergence, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import Diverged, FedpointError
from fedpoint.core.garbage import paused_collection
from fedpoint.core.own_code import called_back
from fedpoint.core.precision import double
from fedpoint.core.types import Data, Model, State, Tree
from fedpoint.core.vector import unwrap, unwrap_all, wrap
from fedpoint.engine.base import Engine, Measure
from fedpoint.engine.cpu import cache
from fedpoint.engine.layout import Layout, choose, enough_samples
from fedpoint.engine.memory import check_fits, check_mail, exhausted
from fedpoint.engine.on_disk import OnDisk, check_one_lane, with_room
from fedpoint.engine.program import go_on, message_of
from fedpoint.engine.state import Inputs, Records, RunState, Traffic, seeds_of, start_state, start_worlds
from fedpoint.experiment.bound import Bound
from fedpoint.experiment.metric import measure
from fedpoint.graphs.topology import Topology
from fedpoint.metrics.held_out import HeldOut
from fedpoint.problems.base import Problem
from fedpoint.timing.base import Timing
from fedpoint.timing.mail import deepen, power_of_two

TOO_FAR = 1e15  # times the start: a model this large has diverged


def cast(tree: Tree, dtype: np.typing.DTypeLike) -> Tree:
    """Floats of a tree in the model's precision; whole numbers as they are."""

    def one(a: Tree) -> np.ndarray:
        a = np.asarray(a)
        return a.astype(dtype, copy=False) if np.issubdtype(a.dtype, np.floating) else a

    return jax.tree.map(one, tree)


@partial(jax.jit, static_argnames=("layout", "counted"))
def _start_compiled(layout: Layout, inputs: Inputs, models: Model, counted: bool) -> RunState:
    return start_state(layout, inputs, models, counted)


class Session(Engine):
    """The algorithm at work on the problem, all agents in this process.

    swept: the algorithm with the numbers of every point of a sweep, on a leading axis.
    """

    @double
    def __init__(self, bound: Bound, every: int, swept: Algorithm | None = None) -> None:
        super().__init__(bound.experiment, every)
        cache.enable()
        self.bound, self.swept = bound, swept is not None
        self.ready = 0  # timetables are good for so many rounds
        self._fresh = True  # the next segment compiles
        repeats = self.experiment.repeats
        self.lanes = repeats if swept is None else len(jax.tree.leaves(swept)[0])
        dtype = np.result_type(*jax.tree.leaves(bound.start))
        layout = choose(bound, self.lanes)
        traced = cast(bound.algorithm if swept is None else swept, dtype)
        inputs = Inputs(
            traced,
            self._timetables(),
            bound.data.own_for(bound.algorithm),
            bound.data.common,
            bound.claimed_weights,  # type: ignore[arg-type] # NumPy's, until it is put on the device
            cast(bound.channel, dtype),
            cast(bound.gather, dtype),
            bound.wires,
            attack=cast(bound.attack, dtype),
            branches=bound.branches,
        )
        one = traced if swept is None else jax.tree.map(lambda a: a[0], traced)
        single = inputs._replace(algorithm=one)
        if self.experiment.memories == "disk":
            check_one_lane(self.lanes)
            layout = with_room(layout, single, bound.start)
        self._message = message_of(wrap(bound.topology.one(bound.start)), layout, single)
        check_fits(layout, single, bound.start, self.lanes, self.message.used is None)
        # A sweep has the same draws at every point: differences are the hyper-parameter's.
        self.seeds = jax.tree.map(lambda a: np.tile(a, self.lanes // repeats), seeds_of(self.seed, repeats))
        layout = enough_samples(layout, one, self.message.samples)
        self.layout = replace(layout, metrics=tuple(sorted(self.experiment.metrics.items())))
        with exhausted():
            self._begin(inputs)
        self.on_disk = None if self.layout.rows is None else OnDisk(self.layout, self.state)

    # What it works on.

    @property
    def algorithm(self) -> Algorithm:
        return self.bound.algorithm

    @property
    def timing(self) -> Timing:
        return self.bound.timing

    @property
    def topology(self) -> Topology:
        return self.layout.topology

    @property
    def exact(self) -> bool:
        return self.bound.exact

    @property
    def repeats(self) -> int:
        return self.lanes

    @property
    def weights(self) -> np.ndarray | None:
        return self.problem.weights if self.topology.own_models else None

    @property
    def message(self) -> Traffic:
        return self._message

    def explain(self) -> str:
        return self.layout.explain()

    def _begin(self, inputs: Inputs) -> None:
        """Put everything where it is worked on: numbers and the state before the first round."""
        self.inputs = jax.device_put(inputs)
        if self.swept:  # a hyper-parameter may enter the initial state
            self.state = jax.vmap(lambda a: self._start(inputs._replace(algorithm=a)))(inputs.algorithm)
        else:
            one = self._start(inputs)
            self.state = jax.device_put(
                jax.tree.map(lambda a: np.repeat(np.asarray(a)[None], self.repeats, axis=0), one)
            )
        self.state = self.state._replace(world=start_worlds(self.layout, self.inputs, self.seeds))

    def _start(self, inputs: Inputs) -> RunState:
        """The state before the first round."""
        begin = _start_compiled if self.topology.by_node else start_state
        return begin(self.layout, inputs, wrap(self.start), self.message.used is None)

    # Timetables: timings that are worked out beforehand are good for so many rounds, and then for more.

    def _timetables(self) -> Timing:
        """The timing as the program gets it."""
        return self.timing.tiled(self.lanes // self.experiment.repeats) if self.swept else self.timing

    def prepare(self, rounds: int) -> None:
        if rounds <= self.ready:
            return
        self.ready, self._fresh = power_of_two(rounds), True
        self.bound = self.bound.for_rounds(self.ready + 1)  # hubs of a network hear for the tick after the last
        self._retime()
        self._deepen(self.bound.topology.depth)

    @double
    def _retime(self) -> None:
        """Give the program its new timetables."""
        self.inputs = self.inputs._replace(timing=jax.device_put(self._timetables()))

    @double
    def _deepen(self, depth: int) -> None:
        """Room for so many messages of each sender."""
        check_mail(self.state.mail, self.topology.depth, power_of_two(depth))
        self.layout = replace(self.layout, topology=self.topology.deepened(power_of_two(depth)))
        self.state = self.state._replace(mail=deepen(self.state.mail, self.topology.depth))

    # How it goes on.

    @double
    def _call(self, rounds: int) -> Records:
        """Go on by so many rounds; the records that fall into them, on the host."""
        first, last = self.round, self.round + rounds
        with paused_collection(), called_back(), exhausted():  # the first call traces
            self.state, records = go_on(
                self.layout, self.swept, self.inputs, self.state, self.seeds, first, rounds, self.every
            )
        count = last // self.every - first // self.every
        self.round = last
        kept = jax.tree.map(lambda a: np.asarray(a)[:, :count], records._replace(model=unwrap(records.model)))
        # A view would keep the room for all records of a segment, which is mostly empty.
        return kept if count == self.layout.capacity else jax.tree.map(np.copy, kept)

    def mark(self) -> RunState | None:
        if self.on_disk is not None:
            return jax.tree.map(jnp.copy, self.on_disk.without(self.state, self.on_disk.rows.mark()))
        return jax.tree.map(jnp.copy, self.state)

    def back(self, round: int, mark: RunState | None) -> None:
        assert mark is not None
        self.round, self.state = round, mark if self.on_disk is None else self.on_disk.again(mark, self.state)

    def segment(self, rounds: int) -> tuple[np.ndarray, Records]:
        first, begun = self.round, time.perf_counter()
        most = self.layout.capacity * self.every - first % self.every  # a begun window takes a place too
        rounds = min(rounds, most)
        if self.on_disk is None:
            records = self._call(rounds)
        else:
            rounds, at_hand, kept = self.on_disk.fetch(self.inputs, self.state, self.seeds, first, rounds)
            self.inputs = self.inputs._replace(at_hand=at_hand)
            self.state = self.state._replace(memory=kept.memory, wire=kept.wire)
            records = self._call(rounds)
            self.on_disk.store(self.state)
        self.pace.add(self.round - first, time.perf_counter() - begun, compiled=self._fresh)
        self.compiled, self._fresh = self._fresh, False
        at = (np.arange(first // self.every, self.round // self.every) + 1) * self.every
        self._check_finite(at, records)
        return at, records._replace(used=self._used(at, records.used))

    def _used(self, rounds: np.ndarray, counted: Tree) -> np.ndarray:
        """(repeats, n, 3): models sent, answers and field evaluations up to these rounds."""
        if self.message.used is None:
            return np.asarray(counted)
        return np.broadcast_to(np.outer(rounds, np.array(self.message.used)), (self.repeats, len(rounds), 3))

    # What can be asked.

    @double
    def model(self) -> Model:
        read = jax.vmap(partial(self.topology.read, self.algorithm))(self.state.hub, self.state.memory)
        return jax.tree.map(np.asarray, unwrap(read))

    def now(self) -> Records:
        used = np.zeros((self.repeats, 1, 3), np.int64)
        if self.round:
            counted = self.message.used is None
            used = self._used(np.array([self.round]), np.asarray(self._used_so_far())[:, None] if counted else ())
        model, metrics = jax.tree.map(lambda a: a[:, None], (self.model(), self._metrics()))
        return Records(model, used, metrics)

    @double
    def _metrics(self) -> dict[str, np.ndarray]:
        """The metrics of the current state, (repeats, ...)."""
        if not self.layout.metrics:
            return {}
        state = self.whole()

        def one(hub: State, memory: State) -> dict[str, jax.Array]:
            model = self.topology.read(self.algorithm, hub, memory)
            return measure(self.layout.metrics, model, hub, memory, self.round)

        return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(state.hub, state.memory))

    @cached_property
    def solution(self) -> Model | None:  # type: ignore[override]
        return self.bound.solution

    @property
    def knows_solution(self) -> bool:
        """It was asked for before, or a formula gives it."""
        return "solution" in vars(self) or (
            self.problem.solved and not (self.algorithm.at_agents or self.algorithm.personal)
        )

    def memories(self) -> State:
        return jax.tree.map(np.asarray, unwrap_all(self.settled()))

    @double
    def settled(self) -> State:
        """The memories as the algorithm holds them."""

        def settled(algorithm: Algorithm, hub: State, memory: State) -> State:
            return self.topology.settled(algorithm, hub, memory, self.problem.agents)

        state, axes = self.whole(), (0 if self.swept else None, 0, 0)
        return jax.vmap(settled, in_axes=axes)(self.traced(), state.hub, state.memory)

    def whole(self) -> RunState:
        if self.on_disk is None:
            return self.state
        kept = self.on_disk.all("they stay on disk; what the run says otherwise needs none of them")
        return self.state._replace(memory=kept.memory, wire=kept.wire)

    def _used_so_far(self) -> Tree:
        return self.state.used

    def keep_in(self, folder: Path) -> None:
        if self.on_disk is not None:
            self.on_disk.keep_in(folder)

    def traced(self) -> Algorithm:
        """The algorithm with its numbers as the program has them."""
        return self.inputs.algorithm

    def errors(self, models: Model) -> np.ndarray | None:
        if self.solution is None:
            return None
        total = 0.0
        nodes = self.topology.models(self.problem.agents)
        for a, b in zip(jax.tree.leaves(models), jax.tree.leaves(self.solution), strict=True):
            with np.errstate(over="ignore", invalid="ignore"):  # of what diverged
                gap = a.astype(np.float64) - np.asarray(b)
                total = total + (gap**2).sum(axis=tuple(range(2, a.ndim))) / nodes
        return np.asarray(total)

    def why_no_error(self) -> str:
        return self.algorithm.why_no_aim(self.problem, self.network)

    def losses(self, records: Records) -> np.ndarray:
        return objective(self.problem, self.topology.own_models, records.model)

    def agent_losses(self, models: Model, metrics: Mapping[str, np.ndarray]) -> np.ndarray:
        if self.topology.own_models:
            return self.problem.own_losses(models)
        each = [jax.tree.map(lambda a, r=r: a[r], models) for r in range(self.repeats)]
        return np.stack([self.problem.losses(model) for model in each])

    def variation(self, models: Model, metrics: Mapping[str, np.ndarray]) -> np.ndarray | None:
        return None if self.network is None else self.network.variations(jax.tree.leaves(models))

    def measure(self, data: Data, new: bool = False) -> Measure:
        if callable(data):
            return lambda model: data(self.problem.whole(model))
        return HeldOut(self.problem, data, own=self.topology.own_models, new=new)

    @cached_property
    def _largest_start(self) -> float:
        return _largest(self.start)

    def _check_finite(self, at: np.ndarray, records: Records) -> None:
        if self.swept:
            return  # one point of many may diverge: its numbers say so
        limit = TOO_FAR * (1 + self._largest_start)
        for leaf in jax.tree.leaves(records.model):
            bad = ~(np.abs(leaf) <= limit).all(axis=tuple(range(2, leaf.ndim)))
            if bad.any() and np.isfinite(leaf).all() and self.solution is not None:  # it may be that far away
                bad = ~(np.abs(leaf) <= TOO_FAR * (1 + _largest(self.solution))).all(axis=tuple(range(2, leaf.ndim)))
            if bad.any():
                where = bad.any(0).argmax()
                raise Diverged(self._divergence(int(at[where]), bool(np.isnan(leaf[:, where]).any())), int(at[where]))
        if not len(at) and not all(np.isfinite(a).all() for a in jax.tree.leaves(self.model())):
            raise Diverged(self._divergence(self.round, True), self.round)

    def _divergence(self, round: int, lost: bool) -> str:
        """In words; lost: numbers have become NaN, which a channel makes of those that it cannot carry."""
        overflow = self.bound.channel.overflows() if lost else ""
        if overflow:
            return f"{self.algorithm.card.title} stopped by round {round}: {overflow}"
        text = f"{self.algorithm.card.title} diverged: the model became infinite or NaN by round {round}"
        step = self.experiment.algorithm.step
        if isinstance(step, float):
            text += f" with step {step:g}"
        return text + self.algorithm.advice(self.problem, self.network, self.exact)

    # Durable form: flat dictionaries of arrays.

    def save(self) -> dict[str, np.ndarray]:
        if self.on_disk is not None:
            return flatten(self.on_disk.without(self.state, self.on_disk.rows.keep()))
        return flatten(self.state)

    def restore(self, arrays: Mapping[str, np.ndarray], round: int) -> None:
        if ".mail.stamp" in arrays:  # there may be room for more messages than a run needs at its start
            self._deepen(arrays[".mail.stamp"].shape[-1])
        if self.on_disk is None:
            self.state = unflatten(self.state, arrays)
        else:
            like = self.on_disk.without(self.state, self.on_disk.rows.index)
            self.state = self.on_disk.again(unflatten(like, arrays), self.state, earlier=True)
        self.round = round


def objective(problem: Problem, own: bool, models: Model) -> np.ndarray:
    """(repeats, n): sum_k p_k f_k at recorded models; own: each agent at its own. A pass over all data."""
    lead = jax.tree.leaves(models)[0].shape[:2]
    flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), models)
    found = problem.own_losses(flat) @ problem.weights if own else problem.objective(flat)
    return np.asarray(found).reshape(lead)


def _largest(model: Model) -> float:
    return max(float(np.abs(a).max(initial=0)) for a in jax.tree.leaves(model))


def flatten(tree: Tree) -> dict[str, np.ndarray]:
    """A pytree of arrays as a flat dictionary, by path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path) or "model": np.asarray(leaf) for path, leaf in leaves}


@double
def unflatten(like: Tree, arrays: Mapping[str, np.ndarray]) -> Tree:
    """The pytree again, shaped `like` another; refused where names or shapes differ."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(like)
    found = []
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path) or "model"
        if name not in arrays or arrays[name].shape != np.shape(leaf):
            raise FedpointError(f"saved state does not fit this run: {name} is missing or has another shape")
        found.append(arrays[name])
    return jax.tree.map(jnp.asarray, jax.tree.unflatten(tree, found))
