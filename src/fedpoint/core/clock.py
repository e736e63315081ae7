"""How long does work take, and what follows from that? Virtual time: who answers when, worked out before the run.

The order of events depends on durations alone, never on the model. So a timetable is made beforehand, from the seed:
ticks with those whose answers count, how old what they started from is, and the time. It goes on where it ended when a
run is extended.
"""

from __future__ import annotations

import csv
import heapq
import math
from collections import deque
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedpoint.core.mail import power_of_two
from fedpoint.core.participation import Participation, Tick
from fedpoint.core.record import record
from fedpoint.core.schedule import Schedule, Turn, check_chance, check_whole
from fedpoint.errors import FedpointError, nearest

LAWS = ("constant", "exponential", "lognormal")
STREAM = 0x71C7  # of a timetable's random numbers
SHOWN = 10  # mistakes that a message spells out
VAIN = 10_000  # answers lost in a row, from which there is no use in waiting


def _luck(seed: int, repeat: int) -> np.random.Generator:
    return np.random.default_rng([STREAM, seed & (2**64 - 1), repeat])


@record
class Clock:
    """How long an agent works, in virtual seconds: `work` on average (one number, or one per agent), with a law around
    it; a message travels `travel` seconds. `spread` is the standard deviation of the logarithm of a lognormal time."""

    work: Any = 1.0
    law: str = "exponential"
    travel: float = 0.0
    spread: float = 0.5

    def check(self):
        try:
            work = np.asarray(self.work, dtype=float)
        except (TypeError, ValueError):
            work = np.asarray(np.nan)
        if work.ndim > 1 or not (np.isfinite(work).all() and (work > 0).all()):
            raise FedpointError(f"Clock: work must be seconds above 0, one number or one per agent, got {self.work!r}")
        if self.law not in LAWS:
            raise FedpointError(f"Clock: unknown law {self.law!r}: {nearest(str(self.law), LAWS)}")
        for name in ("travel", "spread"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise FedpointError(f"Clock: {name} must be a number, at least 0, got {value!r}")

    @classmethod
    def sample(cls, agents: int, spread: float = 1.0, seed: int = 0, **rest: Any) -> Clock:
        """Agents of different speed: mean times are lognormal around 1, `spread` their logarithm's deviation."""
        times = np.exp(spread * np.random.default_rng([STREAM, seed]).standard_normal(agents))
        return cls(work=times, **rest)

    def fits(self, agents: int) -> None:
        if np.ndim(self.work) and len(self.work) != agents:
            raise FedpointError(f"Clock: {len(self.work)} times for {agents} agents")

    def draw(self, luck: np.random.Generator, agents: Any) -> np.ndarray:
        """Seconds of work of these agents."""
        mean = np.asarray(self.work, dtype=float)
        mean = mean[agents] if mean.ndim else np.full(np.shape(agents), float(mean))
        if self.law == "constant":
            return mean
        if self.law == "exponential":
            return mean * luck.exponential(size=np.shape(agents))
        return mean * np.exp(self.spread * luck.standard_normal(np.shape(agents)) - self.spread**2 / 2)


# How much an old answer counts.


@record
class Constant:
    """s(tau) = 1."""

    def weight(self, age: np.ndarray) -> np.ndarray:
        return np.ones(np.shape(age))


@record
class Polynomial:
    """s(tau) = (1 + tau)^-power."""

    power: float = 0.5

    def check(self):
        if not self.power >= 0:
            raise FedpointError(f"Polynomial: power must be at least 0, got {self.power}")

    def weight(self, age: np.ndarray) -> np.ndarray:
        return (1.0 + np.asarray(age)) ** -float(self.power)


@record
class Hinge:
    """s(tau) = 1 up to tau = after, then 1/(slope (tau - after) + 1)."""

    slope: float = 10.0
    after: float = 4.0

    def check(self):
        if not self.slope >= 0 or not self.after >= 0:
            raise FedpointError("Hinge: slope and after must be at least 0")

    def weight(self, age: np.ndarray) -> np.ndarray:
        late = np.maximum(np.asarray(age, dtype=float) - float(self.after), 0.0)
        return 1.0 / (float(self.slope) * late + 1.0)


# With a fusion center.


@record
class Timetable(Participation):
    """Rounds that were worked out beforehand: arrays lead with repeat and round."""

    per_repeat = True
    abandons = True

    agents: Any  # (R, T, L)
    weight: Any
    share: Any
    heard: Any
    asked: Any  # (R, T)
    merge: Any
    age: Any  # (R, T, L)
    clock: Any  # (R, T) seconds at the end of each round
    late: int  # versions of the hub that are needed; 0 when all answers come in their round
    rebase: bool

    def slots(self, agents):
        return self.agents.shape[-1]

    def tick(self, key, p, round):
        names = ("agents", "weight", "share", "heard", "asked", "merge", "age")
        return Tick(*(getattr(self, name)[round] for name in names))


class _Round:
    """One round on its way into a timetable."""

    __slots__ = ("age", "agents", "asked", "heard", "merge", "open", "time", "weight")

    def __init__(self, agents, weight, heard, asked, merge, age, time, open=0):
        self.open = open  # how many versions ago the oldest question was asked that has no answer yet
        self.agents, self.weight, self.heard = agents, weight, heard
        self.asked, self.merge, self.age, self.time = asked, merge, age, time


class Timed(Participation):
    """A participation on a clock: `rounds(luck, p)` yields them one after the other."""

    timetable = True
    rebase = False

    def rounds(self, luck: np.random.Generator, p: np.ndarray, count: int) -> list[_Round]:
        raise FedpointError(f"{type(self).__name__} has no timetable")

    def timed(self, problem: Any, algorithm: Any, seed: int, repeats: int, rounds: int) -> Timetable:
        p = problem.weights
        self.slots(len(p))
        if self.rebase and algorithm.base is None:
            raise FedpointError(
                f"{type(algorithm).card.title} cannot merge models that come late (models=True): its messages are not "
                "changes of one model; leave models=False"
            )
        tables = [self.rounds(_luck(seed, r), p, rounds) for r in range(repeats)]

        def stack(pick, dtype):
            return np.array([[pick(one) for one in table] for table in tables], dtype=dtype)

        oldest = max(max(int(one.age.max(initial=0)) for one in table) for table in tables)
        oldest = max(oldest, *(table[-1].open for table in tables))  # who is at work still may answer later on
        agents = stack(lambda o: o.agents, np.int32)
        age = stack(lambda o: o.age, np.int32)
        heard = stack(lambda o: o.heard, bool)
        return Timetable(
            agents,
            stack(lambda o: o.weight, float),
            np.where(heard, p[agents], 0.0),
            heard,
            stack(lambda o: o.asked, np.int32),
            stack(lambda o: o.merge, bool),
            age,
            stack(lambda o: o.time, float),
            power_of_two(oldest + 1) if self.ages else 0,
            self.rebase,
        )

    ages = False  # answers may come from older models


@record
class Waiting(Timed):
    """Rounds on a clock: the hub waits for everyone it asked, for the first answers, or until a deadline.

    clock: how long agents take. count: how many are asked, uniformly drawn (None: all). keep: the first so many answers
    are merged; who is slow is then seldom heard, and the limit moves. deadline: seconds after which the round ends.
    dropout: the probability that an answer never comes. minimum: with fewer answers the round is abandoned.
    """

    clock: Any
    count: int | None = None
    keep: int | None = None
    deadline: float | None = None
    dropout: float = 0.0
    minimum: int = 1

    def check(self):
        _check_clock(self)
        check_chance("Waiting: dropout", self.dropout)
        for name in ("count", "keep", "minimum"):
            if getattr(self, name) is not None:
                check_whole(f"Waiting: {name}", getattr(self, name), 1)
        if self.dropout > 0 and self.deadline is None:
            raise FedpointError("Waiting: an answer that never comes is waited for without end: give deadline=")

    def slots(self, agents):
        self.clock.fits(agents)
        count = agents if self.count is None else self.count
        if count > agents:
            raise FedpointError(f"Waiting: {count} participants of {agents} agents: choose at most {agents}")
        if max(self.minimum, self.keep or 1) > count:
            raise FedpointError(f"Waiting: {count} agents are asked: minimum and keep must not exceed that")
        if self.keep is not None and self.minimum > self.keep:
            raise FedpointError(f"Waiting: of the {self.keep} answers that are kept never {self.minimum} are there")
        return count

    def rounds(self, luck, p, count):
        K, L = len(p), self.slots(len(p))
        made, time = [], 0.0
        for _ in range(count):
            agents = np.arange(K) if L == K else np.sort(luck.choice(K, L, replace=False))
            took = self.clock.draw(luck, agents) + 2 * self.clock.travel
            lost = luck.random(L) < self.dropout
            took = np.where(lost, np.inf, took)
            end = took.max() if self.deadline is None else min(took.max(), float(self.deadline))
            heard = took <= end
            if self.keep is not None:
                first = np.argsort(took, kind="stable")[: self.keep]  # of several at once the first asked
                end = min(end, took[first[-1]])
                heard &= np.isin(np.arange(L), first)
            merged = int(heard.sum())
            time += end
            weight = np.where(heard, p[agents] * (K / max(merged, 1)), 0.0)
            made.append(_Round(agents, weight, heard, L, merged >= self.minimum, np.zeros(L, int), time))
        return made


@record
class Arrivals(Timed):
    """Asynchronous: an agent's answer is merged when it comes, although the model has moved on since it was asked.

    clock: how long agents take. working: how many work at a time (None: all). buffer: so many answers are merged
    together (1: each by itself; more is FedBuff). staleness: how much an answer to a model tau versions old counts:
    `Constant()` (default), `Polynomial(power)`, `Hinge(slope, after)`. mixing: a factor on all of them. models: merge
    an answer as a model, w <- (1 - a s) w + a s w_k (FedAsync), rather than as a change. dropout: the probability that
    an answer gets lost; deadline: seconds after which an agent is given up, and another is asked.

    Weights are mixing s(tau) p_k K / buffer: agents that answer often count more.
    References: Xie, Koyejo and Gupta, Asynchronous federated optimization (2019); Nguyen et al., Federated learning
    with buffered asynchronous aggregation (2022).
    """

    ages = True

    clock: Any
    working: int | None = None
    buffer: int = 1
    staleness: Any = None
    mixing: float = 1.0
    models: bool = False
    dropout: float = 0.0
    deadline: float | None = None

    @property
    def rebase(self):  # type: ignore[override]
        return self.models

    def check(self):
        _check_clock(self)
        check_whole("Arrivals: buffer", self.buffer, 1)
        if self.working is not None:
            check_whole("Arrivals: working", self.working, 1)
        check_chance("Arrivals: dropout", self.dropout)
        if self.dropout == 1:
            raise FedpointError("Arrivals: with dropout 1 no answer ever comes")
        if self.staleness is None:
            object.__setattr__(self, "staleness", Constant())
        if not hasattr(self.staleness, "weight") or isinstance(self.staleness, type):
            raise FedpointError(
                f"Arrivals: staleness must be Constant(), Polynomial() or Hinge(), got {self.staleness}"
            )
        if not 0 < self.mixing <= 1:
            raise FedpointError(f"Arrivals: mixing must be above 0 and at most 1, got {self.mixing}")

    def slots(self, agents):
        self.clock.fits(agents)
        working = agents if self.working is None else self.working
        if working > agents:
            raise FedpointError(f"Arrivals: {working} working at a time, but there are {agents} agents")
        if self.buffer > working:
            raise FedpointError(f"Arrivals: a buffer of {self.buffer} never fills with {working} agents at work")
        if self.deadline is not None and self.deadline <= 2 * self.clock.travel:
            raise FedpointError("Arrivals: the deadline is shorter than the messages travel")
        return self.buffer

    def rounds(self, luck, p, count):
        K, m = len(p), self.buffer
        at_work = K if self.working is None else self.working
        first = luck.permutation(K)
        idle = list(first[at_work:])
        due: list[tuple[float, int, int, int, bool]] = []  # time, order, agent, version, lost
        sent = 0

        def ask(agent, time, version):
            nonlocal sent
            took = float(self.clock.draw(luck, int(agent))) + 2 * self.clock.travel
            lost = bool(luck.random() < self.dropout)
            if self.deadline is not None and (lost or took > self.deadline):
                took, lost = float(self.deadline), True
            heapq.heappush(due, (time + took, sent, int(agent), version, lost))
            sent += 1

        def another(agent):
            """Who works next in this one's place."""
            if not idle:
                return agent
            place = int(luck.integers(len(idle)))
            chosen, idle[place] = idle[place], agent
            return chosen

        for agent in first[:at_work]:
            ask(agent, 0.0, 0)
        made: list[_Round] = []
        here: list[tuple[int, int]] = []
        before = vain = 0
        while len(made) < count:
            time, _, agent, version, lost = heapq.heappop(due)
            if lost:
                vain += 1
                if vain > VAIN:
                    raise FedpointError(f"Arrivals: of {VAIN} answers in a row none came: give a longer deadline")
                ask(another(agent), time, len(made))
                continue
            vain = 0
            here.append((agent, version))
            if len(here) < m:
                continue
            agents, versions = np.array(here).T
            age = len(made) - versions
            weight = self.mixing * self.staleness.weight(age) * p[agents] * (K / m)
            made.append(_Round(agents, weight, np.ones(m, bool), sent - before, True, age, time))
            made[-1].open = max((len(made) - 1 - one[3] for one in due), default=0)
            before, here = sent, []
            for agent in agents:  # an answer waits for its merge: nobody is twice in one
                ask(another(int(agent)), time, len(made))
        return made


def _check_clock(self: Any) -> None:
    if not isinstance(self.clock, Clock):
        raise FedpointError(f"{type(self).__name__}: clock must be an fp.Clock, got {self.clock!r}")
    if self.deadline is not None and not self.deadline > 0:
        raise FedpointError(f"{type(self).__name__}: deadline must be above 0 seconds, got {self.deadline}")


# On a network.


@record
class Turns(Schedule):
    """Ticks of a network that were worked out beforehand: arrays lead with repeat and tick."""

    per_repeat = True

    agents: Any  # (R, T, L), or None: all in every tick
    heard: Any  # (R, T, L)
    ages: Any  # (R, T, L, most neighbours), in the order of a node's arcs, or None
    clock: Any  # (R, T)
    kept: int  # messages of a node that are needed

    @property
    def all_heard(self):  # type: ignore[override]
        return self.agents is None

    def slots(self, nodes):
        return nodes if self.agents is None else self.agents.shape[-1]

    def turn(self, key, tick, nodes):
        if self.agents is None:
            return Turn(None, jnp.ones(nodes, bool))
        return Turn(self.agents[tick], self.heard[tick])

    def age(self, key, tick, arc, says):
        return self.ages[tick]

    def depth(self, ticks):
        return self.kept


@record
class InStep(Schedule):
    """Synchronous on a clock: in every tick all nodes work, and wait for the slowest."""

    all_heard = True

    clock: Any

    def check(self):
        if not isinstance(self.clock, Clock):
            raise FedpointError(f"InStep: clock must be an fp.Clock, got {self.clock!r}")

    def bind(self, network, seed, repeats, ticks):
        self.clock.fits(network.nodes)
        who = np.arange(network.nodes)
        times = [
            np.cumsum([self.clock.draw(luck, who).max() + self.clock.travel for _ in range(ticks)])
            for luck in (_luck(seed, r) for r in range(repeats))
        ]
        return Turns(None, None, None, np.array(times), 1)


@record
class OwnPace(Schedule):
    """Asynchronous on a clock: a node starts again as soon as it is done, with what it has heard by then.

    A tick is one node's update. A message takes `clock.travel` seconds, and gets lost with probability `loss`.
    """

    clock: Any
    loss: float = 0.0

    def check(self):
        if not isinstance(self.clock, Clock):
            raise FedpointError(f"OwnPace: clock must be an fp.Clock, got {self.clock!r}")
        check_chance("OwnPace: loss", self.loss)

    def slots(self, nodes):
        return 1

    def bind(self, network, seed, repeats, ticks):
        self.clock.fits(network.nodes)
        made = [self._ticks(network, _luck(seed, r), ticks) for r in range(repeats)]
        agents, ages, times, kept = zip(*made, strict=True)
        who = np.array(agents, np.int32)[..., None]
        return Turns(who, np.ones(who.shape, bool), np.array(ages)[:, :, None], np.array(times), max(2, *kept))

    def _ticks(self, network, luck, ticks):
        arcs, nodes = network.arcs, network.nodes
        width = max(int(np.diff(arcs.first).max(initial=0)), 1)
        back = _reverse(arcs)
        under_way: list[deque] = [deque() for _ in arcs.says]  # of each arc: (arrival, version)
        known = np.zeros(len(arcs.says), int)  # version that has arrived
        started = np.zeros((nodes, width), int)  # versions known when the work at hand began
        sent: list[list[int]] = [[0] for _ in range(nodes)]  # versions of each node's messages
        due = [(float(t), i) for i, t in enumerate(self.clock.draw(luck, np.arange(nodes)))]
        heapq.heapify(due)
        agents, times = np.zeros(ticks, int), np.zeros(ticks)
        ages, kept = np.zeros((ticks, width), np.int32), 1
        for k in range(ticks):
            time, i = heapq.heappop(due)
            first, past = arcs.first[i], arcs.first[i + 1]
            agents[k], times[k] = i, time
            ages[k, : past - first] = k - started[i, : past - first]
            for n, arc in enumerate(range(first, past)):
                said = sent[arcs.says[arc]]
                kept = max(kept, len(said) - _place(said, started[i, n]))
            sent[i].append(k + 1)
            for arc in back[first:past]:  # to each neighbour
                if luck.random() >= self.loss:
                    under_way[arc].append((time + float(self.clock.travel), k + 1))
            for n, arc in enumerate(range(first, past)):
                while under_way[arc] and under_way[arc][0][0] <= time:
                    known[arc] = under_way[arc].popleft()[1]
                started[i, n] = known[arc]
            heapq.heappush(due, (time + float(self.clock.draw(luck, i)), i))
        for arc, i in enumerate(arcs.hears):  # what is at work still may be needed later on
            said = sent[arcs.says[arc]]
            kept = max(kept, len(said) - _place(said, started[i, arc - arcs.first[i]]))
        return agents, ages, times, power_of_two(kept)


def _place(versions: list[int], version: int) -> int:
    """The place of the message that held at a version."""
    place = len(versions) - 1
    while versions[place] > version:
        place -= 1
    return place


def _reverse(arcs: Any) -> np.ndarray:
    """The number of the arc in the other direction."""
    number = {(int(i), int(j)): n for n, (i, j) in enumerate(zip(arcs.hears, arcs.says, strict=True))}
    return np.array([number[int(j), int(i)] for i, j in zip(arcs.hears, arcs.says, strict=True)], int)


def _mistakes(event: Any) -> list[str]:
    """What is wrong with an event of a trace."""
    if not isinstance(event, tuple) or len(event) != 4:
        return ["an event is (tick, node, neighbour or None, age)"]
    tick, node, neighbour, age = event
    wrong = []
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 0 for n in (tick, age)):
        wrong.append("tick and age must be whole numbers, at least 0")
    elif age and neighbour is None:
        wrong.append("an age needs the neighbour from whom it was heard")
    if node is None or not str(node):
        wrong.append("there is no name of a node")
    return wrong


def _listed(wrong: list[str]) -> str:
    more = f" (and {len(wrong) - SHOWN} more)" if len(wrong) > SHOWN else ""
    return "; ".join(wrong[:SHOWN]) + more


@record
class Replay(Schedule):
    """A measured run again: events (tick, node, neighbour, age), repeated from the start when they end.

    An event says that a node worked in a tick; with a neighbour and an age, that it heard something so many ticks old
    from it (0 otherwise). Node and neighbour are names. `Replay.read(path)` reads them from a file.
    """

    events: Any

    @classmethod
    def read(cls, path: Any) -> Replay:
        """From a CSV file with columns tick, node and, where something was old, neighbour and age."""
        try:
            with Path(path).open(newline="") as file:
                rows = list(csv.DictReader(file))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise FedpointError(f"trace {path}: {getattr(error, 'strerror', None) or error}") from None
        if not rows or not {"tick", "node"} <= set(rows[0]):
            raise FedpointError(f"trace {path}: needs columns tick and node (and neighbour, age), and at least one row")
        events, wrong = [], []
        for line, row in enumerate(rows, start=2):
            try:
                tick, age = int(row["tick"]), int(row.get("age") or 0)
            except (TypeError, ValueError):
                wrong.append(f"line {line}: tick and age must be whole numbers")
                continue
            event = tick, (row["node"] or "").strip(), (row.get("neighbour") or "").strip() or None, age
            wrong += [f"line {line}: {mistake}" for mistake in _mistakes(event)]
            events.append(event)
        if wrong:
            raise FedpointError(f"trace {path}: {_listed(wrong)}")
        return cls(tuple(events))

    @property
    def period(self) -> int:
        return 1 + max(e[0] for e in self.events)

    def check(self):
        if not self.events:
            raise FedpointError("Replay: there is no event")
        wrong = [f"{event}: {mistake}" for event in self.events for mistake in _mistakes(event)]
        if wrong:
            raise FedpointError(f"Replay: {_listed(wrong)}")

    def slots(self, nodes):
        found: dict[int, set[str]] = {}
        for tick, node, *_ in self.events:
            found.setdefault(tick, set()).add(str(node))
        return max(len(a) for a in found.values())

    def bind(self, network, seed, repeats, ticks):
        number = {name: i for i, name in enumerate(network.names)}
        arcs, L = network.arcs, self.slots(network.nodes)
        arc_of = {(int(i), int(j)): n for n, (i, j) in enumerate(zip(arcs.hears, arcs.says, strict=True))}
        width = max(int(np.diff(arcs.first).max(initial=0)), 1)
        period = self.period
        agents, heard = np.zeros((period, L), np.int32), np.zeros((period, L), bool)
        ages = np.zeros((period, L, width), np.int32)
        places: list[dict[int, int]] = [{} for _ in range(period)]
        wrong = []
        for tick, node, neighbour, age in self.events:
            if str(node) not in number:
                wrong.append(f"tick {tick}: there is no node {node}")
                continue
            i = number[str(node)]
            place = places[tick].setdefault(i, len(places[tick]))
            agents[tick, place], heard[tick, place] = i, True
            if neighbour is None:
                continue
            arc = arc_of.get((i, number.get(str(neighbour), -1)))
            if arc is None:
                wrong.append(f"tick {tick}: {neighbour} is not a neighbour of {node}")
            else:
                ages[tick, place, arc - arcs.first[i]] = age
        if wrong:
            raise FedpointError(f"trace: {_listed(wrong)}")
        kept = power_of_two(max(2, int(ages.max()) + 1))
        again = np.arange(ticks) % period
        ages = np.minimum(ages[again], np.arange(ticks)[:, None, None])  # nothing is older than the start

        def spread(a):
            return np.broadcast_to(a, (repeats, *a.shape))

        clock = spread(np.arange(1.0, ticks + 1))
        return Turns(spread(agents[again]), spread(heard[again]), spread(ages), clock, kept)
