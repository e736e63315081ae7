"""FedRelax for any model, in a plain loop: in each tick the nodes whose turn it is fit again to what they have heard.

The state is what every node predicts on its shared points. Fitted models are not arrays: those of the last round are
kept, none is ever saved, and each is a function of the labels it was fitted to and of its random state.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.random import Key
from fedpoint.engine.exchange import Exchange
from fedpoint.engine.program import Message
from fedpoint.engine.session import Progress
from fedpoint.engine.state import SCHEDULE
from fedpoint.experiment import Experiment
from fedpoint.graphs.network import Network
from fedpoint.problems.any_model import AnyModel
from fedpoint.timing.base import Context, Timing
from fedpoint.timing.mail import power_of_two
from fedpoint.timing.schedule import Synchronous

MODELS = 3  # purpose of random numbers: the models' random states


class Working(NamedTuple):
    """Who works in a tick, and how many ticks old is what each node hears, in the order of its arcs."""

    active: np.ndarray  # (K,) bool
    age: np.ndarray  # (K, most neighbours)


def ticker(schedule: Timing, network: Network, seed: int, aged: bool) -> Callable[[int, int], Working]:
    """A function (repeat, tick) -> Working. not `aged`: nothing is old."""
    K, arcs = network.nodes, network.arcs
    width = max(int(np.diff(arcs.first).max(initial=0)), 1)
    fresh = np.zeros((K, width), int)
    aged = aged and len(arcs.says) > 0
    if not schedule.drawn:
        return lambda repeat, tick: Working(np.ones(K, bool), fresh)

    @cache
    def of(repeat: int) -> tuple[Timing, Key]:
        own = jax.tree.map(lambda a: jnp.asarray(a[repeat]), schedule) if schedule.per_repeat else schedule
        return own, Key.of(seed, repeat, SCHEDULE)

    def drawn(repeat: int, tick: int) -> Working:
        with jax.enable_x64(True):
            who, heard, old = map(np.asarray, _draw(*of(repeat), tick, arcs.first, arcs.says, width, aged))
        active, age = np.zeros(K, bool), fresh.copy()
        active[who[heard]] = True
        if aged:
            age[who[heard]] = old[heard]
        return Working(active, age)

    return drawn


@partial(jax.jit, static_argnums=(5, 6))
def _draw(schedule: Timing, key: Key, tick: Any, first: Any, says: Any, width: int, aged: bool) -> tuple[Any, Any, Any]:
    """Nodes in their places, which of these work, and the ages of what each hears."""
    turn = schedule.tick(key, jnp.ones(len(first) - 1), tick)
    who = jnp.arange(len(first) - 1) if turn.agents is None else turn.agents
    if not aged:
        return who, turn.heard, ()
    arc = jnp.minimum(first[who][:, None] + jnp.arange(width), len(says) - 1)  # a place too many is never read
    return who, turn.heard, schedule.age(key, tick, arc, says[arc])


class Mail:
    """The last messages of every node, each with the version from which on it held, for those who hear late."""

    def __init__(self, repeats: int, nodes: int):
        self.box: list[list[deque[tuple[int, np.ndarray]]]] = [[deque() for _ in range(nodes)] for _ in range(repeats)]

    def post(self, repeat: int, node: int, version: int, said: np.ndarray, depth: int) -> None:
        box = self.box[repeat][node]
        box.append((version, said))
        while len(box) > depth:
            box.popleft()

    def look(self, repeat: int, node: int, version: int) -> np.ndarray:
        """What a node had said at a version."""
        for since, said in reversed(self.box[repeat][node]):
            if since <= version:
                return said
        raise FedpointError(
            "what is heard now was said too long ago to be kept: run all rounds at once, without extend"
        )


class Loop:
    """A run in progress. `advance` goes on; everything is a function of the seed and the inputs.

    said: what all nodes say, (repeats, flat). heard: the labels each node's model was fitted to, in the same order.
    fitted: the round in which it was, 0 for alone. Version k of what is said is the one before tick k, round k.
    """

    def __init__(self, experiment: Experiment):
        self.experiment, self.algorithm, self.network = experiment, experiment.algorithm, experiment.network
        self.problem: AnyModel = experiment.problem
        self.seed, self.repeats = experiment.seed, experiment.repeats
        problem, network, repeats = self.problem, self.network, self.repeats
        self.exchange = Exchange(problem, network, float(self.algorithm.coupling))
        self.timing = experiment.timing
        self.tick = ticker(Synchronous(), network, self.seed, False)
        self.depth, self.ready = 1, 0  # messages of a node that may be heard; timetables are good for so many rounds
        self.round, self.seconds = 0, 0.0
        K = problem.agents
        self.said = np.zeros((repeats, *self.exchange.shape))
        self.heard, self.fitted = np.zeros_like(self.said), np.zeros((repeats, K), int)
        self.models: list[list[Any]] = [[None] * K for _ in range(repeats)]
        self.losses = np.zeros((repeats, K))
        self.used = np.zeros((repeats, 3), np.int64)  # messages, numbers in them, fits
        each = self.exchange.numbers.sum() // max(len(network.arcs.says), 1)
        self.message = Message(
            0, int(each), 8, 8.0 * int(each), None, None
        )  # with sets by edge a mean; `LoopRun.floats` is exact
        self.mail = Mail(repeats, K)
        for r in range(repeats):
            self._work(r, np.ones(K, bool))

    def prepare(self, rounds: int) -> None:
        """A timetable up to a round, and how many versions of what was said it needs."""
        if rounds > self.ready:
            self.ready = power_of_two(rounds)
            context = Context(network=self.network, seed=self.seed, repeats=self.repeats, rounds=self.ready)
            self.timing = self.experiment.timing.bind(context)
            self.depth = max(self.depth, int(self.timing.depth(self.ready)))
            self.tick = ticker(self.timing, self.network, self.seed, self.depth > 1)

    def times(self, rounds: np.ndarray) -> np.ndarray:
        """(repeats, n): virtual seconds at the end of these rounds; a round is one where there is no clock."""
        clock = self.timing.times()
        if clock is None:
            return np.broadcast_to(rounds.astype(float), (self.repeats, len(rounds)))
        return np.concatenate([np.zeros((len(clock), 1)), clock], axis=1)[:, rounds]

    def _states(self, repeat: int, round: int) -> np.ndarray:
        """(K,): random states of models fitted in a round."""
        if not self.problem.draws:
            return np.zeros(self.problem.agents, int)
        with jax.enable_x64(True):
            words = Key.of(self.seed, repeat, MODELS).fold(round).row().words((self.problem.agents,))[0]
        return np.asarray(words).astype(int) >> 1

    def refit(self, repeat: int, i: int) -> Any:
        """A node's model again, from the labels it heard and the round in which it was fitted."""
        round = int(self.fitted[repeat, i])
        return self._fit(repeat, i, int(self._states(repeat, round)[i]))

    def _fit(self, r: int, i: int, state: int) -> Any:
        if self.fitted[r, i] == 0 or self.exchange.neighbours[i] == 0:
            return self.problem.fit(i, state)
        exchange = self.exchange
        return self.problem.fit(i, state, exchange.points[i], self.heard[r, exchange.own(i)], exchange.weights(i))

    def _work(self, r: int, active: np.ndarray) -> None:
        """Fit the active nodes to what they have heard, and send what they say."""
        states, exchange = self._states(r, self.round), self.exchange
        for i in map(int, np.flatnonzero(active)):
            self.fitted[r, i] = self.round
            model = self.models[r][i] = self._fit(r, i, int(states[i]))
            if len(exchange.points[i]):
                self.said[r, exchange.own(i)] = self.problem.say(i, model, exchange.points[i])
            self.losses[r, i] = self.problem.local_loss(i, model)
            self.mail.post(r, i, self.round, self.said[r, exchange.own(i)].copy(), self.depth)
        count = exchange.neighbours[active].sum(), exchange.numbers[active].sum(), active.sum()
        self.used[r] += np.array(count, np.int64)

    def step(self) -> np.ndarray:
        """One tick. Returns (repeats, K): the oldest version that each node heard, -1 for those that did not work."""
        k, self.said = self.round, self.said.copy()  # records keep the array as it was
        self.round += 1
        oldest = np.full((self.repeats, self.problem.agents), -1)
        for r in range(self.repeats):
            active, age = self.tick(r, k)
            for i in map(int, np.flatnonzero(active)):
                arcs = self.exchange.arcs_of(i)
                versions = k - age[i, : len(arcs)]
                oldest[r, i] = versions.min(initial=k)
                if len(arcs):
                    known = [self.mail.look(r, j, v) for j, v in zip(self.exchange.says[arcs], versions, strict=True)]
                    self.heard[r, self.exchange.own(i)] = self.exchange.labels(i, known)
            self._work(r, active)
        return oldest

    def advance(
        self,
        rounds: int,
        stop: Callable[[int, np.ndarray, None], bool] | float | None = None,
        callbacks: Iterable[Callable[[Progress], Any]] = (),
        keep: Callable[[], None] = lambda: None,
    ) -> int:
        """Go on to round `rounds`; `keep` is called after every round. Returns the round reached."""
        callbacks = [callbacks] if callable(callbacks) else list(callbacks)
        enough = None if stop is None else _stopper(stop, self)
        self.prepare(rounds)
        begun, since = time.perf_counter(), self.round
        while self.round < rounds:
            before = time.perf_counter()
            oldest = self.step()
            self.seconds += time.perf_counter() - before
            keep()
            if callbacks:
                spent = time.perf_counter() - begun
                rate = (self.round - since) / max(spent, 1e-9)
                progress = Progress(self.round, rounds, spent, rate, self.exchange.shaped(self.said), None)
                for callback in callbacks:
                    callback(progress)
            if enough is not None and enough(oldest):
                break
        return self.round

    # Durable form: arrays. Models are fitted again.

    def save(self) -> dict[str, np.ndarray]:
        boxes = [box for boxes in self.mail.box for box in boxes]  # by repeat and node
        return {
            "said": self.said,
            "heard": self.heard,
            "fitted": self.fitted,
            "losses": self.losses,
            "used": self.used,
            "round": np.array(self.round),
            "kept": np.array([len(box) for box in boxes]),
            "versions": np.array([version for box in boxes for version, _ in box]),
            "messages": np.concatenate([said for box in boxes for _, said in box]),
        }

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        if arrays["heard"].shape != self.heard.shape or arrays["fitted"].shape != self.fitted.shape:
            raise FedpointError("the saved state does not fit this run: it has other nodes or shared points")
        self.said, self.heard, self.fitted = (np.array(arrays[name]) for name in ("said", "heard", "fitted"))
        self.losses, self.used = np.array(arrays["losses"]), np.array(arrays["used"])
        self.round = int(arrays["round"])
        kept, versions, messages = iter(arrays["kept"]), iter(arrays["versions"]), np.array(arrays["messages"])
        sizes, place = np.diff(self.exchange.first), 0
        for boxes in self.mail.box:
            for i, box in enumerate(boxes):
                box.clear()
                for _ in range(next(kept)):
                    box.append((int(next(versions)), messages[place : place + sizes[i]]))
                    place += int(sizes[i])
        self.models = [[self.refit(r, i) for i in range(self.problem.agents)] for r in range(self.repeats)]


def _stopper(stop: Any, loop: Loop) -> Callable[[np.ndarray], bool]:
    """stop= as a function of how old was what the nodes heard in the last tick."""
    if callable(stop):
        return lambda oldest: bool(stop(loop.round, loop.exchange.shaped(loop.said), None))
    if isinstance(stop, bool) or not (isinstance(stop, int | float) and stop > 0):
        raise FedpointError(f"stop must be a tolerance above 0 or a function, got {stop!r}")
    reference, since, answered = loop.said, loop.round, np.zeros((loop.repeats, loop.problem.agents), bool)

    def enough(oldest: np.ndarray) -> bool:
        """Small change counts only when every node has answered to what was said since the last look."""
        nonlocal reference, since, answered
        answered = answered | (oldest >= since)
        if not answered.all():
            return False
        change = float(((loop.said - reference) ** 2).mean()) if loop.said.size else 0.0
        reference, since, answered = loop.said, loop.round, np.zeros_like(answered)
        return change <= stop

    return enough
