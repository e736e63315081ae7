"""What if? Many values of hyper-parameters in one program."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from fedpoint.core.record import stack
from fedpoint.errors import FedpointError, nearest
from fedpoint.runtimes.session import Session, bind_algorithm
from fedpoint.verbs.run import (
    Run,
    begin,
    check_count,
    check_inputs,
    check_network,
    check_repeats,
    check_schedule,
    check_start,
    choose_every,
    drive,
)


@dataclass(frozen=True)
class Sweep:
    """The result of a sweep: every array leads with the points, then the repeats.

    points: the swept values, a dictionary each. A point that diverged has inf or nan from there on.
    """

    points: list[dict[str, Any]]
    algorithms: list[Any]
    run: Run
    repeats: int

    def _by_point(self, lanes: Any) -> Any:
        return jax.tree.map(lambda a: a.reshape(len(self.points), self.repeats, *a.shape[1:]), lanes)

    @property
    def rounds(self) -> np.ndarray:
        return self.run.rounds

    @cached_property
    def error(self) -> np.ndarray | None:
        """(points, repeats, n). On a network each point has its own solution: it depends on the coupling."""
        session = self.run.session
        if session.network is None or session.algorithm.hello is None:
            return None if self.run.error is None else self._by_point(self.run.error)
        aims = [algorithm.aim(session.problem, session.network) for algorithm in self.algorithms]
        if any(aim is None for aim in aims):
            return None
        total: Any = 0.0
        for leaf, *ends in zip(
            jax.tree.leaves(self._by_point(self.run.history)), *map(jax.tree.leaves, aims), strict=True
        ):
            gap = leaf.astype(np.float64) - np.stack(ends)[:, None, None]
            total = total + (gap**2).sum(axis=tuple(range(3, gap.ndim))) / session.problem.agents
        return np.asarray(total)

    @property
    def loss(self) -> np.ndarray:
        return self._by_point(self.run.loss)

    @property
    def model(self) -> Any:
        return self._by_point(self.run.model)

    @property
    def used(self) -> np.ndarray:
        """(points, repeats, n, 3): models sent, answers and field evaluations."""
        return self._by_point(self.run.used)

    def best(self) -> dict[str, Any]:
        """The point with the least mean final error (or loss, where no solution is known)."""
        final = self.loss if self.error is None else self.error
        mean = final[..., -1].mean(axis=1)
        return self.points[int(np.nanargmin(np.where(np.isfinite(mean), mean, np.inf)))]


def sweep(
    algorithm: Any,
    problem: Any,
    over: Mapping[str, Sequence],
    rounds: int = 100,
    participation: Any = None,
    network: Any = None,
    schedule: Any = None,
    start: Any = None,
    exact: bool = False,
    seed: int = 0,
    repeats: int = 1,
    record_every: int | None = None,
) -> Sweep:
    """Run an algorithm for every combination of the values in `over`, all in one compiled program.

    Every point sees the same random numbers, so that differences are the hyper-parameters'. Any numeric field can be
    swept; a sweep over `local_steps` costs the largest of them at every point.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> fp.sweep(fp.FedAvg(step=0.1), quad, over={"step": [0.1, 0.5, 1.0]}, rounds=10).best()
    {'step': 0.5}
    """
    check_inputs(algorithm, problem, seed)
    network = check_network(network, problem)
    check_count("rounds", rounds, 0)
    check_count("repeats", repeats, 1)
    fields = algorithm.__dataclass_fields__
    for name, values in over.items():
        if name not in fields:
            raise FedpointError(f"{type(algorithm).__name__} has no field {name!r}: {nearest(name, fields)}")
        if np.ndim(values) != 1 or not len(values) or not np.issubdtype(np.asarray(values).dtype, np.number):
            raise FedpointError(f"sweep over {name} needs a list of numbers, got {values!r}")
    points = [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())]
    plain = {name: getattr(algorithm, name) for name in fields}
    algorithms = [type(algorithm)(**{**plain, **point}) for point in points]
    # What sizes are chosen by: the most local steps of any point.
    largest = algorithms[int(np.argmax([p.get("local_steps", 0) for p in points]))]
    bound = [bind_algorithm(a, problem) for a in algorithms]
    model = check_start(problem, start, network)
    scheme = check_schedule(participation, schedule, network)
    check_repeats(largest, problem, model, network, scheme, len(points) * repeats)
    lanes = stack([a for a in bound for _ in range(repeats)], tuple(over))
    every = choose_every(record_every, rounds, len(points) * repeats, model)
    session = Session(
        largest,
        problem,
        scheme,
        model,
        exact,
        int(seed),
        repeats,
        every,
        swept=lanes,
        network=network,
    )
    return Sweep(points, algorithms, drive(begin(session), rounds), repeats)
