"""What came of a sweep? One run whose repeats are the points of the sweep times their repeats."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import jax
import numpy as np

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.errors import FedpointError
from fedpoint.core.types import Model, Tree
from fedpoint.results.run import Run


@dataclass(frozen=True)
class Sweep:
    """The result of a sweep: every array leads with the points, then the repeats.

    points: the swept values, a dictionary each. A point that diverged has inf or nan from there on.
    """

    points: list[dict[str, float]]
    algorithms: list[Algorithm]
    run: Run
    repeats: int

    def _by_point(self, lanes: Tree) -> Tree:
        return jax.tree.map(lambda a: a.reshape(len(self.points), self.repeats, *a.shape[1:]), lanes)

    @property
    def rounds(self) -> np.ndarray:
        return self.run.rounds

    @cached_property
    def _aims(self) -> list[Model | None]:
        """What each point is after: on a network its own solution, which depends on the coupling."""
        session = self.run.session
        return [algorithm.aim(session.problem, session.network) for algorithm in self.algorithms]

    @property
    def has_error(self) -> bool:
        """Whether every point has one solution, and it is known."""
        return all(aim is not None for aim in self._aims)

    @cached_property
    def error(self) -> np.ndarray:
        """(points, repeats, n)."""
        session = self.run.session
        if not session.algorithm.at_agents:
            return self._by_point(self.run.error)
        for point, algorithm, aim in zip(self.points, self.algorithms, self._aims, strict=True):
            if aim is None:
                why = algorithm.why_no_aim(session.problem, session.network)
                raise FedpointError(f"the sweep has no error at {point}: {why}. sweep.has_error asks first")
        leaves = jax.tree.leaves(self._by_point(self.run.history))
        ends = [np.stack(leaf)[:, None, None] for leaf in zip(*map(jax.tree.leaves, self._aims), strict=True)]
        gaps = [a.astype(np.float64) - b for a, b in zip(leaves, ends, strict=True)]
        return np.asarray(sum((gap**2).sum(axis=tuple(range(3, gap.ndim))) for gap in gaps) / session.problem.agents)

    @property
    def loss(self) -> np.ndarray:
        return self._by_point(self.run.loss)

    @property
    def model(self) -> Model:
        return self._by_point(self.run.model)

    @property
    def used(self) -> np.ndarray:
        """(points, repeats, n, 3): models sent, answers and field evaluations."""
        return self._by_point(self.run.used)

    def best(self) -> dict[str, float]:
        """The point with the least mean final error (or loss, where no solution is known)."""
        final = self.error if self.has_error else self.loss
        mean = final[..., -1].mean(axis=1)
        return self.points[int(np.nanargmin(np.where(np.isfinite(mean), mean, np.inf)))]
