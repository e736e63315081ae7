"""Which one is better? `fp.compare` runs several algorithms on one problem: one table, one picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedpoint.core.plain import finite
from fedpoint.errors import Diverged, FedpointError
from fedpoint.metrics.means import mean_and_error
from fedpoint.report.columns import aligned
from fedpoint.report.labels import labels_of, slug
from fedpoint.verbs.run import Run, run

# Columns of the table: key, heading.
COLUMNS = (
    ("method", "method"),
    ("rounds", "rounds"),
    ("error", "error"),
    ("loss", "loss"),
    ("floats_up", "floats up"),
    ("evaluations", "evaluations"),
    ("speed", "rounds/s, compiling included"),
)


class Comparison:
    """Several runs on one problem, with the same seed. Printed, it is a table."""

    def __init__(self, runs: Sequence[Run], labels: Sequence[str]):
        self.runs, self.labels = list(runs), list(labels)

    def table(self) -> list[dict[str, Any]]:
        """One row a method. error and loss: means over repeats of the final model, with standard errors
        (None for a single repeat; error is None where the solution is not known)."""
        return [_row(run, label) for run, label in zip(self.runs, self.labels, strict=True)]

    def to_json(self) -> dict[str, Any]:
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
    ):
        """One line a method, see `fedpoint.report.plots.curves`; what: the error where it is known, else the loss."""
        from fedpoint.report.plots import curves

        what = what or ("loss" if self.runs[0].error is None else "error")
        return curves(self.runs, path, what=what, labels=self.labels, title=title, x=x)

    def __len__(self) -> int:
        return len(self.runs)

    def __str__(self) -> str:
        rows = [[_cell(row, key) for key, _ in COLUMNS] for row in self.table()]
        return "\n".join(aligned([[heading for _, heading in COLUMNS], *rows]))

    def _repr_html_(self) -> str:
        from fedpoint.report.html import comparison_html

        return comparison_html(self)

    def __repr__(self) -> str:
        return f"<Comparison: {', '.join(self.labels)}>"


def compare(algorithms: Iterable[Any], problem: Any, labels: Sequence[str] | None = None, **options: Any) -> Comparison:
    """Run each algorithm on the problem, with the same seed and the same options of `fp.run`.

    labels: one for each; default: what differs between them, such as "FedAvg, local_steps=10".
    With `folder=` each run gets a folder in it, named by its label.

    >>> import fedpoint as fp
    >>> quad = fp.problems.Quadratic([1.0, 2.0], [[0.0], [1.0]])
    >>> both = fp.compare([fp.FedAvg(step=0.5, local_steps=5), fp.Scaffold(step=0.1, local_steps=5)], quad, rounds=99)
    >>> {row["method"]: row["error"] < 1e-10 for row in both.table()}
    {'FedAvg': False, 'SCAFFOLD': True}
    """
    algorithms = list(algorithms)
    if not algorithms:
        raise FedpointError("nothing to compare: give at least one algorithm")
    for given in algorithms:
        if not hasattr(type(given), "card"):
            raise FedpointError(f"compare takes algorithms such as fp.FedAvg(step=0.1), got {given!r}")
    names = labels_of(algorithms) if labels is None else [str(label) for label in labels]
    if len(names) != len(algorithms):
        raise FedpointError(f"{len(names)} labels for {len(algorithms)} algorithms: give one each")
    if len(set(names)) != len(names):
        raise FedpointError(f"two of the labels are the same: {', '.join(names)}")
    options["callbacks"] = list(options.get("callbacks", ()))  # an iterator would serve the first run only
    folder = options.pop("folder", None)
    runs = []
    for i, (algorithm, name) in enumerate(zip(algorithms, names, strict=True)):
        own = None if folder is None else Path(folder) / f"{i + 1}-{slug(name)}"
        try:
            runs.append(run(algorithm, problem, folder=own, **options))
        except Diverged as error:
            raise Diverged(f"{name}: {error}", error.round) from None
    return Comparison(runs, names)


def _row(run: Run, label: str) -> dict[str, Any]:
    cost = run.cost
    error = None if run.error is None else run.error[:, -1]
    mean, spread = mean_and_error(error)
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


def _cell(row: dict[str, Any], key: str) -> str:
    value = row[key]
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if key in ("error", "loss"):
        spread = row[f"{key}_se"]
        return f"{value:.3g}" if spread is None else f"{value:.3g} ± {spread:.1g}"
    return f"{value:,.0f}"
