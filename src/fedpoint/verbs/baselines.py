"""Is it worth it? `fp.baselines` fits local, pooled, federated and coupled models to one table, and compares them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits

from fedpoint.core.network import Network
from fedpoint.errors import FedpointError, nearest
from fedpoint.problems.base import by_agent, check_finite
from fedpoint.verbs.baselines_fit import DENSE, Family, Rows, fedavg, minimise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("local", "pooled", "SCAFFOLD", "FedAvg", "coupled")
RIDGES = np.logspace(-6, 1, 8)  # for columns of variance 1 and mean losses
DECADES, COUPLINGS = 6.0, 13  # around the one where an agent's rows and its neighbours pull alike
CLASSES = 20  # whole numbers of at most so many values are classes
LEVEL = 0.95


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


@dataclass(frozen=True)
class Baselines:
    """Held-out errors of several ways to fit agents' models. Print it for a table.

    errors: by method, (splits, agents): the mean squared error, or the mean log loss, of each agent's held-out rows;
    nan for agents of which nothing was held out. accuracies: likewise, for classes. chosen: by method, the ridge (and
    coupling) of every split. weights: (agents,) what an agent counts in a mean.
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
        return "mean squared error" if self.kind == "regression" else "log loss"

    @property
    def methods(self) -> list[str]:
        return list(self.errors)

    def per_agent(self, method: str) -> np.ndarray:
        """(agents,): the error of each, mean over splits."""
        if method not in self.errors:
            raise FedpointError(f"there is no method {method!r}: {nearest(str(method), self.methods)}")
        return _mean(self.errors[method])

    def error(self, method: str) -> tuple[float, float, float]:
        """The mean over agents, and a 95 % interval: over agents, given the fits."""
        return _interval(self.per_agent(method), self.weights)

    def per_split(self, method: str) -> np.ndarray:
        """(splits,): the mean over agents in each. Splits share rows: their spread is smaller than that of new data."""
        self.per_agent(method)
        return np.array([_interval(row, self.weights)[0] for row in self.errors[method]])

    def difference(self, method: str, against: str) -> Difference:
        """Is one better than the other? Paired by agent and split."""
        self.per_agent(method), self.per_agent(against)
        gaps = _mean(self.errors[method] - self.errors[against])
        some = np.isfinite(gaps)
        return Difference(
            method, against, *_interval(gaps, self.weights), better=int((gaps[some] < 0).sum()), agents=int(some.sum())
        )

    def differences(self) -> list[Difference]:
        """The others against the pooled model, and the coupled against local ones."""
        pairs = [(m, "pooled") for m in self.methods if m != "pooled"] if "pooled" in self.errors else []
        pairs += [("coupled", "local")] if {"coupled", "local"} <= set(self.errors) else []
        return [self.difference(*pair) for pair in pairs]

    def table(self) -> list[dict[str, Any]]:
        """One row a method."""
        return [self._row(method) for method in self.methods]

    def _row(self, method: str) -> dict[str, Any]:
        mean, low, high = self.error(method)
        each = self.per_agent(method)
        each = np.sort(each[np.isfinite(each)])
        tenth = max(1, len(each) // 10)
        splits = self.per_split(method)
        row: dict[str, Any] = {"method": method, "error": mean, "low": low, "high": high}
        row |= {"least_split": float(splits.min()), "most_split": float(splits.max())}
        row["worst_tenth"] = float(each[-tenth:].mean())
        if self.accuracies:
            row["accuracy"] = _interval(_mean(self.accuracies[method]), self.weights)[0]
        for what in ("ridge", "coupling"):
            values = [c[what] for c in self.chosen[method] if what in c]
            row[what] = float(np.median(values)) if values else None
        return row

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain types, for `json.dumps`; None where nothing was held out."""
        return {
            "kind": self.kind,
            "measure": self.measure,
            "how": self.how,
            "weight": self.weighed,
            "agents": list(self.names),
            "methods": self.table(),
            "differences": [vars(d) | {"clear": d.clear} for d in self.differences()],
            "errors": {
                m: [[None if np.isnan(e) else float(e) for e in row] for row in v] for m, v in self.errors.items()
            },
            "chosen": self.chosen,
        }

    def __str__(self) -> str:
        head = ["method", "error", "95 % interval", "over splits", "worst tenth", "accuracy", "ridge", "coupling"]
        rows = [head, *(_cells(row) for row in self.table())]
        several = len(next(iter(self.errors.values()))) > 1
        drop = [i for i in range(len(rows[0])) if all(not r[i] for r in rows[1:]) or (i == 3 and not several)]
        rows = [[cell for i, cell in enumerate(row) if i not in drop] for row in rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [f"{self.measure} of held-out rows, mean over {self.weighed}; {self.how}", ""]
        for first, *others in rows:
            rest = [cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True)]
            lines.append("  ".join([first.ljust(widths[0]), *rest]).rstrip())
        return "\n".join([*lines, "", *map(str, self.differences())])

    def __repr__(self) -> str:
        errors = ", ".join(f"{m} {self.error(m)[0]:.4g}" for m in self.methods)
        return f"<Baselines of {len(self.names)} agents, {self.measure}: {errors}>"

    def plot(self, path: str | Path | None = None, title: str | None = None) -> Figure:
        """Left: every agent's error, their mean and its interval. Right: differences, paired by agent."""
        from fedpoint.report.plots import check_path, new_figure, save

        if path is not None:
            check_path(path)
        figure = new_figure(9.6, 4.2)
        left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
        self._draw_errors(left, title)
        self._draw_differences(right)
        if path is not None:
            save(figure, path)
        return figure

    def _draw_errors(self, ax: Any, title: str | None) -> None:
        from fedpoint.report.plots import COLOURS, INK, style

        found = [self.per_agent(m) for m in self.methods]
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

    def _draw_differences(self, ax: Any) -> None:
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        from fedpoint.report.plots import INK, PALE, style

        found = [d for d in self.differences() if not d.same]
        for i, d in enumerate(found):
            ax.errorbar(
                [d.mean], [-i], xerr=[[d.mean - d.low], [d.high - d.mean]], fmt="o", color=INK if d.clear else PALE,
                markersize=5, capsize=3, linewidth=1.4,
            )  # fmt: skip
        ax.axvline(0, color="#999999", linewidth=1)
        style(ax, "paired difference of errors, 95 % interval")
        ax.xaxis.set_major_locator(MaxNLocator(nbins=5))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.set_yticks([-i for i in range(len(found))], [f"{d.method}\nagainst {d.against}" for d in found])
        ax.set_ylim(0.5 - len(found), 0.5)
        ax.margins(x=0.08)
        ax.grid(False, axis="y")


def baselines(
    X: Any,
    y: Any,
    groups: Any,
    network: Network | None = None,
    seeds: int | Iterable[int] = 5,
    held_out: float = 0.3,
    split: Any = None,
    validation: Any = None,
    folds: int = 3,
    methods: Sequence[str] | None = None,
    task: str | None = None,
    weight: str = "agents",
    ridges: Sequence[float] | np.ndarray | None = None,
    couplings: Sequence[float] | np.ndarray | None = None,
    neighbours: int = 5,
    local_steps: int = 10,
    step: float | None = None,
) -> Baselines:
    """Local models, one pooled model, federated ones and models coupled over a graph: held-out error of each agent.

    All are linear in the columns and a constant, with squared errors for numbers and logistic or softmax losses for
    classes. Columns are scaled to variance 1, and predictions start from the target's mean (or the classes'
    frequencies), by sums over all training rows; what is fitted on top has a ridge, the constant's included:

    - local: each agent alone. One ridge for all agents, chosen by all their validation errors: kinder to them than each
      choosing by its few rows.
    - pooled: one model for all rows.
    - SCAFFOLD ends at the pooled model whatever the agents hold, so it is not run: its row is that of the pooled model.
    - FedAvg with full gradients, everybody taking part: the point where its rounds stop moving.
    - coupled: GTVMin over the network, min sum_k L_k(w_k) + ridge/2 |w_k|^2 + coupling sum A_ij |w_i - w_j|^2.

    Everything is solved to rounding. Ridge and coupling are chosen for each method and each split by validation within
    the training rows; of the last on a grid of both, every second of each first, then around the best.

    Args:
        X, y: rows (n, columns) of numbers, and targets (n,): numbers or classes.
        groups: (n,) whose row it is.
        network: of the agents. None: each is joined to its `neighbours` nearest by gradients at the pooled model, from
            training rows alone.
        seeds: splits, by number or as a list; each holds out rows of every agent anew.
        held_out: the share of each agent's rows to test on; an agent with one row keeps it for training.
        split: rows to test on instead: a mask (n,), then there is one split; or a function of the seed that returns
            one. For years, hold out the last ones.
        validation: rows that choose ridge and coupling, likewise, among the others; they are fitted afterwards.
            Default: `folds` random folds of each agent's training rows.
        methods: some of "local", "pooled", "SCAFFOLD", "FedAvg" and "coupled".
        task: "regression" or "classification". Default: words, two values and whole numbers of at most 20 are classes.
        weight: "agents" count alike in means, or by their "rows".
        ridges, couplings: to choose from.
        local_steps, step: of FedAvg; the local step's default is 1/L, L the largest smoothness of an agent.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, bank = rng.normal(size=(200, 3)), np.repeat(["a", "b", "c", "d"], 50)
    >>> y = X @ [1.0, 2.0, 3.0] + np.where(bank > "b", 2.0, -2.0) * X[:, 0] + 0.1 * rng.normal(size=200)
    >>> found = baselines(X, y, groups=bank, seeds=2, neighbours=1)
    >>> found.difference("local", "pooled").clear, found.error("local")[0] < 0.02
    (True, True)
    """
    table = _Table(X, y, groups, task)
    wanted = _methods(methods, table)
    net = None if network is None else _network(network).aligned(table.names)
    if weight not in ("agents", "rows"):
        raise FedpointError(f"unknown weight {weight!r}: {nearest(str(weight), ('agents', 'rows'))}")
    _whole("folds", folds, 2)
    _whole("local_steps", local_steps, 1)
    _whole("neighbours", neighbours, 1)
    if step is not None and not step > 0:
        raise FedpointError(f"step must be above 0, got {step}")
    plan = _splits(table, seeds, held_out, split, validation, folds)
    counts = table.counts.astype(float)
    search = _Search(
        net,
        neighbours,
        _grid("ridges", RIDGES if ridges is None else ridges, above=True),
        None if couplings is None else _grid("couplings", couplings),
        counts if weight == "rows" else np.ones(len(counts)),
        local_steps,
        step,
    )
    errors: dict[str, list[np.ndarray]] = {m: [] for m in wanted}
    right: dict[str, list[np.ndarray]] = {m: [] for m in wanted}
    chosen: dict[str, list[dict[str, float]]] = {m: [] for m in wanted}
    # Many small products: threads would wait for each other longer than they work.
    with threadpool_limits(1, user_api="blas"):
        for test, inner in plan:
            _one_split(table, search, test, inner, errors, right, chosen)
    how = "given rows" if split is not None else f"{held_out:g} of each agent's rows"
    how += f", {len(plan)} splits" if len(plan) > 1 else ""
    return Baselines(
        {m: np.array(e) for m, e in errors.items()},
        {} if table.family.kind == "regression" else {m: np.array(a) for m, a in right.items()},
        chosen,
        search.weights,
        table.names,
        "regression" if table.family.kind == "regression" else "classification",
        f"{len(table.names)} agents" + (" by their rows" if weight == "rows" else ""),
        how,
    )


def _one_split(
    table: _Table,
    search: _Search,
    test: np.ndarray,
    inner: list[tuple[np.ndarray, np.ndarray]],
    errors: dict[str, list[np.ndarray]],
    right: dict[str, list[np.ndarray]],
    chosen: dict[str, list[dict[str, float]]],
) -> None:
    """Choose, fit and test every method on one split."""
    whole = table.case(~test, test)
    cases = [table.case(fit, check) for fit, check in inner]
    found: dict[str, tuple[np.ndarray, dict[str, float]]] = {}
    for method in errors:
        same = "pooled" if method == "SCAFFOLD" else method
        if same not in found:
            best = search.choose(same, cases)
            found[same] = search.fit(same, whole, best), best
        models, best = found[same]
        errors[method].append(whole.errors(models))
        right[method].append(whole.accuracies(models))
        chosen[method].append(best)


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["method"],
        f"{row['error']:.4g}",
        f"{row['low']:.4g} to {row['high']:.4g}",
        f"{row['least_split']:.4g} to {row['most_split']:.4g}",
        f"{row['worst_tenth']:.4g}",
        f"{row['accuracy']:.4f}" if "accuracy" in row else "",
        f"{row['ridge']:.1g}",
        "" if row["coupling"] is None else f"{row['coupling']:.2g}",
    ]


class _Table:
    """The rows, sorted by agent, and what is predicted."""

    def __init__(self, X: Any, y: Any, groups: Any, task: str | None):
        X, y = np.asarray(X), np.asarray(y)
        if X.ndim != 2 or y.shape != (len(X),):
            raise FedpointError(f"X of shape {X.shape} and y of shape {y.shape}: give (rows, columns) and (rows,)")
        if X.dtype == object:
            try:
                X = X.astype(float)
            except (TypeError, ValueError) as error:
                raise FedpointError(f"X holds what is no number ({error}): encode words first") from None
        check_finite("X", X)
        if groups is None:
            raise FedpointError("groups: whose row is it? Give one agent's name a row")
        try:
            self.order, self.counts, self.names = by_agent(groups, len(X))
        except TypeError:
            raise FedpointError("groups holds names of different kinds, or none: give one agent's name a row") from None
        if len(self.names) < 2:
            raise FedpointError(f"all rows belong to {self.names[0]}: there are no agents to compare")
        self.X = X[self.order].astype(float)
        self.agent = np.repeat(np.arange(len(self.counts)), self.counts)
        self.family, self.target = _target(y[self.order], task)

    def case(self, fit: np.ndarray, check: np.ndarray) -> _Case:
        """Rows to fit and to check, both as masks in sorted order."""
        lacking = np.flatnonzero(np.bincount(self.agent[fit], minlength=len(self.names)) == 0)
        if len(lacking):
            more = f" and {len(lacking) - 1} more agents" if len(lacking) > 1 else ""
            raise FedpointError(f"no rows are left to fit for agent {self.names[lacking[0]]}{more}: hold out fewer")
        X, target = self.X[fit], self.target[fit]
        shift, spread = X.mean(0), X.std(0)
        spread[spread <= 1e-12 * np.abs(shift)] = 1.0  # a constant column: it becomes zero
        scaled = np.column_stack([np.ones(len(self.X)), (self.X - shift) / spread])
        rows = Rows(
            scaled[fit],
            target,
            np.bincount(self.agent[fit], minlength=len(self.names)),
            self.family,
            self._offset(target),
        )
        return _Case(rows, scaled[check], self.target[check], self.agent[check])

    def _offset(self, target: np.ndarray) -> np.ndarray:
        mean = target.mean(0)
        if self.family.kind == "regression":
            return mean
        n, C = len(target), max(2, self.family.outputs)
        share = (n * mean + 0.5) / (n + 0.5 * C)  # a class that is not among these rows is rare, not impossible
        return np.log(share) if self.family.kind == "softmax" else np.log(share / (1 - share))


@dataclass(frozen=True)
class _Case:
    """Rows that are fitted, and others of the same agents to test the models on."""

    rows: Rows
    X: np.ndarray
    target: np.ndarray
    agent: np.ndarray

    def _scores(self, models: np.ndarray) -> np.ndarray:
        W = models.reshape(len(models), self.X.shape[1], -1)
        return np.einsum("np,npc->nc", self.X, W[self.agent]) + self.rows.offset

    def _per_agent(self, values: np.ndarray) -> np.ndarray:
        K = len(self.rows.counts)
        with np.errstate(invalid="ignore"):
            return np.bincount(self.agent, values, K) / np.bincount(self.agent, minlength=K)

    def errors(self, models: np.ndarray) -> np.ndarray:
        """(K,): the mean squared error or log loss of each agent's test rows; nan where it has none."""
        family = self.rows.family
        losses = family.losses(self._scores(models), self.target)
        return self._per_agent(2 * losses if family.kind == "regression" else losses)

    def accuracies(self, models: np.ndarray) -> np.ndarray:
        scores = self._scores(models)
        if self.rows.family.outputs > 1:
            right = scores.argmax(1) == self.target.argmax(1)
        else:
            right = (scores[:, 0] > 0) == (self.target[:, 0] > 0.5)
        return self._per_agent(right.astype(float))


@dataclass(frozen=True)
class _Search:
    """How each method is fitted, and how its ridge and coupling are chosen."""

    network: Network | None
    neighbours: int
    ridges: np.ndarray
    couplings: np.ndarray | None
    weights: np.ndarray
    local_steps: int
    step: float | None

    def choose(self, method: str, cases: list[_Case]) -> dict[str, float]:
        """Ridge (and coupling) with the least validation error."""
        nets = [self.net(case) if method == "coupled" else None for case in cases]
        starts: list[np.ndarray | None] = [None] * len(cases)

        def error(**setting: float) -> float:
            total = []
            for i, case in enumerate(cases):
                models = self.fit(method, case, setting, nets[i], starts[i])
                starts[i] = models
                total.append(case.errors(models))
            return _interval(_mean(np.array(total)), self.weights)[0]

        # From the largest on: each fit starts from the one before, and models grow.
        ridges = self.ridges[::-1]
        if method != "coupled":
            return {"ridge": float(ridges[int(np.argmin([error(ridge=float(r)) for r in ridges]))])}
        couplings = self._couplings(cases[0], nets[0])[::-1]
        # Every second of both, then what lies around the best: one after the other they may get stuck.
        found: dict[tuple[int, int], float] = {}
        places = [(i, j) for i in range(0, len(ridges), 2) for j in range(0, len(couplings), 2)]
        for _ in range(2):
            for i, j in places:
                if (i, j) not in found:
                    found[i, j] = error(ridge=float(ridges[i]), coupling=float(couplings[j]))
            a, b = min(found, key=lambda at: found[at])
            places = [(i, j) for i in range(a - 1, a + 2) for j in range(b - 1, b + 2)]
            places = [(i, j) for i, j in places if 0 <= i < len(ridges) and 0 <= j < len(couplings)]
        return {"ridge": float(ridges[a]), "coupling": float(couplings[b])}

    def fit(
        self,
        method: str,
        case: _Case,
        setting: dict[str, float],
        net: Network | None = None,
        start: np.ndarray | None = None,
    ) -> np.ndarray:
        """(K, D): every agent's model."""
        rows, ridge, coupling = case.rows, setting["ridge"], setting.get("coupling", 0.0)
        if method == "local":
            return minimise(rows, ridge, start=start)
        if method == "coupled":
            return minimise(rows, ridge, self.net(case) if net is None else net, coupling, start)
        one = minimise(rows.together(), ridge, start=None if start is None else start[:1])[0]
        if method == "FedAvg":
            one = fedavg(rows, ridge, self.step, self.local_steps, one)
        return np.repeat(one[None], len(rows.counts), axis=0)

    def net(self, case: _Case) -> Network:
        """The network, or one of agents whose gradients at the pooled model are alike."""
        if self.network is not None:
            return self.network
        rows = case.rows
        ridge = float(self.ridges[len(self.ridges) // 2])
        one = minimise(rows.together(), ridge)
        gradients = rows.gradients(np.repeat(one, len(rows.counts), axis=0))
        return Network.knn(gradients, min(self.neighbours, len(rows.counts) - 1))

    def _couplings(self, case: _Case, net: Network | None) -> np.ndarray:
        if self.couplings is not None:
            return self.couplings
        assert net is not None
        if not len(net.edges):
            raise FedpointError("the network has no edge: there is nothing to couple")
        degree = np.median(net.degrees[net.degrees > 0])
        return np.median(case.rows.curvature) / (2 * degree) * np.logspace(-DECADES / 2, DECADES / 2, COUPLINGS)


def _splits(
    table: _Table, seeds: Any, held_out: Any, split: Any, validation: Any, folds: int
) -> list[tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]]:
    """For every seed the rows to test on, and pairs (fit, check) within the others; masks in sorted order."""
    if isinstance(seeds, int | np.integer):
        _whole("seeds", seeds, 1)
        seeds = range(int(seeds))
    seeds = list(seeds)
    if not seeds:
        raise FedpointError("seeds: give at least one")
    if split is not None and not callable(split):
        seeds = seeds[:1]  # always the same rows
    if not 0 < held_out < 1:
        raise FedpointError(f"held_out: a share of rows between 0 and 1, got {held_out!r}")
    plan = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        test = _drawn(table, rng, held_out) if split is None else _mask("split", split, seed, table)
        fit = ~test
        if validation is None:
            inner = _folds(table, fit, folds, rng)
        else:
            check = _mask("validation", validation, seed, table)
            if (check & test).any():
                raise FedpointError("validation: rows that are tested on must not choose: the masks overlap")
            inner = [(fit & ~check, check)]
        plan.append((test, inner))
    return plan


def _drawn(table: _Table, rng: np.random.Generator, share: float) -> np.ndarray:
    test = np.zeros(len(table.X), bool)
    ends = np.cumsum(table.counts)
    for start, m in zip(ends - table.counts, table.counts, strict=True):
        if m > 1:
            test[start + rng.permutation(m)[: int(np.clip(round(share * m), 1, m - 1))]] = True
    if not test.any():
        raise FedpointError("every agent has a single row: none can be held out")
    return test


def _folds(table: _Table, fit: np.ndarray, folds: int, rng: np.random.Generator) -> list:
    fold = np.full(len(table.X), -1)
    for k in range(len(table.names)):
        rows = np.flatnonzero(fit & (table.agent == k))
        if len(rows) > 1:  # a single row is always fitted
            fold[rng.permutation(rows)] = (np.arange(len(rows)) + rng.integers(folds)) % folds
    pairs = [(fit & (fold != f), fold == f) for f in range(folds)]
    pairs = [pair for pair in pairs if pair[1].any()]
    if not pairs:
        raise FedpointError("every agent has a single training row: give validation=, or hold out fewer")
    return pairs


def _mask(name: str, given: Any, seed: int, table: _Table) -> np.ndarray:
    found = np.asarray(given(seed) if callable(given) else given)
    if found.dtype != bool or found.shape != table.agent.shape:
        raise FedpointError(
            f"{name}: a mask with True or False for each of the {len(table.agent)} rows, or a function of the seed "
            f"that returns one; got {found.dtype} of shape {found.shape}"
        )
    if found.all() or not found.any():
        raise FedpointError(f"{name}: {'all' if found.all() else 'no'} rows are held out")
    return found[table.order]


def _target(y: np.ndarray, task: str | None) -> tuple[Family, np.ndarray]:
    """What is predicted, and the targets (n, outputs)."""
    if task not in (None, "regression", "classification"):
        raise FedpointError(f"unknown task {task!r}: {nearest(str(task), ('regression', 'classification'))}")
    if y.dtype == object and all(isinstance(value, Real) for value in y):
        y = y.astype(float)
    number = y.dtype.kind in "iuf"
    if number:
        check_finite("y", y)
    try:
        classes, label = np.unique(y, return_inverse=True)
    except TypeError:
        raise FedpointError("y holds labels of different kinds: use numbers or words, not both") from None
    if task is None:
        few = len(classes) == 2 or (len(classes) <= CLASSES and number and (y == np.round(y)).all())
        task = "classification" if few or not number else "regression"
    if task == "regression":
        if not number and y.dtype != bool:
            raise FedpointError(f"y holds {y.dtype}, not numbers: there is no regression")
        return Family("regression"), y.astype(float)[:, None]
    if len(classes) < 2:
        raise FedpointError(f"y holds one class only ({classes[0]!r}): there is nothing to tell apart")
    if len(classes) > len(y) / 2:
        raise FedpointError(f"y holds {len(classes)} classes in {len(y)} rows: are they names, not classes?")
    if len(classes) == 2:
        return Family("binary"), label.astype(float)[:, None]
    return Family("softmax", len(classes)), np.eye(len(classes))[label]


def _methods(methods: Sequence[str] | None, table: _Table) -> list[str]:
    size = (table.X.shape[1] + 1) * table.family.outputs
    if methods is None:
        return [m for m in METHODS if m != "FedAvg" or size <= DENSE]
    if isinstance(methods, str):
        methods = [methods]
    known = {m.lower(): m for m in METHODS}
    for method in methods:
        if str(method).lower() not in known:
            raise FedpointError(f"unknown method {method!r}: {nearest(str(method), METHODS)}")
    wanted = [m for m in METHODS if m.lower() in {str(n).lower() for n in methods}]
    if not wanted:
        raise FedpointError(f"methods: give some of {', '.join(METHODS)}")
    if "FedAvg" in wanted and size > DENSE:
        raise FedpointError(
            f"the fixed point of FedAvg is found for models of at most {DENSE} numbers, these have {size}: use fp.run"
        )
    return wanted


def _network(network: Any) -> Network:
    if not isinstance(network, Network):
        raise FedpointError(f"network must be an fp.Network, got {type(network).__name__}")
    return network


def _grid(name: str, values: Any, above: bool = False) -> np.ndarray:
    try:
        grid = np.sort(np.atleast_1d(np.asarray(values, dtype=float)))
    except (TypeError, ValueError):
        raise FedpointError(f"{name}: give numbers") from None
    if not grid.size or not np.isfinite(grid).all() or grid[0] < 0 or (above and grid[0] == 0):
        raise FedpointError(f"{name}: numbers {'above' if above else 'at least'} 0, got {values!r}")
    return grid


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise FedpointError(f"{name} must be a whole number, at least {least}; got {value!r}")


def _mean(values: np.ndarray) -> np.ndarray:
    """Over the first axis, of what is there; nan where nothing is."""
    there = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.where(there, values, 0.0).sum(0) / there.sum(0)


def _interval(values: np.ndarray, weights: np.ndarray) -> tuple[float, float, float]:
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
