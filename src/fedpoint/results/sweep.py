"""What came of a sweep? One run whose repeats are the points of the sweep times their repeats."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from fedpoint.core.algorithm import Algorithm
from fedpoint.core.arguments import checked_methods
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.numbers import counted, with_error
from fedpoint.core.text_table import aligned
from fedpoint.core.types import Model, Tree
from fedpoint.metrics.means import mean_and_error
from fedpoint.results.labels import short
from fedpoint.results.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@checked_methods
@dataclass(frozen=True, repr=False)
class Sweep:
    """The result of a sweep: every array leads with the points, then the repeats. Printed, it is a table.

    Attributes:
        points: the swept values, a dictionary each. A point that diverged has inf or nan from there on.
        algorithms: the method at each point.
        run: all points as repeats of one run.
        repeats: how many runs each point has.
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
        """What each point is after: that of nodes and of agents with own models depends on coupling or pull."""
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
        if not (session.algorithm.at_agents or session.algorithm.personal):
            return self._by_point(self.run.error)
        for point, algorithm, aim in zip(self.points, self.algorithms, self._aims, strict=True):
            if aim is None:
                why = algorithm.why_no_aim(session.problem, session.network)
                raise FedpointError(f"the sweep has no error at {point}: {why}. sweep.has_error asks first")
        leaves = jax.tree.leaves(self._by_point(self.run.history))
        ends = [np.stack(leaf)[:, None, None] for leaf in zip(*map(jax.tree.leaves, self._aims), strict=True)]
        with np.errstate(over="ignore", invalid="ignore"):  # of what diverged
            gaps = [a.astype(np.float64) - b for a, b in zip(leaves, ends, strict=True)]
            squares = sum((gap**2).sum(axis=tuple(range(3, gap.ndim))) for gap in gaps)
        return np.asarray(squares / session.problem.agents)

    @property
    def loss(self) -> np.ndarray:
        return self._by_point(self.run.loss)

    @property
    def model(self) -> Tree:
        return self.run.problem.whole(self._by_point(self.run.learnt))

    @property
    def used(self) -> np.ndarray:
        """(points, repeats, n, 3): models sent, answers and field evaluations."""
        return self._by_point(self.run.used)

    @property
    def labels(self) -> list[str]:
        """What tells the points apart, such as "step=0.1, local_steps=5"."""
        return [", ".join(f"{name}={short(value)}" for name, value in point.items()) for point in self.points]

    @property
    def measures(self) -> list[str]:
        """What the points can be judged by: "error" where the solution is known, "loss" where there is one."""
        return ["error"] * self.has_error + ["loss"] * self.run.has_loss

    def measured(self, name: str) -> np.ndarray:
        """(points, repeats, n): "error" or "loss".

        Args:
            name: "error" or "loss".
        """
        if name not in ("error", "loss"):
            raise FedpointError(f"the points of a sweep have no {name!r}: {nearest(str(name), ('error', 'loss'))}")
        return self.error if name == "error" else self.loss

    def judge(self) -> str:
        """The first of the measures."""
        if not self.measures:
            raise FedpointError("the points cannot be told apart: the solution is not known, and there is no loss")
        return self.measures[0]

    def best(self) -> dict[str, float]:
        """The point with the least mean final error (or loss, where no solution is known)."""
        mean = self.measured(self.judge())[..., -1].mean(axis=1)
        if not np.isfinite(mean).any():
            raise FedpointError(f"every point of the sweep diverged: {'; '.join(self.labels[:4])}")
        return self.points[int(np.argmin(np.where(np.isfinite(mean), mean, np.inf)))]

    def table(self) -> list[dict[str, float | None]]:
        """One row a point: the swept values, and the means over repeats of the final error and loss where they are
        known, with standard errors (None for a single repeat)."""
        rows: list[dict[str, float | None]] = [dict(point) for point in self.points]
        for name in self.measures:
            for row, final in zip(rows, self.measured(name)[..., -1], strict=True):
                row[name], row[f"{name}_se"] = mean_and_error(final)
        return rows

    def plot(
        self, path: str | Path | None = None, what: str | None = None, x: str = "rounds", title: str | None = None
    ) -> Figure:
        """One line for each point.

        Args:
            path: where to save it; png, svg or pdf by the ending.
            what: "error" or "loss"; default: the error where the solution is known.
            x: "rounds", "messages", "floats", "bytes", "evaluations" or "time".
            title: above it.
        """
        from fedpoint.show.plots import point_curves

        return point_curves(self, path=path, what=what, x=x, title=title)

    def __len__(self) -> int:
        return len(self.points)

    def __str__(self) -> str:
        swept, rows = list(self.points[0]), []
        for row in self.table():
            final = [with_error(row[name], row[f"{name}_se"]) for name in self.measures]
            rows.append([*(short(row[name]) for name in swept), *final])
        return "\n".join(aligned([[*swept, *(f"final {name}" for name in self.measures)], *rows], left=0))

    def __repr__(self) -> str:
        swept = " and ".join(self.points[0]) or "nothing"
        about = ((len(self.points), "point"), (int(self.rounds[-1]), "round"), (self.repeats, "repeat"))
        counts = ", ".join(counted(count, noun) for count, noun in about)
        return f"<Sweep of {self.algorithms[0].card.title} over {swept}: {counts}>"
