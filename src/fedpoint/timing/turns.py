"""Who works when, on a network on a clock: ticks that are worked out before the run, or were recorded."""

from __future__ import annotations

import csv
import heapq
import io
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpoint.core.arguments import checked
from fedpoint.core.errors import FedpointError
from fedpoint.core.files import read_file
from fedpoint.core.random import Key
from fedpoint.core.vector import take
from fedpoint.timing.base import Context, Tick
from fedpoint.timing.clock import Clock, luck_of
from fedpoint.timing.mail import power_of_two
from fedpoint.timing.schedule import Schedule, check_chance

if TYPE_CHECKING:
    from fedpoint.graphs.network import Arcs, Network

Event: TypeAlias = tuple[int, str, str | None, int]  # tick, node, neighbour, age
Given: TypeAlias = tuple[int, str] | tuple[int, str, str | None] | tuple[int, str, str | None, int | None] | Event
SHOWN = 10  # mistakes that a message spells out


class Turns(Schedule):
    """Ticks of a network that were worked out beforehand: arrays lead with repeat and tick."""

    per_repeat = True

    agents: np.ndarray | None  # (R, T, L), or None: all in every tick
    heard: np.ndarray | None  # (R, T, L)
    ages: np.ndarray | None  # (R, T, L, most neighbours), in the order of a node's arcs, or None
    clock: np.ndarray  # (R, T)
    kept: int  # messages of a node that are needed

    @property
    def all_heard(self) -> bool:  # type: ignore[override]
        return self.agents is None

    def slots(self, agents: int) -> int:
        return agents if self.agents is None else self.agents.shape[-1]

    def tick(self, key: Key, p: Array, round: Array) -> Tick:
        if self.agents is None or self.heard is None:
            return Tick(None, jnp.ones(len(p), bool))
        return take(Tick(jnp.asarray(self.agents), jnp.asarray(self.heard)), round)

    def age(self, key: Key, round: Array, arc: Array, says: Array) -> Array:
        return super().age(key, round, arc, says) if self.ages is None else take(jnp.asarray(self.ages), round)

    def times(self) -> np.ndarray:
        return self.clock

    def depth(self, rounds: int) -> int:
        return self.kept


class InStep(Schedule):
    """Synchronous on a clock: in every tick all nodes work, and wait for the slowest.

    Args:
        clock: how long an agent takes (`fp.Clock`).
    """

    all_heard = True
    in_step = True

    clock: Clock

    def bind(self, context: Context) -> Turns:
        network, seed, repeats, ticks = context.graph, context.seed, context.repeats, context.rounds
        self.clock.fits(network.nodes)
        who = np.arange(network.nodes)
        times = [
            np.cumsum([self.clock.draw(luck, who).max() + self.clock.travel for _ in range(ticks)])
            for luck in (luck_of(seed, r) for r in range(repeats))
        ]
        return Turns(None, None, None, np.array(times), 1)


class OwnPace(Schedule):
    """Asynchronous on a clock: a node starts again as soon as it is done, with what it has heard by then.

    A tick is one node's update. A message takes `clock.travel` seconds.

    Args:
        clock: how long an agent takes (`fp.Clock`).
        loss: the probability that a message gets lost.
    """

    clock: Clock
    loss: float = 0.0

    def check(self) -> None:
        check_chance("OwnPace: loss", self.loss)

    def slots(self, agents: int) -> int:
        return 1

    def bind(self, context: Context) -> Turns:
        network, seed, repeats, ticks = context.graph, context.seed, context.repeats, context.rounds
        self.clock.fits(network.nodes)
        made = [self._ticks(network, luck_of(seed, r), ticks) for r in range(repeats)]
        agents, ages, times, kept = zip(*made, strict=True)
        who = np.array(agents, np.int32)[..., None]
        return Turns(who, np.ones(who.shape, bool), np.array(ages)[:, :, None], np.array(times), max(2, *kept))

    def _ticks(
        self, network: Network, luck: np.random.Generator, ticks: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
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


def _reverse(arcs: Arcs) -> np.ndarray:
    """The number of the arc in the other direction."""
    number = {(int(i), int(j)): n for n, (i, j) in enumerate(zip(arcs.hears, arcs.says, strict=True))}
    return np.array([number[int(j), int(i)] for i, j in zip(arcs.hears, arcs.says, strict=True)], int)


def _complete(event: Given) -> Event:
    """With neighbour and age: what has no age was fresh."""
    age = event[3] if len(event) == 4 else None
    return event[0], event[1], None if len(event) == 2 else event[2], 0 if age is None else age


def _mistakes(event: Given) -> list[str]:
    """What is wrong with an event of a trace."""
    if not isinstance(event, tuple) or not 2 <= len(event) <= 4:
        return ["an event is (tick, node), (tick, node, neighbour) or (tick, node, neighbour, age)"]
    tick, node, neighbour, age = _complete(event)
    wrong = []
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 0 for n in (tick, age)):
        wrong.append("tick and age must be whole numbers, at least 0")
    elif age and neighbour is None:
        wrong.append("an age needs the neighbour from whom it was heard")
    if node is None or not str(node):
        wrong.append("there is no name of a node")
    return wrong


def _whole(text: str) -> int:
    """A whole number, also as tables with gaps write it: 3.0."""
    number = float(text)
    if number != int(number):
        raise ValueError
    return int(number)


def _listed(wrong: list[str]) -> str:
    more = f" (and {len(wrong) - SHOWN} more)" if len(wrong) > SHOWN else ""
    return "; ".join(wrong[:SHOWN]) + more


class Replay(Schedule):
    """A measured run again: events (tick, node, neighbour, age), repeated from the start when they end.

    An event says that a node worked in a tick; with a neighbour and an age, that it heard something so many ticks old
    from it. Where the age is left out or None, and of neighbours that are not named, what it heard was fresh (age 0).
    Node and neighbour are names. `Replay.read(path)` reads them from a file.

    Args:
        events: tuples (tick, node, neighbour, age), in the order of their ticks; neighbour and age may be left out.
    """

    events: tuple[Event, ...]  # neighbour and age may be left out: they are completed

    @classmethod
    @checked
    def read(cls, path: str | Path) -> Replay:
        """From a CSV file with columns tick, node and, where something was old, neighbour and age; without one, 0.

        Args:
            path: of the file.
        """
        try:
            rows = list(csv.DictReader(io.StringIO(read_file(path).decode("utf-8-sig"), newline="")))
        except OSError as error:
            raise FedpointError(f"trace {path}: {error.strerror or error}") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise FedpointError(f"trace {path}: {error}") from None
        if not rows or not {"tick", "node"} <= set(rows[0]):
            raise FedpointError(f"trace {path}: needs columns tick and node (and neighbour, age), and at least one row")
        events, wrong = [], []
        for line, row in enumerate(rows, start=2):
            try:
                tick, age = _whole(row["tick"]), _whole((row.get("age") or "").strip() or "0")
            except (TypeError, ValueError, OverflowError):
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

    def check(self) -> None:
        if not self.events:
            raise FedpointError("Replay: there is no event")
        wrong = [f"{event}: {mistake}" for event in self.events for mistake in _mistakes(event)]
        if wrong:
            raise FedpointError(f"Replay: {_listed(wrong)}")
        object.__setattr__(self, "events", tuple(_complete(event) for event in self.events))

    def slots(self, agents: int) -> int:
        found: dict[int, set[str]] = {}
        for tick, node, *_ in self.events:
            found.setdefault(tick, set()).add(str(node))
        return max(len(a) for a in found.values())

    def bind(self, context: Context) -> Turns:
        network, repeats, ticks = context.graph, context.repeats, context.rounds
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

        def spread(a: np.ndarray) -> np.ndarray:
            return np.broadcast_to(a, (repeats, *a.shape))

        clock = spread(np.arange(1.0, ticks + 1))
        return Turns(spread(agents[again]), spread(heard[again]), spread(ages), clock, kept)
