"""A run in progress: segments of rounds, records, stopping, divergence, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.core.algorithm import per_agent_fields
from fedpoint.core.mail import deepen, power_of_two
from fedpoint.core.participation import scheme_names
from fedpoint.core.steps import Epochs
from fedpoint.core.vector import unwrap, unwrap_all, wrap
from fedpoint.errors import Diverged, FedpointError
from fedpoint.runtimes import cache
from fedpoint.runtimes.layout import choose, enough_samples
from fedpoint.runtimes.simulation import go_on, message_of
from fedpoint.runtimes.state import Inputs, Records, State, seeds_of, start_network, start_state, start_worlds
from fedpoint.runtimes.wiring import wire
from fedpoint.uncollected import uncollected

PATIENCE = 0.25  # seconds of work between looks at stopping, progress and checkpoints
TOO_FAR = 1e15  # times the start: a model this large has diverged
HISTORY_BYTES = 1 << 28  # recorded models of a whole run, from which records are thinned


@dataclass(frozen=True)
class Progress:
    """What a callback gets after each segment. `model` and `error` lead with the repeat axis."""

    round: int
    rounds: int
    seconds: float
    rate: float  # rounds a second
    model: Any
    error: np.ndarray | None


def bind_algorithm(algorithm: Any, problem: Any) -> Any:
    """The algorithm with its per-agent numbers known: epochs counted, lengths checked."""
    steps = getattr(algorithm, "local_steps", None)
    changes = {}
    if isinstance(steps, Epochs):
        rows = problem.local_rows()
        if rows is None:
            raise FedpointError("local_steps=Epochs needs agents that store rows; a stream has no epoch: give a number")
        batch = problem.batch or rows.max()
        counts = steps.count * -(-rows // batch)
        changes["local_steps"] = int(counts[0]) if (counts == counts[0]).all() else counts.astype(np.int32)
    for name in per_agent_fields(algorithm):
        value = changes.get(name, getattr(algorithm, name))
        if np.ndim(value) == 1 and len(value) != problem.agents:
            raise FedpointError(
                f"{type(algorithm).__name__}: {name} has {len(value)} values, but there are {problem.agents} agents"
            )
        if np.ndim(value) == 1 and name == "local_steps":
            changes[name] = np.asarray(value, np.int32)
    if not changes:
        return algorithm
    fields = {name: getattr(algorithm, name) for name in algorithm.__dataclass_fields__}
    return type(algorithm)(**{**fields, **changes})


def check_place(algorithm: Any, network: Any) -> None:
    """Refuse a method for networks without one, and a method that needs a fusion center on a network."""
    title = type(algorithm).card.title
    if network is None and algorithm.hello is not None:
        raise FedpointError(f"{title} runs on a network: give network=, for instance fp.Network.ring(10)")
    if network is not None and algorithm.hello is None:
        if algorithm.base is None:
            raise FedpointError(
                f"{title} needs a fusion center: on a network run FedGD, FedSGD, FedRelax, FedAvg or FedProx"
            )
        if network.degrees.max(initial=0.0) > 1 + 1e-12:
            node = network.names[int(network.degrees.argmax())]
            raise FedpointError(
                f"{title} on a network averages with the weights of the edges, which must sum to at most 1 at every "
                f"node; at {node} they sum to {network.degrees.max():.3g}: use network.metropolis()"
            )


def check_valid(algorithm: Any, participation: Any) -> None:
    """Refuse a participation under which the method is not valid, with the reason."""
    card = type(algorithm).card
    for name in scheme_names(participation):
        if card.participation is not None and name not in card.participation:
            raise FedpointError(
                f"{card.title} cannot run with participation {name}: {card.restriction}. "
                f"Use {' or '.join(card.participation)}."
            )


def solution_of(algorithm: Any, problem: Any, network: Any) -> Any:
    """What a run is after, or None; on a network it leads with the nodes. This may read all data."""
    aim = algorithm.aim(problem, network)
    if aim is None or network is None or algorithm.hello is not None:
        return aim
    return jax.tree.map(lambda a: np.broadcast_to(a, (problem.agents, *np.shape(a))), aim)


def cast(tree: Any, dtype: Any) -> Any:
    """Floats of a tree in the model's precision; whole numbers as they are."""
    return jax.tree.map(
        lambda a: np.asarray(a, dtype) if np.issubdtype(np.asarray(a).dtype, np.floating) else np.asarray(a),
        tree,
    )


@partial(jax.jit, static_argnames=("wiring", "counted"))
def _start_network(algorithm: Any, models: Any, wiring: Any, wires: Any, counted: bool) -> State:
    return start_network(algorithm, models, wiring, wires, counted)


class Session:
    """The algorithm at work on the problem. `advance(n)` goes on; everything is a function of seed and inputs."""

    sums: str | None = None  # how messages are added, where that is not left to the compiler
    stated: dict[str, Any] | None = None  # what a folder states about the problem, where somebody has read all of it

    def __init__(
        self,
        algorithm: Any,
        problem: Any,
        participation: Any,
        start: Any,
        exact: bool,
        seed: int,
        repeats: int,
        every: int,
        swept: Any = None,
        network: Any = None,
    ):
        cache.enable()
        check_place(algorithm, network)
        check_valid(algorithm, participation)
        exact = exact or algorithm.full
        self.problem, self.seed, self.repeats, self.every = problem, seed, repeats, every
        self.exact = exact
        self.algorithm = bind_algorithm(algorithm, problem)
        self.network, self.given = network, participation
        self.round, self.ready = 0, 0  # the round reached; timetables are good for so many
        self.seconds = 0.0
        self.first = (0, 0.0)  # rounds and seconds of the first segment, which compiles
        self.swept = swept is not None
        self.repeats_each = lanes = repeats
        if swept is not None:
            lanes = len(jax.tree.leaves(swept)[0])
            self.repeats = lanes
        self.lanes = lanes
        self.start = jax.tree.map(np.asarray, start)  # on a network it leads with the nodes
        node = self.start if network is None else jax.tree.map(lambda a: a[0], self.start)
        dtype = np.result_type(*jax.tree.leaves(self.start))
        self.participation = self._bound(1)
        with jax.enable_x64(True):
            oracle = problem.prepare(self.algorithm)
            wiring, wires = (None, ()) if network is None else wire(network, self._depth(1))
            self.layout = choose(oracle, self.algorithm, problem, self.participation, node, exact, lanes, wiring)
            traced = cast(self.algorithm if swept is None else swept, dtype)
            own = problem.own_for(self.algorithm)
            inputs = Inputs(traced, self._timetables(), own, problem.common, problem.weights, wires)
            # A sweep has the same draws at every point: differences are the hyper-parameter's.
            self.seeds = jax.tree.map(lambda a: np.tile(a, lanes // repeats), seeds_of(seed, repeats))
            one = traced if swept is None else jax.tree.map(lambda a: a[0], traced)
            self.message = message_of(one, wrap(node), self.layout, inputs)
            self.layout = enough_samples(self.layout, one, self.message.evaluations)
            self._begin(inputs)

    def _begin(self, inputs: Inputs) -> None:
        """Put everything where it is worked on: numbers and the state before the first round."""
        self.inputs = jax.device_put(inputs)
        if self.swept:  # a hyper-parameter may enter the initial state
            self.state = jax.vmap(self._start)(inputs.algorithm)
        else:
            one = self._start(inputs.algorithm)
            self.state = jax.device_put(
                jax.tree.map(lambda a: np.repeat(np.asarray(a)[None], self.repeats, axis=0), one)
            )
        self.state = self.state._replace(world=start_worlds(self.layout, self.inputs, self.seeds))

    def _start(self, algorithm: Any) -> State:
        """The state before the first round."""
        model, counted = wrap(self.start), self.message.used is None
        if self.network is None:
            return start_state(algorithm, model, self.problem.agents, counted, self.layout.late)
        return _start_network(algorithm, model, self.layout.wiring, self.inputs.wires, counted)

    # Timetables: schedules that are worked out beforehand are good for so many rounds, and then for more.

    def _bound(self, rounds: int) -> Any:
        if self.network is not None:
            return self.given.bind(self.network, self.seed, self.repeats_each, rounds)
        if getattr(self.given, "timetable", False):
            return self.given.timed(self.problem, self.algorithm, self.seed, self.repeats_each, rounds)
        return self.given.bind(self.problem, self.algorithm, self.exact)

    def _depth(self, rounds: int) -> int:
        return power_of_two(self.participation.depth(rounds))

    def _timetables(self) -> Any:
        """The participation as the program gets it."""
        if not self.participation.per_repeat or not self.swept:
            return self.participation
        return jax.tree.map(
            lambda a: np.tile(a, (self.lanes // self.repeats_each, *(1,) * (a.ndim - 1))), self.participation
        )

    def prepare(self, rounds: int) -> None:
        """Timetables and room for late messages up to a round."""
        if rounds <= self.ready:
            return
        self.ready = power_of_two(rounds)
        self.participation = self._bound(self.ready + 1)  # hubs of a network hear for the tick after the last
        depth = getattr(self.participation, "late", 0) if self.network is None else self._depth(self.ready)
        self._retime()
        self._deepen(depth)

    def _retime(self) -> None:
        """Give the program its new timetables."""
        with jax.enable_x64(True):
            self.inputs = self.inputs._replace(participation=jax.device_put(self._timetables()))

    def _deepen(self, depth: int) -> None:
        """Room for so many messages of each sender."""
        wiring, late = self.layout.wiring, self.layout.late
        if wiring is None:
            late = max(late, power_of_two(depth)) if late else 0
        else:
            wiring = replace(wiring, depth=max(wiring.depth, depth))
        self.layout = replace(self.layout, wiring=wiring, late=late)
        with jax.enable_x64(True):
            mail = deepen(self.state.mail, late if wiring is None else wiring.depth)
        self.state = self.state._replace(mail=mail)

    def times(self, rounds: np.ndarray) -> np.ndarray:
        """(repeats, n): virtual seconds at the end of these rounds; a round is one where there is no clock."""
        self.prepare(int(rounds.max(initial=0)))
        clock = getattr(self.participation, "clock", None)
        if clock is None:
            return np.broadcast_to(rounds.astype(float), (self.repeats, len(rounds)))
        table = np.concatenate([np.zeros((len(clock), 1)), clock], axis=1)
        return np.tile(table[:, rounds], (self.lanes // self.repeats_each, 1))

    @cached_property
    def solution(self) -> Any:
        return solution_of(self.algorithm, self.problem, self.network)

    def used(self, rounds: np.ndarray, records: Any) -> np.ndarray:
        """(repeats, n, 3): models sent, answers and field evaluations up to the recorded rounds."""
        if self.message.used is None:
            return np.asarray(records)
        return np.broadcast_to(np.outer(rounds, self.message.used), (self.repeats, len(rounds), 3))

    def _call(self, rounds: int) -> Records:
        """Go on by so many rounds; the records that fall into them, on the host."""
        first, last = self.round, self.round + rounds
        with uncollected():  # the first call traces
            self.state, records = go_on(
                self.layout,
                self.swept,
                self.inputs,
                self.state,
                self.seeds,
                first,
                rounds,
                self.every,
                wrap(self.start),
            )
        count = last // self.every - first // self.every
        self.round = last
        kept = jax.tree.map(lambda a: np.asarray(a)[:, :count], Records(unwrap(records.model), records.used))
        # A view would keep the room for all records of a segment, which is mostly empty.
        return kept if count == self.layout.capacity else jax.tree.map(np.copy, kept)

    def advance(
        self,
        rounds: int,
        stop: Callable[[int, Any, np.ndarray | None], bool] | None = None,
        callbacks: Iterable[Callable[[Progress], Any]] = (),
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
        return at, Records(records.model, self.used(at, records.used))

    def _next_size(self, size: int, took: float) -> int:
        """Segments of about the patience; the first one compiles and says nothing about the rounds."""
        if took < PATIENCE or self.round == self.first[0]:
            return size * 8
        return max(1, size // 2) if took > 4 * PATIENCE else size

    def model(self) -> Any:
        """The current model, one per repeat: the global one, or on a network one for each node."""
        with jax.enable_x64(True):
            read = self.algorithm.read if self.network is None else jax.vmap(self.algorithm.read)
            read = jax.vmap(read)(self.state.hub, self.state.memory)
        return jax.tree.map(np.asarray, unwrap(read))

    def memories(self) -> Any:
        """What agents keep, (repeats, agents, ...), completed by what they would hear next."""
        return jax.tree.map(np.asarray, unwrap_all(self.settled()))

    def settled(self) -> Any:
        """The same as the algorithm holds it."""
        state = self.whole()
        with jax.enable_x64(True):

            def settled(algorithm, hub, memory):
                if self.network is not None:
                    return jax.vmap(algorithm.settle)(hub, memory)
                return jax.vmap(lambda m: algorithm.settle(hub, m), axis_size=self.problem.agents)(memory)

            axes = (0 if self.swept else None, 0, 0)
            return jax.vmap(settled, in_axes=axes)(self.traced(), state.hub, state.memory)

    def whole(self) -> State:
        """The state, of all agents."""
        return self.state

    def traced(self) -> Any:
        """The algorithm with its numbers as the program has them."""
        return self.inputs.algorithm

    def errors(self, models: Any) -> np.ndarray | None:
        """Squared distance to the solution, over all but the two leading axes; on a network a mean over the nodes."""
        if self.solution is None:
            return None
        total = 0.0
        nodes = 1 if self.network is None else self.problem.agents
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
        name = type(self.algorithm).card.title
        step = getattr(self.algorithm, "step", None)
        text = f"{name} diverged: the model left the finite numbers by round {round}"
        if isinstance(step, float):
            text += f" with step {step:g}"
        if self.algorithm.hello is not None:
            return text + self._network_advice()
        limits = self._largest_steps()
        if limits is not None and not limits.min() > 0:
            return text + f"; agent {self.problem.names[int(limits.argmin())]} is unstable for every step."
        if limits is not None:
            noise = "" if self.exact else "; sampled fields and few participants allow less"
            strictest = self.problem.names[int(limits.argmin())]
            text += f"; with exact fields the largest stable step here is {limits.min():.4g} (agent {strictest}){noise}"
        return text + ". Take a smaller step."

    def _network_advice(self) -> str:
        """What a method for networks needs: a step that the coupling allows, a minimiser for nodes without an edge."""
        if not hasattr(self.algorithm, "step"):
            alone = ", ".join(self.network.isolated[:5])
            return f"; a node without any edge ({alone}) needs a loss with one minimiser." if alone else "."
        from fedpoint.theory.networks import step_limit

        try:
            limit = step_limit(self.problem, self.network, self.algorithm.coupling)
        except FedpointError:
            return ". Take a smaller step."
        return f"; with exact fields and all in step the largest stable step here is {limit:.4g}. Take a smaller step."

    def _largest_steps(self) -> np.ndarray | None:
        """(K,): up to which step each agent's own steps settle, in units of the algorithm's step."""
        limits = self.problem.step_limits()
        if limits is None:
            return None
        steps = getattr(self.algorithm, "local_steps", 1)
        normalised = getattr(self.algorithm, "normalise", False)
        scale = np.asarray(getattr(steps, "steps", steps), dtype=float) if normalised else 1.0
        return limits * scale

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


__all__ = ["Progress", "Session", "State", "flatten", "unflatten"]
