"""Who has what? Rows by agent and class, as a table and a picture."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from fedpoint.core.arguments import checked, checked_methods
from fedpoint.core.arrays import array_of, told_apart
from fedpoint.core.errors import FedpointError
from fedpoint.core.kinds import Count
from fedpoint.core.numbers import counted
from fedpoint.core.text_table import aligned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 30  # classes; targets of more values are cut into parts of equal size
PARTS = 5


@checked_methods
@dataclass(frozen=True, eq=False)
class Spread:
    """Rows by agent and class; `fp.data.spread` counts them.

    Args:
        agents: names of the agents.
        classes: names of the classes, or of parts of a target that is a number.
        counts: (agents, classes) rows.
    """

    agents: tuple[str, ...]
    classes: tuple[str, ...]
    counts: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        """(agents,): rows of each agent."""
        return self.counts.sum(1)

    @property
    def skew(self) -> np.ndarray:
        """(agents,): the total variation distance of an agent's classes from those of all rows: the share of its rows
        that would have to be of another class. 0 is as all, 1 is a class that nobody else has."""
        own, all_rows = self.counts / self.rows[:, None], self.counts.sum(0) / self.counts.sum()
        return np.abs(own - all_rows).sum(1) / 2

    @property
    def distance(self) -> float:
        """The mean of `skew`, weighted by rows."""
        return float(self.rows @ self.skew / self.rows.sum())

    def text(self, most: Count = 20) -> str:
        """The table, of the agents with most rows and with fewest.

        Args:
            most: agents that are listed.
        """
        order = np.argsort(-self.rows, kind="stable")
        listed = order if len(order) <= most else np.concatenate([order[: most - most // 2], order[-(most // 2) :]])
        table = [["agent", "rows", "classes", "commonest", "skew"]]
        for k in listed:
            own = self.counts[k]
            commonest = f"{self.classes[own.argmax()]} ({own.max() / own.sum():.0%})"
            table.append([self.agents[k], f"{own.sum():,}", f"{(own > 0).sum()}", commonest, f"{self.skew[k]:.2f}"])
        sizes = f"{self.rows.min():,} to {self.rows.max():,} each" if len(self.agents) > 1 else "of one"
        head = f"{counted(len(self.agents), 'agent')}, {counted(int(self.rows.sum()), 'row')}, {sizes}"
        return "\n".join([f"{head}; mean skew {self.distance:.2f}", "", *aligned(table)])

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw each agent's shares of the classes, and its rows.

        Args:
            path: a file for the picture, .png, .svg or .pdf.
        """
        from fedpoint.show.spread import spread_figure

        return spread_figure(self, path)

    def __repr__(self) -> str:
        return self.text()


@checked
def spread(y: ArrayLike, groups: ArrayLike) -> Spread:
    """Rows by agent and class, of a partition, a column of agents or any other labels.

    Args:
        y: (n,) the target of each row. Numbers of many values are cut into fifths.
        groups: (n,) whose row it is.

    >>> spread(["a", "a", "a", "b"], [0, 0, 1, 1])
    2 agents, 4 rows, 2 to 2 each; mean skew 0.25
    <BLANKLINE>
    agent  rows  classes  commonest  skew
    -----  ----  -------  ---------  ----
    0         2        1   a (100%)  0.25
    1         2        2    a (50%)  0.25
    """
    y, groups = array_of("y", y), array_of("groups", groups)
    if y.ndim != 1 or y.shape != groups.shape or not len(y):
        raise FedpointError(f"y and groups must be labels of the same rows; got shapes {y.shape} and {groups.shape}")
    agents, who, _ = told_apart("groups", groups)
    names, label, _ = told_apart("y", y)
    words = [str(name) for name in names]
    if len(names) > MOST and y.dtype.kind in "iuf":
        ends = np.unique(np.quantile(y, np.linspace(0, 1, PARTS + 1)))
        label = np.clip(np.searchsorted(ends, y, side="right") - 1, 0, len(ends) - 2)
        words = [f"{low:.3g} to {high:.3g}" for low, high in pairwise(ends)]
    counts = np.zeros((len(agents), len(words)), int)
    np.add.at(counts, (who, label), 1)
    return Spread(tuple(map(str, agents)), tuple(words), counts)
