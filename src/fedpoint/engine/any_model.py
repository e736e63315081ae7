"""FedRelax for any model, in a plain loop: in each tick the nodes whose turn it is fit again to what they have heard.

The state is what every node predicts on its shared points. Fitted models are not arrays: those of the last round are
kept, none is ever saved, and each is a function of the labels it was fitted to and of its random state.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.arrays import array_of
from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import there_are
from fedpoint.core.precision import double
from fedpoint.core.random import Key
from fedpoint.core.record import values_of
from fedpoint.core.types import Data, Model, State, Tree
from fedpoint.engine.base import Engine, Enough, Measure, measured
from fedpoint.engine.exchange import Exchange
from fedpoint.engine.state import SCHEDULE, Records, RunState, Traffic
from fedpoint.experiment.experiment import HISTORY_BYTES, Experiment
from fedpoint.graphs.network import Network
from fedpoint.metrics.held_out import parts_of
from fedpoint.problems.any_model import AnyModel, Heard
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

    @double
    def drawn(repeat: int, tick: int) -> Working:
        who, heard, old = map(np.asarray, _draw(*of(repeat), tick, arcs.first, arcs.says, width, aged))
        active, age = np.zeros(K, bool), fresh.copy()
        active[who[heard]] = True
        if aged:
            age[who[heard]] = old[heard]
        return Working(active, age)

    return drawn


@partial(jax.jit, static_argnums=(5, 6))
def _draw(
    schedule: Timing, key: Key, tick: Array, first: Array, says: Array, width: int, aged: bool
) -> tuple[Array, Array, Array | tuple]:
    """Nodes in their places, which of these work, and the ages of what each hears."""
    turn = schedule.tick(key, jnp.ones(len(first) - 1), tick)
    who = jnp.arange(len(first) - 1) if turn.agents is None else turn.agents
    if not aged:
        return who, turn.heard, ()
    arc = jnp.minimum(first[who][:, None] + jnp.arange(width), len(says) - 1)  # a place too many is never read
    return who, turn.heard, schedule.age(key, tick, arc, says[arc])


class Predictions:
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
            "messages that are due now were sent too long ago to be kept: run all rounds at once, without extend"
        )


class AnyModelSession(Engine):
    """FedRelax at work on models that only fit and predict.

    said: what all nodes say, (repeats, flat). heard: the labels each node's model was fitted to, in the same order.
    fitted_in: the round in which it was, 0 for alone. Version k of what is said is the one before tick k, round k.
    """

    def __init__(self, experiment: Experiment, rounds: int) -> None:
        assert experiment.network is not None  # the experiment has checked both
        self.task: AnyModel = experiment.problem  # type: ignore[assignment]
        self.graph: Network = experiment.network
        repeats, K = experiment.repeats, self.task.agents
        self.exchange = Exchange(self.task, self.graph, float(values_of(experiment.algorithm)["coupling"]))
        self.said = np.zeros((repeats, *self.exchange.shape))
        every = experiment.record_every or max(1, math.ceil(self.said.nbytes * (rounds + 1) / HISTORY_BYTES))
        super().__init__(experiment, every)
        self._timing = experiment.timing
        self.tick = ticker(Synchronous(), self.graph, self.seed, False)
        self.depth, self.ready = 1, 0  # messages of a node that may be heard; timetables are good for so many rounds
        self.heard, self.fitted_in = np.zeros_like(self.said), np.zeros((repeats, K), int)
        self.models: list[list[Tree]] = [[None] * K for _ in range(repeats)]
        self.local_losses = np.zeros((repeats, K))
        self.used = np.zeros((repeats, 3), np.int64)  # messages, numbers in them, fits
        self.answered = np.full((repeats, K), -1)  # the latest version that a node has fitted to all of
        self.mail = Predictions(repeats, K)
        self._measure: Measure | None = None
        for r in range(repeats):
            self._work(r, np.ones(K, bool))

    @property
    def timing(self) -> Timing:
        return self._timing

    @property
    def message(self) -> Traffic:
        """With points by edge, messages differ: of a mean size."""
        messages, numbers, _ = self.used.sum(0)
        up = float(numbers / messages) if messages else 0.0
        return Traffic(0, up, 8, 8 * up)

    def explain(self) -> str:
        return "nodes one after the other in Python"

    def prepare(self, rounds: int) -> None:
        if rounds > self.ready:
            self.ready = power_of_two(rounds)
            context = Context(self.problem, self.algorithm, self.graph, self.exact, self.seed, self.repeats, self.ready)
            self._timing = self.experiment.timing.bind(context)
            self.depth = max(self.depth, int(self.timing.depth(self.ready)))
            self.tick = ticker(self.timing, self.graph, self.seed, self.depth > 1)

    @double
    def _states(self, repeat: int, round: int) -> np.ndarray:
        """(K,): random states of models fitted in a round."""
        if not self.task.draws:
            return np.zeros(self.task.agents, int)
        words = Key.of(self.seed, repeat, MODELS).fold(round).row().words((self.task.agents,))[0]
        return np.asarray(words).astype(int) >> 1

    def refit(self, repeat: int, i: int) -> Tree:
        """A node's model again, from the labels it heard and the round in which it was fitted."""
        round = int(self.fitted_in[repeat, i])
        return self._fit(repeat, i, int(self._states(repeat, round)[i]))

    def _fit(self, r: int, i: int, state: int) -> Tree:
        if self.fitted_in[r, i] == 0 or self.exchange.neighbours[i] == 0:
            return self.task.fit(i, state)
        exchange = self.exchange
        heard = Heard(exchange.points[i], self.heard[r, exchange.own(i)], exchange.weights(i))
        return self.task.fit(i, state, heard)

    def _work(self, r: int, active: np.ndarray) -> None:
        """Fit the active nodes to what they have heard, and send what they say."""
        states, exchange = self._states(r, self.round), self.exchange
        for i in map(int, np.flatnonzero(active)):
            self.fitted_in[r, i] = self.round
            model = self.models[r][i] = self._fit(r, i, int(states[i]))
            if len(exchange.points[i]):
                self.said[r, exchange.own(i)] = self.task.say(i, model, exchange.points[i])
            self.local_losses[r, i] = self.task.local_loss(i, model)
            self.mail.post(r, i, self.round, self.said[r, exchange.own(i)].copy(), self.depth)
        count = exchange.neighbours[active].sum(), exchange.numbers[active].sum(), active.sum()
        self.used[r] += np.array(count, np.int64)

    # How it goes on.

    def _step(self) -> None:
        """One tick."""
        k, self.said = self.round, self.said.copy()  # records keep the array as it was
        self.round += 1
        for r in range(self.repeats):
            active, age = self.tick(r, k)
            for i in map(int, np.flatnonzero(active)):
                arcs = self.exchange.arcs_of(i)
                versions = k - age[i, : len(arcs)]
                self.answered[r, i] = max(self.answered[r, i], versions.min(initial=k))
                if len(arcs):
                    known = [self.mail.look(r, j, v) for j, v in zip(self.exchange.says[arcs], versions, strict=True)]
                    self.heard[r, self.exchange.own(i)] = self.exchange.labels(i, known)
            self._work(r, active)

    def segment(self, rounds: int) -> tuple[np.ndarray, Records]:
        begun = time.perf_counter()
        self._step()
        self.pace.add(1, time.perf_counter() - begun)
        if self.round % self.every:
            return np.zeros(0, int), jax.tree.map(lambda a: a[:, :0], self._record())
        return np.array([self.round]), self.now()

    def next_size(self, size: int, took: float) -> int:
        """Fits take their time: progress is told after every round."""
        return 1

    def mark(self) -> RunState | None:
        """Segments are single rounds: nobody returns."""
        return None

    def back(self, round: int, mark: RunState | None) -> None:
        raise FedpointError("models that are not arrays cannot return to an earlier round")

    def _small_change(self, tolerance: float, last: Model) -> Enough:
        """Whether predictions change little on average, from one time that every node has answered to all that was said
        to the next; synchronously from round to round."""
        reference, since = self.said, self.round

        def enough(round: int, model: Model, error: np.ndarray | None) -> bool:
            nonlocal reference, since
            if (self.answered < since).any():
                return False
            change = float(((self.said - reference) ** 2).mean()) if self.said.size else 0.0
            reference, since = self.said, self.round
            return change <= tolerance

        return enough

    # What can be asked.

    def model(self) -> Model:
        """What nodes predict on the shared points."""
        return self.exchange.shaped(self.said)

    def _record(self) -> Records:
        messages, _, fits = self.used.T
        used = np.stack([np.zeros_like(messages), messages, fits], axis=-1)
        metrics = {"local_losses": self.local_losses[:, None].copy(), "variation": self._variation()[:, None]}
        return Records(self.model()[:, None], used[:, None], metrics)

    def _variation(self) -> np.ndarray:
        return self.exchange.variation(self.said)

    def now(self) -> Records:
        self._look()
        return self._record()

    def memories(self) -> State:
        raise FedpointError("models that only fit and predict keep no memories: run.models has the fitted ones")

    def whole(self) -> RunState:
        raise FedpointError("models that only fit and predict have no state in arrays: run.models has the fitted ones")

    def losses(self, records: Records) -> np.ndarray:
        """sum_i (1/m_i) sum_r |y_r - h_i(x_r)|^2 + alpha variation."""
        return records.metrics["local_losses"].sum(-1) + self.exchange.coupling * records.metrics["variation"]

    def agent_losses(self, models: Model, metrics: Mapping[str, np.ndarray]) -> np.ndarray:
        return metrics["local_losses"]

    def variation(self, models: Model, metrics: Mapping[str, np.ndarray]) -> np.ndarray | None:
        return metrics["variation"]

    def measure(self, data: Data, new: bool = False) -> Measure:
        """Of the list of a repeat's models, by the model of each row's node; without groups by the mean over nodes."""
        if callable(data):
            return data
        X, y, groups = parts_of(data)
        return lambda models: self.task.measure(self.say(models, X, groups), y)

    def watch(self, measure: Measure) -> None:
        self._measure = measure
        self._look()

    def _look(self) -> None:
        """Measure the current models, where somebody wants it."""
        if self._measure is not None:
            self.watched[self.round] = [measured(self._measure, models) for models in self.models]

    def predict(self, models: list[Tree], X: Data, groups: Data) -> np.ndarray:
        return self.task.labels(self.say(models, X, groups))

    def fitted(self) -> list[list[Tree]]:
        return [list(models) for models in self.models]

    def say(self, models: list[Tree], X: Data, groups: Data) -> np.ndarray:
        """What each row's own node says of it; without groups the mean over nodes."""
        task, X = self.task, self.task.check_rows(X)
        if groups is None:
            return np.mean([task.say(k, model, X) for k, model in enumerate(models)], axis=0)
        groups = array_of("groups", groups)
        if groups.shape != (len(X),):
            raise FedpointError(
                f"groups has shape {groups.shape}, but {there_are(len(X), 'row')}: one node's name a row"
            )
        said = np.zeros((len(X),) if task.classes is None else (len(X), len(task.classes)))
        for name in np.unique(groups):
            k, rows = task.node(name.item() if isinstance(name, np.generic) else name), groups == name
            said[rows] = task.say(k, models[k], X[rows])
        return said

    # Durable form: arrays. Models are fitted again.

    def save(self) -> dict[str, np.ndarray]:
        boxes = [box for boxes in self.mail.box for box in boxes]  # by repeat and node
        return {
            "said": self.said,
            "heard": self.heard,
            "fitted": self.fitted_in,
            "losses": self.local_losses,
            "used": self.used,
            "answered": self.answered,
            "kept": np.array([len(box) for box in boxes]),
            "versions": np.array([version for box in boxes for version, _ in box]),
            "messages": np.concatenate([said for box in boxes for _, said in box]),
        }

    def restore(self, arrays: Mapping[str, np.ndarray], round: int) -> None:
        if arrays["heard"].shape != self.heard.shape or arrays["fitted"].shape != self.fitted_in.shape:
            raise FedpointError("the saved state does not fit this run: it has other nodes or shared points")
        self.said, self.heard, self.fitted_in = (np.array(arrays[name]) for name in ("said", "heard", "fitted"))
        self.local_losses, self.used = np.array(arrays["losses"]), np.array(arrays["used"])
        self.answered, self.round = np.array(arrays["answered"]), round
        kept, versions, messages = iter(arrays["kept"]), iter(arrays["versions"]), np.array(arrays["messages"])
        sizes, place = np.diff(self.exchange.first), 0
        for boxes in self.mail.box:
            for i, box in enumerate(boxes):
                box.clear()
                for _ in range(next(kept)):
                    box.append((int(next(versions)), messages[place : place + sizes[i]]))
                    place += int(sizes[i])
        self.models = [[self.refit(r, i) for i in range(self.task.agents)] for r in range(self.repeats)]
