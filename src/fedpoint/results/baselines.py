"""What did `fp.baselines` find? Errors by method and agent, their differences, as a table and a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from fedpoint.core.arguments import checked_methods
from fedpoint.core.errors import FedpointError, nearest
from fedpoint.core.numbers import counted, finite
from fedpoint.core.text_table import aligned
from fedpoint.core.types import Plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEVEL = 0.95
MEASURES = {"regression": "mean squared error", "classification": "log loss", "trained": "loss"}  # by kind
COMMON = ("pooled", "global")  # the models that all agents have in common, which others are compared with
OWN = ("coupled", "personalised", "fine-tuned")  # those of agents, which are compared with local ones too

Row: TypeAlias = dict[str, str | float | None]


@dataclass(frozen=True)
class Difference:
    """Held-out error of `method` less that of `against`, paired by agent: below 0, `method` is better.

    mean, low, high: over agents, with a 95 % interval. better: of how many `agents` it is below 0.
    """

    method: str
    against: str
    mean: float
    low: float
    high: float
    better: int
    agents: int

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0

    @property
    def same(self) -> bool:
        """Whether there is no difference at all."""
        return self.low == self.high == 0

    def __str__(self) -> str:
        if self.same:
            return f"{self.method} and {self.against}: the same"
        word = "no clear difference"
        if self.clear:
            word = "better" if self.mean < 0 else "worse"
        interval = f"{self.mean:+.3g} ({self.low:+.3g} to {self.high:+.3g})"
        return f"{self.method} against {self.against}: {interval}, lower for {self.better} of {self.agents}: {word}"


@checked_methods
@dataclass(frozen=True)
class Baselines:
    """Held-out errors of several ways to fit agents' models. Print it for a table.

    Attributes:
        errors: by method, (splits, agents): the mean squared error, the mean log loss, or the loss, of each agent's
            held-out rows; nan for agents of which nothing was held out.
        accuracies: likewise, the share of rows whose class is right; empty for numbers.
        chosen: by method, the ridge (and coupling) of every split; of trained models nothing.
        weights: (agents,) what an agent counts in a mean.
        names: of the agents.
        kind: "regression", "classification", or "trained" where rounds trained the models.
        weighed: by "agents" or by their "rows".
        how: how rows were held out, in words.

    Arguments of methods:
        method: one of `methods`.
    """

    errors: dict[str, np.ndarray]
    accuracies: dict[str, np.ndarray]
    chosen: dict[str, list[dict[str, float]]]
    weights: np.ndarray
    names: list[str]
    kind: str
    weighed: str
    how: str

    @property
    def measure(self) -> str:
        return MEASURES[self.kind]

    @property
    def methods(self) -> list[str]:
        return list(self.errors)

    def per_agent(self, method: str) -> dict[str, float]:
        """The error of each agent by its name, mean over splits; nan where nothing of it was held out."""
        return self._by_name(self._means(method))

    def accuracy_per_agent(self, method: str) -> dict[str, float]:
        """The same of accuracies, for classes."""
        if not self.accuracies:
            raise FedpointError("there are no accuracies: numbers were predicted, not classes")
        self._means(method)
        return self._by_name(mean_of(self.accuracies[method]))

    def _by_name(self, values: np.ndarray) -> dict[str, float]:
        return dict(zip(self.names, values.tolist(), strict=True))

    def _means(self, method: str) -> np.ndarray:
        """(agents,): the error of each, mean over splits."""
        if method not in self.errors:
            raise FedpointError(f"there is no method {method!r}: {nearest(str(method), self.methods)}")
        return mean_of(self.errors[method])

    def error(self, method: str) -> tuple[float, float, float]:
        """The mean over agents, and a 95 % interval: over agents, given the fits."""
        return interval(self._means(method), self.weights)

    def per_split(self, method: str) -> np.ndarray:
        """(splits,): the mean over agents in each. Splits share rows: their spread is smaller than that of new data."""
        self._means(method)
        return np.array([interval(row, self.weights)[0] for row in self.errors[method]])

    def difference(self, method: str, against: str) -> Difference:
        """Is one better than the other? Paired by agent and split.

        Args:
            against: the other method.
        """
        self._means(method), self._means(against)
        gaps = mean_of(self.errors[method] - self.errors[against])
        some = np.isfinite(gaps)
        return Difference(
            method, against, *interval(gaps, self.weights), better=int((gaps[some] < 0).sum()), agents=int(some.sum())
        )

    def differences(self) -> list[Difference]:
        """The others against the model that all have in common, and agents' own models against local ones."""
        common = next((m for m in COMMON if m in self.errors), None)
        pairs = [] if common is None else [(m, common) for m in self.methods if m != common]
        pairs += [(m, "local") for m in OWN if {m, "local"} <= set(self.errors)]
        return [self.difference(*pair) for pair in pairs]

    def table(self) -> list[Row]:
        """One row a method."""
        return [self._row(method) for method in self.methods]

    def _row(self, method: str) -> Row:
        mean, low, high = self.error(method)
        each = self._means(method)
        each = np.sort(each[np.isfinite(each)])
        tenth = max(1, len(each) // 10)
        splits = self.per_split(method)
        row: Row = {
            "method": method,
            "error": mean,
            "low": low,
            "high": high,
            "least_split": float(splits.min()),
            "most_split": float(splits.max()),
            "best_tenth": float(each[:tenth].mean()),
            "median": float(np.median(each)),
            "worst_tenth": float(each[-tenth:].mean()),
            "ridge": self._median(method, "ridge"),
            "coupling": self._median(method, "coupling"),
        }
        if self.accuracies:
            row["accuracy"] = interval(mean_of(self.accuracies[method]), self.weights)[0]
        return row

    def _median(self, method: str, what: str) -> float | None:
        """Of what was chosen in every split."""
        values = [c[what] for c in self.chosen[method] if what in c]
        return float(np.median(values)) if values else None

    def to_dict(self) -> dict[str, Plain]:
        """Everything in plain types, for `json.dumps`; None where nothing was held out."""
        return {
            "kind": self.kind,
            "measure": self.measure,
            "how": self.how,
            "weight": self.weighed,
            "agents": list(self.names),
            "methods": [{**row} for row in self.table()],
            "differences": [vars(d) | {"clear": d.clear} for d in self.differences()],
            "errors": {m: self._by_agent(each) for m, each in self.errors.items()},
            "accuracies": {m: self._by_agent(each) for m, each in self.accuracies.items()},
            "chosen": {m: [dict(c) for c in each] for m, each in self.chosen.items()},
        }

    def _by_agent(self, values: np.ndarray) -> dict[str, Plain]:
        """Each agent's numbers in every split."""
        return {name: [finite(e) for e in each] for name, each in zip(self.names, values.T, strict=True)}

    def __str__(self) -> str:
        head = ["method", "error", "95 % interval", "over splits", "best tenth", "median", "worst tenth"]
        head += ["accuracy", "ridge", "coupling"]
        rows = [head, *(_cells(row) for row in self.table())]
        several = len(next(iter(self.errors.values()))) > 1
        drop = [i for i in range(len(rows[0])) if all(not r[i] for r in rows[1:]) or (i == 3 and not several)]
        rows = [[cell for i, cell in enumerate(row) if i not in drop] for row in rows]
        lines = [f"{self.measure} of held-out rows, mean over {self.weighed}; {self.how}", ""]
        lines += aligned(rows, ruled=False)
        return "\n".join([*lines, "", *map(str, self.differences()), *self._told()])

    def _told(self) -> list[str]:
        ridges = {c["ridge"] for each in self.chosen.values() for c in each if "ridge" in c}
        if len(ridges) != 1 or not {"local"} < set(self.errors):
            return []
        return ["", f'All methods have the ridge {ridges.pop():g}. ridge="tuned" lets each choose its own: try both.']

    def __repr__(self) -> str:
        errors = ", ".join(f"{m} {self.error(m)[0]:.4g}" for m in self.methods)
        return f"<Baselines of {counted(len(self.names), 'agent')}, {self.measure}: {errors}>"

    def plot(self, path: str | Path | None = None, title: str | None = None) -> Figure:
        """Left: every agent's error, their mean and its interval. Right: differences, paired by agent.

        Args:
            path: where to save it; png, svg or pdf by the ending.
            title: above it.
        """
        from fedpoint.show.figures import check_path, new_figure, save

        if path is not None:
            check_path(path)
        figure = new_figure(9.6, 4.2)
        left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
        self._draw_errors(left, title)
        self._draw_differences(right)
        if path is not None:
            save(figure, path)
        return figure

    def _draw_errors(self, ax: Axes, title: str | None) -> None:
        from fedpoint.show.figures import COLOURS, INK, style

        found = [self._means(m) for m in self.methods]
        found = [each[np.isfinite(each)] for each in found]
        positive = all((each > 0).all() for each in found)
        for i, (method, each) in enumerate(zip(self.methods, found, strict=True)):
            place = i + 0.5 * (_halton(len(each)) - 0.5)
            ax.plot(place, each, "o", color=COLOURS[i], markersize=3, alpha=0.35, markeredgewidth=0)
            mean, low, high = self.error(method)
            ax.errorbar(
                [i + 0.36], [mean], [[mean - max(low, 1e-12 if positive else low)], [high - mean]], fmt="o", color=INK,
                markersize=5, capsize=3, linewidth=1.4,
            )  # fmt: skip
        if positive:
            ax.set_yscale("log")
            values = np.concatenate(found)
            ax.set_ylim(0.8 * max(values.min(), 1e-3 * np.median(values)), 1.25 * values.max())
        style(ax, "dots: agents; black: mean, 95 % interval", f"held-out {self.measure}", title)
        ax.set_xticks(range(len(self.methods)), self.methods)
        ax.set_xlim(-0.5, len(self.methods) - 0.35)
        ax.grid(False, axis="x")

    def _draw_differences(self, ax: Axes) -> None:
        from fedpoint.show.figures import INK, PALE, RULE, style

        found = [d for d in self.differences() if not d.same]
        for i, d in enumerate(found):
            ax.errorbar(
                [d.mean], [-i], xerr=[[d.mean - d.low], [d.high - d.mean]], fmt="o", color=INK if d.clear else PALE,
                markersize=5, capsize=3, linewidth=1.4,
            )  # fmt: skip
        ax.vlines(0, 0, 1, transform=ax.get_xaxis_transform(), color=RULE, linewidth=1)  # a rule, not a curve
        style(ax, "paired difference of errors, 95 % interval", whole=False)
        ax.set_yticks([-i for i in range(len(found))], [f"{d.method}\nagainst {d.against}" for d in found])
        ax.set_ylim(0.5 - len(found), 0.5)
        ax.margins(x=0.08)
        ax.grid(False, axis="y")


def _cells(row: Row) -> list[str]:
    return [
        str(row["method"]),
        f"{row['error']:.4g}",
        f"{row['low']:.4g} to {row['high']:.4g}",
        f"{row['least_split']:.4g} to {row['most_split']:.4g}",
        *(f"{row[part]:.4g}" for part in ("best_tenth", "median", "worst_tenth")),
        f"{row['accuracy']:.4f}" if "accuracy" in row else "",
        "" if row["ridge"] is None else f"{row['ridge']:.1g}",
        "" if row["coupling"] is None else f"{row['coupling']:.2g}",
    ]


def mean_of(values: np.ndarray) -> np.ndarray:
    """Over the first axis, of what is there; nan where nothing is."""
    there = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.where(there, values, 0.0).sum(0) / there.sum(0)


def interval(values: np.ndarray, weights: np.ndarray) -> tuple[float, float, float]:
    """The weighted mean over agents, and Student's 95 % interval of it."""
    from scipy.stats import t

    some = np.isfinite(values)
    e, v = values[some], weights[some] / weights[some].sum()
    mean, n = float(v @ e), len(e)
    if n < 2:
        return mean, float("-inf"), float("inf")
    reach = float(t.ppf(0.5 + LEVEL / 2, n - 1) * np.sqrt(n / (n - 1) * ((v * (e - mean)) ** 2).sum()))
    return mean, mean - reach, mean + reach


def _halton(count: int) -> np.ndarray:
    """Evenly scattered numbers in [0, 1): the golden ratio's multiples."""
    return (np.arange(count) * 0.6180339887498949) % 1.0
