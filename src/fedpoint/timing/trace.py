"""What happened, again: answers that a federation merged late, in the order in which they were."""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import numpy as np

from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import fits
from fedpoint.timing.base import Context
from fedpoint.timing.staleness import Constant, Staleness
from fedpoint.timing.timed import Timed, TimedRound, Timetable

Answer: TypeAlias = tuple[str, object]  # a name, and how many versions old the answer is


class Recorded(Timed):
    """Late answers as they were merged: for each round the agents (by name) and how many versions old each answer was.

    Weights are those of `fp.Arrivals`. Repeated from the start when it ends.

    Args:
        rows: of each round the answers that were merged, as ((name, age), ...).
        staleness: how much an answer to an old model counts, as in `fp.Arrivals`.
        mixing: a factor on all weights, as in `fp.Arrivals`.
        models: merge an answer as a model rather than as a change, as in `fp.Arrivals`.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic(1.0, [[0.0], [1.0]])
    >>> seen = Recorded((((("1", 0),)), ((("0", 1),))))
    >>> fp.run(fp.FedAvg(step=0.5), quad, rounds=2, schedule=seen).model
    array([[0.5]])
    """

    late = True
    _known: ClassVar[dict[str, int]] = {}  # the agents' numbers, once they are known

    rows: tuple[tuple[tuple[str, int], ...], ...]  # of each round ((name, age), ...)
    staleness: Staleness = Constant()
    mixing: float = 1.0
    models: bool = False

    @property
    def rebase(self) -> bool:  # type: ignore[override]
        return self.models

    def check(self) -> None:
        if not all(isinstance(row, list | tuple) and all(fits(one, Answer) for one in row) for row in self.rows):
            raise FedpointError('Recorded: a round is a list of names and ages, such as (("a", 0), ("b", 1))')
        counts = {len(row) for row in self.rows}
        if len(counts) != 1 or 0 in counts:
            raise FedpointError("Recorded: every round must have as many answers as the others, at least one")
        for round, row in enumerate(self.rows):
            for name, age in row:
                if not isinstance(age, int | np.integer) or not 0 <= age <= round:
                    raise FedpointError(f"Recorded: {name}'s answer in round {round} cannot be {age!r} versions old")

    def slots(self, agents: int) -> int:
        return len(self.rows[0])

    def bind(self, context: Context) -> Timetable:
        known = {str(name): k for k, name in enumerate(context.task[0].names)}
        unknown = sorted({name for row in self.rows for name, _ in row} - set(known))
        if unknown:
            raise FedpointError(f"Recorded: the problem has no agent {', '.join(unknown)}")
        object.__setattr__(self, "_known", known)
        return super().bind(context)

    def rounds(self, luck: np.random.Generator, p: np.ndarray, count: int) -> list[TimedRound]:
        made = []
        for time in range(count):
            row = self.rows[time % len(self.rows)]
            agents, age = (np.array(column) for column in zip(*((self._known[n], a) for n, a in row), strict=True))
            weight = self.mixing * self.staleness.weight(age) * p[agents] * (len(p) / len(row))
            made.append(TimedRound(agents, weight, np.ones(len(row), bool), len(row), True, age, float(time + 1)))
        return made
