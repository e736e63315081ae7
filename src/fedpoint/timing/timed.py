"""Who answers when, with a fusion center on a clock: rounds that are worked out before the run."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jax import Array

from fedpoint.core.errors import FedpointError
from fedpoint.core.numbers import counted, there_are
from fedpoint.core.random import Key
from fedpoint.core.record import untouched
from fedpoint.core.types import Number
from fedpoint.core.vector import take
from fedpoint.timing.answering import Answering
from fedpoint.timing.base import Context, Tick, Timing
from fedpoint.timing.clock import Clock, check_clock, luck_of
from fedpoint.timing.mail import power_of_two
from fedpoint.timing.schedule import check_chance, check_whole
from fedpoint.timing.schemes import Everyone, Participation, Uniform
from fedpoint.timing.staleness import Constant, Staleness
from fedpoint.timing.tick_law import MergeLaw

VAIN = 10_000  # answers lost in a row, from which there is no use in waiting


class Timetable(Participation):
    """Rounds that were worked out beforehand: arrays lead with repeat and round."""

    per_repeat = True
    abandons = True
    on_clock = True

    ticks: Tick  # of which each array is (R, T, L) or (R, T)
    clock: np.ndarray  # (R, T) seconds at the end of each round
    versions: int  # of the hub that are needed; 0 when all answers come in their round
    models: bool

    @property
    def late(self) -> bool:  # type: ignore[override]
        return self.versions > 0

    @property
    def rebase(self) -> bool:  # type: ignore[override]
        return self.models

    def slots(self, agents: int) -> int:
        return self.ticks.heard.shape[-1]

    def tick(self, key: Key, p: Array, round: Array) -> Tick:
        return take(self.ticks, round)

    def depth(self, rounds: int) -> int:
        return max(self.versions, 1)

    def times(self) -> np.ndarray:
        return self.clock


@dataclass
class TimedRound:
    """One round on its way into a timetable."""

    agents: np.ndarray
    weight: np.ndarray
    heard: np.ndarray
    asked: int
    merge: bool
    age: np.ndarray
    time: float
    open: int = 0  # how many versions ago the oldest question was asked that has no answer yet


class Timed(Participation):
    """A participation on a clock: `rounds(luck, p, count)` lists them."""

    on_clock = True

    def rounds(self, luck: np.random.Generator, p: np.ndarray, count: int) -> list[TimedRound]:
        """The rounds of a run, worked out event by event.

        Args:
            luck: NumPy's generator.
            p: (K,) the agents' weights.
            count: how many rounds.
        """
        raise FedpointError(f"{type(self).__name__} has no timetable")

    def bind(self, context: Context) -> Timetable:
        problem, algorithm = context.task
        p = problem.weights
        self.slots(len(p))
        if self.rebase and not algorithm.sends_changes():
            raise FedpointError(
                f"{algorithm.card.title} cannot merge models that come late (models=True): its messages are not "
                "changes of one model; leave models=False"
            )
        tables = [self.rounds(luck_of(context.seed, r), p, context.rounds) for r in range(context.repeats)]

        def stack(pick: Callable[[TimedRound], Number], dtype: type) -> np.ndarray:
            return np.array([[pick(one) for one in table] for table in tables], dtype=dtype)

        oldest = max(max(int(one.age.max(initial=0)) for one in table) for table in tables)
        oldest = max(oldest, *(table[-1].open for table in tables))  # who is at work still may answer later on
        agents, heard = stack(lambda o: o.agents, np.int32), stack(lambda o: o.heard, bool)
        columns = (
            agents,
            heard,
            stack(lambda o: o.weight, float),
            np.where(heard, p[agents], 0.0),
            stack(lambda o: o.asked, np.int32),
            stack(lambda o: o.merge, bool),
            stack(lambda o: o.age, np.int32),
        )
        versions = power_of_two(oldest + 1) if self.late else 0
        return Timetable(Tick._make(columns), stack(lambda o: o.time, float), versions, self.rebase)


class Waiting(Timed):
    """Rounds on a clock: the hub waits for everyone it asked, for the first answers, or until a deadline.

    Args:
        clock: how long an agent takes (`fp.Clock`).
        count: how many agents are asked, drawn uniformly; None: all.
        keep: merge only the first so many answers; slow agents are then seldom heard, and the limit moves. None: all.
        deadline: seconds after which the round ends; None: never.
        dropout: the probability that an answer never comes.
        minimum: with fewer answers the round is abandoned.
    """

    clock: Clock
    count: int | None = None
    keep: int | None = None
    deadline: float | None = None
    dropout: float = 0.0
    minimum: int = 1

    def check(self) -> None:
        check_clock(self)
        check_chance("Waiting: dropout", self.dropout)
        for name, value in (("count", self.count), ("keep", self.keep), ("minimum", self.minimum)):
            if value is not None:
                check_whole(f"Waiting: {name}", value, 1)
        if self.dropout > 0 and self.deadline is None:
            raise FedpointError("Waiting: a round would wait forever for an answer that never comes: give deadline=")

    def slots(self, agents: int) -> int:
        self.clock.fits(agents)
        count = agents if self.count is None else self.count
        if count > agents:
            raise FedpointError(
                f"Waiting: {counted(count, 'participant')} of {counted(agents, 'agent')}: choose at most {agents}"
            )
        if max(self.minimum, self.keep or 1) > count:
            raise FedpointError(f"Waiting: only {counted(count, 'agent')} asked: minimum and keep must not exceed that")
        if self.keep is not None and self.minimum > self.keep:
            raise FedpointError(
                f"Waiting: of the {counted(self.keep, 'answer')} that are kept never {self.minimum} are there"
            )
        return count

    def in_rounds(self, agents: int) -> Participation | None:
        if not untouched(type(self), "in_rounds", Timing):
            return None
        asked = self.slots(agents)
        scheme: Participation = Everyone() if asked == agents else Uniform(asked)
        keep = None if self.keep == asked else self.keep
        if keep is None and self.deadline is None:
            return scheme
        alike = np.ptp(np.asarray(self.clock.work, dtype=float)) == 0
        if not alike or (keep is not None and self.clock.law == "constant"):  # the first are always the same
            return None
        left = math.inf if self.deadline is None else float(self.deadline) - 2 * float(self.clock.travel)
        chance = (1 - float(self.dropout)) * self.clock.within(left)
        return Answering(scheme, chance, keep=keep, minimum=self.minimum) if chance > 0 else None

    def merge_law(self, p: np.ndarray, most: int) -> MergeLaw | str:
        return "who answers in time depends on how fast each agent is"

    def rounds(self, luck: np.random.Generator, p: np.ndarray, count: int) -> list[TimedRound]:
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
            made.append(TimedRound(agents, weight, heard, L, merged >= self.minimum, np.zeros(L, int), time))
        return made


class Arrivals(Timed):
    """Asynchronous: an agent's answer is merged when it comes, although the model has moved on since it was asked.

    Weights are mixing s(tau) p_k K / buffer: agents that answer often count more.

    Args:
        clock: how long an agent takes (`fp.Clock`).
        working: how many agents work at a time; None: all.
        buffer: how many answers are merged together; 1: each by itself, more is FedBuff.
        staleness: how much an answer to a model tau versions old counts: `fp.staleness.Constant()` (default),
            `Polynomial(power)` or `Hinge(slope, after)`.
        mixing: a factor on all weights.
        models: merge an answer as a model, w <- (1 - a s) w + a s w_k (FedAsync), rather than as a change.
        dropout: the probability that an answer gets lost.
        deadline: seconds after which an agent is given up and another one is asked; None: never.

    References: Xie, Koyejo and Gupta, Asynchronous federated optimization (2019); Nguyen et al., Federated learning
    with buffered asynchronous aggregation (2022).
    """

    late = True

    clock: Clock
    working: int | None = None
    buffer: int = 1
    staleness: Staleness = Constant()
    mixing: float = 1.0
    models: bool = False
    dropout: float = 0.0
    deadline: float | None = None

    @property
    def rebase(self) -> bool:  # type: ignore[override]
        return self.models

    def check(self) -> None:
        check_clock(self)
        check_whole("Arrivals: buffer", self.buffer, 1)
        if self.working is not None:
            check_whole("Arrivals: working", self.working, 1)
        check_chance("Arrivals: dropout", self.dropout)
        if self.dropout == 1:
            raise FedpointError("Arrivals: with dropout 1 no answer ever comes")
        if not 0 < self.mixing <= 1:
            raise FedpointError(f"Arrivals: mixing must be above 0 and at most 1, got {self.mixing}")

    def slots(self, agents: int) -> int:
        self.clock.fits(agents)
        working = agents if self.working is None else self.working
        if working > agents:
            raise FedpointError(f"Arrivals: {working} working at a time, but {there_are(agents, 'agent')}")
        if self.buffer > working:
            raise FedpointError(
                f"Arrivals: a buffer of {self.buffer} never fills with {counted(working, 'agent')} at work"
            )
        if self.deadline is not None and self.deadline <= 2 * self.clock.travel:
            raise FedpointError("Arrivals: the deadline is shorter than the messages travel")
        return self.buffer

    def merge_law(self, p: np.ndarray, most: int) -> MergeLaw | str:
        """For forecasts: at most so many ways in which a buffer may fill, or why rounds are not independent."""
        K, m = len(p), self.buffer
        if not untouched(type(self), "merge_law", Timing):
            return f"{type(self).__name__} changes who answers when"
        if self.clock.law != "exponential" or self.clock.travel > 0 or self.deadline is not None:
            return "how long an agent has been at work tells when it answers, unless its times are exponential"
        if self.slots(K) and self.working is not None and self.working < K:
            return "who is asked next depends on who is at work"
        if self.dropout > 0 and m > 1:
            return "answers that get lost while a buffer fills are not followed"
        if math.comb(K, m) > most:
            return f"a buffer of {m} of {K} fills in {math.comb(K, m):,} ways: up to {most:,} are gone through"
        pace = 1.0 / np.broadcast_to(np.asarray(self.clock.work, dtype=float), K)
        pace = pace / pace.sum()
        ways = _first_answers(pace, m)
        who = np.array([[k in way for k in range(K)] for way in ways])
        weight = float(self.mixing) * p * (K / m)
        lost = float(self.dropout) / (1 - float(self.dropout)) * pace  # of independent events, each lost by chance
        return MergeLaw(np.array(list(ways.values())), who, weight, self.staleness, self.rebase, lost)

    def rounds(self, luck: np.random.Generator, p: np.ndarray, count: int) -> list[TimedRound]:
        K, m = len(p), self.buffer
        at_work = K if self.working is None else self.working
        first = luck.permutation(K)
        idle = list(first[at_work:])
        due: list[tuple[float, int, int, int, bool]] = []  # time, order, agent, version, lost
        sent = 0

        def ask(agent: int, time: float, version: int) -> None:
            nonlocal sent
            took = float(self.clock.draw(luck, int(agent))) + 2 * self.clock.travel
            lost = bool(luck.random() < self.dropout)
            if self.deadline is not None and (lost or took > self.deadline):
                took, lost = float(self.deadline), True
            heapq.heappush(due, (time + took, sent, int(agent), version, lost))
            sent += 1

        def another(agent: int) -> int:
            """Who works next in this one's place."""
            if not idle:
                return agent
            place = int(luck.integers(len(idle)))
            chosen, idle[place] = idle[place], agent
            return chosen

        for agent in first[:at_work]:
            ask(agent, 0.0, 0)
        made: list[TimedRound] = []
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
            made.append(TimedRound(agents, weight, np.ones(m, bool), sent - before, True, age, time))
            made[-1].open = max((len(made) - 1 - one[3] for one in due), default=0)
            before, here = sent, []
            for agent in agents:  # an answer waits for its merge: nobody is twice in one
                ask(another(int(agent)), time, len(made))
        return made


def _first_answers(pace: np.ndarray, count: int) -> dict[frozenset[int], float]:
    """Who answers first, `count` of them, with its chance: one after the other, by their pace among those at work."""
    ways: dict[frozenset[int], float] = {frozenset(): 1.0}
    for _ in range(count):
        longer: dict[frozenset[int], float] = {}
        for way, chance in ways.items():
            left = [k for k in range(len(pace)) if k not in way]
            total = float(pace[left].sum())
            for k in left:
                more = way | {k}
                longer[more] = longer.get(more, 0.0) + chance * float(pace[k]) / total
        ways = longer
    return ways
