"""What came of a sweep? One run whose repeats are the points of the sweep times their repeats."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from fedpoint.results.run import Run


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
