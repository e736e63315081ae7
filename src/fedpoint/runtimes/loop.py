"""FedRelax for any model, in a plain loop: in each tick the nodes whose turn it is fit again to what they have heard.

The state is what every node predicts on its shared points. Fitted models are not arrays: those of the last round are
kept, none is ever saved, and each is a function of the labels it was fitted to and of its random state.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpoint.core.mail import power_of_two
from fedpoint.core.random import Key
from fedpoint.errors import FedpointError
from fedpoint.metrics import Cost, Fairness, fairness
from fedpoint.problems.any_model import AnyModel
from fedpoint.runtimes.session import HISTORY_BYTES, Progress
from fedpoint.runtimes.simulation import Message
from fedpoint.runtimes.state import SCHEDULE

MODELS = 3  # purpose of random numbers: the models' random states


class Exchange:
    """Who says what to whom: predictions of all nodes in one flat array, each node's one after the other.

    With one set of shared points a node predicts all of them; with sets by edge, those of its edges, in the order of
    the arcs by which it hears. So a node hears as many labels as it has points, either way. On an arc's points its
    speaker's predictions begin at `start`, its hearer's at `place`, and there are `sizes` of them.
    """

    def __init__(self, problem: AnyModel, network: Any, coupling: float):
        self.problem, self.network, self.coupling = problem, network, coupling
        arcs, K = network.arcs, network.nodes
        self.common, self.says = problem.points is not None, arcs.says
        if problem.points is not None:
            self.sizes = np.full(len(arcs.says), len(problem.points))
            self.first = np.arange(K + 1) * len(problem.points)
            self.start, self.place = self.first[arcs.says], self.first[arcs.hears]
            self.points = [problem.points] * K
        else:
            sets = self._sets()
            self.sizes = np.array([len(s) for s in sets], dtype=int)
            ends = np.concatenate([[0], np.cumsum(self.sizes)])
            self.first = ends[arcs.first]
            number = {(int(i), int(j)): a for a, (i, j) in enumerate(zip(arcs.hears, arcs.says, strict=True))}
            back = [number[int(j), int(i)] for i, j in zip(arcs.hears, arcs.says, strict=True)]
            self.start, self.place = ends[np.array(back, dtype=int)], ends[:-1]
            none = np.zeros((0, problem.columns))
            self.points = [np.concatenate([none, *sets[a:b]]) for a, b in zip(arcs.first, arcs.first[1:], strict=False)]
        classes = () if problem.classes is None else (len(problem.classes),)
        self.shape = (int(self.first[-1]), *classes)
        self.width = math.prod(classes)  # numbers for each point
        self.neighbours = np.diff(arcs.first)
        self.numbers = self.width * np.bincount(arcs.says, self.sizes, minlength=K).astype(np.int64)

    def _sets(self) -> list[np.ndarray]:
        """The points of each arc's edge."""
        edges = {(int(i), int(j)) for i, j in self.network.edges}
        names = self.problem.names
        for i, j in sorted(set(self.problem.edge_points) - edges):
            raise FedpointError(f"there are shared points for {names[i]} and {names[j]}, which are no neighbours")
        for i, j in sorted(edges - set(self.problem.edge_points)):
            raise FedpointError(f"the edge between {names[i]} and {names[j]} has no shared points")
        pairs = zip(self.network.arcs.hears, self.network.arcs.says, strict=True)
        return [self.problem.edge_points[min(i, j), max(i, j)] for i, j in ((int(i), int(j)) for i, j in pairs)]

    def own(self, i: int) -> slice:
        """Node i's place in the flat array."""
        return slice(int(self.first[i]), int(self.first[i + 1]))

    def arcs_of(self, i: int) -> range:
        return range(int(self.network.arcs.first[i]), int(self.network.arcs.first[i + 1]))

    def labels(self, i: int, known: Sequence[np.ndarray]) -> np.ndarray:
        """What node i's points are labelled with: the neighbours' weighted mean sum_j A_ij h_j(x)/d_i on common points,
        on an edge's points what the neighbour says. `known`: for each of its arcs, all that the neighbour has said."""
        arcs = self.arcs_of(i)
        begin = self.start[arcs] - self.first[self.says[arcs]]
        heard = [said[b : b + size] for said, b, size in zip(known, begin, self.sizes[arcs], strict=True)]
        if not self.common:
            return np.concatenate([np.zeros((0, *self.shape[1:])), *heard])
        weight = self.network.arcs.weight[self.arcs_of(i)]
        return np.tensordot(weight / weight.sum(), np.stack(heard), 1)

    def weights(self, i: int) -> np.ndarray:
        """The weights of node i's points where an own row weighs 1: alpha d_i m_i/m', or alpha A_ij m_i/m'_ij."""
        arcs = self.arcs_of(i)
        scale = self.coupling * len(self.problem.y[i])
        if self.common:
            size = len(self.points[i])
            return np.full(size, scale * self.network.degrees[i] / size)
        sizes = self.sizes[arcs]
        return scale * np.repeat(self.network.arcs.weight[arcs] / sizes, sizes)

    def variation(self, said: np.ndarray) -> np.ndarray:
        """sum over edges of A_ij (1/m') sum_x |h_i(x) - h_j(x)|^2, of (..., flat array)."""
        flat = said.reshape(-1, *self.shape)
        total = np.zeros(len(flat))
        arcs = self.network.arcs
        for a in np.flatnonzero(arcs.hears < arcs.says):
            n, here, there = self.sizes[a], self.place[a], self.start[a]
            gap = flat[:, here : here + n] - flat[:, there : there + n]
            total += arcs.weight[a] / n * (gap**2).reshape(len(flat), -1).sum(1)
        return total.reshape(said.shape[: said.ndim - len(self.shape)])

    def shaped(self, said: np.ndarray) -> np.ndarray:
        """(..., K, m') where all nodes predict the same points, else flat."""
        lead = said.shape[: said.ndim - len(self.shape)]
        return said.reshape(*lead, self.network.nodes, -1, *self.shape[1:]) if self.common else said


class Tick(NamedTuple):
    """Who works in a tick, and how many ticks old is what each node hears, in the order of its arcs."""

    active: np.ndarray  # (K,) bool
    age: np.ndarray  # (K, most neighbours)


def ticker(schedule: Any, network: Any, seed: int, aged: bool) -> Callable[[int, int], Tick]:
    """A function (repeat, tick) -> Tick. Without a schedule all work in every tick, and nothing is old (not `aged`)."""
    K, arcs = network.nodes, network.arcs
    width = max(int(np.diff(arcs.first).max(initial=0)), 1)
    fresh = np.zeros((K, width), int)
    aged = aged and len(arcs.says) > 0
    if schedule is None or not schedule.drawn:
        return lambda repeat, tick: Tick(np.ones(K, bool), fresh)

    @cache
    def of(repeat: int) -> tuple[Any, Key]:
        own = jax.tree.map(lambda a: jnp.asarray(a[repeat]), schedule) if schedule.per_repeat else schedule
        return own, Key.of(seed, repeat, SCHEDULE)

    def drawn(repeat: int, tick: int) -> Tick:
        with jax.enable_x64(True):
            who, heard, old = map(np.asarray, _draw(*of(repeat), tick, arcs.first, arcs.says, width, aged))
        active, age = np.zeros(K, bool), fresh.copy()
        active[who[heard]] = True
        if aged:
            age[who[heard]] = old[heard]
        return Tick(active, age)

    return drawn


@partial(jax.jit, static_argnums=(5, 6))
def _draw(schedule: Any, key: Key, tick: Any, first: Any, says: Any, width: int, aged: bool) -> tuple[Any, Any, Any]:
    """Nodes in their places, which of these work, and the ages of what each hears."""
    turn = schedule.turn(key, tick, len(first) - 1)
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

    def __init__(self, algorithm: Any, problem: AnyModel, network: Any, schedule: Any, seed: int, repeats: int):
        self.algorithm, self.problem, self.network, self.schedule = algorithm, problem, network, schedule
        self.seed, self.repeats = seed, repeats
        self.exchange = Exchange(problem, network, float(algorithm.coupling))
        self.bound: Any = None
        self.tick = ticker(None, network, seed, False)
        self.depth, self.ready = 1, 0  # messages of a node that may be heard; timetables are good for so many rounds
        self.round, self.seconds = 0, 0.0
        K = problem.agents
        self.said = np.zeros((repeats, *self.exchange.shape))
        self.heard, self.fitted = np.zeros_like(self.said), np.zeros((repeats, K), int)
        self.models: list[list[Any]] = [[None] * K for _ in range(repeats)]
        self.losses = np.zeros((repeats, K))
        self.used = np.zeros((repeats, 3), np.int64)  # messages, numbers in them, fits
        each = self.exchange.numbers.sum() // max(len(network.arcs.says), 1)
        self.message = Message(0, int(each), 8, None, None)  # with sets by edge a mean; `LoopRun.floats` is exact
        self.mail = Mail(repeats, K)
        for r in range(repeats):
            self._work(r, np.ones(K, bool))

    def prepare(self, rounds: int) -> None:
        """A timetable up to a round, and how many versions of what was said it needs."""
        if self.schedule is not None and rounds > self.ready:
            self.ready = power_of_two(rounds)
            self.bound = self.schedule.bind(self.network, self.seed, self.repeats, self.ready)
            self.depth = max(self.depth, int(self.bound.depth(self.ready)))
            self.tick = ticker(self.bound, self.network, self.seed, self.depth > 1)

    def times(self, rounds: np.ndarray) -> np.ndarray:
        """(repeats, n): virtual seconds at the end of these rounds; a round is one where there is no clock."""
        clock = getattr(self.bound, "clock", None)
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


class LoopRun:
    """The result of FedRelax with any models.

    rounds: (n,) the recorded rounds; in round 0 every node has fitted alone. history: what nodes predict on the shared
    points, (repeats, n, K, m'), with a last axis of classes for classifiers; with sets by edge (repeats, n, S), each
    node's points one after the other. models: a fitted model for each node (of the first repeat; `repeat_models` has
    all). local_losses: (repeats, n, K). variation: (repeats, n), sum over edges of A_ij (1/m') sum_x |h_i - h_j|^2.
    """

    error = None
    has_loss = True
    participation = None
    folder = None

    def __init__(self, loop: Loop, every: int, rounds: list[int], parts: dict[str, list[np.ndarray]]):
        self.session, self.every, self._parts = loop, every, parts
        self.algorithm, self.problem, self.seed = loop.algorithm, loop.problem, loop.seed
        self.network, self.schedule = loop.network, loop.schedule
        self.rounds = np.array(rounds)
        said = np.stack(parts["said"], axis=1)
        self.history = loop.exchange.shaped(said)
        self.variation = loop.exchange.variation(said)
        self.local_losses = np.stack(parts["losses"], axis=1)
        counted = np.stack(parts["used"], axis=1)
        self.floats = counted[..., 1]  # (repeats, n): numbers sent
        self.used = np.stack([np.zeros_like(self.floats), counted[..., 0], counted[..., 2]], axis=-1)
        self.repeat_models = [list(models) for models in loop.models]
        self.evaluation: dict[str, np.ndarray] = {}
        self.evaluated_rounds = np.zeros(0, int)
        if parts["metrics"]:
            self.evaluated_rounds = self.rounds
            rows: list[Any] = parts["metrics"]
            self.evaluation = {name: np.array([[m[name] for m in row] for row in rows]).T for name in rows[0][0]}

    @property
    def loss(self) -> np.ndarray:
        """(repeats, n): sum_i (1/m_i) sum_r |y_r - h_i(x_r)|^2 + alpha variation."""
        return self.local_losses.sum(-1) + self.session.exchange.coupling * self.variation

    @property
    def model(self) -> np.ndarray:
        """What nodes predict on the shared points in the end, one per repeat."""
        return self.history[:, -1]

    @property
    def models(self) -> list[Any]:
        return self.repeat_models[0]

    @property
    def cost(self) -> Cost:
        """Whoever has fitted sends its predictions to each neighbour; evaluations are fits. A mean over repeats."""
        messages, fits, floats = (float(a[:, -1].mean()) for a in (self.used[..., 1], self.used[..., 2], self.floats))
        return Cost(int(self.rounds[-1]), 0.0, messages, 0.0, floats, 0.0, 8 * floats, fits)

    @property
    def fairness(self) -> list[Fairness]:
        """Fairness of each repeat's final local losses over the nodes."""
        return [fairness(losses) for losses in self.local_losses[:, -1]]

    @property
    def time(self) -> np.ndarray:
        """(repeats, n): virtual seconds at the recorded rounds; a round is a second where there is no clock."""
        return self.session.times(self.rounds)

    @property
    def speed(self) -> float:
        return self.session.round / max(self.session.seconds, 1e-9)

    @property
    def engine(self) -> str:
        return "nodes one after the other in Python"

    def _said(self, X: Any, groups: Any, repeat: int = 0) -> np.ndarray:
        return said_by(self.problem, self.repeat_models[repeat], X, groups)

    def predict(self, X: Any, groups: Any = None, repeat: int = 0) -> np.ndarray:
        """Predictions by the model of each row's node, whose names (or numbers) `groups` has.

        Without groups it is not known whose rows these are, and all nodes are asked: the mean of their predictions, or
        the class of the highest mean probability. A warning says so.
        """
        if groups is None:
            warnings.warn("no groups are given: predictions are the mean over all nodes' models", stacklevel=2)
        return self.problem.labels(self._said(X, groups, repeat))

    def predict_proba(self, X: Any, groups: Any = None, repeat: int = 0) -> np.ndarray:
        """(n, classes): the same as probabilities, in the order of `problem.classes`."""
        if self.problem.classes is None:
            raise FedpointError("the models are regressors: they have no probabilities")
        return self._said(X, groups, repeat)

    def evaluate(self, X: Any, y: Any, groups: Any = None, repeat: int = 0) -> dict[str, float]:
        """Metrics of the final models on held-out rows: mse, or accuracy and Brier's score."""
        return self.problem.measure(self._said(X, groups, repeat), y)

    def extend(self, rounds: int, stop: Any = None, callbacks: Any = (), evaluate: Any = None) -> LoopRun:
        """The same run, gone on to `rounds` rounds in all."""
        if rounds <= self.session.round:
            raise FedpointError(f"the run has {self.session.round} rounds already: extend it to more")
        if int(self.rounds[-1]) != self.session.round:
            raise FedpointError("this run was extended before: extend the longer one")
        return _go_on(self, rounds, stop, callbacks, evaluate)

    def plot(self, path: str | None = None, what: str = "loss", x: str = "rounds", title: str | None = None):
        """Draw the curves; saved when `path` is given (png, svg or pdf)."""
        from fedpoint.report.plots import curves

        return curves([self], path=path, what=what, x=x, title=title)

    def _repr_html_(self) -> str:
        from fedpoint.report.html import run_html

        return run_html(self)

    def __repr__(self) -> str:
        loss = f"loss {self.loss[:, -1].mean():.3g}"
        return f"<LoopRun FedRelax: {int(self.rounds[-1])} rounds, {len(self.history)} repeats, {loss}>"


def said_by(problem: AnyModel, models: list[Any], X: Any, groups: Any) -> np.ndarray:
    """What each row's own node says of it; without groups the mean over nodes."""
    X = problem.check_rows(X)
    if groups is None:
        return np.mean([problem.say(k, model, X) for k, model in enumerate(models)], axis=0)
    groups = np.asarray(groups)
    if groups.shape != (len(X),):
        raise FedpointError(f"groups has shape {groups.shape}, but there are {len(X)} rows: one node's name a row")
    said = np.zeros((len(X),) if problem.classes is None else (len(X), len(problem.classes)))
    for name in np.unique(groups):
        k, rows = problem.node(name.item() if hasattr(name, "item") else name), groups == name
        said[rows] = problem.say(k, models[k], X[rows])
    return said


def run_any(
    algorithm: Any,
    problem: AnyModel,
    network: Any = None,
    rounds: int = 100,
    schedule: Any = None,
    seed: int = 0,
    repeats: int = 1,
    record_every: int | None = None,
    evaluate: Any = None,
    stop: Any = None,
    callbacks: Any = (),
    **others: Any,
) -> LoopRun:
    """`fp.run` for `AnyModel`. What is there for models that are arrays only (`others`) is refused.

    evaluate: held-out data (X, y, groups), or a function of the list of models -> {name: number}, for every record.
    stop: a tolerance on the mean squared change of predictions, from one time that all nodes have answered to all that
        was said to the next (synchronously: from round to round), or a function (round, predictions, None) -> bool.
    """
    card = getattr(type(algorithm), "card", None)
    if getattr(card, "name", None) != "fedrelax":
        title = getattr(card, "title", type(algorithm).__name__)
        raise FedpointError(f"{title} cannot run with models that only fit and predict: use fp.FedRelax(coupling=...)")
    for name, value in others.items():
        if value is not None and value is not False:
            raise FedpointError(f"{name}= is not for models that only fit and predict: leave it out")
    if network is None:
        raise FedpointError("AnyModel needs a network of neighbours: give network=, for instance fp.Network.ring(K)")
    network = network.aligned(problem.names)
    loop = Loop(algorithm, problem, network, schedule, int(seed), repeats)
    every = record_every or max(1, math.ceil(loop.said.nbytes * (rounds + 1) / HISTORY_BYTES))
    parts: dict[str, list[Any]] = {"said": [], "losses": [], "used": [], "metrics": []}
    _record(loop, parts, evaluate)
    return _go_on(LoopRun(loop, every, [0], parts), rounds, stop, callbacks, evaluate)


def _go_on(begun: LoopRun, rounds: int, stop: Any, callbacks: Any, evaluate: Any) -> LoopRun:
    """Put the records of more rounds behind those of a run."""
    loop, every = begun.session, begun.every
    at, parts = begun.rounds.tolist(), {name: list(values) for name, values in begun._parts.items()}
    if at[-1] % every:  # a last record off the grid is replaced by the grid's own
        at, parts = at[:-1], {name: values[:-1] for name, values in parts.items()}

    def keep() -> None:
        if loop.round % every == 0:
            at.append(loop.round)
            _record(loop, parts, evaluate)

    loop.advance(rounds, stop, callbacks, keep)
    if at[-1] != loop.round:  # the end is always recorded
        at.append(loop.round)
        _record(loop, parts, evaluate)
    return LoopRun(loop, every, at, parts)


def _record(loop: Loop, parts: dict[str, list[Any]], evaluate: Any) -> None:
    parts["said"].append(loop.said)
    parts["losses"].append(loop.losses.copy())
    parts["used"].append(loop.used.copy())
    if evaluate is None:
        return
    measured = []
    for models in loop.models:
        if callable(evaluate):
            found = evaluate(models)
            if not isinstance(found, dict):
                raise FedpointError(f"evaluate= must return a dictionary of numbers, got {found!r}")
        else:
            X, y, *groups = evaluate
            found = loop.problem.measure(said_by(loop.problem, models, X, groups[0] if groups else None), y)
        measured.append({name: float(value) for name, value in found.items()})
    parts["metrics"].append(measured)
