"""Which one is better? Several runs on one problem: one table, one picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from fedpoint.core.arguments import checked_methods
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.numbers import counted, finite, with_error
from fedpoint.core.text_table import aligned
from fedpoint.core.types import Plain
from fedpoint.metrics.means import mean_and_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedpoint.results.run import Run

# Columns of the table: key, heading.
COLUMNS = (
    ("method", "method"),
    ("rounds", "rounds"),
    ("error", "error"),
    ("loss", "loss"),
    ("floats_up", "floats up"),
    ("evaluations", "evaluations"),
    ("speed", "rounds/s"),
)


Row: TypeAlias = dict[str, str | int | float | None]


@checked_methods
class Comparison:
    """Several runs on one problem, with the same seed: a mapping from their labels. Printed, it is a table.

    comparison["FedAvg"] and comparison[0] are runs; iterating gives the labels, as of a dictionary.

    Args:
        runs: one for each label.
        labels: what to call them.
    """

    def __init__(self, runs: Sequence[Run], labels: Sequence[str]):
        self.runs, self.labels = list(runs), list(labels)

    def table(self) -> list[Row]:
        """One row a method. error and loss: means over repeats of the final model, with standard errors
        (None for a single repeat; error is None where the solution is not known)."""
        return [_row(run, label) for run, label in zip(self.runs, self.labels, strict=True)]

    def to_json(self) -> dict[str, Plain]:
        """The table with what was compared, in plain types for `json.dumps`; not finite is None."""
        first = self.runs[0]
        return {
            "problem": type(first.problem).__name__,
            "agents": int(first.problem.agents),
            "seed": int(first.seed),
            "repeats": int(first.session.repeats),
            "methods": [
                {key: finite(value) if isinstance(value, float) else value for key, value in row.items()}
                for row in self.table()
            ],
        }

    def plot(
        self,
        path: str | Path | None = None,
        what: str | None = None,
        x: str = "rounds",
        title: str | None = None,
    ) -> Figure:
        """One line for each method.

        Args:
            path: where to save it; png, svg or pdf by the ending.
            what: "error", "loss" or a metric of `evaluate=`; default: the error where it is known, else the loss.
            x: "rounds", "messages", "floats", "bytes", "evaluations" or "time", as in `fedpoint.show.plots.curves`.
            title: above it.
        """
        from fedpoint.show.plots import curves

        return curves(self.runs, path, what=what, labels=self.labels, title=title, x=x)

    def __getitem__(self, which: str | int) -> Run:
        """The run of this label, or of this place."""
        if isinstance(which, str):
            if which not in self.labels:
                raise FedpointError(f"the comparison has no run {which!r}: {nearest(which, self.labels)}")
            return self.runs[self.labels.index(which)]
        if isinstance(which, bool) or not isinstance(which, int | np.integer):
            raise FedpointError(f"a run of a comparison is asked for by its label or its place, not by {which!r}")
        if not -len(self) <= which < len(self):
            raise FedpointError(f"the comparison has {counted(len(self), 'run')}, from 0 on: there is no run {which}")
        return self.runs[which]

    def __contains__(self, label: object) -> bool:
        return label in self.labels

    def __iter__(self) -> Iterator[str]:
        return iter(self.labels)

    def keys(self) -> list[str]:
        return list(self.labels)

    def values(self) -> list[Run]:
        return list(self.runs)

    def items(self) -> list[tuple[str, Run]]:
        return list(zip(self.labels, self.runs, strict=True))

    def __len__(self) -> int:
        return len(self.runs)

    def __str__(self) -> str:
        rows = [[_cell(row, key) for key, _ in COLUMNS] for row in self.table()]
        return "\n".join(aligned([[heading for _, heading in COLUMNS], *rows]))

    def _repr_html_(self) -> str:
        from fedpoint.show.html import comparison_html

        return comparison_html(self)

    def __repr__(self) -> str:
        return f"<Comparison of {counted(len(self), 'run')}: {'; '.join(self.labels)}>"


def _row(run: Run, label: str) -> Row:
    cost = run.cost
    mean, spread = mean_and_error(run.error[:, -1] if run.has_error else None)
    loss, loss_spread = mean_and_error(run.loss[:, -1] if run.has_loss else None)
    return {
        "method": label,
        "rounds": cost.rounds,
        "error": mean,
        "error_se": spread,
        "loss": loss,
        "loss_se": loss_spread,
        "floats_up": cost.floats_up,
        "evaluations": cost.evaluations,
        "speed": run.speed,
    }


def _cell(row: Row, key: str) -> str:
    value = row[key]
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if key in ("error", "loss"):
        spread = row[f"{key}_se"]
        return with_error(value, spread if isinstance(spread, float) else None)
    return f"{value:,.0f}"
