"""A run in progress: segments of rounds, records, stopping, divergence, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import Diverged, FedpointError
from fedpoint.core.garbage import paused_collection
from fedpoint.core.vector import unwrap, unwrap_all, wrap
from fedpoint.engine.cpu import cache
from fedpoint.engine.layout import Layout, choose, enough_samples
from fedpoint.experiment.metric import measure
from fedpoint.engine.program import go_on, message_of
from fedpoint.engine.state import Inputs, Records, RunState, seeds_of, start_state, start_worlds
from fedpoint.experiment.bound import Bound
from fedpoint.graphs.topology import Topology
from fedpoint.problems.base import Problem
from fedpoint.timing.base import Timing
from fedpoint.timing.mail import deepen, power_of_two

if TYPE_CHECKING:
    from fedpoint.graphs.network import Network

PATIENCE = 0.25  # seconds of work between looks at stopping, progress and checkpoints
TOO_FAR = 1e15  # times the start: a model this large has diverged


@dataclass(frozen=True)
class Progress:
    """What a callback gets after each segment. `model` and `error` lead with the repeat axis."""

    round: int
    rounds: int
    seconds: float
    rate: float  # rounds a second
    model: Any
    error: np.ndarray | None


Callback = Callable[[Progress], Any]


def cast(tree: Any, dtype: Any) -> Any:
    """Floats of a tree in the model's precision; whole numbers as they are."""
    return jax.tree.map(
        lambda a: np.asarray(a, dtype) if np.issubdtype(np.asarray(a).dtype, np.floating) else np.asarray(a),
        tree,
    )


@partial(jax.jit, static_argnames=("layout", "counted"))
def _start_compiled(layout: Layout, inputs: Inputs, models: Any, counted: bool) -> RunState:
    return start_state(layout, inputs, models, counted)


class Session:
    """The algorithm at work on the problem. `advance(n)` goes on; everything is a function of seed and inputs."""

    sums: str | None = None  # how messages are added, where that is not left to the compiler
    stated: dict[str, Any] | None = None  # what a folder states about the problem, where somebody has read all of it

    def __init__(self, bound: Bound, every: int, swept: Algorithm | None = None):
        cache.enable()
        e = bound.experiment
        self.bound, self.every, self.swept = bound, every, swept is not None
        self.round, self.ready = 0, 0  # the round reached; timetables are good for so many
        self.seconds = 0.0
        self.first = (0, 0.0)  # rounds and seconds of the first segment, which compiles
        self.lanes = e.repeats if swept is None else len(jax.tree.leaves(swept)[0])
        dtype = np.result_type(*jax.tree.leaves(bound.start))
        with jax.enable_x64(True):
            self.layout = choose(bound, self.lanes)
            traced = cast(bound.algorithm if swept is None else swept, dtype)
            inputs = Inputs(
                traced,
                self._timetables(),
                self.problem.own_for(bound.algorithm),
                self.problem.common,
                self.problem.weights,
                cast(bound.channel, dtype),
                cast(bound.gather, dtype),
                bound.wires,
            )
            # A sweep has the same draws at every point: differences are the hyper-parameter's.
            self.seeds = jax.tree.map(lambda a: np.tile(a, self.lanes // e.repeats), seeds_of(e.seed, e.repeats))
            one = traced if swept is None else jax.tree.map(lambda a: a[0], traced)
            node = bound.topology.one(bound.start)
            self.message = message_of(wrap(node), self.layout, inputs._replace(algorithm=one))
            self.layout = enough_samples(self.layout, one, self.message.evaluations)
            self.layout = replace(self.layout, metrics=tuple(sorted(e.metrics.items())))
            self._begin(inputs)

    # What it works on.

    @property
    def algorithm(self) -> Algorithm:
        return self.bound.algorithm

    @property
    def problem(self) -> Problem:
        return self.bound.problem

    @property
    def network(self) -> Network | None:
        return self.bound.network

    @property
    def timing(self) -> Timing:
        return self.bound.timing

    @property
    def topology(self) -> Topology:
        return self.layout.topology

    @property
    def start(self) -> Any:
        return self.bound.start

    @property
    def seed(self) -> int:
        return self.bound.experiment.seed

    @property
    def exact(self) -> bool:
        return self.bound.exact

    @property
    def repeats(self) -> int:
        return self.lanes

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
        return self.timing.tiled(self.lanes // self.bound.experiment.repeats) if self.swept else self.timing

    def prepare(self, rounds: int) -> None:
        """Timetables and room for late messages up to a round."""
        if rounds <= self.ready:
            return
        self.ready = power_of_two(rounds)
        self.bound = self.bound.for_rounds(self.ready + 1)  # hubs of a network hear for the tick after the last
        self._retime()
        self._deepen(self.bound.topology.depth)

    def _retime(self) -> None:
        """Give the program its new timetables."""
        with jax.enable_x64(True):
            self.inputs = self.inputs._replace(timing=jax.device_put(self._timetables()))

    def _deepen(self, depth: int) -> None:
        """Room for so many messages of each sender."""
        self.layout = replace(self.layout, topology=self.topology.deepened(power_of_two(depth)))
        with jax.enable_x64(True):
            mail = deepen(self.state.mail, self.topology.depth)
        self.state = self.state._replace(mail=mail)

    def times(self, rounds: np.ndarray) -> np.ndarray:
        """(repeats, n): virtual seconds at the end of these rounds; a round is one where there is no clock."""
        self.prepare(int(rounds.max(initial=0)))
        clock = self.timing.times()
        if clock is None:
            return np.broadcast_to(rounds.astype(float), (self.repeats, len(rounds)))
        table = np.concatenate([np.zeros((len(clock), 1)), clock], axis=1)
        return np.tile(table[:, rounds], (self.lanes // len(clock), 1))

    @cached_property
    def solution(self) -> Any:
        return self.bound.solution

    def used(self, rounds: np.ndarray, records: Any) -> np.ndarray:
        """(repeats, n, 3): models sent, answers and field evaluations up to the recorded rounds."""
        if self.message.used is None:
            return np.asarray(records)
        return np.broadcast_to(np.outer(rounds, self.message.used), (self.repeats, len(rounds), 3))

    def _call(self, rounds: int) -> Records:
        """Go on by so many rounds; the records that fall into them, on the host."""
        first, last = self.round, self.round + rounds
        with paused_collection():  # the first call traces
            self.state, records = go_on(
                self.layout, self.swept, self.inputs, self.state, self.seeds, first, rounds, self.every
            )
        count = last // self.every - first // self.every
        self.round = last
        kept = jax.tree.map(lambda a: np.asarray(a)[:, :count], records._replace(model=unwrap(records.model)))
        # A view would keep the room for all records of a segment, which is mostly empty.
        return kept if count == self.layout.capacity else jax.tree.map(np.copy, kept)

    def advance(
        self,
        rounds: int,
        stop: Callable[[int, Any, np.ndarray | None], bool] | None = None,
        callbacks: Callback | Iterable[Callback] = (),
        keep: Callable[[np.ndarray, Records], None] = lambda rounds, records: None,
    ) -> int:
        """Go on to round `rounds`, handing records to `keep` segment by segment. Returns the round reached."""
        callbacks = [callbacks] if callable(callbacks) else list(callbacks)
        self.prepare(rounds)
        begun, since, size, stopped = time.perf_counter(), self.round, 1, False
        while self.round < rounds and not stopped:
            first, busy = self.round, self.seconds
            # The state is donated, so a copy to return to: only when stopping may have to.
            before = self.mark() if stop is not None else None
            at, records = self._go(min(size, rounds - first))
            size = self._next_size(size, self.seconds - busy)
            errors = self.errors(records.model) if stop is not None or callbacks else None
            if stop is not None:
                enough = _first_enough(stop, at, records, errors)
                stopped = enough is not None
                if enough is not None and enough < self.round:  # go there again, to the same bits
                    self.back(first, before)
                    at, records = self._go(enough - first)
                    errors = self.errors(records.model)
            keep(at, records)
            if callbacks:
                spent = time.perf_counter() - begun
                rate = (self.round - since) / max(spent, 1e-9)
                progress = Progress(self.round, rounds, spent, rate, self.model(), _column(errors, -1))
                for callback in callbacks:
                    callback(progress)
        return self.round

    def mark(self) -> Any:
        """A place to return to."""
        return jax.tree.map(jnp.copy, self.state)

    def back(self, round: int, mark: Any) -> None:
        self.round, self.state = round, mark

    def _go(self, rounds: int) -> tuple[np.ndarray, Records]:
        """A segment of at most so many rounds: the recorded rounds in it and their records, checked to be finite."""
        first, begun = self.round, time.perf_counter()
        most = self.layout.capacity * self.every - first % self.every  # a begun window takes a place too
        with jax.enable_x64(True):
            records = self._call(min(rounds, most))
        took = time.perf_counter() - begun
        self.seconds += took
        if self.first[0] == 0:
            self.first = (self.round - first, took)
        at = (np.arange(first // self.every, self.round // self.every) + 1) * self.every
        self._check_finite(at, records)
        return at, records._replace(used=self.used(at, records.used))

    def _next_size(self, size: int, took: float) -> int:
        """Segments of about the patience; the first one compiles and says nothing about the rounds."""
        if took < PATIENCE or self.round == self.first[0]:
            return size * 8
        return max(1, size // 2) if took > 4 * PATIENCE else size

    def model(self) -> Any:
        """The current model, one per repeat: the global one, or on a network one for each node."""
        with jax.enable_x64(True):
            read = jax.vmap(self.topology.per_hub(self.algorithm.read))(self.state.hub, self.state.memory)
        return jax.tree.map(np.asarray, unwrap(read))

    def metrics(self) -> dict[str, np.ndarray]:
        """The metrics of the current state, (repeats, ...)."""
        if not self.layout.metrics:
            return {}
        state, read = self.whole(), self.topology.per_hub(self.algorithm.read)

        def one(hub: Any, memory: Any) -> dict[str, jax.Array]:
            return measure(self.layout.metrics, read(hub, memory), hub, memory, self.round)

        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(state.hub, state.memory))

    @property
    def knows_solution(self) -> bool:
        """Whether errors cost next to nothing: the solution was asked for before, or a formula gives it."""
        return "solution" in vars(self) or (self.problem.solved and not self.algorithm.at_agents)

    @property
    def speed(self) -> float:
        """Rounds a second; compilation, which is in the first segment, counts only when there was no other."""
        rounds, seconds = self.first
        if self.round > rounds and self.seconds > seconds:
            return (self.round - rounds) / (self.seconds - seconds)
        return self.round / max(self.seconds, 1e-9)

    def memories(self) -> Any:
        """What agents keep, (repeats, agents, ...), completed by what they would hear next."""
        return jax.tree.map(np.asarray, unwrap_all(self.settled()))

    def settled(self) -> Any:
        """The same as the algorithm holds it."""
        state = self.whole()
        with jax.enable_x64(True):

            def settled(algorithm: Algorithm, hub: Any, memory: Any) -> Any:
                return self.topology.settled(algorithm, hub, memory, self.problem.agents)

            axes = (0 if self.swept else None, 0, 0)
            return jax.vmap(settled, in_axes=axes)(self.traced(), state.hub, state.memory)

    def whole(self) -> RunState:
        """The state, of all agents."""
        return self.state

    def traced(self) -> Algorithm:
        """The algorithm with its numbers as the program has them."""
        return self.inputs.algorithm

    def errors(self, models: Any) -> np.ndarray | None:
        """Squared distance to the solution, over all but the two leading axes; on a network a mean over the nodes."""
        if self.solution is None:
            return None
        total = 0.0
        nodes = self.topology.models(self.problem.agents)
        for a, b in zip(jax.tree.leaves(models), jax.tree.leaves(self.solution), strict=True):
            gap = a.astype(np.float64) - np.asarray(b)
            total = total + (gap**2).sum(axis=tuple(range(2, a.ndim))) / nodes
        return np.asarray(total)

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
                raise Diverged(self._divergence(int(at[bad.any(0).argmax()])), int(at[bad.any(0).argmax()]))
        if not len(at) and not all(np.isfinite(a).all() for a in jax.tree.leaves(self.model())):
            raise Diverged(self._divergence(self.round), self.round)

    def _divergence(self, round: int) -> str:
        text = f"{self.algorithm.card.title} diverged: the model left the finite numbers by round {round}"
        step = self.bound.experiment.algorithm.step
        if isinstance(step, float):
            text += f" with step {step:g}"
        return text + self.algorithm.advice(self.problem, self.network, self.exact)

    # Durable form: flat dictionaries of arrays.

    def save(self) -> dict[str, np.ndarray]:
        return flatten(self.state)

    def restore(self, arrays: dict[str, np.ndarray], round: int) -> None:
        if ".mail.stamp" in arrays:  # there may be room for more messages than a run needs at its start
            self._deepen(arrays[".mail.stamp"].shape[-1])
        self.state = unflatten(self.state, arrays)
        self.round = round


def _largest(model: Any) -> float:
    return max(float(np.abs(a).max(initial=0)) for a in jax.tree.leaves(model))


def _first_enough(stop: Callable, at: np.ndarray, records: Records, errors: np.ndarray | None) -> int | None:
    """The first recorded round at which `stop` says so."""
    for i, r in enumerate(at):
        if stop(int(r), jax.tree.map(lambda a, i=i: a[:, i], records.model), _column(errors, i)):
            return int(r)
    return None


def _column(errors: np.ndarray | None, i: int) -> np.ndarray | None:
    return None if errors is None or not errors.shape[1] else errors[:, i]


def flatten(tree: Any) -> dict[str, np.ndarray]:
    """A pytree of arrays as a flat dictionary, by path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path) or "model": np.asarray(leaf) for path, leaf in leaves}


def unflatten(like: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The pytree again, shaped `like` another; refused where names or shapes differ."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(like)
    found = []
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path) or "model"
        if name not in arrays or arrays[name].shape != np.shape(leaf):
            raise FedpointError(f"saved state does not fit this run: {name} is missing or has another shape")
        found.append(arrays[name])
    with jax.enable_x64(True):
        return jax.tree.map(jnp.asarray, jax.tree.unflatten(tree, found))
